"""What can go: superfluous units are found, a network that needs all of its units is let alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

import torchtheory as tt
from torchtheory.audit.engine.finding import FindingRecord, all_findings, examine
from torchtheory.audit.findings.pruning import LOSS, SHARES, Removal, _range_of, paired_loss
from torchtheory.core.claim import Verdict
from torchtheory.core.diagnosis import State
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.models.untouched import ModelState

pytestmark = pytest.mark.usefixtures("no_figures")

D = 8


def test_the_two_intervals_of_a_paired_loss_share_the_risk() -> None:
    """Each of them is one at 97.5 %, so that both hold at 95 %."""
    before, after = torch.zeros(2, 300, dtype=torch.bool)
    before[:20] = True
    after[10:60] = True
    found = paired_loss(before, after, 0.95)
    harmed, helped = clopper_pearson(40, 300, 0.975), clopper_pearson(10, 300, 0.975)
    assert found.estimate == pytest.approx(30 / 300)
    assert found.low == harmed.low - helped.high
    assert found.high == harmed.high - helped.low


def test_shares_are_judged_by_the_ends_of_their_ranges() -> None:
    """What can go is shown to cost little, and what cannot is shown to cost more."""
    losses = [(0.0, -0.01, 0.008), (0.005, -0.01, 0.02), (0.05, 0.0, 0.1), (0.2, 0.1, 0.3)]
    removed = [
        Removal(0.1 * (k + 1), Interval(*loss, 0.95, 500, "")) for k, loss in enumerate(losses)
    ]
    assert _range_of(removed) == pytest.approx((0.2, 0.1, 0.4))


def made(problem: Problem, **options: Any) -> FindingRecord:
    settings = {"confidence": 0.95, "seed": 0, **options}
    return examine(all_findings()["pruning"], problem, **settings)


def quantity(record: FindingRecord, name: str) -> Any:
    return next(q for q in record.quantities if q.name == name)


def points(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """The class is the coordinate that sticks out."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(0, D, (n,), generator=draw)
    return 0.4 * torch.randn(n, D, generator=draw) + 3 * torch.eye(D)[y], y


def needed(extra: int = 0) -> nn.Sequential:
    """One hidden unit for each class, all weights 1, and `extra` units that nothing listens to."""
    net = nn.Sequential(nn.Linear(D, D + extra), nn.ReLU(), nn.Linear(D + extra, D))
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
        net[0].weight[:D] = torch.eye(D)
        net[0].weight[D:] = torch.randn(extra, D, generator=draw)
        net[2].weight[:, :D] = torch.eye(D)
    return net


def dense(seed: int = 0) -> nn.Sequential:
    """A linear map that is a rotation: every weight of it takes part."""
    draw = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(D, D, generator=draw)).Q
    net = nn.Sequential(nn.Linear(D, D), nn.LeakyReLU(0.9), nn.Linear(D, D))
    with torch.no_grad():
        net[0].weight.copy_(turn)
        net[2].weight.copy_(turn.T)
        for layer in (net[0], net[2]):
            layer.bias.zero_()
    return net


def test_superfluous_units_are_found_and_their_twin_is_fine() -> None:
    train, test = points(400, 0), points(1000, 1)
    wide, narrow = needed(40), dense()
    before = ModelState(wide)
    found, twin = (made(Problem(net, train, test)) for net in (wide, narrow))
    assert before.changes(wide) == []
    (said,) = found.assessments
    assert said.state is State.LOOK
    assert "units" in said.sentence
    units = quantity(found, "removable-units")
    assert units.low >= 0.7
    assert units.low <= 40 / 48 <= units.high
    assert all(c.verdict is Verdict.HOLDS for c in found.claims)
    assert all(c.control is None or c.control.verdict is Verdict.VIOLATED for c in found.claims)
    (said,) = twin.assessments
    assert said.state is State.FINE
    assert quantity(twin, "removable-units").high <= 0.5
    assert quantity(twin, "removable-weights").high < 0.9


def test_weights_that_are_zero_can_go() -> None:
    """Two layers of 64 weights, 16 of them not 0: seven eighths can go, and one more cannot."""
    train, test = points(400, 0), points(1000, 1)
    weights = quantity(made(Problem(needed(), train, test)), "removable-weights")
    assert weights.low == pytest.approx(7 / 8)
    assert weights.high > 7 / 8


