"""Graphs of PyTorch Geometric with targets for their nodes, as a model of numbers of nodes.

They are told by their attributes: nothing is imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from torchtheory.core.errors import InvalidInput
from torchtheory.graphs.graph import Graph
from torchtheory.graphs.graph_reading import as_graph
from torchtheory.graphs.node_samples import OnNodes
from torchtheory.models.graph_rows import GraphRows, is_graph, single_graphs


class _TakesData(nn.Module):
    """A network of features and edges by name, or of an object with them, as one of a `Graph`."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, graph: Graph) -> Any:
        data = SimpleNamespace(x=x, edge_index=graph.listed_edges(), num_nodes=graph.nodes)
        if graph.weights is not None:
            data.edge_weight = graph.weights
        if graph.edge_features is not None:
            data.edge_attr = graph.edge_features
        data.batch = getattr(graph, "membership", None)
        known = inspect.signature(self.network.forward).parameters
        if "edge_index" not in known:
            return self.network(data)
        return self.network(**{n: getattr(data, n) for n in known if hasattr(data, n)})


def on_nodes(model: nn.Module, train: Any, test: Any) -> tuple[nn.Module, Any, Any]:
    """Model and data with nodes as samples, where targets belong to nodes; else as they are.

    Several graphs are put side by side. `train_mask` and `test_mask` say which nodes are which,
    unless test data are given.

    Args:
        model: a network of `x` and `edge_index` by name, or of the graph as one argument.
        train: one graph, a batch, a list or a loader of graphs.
        test: the same, or None.
    """
    graphs = _with_node_targets(train)
    if graphs is None:
        return model, train, test
    others = None if test is None else _with_node_targets(test)
    if test is not None and others is None:
        raise InvalidInput(
            "the training graphs have targets for their nodes, and the test data has none: give "
            "graphs of the same kind"
        )
    every = [*graphs, *(others or [])]
    joined = GraphRows.of(every).joined()
    owner = joined.batch
    if others is None and _masked(graphs, "train_mask"):
        chosen = torch.cat([g.train_mask.reshape(len(g.x), -1)[:, 0] for g in graphs]).bool()
        tested = None
        if _masked(graphs, "test_mask"):
            tested = torch.cat([g.test_mask.reshape(len(g.x), -1)[:, 0] for g in graphs]).bool()
    else:
        chosen = owner < len(graphs)
        tested = None if others is None else ~chosen
    y = torch.cat([g.y.detach() for g in every])
    made = OnNodes(_TakesData(model), as_graph(joined), joined.x)
    parts = [None if c is None else (c.nonzero().flatten(), y[c]) for c in (chosen, tested)]
    return made, parts[0], parts[1]


def _masked(graphs: Sequence[Any], name: str) -> bool:
    return all(isinstance(getattr(g, name, None), Tensor) for g in graphs)


def _with_node_targets(data: Any) -> list[Any] | None:
    """The graphs, if their targets belong to nodes."""
    whole: Any = data.dataset if isinstance(data, DataLoader) else data
    if is_graph(whole):
        # a batch keeps masks and targets of nodes as they are
        found = [whole]
    elif isinstance(whole, list | tuple) and whole and all(is_graph(g) for g in whole):
        found = [part for g in whole for part in single_graphs(g)]
    else:
        return None
    targets = [getattr(g, "y", None) for g in found]
    of_nodes = all(
        isinstance(y, Tensor) and y.ndim > 0 and len(y) == len(g.x) > 1
        for g, y in zip(found, targets, strict=True)
    )
    return found if of_nodes else None
