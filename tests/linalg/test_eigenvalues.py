"""Lanczos, extremal eigenpairs and singular values, against dense algebra and scipy."""

import math

import numpy as np
import pytest
import scipy.sparse.linalg as sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import conv2d

from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
    UnknownName,
)
from torchtheory.core.random import as_generator, gaussian
from torchtheory.linalg.eigenvalues import extremal_eigenvalues, top_eigenpairs
from torchtheory.linalg.operators import LinearOperator
from torchtheory.linalg.singular_values import (
    operator_norm,
    operator_norm_upper_bound,
    singular_values,
)

F64 = torch.float64
PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)


def random_matrix(m, n, seed=0, dtype=F64):
    return gaussian(m, n, generator=as_generator(seed), dtype=dtype)


def with_spectrum(values, seed=0, dtype=F64):
    """A dense symmetric matrix with the given eigenvalues."""
    values = torch.as_tensor(values, dtype=F64)
    Q, _ = torch.linalg.qr(random_matrix(len(values), len(values), seed))
    M = (Q * values) @ Q.T
    return ((M + M.T) / 2).to(dtype)


SPECTRA = {
    "one": [3.0],
    "two": [-1.0, 2.0],
    "zero": [0.0] * 40,
    "identity": [1.0] * 60,
    "negative definite": [-1.0 - 0.1 * i for i in range(50)],
    "rank deficient": [0.0] * 150 + [1.0, 2.0, 3.0, -4.0],
    "uniform": np.linspace(-1, 2, 200).tolist(),
    "multiple": [5.0] * 4 + [3.0] * 3 + np.linspace(-1, 1, 180).tolist() + [-2.0] * 3,
    "clustered": [5.0, 5 - 1e-9, 5 - 1e-5, *np.linspace(-1, 1, 180).tolist()],
    "opposite signs": [3.0, -3.0, 2.0, -2.0, *np.linspace(-1, 1, 160).tolist()],
    "wide": np.logspace(-8, 8, 150).tolist(),
}


