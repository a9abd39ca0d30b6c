"""What the layers of a chain give out for a sample: features, and the last layer's inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, described
from torchtheory.core.errors import InvalidType, UnsupportedModel
from torchtheory.models.model import evaluation_mode
from torchtheory.tracing.chain import Link, as_chain, has_own_forward


def last_hidden_features(model: nn.Module, x: Tensor) -> Tensor:
    """What the last layer of a chain, an `nn.Linear`, is given: `[samples, width]`.

    >>> net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1))
    >>> last_hidden_features(net, torch.zeros(3, 2)).shape
    torch.Size([3, 5])
    """
    last_layer(model)
    values = layer_values(model, x)
    features = values[-2] if len(values) > 1 else x
    if features.ndim != 2:
        raise UnsupportedModel(
            f"the last layer is given {list(features.shape)}; it must be [samples, features]"
        )
    return features


def last_layer(model: nn.Module) -> nn.Linear:
    """The last layer of a chain, if it is an `nn.Linear` with a weight of its own.

    >>> last_layer(nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1)))
    Linear(in_features=5, out_features=1, bias=True)
    """
    chain = as_chain(model)
    if not chain:
        raise UnsupportedModel("the last layer must be an nn.Linear, and the model has no layer")
    head = chain[-1].module
    if not isinstance(head, nn.Linear) or not has_own_forward(head):
        raise UnsupportedModel(
            f"the last layer must be an nn.Linear, not {type(head).__name__}: what follows it is "
            "left out with model[:-1], say"
        )
    own = {id(p) for p in head.parameters()}
    shared = [m for m in model.modules() if own & {id(p) for p in m._parameters.values()}]
    if not isinstance(head._parameters.get("weight"), nn.Parameter) or shared != [head]:
        raise UnsupportedModel(
            "the last layer must have a weight of its own, and this one computes it from others (a "
            "parametrization) or shares it with another layer"
        )
    return head


def layer_values(model: nn.Module, x: Tensor) -> list[Tensor]:
    """What every layer of the chain gives out for the samples."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 2 or not len(x):
        raise InvalidType(f"x must be a tensor of real numbers [samples, ...], not {described(x)}")
    all_finite(x, "x")
    links: list[Link] = as_chain(model, x)
    values = []
    value = x.detach()
    with torch.no_grad(), evaluation_mode(model):
        for link in links:
            # a copy: a layer such as ReLU(inplace=True) writes to what it is given
            value = link.module(value.clone())
            values.append(value)
    return values
