"""Defects of data and labels are named, and their healthy twins are not accused, at five seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

import bug_hunt
import torchtheory as tt
from torchtheory.core.diagnosis import Area, State
from torchtheory.data.real import split

pytestmark = pytest.mark.usefixtures("no_figures")

SEEDS = range(5)
FINDINGS = ["repeated-samples", "features", "input-scale", "class-balance", "labels", "risk"]
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """A network with its data, as it would be given to the audit."""

    model: nn.Module
    train: Pair
    test: Pair | None


def audited(case: Case, *only: str, **settings: Any) -> tt.audit.Audit:
    return tt.audit(
        case.model, case.train, case.test, only=list(only) or FINDINGS, budget=None, **settings
    )


def accused(report: tt.audit.Audit, finding: str) -> str:
    """What a finding says is wrong."""
    (found,) = (f for f in report.findings if f.name == finding)
    for said in found.assessments:
        if said.state is State.DEFECT:
            assert said.action
            assert said.usual
            assert said.number is not None
    return " ".join(found.warnings)


# ------------------------------------------------------------------------------ the healthy twins


@cache
def digits(seed: int) -> Case:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        train, test = bug_hunt.data(seed)
        model = bug_hunt.fit(bug_hunt.mlp(64, 32, 10), train)
    return Case(model, train, test)


def fit_numbers(model: nn.Module, train: Pair, epochs: int, decay: float = 1e-3) -> nn.Module:
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=decay)
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(train[0])), 50):
            optimizer.zero_grad()
            (model(train[0][batch]) - train[1][batch]).square().mean().backward()
            optimizer.step()
    return model


@cache
def diabetes(seed: int) -> Case:
    x, y = load_diabetes(return_X_y=True)
    inputs, targets = torch.tensor(20 * x).float(), torch.tensor(y / 100).float()[:, None]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        train, test = split(inputs, targets, 0.3, seed)
        model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
        fit_numbers(model, train, 30)
    return Case(model, train, test)


@cache
def table(seed: int) -> Case:
    """Eight features of very different units, two classes, some noise."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        z = torch.randn(600, 8)
        x = z * torch.tensor([1, 10, 100, 0.1, 1, 1, 1, 1])
        y = (z[:, 0] * z[:, 1] + z[:, 2] + 0.3 * torch.randn(600) > 0).long()
        model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        bug_hunt.fit(model, (x[:300], y[:300]), epochs=15)
    return Case(model, (x[:300], y[:300]), (x[300:], y[300:]))


HEALTHY: dict[str, Callable[[int], Case]] = {
    "digits": digits, "diabetes": diabetes, "table": table
}  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_networks_and_data_are_not_accused(name: str, seed: int) -> None:
    report = audited(HEALTHY[name](seed))
    assert report.warnings == []
    assert report.violated == []
    states = {a.area: a.state for a in report.diagnosis}
    assert states[Area.DATA] in (State.FINE, State.OPEN)
    assert states[Area.FIT] is State.FINE
    assert states[Area.GENERALIZATION] in (State.FINE, State.OPEN, State.LOOK)


@pytest.mark.parametrize("seed", SEEDS)
def test_forty_samples_are_not_accused(seed: int) -> None:
    whole = table(seed)
    (x, y), test = whole.train, whole.test
    assert test is not None
    small = Case(whole.model, (x[:40], y[:40]), (test[0][:40], test[1][:40]))
    assert audited(small).warnings == []
    assert audited(replace(small, test=None)).warnings == []


# ------------------------------------------------------------------------------------ the defects


