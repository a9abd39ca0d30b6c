r"""Convolution and cross-correlation of finite signals, on the line, in the plane, on a circle.

$$
(f*h)[u]=\sum_th[t]\,f[u-t],\qquad (h\star f)[u]=\sum_th[t]\,f[u+t]=(\bar h*f)[u],\quad
\bar h[t]=h[-t].
$$

One function computes either by the sum itself, by the fast Fourier transform, or as the product
with a Toeplitz matrix. What the layers of `torch.nn` call a convolution is the second of the two.
Sources: Deep Learning (notes), section 4.1; Foundations of Deep Learning, sections 10.1.1 to
10.1.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from scipy.fft import next_fast_len
from torch import Tensor

from torchtheory.convolution.layer_matrices import ConvolutionMap, Windows, matrix_of_map
from torchtheory.core.checks import all_finite, described, one_of, whole_number, whole_numbers
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch

Mode = Literal["full", "same", "valid", "circular"]
Method = Literal["auto", "direct", "fft", "toeplitz"]

MODES: tuple[Mode, ...] = ("full", "same", "valid", "circular")
METHODS: tuple[Method, ...] = ("auto", "direct", "fft", "toeplitz")

#: Outputs per block of the direct sum: enough rows for a fast product, few enough to waste little.
_SMALLEST_BLOCK, _LARGEST_BLOCK = 16, 64

#: torch's layers write down all windows (places times taps): faster for few, slower for many.
_WINDOWS_ON_LINE, _WINDOWS_IN_PLANE = 2**17, 2**20

#: Pieces shorter than this are transformed no faster.
_SHORTEST_TRANSFORM = 128

#: Microseconds per call, and nanoseconds per window, multiplication, place and N log2 N of a
#: transform, as `benchmarks/convolutional.py --only fft` measured them. Only ratios matter, and
#: they move little between processors and precisions.
_CALL, _WINDOW_NS = 12.0, 0.5
_BLOCK_CALL, _BLOCK_PLACE_NS, _BLOCK_TAP_NS = 35.0, 1.7, 0.05
_TRANSFORM_CALL, _TRANSFORM_NS, _TRANSFORM_PLANE_NS = 40.0, 0.45, 0.9


def convolve(f: Tensor, h: Tensor, *, mode: Mode = "full", method: Method = "auto") -> Tensor:
    r"""The convolution $(f*h)[u]=\sum_th[t]\,f[u-t]$ over as many axes as the kernel has.

    Args:
        f: the signal `[..., n]` for a kernel `[m]`, or `[..., n, n']` for a kernel `[m, m']`; the
            axes in front are a batch.
        h: the kernel, with one axis or two.
        mode: which places are returned, per axis. `full`: the n + m - 1 where the two overlap;
            `same`: n in the middle of those; `valid`: the n - m + 1 where the kernel lies inside
            the signal; `circular`: n on a circle, $f[u-t\bmod n]$ (a kernel longer than the
            circle is wound round it). `index_range` says which places these are.
        method: `direct` is the sum; `fft` multiplies transforms, of zero-padded pieces, so that
            nothing is wound round; `toeplitz` multiplies by the sparse matrix (written down by
            `layer_matrices.toeplitz_matrix`); `auto` is `direct`
            or `fft`, whichever a count of operations says is faster. The entries of `direct` err
            relatively to $\sum_t|h[t]f[u-t]|$; those of `fft` all by some
            $\varepsilon\log N\,\|f\|_2\|h\|_2$, also where the result is small.

    Returns:
        `[..., places]`, in the dtype and on the device of the two, differentiable in both. Time
        $O(nm)$ for `direct`, in blocks, with memory $O(n)$; $O(n\log m)$ for `fft` on the line
        and $O(N\log N)$ with $N=(n+m)(n'+m')$ in the plane; `toeplitz` keeps all $nm$ entries.

    Sources: Deep Learning (notes), Definition 4.7; Foundations of Deep Learning, sections 10.1.1
    to 10.1.3.

    >>> f, h = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 1.0, 0.5])
    >>> convolve(f, h).tolist(), list(index_range(3, 3))
    ([0.0, 1.0, 2.5, 4.0, 1.5], [0, 1, 2, 3, 4])
    >>> convolve(f, h, mode="circular").tolist()
    [4.0, 2.5, 2.5]
    """
    one_of(mode, "mode", MODES)
    one_of(method, "method", METHODS)
    f, h = _checked_pair(f, h)
    sizes, taps = f.shape[-h.ndim :], h.shape
    _refuse_long_kernel(sizes, taps, mode)
    if mode == "circular":
        h = wound(h, sizes)
    if method == "auto":
        signals = math.prod(f.shape[: -h.ndim])
        method = fastest_method(sizes, h.shape, mode=mode, signals=signals)
    if method == "toeplitz":
        matrix = _toeplitz(h, sizes, mode)
        flat = f.reshape(-1, math.prod(sizes))
        product: Tensor = torch.sparse.mm(matrix, flat.T).T
        return product.reshape(*f.shape[: -h.ndim], *_places(sizes, h.shape, mode))
    extended = _extended(f, h.shape, mode)
    if method == "direct":
        return _valid_sum(extended, h)
    return _valid_by_transform(extended, h)


def cross_correlate(
    h: Tensor, f: Tensor, *, mode: Mode = "full", method: Method = "auto"
) -> Tensor:
    r"""The cross-correlation $(h\star f)[u]=\sum_th[t]\,f[u+t]$, the convolution with $h[-t]$.

    The kernel comes first, as the operation is not commutative:
    $(h\star f)[u]=(f\star h)[-u]$. In mode `valid` it is what `torch.nn.functional.conv1d` and
    `conv2d` compute.

    Args:
        h: the kernel, `[m]` or `[m, m']`.
        f: the signal, `[..., n]` or `[..., n, n']`.
        mode: as for `convolve`. The first place of `full` and `valid` is not 0 in general: see
            `index_range`. In mode `circular` place 0 is the first.
        method: as for `convolve`.

    Sources: Deep Learning (notes), Definition 4.8; Foundations of Deep Learning, section 10.1.1.

    >>> h, f = torch.tensor([1.0, 10.0]), torch.tensor([1.0, 2.0, 3.0])
    >>> cross_correlate(h, f, mode="valid").tolist()
    [21.0, 32.0]
    >>> cross_correlate(h, f, mode="circular").tolist()
    [21.0, 32.0, 13.0]
    """
    made = convolve(f, flip(h), mode=mode, method=method)
    if mode != "circular":
        return made
    # on a circle place 0 comes first, and the taps of h[-t] begin at 1 - m
    return made.roll([1 - m for m in h.shape], tuple(range(-h.ndim, 0)))


def flip(h: Tensor) -> Tensor:
    r"""The kernel $\bar h[t]=h[-t]$, in the order of its places; one or two axes.

    If the first of the m taps of $h$ is at place s, that of $\bar h$ is at 1 - m - s.

    >>> flip(torch.tensor([1.0, 2.0, 3.0])).tolist()
    [3.0, 2.0, 1.0]
    """
    return _turned(_kernel(h))


def index_range(
    points: int,
    taps: int,
    mode: Mode = "full",
    *,
    signal_start: int = 0,
    kernel_start: int = 0,
    correlation: bool = False,
) -> range:
    r"""The places u of $(f*h)[u]$ that `convolve` returns, along one axis.

    Args:
        points: n, the length of the signal.
        taps: m, the length of the kernel.
        mode: as for `convolve`.
        signal_start, kernel_start: the places of the first entries of f and h.
        correlation: the places u of $(h\star f)[u]$ instead, as `cross_correlate` returns them.

    >>> index_range(4, 3, "valid"), index_range(4, 3, "valid", correlation=True)
    (range(2, 4), range(0, 2))
    >>> index_range(10, 5, "same", kernel_start=-2)
    range(0, 10)
    """
    n = whole_number(points, "points", least=1)
    m = whole_number(taps, "taps", least=1)
    one_of(mode, "mode", MODES)
    for start, name in ((signal_start, "signal_start"), (kernel_start, "kernel_start")):
        if isinstance(start, bool) or not isinstance(start, int):
            raise InvalidType(f"{name} must be a whole number, not {described(start)}")
    _refuse_long_kernel((n,), (m,), mode)
    if mode == "circular":
        # of h shifted by s the result is the same, turned by s: the caller's first place counts
        first = signal_start + (-kernel_start if correlation else kernel_start)
        return range(first, first + n)
    first = signal_start + (1 - m - kernel_start if correlation else kernel_start)
    (count,) = _places((n,), (m,), mode)
    skipped = {"full": 0, "same": (m - 1) // 2, "valid": m - 1}[mode]
    return range(first + skipped, first + skipped + count)


def binomial_kernel(
    taps: int = 5, *, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu"
) -> Tensor:
    r"""The smoothing kernel $\binom{m-1}k2^{1-m}$: (1, 4, 6, 4, 1)/16 for five taps.

    It is $(\tfrac12,\tfrac12)$ convolved with itself m - 1 times, has sum 1 and variance
    (m - 1)/4, and tends to a Gaussian of that variance.

    Args:
        taps: m; the kernel of an odd number lies around place 0, from (1 - m)/2 on.
        dtype, device: of the result.

    Source: Foundations of Deep Learning, section 10.1.1.

    >>> (16 * binomial_kernel()).tolist()
    [1.0, 4.0, 6.0, 4.0, 1.0]
    """
    m = whole_number(taps, "taps", least=1, most=1000)
    # whole numbers divided once: rounded correctly, whatever their size
    weights = [math.comb(m - 1, k) / 2 ** (m - 1) for k in range(m)]
    return torch.tensor(weights, dtype=dtype, device=device)


def fastest_method(
    sizes: Sequence[int], taps: Sequence[int], *, mode: Mode = "full", signals: int = 1
) -> Literal["direct", "fft"]:
    """What `method="auto"` chooses, from counts of operations and what one of each costs.

    Args:
        sizes: of the signal, one number per axis of the kernel.
        taps: of the kernel.
        mode: as for `convolve`.
        signals: how many of them there are.

    >>> fastest_method([1000], [5]), fastest_method([100_000], [1000])
    ('direct', 'fft')
    """
    one_of(mode, "mode", MODES)
    if len(sizes) != len(taps) or len(taps) not in (1, 2):
        raise ShapeMismatch(
            f"one size or two of the signal and as many of the kernel, not {list(sizes)} and "
            f"{list(taps)}"
        )
    if min(*sizes, *taps) < 1:
        raise EmptyData(f"sizes are from 1 on, not {list(sizes)} and {list(taps)}")
    _refuse_long_kernel(sizes, taps, mode)
    places = _places(sizes, taps, mode)
    windows = math.prod(places) * math.prod(taps)
    direct = _CALL + signals * windows * _WINDOW_NS / 1000
    if len(taps) == 1:
        if windows > _WINDOWS_ON_LINE:
            each = _BLOCK_PLACE_NS + _BLOCK_TAP_NS * (_block(taps[0]) + taps[0] - 1)
            direct = _BLOCK_CALL + signals * places[0] * each / 1000
        n = _transform_length(places[0], taps[0])
        pieces = 1 + signals * math.ceil(places[0] / (n - taps[0] + 1))
        work = pieces * n * math.log2(n) * _TRANSFORM_NS
    else:
        n = math.prod(next_fast_len(p + m - 1, True) for p, m in zip(places, taps, strict=True))
        work = (1 + signals) / 2 * n * math.log2(n + 1) * _TRANSFORM_PLANE_NS
    return "direct" if direct <= _TRANSFORM_CALL + work / 1000 else "fft"


def wound(h: Tensor, sizes: Sequence[int]) -> Tensor:
    r"""A kernel wound round circles of the given sizes: $\sum_kh[t+kn]$, axis by axis.

    A kernel that fits is returned as it is.

    >>> wound(torch.tensor([1.0, 2.0, 4.0]), [2]).tolist()
    [5.0, 2.0]
    """
    sizes = whole_numbers(sizes, "sizes of the circles", least=1)
    if not isinstance(h, Tensor) or h.ndim < len(sizes):
        raise InvalidInput(
            f"h must be a tensor of {len(sizes)} axes or more, one for each circle, not "
            f"{described(h)}"
        )
    for axis, n in enumerate(sizes):
        m = h.shape[axis]
        if m > n:
            pad = [0, 0] * (h.ndim - 1 - axis) + [0, -m % n]
            h = torch.stack(torch.split(F.pad(h, pad), n, axis)).sum(0)
    return h


# -- the sum, and its transform --------------------------------------------------------------------


def _extended(f: Tensor, taps: Sequence[int], mode: Mode) -> Tensor:
    """The signal with what the mode sees beyond its ends, so that the rest is mode `valid`."""
    if mode == "valid":
        return f
    axes = range(-len(taps), 0)
    if mode == "circular":
        for axis, m in zip(axes, taps, strict=True):
            f = torch.cat([f.narrow(axis, f.shape[axis] - m + 1, m - 1), f], axis)
        return f
    pad: list[int] = []
    for m in reversed(taps):
        right = m - 1 if mode == "full" else (m - 1) // 2
        pad += [m - 1 if mode == "full" else m - 1 - right, right]
    return F.pad(f, pad)


def _valid_sum(f: Tensor, h: Tensor) -> Tensor:
    lead, places = f.shape[: -h.ndim], _places(f.shape[-h.ndim :], h.shape, "valid")
    if h.ndim == 1 and places[0] * len(h) > _WINDOWS_ON_LINE:
        return _valid_line(f, h)
    batch, kernel = f.reshape(-1, 1, *f.shape[-h.ndim :]), _turned(h)[None, None]
    if h.ndim == 1:
        return F.conv1d(batch, kernel).reshape(*lead, *places)
    rows = max(1, _WINDOWS_IN_PLANE // (places[1] * h.numel()))
    bands = [
        F.conv2d(batch.narrow(2, first, min(rows, places[0] - first) + len(h) - 1), kernel)
        for first in range(0, places[0], rows)
    ]
    return torch.cat(bands, 2).reshape(*lead, *places)


def _valid_line(f: Tensor, h: Tensor) -> Tensor:
    """The direct sum on the last axis, in blocks: one small Toeplitz matrix times all of them."""
    m, places = len(h), f.shape[-1] - len(h) + 1
    block = _block(m)
    width, blocks = block + m - 1, -(-places // block)
    pieces = F.pad(f, (0, blocks * block - places)).unfold(-1, width, block)
    # each row is the one before, moved by one place: so many taps, so many zeros, again and again
    row = F.pad(h.flip(0), (0, block))
    matrix = row.repeat(block)[: block * width].reshape(block, width)
    return (pieces @ matrix.T).flatten(-2)[..., :places]


def _valid_by_transform(f: Tensor, h: Tensor) -> Tensor:
    axes = tuple(range(-h.ndim, 0))
    if h.ndim == 1:  # overlapping pieces: what a piece winds round is cut off
        m, places = len(h), f.shape[-1] - len(h) + 1
        n = _transform_length(places, m)
        step = n - m + 1
        blocks = -(-places // step)
        pieces = F.pad(f, (0, blocks * step - places)).unfold(-1, n, step)
        spectrum = torch.fft.rfft(pieces) * torch.fft.rfft(h, n)
        back: Tensor = torch.fft.irfft(spectrum, n)
        return back[..., m - 1 :].flatten(-2)[..., :places]
    lengths = [next_fast_len(s, True) for s in f.shape[-2:]]
    spectrum = torch.fft.rfftn(f, lengths, dim=axes) * torch.fft.rfftn(h, lengths, dim=axes)
    whole: Tensor = torch.fft.irfftn(spectrum, lengths, dim=axes)
    for axis, m in zip(axes, h.shape, strict=True):
        whole = whole.narrow(axis, m - 1, f.shape[axis] - m + 1)
    return whole


def _turned(h: Tensor) -> Tensor:
    return h.flip(tuple(range(h.ndim)))


def _block(taps: int) -> int:
    return min(max(taps, _SMALLEST_BLOCK), _LARGEST_BLOCK)


def _transform_length(places: int, taps: int) -> int:
    """The power of 2 with which pieces of that length cost least, the kernel's own among them."""
    shortest = max(_SHORTEST_TRANSFORM, 2 * taps - 1).bit_length()
    longest = max(1, places + taps - 2).bit_length()
    lengths = [1 << k for k in range(min(shortest, longest), longest + 1)]

    def cost(n: int) -> float:
        return (1 + math.ceil(places / (n - taps + 1))) * n * math.log2(n)

    return min(lengths, key=cost)


