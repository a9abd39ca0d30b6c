r"""Several outputs that were trained together: a weighted sum of losses.

The outputs stand side by side in one tensor `[n, K]`, and so do their targets `[n, M]`, so that
whatever splits, differentiates or perturbs a problem sees one output and one loss,
$\sum_k w_k\,\ell_k(f_k(x), y_k)$.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch, UnsupportedModel
from torchtheory.models.losses import USUAL_LOSS
from torchtheory.models.model import one_output
from torchtheory.models.targets import Task, class_dimension, targets_for
from torchtheory.models.task import infer_task

#: Which output is meant: a position or key, or several with the weights of their losses.
Output = int | str | Mapping[Any, float]


@dataclass(frozen=True)
class Head:
    """One of several outputs, with its task, weight, and a sample's shapes of output and target."""

    key: int | str
    weight: float
    task: Task
    outputs: torch.Size
    targets: torch.Size


class WeightedLoss:
    """The weighted sum of the heads' usual losses, of outputs and targets side by side.

    >>> heads = [Head("a", 2.0, "regression", torch.Size([1]), torch.Size([1]))]
    >>> float(WeightedLoss(heads)(torch.ones(3, 1), torch.zeros(3, 1)))
    2.0
    """

    def __init__(self, heads: Sequence[Head]) -> None:
        self.heads = heads

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        parts = zip(
            self.heads,
            torch.split(outputs, [math.prod(h.outputs) for h in self.heads], 1),
            torch.split(y, [math.prod(h.targets) for h in self.heads], 1),
            strict=True,
        )
        total = outputs.new_zeros(())
        for head, f, target in parts:
            whole = head.task in ("multiclass", "labeling")
            wanted = target.reshape(-1, *head.targets).to(torch.long if whole else f.dtype)
            total = total + head.weight * USUAL_LOSS[head.task](
                f.reshape(-1, *head.outputs), wanted
            )
        return total


def check_weights(output: Mapping[Any, float], names: Sequence[str]) -> dict[int | str, float]:
    """Outputs with weights, refused unless the targets have the same names."""
    weights = dict(output)
    if not weights or not all(
        isinstance(k, int | str) and isinstance(w, int | float) and 0 < w < math.inf
        for k, w in weights.items()
    ):
        raise InvalidType(
            "output= of several outputs gives each a positive weight, such as "
            "{'logits': 1.0, 'aux': 0.3}"
        )
    if {str(k) for k in weights} != set(names):
        have = ", ".join(names) if names else "no names"
        wanted = ", ".join(f"{k!r}: y_{k}" for k in weights)
        raise InvalidInput(
            f"outputs with weights need targets of the same names, and these have {have}: pass "
            f"train=(x, {{{wanted}}})"
        )
    return weights


def heads_of(
    outputs: object, weights: Mapping[int | str, float], targets: Mapping[str, Tensor]
) -> list[Head]:
    """What each output is about.

    Args:
        outputs: what the model returns for a few samples.
        weights: of the losses, by output.
        targets: `[n, ...]`, by the output's name.
    """
    heads = []
    for key, weight in weights.items():
        f, y = one_output(outputs, key), targets[str(key)]
        if f.ndim == 0:
            raise ShapeMismatch(f"the output {key!r} is one number, not one for each sample")
        task = infer_task(f, y)
        if task == "labeling" and class_dimension(f, y) != f.ndim - 1:
            raise UnsupportedModel(
                f"the classes of the output {key!r} must be its last dimension where several "
                "outputs are weighted"
            )
        ready = targets_for(task, y, f, f"{key!r}")
        heads.append(Head(key, float(weight), task, f.shape[1:], ready.shape[1:]))
    return heads


def side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Tensors `[n, ...]` as columns of one `[n, K]`."""
    return torch.cat([p.reshape(len(p), -1) for p in parts], 1)


def apart(y: Tensor, shapes: Sequence[tuple[str, torch.Size]]) -> dict[str, Tensor]:
    """What `side_by_side` has joined, by name."""
    pieces = torch.split(y, [math.prod(shape) for _, shape in shapes], 1)
    return {
        name: piece.reshape(len(y), *shape)
        for (name, shape), piece in zip(shapes, pieces, strict=True)
    }
