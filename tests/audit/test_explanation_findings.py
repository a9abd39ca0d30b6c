"""What a network looks at, Clever Hans, and whether explanations can be trusted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.audit.engine.finding import FindingRecord, all_findings, examine
from torchtheory.audit.findings import explanations
from torchtheory.core.claim import Verdict
from torchtheory.core.diagnosis import State
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.data.real import digits
from torchtheory.explanation.judging.clever_hans import CleverHans, Place
from torchtheory.models.problem import Problem
from torchtheory.models.untouched import ModelState

NAMES = ("what-it-looks-at", "clever-hans", "explanation-sanity")


def made(name: str, problem: Problem, seed: int = 0, **options: Any) -> FindingRecord:
    return examine(all_findings()[name], problem, confidence=0.95, seed=seed, **options)


def accused(record: FindingRecord) -> list[str]:
    return [a.sentence for a in record.assessments if a.state in (State.DEFECT, State.LOOK)]


def reasons(record: FindingRecord) -> str:
    return " ".join(c.reason for c in record.claims)


def numbers(record: FindingRecord) -> dict[str, Any]:
    return {q.name: q for q in record.quantities}


def fit(model: Any, x: Tensor, y: Tensor, steps: int = 60, lr: float = 0.01) -> Any:
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        out = model(x)
        if y.is_floating_point():
            loss = F.mse_loss(out.reshape(len(y)), y)
        elif out.shape[1] == 1:
            loss = F.binary_cross_entropy_with_logits(out[:, 0], y.float())
        else:
            loss = F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
    return model


def seeded(build: Any, seed: int = 0) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build()


def small_cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(128, 10),
    )  # fmt: skip


def images(tagged: int | None = None) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    x, y = digits()
    x = x.reshape(-1, 1, 8, 8).clone()
    if tagged is not None:
        x[y == tagged, :, :2, :2] = 2.0
    return (x[:1000], y[:1000]), (x[1000:], y[1000:])


def table(seed: int, n: int = 300, d: int = 20) -> tuple[Tensor, Tensor]:
    """Two classes that all features tell a little."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (n,), generator=draw)
    return torch.randn(n, d, generator=draw) + 0.5 * (2 * y - 1)[:, None], y


# ---------------------------------------------------------------------------------- Clever Hans


def test_a_tag_is_found_and_the_place_is_named() -> None:
    train, test = images(tagged=3)
    problem = Problem(fit(seeded(small_cnn), *train, steps=100), train, test)
    record = made("clever-hans", problem)
    (sentence,) = accused(record)
    assert "class 3" in sentence
    assert "2 × 2 pixels at row 0, column 0" in sentence
    assert record.claims[0].verdict is Verdict.VIOLATED
    assert numbers(record)["converted"].low > 0.5
    record.figures[0].png  # noqa: B018 - drawn when it is looked at


@pytest.mark.parametrize("seed", range(20))
def test_healthy_networks_are_not_accused(seed: int) -> None:
    train, test = images()
    net = fit(seeded(small_cnn, seed), *train, steps=25)
    assert accused(made("clever-hans", Problem(net, train, test), seed)) == []
    x, y = table(seed)
    dense = seeded(lambda: nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 1)), seed)
    problem = Problem(fit(dense, x[:200], y[:200]), (x[:200], y[:200]), (x[200:], y[200:]))
    assert accused(made("clever-hans", problem, seed)) == []


def test_a_leaked_feature_of_a_table_is_named() -> None:
    x, y = table(0)
    x = x - 0.4 * (2 * y - 1)[:, None]  # what else tells the classes is weak
    x[:, 11] = 3.0 * (2 * y - 1)
    net = seeded(lambda: nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2)))
    record = made("clever-hans", Problem(fit(net, x, y), (x, y)))
    (sentence,) = accused(record)
    assert "feature 11" in sentence


def test_a_network_that_guesses_is_not_accused() -> None:
    train, test = images()
    record = made("clever-hans", Problem(seeded(small_cnn), train, test))
    assert accused(record) == []


