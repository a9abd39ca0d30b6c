"""Planted defects are named, their twins are not accused, and causes only when rivals are excluded.

One seed each; `python -m tests.audit.bug_hunt_table --seeds 5` runs more.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from tests.audit import planted
from tests.audit.planted import Case, accusations, audited
from torch import Tensor, nn

import bug_hunt
import torchtheory as tt
from torchtheory.audit.causes.differential import differential
from torchtheory.audit.causes.layout import Layout
from torchtheory.audit.causes.undoing import orientations
from torchtheory.audit.findings.edge_directions import reversed_share, with_both_directions
from torchtheory.audit.findings.near_samples import mates
from torchtheory.audit.findings.over_draws import draws, mean_over_draws, mixed_outputs
from torchtheory.audit.findings.padding import padding_of
from torchtheory.core.diagnosis import State
from torchtheory.core.quantity import Quantity
from torchtheory.graphs.graph_reading import as_graph
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples

pytestmark = pytest.mark.usefixtures("no_figures")


def problem_of(case: Case) -> Problem:
    return Problem(case.model, case.train, case.test)


@cache
def twin_report(twin: object, seed: int) -> tt.audit.Audit:
    assert callable(twin)
    return audited(twin(seed))


def quantity(report: tt.audit.Audit, name: str) -> Quantity:
    return next(q for f in report.findings for q in f.quantities if q.name == name)


@pytest.mark.parametrize("name", planted.PLANTED)
def test_the_defect_is_named_and_its_twin_is_not_accused(name: str) -> None:
    defect = planted.PLANTED[name]
    report = audited(defect.make(0), [defect.finding])
    said = accusations(report, defect.finding)
    assert any(defect.words.lower() in s.lower() for s in said), said
    (found,) = report.findings
    for a in found.assessments:
        if a.state in (State.DEFECT, State.LOOK):
            assert a.action
            assert a.number is not None
    twin = twin_report(defect.twin, 0)
    assert twin.warnings == []
    assert not any(defect.words in s for s in accusations(twin, defect.finding))


@pytest.mark.parametrize("name", planted.HEALTHY)
def test_healthy_networks_are_accused_of_nothing_but_their_confidence(name: str) -> None:
    report = twin_report(planted.HEALTHY[name], 0)
    assert [w for f in report.findings if f.name != "calibration" for w in f.warnings] == []


# ------------------------------------------------------------------ what follows from the one place


@pytest.mark.parametrize(
    "name", ["mirrored", "renamed", "one-channel-costs", "noisy-inputs", "drift", "moved-features"]
)
def test_what_was_done_to_test_data_is_not_called_over_fitting(name: str) -> None:
    case = planted.PLANTED[name].make(0)
    report = audited(case, ["risk", "calibration", "labels"])
    everything = " ".join(a.sentence + a.action for f in report.findings for a in f.assessments)
    assert "overfits" not in everything
    assert "shuffled" not in everything
    assert "Divide the logits" not in everything
    words = planted.PLANTED[name].words.lower()
    assert words in everything.lower()


def test_over_fitting_is_said_where_nothing_else_explains_it() -> None:
    case = planted.overfitted(0)
    report = audited(case, ["risk", "calibration", "test-causes"])
    (said,) = accusations(report, "risk")
    assert "It overfits" in said
    assert "the scale, order and orientation of the inputs" in said  # what was tried
    assert any("Divide the logits" in a.action for f in report.findings for a in f.assessments)
    assert accusations(report, "test-causes") == []


def test_inputs_of_another_source_leave_both_possible() -> None:
    """Test inputs around another place, by a map that nothing tried undoes."""
    case = planted.overfitted(0)
    x, _ = case.test
    away = case.tested(x + (2.5 * x[:, :1]).sin() * 2 + (x.abs() > 1) * x)
    found = differential(problem_of(away))
    assert found.causes == ()
    assert found.open
    (said,) = accusations(audited(away, ["risk"]), "risk")
    assert "It may be that" in said
    assert "another source" in said
    assert said.index("another source") < said.index("the network overfits")


def test_nothing_is_to_be_explained_where_there_is_no_gap() -> None:
    for twin in (planted.clouds, planted.words):
        found = differential(problem_of(twin(0)))
        assert found.gap is None or found.gap.low > 0
        assert not found.explained


def test_the_cause_is_judged_on_samples_that_did_not_choose_it() -> None:
    """Labels that have nothing to do with inputs: some of many undoings look good by chance."""
    named = 0
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        x = torch.randn(260, 1, 6, 6, generator=draw)
        y = torch.randint(0, 10, (260,), generator=draw)
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(36, 64), nn.ReLU(), nn.Linear(64, 10))
        bug_hunt.fit(model, (x[:60], y[:60]), rate=0.05, epochs=15)
        problem = Problem(model, (x[:60], y[:60]), (x[60:], y[60:]))
        found = differential(problem)
        assert found.gap is not None
        named += found.explained or bool(found.partly)
    assert named <= 2


def test_renamed_test_labels_are_not_called_shuffled_and_shuffled_ones_are() -> None:
    case = planted.images(0)
    order = torch.randperm(600, generator=torch.Generator().manual_seed(0))
    shuffled = audited(case.tested(case.test[0], case.test[1][order]), ["labels"])
    assert any("test labels look shuffled" in s for s in accusations(shuffled))
    names = torch.randperm(10, generator=torch.Generator().manual_seed(3))
    renamed = audited(case.tested(case.test[0], names[case.test[1]]), ["labels"])
    assert not any("shuffled" in s for s in accusations(renamed))


def test_labels_that_their_own_neighbors_predict_are_not_called_shuffled() -> None:
    """Test inputs elsewhere, where training samples and the network know nothing of them."""
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(0, 4, (800,), generator=draw)
    centers = 4 * torch.randn(4, 8, generator=draw)
    x = centers[y] + torch.randn(800, 8, generator=draw)
    turn = torch.linalg.qr(torch.randn(8, 8, generator=draw))[0]
    torch.manual_seed(0)
    model = bug_hunt.fit(bug_hunt.mlp(8, 16, 4), (x[:400], y[:400]), rate=0.02)
    x_test = (x[400:] @ turn).roll(3, 1) * torch.tensor([1.0, -1.0] * 4) + 3
    report = audited(Case(model, (x[:400], y[:400]), (x_test, y[400:])), ["labels"])
    assert not any("shuffled" in s for s in accusations(report))
    (table,) = (t for f in report.findings for t in f.tables if t.name == "information")
    own = {row[0]: row[1] for row in table.rows}
    assert own["test labels by the nearest other test sample, by inputs"] > 0.8


@pytest.mark.parametrize("seed", range(4))
def test_columns_that_cannot_be_told_apart_are_neither_labels_nor_over_fitting(seed: int) -> None:
    """Eight columns of one law, two of them exchanged: no map is known, the relation is another."""
    torch.manual_seed(seed)
    x = torch.randn(1000, 8)
    y = (x[:, 0] + x[:, 1] > 0).long()
    train = (x[:500], y[:500])
    model = bug_hunt.fit(bug_hunt.mlp(8, 16, 2), train, rate=0.02, epochs=10)
    case = Case(model, train, (x[500:, [4, 1, 2, 3, 0, 5, 6, 7]], y[500:]))
    found = differential(problem_of(case))
    assert [c.kind for c in found.causes] == ["relation"]
    (said,) = accusations(audited(case, ["risk"]), "risk")
    assert "overfits" not in said
    assert differential(problem_of(case.tested(x[500:]))).causes == ()


def test_what_undoes_a_change_is_named_by_it() -> None:
    x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    done = {
        "are mirrored left to right": x[:, :, :, [4, 3, 2, 1, 0]],
        "are mirrored upside down": x[:, :, [4, 3, 2, 1, 0]],
        "are rotated by 180 degrees": x[:, :, [4, 3, 2, 1, 0]][:, :, :, [4, 3, 2, 1, 0]],
        "are transposed": x.permute(0, 1, 3, 2),
        # counterclockwise: the last column becomes the first row
        "are rotated by 90 degrees": x.permute(0, 1, 3, 2)[:, :, [4, 3, 2, 1, 0]],
        "are rotated by 270 degrees": x.permute(0, 1, 3, 2)[:, :, :, [4, 3, 2, 1, 0]],
    }
    undo = {u.words: u.undo for u in orientations(Layout((3, 5, 5), 1, (2, 3)))}
    for words, changed in done.items():
        assert torch.equal(undo[words](changed), x), words


# --------------------------------------------------------------------------------- random numbers


def test_error_rates_of_a_model_with_noise_are_over_its_draws() -> None:
    """Ranges cover the mean over draws, which single draws miss."""
    hits = single = 0
    for seed in range(8):
        case = planted.careless(seed)
        x, y = case.test
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(100 + seed)
            rates = [float((case.model(x).argmax(1) != y).double().mean()) for _ in range(40)]
        truth = sum(rates) / len(rates)
        found = quantity(audited(case, ["risk"]), "test-error")
        hits += found.low <= truth <= found.high
        problem = problem_of(case)
        assert problem.test is not None
        single += abs(float(problem.errors(problem.test).double().mean()) - truth) < 0.02
        assert "draws of the noise" in found.basis
    assert hits >= 7
    assert single <= 6  # one draw, as good as a range of no width, is not


def test_means_over_draws_and_samples_by_hand() -> None:
    values = torch.tensor([[0.0, 2.0], [2.0, 4.0], [4.0, 6.0]]).double()
    found = mean_over_draws(values, 0.95)
    half = 4.302652729911275 * math.sqrt(4 / 3 + 2 / 2)  # Student's t of 2 degrees
    assert (found.estimate, found.high - 3) == pytest.approx((3.0, half))
    whole = mean_over_draws(values, 0.95, problem_samples(2))
    assert whole.high - 3 == pytest.approx(4.302652729911275 * math.sqrt(4 / 3))


def problem_samples(count: int) -> Samples:
    return Samples(torch.zeros(count, 1), torch.zeros(count, 1))


def test_every_sample_has_a_draw_of_its_own_in_a_mixture() -> None:
    problem = problem_of(planted.careless(0))
    every = torch.stack([there.outputs(problem.train) for there in draws(problem)])
    mixed = mixed_outputs(problem, problem.train)
    among = (every - mixed).abs().flatten(2).amax(2) == 0
    assert bool(among.any(0).all())
    assert len(torch.unique(among.long().argmax(0))) > 10
    plain = problem_of(planted.plain_digits(0))
    assert mixed_outputs(plain, plain.train) is plain.outputs(plain.train)


# ------------------------------------------------------------------------------- is training done


def test_what_is_left_to_gain_is_measured_on_new_data_too() -> None:
    report = audited(planted.slow(1), ["training-end"])
    gain = quantity(report, "new-data-gain")
    assert gain.low > 0.05
    case = planted.overfitted(0)
    early = bug_hunt.fit(bug_hunt.mlp(40, 64, 2), case.train, rate=0.01, epochs=3)
    said = audited(replace(case, model=early), ["training-end"]).findings[0]
    for a in said.assessments:
        assert a.state is not State.LOOK or "not at its end" in a.sentence


def test_without_test_data_it_is_open_whether_more_training_helps() -> None:
    case = planted.slow(1)
    report = tt.audit(case.model, case.train, only=["training-end"], budget=None)
    (said,) = report.findings[0].assessments
    assert said.state is State.OPEN
    assert "test=" in said.action


def test_no_time_to_train_further_leaves_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "torchtheory.audit.findings.training_end.steps_in_time"
    monkeypatch.setattr(module, lambda *_: 0)
    report = audited(planted.slow(1), ["training-end"])
    (said,) = report.findings[0].assessments
    assert said.state is State.OPEN
    left = quantity(report, "loss-left-to-gain")
    assert left.low == 0
    assert left.high > 0.05


def test_the_range_of_what_is_left_contains_what_all_samples_gain() -> None:
    case = planted.slow(1)
    whole = quantity(audited(case, ["training-end"]), "loss-left-to-gain")
    hits = 0
    for seed in range(5):
        part = tt.audit(
            case.model, case.train, case.test, only=["training-end"], budget=None, limit=700,
            seed=seed,
        )  # fmt: skip
        found = quantity(part, "loss-left-to-gain")
        hits += found.low <= whole.value <= found.high
    assert hits >= 4


# ------------------------------------------------------------------------------------ small parts


def test_padding_is_found_at_either_end() -> None:
    x = torch.tensor([[5, 3, 0, 0], [4, 0, 0, 0], [1, 2, 3, 4], [2, 2, 2, 0]])
    found = padding_of(x)
    assert found is not None
    assert (found.token, found.first, found.runs.tolist()) == (0, False, [2, 3, 0, 1])
    turned = padding_of(x.flip(1))
    assert turned is not None
    assert turned.first
    assert padding_of(torch.randint(0, 9, (200, 6), generator=torch.Generator())) is None


def test_both_directions_of_edges_by_hand() -> None:
    dense = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    graph = as_graph(dense)
    assert reversed_share(graph) == pytest.approx(2 / 3)
    both = with_both_directions(graph)
    assert reversed_share(both) == 1
    assert both.adjacency()[1, 0] == 2


@pytest.mark.parametrize("dimension", [2, 5, 20])
def test_one_cloud_of_samples_has_no_mates(dimension: int) -> None:
    draw = torch.Generator().manual_seed(dimension)
    x = torch.randn(800, dimension, generator=draw)
    y = (x[:, 0] > 0).long()
    model = nn.Linear(dimension, 2)
    found = mates(Problem(model, (x[:400], y[:400]), (x[400:], y[400:])))
    assert found is not None
    assert found.beyond_chance.low < 0.1


def test_a_network_that_ignores_a_copied_label_is_told_so() -> None:
    case = planted.told_label(0)
    (said,) = accusations(audited(case, ["features"]), "features")
    assert "with it shuffled, the network errs on" in said


def test_classes_of_a_fitted_network_are_said_as_often_as_they_occur() -> None:
    plain, weighed = planted.rare(0), planted.weighted(0)
    one, two = (
        quantity(audited(case, ["class-weights"]), "class-said-too-often")
        for case in (plain, weighed)
    )
    assert one.high < 0.05 < two.low
    (x, y), model = weighed.train, weighed.model
    with torch.no_grad():
        chances: Tensor = F.softmax(model(x), 1)
    expected = float(chances[:, 1].mean() - (y == 1).double().mean())
    assert two.value == pytest.approx(expected, abs=1e-5)
