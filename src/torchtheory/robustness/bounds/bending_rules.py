"""Activations and maxima."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.core.errors import UnsupportedModel
from torchtheory.robustness.bounds.affine_rules import each
from torchtheory.robustness.bounds.graph import Bend, Largest, Maximum
from torchtheory.robustness.bounds.relaxations import (
    Activation,
    Clamped,
    Kinked,
    Sigmoidal,
    Smooth,
    Softplus,
)
from torchtheory.robustness.bounds.vertices import vertex
from torchtheory.robustness.lipschitz.affine_operations import function_of
from torchtheory.robustness.lipschitz.watched_pass import Pass, Signal


def bend(watch: Pass, x: Any, activation: Activation) -> Any:
    if not isinstance(x, Signal):
        raise watch.refuse(
            "the network uses an activation with parameters that depend on its input"
        )
    return vertex(watch, Bend(activation), (x,), activation(x.value))


def clamp(watch: Pass, x: Any, min: Any = None, max: Any = None, **_: Any) -> Any:
    limits = [None if v is None else torch.as_tensor(v, dtype=torch.float64) for v in (min, max)]
    if any(v is not None and v.numel() != 1 for v in limits) or not isinstance(x, Signal):
        raise watch.refuse("the network clamps to limits that are not two numbers")
    x = cast(Any, x)
    low, high = (None if v is None else float(v) for v in limits)
    if low is not None and high is not None:
        return bend(watch, x, Clamped(low, high))
    if low is not None:
        return bend(watch, x - low, Kinked(0.0, 1.0)) + low
    if high is not None:
        return high - bend(watch, high - x, Kinked(0.0, 1.0))
    return x


def maximum(watch: Pass, a: Any, b: Any) -> Any:
    r"""$\max(a,b)=a+\max(b-a,0)$."""
    if not isinstance(a, Signal):
        a, b = b, a
    if not isinstance(b, Signal):
        return b + bend(watch, a - b, Kinked(0.0, 1.0))
    shape = torch.broadcast_shapes(a.shape, b.shape)  # type: ignore[no-untyped-call]
    a, b = (s if s.shape == shape else s.expand(shape) for s in (a, b))
    rise = bend(watch, b - a, Kinked(0.0, 1.0))
    return vertex(watch, Maximum(), (a, rise, b), torch.maximum(a.value, b.value))


def minimum(watch: Pass, a: Any, b: Any) -> Any:
    return -maximum(watch, -a, -b)


def prelu(watch: Pass, x: Any, weight: Any) -> Any:
    slopes = weight.detach()
    if slopes.numel() > 1:
        slopes = slopes.reshape(-1, *[1] * (x.ndim - 2))
    return bend(watch, x, Kinked(slopes.reshape(()) if slopes.numel() == 1 else slopes, 1.0))


def log_sigmoid(watch: Pass, x: Any, **_: Any) -> Any:
    return -bend(watch, -x, Softplus(threshold=40.0))  # beyond which nothing is left of it


def hard_sigmoid(watch: Pass, x: Any, **_: Any) -> Any:
    return bend(watch, x / 6 + 0.5, Clamped(0.0, 1.0))


def power(watch: Pass, x: Any, exponent: Any, **_: Any) -> Any:
    if isinstance(x, Signal) and exponent == 2:
        return bend(watch, x, Smooth(torch.square, 2.0, lowest=0.0))
    if isinstance(x, Signal) and exponent == 1:
        return x
    raise watch.refuse(f"the network uses a power of {exponent}, of which no bound is known here")


def _gelu(approximate: str = "none") -> Activation:
    lowest = -0.7517915246935645 if approximate == "none" else -0.7524614220710162
    return Smooth(lambda x: F.gelu(x, approximate=approximate), 0.8, lowest=lowest)


def _elu(alpha: float = 1.0, *_: Any, **__: Any) -> Activation:
    if alpha != 1:
        raise UnsupportedModel(f"the network uses elu with alpha {alpha}, not 1: no bound is known")
    return Smooth(F.elu, 1.0, increasing=True)


#: Activations by the name of the function that computes them, and its arguments after the first.
ACTIVATIONS: dict[str, Callable[..., Activation]] = {
    "relu": lambda *_, **__: Kinked(0.0, 1.0),
    "leaky_relu": lambda negative_slope=0.01, *_, **__: Kinked(negative_slope, 1.0),
    "abs": lambda: Kinked(-1.0, 1.0),
    "absolute": lambda: Kinked(-1.0, 1.0),
    "relu6": lambda *_, **__: Clamped(0.0, 6.0),
    "hardtanh": lambda min_val=-1.0, max_val=1.0, *_, **__: Clamped(min_val, max_val),
    "tanh": lambda: Sigmoidal(),
    "sigmoid": lambda: Sigmoidal(0.5, 0.5, 0.5),
    "softplus": lambda beta=1.0, threshold=20.0: Softplus(beta, threshold),
    "gelu": _gelu,
    "silu": lambda *_, **__: Smooth(F.silu, 0.5, lowest=-1.2784645427610738),
    "mish": lambda *_, **__: Smooth(F.mish, 0.65, lowest=-1.1924312145154952),
    "elu": _elu,
    "softsign": lambda: Smooth(F.softsign, 2.0, increasing=True),
    "atan": lambda: Smooth(torch.atan, 0.65, increasing=True),
    "arctan": lambda: Smooth(torch.atan, 0.65, increasing=True),
    "erf": lambda: Smooth(torch.erf, 0.97, increasing=True),
    "sin": lambda: Smooth(torch.sin, 1.0),
    "cos": lambda: Smooth(torch.cos, 1.0),
    "square": lambda: Smooth(torch.square, 2.0, lowest=0.0),
}


def max_pool(dimensions: int) -> Callable[..., Any]:
    def rule(
        watch: Pass, x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0,
        dilation: Any = 1, ceil_mode: bool = False, return_indices: bool = False,
    ) -> Any:  # fmt: skip
        stride = kernel_size if stride in (None, [], ()) else stride
        kernel, step, around, holes = (
            each(v, dimensions) for v in (kernel_size, stride, padding, dilation)
        )
        pool = function_of(f"max_pool{dimensions}d")
        value = pool(x.value, kernel, step, around, holes, ceil_mode)
        sizes = tuple(x.shape[-dimensions:])
        numbers = torch.arange(math.prod(sizes), dtype=torch.float64, device=x.device)
        spread = numbers.reshape(1, 1, *sizes)
        pads: list[int] = []
        for n, m, k, s, p, h in zip(
            sizes, value.shape[-dimensions:], kernel, step, around, holes, strict=True
        ):
            right = max(p, (m - 1) * s + h * (k - 1) + 1 - n - p)
            pads = [p, right, *pads]
        spread = F.pad(spread, pads, value=-1.0)[0, 0]
        for d, (m, k, s, h) in enumerate(
            zip(value.shape[-dimensions:], kernel, step, holes, strict=True)
        ):
            spread = spread.unfold(d, h * (k - 1) + 1, s).narrow(d, 0, m)[..., ::h]
        windows = spread.reshape(math.prod(value.shape[-dimensions:]), -1).long()
        return _largest(watch, x, windows, value)

    return rule


def adaptive_max_pool(dimensions: int) -> Callable[..., Any]:
    def rule(watch: Pass, x: Any, output_size: Any, return_indices: bool = False) -> Any:
        sizes = x.shape[-dimensions:]
        given = [output_size] * dimensions if isinstance(output_size, int) else list(output_size)
        wanted = [n if m is None else m for n, m in zip(sizes, given, strict=True)]
        if any(n % m for n, m in zip(sizes, wanted, strict=True)):
            raise watch.refuse("the network pools to a size that does not divide its input's")
        kernel = [n // m for n, m in zip(sizes, wanted, strict=True)]
        return max_pool(dimensions)(watch, x, kernel)

    return rule


def _largest(watch: Pass, x: Signal, windows: Tensor, value: Tensor) -> Signal:
    shape = tuple(value.shape[1:])
    channels = math.prod(shape) // len(windows)
    operation = Largest(channels, windows, tuple(x.shape[1:]), shape)
    return vertex(watch, operation, (x,), value)


def extreme(watch: Pass, x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    if isinstance(dim, Signal):
        return maximum(watch, x, dim)
    dims = [] if dim is None else [d % x.ndim for d in ((dim,) if isinstance(dim, int) else dim)]
    if not dims or 0 in dims:
        raise watch.refuse("the network takes a maximum over the samples of a batch")
    rest = [d for d in range(x.ndim) if d not in dims]
    moved = x.permute(*rest, *dims)
    count = math.prod(x.shape[d] for d in dims)
    value = x.value.amax(dims, keepdim=keepdim)
    return _largest(watch, moved, torch.arange(count, device=x.device)[None], value)


class _Maxima:
    """What `x.max(dim)` returns; where the maxima are depends on the input, and is not told."""

    def __init__(self, values: Signal) -> None:
        self.values = values

    def __getitem__(self, index: int) -> Any:
        return (self.values, None)[index]

    def __iter__(self) -> Iterator[Any]:
        return iter((self.values, None))


def max_of(watch: Pass, x: Any, dim: Any = None, keepdim: bool = False, **options: Any) -> Any:
    made = extreme(watch, x, dim, keepdim, **options)
    return made if isinstance(dim, Signal) else _Maxima(made)
