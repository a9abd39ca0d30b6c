"""Gradients of a deep network before training: exact means, depth, and the right deviation."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import COLORS, Interval, Run, fit_slope, lab, mean_interval
from torchtheory.models.problem import Problem
from torchtheory.nets.feedforward import mlp
from torchtheory.optimization.initial_scale import (
    InitializationReport,
    fresh_growths,
    initialization_report,
)
from torchtheory.optimization.linear_networks.initial_gradients import (
    gaussian_gradient_bound,
    gaussian_gradient_moment,
    gradient_second_moments,
    sample_gradients,
)
from torchtheory.optimization.linear_networks.matrix_moments import KURTOSIS, three_valued_matrices
from torchtheory.training.initialization import draw_weight

#: Confidence of each Monte Carlo comparison; there are some twenty of them.
SURE = 0.9999

#: σ√d of the figure.
SCALES = (0.5, 0.9, 1.0, 1.1, 2.0)


@lab(
    "gradient-norms-at-initialization",
    room="optimization",
    covers=["L-155", "L-158", "L-159"],
    title="How large gradients are at initialization: an exact formula, layer by layer",
    errata=["deep-linear-gradient-inner-vector", "dominating-term-threshold"],
    full={"draws": 40_000, "networks": 1000, "width": 32, "deepest": 16},
    least={"draws": 800, "networks": 30, "width": 15, "deepest": 10},
)
def gradient_norms(run: Run, draws: int = 6000, networks: int = 250, width: int = 20, deepest: int = 10) -> None:
    """The gradient of a deep linear network in each weight matrix has an exact mean square over
    random weights: the source's bound without its factors 2 is an equality, as the mixed term has
    mean 0.

    It depends on the weights through their first four moments only, so that matrices whose entries
    take three values have the same mean as normal ones, and the mean over all of them needs no
    sampling. Normal, uniform and sign weights are then sampled, in unequal widths too. With depth
    the two terms grow like (σ⁴d(d+2))ᴸ and (σ²d)ᴸ: σ = 1/√d keeps them, up to a factor (1+2/d)ᴸ.
    The report on a deep ReLU network finds torch's default too small and √(2/n) right. Look at the
    fans of curves that one step of σ opens.

    Args:
        draws: networks that moments are averaged over.
        networks: of each depth.
        width: of their layers.
        deepest: most layers.
    """
    gradient_map(run)
    every_network(run)
    bound(run)
    sampled(run, draws)
    wide_limit(run)
    fans = growth_with_depth(run, networks, width, deepest)
    report = deep_relu(run)
    run.figure(
        "depth",
        lambda axes: plot(axes, fans, report, width),
        caption="Left and middle: the two terms of the mean squared gradient in a layer, exact "
        "(lines) and sampled (points), for five deviations of the weights. Right: a ReLU network "
        "of 12 layers as torch draws it, as predicted, and with the deviation advised.",
        grid=(1, 3),
        size=(13.5, 3.8),
    )


def squared_norm(gradients: Tensor) -> Tensor:
    return gradients.square().sum((-2, -1))


def gram_norm(products: Tensor) -> Tensor:
    return squared_norm(products.mT @ products)


def gradient_map(run: Run) -> None:
    """The formula for the gradient, against automatic differentiation."""
    widths = [4, 3, 5, 2, 3]
    layers = [run.randn(p, q) for p, q in zip(widths[1:], widths, strict=False)]
    x, y = run.randn(4), run.randn(3)

    def loss(*weights: Tensor) -> Tensor:
        out = x
        for w in weights:
            out = w @ out
        return (out - y).square().sum() / 2

    truth = torch.func.grad(loss, argnums=tuple(range(4)))(*layers)
    found = sample_gradients(layers, x, y)
    flipped = sample_gradients(layers, x, -y)
    says = run.states(
        "L-155", r"\partial\ell/\partial W^k=(W^{k+1})^\top\cdots(W^L)^\top(\hat y-y)\,(W^{k-1}\cdots W^1x)^\top"
    )
    says.equal(
        torch.cat([g.flatten() for g in found]),
        torch.cat([g.flatten() for g in truth]),
        1e-12,
        where="automatic differentiation; widths 4, 3, 5, 2, 3",
    )
    says.fails("y of the other sign", torch.cat([g.flatten() for g in flipped]))
    more = sample_gradients(layers, run.randn(4), y)
    two = [a + b for a, b in zip(found, more, strict=True)]

    def second_singular(gradients: list[Tensor]) -> list[float]:
        return [float(s[1] / s[0]) for s in map(torch.linalg.svdvals, gradients)]

    says = run.states("L-155", r"\text{the gradient of one sample has rank 1: second over first singular value}")
    says.equal(second_singular(found), within=1e-12)
    says.fails("two samples", second_singular(two))
    # the chain rule in Kronecker form: the derivative of the output in vec W², columns stacked
    after = layers[3] @ layers[2]
    z = layers[0] @ x
    whole = torch.func.jacrev(lambda w: after @ (w @ z))(layers[1])
    says = run.states(
        "L-155",
        r"\partial\hat y/\partial\operatorname{vec}W^k=z^\top\otimes W^{L:k+1}=W^{L:k+1}(z^\top"
        r"\otimes I),\ z=W^{k-1:1}x",
    )
    says.equal(torch.kron(z[None], after), whole.mT.reshape(3, -1), 1e-12)
    says.fails("x in place of z", torch.kron(x[None, :3], after))
    square = [run.randn(3, 3) for _ in range(4)]
    x, y = run.randn(3), run.randn(3)
    z = square[0] @ x
    printed = (
        square[2].T
        @ square[3].T
        @ (torch.outer(square[3] @ square[2] @ square[1] @ z, z) - torch.outer(y, x))
        @ square[0].T
    )
    run.refutes(
        "deep-linear-gradient-inner-vector",
        r"\partial\ell/\partial W^k=W^{k+1:L}[W^{L:1}xz^\top-yx^\top]W^{1:k-1},\ z=W^{k-1:1}x",
    ).equal(
        printed,
        sample_gradients(square, x, y)[1],
        1e-6,
        where="four 3 × 3 matrices, k = 2; with x in place of z it is right",
    )


def enumerated(depth: int, kurtosis: float, sigma: float, x: Tensor, y: Tensor) -> list[float]:
    """Mean squared gradients over all networks of 2 × 2 matrices with three-valued entries."""
    matrices, chance = three_valued_matrices(2, 2, kurtosis)
    count = len(matrices)
    layers, weights = [], torch.ones((1,) * depth, dtype=torch.float64)
    for k in range(depth):
        shape = [count if j == k else 1 for j in range(depth)]
        layers.append(sigma * matrices.reshape(*shape, 2, 2))
        weights = weights * chance.reshape(shape)
    return [float((weights * squared_norm(g)).sum()) for g in sample_gradients(layers, x, y)]


def tied_networks(depth: int, kurtosis: float, sigma: float, x: Tensor, y: Tensor) -> list[float]:
    """The same with one matrix in all layers."""
    matrices, chance = three_valued_matrices(2, 2, kurtosis)
    gradients = sample_gradients([sigma * matrices] * depth, x, y)
    return [float(chance @ squared_norm(g)) for g in gradients]


def every_network(run: Run) -> None:
    sigma = 0.6
    x, y = run.randn(2), run.randn(2)
    rho, gamma = float(x.square().sum()) ** 2, float(x.square().sum() * y.square().sum())
    for depth in (1, 2, 3):
        found = enumerated(depth, 3.0, sigma, x, y)
        heavy = enumerated(depth, 9.0, sigma, x, y) if depth == 2 else None
        says = run.states(
            "L-158",
            r"\mathbb E\|\partial\ell/\partial W^k\|_F^2=\tfrac{\rho\sigma^{4L-2}}3(d(d+2))^{k-1}"
            r"\bigl[(d(d+2))^{L-k+1}-(d(d-1))^{L-k+1}\bigr]+\gamma(\sigma^2d)^{L-1}",
        )
        says.equal(
            found,
            [gaussian_gradient_moment(k, depth, 2, sigma, rho, gamma) for k in range(1, depth + 1)],
            1e-12,
            where=f"L = {depth}, d = 2: all {81**depth} networks with three-valued entries, which "
            "have the moments of normal ones up to the fifth",
        )
        if heavy is not None:
            says.fails("entries of kurtosis 9 in place of 3", heavy)
    for kappa in (1.0, 9.0):
        says = run.states(
            "L-158",
            r"\mathbb E\|\partial\ell/\partial W^k\|_F^2=\sigma^2\,\mathbb E\|W^{k-1:1}x\|^4\;\mathbb "
            r"E\|W^{k+1:L}W^{L:k+1}\|_F^2+(d\sigma^2)^{L-1}\|x\|^2\|y\|^2: \text{ equality, without factors 2}",
        )
        says.equal(
            enumerated(3, kappa, sigma, x, y),
            gradient_second_moments(x, y, [2] * 4, sigma, kappa),
            1e-12,
            where=f"kurtosis {kappa:g}, L = 3, d = 2, all networks",
        )
        says.fails("layers not independent: the same matrix three times", tied_networks(3, kappa, sigma, x, y))
    matrices, chance = three_valued_matrices(2, 2, 3.0)
    pairs = matrices[:, None] @ matrices[None]
    triples = matrices[:, None, None] @ pairs
    twice = matrices @ matrices
    by_pairs = chance[:, None] * chance
    by_triples = chance[:, None, None] * by_pairs
    says = run.states(
        "L-158", r"\mathbb E\|W^{1:m}W^{m:1}\|_F^2=\tfrac{\sigma^{4m}}3\bigl[(d(d+2))^{m+1}-(d(d-1))^{m+1}\bigr]"
    )
    says.equal(
        torch.stack([(by_pairs * gram_norm(pairs)).sum(), (by_triples * gram_norm(triples)).sum()]),
        [(8.0**3 - 2.0**3) / 3, (8.0**4 - 2.0**4) / 3],
        1e-12,
        where="d = 2, m = 2, 3; all matrices",
    )
    says.fails(
        "the same matrix in all layers", torch.stack([chance @ gram_norm(twice), chance @ gram_norm(matrices @ twice)])
    )


def bound(run: Run) -> None:
    """Theorem 52: for every layer, with room to spare, and only for weights like normal ones."""
    grid = [(d, depth, scale / math.sqrt(d)) for d in (2, 5, 20) for depth in (1, 3, 8) for scale in SCALES]
    ratios = [
        gaussian_gradient_moment(k, depth, d, s, 1.0, 1.0) / gaussian_gradient_bound(depth, d, s, 1.0, 1.0)
        for d, depth, s in grid
        for k in range(1, depth + 1)
    ]
    x = torch.tensor([1.0, 0.0], dtype=torch.float64)
    heavy = enumerated(2, 30.0, 1.0, x, x)
    says = run.states(
        "L-158",
        r"\mathbb E\|\partial\ell/\partial W^k\|_F^2\,/\,\bigl(\tfrac{2\rho}{3\sigma^2}[\sigma^4"
        r"d(d+2)]^L+2\gamma(\sigma^2d)^{L-1}\bigr)\le\tfrac12",
    )
    says.at_most(
        ratios,
        0.5,
        1e-12,
        where="d = 2, 5, 20; L = 1, 3, 8; σ√d = 0.5 to 2; every layer: the bound is at least twice the truth",
    )
    says.fails(
        "weights not normal: three-valued of kurtosis 30, d = 2, L = 2",
        [v / gaussian_gradient_bound(2, 2, 1.0, 1.0, 1.0) for v in heavy],
    )
    d, depth = 4, 6
    sigma = (4 / (d * (d + 2))) ** 0.25
    own = gaussian_gradient_moment(depth, depth, d, sigma, 1.0, 0.0)
    target = gaussian_gradient_moment(depth, depth, d, sigma, 0.0, 1.0)
    run.refutes(
        "dominating-term-threshold",
        r"\sigma^4\le d(d+2) \implies \text{the term with } y \text{ is at least that with } \hat y \quad(\rho=\gamma)",
    ).at_least(target, own, where=f"d = {d}, L = {depth}, σ⁴ = 4/(d(d+2)) = {sigma**4:.3g}")


def sampled(run: Run, draws: int) -> None:
    """Normal, uniform and sign weights, square and rectangular."""
    rows = []
    for law, widths, scale in (
        ("normal", [2, 2, 2], 1.0),
        ("normal", [5, 5, 5, 5], 0.8),
        ("normal", [10, 10, 10, 10], 1.1),
        ("uniform", [6, 3, 5, 2], 1.0),
        ("signs", [3, 7, 4, 4], 1.0),
    ):
        depth = len(widths) - 1
        x, y = run.randn(widths[0]), run.randn(widths[-1])
        sigmas = [scale / math.sqrt(q) for q in widths[:-1]]
        own = gradient_second_moments(x, 0 * y, widths, sigmas, KURTOSIS[law])
        # y so long that both terms count: in the first layer they are equal
        both = gradient_second_moments(x, y, widths, sigmas, KURTOSIS[law])
        y = y * math.sqrt(own[0] / (both[0] - own[0]))
        exact = gradient_second_moments(x, y, widths, sigmas, KURTOSIS[law])
        layers = []
        for p, q, sigma in zip(widths[1:], widths, sigmas, strict=False):
            if law == "signs":
                layers.append(sigma * run.signs(draws, p, q))
            else:
                kind: Any = law
                layers.append(draw_weight((draws, p, q), sigma**2, distribution=kind, generator=run.generator))
        norms = [squared_norm(g) for g in sample_gradients(layers, x, y)]
        # the first with the signs of x, or an input whose entries add up to 0 would not notice
        shifted = [layers[0] + sigmas[0] * x.sign(), *(w + s for w, s in zip(layers[1:], sigmas[1:], strict=True))]
        biased = [squared_norm(g) for g in sample_gradients(shifted, x, y)]
        for k in sorted({1, depth}):
            found = mean_interval(norms[k - 1], SURE)
            spoiled = mean_interval(biased[k - 1], SURE)
            rows.append((law, "-".join(map(str, widths)), k, exact[k - 1], found.estimate))
            says = run.states(
                "L-158",
                rf"\mathbb E\|\partial\ell/\partial W^{k}\|_F^2 \text{{, {law} weights, widths "
                rf"{'-'.join(map(str, widths))}}}",
            )
            says.mean(
                found,
                exact[k - 1],
                # the source's factors 2, and either term alone
                against=(2 * exact[k - 1], own[k - 1], exact[k - 1] - own[k - 1]),
                where=f"{draws} networks, σ²·fan-in = {scale**2:.2f}",
            )
            says.fails("weights of mean σ, in the first layer σ times the sign of the input", spoiled)
    run.table(
        "mean-squared-gradients",
        ["weights", "widths", "layer", "exact", "sampled"],
        rows,
        caption="Mean squared norm of the gradient in a layer's weights.",
    )


def wide_limit(run: Run) -> None:
    depth, rho, gamma = 6, 2.0, 3.0
    widths = [100, 1000, 10_000, 100_000]

    def gaps(layer: int, power: float) -> list[float]:
        return [
            abs(gaussian_gradient_moment(layer, depth, d, d**-power, rho, gamma) - (rho * (depth - layer + 1) + gamma))
            for d in widths
        ]

    for layer in (1, depth):
        says = run.states(
            "L-158, L-159",
            r"\sigma^2=\tfrac1d:\ \mathbb E\|\partial\ell/\partial W^k\|_F^2\to\rho(L-k+1)+\gamma"
            r" \text{ as } d\to\infty: \text{ exponent of the distance}",
        )
        says.slope(
            widths,
            gaps(layer, 0.5),
            -1.0,
            0.05,
            against=(-2.0, -0.5),
            where=f"L = {depth}, k = {layer}, d = 100 to 100 000",
        )
        says.fails("σ = $d^{-0.45}$", widths, gaps(layer, 0.45))


Fans = dict[float, list[tuple[int, float, Interval, float, Interval]]]


def growth_with_depth(run: Run, networks: int, width: int, deepest: int) -> Fans:
    """The two terms of the last layer's gradient, by depth; both measured on their own."""
    x, y = run.randn(width), run.randn(width)
    x, y = x / x.norm(), y / y.norm()
    none = torch.zeros_like(y)
    depths = list(range(1, deepest + 1))
    fans: Fans = {}
    for scale in run.track(SCALES, "deviations"):
        sigma = scale / math.sqrt(width)
        # at σ√d = 1 the growth is only that of 1 + 2/d, to be told from none
        count = 4 * networks if scale == 1 else networks
        for depth in depths:
            shape = (count, width, width)
            layers = [draw_weight(shape, sigma**2, generator=run.generator) for _ in range(depth)]
            own = sample_gradients(layers, x, none)[-1]
            target = sample_gradients(layers, x, y)[-1] - own
            fans.setdefault(scale, []).append(
                (
                    depth,
                    gaussian_gradient_moment(depth, depth, width, sigma, 1.0, 0.0),
                    mean_interval(squared_norm(own), SURE),
                    gaussian_gradient_moment(depth, depth, width, sigma, 0.0, 1.0),
                    mean_interval(squared_norm(target), SURE),
                )
            )
    for place, name in ((2, r"\hat y"), (4, "y")):
        slopes = {
            s: own_growth(depths, [r[2] for r in rows], width)
            if place == 2
            else fit_slope(depths, [math.log(r[4].estimate) for r in rows], SURE, log=False)
            for s, rows in fans.items()
        }
        for scale, found in slopes.items():
            far = 2.0 if scale < 2 else 0.5
            formula = r"\log\sigma^4d(d+2)" if place == 2 else r"\log\sigma^2d"
            says = run.states(
                "L-159",
                rf"\text{{the term of }} {name} \text{{ grows with depth like }} e^{{L\beta}},\ \beta={formula}",
            )
            rates = {s: math.log(s**4 * (1 + 2 / width) if place == 2 else s**2) for s in SCALES}
            without = [0.0] if rates[scale] and scale == 1 else []
            says.slope(
                found,
                rates[scale],
                against=[*without, *(rate for s, rate in rates.items() if s != scale)],
                where=f"σ√d = {scale}, d = {width}, L = 1 to {depths[-1]}, {len(depths)} times "
                f"{4 * networks if scale == 1 else networks} networks",
            )
            says.fails(f"another deviation: σ√d = {far}", slopes[far])
    return fans


