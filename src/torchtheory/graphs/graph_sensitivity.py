r"""How much a node of a graph hears of another one: Jacobians by distance, and their bound.

For a network $\Xi=f(X,G)$ the block $\partial\xi_i/\partial x_j$ says how node $i$ reacts to the
features of node $j$. After $k$ layers of message passing it is exactly 0 if $j$ is more than $k$
edges away from $i$, and for generic weights only then: all nodes hear of each other if and only if
the depth is at least the diameter. For a GCN with activations of slope at most $\alpha$,

$$
\Bigl\|\frac{\partial\xi_i}{\partial x_j}\Bigr\|_2\le
\alpha^{k-1}\prod_{\ell=1}^k\|W_\ell\|_2\;(\bar A^k)_{ij},
$$

with equality if the activation is the identity and the weights are multiples of rotations. What
$(\bar A^k)_{ij}$ becomes over a bottleneck is in `torchtheory.graphs.bottlenecks`.

Source: Deep Learning (notes), section 7.4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_module, described, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch, UnsupportedModel
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.graphs.convolutions import GCN, GraphConvolution
from torchtheory.graphs.graph import Graph
from torchtheory.graphs.graph_reading import GraphSource, as_graph
from torchtheory.graphs.laplacians import gcn_coupling
from torchtheory.graphs.message_passing import check_features
from torchtheory.models.model import evaluation_mode
from torchtheory.tracing.activations import ACTIVATION_LAYERS, layer_facts


def node_jacobian(network: nn.Module, x: Tensor, graph: GraphSource, node: int) -> Tensor:
    r"""The blocks $\partial\xi_i/\partial x_j$ of one node $i$ for all $j$, `[M, c, d]`.

    Args:
        network: `network(x, graph)` -> outputs `[M, c]`, one row per node; run in evaluation mode.
        x: features `[M, d]`.
        node: $i$.

    Time: a forward pass and $c$ backward passes.

    >>> from torchtheory.graphs.message_passing import MessagePassing
    >>> path = as_graph(torch.tensor([[0, 1], [1, 2]]), nodes=3, directed=False)
    >>> node_jacobian(MessagePassing(), torch.zeros(3, 1), path, 0).flatten().tolist()
    [0.0, 1.0, 0.0]
    """
    graph = as_graph(graph)
    as_module(network, "the network")
    check_features(x, graph, dimensions=2)
    node = whole_number(node, "node", least=0, most=graph.nodes - 1)
    with evaluation_mode(network):
        return _blocks(network, x, graph, [node])[0]


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How much one node hears of another.

    Attributes:
        norm: spectral norm of the Jacobian block.
        bound: by the weights' norms and the coupling matrix; None for networks other than `GCN`.
        distance: edges between the two, infinite if no path leads there.
    """

    norm: float
    bound: float | None
    distance: float


def sensitivity(
    network: nn.Module,
    x: Tensor,
    graph: GraphSource,
    i: int,
    j: int,
    *,
    slope: float | None = None,
) -> Sensitivity:
    r"""$\|\partial\xi_i/\partial x_j\|_2$, and its bound for a `GCN`.

    Args:
        slope: the largest of the activation's; known for torch's own activations.

    >>> from torchtheory.graphs.convolutions import GCN
    >>> path = as_graph(torch.tensor([[0, 1, 2], [1, 2, 3]]), nodes=4, directed=False)
    >>> found = sensitivity(GCN([2, 8, 8, 2], "tanh"), torch.ones(4, 2).double(), path, 0, 3)
    >>> found.distance, 0 < found.norm <= found.bound
    (3.0, True)
    """
    graph = as_graph(graph)
    j = whole_number(j, "j", least=0, most=graph.nodes - 1)
    block = node_jacobian(network, x, graph, i)[j]
    bound = None
    if isinstance(network, GCN):
        bound = float(sensitivity_bound(network, graph, i, slope=slope)[j])
    # i hears j along edges from j
    distance = float(graph.distances(j)[i])
    return Sensitivity(float(torch.linalg.matrix_norm(block, 2)), bound, distance)


