"""The usual loss of every task, and losses of the user's own."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.core.checks import described
from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, TorchTheoryError
from torchtheory.models.targets import IGNORED, Task

#: `loss(outputs, targets)`, the mean over a batch.
Loss = Callable[[Tensor, Tensor], Tensor]


#: Samples on which a loss is tried.
TRIED = 64


def takes_logits(loss: Loss, task: Task, outputs: Tensor, y: Tensor) -> bool:
    """Whether a loss makes probabilities of the outputs itself.

    A softmax does not see a number that is added to all logits of a sample, and any other function
    of probabilities would. With one output, the loss is compared with the logistic loss.

    Args:
        outputs: of the model, for their shape and kind, `[n, ...]`.
        y: targets `[n, ...]`.

    >>> y = torch.tensor([0.0, 1.0])
    >>> takes_logits(F.binary_cross_entropy_with_logits, "binary", torch.zeros(2), y)
    True
    >>> takes_logits(F.binary_cross_entropy, "binary", torch.zeros(2), y)
    False
    """
    y = y[:TRIED]
    draw = torch.Generator().manual_seed(0)
    shape = (len(y), *outputs.shape[1:])
    logits = (4 * torch.randn(shape, generator=draw, dtype=torch.float64)).to(outputs)
    try:
        with torch.no_grad():
            here = float(loss(logits, y))
            if task in ("multiclass", "labeling"):
                there = float(loss(logits + 3, y))
            else:
                there = float(F.binary_cross_entropy_with_logits(logits, y))
    except TorchTheoryError:
        raise
    except Exception:  # nn.BCELoss refuses what is no probability
        return False
    return math.isclose(here, there, rel_tol=1e-3, abs_tol=1e-6)


def are_probabilities(outputs: Tensor) -> bool:
    """Whether all rows `[n, C]` are nonnegative and sum to 1, up to rounding.

    >>> are_probabilities(torch.randn(9, 3).softmax(1)), are_probabilities(torch.eye(3) - 0.1)
    (True, False)
    """
    if outputs.ndim < 2 or outputs.shape[-1] < 2 or bool((outputs < 0).any()):
        return False
    rounding = 8 * outputs.shape[-1] * torch.finfo(outputs.dtype).eps
    return bool(((outputs.double().sum(-1) - 1).abs() <= rounding).all())


def are_log_probabilities(outputs: Tensor) -> bool:
    """Whether the exponentials of all rows `[n, C]` sum to 1, up to rounding.

    >>> are_log_probabilities(torch.randn(9, 3).log_softmax(1))
    True
    """
    if outputs.ndim < 2 or outputs.shape[-1] < 2:
        return False
    sizes = outputs.abs().amax(-1).clamp_min(1).double()
    rounding = 8 * outputs.shape[-1] * torch.finfo(outputs.dtype).eps * sizes
    return bool((outputs.double().logsumexp(-1).abs() <= rounding).all())


def labeling_loss(outputs: Tensor, y: Tensor) -> Tensor:
    r"""Mean over the samples of the mean cross-entropy of a sample's labeled positions.

    $$
    \frac1n\sum_{i=1}^n\frac1{|P_i|}\sum_{p\in P_i}-\log\operatorname{softmax}(f_p(x_i))_{y_{ip}},
    \qquad P_i=\{p: y_{ip}\ne-100\}
    $$

    Every sample counts the same, however many positions of it are labeled; with equally many it is
    the mean over all positions.

    Args:
        outputs: `[n, *positions, classes]`.
        y: class indices `[n, *positions]`; -100 where there is no label.

    >>> y = torch.tensor([[0, 1], [1, -100]])
    >>> round(float(labeling_loss(torch.zeros(2, 2, 2), y)), 4)
    0.6931
    """
    labeled = y != IGNORED
    own = F.log_softmax(outputs, -1).gather(-1, y.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    lost = torch.where(labeled, -own, torch.zeros_like(own)).flatten(1).sum(1)
    return (lost / labeled.flatten(1).sum(1).clamp(min=1)).mean()


def no_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Raises: without targets there is no usual loss."""
    raise InvalidInput(
        "no targets were given, so there is no loss: pass train=(x, y), or loss= of the outputs"
    )


