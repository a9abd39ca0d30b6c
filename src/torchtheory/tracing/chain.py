r"""A network as a chain of layers $f = f_L \circ \dots \circ f_1$.

Products of layer norms, permutation symmetries and layer-wise formulas need the layers in order.
An `nn.Sequential` is one by construction; any other module is traced with `torch.fx`, and
refused with the name of the operation where the data flow is not a chain.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from torchtheory.core.checks import as_module
from torchtheory.core.errors import UnsupportedModel
from torchtheory.core.naming import operation_words
from torchtheory.models.model import evaluating, evaluation_mode, global_randomness_kept
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

#: Functions with arguments that stand for a layer of torch, and the names of the arguments.
_LAYER_FUNCTIONS: dict[Callable[..., Any] | str, tuple[type[nn.Module], tuple[str, ...]]] = {
    F.gelu: (nn.GELU, ("approximate",)),
    F.silu: (nn.SiLU, ()),
    F.elu: (nn.ELU, ("alpha",)),
    F.leaky_relu: (nn.LeakyReLU, ("negative_slope",)),
    F.softplus: (nn.Softplus, ("beta", "threshold")),
    F.dropout: (nn.Dropout, ("p",)),
    F.max_pool1d: (nn.MaxPool1d, ("kernel_size", "stride", "padding", "dilation", "ceil_mode")),
    F.max_pool2d: (nn.MaxPool2d, ("kernel_size", "stride", "padding", "dilation", "ceil_mode")),
    F.avg_pool1d: (
        nn.AvgPool1d,
        ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"),
    ),
    F.avg_pool2d: (
        nn.AvgPool2d,
        (
            "kernel_size",
            "stride",
            "padding",
            "ceil_mode",
            "count_include_pad",
            "divisor_override",
        ),
    ),
    F.adaptive_avg_pool1d: (nn.AdaptiveAvgPool1d, ("output_size",)),
    F.adaptive_avg_pool2d: (nn.AdaptiveAvgPool2d, ("output_size",)),
    F.adaptive_max_pool2d: (nn.AdaptiveMaxPool2d, ("output_size",)),
}
#: Of these, what may be given besides: whether to work in place, or to train.
_WITHOUT_EFFECT = {F.silu, F.elu, F.leaky_relu, F.dropout}
_RESHAPES: set[Callable[..., Any] | str] = {
    torch.flatten, "flatten", "view", "reshape", torch.reshape,
    "squeeze", torch.squeeze, "unsqueeze", torch.unsqueeze, "contiguous",
}  # fmt: skip
_SIZES: set[Callable[..., Any] | str] = {"size", getattr, "dim"}
_MOVES: set[Callable[..., Any] | str] = {"permute", "transpose"}
_SUMS: set[Callable[..., Any] | str] = {operator.add, operator.iadd, torch.add, "add", "add_"}
_JOINS: set[Callable[..., Any] | str] = {torch.cat, torch.concat}


#: torch changes how all modules are called while it traces one.
_TRACING = threading.RLock()


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


class Average(nn.Module):
    """`x.mean(dims)`, the average over some dimensions.

    Args:
        dims: the dimensions.
        keepdim: whether they stay, with one entry.
    """

    def __init__(self, dims: tuple[int, ...], keepdim: bool = False) -> None:
        super().__init__()
        self.dims = dims
        self.keepdim = keepdim

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.dims, keepdim=self.keepdim)


class Transposition(nn.Module):
    """`x.permute(...)` or `x.transpose(...)`, which leaves no dimension where it was.

    Args:
        method: its name.
        dims: what it is given.
    """

    def __init__(self, method: str, dims: tuple[Any, ...]) -> None:
        super().__init__()
        self.method = method
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        moved: Tensor = getattr(x, self.method)(*self.dims)
        return moved


class Sum(nn.Module):
    """The sum of two values of one network: where a shortcut ends."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class Concatenation(nn.Module):
    """Values of one network side by side.

    Args:
        dim: the dimension along which they are joined.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, *parts: Tensor) -> Tensor:
        return torch.cat(parts, self.dim)


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a network whose data flow may branch.

    Attributes:
        link: the layer; a `Sum` or a `Concatenation` where branches meet.
        inputs: the steps whose values it takes, by their position; -1 is the network's input.
    """

    link: Link
    inputs: tuple[int, ...]


