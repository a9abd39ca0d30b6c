r"""A linear map that commutes with shifts is a convolution: test it, find the kernel, project.

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
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.core.checks import (
    all_finite,
    as_matrix,
    described,
    number_between,
    whole_number,
    whole_numbers,
)
from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
    TorchTheoryError,
    UnsupportedModel,
)
from torchtheory.core.foreign_text import one_line
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.models.model import evaluation_mode, global_randomness_kept

Map = Callable[[Tensor], Tensor]
Operator = Tensor | nn.Module | Map
Kind = Literal[
    "convolution",
    "convolution with zeros outside",
    "convolution plus a constant",
    "affine",
    "not linear",
    "not shift-equivariant",
    "changes the grid",
]

#: Entries of a matrix that is written down; larger maps are tried on random signals.
_LARGEST_MATRIX = 2**23
_PROBES = 16
_COLUMNS = 2**22  # numbers that go through the operator at once


@dataclass(frozen=True, slots=True)
class ConvolutionTest:
    r"""What `is_convolution` found. Norms are Frobenius norms, relative to that of the linear part.

    Attributes:
        kind: what the map is.
        reason: why, in a sentence.
        kernel: the response to an impulse in the middle, `[n]`, or `[outputs, channels, *sizes]`,
            as seen from there: place 0 comes first, negative places count from the end. None where
            the map is not linear or changes the grid.
        commutator: $\|MS-SM\|/\|M\|$, the largest over the axes.
        residual: $\|M-C(h)\|/\|M\|$, the part of M that is not the convolution with the kernel.
        toeplitz_residual: the same for a convolution with zeros outside of the signal, whose
            matrix has entries depending on i - j only; where it was not written down, for a
            kernel that reaches over half of the signal at most.
        offset: $\|T(0)\|$ relative to the root mean square of $\|T(x)\|$ on random signals x.
        nonlinearity: $\|T(x)-T(0)-Mx\|/\|Mx\|$ on random signals, the largest.
        is_exact: whether the whole matrix was looked at, or random signals only.
    """

    kind: Kind
    reason: str
    kernel: Tensor | None
    commutator: float
    residual: float
    toeplitz_residual: float
    offset: float
    nonlinearity: float
    is_exact: bool

    def __bool__(self) -> bool:
        return self.kind == "convolution"

    def __repr__(self) -> str:
        seen = "the whole matrix" if self.is_exact else "random signals"
        lines = [f"{self.kind}: {self.reason}"]
        if self.kernel is not None:
            lines.append(f"  kernel: {list(self.kernel.shape)}, .kernel has it")
            lines.append(
                f"  does not commute with shifts by {self.commutator:.2g}, differs from the "
                f"convolution by {self.residual:.2g}, from one with zeros outside by "
                f"{self.toeplitz_residual:.2g}"
            )
        if not math.isnan(self.nonlinearity):
            lines.append(
                f"  not linear by {self.nonlinearity:.2g}, offset {self.offset:.2g}; seen on {seen}"
            )
        return "\n".join(lines)


def is_convolution(
    operator: Operator,
    shape: int | Sequence[int] | None = None,
    *,
    tolerance: float | None = None,
    dtype: torch.dtype | None = None,
    generator: RandomSource = None,
) -> ConvolutionTest:
    r"""Whether a map is a circular convolution, with its kernel, and what it is if not.

    The map is tried on all unit signals, or on some and on random ones where its matrix would have
    more than 8 million entries. Linearity is tested on random signals of several sizes: a map
    found not to be linear is not, while one that is linear on every one of them could in principle
    be so by chance.

    Args:
        operator: a matrix `[n, n]`, or a module or function that takes a batch `[k, *shape]`.
            A module is called in evaluation mode and left as it was.
        shape: n for signals `[n]`; `(channels, *sizes)` with one size or two for a layer. A matrix
            acts on the flattened signals, and needs no shape if those are `[n]`.
        tolerance: what counts as 0, relatively; the square root of the number of inputs times
            100 roundings of the dtype unless given.
        dtype: of the signals; that of the matrix or of the module's parameters unless given, and
            float64 for a function.
        generator: for the random signals.

    Returns:
        A `ConvolutionTest`, which is true for a convolution. Cost: as many signals through the map
        as it has inputs and 16 more (or 96), and its matrix in memory.

    Source: Deep Learning (notes), Theorem 4.6.

    >>> ring = nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular", bias=False)
    >>> _ = ring.weight.data.copy_(torch.tensor([[[1.0, 2.0, 3.0]]]))
    >>> found = is_convolution(ring, (1, 5))
    >>> bool(found), found.kernel.tolist()
    (True, [[[2.0, 1.0, 0.0, 0.0, 3.0]]])
    >>> is_convolution(torch.diag(torch.arange(4.0))).reason
    'a shift of the signal along axis 0 is not a shift of the result: they differ by 93%'
    """
    kept = evaluation_mode(operator) if isinstance(operator, nn.Module) else nullcontext()
    with torch.no_grad(), global_randomness_kept(), kept:
        apply, grid, like = _as_map(operator, shape, dtype)
        level = _level(grid, like.dtype, tolerance)
        found = _tested(apply, grid, like, level, as_generator(generator))
    if found.kernel is not None and not isinstance(shape, Sequence):
        return replace(found, kernel=found.kernel[0, 0])
    return found


def _tested(
    apply: Map, grid: tuple[int, ...], like: Tensor, level: float, source: torch.Generator
) -> ConvolutionTest:
    zero = apply(like.new_zeros(1, *grid))
    if zero.ndim != len(grid) + 1 or zero.shape[2:] != grid[1:]:
        return _none_of_them(
            "changes the grid",
            f"signals of shape {list(grid)} become {list(zero.shape[1:])}: a convolution keeps the "
            "places (a stride, pooling or missing padding does not)",
        )

    signals, sizes = _random_signals(grid, like, source)
    # of size 1, or squares of tiny and huge numbers would be 0 and infinite; a power of 2 is exact
    size = _power_of_two(apply(signals.clone()) - zero) or _power_of_two(zero) or 1.0
    zero = zero / size

    def linear_part(x: Tensor) -> Tensor:
        return apply(x) / size - zero

    images = linear_part(signals * sizes) / sizes
    usual = float(images.square().mean().sqrt())
    offset = _ratio(float(zero.square().mean().sqrt()), usual)
    exact = math.prod(grid) * zero.numel() <= _LARGEST_MATRIX
    matrix = _matrix(linear_part, grid, like) if exact else None
    if matrix is not None:
        expected = torch.tensordot(signals.flatten(1), matrix, 1)
    else:
        # one signal less twice another, of its neighbor's size
        expected = images - 2 * images.roll(1, 0)
        images = linear_part((signals - 2 * signals.roll(1, 0)) * sizes) / sizes
    nonlinearity = _largest_ratio(images - expected, expected, zero / sizes)
    if not nonlinearity <= level:
        return _none_of_them(
            "not linear",
            "the map is not linear: on random signals the map of a sum and the sum of the maps "
            f"differ by {_percent(nonlinearity)}",
            offset=offset,
            nonlinearity=nonlinearity,
            is_exact=exact,
        )
    kernel = _impulse_response(linear_part, grid, like)
    if matrix is not None:
        square = matrix.reshape(*grid, *zero.shape[1:])
        total = float(square.norm())
        gaps = [
            float((square - _shifted(square, axis, len(grid))).norm())
            for axis in range(1, len(grid))
        ]
        rest = float((square - _spread(kernel, grid)).norm())
        toeplitz = _ratio(_distance_to_toeplitz(square, grid), total)
    else:
        images = linear_part(signals.clone())  # which the map may write to
        total = float(images.norm())
        gaps = [
            float((linear_part(signals.roll(1, axis + 1)) - images.roll(1, axis + 1)).norm())
            for axis in range(1, len(grid))
        ]
        rest = float((images - _convolved(signals, kernel)).norm())
        toeplitz = _ratio(float((images - _convolved_on_line(signals, kernel)).norm()), total)
    commutators = [_ratio(g, total) for g in gaps]
    worst = max(range(len(gaps)), key=commutators.__getitem__)
    commutator, residual = commutators[worst], _ratio(rest, total)
    bias = zero[0].flatten(1)
    uneven = _ratio(float((bias - bias[:, :1]).abs().max()), usual) > level
    plus = ", plus numbers that depend on the place" if uneven else ", plus a bias"
    added = plus if offset > level else ""
    kind: Kind
    if commutator <= level and residual <= level:
        if offset <= level:
            kind, reason = "convolution", "linear, and every shift of the signal shifts the result"
        else:
            kind = "affine" if uneven else "convolution plus a constant"
            reason = "the map is not linear but affine, 0 is not sent to 0: a convolution" + plus
    elif toeplitz <= level:
        kind = "convolution with zeros outside"
        reason = (
            f"a convolution on the line, cut off at the ends of the signal{added}: shifts round "
            f"the circle change it by {_percent(commutator)}"
        )
    else:
        kind = "not shift-equivariant"
        reason = (
            f"a shift of the signal along axis {worst} is not a shift of the result: they differ "
            f"by {_percent(commutator)}"
        )
    return ConvolutionTest(
        kind, reason, kernel * size, commutator, residual, toeplitz, offset, nonlinearity, exact
    )


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
    square, grid = _unflattened(matrix, shape)
    diagonals = _by_offset(square, grid)
    kernel = diagonals.mean(dim=tuple(range(2, len(grid) + 1)))
    nearest = _spread(kernel, grid)
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
    square, grid = _unflattened(matrix, shape)
    gaps = [(square - _shifted(square, a, len(grid))).norm() for a in range(1, len(grid))]
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
    square, grid = _unflattened(matrix, shape)
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


# -- the map ---------------------------------------------------------------------------------------


def _as_map(
    operator: Operator, shape: int | Sequence[int] | None, dtype: torch.dtype | None
) -> tuple[Map, tuple[int, ...], Tensor]:
    """The map on `[k, channels, *sizes]`, the shape of one signal, and a tensor of its kind."""
    if dtype not in (None, torch.float32, torch.float64):
        raise InvalidType(f"dtype must be torch.float32 or torch.float64, not {described(dtype)}")
    if isinstance(operator, Tensor):
        square, grid = _unflattened(operator, None if shape is None else _grid(shape))
        columns = square.reshape(math.prod(grid), -1)
        if dtype is not None:
            columns = columns.to(dtype)
        return lambda x: (x.flatten(1) @ columns).reshape(len(x), -1, *grid[1:]), grid, columns
    if not callable(operator):
        raise InvalidType(
            f"the operator must be a matrix, a module or a function, not {described(operator)}"
        )
    if shape is None:
        raise InvalidInput("say what a signal looks like: shape=n, or shape=(channels, *sizes)")
    grid, single = _grid(shape), isinstance(shape, int)
    like = torch.zeros(0, dtype=torch.float64)
    if isinstance(operator, nn.Module):
        like = next((p for p in operator.parameters() if p.is_floating_point()), like).detach()
    if dtype is not None:
        like = like.to(dtype)
    if like.dtype not in (torch.float32, torch.float64):
        raise InvalidType(
            f"in {like.dtype} a map cannot be told from a convolution, so coarse is its rounding: "
            "give a copy of the module, copy.deepcopy(module).float()"
        )

    def apply(x: Tensor) -> Tensor:
        given = x[:, 0] if single else x
        try:
            found = operator(given)
        except TorchTheoryError:
            raise
        except Exception as error:
            raise UnsupportedModel(
                f"the operator raised {type(error).__name__} on signals of shape "
                f"{list(given.shape)} and type {given.dtype}: {one_line(str(error))[:300]}"
            ) from error
        if not isinstance(found, Tensor) or not found.is_floating_point():
            raise InvalidType(
                f"the operator must give a tensor of real numbers, not {described(found)}"
            )
        if found.ndim == 0 or len(found) != len(x):
            raise ShapeMismatch(
                "the operator takes a batch [k, *shape] and must give one result per signal; for "
                f"{list(given.shape)} it gives {list(found.shape)}"
            )
        if not bool(torch.isfinite(found).all()):
            raise NonFinite("the operator gives numbers that are not finite")
        return (found[:, None] if single else found).to(like.dtype)

    return apply, grid, like


def _grid(shape: int | Sequence[int]) -> tuple[int, ...]:
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


def _unflattened(matrix: Tensor, shape: Sequence[int] | None) -> tuple[Tensor, tuple[int, ...]]:
    """The transposed matrix as `[channels, *sizes, outputs, *sizes]`, and the shape of a signal."""
    matrix = as_matrix(matrix, "the matrix")
    grid = _grid(matrix.shape[1] if shape is None else shape)
    places = math.prod(grid[1:])
    if matrix.shape[1] != math.prod(grid) or matrix.shape[0] % places:
        raise ShapeMismatch(
            f"a matrix on signals of shape {list(grid)} has {math.prod(grid)} columns and a "
            f"multiple of {places} rows, not the shape {list(matrix.shape)}"
        )
    return matrix.T.reshape(*grid, -1, *grid[1:]), grid


def _matrix(linear_part: Map, grid: tuple[int, ...], like: Tensor) -> Tensor:
    """The images of all unit signals, `[inputs, outputs, *sizes]`."""
    inputs = math.prod(grid)
    rows = max(1, _COLUMNS // inputs)
    images = []
    for start in range(0, inputs, rows):
        count = min(rows, inputs - start)
        units = like.new_zeros(count, inputs)
        units[range(count), range(start, start + count)] = 1
        images.append(linear_part(units.reshape(count, *grid)))
    return torch.cat(images)


def _impulse_response(linear_part: Map, grid: tuple[int, ...], like: Tensor) -> Tensor:
    """The images of the unit signals, `[outputs, channels, *sizes]`, seen from their own place.

    The units stand in the middle: what zeros outside cut off at the ends is not cut off there.
    """
    middle = [n // 2 for n in grid[1:]]
    units = like.new_zeros(grid[0], *grid)
    place = int(torch.arange(math.prod(grid[1:])).reshape(grid[1:])[tuple(middle)])
    units.flatten(2).diagonal(dim1=0, dim2=1)[place] = 1
    response = linear_part(units).transpose(0, 1)
    return response.roll([-m for m in middle], tuple(range(2, len(grid) + 1))).contiguous()


def _random_signals(
    grid: tuple[int, ...], like: Tensor, source: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Standard normal signals, and sizes from 1e-2 to 1e2 at which a threshold would be felt."""
    drawn = gaussian(_PROBES, *grid, generator=source, dtype=like.dtype, device=like.device)
    sizes = torch.logspace(-2, 2, _PROBES, dtype=like.dtype, device=like.device)
    return drawn, sizes.reshape(-1, *[1] * len(grid))


