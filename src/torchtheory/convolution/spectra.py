r"""Singular values of convolution layers through the Fourier transform.

On a torus of $N=ms$ places the layer $y_a[o]=\sum_{b,t}w_{ab}[t]\,x_b[so+\delta t-p]$ maps the
wave $e^{2\pi ifj/N}$ to the wave $e^{2\pi ifo/m}$, and the $s$ waves $f,f+m,\dots,f+(s-1)m$ to
the same one. So in the orthonormal Fourier bases it is block diagonal, with one block per output
frequency $q$,

$$\hat W(q)=s^{-d/2}\Bigl[\sum_tw_{ab}[t]\,e^{2\pi i(q+mr)\cdot(\delta t-p)/N}\Bigr]_{a,(b,r)},
\qquad r\in\{0,\dots,s-1\}^d,$$

of `out` rows and `in` $\cdot s^d$ columns, and its singular values are those of the blocks. Real
weights give conjugate blocks at opposite frequencies: half of them is enough.

With zero padding the layer is not one of a torus, but a part of one: what it does to an image is
what the layer of a larger torus does to the image between zeros, in the windows that it has. A part
of a matrix has smaller singular values, $\sigma_j\le\sigma_j(\text{torus})$, and a matrix that
lacks $r$ rows and columns has $\sigma_j\ge\sigma_{j+r}(\text{torus})$. The torus may be *twisted*,
$x[j+N]=e^{2\pi i\theta}x[j]$, which moves its frequencies to $(f+\theta)/N$; every twist gives a
bound, and the best one counts. For a symmetric filter of three taps in one dimension the half twist
is exact: $1+2\cos(\pi/(n+1))$ for $(1,1,1)$.

For float32 and smaller layers everything is computed in double precision.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchtheory.convolution.layer_matrices import (
    ConvolutionLayer,
    ConvolutionMap,
    Windows,
    convolution_map,
    matrix_of_map,
    operator_of_map,
)
from torchtheory.core.budget import check_time
from torchtheory.core.errors import UnsupportedModel
from torchtheory.linalg.operators import apply
from torchtheory.linalg.singular_values import (
    DENSE,
    FAILURE,
    PRODUCTS,
    operator_norm,
    operator_norm_upper_bound,
)

#: Numbers of a matrix that is decomposed as a whole, at most; its shorter side has up to `DENSE`.
DENSE_ENTRIES = 2**24

#: Largest error of a singular value from a Gram matrix, relative to the largest of its block.
ACCURACY = 1e-11

#: Complex numbers of blocks that are in memory at once.
_AT_ONCE = 2**22

#: Products with the map and with its adjoint that improve a lower bound, and what a step must gain.
_STEPS, _GAIN = 30, 1e-5

#: Bounds further apart than this are improved by random products, which come first where a torus
#: is so many times their work.
_LOOSE, _DEARER = 0.01, 4

#: Twists of a torus that are tried, the same in every dimension.
TWISTS = (0.0, 0.5)


@dataclass(frozen=True, slots=True)
class NormBounds:
    r"""Two numbers with the norm $\|W\|_2$ of a layer between them.

    Attributes:
        lower: $\|Wv\|$ of a unit vector, or the norm itself.
        upper: a bound, or the norm itself.
        exact: whether both are the norm, up to rounding.
        failure: probability, over random start vectors, that the norm is above `upper`; 0 where
            the bound holds for certain.
    """

    lower: float
    upper: float
    exact: bool
    failure: float = 0.0

    @property
    def error(self) -> float:
        """By which share of the lower bound the norm can be above it."""
        return (
            self.upper / self.lower - 1 if self.lower > 0 else 0.0 if self.upper == 0 else math.inf
        )


def convolution_singular_values(layer: ConvolutionLayer, input_shape: Sequence[int]) -> Tensor:
    r"""All singular values of a circular convolution layer, descending, exactly.

    Args:
        layer: a convolution layer that shifts its output by one where its input is shifted by a
            stride around the end of the image: circular padding that keeps the size (or divides it
            by the stride), a kernel of one tap, or windows that tile the image. Any stride,
            dilation, groups and number of channels; transposed layers as well.
        input_shape: `[channels, ...]` of one input.

    Returns:
        `[min(outputs, inputs)]` in double precision, equal to those of the layer's matrix within
        1e-10 of the largest.

    Cost: one small decomposition per frequency, $O(m^d\min(a,bs^d)^2\max(a,bs^d))$ for $m^d$
    windows, against $O(m^{3d}\dots)$ for the matrix; memory of the values and 64 MB.

    Example: the difference of neighbors around a circle has the symbol $e^{i\omega}-1$.

    >>> from torchtheory.convolution.layer_matrices import convolution_layer
    >>> kernel = torch.tensor([[[-1.0, 1.0, 0.0]]], dtype=torch.float64)
    >>> layer = convolution_layer(kernel, padding=1, padding_mode="circular")
    >>> convolution_singular_values(layer, (1, 4)).round(decimals=6)
    tensor([2.0000, 1.4142, 1.4142, 0.0000], dtype=torch.float64)
    """
    found = _in_double(convolution_map(layer, input_shape))
    if not found.cyclic:
        raise UnsupportedModel(
            "the layer does not commute with shifts around the end of the image (zero padding, or "
            "a size that the stride does not divide), so Fourier gives bounds only: "
            "singular_value_bounds, or convolution_norm"
        )
    values = _torus_values(found, (0.0,) * len(found.windows))
    return values[: min(found.shape)]


def singular_value_bounds(
    layer: ConvolutionLayer, input_shape: Sequence[int]
) -> tuple[Tensor, Tensor]:
    r"""Lower and upper bounds of every singular value of a layer, `[min(outputs, inputs)]` each.

    With zero padding the layer is a part of one on a larger torus: with $\tau_1\ge\tau_2\ge\dots$
    those of the torus and $r$ the number of its rows and columns that are left out,
    $\tau_{j+r}\le\sigma_j\le\tau_j$, with the best of an untwisted and a half-twisted torus. Where
    the layer commutes with shifts both are the singular values.

    Cost: that of `convolution_singular_values`, twice.

    >>> from torch import nn
    >>> layer = nn.Conv2d(2, 3, 3, padding=1, dtype=torch.float64)
    >>> low, high = singular_value_bounds(layer, (2, 8, 8))
    >>> exact = torch.linalg.svdvals(matrix_of_map(convolution_map(layer, (2, 8, 8))).to_dense())
    >>> bool((low <= exact + 1e-12).all() and (exact <= high + 1e-12).all())
    True
    """
    found = _in_double(convolution_map(layer, input_shape))
    count = min(found.shape)
    if found.cyclic:
        values = convolution_singular_values(layer, input_shape)
        return values, values
    if not all(w.cyclic or w.zero_outside for w in found.windows):
        raise UnsupportedModel(
            f"{found.windows[0].padding} padding of this layer has no bounds of all singular "
            "values here; convolution_norm bounds the largest"
        )
    low = torch.zeros(count, dtype=torch.float64, device=found.weight.device)
    high = torch.full_like(low, math.inf)
    torus = _torus(found)
    left_out = sum(
        math.prod(larger) - math.prod(smaller)
        for larger, smaller in (
            (torus.image_shape, found.image_shape),
            (torus.windows_shape, found.windows_shape),
        )
    )
    for twist in TWISTS:
        values = _torus_values(torus, _twists(found, twist))
        high = torch.minimum(high, values[:count])
        kept = values[left_out:][:count]
        low[: len(kept)] = torch.maximum(low[: len(kept)], kept)
    return low, high


def convolution_norm(
    layer: ConvolutionLayer, input_shape: Sequence[int], *, certain: bool = False
) -> NormBounds:
    r"""The norm $\|W\|_2$ of a layer, its largest singular value, exactly or from both sides.

    * Exact for layers that commute with shifts (circular padding), and for small ones, by a
      decomposition of the matrix.
    * Zero padding: at most the largest singular value of a twisted torus, whatever the size; at
      least $\|Wv\|/\|v\|$ for the best wave of the torus under a window, improved by products with
      $W^\top W$. Both hold for certain, up to rounding; on 32 x 32 places they are about 0.1%
      apart. Reflecting and replicating padding multiply the torus' norm by their own.
    * Where these are more than 1% apart, or the torus costs much more, a bound from random products
      that fails with probability $10^{-6}$ counts as well, unless `certain`.

    Args:
        layer, input_shape: as for `convolution_map`.
        certain: whether only what holds for certain counts, however far apart.

    Cost: twice that of `convolution_singular_values`, and up to a hundred applications of the
    layer and of its adjoint.

    Example: $(1,1,1)$ on 6 places with zero padding, whose norm is $1+2\cos(\pi/7)$.

    >>> from torchtheory.convolution.layer_matrices import convolution_layer
    >>> layer = convolution_layer(torch.ones(1, 1, 3, dtype=torch.float64), padding=1)
    >>> found = convolution_norm(layer, (1, 6))
    >>> round(found.upper, 6), round(1 + 2 * math.cos(math.pi / 7), 6), found.exact
    (2.801938, 2.801938, True)
    """
    return norm_of_map(convolution_map(layer, input_shape), certain=certain)


def norm_of_map(found: ConvolutionMap, *, certain: bool = False) -> NormBounds:
    """The norm of a `ConvolutionMap`; see `convolution_norm`."""
    found = _in_double(found)
    if not bool(torch.isfinite(found.weight).all()):
        return NormBounds(math.nan, math.nan, False)
    if not bool(found.weight.any()):
        return NormBounds(0.0, 0.0, True)
    if found.cyclic:
        norm, _ = _largest(found, (0.0,) * len(found.windows))
        return NormBounds(norm, norm, True)
    dense = _dense_norm(found)
    if dense is not None:
        return NormBounds(dense, dense, True)
    lower, upper, failure = 0.0, math.inf, 0.0
    torus = _torus(found)
    if certain or _work_on(torus) <= _DEARER * _work_of_products(found):
        upper, frequency = min(_largest(torus, _twists(found, t)) for t in TWISTS)
        upper *= _padding_norm(found)
        lower = min(upper, _lower_bound(found, torus, frequency))
    if upper > (1 + _LOOSE) * lower and not certain:
        operator = operator_of_map(found)
        random = operator_norm_upper_bound(
            operator, steps=PRODUCTS, failure_probability=FAILURE, generator=0
        )
        if random < upper:
            upper, failure = random, FAILURE
        ritz = operator_norm(operator, tolerance=_LOOSE / 10, steps=PRODUCTS, generator=0)
        lower = min(upper, max(lower, ritz.value))
    return NormBounds(lower, upper, False, failure)


def symbol(layer: ConvolutionLayer, input_shape: Sequence[int]) -> Tensor:
    r"""The blocks $\hat W(q)$ of a circular convolution layer, one per output frequency.

    Returns:
        `[m_1, ..., m_d, out, in * s^d]` complex; for a layer with groups the blocks are block
        diagonal, and for a transposed layer adjoint, so that its singular values are the layer's.

    >>> from torchtheory.convolution.layer_matrices import convolution_layer
    >>> layer = convolution_layer(torch.ones(1, 1, 3), padding=1, padding_mode="circular")
    >>> symbol(layer, (1, 4)).abs().flatten().round(decimals=4)
    tensor([3., 1., 1., 1.], dtype=torch.float64)
    """
    found = _in_double(convolution_map(layer, input_shape))
    if not found.cyclic:
        raise UnsupportedModel("only a layer that commutes with shifts has a symbol")
    every = [torch.arange(w.count, dtype=torch.float64) for w in found.windows]
    (blocks,) = _blocks(found, every, math.inf)
    counts = [w.count for w in found.windows]
    per_group = blocks.reshape(found.groups, *counts, *blocks.shape[-2:])
    together = torch.stack(
        [_block_diagonal([g[q] for g in per_group]) for q in itertools.product(*map(range, counts))]
    )
    return together.reshape(*counts, *together.shape[-2:])


# -- blocks of a torus -----------------------------------------------------------------------------


def _in_double(found: ConvolutionMap) -> ConvolutionMap:
    return replace(found, weight=found.weight.detach().double())


def _half(count: int, twist: float) -> tuple[Tensor, Tensor]:
    """Frequencies of which every pair of opposite ones has one, and how many each stands for."""
    if twist == 0.0:
        kept = torch.arange(count // 2 + 1, dtype=torch.float64)
        alone = (kept == 0) | (2 * kept == count)
    else:
        kept = torch.arange((count + 1) // 2, dtype=torch.float64)
        alone = 2 * kept + 1 == count
    return kept + twist, torch.where(alone, 1, 2)


def _frequencies(found: ConvolutionMap, twists: Sequence[float]) -> tuple[list[Tensor], Tensor]:
    """Output frequencies per dimension, half of those of the last, and their multiplicities."""
    *others, last = found.windows
    every = [
        torch.arange(w.count, dtype=torch.float64) + t
        for w, t in zip(others, twists[:-1], strict=True)
    ]
    kept, copies = _half(last.count, twists[-1])
    return [*every, kept], copies


def _blocks(found: ConvolutionMap, frequencies: list[Tensor], at_once: float) -> Iterator[Tensor]:
    r"""$\hat W$ at a grid of frequencies, `[groups * frequencies, rows, columns]`, in parts."""
    weight, device = found.weight, found.weight.device
    a, b = weight.shape[:2]
    phases = []
    for w, q in zip(found.windows, frequencies, strict=True):
        waves = q[:, None] + w.count * torch.arange(w.stride)
        places = torch.arange(w.taps) * w.dilation - w.before
        # reduced before it is divided, so that a large torus has phases as exact as a small one
        turns = torch.remainder(waves[..., None] * places, w.size) / w.size
        phases.append(torch.polar(torch.ones_like(turns), 2 * math.pi * turns).to(device))
        phases[-1] /= math.sqrt(w.stride)
    each = (
        a
        * b
        * math.prod(
            len(q) * w.stride for q, w in zip(frequencies[1:], found.windows[1:], strict=True)
        )
    )
    each *= found.windows[0].stride
    step = len(frequencies[0]) if at_once == math.inf else max(1, int(at_once // each))
    split = weight.reshape(found.groups, a // found.groups, b, *weight.shape[2:])
    for part in torch.split(phases[0], step):
        check_time()
        block = split.to(torch.complex128)
        for phase in (part, *phases[1:]):  # taps of the next dimension go, its waves come last
            block = torch.tensordot(block, phase, dims=([3], [2]))
        dims = len(phases)
        waves_at, aliases_at = [3 + 2 * d for d in range(dims)], [4 + 2 * d for d in range(dims)]
        block = block.permute(0, *waves_at, 1, 2, *aliases_at)
        yield block.reshape(-1, a // found.groups, b * math.prod(w.stride for w in found.windows))


def _torus_values(found: ConvolutionMap, twists: Sequence[float]) -> Tensor:
    """All singular values of a cyclic map on a twisted torus, descending."""
    frequencies, copies = _frequencies(found, twists)
    values = []
    for blocks in _blocks(found, frequencies, _AT_ONCE):
        own = _block_values(blocks)
        times = copies.to(own.device).repeat(len(own) // len(copies))
        values.append(own.repeat_interleave(times, dim=0).flatten())
    return torch.cat(values).sort(descending=True).values


def _block_values(blocks: Tensor) -> Tensor:
    """Singular values of many matrices `[n, rows, columns]`, each accurate to `ACCURACY`."""
    rows, columns = blocks.shape[1:]
    if min(rows, columns) == 1:
        alone: Tensor = torch.linalg.vector_norm(blocks, dim=(1, 2))
        return alone[:, None]
    squares = _gram_values(blocks)
    # rounding moves a square by about n ε σ₁², and its root by half of that over σ
    trusted = max(rows, columns) * torch.finfo(torch.float64).eps / (2 * ACCURACY)
    small = squares[:, 0] < trusted**2 * squares[:, -1]
    values = squares.clamp_min(0).sqrt()
    if bool(small.any()):
        values[small] = torch.linalg.svdvals(blocks[small]).flip(1)
    return values


def _gram_values(blocks: Tensor) -> Tensor:
    """Squared singular values, ascending, up to rounding relative to the largest."""
    tall = blocks.shape[1] > blocks.shape[2]
    squares: Tensor = torch.linalg.eigvalsh(blocks.mH @ blocks if tall else blocks @ blocks.mH)
    return squares


def _block_diagonal(blocks: list[Tensor]) -> Tensor:
    made: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return made


def _largest(found: ConvolutionMap, twists: Sequence[float]) -> tuple[float, tuple[float, ...]]:
    """The largest singular value of a cyclic map on a twisted torus, and its frequency."""
    frequencies, _ = _frequencies(found, twists)
    tops = []
    for blocks in _blocks(found, frequencies, _AT_ONCE):
        small = min(blocks.shape[1:])
        squares = (
            torch.linalg.vector_norm(blocks, dim=(1, 2)).square()
            if small == 1
            else _gram_values(blocks)[:, -1]
        )
        tops.append(squares.reshape(found.groups, -1).amax(0))
    top = torch.cat(tops)
    where = torch.unravel_index(top.argmax().cpu(), [len(q) for q in frequencies])
    place = tuple(float(q[i]) for q, i in zip(frequencies, where, strict=True))
    return math.sqrt(float(top.max())), place


# -- what is no torus ------------------------------------------------------------------------------


def _torus(found: ConvolutionMap) -> ConvolutionMap:
    """A larger torus of which the map is a part, once its padding is not counted."""
    return replace(found, windows=tuple(_torus_windows(w) for w in found.windows))


def _torus_windows(w: Windows) -> Windows:
    if w.cyclic:
        return w
    if w.zero_outside:
        # places outside of the image may coincide: they are all 0
        least = max(w.size + w.before, w.end, w.count * w.stride)
    else:  # the padded image is the image
        least = max(w.end + w.before, w.count * w.stride)
    size = w.stride * math.ceil(least / w.stride)
    return replace(w, size=size, count=size // w.stride, padding="circular")


def _twists(found: ConvolutionMap, twist: float) -> tuple[float, ...]:
    """The same twist in every dimension that is no torus already."""
    return tuple(0.0 if w.cyclic else twist for w in found.windows)


def _work_on(torus: ConvolutionMap) -> float:
    """Multiplications that the largest singular values of a torus take, with every twist."""
    a, b = torus.weight.shape[0] // torus.groups, torus.weight.shape[1]
    columns = b * math.prod(w.stride for w in torus.windows)
    small, large = sorted((a, columns))
    blocks = torus.groups * math.prod(w.count for w in torus.windows) / 2
    # complex numbers; reducing a matrix to a tridiagonal one is limited by memory
    return len(TWISTS) * blocks * 4 * small**2 * (large + 4 * small)


def _work_of_products(found: ConvolutionMap) -> float:
    """Multiplications that a bound from products takes."""
    return 2 * PRODUCTS * found.weight.numel() * math.prod(w.count for w in found.windows)


def _padding_norm(found: ConvolutionMap) -> float:
    r"""$\|P\|_2$ of the padding: the root of how often a place is repeated; 1 for zeros."""
    norm = 1.0
    for w in found.windows:
        if not (w.zero_outside or w.cyclic):
            line = replace(w, count=w.end + w.before, taps=1, stride=1, dilation=1)
            norm *= math.sqrt(int(line.places().flatten().bincount().max()))
    return norm


def _dense_norm(found: ConvolutionMap) -> float | None:
    """The norm from the matrix, where that is small; one matrix per group of channels."""
    rows, columns = (n // found.groups for n in found.shape)
    if min(rows, columns) > DENSE or rows * columns > DENSE_ENTRIES:
        return None
    parts = found.weight.reshape(found.groups, -1, *found.weight.shape[1:])
    return max(
        float(
            torch.linalg.matrix_norm(
                matrix_of_map(replace(found, weight=w, groups=1)).to_dense(), 2
            )
        )
        for w in parts
    )


def _lower_bound(
    found: ConvolutionMap,
    torus: ConvolutionMap,
    frequency: Sequence[float],
) -> float:
    r"""$\|Wv\|/\|v\|$ from the best wave of the torus under a sine window, by the power method."""
    (blocks,) = _blocks(
        torus, [torch.tensor([q], dtype=torch.float64) for q in frequency], math.inf
    )
    _, norms, waves = torch.linalg.svd(blocks, full_matrices=False)
    group = int(norms[:, 0].argmax())
    b = found.weight.shape[1]
    strides = [w.stride for w in torus.windows]
    # of the group's b channels, in the aliases of this frequency
    wave = waves[group, 0].conj().reshape(b, *strides)
    for w, q in zip(torus.windows, frequency, strict=True):
        inside = next(v for v, u in zip(found.windows, torus.windows, strict=True) if u is w)
        places = torch.arange(inside.size, dtype=torch.float64, device=wave.device)
        aliases = q + w.count * torch.arange(w.stride, device=wave.device)
        turns = torch.remainder(aliases[:, None] * places, w.size) / w.size
        window = torch.sin(math.pi * (places + 1) / (inside.size + 1))
        along = torch.polar(torch.ones_like(turns), 2 * math.pi * turns) * window
        wave = torch.tensordot(wave, along, dims=([1], [0]))
    real = max(wave.real, wave.imag, key=lambda part: float(part.norm()))
    image = torch.zeros(found.image_shape, dtype=torch.float64, device=wave.device)
    image[group * b : (group + 1) * b] = real
    operator = operator_of_map(found)
    forward = operator.adjoint if found.transposed else operator
    backward = forward.adjoint
    v = image.flatten() / image.norm()
    best = 0.0
    for _ in range(_STEPS):
        check_time()
        u = apply(forward, v[:, None])[:, 0]
        norm = float(u.norm())
        if norm <= best * (1 + _GAIN):
            best = max(best, norm)
            break
        best = norm
        v = apply(backward, u[:, None])[:, 0]
        v = v / v.norm()
    return best
