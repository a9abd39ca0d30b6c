"""Bias and variance of least squares, exactly, and why the variance peaks where p = n."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.generalization.interpolation.bias_variance import (
    decompose_estimates,
    decompose_predictions,
    excess_risk,
    gaussian_bias_variance,
    gaussian_variance_factor,
)
from torchtheory.generalization.interpolation.minimum_norm import (
    design_bias_variance,
    minimum_norm_weights,
)
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.feedforward import dense
from torchtheory.neurons.regression import least_squares
from torchtheory.optimization.descent.iterates import gradient_descent
from torchtheory.training.losses.risks import empirical_risk, risk
from torchtheory.training.regularizers.shrinkage import early_stopping_factors


@lab(
    "bias-variance-of-least-squares",
    room="generalization",
    covers=["M-161", "M-163", "M-164", "M-165", "M-166", "M-167", "M-168"],
    title="The variance of least squares has a pole where the parameters equal the samples",
    errata=[
        "risk-decomposition-first-line",
        "design-matrix-transposed",
        "variance-is-not-the-bias",
    ],
    full={"trials": 300, "step": 1},
    least={"samples": 16, "trials": 20, "step": 1, "dimension": 16, "noise": 0.05},
    most={"noise": 2},
)
def bias_variance_of_least_squares(
    run: Run,
    samples: int = 32,
    dimension: int = 128,
    noise: float = 0.5,
    trials: int = 100,
    step: int = 8,
) -> None:
    """Least squares on `samples` points with more and more of `dimension` Gaussian features.

    First the identities: the excess risk of a linear model over the features of a network is a
    norm of the error of its weights, and its mean is bias plus variance for whatever estimator.
    Then the estimator: ordinary least squares, the exact variance on a given design and over
    Gaussian designs, and what gradient descent makes of it. Last the curves of bias and variance
    by number of parameters, simulated beside their exact values. Look at the pole of the variance
    at p = n, and at gradient descent stopped early, which does not have it.

    Args:
        noise: standard deviation of the targets' noise.
        trials: draws that bias and variance are averaged over.
        step: from one number of parameters to the next on the curve.
    """
    run.assumes(dimension >= 2 * samples, f"the curve ends before {2 * samples} features, twice the samples")
    norm_of_the_error(run)
    two_parts(run, trials)
    estimator(run)
    variance_of_least_squares(run, trials)
    curve = parameters_curve(run, samples, dimension, noise, trials, step)
    descent(run, samples)
    run.figure(
        "bias-variance-by-parameters",
        lambda axes: plot_curve(axes, curve, samples),
        caption="Bias and variance by the number p of features in use, exact (lines), and the "
        "excess risk of simulated fits (dots, medians). Right, the same fits by gradient descent "
        "that stops after 10 steps, and by ridge regression with the best penalty: no peak.",
        grid=(1, 2),
        size=(10.0, 3.8),
    )


def norm_of_the_error(run: Run) -> None:
    """R(w) - R* = |w - w*|^2 in the norm of the second moment, for features of a network."""
    network = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 6), nn.Tanh()).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(run.randn(*parameter.shape))
        phi = network(run.randn(200, 3))  # the law of x: one of 200 points, each equally likely
    planted, sigma = run.randn(6), 0.7
    moment = phi.T @ phi / len(phi)
    weights = planted + run.randn(20, 6)

    def risks(w: Tensor, noise: Tensor) -> Tensor:
        """Exact risks where the noise is one of the columns of `noise[200, k]`."""
        y = (phi @ planted)[:, None] + noise
        errors: Tensor = (phi @ w.T).T[:, :, None] - y
        return errors.square().mean((1, 2))

    fair = sigma * torch.tensor([1.0, -1.0]).double().expand(200, 2)
    tied = sigma * phi[:, :1].sign()  # of mean square sigma^2, and a function of x
    excess = excess_risk(weights, planted, moment)
    says = run.states(["M-161", "M-163"], r"R(w)-\sigma^2=(w-w_*)^\top\Sigma(w-w_*)")
    says.equal(
        risks(weights, fair) - sigma**2,
        excess,
        1e-12,
        where="features of a tanh network, and a law on 200 points, so that risks are sums",
    )
    says.fails("noise of the same size that depends on x", risks(weights, tied) - sigma**2)
    best = least_squares(phi.repeat(2, 1), (phi @ planted + fair.T).reshape(-1)).weight
    off = least_squares(phi, phi @ planted + tied[:, 0]).weight
    says = run.states(["M-161", "M-163"], r"R^*=\min_wR(w)=\sigma^2")
    says.equal(risks(best[None], fair), sigma**2, 1e-12)
    says.fails("noise that depends on x", risks(off[None], tied))
    population_risk(run, network, planted, sigma)
    x = run.randn(20_000, 6)
    w = planted + 0.5
    seen = (x @ (w - planted) - sigma * run.randn(len(x))).square() - sigma**2
    above = float(excess_risk(w, planted, torch.eye(6).double()))
    run.states("M-163", r"R(w)-\sigma^2=\|w-w_*\|_\Sigma^2").mean(
        seen,
        above,
        against=(above**0.5, above + sigma**2, 2 * above),  # no square, the risk itself, no one half
        confidence=0.999,
        where=f"Gaussian features, {len(x)} test points",
    )


def population_risk(run: Run, network: nn.Module, planted: Tensor, sigma: float) -> None:
    """Eq. (13.1) for whole modules: a linear model, and one on the features of a network."""
    x = run.randn(200, 3)  # the law of x: one of these points, each equally likely
    with torch.no_grad():
        kinds: list[tuple[str, nn.Module, Tensor]] = [
            (r"w^\top x", nn.Identity(), x),
            (r"w^\top\phi(x)", network, network(x)),
        ]
    for name, phi, features in kinds:
        truth = planted[: features.shape[1]]
        moment = features.T @ features / len(features)
        weights = [truth, *(truth + run.randn(4, len(truth)))]
        models = [nn.Sequential(phi, dense(w[None])) for w in weights]
        clean, tied = features @ truth, sigma * features[:, 0].sign()
        excess = [float(excess_risk(w, truth, moment)) for w in weights]

        def over_the_law(*targets: Tensor, models: list[nn.Sequential] = models) -> list[float]:
            """Risks where y is one of the targets of x, each equally likely: sums."""
            law = (x.repeat(len(targets), 1), torch.cat(targets)[:, None])
            return [empirical_risk(model, law, task="regression").value for model in models]

        says = run.states("M-161", rf"h_w(x)={name}:\ R(w)=\mathbb E(h_w(x)-y)^2=\sigma^2+\|w-w_*\|_\Sigma^2")
        says.equal(
            over_the_law(clean + sigma, clean - sigma),
            [sigma**2 + e for e in excess],
            1e-10,
            where="at w_* and four other weights; a law on 200 points with noise ±σ, so that risks are sums",
        )
        says.fails(
            "noise that depends on x", over_the_law(clean + tied)[1:], promised=[sigma**2 + e for e in excess[1:]]
        )
        bent = clean + features.square().sum(1)  # no linear function of the features
        best = least_squares(features, bent).weight
        least = over_the_law(bent, models=[nn.Sequential(phi, dense(best[None]))])[0]
        says = run.states("M-161", rf"h_w(x)={name}\text{{, any }}y:\ R(w)-R^*=\|w-\arg\min R\|_\Sigma^2")
        says.equal(
            [r - least for r in over_the_law(bent)],
            [float(excess_risk(w, best, moment)) for w in weights],
            1e-10,
            where=f"y is not linear in the features; R* = {least:.3g}",
        )
        says.fails(
            "the planted weights, which do not minimize this risk",
            [r - over_the_law(bent)[0] for r in over_the_law(bent)[1:]],
            promised=excess[1:],
        )

    away = run.randn(len(truth))
    away = away * (2 / (away @ moment @ away)).sqrt()  # weights whose excess risk is 2
    model, apart = nn.Sequential(phi, dense((truth + away)[None])), features @ away

    def drawn(n: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(0, len(x), (n,), generator=source)
        return x[chosen], (clean[chosen] + sigma * torch.randn(n, generator=source, dtype=torch.float64))[:, None]

    def against_it(n: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(0, len(x), (n,), generator=source)
        return x[chosen], (clean - sigma * apart.sign())[chosen][:, None]

    free, tied_draws = (
        [risk(model, law, 500, task="regression", generator=run.generator).value for _ in range(40)]
        for law in (drawn, against_it)
    )
    wanted = sigma**2 + 2
    says = run.states("M-161", r"\tfrac1m\textstyle\sum_i(h_w(x_i)-y_i)^2\text{ over fresh draws has the mean }R(w)")
    says.mean(
        free,
        wanted,
        against=(2, sigma**2, wanted / 2, wanted**0.5),  # no noise; no excess; ½(h - y)²; no square
        confidence=0.999,
        where="40 times 500 draws, on the network's features",
    )
    says.fails("noise of the same size that depends on x", tied_draws)


def two_parts(run: Run, trials: int) -> None:
    """Mean excess risk = bias + variance, for ridge regression and for a network."""
    n, p, ridge, sigma = 20, 10, 0.5, 1.0
    moment = torch.diag(torch.linspace(0.2, 2, p).double())
    planted = run.randn(p)
    many = 10 * trials
    phi = run.randn(many, n, p) * moment.diagonal().sqrt()
    y = phi @ planted + sigma * run.randn(many, n)
    gram = phi.mT @ phi + n * ridge * torch.eye(p).double()
    weights = torch.linalg.solve(gram, phi.mT @ y[..., None])[..., 0]
    parts = decompose_estimates(weights, planted, moment)
    excess = excess_risk(weights, planted, moment)
    says = run.states(
        "M-164",
        r"\mathbb E\|\bar w-w_*\|_\Sigma^2=\|\mathbb E\bar w-w_*\|_\Sigma^2"
        r"+\mathbb E\|\bar w-\mathbb E\bar w\|_\Sigma^2",
    )
    says.equal(parts.total, excess.mean(), 1e-12, where=f"ridge regression on {many} samples, expectations over these")
    says.fails(
        "the norm of another matrix in one of the two terms",
        parts.bias + decompose_estimates(weights, planted, torch.eye(p).double()).variance,
    )
    run.refutes(
        "risk-decomposition-first-line", r"\mathbb E[R(\bar w)-R^*]=\mathbb E\|\bar w-\mathbb E\bar w\|_\Sigma^2"
    ).equal(parts.variance, excess.mean(), 1e-2, where="ridge regression is biased")
    half = many // 2
    x = run.randn(half, 100, p) * moment.diagonal().sqrt()
    fresh = ((x @ (weights[:half] - planted)[..., None])[..., 0] - sigma * run.randn(half, 100)).square()
    seen = ((phi[:half] @ weights[:half, :, None])[..., 0] - y[:half]).square()
    second = weights[half:]
    other = decompose_estimates(second, planted, moment)
    # the parts are estimates too: what they differ by from one sample to the next is taken along
    drawn = sigma**2 + excess_risk(second, planted, moment) - other.total
    says = run.states("M-164", r"\mathbb E[R(\bar w)]-R^*=\text{bias}+\text{variance}")
    says.mean(
        fresh.mean(1) - drawn,
        other.total,
        against=torch.stack([other.bias, other.variance, other.total + sigma**2]),
        confidence=0.999,
        where=f"100 fresh test points for each of {half} samples, the parts from {half} others",
    )
    says.fails("tested on the sample that was fitted", seen.mean(1) - drawn)
    scores = run.randn(30, 50, 4) + run.randn(50, 4)
    target = torch.eye(4).double()[torch.arange(50) % 4]
    split = decompose_predictions(scores, target)
    says = run.states("M-164", r"\mathbb E\|f_S(x)-f_*(x)\|^2=\text{bias}+\text{variance, over all outputs}")
    says.equal(
        split.total, (scores - target).square().sum(2).mean(), 1e-12, where="score vectors against one-hot targets"
    )
    says.fails(
        "the bias of one output alone", decompose_predictions(scores[..., 0], target[:, 0]).bias + split.variance
    )


def estimator(run: Run) -> None:
    """Ordinary least squares in closed form."""
    n, p = 30, 8
    phi, y = run.randn(n, p), run.randn(n)
    mean = phi.T @ phi / n
    closed = torch.linalg.solve(mean, phi.T @ y) / n
    fit = least_squares(phi, y)
    says = run.states("M-165", r"\bar w=\tfrac1n\bar\Sigma^{-1}\Phi^\top y \text{ minimizes } \tfrac1n\|y-\Phi w\|^2")
    says.equal(fit.weight, closed, 1e-10)
    says.fails("a ridge in the inverse", torch.linalg.solve(mean + 0.1 * torch.eye(p).double(), phi.T @ y) / n)
    says = run.states("M-165", r"\Phi^\top(y-\Phi\bar w)=0")
    says.equal(phi.T @ (y - phi @ closed), within=1e-10)
    says.fails("weights off by 0.01", phi.T @ (y - phi @ (closed + 0.01)))
    wide, y = run.randn(6, 20), run.randn(6)
    least = minimum_norm_weights(wide, y)
    free = run.randn(50, 20) * torch.linspace(0.05, 1, 50).double()[:, None]
    others = least + free - (torch.linalg.pinv(wide) @ (wide @ free.T)).T  # they interpolate too
    says = run.states("M-165", r"p>n:\ \Phi^+y \text{ has the least norm of all } w \text{ with } \Phi w=y")
    says.at_least(others.norm(dim=1), least.norm(), where="50 other interpolators")
    ridges = torch.logspace(-1, 1, 20).double()[:, None, None] * torch.eye(6).double()
    shrunk = torch.linalg.solve(wide @ wide.T + ridges, y.expand(20, 6)) @ wide
    says.fails("ridge regression, which does not interpolate", shrunk.norm(dim=1))
    says = run.states("M-165", r"\Phi w=y\Rightarrow\|w\|^2=\|\Phi^+y\|^2+\|w-\Phi^+y\|^2")
    says.equal(least.square().sum() + (others - least).square().sum(1), others.square().sum(1), 1e-10)
    says.fails(
        "another interpolator in the place of the pseudo-inverse's",
        others[-1].square().sum() + (others - others[-1]).square().sum(1),
    )
    columns = phi.T  # the examples as columns, as the matrix is displayed
    run.refutes(
        "design-matrix-transposed", r"\bar\Sigma=\tfrac1n\Phi^\top\Phi \text{ is invertible for } p\le n"
    ).equal(
        int(torch.linalg.matrix_rank(columns.T @ columns / n)),
        n,
        where=f"with the examples as columns the product is {n} x {n} and of rank {p}",
    )


def variance_of_least_squares(run: Run, trials: int) -> None:
    """Theorem 81 on one design, and over Gaussian designs."""
    n, p, sigma = 24, 12, 0.8
    # condition numbers of a few hundred at most, so that rounding stays below the tolerance
    root = torch.linalg.qr(run.randn(p, p)).Q * torch.logspace(-0.5, 0.5, p).double()
    moment = root @ root.T
    phi = run.randn(n, p) @ root.T
    planted = run.randn(p)
    exact = design_bias_variance(phi, planted, moment, sigma**2)
    by_theorem = sigma**2 / n * torch.trace(moment @ torch.linalg.inv(phi.T @ phi / n))
    noise = sigma * run.randn(40 * trials, n)
    # noise of the same mean square over the samples, all of it where the features can see it
    tied = sigma * (n / p) ** 0.5 * run.randn(40 * trials, p) @ torch.linalg.qr(phi).Q.T

    def spread(noise: Tensor) -> Tensor:
        weights = planted + noise @ torch.linalg.pinv(phi).T
        return excess_risk(weights, planted, moment)

    free, correlated = spread(noise), spread(tied)
    says = run.states(
        "M-166",
        r"\mathbb E\|\bar w-\mathbb E\bar w\|_\Sigma^2=\tfrac{\sigma^2}n\operatorname{tr}(\Sigma\bar\Sigma^{-1})",
    )
    says.mean(
        free,
        by_theorem,
        against=(sigma**2 * p / n, float(by_theorem) * n / (n - p)),  # Σ = Σ̄; degrees of freedom for n
        confidence=0.999,
        where=f"one design, {len(free)} draws of the noise",
    )
    says.fails("noise of the same size that is correlated between samples", correlated)
    says = run.states(
        "M-166", r"\tfrac{\sigma^2}n\operatorname{tr}(\Sigma\bar\Sigma^{-1})=\sigma^2p/n \text{ for } \Sigma=\bar\Sigma"
    )
    says.equal(
        design_bias_variance(phi, planted, phi.T @ phi / n, sigma**2).variance,
        sigma**2 * p / n,
        1e-12,
        where="a fixed design: the test points are the training points",
    )
    says.fails("new test points", exact.variance)
    n, p, many = 24, 12, 10 * trials
    designs = run.randn(many, n, p)
    scales = torch.where(run.rand(many, n, 1) < 0.1, 9.1**0.5, 0.1**0.5)
    half = run.randn(p)
    # the same for any covariance: the trace does not see a change of coordinates
    traces = design_bias_variance(designs, half, torch.eye(p).double(), 1.0).variance
    heavy = design_bias_variance(designs * scales, half, torch.eye(p).double(), 1.0).variance
    says = run.states(
        "M-166",
        r"\tfrac{\sigma^2}n\mathbb E\operatorname{tr}(\Sigma\bar\Sigma^{-1})"
        r"=\sigma^2\tfrac p{n-p-1} \text{ for Gaussian features}",
    )
    says.mean(
        traces,
        gaussian_variance_factor(n, p),
        against=(p / (n - p), p / n),  # without the 1, and for a fixed design
        confidence=0.999,
        where=f"n = {n}, p = {p}, {many} designs",
    )
    says.fails("not Gaussian: a tenth of the rows is much longer, same covariance", heavy)
    mean = decompose_estimates(planted + noise @ torch.linalg.pinv(phi).T, planted, moment)
    run.refutes(
        "variance-is-not-the-bias",
        r"\|\mathbb E\bar w-w_*\|_\Sigma^2=\tfrac{\sigma^2}n\operatorname{tr}(\Sigma\bar\Sigma^{-1})",
    ).equal(
        mean.bias, by_theorem, 0.1, where="least squares has no bias: the left side is 0 but for the finite simulation"
    )


@dataclass(frozen=True)
class Curve:
    """Excess risks by number of parameters."""

    parameters: list[int]
    bias: list[float]
    variance: list[float]
    simulated: list[float]
    stopped: list[float]
    ridge: list[float]


def parameters_curve(run: Run, n: int, dimension: int, noise: float, trials: int, step: int) -> Curve:
    """Fits with the first p of the features, for every p."""
    beta = torch.full((dimension,), dimension**-0.5, dtype=torch.float64)
    x = run.randn(trials, n, dimension)
    y = x @ beta + noise * run.randn(trials, n)
    grid = sorted({1, *range(step, dimension + 1, step), n // 2, n, 2 * n, dimension})
    curve = Curve(grid, [], [], [], [], [])
    for p in run.track(grid):
        rest = float(beta[p:].square().sum())
        exact = gaussian_bias_variance(n, p, float(beta[:p].square().sum()), rest, noise**2)
        u, sizes, v = torch.linalg.svd(x[..., :p], full_matrices=False)
        seen = (u.mT @ y[..., None])[..., 0]

        def excess(factor: Tensor, seen: Tensor = seen, v: Tensor = v, rest: float = rest) -> Tensor:
            weights = ((factor * seen)[:, None] @ v)[:, 0]
            return (weights - beta[: v.shape[-1]]).square().sum(1) + rest

        fitted = excess(1 / sizes)
        hessian = 2 * sizes.square() / n
        rate = 1 / float(hessian.max())
        stopped = excess(early_stopping_factors(hessian, rate, 10) / sizes)
        curve.bias.append(float(exact.bias))
        curve.variance.append(float(exact.variance))
        curve.simulated.append(float(fitted.median()))
        curve.stopped.append(float(stopped.median()))
        # noise and hidden features over the variance of a weight: the best penalty there is
        penalty = (noise**2 + rest) * dimension
        curve.ridge.append(float(excess(sizes / (sizes.square() + penalty)).median()))
    closed_form(run, beta, n, n // 2, noise, 60 * trials)
    for p in (2 * n, dimension):
        closed_form(run, beta, n, p, noise, 6 * trials)
    highest = max(range(len(grid)), key=lambda i: curve.simulated[i])
    says = run.states("M-167", r"\text{the excess risk is largest at } p=n")
    says.equal(grid[highest], n, 2 / n, where="medians over the samples (the mean is infinite there), to within 2")
    says.fails(
        "ridge regression with the best penalty, for which a further feature only helps",
        grid[max(range(len(grid)), key=lambda i: curve.ridge[i])],
    )
    rows = list(zip(grid, curve.bias, curve.variance, curve.simulated, curve.stopped, strict=True))
    run.table(
        "parameters",
        ["p", "bias", "variance", "median excess risk", "stopped after 10 steps"],
        rows[:: max(1, len(rows) // 20)],
        caption=f"Minimum-norm regression on {n} samples with p of {dimension} features",
    )
    return curve


def closed_form(run: Run, beta: Tensor, n: int, p: int, noise: float, trials: int) -> None:
    """Bias, variance and mean weights of the fit with the first p features, over fresh samples."""
    kept, rest = beta[:p], float(beta[p:].square().sum())
    exact = gaussian_bias_variance(n, p, float(kept.square().sum()), rest, noise**2)
    x = run.randn(trials, n, p)
    # what is left of the features is noise: independent of those in use, and normal
    y = x @ kept + (noise**2 + rest) ** 0.5 * run.randn(trials, n)
    longest = 1 / torch.linalg.matrix_norm(x, 2)[:, None].square()
    weights, stopped = minimum_norm_weights(x, y), torch.zeros(trials, p).double()
    for _ in range(3):
        stopped += longest * ((y - (x @ stopped[..., None])[..., 0])[:, None] @ x)[:, 0]

    def excess(weights: Tensor) -> Tensor:
        return (weights - kept).square().sum(1) + rest

    # the bias or the variance forgotten; the noise without the hidden features; below n also the
    # limit, p / (n - p) for p / (n - p - 1)
    factor, alone = gaussian_variance_factor(n, p), (noise**2 + rest) / (n - p)
    against = [exact.bias, exact.variance, *([exact.total - rest * factor] if rest else [])]
    against += [exact.total - alone * factor] if p < n else []
    says = run.states("M-167", rf"p={p}:\ \mathbb E\,R-R^*=\text{{bias}}+\text{{variance, in closed form}}")
    says.mean(
        excess(weights),
        exact.total,
        against=[float(v) for v in against],
        confidence=0.999,
        where=f"n = {n}, {trials} samples",
    )
    says.fails("gradient descent stopped early, not the minimum-norm fit", excess(stopped))
    shown = min(1.0, n / p)
    says = run.states("M-167", rf"p={p}:\ \mathbb E\bar w=\min(1,n/p)\,\beta_{{\le p}}")
    says.mean(
        weights @ kept / kept.square().sum(),
        shown,
        against=(0.8 * shown, 1.2 * shown),
        confidence=0.999,
        where=f"the part of the mean weights along β, {trials} samples",
    )
    says.fails("gradient descent stopped early, not the minimum-norm fit", stopped @ kept / kept.square().sum())


def descent(run: Run, n: int) -> None:
    """Gradient descent reaches the least-squares fit, in time proportional to the condition."""
    p = n // 2
    phi, y = run.randn(n, p), run.randn(n)
    target = least_squares(phi, y).weight
    hessian = 2 * phi.T @ phi / n
    values, vectors = torch.linalg.eigh(hessian)
    top, condition = float(values[-1]), float(values[-1] / values[0])
    steps = 400

    def loss(w: Tensor) -> Tensor:
        return (y - w @ phi.T).square().mean(-1)

    rate = 1 / top
    path = gradient_descent(loss, torch.zeros(p).double(), rate, steps).points
    wild = gradient_descent(loss, torch.zeros(p).double(), 2.1 / top, steps).points
    times = torch.arange(steps + 1).double()
    bound = (1 - 1 / condition) ** times * target.norm()
    says = run.states("M-168", r"\|w_t-\bar w\|\le(1-1/\kappa)^t\|\bar w\| \text{ for } \eta=1/\lambda_{\max}")
    says.at_most(
        (path - target).norm(dim=1),
        bound,
        1e-12,
        where=f"condition number {condition:.1f}; the Hessian is twice the second moment",
    )
    says.fails("a step of 2.1 / λ_max", (wild - target).norm(dim=1))
    filtered = vectors @ (early_stopping_factors(values, rate, 50) * (vectors.T @ target))
    says = run.states("M-168", r"w_t=\sum_j\bigl(1-(1-\eta\lambda_j)^t\bigr)v_jv_j^\top\bar w")
    says.equal(path[50], filtered, 1e-10)
    says.fails("one step more", path[51])
    conditions = torch.logspace(1, 4, 7).double()
    orthogonal = torch.linalg.qr(run.randn(n, p)).Q
    needed: list[float] = []
    ridged: list[float] = []
    for kappa in conditions:
        spectrum = torch.logspace(0, 0.5, p).double() ** (2 * torch.log10(kappa) / 1.0)
        spectrum = spectrum / spectrum.max()
        for extra, found in ((0.0, needed), (0.05, ridged)):
            shape = orthogonal * (spectrum + extra).sqrt() * (n / 2) ** 0.5
            eigenvalues = torch.linalg.eigvalsh(2 * shape.T @ shape / n)
            found.append(_steps_to(eigenvalues, 1e-6))
    says = run.states("M-168", r"\text{steps to } \|w_t-\bar w\|\le10^{-6}\|\bar w\| \text{ grow as } \kappa")
    says.slope(conditions, needed, 1.0, 0.05, against=(0.5, 2.0))  # accelerated; squared
    says.fails("a ridge of 0.05 keeps the condition bounded", conditions, ridged)


def _steps_to(eigenvalues: Tensor, accuracy: float) -> float:
    """Steps after which the slowest direction has shrunk to `accuracy`, by doubling."""
    rate = 1 / float(eigenvalues.max())
    low, high = 0.0, 1.0
    while float(1 - early_stopping_factors(eigenvalues, rate, high).min()) > accuracy:
        low, high = high, 2 * high
    while high - low > 1:
        middle = float(int((low + high) / 2))
        missing = float(1 - early_stopping_factors(eigenvalues, rate, middle).min())
        low, high = (middle, high) if missing > accuracy else (low, middle)
    return high


def plot_curve(axes: Any, curve: Curve, n: int) -> None:
    left, right = axes[0]
    p = curve.parameters
    left.plot(p, curve.bias, color=COLORS[0], label="bias")
    finite = [v if v < float("inf") else float("nan") for v in curve.variance]
    left.plot(p, finite, color=COLORS[1], label="variance")
    left.plot(p, curve.simulated, "o", markersize=3, color=COLORS[6], label="simulated excess")
    right.plot(p, curve.simulated, color=COLORS[6], label="least squares")
    right.plot(p, curve.stopped, color=COLORS[2], label="10 steps of gradient descent")
    right.plot(p, curve.ridge, color=COLORS[4], label="best ridge")
    for axis in (left, right):
        axis.axvline(n, color="0.5", linestyle=":", linewidth=1)
        axis.set(xlabel="parameters p", yscale="log", ylabel="excess risk")
        axis.legend(loc="upper right")
    left.set_title("Bias and variance (dotted: p = n)")
    right.set_title("Regularization removes the peak")
