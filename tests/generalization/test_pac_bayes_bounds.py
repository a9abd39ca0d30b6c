"""The binary kl and its inverses, divergences, and the bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats
from torch import Tensor

from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.generalization.pac_bayes.bernoulli_kl import (
    binary_kl,
    lower_kl_inverse,
    upper_kl_inverse,
    upper_kl_slopes,
)
from torchtheory.generalization.pac_bayes.bounds import (
    KL,
    SQUARE,
    TWICE_SQUARE,
    Deviation,
    catoni_bound,
    deviation_bound,
    log_moment,
    maurer_bound,
    mcallester_bound,
    seeger_bound,
)
from torchtheory.generalization.pac_bayes.divergences import (
    discrete_kl,
    dominates,
    donsker_varadhan,
    gaussian_kl,
    tilted,
)

probability = st.floats(0.0, 1.0)
inside = st.floats(1e-6, 1 - 1e-6)
level = st.floats(1e-6, 20.0)


def test_binary_kl_by_hand() -> None:
    assert binary_kl(0.5, 0.25) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert binary_kl(0.3, 0.3) == 0
    assert binary_kl(1.0, 0.25) == pytest.approx(math.log(4))
    assert (binary_kl(0.2, 0.0), binary_kl(0.2, 1.0)) == (math.inf, math.inf)
    q = torch.tensor([0.1, 0.9])
    assert binary_kl(q, 0.5).dtype == torch.float32
    assert torch.allclose(binary_kl(q, 0.5), torch.tensor(0.3681), atol=1e-4)


@given(probability, level)
@settings(max_examples=200, deadline=None)
def test_the_upper_inverse_is_the_largest_solution(q: float, c: float) -> None:
    p = upper_kl_inverse(q, c)
    assert q <= p <= 1
    if p < 1 - 1e-9:  # nearer to 1, the rounding of p itself moves the divergence
        assert binary_kl(q, p) == pytest.approx(c, rel=1e-6, abs=1e-12)
    else:
        assert c >= binary_kl(q, 1 - 1e-9) - 1e-6
    assert p <= q + math.sqrt(c / 2) + 1e-12
    tensor = upper_kl_inverse(torch.tensor(q, dtype=torch.float64), c)
    assert float(tensor) == pytest.approx(p, rel=1e-12, abs=1e-15)
    assert lower_kl_inverse(1 - q, c) == pytest.approx(1 - upper_kl_inverse(q, c), abs=1e-9)


@given(st.floats(0.001, 0.9), st.floats(1e-3, 2.0))
@settings(max_examples=60, deadline=None)
def test_against_a_root_finder(q: float, c: float) -> None:
    top = 1 - 1e-13
    if binary_kl(q, top) > c:
        root = optimize.brentq(lambda p: binary_kl(q, p) - c, q, top, xtol=1e-14)
        assert upper_kl_inverse(q, c) == pytest.approx(root, abs=1e-9)


def test_saturated_inverses_do_not_fall_back() -> None:
    q = torch.tensor([0.9, 0.999, 0.5, 1.0, 0.0]).double()
    p = upper_kl_inverse(q, 100.0)
    assert bool((p >= 1 - 1e-12).all())
    assert upper_kl_inverse(0.999, 1.0) == 1
    assert upper_kl_inverse(0.3, math.inf) == 1
    assert upper_kl_inverse(0.3, 0.0) == 0.3
    assert float(upper_kl_inverse(torch.tensor(0.3, dtype=torch.float64), 0.0)) == 0.3


@given(st.floats(0.01, 0.6), st.floats(0.01, 1.0))
@settings(max_examples=40, deadline=None)
def test_slopes_are_derivatives(q: float, c: float) -> None:
    p, by_q, by_c = upper_kl_slopes(q, c)
    h = 1e-6
    assert (upper_kl_inverse(q + h, c) - upper_kl_inverse(q - h, c)) / (2 * h) == pytest.approx(
        by_q, rel=1e-4
    )
    assert (upper_kl_inverse(q, c + h) - upper_kl_inverse(q, c - h)) / (2 * h) == pytest.approx(
        by_c, rel=1e-4
    )
    values = torch.tensor([q, c], dtype=torch.float64, requires_grad=True)
    upper_kl_inverse(values[0], values[1]).backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([by_q, by_c], rel=1e-8)
    assert p == pytest.approx(upper_kl_inverse(q, c))


def gradients(
    function: Callable[..., Tensor], q: float, c: float, dtype: torch.dtype
) -> list[float]:
    values = torch.tensor([q, c], dtype=dtype, requires_grad=True)
    function(values[0], values[1]).backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None
    return [float(v) for v in values.grad]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_at_the_ends(dtype: torch.dtype) -> None:
    inf, upper, lower = math.inf, upper_kl_inverse, lower_kl_inverse
    left = math.exp(-0.5)  # p = 1 - e^-c at q = 0
    expected = {
        (0.0, 0.5): ([inf, left], [0.0, 0.0]),
        (1.0, 0.5): ([0.0, 0.0], [inf, -left]),
        (0.25, 0.0): ([1.0, inf], [1.0, -inf]),
        (0.0, 0.0): ([1.0, 1.0], [1.0, 0.0]),
        (1.0, 0.0): ([1.0, 0.0], [1.0, -1.0]),
        (0.25, inf): ([0.0, 0.0], [0.0, 0.0]),
    }
    for (q, c), (above, below) in expected.items():
        assert gradients(upper, q, c, dtype) == pytest.approx(above, rel=1e-6)
        assert gradients(lower, q, c, dtype) == pytest.approx(below, rel=1e-6)
        assert list(upper_kl_slopes(q, c)[1:]) == pytest.approx(above, rel=1e-6)
    # for small c, p - q of rounded numbers would be off by percents
    for function, sign in ((upper, 1), (lower, -1)):
        by_c = gradients(function, 0.25, 1e-12, dtype)[1]
        assert by_c == pytest.approx(sign * math.sqrt(0.1875 / 2e-12), rel=1e-5)
    # what does not depend on the inverse has no gradient, not NaN
    q = torch.zeros(2, dtype=dtype, requires_grad=True)
    (through,) = torch.autograd.grad((upper(q, 0.5) * torch.tensor([0.0, 1.0])).sum(), q)
    assert through.tolist() == [0.0, inf]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_of_the_divergence_at_the_ends(dtype: torch.dtype) -> None:
    inf = math.inf
    assert gradients(binary_kl, 0.0, 0.5, dtype) == [-inf, 2.0]
    assert gradients(binary_kl, 1.0, 0.5, dtype) == [inf, -2.0]
    assert gradients(binary_kl, 0.5, 0.5, dtype) == [0.0, 0.0]
    assert gradients(binary_kl, 0.0, 0.0, dtype) == [0.0, 1.0]
    by_q, by_p = gradients(binary_kl, 0.3, 1e-12, dtype)
    assert by_q == pytest.approx(math.log(0.3 / 0.7) - math.log(1e-12), rel=1e-6)
    assert by_p == pytest.approx(-0.3e12, rel=1e-6)
    q = torch.tensor([0.05, 0.3, 0.9], dtype=torch.float64, requires_grad=True)
    p = torch.tensor([0.2, 0.31, 0.1], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(binary_kl, (q, p))


def test_refused_probabilities() -> None:
    for q in (-0.1, 1.1, math.nan):
        with pytest.raises(InvalidInput):
            binary_kl(q, 0.5)
        with pytest.raises(InvalidInput):
            upper_kl_inverse(q, 0.5)
        with pytest.raises(InvalidInput):
            upper_kl_inverse(torch.tensor([0.5, q]), 0.5)
    for c in (-1.0, math.nan):
        with pytest.raises(InvalidInput):
            upper_kl_inverse(0.5, c)


# --------------------------------------------------------------------------------- divergences


def test_discrete_divergence_against_scipy() -> None:
    g = torch.Generator().manual_seed(0)
    q, p = (torch.softmax(torch.randn(5, 7, generator=g).double(), 1) for _ in range(2))
    assert discrete_kl(q, p).tolist() == pytest.approx(stats.entropy(q.T, p.T).tolist())
    hole = torch.tensor([0.5, 0.5, 0.0])
    assert discrete_kl(torch.tensor([0.2, 0.2, 0.6]), hole) == math.inf
    assert not dominates(hole, torch.tensor([0.2, 0.2, 0.6]))
    with pytest.raises(ShapeMismatch):
        discrete_kl(hole, torch.tensor([0.5, 0.5]))
    with pytest.raises(InvalidInput, match="add up to 1"):
        discrete_kl(torch.tensor([0.5, 0.4]), torch.tensor([0.5, 0.5]))


@given(st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_change_of_measure(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    q, p = (torch.softmax(2 * torch.randn(6, generator=g).double(), 0) for _ in range(2))
    values = 4 * torch.randn(6, generator=g).double()
    left, right = donsker_varadhan(q, p, values)
    assert float(left) <= float(right) + 1e-12
    left, right = donsker_varadhan(tilted(p, values), p, values)
    assert float(left) == pytest.approx(float(right), abs=1e-12)


def test_gaussian_divergence_against_torch() -> None:
    g = torch.Generator().manual_seed(0)
    mean, center = (torch.randn(9, generator=g).double() for _ in range(2))
    variance = torch.rand(9, generator=g).double() + 0.1
    normal = torch.distributions.Normal
    own = gaussian_kl(mean, variance, center, 0.7)
    peer = torch.distributions.kl_divergence(
        normal(mean, variance.sqrt()), normal(center, math.sqrt(0.7))
    ).sum()
    assert float(own) == pytest.approx(float(peer))
    d, lam = 9, 0.7
    formula = 0.5 * (
        variance.sum() / lam
        - d
        + (mean - center).square().sum() / lam
        + d * math.log(lam)
        - variance.log().sum()
    )
    assert float(own) == pytest.approx(float(formula))
    with pytest.raises(InvalidInput, match="positive"):
        gaussian_kl(mean, 0 * variance, center, 1.0)
    with pytest.raises(ShapeMismatch):
        gaussian_kl(mean, variance[:3], center, 1.0)


# ------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize(
    ("kind", "n", "value"),
    [
        (KL, 5, 3.5104),
        (KL, 8, 4.2450),
        (KL, 20, 6.2936),
        (KL, 50, 9.5431),
        (TWICE_SQUARE, 20, 2.9948),
        (SQUARE, 20, 1.3985),
        (SQUARE, 50, 1.4075),
    ],
)
def test_exact_constants(kind: Deviation, n: int, value: float) -> None:
    assert math.exp(log_moment(kind, n)) == pytest.approx(value, abs=5e-5)


def test_one_sample_by_hand() -> None:
    assert math.exp(log_moment(KL, 1)) == pytest.approx(2)  # 1 + 1
    # sup_m (1-m) e^{m²} + m e^{(1-m)²}, at 1/2
    assert math.exp(log_moment(SQUARE, 1)) == pytest.approx(math.exp(0.25))


@pytest.mark.parametrize("n", [3, 200])
@pytest.mark.parametrize(
    "kind",
    [
        SQUARE,
        TWICE_SQUARE,
        Deviation("none", lambda r, e: 0 * r),
        Deviation("lopsided", lambda r, e: (r - 0.3 * e) ** 2),
        Deviation("narrow", lambda r, e: 9 * (r - 0.4).abs() - 4 * e),
    ],
    ids=lambda kind: kind.name,
)
def test_moments_are_bounded_from_above(kind: Deviation, n: int) -> None:
    """Also between any points that a search would look at."""
    k = torch.arange(n + 1).double()
    ms = torch.linspace(1e-12, 1 - 1e-12, 3001, dtype=torch.float64)[:, None]
    law = torch.distributions.Binomial(n, ms, validate_args=False).log_prob(k)
    values = torch.logsumexp(law + n * kind(ms.expand_as(law), (k / n).expand_as(law)), 1)
    most = float(values.max())
    assert most <= log_moment(kind, n) + 1e-12
    assert log_moment(kind, n) <= most + 1e-5 * n + 1e-5


def test_the_same_deviation_by_hand_and_built_in() -> None:
    mine = Deviation("mine", lambda r, e: (r - e) ** 2)
    for inputs in ((0.1, 3.0, 40, 0.05), (0.4, 0.0, 10, 0.5)):
        assert deviation_bound(mine, *inputs) == pytest.approx(deviation_bound(SQUARE, *inputs))
    assert deviation_bound(mine, 0.9, 1e9, 10, 0.05) == 1
    own_kl = Deviation("kl again", lambda r, e: binary_kl(e, r))
    assert deviation_bound(own_kl, 0.1, 3.0, 40, 0.05) == pytest.approx(
        deviation_bound(KL, 0.1, 3.0, 40, 0.05), abs=1e-6
    )


@given(probability, st.floats(0, 1000), st.integers(8, 5000), st.floats(1e-6, 0.5))
@settings(max_examples=100, deadline=None)
def test_order_of_the_bounds(e: float, kl: float, n: int, delta: float) -> None:
    seeger, maurer = seeger_bound(e, kl, n, delta), maurer_bound(e, kl, n, delta)
    assert deviation_bound(KL, e, kl, n, delta) <= seeger + 1e-12
    assert e <= seeger <= min(1, maurer) + 1e-12
    assert maurer <= mcallester_bound(e, kl, n, delta)
    exact = upper_kl_inverse(e, (kl - math.log(delta)) / n)
    assert catoni_bound(e, kl, n, delta, temperature=1.3) >= exact - 1e-9


def test_table_one_recomputed() -> None:
    rows = [(0.028, 5144, 0.161), (0.027, 5977, 0.174), (0.027, 5791, 0.171)]
    rows += [(0.028, 6534, 0.186), (0.029, 8558, 0.222), (0.027, 7861, 0.206)]
    for error, kl, value in rows:
        assert seeger_bound(error, kl, 55_000, 0.035) == pytest.approx(value, abs=6e-4)


def test_refused_bounds() -> None:
    good = (0.1, 1.0, 100, 0.05)
    for place, bad in ((0, 1.5), (0, -0.1), (1, -1.0), (1, math.nan), (2, 0), (2, 1.5), (3, 0.0)):
        inputs = list(good)
        inputs[place] = bad
        for bound in (mcallester_bound, maurer_bound, seeger_bound, catoni_bound):
            with pytest.raises(InvalidInput):
                bound(*inputs)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="8 samples"):
        seeger_bound(0.1, 1.0, 7, 0.05)
    with pytest.raises(InvalidInput, match="temperature"):
        catoni_bound(*good, temperature=0.0)
    with pytest.raises(InvalidInput, match="jointly convex"):
        Deviation("concave", lambda r, e: -((r - e) ** 2))
    assert seeger_bound(0.1, math.inf, 100, 0.05) == 1


def exact_kl(q: float, p: float) -> Any:
    q, p = mpmath.mpf(q), mpmath.mpf(p)
    ones = q * mpmath.log(q / p) if q else mpmath.mpf(0)
    return ones + ((1 - q) * (mpmath.log1p(-q) - mpmath.log1p(-p)) if q < 1 else 0)


ENDS = (0.0, 5e-324, 1e-300, 1e-20, 0.1, 0.3, 0.5, 0.9, 1 - 2.0**-53, 1.0)
DIVERGENCES = (5e-324, 1e-40, 1e-17, 1e-8, 1e-3, 0.05, 0.5, 3.0, 40.0, 700.0, 2000.0)


def outside(q: float, c: float, upper: float, lower: float) -> bool:
    """In 60 digits: neither bound lies within the interval that it bounds."""
    with mpmath.workdps(60):
        above = upper == 1 or (upper > q and exact_kl(q, upper) >= c)
        return above and (lower == 0 or (lower < q and exact_kl(q, lower) >= c))


def test_inverses_are_rounded_outward_at_the_ends() -> None:
    for q in ENDS:
        for c in DIVERGENCES:
            assert outside(q, c, upper_kl_inverse(q, c), lower_kl_inverse(q, c)), (q, c)
    grid = torch.cartesian_prod(
        *(torch.tensor(v, dtype=torch.float64) for v in (ENDS, DIVERGENCES))
    )
    found = zip(*(f(*grid.T).tolist() for f in (upper_kl_inverse, lower_kl_inverse)), strict=True)
    for (q, c), (upper, lower) in zip(grid.tolist(), found, strict=True):
        assert outside(q, c, upper, lower), (q, c)


@given(st.floats(0, 1), st.floats(-25, 3))
@settings(max_examples=300, deadline=None)
def test_inverses_are_rounded_outward_and_tight(q: float, exponent: float) -> None:
    c = 10.0**exponent
    upper, lower = upper_kl_inverse(q, c), lower_kl_inverse(q, c)
    assert outside(q, c, upper, lower)
    single = torch.tensor(q, dtype=torch.float32), torch.tensor(c, dtype=torch.float32)
    if float(single[1]) > 0:
        rounded = [float(f(*single)) for f in (upper_kl_inverse, lower_kl_inverse)]
        assert outside(float(single[0]), float(single[1]), *rounded)
    # a thousand units further in they are inside: nothing is given away. An exponential loses
    # as many digits as its exponent has
    with mpmath.workdps(60):
        inner = upper * (1 - 2.0**-42)
        assert inner <= q or upper == 1 or exact_kl(q, inner) <= c
        if lower > 1e-300:
            inner = lower * (1 + 2.0**-42 * (1 - math.log(lower)))
            assert inner >= q or exact_kl(q, inner) <= c


def test_the_lower_inverse_has_its_own_derivatives() -> None:
    q = torch.tensor([0.05, 0.3, 0.9], dtype=torch.float64, requires_grad=True)
    c = torch.tensor([0.02, 0.1, 1.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lower_kl_inverse, (q, c))
    # small risks keep their digits: of 1 - (1 - q) nothing would be left
    assert lower_kl_inverse(1e-20, 1e-22) == pytest.approx(8.6418e-21, rel=1e-3)
