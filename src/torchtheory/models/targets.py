r"""Targets: what kind of problem they pose, and how the loss wants them.

| task | outputs of a sample | targets of a sample | usual loss |
|---|---|---|---|
| `regression` | any shape | the same shape | mean squared error |
| `binary` | one logit | 0 or 1 (or -1, +1) | logistic |
| `multiclass` | one logit per class | a class index | cross-entropy |
| `labeling` | one logit per class at every position | a class index at every position, or -100 | mean cross-entropy of its labeled positions |
| `combined` | several of these, side by side | theirs | the weighted sum of theirs |
| `unlabeled` | any shape | none | none |

A position is a token of a sequence or a pixel of an image.
"""  # noqa: E501 - a table has its rows on one line

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.errors import InvalidInput, LabelOutOfRange, ShapeMismatch

Task = Literal["regression", "binary", "multiclass", "labeling", "combined", "unlabeled"]
#: Those that can be asked for; `combined` follows from several outputs with weights.
TASKS: tuple[Task, ...] = ("regression", "binary", "multiclass", "labeling", "unlabeled")

#: The label of a position that has none, as in `torch.nn.functional.cross_entropy`.
IGNORED = -100


def infer_task(outputs: Tensor, y: Tensor) -> Task:
    """What kind of problem outputs `[n, ...]` and targets `[m, ...]` belong to.

    No targets (`[m, 0]`): unlabeled. One output per sample and targets in {0, 1} or {-1, 1}:
    binary. Several outputs per sample and one whole-number target: multi-class. Several outputs at
    every position and a whole number there: labeling. Otherwise regression.

    >>> infer_task(torch.zeros(4, 1), torch.tensor([0.0, 1.0, 1.0, 0.0]))
    'binary'
    >>> infer_task(torch.zeros(4, 3), torch.zeros(4, 3))
    'regression'
    >>> infer_task(torch.zeros(4, 7, 3), torch.zeros(4, 7, dtype=torch.long))
    'labeling'
    """
    if y[0].numel() == 0:
        return "unlabeled"
    one_target = y[0].numel() == 1
    one_output = outputs[0].numel() == 1
    if outputs.shape[1:] == y.shape[1:] and _one_hot(y):
        raise InvalidInput(
            "the targets look like one-hot rows: give class indices, y.argmax(1), or say "
            "task='regression' if the squared distance to these rows is meant"
        )
    if one_target and one_output and _values_within(y, (0, 1), (-1, 1)):
        return "binary"
    whole = not y.is_floating_point() or bool((y == y.round()).all())
    if one_target and outputs.ndim == 2 and outputs.shape[1] > 1 and whole:
        return "multiclass"
    if not y.is_floating_point() and class_dimension(outputs, y) is not None:
        return "labeling"
    return "regression"


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
    wanted = probe.shape[1:]
    # only dimensions of size 1 may differ: [2, 3] is not [3, 2]
    if y.shape[1:] != wanted and _longer_than_one(y) != _longer_than_one(probe):
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


def _one_hot(y: Tensor) -> bool:
    if y.ndim != 2 or y.shape[1] < 2:
        return False
    return bool(((y == 0) | (y == 1)).all()) and bool((y.sum(1) == 1).all())


def _longer_than_one(values: Tensor) -> list[int]:
    return [size for size in values.shape[1:] if size != 1]


def _values_within(y: Tensor, *choices: tuple[int, int]) -> bool:
    values = torch.unique(y.double())
    return any(bool(torch.isin(values, torch.as_tensor(c, device=y.device)).all()) for c in choices)


def _class_indices(y: Tensor, probe: Tensor, name: str) -> Tensor:
    if probe.ndim != 2 or probe.shape[1] < 2:
        raise ShapeMismatch(
            f"a multi-class model returns [n, classes], and this one returns {list(probe.shape)}"
        )
    if y[0].numel() != 1:
        raise ShapeMismatch(
            f"{name} labels must be one class index a sample, not {list(y.shape)}; of one-hot "
            "rows take y.argmax(1)"
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
    if not _values_within(y, (0, 1), (-1, 1)):
        raise LabelOutOfRange(f"{name} labels of a binary problem must be 0 and 1, or -1 and +1")
    return (y > 0).to(probe.dtype).reshape(len(y), *probe.shape[1:])
