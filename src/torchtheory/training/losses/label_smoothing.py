r"""Label smoothing: a label becomes a distribution, $y \mapsto \Pi e_y$.

$\Pi$ is a confusion matrix: column $y$ is the distribution that stands for the label
$y$, so its columns sum to 1. Source: notes "Deep Learning", section 8.8.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.core.checks import (
    all_finite,
    closed_fraction,
    described,
    first_entry,
    whole_number,
)
from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    LabelOutOfRange,
    ShapeMismatch,
)


def uniform_confusion(classes: int, smoothing: float, dtype: torch.dtype = torch.float64) -> Tensor:
    r"""The matrix $\Pi = (1-\epsilon) I + \frac{\epsilon}{k} \mathbf 1 \mathbf 1^\top$.

    Cross-entropy against it is torch's `label_smoothing=epsilon`.

    >>> uniform_confusion(2, 0.2)
    tensor([[0.9000, 0.1000],
            [0.1000, 0.9000]], dtype=torch.float64)
    """
    whole_number(classes, "classes", least=2)
    closed_fraction(smoothing, "smoothing")
    return (1 - smoothing) * torch.eye(classes, dtype=dtype) + smoothing / classes


def check_confusion(confusion: Tensor, classes: int | None = None) -> Tensor:
    """The matrix itself, once it is known to be square with distributions as columns.

    >>> check_confusion(torch.tensor([[1.0, 0.5], [0.5, 0.5]]))
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.InvalidInput: column 0 of the confusion matrix sums to 1.5, not to 1
    """
    if not isinstance(confusion, Tensor) or not confusion.is_floating_point():
        raise InvalidType(
            "the confusion matrix must be a tensor of floating-point numbers, not "
            f"{described(confusion)}"
        )
    if confusion.ndim != 2 or confusion.shape[0] != confusion.shape[1]:
        raise ShapeMismatch(
            f"the confusion matrix must be [classes, classes], not {list(confusion.shape)}"
        )
    if classes is not None and len(confusion) != classes:
        raise ShapeMismatch(
            f"the confusion matrix is for {len(confusion)} classes, and there are {classes}"
        )
    all_finite(confusion, "the confusion matrix")
    if bool((confusion < 0).any()):
        raise InvalidInput(
            "the confusion matrix has a negative entry; they are probabilities ("
            f"{first_entry(confusion, 'confusion', confusion < 0)})"
        )
    sums = confusion.sum(0)
    wrong = (sums - 1).abs() > len(confusion) * 8 * torch.finfo(confusion.dtype).eps
    if bool(wrong.any()):
        column = int(wrong.nonzero()[0])
        raise InvalidInput(
            f"column {column} of the confusion matrix sums to {float(sums[column]):g}, not to 1"
        )
    return confusion.detach()


def smooth_labels(y: Tensor, confusion: Tensor) -> Tensor:
    r"""The distributions $\Pi e_{y_i}$, `[n, classes]`, of labels `y[n]`.

    >>> smooth_labels(torch.tensor([1, 0]), torch.tensor([[0.9, 0.2], [0.1, 0.8]]))
    tensor([[0.2000, 0.8000],
            [0.9000, 0.1000]])
    """
    confusion = check_confusion(confusion)
    if not isinstance(y, Tensor) or y.ndim != 1 or y.is_floating_point() or y.dtype == torch.bool:
        raise InvalidType(f"labels must be a tensor [n] of whole numbers, not {described(y)}")
    if y.numel() and not (int(y.min()) >= 0 and int(y.max()) < len(confusion)):
        raise LabelOutOfRange(
            f"labels run from {int(y.min())} to {int(y.max())}, and the confusion matrix has "
            f"classes 0..{len(confusion) - 1}"
        )
    return confusion.T[y]


def smoothed_cross_entropy(logits: Tensor, y: Tensor, confusion: Tensor) -> Tensor:
    r"""Mean cross-entropy $-\sum_j (\Pi e_y)_j \log \mathrm{softmax}(z)_j$.

    Its minimum over the logits is the mean entropy of the columns met, attained at
    $z = \log \Pi e_y$ up to a constant: a finite point where $\Pi > 0$.

    >>> from torch.nn.functional import cross_entropy
    >>> z, y = torch.tensor([[2.0, 0.0, 1.0]]), torch.tensor([0])
    >>> ours = smoothed_cross_entropy(z, y, uniform_confusion(3, 0.3, torch.float32))
    >>> bool(torch.isclose(ours, cross_entropy(z, y, label_smoothing=0.3)))
    True
    """
    return F.cross_entropy(logits, smooth_labels(y, confusion).to(logits))


def smoothed_label_entropy(confusion: Tensor) -> Tensor:
    r"""Entropy `[classes]` of each column: the least cross-entropy a label can reach.

    >>> round(float(smoothed_label_entropy(uniform_confusion(10, 0.1))[0]), 4)
    0.5003
    """
    entropies: Tensor = torch.special.entr(check_confusion(confusion))
    return entropies.sum(0)


def smoothed_gap(classes: int, smoothing: float) -> float:
    r"""The logit gap $\log(1 + k(1-\epsilon)/\epsilon)$ at which uniform smoothing is best.

    Without smoothing it is infinite: the cross-entropy of a hard label has no minimum.

    >>> round(smoothed_gap(10, 0.1), 3)
    4.511
    """
    uniform_confusion(classes, smoothing)
    if smoothing == 0:
        return math.inf
    return math.log1p(classes * (1 - smoothing) / smoothing)