def broken(name: str, seed: int) -> tuple[Case, str, str]:
    """The case, the finding that must say so, and the words it must use."""
    healthy = table(seed) if name.startswith("table") else digits(seed)
    (x, y), test = healthy.train, healthy.test
    assert test is not None
    (x_test, y_test), model = test, healthy.model
    torch.manual_seed(seed)
    match name:
        case "copied test set":
            return replace(healthy, test=(x, y)), "repeated-samples", "300 of 300 test samples"
        case "overlap":
            half = torch.cat([x_test[:270], x[:30]]), torch.cat([y_test[:270], y[:30]])
            return replace(healthy, test=half), "repeated-samples", "30 of 300 test samples"
        case "near copies":
            noisy = x[:30] + 0.02 * torch.randn(30, 64)
            half = torch.cat([x_test[:270], noisy]), torch.cat([y_test[:270], y[:30]])
            return replace(healthy, test=half), "repeated-samples", "nearly copies"
        case "test times 255":
            return replace(healthy, test=(255 * x_test, y_test)), "input-scale", "times more"
        case "all times 255":
            scaled = Case(model, (255 * x, y), (255 * x_test, y_test))
            return scaled, "input-scale", "divided by 255"
        case "all over 255":
            scaled = Case(model, (x / 255, y), (x_test / 255, y_test))
            return scaled, "input-scale", "multiplied by 255"
        case "not normalized":
            mean, size = x.mean(), x.std()
            other = bug_hunt.fit(bug_hunt.mlp(64, 32, 10), ((x - mean) / size, y))
            return Case(other, (x, y), test), "input-scale", "to mean 0 and variance 1"
        case "test not normalized":
            mean, size = x.mean(), x.std()
            other = bug_hunt.fit(bug_hunt.mlp(64, 32, 10), ((x - mean) / size, y))
            return Case(other, ((x - mean) / size, y), test), "input-scale", "times less"
        case "one class":
            kept = y_test == 3
            return (
                replace(healthy, test=(x_test[kept], y_test[kept])), "class-balance",
                "are of class 3",
            )  # fmt: skip
        case "missing classes":
            kept = y_test < 8
            return (
                replace(healthy, test=(x_test[kept], y_test[kept])), "class-balance",
                "No test sample is of class 8, 9",
            )  # fmt: skip
        case "other balance":
            kept = (y_test < 3) | (torch.arange(300) % 10 == 0)
            return (
                replace(healthy, test=(x_test[kept], y_test[kept])), "class-balance",
                "have other shares",
            )  # fmt: skip
        case "shuffled labels":
            mixed = y[torch.randperm(len(y))]
            other = bug_hunt.fit(bug_hunt.mlp(64, 128, 10), (x, mixed), rate=0.05, epochs=40)
            return Case(other, (x, mixed), test), "labels", "The training labels look shuffled"
        case "shuffled test labels":
            mixed = y_test[torch.randperm(len(y_test))]
            return replace(healthy, test=(x_test, mixed)), "labels", "The test labels look shuffled"
        case "untrained":
            return Case(bug_hunt.mlp(64, 32, 10), (x, y), test), "risk", "has not learned"
        case "table, constant feature":
            x, x_test = x.clone(), x_test.clone()
            x[:, 5] = x_test[:, 5] = 3.0
            return Case(model, (x, y), (x_test, y_test)), "features", "is constant: 5"
        case "table, copied feature":
            x, x_test = x.clone(), x_test.clone()
            x[:, 5], x_test[:, 5] = 2 * x[:, 1] - 4, 2 * x_test[:, 1] - 4
            return Case(model, (x, y), (x_test, y_test)), "features", "copy of another: 5 (of 1)"
        case "table, copied label":
            x, x_test = x.clone(), x_test.clone()
            x[:, 5], x_test[:, 5] = y + 0.01 * torch.randn(300), y_test.float()
            return Case(model, (x, y), (x_test, y_test)), "features", "5 is a copy of the label"
        case "table, other unit":
            x_test = x_test * torch.tensor([1, 1, 1, 1, 1000.0, 1, 1, 1])
            return replace(healthy, test=(x_test, y_test)), "input-scale", "Feature 4 varies"
    raise AssertionError(name)


DEFECTS = [
    "copied test set", "overlap", "near copies", "test times 255", "all times 255", "all over 255",
    "not normalized", "test not normalized", "one class", "missing classes", "other balance",
    "shuffled labels", "shuffled test labels", "untrained", "table, constant feature",
    "table, copied feature", "table, copied label", "table, other unit",
]  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", DEFECTS)
def test_the_defect_is_named(name: str, seed: int) -> None:
    case, finding, words = broken(name, seed)
    report = audited(case, finding)
    assert words in accused(report, finding), report.warnings
    area = Area.FIT if name == "untrained" else Area.DATA
    (said,) = (a for a in report.diagnosis if a.area is area)
    assert said.state is State.DEFECT


@pytest.mark.parametrize("seed", SEEDS)
def test_another_class_balance_is_not_taken_for_another_scale(seed: int) -> None:
    for name in ("one class", "missing classes", "other balance"):
        case, _, _ = broken(name, seed)
        assert audited(case, "input-scale", "repeated-samples").warnings == []


