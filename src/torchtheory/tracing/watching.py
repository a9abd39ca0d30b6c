r"""What happens inside a network while it runs: its units and the signals through its layers.

Functions are watched rather than modules, so that `torch.relu` in a user's `forward` counts as
`nn.ReLU` does, and the model gets no hooks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchtheory.core.errors import UnsupportedModel
from torchtheory.models.model import Parameters, as_leaves, global_randomness_kept, tensors_in
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples

#: Pointwise activations by the name torch calls them, and their largest slope.
LARGEST_SLOPE = {
    "relu": 1.0,
    "relu6": 1.0,
    "leaky_relu": 1.0,
    "elu": 1.0,
    "selu": 1.7580993408473766,
    "celu": 1.0,
    "gelu": 1.12891,
    "silu": 1.09984,
    "mish": 1.0885,
    "softplus": 1.0,
    "sigmoid": 0.25,
    "tanh": 1.0,
    "hardtanh": 1.0,
    "hardsigmoid": 1 / 6,
    "hardswish": 1.5,
    "softsign": 1.0,
    "logsigmoid": 1.0,
    "clamp": 1.0,
    "clamp_min": 1.0,
}

#: A slope below this part of the largest one counts as flat.
FLAT = 0.01

# what these return has its units in dimension 1, whatever comes after it
_CHANNELS_FIRST = {"conv1d", "conv_transpose1d", "batch_norm", "instance_norm", "group_norm"}

# a position's own numbers added, a scale, a normalization: no map from units to other units
_ENTRYWISE = set(
    """
    add add_ __add__ __radd__ __iadd__ sub sub_ __sub__ __rsub__ __isub__ subtract rsub mul mul_
    __mul__ __rmul__ __imul__ multiply div div_ __truediv__ __rtruediv__ __itruediv__ divide
    true_divide lerp addcmul where maximum minimum cat concat concatenate stack hstack vstack copy_
    masked_scatter __setitem__ layer_norm rms_norm batch_norm instance_norm group_norm prelu view_as
    reshape_as expand_as type_as to
    """.split()
)
# these change their first argument and return None or another tensor
_WRITES = {"__setitem__", "__set__"}


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

    A unit is a column of a layer's output, or a channel. One forward pass over the samples and,
    for each activation, as much again for its slopes.

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
        watch = _Slopes(problem)
        with torch.no_grad(), global_randomness_kept(), watch:
            problem.function(problem.parameters, x)
        here = watch.found
        same = [u.units for u in here] == [u.units for u in found]
        found = [a.joined(b) for a, b in zip(found, here, strict=True)] if same else here
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
    problem: Problem, samples: Samples, parameters: Parameters | None = None
) -> list[LayerSignal]:
    """Sizes of activations and gradients at every layer with a weight matrix, in order of use.

    Any model: a layer is a function of the data and of a weight matrix, or of what the model makes
    of one (`x @ self.w.T`, a mask, a parametrization). It goes by the name its weight has among
    the parameters; one that is used twice, by a loop or by two layers that share it, is listed at
    each use. One forward and one backward pass.

    Args:
        parameters: weights to use in place of the model's own.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    >>> for layer in net:
    ...     _ = layer.weight.data.fill_(2.0)
    >>> p = Problem(net, (torch.ones(1, 1), torch.zeros(1, 1)), task="regression")
    >>> [(s.layer, s.forward, s.backward) for s in watch_signals(p, p.train)]
    [('0', 2.0, 16.0), ('1', 4.0, 8.0)]
    """
    point = problem.parameters if parameters is None else parameters
    squares: list[list[float]] = []
    names: list[str] = []
    for x, y in samples.chunks(problem.chunk):
        free = as_leaves(point)
        watch = _Layers(problem, free)
        with torch.enable_grad(), global_randomness_kept():
            with watch:
                result = problem.function(free, x)
            loss = problem.loss(result, y) * len(x)
            gradients = _gradients(loss.reshape(()), [out for _, out in watch.outputs])
        here = [name for name, _ in watch.outputs]
        if squares and here != names:
            raise UnsupportedModel(
                "the model does not apply the same layers in the same order to every batch, so no "
                "layer has a size of its own"
            )
        names, squares = here, squares or [[0.0, 0.0, 0.0] for _ in here]
        for sizes, (_, out), gradient in zip(squares, watch.outputs, gradients, strict=True):
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


class _Watch(TorchFunctionMode):
    """Tells weights from data, and keeps the name of the layer whose weights met data last.

    What does not depend on the data is known: parameters, buffers, tensors that modules keep, and
    whatever functions make of these alone (a transposed weight, a masked one, one that a
    parametrization computes). Everything else is data.
    """

    def __init__(self, problem: Problem, parameters: Parameters) -> None:
        super().__init__()
        # the tensors themselves as well: an id is only good while its object lives
        self.fixed: dict[int, tuple[Tensor, str]] = {}
        for module in problem.model.modules():
            self._fix(tensors_in(vars(module).values()), "")
        self._fix(problem.function.buffers.values(), "")
        for name, p in parameters.items():
            self._fix([p], name.rpartition(".")[0] or name)
        self.last, self.channels_first = "", False

    def _fix(self, tensors: Iterable[Tensor], layer: str) -> None:
        self.fixed.update((id(t), (t, layer)) for t in tensors)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        name = getattr(func, "__name__", "")
        self.before(name, args, named)
        met = list(tensors_in([*args, *named.values()]))
        known = [self.fixed[id(t)] for t in met if id(t) in self.fixed]
        weights = [(t, layer) for t, layer in known if layer]
        result = func(*args, **named)
        if len(known) == len(met):
            self._fix(tensors_in([result]), weights[0][1] if weights else "")
            return result
        # what data were written to is data
        for t in tensors_in([result, *args[:1]] if name in _WRITES else [result]):
            self.fixed.pop(id(t), None)
        if not weights:
            return result
        self.last = weights[0][1].partition(".parametrizations.")[0]
        self.channels_first = name in _CHANNELS_FIRST
        matrix = next((layer for t, layer in weights if t.ndim > 1), None)
        return result if matrix is None or name in _ENTRYWISE else self.after(matrix, result)

    def before(self, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Called before every function."""

    def after(self, layer: str, result: Any) -> Any:
        """Called with what a function of data and of a layer's weight matrix returns."""
        return result


