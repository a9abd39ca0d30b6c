"""Graphs from everything that describes one, and what is refused."""

import math

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.utils import from_networkx

from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.graphs.graph import Graph
from torchtheory.graphs.graph_reading import as_graph, graph_union

WEIGHTED = nx.Graph()
WEIGHTED.add_weighted_edges_from([("a", "b", 2.0), ("b", "c", 0.5), ("c", "c", 3.0)])
WEIGHTED.add_node("alone")


def same(one: Graph, other: Graph) -> bool:
    return one.directed == other.directed and torch.equal(one.adjacency(), other.adjacency())


@pytest.mark.parametrize(
    "drawn",
    [nx.karate_club_graph(), WEIGHTED, nx.gnp_random_graph(30, 0.1, seed=1, directed=True)],
    ids=["karate", "weighted", "directed"],
)
def test_every_source_gives_the_same_graph(drawn: nx.Graph) -> None:
    graph = as_graph(drawn)
    matrix = nx.to_numpy_array(drawn)
    assert graph.directed is drawn.is_directed()
    assert graph.adjacency().numpy() == pytest.approx(matrix)
    assert graph.sparse().to_dense().numpy() == pytest.approx(matrix)
    assert graph.degrees().numpy() == pytest.approx(matrix.sum(0))
    for source in (
        matrix,
        torch.as_tensor(matrix),
        torch.as_tensor(matrix).to_sparse_coo(),
        graph.sparse(),
        scipy.sparse.csr_array(matrix),
        scipy.sparse.lil_matrix(matrix),
        graph.to_networkx(),
        graph.to_pyg(),
        graph,
    ):
        assert same(as_graph(source), graph)
    shuffled = torch.randperm(graph.edges.shape[1], generator=torch.Generator().manual_seed(0))
    again = as_graph(
        graph.edges[:, shuffled].numpy(),
        nodes=graph.nodes,
        weights=graph.edge_weights()[shuffled],
    )
    assert same(again, graph)
    assert torch.equal(again.edges, graph.edges)


def test_edges_are_sorted_by_target_and_listed_once() -> None:
    graph = as_graph(torch.tensor([[2, 0, 2, 1], [0, 1, 0, 0]]))
    assert graph.edges.tolist() == [[1, 2, 0], [0, 0, 1]]
    assert graph.directed
    assert graph.pointers().tolist() == [0, 2, 3, 3]


def test_weights_of_an_edge_listed_twice_are_added_and_zeros_are_no_edges() -> None:
    edges = torch.tensor([[0, 0, 1, 2], [1, 1, 2, 0]])
    graph = as_graph(edges, weights=torch.tensor([1.0, 2.0, 5.0, 0.0]))
    assert graph.adjacency().tolist() == [[0, 3, 0], [0, 0, 5], [0, 0, 0]]
    assert graph.edges.shape == (2, 2)


def test_parallel_edges_of_a_multigraph_are_added() -> None:
    graph = as_graph(nx.MultiGraph([(0, 1), (0, 1), (1, 2)]))
    assert graph.adjacency().tolist() == [[0, 2, 0], [2, 0, 1], [0, 1, 0]]


def test_reverses_are_added_on_request_with_weights_and_features() -> None:
    edges = torch.tensor([[0, 2], [1, 1]])
    features = torch.tensor([[1.0], [2.0]])
    graph = as_graph(
        edges, weights=torch.tensor([3.0, 4.0]), edge_features=features, directed=False
    )
    assert not graph.directed
    assert graph.adjacency().tolist() == [[0, 3, 0], [3, 0, 4], [0, 4, 0]]
    assert graph.edges.tolist() == [[1, 0, 2, 1], [0, 1, 1, 2]]
    assert graph.edge_features is not None
    assert graph.edge_features.flatten().tolist() == [1, 1, 2, 2]


def test_names_and_order_of_networkx_nodes() -> None:
    graph = as_graph(WEIGHTED)
    assert graph.names == ("a", "b", "c", "alone")
    assert repr(graph) == "Graph(nodes=4, edges=3, weighted)"


