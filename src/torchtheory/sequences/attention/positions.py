r"""Positions: what is added to tokens, since attention itself does not see their order.

$$
p_{t,2i}=\sin(\omega_it),\qquad p_{t,2i+1}=\cos(\omega_it),\qquad\omega_i=C^{-2i/d},\ C=10^4.
$$

Source: Foundations of Deep Learning, section 10.4.3; Deep Learning (notes), section 6.3.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtheory.core.checks import described, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator, gaussian


def frequencies(width: int, base: float = 1e4, *, dtype: torch.dtype = torch.float64) -> Tensor:
    r"""$\omega_i=C^{-2i/d}$ for $i=0,\dots,d/2-1$, from 1 down.

    >>> frequencies(4).tolist()
    [1.0, 0.01]
    """
    width = whole_number(width, "width", least=2)
    if width % 2:
        raise InvalidInput(
            f"width must be even, a sine and a cosine for each frequency, not {width}"
        )
    exponents = torch.arange(0, width, 2, dtype=dtype) / width
    return positive_number(base, "base") ** -exponents


def sinusoidal_encoding(
    length: int,
    width: int,
    base: float = 1e4,
    *,
    start: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    r"""The rows $p_t$ for $t$ from `start` on, `[length, width]`.

    $\|p_t\|^2=d/2$; $\langle p_t,p_s\rangle=\sum_i\cos(\omega_i(t-s))$ depends on the distance
    only; and $p_{t+s}=R_sp_t$, see `shift_matrix`.

    Args:
        length: number of positions.
        width: d, even.
        base: C.
        start: the first position.

    >>> sinusoidal_encoding(2, 4).round(decimals=6).tolist()
    [[0.0, 1.0, 0.0, 1.0], [0.841471, 0.540302, 0.01, 0.99995]]
    """
    length = whole_number(length, "length", least=1)
    first = whole_number(start, "start", least=0)
    # angles in double precision: positions of thousands lose digits otherwise
    places = torch.arange(first, first + length, dtype=torch.float64)
    angles = places[:, None] * frequencies(width, base)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1).to(dtype)


def shift_matrix(steps: int, width: int, base: float = 1e4) -> Tensor:
    r"""$R_s$ with $p_{t+s}=R_sp_t$ for every t: rotations of each pair by $\omega_is$, `[d, d]`.

    So a linear map of the encoding looks a fixed number of steps away, wherever it stands.

    >>> p = sinusoidal_encoding(9, 6)
    >>> bool(torch.allclose(p[4], shift_matrix(3, 6) @ p[1]))
    True
    """
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise InvalidInput(f"steps must be a whole number, not {steps!r}")
    angles = steps * frequencies(width, base)
    cos, sin = angles.cos(), angles.sin()
    blocks = torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2)
    turned = torch.zeros(width, width, dtype=angles.dtype)
    for i, block in enumerate(blocks):
        turned[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = block
    return turned


class SinusoidalPositions(nn.Module):
    """Adds `sinusoidal_encoding` to tokens `[..., T, d]`; any length, nothing is trained.

    >>> SinusoidalPositions(4)(torch.zeros(1, 2, 4).double())[0, 0].tolist()
    [0.0, 1.0, 0.0, 1.0]
    """

    def __init__(self, width: int, base: float = 1e4) -> None:
        super().__init__()
        frequencies(width, base)
        self.width, self.base = width, base

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        _check_width(x, self.width)
        encoding = sinusoidal_encoding(x.shape[-2], self.width, self.base, start=start)
        return x + encoding.to(x)

    def extra_repr(self) -> str:
        return f"{self.width}"


class LearnedPositions(nn.Embedding):
    """Adds a trained vector per position to tokens `[..., T, d]`, up to a largest length.

    >>> LearnedPositions(8, 4)(torch.zeros(2, 3, 4).double()).shape
    torch.Size([2, 3, 4])
    """

    def __init__(
        self,
        length: int,
        width: int,
        *,
        spread: float = 0.02,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        length = whole_number(length, "length", least=1)
        width = whole_number(width, "width", least=1)
        values = gaussian(length, width, generator=as_generator(generator), dtype=dtype)
        self.spread = positive_number(spread, "spread")
        super().__init__(length, width, _weight=values * self.spread)

    @classmethod
    def of(cls, table: Tensor) -> LearnedPositions:
        """Positions with copies of given vectors `[length, width]`."""
        made = cls(1, 1)
        made.num_embeddings, made.embedding_dim = table.shape
        made.weight = nn.Parameter(table.detach().clone())
        return made

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.spread)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        _check_width(x, self.embedding_dim)
        end = start + x.shape[-2]
        if end > self.num_embeddings:
            raise InvalidInput(
                f"a sequence of {end} tokens is longer than the {self.num_embeddings} positions "
                "that were learned"
            )
        return x + self.weight[start:end]


def _check_width(x: Tensor, width: int) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise InvalidType(f"tokens must be a tensor of numbers, not {described(x)}")
    if x.ndim < 2 or x.shape[-1] != width:
        raise ShapeMismatch(f"tokens must be [..., tokens, {width}], not {list(x.shape)}")
