r"""Activation functions: one table, with formula, derivative and torch's own module.

The fourteen of Mathematical Aspects of Deep Learning, Table 1.1, with the closed Heaviside
function, the sign and the logistic unit's all derivatives of Foundations of Deep Learning,
section 2.4, and the leaky ReLU of the slides. Each row also says what is known of the function;
`inspect_activation` measures the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, nn

from torchtheory.core.checks import first_entry, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, UnknownName
from torchtheory.nets.activations.properties import MOST_DERIVATIVES, ActivationProperties
from torchtheory.tracing.activations import ACTIVATION_LAYERS

_INF = math.inf


#: Layers of torch that act on every entry by itself, and have nothing to learn.
POINTWISE_LAYERS = tuple(k for k in ACTIVATION_LAYERS if k not in (nn.PReLU, nn.RReLU))


class Pointwise(nn.Module):
    """A function of one variable as a layer that acts on every entry.

    >>> Pointwise(torch.atan, "arctan")
    arctan()
    """

    def __init__(self, function: Callable[[Tensor], Tensor], name: str = "pointwise") -> None:
        super().__init__()
        self.function = function
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    def _get_name(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Activation:
    r"""One row of the table.

    Attributes:
        name: what `activation` takes.
        formula: the definition, LaTeX.
        function: values; takes the parameters as keywords.
        derivative: $\varrho'$, the right-hand or left-hand one where they differ.
        parameters: the values of the row's parameters.
        module: torch's own layer for these parameters, where torch has one.
        known: what is known of the function *at the parameters the table lists*.

    >>> elu = activation("elu", alpha=2.0)
    >>> elu(torch.tensor([-1000.0, 3.0])), elu.slope(torch.tensor([3.0]))
    (tensor([-2.,  3.]), tensor([1.]))
    """

    name: str
    formula: str
    function: Callable[..., Tensor]
    derivative: Callable[..., Tensor]
    known: ActivationProperties
    module: Callable[..., nn.Module] | None = None
    parameters: Mapping[str, float] = field(default_factory=dict)

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x, **self.parameters)

    def slope(self, x: Tensor) -> Tensor:
        r"""$\varrho'(x)$."""
        return self.derivative(x, **self.parameters)

    def layer(self) -> nn.Module:
        """A module with this activation: torch's own where there is one."""
        if self.module is not None:
            return self.module(**self.parameters)
        return Pointwise(self, self.name)


def activation(name: str, **parameters: float) -> Activation:
    """A row of the table by its name, with other parameters than the table's if given.

    >>> activation("leaky relu", slope=0.0)(torch.tensor([-3.0, 2.0]))
    tensor([-0., 2.])
    >>> activation("relu").known.lipschitz
    1.0
    """
    if name not in ACTIVATIONS:
        raise UnknownName("activation", name, ACTIVATIONS)
    row = ACTIVATIONS[name]
    for key, value in parameters.items():
        if key not in row.parameters:
            raise UnknownName(f"parameter of {name}", key, row.parameters)
        allowed, words = _ALLOWED[name]
        if not (math.isfinite(value) and allowed(value)):
            raise InvalidInput(f"{key} of {name} must be {words}, not {value!r}")
    return replace(row, parameters={**row.parameters, **parameters})


def as_layer(given: str | Activation | nn.Module | Callable[..., Any]) -> nn.Module:
    """A module from a name of the table, a row, a module class such as `nn.Tanh`, or a function.

    >>> as_layer("tanh"), as_layer(nn.SiLU), as_layer(torch.sin)
    (Tanh(), SiLU(), sin())
    """
    if isinstance(given, str):
        return activation(given).layer()
    if isinstance(given, Activation):
        return given.layer()
    if isinstance(given, nn.Module):
        if next(given.parameters(), None) is not None:
            raise InvalidInput(
                "an activation with parameters would be shared by all layers: give its class"
            )
        return given
    if isinstance(given, type) and issubclass(given, nn.Module):
        made: nn.Module = given()
        return made
    if callable(given):
        return Pointwise(
            cast(Callable[[Tensor], Tensor], given), getattr(given, "__name__", "pointwise")
        )
    raise InvalidType(f"an activation is a name, a module or a function, not {given!r}")


