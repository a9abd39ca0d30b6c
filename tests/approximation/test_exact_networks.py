"""Boolean functions, pay-offs and superpositions: worked cases, properties, refused input."""

from __future__ import annotations

import itertools
import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.approximation.certificates import network_size
from torchtheory.approximation.memorization.boolean import (
    least_terms,
    minterm_network,
    parity_network,
    parity_tree,
    prime_implicants,
)
from torchtheory.approximation.piecewise.payoffs import Payoff, largest_network, payoff_network
from torchtheory.approximation.universality.superpositions import (
    Superposition,
    broken_line,
    fit_superposition,
    inner_functions,
    nested_inner_functions,
    superposition_step,
    two_scale_superposition,
)
from torchtheory.core.errors import (
    InvalidInput,
    LabelOutOfRange,
    NonFinite,
    ShapeMismatch,
    UnknownName,
)
from torchtheory.core.random import as_generator
from torchtheory.neurons.threshold_neuron import boolean_inputs


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4).flatmap(lambda d: st.lists(st.booleans(), min_size=2**d, max_size=2**d)))
def test_minterm_networks(table: list[bool]) -> None:
    values = torch.tensor(table)
    d = int(math.log2(len(table)))
    for complement in (True, False):
        net = minterm_network(values, complement=complement)
        assert torch.equal(net(boolean_inputs(d).double())[:, 0], values.double())
    assert network_size(minterm_network(values)).units <= max(1, 2 ** (d - 1))


@pytest.mark.parametrize("d", range(1, 9))
def test_parity(d: int) -> None:
    x = boolean_inputs(d)
    for net in (parity_network(d), parity_tree(d)):
        assert torch.equal(net(x.double())[:, 0], (x.sum(1) % 2).double())


def brute_force_terms(table: list[int], d: int) -> int:
    """The fewest conjunctions, of all 3^d there are, whose disjunction is the function."""
    ones = {a for a, v in enumerate(table) if v}
    cubes = []
    for pattern in itertools.product("01-", repeat=d):
        inside = {
            a
            for a in range(2**d)
            if all(c in ("-", bit) for c, bit in zip(pattern, format(a, f"0{d}b"), strict=True))
        }
        if inside <= ones:
            cubes.append(inside)
    for count in range(len(ones) + 1):
        for chosen in itertools.combinations(cubes, count):
            if set().union(*chosen) == ones:
                return count
    raise AssertionError


def test_least_terms_against_brute_force() -> None:
    for table in itertools.product((0, 1), repeat=8):
        if sum(table) in (0, 3, 4, 6, 8):
            assert least_terms(torch.tensor(table)) == brute_force_terms(list(table), 3)


def test_boolean_by_hand_and_refusals() -> None:
    # the majority of three: ab + ac + bc
    majority = (boolean_inputs(3).sum(1) > 1).long()
    assert sorted(prime_implicants(majority)) == [(3, 3), (5, 5), (6, 6)]
    assert least_terms(majority) == 3
    with pytest.raises(ShapeMismatch):
        minterm_network(torch.tensor([0, 1, 1]))
    with pytest.raises(LabelOutOfRange):
        minterm_network(torch.tensor([0, 2]))
    with pytest.raises(InvalidInput):
        least_terms(torch.zeros(128))
    with pytest.raises(InvalidInput):
        parity_tree(0)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 17))
def test_largest(seed: int, d: int) -> None:
    x = torch.randn(40, d, dtype=torch.float64, generator=as_generator(seed))
    net = largest_network(d)
    torch.testing.assert_close(net(x)[:, 0], x.amax(1), atol=1e-13, rtol=0)
    size = network_size(net)
    assert size.depth == math.ceil(math.log2(d)) + 1
    assert size.units <= 3 * d + 2 * math.log2(d)


@pytest.mark.parametrize("kind", get_args(Payoff))
def test_payoffs_at_worked_prices(kind: Payoff) -> None:
    x = torch.tensor([[1.0, 5.0], [4.0, 4.0]]).double()
    wanted = {
        "basket call": [1.0, 2.0],
        "basket put": [0.0, 0.0],
        "call on max": [3.0, 2.0],
        "put on max": [0.0, 0.0],
        "call on min": [0.0, 2.0],
        "put on min": [1.0, 0.0],
        "straddle": [1.0, 2.0],
        "call spread": [1.0, 1.5],
    }
    second = 3.5 if kind == "call spread" else None
    net = payoff_network(kind, 2, 2.0, second_strike=second)
    assert net(x)[:, 0].tolist() == wanted[kind]


