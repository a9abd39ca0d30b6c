"""Findings about sensitivity: layer norms, the Lipschitz constant, and what margins certify."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import (
    chain,
    classification,
    deterministic,
    differentiable,
    floating_inputs,
    has_parameters,
)
from torchtheory.core.intervals import median_interval
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.robustness.lipschitz import jacobian_norms, layer_norms
from torchtheory.robustness.margin_certificates import boundary_distances, certified_radii

#: Samples attacked for the certified radius.
ATTACKED = 64

#: What rounding may add to a radius: that of a linear classifier is the distance itself.
ROUNDING = 1e-3


@finding(
    "lipschitz",
    area="signals",
    title="Layer norms and the Lipschitz constant",
    cost="gradient",
    covers=["L-016"],
    needs=[has_parameters, deterministic, floating_inputs, chain, differentiable],
)
def lipschitz(problem: Problem, record: FindingRecord) -> None:
    """The product of the layers' Lipschitz constants against the largest Jacobian norm found."""
    found = layer_norms(problem.model, problem.train.x.shape[1:])
    weighted = [layer for layer in found if layer.frobenius is not None]
    record.table(
        "layers",
        ("layer", "kind", "spectral norm", "Frobenius norm", "stable rank"),
        [
            (n.name or "(function)", n.kind, n.lipschitz, n.frobenius, n.stable_rank)
            for n in weighted
        ],
        caption="Stable rank: squared Frobenius over squared spectral norm. A convolution's norms "
        "are those of the linear map it applies to its whole input, as a batch sees it.",
    )
    product = math.prod(layer.lipschitz for layer in found)
    points = _points(problem, record)
    norms = jacobian_norms(problem, points)
    largest = float(norms.max())
    says = record.states("L-016", r"\sup_x \|J_f(x)\|_2 \le \prod_\ell \mathrm{Lip}(f_\ell)")
    says.at_most(
        largest,
        product,
        1e-4,
        where=f"largest spectral norm of the Jacobian at {len(points)} points: training samples "
        "and random points between pairs of them",
    )
    if 0 < largest < math.inf and 0 < product < math.inf:  # no layer makes a constant steep
        scale = 2 * product / largest
        says.fails(
            f"behind a layer that multiplies its inputs by {scale:.3g}, left out of the product",
            _norm_behind(problem, points[norms.argmax()][None], scale),
        )
    record.quantity("lipschitz-product", "product of the layers' Lipschitz constants", product)
    record.quantity("largest-amplification", "largest amplification at the points tried", largest)
    record.quantity(
        "median-amplification",
        "median amplification at the points tried",
        median_interval(norms.cpu(), record.confidence),
    )
    values = norms.cpu().numpy()
    record.figure(
        "jacobian",
        lambda ax: _plot(ax, values, product),
        caption="How much an input change is amplified: at the points tried, and what the "
        "product of layer norms allows.",
        size=(5, 2.6),
    )
    record.headline(
        f"The product bound on the Lipschitz constant is {product:.3g}, but the largest "
        f"amplification found is {largest:.3g} ({product / largest:.3g} times less)."
        if largest > 0
        else f"The output does not depend on the input (product bound {product:.3g})."
    )


def _norm_behind(problem: Problem, point: Tensor, scale: float) -> float:
    """Amplification by the network behind a layer that multiplies its inputs by `scale`."""

    def behind(x: Tensor) -> Tensor:
        return problem.function(problem.parameters, scale * x)[0].reshape(-1)

    jacobian = torch.func.jacrev(behind)(point / scale).flatten(1).double()
    return float(torch.linalg.matrix_norm(jacobian, 2))


def _points(problem: Problem, record: FindingRecord, count: int = 256) -> Tensor:
    x = problem.train.x
    order = torch.randperm(len(x), generator=record.generator).to(x.device)
    chosen = x[order[:count]]
    partner = x[order.flip(0)[: len(chosen)]]
    weight = torch.rand(len(chosen), generator=record.generator).to(x)
    weight = weight.reshape(-1, *[1] * (x.ndim - 1))
    return torch.cat([chosen, weight * chosen + (1 - weight) * partner])


def _plot(ax: Any, values: Any, product: float) -> None:
    ax.hist(values, bins=40, color="#0072B2", label="at the points tried")
    ax.axvline(product, color="#D55E00", label="product of layer norms")
    if product > 20 * values.max() > 0:
        ax.set_xscale("log")
    ax.set(xlabel="spectral norm of the Jacobian", ylabel="points")
    ax.legend(loc="upper center")