def own_growth(depths: list[int], means: list[Interval], width: int, confidence: float = SURE) -> Interval:
    r"""Growth with depth of $\log\mathbb E\|\hat yz^\top\|^2$, by least squares with known weights.

    Over the networks its variance, relative to the square of its mean, is of order $q^L-1$ with
    $q=(d+4)(d+6)/(d(d+2))$: deep networks say little, and a line that takes all depths for equally
    good would be as uncertain as they are.
    """
    q = (width + 4) * (width + 6) / (width * (width + 2))
    x = torch.tensor(depths, dtype=torch.float64)
    weight = 1 / (q**x - 1)
    centered = x - (weight * x).sum() / weight.sum()
    share = weight * centered / (weight * centered.square()).sum()
    logs = torch.tensor([m.estimate for m in means], dtype=torch.float64).log()
    wide = torch.tensor([m.at(confidence).high / m.estimate - 1 for m in means], dtype=torch.float64)
    # each half-width is one quantile times the standard error, and so is that of the sum
    slope, radius = float(share @ logs), float((share * wide).norm())
    again = partial(own_growth, depths, means, width)
    test = "weighted least squares on logarithms"
    return Interval(slope, slope - radius, slope + radius, confidence, len(depths), test, again)


def _interval(row: tuple[int, float, Interval, float, Interval], place: int) -> Interval:
    return row[2] if place == 2 else row[4]


