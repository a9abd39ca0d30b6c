"""Shearlets: long, thin, turned elements, and a frame of them for images."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.approximation.dictionaries.cartoons import cartoon
from torchtheory.approximation.dictionaries.networks import dictionary_element
from torchtheory.approximation.dictionaries.shearlets import (
    ShearletFrame,
    parabolic_scaling,
    shear,
    shearlet,
    shearlet_frame,
)
from torchtheory.approximation.piecewise.boxes import cell_centers
from torchtheory.labs.engine import COLORS, Run, lab

ELEMENTS = ((0, 0), (1, 1), (2, -1), (2, 2), (3, 1), (4, -3))
SHEARS = range(-5, 6)


@lab(
    "shearlets",
    room="approximation",
    covers=["X-45"],
    title="Shearlets are as wide as the square of their length, and the right one feels the edge",
    full={"size": 256, "scales": 5, "angles": 24},
    least={"angles": 4, "size": 32},
    most={"scales": 6},
)
def shearlets(run: Run, size: int = 64, scales: int = 3, angles: int = 12) -> None:
    """The shearlet system is built as printed, and as a frame for images adapted to two cones.

    Scaling has determinant $2^{3j/2}$, so the factor $2^{3j/4}$ keeps norms; supports shrink to
    $2^{-j}$ by $2^{-j/2}$; an edge $x_1$ = s $x_2$ is felt most by the shear k = -s $2^{j/2}$, and by none of a
    finite number of shears when it is nearly horizontal, which is why images are given a second
    cone. The frame's windows tile the frequencies with squares that add to 1, so it reproduces
    every image, and an edge of any direction excites the windows across it. Look at the elements.

    Args:
        size: pixels per side of the images.
        scales: of the frame.
        angles: of the edges that are looked for.
    """
    run.assumes(
        size % 2 == 0 and size >= 4 * 2**scales,
        f"images of {size} pixels a side are too small, or odd, for {scales} scales",
    )
    literal(run)
    edges(run)
    frame = shearlet_frame(size, scales)
    reproduce(run, frame)
    found = directions(run, frame, angles)
    run.table(
        "frame",
        ["scale", "windows", "coefficients", "largest sampling grid"],
        [
            (
                j,
                sum(s == j for s in frame.scales),
                sum(a * b for (a, b), s in zip(frame.grids, frame.scales, strict=True) if s == j),
                str(max(g for g, s in zip(frame.grids, frame.scales, strict=True) if s == j)),
            )
            for j in range(scales + 1)
        ],
        caption=f"The frame for images of {size} by {size} pixels",
    )
    run.figure(
        "shearlets",
        lambda axes: plot(axes, frame, found),
        grid=(2, 3),
        size=(12, 7.4),
        caption="Top: three elements of the literal system. Bottom: the windows over the "
        "frequencies, an element of the frame, and which direction an edge excites.",
    )


def generator(x: Tensor) -> Tensor:
    """A wave across, a bump along; 0 outside of the square of side 2."""
    inside = (1 - x**2).clamp_min(0) ** 2
    return torch.sin(math.pi * x[:, 0]) * inside[:, 0] * inside[:, 1]


def norm(values: Tensor, area: float) -> float:
    return float((values.square().mean() * area).sqrt())


def literal(run: Run) -> None:
    """Determinants, norms by quadrature, and the sides of supports."""
    scales = range(-2, 7)
    says = run.states("X-45", r"\det A_j=2^{3j/2}=\det S_kA_j")
    says.equal(
        [float(torch.linalg.det(shear(k) @ parabolic_scaling(j))) for j in scales for k in (0, 3)],
        [2 ** (1.5 * j) for j in scales for _ in (0, 3)],
        1e-12,
    )
    says.fails(
        "isotropic scaling, $2^j$ in both directions",
        [float(torch.linalg.det(2.0**j * torch.eye(2))) for j in scales for _ in (0, 3)],
    )
    # every element but the first is shifted by (1, 1); all stay within [-4, 4]^2
    x = cell_centers(((-4.0, 4.0), (-4.0, 4.0)), 640)
    exact = norm(generator(x), 64.0)
    found, wrong = [], []
    for j, k in ELEMENTS:
        values = shearlet(generator, j, k, torch.ones(2).double() * (j > 0))(x)
        found.append(norm(values, 64.0))
        wrong.append(found[-1] * 2 ** (j / 4))
    says = run.states("X-45", r"\|\psi_{j,k,n}\|_2=\|\psi\|_2")
    says.equal(found, exact, 1e-3)
    says.fails("the factor $2^j$ of isotropic wavelets", wrong)
    laws, round_ones = [], []
    for j in (0, 2, 4):
        laws.append(side(shearlet(generator, j, 0)))
        scaled = dictionary_element(generator, 2.0**j * torch.eye(2, dtype=torch.float64), torch.zeros(2).double())
        round_ones.append(side(scaled))
    says = run.states(
        "X-45", r"\text{width}=\text{length}^2/2: \text{ the support is } 2\cdot2^{-j}\times2\cdot2^{-j/2}"
    )
    says.equal([width for width, _ in laws], [length**2 / 2 for _, length in laws], 0.02)
    says.fails(
        "isotropic scaling", [width for width, _ in round_ones], promised=[length**2 / 2 for _, length in round_ones]
    )


def side(element: Any) -> tuple[float, float]:
    """Width and length of the support, from its pixels around the origin."""
    x = cell_centers(((-1.0, 1.0), (-1.0, 1.0)), 400)
    used = x[element(x).abs() > 0]
    spread = used.amax(0) - used.amin(0) + 2 / 400
    return float(spread[0]), float(spread[1])


def felt(slope: float, j: int) -> int:
    """The shear whose element at the origin has the largest coefficient of the edge."""
    x = cell_centers(((-0.5, 0.5), (-0.5, 0.5)), 300)
    edge = (x[:, 0] > slope * x[:, 1]).double()
    values = [float((shearlet(generator, j, k)(x) * edge).sum().abs()) for k in SHEARS]
    return SHEARS[values.index(max(values))]


def edges(run: Run) -> None:
    slopes = (-1.0, -0.5, 0.0, 0.25, 0.75, 1.0)
    says = run.states("X-45", r"\text{the edge } x_1=sx_2 \text{ is felt most by } k=-s\,2^{j/2},\ j=4")
    says.equal([felt(s, 4) for s in slopes], [-4 * s for s in slopes])
    says.fails(
        "edges too flat for the shears at hand, |k| <= 5",
        [felt(s, 4) for s in (2.0, 3.0, 4.0)],
        promised=[-8.0, -12.0, -16.0],
    )


def reproduce(run: Run, frame: ShearletFrame) -> None:
    """Energy, inversion, and what thresholding costs."""
    n = frame.size
    images = [cartoon(2, generator=run.generator).image(n), run.randn(n, n)]
    coefficients = [frame.analyze(image) for image in images]
    energy = [math.fsum(float(c.square().sum()) for c in row) for row in coefficients]
    says = run.states("X-45", r"\sum|\langle f,\psi_{j,k,n}\rangle|^2=\|f\|^2 \text{ for the frame}")
    says.equal(energy, [float(image.square().sum()) for image in images], 1e-10)
    says.fails(
        "the finest windows left out",
        [
            math.fsum(float(c.square().sum()) for c, s in zip(row, frame.scales, strict=True) if s < max(frame.scales))
            for row in coefficients
        ],
    )
    says = run.states("X-45", r"\max|f-\sum\langle f,\psi_{j,k,n}\rangle\psi_{j,k,n}|")
    says.equal(
        [float((frame.synthesize(row) - image).abs().max()) for row, image in zip(coefficients, images, strict=True)],
        within=1e-10,
    )
    says.fails(
        "one window doubled",
        float((frame.synthesize([2 * coefficients[0][0], *coefficients[0][1:]]) - images[0]).abs().max()),
    )
    flat = torch.cat([c.flatten() for c in coefficients[0]]).square().sort().values
    counts = [n // 2, 2 * n, 8 * n]
    errors = [float((frame.largest(images[0], m) - images[0]).norm()) for m in counts]
    says = run.states("X-45", r"\|f-\text{its } M \text{ largest terms}\|^2\le\sum_{i>M}|c_{(i)}|^2")
    says.at_most(errors, [float(flat[: len(flat) - m].sum().sqrt()) for m in counts], 1e-12)
    says.fails(
        "the smallest terms kept instead",
        [kept_smallest(frame, images[0], coefficients[0], float(flat[m])) for m in counts],
    )


def kept_smallest(frame: ShearletFrame, image: Tensor, coefficients: list[Tensor], square: float) -> float:
    """The error of the terms whose squares are below a number."""
    kept = [torch.where(c.square() < square, c, 0.0) for c in coefficients]
    return float((frame.synthesize(kept) - image).norm())


def directions(run: Run, frame: ShearletFrame, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Edges under a round window: which of the finest directions has the most energy."""
    n = frame.size
    x = cell_centers(((-1.0, 1.0), (-1.0, 1.0)), n)
    # away from the border, which is an edge of its own for a periodic transform
    spot = torch.exp(-((x.norm(dim=1) / 0.35) ** 2))
    finest = [w for w, s in enumerate(frame.scales) if s == max(frame.scales)]
    angles = torch.tensor([frame.angles[w] for w in finest], dtype=torch.float64)
    spacing = float((angles.sort().values.diff()).max())
    wanted = (torch.arange(count, dtype=torch.float64) + 0.5) * math.pi / count
    energies, apart, turned = [], [], []
    for a in wanted.tolist():
        normal = torch.tensor([math.cos(a), math.sin(a)], dtype=torch.float64)
        image = (spot * (x @ normal > 0)).reshape(n, n)
        row = frame.analyze(image)
        energy = torch.stack([row[w].square().sum() for w in finest])
        energies.append(energy / energy.sum())
        best = float(angles[int(energy.argmax())])
        apart.append(away(best, a))
        turned.append(away(best, a + math.pi / 2))
    says = run.states("X-45", r"\text{an edge excites the window across it: angle to the best, at most one spacing}")
    says.at_most(apart, spacing)
    says.fails("the angle along the edge instead of across", turned)
    return wanted, angles, torch.stack(energies)


