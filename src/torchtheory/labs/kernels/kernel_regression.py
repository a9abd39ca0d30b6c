"""Least squares with nothing but kernel values, and the interpolant of least norm."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.kernels.learning.functions import (
    Features,
    Kernel,
    arc_cosine,
    cosine_normalized,
    from_features,
    gaussian,
    laplace,
    linear,
    matern,
    polynomial,
    quadratic_features,
    squared_distances,
)
from torchtheory.kernels.learning.regression import SOLVERS, KernelFit, kernel_least_squares
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.optimization.descent.iterates import gradient_descent

KERNELS = (
    linear(),
    polynomial(3, 1.0),
    gaussian(0.8),
    laplace(1.5),
    matern(1.5),
    matern(2.5, 2.0),
    arc_cosine(),
    cosine_normalized(polynomial(2, 1.0)),
    gaussian() + linear() * laplace(),
    gaussian().after(torch.tanh),
)


@lab(
    "kernel-least-squares",
    room="kernels",
    covers=["M-01", "M-04", "A-60"],
    title="Least squares over features needs only their kernel, and picks the least norm",
    errata=["representer-without-regularizer"],
    full={"samples": 200, "features": 600},
    least={"samples": 8, "features": 16},
)
def kernel_least_squares_lab(run: Run, samples: int = 16, features: int = 40) -> None:
    """Kernel matrices, the solution α = K⁻¹y, and what singles it out among all the interpolants.

    Ten kernels give symmetric, positive semidefinite matrices. With features written out, kernel
    least squares predicts what the pseudo-inverse of the feature matrix predicts, with fewer
    features than points or more. With more, infinitely many parameters have no loss: the formula
    is the shortest of them, and gradient descent from zero ends there. Look at the interpolants of
    noisy data by three kernels, and at the leave-one-out error, which comes without a single refit.

    Args:
        samples: training points.
        features: at least twice as many as samples.
    """
    run.assumes(features >= 2 * samples, f"{features} features are not twice the {samples} samples")
    matrices(run, samples)
    closed_form(run, samples, features)
    many_minimizers(run, samples, features)
    logistic_representer(run, samples, features)
    least_norm(run, samples)
    penalized(run, samples, features)
    pictures(run)


def matrices(run: Run, samples: int) -> None:
    """Symmetric, positive semidefinite, and inner products of features."""
    x = run.randn(samples, 3)
    skew = run.randn(3, 3)
    says = run.states("M-01", r"K(x,x')=K(x',x): \text{ largest difference over the largest value, ten kernels}")
    says.equal([skewness(k(x)) for k in KERNELS], within=1e-13)
    says.fails("the bilinear form of a matrix that is not symmetric", skewness(x @ skew @ x.T))
    line = 2 * x[:, :1]
    quartic = Kernel(lambda a, b: torch.exp(-squared_distances(a, b).square()), lambda a: a.new_ones(len(a)))
    says = run.states("M-01", r"\lambda_{\min}(K)\ge0: \text{ relative to the trace}")
    says.at_least([lowest(k, x) for k in KERNELS], 0, 1e-10)
    says.fails("exp(-|x-x'|⁴), which is no kernel", lowest(quartic, line))
    z = run.randn(samples, 3)
    affine = torch.cat([x.new_ones(samples, 1), math.sqrt(2) * x, quadratic_features(x)], 1)
    other = torch.cat([z.new_ones(samples, 1), math.sqrt(2) * z, quadratic_features(z)], 1)
    says = run.states("M-01", r"K=\Phi\Phi'^\top \text{ with } \Phi \text{ written out: } (x^\top x'+1)^2")
    says.equal(polynomial(2, 1.0)(x, z), affine @ other.T, 1e-12)
    says.fails("without the offset", polynomial(2)(x, z))
    says = run.states("M-01", r"\operatorname{rank}K\le p: \text{ the six quadratic features of } \mathbb R^3")
    says.at_most(rank(polynomial(2), x), 6)
    says.fails("the Gaussian kernel has no finite p", rank(gaussian(), x))


def closed_form(run: Run, samples: int, features: int) -> None:
    """The kernel's solution is that of the features, for fewer and for more of them."""
    # in as many dimensions as points, random features are about independent of each other
    x, y, new = run.randn(samples, samples), run.randn(samples), run.randn(50, samples)
    predicted, expected, gradients = [], [], []
    few, many = samples // 2, features
    for p in (few, samples, many):
        phi = random_map(run, samples, p)
        fit = kernel_least_squares(from_features(phi), x, y, solver="pseudo-inverse")
        predicted.append(fit.predict(new))
        expected.append(phi(new) @ (torch.linalg.pinv(phi(x)) @ y))
        theta = phi(x).T @ fit.coefficients
        gradients.append(phi(x).T @ (phi(x) @ theta - y))
    truncated = kernel_least_squares(from_features(phi), x, y, ridge=0.1)
    says = run.states("M-04", r"K_x^\top K^+y=\phi(x)^\top\Phi^+y \text{ at new points}")
    says.equal(
        torch.cat(predicted),
        torch.cat(expected),
        1e-6,
        where=f"{few}, {samples} and {many} random features of {samples} points",
    )
    says.fails("with a ridge of 0.1", truncated.predict(new), promised=expected[-1])
    theta = phi(x).T @ truncated.coefficients
    says = run.states("M-04", r"\nabla L(\theta^\star)=\Phi^\top(\Phi\theta^\star-y)=0,\ \theta^\star=\Phi^\top\alpha")
    says.equal(torch.cat(gradients), within=1e-8)
    says.fails("with a ridge of 0.1", phi(x).T @ (phi(x) @ theta - y))
    singular = from_features(random_map(run, samples, few))
    shortened = kernel_least_squares(singular, x, y, solver="pseudo-inverse")
    says = run.states("M-04, A-60", r"K \text{ invertible: } f(x_i)=y_i")
    says.equal(
        torch.cat([kernel_least_squares(k, x, y).predict(x) for k in (laplace(), matern(1.5))]),
        torch.cat([y, y]),
        1e-10,
    )
    says.fails(f"{few} features, so that K is singular", shortened.predict(x), promised=y)
    fits = [kernel_least_squares(laplace(), x, y, solver=s, tolerance=1e-13) for s in SOLVERS]
    ridged = kernel_least_squares(laplace(), x, y, ridge=1e-3)
    says = run.states("M-04", r"\text{Cholesky, conjugate gradients and pseudo-inverse give one } \alpha")
    says.equal(torch.cat([fits[1].coefficients, fits[2].coefficients]), fits[0].coefficients.repeat(2), 1e-9)
    says.fails("a ridge of 0.001", ridged.coefficients, promised=fits[0].coefficients)


