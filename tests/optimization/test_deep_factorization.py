"""Products of matrices: gradients, the end-to-end equation, modes."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad, solve_ivp
from scipy.linalg import fractional_matrix_power

from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.core.intervals import mean_interval
from torchtheory.generalization.implicit_bias.layer_balance import balanced_weights
from torchtheory.optimization.curvature.operators import gradient
from torchtheory.optimization.linear_networks.deep_factorization import (
    FactoredMatrix,
    align_factors,
    end_to_end_flow,
    end_to_end_velocity,
    entry_measurements,
    gaussian_measurements,
    mode_flow,
    mode_time,
    mode_velocity,
    product_gradients,
    product_of,
    sensing_problem,
)
from torchtheory.primer.objectives import factorization_gradients


def normal(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_a_product_by_hand():
    first, second = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [0.0]])
    assert product_of([first, second]).tolist() == [[3.0, 6.0], [0.0, 0.0]]
    problem = sensing_problem([first, second], torch.zeros(2, 2))
    assert problem.risk(problem.train) == pytest.approx(45 / 4)


@given(seed=st.integers(0, 10**6), widths=st.lists(st.integers(1, 5), min_size=2, max_size=5))
@settings(max_examples=25, deadline=None)
def test_gradients_agree_with_autograd(seed, widths):
    source = torch.Generator().manual_seed(seed)
    factors = [
        torch.randn(b, a, dtype=torch.float64, generator=source) for a, b in pairwise(widths)
    ]
    target = torch.randn(widths[-1], widths[0], dtype=torch.float64, generator=source)
    slopes = torch.cat([g.flatten() for g in product_gradients(factors, target)])
    assert torch.allclose(slopes, gradient(sensing_problem(factors, target)), atol=1e-10)


def test_two_factors_agree_with_the_formula_for_two():
    V, U, R = normal(1, 3, 4), normal(2, 5, 3), normal(3, 5, 4)
    by_U, by_V = factorization_gradients(U, V, R)
    first, second = product_gradients([V, U], R)
    assert torch.allclose(first, by_V / 2)
    assert torch.allclose(second, by_U / 2)


def test_measurements():
    A = gaussian_measurements(20_000, 2, 3, generator=1)
    gap = normal(4, 2, 3)
    seen = torch.einsum("noi,oi->n", A, gap).square()
    interval = mean_interval(seen, 0.999)
    assert interval.low < float(gap.square().sum()) < interval.high
    mask = torch.tensor([[True, False], [True, True]])
    target = normal(5, 2, 2)
    problem = sensing_problem([torch.zeros(2, 2).double()], target, entry_measurements(mask))
    assert problem.risk(problem.train) == pytest.approx(float(target[mask].square().mean()) / 2)
    unseen = gradient(problem).reshape(2, 2)[0, 1]
    assert float(unseen) == 0


def test_the_expectation_is_that_of_all_scaled_entries_and_needs_little_memory():
    factors, target = [normal(1, 3, 4), normal(2, 5, 3)], normal(3, 5, 4)
    whole = sensing_problem(factors, target)
    every = entry_measurements(torch.ones(5, 4).bool()) * 20**0.5
    measured = sensing_problem(factors, target, every)
    assert whole.risk(whole.train) == pytest.approx(measured.risk(measured.train))
    assert torch.allclose(gradient(whole), gradient(measured))
    large = sensing_problem([torch.eye(300)], torch.zeros(300, 300))
    assert large.train.x.shape == (300, 300)
    assert large.risk(large.train) == pytest.approx(150, rel=1e-5)


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (4, 2), (2, 4)])
@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_the_end_to_end_velocity_by_matrix_powers(rows, columns, depth):
    W, target = normal(6, rows, columns), normal(7, rows, columns)
    total = np.zeros((rows, columns))
    left, right = (W @ W.T).numpy(), (W.T @ W).numpy()

    def power(gram, exponent):
        values, vectors = np.linalg.eigh(gram)
        # a root would make the rounding of a zero eigenvalue large
        values = np.where(values < 1e-12, 0.0, values)
        return (vectors * values**exponent) @ vectors.T

    for k in range(1, depth + 1):
        total += (
            power(left, (depth - k) / depth) @ (target - W).numpy() @ power(right, (k - 1) / depth)
        )
    found = end_to_end_velocity(W, target, depth)
    assert np.allclose(found.numpy(), total / depth, atol=1e-8)
    if rows == columns and depth == 2:
        root = fractional_matrix_power(left, 0.5)
        other = fractional_matrix_power(right, 0.5)
        residual = (target - W).numpy()
        assert np.allclose(found.numpy(), (root @ residual + residual @ other) / 2, atol=1e-8)


@given(seed=st.integers(0, 10**6), depth=st.integers(2, 4))
@settings(max_examples=20, deadline=None)
def test_balanced_factors_obey_the_end_to_end_equation(seed, depth):
    source = torch.Generator().manual_seed(seed)
    W, target = (torch.randn(3, 3, dtype=torch.float64, generator=source) for _ in range(2))
    factors = balanced_weights(W, [3] * (depth - 1), generator=source)
    assert align_factors(factors).residual < 1e-8
    slopes = product_gradients(factors, target)
    parts = [product_of([*factors[:k], -slopes[k], *factors[k + 1 :]]) for k in range(depth)]
    expected = torch.stack(parts).sum(0)
    assert torch.allclose(end_to_end_velocity(W, target, depth), expected, atol=1e-7)


def test_alignment_is_noticed_when_it_is_missing():
    factors = balanced_weights(normal(8, 3, 3), [3, 3], generator=0)
    assert align_factors(factors).residual < 1e-10
    assert align_factors([factors[0], 1.1 * factors[1], factors[2]]).residual > 0.01
    turned = torch.linalg.qr(normal(9, 3, 3)).Q
    assert align_factors([factors[0], factors[1] @ turned, factors[2]]).residual > 0.01


def test_the_flow_of_one_factor_is_exponential():
    W, target = normal(10, 2, 3), normal(11, 2, 3)
    path = end_to_end_flow(W, target, 1, [0.0, 0.5, 2.0])
    for k, t in enumerate([0.0, 0.5, 2.0]):
        assert torch.allclose(path[k], target + (W - target) * math.exp(-t), atol=1e-7)


@pytest.mark.parametrize("depth", [1, 2, 3, 6])
def test_mode_times_agree_with_quadrature_and_with_the_flow(depth):
    s0, s1, goal = 0.05, 1.4, 1.5

    def slowness(s):
        return 1 / (s ** (2 - 2 / depth) * (goal - s))

    expected, _ = quad(slowness, s0, s1)
    start, end, target = (torch.tensor([v], dtype=torch.float64) for v in (s0, s1, goal))
    taken = float(mode_time(start, end, target, depth))
    assert taken == pytest.approx(expected, rel=1e-8)
    assert float(mode_flow(start, target, depth, [0.0, taken])[-1]) == pytest.approx(s1, rel=1e-6)
    solved = solve_ivp(
        lambda _, s: s ** (2 - 2 / depth) * (goal - s), (0, taken), [s0], rtol=1e-10, atol=1e-12
    )
    assert solved.y[0, -1] == pytest.approx(s1, rel=1e-6)


@given(s=st.floats(1e-3, 5.0), goal=st.floats(1e-3, 5.0), depth=st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_the_mode_equation_is_the_end_to_end_one_of_a_number(s, goal, depth):
    one = torch.ones(1, 1, dtype=torch.float64)
    whole = end_to_end_velocity(s * one, goal * one, depth)
    mode = mode_velocity(s * one[0], goal * one[0], depth)
    assert torch.allclose(whole[0], mode, rtol=1e-9, atol=1e-12)


def test_a_mode_at_zero_stays_there():
    zero, one = torch.zeros(1).double(), torch.ones(1).double()
    assert float(mode_flow(zero, one, 3, [0.0, 5.0])[-1]) == 0


def test_bad_input():
    eye = torch.eye(2).double()
    with pytest.raises(ShapeMismatch, match="must take"):
        product_gradients([torch.ones(3, 2), torch.ones(2, 2)], torch.ones(2, 2))
    with pytest.raises(InvalidType, match="list of matrices"):
        FactoredMatrix([])
    with pytest.raises(NonFinite):
        FactoredMatrix([eye * math.nan])
    with pytest.raises(InvalidType, match="float32"):
        FactoredMatrix([eye, eye.float()])
    with pytest.raises(InvalidType, match="float32"):
        sensing_problem([eye], eye.float())
    with pytest.raises(NonFinite, match="target"):
        end_to_end_velocity(eye, eye * math.nan, 2)
    with pytest.raises(InvalidInput, match="at least 0"):
        mode_velocity(-eye[0], eye[0], 3)
    with pytest.raises(InvalidInput, match="at least one factor"):
        product_of([])
    with pytest.raises(ShapeMismatch, match="target"):
        sensing_problem([eye], torch.ones(3, 3).double())
    with pytest.raises(ShapeMismatch, match="measurements"):
        sensing_problem([eye], eye, torch.ones(4, 3, 3).double())
    with pytest.raises(ShapeMismatch, match="target"):
        end_to_end_velocity(eye, torch.ones(1, 2).double(), 2)
    with pytest.raises(InvalidInput, match="increase"):
        end_to_end_flow(eye, eye, 2, [1.0, 0.0])
    with pytest.raises(ShapeMismatch, match="two numbers"):
        end_to_end_flow(eye, eye, 2, [1.0])
    with pytest.raises(InvalidInput):
        end_to_end_velocity(eye, eye, 0)
    with pytest.raises(InvalidInput, match="below its target"):
        mode_time(eye[0, :1], eye[0, :1], eye[0, :1], 2)
    with pytest.raises(InvalidInput, match="at least 0"):
        mode_flow(-eye[0], eye[0], 2, [0.0, 1.0])
    with pytest.raises(ShapeMismatch, match="targets"):
        mode_flow(eye[0], eye[0, :1], 2, [0.0, 1.0])
    with pytest.raises(InvalidInput, match="singular"):
        align_factors([torch.zeros(2, 2), torch.ones(2, 2)])
    with pytest.raises(ShapeMismatch, match="square"):
        align_factors([torch.ones(2, 3)])
    with pytest.raises(InvalidType, match="bool"):
        entry_measurements(torch.ones(2, 2))
    with pytest.raises(InvalidInput, match="observed"):
        entry_measurements(torch.zeros(2, 2).bool())
