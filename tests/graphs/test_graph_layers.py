"""Layers on graphs against PyTorch Geometric, against matrices, and what is refused."""

from collections.abc import Callable
from typing import Any

import networkx as nx
import pytest
import torch
import torch_geometric.nn as peer
from torch import Tensor, nn
from torch_geometric.data import Data

from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch, UnsupportedModel
from torchtheory.graphs.convolutions import (
    GCN,
    ChebyshevConvolution,
    GraphConvolution,
    GraphIsomorphism,
    PolynomialGraphConvolution,
)
from torchtheory.graphs.graph import Graph
from torchtheory.graphs.graph_attention import GraphAttention
from torchtheory.graphs.graph_reading import as_graph, graph_union
from torchtheory.graphs.laplacians import gcn_coupling, graph_laplacian
from torchtheory.graphs.message_passing import MessagePassing, OnGraph, pooled_nodes
from torchtheory.graphs.node_samples import TakesGraph
from torchtheory.graphs.pyg import from_pyg, to_pyg
from torchtheory.graphs.relabeling import graph_equivariance

KARATE = as_graph(nx.karate_club_graph())
PLAIN = as_graph(KARATE.edges)


def with_isolated() -> Graph:
    return as_graph(PLAIN.edges, nodes=40)


def directed() -> Graph:
    return as_graph(nx.gnp_random_graph(25, 0.15, seed=2, directed=True))


def looped() -> Graph:
    drawn = nx.cycle_graph(6)
    drawn.add_edges_from([(0, 0), (3, 3), (1, 4)])
    return as_graph(drawn)


def featured() -> Graph:
    features = torch.randn(
        PLAIN.edges.shape[1], 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64
    )
    return as_graph(PLAIN.edges, edge_features=features)


def drawn(graph: Graph, width: int) -> Tensor:
    source = torch.Generator().manual_seed(1)
    return torch.randn(graph.nodes, width, generator=source, dtype=torch.float64)


def network(i: int, o: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(i, 7), nn.Tanh(), nn.Linear(7, o))


CASES: list[tuple[str, Callable[[], nn.Module], Callable[[], Graph]]] = [
    ("gcn", lambda: peer.GCNConv(5, 4), lambda: PLAIN),
    ("gcn narrow to wide", lambda: peer.GCNConv(5, 9), lambda: PLAIN),
    ("gcn weights", lambda: peer.GCNConv(5, 4), lambda: KARATE),
    ("gcn isolated", lambda: peer.GCNConv(5, 4), with_isolated),
    ("gcn directed", lambda: peer.GCNConv(5, 4, bias=False), directed),
    ("gcn loops", lambda: peer.GCNConv(5, 4), looped),
    ("gat", lambda: peer.GATConv(5, 4), lambda: PLAIN),
    ("gat heads", lambda: peer.GATConv(5, 4, heads=3, negative_slope=0.1), lambda: PLAIN),
    ("gat mean", lambda: peer.GATConv(5, 4, heads=3, concat=False), with_isolated),
    ("gat directed", lambda: peer.GATConv(5, 4, heads=2, bias=False), directed),
    ("gat loops", lambda: peer.GATConv(5, 4, heads=2), looped),
    ("gat alone", lambda: peer.GATConv(5, 4, heads=2, add_self_loops=False), with_isolated),
    ("gat edges", lambda: peer.GATConv(5, 4, heads=2, edge_dim=3), featured),
    ("gin", lambda: peer.GINConv(network(5, 4), eps=0.3), lambda: PLAIN),
    ("gin learned", lambda: peer.GINConv(network(5, 4), eps=0.3, train_eps=True), directed),
    ("chebyshev", lambda: peer.ChebConv(5, 4, K=4), lambda: PLAIN),
    ("chebyshev one", lambda: peer.ChebConv(5, 4, K=1, bias=False), lambda: PLAIN),
    ("chebyshev weights", lambda: peer.ChebConv(5, 4, K=3), lambda: KARATE),
    ("chebyshev isolated", lambda: peer.ChebConv(5, 4, K=3), with_isolated),
]


