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
from torch import Tensor

from torchtheory.convolution.winograd import TAPS, TILE
from torchtheory.core.budget import check_time
from torchtheory.core.threads import SideBySide
from torchtheory.core.workspace import Workspace
from torchtheory.kernels.tangent.parameter_uses.jacobians import Use
from torchtheory.models.model import Parameters, PureFunction
from torchtheory.optimization.stages.convolutions import Setting
from torchtheory.optimization.stages.network import Step, recorded, steps_of, values_of
from torchtheory.optimization.stages.stage import Kept, Stage, of_all, samples_first
from torchtheory.optimization.stages.weighted import (
    DirectConvolution,
    Own,
    TiledConvolution,
    Weighted,
)
from torchtheory.tracing.network import Network, Operation

#: Work on some of the samples.
Work = Callable[[slice, Workspace], None]

#: Channels before and behind a convolution, and tiles of its output, from which on tiles pay.
_CHANNELS, _TILES = 16, 16

#: Bytes of the derivatives of a piece in the largest value.
_CACHED = 3 * 2**20


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
    """A network of known stages, at one point.

    Args:
        steps: the stages, in order.
        uses: of a step that is an operation on followed parameters, the number of that operation.
        x: a sample.

    Attributes:
        tiled: the convolutions whose Jacobians are worked out by tiles, by the number of their use.
        bytes_by_output: memory to differentiate a sample by one output, about.
        bytes_by_sample: memory of a sample besides.
    """

    def __init__(self, steps: Sequence[Step], uses: dict[int, int], x: Tensor) -> None:
        self.steps, self.uses = steps, uses
        item = x.element_size()
        sizes = [item * v.numel() for v in values_of(steps, x[:1])[0]]
        filters = [
            item * s.stage.weight.numel() for s in steps if isinstance(s.stage, TiledConvolution)
        ]
        # every layer has its own result; the tiles of the largest are larger nine times, and what
        # is on its way to a Jacobian five times
        self.bytes_by_output = 2 * sum(sizes) + 9 * max(sizes) + 5 * max(filters)
        self.bytes_by_sample = 6 * sum(sizes)
        self._largest = max(sizes)
        self.tiled = {
            use: stage
            for number, use in uses.items()
            if isinstance(stage := steps[number].stage, TiledConvolution)
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

    @torch.no_grad()
    def begun(self, basis: Tensor) -> Begun:
        """What comes back through the last layers, as far as it is the same for all samples.

        Args:
            basis: combinations of the outputs, `[C, outputs]`.
        """
        number, outer, nothing = len(self.steps) - 1, basis[None], Kept()
        grads: dict[int, Tensor] = {}
        while number > 0 and (step := self.steps[number]).stage.same_for_all and step.moves:
            if step.inputs != (number - 1,) or not self.steps[number - 1].moves:
                break  # a branch goes round the step before it, or there is nothing to go to
            if number in self.uses:
                grads[self.uses[number]] = outer
            (outer,) = step.stage.pulled_many(nothing, outer, Workspace(basis))
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
        values, kept = values_of(self.steps, x)
        if not agree(values[-1], expected):
            raise LayersDiffer
        inputs: dict[int, Tensor] = {}
        grads = {use: of_all(outer, len(x)) for use, outer in begun.grads.items()}
        outer = {begun.step: begun.outer}
        for number in range(begun.step, -1, -1):
            step, own = self.steps[number], kept[number]
            if number not in outer or not step.moves:
                continue
            here, stage, inner = outer.pop(number), step.stage, None
            below, use = step.moving(self.steps), self.uses.get(number)
            if use in into:
                assert isinstance(stage, TiledConvolution)
                here = of_all(here, len(x))
                points = stage.tiles.of_outputs(here, space)
                stage.put_jacobian(own, here, points, into[use], space)
                inner = (stage.from_points(points, space),) if below else None
            elif use is not None:
                grads[use] = of_all(here, len(x))
            if not below:
                continue
            parts = inner or stage.pulled_many(own, here, space)
            for i, part in zip(step.inputs, parts, strict=True):
                if i in below:
                    outer[i] = outer[i] + part if i in outer else part
        for number, use in self.uses.items():
            if use in grads:
                used = kept[number].used
                assert used is not None
                inputs[use] = used
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
    function: object, point: Parameters, uses: Sequence[Use], alone: Network, x: Tensor
) -> LayeredNetwork | None:
    """The model as a network of stages, or None where it is none, or gains nothing from it.

    Args:
        function: the model.
        point: its parameters.
        uses: what is known of how the followed ones enter, in order.
        alone: the operations of the model on one sample.
        x: a sample, for which the stages are seen to compute what the model does.
    """
    if not isinstance(function, PureFunction) or torch.is_autocast_enabled("cpu"):
        return None
    alike = {(p.dtype, p.device) for p in (*point.values(), x)}
    if alike != {(x.dtype, torch.device("cpu"))}:
        return None
    if x.dtype not in (torch.float32, torch.float64) or x.ndim != 4:
        return None
    if not any(op.name == "conv2d" and _may_be_tiled(op) for op in alone):
        return None
    network = recorded(function, x)
    if network is None:
        return None
    followed = {role.name for use in uses for _, role in use.roles()}
    with torch.no_grad():
        steps = steps_of(network, point, list(followed), x[:1], _convolving, in_place=False)
        if steps is None:
            return None
        values, _ = values_of(steps, x[:1])
        if any(v.ndim not in (2, 4) for v in values) or values[-1].ndim != 2:
            return None
        numbers = _matched(steps, uses)
        tiled = any(isinstance(s.stage, TiledConvolution) and s.moves for s in steps)
        if numbers is None or not tiled:
            return None
        return LayeredNetwork(steps, numbers, x)


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


def _matched(steps: Sequence[Step], uses: Sequence[Use]) -> dict[int, int] | None:
    """The number of the use that a step is; None if steps and uses are not the same ones."""
    names = {
        number: set(step.stage.names.values())
        for number, step in enumerate(steps)
        if isinstance(step.stage, Weighted) and step.stage.names
    }
    expected = [{role.name for _, role in use.roles()} for use in uses]
    if list(names.values()) != expected:
        return None
    return {number: use for use, number in enumerate(names)}


def _convolving(own: Own, setting: Setting, x: Tensor) -> Stage:
    """By tiles, where they take fewer multiplications, and enough of them to pay."""
    places = [n + 2 * p - TAPS + 1 for n, p in zip(x.shape[2:], setting.padding, strict=True)]
    many = (places[0] // TILE) * (places[1] // TILE) >= _TILES
    plain = (setting.stride, setting.dilation, setting.groups) == ((1, 1), (1, 1), 1)
    if many and plain and _is_large(own.weight.shape):
        return TiledConvolution(own, setting, x.shape[2:])
    return DirectConvolution(own, setting)


def _may_be_tiled(op: Operation) -> bool:
    return _is_large(op.arguments["weight"].shape)


def _is_large(filters: Sequence[object]) -> bool:
    """Whether there are many filters of 3 x 3."""
    outputs, inputs, *size = (n for n in filters if isinstance(n, int))
    return size == [TAPS, TAPS] and min(outputs, inputs) >= _CHANNELS
