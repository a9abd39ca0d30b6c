"""Random functions: what a kernel says about the draws of a Gaussian process."""

from __future__ import annotations

import math
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from torchtheory.kernels.learning.functions import Kernel, gaussian, laplace, matern, squared_distances
from torchtheory.kernels.learning.gaussian_process import posterior, sample_paths
from torchtheory.kernels.learning.regression import kernel_least_squares
from torchtheory.labs.engine import COLORS, Run, fit_slope, lab, mean_interval


@lab(
    "gaussian-process-draws",
    room="kernels",
    covers=["M-09"],
    title="Functions drawn from a Gaussian process are as smooth as its kernel",
    errata=["gaussian-process-sigma"],
    full={"draws": 100_000},
    least={"draws": 1_000},
)
def gaussian_process_draws(run: Run, draws: int = 20_000) -> None:
    """Random functions from GP(0, K), whose values at any points are Gaussian with covariance K.

    Draws with the Gaussian kernel have the covariance and the mean they should have, within the
    error of as many draws, and every combination of their values is Gaussian. Near points have
    almost the same value, points five lengthscales apart have nothing to do with each other, and
    the kernel decides how smooth a draw is. Observed values leave a Gaussian process again. Look
    at the draws of three kernels, and at what four observations do to them.

    Args:
        draws: of the process.
    """
    moments(run, draws)
    every_combination(run, draws)
    near_and_far(run, draws)
    smoothness(run, draws)
    valid_covariance(run)
    observations(run, draws)
    draw_figures(run)


def moments(run: Run, draws: int) -> None:
    """Means and covariances in units of their standard errors."""
    # twelve groups of three neighbors: groups are independent, neighbors are not
    t = (8 * torch.arange(12).double()[:, None] + torch.tensor([0.0, 0.3, 0.8]).double()).flatten()
    covariance = gaussian()(t)
    near = torch.triu(torch.kron(torch.eye(12), torch.ones(3, 3))) > 0
    pairs = int(near.sum())

    def scores(f: Tensor) -> Tensor:
        centered = f - torch.cos(t)
        spread = ((1 + covariance**2) / draws).sqrt()
        return ((centered.T @ centered / draws - covariance) / spread).abs()

    says = run.states("M-09", r"\Sigma_{ij}=K(t_i,t_j): \text{ distance of the draws' covariance, in standard errors}")
    says.at_most(
        scores(sample_paths(gaussian(), t, draws, mean=torch.cos, generator=run.generator))[near],
        4.0,
        where=f"{pairs} entries, {draws} draws; true draws exceed 4 somewhere with probability "
        f"at most {pairs * 2 * stats.norm.sf(4):.1e}",
    )
    independent = scores(torch.cos(t) + run.randn(draws, len(t)))
    says.fails("independent values of the same variances", independent[near & ~torch.eye(len(t), dtype=torch.bool)])
    f = sample_paths(gaussian(), t, draws, mean=torch.cos, method="eigenvalues", generator=run.generator)
    error = math.sqrt(1 / draws)
    says = run.states("M-09", r"\mu_i=\mu(t_i): \text{ distance of the draws' mean, in standard errors}")
    says.at_most(
        (f.mean(0) - torch.cos(t)).abs() / error,
        4.0,
        where=f"mean function cos, {len(t)} points, {draws} draws by eigenvalues",
    )
    says.fails("the mean taken for 0", f.mean(0).abs() / error)
    one, tenth = gaussian()(t), gaussian(0.1)(t)
    run.refutes(
        "gaussian-process-sigma",
        r"\text{standard deviations determine the law: two processes with the same } \mu,\sigma"
        r"\text{, largest difference of their covariances}",
    ).equal(
        float((one - tenth).abs().max()),
        within=1e-6,
        where="Gaussian kernels of lengthscale 1 and 0.1: mean 0 and variance 1 everywhere",
    )


