"""Tangent features of convolutional networks, layer by layer, a few samples at a time.

autograd works through a convolution by its definition, in values that no cache holds. Here the
derivatives of all outputs of one sample or a few are worked out in memory that is kept, threads
share the samples, and filters of 3 x 3 take a quarter of the multiplications (`winograd`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from torchtheory.convolution.winograd import TAPS, TILE
from torchtheory.core.budget import check_time
from torchtheory.core.errors import UnsupportedModel
from torchtheory.core.threads import SideBySide
from torchtheory.core.workspace import Workspace
from torchtheory.kernels.tangent.layer_pullbacks import (
    Concatenation,
    Convolution,
    Dense,
    Kept,
    Largest,
    Layer,
    Plain,
    Pointwise,
    Reshaping,
    Scaling,
    Sum,
    TiledConvolution,
    of_all,
    samples_first,
)
from torchtheory.kernels.tangent.parameter_uses.jacobians import Use
from torchtheory.models.model import Parameters, PureFunction
from torchtheory.nets.activations.table import POINTWISE_LAYERS
from torchtheory.tracing import chain

#: Work on some of the samples.
Work = Callable[[slice, Workspace], None]

#: Layers without parameters that map samples one by one.
_PLAIN = (
    nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, chain.Average, nn.LPPool2d,
    nn.ZeroPad2d, nn.PixelShuffle, nn.PixelUnshuffle, nn.Upsample, nn.Softmax, nn.LogSoftmax,
)  # fmt: skip

#: Channels before and behind a convolution, and tiles of its output, from which on tiles pay.
_CHANNELS, _TILES = 16, 16

#: Bytes of the derivatives of a piece in the largest value.
_CACHED = 3 * 2**20


@dataclass(frozen=True, slots=True)
class Step:
    """A layer of the network.

    Attributes:
        layer: the layer.
        inputs: the steps whose values it takes, -1 for the network's input.
        use: the operation on parameters that it is, by its number.
        moves: whether its value depends on parameters that are followed.
    """

    layer: Layer
    inputs: tuple[int, ...]
    use: int | None
    moves: bool


@dataclass(frozen=True, slots=True)
class Begun:
    """The beginning of the way back, which is the same for all samples.

    Attributes:
        step: where it goes on.
        outer: the derivatives there, for one sample.
        grads: those behind the operations on parameters that are done, by number.
    """

    step: int
    outer: Tensor
    grads: dict[int, Tensor]


class LayersDiffer(Exception):
    """The model does not compute what its layers say, such as one that works in place."""


class LayeredNetwork:
    """A network of known layers, at one point.

    Args:
        steps: the layers, in order.
        x: a sample.

    Attributes:
        tiled: the convolutions whose Jacobians are worked out by tiles, by the number of their use.
        bytes_by_output: memory to differentiate a sample by one output, about.
        bytes_by_sample: memory of a sample besides.
    """

    def __init__(self, steps: Sequence[Step], x: Tensor) -> None:
        self.steps = steps
        item = x.element_size()
        sizes = [item * v.numel() for v in self._values(x[:1])[0]]
        filters = [
            item * s.layer.weight.numel() for s in steps if isinstance(s.layer, TiledConvolution)
        ]
        # every layer has its own result; the tiles of the largest are larger nine times, and what
        # is on its way to a Jacobian five times
        self.bytes_by_output = 2 * sum(sizes) + 9 * max(sizes) + 5 * max(filters)
        self.bytes_by_sample = 6 * sum(sizes)
        self._largest = max(sizes)
        self.tiled = {
            step.use: step.layer
            for step in steps
            if step.use is not None and isinstance(step.layer, TiledConvolution)
        }
        self._side_by_side = SideBySide()
        self._workspaces: list[Workspace] = []

    def shares(self, outputs: int, memory: int) -> tuple[int, int]:
        """How many threads share the samples, and how many samples they work out at once."""
        each = self.bytes_by_sample + outputs * self.bytes_by_output
        threads = max(1, min(torch.get_num_threads(), memory // each))
        cached = _CACHED // (outputs * self._largest)
        return threads, max(1, min(cached, memory // (threads * each)))

    def forget(self) -> None:
        """Give memory back."""
        self._workspaces.clear()

    def _values(self, x: Tensor) -> tuple[list[Tensor], list[Kept]]:
        values: list[Tensor] = []
        kept: list[Kept] = []
        for step in self.steps:
            y, one = step.layer.values(*(x if i < 0 else values[i] for i in step.inputs))
            values.append(y)
            kept.append(one)
        return values, kept

    @torch.no_grad()
    def begun(self, basis: Tensor) -> Begun:
        """What comes back through the last layers, as far as it is the same for all samples.

        Args:
            basis: combinations of the outputs, `[C, outputs]`.
        """
        number, outer, nothing = len(self.steps) - 1, basis[None], Kept(())
        grads: dict[int, Tensor] = {}
        while number > 0 and (step := self.steps[number]).layer.same_for_all and step.moves:
            if step.inputs != (number - 1,) or not self.steps[number - 1].moves:
                break  # a branch goes round the step before it, or there is nothing to go to
            if step.use is not None:
                grads[step.use] = outer
            (outer,) = step.layer.pulled(nothing, outer, Workspace(basis))
            number -= 1
        return Begun(number, outer.contiguous(), grads)

    @torch.no_grad()
    def differentiate(
        self,
        x: Tensor,
        expected: Tensor,
        begun: Begun,
        into: dict[int, Tensor],
        space: Workspace,
    ) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """What goes into operations on parameters `[n, ...]`, and what comes back `[n, C, ...]`.

        Args:
            x: some samples.
            expected: the model's outputs for them.
            begun: what is known of the way back.
            into: where to put Jacobians `[n, C, P]`, for operations (by number) of which nothing
                else is asked for.
            space: to work in; the results are good until it is used again.

        Raises:
            LayersDiffer: if the model computes something else than its layers.
        """
        values, kept = self._values(x)
        if not agree(values[-1], expected):
            raise LayersDiffer
        inputs: dict[int, Tensor] = {}
        grads = {use: of_all(outer, len(x)) for use, outer in begun.grads.items()}
        outer = {begun.step: begun.outer}
        for number in range(begun.step, -1, -1):
            step, own = self.steps[number], kept[number]
            if number not in outer or not step.moves:
                continue
            here, layer, inner = outer.pop(number), step.layer, None
            below = [i for i in step.inputs if i >= 0 and self.steps[i].moves]
            if step.use in into:
                assert isinstance(layer, TiledConvolution)
                here = of_all(here, len(x))
                points = layer.tiles.of_outputs(here, space)
                layer.put_jacobian(own, here, points, into[step.use], space)
                inner = (layer.from_points(points, space),) if below else None
            elif step.use is not None:
                grads[step.use] = of_all(here, len(x))
            if not below:
                continue
            for i, part in zip(step.inputs, inner or layer.pulled(own, here, space), strict=True):
                if i in below:
                    outer[i] = outer[i] + part if i in outer else part
        for step, own in zip(self.steps, kept, strict=True):
            if step.use in grads:
                assert own.used is not None
                inputs[step.use] = own.used
        return inputs, {use: samples_first(outer) for use, outer in grads.items()}

    def share(
        self,
        pieces: Sequence[slice],
        threads: int,
        like: Tensor,
        work: Work,
    ) -> None:
        """Do some work for every piece, in so many threads with a workspace each."""
        while len(self._workspaces) < threads:
            self._workspaces.append(Workspace(like))

        def some(number: int, stop: threading.Event) -> None:
            for part in pieces[number::threads]:
                if stop.is_set():
                    break
                check_time()
                with torch.no_grad():
                    work(part, self._workspaces[number])

        if threads == 1:
            some(0, threading.Event())
        else:
            self._side_by_side([partial(some, number) for number in range(threads)])


def layered_network(
    function: object, point: Parameters, uses: Sequence[Use], x: Tensor
) -> LayeredNetwork | None:
    """The model as a network of layers, or None where it is none, or gains nothing from it.

    Args:
        function: the model.
        point: its parameters.
        uses: what is known of how the followed ones enter, in order.
        x: a sample, for which the layers are seen to compute what the model does.
    """
    if not isinstance(function, PureFunction) or torch.is_autocast_enabled("cpu"):
        return None
    model = function.model
    plain = (function.rows, function.noise, function.output, function.arranged)
    alike = {(p.dtype, p.device) for p in (*point.values(), x)}
    if plain != (None,) * 4 or alike != {(x.dtype, torch.device("cpu"))}:
        return None
    if x.dtype not in (torch.float32, torch.float64) or x.ndim != 4:
        return None
    if not any(_is_tileable(m) for m in model.modules()) or any(
        chain.is_watched(m) for m in model.modules()
    ):
        return None
    try:
        known = chain.as_steps(model)
    except UnsupportedModel:
        return None
    with torch.no_grad():
        steps = _steps(known, function, point, uses, x[:1])
        if steps is None or not any(
            isinstance(s.layer, TiledConvolution) and s.moves for s in steps
        ):
            return None
        return LayeredNetwork(steps, x)


def agree(found: Tensor, expected: Tensor) -> bool:
    """Whether two ways to compute something agree but for roundings.

    >>> agree(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0001]))
    True
    >>> agree(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.01]))
    False
    """
    if found.shape != expected.shape:
        return False
    allowed = torch.finfo(expected.dtype).eps ** 0.5 * expected.abs().max()
    return bool((found - expected).abs().max() <= allowed)


def _steps(
    known: Sequence[chain.Step],
    function: PureFunction,
    point: Parameters,
    uses: Sequence[Use],
    x: Tensor,
) -> list[Step] | None:
    """The layers with their parameters; None if one is not known, or enters in another way."""
    names = {id(p): name for name, p in function.model.named_parameters()}
    followed = {role.name for use in uses for _, role in use.roles()}
    steps: list[Step] = []
    values: list[Tensor] = []
    waiting = list(enumerate(uses))
    for one in known:
        module = one.link.module
        own = {k: names[id(p)] for k, p in module.named_parameters() if id(p) in names}
        if len(own) != len(list(module.parameters())):
            return None
        given = [x if i < 0 else values[i] for i in one.inputs]
        layer = _layer(module, {k: point[name] for k, name in own.items()}, given)
        if layer is None:
            return None
        use = None
        if wanted := followed & set(own.values()):
            if not waiting or {role.name for _, role in waiting[0][1].roles()} != wanted:
                return None
            use, _ = waiting.pop(0)
        moves = use is not None or any(steps[i].moves for i in one.inputs if i >= 0)
        y, _ = layer.values(*given)
        if y.ndim not in (2, 4) or len(y) != len(x):
            return None
        steps.append(Step(layer, one.inputs, use, moves))
        values.append(y)
    read = {len(steps) - 1}
    for number in reversed(range(len(steps))):
        read.update(steps[number].inputs if number in read else ())
    unread = any(s.use is not None for number, s in enumerate(steps) if number not in read)
    return None if waiting or unread or values[-1].ndim != 2 else steps


def _layer(module: nn.Module, own: Parameters, given: Sequence[Tensor]) -> Layer | None:
    """One layer with its parameters, for inputs like these."""
    x = given[0]
    if isinstance(module, chain.Sum):
        return Sum() if x.shape == given[1].shape else None
    if isinstance(module, chain.Concatenation):
        return Concatenation() if module.dim in (1, 1 - x.ndim) else None
    if not chain.has_own_forward(module):
        return None
    # a buffer in place of a parameter is not among its own
    held = {k for k in ("weight", "bias") if getattr(module, k, None) is not None}
    if held != own.keys():
        return None
    if isinstance(module, nn.Linear):
        return Dense(own["weight"], own.get("bias")) if x.ndim == 2 else None
    if isinstance(module, nn.Conv2d):
        return _convolution(module, own, x)
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        if module.running_mean is None or module.running_var is None:
            return None
        statistics = module.running_mean, module.running_var, module.eps
        return Scaling(*statistics, own.get("weight"), own.get("bias"))
    if own:
        return None
    if isinstance(module, chain.DROPPING):
        return Reshaping(nn.Identity(), x.shape[1:])
    if isinstance(module, chain.RESHAPING):
        return Reshaping(module, x.shape[1:])
    if isinstance(module, nn.MaxPool2d):
        return Largest(module)
    if isinstance(module, POINTWISE_LAYERS):
        return Pointwise(module)
    return Plain(module) if isinstance(module, _PLAIN) else None


def _convolution(module: nn.Conv2d, own: Parameters, x: Tensor) -> Layer | None:
    if module.padding_mode != "zeros" or isinstance(module.padding, str) or x.ndim != 4:
        return None
    parameters = own["weight"], own.get("bias")
    places = [n + 2 * p - TAPS + 1 for n, p in zip(x.shape[2:], module.padding, strict=True)]
    tiles = (places[0] // TILE) * (places[1] // TILE)
    if _is_tileable(module) and tiles >= _TILES:
        return TiledConvolution(module, *parameters, x.shape[2:])
    return Convolution(module, *parameters)


def _is_tileable(module: nn.Module) -> bool:
    """Whether tiles take fewer multiplications, and enough of them to pay."""
    return (
        isinstance(module, nn.Conv2d)
        and module.kernel_size == (TAPS, TAPS)
        and (module.stride, module.dilation, module.groups) == ((1, 1), (1, 1), 1)
        and min(module.in_channels, module.out_channels) >= _CHANNELS
    )
