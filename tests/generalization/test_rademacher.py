"""Rademacher complexity, symmetrization, norm and margin bounds against plain loops."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    NonFinite,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.generalization.complexity.margin_bounds import (
    best_margin_bound,
    margin_bound,
    margin_error,
    ramp_loss,
)
from torchtheory.generalization.complexity.norm_bounds import (
    ascended_relu_class,
    frobenius_bound,
    frobenius_norms,
    homogeneous_layers,
    largest_unit,
    normalize_layers,
    planar_relu_class,
)
from torchtheory.generalization.complexity.rademacher import (
    empirical_uniform_deviation,
    estimate_rademacher,
    exact_rademacher,
    finite_class,
    linear_bounds,
    linear_class,
    massart_bound,
    sequence_deviations,
    uniform_deviation,
)
from torchtheory.generalization.complexity.symmetrization import (
    expected_rademacher,
    expected_worst_gap,
    symmetrization_chain,
)
from torchtheory.generalization.learning.finite_distributions import FiniteDistribution
from torchtheory.generalization.vc.hypothesis_sets import all_labelings
from torchtheory.nets.feedforward import mlp


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_exact_complexity_against_plain_loops() -> None:
    values = normal(4, 5)
    total = 0.0
    for signs in itertools.product((-1.0, 1.0), repeat=5):
        total += max(sum(s * v for s, v in zip(signs, row.tolist(), strict=True)) for row in values)
    assert exact_rademacher(finite_class(values), 5) == pytest.approx(total / 5 / 32)


def test_two_functions_by_hand() -> None:
    # {(1, 0), (0, 1)}: the suprema of the four sign vectors are 1/2, 1/2, 1/2, -1/2
    assert exact_rademacher(finite_class(torch.eye(2)), 2) == pytest.approx(0.25)
    assert exact_rademacher(finite_class(torch.eye(2), absolute=True), 2) == pytest.approx(0.5)


def test_linear_supremum_is_that_of_many_directions() -> None:
    x = normal(6, 2)
    angle = torch.linspace(0, 2 * math.pi, 20_001, dtype=torch.float64)
    directions = torch.stack([angle.cos(), angle.sin()], 1)
    signs = all_labelings(6)
    exact = linear_class(x, 1.5)(signs)
    torch.testing.assert_close(
        exact, finite_class(1.5 * directions @ x.T)(signs), rtol=1e-6, atol=1e-9
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 7), st.integers(0, 1000))
def test_massart_contraction_and_inclusion(h: int, m: int, seed: int) -> None:
    values = normal(h, m, seed=seed)
    exact = exact_rademacher(finite_class(values), m)
    assert -1e-12 <= exact <= massart_bound(values) + 1e-12
    for phi in (torch.relu, torch.tanh, torch.abs, torch.cos):
        assert exact_rademacher(finite_class(phi(values)), m) <= exact + 1e-12
    assert exact_rademacher(finite_class(values[:1]), m) == pytest.approx(0, abs=1e-12)
    union = torch.cat([values, -values])
    assert exact_rademacher(finite_class(union), m) == pytest.approx(
        exact_rademacher(finite_class(values, absolute=True), m)
    )


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 8), st.integers(1, 4), st.integers(0, 1000))
def test_linear_bounds_are_ordered(m: int, d: int, seed: int) -> None:
    x = normal(m, d, seed=seed)
    exact = exact_rademacher(linear_class(x), m)
    data, worst = linear_bounds(x)
    assert exact <= data * (1 + 1e-12) <= worst * (1 + 2e-12)


def test_estimate_covers_the_exact_value() -> None:
    supremum = finite_class(normal(10, 8))
    found = estimate_rademacher(supremum, 8, draws=4000, generator=3)
    assert found.low <= exact_rademacher(supremum, 8) <= found.high


def test_expected_complexity_against_all_sequences() -> None:
    law = FiniteDistribution.of([0.0, 1.0, 2.0], [0.0] * 3, [0.2, 0.3, 0.5])
    values = normal(4, 3)
    for absolute in (False, True):
        total = gap = 0.0
        for drawn in itertools.product(range(3), repeat=3):
            chance = math.prod(float(law.mass[i]) for i in drawn)
            at = values[:, list(drawn)]
            total += chance * exact_rademacher(finite_class(at, absolute=absolute), 3)
            off = values @ law.mass - at.mean(1)
            gap += chance * float((off.abs() if absolute else off).max())
        assert expected_rademacher(law, values, 3, absolute=absolute) == pytest.approx(total)
        assert expected_worst_gap(law, values, 3, absolute=absolute) == pytest.approx(gap)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 3), st.integers(1, 5), st.integers(0, 1000))
def test_chain_is_ordered(m: int, h: int, seed: int) -> None:
    mass = normal(3, seed=seed).exp()
    law = FiniteDistribution.of([0.0, 1.0, 2.0], [0.0] * 3, mass / mass.sum())
    c = symmetrization_chain(law, normal(h, 3, seed=seed + 1), m)
    assert c.worst_gap <= c.ghost_gap + 1e-12
    assert c.ghost_gap == pytest.approx(c.signed_ghost_gap, abs=1e-12)
    assert c.signed_ghost_gap <= c.twice_rademacher + 1e-12


def test_deviations_by_hand() -> None:
    assert uniform_deviation(0.1, 50, 0.1) == pytest.approx(0.2 + math.sqrt(math.log(10) / 100))
    assert empirical_uniform_deviation(0.1, 50, 0.1, width=2.0) == pytest.approx(
        0.2 + 6 * math.sqrt(math.log(20) / 100)
    )
    assert sequence_deviations([0.1], 50, 0.1, weights=[1.0]) == [
        empirical_uniform_deviation(0.1, 50, 0.1)
    ]


def test_planar_supremum_is_that_of_many_units() -> None:
    x, signs = normal(7, 2), all_labelings(7)
    angle = torch.linspace(0, 2 * math.pi, 20_001, dtype=torch.float64)
    units = torch.relu(torch.stack([angle.cos(), angle.sin()], 1) @ x.T)
    best, where = largest_unit(x, signs)
    # the grid misses a kink by up to half its spacing
    torch.testing.assert_close(best, (signs @ units.T).abs().amax(1), rtol=0, atol=1e-3)
    assert bool((best >= (signs @ units.T).abs().amax(1) - 1e-12).all())
    attained = (signs * torch.relu(where @ x.T)).sum(1).abs()
    torch.testing.assert_close(attained, best)


def test_training_stays_below_the_exact_supremum() -> None:
    x = normal(6, 2)
    signs = all_labelings(6)[::4]
    exact = planar_relu_class(x, 1.0, 2.0)(signs)
    found = ascended_relu_class(x, [5], [1.0, 2.0], steps=60)(signs)
    assert bool((found <= exact + 1e-12).all())
    assert float((found / exact).median()) > 0.9
    assert exact_rademacher(planar_relu_class(x), 6) <= frobenius_bound(
        [1.0, 1.0], exact_rademacher(linear_class(x), 6)
    )


def test_frobenius_bound_scales_with_every_layer() -> None:
    assert frobenius_bound([2.0, 3.0], 0.1) == pytest.approx(2 * 6 * 0.1)
    assert frobenius_bound([1.0], 0.1) == 0.1
    assert frobenius_bound([1.0] * 8, 0.1, depth_factor="root") < frobenius_bound([1.0] * 8, 0.1)


def test_normalized_network_is_the_same_up_to_its_factor() -> None:
    net = mlp([3, 5, 4, 2], "relu", bias=False, generator=1)
    weights = [p.clone() for p in net.parameters()]
    unit, factor = normalize_layers(net)
    x = normal(10, 3)
    torch.testing.assert_close(factor * unit(x), net(x))
    assert frobenius_norms(unit) == pytest.approx([1.0, 1.0, 1.0])
    assert factor == pytest.approx(math.prod(frobenius_norms(net)))
    for before, after in zip(weights, net.parameters(), strict=True):
        assert torch.equal(before, after)


def test_margin_bounds_by_hand() -> None:
    margins = torch.tensor([-1.0, 0.25, 1.0, 2.0])
    assert ramp_loss(margins, 0.5).tolist() == [1.0, 0.5, 0.0, 0.0]
    assert margin_error(margins, 0.5) == 0.5
    plain = margin_bound(margins, 0.1, 0.5, 0.1)
    assert plain == pytest.approx(0.5 + 0.4 + math.sqrt(math.log(10) / 8))
    assert margin_bound(margins, 0.1, 0.5, 0.1, ramp=True) == pytest.approx(plain - 0.125)
    bound, gamma = best_margin_bound(margins, 0.1, [0.5], 0.1)
    assert (bound, gamma) == (pytest.approx(plain), 0.5)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.01, 10), st.floats(-20, 20), st.floats(-20, 20))
def test_ramp_is_between_steps_and_lipschitz(gamma: float, s: float, t: float) -> None:
    a, b = ramp_loss(torch.tensor([s, t], dtype=torch.float64), gamma).tolist()
    assert float(s <= 0) <= a <= float(s < gamma)
    assert abs(a - b) <= abs(s - t) / gamma + 1e-12


def test_bad_input_is_refused() -> None:
    with pytest.raises(ShapeMismatch):
        finite_class(torch.zeros(3))
    with pytest.raises(EmptyData):
        finite_class(torch.zeros(0, 3))
    with pytest.raises(NonFinite):
        linear_class(torch.tensor([[math.nan]]))
    with pytest.raises(ShapeMismatch):
        finite_class(torch.zeros(2, 3))(torch.ones(1, 4))
    with pytest.raises(InvalidInput):
        exact_rademacher(linear_class(torch.eye(21)), 21)
    with pytest.raises(InvalidInput):
        linear_class(torch.eye(2), 0.0)
    with pytest.raises(InvalidInput):
        uniform_deviation(0.1, 10, 1.0)
    with pytest.raises(InvalidInput):
        uniform_deviation(-0.1, 10, 0.5)
    with pytest.raises(EmptyData):
        empirical_uniform_deviation(0.1, 0, 0.5)
    with pytest.raises(InvalidInput):
        sequence_deviations([0.0, 0.0], 10, 0.1, weights=[0.8, 0.8])
    with pytest.raises(ShapeMismatch):
        sequence_deviations([0.0, 0.0], 10, 0.1, weights=[0.8])
    law = FiniteDistribution.of([0.0, 1.0], [0.0, 0.0])
    with pytest.raises(ShapeMismatch):
        expected_rademacher(law, torch.zeros(2, 3), 2)
    with pytest.raises(ShapeMismatch):
        largest_unit(torch.zeros(3, 3), torch.ones(1, 3))
    with pytest.raises(InvalidInput):
        ramp_loss(torch.zeros(1), 0.0)
    with pytest.raises(EmptyData):
        margin_error(torch.zeros(0), 1.0)
    with pytest.raises(EmptyData):
        best_margin_bound(torch.zeros(2), 0.1, [], 0.1)


def test_networks_outside_the_theorem_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="bias"):
        homogeneous_layers(nn.Sequential(nn.Linear(2, 1)))
    with pytest.raises(UnsupportedModel, match="Tanh"):
        homogeneous_layers(nn.Sequential(nn.Linear(2, 1, bias=False), nn.Tanh()))
    with pytest.raises(UnsupportedModel, match="no linear layer"):
        homogeneous_layers(nn.Sequential(nn.ReLU()))
    with pytest.raises(UnsupportedModel, match="Lipschitz"):
        homogeneous_layers(nn.Sequential(nn.Linear(2, 1, bias=False), nn.LeakyReLU(2.0)))
    zero = nn.Sequential(nn.Linear(2, 1, bias=False))
    nn.init.zeros_(zero[0].weight)
    with pytest.raises(InvalidInput):
        normalize_layers(zero)
    with pytest.raises(ShapeMismatch):
        ascended_relu_class(torch.eye(2), [3], [1.0])
    with pytest.raises(InvalidInput):
        frobenius_bound([], 0.1)
    with pytest.raises(NonFinite):
        frobenius_bound([math.inf], 0.1)
