"""Lipschitz and smoothness constants, measured and known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.linalg.eigenvalues import top_eigenpairs
from torchtheory.neurons.regression import logistic_loss, logistic_regression, logistic_smoothness
from torchtheory.primer.differences import hessian_at
from torchtheory.primer.smoothness import (
    lipschitz_from_below,
    parabola_bounds,
    smoothness_from_below,
)
from torchtheory.robustness.lipschitz.layers import layer_norms

Scalar = Callable[[Tensor], Tensor]
#: Figure 1.2 of the source: how regular each function is at 0, as exponents of the largest slope
#: of f, and of f', between points at distance h. None: there is no f' to speak of.
GALLERY: dict[str, tuple[Scalar, float, float | None]] = {
    "step: discontinuous": (lambda x: (x > 0).to(x), -1.0, None),
    "|x|: continuous, with a kink": (torch.abs, 0.0, -1.0),
    "|x|√|x|: differentiable, not smooth": (lambda x: x.abs() ** 1.5, 0.5, -0.5),
    "x²: smooth": (torch.square, 1.0, 0.0),
}


@lab(
    "primer-smoothness",
    room="primer",
    covers=["L-016", "L-017", "L-037", "L-038"],
    title="Lipschitz and smoothness constants: what sampling finds and what bounds it",
    full={"samples": 2000, "dim": 20, "width": 64},
    least={"samples": 100, "dim": 2, "width": 2},
)
def primer_smoothness(run: Run, samples: int = 200, dim: int = 6, width: int = 16) -> None:
    """How fast a function can change, and how fast its gradient can.

    Slopes between sampled points, gradients at points and gradients after local ascent are lower
    bounds of the Lipschitz constant; for a network the product of its layers' norms bounds it from
    above. Where the constants are known (linear and quadratic functions, least squares, logistic
    regression) the measured ones reach them. An L-smooth function lies between two parabolas at
    every point, and grows at most quadratically from its minimum, without a remainder.

    Args:
        samples: points at which slopes are sampled.
        dim: dimension of the inputs.
        width: of the network.
    """
    lipschitz(run, samples, dim, width)
    smoothness(run, samples, dim)
    minimum(run, samples, dim)
    gallery(run)
    run.figure(
        "gallery",
        plot_gallery,
        caption="Discontinuous; continuous with a kink; differentiable with a derivative that is "
        "not Lipschitz; smooth. Each step up bounds the slopes of the next derivative.",
        grid=(1, 4),
        size=(11, 2.7),
    )
    run.figure(
        "parabola-sandwich",
        plot_sandwich,
        caption="A 1-smooth function lies between the two parabolas that touch it, at every point; "
        "with a constant that is too small the function breaks out.",
        grid=(1, 2),
    )


def lipschitz(run: Run, samples: int, dim: int, width: int) -> None:
    w, points = run.randn(dim), run.randn(samples, dim)
    linear = lipschitz_from_below(lambda x: w @ x, points)
    says = run.states("L-016", r"f(x)=w^\top x:\ \text{sampled slopes} \le \sup\|\nabla f\| = \|w\|")
    says.at_most([linear.from_pairs, float(w.norm())], [float(w.norm()), linear.from_derivatives], 1e-12)
    says.fails(
        "‖w‖ in the 1-norm where the inputs are measured in the 2-norm",
        [float(w.abs().sum())],
        promised=[float(w.norm())],
    )
    net = nn.Sequential(
        nn.Linear(dim, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
    ).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(run.randn(*parameter.shape) / math.sqrt(parameter.shape[-1]))
    product = math.prod(layer.lipschitz for layer in layer_norms(net, (dim,)))
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    found = lipschitz_from_below(lambda x: net(x)[0], points, ascent_steps=80)
    says = run.states(
        "L-016", r"\|f(x)-f(y)\|/\|x-y\| \le \sup\|\nabla f\| \le \prod_\ell\|W_\ell\|_2 \text{ (tanh network)}"
    )
    says.at_most(
        [found.from_pairs, found.from_derivatives],
        [found.from_derivatives, product],
        where="the middle is measured from below, by ascent",
    )
    says.fails(
        "the product leaves out the last layer's norm, which is scaled by 10",
        [10 * found.from_derivatives],
        promised=[product / layer_norms(net, (dim,))[-1].lipschitz],
    )
    # the angle on an annulus that is cut open: |grad| <= 1, but the ends of the cut are neighbors
    theta = torch.linspace(0.01, 2 * math.pi - 0.01, samples, dtype=torch.float64)
    ring = torch.stack([theta.cos(), theta.sin()], dim=1)

    def angle(x: Tensor) -> Tensor:
        return torch.atan2(-x[1], -x[0])

    half = lipschitz_from_below(angle, ring[: samples // 4], ascent_steps=0)
    cut = lipschitz_from_below(angle, ring, ascent_steps=0)
    says = run.states(
        "L-016",
        r"\|\nabla f\|\le L \text{ on a convex domain, so } |f(x)-f(y)|\le L\|x-y\|"
        r" \text{ (the angle, } L = \sqrt2 \text{ on the hull of a quarter circle)}",
    )
    says.at_most(half.from_pairs, math.sqrt(2))
    says.fails("the domain is an annulus cut open, which is not convex", cut.from_pairs)
    run.table(
        "lipschitz",
        ["function", "slopes of pairs", "gradients, with ascent", "upper bound"],
        [
            ("linear", linear.from_pairs, linear.from_derivatives, float(w.norm())),
            ("tanh network", found.from_pairs, found.from_derivatives, product),
            ("angle on a cut annulus", cut.from_pairs, cut.from_derivatives, None),
        ],
        caption="Everything measured is a lower bound of the Lipschitz constant",
    )


def smoothness(run: Run, samples: int, dim: int) -> None:
    points = run.randn(samples, dim)
    Q, A, y = run.randn(dim, dim), run.randn(3 * dim, dim), run.randn(3 * dim)
    Q = Q @ Q.T
    features, labels = run.randn(samples, dim), (run.rand(samples) < 0.5).double()
    line = torch.linspace(-2, 2, 41, dtype=torch.float64)[:, None]

    functions: dict[str, tuple[Scalar, Tensor, float]] = {
        "x²": (lambda x: x.square().sum(), line, 2.0),
        "½xᵀQx": (lambda x: 0.5 * x @ Q @ x, points, float(torch.linalg.eigvalsh(Q)[-1])),
        "‖Ax−y‖²": (
            lambda x: (A @ x - y).square().sum(),
            points,
            2 * float(torch.linalg.matrix_norm(A, 2)) ** 2,
        ),
        "logistic loss": (
            lambda x: nn.functional.softplus((1 - 2 * labels) * (features @ x)).mean(),
            points / 4,
            logistic_smoothness(features),
        ),
    }
    found = {name: smoothness_from_below(f, at, climbers=4) for name, (f, at, _) in functions.items()}
    known = {name: constant for name, (*_, constant) in functions.items()}
    says = run.states(
        "L-017",
        r"\|\nabla f(x)-\nabla f(y)\|/\|x-y\|\le L \text{ for } x^2,\ \tfrac12x^\top Qx,"
        r"\ \|Ax-y\|^2,\ \text{logistic loss}",
    )
    says.at_most([f.value for f in found.values()], list(known.values()), 1e-10)
    says.fails("L = σ₁² for ‖Ax−y‖², without the 2", found["‖Ax−y‖²"].value, promised=known["‖Ax−y‖²"] / 2)
    says = run.states(
        "L-017",
        r"\text{the largest } |\lambda(\nabla^2f)| \text{ met is } L=2,\ \lambda_{\max}(Q),"
        r"\ 2\sigma_1(A)^2,\ \lambda_{\max}(X^\top X)/(4n)",
    )
    says.equal(
        [f.from_derivatives for f in found.values()],
        list(known.values()),
        1e-5,
        where="the logistic loss attains its constant at 0, which the ascent must find",
    )
    says.fails("only slopes between random points", [f.from_pairs for f in found.values()])
    quadratic = functions["½xᵀQx"][0]
    top = top_eigenpairs(hessian_at(quadratic, points[0]), 1, which="magnitude", generator=run.generator)
    says = run.states("L-017", r"|\lambda|_{\max}(\nabla^2f(x)) \text{ from Hessian-vector products alone}")
    says.equal(top.values[0], known["½xᵀQx"], 1e-6)
    says.fails("the mean eigenvalue", float(Q.trace()) / dim)
    hessians = torch.func.vmap(torch.func.hessian(functions["logistic loss"][0]))
    spectra = torch.linalg.eigvalsh(hessians(3 * run.randn(samples, dim)))

    def quartic(x: Tensor) -> Tensor:
        return x.square().sum() ** 2

    ball = points / points.norm(dim=1, keepdim=True) * run.rand(samples, 1)
    inside = smoothness_from_below(quartic, ball, box=(-1.0, 1.0), ascent_steps=0).from_derivatives
    far = torch.linalg.eigvalsh(torch.func.hessian(quartic)(3 * torch.ones(dim).double()))
    says = run.states(
        "L-037", r"f\ L\text{-smooth}:\ |\lambda_i(\nabla^2f(x))|\le L \text{ at every } x \text{ (logistic loss)}"
    )
    says.at_most(spectra.abs().max(), known["logistic loss"], 1e-12)
    says.fails("‖x‖⁴ is not smooth: L is that of the unit ball", far.abs().max(), promised=inside)
    starts = run.randn(8, dim)
    bounds = [
        parabola_bounds(f, x[: at.shape[1]], at, known[name]) for name, (f, at, _) in functions.items() for x in starts
    ]
    short = parabola_bounds(quadratic, starts[0], points, 0.3 * known["½xᵀQx"])
    says = run.states("L-017, L-038", r"|f(y)-f(x)-\nabla f(x)^\top(y-x)|\le\tfrac L2\|y-x\|^2")
    says.at_most(
        torch.cat([torch.cat([value, -value]) for _, value, _ in bounds]),
        torch.cat([torch.cat([high, -low]) for low, _, high in bounds]),
        1e-12,
    )
    says.fails("L is too small", short[1], promised=short[2])
    run.table(
        "smoothness",
        ["function", "slopes of gradients", "|λ| of Hessians, with ascent", "known constant"],
        [(n, f.from_pairs, f.from_derivatives, known[n]) for n, f in found.items()],
    )


def minimum(run: Run, samples: int, dim: int) -> None:
    x, labels = run.randn(samples, dim), (run.rand(samples) < 0.5).double()
    fit = logistic_regression(x, labels)
    L = logistic_smoothness(x)
    hessian = torch.func.hessian(lambda w: logistic_loss_at(w, x, labels))(fit.weight)
    says = run.states("L-037", r"\|\nabla^2f(x^\star)\|_2\le L \text{ at the minimizer of the logistic loss}")
    says.at_most(torch.linalg.matrix_norm(hessian, 2), L)
    says.fails("L is 16 times too small", torch.linalg.matrix_norm(hessian, 2), promised=L / 16)
    directions = run.randn(samples, dim)
    steps = directions * torch.logspace(-3, 2, samples, dtype=torch.float64)[:, None]
    best = logistic_loss(fit.weight, x, labels)
    growth = torch.stack([logistic_loss(fit.weight + s, x, labels) for s in steps]) - best
    start = fit.weight + 3 * torch.ones(dim).double()
    gradient = torch.func.grad(lambda w: logistic_loss_at(w, x, labels))(start)
    uphill = gradient / L * torch.logspace(-3, 0, samples, dtype=torch.float64)[:, None]
    from_start = torch.stack([logistic_loss(start + s, x, labels) for s in uphill])
    squares = L / 2 * steps.square().sum(1)
    says = run.states(
        "L-038", r"f(x)-f(x^\star)\le\tfrac L2\|x-x^\star\|^2 \text{ for all } x, \text{ with no remainder}"
    )
    says.at_most(growth, squares, 1e-12)
    says.fails(
        "x* is not the minimizer (steps up the gradient, of at most ‖∇f‖/L)",
        from_start - logistic_loss(start, x, labels),
        promised=L / 2 * uphill.square().sum(1),
    )
    radii = [10 ** (-0.5 - 0.25 * i) for i in range(9)]

    def bent(v: float) -> float:
        return v**2 / 2 + v**3

    errors = [abs(bent(r) - r**2 / 2) / r**3 for r in radii]
    says = run.states(
        "L-038",
        r"\text{a second-order expansion errs by } O(\|\cdot\|^3) \text{ and not } o(\|\cdot\|^3):"
        r"\ x^2/2+x^3 \text{ (exponent of error}/|x|^3)",
    )
    says.slope(radii, errors, 0.0, 1e-6, against=[-1.0, 1.0])
    says.fails("x²/2 + x⁴, whose third derivative is 0", radii, [r**4 / r**3 for r in radii])
    run.note(
        "Problem 3e states the growth bound with a remainder o(‖x−x*‖³). The bound is true without "
        "any; the remainder could not come from a second-order expansion, which gives o(‖x−x*‖²)."
    )


def gallery(run: Run) -> None:
    scales = [2.0**-i for i in range(3, 11)]
    rows = []
    # |x|^{1/2} is continuous and belongs to none of the kinds: its slopes grow like h^{-1/2}, those
    # of its derivative like h^{-3/2}
    root = slope_exponents(lambda x: x.abs().sqrt(), scales)
    for name, (f, first, second) in GALLERY.items():
        exponents = [slope_exponents(f, scales)]
        says = run.states("L-017", rf"\text{{{name}; exponent of the largest slope of }} f \text{{ at scale }} h")
        says.equal(exponents[0], first, 0.05)
        says.fails("$|x|^{1/2}$ in its place", root)
        if second is not None:
            exponents.append(slope_exponents(torch.func.vmap(torch.func.grad(f)), scales))
            says = run.states("L-017", rf"\text{{{name}; exponent of the largest slope of }} f' \text{{ at scale }} h")
            says.equal(exponents[1], second, 0.05)
            says.fails("$|x|^{1/4}$ in the place of f'", slope_exponents(lambda x: x.abs() ** 0.25, scales))
        rows.append((name, *[float(e[-1]) for e in exponents], *([""] if second is None else [])))
    run.table(
        "gallery",
        ["function at 0", "exponent of slopes of f", "exponent of slopes of f'"],
        rows,
        caption="An exponent >= 0 means bounded slopes: Lipschitz there. A negative one means that "
        "slopes grow without bound as points come closer",
    )


def plot_gallery(axes: Any) -> None:
    x = torch.linspace(-1, 1, 401, dtype=torch.float64)
    for axis, (name, (f, _, second)) in zip(axes.ravel(), GALLERY.items(), strict=True):
        values, slope = f(x), torch.func.vmap(torch.func.grad(f))(x)
        jump = x.abs() < 1e-9
        if second is None:  # a gap where the function jumps, not a vertical line
            values = torch.where(jump, math.nan, values)
        else:
            kink = jump & (second == -1)
            axis.plot(x, torch.where(kink, math.nan, slope), color=COLORS[1], lw=1.2, label="f'")
        axis.plot(x, values, color=COLORS[0], label="f")
        axis.set_title(name.replace(": ", "\n"))
        axis.set_ylim(-1.7, 1.7)
    axes[0, 1].legend(loc="lower right")


def slope_exponents(f: Scalar, scales: list[float]) -> Tensor:
    """How the largest slope near 0 between neighbors at distance h/2 grows as h halves."""
    slopes = []
    for h in scales:
        x = torch.linspace(-2 * h, 2 * h, 9, dtype=torch.float64) + h / 16
        slopes.append((f(x).diff() / x.diff()).abs().max())
    return -torch.stack(slopes).log2().diff()


def logistic_loss_at(w: Tensor, x: Tensor, labels: Tensor) -> Tensor:
    """The logistic loss without its input checks, which torch.func cannot trace."""
    return nn.functional.softplus((1 - 2 * labels) * (x @ w)).mean()


def plot_sandwich(axes: Any) -> None:
    y = torch.linspace(-5, 5, 300, dtype=torch.float64)[:, None]
    x = torch.tensor([0.8], dtype=torch.float64)

    def f(v: Tensor) -> Tensor:
        return torch.cos(v).sum()

    for axis, L in zip(axes.ravel(), (1.0, 0.35), strict=True):
        low, value, high = parabola_bounds(f, x, y, L)
        axis.fill_between(y[:, 0], low, high, color=COLORS[5], alpha=0.3, lw=0, label="allowed")
        axis.plot(y[:, 0], value, color=COLORS[0], label="f = cos")
        outside = (value > high) | (value < low)
        if bool(outside.any()):
            broken = torch.where(outside, value, math.nan)
            axis.plot(y[:, 0], broken, color=COLORS[1], lw=3, label="outside")
        axis.plot(x, f(x), "o", color=COLORS[6], zorder=4)
        axis.set(ylim=(-3, 3), xlabel="y", title=f"L = {L:g}" + (", too small" if L < 1 else ""))
        axis.legend(loc="upper right")
