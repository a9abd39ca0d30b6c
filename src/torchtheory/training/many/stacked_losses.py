"""The losses of many networks at once, each the mean over its own batch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.core.mapping import Mapped
from torchtheory.models.problem import Problem

#: Numbers of outputs that wait for their losses to be computed, at most.
_KEPT = 2**18


class StackedLosses:
    """Mean losses of K networks with the outputs `[K, outputs, n]`.

    Args:
        problem: the task and the loss.
        usual: whether the loss is the one that `Problem` chooses for the task; a loss of the
            user's is mapped over the networks.
    """

    def __init__(self, problem: Problem, *, usual: bool) -> None:
        self.problem = problem
        self.usual = usual
        self._each = Mapped(problem.loss)

    def __call__(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """Losses `[K]` and numbers of errors `[K]` (None in regression).

        Args:
            outputs: `[K, outputs, n]`.
            y: targets `[K, n, ...]`, or `[n, ...]` where all networks share them.
        """
        task, labels, rows = self.problem.task, self._labels(outputs, y), outputs.mT
        wrong: Tensor | None = None
        if task == "multiclass":
            wrong = _misclassified(outputs, labels)
            if self.usual:
                return _cross_entropies(F.log_softmax(outputs, 1), labels), wrong
        else:
            rows = rows.reshape(labels.shape)
            if task == "binary":
                wrong = ((rows.detach() > 0) != (labels > 0.5)).flatten(1).sum(1)
            if self.usual:
                kind = F.mse_loss if task == "regression" else F.binary_cross_entropy_with_logits
                return kind(rows, labels, reduction="none").flatten(1).mean(1), wrong
        each: Tensor = self._each(rows, labels)
        return each, wrong

    def slopes(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The derivative `[K, outputs, n]` of each loss in its outputs.

        That of the usual losses by their formulas, as autograd takes three times as long.
        """
        task, labels = self.problem.task, self._labels(outputs, y)
        if not self.usual:
            with torch.enable_grad():
                free = outputs.detach().requires_grad_()
                (slopes,) = torch.autograd.grad(self(free, y)[0].sum(), free)
            return slopes
        if task == "multiclass":  # softmax minus unit vectors
            slopes = torch.softmax(outputs, 1)
            ones = slopes.new_ones(()).expand(len(slopes), 1, slopes.shape[2])
            return slopes.scatter_add_(1, labels.unsqueeze(1), -ones).div_(outputs.shape[2])
        rows = outputs.mT.reshape(labels.shape)
        slopes = 2 * (rows - labels) if task == "regression" else torch.sigmoid(rows) - labels
        return slopes.div_(labels[0].numel()).view(outputs.mT.shape).mT

    def _labels(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Targets `[K, n, ...]` of every network."""
        shared = y.ndim == self.problem.train.y.ndim
        return y.expand(len(outputs), *y.shape) if shared else y


class LossTotals:
    """Losses and errors of K networks, batch after batch.

    The usual losses are means over samples: those of several batches are computed at once.

    Args:
        losses: of the networks.
        own: whether targets are `[K, n, ...]`, and not the same for all networks.

    Attributes:
        dim: the dimension of the targets that are samples.
    """

    def __init__(self, losses: StackedLosses, *, own: bool) -> None:
        self._losses, self.dim = losses, int(own)
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._numbers = 0
        self._sums: list[Tensor] = []
        self._wrong: list[Tensor] = []
        self._samples = 0

    @torch.no_grad()
    def add(self, outputs: Tensor, y: Tensor) -> None:
        """Some samples with the outputs `[K, outputs, n]`, which may be overwritten afterwards."""
        if not self._losses.usual or outputs.numel() >= _KEPT:
            self._compute(outputs, y)
            return
        self._waiting.append((outputs.clone(), y))
        self._numbers += outputs.numel()
        if self._numbers >= _KEPT:
            self._flush()

    def means(self) -> tuple[Tensor, Tensor]:
        """Mean losses and shares of errors `[K]`; NaN in place of errors in regression."""
        self._flush()
        mean = torch.stack(self._sums).sum(0).cpu() / self._samples
        if not self._wrong:
            return mean, torch.full_like(mean, math.nan)
        return mean, torch.stack(self._wrong).sum(0).double().cpu() / self._samples

    @torch.no_grad()
    def _flush(self) -> None:
        if self._waiting:
            outputs, targets = zip(*self._waiting, strict=True)
            self._compute(torch.cat(outputs, 2), torch.cat(targets, self.dim))
        self._waiting, self._numbers = [], 0

    def _compute(self, outputs: Tensor, y: Tensor) -> None:
        each, wrong = self._losses(outputs, y)
        self._sums.append(each.double() * outputs.shape[2])
        self._samples += outputs.shape[2]
        if wrong is not None:
            self._wrong.append(wrong)


def _cross_entropies(logarithms: Tensor, labels: Tensor) -> Tensor:
    """From logarithms of probabilities `[K, classes, n]`."""
    return -logarithms.gather(1, labels.unsqueeze(1)).sum((1, 2)) / labels.shape[1]


def _misclassified(outputs: Tensor, labels: Tensor) -> Tensor:
    # argmax over a dimension in the middle is thirty times slower
    return (outputs.detach().max(1).indices != labels).sum(1)
