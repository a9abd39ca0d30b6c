"""Projections, steps and hyperplanes: exact for the ball and the box together."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from torchtheory.core.errors import InvalidInput
from torchtheory.core.random import as_generator
from torchtheory.robustness.attacks.balls import (
    as_norm,
    dual_lengths,
    lengths,
    nearest_on_plane,
    project,
    random_perturbation,
    steepest_step,
)

NORMS = ("inf", "2", "1")
seeds = st.integers(0, 10**6)


def drawn(seed, *shape):
    return torch.randn(*shape, generator=as_generator(seed), dtype=torch.float64)


def room(seed, *shape):
    g = as_generator(seed + 1)
    return [-torch.rand(*shape, generator=g, dtype=torch.float64),
            torch.rand(*shape, generator=g, dtype=torch.float64)]  # fmt: skip


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("boxed", [False, True])
@settings(max_examples=40, deadline=None)
@given(seed=seeds, radius=st.floats(0.05, 3.0))
def test_projection_is_feasible_and_satisfies_the_variational_inequality(norm, boxed, seed, radius):
    z = drawn(seed, 4, 6) * 2
    low, high = room(seed, 4, 6) if boxed else (None, None)
    p = project(z, radius, norm, low, high)
    assert float(lengths(p, norm).max()) <= radius * (1 + 1e-12)
    # <z - p, q - p> <= 0 for every feasible q characterizes the projection
    q = random_perturbation(z.repeat(50, 1), radius, norm, as_generator(seed))
    if boxed:
        assert bool(((p >= low - 1e-15) & (p <= high + 1e-15)).all())
        q = torch.minimum(torch.maximum(q, low.repeat(50, 1)), high.repeat(50, 1))
    angle = ((z - p).repeat(50, 1) * (q - p.repeat(50, 1))).sum(1)
    assert float(angle.max()) <= 1e-10


@pytest.mark.parametrize("norm", NORMS)
def test_points_inside_stay(norm):
    z = random_perturbation(torch.zeros(20, 5, dtype=torch.float64), 1.0, norm, as_generator(0))
    torch.testing.assert_close(project(z, 1.0, norm, z - 1, z + 1), z, rtol=0, atol=1e-15)
    torch.testing.assert_close(project(z, 1.0, norm), z, rtol=0, atol=1e-15)


@pytest.mark.parametrize("norm", ["1", "2"])
@settings(max_examples=10, deadline=None)
@given(seed=seeds)
def test_projection_in_a_box_is_that_of_a_general_solver(norm, seed):
    z, (low, high) = drawn(seed, 1, 4), room(seed, 1, 4)
    p = project(z, 0.6, norm, low, high)[0]
    # in positive and negative parts, so that the norm is smooth
    a = z[0].numpy()

    def cost(v):
        d = v[:4] - v[4:]
        return ((d - a) ** 2).sum() + 1e-9 * v.sum()

    def left(v):
        d = v[:4] + v[4:] if norm == "1" else v[:4] - v[4:]
        return 0.6 - d.sum() if norm == "1" else 0.36 - (d**2).sum()

    bounds = [(0, float(h)) for h in high[0]] + [(0, float(-b)) for b in low[0]]
    found = optimize.minimize(cost, [0.01] * 8, bounds=bounds, method="SLSQP",
                              constraints={"type": "ineq", "fun": left},
                              options={"ftol": 1e-14, "maxiter": 500})  # fmt: skip
    best = float((p - z[0]).square().sum())
    assert best <= found.fun + 1e-6
    assert best >= found.fun - 1e-5


@pytest.mark.parametrize("norm", NORMS)
@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_steepest_step_gains_the_dual_norm(norm, seed):
    g = drawn(seed, 5, 7)
    step = steepest_step(g, 0.3, norm)
    assert float(lengths(step, norm).max()) <= 0.3 * (1 + 1e-12)
    torch.testing.assert_close((g * step).sum(1), 0.3 * dual_lengths(g, norm))


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_l1_step_in_a_box_is_a_linear_program(seed):
    g, (low, high) = drawn(seed, 1, 5), room(seed, 1, 5)
    step = steepest_step(g, 0.8, "1", low, high)
    bounds = [(0, float(h)) for h in high[0]] + [(0, float(-b)) for b in low[0]]
    cost = torch.cat([-g[0], g[0]]).numpy()
    best = optimize.linprog(cost, A_ub=[[1.0] * 10], b_ub=[0.8], bounds=bounds)
    assert float((g * step).sum()) == pytest.approx(-best.fun, abs=1e-9)


@pytest.mark.parametrize("length", [0.3, 30.0])
def test_l1_step_goes_to_the_largest_entries_in_turn(length):
    """Also where the few largest have no room for it, and all are sorted."""
    g, (low, high) = drawn(0, 6, 90), room(0, 6, 90)
    each = torch.tensor([length, *[0.5 * length] * 5], dtype=torch.float64)
    step = steepest_step(g, each, "1", low, high)
    for gradient, longest, found, down, up in zip(g, each, step, low, high, strict=True):
        left, expected = float(longest), torch.zeros(90, dtype=torch.float64)
        for k in gradient.abs().argsort(descending=True):
            taken = min(left, float(up[k] if gradient[k] > 0 else -down[k]))
            expected[k], left = taken * gradient[k].sign(), left - taken
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
def test_a_gradient_of_zero_gives_no_step(norm):
    g = torch.zeros(2, 40)
    for box in ((), (torch.full_like(g, -1.0), torch.full_like(g, 1.0))):
        assert not steepest_step(g, 0.3, norm, *box).any()


@pytest.mark.parametrize("norm", NORMS)
@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_nearest_on_plane_has_the_length_of_duality(norm, seed):
    w, h = drawn(seed, 5, 7), drawn(seed + 3, 5)
    d = nearest_on_plane(w, h, norm)
    torch.testing.assert_close((w * d).sum(1), h)
    torch.testing.assert_close(lengths(d, norm), h.abs() / dual_lengths(w, norm))


@pytest.mark.parametrize("norm", ["1", "inf"])
@settings(max_examples=25, deadline=None)
@given(seed=seeds, share=st.floats(0.05, 0.95))
def test_nearest_on_plane_in_a_box_is_a_linear_program(norm, seed, share):
    w, (low, high) = drawn(seed, 1, 5), room(seed, 1, 5)
    most = float(torch.where(w > 0, w * high, w * low).sum())
    h = share * most
    d = nearest_on_plane(w, torch.tensor([h], dtype=torch.float64), norm, low, high)
    assert bool(((d >= low - 1e-12) & (d <= high + 1e-12)).all())
    assert float((w * d).sum()) == pytest.approx(h, abs=1e-9)
    a = w[0].tolist()
    if norm == "1":
        bounds = [(0, float(v)) for v in high[0]] + [(0, float(-v)) for v in low[0]]
        best = optimize.linprog([1.0] * 10, A_eq=[[*a, *[-v for v in a]]], b_eq=[h], bounds=bounds)
    else:
        caps = [[1.0 if i == j else 0.0 for i in range(5)] + [-1.0] for j in range(5)]
        caps += [[-v for v in row[:5]] + [-1.0] for row in caps]
        bounds = [(float(b), float(v)) for b, v in zip(low[0], high[0], strict=True)]
        best = optimize.linprog([0.0] * 5 + [1.0], A_eq=[[*a, 0.0]], b_eq=[h], A_ub=caps,
                                b_ub=[0.0] * 10, bounds=[*bounds, (0, None)])  # fmt: skip
    assert float(lengths(d, norm)) == pytest.approx(best.fun, abs=1e-8)


@settings(max_examples=25, deadline=None)
@given(seed=seeds, share=st.floats(0.05, 0.95))
def test_nearest_on_plane_in_a_box_in_l2_meets_its_conditions(seed, share):
    w, (low, high) = drawn(seed, 1, 6), room(seed, 1, 6)
    h = share * float(torch.where(w > 0, w * high, w * low).sum())
    d = nearest_on_plane(w, torch.tensor([h], dtype=torch.float64), "2", low, high)
    assert float((w * d).sum()) == pytest.approx(h, abs=1e-9)
    free = (d > low + 1e-9) & (d < high - 1e-9)
    rates = (d / w)[free]  # the same multiple of w wherever the box does not hold it back
    if rates.numel():
        torch.testing.assert_close(rates, rates[:1].expand_as(rates))
        assert bool((d.abs() <= rates[0] * w.abs() + 1e-9).all())


def test_a_box_that_does_not_reach_the_plane_gives_its_corner():
    w, top = torch.tensor([[1.0, -2.0]]), torch.full((1, 2), 0.25)
    for norm in NORMS:
        d = nearest_on_plane(w, torch.tensor([9.0]), norm, -top, top)
        torch.testing.assert_close(d, torch.tensor([[0.25, -0.25]]))
        assert not bool(nearest_on_plane(0 * w, torch.tensor([9.0]), norm, -top, top).any())
        assert not bool(nearest_on_plane(0 * w, torch.tensor([9.0]), norm).any())


@pytest.mark.parametrize(("norm", "power"), [("inf", 3), ("2", 3), ("1", 3)])
def test_random_perturbations_are_uniform_in_the_ball(norm, power):
    d = random_perturbation(torch.zeros(20_000, 3, dtype=torch.float64), 2.0, norm, as_generator(1))
    size = lengths(d, norm) / 2
    assert float(size.max()) <= 1
    # the share within half of the radius is 2^-3; five standard errors
    share = float((size <= 0.5).double().mean())
    assert abs(share - 0.5**power) < 5 * math.sqrt(0.125 * 0.875 / 20_000)


def test_unknown_norm():
    with pytest.raises(InvalidInput, match="norm"):
        as_norm("3")
    with pytest.raises(InvalidInput, match="norm"):
        as_norm(0.5)


@pytest.mark.parametrize("norm", ["inf", "2", "1"])
def test_random_perturbations_have_mean_zero(norm) -> None:
    """Six standard deviations of the mean of 20,000 entries."""
    some = random_perturbation(torch.zeros(4000, 5).double(), 1.0, norm, as_generator(0))
    assert abs(float(some.mean())) < 6 * float(some.std()) / some.numel() ** 0.5
    assert float(some.min()) < 0 < float(some.max())
