"""Deep linear networks with softmax and cross-entropy: the gradient, and its size at the start."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.labs.engine import COLORS, Interval, Run, fit_slope, lab, mean_interval
from torchtheory.optimization.linear_networks.initial_gradients import (
    LinearLoss,
    gradient_second_moments,
    sample_gradients,
    softmax_gradient_bound,
)
from torchtheory.training.initialization import draw_weight

#: Confidence of each Monte Carlo comparison.
SURE = 0.9999

#: σ√d of the figure.
SCALES = (0.5, 1.0, 2.0)

#: The bound pays d for the Frobenius norm of the layers above, and 2 for a square that is less on average.
LOOSE = (
    "averaged over the classes, which random weights treat alike, ‖p - y‖² is at most 2 - 2/d, and the bound "
    "takes it for 2 along d directions at once: at most (1 - 1/d)/d ≤ 1/4 of it is met in the last layer"
)


@lab(
    "softmax-gradients",
    room="optimization",
    covers=["L-160"],
    title="Deep linear classifiers: the gradient through softmax, and a bound that needs no luck",
    errata=["classifier-product-order", "softmax-error-not-independent"],
    full={"networks": 4000, "width": 16, "deepest": 16},
    least={"networks": 1_000, "width": 6, "deepest": 10},
)
def softmax_gradients(run: Run, networks: int = 2000, width: int = 8, deepest: int = 10) -> None:
    """The gradient of the cross-entropy in a layer is the error p - y sent back through the layers
    above, times the signal that arrives from below.

    The error depends on all the weights, so its mean cannot be split off; but its square is never
    above 2, which bounds the mean squared gradient by the same number for every layer,
    2d(dσ²)ᴸ⁻¹‖x‖² in equal widths. With depth it grows like (σ²d)ᴸ, half as fast as for the
    squared loss: σ = 1/√d is right again. Look at the lengths of the signal going forward and of
    the error coming back.

    Args:
        networks: random networks of each depth.
        width: of their layers.
        deepest: most layers.
    """
    gradient_map(run)
    curves = bounded(run, networks, width, deepest)
    not_independent(run, networks)
    passes = forward_and_backward(run, networks, width, deepest)
    run.figure(
        "softmax",
        lambda axes: plot(axes, curves, passes, width, deepest),
        caption="Left: mean squared gradient in the first layer's weights (points) and its bound "
        "(lines). Right: mean squared length of the signal going forward (filled) and of the error "
        "coming back (open), layer by layer.",
        grid=(1, 2),
        size=(10, 3.6),
    )


def gradient_map(run: Run) -> None:
    widths = [4, 6, 3, 5]
    layers = [run.randn(p, q) for p, q in zip(widths[1:], widths, strict=False)]
    x, label = run.randn(4), 2
    y = F.one_hot(torch.tensor(label), 5).double()

    def loss(*weights: Tensor) -> Tensor:
        z = x
        for w in weights:
            z = w @ z
        return F.cross_entropy(z, torch.tensor(label))

    truth = torch.func.grad(loss, argnums=(0, 1, 2))(*layers)
    found = sample_gradients(layers, x, y, "cross-entropy")
    squared = sample_gradients(layers, x, y)
    says = run.states(
        "L-160",
        r"\partial\ell/\partial W^l=\delta^l(a^{l-1})^\top,\ \delta^L=p-y,\ \delta^l=(W^{l+1})^\top\delta^{l+1}",
    )
    says.equal(
        torch.cat([g.flatten() for g in found]),
        torch.cat([g.flatten() for g in truth]),
        1e-12,
        where="automatic differentiation; widths 4, 6, 3, 5",
    )
    says.fails("no softmax: δ = z - y", torch.cat([g.flatten() for g in squared]))
    square = [run.randn(3, 3) for _ in range(4)]
    x, y = run.randn(3), F.one_hot(torch.tensor(1), 3).double()
    z = square[3] @ square[2] @ square[1] @ square[0] @ x
    error = torch.softmax(z, 0) - y
    printed = torch.outer(square[3].T @ error, square[0] @ square[1] @ x)
    run.refutes(
        "classifier-product-order",
        r"\partial\ell/\partial W^l=\textstyle\prod_{k>l}(W^k)^\top(p-y)\,\bigl(\prod_{k=1}^{l-1}W^kx\bigr)^\top",
    ).equal(
        printed,
        sample_gradients(square, x, y, "cross-entropy")[2],
        1e-6,
        where="four 3 × 3 matrices, l = 3: W¹W²x as printed, W²W¹x in truth",
    )


Curve = list[tuple[int, float, Interval]]


def draw(run: Run, networks: int, widths: list[int], sigmas: list[float]) -> list[Tensor]:
    """The layers of many networks with normal weights."""
    return [
        draw_weight((networks, p, q), sigma**2, generator=run.generator)
        for p, q, sigma in zip(widths[1:], widths, sigmas, strict=False)
    ]


def norms(layers: list[Tensor], x: Tensor, y: Tensor, loss: LinearLoss) -> list[Tensor]:
    """Squared gradient norms of random networks, one tensor a layer."""
    return [g.square().sum((-2, -1)) for g in sample_gradients(layers, x, y, loss)]


def bounded(run: Run, networks: int, width: int, deepest: int) -> dict[float, Curve]:
    x = run.randn(width)
    y = F.one_hot(torch.tensor(0), width).double()
    depths = sorted({1, *range(2, deepest + 1, 2)})
    curves: dict[float, Curve] = {}
    squared: list[float] = []
    for scale in run.track(SCALES, "deviations"):
        sigma = scale / math.sqrt(width)
        ratios: list[float] = []
        wrong: list[float] = []
        for depth in depths:
            widths = [width] * (depth + 1)
            limits = softmax_gradient_bound(x, widths, sigma)
            layers = draw(run, networks, widths, [sigma] * depth)
            means = [mean_interval(n, SURE) for n in norms(layers, x, y, "cross-entropy")]
            ratios += [m.high / b for m, b in zip(means, limits, strict=True)]
            curves.setdefault(scale, []).append((depth, limits[0], means[0]))
            loud = norms(layers, x, 10 * y, "cross-entropy")
            wrong += [mean_interval(n, SURE).low / b for n, b in zip(loud, limits, strict=True)]
            if scale == SCALES[-1]:
                squared.append(gradient_second_moments(x, y, widths, sigma)[0])
        says = run.states(
            "L-160",
            r"\mathbb E\|\partial\ell/\partial W^l\|_F^2\,/\,2d(d\sigma^2)^{L-1}\|x\|^2\le1"
            r" \text{ for every layer: upper end of its 99.99\% interval}",
        )
        says.at_most(
            ratios,
            1.0,
            loose=LOOSE,
            where=f"σ√d = {scale}, d = {width}, L = 1 to {depths[-1]}, {networks} networks each",
        )
        says.fails("y no distribution: 10 at the class, ‖p - y‖² > 2", wrong)

    def growth(values: list[float]) -> Interval:
        return fit_slope(depths[1:], [math.log(v) for v in values[1:]], 0.999, log=False)

    other = growth(squared)
    # the square of p - y starts near 1 and ends below 2: over the range it may double
    doubling = math.log(2) / (depths[-1] - depths[1])
    for scale, points in curves.items():
        own = growth([m.estimate for *_, m in points])
        says = run.states(
            "L-160",
            r"\mathbb E\|\partial\ell/\partial W^1\|_F^2 \text{ grows with depth like }"
            r" e^{L\beta},\ \beta=\log\sigma^2d",
        )
        says.slope(
            own,
            math.log(scale**2),
            doubling / max(1.0, abs(math.log(scale**2))),
            # the other deviations, and twice the rate, as for the squared loss
            against=[math.log(s**2) for s in {*SCALES, scale**2} - {scale}],
            where=f"σ√d = {scale}; L = 2 to {depths[-1]}, up to the factor 2 by which the square "
            "of p - y may change; in the limit the bound allows no more",
        )
        says.fails("the squared loss at σ√d = 2, exactly", other)
    x, y = run.randn(5), F.one_hot(torch.tensor(1), 3).double()
    found: list[float] = []
    broken: list[float] = []
    # unequal widths; and large weights behind one unit, where the error is as long as it can be
    for widths, sigmas in (([5, 9, 4, 3], [0.3, 0.6, 0.5]), ([5, 1, 3], [4.0, 4.0])):
        limits = softmax_gradient_bound(x, widths, sigmas)
        layers = draw(run, networks, widths, sigmas)
        for target, ratios in ((y, found), (10 * y, broken)):
            means = [mean_interval(n, SURE) for n in norms(layers, x, target, "cross-entropy")]
            ratios += [(m.high if target is y else m.low) / b for m, b in zip(means, limits, strict=True)]
    says = run.states(
        "L-160", r"\mathbb E\|\partial\ell/\partial W^l\|_F^2\le2\|x\|^2\prod_jd_j\prod_{j\ne l}\sigma_j^2"
    )
    says.at_most(
        found, 1.0, loose=LOOSE, where="widths 5, 9, 4, 3 and 5, 1, 3, unequal deviations; the mean over the bound"
    )
    says.fails("y no distribution: 10 at the class, ‖p - y‖² > 2", broken)
    return curves


def not_independent(run: Run, networks: int) -> None:
    """What one gets by treating the error p - y as independent of the weights."""
    d, depth, sigma = 3, 2, 1.5
    x, y = run.randn(d), F.one_hot(torch.tensor(0), d).double()
    layers = draw(run, 4 * networks, [d] * (depth + 1), [sigma] * depth)
    squares = norms(layers, x, y, "cross-entropy")[0]
    error = torch.softmax((layers[1] @ (layers[0] @ x)[..., None])[..., 0], -1) - y
    share = float(error.square().sum(-1).mean()) * (d * sigma**2) ** (depth - 1)
    run.refutes(
        "softmax-error-not-independent",
        r"\mathbb E\|\partial\ell/\partial W^1\|_F^2=\mathbb E\|p-y\|^2\,(d\sigma^2)^{L-1}\|x\|^2"
        r" \text{ by Corollary 49: measured over promised}",
    ).mean(
        squares / (share * float(x.square().sum())),
        1.0,
        confidence=SURE,
        where=f"d = {d}, L = {depth}, σ = {sigma}, {4 * networks} networks",
    )


Passes = dict[float, tuple[list[float], list[float]]]


def forward_and_backward(run: Run, networks: int, width: int, deepest: int) -> Passes:
    """Mean squared lengths of signals and errors along the layers."""
    x = run.randn(width)
    x = x / x.norm()
    y = F.one_hot(torch.tensor(0), width).double()
    found: Passes = {}
    for scale in SCALES:
        sigma = scale / math.sqrt(width)
        layers = draw(run, networks, [width] * (deepest + 1), [sigma] * deepest)
        signals = [x.expand(networks, -1)]
        for w in layers:
            signals.append((w @ signals[-1][..., None])[..., 0])
        delta = torch.softmax(signals[-1], -1) - y
        errors = [delta]
        for w in reversed(layers[1:]):
            errors.append((w.mT @ errors[-1][..., None])[..., 0])
        found[scale] = (
            [float(a.square().sum(-1).mean()) for a in signals[1:]],
            [float(e.square().sum(-1).mean()) for e in reversed(errors)],
        )
    return found


def plot(axes: Any, curves: dict[float, Curve], passes: Passes, width: int, deepest: int) -> None:
    left, right = axes[0]
    for (scale, points), color in zip(curves.items(), COLORS, strict=False):
        depths = [d for d, _, _ in points]
        left.semilogy(depths, [b for _, b, _ in points], color=color)
        left.semilogy(
            depths,
            [m.estimate for *_, m in points],
            "o",
            markersize=4,
            color=color,
            label=rf"$\sigma\sqrt{{d}}={scale:g}$",
        )
        forward, backward = passes[scale]
        layers = range(1, deepest + 1)
        right.semilogy(layers, forward, "o-", markersize=4, color=color)
        right.semilogy(layers, backward, "o--", markersize=4, color=color, markerfacecolor="white")
    left.set(
        xlabel="depth L",
        ylabel=r"$\mathbb{E}\,\|\partial\ell/\partial W^1\|^2$",
        title=f"the first layer's gradient, d = {width}",
    )
    left.legend(loc="upper left")
    right.plot([], [], "o-", color="0.3", label=r"signal $a^l$, forward")
    right.plot([], [], "o--", color="0.3", markerfacecolor="white", label=r"error $\delta^l$, back")
    right.set(xlabel="layer l", ylabel="mean squared length", title=f"both passes, L = {deepest}")
    right.legend(loc="upper center")
