r"""Networks as directed acyclic graphs.

Every vertex is a parametrized function that is differentiable almost everywhere, every edge
feeds the value of one vertex into another. Dense chains, residual and densely connected networks
are special cases. Source: Mathematical Aspects of Deep Learning, section 1.1.2 (before
Definition 1.4, and Figure 1.1).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise

import networkx as nx
import torch
from torch import Tensor, nn

from torchtheory.core.checks import module_with_values, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch, UnsupportedModel
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.nets.activations.table import Activation, as_layer
from torchtheory.nets.feedforward import dense, drawn_linear
from torchtheory.tracing.chain import as_chain


class GraphNetwork(nn.Module):
    r"""A module from a `networkx.DiGraph`, evaluated in topological order.

    Vertices without predecessors are inputs, those without successors outputs; the features of
    `x` are dealt out to the inputs, and the outputs joined, in the order of the graph's nodes.
    Any other vertex $v$ computes $\phi_v(W_v(x_u)_{u\to v}+b_v)$ from the values of
    its predecessors, joined in the order in which the edges into it were added.

    Args:
        graph: nodes may carry `width` (1 unless told), `activation` (identity unless told)
            and, instead of both, `module`: any module applied to the joined predecessors; then
            `width` is what it gives out.
        generator: generator or seed for the weights.

    >>> g = nx.DiGraph([("x", "h"), ("x", "y"), ("h", "y")])      # a shortcut from x to y
    >>> g.nodes["x"]["width"] = 2
    >>> g.nodes["h"].update(width=3, activation="tanh")
    >>> net = GraphNetwork(g)
    >>> net(torch.ones(4, 2, dtype=torch.float64)).shape
    torch.Size([4, 1])
    """

    def __init__(
        self,
        graph: nx.DiGraph,
        *,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        if not isinstance(graph, nx.DiGraph):
            raise InvalidType(f"the graph must be a networkx.DiGraph, not {type(graph).__name__}")
        if graph.number_of_edges() == 0:
            raise InvalidInput("a network needs at least one edge")
        if not nx.is_directed_acyclic_graph(graph):
            cycle = " -> ".join(str(u) for u, _ in nx.find_cycle(graph))
            raise InvalidInput(f"the graph has a cycle: {cycle} -> ...")
        source = as_generator(generator)
        self.graph = graph.copy()
        self.order: list[Hashable] = list(nx.topological_sort(graph))
        self.inputs = [v for v in graph if graph.in_degree(v) == 0]
        self.outputs = [v for v in graph if graph.out_degree(v) == 0]
        self.widths = {
            v: whole_number(data.get("width", 1), f"the width of {v}", least=1)
            for v, data in graph.nodes(data=True)
        }
        self.predecessors = {v: list(graph.predecessors(v)) for v in graph}
        self.vertices = nn.ModuleDict()
        self._names = {v: f"vertex {i}" for i, v in enumerate(graph)}
        for v, data in graph.nodes(data=True):
            if not self.predecessors[v]:
                continue
            own = data.get("module")
            if own is None:
                fan_in = sum(self.widths[u] for u in self.predecessors[v])
                affine = drawn_linear(
                    fan_in, self.widths[v], generator=source, dtype=dtype, device=device
                )
                nonlinearity: str | Activation = data.get("activation", "linear")
                own = nn.Sequential(affine, as_layer(nonlinearity))
            self.vertices[self._names[v]] = own

    @property
    def features(self) -> int:
        """How many features `x` must have."""
        return sum(self.widths[v] for v in self.inputs)

    def vertex(self, v: Hashable) -> nn.Module:
        """The module of a vertex that has predecessors."""
        return self.vertices[self._names[v]]

    def path(self, v: Hashable) -> str:
        """Where in the network the module of a vertex stands."""
        return f"vertices.{self._names[v]}"

    def values(self, x: Tensor) -> dict[Hashable, Tensor]:
        """The value of every vertex, `[s, width]` each."""
        if x.ndim != 2 or x.shape[1] != self.features:
            raise ShapeMismatch(f"x must be [samples, {self.features}], not {list(x.shape)}")
        dealt = torch.split(x, [self.widths[v] for v in self.inputs], dim=1)
        found: dict[Hashable, Tensor] = dict(zip(self.inputs, dealt, strict=True))
        for v in self.order:
            before = self.predecessors[v]
            if not before:
                continue
            joined = (
                found[before[0]] if len(before) == 1 else torch.cat([found[u] for u in before], 1)
            )
            found[v] = self.vertices[self._names[v]](joined)
            if found[v].shape[-1] != self.widths[v]:
                raise ShapeMismatch(
                    f"vertex {v} has width {self.widths[v]} but gives {found[v].shape[-1]} features"
                )
        return found

    def forward(self, x: Tensor) -> Tensor:
        found = self.values(x)
        if len(self.outputs) == 1:
            return found[self.outputs[0]]
        return torch.cat([found[v] for v in self.outputs], dim=1)


def layered_graph(widths: Sequence[int], nonlinearity: str | Activation = "relu") -> nx.DiGraph:
    """The chain graph of a dense network: one vertex a layer, no activation on the last.

    >>> list(layered_graph([3, 4, 1]).edges)
    [(0, 1), (1, 2)]
    """
    graph = nx.DiGraph()
    for i, width in enumerate(widths):
        hidden = 0 < i < len(widths) - 1
        graph.add_node(i, width=width, activation=nonlinearity if hidden else "linear")
    graph.add_edges_from(pairwise(range(len(widths))))
    return graph


def neuron_graph(model: nn.Module) -> GraphNetwork:
    """A dense network as a graph of single neurons `(layer, unit)`, with the same weights.

    One module a neuron: for looking at small networks, not for speed.

    >>> from torchtheory.nets.feedforward import mlp
    >>> net = neuron_graph(mlp([3, 4, 6, 1]))
    >>> net.graph.number_of_nodes(), net.graph.number_of_edges()
    (14, 42)
    """
    module_with_values(model)
    layers: list[tuple[nn.Linear, list[nn.Module]]] = []
    for link in as_chain(model):
        if isinstance(link.module, nn.Linear):
            layers.append((link.module, []))
        elif layers and next(link.module.parameters(), None) is None:
            layers[-1][1].append(link.module)
        else:
            raise UnsupportedModel(f"{link.module} is neither dense nor a function of each entry")
    if not layers:
        raise UnsupportedModel("a graph of neurons needs a dense layer, and the model has none")
    graph = nx.DiGraph()
    graph.add_nodes_from((0, j) for j in range(layers[0][0].in_features))
    for i, (affine, after) in enumerate(layers, start=1):
        for j in range(affine.out_features):
            bias = None if affine.bias is None else affine.bias.detach()[j : j + 1]
            unit = dense(affine.weight.detach()[j : j + 1], bias)
            graph.add_node((i, j), module=nn.Sequential(unit, *after))
            graph.add_edges_from(((i - 1, k), (i, j)) for k in range(affine.in_features))
    return GraphNetwork(graph)
