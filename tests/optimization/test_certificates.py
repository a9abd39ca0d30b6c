"""Certificates: promised curves against independent formulas, faults that are named, bad input."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
    UnknownName,
)
from torchtheory.models.problem import Problem
from torchtheory.optimization.certificates.assumptions import Assumptions
from torchtheory.optimization.certificates.certify import certify
from torchtheory.optimization.certificates.contradictions import PLAIN
from torchtheory.optimization.certificates.convergence import accelerated_bound, geometric_bound
from torchtheory.optimization.certificates.promises import (
    PROMISES,
    dominated_factor,
    heavy_ball_factors,
    quadratic_factor,
)
from torchtheory.optimization.certificates.recorded_runs import as_recorded, record_run
from torchtheory.optimization.certificates.run_constants import (
    Constant,
    convexity_from_run,
    dominance_from_run,
    gradients_of_run,
    minimum_from_run,
    smoothness_from_run,
)
from torchtheory.optimization.certificates.stochastic_rates import stationarity_bound
from torchtheory.optimization.descent.iterates import gradient_descent
from torchtheory.optimization.descent.objectives import objective_of

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


def test_the_stochastic_promise_is_the_bound_of_its_room() -> None:
    numbers = {"step": 0.3, "smoothness": 2.0, "gap": 3.0, "gradient_bound": 1.5}
    found = PROMISES["stochastic"].curve(numbers, torch.arange(1, 6).double())
    rest = {n: numbers[n] for n in ("gap", "smoothness", "gradient_bound")}
    by_hand = [stationarity_bound(0.3, k, **rest) for k in range(1, 6)]
    assert found.tolist() == pytest.approx(by_hand)


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
        "minimizer": torch.zeros(4, dtype=torch.float64),
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
    assert len(found.caveats) == 4
    assert "put it to the test" in found.caveats[-1]
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
    assert named("quadratic", smoothness=8.0, convexity=4.0, minimum=0.0) == {"convexity"}
    assert named("smooth", smoothness=8.0, minimum=float(run.values[3])) >= {"minimum"}
    assert named("strongly convex", smoothness=8.0, convexity=4.0, minimum=0.0) == {"convexity"}
    assert named("polyak-lojasiewicz", smoothness=8.0, dominance=4.0, minimum=0.0) == {"dominance"}
    assert named("convex", smoothness=20.0, minimum=0.0) == {"step"}
    diverged = gradient_descent(bowl, START, 0.5, 400)
    made = certify(diverged, Assumptions("convex", 0.5, smoothness=1.0, minimum=0.0, distance=3.0))
    assert not made.kept
    assert "smoothness" in {c.assumption for c in made.contradictions}


def test_a_bound_is_refuted_from_one_side_only() -> None:
    run = gradient_descent(bowl, START, 0.1, 30)

    def named(kind: str, **constants: float | Constant) -> set[str]:
        made = certify(run, Assumptions(kind, 0.1, **constants))  # type: ignore[arg-type]
        return {c.assumption for c in made.contradictions}

    big, least = {"smoothness": 8.0}, {"minimum": 0.0}
    for truth, seen in (("equal", True), ("at most", True), ("at least", False)):
        assert ("smoothness" in named("smooth", smoothness=Constant(2.0, truth), **least)) is seen
    for truth, seen in (("equal", True), ("at least", True), ("at most", False)):
        mu = Constant(4.0, truth)
        assert ("convexity" in named("strongly convex", convexity=mu, **big, **least)) is seen
        assert ("dominance" in named("polyak-lojasiewicz", dominance=mu, **big, **least)) is seen
        high = Constant(float(run.values[3]), truth)
        assert ("minimum" in named("smooth", minimum=high, **big)) is seen
        # L is at least 20, so that 1/L is at most 0.05; that it is at most 20 says nothing
        far = Constant(20.0, truth)
        step = named("convex", smoothness=far, minimum=0.0, distance=3.0)
        assert ("step" in step) is seen
    assert "convexity" in named("strongly convex", convexity=9.0, **big, **least)


def test_what_a_broken_promise_tells() -> None:
    run = gradient_descent(bowl, START, 0.1, 30)
    wrong = {"smoothness": 8.0, "minimum": 0.0}
    sure = certify(run, Assumptions("polyak-lojasiewicz", 0.1, dominance=4.0, **wrong))
    assert not sure.kept
    assert sure.conclusive
    above = Constant(4.0, "at most", "a guess from above")
    open_ = certify(run, Assumptions("polyak-lojasiewicz", 0.1, dominance=above, **wrong))
    assert not open_.kept
    assert not open_.conclusive
    assert "refutes nothing" in open_.sentence
    below = Constant(4.0, "at least")
    assert certify(run, Assumptions("polyak-lojasiewicz", 0.1, dominance=below, **wrong)).conclusive
    # an L from above only asks for a smaller step than is needed
    safe = Constant(8.0, "at most")
    made = certify(run, Assumptions("convex", 0.1, smoothness=safe, minimum=0.0, distance=3.0))
    assert made.conclusive
    assert "limit of the step may be larger" in made.caveats[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("share", [0.02, 0.5, 1.0])
def test_rounding_contradicts_nothing(dtype: torch.dtype, share: float) -> None:
    # a minimum that is not 0 and a start along the slowest direction: every bound is attained
    spectrum = torch.tensor([1.0, 100.0], dtype=dtype)
    best = torch.tensor([3.0, -2.0], dtype=dtype)
    for scale in (1e-6, 1.0, 1e6):
        eta = share / (100 * scale)
        run = gradient_descent(
            lambda x, c=scale: c * ((spectrum * (x - best).square()).sum(-1) / 2 + 5),  # type: ignore[misc]
            best + torch.tensor([1.0, 0.0], dtype=dtype), eta, 400,
        )  # fmt: skip
        known = {
            "smoothness": 100 * scale,
            "convexity": scale,
            "dominance": scale,
            "minimum": float(torch.tensor(5, dtype=dtype) * scale),
            "minimizer": best,
        }
        for kind in PLAIN:
            found = certify(run, Assumptions(kind, eta, **known))  # type: ignore[arg-type]
            assert found.kept, found
            assert not found.contradictions, (kind, found.sentence)


HARD = {  # a function that breaks the hypothesis, its start, the step and what is assumed
    "quadratic": (lambda x: x.square().square().sum(-1), 0.5, 0.1, {"convexity": 1.0}),
    "strongly convex": (lambda x: x.square().square().sum(-1), 0.3, 0.1, {"convexity": 1.0}),
    "strongly convex distance": (
        lambda x: x.square().square().sum(-1), 0.3, 0.1, {"convexity": 1.0},
    ),
    "convex": (lambda x: (x.square() / (1 + x.square())).sum(-1), 5.0, 0.5, {"smoothness": 2.0}),
    "smooth": (lambda x: x.abs().sum(-1), 0.05, 0.1, {}),
    "polyak-lojasiewicz": (lambda x: x.square().square().sum(-1), 0.3, 0.1, {"dominance": 1.0}),
}  # fmt: skip


@pytest.mark.parametrize("kind", PLAIN)
def test_every_promise_breaks_where_its_hypothesis_does(kind: str) -> None:
    f, at, eta, more = HARD[kind]
    run = gradient_descent(f, torch.tensor([at], dtype=torch.float64), eta, 300)
    known = {"smoothness": 10.0, "minimum": 0.0, "minimizer": torch.zeros(1).double(), **more}
    found = certify(run, Assumptions(kind, eta, **known))  # type: ignore[arg-type]
    assert not found.kept
    assert found.conclusive
    assert found.contradictions


@pytest.mark.draws
def test_the_picture() -> None:
    run = gradient_descent(bowl, START, 0.1, 30)
    for kind in ("smooth", "quadratic"):
        made = certify(run, Assumptions(kind, 0.1, 8.0, 3.0, minimum=0.0))  # type: ignore[arg-type]
        assert made.plot().png[:4] == b"\x89PNG"
        assert made.plot().caption == made.sentence
    assert made.first_broken is not None


def test_a_start_at_the_minimum() -> None:
    run = gradient_descent(bowl, 0 * START, 0.1, 5)
    found = certify(run, Assumptions("quadratic", 0.1, 8.0, 1.0, minimum=0.0))
    assert found.kept
    assert found.share == 0.0
    assert not found.contradictions


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
    with pytest.raises(InvalidType, match="step"):
        Assumptions("convex", "0.1")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="finite"):
        Assumptions("convex", 0.1, smoothness=math.inf)
    with pytest.raises(InvalidType, match="minimizer"):
        Assumptions("convex", 0.1, minimizer=[0.0])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="neither given"):
        certify(gradient_descent(bowl, START, 5.0, 400), Assumptions("convex", 5.0))
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
    with pytest.raises(ShapeMismatch, match="minimizer"):
        certify(
            gradient_descent(bowl, START, 0.1, 3),
            Assumptions("strongly convex distance", 0.1, 8.0, 1.0, minimizer=torch.zeros(2)),
        )
    with pytest.raises(InvalidInput):
        Constant(math.inf)
    assert gradients_of_run(record_run([1.0, 2.0]), 0.1) is None


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        ("convex", {"distance": 10.0}),
        ("strongly convex", {"distance": 10.0, "convexity": 0.01}),
        ("polyak-lojasiewicz", {"dominance": 0.001}),
        ("quadratic", {"convexity": 0.001}),
    ],
)
def test_losses_that_rise_below_two_over_the_smoothness_contradict_it(
    kind: Any, known: dict[str, float]
) -> None:
    """The promise's curve leaves room for a rise; the descent lemma does not."""
    assumed = Assumptions(kind, 0.5, smoothness=1.0, minimum=0.0, **known)
    found = certify([1.0, 0.5, 0.6, 0.4], assumed)
    assert [(c.assumption, c.time) for c in found.contradictions] == [("smoothness", 2)]
    assert "rises by 0.1" in found.sentence
    # beyond 2/L values may rise, and that is said of the step instead
    large = certify([1.0, 0.5, 0.6, 0.4], replace(assumed, step=2.5))
    assert {c.assumption for c in large.contradictions} == {"step"}
    # a constant that may be larger refutes nothing
    vague = replace(assumed, smoothness=Constant(1.0, "at least"))
    assert not certify([1.0, 0.5, 0.6, 0.4], vague).contradictions


