"""The model under attack: a network that answers and counts what it is asked."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchtheory.core.budget import check_time
from torchtheory.core.errors import UnsupportedModel
from torchtheory.models.model import main_output, one_output, real_rows
from torchtheory.models.opened import answer
from torchtheory.models.targets import Task
from torchtheory.robustness.attacks.goals import Goal


class Victim:
    """Some samples and the network that is asked about them.

    Args:
        network: as `opened` gives it.
        x: samples `[n, ...]`.
        y: targets, as the task's loss wants them; target classes in a targeted attack.
        task: `multiclass`, `binary` or `regression`.
        targeted: whether `y` is what the model is to be led to, not away from.
        part: which output of several is meant.
        classes: how many there are.

    Attributes:
        queries, gradients: passes forward and backward that each sample took part in, `[n]`.
    """

    def __init__(
        self,
        network: nn.Module,
        x: Tensor,
        y: Tensor,
        task: Task,
        *,
        targeted: bool = False,
        part: int | str | None = None,
        classes: int = 2,
    ) -> None:
        self.network, self.x, self.y, self.task = network, x, y, task
        self.targeted, self.part, self.classes = targeted, part, classes
        self._of_all = {"queries": 0, "gradients": 0}
        self._of_some = {k: torch.zeros(len(x), dtype=torch.long) for k in self._of_all}

    @property
    def queries(self) -> Tensor:
        return self._of_some["queries"] + self._of_all["queries"]

    @property
    def gradients(self) -> Tensor:
        return self._of_some["gradients"] + self._of_all["gradients"]

    def targets(self, rows: Tensor | None = None) -> Tensor:
        """`y`, of some samples."""
        return self.y if rows is None else self.y[rows]

    @torch.no_grad()
    def scores(self, points: Tensor, rows: Tensor | None = None) -> Tensor:
        """Scores `[k, K]` at points that stand for the samples `rows`; no gradient is taken."""
        self.count(rows, queries=1)
        return self.run(points)

    def slopes(
        self, points: Tensor, goal: Goal, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, values of a goal `[k]`, and its gradients in the points."""
        self.count(rows, queries=1, gradients=1)
        with torch.enable_grad():
            moved = points.detach().requires_grad_(True)
            scores = self.run(moved)
            values = goal(scores, self.targets(rows))
            refuse_constant(values)
            (gradient,) = torch.autograd.grad(values, moved, torch.ones_like(values))
        return scores.detach(), values.detach(), finite(gradient)

    def fooled(self, scores: Tensor, rows: Tensor | None = None) -> Tensor:
        """Whether the attack is done, `[k]`: never in regression."""
        if self.task == "regression":
            return torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
        wrong = scores.argmax(1) != self.targets(rows)
        return ~wrong if self.targeted else wrong

    def count(self, rows: Tensor | None, *, queries: int = 0, gradients: int = 0) -> None:
        """Note passes that the samples `rows` took part in; a row may stand for several points."""
        for what, number in (("queries", queries), ("gradients", gradients)):
            if rows is None:
                self._of_all[what] += number
            elif number:
                counts = torch.full((len(rows),), number)
                self._of_some[what].index_add_(0, rows.cpu(), counts)

    def run(self, points: Tensor) -> Tensor:
        """Scores at points, in whatever derivative is being taken; nothing is counted."""
        check_time()
        # a copy: the first layer may write to its input
        outputs = one_output(answer(self.network, points.clone()), self.part)
        return as_scores(outputs, self.task)


def as_scores(outputs: Tensor, task: Task) -> Tensor:
    """Outputs as one score per class; a single logit $z$ becomes $(0, z)$.

    >>> as_scores(torch.tensor([[2.0]]), "binary")
    tensor([[0., 2.]])
    """
    if task != "binary":
        return outputs
    logit = outputs.reshape(len(outputs), 1)
    return torch.cat([torch.zeros_like(logit), logit], 1)


def refuse_constant(values: Tensor) -> None:
    """Refuse values that no gradient can be taken of."""
    if not values.requires_grad:
        raise UnsupportedModel(
            "the model's outputs have no gradient in its inputs (it rounds them, leaves torch or "
            "runs under no_grad): use Square, or PGD with gradient=FiniteDifferences()"
        )


def finite(gradient: Tensor) -> Tensor:
    """The gradient with 0 for what is no number: there it says nothing."""
    if math.isfinite(float(gradient.sum())):
        return gradient
    return gradient.nan_to_num(0.0, 0.0, 0.0)


def part_of(network: nn.Module, x: Tensor) -> tuple[int | str | None, Tensor]:
    """Which output is meant if there are several, and that output for a few samples."""
    with torch.no_grad():
        returned = answer(network, x.clone())
    part = main_output(returned)
    return part, real_rows(one_output(returned, part), len(x))
