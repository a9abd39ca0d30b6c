"""Defects at the edge of what can be told, each beside a twin of which the opposite must be said.

Ordinary defects are in `test_data_defects.py` and `test_model_defects.py`.
"""

from __future__ import annotations

import copy
import importlib
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bug_hunt
import torchtheory as tt
from torchtheory.audit.bare_weights.audit import weights
from torchtheory.audit.engine.finding import FindingRecord, all_findings, examine
from torchtheory.core.diagnosis import Area, State
from torchtheory.core.errors import InvalidInput
from torchtheory.models.problem import Problem

pytestmark = pytest.mark.usefixtures("no_figures")

SEEDS = range(5)
Pair = tuple[Tensor, Tensor]


def made(name: str, problem: Problem) -> FindingRecord:
    return examine(all_findings()[name], problem, confidence=0.95, seed=0)


def sentences(record: FindingRecord, *states: State) -> list[str]:
    return [a.sentence for a in record.assessments if a.state in states]


def accused(record: FindingRecord) -> list[str]:
    return sentences(record, State.DEFECT, State.LOOK)


# ----------------------------------------------------------------- a regression that hardly moved


@pytest.mark.parametrize("seed", SEEDS)
def test_a_wide_regression_learns_without_leaving_the_law_of_its_draw(seed: int) -> None:
    """Fresh networks are far worse than a constant here, which must not excuse or accuse any."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(300, 8, generator=draw)
    y = 0.3 * x[:, :1]
    model = nn.Sequential(nn.Linear(8, 1000, bias=False), nn.ReLU(), nn.Linear(1000, 1, bias=False))
    for layer in model[::2]:
        nn.init.kaiming_normal_(layer.weight, generator=draw)
    (sentence,) = accused(made("untrained", Problem(model, (x, y))))
    assert "its weights cannot be told from a fresh draw" in sentence
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(200):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    record = made("untrained", Problem(model, (x, y)))
    assert all(row[3] > 0.001 for row in record.tables[0].rows)  # still like a draw
    assert 0.5 < record.quantities[0].value < 1
    assert accused(record) == []


# ------------------------------------------------------------------ whose labels were shuffled


@pytest.mark.parametrize("seed", SEEDS)
def test_test_labels_are_not_blamed_for_shuffled_training_labels(seed: int) -> None:
    """Sixty labels of two classes are too few to be called shuffled, and tell nothing of others."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (1060,), generator=draw)
    x = torch.randn(1060, 8, generator=draw) + 2 * y[:, None]
    (x, test), (y, of_test) = x.split((60, 1000)), y.split((60, 1000))

    def said(y: Tensor, of_test: Tensor) -> list[str]:
        torch.manual_seed(seed)
        model = bug_hunt.fit(bug_hunt.mlp(8, 32, 2), (x, y), epochs=20)
        return accused(made("labels", Problem(model, (x, y), (test, of_test))))

    mixed = y[torch.randperm(60, generator=draw)]
    assert not any("The test labels" in s for s in said(mixed, of_test))
    wrong = of_test[torch.randperm(1000, generator=draw)]
    assert "The test labels look shuffled" in said(y, wrong)[0]
    assert said(y, of_test) == []


# ------------------------------------------------------------------------------ bounds and coins


@pytest.mark.parametrize(("wrong", "reassuring"), [(0.1, True), (0.6, False)])
def test_no_bound_beyond_a_coin_is_good_news(wrong: float, reassuring: bool) -> None:
    """A network that errs on most new samples has a bound below 1 that promises nothing."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 2, generator=draw)
    y = (x[:, 0] > 0) ^ (torch.rand(1000, generator=draw) < wrong)
    model = nn.Linear(2, 1)
    model.weight.data = torch.tensor([[1.0, 0.0]])
    model.bias.data.zero_()
    data = x, y.float()[:, None]
    record = made("generalization-bounds", Problem(model, data, data))
    (best,) = (q for q in record.quantities if q.name == "best-of-all-bounds")
    assert wrong < best.value < 1
    assert (best.value < 0.5) is reassuring
    fine = sentences(record, State.FINE)
    assert fine == (
        [f"With 95% confidence it errs on at most {best.value:.1%} of new data."]
        if reassuring
        else []
    )


# --------------------------------------------------------------------------- copies by chance


@pytest.mark.parametrize("seed", SEEDS)
def test_columns_agree_by_chance_among_few_samples_only(seed: int) -> None:
    """Among 100 columns of 10 zeros and ones some are always equal; among 60 rows none are."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 2, (60, 100), generator=draw).float()
    y = torch.randint(0, 2, (60,), generator=draw)
    few = x[:10]
    assert len(torch.unique(few.T, dim=0)) < 100
    model = nn.Linear(100, 2)

    def copies(x: Tensor) -> list[str]:
        record = made("features", Problem(model, (x, y[: len(x)])))
        return [s for s in accused(record) if "cop" in s and "label" not in s]

    assert copies(few) == []
    assert copies(x) == []
    x[:, 7] = x[:, 3]
    assert copies(x) == ["1 of 100 features is a copy of another: 7 (of 3)."]
    assert len(copies(x[:32])) == 1  # from here on they count


# ----------------------------------------------------------------------------- one class is no test


