r"""Convolutions with fewer multiplications.

The product of two polynomials is known from its values at as many points as it has coefficients,
and a value of the product is one multiplication. With the values $V_k$ `[s, k]` of polynomials of
$k$ coefficients at $s=m+r-1$ points (one of them at infinity), the coefficients of a product are
$V_s^{-1}(V_m a\odot V_r w)$. What is bilinear has three transposes, and one of them is the
correlation of $m+r-1$ entries $x$ with $r$ weights $w$, at $m$ places (Toom and Cook; Winograd's
minimal filtering):

$$
y=A^\top\bigl((Gw)\odot(B^\top x)\bigr),\qquad A=V_m,\quad G=V_r,\quad B=V_s^{-1},
$$

$s$ multiplications in place of $mr$. Its adjoints in $x$ and in $w$ share what becomes of the
derivative $\delta$ in $y$:

$$
\bar x=B\bigl((Gw)\odot(A\delta)\bigr),\qquad \bar w=G^\top\bigl((A\delta)\odot(B^\top x)\bigr).
$$

Images are cut into tiles of $m\times m$ places, and a tile is transformed along both sides: 36
multiplications in place of 144 for $m=4$ and filters of 3 x 3. Between the transforms every one of
the 36 points is a product of matrices, over channels or over tiles.

Exact but for roundings, which the transforms make larger: in float32 results are right to about
1e-6, and to 2e-7 without them.

Images are `[h, w, ..., channels]` here, places first: tiles overlap along the first dimensions,
and what is moved about are long rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

from torchtheory.core.checks import whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.core.workspace import Workspace

#: Points for tiles of four and filters of three: of those tried, with the smallest roundings.
POINTS = (Fraction(0), Fraction(5, 8), Fraction(-5, 8), Fraction(3, 2), Fraction(-3, 2))

#: Places along a side of a tile, taps of a filter, and points along a side.
TILE, TAPS = 4, 3
SIDE = TILE + TAPS - 1


@dataclass(frozen=True, slots=True)
class MinimalFiltering:
    """The matrices of the formula above: `A [s, m]`, `B [s, s]` and `G [s, r]`."""

    A: Tensor
    B: Tensor
    G: Tensor


def minimal_filtering(
    outputs: int, taps: int, points: Sequence[Fraction | int] = POINTS
) -> MinimalFiltering:
    """Matrices with which a correlation takes `outputs + taps - 1` multiplications.

    Worked out in fractions, and rounded to float64 at the end.

    Args:
        outputs: places at which the correlation is asked for, m.
        taps: length of the filter, r.
        points: m + r - 2 different numbers; infinity is the last point.

    Source: Winograd, Arithmetic Complexity of Computations; Toom and Cook for the points.

    >>> of = minimal_filtering(2, 3, (0, 1, -1))
    >>> x, w = torch.tensor([1.0, 2, 3, 4]).double(), torch.tensor([1.0, 10, 100]).double()
    >>> of.A.T @ ((of.G @ w) * (of.B.T @ x))        # 1 + 20 + 300 and 2 + 30 + 400
    tensor([321., 432.], dtype=torch.float64)
    """
    outputs = whole_number(outputs, "outputs", least=1)
    taps = whole_number(taps, "taps", least=1)
    given = [Fraction(p) for p in points]
    count = outputs + taps - 1
    if len(set(given)) != len(given) or len(given) != count - 1:
        raise InvalidInput(
            f"{outputs} outputs and {taps} taps need {count - 1} different points besides "
            f"infinity, not {[str(p) for p in given]}"
        )
    inverse = _inverse(_values(given, count))
    A, B, G = (
        torch.tensor([[float(v) for v in row] for row in matrix], dtype=torch.float64)
        for matrix in (_values(given, outputs), inverse, _values(given, taps))
    )
    return MinimalFiltering(A, B, G)


def _values(points: Sequence[Fraction], coefficients: int) -> list[list[Fraction]]:
    """Values of the powers at the points, and at infinity, where the last coefficient is left."""
    rows = [[p**k for k in range(coefficients)] for p in points]
    return [*rows, [Fraction(int(k == coefficients - 1)) for k in range(coefficients)]]


def _inverse(matrix: list[list[Fraction]]) -> list[list[Fraction]]:
    """By Gauss and Jordan; the values at different points are independent."""
    size = len(matrix)
    rows = [[*row, *(Fraction(int(i == j)) for j in range(size))] for i, row in enumerate(matrix)]
    for k in range(size):
        pivot = next(i for i in range(k, size) if rows[i][k])
        rows[k], rows[pivot] = rows[pivot], rows[k]
        rows[k] = [v / rows[k][k] for v in rows[k]]
        for i in range(size):
            if i != k and rows[i][k]:
                rows[i] = [a - rows[i][k] * b for a, b in zip(rows[i], rows[k], strict=True)]
    return [row[size:] for row in rows]


class Tiles:
    """Convolutions with filters of 3 x 3 and stride 1, and their adjoints, tile by tile.

    For images of one size. What is between the transforms is `[36, tiles, ..., channels]`.

    Args:
        size: height and width of the input.
        padding: rows and columns of zeros around it.
        like: a tensor of the precision to compute in.

    >>> x, w = torch.randn(1, 2, 7, 5).double(), torch.randn(3, 2, 3, 3).double()
    >>> tiles = Tiles((7, 5), (1, 1), x)
    >>> y = tiles.convolved(x.permute(2, 3, 0, 1), w)
    >>> expected = torch.nn.functional.conv2d(x, w, padding=1)
    >>> torch.allclose(y.permute(2, 3, 0, 1), expected)
    True
    """

    def __init__(self, size: Sequence[int], padding: Sequence[int], like: Tensor) -> None:
        self.size, self.padding = tuple(size), tuple(padding)
        self.outputs = tuple(n + 2 * p - TAPS + 1 for n, p in zip(size, padding, strict=True))
        if min(self.outputs) < 1:
            raise InvalidInput(
                f"filters of {TAPS} x {TAPS} do not fit into {list(self.size)} with a padding of "
                f"{list(self.padding)}"
            )
        self.tiles = tuple(-(-n // TILE) for n in self.outputs)
        self.count = self.tiles[0] * self.tiles[1]
        self._A, self._B, self._G = _both_sides(like.dtype, like.device)

    def filters(self, w: Tensor) -> Tensor:
        """Filters `[out, in, 3, 3]` at the points, `[36, out, in]`."""
        return (self._G @ w.flatten(2).flatten(0, 1).T).view(-1, *w.shape[:2])

    def of_inputs(self, x: Tensor) -> Tensor:
        """Inputs `[h, w, ..., in]` at the points, `[36, tiles, ..., in]`."""
        rest = x.shape[2:]
        (high, wide), (top, left) = (TILE * n + TAPS - 1 for n in self.tiles), self.padding
        framed = x.new_zeros(high, wide, *rest)
        framed[top : top + x.shape[0], left : left + x.shape[1]] = x[: high - top, : wide - left]
        # [tiles, tiles, ..., 6, 6] to [6, 6, tiles, tiles, ...]
        windows = framed.unfold(0, SIDE, TILE).unfold(1, SIDE, TILE)
        patches = windows.movedim((-2, -1), (0, 1)).reshape(SIDE**2, -1)
        return (self._B.T @ patches).view(SIDE**2, self.count, *rest)

    def of_outputs(self, y: Tensor, space: Workspace) -> Tensor:
        """Derivatives `[h, w, ..., out]` in the outputs at the points, `[36, tiles, ..., out]`."""
        rest, (down, across), (high, wide) = tuple(y.shape[2:]), self.tiles, self.outputs
        if (TILE * down, TILE * across) != (high, wide):
            framed = space.room("tiles", "framed", (TILE * down, TILE * across, *rest))
            framed[:high, :wide] = y
            framed[high:].zero_()
            framed[:high, wide:].zero_()
            y = framed
        phases = y.view(down, TILE, across, TILE, *rest).movedim((1, 3), (0, 1))
        laid_out = space.room("tiles", "phases", tuple(phases.shape)).copy_(phases)
        shape = (SIDE**2, self.count, *rest)
        out = space.room("tiles", "outputs", shape)
        torch.mm(self._A, laid_out.view(TILE**2, -1), out=out.view(SIDE**2, -1))
        return out

    def at_outputs(self, points: Tensor) -> Tensor:
        """The adjoint of `of_outputs`: from `[36, tiles, ..., out]` to `[h, w, ..., out]`."""
        rest, (down, across) = points.shape[2:], self.tiles
        phases = (self._A.T @ points.flatten(1)).view(TILE, TILE, down, across, *rest)
        whole = phases.movedim((0, 1), (1, 3)).reshape(TILE * down, TILE * across, *rest)
        return whole[: self.outputs[0], : self.outputs[1]]

    def at_inputs(self, points: Tensor, space: Workspace, owner: Hashable) -> Tensor:
        """The adjoint of `of_inputs`: from `[36, tiles, ..., in]` to `[h, w, ..., in]`.

        The room of the result is the owner's; all else in the workspace is overwritten by the next.
        """
        rest, (down, across) = tuple(points.shape[2:]), self.tiles
        patches = space.room("tiles", "patches", (SIDE, SIDE, down, across, *rest))
        torch.mm(self._B, points.flatten(1), out=patches.view(SIDE**2, -1))
        # the last two rows of a tile are the first two of the next, and columns alike
        total = space.room(owner, "inputs", (down + 1, TILE, across + 1, TILE, *rest))
        total[-1].zero_()
        total[:, :, -1].zero_()
        laid_out = patches.movedim((0, 1), (1, 3))  # [down, 6, across, 6, ...]
        over = SIDE - TILE
        total[:-1, :, :-1] = laid_out[:, :TILE, :, :TILE]
        total[1:, :over, :-1] += laid_out[:, TILE:, :, :TILE]
        total[:-1, :, 1:, :over] += laid_out[:, :TILE, :, TILE:]
        total[1:, :over, 1:, :over] += laid_out[:, TILE:, :, TILE:]
        framed = total.view(TILE * (down + 1), TILE * (across + 1), *rest)
        (high, wide), (top, left) = self.size, self.padding
        return framed[top : top + high, left : left + wide]

    def at_filters(self, points: Tensor, out: Tensor) -> Tensor:
        """The adjoint of `filters`, taps first: from `[36, ...]` into `[9, ...]`."""
        torch.mm(self._G.T, points.flatten(1), out=out.view(TAPS**2, -1))
        return out

    def convolved(self, x: Tensor, w: Tensor) -> Tensor:
        """The convolution of `[h, w, ..., in]` with `[out, in, 3, 3]`."""
        points = self.of_inputs(x)
        made = points.flatten(1, -2) @ self.filters(w).mT
        return self.at_outputs(made.view(*points.shape[:-1], -1))


@lru_cache
def _both_sides(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """A, B and G along both sides of a tile."""
    with torch.inference_mode(False):
        of = minimal_filtering(TILE, TAPS)
        A, B, G = (torch.kron(m, m).to(dtype=dtype, device=device) for m in (of.A, of.B, of.G))
        return A, B, G