@pytest.mark.parametrize("seed", SEEDS)
def test_labels_learned_by_heart_are_named(seed: int) -> None:
    (x, y), test = bug_hunt.data(seed)
    torch.manual_seed(seed)
    flipped = torch.randperm(300)[:45]
    noisy = y.clone()
    noisy[flipped] = (y[flipped] + torch.randint(1, 10, (45,))) % 10
    model = bug_hunt.fit(bug_hunt.mlp(64, 128, 10), (x, noisy), rate=0.05, epochs=60)
    report = audited(Case(model, (x, noisy), test), "labels")
    assert "learned" in accused(report, "labels")
    (found,) = report.findings
    (named,) = (t for t in found.tables if t.name == "contradicted")
    right = [row[0] in flipped.tolist() for row in named.rows]
    assert sum(right) >= 0.8 * len(right)
    assert len(right) >= 10
    (share,) = (q for q in found.quantities if q.name == "wrong-labels")
    assert 0 < share.low <= 0.15 <= share.high < 0.4


def test_a_noisy_problem_that_is_not_learned_by_heart_is_no_defect() -> None:
    """Labels of which a tenth is random, and a linear network that cannot learn them by heart."""
    torch.manual_seed(0)
    x = torch.randn(1200, 5)
    y = ((x[:, 0] + x[:, 1] > 0) ^ (torch.rand(1200) < 0.1)).long()
    model = bug_hunt.fit(nn.Sequential(nn.Linear(5, 2)), (x[:600], y[:600]), epochs=5)
    report = audited(Case(model, (x[:600], y[:600]), (x[600:], y[600:])), "labels")
    assert report.warnings == []


# -------------------------------------------------------------------- copies that chance explains


@pytest.mark.parametrize("seed", SEEDS)
def test_tables_of_few_categories_repeat_themselves(seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randint(0, 2, (400, 3)).float()
    y = (x.sum(1) > 1).long() ^ (torch.rand(400) < 0.1).long()
    model = nn.Linear(3, 2)
    report = audited(
        Case(model, (x[:200], y[:200]), (x[200:], y[200:])), "repeated-samples", "features"
    )
    assert report.warnings == []
    (found,) = (f for f in report.findings if f.name == "repeated-samples")
    assert "200 of 200" in found.assessments[-1].sentence
    # equal inputs with different labels: no function errs on fewer
    (floor,) = (q for q in found.quantities if q.name == "contradictions")
    key = (x[:200] @ torch.tensor([1.0, 2.0, 4.0])).long()
    least = sum(int(torch.bincount(y[:200][key == k], minlength=2).min()) for k in range(8))
    assert floor.value == pytest.approx(least / 200)


def test_the_error_apart_from_the_copies_is_said() -> None:
    case, _, _ = broken("overlap", 0)
    report = audited(case, "repeated-samples")
    (found,) = report.findings
    (apart,) = (q for q in found.quantities if q.name == "error-without-copies")
    assert case.test is not None
    wrong = case.model(case.test[0]).argmax(1) != case.test[1]
    assert apart.value == pytest.approx(float(wrong[:270].double().mean()))
    (named,) = (t for t in found.tables if t.name == "copies")
    assert named.rows[0][:2] == (270, 0)


def test_copies_of_a_sub_sample_have_a_range() -> None:
    (x, y), _ = bug_hunt.data(0, 800)
    report = tt.audit(
        digits(0).model, (x, y), (x, y), only=["repeated-samples"], budget=None, limit=200
    )
    (share,) = (q for q in report.findings[0].quantities if q.name == "copies")
    assert share.low < share.value <= share.high
    assert share.low <= 1.0 <= share.high


# ------------------------------------------------------------------------------ fit and test error


def test_without_test_data_it_is_said_what_to_give() -> None:
    for case in (digits(0), diabetes(0)):
        report = audited(replace(case, test=None), "risk")
        (said,) = (a for a in report.diagnosis if a.area is Area.GENERALIZATION)
        assert said.state is State.UNMEASURED
        assert "test=" in said.action
        assert report.looks == []


def test_the_most_frequent_class_is_what_a_network_must_beat() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(400, 3), (torch.rand(400) < 0.1).long()
    always = nn.Linear(3, 2)
    with torch.no_grad():
        always.weight.zero_()
        always.bias.copy_(torch.tensor([1.0, 0.0]))
    report = audited(Case(always, (x[:200], y[:200]), (x[200:], y[200:])), "risk")
    (fit,) = (a for a in report.diagnosis if a.area is Area.FIT)
    assert fit.state is State.DEFECT
    with torch.no_grad():
        always.bias.copy_(torch.tensor([0.0, 1.0]))
    report = audited(Case(always, (x[:200], y[:200]), (x[200:], y[200:])), "risk")
    assert any("worse than always naming" in w for w in report.warnings)


def test_a_clear_gap_is_worth_a_look_and_no_defect() -> None:
    torch.manual_seed(0)
    x = torch.randn(500, 20)
    y = ((x[:, 0] > 0) ^ (torch.rand(500) < 0.15)).long()
    model = bug_hunt.fit(bug_hunt.mlp(20, 128, 2), (x[:100], y[:100]), epochs=60)
    report = audited(Case(model, (x[:100], y[:100]), (x[100:], y[100:])), "risk")
    assert report.warnings == []
    (said,) = (a for a in report.diagnosis if a.area is Area.GENERALIZATION)
    assert said.state is State.LOOK
    assert "overfits" in said.sentence
    assert said.number is not None
    assert said.number.low > 0


def test_r_squared_of_a_regression() -> None:
    case = diabetes(0)
    assert case.test is not None
    report = audited(case, "risk")
    found = {q.name: q for q in report.findings[0].quantities}
    y, (x_test, y_test) = case.train[1].double(), case.test
    residuals = (case.model(x_test).detach() - y_test).double().square().mean()
    expected = 1 - residuals / (y_test - y.mean()).square().mean()
    assert found["test-explained"].value == pytest.approx(float(expected), rel=1e-5)
    assert found["test-explained"].low < float(expected) < found["test-explained"].high
    untrained = Case(nn.Linear(10, 1), case.train, case.test)
    assert any("has not learned" in w for w in audited(untrained, "risk").warnings)


def test_residuals_to_one_side_are_said() -> None:
    case = diabetes(0)
    assert case.test is not None
    later = replace(case, test=(case.test[0], case.test[1] + 2))
    report = audited(later, "risk", "class-balance")
    assert any("too small by" in sentence for sentence in report.looks)
    assert any("follow another law" in s for s in [*report.warnings, *report.looks])


@pytest.mark.parametrize("seed", SEEDS)
def test_shuffled_targets_of_a_regression(seed: int) -> None:
    case = diabetes(seed)
    torch.manual_seed(seed)
    x, y = case.train
    mixed = y[torch.randperm(len(y))]
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1))
    fit_numbers(model, (x, mixed), 60, 0.0)
    report = audited(Case(model, (x, mixed), case.test), "labels")
    assert "look shuffled" in accused(report, "labels")