def test_payoffs_refuse() -> None:
    with pytest.raises(InvalidInput, match="jumps"):
        payoff_network("digital", 2, 1.0)  # type: ignore[arg-type]
    with pytest.raises(UnknownName):
        payoff_network("lookback", 2, 1.0)  # type: ignore[arg-type]
    with pytest.raises(NonFinite):
        payoff_network("straddle", 2, float("nan"))
    with pytest.raises(InvalidInput):
        payoff_network("call spread", 2, 1.0)
    with pytest.raises(InvalidInput):
        payoff_network("call on max", 2, 1.0, weights=torch.ones(2))
    with pytest.raises(ShapeMismatch):
        payoff_network("basket call", 2, 1.0, weights=torch.ones(3))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(2, 3), st.integers(1, 7))
def test_one_superposition_step(seed: int, d: int, cells: int) -> None:
    source = as_generator(seed)
    slope = torch.randn(d, dtype=torch.float64, generator=source)

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x @ slope)

    step = superposition_step(f, d, cells, lipschitz=float(slope.norm()), largest=1.0)
    x = torch.rand(500, d, dtype=torch.float64, generator=source)
    assert float((step.network(x) - f(x)).abs().max()) <= step.bound + 1e-6
    assert step.network.hidden_units == (d * (2 * d + 1), 2 * d + 1)


def test_the_promise_of_a_step_by_hand() -> None:
    # θ sup|f| + 2d/(d+2) L √d (d+1)/((2d+1)N)
    step = superposition_step(lambda x: x[:, 0], 2, 4, lipschitz=1.0, largest=1.0)
    assert math.isclose(step.bound, 1 / 4 + 1.0 * math.sqrt(2) * 3 / 20)
    step = superposition_step(lambda x: x[:, 0], 3, 2, lipschitz=2.0, largest=5.0)
    assert math.isclose(step.bound, 2 / 5 * 5 + 6 / 5 * 2 * math.sqrt(3) * 4 / 14)
    # a constant: 2d of the terms are a quarter of it, the last one is between two of them
    flat = superposition_step(lambda x: 0 * x[:, 0] + 3.0, 2, 4).network
    x = torch.rand(200, 2, dtype=torch.float64, generator=as_generator(0))
    torch.testing.assert_close(flat(x), torch.full((200,), 3.0 * 5 / 4).double())


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 3), st.integers(1, 8), st.floats(0, 1))
def test_inner_functions(d: int, cells: int, t: float) -> None:
    inner = inner_functions(d, cells)
    assert inner.gap > 0
    assert bool((inner.values.diff(dim=1) > 0).all())
    assert bool((inner.values >= 0).all() & (inner.values <= 1).all())
    assert float(inner.weights.sum()) <= 1 + 1e-12
    # a point is between two plateaus for at most one of the functions
    starts, ends = inner.knots[:, ::2], inner.knots[:, 1::2]
    flat = ((starts <= t + 1e-12) & (t - 1e-12 <= ends)).any(1)
    assert int(flat.sum()) >= 2 * d


def test_broken_line_is_numpys() -> None:
    knots, values = torch.tensor([0.0, 0.5, 2.0]).double(), torch.tensor([1.0, -1.0, 4.0]).double()
    t = torch.linspace(-1, 3, 41, dtype=torch.float64)
    wanted = np.interp(t.numpy(), knots.numpy(), values.numpy())
    np.testing.assert_allclose(broken_line(knots, values, t).numpy(), wanted, atol=1e-14)


