r"""A network as layers in order: a chain $f = f_L \circ \dots \circ f_1$, or steps that branch.

Products of layer norms, permutation symmetries and layer-wise formulas need the layers. An
`nn.Sequential` of layers is a chain by construction; any other network is recorded, and every
operation of it is the layer of `torch.nn` whose forward pass it is, or one that is made from it
(`torchtheory.tracing.layers`): a function such as `F.relu`, a weight that is used elsewhere, the
operators of an exported network. What is no layer is refused with its name and its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_module
from torchtheory.core.errors import OutOfTime, TorchTheoryError, UnsupportedModel
from torchtheory.core.naming import operation_words
from torchtheory.models.model import PureFunction, evaluating, global_randomness_kept
from torchtheory.models.untouched import contents_kept
from torchtheory.tracing.examples import example_input
from torchtheory.tracing.layers import (
    Average,
    Concatenation,
    LayerMaker,
    Rearrangement,
    Sum,
    Transposition,
)
from torchtheory.tracing.network import Network, Operation, Value, pair_up
from torchtheory.tracing.recorder import agree, input_tensors, record

__all__ = [
    "DROPPING",
    "RESHAPING",
    "Average",
    "Concatenation",
    "Flow",
    "Link",
    "Other",
    "Rearrangement",
    "Step",
    "Sum",
    "Transposition",
    "as_chain",
    "as_steps",
    "flow_of",
    "has_own_forward",
    "is_watched",
    "parameters_read",
    "straight_paths",
]

#: Layers that pass on what they are given, in another shape or in the same.
RESHAPING = (nn.Flatten, nn.Unflatten, nn.Identity, Rearrangement)

#: Layers that do nothing in evaluation mode.
DROPPING = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)

#: Layers of torch that are made of layers, with more than one way through them.
_BRANCHED = (
    nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder, nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Link:
    """One layer of a chain: its name in the model ("" for a function such as `F.relu`)."""

    name: str
    module: nn.Module


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a network whose data flow may branch.

    Attributes:
        link: the layer; a `Sum` or a `Concatenation` where branches meet.
        inputs: the steps whose values it takes, by their position; -1 is the network's input.
    """

    link: Link
    inputs: tuple[int, ...]


class Other(nn.Module):
    """Stands for something in a network that is no layer.

    Args:
        words: what it is.
    """

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words

    def forward(self, *x: Tensor) -> Tensor:
        raise UnsupportedModel(f"{self.words} is no layer, and stands here for itself alone")


@dataclass(frozen=True, slots=True)
class Flow:
    """Layers of a network, and what is none in it, with the values that each of them takes.

    Attributes:
        steps: as of `as_steps`; what is no layer is an `Other`.
        dimensions: of the values that the steps make, as many as their tensors have.
        returned: the steps whose values are outputs.
        shared: names of parameters that are used otherwise than once, by the layer they belong to.
    """

    steps: list[Step]
    dimensions: list[int]
    returned: frozenset[int]
    shared: frozenset[str]


def as_chain(model: nn.Module | PureFunction, x: Tensor | None = None) -> list[Link]:
    """The layers in the order they are applied.

    Args:
        model: a network; a layer in it that is no chain itself stays one link where the network is
            an `nn.Sequential`.
        x: a few inputs, `[n, ...]`; without them some are made up, where it can be seen what the
            network takes.

    Raises:
        UnsupportedModel: if it is no chain, does something that is no layer, or runs on no input
            that was tried.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 1)))
    >>> [link.name for link in as_chain(net)]
    ['0', '1.0', '1.1']
    """
    own = _module_of(model)
    if _is_plain_sequential(own):
        links = _flatten(own, "")
        return links if all(map(_is_closed, links)) else _opened(model, links, x)
    if _is_leaf(own):
        return [Link("", own)]
    try:
        return _View(model, x).chain()
    except TorchTheoryError:
        if list(own.children()):
            raise
        return [Link("", own)]


