"""Cartoon-like functions: how few terms, and how few weights, an edge takes."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import network_size
from torchtheory.approximation.dictionaries.best_terms import (
    best_terms_errors,
    haar_transform,
    inverse_haar_transform,
    largest_terms,
)
from torchtheory.approximation.dictionaries.cartoon_networks import (
    cartoon_error,
    cartoon_network,
    polygon_distance,
)
from torchtheory.approximation.dictionaries.cartoons import Cartoon, Waves, cartoon
from torchtheory.approximation.dictionaries.shearlets import shearlet_frame
from torchtheory.labs.engine import COLORS, Interval, Run, fit_slope, lab, mean_interval


class Curves(NamedTuple):
    """Errors of several cartoons, one row each, against sizes."""

    sizes: list[int]
    errors: Tensor

    @property
    def slope(self) -> Interval:
        """Student's interval over the cartoons of the fitted exponents."""
        return mean_interval([fit_slope(self.sizes, row).estimate for row in self.errors])


@lab(
    "cartoon-functions",
    room="approximation",
    covers=["X-40", "X-44", "X-48"],
    title="Cartoons: Fourier needs M⁻¹ᐟ⁴, wavelets M⁻¹ᐟ², networks M⁻¹",
    full={"resolution": 1024, "cartoons": 16, "doublings": 4},
    least={"cartoons": 6, "resolution": 128, "doublings": 3},
)
def cartoon_functions(run: Run, resolution: int = 256, cartoons: int = 12, doublings: int = 3) -> None:
    """A cartoon is smooth but for a jump along a curve, and the jump decides how fast methods are.

    Random cartoons are drawn with norms at most 1. The best M terms of an orthonormal basis leave
    the sum of the squares of all other coefficients: for one jump on the line that is geometric
    in M for Haar and $M^{-1/2}$ for Fourier, and for cartoons $M^{-1/2}$ and $M^{-1/4}$. Networks that
    follow the curve by horizon patches reach $M^{-n/2}$ for curves of smoothness n = 1, 2, which is
    optimal. The exponents' 99% interval over the cartoons, widened by 0.1, contains the promised
    one for the bases, and reaches it or more for the networks. Shearlets reach $M^{-1}$ up to
    logarithms, but only where M is large beside the number of directions: pictures of a few hundred
    pixels do not show it in the sum of the squares left out. They show why, scale by scale: two
    scales finer a quarter of the energy is left, on twice as many terms (Haar: on four times as
    many). Look at where the kept terms go.

    Args:
        resolution: pixels per side of the images.
        cartoons: random cartoons per smoothness.
        doublings: networks per cartoon, each with twice the sides of the one before.
    """
    run.assumes(
        resolution.bit_count() == 1,
        f"the Haar basis is one of images whose side is a power of 2, and {resolution} is none",
    )
    drawn = {n: [cartoon(n, generator=run.generator) for _ in range(cartoons)] for n in (1, 2)}
    norms(run, drawn)
    one_jump(run)
    images = [c.image(resolution) for c in drawn[2]]
    fourier, haar = bases(run, images)
    networks = {n: network_errors(drawn[n], doublings) for n in (1, 2)}
    rates(run, fourier, haar, networks)
    shearlets = by_scales(run, drawn[2], size=min(512, max(256, resolution)))
    run.table(
        "exponents",
        ["method", "n", "promised", "fitted", "99% interval over the cartoons"],
        [
            (name, n, promise, found.estimate, f"[{found.low:.3f}, {found.high:.3f}]")
            for name, n, promise, found in (
                ("Fourier", 2, -0.25, fourier.slope),
                ("Haar", 2, -0.5, haar.slope),
                ("shearlets, from two scales", 2, -1.0, shearlets),
                ("network", 1, -0.5, networks[1].slope),
                ("network", 2, -1.0, networks[2].slope),
            )
        ],
        caption="How the L2 error falls with the number of terms, or of weights",
    )
    run.figure(
        "cartoons",
        lambda axes: pictures(axes, drawn, images[0]),
        grid=(2, 3),
        size=(10, 6.4),
        caption="Top: cartoons with curves of smoothness 1 and 2, and a network for the second. "
        "Bottom: the best 300 Fourier and Haar terms of the second, with the network's gray scale, "
        "and the network's error.",
    )
    run.figure(
        "rates",
        lambda axis: lines(axis, fourier, haar, networks),
        caption="L2 errors of cartoons (thin: each; dashed: the promised exponent).",
    )


