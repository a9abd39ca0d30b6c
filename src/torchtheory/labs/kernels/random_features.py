"""A hidden layer drawn at random: its kernel, its limit, and why it does not move."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.kernels.learning.functions import Kernel, arc_cosine, gaussian
from torchtheory.kernels.learning.random_features import RandomFeatures
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.labs.engine import Run, lab
from torchtheory.models.model import PureFunction

CONFIDENCE = 0.999


@lab(
    "random-feature-kernel",
    room="kernels",
    covers=["M-06", "M-07"],
    title="The kernel of random features tends to its limit like $p^{-1/2}$ and never moves",
    errata=["fixed-kernel-of-k-layers"],
    full={"draws": 200, "largest": 2**15},
    least={"dimension": 2, "draws": 5, "largest": 64},
)
def random_feature_kernel(run: Run, dimension: int = 3, draws: int = 24, largest: int = 2**11) -> None:
    """The model f(x, θ) = $p^{-1/2}$ θ·φ(x), φᵢ(x) = s(wᵢ·x), of which only θ is trained.

    Its kernel is a mean over p independent features: right on average for every p, and off by
    $p^{-1/2}$. For ReLU features the limit is the arc-cosine kernel, for pairs of cosines and sines
    the Gaussian one. The factor $p^{-1/2}$ keeps the outputs of one size as p grows. The tangent
    kernel, taken by automatic differentiation, is the kernel of the features at every θ, so one
    gradient step moves the function by exactly what the kernel says; with the hidden layer trained
    as well, neither is true. Look at the kernel as a function of the angle, for few and many
    features.

    Args:
        dimension: of the inputs.
        draws: of the features for each number of them.
        largest: most features; their number is doubled from 16 on.
    """
    counts = [2**k for k in range(4, largest.bit_length())]
    limit(run, dimension, counts, draws)
    average(run, dimension, 30 * draws)
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


def step(u: Tensor) -> Tensor:
    return (u > 0).to(u.dtype)


#: Features, and the kernel that many of them have.
LIMITS: dict[str, tuple[Any, Kernel]] = {
    "ReLU → arc-cosine": ("relu", arc_cosine()),
    "threshold → arc-cosine of order 0": (step, arc_cosine(0)),
    "cosine and sine → Gaussian": ("fourier", gaussian()),
}


def limit(run: Run, dimension: int, counts: list[int], draws: int) -> None:
    """Off by p^(-1/2), as the features are independent."""
    x = nn.functional.normalize(run.randn(12, dimension))

    def error(activation: Any, target: Kernel, p: int, distinct: int) -> float:
        """The root mean square over pairs of points and draws, when so many weights are distinct."""
        gaps = []
        for _ in range(draws):
            model = made(run, dimension, p, activation)
            model.weights = model.weights[torch.arange(len(model.weights)) % distinct]
            gaps.append(model.kernel(x) - target(x))
        return float(torch.stack(gaps).square().mean().sqrt())

    errors: dict[str, list[float]] = {}
    for name, (activation, target) in run.track(LIMITS.items(), "limits"):
        errors[name] = [error(activation, target, p, p) for p in counts]
        says = run.states("M-06", rf"\text{{{name}: }} \|K_p-K_\infty\|\sim p^{{-1/2}}\text{{, exponent}}")
        says.slope(
            counts,
            errors[name],
            -0.5,
            against=(-1.0, -0.25, 0.0),
            confidence=CONFIDENCE,
            where=f"p from {counts[0]} to {counts[-1]}, {draws} draws of the weights each",
        )
        dependent = [error(activation, target, p, 8) for p in counts]
        says.fails("the w are not independent: 8 of them, repeated", counts, dependent)
        errors[f"{name}, 8 weights repeated"] = dependent
    run.table(
        "errors",
        ["p", *errors],
        [(p, *(values[i] for values in errors.values())) for i, p in enumerate(counts)],
        caption="Root mean square distance of the kernel of p features from its limit.",
    )
    run.curves(
        "rate",
        counts,
        {name: errors[name] for name in (*LIMITS, "ReLU → arc-cosine, 8 weights repeated")},
        {"p^(-1/2)": [errors["ReLU → arc-cosine"][0] * 1.6 * math.sqrt(counts[0] / p) for p in counts]},
        axes=("number of features p", "error of the kernel"),
        log="xy",
        caption="The kernel's error falls like $p^{-1/2}$, whatever the features, if their weights are independent.",
    )


def average(run: Run, dimension: int, draws: int, p: int = 4) -> None:
    """Right on average however few the features are."""
    x = nn.functional.normalize(run.randn(12, dimension))
    aside = 3 * nn.functional.normalize(x.mean(0), dim=0)
    for name, (activation, target) in LIMITS.items():
        limit = target(x)

        def shares(mean: Tensor, activation: Any = activation, limit: Tensor = limit) -> Tensor:
            """How often the limit is contained in the kernel of each draw, by projection."""
            models = [made(run, dimension, p, activation) for _ in range(draws)]
            for model in models:
                model.weights += mean
            kernels = torch.stack([model.kernel(x) for model in models])
            return (kernels * limit).sum((1, 2)) / limit.square().sum()

        says = run.states(
            "M-06", rf"\text{{{name}: }} \mathbb E\langle K_p,K_\infty\rangle=\|K_\infty\|^2 \text{{: ratio}}"
        )
        says.mean(
            shares(torch.zeros(dimension, dtype=torch.float64)),
            1.0,
            against=(0.5, p / (p + 1), p / (p - 1), 2.0),
            confidence=CONFIDENCE,
            where=f"p = {p}, {draws} draws; 1/(p - 1) or 1/(p + 1) in place of 1/p is excluded",
        )
        says.fails("the weights do not have mean 0", shares(aside))


def scaling(run: Run, dimension: int, counts: list[int], draws: int) -> None:
    """With the factor p^(-1/2) outputs keep their size."""
    x = run.randn(8, dimension)

    def sizes(mean: float) -> list[float]:
        found = []
        for p in counts:
            models = [made(run, dimension, p, "relu") for _ in range(2 * draws)]
            with torch.no_grad():
                for model in models:
                    model.theta.add_(mean)
                outputs = torch.stack([model(x) for model in models])
            found.append(float(outputs.square().mean().sqrt()))
        return found

    says = run.states(
        "M-06",
        r"\theta\sim N(0,I): \text{ the size of } p^{-1/2}\theta^\top\phi(x) "
        r"\text{ does not grow with } p\text{, exponent}",
    )
    says.slope(counts, sizes(0.0), 0.0, against=(-0.5, 0.5), confidence=CONFIDENCE)
    says.fails("θ has mean 1", counts, sizes(1.0))


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
    two_trained_layers(run, model, x, y, new)


def two_trained_layers(run: Run, model: RandomFeatures, x: Tensor, y: Tensor, new: Tensor) -> None:
    """Theorem 54 for what section 7.2.1 introduces, a network with k layers; here k = 2."""
    f = PureFunction(model)
    start = {**f.parameters, **f.buffers}

    def outputs(layers: dict[str, Tensor], points: Tensor) -> Tensor:
        made: Tensor = torch.func.functional_call(model, layers, (points,))
        return made[:, 0]

    downhill = torch.func.grad(lambda layers: -0.5 * (outputs(layers, x) - y).square().sum())(start)
    change = torch.func.jvp(lambda layers: outputs(layers, new), (start,), (downhill,))[1]
    run.refutes(
        "fixed-kernel-of-k-layers",
        r"f=f^k:\ \tfrac{d}{dt}f(x,\theta_t)=K(x,X)(y-f(X,\theta_t)),\ K=\tfrac1p\langle\phi(x),\phi(x')\rangle",
    ).equal(
        change,
        (model.kernel(new, x) @ (y - outputs(start, x))).detach(),
        1e-6,
        where=f"{model.count} ReLU units, both layers trained, at the start",
    )


def made(run: Run, dimension: int, count: int, activation: Any) -> RandomFeatures:
    if activation == "fourier":
        return RandomFeatures.fourier(dimension, count, generator=run.generator)
    return RandomFeatures(dimension, count, activation, generator=run.generator)


def trained_below(run: Run, dimension: int, count: int) -> nn.Sequential:
    """The same network as a plain one, of which all layers are trained."""
    net = nn.Sequential(nn.Linear(dimension, count, bias=False), nn.ReLU(), nn.Linear(count, 1, bias=False)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(run.randn(*p.shape) / (math.sqrt(count) if len(p) == 1 else 1.0))
    return net
