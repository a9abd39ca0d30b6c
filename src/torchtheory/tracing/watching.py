r"""What happens inside a network while it runs: its units and the signals through its layers.

Read off the recorded operations, so that `torch.relu` in a user's `forward` counts as `nn.ReLU`
does, recurrent layers show their gates, and an exported archive is the same as its module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchtheory.core.errors import UnsupportedModel
from torchtheory.models.model import Parameters, as_leaves
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.tracing.activations import ACTIVATION_FACTS, activation_facts
from torchtheory.tracing.arguments import bind
from torchtheory.tracing.network import (
    BatchSize,
    Network,
    Operation,
    Value,
    called,
    leaves,
    mapped,
)
from torchtheory.tracing.passes import (
    Step,
    layers_of_weights,
    network_of,
    run,
    without_composites,
)

#: A slope below this part of the largest one counts as flat.
FLAT = 0.01

# what these return has its units in dimension 1, whatever comes after it
_CHANNELS_FIRST = frozenset(
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution "
    "batch_norm instance_norm group_norm".split()
)
# and these in the last one
_CHANNELS_LAST = frozenset("linear matmul addmm baddbmm layer_norm rms_norm embedding".split())

# these turn dimensions, and the one of units with them
_TURNS = frozenset("permute transpose movedim t T mT H mH".split())

# a position's own numbers added, a scale, a normalization: no map from units to other units
_ENTRYWISE_KINDS = ("entrywise", "moves", "joins", "normalization")
_ENTRYWISE = frozenset(
    "add sub rsub mul div lerp addcmul addcdiv maximum minimum expand_as".split()
)


@dataclass(slots=True)
class WatchedUnits:
    r"""The units of one application of an activation $\varrho$, over all samples seen.

    Attributes:
        layer: the layer whose weights were used last before it; empty if none was.
        function: the activation's name.
        silent: `[units]`, whether the slope $\varrho'$ was 0 at every sample.
        flat: mean share of slopes below a hundredth of the largest one, over units and samples.
        linear: `[units]`, whether the slope was the same, and not 0, at every sample.
        active: `[units]`, at how many samples the slope was not 0 (somewhere, of a channel).
        samples: how many were seen.
    """

    layer: str
    function: str
    silent: Tensor
    flat: float
    linear: Tensor
    active: Tensor
    samples: int
    _slope: Tensor = field(repr=False)

    @property
    def units(self) -> int:
        return self.silent.numel()

    @property
    def silent_share(self) -> float:
        """Share of the units that no gradient passes, at any sample."""
        return float(self.silent.double().mean())

    @property
    def linear_share(self) -> float:
        """Share of the units that are a linear function on all the samples."""
        return float(self.linear.double().mean())

    def joined(self, more: WatchedUnits) -> WatchedUnits:
        """With the same units at more samples."""
        total = self.samples + more.samples
        return WatchedUnits(
            self.layer,
            self.function,
            self.silent & more.silent,
            (self.flat * self.samples + more.flat * more.samples) / total,
            self.linear & more.linear & (self._slope == more._slope),
            self.active + more.active,
            total,
            self._slope,
        )


def watch_units(problem: Problem, samples: Samples) -> list[WatchedUnits]:
    """The units behind every activation that the model applies, in the order it applies them.

    A unit is a column of a layer's output, or a channel. The gates of recurrent layers are
    activations too; their units are looked at in all time steps together, like the positions of a
    sequence. One forward pass over the samples and, for each activation, as much again for its
    slopes.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 1))
    >>> _ = net[0].weight.data.copy_(torch.tensor([[1.0], [-1.0]]))
    >>> x = torch.tensor([[1.0], [2.0]])
    >>> p = Problem(net, (x, x), task="regression")
    >>> [(u.layer, u.function, u.silent_share, u.linear_share) for u in watch_units(p, p.train)]
    [('0', 'relu', 0.5, 0.5)]
    """
    found: list[WatchedUnits] = []
    for x, _ in samples.chunks(problem.chunk):
        network = network_of(problem.function, x, without_composites)
        watch = _Slopes(network, len(x))
        with torch.no_grad():
            run(problem.function, network, x, watch.step)
        here = watch.units()
        if found and [u.units for u in here] != [u.units for u in found]:
            raise UnsupportedModel("the model does not apply the same layers to every batch")
        found = [a.joined(b) for a, b in zip(found, here, strict=True)] if found else here
    return found


@dataclass(frozen=True, slots=True)
class LayerSignal:
    r"""What a layer puts out, and the gradient of the loss that comes back to it.

    Attributes:
        layer: its name.
        forward: root mean square of its outputs, over units and samples.
        backward: $\|\partial\ell/\partial z\|_2$, the length of the gradient of a sample's
            loss in its outputs; root mean square over samples.
    """

    layer: str
    forward: float
    backward: float


def watch_signals(
    problem: Problem,
    samples: Samples,
    parameters: Parameters | None = None,
    *,
    compute: Step = called,
) -> list[LayerSignal]:
    """Sizes of activations and gradients at every layer with a weight matrix, in order of use.

    Any model: a layer is a function of the data and of a weight matrix, or of what the model makes
    of one (`x @ self.w.T`, a mask, a parametrization). It goes by the name its weight has among
    the parameters; one that is used twice, by a loop or by two layers that share it, is listed at
    each use. One forward and one backward pass.

    Args:
        parameters: weights to use in place of the model's own.
        compute: what an operation makes, if not what it makes by itself.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    >>> for layer in net:
    ...     _ = layer.weight.data.fill_(2.0)
    >>> p = Problem(net, (torch.ones(1, 1), torch.zeros(1, 1)), task="regression")
    >>> [(s.layer, s.forward, s.backward) for s in watch_signals(p, p.train)]
    [('0', 2.0, 16.0), ('1', 4.0, 8.0)]
    """
    problem = problem if parameters is None else problem.at(parameters)
    squares: list[list[float]] = []
    names: list[str] = []
    for x, y in samples.chunks(problem.chunk):
        network = network_of(problem.function, x)
        layers = weighted_values(network)
        free = as_leaves({k: network.tensors[v] for k, v in network.parameters.items()})
        outputs: dict[Value, Tensor] = {}

        def step(
            op: Operation,
            args: tuple[Any, ...],
            kwargs: dict[str, Any],
            layers: dict[Value, str] = layers,
            outputs: dict[Value, Tensor] = outputs,
        ) -> Any:
            made = compute(op, args, kwargs)
            if op.outputs and op.outputs[0] in layers:
                first = made[0] if isinstance(made, tuple | list) else made
                if first.requires_grad:
                    outputs[op.outputs[0]] = first
            return made

        with torch.enable_grad():
            given = {network.parameters[k]: p for k, p in free.items()}
            result = run(problem.function, network, x, step, given)
            loss = problem.loss(result, y) * len(x)
            gradients = _gradients(loss.reshape(()), list(outputs.values()))
        here = [layers[value] for value in outputs]
        if squares and here != names:
            raise UnsupportedModel(
                "the model does not apply the same layers in the same order to every batch, so no "
                "layer has a size of its own"
            )
        names, squares = here, squares or [[0.0, 0.0, 0.0] for _ in here]
        for sizes, out, gradient in zip(squares, outputs.values(), gradients, strict=True):
            sizes[0] += float(out.detach().double().square().sum())
            sizes[1] += 0.0 if gradient is None else float(gradient.double().square().sum())
            sizes[2] += out.numel()
    return [
        LayerSignal(name, (f / n) ** 0.5, (b / len(samples)) ** 0.5)
        for name, (f, b, n) in zip(names, squares, strict=True)
    ]


def _gradients(loss: Tensor, places: list[Tensor]) -> Sequence[Tensor | None]:
    """The derivative of the loss at each of some tensors; None where it does not depend on one."""
    if not places or not loss.requires_grad:
        return [None] * len(places)
    found: Sequence[Tensor | None] = torch.autograd.grad(loss, places, allow_unused=True)
    return found


def weighted_values(network: Network) -> dict[Value, str]:
    """What maps of units to other units by a weight matrix return first, and their layers' names.

    In order of use.
    """
    weights = layers_of_weights(network)
    found = {}
    for op in network:
        if not op.follows or op.kind in _ENTRYWISE_KINDS or op.name in _ENTRYWISE:
            continue
        matrix = next((weights[v] for v in op.inputs if v in weights and len(v.shape) > 1), None)
        if matrix is not None and op.outputs and op.outputs[0].dtype.is_floating_point:
            found[op.outputs[0]] = matrix
    return found


# ------------------------------------------------------------------------------------- units


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a value comes from: the layer whose weights were used last, and the axis of units."""

    layer: str = ""
    number: int = -1
    axis: int | None = None


