"""What a step of training minimizes, put together from what was asked for."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from torchtheory.core.checks import closed_fraction
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.models.problem import Loss, Problem, Task
from torchtheory.training.losses.distillation import Distillation
from torchtheory.training.losses.label_smoothing import check_confusion, uniform_confusion

Criterion = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Outputs, targets and the teacher's logits (or None) to the mean loss of a batch."""


def training_criterion(
    problem: Problem,
    *,
    usual_loss: bool,
    label_smoothing: float | Tensor = 0.0,
    distillation: Distillation | None = None,
) -> Criterion:
    """The loss on the labels, smoothed as asked, mixed with the loss on the teacher's logits."""
    on_labels = _on_labels(problem, usual_loss, label_smoothing)
    if distillation is None:
        return lambda outputs, y, _: on_labels(outputs, y)
    if problem.task != "multiclass":
        raise InvalidInput(
            f"distillation is for classifiers with one logit per class, and this is a "
            f"{problem.task} problem"
        )
    temperature, weight = distillation.temperature, distillation.weight

    def mixed(outputs: Tensor, y: Tensor, logits: Tensor | None) -> Tensor:
        assert logits is not None
        target = (logits / temperature).softmax(1)
        soft = temperature**2 * F.cross_entropy(outputs / temperature, target)
        return soft if weight == 1 else (1 - weight) * on_labels(outputs, y) + weight * soft

    return mixed


def _on_labels(problem: Problem, usual_loss: bool, smoothing: float | Tensor) -> Loss:
    if isinstance(smoothing, Tensor):
        smoothed = True
    else:
        closed_fraction(smoothing, "label_smoothing")
        smoothed = smoothing > 0
    if not smoothed:
        # as it is where nothing is rearranged: some look at which loss it is
        return problem.loss if problem.function.arranged is None else problem.loss_as_returned
    if not usual_loss or problem.classes is None:
        raise InvalidInput(
            "label smoothing goes with classification and its usual cross-entropy, not with "
            + ("regression" if problem.classes is None else "a loss of your own")
        )
    if not isinstance(smoothing, Tensor) and problem.task == "multiclass":
        epsilon = smoothing
        return lambda outputs, y: F.cross_entropy(outputs, y, label_smoothing=epsilon)
    if isinstance(smoothing, Tensor):
        confusion = check_confusion(smoothing, problem.classes)
    else:
        confusion = uniform_confusion(problem.classes, smoothing)
    confusion = confusion.to(problem.function.reference())
    if problem.task == "binary":
        low, high = float(confusion[1, 0]), float(confusion[1, 1])
        return lambda outputs, y: F.binary_cross_entropy_with_logits(
            outputs, low + (high - low) * y
        )
    rows = confusion.T.contiguous()
    return lambda outputs, y: F.cross_entropy(outputs, rows.index_select(0, y))


def count_errors(task: Task, outputs: Tensor, y: Tensor) -> Tensor | None:
    """How many of a batch are misclassified, as a tensor; None in regression."""
    if task == "multiclass":
        return (outputs.argmax(1) != y).sum()
    if task == "binary":
        return ((outputs > 0) != (y > 0.5)).sum()
    return None


def check_teacher(problem: Problem, logits: Tensor) -> None:
    """Refuse a teacher whose logits do not match the student's classes."""
    if logits.ndim != 2 or logits.shape[1] != problem.classes:
        raise ShapeMismatch(
            f"the teacher returns {list(logits.shape)} and the student has {problem.classes} "
            "classes: they must be the same ones"
        )
