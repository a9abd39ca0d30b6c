"""A network as it was before training: every layer's weights drawn anew by its own rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from torchtheory.core.checks import as_module
from torchtheory.core.errors import UnsupportedModel
from torchtheory.models.model import global_randomness_kept
from torchtheory.models.untouched import copied


def drawn_anew(model: nn.Module, seed: int, layers: Sequence[str] | None = None) -> nn.Module:
    """A copy of a model with every layer's own random initialization drawn anew.

    Layers draw by `reset_parameters`, which torch's own have; batch normalization forgets its
    averages as well. Global generators are left where they were.

    Args:
        model: any module; it is left alone.
        seed: of what is drawn.
        layers: names of those that are drawn anew, in this order; all unless given.

    >>> old = nn.Linear(2, 2)
    >>> new = drawn_anew(old, 0)
    >>> bool((old.weight == new.weight).any())
    False
    """
    if layers is None:
        renewable_layers(model)  # refuses what cannot be drawn
    new = copied(model)
    chosen = new.modules() if layers is None else [new.get_submodule(name) for name in layers]
    with global_randomness_kept():
        torch.manual_seed(seed)
        for module in chosen:
            reset = _reset(module)
            if reset is not None:
                reset()
    return new


def renewable_layers(model: nn.Module) -> tuple[str, ...]:
    """Names of the layers with weights of their own that can be drawn anew, in the model's order.

    Raises:
        UnsupportedModel: if a parameter belongs to no such layer.

    >>> renewable_layers(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    ('0', '2')
    """
    names: list[str] = []
    renewed: set[int] = set()
    for name, module in as_module(model).named_modules():
        own = {id(p) for p in module.parameters(recurse=False)}
        if own and _reset(module) is not None:
            names.append(name)
            renewed |= own
    for name, parameter in model.named_parameters():
        if id(parameter) not in renewed:
            raise UnsupportedModel(
                f"{name} belongs to no layer with reset_parameters, so it cannot be drawn anew"
            )
    return tuple(names)


def _reset(module: nn.Module) -> Callable[[], object] | None:
    found: Callable[[], object] | None = getattr(module, "reset_parameters", None)
    found = found or getattr(module, "_reset_parameters", None)
    return found if callable(found) else None
