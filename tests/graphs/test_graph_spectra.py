"""Laplacians, transforms, filters, smoothing, and classification of nodes."""

import math

import networkx as nx
import numpy as np
import pytest
import torch
import torch_geometric.nn as peer
from torch import Tensor, nn

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    LabelOutOfRange,
    NonFinite,
    ShapeMismatch,
)
from torchtheory.graphs.convolutions import GCN, GraphConvolution
from torchtheory.graphs.graph_attention import GraphAttention
from torchtheory.graphs.graph_reading import as_graph
from torchtheory.graphs.laplacians import (
    gcn_coupling,
    graph_laplacian,
    laplacian,
    neighbor_sums,
    sphere_mean_excess,
)
from torchtheory.graphs.message_passing import MessagePassing
from torchtheory.graphs.node_classification import fit_nodes
from torchtheory.graphs.over_smoothing import (
    dirichlet_energy,
    layer_energies,
    second_modulus,
    smoothing_curve,
    smoothing_limit,
)
from torchtheory.graphs.relabeling import graph_equivariance
from torchtheory.graphs.spectral import (
    chebyshev_filter,
    graph_fourier,
    heat_diffusion,
    polynomial_filter,
    spectral_filter,
)

KARATE = nx.karate_club_graph()


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def connected(nodes: int, seed: int) -> nx.Graph:
    graph = nx.gnp_random_graph(nodes, 0.15, seed=seed)
    graph.add_edges_from(zip(range(nodes - 1), range(1, nodes), strict=True))
    return graph


# -- Laplacians ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_laplacians_are_those_of_networkx(seed: int) -> None:
    graph = nx.gnp_random_graph(30, 0.08, seed=seed)  # with isolated nodes
    for weighted in (False, True):
        if weighted:
            draw = np.random.default_rng(seed)
            for *_, data in graph.edges(data=True):
                data["weight"] = float(draw.uniform(0.5, 2))
        plain = nx.laplacian_matrix(graph).toarray()
        normal = nx.normalized_laplacian_matrix(graph).toarray()
        assert graph_laplacian(graph).dense().numpy() == pytest.approx(plain)
        found = graph_laplacian(graph, normalized=True).dense().numpy()
        assert found == pytest.approx(normal)


def test_loops_cancel_in_the_laplacian() -> None:
    looped = nx.path_graph(3)
    looped.add_edge(1, 1, weight=5.0)
    without = graph_laplacian(nx.path_graph(3)).dense()
    assert torch.equal(graph_laplacian(looped).dense(), without)


def test_laplacian_of_functions() -> None:
    x = drawn(5, 3)
    assert laplacian(lambda x: x[:, 0] * x[:, 1] + 2, x).tolist() == [0] * 5
    assert laplacian(lambda x: x @ torch.ones(3).double(), x).tolist() == [0] * 5
    assert laplacian(lambda x: torch.ones(5), x).tolist() == [0] * 5
    torch.testing.assert_close(
        laplacian(lambda x: (x[:, 0] * 2).sin(), x), -4 * (2 * x[:, 0]).sin()
    )
    with pytest.raises(ShapeMismatch, match="one number per point"):
        laplacian(lambda x: x, x)


def test_mean_over_spheres_in_one_dimension_is_two_points() -> None:
    x = drawn(4, 1)
    found = sphere_mean_excess(lambda x: x[:, 0] ** 3, x, 0.5)
    torch.testing.assert_close(found, 3 * x[:, 0] * 0.25)


# -- transforms and filters ------------------------------------------------------------------------


def test_fourier_basis_diagonalizes_and_fixes_signs() -> None:
    fourier = graph_fourier(KARATE)
    L, U = graph_laplacian(KARATE).dense(), fourier.basis
    torch.testing.assert_close(U.T @ L @ U, fourier.frequencies.diag(), atol=1e-10, rtol=0)
    largest = U.gather(0, U.abs().argmax(0, keepdim=True))
    assert bool((largest > 0).all())
    x = drawn(34, 2)
    torch.testing.assert_close(fourier.inverse(fourier.transform(x)), x)
    low = graph_fourier(KARATE, lowest=4)
    torch.testing.assert_close(low.frequencies, fourier.frequencies[:4], atol=1e-6, rtol=0)
    assert low.basis.shape == (34, 4)


