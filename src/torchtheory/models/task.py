r"""What kind of problem outputs, targets and loss pose: the one place where that is decided.

| task | outputs of a sample | targets of a sample | usual loss |
|---|---|---|---|
| `regression` | any shape | the same shape | mean squared error |
| `count` | logarithm of a rate (or a rate) | whole numbers from 0, the same shape | Poisson |
| `ordinal` | a number, or a logit for each of $K-1$ thresholds | a level: a whole number, or $K-1$ rows of 1 then 0 | squared, or logistic per threshold |
| `ranking` | a score for each of several items | their relevance | logistic per pair of items |
| `binary` | one logit | 0 or 1 (or -1, +1) | logistic |
| `multiclass` | one logit per class | a class index, or a one-hot row | cross-entropy |
| `multilabel` | one logit per label | 0 or 1 (or between) for each | logistic |
| `labeling` | one logit per class at every position | a class index at every position, or -100 | mean cross-entropy of its labeled positions |
| `combined` | several of these, side by side | theirs | the weighted sum of theirs |
| `own` | any shape | whatever the user's loss takes | the user's |
| `unlabeled` | any shape | none | none |

A position is a token of a sequence or a pixel of an image. One output at each position, with
targets 0 and 1 there, is a labeling with two classes.
"""  # noqa: E501 - a table has its rows on one line

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from torchtheory.models.known_losses import Kind, ignores_shifts, kind_of_loss
from torchtheory.models.losses import Loss
from torchtheory.models.targets import (
    Task,
    class_dimension,
    is_cumulative,
    is_one_hot,
    is_zero_one,
    longer_than_one,
    values_within,
)

#: Thresholds of ordered levels below which rows of 1 then 0 may be so by chance.
FEWEST_THRESHOLDS = 3

#: What each task is, after "this is".
TASK_WORDS: dict[Task, str] = {
    "regression": "a regression",
    "count": "a prediction of counts",
    "ordinal": "a prediction of ordered levels",
    "ranking": "a ranking of items",
    "binary": "a classification",
    "multiclass": "a classification",
    "multilabel": "a prediction of several labels per sample",
    "labeling": "a labeling of positions",
    "combined": "several tasks at once",
    "own": "a task that only your loss knows",
    "unlabeled": "a model without targets",
}

#: How targets are written, where there are several ways.
Form = Literal["plain", "one-hot", "one logit", "thresholds"]


@dataclass(frozen=True)
class Reading:
    """A task, and how it was seen.

    Attributes:
        task: of the problem.
        because: what says so, in words that follow "because".
        form: how targets are written: class indices as one-hot rows, two classes at positions by
            one logit, ordered levels by thresholds.
        kind: what is known of the loss that was given.
    """

    task: Task
    because: str
    form: Form = "plain"
    kind: Kind | None = None


def infer_task(outputs: Tensor, y: Tensor, loss: Loss | None = None) -> Task:
    """What kind of problem outputs `[n, ...]` and targets `[m, ...]` belong to; see `read_task`.

    >>> import torch
    >>> infer_task(torch.zeros(4, 1), torch.tensor([0.0, 1.0, 1.0, 0.0]))
    'binary'
    >>> infer_task(torch.zeros(2, 3), torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.0, 1.0]]))
    'multilabel'
    >>> infer_task(torch.zeros(4, 7, 3), torch.zeros(4, 7, dtype=torch.long))
    'labeling'
    """
    return read_task(outputs, y, loss).task


