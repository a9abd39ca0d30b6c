r"""A network recorded while it runs.

A mode sees every function of torch that the forward pass calls, and hooks say in which module. Two
passes on two and four samples tell which sizes follow the batch, which tensors are constants, and
whether the way through the network depends on the data; the network that was recorded in the first
one must then give what the second one gave.

A function that is made of others (`F.multi_head_attention_forward`, `torch.lstm`) is one operation,
unless whoever asks does not know it: then it is written out in those that it is made of
(`torchtheory.tracing.written_out`).
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from torchtheory.core.errors import InvalidInput, ModelRaised, UnsupportedModel
from torchtheory.core.foreign_code import ForeignCode
from torchtheory.core.mapping import differentiating
from torchtheory.models.inputs import Parts, Rows, as_mapping, is_several
from torchtheory.models.model import PureFunction, evaluating, global_randomness_kept
from torchtheory.models.untouched import contents_kept
from torchtheory.tracing.bodies import has_body
from torchtheory.tracing.kinds import DESCRIPTIONS, KIND_OF
from torchtheory.tracing.names import function_named, parameters, plain_name
from torchtheory.tracing.network import (
    BatchSize,
    Network,
    Operation,
    Size,
    Value,
    Visit,
    leaves,
    mapped,
    values_in,
)
from torchtheory.tracing.own_functions import OwnFunction, has_rule, own_functions_seen
from torchtheory.tracing.written_out import written_out

#: Stands for the tensor that a view is taken of.
_HERE = object()

#: What torch calls the ways to a derivative.
_DERIVATIVES = frozenset(("grad", "backward", "_make_dual"))

#: Samples in the two passes that are compared: a size that is half of the batch is not missed.
_FEW, _MORE = 2, 4


def record(
    model: nn.Module | PureFunction,
    x: Tensor | Parts,
    *,
    known: Callable[[str], bool] | None = None,
    whole: bool = False,
) -> Network:
    """The operations of a network, in evaluation mode, as they run on `x`.

    Args:
        model: any module, also one from a `.pt2` archive, or one as a function; it is left as it
            was.
        x: a few inputs, `[n, ...]`, or several tensors by position or by name; at most four rows
            are used, and all of them only where the network cannot do with fewer (a graph network
            whose rows are nodes).
        known: says of the plain name of an operation whether it is to stay as it is; what is not
            known is written out in simpler operations where it can be. By default all are.
        whole: whether it is recorded on all of `x`, in one pass, and holds for these inputs alone:
            for a network whose way depends on what is in them.

    Raises:
        ModelRaised: if the model does not run on `x`.
        UnsupportedModel: if something in it is not made by functions of torch, such as a detour
            over numpy.

    Time: two forward passes of a few samples, and a few milliseconds. Memory: what these passes
    compute.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> print(repr(record(net, torch.ones(1, 2))))
    Sequential(%x: [n, 2]):
        %3 = linear(%x, %0.weight, %0.bias)
        %4 = relu(%3, inplace=False)
        return %4
    """
    function = model if isinstance(model, PureFunction) else PureFunction(model)
    rows = _table(function, x)
    if not len(rows):
        raise InvalidInput("a network is recorded on some inputs, and none was given")
    again = partial(_on_all if whole else _recorded, function, rows)
    return again(known or (lambda name: True))


def record_call(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    known: Callable[[str], bool] | None = None,
) -> tuple[Network, list[Tensor]]:
    """The operations of one call, of whatever a model takes, and the tensors that it was given.

    For arguments that are not all samples, such as a mask: sizes are those of the call. A model on
    the meta device, which holds no numbers, is taken as well.

    >>> network, inputs = record_call(nn.ReLU(), (torch.ones(2),), {})
    >>> network.replay(*inputs)
    tensor([1., 1.])
    """
    function = PureFunction(model, with_values=False)
    args, kwargs = mapped((args, kwargs), lambda t: t.clone() if isinstance(t, Tensor) else t)
    mode = _watched(function, args, kwargs, known or (lambda name: True))
    network = mode.network()
    network.rows = len(mode.given[0]) if mode.given and mode.given[0].ndim else 1
    network.fixed_because = "it was recorded as one call"
    return network, mode.given


def record_function(
    function: Callable[[dict[str, Tensor], Tensor], Any],
    parameters: dict[str, Tensor],
    x: Tensor,
    *,
    known: Callable[[str], bool] | None = None,
) -> Network:
    """The operations of a function of parameters and inputs, in one call.

    Sizes are those of the call, and so is the way that it takes; whoever asks compares what the
    network gives with the function. A function of the user's own, a `torch.autograd.Function`, is
    one operation, which is differentiated as the user says. The tensors are those that were given.

    Time: one forward pass, and some 20 microseconds per operation.

    >>> point = {"w": torch.ones(2, 3)}
    >>> record_function(lambda p, x: torch.relu(x @ p["w"]), point, torch.ones(1, 2))
    function(%x: [1, 2]):
        %2 = matmul(%x, %w)
        %3 = relu(%2)
        return %3
    """
    mode = _Recording("function", known or (lambda name: True), opaque=True)
    x = x.clone()  # the function may write to it
    mode.starts(x, "input", "x")
    for name, tensor in parameters.items():
        mode.starts(tensor, "parameter", name)
    with torch.enable_grad(), own_functions_seen(mode.applies), mode:
        outputs = function(parameters, x)
    mode.returns(outputs)
    network = mode.network(copied=False)
    network.rows = len(x)
    network.fixed_because = "it was recorded as one call"
    return network


def _table(function: PureFunction, x: Tensor | Parts) -> Rows:
    """The inputs as a table, one part per tensor."""
    if function.rows is not None:
        assert isinstance(x, Tensor)
        return function.rows.take(x)
    if isinstance(x, Tensor):
        if x.ndim == 0:
            raise InvalidInput("inputs have one row for each sample, and this is a single number")
        return Rows((x.detach(),))
    if is_several(x):
        several: Any = as_mapping(x) or x
        return Rows(several)
    raise InvalidInput(
        f"inputs are a tensor, a tuple or a dictionary of some, not {type(x).__name__}"
    )


def input_tensors(function: PureFunction, x: Tensor | Parts) -> list[Tensor]:
    """What stands for each of the inputs of a recorded network: the tensors that `x` consists of.

    >>> [t.shape for t in input_tensors(PureFunction(nn.Linear(2, 3)), torch.ones(5, 2))]
    [torch.Size([5, 2])]
    """
    rows = _table(function, x)
    args, kwargs = _arguments(function, rows)
    return [tensor for _, tensor in _inputs(function.model, args, kwargs)]


def _recorded(function: PureFunction, rows: Rows, known: Callable[[str], bool]) -> Network:
    index = [torch.arange(k) % len(rows) for k in (_FEW, _MORE)]
    reason = ""
    try:
        few, more = (_pass(function, rows.take(i), known) for i in index)
    except ModelRaised as error:
        reason = f"on {_FEW} or {_MORE} of these rows {error}"
    else:
        try:
            network = _merged(few, more)
        except _Differs as difference:
            reason = str(difference)
        else:
            _refuse_other_numbers(network, more)
            network.opened = partial(_recorded, function, rows)
            return network
    return _on_all(function, rows, known, reason)


def _on_all(
    function: PureFunction, rows: Rows, known: Callable[[str], bool], reason: str = ""
) -> Network:
    whole = _pass(function, rows, known)
    network = whole.network()
    network.rows = len(rows)
    network.fixed_because = reason or "it was recorded on these inputs alone"
    network.opened = partial(_on_all, function, rows, reason=reason)
    if not network.decisions:
        _refuse_memory(network, whole, partial(_pass, function, known=known), rows)
    return network


def _refuse_memory(
    network: Network, whole: _Recording, again: Callable[[Rows], _Recording], rows: Rows
) -> None:
    """A network that runs on one number of rows is tried on the same rows in another order."""
    try:
        other = again(rows.take(torch.arange(len(rows)).roll(1)))
    except ModelRaised:
        return
    _refuse_other_constants(network, whole, other)
    _refuse_other_numbers(network, other)


def _arguments(function: PureFunction, rows: Rows) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the model is called with; one without tensors has no precision of its own."""
    like = function.reference()
    if not function.parameters and not function.buffers:
        like = next((t for t in rows.tensors() if t.is_floating_point()), like)
    return rows.arguments(function.model, torch.arange(len(rows)), like)


