"""Targets as the loss of a task wants them; the tasks are listed in `torchtheory.models.task`."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from torchtheory.core.errors import InvalidInput, LabelOutOfRange, ShapeMismatch

Task = Literal[
    "regression",
    "count",
    "ordinal",
    "ranking",
    "binary",
    "multiclass",
    "multilabel",
    "labeling",
    "combined",
    "own",
    "unlabeled",
]
#: Those that can be asked for; `combined` follows from several outputs with weights.
TASKS: tuple[Task, ...] = tuple(t for t in get_args(Task) if t != "combined")

#: The label of a position that has none, as in `torch.nn.functional.cross_entropy`.
IGNORED = -100


def class_dimension(outputs: Tensor, y: Tensor) -> int | None:
    """Which dimension of outputs at positions `[n, ...]` holds the classes; None if none fits.

    The last for sequences `[n, length, classes]` and the second for images
    `[n, classes, height, width]`, where both would fit; the other where only that one does.

    >>> class_dimension(torch.zeros(2, 5, 9), torch.zeros(2, 5))
    2
    >>> class_dimension(torch.zeros(2, 9, 5, 5), torch.zeros(2, 5, 5))
    1
    """
    last = outputs.ndim - 1
    fitting = [
        d
        for d in ((last, 1) if outputs.ndim == 3 else (1, last))
        if outputs.ndim > 2
        and outputs.shape[d] > 1
        and (*outputs.shape[1:d], *outputs.shape[d + 1 :]) == tuple(y.shape[1:])
    ]
    return fitting[0] if fitting else None


def targets_for(task: Task, y: Tensor, probe: Tensor, name: str) -> Tensor:
    """Targets as the task's loss wants them, for a model with outputs like `probe`.

    Args:
        task: of the problem.
        y: targets `[n, ...]` as given.
        probe: outputs of a few samples; the classes of a labeling come last.
        name: what to call the data in messages.
    """
    if task == "unlabeled":
        return y[:, :0] if y.ndim > 1 else y[:, None][:, :0]
    if y[0].numel() == 0:
        raise InvalidInput(f"the {name} data has no targets: pass {name}=(x, y)")
    if task == "multiclass":
        return _class_indices(y, probe, name)
    if task == "labeling":
        return _position_labels(y, probe, name)
    if task == "binary":
        return _zero_one(y, probe, name)
    if task == "own":
        return y
    if task == "ordinal":
        y = _levels(y, probe, name)
    if task in ("multilabel", "count"):
        _refuse_values(task, y, name)
    wanted = probe.shape[1:]
    # only dimensions of size 1 may differ: [2, 3] is not [3, 2]
    if y.shape[1:] != wanted and longer_than_one(y) != longer_than_one(probe):
        raise ShapeMismatch(
            f"{name} targets have shape {list(y.shape[1:])} a sample but the model's outputs "
            f"{list(wanted)}"
        )
    return y.to(probe.dtype).reshape(len(y), *wanted)


def next_tokens(y: Tensor) -> Tensor:
    """At every position `[n, length]` the label of the next one; the last has none.

    >>> next_tokens(torch.tensor([[5, 6, 7]]))
    tensor([[   6,    7, -100]])
    """
    return torch.cat([y[:, 1:], torch.full_like(y[:, :1], IGNORED)], 1)


def position_words(y: Tensor, tokens: bool) -> tuple[str, str]:
    """What a sample and one of its labels are called: a sequence of tokens, an image of pixels.

    Args:
        y: labels `[n, *positions]`.
        tokens: whether the inputs are tokens, one for each label.

    >>> position_words(torch.zeros(2, 5), True), position_words(torch.zeros(2, 5, 5), False)
    (('sequence', 'token'), ('image', 'pixel'))
    """
    if tokens:
        return "sequence", "token"
    return ("image", "pixel") if y.ndim == 3 else ("sample", "label")


def is_zero_one(y: Tensor) -> bool:
    """Whether all values are 0 or 1, and both occur.

    >>> is_zero_one(torch.tensor([[0.0, 1.0]])), is_zero_one(torch.zeros(2, 2))
    (True, False)
    """
    return values_within(y, (0, 1)) and bool((y == 1).any()) and bool((y == 0).any())


def is_one_hot(y: Tensor) -> bool:
    """Whether `[n, C, ...]` has a single 1 along its second dimension, and 0 elsewhere."""
    if y.ndim < 2 or y.shape[1] < 2 or not is_zero_one(y):
        return False
    return bool((y.sum(1) == 1).all())


def is_cumulative(y: Tensor) -> bool:
    """Whether each row `[n, K]` is 1 up to a level and then 0, and there are more than two levels.

    >>> is_cumulative(torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]]))
    True
    """
    if y.ndim != 2 or not is_zero_one(y):
        return False
    falls = bool((y[:, 1:] <= y[:, :-1]).all())
    return falls and len(torch.unique(y.double().sum(1))) > 2


def longer_than_one(values: Tensor) -> list[int]:
    """The sizes of a sample's dimensions, without those of 1."""
    return [size for size in values.shape[1:] if size != 1]


