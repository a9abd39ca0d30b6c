"""What a feature map is for: circles become planes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.kernels.learning.functions import (
    Kernel,
    from_features,
    gaussian,
    linear,
    polynomial,
    quadratic_features,
)
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.neurons.separability import MaxMargin, max_margin, minimum_norm_point, separate

EXACT = 1e-12


@lab(
    "feature-map-separation",
    room="kernels",
    covers=["M-02", "M-03"],
    title="Two rings that no line separates are separated by a plane of quadratic features",
    full={"points": 200, "trials": 200},
    # of 32 points with noise of ±0.7 about one sample in seven is separable, of 6 samples never all
    least={"points": 32, "trials": 6},
)
def feature_map_separation(run: Run, points: int = 40, trials: int = 10) -> None:
    """Two concentric circles, of radius 1 and 2, before and after the quadratic feature map.

    First the two named kernels: the quadratic one is the inner product of three features, the
    Gaussian one of infinitely many. Then the figure of the lectures: in the plane the two classes'
    hulls meet, so no line separates them; the features of the circle of radius r lie in the plane
    u + v = r², and the largest margin is 3/√8. Look at the separating plane pulled back to the
    input space, where it is the circle of radius √(5/2), and at what noise does to it.

    Args:
        points: of the two rings.
        trials: rings with noise.
    """
    named_kernels(run)
    x, y = rings(points)
    before_and_after(run, x, y)
    best = max_margin(quadratic_features(x), y)
    pulled_back(run, x, y, best)
    noisy(run, points, trials)
    run.figure(
        "two-spaces",
        lambda axes: plot_spaces(axes, x, y, best),
        caption="Left: two classes that no line separates. Right: two of their three quadratic "
        "features, with the widest separating plane and its margin; the same boundary is drawn on "
        "the left, where it is a circle.",
        grid=(1, 2),
        size=(9, 4.2),
    )


def named_kernels(run: Run) -> None:
    """The quadratic and the Gaussian kernel are inner products of features."""
    x, z = run.randn(500, 2), run.randn(500, 2)
    squares = (x * z).sum(1).square()
    plain = torch.stack([x[:, 0] ** 2, x[:, 1] ** 2, x[:, 0] * x[:, 1]], 1)
    other = torch.stack([z[:, 0] ** 2, z[:, 1] ** 2, z[:, 0] * z[:, 1]], 1)
    says = run.states("M-02", r"\langle\phi(x),\phi(x')\rangle=(x^\top x')^2,\ \phi(x)=(x_1^2,x_2^2,\sqrt2x_1x_2)")
    says.equal((quadratic_features(x) * quadratic_features(z)).sum(1), squares, EXACT)
    says.fails("the factor √2 left out", (plain * other).sum(1))
    ends = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    says = run.states("M-02", r"K_{RBF}(0,1)=e^{-1/2}=0.60653")
    says.equal(gaussian()(ends)[0, 1], 0.60653, 5e-6)
    says.fails("the factor 1/2 left out", gaussian(math.sqrt(0.5))(ends)[0, 1])
    says = run.states("M-02", r"K_{RBF}(x,x)=1")
    says.equal(torch.cat([gaussian()(x).diagonal(), gaussian()(100 * x).diagonal()]), 1.0)
    says.fails("the quadratic kernel", polynomial(2).diagonal(torch.cat([x, 100 * x])))
    t = torch.linspace(-2, 2, 41, dtype=torch.float64)
    says = run.states(
        "M-02",
        r"K_{RBF}(x,x')=\sum_{k=0}^\infty\phi_k(x)\phi_k(x'),\ \phi_k(x)=e^{-x^2/2}x^k/\sqrt{k!}:\ \text{60 terms}",
    )
    says.equal(
        from_features(lambda v: gaussian_features(v, 60))(t),
        gaussian()(t),
        EXACT,
        where="on [-2, 2]: no finite number of features is exact, sixty are to rounding",
    )
    says.fails("the first 3", from_features(lambda v: gaussian_features(v, 3))(t))


def before_and_after(run: Run, x: Tensor, y: Tensor) -> None:
    """The distance between the hulls of the classes, in both spaces."""
    phi = quadratic_features(x)
    says = run.states("M-03", r"\text{circles of radius 1 and 2 in the plane: the distance of their hulls is 0}")
    says.equal(
        hull_distance(x, y),
        within=1e-10,
        where="so no line separates them; the linear program's certificate: Σαy(x,1) = 0 up to "
        f"{separate(x, y).residual:.0e}",
    )
    says.fails("after the feature map", hull_distance(phi, y))
    says = run.states("M-03", r"\text{after } \phi \text{ the largest margin is } \tfrac{4-1}{2\sqrt2}")
    says.equal(
        max_margin(phi, y).margin,
        3 / math.sqrt(8),
        1e-10,
        where="the features of |x| = r lie in the plane u + v = r², around (r²/2, r²/2, 0)",
    )
    says.fails("without the feature map", hull_distance(x, y) / 2)


def pulled_back(run: Run, x: Tensor, y: Tensor, best: MaxMargin) -> None:
    """The boundary in input space, from the features and from the kernel alone."""
    angle = torch.linspace(0, 2 * math.pi, 181, dtype=torch.float64)
    rays = torch.stack([angle.cos(), angle.sin()], 1)
    tilted = best.weight + torch.tensor([0.1, -0.1, 0.1], dtype=torch.float64)
    says = run.states("M-03", r"\{x:w^\top\phi(x)+b=0\} \text{ is the circle of radius } \sqrt{5/2}")
    says.equal(boundary_radius(rays, best.weight, best.bias), math.sqrt(2.5), 1e-9, where="in 181 directions")
    says.fails("another separating plane, not the one of largest margin", boundary_radius(rays, tilted, best.bias))
    grid = 2.5 * (2 * run.rand(300, 2) - 1)
    says = run.states(
        "M-02, M-03", r"w^\top\phi(x)=\sum_ic_iy_iK(x_i,x) \text{ with } K=(x^\top x')^2: \text{no features needed}"
    )
    says.equal(decision(polynomial(2), x, y, best.combination, grid), quadratic_features(grid) @ best.weight, 1e-9)
    says.fails("the linear kernel", decision(linear(), x, y, best.combination, grid))


def noisy(run: Run, points: int, trials: int) -> None:
    """How often noisy rings are separable in either space."""
    rows = []
    for noise in (0.0, 0.1, 0.3, 0.5, 0.7):
        in_plane = in_features = 0
        for _ in range(trials):
            x, y = rings(points)
            radius = 1 + noise * (2 * run.rand(points, 1) - 1) / x.norm(dim=1, keepdim=True)
            x = x * radius
            in_plane += bool(separate(x, y))
            in_features += bool(separate(quadratic_features(x), y))
        rows.append((noise, trials, in_plane, in_features))
    run.table(
        "noise",
        ["noise of the radius (±)", "samples", "separable in the plane", "separable after φ"],
        rows,
        caption="Rings of radius 1 and 2 with uniform noise: they stay apart up to ±1/2.",
    )
    apart = [row for row in rows if row[0] < 0.5]
    says = run.states("M-03", r"\text{noise below } \pm\tfrac12: \text{samples that are separable after } \phi")
    says.equal([row[3] for row in apart], trials)
    says.fails("noise ±0.7, where the rings overlap", rows[-1][3])


def rings(points: int) -> tuple[Tensor, Tensor]:
    """Equally spaced points on the circles of radius 1 and 2, in turn; labels -1 and +1."""
    angle = 2 * math.pi * torch.arange(points, dtype=torch.float64) / points
    y = torch.where(torch.arange(points) % 2 == 0, -1.0, 1.0).double()
    radius = 1.5 + 0.5 * y
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), y


def gaussian_features(t: Tensor, count: int) -> Tensor:
    orders = torch.arange(count, dtype=t.dtype)
    scale = torch.exp(-0.5 * torch.lgamma(orders + 1))
    return torch.exp(-t.square() / 2)[:, None] * t[:, None] ** orders * scale


def hull_distance(x: Tensor, y: Tensor) -> float:
    """The distance between the convex hulls of the two classes."""
    differences = x[y > 0][:, None] - x[y < 0]
    return float(minimum_norm_point(differences.flatten(0, 1))[0].norm())


def boundary_radius(rays: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Where the rays from 0 meet the quadratic boundary."""
    return (-b / (quadratic_features(rays) @ w)).sqrt()


