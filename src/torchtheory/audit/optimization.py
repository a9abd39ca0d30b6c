"""Findings about the loss around the solution: its curvature."""

from __future__ import annotations

import math

import torch

from torchtheory.audit.hypotheses import deterministic, has_parameters
from torchtheory.core.eigenvalues import EigenResult, top_eigenpairs
from torchtheory.core.errors import InvalidInput, NonFinite, UnsupportedModel
from torchtheory.core.finding import FindingRecord, finding
from torchtheory.core.model import flatten, unflatten
from torchtheory.core.problem import Problem
from torchtheory.core.record import Control
from torchtheory.core.samples import Samples
from torchtheory.core.trace import trace
from torchtheory.optimization.curvature import gradient, hessian_operator

#: Curvature is that of the mean loss over at most this many training samples.
SAMPLES = 2048


@finding(
    "curvature",
    section="Curvature",
    title="Top Hessian eigenvalue, trace and the largest stable step",
    cost="curvature",
    covers=["L-125"],
    needs=[has_parameters, deterministic],
)
def curvature(problem: Problem, record: FindingRecord) -> None:
    """Lanczos and Hutch++ on the Hessian of the training loss, checked by loss values alone."""
    problem = problem.in_double_if_possible()
    samples = problem.train.first(SAMPLES)
    if len(samples) < len(problem.train):
        record.note(f"Curvature of the mean loss over the first {SAMPLES} training samples.")
    hessian = hessian_operator(problem, samples)
    size = hessian.shape[0]
    try:
        top = top_eigenpairs(hessian, 1, tolerance=1e-4, generator=record.generator)
    except NonFinite:
        raise
    except InvalidInput as error:
        raise UnsupportedModel(
            "second derivatives taken in two orders differ: a layer's double backward is wrong "
            "in torch (that of weight_norm is), or the loss is flat up to rounding"
        ) from error
    total = trace(hessian, samples=min(size, 45), generator=record.generator)
    sharpness, residual = float(top.values[0]), float(top.residuals[0])
    slope = float(gradient(problem, samples).norm())
    record.table(
        "curvature",
        ("quantity", "value", "error bar"),
        [
            ("largest eigenvalue", sharpness, residual),
            ("trace", total.value, 2 * total.standard_error),
            ("mean eigenvalue (trace / parameters)", total.value / size, None),
            ("gradient norm", slope, None),
            ("largest stable step of gradient descent, 2 / λ", _limit(sharpness), None),
        ],
        caption="Of the mean training loss at the given weights. Error bars: the residual "
        "norm, and two standard errors.",
    )
    if sharpness <= 0:
        record.not_applicable(
            "L-125", r"\eta < 2/\lambda_{\max}", "no direction of positive curvature was found"
        )
        return
    _step_limit(problem, record, top, samples)
    record.headline(
        f"The loss curves by {sharpness:.3g} in its sharpest direction: gradient descent with a "
        f"step above {2 / sharpness:.3g} is unstable here."
    )


def _step_limit(
    problem: Problem, record: FindingRecord, top: EigenResult, samples: Samples
) -> None:
    """Along the top eigenvector one step multiplies a small displacement by |1 - step * λ|."""
    sharpness = float(top.values[0])
    direction = unflatten(top.vectors[:, 0], problem.parameters)
    scale = max(1.0, float(flatten(problem.parameters).norm()))
    finest = torch.finfo(flatten(problem.parameters).dtype).eps
    # small enough that hardly any ReLU changes its side, large against rounding
    displacement: float = math.sqrt(finest) * scale

    def slope(sign: float) -> float:
        moved = {k: p + sign * displacement * direction[k] for k, p in problem.parameters.items()}
        return float(gradient(problem, samples, parameters=moved) @ top.vectors[:, 0])

    measured = (slope(+1.0) - slope(-1.0)) / (2 * displacement)

    def factor(step: float) -> float:
        return abs(1.0 - step * measured)

    limit = 2 / sharpness
    record.claim(
        "L-125",
        r"\eta < 2/\lambda_{\max} \;\Rightarrow\; |1 - \eta\, v^\top \nabla^2 L\, v| < 1",
        promised=1.0,
        relation="<",
        measured=factor(0.95 * limit),
        reason="growth of a small displacement along the top eigenvector in one step of gradient "
        "descent, from two directional derivatives; step 0.95 times the limit",
        control=Control("the step is 1.05 times the limit", factor(1.05 * limit)),
    )


def _limit(sharpness: float) -> float | None:
    return 2 / sharpness if sharpness > 0 else None