def as_steps(model: nn.Module | PureFunction, x: Tensor | None = None) -> list[Step]:
    """The layers in the order they are applied, with the values that each of them takes.

    As `as_chain`, for networks with shortcuts and branches that sums and concatenations join.

    Args:
        model: a network.
        x: a few inputs, `[n, ...]`; without them some are made up, where it can be seen what the
            network takes.

    Raises:
        UnsupportedModel: if the model does something that is no layer, or runs on no input that
            was tried.

    >>> class Block(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.inner = nn.Linear(2, 2)
    ...     def forward(self, x):
    ...         return x + self.inner(x)
    >>> [(type(step.link.module).__name__, step.inputs) for step in as_steps(Block())]
    [('Linear', (-1,)), ('Sum', (-1, 0))]
    """
    own = _module_of(model)
    if _is_leaf(own):
        return [Step(Link("", own), (-1,))]
    if _is_plain_sequential(own):
        links = _flatten(own, "")
        if all(_is_leaf(link.module) for link in links):
            return [Step(link, (k - 1,)) for k, link in enumerate(links)]
    try:
        return _View(model, x).steps()
    except TorchTheoryError:
        if list(own.children()):
            raise
        return [Step(Link("", own), (-1,))]


def flow_of(model: nn.Module | PureFunction, x: Tensor | None = None) -> Flow:
    """The layers of any network, also of one that does more than layers do.

    Args:
        model: a network.
        x: a few inputs, `[n, ...]`; without them some are made up, where it can be seen what the
            network takes.

    Raises:
        UnsupportedModel: if the model cannot be recorded.

    >>> class Gated(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.gate = nn.Linear(2, 2)
    ...     def forward(self, x):
    ...         return x * self.gate(x)
    >>> [type(step.link.module).__name__ for step in flow_of(Gated()).steps]
    ['Linear', 'Other']
    """
    return _View(model, x, branched=True).flow()


def straight_paths(model: nn.Module | PureFunction, x: Tensor | None = None) -> list[list[Link]]:
    """Runs of layers, each of which passes its output to the next one and to nothing else.

    A chain is one run. In other networks they are what stands between branches: the layers inside
    a residual block, the dense network behind an attention.

    Args:
        model: a network.
        x: a few inputs, `[n, ...]`; without them some are made up, where it can be seen what the
            network takes.

    Raises:
        UnsupportedModel: if the model cannot be recorded.

    >>> class Block(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.inner = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    ...     def forward(self, x):
    ...         return x + self.inner(x)
    >>> [[link.name for link in path] for path in straight_paths(Block())]
    [['inner.0', 'inner.1', 'inner.2']]
    """
    own = _module_of(model)
    if _is_leaf(own) and not isinstance(own, _BRANCHED):
        return [[Link("", own)]]
    if _is_plain_sequential(own):
        links = _flatten(own, "")
        if all(_is_leaf(m) and not isinstance(m, _BRANCHED) for m in (k.module for k in links)):
            return [links]
    return _View(model, x, branched=True).runs()


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


def parameters_read(model: nn.Module | PureFunction, x: Tensor | None = None) -> set[str]:
    """Parameters that a forward pass uses otherwise than once, through the layer they belong to.

    >>> class Tied(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = nn.Linear(2, 3)
    ...     def forward(self, x):
    ...         return self.layer(x) @ self.layer.weight
    >>> parameters_read(Tied())
    {'layer.weight'}
    """
    own = _module_of(model)
    if _is_plain_sequential(own) and all(_is_leaf(k.module) for k in _flatten(own, "")):
        return set()
    return _View(model, x, branched=True).shared()


def has_own_forward(module: nn.Module) -> bool:
    """Whether a layer computes what its class of `torch.nn` does; a user's subclass may not."""
    return _home_of_forward(module).startswith(("torch.nn.", "torchtheory."))


def _module_of(model: nn.Module | PureFunction) -> nn.Module:
    return model.model if isinstance(model, PureFunction) else as_module(model)


def _home_of_forward(module: nn.Module) -> str:
    """The Python module in which its forward pass is written; a scripted one has none."""
    if isinstance(module, torch.jit.ScriptModule):
        return ""
    home: str = type(module).forward.__module__
    return home


