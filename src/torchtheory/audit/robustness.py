"""Findings about sensitivity: layer norms and the Lipschitz constant."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.audit.hypotheses import chain, deterministic, floating_inputs, has_parameters
from torchtheory.core.finding import FindingRecord, finding
from torchtheory.core.problem import Problem
from torchtheory.robustness.lipschitz import jacobian_norms, layer_norms


@finding(
    "lipschitz",
    section="Signal propagation",
    title="Layer norms and the Lipschitz constant",
    cost="gradient",
    covers=["L-016", "L-005"],
    needs=[has_parameters, deterministic, floating_inputs, chain],
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
    record.claim(
        "L-016",
        r"\sup_x \|J_f(x)\|_2 \le \prod_\ell \mathrm{Lip}(f_\ell)",
        promised=product,
        relation="<=",
        measured=largest,
        tolerance=1e-4,
        reason=f"largest spectral norm of the Jacobian at {len(points)} points: training samples "
        "and random points between pairs of them",
    )
    record.claim(
        "L-005",
        r"\|W_\ell\|_2 \le \|W_\ell\|_F",
        promised=[n.frobenius for n in weighted if n.frobenius is not None],
        relation="<=",
        measured=[n.lipschitz for n in weighted],
        tolerance=1e-5,
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
