r"""Sigmoid networks as tanh networks and back.

$\tanh z=2\sigma(2z)-1$, so either activation is the other between two affine maps, and the
affine maps can be taken into the neighboring dense layers. Source: Deep Learning (notes),
section 2.4; Foundations of Deep Learning, section 2.4.3.
"""

from __future__ import annotations

import copy
from typing import Literal

from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, UnsupportedModel
from torchtheory.nets.feedforward import dense
from torchtheory.tracing.chain import as_chain


class Affine(nn.Module):
    """`scale * x + shift` with two fixed numbers.

    >>> import torch
    >>> Affine(2.0, -1.0)(torch.tensor([3.0]))
    tensor([5.])
    """

    def __init__(self, scale: float, shift: float) -> None:
        super().__init__()
        self.scale, self.shift = scale, shift

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x + self.shift

    def extra_repr(self) -> str:
        return f"{self.scale:g} x {self.shift:+g}"


def convert_activation(model: nn.Module, to: Literal["tanh", "sigmoid"]) -> nn.Sequential:
    r"""The same function with every sigmoid replaced by a tanh, or the other way round.

    $$
    \sigma(z)=\tfrac12\tanh(\tfrac12z)+\tfrac12,\qquad \tanh z=2\sigma(2z)-1
    $$

    The factor before the activation goes into the dense layer before it, the affine map after it
    into the dense layer behind it, which gets a bias if it had none. Where the neighbor is no
    dense layer, an `Affine` is put in. The model is not changed.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Sigmoid(), nn.Linear(3, 1))
    >>> convert_activation(net, "tanh")
    Sequential(
      (0): Linear(in_features=2, out_features=3, bias=True)
      (1): Tanh()
      (2): Linear(in_features=3, out_features=1, bias=True)
    )
    """
    if to == "tanh":
        old: type[nn.Module] = nn.Sigmoid
        new: type[nn.Module] = nn.Tanh
        inner, scale, shift = 0.5, 0.5, 0.5
    elif to == "sigmoid":
        old, new = nn.Tanh, nn.Sigmoid
        inner, scale, shift = 2.0, 2.0, -1.0
    else:
        raise InvalidInput(f"a network is converted to 'tanh' or 'sigmoid', not to {to!r}")
    links = as_chain(model)
    shared = [link for link in links if sum(link.module is m.module for m in links) > 1]
    if any(next(link.module.parameters(), None) is not None for link in shared):
        raise UnsupportedModel(f"layer {shared[0].name} is used twice: it cannot be converted")
    made: list[nn.Module] = []
    owed = False  # whether scale * x + shift still has to be applied to what comes next
    for link in links:
        module = link.module
        if owed and not isinstance(module, nn.Linear):
            made.append(Affine(scale, shift))
            owed = False
        if isinstance(module, old):
            if made and isinstance(made[-1], nn.Linear):
                last = made[-1]
                made[-1] = dense(
                    inner * last.weight, None if last.bias is None else inner * last.bias
                )
            else:
                made.append(Affine(inner, 0.0))
            made.append(new())
            owed = True
        elif isinstance(module, nn.Linear) and owed:
            weight = module.weight.detach()
            constant = shift * weight.sum(1)
            bias = constant if module.bias is None else module.bias.detach() + constant
            made.append(dense(scale * weight, bias))
            owed = False
        else:
            made.append(copy.deepcopy(module))
    if owed:
        made.append(Affine(scale, shift))
    return nn.Sequential(*made).train(model.training)
