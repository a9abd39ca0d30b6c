"""A hidden layer drawn at random: its kernel, its limit, and why it does not move."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import whole_number
from torchtheory.core.errors import ShapeMismatch
from torchtheory.kernels.functions import Kernel, arc_cosine, gaussian
from torchtheory.kernels.random_features import RandomFeatures
from torchtheory.kernels.tangent import empirical_ntk
from torchtheory.labs.engine import Interval, Run, fit_slope, lab, mean_interval
from torchtheory.models.model import PureFunction

CONFIDENCE = 0.999


@lab(
    "random-feature-kernel",
    room="kernels",
    covers=["M-06", "M-07"],
    title="The kernel of random features tends to its limit like p^(-1/2) and never moves",
    errata=["kernel-domain", "fixed-kernel-of-k-layers"],
    full={"draws": 200, "largest": 2**15},
)
def random_feature_kernel(run: Run, dimension: int = 3, draws: int = 24, largest: int = 2**11) -> None:
    """The model f(x, θ) = p^(-1/2) θ·φ(x), φᵢ(x) = s(wᵢ·x), of which only θ is trained.

    Its kernel is a mean over p independent features: right on average for every p, and off by
    p^(-1/2). For ReLU features the limit is the arc-cosine kernel, for pairs of cosines and sines
    the Gaussian one. The factor p^(-1/2) keeps the outputs of one size as p grows. The tangent
    kernel, taken by automatic differentiation, is the kernel of the features at every θ, so one
    gradient step moves the function by exactly what the kernel says; with the hidden layer trained
    as well, neither is true. Look at the kernel as a function of the angle, for few and many
    features.
    """
    whole_number(dimension, "dimension", least=1)
    whole_number(draws, "draws", least=5)
    whole_number(largest, "largest", least=64)
    domain(run, dimension)
    counts = [2**k for k in range(4, largest.bit_length())]
    limit(run, dimension, counts, draws)
    scaling(run, dimension, counts, draws)
    tangent(run, dimension)
    one_step(run, dimension)
    angle = torch.linspace(0, math.pi, 200, dtype=torch.float64)
    circle = torch.stack([angle.cos(), angle.sin()], 1)
    run.curves(
        "angle",
        angle / math.pi,
        {f"p = {p}": RandomFeatures(2, p, generator=p).kernel(circle[:1], circle)[0] for p in (16, 256, 4096)},
        {"p = ∞": arc_cosine()(circle[:1], circle)[0]},
        axes=("angle between x and x', in units of π", "K(x, x')"),
        caption="The kernel of two unit vectors as a function of their angle, for p ReLU features "
        "and in the limit p → ∞.",
    )


def domain(run: Run, dimension: int) -> None:
    """The kernel compares points of R^d."""
    count = dimension + 5
    model = RandomFeatures(dimension, count, generator=run.generator)
    says = run.refutes(
        "kernel-domain",
        r"K:\mathbb R^p\times\mathbb R^p\to\mathbb R: \text{ coordinates of the points that } K \text{ takes}",
    )
    says.equal(
        [m for m in range(1, 2 * count) if takes(model.kernel, m)],
        count,
        where=f"d = {dimension}, p = {count}: points of 1 to {2 * count - 1} coordinates tried",
    )
    x, y = run.randn(6, dimension), run.randn(4, dimension)
    by_hand = torch.tensor(
        [[sum(max(w @ a, 0.0) * max(w @ b, 0.0) for w in model.weights) for b in y] for a in x],
        dtype=torch.float64,
    )
    says = run.states("M-06", r"K(x,x')=\tfrac1p\sum_is(w_i^\top x)s(w_i^\top x')")
    says.equal(model.kernel(x, y), by_hand / count, 1e-13, where="ReLU, summed feature by feature")
    says.fails("the sum, without 1/p", model.kernel(x, y), promised=by_hand)


def limit(run: Run, dimension: int, counts: list[int], draws: int) -> None:
    """On average right for every p; off by p^(-1/2)."""
    x = nn.functional.normalize(run.randn(12, dimension))
    cases = {
        "ReLU → arc-cosine": ("relu", arc_cosine()),
        "threshold → arc-cosine of order 0": (step, arc_cosine(0)),
        "cosine and sine → Gaussian": ("fourier", gaussian()),
        "tanh → arc-cosine, which is not its limit": ("tanh", arc_cosine()),
    }
    errors: dict[str, list[float]] = {name: [] for name in cases}
    firsts: dict[str, Tensor] = {}
    for name, (activation, target) in run.track(cases.items(), "limits"):
        expected = target(x)
        for p in counts:
            gaps = torch.stack([made(run, dimension, p, activation).kernel(x) - expected for _ in range(draws)])
            errors[name].append(float(gaps.square().mean().sqrt()))
            firsts.setdefault(name, gaps)
    wrong = list(cases)[-1]
    broken = fit_slope(counts, errors[wrong], CONFIDENCE)
    for name in list(cases)[:-1]:
        says = run.states("M-06", rf"\text{{{name}: }} \|K_p-K_\infty\|\sim p^{{-1/2}}\text{{, exponent}}")
        says.slope(
            counts,
            errors[name],
            -0.5,
            confidence=CONFIDENCE,
            where=f"p from {counts[0]} to {counts[-1]}, {draws} draws of the weights each",
        )
        says.fails(wrong, broken)
        says = run.states("M-06", rf"\text{{{name}: }} \mathbb E K_p=K_\infty \text{{ for every }} p")
        says.mean(
            mean_gap(firsts[name]), 0.0, where=f"p = {counts[0]}, the mean over all pairs of points, draw by draw"
        )
        says.fails(wrong, mean_gap(firsts[wrong]))
    run.table(
        "errors",
        ["p", *cases],
        [(p, *(errors[name][i] for name in cases)) for i, p in enumerate(counts)],
        caption="Root mean square distance of the kernel of p features from a closed form.",
    )
    first = next(iter(errors.values()))[0]
    run.curves(
        "rate",
        counts,
        errors,
        {"p^(-1/2)": [first * 1.6 * math.sqrt(counts[0] / p) for p in counts]},
        axes=("number of features p", "error of the kernel"),
        log="xy",
        caption="The kernel's error falls like p^(-1/2), whatever the features; the kernel of "
        "another activation is missed for good.",
    )


def scaling(run: Run, dimension: int, counts: list[int], draws: int) -> None:
    """With the factor p^(-1/2) outputs keep their size."""
    x = run.randn(8, dimension)
    sizes = []
    for p in counts:
        models = [RandomFeatures(dimension, p, generator=run.generator) for _ in range(draws)]
        with torch.no_grad():
            outputs = torch.stack([m(x) for m in models])
        sizes.append(float(outputs.square().mean().sqrt()))
    bare = [size * math.sqrt(p) for size, p in zip(sizes, counts, strict=True)]
    says = run.states(
        "M-06",
        r"\theta\sim N(0,I): \text{ the size of } p^{-1/2}\theta^\top\phi(x) "
        r"\text{ does not grow with } p\text{, exponent}",
    )
    says.slope(counts, sizes, 0.0, confidence=CONFIDENCE)
    says.fails("without the factor p^(-1/2)", counts, bare)


def tangent(run: Run, dimension: int) -> None:
    """The gradients' inner products are the kernel, wherever the parameters are."""
    x, y = run.randn(7, dimension), run.randn(5, dimension)
    expected, found = [], []
    for activation in ("relu", "tanh", "fourier"):
        model = made(run, dimension, 40, activation)
        for scale in (0.0, 1.0, 100.0):
            theta = {"theta": scale * run.randn(40)}
            found.append(empirical_ntk(model, x, y, outputs="trace", parameters=theta))
            expected.append(model.kernel(x, y))
    net = trained_below(run, dimension, 40)
    features = net[:2](x) @ net[:2](y).T
    says = run.states(
        "M-07",
        r"\nabla_\theta f(x)^\top\nabla_\theta f(x')=\tfrac1p\langle\phi(x),\phi(x')\rangle \text{ for every } \theta",
    )
    says.equal(
        torch.stack(found),
        torch.stack(expected),
        1e-12,
        where="by automatic differentiation at θ = 0 and at random θ of two sizes; 3 activations",
    )
    says.fails(
        "the hidden layer trained as well", empirical_ntk(net, x, y, outputs="trace"), promised=features.detach()
    )
    here = empirical_ntk(net, x, y, outputs="trace")
    moved = {name: p + run.randn(*p.shape) for name, p in PureFunction(net).parameters.items()}
    there = empirical_ntk(net, x, y, outputs="trace", parameters=moved)
    says = run.refutes(
        "fixed-kernel-of-k-layers",
        r"\text{a network with 2 trained layers: } \nabla_\theta f(x)^\top\nabla_\theta f(x') "
        r"\text{ at two } \theta\text{, relative difference}",
    )
    says.equal(
        float((there - here).norm() / here.norm()),
        within=1e-6,
        where="40 ReLU units, the parameters moved by independent N(0, 1)",
    )


