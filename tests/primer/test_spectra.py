import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.primer.spectra import (
    characteristic_polynomial,
    definiteness,
    eigenvalues,
    loewner_order,
    singular_decomposition,
)

seeds = st.integers(0, 2**31)


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class TestEigenvalues:
    @settings(max_examples=20, deadline=None)
    @given(seeds, st.integers(1, 7))
    def test_polynomial_against_numpy(self, seed, d):
        A = draw(seed, d, d)
        assert np.allclose(characteristic_polynomial(A), np.poly(A.numpy()), atol=1e-8)

    def test_multiplicities(self):
        A = torch.block_diag(torch.tensor([[2.0, 1.0], [0.0, 2.0]]), torch.eye(3)).double()
        found = eigenvalues(A)
        assert [(round(e.value.real), e.algebraic, e.geometric) for e in found] == [
            (2, 2, 1),
            (1, 3, 3),
        ]

    def test_complex_pair(self):
        found = eigenvalues(torch.tensor([[0.0, -1.0], [1.0, 0.0]]))
        assert [e.value for e in found] == [1j, -1j]

    def test_zero_matrix(self):
        (only,) = eigenvalues(torch.zeros(3, 3))
        assert (only.value, only.algebraic, only.geometric) == (0, 3, 3)

    def test_bad_input(self):
        with pytest.raises(ShapeMismatch):
            eigenvalues(torch.ones(2, 3))
        with pytest.raises(InvalidInput):
            eigenvalues(torch.eye(2), tolerance=2.0)


class TestOrder:
    @settings(max_examples=20, deadline=None)
    @given(seeds)
    def test_order(self, seed):
        S = draw(seed, 4, 4)
        B, P = S + S.T, draw(seed + 1, 4, 2)
        A = B + P @ P.T
        found = loewner_order(A, B)
        assert found.order == ">="
        assert loewner_order(B, A).order == "<="
        assert float(found.above @ (A - B) @ found.above) == pytest.approx(found.largest)

    def test_incomparable(self):
        A = torch.diag(torch.tensor([1.0, 0.0]))
        found = loewner_order(A, torch.eye(2) - A)
        assert found.order == "incomparable"
        assert found.smallest < 0 < found.largest
        assert loewner_order(A, A).order == "=="

    def test_definiteness_sees_the_symmetric_part(self):
        A = torch.tensor([[1.0, 4.0], [0.0, 1.0]]).double()
        found = definiteness(A)
        assert not found.semidefinite
        assert float(found.witness @ A @ found.witness) == pytest.approx(-1.0)
        assert definiteness(torch.zeros(2, 2)).semidefinite

    def test_bad_input(self):
        with pytest.raises(InvalidInput, match="symmetric"):
            loewner_order(torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.eye(2))
        with pytest.raises(ShapeMismatch):
            loewner_order(torch.eye(3), torch.eye(2))


class TestSingularDecomposition:
    @settings(max_examples=25, deadline=None)
    @given(seeds, st.integers(1, 6), st.integers(1, 6), st.integers(1, 6))
    def test_everything(self, seed, m, n, r):
        r = min(m, n, r)
        A = draw(seed, m, r) @ draw(seed + 1, r, n)
        found = singular_decomposition(A)
        assert found.rank == r
        assert torch.allclose(found.left @ found.diagonal @ found.right.T, A, atol=1e-10)
        assert torch.allclose(found.terms().sum(0), A, atol=1e-10)
        assert torch.allclose(found.left.T @ found.left, torch.eye(m).double(), atol=1e-10)
        onto = found.column_space @ found.column_space.T
        assert torch.allclose(onto @ A, A, atol=1e-10)
        assert torch.allclose(A @ found.row_space @ found.row_space.T, A, atol=1e-10)
        assert float((A @ found.kernel).abs().sum()) < 1e-9
        for k in range(r):
            error = A - found.partial_sum(k)
            assert float(torch.linalg.matrix_norm(error, 2)) == pytest.approx(
                float(found.values[k]), abs=1e-9
            )

    def test_bad_input(self):
        with pytest.raises(InvalidInput):
            singular_decomposition(torch.eye(2)).partial_sum(3)
