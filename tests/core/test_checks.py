"""Checks of arguments: what passes is given back unchanged, what is refused is shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.core.checks import (
    all_finite,
    as_batch,
    as_function,
    as_matrix,
    as_module,
    as_points,
    as_square,
    as_symmetric,
    as_targets,
    as_vector,
    closed_fraction,
    described,
    finite_number,
    first_entry,
    labeled_samples,
    nonnegative_number,
    number_between,
    one_of,
    open_fraction,
    positive_number,
    whole_number,
    whole_numbers,
)
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    LabelOutOfRange,
    NonFinite,
    ShapeMismatch,
    TorchTheoryError,
    UnknownName,
)

NAN, INF = math.nan, math.inf
TENSOR_CHECKS: list[tuple[Callable[..., Tensor], Tensor]] = [
    (as_points, torch.ones(3, 2)),
    (as_batch, torch.ones(3, 2, 4)),
    (as_matrix, torch.ones(3, 2)),
    (as_square, torch.eye(3)),
    (as_symmetric, torch.eye(3)),
    (as_vector, torch.ones(3)),
]
NUMBER_CHECKS: list[Callable[[Any, str], float]] = [
    finite_number,
    positive_number,
    nonnegative_number,
    closed_fraction,
    open_fraction,
    lambda value, name: number_between(value, name, -1, 2),
    lambda value, name: whole_number(value, name, least=0),
]


# -- tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("check", "value"), TENSOR_CHECKS)
def test_a_tensor_keeps_its_dtype_and_comes_back_detached(
    check: Callable[..., Tensor], value: Tensor, dtype: torch.dtype
) -> None:
    given = value.to(dtype).clone().requires_grad_()
    found = check(given, "a")
    assert found.dtype is dtype
    assert not found.requires_grad
    assert torch.equal(found, given)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize(("check", "value"), TENSOR_CHECKS)
def test_where_a_tensor_is_not_finite_is_said(
    check: Callable[..., Tensor], value: Tensor, bad: float
) -> None:
    given = value.clone()
    given[(2,) + (1,) * (value.ndim - 1)] = bad
    place = str([2] + [1] * (value.ndim - 1))
    with pytest.raises(NonFinite) as refusal:
        check(given, "a")
    assert str(refusal.value) == f"a must be finite, and a{place} is {bad:g}"
    with pytest.raises(NonFinite) as refusal:
        check(given, "the data")
    assert str(refusal.value) == f"the data must be finite, and entry {place} is {bad:g}"


@pytest.mark.parametrize(("check", "value"), TENSOR_CHECKS)
def test_what_is_no_real_tensor_is_described(check: Callable[..., Tensor], value: Tensor) -> None:
    for wrong, shown in (
        (value.numpy(), "float32 numpy array"),
        (None, "None"),
        ("abc", "'abc'"),
        (value.long(), "int64"),
        (value.to(torch.complex64), "complex64"),
    ):
        with pytest.raises(InvalidType, match=shown):
            check(wrong, "a")
    for shape in ([], [2, 0], [0, 2], [0]):
        with pytest.raises((ShapeMismatch, EmptyData)) as refusal:
            check(torch.empty(shape), "a")
        assert str(shape) in str(refusal.value)


def test_a_sparse_tensor_is_refused() -> None:
    with pytest.raises(InvalidType, match=r"sparse_coo: call \.to_dense"):
        as_matrix(torch.eye(2).to_sparse())


@given(st.lists(st.floats(width=32), min_size=1, max_size=8))
def test_finite_is_what_torch_calls_finite(numbers: list[float]) -> None:
    values = torch.tensor(numbers)
    if bool(torch.isfinite(values).all()):
        assert all_finite(values, "a") is values  # also where their sum overflows
    else:
        with pytest.raises(NonFinite):
            all_finite(values, "a")


def test_a_sum_that_overflows_is_no_infinity() -> None:
    large = torch.full((4,), 3e38)
    assert math.isinf(float(large.sum()))
    assert torch.equal(as_vector(large), large)


def test_several_entries_that_are_not_finite_are_counted() -> None:
    with pytest.raises(NonFinite, match=r"x\[0, 1\] is nan, the first of 3 such entries"):
        as_points(torch.tensor([[1.0, NAN], [INF, NAN]]))


def test_the_gradient_passes_through_a_check_for_finiteness() -> None:
    a = torch.ones(2, requires_grad=True)
    assert all_finite(a, "a") is a


def test_shapes_are_said() -> None:
    for check, value, words in (
        (lambda a: as_points(a), torch.ones(3), "x must be [samples, features], not [3]"),
        (lambda a: as_points(a, features=3), torch.ones(4, 2), "be [samples, 3], not [4, 2]"),
        (lambda a: as_batch(a), torch.ones(3), "x must be [samples, ...]"),
        (lambda a: as_matrix(a), torch.ones(3), "must have the shape [m, n], not [3]"),
        (lambda a: as_matrix(a, "A", rows=2), torch.ones(3, 4), "shape [2, n], not [3, 4]"),
        (lambda a: as_matrix(a, "A", columns=2), torch.ones(3, 4), "shape [m, 2], not [3, 4]"),
        (lambda a: as_square(a, "A"), torch.ones(3, 4), "A must be square, its shape is [3, 4]"),
        (lambda a: as_vector(a, "w", size=2), torch.ones(3), "w must have the shape [2], not [3]"),
    ):
        with pytest.raises(ShapeMismatch) as refusal:
            check(value)
        assert words in str(refusal.value)


def test_a_symmetric_matrix_loses_its_rounding_only() -> None:
    a = torch.tensor([[1.0, 2.0], [2.0 + 1e-7, 1.0]])
    found = as_symmetric(a)
    assert torch.equal(found, found.T)
    assert torch.allclose(found, a)
    with pytest.raises(InvalidInput, match=r"\[0, 1\] and \[1, 0\] are 2 and 3"):
        as_symmetric(torch.tensor([[1.0, 2.0], [3.0, 1.0]]))


def test_targets_take_the_dtype_of_the_points() -> None:
    x = torch.eye(2, dtype=torch.float64)
    assert as_targets(torch.tensor([1, 2]), x).dtype is torch.float64
    assert as_targets(torch.ones(2, 3), x).shape == (2, 3)
    for wrong, words in (
        (torch.ones(3), r"y must have one row per sample, 2 of them, not \[3\]"),
        (torch.tensor(1.0), r"2 of them, not \[\]"),
        (torch.tensor([1.0, NAN]), r"y\[1\] is nan"),
        (torch.ones(2, dtype=torch.complex64), "complex64"),
        ([1.0, 2.0], r"\[1.0, 2.0\]"),
        (torch.ones(2, 0), r"\[2, 0\]"),
    ):
        with pytest.raises(TorchTheoryError, match=words):
            as_targets(wrong, x)  # type: ignore[arg-type]


def test_labels_are_of_the_two_classes() -> None:
    x = torch.eye(3)
    _, y = labeled_samples(x, torch.tensor([0, 1, 1]), classes=(0.0, 1.0))
    assert y.tolist() == [0.0, 1.0, 1.0]
    with pytest.raises(LabelOutOfRange, match=r"must be -1 or 1, and y\[2\] is 0.5"):
        labeled_samples(x, torch.tensor([1.0, -1.0, 0.5]))
    with pytest.raises(ShapeMismatch, match=r"not \[3, 1\]"):
        labeled_samples(x, torch.ones(3, 1))


def test_the_first_wrong_entry_in_words() -> None:
    a = torch.tensor([[1, 2], [3, 4]])
    assert first_entry(a, "a", a > 2) == "a[1, 0] is 3"
    assert first_entry(a, "the labels", a > 2) == "entry [1, 0] is 3"
    assert first_entry(torch.tensor(0.5), "a", torch.tensor(True)) == "a is 0.5"


# -- numbers


@pytest.mark.parametrize("check", NUMBER_CHECKS[:-1])
@pytest.mark.parametrize(
    "value", [0.5, Fraction(1, 2), np.float32(0.5), np.float64(0.5), torch.tensor(0.5)]
)
def test_numbers_of_any_kind_pass(check: Callable[[Any, str], float], value: object) -> None:
    found = check(value, "a")
    assert found == 0.5
    assert isinstance(found, float | Fraction)


@pytest.mark.parametrize("value", [3, np.int32(3), np.uint8(3), np.array(3), torch.tensor(3)])
def test_whole_numbers_of_any_kind_pass(value: Any) -> None:
    found = whole_number(value, "a", least=1)
    assert found == 3
    assert type(found) is int


@pytest.mark.parametrize("check", NUMBER_CHECKS)
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, "True"),
        (np.bool_(True), "True"),
        (torch.tensor(True), "True"),
        ("1", "'1'"),
        (None, "None"),
        (1j, "1j"),
        (torch.ones(2), "a float32 tensor [2]"),
        (np.ones((1, 1)), "a float64 numpy array [1, 1]"),
        ([1], "[1]"),
    ],
)
def test_what_is_no_number_is_refused(
    check: Callable[[Any, str], float], value: object, shown: str
) -> None:
    with pytest.raises(InvalidType) as refusal:
        check(value, "share")
    assert str(refusal.value).startswith("share must ")
    assert str(refusal.value).endswith(f", not {shown}")


@pytest.mark.parametrize("check", NUMBER_CHECKS)
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_what_is_not_finite_is_refused(check: Callable[[Any, str], float], value: float) -> None:
    with pytest.raises(InvalidInput, match=f"^share must .*, not {value}$"):
        check(value, "share")
    with pytest.raises(InvalidInput, match=f"^share must .*, not {value}$"):
        check(torch.tensor(value), "share")


@given(st.floats())
def test_each_number_check_takes_its_set(value: float) -> None:
    for check, inside in (
        (finite_number, math.isfinite(value)),
        (positive_number, 0 < value < INF),
        (nonnegative_number, 0 <= value < INF),
        (closed_fraction, 0 <= value <= 1),
        (open_fraction, 0 < value < 1),
    ):
        if inside:
            assert check(value, "a") == value
        else:
            with pytest.raises(InvalidInput):
                check(value, "a")


@given(st.integers(-3, 3), st.sampled_from(["neither", "left", "right", "both"]))
def test_an_interval_has_the_ends_that_are_closed(value: int, closed: Any) -> None:
    inside = -2 < value < 2
    inside |= value == -2 and closed in ("left", "both")
    inside |= value == 2 and closed in ("right", "both")
    if inside:
        assert number_between(value, "a", -2, 2, closed=closed) == value
    else:
        with pytest.raises(InvalidInput, match=rf"in [\[(]-2, 2[\])], not {value}$"):
            number_between(value, "a", -2, 2, closed=closed)


@given(st.integers(), st.integers())
def test_a_whole_number_is_at_least_what_is_asked(value: int, least: int) -> None:
    if value >= least:
        assert whole_number(value, "a", least=least) == value
    else:
        with pytest.raises(InvalidInput, match=f"a must be a whole number >= {least}, not"):
            whole_number(value, "a", least=least)


def test_a_whole_number_has_no_fraction_and_an_upper_end() -> None:
    for wrong in (2.5, 2.0, np.float64(2), torch.tensor(2.0)):
        with pytest.raises(InvalidInput, match=r"not 2\.[05]$"):
            whole_number(wrong, "n", least=1)
    with pytest.raises(InvalidInput, match="n must be a whole number from 1 to 5, not 6"):
        whole_number(6, "n", least=1, most=5)


def test_numbers_too_large_for_a_float_are_numbers() -> None:
    assert positive_number(10**400, "count") == 10**400
    with pytest.raises(InvalidInput, match="not a number of 16610 bits"):
        closed_fraction(10**5000, "share")


def test_lists_of_whole_numbers() -> None:
    assert whole_numbers((2, np.int64(3)), "widths") == (2, 3)
    assert whole_numbers([], "widths", fewest=0) == ()
    for wrong, error, words in (
        ([2, 0], InvalidInput, r"widths\[1\] must be a whole number >= 1, not 0"),
        ([2, True], InvalidType, r"widths\[1\] .* not True"),
        ([], InvalidInput, r"at least 1 whole number, not \[\]"),
        (3, InvalidType, "a list of whole numbers, not 3"),
    ):
        with pytest.raises(error, match=words):
            whole_numbers(wrong, "widths")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"at least 2 whole numbers, not \[4\]"):
        whole_numbers([4], "widths", fewest=2)
    with pytest.raises(InvalidInput, match=r"entry \[0\] of the widths must"):
        whole_numbers([0], "the widths")


# -- other objects


def test_one_of_several() -> None:
    assert one_of(2, "order", (1, 2)) == 2
    with pytest.raises(UnknownName, match="no loss is named 'sqare'; did you mean 'square'"):
        one_of("sqare", "loss", ["square", "hinge"])
    with pytest.raises(InvalidInput, match="order must be one of 1, 2, not 3"):
        one_of(3, "order", (1, 2))
    with pytest.raises(InvalidInput, match="loss must be one of 'square', not None"):
        one_of(None, "loss", ["square"])


def test_functions_and_modules() -> None:
    assert as_function(math.sin, "f") is math.sin
    layer = nn.Linear(1, 1)
    assert as_module(layer) is layer
    with pytest.raises(InvalidType, match="f must be a function, not 'sin'"):
        as_function("sin", "f")  # type: ignore[type-var]
    with pytest.raises(InvalidType, match=r"the model must be a torch\.nn\.Module, not the class"):
        as_module(nn.Linear)  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match="OrderedDict"):
        as_module(layer.state_dict())  # type: ignore[arg-type]


def test_a_description_is_short_and_on_one_line() -> None:
    for value in ("x" * 500, list(range(500)), {"a\nb": "c\n" * 90}, torch.zeros(9, 9), object()):
        words = described(value)
        assert len(words) < 90
        assert "\n" not in words
    assert described(np.float64(1.5)) == "1.5"
    assert described(torch.tensor(1.5)) == "1.5"
    assert described(10**5000) == "a number of 16610 bits"
