r"""A forward pass that carries, beside each value, how far and how fast it can move.

A `Signal` stands for a tensor inside the network. It knows its value at some inputs, the
*centers* $x_0$, and from which earlier value it comes by an affine map. What is no affine map makes
a `Node`, whose rule turns what is known of the values it is made of into

* the Lipschitz constant $L$ of the value as a function of the network's input, on the ball of
  radius $R$ about $x_0$,
* the distance from the center's value that it keeps there, at most $LR$,
* the largest absolute entry that it has there.

What asks for the numbers of a signal (`if x.sum() > 0`, `x.item()`) is refused, since the answer
might differ within the ball.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torchtheory.convolution.layer_matrices import ConvolutionMap
from torchtheory.convolution.spectra import norm_of_map
from torchtheory.core.budget import check_time
from torchtheory.core.errors import UnsupportedModel
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


@dataclass
class Pass:
    """One forward pass: its nodes in the order they were made.

    Attributes:
        known: operator norms of its affine maps, of an earlier pass of the same network.
        norms: those of this pass.
        random: how many of them are bounds that may fail, with probability `FAILURE` each.
        place: where the operation stands that is followed.
        now: that operation: its function and what it is called with.
        mixed: whether some value has another first dimension than that of the centers.
    """

    centers: int = 1
    known: Iterator[float] | None = None
    nodes: list[Node] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    random: int = 0
    place: str = ""
    now: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] = (lambda: None, (), {})
    mixed: bool = False
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
        return UnsupportedModel(f"{what} (in {self.place})" if self.place else what)

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
    """A value of the network: an affine function of a node.

    Attributes:
        watch: the pass it belongs to.
        node, steps: where it comes from, and by which affine maps.
        value: what it is at the centers, `[b, ...]`.
    """

    def __init__(self, watch: Pass, node: Node, steps: tuple[Step, ...], value: Tensor) -> None:
        self.watch, self.node, self.steps, self.value = watch, node, steps, value
        self._factor: float | None = None

    @property
    def factor(self) -> float:
        """Operator norm of the steps; asked for once, in the order of the pass."""
        if self._factor is None:
            self._factor = self.watch.norm(self)
        return self._factor

    @property
    def shape(self) -> torch.Size:
        return self.value.shape

    @property
    def ndim(self) -> int:
        return self.value.ndim

    def then(self, step: Step, value: Tensor) -> Signal:
        """The signal behind one more affine map."""
        return Signal(self.watch, self.node, (*self.steps, step), value)


@dataclass(frozen=True)
class Untold:
    """In the place of a value of which nothing is known."""

    what: str


def signals_in(thing: Any) -> Iterator[Signal]:
    """The signals among arguments, also in lists and dictionaries."""
    if isinstance(thing, Signal):
        yield thing
    elif isinstance(thing, tuple | list):
        for part in thing:
            yield from signals_in(part)
    elif isinstance(thing, dict):
        yield from signals_in(list(thing.values()))