def _sources(network: Network) -> dict[Value, _Source]:
    """Of every value that follows the input, the layer that it is the output of."""
    weights = layers_of_weights(network)
    found = {value: _Source() for value in network.inputs}
    for op in network:
        if not op.follows:
            continue
        before = [(v, found[v]) for v in op.inputs if v in found]
        value, source = max(before, key=lambda pair: pair[1].number)
        layer = next((weights[v] for v in op.inputs if v in weights), None)
        for made in op.outputs:
            axis = _axis(op, value, source.axis, made, layer is not None)
            found[made] = (
                _Source(source.layer, source.number, axis)
                if layer is None
                else _Source(layer, op.number, axis)
            )
    return found


def _axis(op: Operation, value: Value, axis: int | None, made: Value, weighted: bool) -> int | None:
    """The dimension of units in what an operation makes; None where nothing tells."""
    ndim = len(made.shape)
    if weighted and op.name in _CHANNELS_FIRST:
        return 1
    if op.name in _CHANNELS_LAST and (weighted or op.name != "matmul"):
        return ndim - 1
    if axis is None:
        return None
    if op.name in _TURNS:
        sizes = range(2, 2 + len(value.shape))
        probe = torch.empty(tuple(sizes), device="meta")
        args, kwargs = mapped((op.args, op.kwargs), lambda v: probe if v is value else v)
        return list(called(op, args, kwargs).shape).index(sizes[axis])
    return axis if axis < ndim and made.shape[axis] == value.shape[axis] else None


