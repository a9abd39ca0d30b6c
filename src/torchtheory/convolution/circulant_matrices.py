r"""Matrices that commute with shifts are circulant: the nearest one, and how far away it is.

On the circle $\mathbb Z/n$ (and on tori, with channels) the following say the same of a matrix M:
it commutes with the shift S; it is circulant, $(Mx)[u]=\sum_th[t]\,x[u-t]$ with $h=M\delta_0$ its
impulse response; the discrete Fourier transform diagonalizes it. The mean
$\frac1n\sum_kS^{-k}MS^k$ over all shifts is the nearest such matrix $\Pi M$, and

$$
2\sin(\pi/n)\,\|M-\Pi M\|_F\le\|MS-SM\|_F\le2\,\|M-\Pi M\|_F,
$$

so that a small commutator means a convolution nearby, and the worse so the longer the signal.
Source: Deep Learning (notes), Theorem 4.6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import all_finite, as_matrix, described, whole_number, whole_numbers
from torchtheory.core.errors import ShapeMismatch


@dataclass(frozen=True, slots=True)
class NearestConvolution:
    r"""The circular convolution nearest to a matrix, in the Frobenius norm.

    Attributes:
        kernel: `[n]`, or `[outputs, channels, *sizes]`; place 0 comes first.
        matrix: of the convolution, of the shape of the one that was given.
        distance: $\|M-\Pi M\|_F$.
    """

    kernel: Tensor
    matrix: Tensor
    distance: float


def nearest_convolution(matrix: Tensor, shape: Sequence[int] | None = None) -> NearestConvolution:
    r"""The mean $\Pi M=\frac1n\sum_kS^{-k}MS^k$ over all shifts: the nearest convolution.

    It is the orthogonal projection of M on the matrices that commute with every shift: along each
    cyclic diagonal, the mean of the entries.

    Args:
        matrix: `[outputs * places, channels * places]`.
        shape: `(channels, *sizes)` of one signal; `(1, n)` for a matrix `[n, n]` unless given.

    Cost: one pass over the matrix per axis.

    Source: Deep Learning (notes), Theorem 4.6.

    >>> found = nearest_convolution(torch.diag(torch.tensor([1.0, 2.0, 6.0])))
    >>> found.kernel.tolist(), round(found.distance, 6)
    ([3.0, 0.0, 0.0], 3.741657)
    """
    square, grid = unflattened(matrix, shape)
    diagonals = _by_offset(square, grid)
    kernel = diagonals.mean(dim=tuple(range(2, len(grid) + 1)))
    nearest = convolution_array(kernel, grid)
    flat = nearest.reshape(math.prod(grid), -1).T.contiguous()
    distance = float((square - nearest).norm())
    return NearestConvolution(kernel[0, 0] if shape is None else kernel, flat, distance)


def commutator_norm(matrix: Tensor, shape: Sequence[int] | None = None) -> float:
    r"""$\|MS-SM\|_F$ with the cyclic shift S by one place, the largest over the axes.

    Args:
        matrix, shape: as for `nearest_convolution`.

    >>> round(commutator_norm(torch.diag(torch.tensor([1.0, -1.0]))), 6)
    2.828427
    """
    square, grid = unflattened(matrix, shape)
    gaps = [(square - shifted(square, a, len(grid))).norm() for a in range(1, len(grid))]
    return float(max(gaps))


def off_diagonal_after_fourier(matrix: Tensor, shape: Sequence[int] | None = None) -> float:
    r"""The norm of what the unitary Fourier transform leaves off the diagonal of $FMF^*$.

    With channels it is what couples one frequency to another. It is 0 exactly for a convolution,
    and always equals the distance to the nearest one. Cost $O(n^2\log n)$.

    Args:
        matrix, shape: as for `nearest_convolution`.

    >>> round(off_diagonal_after_fourier(torch.diag(torch.tensor([1.0, 2.0, 6.0]))), 6)
    3.741657
    """
    square, grid = unflattened(matrix, shape)
    places, dims = math.prod(grid[1:]), len(grid)
    inputs, outputs = tuple(range(1, dims)), tuple(range(dims + 1, 2 * dims))
    turned = torch.fft.fftn(square, dim=outputs, norm="ortho")
    turned = torch.fft.ifftn(turned, dim=inputs, norm="ortho")
    blocks = turned.reshape(grid[0], places, -1, places).clone()
    blocks.diagonal(dim1=1, dim2=3).zero_()
    return float(blocks.norm())


def circulant_eigenvalues(kernel: Tensor) -> Tensor:
    r"""The eigenvalues $\hat h(k)=\sum_th[t]e^{-2\pi ikt/n}$ of the convolution with a kernel.

    Its eigenvectors are the waves $e^{2\pi iku/n}$, whatever the kernel.

    Args:
        kernel: `[n]`, or `[n, n']` on a torus.

    Returns:
        Complex, of the same shape.

    >>> circulant_eigenvalues(torch.tensor([0.0, 1.0, 0.0, 0.0])).tolist()     # the shift itself
    [(1+0j), -1j, (-1+0j), 1j]
    """
    if (
        not isinstance(kernel, Tensor)
        or kernel.dtype not in (torch.float32, torch.float64)
        or kernel.ndim not in (1, 2)
        or not kernel.numel()
    ):
        raise ShapeMismatch(
            f"a kernel is real, float32 or float64, [n] or [n, n'], not {described(kernel)}"
        )
    spectrum: Tensor = torch.fft.fftn(all_finite(kernel, "the kernel"))
    return spectrum


# -- convolutions as arrays [channels, *sizes, outputs, *sizes] ------------------------------------


def signal_grid(shape: int | Sequence[int]) -> tuple[int, ...]:
    """`(channels, *sizes)`, with one channel for n."""
    if isinstance(shape, int):
        return 1, whole_number(shape, "shape", least=1)
    grid = whole_numbers(shape, "shape")
    if len(grid) not in (2, 3):
        raise ShapeMismatch(
            "shape is n, (channels, n) or (channels, n, n'): one axis of places or two, not "
            f"{described(shape)}"
        )
    return grid


def unflattened(matrix: Tensor, shape: Sequence[int] | None) -> tuple[Tensor, tuple[int, ...]]:
    """The transposed matrix as `[channels, *sizes, outputs, *sizes]`, and the shape of a signal."""
    matrix = as_matrix(matrix, "the matrix")
    grid = signal_grid(matrix.shape[1] if shape is None else shape)
    places = math.prod(grid[1:])
    if matrix.shape[1] != math.prod(grid) or matrix.shape[0] % places:
        raise ShapeMismatch(
            f"a matrix on signals of shape {list(grid)} has {math.prod(grid)} columns and a "
            f"multiple of {places} rows, not the shape {list(matrix.shape)}"
        )
    return matrix.T.reshape(*grid, -1, *grid[1:]), grid


def shifted(square: Tensor, axis: int, dims: int) -> Tensor:
    """The matrix with its input and output places moved by one along an axis."""
    return square.roll((1, 1), (axis, axis + dims))


def _by_offset(square: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Entries by cyclic diagonal, `[outputs, channels, *places, *offsets]`."""
    dims = len(grid)
    for axis in range(1, dims):
        n = grid[axis]
        numbers = torch.arange(n, device=square.device)
        index = (numbers[:, None] + numbers) % n  # place and offset to output place
        wide = [1] * square.ndim
        wide[axis], wide[axis + dims] = n, n
        square = square.gather(axis + dims, index.reshape(wide).expand_as(square))
    return square.movedim(dims, 0)


