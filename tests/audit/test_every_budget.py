"""What an audit says of a part of the samples, in little time, and with the time that is left."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.audit.comparison.recorded import read_audit
from torchtheory.audit.engine import audit as engine
from torchtheory.audit.engine.finding import Finding, FindingRecord, all_findings, examine
from torchtheory.audit.engine.ranges import share_range
from torchtheory.core.claim import Verdict
from torchtheory.core.diagnosis import Area, State
from torchtheory.core.errors import FileProblem
from torchtheory.core.quantity import Quantity
from torchtheory.core.random import as_generator
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.nets.fresh_weights import drawn_anew
from torchtheory.optimization import initial_scale


def _data(n: int = 200, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] * x[:, 1] > 0).long()


def _net(*, seed: int = 0, outputs: int = 2) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, outputs))


def _examined(name: str, problem: Problem, **given: Any) -> FindingRecord:
    return examine(all_findings()[name], problem, confidence=0.95, seed=0, **given)


def _number(found: FindingRecord, name: str) -> Quantity:
    (quantity,) = [q for q in found.quantities if q.name == name]
    return quantity


# -- not done, and nothing else ----------------------------------------------------------------


def _record() -> FindingRecord:
    return FindingRecord(name="one", title="One", area=Area.DATA, cost="forward")


def test_what_is_not_done_is_not_complete() -> None:
    record = _record()
    record.not_done("L-118", "x", "no time")
    assert not record.complete
    assert record.sampled


def test_a_reason_seen_on_a_part_is_not_said_of_all() -> None:
    x = torch.zeros(8, 1)
    every, part = Samples(x, x), Samples(x, x, total=90)
    for samples, verdict in (
        (None, Verdict.NOT_APPLICABLE),
        (every, Verdict.NOT_APPLICABLE),
        (part, Verdict.NOT_DONE),
    ):
        record = _record()
        claim = record.not_applicable("L-118", "x", "all gradients are 0", samples=samples)
        assert claim.verdict is verdict
        assert record.complete  # it came to its end
        assert record.sampled == (verdict is Verdict.NOT_DONE)  # and more samples would help
    assert "8 of 90 samples" in record.claims[0].reason


@pytest.mark.parametrize("name", ["point-reached", "curvature", "gradient-noise", "tangent-kernel"])
def test_a_part_of_the_samples_gives_no_reason_that_all_do_not(name: str) -> None:
    """A convex loss, and one that is flat where few samples are seen."""
    x, y = _data()
    line = nn.Linear(4, 2)
    for model, data in ((line, (x, y)), (_net(), (x, y))):
        problem = Problem(model, data)
        said = {
            c.reason for c in _examined(name, problem).claims if c.verdict is Verdict.NOT_APPLICABLE
        }
        fewer = problem.restricted(70, 1, as_generator(3))
        for claim in _examined(name, fewer).claims:
            assert claim.verdict is not Verdict.NOT_APPLICABLE or claim.reason in said
    convex = _examined("point-reached", Problem(line, (x, y)).restricted(70, 1, as_generator(3)))
    (claim,) = [c for c in convex.claims if "L-118" in c.ids]
    assert claim.verdict is Verdict.NOT_DONE
    (claim,) = _examined("point-reached", Problem(line, (x, y))).claims
    assert claim.verdict is Verdict.NOT_APPLICABLE


# -- numbers that do not depend on which samples were looked at ----------------------------------


class _Attention(nn.Module):
    """Lipschitz on balls only, so that the bound depends on the ball."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layer = nn.MultiheadAttention(4, 2, batch_first=True)
            self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = x.reshape(-1, 2, 4)
        out: Tensor = self.out(self.layer(h, h, h, need_weights=False)[0].mean(1))
        return out