def test_filters_agree_with_each_other() -> None:
    graph = connected(40, 3)
    x = drawn(40, 3)
    L = graph_laplacian(graph).dense()
    heat = torch.matrix_exp(-0.7 * L) @ x
    response = lambda f: (-0.7 * f).exp()  # noqa: E731 - used thrice
    torch.testing.assert_close(spectral_filter(graph, response, x), heat)
    torch.testing.assert_close(chebyshev_filter(graph, response, x, 60), heat)
    torch.testing.assert_close(heat_diffusion(graph, x, 0.7), heat)
    torch.testing.assert_close(heat_diffusion(graph, x[:, 0], 0.7), heat[:, 0])
    alpha = drawn(5, seed=4)
    for normalized in (False, True):
        poly = polynomial_filter(graph, alpha, x, normalized=normalized)
        values = spectral_filter(
            graph, lambda f: sum(a * f**k for k, a in enumerate(alpha)), x, normalized=normalized
        )
        torch.testing.assert_close(poly, values)
        exact = chebyshev_filter(
            graph,
            lambda f: sum(a * f**k for k, a in enumerate(alpha)),  # type: ignore[arg-type,return-value]
            x,
            4,
            normalized=normalized,
        )
        torch.testing.assert_close(exact, poly)


def test_polynomial_filters_are_differentiable_in_their_coefficients() -> None:
    alpha, x = drawn(3).requires_grad_(), drawn(34, 2).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda a, x: polynomial_filter(KARATE, a, x, normalized=True), (alpha, x)
    )


def test_filters_in_single_precision_and_on_a_graph_without_edges() -> None:
    x = drawn(34, 2)
    single = spectral_filter(KARATE, lambda f: 1 / (1 + f), x.float())
    assert single.dtype == torch.float32
    double = spectral_filter(KARATE, lambda f: 1 / (1 + f), x)
    torch.testing.assert_close(single.double(), double, atol=1e-5, rtol=1e-4)
    none = torch.zeros(34, 34)
    torch.testing.assert_close(chebyshev_filter(none, lambda f: f + 3, x, 2), 3 * x)
    torch.testing.assert_close(heat_diffusion(none, x, 2.0), x)


def test_refused_spectra() -> None:
    one_way = torch.tensor([[0, 1, 2], [1, 2, 0]])
    x = drawn(34)
    for call, error, words in (
        (lambda: graph_laplacian(one_way), InvalidInput, "needs an undirected graph"),
        (lambda: graph_fourier(-torch.ones(2, 2)), InvalidInput, "weights >= 0"),
        (lambda: spectral_filter(KARATE, lambda f: 1 / f.round(), x), NonFinite, "finite on the"),
        (lambda: spectral_filter(KARATE, lambda f: f[:3], x), ShapeMismatch, "one number per"),
        (lambda: spectral_filter(KARATE, lambda f: f, x[:4]), ShapeMismatch, r"not \[4\]"),
        (lambda: polynomial_filter(KARATE, [1.0], x.long()), InvalidType, "floating-point"),
        (lambda: polynomial_filter(KARATE, [], x), EmptyData, "empty"),
        (lambda: polynomial_filter(KARATE, [math.nan], x), NonFinite, "coefficients"),
        (lambda: dirichlet_energy(drawn(3, 1), one_way), InvalidInput, "undirected"),
        (lambda: smoothing_curve(KARATE, drawn(3, 1), 3), ShapeMismatch, r"not \[3, 1\]"),
        (lambda: heat_diffusion(KARATE, x, -1.0), InvalidInput, "time must be"),
    ):
        with pytest.raises(error, match=words) as refused:
            call()
        assert "\n" not in str(refused.value)


# -- smoothing -------------------------------------------------------------------------------------


def test_energy_is_the_quadratic_form() -> None:
    x = drawn(34, 3)
    plain, coupling = graph_laplacian(KARATE).dense(), gcn_coupling(KARATE).dense()
    wanted = (x * (plain @ x)).sum()
    torch.testing.assert_close(dirichlet_energy(x, KARATE, normalized=False), wanted)
    torch.testing.assert_close(dirichlet_energy(x, KARATE), (x * (x - coupling @ x)).sum())
    both = dirichlet_energy(torch.stack([x, 2 * x]), KARATE)
    torch.testing.assert_close(both[1], 4 * both[0])
    assert float(dirichlet_energy(smoothing_limit(x, KARATE), KARATE)) < 1e-25


