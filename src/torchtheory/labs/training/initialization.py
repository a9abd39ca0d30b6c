"""Initializers: what each keeps constant in one layer."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from torchtheory.labs.engine import COLORS, Interval, Run, lab, mean_interval
from torchtheory.nets.activations.moments import second_moment
from torchtheory.nets.feedforward import mlp
from torchtheory.training.initialization import (
    Distribution,
    Scheme,
    draw_weight,
    initialize,
    weight_variance,
)

EXACT = 1e-12

#: Confidence of each statistical comparison.
SURE = 0.9999


@lab(
    "initialization",
    room="training",
    covers=["N-116", "N-117", "N-118", "N-119", "N-120"],
    title="What each initializer keeps constant",
    errata=["lecun-variance-is-deviation", "orthogonal-eigenvalues-signs"],
    full={"width": 200, "trials": 1000, "depth": 100},
    least={"width": 20, "trials": 30},
)
def initialization(run: Run, width: int = 60, trials: int = 600, depth: int = 40) -> None:
    """Draw many layers by every scheme and measure what the scheme promises, with intervals.

    Weights are drawn `trials` times; inputs are random with a deviation of 3, so that a variance
    cannot pass for a deviation. LeCun keeps the variance going forward, Xavier splits the
    difference between forward and backward, He makes up for ReLU's lost half, and orthogonal
    weights keep every single length, exactly, through `depth` layers. The same initializers
    applied to a whole network, convolutions with groups included, are torch's own.

    Args:
        width: of the layers that are drawn.
    """
    variance_of_draws(run, width)
    forward_and_backward(run, width, trials)
    rectified(run, width, trials)
    orthogonal(run, width, depth)
    whole_models(run)


def variance_of_draws(run: Run, width: int) -> None:
    """The two distributions of one variance, and the uniform one's range."""
    sigma, draws = 0.7, 200 * width
    for distribution in ("normal", "uniform"):
        kind: Distribution = distribution
        weight = draw_weight((200, width), sigma**2, distribution=kind, generator=run.generator)
        other = draw_weight((200, width), sigma, distribution=kind, generator=run.generator)
        says = run.states("N-116", rf"\mathbb E\theta^2=\sigma^2 \text{{ for the {distribution} distribution}}")
        # a deviation for a variance; a uniform range of σ in place of √3 σ; half, as for one of two fans
        others = (sigma, sigma**2 / 3, sigma**2 / 2)
        says.mean(
            weight.square().ravel(), sigma**2, against=others, confidence=SURE, where=f"{draws} draws, σ = {sigma}"
        )
        says.fails("σ passed where the variance belongs", other.square().ravel())
    weight = draw_weight((200, width), sigma**2, distribution="uniform", generator=run.generator)
    normal = draw_weight((200, width), sigma**2, generator=run.generator)
    says = run.states("N-116", r"|\theta|\le\sqrt3\,\sigma \text{ for the uniform distribution}")
    says.at_most(weight.abs().max(), math.sqrt(3) * sigma, EXACT)
    says.fails("the normal distribution of the same variance", normal.abs().max())


