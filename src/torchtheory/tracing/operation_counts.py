"""How many operations a call takes: those of its matrix products and convolutions.

The call is recorded, and what multiplies in it is counted operation by operation
(`torchtheory.tracing.multiplications`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from torchtheory.tracing.kinds import KIND_OF
from torchtheory.tracing.multiplications import COUNTED, multiplications
from torchtheory.tracing.network import Network
from torchtheory.tracing.recorder import record_call


def count_operations(run: Callable[..., object], *inputs: Any) -> int:
    """Operations of the matrix products and convolutions in a call: two for each multiply-add.

    Args:
        run: a model, which is run in evaluation mode, or a function of tensors.
        inputs: what it is called with.

    >>> import torch
    >>> count_operations(torch.matmul, torch.ones(2, 3), torch.ones(3, 5))
    60
    """
    return 2 * sum(map(multiplications, recorded_call(run, *inputs)))


def recorded_call(run: Callable[..., object], *inputs: Any) -> Network:
    """The operations of a call, with what multiplies in such as are counted."""
    model = run if isinstance(run, nn.Module) else _Called(run)
    return record_call(model, inputs, {}, known=_is_counted)[0]


class _Called(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def _is_counted(name: str) -> bool:
    return name in COUNTED or KIND_OF.get(name) not in ("product", "composite")