def one_step(run: Run, dimension: int) -> None:
    """A gradient step on the training loss moves the function by the kernel, exactly."""
    x, y, new = run.randn(10, dimension), run.randn(10), run.randn(6, dimension)
    rate = 0.5
    model = made(run, dimension, 30, "relu")
    net = trained_below(run, dimension, 30)
    results = []
    for each in (model, net):
        f = PureFunction(each)
        kernel = empirical_ntk(each, new, x, outputs="trace")

        def loss(theta: dict[str, Tensor], f: PureFunction = f) -> Tensor:
            return 0.5 * (f(theta, x)[:, 0] - y).square().sum()

        slope = torch.func.grad(loss)(f.parameters)
        after = {name: p - rate * slope[name] for name, p in f.parameters.items()}
        moved = (f(after, new) - f(f.parameters, new))[:, 0]
        results.append((-rate * kernel @ (f(f.parameters, x)[:, 0] - y), moved))
    (promised, measured), (control_promised, control_measured) = results
    says = run.states(
        "M-07",
        r"\theta\leftarrow\theta-\eta\nabla L(\theta): \text{ then } f(x) \text{ changes by } -\eta K(x,X)(f(X)-y)",
    )
    says.equal(
        measured.detach(),
        promised.detach(),
        1e-12,
        where=f"at points outside the sample, η = {rate}: exact for any step, as f is linear in θ",
    )
    says.fails("the hidden layer trained as well", control_measured.detach(), promised=control_promised.detach())


def made(run: Run, dimension: int, count: int, activation: Any) -> RandomFeatures:
    if activation == "fourier":
        return RandomFeatures.fourier(dimension, count, generator=run.generator)
    return RandomFeatures(dimension, count, activation, generator=run.generator)


def step(u: Tensor) -> Tensor:
    return (u > 0).to(u.dtype)


def mean_gap(gaps: Tensor) -> Interval:
    """The mean error of each draw over all pairs: independent from draw to draw."""
    return mean_interval(gaps.flatten(1).mean(1), CONFIDENCE)


def takes(kernel: Kernel, coordinates: int) -> bool:
    try:
        kernel(torch.ones(2, coordinates, dtype=torch.float64))
    except ShapeMismatch:
        return False
    return True


def trained_below(run: Run, dimension: int, count: int) -> nn.Sequential:
    """The same network as a plain one, of which all layers are trained."""
    net = nn.Sequential(nn.Linear(dimension, count, bias=False), nn.ReLU(), nn.Linear(count, 1, bias=False)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(run.randn(*p.shape) / (math.sqrt(count) if len(p) == 1 else 1.0))
    return net
