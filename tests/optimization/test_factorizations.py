"""The nuclear norm, singular value thresholding and certificates of factorizations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch
from torchtheory.optimization.parallel_networks.factorization_certificates import (
    certify_factorization,
    decay_objective,
    descend_factors,
    grow_factorization,
    shared_null_direction,
)
from torchtheory.optimization.parallel_networks.nuclear_norm import (
    balanced_factors,
    factorize_with_decay,
    least_decay_objective,
    threshold_singular_values,
)

seeds = st.integers(0, 10**6)


def normal(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(seeds, st.integers(1, 5), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_balanced_factors_are_the_cheapest(seed, n, m):
    Z = normal(seed, n, m)
    U, V = balanced_factors(Z)
    norm = float(torch.linalg.matrix_norm(Z, "nuc"))
    assert torch.allclose(U @ V.T, Z)
    assert float(U.square().sum() + V.square().sum()) / 2 == pytest.approx(norm)
    assert torch.allclose(U.T @ U, V.T @ V)
    A = torch.eye(U.shape[1]).double() + 0.3 * normal(seed + 1, U.shape[1], U.shape[1])
    other = U @ A, torch.linalg.solve(A, V.T).T
    assert float(other[0].square().sum() + other[1].square().sum()) / 2 >= norm * (1 - 1e-9)


def test_balanced_factors_know_the_rank():
    Z = torch.outer(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0])).double()
    U, _ = balanced_factors(Z)
    assert U.shape == (2, 1)
    U, _ = balanced_factors(Z, 3)
    assert U.shape == (2, 3)
    assert float(U[:, 1:].abs().max()) == 0
    with pytest.raises(InvalidInput, match="rank 1"):
        balanced_factors(Z, 0)


@given(seeds, st.floats(0.1, 2.0))
@settings(max_examples=20, deadline=None)
def test_thresholding_beats_every_other_matrix(seed, strength):
    Y = normal(seed, 4, 3)
    Z = threshold_singular_values(Y, strength)

    def value(M):
        return float((Y - M).square().sum() / 2 + strength * torch.linalg.matrix_norm(M, "nuc"))

    for k in range(10):
        assert value(Z) <= value(Z + 0.1 * normal(seed + k + 1, 4, 3)) + 1e-12
    assert value(Z) == pytest.approx(least_decay_objective(torch.linalg.svdvals(Y), strength))


@pytest.mark.parametrize("width", [1, 2, 4])
def test_closed_form_against_a_general_optimizer(width):
    Y, strength = normal(3, 4, 3), 0.4
    made = factorize_with_decay(Y, strength, width=width)

    def value(theta):
        point = torch.tensor(theta, requires_grad=True)
        U, V = point[: 4 * width].view(4, width), point[4 * width :].view(3, width)
        f = decay_objective(Y, U, V, strength)
        f.backward()
        return float(f.detach()), point.grad.numpy()

    rng = np.random.default_rng(0)
    best = min(
        minimize(value, rng.normal(size=7 * width), jac=True, options={"gtol": 1e-9}).fun
        for _ in range(5)
    )
    assert best == pytest.approx(made.objective, rel=1e-7)
    assert float(decay_objective(Y, made.U, made.V, strength)) == pytest.approx(made.objective)


def test_whitened_inputs_have_the_closed_form_as_well():
    basis, _ = torch.linalg.qr(normal(0, 9, 4))
    X, Y, strength = 1.7 * basis.T, normal(1, 3, 9), 0.5
    made = factorize_with_decay(Y, strength, inputs=X)

    def value(U, V):
        return float(
            (Y - U @ V.T @ X).square().sum() / 2
            + strength * (U.square().sum() + V.square().sum()) / 2
        )

    assert value(made.U, made.V) == pytest.approx(made.objective)
    for k in range(20):
        U, V = (
            made.U + 0.05 * normal(k, *made.U.shape),
            made.V + 0.05 * normal(-k + 99, *made.V.shape),
        )
        assert value(U, V) >= made.objective
    with pytest.raises(InvalidInput, match="c I"):
        factorize_with_decay(Y, strength, inputs=normal(2, 4, 9))
    with pytest.raises(ShapeMismatch):
        factorize_with_decay(Y, strength, inputs=torch.eye(3).double())


@given(seeds, st.floats(0.1, 1.5), st.integers(0, 4))
@settings(max_examples=30, deadline=None)
def test_certificate_bounds_the_true_distance(seed, strength, width):
    Y = normal(seed, 5, 4)
    U, V = normal(seed + 1, 5, width), normal(seed + 2, 4, width)
    found = certify_factorization(Y, U, V, strength)
    least = least_decay_objective(torch.linalg.svdvals(Y), strength)
    assert found.lower_bound <= least * (1 + 1e-9) + 1e-9
    assert found.objective == pytest.approx(float(decay_objective(Y, U, V, strength)))
    assert found.largest_residual == pytest.approx(float(torch.linalg.matrix_norm(Y - U @ V.T, 2)))
    exact = factorize_with_decay(Y, strength)
    assert certify_factorization(Y, exact.U, exact.V, strength).optimal


def test_certificate_by_hand():
    Y = torch.diag(torch.tensor([3.0, 2.0])).double()
    nothing = torch.zeros(2, 1).double()
    found = certify_factorization(Y, nothing, nothing, 1.0)
    # Q = Y / 3: <Q, Y> - |Q|^2 / 2 = 13/3 - 13/18
    assert found.lower_bound == pytest.approx(13 / 3 - 13 / 18)
    assert not found.optimal
    assert found.balance == 0
    assert certify_factorization(0 * Y, nothing, nothing, 1.0).optimal


@given(seeds, st.floats(0.2, 1.0))
@settings(max_examples=15, deadline=None)
def test_growth_ends_at_the_closed_form(seed, strength):
    Y = normal(seed, 5, 4)
    exact = factorize_with_decay(Y, strength)
    grown = grow_factorization(Y, strength)
    assert grown.certificate.optimal
    assert grown.objectives[-1] == pytest.approx(exact.objective, rel=1e-6)
    assert all(b <= a + 1e-9 for a, b in zip(grown.objectives, grown.objectives[1:], strict=False))
    assert grown.widths[-1] <= exact.needed


def test_descent_is_stationary_and_balanced():
    Y, strength = normal(5, 6, 5), 0.3
    U, V = descend_factors(Y, normal(6, 6, 2), normal(7, 5, 2), strength, sweeps=3000)
    R = Y - U @ V.T
    assert torch.allclose(R @ V, strength * U, atol=1e-8)
    assert torch.allclose(R.T @ U, strength * V, atol=1e-8)
    assert torch.allclose(U.T @ U, V.T @ V, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_saddles_are_not_certified(dtype, scale):
    """Every subset of the columns of the closed form is stationary; one is the minimum."""
    Y = (scale * normal(8, 6, 5)).to(dtype)
    sigma = torch.linalg.svdvals(Y.double())
    strength = 0.9 * float(sigma[3])
    exact = factorize_with_decay(Y.double(), strength)
    least = least_decay_objective(sigma, strength)
    for kept in itertools.product((False, True), repeat=4):
        some = torch.tensor(kept)
        U, V = exact.U[:, some].to(dtype), exact.V[:, some].to(dtype)
        found = certify_factorization(Y, U, V, strength, tolerance=1e-5)
        assert found.optimal == all(kept)
        assert abs(found.balance) < 1e-5 * found.objective
        assert found.lower_bound <= least * (1 + 1e-12)


def test_null_directions():
    U, V = normal(0, 4, 3), normal(1, 5, 3)
    assert shared_null_direction(U, V) is None
    e = torch.nn.functional.normalize(normal(2, 3), dim=0)
    away = torch.eye(3).double() - torch.outer(e, e)
    found = shared_null_direction(U @ away, V @ away)
    assert found is not None
    assert abs(float(found @ e)) == pytest.approx(1)
    assert shared_null_direction(torch.zeros(1, 3), torch.zeros(1, 3)) is not None
    with pytest.raises(ShapeMismatch):
        shared_null_direction(U, V[:, :2])


def test_bad_input_is_refused():
    Y = torch.eye(3).double()
    U = torch.ones(3, 2).double()
    with pytest.raises(ShapeMismatch):
        certify_factorization(Y, U, U[:2], 1.0)
    with pytest.raises(NonFinite):
        certify_factorization(Y, U * torch.nan, U, 1.0)
    for strength in (0.0, -1.0, float("nan")):
        with pytest.raises(InvalidInput, match="positive"):
            certify_factorization(Y, U, U, strength)
        with pytest.raises(InvalidInput, match="positive"):
            threshold_singular_values(Y, strength)
    with pytest.raises(InvalidInput):
        least_decay_objective(torch.tensor([-1.0]), 1.0)
    with pytest.raises(InvalidInput):
        factorize_with_decay(Y, 1.0, width=-1)
    with pytest.raises(InvalidInput):
        least_decay_objective(torch.ones(2), 1.0, width=-1)


def test_single_precision_stays_single():
    Y = torch.diag(torch.tensor([3.0, 1.0]))
    made = factorize_with_decay(Y, 0.5)
    assert made.U.dtype == torch.float32
    assert certify_factorization(Y, made.U, made.V, 0.5, tolerance=1e-4).optimal
