r"""The activations of torch, each with how it is enclosed by lines.

Their kinks, curvatures and places of minima are those of the table of activations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
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
from torchtheory.tracing.activations import activation_facts


def _by_facts(name: str, function: Callable[..., Tensor]) -> Callable[..., Activation]:
    """From samples of the interval, with the curvature, kinks and jumps that are known."""

    def made(**arguments: Any) -> Activation:
        facts = activation_facts(name, **arguments)
        return Smooth(
            partial(function, **arguments),
            facts.curvature,
            lowest=facts.lowest_at,
            increasing=facts.increasing,
            kinks=facts.kinks,
            jumps=facts.jumps,
        )

    return made


def _elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    low = scale * alpha * torch.expm1(input_scale * x.clamp_max(0.0))
    return torch.where(x > 0, scale * x, low)


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


#: Of the table of activations, those that are enclosed from samples.
_SAMPLED: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(F, name) for name in "gelu silu mish celu selu softsign tanhshrink".split()},
    **{name: getattr(F, name) for name in "hardsigmoid hardswish hardshrink softshrink".split()},
    **{name: getattr(torch, name) for name in "threshold atan asinh erf sin cos".split()},
    "elu": _elu,
}

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
    "sign": lambda: Smooth(torch.sign, 0.0, increasing=True, jumps=[(0.0, -1.0, 1.0)]),
    **{name: _by_facts(name, function) for name, function in _SAMPLED.items()},
    "erfc": lambda: Smooth(torch.erfc, activation_facts("erf").curvature),
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
