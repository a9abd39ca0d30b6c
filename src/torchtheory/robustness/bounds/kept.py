"""Networks that were traced, kept for as long as their models live and are what they were.

To copy and to follow a small network takes longer than to bound it. A graph is used again if the
model consists of torch's own layers, without hooks, with the same settings, and with weights that
are equal to those of the copy that was followed, number by number. What a class of somebody else
computes may depend on anything, and is followed anew each time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_all

from torchtheory.models.model import PureFunction
from torchtheory.robustness.bounds.graph import Graph
from torchtheory.robustness.bounds.tracing import trace

#: Bytes of weights beyond which nothing is kept: following them takes little of the time.
_LARGEST = 2**26

_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)


@dataclass
class _Followed:
    """A copy of a model, and its graphs by the shape of an input and the output that is meant."""

    settings: tuple[Any, ...]
    own: nn.Module
    graphs: dict[tuple[tuple[int, ...], int | str | None], Graph] = field(default_factory=dict)
    turn: Lock = field(default_factory=Lock)  # a copy is followed by one thread at a time


_FOLLOWED: WeakKeyDictionary[nn.Module, _Followed] = WeakKeyDictionary()


def graph_of(
    model: nn.Module, shape: tuple[int, ...], output: int | str | None
) -> tuple[Graph, Tensor]:
    """The graph of a network for inputs of a shape, and a tensor of its precision and place."""
    settings = _settings(model)
    followed = None if settings is None else _FOLLOWED.get(model)
    if followed is None or followed.settings != settings or not _equal(model, followed.own):
        pure = PureFunction(model)
        # where no copy can be made `trace` says so
        own = None if pure.model is model else pure.model.requires_grad_(False)
        if settings is None or own is None or _size(model) > _LARGEST:
            like = pure.reference()
            return trace(model, _sample(shape, like), output=output, own=own), like
        followed = _FOLLOWED[model] = _Followed(settings, own)
    like = _reference(followed.own)
    key = (shape, output)
    with followed.turn:
        if key not in followed.graphs:
            followed.graphs[key] = trace(
                model, _sample(shape, like), output=output, own=followed.own
            )
    return followed.graphs[key], like


def _sample(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device)


def _reference(model: nn.Module) -> Tensor:
    tensors = (*model.parameters(), *model.buffers())
    return next((t for t in tensors if t.is_floating_point()), torch.empty(0))


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


def _equal(model: nn.Module, own: nn.Module) -> bool:
    """Whether the weights are those of the copy; NaN is equal to nothing."""
    given, known = _tensors(model), _tensors(own)
    return len(given) == len(known) and all(
        a == b and x.dtype == y.dtype and x.device == y.device and torch.equal(x, y)
        for (a, x), (b, y) in zip(given, known, strict=True)
    )
