r"""A network as a chain of layers $f = f_L \circ \dots \circ f_1$.

Products of layer norms, permutation symmetries and layer-wise formulas need the layers in order.
An `nn.Sequential` is one by construction; any other module is traced with `torch.fx`, and
refused with the name of the operation where the data flow is not a chain.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from torchtheory.core.errors import UnsupportedModel
from torchtheory.models.model import evaluation_mode
from torchtheory.models.untouched import private_copy


@dataclass(frozen=True, slots=True)
class Link:
    """One layer of a chain: its name in the model ("" for a function such as `F.relu`)."""

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
_RESHAPES: set[Callable[..., Any] | str] = {
    torch.flatten, "flatten", "view", "reshape", torch.reshape,
    "squeeze", torch.squeeze, "unsqueeze", torch.unsqueeze, "contiguous",
}  # fmt: skip
_SIZES: set[Callable[..., Any] | str] = {"size", getattr, "dim"}


class Rearrangement(nn.Module):
    """A tensor method that only moves entries about, such as `x.view(len(x), -1)`.

    Args:
        method: its name.
        arguments: what it is given; None stands for the number of samples.
    """

    def __init__(self, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        super().__init__()
        self.method = method
        self.arguments = arguments
        self.keywords = keywords

    def forward(self, x: Tensor) -> Tensor:
        given = [len(x) if a is None else a for a in self.arguments]
        moved: Tensor = getattr(x, self.method)(*given, **self.keywords)
        return moved


class _Tracer(fx.Tracer):
    """Goes into containers and user modules, stops at layers of `torch.nn` and ours."""

    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        own = ("torch.nn", "torchtheory.nets.activations")
        return module.__module__.startswith(own) and not isinstance(module, nn.Sequential)


def as_chain(model: nn.Module) -> list[Link]:
    """The layers in the order they are applied.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 1)))
    >>> [link.name for link in as_chain(net)]
    ['0', '1.0', '1.1']
    """
    if _is_plain_sequential(model):
        return _flatten(model, "")
    if not list(model.children()):
        return [Link("", model)]
    try:
        graph = trace(model, _Tracer())
    except Exception as error:  # fx raises whatever the model's Python does on a proxy
        sentence = " ".join(str(error).split())[:300]
        if "symbolic" in sentence:  # fx speaks to those who write for it
            sentence = (
                "its forward pass asks Python about its input (len, if, for), and the answer "
            )
            sentence += "may differ from sample to sample"
        raise UnsupportedModel(
            f"{type(model).__name__} could not be traced as a chain of layers: {sentence}"
        ) from error
    return _follow(graph, dict(model.named_modules()), type(model).__name__)


def trace(model: nn.Module, tracer: fx.Tracer) -> fx.Graph:
    """The graph of a model in evaluation mode; the model is left as it was.

    Tracing runs the forward pass, and leaves in the model's attributes what it writes to them.
    """
    own = private_copy(model)
    with evaluation_mode(own):
        return tracer.trace(own)


def has_own_forward(module: nn.Module) -> bool:
    """Whether a layer computes what its class of `torch.nn` does; a user's subclass may not."""
    return type(module).forward.__module__.startswith(("torch.nn.", "torchtheory."))


def _is_plain_sequential(model: nn.Module) -> TypeGuard[nn.Sequential]:
    """Whether it applies its children in order; a subclass may do something else with them."""
    return isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward


def _flatten(model: nn.Sequential, prefix: str) -> list[Link]:
    links = []
    for name, child in model._modules.items():  # named_children leaves out what occurs twice
        assert child is not None
        if _is_plain_sequential(child):
            links += _flatten(child, f"{prefix}{name}.")
        else:
            links.append(Link(prefix + name, child))
    return links


def _follow(graph: fx.Graph, modules: dict[str, nn.Module], model_name: str) -> list[Link]:
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    if len(inputs) != 1:
        raise UnsupportedModel(f"{model_name} has {len(inputs)} inputs; a chain has one")
    links: list[Link] = []
    sizes: set[fx.Node] = set()
    current = inputs[0]
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        if node.target in _SIZES or (
            node.target is operator.getitem and sizes.issuperset(node.all_input_nodes)
        ):
            sizes.add(node)
            continue
        if [n for n in node.all_input_nodes if n not in sizes] != [current]:
            raise UnsupportedModel(
                f"{model_name} is not a chain of layers: {node.name} does not follow "
                f"{current.name} (a skip connection, or a branch)"
            )
        if node.op == "call_module" and node.target not in modules:
            raise UnsupportedModel(f"{model_name} builds {node.target} while it runs")
        if node.op == "call_module":
            links.append(Link(str(node.target), modules[str(node.target)]))
        elif node.target in _FUNCTIONS:
            links.append(Link("", _FUNCTIONS[node.target]()))
        elif node.target in _RESHAPES:
            links.append(Link("", _rearrangement(node, sizes, model_name)))
        else:
            raise UnsupportedModel(f"{model_name} uses {node.name}, which no layer rule covers")
        current = node
    result = next(n for n in graph.nodes if n.op == "output").args[0]
    if result is not current:
        raise UnsupportedModel(f"{model_name} is not a chain of layers: it returns {result}")
    return links


def _rearrangement(node: fx.Node, sizes: set[fx.Node], model_name: str) -> Rearrangement:
    method = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    given = [*node.args[1:], *node.kwargs.values()]
    # x.view(shape) and torch.reshape(x, shape) have the sizes in one tuple
    flat = [a for part in given for a in (part if isinstance(part, tuple | list) else [part])]
    asked = [a for a in flat if isinstance(a, fx.Node)]
    if asked and (len(asked) > 1 or flat[0] is not asked[0] or asked[0] not in sizes):
        raise UnsupportedModel(
            f"{model_name} uses {node.name} with sizes other than the number of samples, which no "
            "layer rule covers"
        )
    if asked:
        return Rearrangement(method, (None, *flat[1:]), {})
    return Rearrangement(method, tuple(node.args[1:]), dict(node.kwargs))
