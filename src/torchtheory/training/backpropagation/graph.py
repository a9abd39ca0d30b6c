r"""Backpropagation on any directed acyclic graph, and the sum over paths it is a shortcut for.

With net inputs $a_j=\sum_{i\to j}w_{ij}h_i+b_j$ and values $h_j=\phi_j(a_j)$, the
error $\delta_j=\partial E/\partial a_j$ of a unit follows from those of its successors,

$$
\delta_j=\phi_j'(a_j)\sum_{k\in\mathrm{succ}(j)}w_{jk}\,\delta_k,\qquad
\frac{\partial E}{\partial w_{ij}}=h_i\,\delta_j,
$$

by induction in reverse topological order. Written out, $\delta_j$ is a sum over all paths
from $j$ to the outputs, whose number grows exponentially with depth. Source: slides "Extra
Homework"; Mathematical Aspects of Deep Learning, section 1.1.2.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx
import torch
from torch import Tensor

from torchtheory.core.errors import UnsupportedModel
from torchtheory.models.problem import Loss
from torchtheory.nets.graph import GraphNetwork
from torchtheory.tracing.network import Operation, Value
from torchtheory.training.backpropagation.chain import loss_and_error, pull_back
from torchtheory.training.backpropagation.there_and_back import ThereAndBack, there_and_back
from torchtheory.training.losses.classification import ClassificationLoss


@dataclass(frozen=True, slots=True)
class GraphBackpropagation:
    r"""A pass there and back over a graph, vertex by vertex.

    Attributes:
        loss: the loss of the batch.
        net_inputs: $a_v$, `[n, width]`; inputs of the network have none.
        values: $h_v$, `[n, width]`.
        deltas: $\partial E/\partial h_v$.
        errors: $\delta_v=\partial E/\partial a_v$.
        gradients: by name, as `network.named_parameters()` has them.
    """

    loss: Tensor
    net_inputs: dict[Hashable, Tensor]
    values: dict[Hashable, Tensor]
    deltas: dict[Hashable, Tensor]
    errors: dict[Hashable, Tensor]
    gradients: dict[str, Tensor]


def backpropagate_graph(
    network: GraphNetwork, x: Tensor, y: Tensor, loss: Loss | ClassificationLoss
) -> GraphBackpropagation:
    r"""Errors of all vertices and gradients of all weights of a graph network.

    Every vertex must be a dense layer followed by activations. Each edge is used once on the way
    there and once on the way back: the cost is linear in the number of edges.

    Args:
        network: its modules are run in evaluation mode and left as they were.
        x: `[n, features]`; y: targets as the loss takes them.

    >>> g = nx.DiGraph([("x", "h"), ("h", "y"), ("x", "y")])
    >>> net = GraphNetwork(g, generator=0)
    >>> found = backpropagate_graph(
    ...     net, torch.ones(1, 1).double(), torch.zeros(1, 1).double(), lambda o, y: o.sum()
    ... )
    >>> bool(found.errors["h"] == net.vertex("y")[0].weight[0, 0])       # linear: the weight h -> y
    True
    """
    both, number, _ = _passes(network, x, y, loss)
    dealt = [network.widths[v] for v in network.inputs]
    at_input = both.deltas[both.network.inputs[0]]
    values = dict(zip(network.inputs, torch.split(x.detach(), dealt, 1), strict=True))
    deltas = dict(zip(network.inputs, torch.split(at_input, dealt, 1), strict=True))
    net_inputs, errors = {}, {}
    for v, (affine, h) in _vertices(network, both).items():
        (a,) = affine.outputs
        values[v], deltas[v] = both.values[h], both.deltas[h]
        net_inputs[v], errors[v] = both.values[a], both.deltas[a]
    return GraphBackpropagation(number, net_inputs, values, deltas, errors, both.gradients)


@dataclass(frozen=True, slots=True)
class PathSum:
    r"""The error of a unit, summed path by path.

    Attributes:
        error: $\delta_j$, `[n]`.
        paths: how many paths lead from the unit to an output.
    """

    error: Tensor
    paths: int


def error_by_paths(
    network: GraphNetwork,
    x: Tensor,
    y: Tensor,
    loss: Loss | ClassificationLoss,
    vertex: Hashable,
) -> PathSum:
    r"""$\delta_j=\sum_{j=v_0\to\dots\to v_m}\phi'(a_{v_0})\prod_iw_{v_{i-1}v_i}\phi'(a_{v_i})
    \,\partial E/\partial h_{v_m}$ over all paths from $j$ to an output.

    For vertices of width 1 only, and for small graphs: the number of paths is exponential in the
    depth. It is what backpropagation computes, without the sharing that makes it fast.

    >>> g = nx.DiGraph([("x", "h"), ("h", "y"), ("h", "z"), ("z", "y")])
    >>> net = GraphNetwork(g, generator=0)
    >>> one = torch.ones(1, 1).double()
    >>> error_by_paths(net, one, one, lambda o, y: o.sum(), "h").paths
    2
    """
    if any(width != 1 for width in network.widths.values()):
        raise UnsupportedModel(
            "a sum over paths needs vertices of width 1: single units, not widths "
            f"{sorted(set(network.widths.values()))}"
        )
    if not _inner(network, vertex):
        raise UnsupportedModel(f"{vertex} is an input of the network and has no net input")
    both, _, at_output = _passes(network, x, y, loss)
    vertices = _vertices(network, both)
    slopes = {v: _slope(both, *parts)[:, 0] for v, parts in vertices.items()}
    weights = {v: both.values[op.arguments["weight"]][0] for v, (op, _) in vertices.items()}
    total, count = torch.zeros_like(at_output[:, 0]), 0
    for column, end in enumerate(network.outputs):
        for path in _paths(network.graph, vertex, end):
            product = at_output[:, column] * slopes[path[0]]
            for u, v in pairwise(path):
                product = product * weights[v][network.predecessors[v].index(u)] * slopes[v]
            total, count = total + product, count + 1
    return PathSum(total, count)


def _passes(
    network: GraphNetwork, x: Tensor, y: Tensor, loss: Loss | ClassificationLoss
) -> tuple[ThereAndBack, Tensor, Tensor]:
    """Both ways, the loss, and the error at the outputs."""
    found: list[tuple[Tensor, Tensor]] = []

    def start(outputs: Tensor) -> Tensor:
        found.append(loss_and_error(loss, outputs, y))
        return found[-1][1]

    return there_and_back(network, x, start), *found[-1]


def _vertices(network: GraphNetwork, both: ThereAndBack) -> dict[Hashable, tuple[Operation, Value]]:
    """Of each vertex the operation that makes its net input, and its value."""
    returned = {path: made[0] for path, made in both.network.returned if made}
    found = {}
    for v in network.order:
        if not _inner(network, v):
            continue
        path = network.path(v)
        own = [op for op in both.network if any(path == layer for layer, _ in op.calls)]
        if not own or [op.name for op in own].count("linear") != 1 or own[0].name != "linear":
            raise UnsupportedModel(f"vertex {v} is not a dense layer followed by activations")
        found[v] = (own[0], returned[path])
    return found


def _slope(both: ThereAndBack, affine: Operation, h: Value) -> Tensor:
    """Of the activations of a vertex, at its net input."""
    (a,) = affine.outputs
    after = both.network.until(h, after=(a,))
    net_input = both.values[a]
    return pull_back(after, net_input, torch.ones_like(net_input))[0]


def _paths(graph: nx.DiGraph, start: Hashable, end: Hashable) -> list[list[Hashable]]:
    if start == end:
        return [[start]]
    return list(nx.all_simple_paths(graph, start, end))


def _inner(network: GraphNetwork, v: Hashable) -> bool:
    return bool(network.predecessors.get(v))