def every_combination(run: Run, draws: int) -> None:
    """A linear functional of the values is a Gaussian number."""
    t = torch.linspace(-2, 2, 9, dtype=torch.float64)
    f = sample_paths(gaussian(), t, draws, generator=run.generator)
    weights = run.randn(9, 5)
    scale = (weights * (gaussian()(t) @ weights)).sum(0).sqrt()
    values = f @ weights / scale
    # a random amplitude of mean square 1: same mean, same covariance, no Gaussian process
    amplitude = torch.where(run.rand(draws, 1) < 0.5, math.sqrt(0.2), math.sqrt(1.8)).double()
    delta = 1e-3
    says = run.states("M-09", r"\sum_ia_if(t_i)\sim N(0,a^\top\Sigma a): \text{ Kolmogorov distance, five } a")
    says.at_most(
        [kolmogorov(v) for v in values.T],
        math.sqrt(math.log(2 * 5 / delta) / (2 * draws)),
        where=f"{draws} draws; the bound holds for all five with probability {1 - delta:g}",
    )
    says.fails(
        "draws times a random amplitude: the same covariance, no Gaussian process",
        [kolmogorov(v) for v in (amplitude * values).T],
    )


def near_and_far(run: Run, draws: int) -> None:
    """The correlation at a hundredth of the lengthscale, and at five of them."""
    t = torch.tensor([0.0, 0.01, 5.0], dtype=torch.float64)
    k, rough, wide = gaussian()(t), laplace()(t), gaussian(2.0)(t)
    says = run.states("M-09", r"\operatorname{corr}(f(x),f(x+0.01))=0.99995")
    says.equal(k[0, 1], 0.99995, 5e-9)
    says.fails("the Laplace kernel", rough[0, 1])
    says = run.states("M-09", r"\operatorname{corr}(f(x),f(x+5))<4\cdot10^{-6}")
    says.below(k[0, 2], 4e-6)
    says.fails("twice the lengthscale", wide[0, 2])
    f = sample_paths(gaussian(), t, draws, generator=run.generator)
    g = sample_paths(laplace(), t, draws, generator=run.generator)
    moved, jumped = (mean_interval((v[:, 1] - v[:, 0]).square(), 0.999) for v in (f, g))
    says = run.states("M-09", r"\mathbb E(f(x+0.01)-f(x))^2=2(1-e^{-0.01^2/2})")
    step = -math.expm1(-0.5e-4)
    says.mean(moved, 2 * step, against=(step, 4 * step, -2 * math.expm1(-0.01)))
    says.fails("the Laplace kernel", jumped)


