"""The test error comes down again beyond the interpolation threshold."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.data.real import digits
from torchtheory.generalization.interpolation.double_descent import (
    RiskCurve,
    effective_complexity,
    feature_curve,
    width_curve,
)
from torchtheory.labs.engine import COLORS, Run, lab, mean_interval


@lab(
    "double-descent",
    room="generalization",
    covers=["M-162", "A-78"],
    title="The test risk peaks where features equal samples, and falls again",
    full={"samples": 100, "trials": 40, "largest": 2000},
    least={"samples": 20, "trials": 20, "largest": 200},
)
def double_descent(run: Run, samples: int = 40, trials: int = 40, largest: int = 800) -> None:
    r"""Regression on random ReLU features, from a handful to many times the sample.

    The fit is the one of least norm. Below the threshold the test risk is the classical U; at as
    many features as samples the training risk reaches 0 and the test risk its peak; beyond, it
    falls, here below the bottom of the U. With a ridge there is no peak. Then the effective
    complexity of an algorithm, the largest sample it still fits: for least squares with noisy
    labels it is the number of features, and with clean linear labels it has no limit. Look at the
    two curves of the figure.

    Theorem:
        Let $p$ features be fitted to $n$ samples by least squares, with the weights of least norm where
        several fit equally well.
        *Independent*: the features are Gaussian and independent.
        *Noise*: the labels have independent noise of variance $\sigma^2>0$.
        Then the training risk is 0 from $p=n$ on, and the noise costs the test risk
        $\sigma^2p/(n-p-1)$ for $p<n-1$ and $\sigma^2n/(p-n-1)$ for $p>n+1$: it grows without bound
        towards $p=n$ and falls beyond.

    Symbols:
        $n$: samples in a training set.
        $p$: features that are fitted.
        $S$: a training set, of $m$ samples where its size varies.
        $\mathcal A(S)$: what the algorithm makes of the set.
        $\hat R_S$: the mean loss on the set, the training risk.
        $\varepsilon$: a training risk that counts as none.
        $d$: features of the model whose effective complexity is measured.

    Idea:
        The fitted weights are the pseudo-inverse of the feature matrix times the labels, so noise is
        divided by its singular values. A random $n\times p$ matrix has tiny ones just where it is square:
        there the labels are fitted at any price. With more features the least norm spreads the same
        fit over all of them, the singular values move away from 0, and the price falls. A ridge forbids the price.

    Try:
        samples=80: the peak moves with the samples, to 80 features.
        trials=20: fewer sets, and a rougher curve; its peak stays where it is.
        largest=3200: the right end falls further below the bottom of the U.

    Exercise:
        One sample `x` = (1, 1) has the label 2. Find the weights `w` of least norm that
        fit it, and say what happens to their norm when a third feature of size 0.1 joins.
        check: torch.allclose(w, torch.ones(2))
        answer: w = torch.linalg.pinv(torch.ones(1, 2)) @ torch.tensor([2.0])

    Args:
        samples: of a training set: the risk peaks at as many features.
        trials: random features and training sets that the risk is averaged over.
        largest: most features, at least ten times the samples.
    """
    run.assumes(
        largest >= 10 * samples,
        f"{largest} features are not ten times the {samples} samples, by which the risk falls again",
    )
    n, d, tests = samples, 8, 400
    teacher = run.randn(d)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        x = run.randn(trials, count, d)
        return x, torch.tanh(x @ teacher)

    (x, y), (x_test, y_test) = draw(n), draw(tests)
    y = y + 0.2 * run.randn(trials, n)
    weights = run.randn(trials, d + 1, largest) / (d + 1) ** 0.5

    def features(x: Tensor) -> Tensor:
        constant = x.new_ones(*x.shape[:-1], 1)
        hidden: Tensor = torch.cat([x, constant], -1) @ weights
        return hidden.relu() / math.sqrt(largest)

    shares = (0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0, 1.15, 1.3, 1.6, 2.0, 3.0, 5.0, 10.0)
    sizes = sorted({max(1, round(s * n)) for s in shares} | {largest})
    train, test = (features(x), y), (features(x_test), y_test)
    plain = feature_curve(train, test, sizes)
    smooth = feature_curve(train, test, sizes, ridge=1e-3)
    beyond = [i for i, p in enumerate(sizes) if p >= 1.1 * n]
    ids = ["M-162", "A-78"]
    says = run.states(ids, r"\text{the training risk is } 0 \text{ for } p>n")
    says.equal(
        plain.train[beyond], within=1e-12, where=f"{trials} samples of {n}, p from {sizes[beyond[0]]} to {largest}"
    )
    says.fails("fewer features than samples", plain.train[[p < n for p in sizes]])
    says = run.states(ids, r"\text{the test risk is largest at } p=n")
    says.equal(plain.peak, n, 0.16, where="the median over the samples, to one step of the grid")
    says.fails("with a ridge of 0.001", smooth.peak)
    middle = plain.test.median(1).values
    top = plain.test[sizes.index(n)]
    gain = top.log() - plain.test[-1].log()
    smooth_gain = smooth.test[sizes.index(n)].log() - smooth.test[-1].log()
    says = run.states(ids, r"\text{the test risk at } p\gg n \text{ is below a tenth of the peak}")
    says.at_least(mean_interval(gain), 2.302585092994046, where="the mean logarithm of their ratio")
    says.fails("with a ridge of 0.001 there is no peak to come down from", mean_interval(smooth_gain))
    under = [i for i, p in enumerate(sizes) if p < n]
    best = min(under, key=lambda i: float(middle[i]))
    bottom = plain.test[best].log()
    wide, near = plain.test[-1].log() - bottom, plain.test[beyond[0]].log() - bottom
    says = run.states(ids, r"\text{here the risk at } p\gg n \text{ is below the bottom of the U}")
    says.at_most(
        mean_interval(wide),
        0.0,
        where=f"the bottom is at p = {sizes[best]}, the other end at p = {largest}; mean logarithm of their ratio",
    )
    says.fails(f"just beyond the threshold, p = {sizes[beyond[0]]}", mean_interval(near))
    complexity(run)
    run.table(
        "risks",
        ["features", "training risk", "test risk", "test risk with ridge"],
        [(p, plain.train[i].median(), middle[i], smooth.test[i].median()) for i, p in enumerate(sizes)],
        caption=f"Medians over {trials} samples of {n}",
    )
    run.figure(
        "double-descent-curve",
        lambda axis: plot_risks(axis, plain, smooth, n),
        caption="Training risk (dashed) and test risk (solid) by number of random features, "
        "medians and middle halves. The dotted line is p = n.",
        size=(6.4, 3.8),
    )


def complexity(run: Run) -> None:
    """The largest sample that least squares fits is its number of features."""
    found, clean = [], []
    for d in (3, 7, 12):
        planted = run.randn(d)

        def risk(m: int, noise: float, planted: Tensor = planted) -> float:
            phi = run.randn(20, m, len(planted))
            y = phi @ planted + noise * run.randn(20, m)
            curve = feature_curve((phi, y), (phi, y), [len(planted)])
            return float(curve.train.mean())

        found.append(effective_complexity(lambda m: risk(m, 1.0), range(1, 31), 1e-3) or 0)
        clean.append(effective_complexity(lambda m: risk(m, 0.0), range(1, 31), 1e-3) or 0)
    says = run.states(
        "A-78",
        r"\max\{m:\mathbb E\hat R_S(\mathcal A(S))\le\varepsilon\}=d"
        r" \text{ for least squares with } d \text{ features}",
    )
    says.equal(found, [3, 7, 12], where="noisy labels, samples of 1 to 30, 20 each, ε = 0.001")
    says.fails("labels without noise, which are fitted at every size", clean)


@lab(
    "width-and-test-error",
    room="generalization",
    covers=["M-119", "A-78"],
    title="Wider networks fit noisy labels and still predict better",
    full={
        "samples": 1000,
        "widths": (
            *(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20),
            *(24, 28, 32, 40, 48, 64, 96, 128, 192, 256),
        ),
        "seeds": 10,
        "epochs": 300,
    },
    least={"seeds": 2, "samples": 50, "label_noise": 0, "epochs": 1, "widths": 1},
    most={"samples": 1500, "label_noise": 0.9},
    items={"widths": 3},
)
def width_and_test_error(
    run: Run,
    samples: int = 200,
    widths: tuple[int, ...] = (1, 3, 6, 10, 16, 32, 64),
    seeds: int = 6,
    epochs: int = 120,
    label_noise: float = 0.15,
) -> None:
    """Networks with one hidden layer on digits, a share of whose training labels is wrong.

    Every width and every seed is trained, all of them as one batched training, without weight
    decay or early stopping. From some width on the networks reproduce the training labels, wrong
    ones included; the test error of much wider ones is no larger than at that width. Look at where
    the training error reaches 0, and at what the test error does from there on.

    Args:
        samples: digits that are trained on, 50 to 1500.
        widths: hidden units of the networks, three numbers or more.
        seeds: trainings of each width.
        epochs: of a training.
        label_noise: share of the training labels that are replaced at random.
    """
    widths = tuple(sorted(widths))
    x, y = digits()
    order = torch.randperm(len(x), generator=run.generator)
    train = (x[order[:samples]], y[order[:samples]])
    test = (x[order[samples:]], y[order[samples:]])
    curve = width_curve(
        train,
        test,
        widths,
        seeds=range(seeds),
        label_noise=label_noise,
        epochs=epochs,
        learning_rate=0.01,
    )
    fitted = curve.first_below(0.01)
    run.assumes(fitted is not None, f"no width up to {widths[-1]} fits the training labels in {epochs} epochs")
    assert fitted is not None
    at = widths.index(fitted)
    says = run.states(["M-119", "A-78"], r"\text{the training error of wide networks is } 0")
    says.at_most(
        curve.train[-1], 0.0, 0.01, where=f"width {widths[-1]}, {seeds} seeds, {label_noise:.0%} of the labels wrong"
    )
    says.fails(f"width {widths[0]}", curve.train[0])
    difference = curve.test[-1] - curve.test[at]
    narrow = curve.test[0] - curve.test[at]
    says = run.states(
        ["M-119", "A-78"], r"\text{test error at the largest width} \le \text{test error where the labels are fitted}"
    )
    says.at_most(mean_interval(difference), 0.0, where=f"the labels are fitted from width {fitted} on")
    says.fails(f"width {widths[0]}, which underfits, in the place of the largest", mean_interval(narrow))
    run.table(
        "widths",
        ["width", "parameters", "training error", "test error", "least", "largest"],
        [
            (w, 75 * w + 10, curve.train[i].mean(), curve.test[i].mean(), curve.test[i].min(),
             curve.test[i].max())
            for i, w in enumerate(widths)
        ],
        caption=f"{samples} digits, {seeds} seeds, {epochs} epochs of Adam",
    )  # fmt: skip
    run.figure(
        "error-by-width",
        lambda axis: plot_widths(axis, curve, fitted),
        caption="Training error (dashed) and test error (solid) by width, means over the seeds and "
        "their range. From the dotted line on the training labels are fitted.",
        size=(6.4, 3.8),
    )


@lab(
    "polynomial-regression",
    room="generalization",
    covers=["A-50"],
    title="A cubic through noise: too few, enough, and too many powers",
    errata=["interpolation-threshold-of-polynomials"],
    full={"repetitions": 500},
    least={"repetitions": 10, "samples": 10},
)
def polynomial_regression(run: Run, repetitions: int = 100, samples: int = 20) -> None:
    """Polynomials of degree 1 to 40 through noisy values of a cubic.

    The training error falls with the degree and vanishes once there are as many powers as points;
    the test error has its bottom at degree 3 and explodes. A small ridge keeps it flat. Powers on
    [-1/2, 1/2] are nearly dependent: in double precision what happens beyond degree 20 is decided
    by the singular values that count as 0, here those below max(m, p) ε σ₁. Where interpolation
    sets in is found with Legendre polynomials, which span the same space. Look at the semi-log
    panel on the left.

    Args:
        repetitions: draws of the noise.
        samples: of the cubic with noise.
    """
    degrees = list(range(1, 41))
    noise = 0.1

    def cubic(z: Tensor) -> Tensor:
        return 8 * z**3 - z - 0.2

    z, z_test = run.rand(repetitions, samples) - 0.5, run.rand(repetitions, 1000) - 0.5
    y = cubic(z) + noise * run.randn(repetitions, samples)
    y_test = cubic(z_test) + noise * run.randn(repetitions, 1000)

    def powers(z: Tensor) -> Tensor:
        return z[..., None] ** torch.arange(41).double()

    train, test = (powers(z), y), (powers(z_test), y_test)
    sizes = [d + 1 for d in degrees]
    plain = feature_curve(train, test, sizes)
    smooth = feature_curve(train, test, sizes, ridge=1e-3)
    risk, flat = plain.test.median(1).values, smooth.test.median(1).values
    sweet = degrees[int(risk.argmin())]
    quintic = cubic(z) + 60 * z**5
    bent = feature_curve((train[0], quintic), (test[0], cubic(z_test) + 60 * z_test**5), sizes)
    says = run.states("A-50", r"\text{the test error is least at degree } 3")
    says.equal(sweet, 3, where=f"medians over {repetitions} samples of {samples}")
    says.fails("a quintic without noise in the place of the cubic", degrees[int(bent.test.median(1).values.argmin())])
    late = [i for i, d in enumerate(degrees) if d >= samples - 2]
    says = run.states("A-50", r"\text{near interpolation the test error exceeds a hundred times its least value}")
    says.at_least(risk[late].max(), 100 * risk.min(), loose="the source says that it explodes, and not how far")
    says.fails("with a ridge of 0.001", flat[late].max())
    says = run.states(
        "A-50", r"\text{with a ridge the test error stays within twice its least value from degree } 3 \text{ on}"
    )
    says.at_most(flat[2:], 2 * flat.min())
    says.fails("without it", risk[2:])
    legendre = _legendre(2 * z, 41)
    better = feature_curve((legendre, y), (_legendre(2 * z_test, 41), y_test), sizes)
    level = 1e-12
    threshold = better.first_below(level)
    says = run.states(
        "A-50", r"m \text{ points are interpolated from degree } m-1 \text{ on, with } m \text{ features}"
    )
    says.equal(
        -1 if threshold is None else threshold - 1,
        samples - 1,
        where="Legendre polynomials; median training error below 1e-12",
    )
    says.fails("one sample more", (_threshold(run, samples + 1, level) or 0) - 1)
    run.refutes(
        "interpolation-threshold-of-polynomials", r"\text{the interpolation threshold is at degree } d=m"
    ).equal(-1 if threshold is None else threshold - 1, samples, where="there are d + 1 powers")
    run.table(
        "degrees",
        ["degree", "training error", "test error", "training error, ridge", "test error, ridge"],
        [
            (d, plain.train[i].median(), risk[i], smooth.train[i].median(), flat[i])
            for i, d in enumerate(degrees)
            if d <= 5 or d % 5 == 0 or d in (18, 19, 21)
        ],
        caption="Medians; singular values below max(m, p) ε σ₁ count as 0",
    )
    run.figure(
        "polynomials",
        lambda axes: plot_polynomials(axes, plain, smooth, (z[0], y[0]), cubic, powers),
        caption="Training (dashed) and test error by degree, medians and middle halves, without "
        "and with a ridge of 0.001; right, fits to one sample.",
        grid=(1, 3),
        size=(13.0, 3.6),
    )


def _legendre(t: Tensor, count: int) -> Tensor:
    """The first `count` Legendre polynomials at `t`, by their recurrence."""
    rows = [torch.ones_like(t), t]
    for k in range(1, count - 1):
        rows.append(((2 * k + 1) * t * rows[k] - k * rows[k - 1]) / (k + 1))
    return torch.stack(rows, -1)


def _threshold(run: Run, samples: int, level: float) -> int | None:
    z = 2 * run.rand(10, samples) - 1
    y = run.randn(10, samples)
    features = _legendre(z, samples + 5)
    sizes = list(range(2, samples + 5))
    return feature_curve((features, y), (features, y), sizes).first_below(level)


def _band(axis: Any, x: list[int], values: Tensor, color: str, label: str, style: str) -> None:
    low, middle, high = values.quantile(torch.tensor([0.25, 0.5, 0.75]).to(values), dim=1)
    axis.plot(x, middle, style, color=color, label=label)
    axis.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)


def plot_risks(axis: Any, plain: RiskCurve, smooth: RiskCurve, n: int) -> None:
    x = list(plain.sizes)
    _band(axis, x, plain.test, COLORS[0], "test", "-")
    _band(axis, x, plain.train.clamp_min(1e-6), COLORS[0], "training", "--")
    _band(axis, x, smooth.test, COLORS[1], "test, with a ridge", "-")
    axis.axvline(n, color="0.5", linestyle=":", linewidth=1)
    axis.set(xscale="log", yscale="log", xlabel="random features p", ylabel="risk",
             ylim=(1e-4, None))  # fmt: skip
    axis.legend()


def plot_widths(axis: Any, curve: RiskCurve, fitted: int) -> None:
    x = list(curve.sizes)
    for values, style, label in ((curve.test, "-", "test"), (curve.train, "--", "training")):
        axis.plot(x, values.mean(1), style, marker="o", markersize=3, color=COLORS[0], label=label)
        axis.fill_between(x, values.amin(1), values.amax(1), color=COLORS[0], alpha=0.15,
                          linewidth=0)  # fmt: skip
    axis.axvline(fitted, color="0.5", linestyle=":", linewidth=1)
    axis.set(xscale="log", xlabel="hidden units", ylabel="share of errors", ylim=(0, None))
    axis.legend()


def plot_polynomials(
    axes: Any, plain: RiskCurve, smooth: RiskCurve, sample: tuple[Tensor, Tensor], cubic: Any,
    powers: Any,
) -> None:  # fmt: skip
    for axis, curve, title in (
        (axes[0, 0], plain, "least squares"),
        (axes[0, 1], smooth, "ridge 0.001"),
    ):
        x = [p - 1 for p in curve.sizes]
        _band(axis, x, curve.test, COLORS[1], "test", "-")
        _band(axis, x, curve.train.clamp_min(1e-8), COLORS[0], "training", "--")
        axis.set(yscale="log", xlabel="degree", ylabel="mean squared error", title=title)
        axis.legend()
    axis, (z, y) = axes[0, 2], sample
    t = torch.linspace(-0.5, 0.5, 300).double()
    axis.plot(t, cubic(t), color="0.6", linewidth=3, label="cubic")
    axis.plot(z, y, "o", color=COLORS[6], markersize=3)
    for degree, color in ((1, COLORS[0]), (3, COLORS[2]), (15, COLORS[1])):
        phi, at = powers(z)[:, : degree + 1], powers(t)[:, : degree + 1]
        axis.plot(t, at @ (torch.linalg.pinv(phi) @ y), color=color, label=f"degree {degree}")
    spread = float(y.max() - y.min())
    axis.set(xlabel="z", ylabel="y", title="fits to one sample",
             ylim=(float(y.min()) - 0.4 * spread, float(y.max()) + 0.4 * spread))  # fmt: skip
    axis.legend()
