r"""What an activation makes of the second moment of a Gaussian, and of a gradient's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.nets.activations.table import Activation, activation, as_layer, nth_derivative
from torchtheory.primer.gaussian_means import gaussian_mean

#: A name of the table of activations, a row of it, a module, its class, or a function of a tensor.
Function = str | Activation | nn.Module | type[nn.Module] | Callable[..., Any]


def second_moment(given: Function, variance: Tensor) -> Tensor:
    r"""$\mathbb E\varrho(\sqrt q Z)^2$: what an activation makes of the second moment.

    >>> second_moment("relu", torch.tensor(3.0, dtype=torch.float64))
    tensor(1.5000, dtype=torch.float64)
    """
    function = _module(given)
    with torch.no_grad():
        return gaussian_mean(lambda z: function(z).square(), variance)


def squared_slope(given: Function, variance: Tensor) -> Tensor:
    r"""$\mathbb E\varrho'(\sqrt q Z)^2$: what it makes of the gradient's second moment.

    >>> squared_slope("relu", torch.tensor(3.0, dtype=torch.float64))
    tensor(0.5000, dtype=torch.float64)
    """
    slope = slope_of(given)
    return gaussian_mean(lambda z: slope(z).square(), variance)


def slope_of(given: Function) -> Callable[[Tensor], Tensor]:
    r"""$\varrho'$ of an activation given by name, row of the table, module or function.

    >>> slope_of("relu")(torch.tensor([-1.0, 2.0])), slope_of(torch.sin)(torch.tensor([0.0]))
    (tensor([0., 1.]), tensor([1.]))
    """
    row = activation(given) if isinstance(given, str) else given
    if isinstance(row, Activation):
        return row.slope
    function = _module(row)
    return lambda z: nth_derivative(function, z, 1)


def _module(given: Function) -> nn.Module:
    # a module with parameters, such as PReLU, is evaluated as it stands
    return given if isinstance(given, nn.Module) else as_layer(given)
