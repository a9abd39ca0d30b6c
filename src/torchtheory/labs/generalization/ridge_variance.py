"""Bias and variance of ridge regression, and the peak at p = n that a penalty removes."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.generalization.interpolation.minimum_norm import ridge_bias_variance
from torchtheory.kernels.learning.functions import polynomial, quadratic_features
from torchtheory.kernels.learning.regression import kernel_least_squares
from torchtheory.labs.engine import Run, lab


@lab(
    "ridge-bias-variance",
    room="generalization",
    covers=["M-167", "M-169"],
    title="Ridge regression: bias and variance in closed form, and no peak where p = n",
    full={"trials": 20_000, "designs": 2000},
    least={"trials": 500, "designs": 30},
)
def ridge(run: Run, trials: int = 2000, designs: int = 400) -> None:
    """Least squares with a penalty, at the points of its own design and with the features of a kernel.

    Noise is drawn anew many times over one design and the two parts are compared with their formulas;
    without a penalty the variance is the share of parameters in the samples. Then designs with more
    and more Gaussian features: the smallest eigenvalue that is not 0 collapses where the features are
    as many as the samples, and a small penalty keeps the matrix well conditioned. Look at the peak.

    Args:
        trials: draws of the noise against the closed form.
        designs: random designs.
    """
    closed_form(run, trials)
    conditioning(run, designs)


def closed_form(run: Run, trials: int) -> None:
    n, penalty, noise = 30, 0.3, 0.7
    x = run.randn(n, 2)
    phi = quadratic_features(x)
    planted = run.randn(phi.shape[1])
    parts = ridge_bias_variance(phi, planted, noise**2, penalty)
    plain = ridge_bias_variance(phi, planted, noise**2, 0.0)
    draws = noise * run.randn(trials, n)

    def fits(targets: Tensor) -> Tensor:
        """The user's kernel ridge regression, its values at the design, `[trials, n]`."""
        return kernel_least_squares(polynomial(2), x, targets.T, ridge=n * penalty).predict(x).T

    values = fits(phi @ planted + draws)
    missed = values - phi @ planted
    middle = missed.mean(0)
    says = run.states(
        "M-169", r"\mathbb E\|\hat w-w^*\|_{\hat\Sigma}^2=\lambda^2w^{*\top}(\hat\Sigma+\lambda)^{-2}\hat\Sigma w^*"
        r"+\tfrac{\sigma^2}n\operatorname{tr}[\hat\Sigma^2(\hat\Sigma+\lambda)^{-2}]"
    )  # fmt: skip
    total, bias, variance = float(parts.total), float(parts.bias), float(parts.variance)
    says.mean(
        missed.square().mean(1),
        total,
        against=(bias, variance, bias + 2 * variance, 2 * bias + variance),
        confidence=0.9999,
        where=f"kernel ridge regression at its own {n} points, {trials} draws of the noise",
    )
    dependent = noise * run.randn(trials, 1).expand(-1, n)
    says.fails("noise that all samples share", (fits(phi @ planted + dependent) - phi @ planted).square().mean(1))
    says = run.states(
        "M-169", r"\text{variance alone: } \tfrac{\sigma^2}n\operatorname{tr}[\hat\Sigma^2(\hat\Sigma+\lambda)^{-2}]"
    )
    # the mean of the draws itself varies: unbiased with trials - 1
    spread = (missed - middle).square().mean(1) * trials / (trials - 1)
    says.mean(spread, variance, against=(variance / 2, 2 * variance, float(plain.variance)), confidence=0.9999)
    says.fails("noise of unequal size in the samples", ((fits(draws * torch.linspace(0, 3, n))).square().mean(1)))
    says = run.states("M-167", r"\lambda\to0:\ \text{variance}\to\sigma^2p/n")
    small = [float(ridge_bias_variance(phi, planted, noise**2, t).variance) for t in (1e-9, 0.0)]
    says.equal(small, noise**2 * phi.shape[1] / n, 1e-6)
    says.fails("a penalty that stays", [variance, variance])


def conditioning(run: Run, designs: int) -> None:
    n, penalty = 24, 0.1
    sizes = [4, 8, 12, 16, 20, 24, 28, 32, 40, 56, 80]

    def condition(samples: int, p: int, ridge: float) -> Tensor:
        """Largest over smallest eigenvalue that is not 0, of every design."""
        values = torch.linalg.svdvals(run.randn(designs, samples, p)).square() / samples + ridge
        ratios: Tensor = values.amax(1) / values.amin(1)
        return ratios

    growing = [6, 12, 24, 48, 96]
    each = torch.tensor(growing).repeat_interleave(designs)
    says = run.states("M-167", r"p=n:\ \kappa(\hat\Sigma)\sim n^2 \text{ on the spectrum that is not } 0")
    says.slope(
        each,
        torch.cat([condition(m, m, 0.0) for m in growing]),
        2.0,
        0.1,
        against=(0.0, 1.0),
        confidence=0.9999,
        where="all designs; the smallest singular value of a square Gaussian matrix is of order 1/√n, and the largest "
        "one reaches its limit at the rate $n^{-2/3}$, so that these sizes show the exponent up to a tenth",
    )
    says.fails("twice as many features as samples", each, torch.cat([condition(m, 2 * m, 0.0) for m in growing]))
    says = run.states("M-167", r"p=n \text{ with a penalty } \lambda:\ \kappa \text{ does not grow}")
    says.slope(
        each, torch.cat([condition(m, m, penalty) for m in growing]), 0.0, 0.2, against=(0.5, 2.0), confidence=0.9999
    )
    says.fails("no penalty", each, torch.cat([condition(m, m, 0.0) for m in growing]))
    run.curves(
        "condition",
        sizes,
        {
            "no penalty": [float(condition(n, p, 0.0).median()) for p in sizes],
            f"penalty {penalty}": [float(condition(n, p, penalty).median()) for p in sizes],
        },
        axes=("features p", "condition number"),
        log="y",
        at={"p = n": float(n)},
        caption=f"Median condition number of {designs} Gaussian designs with {n} samples, without zeros.",
    )