#: Layers that pass on what they are given, in another shape or in the same.
RESHAPING = (nn.Flatten, nn.Unflatten, nn.Identity, Rearrangement)

#: Layers that do nothing in evaluation mode.
DROPPING = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


class _Tracer(fx.Tracer):
    """Goes into containers and user modules, stops at layers of `torch.nn` and ours."""

    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        own = ("torch.nn", "torchtheory.nets.activations.table")
        return module.__module__.startswith(own) and not isinstance(module, nn.Sequential)


def as_chain(model: nn.Module) -> list[Link]:
    """The layers in the order they are applied.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 1)))
    >>> [link.name for link in as_chain(net)]
    ['0', '1.0', '1.1']
    """
    as_module(model)
    if _is_plain_sequential(model):
        return _flatten(model, "")
    if not list(model.children()):
        return [Link("", model)]
    return _follow(_graph(model), dict(model.named_modules()), type(model).__name__)


def as_steps(model: nn.Module) -> list[Step]:
    """The layers in the order they are applied, with the values that each of them takes.

    As `as_chain`, for networks with shortcuts and branches that sums and concatenations join.

    Raises:
        UnsupportedModel: if the model cannot be traced, or does something that is no layer.

    >>> class Block(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.inner = nn.Linear(2, 2)
    ...     def forward(self, x):
    ...         return x + self.inner(x)
    >>> [(type(step.link.module).__name__, step.inputs) for step in as_steps(Block())]
    [('Linear', (-1,)), ('Sum', (-1, 0))]
    """
    as_module(model)
    if not list(model.children()):
        return [Step(Link("", model), (-1,))]
    as_module(model)
    if _is_plain_sequential(model):
        links = _flatten(model, "")
        if all(_Tracer().is_leaf_module(link.module, "") for link in links):
            return [Step(link, (k - 1,)) for k, link in enumerate(links)]
    graph, modules, name = _graph(model), dict(model.named_modules()), type(model).__name__
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    if len(inputs) != 1:
        raise UnsupportedModel(f"{name} has {len(inputs)} inputs, and this is about one")
    places: dict[fx.Node, int] = {inputs[0]: -1}
    sizes: set[fx.Node] = set()
    steps: list[Step] = []
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        if _asks_size(node) or (
            node.target is operator.getitem and sizes.issuperset(node.all_input_nodes)
        ):
            sizes.add(node)
            continue
        taken = _operands(node, sizes)
        link = _joining(node)
        if link is not None and isinstance(link.module, Sum) and len(taken) != 2:
            link = None  # a value and a number
        if link is None and len(taken) == 1:
            link = _link(node, modules, sizes, name)
        if link is None or not all(n in places for n in taken):
            raise UnsupportedModel(
                f"{name} uses {operation_words(node.name)}{_place(node, modules)}, which no layer "
                "rule covers"
            )
        places[node] = len(steps)
        steps.append(Step(link, tuple(places[n] for n in taken)))
    result = next(n for n in graph.nodes if n.op == "output").args[0]
    if not isinstance(result, fx.Node) or places.get(result) != len(steps) - 1:
        raise UnsupportedModel(f"{name} returns something else than its last value")
    return steps


def _operands(node: fx.Node, sizes: set[fx.Node]) -> list[fx.Node]:
    """The values an operation takes, one as often as it takes it."""
    flat: list[Any] = []
    for given in (*node.args, *node.kwargs.values()):
        flat += given if isinstance(given, tuple | list) else [given]
    return [a for a in flat if isinstance(a, fx.Node) and a not in sizes]


def _joining(node: fx.Node) -> Link | None:
    """The sum, concatenation or transposition that an operation is, if it is one."""
    if node.op == "call_module":
        return None
    if node.target in _MOVES and not node.kwargs:
        return Link("", Transposition(str(node.target), tuple(node.args[1:])))
    if node.target in _SUMS and len(node.args) == 2 and not node.kwargs:
        return Link("", Sum()) if all(isinstance(a, fx.Node) for a in node.args) else None
    if node.target in _JOINS and node.args and isinstance(node.args[0], tuple | list):
        dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
        return Link("", Concatenation(dim)) if isinstance(dim, int) and dim else None
    return None


