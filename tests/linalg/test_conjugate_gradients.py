"""Conjugate gradients against direct solves and scipy."""

import math

import numpy as np
import pytest
import scipy.sparse.linalg as sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.core.random import as_generator, gaussian
from torchtheory.linalg.conjugate_gradients import NotPositiveDefinite, conjugate_gradients
from torchtheory.linalg.operators import LinearOperator

F64 = torch.float64
PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)


def random_matrix(*shape, seed=0, dtype=F64):
    return gaussian(*shape, generator=as_generator(seed), dtype=dtype)


def positive(n, seed=0, dtype=F64):
    M = random_matrix(n, n, seed=seed)
    return (M @ M.T / n + 0.1 * torch.eye(n, dtype=F64)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [None, 1, 4])
@pytest.mark.parametrize("n", [1, 2, 60])
def test_solves(n, columns, dtype):
    M = positive(n, dtype=dtype)
    b = random_matrix(*((n,) if columns is None else (n, columns)), seed=1, dtype=dtype)
    solution = conjugate_gradients(LinearOperator.from_matrix(M), b)
    assert solution.converged
    assert solution.x.shape == b.shape
    assert solution.residual_norms.shape == (solution.steps + 1, *b.shape[1:])
    rtol = 1e-6 if dtype == F64 else 1e-3
    torch.testing.assert_close(solution.x, torch.linalg.solve(M, b), rtol=rtol, atol=rtol)
    true = (b - M @ solution.x).norm(dim=0)
    torch.testing.assert_close(true, solution.residual_norms[-1], rtol=0.1, atol=1e-6)


@PROPERTY
@given(n=st.integers(1, 12), seed=st.integers(0, 10**6), distinct=st.integers(1, 12))
def test_ends_after_as_many_steps_as_distinct_eigenvalues(n, seed, distinct):
    values = 1.0 + torch.arange(n, dtype=F64) % distinct
    Q, _ = torch.linalg.qr(random_matrix(n, n, seed=seed))
    M = (Q * values) @ Q.T
    b = random_matrix(n, seed=seed + 1)
    solution = conjugate_gradients(LinearOperator.from_matrix((M + M.T) / 2), b)
    assert solution.converged
    assert solution.steps <= min(n, distinct)


@PROPERTY
@given(seed=st.integers(0, 10**6), kappa=st.floats(1.1, 1e3))
def test_error_obeys_the_chebyshev_bound(seed, kappa):
    n, steps = 40, 10
    values = torch.linspace(1, kappa, n, dtype=F64)
    b = random_matrix(n, seed=seed)
    A = LinearOperator.from_matrix(torch.diag(values))
    solution = conjugate_gradients(A, b, steps=steps, tolerance=0)
    energy = lambda x: float((values * x.square()).sum().sqrt())  # noqa: E731
    rate = (math.sqrt(kappa) - 1) / (math.sqrt(kappa) + 1)
    bound = 2 * rate**solution.steps * energy(b / values)
    assert energy(solution.x - b / values) <= bound + 1e-12 * energy(b / values)


def test_columns_do_not_disturb_each_other():
    M = torch.diag(torch.logspace(0, 4, 50, dtype=F64))
    A = LinearOperator.from_matrix(M)
    easy = torch.zeros(50, dtype=F64)
    easy[3] = 1
    hard = random_matrix(50, seed=2)
    block = torch.stack([easy, hard, torch.zeros(50, dtype=F64)], dim=1)
    together = conjugate_gradients(A, block)
    assert together.converged
    for i, b in enumerate((easy, hard)):
        alone = conjugate_gradients(A, b)
        torch.testing.assert_close(together.x[:, i], alone.x)
    assert bool((together.x[:, 2] == 0).all())
    assert conjugate_gradients(A, easy).steps == 1


def test_against_scipy():
    M = positive(150)
    b = random_matrix(150, seed=3)
    ours = conjugate_gradients(LinearOperator.from_matrix(M), b, tolerance=1e-10)
    count = []
    peer, info = sparse.cg(M.numpy(), b.numpy(), rtol=1e-10, atol=0, callback=count.append)
    assert info == 0
    np.testing.assert_allclose(ours.x, peer, atol=1e-7)
    assert abs(ours.steps - len(count)) <= 2


