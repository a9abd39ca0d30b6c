"""A network written down to be robust, and the one that gradient descent finds for the same samples."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.feedforward import dense
from torchtheory.robustness.attacks.balls import random_perturbation
from torchtheory.robustness.attacks.gradient_steps import PGD
from torchtheory.robustness.attacks.shortest import DeepFool
from torchtheory.robustness.evaluation import robust_radius
from torchtheory.robustness.exact import minimal_perturbation
from torchtheory.robustness.random_networks import random_two_layer, sphere_points
from torchtheory.robustness.robust_memorizer import (
    RobustMemorizer,
    memorizing_network,
    pair_flip_distance,
    robust_memorizer,
)
from torchtheory.training.loop.trainer import fit


@lab(
    "robust-memorizer",
    room="robustness",
    covers=["M-148", "M-149", "M-150"],
    title="A network that keeps its signs up to (1-c)√d/2, and one that gradient descent finds",
    full={"dimension": 1000, "samples": 200, "width": 400, "epochs": 1500},
    least={"dimension": 10, "samples": 2, "width": 30, "epochs": 8},
)
def robust_network(run: Run, dimension: int = 200, samples: int = 64, width: int = 80, epochs: int = 250) -> None:
    """Robust networks exist: one is written down and nothing flips it within its radius.

    Each unit of the network answers to one sample. Attacks pull the output down as fast as the
    proof allows and no faster, and the sign is lost exactly at the certified radius, twice that of
    the printed proof. Gradient descent fits nearly orthogonal samples with a network of the same
    shape whose signs one direction undoes at a length of order √(d/m). Ten samples are too few to
    make that shorter than the certified radius; at fifty it is about half of it.

    Args:
        dimension: d of the inputs.
        samples: that are fitted, random points of the sphere of radius √d.
        width: hidden units of the trained network.
        epochs: steps of gradient descent.
    """
    x, y = sphere_points(samples, dimension, run.generator), run.signs(samples)
    run.assumes(bool((y != y[0]).any()), f"all {samples} samples have one sign: nothing has to be told apart")
    made = robust_memorizer(x, y)
    c, radius = made.correlation, made.radius
    # what the theorem does not cover: samples nearer to each other than the network was told
    near = pulled_together(x)
    told_less = memorizing_network(near, y, c)

    says = run.states("M-149", r"f(x_i)=y_i")
    says.equal(values(made.network, made.samples), y, 1e-12)
    says.fails("⟨$x_i$, $x_j$⟩ > c d for some pairs", values(told_less, near))

    own, others = unit_inputs(made, radius / 2)
    says = run.states("M-149", r"\|\delta\|\le\tfrac{1-c}4\sqrt d:\ w_i^\top(x_i+\delta)+b_i\ge\tfrac12")
    says.at_least(own, 0.5, 1e-9, where="the worst perturbation of each unit")
    says.fails("the inputs have the length 0.9 √d", unit_inputs(shrunk(made), radius / 2)[0])
    says = run.states("M-149", r"\|\delta\|\le\tfrac{1-c}4\sqrt d:\ \max_{j\ne i}w_j^\top(x_i+\delta)+b_j\le-\tfrac12")
    says.at_most(others, -0.5, 1e-9, where="the worst perturbation of each unit")
    says.fails("⟨$x_i$, $x_j$⟩ > c d", unit_inputs(RobustMemorizer(told_less, near, c, radius), radius / 2)[1])

    # -- attacks inside of the radius
    shares = [0.25, 0.5, 0.75, 0.95]
    lowest = [least_margins(run, made.network, made.samples, y, r * radius) for r in shares]
    says = run.states("M-149", r"\|\delta\|<R=\tfrac{1-c}2\sqrt d:\ y_if(x_i+\delta)\ge1-\|\delta\|/R>0")
    says.at_least(lowest, [1 - r for r in shares], 1e-9, where="PGD with restarts and random search")
    says.fails(
        "⟨$x_i$, $x_j$⟩ > c d",
        [least_margins(run, told_less, near, y, r * radius) for r in shares],
    )

    # -- the distance at which the sign is lost
    few = min(samples, 4)
    classes = (y[:few] > 0).long()
    enclosed = robust_radius(made.network, made.samples[:few], classes, "2")
    trained = descended(run, drawn(run, dimension, width), x, y, epochs)
    says = run.states("M-149", r"\text{the sign is undone}\Rightarrow\|\delta\|\ge\tfrac{1-c}2\sqrt d")
    says.at_least(enclosed.upper, radius, 1e-9, where="the shortest that growing and shrinking balls of PGD found")
    pulled = robust_radius(told_less, near[-few:], (y[-few:] > 0).long(), "2")
    says.fails("⟨$x_i$, $x_j$⟩ > c d", pulled.upper)
    says = run.states("M-148", r"\text{certified by linear bounds}\le\text{distance to a change of sign}")
    says.at_most(enclosed.lower, enclosed.upper, 1e-9)

    grid = [-0.5, 0.0, 0.3, 0.6]
    pairs = [pair(dimension, k) for k in grid]
    says = run.states("M-149", r"\langle x_1,x_2\rangle=cd:\ \text{the sign is lost at }\tfrac{1-c}2\sqrt d")
    says.equal(
        [first_loss(p, 0.0) for p in pairs],
        [(1 - k) * math.sqrt(dimension) / 2 for k in grid],
        1e-6,
        where="the exact distance, by the network's cells",
    )
    says.fails("⟨$x_1$, $x_2$⟩ above c d", [first_loss(understated(dimension, k), 0.0) for k in grid])
    says = run.states("M-149", r"\text{and the other sign appears at }\sqrt{(1-c)d/2}\ge\tfrac{1-c}2\sqrt d")
    says.equal([first_loss(p, 1e-7) for p in pairs], [pair_flip_distance(dimension, k) for k in grid], 1e-4)
    says.at_least([first_loss(p, 1e-7) for p in pairs], [p.radius for p in pairs])

    gradient_descent(run, width, epochs)
    run.figure(
        "descent",
        lambda ax: plot(ax, run, made, trained, y),
        caption="The least output y f(x + δ) over perturbations of a length, the mean over samples, under attack.",
    )


#: the sizes at which gradient descent is asked
DIMENSIONS, COUNTS = (100, 300, 1000), (10, 20, 50)
AT_SIZES = "d = 100, 300, 1000 and m = 10, 20, 50"


class Flips(NamedTuple):
    """How far the samples of a trained network are from another sign, in units of √d."""

    dimension: int
    samples: int
    shortest: float
    one_for_all: float
    margin: float
    before: float
    certified: float


def gradient_descent(run: Run, width: int, epochs: int) -> None:
    """M-150: what is found in place of the robust network, from ten samples to fifty."""
    sizes = [(d, m) for d in DIMENSIONS for m in COUNTS]
    found = [flips(run, *spread(run, d, m), width, epochs) for d, m in sizes]
    leaning = [flips(run, *spread(run, d, m, 1.0), width, epochs) for d, m in sizes if d < DIMENSIONS[-1]]
    says = run.states("M-150", r"\text{gradient descent fits every sample: least }y_if(x_i)")
    says.above([f.margin for f in found], 0.0, where=AT_SIZES)
    says.fails("no step of it", [f.before for f in found])
    says = run.states(
        "M-150",
        r"\langle x_i,x_j\rangle\approx0,\ z\propto\textstyle\sum_jy_jx_j:\ "
        r"y_if(x_i-y_iz)<0\text{ for all }i\text{ at a length }\|z\|\le\tfrac92\sqrt{d/m}",
    )
    says.at_most([f.one_for_all * math.sqrt(f.samples) for f in found], 4.5, where=f"‖z‖ over √(d/m); {AT_SIZES}")
    says.fails(
        "the samples lean to the means of their classes",
        [f.one_for_all * math.sqrt(f.samples) for f in leaning if f.samples == COUNTS[-1]],
    )
    says = run.states("M-150", r"\text{median distance to a flip}/\sqrt d\sim m^{-1/2}")
    says.slope(
        [f.samples for f in found],
        [f.shortest for f in found],
        -0.5,
        0.05,  # few samples are a little nearer than the law has them
        against=(-1.0, -0.25, 0.0),
        where=f"the shorter of DeepFool's and z; {AT_SIZES}",
    )
    says.fails(
        "the samples lean to the means of their classes",
        [f.samples for f in leaning],
        [f.shortest for f in leaning],
    )
    # with the constant that is measured the two lengths are equal at m of about 6 / (1 - c)^2
    many, few = ([f.shortest / f.certified for f in found if f.samples == m] for m in (COUNTS[-1], COUNTS[0]))
    says = run.states("M-150", r"m\gg(1-c)^{-2}:\ \text{median distance to a flip}<\tfrac45\cdot\tfrac{1-c}2\sqrt d")
    says.below(many, 0.8, where=f"over the certified radius of the explicit network, m = {COUNTS[-1]}")
    says.fails(f"m = {COUNTS[0]}", few)
    run.curves(
        "distances",
        COUNTS,
        {f"trained, d = {d}": [f.shortest for f in found if f.dimension == d] for d in DIMENSIONS},
        {
            f"explicit network, certified, d = {DIMENSIONS[-1]}": [
                f.certified for f in found if f.dimension == DIMENSIONS[-1]
            ],
            "1.28/√m": [1.28 / math.sqrt(m) for m in COUNTS],
        },
        axes=("samples m", "length of the perturbation over √d"),
        log="xy",
        caption="Shortest perturbation found that changes a sign, the median over the samples. Trained networks lose "
        "robustness like 1/√m; the explicit network's radius depends on the samples' largest correlation alone.",
    )


def spread(run: Run, dimension: int, count: int, leaning: float = 0.0) -> tuple[Tensor, Tensor]:
    """Samples on the sphere of radius √d in two equal classes; they may lean to their class's side."""
    y = torch.ones(count, dtype=torch.float64)
    y[1::2] = -1
    x = sphere_points(count, dimension, run.generator)
    x[:, 0] += leaning * math.sqrt(dimension) * y
    return x * (math.sqrt(dimension) / x.norm(dim=1, keepdim=True)), y


