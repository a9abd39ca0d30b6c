"""Maxima over windows, dimensions and pairs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchtheory.robustness.lipschitz.affine_operations import (
    broadcast,
    joined,
    value_of,
    widened,
)
from torchtheory.robustness.lipschitz.watched_pass import Extent, Pass, Signal, Untold


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
    def rule(
        watch: Pass, input: Any, kernel_size: Any, stride: Any = None, dilation: Any = 1, **_: Any
    ) -> Any:
        stride = kernel_size if stride in (None, [], ()) else stride
        sizes = [_each(v, dimensions) for v in (kernel_size, stride, dilation)]
        return _pooled(watch, input, math.prod(map(windows_of_an_entry, *sizes)))

    return rule


def adaptive_max_pool(dimensions: int) -> Callable[..., Any]:
    def rule(watch: Pass, input: Any, output_size: Any, **_: Any) -> Any:
        sizes = input.shape[-dimensions:]
        outputs = [
            size if given is None else given
            for size, given in zip(sizes, _each(output_size, dimensions), strict=True)
        ]
        return _pooled(watch, input, math.prod(map(adaptive_windows, sizes, outputs)))

    return rule


def _pooled(watch: Pass, x: Signal, windows: int) -> Any:
    """Maxima over windows; where they are depends on the input, and is not told."""
    value = value_of(watch)
    if isinstance(value, Tensor):
        return _largest_of(watch, x, value, windows)
    return _largest_of(watch, x, value[0], windows), Untold("where the maxima are")


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


def extreme(name: str) -> Callable[..., Any]:
    def rule(watch: Pass, input: Any, dim: Any = None, other: Any = None, **_: Any) -> Any:
        if other is not None:
            return either(watch, input, other)
        if dim is None or dim in ([], ()):
            raise watch.refuse(f"the network takes {name} over the samples of a batch")
        return _pooled(watch, input, 1)

    return rule


def either(watch: Pass, input: Any, other: Any, **_: Any) -> Any:
    """The larger, or the smaller, of two values: entries of either, side by side."""
    a, b, value = input, other, value_of(watch)
    if not (isinstance(a, Signal) and isinstance(b, Signal)):
        one = a if isinstance(a, Signal) else b
        return _largest_of(watch, widened(watch, one, value.shape), value, 1)
    return watch.node(value, broadcast(watch, a, b), joined)


def vector_norm(watch: Pass, input: Any, dim: Any = None, **given: Any) -> Any:
    if given.get("p", given.get("ord", 2)) not in (2, 2.0, "fro", None) or dim is None:
        return NotImplemented
    return _largest_of(watch, input, value_of(watch), 1)