def test_start_and_preconditioner():
    scales = torch.logspace(-4, 4, 80, dtype=F64)
    M = positive(80) + torch.diag(scales)
    A = LinearOperator.from_matrix(M)
    b = random_matrix(80, seed=4)
    exact = torch.linalg.solve(M, b)
    assert conjugate_gradients(A, b, x0=exact, tolerance=1e-6).steps == 0
    near = conjugate_gradients(A, b, x0=exact + 1e-3)
    torch.testing.assert_close(near.x, exact, rtol=1e-5, atol=1e-6)
    plain = conjugate_gradients(A, b)
    jacobi = torch.diag(1 / M.diagonal())
    for preconditioner in (LinearOperator.from_matrix(jacobi), lambda r: jacobi @ r):
        better = conjugate_gradients(A, b, preconditioner=preconditioner)
        assert better.converged
        assert better.steps < plain.steps / 2
        torch.testing.assert_close(better.x, exact, rtol=1e-5, atol=1e-6)


def test_not_converging_is_reported():
    A = LinearOperator.from_matrix(torch.diag(torch.logspace(-8, 8, 100, dtype=F64)))
    solution = conjugate_gradients(A, torch.ones(100, dtype=F64), steps=5)
    assert not solution.converged
    assert solution.steps == 5
    assert bool(torch.isfinite(solution.x).all())


def test_rounding_cannot_pretend_convergence():
    """κ = 1e4 in float32: the recurrence falls below the tolerance, the true residual does not."""
    Q, _ = torch.linalg.qr(random_matrix(100, 100))
    M = ((Q * torch.logspace(-4, 0, 100, dtype=F64)) @ Q.T).float()
    M = (M + M.T) / 2
    b = torch.ones(100)
    solution = conjugate_gradients(LinearOperator.from_matrix(M), b)
    true = float((b.double() - M.double() @ solution.x.double()).norm())
    assert true > 50 * torch.finfo(torch.float32).eps * float(b.norm())
    assert not solution.converged
    assert solution.steps < 1000  # it saw that it had stalled
    assert float(solution.residual_norms[-1]) == pytest.approx(true, rel=0.2)


def test_singular_but_consistent_systems():
    M = torch.diag(torch.tensor([1.0, 2.0, 0.0], dtype=F64))
    b = torch.tensor([1.0, 1.0, 0.0], dtype=F64)
    solution = conjugate_gradients(LinearOperator.from_matrix(M), b)
    torch.testing.assert_close(solution.x, torch.tensor([1.0, 0.5, 0.0], dtype=F64))


@PROPERTY
@given(n=st.integers(1, 20), seed=st.integers(0, 10**6))
def test_indefinite_operators_give_a_negative_direction(n, seed):
    values = torch.ones(n, dtype=F64)
    values[0] = -2
    A = LinearOperator.from_matrix(torch.diag(values))
    with pytest.raises(NotPositiveDefinite, match="damping") as caught:
        conjugate_gradients(A, random_matrix(n, seed=seed))
    d = caught.value.direction
    assert float(d.norm()) == pytest.approx(1)
    assert float((values * d.square()).sum()) == pytest.approx(caught.value.curvature)
    assert caught.value.curvature <= 0


def test_zero_operator_and_zero_right_hand_side():
    zero = LinearOperator.from_matrix(torch.zeros(3, 3))
    with pytest.raises(NotPositiveDefinite):
        conjugate_gradients(zero, torch.ones(3))
    solution = conjugate_gradients(zero, torch.zeros(3))
    assert solution.converged
    assert solution.steps == 0
    assert solution.x.tolist() == [0, 0, 0]


def test_refusals():
    A = LinearOperator.from_matrix(positive(5))
    b = torch.ones(5, dtype=F64)
    with pytest.raises(ShapeMismatch, match="rows"):
        conjugate_gradients(A, torch.ones(4, dtype=F64))
    with pytest.raises(ShapeMismatch, match="x0"):
        conjugate_gradients(A, b, x0=torch.ones(5, 1, dtype=F64))
    with pytest.raises(InvalidType, match="convert"):
        conjugate_gradients(A, torch.ones(5))
    with pytest.raises(NonFinite):
        conjugate_gradients(A, b * math.nan)
    with pytest.raises(InvalidInput, match="steps"):
        conjugate_gradients(A, b, steps=0)
    with pytest.raises(InvalidInput, match="preconditioner"):
        conjugate_gradients(A, b, preconditioner=lambda r: -r)
    with pytest.raises(ShapeMismatch, match="square"):
        conjugate_gradients(LinearOperator.from_matrix(torch.ones(2, 3)), torch.ones(3))
    skewed = torch.eye(5, dtype=F64) * 3 + torch.triu(torch.ones(5, 5, dtype=F64), 1)
    with pytest.raises(InvalidInput, match="not symmetric"):
        conjugate_gradients(LinearOperator.from_matrix(skewed), b)
    with pytest.raises(NonFinite):
        conjugate_gradients(LinearOperator((5, 5), lambda v: v * math.inf, dtype=F64), b)
