import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from torchtheory.core.errors import EmptyData, InvalidInput, NonFinite, ShapeMismatch
from torchtheory.core.intervals import hoeffding_radius
from torchtheory.generalization.concentration import (
    bernstein_radius,
    finite_class_radius,
    matrix_bernstein_radius,
    matrix_bernstein_tail,
    mcdiarmid_radius,
    mcdiarmid_tail,
    observed_differences,
    weighted_class_radius,
)
from torchtheory.generalization.learning.validation_bound import (
    log_models_allowed,
    validation_bounds,
    validation_sample_size,
    validation_slack,
)
from torchtheory.generalization.vc.parameter_counting import (
    count_parameters_bounds,
    input_dimension,
    log10_parameters_needed,
)

deltas = st.floats(1e-9, 0.99)
sizes = st.integers(1, 10**6)


@given(sizes, deltas, st.floats(0.1, 10))
def test_one_function_is_hoeffding(n: int, delta: float, width: float) -> None:
    one = finite_class_radius(1, n, delta, low=-1.0, high=width - 1)
    assert one == pytest.approx(hoeffding_radius(n, delta, -1.0, width - 1))
    assert finite_class_radius(1, n, delta, one_sided=True) <= finite_class_radius(1, n, delta)


@given(st.integers(1, 10**9), sizes, deltas)
def test_union_bound_is_hoeffding_at_a_share_of_delta(count: int, n: int, delta: float) -> None:
    assert finite_class_radius(count, n, delta) == pytest.approx(hoeffding_radius(n, delta / count))


def test_golden() -> None:
    assert finite_class_radius(100, 1000, 0.05) == pytest.approx(0.064397, abs=5e-7)
    assert weighted_class_radius(math.log(1000), 10_000, 0.05) == pytest.approx(0.02302, abs=5e-6)


@given(st.floats(1e-6, 1e3), st.floats(1e-6, 1e3), st.integers(1, 1000), deltas)
def test_matrix_bernstein_inverts_its_tail(v: float, b: float, d: int, delta: float) -> None:
    root = matrix_bernstein_radius(v, b, d, delta)
    assert matrix_bernstein_tail(root, v, b, d) == pytest.approx(delta, rel=1e-6)
    assert root <= matrix_bernstein_radius(v, b, d, delta, relaxed=True) * (1 + 1e-12)


@given(st.floats(0, 0.25), st.integers(1, 1000), deltas)
def test_bernstein_is_the_matrix_one_in_one_dimension(v: float, n: int, delta: float) -> None:
    expected = matrix_bernstein_radius(n * v, 1.0, 1, delta) / n
    assert bernstein_radius(v, 1.0, n, delta) == pytest.approx(expected)


@given(st.floats(0.01, 0.5), st.integers(2, 400), st.floats(0.001, 0.4))
def test_bernstein_covers_by_the_exact_binomial_law(p: float, n: int, delta: float) -> None:
    # R - R_S > radius iff the number of errors is below n (p - radius)
    radius = bernstein_radius(p * (1 - p), 1.0, n, delta)
    least = math.ceil(n * (p - radius) - 1e-9)
    assert stats.binom.cdf(least - 1, n, p) <= delta


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=20), deltas)
def test_mcdiarmid_inverts(c: list[float], delta: float) -> None:
    assert mcdiarmid_tail(c, mcdiarmid_radius(c, delta)) == pytest.approx(delta, rel=1e-6)
    assert mcdiarmid_tail(c, 0.0) == 1


def test_differences_of_a_maximum() -> None:
    x = torch.tensor([[0.0, 1.0], [2.0, 5.0]])
    new = torch.tensor([[3.0, 0.0], [0.0, 0.0]])
    assert observed_differences(lambda z: z.amax(-1), x, new).tolist() == [2.0, 3.0]
    assert mcdiarmid_tail([0.0, 0.0], 0.1) == 0


def test_validation_numbers_of_the_source() -> None:
    assert validation_slack(10_000, 1e9, 0.1, variance=1.0) == pytest.approx(0.069396, abs=5e-7)
    assert validation_slack(10_000, 1e9, 0.1, variance=0.0025) == pytest.approx(0.004928, abs=5e-7)


