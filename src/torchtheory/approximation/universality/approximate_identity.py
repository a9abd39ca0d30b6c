r"""More layers without ReLU: an approximate identity of two units carries a value on.

$u\approx\bigl[\sigma(\lambda+\tfrac h2u)-\sigma(\lambda-\tfrac h2u)\bigr]/h\sigma'(\lambda)$
for every activation with $\sigma'(\lambda)\ne0$. Put behind a network it adds a layer and
changes the function by as little as one likes: density passes from shallow networks to any number
of layers. Source: Mathematical Aspects of Deep Learning, section 3.3 (Hornik et al. 1989).
"""

from __future__ import annotations

import math

import torch
from torch import nn

from torchtheory.approximation.certificates import Approximant, as_box, box_grid
from torchtheory.approximation.network_calculus import compose
from torchtheory.approximation.polynomials.divided_differences import (
    monomial_error,
    monomial_network,
)
from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.nets.feedforward import affine_layers

#: Points of the grid on which the range of a network is looked for.
_GRID = 1 << 12


def identity_network(activation: str, bias: float, radius: float, tolerance: float) -> Approximant:
    r"""Two units within `tolerance` of the identity on $[-r,r]$.

    The step is the longest of $1,\tfrac12,\tfrac14,\dots$ whose promised error, rounding
    included, is small enough.

    >>> two = identity_network("tanh", 0.0, 1.0, 1e-4)
    >>> two.size.units, two.bound <= 1e-4
    (2, True)
    """
    positive_number(radius, "radius")
    positive_number(tolerance, "tolerance")
    for halvings in range(60):
        step = 2.0**-halvings / radius
        error = monomial_error(1, activation, bias, step, radius=radius, central=True)
        if error.total <= tolerance:
            return monomial_network(1, activation, bias, step, radius=radius, central=True)
    raise InvalidInput(
        f"{tolerance:g} is below what rounding leaves of a difference of {activation} units"
    )


def deepen_approximately(
    network: nn.Sequential,
    extra: int,
    activation: str,
    domain: tuple[tuple[float, float], ...] | tuple[float, float],
    tolerance: float,
    *,
    bias: float = 0.5,
) -> Approximant:
    r"""The same function up to a tolerance, with `extra` more hidden layers of two units.

    Each identity is asked for $\mathrm{tol}/\mathrm{extra}$ on the range of the network
    widened by the tolerance; since $|\iota(v)-u|\le|\iota(v)-v|+|v-u|$ the errors add up.

    Args:
        network: a chain of affine layers and activations with one output.
        extra: hidden layers to add.
        activation: a smooth one, by name.
        domain: where the network is used; its range is the largest value on a grid of
            4096 points, widened by a tenth, so it must not vary wildly between them.
        bias: $\lambda$, where the activation has a slope.

    >>> net = nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    >>> deeper = deepen_approximately(net, 3, "tanh", (0.0, 1.0), 1e-3)
    >>> deeper.size.depth, deeper.bound <= 1e-3
    (5, True)
    """
    whole_number(extra, "extra", least=1)
    positive_number(tolerance, "tolerance")
    box = as_box(domain)
    maps, _ = affine_layers(network)
    if maps[0][0].shape[1] != len(box) or len(maps[-1][0]) != 1:
        raise ShapeMismatch(
            f"a network from {len(box)} inputs to one output is needed, not from "
            f"{maps[0][0].shape[1]} to {len(maps[-1][0])}"
        )
    if maps[0][0].dtype != torch.float64:
        raise InvalidType(
            f"differences need double precision, not {maps[0][0].dtype}: give a copy of the "
            "network in it"
        )
    grid = box_grid(box, max(2, int(_GRID ** (1 / len(box)))))
    values = network(grid).detach()
    reach = 1.1 * float(values.abs().max()) + tolerance
    if not math.isfinite(reach):
        raise InvalidInput(f"the network is not finite on its domain (reach = {reach!r})")
    made, error = network, 0.0
    for _ in range(extra):
        # a new one each time: a chain does not list a module that occurs in it twice
        part = identity_network(activation, bias, reach, tolerance / extra)
        assert isinstance(part.network, nn.Sequential)
        made, error = compose(part.network, made), error + part.bound
    return Approximant(made, error, box, "X-22")
