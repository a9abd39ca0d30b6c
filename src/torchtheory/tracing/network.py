r"""A network as a list of operations: what `record` makes, and what an analysis reads.

A `Value` is a tensor that the network holds at some time, an `Operation` makes values out of
values. Nothing is written in place: a network that writes to a tensor makes a new value. Sizes that
grow with the batch are known as such (`BatchSize`), so that a network that was recorded on a few
samples runs on any number of them.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from torchtheory.core.errors import ShapeMismatch, UnsupportedModel
from torchtheory.tracing.arguments import bind
from torchtheory.tracing.kinds import KIND_OF, Kind

if TYPE_CHECKING:
    from torchtheory.core.figure import Figure
    from torchtheory.core.record import Table

Origin = Literal["input", "parameter", "buffer", "constant", "operation"]


@dataclass(frozen=True, slots=True)
class BatchSize:
    """A size that follows the number $n$ of samples: $an + b$.

    >>> BatchSize(2, 1).of(10)
    21
    """

    times: int
    plus: int = 0

    def of(self, samples: int) -> int:
        """The size for so many samples."""
        return self.times * samples + self.plus

    def __repr__(self) -> str:
        start = "n" if self.times == 1 else f"{self.times}n"
        return start + (f"{self.plus:+d}" if self.plus else "")


Size = int | BatchSize


@dataclass(eq=False, slots=True)
class Value:
    """A tensor of the network.

    Attributes:
        number: its place in the order in which values are made.
        shape: its sizes.
        dtype: its type.
        origin: where it comes from.
        name: of an input, a parameter or a buffer.
        follows: whether it may change with the input.
    """

    number: int
    shape: tuple[Size, ...]
    dtype: torch.dtype
    origin: Origin = "operation"
    name: str = ""
    follows: bool = False

    def __repr__(self) -> str:
        return f"%{self.name or self.number}"


class Visit(NamedTuple):
    """A call of a module's forward.

    Attributes:
        layer: path of the module; empty for the model itself.
        kind: its class.
        call: tells the calls of one module apart.
    """

    layer: str
    kind: str
    call: Any


@dataclass(eq=False)
class Operation:
    """One function of torch, called once.

    Attributes:
        number: its place in the list.
        name: its plain name, whatever its spelling.
        function: a spelling of it that writes to nothing.
        args, kwargs: what it is called with; a `Value` stands for a tensor.
        result: what it returns; a `Value`, or a structure that holds some.
        layer: path of the module whose forward calls it; empty for the model itself.
        layer_kind: the class of that module.
        part_of: the operation that was written out in this one and others; empty for none.
        visits: the calls of modules that run meanwhile, outermost first.
    """

    number: int
    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    layer: str
    layer_kind: str
    part_of: str = ""
    visits: tuple[Visit, ...] = ()

    @cached_property
    def calls(self) -> tuple[tuple[str, Any], ...]:
        """The forward passes that it is part of, outermost first: path of a module, which call."""
        return tuple((visit.layer, visit.call) for visit in self.visits[1:])

    @property
    def kind(self) -> Kind | None:
        """What it does in one word (see `torchtheory.tracing.kinds`); None if nobody has said."""
        return KIND_OF.get(self.name)

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """What it is called with, by name and with defaults, in whichever way it was written."""
        return bind(self.function, self.args, self.kwargs)

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        """The values that it takes, in order; one as often as it takes it."""
        return tuple(values_in((self.args, self.kwargs)))

    @cached_property
    def outputs(self) -> tuple[Value, ...]:
        """The values that it makes."""
        return tuple(values_in(self.result))

    @cached_property
    def follows(self) -> bool:
        """Whether what it makes may change with the input."""
        return any(value.follows for value in self.inputs)

    @cached_property
    def draws(self) -> bool:
        """Whether it draws random numbers; dropout in evaluation mode does not."""
        if self.kind != "random":
            return self.name == "rrelu" and bool(self.arguments.get("training"))
        return bool(self.arguments.get("training", self.arguments.get("train", True)))

    @property
    def place(self) -> str:
        """Where it stands, in words."""
        return f"layer {self.layer!r}, {self.layer_kind}" if self.layer else self.layer_kind

    def __repr__(self) -> str:
        given = [_text(a) for a in self.args]
        given += [f"{k}={_text(v)}" for k, v in self.kwargs.items()]
        return f"{_text(self.result)} = {self.name}({', '.join(given)})"


@dataclass(eq=False)
class Network:
    """The operations of a network in the order in which they run.

    Attributes:
        title: the model's class.
        inputs: one value for each tensor that it is given.
        operations: in order.
        output: what it returns: a `Value`, or a tuple, list or dictionary that holds some.
        tensors: of the values that are no operation's: parameters, buffers and constants.
        rows: None if it runs on any number of samples, else the only one that it runs on.
        fixed_because: why it does not run on any.
        returned: what every call of a module gave back, in order: its path and the values; those of
            an archive are operators without calls.
        opened: records the same network again, with what a function says true to as one operation.
        own_functions: of the user's (`torch.autograd.Function`), that are recorded as what they are
            made of, and whose derivatives may be others.
    """

    title: str
    inputs: list[Value]
    operations: list[Operation]
    output: Any
    tensors: dict[Value, Tensor]
    rows: int | None = None
    fixed_because: str = ""
    returned: list[tuple[str, tuple[Value, ...]]] = field(default_factory=list, repr=False)
    opened: Callable[[Callable[[str], bool]], Network] | None = field(default=None, repr=False)
    own_functions: frozenset[str] = frozenset()

    # -- parts -------------------------------------------------------------------------------------

    @cached_property
    def parameters(self) -> dict[str, Value]:
        """Parameters that it uses, by their names in the model."""
        return {v.name: v for v in self.tensors if v.origin == "parameter"}

    @cached_property
    def buffers(self) -> dict[str, Value]:
        """Buffers that it uses, by their names in the model."""
        return {v.name: v for v in self.tensors if v.origin == "buffer"}

    @cached_property
    def outputs(self) -> tuple[Value, ...]:
        """The tensors that it returns."""
        return tuple(values_in(self.output))

    @cached_property
    def makers(self) -> dict[Value, Operation]:
        """The operation that makes a value."""
        return {value: op for op in self.operations for value in op.outputs}

    @cached_property
    def users(self) -> dict[Value, list[Operation]]:
        """The operations that take a value."""
        found: dict[Value, list[Operation]] = {}
        for op in self.operations:
            for value in dict.fromkeys(op.inputs):
                found.setdefault(value, []).append(op)
        return found

    @cached_property
    def decisions(self) -> list[Operation]:
        """Operations that ask what is in the input, so that another input may go another way."""
        return [op for op in self.operations if op.kind == "decision" and op.follows]

    @cached_property
    def random(self) -> list[Operation]:
        """Operations that draw random numbers."""
        return [op for op in self.operations if op.draws]

    @cached_property
    def needed(self) -> frozenset[Value]:
        """The values that the output is made of; others are computed and left."""
        found = set(self.outputs)
        for op in reversed(self.operations):
            if not found.isdisjoint(op.outputs):
                found.update(op.inputs)
        return frozenset(found)

    def boundary(self, part: Collection[Operation]) -> tuple[list[Value], list[Value]]:
        """What some of its operations take of the data from others, and what they give to others.

        >>> from torch import nn
        >>> from torchtheory.tracing.recorder import record
        >>> network = record(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Tanh()), torch.ones(1, 2))
        >>> network.boundary(network.operations[:2])
        ([%x], [%4])
        """
        inside = set(part)
        entering = dict.fromkeys(
            v for op in part for v in op.inputs if v.follows and self.makers.get(v) not in inside
        )
        leaving = [
            v
            for op in part
            for v in op.outputs
            if v in self.outputs or not inside.issuperset(self.users.get(v, ()))
        ]
        return list(entering), leaving

    def until(self, *values: Value, after: Sequence[Value] = ()) -> Network:
        """The part of it that makes some of its values, which it returns as a tuple.

        Args:
            values: what it returns.
            after: values that it takes instead of the network's inputs, if they are given.

        >>> from torch import nn
        >>> from torchtheory.tracing.recorder import record
        >>> network = record(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), torch.ones(1, 2))
        >>> network.until(*network.operations[0].outputs)
        Sequential(%x: [n, 2]):
            %3 = linear(%x, %0.weight, %0.bias)
            return (%3)
        """
        wanted, kept = set(values).difference(after), []
        for op in reversed(self.operations):
            if not wanted.isdisjoint(op.outputs):
                wanted.update(v for v in op.inputs if v not in after)
                kept.append(op)
        inputs = list(after) or self.inputs
        return replace(self, inputs=inputs, operations=kept[::-1], output=values, opened=None)

    def __len__(self) -> int:
        return len(self.operations)

    def __iter__(self) -> Iterator[Operation]:
        return iter(self.operations)

    # -- running -----------------------------------------------------------------------------------

    def evaluate(
        self,
        start: Sequence[Any],
        samples: int,
        step: Callable[[Operation, tuple[Any, ...], dict[str, Any]], Any],
        tensors: Mapping[Value, Any] | None = None,
    ) -> Any:
        """Carry something through the operations, in order.

        Args:
            start: what stands for each of the inputs.
            samples: the number of samples, for sizes that follow it.
            step: what an operation makes of its arguments, in which what was carried stands for
                values; it returns a structure like the operation's result.
            tensors: what stands for parameters, buffers and constants, if not they themselves.

        Returns:
            What stands for the output. Values that nobody needs any more are let go.
        """
        if self.rows is not None and samples != self.rows:
            raise UnsupportedModel(
                f"{self.title} runs on {self.rows} rows and was given {samples}: "
                + self.fixed_because
            )
        if len(start) != len(self.inputs):
            raise ShapeMismatch(f"{self.title} has {len(self.inputs)} inputs, not {len(start)}")
        held: dict[Value, Any] = dict(self.tensors)
        held.update(tensors or {})
        held.update(zip(self.inputs, start, strict=True))

        def of(leaf: Any) -> Any:
            if isinstance(leaf, Value):
                return held[leaf]
            return leaf.of(samples) if isinstance(leaf, BatchSize) else leaf

        for op, last in zip(self.operations, self._last_uses, strict=True):
            made = step(op, mapped(op.args, of), mapped(op.kwargs, of))
            pair_up(op.result, made, held)
            for value in last:
                held.pop(value, None)
        return mapped(self.output, of)

    @cached_property
    def _last_uses(self) -> list[list[Value]]:
        """Of each operation the values that nothing takes after it."""
        kept, found = set(self.outputs), []
        for op in reversed(self.operations):
            last = [v for v in dict.fromkeys((*op.inputs, *op.outputs)) if v not in kept]
            kept.update(last)
            found.append(last)
        return found[::-1]

    def replay(self, *x: Tensor, parameters: Mapping[str, Tensor] | None = None) -> Any:
        """What the network returns for other inputs, and for other parameters where they are given.

        Differentiable in both. Time and memory are those of a forward pass.

        >>> from torch import nn
        >>> from torchtheory.tracing.recorder import record
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
        >>> x = torch.ones(5, 2)
        >>> bool((record(net, x[:2]).replay(x) == net(x)).all())
        True
        """
        given = {
            self.parameters[k]: t for k, t in (parameters or {}).items() if k in self.parameters
        }
        return self.evaluate(x, _rows(x), called, given)

    def in_precision(self, dtype: torch.dtype) -> Network:
        """The same network computed in another precision, whatever it casts to on its way.

        >>> from torch import nn
        >>> from torchtheory.tracing.recorder import record
        >>> record(nn.Linear(2, 1), torch.ones(1, 2)).in_precision(torch.float64).replay(
        ...     torch.ones(1, 2, dtype=torch.float64)
        ... ).dtype
        torch.float64
        """
        tensors = {v: t.to(dtype) if t.is_floating_point() else t for v, t in self.tensors.items()}
        operations = [
            replace(op, function=_casting(op.function, dtype))
            if op.kind == "constant" or op.name in _CASTS
            else op
            for op in self.operations
        ]
        again = self.opened
        opened = None if again is None else lambda known: again(known).in_precision(dtype)
        return replace(self, operations=operations, tensors=tensors, opened=opened)

    # -- something to look at ----------------------------------------------------------------------

    def __str__(self) -> str:
        """The table of layers: operations, sizes, parameters, multiplications, memory."""
        from torchtheory.tracing.summary import text_of

        return text_of(self)

    def table(self) -> Table:
        """The same as a table of cells."""
        from torchtheory.tracing.summary import table_of

        return table_of(self)

    def figure(self) -> Figure:
        """The network drawn: layers as frames, operations by kind, repetitions folded."""
        from torchtheory.tracing.drawing import figure_of

        return figure_of(self)

    def graph(self) -> Any:
        """The operations that follow the input as a `networkx.MultiDiGraph`.

        Nodes are inputs (by name) and operations (by number, with `name`, `kind`, `layer` and
        `shape`); an edge is a value that one makes and the other takes.
        """
        import networkx

        graph = networkx.MultiDiGraph(title=self.title)
        source: dict[Value, Any] = {}
        for value in self.inputs:
            graph.add_node(value.name, name=value.name, kind="input", layer="", shape=value.shape)
            source[value] = value.name
        for op in self.operations:
            if not op.follows:
                continue
            shape = op.outputs[0].shape if op.outputs else ()
            graph.add_node(op.number, name=op.name, kind=op.kind, layer=op.layer, shape=shape)
            for value in op.inputs:
                if value in source:
                    graph.add_edge(source[value], op.number, shape=value.shape)
            source.update(dict.fromkeys(op.outputs, op.number))
        return graph

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def __repr__(self) -> str:
        inputs = ", ".join(f"{v!r}: {list(v.shape)}" for v in self.inputs)
        lines = [f"{self.title}({inputs}):", *(f"    {op!r}" for op in self.operations)]
        return "\n".join([*lines, f"    return {_text(self.output)}"])


_CASTS = frozenset(("to", "float", "double", "half", "bfloat16", "type", "type_as"))


def _casting(function: Callable[..., Any], dtype: torch.dtype) -> Callable[..., Any]:
    made: Any = partial(_cast, function, dtype)
    made.spelling = getattr(function, "spelling", function)
    return made  # type: ignore[no-any-return]


def _cast(function: Callable[..., Any], dtype: torch.dtype, /, *args: Any, **kwargs: Any) -> Any:
    made = function(*args, **kwargs)
    return made.to(dtype) if isinstance(made, Tensor) and made.is_floating_point() else made


def called(op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operation makes of tensors: the step of `Network.evaluate` that computes."""
    return op.function(*args, **kwargs)


