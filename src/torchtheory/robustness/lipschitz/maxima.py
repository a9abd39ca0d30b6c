"""Maxima over windows, dimensions and pairs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchtheory.robustness.lipschitz.affine_operations import broadcast, joined, value_of
from torchtheory.robustness.lipschitz.entrywise_operations import pointwise
from torchtheory.robustness.lipschitz.watched_pass import Extent, Pass, Signal


def windows_of_an_entry(kernel: int, stride: int, dilation: int = 1) -> int:
    """In how many windows of a pooling one entry can be, along one dimension.

    Taps at distance `dilation` meet an entry in steps of `stride / gcd(stride, dilation)`.

    >>> windows_of_an_entry(2, 2), windows_of_an_entry(3, 2), windows_of_an_entry(3, 1)
    (1, 2, 3)
    """
    return math.ceil(kernel / (stride // math.gcd(stride, dilation)))


def adaptive_windows(size: int, outputs: int) -> int:
    r"""The same for a pooling of `size` entries to a given number of outputs.

    Window $i$ goes from $\lfloor i\,n/m\rfloor$ to just before $\lceil (i+1)\,n/m\rceil$ for
    $n$ entries and $m$ outputs.

    >>> adaptive_windows(8, 4), adaptive_windows(7, 4)
    (1, 2)
    """
    covered = [0] * size
    for k in range(outputs):
        for place in range(k * size // outputs, -((-(k + 1) * size) // outputs)):
            covered[place] += 1
    return max(covered)


def _each(value: Any, dimensions: int) -> tuple[int, ...]:
    return (value,) * dimensions if isinstance(value, int) else tuple(value)


def max_pool(dimensions: int) -> Callable[..., Any]:
    name = f"max_pool{dimensions}d"

    def rule(
        watch: Pass,
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        stride = kernel_size if stride in (None, [], ()) else stride
        sizes = [_each(v, dimensions) for v in (kernel_size, stride, dilation)]
        windows = math.prod(map(windows_of_an_entry, *sizes))
        options = {"stride": stride, "padding": padding, "dilation": dilation}
        value = value_of(watch, name, (x, kernel_size), {**options, "ceil_mode": ceil_mode})
        return _largest_of(watch, x, value, windows)

    return rule


def adaptive_max_pool(dimensions: int) -> Callable[..., Any]:
    def rule(watch: Pass, x: Any, output_size: Any, return_indices: bool = False) -> Any:
        sizes = x.shape[-dimensions:]
        outputs = [
            size if given is None else given
            for size, given in zip(sizes, _each(output_size, dimensions), strict=True)
        ]
        windows = math.prod(map(adaptive_windows, sizes, outputs))
        value = value_of(watch, f"adaptive_max_pool{dimensions}d", (x, output_size), {})
        return _largest_of(watch, x, value, windows)

    return rule


def _largest_of(watch: Pass, x: Signal, value: Tensor, windows: int) -> Signal:
    r"""Maxima over windows of which every entry is in at most $m$: $\sqrt m$-Lipschitz.

    $|\max_{j\in w}x_j-\max_{j\in w}y_j|\le\max_{j\in w}|x_j-y_j|$, whose square is at most
    $\sum_{j\in w}|x_j-y_j|^2$, and the sum over windows has every entry at most $m$ times.
    It is attained where one entry wins in all its windows.
    """
    root = math.sqrt(windows)

    def rule(one: Extent) -> Extent:
        return Extent(root * one.lipschitz, root * one.distance, one.largest)

    return watch.node(value, (x,), rule)


class Largest(NamedTuple):
    """What `x.max(dim)` returns; where the maxima are depends on the input, and is not told."""

    values: Signal
    indices: None = None


def extreme(name: str) -> Callable[..., Any]:
    def rule(watch: Pass, x: Any, dim: Any = None, *rest: Any, **options: Any) -> Any:
        if isinstance(dim, Signal):
            return either(watch, "maximum" if "max" in name else "minimum", x, dim)
        given = () if dim is None else (dim,)
        value = value_of(watch, name, (x, *given, *rest), options)
        if isinstance(value, Tensor):
            if dim is None:
                raise watch.refuse(f"the network takes {name} over the samples of a batch")
            return _largest_of(watch, x, value, 1)
        return Largest(_largest_of(watch, x, value[0], 1))

    return rule


def either(watch: Pass, name: str, a: Any, b: Any) -> Any:
    """The larger, or the smaller, of two values: entries of either, side by side."""
    value = value_of(watch, name, (a, b), {})
    if not (isinstance(a, Signal) and isinstance(b, Signal)):
        one = a if isinstance(a, Signal) else b
        if one.shape != value.shape:
            one = one.expand(value.shape)
        return _largest_of(watch, one, value, 1)
    return watch.node(value, broadcast(a, b), joined)


def clamp(watch: Pass, x: Any, *limits: Any, **options: Any) -> Any:
    return pointwise(watch, x, 1.0, "clamp", (x, *limits), options)


def vector_norm(
    watch: Pass, x: Any, p: Any = 2, dim: Any = None, *rest: Any, **options: Any
) -> Any:
    if p not in (2, 2.0, "fro") or dim is None:
        return NotImplemented
    value = torch.linalg.vector_norm(x.value, 2, dim, *rest, **options)
    return _largest_of(watch, x, value, 1)
