"""A recorded network as stages, operation by operation: a table by plain names.

So layers, functions in their place, shortcuts, values side by side and archives are all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from torchtheory.core.errors import ModelRaised, UnsupportedModel
from torchtheory.models.model import Parameters, PureFunction
from torchtheory.optimization.stages.convolutions import Setting, channels_last, setting_of
from torchtheory.optimization.stages.plain import (
    Concatenation,
    Largest,
    Linear,
    Other,
    Pointwise,
    Product,
    Rectified,
    Reshaping,
    Shifted,
    Sum,
)
from torchtheory.optimization.stages.stage import Kept, Stage
from torchtheory.optimization.stages.weighted import (
    Affine,
    DenseOfImages,
    DirectConvolution,
    Normalization,
    Own,
    Weighted,
)
from torchtheory.tracing.chain import is_watched
from torchtheory.tracing.kinds import AVERAGES, PADS, RESIZES
from torchtheory.tracing.network import BatchSize, Network, Operation, Value, mapped
from torchtheory.tracing.passes import network_of

#: A stage for a convolution, of its parameters, its setting and its input.
Convolving = Callable[[Own, Setting, Tensor], Stage]


@dataclass(frozen=True, slots=True)
class Step:
    """A stage in its place.

    Attributes:
        stage: what is done.
        inputs: the steps whose values it takes, -1 for the network's input.
        moves: whether its value depends on parameters that move.
    """

    stage: Stage
    inputs: tuple[int, ...]
    moves: bool

    def moving(self, steps: Sequence[Step]) -> list[int]:
        """Those of the steps before it whose values move."""
        return [i for i in self.inputs if i >= 0 and steps[i].moves]


def values_of(steps: Sequence[Step], x: Tensor) -> tuple[list[Tensor], list[Kept]]:
    """What all steps make of inputs `[n, ...]`, and what is kept on the way."""
    x = channels_last(x)
    values: list[Tensor] = []
    kept: list[Kept] = []
    for step in steps:
        y, one = step.stage.values(*(x if i < 0 else values[i] for i in step.inputs))
        values.append(y)
        kept.append(one)
    return values, kept


def recorded(function: PureFunction, x: Tensor) -> Network | None:
    """The operations of a model that stages may be made of, or None if there are none.

    Args:
        function: the model.
        x: some inputs.
    """
    plain = (function.rows, function.noise, function.output, function.arranged)
    if plain != (None,) * 4 or any(is_watched(module) for module in function.model.modules()):
        return None
    try:
        network = network_of(function, x)
    except (UnsupportedModel, ModelRaised):
        return None
    if network.rows is not None or network.decisions or network.random:
        return None
    if network.own_functions:  # whose derivatives are the user's
        return None
    one = len(network.inputs) == 1 and isinstance(network.output, Value)
    return network if one else None


def steps_of(
    network: Network,
    point: Parameters,
    moving: Sequence[str],
    x: Tensor,
    convolving: Convolving,
    *,
    in_place: bool,
) -> list[Step] | None:
    """The stages of a network, or None if one of its operations has none.

    Args:
        network: the operations.
        point: the parameters, by name.
        moving: names of those that move.
        x: a few inputs, for whose size the stages are.
        convolving: how convolutions of images are worked out.
        in_place: whether a dense layer takes images as they are, rather than laid out in rows.
    """
    try:
        return _Builder(network, point, frozenset(moving), convolving, in_place).steps(x)
    except _NoStage:
        return None


class _NoStage(Exception):
    """An operation is not known as a stage."""


@dataclass
class _Builder:
    network: Network
    point: Parameters
    followed: frozenset[str]
    convolving: Convolving
    in_place: bool
    #: what follows no input, and what of it is made of parameters that move
    held: dict[Value, Tensor] = field(default_factory=dict)
    moved: set[Value] = field(default_factory=set)
    #: number of the step that makes a value, and its numbers
    places: dict[Value, int] = field(default_factory=dict)
    numbers: dict[Value, Tensor] = field(default_factory=dict)
    #: images in whose place there are rows, by the value of the rows
    images: dict[Value, Value] = field(default_factory=dict)
    made: list[Step] = field(default_factory=list)

    def steps(self, x: Tensor) -> list[Step]:
        """All of them, in order."""
        network = self.network
        self.held = {
            value: self.point.get(value.name, tensor) if value.origin == "parameter" else tensor
            for value, tensor in network.tensors.items()
        }
        self.moved = {v for name, v in network.parameters.items() if name in self.followed}
        (start,) = network.inputs
        self.places[start], self.numbers[start] = -1, channels_last(x)
        for op in network:
            if network.needed.isdisjoint(op.outputs):
                continue
            if op.follows:
                self._take(op)
            else:
                self._hold(op)
        last = self.places.get(network.output)
        if not self.made or last != len(self.made) - 1:
            raise _NoStage
        return self.made

    def _hold(self, op: Operation) -> None:
        """Something that is made of parameters and constants."""
        if len(op.outputs) != 1 or not isinstance(op.result, Value) or op.draws:
            raise _NoStage
        if any(isinstance(size, BatchSize) for size in op.result.shape):
            raise _NoStage
        if not self.moved.isdisjoint(op.inputs):
            self.moved.add(op.result)
        own = mapped((op.args, op.kwargs), lambda v: self.held[v] if isinstance(v, Value) else v)
        self.held[op.result] = op.function(*own[0], **own[1])

    def _take(self, op: Operation) -> None:
        """An operation on what follows the input."""
        result = op.result
        if not isinstance(result, Value) or not result.dtype.is_floating_point:
            raise _NoStage
        if [s for s in result.shape if isinstance(s, BatchSize)] != [BatchSize(1)] or (
            not isinstance(result.shape[0], BatchSize)
        ):
            raise _NoStage  # the samples are not its rows
        taken = [v for v in op.inputs if v.follows]
        if op.name in _SAME or (op.kind == "random" and not op.draws):
            self.places[result], self.numbers[result] = (
                self.places[taken[0]], self.numbers[taken[0]],
            )  # fmt: skip
            if result.dtype != taken[0].dtype:
                raise _NoStage
            return
        if self._lays_out(op, taken[0]):
            self.images[result] = taken[0]
            return
        taken = [self.images.get(v, v) for v in taken]
        stage = self._stage(op, taken)
        inputs = tuple(self.places[v] for v in taken)
        own = isinstance(stage, Weighted) and bool(stage.names)
        moves = own or any(i >= 0 and self.made[i].moves for i in inputs)
        self.places[result] = len(self.made)
        self.made.append(Step(stage, inputs, moves))
        try:
            self.numbers[result], _ = stage.values(*(self.numbers[v] for v in taken))
        except (RuntimeError, NotImplementedError) as error:  # torch has no derivative of it
            raise _NoStage from error

    def _lays_out(self, op: Operation, image: Value) -> bool:
        """Whether it makes images rows, for dense layers alone, which may take images."""
        users = self.network.users.get(op.result, [])
        return (
            self.in_place
            and op.name in _RESHAPES
            and len(image.shape) == 4
            and len(op.result.shape) == 2
            and op.result not in self.network.outputs
            and all(user.name == "linear" for user in users)
        )

    def _stage(self, op: Operation, taken: list[Value]) -> Stage:
        # no more than the parameters of layers may move
        weighted = op.name in _WEIGHTED
        if not weighted and not self.moved.isdisjoint(op.inputs):
            raise _NoStage
        if len(taken) == 2 and op.name in _JOINING:
            return _JOINING[op.name](op)
        if op.name == "cat":
            return _concatenation(op, taken)
        if len(taken) != 1:
            raise _NoStage
        if weighted:
            if not op.arguments["input"].follows:
                raise _NoStage
            return _WEIGHTED[op.name](self, op, taken[0])
        if op.name == "relu":
            return Rectified()
        if op.name == "max_pool2d":
            return _largest(op)
        applied = self._applied(op)
        if op.kind == "entrywise":
            if op.result.shape != taken[0].shape:  # broadcast along something constant
                raise _NoStage
            # torch has no second derivative of the hard sigmoid, which is 0
            return Pointwise(applied, bends=op.name != "hardsigmoid")
        if op.name in _RESHAPES:
            return Reshaping(applied)
        if _is_linear(op):
            return Linear(applied)
        if op.name in _SHIFTS or op.name in PADS:
            return Shifted(applied)
        if op.name in _OTHERS:
            return Other(applied)
        raise _NoStage

    def own(self, op: Operation) -> Own:
        """The parameters of an operation, which are the model's own or do not move."""
        given, names = op.arguments, {}
        tensors: dict[str, Tensor | None] = {"weight": None, "bias": None}
        for place in tensors:
            value = given.get(place)
            if value is None:
                continue
            if value not in self.held:  # it follows the input
                raise _NoStage
            tensors[place] = self.held[value]
            if value in self.moved:
                if value.origin != "parameter":
                    raise _NoStage
                names[place] = value.name
        taken = given["input"]
        before = self.places[self.images.get(taken, taken)]
        first = before < 0 or not self.made[before].moves
        weight = tensors["weight"]
        if weight is None:
            weight = self.numbers[taken].new_ones(taken.shape[1])
        return Own(weight, tensors["bias"], names, first)

    def _applied(self, op: Operation) -> Callable[..., Tensor]:
        """What an operation makes of the values that follow the input."""

        def applied(*given: Tensor) -> Tensor:
            rest, samples = iter(given), len(given[0])

            def of(leaf: Any) -> Any:
                if isinstance(leaf, Value):
                    return next(rest) if leaf.follows else self.held[leaf]
                return leaf.of(samples) if isinstance(leaf, BatchSize) else leaf

            made: Tensor = op.function(*mapped(op.args, of), **mapped(op.kwargs, of))
            return made

        return applied