def many_minimizers(run: Run, samples: int, features: int) -> None:
    """More features than points: the formula is the shortest of infinitely many minimizers."""
    x, y = run.randn(samples, 3), run.randn(samples)
    phi = random_map(run, 3, features)
    big = phi(x)
    fit = kernel_least_squares(from_features(phi), x, y)
    theta = big.T @ fit.coefficients
    project = torch.eye(features, dtype=torch.float64) - torch.linalg.pinv(big) @ big
    moves = run.randn(100, features)
    blind = moves @ project
    says = run.states(
        "M-04, A-60", r"\Phi v=0 \Rightarrow \|\theta^\star+v\|\ge\|\theta^\star\|: \text{ no interpolant is shorter}"
    )
    says.at_least(
        torch.cat([(theta + s * blind).norm(dim=1) for s in (1e-3, 0.1, 1.0)]),
        float(theta.norm()),
        1e-12,
        where="100 directions that no point sees, three lengths each",
    )
    says.fails("shrunk by half, which no longer interpolates", (0.5 * theta).norm())
    other = theta + blind[0]
    run.refutes(
        "representer-without-regularizer",
        r"L(\theta)=\min L \Rightarrow f_\theta=\sum_i\alpha_iK(\cdot,x_i): "
        r"\text{ distance of } \theta \text{ from the span of the } \phi(x_i)",
    ).equal(
        float((project @ other).norm()),
        within=1e-8,
        where=f"θ* + v has the loss {float((big @ other - y).square().sum() / 2):.0e}, as θ* has",
    )
    says = run.states("A-60", r"\|f\|_K^2=y^\top K^{-1}y \text{ is } \|\theta^\star\|^2")
    says.equal(
        float(y @ torch.linalg.solve(from_features(phi)(x), y)),
        float(theta.norm()) ** 2,
        1e-8,
        where=f"the fit's own norm is {float(fit.norm):.6g}",
    )
    says.fails("another interpolant", float(fit.norm) ** 2, promised=float(other.norm()) ** 2)