def sensitivity_bound(
    network: GCN, graph: GraphSource, node: int, *, slope: float | None = None
) -> Tensor:
    r"""$\alpha^{k-1}\prod\|W_\ell\|_2(\bar A^k)_{ij}$ of one node $i$ for all $j$, `[M]`.

    Args:
        network: a `GCN` of $k$ layers.
        slope: $\alpha$, the activation's largest; known for torch's own activations.

    Time: the singular values of the weights, and $k$ products with $\bar A$.

    Raises:
        UnsupportedModel: if the network is no `GCN`, or its activation's slope is not known.
    """
    graph = as_graph(graph)
    node = whole_number(node, "node", least=0, most=graph.nodes - 1)
    if not isinstance(network, GCN):
        raise UnsupportedModel(
            f"the bound is for a GCN, whose coupling matrix is fixed, not for {described(network)}"
        )
    coupling = gcn_coupling(graph, dtype=torch.float64).T
    row = torch.zeros(graph.nodes, dtype=torch.float64)
    row[node] = 1.0
    factor = 1.0
    for layer in network.layers:
        assert isinstance(layer, GraphConvolution)
        row = coupling @ row
        weight = layer.linear.weight.detach().double()
        factor *= float(torch.linalg.matrix_norm(weight, 2))
    between = len(network.layers) - 1
    return (
        row * factor * _slope_of(network.activation, slope) ** between if between else row * factor
    )


def receptive_field(network: nn.Module, x: Tensor, graph: GraphSource, node: int) -> Tensor:
    """The nodes that one node hears of: those with a Jacobian block other than 0, ascending.

    After k layers of message passing none of them is more than k edges away; all that are not are
    among them for generic weights and smooth activations.

    >>> from torchtheory.graphs.convolutions import GCN
    >>> path = as_graph(torch.tensor([[0, 1, 2], [1, 2, 3]]), nodes=4, directed=False)
    >>> receptive_field(GCN([1, 4, 1], "tanh"), torch.ones(4, 1).double(), path, 0).tolist()
    [0, 1, 2]
    """
    blocks = node_jacobian(network, x, graph, node)
    return (blocks != 0).any(-1).any(-1).nonzero()[:, 0]


def layers_needed(graph: GraphSource) -> int:
    """Layers of message passing after which all nodes can have heard of each other: the diameter.

    >>> import networkx as nx
    >>> layers_needed(nx.path_graph(5))
    4
    >>> layers_needed(torch.zeros(2, 2))
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.InvalidInput: the graph has 2 components, which never hear of each ...
    """
    graph = as_graph(graph)
    found = graph.diameter()
    if math.isinf(found):
        parts = int(graph.components().max()) + 1
        if parts > 1:
            raise InvalidInput(
                f"the graph has {parts} components, which never hear of each other: it has no "
                "finite diameter"
            )
        raise InvalidInput("along the directions of the edges some nodes cannot reach others")
    return int(found)


@dataclass(frozen=True, slots=True)
class SensitivityByDistance:
    """How much nodes hear of others so many edges away.

    Attributes:
        distances: 0, 1, 2, ... to the largest that was met, `[n]`.
        mean, largest: of the norms over pairs at that distance, `[n]`.
        pairs: how many they are, `[n]`.
        reach: the largest distance with a norm other than 0.
        nodes: the nodes that listened.
        norms, apart: of each of these nodes to all nodes: the norm, and the distance, `[k, M]`.
    """

    distances: Tensor
    mean: Tensor
    largest: Tensor
    pairs: Tensor
    reach: int
    nodes: Tensor
    norms: Tensor
    apart: Tensor

    def felt(self, share: float = 0.01) -> int:
        """The largest distance at which the mean is at least this share of that at distance 0."""
        positive_number(share, "share")
        return int((self.mean >= share * self.mean[0]).nonzero()[-1]) if self.mean[0] > 0 else 0

    def plot(self, ax: Any) -> None:
        """Mean and largest norm by distance, on matplotlib's Axes."""
        shown = self.mean > 0
        ax.semilogy(self.distances[shown], self.mean[shown], "o-", label="mean")
        ax.semilogy(self.distances[shown], self.largest[shown], ".--", label="largest")
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.set(xlabel="distance (edges)", ylabel="sensitivity ‖∂ξᵢ/∂xⱼ‖")
        ax.legend()