@pytest.mark.parametrize(("cells", "refinement"), [(1, 2), (2, 9), (3, 7)])
def test_two_scales_share_their_inner_functions(cells: int, refinement: int) -> None:
    coarse, fine = nested_inner_functions(cells, refinement)
    assert min(coarse.gap, fine.gap) > 0
    assert bool((fine.values.diff(dim=1) > 0).all())
    assert float(fine.values.min()) >= 0
    assert float(fine.values.max()) <= 1
    assert math.isclose(float(fine.weights.sum()), 1.0)
    # by evaluation: all points of a cube have images within its interval
    for scale in (coarse, fine):
        index = torch.tensor([0, scale.images.shape[1] // 2, scale.images.shape[1] - 1])
        for i in range(5):
            sums = sum(
                k * broken_line(scale.knots[i], scale.values[i], scale.centers[i, index, j])
                for j, k in enumerate(scale.weights)
            )
            assert isinstance(sums, torch.Tensor)
            above = sums - scale.images[i, index]
            assert bool((above >= -1e-12).all() & (above <= scale.rise + 1e-12).all())


def test_the_second_scale_takes_more_away() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cos(3 * x[:, 0]) * x[:, 1]

    first, both = two_scale_superposition(f, 2, 16)
    assert torch.equal(first.inner_values, both.inner_values)
    assert torch.equal(first.weights, both.weights)
    assert both.hidden_units == (10, 5)
    x = torch.rand(5000, 2, dtype=torch.float64, generator=as_generator(0))
    left = [(f(x) - net(x)).abs() for net in (first, both)]
    assert left[1].max() < left[0].max()
    assert left[1].mean() < left[0].mean() / 2
    with pytest.raises(InvalidInput, match="too many cubes"):
        two_scale_superposition(f, 10, 100)
    with pytest.raises(InvalidInput):
        nested_inner_functions(0, 5)


@pytest.mark.parametrize(("d", "tolerance"), [(2, 0.4), (2, 0.05), (3, 0.3), (2, 3.0)])
def test_superpositions_within_a_tolerance(d: int, tolerance: float) -> None:
    slope = torch.tensor([2.0, -3.0, 1.0], dtype=torch.float64)[:d]

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x @ slope)

    made = fit_superposition(f, d, tolerance, lipschitz=float(slope.norm()), largest=1.0)
    assert made.bound <= tolerance
    # the whole tolerance is used, and the error is not far below
    assert made.bound > 0.9 * tolerance or tolerance > 1
    x = torch.rand(4000, d, dtype=torch.float64, generator=as_generator(0))
    error = float((made.network(x) - f(x)).abs().max())
    assert made.bound / 6 < error <= made.bound


def test_more_inner_functions_leave_less() -> None:
    """A constant has no cells: what is left of it is all on slopes, at most 1/(K - 1)."""
    for functions in (5, 9, 21):
        step = superposition_step(
            lambda x: torch.where(x[:, 0] < 0.5, 1.0, -1.0).double(),
            2,
            2,
            lipschitz=1e-300,
            largest=1.0,
            functions=functions,
        )
        assert step.contraction == 1 / (functions - 1)
        assert step.network.hidden_units == (2 * functions, functions)
        # away from the middle, where it is not constant
        x = torch.cartesian_prod(
            torch.linspace(0, 0.2, 401).double(), torch.linspace(0, 1, 5).double()
        )
        left = float((step.network(x) - 1).abs().max())
        assert left <= step.bound * (1 + 1e-9)


def test_what_a_tolerance_takes_is_said() -> None:
    with pytest.raises(InvalidInput, match=r"knots of the outer one.* can be had") as refused:
        fit_superposition(lambda x: x.sum(1), 2, 1e-3, lipschitz=2**0.5, largest=2.0)
    least = float(str(refused.value).split("constants ")[1].split()[0])
    assert 1e-3 < least < 0.2
    with pytest.raises(InvalidInput, match="functions"):
        inner_functions(2, 4, functions=4)


def test_superpositions_refuse() -> None:
    line = torch.tensor([0.0, 1.0]).double()
    with pytest.raises(ShapeMismatch):
        Superposition(line.expand(2, 2), line.expand(2, 2), torch.ones(1), line, line)
    with pytest.raises(InvalidInput):
        Superposition(line.expand(3, 2), line.expand(3, 2), torch.ones(1), 0 * line, line)
    with pytest.raises(InvalidInput):
        inner_functions(1, 4)
    with pytest.raises(InvalidInput, match="too many"):
        inner_functions(3, 400)
