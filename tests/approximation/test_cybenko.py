"""Sums of sigmoids, what they see, decisions: worked cases, bounds, refused input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.approximation.certificates import Approximant, measured_error
from torchtheory.approximation.universality.cybenko import (
    sigmoid_staircase,
    soft_indicator,
    staircase_factor,
)
from torchtheory.approximation.universality.decision_functions import (
    disagreement,
    half_space_sharpness,
    half_space_unit,
    strip_width,
)
from torchtheory.approximation.universality.discriminatory import (
    discriminatory_test,
    polynomial_rank,
    ridge_units,
)
from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch


@settings(max_examples=25, deadline=None)
@given(
    st.floats(0.5, 9),
    st.floats(-3, 3),
    st.integers(1, 40),
    st.floats(0.5, 60),
    st.floats(-2, 2),
    st.floats(0.2, 3),
)
def test_staircase_keeps_its_promise(
    rho: float, phase: float, cells: int, sharpness: float, low: float, length: float
) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(rho * x + phase)

    made = sigmoid_staircase(f, cells, (low, low + length), lipschitz=rho, sharpness=sharpness)
    assert measured_error(f, made, most_points=2048).lower <= made.bound + 1e-9
    assert made.size.units == cells + 1


def test_staircase_by_hand() -> None:
    # one cell: f(0) + (f(1) - f(0)) σ(κ(x - 1/2))
    made = sigmoid_staircase(lambda x: 2 + 3 * x, 1, lipschitz=3.0, sharpness=4.0)
    x = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    by_hand = [2 + 3 / (1 + math.exp(-4 * (v - 0.5))) for v in (0.0, 0.5, 1.0)]
    np.testing.assert_allclose(made(x).numpy(), by_hand, atol=1e-14)
    assert made.bound == pytest.approx(3 * (1 + 2 * math.exp(-2) / (1 - math.exp(-4))))


def test_factor_tends_to_one_and_to_infinity() -> None:
    assert staircase_factor(200.0) == pytest.approx(1.0)
    assert staircase_factor(1e-3) > 1000


def test_staircase_refuses() -> None:
    for arguments in ({"cells": 0}, {"lipschitz": 0.0}, {"sharpness": -1.0}):
        given_ = {"cells": 3, "lipschitz": 1.0, "sharpness": 5.0, **arguments}
        with pytest.raises(InvalidInput):
            sigmoid_staircase(torch.sin, **given_)  # type: ignore[arg-type]
    with pytest.raises(NonFinite):
        sigmoid_staircase(torch.log, 3, lipschitz=1.0)
    with pytest.raises(InvalidInput, match="two finite ends"):
        soft_indicator(1.0, 0.0, 3.0)


@settings(max_examples=25, deadline=None)
@given(st.floats(-2, 2), st.floats(0.1, 3), st.floats(1, 100), st.floats(-5, 5))
def test_soft_indicator_away_from_its_ends(
    low: float, length: float, sharpness: float, x: float
) -> None:
    made = soft_indicator(low, low + length, sharpness)
    value = made(torch.tensor([[x]], dtype=torch.float64)).item()
    inside = float(low < x < low + length)
    distance = min(abs(x - low), abs(x - low - length))
    if distance > 1e-6:
        assert abs(value - inside) <= 2 * math.exp(-sharpness * distance) + 1e-12


def test_ridge_units_are_a_prefix_and_follow_the_dtype() -> None:
    x = torch.rand(7, 3, generator=torch.Generator().manual_seed(0))
    short, long = (ridge_units("tanh", m, x, generator=4) for m in (3, 9))
    assert short.dtype == torch.float32
    torch.testing.assert_close(short, long[:, :3])


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 10**6))
def test_rank_of_powers_is_the_number_of_monomials(d: int, q: int, seed: int) -> None:
    x = torch.rand(25, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    found = discriminatory_test(lambda z: z**q, x, 60, steepness=5.0, generator=seed)
    assert found.rank == min(25, polynomial_rank(q, d))
    assert found.rank == np.linalg.matrix_rank(
        ridge_units(lambda z: z**q, 60, x, steepness=5.0, generator=seed).numpy()
    )
    if found.null_measure is not None:
        fresh = ridge_units(lambda z: z**q, 30, x, generator=seed + 1)
        assert (found.null_measure @ fresh).abs().max() < 1e-9
        assert found.null_measure.abs().sum().item() == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["logistic", "tanh", "relu", "heaviside"])
def test_sigmoids_see_every_measure_on_points(name: str) -> None:
    x = torch.rand(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    found = discriminatory_test(name, x, 400)
    assert found.discriminates
    assert found.null_measure is None


def test_discriminatory_refuses() -> None:
    with pytest.raises(InvalidInput, match="points 0 and 1 are equal"):
        discriminatory_test("tanh", torch.ones(2, 1).double(), 5)
    with pytest.raises(InvalidInput, match="units"):
        discriminatory_test("tanh", torch.rand(6, 1).double(), 5)
    with pytest.raises(ShapeMismatch):
        ridge_units("tanh", 3, torch.rand(6))


def test_half_space_strip() -> None:
    w = torch.tensor([3.0, 4.0], dtype=torch.float64)
    unit = half_space_unit(w, -2.0, 7.0)
    half = strip_width(7.0, 5.0, 0.1) / 2
    # along the normal, at the edge of the strip, the error is exactly ε
    foot = w / 5 * (2.0 / 5 + torch.tensor([[-half], [half]], dtype=torch.float64))
    torch.testing.assert_close(
        unit(foot)[:, 0], torch.tensor([0.1, 0.9], dtype=torch.float64), atol=1e-12, rtol=0
    )


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 4), st.floats(0.02, 0.4), st.integers(0, 10**6))
def test_chosen_sharpness_keeps_its_promise(d: int, error: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(d, dtype=torch.float64, generator=generator)
    unit = half_space_unit(w, -float(w.sum()) / 2, half_space_sharpness(float(w.norm()), error, d))
    found = disagreement(
        lambda x: (x.reshape(len(x), -1) @ w > w.sum() / 2).double(),
        lambda x: unit(x.reshape(len(x), -1))[:, 0],
        error,
        ((0.0, 1.0),) * d,
        2000,
        generator=seed,
        confidence=0.9999,
    )
    assert found.low <= error


def test_decision_refuses() -> None:
    with pytest.raises(InvalidInput, match="half space"):
        half_space_unit(torch.zeros(2), 1.0, 1.0)
    with pytest.raises(InvalidInput, match="1/2"):
        strip_width(1.0, 1.0, 0.5)
    with pytest.raises(InvalidInput):
        disagreement(torch.sin, torch.sin, 0.0, ((0.0, 1.0),))


def test_staircase_is_an_approximant() -> None:
    assert isinstance(sigmoid_staircase(torch.sin, 4, lipschitz=1.0), Approximant)
