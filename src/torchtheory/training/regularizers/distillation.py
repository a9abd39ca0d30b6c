"""Distillation: a student is trained on a teacher's tempered probabilities.

The loss is that of `torchtheory.training.losses.distillation`. Source: notes "Deep Learning",
section 8.9.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from torchtheory.core.errors import ShapeMismatch
from torchtheory.training.loop.history import History
from torchtheory.training.loop.trainer import fit
from torchtheory.training.losses.distillation import Distillation, teacher_outputs


def distill(
    teacher: nn.Module,
    student: nn.Module,
    x: Tensor,
    *,
    temperature: float = 2.0,
    **settings: Any,
) -> History:
    """Train a student on nothing but a teacher's tempered probabilities on inputs `x[n, ...]`.

    The inputs need no labels: take as many as can be generated. Further settings go to `fit`.

    >>> import torch
    >>> teacher, student = nn.Linear(2, 3), nn.Linear(2, 3)
    >>> x = torch.randn(256, 2, generator=torch.Generator().manual_seed(0))
    >>> _ = distill(teacher, student, x, epochs=60, learning_rate=0.05)
    >>> agreement(teacher, student, x) > 0.95
    True
    """
    how = Distillation(teacher, temperature, 1.0)
    outputs = teacher_outputs(teacher, x)
    if outputs.ndim != 2 or outputs.shape[1] == 0:
        raise ShapeMismatch(f"the teacher must return [n, classes], not {list(outputs.shape)}")
    labels = outputs.argmax(1)
    return fit(student, (x, labels), task="multiclass", distillation=how, **settings)


def agreement(first: nn.Module, second: nn.Module, x: Tensor) -> float:
    """Share of inputs to which two classifiers give the same class.

    >>> import torch
    >>> net = nn.Linear(3, 2)
    >>> agreement(net, net, torch.zeros(4, 3))
    1.0
    """
    same = teacher_outputs(first, x).argmax(1) == teacher_outputs(second, x).argmax(1)
    return float(same.double().mean())
