r"""From layer to layer: does a network make its data linearly separable, and where?

Each layer is a change of coordinates; the last one is a hyperplane, so a network that classifies
its sample perfectly has made it separable by then. Source: Foundations of Deep Learning,
section 2.1, Figure 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import labeled_samples, module_with_values
from torchtheory.core.errors import InvalidInput, NotConverged
from torchtheory.neurons.separability import separate
from torchtheory.tracing.layer_results import layer_outputs


@dataclass(frozen=True, slots=True)
class LayerSeparability:
    """Whether the sample is linearly separable after a layer.

    Attributes:
        layer: the layer's name, or `input`.
        kind: what it is.
        dimension: features it gives out.
        separable: the answer; None where it is within rounding.
    """

    layer: str
    kind: str
    dimension: int
    separable: bool | None


def layerwise_separability(model: nn.Module, x: Tensor, y: Tensor) -> list[LayerSeparability]:
    r"""Test after every layer whether a hyperplane separates the two classes.

    Args:
        model: any module; its layers' outputs are flattened to `[s, features]`.
        x: inputs; y: `[s]` of ±1.

    One linear program a layer, each with as many constraints as samples.

    >>> x = torch.tensor([[0.0, 0], [1, 1], [0, 1], [1, 0]], dtype=torch.float64)
    >>> y = torch.tensor([1, 1, -1, -1])                                   # exclusive or
    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    >>> with torch.no_grad():
    ...     _ = net[0].weight.copy_(torch.tensor([[1.0, 1], [1, 1]]))
    ...     _ = net[0].bias.copy_(torch.tensor([0.0, -1]))
    >>> [(row.kind, row.separable) for row in layerwise_separability(net, x, y)][:3]
    [('input', False), ('Linear', False), ('ReLU', True)]
    """
    module_with_values(model)
    names = {name or "(model)": type(m).__name__ for name, m in model.named_modules()}
    with torch.no_grad():
        outputs = layer_outputs(model, x)
    rows = [
        ("input", "input", x),
        *((k, names[k.split(" (")[0] or k], v) for k, v in outputs.items()),
    ]
    found = []
    for name, kind, values in rows:
        features = values.detach().flatten(1)
        features, labels = labeled_samples(features, y)
        try:
            answer: bool | None = separate(features, labels).separable
        except NotConverged:
            answer = None
        found.append(LayerSeparability(name, kind, features.shape[1], answer))
    return found


def polar_coordinates(x: Tensor) -> Tensor:
    r"""Points of the plane `[s, 2]` as $(r,\varphi)$, $-\pi<\varphi\le\pi$.

    >>> polar_coordinates(torch.tensor([[0.0, 2.0]]))
    tensor([[2.0000, 1.5708]])
    """
    if x.ndim != 2 or x.shape[1] != 2:
        raise InvalidInput(f"polar coordinates are of points [s, 2], not {list(x.shape)}")
    return torch.stack([x.norm(dim=1), torch.atan2(x[:, 1], x[:, 0])], dim=1)
