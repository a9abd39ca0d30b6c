"""The spectrum of the Hessian: shares of negative, flat and positive directions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.audit.engine.ranges import part_of, student
from torchtheory.audit.findings.optimization import products_in
from torchtheory.core.figure import COLORS
from torchtheory.linalg.density import SpectralDensity, spectral_density
from torchtheory.linalg.operators import LinearOperator
from torchtheory.models.samples import Samples

#: Random vectors and Lanczos steps of the spectrum, at most.
PROBES, STEPS = 4, 40

#: Parameters up to which all eigenvalues are taken from the matrix itself.
DENSE = 300

#: Eigenvalues of less than this share of the largest count as 0.
FLAT = 1e-3


def record_spectrum(
    record: FindingRecord, hessian: LinearOperator, scale: float, samples: Samples
) -> tuple[bool, float]:
    """The shares of negative, flat and positive directions, by as many products as there are.

    Returns:
        Whether the least value met is one of several below the smallest, and that value; infinite
        if there was no time.
    """
    size = hessian.shape[0]
    flat = FLAT * scale
    if size <= DENSE and products_in(hessian, 0.6) >= min(size, 300):
        values = torch.linalg.eigvalsh(hessian.to_dense()).cpu().double()[None]
        found = SpectralDensity(values, torch.full_like(values, 1 / size))
        exact = True
    else:
        probes = min(PROBES, products_in(hessian, 0.6) // STEPS)
        if probes < 1:
            record.note("Not measured for want of time: the whole spectrum of the Hessian.")
            return False, math.inf
        found = spectral_density(hessian, probes=probes, steps=STEPS, generator=record.generator)
        exact = False
    if len(samples) >= samples.population:
        _shares(record, found, flat, exact=exact)
    else:
        record.note(
            "Not measured: the shares of negative and flat directions. On a part of the samples "
            "the Hessian has other small eigenvalues than on all of them."
        )
    record.figure(
        "spectrum",
        lambda ax: _plot_spectrum(ax, found, flat, size),
        caption="Eigenvalues of the Hessian: the share of directions whose eigenvalue is at least "
        f"so large, for positive and for negative ones{part_of(samples)}.",
        size=(5.6, 3.0),
    )
    return not exact, float(found.nodes[found.weights > 0].min())


def _shares(record: FindingRecord, found: SpectralDensity, flat: float, *, exact: bool) -> None:
    """Shares of directions by the sign of their eigenvalue, with the error of the quadrature."""
    probes = len(found.nodes)
    lower, upper = (_mass_below(found, cut, exact=exact) for cut in (-flat, flat))
    basis = "all eigenvalues, up to rounding" if exact else f"quadrature by {probes} random vectors"
    rows = []
    for name, label, ends in (
        ("negative-directions", "negative", lower),
        ("flat-directions", "flat", (upper[0] - lower[1], upper[1] - lower[0])),
        ("positive-directions", "positive", (1 - upper[1], 1 - upper[0])),
    ):
        inside = {
            "negative": lambda t: t < -flat,
            "flat": lambda t: t.abs() <= flat,
            "positive": lambda t: t > flat,
        }[label]
        share = found.moment(lambda t, inside=inside: inside(t).double()).value  # type: ignore[misc]
        low, high = (_over_probes(end, exact, record.confidence) for end in ends)
        quantity = record.quantity(
            name,
            f"share of {label} directions of the Hessian",
            share,
            low=min(share, max(0.0, low[0])),
            high=max(share, min(1.0, high[1])),
            basis=basis,
        )
        rows.append((label, share, quantity.low, quantity.high))
    record.table(
        "index",
        ("directions", "share", "at least", "at most"),
        rows,
        caption=f"Flat: an eigenvalue below {FLAT:g} of the largest. The index of a critical point "
        "is its share of negative directions.",
    )


def _mass_below(found: SpectralDensity, cut: float, *, exact: bool) -> tuple[Tensor, Tensor]:
    """Bounds `[p]` on the measure below `cut`, for every random vector.

    Of a matrix's own eigenvalues only those within rounding of the point are in doubt.
    """
    if not exact:
        return found.mass_below(cut)
    nodes, weights = found.nodes, found.weights
    mass = (weights * (nodes < cut)).sum(1)
    doubt = 100 * torch.finfo(torch.float64).eps * float(nodes.abs().max())
    near = (weights * ((nodes - cut).abs() <= doubt)).sum(1)
    return mass - near, mass + near


def _over_probes(values: Tensor, exact: bool, confidence: float) -> tuple[float, float]:
    """The range of a mean over random vectors."""
    mean = float(values.mean())
    if exact:
        return mean, mean
    if len(values) < 2:
        return 0.0, 1.0
    reach = student(confidence, len(values) - 1) * float(values.std()) / math.sqrt(len(values))
    return mean - reach, mean + reach


def _plot_spectrum(ax: Any, found: SpectralDensity, flat: float, count: int) -> None:
    """Shares of eigenvalues beyond a size, on both sides, in logarithmic scales."""
    nodes, order = found.nodes.flatten().sort()
    weights = found.weights.flatten()[order] / len(found.nodes)
    for sign, label, color in ((1.0, "positive", COLORS[0]), (-1.0, "negative", COLORS[1])):
        size = sign * nodes
        beyond = size > flat
        if not bool(beyond.any()):
            continue
        largest, place = size[beyond].sort(descending=True)
        share = weights[beyond][place].cumsum(0)
        ax.step(largest, share, where="post", color=color, label=label)
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="size of an eigenvalue, at least",
        ylabel="share of the directions",
        ylim=(0.3 / count, 1.5),  # one eigenvalue is a share of 1 over their number
    )
    ax.legend()
