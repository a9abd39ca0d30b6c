r"""The path kernel: inner products of path features, without a list of paths.

Where every nonlinearity multiplies its input by a slope (ReLU: 0 or 1) and max pooling selects one
of its inputs, an output is a sum over the paths $j$ from the inputs to it,

$$
f_k(x) = \sum_j \bar w_{k,j}\,z_j(x) = z(x)^\top\bar w_k, \qquad
z_j(x) = \bar x_j\,\bar\sigma_j(x),
$$

where $\bar w_{k,j}$ is the product of the weights on the path, $\bar\sigma_j(x)$ the
product of the slopes on it, and $\bar x_j$ the input it starts from. A bias is a connection
from a unit of value 1, so that paths start there as well. There are exponentially many paths, but
$K(x,x')=z(x)^\top z(x')$ needs none of them: the sum over the paths into a unit follows from
the sums of its sources,

$$
n_u(x,x') = s_u(x)\,s_u(x')\sum_{v\to u} n_v(x,x'), \qquad n_j(x,x') = x_jx'_j ,
$$

and for dense layers without biases $K(x,x') = x^\top x'\prod_\ell (s^\ell(x)^\top s^\ell(x'))$:
the number of units active for both, multiplied over the layers. Source: Mathematical
Aspects of Deep Learning, section 2.5.1, Eq. (2.1).

Explicit features, for small networks, are in `torchtheory.kernels.paths.deep_paths`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch
from torchtheory.kernels.paths.rules import (
    Carried,
    Choice,
    Get,
    PathNetwork,
    Slope,
    carried_in,
    checked_inputs,
    path_network,
    through,
)
from torchtheory.tracing.interpret import Call
from torchtheory.tracing.network import mapped

#: Numbers held at once for the pairs of one tile, about 128 MiB.
_ENTRIES = 2**24


def deep_path_kernel(
    model: nn.Module, x1: Tensor, x2: Tensor | None = None, *, output: int = 0
) -> Tensor:
    r"""$K_{ij}=z(x_i)^\top z(x'_j)$, exactly, for inputs `x1[n, ...]` and `x2[m, ...]`.

    Works for any module or `.pt2` archive of linear operations (dense, convolutions, average
    pooling, batch normalization in evaluation mode, sums over neighbors), slopes (ReLU, leaky and
    parametric ReLU, absolute values) and choices (max pooling, maxima, clamps, `torch.where` by a
    comparison), with branches of all kinds. Biases are paths of their own. Every parameter is a
    connection, also where it is 0. `x2` is `x1` unless given.

    The kernel depends on the weights through the slopes alone, hence not at all on a last dense
    layer, whose outputs have the same paths but for their end; of other networks it is the kernel
    of the paths into one `output`, numbered in the flattened outputs. It is `float64` whatever the
    model's precision: its entries are of the size of the number of paths.

    Costs $O(nm\sum_\ell N_\ell)$ for dense layers (one product of slope matrices each), and
    for convolutions as much as a one-channel convolution for each pair; memory is that of the
    result and a tile of at most 2²⁴ numbers.

    Raises:
        UnsupportedModel: if an operation is none of these; with its name and its place.

    >>> net = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 1, bias=False))
    >>> _ = net[0].weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]))
    >>> x = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    >>> deep_path_kernel(net, x)       # 2 units fire for the first, 1 for the second and for both
    tensor([[10.,  1.],
            [ 1., 10.]], dtype=torch.float64)
    """
    symmetric = x2 is None
    x1 = checked_inputs(model, x1, "x1")
    x2 = x1 if x2 is None else checked_inputs(model, x2, "x2")
    if x1.shape[1:] != x2.shape[1:]:
        raise ShapeMismatch(f"x1 has shape {list(x1.shape[1:])} a sample, x2 {list(x2.shape[1:])}")
    with torch.no_grad():
        network = PathNetwork(model, x1)
        x1, x2 = network.samples(x1), network.samples(x2)
        side = max(1, math.isqrt(_ENTRIES // network.largest))
        kernel = x1.new_empty(len(x1), len(x2), dtype=torch.float64)
        for i in range(0, len(x1), side):
            rows = x1[i : i + side]
            for j in range(i if symmetric else 0, len(x2), side):
                columns = rows if symmetric and i == j else x2[j : j + side]
                tile = network.carry(_Pairs.of_inputs(rows, columns)).into(output)
                kernel[i : i + side, j : j + side] = tile
                if symmetric and i != j:
                    kernel[j : j + side, i : i + side] = tile.mT
    if not bool(torch.isfinite(kernel).all()):
        raise NonFinite(
            f"the path kernel is beyond the largest number: there are "
            f"{_count(network, x1.shape[1:]):.3g} paths"
        )
    return kernel


def path_norms(model: nn.Module, input_shape: Sequence[int], *, order: float = 2) -> Tensor:
    r"""Norms $\|\bar w_k\|_p$ of the path weights into every output, `[outputs]`.

    One forward pass: weights to the power $p$ on the input of ones, no nonlinearity, the candidates
    of a choice (a window of a max pool) summed.

    Args:
        model: a network that `deep_path_kernel` takes.
        input_shape: shape of one input, without the batch dimension.
        order: $p\ge1$; 2 for the Euclidean norm, 1 for the sum of absolute values.

    >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    >>> _ = net[0].weight.data.copy_(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
    >>> _ = net[2].weight.data.copy_(torch.tensor([[3.0, 2.0]]))
    >>> path_norms(net, (2,)).square()     # 3² (1² + 2²) + 2² (0² + 1²)
    tensor([49.], dtype=torch.float64)
    """
    if not (order >= 1 and math.isfinite(order)):
        raise InvalidInput(f"the order of a norm is a finite number >= 1, not {order!r}")
    return _powers(path_network(model, input_shape), input_shape, order) ** (1 / order)


def number_of_paths(model: nn.Module, input_shape: Sequence[int], *, output: int = 0) -> float:
    """How many paths lead from the inputs and biases to one output.

    >>> number_of_paths(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), (3,))
    17.0
    """
    return float(_powers(path_network(model, input_shape), input_shape, 0)[output])


def _powers(network: PathNetwork, input_shape: Sequence[int], power: float) -> Tensor:
    ones = torch.ones(1, *input_shape, dtype=torch.float64, device=network.device)
    with torch.no_grad():
        found: _Powers = network.carry(_Powers(network.samples(ones)[0], power))
    return found.sums.reshape(-1)


def _count(network: PathNetwork, shape: Sequence[int]) -> float:
    return float(_powers(network, shape if network.network.rows else shape[1:], 0)[0])


# -------------------------------------------------------------------------------- powers of weights


class _Powers(Carried):
    """Powers of path weights (paths, for the power 0), summed over the paths into every unit."""

    def __init__(self, sums: Tensor, power: float) -> None:
        self.sums, self.power = sums, power

    def _made(self, result: Any) -> Any:
        def one(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            made = _Powers(leaf, self.power)
            made.network = self.network
            return made

        return mapped(result, one)

    def linear(self, call: Call) -> Any:
        return self._made(through(call, lambda c: c.sums, self.power))

    def sloped(self, call: Call, slope: Slope) -> Any:
        return self

    def choice(self, call: Call, choice: Choice) -> Any:
        return self._made(choice.candidates(lambda c: c.sums, self.power).sum(-1))


# --------------------------------------------------------------------------------- lanes of samples


def over_lanes(
    call: Call, part: Callable[[Any], Tensor], build: Callable[[Get], Any], depth: int = 1
) -> Any:
    """Something made of what is carried, for every sample (or every pair of two)."""
    carried = carried_in(call)

    def lane(*given: Tensor) -> Any:
        held = {id(c): t for c, t in zip(carried, given, strict=True)}
        return build(lambda c: held[id(c)])

    for _ in range(depth):
        lane = torch.vmap(lane)
    return lane(*(part(c) for c in carried))


class Squares(Carried):
    r"""$\sum_jz_j(x)^2$ over the paths into every unit, `[n, ...]`, with the values there."""

    def __init__(self, values: Tensor, sums: Tensor) -> None:
        self.values, self.sums = values, sums

    def _made(self, values: Any, sums: Any) -> Any:
        if not isinstance(values, Tensor):
            return type(values)([self._made(v, s) for v, s in zip(values, sums, strict=True)])
        made = Squares(values, sums)
        made.network = self.network
        return made

    def linear(self, call: Call) -> Any:
        values = over_lanes(call, lambda c: c.values, lambda get: through(call, get, None))
        sums = over_lanes(call, lambda c: c.sums, lambda get: through(call, get, 0))
        return self._made(values, sums)

    def sloped(self, call: Call, slope: Slope) -> Any:
        factor = over_lanes(call, lambda c: c.values, slope)
        return self._made(self.values * factor.to(self.values), self.sums * factor.square())

    def choice(self, call: Call, choice: Choice) -> Any:
        chosen = over_lanes(call, lambda c: c.values, choice.chosen)
        return self._made(*(taken(call, choice, part, chosen, p) for part, p in (
            (lambda c: c.values, None), (lambda c: c.sums, 0.0))))  # fmt: skip


def taken(
    call: Call,
    choice: Choice,
    part: Callable[[Any], Tensor],
    chosen: Tensor,
    power: float | None,
    depth: int = 1,
) -> Tensor:
    """Of candidates those that are chosen."""
    all_ = over_lanes(call, part, lambda get: choice.candidates(get, power), depth)
    return torch.gather(all_, -1, chosen.unsqueeze(-1)).squeeze(-1)


# ------------------------------------------------------------------------------------- the pairs


class _Pairs(Carried):
    """Paths into the units of a value, for every pair of a tile.

    The sum over the paths into unit `u` is `paths[i, j, u] * first[i, u] * second[j, u]`.
    `paths` has size 1 along the dimensions it does not depend on. `rows` and `columns` are the
    values at the units.
    """

    def __init__(
        self, rows: Tensor, columns: Tensor, paths: Tensor, first: Tensor, second: Tensor
    ) -> None:
        self.rows, self.columns = rows, columns
        self.paths, self.first, self.second = paths, first, second

    @classmethod
    def of_inputs(cls, rows: Tensor, columns: Tensor) -> _Pairs:
        first = rows.double()
        second = first if columns is rows else columns.double()
        return cls(rows, columns, first.new_ones([1] * (first.ndim + 1)), first, second)

    def _made(self, *parts: Any) -> Any:
        if not isinstance(parts[0], Tensor):
            return type(parts[0])([self._made(*each) for each in zip(*parts, strict=True)])
        made = _Pairs(*parts)
        made.network = self.network
        return made

    def each(self) -> Tensor:
        """The sums themselves, `[n, m, units...]`."""
        return self.paths * self.first[:, None] * self.second[None]

    def into(self, output: int) -> Tensor:
        """The kernel of one output, `[n, m]`."""
        flat = self.each().flatten(2)
        if not -flat.shape[2] <= output < flat.shape[2]:
            raise InvalidInput(f"the network has {flat.shape[2]} outputs, and no output {output}")
        return flat[:, :, output]

    @property
    def plain(self) -> bool:
        """Whether all units have as many paths, up to slopes."""
        return self.paths[0, 0].numel() == 1

    def _values(self, call: Call, build: Callable[[Get], Any]) -> tuple[Any, Any]:
        rows = over_lanes(call, lambda c: c.rows, build)
        if self.columns is self.rows:
            return rows, rows
        return rows, over_lanes(call, lambda c: c.columns, build)

    def linear(self, call: Call) -> Any:
        rows, columns = self._values(call, lambda get: through(call, get, None))
        only = len(carried_in(call)) == 1
        if only and call.kind in ("moves", "selects"):
            return self._moved(call, rows, columns)
        sums = None
        if only and call.get("input") is self and isinstance(rows, Tensor):
            if call.name == "linear":
                sums = self._dense()
            elif call.name in ("conv1d", "conv2d", "conv3d"):
                sums = self._convolved(call)
        if sums is None:
            sums = over_lanes(call, _Pairs.each, lambda get: through(call, get, 0), depth=2)
        elif call.get("bias") is not None:
            sums = sums + 1.0
        return self._fresh(rows, columns, sums)

    def _fresh(self, rows: Any, columns: Any, sums: Any) -> Any:
        if not isinstance(rows, Tensor):
            parts = zip(rows, columns, sums, strict=True)
            return type(rows)([self._fresh(*each) for each in parts])
        one = sums.new_ones(())
        return self._made(rows, columns, sums, one.expand(rows.shape), one.expand(columns.shape))

    def _moved(self, call: Call, rows: Any, columns: Any) -> Any:
        """Entries change their places, or some are taken."""
        move: Callable[[Get], Any] = lambda get: through(call, get, None)  # noqa: E731
        first = over_lanes(call, lambda c: c.first, move)
        second = first if self.second is self.first else over_lanes(call, lambda c: c.second, move)
        if self.plain:
            thin = self.paths.reshape(self.paths.shape[:2])
            paths = mapped(rows, lambda r: thin.reshape(*thin.shape, *[1] * (r.ndim - 1)))
        else:
            units = self.first.shape[1:]
            paths = over_lanes(call, lambda c: c.paths.expand(-1, -1, *units), move, depth=2)
        return self._made(rows, columns, paths, first, second)

    def _dense(self) -> Tensor:
        """Sums over the inputs of a dense layer; its outputs have the same paths."""
        if self.paths.shape[-1] == 1:
            both = torch.einsum("i...c,j...c->ij...", self.first, self.second)
            return (both * self.paths[..., 0]).unsqueeze(-1)
        paths = self.paths.expand(*self.paths.shape[:2], *self.first.shape[1:])
        made = torch.einsum("ij...c,i...c,j...c->ij...", paths, self.first, self.second)
        return made.unsqueeze(-1)

    def _convolved(self, call: Call) -> Tensor | None:
        """As a convolution with one channel, of the sums over the channels of each group."""
        weight, groups = call["weight"], call.get("groups", 1)
        spatial = weight.ndim - 2
        if self.first.ndim != spatial + 3:  # a single map, without a dimension of samples
            return None
        n, m, channels = len(self.first), len(self.second), self.first.shape[2]
        space = self.first.shape[3:]
        first = self.first.reshape(n, groups, channels // groups, *space)
        second = self.second.reshape(m, groups, channels // groups, *space)
        if self.paths.shape[3] == 1:
            sums = torch.einsum("igc...,jgc...->ijg...", first, second) * self.paths[:, :, 0]
        else:
            paths = self.paths.expand(*self.paths.shape[:2], *self.first.shape[1:])
            paths = paths.reshape(*paths.shape[:2], *first.shape[1:])
            sums = torch.einsum("ijgc...,igc...,jgc...->ijg...", paths, first, second)
        convolve = (F.conv1d, F.conv2d, F.conv3d)[spatial - 1]
        made = convolve(
            sums.reshape(-1, groups, *space),
            sums.new_ones(groups, 1, *weight.shape[2:]),
            None,
            call["stride"],
            call["padding"],
            call["dilation"],
            groups,
        )
        made = made.reshape(n, m, 1, groups, *made.shape[2:])
        return made if groups == 1 else made.repeat_interleave(len(weight) // groups, dim=3)

    def sloped(self, call: Call, slope: Slope) -> Any:
        one, other = self._values(call, slope)
        rows, columns = self.rows * one.to(self.rows), self.columns * other.to(self.columns)
        if self.columns is self.rows:
            columns = rows
        first = self.first * one
        second = first if self.second is self.first else self.second * other
        return self._made(rows, columns, self.paths, first, second)

    def choice(self, call: Call, choice: Choice) -> Any:
        """A path goes on where both inputs choose its unit."""
        one, other = self._values(call, choice.chosen)
        rows = taken(call, choice, lambda c: c.rows, one, None)
        columns = taken(call, choice, lambda c: c.columns, other, None)
        rows, columns = rows.to(self.rows), columns.to(self.columns)
        if self.columns is self.rows:
            columns = rows
        if len(carried_in(call)) == 1 and not choice.constants:
            return self._selected(call, choice, one, other, rows, columns)
        both = (one[:, None] == other[None]).double()
        pairs = one[:, None].expand(both.shape)
        paths = taken(call, choice, _Pairs.each, pairs, 0.0, depth=2)
        return self._fresh(rows, columns, paths * both)

    def _selected(
        self, call: Call, choice: Choice, one: Tensor, other: Tensor, rows: Tensor, columns: Tensor
    ) -> Any:
        """Every unit takes one of the same value's."""
        units = self.first.shape[1:]
        numbers = torch.arange(units.numel(), device=one.device).reshape(units).double()
        sources = choice.candidates(lambda c: numbers, 0.0).long()
        a, b = (
            sources.expand(len(c), *sources.shape).gather(-1, c.unsqueeze(-1)).flatten(1)
            for c in (one, other)
        )
        first = self.first.flatten(1).gather(1, a).reshape(one.shape)
        second = self.second.flatten(1).gather(1, b).reshape(other.shape)
        paths = self.paths
        if self.plain:
            paths = paths.reshape(*paths.shape[:2], 1)
        else:
            size = (len(a), len(b))
            flat = paths.expand(*size, *units).flatten(2)
            paths = flat.gather(2, a[:, None].expand(*size, -1))
        paths = (paths * (a[:, None] == b[None])).reshape(len(a), len(b), *one.shape[1:])
        return self._made(rows, columns, paths, first, second)
