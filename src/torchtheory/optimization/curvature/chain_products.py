r"""Products with the curvature of a chain of layers, in pieces of the data that caches hold.

autograd keeps what a second derivative needs of every layer, reads it from memory, and writes as
much again: in small convolutional networks that takes longer than the multiplications. A chain of
layers that `stages` knows is worked out in the same few buffers for one piece of the data after the
other, and threads share the pieces.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from torchtheory.core.budget import check_time
from torchtheory.core.errors import UnsupportedModel
from torchtheory.core.threads import SideBySide, one_thread
from torchtheory.models.model import Parameters, PureFunction
from torchtheory.nets.activations.table import POINTWISE_LAYERS
from torchtheory.optimization.curvature.convolution_derivatives import channels_last
from torchtheory.optimization.curvature.stages import (
    AVERAGING,
    Averaging,
    Kept,
    Largest,
    Move,
    Pointwise,
    Rectified,
    Reshaping,
    Stage,
    Workspace,
)
from torchtheory.optimization.curvature.weighted_stages import (
    Affine,
    Convolution,
    DenseOfImages,
    DirectConvolution,
    Own,
    Weighted,
)
from torchtheory.tracing.chain import (
    DROPPING,
    RESHAPING,
    Link,
    as_chain,
    has_own_forward,
    is_watched,
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


class Chain:
    """A network whose layers `stages` knows, at one point.

    Args:
        stages: the layers.
        point: the parameters, which all belong to them.
        x: a few inputs.
        memory: bytes that threads may take for directions and their images.

    Attributes:
        piece: samples that are worked out together.
        bytes: what is kept of a sample for all products, about.
    """

    def __init__(self, stages: Sequence[Stage], point: Parameters, x: Tensor, memory: int) -> None:
        self.stages = stages
        self.point = point
        self.memory = memory
        self.size = sum(p.numel() for p in point.values())
        with torch.no_grad():
            _, kept = self.values(x)
            tensors = [t for one in kept for t in (one.x, one.outer, one.rows) if t is not None]
            sizes = {t.data_ptr(): t.numel() * t.element_size() for t in tensors}
            worked = [
                stage.rows(one.x, Workspace(one.x), "").numel() if isinstance(stage, Affine) else 0
                for stage, one in zip(stages, kept, strict=True)
            ]
        largest = x.element_size() * max(*worked, *(one.x.numel() for one in kept))
        self.piece = min(_MOST, _CACHED * len(x) // largest)
        self.bytes = 2 * sum(sizes.values()) // len(x)  # of every value the derivative as well
        self._weighted = {stage.weight: stage for stage in stages if isinstance(stage, Weighted)}
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
        y, kept = self.values(x)
        outer, curvature = head(y)
        for stage, one in zip(reversed(self.stages), reversed(kept), strict=True):
            if isinstance(stage, Weighted) and stage.first:
                outer = None  # nothing moves before it
            if outer is None:
                one.outer = None
            else:
                outer = stage.slopes(one, channels_last(outer))
        return Piece(kept, curvature)

    def values(self, x: Tensor) -> tuple[Tensor, list[Kept]]:
        """The outputs, and what is kept on the way."""
        y, kept = channels_last(x), []
        for stage in self.stages:
            y, one = stage.values(y)
            kept.append(one)
        return y, kept

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
        directions, sums, start = {}, {}, 0
        for name, p in self.point.items():
            part = v[start : start + p.numel()].reshape(p.shape)
            stage = self._weighted.get(name)
            directions[name] = part if stage is None else stage.filters(part)
            sums[name] = torch.zeros_like(part) if stage is None else stage.nothing()
            start += p.numel()
        return Move(directions, sums, workspace)

    def _parts(self, sums: Parameters) -> list[Tensor]:
        """The sums in the layout and order of the parameters, flat."""
        parts = []
        for name, p in self.point.items():
            stage = self._weighted.get(name)
            part = sums[name] if stage is None else stage.weight_of(sums[name], p.shape)
            parts.append(part.reshape(-1))
        return parts

    def _add(self, piece: Piece, move: Move) -> None:
        moving, trails = None, []
        for stage, kept in zip(self.stages, piece.kept, strict=True):
            moving, trail = stage.pushed(kept, moving, move)
            trails.append(trail)
        assert moving is not None  # there is a layer with parameters
        outer: Tensor | None = channels_last(piece.curvature(moving))
        for stage, kept, trail in zip(
            reversed(self.stages), reversed(piece.kept), reversed(trails), strict=True
        ):
            if outer is not None:  # something moves here
                outer = stage.pulled(kept, trail, outer, move)


def chain_of(function: PureFunction, point: Parameters, x: Tensor, memory: int) -> Chain | None:
    """The model as a chain at a point, or None where it is none, or autograd is as good.

    Args:
        function: the model.
        point: the parameters that move: all of the model's, or there is no chain.
        x: a few inputs, for which the chain is seen to compute what the function does.
        memory: bytes that its threads may take for directions and their images.
    """
    plain = (function.rows, function.noise, function.output, function.arranged)
    alike = {(p.dtype, p.device) for p in (*point.values(), x)}
    if plain != (None,) * 4 or alike != {(x.dtype, torch.device("cpu"))}:
        return None
    if point.keys() != function.parameters.keys():
        return None
    if any(is_watched(module) for module in function.model.modules()):
        return None
    try:
        links = as_chain(function.model)
    except UnsupportedModel:
        return None
    # the user may go on from the point, and weights would move without the inputs that are kept
    point = {name: p.detach().clone() for name, p in point.items()}
    with torch.no_grad():
        stages = _stages(links, function.model, point, x)
        if stages is None:
            return None
        chain = Chain(stages, point, x, memory)
        y, _ = chain.values(x)
        if y.dtype != x.dtype or not _same(y, function(point, x)):  # autocast gives another
            return None
    return chain if chain.piece >= _FEWEST else None


def _same(y: Tensor, expected: Tensor) -> bool:
    if y.shape != expected.shape:
        return False
    return bool((y - expected).abs().max() <= _SAME * expected.abs().max())


def _stages(
    links: Sequence[Link], model: nn.Module, point: Parameters, x: Tensor
) -> list[Stage] | None:
    """The links as stages for inputs like these.

    None if one is not known, or a parameter belongs to none of them.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    stages: list[Stage] = []
    used: set[str] = set()
    y = channels_last(x)
    behind = [link.module for link in links[1:]] + [None]
    for link, following in zip(links, behind, strict=True):
        layer = link.module
        if isinstance(layer, DROPPING) and has_own_forward(layer):
            continue
        if _lays_out(layer, y) and isinstance(following, nn.Linear) and has_own_forward(following):
            continue  # it takes images
        own = {k: (names[id(p)], point[names[id(p)]]) for k, p in layer.named_parameters()}
        stage = _stage(layer, own, y, first=not used)
        if stage is None or used & {name for name, _ in own.values()}:
            return None
        used |= {name for name, _ in own.values()}
        y, _ = stage.values(y)
        stages.append(stage)
    return stages if used == point.keys() else None


