r"""A network as a chain of layers :math:`f = f_L \circ \dots \circ f_1`.

Products of layer norms, permutation symmetries and layer-wise formulas need the layers in order.
An ``nn.Sequential`` is one by construction; any other module is traced with ``torch.fx``, and
refused with the name of the operation where the data flow is not a chain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from torchtheory.core.errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class Link:
    """One layer of a chain: its name in the model ("" for a function such as ``F.relu``)."""

    name: str
    module: nn.Module


#: Functions and tensor methods that stand for a layer without parameters.
_FUNCTIONS: dict[Callable[..., Any] | str, Callable[[], nn.Module]] = {
    F.relu: nn.ReLU,
    torch.relu: nn.ReLU,
    "relu": nn.ReLU,
    torch.tanh: nn.Tanh,
    "tanh": nn.Tanh,
    torch.sigmoid: nn.Sigmoid,
    "sigmoid": nn.Sigmoid,
}
_RESHAPES: set[Callable[..., Any] | str] = {torch.flatten, "flatten", "view", "reshape"}
_SIZES: set[Callable[..., Any] | str] = {"size", getattr, "dim"}


class _Tracer(fx.Tracer):
    """Goes into containers and user modules, stops at layers of ``torch.nn`` and ours."""

    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        own = ("torch.nn", "torchtheory.nets.activations")
        return module.__module__.startswith(own) and not isinstance(module, nn.Sequential)


def as_chain(model: nn.Module) -> list[Link]:
    """The layers in the order they are applied.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 1)))
    >>> [link.name for link in as_chain(net)]
    ['0', '1.0', '1.1']
    """
    if isinstance(model, nn.Sequential):
        return _flatten(model, "")
    if not list(model.children()):
        return [Link("", model)]
    try:
        graph = _Tracer().trace(model)
    except Exception as error:  # fx raises whatever the model's Python does on a proxy
        raise UnsupportedModel(
            f"{type(model).__name__} could not be traced as a chain of layers: {error}"
        ) from error
    return _follow(graph, dict(model.named_modules()), type(model).__name__)


def _flatten(model: nn.Sequential, prefix: str) -> list[Link]:
    links = []
    for name, child in model.named_children():
        if isinstance(child, nn.Sequential):
            links += _flatten(child, f"{prefix}{name}.")
        else:
            links.append(Link(prefix + name, child))
    return links


def _follow(graph: fx.Graph, modules: dict[str, nn.Module], model_name: str) -> list[Link]:
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    if len(inputs) != 1:
        raise UnsupportedModel(f"{model_name} has {len(inputs)} inputs; a chain has one")
    links: list[Link] = []
    current = inputs[0]
    for node in graph.nodes:
        if node.op in ("placeholder", "output") or node.target in _SIZES:
            continue
        if not node.args or node.args[0] is not current:
            raise UnsupportedModel(
                f"{model_name} is not a chain of layers: {node.name} does not follow "
                f"{current.name} (a skip connection, or a branch)"
            )
        if node.op == "call_module":
            links.append(Link(str(node.target), modules[str(node.target)]))
        elif node.target in _FUNCTIONS:
            links.append(Link("", _FUNCTIONS[node.target]()))
        elif node.target in _RESHAPES:
            links.append(Link("", nn.Flatten()))
        else:
            raise UnsupportedModel(f"{model_name} uses {node.name}, which no layer rule covers")
        current = node
    result = next(n for n in graph.nodes if n.op == "output").args[0]
    if result is not current:
        raise UnsupportedModel(f"{model_name} is not a chain of layers: it returns {result}")
    return links