def _pass(function: PureFunction, rows: Rows, known: Callable[[str], bool]) -> _Recording:
    """One forward pass, watched."""
    own = rows.copied()
    args, kwargs = _arguments(function, own)
    return _watched(function, args, kwargs, known)


def _watched(
    function: PureFunction,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    known: Callable[[str], bool],
) -> _Recording:
    given = {
        **{k: p.detach() for k, p in function.parameters.items()},
        **{k: b.detach().clone() for k, b in function.buffers.items()},
    }
    if function.writes:
        given = {k: t.clone() for k, t in given.items()}
    mode = _Recording(type(function.model).__name__, known)
    for name, part in _inputs(function.model, args, kwargs):
        mode.starts(part, "input", name)
    for name, tensor in given.items():
        mode.starts(tensor, "parameter" if name in function.parameters else "buffer", name)
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())  # nothing needs one, so who turns it off is seen
        stack.enter_context(global_randomness_kept())
        stack.enter_context(contents_kept(function.model, values=False))
        stack.enter_context(evaluating(function.model))
        stack.enter_context(ForeignCode("the model", ModelRaised))
        stack.enter_context(mode.named(function.model))
        stack.enter_context(own_functions_seen(mode.applies))
        stack.enter_context(mode)
        outputs = torch.func.functional_call(function.model, given, args, kwargs)
    mode.returns(outputs)
    return mode


