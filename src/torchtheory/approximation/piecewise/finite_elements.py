r"""Linear finite elements as ReLU networks, exactly: the nodal basis by minima of affine pieces.

On a simplicial mesh the nodal function $\phi_i$ is 1 in node $i$, 0 in every other
node and affine on each simplex: a pyramid over the star of its node. Where the star is convex,

$$
\phi_i=\max\Bigl(0,\ \min_{\tau\ni i}g_\tau\Bigr),
$$

with $g_\tau$ the affine piece of simplex $\tau$, continued to the whole space, and a
minimum of $q$ numbers is a ReLU network of $\lceil\log_2q\rceil$ hidden layers. The
source only asks for simplices; without a convex star the formula is wrong, and is refused.
Sources: The Modern Mathematics of Deep Learning, section 1.4.1 (He et al.); Expressivity of Deep
Neural Networks, section 3.4.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache

import torch
from scipy.spatial import ConvexHull
from torch import Tensor, nn

from torchtheory.approximation.network_calculus import block_diagonal, chain, combine
from torchtheory.core.checks import all_finite, equal_rows, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.memory import refuse_too_large

#: Weights a layer may have; the layers of a sum are block diagonal, and mostly zeros.
MOST_WEIGHTS = 1 << 25


@dataclass(frozen=True, slots=True)
class Mesh:
    """A simplicial mesh of a convex set.

    Attributes:
        nodes: `[n, d]`.
        simplices: `[m, d + 1]`, whole numbers: the nodes of each simplex.

    >>> square = Mesh(torch.tensor([[0.0, 0], [1, 0], [0, 1], [1, 1]]).double(),
    ...               torch.tensor([[0, 1, 3], [0, 2, 3]]))
    >>> square.dimension, square.volumes.tolist()
    (2, [0.5, 0.5])
    """

    nodes: Tensor
    simplices: Tensor

    def __post_init__(self) -> None:
        if self.nodes.ndim != 2 or self.nodes.shape[1] < 1:
            raise ShapeMismatch(f"nodes are [n, d], not {list(self.nodes.shape)}")
        d = self.nodes.shape[1]
        if self.simplices.ndim != 2 or self.simplices.shape[1] != d + 1:
            raise ShapeMismatch(
                f"a simplex in {d} dimensions has {d + 1} nodes, so simplices are [m, {d + 1}], "
                f"not {list(self.simplices.shape)}"
            )
        if self.simplices.dtype not in (torch.int64, torch.int32):
            raise InvalidInput(f"simplices are whole numbers, not {self.simplices.dtype}")
        all_finite(self.nodes, "the nodes of a mesh")
        if odd := set(self.simplices.flatten().tolist()) ^ set(range(len(self.nodes))):
            raise InvalidInput(
                "every node must belong to a simplex, and simplices name only nodes: node "
                f"{min(odd)} is {'in none' if min(odd) < len(self.nodes) else 'not there'}"
            )
        if same := equal_rows(self.nodes):
            raise InvalidInput(f"nodes {same[0]} and {same[1]} of the mesh are the same point")
        small = float(self.volumes.min())
        if small <= 1e-14 * float(self.volumes.max()):
            flat = int(self.volumes.argmin())
            raise InvalidInput(f"simplex {flat} of the mesh has no volume")
        if float(self.volumes.sum()) < self._hull() * (1 - 1e-9):
            raise InvalidInput(
                "the mesh does not fill a convex set, where minima of affine pieces would reach "
                "beyond their simplices: cut the set into convex parts"
            )

    @property
    def dimension(self) -> int:
        return int(self.nodes.shape[1])

    @property
    def volumes(self) -> Tensor:
        """`[m]`: the volume of each simplex."""
        corners = self.nodes[self.simplices].double()
        edges = corners[:, 1:] - corners[:, :1]
        volumes: Tensor = torch.linalg.det(edges).abs() / math.factorial(self.nodes.shape[1])
        return volumes

    def _hull(self) -> float:
        if self.dimension == 1:
            return float(self.nodes.max() - self.nodes.min())
        return float(ConvexHull(self.nodes.cpu().double().numpy()).volume)


def line_mesh(nodes: Tensor) -> Mesh:
    """The mesh of an interval with these nodes, `[n]`, in any order.

    >>> line_mesh(torch.tensor([0.0, 1.0, 0.5])).simplices.tolist()
    [[0, 2], [2, 1]]
    """
    if nodes.ndim != 1 or len(nodes) < 2:
        raise ShapeMismatch(f"an interval has at least two nodes, [n], not {list(nodes.shape)}")
    order = nodes.argsort()
    return Mesh(nodes.unsqueeze(1), torch.stack([order[:-1], order[1:]], dim=1))


def cube_mesh(cells: int, dimension: int) -> Mesh:
    r"""The structured (Kuhn) mesh of $[0,1]^d$: each of the cubes in $d!$ simplices.

    In the plane an inner node has six neighbors.

    >>> cube_mesh(2, 2).simplices.shape
    torch.Size([8, 3])
    """
    whole_number(cells, "cells", least=1)
    whole_number(dimension, "dimension", least=1)
    # a list of Python's integers, then the tensor
    count = cells**dimension * math.factorial(dimension)
    refuse_too_large(32 * (dimension + 1) * count, f"a mesh of {count:,} simplices")
    side = torch.linspace(0, 1, cells + 1, dtype=torch.float64)
    nodes = torch.cartesian_prod(*[side] * dimension).reshape(-1, dimension)
    strides = [(cells + 1) ** (dimension - 1 - j) for j in range(dimension)]
    found = []
    for corner in itertools.product(range(cells), repeat=dimension):
        start = sum(c * s for c, s in zip(corner, strides, strict=True))
        for order in itertools.permutations(range(dimension)):
            path = [start]
            for j in order:
                path.append(path[-1] + strides[j])
            found.append(path)
    return Mesh(nodes, torch.tensor(found))


def affine_pieces_around(mesh: Mesh, node: int) -> tuple[Tensor, Tensor]:
    r"""Gradients `[q, d]` and constants `[q]` of the nodal function on the $q$ simplices.

    >>> gradients, constants = affine_pieces_around(line_mesh(torch.tensor([0.0, 0.5, 1.0])), 1)
    >>> gradients.flatten().tolist(), constants.tolist()
    ([2.0, -2.0], [0.0, 2.0])
    """
    _check_node(mesh, node)
    star = mesh.simplices[(mesh.simplices == node).any(1)]
    corners = mesh.nodes[star].double()
    ones = torch.ones(*corners.shape[:2], 1, dtype=torch.float64, device=corners.device)
    values = (star == node).double().unsqueeze(-1)
    solved = torch.linalg.solve(torch.cat([corners, ones], dim=-1), values)[..., 0]
    return solved[:, :-1], solved[:, -1]


def nodal_network(mesh: Mesh, node: int) -> nn.Sequential:
    r"""$\phi_i=\max(0,\min_\tau g_\tau)$ for one node of a mesh.

    Hidden layers: 1 for the outer maximum and $\lceil\log_2q\rceil$ for the minimum over
    the $q$ simplices of the star; in the plane with six neighbors 4.

    >>> hat = nodal_network(line_mesh(torch.tensor([0.0, 0.5, 1.0])), 1)
    >>> hat(torch.tensor([[0.0], [0.25], [0.5], [0.75]]).double()).flatten().tolist()
    [0.0, 0.5, 1.0, 0.5]
    """
    gradients, constants = affine_pieces_around(mesh, node)
    if not convex_star(mesh, node):
        raise InvalidInput(
            f"the simplices around node {node} do not form a convex set, so its nodal function is "
            "not a minimum of its affine pieces: refine the mesh there"
        )
    (weight, bias), *rest = [(w.to(constants), b.to(constants))
                             for w, b in _minimum_maps(len(constants))]  # fmt: skip
    one = constants.new_ones(1, 1)
    maps = [(weight @ gradients, weight @ constants + bias), *rest, (one, 0 * one[0])]
    return chain(maps, [nn.ReLU() for _ in maps[1:]])


def convex_star(mesh: Mesh, node: int) -> bool:
    """Whether the simplices around a node form a convex set.

    They do when no affine piece of the nodal function is negative in a node of the star.

    >>> convex_star(cube_mesh(2, 2), 4)
    True
    """
    gradients, constants = affine_pieces_around(mesh, node)
    around = mesh.simplices[(mesh.simplices == node).any(1)].flatten()
    values = mesh.nodes[around].double() @ gradients.T + constants
    return bool(values.min() >= -1e-9)


def finite_element_network(mesh: Mesh, values: Tensor) -> nn.Sequential:
    r"""The finite element function $\sum_iv_i\phi_i$ as one ReLU network.

    On an interval one hidden layer with a unit a node less one; else the nodal networks side by
    side. The layers are dense: with $n$ nodes their memory grows as $n^2$.

    Args:
        values: `[n]`, the values in the nodes.

    >>> line = finite_element_network(line_mesh(torch.tensor([0.0, 0.5, 1.0]).double()),
    ...                               torch.tensor([1.0, 3.0, -1.0]).double())
    >>> line(torch.tensor([[0.25], [0.75]]).double()).flatten().tolist()
    [2.0, 1.0]
    """
    if values.shape != mesh.nodes.shape[:1]:
        raise ShapeMismatch(f"{len(mesh.nodes)} nodes need a value each, not {list(values.shape)}")
    all_finite(values, "the values in the nodes")
    if mesh.dimension == 1:
        order = mesh.nodes[:, 0].argsort()
        knots, heights = mesh.nodes[order, 0].double(), values[order].double()
        slopes = heights.diff() / knots.diff()
        bends = torch.cat([slopes[:1], slopes.diff()])
        ones = torch.ones_like(bends).unsqueeze(1)
        return chain([(ones, -knots[:-1]), (bends.unsqueeze(0), heights[:1])], [nn.ReLU()])
    most = 2 * int(mesh.simplices.numel())
    if most**2 > MOST_WEIGHTS:
        raise InvalidInput(
            f"a mesh of {len(mesh.simplices)} simplices makes a layer of more than "
            f"{MOST_WEIGHTS} weights: take fewer simplices"
        )
    return combine(values.double(), [nodal_network(mesh, i) for i in range(len(mesh.nodes))])


def interpolate_linearly(mesh: Mesh, values: Tensor, x: Tensor) -> Tensor:
    r"""The finite element function at points `[k, d]` by barycentric coordinates, no network.

    Each point is looked up in every simplex: time and memory $O(km)$.

    >>> interpolate_linearly(cube_mesh(1, 2), torch.tensor([0.0, 0, 0, 1]).double(),
    ...                      torch.tensor([[0.5, 0.25]]).double()).item()
    0.25
    """
    corners = mesh.nodes[mesh.simplices].double()
    ones = torch.ones(*corners.shape[:2], 1, dtype=torch.float64, device=corners.device)
    system = torch.cat([corners, ones], dim=-1).transpose(1, 2)
    inverse: Tensor = torch.linalg.inv(system)
    points = torch.cat([x.double(), x.new_ones(len(x), 1).double()], dim=1)
    shares = torch.einsum("mij,kj->kmi", inverse, points)
    home = shares.amin(-1).argmax(1)
    at = torch.arange(len(x), device=x.device)
    least = shares[at, home].amin(1)
    if float(least.min()) < -1e-9:
        raise InvalidInput(f"point {int(least.argmin())} lies outside the mesh")
    return (shares[at, home] * values.double()[mesh.simplices[home]]).sum(1)


@cache
def _minimum_maps(count: int) -> tuple[tuple[Tensor, Tensor], ...]:
    r"""The affine layers of the tree of minima; kept, because every node of a mesh asks for it.

    $$
    \min(a,b)=\tfrac12\bigl(\sigma(a+b)-\sigma(-a-b)-\sigma(a-b)-\sigma(b-a)\bigr)
    $$

    A number without a partner is carried on as $\sigma(a)-\sigma(-a)$.
    """
    pair = torch.tensor([[1.0, 1], [-1, -1], [1, -1], [-1, 1]]).double()
    single = torch.tensor([[1.0], [-1.0]]).double()
    halves = torch.tensor([[0.5, -0.5, -0.5, -0.5]]).double()
    weights = [torch.eye(count, dtype=torch.float64)]
    while count > 1:
        pairs, alone = divmod(count, 2)
        weights[-1] = block_diagonal(*[pair] * pairs, *[single] * alone) @ weights[-1]
        weights.append(block_diagonal(*[halves] * pairs, *[single.T] * alone))
        count = pairs + alone
    return tuple((w, w.new_zeros(len(w))) for w in weights)


def _check_node(mesh: Mesh, node: int) -> None:
    whole_number(node, "node", least=0)
    if node >= len(mesh.nodes):
        raise InvalidInput(f"the mesh has nodes 0 to {len(mesh.nodes) - 1}, not {node}")