def _toeplitz(h: Tensor, sizes: Sequence[int], mode: Mode) -> Tensor:
    windows = []
    for n, m, count in zip(sizes, h.shape, _places(sizes, h.shape, mode), strict=True):
        before = {"full": m - 1, "same": m - 1 - (m - 1) // 2, "valid": 0, "circular": m - 1}[mode]
        padding = "circular" if mode == "circular" else "zeros"
        windows.append(Windows(n, count, m, before=before, padding=padding))
    return matrix_of_map(ConvolutionMap(_turned(h)[None, None], 1, tuple(windows)))


def _places(sizes: Sequence[int], taps: Sequence[int], mode: Mode) -> tuple[int, ...]:
    beyond = {"full": 1, "same": 0, "circular": 0, "valid": -1}[mode]
    return tuple(n + beyond * (m - 1) for n, m in zip(sizes, taps, strict=True))


# -- what is given ---------------------------------------------------------------------------------


def _checked_pair(
    f: Tensor, h: Tensor, signal: str = "f", kernel: str = "h"
) -> tuple[Tensor, Tensor]:
    h = _kernel(h, kernel)
    f = _real(f, signal)
    if f.ndim < h.ndim:
        raise ShapeMismatch(
            f"a kernel with {h.ndim} axes acts on a signal with at least as many, and {signal} has "
            f"the shape {list(f.shape)}"
        )
    if f.dtype != h.dtype or f.device != h.device:
        raise InvalidType(
            f"{signal} and {kernel} must be of one kind: {described(f)} on {f.device} and "
            f"{described(h)} on {h.device} were given"
        )
    return f, h


def _kernel(h: Tensor, name: str = "h") -> Tensor:
    h = _real(h, name)
    if h.ndim not in (1, 2):
        raise ShapeMismatch(
            f"a kernel has one axis or two, and {name} has the shape {list(h.shape)}"
        )
    return h


def _real(value: Tensor, name: str) -> Tensor:
    """As `core.checks` would check it, but kept in the graph: gradients pass through."""
    if not isinstance(value, Tensor) or value.dtype not in (torch.float32, torch.float64):
        raise InvalidType(
            f"{name} must be a tensor of float32 or float64 numbers, not {described(value)}"
        )
    if value.layout != torch.strided:
        raise InvalidType(f"{name} must be a dense tensor: call .to_dense()")
    if value.numel() == 0:
        raise EmptyData(f"{name} is empty, its shape is {list(value.shape)}")
    return all_finite(value, name)


def _refuse_long_kernel(sizes: Sequence[int], taps: Sequence[int], mode: Mode) -> None:
    if mode == "valid" and any(m > n for n, m in zip(sizes, taps, strict=True)):
        raise InvalidInput(
            f"mode 'valid' needs a kernel that fits inside the signal, and its sizes are "
            f"{list(taps)} against {list(sizes)}"
        )