def norms(run: Run, drawn: dict[int, list[Cartoon]]) -> None:
    """The norms by differences of the functions themselves, and the curve inside the square."""
    angle = torch.linspace(0, 2 * math.pi, 20001, dtype=torch.float64)
    found, inside, apart = [], [], []
    for n, row in drawn.items():
        for c in row:
            found.append(largest_derivative(c.radius, angle, n))
            line = torch.linspace(0, 1, 2001, dtype=torch.float64)
            for part in (c.background, c.inside):
                for fixed in (0.2, 0.7):
                    along = Waves(
                        part.amplitude,
                        part.frequency[:, :1],
                        part.phase + fixed * part.frequency[:, 1],
                        part.constant,
                    )
                    found.append(largest_derivative(along, line, n))
            curve = c.boundary(angle)
            inside.append(float(torch.minimum(curve, 1 - curve).min()))
            apart.append(float(c.radius(angle.unsqueeze(1)).min()))
    c = drawn[2][0]
    wild = Waves(c.radius.amplitude * 20, c.radius.frequency, c.radius.phase, 0.3)
    says = run.states("X-40", r"\|r\|_{C^n}\le1,\ \|f_1\|_{C^n}\le1,\ \|f_2\|_{C^n}\le1 \text{ (by differences)}")
    says.at_most(found, 1.0, 1e-3)
    says.fails("a radius with 20 times the waves", largest_derivative(wild, angle, 2))
    away = Cartoon(2, c.background, c.inside, wild, c.center).boundary(angle)
    says = run.states("X-40", r"\operatorname{dist}(\partial B,\partial[0,1]^2)>0")
    says.above(inside, 0.0)
    says.fails("a radius with 20 times the waves", float(torch.minimum(away, 1 - away).min()))
    says = run.states("X-40", r"r(\theta)>0: \text{ the curve is closed and meets every ray once}")
    says.above(apart, 0.0)
    says.fails("a radius with 20 times the waves", float(wild(angle.unsqueeze(1)).min()))


def largest_derivative(f: Waves, x: Tensor, order: int) -> float:
    values = f(x.unsqueeze(1))
    largest = [float(values.abs().max())]
    for _ in range(order):
        values = values.diff() / (x[1] - x[0])
        largest.append(float(values.abs().max()))
    return max(largest)


