r"""Distillation: a student learns a teacher's tempered probabilities.

With teacher logits $F$, student logits $G$ and a temperature $T > 0$,

$$
p = \mathrm{softmax}(F/T),\quad q = \mathrm{softmax}(G/T),\quad
\ell = -\sum_y p_y \log q_y \;\ge\; H(p).
$$

Source: notes "Deep Learning", section 8.9 (which prints the loss without its minus sign).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.checks import as_module, closed_fraction, module_with_values, positive_number
from torchtheory.core.errors import ShapeMismatch
from torchtheory.models.model import evaluation_mode, global_randomness_kept, one_output, real_rows


@dataclass(frozen=True, slots=True)
class Distillation:
    r"""How `fit` listens to a teacher.

    The training loss is $(1-w)\,\ell_{\text{labels}} + w\,T^2\,\ell_{\text{teacher}}$; the
    factor $T^2$ undoes the $1/T^2$ by which the teacher's gradients shrink at high
    temperature.

    Attributes:
        teacher: a module with the student's inputs and as many logits; never changed.
        temperature: $T$.
        weight: $w$ in [0, 1]; with 1 the labels are not used at all.
    """

    teacher: nn.Module
    temperature: float = 2.0
    weight: float = 1.0

    def __post_init__(self) -> None:
        as_module(self.teacher, "the teacher")
        positive_number(self.temperature, "the temperature")
        closed_fraction(self.weight, "the teacher's weight")


def distillation_loss(
    teacher_logits: Tensor, student_logits: Tensor, temperature: float = 1.0
) -> Tensor:
    r"""Mean over the batch of $-\sum_y p_y \log q_y$, from logits `[n, classes]`.

    >>> F_ = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    >>> p = F_.softmax(1)
    >>> loss = distillation_loss(F_, F_ + 5)               # the student agrees up to a constant
    >>> bool(torch.isclose(loss, -(p * p.log()).sum()))    # ... and reaches the entropy
    True
    """
    _check_logits(teacher_logits, student_logits)
    positive_number(temperature, "the temperature")
    p = (teacher_logits / temperature).softmax(1)
    return F.cross_entropy(student_logits / temperature, p)


def distillation_gradient(
    teacher_logits: Tensor, student_logits: Tensor, temperature: float = 1.0
) -> Tensor:
    r"""Gradient $\partial\ell/\partial G = \frac1T (q - p)$ of each sample's loss.

    As $T \to \infty$, $T^2\,\partial\ell/\partial G \to \frac1k[(G - \bar G) - (F - \bar F)]$:
    the student is pulled to the teacher's centered logits.

    Returns:
        `[n, classes]`; the gradient of the mean is this divided by `n`.

    >>> F_, G = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    >>> distillation_gradient(F_, G, 3.0)
    tensor([[0., 0.]])
    """
    _check_logits(teacher_logits, student_logits)
    positive_number(temperature, "the temperature")
    p, q = (teacher_logits / temperature).softmax(1), (student_logits / temperature).softmax(1)
    return (q - p) / temperature


def teacher_outputs(teacher: nn.Module, x: Tensor, *, chunk: int = 512) -> Tensor:
    """Logits `[n, classes]` of the teacher in evaluation mode, in chunks, without gradients.

    >>> teacher_outputs(nn.Linear(3, 2), torch.zeros(5, 3)).shape
    torch.Size([5, 2])
    """
    module_with_values(teacher)
    for parameter in teacher.parameters():
        x = x.to(parameter.device, parameter.dtype if x.is_floating_point() else x.dtype)
        break
    with torch.no_grad(), evaluation_mode(teacher), global_randomness_kept():
        parts = torch.split(x, chunk)
        return torch.cat([real_rows(one_output(teacher(part)), len(part)) for part in parts])


def _check_logits(teacher: Tensor, student: Tensor) -> None:
    if teacher.ndim != 2 or teacher.shape != student.shape:
        raise ShapeMismatch(
            f"teacher and student logits must both be [n, classes], not "
            f"{list(teacher.shape)} and {list(student.shape)}"
        )
