"""Fourier pairs, the convolution theorem, and Barron's constant in every way it can be had."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from scipy import special
from torch import Tensor

from torchtheory.approximation.barron.constants import (
    gaussian_density,
    grid_barron_constant,
    monte_carlo_barron_constant,
    radial_barron_constant,
    root_dimension_bound,
)
from torchtheory.approximation.barron.fourier_pairs import FOURIER_PAIRS, convolve_on_grid
from torchtheory.approximation.barron.spectra import GaussianBump, PlaneWaves, RidgeSpectrum
from torchtheory.labs.engine import Interval, Run, fit_slope, lab
from torchtheory.primer.function_spaces import fourier_transform

PAIRS = {pair.name: pair for pair in FOURIER_PAIRS}
CONFIDENCE = 1 - 1e-8  # of the sampled claims: they fail by chance once in a hundred million runs


@lab(
    "barron-constants",
    room="approximation",
    covers=["A-103", "L-093", "L-094", "L-095", "L-113", "S-36", "X-19"],
    title="Barron's constant by formula, quadrature, FFT and sampling; kinks make it infinite",
    errata=["gaussian-density-positive-exponent", "barron-constant-without-modulus"],
    full={"draws": 400_000, "points": 4096},
    least={"draws": 1_000, "points": 256},
)
def barron_constants_lab(run: Run, draws: int = 20_000, points: int = 1024) -> None:
    """The transform on a grid meets closed forms, and the first moment of the magnitudes follows.

    Fourier pairs on the line are compared with the fast transform, with inversion and Parseval;
    convolutions are products of transforms. Then Barron's constant: closed forms for waves,
    products of waves, Gaussians and ridge functions against radial quadrature, a grid and Monte
    Carlo with its interval. A kink or a jump makes it infinite, which shows as growth under
    refinement. Last the Gaussian density in many dimensions: the constant vanishes, grows slowly
    or explodes, depending on its width. Look at both figures.

    Args:
        draws: random frequencies for integrals by Monte Carlo.
        points: of the grid of the fast transform.
    """
    transforms(run, points)
    convolutions(run)
    closed_forms(run)
    growth = refinement(run)
    sampled(run, draws)
    density(run)
    missing_modulus(run)
    run.figure(
        "constants",
        lambda axes: plot(axes, growth),
        caption="Left: the constant on finer and finer grids settles for the Gaussian and grows "
        "without end for a kink (like the logarithm) and a jump (like 1/h). Right: the constant "
        "of a Gaussian density by dimension.",
        grid=(1, 2),
    )


def on_grid(name: str, points: int, half: float) -> tuple[Tensor, Tensor, Tensor]:
    x = (torch.arange(points, dtype=torch.float64) - points // 2) * (2 * half / points)
    values = PAIRS[name].function(x)
    frequencies, transform = fourier_transform(values, float(x[0]), 2 * half / points)
    return x, frequencies, transform


def transforms(run: Run, points: int) -> None:
    """FFT against closed forms, inversion, Parseval."""
    _, w, found = on_grid("gaussian", points, 8.0)
    exact = PAIRS["gaussian"].transform(w)
    _, _, box = on_grid("box", points, 8.0)
    says = run.states("L-093", r"\widehat{e^{-\pi x^2}}=e^{-\pi\xi^2}")
    says.equal((found - exact).abs().max(), within=1e-12)
    says.fails(
        "a function with a jump: the grid folds its slowly falling frequencies back",
        (box - PAIRS["box"].transform(w)).abs().max(),
    )
    # a Riemann sum of a function with a jump in derivative j is off by O(h^(j+1))
    for name, order in (("box", 1), ("triangle", 2), ("exponential", 2)):
        errors = []
        for n in (points, 4 * points):
            _, w, found = on_grid(name, n, 8.0)
            errors.append(float((found - PAIRS[name].transform(w)).abs().max()))
        run.states(
            "L-093",
            rf"\text{{{name}: four times finer, the transform's error is }}\tfrac12 4^{order} \text{{ times smaller}}",
        ).at_most(errors[1] / errors[0], 2 / 4**order)
    x, w, found = on_grid("gaussian", points, 8.0)
    step = float(w[1] - w[0])
    places = torch.linspace(-1.5, 1.5, 7, dtype=torch.float64)
    waves = torch.exp(2j * math.pi * torch.outer(places, w))
    back = (waves @ found).real * step
    backwards = (waves.conj() @ (found * torch.exp(-2j * math.pi * 0.3 * w))).real * step
    says = run.states("L-093", r"f(x)=\int\hat f(\xi)e^{2\pi i\xi x}d\xi")
    says.equal(back, PAIRS["gaussian"].function(places), 1e-12)
    says.fails(
        "the sign of the exponent as in the transform itself, for the shifted Gaussian",
        backwards,
        promised=PAIRS["gaussian"].function(places - 0.3),
    )
    norm = PAIRS["gaussian"].function(x).square().sum() * (x[1] - x[0])
    angular = found.abs().square().sum() * step * 2 * math.pi
    says = run.states("L-093", r"\|f\|_2=\|\hat f\|_2")
    says.equal(found.abs().square().sum() * step, norm, 1e-12)
    says.fails("angular frequencies without the factor 1/2π", angular)


def convolutions(run: Run) -> None:
    """Convolution theorem: against the double sum and for two Gaussians."""
    f, g = run.randn(40), run.randn(25)
    direct = torch.nn.functional.conv1d(f[None, None], g.flip(0)[None, None], padding=24)[0, 0]
    circular = torch.fft.irfft(torch.fft.rfft(f) * torch.fft.rfft(g, 40), 40)
    says = run.states("L-094", r"\widehat{f*g}=\hat f\hat g: \text{FFT against the direct sum}")
    says.equal(convolve_on_grid(f, g, 1.0), direct, 1e-12)
    says.fails("without zero-padding the ends wrap around", circular, promised=direct[:40].contiguous())
    h = 1 / 16
    x = torch.arange(-16, 16, h, dtype=torch.float64)

    def normal(at: Tensor, deviation: float) -> Tensor:
        return torch.exp(-at.square() / (2 * deviation**2)) / (deviation * math.sqrt(2 * math.pi))

    both = convolve_on_grid(normal(x, 1.0), normal(x, 1.5), h)
    place = -32 + h * torch.arange(len(both), dtype=torch.float64)
    says = run.states("L-094", r"N(0,\sigma_1^2)*N(0,\sigma_2^2)=N(0,\sigma_1^2+\sigma_2^2)")
    says.equal(both, normal(place, math.hypot(1.0, 1.5)), 1e-12)
    says.fails("deviations added, not variances", both, promised=normal(place, 2.5))


def closed_forms(run: Run) -> None:
    """Exact constants, scaling, translation."""
    exact = [GaussianBump(d).barron_constant for d in (1, 2, 3, 10)]
    radial = [radial_barron_constant(angular_bell(d), d).value for d in (1, 2, 3, 10)]
    in_cycles = [radial_barron_constant(cycles_bell(d), d).value for d in (1, 2, 3, 10)]
    says = run.states(["S-36", "L-095", "X-19"], r"e^{-|x|^2/2}: C_f=\sqrt2\,\Gamma(\tfrac{d+1}2)/\Gamma(\tfrac d2)")
    says.equal(radial, exact, 1e-8)
    says.fails("frequencies in cycles: another constant, by a factor 2π", in_cycles)
    in_cycles_too(run, in_cycles)
    says = run.states(["S-36", "X-19"], r"C_{\text{Gauss}}\le\sqrt d")
    says.at_most(
        [GaussianBump(d).barron_constant for d in (1, 2, 3, 10, 100)], [math.sqrt(d) for d in (1, 2, 3, 10, 100)]
    )
    says.fails("half as wide as the unit Gaussian", [GaussianBump(d, 0.5).barron_constant for d in (1, 2, 3, 10, 100)])
    # waves with whole frequencies on one period, by the discrete transform
    a = torch.tensor([[2.0], [5.0]], dtype=torch.float64)
    waves = PlaneWaves(torch.tensor([1.0, -0.7], dtype=torch.float64), a, run.randn(2))
    product = waves * PlaneWaves(torch.ones(1, dtype=torch.float64), a[:1] + 9)
    found = [period_constant(f) for f in (waves, product)]
    says = run.states(
        "S-36",
        r"\textstyle\sum_jc_j\cos(a_j^\top x+\varphi_j): C_f=\sum_j|c_j||a_j|\text{, and for a product of waves}",
    )
    says.equal(found, [waves.barron_constant, product.barron_constant], 1e-10)
    says.fails(
        "frequencies that are not different: two opposite waves cancel",
        period_constant(opposite := canceling(a)),
        promised=opposite.barron_constant,
    )
    x = torch.arange(-60, 60, 0.0625, dtype=torch.float64)
    bump = GaussianBump(1)

    def on_line(values: Tensor) -> float:
        return grid_barron_constant(values, -60.0, 0.0625).value

    base = on_line(bump(x[:, None]))
    says = run.states(["L-095", "S-36"], r"C_{f(sx)}=s\,C_f,\quad C_{f(\cdot-c)}=C_f,\quad C_{g(u^\top x)}=|u|C_g")
    says.equal(
        [
            on_line(bump(3 * x[:, None])),
            on_line(bump(x[:, None] - 5)),
            RidgeSpectrum(bump, torch.tensor([0.0, 2.0]).double()).barron_constant,
        ],
        [3 * base, base, 2 * bump.barron_constant],
        2e-3,
        where="the kink of |ω| at 0 costs the grid a quadratic error in its spacing",
    )
    says.fails("scaled in height as well as in width", on_line(3 * bump(3 * x[:, None])), promised=3 * base)


def in_cycles_too(run: Run, unit: list[float]) -> None:
    """The constant of the monograph, with frequencies in cycles."""
    dims = (1, 2, 3, 10)
    ratios = [math.exp(special.gammaln((d + 1) / 2) - special.gammaln(d / 2)) for d in dims]
    # e^{-π|x|²} is its own transform
    own = [radial_barron_constant(lambda r: math.exp(-math.pi * r * r), d).value for d in dims]
    x = torch.arange(-40, 40, 1 / 8, dtype=torch.float64)
    line = grid_barron_constant(torch.exp(-x.square() / 2), -40.0, 1 / 8)
    says = run.states(
        "A-103",
        r"C_g=\int\|\xi\||\hat g(\xi)|d\xi: \quad\frac{\sqrt2\,\Gamma(\frac{d+1}2)}{2\pi\Gamma(\frac d2)}\text{ for "
        r"}e^{-|x|^2/2},\quad\frac{\Gamma(\frac{d+1}2)}{\sqrt\pi\Gamma(\frac d2)}\text{ for }e^{-\pi|x|^2}",
    )
    says.equal(
        [*unit, *own],
        [*(math.sqrt(2) * q / (2 * math.pi) for q in ratios), *(q / math.sqrt(math.pi) for q in ratios)],
        1e-8,
        where="d = 1, 2, 3, 10",
    )
    says.fails(
        "angular frequencies",
        [GaussianBump(d).barron_constant for d in dims],
        promised=[math.sqrt(2) * q / (2 * math.pi) for q in ratios],
    )
    # Euler-Maclaurin: the corner of |ξ| at 0 costs the sum over the grid ĝ(0)Δξ²/6
    missing = math.sqrt(2 * math.pi) / (6 * 80**2)
    wider = torch.arange(-80, 80, 1 / 8, dtype=torch.float64)
    finer = grid_barron_constant(torch.exp(-wider.square() / 2), -80.0, 1 / 8)
    says = run.states(
        "A-103", r"d=1\text{, by the FFT on }[-40,40]: \quad(C_g-\text{estimate})/(\hat g(0)\Delta\xi^2/6)"
    )
    says.equal((unit[0] - line.in_cycles) / missing, 1, 1e-2)
    says.fails("a grid of twice the length", (unit[0] - finer.in_cycles) / missing)
    many = (10, 40, 160, 640)
    growth = [GaussianBump(d).barron_constant / (2 * math.pi) for d in many]
    says = run.states("A-103", r"C_g\sim\sqrt d/(2\pi): \text{dimension-free only through }C_g")
    says.equal(fit_slope(many, growth).estimate, 0.5, 0.01)
    says.fails(
        "a bump that gets wider like the root of d",
        fit_slope(many, [GaussianBump(d, d**0.5).barron_constant for d in many]).estimate,
    )


def angular_bell(d: int) -> Callable[[float], float]:
    """The transform of the unit Gaussian bump, angular frequencies."""
    return lambda rho: math.exp(-(rho**2) / 2) / (2 * math.pi) ** (d / 2)


def cycles_bell(d: int) -> Callable[[float], float]:
    """The same in cycles."""
    return lambda rho: (2 * math.pi) ** (d / 2) * math.exp(-2 * (math.pi * rho) ** 2)


def canceling(a: Tensor) -> PlaneWaves:
    return PlaneWaves(torch.tensor([1.0, -1.0], dtype=torch.float64), torch.cat([a[:1], a[:1]]))


def period_constant(f: PlaneWaves, points: int = 256) -> float:
    x = torch.arange(points, dtype=torch.float64) * (2 * math.pi / points)
    coefficients = torch.fft.fft(f(x[:, None])) / points
    whole = torch.fft.fftfreq(points, 1 / points, dtype=torch.float64)
    return float((coefficients.abs() * whole.abs()).sum())


def refinement(run: Run) -> dict[str, list[tuple[float, float]]]:
    """A finite constant settles under refinement, an infinite one grows."""
    growth: dict[str, list[tuple[float, float]]] = {}
    for name in ("gaussian", "triangle", "box"):
        growth[name] = []
        for level in range(4, 11):
            h = 2.0**-level
            x = torch.arange(-16, 16, h, dtype=torch.float64)
            value = grid_barron_constant(PAIRS[name].function(x), -16.0, h).value
            growth[name].append((h, value))
    last = {name: rows[-1][1] / rows[-2][1] for name, rows in growth.items()}
    says = run.states("L-095", r"C_f<\infty: \text{the estimate on a grid does not change when the grid is halved}")
    says.equal(last["gaussian"], 1, 1e-3)
    says.fails("a kink: no continuous gradient, infinite constant", last["triangle"])
    says = run.states("L-095", r"\text{jump: the estimate doubles when the grid is halved}")
    says.equal(last["box"], 2, 0.05)
    says.fails("a smooth function", last["gaussian"])
    rows = [[h, *(growth[n][i][1] for n in growth)] for i, (h, _) in enumerate(growth["box"])]
    run.table(
        "refinement",
        ["grid spacing", "Gaussian", "triangle", "box"],
        rows,
        caption="Barron's constant (angular) on finer and finer grids; exact: 2, ∞, ∞",
    )
    return growth


def sampled(run: Run, draws: int) -> None:
    """Importance sampling with an interval, and the tilted sampler."""
    d = 5
    bump = GaussianBump(d)
    w = 1.3 * run.randn(draws, d)

    def normal(at: Tensor, deviation: float) -> Tensor:
        squares = at.square().sum(1) / (2 * deviation**2)
        bell: Tensor = torch.exp(-squares) / (2 * math.pi * deviation**2) ** (d / 2)
        return bell

    def estimate(deviation: float) -> Interval:
        return monte_carlo_barron_constant(lambda v: normal(v, 1.0), lambda v: normal(v, deviation), w, CONFIDENCE)

    good, wrong = estimate(1.3), estimate(1.0)
    says = run.states(["L-095", "S-36"], r"C_f=\mathbb E_q\,|\omega||F(\omega)|/q(\omega)")
    says.mean(good, bump.barron_constant, against=(bump.mass, bump.barron_constant / 2))
    says.fails("another density than the one drawn from", wrong)
    tilted, _ = bump.draw(draws, run.generator)
    plain, _ = bump.draw_plain(draws, run.generator)
    # under |ω||F|/C the mean of 1/|ω| is mass/C
    says = run.states("L-093", r"\omega\sim|\omega||F|/C_f: \quad\mathbb E\,1/|\omega|=\|F\|_1/C_f")
    ratio = bump.mass / bump.barron_constant
    says.mean(1 / tilted.norm(dim=1), ratio, against=(1 / ratio, ratio / 2), confidence=CONFIDENCE)
    says.fails("drawn from |F| without the weight", 1 / plain.norm(dim=1))


def density(run: Run) -> None:
    """Problem 1: the Gaussian density."""
    dims = (1, 2, 5, 20, 100, 1000)
    wide, narrow, even = 0.5, 0.3, 1 / math.sqrt(2 * math.pi)
    exact = [gaussian_density(d, wide).barron_constant for d in dims]
    bound = [root_dimension_bound(gaussian_density(d, wide)) for d in dims]
    radial = radial_barron_constant(lambda rho: math.exp(-(rho**2) / 2) / (2 * math.pi), 1)
    says = run.states("L-113", r"N(0,1): \textstyle\int\|\omega\||\hat f|d\omega=1/(2\pi^2)")
    says.equal(radial.in_cycles, 1 / (2 * math.pi**2), 1e-10)
    says.fails("angular frequencies", radial.value)
    says = run.states("L-113", r"C_f\le\frac{\sqrt d}\sigma(2\pi\sigma^2)^{-d/2}")
    says.at_most(exact, bound)
    says.fails("the normalizing factor left out", [GaussianBump(d, wide).barron_constant for d in dims])
    ratios = [e / b for e, b in zip(exact, bound, strict=True)]
    run.states("L-113", r"1-C_f/\text{bound}\le\frac1{3d}: \text{the bound becomes exact}").at_most(
        [1 - r for r in ratios[1:]], [1 / (3 * d) for d in dims[1:]], where="the ratio is 1 - 1/(4d) + O(1/d²)"
    )
    says = run.states("L-113", r"2\pi\sigma^2>1\Rightarrow C_f(d+1)<C_f(d),\ d=20,100,1000")
    at = (20, 100, 1000)
    after, before = ([gaussian_density(d + i, wide).barron_constant for d in at] for i in (1, 0))
    says.below(after, before)
    says.fails(
        "2πσ² < 1: it explodes",
        [gaussian_density(d + 1, narrow).barron_constant for d in at],
        promised=[gaussian_density(d, narrow).barron_constant for d in at],
    )
    says = run.states("L-113", r"2\pi\sigma^2=1\Rightarrow C_f/\sqrt{2\pi d}\to1")
    says.equal(gaussian_density(1000, even).barron_constant / math.sqrt(2 * math.pi * 1000), 1, 1e-3)
    says.fails("σ 1 % larger", gaussian_density(1000, 1.01 * even).barron_constant / math.sqrt(2000 * math.pi))
    x = torch.arange(-8, 8, 1 / 64, dtype=torch.float64)
    printed = math.sqrt(2 * math.pi) * torch.exp(-x.square() / 2)
    run.refutes(
        "gaussian-density-positive-exponent", r"\int(2\pi\sigma^2)^{d/2}e^{-|x|^2/2\sigma^2}dx=\hat f(0)=1"
    ).equal(printed.sum() / 64, 1, 1e-9)


def missing_modulus(run: Run) -> None:
    """Without the modulus the sine would have constant 0, and no error with one unit."""
    a = 3.0
    x = torch.linspace(-1, 1, 801, dtype=torch.float64)
    f = torch.sin(a * x)
    best = math.inf
    for t in x[::8]:
        step = torch.stack([(x > t).double(), torch.ones_like(x)], 1)
        fit = torch.linalg.lstsq(step, f[:, None], driver="gelsd").solution
        best = min(best, float((step @ fit - f[:, None]).square().mean()))
    # F(±a) = ±1/2i
    printed = abs(a * 1 / 2j + a * -1 / 2j)
    run.refutes(
        "barron-constant-without-modulus",
        r"\sin3x, n=1: \quad\min_G\int(G-f)^2d\mu\le\Big(2r\Big|\int\hat f|\omega|\Big|\Big)^2/n=0",
    ).at_most(best, (2 * printed) ** 2, 1e-9)


def plot(axes: Any, growth: dict[str, list[tuple[float, float]]]) -> None:
    left, right = axes[0]
    for name, rows in growth.items():
        left.loglog([1 / r[0] for r in rows], [r[1] for r in rows], "o-", ms=3, label=name)
    left.set(xlabel="points per unit length", ylabel="estimate of $C_f$", title="finer grids")
    left.legend()
    dims = range(1, 101)
    for deviation, label in (
        (0.5, "σ = 0.5"),
        (1 / math.sqrt(2 * math.pi), "2πσ² = 1"),
        (0.3, "σ = 0.3"),
    ):
        values = [gaussian_density(d, deviation).barron_constant for d in dims]
        right.semilogy(dims, values, label=label)
    right.set(xlabel="dimension $d$", ylabel="$C_f$", title="density of $N(0,σ^2I)$")
    right.legend()