#: Edges in no order, some listed twice or three times, two loops twice, some in one direction only.
LISTED = torch.tensor(
    [
        [0, 1, 0, 1, 2, 2, 2, 3, 3, 4, 4, 0, 5, 1, 3, 4],
        [1, 0, 1, 2, 1, 3, 3, 3, 3, 0, 0, 4, 5, 2, 4, 0],
    ]
)
BOTH_WAYS = torch.cat([LISTED, LISTED.flip(0)], 1)
SEVERAL: list[tuple[str, Callable[[], nn.Module]]] = [
    ("gcn", lambda: peer.GCNConv(5, 4)),
    ("gat", lambda: peer.GATConv(5, 4, heads=2)),
    ("gat alone", lambda: peer.GATConv(5, 4, heads=2, add_self_loops=False)),
    ("gin", lambda: peer.GINConv(network(5, 4), eps=0.3)),
    ("chebyshev", lambda: peer.ChebConv(5, 4, K=4)),
]


def own_weights(layer: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        for parameter in layer.double().parameters():
            nn.init.normal_(parameter, std=0.5)
    return layer


@pytest.mark.parametrize(("name", "make"), SEVERAL, ids=[c[0] for c in SEVERAL])
@pytest.mark.parametrize("ways", ["both ways", "one way"])
def test_edges_that_are_listed_several_times_count_as_often(
    name: str, make: Callable[[], nn.Module], ways: str
) -> None:
    edges = BOTH_WAYS if ways == "both ways" else LISTED
    if name == "chebyshev":
        edges = BOTH_WAYS[:, BOTH_WAYS[0] != BOTH_WAYS[1]]  # a Laplacian, without loops
    theirs = own_weights(make())
    graph = as_graph(edges, nodes=7)
    x = drawn(graph, 5)
    wanted = theirs(x, edges)
    for given in (edges, graph):
        found = from_pyg(theirs)(x, as_graph(given, nodes=7) if given is edges else given)
        torch.testing.assert_close(found, wanted, atol=1e-11, rtol=1e-11)
    torch.testing.assert_close(TakesGraph(theirs, "edge_index")(x, graph), wanted)
    # and there and back again
    data = graph.to_pyg(x)
    assert data.edge_index.shape == edges.shape
    torch.testing.assert_close(theirs(x, data.edge_index), wanted, atol=1e-11, rtol=1e-11)
    union = graph_union([graph, PLAIN, graph])
    joint = from_pyg(theirs)(torch.cat([x, drawn(PLAIN, 5), x]), union)
    torch.testing.assert_close(joint[-7:], wanted, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("make", [c[1] for c in SEVERAL if c[0] in ("gcn", "chebyshev")])
def test_weights_of_edges_that_are_listed_several_times_are_added(
    make: Callable[[], nn.Module],
) -> None:
    edges = BOTH_WAYS[:, BOTH_WAYS[0] != BOTH_WAYS[1]]
    half = edges.shape[1] // 2
    weights = torch.rand(half, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = torch.cat([weights, weights])
    theirs = own_weights(make())
    graph = as_graph(edges, nodes=7, weights=weights)
    x = drawn(graph, 5)
    wanted = theirs(x, edges, weights)
    torch.testing.assert_close(from_pyg(theirs)(x, graph), wanted, atol=1e-11, rtol=1e-11)
    data = graph.to_pyg()
    again = theirs(x, data.edge_index, data.edge_weight)
    torch.testing.assert_close(again, wanted, atol=1e-11, rtol=1e-11)


def test_weights_that_add_up_to_1_are_not_lost_on_the_way() -> None:
    edges = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0]])
    graph = as_graph(edges, nodes=2, weights=torch.full((4,), 0.5))
    data = graph.to_pyg()
    assert data.edge_weight.tolist() == [0.5] * 4
    assert as_graph(data).adjacency().tolist() == graph.adjacency().tolist() == [[0, 1], [1, 0]]


