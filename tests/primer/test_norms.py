import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.primer.norms import cauchy_schwarz, check_norm, induced_norm
from torchtheory.primer.rationals import rational_between
from torchtheory.primer.spans import span

seeds = st.integers(0, 2**31)


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def ratio(A, x, p):
    return float(torch.linalg.vector_norm(A @ x, p) / torch.linalg.vector_norm(x, p))


class TestInducedNorm:
    def test_by_hand(self):
        A = torch.tensor([[1.0, -2.0], [3.0, 4.0]]).double()
        assert float(induced_norm(A, 1)) == 6.0
        assert float(induced_norm(A, math.inf)) == 7.0
        # singular values of a 2x2: s1² + s2² = 30, s1 s2 = 10
        assert float(induced_norm(A)) == pytest.approx(math.sqrt(15 + math.sqrt(125)))

    @pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
    def test_against_torch(self, p):
        A = draw(0, 5, 8)
        found = induced_norm(A, p)
        assert found.exact
        assert found.value == pytest.approx(float(torch.linalg.matrix_norm(A, p)), rel=1e-12)
        assert ratio(A, found.maximizer, p) == pytest.approx(found.value, rel=1e-12)

    @settings(max_examples=20, deadline=None)
    @given(seeds, st.floats(1.05, 20))
    def test_between_the_bounds(self, seed, p):
        A, x = draw(seed, 3, 4), draw(seed + 1, 4)
        found = induced_norm(A, p, steps=50)
        assert found.value <= found.upper * (1 + 1e-12)
        assert ratio(A, x, p) <= found.upper * (1 + 1e-12)
        assert ratio(A, found.maximizer, p) == pytest.approx(found.value, rel=1e-9)

    @settings(max_examples=10, deadline=None)
    @given(seeds, st.floats(1.2, 8))
    def test_dual_norm_of_a_positive_matrix(self, seed, p):
        A = draw(seed, 3, 4).abs() + 0.1
        q = p / (p - 1)
        one, other = induced_norm(A, p), induced_norm(A.T, q)
        assert one.value == pytest.approx(other.value, rel=1e-6)

    def test_zero_and_one_by_one(self):
        assert float(induced_norm(torch.zeros(2, 3), 3)) == 0.0
        assert float(induced_norm(torch.tensor([[-2.0]]).double(), 3)) == pytest.approx(2.0)

    def test_bad_input(self):
        with pytest.raises(InvalidInput, match="1 <= p"):
            induced_norm(torch.eye(2), 0.5)
        with pytest.raises(ShapeMismatch):
            induced_norm(torch.ones(3))
        with pytest.raises(NonFinite):
            induced_norm(torch.tensor([[math.nan]]))
        with pytest.raises(InvalidType):
            induced_norm(torch.ones(2, 2, dtype=torch.int64))


class TestCheckNorm:
    @pytest.mark.parametrize("p", [1, 1.5, 2, 7, math.inf])
    def test_no_counterexample_to_a_norm(self, p):
        found = check_norm(lambda v: torch.linalg.vector_norm(v, p), (4,), trials=100)
        assert not found.refuted

    def test_float32(self):
        found = check_norm(torch.norm, (3,), dtype=torch.float32)
        assert not found.refuted

    @pytest.mark.parametrize(
        ("function", "axiom"),
        [
            (lambda v: v.abs().sqrt().sum() ** 2, "triangle inequality"),
            (lambda v: v.square().sum(), "homogeneity"),
            (lambda v: (v[0] - v[1]).abs(), "definiteness"),
            (lambda v: -v.abs().sum(), "non-negativity"),
            (lambda v: v.abs().max() + 1, "homogeneity"),
        ],
    )
    def test_counterexample(self, function, axiom):
        found = check_norm(function, (3,))
        example = found.counterexamples[axiom]
        if axiom == "triangle inequality":
            assert float(function(example.u + example.v)) == example.left > example.right
        if axiom == "homogeneity":
            assert float(function(example.scalar * example.v)) == example.left
        if axiom == "definiteness":
            assert abs(float(function(example.v))) < 1e-9
            assert example.v.any()

    def test_bad_input(self):
        with pytest.raises(ShapeMismatch):
            check_norm(torch.norm, (0,))
        with pytest.raises(NonFinite):
            check_norm(lambda v: v.sum() / 0, (2,))


class TestCauchySchwarz:
    @settings(max_examples=50, deadline=None)
    @given(seeds, st.integers(1, 6))
    def test_inequality_and_parabola(self, seed, n):
        x, y = draw(seed, n), draw(seed + 1, n)
        found = cauchy_schwarz(x, y)
        assert found.gap >= -1e-12 * found.bound
        z = torch.linspace(-3, 3, 101, dtype=torch.float64)
        values = (x - z[:, None] * y).square().sum(1)
        assert found.minimum <= float(values.min()) + 1e-12
        assert found.minimum * float(y @ y) == pytest.approx(
            found.bound**2 - found.inner**2, abs=1e-9
        )

    def test_zero_vector(self):
        found = cauchy_schwarz(torch.ones(2), torch.zeros(2))
        assert (found.gap, found.minimum) == (0.0, 2.0)

    def test_lengths(self):
        with pytest.raises(ShapeMismatch):
            cauchy_schwarz(torch.ones(2), torch.ones(3))


class TestSpan:
    def test_examples_of_the_source(self):
        plane = span(torch.tensor([[-3.0, 2.0], [2.0, 3.0]]).double())
        assert plane.rank == 2
        coefficients = plane.coefficients(torch.tensor([0.5, 4.0]).double())
        assert torch.allclose(coefficients, torch.tensor([0.5, 1.0]).double())
        assert span(torch.tensor([[1.0, 2.0], [2.0, 4.0]]).double()).rank == 1

    @settings(max_examples=25, deadline=None)
    @given(seeds, st.integers(2, 8), st.integers(1, 5))
    def test_projection(self, seed, d, k):
        V, b = draw(seed, d, k), draw(seed + 1, d)
        found = span(V)
        nearest = found.project(b)
        assert found.contains(nearest)
        assert float((V.T @ (b - nearest)).abs().max()) < 1e-10
        assert torch.allclose(V @ found.coefficients(b), nearest, atol=1e-8)
        assert found.rank == int(torch.linalg.matrix_rank(V))

    def test_dimension(self):
        with pytest.raises(ShapeMismatch, match="dimension 3"):
            span(torch.ones(3, 1)).distance(torch.ones(2))


class TestRationals:
    @given(st.floats(-1e6, 1e6), st.floats(1e-12, 1e6))
    def test_between(self, a, gap):
        b = a + gap
        if a < b:
            assert Fraction(a) < rational_between(a, b) < Fraction(b)

    def test_by_hand(self):
        assert rational_between(0, 1) == Fraction(1, 2)

    def test_bad_input(self):
        with pytest.raises(InvalidInput):
            rational_between(1.0, 1.0)
        with pytest.raises(NonFinite):
            rational_between(0.0, math.inf)