def test_limit_and_rate_on_several_components() -> None:
    graph = nx.disjoint_union(connected(12, 1), connected(9, 2))
    graph.add_node("alone")
    x = drawn(22, 2)
    coupling = gcn_coupling(graph).dense()
    power = torch.linalg.matrix_power(coupling, 4000)
    torch.testing.assert_close(smoothing_limit(x, graph), power @ x)
    moduli = torch.linalg.eigvalsh(coupling).abs().sort(descending=True).values
    assert second_modulus(graph) == pytest.approx(float(moduli[3]))
    curve = smoothing_curve(graph, x, 15)
    assert curve.components == 3
    assert bool((curve.distances <= curve.bound * (1 + 1e-9)).all())
    assert bool((curve.energies <= curve.energy_bound * (1 + 1e-9)).all())


def test_large_graphs_by_lanczos_are_the_dense_value() -> None:
    graph = connected(600, 5)
    moduli = torch.linalg.eigvalsh(gcn_coupling(graph).dense()).abs().sort(descending=True).values
    assert second_modulus(graph) == pytest.approx(float(moduli[1]), rel=1e-6)


def test_spread_is_the_root_mean_square_over_pairs() -> None:
    x = drawn(34, 2)
    curve = smoothing_curve(KARATE, x, 1)
    A = as_graph(KARATE).adjacency()
    rows = x / (1 + A.sum(0)).sqrt().unsqueeze(1)
    assert float(curve.spread[0]) == pytest.approx(float(torch.pdist(rows).square().mean().sqrt()))
    assert curve.rate**curve.half_depth == pytest.approx(0.5)


def test_energies_by_layer_leave_the_network_alone() -> None:
    net = GCN([3, 8, 8, 2]).train()
    x = drawn(34, 3)
    found = layer_energies(net, x, KARATE)
    assert found.names == ["input", "layers.0", "activation", "layers.1", "activation", "layers.2"]
    inside = net.layers[0](x, KARATE)
    torch.testing.assert_close(found.energies[1], dirichlet_energy(inside, KARATE).detach())
    assert float(found.shares.max()) <= 2
    assert net.training
    assert not any(m._forward_hooks for m in net.modules())
    edges = as_graph(KARATE).edges
    theirs = nn.ModuleList([peer.GCNConv(3, 4), peer.GCNConv(4, 2)]).double()
    stack = nn.Sequential(*theirs)
    by_peer = layer_energies(stack, x, KARATE, call=lambda net, x: net[1](net[0](x, edges), edges))
    assert [n for n in by_peer.names if n.isdigit()] == ["0", "1"]
    wanted = dirichlet_energy(stack[0](x, edges), KARATE)
    torch.testing.assert_close(by_peer.energies[by_peer.names.index("0")], wanted.detach())
    written_over = GCN([3, 8, 2], nn.ReLU(inplace=True))
    with_copy = GCN([3, 8, 2], nn.ReLU())
    torch.testing.assert_close(
        layer_energies(written_over, x, KARATE).energies,
        layer_energies(with_copy, x, KARATE).energies,
    )
    with pytest.raises(InvalidInput, match="no module"):
        layer_energies(nn.Flatten(0), x, KARATE, call=lambda net, x: net(x))


# -- relabeling ------------------------------------------------------------------------------------


def test_layers_are_equivariant_and_flattened_matrices_are_not() -> None:
    x = drawn(34, 3)
    for layer in (GCN([3, 5, 2]), GraphAttention(3, 2, heads=2)):
        assert graph_equivariance(layer, x, KARATE).exact
    theirs = peer.GCNConv(3, 2).double()
    assert graph_equivariance(theirs, x, KARATE, takes="edges").exact
    flat = nn.Linear(34 * 34, 34).double()
    broken = graph_equivariance(lambda x, A: flat(A.flatten()), x, KARATE, takes="adjacency")
    assert not broken.exact
    assert broken.largest > 0.1
    total = graph_equivariance(lambda x, g: x.sum(), x, KARATE, invariant=True)
    assert total.exact
    assert not graph_equivariance(lambda x, g: x[0], x, KARATE, invariant=True).exact


def test_equivariance_of_directed_graphs_and_weights() -> None:
    one_way = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]])
    x = drawn(3, 2)
    assert graph_equivariance(GraphConvolution(2, 2), x, as_graph(one_way)).exact
    sums = graph_equivariance(lambda x, g: neighbor_sums(g) @ x, drawn(34, 2), KARATE)
    assert sums.exact


# -- classification --------------------------------------------------------------------------------