def values_within(y: Tensor, *choices: tuple[int, int]) -> bool:
    """Whether all values are among one of several choices."""
    values = torch.unique(y.double())
    return any(bool(torch.isin(values, torch.as_tensor(c, device=y.device)).all()) for c in choices)


def _levels(y: Tensor, probe: Tensor, name: str) -> Tensor:
    """Ordered levels: a number each, or for every threshold whether it is reached."""
    steps = probe[0].numel()
    if y[0].numel() == steps and steps > 1:
        rows = y.reshape(len(y), steps)
        if not (values_within(y, (0, 1)) and bool((rows[:, 1:] <= rows[:, :-1]).all())):
            raise LabelOutOfRange(
                f"{name} targets of ordered levels are rows of 1 up to the level and then 0, or "
                "one whole number per sample"
            )
        return y
    if y[0].numel() != 1:
        raise ShapeMismatch(f"{name} levels must be one number per sample, not {list(y.shape[1:])}")
    levels = _whole(y.reshape(len(y)), name, "ordered levels")
    if steps == 1:
        return levels
    if int(levels.min()) < 0 or int(levels.max()) > steps:
        raise LabelOutOfRange(
            f"{name} levels run from {int(levels.min())} to {int(levels.max())}; {steps} outputs "
            f"are thresholds between levels 0 to {steps}; of one logit per class say "
            "task='multiclass'"
        )
    reached = levels[:, None] > torch.arange(steps, device=y.device)
    return reached.reshape(len(y), *probe.shape[1:])


def _refuse_values(task: Task, y: Tensor, name: str) -> None:
    low, high = float(y.min()), float(y.max())
    if task == "multilabel" and not (low >= 0 and high <= 1):
        raise LabelOutOfRange(
            f"{name} labels of a multi-label problem lie between 0 and 1, and these run from "
            f"{low:g} to {high:g}"
        )
    if task == "count" and low < 0:
        raise LabelOutOfRange(f"{name} counts must not be negative, and the least is {low:g}")


def _class_indices(y: Tensor, probe: Tensor, name: str) -> Tensor:
    if probe.ndim != 2 or probe.shape[1] < 2:
        raise ShapeMismatch(
            f"a multi-class model returns [n, classes], and this one returns {list(probe.shape)}"
        )
    if y[0].numel() == probe.shape[1] and is_one_hot(y.reshape(len(y), -1)):
        return y.reshape(len(y), -1).argmax(1)
    if y[0].numel() != 1:
        raise ShapeMismatch(
            f"{name} labels must be one class index or a one-hot row per sample, not "
            f"{list(y.shape[1:])}"
        )
    labels = _whole(y.reshape(len(y)), name, "multi-class problems")
    _refuse_outside(labels, probe.shape[1], name)
    return labels


def _position_labels(y: Tensor, probe: Tensor, name: str) -> Tensor:
    if probe.ndim < 3 or probe.shape[1:-1] != y.shape[1:]:
        raise ShapeMismatch(
            f"{name} labels have shape {list(y.shape[1:])} a sample, and the model's outputs "
            f"{list(probe.shape[1:])}: they need one label for every position, and -100 where "
            "there is none"
        )
    labels = _whole(y, name, "positions")
    given = labels != IGNORED
    empty = (~given.flatten(1).any(1)).nonzero().flatten()
    if len(empty):
        raise LabelOutOfRange(
            f"{name} sample {int(empty[0])} has no label at any position (all are -100); leave "
            "such samples out"
        )
    _refuse_outside(labels[given], probe.shape[-1], name)
    return labels


def _whole(y: Tensor, name: str, what: str) -> Tensor:
    labels = y.long()
    if y.is_floating_point() and not bool((labels == y).all()):
        raise LabelOutOfRange(f"{name} labels must be whole numbers for {what}")
    return labels


def _refuse_outside(labels: Tensor, classes: int, name: str) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise LabelOutOfRange(
            f"{name} labels run from {low} to {high}, but the model has {classes} outputs: "
            f"labels must lie in 0..{classes - 1}"
        )


def _zero_one(y: Tensor, probe: Tensor, name: str) -> Tensor:
    if probe[0].numel() != 1:
        raise ShapeMismatch(
            f"a binary model returns one logit per sample, and this one {probe[0].numel()}"
        )
    if y[0].numel() != 1:
        raise ShapeMismatch(f"{name} labels must be one number per sample, not {list(y.shape[1:])}")
    if not values_within(y, (0, 1), (-1, 1)):
        raise LabelOutOfRange(f"{name} labels of a binary problem must be 0 and 1, or -1 and +1")
    return (y > 0).to(probe.dtype).reshape(len(y), *probe.shape[1:])