def logistic_representer(run: Run, samples: int, features: int) -> None:
    """A penalty on the norm makes any minimizer a combination of kernel values, also of another loss."""
    x, signs, new = run.randn(samples, 3), run.signs(samples), run.randn(50, 3)
    phi = random_map(run, 3, features)
    big = phi(x)
    start = run.randn(features)
    curvature = float(torch.linalg.matrix_norm(big, 2)) ** 2 / 4

    def outside(penalty: float) -> Tensor:
        """What is left at new points of the function found, when its values at the sample are interpolated."""

        def risk(theta: Tensor) -> Tensor:
            return F.softplus(-signs * (big @ theta)).sum() + penalty / 2 * theta.square().sum()

        step = 1 / (curvature + penalty)
        steps = math.ceil(25 / (step * max(penalty, 0.1)))
        theta = gradient_descent(risk, start, step, steps).points[-1]
        fit = kernel_least_squares(from_features(phi), x, big @ theta)
        return phi(new) @ theta - fit.predict(new)

    says = run.states(
        "M-04",
        r"\theta^\star=\operatorname{argmin}\sum_i\log(1+e^{-y_if_\theta(x_i)})+\tfrac\lambda2\|\theta\|^2:\ "
        r"f_{\theta^\star}(x)=\sum_i\alpha_iK(x,x_i) \text{ at new points}",
    )
    says.equal(outside(0.1), within=1e-6, where="λ = 0.1, from a random start outside the span of the φ(xᵢ)")
    says.fails("λ = 0: descent keeps the part of its start that no point sees", outside(0.0))


def least_norm(run: Run, samples: int) -> None:
    """A kernel with infinitely many features: Pythagoras, and where gradient descent ends."""
    x, y, extra = run.randn(samples, 2), run.randn(samples), run.randn(20, 2)
    kernel = laplace()
    fit = kernel_least_squares(kernel, x, y)
    # k(., z) minus its interpolant at the sample: a function that vanishes there
    corrections = torch.linalg.solve(kernel(x), kernel(x, extra))
    points = torch.cat([x, extra])
    weights = torch.cat([-corrections, torch.eye(len(extra), dtype=torch.float64)])
    own = torch.cat([fit.coefficients, torch.zeros(len(extra), dtype=torch.float64)])[:, None]
    gram = kernel(points)
    norms = ((own + weights) * (gram @ (own + weights))).sum(0)
    added = (weights * (gram @ weights)).sum(0)
    seen = torch.cat([0 * corrections, torch.eye(len(extra), dtype=torch.float64)])
    unlike = ((own + seen) * (gram @ (own + seen))).sum(0)
    says = run.states("A-60", r"g(x_i)=0 \Rightarrow \|f+g\|_K^2=\|f\|_K^2+\|g\|_K^2")
    says.equal(
        norms,
        float(fit.norm) ** 2 + added,
        1e-9,
        where="Laplace kernel, twenty g; so no other interpolant in its space is as short",
    )
    says.fails(
        "g = K(·,z), which does not vanish at the sample",
        unlike,
        promised=float(fit.norm) ** 2 + (seen * (gram @ seen)).sum(0),
    )
    says = run.states("A-60", r"\|f+g\|_K>\|f\|_K \text{ for other interpolants}")
    says.above(norms.sqrt(), float(fit.norm))
    says.fails("a ridge of 0.1: shorter, no interpolant", kernel_least_squares(kernel, x, y, ridge=0.1).norm)
    steps = 2**22
    says = run.states(
        "M-04, A-60",
        r"\text{gradient descent on } \tfrac1m\textstyle\sum_i(f(x_i)-y_i)^2 \text{ from } f=0 "
        r"\text{ ends at } K_x^\top K^{-1}y",
    )
    says.equal(
        kernel(extra, x) @ descend(kernel, x, y, steps),
        fit.predict(extra),
        1e-6,
        where=f"at points outside the sample, after {steps} steps",
    )
    says.fails(
        "from f = 1, which gradient steps leave as an offset", 1 + kernel(extra, x) @ descend(kernel, x, y - 1, steps)
    )


