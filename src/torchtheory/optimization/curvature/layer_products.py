r"""Products with the curvature of a network, in pieces of the data that caches hold.

autograd keeps what a second derivative needs of every operation, reads it from memory, and writes
as much again: in small convolutional networks that takes longer than the multiplications. A network
whose operations are known as stages (`torchtheory.optimization.stages`) is worked out in the same
few buffers for one piece of the data after the other, and threads share the pieces.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from torchtheory.core.budget import check_time
from torchtheory.core.threads import SideBySide, one_thread
from torchtheory.models.model import Parameters, PureFunction
from torchtheory.optimization.stages.convolutions import Setting, channels_last
from torchtheory.optimization.stages.network import Step, recorded, steps_of, values_of
from torchtheory.optimization.stages.stage import CurvedStage, Kept, Move, Several, Stage, Workspace
from torchtheory.optimization.stages.weighted import (
    Affine,
    Convolution,
    DirectConvolution,
    Own,
    Weighted,
)

#: How a derivative in the outputs moves, of how the outputs move.
Curvature = Callable[[Tensor], Tensor]

#: Patches are at most so many times as large as the values they are taken from.
_MOST_PATCHES = 4

#: Bytes of the largest value of a piece; a few of them are worked with at once.
_CACHED = 3 * 2**19

#: Samples of a piece at least and at most; with fewer, layers are large, and autograd as good.
_FEWEST, _MOST = 16, 512

#: Difference to the model that roundings may make, relative to its largest output.
_SAME = 1e-3

#: Numbers of all directions that are followed at once, as long as there are several.
_TOGETHER = 2**20

#: Vectors of the parameters' size that a thread takes for a direction: in the layout of the stages,
#: its image in that layout, and in that of the parameters.
VECTORS = 3


@dataclass(frozen=True, slots=True)
class Piece:
    """What products need of some samples.

    Attributes:
        kept: by every stage.
        curvature: of the loss in the outputs.
    """

    kept: list[Kept]
    curvature: Curvature


class LayerProducts:
    """A network whose operations are known as stages, at one point.

    Args:
        steps: the stages.
        point: the parameters that move.
        x: a few inputs.
        memory: bytes that threads may take for directions and their images.

    Attributes:
        piece: samples that are worked out together.
        bytes: what is kept of a sample for all products, about.
    """

    def __init__(self, steps: Sequence[Step], point: Parameters, x: Tensor, memory: int) -> None:
        self.steps = steps
        self.point = point
        self.memory = memory
        self.size = sum(p.numel() for p in point.values())
        with torch.no_grad():
            values, kept = values_of(steps, x)
            sizes = {  # of some only the shape is kept; the inputs are a part of more
                t.data_ptr(): min(t.untyped_storage().nbytes(), t.numel() * t.element_size())
                for one in kept
                for t in one.tensors()
            }
            worked = [
                step.stage.rows(one.x[0], Workspace(x), "").numel()
                for step, one in zip(steps, kept, strict=True)
                if isinstance(step.stage, Affine)
            ]
        largest = x.element_size() * max([x.numel(), *worked, *(v.numel() for v in values)])
        self.piece = min(_MOST, _CACHED * len(x) // largest)
        self.bytes = 2 * sum(sizes.values()) // len(x)  # of every value the derivative as well
        # of every step those before it that move, and how many read a value
        self._below = [step.moving(steps) for step in steps]
        self._readers = Counter(i for below in self._below for i in below)
        self._own: dict[str, list[tuple[Weighted, str]]] = {name: [] for name in point}
        for step in steps:
            if isinstance(step.stage, Weighted):
                for place, name in step.stage.names.items():
                    self._own[name].append((step.stage, place))
        self._workspaces: list[Workspace] = []
        self._side_by_side = SideBySide()
        self._lock = threading.Lock()  # of the workspaces

    @torch.no_grad()
    def recorded(
        self, x: Tensor, head: Callable[[Tensor], tuple[Tensor | None, Curvature]]
    ) -> Piece:
        """What products need of some samples.

        Args:
            x: the inputs.
            head: gives, for the outputs, the derivative of the loss in them, and how it moves with
                them. None in place of the derivative leaves the network's own curvature out.
        """
        values, kept = values_of(self.steps, x)
        slope, curvature = head(values[-1])
        del values
        outer: dict[int, Tensor] = {}
        if slope is not None:
            outer[len(self.steps) - 1] = channels_last(slope)
        for number in reversed(range(len(self.steps))):
            here, one = outer.pop(number, None), kept[number]
            if here is None or not self._below[number]:  # nothing moves before it
                one.outer = None
                continue
            inner = self._stage(number).slopes(one, here)
            for i, part in zip(self.steps[number].inputs, inner, strict=True):
                if i in self._below[number] and part is not None:
                    outer[i] = outer[i] + part if i in outer else part
        return Piece(kept, curvature)

    def _stage(self, number: int) -> CurvedStage:
        stage = self.steps[number].stage
        assert isinstance(stage, CurvedStage)  # whoever made the steps has looked
        return stage

    def values(self, x: Tensor) -> Tensor:
        """The outputs."""
        return values_of(self.steps, x)[0][-1]

    def pieces_of(self, count: int) -> int:
        """How large to make the pieces of so many samples, so that threads have as much to do."""
        threads, pieces = self.threads(), math.ceil(count / self.piece)
        shared = threads * math.ceil(pieces / threads)
        return math.ceil(count / (shared if count >= _FEWEST * shared else pieces))

    def threads(self) -> int:
        """How many threads share a product: as many as torch has, if the memory is enough."""
        item = next(iter(self.point.values())).element_size()
        return max(1, min(torch.get_num_threads(), self.memory // (VECTORS * self.size * item)))

    def product(self, pieces: Sequence[Piece], V: Tensor) -> Tensor:
        """The products `[p, k]` with `[p, k]`, summed over the pieces, which threads share."""
        count = min(self.threads(), len(pieces))
        together = max(1, _TOGETHER // (count * self.size))
        # threads that add up what others made would still be looking for work in the next product
        with self._lock, one_thread() if count > 1 else nullcontext():
            while len(self._workspaces) < count:
                self._workspaces.append(Workspace(V))
            images = V.new_zeros(V.shape[1], self.size)
            for start in range(0, len(images), together):
                part = slice(start, start + together)
                self._add_product(pieces, V[:, part], count, images[part])
        return images.T

    def _add_product(self, pieces: Sequence[Piece], V: Tensor, count: int, total: Tensor) -> None:
        """Add the products with `[p, k]` to `[k, p]`, in so many threads."""
        if count == 1:
            total += self._share(pieces, V, self._workspaces[0], threading.Event())
            return
        shares = [
            partial(self._share, pieces[k::count], V, self._workspaces[k]) for k in range(count)
        ]
        for images in self._side_by_side(shares):
            total += images

    @torch.no_grad()
    def _share(
        self, pieces: Sequence[Piece], V: Tensor, workspace: Workspace, stop: threading.Event
    ) -> Tensor:
        moves = [self._move(v, workspace) for v in V.unbind(1)]
        for piece in pieces:
            if stop.is_set():
                break
            check_time()
            for move in moves:
                self._add(piece, move)
        images = V.new_empty(V.shape[1], len(V))
        for image, move in zip(images, moves, strict=True):
            torch.cat(self._parts(move.sums), out=image)
        return images

    def _move(self, v: Tensor, workspace: Workspace) -> Move:
        directions: dict[tuple[object, str], Tensor] = {}
        sums: dict[tuple[object, str], Tensor] = {}
        start = 0
        for name, p in self.point.items():
            part = v[start : start + p.numel()].reshape(p.shape)
            for stage, place in self._own[name]:
                directions[stage, place] = stage.direction(place, part)
                sums[stage, place] = stage.zeros(place, part)
            start += p.numel()
        return Move(directions, sums, workspace)

    def _parts(self, sums: dict[tuple[object, str], Tensor]) -> list[Tensor]:
        """The sums in the layout and order of the parameters, flat."""
        parts = []
        for name, p in self.point.items():
            own = [stage.total(place, sums[stage, place]) for stage, place in self._own[name]]
            total = sum(own[1:], own[0]) if own else torch.zeros_like(p)
            parts.append(total.reshape(-1))
        return parts

    def _add(self, piece: Piece, move: Move) -> None:
        moving: dict[int, Tensor] = {}
        trails: dict[int, Several] = {}
        for number, step in enumerate(self.steps):
            if not step.moves:
                continue
            ingoing = [self._to_write(i, moving[i]) if i in moving else None for i in step.inputs]
            moving[number], trails[number] = self._stage(number).pushed(
                piece.kept[number], tuple(ingoing), move
            )
        last = len(self.steps) - 1
        outer = {last: channels_last(piece.curvature(moving[last]))}
        for number in reversed(range(len(self.steps))):
            if number not in outer:  # nothing moves here, or nobody reads it
                continue
            inner = self._stage(number).pulled(
                piece.kept[number], trails[number], outer.pop(number), move
            )
            below, given = self._below[number], set[int]()
            for i, part in zip(self.steps[number].inputs, inner, strict=True):
                if i not in below or part is None:
                    continue
                own = part.clone() if id(part) in given else part  # a sum passes one on twice
                given.add(id(part))
                outer[i] = outer[i] + own if i in outer else own

    def _to_write(self, number: int, moving: Tensor) -> Tensor:
        """How a value moves, for one of those who read it and may write to it."""
        return moving.clone() if self._readers[number] > 1 else moving


def layer_products(
    function: PureFunction, point: Parameters, x: Tensor, memory: int
) -> LayerProducts | None:
    """The model in stages at a point, or None where it is none, or autograd is as good.

    Args:
        function: the model.
        point: the parameters that move; others of the model keep their values.
        x: a few inputs, for which the stages are seen to compute what the function does.
        memory: bytes that its threads may take for directions and their images.
    """
    alike = {(p.dtype, p.device) for p in (*function.parameters.values(), *point.values(), x)}
    if alike != {(x.dtype, torch.device("cpu"))}:
        return None
    network = recorded(function, x)
    if network is None:
        return None
    # the user may go on from the point, and weights would move without the inputs that are kept
    point = {name: p.detach().clone() for name, p in point.items()}
    with torch.no_grad():
        everything = {**function.parameters, **point}
        steps = steps_of(network, everything, list(point), x, _convolving, in_place=True)
        if steps is None or not steps[-1].moves:
            return None
        if not all(isinstance(step.stage, CurvedStage) for step in steps if step.moves):
            return None
        made = LayerProducts(steps, point, x, memory)
        y = made.values(x)
        if y.dtype != x.dtype or not _same(y, function(point, x)):  # autocast gives another
            return None
    return made if made.piece >= _FEWEST else None


def _same(y: Tensor, expected: Tensor) -> bool:
    if y.shape != expected.shape:
        return False
    return bool((y - expected).abs().max() <= _SAME * expected.abs().max())


def _convolving(own: Own, setting: Setting, x: Tensor) -> Stage:
    """A convolution as a product of its patches and its filters, where that is worth while.

    Those of an image are made once, and may be larger.
    """
    if setting.groups > 1 or setting.dilation != (1, 1):
        return DirectConvolution(own, setting)
    known = own.first and own.weight[0].numel() <= 2 * len(own.weight)
    few = own.weight[0, 0].numel() <= _MOST_PATCHES * math.prod(setting.stride)
    return (Convolution if known or few else DirectConvolution)(own, setting)