def test_distances_components_diameter_against_networkx() -> None:
    drawn = nx.gnp_random_graph(40, 0.07, seed=3)
    graph = as_graph(drawn)
    distances = graph.distances()
    exact = dict(nx.all_pairs_shortest_path_length(drawn))
    for i in drawn:
        for j in drawn:
            assert distances[i, j] == exact[i].get(j, math.inf)
    assert torch.equal(graph.distances([3, 5]), distances[[3, 5]])
    assert torch.equal(graph.distances(7), distances[7])
    parts = list(nx.connected_components(drawn))
    labels = graph.components()
    assert len(labels.unique()) == len(parts)
    for part in parts:
        assert len(labels[list(part)].unique()) == 1
    largest = drawn.subgraph(max(parts, key=len))
    assert as_graph(largest).diameter() == nx.diameter(largest)
    assert graph.diameter() == math.inf


@pytest.mark.parametrize("seed", range(6))
def test_diameter_by_bounds(seed: int) -> None:
    for drawn in (
        nx.random_labeled_tree(30, seed=seed),
        nx.barabasi_albert_graph(40, 2, seed=seed),
        nx.cycle_graph(5 + seed),
        nx.path_graph(seed + 1),
        nx.complete_graph(4),
    ):
        assert as_graph(drawn).diameter() == nx.diameter(drawn)


def test_distances_follow_directions() -> None:
    graph = as_graph(torch.tensor([[0, 1, 2], [1, 2, 0]]))
    assert graph.distances(0).tolist() == [0, 1, 2]
    assert graph.diameter() == 2


def test_relabeling_is_conjugation_by_the_permutation() -> None:
    graph = as_graph(WEIGHTED)
    order = [2, 0, 3, 1]
    moved = graph.relabeled(order)
    P = torch.eye(4, dtype=torch.float64)[order]
    assert torch.equal(moved.adjacency(), P @ graph.adjacency() @ P.T)
    assert moved.names == ("c", "a", "alone", "b")
    with pytest.raises(InvalidInput, match="each of the numbers 0 to 3 once"):
        graph.relabeled([0, 0, 1, 2])


def test_union_is_block_diagonal_as_in_pytorch_geometric() -> None:
    parts = [nx.path_graph(3), WEIGHTED, nx.cycle_graph(4)]
    union = graph_union(parts)
    blocks = torch.block_diag(*(as_graph(p).adjacency() for p in parts))
    assert torch.equal(union.adjacency(), blocks)
    assert union.membership is not None
    assert union.membership.tolist() == [0] * 3 + [1] * 4 + [2] * 4
    batch = Batch.from_data_list(
        [from_networkx(nx.path_graph(3)), from_networkx(nx.cycle_graph(4))]
    )
    read = as_graph(batch)
    assert same(read, graph_union([nx.path_graph(3), nx.cycle_graph(4)]))
    assert read.membership is not None
    assert read.membership.tolist() == [0, 0, 0, 1, 1, 1, 1]


def test_data_of_pytorch_geometric_keeps_weights_and_features() -> None:
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    weighted = as_graph(Data(edge_index=edges, edge_attr=torch.tensor([2.0, 2, 3, 3]), num_nodes=4))
    assert weighted.weights is not None
    assert weighted.nodes == 4
    assert not weighted.directed
    features = torch.arange(8.0).reshape(4, 2)
    featured = as_graph(Data(edge_index=edges, edge_attr=features, num_nodes=3))
    assert featured.edge_features is not None
    for (i, j), row in zip(edges.T.tolist(), features, strict=True):
        at = ((featured.edges[0] == i) & (featured.edges[1] == j)).nonzero().item()
        assert torch.equal(featured.edge_features[int(at)], row)
    back = featured.to_pyg(x=torch.ones(3, 2))
    assert torch.equal(back.edge_attr, featured.edge_features)
    assert back.num_nodes == 3


def test_what_is_computed_once_is_kept() -> None:
    graph = as_graph(nx.path_graph(3))
    assert graph.pointers() is graph.pointers()


