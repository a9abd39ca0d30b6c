"""First things first: error rates whatever the budget, a first line that says what is not done."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.audit.engine import audit as engine
from torchtheory.audit.engine.audit import Audit
from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.core.diagnosis import Area
from torchtheory.core.quantity import LONGEST_LABEL, Quantity
from torchtheory.core.usual import below
from torchtheory.models.problem import Problem
from torchtheory.report.terminal import audit_text

pytestmark = pytest.mark.usefixtures("no_figures")


def _data(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long()


class _Slow(nn.Module):
    """As long for every sample as a large network."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.layer, self.seconds = nn.Linear(4, 2), seconds

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds * len(x))
        out: Tensor = self.layer(x)
        return out


def _numbers(report: Audit, name: str) -> dict[str, Quantity]:
    (found,) = [f for f in report.findings if f.name == name]
    assert found.complete
    return {q.name: q for q in found.quantities}


@pytest.mark.parametrize("budget", [1e-6, 0.01, 0.3])
@pytest.mark.parametrize("slow", [0.0, 0.004])
def test_error_rates_are_there_whatever_the_budget(budget: float, slow: float) -> None:
    model = _Slow(slow) if slow else nn.Linear(4, 2)
    with torch.no_grad():
        (model.layer if slow else model).weight[:, 0] = torch.tensor([-9.0, 9.0])
    start = time.monotonic()
    report = tt.audit(model, _data(300), _data(200, 1), budget=budget)
    assert time.monotonic() - start < 60
    found = _numbers(report, "risk")
    for name in ("train-error", "test-error"):
        number = found[name]
        assert 0 <= number.low <= number.value <= number.high <= 1
        # of the training data a number that is exact has seen all of them
        assert number.low < number.high or number.used == number.population
    assert found["test-error"].high < 1
    if not slow:  # nothing is gained by leaving samples out
        assert (found["train-error"].used, found["test-error"].used) == (300, 200)


def test_error_rates_of_a_regression_and_of_tokens_come_first() -> None:
    x, _ = _data(300)
    report = tt.audit(nn.Linear(4, 1), (x, x[:, :1]), (x[:50], x[:50, :1]), budget=1e-6)
    assert {"train-error", "test-error"} <= set(_numbers(report, "risk"))
    words = torch.randint(5, (80, 6), generator=torch.Generator().manual_seed(0))
    tagger = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))
    report = tt.audit(tagger, (words, words % 3), (words[:30], words[:30] % 3), budget=1e-6)
    assert {"train-error", "test-error"} <= set(_numbers(report, "position-errors"))


def test_the_first_line_of_an_audit_of_a_second() -> None:
    report = tt.audit(_Slow(0.002), _data(300), _data(200, 1), budget=1.0)
    done = re.match(r"Most of this audit is not done: (\d+) of (\d+) findings", report.verdict)
    assert done is not None, report.verdict
    undone, every = map(int, done.groups())
    assert (undone, every) == (len(report.undone), len(report.applicable))
    assert every / 2 < undone < every < len(report.findings)
    assert audit_text(report, 80).splitlines()[1].startswith("Most of this audit is not done")


def _finding(name: str, *, stopped: bool = False, applies: bool = True) -> FindingRecord:
    record = FindingRecord(name=name, title="One", area=Area.FIT, cost="forward")
    if stopped:
        record.not_done((), r"\text{x}", "stopped after 2 s for want of time")
    elif applies:
        record.fine("It fits.")
    else:
        record.not_applicable((), r"\text{x}", "the model has no convolutions")
    return record


@pytest.mark.parametrize(("done", "said"), [(3, True), (5, False)])
def test_findings_that_do_not_apply_do_not_count_as_done(done: int, said: bool) -> None:
    findings = [
        *(_finding(f"done-{k}") for k in range(done)),
        *(_finding(f"stopped-{k}", stopped=True) for k in range(4)),
        *(_finding(f"none-{k}", applies=False) for k in range(20)),
    ]
    report = Audit("model", {}, findings, 1.0)
    assert len(report.applicable) == done + 4
    assert report.verdict.startswith("Most of this audit is not done: 4 of 7") == said


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_an_audit_on_a_busy_machine_says_what_it_had(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = time.perf_counter()
    monkeypatch.setattr(engine.time, "process_time", lambda: share * (time.perf_counter() - begun))
    report = tt.audit(_Slow(0.001), _data(200), budget=2.0)
    if share == 1.0:
        assert "processor" not in report.facts
        return
    assert report.facts["processor"] == "had 20% of a core"
    text = " ".join(audit_text(report, 80).split())
    assert "had 20% of a core" in text
    if report.verdict.startswith("Most"):
        assert "ran out of time (had 20% of a core)" in report.verdict


def test_the_budget_is_time_on_the_clock() -> None:
    """A model that waits takes no processor time, and the audit ends all the same."""
    start = time.monotonic()
    tt.audit(_Slow(0.001), _data(400), _data(200, 1), budget=2.0)
    assert time.monotonic() - start < 30  # some findings are let come to an end


def _last_column(screen: str) -> str:
    """What stands beside the states and the names of areas, which take 37 columns."""
    return " ".join(" ".join(line[37:] for line in screen.splitlines()).split())


def test_names_of_numbers_are_shown_in_full_at_80_columns() -> None:
    """The longest names that there may be, in all areas at once."""
    report = Audit("model", {}, [_finding("one")], 1.0)
    label = "share " * 13 + "at"
    assert len(label) == LONGEST_LABEL
    number = Quantity("share", label, 0.25, 0.2, 0.3, "a test", "", 512, 3088)
    for area in Area:
        report.findings[0].fine(
            "It is as it should be. " * 9, number=number, usual=below(0.4), area=area
        )
    text = _last_column(audit_text(report, 80))
    assert text.count(label) == len(Area) - 1  # of one area more is said, and without a number
    assert "…:" not in text
    report.findings[0].assessments.clear()
    for area in Area:  # what is open names its number as well
        report.findings[0].open(replace(number, high=0.5), below(0.4), area=area)
    text = _last_column(audit_text(report, 80))
    assert text.count(f"{label}: 0.25 (0.2 to 0.5)") == len(Area)
    assert text.count("usual: below 0.4") == len(Area)


def test_all_outputs_come_from_one_problem() -> None:
    """Where there is time for all samples, nothing is computed twice."""
    problem = Problem(nn.Linear(4, 2), _data(300), _data(200, 1))
    least, whole, _ = engine._samples_in_time(problem, time.perf_counter(), 60.0, 0)
    assert least is whole
