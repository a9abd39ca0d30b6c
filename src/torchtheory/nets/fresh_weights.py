"""A network as it was before training: every layer's weights drawn anew by its own rule."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from torchtheory.core.checks import as_module
from torchtheory.core.errors import UnsupportedModel
from torchtheory.models.model import global_randomness_kept
from torchtheory.models.untouched import copied


def drawn_anew(model: nn.Module, seed: int) -> nn.Module:
    """A copy of a model with every layer's own random initialization drawn anew.

    Layers draw by `reset_parameters`, which torch's own have; batch normalization forgets its
    averages as well. Global generators are left where they were.

    >>> old = nn.Linear(2, 2)
    >>> new = drawn_anew(old, 0)
    >>> bool((old.weight == new.weight).any())
    False
    """
    as_module(model)
    new = copied(model)
    renewed: set[int] = set()
    with global_randomness_kept():
        torch.manual_seed(seed)
        for module in new.modules():
            reset: Callable[[], object] | None = getattr(module, "reset_parameters", None)
            reset = reset or getattr(module, "_reset_parameters", None)
            if callable(reset):
                reset()
                renewed |= {id(p) for p in module.parameters(recurse=False)}
    for name, parameter in new.named_parameters():
        if id(parameter) not in renewed:
            raise UnsupportedModel(
                f"{name} belongs to no layer with reset_parameters, so it cannot be drawn anew"
            )
    return new
