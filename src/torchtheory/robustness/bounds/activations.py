r"""The activations of torch, each with how it is enclosed by lines.

Constants are bounds of second derivatives between kinks, and places of minima, to all digits that
matter: the test of this module compares them with the derivatives that torch takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.robustness.bounds.relaxations import (
    Activation,
    Box,
    Clamped,
    Curved,
    Kinked,
    Reciprocal,
    Sigmoidal,
    Smooth,
    Softplus,
    largest_entries,
)

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def _gelu(approximate: str = "none") -> Activation:
    lowest = -0.7517915246935645 if approximate == "none" else -0.7524614220710162
    return Smooth(lambda x: F.gelu(x, approximate=approximate), 0.8, lowest=lowest)


def _elu(alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Activation:
    def function(x: Tensor) -> Tensor:
        low = scale * alpha * torch.expm1(input_scale * x.clamp_max(0.0))
        return torch.where(x > 0, scale * x, low)

    return Smooth(
        function,
        abs(scale * alpha) * input_scale**2,
        increasing=scale * alpha * input_scale >= 0 and scale >= 0,
        kinks=() if alpha * input_scale == 1 else (0.0,),
    )


def _celu(alpha: float = 1.0) -> Activation:
    return Smooth(lambda x: F.celu(x, alpha), 1 / abs(alpha), increasing=alpha > 0)


def _selu() -> Activation:
    steepest = _SELU_ALPHA * _SELU_SCALE
    return Smooth(F.selu, steepest, increasing=True, kinks=(0.0,))


def _threshold(threshold: float, value: float) -> Activation:
    return Smooth(
        lambda x: F.threshold(x, threshold, value),
        0.0,
        increasing=value <= threshold,
        jumps=[(threshold, value, threshold)],
    )


def _hard_shrink(lambd: float = 0.5) -> Activation:
    jumps = [(-lambd, -lambd, 0.0), (lambd, 0.0, lambd)]
    return Smooth(lambda x: F.hardshrink(x, lambd), 0.0, increasing=True, jumps=jumps)


def _soft_shrink(lambd: float = 0.5) -> Activation:
    return Smooth(lambda x: F.softshrink(x, lambd), 0.0, increasing=True, kinks=(-lambd, lambd))


def _exponential(base: float = math.e) -> Activation:
    rate = math.log(base)
    function: Any = torch.exp2 if base == 2 else torch.exp
    return Curved(function, lambda x: rate * function(x), convex=True)


def _logarithm(function: Any, base: float) -> Activation:
    rate = 1 / math.log(base)
    return Curved(function, lambda x: rate / x, convex=False, start=0.0, reaches=False)


def _root() -> Activation:
    return Curved(torch.sqrt, lambda x: 0.5 * torch.rsqrt(x), convex=False, start=0.0)


def _inverse_root() -> Activation:
    def slope(x: Tensor) -> Tensor:
        return -0.5 * torch.rsqrt(x) / x

    return Curved(torch.rsqrt, slope, convex=True, rises=False, start=0.0, reaches=False)


def power_of(exponent: float) -> Activation:
    r"""$x^p$; of a negative or fractional power only for $x>0$."""
    p = exponent
    if p == -1:
        return Reciprocal()
    if p == 0.5:
        return _root()
    if p == -0.5:
        return _inverse_root()

    def function(x: Tensor) -> Tensor:
        return torch.pow(x, p)

    def slope(x: Tensor) -> Tensor:
        return p * torch.pow(x, p - 1)

    whole = p == int(p)
    if whole and p >= 0 and p % 2 == 0:
        return Curved(function, slope, convex=True, rises=None)
    if whole and p > 0:

        def curvature(box: Box) -> Tensor:
            return p * (p - 1) * largest_entries(box) ** (p - 2)

        return Smooth(function, curvature, increasing=True)
    return Curved(function, slope, convex=p < 0 or p > 1, rises=p > 0, start=0.0, reaches=p > 0)


def _growing(box: Box) -> Tensor:
    return torch.cosh(largest_entries(box))


#: Activations by plain name; they take the arguments of torch's function after the first.
ACTIVATIONS: dict[str, Callable[..., Activation]] = {
    "relu": lambda: Kinked(0.0, 1.0),
    "leaky_relu": lambda negative_slope=0.01: Kinked(negative_slope, 1.0),
    "rrelu": lambda lower=1 / 8, upper=1 / 3, **_: Kinked((lower + upper) / 2, 1.0),
    "abs": lambda: Kinked(-1.0, 1.0),
    "relu6": lambda: Clamped(0.0, 6.0),
    "hardtanh": lambda min_val=-1.0, max_val=1.0: Clamped(min_val, max_val),
    "tanh": lambda: Sigmoidal(),
    "sigmoid": lambda: Sigmoidal(0.5, 0.5, 0.5),
    "softplus": lambda beta=1.0, threshold=20.0: Softplus(beta, threshold),
    "gelu": _gelu,
    "silu": lambda: Smooth(F.silu, 0.5, lowest=-1.2784645427610738),
    "mish": lambda: Smooth(F.mish, 0.65, lowest=-1.1924312145154952),
    "elu": _elu,
    "celu": _celu,
    "selu": _selu,
    "softsign": lambda: Smooth(F.softsign, 2.0, increasing=True),
    "tanhshrink": lambda: Smooth(F.tanhshrink, 0.77, increasing=True),
    "hardsigmoid": lambda: Smooth(F.hardsigmoid, 0.0, increasing=True, kinks=(-3.0, 3.0)),
    "hardswish": lambda: Smooth(F.hardswish, 1 / 3, lowest=-1.5, kinks=(-3.0, 3.0)),
    "hardshrink": _hard_shrink,
    "softshrink": _soft_shrink,
    "threshold": _threshold,
    "sign": lambda: Smooth(torch.sign, 0.0, increasing=True, jumps=[(0.0, -1.0, 1.0)]),
    "atan": lambda: Smooth(torch.atan, 0.65, increasing=True),
    "asinh": lambda: Smooth(torch.asinh, 0.386, increasing=True),
    "erf": lambda: Smooth(torch.erf, 0.97, increasing=True),
    "erfc": lambda: Smooth(torch.erfc, 0.97),
    "sin": lambda: Smooth(torch.sin, 1.0),
    "cos": lambda: Smooth(torch.cos, 1.0),
    "sinh": lambda: Smooth(torch.sinh, _growing, increasing=True),
    "cosh": lambda: Curved(torch.cosh, torch.sinh, convex=True, rises=None),
    "exp": _exponential,
    "exp2": lambda: _exponential(2.0),
    "expm1": lambda: Curved(torch.expm1, torch.exp, convex=True),
    "log": lambda: _logarithm(torch.log, math.e),
    "log2": lambda: _logarithm(torch.log2, 2.0),
    "log10": lambda: _logarithm(torch.log10, 10.0),
    "log1p": lambda: Curved(
        torch.log1p, lambda x: 1 / (1 + x), convex=False, start=-1.0, reaches=False
    ),
    "sqrt": _root,
    "rsqrt": _inverse_root,
    "reciprocal": Reciprocal,
    "square": lambda: Curved(torch.square, lambda x: 2 * x, convex=True, rises=None),
}
