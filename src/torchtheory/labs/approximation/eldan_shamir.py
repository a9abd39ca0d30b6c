"""Why one hidden layer is not enough: a density that spreads frequencies over balls."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from scipy import integrate, special
from torch import Tensor

from torchtheory.approximation.barron.sampled_networks import ball_points
from torchtheory.approximation.depth.ball_measure import (
    draw_band_limited,
    length_distribution,
    sphere_tube_share,
)
from torchtheory.approximation.depth.band_limited import (
    band_limited_root,
    covered_share,
    tube_share,
    tubes_needed,
    unit_volume_radius,
)
from torchtheory.labs.engine import Run, clopper_pearson, fit_slope, lab
from torchtheory.primer.function_spaces import fourier_transform

RADIUS = 3.0
CHANCE = 1e-6  # that a true statement fails by the draw


@lab(
    "eldan-shamir",
    room="approximation",
    covers=["A-86", "A-87", "L-110", "L-111"],
    title="A few ridge functions cover exponentially little of a ball of frequencies",
    errata=["band-limited-density-unit-ball"],
    full={"points": 400_000},
    least={"points": 1_000},
)
def eldan_shamir_lab(run: Run, points: int = 20_000) -> None:
    """The two computable steps of Eldan and Shamir's proof.

    The function whose transform is the indicator of the ball of volume 1 has a square that is a
    density, and errors weighted with it are errors of frequencies. The share of a ball that the
    tube around one line covers is a regularized beta function; it is met by counting points, and
    falls exponentially with the dimension. A network with four hidden units is transformed on a
    grid of the plane: seen through the density, its frequencies lie in four tubes. Look at the
    figures: the star, and how many tubes, hence units, half of the ball takes.

    Args:
        points: random points of a ball, for shares by counting.
    """
    density(run)
    drawn(run, points)
    star(run)
    tubes(run, points)
    spheres(run, points)


def density(run: Run) -> None:
    """The density, its normalization, and the identity of the loss."""
    dims = (1, 3, 5)
    masses = [mass(n, None) for n in dims]
    unit = [mass(n, 1.0) for n in dims]
    says = run.states(["A-86", "L-110"], r"R_n=\Gamma(\tfrac n2+1)^{1/n}/\sqrt\pi: \quad\int\varphi^2=1")
    says.equal(masses, 1, 1e-4, where="up to the length 200, and beyond it the first term of the tail")
    says.fails("the ball of radius 1", unit)
    run.refutes("band-limited-density-unit-ball", r"\text{unit ball, }n=3: \quad\int\varphi^2=1").equal(
        unit[1], 1, 1e-4
    )
    parseval(run)
    h = 1 / 32
    x = torch.arange(-64, 64, h, dtype=torch.float64)
    f = torch.cos(3 * x)
    xi, left = fourier_transform(f * band_limited_root(x.abs(), 1), -64.0, h)
    # cos(3x) lives at ±3/2π; times φ on those points plus the ball of radius 1/2
    outside = (xi.abs() - 3 / (2 * math.pi)).abs() > 0.55
    energy = left.abs().square()
    _, sharp = fourier_transform(f * (x.abs() < 1), -64.0, h)
    leaked = sharp.abs().square()
    says = run.states(
        "L-111",
        r"\operatorname{supp}\widehat{\sigma(\theta^\top\cdot)\varphi}\subseteq"
        r"\operatorname{span}\theta+B: \text{share of the energy outside}",
    )
    # φ is cut at A = 64: beyond an edge e of a band its transform is at most 1/(2π²A|ξ - e|), and
    # the cosine has two bands of half the height
    edges = torch.tensor([side * 3 / (2 * math.pi) + e for side in (-1, 1) for e in (-0.5, 0.5)], dtype=torch.float64)
    blur = 1 / (4 * math.pi**2 * 64) / (xi[outside][:, None] - edges).abs()
    says.at_most(
        energy[outside].sum() / energy.sum(),
        blur.sum(1).square().sum() / energy.sum(),
        where="what cutting φ at 64 lets out, 0.05 beyond the edges of the ball",
    )
    says.fails("a weight of compact support, which no ball of frequencies holds", leaked[outside].sum() / leaked.sum())


def parseval(run: Run) -> None:
    """Seen through φ, a function's error is that of frequencies spread over balls."""
    x = torch.arange(-4096, 4096, 1 / 16, dtype=torch.float64)
    apart = (torch.cos(3 * x) - torch.exp(-x.square())).square()
    xi = torch.linspace(-4, 4, 800_001, dtype=torch.float64)
    # the transforms of cosine and Gaussian, spread over [-1/2, 1/2]
    waves = sum(0.5 * ((xi - side * 3 / (2 * math.pi)).abs() <= 0.5) for side in (-1, 1))
    bump = 0.5 * (torch.special.erf(math.pi * (xi + 0.5)) - torch.special.erf(math.pi * (xi - 0.5)))
    exact = float((waves - bump).square().sum() * (xi[1] - xi[0]))
    says = run.states(["A-86", "L-110"], r"n=1: \quad\int(f-g)^2\varphi^2=\|\hat f*\hat\varphi-\hat g*\hat\varphi\|^2")
    says.equal(
        (apart * band_limited_root(x.abs(), 1).square()).sum() / 16,
        exact,
        1e-4,
        where="cosine and Gaussian: lengths up to 4096 on the left, convolutions in closed form on the right",
    )
    gaussian = math.sqrt(2) * torch.exp(-2 * math.pi * x.square())
    says.fails("φ the root of a Gaussian density, whose transform is no ball", (apart * gaussian).sum() / 16)
    dims = (1, 2, 3, 5, 8)
    says = run.states(
        "L-110",
        r"f,g=\cos2\pi a^\top x,\cos2\pi b^\top x: \quad\int(f-g)^2\varphi^2"
        r"=\tfrac14\|1_{B+a}+1_{B-a}-1_{B+b}-1_{B-b}\|^2",
    )
    says.equal(
        [wave_loss(n, partial(band_limited_root, dimension=n)) for n in dims],
        [ball_loss(n) for n in dims],
        1e-4,
        where="n = 1, 2, 3, 5, 8: means over spheres integrated up to the length 200; overlaps of balls",
    )
    says.fails(
        "φ the root of a Gaussian density",
        [wave_loss(n, partial(gaussian_root, dimension=n), 0.0) for n in dims],
    )