def _stage(
    layer: nn.Module, own: dict[str, tuple[str, Tensor]], x: Tensor, *, first: bool
) -> Stage | None:
    """One layer with its parameters, for inputs like these."""
    if not has_own_forward(layer):
        return None
    if isinstance(layer, nn.Linear | nn.Conv2d):
        # what it computes with; a buffer may be among it
        if own.keys() != ({"weight"} if layer.bias is None else {"weight", "bias"}):
            return None
        return _weighted(layer, Own(own["weight"], own.get("bias"), first), x)
    if isinstance(layer, nn.MaxPool2d) and x.ndim == 4:
        return Largest(layer)
    if isinstance(layer, AVERAGING):
        return Averaging(layer)
    if isinstance(layer, nn.ReLU):
        return Rectified()
    if isinstance(layer, POINTWISE_LAYERS):
        return Pointwise(layer)
    return Reshaping(layer) if isinstance(layer, RESHAPING) else None


def _weighted(layer: nn.Linear | nn.Conv2d, own: Own, x: Tensor) -> Stage | None:
    if isinstance(layer, nn.Linear):
        laid_out = x.ndim == 4 and x.shape[-1] != layer.in_features
        return DenseOfImages(own, x.shape[1:]) if laid_out else Affine(own)
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return None
    kind = Convolution if _takes_patches(layer, own.first) else DirectConvolution
    return kind(own, layer)


def _lays_out(layer: nn.Module, x: Tensor) -> bool:
    """Whether it makes images rows, one a sample."""
    return (
        x.ndim == 4
        and isinstance(layer, RESHAPING)
        and has_own_forward(layer)
        and layer(x.contiguous()).shape == (len(x), x[0].numel())
    )


def _takes_patches(layer: nn.Conv2d, first: bool) -> bool:
    """Whether a convolution is worth being a product of its patches and its filters.

    Those of an image are made once, and may be larger.
    """
    if layer.groups > 1 or layer.dilation != (1, 1):
        return False
    known = first and layer.weight[0].numel() <= 2 * len(layer.weight)
    return known or math.prod(layer.kernel_size) <= _MOST_PATCHES * math.prod(layer.stride)
