r"""The empirical neural tangent kernel of any model.

$$
\Theta_{cc'}(x, x') = \sum_p \frac{\partial f_c(x)}{\partial\theta_p}
\frac{\partial f_{c'}(x')}{\partial\theta_p}
$$

The Jacobian of a model with millions of parameters is never formed where its layers allow
something better; see `torchtheory.kernels.tangent.features`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from torchtheory.core import progress
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.memory import bytes_of
from torchtheory.kernels.tangent.derivatives import Derivatives, Functional, PathsDiffer
from torchtheory.kernels.tangent.features import Features, Outputs, factors_are_cheaper
from torchtheory.kernels.tangent.layered_network import LayersDiffer
from torchtheory.kernels.tangent.tiles import TiledFile, blocks, fingerprint, pairs
from torchtheory.models.model import Parameters, global_randomness_kept

#: rows of a block whose features are computed at once, and of a tile of the kernel
BLOCK, TILE = 1024, 256

#: Bytes to differentiate in at most: with more, layers wait for memory that caches do not hold
#: (convolutional networks take a fifth to a third longer, others as long).
CACHED = 2**27


def empirical_ntk(
    model: nn.Module | Functional,
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    outputs: Outputs = "full",
    parameters: Parameters | None = None,
    only: Sequence[str] | None = None,
    memory: str | int = "2GiB",
    file: str | Path | None = None,
) -> Tensor:
    r"""The tangent kernel $\Theta(x, x') = J(x) J(x')^\top$ of a model at its parameters.

    Exact, for any model that maps samples one by one. The operations of the model decide how it is
    computed: where a weight multiplies something (linear layers, convolutions, embeddings,
    attention projections, recurrent cells, also in the user's own code) the kernel is a product of
    Gram matrices of what goes in and what comes back, or of the weight's Jacobians, whichever
    needs fewer multiplications; parameters used in any other way are differentiated as a whole.
    What was found is checked against autograd on the first sample. Networks of layers with
    convolutions of 3 x 3 are worked out layer by layer (`layered_network`), where float32 is right
    to about 1e-6. Costs, for linear layers from d
    to o and C outputs, $O(N_1 N_2 (d + Co))$ a layer for `"trace"` and `"diagonal"`,
    $O(N_1 N_2 (d + C^2 o))$ for `"full"`; half of it when `x2` is not given.

    Args:
        model: a module, run as in evaluation mode and not changed; or a function
            `f(parameters, x)` of a dictionary of tensors and a batch.
        x1: inputs `[N1, ...]`.
        x2: inputs `[N2, ...]`; `x1` unless given.
        outputs: `"full"` for all pairs of outputs `[N1, N2, C, C]`, `"diagonal"` for each
            output with itself `[N1, N2, C]`, `"trace"` for the sum of these `[N1, N2]`.
            Outputs of any shape are counted one after the other.
        parameters: the point $\theta$; the model's own parameters unless given.
        only: names of parameters, or of modules that hold some, to differentiate by; the trainable
            ones unless given (see `PureFunction.trainable`).
        memory: about how much to use besides the model, the inputs and the result.
        file: a `.npy` file to put the result in, mapped to memory rather than held there; it takes
            its place on the disk at once. If the computation is interrupted, the same call goes on
            at the first unfinished tile. A file of another computation, one that was changed since,
            or one that another process is at work on is refused.

    A layer that makes one sample's output depend on another's (batch normalization in training
    mode) or on chance (dropout in training mode) is refused.

    Source: Foundations of Deep Learning, section 7.3; Mathematical Aspects of Deep Learning,
    (1.23).

    >>> net = nn.Linear(2, 1)                # its Jacobian is (x, 1)
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    >>> empirical_ntk(net, x, outputs="trace")
    tensor([[ 6.,  4.],
            [ 4., 10.]])
    >>> empirical_ntk(net, x, outputs="trace", only=["bias"])
    tensor([[1., 1.],
            [1., 1.]])
    """
    if outputs not in ("full", "trace", "diagonal"):
        raise InvalidInput(f"outputs must be 'full', 'trace' or 'diagonal', not {outputs!r}")
    if x2 is not None and (x2.dtype != x1.dtype or x2.device != x1.device):
        raise ShapeMismatch(f"x1 is {x1.dtype} on {x1.device}, x2 {x2.dtype} on {x2.device}")
    ways = ["layers", "parts", "whole"]
    while ways:
        way = ways.pop(0)
        in_parts = way != "whole"
        with torch.no_grad(), global_randomness_kept():
            known = partial(Derivatives, model, parameters=parameters, only=only, in_parts=in_parts)
            rows = columns = known(x1)
            if x2 is not None and x2.shape[1:] != x1.shape[1:]:
                columns = known(x2)
                if columns.classes != rows.classes:
                    raise ShapeMismatch(
                        f"a sample of x1 has {rows.classes} outputs, one of x2 {columns.classes}"
                    )
                if in_parts and not _alike(rows, columns):
                    ways = ["whole"]
                    continue
            if way == "layers":
                _find_layers(rows, x1, columns, x1 if x2 is None else x2)
            samples = (len(x1), len(x1 if x2 is None else x2))
            plan = _Plan(rows, columns, samples, outputs, bytes_of(memory), symmetric=x2 is None)
            try:
                return _kernel(plan, x1, x2, file)
            except LayersDiffer:  # which some samples show, and others do not
                continue
            except PathsDiffer:  # which parameters a sample meets depends on its values
                if not in_parts:
                    raise
                ways = ["whole"]
    raise AssertionError("unreachable: Jacobians as a whole have no parts to differ")


def _find_layers(rows: Derivatives, x1: Tensor, columns: Derivatives, x2: Tensor) -> None:
    """Let both sides work layer by layer, or none: parameters are in another order there."""
    rows.find_layers(x1[:1])
    if columns is not rows:
        columns.find_layers(x2[:1])
        tiled = [None if d.layered is None else set(d.layered.tiled) for d in (rows, columns)]
        if tiled[0] != tiled[1]:
            rows.layered = columns.layered = None


def _alike(rows: Derivatives, columns: Derivatives) -> bool:
    """Whether the parameters enter the same way for inputs of two shapes."""
    names = [[g.names for g in side.groups] for side in (rows, columns)]
    return names[0] == names[1] and rows.whole == columns.whole


def _kernel(plan: _Plan, x1: Tensor, x2: Tensor | None, file: str | Path | None) -> Tensor:
    other, symmetric = (x1, True) if x2 is None else (x2, False)
    rows = plan.rows
    n, m, c = len(x1), len(other), rows.classes
    shape = {"full": (n, m, c, c), "diagonal": (n, m, c), "trace": (n, m)}[plan.outputs]
    tiles = list(pairs(len(plan.blocks[0]), len(plan.blocks[1]), symmetric))
    if file is None:
        result = torch.empty(shape, dtype=rows.dtype, device=x1.device)
        for _ in _fill(result, plan, x1, other, symmetric, tiles):
            pass
        return result
    computation = fingerprint(plan.outputs, plan.blocks, symmetric, x1, other, *rows.identity())
    with TiledFile.opened(file, shape, rows.dtype, computation) as target:
        names = {f"{i} {j}": (i, j) for i, j in tiles}
        target.refuse_unknown(names)
        for name in target.done:
            target.refuse_changed(name, _parts(target.array, plan, names[name], symmetric))
        todo = [tile for name, tile in names.items() if name not in target.done]
        for i, j in _fill(target.array, plan, x1, other, symmetric, todo):
            target.finished(f"{i} {j}", _parts(target.array, plan, (i, j), symmetric))
        return target.array


class _Plan:
    """How the work is cut: which groups stay in factors, and sizes of blocks, tiles and ranges.

    Features of all samples are kept at once if that can be had: by forming Jacobians late, and for
    kernels of each output with itself by taking the outputs in turn, which costs a forward pass
    more for each part. Only where that is not enough the samples are taken in blocks, whose
    features are computed again for each block they meet.
    """

    def __init__(
        self,
        rows: Derivatives,
        columns: Derivatives,
        samples: tuple[int, int],
        outputs: Outputs,
        budget: int,
        *,
        symmetric: bool = False,
    ) -> None:
        self.rows, self.columns, self.outputs = rows, columns, outputs
        n, m = samples
        held = n if symmetric else n + m
        classes, item = rows.classes, torch.finfo(rows.dtype).bits // 8
        self.in_factors = [
            group.outer and factors_are_cheaper(one, two, n, m, classes, outputs)
            for group, one, two in zip(rows.groups, rows.sizes, columns.sizes, strict=True)
        ]
        # a quarter to differentiate in, half to keep features in, the rest for tiles
        self.working, self.keep = budget // 4, budget // 2
        self.late = [False] * len(self.in_factors)
        each, besides = self._numbers()
        if held * item * (besides + classes * each) > self.keep:
            self.late = [
                group.outer
                and not factors
                and max(n, m) <= max(TILE, TILE**2 // size.positions)  # or formed too often
                and 2 * size.positions * (size.left + classes * size.right)
                <= classes * size.jacobian
                for group, size, factors in zip(
                    rows.groups, rows.sizes, self.in_factors, strict=True
                )
            ]
            each, besides = self._numbers()
        by_output = max(rows.bytes_by_output, columns.bytes_by_output) + item * each
        by_sample = max(rows.bytes_by_sample, columns.bytes_by_sample)
        at_once = (self.working - by_sample) // max(1, by_output)
        kept_at_once = (self.keep // (item * held) - besides) // max(1, each)
        if outputs != "full" and kept_at_once >= 1:
            at_once = min(at_once, kept_at_once)
        self.classes = blocks(classes, max(1, min(classes, at_once)))
        most = max(s.stop - s.start for s in self.classes)
        self.chunk = max(1, min(self.working, CACHED) // max(1, by_sample + most * by_output))
        feature = item * (besides + most * each)
        fits = held * feature <= self.keep
        self.block = BLOCK if fits else max(1, min(BLOCK, self.keep // max(1, 2 * feature)))
        positions = max(
            (
                a.positions * b.positions
                for a, b, f in zip(rows.sizes, columns.sizes, self.in_factors, strict=True)
                if f
            ),
            default=1,
        )
        entries = positions * {"full": most**2, "diagonal": most, "trace": 1}[outputs]
        fit = int((budget // 8 / (3 * item * entries)) ** 0.5)
        self.tile = max(1, min(TILE, fit))
        # what is on the diagonal has no mirror image, but tiles should not be too thin
        thinnest = -(-128 // (most if outputs == "full" else 1))
        self.on_diagonal = min(self.tile, max(-(-n // 8), thinnest))
        self.blocks = (blocks(n, self.block), blocks(m, self.block))

    def _numbers(self) -> tuple[int, int]:
        """What the features of a sample hold at most, for each output and besides."""
        kept = [a or b for a, b in zip(self.in_factors, self.late, strict=True)]
        ours, others = (side.numbers_by_output(kept) for side in (self.rows, self.columns))
        return max(ours[0], others[0]), max(ours[1], others[1])


def _fill(
    result: Tensor,
    plan: _Plan,
    x1: Tensor,
    x2: Tensor,
    symmetric: bool,
    tiles: list[tuple[int, int]],
) -> Iterator[tuple[int, int]]:
    """Compute blocks of the kernel; yields each when it is complete."""
    cache = _FeatureCache(plan, x1, x2, symmetric)
    for i, j in progress.track(tiles, "tangent kernel"):
        block, *mirrors = _parts(result, plan, (i, j), symmetric)
        mirror = mirrors[0] if mirrors else None
        for first, (c1, c2) in enumerate(_class_pairs(plan)):
            left, right = cache.features("rows", i, c1), cache.features("columns", j, c2)
            _fill_block(block, mirror, left, right, plan, c1, c2, symmetric and i == j, first == 0)
            del left, right  # or they would be held beside the next
        yield i, j


def _parts(
    result: Tensor, plan: _Plan, tile: tuple[int, int], symmetric: bool
) -> tuple[Tensor, ...]:
    """A block of the kernel, and its mirror image where the kernel is symmetric."""
    i, j = tile
    rows, columns = plan.blocks[0][i], plan.blocks[1][j]
    block = result[rows, columns]
    return (block, result[columns, rows]) if symmetric and i != j else (block,)


def _class_pairs(plan: _Plan) -> list[tuple[slice, slice]]:
    if plan.outputs == "full":
        return [(a, b) for a in plan.classes for b in plan.classes]
    return [(c, c) for c in plan.classes]


def _fill_block(
    block: Tensor,
    mirror: Tensor | None,
    left: list[Features],
    right: list[Features],
    plan: _Plan,
    c1: slice,
    c2: slice,
    diagonal_block: bool,
    first: bool,
) -> None:
    n, m = block.shape[:2]
    k1, k2 = c1.stop - c1.start, c2.stop - c2.start
    whole = len(plan.classes) == 1 or plan.outputs != "full"  # each tile is symmetric by itself
    for r, s in _tiles(n, m, plan, mirrored=diagonal_block and whole):
        a, b = r.stop - r.start, s.stop - s.start
        shape = {"full": (a * k1, b * k2), "diagonal": (k1, a, b), "trace": (a, b)}
        total = block.new_zeros(shape[plan.outputs])
        for one, two in zip(left, right, strict=True):
            one.add_to(total, r, two, s)
        if plan.outputs == "full":
            tile = total.view(a, k1, b, k2).permute(0, 2, 1, 3)
            block[r, s, c1, c2] = tile
            turned = tile.permute(1, 0, 3, 2)
            if mirror is not None:
                mirror[s, r, c2, c1] = turned
            elif diagonal_block and whole and s.start > r.start:
                block[s, r, c2, c1] = turned
            continue
        tile = total.permute(1, 2, 0) if plan.outputs == "diagonal" else total
        places = [(block, r, s, tile)]
        if mirror is not None:
            places.append((mirror, s, r, tile.transpose(0, 1)))
        elif diagonal_block and whole and s.start > r.start:
            places.append((block, s, r, tile.transpose(0, 1)))
        for target, p, q, values in places:
            if plan.outputs == "diagonal":
                target[p, q, c1] = values
            elif first:
                target[p, q] = values
            else:
                target[p, q] += values


def _tiles(n: int, m: int, plan: _Plan, *, mirrored: bool) -> Iterator[tuple[slice, slice]]:
    """Tiles that cover a block, or what is not below its diagonal where the rest is mirrored.

    There the block is halved again and again, so that most of it is in large tiles.
    """

    def rectangle(rows: slice, columns: slice) -> Iterator[tuple[slice, slice]]:
        for r in blocks(rows.stop - rows.start, plan.tile):
            for s in blocks(columns.stop - columns.start, plan.tile):
                yield (
                    slice(rows.start + r.start, rows.start + r.stop),
                    slice(columns.start + s.start, columns.start + s.stop),
                )

    def triangle(rows: slice) -> Iterator[tuple[slice, slice]]:
        if rows.stop - rows.start <= plan.on_diagonal:
            yield rows, rows
            return
        middle = (rows.start + rows.stop) // 2
        upper, lower = slice(rows.start, middle), slice(middle, rows.stop)
        yield from rectangle(upper, lower)
        yield from triangle(upper)
        yield from triangle(lower)

    return triangle(slice(0, n)) if mirrored else rectangle(slice(0, n), slice(0, m))


class _FeatureCache:
    """Features of blocks, as many of the last used as fit in the memory set aside for them."""

    def __init__(self, plan: _Plan, x1: Tensor, x2: Tensor, symmetric: bool) -> None:
        self.plan, self.x, self.symmetric = plan, {"rows": x1, "columns": x2}, symmetric
        self._kept: OrderedDict[tuple[str, int, int], list[Features]] = OrderedDict()
        self._largest = 0

    def features(self, side: str, index: int, classes: slice) -> list[Features]:
        if self.symmetric:
            side = "rows"
        key = (side, index, classes.start)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        plan = self.plan
        where = plan.blocks[0 if side == "rows" else 1][index]
        model = plan.rows if side == "rows" else plan.columns
        x = self.x[side][where]
        # what is kept makes room before, not after, something takes it
        size = self._largest
        while self._kept and size + sum(self._bytes(f) for f in self._kept.values()) > plan.keep:
            self._kept.popitem(last=False)
        how = model.basis(classes), plan.in_factors, plan.late, plan.outputs
        if model.layered is not None:
            made = model.layered_features(x, *how, plan.working)
        else:
            made = []
            for part in blocks(len(x), plan.chunk):
                piece = model.features(x[part], *how)
                if part.stop - part.start == len(x):
                    made = piece
                    break
                made = made or [f.room_for(len(x)) for f in piece]
                for whole, few in zip(made, piece, strict=True):
                    whole.put(part.start, few)
        self._largest = max(self._largest, self._bytes(made))
        self._kept[key] = made
        return made

    @staticmethod
    def _bytes(features: list[Features]) -> int:
        return sum(f.bytes for f in features)
