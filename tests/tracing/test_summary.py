"""A network as a table and as a picture."""

from __future__ import annotations

import pytest
import torch
from tests.tracing.architectures import ALL_NAMES, architecture
from torch import nn

from torchtheory.tracing.drawing import _edges, _framed
from torchtheory.tracing.recorder import record
from torchtheory.tracing.summary import folded, rows_of


@pytest.mark.parametrize("name", ALL_NAMES)
def test_rows_hold_every_parameter_and_operation_once(name: str) -> None:
    a = architecture(name)
    network = record(a.model, a.x)
    rows = rows_of(network)
    used = {v.name for v in network.tensors if v.origin == "parameter"}
    wanted = sum(p.numel() for n, p in a.model.named_parameters() if n in used)
    assert sum(row.parameters for row in rows) == wanted
    seen = [op for row in rows for op in row.operations]
    assert seen == [op for op in network if op.follows and op.outputs]
    assert f"{wanted:,} parameters" in str(network)


def test_blocks_that_do_the_same_are_shown_once() -> None:
    layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
    net = nn.TransformerEncoder(layer, 5, enable_nested_tensor=False)
    network = record(net, torch.zeros(1, 3, 6))
    rows, short = rows_of(network), folded(rows_of(network))
    assert len(rows) == 5 * len(short)
    assert {(row.times, row.block) for row in short} == {(5, "layers.0")}
    assert "layers.0.linear1 (×5)" in str(network)
    assert "layers.1" not in str(network)


def test_blocks_that_differ_are_not_folded() -> None:
    def block(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 4))

    network = record(nn.Sequential(block(3), block(3), block(5)), torch.zeros(1, 4))
    assert [(r.layer, r.times) for r in folded(rows_of(network))] == [
        ("0.0", 2), ("0.1", 2), ("0.2", 2), ("2.0", 1), ("2.1", 1), ("2.2", 1),
    ]  # fmt: skip


def test_shortcuts_are_edges() -> None:
    network = record(architecture("resnet").model, architecture("resnet").x)
    rows = folded(rows_of(network))
    arcs = [(e.start, e.end) for e in _edges(network, rows) if e.end != e.start + 1]
    stem = next(k for k, row in enumerate(rows) if row.layer == "stem")
    join = next(k for k, row in enumerate(rows) if row.layer == "blocks.0" and "add" in row.names)
    assert (stem, join) in arcs


def test_frames_are_the_modules_with_several_rows() -> None:
    frames = _framed(["stem", "blocks.0.a", "blocks.0.b", "blocks.0.c", "blocks.0", "head"])
    assert [(f.members, f.paths[-1]) for f in frames] == [((1, 2, 3, 4), "blocks.0")]


@pytest.mark.parametrize("name", ["mlp", "resnet", "u-net", "lstm", "gcn"])
def test_pictures_are_drawn(name: str) -> None:
    a = architecture(name)
    made = record(a.model, a.x).figure()
    assert made.name == "network"


def test_graph_has_the_operations_and_values() -> None:
    network = record(architecture("tied").model, architecture("tied").x)
    graph = network.graph()
    names = [data["name"] for _, data in graph.nodes(data=True)]
    assert names == ["x", "linear", "relu", "linear"]
    assert list(graph.edges()) == [("x", 0), (0, 1), (1, 3)]
