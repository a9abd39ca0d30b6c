"""The table of activations, its measured properties, and softmax."""

from __future__ import annotations

import math

import pytest
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
    UnknownName,
)
from torchtheory.nets.activations.properties import (
    MOST_DERIVATIVES,
    applicable_theorems,
    inspect_activation,
    invert,
    point_of_nonzero_derivative,
)
from torchtheory.nets.activations.table import (
    ACTIVATIONS,
    FOURTEEN,
    Pointwise,
    activation,
    as_layer,
    logistic_derivative,
    logistic_derivative_polynomial,
    logit,
    nth_derivative,
)
from torchtheory.neurons.softmax import fix_gauge, softmax_jacobian, two_class_logit

ROWS = list(ACTIVATIONS.values())
NUMBERS = st.floats(-20, 20, allow_nan=False)


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_fourteen_of_the_table_are_there() -> None:
    assert len(FOURTEEN) == 14
    assert set(FOURTEEN) <= set(ACTIVATIONS)


@pytest.mark.parametrize(
    ("name", "parameters", "at_minus_two", "at_two"),
    [
        ("linear", {}, -2, 2),
        ("heaviside", {}, 0, 1),
        ("sign", {}, -1, 1),
        ("logistic", {}, 1 / (1 + math.e**2), 1 / (1 + math.e**-2)),
        ("relu", {}, 0, 2),
        ("power relu", {"k": 3}, 0, 8),
        ("parametric relu", {"a": 3}, -2, 6),
        ("leaky relu", {"slope": 0.1}, -0.2, 2),
        ("elu", {"alpha": 2}, 2 * (math.e**-2 - 1), 2),
        ("softsign", {}, -2 / 3, 2 / 3),
        ("isrlu", {"a": 2}, -2 / 3, 2),
        ("isru", {"a": 2}, -2 / 3, 2 / 3),
        ("tanh", {}, -math.tanh(2), math.tanh(2)),
        ("arctan", {}, -math.atan(2), math.atan(2)),
        ("softplus", {}, math.log1p(math.e**-2), math.log1p(math.e**2)),
        ("gaussian", {}, math.e**-2, math.e**-2),
    ],
)
def test_values_by_hand(
    name: str, parameters: dict[str, float], at_minus_two: float, at_two: float
) -> None:
    values = activation(name, **parameters)(column(-2, 2))
    assert values.tolist() == pytest.approx([at_minus_two, at_two], rel=1e-14)