def deep_relu(run: Run) -> InitializationReport:
    """The report on a network that torch's default does not suit."""
    width, depth = 100, 12
    x = run.randn(64, width)
    targets = run.randn(64, 1)
    net = mlp([width] * depth + [1], "relu", bias=False, generator=run.generator)
    problem = Problem(net, (x, targets), task="regression")
    report = initialization_report(problem, draws=4, seed=run.seed)
    assert report.growth_predicted is not None
    assert report.factor is not None
    linear = nn.Sequential(*[m for m in net if isinstance(m, nn.Linear)])
    straight = initialization_report(Problem(linear, (x, targets), task="regression"), draws=4)
    says = run.states(
        "L-159", r"\text{ReLU, torch's default } \sigma^2=\tfrac1{3n}: \text{ growth a layer} =\log\sqrt{n\sigma^2/2}"
    )
    says.equal(
        report.growth,
        math.log(math.sqrt(1 / 6)),
        0.05,
        where=f"{depth} layers of {width}, 4 draws, 64 samples; within 0.05 a layer",
    )
    says.fails("no ReLU between the layers", straight.growth)
    says = run.states("L-159", r"\text{growth a layer, predicted from the norms of the weights}")
    says.equal(
        report.growth,
        report.growth_predicted,
        0.05,
        where="the recursion of second moments, whose corrections are of order 1/width",
    )
    says.fails("no ReLU between the layers", straight.growth)
    he = math.sqrt(2 / width)
    hidden = report.layers[1]
    other = straight.layers[1]
    assert hidden.advised is not None
    assert other.advised is not None
    says = run.states("L-159", r"\text{the deviation advised, over } \sqrt{2/n}")
    says.equal(
        hidden.advised / he,
        1.0,
        0.05,
        where=f"found from measured gradients: {hidden.advised:.4f}; torch drew {hidden.deviation:.4f}",
    )
    says.fails("no ReLU between the layers: 1/√n is advised", other.advised / he)
    says = run.states("L-159", r"\text{linear layers: the deviation advised, over } 1/\sqrt n")
    says.equal(other.advised * math.sqrt(width), 1.0, 0.05)
    says.fails("ReLU between the layers", hidden.advised * math.sqrt(width))
    others = [
        mean_interval(fresh_growths(problem, factor=scale, draws=8, seed=run.seed + 4), SURE)
        for scale in (report.factor, 1.0)
    ]
    says = run.states("L-159", r"\text{with that deviation, at other draws: growth a layer}")
    says.equal(
        others[0].estimate,
        within=0.05,
        where=f"8 draws the deviation was not found with, from {others[0].low:.3f} to "
        f"{others[0].high:.3f} at 99.99%; within 0.05 a layer",
    )
    says.fails("torch's default", others[1].estimate)
    run.table(
        "initialization",
        ["layer", "fan-in", "deviation", "advised", "predicted", "fresh", "repaired"],
        [(r.layer, r.fan_in, r.deviation, r.advised, r.predicted, r.fresh, r.repaired) for r in report.layers],
        caption="Deviation of the weights, and length of the loss's gradient in each layer's output.",
    )
    return report


