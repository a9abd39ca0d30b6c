r"""Samples as every function of this room takes them: rows $x_i$, labels $\pm1$."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    LabelOutOfRange,
    NonFinite,
    ShapeMismatch,
)


def points(x: Tensor) -> Tensor:
    """The matrix `x[s, d]`, detached, once it is known to be one with finite entries.

    >>> points(torch.eye(2)).shape
    torch.Size([2, 2])
    """
    if not isinstance(x, Tensor):
        raise InvalidType(f"x must be a torch tensor, not {type(x).__name__}")
    if x.dtype not in (torch.float32, torch.float64):
        raise InvalidType(f"x must be float32 or float64, not {x.dtype}: call x.double()")
    if x.ndim != 2:
        raise ShapeMismatch(f"x must be [samples, features], not {_shape(x)}")
    if x.shape[0] == 0:
        raise EmptyData("x has no rows: at least one sample is needed")
    if x.shape[1] == 0:
        raise EmptyData("x has no columns: at least one feature is needed")
    # a finite sum has finite terms, and takes one pass; an infinite one may have overflowed
    if not torch.isfinite(x.sum()) and not torch.isfinite(x).all():
        raise NonFinite("x contains NaN or infinity")
    return x.detach()


def labeled(
    x: Tensor, y: Tensor, classes: tuple[float, float] = (-1.0, 1.0)
) -> tuple[Tensor, Tensor]:
    """The sample `(x[s, d], y[s])` with `y` in the dtype of `x` and only the two classes.

    >>> labeled(torch.eye(2), torch.tensor([1, -1]))[1]
    tensor([ 1., -1.])
    """
    x = points(x)
    y = targets(x, y)
    low, high = classes
    wrong = (y != low) & (y != high)
    if y.ndim != 1:
        raise ShapeMismatch(f"y must be [samples], not {_shape(y)}")
    if wrong.any():
        found = y[wrong][0].item()
        raise LabelOutOfRange(f"labels must be {low:g} or {high:g}, and one is {found:g}")
    return x, y


def targets(x: Tensor, y: Tensor) -> Tensor:
    """Targets `y[s]` or `y[s, k]` for the rows of `x`, in the dtype of `x`.

    >>> targets(torch.eye(2), torch.tensor([3, 4]))
    tensor([3., 4.])
    """
    if not isinstance(y, Tensor):
        raise InvalidType(f"y must be a torch tensor, not {type(y).__name__}")
    if y.ndim == 0 or y.shape[0] != x.shape[0]:
        raise ShapeMismatch(f"x has {x.shape[0]} rows and y is {_shape(y)}: one label a row")
    if y.device != x.device:
        raise InvalidInput(f"x is on {x.device} and y on {y.device}: move one of them")
    y = y.detach().to(x.dtype)
    if not torch.isfinite(y).all():
        raise NonFinite("y contains NaN or infinity")
    return y


def weights(x: Tensor, weight: Tensor, bias: Tensor | float) -> tuple[Tensor, Tensor]:
    """`(w[d], b)` in the dtype of `x`, finite, and with `w` not zero.

    >>> weights(torch.eye(2), torch.tensor([1.0, 2.0]), 3)
    (tensor([1., 2.]), tensor(3.))
    """
    if not isinstance(weight, Tensor):
        raise InvalidType(f"the weight must be a torch tensor, not {type(weight).__name__}")
    if weight.shape != x.shape[1:]:
        raise ShapeMismatch(f"x has {x.shape[1]} features and the weight is {_shape(weight)}")
    w = weight.detach().to(x)
    b = torch.as_tensor(bias).detach().to(x)
    if b.numel() != 1:
        raise ShapeMismatch(f"the bias must be one number, not {_shape(b)}")
    if not (torch.isfinite(w).all() and torch.isfinite(b).all()):
        raise NonFinite("the weight or the bias contains NaN or infinity")
    if not w.any():
        raise InvalidInput("the weight is 0: it defines no hyperplane and no distance")
    return w, b.reshape(())


def homogeneous(x: Tensor) -> Tensor:
    r"""$\tilde x = (x, 1)$: a bias is a weight on a constant feature.

    >>> homogeneous(torch.tensor([[2.0]]))
    tensor([[2., 1.]])
    """
    return torch.cat([x, x.new_ones(x.shape[0], 1)], dim=1)


def positive(value: float, name: str) -> float:
    """A finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise InvalidInput(f"{name} must be a positive number, not {value!r}")
    return value


def at_least(value: int, least: int, name: str) -> int:
    """A whole number not below `least`.

    >>> at_least(3, 1, "samples")
    3
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidInput(f"{name} must be a whole number >= {least}, not {value!r}")
    return value


def _shape(x: Tensor) -> str:
    return str(list(x.shape))
