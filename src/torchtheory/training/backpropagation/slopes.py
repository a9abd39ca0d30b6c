r"""Derivatives of operations that act on every entry by itself, as formulas.

For $h=\phi(z)$ a slope is $\phi'(z)$, written in $z$, in $h$, or in both, whichever is shorter. At
a kink it is the one-sided derivative that torch takes, so that a gradient by hand can be compared
with autograd's everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

#: What a slope is written in: the arguments of the operation by name, z and h = phi(z).
Slope = Callable[[Any, Tensor, Tensor], Tensor]


#: alpha and scale of SELU.
_SELU = (1.6732632423543772, 1.0507009873554805)


def _within(z: Tensor, low: float, high: float) -> Tensor:
    """1 inside an interval, 0 outside and at its ends."""
    return ((z > low) & (z < high)).to(z)


def _clamped(a: Any, z: Tensor, _: Tensor) -> Tensor:
    """1 inside an interval and at its ends."""
    inside = torch.ones_like(z, dtype=torch.bool)
    low, high = a.get("min"), a.get("max")
    if low is not None:
        inside = inside & (z >= low)
    if high is not None:
        inside = inside & (z <= high)
    return inside.to(z)


def _exponential(z: Tensor, alpha: float, scale: float, inner: float) -> Tensor:
    r"""Of $s z$ above 0 and $s\alpha(e^{cz}-1)$ below."""
    below = scale * alpha * inner * torch.exp(inner * z.clamp(max=0))
    return torch.where(z > 0, torch.full_like(z, scale), below)


def _gelu(a: Any, z: Tensor, _: Tensor) -> Tensor:
    if a.get("approximate", "none") == "none":
        density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
        ends: Tensor = torch.special.ndtr(z)
        return ends + z * density
    c = math.sqrt(2 / math.pi)
    t = torch.tanh(c * (z + 0.044715 * z**3))
    return (1 + t) / 2 + z * (1 - t.square()) / 2 * c * (1 + 3 * 0.044715 * z.square())


def _silu(_: Any, z: Tensor, __: Tensor) -> Tensor:
    s = torch.sigmoid(z)
    return s * (1 + z * (1 - s))


def _mish(_: Any, z: Tensor, __: Tensor) -> Tensor:
    t = torch.tanh(torch.logaddexp(z, torch.zeros_like(z)))
    return t + z * (1 - t.square()) * torch.sigmoid(z)


def _softplus(a: Any, z: Tensor, _: Tensor) -> Tensor:
    beta = a.get("beta", 1)
    slope = torch.sigmoid(beta * z)
    return torch.where(beta * z > a.get("threshold", 20), torch.ones_like(z), slope)


def _leaky(a: Any, z: Tensor, _: Tensor) -> Tensor:
    return torch.where(z > 0, torch.ones_like(z), torch.full_like(z, a["negative_slope"]))


def _random_leaky(a: Any, z: Tensor, _: Tensor) -> Tensor:
    """In evaluation mode, where the slope is the mean of its range."""
    middle = (a["lower"] + a["upper"]) / 2
    return torch.where(z > 0, torch.ones_like(z), torch.full_like(z, middle))


def _hardswish(_: Any, z: Tensor, __: Tensor) -> Tensor:
    middle = torch.where(z < 3, z / 3 + 0.5, torch.ones_like(z))
    return torch.where(z <= -3, torch.zeros_like(z), middle)


def _sinc(_: Any, z: Tensor, h: Tensor) -> Tensor:
    return torch.where(z == 0, torch.zeros_like(z), (torch.cos(math.pi * z) - h) / z)


def _logit(a: Any, z: Tensor, _: Tensor) -> Tensor:
    eps = a.get("eps")
    slope = 1 / (z * (1 - z))
    return slope if eps is None else slope * ((z >= eps) & (z <= 1 - eps)).to(z)


#: Of an operation with one argument that is differentiated.
SLOPES: dict[str, Slope] = {
    # activations
    "relu": lambda a, z, h: (z > 0).to(z),
    "relu6": lambda a, z, h: _within(z, 0, 6),
    "leaky_relu": _leaky,
    "rrelu": _random_leaky,
    "elu": lambda a, z, h: _exponential(z, a["alpha"], a.get("scale", 1), a.get("input_scale", 1)),
    "celu": lambda a, z, h: _exponential(z, a["alpha"], 1, 1 / a["alpha"]),
    "selu": lambda a, z, h: _exponential(z, _SELU[0], _SELU[1], 1),
    "gelu": _gelu,
    "silu": _silu,
    "mish": _mish,
    "tanh": lambda a, z, h: 1 - h.square(),
    "sigmoid": lambda a, z, h: h * (1 - h),
    "logsigmoid": lambda a, z, h: torch.sigmoid(-z),
    "softplus": _softplus,
    "softsign": lambda a, z, h: (1 + z.abs()) ** -2,
    "tanhshrink": lambda a, z, h: (z - h).square(),
    "hardtanh": lambda a, z, h: _within(z, a["min_val"], a["max_val"]),
    "hardsigmoid": lambda a, z, h: _within(z, -3, 3) / 6,
    "hardswish": _hardswish,
    "softshrink": lambda a, z, h: (z.abs() > a["lambd"]).to(z),
    "hardshrink": lambda a, z, h: (z.abs() > a["lambd"]).to(z),
    "threshold": lambda a, z, h: (z > a["threshold"]).to(z),
    # elementary functions
    "abs": lambda a, z, h: torch.sign(z),
    "neg": lambda a, z, h: -torch.ones_like(z),
    "clamp_min": _clamped,
    "clamp_max": _clamped,
    "exp": lambda a, z, h: h,
    "exp2": lambda a, z, h: h * math.log(2),
    "expm1": lambda a, z, h: h + 1,
    "log": lambda a, z, h: 1 / z,
    "log2": lambda a, z, h: 1 / (z * math.log(2)),
    "log10": lambda a, z, h: 1 / (z * math.log(10)),
    "log1p": lambda a, z, h: 1 / (1 + z),
    "sqrt": lambda a, z, h: 1 / (2 * h),
    "rsqrt": lambda a, z, h: -(h**3) / 2,
    "square": lambda a, z, h: 2 * z,
    "reciprocal": lambda a, z, h: -h.square(),
    "sin": lambda a, z, h: torch.cos(z),
    "cos": lambda a, z, h: -torch.sin(z),
    "tan": lambda a, z, h: 1 + h.square(),
    "asin": lambda a, z, h: torch.rsqrt(1 - z.square()),
    "acos": lambda a, z, h: -torch.rsqrt(1 - z.square()),
    "atan": lambda a, z, h: 1 / (1 + z.square()),
    "sinh": lambda a, z, h: torch.cosh(z),
    "cosh": lambda a, z, h: torch.sinh(z),
    "asinh": lambda a, z, h: torch.rsqrt(1 + z.square()),
    "acosh": lambda a, z, h: torch.rsqrt(z.square() - 1),
    "atanh": lambda a, z, h: 1 / (1 - z.square()),
    "erf": lambda a, z, h: 2 / math.sqrt(math.pi) * torch.exp(-z.square()),
    "erfc": lambda a, z, h: -2 / math.sqrt(math.pi) * torch.exp(-z.square()),
    "erfinv": lambda a, z, h: math.sqrt(math.pi) / 2 * torch.exp(h.square()),
    "lgamma": lambda a, z, h: torch.digamma(z),
    "logit": _logit,
    "sinc": _sinc,
    "nan_to_num": lambda a, z, h: torch.isfinite(z).to(z),
}

#: Steps, and functions whose derivative is 0 wherever they have one.
FLAT = frozenset(
    """
    detach sign sgn floor ceil round trunc heaviside floor_divide rfloor_divide eq ne lt le gt ge
    """.split()
)