def read_task(outputs: Tensor, y: Tensor, loss: Loss | None = None) -> Reading:
    """The task of outputs `[n, ...]`, targets `[m, ...]` and a loss, and how it was seen.

    A loss that is known decides between what the targets leave open (counts or numbers, labels or
    numbers). One that is not known is tried where the targets fit nothing else.

    Args:
        outputs: of the model at a few samples.
        y: targets, all there are.
        loss: the user's, if one was given.

    >>> import torch
    >>> read_task(torch.zeros(2, 3), torch.eye(3)[:2])
    Reading(task='multiclass', because='the targets are one-hot rows', form='one-hot', kind=None)
    """
    if y[0].numel() == 0:
        return Reading("unlabeled", "no targets were given")
    kind = None if loss is None else kind_of_loss(loss, outputs, y)
    one_target, one_output = y[0].numel() == 1, outputs[0].numel() == 1
    fits = y.shape[1:] == outputs.shape[1:] or longer_than_one(y) == longer_than_one(outputs)
    whole = not y.is_floating_point() or bool((y == y.round()).all())
    if fits and kind in ("log-rate", "rate") and bool((y >= 0).all()):
        return Reading("count", "the loss is Poisson's", kind=kind)
    if one_target and one_output:
        return _of_one_number(y, kind)
    if one_target and outputs.ndim == 2 and whole:
        return _of_one_index(outputs, y, loss, kind)
    if fits:
        return _of_equal_shapes(outputs, y, loss, kind)
    if not y.is_floating_point() and class_dimension(outputs, y) is not None:
        return Reading("labeling", "there is a whole number for each position", kind=kind)
    if loss is not None:
        shapes = f"{list(y.shape[1:])} a sample and the outputs {list(outputs.shape[1:])}"
        return Reading("own", f"the targets have shape {shapes}: only your loss knows them")
    return Reading("regression", "the targets are real numbers")


def _of_one_number(y: Tensor, kind: Kind | None) -> Reading:
    if values_within(y, (0, 1), (-1, 1)):
        return Reading("binary", "there is one output, and targets have two values", kind=kind)
    if kind in ("logistic", "bernoulli"):
        return Reading("multilabel", "the loss is that of yes-or-no labels", kind=kind)
    return Reading("regression", "there is one output, and targets are numbers", kind=kind)


def _of_one_index(outputs: Tensor, y: Tensor, loss: Loss | None, kind: Kind | None) -> Reading:
    count = outputs.shape[1]
    if loss is not None and kind is None and int(y.max()) == count and int(y.min()) >= 0:
        return Reading(
            "ordinal",
            f"the levels run from 0 to {count}, and there is an output for each step between them",
            "thresholds",
        )
    return Reading("multiclass", f"there are {count} outputs and one whole number", kind=kind)


def _of_equal_shapes(outputs: Tensor, y: Tensor, loss: Loss | None, kind: Kind | None) -> Reading:
    """Several targets in the shape of the outputs."""
    labels = kind in ("logistic", "bernoulli")
    if is_one_hot(y) and not labels:
        at = "" if y.ndim == 2 else " at every position"
        task: Task = "multiclass" if y.ndim == 2 else "labeling"
        return Reading(task, f"the targets are one-hot rows{at}", "one-hot", kind)
    if is_zero_one(y):
        if at_positions(outputs, y):
            because = "there is one output for each position, and the targets there are 0 and 1"
            return Reading("labeling", because, "one logit", kind)
        if is_cumulative(y) and y.shape[1] >= FEWEST_THRESHOLDS:
            return Reading("ordinal", "each row of targets is 1 up to a level, then 0",
                           "thresholds", kind)  # fmt: skip
        return Reading("multilabel", "the targets are a matrix of 0 and 1", kind=kind)
    if labels and bool(((y >= 0) & (y <= 1)).all()):
        return Reading("multilabel", "the loss is that of yes-or-no labels", kind=kind)
    if kind in ("cross-entropy", "log-likelihood"):
        return Reading("own", "the targets are no class indices, and only your loss knows them")
    several = len(longer_than_one(outputs)) == 1
    if loss is not None and kind is None and several and ignores_shifts(loss, outputs, y):
        return Reading("ranking", "a number added to all outputs of a sample changes no loss")
    return Reading("regression", "the targets are numbers in the shape of the outputs", kind=kind)


def at_positions(outputs: Tensor, y: Tensor) -> bool:
    """Whether there is one output per position: of an image, or beside a dimension of one channel.

    >>> import torch
    >>> at_positions(torch.zeros(2, 1, 5, 5), torch.zeros(2, 5, 5))
    True
    >>> at_positions(torch.zeros(2, 4), torch.zeros(2, 4))
    False
    >>> at_positions(torch.zeros(2, 3, 5, 5), torch.zeros(2, 3, 5, 5))
    False
    """
    places = len(longer_than_one(outputs))
    channel = outputs.ndim > 2 and 1 in (outputs.shape[1], outputs.shape[-1])
    return (channel and 1 <= places <= 3) or (outputs.ndim == 3 and places == 2)
