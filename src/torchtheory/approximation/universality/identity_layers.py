r"""A network made deeper without changing what it computes on a box.

One layer of a given activation represents the identity, exactly or as well as one likes:

| layer, times $h\varrho'(\lambda)$ in the last two rows | units | where | error |
|---|---|---|---|
| $\varrho(z+b)-b$, ReLU | 1 | $z\ge-b$ | none |
| $\varrho(z)-\varrho(-z)$, ReLU (`network_calculus.deepen`) | 2 | everywhere | none |
| $\varrho(\lambda+hz)-\varrho(\lambda)$ | 1 | $-r\le z\le r$ | $O(h)$ |
| $\varrho(\lambda+\frac h2z)-\varrho(\lambda-\frac h2z)$ | 2 | $-r\le z\le r$ | $O(h^2)$ |

So a deeper architecture contains a shallower one where its layers are wide enough, on a bounded
domain, and for activations other than ReLU up to an error only. Source: Mathematical Aspects of
Deep Learning, section 1.6.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import Box, as_box
from torchtheory.approximation.network_calculus import chain
from torchtheory.approximation.polynomials.divided_differences import (
    monomial_error,
    monomial_network,
    smooth_layer,
)
from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import ShapeMismatch, UnsupportedModel
from torchtheory.nets.feedforward import affine_layers
from torchtheory.tracing.activations import ACTIVATION_LAYERS, layer_facts


@dataclass(frozen=True, slots=True)
class Deepened:
    """A deeper network and how far it may be from the one it was made of.

    Attributes:
        network: the deeper network.
        bound: the largest distance of the two in any output, anywhere on the box.
        domain: the box.
    """

    network: nn.Sequential
    bound: float
    domain: Box


def deepen_on_box(
    network: nn.Sequential,
    layers: int,
    domain: Sequence[tuple[float, float]] | tuple[float, float],
    *,
    activation: str = "relu",
    step: float = 1e-3,
    bias: float = 0.0,
    central: bool = True,
) -> Deepened:
    r"""The same function on a box, with `layers` more hidden layers before the last one.

    The range of the outputs on the box is bounded by interval arithmetic. With ReLU, layers of as
    many units as there are outputs carry the values on, shifted to be positive, and the bound is
    that of rounding alone. With another activation they are difference quotients, each within
    `monomial_error` of the identity, and the errors add up.

    Args:
        network: affine layers with increasing activations between them; it is not changed.
        layers: how many hidden layers to add.
        domain: `(a, b)` for each input, or one pair for a network of one input.
        activation: of the new layers, by name.
        step: $h$ of the difference quotients, relative to the radius of the outputs' range.
        bias: $\lambda$, where the activation has a slope.
        central: two units for each value and an error of order $h^2$; else one and $h$.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    >>> deep = deepen_on_box(net, 4, [(-1, 1), (-1, 1)])
    >>> [m.out_features for m in deep.network if isinstance(m, nn.Linear)]
    [3, 2, 2, 2, 2, 2]
    >>> x = torch.linspace(-1, 1, 6).double().reshape(3, 2)
    >>> torch.allclose(deep.network(x), net(x))
    True
    """
    maps, between = affine_layers(network)
    whole_number(layers, "layers", least=1)
    positive_number(step, "step")
    box = as_box(domain)
    if maps[0][0].shape[1] != len(box):
        raise ShapeMismatch(
            f"the network has {maps[0][0].shape[1]} inputs and the box {len(box)} dimensions"
        )
    low, high, size = _ranges(maps, between, box)
    if activation == "relu":
        weight, shift = maps[-1]
        eye = torch.eye(len(weight)).to(weight)
        made = chain(
            [
                *maps[:-1],
                (weight, shift - low),
                *[(eye, torch.zeros_like(low))] * (layers - 1),
                (eye, low),
            ],
            [*between, *(nn.ReLU() for _ in range(layers))],
        )
        # two sums of the last affine layer differ by the rounding of their terms
        rounding = (maps[-1][0].shape[1] + 4) * torch.finfo(weight.dtype).eps
        return Deepened(made, 2 * rounding * float((size + low.abs()).max()), box)
    if maps[-1][0].dtype != torch.float64:
        raise UnsupportedModel(
            f"difference quotients need double precision, and the network has {maps[-1][0].dtype}: "
            "give a copy of it, copy.deepcopy(network).double()"
        )
    return _by_differences(
        maps, between, box, (low, high), layers, activation, step, bias, central=central
    )


def _by_differences(
    maps: list[tuple[Tensor, Tensor]],
    between: list[nn.Module],
    box: Box,
    ends: tuple[Tensor, Tensor],
    layers: int,
    activation: str,
    step: float,
    bias: float,
    *,
    central: bool,
) -> Deepened:
    low, high = ends
    middle, eye = (low + high) / 2, torch.eye(len(low)).to(low)
    made, added, error = list(maps), list(between), 0.0
    for _ in range(layers):
        # the range so far, as large as the errors may have made it
        radius = float((high - low).max()) / 2 + error or 1.0
        h = step / radius
        one = monomial_network(1, activation, bias, h, radius=radius, central=central)
        assert isinstance(one.network, nn.Sequential)
        (enter, offset), (leave, _) = affine_layers(one.network)[0]
        constant = torch.zeros_like(low)
        if not central:
            # the unit with weight 0 is a constant: it goes into the bias
            at = float(smooth_layer(activation)(torch.tensor(float(bias), dtype=low.dtype)))
            constant = constant + float(leave[0, 0]) * at
            enter, offset, leave = enter[1:], offset[1:], leave[:, 1:]
        first = torch.kron(eye, enter)
        weight, shift = made[-1]
        made[-1] = (first @ weight, first @ (shift - middle) + offset.repeat(len(low)))
        made.append((torch.kron(eye, leave), middle + constant))
        added.append(smooth_layer(activation))
        error += monomial_error(1, activation, bias, h, radius=radius, central=central).total
    return Deepened(chain(made, added), error, box)


def _increases(layer: nn.Module) -> bool:
    """Whether the activation increases, which some do for some of their parameters only."""
    if isinstance(layer, nn.Identity | nn.Softplus):  # of the latter see `_drop`
        return True
    return type(layer) in ACTIVATION_LAYERS and layer_facts(layer).increasing


def _drop(layer: nn.Module) -> float:
    """How far an increasing activation falls anyway: torch's softplus is x past a threshold."""
    if not isinstance(layer, nn.Softplus):
        return 0.0
    return math.log1p(math.exp(-layer.threshold)) / abs(layer.beta)


def _ranges(
    maps: list[tuple[Tensor, Tensor]], between: list[nn.Module], box: Box
) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs lie between the first two; the third bounds the sums of their terms' sizes."""
    odd = next((m for m in between if not _increases(m)), None)
    if odd is not None:
        raise UnsupportedModel(
            f"the range of a network is followed through increasing activations, and "
            f"{odd} is not known as one"
        )
    ends = torch.tensor(box).to(maps[0][0]).T
    low, high = ends[0], ends[1]
    size = low
    for i, (weight, bias) in enumerate(maps):
        if i:
            layer = between[i - 1]
            low, high = layer(low) - _drop(layer), layer(high) + _drop(layer)
        size = weight.abs() @ torch.maximum(low.abs(), high.abs()) + bias.abs()
        positive, negative = weight.clamp(min=0), weight.clamp(max=0)
        low, high = (
            positive @ low + negative @ high + bias,
            positive @ high + negative @ low + bias,
        )
        # outward, so that rounding cannot put a value outside
        slack = (weight.shape[1] + 4) * torch.finfo(weight.dtype).eps * size
        low, high = low - slack, high + slack
    return low, high, size
