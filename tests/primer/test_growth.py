"""o, O and Omega by ratios."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtheory.core.errors import InvalidInput, NonFinite
from torchtheory.primer.growth import growth_compare, polynomial_growth

COEFFICIENTS = st.lists(st.integers(-9, 9), min_size=1, max_size=5)


def signature(found):
    return found.little_o, found.big_o, found.omega


@given(COEFFICIENTS, COEFFICIENTS)
def test_the_ratio_along_powers_agrees_with_the_leading_terms(f, g):
    g = [1, *g]
    exact = polynomial_growth(f, g)

    def value(coefficients, n):
        total = 0
        for c in coefficients:
            total = total * n + c
        return total

    seen = growth_compare(lambda n: value(f, n), lambda n: max(value(g, n), Fraction(1, 9)))
    assert signature(seen) == signature(exact)
    assert exact.exact
    assert not seen.exact


@pytest.mark.parametrize(
    ("f", "g", "expected"),
    [
        (lambda n: math.log(math.log(n)), lambda n: 1, (False, False, True)),
        (lambda n: 1 + 1 / math.log(n), lambda n: 1, (False, True, True)),
        (lambda n: n % 2, lambda n: 1, (False, True, False)),
        (lambda n: 0, lambda n: 1, (True, True, False)),
        (lambda n: -n, lambda n: n, (False, True, True)),
    ],
)
def test_slow_oscillating_and_vanishing_functions(f, g, expected):
    assert signature(growth_compare(f, g)) == expected


def test_bad_functions_are_refused():
    with pytest.raises(NonFinite, match="compare logarithms"):
        growth_compare(lambda n: math.inf, lambda n: 1)
    with pytest.raises(InvalidInput, match="positive"):
        growth_compare(lambda n: n, lambda n: -n)
    with pytest.raises(InvalidInput, match="positive"):
        polynomial_growth([1], [0])
    with pytest.raises(InvalidInput, match="a number"):
        growth_compare(lambda n: "n", lambda n: n)