def expected_values(spectrum, k, which):
    s = torch.as_tensor(spectrum, dtype=F64).sort(descending=True).values
    if which == "largest":
        return s[:k]
    if which == "smallest":
        return s.flip(0)[:k]
    if which == "both":
        return torch.cat([s[: k - k // 2], s[len(s) - k // 2 :]])
    return s[s.abs().argsort(descending=True, stable=True)][:k]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("which", ["largest", "smallest", "magnitude", "both"])
@pytest.mark.parametrize("name", SPECTRA)
def test_eigenpairs_match_the_spectrum(name, which, dtype):
    spectrum = SPECTRA[name]
    M = with_spectrum(spectrum, dtype=dtype)
    A = LinearOperator.from_matrix(M)
    n, scale = len(spectrum), max(map(abs, spectrum))
    eps = torch.finfo(dtype).eps
    for k in {1, min(6, n)}:
        found = top_eigenpairs(A, k, which=which, tolerance=1e-8)
        expected = expected_values(spectrum, k, which)
        values = found.values.double()
        if which == "magnitude":  # the order of +x and -x is not determined
            values, expected = values.abs(), expected.abs()
        assert found.converged
        assert found.values.dtype == dtype
        torch.testing.assert_close(values, expected, rtol=0, atol=scale * max(2e-8, 100 * eps))
        gram = found.vectors.T @ found.vectors
        torch.testing.assert_close(gram, torch.eye(k, dtype=dtype), rtol=0, atol=30 * eps)
        true = (M @ found.vectors - found.vectors * found.values).norm(dim=0)
        torch.testing.assert_close(true, found.residuals, rtol=0, atol=30 * eps * scale + 1e-300)


@pytest.mark.parametrize("n", [1, 2, 3, 40])
def test_all_eigenpairs_at_once(n):
    M = random_matrix(n, n)
    M = M + M.T
    for which in ("largest", "smallest", "magnitude", "both"):
        found = top_eigenpairs(LinearOperator.from_matrix(M), n, which=which)
        torch.testing.assert_close(found.values.sort().values, torch.linalg.eigvalsh(M))
        assert found.converged


@PROPERTY
@given(n=st.integers(2, 40), k=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_residual_bounds_the_error(n, k, seed):
    """Also far from convergence, an eigenvalue lies within the residual."""
    M = random_matrix(n, n, seed)
    M = M + M.T
    found = top_eigenpairs(
        LinearOperator.from_matrix(M),
        min(k, n),
        tolerance=0.5,
        steps=max(k, 3),
        generator=seed,
    )
    true = torch.linalg.eigvalsh(M)
    distance = (found.values[:, None] - true).abs().min(dim=1).values
    assert bool((distance <= found.residuals + 1e-12 * true.abs().max()).all())


@pytest.mark.parametrize(("which", "arpack"), [("largest", "LA"), ("smallest", "SA")])
def test_against_arpack(which, arpack):
    M = random_matrix(400, 400)
    M = (M + M.T) / 40
    found = top_eigenpairs(LinearOperator.from_matrix(M), 5, which=which, tolerance=1e-10)
    peer = sparse.eigsh(M.numpy(), k=5, which=arpack, return_eigenvectors=False)
    np.testing.assert_allclose(found.values.sort().values, np.sort(peer), atol=1e-9)


def test_small_subspace_restarts_many_times():
    spectrum = np.linspace(0, 1, 300).tolist()
    A = LinearOperator.from_matrix(with_spectrum(spectrum))
    found = top_eigenpairs(A, 2, subspace=6, steps=5000)
    assert found.converged
    assert found.steps > 50
    torch.testing.assert_close(
        found.values, expected_values(spectrum, 2, "largest"), rtol=1e-6, atol=0
    )


def test_not_converging_is_reported_with_honest_residuals():
    A = LinearOperator.from_matrix(with_spectrum(np.linspace(0, 1, 300)))
    found = top_eigenpairs(A, 3, steps=8)
    assert not found.converged
    assert found.steps == 8
    assert float(found.residuals.max()) > 1e-6


def test_doubly_degenerate_circulant():
    """Eigenvalues 2cos(2πj/n) come in pairs, which one Krylov space cannot see."""

    def ring(v):
        return torch.roll(v, 1) + torch.roll(v, -1)

    found = top_eigenpairs(LinearOperator((60, 60), ring, dtype=F64), 5, tolerance=1e-9)
    angles = torch.tensor([0, 1, 1, 2, 2], dtype=F64) * 2 * math.pi / 60
    torch.testing.assert_close(found.values, 2 * torch.cos(angles))


def test_extremal_eigenvalues():
    ends = extremal_eigenvalues(LinearOperator.from_matrix(with_spectrum(SPECTRA["uniform"])))
    assert ends.converged
    assert ends.smallest == pytest.approx(-1, abs=1e-6)
    assert ends.largest == pytest.approx(2, abs=1e-6)
    assert ends.residual <= 2e-6
    one = extremal_eigenvalues(LinearOperator.from_matrix(torch.tensor([[4.0]])))
    assert (one.smallest, one.largest) == (4.0, 4.0)


ROUTINES = [
    lambda A: top_eigenpairs(A, 1),
    lambda A: top_eigenpairs(A, 2, which="both"),
]


@pytest.mark.parametrize("routine", ROUTINES)
def test_symmetric_routines_refuse(routine):
    with pytest.raises(InvalidInput, match="not symmetric"):
        routine(LinearOperator.from_matrix(random_matrix(50, 50)))
    with pytest.raises(InvalidInput, match="not symmetric"):
        routine(LinearOperator.from_matrix(torch.tensor([[0.0, 1.0], [0.0, 0.0]])))
    with pytest.raises(ShapeMismatch, match="square"):
        routine(LinearOperator.from_matrix(torch.ones(2, 3)))
    with pytest.raises(NonFinite, match="NaN or infinite"):
        routine(LinearOperator((5, 5), lambda v: v * math.nan))
    with pytest.raises(NonFinite):
        routine(LinearOperator((5, 5), lambda v: v * math.inf))


def test_bad_arguments_are_refused():
    A = LinearOperator.identity(4)
    for k in (0, 5, -1):
        with pytest.raises(InvalidInput, match="from 1 to 4"):
            top_eigenpairs(A, k)
    with pytest.raises(InvalidInput, match=r"not 1\.0"):
        top_eigenpairs(A, 1.0)
    with pytest.raises(InvalidType, match="not '1'"):
        top_eigenpairs(A, "1")
    with pytest.raises(UnknownName, match="largest"):
        top_eigenpairs(A, which="largst")
    with pytest.raises(InvalidInput, match="tolerance"):
        top_eigenpairs(A, tolerance=-1)
    with pytest.raises(InvalidInput, match="steps"):
        top_eigenpairs(A, steps=0)
    with pytest.raises(InvalidInput, match="singular values"):
        singular_values(LinearOperator.from_matrix(torch.ones(2, 5)), 3)
    for delta in (0, 1, -0.1):
        with pytest.raises(InvalidInput, match="probability"):
            operator_norm_upper_bound(A, failure_probability=delta)


def test_seeds_decide_everything():
    A = LinearOperator.from_matrix(with_spectrum(SPECTRA["uniform"]))
    state = torch.get_rng_state()
    a, b = (top_eigenpairs(A, 2, generator=4) for _ in range(2))
    c = top_eigenpairs(A, 2, generator=torch.Generator().manual_seed(4))
    assert torch.equal(a.vectors, b.vectors)
    assert torch.equal(a.vectors, c.vectors)
    assert torch.equal(state, torch.get_rng_state())


def test_solvers_leave_no_graph():
    weight = torch.eye(6, dtype=F64, requires_grad=True)
    A = LinearOperator((6, 6), lambda v: weight @ v, dtype=F64)
    assert not top_eigenpairs(A, 2).values.requires_grad
    assert not singular_values(A, 2).values.requires_grad


# -- singular values ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (60, 200), (200, 60), (150, 150)])
def test_singular_values_match_dense(shape, dtype):
    M = random_matrix(*shape, dtype=dtype)
    A = LinearOperator(shape, lambda v: M @ v, dtype=dtype)  # adjoint by autograd
    k = min(5, *shape)
    found = singular_values(A, k, tolerance=1e-9)
    expected = torch.linalg.svdvals(M)[:k]
    eps = torch.finfo(dtype).eps
    assert found.converged
    torch.testing.assert_close(found.values, expected, rtol=max(1e-9, 30 * eps), atol=0)
    atol = max(1e-8, 100 * eps) * float(expected[0])
    torch.testing.assert_close(M @ found.right, found.left * found.values, rtol=0, atol=atol)
    torch.testing.assert_close(M.T @ found.left, found.right * found.values, rtol=0, atol=atol)
    for Q in (found.left, found.right):
        torch.testing.assert_close(Q.T @ Q, torch.eye(k, dtype=dtype), rtol=0, atol=50 * eps)


def test_singular_values_against_scipy():
    M = random_matrix(80, 120)
    found = singular_values(LinearOperator.from_matrix(M), 4, tolerance=1e-10)
    peer = sparse.svds(M.numpy(), k=4, return_singular_vectors=False, rng=0)
    np.testing.assert_allclose(found.values.flip(0), np.sort(peer), rtol=1e-9)


@pytest.mark.parametrize(
    "values",
    [[0.0] * 5, [1.0] * 40, [7.0] * 3 + [1.0] * 30, [1e8, 1.0, 1e-8], [3.0, 2.0] + [0.0] * 40],
)
def test_singular_values_of_hard_spectra(values):
    n = len(values)
    U, _ = torch.linalg.qr(random_matrix(n + 2, n, 1))
    V, _ = torch.linalg.qr(random_matrix(n, n, 2))
    M = (U * torch.tensor(values, dtype=F64)) @ V.T
    for matrix in (M, M.T):
        for k in (min(4, n), n):
            found = singular_values(LinearOperator.from_matrix(matrix), k)
            expected = torch.tensor(values, dtype=F64)[:k]
            torch.testing.assert_close(
                found.values, expected, rtol=1e-8, atol=1e-14 * max(1.0, values[0])
            )
            assert found.converged


def test_norm_of_a_convolution():
    weight = gaussian(4, 3, 3, 3, generator=as_generator(0), dtype=F64)
    A = LinearOperator.from_function(
        lambda x: conv2d(x, weight, padding=1), (3, 8, 8), batched=True, dtype=F64
    )
    norm = operator_norm(A, tolerance=1e-9)
    exact = float(torch.linalg.matrix_norm(A.to_dense(), 2))
    assert norm.converged
    assert float(norm) == pytest.approx(exact, rel=1e-10)
    assert exact * (1 - 1e-14) <= norm.upper


@PROPERTY
@given(
    m=st.integers(1, 60), n=st.integers(1, 60), seed=st.integers(0, 10**6), steps=st.integers(1, 6)
)
def test_norm_bounds(m, n, seed, steps):
    """The value never exceeds the norm, even when stopped early; the upper bound is above it."""
    M = random_matrix(m, n, seed)
    A = LinearOperator.from_matrix(M)
    exact = float(torch.linalg.matrix_norm(M, 2))
    norm = operator_norm(A, steps=steps, generator=seed)
    assert float(norm) <= exact * (1 + 1e-13)
    assert float(norm.left @ M @ norm.right) == pytest.approx(float(norm), rel=1e-12)
    distance = (torch.linalg.svdvals(M) - norm.value).abs().min()
    assert float(distance) <= norm.residual + 1e-12 * exact
    upper = operator_norm_upper_bound(A, steps=steps, failure_probability=1e-6, generator=seed)
    assert upper >= exact * (1 - 1e-12)


def test_upper_bound_fails_as_rarely_as_it_says():
    """At failure probability 1/2 and one step the bound must sometimes fail, and not too often."""
    M = torch.diag(torch.linspace(0, 1, 20, dtype=F64))
    A = LinearOperator.from_matrix(M)
    failures = sum(
        operator_norm_upper_bound(A, steps=3, failure_probability=0.5, generator=s) < 1
        for s in range(200)
    )
    # at most Binomial(200, 1/2): 100 + 3.3 standard deviations
    assert failures <= 123
    assert all(
        operator_norm_upper_bound(A, steps=3, failure_probability=1e-4, generator=s) >= 1
        for s in range(200)
    )


def test_upper_bound_tightens_and_is_exact_on_invariant_subspaces():
    A = LinearOperator.from_matrix(with_spectrum(np.linspace(0, 1, 150)))
    bounds = [operator_norm_upper_bound(A, steps=s) for s in (5, 10, 20, 40)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] < 1.03
    assert operator_norm_upper_bound(3 * LinearOperator.identity(50)) == pytest.approx(3, rel=1e-5)
    assert operator_norm_upper_bound(LinearOperator.from_matrix(torch.zeros(3, 2))) == 0


def test_maps_that_are_not_linear_are_refused():
    with pytest.raises(InvalidInput, match="not linear"):
        operator_norm(LinearOperator.from_function(torch.relu, (20,)))
    M = random_matrix(6, 6)
    wrong = LinearOperator((6, 6), lambda v: M @ v, lambda u: M @ u, dtype=F64)
    with pytest.raises(InvalidInput, match="rmatvec is not"):
        operator_norm(wrong)
    detached = LinearOperator((6, 6), lambda v: (M @ v).detach(), dtype=F64)
    with pytest.raises(InvalidInput, match="differ"):
        operator_norm(detached)
    with pytest.raises(NonFinite):
        operator_norm(LinearOperator((6, 6), lambda v: v * math.nan, lambda v: v))


@pytest.mark.parametrize("tolerance", [0.5, 0.1, 1e-2])
def test_a_loose_tolerance_is_no_sign_of_asymmetry(tolerance: float) -> None:
    """The second search meets what is left of vectors that were accepted early."""
    values = torch.cat([torch.tensor([50.0, 20.0, 9.0, 8.0, 7.0]), torch.rand(400)]).double()
    found = top_eigenpairs(
        LinearOperator.from_matrix(torch.diag(values)), 5, tolerance=tolerance, subspace=12
    )
    assert float(found.values[0]) == pytest.approx(50.0, rel=tolerance)