@finding(
    "certified-radius",
    area="robustness",
    title="How far an input must move to change its class",
    cost="gradient",
    covers=["D-08", "L-016"],
    needs=[classification, has_parameters, deterministic, floating_inputs, chain, differentiable],
)
def certified_radius(problem: Problem, record: FindingRecord) -> None:
    """The perturbation that the margin excludes against the smallest one that a search finds."""
    name, samples = _correct_samples(problem, record)
    statement = (
        r"\|\delta\|_2 < r(x) = \min_{c \ne y} \frac{f_y(x) - f_c(x)}{\mathrm{Lip}(f_y - f_c)} "
        r"\Rightarrow \text{the class stays:}\ \|\delta\|_2 / r(x) \text{ of every } \delta "
        r"\text{ found}"
    )
    if len(samples) == 0:
        record.not_applicable(["D-08", "L-016"], statement, f"every {name} sample is misclassified")
        return
    radii = certified_radii(problem, samples)
    distances = boundary_distances(problem, samples)
    found = torch.isfinite(distances)
    if not bool(found.any()):
        record.not_applicable(
            ["D-08", "L-016"],
            statement,
            "no perturbation was found that changes a class, so there is nothing to compare the "
            "certificate with",
        )
        return
    share = float((radii / distances)[found].median())
    record.states(["D-08", "L-016"], statement).at_least(
        (distances / radii)[found],
        1.0,
        ROUNDING,
        where=f"{int(found.sum())} {name} samples; at the median one the radius is {share:.2g} "
        "times the smallest perturbation found",
    )
    size = float(distances.median())
    record.quantity(
        "boundary-distance",
        "median smallest perturbation found that changes the class",
        median_interval(distances.cpu(), record.confidence),
    )
    record.quantity(
        "certified-radius",
        "median certified radius",
        median_interval(radii.cpu(), record.confidence),
    )
    _tabulate_radii(record, name, radii, distances)
    record.headline(
        f"A perturbation of Euclidean length {size:.3g} is enough to change the class of half of "
        f"{len(samples)} correctly classified {name} samples; the margins rule out those below "
        f"{float(radii.median()):.3g} at the median sample"
        + (", which says next to nothing." if share < 0.01 else ".")
    )


def _correct_samples(problem: Problem, record: FindingRecord) -> tuple[str, Samples]:
    """Some samples that the model classifies correctly, of the test data if there is any."""
    name, samples = ("train", problem.train) if problem.test is None else ("test", problem.test)
    correct = (~problem.errors(samples)).nonzero().flatten().cpu()
    order = torch.randperm(len(correct), generator=record.generator)[:ATTACKED]
    chosen = correct[order].to(samples.x.device)
    return name, Samples(samples.x[chosen], samples.y[chosen])


def _tabulate_radii(record: FindingRecord, name: str, radii: Tensor, distances: Tensor) -> None:
    levels = torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0], dtype=torch.float64, device=radii.device)
    rows = [
        (what, *[float(q) for q in torch.quantile(values, levels, interpolation="lower")])
        for what, values in (("certified", radii), ("found", distances))
    ]
    record.table(
        "radii",
        ("perturbation", "smallest", "10 %", "median", "90 %", "largest"),
        rows,
        caption=f"Euclidean lengths, {len(radii)} correctly classified {name} samples.",
    )
    pairs = [
        (float(r), float(d))
        for r, d in zip(radii, distances, strict=True)
        if 0 < r < math.inf and 0 < d < math.inf
    ]
    if not pairs:
        return
    record.figure(
        "radii",
        lambda ax: _plot_radii(ax, pairs),
        caption="Every sample: the radius its margin certifies, and the smallest perturbation "
        "found that changes its class. Below the line the certificate would be false.",
        size=(5, 3.6),
    )


def _plot_radii(ax: Any, pairs: list[tuple[float, float]]) -> None:
    certified, found = zip(*pairs, strict=True)
    ends = [min(certified) / 1.5, max(found) * 1.5]
    ax.loglog(certified, found, "o", markersize=4, alpha=0.6, label="samples")
    ax.loglog(ends, ends, color="0.4", linewidth=1, label="certified = found")
    ax.set(xlabel="certified radius", ylabel="smallest perturbation found")
    ax.minorticks_off()
    ax.legend(loc="lower right")
