"""What an engineer reads: counts that are true, rivals that are named, words of the right task."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.audit.causes.cause import Cause
from torchtheory.audit.causes.differential import Differential
from torchtheory.audit.engine.finding import FindingRecord, all_findings, examine
from torchtheory.audit.findings import calibration, label_noise
from torchtheory.core.diagnosis import State
from torchtheory.core.intervals import Interval
from torchtheory.core.quantity import LONGEST_LABEL, Quantity
from torchtheory.core.usual import below
from torchtheory.models.problem import Problem
from torchtheory.robustness.lipschitz.layers import jacobian_norms


def _examined(name: str, problem: Problem) -> FindingRecord:
    return examine(all_findings()[name], problem, confidence=0.95, seed=0)


def _blobs(count: int, seed: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (count,), generator=source)
    return torch.randn(count, 4, generator=source) + 4 * F.one_hot(y, 4), y


def test_labels_say_how_many_votes_there_were(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    problem = Problem(nn.Linear(4, 3), _blobs(900, 0), _blobs(300, 1))
    whole = label_noise._votes

    def few(*given: object) -> label_noise.Votes:
        votes = whole(*given)  # type: ignore[arg-type]
        parts = (votes.samples, votes.label, votes.said, votes.strength, votes.own)
        return label_noise.Votes(*(p[:200] for p in parts), votes.by_network[:200])

    monkeypatch.setattr(label_noise, "_votes", few)
    found = {q.name: q for q in _examined("labels", problem).quantities}
    number = found["contradicted-labels"]
    assert (number.used, number.population) == (200, 900)
    assert found["wrong-labels"].used == 200


def test_jacobians_are_taken_a_few_outputs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call over all outputs of an image cannot be stopped when time is over."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 1)).double()
    x = torch.randn(5, 1, 4, 4).double()
    problem = Problem(net, (x, torch.zeros(5, 4, 4, dtype=torch.long)))
    at_once = jacobian_norms(problem, x)
    taken: list[Any] = []
    plain = torch.func.jacrev
    monkeypatch.setattr(torch.func, "jacrev", lambda *a, **k: (taken.append(k), plain(*a, **k))[1])
    problem.limit_chunk(7)
    torch.testing.assert_close(jacobian_norms(problem, x), at_once)
    assert [k["chunk_size"] for k in taken] == [7]


def test_a_layer_that_seldom_fires_is_no_open_question() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 10), nn.ReLU(), nn.Linear(10, 1))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([1.0, 0.0]).expand(10, 2))
        net[0].bias[:7] = -2.2  # 1.4 % of normal numbers are larger
        net[0].bias[7:] = 1.0
    x = torch.randn(2000, 2)
    record = _examined("units", Problem(net, (x, x[:, :1])))
    (said,) = [a for a in record.assessments if a.number and a.number.name.endswith("of-a-layer")]
    assert said.state is State.LOOK
    assert "70" in said.sentence


def test_targets_in_other_units_are_not_to_be_drawn_anew() -> None:
    torch.manual_seed(0)
    x = torch.randn(900, 3)
    y = x @ torch.tensor([[1.0], [2.0], [3.0]])
    net = nn.Linear(3, 1)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.01, 2.0, 3.0]]))
        net.bias.zero_()
    train, test = (x[:600], y[:600] + 5), (x[600:], 1000 * (y[600:] + 5))
    with torch.no_grad():
        net.bias.fill_(5.0)
    record = _examined("class-balance", Problem(net, train, test))
    (said,) = [a for a in record.assessments if a.state is State.DEFECT]
    assert "other units" in said.sentence
    assert "same units" in said.action


class _Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(F.dropout(F.relu(self.first(x)), 0.6))
        return out


def test_noise_is_taken_for_no_class_weights_and_no_want_of_training() -> None:
    torch.manual_seed(0)
    net, (x, y) = _Dropping(), _blobs(600, 0)
    steps = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(150):
        steps.zero_grad()
        F.cross_entropy(net(x), y).backward()
        steps.step()
    problem = Problem(net, (x, y), _blobs(300, 1))
    assert problem.draws_random_numbers
    weights = _examined("class-weights", problem)
    assert not [a for a in weights.assessments if a.state in (State.LOOK, State.DEFECT)]
    end = _examined("training-end", problem)
    assert end.assessments == []
    assert "fit that draw" in str([c.reason for c in end.claims])


def test_no_temperature_is_fitted_to_inputs_of_another_scale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where only a part of the errors is gone when the inputs are scaled back."""
    torch.manual_seed(0)
    x, y = _blobs(600, 0)
    a, b = _blobs(600, 1)
    net = nn.Linear(4, 3, bias=False)
    with torch.no_grad():
        net.weight.copy_(5 * torch.eye(4)[:3])
    b = torch.where(torch.rand(600) < 0.2, (b + 1) % 3, b)
    saved = Interval(0.04, 0.01, 0.07, 0.99, 300, "t")
    part = Cause("scale", "the test inputs are large", "undone, less", "Scale them.", saved, False)
    for partly, action in (((), "Divide the logits"), ((part,), "Scale them.")):
        found = Differential(partly=partly)
        monkeypatch.setattr(calibration, "differential", lambda _, found=found: found)
        record = _examined("calibration", Problem(net, (x, y), (a, b)))
        assert record.assessments[0].action.startswith(action)


def test_silence_about_an_own_loss_is_in_words_of_its_task() -> None:
    def contrast(outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs @ y.T, torch.arange(len(y)))

    torch.manual_seed(0)
    x = torch.randn(80, 4)
    names = ["risk", "own-loss", "position-errors", "class-overlap", "target-fits"]
    found = tt.audit(
        nn.Linear(4, 4), (x[:60], x[:60]), (x[60:], x[60:]), loss=contrast, task="own", only=names
    )
    assert "token or pixel" not in str(found.diagnosis)
    assert "your loss" in repr(found)


def test_the_names_of_the_causes_numbers_are_short() -> None:
    torch.manual_seed(0)
    x, y = _blobs(600, 0)
    a, b = _blobs(300, 1)
    net = nn.Linear(4, 3)
    with torch.no_grad():
        net.weight.copy_(5 * torch.eye(4)[:3])
        net.bias.zero_()
    record = _examined("test-causes", Problem(net, (x, y), (a, (b + 1) % 3)))
    assert [q for q in record.quantities if q.name == "saved-by-cause"]
    assert max(len(q.label) for q in record.quantities) <= LONGEST_LABEL


def test_no_logits_are_divided_by_infinity() -> None:
    """Confidence that tells nothing, or the wrong way, has no temperature."""
    torch.manual_seed(0)
    x, y = _blobs(400, 0)
    net = nn.Linear(4, 3, bias=False)
    with torch.no_grad():
        net.weight.copy_(5 * torch.eye(4)[:3])
    record = _examined("calibration", Problem(net, (x, y), (x, (y + 1) % 3)))
    assert "inf" not in record.assessments[0].action.split()
    assert record.assessments[0].state is State.DEFECT


def test_a_handful_of_samples_does_not_say_how_many_would_decide() -> None:
    limit = below(0.1)
    few, some = (Quantity("a", "a", 0.8, 0.0, 0.8, "t", "", n, 600) for n in (1, 50))
    assert limit.samples_to_decide(few) is None
    assert limit.samples_to_decide(some) == 66
    nearly = Quantity("a", "a", 0.0997, 0.05, 0.15, "t", "", 600, 600)
    assert limit.samples_to_decide(nearly) is None