def nth_derivative(function: Callable[[Tensor], Tensor], x: Tensor, order: int) -> Tensor:
    r"""$\varrho^{(k)}$ at the points `x` by repeated automatic differentiation.

    At a kink it is what torch makes of it. Zero where the graph ends, as for a polynomial.

    >>> nth_derivative(torch.sigmoid, torch.zeros(1, dtype=torch.float64), 3)
    tensor([-0.1250], dtype=torch.float64)
    """
    whole_number(order, "order", least=0)
    with torch.enable_grad():
        point = x.detach().clone().requires_grad_()
        value = function(point)
        for _ in range(order):
            if not value.requires_grad:
                return torch.zeros_like(x)
            (value,) = torch.autograd.grad(
                value.sum(), point, create_graph=True, materialize_grads=True
            )
    return value.detach()


def logistic_derivative_polynomial(order: int) -> tuple[int, ...]:
    r"""Coefficients, constant first, of $P_k$ with $\sigma^{(k)}=P_k(\sigma)$.

    $P_0(s)=s$ and $P_{k+1}(s)=P_k'(s)\,s(1-s)$: every derivative of the logistic
    function is a polynomial in it (Foundations of Deep Learning, section 2.4.3).

    >>> logistic_derivative_polynomial(1), logistic_derivative_polynomial(2)
    ((0, 1, -1), (0, 1, -3, 2))
    """
    whole_number(order, "order", least=0)
    coefficients = [0, 1]
    for _ in range(order):
        slope = [i * c for i, c in enumerate(coefficients)][1:]
        coefficients = [0] * (len(slope) + 2)
        for i, c in enumerate(slope):
            coefficients[i + 1] += c
            coefficients[i + 2] -= c
    return tuple(coefficients)


def logistic_derivative(z: Tensor, order: int) -> Tensor:
    r"""$\sigma^{(k)}(z)$ through its polynomial in $\sigma(z)$.

    >>> logistic_derivative(torch.zeros(1), 1)
    tensor([0.2500])
    """
    coefficients = logistic_derivative_polynomial(order)
    s = torch.sigmoid(z)
    value = torch.zeros_like(s)
    for c in reversed(coefficients):
        value = value * s + float(c)  # whole numbers beyond 64 bits from order 18 on
    return value


def logit(t: Tensor) -> Tensor:
    r"""The inverse of the logistic function, $\ln\frac{t}{1-t}$ for $0<t<1$.

    >>> logit(torch.tensor([0.5, 0.75]))
    tensor([0.0000, 1.0986])
    """
    if not bool(((t > 0) & (t < 1)).all()):
        raise InvalidInput(
            "the logistic function takes values strictly between 0 and 1 only: "
            f"{first_entry(t, 't', ~((t > 0) & (t < 1)))}"
        )
    return torch.log(t) - torch.log1p(-t)


def _step(x: Tensor, where: Tensor) -> Tensor:
    return where.to(x.dtype)


def _flat(x: Tensor) -> Tensor:
    return torch.zeros_like(x)


def _power_relu(x: Tensor, k: float) -> Tensor:
    return torch.relu(x) ** k


def _power_relu_slope(x: Tensor, k: float) -> Tensor:
    return torch.where(x > 0, k * torch.relu(x) ** (k - 1), 0.0)


def _prelu(x: Tensor, a: float) -> Tensor:
    return torch.maximum(a * x, x)


def _prelu_slope(x: Tensor, a: float) -> Tensor:
    return torch.where(x > 0, x.new_tensor(max(a, 1.0)), x.new_tensor(min(a, 1.0)))


def _leaky(x: Tensor, slope: float) -> Tensor:
    return torch.where(x >= 0, x, slope * x)


def _leaky_slope(x: Tensor, slope: float) -> Tensor:
    return torch.where(x > 0, x.new_tensor(1.0), x.new_tensor(slope))


def _elu(x: Tensor, alpha: float) -> Tensor:
    return torch.where(x >= 0, x, alpha * torch.expm1(x.clamp(max=0)))