def plot(axes: Any, fans: Fans, report: InitializationReport, width: int) -> None:
    left, middle, right = axes[0]
    for (scale, rows), color in zip(fans.items(), COLORS, strict=False):
        depths = [r[0] for r in rows]
        for ax, place in ((left, 2), (middle, 4)):
            found = [_interval(r, place) for r in rows]
            ax.semilogy(
                depths,
                [r[1] if place == 2 else r[3] for r in rows],
                color=color,
                label=rf"$\sigma\sqrt{{d}}={scale:g}$",
            )
            ax.semilogy(depths, [f.estimate for f in found], "o", color=color, markersize=4)
    for ax, name in ((left, r"term of $\hat y$"), (middle, "term of $y$")):
        ax.set(xlabel="depth L", ylabel=r"$\mathbb{E}\,\|\partial\ell/\partial W^L\|^2$")
        ax.set_title(f"{name}, d = {width}")
        ax.minorticks_off()
    left.legend(loc="upper left")
    layers = range(1, len(report.layers) + 1)
    right.semilogy(
        layers,
        [r.fresh for r in report.layers],
        "o-",
        color=COLORS[1],
        label="torch's default",
        markersize=4,
    )
    right.semilogy(layers, [r.predicted for r in report.layers], "--", color="0.4", label="predicted")
    right.semilogy(
        layers,
        [r.repaired for r in report.layers],
        "s-",
        color=COLORS[0],
        label="deviation advised",
        markersize=4,
    )
    right.set(xlabel="layer", ylabel=r"$\|\partial\ell/\partial z\|$", title="a deep ReLU network")
    right.legend(loc="lower right")