def penalized(run: Run, samples: int, features: int) -> None:
    """With a penalty the minimizer is unique, and a combination of kernels; leave-one-out."""
    x, y, new = run.randn(samples, 3), run.randn(samples, 2), run.randn(30, 3)
    phi, ridge = random_map(run, 3, features), 0.3
    fit = kernel_least_squares(from_features(phi), x, y, ridge=ridge)
    direct = stacked_least_squares(phi(x), y, ridge, torch.zeros(features, 2).double())
    centered = stacked_least_squares(phi(x), y, ridge, run.randn(features, 2))
    says = run.states(
        "M-04",
        r"\text{with the penalty } \tfrac\lambda2\|\theta\|^2:\ f=\sum_i\alpha_iK(\cdot,x_i),\ "
        r"\alpha=(K+\lambda I)^{-1}y",
    )
    says.equal(fit.predict(new), phi(new) @ direct, 1e-9, where="against least squares in the parameters, two outputs")
    says.fails("a penalty on the distance from a point other than 0", fit.predict(new), promised=phi(new) @ centered)
    refits = []
    for i in range(samples):
        rest = torch.arange(samples) != i
        part = kernel_least_squares(from_features(phi), x[rest], y[rest], ridge=ridge)
        refits.append(y[i] - part.predict(x[i : i + 1])[0])
    says = run.states(
        "M-04", r"y_i-f_{-i}(x_i)=\alpha_i/[(K+\lambda I)^{-1}]_{ii}: \text{ leave-one-out without a refit}"
    )
    says.equal(fit.leave_one_out_residuals(), torch.stack(refits), 1e-9)
    says.fails("the residuals of the fit itself", y - fit.fitted)