def straight_paths(model: nn.Module) -> list[list[Link]]:
    """Runs of layers, each of which passes its output to the next one and to nothing else.

    A chain is one run. In other networks they are what stands between branches: the layers inside
    a residual block, the dense network behind an attention.

    Raises:
        UnsupportedModel: if the model cannot be traced, and has no part that is known without.

    >>> class Block(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.inner = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    ...     def forward(self, x):
    ...         return x + self.inner(x)
    >>> [[link.name for link in path] for path in straight_paths(Block())]
    [['inner.0', 'inner.1', 'inner.2']]
    """
    as_module(model)
    if _is_plain_sequential(model):
        links = _flatten(model, "")
        if all(_Tracer().is_leaf_module(link.module, "") for link in links):
            return [links, *_inside_encoders(model)]
    elif not list(model.children()):
        return [[Link("", model)]]
    known = _inside_encoders(model)
    try:
        graph = _graph(model)
    except UnsupportedModel:
        if not known:
            raise
        return known
    return _runs(graph, dict(model.named_modules())) + known


def is_watched(module: nn.Module) -> bool:
    """Whether something else is called when the module is, or makes its parameters.

    What such a module computes is not what its layer says.

    >>> layer = nn.Linear(2, 1)
    >>> is_watched(layer), is_watched(nn.utils.parametrizations.orthogonal(layer))
    (False, True)
    """
    hooks = (
        module._forward_hooks, module._forward_pre_hooks,
        module._backward_hooks, module._backward_pre_hooks,
    )  # fmt: skip
    everywhere = torch.nn.modules.module
    hooks_of_all = (everywhere._global_forward_hooks, everywhere._global_forward_pre_hooks)
    if any(hooks) or any(hooks_of_all):
        return True
    return "forward" in vars(module) or "parametrizations" in module._modules


def parameters_read(model: nn.Module) -> set[str]:
    """Parameters that a forward pass uses by itself, and not through the layer they belong to.

    >>> class Tied(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = nn.Linear(2, 3)
    ...     def forward(self, x):
    ...         return self.layer(x) @ self.layer.weight
    >>> parameters_read(Tied())
    {'layer.weight'}
    """
    as_module(model)
    if _is_plain_sequential(model) and not any(list(m.children()) for m in model.children()):
        return set()
    try:
        nodes = _graph(model).nodes
    except UnsupportedModel:
        return set()
    return {str(node.target) for node in nodes if node.op == "get_attr"}


def _graph(model: nn.Module) -> fx.Graph:
    try:
        return trace(model, _Tracer())
    except Exception as error:  # fx raises whatever the model's Python does on a proxy
        sentence = " ".join(str(error).split())[:300]
        if "symbolic" in sentence:  # fx speaks to those who write for it
            sentence = (
                "its forward pass asks Python about its input (len, if, for), and the answer "
                "may differ from sample to sample"
            )
        raise UnsupportedModel(
            f"{type(model).__name__} could not be traced as a chain of layers: {sentence}"
        ) from error