# ------------------------------------------------------------------------- which layers are one


def _is_plain_sequential(model: nn.Module) -> TypeGuard[nn.Sequential]:
    """Whether it applies its children in order; a subclass may do something else with them."""
    return isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward


def _is_leaf(module: nn.Module) -> bool:
    """Whether it is a layer of torch or of ours, which stays one."""
    kind = type(module)
    if isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict):
        return False
    if kind.__module__.startswith(("torch.nn", "torchtheory.nets.activations.table")):
        return kind is not nn.Module
    if not _home_of_forward(module).startswith("torch.nn."):
        return False
    added: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.startswith("torch.nn"):
            break
        added |= {name for name, entry in vars(base).items() if callable(entry)}
    return added <= {"__init__", "extra_repr", "reset_parameters"}  # the same, made otherwise


def _is_closed(link: Link) -> bool:
    """Whether a part of an `nn.Sequential` is taken as it is."""
    return _is_leaf(link.module) or _home_of_forward(link.module).startswith("torchtheory.")


def _flatten(model: nn.Sequential, prefix: str) -> list[Link]:
    links = []
    for name, child in model._modules.items():  # named_children leaves out what occurs twice
        assert child is not None
        if _is_plain_sequential(child):
            links += _flatten(child, f"{prefix}{name}.")
        else:
            links.append(Link(prefix + name, child))
    return links


def _opened(model: nn.Module | PureFunction, links: list[Link], x: Tensor | None) -> list[Link]:
    """A chain whose parts are chains of layers themselves where they can be."""
    try:
        view = _View(model, x)
    except TorchTheoryError:
        return links
    return [part for link in links for part in (view.inside(link) or [link])]


# ----------------------------------------------------------------------------------- the view


@dataclass(eq=False)
class _Unit:
    """Operations that are one layer.

    Attributes:
        operations: that follow the input, in order.
        layer: path of the layer of torch whose call they are; None for a single operation.
        taken: what it takes of what follows the input.
        made: what others take of what it makes; None if that is not one value.
    """

    operations: list[Operation]
    layer: str | None
    taken: tuple[Value, ...] = ()
    made: Value | None = None

    @property
    def words(self) -> str:
        """What to call it."""
        return self.layer or operation_words(self.operations[-1].name)

    @property
    def place(self) -> str:
        layer = self.operations[-1].layer
        return f" (in layer {layer!r})" if layer else ""