def forward_and_backward(run: Run, width: int, trials: int) -> None:
    """Second moments through one linear layer that is not square, either way."""
    n, m, deviation = width, width // 2, 3.0
    x = deviation * run.randn(trials, n, 1)
    delta = run.randn(trials, m, 1)

    def gains(scheme: Scheme) -> tuple[Interval, Interval]:
        weight = draw_weight((trials, m, n), scheme, generator=run.generator)
        ahead = (weight @ x).square().mean((1, 2)) / deviation**2
        back = (weight.mT @ delta).square().mean((1, 2))
        return mean_interval(ahead, SURE), mean_interval(back, SURE)

    names: tuple[Scheme, ...] = ("lecun", "xavier", "he")
    found = {scheme: gains(scheme) for scheme in names}
    lecun, xavier = found["lecun"], found["xavier"]
    shifted = deviation * (run.randn(trials, n, 1) + 1)
    weight = draw_weight((trials, m, n), "lecun", generator=run.generator)
    with_mean = mean_interval((weight @ shifted).square().mean((1, 2)), SURE)
    says = run.states(
        "N-117", r"\operatorname{Var}[(Wx)_i]=\gamma^2 \text{ for inputs of mean 0 and deviation } \gamma"
    )
    says.mean(
        _scaled(lecun[0], deviation**2),
        deviation**2,
        # the deviation, Xavier's factor, He's factor
        against=(deviation, deviation**2 * 2 * n / (n + m), 2 * deviation**2),
        where=f"{trials} layers of {m} units with {n} inputs, γ = {deviation:g}",
    )
    says.fails("inputs of deviation γ whose mean is γ, not 0", with_mean)
    run.refutes(
        "lecun-variance-is-deviation",
        r"\operatorname{Var}[(Wx)_i]=\gamma \text{ for inputs of standard deviation } \gamma",
    ).mean(
        _scaled(lecun[0], deviation**2), deviation, where=f"γ = {deviation:g}: the variance stays γ² = {deviation**2:g}"
    )
    factors = (2 * n / (n + m), 2 * m / (n + m))
    for place, (direction, share) in enumerate(zip(("forward", "backward"), factors, strict=True)):
        says = run.states(
            "N-118",
            rf"\text{{Xavier, {direction}: second moments are multiplied by }}"
            + (r"\tfrac{2n}{n+m}" if place == 0 else r"\tfrac{2m}{n+m}"),
        )
        # LeCun's factor, He's, and that of the other direction
        others = ((1, m / n)[place], (2, 2 * m / n)[place], factors[1 - place])
        says.mean(xavier[place], share, against=others, where=f"n = {n}, m = {m}; {trials} layers")
        says.fails("LeCun's weights", lecun[place])
    square = draw_weight((trials, n, n), "xavier", generator=run.generator)
    ahead = mean_interval((square @ x).square().mean((1, 2)) / deviation**2, SURE)
    back = mean_interval((square.mT @ run.randn(trials, n, 1)).square().mean((1, 2)), SURE)
    for direction, interval, broken in (("W", ahead, xavier[0]), (r"W^\top", back, xavier[1])):
        says = run.states("N-118", rf"n=m:\ {direction} \text{{ keeps second moments}}")
        says.mean(interval, 1.0, against=(0.5, 2.0, *factors))
        says.fails("n = 2m", broken)
    run.table(
        "gains",
        ["scheme", "σ²", "forward", "promised", "backward", "promised"],
        [
            (
                scheme,
                weight_variance(scheme, n, m),
                found[scheme][0].estimate,
                n * weight_variance(scheme, n, m),
                found[scheme][1].estimate,
                m * weight_variance(scheme, n, m),
            )
            for scheme in found
        ],
        caption=f"Factor on second moments through one linear layer, {n} inputs and {m} outputs.",
    )


def rectified(run: Run, width: int, trials: int) -> None:
    """Half of the second moment passes ReLU, and He's weights make up for it."""
    one = torch.ones((), dtype=torch.float64)
    variances = torch.logspace(-6, 6, 13, dtype=torch.float64)
    says = run.states("N-119", r"\mathbb E(z)_+^2=\tfrac12\operatorname{Var}z \text{ for symmetric } z")
    says.equal(
        second_moment("relu", variances) / variances,
        torch.full_like(variances, 0.5),
        EXACT,
        where="normal z of variances from 1e-6 to 1e6, by quadrature on each half-line",
    )
    says.fails("tanh instead of ReLU", second_moment("tanh", variances) / variances)
    z = run.randn(200, width) + 1
    says = run.states("N-119", r"\mathbb E(z)_+^2=\tfrac12\operatorname{Var}z \text{, by sampling}")
    # all of the variance; the first moment for the second
    says.mean((z - 1).clamp(min=0).square().ravel(), 0.5, against=(1.0, 1 / math.sqrt(2 * math.pi)), confidence=SURE)
    says.fails("z not symmetric: mean 1", z.clamp(min=0).square().ravel())
    previous = run.randn(trials, width, 1).clamp(min=0)

    def gain(scheme: Scheme) -> Interval:
        weight = draw_weight((trials, width, width), scheme, generator=run.generator)
        after = (weight @ previous).clamp(min=0).square().mean((1, 2))
        return mean_interval(after / previous.square().mean((1, 2)), SURE)

    he, xavier = gain("he"), gain("xavier")
    says = run.states("N-119", r"\sigma^2=\tfrac2n:\ \mathbb E\|(Wa)_+\|^2=\|a\|^2")
    says.mean(he, 1.0, against=(0.5, 2.0), where=f"{trials} square layers of {width} units")
    says.fails("Xavier's weights", xavier)
    rows = []
    for name in ("relu", "leaky relu", "tanh", "logistic", "elu", "softplus"):
        moment = float(second_moment(name, one))
        rows.append((name, moment, 1 / moment))
    run.table(
        "he-gains",
        ["activation", "E f(Z)²", "n σ² that keeps second moment 1"],
        rows,
        caption="He's rule for other activations: σ² = 1/(n E f(Z)²), Z standard normal.",
    )