def test_a_feature_that_separates_is_worth_a_look() -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 3)
    y = (x[:, 0] > 0).long()
    report = audited(Case(nn.Linear(3, 2), (x, y), None), "features")
    assert report.warnings == []
    assert "Feature 0 alone separates" in report.looks[0]


def test_one_class_and_equal_targets_in_training() -> None:
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    report = audited(Case(nn.Linear(4, 3), (x, torch.ones(60).long()), None), "class-balance")
    assert report.warnings == ["All 60 training samples are of class 1."]
    report = audited(Case(nn.Linear(4, 1), (x, torch.full((60, 1), 0.5)), None), "class-balance")
    assert "there is nothing to learn" in report.warnings[0]


def test_tokens_are_compared_by_what_the_last_layer_sees() -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 12, (300, 5))
    y = (ids == 3).any(1).long()
    model = nn.Sequential(nn.Embedding(12, 8), nn.Flatten(), nn.Linear(40, 16), nn.ReLU())
    model.append(nn.Linear(16, 2))
    bug_hunt.fit(model, (ids[:150], y[:150]), epochs=20)
    report = audited(Case(model, (ids[:150], y[:150]), (ids[150:], y[150:])))
    assert report.warnings == []
    (found,) = (f for f in report.findings if f.name == "labels")
    assert any("features" in str(row[0]) for row in found.tables[0].rows)


def test_one_copy_of_one_test_sample_is_not_fine() -> None:
    """A single test sample that is a training sample: no test tells it from chance."""
    x = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    report = audited(Case(nn.Linear(4, 2), (x, y), (x[:1], y[:1])), "repeated-samples")
    (said,) = report.findings[0].assessments
    assert said.state is not State.FINE
    apart = audited(Case(nn.Linear(4, 2), (x[1:], y[1:]), (x[:1], y[:1])), "repeated-samples")
    (said,) = apart.findings[0].assessments
    assert said.state is State.FINE


@pytest.mark.parametrize(("count", "state"), [(60, State.OPEN), (3000, State.FINE)])
def test_few_samples_do_not_show_that_classes_are_as_frequent(count: int, state: State) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2 * count, 3, generator=draw)
    y = torch.randint(2, (2 * count,), generator=draw)
    case = Case(nn.Linear(3, 2), (x[:count], y[:count]), (x[count:], y[count:]))
    (said,) = audited(case, "class-balance").findings[0].assessments
    assert said.state is state
    assert said.number is not None
    assert said.number.low == 0 < said.number.high
