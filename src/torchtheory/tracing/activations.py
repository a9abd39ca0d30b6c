r"""Activation functions of torch: one table of what is known of them, by the operation's name.

Everything that asks for the slope, the kinks or the curvature of an activation $\varphi$ reads it
here: Lipschitz constants and certificates, pieces and regions, watching of units, relevance.

| name | $\varphi(x)$ | slopes |
|---|---|---|
| `relu`, `leaky_relu`, `prelu`, `rrelu`, `abs` | $ax$ for $x<0$, else $x$ | $a$ and 1 |
| `relu6`, `hardtanh`, `hardsigmoid`, `clamp` | between two bounds | 0 to 1, or to 1/6 |
| `softshrink`, `hardshrink`, `threshold` | | 0 and 1; the last two jump |
| `tanh`, `softplus`, `logsigmoid`, `softsign`, `tanhshrink` | | 0 to 1 |
| `sigmoid` | $1/(1+e^{-x})$ | 0 to 1/4 |
| `elu`, `celu`, `selu` | $\alpha(e^x-1)$ for $x<0$ | 0 to $\max(1,\alpha)$ |
| `gelu` | $x\,\Phi(x)$ | $1-m$ to $m=\frac{1+\operatorname{erf}1}2+\frac1{e\sqrt\pi}$ |
| `silu` | $x\,\sigma(x)$ | $1-m$ to $m=\frac{1+u}2$ with $u\tanh u=1$ |
| `hardswish` | $x\min(\max(x+3,0),6)/6$ | -1/2 to 3/2 |
| `mish` | $x\tanh\ln(1+e^x)$ | -0.1125 to 1.0885 |
| `sin`, `cos`, `atan`, `asinh`, `erf` | | |

Numbers without a closed form are rounded from forty digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from torch import Tensor, nn

from torchtheory.core.errors import UnknownName, UnsupportedModel

_INF = math.inf


@dataclass(frozen=True, slots=True)
class ActivationFacts:
    r"""What is known of an activation $\varphi:\mathbb R\to\mathbb R$, at its parameters.

    Attributes:
        slopes: infimum and supremum of $\varphi'$, where there is one.
        lowest, highest: infimum and supremum of $\varphi$.
        kinks: places where $\varphi'$ jumps.
        jumps: places where $\varphi$ itself jumps, with its values to the left and to the right.
        curvature: supremum of $|\varphi''|$ between kinks and jumps.
        degree: of the polynomials between kinks and jumps; None if it is not made of such.
        homogeneous: whether $\varphi(\lambda x)=\lambda\varphi(x)$ for $\lambda>0$.
        lowest_at: where the minimum is, of a function that falls and then rises.
    """

    slopes: tuple[float, float]
    lowest: float = -_INF
    highest: float = _INF
    kinks: tuple[float, ...] = ()
    jumps: tuple[tuple[float, float, float], ...] = ()
    curvature: float = 0.0
    degree: int | None = None
    homogeneous: bool = False
    lowest_at: float | None = None

    @property
    def lipschitz(self) -> float:
        """The Lipschitz constant; infinite with a jump."""
        return _INF if self.jumps else max(abs(slope) for slope in self.slopes)

    @property
    def increasing(self) -> bool:
        """Whether it never falls."""
        return self.slopes[0] >= 0 and all(left <= right for _, left, right in self.jumps)

    @property
    def smoothness(self) -> float:
        r"""The Lipschitz constant of $\varphi'$; infinite with a kink or a jump."""
        return _INF if self.kinks or self.jumps else self.curvature


def activation_facts(name: str, **arguments: Any) -> ActivationFacts:
    """The facts about an activation with the arguments that torch's function has, by name.

    Arguments that it does not depend on, such as `inplace`, are passed over.

    >>> activation_facts("leaky_relu", negative_slope=0.1).slopes
    (0.1, 1.0)
    >>> activation_facts("hardtanh", min_val=0.0).kinks, activation_facts("tanh").kinks
    ((0.0, 1.0), ())
    """
    if name not in ACTIVATION_FACTS:
        raise UnknownName("activation", name, ACTIVATION_FACTS)
    return ACTIVATION_FACTS[name](**arguments)


def layer_facts(layer: nn.Module) -> ActivationFacts:
    """The facts about an activation that is a layer of torch.

    Raises:
        UnsupportedModel: if it is none of `ACTIVATION_LAYERS`.

    >>> layer_facts(nn.ELU(2.0)).slopes, layer_facts(nn.ReLU()).homogeneous
    ((0.0, 2.0), True)
    """
    if type(layer) not in ACTIVATION_LAYERS:
        raise UnsupportedModel(f"{type(layer).__name__} is no activation that is known here")
    name, *settings = ACTIVATION_LAYERS[type(layer)]
    return ACTIVATION_FACTS[name](**{key: getattr(layer, key) for key in settings})


# ------------------------------------------------------------------------------ pieces of lines


