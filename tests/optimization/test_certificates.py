"""Certificates: promised curves against independent formulas, faults that are named, bad input."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import EmptyData, InvalidInput, NonFinite, ShapeMismatch, UnknownName
from torchtheory.core.problem import Problem
from torchtheory.optimization.certificates import certify
from torchtheory.optimization.convergence import accelerated_bound, geometric_bound
from torchtheory.optimization.descent import gradient_descent
from torchtheory.optimization.descent_assumptions import Assumptions
from torchtheory.optimization.objectives import objective_of
from torchtheory.optimization.promises import (
    PROMISES,
    dominated_factor,
    heavy_ball_factors,
    quadratic_factor,
)
from torchtheory.optimization.recorded_runs import as_recorded, record_run
from torchtheory.optimization.run_constants import (
    Constant,
    convexity_from_run,
    curvature_constants,
    dominance_from_run,
    gradients_of_run,
    minimum_from_run,
    smoothness_from_run,
)

SPECTRUM = torch.tensor([1.0, 3.0, 8.0], dtype=torch.float64)
START = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def bowl(x: torch.Tensor) -> torch.Tensor:
    return (SPECTRUM * x.square()).sum(-1) / 2


def test_promises_agree_with_the_bounds_that_exist_already() -> None:
    numbers = {"step": 0.5, "smoothness": 2.0, "dominance": 0.7, "gap": 3.0, "distance": 1.5}
    k = torch.arange(6).double()
    assert torch.allclose(
        PROMISES["polyak-lojasiewicz"].curve(numbers, k), geometric_bound(3.0, 0.7, 2.0, 5)
    )
    assert torch.allclose(
        PROMISES["nesterov"].curve(numbers, k[1:]), accelerated_bound(1.5, 2.0, 5)
    )


def test_a_run_by_hand() -> None:
    # f = x²/2, step 1/2: the gap is divided by 4
    found = certify([0.5, 0.125, 0.03125], Assumptions("quadratic", 0.5, 1.0, 1.0, minimum=0.0))
    assert found.promised.tolist() == [0.5, 0.125, 0.03125]
    assert found.kept
    assert found.first_broken is None
    late = certify([0.5, 0.125, 0.04], Assumptions("quadratic", 0.5, 1.0, 1.0, minimum=0.0))
    assert late.first_broken == 2
    assert "broken at step 2" in late.sentence


def test_losses_that_were_kept_every_few_steps() -> None:
    run = gradient_descent(bowl, START, 0.1, 40)
    known = {"smoothness": 8.0, "convexity": 1.0, "minimum": 0.0}
    sparse = record_run(run.values[::10], times=[0, 10, 20, 30, 40])
    found = certify(sparse, Assumptions("quadratic", 0.1, **known))
    whole = certify(run, Assumptions("quadratic", 0.1, **known))
    assert found.kept
    assert torch.equal(found.promised, whole.promised[::10])
    with pytest.raises(InvalidInput, match="gradient"):
        certify(sparse, Assumptions("smooth", 0.1, smoothness=8.0, minimum=0.0))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.05, 1.0))
def test_every_promise_is_kept_on_random_quadratics(seed: int, share: float) -> None:
    random = torch.Generator().manual_seed(seed)
    spectrum = 0.1 + 5 * torch.rand(4, dtype=torch.float64, generator=random)
    big, mu = float(spectrum.max()), float(spectrum.min())
    start = torch.randn(4, dtype=torch.float64, generator=random)
    eta = share / big
    run = gradient_descent(lambda x: (spectrum * x.square()).sum(-1) / 2, start, eta, 30)
    known = {
        "smoothness": big,
        "convexity": mu,
        "dominance": mu,
        "minimum": 0.0,
        "minimiser": torch.zeros(4, dtype=torch.float64),
    }
    for kind in ("quadratic", "strongly convex", "strongly convex distance", "convex", "smooth",
                 "polyak-lojasiewicz"):  # fmt: skip
        found = certify(run, Assumptions(kind, eta, **known))  # type: ignore[arg-type]
        assert found.kept, kind
        assert not found.contradictions, found.sentence


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_estimates_err_in_the_direction_they_state(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    spectrum = 0.1 + 5 * torch.rand(4, dtype=torch.float64, generator=random)
    start = torch.randn(4, dtype=torch.float64, generator=random)
    eta = 0.9 / float(spectrum.max())
    run = as_recorded(
        gradient_descent(lambda x: (spectrum * x.square()).sum(-1) / 2, start, eta, 25)
    )
    smooth = smoothness_from_run(run, eta)
    convex = convexity_from_run(run, eta)
    dominance = dominance_from_run(run, eta, Constant(0.0))
    assert smooth is not None and convex is not None and dominance is not None  # noqa: PT018
    assert smooth.truth == "at least"
    assert smooth.value <= float(spectrum.max()) * (1 + 1e-6)
    assert convex.truth == dominance.truth == "at most"
    assert convex.value >= float(spectrum.min()) * (1 - 1e-6)
    assert dominance.value >= float(spectrum.min()) * (1 - 1e-6)
    assert minimum_from_run(run).value >= 0


def test_constants_of_the_run_are_used_with_a_caveat() -> None:
    run = gradient_descent(bowl, START, 0.1, 30)
    found = certify(run, Assumptions("polyak-lojasiewicz", 0.1))
    assert found.constants["smoothness"].truth == "at least"
    assert found.constants["dominance"].truth == "at most"
    assert found.constants["minimum"].truth == "at most"
    assert len(found.caveats) == 3
    assert "refutes nothing" in str(found)
    assert (
        dominance_from_run(as_recorded(run), 0.1, Constant(-1.0, "at least")).truth == "either side"
    )  # type: ignore[union-attr]


def test_faults_are_named() -> None:
    run = gradient_descent(bowl, START, 0.1, 30)

    def named(kind: str, **constants: float) -> set[str]:
        made = certify(run, Assumptions(kind, 0.1, **constants))  # type: ignore[arg-type]
        return {c.assumption for c in made.contradictions}

    assert named("smooth", smoothness=2.0, minimum=0.0) >= {"smoothness"}
    assert named("smooth", smoothness=8.0, minimum=float(run.values[3])) >= {"minimum"}
    assert named("strongly convex", smoothness=8.0, convexity=4.0, minimum=0.0) == {"convexity"}
    assert named("polyak-lojasiewicz", smoothness=8.0, dominance=4.0, minimum=0.0) == {"dominance"}
    assert named("convex", smoothness=20.0, minimum=0.0) == {"step"}
    diverged = gradient_descent(bowl, START, 0.5, 400)
    made = certify(diverged, Assumptions("convex", 0.5, smoothness=1.0, minimum=0.0, distance=3.0))
    assert not made.kept
    assert "smoothness" in {c.assumption for c in made.contradictions}


def test_heavy_ball_factor_is_the_largest_over_the_spectrum() -> None:
    beta, k = 0.5, torch.arange(12)
    found = torch.zeros(12, dtype=torch.float64)
    for scaled in torch.linspace((1 - math.sqrt(beta)) ** 2, (1 + math.sqrt(beta)) ** 2, 200):
        old, new = 1.0, 1.0
        for i in range(12):
            found[i] = max(float(found[i]), abs(new))
            old, new = new, (1 + beta - float(scaled)) * new - beta * old
    assert torch.allclose(found, heavy_ball_factors(beta, k), rtol=1e-5)


def test_factors() -> None:
    assert quadratic_factor(2 / 9, 1.0, 8.0) == pytest.approx(7 / 9)
    assert dominated_factor(1 / 8, 1.0, 8.0) == pytest.approx(7 / 8)
    assert dominated_factor(1 / 16, 1.0, 8.0) == pytest.approx(1 - 3 / 32)


def test_means_over_runs() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(20, 8, dtype=torch.float64, generator=generator)
    record = record_run(1 + 0.1 * noise.abs(), gradient_norms=noise.abs() / 10)
    found = certify(
        record,
        Assumptions("averaged", 0.1, minimum=0.5, distance=1.0, gradient_bound=1.0),
    )
    assert found.trials == 8
    assert found.times.tolist() == list(range(1, 20))
    by_hand = (1 + 0.1 * noise.abs())[:5].mean() - 0.5
    assert float(found.measured[4]) == pytest.approx(float(by_hand))
    with pytest.raises(ShapeMismatch, match="one at a time"):
        certify(record, Assumptions("convex", 0.1, 1.0, minimum=0.0, distance=1.0))
    one = certify(
        [1.0, 0.9], Assumptions("averaged", 0.1, minimum=0.5, distance=1.0, gradient_bound=1)
    )
    assert "this is one" in one.sentence


def test_a_network_is_descended_and_left_alone() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    before = [p.clone() for p in net.parameters()]
    x = torch.linspace(-1, 1, 14, dtype=torch.float64).reshape(7, 2)
    problem = Problem(net, (x, x[:, :1]), task="regression", chunk=3)
    f, start = objective_of(problem)
    assert float(f(start)) == pytest.approx(problem.risk(problem.train))
    smooth, convex = curvature_constants(problem)
    assert smooth.value >= abs(convex.value)
    found = certify(gradient_descent(f, start, 0.05, 10), Assumptions("smooth", 0.05, minimum=0.0))
    assert found.kept
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_single_precision_runs_are_certified() -> None:
    run = gradient_descent(lambda x: x.square().sum(-1), torch.ones(3), 0.25, 60)
    known = {"smoothness": 2.0, "convexity": 2.0, "minimum": 0.0}
    assert certify(run, Assumptions("quadratic", 0.25, **known)).kept


def test_bad_input() -> None:
    with pytest.raises(UnknownName):
        Assumptions("convexx", 0.1)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="step"):
        Assumptions("convex", 0.0)
    with pytest.raises(InvalidInput, match="momentum"):
        Assumptions("heavy ball", 0.1, momentum=1.0)
    with pytest.raises(InvalidInput, match="smoothness"):
        Assumptions("convex", 0.1, smoothness=-1.0)
    with pytest.raises(InvalidInput, match="neither given"):
        certify([1.0, 0.5], Assumptions("convex", 0.1))
    with pytest.raises(EmptyData):
        record_run([])
    with pytest.raises(NonFinite):
        record_run([math.nan, 1.0])
    with pytest.raises(ShapeMismatch):
        record_run([1.0, 2.0], gradient_norms=[1.0])
    with pytest.raises(ShapeMismatch):
        record_run([1.0, 2.0], points=torch.zeros(3, 2))
    with pytest.raises(InvalidInput, match="negative"):
        record_run([1.0], gradient_norms=[-1.0])
    with pytest.raises(InvalidInput, match="whole"):
        record_run([1.0, 2.0], times=[0.0, 0.5])
    with pytest.raises(InvalidInput, match="too short"):
        certify([1.0], Assumptions("convex", 0.1, 1.0, minimum=0.0, distance=1.0))
    with pytest.raises(ShapeMismatch, match="one at"):
        as_recorded(gradient_descent(bowl, START.expand(2, 3), 0.1, 3))
    with pytest.raises(ShapeMismatch, match="minimiser"):
        certify(
            gradient_descent(bowl, START, 0.1, 3),
            Assumptions("strongly convex distance", 0.1, 8.0, 1.0, minimiser=torch.zeros(2)),
        )
    with pytest.raises(InvalidInput):
        Constant(math.inf)
    assert gradients_of_run(record_run([1.0, 2.0]), 0.1) is None