def test_parallel_edges_by_hand() -> None:
    graph = as_graph(torch.tensor([[0, 0, 1, 1, 2, 2], [1, 1, 0, 0, 2, 2]]))
    assert graph.adjacency().tolist() == [[0, 2, 0], [2, 0, 0], [0, 0, 2]]
    assert graph.degrees().tolist() == [2, 2, 2]
    x = torch.tensor([[1.0], [10.0], [100.0]]).double()
    assert MessagePassing()(x, graph).flatten().tolist() == [20.0, 2.0, 200.0]
    assert MessagePassing(aggregate="mean")(x, graph).flatten().tolist() == [10.0, 1.0, 100.0]
    third = gcn_coupling(graph).dense() * 3  # degrees 3, 3 and 1: a loop is the node itself
    torch.testing.assert_close(third, torch.tensor([[1.0, 2, 0], [2, 1, 0], [0, 0, 3]]).double())
    assert graph.coupled_degrees().tolist() == [3, 3, 1]
    assert graph_laplacian(graph).dense().tolist() == [[2, -2, 0], [-2, 2, 0], [0, 0, 0]]
    # missing reverses are added as often as an edge is listed
    one_way = as_graph(torch.tensor([[0, 0, 1, 2], [1, 1, 0, 1]]), nodes=3, directed=False)
    assert one_way.adjacency().tolist() == [[0, 2, 0], [2, 0, 1], [0, 1, 0]]
    assert as_graph(torch.tensor([[0, 0, 1], [1, 1, 0]])).directed


def peer_output(layer: nn.Module, x: Tensor, graph: Graph) -> Tensor:
    extras: dict[str, Any] = {}
    if graph.weights is not None and not isinstance(layer, peer.GATConv | peer.GINConv):
        extras["edge_weight"] = graph.weights
    if graph.edge_features is not None:
        extras["edge_attr"] = graph.edge_features
    made: Tensor = layer(x, graph.edges, **extras)
    return made


def gradients(function: Callable[[Tensor], Tensor], x: Tensor, network: nn.Module) -> list[Tensor]:
    x = x.clone().requires_grad_()
    out = function(x)
    probe = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    network.zero_grad()
    (out * probe).sum().backward()
    assert x.grad is not None
    return [out.detach(), x.grad]


@pytest.mark.parametrize(("name", "make", "graph_of"), CASES, ids=[c[0] for c in CASES])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "single"])
def test_values_and_gradients_are_those_of_pytorch_geometric(
    name: str, make: Callable[[], nn.Module], graph_of: Callable[[], Graph], dtype: torch.dtype
) -> None:
    graph = graph_of()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        theirs = make().double()
        for parameter in theirs.parameters():
            nn.init.normal_(parameter, std=0.5)
    theirs = theirs.to(dtype)
    ours = from_pyg(theirs)
    x = drawn(graph, 5).to(dtype)
    if graph.edge_features is not None:
        graph = as_graph(graph.edges, edge_features=graph.edge_features.to(dtype))
    if graph.weights is not None:
        graph = as_graph(graph.edges, weights=graph.weights.to(dtype))
    wanted = gradients(lambda x: peer_output(theirs, x, graph), x, theirs)
    within = 1e-11 if dtype == torch.float64 else 1e-4
    for layer in (ours, from_pyg(to_pyg(ours))):
        found = gradients(lambda x, layer=layer: layer(x, graph), x, layer)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, atol=within, rtol=within)
        for a, b in weight_gradients(layer, theirs):
            torch.testing.assert_close(a, b, atol=within, rtol=within)


