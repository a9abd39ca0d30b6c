"""The losses of many networks at once, each the mean over its own batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.models.problem import Problem


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
        each: Tensor = torch.vmap(self.problem.loss)(rows, labels)
        return each, wrong

    def with_slopes(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Losses, numbers of errors, and the derivative of each loss in its outputs."""
        if self.usual and self.problem.task == "multiclass":
            # by its formula, as autograd takes three times as long: softmax minus unit vectors
            labels = self._labels(outputs, y)
            slopes = F.log_softmax(outputs, 1)
            each = _cross_entropies(slopes, labels)
            slopes.exp_().scatter_add_(1, labels.unsqueeze(1), -torch.ones_like(outputs[:, :1]))
            return each, _misclassified(outputs, labels), slopes.div_(outputs.shape[2])
        with torch.enable_grad():
            outputs = outputs.detach().requires_grad_()
            each, wrong = self(outputs, y)
            (slopes,) = torch.autograd.grad(each.sum(), outputs)
        return each.detach(), wrong, slopes

    def _labels(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Targets `[K, n, ...]` of every network."""
        shared = y.ndim == self.problem.train.y.ndim
        return y.expand(len(outputs), *y.shape) if shared else y


def _cross_entropies(logarithms: Tensor, labels: Tensor) -> Tensor:
    """From logarithms of probabilities `[K, classes, n]`."""
    return -logarithms.gather(1, labels.unsqueeze(1)).sum((1, 2)) / labels.shape[1]


def _misclassified(outputs: Tensor, labels: Tensor) -> Tensor:
    # argmax over a dimension in the middle is thirty times slower
    return (outputs.detach().max(1).indices != labels).sum(1)
