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
from torch import Tensor, nn

from torchtheory.core.errors import UnsupportedModel
from torchtheory.models.model import evaluation_mode
from torchtheory.models.problem import Loss
from torchtheory.nets.graph import GraphNetwork
from torchtheory.tracing.chain import as_chain
from torchtheory.training.backpropagation.chain import (
    LayerStep,
    collect_gradients,
    loss_and_error,
    pull_back,
)
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
        network: its vertices' modules are run in evaluation mode and left as they were.
        x: `[n, features]`; y: targets as the loss takes them.

    >>> g = nx.DiGraph([("x", "h"), ("h", "y"), ("x", "y")])
    >>> net = GraphNetwork(g, generator=0)
    >>> found = backpropagate_graph(
    ...     net, torch.ones(1, 1).double(), torch.zeros(1, 1).double(), lambda o, y: o.sum()
    ... )
    >>> bool(found.errors["h"] == net.vertex("y")[0].weight[0, 0])       # linear: the weight h -> y
    True
    """
    chains: dict[Hashable, list[nn.Module]] = {}
    for v in network.order:
        if _inner(network, v):
            affine, after = _affine_then_activations(network, v)
            chains[v] = [affine, *after]
    steps: list[LayerStep] = []
    with evaluation_mode(network), torch.no_grad():
        values = network.values(x.detach())
        outputs = torch.cat([values[v] for v in network.outputs], dim=1)
        number, at_output = loss_and_error(loss, outputs, y)
        deltas = {v: torch.zeros_like(h) for v, h in values.items()}
        cut = [network.widths[v] for v in network.outputs]
        for v, part in zip(network.outputs, torch.split(at_output, cut, dim=1), strict=True):
            deltas[v] = deltas[v] + part
        net_inputs, errors = {}, {}
        for v in reversed(network.order):  # every successor of v has given its part by now
            if v not in chains:
                continue
            before = network.predecessors[v]
            inside = [torch.cat([values[u] for u in before], dim=1)]
            for module in chains[v]:
                inside.append(module(inside[-1].clone()))
            delta = deltas[v]
            for i in reversed(range(len(chains[v]))):
                module = chains[v][i]
                if i == 0:
                    net_inputs[v], errors[v] = inside[1], delta
                below, gradients = pull_back(module, inside[i], inside[i + 1], delta)
                steps.append(
                    LayerStep("", module, inside[i], inside[i + 1], delta, below, gradients)
                )
                delta = below
            widths = [network.widths[u] for u in before]
            for u, part in zip(before, torch.split(delta, widths, dim=1), strict=True):
                deltas[u] = deltas[u] + part
    gradients = collect_gradients(network, steps)
    return GraphBackpropagation(number, net_inputs, values, deltas, errors, gradients)


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
    with evaluation_mode(network), torch.no_grad():
        values = network.values(x.detach())
        outputs = torch.cat([values[v] for v in network.outputs], dim=1)
        _, at_output = loss_and_error(loss, outputs, y)
        slopes = {}
        for v in network.order:
            if _inner(network, v):
                affine, after = _affine_then_activations(network, v)
                joined = torch.cat([values[u] for u in network.predecessors[v]], dim=1)
                slopes[v] = _slope_of_chain(after, affine(joined))[:, 0]
    total, count = torch.zeros_like(at_output[:, 0]), 0
    for column, end in enumerate(network.outputs):
        for path in _paths(network.graph, vertex, end):
            product = at_output[:, column] * slopes[path[0]]
            for u, v in pairwise(path):
                affine, _ = _affine_then_activations(network, v)
                place = network.predecessors[v].index(u)
                product = product * affine.weight.detach()[0, place] * slopes[v]
            total, count = total + product, count + 1
    return PathSum(total, count)


def _paths(graph: nx.DiGraph, start: Hashable, end: Hashable) -> list[list[Hashable]]:
    if start == end:
        return [[start]]
    return list(nx.all_simple_paths(graph, start, end))


def _slope_of_chain(modules: list[nn.Module], a: Tensor) -> Tensor:
    delta = torch.ones_like(a)
    inside = [a]
    for module in modules:
        inside.append(module(inside[-1].clone()))
    for i in reversed(range(len(modules))):
        delta, _ = pull_back(modules[i], inside[i], inside[i + 1], delta)
    return delta


def _inner(network: GraphNetwork, v: Hashable) -> bool:
    return bool(network.predecessors.get(v))


def _affine_then_activations(
    network: GraphNetwork, v: Hashable
) -> tuple[nn.Linear, list[nn.Module]]:
    first, *after = [link.module for link in as_chain(network.vertex(v))]
    if not isinstance(first, nn.Linear) or any(isinstance(m, nn.Linear) for m in after):
        raise UnsupportedModel(f"vertex {v} is not a dense layer followed by activations")
    return first, after