def weight_gradients(ours: nn.Module, theirs: Any) -> list[tuple[Tensor, Tensor]]:
    """Pairs of gradients that belong together."""
    pairs = []
    if isinstance(ours, GraphConvolution):
        pairs.append((ours.linear.weight.grad, theirs.lin.weight.grad))
    if isinstance(ours, GraphAttention):
        pairs.append((ours.values.grad, theirs.lin.weight.grad))
        pairs.append((ours.receiving.grad, theirs.att_dst.grad[0]))
        pairs.append((ours.sending.grad, theirs.att_src.grad[0]))
    if isinstance(ours, GraphIsomorphism):
        both = zip(ours.network.parameters(), theirs.nn.parameters(), strict=True)
        pairs += [(a.grad, b.grad) for a, b in both]
        if isinstance(ours.epsilon, nn.Parameter):
            pairs.append((ours.epsilon.grad, theirs.eps.grad.reshape(1)))
    if isinstance(ours, ChebyshevConvolution):
        pairs.append((ours.weight.grad, torch.stack([lin.weight.grad.T for lin in theirs.lins])))
    if getattr(ours, "bias", None) is not None:
        pairs.append((ours.bias.grad, theirs.bias.grad))  # type: ignore[union-attr]
    assert pairs
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def test_wide_features_in_single_precision_take_another_kernel_and_agree() -> None:
    x = drawn(PLAIN, 48)
    coupling = gcn_coupling(PLAIN)
    torch.testing.assert_close(
        (coupling @ x.float()).double(), coupling.dense() @ x, atol=1e-5, rtol=1e-5
    )
    layer = GraphAttention(48, 40, heads=2)
    exact = layer(x, PLAIN)
    torch.testing.assert_close(
        layer.float()(x.float(), PLAIN).double(), exact, atol=1e-4, rtol=1e-4
    )


def test_products_can_be_differentiated_twice_and_under_func() -> None:
    graph = directed()
    x = drawn(graph, 2)[:, :2].requires_grad_()
    for layer in (
        GraphConvolution(2, 2),
        GraphAttention(2, 2, heads=2, activation="tanh"),
        ChebyshevConvolution(2, 2, 2),
        MessagePassing(aggregate="max"),
    ):
        on = as_graph(nx.path_graph(4)) if isinstance(layer, ChebyshevConvolution) else graph
        y = x[: on.nodes]
        assert torch.autograd.gradgradcheck(lambda y, layer=layer, on=on: layer(y, on).sin(), (y,))
        by_func = torch.func.jacrev(lambda y, layer=layer, on=on: layer(y, on))(y.detach())
        plain = torch.autograd.functional.jacobian(
            lambda y, layer=layer, on=on: layer(y, on), y.detach()
        )
        torch.testing.assert_close(by_func, plain)


def test_several_sets_of_features_at_once() -> None:
    x = torch.stack([drawn(PLAIN, 5), 2 * drawn(PLAIN, 5)])
    for layer in (
        GraphConvolution(5, 3),
        GCN([5, 4, 2]),
        ChebyshevConvolution(5, 3, 2),
        PolynomialGraphConvolution(5, 3, 2),
        GraphIsomorphism(nn.Linear(5, 2).double()),
        MessagePassing(aggregate="sum"),
        MessagePassing(aggregate="mean"),
        MessagePassing(aggregate="max"),
    ):
        both = layer(x, PLAIN)
        torch.testing.assert_close(both, torch.stack([layer(x[0], PLAIN), layer(x[1], PLAIN)]))


def test_a_union_is_each_graph_alone() -> None:
    parts = [nx.cycle_graph(5), nx.star_graph(3), nx.path_graph(2)]
    union = graph_union(parts)
    x = drawn(union, 3)
    rows = x.split([5, 4, 2])
    for layer in (
        GCN([3, 4, 2]),
        GraphAttention(3, 2, heads=2),
        ChebyshevConvolution(3, 2, 3),
        MessagePassing(aggregate="max"),
    ):
        alone = torch.cat([layer(r, p) for r, p in zip(rows, parts, strict=True)])
        torch.testing.assert_close(layer(x, union), alone)
    for how, function in (("sum", torch.sum), ("mean", torch.mean), ("max", torch.amax)):
        wanted = torch.stack([function(r, 0) for r in rows])
        torch.testing.assert_close(pooled_nodes(x, union, how), wanted)  # type: ignore[arg-type]
    assert pooled_nodes(x, as_graph(torch.zeros(11, 11)), "sum").shape == (1, 3)


@pytest.mark.parametrize("how", ["sum", "mean", "max"])
def test_aggregation_against_loops(how: str) -> None:
    graph = with_isolated()
    x = drawn(graph, 3)
    found = MessagePassing(nn.Tanh(), lambda x, z: x - z, how)(x, graph)  # type: ignore[arg-type]
    A = graph.adjacency()
    for m in range(graph.nodes):
        near = x[A[:, m] > 0].tanh()
        reduced = {
            "sum": lambda t: t.sum(0),
            "mean": lambda t: t.mean(0),
            "max": lambda t: t.amax(0),
        }[how]
        gathered = reduced(near) if len(near) else torch.zeros(3)
        torch.testing.assert_close(found[m], x[m] - gathered)