def flips(run: Run, x: Tensor, y: Tensor, width: int, epochs: int) -> Flips:
    """Gradient descent on samples, and two ways to undo their signs."""
    root = math.sqrt(x.shape[1])
    net = drawn(run, x.shape[1], width)
    before = float((y * values(net, x)).min())
    descended(run, net, x, y, epochs)
    attacked = DeepFool(norm="2")(net, x, (y > 0).long())
    own = attacked.norms.where(attacked.success, math.inf)
    common = flips_along(net, x, y)
    return Flips(
        x.shape[1],
        len(x),
        float(torch.minimum(own, common).median()) / root,
        float(common.max()) / root,
        float((y * values(net, x)).min()),
        before,
        robust_memorizer(x, y).radius / root,
    )


def flips_along(net: nn.Module, x: Tensor, y: Tensor, steps: int = 400) -> Tensor:
    """For each sample, how far along Σ y_j x_j it first has another sign; infinite if nowhere within 2√d."""
    z = (y[:, None] * x).sum(0)
    lengths = torch.linspace(0, 2 * math.sqrt(x.shape[1]), steps, dtype=torch.float64)
    moved = x - (y[:, None] * z / z.norm()) * lengths[:, None, None]
    wrong = y * values(net, moved.flatten(0, 1)).view(steps, -1) < 0
    return torch.where(wrong.any(0), lengths[wrong.int().argmax(0)], math.inf)


