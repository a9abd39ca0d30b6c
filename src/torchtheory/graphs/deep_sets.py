r"""Functions of sets: Deep Sets, which add up what they see of each element.

A set of $M$ elements is $X\in\mathbb R^{M\times n}$, one element per row, in any order. A function
is invariant if $f(PX)=f(X)$ and equivariant if $f(PX)=Pf(X)$ for every permutation matrix $P$;
`torchtheory.equivariance.measure` measures both for any network. Deep Sets are

$$
f(X)=\rho\Bigl(\sum_m\phi(x_m)\Bigr),\qquad
f(X)_m=\rho\Bigl(x_m,\sum_{m'}\phi(x_{m'})\Bigr).
$$

Repeated elements count as often as they occur: these are functions of multisets.
Source: Deep Learning (notes), sections 7.1 and 7.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_module, described, one_of
from torchtheory.core.errors import EmptyData, InvalidType, ShapeMismatch

Pool = Literal["sum", "mean", "max"]
POOLS: tuple[Pool, ...] = ("sum", "mean", "max")


class DeepSet(nn.Module):
    r"""An invariant function of a set, $\rho(\sum_m\phi(x_m))$.

    Sets of any size come in as `x[..., M, n]`. In a batch of sets of different sizes the smaller
    ones are padded, and `mask[..., M]` is true at their elements; see `pad_sets`. What stands in
    the padding has no influence at all.

    Args:
        phi: from elements `[..., n]` to their codes `[..., d]`.
        rho: from the code of the set `[..., d]` to the output.
        pool: how codes of elements become the code of the set. The `sum` of two disjoint sets'
            codes is that of their union; the empty set has a sum, 0, and no mean or maximum.

    Time and memory: those of `phi` on all elements.

    >>> count = DeepSet(nn.Linear(2, 1), nn.Identity())
    >>> _ = nn.init.zeros_(count.phi.weight), nn.init.ones_(count.phi.bias)
    >>> count(torch.randn(5, 2)).item(), count(torch.randn(3, 7, 2)).flatten().tolist()
    (5.0, [7.0, 7.0, 7.0])
    """

    def __init__(self, phi: nn.Module, rho: nn.Module, pool: Pool = "sum") -> None:
        super().__init__()
        self.phi = as_module(phi, "phi")
        self.rho = as_module(rho, "rho")
        self.pool = one_of(pool, "pool", POOLS)

    def code(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The code of the set, `[..., d]`."""
        _check_sets(x, mask)
        # numbers in the padding may be anything, and phi of them must not become NaN
        codes: Tensor = self.phi(x if mask is None else x.masked_fill(~mask[..., None], 0.0))
        if codes.shape[:-1] != x.shape[:-1]:
            raise ShapeMismatch(
                f"phi must keep the elements of {list(x.shape)} apart, and it returns "
                f"{list(codes.shape)}"
            )
        return pooled(codes, self.pool, mask)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        made: Tensor = self.rho(self.code(x, mask))
        return made

    def extra_repr(self) -> str:
        return f"pool={self.pool!r}"


class EquivariantDeepSet(DeepSet):
    r"""One output per element, $\rho(x_m,\sum_{m'}\phi(x_{m'}))$; equal elements get equal outputs.

    Args:
        phi, pool: as for `DeepSet`.
        rho: from an element and the code of the set side by side, `[..., n + d]`, to the output.

    With a mask, outputs in the padding are those of an element 0 and mean nothing.

    >>> net = EquivariantDeepSet(nn.Linear(2, 3), nn.Linear(5, 4))
    >>> net(torch.zeros(6, 2)).shape
    torch.Size([6, 4])
    """

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        code = self.code(x, mask)
        own = x if mask is None else x.masked_fill(~mask[..., None], 0.0)
        everywhere = code[..., None, :].expand(*x.shape[:-1], code.shape[-1])
        made: Tensor = self.rho(torch.cat([own, everywhere], -1))
        return made


def pooled(codes: Tensor, pool: Pool = "sum", mask: Tensor | None = None) -> Tensor:
    """Sum, mean or maximum over the elements of `[..., M, d]` that the mask shows, `[..., d]`.

    >>> codes = torch.tensor([[1.0], [2.0], [6.0]])
    >>> pooled(codes, "mean").item(), pooled(codes, "max", torch.tensor([True, True, False])).item()
    (3.0, 2.0)
    """
    one_of(pool, "pool", POOLS)
    if pool != "sum" and (codes.shape[-2] == 0 or (mask is not None and _one_is_empty(mask))):
        word = "mean" if pool == "mean" else "maximum"
        raise EmptyData(f"an empty set has no {word}: leave it out, or take pool='sum'")
    if pool == "max":
        # amax, whose gradient would be shared among equal elements, tells no index; both are fine
        hidden = codes if mask is None else codes.masked_fill(~mask[..., None], -torch.inf)
        return hidden.amax(-2)
    shown = codes if mask is None else codes.masked_fill(~mask[..., None], 0.0)
    total = shown.sum(-2)
    if pool == "sum":
        return total
    return total / (codes.shape[-2] if mask is None else mask.sum(-1, keepdim=True))


def pad_sets(sets: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Sets of different sizes `[M_k, n]` as one batch: `x[K, M, n]`, and its mask `[K, M]`.

    >>> x, mask = pad_sets([torch.ones(2, 1), torch.ones(3, 1)])
    >>> x.shape, mask.sum(1).tolist()
    (torch.Size([2, 3, 1]), [2, 3])
    >>> pad_sets([torch.ones(2, 1), torch.ones(3, 2)])
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.ShapeMismatch: the elements of set 1 have 2 numbers, those of set 0 1
    """
    if not isinstance(sets, list | tuple):
        raise InvalidType(f"sets come as a list of tensors [M, n], not {described(sets)}")
    if not sets:
        raise EmptyData("there is no set to pad: give at least one")
    for k, one in enumerate(sets):
        if not isinstance(one, Tensor) or one.ndim != 2:
            raise ShapeMismatch(f"a set is [elements, features], and set {k} is {described(one)}")
        if one.shape[1] != sets[0].shape[1]:
            raise ShapeMismatch(
                f"the elements of set {k} have {one.shape[1]} numbers, those of set 0 "
                f"{sets[0].shape[1]}"
            )
    x = nn.utils.rnn.pad_sequence(list(sets), batch_first=True)
    sizes = torch.tensor([len(one) for one in sets], device=x.device)
    return x, torch.arange(x.shape[1], device=x.device) < sizes[:, None]


def _check_sets(x: Tensor, mask: Tensor | None) -> None:
    if not isinstance(x, Tensor) or x.ndim < 2:
        raise ShapeMismatch(f"a set is [..., elements, features], not {described(x)}")
    if mask is not None and (
        not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != x.shape[:-1]
    ):
        raise ShapeMismatch(
            f"the mask of sets {list(x.shape)} must be true or false for each element, "
            f"{list(x.shape[:-1])}, not {described(mask)}"
        )


def _one_is_empty(mask: Tensor) -> bool:
    return not bool(mask.any(-1).all())