def test_polynomial_convolution_channel_by_channel() -> None:
    layer = PolynomialGraphConvolution(3, 2, 4, normalized=False)
    with torch.no_grad():
        layer.bias.copy_(torch.tensor([1.0, -2.0]))
    x, L = drawn(KARATE, 3), graph_laplacian(KARATE).dense()
    powers = [torch.linalg.matrix_power(L, k) for k in range(5)]
    for m in range(2):
        by_hand = layer.bias[m] * torch.ones(KARATE.nodes).double()
        for n in range(3):
            by_hand = by_hand + sum(
                layer.coefficients[m, n, k] * (powers[k] @ x[:, n]) for k in range(5)
            )
        torch.testing.assert_close(layer(x, KARATE)[:, m], by_hand)


def test_combinatorial_chebyshev_layers_against_the_eigenbasis() -> None:
    layer = ChebyshevConvolution(3, 2, 5, normalized=False, bias=False)
    x, L = drawn(PLAIN, 3), graph_laplacian(PLAIN).dense()
    bound = 2 * float(PLAIN.degrees().max())
    values, U = torch.linalg.eigh(2 / bound * L - torch.eye(34).double())
    assert float(values.min()) >= -1 - 1e-12
    assert float(values.max()) <= 1 + 1e-12
    angles = values.clamp(-1, 1).arccos()
    wanted = sum(U @ ((k * angles).cos()[:, None] * (U.T @ x)) @ layer.weight[k] for k in range(6))
    torch.testing.assert_close(layer(x, PLAIN), wanted)


def test_attention_matrices() -> None:
    layer = GraphAttention(5, 3, heads=2, bias=False)
    x, graph = drawn(PLAIN, 5), PLAIN
    Q = layer.attention(x, graph)
    torch.testing.assert_close(Q.sum(2), torch.ones(2, 34).double())
    allowed = graph.adjacency() + torch.eye(34).double()
    assert bool((Q[:, allowed == 0] == 0).all())
    by_hand = torch.cat([Q[h] @ x @ layer.projections()[h].T for h in range(2)], 1)
    torch.testing.assert_close(layer(x, graph), by_hand)


def test_no_edges_is_a_feedforward_network() -> None:
    net = GCN([4, 6, 3])
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first, second = (layer.linear for layer in net.layers)
    torch.testing.assert_close(net(x, torch.zeros(5, 5)), second(first(x).relu()))


def test_data_of_pytorch_geometric_is_a_graph_for_layers() -> None:
    data = Data(edge_index=PLAIN.edges, num_nodes=34)
    net, x = GCN([5, 4, 2]), drawn(PLAIN, 5)
    torch.testing.assert_close(net(x, data), net(x, PLAIN))
    torch.testing.assert_close(OnGraph(net, data)(x), net(x, PLAIN))


def test_the_same_seed_gives_the_same_weights_and_torch_draws_nothing() -> None:
    before = torch.get_rng_state()
    one, other = GCN([5, 4, 2], generator=7), GCN([5, 4, 2], generator=7)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    for layer in (
        one.layers[0],
        GraphAttention(3, 2, edge_features=2),
        GraphIsomorphism(nn.Identity()),
        ChebyshevConvolution(3, 2, 2),
    ):
        to_pyg(layer)  # type: ignore[arg-type]
    assert torch.equal(before, torch.get_rng_state())