def ranking_loss(outputs: Tensor, y: Tensor) -> Tensor:
    r"""The logistic loss of pairs of items in their order, the mean over pairs, then over samples.

    $$
    \frac1n\sum_i\frac1{|P_i|}\sum_{(a,b)\in P_i}\log\bigl(1+e^{f_b(x_i)-f_a(x_i)}\bigr),\qquad
    P_i=\{(a,b): y_{ia}>y_{ib}\}
    $$

    Source: RankNet (Burges and others, 2005).

    Args:
        outputs: scores `[n, items]`, or of that size.
        y: relevance, of the same shape.

    Cost: a number for each pair of items.

    >>> ranking_loss(torch.tensor([[3.0, 3.0]]), torch.tensor([[1.0, 0.0]])).round(decimals=4)
    tensor(0.6931)
    """
    f, relevance = outputs.flatten(1), y.flatten(1)
    ordered = relevance[:, :, None] > relevance[:, None, :]
    lost = F.softplus(f[:, None, :] - f[:, :, None])
    sums = torch.where(ordered, lost, torch.zeros_like(lost)).flatten(1).sum(1)
    return (sums / ordered.flatten(1).sum(1).clamp(min=1)).mean()


def no_loss_known(outputs: Tensor, y: Tensor) -> Tensor:
    """Raises: the loss of a batch says nothing about a sample."""
    raise InvalidInput(
        "your loss is not the mean of the samples' own losses, so no sample has a loss of its own"
    )


USUAL_LOSS: dict[Task, Loss] = {
    "regression": F.mse_loss,
    "count": F.poisson_nll_loss,
    "ordinal": F.mse_loss,
    "ranking": ranking_loss,
    "binary": F.binary_cross_entropy_with_logits,
    "multiclass": F.cross_entropy,
    "multilabel": F.binary_cross_entropy_with_logits,
    "labeling": labeling_loss,
    "combined": no_loss,  # that of its heads
    "own": no_loss,
    "unlabeled": no_loss,
}

#: What the usual losses are called.
USUAL_LOSS_WORDS: dict[Task, str] = {
    "regression": "mean squared error",
    "count": "Poisson, outputs are logarithms of rates",
    "ordinal": "mean squared error",
    "ranking": "logistic, for every pair of items",
    "binary": "logistic, the output is a logit",
    "multiclass": "cross-entropy, outputs are logits",
    "multilabel": "logistic, for every label; outputs are logits",
    "labeling": "cross-entropy, outputs are logits",
    "combined": "the weighted sum of its outputs' losses",
    "own": "none",
    "unlabeled": "none",
}


class CoupledLoss(InvalidInput):
    """A loss of a batch that is not the mean of its samples' own losses."""


def refuse_unusable(loss: Loss, outputs: Tensor, y: Tensor, *, plain_mean: bool) -> None:
    """Raise unless a loss is a finite mean over a batch.

    Args:
        loss: the user's.
        outputs: of a few samples.
        y: their targets.
        plain_mean: whether it must be the plain mean of the samples' own losses.

    >>> refuse_unusable(F.mse_loss, torch.zeros(4, 1), torch.ones(4, 1), plain_mean=True)
    """
    try:
        once = loss(outputs, y)
        twice = loss(torch.cat([outputs, outputs]), torch.cat([y, y]))
    except Exception as error:
        raise InvalidInput(
            f"the loss raised {type(error).__name__} on outputs of shape {list(outputs.shape)} "
            f"and targets of shape {list(y.shape)}: {error}"
        ) from error
    if not isinstance(once, Tensor) or once.numel() != 1:
        raise InvalidType(
            f"the loss must return one number, the mean over the batch, not {described(once)}"
        )
    if not bool(torch.isfinite(once)):
        raise NonFinite(f"the loss is NaN or infinite on the first training samples: {float(once)}")
    if not torch.allclose(once, twice, rtol=1e-3, atol=1e-6):
        raise CoupledLoss(
            "the loss must be a mean over the batch, but doubling the batch changed it from "
            f"{float(once):g} to {float(twice):g}; use reduction='mean'"
        )
    if plain_mean and len(outputs) > 1:
        try:
            alone = torch.stack(
                [loss(outputs[k : k + 1], y[k : k + 1]).reshape(()) for k in range(len(outputs))]
            )
        except Exception as error:  # such as a contrast with the others of a batch
            raise CoupledLoss(
                "the loss must be the plain mean of the samples' own losses, and of one sample it "
                f"raised {type(error).__name__}: {error}"
            ) from error
        if not torch.allclose(once.reshape(()), alone.mean(), rtol=1e-3, atol=1e-6):
            raise CoupledLoss(
                "the loss must be the plain mean of the samples' own losses, and this one is "
                "not (class weights, say, divide by the sum of weights); write it as "
                "lambda outputs, y: loss_of_each(outputs, y).mean()"
            )