# -- convolutions as arrays [channels, *sizes, outputs, *sizes] ------------------------------------


def _shifted(square: Tensor, axis: int, dims: int) -> Tensor:
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


def _spread(kernel: Tensor, grid: tuple[int, ...]) -> Tensor:
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


def _convolved(signals: Tensor, kernel: Tensor) -> Tensor:
    axes = tuple(range(2, signals.ndim))
    spectrum = torch.einsum(
        "kc...,oc...->ko...",
        torch.fft.fftn(signals, dim=axes),
        torch.fft.fftn(kernel, dim=axes),
    )
    back: Tensor = torch.fft.ifftn(spectrum, dim=axes).real
    return back


def _convolved_on_line(signals: Tensor, kernel: Tensor) -> Tensor:
    """The same with zeros outside: on a circle twice as long, of which only the signal is kept."""
    for axis in range(2, signals.ndim):
        n = signals.shape[axis]
        middle = n // 2
        gap = kernel.new_zeros(*kernel.shape[:axis], n, *kernel.shape[axis + 1 :])
        ahead, behind = kernel.narrow(axis, 0, n - middle), kernel.narrow(axis, n - middle, middle)
        kernel = torch.cat([ahead, gap, behind], axis)
        outside = signals.new_zeros(*signals.shape[:axis], n, *signals.shape[axis + 1 :])
        signals = torch.cat([signals, outside], axis)
    made = _convolved(signals, kernel)
    for axis in range(2, signals.ndim):
        made = made.narrow(axis, 0, made.shape[axis] // 2)
    return made


def _distance_to_toeplitz(square: Tensor, grid: tuple[int, ...]) -> float:
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


# -- words and numbers -----------------------------------------------------------------------------


def _none_of_them(
    kind: Kind,
    reason: str,
    *,
    offset: float = math.nan,
    nonlinearity: float = math.nan,
    is_exact: bool = False,
) -> ConvolutionTest:
    nan = math.nan
    return ConvolutionTest(kind, reason, None, nan, nan, nan, offset, nonlinearity, is_exact)


def _level(grid: tuple[int, ...], dtype: torch.dtype, tolerance: float | None) -> float:
    if tolerance is not None:
        return number_between(tolerance, "tolerance", 0, 1, closed="left")
    return 100 * torch.finfo(dtype).eps * math.sqrt(math.prod(grid))


def _largest_ratio(difference: Tensor, expected: Tensor, taken_off: Tensor) -> float:
    """The largest relative norm of a difference; the image of 0 was rounded off the signals."""
    gaps, sizes, lost = (t.flatten(1).norm(dim=1) for t in (difference, expected, taken_off))
    together = (sizes + lost).tolist()
    return max(_ratio(g, s) for g, s in zip(gaps.tolist(), together, strict=True))


def _power_of_two(values: Tensor) -> float:
    """The power of 2 below the largest entry, or 0."""
    largest = float(values.abs().max())
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest > 0 else 0.0


def _ratio(part: float, whole: float) -> float:
    if part == 0:
        return 0.0
    return part / whole if whole > 0 else math.inf


def _percent(share: float) -> str:
    if share >= 10:
        return f"a factor of {share:.2g}"
    return f"{100 * share:.0f}%" if share >= 0.1 else f"{100 * share:.2g}%"