def _elu_slope(x: Tensor, alpha: float) -> Tensor:
    return torch.where(x >= 0, 1.0, alpha * torch.exp(x.clamp(max=0)))


def _isru(x: Tensor, a: float) -> Tensor:
    return x / torch.sqrt(1 + a * x.square())


def _isru_slope(x: Tensor, a: float) -> Tensor:
    return (1 + a * x.square()) ** -1.5


def _isrlu(x: Tensor, a: float) -> Tensor:
    return torch.where(x >= 0, x, _isru(x, a))


def _isrlu_slope(x: Tensor, a: float) -> Tensor:
    return torch.where(x >= 0, 1.0, _isru_slope(x, a))


def _softsign(x: Tensor) -> Tensor:
    return x / (1 + x.abs())


def _softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))


def _gaussian(x: Tensor) -> Tensor:
    return torch.exp(-x.square() / 2)


def _known(
    reach: tuple[float, float],
    limits: tuple[float, float],
    smoothness: int,
    lipschitz: float,
    flags: str,
    *,
    homogeneity: int | None = None,
    degree: int | None = None,
    pieces: tuple[int, int] | tuple[None, None] = (None, None),
) -> ActivationProperties:
    """A row's known properties; `flags` are words out of the boolean fields."""
    words = set(flags.split())
    return ActivationProperties(
        lowest=reach[0],
        highest=reach[1],
        left_limit=limits[0],
        right_limit=limits[1],
        smoothness=smoothness,
        lipschitz=lipschitz,
        increasing="increasing" in words or "strict" in words,
        decreasing="decreasing" in words,
        strictly_monotone="strict" in words,
        convex="convex" in words,
        concave="concave" in words,
        odd="odd" in words,
        even="even" in words,
        homogeneity=homogeneity,
        euler="euler" in words,
        polynomial_degree=degree,
        pieces=pieces[0],
        piece_degree=pieces[1],
    )


_SMOOTH = MOST_DERIVATIVES