def test_the_lipschitz_constant_is_one_range_whatever_was_looked_at() -> None:
    x = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    problem = Problem(_Attention(), (x, (x[:, 0] > 0).long()))
    full = _number(_examined("lipschitz", problem), "lipschitz-constant")
    radius = float((x.double() - x.double().mean(0)).norm(dim=1).max())
    assert f"{radius:.3g}" in full.label
    for seed, count in ((1, 64), (2, 80)):
        fewer = problem.restricted(count, 1, as_generator(seed))
        # so little time that one point would be all that is planned for
        part = _number(
            _examined("lipschitz", fewer, seconds=1e-3, at_most=60.0), "lipschitz-constant"
        )
        assert (part.label, part.high) == (full.label, full.high)
        assert part.used >= 16
        assert 0 < part.low <= part.high < math.inf
        assert not part.differs_from(full)


@pytest.mark.parametrize("rate", [0.002, 0.02, 0.5])
def test_ranges_of_shares_hold_for_rare_samples(rate: float) -> None:
    """A few samples make most of the mean: none of 40 may have one of them."""
    generator = torch.Generator().manual_seed(0)
    population = (torch.rand(2000, generator=generator) < rate).double()
    truth = float(population.mean())
    missed = 0
    for _ in range(400):
        seen = population[torch.randperm(2000, generator=generator)[:40]]
        found = share_range(float(seen.mean()), 40, 2000, 0.95)
        missed += not found.low <= truth <= found.high
    assert missed <= 20  # 5 % of 400; the bound is one for any law, and misses less
    assert share_range(truth, 2000, 2000, 0.95).high == truth


def test_disturbed_weights_are_over_directions_not_one_plane() -> None:
    """Two seeds draw other directions, and their ranges have a number in common."""
    x, y = _data()
    problem = Problem(_net(), (x, y))
    known = all_findings()["loss-slice"]
    one, two = (
        _number(examine(known, problem, confidence=0.95, seed=seed), "disturbed-loss")
        for seed in (0, 1)
    )
    assert one.value != two.value
    assert one.low < one.value < one.high  # though all samples are known
    assert not one.differs_from(two)


# -- the time there is ---------------------------------------------------------------------------


def _round(
    monkeypatch: pytest.MonkeyPatch, used: dict[str, list[int]], seconds: float = 100.0
) -> list[tuple[str, float]]:
    """Which findings are made, one after the other, and with how much time; a second for each."""
    clock = [0.0]
    monkeypatch.setattr("torchtheory.audit.engine.audit.time.perf_counter", lambda: clock[0])
    known = all_findings()
    chosen = [known[name] for name in used]
    made: dict[str, FindingRecord] = {}
    order = []

    def shared() -> Iterator[tuple[Finding, float, float]]:
        return engine._shared_out(chosen, made, 0.0, seconds)

    for found, planned, at_most in islice(shared(), 200):
        assert 0 <= planned <= at_most
        assert at_most <= seconds or found.name in engine.ALWAYS  # is not stopped
        order.append((found.name, planned))
        clock[0] += 1.0
        record = FindingRecord(name=found.name, title=found.title, area=found.area, cost=found.cost)
        seen = sum(name == found.name for name, _ in order) - 1
        count = used[found.name][min(seen, len(used[found.name]) - 1)]
        record.quantities.append(
            Quantity("n", "n", 1.0, 0.0, 2.0, "a part", used=count, population=1000)
        )
        made[found.name] = record
    return order


def test_what_decides_comes_first_and_has_a_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {name: [1000] for name in all_findings()}
    order = _round(monkeypatch, whole)
    assert [name for name, _ in order[:3]] == ["risk", "position-errors", "training-end"]
    assert min(planned for _, planned in order[:2]) >= 10.0
    assert len(order) == len(whole)  # nothing gains by a second round


def test_time_that_is_left_goes_to_those_that_gain_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    used = {"gradient-noise": [64, 300, 600, 900], "curvature": [64, 64], "risk": [1000]}
    order = _round(monkeypatch, used)
    names = [name for name, _ in order]
    assert names.count("gradient-noise") == 3  # better each time, with what the others left
    assert names.count("curvature") == 2  # no better the second time
    assert names.count("risk") == 1  # on all samples already
    planned = [p for name, p in order if name == "gradient-noise"]
    assert all(b > 1.5 * a for a, b in pairwise(planned))


