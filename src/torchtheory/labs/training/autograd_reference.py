"""What autograd says, for the labs that compute gradients themselves."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from torchtheory.models.model import Parameters

Loss = Callable[[Tensor, Tensor], Tensor]


def autograd_gradients(model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> Parameters:
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(loss(model(x), y), list(parameters.values()))
    return dict(zip(parameters, found, strict=True))


def half_square(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs - y).square().sum() / 2


def torch_operations(run: Callable[[], object]) -> int:
    """Operations of the matrix products and convolutions that torch itself runs, derivatives
    included, by its own counter: two for each multiply-add."""
    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())