class _Slopes(_Watch):
    """Keeps what the slopes of every activation say about its units."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, problem.parameters)
        self.found: list[WatchedUnits] = []

    def before(self, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        plain = name.removesuffix("_")
        z = args[0] if args else named.get("input")
        if plain not in LARGEST_SLOPE or not isinstance(z, Tensor) or z.ndim < 2:
            return
        if id(z) in self.fixed:  # of a weight: there is no unit behind it
            return
        function = getattr(F, plain, None) or getattr(torch, plain)
        settings = {k: v for k, v in named.items() if k not in ("input", "inplace")}
        with torch.enable_grad():
            free = z.detach().requires_grad_()
            # of a copy: nn.LeakyReLU and others pass inplace by position
            values = function(free.clone(), *args[1:], **settings)
            (slopes,) = torch.autograd.grad(values.sum(), free)
        last = z.ndim == 2 or (z.ndim == 3 and not self.channels_first)
        by_unit = slopes.movedim(-1 if last else 1, -1)
        self.found.append(_units(self.last, plain, by_unit, len(z)))


class _Layers(_Watch):
    """Keeps what every layer with a weight matrix returns, as part of the graph."""

    def __init__(self, problem: Problem, parameters: Parameters) -> None:
        super().__init__(problem, parameters)
        self.outputs: list[tuple[str, Tensor]] = []

    def after(self, layer: str, result: Any) -> Any:
        first = next(tensors_in([result]), None)
        if first is None or not first.is_floating_point() or not first.requires_grad:
            return result
        self.outputs.append((layer, first))
        # a copy: an activation that works in place would overwrite what is measured
        if type(result) is tuple and result[0] is first:
            return (first.clone(), *result[1:])
        return first.clone() if result is first else result


def _units(layer: str, function: str, slopes: Tensor, samples: int) -> WatchedUnits:
    rows = slopes.flatten(0, -2)
    first = rows[0]
    live = slopes != 0
    return WatchedUnits(
        layer,
        function,
        (rows == 0).all(0),
        float((rows.abs() < FLAT * LARGEST_SLOPE[function]).double().mean()),
        (rows == first).all(0) & (first != 0),
        (live.flatten(1, -2).any(1) if live.ndim > 2 else live).sum(0),
        samples,
        first,
    )
