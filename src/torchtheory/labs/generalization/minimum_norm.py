"""The minimum-norm fit: its bias and variance, their limit, and when overfitting is benign."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.generalization.interpolation.bias_variance import (
    excess_risk,
    gaussian_variance_factor,
)
from torchtheory.generalization.interpolation.minimum_norm import (
    copied_signs_moment,
    design_bias_variance,
    minimum_norm_weights,
    one_sample_variance,
)
from torchtheory.generalization.interpolation.spectral_asymptotics import (
    asymptotic_variance,
    effective_ranks,
    marchenko_pastur_cdf,
    marchenko_pastur_density,
    marchenko_pastur_support,
)
from torchtheory.labs.engine import COLORS, Run, lab

COPIES = (*range(10, 21), *range(30, 51))


@lab(
    "minimum-norm-regression",
    room="generalization",
    covers=["A-79", "A-80", "A-82"],
    title="One more feature can raise or lower the risk of the minimum-norm fit",
    errata=["norm-of-the-error-not-squared", "marchenko-pastur-of-the-pseudo-inverse"],
    full={"samples": 800, "noises": 20_000, "designs": 20},
    least={"samples": 100, "noises": 1000, "designs": 2},
)
def minimum_norm_regression(run: Run, samples: int = 200, noises: int = 3000, designs: int = 3) -> None:
    """Regression with the pseudo-inverse, below and beyond the interpolation threshold.

    The excess risk on a given design is an exact sum of bias and variance, checked against
    draws of the noise. For features with independent entries the variance tends to a curve with a
    pole at d = m, and the eigenvalues to Marchenko and Pastur's law. With a single sample of signs
    the variance is the Frobenius norm of the second moment: adding copies of a feature raises it,
    adding new ones lowers it. Look at the three descents of the last figure.

    Args:
        samples: of a design.
        noises: draws of the noise for a given design.
        designs: random designs.
    """
    given_design(run, noises)
    points, spectra = limit(run, samples, designs)
    values = one_sample(run)
    run.figure(
        "variance-and-spectrum",
        lambda axes: plot_limit(axes, points, spectra),
        caption="Left, the variance of the minimum-norm fit by the ratio of features to samples: "
        "the limit and simulated designs of random signs. Right, the eigenvalues of one design at "
        "the ratio 1/2 beside Marchenko and Pastur's density.",
        grid=(1, 2),
        size=(10.0, 3.6),
    )
    run.figure(
        "multiple-descent",
        lambda axis: plot_one_sample(axis, values),
        caption="The mean variance of regression on one sample of d signs. In the shaded ranges "
        "every new feature is a copy of the first.",
    )


def given_design(run: Run, noises: int) -> None:
    """Bias and variance given the design, below and beyond d = m."""
    sigma = 0.5
    for m, d in ((30, 10), (10, 30)):
        root = run.randn(d, d) / d**0.5
        moment = root @ root.T
        phi, planted = run.randn(m, d) @ root.T, run.randn(d)
        exact = design_bias_variance(phi, planted, moment, sigma**2)
        y = phi @ planted + sigma * run.randn(noises, m)
        weights = y @ torch.linalg.pinv(phi).T
        excess = excess_risk(weights, planted, moment)
        # the same fit where the noise has a mean
        leaning = excess_risk((y + 3 * sigma) @ torch.linalg.pinv(phi).T, planted, moment)
        says = run.states(
            "A-79",
            r"\mathbb E[R(\hat f_S)\mid X]-R^*=\theta^{*\top}P\,\mathbb E[XX^\top]P\theta^*"
            r"+\mathbb E[\nu^2]\operatorname{tr}(\Sigma^+\mathbb E[XX^\top])",
        )
        says.mean(
            excess,
            exact.total,
            # a fixed design, and one of the two parts alone
            against=(sigma**2 * min(d, m) / m, *((float(exact.bias), float(exact.variance)) if d > m else ())),
            confidence=0.999,
            where=f"m = {m}, d = {d}, {noises} draws of the noise",
        )
        says.fails("noise of mean 3σ, not 0", leaning)
        if d < m:
            beyond = design_bias_variance(phi[: d // 2], planted, moment, sigma**2)
            says = run.states("A-79", r"\Sigma \text{ invertible}\Rightarrow \text{no bias}")
            says.equal(exact.bias, within=1e-12)
            says.fails("half as many samples as features", beyond.bias)
        else:
            run.refutes(
                "norm-of-the-error-not-squared", r"\mathbb E[R(\hat f_S)\mid X]-R^*=\mathbb E\|\hat f_S-f^*\|_{L^2}"
            ).equal(excess.sqrt().mean(), excess.mean(), 1e-2, where="the norm without its square, from the same draws")
            says = run.states("A-79", r"\hat\theta=\Sigma^+\textstyle\sum_iX^{(i)}Y^{(i)}")
            says.equal(
                torch.linalg.pinv(phi.T @ phi, hermitian=True, rtol=1e-10) @ (phi.T @ y[0]),
                weights[0],
                1e-8,
                where="the pseudo-inverse of the features, and of their second moment",
            )
            says.fails("a design with one sample less", minimum_norm_weights(phi[1:], y[0, 1:]))


def limit(run: Run, m: int, designs: int) -> tuple[list[tuple[float, float]], tuple[Tensor, float]]:
    """The variance as d and m grow together, and the spectrum behind it."""
    points = []
    for ratio in (0.25, 0.5, 0.8, 1.25, 2.0, 3.0):
        d = round(ratio * m)
        x = run.signs(designs, m, d)
        values = torch.linalg.eigvalsh(x @ x.mT if d > m else x.mT @ x)
        variance = (1 / values).sum(-1).mean()
        points.append((ratio, float(variance)))
    says = run.states(
        "A-80", r"\operatorname{tr}(\Sigma^+\mathbb E[XX^\top])\to\frac{1-\max\{1-\kappa,0\}}{|1-\kappa|}"
    )
    says.equal(
        [variance for _, variance in points],
        [asymptotic_variance(ratio) for ratio, _ in points],
        0.15,
        where=f"features of independent signs, m = {m}, κ from 1/4 to 3",
    )
    says.fails(
        "entries that are not independent: every feature twice",
        [_doubled(run, m, round(ratio * m)) for ratio, _ in points],
    )
    sizes = [50, 100, 200, 400, 800]
    for ratio in (0.5, 2.0, 3.0):
        gaps = [abs(gaussian_variance_factor(k, round(ratio * k)) - asymptotic_variance(ratio)) for k in sizes]
        run.states("A-80", rf"\kappa={ratio:g}:\ \text{{the Gaussian mean approaches its limit as }} 1/m").slope(
            sizes, gaps, -1.0, 0.05, against=(-0.5, -2.0)
        )
    d = m // 2
    x = run.signs(m, d)
    values = torch.linalg.eigvalsh(x.T @ x) / m
    scaled = run.randn(m, d) * torch.where(run.rand(m, 1) < 0.2, 2.0, 0.5)
    dependent = torch.linalg.eigvalsh(scaled.T @ scaled / m)
    says = run.states("A-80", r"\text{the eigenvalues of } \tfrac1m\Sigma \text{ follow Marchenko and Pastur's law}")
    says.equal(
        _largest_gap(values, d / m),
        within=4 / d,
        where=f"largest difference of the distribution functions, d = {d}, m = {m}",
    )
    says.fails("rows of different size: the entries of a row are not independent", _largest_gap(dependent, d / m))
    run.refutes(
        "marchenko-pastur-of-the-pseudo-inverse",
        r"\text{the eigenvalues of } \tfrac1m\Sigma^+ \text{ follow Marchenko and Pastur's law}",
    ).equal(_largest_gap(1 / (values * m) / m, d / m), within=0.1, where="they shrink to zero as 1/m²")
    return points, (values, d / m)


def _doubled(run: Run, m: int, d: int) -> float:
    half = run.signs(m, (d + 1) // 2)
    x = torch.cat([half, half], 1)[:, :d]
    moment = torch.eye(d).double()
    k = d - half.shape[1]
    moment[:k, half.shape[1] :] = torch.eye(k).double()
    moment[half.shape[1] :, :k] = torch.eye(k).double()
    return float(design_bias_variance(x, torch.ones(d).double(), moment, 1.0).variance)


def _largest_gap(values: Tensor, ratio: float) -> float:
    """Kolmogorov's distance between eigenvalues and the law."""
    ordered = values.sort().values
    law = marchenko_pastur_cdf(ordered, ratio)
    steps = torch.arange(len(ordered) + 1).double() / len(ordered)
    return float(torch.maximum((law - steps[:-1]).abs(), (steps[1:] - law).abs()).max())


