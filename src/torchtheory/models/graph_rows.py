"""Graphs as samples: several of them in one table, and joined to one when a model is called.

Graphs are told by their attributes (`x`, `edge_index`, and others that PyTorch Geometric uses), so
that nothing is imported. In the table every graph is filled up to the size of the largest; a model
gets the graphs of a batch side by side, as a data loader of PyTorch Geometric makes them.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.models.inputs import Rows

#: What belongs to nodes and to edges, beside numbers of nodes.
OF_NODES, OF_EDGES = ("x", "pos"), ("edge_attr", "edge_weight")


def is_graph(value: object) -> bool:
    """Whether it has edges and features of nodes, as `Data` of PyTorch Geometric has."""
    if isinstance(value, type | Tensor | nn.Module):
        return False
    try:
        return all(isinstance(getattr(value, name, None), Tensor) for name in ("edge_index", "x"))
    except Exception:  # an attribute of a stranger's object may raise anything
        return False


class GraphRows(Rows):
    """A table of graphs, one per row, filled up with zeros to the size of the largest.

    >>> def path(n):
    ...     edges = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
    ...     return SimpleNamespace(x=torch.ones(n, 2), edge_index=edges)
    >>> rows = GraphRows.of([path(3), path(2)])
    >>> rows.shapes()
    'graphs of up to 3 nodes with 2 features'
    >>> joined = rows.joined()
    >>> joined.edge_index.tolist(), joined.batch.tolist()
    ([[0, 1, 3], [1, 2, 4]], [0, 0, 0, 1, 1])
    """

    @classmethod
    def of(cls, graphs: Sequence[Any]) -> GraphRows:
        """A table of graphs that have the same attributes."""
        first = graphs[0]
        named = [n for n in (*OF_NODES, *OF_EDGES) if isinstance(getattr(first, n, None), Tensor)]
        nodes = torch.tensor([len(g.x) for g in graphs])
        edges = torch.tensor([g.edge_index.shape[-1] for g in graphs])
        parts: dict[str, Tensor] = {"nodes": nodes, "edges": edges}
        most, more = int(nodes.max()), max(1, int(edges.max()))
        parts["edge_index"] = torch.stack(
            [
                F.pad(g.edge_index.detach().long(), (0, more - g.edge_index.shape[-1]))
                for g in graphs
            ]
        )
        for name in named:
            size = most if name in OF_NODES else more
            try:
                values = [getattr(g, name).detach() for g in graphs]
                parts[name] = torch.stack([_filled(v, size) for v in values])
            except (RuntimeError, AttributeError):
                raise ShapeMismatch(
                    f"the graphs differ in {name}: each needs as many features as the first, "
                    f"{list(getattr(first, name).shape[1:])}"
                ) from None
        return cls(parts)

    def shapes(self) -> str:
        x = self._part("x")
        width = " × ".join(map(str, x.shape[2:])) or "1"
        return f"graphs of up to {x.shape[1]} nodes with {width} features"

    def followed_by(self, other: Rows) -> Rows:
        if not isinstance(other, GraphRows):
            raise ShapeMismatch(f"one data set is of graphs and the other of {other.shapes()}")
        both = (self, other)
        sizes = {
            n: max(t._part(n).shape[k] for t in both) for n, k in (("x", 1), ("edge_index", -1))
        }
        return Rows.followed_by(self._sized(sizes), other._sized(sizes))

    def taken_by(self, model: nn.Module) -> Rows:
        return self

    def arguments(
        self, model: nn.Module, index: Tensor, like: Tensor
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to call a model with for graphs of the given numbers.

        Its arguments by their names (`x`, `edge_index`, `batch`, `edge_attr`, `edge_weight`,
        `pos`) if `forward` has `x` and `edge_index`, else the joined graph as one argument.
        """
        chosen = self.take(index).to(like)
        assert isinstance(chosen, GraphRows)
        joined = chosen.joined()
        known = inspect.signature(model.forward).parameters
        if "edge_index" not in known:
            return (joined,), {}
        given = {name: getattr(joined, name) for name in known if hasattr(joined, name)}
        return (), given

    def joined(self) -> SimpleNamespace:
        """All graphs as one, with `batch [nodes]` saying which each node is of."""
        nodes, edges = self._part("nodes"), self._part("edges")
        x, ends = self._part("x"), self._part("edge_index")
        of_node = torch.arange(x.shape[1], device=x.device) < nodes[:, None]
        of_edge = torch.arange(ends.shape[-1], device=x.device) < edges[:, None]
        before = (nodes.cumsum(0) - nodes)[:, None, None]
        made = SimpleNamespace(
            edge_index=(ends + before).movedim(1, 0)[:, of_edge],
            batch=torch.arange(len(nodes), device=x.device).repeat_interleave(nodes),
            num_graphs=len(nodes),
            num_nodes=int(nodes.sum()),
        )
        assert isinstance(self.parts, dict)
        for name in (*OF_NODES, *OF_EDGES):
            if name in self.parts:
                setattr(made, name, self.parts[name][of_node if name in OF_NODES else of_edge])
        return made

    def _part(self, name: str) -> Tensor:
        assert isinstance(self.parts, dict)
        return self.parts[name]

    def _like(self, tensors: list[Tensor]) -> Rows:
        assert isinstance(self.parts, dict)
        return GraphRows(dict(zip(self.parts, tensors, strict=True)))

    def _sized(self, sizes: dict[str, int]) -> GraphRows:
        assert isinstance(self.parts, dict)
        parts: dict[str, Tensor] = {}
        for name, tensor in self.parts.items():
            if name in ("nodes", "edges"):
                parts[name] = tensor
            elif name == "edge_index":
                parts[name] = F.pad(tensor, (0, sizes["edge_index"] - tensor.shape[-1]))
            else:
                size = sizes["x"] if name in OF_NODES else sizes["edge_index"]
                parts[name] = torch.stack([_filled(t, size) for t in tensor])
        return GraphRows(parts)


def _filled(values: Tensor, size: int) -> Tensor:
    """Rows of zeros after the values, up to a number of rows."""
    return torch.cat([values, values.new_zeros(size - len(values), *values.shape[1:])])


def single_graphs(value: Any) -> list[Any]:
    """The graphs of a batch that has joined several, or the graph itself."""
    ends = getattr(value, "ptr", None)
    if not isinstance(ends, Tensor) or len(ends) < 3:
        return [value]
    parts = getattr(value, "to_data_list", None)
    if parts is None:
        raise InvalidType("a joined graph needs to_data_list(), as Batch of PyTorch Geometric has")
    return list(parts())


def graph_targets(graphs: Sequence[Any], name: str) -> Tensor | None:
    """Targets `[n, ...]`, one row per graph; None where the graphs have none.

    Raises:
        InvalidInput: if targets belong to nodes, which are samples of one graph.
    """
    found = [getattr(g, "y", None) for g in graphs]
    if not all(isinstance(y, Tensor) for y in found):
        return None
    rows = [y.detach() for y in found if isinstance(y, Tensor)]
    if any(len(g.x) == len(y) > 1 for g, y in zip(graphs, rows, strict=True) if y.ndim):
        raise InvalidInput(
            f"the {name} graphs have targets for their nodes: give one graph, or a Batch of "
            "several, to tt.audit, and nodes are the samples"
        )
    try:
        return torch.stack([y.reshape(y.shape[1:]) if y.ndim and len(y) == 1 else y for y in rows])
    except RuntimeError:
        raise ShapeMismatch(f"the targets of the {name} graphs differ in shape") from None
