"""Findings about the tangent kernel: what gradient descent can fit from here, and how fast."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import (
    jackknife_range,
    largest_eigenvalue_range,
    mean_range,
    part_of,
    quotient,
)
from torchtheory.audit.findings.hypotheses import (
    deterministic,
    differentiable,
    has_loss,
    has_parameters,
    initial_weights,
    one_input,
    samples_of_one_size,
)
from torchtheory.core.errors import UnsupportedModel
from torchtheory.core.figure import COLORS
from torchtheory.core.intervals import Interval
from torchtheory.core.mapping import Mapped
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.kernels.tangent.laziness import (
    Laziness,
    kernel_target_alignment,
    measure_laziness,
    summed,
)
from torchtheory.linalg.eigenvalues import top_eigenpairs
from torchtheory.linalg.operators import LinearOperator
from torchtheory.models.model import Parameters, flatten, unflatten
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.optimization.curvature.operators import gradient
from torchtheory.report.numbers import share_words, size_words

#: The kernel is computed for at most this many rows, one for each output of each sample.
ROWS = 1000

#: Samples that judge the top eigenvector of the others' kernel: one fold of so many. Fewer samples
#: than `FEWEST` say too little about the rest.
FOLDS, FEWEST = 5, 20

#: Residual of its largest eigenvalue, relative to it.
TOLERANCE = 1e-6

#: Inputs that kernels before and after training are compared on, at most.
COMPARED = 128

#: Changes of the kernel and of the outputs' slope below which training was lazy.
LAZY = 0.1

#: Slopes of the loss at two short steps that are called equal.
AGREE = 2e-3

FALL = (
    r"\frac{d}{dt} \hat R(\theta_t) = -\frac{1}{m^2} \sum_{i,j} "
    r"D_i^\top\, \Theta(x_i, x_j)\, D_j, \quad \dot\theta = -\nabla \hat R"
)


@finding(
    "tangent-kernel",
    area="training",
    title="Spectrum of the tangent kernel and what it predicts for training",
    cost="gradient",
    covers=["A-55", "A-56"],
    needs=[has_loss, has_parameters, deterministic, differentiable, samples_of_one_size],
)
def tangent_kernel(problem: Problem, record: FindingRecord) -> None:
    """Eigenvalues of the kernel at these weights, and of the loss of the linearized network."""
    samples = _some(problem, record)
    if len(samples) < min(FEWEST, samples.population):
        _too_few(record, ["A-55", "A-56"], FALL)
        return
    problem = problem.in_double_if_possible()
    samples = samples.in_precision(problem.function.reference().dtype)
    kernel = _kernel(problem, samples)
    n, classes = kernel.shape[0], kernel.shape[2]
    square = kernel.permute(0, 2, 1, 3).reshape(n * classes, n * classes)
    values = torch.linalg.eigvalsh(square).flip(0).clamp_min(0)
    if float(values[0]) == 0:
        record.not_applicable(
            ["A-55", "A-56"],
            FALL,
            "the outputs do not depend on the parameters",
            samples=samples,
        )
        return
    slopes, metric = _loss_derivatives(problem, samples)
    modes = _Modes(square, slopes, metric)
    _tables(problem, samples, record, kernel, values, modes)
    _decrease(problem, samples, record, square, slopes)
    sentence = _quantities(record, samples, square, values, modes)
    record.figure(
        "spectrum",
        lambda axes: _plot(axes, values, modes),
        caption="Left: eigenvalues of the tangent kernel. Right: how much of what the loss still "
        f"asks for lies in its fastest directions{part_of(samples)}.",
        grid=(1, 2),
        size=(8, 2.8),
    )
    record.headline(sentence)


def _too_few(record: FindingRecord, ids: list[str], statement: str) -> None:
    record.not_done(
        ids,
        statement,
        f"not measured: there was time for fewer than {FEWEST} samples, which say too little about "
        "the others; give a larger budget",
    )


def _quantities(
    record: FindingRecord, samples: Samples, square: Tensor, values: Tensor, modes: _Modes
) -> str:
    """What two audits are compared by, and the finding in a sentence."""
    n, complete = len(samples), len(samples) >= samples.population
    basis = "rounding" if complete else f"{n:,} of {samples.population:,} samples, by folds"
    largest = _top_of_mean(square, samples, record)
    record.quantity(
        "kernel-scale", "largest eigenvalue of the tangent kernel, over the samples",
        largest.estimate, low=largest.low, high=largest.high, basis=basis, samples=samples,
    )  # fmt: skip
    traces = square.diagonal().reshape(n, -1).sum(1)
    total = mean_range(traces, n, samples.population, record.confidence)
    rank = quotient(total, largest)
    record.quantity(
        "kernel-effective-rank", "effective directions of the tangent kernel, trace / largest",
        rank.estimate, low=max(1.0, rank.low), high=rank.high, basis=basis, samples=samples,
    )  # fmt: skip
    if not modes.largest > 0:
        return "The loss is flat in the outputs here: the linearized network has nothing to learn."
    rate = _top_of_mean(modes.weighted * n, samples, record)
    limit = 2 / rate.estimate
    stable = record.quantity(
        "linearized-step-limit", "largest stable step of the linearized network", limit,
        low=2 / rate.high, high=2 / rate.low if rate.low > 0 else math.inf,
        basis=basis, samples=samples,
    )  # fmt: skip
    said = (
        f"The tangent kernel has {size_words(rank)} effective directions{part_of(samples)}; "
        "gradient descent on the network linearized here is stable up to a step of "
        f"{stable.low:.3g}"
    )
    if not complete:
        record.note(
            "Not measured: how much of the error lies in the fastest directions, and how long they "
            "take. On a part of the samples the kernel has fewer and other slow directions."
        )
        return f"{said}."
    share = float(modes.share[min(9, len(modes.share) - 1)])
    record.quantity(
        "fast-share", "share of the remaining error in the ten fastest directions", share,
        samples=samples,
    )  # fmt: skip
    slow = modes.steps(0.9)
    if math.isfinite(slow):
        return f"{said} and then needs about {slow:.3g} steps for nine tenths of the error left."
    return f"{said} and never removes nine tenths of the error left: it has no direction for it."


def _top_of_mean(square: Tensor, samples: Samples, record: FindingRecord) -> Interval:
    r"""The largest eigenvalue of the mean over samples of $J_i^\top J_i$, from the kernel.

    It is that of the kernel over the number of samples. With $u$ its eigenvector for some samples,
    $v=J^\top u/\sqrt\lambda$ is the direction in the parameters, and $\|J_iv\|^2=\|\Theta_iu\|^2/
    \lambda$ for any sample: so each fold judges the direction that the others chose. Products with
    the kernel are all that is needed, some tens for each fold.
    """
    n = len(samples)
    rows = square.shape[0] // n

    def along(judged: Tensor) -> tuple[float, float, Tensor]:
        """The largest eigenvalue of the other samples' mean, its error, the form of these `[k]`.

        All samples choose the direction where all are judged.
        """
        chosen = torch.ones(n, dtype=torch.bool, device=square.device)
        if len(judged) < n:
            chosen[judged] = False
        kept = chosen.repeat_interleave(rows).to(square)
        found = top_eigenpairs(
            LinearOperator(
                (n * rows, n * rows),
                lambda v: kept * (square @ (kept * v)),
                symmetric=True,
                dtype=square.dtype,
                device=square.device,
            ),
            tolerance=TOLERANCE,
        )
        top, count = float(found.values[0]), int(chosen.sum())
        form = (square @ (kept * found.vectors[:, 0])).reshape(n, rows).square().sum(1)
        error = float(found.residuals[0])
        return top / count, error / count, form[judged] / max(top, 1e-300)

    value, error, inside = along(torch.arange(n, device=square.device))
    complete = n >= samples.population
    order = torch.randperm(n, generator=record.generator).to(square.device)
    folds = () if complete else torch.tensor_split(order, FOLDS)
    outside = [along(fold)[2] for fold in folds]
    return largest_eigenvalue_range(
        value,
        inside.cpu(),
        torch.cat(outside).cpu() if outside else torch.zeros(0),
        used=n,
        unseen=n,
        population=samples.population,
        residual=error + 100 * n * torch.finfo(square.dtype).eps * value,
        confidence=record.confidence,
        folds=True,
    )


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
        self.weighted = (weighted + weighted.T) / 2
        values, vectors = torch.linalg.eigh(self.weighted)
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
    return train.some(count, record.generator)


def _kernel(problem: Problem, samples: Samples, only: list[str] | None = None) -> Tensor:
    return empirical_ntk(
        problem.function,
        samples.x,
        parameters=problem.parameters,
        only=only,
        memory=problem.memory,
    )


def _loss_derivatives(problem: Problem, samples: Samples) -> tuple[Tensor, Tensor]:
    """Gradient `[n, C]` and Hessian `[n, C, C]` of each sample's loss in its outputs."""
    outputs = problem.outputs(samples)

    def loss(values: Tensor, target: Tensor) -> Tensor:
        return problem.loss(values.view_as(outputs[:1]), target[None]).reshape(())

    def derivatives(values: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        return torch.func.grad(loss)(values, target), torch.func.hessian(loss)(values, target)

    flat = outputs.reshape(len(outputs), -1)
    slopes, hessians = Mapped(derivatives)(flat, samples.y)
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
        caption=f"Of the tangent kernel at the given weights{part_of(samples)}. The alignment is "
        "the cosine between the kernel and that of the targets, 1 at best.",
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
        f"that share of the error that is left{part_of(samples)}. Time constant: step size × "
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
    dtype = square.dtype
    if promised <= torch.finfo(dtype).eps * float(square.diagonal().mean()):
        record.not_applicable(
            ["A-55", "A-56"], FALL, "the gradient of the loss vanishes here", samples=samples
        )
        return
    measured = _fall(problem, samples, direction)
    if measured is None:
        record.not_applicable(
            ["A-55", "A-56"],
            FALL,
            "no two short steps along the gradient agree on how fast the loss falls: it has a kink "
            "at these weights, or is flat up to rounding",
            samples=samples,
        )
        return
    largest = max(direction, key=lambda k: float(direction[k].norm()))
    rest = [k for k in direction if k != largest]
    says = record.checks(["A-55", "A-56"], FALL)
    says.equal(
        measured / promised,
        1.0,
        0.01,
        where="ratio of the fall of the loss along its gradient, from loss values, to what the "
        "kernel predicts",
    )
    if rest:
        without = _kernel(problem, samples, rest).permute(0, 2, 1, 3).reshape(square.shape)
        less = float(error @ without @ error) / n**2
        if less < 0.98 * promised:
            says.fails(f"{largest} left out of the kernel", measured / max(less, 1e-300))


def _fall(problem: Problem, samples: Samples, direction: Parameters) -> float | None:
    """How fast the loss falls along its gradient, from its values on both sides.

    A long step crosses kinks of the network, a short one drowns in rounding: where two steps agree,
    and the two sides with each other. None where there are none.
    """
    scale = max(1.0, float(flatten(problem.trainable).norm()))
    flat = flatten(direction)
    longest = torch.finfo(flat.dtype).eps ** (1 / 3) * scale / float(flat.norm())

    def loss(step: float) -> float:
        moved = {k: p + step * direction[k] for k, p in problem.trainable.items()}
        return problem.at(moved).risk(samples)

    base = loss(0.0)
    found = []
    for shorter in (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001):
        step = longest * shorter
        right, left = (loss(step) - base) / step, (base - loss(-step)) / step
        found.append(((right + left) / 2, abs(right - left)))

    def apart(pair: tuple[tuple[float, float], tuple[float, float]]) -> float:
        (one, _), (two, sides) = pair
        return max(abs(one - two), sides / 10)  # the sides differ by the curvature as well

    best = min(pairwise(found), key=apart)
    value = best[1][0]
    return value if apart(best) <= AGREE * abs(value) else None


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
    train = problem.train
    classes = problem.outputs(train.first(1))[0].numel()
    count = min(COMPARED, problem.affordable(12 * (classes + 1), share=0.4))
    samples = train.some(max(1, count), record.generator)
    if len(samples) < min(FEWEST, samples.population):
        record.not_done(
            ["A-61", "M-15"],
            r"f(\theta) \approx f(\theta_0) + Df(\theta_0)(\theta - \theta_0)",
            "not measured, how far training left the linear regime: there was time for fewer than "
            f"{FEWEST} samples; give a larger budget",
        )
        return
    targets = samples.y if problem.task == "multiclass" else None
    found = measure_laziness(problem.model, problem.initial, samples.x, targets, limit=len(samples))
    _laziness_tables(record, found, samples)
    record.quantity(
        "parameter-movement", "relative movement of the parameters", found.relative_movement
    )
    drift = _drift(found, samples, record.confidence)
    gap = _gap(found, samples, record.confidence)
    basis = (
        "all samples"
        if len(samples) >= samples.population
        else f"jackknife, {len(samples):,} of {samples.population:,} samples"
    )
    record.quantity(
        "kernel-drift", "relative drift of the tangent kernel",
        drift.estimate, low=drift.low, high=drift.high, basis=basis, samples=samples,
    )  # fmt: skip
    record.quantity(
        "linearization-gap",
        "share of the outputs' change the linearized network misses, root mean square",
        gap.estimate, low=gap.low, high=gap.high, basis=basis, samples=samples,
    )  # fmt: skip
    lazy, busy = max(gap.high, drift.high) < LAZY, max(gap.low, drift.low) >= LAZY
    word = "lazy" if lazy else "not lazy" if busy else "perhaps lazy"
    record.headline(
        f"Training was {word}: the parameters moved by "
        f"{found.relative_movement:.2g} of their initial norm, the tangent kernel by "
        f"{size_words(drift)} of its own, and the linearized network misses "
        f"{share_words(gap)} of the change of the outputs{part_of(samples)}"
        + (
            ": kernel regression describes it."
            if lazy
            else ": kernel regression is not a model of it."
            if busy
            else "."
        )
    )


def _laziness_tables(record: FindingRecord, found: Laziness, samples: Samples) -> None:
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
        caption=f"Against the initial weights, on {len(samples):,} training samples. All go to 0 "
        "(and the alignments become equal) for a network in the lazy regime, whose training is "
        "kernel regression.",
    )
    moved = sorted(found.movement_by_parameter.items(), key=lambda item: -item[1])
    record.table(
        "movement",
        ("parameter", "relative movement"),
        moved[:20],
        caption="Parameters that moved most, relative to their initial norm"
        + (" (infinite: it began at 0)." if any(v == float("inf") for _, v in moved) else "."),
    )


