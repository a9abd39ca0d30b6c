r"""What an activation makes of two correlated Gaussians: its dual functions.

For $(z,z')\sim N\bigl(0,\begin{pmatrix}k_{11}&k_{12}\\k_{12}&k_{22}\end{pmatrix}\bigr)$ the
kernels of infinitely wide networks need $\mathbb E\,\varphi(z)\varphi(z')$ and
$\mathbb E\,\varphi'(z)\varphi'(z')$. Both are closed forms for the activations of this table:

| name | $\varphi(z)$ |
|---|---|
| `linear`, `relu`, `leaky relu`, `parametric relu`, `abs` | `PiecewiseLinear` |
| `power relu` with k = 2 | $\max(z,0)^2$ |
| `heaviside`, `closed heaviside`, `sign` | the steps, whose slope is 0 almost everywhere |
| `erf`, `gelu` | $\operatorname{erf}z$, $z\,\Phi(z)$ |
| `sin`, `cos`, `gaussian` | $\sin z$, $\cos z$, $e^{-z^2/2}$ |

Anything else is expanded in Hermite polynomials, with a bound on what was cut off
(`HermiteExpansion`). Sources: Foundations of Deep Learning, Theorem 57 and what follows it;
Mathematical Aspects of Deep Learning, section 1.2.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.nets.activations.table import Activation, activation, as_layer
from torchtheory.nets.infinite_width.duals.closed_forms import (
    Bell,
    ErrorFunction,
    Gelu,
    PiecewiseLinear,
    SquaredRelu,
    Step,
    Wave,
)
from torchtheory.nets.infinite_width.duals.hermite import HermiteExpansion
from torchtheory.nets.infinite_width.duals.moments import DualActivation, Moments

#: A name of the tables, a row of one, a module or its class, a function of a tensor, or a dual.
AnyActivation = str | Activation | nn.Module | type[nn.Module] | Callable[..., Any] | DualActivation

_RELU = PiecewiseLinear(0.0, 1.0, "relu")
_LINEAR = PiecewiseLinear(1.0, 1.0, "linear")
_ABS = PiecewiseLinear(-1.0, 1.0, "abs")
_ERF, _SIN, _COS = ErrorFunction(), Wave("sin"), Wave("cos")
_WITH_ANGLES = (PiecewiseLinear, SquaredRelu, Step)

#: The closed forms without parameters, by name.
CLOSED_FORMS: Mapping[str, DualActivation] = MappingProxyType(
    {
        dual.name: dual
        for dual in (
            *(_LINEAR, _RELU, _ABS, SquaredRelu(), Step(0.0, "heaviside", at_zero=0.0)),
            *(Step(0.0, "closed heaviside", at_zero=1.0), Step(-1.0, "sign", at_zero=1.0)),
            *(_ERF, Gelu(), _SIN, _COS, Bell()),
        )
    }
)

_FUNCTIONS: Mapping[Any, DualActivation] = {
    torch.relu: _RELU,
    torch.nn.functional.relu: _RELU,
    torch.erf: _ERF,
    torch.sin: _SIN,
    torch.cos: _COS,
    torch.abs: _ABS,
    nn.functional.gelu: CLOSED_FORMS["gelu"],
}


def dual_activation(given: AnyActivation) -> DualActivation:
    """The dual of an activation: a closed form where one is known, an expansion otherwise.

    >>> dual_activation("relu"), dual_activation(nn.LeakyReLU(0.2)), dual_activation(torch.erf)
    (PiecewiseLinear(relu), PiecewiseLinear(leaky relu), ErrorFunction(erf))
    >>> dual_activation("tanh")
    HermiteExpansion(tanh)
    """
    if isinstance(given, DualActivation):
        return given
    if isinstance(given, str):
        if given in CLOSED_FORMS:
            return CLOSED_FORMS[given]
        given = activation(given)
    if isinstance(given, Activation):
        return _of_row(given)
    if isinstance(given, type) and issubclass(given, nn.Module):
        given = as_layer(given)
    if isinstance(given, nn.Module):
        return _of_module(given)
    try:
        return _FUNCTIONS[given]
    except (KeyError, TypeError):
        return HermiteExpansion(given)


def _of_row(row: Activation) -> DualActivation:
    if row.name == "leaky relu":
        return PiecewiseLinear(row.parameters["slope"], 1.0, row.name)
    if row.name == "parametric relu":
        # max(ax, x): the larger slope is on the right
        a = row.parameters["a"]
        return PiecewiseLinear(min(a, 1.0), max(a, 1.0), row.name)
    if row.name == "power relu" and row.parameters["k"] != 2:
        return _RELU if row.parameters["k"] == 1 else HermiteExpansion(row)
    return CLOSED_FORMS[row.name] if row.name in CLOSED_FORMS else HermiteExpansion(row)


def _of_module(module: nn.Module) -> DualActivation:
    match module:
        case nn.ReLU():
            return _RELU
        case nn.LeakyReLU():
            return PiecewiseLinear(module.negative_slope, 1.0, "leaky relu")
        case nn.PReLU() if module.num_parameters == 1:
            return PiecewiseLinear(module.weight.item(), 1.0, "parametric relu")
        case nn.Identity():
            return _LINEAR
        case nn.GELU() if module.approximate == "none":
            return CLOSED_FORMS["gelu"]
    return HermiteExpansion(module)


def activation_layer(given: AnyActivation) -> nn.Module:
    """The activation as a module, for everything `dual_activation` takes.

    >>> activation_layer("erf"), activation_layer("relu"), activation_layer("softplus")
    (erf(), ReLU(), Softplus(beta=1.0, threshold=40))
    """
    if isinstance(given, DualActivation):
        return given.layer()
    if isinstance(given, str) and given in CLOSED_FORMS:
        return CLOSED_FORMS[given].layer()
    return as_layer(given)


def dual_moments(
    activation: AnyActivation, k11: Tensor, k12: Tensor, k22: Tensor, *, slopes: bool = True
) -> Moments:
    r"""$\mathbb E\varphi(z)\varphi(z')$ and $\mathbb E\varphi'(z)\varphi'(z')$,
    entry by entry.

    Args:
        k11, k22: variances of $z$ and $z'$.
        k12: their covariances, of the same shape.
        slopes: whether the second expectation is wanted.

    Closed forms can be differentiated, wherever there is a derivative: not the angle of two equal
    or opposite points (on which the slopes of ReLU and the values of a step depend), nor, for
    activations with a kink or a step, at a variance of 0; these are refused, as are expansions.

    >>> k = torch.tensor([2.0, 2.0], dtype=torch.float64)
    >>> 2 * dual_moments("relu", k, torch.tensor([2.0, 1.0], dtype=torch.float64), k).values
    tensor([2.0000, 1.2180], dtype=torch.float64)
    """
    for k, name in ((k11, "k11"), (k12, "k12"), (k22, "k22")):
        if not isinstance(k, Tensor) or k.dtype not in (torch.float32, torch.float64):
            raise InvalidType(f"{name} must be a tensor of float32 or float64")
    if not k11.shape == k12.shape == k22.shape:
        raise ShapeMismatch(
            "k11, k12 and k22 must have one shape, not "
            + ", ".join(str(list(k.shape)) for k in (k11, k12, k22))
        )
    if not bool((k11 >= 0).all() and (k22 >= 0).all()):  # also for NaN
        raise InvalidInput("a variance is a number >= 0")
    if not bool((k12.abs() <= (k11.sqrt() * k22.sqrt()) * (1 + 1e-4) + 1e-30).all()):
        raise InvalidInput("a covariance is larger than the product of the standard deviations")
    dual = dual_activation(activation)
    if torch.is_grad_enabled() and any(k.requires_grad for k in (k11, k12, k22)):
        if isinstance(dual, HermiteExpansion):
            raise InvalidInput(
                f"the expansion of {dual.name} is not differentiated; detach the covariances, or "
                "use an activation with a closed form"
            )
        if isinstance(dual, _WITH_ANGLES) and not bool((k11 > 0).all() and (k22 > 0).all()):
            raise InvalidInput(
                f"the moments of {dual.name} have no derivative where a variance is 0"
            )
    return dual.pair(k12, dual.prepare(k11), dual.prepare(k22), slopes=slopes)