# ------------------------------------------------------------------------------------- the table


def _dense(builder: _Builder, op: Operation, x: Value) -> Stage:
    own = builder.own(op)
    if own.weight.ndim != 2:
        raise _NoStage
    laid_out = op.arguments["input"] in builder.images
    return DenseOfImages(own, builder.numbers[x].shape[1:]) if laid_out else Affine(own)


def _convolution(builder: _Builder, op: Operation, x: Value) -> Stage:
    own = builder.own(op)
    setting = setting_of(op.arguments, own.weight.ndim - 2)
    if setting is None or own.weight.ndim != len(x.shape):
        raise _NoStage
    if own.weight.ndim != 4 or setting.transposed:
        return DirectConvolution(own, setting)
    return builder.convolving(own, setting, builder.numbers[x])


def _normalization(builder: _Builder, op: Operation, x: Value) -> Stage:
    given = op.arguments
    statistics = [given["running_mean"], given["running_var"]]
    if given["training"] or None in statistics or not builder.moved.isdisjoint(statistics):
        raise _NoStage
    mean, variance = (builder.held[v] for v in statistics)
    return Normalization(builder.own(op), mean, variance, given["eps"])


def _sum(op: Operation) -> Stage:
    sign = -1.0 if op.name == "sub" else 1.0
    return Sum(sign * op.arguments.get("alpha", 1))