@given(st.integers(2, 10_000), st.data(), st.floats(1, 1e12), st.floats(0.001, 0.5))
def test_exact_bound_is_the_binomial_quantile(
    m: int, data: st.DataObject, models: float, delta: float
) -> None:
    k = data.draw(st.integers(0, m))
    found = validation_bounds(k, m, models, delta)
    assert found.exact <= min(found.hoeffding, found.bernstein) + 1e-9
    assert k / m <= found.exact <= 1
    if k < m:
        assert stats.binom.cdf(k, m, found.exact) == pytest.approx(delta / models, rel=1e-5)
        assert found.exact <= found.empirical_bernstein + 1e-9


@given(st.floats(0.01, 1), st.floats(1, 1e9), st.floats(0.001, 0.5), st.floats(0, 0.25))
def test_inverse_calls(slack: float, models: float, delta: float, variance: float) -> None:
    m = validation_sample_size(slack, models, delta, variance=variance)
    assert validation_slack(m, models, delta, variance=variance) <= slack
    if m > 1:
        assert validation_slack(m - 1, models, delta, variance=variance) > slack
    allowed = log_models_allowed(slack, m, delta, variance=variance)
    assert allowed >= math.log(models) - 1e-6


@given(st.integers(2, 10**8), st.integers(1, 10**8))
def test_vacuous_when_parameters_outnumber_samples(p: int, m: int) -> None:
    found = count_parameters_bounds(p, m)
    assert found.load == p / m
    if p >= m:
        assert found.bits >= 1
    assert found.vacuous == (min(found.order, found.bits, found.vc) >= 1)
    more = count_parameters_bounds(p, 2 * m)
    assert more.bits < found.bits
    assert more.vc <= found.vc


def test_dimensions() -> None:
    assert input_dimension("CIFAR-10", colors=False) == 1024
    assert log10_parameters_needed(784, 0.5) == pytest.approx(math.log10(2**784))
    assert log10_parameters_needed(10, 0.1, discontinuous=True) == pytest.approx(5)


def test_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one function"):
        finite_class_radius(0, 10, 0.1)
    with pytest.raises(InvalidInput, match="log"):
        weighted_class_radius(-1.0, 10, 0.1)
    with pytest.raises(InvalidInput, match="empty"):
        finite_class_radius(1, 10, 0.1, low=1.0, high=1.0)
    with pytest.raises(EmptyData):
        finite_class_radius(1, 0, 0.1)
    with pytest.raises(InvalidInput, match="delta"):
        bernstein_radius(1.0, 1.0, 1, 1.0)
    with pytest.raises(InvalidInput, match="both 0"):
        bernstein_radius(0.0, 0.0, 1, 0.1)
    with pytest.raises(InvalidInput, match="negative"):
        matrix_bernstein_tail(-1.0, 1.0, 1.0, 1)
    with pytest.raises(InvalidInput, match="dimension"):
        matrix_bernstein_tail(1.0, 1.0, 1.0, 0)
    with pytest.raises(EmptyData):
        mcdiarmid_radius([], 0.1)
    with pytest.raises(NonFinite):
        mcdiarmid_radius([math.nan], 0.1)
    with pytest.raises(InvalidInput, match="not negative"):
        mcdiarmid_tail([-1.0], 0.1)
    with pytest.raises(ShapeMismatch):
        observed_differences(lambda z: z.sum(-1), torch.zeros(2, 3), torch.zeros(2, 2))
    with pytest.raises(InvalidInput, match=r"0\.\.10"):
        validation_bounds(11, 10, 1, 0.1)
    with pytest.raises(EmptyData):
        validation_slack(0, 1, 0.1)
    with pytest.raises(InvalidInput, match="at least one model"):
        validation_slack(10, 0, 0.1)
    with pytest.raises(InvalidInput, match="MNIST"):
        input_dimension("SVHN")
    with pytest.raises(InvalidInput):
        log10_parameters_needed(3, 1.0)
    with pytest.raises(InvalidInput):
        count_parameters_bounds(1, 10)