def _each(parts: Parts, change: Callable[[Tensor], Tensor]) -> Parts:
    if isinstance(parts, dict):
        return {k: change(t) for k, t in parts.items()}
    return tuple(change(t) for t in parts)


def _inputs(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    """Names of the inputs as `forward` knows them."""
    try:
        names = list(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):
        names = []
    found: list[tuple[str, Tensor]] = []
    for k, given in enumerate(args):
        name = names[k] if k < len(names) and names[k] not in ("args", "inputs") else f"x{k or ''}"
        several = given if isinstance(given, tuple | list) else None
        if isinstance(given, dict):
            found += [(str(key), t) for key, t in given.items()]
        elif several is not None:
            found += [(f"{name}{i}", t) for i, t in enumerate(several)]
        else:
            found.append((name, given))
    named = [(n if n != "input" else "x", t) for n, t in [*found, *kwargs.items()]]
    yield from [(n, t) for n, t in named if isinstance(t, Tensor)]


# ----------------------------------------------------------------------------------- one pass


@dataclass(eq=False)
class _Known:
    """What is known of a tensor of the pass.

    Attributes:
        tensor: itself, so that its id stays its own.
        value: what stands for it now.
        version: how often its memory had been written to when that was so.
        parent, operation, place: the tensor whose memory it shares, how it comes from there, and as
            which of the results.
    """

    tensor: Tensor
    value: Value
    version: int = 0
    parent: _Known | None = None
    operation: Operation | None = None
    place: int = 0


class _Recording(TorchFunctionMode):
    """The mode of one pass."""

    def __init__(self, title: str, known: Callable[[str], bool], *, opaque: bool = False) -> None:
        super().__init__()
        self.title = title
        self.opaque = opaque
        self.own_functions: set[str] = set()
        self.is_known = known
        self.operations: list[Operation] = []
        self.values: list[Value] = []
        self.started: dict[Value, Tensor] = {}
        self.inputs: list[Value] = []
        self.given: list[Tensor] = []
        self.returned: list[tuple[str, tuple[Value, ...]]] = []
        self.output: Any = None
        self.output_tensors: Any = None
        self._path: list[tuple[Visit, nn.Module | None]] = [(Visit("", title, 0), None)]
        self._calls = 0
        self._inside: list[str] = []
        self._opened: list[Any] = []
        self.autocast = False
        self._known: dict[int, _Known] = {}
        self._versions: dict[int, int] = {}
        self._slopes = True

    # -- where it is -------------------------------------------------------------------------------

    @contextmanager
    def named(self, model: nn.Module) -> Iterator[None]:
        """Inside it is known which module's forward runs."""
        handles = []

        def enter(name: str, module: nn.Module, _: Any) -> None:
            self._calls += 1
            self._path.append((Visit(name, type(module).__name__, self._calls), module))

        def leave(module: nn.Module, args: Any, result: Any) -> None:
            visit, _ = self._path.pop()
            known = [self._known.get(id(t)) for t in _tensors(_plain(result))]
            self.returned.append((visit.layer, tuple(k.value for k in known if k is not None)))

        for name, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(partial(enter, name)))
            handles.append(module.register_forward_hook(leave, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _visits(self) -> tuple[Visit, ...]:
        """The calls of modules that run, outermost first."""
        found = [self._path[0][0]]
        inside = False
        for visit, module in self._path[1:]:
            inner = getattr(module, "running_layers", ())  # what an archive knows of its modules
            if inner:
                found += [Visit(f"{visit.layer}.{k}".strip("."), kind, c) for k, kind, c in inner]
                inside = True
            elif not (inside and found[-1].layer == visit.layer):  # which of them it runs again
                found.append(visit)
        return tuple(found)

    # -- values ------------------------------------------------------------------------------------

    def starts(self, tensor: Tensor, origin: Any, name: str) -> Value:
        """A tensor that no operation makes."""
        value = self._value(tensor, origin, name, follows=origin == "input")
        self._known[id(tensor)] = _Known(tensor, value, self._version(tensor))
        if origin == "input":
            self.inputs.append(value)
            self.given.append(tensor.clone())  # the network may write to it
        else:
            self.started[value] = tensor
        return value

    def _value(
        self, tensor: Tensor, origin: Any = "operation", name: str = "", *, follows: bool
    ) -> Value:
        value = Value(len(self.values), tuple(tensor.shape), tensor.dtype, origin, name, follows)
        self.values.append(value)
        return value

    def _of(self, leaf: Any) -> Any:
        """What stands for an argument: the value of a tensor, everything else itself."""
        if not isinstance(leaf, Tensor):
            return leaf
        found = self._known.get(id(leaf))
        if found is None:
            return self.starts(leaf, "constant", "")
        self._refresh(found)
        return found.value

    def _version(self, tensor: Tensor) -> int:
        return self._versions.get(_memory(tensor), 0) if self._versions else 0

    def _refresh(self, one: _Known) -> None:
        """A view of what was written to meanwhile is taken anew."""
        now = self._version(one.tensor)
        if one.version == now:
            return
        if one.parent is None or one.operation is None or len(one.operation.inputs) != 1:
            raise UnsupportedModel(
                "the network writes to a tensor and goes on to use another view of it"
                f" (in {self._words()})"
            )
        self._refresh(one.parent)
        parent, op = one.parent.value, one.operation

        def taken(leaf: Any) -> Any:
            return parent if isinstance(leaf, Value) else leaf

        result = mapped(op.result, lambda v: self._value_like(v) if isinstance(v, Value) else v)
        self._append(op.name, op.function, mapped(op.args, taken), mapped(op.kwargs, taken), result)
        one.value, one.version = tuple(values_in(result))[one.place], now

    def _value_like(self, old: Value) -> Value:
        value = replace(old, number=len(self.values))
        self.values.append(value)
        return value

    def _words(self) -> str:
        name, kind, _ = self._visits()[-1]
        return f"layer {name!r}, {kind}" if name else kind

    # -- the mode ----------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name, writes = plain_name(func)
        self._refuse_transforms(name)
        if name == "_set_grad_enabled":
            self._slopes = bool(args[0])
        if name in DESCRIPTIONS or name.startswith("get "):
            return func(*args, **kwargs)
        self.autocast = self.autocast or torch.is_autocast_enabled("cpu")
        # what comes back to itself while it is written out, as max pools do, cannot be
        if not self.is_known(name) and func not in self._opened:
            simpler = written_out(func, name)
            if simpler is not None:
                self._inside.append(name)
                self._opened.append(func)
                try:
                    with self:
                        return simpler(*args, **kwargs)
                finally:
                    self._inside.pop()
                    self._opened.pop()
        # what the arguments are is asked before the function may change them
        given = mapped((args, kwargs), self._of)
        made = func(*args, **kwargs)
        target: Tensor | None = None
        function = func
        own_args, own_kwargs = given
        if kwargs.get("out") is not None:
            target = kwargs["out"]
            own_kwargs = {k: v for k, v in own_kwargs.items() if k != "out"}
            if isinstance(target, tuple):
                raise UnsupportedModel(
                    f"{name} writes to several tensors given as out= (in {self._words()})"
                )
        elif writes:
            target = args[0] if args else kwargs.get("input", kwargs.get("self"))
            function = _not_writing(func, name, target)
        elif has_body(func) and "inplace" in parameters(func):
            bound = _signature(func).bind(*own_args, **own_kwargs)
            if bound.arguments.get("inplace"):
                target = _signature(func).bind(*args, **kwargs).arguments["input"]
                bound.arguments["inplace"] = False
                own_args, own_kwargs = bound.args, bound.kwargs
        if target is not None:
            if isinstance(target, Tensor):
                self._write(name, function, own_args, own_kwargs, target)
            return made
        if not _tensors(made):
            if not any(v.follows for v in values_in(given)):
                return made
            self._append(name, func, own_args, own_kwargs, None)  # a number was asked for
            return made
        tensors = _tensors((args, kwargs))
        made = _new_objects(made, tensors)
        self._make(name, func, own_args, own_kwargs, made, tensors)
        return made

    def _refuse_transforms(self, name: str) -> None:
        """What a transform computes is made of the operations inside, but is none of them."""
        means = ""
        if name in _DERIVATIVES:
            means = "torch.autograd.grad or backward"
        elif differentiating():
            means = "a transform of torch.func such as grad, vjp or jvp"
        if means:
            raise UnsupportedModel(
                f"the network takes derivatives by {means} before it returns, which are no "
                f"operations that can be followed (in {self._words()})"
            )
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise UnsupportedModel(
                "which samples are which cannot be followed through a transform such as "
                f"torch.func.vmap (in {self._words()})"
            )

    def applies(
        self, function: OwnFunction, apply: Callable[..., Any], args: tuple[Any, ...]
    ) -> Any:
        """A function of the user's own is applied."""
        name = function.__name__
        if not (self.opaque or (has_rule(function) and self.is_known(name))):
            self.own_functions.add(name)
            return apply(*args)
        with torch._C.DisableTorchFunction():  # neither what it does inside nor what is asked here
            given = mapped(args, self._of)
            tensors = _tensors(args)
            made = _new_objects(apply(*args), tensors)
            self._make(name, apply, given, {}, made, tensors)
        return made

    def _append(self, name: str, function: Any, args: Any, kwargs: Any, result: Any) -> Operation:
        visits = self._visits()
        layer, kind, _ = visits[-1]
        inside = self._inside[0] if self._inside else ""
        number = len(self.operations)
        op = Operation(number, name, function, args, kwargs, result, layer, kind, inside, visits)
        self.operations.append(op)
        return op

    def _make(
        self, name: str, function: Any, args: Any, kwargs: Any, made: Any, given: list[Tensor]
    ) -> None:
        """An operation has made tensors."""
        follows = any(v.follows for v in values_in((args, kwargs)))
        fresh: list[tuple[Tensor, Value]] = []

        def one(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return None
            value = self._value(leaf, follows=follows)
            fresh.append((leaf, value))
            return value

        op = self._append(name, function, args, kwargs, mapped(made, one))
        sources = {_memory(t): t for t in given if t.numel()}
        for place, (tensor, value) in enumerate(fresh):
            known = _Known(tensor, value, self._version(tensor), place=place)
            source = sources.get(_memory(tensor)) if tensor.numel() else None
            if source is not None:
                known.parent, known.operation = self._known[id(source)], op
            self._known[id(tensor)] = known
            # no slope passes what runs under no_grad; a function of the user's own has one
            if follows and not self._slopes and not torch.is_grad_enabled():
                known.value = self._value(tensor, follows=True)
                self._append("detach", Tensor.detach, (value,), {}, known.value)

    def _write(self, name: str, function: Any, args: Any, kwargs: Any, target: Tensor) -> None:
        """A tensor was written to: there is a new value, also of what it is a part of."""
        self._of(target)
        one = self._known[id(target)]
        follows = any(v.follows for v in values_in((args, kwargs)))
        value = self._value(target, follows=follows)
        self._append(name, function, args, kwargs, value)
        memory = _memory(target)
        self._versions[memory] = self._versions.get(memory, 0) + 1
        one.value, one.version = value, self._versions[memory]
        while one.parent is not None and one.operation is not None:
            parent, view = one.parent, one.operation
            if len(view.inputs) != 1 or parent.version < one.version - 1:
                break  # found stale when it is used
            whole = self._value(parent.tensor, follows=follows or parent.value.follows)
            here = mapped((view.args, view.kwargs), lambda v: _HERE if isinstance(v, Value) else v)
            change: Any = partial(_put, view.function, one.place)
            change.__name__ = "put"
            self._append("put", change, (parent.value, one.value, *here), {}, whole)
            parent.value, parent.version = whole, self._versions[memory]
            one = parent

    def returns(self, outputs: Any) -> None:
        """The network has returned."""
        self.output_tensors = _plain(outputs)
        self.output = mapped(self.output_tensors, self._of)

    def network(self, *, copied: bool = True) -> Network:
        """What was recorded, with copies of its tensors or with the tensors themselves."""
        tensors = {v: t.detach().clone() if copied else t for v, t in self.started.items()}
        # what a written part belongs to is put together again, also where nobody looks at it
        wanted, kept = set(values_in(self.output)), []
        for op in reversed(self.operations):
            if (op.follows and op.name != "put") or not wanted.isdisjoint(op.outputs):
                wanted.update(op.inputs)
                kept.append(op)
        kept.reverse()
        for number, op in enumerate(kept):
            op.number = number
        return Network(
            self.title, self.inputs, kept, self.output, tensors, returned=self.returned,
            own_functions=frozenset(self.own_functions),
        )  # fmt: skip


_signature = cache(inspect.signature)


def _memory(tensor: Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # a sparse tensor has none
        return -id(tensor)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Tensor)]


def _new_objects(made: Any, given: list[Tensor]) -> Any:
    """What a function returns; an argument that it returns as it is, as another tensor object."""
    again = isinstance(made, Tensor) and any(made is t for t in given)
    return made.view_as(made) if again else made


def _put(
    view: Callable[..., Any],
    place: int,
    whole: Tensor,
    part: Tensor,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Tensor:
    """A tensor with a part of it exchanged: the one that a view of it shows."""
    made = whole.clone()

    def own(leaf: Any) -> Any:
        return made if leaf is _HERE else leaf

    shown = view(*mapped(args, own), **mapped(kwargs, own))
    (shown[place] if isinstance(shown, tuple | list) else shown).copy_(part)
    return made


def _not_writing(func: Any, name: str, target: Any) -> Callable[..., Any]:
    """The function that makes a new tensor instead of writing to the one it is given."""
    if name == "setitem":
        return _SETITEM
    found: Callable[..., Any] | None
    if isinstance(func, torch._ops.OpOverload):
        packet = getattr(torch.ops.aten, name, None)
        found = getattr(packet, func._overloadname, None)
    else:
        found = function_named(name)
    if found is None or name in ("copy", "fill", "zero") or KIND_OF.get(name) == "random":
        made: Any = partial(_on_a_copy, func)
        made.spelling = func
        return made  # type: ignore[no-any-return]
    return found


def _with_entries(input: Tensor, index: Any, value: Any) -> Tensor:
    made = input.clone()
    made[index] = value
    return made


_SETITEM: Callable[..., Any] = partial(_with_entries)
_SETITEM.spelling = Tensor.__setitem__  # type: ignore[attr-defined]


def _on_a_copy(func: Any, *args: Any, **kwargs: Any) -> Any:
    if args:
        made = args[0].clone()
        func(made, *args[1:], **kwargs)
    else:  # archives give everything by name
        made = kwargs["self"].clone()
        func(**{**kwargs, "self": made})
    return made


def _plain(outputs: Any) -> Any:
    """What a model returns, as tuples, lists and dictionaries."""
    if isinstance(outputs, Mapping):
        return {k: _plain(v) for k, v in outputs.items()}
    if dataclasses.is_dataclass(outputs) and not isinstance(outputs, type):
        fields = [f.name for f in dataclasses.fields(outputs)]
        return {k: _plain(getattr(outputs, k)) for k in fields}
    if isinstance(outputs, list | tuple):
        parts = [_plain(v) for v in outputs]
        return parts if isinstance(outputs, list) else tuple(parts)
    return outputs


# --------------------------------------------------------------------------------- two passes


class _Differs(Exception):
    """Two passes did different things."""


def _merged(few: _Recording, more: _Recording) -> Network:
    """The network that both passes are passes of."""
    if len(few.operations) != len(more.operations) or len(few.values) != len(more.values):
        raise _Differs("what it does depends on the number of samples, or on what is in them")
    for a, b in zip(few.values, more.values, strict=True):
        if a.origin == b.origin == "constant":
            continue
        if a.origin != b.origin or len(a.shape) != len(b.shape):
            raise _Differs("what it does depends on the number of samples, or on what is in them")
        a.shape = tuple(_size(s, t) for s, t in zip(a.shape, b.shape, strict=True))
    for one, other in zip(few.operations, more.operations, strict=True):
        if one.name != other.name:
            raise _Differs(
                f"it does {one.name} or {other.name} in {one.place}, depending on the samples"
            )
        one.args = _common(one.args, other.args, one)
        one.kwargs = _common(one.kwargs, other.kwargs, one)
    network = few.network()
    if not network.decisions:
        _refuse_other_constants(network, few, more)
    return network


def _refuse_other_constants(network: Network, one: _Recording, other: _Recording) -> None:
    """A tensor that no function of torch made, and that is not the same in every pass."""
    for (value, own), (_, theirs) in zip(one.started.items(), other.started.items(), strict=False):
        if value.origin == "constant" and not _same(own, theirs):
            users = network.users.get(value)
            where = f" (in {users[0].place})" if users else ""
            raise UnsupportedModel(
                "the network makes numbers of its input by something that is no function of torch"
                f"{where}, and cannot be followed there"
            )


def _common(a: Any, b: Any, where: Operation) -> Any:
    """An argument that both passes gave, with sizes that follow the batch."""
    if isinstance(a, Value) and isinstance(b, Value):
        if a.number != b.number:
            raise _Differs(f"what {where.name} in {where.place} is given depends on the samples")
        return a
    if type(a) is not type(b):
        raise _Differs(f"what {where.name} in {where.place} is given depends on the samples")
    if isinstance(a, tuple | list):
        if len(a) != len(b):
            raise _Differs(f"what {where.name} in {where.place} is given depends on the samples")
        parts = [_common(p, q, where) for p, q in zip(a, b, strict=True)]
        return parts if isinstance(a, list) else tuple(parts)
    if isinstance(a, dict):
        return {k: _common(v, b.get(k), where) for k, v in a.items()}
    if isinstance(a, slice):
        return slice(
            *(_common(getattr(a, k), getattr(b, k), where) for k in ("start", "stop", "step"))
        )
    if isinstance(a, int) and not isinstance(a, bool):
        return _size(a, b)
    if isinstance(a, float) and a != b and not (a != a and b != b):
        raise _Differs(
            f"a number that {where.name} in {where.place} is given depends on the samples"
        )
    return a


def _size(few: Size, more: Size) -> Size:
    if few == more or isinstance(few, BatchSize) or isinstance(more, BatchSize):
        return few
    times, rest = divmod(more - few, _MORE - _FEW)
    if rest:
        raise _Differs(f"a size is {few} for {_FEW} samples and {more} for {_MORE}")
    return BatchSize(times, few - times * _FEW)


def _same(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.shape == b.shape and a.dtype == b.dtype and _all_equal(a, b))


def _all_equal(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _refuse_other_numbers(network: Network, more: _Recording) -> None:
    """What was recorded in the first pass must give what the second pass gave."""
    if network.random or network.decisions:
        return
    with torch.no_grad():
        made = network.replay(*more.given)
    for own, theirs in zip(_tensors(made), _tensors(more.output_tensors), strict=True):
        if not agree(own, theirs):
            if more.autocast:
                raise UnsupportedModel(
                    f"{network.title} runs under autocast, which computes with fewer digits: "
                    "switch it off (torch.autocast(..., enabled=False))"
                )
            raise UnsupportedModel(
                f"{network.title} could not be recorded: its operations alone give other numbers "
                "than the model, so something in it is not made by functions of torch, or "
                "remembers an earlier pass"
            )


def agree(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal up to rounding: another batch is summed in another order."""
    if not (a.is_floating_point() or a.is_complex()):
        return _all_equal(a, b)
    room = (
        1e3 * torch.finfo(a.dtype).eps * float(b.abs().nan_to_num(0, 0, 0).amax())
        if b.numel()
        else 0
    )
    return bool(((a == b) | ((a - b).abs() <= room) | ((a != a) & (b != b))).all())
