"""What solvers hold at once stays within the memory they are given, and their error bars honest."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchtheory.linalg.density import spectral_density
from torchtheory.linalg.eigenvalues import top_eigenpairs
from torchtheory.linalg.krylov import SymmetricSpace, combine_rows, subspace_within
from torchtheory.linalg.operators import LinearOperator, vectors_within
from torchtheory.linalg.trace import trace

from ..peak_memory import peak_of_child

# so long that every vector is mapped by itself: the heap of malloc may not reuse what is freed
LENGTH = 9_000_000
ONE = 4 * LENGTH  # bytes of a vector of that length in float32


def spectrum(length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    values = torch.linspace(-1, 1, length, dtype=dtype)
    values[:6] = torch.tensor([20.0, 10.0, 8.0, 8.0, 5.0, 3.0], dtype=dtype)
    return values


def diagonal(length: int, dtype: torch.dtype = torch.float64) -> LinearOperator:
    values = spectrum(length, dtype)
    return LinearOperator((length, length), lambda v: values * v, symmetric=True, dtype=dtype)


@pytest.mark.parametrize("vectors", [0, 8, 10, 12, 20])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_few_vectors_find_the_same_eigenvalues(vectors: int, dtype: torch.dtype) -> None:
    n, A = 3000, diagonal(3000, dtype)
    bytes_each = n * torch.finfo(dtype).bits // 8
    found = top_eigenpairs(A, 4, tolerance=1e-4, memory=max(1, vectors * bytes_each))
    assert found.converged
    torch.testing.assert_close(
        found.values.double(), torch.tensor([20.0, 10.0, 8.0, 8.0]).double(), rtol=0, atol=1e-3
    )
    V = found.vectors
    torch.testing.assert_close(V.T @ V, torch.eye(4, dtype=dtype), rtol=0, atol=1e-5)
    exact = (A @ V - V * found.values).norm(dim=0)
    # the residuals are those of what is returned, up to the rounding of a product
    slack = 100 * float(torch.finfo(dtype).eps) * 20
    torch.testing.assert_close(found.residuals, exact, rtol=1e-2, atol=slack)


def test_products_stay_below_their_number_where_images_are_not_kept() -> None:
    calls = 0

    def action(v: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return spectrum(500) * v

    A = LinearOperator((500, 500), action, symmetric=True, dtype=torch.float64)
    found = top_eigenpairs(A, 3, tolerance=0.0, steps=40, memory=10 * 500 * 8)
    assert found.steps == calls == 40
    assert not found.converged
    exact = (A @ found.vectors - found.vectors * found.values).norm(dim=0)
    torch.testing.assert_close(found.residuals, exact)


def test_the_operator_says_what_there_is_unless_the_call_does() -> None:
    A = LinearOperator((10, 10), torch.clone, dtype=torch.float64, memory=10 * 80)
    assert vectors_within(A, None) == vectors_within(2 * A, None) == vectors_within(A.T, None) == 10
    assert vectors_within(A, 400) == vectors_within(A, "400B") == 5
    assert vectors_within(LinearOperator.identity(10), None) > 10**9


def test_a_space_takes_the_vectors_it_counts() -> None:
    for vectors, k in ((100, 1), (40, 1), (9, 1), (30, 5), (14, 5)):
        size, images = subspace_within(vectors, k, 30)
        held = size + 1 + (size if images else 0) + max(2, k)
        assert held <= vectors
        assert size >= k + 2
    space = SymmetricSpace(diagonal(50), 5, torch.Generator().manual_seed(0), images=False)
    assert space.AV is None


def test_rows_are_combined_in_place() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(5, 2_000_003, generator=generator, dtype=torch.float64)
    weights = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    expected, last = weights.T @ rows[:4], rows[2:].clone()
    combine_rows(rows, weights)
    torch.testing.assert_close(rows[:2], expected)
    assert torch.equal(rows[2:], last)


def test_a_trace_with_little_memory_is_still_right() -> None:
    A = diagonal(2000)
    exact = float(spectrum(2000).sum())
    for vectors in (0, 4, 16, 40):
        found = trace(A, samples=60, memory=max(1, vectors * 2000 * 8), generator=1)
        assert found.samples == 60
        assert abs(found.value - exact) <= 5 * found.standard_error + 1e-9


def test_probes_one_after_the_other_give_the_same_density() -> None:
    A = diagonal(400)
    together, apart = (
        spectral_density(A, probes=3, steps=10, memory=memory, generator=0)
        for memory in ("1GiB", 4 * 400 * 8)
    )
    grid = torch.linspace(-2, 21, 50, dtype=torch.float64)
    # the probes differ, as they are drawn in another order
    torch.testing.assert_close(together.cdf(grid), apart.cdf(grid), rtol=0, atol=0.1)


# -- of the whole process ----------------------------------------------------------------------


def _operator() -> LinearOperator:
    values = spectrum(LENGTH, torch.float32)
    return LinearOperator((LENGTH, LENGTH), lambda v: values * v, symmetric=True)


def _eigenvalue(A: LinearOperator, memory: int) -> None:
    found = top_eigenpairs(A, 1, tolerance=1e-3, memory=memory)
    assert abs(float(found.values[0]) - 20) < 0.1


def _density(A: LinearOperator, memory: int) -> None:
    spectral_density(A, probes=2, steps=3, memory=memory)


def _trace(A: LinearOperator, memory: int) -> None:
    trace(A, samples=12, memory=memory)


@pytest.mark.parametrize("work", [_eigenvalue, _density, _trace])
def test_the_peak_of_a_process_stays_within_the_memory(work: object) -> None:
    allowed = 10 * ONE
    peak = peak_of_child(work, _operator, allowed)  # type: ignore[arg-type]
    # what a product takes, and the pages of torch that are met for the first time
    assert peak <= allowed + 2 * ONE + 40 * 2**20


def test_the_peak_of_a_process_is_seen() -> None:
    unbounded = peak_of_child(_eigenvalue, _operator, 10**12)
    assert unbounded > 15 * ONE
