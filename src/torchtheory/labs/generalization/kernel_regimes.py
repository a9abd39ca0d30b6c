"""Kernel ridge regression, its norm, and three fates of those who interpolate noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from torchtheory.generalization.interpolation.interpolators import (
    noise_amplification,
    piecewise_linear_weights,
    polynomial_weights,
    singular_kernel_weights,
)
from torchtheory.generalization.interpolation.minimum_norm import minimum_norm_weights
from torchtheory.kernels.learning.functions import gaussian, laplace, polynomial, quadratic_features
from torchtheory.kernels.learning.regression import kernel_least_squares
from torchtheory.labs.engine import COLORS, Interval, Run, fit_slope, lab


@lab(
    "kernel-ridge-regimes",
    room="generalization",
    covers=["M-169", "M-170", "M-171"],
    title="Interpolating noise can be benign, tempered or catastrophic",
    errata=["reproducing-product-is-not-an-integral"],
    full={"sizes": (10, 20, 40, 80, 160, 320, 640, 1280), "designs": 100},
    least={"sizes": 4, "designs": 5},
    items={"sizes": 3},
)
def kernel_ridge_regimes(run: Run, sizes: tuple[int, ...] = (10, 40, 160, 640), designs: int = 20) -> None:
    """Functions with kernels: a ridge that smooths, and interpolators that do not.

    First kernel ridge regression against the same regression on explicit features, its limit
    without a ridge, and the norm of its space, which is not that of square-integrable functions.
    Then three interpolators of noisy points on a line as the sample grows: an average with a
    singular kernel, whose noise dies out slowly; the broken line, which keeps two thirds of it;
    and the polynomial through all points, which blows it up. Look at the three pictures.

    Args:
        sizes: numbers of samples, three or more.
        designs: random designs of each size.
    """
    ridge_regression(run)
    norm(run)
    curves = regimes(run, sorted(sizes), designs)
    nodes = run.rand(12).sort().values
    y = torch.sin(6 * nodes) + 0.4 * run.randn(12)
    run.figure(
        "three-interpolators",
        lambda axes: plot_three(axes, nodes, y, curves),
        caption="Twelve noisy points and three functions through them; right, what noise of "
        "variance 1 adds to the risk as the sample grows.",
        grid=(1, 4),
        size=(14.0, 3.2),
    )


def ridge_regression(run: Run) -> None:
    """Kernel ridge regression is ridge regression on the features of the kernel."""
    n, decay = 25, 0.3
    x, y, x_test = run.randn(n, 2), run.randn(n), run.randn(30, 2)
    kernel = polynomial(2)
    phi, phi_test = quadratic_features(x), quadratic_features(x_test)
    p = phi.shape[1]
    identity = torch.eye(p).double()
    theta = torch.linalg.solve(phi.T @ phi / n + decay * identity, phi.T @ y / n)
    says = run.states(
        "M-169",
        r"f=\sum_iw_ik(\cdot,x_i),\ w=(K+n\lambda I)^{-1}y \text{ minimizes }"
        r" \tfrac1n\sum_i(y_i-f(x_i))^2+\lambda\|f\|_{\mathcal H}^2",
    )
    says.equal(
        kernel_least_squares(kernel, x, y, ridge=n * decay).predict(x_test),
        phi_test @ theta,
        1e-9,
        where="against ridge regression on the explicit features of the quadratic kernel",
    )
    says.fails("λ in the place of nλ", kernel_least_squares(kernel, x, y, ridge=decay).predict(x_test))
    smooth = laplace()
    limit = kernel_least_squares(smooth, x, y)
    decays = [10.0**-k for k in range(4, 10)]
    gaps = [
        (kernel_least_squares(smooth, x, y, ridge=n * a).predict(x_test) - limit.predict(x_test)).abs().max().item()
        for a in decays
    ]
    other = kernel_least_squares(gaussian(), x, y, solver="pseudo-inverse").predict(x_test)
    off = [(kernel_least_squares(smooth, x, y, ridge=n * a).predict(x_test) - other).abs().max().item() for a in decays]
    says = run.states("M-169", r"\lambda\to0:\ f_\lambda\to \text{the interpolator of least norm, as } \lambda")
    says.slope(decays, gaps, 1.0, 0.05, against=(0.5, 2.0))
    says.fails("the interpolator of another kernel", decays, off)


def norm(run: Run) -> None:
    """The norm of the reproducing kernel Hilbert space."""
    x, y = run.randn(2, 2), run.randn(2)  # two points and three features
    kernel = polynomial(2)
    phi = quadratic_features(x)
    fit = kernel_least_squares(kernel, x, y, solver="pseudo-inverse")
    theta = minimum_norm_weights(phi, y)
    alpha = fit.coefficients
    says = run.states("M-170", r"\|f\|_{\mathcal H}^2=w^\top Kw=\min\{\|\theta\|^2:\ f=\theta^\top\phi\}")
    says.equal(
        theta, phi.T @ alpha, 1e-8, where="the weights of least norm on the features are the sum of $w_i$ φ($x_i$)"
    )
    says.fails("other weights with the same values at the sample", theta + torch.linalg.svd(phi).Vh[-1])
    says = run.states("M-170", r"\|f\|_{\mathcal H}^2=w^\top Kw=\|\theta\|^2")
    says.equal(fit.norm**2, theta.square().sum(), 1e-8)
    says.fails("the sum of squares of the coefficients", alpha.square().sum())
    smooth = gaussian(0.3)
    points = torch.linspace(0.1, 0.9, 5).double()[:, None]
    coefficients = run.randn(5)
    at = run.rand(20)[:, None]
    values = smooth(at, points) @ coefficients
    # <f, g> = (|f + g|^2 - |f - g|^2) / 4 with the norm of the coefficients, g = k(., x)
    product = []
    for x_new in at:
        gram = smooth(torch.cat([points, x_new[None]]))
        plus, minus = (torch.cat([coefficients, coefficients.new_full((1,), c)]) for c in (1.0, -1.0))
        product.append((plus @ gram @ plus - minus @ gram @ minus) / 4)
    width = 9 / 4000
    grid = (-4 + width * (torch.arange(4000).double() + 0.5))[:, None]
    integral = smooth(at, grid) @ (smooth(grid, points) @ coefficients) * width
    says = run.states("M-170", r"\langle f,k(\cdot,x)\rangle_{\mathcal H}=f(x)")
    says.equal(torch.stack(product), values, 1e-10)
    says.fails("the product of square-integrable functions", integral)
    run.refutes("reproducing-product-is-not-an-integral", r"\langle f,g\rangle_{\mathcal H}=\int f(x)g(x)\,dx").equal(
        integral, values, 1e-2, where="with g = k(., x) the integral would have to be f(x); Gaussian kernel on the line"
    )


Weights = Callable[[Tensor, Tensor], Tensor]
INTERPOLATORS: dict[str, Weights] = {
    "singular kernel": singular_kernel_weights,
    "broken line": piecewise_linear_weights,
    "polynomial": polynomial_weights,
}


def regimes(run: Run, sizes: list[int], designs: int) -> dict[str, list[tuple[int, float]]]:
    """What unit noise adds to the risk of three interpolators as the sample grows."""
    nodes = run.rand(15)
    identity = torch.eye(15).double()
    soft = gaussian(0.1)(nodes[:, None])
    says = run.states("M-171", r"L_i(x_j)=\delta_{ij}:\ \text{all three interpolate}")
    says.equal(torch.stack([w(nodes, nodes) for w in INTERPOLATORS.values()]), identity.expand(3, 15, 15), 1e-12)
    says.fails("an average with a bounded kernel", (soft / soft.sum(1, keepdim=True)).expand(3, 15, 15))
    curves: dict[str, list[tuple[int, float]]] = {}
    kept: dict[str, dict[int, Tensor]] = {}
    for name, weights in INTERPOLATORS.items():
        own = [6, 9, 12, 15, 18] if name == "polynomial" else sizes
        draws = 10 * designs if name == "polynomial" else designs  # it varies by orders of magnitude
        kept[name] = {
            n: torch.stack([noise_amplification(_inside(run, weights, n)) for _ in range(draws)]) for n in own
        }
        curves[name] = [(n, float(each.median())) for n, each in kept[name].items()]
    benign, _, wild = ([v for _, v in c] for c in curves.values())
    says = run.states("M-171", r"\text{singular kernel: the excess risk falls as } n \text{ grows}")
    says.below(
        [b / a for a, b in pairwise(benign)],
        1.0,
        where=f"n from {sizes[0]} to {sizes[-1]}, medians over {designs} designs, each over the "
        "one before; the fall is logarithmic",
    )
    says.fails("the polynomial", [b / a for a, b in pairwise(wild)])
    largest = kept["broken line"][sizes[-1]]
    constant = torch.stack([noise_amplification(_inside(run, singular_kernel_weights, sizes[-1])) for _ in range(5)])
    says = run.states("M-171", r"\text{broken line: the excess risk is } \tfrac23\sigma^2")
    says.mean(
        largest,
        2 / 3,
        against=(0.5, 1.0),  # between two nodes at their middle; at a node
        confidence=0.999,
        where=f"n = {sizes[-1]}, {designs} designs",
    )
    says.fails("the singular kernel", constant)
    says = run.states(
        "M-171", r"\text{polynomial: the excess risk grows at least twofold with every point: slope of its logarithm}"
    )
    says.at_least(_growth(kept["polynomial"]), math.log(2), where=f"n = 6, 9, ..., 18, {10 * designs} designs of each")
    says.fails("the broken line", _growth(kept["broken line"]))
    run.table(
        "regimes",
        ["interpolator", "n", "excess risk for unit noise"],
        [(name, n, value) for name, curve in curves.items() for n, value in curve],
        caption=f"Medians over {designs} designs of uniform points, ten times as many for the polynomial",
    )
    return curves


def _growth(risks: dict[int, Tensor]) -> Interval:
    """How much the logarithm of the excess risk grows with a point, over designs of several sizes."""
    x = [n for n, each in risks.items() for _ in each]
    return fit_slope(x, torch.cat([each.log() for each in risks.values()]), 0.999, log=False)


def _inside(run: Run, weights: Weights, n: int) -> Tensor:
    """Weights at 200 random points between the outermost of n random nodes."""
    nodes = run.rand(n)
    low, high = nodes.min(), nodes.max()
    return weights(low + (high - low) * run.rand(200), nodes)


def plot_three(axes: Any, nodes: Tensor, y: Tensor, curves: dict[str, list[tuple[int, float]]]) -> None:
    t = torch.linspace(float(nodes.min()), float(nodes.max()), 800).double()
    spread = float(y.max() - y.min())
    for axis, color, (name, weights) in zip(axes[0], COLORS, INTERPOLATORS.items(), strict=False):
        axis.plot(t, torch.sin(6 * t), color="0.7", linewidth=3)
        axis.plot(t, weights(t, nodes) @ y, color=color)
        axis.plot(nodes, y, "o", color=COLORS[6], markersize=4)
        axis.set(title=name, xlabel="x",
                 ylim=(float(y.min()) - 0.3 * spread, float(y.max()) + 0.3 * spread))  # fmt: skip
    last = axes[0, 3]
    for color, (name, curve) in zip(COLORS, curves.items(), strict=False):
        last.loglog(*zip(*curve, strict=True), "o-", color=color, label=name)
    last.set(xlabel="samples n", ylabel="excess risk / σ²", title="as the sample grows")
    last.legend()
