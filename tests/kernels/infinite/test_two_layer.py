"""Two-layer networks: Gram matrices by formula, autodiff, quadrature, closed form and series."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import nn

from torchtheory.core.errors import EmptyData, InvalidInput, NonFinite, ShapeMismatch
from torchtheory.kernels.infinite.two_layer import (
    TwoLayerNetwork,
    expected_gram,
    relu_gram_coefficients,
    relu_gram_limit,
    relu_gram_series,
    sampled_gram,
    slope_of,
)
from torchtheory.kernels.learning.complexity import (
    label_complexity,
    linear_target_complexity,
    squared_kernel_norm,
)
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.primer.gaussian_pairs import gaussian_pair_mean

seeds = st.integers(0, 10_000)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def sphere(seed: int, n: int, d: int) -> torch.Tensor:
    return nn.functional.normalize(normal(seed, n, d), dim=1)


def test_forward_by_hand() -> None:
    weight = torch.tensor([[1.0, 2.0], [-1.0, 0.0], [3.0, 1.0], [0.0, 1.0]])
    net = TwoLayerNetwork(weight, torch.tensor([1.0, 1.0, -1.0, 1.0]))
    # units 3, -1, 4, 1 at (1, 1): (3 + 0 - 4 + 1) / 2
    assert float(net(torch.ones(1, 2)).detach()) == 0.0
    assert [name for name, _ in net.named_parameters()] == ["weight"]


def test_random_networks_follow_their_seed() -> None:
    one, two = (TwoLayerNetwork.random(9, 4, generator=3) for _ in range(2))
    assert torch.equal(one.weight, two.weight)
    assert set(one.outputs.tolist()) <= {-1.0, 1.0}
    assert TwoLayerNetwork.random(9, 4, outputs="ones").outputs.tolist() == [1.0] * 9


@pytest.mark.parametrize("activation", ["relu", "tanh", "softplus", torch.sin, nn.GELU()])
@pytest.mark.parametrize("outputs", ["signs", "ones"])
def test_gram_is_the_tangent_kernel(activation: object, outputs: str) -> None:
    x = normal(1, 5, 3)
    net = TwoLayerNetwork.random(11, 3, activation=activation, outputs=outputs, generator=2)
    found = sampled_gram(x, net.weight, activation)
    assert torch.allclose(found, empirical_ntk(net, x, outputs="trace"), atol=1e-12)


def test_gram_counts_common_active_units() -> None:
    x, w = sphere(0, 6, 3), normal(1, 50, 3)
    found = sampled_gram(x, w)
    for i in range(6):
        for j in range(6):
            common = ((w @ x[i] >= 0) & (w @ x[j] >= 0)).double().mean()
            assert float(found[i, j]) == pytest.approx(float(x[i] @ x[j] * common), abs=1e-14)


def test_golden_values() -> None:
    half = math.sqrt(3) / 2
    x = torch.tensor([[1, 0], [0.5, half], [0, 1], [-1, 0], [2, 0], [0, 0]], dtype=torch.float64)
    expected = torch.tensor([1 / 2, 1 / 6, 0, 0, 1, 0], dtype=torch.float64)
    assert torch.allclose(relu_gram_limit(x)[0], expected, atol=1e-15)


@given(seeds)
@settings(max_examples=10, deadline=None)
def test_closed_form_against_quadrature_and_series(seed: int) -> None:
    x = sphere(seed, 4, 5)
    exact = relu_gram_limit(x)
    assert torch.allclose(expected_gram(x), exact, atol=1e-12)
    off = ~torch.eye(4, dtype=torch.bool)
    close = off & ((x @ x.T).abs() < 0.95)
    assert torch.allclose(relu_gram_series(x, 300)[close], exact[close], atol=1e-12)
    # partial sums of positive terms stay below on the diagonal
    assert bool((relu_gram_series(x, 50).diagonal() < exact.diagonal()).all())
    assert float(exact.trace()) == pytest.approx(2.0)
    assert float(torch.linalg.eigvalsh(exact - x @ x.T / 4)[0]) >= -1e-12


@given(seeds)
@settings(max_examples=25, deadline=None)
def test_scaling_a_point_scales_its_row(seed: int) -> None:
    x, c = normal(seed, 4, 3), 0.1 + normal(seed + 1, 4, 1).abs()
    assert torch.allclose(relu_gram_limit(c * x), (c @ c.T) * relu_gram_limit(x), atol=1e-12)


def test_sampled_gram_tends_to_the_limit() -> None:
    x = sphere(3, 6, 4)
    gap = (sampled_gram(x, normal(4, 200_000, 4)) - relu_gram_limit(x)).abs().max()
    assert float(gap) < 2 / math.sqrt(200_000)


def test_pair_mean_against_scipy() -> None:
    def density(u: float, v: float) -> float:
        return float(stats.multivariate_normal([0, 0], [[1.5, -0.6], [-0.6, 0.8]]).pdf([u, v]))

    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    root = np.linalg.cholesky(np.array([[1.5, -0.6], [-0.6, 0.8]]))
    u = root[0, 0] * nodes[:, None] + 0 * nodes
    v = root[1, 0] * nodes[:, None] + root[1, 1] * nodes
    expected = (np.tanh(u) * np.cos(v) * np.outer(weights, weights)).sum() / (2 * math.pi)
    one = [torch.tensor(q, dtype=torch.float64) for q in (1.5, 0.8, -0.6)]
    assert float(gaussian_pair_mean(torch.tanh, torch.cos, *one)) == pytest.approx(
        expected, abs=1e-12
    )
    relu = gaussian_pair_mean(torch.relu, torch.relu, *one)
    slow, _ = integrate.dblquad(lambda v, u: u * v * density(u, v), 0, 9, 0, 9, epsabs=1e-6)
    assert float(relu) == pytest.approx(slow, abs=1e-5)


def test_pair_mean_at_the_edges() -> None:
    q = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    c = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    lengths = normal(0, 5).abs()
    step = slope_of("relu")
    same = gaussian_pair_mean(step, step, lengths**2, (3 * lengths) ** 2, 3 * lengths**2)
    assert torch.allclose(same, torch.full((5,), 0.5).double(), atol=1e-13)
    found = gaussian_pair_mean(lambda z: z, lambda z: z, q, torch.ones_like(q), c)
    assert torch.allclose(found, c, atol=1e-12)
    with pytest.raises(InvalidInput, match="larger than the product"):
        gaussian_pair_mean(torch.sin, torch.sin, q, q, 1.1 * q)
    with pytest.raises(InvalidInput, match="variance"):
        gaussian_pair_mean(torch.sin, torch.sin, -q, q, q)
    with pytest.raises(ShapeMismatch):
        gaussian_pair_mean(torch.sin, torch.sin, q, q[:1], q)


def test_coefficients_are_those_of_arcsin() -> None:
    assert relu_gram_coefficients(4).tolist() == pytest.approx([1, 1 / 6, 3 / 40, 15 / 336])
    assert slope_of("relu")(torch.tensor([-1.0, 1.0])).tolist() == [0.0, 1.0]


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_kernel_norm_is_the_quadratic_form(seed: int) -> None:
    a, y = normal(seed, 5, 7), normal(seed + 1, 5)
    gram = a @ a.T
    expected = float(y @ torch.linalg.solve(gram, y))
    assert squared_kernel_norm(gram, y) == pytest.approx(expected, rel=1e-6)
    complexity = math.sqrt(2 * expected * float(gram.trace())) / 5
    assert label_complexity(gram, y) == pytest.approx(complexity, rel=1e-6)
    assert label_complexity(gram, 3 * y) == pytest.approx(3 * complexity, rel=1e-6)


def test_contradicting_labels_are_infinitely_complex() -> None:
    x = sphere(0, 3, 4)
    doubled = torch.cat([x, x[:1]])
    gram = relu_gram_limit(doubled)
    assert label_complexity(gram, torch.tensor([1.0, -1.0, 1.0, -1.0])) == math.inf
    same = label_complexity(gram, torch.tensor([1.0, -1.0, 1.0, 1.0]))
    alone = label_complexity(relu_gram_limit(x), torch.tensor([1.0, -1.0, 1.0]))
    # the same function fits: only trace and number of points differ
    assert same * 4 / math.sqrt(2) == pytest.approx(alone * 3 / math.sqrt(1.5), rel=1e-6)


@given(seeds, st.integers(1, 12), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_linear_targets_stay_below_both_bounds(seed: int, n: int, d: int) -> None:
    found = linear_target_complexity(sphere(seed, n, d), normal(seed + 1, d))
    assert found.measure <= found.bound * (1 + 1e-6) <= found.printed_bound * (1 + 1e-6)


def test_refused_input() -> None:
    x = sphere(0, 3, 2)
    with pytest.raises(ShapeMismatch, match="output weights"):
        TwoLayerNetwork(x, torch.ones(2))
    with pytest.raises(NonFinite, match="output weights"):
        TwoLayerNetwork(x, torch.tensor([1.0, math.nan, 1.0]))
    with pytest.raises(InvalidInput, match="'signs' or 'ones'"):
        TwoLayerNetwork.random(3, 2, outputs="both")
    with pytest.raises(InvalidInput, match="width"):
        TwoLayerNetwork.random(0, 2)
    with pytest.raises(ShapeMismatch, match=r"\[width, 2\]"):
        sampled_gram(x, torch.ones(4, 3).double())
    with pytest.raises(NonFinite):
        sampled_gram(x, torch.full((4, 2), math.inf).double())
    with pytest.raises(EmptyData):
        relu_gram_limit(torch.empty(0, 2))
    with pytest.raises(InvalidInput, match="normalize"):
        relu_gram_series(2 * x, 5)
    with pytest.raises(InvalidInput, match="normalize"):
        linear_target_complexity(2 * x, torch.ones(2))
    with pytest.raises(ShapeMismatch, match="features"):
        linear_target_complexity(x, torch.ones(3))
    with pytest.raises(InvalidInput, match="negative eigenvalue"):
        squared_kernel_norm(-torch.eye(2), torch.ones(2))
    with pytest.raises(ShapeMismatch, match="labels"):
        squared_kernel_norm(torch.eye(2), torch.ones(3))


def test_single_precision_is_kept() -> None:
    x = sphere(0, 3, 2).float()
    assert relu_gram_limit(x).dtype == expected_gram(x).dtype == torch.float32
    assert TwoLayerNetwork.random(4, 2, dtype=torch.float32)(x).dtype == torch.float32
