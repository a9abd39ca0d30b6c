"""The finding on calibration: labels drawn with known probabilities, logits scaled on purpose."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchtheory.audit.engine.finding import FindingRecord, all_findings, examine
from torchtheory.core.claim import Verdict
from torchtheory.core.diagnosis import Area, State
from torchtheory.models.problem import Problem


class Scaled(nn.Module):
    """Logits `[n, C]` of the law that the labels are drawn by, times a factor."""

    def __init__(self, factor: float, end: nn.Module | None = None, column: bool = False) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([[factor]]))
        self.end = end or nn.Identity()
        self.column = column

    def forward(self, x: Tensor) -> Tensor:
        z = x[:, 1:] - x[:, :1] if self.column else x
        return self.end(self.factor * z)


def drawn(n: int, seed: int, classes: int = 4) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(n, classes, generator=draw)
    return x, torch.multinomial(x.softmax(1), 1, generator=draw).squeeze(1)


def calibration(model: nn.Module, test: Any, train: Any = None, **known: Any) -> FindingRecord:
    problem = Problem(model, train or test, test, **known)
    return examine(all_findings()["calibration"], problem, confidence=0.95, seed=0)


def value(record: FindingRecord, name: str) -> Any:
    return next(q for q in record.quantities if q.name == name)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n", [60, 400, 2000])
def test_the_law_itself_is_called_calibrated(n: int, seed: int) -> None:
    record = calibration(Scaled(1.0), drawn(n, seed))
    (said,) = record.assessments
    assert said.area is Area.CALIBRATION
    # few samples accuse nobody, and they do not acquit either
    assert said.state is (State.FINE if n == 2000 else State.OPEN)
    assert said.figure == "reliability"
    assert said.number is not None
    assert [f.name for f in record.figures] == ["reliability"]


@pytest.mark.parametrize("seed", range(5))
def test_too_much_confidence_is_a_defect_that_a_temperature_mends(seed: int) -> None:
    record = calibration(Scaled(4.0), drawn(1500, seed))
    (said,) = record.assessments
    assert said.state is State.DEFECT
    assert "claims to be more certain than it is" in said.sentence
    assert said.action.startswith("Divide the logits by ")
    temperature = value(record, "temperature")
    assert temperature.low < 4.5
    assert temperature.high > 3.5
    rows = next(t for t in record.tables if t.name == "temperature").rows
    assert float(rows[1][1]) < float(rows[0][1])  # type: ignore[arg-type]
    assert value(record, "mean-confidence-gap").low > 0.1


@pytest.mark.parametrize("seed", range(5))
def test_too_little_confidence_is_worth_a_look(seed: int) -> None:
    (said,) = calibration(Scaled(0.25), drawn(1500, seed)).assessments
    assert said.state is State.LOOK
    assert "less certain than it is" in said.sentence
    assert said.action.startswith("Multiply the logits by ")


@pytest.mark.parametrize("factor", [1.0, 5.0])
def test_one_logit_is_as_good_as_two(factor: float) -> None:
    x, y = drawn(1500, 0, classes=2)
    two = calibration(Scaled(factor), (x, y))
    one = calibration(Scaled(factor, column=True), (x, y.float()[:, None]))
    assert one.assessments[0].state is two.assessments[0].state
    for name in ("calibration-error", "temperature"):
        a, b = value(one, name), value(two, name)
        assert (a.value, a.low, a.high) == pytest.approx((b.value, b.low, b.high), rel=1e-4)


def _nll(p: Tensor, y: Tensor) -> Tensor:
    return nn.functional.nll_loss(p.clamp_min(1e-12).log(), y)


@pytest.mark.parametrize(
    ("end", "loss"),
    [(nn.Softmax(1), _nll), (nn.Softmax(1), None), (nn.LogSoftmax(1), nn.NLLLoss())],
)
def test_probabilities_and_their_logarithms_are_taken_as_such(end: nn.Module, loss: Any) -> None:
    data = drawn(800, 0)
    plain = value(calibration(Scaled(3.0), data), "calibration-error")
    found = value(calibration(Scaled(3.0, end), data, loss=loss), "calibration-error")
    assert found.value == pytest.approx(plain.value, abs=1e-4)


def test_a_sigmoid_with_its_own_loss() -> None:
    x, y = drawn(800, 0, classes=2)
    plain = value(calibration(Scaled(3.0), (x, y)), "calibration-error")
    model = Scaled(3.0, nn.Sigmoid(), column=True)
    found = calibration(model, (x, y.float()[:, None]), loss=nn.BCELoss())
    assert value(found, "calibration-error").value == pytest.approx(plain.value, abs=1e-4)


def _hinge(z: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(z, nn.functional.one_hot(y, z.shape[1]).to(z))


@pytest.mark.parametrize(
    ("model", "test", "known", "reason"),
    [
        (Scaled(1.0), drawn(49, 0), {}, "49 test samples are too few"),
        (Scaled(1.0), None, {}, "no test data was given"),
        (Scaled(1.0), drawn(80, 0), {"loss": _hinge}, "does not make probabilities"),
        (nn.Linear(4, 1), (torch.randn(80, 4), torch.randn(80, 1)), {}, "not a classification"),
    ],
)
def test_where_it_does_not_apply(model: nn.Module, test: Any, known: Any, reason: str) -> None:
    record = calibration(model, test, test or drawn(80, 1), **known)
    (claim,) = record.claims
    assert claim.verdict is Verdict.NOT_APPLICABLE
    assert reason in claim.reason
    assert record.assessments == []


def test_a_test_set_without_errors_has_no_temperature() -> None:
    x, _ = drawn(200, 0)
    record = calibration(Scaled(1.0), (x, x.argmax(1)))
    assert "every sample is classified correctly" in record.notes[0]
    assert "temperature" not in [q.name for q in record.quantities]
    (said,) = record.assessments
    assert "less certain" in said.sentence


def test_few_of_many_test_samples_say_nothing() -> None:
    data = drawn(1000, 0)
    problem = Problem(Scaled(4.0), data, data)
    part = problem.restricted(100, 20, torch.Generator().manual_seed(0))
    record = examine(all_findings()["calibration"], part, confidence=0.95, seed=0)
    assert not record.complete
    assert [c.verdict for c in record.claims] == [Verdict.NOT_DONE]


def test_the_range_covers_the_error_of_the_law() -> None:
    """A logit of 2 that is right with probability 0.7: the error is sigmoid(2) - 0.7."""
    truth = 1 / (1 + math.exp(-2)) - 0.7
    hits = 0
    for seed in range(40):
        right = torch.rand(300, generator=torch.Generator().manual_seed(seed)) < 0.7
        x = torch.tensor([[0.0, 2.0]]).repeat(300, 1)
        found = value(calibration(Scaled(1.0), (x, right.long())), "calibration-error")
        hits += found.low <= truth <= found.high
    assert hits >= 35


@pytest.mark.parametrize("seed", range(5))
def test_an_estimate_of_nothing_is_not_fine_where_sure_and_right_differ(seed: int) -> None:
    """Sixty answers that are 0.066 off on average: the range, not its 0, is what is said."""
    x, _ = drawn(60, seed)
    sure = x.softmax(1).max(1).values
    right = torch.zeros(60, dtype=torch.bool)
    right[torch.randperm(60, generator=torch.Generator().manual_seed(seed))] = torch.arange(
        60
    ) < round(60 * (float(sure.mean()) - 0.066))
    y = torch.where(right, x.argmax(1), x.argmin(1))
    record = calibration(Scaled(1.0), (x, y))
    gap, error = value(record, "mean-confidence-gap"), value(record, "calibration-error")
    assert gap.value == pytest.approx(0.066, abs=0.01)
    assert error.high > gap.value
    (said,) = record.assessments
    assert said.state is not State.FINE
    assert "is 0" not in said.sentence


def test_what_a_temperature_saves_is_the_number_that_decides_where_bins_do_not() -> None:
    x, y = drawn(1500, 0)
    record = calibration(Scaled(4.0), (x, y))
    saved = value(record, "loss-saved-by-temperature")
    assert 0 < saved.low < saved.value < saved.high < 1