def test_few_features_and_other_tasks_are_not_judged() -> None:
    x, y = table(0, d=4)
    net = seeded(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    assert "4 features" in reasons(made("clever-hans", Problem(net, (x, y))))
    value = x.sum(1, keepdim=True)
    real = seeded(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
    assert "regression" in reasons(made("clever-hans", Problem(real, (x, value))))


def test_explanations_of_a_network_that_looks_at_nothing_are_not_praised() -> None:
    x, y = table(0)
    net = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2))
    with torch.no_grad():
        net[0].weight.zero_()
    record = made("explanation-sanity", Problem(net, (x, y)))
    assert "no input matters" in reasons(record)
    assert not record.assessments
    assert all(c.verdict is not Verdict.HOLDS for c in record.claims)


@pytest.mark.parametrize("seed", range(5))
def test_a_class_of_a_few_features_is_not_accused(seed: int) -> None:
    x = torch.randn(500, 20, generator=torch.Generator().manual_seed(seed))
    y = (x[:, :3].sum(1) > 0).long()
    net = seeded(lambda: nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2)), seed)
    assert accused(made("clever-hans", Problem(fit(net, x, y, 100), (x, y)), seed)) == []


@pytest.mark.parametrize(
    ("converted", "state", "verdict"),
    [
        (70, State.LOOK, Verdict.VIOLATED),
        (52, State.OPEN, Verdict.HOLDS),
        (10, State.FINE, Verdict.HOLDS),
    ],
)
def test_what_is_said_of_a_place_is_what_its_claim_came_to(
    monkeypatch: pytest.MonkeyPatch, converted: int, state: State, verdict: Verdict
) -> None:
    """Also where relevance is not dense in the place that converts most."""
    mask = torch.zeros(20, dtype=torch.bool)
    mask[3] = True
    every = clopper_pearson(50, 50)
    thin = Interval(0.06, 0.02, 0.1, 0.95, 50, "Student t")
    places = tuple(
        Place(k, mask, 1 / 20, thin, clopper_pearson(hits, 100), every, every)
        for k, hits in enumerate((converted, 5))
    )
    found = CleverHans(torch.zeros(300, 20), (), {}, places)
    monkeypatch.setattr(explanations, "clever_hans", lambda *_, **__: found)
    record = made("clever-hans", Problem(seeded(lambda: nn.Linear(20, 2)), table(0)))
    assert [a.state for a in record.assessments] == [state]
    assert record.claims[0].verdict is verdict


# ------------------------------------------------------------------------------ what it looks at


def test_a_network_of_one_feature_is_seen_to_look_at_it() -> None:
    x, _ = table(0)
    net = nn.Sequential(nn.Linear(20, 1))
    with torch.no_grad():
        net[0].weight.zero_()
        net[0].weight[0, 6] = 2.0
    record = made("what-it-looks-at", Problem(net, (x, 2 * x[:, 6:7])))
    found = numbers(record)
    assert found["largest-share"].value == pytest.approx(1.0)
    assert found["features-for-half"].value == pytest.approx(1 / 20)
    assert "feature 6" in record.headlines[0]
    record.figures[0].png  # noqa: B018


def test_ranges_cover_the_samples_that_were_left_out() -> None:
    train, test = images()
    whole = Problem(fit(seeded(small_cnn), *train, steps=40), train, test)
    truth = {q.name: q.value for q in made("what-it-looks-at", whole).quantities}
    hits = 0
    for seed in range(20):
        part = whole.restricted(200, 60, torch.Generator().manual_seed(seed))
        found = numbers(made("what-it-looks-at", part, seed))
        name = "features-for-half"
        hits += found[name].low <= truth[name] <= found[name].high
        assert found[name].population > found[name].used
    assert hits >= 16  # of a range that misses with 5 %, fewer have a chance of 3 in 10,000


def test_the_range_of_the_largest_share_knows_that_it_was_chosen() -> None:
    net = nn.Linear(40, 1)
    with torch.no_grad():
        net.weight.fill_(1.0)
    for seed in range(10):
        x = torch.randn(2000, 40, generator=torch.Generator().manual_seed(seed))
        record = made("what-it-looks-at", Problem(net, (x, x.sum(1, keepdim=True))), seed)
        largest = numbers(record)["largest-share"]
        assert largest.low <= 1 / 40 <= largest.high  # all features have the same share