def test_steps_at_zero() -> None:
    zero = column(0)
    assert activation("heaviside")(zero).item() == 0
    assert activation("closed heaviside")(zero).item() == 1
    assert activation("sign")(zero).item() == 1


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
@settings(max_examples=25, deadline=None)
@given(x=NUMBERS.filter(lambda v: abs(v) > 1e-3))
def test_derivative_is_the_limit_of_quotients(row, x: float) -> None:
    h = 1e-6
    quotient = (row(column(x + h)) - row(column(x - h))) / (2 * h)
    assert row.slope(column(x)).item() == pytest.approx(quotient.item(), rel=1e-5, abs=1e-7)
    assert nth_derivative(row, column(x), 1).item() == pytest.approx(
        row.slope(column(x)).item(), rel=1e-12, abs=1e-14
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_layers_follow_dtype_and_equal_the_function(row) -> None:
    for dtype in (torch.float32, torch.float64):
        x = torch.linspace(-30, 30, 121, dtype=dtype)
        assert row(x).dtype == row.slope(x).dtype == row.layer()(x).dtype == dtype
        torch.testing.assert_close(row.layer()(x), row(x))


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_measured_properties_are_the_known_ones(row) -> None:
    assert inspect_activation(row).differences(row.known) == []


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_a_ripple_is_noticed(row) -> None:
    rippled = inspect_activation(lambda x: row(x) + 0.01 * torch.sin(5 * x))
    assert rippled.differences(row.known)


@settings(max_examples=15, deadline=None)
@given(
    where=st.floats(-8, 8),
    size=st.floats(0.01, 10),
    order=st.integers(0, MOST_DERIVATIVES - 1),
)
def test_a_jump_in_a_derivative_is_found_wherever_it_is(
    where: float, size: float, order: int
) -> None:
    def bent(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) + size * torch.where(x > where, (x - where) ** order, 0.0)

    assert inspect_activation(bent).smoothness == order - 1


@settings(max_examples=20, deadline=None)
@given(slope=st.floats(-5, 5), offset=st.floats(-5, 5), scale=st.floats(0.2, 5))
def test_lipschitz_constant_of_a_shifted_scaled_sigmoid(
    slope: float, offset: float, scale: float
) -> None:
    found = inspect_activation(lambda x: scale * torch.sigmoid(slope * x + offset))
    # the steepest point is at -offset/slope; inside the grid the constant is scale |slope| / 4
    if slope == 0 or abs(offset / slope) < 9:
        assert found.lipschitz == pytest.approx(scale * abs(slope) / 4, rel=1e-4, abs=1e-9)


@settings(max_examples=15, deadline=None)
@given(coefficients=st.lists(st.floats(-3, 3), min_size=1, max_size=7))
def test_polynomial_degree(coefficients: list[float]) -> None:
    coefficients[-1] = 1.0 + abs(coefficients[-1])

    def polynomial(x: torch.Tensor) -> torch.Tensor:
        value = torch.zeros_like(x)
        for c in reversed(coefficients):
            value = value * x + c
        return value

    found = inspect_activation(polynomial)
    assert found.polynomial_degree == len(coefficients) - 1
    assert not found.universal
    assert found.pieces == 1


def test_functions_outside_the_table() -> None:
    relu6 = inspect_activation(nn.ReLU6())
    assert (relu6.pieces, relu6.piece_degree, relu6.highest) == (3, 1, 6.0)
    gelu = inspect_activation(nn.GELU())
    assert not gelu.increasing
    assert not gelu.convex
    assert gelu.smoothness == MOST_DERIVATIVES
    root = inspect_activation(lambda x: x.abs().sqrt())
    assert (root.smoothness, root.lipschitz, root.even) == (0, math.inf, True)
    sine = inspect_activation(torch.sin)
    assert math.isnan(sine.right_limit)
    assert sine.bounded
    logarithm = inspect_activation(lambda x: torch.log1p(x.abs()))
    assert logarithm.highest == math.inf


def test_prelu_module_is_not_changed() -> None:
    layer = nn.PReLU(init=0.3)
    assert inspect_activation(layer).positively_homogeneous
    assert layer.weight.dtype == torch.float32


def test_applicable_theorems() -> None:
    def ids(f) -> set[str]:
        return {row.id for row in applicable_theorems(f) if row.applies}

    assert ids(activation("relu")) == {"A-27", "A-63", "A-76", "A-37"}
    assert ids(activation("logistic")) == {"A-27", "A-28", "A-32"}
    assert ids(activation("power relu")) == {"A-27", "A-32", "A-37"}
    assert "A-27" not in ids(nn.Identity())


def test_points_of_nonzero_derivative() -> None:
    assert point_of_nonzero_derivative(torch.relu, 1) is not None
    assert point_of_nonzero_derivative(torch.relu, 2) is None
    where = point_of_nonzero_derivative(torch.sigmoid, 2)
    assert where is not None
    assert abs(where) == pytest.approx(math.log(2 + math.sqrt(3)), abs=0.01)


@settings(max_examples=12, deadline=None)
@given(x=st.floats(-8, 8))
def test_inverse_by_bisection(x: float) -> None:
    point = column(x)
    for name in ("logistic", "tanh", "elu", "isru", "arctan", "softplus", "leaky relu"):
        row = activation(name)
        assert row(invert(row, row(point))).item() == pytest.approx(row(point).item(), abs=1e-15)
    assert invert(torch.neg, point).item() == pytest.approx(-x, abs=1e-12)


@pytest.mark.parametrize("order", range(8))
def test_logistic_derivatives(order: int) -> None:
    coefficients = logistic_derivative_polynomial(order)
    # P_k(0) = P_k(1) = 0 for k >= 1: all derivatives vanish at both ends
    assert coefficients[0] == 0
    assert sum(coefficients) == (1 if order == 0 else 0)
    x = torch.linspace(-4, 4, 33, dtype=torch.float64)
    torch.testing.assert_close(
        logistic_derivative(x, order), nth_derivative(torch.sigmoid, x, order), rtol=0, atol=1e-10
    )


@given(t=st.floats(1e-12, 1 - 1e-12))
def test_logit_inverts_the_logistic_function(t: float) -> None:
    assert torch.sigmoid(logit(column(t))).item() == pytest.approx(t, rel=1e-9)
    assert logit(column(t)).item() == pytest.approx(scipy.special.logit(t), rel=1e-9, abs=1e-12)


def test_as_layer() -> None:
    assert isinstance(as_layer("tanh"), nn.Tanh)
    assert isinstance(as_layer(nn.SiLU), nn.SiLU)
    assert isinstance(as_layer(activation("gaussian")), Pointwise)
    assert as_layer(torch.sin)(column(1)).item() == math.sin(1)
    with pytest.raises(InvalidInput, match="shared by all layers"):
        as_layer(nn.PReLU())
    with pytest.raises(InvalidType):
        as_layer(3)  # type: ignore[arg-type]


def test_bad_input() -> None:
    with pytest.raises(UnknownName, match="did you mean 'tanh'"):
        activation("tahn")
    with pytest.raises(UnknownName):
        activation("elu", beta=1.0)
    for name, parameter, value in (
        ("elu", "alpha", 0.0), ("parametric relu", "a", 1.0), ("isru", "a", -1.0),
        ("power relu", "k", 1.5), ("leaky relu", "slope", math.nan),
    ):  # fmt: skip
        with pytest.raises(InvalidInput, match=parameter):
            activation(name, **{parameter: value})
    with pytest.raises(NonFinite, match="at -10"):
        inspect_activation(torch.log)
    with pytest.raises(ShapeMismatch):
        inspect_activation(lambda x: x.sum())
    with pytest.raises(InvalidType):
        inspect_activation("relu")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        inspect_activation(torch.relu, radius=0.0)
    with pytest.raises(InvalidInput, match="not between"):
        invert(torch.sigmoid, column(1.5))
    with pytest.raises(InvalidInput):
        logit(column(1.0))
    with pytest.raises(InvalidInput):
        nth_derivative(torch.relu, column(1), -1)
    with pytest.raises(InvalidInput):
        point_of_nonzero_derivative(torch.relu, 0)


@settings(max_examples=40, deadline=None)
@given(z=st.lists(st.floats(-1000, 1000), min_size=2, max_size=6), shift=st.floats(-1000, 1000))
def test_softmax(z: list[float], shift: float) -> None:
    logits = column(*z)
    p = torch.softmax(logits, 0)
    assert p.numpy() == pytest.approx(scipy.special.softmax(z), abs=1e-14)
    torch.testing.assert_close(torch.softmax(logits + shift, 0), p, rtol=0, atol=1e-9)
    jacobian = softmax_jacobian(logits)
    auto = torch.autograd.functional.jacobian(lambda v: torch.softmax(v, 0), logits)
    torch.testing.assert_close(jacobian, auto)
    assert jacobian.sum(1).abs().max() < 1e-14
    weights = torch.stack([logits, 2 * logits], 1)
    torch.testing.assert_close(fix_gauge(weights + shift), fix_gauge(weights), rtol=0, atol=1e-9)
    assert not fix_gauge(logits)[-1]


def test_two_classes_by_hand() -> None:
    w = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    assert torch.sigmoid(two_class_logit(w, column(1, 5).unsqueeze(0))).item() == pytest.approx(
        0.7310585786300049
    )
    with pytest.raises(ShapeMismatch):
        two_class_logit(torch.zeros(3, 2), torch.zeros(1, 2))
    with pytest.raises(ShapeMismatch):
        fix_gauge(torch.zeros(2, 2, 2))
