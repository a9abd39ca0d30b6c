"""Graphs of PyTorch Geometric: one with nodes as samples, several as samples, in every packing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool

import torchtheory as tt
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.models.graph_rows import GraphRows, is_graph
from torchtheory.models.problem import Problem


class OfGraphs(nn.Module):
    """A class for each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.out = GCNConv(3, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        logits: Tensor = self.out(global_mean_pool(self.one(x, edge_index).relu(), batch))
        return logits


class OfData(OfGraphs):
    def forward(self, data: Any) -> Tensor:  # type: ignore[override]
        return OfGraphs.forward(self, data.x, data.edge_index, data.batch)


class OfNodes(nn.Module):
    """A class for each node, with weights of the edges."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.out = GCNConv(3, 8), GCNConv(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        made: Tensor = self.out(self.one(x, edge_index, edge_weight).relu(), edge_index)
        return made


def ring(n: int, y: Any, seed: int) -> Data:
    g = torch.Generator().manual_seed(seed)
    one = torch.arange(n)
    edges = torch.stack([torch.cat([one, one.roll(1)]), torch.cat([one.roll(1), one])])
    return Data(x=torch.randn(n, 3, generator=g), edge_index=edges, y=y)


def graphs(count: int = 40) -> list[Data]:
    return [ring(4 + k % 5, torch.tensor([k % 2]), k) for k in range(count)]


def seeded(kind: type[nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind()


@pytest.mark.parametrize("kind", [OfGraphs, OfData])
@pytest.mark.parametrize("packing", ["list", "batch", "loader"])
def test_graphs_are_samples(kind: type[nn.Module], packing: str) -> None:
    made = graphs()
    data: Any = {
        "list": made,
        "batch": Batch.from_data_list(made),
        "loader": DataLoader(made, batch_size=7, shuffle=True),
    }[packing]
    net = seeded(kind)
    p = Problem(net, data, made[:9])
    assert (p.task, len(p.train), p.several_inputs) == ("multiclass", 40, True)
    whole = Batch.from_data_list(made)
    given = (whole,) if kind is OfData else (whole.x, whole.edge_index, whole.batch)
    with torch.no_grad():
        torch.testing.assert_close(p.outputs(p.train), net(*given))
    assert torch.equal(p.train.y, whole.y)
    report = tt.audit(net, data, made[:9], only=["risk", "tangent-kernel", "layers"])
    assert report.facts["input"] == "graphs of up to 8 nodes with 3 features"
    wrong = float((net(*given).argmax(1) != whole.y).float().mean())
    found = {q.name: q.value for f in report.findings for q in f.quantities}
    assert found["train-error"] == pytest.approx(wrong)
    kernel = next(f for f in report.findings if f.name == "tangent-kernel")
    assert "the samples are graphs" in kernel.claims[0].reason


def test_nodes_are_samples() -> None:
    g = torch.Generator().manual_seed(0)
    data = ring(60, torch.arange(60) % 3, 0)
    data.train_mask = torch.rand(60, generator=g) < 0.6
    data.test_mask = ~data.train_mask
    net = seeded(OfNodes)
    report = tt.audit(net, data, only=["risk", "over-smoothing"], budget="10s")
    assert report.facts["task"] == "classification of nodes, 3 classes"
    assert report.facts["model"] == "OfNodes"
    assert "a sample is a node" in report.facts["nodes"]
    wrong = net(data.x, data.edge_index).argmax(1) != data.y
    found = {q.name: q.value for f in report.findings for q in f.quantities}
    for name, mask in (("train-error", data.train_mask), ("test-error", data.test_mask)):
        assert found[name] == pytest.approx(float(wrong[mask].double().mean()))
    assert "model changed" not in report.facts


def test_nodes_of_several_graphs_are_put_side_by_side() -> None:
    made = [ring(5 + k, torch.arange(5 + k) % 3, k) for k in range(6)]
    for k, graph in enumerate(made):
        graph.edge_weight = torch.rand(
            graph.edge_index.shape[1] // 2, generator=torch.Generator().manual_seed(k)
        ).repeat(2)
    net = seeded(OfNodes)
    report = tt.audit(net, made[:4], made[4:], only=["risk"], budget="10s")
    with torch.no_grad():
        wrong = [net(g.x, g.edge_index, g.edge_weight).argmax(1) != g.y for g in made]
    found = {q.name: q.value for f in report.findings for q in f.quantities}
    assert found["train-error"] == pytest.approx(float(torch.cat(wrong[:4]).double().mean()))
    assert found["test-error"] == pytest.approx(float(torch.cat(wrong[4:]).double().mean()))


def test_graphs_without_targets_and_graphs_refused() -> None:
    bare = [SimpleNamespace(x=g.x, edge_index=g.edge_index) for g in graphs(12)]
    p = Problem(seeded(OfGraphs), bare)
    assert (p.task, len(p.train)) == ("unlabeled", 12)
    nodes = [ring(5, torch.arange(5) % 3, k) for k in range(4)]
    with pytest.raises(InvalidInput, match="targets for their nodes"):
        Problem(seeded(OfNodes), nodes)
    with pytest.raises(InvalidInput, match="give graphs of the same kind"):
        tt.audit(seeded(OfNodes), nodes, graphs(3), only=["risk"])
    odd = [*graphs(3), Data(x=torch.ones(4, 7), edge_index=torch.zeros(2, 1).long(), y=None)]
    with pytest.raises(ShapeMismatch, match="the graphs differ in x"):
        GraphRows.of(odd)
    assert not is_graph(torch.ones(2))
    assert not is_graph({"x": 1})


def test_gradients_go_through_graphs() -> None:
    made = graphs(10)
    net = seeded(OfGraphs)
    p = Problem(net, made)
    slope = torch.func.grad(p.objective(p.train))(p.parameters)
    whole = Batch.from_data_list(made)
    F.cross_entropy(net(whole.x, whole.edge_index, whole.batch), whole.y).backward()  # type: ignore[no-untyped-call]
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(slope[name], parameter.grad)
