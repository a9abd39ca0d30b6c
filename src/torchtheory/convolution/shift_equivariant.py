r"""A linear map that commutes with shifts is a convolution: test a map, and find its kernel.

The map is a matrix, a layer or any function of signals on a circle or a torus, with channels. What
it is where it is no circular convolution is said as well: affine, a convolution with zeros outside
of the signal, not linear. Source: Deep Learning (notes), Theorem 4.6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.convolution.circulant_matrices import (
    convolution_array,
    distance_to_toeplitz,
    shifted,
    signal_grid,
    unflattened,
)
from torchtheory.core.checks import described, number_between
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
            float((square - shifted(square, axis, len(grid))).norm())
            for axis in range(1, len(grid))
        ]
        rest = float((square - convolution_array(kernel, grid)).norm())
        toeplitz = _ratio(distance_to_toeplitz(square, grid), total)
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


# -- the map ---------------------------------------------------------------------------------------


def _as_map(
    operator: Operator, shape: int | Sequence[int] | None, dtype: torch.dtype | None
) -> tuple[Map, tuple[int, ...], Tensor]:
    """The map on `[k, channels, *sizes]`, the shape of one signal, and a tensor of its kind."""
    if dtype not in (None, torch.float32, torch.float64):
        raise InvalidType(f"dtype must be torch.float32 or torch.float64, not {described(dtype)}")
    if isinstance(operator, Tensor):
        square, grid = unflattened(operator, None if shape is None else signal_grid(shape))
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
    grid, single = signal_grid(shape), isinstance(shape, int)
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