def one_jump(run: Run) -> None:
    """Exact tails on the line: a jump at 1/3 for Haar, at 1/2 for Fourier."""
    levels = 16
    size = 1 << levels
    cell = torch.arange(size, dtype=torch.float64)
    step = ((cell + 1) / size - 1 / 3).clamp(0, 1 / size) * size
    coefficients = haar_transform(step) / math.sqrt(size)
    counts = list(range(1, 13))
    smooth = haar_transform((cell + 0.5) / size) / math.sqrt(size)
    says = run.states("X-44", r"\mathbf 1[x\ge\tfrac13], \text{ Haar: }\Sigma_M=\tfrac{\sqrt2}3\,2^{-(M-1)/2}")
    says.equal(exact_tail(coefficients, counts, 2 / 3), [math.sqrt(2) / 3 * 2 ** (-(m - 1) / 2) for m in counts], 1e-6)
    says.fails("a slope instead of a jump", exact_tail(smooth, counts, 1 / 3))
    halves = (cell >= size // 2).double()
    waves = torch.fft.fft(halves, norm="ortho") / math.sqrt(size)
    pairs = list(range(1, 60, 6))
    tail = torch.special.polygamma(1, torch.tensor(pairs, dtype=torch.float64) + 0.5) / 4
    bump = torch.fft.fft(torch.sin(math.pi * cell / size), norm="ortho") / math.sqrt(size)
    says = run.states(
        "X-44", r"\mathbf 1[x\ge\tfrac12], \text{ Fourier: }\Sigma_{1+2q}^2=\tfrac2{\pi^2}\sum_{i\ge q}(2i+1)^{-2}"
    )
    says.equal(best_terms_errors(waves, [1 + 2 * q for q in pairs]), (2 / math.pi**2 * tail).sqrt(), 1e-5)
    says.fails("a function without a jump", best_terms_errors(bump, [1 + 2 * q for q in pairs]))
    terms = [1 + 2 * q for q in (8, 16, 32, 64, 128)]
    says = run.states("X-44", r"\text{one jump, Fourier: }\Sigma_M\sim M^{-1/2}")
    says.slope(terms, best_terms_errors(waves, terms), -0.5, 0.02, against=(-1.0, -1.5))
    says.fails("a kink instead of a jump", terms, best_terms_errors(bump, terms))


def exact_tail(coefficients: Tensor, counts: list[int], square: float) -> Tensor:
    """The tail with what lies beyond the finest cells, by Parseval from the known norm."""
    beyond = square - coefficients.square().sum()
    return (best_terms_errors(coefficients, counts).square() + beyond).sqrt()


def bases(run: Run, images: list[Tensor]) -> tuple[Curves, Curves]:
    """Coefficients of images of cartoons; the error of the picture itself against the tail."""
    resolution = images[0].shape[0]
    counts = [2**k for k in range(4, resolution.bit_length() + 1)]
    fourier, haar = [], []
    measured, tails, wrong = [], [], []
    for image in images:
        plane = torch.fft.fft2(image, norm="ortho")
        wavelet = haar_transform(image)
        fourier.append(best_terms_errors(plane, counts) / resolution)
        haar.append(best_terms_errors(wavelet, counts) / resolution)
        rebuilt = inverse_haar_transform(largest_terms(wavelet, 256))
        coarse = torch.zeros_like(wavelet)
        coarse[:16, :16] = wavelet[:16, :16]
        measured.append(float((rebuilt - image).norm()) / resolution)
        tails.append(float(haar[-1][4]))
        wrong.append(float((inverse_haar_transform(coarse) - image).norm()) / resolution)
    says = run.states("X-44", r"\|f-\text{its } M \text{ largest Haar terms}\|^2=\sum_{i>M}|c_{(i)}|^2")
    says.equal(measured, tails, 1e-10)
    says.fails("the 256 coarsest terms instead of the largest", wrong)
    return Curves(counts, torch.stack(fourier)), Curves(counts, torch.stack(haar))


def by_scales(run: Run, drawn: list[Cartoon], size: int) -> Interval:
    """The exponent of shearlets from two scales: less energy, on more terms."""
    octaves = size.bit_length() - 1
    frame = shearlet_frame(size, octaves - 4)
    # the finest scale also holds what pixels cannot show: the two below it are compared
    fine = octaves - 5
    shearlets, haar = [], []
    for c in drawn:
        edge = c.edge(size)
        felt = list(zip(frame.scales, frame.analyze(edge), strict=True))
        coarse, finer = (torch.cat([v.flatten() for j, v in felt if j == scale]) for scale in (fine - 2, fine))
        shearlets.append(two_scales(coarse, finer))
        wavelets = haar_transform(edge)
        haar.append(
            two_scales(haar_band(wavelets, size // 16), haar_band(wavelets, size // 4)),
        )
    found, other = mean_interval(shearlets), mean_interval(haar)
    says = run.states(
        "X-44",
        r"\mathbf 1_B, \text{ shearlets: error}\sim M^{-1} \text{ by scales, }"
        r"\tfrac12\log\tfrac{E_{j+2}}{E_j}\big/\log\tfrac{N_{j+2}}{N_j}=-1",
    )
    says.slope(
        found,
        -1.0,
        0.1,
        against=(-0.5, -1.5),
        where=f"E: energy of a scale, N: terms that hold nine tenths of it; {size} pixels a side",
    )
    says.fails("the Haar basis", other)
    return found


def haar_band(coefficients: Tensor, start: int) -> Tensor:
    """The coefficients of one scale in two dimensions, those of three kinds of wavelets."""
    high, low = slice(start, 2 * start), slice(start)
    parts = coefficients[high, low], coefficients[low, high], coefficients[high, high]
    return torch.cat([part.flatten() for part in parts])


def two_scales(coarse: Tensor, fine: Tensor) -> float:
    """Half of the logarithm of the ratio of energies, over that of the numbers of terms."""
    energies, terms = [], []
    for values in (coarse, fine):
        sums = values.square().sort(descending=True).values.cumsum(0)
        energies.append(float(sums[-1]))
        terms.append(int((sums < 0.9 * sums[-1]).sum()) + 1)
    return math.log(energies[1] / energies[0]) / (2 * math.log(terms[1] / terms[0]))


def network_errors(drawn: list[Cartoon], doublings: int) -> Curves:
    sizes: list[int] = []
    rows = []
    for c in drawn:
        row, sizes = [], []
        for k in range(doublings):
            # no power of 2: the curve's octaves would look constant at the vertices
            sides = 15 * 2**k
            net = cartoon_network(c, sides)
            width = 1.2 * polygon_distance(c, sides) + 2 * sides**-c.smoothness / 100
            row.append(cartoon_error(c, partial(first_output, net), width, points=24))
            sizes.append(network_size(net).parameters)
        rows.append(torch.tensor(row))
    return Curves(sizes, torch.stack(rows))


def first_output(network: nn.Module, x: Tensor) -> Tensor:
    values: Tensor = network(x)
    return values[:, 0]


def rates(run: Run, fourier: Curves, haar: Curves, networks: dict[int, Curves]) -> None:
    """What a basis reaches is an exponent; what the theorem says of networks is a bound."""
    for ids, name, promise, curves, broken, other in (
        ("X-44", "Fourier", -0.25, fourier, "the Haar basis", haar),
        ("X-44", "Haar", -0.5, haar, "the Fourier basis", fourier),
        ("X-48", "networks, n=1", -0.5, networks[1], "the Fourier basis", fourier),
        ("X-48", "networks, n=2", -1.0, networks[2], "curves of smoothness 1", networks[1]),
    ):
        sign = r"\sim" if ids == "X-44" else r"\lesssim"
        says = run.states(ids, rf"\mathcal E^n([0,1]^2), \text{{ {name}: error}}{sign} M^{{{promise}}}")
        if ids == "X-44":
            says.slope(curves.slope, promise, 0.1, against=(promise / 2, 2 * promise))
        else:
            says.at_most(curves.slope, promise, 0.1)
        says.fails(broken, other.slope)


def pictures(axes: Any, drawn: dict[int, list[Cartoon]], image: Tensor) -> None:
    rough, smooth = drawn[1][0], drawn[2][0]
    net = cartoon_network(smooth, 64)
    small = 160
    exact = smooth.image(small)
    x = (torch.arange(small, dtype=torch.float64) + 0.5) / small
    made = net(torch.cartesian_prod(x, x))[:, 0].reshape(small, small)
    weights = network_size(net).parameters
    plane = torch.fft.fft2(image, norm="ortho")
    waves = torch.fft.ifft2(largest_terms(plane, 300), norm="ortho").real
    haar = inverse_haar_transform(largest_terms(haar_transform(image), 300))
    span = {"vmin": float(image.min()) - 0.1, "vmax": float(image.max()) + 0.1}
    for axis, z, title, options in (
        (axes[0, 0], rough.image(256), "a cartoon, n = 1", {}),
        (axes[0, 1], image, "a cartoon, n = 2", span),
        (axes[0, 2], made, f"a network, {weights} weights", span),
        (axes[1, 0], waves, "best 300 Fourier terms", span),
        (axes[1, 1], haar, "best 300 Haar terms", span),
        (axes[1, 2], (made - exact).abs(), "|network - cartoon|", {"cmap": "magma"}),
    ):
        shown = axis.imshow(z.T, origin="lower", extent=(0, 1, 0, 1), **{"cmap": "gray", **options})
        axis.set(title=title, xticks=[], yticks=[])
        axis.grid(False)
        # the four pictures of the second cartoon have one scale
        if axis not in (axes[0, 1], axes[1, 0], axes[1, 1]):
            axis.figure.colorbar(shown, ax=axis, shrink=0.75)


def lines(axis: Any, fourier: Curves, haar: Curves, networks: dict[int, Curves]) -> None:
    for color, name, promise, c in zip(
        COLORS,
        ("Fourier, n = 2", "Haar, n = 2", "network, n = 1", "network, n = 2"),
        (-0.25, -0.5, -0.5, -1.0),
        (fourier, haar, networks[1], networks[2]),
        strict=False,
    ):
        for row in c.errors:
            axis.loglog(c.sizes, row, color=color, linewidth=0.8)
        mean = c.errors.log().mean(0).exp()
        axis.loglog(c.sizes, mean, "o", color=color, label=name)
        line = mean[0] * (torch.tensor(c.sizes) / c.sizes[0]) ** promise
        axis.loglog(c.sizes, line, "--", color=color, linewidth=0.8)
    axis.set(xlabel="terms, or weights", ylabel="$L_2$ error")
    axis.legend()
