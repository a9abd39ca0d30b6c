"""Findings about the tangent kernel: what gradient descent can fit from here, and how fast."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import (
    deterministic,
    differentiable,
    has_parameters,
    initial_weights,
    one_input,
)
from torchtheory.core.errors import UnsupportedModel
from torchtheory.core.figure import COLORS
from torchtheory.kernels.laziness import (
    kernel_target_alignment,
    measure_laziness,
    summed,
)
from torchtheory.kernels.tangent import empirical_ntk
from torchtheory.models.model import flatten, unflatten
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.optimization.curvature.operators import gradient

#: The kernel is computed for at most this many rows, one for each output of each sample.
ROWS = 1000


@finding(
    "tangent-kernel",
    area="training",
    title="Spectrum of the tangent kernel and what it predicts for training",
    cost="gradient",
    covers=["A-55", "A-56"],
    needs=[has_parameters, deterministic, differentiable],
)
def tangent_kernel(problem: Problem, record: FindingRecord) -> None:
    """Eigenvalues of the kernel at these weights, and of the loss of the linearized network."""
    samples = _some(problem, record)
    problem = problem.in_double_if_possible()
    samples = samples.in_precision(problem.function.reference().dtype)
    kernel = _kernel(problem, samples)
    n, classes = kernel.shape[0], kernel.shape[2]
    square = kernel.permute(0, 2, 1, 3).reshape(n * classes, n * classes)
    values = torch.linalg.eigvalsh(square).flip(0).clamp_min(0)
    if float(values[0]) == 0:
        record.not_applicable(
            ["A-55", "A-56"], r"\Theta = J J^\top", "the outputs do not depend on the parameters"
        )
        return
    slopes, metric = _loss_derivatives(problem, samples)
    modes = _Modes(square, slopes, metric)
    _tables(problem, samples, record, kernel, values, modes)
    _decrease(problem, samples, record, square, slopes)
    _quantities(record, kernel, slopes, metric, values, modes)
    record.figure(
        "spectrum",
        lambda axes: _plot(axes, values, modes),
        caption="Left: eigenvalues of the tangent kernel. Right: how much of what the loss still "
        "asks for lies in its fastest directions.",
        grid=(1, 2),
        size=(8, 2.8),
    )
    slow = modes.steps(0.9)
    record.headline(
        f"The tangent kernel of {n} training samples has {modes.effective_rank(values):.3g} "
        f"effective directions of {len(values)}; gradient descent on the network linearized here "
        f"is stable up to a step of {2 / modes.largest:.3g} and "
        + (
            f"then needs about {slow:.3g} steps for nine tenths of the error that is left."
            if math.isfinite(slow)
            else "never removes nine tenths of the error that is left: it has no direction for it."
        )
        if modes.largest > 0
        else "The loss is flat in the outputs here: the linearized network has nothing to learn."
    )


def _quantities(
    record: FindingRecord,
    kernel: Tensor,
    slopes: Tensor,
    metric: Tensor,
    values: Tensor,
    modes: _Modes,
) -> None:
    """What two audits are compared by; the ranges are those of the halves of the samples."""
    n = len(kernel)
    halves = []
    for part in (slice(0, n // 2), slice(n // 2, n)):
        rows = kernel[part, part].permute(0, 2, 1, 3)
        size = rows.shape[0] * rows.shape[1]
        if size:
            square = rows.reshape(size, size)
            spectrum = torch.linalg.eigvalsh(square).flip(0).clamp_min(0)
            halves.append((spectrum, _Modes(square, slopes[part], metric[part])))
    ranges = {"basis": "the halves of the samples, each for itself"}

    def between(value: float, others: list[float]) -> dict[str, Any]:
        every = [value, *others]
        return {"low": min(every), "high": max(every), **ranges}

    scale = float(values[0]) / n
    record.quantity(
        "kernel-scale", "largest eigenvalue of the tangent kernel, a sample", scale,
        **between(scale, [float(v[0]) / (len(v) / kernel.shape[2]) for v, _ in halves]),
    )  # fmt: skip
    if modes.largest > 0:
        limits = [2 / m.largest for _, m in halves if m.largest > 0]
        record.quantity(
            "linearized-step-limit", "largest stable step of the linearized network",
            2 / modes.largest, **between(2 / modes.largest, limits),
        )  # fmt: skip
    share = float(modes.share[min(9, len(modes.share) - 1)])
    record.quantity(
        "fast-share", "share of the remaining error in the ten fastest directions", share,
        **between(share, [float(m.share[min(9, len(m.share) - 1)]) for _, m in halves]),
    )  # fmt: skip


class _Modes:
    """The loss of the linearized network, quadratic near these weights, in its eigenvectors.

    With the loss's Hessian H in the outputs and Θ = J Jᵀ, errors e obey e' = -(1/m) Θ H e: in the
    metric of H the eigenvectors of H^(1/2) Θ H^(1/2) / m decay on their own.
    """

    def __init__(self, square: Tensor, slopes: Tensor, metric: Tensor) -> None:
        n, classes = slopes.shape
        scales, axes = torch.linalg.eigh(metric)
        cut = scales.amax() * torch.finfo(scales.dtype).eps * classes
        kept = scales > cut
        root = (axes * scales.clamp_min(0).sqrt()[:, None, :]) @ axes.mT
        inverse = torch.where(kept, scales.clamp_min(cut).rsqrt(), 0)
        error = ((axes * inverse[:, None, :]) @ axes.mT @ slopes[:, :, None]).reshape(-1)
        blocks = square.view(n, classes, n, classes)
        weighted = torch.einsum("nab,nbmc,mcd->namd", root, blocks, root) / n
        weighted = weighted.reshape(n * classes, n * classes)
        values, vectors = torch.linalg.eigh((weighted + weighted.T) / 2)
        self.values = values.flip(0).clamp_min(0)
        self.energy = (vectors.T @ error).square().flip(0)

    @property
    def largest(self) -> float:
        return float(self.values[0])

    @property
    def share(self) -> Tensor:
        """Share of the error in the first k directions."""
        total = self.energy.sum()
        return self.energy.cumsum(0) / total if float(total) > 0 else torch.ones_like(self.energy)

    def steps(self, share: float) -> float:
        """Steps, at half the largest stable one, until the slowest direction needed is learned."""
        needed = int((self.share < share).sum())
        value = float(self.values[min(needed, len(self.values) - 1)])
        rounding = len(self.values) * torch.finfo(self.values.dtype).eps * self.largest
        return self.largest / value if value > rounding else math.inf

    @staticmethod
    def effective_rank(values: Tensor) -> float:
        return float(values.sum() / values[0])


def _some(problem: Problem, record: FindingRecord) -> Samples:
    """As many training samples as give the allowed number of rows, drawn at random."""
    train = problem.train
    classes = problem.outputs(train.first(1))[0].numel()
    if classes > ROWS:
        raise UnsupportedModel(
            f"a sample has {classes} outputs, and kernels of more than {ROWS} rows are not made"
        )
    # a backward pass for each output of each sample, in twice the precision
    count = min(ROWS // classes, max(2, problem.affordable(6 * (classes + 1), share=0.2)))
    if count < len(train):
        record.note(f"Kernel of {count} of the {len(train)} training samples, drawn at random.")
    return train.some(count, record.generator)


def _kernel(problem: Problem, samples: Samples, only: list[str] | None = None) -> Tensor:
    return empirical_ntk(
        problem.function,
        samples.x,
        parameters=problem.parameters,
        only=only,
        memory="1GiB",
    )


def _loss_derivatives(problem: Problem, samples: Samples) -> tuple[Tensor, Tensor]:
    """Gradient `[n, C]` and Hessian `[n, C, C]` of each sample's loss in its outputs."""
    outputs = problem.outputs(samples)

    def loss(values: Tensor, target: Tensor) -> Tensor:
        return problem.loss(values.view_as(outputs[:1]), target[None]).reshape(())

    def derivatives(values: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        return torch.func.grad(loss)(values, target), torch.func.hessian(loss)(values, target)

    flat = outputs.reshape(len(outputs), -1)
    try:
        slopes, hessians = torch.func.vmap(derivatives)(flat, samples.y)
    except (RuntimeError, NotImplementedError):  # a loss of the user's that vmap cannot batch
        each = [derivatives(o, y) for o, y in zip(flat, samples.y, strict=True)]
        slopes, hessians = (torch.stack(values) for values in zip(*each, strict=True))
    return slopes, hessians


def _tables(
    problem: Problem,
    samples: Samples,
    record: FindingRecord,
    kernel: Tensor,
    values: Tensor,
    modes: _Modes,
) -> None:
    rounding = len(values) * torch.finfo(values.dtype).eps * values[0]
    positive = values[values > rounding]
    targets = samples.y.reshape(len(samples), -1)
    if problem.task == "multiclass":
        targets = samples.y
    elif problem.task == "binary":
        targets = 2 * targets - 1
    record.table(
        "spectrum",
        ("quantity", "value"),
        [
            ("rows (samples × outputs)", len(values)),
            ("largest eigenvalue", float(values[0])),
            ("smallest eigenvalue above rounding", float(positive[-1])),
            ("condition number", float(values[0] / positive[-1])),
            ("rank above rounding", len(positive)),
            ("effective rank, trace / largest", float(values.sum() / values[0])),
            ("participation, trace² / squares", float(values.sum() ** 2 / values.square().sum())),
            ("alignment with the targets", kernel_target_alignment(summed(kernel), targets)),
            (
                "largest stable step of the linearized network",
                2 / modes.largest if modes.largest > 0 else None,
            ),
        ],
        caption="Of the tangent kernel at the given weights. The alignment is the cosine between "
        "the kernel and that of the targets, 1 at best.",
    )
    rows = []
    for share in (0.5, 0.9, 0.99, 0.999):
        count = min(int((modes.share < share).sum()) + 1, len(modes.values))
        value = float(modes.values[count - 1])
        rows.append((share, count, value, 1 / value if value > 0 else None, modes.steps(share)))
    record.table(
        "time-to-fit",
        ("share of the error", "directions", "their slowest rate", "time constant", "steps"),
        rows,
        caption="Directions of the loss of the linearized network, fastest first, until they hold "
        "that share of the error that is left on the training data. Time constant: step size × "
        "steps until the slowest of them is down to 1/e; steps: the same at half the largest "
        "stable step.",
    )


def _decrease(
    problem: Problem, samples: Samples, record: FindingRecord, square: Tensor, slopes: Tensor
) -> None:
    """The rate at which the loss falls along gradient flow: by the kernel, and by loss values."""
    n = len(samples)
    error = slopes.reshape(-1)
    promised = float(error @ square @ error) / n**2
    direction = unflatten(gradient(problem, samples), problem.trainable)
    length = float(flatten(direction).norm())
    dtype = square.dtype
    statement = (
        r"\frac{d}{dt} \hat R(\theta_t) = -\frac{1}{m^2} \sum_{i,j} "
        r"D_i^\top\, \Theta(x_i, x_j)\, D_j, \quad \dot\theta = -\nabla \hat R"
    )
    if promised <= torch.finfo(dtype).eps * float(square.diagonal().mean()):
        record.not_applicable(["A-55", "A-56"], statement, "the gradient of the loss vanishes here")
        return
    scale = max(1.0, float(flatten(problem.trainable).norm()))
    longest = torch.finfo(dtype).eps ** (1 / 3) * scale / length

    def fall(step: float) -> float:
        """Of the loss along its gradient, from two values of it."""
        losses = []
        for sign in (1.0, -1.0):
            moved = {k: p + sign * step * direction[k] for k, p in problem.trainable.items()}
            with torch.no_grad():
                losses.append(float(problem.objective(samples)(moved)))
        return (losses[0] - losses[1]) / (2 * step)

    # a long step crosses kinks of the network, a short one drowns in rounding: where two agree
    found = [fall(longest * shorter) for shorter in (1.0, 0.1, 0.01, 0.001)]
    measured = min(pairwise(found), key=lambda pair: abs(pair[0] - pair[1]))[1]
    largest = max(direction, key=lambda k: float(direction[k].norm()))
    rest = [k for k in direction if k != largest]
    says = record.states(["A-55", "A-56"], statement)
    says.equal(
        measured / promised,
        1.0,
        0.01,
        where="ratio of the fall of the loss along its gradient, from two loss values, to what "
        "the kernel predicts; if this fails, the derivatives of the model are not those of what "
        "it computes (a custom backward, a straight-through estimator, a kink at these weights)",
    )
    if rest:
        without = _kernel(problem, samples, rest).permute(0, 2, 1, 3).reshape(square.shape)
        less = float(error @ without @ error) / n**2
        says.fails(f"{largest} left out of the kernel", measured / less)


def _plot(axes: Any, values: Tensor, modes: _Modes) -> None:
    left, right = axes[0]
    floor = len(values) * torch.finfo(values.dtype).eps * float(values[0])
    index = range(1, len(values) + 1)
    left.loglog(index, values.clamp_min(floor).cpu().numpy(), color=COLORS[0])
    left.set(xlabel="index", ylabel="eigenvalue", title="tangent kernel")
    right.semilogx(index, modes.share.cpu().numpy(), color=COLORS[1])
    right.set(xlabel="directions, fastest first", ylabel="share of the error", ylim=(0, 1.03))


@finding(
    "laziness",
    area="training",
    title="How far training left the linear regime around its start",
    cost="gradient",
    covers=["A-61", "M-15"],
    needs=[initial_weights, has_parameters, deterministic, differentiable, one_input],
)
def laziness(problem: Problem, record: FindingRecord) -> None:
    """Movement of the parameters, drift of the kernel, and distance to the linearized network."""
    assert problem.initial is not None
    targets = problem.train.y if problem.task == "multiclass" else None
    found = measure_laziness(problem.model, problem.initial, problem.train.x, targets)
    record.note(f"On the training data: {found.note}.")
    rows: list[tuple[str, float | None]] = [
        ("parameters: ‖θ − θ₀‖ / ‖θ₀‖", found.relative_movement),
        ("tangent kernel: ‖Θ − Θ₀‖ / ‖Θ₀‖", found.kernel_drift),
        ("outputs: largest change", found.output_change),
        ("outputs: largest distance to the linearized network", found.linearization_gap),
        ("that distance as a share of the change", found.relative_gap),
    ]
    if found.alignment_before is not None:
        rows.append(("alignment of the kernel with the labels, before", found.alignment_before))
        rows.append(("alignment of the kernel with the labels, after", found.alignment_after))
    record.table(
        "laziness",
        ("quantity", "value"),
        rows,
        caption="Against the initial weights. All go to 0 (and the alignments become equal) for "
        "a network in the lazy regime, whose training is kernel regression.",
    )
    moved = sorted(found.movement_by_parameter.items(), key=lambda item: -item[1])
    record.table(
        "movement",
        ("parameter", "relative movement"),
        moved[:20],
        caption="Parameters that moved most, relative to their initial norm"
        + (" (infinite: it began at 0)." if any(v == float("inf") for _, v in moved) else "."),
    )
    record.quantity(
        "parameter-movement", "relative movement of the parameters", found.relative_movement
    )
    record.quantity("kernel-drift", "relative drift of the tangent kernel", found.kernel_drift)
    record.quantity(
        "linearization-gap", "share of the outputs' change the linearized network misses",
        found.relative_gap,
    )  # fmt: skip
    lazy = found.relative_gap < 0.1 and found.kernel_drift < 0.1
    record.headline(
        f"Training was {'lazy' if lazy else 'not lazy'}: the parameters moved by "
        f"{found.relative_movement:.2g} of their initial norm, the tangent kernel by "
        f"{found.kernel_drift:.2g} of its own, and the linearized network misses "
        f"{found.relative_gap:.0%} of the change of the outputs"
        + (
            ": kernel regression describes it."
            if lazy
            else ": kernel regression is no model of it."
        )
    )
