"""Products and polynomials by ReLU networks: certificates, zeros, ranges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial import polynomial as reference

from torchtheory.approximation.layer_maps import affine_map, layer_maps_of, merge_maps, relu_chain
from torchtheory.approximation.network_calculus import compose
from torchtheory.approximation.polynomials.products import (
    many_product_network,
    product_network,
    unit_product_network,
)
from torchtheory.approximation.polynomials.relu import (
    polynomial_levels,
    polynomial_network,
    polynomial_scale,
    polynomial_values,
)
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    NonFinite,
    ShapeMismatch,
    UnsupportedModel,
)

unit = st.floats(-1, 1)


@given(unit, unit, st.integers(1, 9), st.sampled_from([0.5, 1.0, 3.0]), st.booleans())
@settings(max_examples=40)
def test_product_within_its_bound(x: float, y: float, n: int, b: float, two: bool) -> None:
    a = product_network(n, b, identity="difference" if two else "sum")
    point = torch.tensor([[b * x, b * y]], dtype=torch.float64)
    value = a(point).item()
    assert abs(value - b * b * x * y) <= a.bound + 1e-14
    assert abs(value) <= b * b + 1e-14
    assert abs(a(point * torch.tensor([1.0, 0.0])).item()) <= 1e-15 * b * b


def test_sum_form_interpolates_on_its_grid() -> None:
    n = 3
    nodes = torch.linspace(-1, 1, 2**n + 1, dtype=torch.float64)
    grid = torch.cartesian_prod(nodes, nodes)
    torch.testing.assert_close(
        product_network(n, identity="sum")(grid), grid.prod(1), atol=1e-15, rtol=0
    )


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 9))
@settings(max_examples=40)
def test_unit_product_is_one_sided(x: float, y: float, n: int) -> None:
    a = unit_product_network(n)
    gap = a(torch.tensor([[x, y]], dtype=torch.float64)).item() - x * y
    assert -a.bound / 2 - 1e-15 <= gap <= a.bound + 1e-15


@given(st.lists(unit, min_size=1, max_size=7), st.integers(1, 6))
@settings(max_examples=30)
def test_many_factors(x: list[float], n: int) -> None:
    a = many_product_network(len(x), n)
    point = torch.tensor([x], dtype=torch.float64)
    assert abs(a(point).item() - float(np.prod(x))) <= a.bound + 1e-14


def test_many_factors_are_scaled() -> None:
    a = many_product_network(3, 12, bound=2.0)
    point = torch.tensor([[1.9, -1.5, 2.0]], dtype=torch.float64)
    assert abs(a(point).item() + 5.7) <= a.bound
    assert a.bound == 8 * 2 * 4.0**-13


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=6), unit)
@settings(max_examples=8)
def test_polynomial_against_numpy(coefficients: list[float], x: float) -> None:
    terms = {(k,): c for k, c in enumerate(coefficients)}
    a = polynomial_network(terms, 4)
    point = torch.tensor([[x]], dtype=torch.float64)
    expected = float(reference.polyval(x, np.array(coefficients)))
    assert abs(polynomial_values(terms, point).item() - expected) <= 1e-12
    assert abs(a(point).item() - expected) <= a.bound + 1e-12


def test_polynomial_of_two_variables_on_a_box() -> None:
    terms = {(2, 1): -3.0, (1, 0): 5.0, (0, 0): 0.5}
    a = polynomial_network(terms, polynomial_levels(terms, 1e-3, 2.0), [(0.0, 1.0), (0.0, 2.0)])
    assert polynomial_scale(terms, 2.0) == 3 * 8 * 2
    assert a.bound <= 1e-3
    x = torch.rand(200, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x[:, 1] *= 2
    assert float((a(x) - polynomial_values(terms, x)).abs().max()) <= a.bound


def test_affine_polynomials_are_exact() -> None:
    a = polynomial_network({(1, 0): 2.0, (0, 0): -1.0}, 1)
    assert a.bound == 0
    assert a(torch.tensor([[0.25, 0.9]], dtype=torch.float64)).item() == -0.5


def test_layer_maps_agree_with_the_calculus() -> None:
    inner, outer = product_network(2), many_product_network(1, 1)
    merged = relu_chain(merge_maps(layer_maps_of(outer), layer_maps_of(inner)))
    x = torch.rand(9, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    expected = compose(outer.network, inner.network)  # type: ignore[arg-type]
    torch.testing.assert_close(merged(x), expected(x))
    with pytest.raises(ShapeMismatch, match="outputs"):
        merge_maps(affine_map([[1.0]]), affine_map([[1.0], [2.0]]))
    with pytest.raises(UnsupportedModel, match="Sequential"):
        layer_maps_of(torch.nn.Linear(1, 1))
    tanh = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Tanh(), torch.nn.Linear(1, 1))
    with pytest.raises(UnsupportedModel, match="ReLU"):
        layer_maps_of(tanh)


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidInput, match="identity"):
        product_network(2, identity="half")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="bound"):
        product_network(2, bound=-1.0)
    with pytest.raises(InvalidInput, match="levels"):
        product_network(0)
    with pytest.raises(InvalidInput, match="factors"):
        many_product_network(0, 3)
    with pytest.raises(EmptyData, match="term"):
        polynomial_network({}, 3)
    with pytest.raises(ShapeMismatch, match="same variables"):
        polynomial_network({(1,): 1.0, (1, 2): 1.0}, 3)
    with pytest.raises(InvalidInput, match="exponents"):
        polynomial_network({(-1,): 1.0}, 3)
    with pytest.raises(NonFinite, match="coefficient"):
        polynomial_network({(1,): float("nan")}, 3)
    with pytest.raises(ShapeMismatch, match="box"):
        polynomial_network({(1, 2): 1.0}, 3, (0.0, 1.0))
    with pytest.raises(ShapeMismatch, match="takes"):
        polynomial_values({(1, 2): 1.0}, torch.zeros(3, 3))
