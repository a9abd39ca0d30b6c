"""Networks on one graph as modules whose samples are nodes, for tools that split data into samples.

A network `network(x, graph)` of all nodes at once has no batches: what it says about a node depends
on the features of others. `OnNodes` holds the graph and all features and takes numbers of nodes, so
that a sample is a node and its output does not depend on the other samples of its batch:

```python
model = OnNodes(network, graph, x)
tt.audit(model, train=(train_nodes, labels[train_nodes]), test=(test_nodes, labels[test_nodes]))
```

Whatever takes samples to be independent draws then takes *nodes* to be, drawn from this one graph
with everything else fixed: neighbors share features, so that ranges may be too narrow, and they say
nothing about other graphs. Where samples are graphs, use `OnGraph` for features `[n, M, d]` on one
graph.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from torchtheory.core.checks import as_module, described, one_of, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType
from torchtheory.graphs.graph_reading import GraphSource, as_graph
from torchtheory.graphs.message_passing import check_features

#: What a network takes next to the features: a `Graph`, edges `[2, E]`, or a matrix `[M, M]`.
Takes = Literal["graph", "edge_index", "adjacency"]
TAKES: tuple[Takes, ...] = ("graph", "edge_index", "adjacency")


class TakesGraph(nn.Module):
    """A network of features and edges, or of features and an adjacency matrix, as one of a `Graph`.

    Args:
        network: `network(x, edge_index)` as in PyTorch Geometric, or `network(x, adjacency)`.
        takes: which of the two.

    >>> import torch
    >>> class Sums(nn.Module):
    ...     def forward(self, x, adjacency):
    ...         return adjacency @ x
    >>> path = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> TakesGraph(Sums(), "adjacency")(torch.tensor([[1.0], [4.0]]), path).flatten().tolist()
    [4.0, 1.0]
    """

    def __init__(self, network: nn.Module, takes: Takes) -> None:
        super().__init__()
        self.network = as_module(network, "the network")
        self.takes = one_of(takes, "takes", TAKES)

    def forward(self, x: Tensor, graph: GraphSource) -> Tensor:
        graph = as_graph(graph)
        if self.takes == "graph":
            made: Tensor = self.network(x, graph)
        elif self.takes == "edge_index":
            made = self.network(x, graph.listed_edges())
        else:
            made = self.network(x, graph.adjacency(x.dtype))
        return made


class OnNodes(nn.Module):
    """A network with its graph and the features of all nodes: a module of numbers of nodes.

    Args:
        network: a module of features `[M, d]` and a graph with one row of outputs per node; it is
            shared, not copied.
        graph: whatever `as_graph` reads.
        x: features `[M, d]`, kept as a buffer.
        takes: what the network takes next to the features.
        distance: over how many edges the answer at a node may depend on others, if that is known;
            an audit then asks whether the network hears so far.

    Every call runs the network on the whole graph, whatever the number of nodes asked for.

    >>> import torch
    >>> from torchtheory.graphs.convolutions import GCN
    >>> path = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    >>> OnNodes(GCN([2, 4, 3]), path, torch.ones(3, 2).double())(torch.tensor([2, 0])).shape
    torch.Size([2, 3])
    """

    x: Tensor

    def __init__(
        self,
        network: nn.Module,
        graph: GraphSource,
        x: Tensor,
        takes: Takes = "graph",
        *,
        distance: int | None = None,
    ) -> None:
        super().__init__()
        as_module(network, "the network")
        self.network = network if takes == "graph" else TakesGraph(network, takes)
        self.graph = as_graph(graph)
        check_features(x, self.graph, dimensions=2)
        self.register_buffer("x", x.detach().clone())
        self.distance = None if distance is None else whole_number(distance, "distance", least=1)

    def forward(self, nodes: Tensor) -> Tensor:
        if nodes.is_floating_point() or nodes.ndim not in (1, 2):
            raise InvalidType(f"nodes are given by their numbers [n], not {described(nodes)}")
        made = self.network(self.x, self.graph)
        if not isinstance(made, Tensor) or made.shape[:1] != (self.graph.nodes,):
            raise InvalidInput(
                f"the network must return one row per node, [{self.graph.nodes}, ...], not "
                f"{described(made)}"
            )
        return made[nodes.reshape(len(nodes))]
