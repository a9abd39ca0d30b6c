"""What the labs on networks share: how far two tensors are apart, and a layer by its place."""

from __future__ import annotations

from torch import Tensor, nn

from torchtheory.core.errors import UnsupportedModel


def gap(a: Tensor, b: Tensor) -> float:
    """Largest absolute difference.

    >>> import torch
    >>> gap(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 5.0]))
    3.0
    """
    return float((a.detach() - b.detach()).abs().max())


def linear_layer(net: nn.Module, place: int) -> nn.Linear:
    """The dense layer at a place of an `nn.Sequential`.

    >>> linear_layer(nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), -1).out_features
    2
    """
    found = net[place] if isinstance(net, nn.Sequential) else None
    if not isinstance(found, nn.Linear):
        raise UnsupportedModel(f"place {place} of {type(net).__name__} holds no dense layer")
    return found