def test_images_have_a_map_for_each_class() -> None:
    train, test = images()
    record = made("what-it-looks-at", Problem(fit(seeded(small_cnn), *train), train, test))
    assert "pixels" in record.headlines[0]
    record.figures[0].png  # noqa: B018


def test_several_real_outputs_are_not_one_score() -> None:
    x, _ = table(0)
    net = nn.Linear(20, 3)
    assert "3 real outputs" in reasons(made("what-it-looks-at", Problem(net, (x, x[:, :3]))))


def test_a_constant_network_looks_at_nothing() -> None:
    x, y = table(0)
    net = nn.Linear(20, 2)
    with torch.no_grad():
        net.weight.zero_()
    assert "no input matters" in made("what-it-looks-at", Problem(net, (x, y))).headlines[0]


# ---------------------------------------------------------------------------------------- sanity


def test_explanations_of_a_trained_network_come_from_its_weights() -> None:
    train, test = images()
    record = made("explanation-sanity", Problem(fit(seeded(small_cnn), *train), train, test))
    assert accused(record) == []
    assert record.assessments[0].state is State.FINE
    found = numbers(record)
    assert found["gradient-times-input-randomized"].high < 0.7
    assert found["relevance-propagation-randomized"].high < 0.7
    assert sum(name.startswith("agreement") for name in found) == 3
    assert all(-1 <= q.low <= q.value <= q.high <= 1 + 1e-9 for q in found.values())


def test_an_operation_without_a_rule_is_named_and_the_rest_is_done() -> None:
    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(11, 2)

        def forward(self, x: Tensor) -> Any:
            return self.out(torch.fft.rfft(x).abs())

    x, y = table(0)
    record = made("explanation-sanity", Problem(fit(seeded(Mixer), x, y), (x, y)))
    assert any("fft" in note for note in record.notes)
    assert "gradient-times-input-randomized" in numbers(record)


def test_a_network_of_one_positive_layer_shows_its_input() -> None:
    class Positive(nn.Module):
        """Weights that are drawn anew to almost the same."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(2, 20))
            self.reset_parameters()

        def reset_parameters(self) -> None:
            with torch.no_grad():
                self.weight.copy_(torch.tensor([[1.0], [-1.0]]) + 0.01 * torch.randn(2, 20))

        def forward(self, x: Tensor) -> Any:
            return F.linear(x, self.weight)

    x, y = table(0)
    record = made("explanation-sanity", Problem(seeded(Positive), (x, y)))
    (sentence,) = accused(record)
    assert "hardly change" in sentence


def test_an_output_with_more_classes_than_the_main_one_is_judged() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(20, 2), nn.Linear(20, 7)

        def forward(self, x: Tensor) -> Any:
            return {"logits": self.first(x), "other": self.second(x)}

    x, _ = table(0)
    y = torch.arange(len(x)) % 7
    record = made("explanation-sanity", Problem(seeded(Two), (x, y), output="other"))
    assert "gradient-times-input-randomized" in numbers(record)


def test_weights_that_cannot_be_drawn_anew_are_named() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(20))
            self.out = nn.Linear(20, 2)

        def forward(self, x: Tensor) -> Any:
            return self.out(self.scale * x)

    x, y = table(0)
    assert "scale belongs to no layer" in reasons(
        made("explanation-sanity", Problem(Own(), (x, y)))
    )


# ------------------------------------------------------------------------------------ all of them


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seconds", [0.02, 0.3, 5.0])
def test_any_budget_ends_in_a_sentence_and_the_model_stays(name: str, seconds: float) -> None:
    train, test = images()
    net = seeded(small_cnn)
    before = ModelState(net)
    record = made(name, Problem(net, train, test), seconds=seconds)
    assert record.claims or record.headlines or record.assessments or record.notes
    assert not before.changes(net)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_says_the_same(name: str) -> None:
    train, test = images()
    problem = Problem(fit(seeded(small_cnn), *train, steps=20), train, test)
    one, other = made(name, problem, 3), made(name, problem, 3)
    assert [q.value for q in one.quantities] == [q.value for q in other.quantities]