def orthogonal(run: Run, width: int, depth: int) -> None:
    """Orthogonal matrices: singular values, lengths, products, and their eigenvalues."""
    shapes = [(width, width), (width, width // 2), (width // 2, width)]
    drawn = [draw_weight(shape, "orthogonal", generator=run.generator) for shape in shapes]
    gaussian = [draw_weight(shape, "lecun", generator=run.generator) for shape in shapes]
    says = run.states("N-120", r"\text{every singular value of } W \text{ is } 1")
    says.equal(torch.cat([torch.linalg.svdvals(w) for w in drawn]), 1.0, EXACT, where="square, tall and wide")
    says.fails("independent entries of LeCun's variance", torch.cat([torch.linalg.svdvals(w) for w in gaussian]))
    x = run.randn(width, 20)
    short = run.randn(width // 2, 20)
    says = run.states("N-120", r"\|Wx\|=\|x\| \text{ for every } x \text{ (columns orthonormal)}")
    says.equal(
        torch.cat([(drawn[0] @ x).norm(dim=0) / x.norm(dim=0), (drawn[1] @ short).norm(dim=0) / short.norm(dim=0)]),
        1.0,
        EXACT,
    )
    says.fails("fewer rows than columns: something must be lost", (drawn[2] @ x).norm(dim=0) / x.norm(dim=0))
    products = []
    for scheme in ("orthogonal", "lecun"):
        product = torch.eye(width, dtype=torch.float64)
        for _ in range(depth):
            product = draw_weight((width, width), scheme, generator=run.generator) @ product
        products.append(product)
    identity = torch.eye(width, dtype=torch.float64)
    says = run.states("N-120", r"(W_L\cdots W_1)^\top(W_L\cdots W_1)=I")
    says.equal(products[0].T @ products[0], identity, EXACT * depth, where=f"{depth} layers of {width}")
    says.fails("LeCun's weights", products[1].T @ products[1])
    traces = torch.stack([draw_weight((2, 2), "orthogonal", generator=run.generator) for _ in range(2000)])
    says = run.states("N-120", r"\mathbb EW_{11}=0 \text{: the signs of } R \text{ are taken out of } W=QR\text{'s } Q")
    says.mean(
        traces[:, 0, 0],
        0.0,
        against=(-2 / math.pi, 2 / math.pi),  # a column whose first entry always has one sign
        confidence=SURE,
        where="2000 matrices; uniform orthogonal matrices have mean 0",
    )
    says.fails("the Q of a QR as LAPACK returns it", torch.linalg.qr(run.randn(2000, 2, 2))[0][:, 0, 0])
    eigenvalues = torch.linalg.eigvals(drawn[0])
    run.refutes(
        "orthogonal-eigenvalues-signs",
        r"\text{the eigenvalues of an orthogonal matrix are } \pm1:\ |\operatorname{Im}\lambda|=0",
    ).equal(
        eigenvalues.imag.abs(), within=1e-6, where="they lie on the unit circle; it is the singular values that are 1"
    )
    says = run.states("N-120", r"\text{the eigenvalues of an orthogonal matrix have } |\lambda|=1")
    says.equal(eigenvalues.abs(), 1.0, EXACT)
    says.fails("LeCun's weights", torch.linalg.eigvals(gaussian[0]).abs())

    def plot(axes: Any) -> None:
        circle = torch.linspace(0, 2 * math.pi, 200)
        for column, (name, w) in enumerate([("orthogonal", drawn[0]), ("LeCun", gaussian[0])]):
            values = torch.linalg.eigvals(w)
            axes[0, column].plot(circle.cos(), circle.sin(), color=COLORS[6], lw=0.6)
            axes[0, column].scatter(values.real, values.imag, s=9, color=COLORS[column])
            axes[0, column].set_aspect("equal")
            axes[0, column].set_title(f"eigenvalues, {name}")
            axes[0, column].set_xlabel("real part")
        axes[0, 0].set_ylabel("imaginary part")
        for k, (name, product) in enumerate(zip(("orthogonal", "LeCun"), products, strict=True)):
            values = torch.linalg.svdvals(product).clamp(min=1e-17).log10()
            axes[0, 2].plot(values, ".", color=COLORS[k], label=name)
        axes[0, 2].set_title(f"log₁₀ of singular values, product of {depth}")
        axes[0, 2].set_xlabel("index")
        axes[0, 2].legend(loc="center right")

    run.figure(
        "orthogonal",
        plot,
        caption="Eigenvalues of an orthogonal matrix lie on the unit circle, not at ±1. Its "
        "singular values are 1, and stay so in any product; those of independent entries spread "
        "over many orders of magnitude.",
        grid=(1, 3),
        size=(11.0, 3.4),
    )


def whole_models(run: Run) -> None:
    """`initialize` on networks, against torch's own functions."""
    pairs: list[tuple[Scheme, Distribution, Any]] = [
        ("xavier", "normal", nn.init.xavier_normal_),
        ("xavier", "uniform", nn.init.xavier_uniform_),
        ("he", "normal", nn.init.kaiming_normal_),
        ("he", "uniform", nn.init.kaiming_uniform_),
        ("orthogonal", "normal", nn.init.orthogonal_),
    ]
    worst: list[float] = []
    broken: list[float] = []
    for scheme, distribution, theirs in pairs:
        net = mlp([7, 11, 5])
        for given, gaps in ((scheme, worst), ("lecun", broken)):
            initialize(net, given, distribution=distribution, generator=5)
            generator = torch.Generator().manual_seed(5)
            for layer in (m for m in net if isinstance(m, nn.Linear)):
                reference = theirs(torch.empty_like(layer.weight.detach()), generator=generator)
                gaps.append(float((layer.weight.detach() - reference).abs().max()))
    says = run.states(
        "N-118, N-119, N-120",
        r"\text{the weights are those of } \texttt{torch.nn.init} \text{ from the same generator}",
    )
    says.equal(worst, within=EXACT)
    says.fails("LeCun's weights compared with them", broken)
    grouped = nn.Conv2d(12, 24, 3, groups=4, dtype=torch.float64)
    report = initialize(grouped, "lecun", generator=run.generator).layers[0]
    moments, theirs_moments = [], []
    for _ in range(60):
        x = run.randn(100, 12, 3, 3)
        initialize(grouped, "lecun", generator=run.generator)
        moments.append(float(grouped(x).detach().square().mean()))
        with torch.no_grad():
            weight = draw_weight((24, 12 * 9), "lecun", generator=run.generator)
            grouped.weight.copy_(weight[:, : report.fan_in].reshape(24, 3, 3, 3))
        theirs_moments.append(float(grouped(x).detach().square().mean()))
    says = run.states("N-117", r"\text{a convolution with groups: } n=k\,c_{\rm in}/g \text{ keeps the second moment}")
    says.mean(
        moments,
        1.0,
        against=(0.25, 2 / 3, 2.0),  # all channels counted; Xavier's and He's variances
        confidence=SURE,
        where="12 channels in 4 groups, 3 × 3 kernels, 60 draws",
    )
    says.fails("all 12 channels counted as inputs", theirs_moments)


def _scaled(interval: Interval, factor: float) -> Interval:
    return Interval(
        interval.estimate * factor,
        interval.low * factor,
        interval.high * factor,
        interval.confidence,
        interval.trials,
        interval.test,
    )