def gaussian_root(lengths: Tensor, dimension: int) -> Tensor:
    """The root of a Gaussian density of mass 1 at points of given lengths."""
    made: Tensor = math.pow(2, dimension) * torch.exp(-4 * math.pi * lengths.square())
    return made.sqrt()


def waves_apart(n: int) -> tuple[Tensor, Tensor]:
    """Two frequencies inside the ball of volume 1."""
    a, b = (torch.zeros(n, dtype=torch.float64) for _ in range(2))
    a[0], b[0] = 0.35 * unit_volume_radius(n), -0.6 * unit_volume_radius(n)
    if n > 1:
        b[1] = 0.5 * unit_volume_radius(n)
    return a, b


def ball_loss(n: int) -> float:
    """The squared norm of balls at ±a less balls at ±b, halved: overlaps of balls of volume 1."""
    a, b = waves_apart(n)
    centers, signs = torch.stack([a, -a, b, -b]), torch.tensor([1.0, 1.0, -1.0, -1.0]).double()
    reach = (torch.cdist(centers, centers) / (2 * unit_volume_radius(n))).clamp(max=1)
    overlaps = torch.as_tensor(special.betainc((n + 1) / 2, 0.5, (1 - reach.square()).numpy()))
    return float(signs @ overlaps @ signs) / 4