def _two_slopes(left: float, right: float = 1.0) -> ActivationFacts:
    """One slope on either side of 0."""
    return ActivationFacts(
        (min(left, right), max(left, right)),
        lowest=-_INF if left > 0 else 0.0,
        kinks=() if left == right else (0.0,),
        degree=1,
        homogeneous=True,
        lowest_at=0.0 if left < 0 else None,
    )


def _prelu(weight: Tensor, **_: Any) -> ActivationFacts:
    left = [float(w) for w in (weight.detach().min(), weight.detach().max())]
    ends = _two_slopes(left[0]), _two_slopes(left[1])
    return ActivationFacts(
        (ends[0].slopes[0], ends[1].slopes[1]),
        lowest=min(e.lowest for e in ends),
        kinks=(0.0,) if left != [1.0, 1.0] else (),
        degree=1,
        homogeneous=True,
        lowest_at=0.0 if left[1] < 0 else None,
    )


def _clamp(
    min: Any = None,
    max: Any = None,
    **_: Any,
) -> ActivationFacts:
    # of bounds that are tensors or follow the input no place is known
    known = [b for b in (min, max) if isinstance(b, int | float)]
    ends = tuple(sorted({float(b) for b in known if math.isfinite(b)}))
    return ActivationFacts(
        (0.0, 1.0),
        lowest=float(min) if isinstance(min, int | float) else -_INF,
        highest=float(max) if isinstance(max, int | float) else _INF,
        kinks=ends,
        degree=1,
        homogeneous=known == [0.0] and (min is None or max is None),
    )


def _hardtanh(min_val: float = -1.0, max_val: float = 1.0, **_: Any) -> ActivationFacts:
    return _clamp(min_val, max_val)


def _softshrink(lambd: float = 0.5, **_: Any) -> ActivationFacts:
    if lambd == 0:
        return _two_slopes(1.0)
    return ActivationFacts((0.0, 1.0), kinks=(-lambd, lambd), degree=1)


def _hardshrink(lambd: float = 0.5, **_: Any) -> ActivationFacts:
    if lambd <= 0:
        return _two_slopes(1.0)
    jumps = ((-lambd, -lambd, 0.0), (lambd, 0.0, lambd))
    return ActivationFacts((0.0, 1.0), jumps=jumps, degree=1)


def _threshold(threshold: float = 0.0, value: float = 0.0, **_: Any) -> ActivationFacts:
    t, v = float(threshold), float(value)
    return ActivationFacts(
        (0.0, 1.0),
        lowest=min(t, v),
        kinks=(t,) if t == v else (),
        jumps=() if t == v else ((t, v, t),),
        degree=1,
        homogeneous=t == v == 0,
    )


# ---------------------------------------------------------------------------------------- smooth

#: Largest second derivative of tanh, and of others that are made of it.
_TANH_BEND = 4 / (3 * math.sqrt(3))

_GELU = (1 + math.erf(1.0)) / 2 + 1 / (math.e * math.sqrt(math.pi))  # at √2
_GELU_BY_TANH = 1.1289930686587718  # at 1.4185040087908284
_SILU = (1 + 1.1996786402577338) / 2  # at 2u, u tanh u = 1
_MISH = (-0.11252612238946256, 1.0884981612517279)  # at -2.2563763963607931 and 1.4905711794854285

#: Softplus of torch is x beyond its threshold: from here on the step is at most 2e-9.
_NO_STEP = 20.0


def _softplus(beta: float = 1.0, threshold: float = 20.0, **_: Any) -> ActivationFacts:
    jumps: tuple[tuple[float, float, float], ...] = ()
    if threshold < _NO_STEP:
        place = threshold / beta
        jumps = ((place, place + math.log1p(math.exp(-threshold)) / beta, place),)
    lowest, highest = (0.0, _INF) if beta > 0 else (-_INF, 0.0)
    return ActivationFacts((0.0, 1.0), lowest, highest, curvature=abs(beta) / 4, jumps=jumps)


def _elu(
    alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0, **_: Any
) -> ActivationFacts:
    left = scale * alpha * input_scale  # the slope just below 0, from which it falls to 0
    return ActivationFacts(
        (min(0.0, left, scale), max(0.0, left, scale)),
        lowest=min(0.0, -scale * alpha),
        kinks=() if left == scale else (0.0,),
        curvature=abs(left * input_scale),
        lowest_at=0.0 if left < 0 else None,
    )


def _celu(alpha: float = 1.0, **_: Any) -> ActivationFacts:
    if alpha < 0:
        return ActivationFacts((1.0, _INF), curvature=_INF)
    return ActivationFacts((0.0, 1.0), lowest=-alpha, curvature=1 / alpha)


def _selu(**_: Any) -> ActivationFacts:
    return _elu(1.6732632423543772, 1.0507009873554805)


def _gelu(approximate: str = "none", **_: Any) -> ActivationFacts:
    bend = math.sqrt(2 / math.pi)
    if approximate == "none":
        return _falling_first(1 - _GELU, _GELU, bend, -0.7517915246935645, -0.16997120747990366)
    m = _GELU_BY_TANH
    return _falling_first(1 - m, m, bend, -0.7524614220710163, -0.17004075057125405)