class _View:
    """A recorded network as layers.

    Args:
        model: the network.
        x: inputs; made up if None.
        branched: whether to look into layers of torch that are made of layers.
    """

    def __init__(
        self, model: nn.Module | PureFunction, x: Tensor | None, *, branched: bool = False
    ) -> None:
        self.branched = branched
        self.function = model if isinstance(model, PureFunction) else PureFunction(model)
        model = _module_of(model)
        self.title = type(model).__name__
        self.x = example_input(model) if x is None else x
        self.network: Network = record(self.function, self.x)
        if self.network.decisions:
            op = self.network.decisions[0]
            raise UnsupportedModel(
                f"{self.title} could not be traced as layers: its forward pass asks what is in "
                f"its input ({op.name.strip('_')}), and another input may go another way "
                f"(in {op.place})"
            )
        self.modules = dict(model.named_modules())
        self.units = list(self._units())
        self._maker = LayerMaker(self.network, model)

    # -- layers in different forms -----------------------------------------------------------------

    def chain(self) -> list[Link]:
        """Every layer follows the one before."""
        if len(self.network.inputs) != 1:
            raise UnsupportedModel(
                f"{self.title} has {len(self.network.inputs)} inputs; a chain has one"
            )
        self._refuse_disorder(self.units, self.network.inputs[0])
        last = self.units[-1].made if self.units else self.network.inputs[0]
        if self.network.output is not last:
            what = "its input" if self.network.output in self.network.inputs else "something else"
            if not isinstance(self.network.output, Value):
                what = f"a {type(self.network.output).__name__}"
            raise UnsupportedModel(
                f"{self.title} is not a chain of layers: it returns {what} and not its last value"
            )
        return [self._link_or_refuse(unit) for unit in self.units]

    def steps(self) -> list[Step]:
        """Every layer takes what some of those before it make."""
        if len(self.network.inputs) != 1:
            raise UnsupportedModel(
                f"{self.title} has {len(self.network.inputs)} inputs, and this is about one"
            )
        places: dict[Value, int] = {self.network.inputs[0]: -1}
        found: list[Step] = []
        for unit in self.units:
            link = self._link_or_refuse(unit)
            assert unit.made is not None
            places[unit.made] = len(found)
            found.append(Step(link, tuple(places[v] for v in unit.taken)))
        output = self.network.output
        if not isinstance(output, Value) or places.get(output) != len(found) - 1:
            raise UnsupportedModel(f"{self.title} returns something else than its last value")
        return found

    def flow(self) -> Flow:
        """Every layer, and everything else, with what it takes."""
        places: dict[Value, int] = dict.fromkeys(self.network.inputs, -1)
        steps: list[Step] = []
        dimensions: list[int] = []
        for unit in self.units:
            link = self._link(unit) or Link("", Other(unit.words + unit.place))
            steps.append(Step(link, tuple(places[v] for v in unit.taken)))
            made = [v for op in unit.operations for v in op.outputs]
            places.update(dict.fromkeys(made, len(steps) - 1))
            dimensions.append(len((unit.made or made[-1]).shape))
        returned = frozenset(places[v] for v in self.network.outputs if v in places)
        return Flow(steps, dimensions, returned, frozenset(self.shared()))

    def runs(self) -> list[list[Link]]:
        """Every layer follows the one it takes its only input from, if nothing else does."""
        readers = Counter(v for unit in self.units for v in dict.fromkeys(unit.taken))
        readers.update(self.network.outputs)
        ends: dict[Value, list[Link]] = {}
        found: list[list[Link]] = []
        for unit in self.units:
            link = self._link(unit) if len(unit.taken) == 1 else None
            if link is None or unit.made is None:
                continue
            before = unit.taken[0]
            path = ends.pop(before, []) if readers[before] == 1 else []
            if not path:
                found.append(path)
            path.append(link)
            ends[unit.made] = path
        return found

    def inside(self, link: Link) -> list[Link]:
        """The layers of a part of the network, or nothing if it is no chain of layers."""
        path = next((name for name, m in self.modules.items() if m is link.module), None)
        own = [u for u in self.units if any(path == name for name, _ in u.operations[0].calls)]
        calls = {c for u in own for c in u.operations[0].calls if c[0] == path}
        if not own or len(calls) != 1 or len(own[0].taken) != 1:
            return []
        try:
            self._refuse_disorder(own, own[0].taken[0])
            return [self._link_or_refuse(unit) for unit in own]
        except UnsupportedModel:
            return []

    def shared(self) -> set[str]:
        """Parameters that do not enter once, as a weight of the layer that they belong to."""
        uses: Counter[str] = Counter()
        entered: Counter[str] = Counter()
        roots: dict[Value, set[str]] = {v: {n} for n, v in self.network.parameters.items()}
        for op in self.network:
            of_inputs = set().union(*(roots.get(v, set()) for v in op.inputs if not v.follows))
            if op.follows:
                uses.update(of_inputs)
                entered.update(
                    v.name
                    for v in op.inputs
                    if v.origin == "parameter" and v.name.rpartition(".")[0] == op.layer
                )
            else:
                for value in op.outputs:
                    roots[value] = of_inputs
        return {name for name in uses if uses[name] > 1 or entered[name] != uses[name]}

    def _refuse_disorder(self, units: Sequence[_Unit], current: Value) -> None:
        before = "the input"
        for unit in units:
            if unit.taken != (current,):
                raise UnsupportedModel(
                    f"{self.title} is not a chain of layers: {unit.words} does not follow "
                    f"{before} (a skip connection, or a branch)"
                )
            if unit.made is None:
                raise self._refusal(unit)
            current, before = unit.made, unit.words

    # -- operations as layers ----------------------------------------------------------------------

    def _units(self) -> Iterator[_Unit]:
        network = self.network
        found: dict[Any, _Unit] = {}
        for op in network:
            if not op.follows or network.needed.isdisjoint(op.outputs):
                continue
            call = next((c for c in op.calls[1:] if self._is_one(c[0])), None)
            key = op.number if call is None else call
            unit = found.setdefault(key, _Unit([], None if call is None else call[0]))
            unit.operations.append(op)
        readers: dict[Value, set[int]] = {v: {-1} for v in network.outputs}
        for unit in found.values():
            for op in unit.operations:
                for value in op.inputs:
                    readers.setdefault(value, set()).add(id(unit))
        for unit in found.values():
            inner = {v for op in unit.operations for v in op.outputs}
            taken = [v for op in unit.operations for v in op.inputs if v.follows and v not in inner]
            unit.taken = tuple(taken if unit.layer is None else dict.fromkeys(taken))
            made = [
                v
                for op in unit.operations
                for v in op.outputs
                if readers.get(v, set()) - {id(unit)}
            ]
            unit.made = made[0] if len(made) == 1 else None
            yield unit

    def _is_one(self, path: str) -> bool:
        module = self.modules.get(path)
        if module is None or (self.branched and isinstance(module, _BRANCHED)):
            return False
        return _is_leaf(module)

    def _link_or_refuse(self, unit: _Unit) -> Link:
        link = self._link(unit)
        if link is None:
            raise self._refusal(unit)
        return link

    def _refusal(self, unit: _Unit) -> UnsupportedModel:
        words = operation_words(unit.operations[-1].name)
        return UnsupportedModel(
            f"{self.title} uses {words}{unit.place}, which no layer rule covers"
        )

    def _link(self, unit: _Unit) -> Link | None:
        """The layer that some operations are: one of the model's, else one that is made."""
        if unit.made is None:
            return None
        if unit.layer is not None:
            running = self.function.model.get_submodule(unit.layer)
            if len(unit.taken) == 1 and self._computes(running, unit):
                return Link(unit.layer, self.modules[unit.layer])
        if len(unit.operations) != 1:
            return None
        (op,) = unit.operations
        found = self._maker.layer(op)
        if found is None or not self._computes(found[1], unit):
            return None
        path, module = found
        return Link(path or self._alone(op), module)

    def _alone(self, op: Operation) -> str:
        """The path of the module whose forward pass is this operation and nothing else."""
        call = op.calls[-1] if op.calls else ("", 0)
        inside = f"{op.layer}."
        for other in self.network:
            if other is op or not other.follows:
                continue
            if call[0] == op.layer:
                shares = call in other.calls
            else:  # of an archive, which knows the names alone
                shares = other.layer == op.layer or other.layer.startswith(inside)
            if shares:
                return ""
        return op.layer

    @cached_property
    def _values(self) -> dict[Value, Tensor]:
        """What the network computes for a few samples."""
        held: dict[Value, Any] = {}

        def step(op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            made = op.function(*args, **kwargs)
            pair_up(op.result, made, held)
            return made

        count = self.network.rows or 2
        few: Any = self.x[:count] if isinstance(self.x, Tensor) else self.x
        rows = [tensor[:count] for tensor in input_tensors(self.function, few)]
        held.update(zip(self.network.inputs, rows, strict=True))
        with torch.no_grad(), global_randomness_kept():
            self.network.evaluate(rows, len(rows[0]), step)
        return held

    def _computes(self, layer: nn.Module, unit: _Unit) -> bool:
        """Whether a layer by itself computes what was recorded, from one value alone."""
        assert unit.made is not None
        given = [self._values[v].clone() for v in unit.taken]
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(global_randomness_kept())
            stack.enter_context(contents_kept(layer, values=False))
            stack.enter_context(evaluating(layer))
            try:
                made = layer(*given)
            except (KeyboardInterrupt, OutOfTime):
                raise
            except Exception:  # it was called in another way
                return False
        expected = self._values[unit.made]
        return isinstance(made, Tensor) and made.shape == expected.shape and agree(made, expected)