@pytest.mark.parametrize(
    ("source", "options", "error", "words"),
    [
        (nx.Graph(), {}, EmptyData, "at least one node"),
        (torch.zeros(0, 0), {}, EmptyData, "at least one node"),
        (torch.zeros(2, 0, dtype=torch.int64), {}, EmptyData, "needs nodes="),
        (torch.zeros(3, 4), {}, ShapeMismatch, r"not \[3, 4\]"),
        (torch.zeros(2, 3), {}, ShapeMismatch, r"not \[2, 3\]"),
        (torch.zeros(3), {}, ShapeMismatch, r"not \[3\]"),
        (torch.tensor([[0, 1], [1, 5]]), {"nodes": 3}, InvalidInput, "edge 1 is 1 to 5"),
        (torch.tensor([[0, -1], [1, 0]]), {"nodes": 3}, InvalidInput, "edge 1 is -1 to 0"),
        (torch.tensor([[0, 1], [1, 0]]), {}, InvalidInput, "two edges or an adjacency matrix"),
        (torch.tensor([[0.0, math.nan], [1.0, 0]]), {}, NonFinite, "from 0 to 1 is nan"),
        (np.array([[0.0, math.inf], [1.0, 0]]), {}, NonFinite, "from 0 to 1 is inf"),
        (torch.tensor([[0.0, 1.0], [2.0, 0]]), {"directed": False}, InvalidInput, "undirected"),
        (torch.eye(2, dtype=torch.complex64), {}, InvalidType, "real"),
        (np.array([["a"]]), {}, InvalidType, "real numbers"),
        ([[0, 1], [1, 0]], {}, InvalidType, "networkx graph, an adjacency matrix"),
        (nx.path_graph(2), {"nodes": 3}, InvalidInput, "belong to a list of edges"),
        (
            torch.tensor([[0, 1, 1], [1, 0, 2]]),
            {"weights": torch.ones(2)},
            ShapeMismatch,
            r"\[3\], not \[2\]",
        ),
        (
            torch.tensor([[0, 1, 1], [1, 0, 2]]),
            {"weights": torch.tensor([1.0, 2.0, 3.0]), "directed": False},
            InvalidInput,
            "the same both ways",
        ),
        (
            torch.tensor([[0, 0, 1], [1, 1, 2]]),
            {"edge_features": torch.ones(3, 1)},
            InvalidInput,
            "listed twice",
        ),
        (
            torch.tensor([[0, 0, 1], [1, 2, 2]]),
            {"edge_features": torch.ones(3)},
            ShapeMismatch,
            r"\[3, e\]",
        ),
        (Data(edge_index=torch.tensor([[0], [4]]), num_nodes=2), {}, InvalidInput, "0 to 4"),
    ],
)
def test_refused(source: object, options: dict, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as refused:
        as_graph(source, **options)
    assert "\n" not in str(refused.value)


def test_refusals_of_methods() -> None:
    directed = as_graph(torch.tensor([[0, 1, 2], [1, 2, 0]]))
    with pytest.raises(InvalidInput, match=r"the Laplacian needs an undirected graph.*2 to 0"):
        directed.undirected("the Laplacian")
    with pytest.raises(InvalidInput, match="edge from 1 to 0 has -1"):
        as_graph(-torch.ones(2, 2) + torch.eye(2)).nonnegative("the Laplacian")
    with pytest.raises(InvalidInput, match="from 0 to 2, and a source is 3"):
        directed.distances([0, 3])
    with pytest.raises(EmptyData):
        graph_union([])


def test_directed_networkx_graphs_are_not_made_undirected_by_picking_a_weight() -> None:
    drawn = nx.DiGraph()
    drawn.add_weighted_edges_from([("a", "b", 2.0), ("b", "c", 1.0)])
    assert as_graph(drawn, directed=False).adjacency()[2, 1] == 1.0
    drawn.add_edge("b", "a", weight=3.0)
    with pytest.raises(InvalidInput, match="weighs the same both ways"):
        as_graph(drawn, directed=False)


def test_complex_matrices_are_refused_and_matrices_are_left_alone() -> None:
    with pytest.raises(InvalidType, match="must be real"):
        as_graph(scipy.sparse.csr_matrix(1j * np.eye(3)))
    given = scipy.sparse.coo_matrix((np.ones(2), ([0, 0], [1, 1])), (2, 2))
    assert as_graph(given).adjacency()[0, 1] == 2.0
    assert given.nnz == 2


def test_graphs_without_their_loops() -> None:
    graph = as_graph(WEIGHTED)
    plain = graph.without_loops()
    assert torch.equal(
        plain.adjacency(), graph.adjacency() - torch.diag(torch.tensor([0, 0, 3.0, 0]))
    )
    assert plain.without_loops() is plain
    assert graph.coupled_degrees().tolist() == [3.0, 3.5, 3.5, 1.0]