def _concatenation(op: Operation, taken: list[Value]) -> Stage:
    dim, dims = op.arguments["dim"], len(op.result.shape)
    if len(taken) != len(op.inputs) or dim % dims == 0:
        raise _NoStage
    return Concatenation(dim % dims)


def _largest(op: Operation) -> Stage:
    given = op.arguments

    def operation(x: Tensor) -> tuple[Tensor, Tensor]:
        y, places = F.max_pool2d(
            x, given["kernel_size"], given["stride"] or None, given["padding"], given["dilation"],
            given["ceil_mode"], return_indices=True,
        )  # fmt: skip
        return y, places

    return Largest(operation)


def _is_linear(op: Operation) -> bool:
    """Whether it is linear in what follows the input, and leaves the samples apart."""
    given = op.arguments
    if op.name in ("mean", "sum"):
        dims = given.get("dim")
        several = [dims] if isinstance(dims, int) else list(dims or ())
        return bool(several) and all(d % len(op.inputs[0].shape) for d in several)
    if op.name == "getitem":
        index = given["index"]
        whole = isinstance(index, tuple) and index[0] == slice(None)
        return whole and all(i is None or isinstance(i, int | slice) for i in index)
    if op.name in PADS:
        return given.get("mode", "constant") != "constant" or not given.get("value")
    if op.name == "div":
        return op.inputs[0].follows and given.get("rounding_mode") is None
    return op.name in _LINEAR


_WEIGHTED: dict[str, Callable[[_Builder, Operation, Value], Stage]] = {
    "linear": _dense,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), _convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _convolution),
    "batch_norm": _normalization,
}
_JOINING: dict[str, Callable[[Operation], Stage]] = {
    **dict.fromkeys(("add", "sub"), _sum),
    "mul": lambda op: Product(),
}
_SAME = frozenset(("clone", "contiguous", "identity", "alias", "positive"))
_RESHAPES = frozenset(
    ("view", "view_as", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze")
)
_LINEAR = frozenset(
    (
        *AVERAGES, *RESIZES, "mul", "neg", "transpose", "permute", "mT", "movedim",
        "pixel_shuffle", "pixel_unshuffle",
    )
)  # fmt: skip
#: Linear but for something constant that is added.
_SHIFTS = frozenset(("add", "sub", "rsub"))
#: Known to first order only.
_OTHERS = frozenset(("adaptive_max_pool2d", "lp_pool2d", "softmax", "log_softmax"))
