"""Concentration of the Gram matrix: bounds, radius, required width, Weyl."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import EmptyData, InvalidInput, ShapeMismatch, UnknownName
from torchtheory.kernels.infinite.gram_concentration import (
    compare_gram,
    gram_radius,
    rademacher_draws,
    slope_bound,
    unit_gram_norms,
    weyl_bounds,
    width_for_accuracy,
)
from torchtheory.kernels.infinite.two_layer import expected_gram, sampled_gram, slope_of

seeds = st.integers(0, 10_000)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def unit_grams(x: torch.Tensor, w: torch.Tensor, activation: str) -> torch.Tensor:
    """The matrices H_k, written out."""
    slopes = slope_of(activation)(x @ w.T)
    return torch.einsum("ij,ik,jk->kij", x @ x.T, slopes, slopes)


@given(seeds, st.sampled_from(["relu", "tanh", "logistic"]))
@settings(max_examples=30, deadline=None)
def test_norms_and_rademacher_sums(seed: int, activation: str) -> None:
    x, w = normal(seed, 4, 3), normal(seed + 1, 6, 3)
    grams = unit_grams(x, w, activation)
    norms = unit_gram_norms(x, w, activation)
    assert torch.allclose(norms, torch.linalg.matrix_norm(grams), atol=1e-12)
    bound = slope_bound(activation) ** 2 * float(x.square().sum())
    assert float(norms.max()) <= bound * (1 + 1e-12)
    assert torch.allclose(sampled_gram(x, w, activation), grams.mean(0), atol=1e-13)
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0]).double()] * 6)
    exact = torch.linalg.matrix_norm(torch.einsum("sk,kij->sij", signs, grams)) / 6
    assert float(exact.mean()) <= bound / math.sqrt(6) * (1 + 1e-12)
    drawn = rademacher_draws(x, w, activation, draws=5, generator=seed)
    # every draw is one of the 64 sign patterns
    assert bool(((drawn[:, None] - exact).abs().min(1).values < 1e-12).all())


def test_radius_by_hand() -> None:
    x = torch.tensor([[3.0, 4.0]])
    expected = 25 * 4 * (2 / 10 + 6 * math.sqrt(math.log(2 / 0.1) / 200))
    assert gram_radius(x, 100, bound=2.0, delta=0.1) == pytest.approx(expected)


@given(seeds, st.floats(0.01, 5), st.floats(1e-3, 0.5))
@settings(max_examples=50, deadline=None)
def test_required_width_is_the_smallest(seed: int, accuracy: float, delta: float) -> None:
    x = normal(seed, 3, 2)
    m = width_for_accuracy(x, accuracy, delta=delta)
    assert gram_radius(x, m, delta=delta) <= accuracy
    assert m == 1 or gram_radius(x, m - 1, delta=delta) > accuracy


@given(seeds, st.integers(1, 6))
@settings(max_examples=50, deadline=None)
def test_weyl(seed: int, n: int) -> None:
    a, b = normal(seed, n, n), normal(seed + 1, n, n)
    found = weyl_bounds(a + a.T, b + b.T)
    assert found.lower - 1e-10 <= found.smallest <= found.largest <= found.upper + 1e-10


def test_comparison_follows_weyl() -> None:
    x = normal(0, 5, 3)
    w = normal(1, 400, 3)
    found = compare_gram(x, w, "tanh")
    gap = sampled_gram(x, w, "tanh") - expected_gram(x, "tanh")
    assert found.distance == pytest.approx(float(torch.linalg.eigvalsh(gap).abs().max()))
    assert found.smallest >= found.expected_smallest - found.distance - 1e-12
    assert found.largest <= found.expected_largest + found.distance + 1e-12
    assert found.radius > found.distance
    assert not found.informative
    assert found.required_width is not None
    needed = gram_radius(x, found.required_width)
    assert needed <= found.expected_smallest / 2


def test_singular_expectation_has_no_width() -> None:
    x = torch.ones(2, 1).double()
    assert compare_gram(x, normal(0, 10, 1)).required_width is None


def test_refused_input() -> None:
    x = torch.eye(2)
    with pytest.raises(InvalidInput, match="not in the table"):
        slope_bound(nn.GELU())
    with pytest.raises(InvalidInput, match="not bounded"):
        slope_bound("power relu")
    with pytest.raises(UnknownName):
        slope_bound("rleu")
    with pytest.raises(InvalidInput, match="delta"):
        gram_radius(x, 5, delta=1.0)
    with pytest.raises(InvalidInput, match="width"):
        gram_radius(x, 0)
    with pytest.raises(InvalidInput, match="bound"):
        gram_radius(x, 5, bound=-1.0)
    with pytest.raises(InvalidInput, match="accuracy"):
        width_for_accuracy(x, 0.0)
    with pytest.raises(InvalidInput, match="draws"):
        rademacher_draws(x, x, draws=0)
    with pytest.raises(EmptyData):
        unit_gram_norms(torch.empty(0, 2), x)
    with pytest.raises(ShapeMismatch):
        weyl_bounds(torch.eye(2), torch.eye(3))
    with pytest.raises(InvalidInput, match="symmetric"):
        weyl_bounds(torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.eye(2))
