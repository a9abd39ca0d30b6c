"""Separability with certificates, margins, version spaces."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, nnls
from sklearn.svm import SVC

from torchtheory.core.errors import InvalidInput, LabelOutOfRange, NonFinite
from torchtheory.data.synthetic import separable_gaussians, xor
from torchtheory.nets.biases import homogeneous
from torchtheory.neurons.separability import (
    NotSeparable,
    max_margin,
    minimum_norm_point,
    separate,
    version_space_fractions,
    weakly_separating_direction,
)

seeds = st.integers(0, 10_000)


def signed(x: torch.Tensor, y: torch.Tensor, bias: bool) -> torch.Tensor:
    return y.unsqueeze(1) * (homogeneous(x) if bias else x)


def feasible(z: np.ndarray) -> bool:
    """The textbook program y(w·x + b) >= 1."""
    found = linprog(np.zeros(z.shape[1]), A_ub=-z, b_ub=-np.ones(len(z)), bounds=(None, None))
    return found.status == 0


def test_xor_certificate() -> None:
    x, y = xor()
    found = separate(x, y)
    assert not found
    assert torch.allclose(found.combination, torch.full((4,), 0.25).double(), atol=1e-14)
    assert found.weight is None
    assert found.residual < 1e-14


@given(seeds, st.integers(1, 12), st.integers(1, 4), st.booleans())
@settings(max_examples=150, deadline=None)
def test_either_certificate_is_one(seed: int, s: int, d: int, bias: bool) -> None:
    # small whole numbers are degenerate as often as not
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(-2, 3, (s, d), generator=g).double()
    y = torch.randint(0, 2, (s,), generator=g).double() * 2 - 1
    found = separate(x, y, bias=bias)
    z = signed(x, y, bias)
    assert bool(found) == feasible(z.numpy())
    if found:
        assert bool((y * (x @ found.weight + found.bias) > 0).all())
        assert bool(found.weight.any())
    else:
        alpha = found.combination
        assert bool((alpha >= 0).all())
        assert float(alpha.sum()) == pytest.approx(1, abs=1e-12)
        assert float((alpha @ z).norm()) <= 1e-12
        assert found.residual == pytest.approx(float((alpha @ z).norm()), abs=1e-15)


@pytest.mark.parametrize("size", [1e-16, 1e-9, 1.0, 1e9])
def test_the_units_of_a_feature_do_not_matter(size: float) -> None:
    x = torch.tensor([[1.0, size], [-1.0, size], [0.0, 0.3 * size]], dtype=torch.float64)
    y = torch.tensor([1, 1, -1])
    assert separate(x, y)
    inside = torch.cat([x, x.mean(0, keepdim=True)])
    assert not separate(inside, torch.tensor([1, 1, 1, -1]))


def test_one_class_is_separable_with_a_hyperplane() -> None:
    x = torch.tensor([[5.0, 0.0], [-5.0, 1.0]])
    for label in (1.0, -1.0):
        y = torch.full((2,), label)
        found = separate(x, y)
        assert found
        assert bool(found.weight.any())
        assert bool((y * (x @ found.weight + found.bias) > 0).all())
    with pytest.raises(InvalidInput, match="no bound"):
        max_margin(x, torch.ones(2))


def test_a_point_at_the_origin_without_bias() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    found = separate(x, torch.ones(2), bias=False)
    assert not found
    assert found.combination.tolist() == [1.0, 0.0]


def test_float32_and_features_with_a_graph() -> None:
    x, y, *_ = separable_gaussians(30, 4, margin=0.1, dtype=torch.float32)
    found = separate(x.requires_grad_(), y)
    assert found.weight.dtype == torch.float32
    assert bool((y * (x @ found.weight + found.bias) > 0).all())


@given(seeds, st.integers(3, 40), st.integers(1, 6), st.floats(-3, 0))
@settings(max_examples=40, deadline=None)
def test_max_margin_against_the_support_vector_machine(
    seed: int, s: int, d: int, log_margin: float
) -> None:
    x, y, *_ = separable_gaussians(s, d, margin=10**log_margin, bias=0.2, generator=seed)
    if abs(float(y.sum())) == s:
        return
    best = max_margin(x, y)
    assert best.margin <= best.upper_bound * (1 + 1e-12)
    assert best.margin == pytest.approx(best.upper_bound, rel=1e-9)
    assert best.margin >= 10**log_margin - 1e-12
    assert float((y * (x @ best.weight + best.bias)).min()) == pytest.approx(best.margin)
    assert float(best.weight.norm()) == pytest.approx(1)
    machine = SVC(C=1e10, kernel="linear", tol=1e-8).fit(x.numpy(), y.numpy())
    assert best.margin == pytest.approx(1 / np.linalg.norm(machine.coef_), rel=1e-3)
    support = best.combination > 1e-9
    assert torch.allclose(
        (y * (x @ best.weight + best.bias))[support], torch.tensor(best.margin).double(), atol=1e-8
    )
    assert float(best.combination.sum()) == pytest.approx(1)
    assert float(y @ best.combination) == pytest.approx(0, abs=1e-12)


@given(seeds, st.integers(1, 30), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_minimum_norm_point_against_nnls(seed: int, s: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(s, d)) + rng.normal(size=d)
    nearest, alpha = (a.numpy() for a in minimum_norm_point(torch.from_numpy(points)))
    assert alpha.min() >= 0
    assert alpha.sum() == pytest.approx(1)
    assert np.allclose(alpha @ points, nearest)
    # Lawson and Hanson: least distance programming as non-negative least squares
    u, residual = nnls(
        np.vstack([points.T, np.ones(s)]), np.append(np.zeros(d), 1.0), maxiter=10**4
    )
    if residual > 1e-6:
        assert np.linalg.norm(nearest) == pytest.approx(
            np.linalg.norm(points.T @ (u / u.sum())), abs=1e-8
        )
    else:
        assert np.linalg.norm(nearest) < 1e-6
    assert (points @ nearest).min() >= nearest @ nearest - 1e-9


def test_no_bias_margin_by_hand() -> None:
    best = max_margin(torch.eye(4).double(), torch.ones(4), bias=False)
    assert best.margin == pytest.approx(0.5)
    assert torch.allclose(best.weight, torch.full((4,), 0.5).double())
    with pytest.raises(NotSeparable):
        max_margin(*xor())
    with pytest.raises(NotSeparable):
        max_margin(torch.tensor([[1.0], [-1.0]]), torch.tensor([1, 1]), bias=False)


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_version_space_only_shrinks(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(10, 2, generator=g)
    y = torch.randint(0, 2, (10,), generator=g) * 2 - 1
    shares = version_space_fractions(x, y, directions=500, generator=seed)
    assert bool((shares.diff() <= 0).all())
    assert torch.equal(shares, version_space_fractions(x, y, directions=500, generator=seed))


def test_version_space_fraction_is_an_angle() -> None:
    angle = 0.7
    x = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    turn = torch.arange(100_000, dtype=torch.float64) * 2 * math.pi / 100_000
    circle = torch.stack([turn.cos(), turn.sin()], 1)
    shares = version_space_fractions(x, torch.ones(2), directions=circle, bias=False)
    assert float(shares[0]) == pytest.approx(0.5, abs=1e-4)
    assert float(shares[1]) == pytest.approx((math.pi - angle) / (2 * math.pi), abs=1e-4)


def test_weak_separation() -> None:
    x = torch.tensor([[0.0], [1.0], [1.0], [2.0]])
    y = torch.tensor([-1, -1, 1, 1])
    v = weakly_separating_direction(x, y)
    heights = signed(x, y.float(), True) @ v
    assert bool((heights >= -1e-6).all())
    assert bool((heights > 1e-3).any())
    assert weakly_separating_direction(x, torch.tensor([-1, -1, 1, -1])) is None
    assert weakly_separating_direction(*xor()) is None
    assert weakly_separating_direction(torch.zeros(3, 2), torch.ones(3), bias=False) is None


def test_bad_input_is_refused() -> None:
    x, y = xor()
    with pytest.raises(LabelOutOfRange):
        separate(x, (y + 1) / 2)
    with pytest.raises(NonFinite):
        separate(x / 0, y)
    with pytest.raises(InvalidInput):
        version_space_fractions(x, y, directions=0)
    with pytest.raises(InvalidInput, match=r"\[m, 3\]"):
        version_space_fractions(x, y, directions=torch.ones(5, 2))