def _rows(x: Sequence[Tensor]) -> int:
    return len(x[0]) if x and x[0].ndim else 1


# ------------------------------------------------------------------------------------ structures


def mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """A structure of tuples, lists, dictionaries and slices with its leaves changed."""
    if not isinstance(tree, _STRUCTURES):
        return change(tree)
    if isinstance(tree, tuple):
        parts = [mapped(t, change) for t in tree]
        if hasattr(tree, "_fields"):  # a namedtuple of the user's
            return type(tree)(*parts)
        return tuple(parts)
    if isinstance(tree, list):
        return [mapped(t, change) for t in tree]
    if isinstance(tree, dict):
        return {k: mapped(t, change) for k, t in tree.items()}
    return slice(*(mapped(t, change) for t in (tree.start, tree.stop, tree.step)))


_STRUCTURES = (tuple, list, dict, slice)


def leaves(tree: Any) -> list[Any]:
    """The leaves of a structure."""
    found: list[Any] = []
    _collect(tree, found)
    return found


def _collect(tree: Any, found: list[Any]) -> None:
    if not isinstance(tree, _STRUCTURES):
        found.append(tree)
        return
    if isinstance(tree, slice):
        tree = (tree.start, tree.stop, tree.step)
    for part in tree.values() if isinstance(tree, dict) else tree:
        _collect(part, found)


def values_in(tree: Any) -> Iterator[Value]:
    """The values in a structure, in order."""
    return (leaf for leaf in leaves(tree) if isinstance(leaf, Value))


def pair_up(result: Any, made: Any, held: dict[Value, Any]) -> None:
    """Note what was made for every value of a result."""
    if isinstance(result, Value):
        held[result] = made
    elif isinstance(result, tuple | list):
        for part, own in zip(result, made, strict=True):
            pair_up(part, own, held)
    elif isinstance(result, dict):
        for key, part in result.items():
            pair_up(part, made[key], held)


def _text(tree: Any) -> str:
    if isinstance(tree, tuple | list):
        inner = ", ".join(map(_text, tree))
        return f"[{inner}]" if isinstance(tree, list) else f"({inner})"
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{k}: {_text(v)}" for k, v in tree.items()) + "}"
    if isinstance(tree, slice):
        ends = ["" if e is None else _text(e) for e in (tree.start, tree.stop)]
        return ":".join(ends)
    return str(tree) if isinstance(tree, str) else repr(tree)