def test_bad_input_is_refused_in_a_sentence() -> None:
    layer, x = GraphConvolution(5, 3), drawn(PLAIN, 5)
    for call, error, words in (
        (lambda: layer(x[:3], PLAIN), ShapeMismatch, r"features \[34, 5\].*not \[3, 5\]"),
        (lambda: layer(x[:, :2], PLAIN), ShapeMismatch, r"not \[34, 2\]"),
        (lambda: layer(x[0], PLAIN), ShapeMismatch, r"not \[5\]"),
        (lambda: layer(x.float(), PLAIN), InvalidType, "float64 and the features torch.float32"),
        (lambda: layer(x.long(), PLAIN), InvalidType, "floating-point"),
        (lambda: layer(x, -PLAIN.adjacency()), InvalidInput, "weights >= 0"),
        (lambda: GraphAttention(5, 3)(x, featured()), InvalidInput, "edge_features=3"),
        (
            lambda: GraphAttention(5, 3, edge_features=3)(x, PLAIN),
            ShapeMismatch,
            "takes 3 features per edge, and the graph has none",
        ),
        (lambda: GraphAttention(5, 3)(x[None], PLAIN), ShapeMismatch, "here"),
        (lambda: GCN([5]), InvalidInput, "input and an output width"),
        (
            lambda: ChebyshevConvolution(5, 3, 2)(x[:25], directed()),
            InvalidInput,
            "needs an undirected graph",
        ),
        (lambda: from_pyg(nn.Linear(2, 2)), InvalidType, "GCNConv"),
        (lambda: from_pyg(peer.GCNConv(2, 2, improved=True)), UnsupportedModel, "improved=True"),
        (lambda: to_pyg(GraphAttention(2, 2, activation="tanh")), UnsupportedModel, "leaky"),
    ):
        with pytest.raises(error, match=words) as refused:
            call()
        assert "\n" not in str(refused.value)


def test_loops_of_the_graph_as_pytorch_geometric_treats_them() -> None:
    graph = as_graph(torch.tensor([[0, 1, 1, 2, 0, 2], [1, 0, 2, 1, 0, 2]]), nodes=4)
    x = drawn(graph, 5)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [peer.GCNConv(5, 3), peer.GATConv(5, 3), peer.ChebConv(5, 3, 4)]
    for theirs in (layer.double() for layer in layers):
        wanted = theirs(x, graph.edges)
        torch.testing.assert_close(from_pyg(theirs)(x, graph), wanted, atol=1e-11, rtol=1e-11)


def test_derivatives_in_edge_features_and_in_forward_mode() -> None:
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    features = torch.randn(4, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = peer.GATConv(5, 3, heads=2, edge_dim=2).double()
    ours = from_pyg(theirs)
    slopes = []
    for call in (
        lambda e: theirs(x, edges, e),
        lambda e: ours(x, as_graph(edges, edge_features=e)),
    ):
        given = features.clone().requires_grad_()
        call(given).square().sum().backward()
        slopes.append(given.grad)
    assert slopes[0].abs().max() > 0
    torch.testing.assert_close(slopes[1], slopes[0], atol=1e-11, rtol=1e-11)
    graph = as_graph(edges, edge_features=features)
    torch.testing.assert_close(
        torch.func.jacfwd(lambda x: ours(x, graph))(x),
        torch.func.jacrev(lambda x: ours(x, graph))(x),
    )


def test_relabeling_takes_edge_features_and_weights_along() -> None:
    edges = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    features = torch.randn(6, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    graph = as_graph(edges, edge_features=features)
    assert graph_equivariance(GraphAttention(5, 3, edge_features=2), drawn(graph, 5), graph).exact
    weighted = as_graph(edges, weights=torch.arange(1, 7).double())
    x = drawn(weighted, 5)
    assert graph_equivariance(MessagePassing(), x, weighted).exact
    assert graph_equivariance(lambda x, a: a.T @ x, x, weighted, takes="adjacency").exact
    fixed = weighted.adjacency()
    assert not graph_equivariance(lambda x, a: fixed @ x, x, weighted, takes="adjacency").exact


def test_precisions_and_widths_are_refused_in_a_sentence() -> None:
    x = drawn(PLAIN, 5)
    with pytest.raises(InvalidType, match=r"weights are torch.float32 and the features"):
        GraphIsomorphism(nn.Linear(5, 2))(x, PLAIN)
    with pytest.raises(InvalidType, match="single or double precision"):
        GCN([5, 2]).bfloat16()(x.bfloat16(), PLAIN)
    with pytest.raises(InvalidType, match="widths must be a list"):
        GCN(3)  # type: ignore[arg-type]