def convolution_array(kernel: Tensor, grid: tuple[int, ...]) -> Tensor:
    """The matrix of a convolution, as `[channels, *sizes, outputs, *sizes]`."""
    dims, made = len(grid), kernel
    for axis in range(1, dims):
        n = grid[axis]
        numbers = torch.arange(n, device=kernel.device)
        offset = (numbers - numbers[:, None]) % n  # input place, output place
        made = made.flatten(0, 2 * axis - 1)[:, offset].reshape(
            *made.shape[: 2 * axis], n, n, *made.shape[2 * axis + 1 :]
        )
    # [outputs, channels, in 1, out 1, in 2, out 2, ...]
    inputs = [2 * a for a in range(1, dims)]
    return made.permute(1, *inputs, 0, *[a + 1 for a in inputs])


def distance_to_toeplitz(square: Tensor, grid: tuple[int, ...]) -> float:
    """How far the entries are from their means over equal i - j, without winding round."""
    dims, sizes = len(grid), grid[1:]
    numbers = [torch.arange(n, device=square.device) for n in sizes]
    offset = torch.zeros((1,) * (2 * (dims - 1)), dtype=torch.long, device=square.device)
    for axis, (n, place) in enumerate(zip(sizes, numbers, strict=True)):
        wide = [1] * (2 * (dims - 1))
        wide[axis], wide[axis + dims - 1] = n, n
        offset = offset * (2 * n - 1) + (place - place[:, None] + n - 1).reshape(wide)
    diagonals = offset.reshape(-1)
    pairs = square.movedim(dims, 1).reshape(grid[0] * square.shape[dims], -1)
    count = math.prod(2 * n - 1 for n in sizes)
    length = torch.zeros(count, dtype=pairs.dtype, device=pairs.device)
    length.index_add_(0, diagonals, torch.ones_like(pairs[0]))
    sums = pairs.new_zeros(len(pairs), count).index_add_(1, diagonals, pairs)
    means = sums / length
    return float((pairs - means[:, diagonals]).norm())