def one_sample(run: Run) -> list[float]:
    """Figure 1.7: copies of a feature raise the variance, new features lower it."""
    dimensions = range(1, 151)
    values = [float(one_sample_variance(copied_signs_moment(d, COPIES))) for d in dimensions]
    count = [1 + sum(c <= d for c in COPIES) for d in dimensions]
    closed = [(c * c + d - c) / d**2 for c, d in zip(count, dimensions, strict=True)]
    says = run.states("A-82", r"\|\mathbb E[XX^\top]\|_F^2/d^2=(c^2+d-c)/d^2 \text{ with } c \text{ equal features}")
    says.equal(values, closed, 1e-12)
    says.fails("all features independent", [1 / d for d in dimensions])
    brute, promised, independent = [], [], []
    for d in (1, 4, 9, 10, 12):
        free = [i for i in range(d) if i + 1 not in COPIES]
        signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=len(free)))).double()
        x = signs[:, :1].repeat(1, d)
        x[:, free] = signs
        moment = x.T @ x / len(x)
        zero = torch.zeros(d).double()
        brute.append(design_bias_variance(x[:, None], zero, moment, 1.0).variance.mean())
        promised.append(one_sample_variance(moment))
        uneven = x * torch.linspace(1, 2, d).double()
        scaled = uneven.T @ uneven / len(x)
        independent.append(design_bias_variance(uneven[:, None], zero, scaled, 1.0).variance.mean())
    says = run.states("A-82", r"\mathbb E\operatorname{tr}(\Sigma^+\mathbb E[XX^\top])=\|\mathbb E[XX^\top]\|_F^2/d^2")
    says.equal(torch.stack(brute), torch.stack(promised), 1e-10, where="the mean over all vectors of signs, d up to 12")
    says.fails("features of unequal size, not signs", torch.stack(independent))
    tops = [d for d in dimensions[1:-1] if values[d - 2] < values[d - 1] and values[d] < values[d - 1]]
    plain = [1 / d for d in dimensions]
    says = run.states("A-82", r"\text{the variance rises while copies are added: it peaks at } d=20 \text{ and } d=50")
    says.equal(sum(tops), 70, where=f"peaks at {tops}; what is compared is the sum of their places")
    says.fails("no copies: no peak", sum(d for d in dimensions[1:-1] if plain[d - 2] < plain[d - 1]))
    chosen = (1, 9, 20, 29, 50, 150)
    run.table(
        "one-sample",
        ["d", "equal features", "variance"],
        [(d, count[d - 1], values[d - 1]) for d in chosen],
        caption="Mean variance of regression on one sample of d signs",
    )
    return values


