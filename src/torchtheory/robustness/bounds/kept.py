"""Networks that were traced, kept for as long as their models live and are what they were.

To record a small network takes longer than to bound it. A graph is used again if the model consists
of torch's own layers, without hooks, with the same settings, and with weights that are equal to
those that were recorded, number by number. What a class of somebody else computes may depend on
anything, and is recorded anew each time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_all

from torchtheory.robustness.bounds.graph import Graph
from torchtheory.robustness.bounds.tracing import trace

#: Bytes of weights beyond which nothing is kept: recording them takes little of the time.
_LARGEST = 2**26

_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)

#: Shape of an input and the output that is meant.
_Key = tuple[tuple[int, ...], int | str | None]


@dataclass
class _Known:
    """Settings and weights of a model, and its graphs."""

    settings: tuple[Any, ...]
    weights: list[tuple[str, Tensor]]
    graphs: dict[_Key, Graph] = field(default_factory=dict)


_KNOWN: WeakKeyDictionary[nn.Module, _Known] = WeakKeyDictionary()


def graph_of(model: nn.Module, x: Tensor, output: int | str | None) -> tuple[Graph, Tensor]:
    """The graph of a network for such inputs, and a tensor of its precision and place."""
    settings = _settings(model)
    known = None if settings is None else _KNOWN.get(model)
    if known is None or known.settings != settings or not _equal(model, known.weights):
        if settings is None or _size(model) > _LARGEST:
            return _traced(model, x, output)
        weights = [(name, t.detach().clone()) for name, t in _tensors(model)]
        known = _KNOWN[model] = _Known(settings, weights)
    key = (tuple(x.shape[1:]), output)
    found = known.graphs.get(key)
    if found is None or (found.whole and len(x) != found.vertices[0].shape[0]):
        found = known.graphs[key] = _traced(model, x, output)[0]
    return found, _reference(model)


def _traced(model: nn.Module, x: Tensor, output: int | str | None) -> tuple[Graph, Tensor]:
    like = _reference(model)
    return trace(model, x.detach().to(dtype=like.dtype, device=like.device), output=output), like


def _reference(model: nn.Module) -> Tensor:
    tensors = (*model.parameters(), *model.buffers())
    return next((t.detach() for t in tensors if t.is_floating_point()), torch.empty(0))


def _settings(model: nn.Module) -> tuple[Any, ...] | None:
    """All that decides what torch's own layers compute but their weights; None of others."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return None
    if hooks_of_all._global_forward_hooks or hooks_of_all._global_forward_pre_hooks:
        return None
    found: list[Any] = []
    for name, module in model.named_modules(remove_duplicate=False):
        if not type(module).__module__.startswith("torch.nn.modules."):
            return None
        for key, value in vars(module).items():
            if key in ("_parameters", "_buffers", "_modules"):
                continue
            if isinstance(value, dict | set):
                if value and key != "_non_persistent_buffers_set":  # hooks
                    return None
                continue
            parts = tuple(value) if isinstance(value, tuple | list) else (value,)
            if not all(isinstance(part, _PLAIN) for part in parts):
                return None
            found.append((key, type(value), parts))
        found.append((name, type(module)))
    return tuple(found)


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]


def _size(model: nn.Module) -> int:
    return sum(t.numel() * t.element_size() for _, t in _tensors(model))


def _equal(model: nn.Module, weights: list[tuple[str, Tensor]]) -> bool:
    """Whether the weights are those that were known; NaN is equal to nothing."""
    given = _tensors(model)
    return len(given) == len(weights) and all(
        a == b and x.dtype == y.dtype and x.device == y.device and torch.equal(x, y)
        for (a, x), (b, y) in zip(given, weights, strict=True)
    )