def away(a: float, b: float) -> float:
    """The angle between two lines."""
    gap = abs(a - b) % math.pi
    return min(gap, math.pi - gap)


def plot(axes: Any, frame: ShearletFrame, found: tuple[Tensor, Tensor, Tensor]) -> None:
    x = cell_centers(((-1.0, 1.0), (-1.0, 1.0)), 200)
    for axis, (j, k) in zip(axes[0], ((0, 0), (2, 1), (4, -3)), strict=True):
        z = shearlet(generator, j, k)(x).reshape(200, 200)
        top = float(z.abs().max())
        axis.imshow(z.T, origin="lower", extent=(-1, 1, -1, 1), cmap="RdBu", vmin=-top, vmax=top)
        axis.set(title=f"$\\psi_{{j,k,0}}$, j = {j}, k = {k}", xlabel="$x_1$", ylabel="$x_2$")
        axis.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1])
        axis.grid(False)
    left, middle, right = axes[1]
    strongest = frame.windows.argmax(0)
    # neighbors in different shades
    shade = torch.tensor([s * 3 + w % 2 for w, s in enumerate(frame.scales)])[strongest]
    half = frame.size // 2
    extent = (-half, half, -half, half)
    left.imshow(torch.fft.fftshift(shade).T, origin="lower", extent=extent, cmap="cividis")
    left.set(title=f"{len(frame.windows)} windows", xlabel="frequency 1", ylabel="frequency 2")
    left.grid(False)
    finest = [w for w, s in enumerate(frame.scales) if s == max(frame.scales) - 1]
    element = frame.element(finest[len(finest) // 8])
    top = float(element.abs().max())
    middle.imshow(element.T, origin="lower", cmap="RdBu", vmin=-top, vmax=top)
    middle.set(title="an element of the frame", xticks=[], yticks=[])
    middle.grid(False)
    wanted, angles, energies = found
    order = angles.argsort()
    for i in range(0, len(wanted), max(1, len(wanted) // 4)):
        degrees = float(wanted[i]) * 180 / math.pi
        color = COLORS[(i * 4 // len(wanted)) % len(COLORS)]
        right.plot(
            angles[order] * 180 / math.pi,
            energies[i][order],
            "o-",
            color=color,
            markersize=3,
            label=f"{degrees:.0f}°",
        )
        right.axvline(degrees, color=color, linewidth=0.8, linestyle=":")
    right.set(xlabel="direction of the window", ylabel="share of the energy", title="edges felt")
    right.set(ylim=(0, 1))
    right.legend(title="normal of the edge", ncols=2, loc="upper center")