@pytest.mark.parametrize("seed", SEEDS)
def test_a_test_set_of_one_class_says_little_about_new_data(seed: int) -> None:
    train, (x, y) = bug_hunt.data(seed)
    torch.manual_seed(seed)
    model = bug_hunt.fit(bug_hunt.mlp(64, 32, 10), train)

    def state(test: Pair) -> State:
        report = tt.audit(model, train, test, only=["class-balance", "risk"], budget=None)
        (found,) = (a for a in report.diagnosis if a.area is Area.GENERALIZATION)
        if found.state is State.LOOK:
            assert "has one class only" in found.sentence
        return found.state

    assert state((x[y == 3], y[y == 3])) is State.LOOK
    mixed = made("class-balance", Problem(model, train, (x, y)))
    assert all(a.area is not Area.GENERALIZATION for a in mixed.assessments)


# ------------------------------------------------------------ statistics reset, or another scale


@pytest.mark.parametrize("seed", SEEDS)
def test_statistics_that_were_reset_are_not_taken_for_inputs_of_another_scale(seed: int) -> None:
    """With means of 0 and variances of 1 kept, normalized inputs fit better: by accident."""
    draw = torch.Generator().manual_seed(seed)
    x = 50 + 20 * torch.randn(400, 8, generator=draw)
    y = (x[:, 0] + x[:, 1] > 100).long()
    torch.manual_seed(seed)
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    bug_hunt.fit(model, (x, y), epochs=20)
    reset = copy.deepcopy(model)
    reset[0].reset_running_stats()
    assert accused(made("input-scale", Problem(reset, (x, y)))) == []
    (sentence,) = accused(made("normalization-statistics", Problem(reset, (x, y))))
    assert "statistics" in sentence
    # the healthy one, and one whose inputs are of another scale with its statistics in place
    assert accused(made("input-scale", Problem(model, (x, y)))) == []
    (sentence,) = accused(made("input-scale", Problem(model, (255 * x, y))))
    assert "divided by 255" in sentence


# ----------------------------------------------------------------- a range too wide to say 'done'


def test_a_wide_range_does_not_tell_that_training_is_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(300, 4, generator=draw)
    y = x[:, :1].sin() + 0.1 * torch.randn(300, 1, generator=draw)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(500):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()

    def found() -> tuple[Any, bool, bool]:
        report = tt.audit(model, (x, y), only=["training-end"], limit=120, budget=None).findings[0]
        (number,) = (q for q in report.quantities if q.name == "loss-still-falling")
        fine = any("Training is at its end" in s for s in sentences(report, State.FINE))
        return number, fine, bool(sentences(report, State.OPEN))

    training_end = importlib.import_module("torchtheory.audit.findings.training_end")
    number, fine, open_ = found()
    assert 0 < number.high <= training_end.STILL_FALLING <= 0.1
    assert (fine, open_) == (True, False)
    between = (number.low + number.high) / 2
    monkeypatch.setattr(training_end, "STILL_FALLING", between)
    assert found()[1:] == (False, True)


# --------------------------------------------------------------------------------- bare weights


def test_weights_that_are_all_zero_or_no_floats() -> None:
    zero = weights({"a.weight": torch.zeros(30, 20), "b.weight": torch.zeros(10, 30)})
    (origin,) = (f for f in zero.findings if f.name == "weight-origin")
    assert not accused(origin)
    assert any("not all 0" in c.reason for c in origin.claims)
    draw = torch.Generator().manual_seed(0)
    bound = 40**-0.5
    even = bound * (2 * torch.rand(30, 40, generator=draw) - 1)
    (origin,) = weights({"a.weight": even}, only="weight-origin").findings
    assert accused(origin)
    with pytest.raises(InvalidInput, match="holds no floating-point tensor") as refused:
        weights({"steps": torch.tensor(3), "codes": torch.arange(100).reshape(10, 10)})
    assert str(refused.value).count(". ") == 0  # one sentence
    assert weights({"steps": torch.tensor(3), "a": torch.randn(3, 3, generator=draw)}).findings


def test_a_normal_draw_without_a_bias_neither_accuses_nor_reassures() -> None:
    draw = torch.Generator().manual_seed(0)
    normal = {"a.weight": torch.randn(30, 40, generator=draw) / 40**0.5}
    (origin,) = weights(normal, only="weight-origin").findings
    assert origin.assessments == []
    assert "a wide layer may learn" in origin.notes[0]
    moved = {**normal, "a.bias": torch.randn(30, generator=draw)}
    (origin,) = weights(moved, only="weight-origin").findings
    assert [a.state for a in origin.assessments] == [State.FINE]
    as_drawn = {**normal, "a.bias": torch.zeros(30)}
    assert accused(weights(as_drawn, only="weight-origin").findings[0])


# ------------------------------------------------------------------------------------ histograms


@pytest.mark.parametrize(
    ("values", "bins"),
    [
        (np.full(50, 0.1) + 1e-9 * np.arange(50), 1),  # no 40 bins have edges that differ
        (np.zeros(5), 1),
        (np.linspace(0, 1, 50), 40),
        (np.float32([3.0]), 1),
    ],
)
def test_values_that_agree_up_to_rounding_are_one_bin(values: Any, bins: int) -> None:
    robustness = importlib.import_module("torchtheory.audit.findings.robustness")
    assert robustness._bins(values, 40) == bins
    counts, _ = np.histogram(values, robustness._bins(values, 40))
    assert counts.sum() == len(values)