_ROWS: Sequence[Activation] = (
    Activation(
        "linear",
        r"x",
        lambda x: x,
        torch.ones_like,
        _known(
            (-_INF, _INF), (-_INF, _INF), _SMOOTH, 1.0, "strict convex concave odd euler",
            homogeneity=1, degree=1, pieces=(1, 1),
        ),
        nn.Identity,
    ),
    Activation(
        "heaviside",
        r"1_{(0,\infty)}(x)",
        lambda x: _step(x, x > 0),
        _flat,
        _known((0, 1), (0, 1), -1, _INF, "increasing", homogeneity=0, pieces=(2, 0)),
    ),
    Activation(
        "closed heaviside",
        r"1_{[0,\infty)}(x)",
        lambda x: _step(x, x >= 0),
        _flat,
        _known((0, 1), (0, 1), -1, _INF, "increasing", homogeneity=0, pieces=(2, 0)),
    ),
    Activation(
        "sign",
        r"2\cdot 1_{[0,\infty)}(x)-1",
        lambda x: 2 * _step(x, x >= 0) - 1,
        _flat,
        _known((-1, 1), (-1, 1), -1, _INF, "increasing", homogeneity=0, pieces=(2, 0)),
    ),
    Activation(
        "logistic",
        r"\frac{1}{1+e^{-x}}",
        torch.sigmoid,
        lambda x: torch.sigmoid(x) * torch.sigmoid(-x),
        _known((0, 1), (0, 1), _SMOOTH, 0.25, "strict"),
        nn.Sigmoid,
    ),
    Activation(
        "relu",
        r"\max\{0,x\}",
        torch.relu,
        lambda x: _step(x, x > 0),
        _known(
            (0, _INF), (0, _INF), 0, 1.0, "increasing convex euler", homogeneity=1, pieces=(2, 1)
        ),
        nn.ReLU,
    ),
    Activation(
        "power relu",
        r"\max\{0,x\}^k",
        _power_relu,
        _power_relu_slope,
        _known(
            (0, _INF), (0, _INF), 1, _INF, "increasing convex", homogeneity=2, pieces=(2, 2)
        ),
        parameters={"k": 2},
    ),
    Activation(
        "parametric relu",
        r"\max\{ax,x\}",
        _prelu,
        _prelu_slope,
        _known(
            (-_INF, _INF), (-_INF, _INF), 0, 1.0, "strict convex euler",
            homogeneity=1, pieces=(2, 1),
        ),
        parameters={"a": 0.25},
    ),
    Activation(
        "leaky relu",
        r"\max\{sx,x\}",
        _leaky,
        _leaky_slope,
        _known(
            (-_INF, _INF), (-_INF, _INF), 0, 1.0, "strict convex euler",
            homogeneity=1, pieces=(2, 1),
        ),
        lambda slope: nn.LeakyReLU(slope),
        {"slope": 0.1},
    ),
    Activation(
        "elu",
        r"x\,1_{[0,\infty)}(x)+\alpha(e^x-1)\,1_{(-\infty,0)}(x)",
        _elu,
        _elu_slope,
        _known((-1, _INF), (-1, _INF), 1, 1.0, "strict convex"),
        nn.ELU,
        {"alpha": 1.0},
    ),
    Activation(
        "softsign",
        r"\frac{x}{1+|x|}",
        _softsign,
        lambda x: (1 + x.abs()) ** -2.0,
        _known((-1, 1), (-1, 1), 1, 1.0, "strict odd"),
        nn.Softsign,
    ),
    Activation(
        "isrlu",
        r"x\,1_{[0,\infty)}(x)+\frac{x}{\sqrt{1+ax^2}}\,1_{(-\infty,0)}(x)",
        _isrlu,
        _isrlu_slope,
        _known((-1, _INF), (-1, _INF), 2, 1.0, "strict convex"),
        parameters={"a": 1.0},
    ),
    Activation(
        "isru",
        r"\frac{x}{\sqrt{1+ax^2}}",
        _isru,
        _isru_slope,
        _known((-1, 1), (-1, 1), _SMOOTH, 1.0, "strict odd"),
        parameters={"a": 1.0},
    ),
    Activation(
        "tanh",
        r"\frac{e^x-e^{-x}}{e^x+e^{-x}}",
        torch.tanh,
        lambda x: 1 - torch.tanh(x).square(),
        _known((-1, 1), (-1, 1), _SMOOTH, 1.0, "strict odd"),
        nn.Tanh,
    ),
    Activation(
        "arctan",
        r"\arctan(x)",
        torch.atan,
        lambda x: 1 / (1 + x.square()),
        _known(
            (-math.pi / 2, math.pi / 2), (-math.pi / 2, math.pi / 2), _SMOOTH, 1.0, "strict odd"
        ),
    ),
    Activation(
        "softplus",
        r"\ln(1+e^x)",
        _softplus,
        torch.sigmoid,
        _known((0, _INF), (0, _INF), _SMOOTH, 1.0, "strict convex"),
        # torch's own threshold of 20 is visible in double precision
        lambda: nn.Softplus(threshold=40),
    ),
    Activation(
        "gaussian",
        r"e^{-x^2/2}",
        _gaussian,
        lambda x: -x * _gaussian(x),
        _known((0, 1), (0, 0), _SMOOTH, math.exp(-0.5), "even"),
    ),
)  # fmt: skip

#: Every row, by name.
ACTIVATIONS: Mapping[str, Activation] = MappingProxyType({row.name: row for row in _ROWS})

#: The fourteen of Table 1.1 of Mathematical Aspects of Deep Learning, in its order.
FOURTEEN: tuple[str, ...] = (
    "linear", "heaviside", "logistic", "relu", "power relu", "parametric relu", "elu",
    "softsign", "isrlu", "isru", "tanh", "arctan", "softplus", "gaussian",
)  # fmt: skip

_ALLOWED: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "power relu": (lambda k: k >= 1 and k == int(k), "a whole number >= 1"),
    "parametric relu": (lambda a: a >= 0 and a != 1, "a number >= 0 other than 1"),
    "leaky relu": (lambda s: 0 <= s < 1, "a number from 0 to 1, 1 excluded"),
    "elu": (lambda alpha: alpha > 0, "a positive number"),
    "isrlu": (lambda a: a > 0, "a positive number"),
    "isru": (lambda a: a > 0, "a positive number"),
}
