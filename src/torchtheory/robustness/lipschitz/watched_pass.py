r"""A forward pass that carries, beside each value, how far and how fast it can move.

A `Signal` stands for a tensor inside the network. It knows its value at some inputs, the
*centers* $x_0$, and from which earlier value it comes by an affine map. What is no affine map makes
a `Node`, whose rule turns what is known of the values it is made of into

* the Lipschitz constant $L$ of the value as a function of the network's input, on the ball of
  radius $R$ about $x_0$,
* the distance from the center's value that it keeps there, at most $LR$,
* the largest absolute entry that it has there.

A signal is no tensor: what asks for its numbers (`if x.sum() > 0`, `x.item()`) is refused, since
the answer might differ within the ball. What asks for its shape is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torchtheory.convolution.layer_matrices import ConvolutionMap
from torchtheory.convolution.spectra import norm_of_map
from torchtheory.core.budget import check_time
from torchtheory.core.errors import TorchTheoryError, UnsupportedModel
from torchtheory.linalg.operators import LinearOperator
from torchtheory.linalg.singular_values import (
    DENSE,
    FAILURE,
    PRODUCTS,
    operator_norm_upper_bound,
    spectral_norm,
)

#: What an affine step does: move entries about, leave some out, add a constant, apply a matrix to
#: the last dimension, or anything else.
Kind = Literal["moves", "selects", "shifts", "matrix", "affine"]

#: Share of a norm that rounding in double precision stays below, here and in what is made of it: a
#: small multiple of n units of the last place for a map between n entries.
_ROOM = 1e-10

#: Numbers that the vectors of a bound from products may hold.
_KEPT = 2**25


class Extent(NamedTuple):
    """What is known of a value on the ball, one number `[b]` per center each."""

    lipschitz: Tensor
    distance: Tensor
    largest: Tensor


#: What is known of a value, from what is known of those it is made of.
Rule = Callable[..., Extent]


class Step(NamedTuple):
    """One affine map of a signal.

    Attributes:
        kind, action: what it does, and how.
        weight: the matrix that it applies to the last dimension.
        convolution: what it is for every sample, where it is a convolution.
        padding: mode and numbers of entries around the signal, where it does nothing but pad it.
    """

    kind: Kind
    action: Callable[[Tensor], Tensor]
    weight: Tensor | None = None
    convolution: ConvolutionMap | None = None
    padding: tuple[str, tuple[int, ...]] | None = None


@dataclass(eq=False)
class Node:
    """A value that is no affine function of an earlier one.

    Attributes:
        center: its value at the centers, `[b, ...]`.
        parents: the signals that it is made of.
        rule: what is known of it, from what is known of them; None for the input, and for a pass
            that looks for something else.
        parts: the signals that it stacks along a dimension, where it does.
    """

    center: Tensor
    parents: tuple[Signal, ...]
    rule: Rule | None = None
    parts: tuple[int, list[Signal]] | None = None


@dataclass(eq=False)
class _Memory:
    """What views of one tensor share: how often it was written to."""

    version: int = 0


@dataclass
class Pass:
    """One forward pass: its nodes in the order they were made.

    Attributes:
        known: operator norms of its affine maps, of an earlier pass of the same network.
        norms: those of this pass.
        random: how many of them are bounds that may fail, with probability `FAILURE` each.
        place: names of the modules that run, the innermost last.
        mixed: whether some value has another first dimension than that of the centers.
    """

    centers: int = 1
    known: Iterator[float] | None = None
    nodes: list[Node] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    random: int = 0
    place: list[str] = field(default_factory=list)
    mixed: bool = False
    apply: Callable[[Pass, Any, tuple[Any, ...], dict[str, Any]], Any] | None = None
    _doubles: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    _weights: dict[int, float] = field(default_factory=dict)

    def double(self, tensor: Tensor) -> Tensor:
        """A constant in double precision, converted once."""
        if not tensor.is_floating_point() or tensor.dtype == torch.float64:
            self._doubles.setdefault(id(tensor), (tensor, tensor))  # so that its id stays its own
            return tensor
        return self._doubles.setdefault(id(tensor), (tensor, tensor.detach().double()))[1]

    def node(self, center: Tensor, parents: Sequence[Signal], rule: Rule) -> Signal:
        """A new value, made of others by an operation with this rule."""
        check_time()
        kept = tuple(Signal(self, p.node, p.steps, p.value) for p in parents)
        for mine, given in zip(kept, parents, strict=True):
            mine._factor = given.factor  # asked for now, so that every pass asks in one order
            self.mixed |= mine.shape[:1] != (self.centers,)
        self.mixed |= center.shape[:1] != (self.centers,)
        made = Node(center, kept, rule)
        self.nodes.append(made)
        return Signal(self, made, (), center)

    def norm(self, signal: Signal) -> float:
        """Operator norm of the linear map from the signal's node to it, or an upper bound."""
        steps = [s for s in signal.steps if s.kind not in ("moves", "shifts")]
        if not steps:
            return 1.0
        if all(s.kind == "selects" for s in steps):
            return 1.0
        if self.known is not None:
            return next(self.known)
        check_time()
        # entries that are left out before a matrix is applied to what stays change no norm
        if steps[-1].kind == "matrix" and all(s.kind == "selects" for s in steps[:-1]):
            found = self._matrix_norm(steps[-1].weight)
        elif len(steps) == 1 and steps[0].convolution is not None:
            bounds = norm_of_map(steps[0].convolution)
            self.random += bounds.failure > 0
            found = bounds.upper
        else:
            found = self._map_norm(signal)
        found *= 1 + _ROOM
        self.norms.append(found)
        return found

    def _matrix_norm(self, weight: Tensor | None) -> float:
        assert weight is not None
        if id(weight) not in self._weights:
            self._doubles.setdefault(id(weight), (weight, weight))
            self.random += min(weight.shape) > DENSE
            self._weights[id(weight)] = spectral_norm(weight)
        return self._weights[id(weight)]

    def _map_norm(self, signal: Signal) -> float:
        start, end = signal.node.center, signal.value
        if start.numel() == 0 or end.numel() == 0:
            return 0.0
        if min(start.numel(), end.numel()) <= DENSE:
            return float(torch.linalg.matrix_norm(matrix_of(signal), 2))
        action = linear_part(signal)
        operator = LinearOperator.from_function(
            action, start.shape, dtype=torch.float64, device=start.device
        )
        self.random += 1
        products = max(8, min(PRODUCTS, _KEPT // (start.numel() + end.numel())))
        return operator_norm_upper_bound(operator, steps=products, failure_probability=FAILURE)

    def rows(self, value: Tensor) -> Tensor:
        """All entries that belong to a center, `[b, entries]`."""
        return value.reshape(self.centers, -1)

    def size(self, value: Tensor) -> Tensor:
        """Largest absolute entry, per center."""
        flat = self.rows(value)
        return flat.abs().amax(1) if flat.shape[1] else flat.new_zeros(len(flat))

    def refuse(self, what: str) -> UnsupportedModel:
        """Why there is no bound, with the place."""
        where = f" (in {self.place[-1]})" if self.place and self.place[-1] else ""
        return UnsupportedModel(what + where)

    def extents(self, radius: Tensor) -> Callable[[Signal], Extent]:
        """What is known of every signal on balls of these radii `[b]` about the centers."""
        found: dict[Node, Extent] = {}

        def of(signal: Signal) -> Extent:
            own = found[signal.node]
            if not signal.steps:
                return own
            factor = torch.full_like(radius, signal.factor)
            distance = times(factor, own.distance)
            largest = self.size(signal.value) + distance
            if all(s.kind in ("moves", "selects") for s in signal.steps):
                largest = torch.minimum(largest, own.largest)
            return Extent(times(factor, own.lipschitz), distance, largest)

        first = self.nodes[0]
        found[first] = Extent(torch.ones_like(radius), radius, self.size(first.center) + radius)
        for node in self.nodes[1:]:
            assert node.rule is not None  # every operation of this pass gives one
            extent = node.rule(*map(of, node.parents))
            # what is L-Lipschitz on the ball moves by LR at most, and often less is known
            distance = torch.minimum(extent.distance, times(extent.lipschitz, radius))
            largest = torch.minimum(extent.largest, self.size(node.center) + distance)
            found[node] = Extent(extent.lipschitz, distance, largest)
        return of


@contextmanager
def placed(
    model: nn.Module, watch: Pass, entered: Callable[[Pass, nn.Module], None] | None = None
) -> Iterator[None]:
    """While the network runs, the pass knows in which module it is.

    What the network raises becomes a sentence with that place.

    Args:
        model, watch: the network, and its pass.
        entered: called with the pass and each module before it runs.
    """
    hooks = []

    def enter(name: str, module: nn.Module, _: Any) -> None:
        kind = type(module).__name__
        watch.place.append(f"layer {name!r}, {kind}" if name else kind)
        if entered is not None:
            entered(watch, module)

    def leave(*_: Any) -> None:
        watch.place.pop()

    for name, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(partial(enter, name)))
        hooks.append(module.register_forward_hook(leave))
    try:
        yield
    except TorchTheoryError:
        raise
    except Exception as error:
        sentence = " ".join(str(error).split())[:200]
        raise watch.refuse(
            f"the network could not be followed: {type(error).__name__}: {sentence}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()


def times(a: Tensor, b: Tensor) -> Tensor:
    """Their product, 0 where one of them is 0 and the other infinite."""
    return torch.where((a == 0) | (b == 0), 0.0, a * b)


def linear_part(signal: Signal) -> Callable[[Tensor], Tensor]:
    """The map from the signal's node to it, without the shift."""

    def affine(v: Tensor) -> Tensor:
        for step in signal.steps:
            v = step.action(v)
        return v

    shift = affine(torch.zeros_like(signal.node.center))
    return lambda v: affine(v) - shift


def matrix_of(signal: Signal) -> Tensor:
    """The matrix of `linear_part`, `[outputs, inputs]`; one of the two numbers should be small."""
    start, end = signal.node.center, signal.value
    action = linear_part(signal)
    if not signal.steps:
        return torch.eye(start.numel(), dtype=torch.float64, device=start.device)
    if start.numel() <= end.numel():
        basis = torch.eye(start.numel(), dtype=torch.float64, device=start.device)
        columns = torch.func.vmap(lambda v: action(v.reshape(start.shape)).reshape(-1))(basis)
        return columns.mT
    pull_back: Any = torch.func.vjp(action, torch.zeros_like(start))[1]
    basis = torch.eye(end.numel(), dtype=torch.float64, device=start.device)
    rows: Tensor = torch.func.vmap(lambda u: pull_back(u.reshape(end.shape))[0].reshape(-1))(basis)
    return rows


class Signal:
    """A tensor inside the network: an affine function of a node.

    Attributes:
        watch: the pass it belongs to.
        node, steps: where it comes from, and by which affine maps.
        value: what it is at the centers, `[b, ...]`.
    """

    def __init__(
        self,
        watch: Pass,
        node: Node,
        steps: tuple[Step, ...],
        value: Tensor,
        memory: _Memory | None = None,
    ) -> None:
        self.watch, self.node, self.steps, self.value = watch, node, steps, value
        self.memory = memory or _Memory()
        self.seen = self.memory.version
        self._factor: float | None = None

    @property
    def factor(self) -> float:
        """Operator norm of the steps; asked for once, in the order of the pass."""
        if self._factor is None:
            self._factor = self.watch.norm(self)
        return self._factor

    def then(self, step: Step, value: Tensor) -> Signal:
        """The signal behind one more affine map."""
        view = self.memory if step.kind in ("moves", "selects") else None
        return Signal(self.watch, self.node, (*self.steps, step), value, view)

    def become(self, other: Signal) -> Signal:
        """Take the place of this one: an operation that writes to it."""
        self.memory.version += 1
        self.seen = self.memory.version
        self.node, self.steps, self.value = other.node, other.steps, other.value
        self._factor = other._factor
        return self

    def current(self) -> Signal:
        if self.seen != self.memory.version:
            raise self.watch.refuse(
                "the network writes to a tensor and goes on to use another view of it"
            )
        return self

    # -- what a model may ask of a tensor ---------------------------------------------------------

    @property
    def shape(self) -> torch.Size:
        return self.value.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.value.dtype

    @property
    def device(self) -> torch.device:
        return self.value.device

    @property
    def ndim(self) -> int:
        return self.value.ndim

    @property
    def is_nested(self) -> bool:
        return False

    @property
    def is_cuda(self) -> bool:
        return self.value.is_cuda

    @property
    def requires_grad(self) -> bool:
        return False

    def size(self, dim: int | None = None) -> Any:
        return self.value.shape if dim is None else self.value.shape[dim]

    def dim(self) -> int:
        return self.value.ndim

    def numel(self) -> int:
        return self.value.numel()

    def is_floating_point(self) -> bool:
        return True

    def is_contiguous(self, *_: Any, **__: Any) -> bool:
        return self.value.is_contiguous()

    def new_zeros(self, *shape: Any, **options: Any) -> Tensor:
        return self.value.new_zeros(*shape, **options)

    def new_ones(self, *shape: Any, **options: Any) -> Tensor:
        return self.value.new_ones(*shape, **options)

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.unbind(0))

    def __bool__(self) -> bool:
        raise self.watch.refuse(
            "the network decides by the numbers of its input (an if, or a comparison)"
        )

    __float__ = __int__ = __index__ = __bool__

    @property
    def T(self) -> Any:
        return self._apply("permute", tuple(range(self.ndim))[::-1])

    @property
    def mT(self) -> Any:
        return self._apply("transpose", -2, -1)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__") or not hasattr(Tensor, name):
            raise AttributeError(name)
        return lambda *args, **options: self._apply(name, *args, **options)

    def _apply(self, name: str, *args: Any, **options: Any) -> Any:
        assert self.watch.apply is not None
        return self.watch.apply(self.watch, getattr(Tensor, name), (self, *args), options)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        watch = next(s.watch for s in signals_in((args, kwargs or {})))
        assert watch.apply is not None
        return watch.apply(watch, function, args, kwargs or {})


def _operator(name: str, reflected: bool = False) -> Callable[..., Any]:
    def call(self: Signal, *others: Any) -> Any:
        if not reflected:
            return self._apply(name, *others)
        assert self.watch.apply is not None
        return self.watch.apply(self.watch, getattr(Tensor, name), (*others, self), {})

    return call


for _name, _method in {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "matmul": "matmul", "pow": "pow",
}.items():  # fmt: skip
    setattr(Signal, f"__{_name}__", _operator(_method))
    setattr(Signal, f"__r{_name}__", _operator(_method, reflected=True))
    setattr(Signal, f"__i{_name}__", _operator(_method + "_"))
for _name, _method in {
    "neg": "neg", "abs": "abs", "getitem": "__getitem__", "setitem": "__setitem__",
    "gt": "gt", "lt": "lt", "ge": "ge", "le": "le", "eq": "eq", "ne": "ne",
}.items():  # fmt: skip
    setattr(Signal, f"__{_name}__", _operator(_method))


Signal.__hash__ = object.__hash__  # type: ignore[method-assign]


def signals_in(thing: Any) -> Iterator[Signal]:
    """The signals among arguments, also in lists and dictionaries."""
    if isinstance(thing, Signal):
        yield thing
    elif isinstance(thing, tuple | list):
        for part in thing:
            yield from signals_in(part)
    elif isinstance(thing, dict):
        yield from signals_in(list(thing.values()))