def decision(kernel: Kernel, x: Tensor, y: Tensor, alpha: Tensor, new: Tensor) -> Tensor:
    """The projection on the vector between the hulls' nearest points, by the kernel alone."""
    c = 2 * alpha * y
    return kernel(new, x) @ c / (c @ kernel(x) @ c).sqrt()


def plot_spaces(axes: Any, x: Tensor, y: Tensor, best: MaxMargin) -> None:
    left, right = axes[0]
    phi = quadratic_features(x)
    for color, marker, label in ((COLORS[0], "o", -1), (COLORS[2], "^", 1)):
        for axis, where in ((left, x), (right, phi)):
            chosen = where[y == label]
            axis.scatter(
                chosen[:, 0],
                chosen[:, 1],
                s=18,
                zorder=3,
                color=color,
                marker=marker,
                label=f"y = {label}",
            )
    side = torch.linspace(-2.4, 2.4, 121, dtype=torch.float64)
    u, v = torch.meshgrid(side, side, indexing="xy")
    height = quadratic_features(torch.stack([u.flatten(), v.flatten()], 1)) @ best.weight
    levels = [-best.margin, 0.0, best.margin]
    styles: Any = ["--", "-", "--"]
    red = COLORS[1]
    left.contour(u, v, (height + best.bias).reshape(u.shape), levels=levels, colors=red, linestyles=styles)
    left.set_aspect("equal")
    left.set_xlabel("x₁")
    left.set_ylabel("x₂")
    left.set_title("input space")
    across = torch.linspace(-0.3, 4.4, 2, dtype=torch.float64)
    for level, style in zip(levels, styles, strict=True):
        up = (level - best.bias - best.weight[0] * across) / best.weight[1]
        right.plot(across, up, style, color=red)
    right.plot([], [], color=red, label="largest margin")
    right.set_xlim(-0.3, 4.4)
    right.set_ylim(-0.3, 4.4)
    right.set_aspect("equal")
    right.set_xlabel("x₁²")
    right.set_ylabel("x₂²")
    right.set_title("feature space, without its third axis √2 x₁x₂")
    right.legend(loc="upper right")