def test_the_range_covers_what_all_samples_say() -> None:
    train, whole = points(400, 0), points(20_000, 1)
    net = dense(3)
    with torch.no_grad():
        net[0].weight.mul_(torch.rand(D, D, generator=torch.Generator().manual_seed(2)) < 0.9)
    problem = Problem(net, train, whole)
    everything = problem.test
    assert everything is not None
    wrong = problem.errors(everything)
    names = ("0.weight", "2.weight")
    flat = torch.cat([problem.parameters[k].flatten() for k in names]).abs().sort().values
    truth = 0.0
    for share in SHARES:
        level = flat[round(share * len(flat)) - 1]
        smaller = {
            k: problem.parameters[k].where(problem.parameters[k].abs() > level, 0) for k in names
        }
        after = problem.at(smaller).errors(everything)
        if float(after.double().mean() - wrong.double().mean()) > LOSS:
            break
        truth = float((flat <= level).double().mean())
    misses = 0
    trials = 40
    for seed in range(trials):
        draw = torch.Generator().manual_seed(seed)
        part = everything.some(600, draw)
        sub = Problem(net, train, (part.x, part.y))
        q = quantity(made(sub), "removable-weights")
        misses += not q.low - 1e-9 <= truth <= q.high + 1e-9
    # at 95% more misses than this come with probability 1e-3
    assert misses <= stats.binom.ppf(1 - 1e-3, trials, 0.05)


def test_intervals_of_paired_losses_cover() -> None:
    draw = torch.Generator().manual_seed(0)
    harmed, helped, n, trials = 0.03, 0.01, 400, 300
    misses = 0
    for _ in range(trials):
        u = torch.rand(n, generator=draw)
        before = (u > harmed) & (u < harmed + helped)
        found = paired_loss(before, u < harmed, 0.95)
        misses += not found.low <= harmed - helped <= found.high
        assert found.low <= found.estimate <= found.high
    assert misses <= stats.binom.ppf(1 - 1e-3, trials, 0.05)


def test_nothing_is_said_of_too_few_samples_or_too_little_time() -> None:
    train = points(400, 0)
    few = made(Problem(needed(40), train, points(100, 1)))
    assert [c.verdict for c in few.claims] == [Verdict.NOT_APPLICABLE]
    assert "too few" in few.claims[0].reason
    problem = Problem(needed(40), train, points(3000, 1))
    assert problem.seconds_per_sample > 0  # measured before the clock runs
    late = made(problem, seconds=1e-4, at_most=60.0)
    assert not late.assessments
    assert not late.quantities
    assert [c.undone for c in late.claims] == [True]
    part = Problem(needed(40), train, points(3000, 1))
    assert part.test is not None
    part.test = Samples(part.test.x[:100], part.test.y[:100], total=3000)
    assert [c.undone for c in made(part).claims] == [True]


def test_a_network_that_guesses_has_nothing_to_lose() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(D, 30), nn.ReLU(), nn.Linear(30, D))
    x = points(1000, 1)[0]
    draw = torch.Generator().manual_seed(0)
    noise = torch.randint(0, D, (1000,), generator=draw)
    found = made(Problem(net, (x, noise), (x.flip(0), noise)))
    assert not found.assessments
    assert not found.quantities
    assert "no accuracy to lose" in found.claims[0].reason


def test_models_without_straight_parts_and_other_tasks() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(D, D), nn.Linear(D, D)
            with torch.no_grad():
                for p in self.parameters():
                    p.zero_()
                self.one.weight.copy_(torch.eye(D))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.one(x) + self.two(x)
            return out

    found = made(Problem(Sum(), points(300, 0), points(800, 1)))
    assert [q.name for q in found.quantities] == ["removable-weights"]
    assert any("units" in note for note in found.notes)
    x = points(100, 0)[0]
    other = made(Problem(nn.Linear(D, 1), (x, x[:, :1]), (x, x[:, :1])))
    assert [c.verdict for c in other.claims] == [Verdict.NOT_APPLICABLE]


def test_in_an_audit() -> None:
    report = tt.audit(needed(40), points(400, 0), points(1000, 1), only=["pruning"])
    assert "can go" in report.findings[0].headlines[0]


def test_weights_that_torch_has_masked_are_counted_as_gone() -> None:
    masked, stripped = needed(64), needed(64)
    for net in (masked, stripped):
        torch_prune.l1_unstructured(net[0], "weight", amount=0.5)
    torch_prune.remove(stripped[0], "weight")
    shares = [
        quantity(made(Problem(net, points(1500, 0), points(1500, 1))), "removable-weights").value
        for net in (masked, stripped)
    ]
    assert shares[0] == shares[1] > 0.5