def sensitivity_by_distance(
    network: nn.Module,
    x: Tensor,
    graph: GraphSource,
    *,
    nodes: Sequence[int] | Tensor | int = 32,
    generator: RandomSource = None,
) -> SensitivityByDistance:
    """The norms of Jacobian blocks by the number of edges between the two nodes.

    Args:
        network: `network(x, graph)` -> outputs `[M, c]`; run in evaluation mode.
        nodes: those that listen, or how many to draw at random (all if there are no more).

    Time: a forward pass, and c backward passes per node. Memory: M · c · d numbers.

    >>> import networkx as nx
    >>> from torchtheory.graphs.convolutions import GCN
    >>> x = torch.ones(9, 1).double()
    >>> sensitivity_by_distance(GCN([1, 4, 4, 1], "tanh"), x, nx.path_graph(9)).reach
    3
    """
    graph = as_graph(graph)
    as_module(network, "the network")
    check_features(x, graph, dimensions=2)
    if isinstance(nodes, int):
        count = min(whole_number(nodes, "nodes", least=1), graph.nodes)
        chosen = torch.randperm(graph.nodes, generator=as_generator(generator))[:count]
        listening = chosen.sort().values.tolist()
    else:
        listening = [
            whole_number(v, "a node", least=0, most=graph.nodes - 1)
            for v in torch.as_tensor(nodes).tolist()
        ]
    with evaluation_mode(network):
        norms = torch.stack(
            [torch.linalg.matrix_norm(b, 2).double() for b in _blocks(network, x, graph, listening)]
        )
    apart = _distances_to(graph, listening)
    reached = apart.isfinite()
    far = int(apart[reached].max())
    places = apart[reached].long()
    found = norms[reached]
    pairs = torch.bincount(places, minlength=far + 1)
    sums = torch.zeros(far + 1, dtype=torch.float64).index_add(0, places, found)
    largest = torch.zeros(far + 1, dtype=torch.float64).scatter_reduce(0, places, found, "amax")
    heard = (largest > 0).nonzero()[:, 0]
    return SensitivityByDistance(
        torch.arange(far + 1),
        sums / pairs.clamp(min=1),
        largest,
        pairs,
        int(heard[-1]) if len(heard) else 0,
        torch.tensor(listening),
        norms,
        apart,
    )


def _distances_to(graph: Graph, nodes: Sequence[int]) -> Tensor:
    """From every node to the given ones, along the edges, `[k, M]`."""
    if not graph.directed:
        return graph.distances(list(nodes)).cpu()
    back = as_graph(graph.edges.flip(0), nodes=graph.nodes, directed=True)
    return back.distances(list(nodes)).cpu()


def _blocks(network: nn.Module, x: Tensor, graph: Graph, nodes: Sequence[int]) -> list[Tensor]:
    given = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        y = network(given, graph)
    if not isinstance(y, Tensor):
        raise InvalidType(f"the network must return one tensor, not {described(y)}")
    if y.ndim != 2 or len(y) != graph.nodes:
        raise ShapeMismatch(
            f"the network must return one row per node, [{graph.nodes}, c], not {list(y.shape)}"
        )
    if not y.requires_grad:
        empty = x.new_zeros(graph.nodes, y.shape[1], x.shape[1])
        return [empty for _ in nodes]
    found = []
    for node in nodes:
        rows = [torch.autograd.grad(v, given, retain_graph=True)[0] for v in y[node]]
        found.append(torch.stack(rows, 1))
    return found


def _slope_of(activation: nn.Module, given: float | None) -> float:
    if given is not None:
        return positive_number(given, "slope")
    if isinstance(activation, nn.Identity):
        return 1.0
    if type(activation) not in ACTIVATION_LAYERS:
        raise UnsupportedModel(
            f"the largest slope of {type(activation).__name__} is not known: give slope="
        )
    return max(abs(slope) for slope in layer_facts(activation).slopes)