def _gates(network: Network) -> dict[Value, frozenset[Any]]:
    """Of values inside a recurrent layer, the parts of its weights that they are made by.

    They are the same in every time step, and differ from gate to gate.
    """
    found: dict[Value, frozenset[Any]] = {}
    for op in network:
        if not op.part_of:
            continue
        met = frozenset().union(*(found.get(v, frozenset()) for v in op.inputs))
        if op.name == "linear":
            met = frozenset([op.inputs[1].number])
        for place, made in enumerate(op.outputs):
            found[made] = met if len(op.outputs) == 1 else frozenset((m, place) for m in met)
    return found


def _activated(op: Operation) -> Value | None:
    """What a pointwise activation is applied to; None if the operation is none."""
    followed = {v for v in op.inputs if v.follows}
    if op.name not in ACTIVATION_FACTS or len(followed) != 1:
        return None
    (value,) = followed
    return value if len(value.shape) > 1 and value.dtype.is_floating_point else None


class _Slopes:
    """Keeps what the slopes of every activation say about its units, in one pass."""

    def __init__(self, network: Network, samples: int) -> None:
        self.samples = samples
        self.sources, self.gates = _sources(network), _gates(network)
        self.found: dict[Any, _Seen] = {}

    def step(self, op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute an operation, and look at its slopes if it is an activation."""
        value = _activated(op)
        if value is None:
            return called(op, args, kwargs)
        pairs = zip(leaves((op.args, op.kwargs)), leaves((args, kwargs)), strict=True)
        z = next(tensor for own, tensor in pairs if own is value)
        with torch.enable_grad():
            free = z.detach().requires_grad_()
            args, kwargs = mapped((args, kwargs), lambda t: free if t is z else t)
            values = called(op, args, kwargs)
            (slopes,) = torch.autograd.grad(values.sum(), free)
        source = self.sources[value]
        key = (op.part_of, op.layer, op.name, self.gates[value]) if op.part_of else op.number
        if key not in self.found:
            facts = activation_facts(op.name, **bind(op.function, args, kwargs))
            largest = max(abs(slope) for slope in facts.slopes)
            self.found[key] = _Seen(source.layer, op.name, largest)
        self.found[key].add(_by_sample(slopes, value, source.axis, self.samples))
        return values.detach()

    def units(self) -> list[WatchedUnits]:
        """What was seen of each activation, in order."""
        return [seen.units() for seen in self.found.values()]


def _by_sample(slopes: Tensor, value: Value, axis: int | None, samples: int) -> Tensor:
    """Slopes `[samples, positions, units]`."""
    if axis is None:
        axis = 1 if slopes.ndim > 3 else slopes.ndim - 1
    own = next((d for d, s in enumerate(value.shape) if isinstance(s, BatchSize)), 0)
    if own == axis:
        own = 0 if axis else 1
    turned = slopes.movedim((own, axis), (0, -1))
    # several rows of one sample, as of a sequence that was flattened into the batch, are positions
    whole = samples if len(turned) % samples == 0 else len(turned)
    return turned.reshape(whole, -1, turned.shape[-1])


@dataclass(slots=True)
class _Seen:
    """What the slopes of one activation have shown so far, in one pass."""

    layer: str
    function: str
    largest: float
    slope: Tensor = field(init=False)
    silent: Tensor = field(init=False)
    same: Tensor = field(init=False)
    live: Tensor = field(init=False)
    flat: float = 0.0
    times: int = 0

    def add(self, slopes: Tensor) -> None:
        """More positions of the same samples, `[samples, positions, units]`."""
        rows = slopes.flatten(0, 1)
        if not self.times:
            self.slope = rows[0]
            self.silent, self.same = (torch.ones_like(rows[0], dtype=torch.bool) for _ in range(2))
            self.live = torch.zeros_like(slopes[:, 0], dtype=torch.bool)
        self.silent = self.silent & (rows == 0).all(0)
        self.same = self.same & (rows == self.slope).all(0)
        self.live = self.live | (slopes != 0).any(1)
        self.flat += float((rows.abs() < FLAT * self.largest).double().mean())
        self.times += 1

    def units(self) -> WatchedUnits:
        """What they say about the units."""
        return WatchedUnits(
            self.layer,
            self.function,
            self.silent,
            self.flat / self.times,
            self.same & (self.slope != 0),
            self.live.sum(0),
            len(self.live),
            self.slope,
        )