def _drift(found: Laziness, samples: Samples, confidence: float) -> Interval:
    r"""$\|\Theta-\Theta_0\|_F/\|\Theta_0\|_F$ on all samples, from the kernels of some.

    The squared norm of a kernel of $N$ samples is a mean over pairs, of which $1/N$ are pairs of a
    sample with itself: more of them among a few samples, which is corrected for.
    """
    before, after = (k.double() for k in found.kernels)
    sizes = [
        k.square() if k.ndim == 2 else k.square().sum((-2, -1)) for k in (after - before, before)
    ]

    def ratio(squares: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], n: int) -> Tensor:
        alone = 1 / samples.population
        means = [
            (1 - alone) * (s - d) / max(1, n * (n - 1)) + alone * d / n
            for s, d in zip(squares, own, strict=True)
        ]
        moved = torch.where(means[0] > 0, math.inf, 0.0)
        return torch.where(means[1] > 0, means[0] / means[1].clamp_min(1e-300), moved)

    total, own, rows = zip(
        *((s.sum(), s.diagonal(), s.sum(0) + s.sum(1) - s.diagonal()) for s in sizes), strict=True
    )
    n = len(sizes[0])
    value = ratio(total, tuple(d.sum() for d in own), n)
    without = ratio(
        tuple(t - r for t, r in zip(total, rows, strict=True)),
        tuple(d.sum() - d for d in own),
        n - 1,
    )
    return _root(value, without, samples, confidence)


def _gap(found: Laziness, samples: Samples, confidence: float) -> Interval:
    """Root mean square distance to the linearized network over that of the change."""
    gaps, changes = (v.double().square() for v in (found.gaps, found.changes))

    def ratio(gap: Tensor, change: Tensor) -> Tensor:
        moved = torch.where(gap > 0, math.inf, 0.0)
        return torch.where(change > 0, gap / change.clamp_min(1e-300), moved)

    value = ratio(gaps.sum(), changes.sum())
    return _root(value, ratio(gaps.sum() - gaps, changes.sum() - changes), samples, confidence)


def _root(value: Tensor, without: Tensor, samples: Samples, confidence: float) -> Interval:
    """The root of a quotient, with the range of the jackknife; exact on all samples."""
    if len(samples) >= samples.population or not bool(torch.isfinite(without).all()):
        root = math.sqrt(float(value))
        low, high = (root, root) if len(samples) >= samples.population else (0.0, math.inf)
        return Interval(root, low, high, confidence, len(samples), "")
    found = jackknife_range(float(value), without, len(samples), samples.population, confidence)
    root, low, high = (math.sqrt(max(0.0, v)) for v in (found.estimate, found.low, found.high))
    return Interval(root, low, high, confidence, len(samples), "jackknife")