def smoothness(run: Run, draws: int) -> None:
    """How fast increments vanish: the differentiable draws and the others."""
    steps = [2.0**-k for k in range(4, 9)]
    t = torch.tensor([0.0, *steps], dtype=torch.float64)
    rates = []
    for kernel in (gaussian(), matern(1.5), laplace()):
        f = sample_paths(kernel, t, draws // 4, generator=run.generator)
        size = (f[:, 1:] - f[:, :1]).square().mean(0)
        rates.append(fit_slope(steps, size.tolist()))
    for name, rate in zip(("Gaussian", "Matérn 3/2"), rates, strict=False):
        says = run.states(
            "M-09", rf"\text{{{name}: }} \mathbb E(f(x+h)-f(x))^2\sim h^2 \text{{, exponent: draws are differentiable}}"
        )
        says.slope(
            rate,
            2.0,
            0.02,
            against=(1.0, 1.5, 3.0),
            where="h from 1/256 to 1/16; the tolerance is for the next term of the expansion",
        )
        says.fails("the Laplace kernel, whose draws are Brownian at small scale", rates[2])


def valid_covariance(run: Run) -> None:
    """Symmetric is not enough."""
    t = torch.linspace(-2, 2, 40, dtype=torch.float64)
    kernels = (gaussian(), gaussian(0.2), matern(1.5), laplace())
    quartic = Kernel(lambda a, b: torch.exp(-squared_distances(a, b).square()), lambda a: a.new_ones(len(a)))
    says = run.states(
        "M-09",
        r"a^\top\Sigma a=\operatorname{Var}\textstyle\sum_ia_if(t_i)\ge0: "
        r"\text{ smallest eigenvalue of } \Sigma \text{ over its trace}",
    )
    says.at_least([lowest(k, t) for k in kernels], 0, 1e-10)
    says.fails("exp(-(x-x')⁴): symmetric, no covariance function", lowest(quartic, t))


def observations(run: Run, draws: int) -> None:
    """The process given some of its values."""
    seen = torch.tensor([-2.0, -0.7, 0.4, 1.1], dtype=torch.float64)
    new = torch.tensor([-1.3, 0.0, 0.8, 2.5], dtype=torch.float64)
    both = torch.cat([seen, new])
    f = sample_paths(gaussian(), both, draws, generator=run.generator)
    after = posterior(gaussian(), seen, f[:, :4].T.contiguous())
    missed = f[:, 4:] - after.mean(new).T
    nearest = (new[:, None] - seen).abs().argmin(1)
    naive = f[:, 4:] - f[:, nearest]
    deviation = after.standard_deviation(new)
    says = run.states(
        "M-09",
        r"\text{given } f(X): \text{ what } K(x,X)K^{-1}f(X) \text{ misses has the predicted "
        r"variance: ratio}",
    )
    says.mean(
        (missed / deviation).square().mean(1),
        1.0,
        against=(0.5, float(deviation.mean()), 2.0, float(deviation.square().reciprocal().mean())),
        confidence=0.999,
        where=f"four observed values, four others, {draws} draws; nor the variance without observations",
    )
    says.fails("predicting the nearest observed value", (naive / deviation).square().mean(1))
    correlation = (missed / deviation).T @ f[:, :4] / math.sqrt(draws)
    uncorrected = (naive / naive.std(0)).T @ f[:, :4] / math.sqrt(draws)
    says = run.states("M-09", r"\text{and has nothing to do with } f(X): \text{ covariance in standard errors}")
    says.at_most(correlation.abs(), 4.0)
    says.fails("predicting the nearest observed value", uncorrected.abs())
    y = f[0, :4]
    fit = kernel_least_squares(gaussian(), seen, y)
    ridged = kernel_least_squares(gaussian(), seen, y, ridge=0.1)
    says = run.states("M-09", r"\text{the mean given } f(X)=y \text{ is the interpolant of least norm}")
    says.equal(posterior(gaussian(), seen, y).mean(new), fit.predict(new), 1e-10)
    says.fails("observed with noise of variance 0.1", ridged.predict(new))


def draw_figures(run: Run) -> None:
    """Figure 7.2, its rougher relatives, and the process given four values."""
    t = torch.linspace(-5, 5, 400, dtype=torch.float64)
    seen = torch.tensor([-3.0, -1.0, 0.5, 3.5], dtype=torch.float64)
    y = torch.tensor([1.0, -0.5, 0.8, -1.2], dtype=torch.float64)
    after = posterior(gaussian(), seen, y)
    panels = [
        ("GP(0, Gaussian)", sample_paths(gaussian(), t, 5, generator=run.generator)),
        ("GP(0, Matérn 3/2)", sample_paths(matern(1.5), t, 5, generator=run.generator)),
        ("GP(0, Laplace)", sample_paths(laplace(), t, 5, generator=run.generator)),
        (
            "Gaussian, given four values",
            sample_paths(after.kernel, t, 5, mean=after.mean, generator=run.generator),
        ),
    ]
    middle, deviation = after.mean(t), after.standard_deviation(t)

    def plot(axes: Any) -> None:
        for axis, (title, paths) in zip(axes.flat, panels, strict=True):
            for color, path in zip(COLORS, paths, strict=False):
                axis.plot(t, path, color=color, lw=1.0)
            axis.set_title(title)
            axis.set_ylim(-3.4, 3.4)
        for axis in axes[1]:
            axis.set_xlabel("x")
        for axis in axes[:, 0]:
            axis.set_ylabel("f(x)")
        last = axes[1, 1]
        last.fill_between(t, middle - 2 * deviation, middle + 2 * deviation, color="0.85", label="mean ± 2 sd")
        last.plot(seen, y, "o", color=COLORS[6], ms=5, label="observed")
        last.legend(loc="upper right", fontsize=7)

    run.figure(
        "draws",
        plot,
        caption="Five draws each. The kernel decides how smooth they are; observed values tie "
        "them down nearby and leave them free far away.",
        grid=(2, 2),
        size=(9, 5.4),
    )


def kolmogorov(values: Tensor) -> float:
    """The largest distance of an empirical distribution function from the standard normal one."""
    return float(stats.kstest(values.numpy(), "norm").statistic)


def lowest(kernel: Kernel, t: Tensor) -> float:
    gram = kernel(t)
    return float(torch.linalg.eigvalsh(gram)[0] / gram.trace())