def test_classification_of_karate_club() -> None:
    labels = torch.tensor([int(KARATE.nodes[i]["club"] != "Mr. Hi") for i in KARATE])
    net = GCN([34, 8, 2], generator=1)
    before = [p.clone() for p in net.parameters()]
    fit = fit_nodes(net, torch.eye(34).double(), KARATE, labels, torch.tensor([0, 33]))
    assert fit.known_accuracy == 1
    assert fit.other_accuracy > 0.9
    assert float(fit.losses[-1]) < 0.1 * float(fit.losses[0])
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_dropout_draws_from_the_generator_that_is_given() -> None:
    class Dropping(GCN):
        def forward(self, x: Tensor, graph: object) -> Tensor:
            return super().forward(nn.functional.dropout(x, 0.5, self.training), graph)

    labels = torch.arange(34) % 2
    before = torch.get_rng_state()
    runs = [
        fit_nodes(
            Dropping([3, 4, 2]), drawn(34, 3), KARATE, labels, labels == 0, steps=3, generator=s
        )
        for s in (1, 1, 2)
    ]
    assert torch.equal(runs[0].losses, runs[1].losses)
    assert not torch.equal(runs[0].losses, runs[2].losses)
    assert torch.equal(before, torch.get_rng_state())


def test_refused_classification() -> None:
    net, x = GCN([3, 2]), drawn(34, 3)
    labels = torch.zeros(34, dtype=torch.int64)
    known = torch.tensor([0])
    for call, error, words in (
        (lambda: fit_nodes(net, x, KARATE, labels + 2, known), LabelOutOfRange, "0 to 1"),
        (lambda: fit_nodes(net, x, KARATE, labels[:3], known), ShapeMismatch, r"not \[3\]"),
        (lambda: fit_nodes(net, x, KARATE, labels, known[:0]), EmptyData, "no node is known"),
        (lambda: fit_nodes(net, x, KARATE, labels, known + 40), LabelOutOfRange, "0 to 33"),
        (lambda: fit_nodes(net, x, KARATE, labels.double(), known), InvalidType, "whole numbers"),
    ):
        with pytest.raises(error, match=words):
            call()


def test_filters_of_several_sets_of_signals() -> None:
    path = as_graph(nx.path_graph(4))
    L = graph_laplacian(path).dense()
    x = torch.randn(4, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(spectral_filter(path, lambda f: f, x), L @ x)
    torch.testing.assert_close(heat_diffusion(path, x, 0.0), x)
    with pytest.raises(InvalidType, match="must be real"):
        spectral_filter(path, lambda f: torch.exp(1j * f), x)
    with pytest.raises(InvalidType, match="must be a function"):
        chebyshev_filter(path, 3.0, x, 2)  # type: ignore[arg-type]


def test_the_laplacian_of_a_linear_network_is_zero() -> None:
    linear = nn.Linear(2, 1)
    assert laplacian(lambda x: linear(x).squeeze(1), torch.ones(3, 2)).tolist() == [0.0] * 3


def test_half_of_the_distance_of_a_slow_graph() -> None:
    nodes = 390
    curve = smoothing_curve(nx.path_graph(nodes), torch.eye(nodes, dtype=torch.float64), 1)
    assert curve.rate**curve.half_depth == pytest.approx(0.5, abs=1e-9)


def test_a_network_without_parameters_cannot_be_fitted() -> None:
    x, sides = torch.ones(3, 2), torch.tensor([0, 1, 0])
    with pytest.raises(InvalidInput, match="no parameters"):
        fit_nodes(MessagePassing(), x, nx.path_graph(3), sides, torch.tensor([0, 1]))


def test_the_second_modulus_may_be_that_of_a_negative_eigenvalue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # K_{n,n}: the coupling matrix has eigenvalues 1, 1/(n+1) and (1-n)/(n+1)
    assert second_modulus(nx.complete_bipartite_graph(6, 6)) == pytest.approx(5 / 7)
    monkeypatch.setattr("torchtheory.graphs.over_smoothing._DENSE", 3)
    assert second_modulus(nx.complete_bipartite_graph(6, 6)) == pytest.approx(5 / 7)


def test_the_slowest_wave_meets_both_bounds_of_smoothing() -> None:
    waves = torch.linalg.eigh(gcn_coupling(KARATE).dense())
    slowest = waves.eigenvectors[:, -2:-1]
    curve = smoothing_curve(KARATE, slowest, 10)
    assert curve.rate == pytest.approx(float(waves.eigenvalues[-2]))
    torch.testing.assert_close(curve.distances, curve.bound)
    torch.testing.assert_close(curve.energies, curve.energy_bound)
