"""Decisions by continuous sums: right everywhere but on a small set, and never everywhere."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.approximation.certificates import box_grid
from torchtheory.approximation.targets import Function
from torchtheory.approximation.universality.decision_functions import (
    disagreement,
    half_space_sharpness,
    half_space_unit,
    strip_width,
)
from torchtheory.approximation.universality.discriminatory import ridge_units
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.neurons.regression import least_squares

SQUARE = ((0.0, 1.0), (0.0, 1.0))


def discs(x: Tensor) -> Tensor:
    """1 in two discs."""
    first = (x - torch.tensor([0.3, 0.35]).to(x)).norm(dim=1) < 0.2
    second = (x - torch.tensor([0.7, 0.65]).to(x)).norm(dim=1) < 0.25
    made: Tensor = first | second
    return made.double()


def checkerboard(x: Tensor) -> Tensor:
    """0 and 1 on four squares."""
    made: Tensor = (2 * x).floor().sum(1) % 2
    return made.double()


PARTITIONS: tuple[tuple[str, Function], ...] = (
    ("two discs", discs),
    ("checkerboard", checkerboard),
)


def square(z: Tensor) -> Tensor:
    return z**2


@lab(
    "decision-functions",
    room="approximation",
    covers=["S-31"],
    title="A sum of sigmoids decides within ε on all but ε of the cube, never on all of it",
    full={"samples": 200_000, "widths": (16, 64, 256, 512)},
    least={"samples": 1000, "widths": 1},
    items={"widths": 2},
)
def decision_functions(run: Run, samples: int = 20_000, widths: tuple[int, ...] = (16, 48, 144)) -> None:
    """Half spaces by one unit, two discs and a checkerboard by fits, on the unit square.

    For a half space the set where the unit errs by ε is a strip of known width; with a steepness
    chosen for ε its share of the cube is below ε, in 1, 2 and 5 dimensions. At the boundary the
    error is 1/2 whatever the steepness. For the other partitions random logistic units are fitted
    by least squares, and (the criterion, set beforehand) the share of the square where they err by
    1/4 falls from each width to the next. Look at the dark set D.

    Args:
        samples: random points for a share of the cube.
        widths: units of the fitted networks, increasing.
    """
    run.assumes(list(widths) == sorted(set(widths)), f"the widths {widths} do not increase")
    strips(run, samples)
    promise(run, samples)
    boundary(run)
    fields = fits(run, samples, widths)
    run.figure(
        "decisions",
        lambda axes: plot(axes, fields),
        grid=(1, 3),
        size=(12.0, 3.6),
        caption="Left: the unit's strip. Middle and right: where the fitted sum of the widest "
        "network errs by 1/4 or more (dark), around the boundaries.",
    )


def strips(run: Run, samples: int) -> None:
    """Upright lines: the share is the width itself; slanted ones: at most √2 times that."""
    excess, flat = [], []
    low = []
    for sharpness in (20.0, 60.0, 200.0):
        for error in (0.05, 0.2):
            for weight, offset in ((torch.tensor([1.0, 0.0]), -0.5), (run.randn(2), 0.0)):
                w = weight.double()
                b = offset if offset else -float(w.sum()) / 2
                unit = half_space_unit(w, b, sharpness)
                found = share(run, w, b, unit, error, samples)
                width = strip_width(sharpness, float(w.norm()), error)
                excess.append(found.low - math.sqrt(2) * width)
                soft = half_space_unit(w, b, sharpness / 10)
                flat.append(share(run, w, b, soft, error, samples).low - math.sqrt(2) * width)
                if offset:
                    low.append(max(found.low - width, width - found.high))
    says = run.states(
        "S-31",
        r"|\{|G-f|\ge\epsilon\}|\le\sqrt2\,\tfrac2{\kappa\|w\|}\ln\tfrac{1-\epsilon}\epsilon:"
        r" \text{ excess of the 99.9 \% interval}",
    )
    says.at_most(excess, 0)
    says.fails("a tenth as steep", flat)
    run.states(
        "S-31", r"\text{upright boundary: the share is the strip's width: outside the 99.9 \% interval by}"
    ).at_most(low, 0)


def share(run: Run, w: Tensor, b: float, unit: Any, error: float, samples: int) -> Any:
    """The part of the square where the unit is wrong by the error or more."""
    with torch.no_grad():
        return disagreement(
            lambda x: (x @ w + b > 0).double(),
            lambda x: unit(x)[:, 0],
            error,
            SQUARE,
            samples,
            generator=run.generator,
            confidence=0.999,
        )


def promise(run: Run, samples: int) -> None:
    """For every ε a steepness with |G - f| < ε on a share 1 - ε, also in five dimensions."""
    shares: list[float] = []
    soft: list[float] = []
    promised = []
    for dimension in (1, 2, 5):
        for error in (0.2, 0.05, 0.01):
            w = run.randn(dimension)
            kappa = half_space_sharpness(float(w.norm()), error, dimension)
            for scale, kept in ((1.0, shares), (0.1, soft)):
                unit = half_space_unit(w, -float(w.sum()) / 2, scale * kappa)

                def labels(x: Tensor, w: Tensor = w) -> Tensor:
                    x = x.reshape(len(x), -1)
                    return (x @ w - w.sum() / 2 > 0).double()

                def made(x: Tensor, unit: Any = unit) -> Tensor:
                    out: Tensor = unit(x.reshape(len(x), -1))[:, 0]
                    return out

                found = disagreement(labels, made, error, ((0.0, 1.0),) * dimension, samples,
                                     generator=run.generator, confidence=0.999)  # fmt: skip
                kept.append(found.low)
            promised.append(error)
    says = run.states("S-31", r"\kappa \text{ chosen for } \epsilon:\ |\{|G-f|\ge\epsilon\}|\le\epsilon,\ d=1,2,5")
    says.at_most(shares, promised, where="lower ends of 99.9 % intervals")
    says.fails("a tenth as steep", soft)


def boundary(run: Run) -> None:
    """At the jump the error is one half, however steep the unit."""
    errors, hard = [], []
    for kappa in (10.0, 1e3, 1e6):
        unit = half_space_unit(torch.ones(1, dtype=torch.float64), -0.5, kappa)
        near = torch.tensor([[0.5 - 1e-9 / kappa], [0.5 + 1e-9 / kappa]], dtype=torch.float64)
        labels = (near[:, 0] > 0.5).double()
        errors.append(float((unit(near)[:, 0] - labels).abs().max()))
        hard.append(float(((near[:, 0] > 0.5).double() - labels).abs().max()))
    says = run.states("S-31", r"\sup|G-f|\ge\tfrac12 \text{ for continuous } G: \text{ next to the boundary}")
    says.at_least(errors, 0.5, 1e-9)
    says.fails("G not continuous: the step itself", hard)


def fits(run: Run, samples: int, widths: tuple[int, ...]) -> dict[str, tuple[Tensor, Tensor]]:
    grid = box_grid(SQUARE, 41)
    fine = box_grid(SQUARE, 121)
    rows = []
    falls: list[float] = []
    stuck: list[float] = []
    fields = {}
    for name, labels in PARTITIONS:
        y = labels(grid)
        before: dict[str, float] = {}
        for m in widths:
            seed = int(torch.randint(2**31, (1,), generator=run.generator))
            for layer, kept in (("logistic", falls), (square, stuck)):
                # the same units on both grids: their box is the square on either
                near, far = (ridge_units(layer, m, x, steepness=40.0, generator=seed) for x in (grid, fine))
                fitted = least_squares(near, y, intercept=True)
                values = far @ fitted.weight + fitted.bias
                wrong = ((values - labels(fine)).abs() >= 0.25).double()
                key = str(layer)
                if key in before:
                    kept.append(float(wrong.mean()) - before[key])
                before[key] = float(wrong.mean())
                if layer == "logistic":
                    rows.append((name, m, float(wrong.mean())))
                    fields[name] = (fine, wrong)
    says = run.states("S-31", r"|\{|G-f|\ge\tfrac14\}| \text{ falls from width to width: change}")
    says.below(falls, 0, where="two discs and a checkerboard, random logistic units, least squares")
    says.fails("σ(z) = z²", stuck)
    run.table(
        "fits",
        ["partition", "units", "share of the square with an error of 1/4 or more"],
        rows,
        caption="Random logistic units fitted to the labels of partitions",
    )
    return fields


def plot(axes: Any, fields: dict[str, tuple[Tensor, Tensor]]) -> None:
    first = axes[0, 0]
    x = torch.linspace(0, 1, 801, dtype=torch.float64)
    first.plot(x, (x > 0.5).double(), color="0.5", linewidth=1, label="label")
    for color, kappa in zip(COLORS, (20.0, 100.0), strict=False):
        first.plot(x, torch.sigmoid(kappa * (x - 0.5)), color=color, label=f"κ = {kappa:g}")
        half = strip_width(kappa, 1.0, 0.1) / 2
        first.axvspan(0.5 - half, 0.5 + half, color=color, alpha=0.12, linewidth=0)
    first.set(xlabel="x", title="strips with an error of 0.1")
    first.legend()
    for axis, (name, (points, wrong)) in zip(axes[0, 1:], fields.items(), strict=True):
        side = math.isqrt(len(points))
        axis.imshow(wrong.reshape(side, side).T.numpy(), origin="lower", extent=(0, 1, 0, 1), cmap="Greys")
        axis.set(xlabel="$x_1$", ylabel="$x_2$", title=f"{name}: {float(wrong.mean()):.1%} wrong")
        axis.grid(visible=False)
