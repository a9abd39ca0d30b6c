"""Matrices and vectors as the functions of this room take them."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, NonFinite, ShapeMismatch


def matrix(A: Tensor, name: str = "the matrix") -> Tensor:
    """`A[m, n]`, detached, once it is known to be a finite real matrix.

    >>> matrix(torch.eye(2)).shape
    torch.Size([2, 2])
    """
    return _checked(A, 2, name)


def vector(x: Tensor, name: str = "the vector") -> Tensor:
    """`x[d]`, detached, once it is known to be a finite real vector.

    >>> vector(torch.ones(3)).shape
    torch.Size([3])
    """
    return _checked(x, 1, name)


def square(A: Tensor, name: str = "the matrix") -> Tensor:
    """`A[d, d]`.

    >>> square(torch.eye(2)).shape
    torch.Size([2, 2])
    """
    A = matrix(A, name)
    if A.shape[0] != A.shape[1]:
        raise ShapeMismatch(f"{name} must be square, its shape is {list(A.shape)}")
    return A


def symmetric(A: Tensor, name: str = "the matrix") -> Tensor:
    """`A[d, d]` with the rounding of its asymmetry removed; real asymmetry is refused.

    >>> symmetric(torch.tensor([[1.0, 2.0], [2.0, 1.0]])).tolist()
    [[1.0, 2.0], [2.0, 1.0]]
    """
    A = square(A, name)
    rounding = 8 * len(A) * torch.finfo(A.dtype).eps * float(A.abs().max())
    if float((A - A.T).abs().max()) > rounding:
        raise InvalidInput(f"{name} must be symmetric; (A + A.T) / 2 is its symmetric part")
    return (A + A.T) / 2


def _checked(x: Tensor, dimensions: int, name: str) -> Tensor:
    if not isinstance(x, Tensor):
        raise InvalidType(f"{name} must be a torch tensor, not {type(x).__name__}")
    if x.dtype not in (torch.float32, torch.float64):
        raise InvalidType(f"{name} must be float32 or float64, not {x.dtype}: call .double()")
    if x.ndim != dimensions:
        raise ShapeMismatch(f"{name} must have {dimensions} dimensions, not {x.ndim}")
    if x.numel() == 0:
        raise EmptyData(f"{name} is empty")
    if not bool(torch.isfinite(x).all()):
        raise NonFinite(f"{name} contains NaN or infinity")
    return x.detach()