def trace(model: nn.Module, tracer: fx.Tracer) -> fx.Graph:
    """The graph of a model in evaluation mode; the model is left as it was.

    Tracing runs the forward pass, and leaves in the model's attributes what it writes to them.
    """
    own = private_copy(model)
    # a copy need not be put back, and may be on the meta device: only its operations are looked at
    quiet = evaluation_mode if own is model else evaluating
    with quiet(own), global_randomness_kept(), _TRACING:
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
        if _asks_size(node) or (
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
        link = _link(node, modules, sizes, model_name)
        if link is None:
            raise UnsupportedModel(
                f"{model_name} uses {operation_words(node.name)}{_place(node, modules)}, which no "
                "layer rule covers"
            )
        links.append(link)
        current = node
    result = next(n for n in graph.nodes if n.op == "output").args[0]
    if result is not current:
        raise UnsupportedModel(f"{model_name} is not a chain of layers: it returns {result}")
    return links


def _asks_size(node: fx.Node) -> bool:
    """Whether it asks a tensor for its size; a module may have the name of such a method."""
    return node.op != "call_module" and node.target in _SIZES


def _link(
    node: fx.Node, modules: dict[str, nn.Module], sizes: set[fx.Node], model_name: str
) -> Link | None:
    """The layer that an operation is, if it is one."""
    if node.op == "call_module":
        return Link(str(node.target), modules[str(node.target)])
    if node.target in _FUNCTIONS:
        return Link("", _FUNCTIONS[node.target]())
    if node.target is F.dropout and node.kwargs.get("training", [*node.args, True, True][2]):
        return None  # it drops units also in evaluation mode
    if node.target in _LAYER_FUNCTIONS:
        kind, names = _LAYER_FUNCTIONS[node.target]
        given = dict(zip(names, node.args[1:], strict=False))
        besides = [*node.args[1 + len(names) :]]
        besides += [v for k, v in node.kwargs.items() if k not in (*names, "input")]
        if any(besides) and node.target not in _WITHOUT_EFFECT:
            return None
        given |= {k: v for k, v in node.kwargs.items() if k in names and v is not None}
        if any(isinstance(v, fx.Node) for v in given.values()):
            return None
        return Link("", kind(**given).eval())  # what was traced ran in evaluation mode
    if node.target in _RESHAPES:
        return Link("", _rearrangement(node, sizes, model_name))
    if node.target in ("mean", torch.mean) and not sizes.intersection(node.all_input_nodes):
        dims = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
        places = (dims,) if isinstance(dims, int) else dims
        if isinstance(places, tuple | list) and all(isinstance(d, int) for d in places):
            keep = bool(node.kwargs.get("keepdim", len(node.args) > 2 and node.args[2]))
            return Link("", Average(tuple(int(d) for d in places), keep))
    return None


def _place(node: fx.Node, modules: dict[str, nn.Module]) -> str:
    """In which module an operation stands, in words."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    names = {id(m): n for n, m in modules.items()}
    if not stack:
        return ""
    last = stack[-1]
    name = last[0] if isinstance(last, tuple) else names.get(id(last), "")
    return f" (in layer {name!r})" if name else ""


def _runs(graph: fx.Graph, modules: dict[str, nn.Module]) -> list[list[Link]]:
    """Every operation follows the one it takes its only input from, if nothing else does."""
    sizes: set[fx.Node] = set()
    ends: dict[fx.Node, list[Link]] = {}
    found: list[list[Link]] = []
    for node in graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        if _asks_size(node) or (
            node.target is operator.getitem and sizes.issuperset(node.all_input_nodes)
        ):
            sizes.add(node)
            continue
        inputs = [n for n in node.all_input_nodes if n not in sizes]
        try:
            link = None
            if len(inputs) == 1 and not (node.op == "call_module" and node.target not in modules):
                link = _link(node, modules, sizes, "the model")
        except UnsupportedModel:
            link = None
        if link is None:
            continue
        before = inputs[0]
        readers = [u for u in before.users if not _asks_size(u)]
        if before in ends and len(readers) == 1:
            path = ends.pop(before)
        else:
            path = []
            found.append(path)
        path.append(link)
        ends[node] = path
    return found


def _inside_encoders(model: nn.Module) -> list[list[Link]]:
    """The dense networks inside encoder layers of torch, whose forward pass is not traced."""
    functions = {F.relu: nn.ReLU, F.gelu: nn.GELU}
    found = []
    for name, module in model.named_modules():
        if isinstance(module, nn.TransformerEncoderLayer) and has_own_forward(module):
            act = module.activation
            between = act if isinstance(act, nn.Module) else functions.get(act, nn.Module)()
            start = f"{name}." if name else ""
            found.append(
                [
                    Link(f"{start}linear1", module.linear1),
                    Link("", between),
                    Link(f"{start}linear2", module.linear2),
                ]
            )
    return found


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