def test_more_time_means_more_samples_and_the_same_among_them() -> None:
    x, y = _data(2000)
    whole = Problem(_net(), (x, y), (x[:500], y[:500]))
    whole.__dict__["seconds_per_sample"] = 1e-3
    fewer = whole.restricted(64, 64, as_generator(0))
    assert engine._enlarged(fewer, whole, 0.1, 0) is fewer
    assert engine._enlarged(whole, whole, math.inf, 0) is whole
    more = engine._enlarged(fewer, whole, 5.0, 0)
    assert more.test is not None
    assert (len(more.train), len(more.test)) == (500, 500)
    rows = {tuple(row) for row in more.train.x.tolist()}
    assert all(tuple(row) in rows for row in fewer.train.x.tolist())


# -- defects that were called by another name ----------------------------------------------------


def _trained(x: Tensor, y: Tensor, seed: int) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 5))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return net


def _blobs(n: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centers = 2 * torch.randn(5, 6, generator=torch.Generator().manual_seed(99))
    y = torch.randint(0, 5, (n,), generator=generator)
    return centers[y] + torch.randn(n, 6, generator=generator), y


@pytest.mark.parametrize("seed", range(5))
def test_renamed_test_labels_are_not_called_shuffled(seed: int) -> None:
    (x, y), (z, w) = _blobs(400, seed), _blobs(300, seed + 50)
    net = _trained(x, y, seed)

    def said(labels: Tensor) -> list[str]:
        found = tt.audit(net, (x, y), (z, labels), only=["labels"], budget=None)
        return found.warnings

    (sentence,) = said((w + 1) % 5)
    assert "consistent renaming" in sentence
    assert "0 is called 1" in sentence
    assert "shuffled" not in sentence
    swapped = torch.tensor([1, 0, 2, 3, 4])[w]
    (sentence,) = said(swapped)
    assert "0 is called 1, 1 is called 0)" in sentence
    (sentence,) = said(w[torch.randperm(300, generator=torch.Generator().manual_seed(seed))])
    assert "shuffled" in sentence
    assert said(w) == []


def test_a_test_set_of_another_scale_says_little_about_new_data() -> None:
    (x, y), (z, w) = _blobs(400, 0), _blobs(300, 50)
    net = _trained(x, y, 0)
    for factor, states in ((1.0, []), (255.0, [State.LOOK])):
        report = tt.audit(net, (x, y), (factor * z, w), only=["input-scale"], budget=None)
        said = [a for f in report.findings for a in f.assessments]
        assert [a.state for a in said if a.area is Area.GENERALIZATION] == states


# -- what a reader is told -----------------------------------------------------------------------


def test_a_directory_of_several_audits_names_them(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="torchtheory audit writes one"):
        read_audit(tmp_path)
    for name in ("epoch-1", "epoch-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "audit.json").write_text("{}")
    with pytest.raises(FileProblem, match="epoch-1, epoch-2: give one of these"):
        read_audit(tmp_path)


def test_fresh_weights_are_the_same_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory is short they are drawn again each time, and no two are held at once."""
    x, y = _data()
    problem = Problem(_net(), (x, y))
    kept = initial_scale.fresh_growths(problem, draws=4)
    report = initial_scale.initialization_report(problem)
    counted: list[int] = []

    def draw(model: nn.Module, seed: int) -> nn.Module:
        counted.append(seed)
        return drawn_anew(model, seed)

    monkeypatch.setattr(initial_scale, "drawn_anew", draw)
    initial_scale.fresh_growths(problem, draws=4)
    assert len(counted) == 4
    problem.memory = 1000
    assert initial_scale.fresh_growths(problem, draws=4) == kept
    assert len(counted) > 8
    assert initial_scale.initialization_report(problem) == report