def wave_loss(n: int, root: Callable[[Tensor], Tensor], tail: float | None = None) -> float:
    """The integral of (f - g)²φ² for the two waves: their mean over every sphere, up to the length 200.

    Beyond, the waves cancel and 1 is left, times what φ² has there.
    """
    a, b = waves_apart(n)
    rho = torch.linspace(1e-6, 200, 200_001, dtype=torch.float64)

    def mean(frequency: Tensor) -> Tensor:
        z = 2 * math.pi * float(frequency.norm()) * rho.numpy()
        half = n / 2 - 1
        return torch.as_tensor(special.gamma(n / 2) * (2 / z) ** half * special.jv(half, z))

    apart = 1 + 0.5 * mean(2 * a) + 0.5 * mean(2 * b) - mean(a + b) - mean(a - b)
    surface = 2 * math.pi ** (n / 2) / special.gamma(n / 2)
    inside = integrate.simpson((apart * root(rho).square() * rho ** (n - 1)).numpy(), x=rho.numpy())
    beyond = unit_volume_radius(n) ** (n - 1) / (2 * math.pi**2 * 200) if tail is None else tail
    return float(surface * (inside + beyond))


def plane(half: float = 16.0, points: int = 512) -> tuple[Tensor, Tensor, float]:
    """A grid of the plane, the two coordinates, and its spacing."""
    h = 2 * half / points
    axis = -half + h * torch.arange(points, dtype=torch.float64)
    x, y = torch.meshgrid(axis, axis, indexing="ij")
    return x, y, h


