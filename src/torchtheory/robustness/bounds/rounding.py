r"""What rounding can do, at worst.

A sum of $n$ products that is computed in floating point, in any order and with or without fused
steps, differs from the exact one by at most

$$
\gamma_n\sum_i\lvert a_ib_i\rvert,\qquad\gamma_n=\frac{nu}{1-nu},
$$

with $u$ half the distance from 1 to the next number (Higham 2002, section 3.1). A value of a
network is therefore $z=Ax+c+\delta$ with
$\lvert\delta\rvert\le\gamma(\lvert A\rvert\lvert x\rvert+\lvert c\rvert)$, entry by entry, and
bounds of all such $z$ enclose both the network in exact arithmetic ($\delta=0$) and the one that
torch computes, whatever the order of its sums. Numbers too small for the precision, which are
rounded to 0 or with fewer digits, are not counted one by one: `smallest` stands for all of them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Terms that are summed in an order of torch's; longer sums are made of sums of so many.
LONGEST = 4096


def gamma(terms: float, dtype: torch.dtype) -> float:
    r"""$\gamma_n$, with room for the roundings of what it is multiplied with; infinite beyond it.

    >>> 1e-4 < gamma(2000, torch.float32) < 1.3e-4, gamma(1e8, torch.float32)
    (True, inf)
    """
    share = terms * torch.finfo(dtype).eps / 2
    return share / (1 - 2 * share) if share < 0.25 else math.inf


def smallest(dtype: torch.dtype) -> float:
    """What numbers too small for the precision may do to a bound: norms are roots of squares."""
    return math.sqrt(torch.finfo(dtype).tiny)


def coarseness(dtype: torch.dtype, device: torch.device) -> float:
    """Share of a product by which torch may be off, as its factors are rounded to fewer digits.

    With `torch.set_float32_matmul_precision` and, on a graphics card, by default in convolutions.
    """
    if dtype != torch.float32:
        return 0.0
    precision = torch.get_float32_matmul_precision()
    if precision == "medium":  # bfloat16: 8 digits, both factors
        return 2.0**-6
    shorter = precision == "high" or (device.type == "cuda" and torch.backends.cudnn.allow_tf32)
    return 2.0**-8 if shorter else 0.0


def chain(terms: int) -> int:
    """The longest chain of additions in a sum of `sums` and `products`.

    >>> chain(100), chain(150_528)
    (102, 4134)
    """
    return min(terms, LONGEST) + math.ceil(terms / LONGEST) + 1


def sums(values: Tensor) -> Tensor:
    """Sums over the last dimension, of parts of a certain length first."""
    if values.shape[-1] <= LONGEST:
        return values.sum(-1)
    return torch.stack([part.sum(-1) for part in torch.split(values, LONGEST, -1)], -1).sum(-1)


def products(a: Tensor, x: Tensor) -> Tensor:
    """Sums of products, `[b or 1, s, n]` and `[b, n]` to `[b, s]`."""
    if x.shape[1] <= LONGEST:
        return _products(a, x)
    starts = range(0, x.shape[1], LONGEST)
    parts = [_products(a[..., k : k + LONGEST], x[:, k : k + LONGEST]) for k in starts]
    return torch.stack(parts, -1).sum(-1)


def _products(a: Tensor, x: Tensor) -> Tensor:
    if len(a) == 1:
        return x @ a[0].mT
    return torch.bmm(a, x[..., None].expand(len(a), -1, -1))[..., 0]


def entries(a: Tensor) -> Tensor:
    """Coefficients `[b, s, ...]` as `[b, s, n]`, also of a value that is one number per sample."""
    return a.reshape(*a.shape[:2], -1)
