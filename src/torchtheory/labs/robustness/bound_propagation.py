"""Bounds of what a network does in a ball, held against attacks and exact distances."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.robustness.attacks.gradient_steps import PGD
from torchtheory.robustness.bounds.output_bounds import Method, OutputBounds, output_bounds
from torchtheory.robustness.evaluation import robust_radius
from torchtheory.robustness.exact.distance import minimal_perturbation

WORDS: dict[Method, str] = {
    "interval": "intervals",
    "crown": "CROWN",
    "alpha-crown": "CROWN with optimized slopes",
}


@lab(
    "bound-propagation",
    room="robustness",
    covers=["M-143", "M-148"],
    title="How far a network's output can move in a ball: certified, exact, attacked",
    full={"samples": 40, "units": 24},
    # of fewer units none may bend in the ball of a sample, and then the network is affine there; in few
    # dimensions the largest entry of a perturbation is nearly as large as its length
    least={"dimension": 6, "units": 8, "samples": 4},
)
def bound_propagation(run: Run, dimension: int = 10, units: int = 12, samples: int = 8) -> None:
    r"""A two-layer network on the sphere of radius √d, bounded in balls about its inputs.

    Linear bounds are exact for an affine network and lie below every attack for a bent one. The
    distance to a change of sign is enclosed by a certificate and an attack, with the exact
    distance in between; no sign needs a longer way than 2√d if both occur on the sphere. Look at
    how bounds widen from layer to layer: intervals forget that units share their inputs, and
    linear bounds do not.

    Theorem:
        Let $f$ be a ReLU network and let its input move by $\delta$.
        *In a ball*: $\|\delta\|_p\le r$.
        *Bounds before each unit*: numbers are known between which its input stays in the ball.
        Then two affine functions that lie below and above the network in the ball are found in one pass backwards, and
        their extremes over the ball bound the change of $f$. For an affine network the bound is met: $r\|w\|_q$.

    Symbols:
        $f$: the network, with one output; its sign is the class.
        $x$: an input, in $d$ dimensions, on the sphere of radius $\sqrt d$.
        $\delta$: the perturbation of the input.
        $r$: the radius of the ball of perturbations.
        $p$, $q$: exponents of dual norms, $1/p+1/q=1$; the ball is one of the first.
        $w$: the slopes of an affine network.

    Idea:
        A ReLU whose input stays on one side of 0 is affine. Another one lies between two lines: above 0,
        or above a line through 0, and below the chord. From the output backwards, each unit is replaced by the line
        that makes the bound worse, by the sign of its weight. What is left is affine in the input, and
        an affine function rises in a ball by $r$ times the dual norm of its slopes (Hölder's inequality).

    Try:
        units=24: certified, exact and found keep their order in every row; look where they are far apart.
        dimension=20: inputs are longer, like $\sqrt d$; the distances to a change of sign are not.

    Exercise:
        The classifier $3x_1-4x_2+1$ says 'positive' at the origin. Find a perturbation `delta` that is no larger
        than 1/7 in any coordinate and takes it to the boundary. Why does no smaller one do?
        check: bool(delta.abs().max() <= 1 / 7 + 1e-6) and abs(float(3 * delta[0] - 4 * delta[1] + 1)) < 1e-6
        answer: delta = torch.tensor([-1 / 7, 1 / 7])

    Args:
        dimension: of the inputs.
        units: of the hidden layer.
        samples: inputs that are bounded.
    """
    root = math.sqrt(dimension)
    net = two_layers(run, dimension, units)
    x = on_sphere(run, samples, dimension)
    with torch.no_grad():
        y = (net(x)[:, 0] > 0).long()

    # -- bounds of the output
    straight = nn.Sequential(net[0], net[2])
    radius = 0.1 * root
    inner, outer = (layer.weight for layer in straight if isinstance(layer, nn.Linear))
    slopes = (outer @ inner)[0]
    says = run.states(
        "M-143", r"f\text{ affine}:\ \max_{\|\delta\|_p\le r}f(x+\delta)-f(x)=r\|w\|_q,\text{ from CROWN}"
    )
    exact: list[Tensor] = []
    found: list[Tensor] = []
    bent: list[Tensor] = []
    for norm, dual in (("inf", 1.0), ("2", 2.0), ("1", math.inf)):
        exact.append(radius * torch.linalg.vector_norm(slopes, dual).expand(samples))
        for model, gains in ((straight, found), (net, bent)):
            gains.append(rise(model, x, output_bounds(model, x, radius, norm)))
    says.equal(torch.cat(found), torch.cat(exact), 1e-9)
    says.fails("the units bend", torch.cat(bent))

    says = run.states(
        "M-143", r"\max_{\|\delta\|_2\le r}\bigl(|f(x)|-\mathrm{sign}f(x)\,f(x+\delta)\bigr)\le\text{bound}"
    )
    bound = fall(net, x, y, output_bounds(net, x, radius, "2", "alpha-crown"))
    says.at_most(attacked_fall(net, x, y, radius), bound, 1e-9)
    says.fails("perturbations of twice the length", attacked_fall(net, x, y, 2 * radius))

    # -- the distance to a change of sign
    few = min(samples, 5)
    enclosed = robust_radius(net, x[:few], y[:few], "2")
    distances = [distance(net, x[k], int(y[k]), "2", 3 * root) for k in range(few)]
    far = [min(float(u), 3 * root) for u in enclosed.upper]
    says = run.states("M-148", r"\text{certified radius}\le\text{distance to a change of sign}")
    says.at_most(enclosed.lower, distances, 1e-6)
    says.fails(
        "the perturbation's largest entry is held to the radius, and not its length",
        enclosed.lower,
        promised=[distance(net, x[k], int(y[k]), "inf", 3 * root) for k in range(few)],
    )
    says = run.states("M-148", r"\text{distance to a change of sign}\le\text{length of a perturbation that was found}")
    says.at_most(distances, far, 1e-6)
    says.fails(
        "entries may only be made larger, by a tenth of √d each at most",
        [distance(net, x[k], int(y[k]), "2", 3 * root, (x[k], x[k] + 0.1 * root)) for k in range(few)],
    )
    run.table(
        "distances",
        ["sample", "certified", "exact", "found"],
        [(k, float(enclosed.lower[k]), distances[k], far[k]) for k in range(few)],
        caption="Euclidean distances to a change of sign",
    )

    says = run.states("M-148", r"\|x\|=\sqrt d,\text{ both signs occur on the sphere}:\ \text{distance}\le2\sqrt d")
    reach = [distance(cap(u / root), u, 1, "2", 10 * root) for u in x[:few]]
    says.at_most(reach, 2 * root, 1e-9)
    twice = [distance(cap(u / root, 2.0), 2 * u, 1, "2", 10 * root) for u in x[:few]]
    says.fails("the inputs, and the network's cap, are on the sphere of radius 2√d", twice)

    deep = mlp([dimension, 16, 16, 16, 2], "relu", generator=run.generator).double().requires_grad_(False)
    for layer in deep:
        if isinstance(layer, nn.Linear):  # of a size that neither shrinks nor grows from layer to layer
            layer.weight.copy_(math.sqrt(2 / layer.in_features) * run.randn(*layer.weight.shape))
    run.figure(
        "bounds",
        lambda axes: plot(axes, run, net, deep, x[:1]),
        grid=(1, 2),
        caption="Left: the range of the output over balls, as bounds have it and as points in the ball attain it. "
        "Right: the mean width of the bounds, layer by layer, of a network with three hidden layers.",
    )


def two_layers(run: Run, dimension: int, units: int) -> nn.Sequential:
    """Σ a_j max(w_j·x + b_j, 0) with random weights, balanced so that both signs occur."""
    inner = dense(run.randn(units, dimension) / math.sqrt(dimension), 0.3 * run.randn(units))
    signs = torch.ones(1, units, dtype=torch.float64)
    signs[0, ::2] = -1.0
    outer = dense(signs * (0.5 + run.rand(1, units)) / math.sqrt(units), torch.zeros(1, dtype=torch.float64))
    return nn.Sequential(inner, nn.ReLU(), outer).requires_grad_(False)


def on_sphere(run: Run, count: int, dimension: int) -> Tensor:
    x = run.randn(count, dimension)
    lengths: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return math.sqrt(dimension) * x / lengths


def cap(direction: Tensor, scale: float = 1.0) -> nn.Sequential:
    """A two-layer network that is negative only near the point opposite to a direction."""
    d = len(direction)
    level = 0.98 * scale * math.sqrt(d)
    inner = torch.stack([direction, torch.zeros_like(direction)])
    shifts = torch.tensor([level, 1.0], dtype=torch.float64)
    outer = torch.tensor([[1.0, -0.01]], dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)
    return nn.Sequential(dense(inner, shifts), nn.ReLU(), dense(outer, zero)).requires_grad_(False)


def rise(model: nn.Module, x: Tensor, bounds: OutputBounds) -> Tensor:
    """How far above the value at the center the bounds reach."""
    value: Tensor = model(x)[:, 0]
    return bounds.upper[:, 0] - value


def fall(model: nn.Module, x: Tensor, y: Tensor, bounds: OutputBounds) -> Tensor:
    """How far towards the other sign the bounds reach."""
    value: Tensor = model(x)[:, 0]
    return torch.where(y > 0, value - bounds.lower[:, 0], bounds.upper[:, 0] - value)


def attacked_fall(model: nn.Module, x: Tensor, y: Tensor, radius: float) -> Tensor:
    """How far towards the other sign an attack gets."""
    attack = PGD(radius, 60, norm="2", restarts=2, loss="margin", stop_when_fooled=False, generator=0)
    fallen: Tensor = model(x) - model(attack(model, x, y).adversarial)
    return (2 * y - 1) * fallen[:, 0]


def distance(
    model: nn.Module, x: Tensor, y: int, norm: str, largest: float, box: tuple[Tensor, Tensor] | None = None
) -> float:
    """The exact distance to a change of sign, or the largest that is looked for."""
    return min(minimal_perturbation(model, x, y, norm, box=box, largest=largest).distance, largest)


def plot(axes: Any, run: Run, net: nn.Module, deep: nn.Module, x: Tensor) -> None:
    left, right = axes[0]
    radii = torch.linspace(0.05, 2.0, 9).tolist()
    draws = torch.randn(2000, x.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(run.seed))
    unit = draws / draws.norm(dim=1, keepdim=True)
    for color, (method, words) in zip(COLORS, WORDS.items(), strict=False):
        found = [output_bounds(net, x, r, "2", method) for r in radii]
        left.plot(radii, [f.lower.item() for f in found], color=color, label=words)
        left.plot(radii, [f.upper.item() for f in found], color=color)
    inside = [net(x + r * unit) for r in radii]
    lows, highs = [float(v.min()) for v in inside], [float(v.max()) for v in inside]
    left.fill_between(radii, lows, highs, color="0.8", label="2000 points of the sphere")
    left.set(xlabel="radius of the ball", ylabel="output")
    left.legend()
    for color, (method, words) in zip(COLORS, WORDS.items(), strict=False):
        inside_layers = output_bounds(deep, x, 0.5, "inf", method, layers=True)
        layers = [v for v in inside_layers.layers[1:] if "Linear" in v.name]
        widths = [float((v.upper - v.lower).mean()) for v in layers[:-1]] + [float(inside_layers.width.mean())]
        right.semilogy(range(1, len(widths) + 1), widths, "o-", color=color, label=words)
    right.set(xlabel="layer", ylabel="mean width of the bounds", xticks=range(1, len(widths) + 1))
    right.legend()