def drawn(run: Run, points: int) -> None:
    """Radii, the density on the line and in the plane, and points drawn from it."""
    x = torch.linspace(-8, 8, 321, dtype=torch.float64)
    says = run.states("A-86", r"d=1: r=\tfrac12,\ \varphi(x)=\sin(\pi x)/(\pi x);\quad d=2: r=1/\sqrt\pi")
    says.equal(
        torch.cat([x.new_tensor([unit_volume_radius(1), unit_volume_radius(2)]), band_limited_root(x.abs(), 1)]),
        torch.cat([x.new_tensor([0.5, math.pi**-0.5]), torch.sinc(x)]),
        1e-9,
    )
    says.fails("the sinc in three dimensions", band_limited_root(x.abs(), 3), promised=torch.sinc(x))
    u, v, h = plane()
    phi = band_limited_root((u.square() + v.square()).sqrt(), 2)
    f, g = torch.cos(3 * u + v), torch.tanh(2 * v)
    xi, left = fourier_transform(f * phi, float(u[0, 0]), h)
    _, right = fourier_transform(g * phi, float(u[0, 0]), h)
    step = float(xi[1] - xi[0])
    apart = (left - right).abs().square()
    away = apart.sum() * step**2
    says = run.states("A-86", r"d=2: \quad\|\Phi-g\|^2_{L^2(\mu)}=\|\widehat{\Phi\varphi}-\widehat{g\varphi}\|^2_{L^2}")
    says.equal(away, ((f - g) * phi).square().sum() * h**2, 1e-9)
    lengths = (xi[:, None].square() + xi.square()).sqrt()
    own = apart[lengths <= unit_volume_radius(2)].sum() * step**2
    says.fails("frequencies of the ball alone, where φ has its own", own)
    # the transform of the density's root is the indicator of the ball, up to the cut at 16
    _, indicator = fourier_transform(phi, float(u[0, 0]), h)
    inside, beyond = lengths < 0.46, (lengths > 0.67) & (lengths < 4)
    says = run.states("A-86", r"\hat\varphi=1_{B_r}: \text{mean value inside }0.46\text{ and beyond }0.67\ (r=0.564)")
    says.equal([float(indicator.real[part].mean()) for part in (inside, beyond)], [1.0, 0.0], 0.01)
    says.fails("frequencies up to 0.92, beyond the ball", indicator.real[lengths < 0.92].mean(), promised=1.0)
    count = max(points // 2, 10_000)
    for n in (1, 2, 3, 5, 10):
        a, b = waves_apart(n)
        exact = ball_loss(n)
        seen, flat = (
            (torch.cos(2 * math.pi * z @ a) - torch.cos(2 * math.pi * z @ b)).square()
            for z in (draw_band_limited(count, n, run.generator), run.randn(count, n))
        )
        says = run.states(
            "L-110", rf"n={n}: \quad\mathbb E_{{x\sim\varphi^2}}(f-g)^2=\|\hat f*\hat\varphi-\hat g*\hat\varphi\|^2"
        )
        says.mean(seen, exact, against=(1.0, exact / 2), confidence=0.9999, where=f"{count} drawn points, two waves")
        says.fails("points of a Gaussian", flat)
    confidence = 1 - CHANCE / 12
    outside: list[float] = []
    wrong: list[float] = []
    for n in (1, 2, 5):
        found = draw_band_limited(points // 4, n, run.generator).norm(dim=1)
        flat = run.randn(points // 4, n).norm(dim=1)
        for at in (0.3, 0.7, 1.5, 4.0):
            exact = float(length_distribution(torch.tensor([at]), n))
            for sample, store in ((found, outside), (flat, wrong)):
                i = clopper_pearson(int((sample <= at).sum()), len(sample), confidence)
                store.append(max(0.0, i.low - exact, exact - i.high))
    says = run.states(
        "A-86",
        r"P(\|x\|\le\rho)=J_\nu^2(z)+2\textstyle\sum_{k\ge1}J_{\nu+k}^2(z)\text{ for drawn points; "
        r"distance outside the interval of the count}",
    )
    says.equal(outside, where="1, 2 and 5 dimensions, four lengths each, together at one in a million")
    says.fails("points of a Gaussian", wrong)


def star(run: Run) -> None:
    """A network (2, 4, 1), transformed on the plane."""
    u, v, h = plane()
    angles = torch.tensor([0.2, 0.9, 1.7, 2.6], dtype=torch.float64)
    directions = torch.stack([angles.cos(), angles.sin()], 1)
    offsets = torch.tensor([0.3, -0.5, 0.1, 0.4], dtype=torch.float64)
    net = sum(torch.tanh(10 * (d[0] * u + d[1] * v) + b) for d, b in zip(directions, offsets, strict=True))
    assert isinstance(net, Tensor)
    phi = band_limited_root((u.square() + v.square()).sqrt(), 2)
    xi, tubed = fourier_transform(net * phi, float(u[0, 0]), h)
    _, ring = fourier_transform(
        torch.special.bessel_j0(4 * math.pi * (u.square() + v.square()).sqrt()) * phi,
        float(u[0, 0]),
        h,
    )
    grid = torch.stack(torch.meshgrid(xi, xi, indexing="ij"), -1)
    squares = grid.square().sum(-1, keepdim=True) - (grid @ directions.T).square()
    near = squares.min(-1).values.clamp(min=0).sqrt()
    outside = near > unit_volume_radius(2) + 0.05
    energy, other = tubed.abs().square(), ring.abs().square()
    # near 0 the tubes cover everything
    far = grid.square().sum(-1) > 1
    says = run.states(
        ["A-87", "L-111"],
        r"\Phi=\textstyle\sum_{j\le4}\varrho_j(\langle w_j,\cdot\rangle): \quad\operatorname{supp}"
        r"\widehat{\Phi\varphi}\subset\bigcup_j(\operatorname{span}w_j+B_r)\text{, share of the "
        r"energy of }|\xi|>1\text{ outside}",
    )
    says.equal(
        energy[outside & far].sum() / energy[far].sum(),
        within=1e-3,
        where="φ falls like $|x|^{-3/2}$ and is cut at 16, which blurs the edges of the tubes",
    )
    says.fails("a radial function, whose frequencies fill a ring", other[outside & far].sum() / other[far].sum())
    run.figure(
        "star",
        lambda axes: plot_star(axes, xi, energy, directions),
        caption="Left: the transform of a sum of four ridge functions lives on four lines. Right: "
        "times φ, on four tubes (logarithm of the energy; dashed: radius r of the ball).",
        grid=(1, 2),
        size=(9, 4.2),
    )


def plot_star(axes: Any, xi: Tensor, energy: Tensor, directions: Tensor) -> None:
    left, right = axes[0]
    reach = 3.0
    r = unit_volume_radius(2)
    shown = xi.abs() <= reach
    picture = energy[shown][:, shown].clamp(min=1e-9).log10()
    right.imshow(picture.T, origin="lower", extent=(-reach, reach, -reach, reach), cmap="viridis", vmin=-6)
    for d in directions:
        normal = torch.stack([-d[1], d[0]])
        left.plot(*(torch.stack([-5 * d, 5 * d]).T), color="C0")
        for side in (r, -r):
            ends = torch.stack([-5 * d, 5 * d]) + side * normal
            right.plot(*ends.T, color="white", lw=0.8, ls="--")
    for axis, title in (
        (left, "support of $\\hat\\Phi$"),
        (right, "energy of $\\widehat{\\Phi\\varphi}$"),
    ):
        axis.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", title=title)
        axis.set(xlabel="$\\xi_1$", ylabel="$\\xi_2$")
        axis.grid(False)


def mass(n: int, radius: float | None) -> float:
    """The integral of φ² over lengths up to 200, and the mean of its oscillating tail beyond."""
    ball = unit_volume_radius(n) if radius is None else radius
    surface = 2 * math.pi ** (n / 2) / special.gamma(n / 2)
    rho = torch.linspace(1e-6, 200, 200_001, dtype=torch.float64)
    values = band_limited_root(rho, n, radius).square() * rho ** (n - 1)
    tail = ball ** (n - 1) / (2 * math.pi**2 * 200)
    return float(surface * (integrate.simpson(values.numpy(), x=rho.numpy()) + tail))


def tubes(run: Run, points: int) -> None:
    """One tube by formula and by counting; many tubes; the fall with the dimension."""
    dims = (2, 4, 6, 8)
    confidence = 1 - CHANCE / len(dims)
    away, wrong = [], []
    for n in dims:
        x = ball_points(points, n, RADIUS, generator=run.generator)
        axis = torch.zeros(1, n, dtype=torch.float64)
        axis[0, 0] = 1
        count = round(covered_share(x, axis) * points)
        found = clopper_pearson(count, points, confidence)
        sphere = RADIUS * x / x.norm(dim=1, keepdim=True)
        on_sphere = clopper_pearson(round(covered_share(sphere, axis) * points), points, confidence)
        exact = tube_share(n, RADIUS)
        away.append(max(0.0, found.low - exact, exact - found.high))
        wrong.append(max(0.0, on_sphere.low - exact, exact - on_sphere.high))
    says = run.states(
        "L-111",
        r"\text{one tube: share }I_{1/r^2}(\tfrac{n-1}2,\tfrac32)\text{; distance outside the interval of the count}",
    )
    says.equal(away, where="four dimensions, together at one in a million")
    says.fails("points of the sphere instead of the ball", wrong)
    x = ball_points(points, 6, RADIUS, generator=run.generator)
    lines = run.randn(20, 6)
    lines = lines / lines.norm(dim=1, keepdim=True)
    near = clopper_pearson(round(covered_share(x / RADIUS, lines) * points), points)
    many = clopper_pearson(round(covered_share(x, lines) * points), points)
    says = run.states("L-111", r"m=20\text{ tubes cover at most }m\,I_{1/r^2}(\tfrac{n-1}2,\tfrac32)")
    says.at_most(many, 20 * tube_share(6, RADIUS))
    says.fails("the ball of radius 1, all of which one tube covers", near)
    high = list(range(20, 201, 20))
    fall = fit_slope(high, [math.log(tube_share(n, RADIUS)) for n in high], log=False)
    small = fit_slope(high, [math.log(tube_share(n, 1.5)) for n in high], log=False)
    says = run.states("L-111", r"r=3>e: \quad\ln\text{share falls by at least 1 a dimension, so share}\lesssim me^{-n}")
    says.at_most(fall.estimate, -1)
    says.fails("r = 1.5 < e: slower than $e^{-n}$", small.estimate)
    shown = range(2, 41)
    run.curves(
        "tubes",
        shown,
        {f"r = {radius:g}": [tubes_needed(0.5, n, radius) for n in shown] for radius in (1.5, 2.0, 3.0)},
        axes=("dimension $n$", "tubes (hidden units)"),
        log="y",
        caption="Tubes needed to cover half of a ball of radius r: exponential in the dimension.",
    )
    run.table(
        "density",
        ["n", "$R_n$", "share of one tube, r = 3", "tubes for half of the ball"],
        [[n, unit_volume_radius(n), tube_share(n, RADIUS), tubes_needed(0.5, n, RADIUS)] for n in (2, 5, 10, 20)],
        caption="Radius of the ball of volume 1, and tubes in a ball of radius 3",
    )


def spheres(run: Run, points: int) -> None:
    """Tubes on a sphere of frequencies, as the monograph counts them."""
    ratio = 2.0
    dims = (2, 3, 5, 8)
    confidence = 1 - CHANCE / len(dims)
    away: list[float] = []
    wrong: list[float] = []
    for d in dims:
        x = run.randn(points // 2, d)
        axis = torch.zeros(1, d, dtype=torch.float64)
        axis[0, 0] = 1
        exact = sphere_tube_share(d, ratio)
        for rows, store in (
            (ratio * x / x.norm(dim=1, keepdim=True), away),
            (ball_points(points // 2, d, ratio, generator=run.generator), wrong),
        ):
            i = clopper_pearson(round(covered_share(rows, axis) * len(rows)), len(rows), confidence)
            store.append(max(0.0, i.low - exact, exact - i.high))
    says = run.states(
        "A-87",
        r"\text{one tube: share }I_{(r/\rho)^2}(\tfrac{d-1}2,\tfrac12)\text{ of the sphere of "
        r"radius }\rho=2r\text{; distance outside the interval of the count}",
    )
    says.equal(away, where="four dimensions, together at one in a million")
    says.fails("points of the ball instead of the sphere", wrong)
    lines = run.randn(20, 8)
    lines = lines / lines.norm(dim=1, keepdim=True)
    x = run.randn(points // 2, 8)
    x = x / x.norm(dim=1, keepdim=True)
    many, near = (clopper_pearson(round(covered_share(s * x, lines) * len(x)), len(x)) for s in (ratio, 1.0))
    says = run.states("A-87", r"n=20\text{ tubes: share}\le n\,I_{(r/\rho)^2}(\tfrac{d-1}2,\tfrac12)")
    says.at_most(many, 20 * sphere_tube_share(8, ratio))
    says.fails("the sphere of radius r itself", near)
    high = list(range(20, 201, 20))
    fall = fit_slope(high, [math.log(sphere_tube_share(d, ratio)) for d in high], log=False)
    says = run.states(
        "A-87",
        r"\rho/r=2: \quad\ln\text{share falls by at least }\ln2\text{ a dimension, so half of the "
        r"sphere takes a number of tubes exponential in }d",
    )
    says.at_most(fall.estimate, -math.log(2))
    says.fails(
        "ρ = r: one tube has it all",
        fit_slope(high, [math.log(sphere_tube_share(d, 1.0)) for d in high], log=False).estimate,
    )