def test_losses_that_hardly_fall_contradict_what_makes_gradients_large() -> None:
    flat = [1.0, 0.999, 0.998, 0.997]
    strong = Assumptions(
        "strongly convex", 0.5, smoothness=1.0, convexity=0.5, minimum=0.0, distance=2.0
    )
    # eta (1 - eta L / 2) 2 mu = 0.375 of the gap is what a step brings at least
    assert [c.assumption for c in certify(flat, strong).contradictions] == ["convexity"]
    exact = [0.625**k for k in range(6)]
    assert not certify(exact, strong).contradictions
    slower = [0.626**k for k in range(6)]
    assert [c.assumption for c in certify(slower, strong).contradictions] == ["convexity"]
    convex = Assumptions("convex", 0.5, smoothness=1.0, minimum=0.0, distance=2.0)
    # at a gap of 1 and a distance of 2 it is 0.375 / 4
    fast, slow = [1.0, 1 - 0.375 / 4 - 1e-9], [1.0, 1 - 0.375 / 4 + 1e-3]
    assert not certify(fast, convex).contradictions
    assert [c.assumption for c in certify(slow, convex).contradictions] == ["convex"]


def test_a_run_that_rounding_stops_above_the_minimum_contradicts_nothing() -> None:
    """(y - sin x)² stops at the square of what y is rounded by, and not at 0."""
    assumed = Assumptions("polyak-lojasiewicz", 0.25, smoothness=4.0, dominance=1.0, minimum=0.0)
    falling = [0.5**k for k in range(100)]
    assert not certify([*falling, *[falling[-1]] * 5], assumed).contradictions
    # stopped where rounding does not reach, it is told
    early = certify([*falling[:20], *[falling[19]] * 5], assumed)
    assert [c.assumption for c in early.contradictions] == ["dominance"]