@lab(
    "benign-overfitting",
    room="generalization",
    covers=["A-81"],
    title="Overfitting is harmless when many weak directions hide the noise",
    full={"sizes": (25, 50, 100, 200), "dimension": 20_000, "designs": 10},
    least={"sizes": 5, "designs": 2, "dimension": 50},
    items={"sizes": 3},
)
def benign_overfitting(
    run: Run, sizes: tuple[int, ...] = (20, 40, 80), dimension: int = 3000, designs: int = 4
) -> None:
    """Two effective ranks of the covariance give the variance of the minimum-norm interpolator.

    For Gaussian features with several spectra the variance is simulated and set against
    the formula, which is right up to constants. With eigenvalues that decay just fast enough to be
    summed the variance tends to 0 as the sample grows, although every fit interpolates its noise;
    with faster decay it does not. Look at the two families in the figure.

    Args:
        sizes: numbers of samples, three or more.
        dimension: of the inputs, at least ten times the largest sample.
        designs: random designs of each size.
    """
    run.assumes(dimension >= 10 * max(sizes), f"{dimension} dimensions are not ten times {max(sizes)} samples")
    i = torch.arange(1, dimension + 1).double()
    families = {
        "1 / (i ln²(i+1))": 1 / (i * torch.log(i + 1).square()),
        "1 / i²": i**-2,
        "equal": torch.ones_like(i),
        "spikes and a flat rest": torch.where(i <= 5, 100.0, 0.01),
    }
    rows: list[tuple[str, int, int | None, float, float, float]] = []
    factors = []
    for name, spectrum in families.items():
        for m in run.track(sorted(sizes)):
            ranks = effective_ranks(spectrum, m)
            seen = torch.stack([_variance(run, spectrum, m) for _ in range(designs)]).mean()
            run.assumes(ranks is not None, f"{name} has no effective rank at m = {m} in {dimension} dimensions")
            assert ranks is not None
            rows.append((name, m, ranks.index, ranks.head, ranks.size, float(seen)))
            if ranks.head < 0.75:
                factors.append(float(seen) / ranks.size)
    m = max(sizes)
    tight, half_more = torch.ones(m + 3).double(), torch.ones(3 * m // 2).double()
    near = effective_ranks(half_more, m)
    if near is not None:  # half as many directions more than samples: nearly as few as c = 1 allows
        factors.append(float(torch.stack([_variance(run, half_more, m) for _ in range(designs)]).mean()) / near.size)
    # the hypothesis that fails: barely more directions than samples, so that c m is too small
    found = effective_ranks(tight, m)
    bad = float(torch.stack([_variance(run, tight, m) for _ in range(designs)]).mean())
    bad /= math.nan if found is None else found.size
    says = run.states(
        "A-81",
        r"\operatorname{tr}(\Sigma^+\mathbb E[XX^\top])\asymp\frac{k^*}m"
        r"+\frac{m\sum_{i>k^*}\lambda_i^2}{(\sum_{i>k^*}\lambda_i)^2}",
    )
    says.at_most(
        [abs(math.log(f)) for f in factors],
        math.log(5),
        where="logarithm of simulated over formula, at most a factor of 5, c = 1",
    )
    says.fails(f"{m + 3} equal directions for {m} samples", abs(math.log(bad)))
    d, m = dimension, min(sizes)
    equal = effective_ranks(torch.ones(d), m)
    run.states("A-81", r"\lambda_i=1,\ d\ge cm:\ k^*=0 \text{ and the formula is } m/d").equal(
        [-1.0, -1.0] if equal is None else [equal.index, equal.size],
        [0.0, m / d],
        1e-12,
        where=f"the exact mean is m / (d - m - 1) = {gaussian_variance_factor(m, d):.4g}",
    )
    few = effective_ranks(torch.ones(m // 2), m)
    says = run.states("A-81", r"\text{with fewer directions than } cm \text{ no } k \text{ qualifies}")
    says.equal(int(few is None), 1)
    says.fails("more directions than that", int(equal is None))
    growing = [10, 30, 100, 300]  # for larger samples these directions are no longer many
    k = torch.arange(1, 300_001).double()
    slow = [effective_ranks(1 / (k * torch.log(k + 1).square()), m) for m in growing]
    fast = [effective_ranks(k**-2, m) for m in growing]
    slow_sizes = [math.nan if r is None else r.size for r in slow]
    fast_sizes = [math.nan if r is None else r.size for r in fast]
    says = run.states("A-81", r"\lambda_i=1/(i\ln^2(i+1)):\ \text{the variance falls as } m \text{ grows}")
    says.below(
        [b / a for a, b in itertools.pairwise(slow_sizes)],
        1.0,
        where="300000 directions, m = 10 to 300, each value over the one before",
    )
    says.fails("λ_i = 1 / i²", [b / a for a, b in itertools.pairwise(fast_sizes)])
    run.table(
        "effective-ranks",
        ["eigenvalues", "m", "k*", "k*/m", "formula", "simulated variance"],
        rows,
        caption=f"Gaussian features in {dimension} dimensions, means over {designs} designs",
    )
    run.curves(
        "benign-and-not",
        sorted(sizes),
        {f"λ: {name}": [r[5] for r in rows if r[0] == name] for name in families},
        {f"λ: {name}": [r[4] for r in rows if r[0] == name] for name in families},
        axes=("samples m", "variance"),
        log="xy",
        beside=True,
        caption="Variance of the minimum-norm interpolator by sample size: simulated, and the formula (dashed).",
    )


def _variance(run: Run, spectrum: Tensor, m: int) -> Tensor:
    """tr(S^+ Λ) of one Gaussian design with covariance Λ, without the d x d matrix."""
    x = run.randn(m, len(spectrum)) * spectrum.sqrt()
    weighted = (x * spectrum) @ x.T
    gram = torch.linalg.cholesky(x @ x.T)
    return torch.trace(torch.cholesky_solve(torch.cholesky_solve(weighted, gram).T, gram))


def plot_limit(axes: Any, points: list[tuple[float, float]], spectra: tuple[Tensor, float]) -> None:
    left, right = axes[0]
    for part in (torch.linspace(0.02, 0.95, 200), torch.linspace(1.05, 4, 200)):
        ratios = part.tolist()
        left.plot(ratios, [asymptotic_variance(r) for r in ratios], color=COLORS[0],
                  label="limit" if ratios[0] < 1 else None)  # fmt: skip
    left.plot(*zip(*points, strict=True), "o", color=COLORS[1], label="random signs")
    left.axvline(1, color="0.5", linestyle=":", linewidth=1)
    left.set(xlabel="features per sample, κ", ylabel="variance", yscale="log")
    left.legend()
    values, ratio = spectra
    low, high = marchenko_pastur_support(ratio)
    right.hist(values.numpy(), bins=25, range=(0, high * 1.1), density=True, color=COLORS[5],
               label="eigenvalues")  # fmt: skip
    x = torch.linspace(low, high, 300).double()
    right.plot(x, marchenko_pastur_density(x, ratio), color=COLORS[1], label="density")
    right.set(xlabel="eigenvalue of Σ/m", ylabel="density")
    right.legend()


def plot_one_sample(axis: Any, values: list[float]) -> None:
    for first, last in ((10, 20), (30, 50)):
        axis.axvspan(first - 0.5, last + 0.5, color="0.9")
    axis.plot(range(1, len(values) + 1), values, color=COLORS[0])
    axis.set(xlabel="features d", ylabel="mean variance", ylim=(0, 1.05))
