"""Paths listed, norms in one pass, angles: against each other and by hand."""

from __future__ import annotations

import copy

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, UnsupportedModel
from torchtheory.generalization.complexity.norm_products import compare_norms
from torchtheory.kernels.paths.angles import feature_norms, path_cosines
from torchtheory.kernels.paths.deep_paths import path_features
from torchtheory.kernels.paths.graph import every_path, graph_path_norms
from torchtheory.kernels.paths.path_kernel import deep_path_kernel, path_norms
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.nets.graph import GraphNetwork


def two_units() -> nn.Sequential:
    first = dense(torch.tensor([[1.0, -2.0], [3.0, 1.0]]), torch.tensor([0.5, -10.0]))
    second = dense(torch.tensor([[2.0, 4.0]]), torch.tensor([-1.0]))
    return nn.Sequential(first, nn.ReLU(), second).double()


def test_paths_by_hand() -> None:
    # unit 0 is open (3 - 2 + 0.5 = 1.5), unit 1 is open only when 3 x0 + x1 > 10
    table = every_path(two_units(), torch.tensor([[3.0, 1.0]]).double())
    found = dict(zip(table.units, table.contributions[0].tolist(), strict=True))
    assert found == {
        ("x[0]", "0[0]", "2[0]"): 6.0,
        ("x[1]", "0[0]", "2[0]"): -4.0,
        ("1", "0[0]", "2[0]"): 1.0,
        ("x[0]", "0[1]", "2[0]"): 0.0,
        ("x[1]", "0[1]", "2[0]"): 0.0,
        ("1", "0[1]", "2[0]"): -0.0,
        ("1", "2[0]"): -1.0,
    }
    assert float(table.outputs) == 2.0
    assert table.strongest(0, 1) == [("x[0] → 0[0] → 2[0]", 2.0, True, 6.0)]


def test_norms_by_hand() -> None:
    net = two_units()
    # paths into unit 0: 1, -2, 0.5 times 2; into unit 1: 3, 1, -10 times 4; and -1
    assert path_norms(net, (2,), order=1).item() == 2 * 3.5 + 4 * 14 + 1
    assert path_norms(net, (2,)).item() == pytest.approx((4 * 5.25 + 16 * 110 + 1) ** 0.5)
    found = compare_norms(net, (2,))
    assert found.frobenius == pytest.approx((15 + 100.25 + 1) ** 0.5 * (20 + 1) ** 0.5)
    assert (found.depth, found.peeling) == (2, 2 * found.frobenius)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=4),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_dense_chains(widths: list[int], bias: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    net = mlp(widths, bias=bias, generator=generator)
    x = torch.randn(3, widths[0], dtype=torch.float64, generator=generator)
    listed = path_features(net, x)
    for k in range(widths[-1]):
        table = every_path(net, x, output=k)
        torch.testing.assert_close(table.outputs, net(x)[:, k].detach())
        torch.testing.assert_close(
            table.weights.sort().values, listed.weights[k].sort().values, rtol=1e-12, atol=0
        )
        for order in (1, 1.5, 2):
            assert path_norms(net, (widths[0],), order=order)[k].item() == pytest.approx(
                table.weights.norm(order).item()
            )
    found = compare_norms(net, (widths[0],))
    assert found.path <= found.frobenius * (1 + 1e-12)
    torch.testing.assert_close(
        feature_norms(net, x), deep_path_kernel(net, x).diagonal().clamp(min=0).sqrt()
    )


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_graphs(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    graph = nx.DiGraph()
    for v in range(5):
        width = int(torch.randint(1, 4, (1,), generator=generator))
        graph.add_node(v, width=width, activation="relu" if 0 < v < 4 else "linear")
    for v in range(4):
        graph.add_edge(v, v + 1)
    for u, v in ((0, 2), (0, 4), (1, 3), (2, 4)):
        if torch.rand((), generator=generator) < 0.6:
            graph.add_edge(u, v)
    net = GraphNetwork(graph, generator=generator)
    x = torch.randn(3, net.features, dtype=torch.float64, generator=generator)
    for k in range(net.widths[4]):
        table = every_path(net, x, output=k)
        torch.testing.assert_close(table.outputs, net(x)[:, k].detach())
        for order in (1, 2):
            assert graph_path_norms(net, order=order)[k].item() == pytest.approx(
                table.weights.norm(order).item()
            )


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(),
                       nn.Linear(2, 2)), (1, 3, 3)),
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.LeakyReLU(0.3), nn.Linear(4, 2)),
         (3,)),
        (nn.Sequential(nn.Conv1d(2, 2, 3, padding=1, groups=2), nn.ReLU(), nn.AvgPool1d(2),
                       nn.Flatten(), nn.Dropout(), nn.Linear(4, 1, bias=False)), (2, 4)),
    ],
)  # fmt: skip
def test_layers(net: nn.Sequential, shape: tuple[int, ...]) -> None:
    net = copy.deepcopy(net).double().eval()
    x = torch.randn(4, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    table = every_path(net, x)
    torch.testing.assert_close(table.outputs, net(x)[:, 0].detach())
    torch.testing.assert_close(path_norms(net, shape)[0], table.weights.norm())
    torch.testing.assert_close(feature_norms(net, x), table.features.norm(dim=1))
    angles = path_cosines(net, x)
    torch.testing.assert_close(
        angles.cosines[:, 0], torch.cosine_similarity(table.features, table.weights[None], dim=1)
    )
    assert compare_norms(net, shape).path <= compare_norms(net, shape).frobenius
    bound = compare_norms(net, shape).path_sum * x.abs().max().clamp(min=1)
    assert bool((net(x).abs() <= bound).all())


def test_the_model_stays_as_it_was() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Dropout(), nn.Linear(2, 1)).train()
    before = copy.deepcopy(net.state_dict())
    x = torch.ones(2, 3)
    every_path(net, x)
    path_cosines(net, x)
    compare_norms(net, (3,))
    assert net.training
    assert net[2].training
    assert all(bool((v == before[k]).all()) for k, v in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    graph = GraphNetwork(nx.path_graph(3, create_using=nx.DiGraph), generator=0)
    weights = [p.clone() for p in graph.parameters()]
    graph_path_norms(graph)
    assert all(bool((a == b).all()) for a, b in zip(weights, graph.parameters(), strict=True))


def test_refused() -> None:
    net = mlp([2, 3, 1], generator=0)
    x = torch.ones(1, 2).double()
    with pytest.raises(UnsupportedModel, match="Tanh"):
        every_path(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)), x)
    with pytest.raises(InvalidInput, match="no output 3"):
        every_path(net, x, output=3)
    with pytest.raises(InvalidInput, match="more than most=5"):
        every_path(net, x, most=5)
    with pytest.raises(NonFinite):
        path_cosines(net, x * torch.nan)
    with pytest.raises(InvalidInput, match="no input 4"):
        every_path(net, x).strongest(4)
    with pytest.raises(InvalidType, match="see path_norms"):
        graph_path_norms(net)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="order"):
        path_norms(net, (2,), order=0.5)
    graph = nx.DiGraph([("x", "h"), ("h", "y")])
    graph.nodes["h"]["activation"] = "tanh"
    with pytest.raises(UnsupportedModel, match="no rule for tanh"):
        every_path(GraphNetwork(graph, generator=0), torch.ones(1, 1).double())