def pictures(run: Run) -> None:
    """Interpolants by three kernels, and the ridge that leave-one-out picks."""
    t = torch.linspace(-3, 3, 15, dtype=torch.float64) + 0.1 * run.randn(15)
    y = torch.sin(1.5 * t) + 0.25 * run.randn(15)
    dense = torch.linspace(-3.6, 3.6, 400, dtype=torch.float64)
    kernels = (gaussian(0.7), matern(1.5, 1.0), laplace(1.0))
    fits = [kernel_least_squares(k, t, y) for k in kernels]
    ridges = torch.logspace(-6, 2, 33, dtype=torch.float64)
    truth = torch.sin(1.5 * dense)
    inside = dense.abs() <= 3
    curves: list[tuple[float, float, float]] = []
    for ridge in ridges.tolist():
        fit = kernel_least_squares(kernels[0], t, y, ridge=ridge)
        test = (fit.predict(dense) - truth)[inside].square().mean() + 0.25**2
        left_out = fit.leave_one_out_residuals().square().mean()
        curves.append((float((y - fit.fitted).square().mean()), float(left_out), float(test)))
    chosen = float(ridges[min(range(len(ridges)), key=lambda i: curves[i][1])])
    run.table(
        "interpolants",
        ["kernel", "norm of the interpolant", "largest |α|", "mean square error left out"],
        [(repr(f.kernel), f.norm, f.coefficients.abs().max(), _mean_left_out(f)) for f in fits],
        caption="The same fifteen noisy values of a sine, interpolated by three kernels.",
    )
    best = kernel_least_squares(kernels[0], t, y, ridge=chosen)

    def plot(axes: Any) -> None:
        left, right = axes[0]
        for color, fit in zip(COLORS, fits, strict=False):
            left.plot(dense, fit.predict(dense), color=color, label=repr(fit.kernel), lw=1.2)
        left.plot(dense, best.predict(dense), color=COLORS[6], ls="--", label=f"λ = {chosen:.2g}, Gauss")
        left.plot(t, y, "o", color=COLORS[6], ms=4, label="data")
        left.set_ylim(-2.6, 2.6)
        left.set_xlabel("x")
        left.set_ylabel("f(x)")
        left.set_title("interpolants of least norm")
        left.legend(ncols=2, loc="lower center", fontsize=7)
        names = ("training", "leave-one-out", "test")
        for color, name, values in zip(COLORS, names, zip(*curves, strict=True), strict=False):
            right.semilogy(ridges.log10(), values, color=color, label=name)
        right.axvline(math.log10(chosen), color=COLORS[6], lw=0.8, ls=":")
        right.set_xlabel("log₁₀ of the ridge λ")
        right.set_ylabel("mean square error")
        right.set_title("Gaussian kernel")
        right.legend()

    run.figure(
        "interpolants",
        plot,
        caption="Left: three interpolants of noisy data, and (dashed) the ridge that the "
        "leave-one-out error picks. Right: that error is computed from the one fit, and follows "
        "the error on new data.",
        grid=(1, 2),
        size=(10, 3.8),
    )


def random_map(run: Run, dimension: int, count: int) -> Features:
    """A map to `count` random features, independent for generic points."""
    weight, shift = run.randn(dimension, count) * math.sqrt(3 / dimension), run.randn(count)
    return lambda v: torch.tanh(v @ weight + shift) * math.sqrt(2 / count)


def skewness(matrix: Tensor) -> float:
    return float((matrix - matrix.T).abs().max() / matrix.abs().max())


def lowest(kernel: Kernel, x: Tensor) -> float:
    """The smallest eigenvalue over the trace."""
    gram = kernel(x)
    return float(torch.linalg.eigvalsh((gram + gram.T) / 2)[0] / gram.trace())


def rank(kernel: Kernel, x: Tensor) -> int:
    return int(torch.linalg.matrix_rank(kernel(x), hermitian=True))


def descend(kernel: Kernel, x: Tensor, y: Tensor, steps: int) -> Tensor:
    """The coefficients after that many gradient steps in the kernel's space, from 0.

    A step is affine, so its power, by repeated squaring, is all of them.
    """
    gram = kernel(x)
    rate = 1 / float(torch.linalg.eigvalsh(gram)[-1])
    n = len(y)
    step = torch.eye(n + 1, dtype=y.dtype)
    step[:n, :n] -= rate * gram
    step[:n, n] = rate * y
    all_steps: Tensor = torch.linalg.matrix_power(step, steps)
    return all_steps[:n, n]


def stacked_least_squares(phi: Tensor, y: Tensor, ridge: float, center: Tensor) -> Tensor:
    """The minimizer of the loss plus the penalty on the distance from `center`."""
    identity = math.sqrt(ridge) * torch.eye(phi.shape[1], dtype=phi.dtype)
    system = torch.cat([phi, identity])
    solution: Tensor = torch.linalg.lstsq(system, torch.cat([y, identity @ center])).solution
    return solution


def _mean_left_out(fit: KernelFit) -> Tensor:
    return fit.leave_one_out_residuals().square().mean()
