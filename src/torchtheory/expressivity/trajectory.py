r"""How long a curve becomes on its way through a network.

The length of $\Phi\circ\gamma$ for a polyline $\gamma$ is exact: the image is a
polyline again, whose corners are the breakpoints of the network along $\gamma$. A smooth
curve is met by the polylines inscribed in it. A continuous curve need not have a length at all.
Source: Mathematical Aspects of Deep Learning, section 1.3.3 (Raghu et al.).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.expressivity.pieces import pieces_along
from torchtheory.nets.feedforward import dense

Bias = Literal["sigma", "power", "none"]


def image_length(model: nn.Module, corners: Tensor) -> float:
    r"""The length of the image of the polyline through `corners[m + 1, ...]`.

    >>> fold = nn.ReLU()
    >>> image_length(fold, torch.tensor([[-1.0], [2.0]]))
    2.0
    """
    values = pieces_along(model, corners).values
    steps = values.reshape(len(values), -1).diff(dim=0)
    return float(torch.linalg.vector_norm(steps, dim=1).sum())


def circle(corners: int = 200) -> Tensor:
    """A regular polygon inscribed in the unit circle, closed: `[corners + 1, 2]`.

    >>> circle(4).shape
    torch.Size([5, 2])
    """
    number = whole_number(corners, "corners", least=3) + 1
    angle = torch.linspace(0, 2 * math.pi, number, dtype=torch.float64)
    angle[-1] = 0.0
    return torch.stack([angle.cos(), angle.sin()], 1)


def gaussian_network(
    widths: Sequence[int],
    sigma: float = 1.0,
    *,
    bias: Bias = "sigma",
    generator: RandomSource = None,
) -> nn.Sequential:
    r"""A ReLU network with weights $N(0,\sigma^2/n)$, $n$ the inputs of a layer.

    The same seed gives the same underlying normal numbers for every $\sigma$.

    Args:
        bias: the standard deviation of the biases: `sigma` for $\sigma$ in every layer,
            `power` for $\sigma^\ell$ in layer $\ell$, `none` for no biases.

    >>> len(gaussian_network([2, 20, 20, 2], 2.0))
    5
    """
    if len(widths) < 2:
        raise InvalidInput(
            f"a network has at least two widths, its inputs and outputs, not {widths}"
        )
    if bias not in ("sigma", "power", "none"):
        raise InvalidInput(f"bias must be 'sigma', 'power' or 'none', not {bias!r}")
    positive_number(sigma, "sigma")
    source = as_generator(generator)
    layers: list[nn.Module] = []
    for number, (n, m) in enumerate(pairwise(widths), start=1):
        weight = gaussian(m, n, generator=source, dtype=torch.float64) * sigma / math.sqrt(n)
        size = {"sigma": sigma, "power": sigma**number, "none": 0.0}[bias]
        offset = size * gaussian(m, generator=source, dtype=torch.float64)
        layers += [dense(weight, offset), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
