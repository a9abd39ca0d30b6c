"""Changing coordinates until a hyperplane does, and the first network that learns to."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.data.synthetic import xor
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.labs.nets.comparing import gap
from torchtheory.nets.biases import homogeneous
from torchtheory.nets.feedforward import mlp
from torchtheory.neurons.representations import layerwise_separability, polar_coordinates
from torchtheory.neurons.separability import separate
from torchtheory.neurons.sigmoid_network import SigmoidPerceptron
from torchtheory.tracing.layer_results import layer_outputs


@lab(
    "separating-coordinates",
    room="neurons",
    covers=["L-042"],
    title="What no line separates, new coordinates do: by hand, and layer by layer in a network",
    full={"samples": 1000, "steps": 400},
    least={"samples": 30, "steps": 100},
)
def separating_coordinates(run: Run, samples: int = 120, steps: int = 150) -> None:
    """Exclusive or and two concentric rings are not linearly separable; with polar coordinates
    the rings are.

    Separability is decided by a linear program with a certificate either way. Then a small
    network is trained on the rings: the sample is tested after every layer, and is separable by
    the last hidden one. The source's figure gives no data; the rings stand in for it. The picture
    shows the rings, their polar coordinates, and the two features the network made of them.

    Args:
        samples: points of the rings.
        steps: of training.
    """
    x, y = rings(run, samples, noise=0.15)
    polar = polar_coordinates(x)
    corners = xor()
    says = run.states("L-042", r"\text{XOR and two rings are not linearly separable}")
    says.equal([bool(separate(*corners)), bool(separate(x, y))])
    says.fails("AND", bool(separate(corners.x, torch.tensor([-1, 1, -1, -1]))))
    answer = separate(x, y)
    assert answer.combination is not None
    z = y.unsqueeze(1) * homogeneous(x)
    run.states("L-042", r"\text{certificate: }\alpha\ge0,\ \sum_i\alpha_i=1,\ \sum_i\alpha_iy_i(x_i,1)=0").equal(
        [
            float((answer.combination @ z).norm()),
            float(answer.combination.sum()) - 1,
            float(answer.combination.clamp(max=0).sum()),
        ],
        within=1e-12,
    )
    by_polar = separate(polar, y)
    assert by_polar.weight is not None
    assert by_polar.bias is not None
    says = run.states("L-042", r"\text{two rings are separable in }(r,\varphi)")
    says.equal(bool(by_polar), 1)
    says.fails("rings that overlap in radius", overlapping(run, samples))
    says = run.states("L-042", r"\min_iy_i(w^\top(r_i,\varphi_i)+b)>0\text{ for the hyperplane found}")
    says.above((y * (polar @ by_polar.weight + by_polar.bias)).min(), 0)
    says.fails("the same weights on (x₁, x₂)", (y * (x @ by_polar.weight + by_polar.bias)).min())
    net, accuracy = train(run, x, y, steps)
    rows = layerwise_separability(net, x, y)
    linear_net, linear_accuracy = train(run, x, y, steps, "linear")
    flat = layerwise_separability(linear_net, x, y)
    says = run.states(
        "L-042", r"\text{a network that classifies the sample has made it separable before its last layer}"
    )
    says.equal(
        [bool(rows[0].separable), bool(rows[-2].separable), accuracy],
        [0, 1, 1],
        where="input, last hidden layer, share of the sample classified correctly",
    )
    says.fails(
        "a linear network of the same widths, trained likewise",
        [bool(flat[-2].separable), linear_accuracy],
        promised=1,
    )
    run.table(
        "layers",
        ["layer", "kind", "features", "linearly separable"],
        [(r.layer, r.kind, r.dimension, str(r.separable)) for r in rows],
        caption="The trained network, layer by layer.",
    )
    features = list(layer_outputs(net, x).values())[-2].detach()
    run.figure(
        "coordinates",
        lambda axes: plot_coordinates(axes, y, x, polar, features),
        caption="Two rings (left) are separated by a line in polar coordinates (middle) and in "
        "the two features of the trained network (right).",
        grid=(1, 3),
        size=(11, 3.4),
    )


@lab(
    "sigmoid-perceptron",
    room="neurons",
    covers=["L-059"],
    title="One hidden layer of sigmoids: gradients by hand, SGD, and what biases are for",
    full={"samples": 300, "epochs": 200, "units": 20},
    least={"samples": 3, "units": 2, "epochs": 5, "rate": 0.02},
    most={"rate": 0.4},
)
def sigmoid_perceptron(run: Run, samples: int = 60, units: int = 8, epochs: int = 60, rate: float = 0.2) -> None:
    """The gradients written out in the lectures against automatic ones, then SGD with them.

    Without biases f(x) + f(−x) is the constant Σβ, whatever the weights: an even function such as
    x² is out of reach (its error cannot fall below that of the best constant), while a constant
    feature appended to the input repairs it. The picture shows both fits.

    Args:
        samples: of the data.
        units: hidden units.
        epochs: of stochastic gradient descent.
        rate: its step.
    """
    run.assumes(
        rate * epochs * samples >= 30,
        f"{epochs * samples} steps of {rate:g} go as far as a flow for the time {rate * epochs * samples:.3g}, and "
        "fitting the square takes one of 30",
    )
    features = 4
    net = SigmoidPerceptron(features, units, generator=run.generator)
    x, y = run.randn(samples, features), run.randn(samples)
    by_beta, by_w = net.gradients(x, y)
    auto = torch.autograd.grad(net.loss(x, y), [net.beta, net.w])
    z = x @ net.w.T
    unfinished = ((net(x) - y).unsqueeze(1) * torch.sigmoid(z) * net.beta).T @ x / samples
    says = run.states(
        "L-059",
        r"\frac{\partial\mathcal L}{\partial\beta_j}=\frac{f-y}{1+e^{-w_jx}},\quad \frac{\partial\mathcal L}{\partial "
        r"w_{ji}}=\frac{(f-y)\,\beta_jx_i}{(1+e^{-w_jx})(1+e^{w_jx})}",
    )
    says.equal([gap(by_beta, auto[0]), gap(by_w, auto[1])], within=1e-14)
    says.fails("the factor 1/(1+$e^{wx}$) left out", gap(unfinished, auto[1]))
    with torch.no_grad():
        quotients = difference_quotients(net, x, y)
    run.states("L-059", r"\text{the same against difference quotients}").equal(
        [gap(by_beta, quotients[0]), gap(by_w, quotients[1])], within=1e-7
    )
    one = [net.gradients(x[i : i + 1], y[i : i + 1]) for i in range(samples)]
    run.states("L-059", r"\text{the mean of the samples' gradients is the gradient of the mean}").equal(
        [gap(torch.stack([g[0] for g in one]).mean(0), by_beta), gap(torch.stack([g[1] for g in one]).mean(0), by_w)],
        within=1e-14,
    )
    says = run.states("L-059", r"f(x)+f(-x)=\sum_j\beta_j")
    says.equal(gap(net(x) + net(-x), net.beta.sum()), within=1e-13)
    says.fails("with biases", gap(biased(net, x) + biased(net, -x), net.beta.sum()))
    descents = {eta: small_steps(run, features, units, x, y, eta) for eta in (0.01, 0.1, 1000.0)}
    says = run.states(
        "L-059", r"\text{small }\eta:\ \mathcal L\text{ falls at every full gradient step (largest change)}"
    )
    says.below([descents[0.01], descents[0.1]], 0)
    says.fails("η = 1000", descents[1000.0])
    t = torch.linspace(-2, 2, samples, dtype=torch.float64).unsqueeze(1)
    square = t[:, 0].square()
    fits, errors = {}, {}
    for name, inputs in (("without bias", t), ("with a constant feature", homogeneous(t))):
        made = SigmoidPerceptron(inputs.shape[1], units, generator=run.seed)
        made.fit(inputs, square, rate=rate, epochs=epochs, generator=run.generator)
        fits[name] = made(inputs).detach()
        errors[name] = float(made.loss(inputs, square).detach())
    constant = float(0.5 * square.var(correction=0))
    says = run.states("L-059", r"\text{an even target: without biases no better than the best constant}")
    says.at_least(
        errors["without bias"], constant, where="on a symmetric sample ½E(f−y)² ≥ ½Var(y) whatever the weights"
    )
    says.fails("a constant feature appended", errors["with a constant feature"])
    says = run.states("L-059", r"\text{with a constant feature SGD gets below it}")
    says.below(
        errors["with a constant feature"],
        0.5 * constant,
        loose="how far below depends on the training; no theorem says it",
    )
    says.fails("without it", errors["without bias"])
    run.curves(
        "square",
        t[:, 0],
        fits,
        {"samples of x²": square},
        axes=("x", "f(x)"),
        caption="Fitting x². Without biases f(x) + f(−x) is constant, so an even target leaves only a constant.",
    )


def rings(run: Run, samples: int, noise: float) -> tuple[Tensor, Tensor]:
    """Two concentric rings of radius 1 and 2; labels -1 and +1."""
    angle = 2 * math.pi * run.rand(samples)
    y = torch.where(torch.arange(samples) % 2 == 0, -1.0, 1.0).double()
    radius = 1.5 + 0.5 * y + noise * (2 * run.rand(samples) - 1)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), y


def overlapping(run: Run, samples: int) -> bool:
    x, y = rings(run, samples, noise=0.8)
    return bool(separate(polar_coordinates(x), y))


def train(run: Run, x: Tensor, y: Tensor, steps: int, activation: str = "tanh") -> tuple[nn.Sequential, float]:
    """A network with two features in its last hidden layer, trained by L-BFGS."""
    net = mlp([2, 8, 2, 1], activation, generator=run.seed + 1)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value: Tensor = nn.functional.softplus(-y * net(x)[:, 0]).mean()
        value = value + 1e-4 * torch.stack([p.square().sum() for p in net.parameters()]).sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return net, float((y * net(x)[:, 0] > 0).double().mean())


def difference_quotients(net: SigmoidPerceptron, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    found = []
    for p in (net.beta, net.w):
        quotient = torch.zeros_like(p)
        for i in range(p.numel()):
            kept = float(p.view(-1)[i])
            values = []
            for step in (1e-5, -1e-5):
                p.view(-1)[i] = kept + step
                values.append(net.loss(x, y))
            p.view(-1)[i] = kept
            quotient.view(-1)[i] = (values[0] - values[1]) / 2e-5
        found.append(quotient)
    return found[0], found[1]


def biased(net: SigmoidPerceptron, x: Tensor) -> Tensor:
    return torch.sigmoid(x @ net.w.T + 1) @ net.beta


def small_steps(run: Run, features: int, units: int, x: Tensor, y: Tensor, rate: float) -> float:
    """Largest change of the loss over 50 full gradient steps."""
    net = SigmoidPerceptron(features, units, generator=run.seed)
    with torch.no_grad():
        start = float(net.loss(x, y))
    losses = [start, *net.fit(x, y, rate=rate, epochs=50, batch=len(x), generator=run.seed)]
    return max(b - a for a, b in pairwise(losses))


def plot_coordinates(axes: Any, y: Tensor, *panels: Tensor) -> None:
    titles = (("x₁", "x₂"), ("radius r", "angle φ"), ("feature 1", "feature 2"))
    for axis, points, (across, up) in zip(axes[0], panels, titles, strict=True):
        for color, marker, label in ((COLORS[0], "o", -1), (COLORS[1], "^", 1)):
            chosen = points[y == label]
            axis.scatter(chosen[:, 0], chosen[:, 1], s=12, color=color, marker=marker, label=f"y = {label}")
        found = separate(points, y)
        if found.weight is not None and found.bias is not None:
            draw_line(axis, found.weight, found.bias, points)
        axis.locator_params(nbins=5)
        axis.set_xlabel(across)
        axis.set_ylabel(up)
    axes[0, 0].legend(loc="center", frameon=True)  # inside the rings


def draw_line(axis: Any, w: Tensor, b: Tensor, points: Tensor) -> None:
    low, high = points.min(0).values - 0.1, points.max(0).values + 0.1
    if abs(w[1]) > abs(w[0]):
        across = torch.stack([low[0], high[0]])
        axis.plot(across, -(w[0] * across + b) / w[1], color="black", linestyle=":")
    else:
        up = torch.stack([low[1], high[1]])
        axis.plot(-(w[1] * up + b) / w[0], up, color="black", linestyle=":")
    axis.set_xlim(float(low[0]), float(high[0]))
    axis.set_ylim(float(low[1]), float(high[1]))