def values(net: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        out: Tensor = net(x)[:, 0]
    return out


def pulled_together(x: Tensor) -> Tensor:
    """Samples on the same sphere that all lean to the first one."""
    shift = x + 2 * x[:1]
    scaled: Tensor = shift * (math.sqrt(x.shape[1]) / shift.norm(dim=1, keepdim=True))
    return scaled


def shrunk(made: RobustMemorizer) -> RobustMemorizer:
    return RobustMemorizer(made.network, 0.9 * made.samples, made.correlation, made.radius)


def unit_inputs(made: RobustMemorizer, radius: float) -> tuple[Tensor, Tensor]:
    """Least input of each sample's own unit and largest of any other, over a ball: both exact."""
    layer = made.network[0]
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        inputs = layer(made.samples)
        reach = radius * layer.weight.norm(dim=1)
    own = inputs.diagonal() - reach
    rest = inputs + reach
    return own, rest.fill_diagonal_(-math.inf).amax(1)


def least_margins(run: Run, net: nn.Module, x: Tensor, y: Tensor, radius: float) -> float:
    """The least y f that PGD and random search find within a radius."""
    attack = PGD(radius, 20, norm="2", loss="margin", stop_when_fooled=False, generator=run.generator)
    points = [attack(net, x, (y > 0).long()).adversarial]
    for _ in range(5):
        moved = random_perturbation(x, radius, "2", run.generator)
        points.append(x + moved * (radius / moved.norm(dim=1, keepdim=True)))
    return min(float((y * values(net, p)).min()) for p in points)


def pair(dimension: int, correlation: float) -> RobustMemorizer:
    """Two samples of two classes at a given correlation."""
    x = torch.zeros(2, dimension, dtype=torch.float64)
    x[0, 0], x[1, 0] = 1.0, correlation
    x[1, 1] = math.sqrt(1 - correlation**2)
    return robust_memorizer(x, torch.tensor([1.0, -1.0], dtype=torch.float64))


def understated(dimension: int, correlation: float) -> RobustMemorizer:
    """The same, with samples nearer to each other than the network was told."""
    near = pair(dimension, correlation + 0.8 * (1 - correlation)).samples
    net = memorizing_network(near, torch.tensor([1.0, -1.0], dtype=torch.float64), correlation)
    return RobustMemorizer(net, near, correlation, (1 - correlation) * math.sqrt(dimension) / 2)


def first_loss(made: RobustMemorizer, beyond: float) -> float:
    """How far the first sample is from where f falls to -beyond, exactly."""
    inner, relu, outer = made.network
    assert isinstance(outer, nn.Linear)
    lifted = dense(outer.weight, torch.full((1,), beyond, dtype=torch.float64))
    return minimal_perturbation(nn.Sequential(inner, relu, lifted), made.samples[0], 1, "2", method="cells").distance


def drawn(run: Run, dimension: int, width: int) -> nn.Sequential:
    """Two layers with biases and small weights."""
    made = random_two_layer(width, dimension, generator=run.generator)
    first, last = made[0], made[2]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    inner = dense(0.1 * first.weight, torch.zeros(width, dtype=torch.float64))
    return nn.Sequential(inner, nn.ReLU(), dense(last.weight))


def descended(run: Run, net: nn.Sequential, x: Tensor, y: Tensor, epochs: int) -> nn.Sequential:
    """The network after gradient descent on the logistic loss."""
    m, d = x.shape
    fit(
        net,
        (x, (y > 0).long()),
        epochs=epochs,
        batch_size=m,
        optimizer="sgd",
        learning_rate=m / d,
        task="binary",
        seed=run.seed,
    )
    return net.requires_grad_(False)


def plot(ax: Any, run: Run, made: RobustMemorizer, trained: nn.Sequential, y: Tensor) -> None:
    lengths = torch.linspace(0.05, 1.3, 9) * made.radius
    for net, label, color in (
        (made.network, "explicit", COLORS[0]),
        (trained, "trained", COLORS[1]),
    ):
        least = []
        for r in lengths.tolist():
            attack = PGD(r, 15, norm="2", loss="margin", stop_when_fooled=False, random_start=False)
            out = y * values(net, attack(net, made.samples, (y > 0).long()).adversarial)
            least.append(float(out.mean()) / float((y * values(net, made.samples)).mean()))
        ax.plot(lengths, least, "o-", color=color, label=label)
    ends = torch.tensor([0.0, made.radius])
    ax.plot(ends, 1 - ends / made.radius, "--", color=COLORS[2], label="1 - ‖δ‖/R, the explicit one's bound")
    ax.axhline(0, color="0.6", linewidth=0.8)
    ax.axvline(made.radius, color="0.6", linestyle=":", label="certified radius R")
    ax.set_xlabel("length of the perturbation")
    ax.set_ylabel("output over that at the sample")
    ax.legend()
