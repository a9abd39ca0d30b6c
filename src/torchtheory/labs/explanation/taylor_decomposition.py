"""Taylor decompositions: what a linear expansion explains, from where, and what it leaves."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from torchtheory.explanation.explanation import Explanation
from torchtheory.explanation.methods.gradients import integrated_gradients, sensitivity
from torchtheory.explanation.methods.shapley import shapley
from torchtheory.explanation.methods.taylor import ROOT_METHODS, find_root, taylor
from torchtheory.labs.engine import Run, lab
from torchtheory.nets.activations.table import as_layer
from torchtheory.nets.feedforward import dense, mlp

PRODUCT = as_layer(lambda t: t[:, 0] * t[:, 1])


@lab(
    "taylor-decomposition",
    room="explanation",
    covers=["C-06", "C-07", "C-08", "C-09", "C-15", "C-16"],
    title="A Taylor expansion explains what is linear on the way from its reference point",
    full={"samples": 400, "dimension": 12, "width": 64},
    least={"dimension": 2, "width": 8},  # a bias has to turn some unit on the way to 0
)
def taylor_decomposition(run: Run, samples: int = 60, dimension: int = 5, width: int = 16) -> None:
    """First-order decompositions at a point, at a root, at 0 and at δx, and their residuals.

    The residual is of second order in the distance from the reference point. For f = xy it is all
    there is at 0, where integrated gradients and Shapley values share xy equally. Roots are found
    along the gradient, on a segment, and nearest to the input; explanations from them differ. For
    a network of ReLUs without biases the point δx is as good as x.

    Args:
        samples: inputs that are explained.
        dimension: of the inputs.
        width: of the hidden layers.
    """
    start = run.randn(samples, dimension)
    along = run.randn(samples, dimension)
    along = along / along.norm(dim=1, keepdim=True)
    smooth = mlp([dimension, width, width, 1], "tanh", generator=run.generator)
    kinked = with_kinks_at(run, start[0], width)
    steps = [0.2 * 2.0**-k for k in range(6)]
    rest = {
        "smooth": [residual(smooth, start + h * along, start) for h in steps],
        "kink": [residual(kinked, start[:1] + h * along, start[:1].expand(samples, -1)) for h in steps],
    }
    says = run.states("C-06", r"f\in C^2:\ \varepsilon=f(x)-f(\tilde x)-\sum_iR_i=O(\|x-\tilde x\|^2)")
    says.slope(steps, rest["smooth"], 2.0, 0.05, against=(1.0, 3.0))
    says.fails("ReLUs with their kinks at the reference point", steps, rest["kink"])
    run.curves(
        "residual",
        steps,
        {"tanh network": rest["smooth"], "ReLUs with kinks at the reference": rest["kink"]},
        {"second order": [rest["smooth"][0] * (h / steps[0]) ** 2 for h in steps],
         "first order": [rest["kink"][0] * (h / steps[0]) for h in steps]},
        axes=("distance from the reference point", "residual of the expansion"),
        log="xy",
        caption="What a first-order decomposition leaves (root mean square over directions).",
    )  # fmt: skip
    linear = dense(run.randn(1, dimension), run.randn(1))
    says = run.states("C-06", r"f\text{ linear}:\ \varepsilon=0\text{ from any reference point}")
    says.equal(residuals(linear, along, start), 0.0, 1e-10)
    says.fails("a network with tanh", residuals(smooth, along, start))

    # -- the product
    pairs = 0.5 + run.rand(samples, 2)
    products = pairs.prod(1)
    at_zero = taylor(PRODUCT, pairs)
    somewhere = torch.full((2,), 0.4, dtype=torch.float64)
    elsewhere = taylor(PRODUCT, pairs, reference=somewhere)
    says = run.states("C-08", r"f=xy,\ \tilde x=(0,0):\ R=(0,0)")
    says.equal(at_zero.relevance, 0.0)
    says.fails("the reference point (0.4, 0.4), where the gradient is not 0", elsewhere.relevance)
    says = run.states("C-08", r"f=xy,\ \tilde x=(0,0):\ \varepsilon=xy")
    says.equal(gap(at_zero), products, 1e-12)
    says.fails("the reference point (0.4, 0.4)", gap(elsewhere))
    root = torch.cat([0.2 + 0.6 * run.rand(samples, 1), torch.zeros(samples, 1).double()], 1)
    at_root = taylor(PRODUCT, pairs, reference=root)
    expected = torch.stack([torch.zeros(samples).double(), root[:, 0] * pairs[:, 1]], 1)
    says = run.states("C-08", r"f=xy\text{ at the root }(a,0):\ R=(0,ay)")
    says.equal(at_root.relevance, expected, 1e-12)
    off = root + torch.tensor([0.0, 0.3]).double()
    says.fails("a reference point (a, 0.3) that is no root", taylor(PRODUCT, pairs, reference=off).relevance)
    says = run.states("C-08", r"f=xy\text{ at the root }(a,0):\ \varepsilon=(x-a)y")
    says.equal(gap(at_root), (pairs[:, 0] - root[:, 0]) * pairs[:, 1], 1e-12)
    says.fails("the reference point (a, 0.3)", gap(taylor(PRODUCT, pairs, reference=off)))
    half = (products / 2)[:, None].expand(-1, 2)
    for entry, name, method in (
        ("C-15", "integrated gradients", integrated_gradients),
        ("C-16", "Shapley values", shapley),
    ):
        says = run.states(["C-08", entry], rf"f=xy\text{{ from }}(0,0):\ R=(xy/2,\,xy/2)\quad\text{{({name})}}")
        says.equal(method(PRODUCT, pairs).relevance, half, 1e-12)
        uneven = torch.tensor([0.4, 0.0]).double()
        says.fails("from (0.4, 0), where x starts ahead", method(PRODUCT, pairs, baseline=uneven).relevance)

    # -- roots
    first, second = run.randn(dimension), run.randn(dimension)
    first, second = first / first.norm(), second / second.norm()
    wave = as_layer(lambda t: t @ first + 0.3 * (3 * (t @ second)).sin() + 0.5)
    jump = as_layer(lambda t: wave(t) + (wave(t) >= 0).to(t) - 0.5)
    x = 2 * run.randn(samples, dimension)
    # far enough against the first direction that the linear term has the other sign
    opposite = x - (2 * (x @ first) + 4 * wave(x).sign())[:, None] * first
    says = run.states("C-07", r"|f(\tilde x)|/|f(x)|\le10^{-7}\text{ at the roots of all three methods}")
    says.equal(scores_at_roots(wave, x, opposite), 0.0, 1e-7)
    says.fails("the score jumps over 0", scores_at_roots(jump, x, opposite))
    line = dense(first[None], torch.tensor([0.5]).double())
    says = run.states("C-07", r"f\text{ linear}:\ \|x-\tilde x\|=|f(x)|/\|w\|")
    says.equal(find_root(line, x, method="nearest").distances, line(x)[:, 0].abs().detach(), 1e-9)
    says.fails("f has waves", find_root(wave, x, method="nearest", baseline=opposite).distances,
               promised=wave(x).abs())  # fmt: skip
    parabola = as_layer(lambda t: t[:, 1] - t[:, 0] ** 2 / 2)
    below = torch.stack([2 * run.randn(samples), -0.5 - 2 * run.rand(samples)], 1)
    exact = [distance_to_parabola(float(a), float(c)) for a, c in below]
    says = run.states("C-07", r"x-\tilde x\parallel\nabla f(\tilde x):\ \|x-\tilde x\|=\min_{f=0}\|x-\cdot\|")
    says.equal(find_root(parabola, below, method="nearest").distances, exact, 1e-8)
    says.fails("the root along the gradient at x", find_root(parabola, below, method="gradient").distances)
    spread(run, smooth, x)

    # -- without biases
    bare = mlp([dimension, width, width, 1], "relu", bias=False, generator=run.generator)
    biased = nn.Sequential(*(with_bias(run, layer) for layer in bare))
    scales = (1e-6, 0.1, 0.9)
    says = run.states("C-09", r"\text{ReLU, no biases}:\ \nabla f(\delta x)=\nabla f(x),\ \delta>0")
    says.equal(turns(bare, x, scales), 0.0, 1e-12)
    says.fails("there are biases", turns(biased, x, scales))
    says = run.states("C-09", r"\tilde x=\delta x:\ \sum_iR_i=(1-\delta)f(x)")
    shares = torch.tensor(scales, dtype=torch.float64)[:, None]
    says.equal(totals(bare, x, scales), (1 - shares) * score(bare, x), 1e-9)
    says.fails("there are biases", totals(biased, x, scales), promised=(1 - shares) * score(biased, x))
    says = run.states("C-09", r"\tilde x=\delta x:\ f(\tilde x)=\delta f(x)\to0")
    says.equal(zero_order(bare, x, scales), shares * score(bare, x), 1e-9)
    says.fails("there are biases", zero_order(biased, x, scales), promised=shares * score(biased, x))


def with_kinks_at(run: Run, point: Tensor, width: int) -> nn.Sequential:
    """One layer of ReLUs whose kinks all meet in a point."""
    weight = run.randn(width, len(point)) / math.sqrt(len(point))
    return nn.Sequential(dense(weight, -weight @ point), nn.ReLU(), dense(run.randn(1, width) / math.sqrt(width)))


def with_bias(run: Run, layer: nn.Module) -> nn.Module:
    """The layer with random biases, if it is linear."""
    if not isinstance(layer, nn.Linear):
        return layer
    return dense(layer.weight.detach(), run.randn(layer.out_features))


def gap(found: Explanation) -> Tensor:
    """What a decomposition leaves."""
    assert found.gap is not None
    return found.gap


def residuals(net: nn.Module, x: Tensor, reference: Tensor) -> Tensor:
    return gap(taylor(net, x, reference=reference))


def residual(net: nn.Module, x: Tensor, reference: Tensor) -> float:
    """Root mean square of the residuals."""
    return float(residuals(net, x, reference).square().mean().sqrt())


def scores_at_roots(net: nn.Module, x: Tensor, end: Tensor) -> Tensor:
    """Scores where the methods say that roots are, relative to those of the inputs."""
    with torch.no_grad():
        scores = net(x)
    return torch.cat([find_root(net, x, method=m, baseline=end).scores / scores for m in ROOT_METHODS])


def distance_to_parabola(a: float, c: float) -> float:
    """From (a, c) to y = x²/2: t³/2 + (1 - c) t = a where (t, t²/2) is nearest."""
    t = np.roots([0.5, 0.0, 1 - c, -a])
    t = t[np.abs(t.imag) < 1e-9].real
    return float(np.min(np.hypot(t - a, t**2 / 2 - c)))


def turns(net: nn.Module, x: Tensor, scales: tuple[float, ...]) -> Tensor:
    """By how much the gradient at δx differs from that at x."""
    slope = sensitivity(net, x).flat
    return torch.stack([(sensitivity(net, s * x).flat - slope).norm(dim=1) for s in scales])


def score(net: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        values: Tensor = net(x)[:, 0]
    return values


def totals(net: nn.Module, x: Tensor, scales: tuple[float, ...]) -> Tensor:
    """What relevance from δx adds up to."""
    return torch.stack([taylor(net, x, reference=("scale", s)).total for s in scales])


def zero_order(net: nn.Module, x: Tensor, scales: tuple[float, ...]) -> Tensor:
    """The zero-order term from δx."""
    made = [taylor(net, x, reference=("scale", s)).reference for s in scales]
    return torch.stack([m for m in made if m is not None])


def spread(run: Run, net: nn.Module, x: Tensor) -> None:
    """How far roots are, what they leave, and how little their explanations agree."""
    made = {m: find_root(net, x, method=m) for m in ROOT_METHODS}
    reached = torch.stack([r.found for r in made.values()]).all(0)
    if not reached.any():
        run.note("no input of the network has a root by all three methods, so none are compared")
        return
    nearest = taylor(net, x[reached], reference=made["nearest"].entries[reached]).flat
    rows = []
    for name, roots in made.items():
        found = taylor(net, x[reached], reference=roots.entries[reached])
        cosine = torch.cosine_similarity(found.flat, nearest).mean()
        share = (found.total / found.score).median()
        rows.append(
            (name, int(roots.found.sum()), float(roots.distances[reached].median()), float(share), float(cosine))
        )
    run.table(
        "roots",
        ["root", "found", "median distance", "explained share of the score", "cosine with the nearest root's"],
        rows,
        caption=f"Explanations of {int(reached.sum())} inputs from different root points.",
    )