def _falling_first(
    least: float, largest: float, curvature: float, lowest_at: float, lowest: float
) -> ActivationFacts:
    return ActivationFacts((least, largest), lowest, curvature=curvature, lowest_at=lowest_at)


def _fixed(facts: ActivationFacts) -> Callable[..., ActivationFacts]:
    return lambda **_: facts


#: Plain name of an operation -> its facts, given its arguments by name.
ACTIVATION_FACTS: Final[Mapping[str, Callable[..., ActivationFacts]]] = MappingProxyType(
    {
        "relu": _fixed(_two_slopes(0.0)),
        "relu6": _fixed(_clamp(0.0, 6.0)),
        "leaky_relu": lambda negative_slope=0.01, **_: _two_slopes(float(negative_slope)),
        "prelu": _prelu,
        "rrelu": lambda lower=1 / 8, upper=1 / 3, **_: _two_slopes((lower + upper) / 2),
        "elu": _elu,
        "selu": _selu,
        "celu": _celu,
        "gelu": _gelu,
        "silu": _fixed(
            _falling_first(1 - _SILU, _SILU, 0.5, -1.2784645427610738, -0.2784645427610738)
        ),
        "mish": _fixed(
            _falling_first(*_MISH, 0.6442046372369725, -1.1924312145154952, -0.3088434130172504)
        ),
        "softplus": _softplus,
        "sigmoid": _fixed(ActivationFacts((0.0, 0.25), 0.0, 1.0, curvature=_TANH_BEND / 8)),
        "tanh": _fixed(ActivationFacts((0.0, 1.0), -1.0, 1.0, curvature=_TANH_BEND)),
        "tanhshrink": _fixed(ActivationFacts((0.0, 1.0), curvature=_TANH_BEND)),
        "hardtanh": _hardtanh,
        "hardsigmoid": _fixed(ActivationFacts((0.0, 1 / 6), 0.0, 1.0, (-3.0, 3.0), degree=1)),
        "hardswish": _fixed(
            ActivationFacts(
                (-0.5, 1.5), -0.375, kinks=(-3.0, 3.0), curvature=1 / 3, degree=2, lowest_at=-1.5
            )
        ),
        "softsign": _fixed(ActivationFacts((0.0, 1.0), -1.0, 1.0, curvature=2.0)),
        "softshrink": _softshrink,
        "hardshrink": _hardshrink,
        "threshold": _threshold,
        "logsigmoid": _fixed(ActivationFacts((0.0, 1.0), highest=0.0, curvature=0.25)),
        "clamp": _clamp,
        "clamp_min": _clamp,
        "clamp_max": _clamp,
        "abs": _fixed(_two_slopes(-1.0)),
        "sin": _fixed(ActivationFacts((-1.0, 1.0), -1.0, 1.0, curvature=1.0)),
        "cos": _fixed(ActivationFacts((-1.0, 1.0), -1.0, 1.0, curvature=1.0)),
        "atan": _fixed(
            ActivationFacts(
                (0.0, 1.0), -math.pi / 2, math.pi / 2, curvature=9 / (8 * math.sqrt(3))
            )
        ),
        "asinh": _fixed(ActivationFacts((0.0, 1.0), curvature=2 / (3 * math.sqrt(3)))),
        "erf": _fixed(
            ActivationFacts(
                (0.0, 2 / math.sqrt(math.pi)), -1.0, 1.0,
                curvature=math.sqrt(8 / (math.pi * math.e)),
            )
        ),
    }
)  # fmt: skip

#: Layers of torch: the operation that they are, and the settings that are its arguments.
ACTIVATION_LAYERS: Final[Mapping[type[nn.Module], tuple[str, ...]]] = MappingProxyType(
    {
        nn.ReLU: ("relu",),
        nn.LeakyReLU: ("leaky_relu", "negative_slope"),
        nn.ReLU6: ("hardtanh", "min_val", "max_val"),
        nn.ELU: ("elu", "alpha"),
        nn.SELU: ("selu",),
        nn.CELU: ("celu", "alpha"),
        nn.GELU: ("gelu", "approximate"),
        nn.SiLU: ("silu",),
        nn.Mish: ("mish",),
        nn.Sigmoid: ("sigmoid",),
        nn.LogSigmoid: ("logsigmoid",),
        nn.Tanh: ("tanh",),
        nn.Hardtanh: ("hardtanh", "min_val", "max_val"),
        nn.Hardsigmoid: ("hardsigmoid",),
        nn.Hardswish: ("hardswish",),
        nn.Softplus: ("softplus", "beta", "threshold"),
        nn.Softsign: ("softsign",),
        nn.Tanhshrink: ("tanhshrink",),
        nn.Hardshrink: ("hardshrink", "lambd"),
        nn.Softshrink: ("softshrink", "lambd"),
        nn.Threshold: ("threshold", "threshold", "value"),
        nn.PReLU: ("prelu", "weight"),
        nn.RReLU: ("rrelu", "lower", "upper"),
    }
)
