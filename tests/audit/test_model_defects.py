"""Findings on defects of models at the edges: what must be said, what must not, and from how much.

Networks with a defect and their healthy twins are in `test_bug_hunt.py`.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.audit.engine.finding import FindingRecord, all_findings, examine
from torchtheory.audit.engine.row_statistics import row_statistic
from torchtheory.audit.findings.normalization_statistics import RESET_OFF
from torchtheory.core.claim import Verdict
from torchtheory.core.diagnosis import Area, State
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples

pytestmark = pytest.mark.usefixtures("no_figures")


def made(name: str, problem: Problem, seed: int = 0) -> FindingRecord:
    return examine(all_findings()[name], problem, confidence=0.95, seed=seed)


def said(record: FindingRecord) -> list[str]:
    """What it accuses the network of."""
    return [a.sentence for a in record.assessments if a.state in (State.DEFECT, State.LOOK)]


def number(record: FindingRecord, name: str) -> Any:
    return next(q for q in record.quantities if q.name == name)


def blobs(n: int = 300, seed: int = 0, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Gaussian clouds, one for each class."""
    draw = torch.Generator().manual_seed(seed)
    centers = 2 * torch.randn(classes, 8, generator=torch.Generator().manual_seed(99))
    y = torch.randint(0, classes, (n,), generator=draw)
    return centers[y] + torch.randn(n, 8, generator=draw), y


def network(*end: nn.Module, outputs: int = 3, seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, outputs), *end)


def trained(model: nn.Module, data: Any, steps: int = 100, loss: Any = F.cross_entropy) -> Any:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(data[0]), data[1]).backward()
        optimizer.step()
    return model


# ---------------------------------------------------------------------------------- untrained


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rule", ["own", "kaiming", "convolution", "recurrent", "words"])
def test_fresh_networks_are_called_untrained_and_trained_ones_are_not(rule: str, seed: int) -> None:
    x, y = blobs(seed=seed)
    model = network(seed=seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if rule == "kaiming":
            for layer in model[::2]:
                nn.init.kaiming_normal_(layer.weight)
                nn.init.zeros_(layer.bias)
        if rule == "convolution":
            model = nn.Sequential(
                nn.Conv1d(1, 6, 3), nn.BatchNorm1d(6), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)
            )
            x = x[:, None]
        if rule == "recurrent":
            model = Recurrent()
            x = x[..., None]
        if rule == "words":
            model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(32, 3))
            x = x.round().clamp(-4, 4).long() + 4
    fresh = made("untrained", Problem(model, (x, y)))
    (sentence,) = said(fresh)
    assert "its weights cannot be told from a fresh draw" in sentence
    assert fresh.assessments[0].area is Area.FIT
    assert fresh.assessments[0].number is not None
    assert said(made("untrained", Problem(trained(model, (x, y)), (x, y)))) == []


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.GRU(1, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0][:, -1])


def test_a_regression_can_be_untrained() -> None:
    x, _ = blobs()
    y = x.sum(1, keepdim=True)
    (sentence,) = said(made("untrained", Problem(network(outputs=1), (x, y))))
    assert sentence.endswith("and its outputs say nothing about the training data.")
    model = trained(network(outputs=1), (x, y), loss=F.mse_loss)
    assert said(made("untrained", Problem(model, (x, y)))) == []


def test_features_drawn_at_random_under_a_trained_head_are_no_defect() -> None:
    """The head has moved, and almost all weights are as they were drawn."""
    x, y = blobs()
    model = nn.Sequential(nn.Linear(8, 400), nn.ReLU(), nn.Linear(400, 3))
    model[0].requires_grad_(False)
    assert said(made("untrained", Problem(trained(model, (x, y)), (x, y)))) == []


def test_weights_that_are_those_at_the_start() -> None:
    data = blobs()
    model = network()
    start = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        model[0].weight.mul_(9)  # no draw by any rule
        start["0.weight"].mul_(9)
    (sentence,) = said(made("untrained", Problem(model, data, initial=start)))
    assert "its weights are those that training began with" in sentence
    trained(model, data)
    forgotten = made("untrained", Problem(model, data, initial=model.state_dict()))
    (assessment,) = forgotten.assessments
    assert (assessment.state, assessment.area) == (State.LOOK, Area.TRAINING)
    assert "copy.deepcopy" in assessment.action
    assert said(made("untrained", Problem(model, data, initial=start))) == []


@pytest.mark.parametrize("unbalanced", [False, True])
def test_the_share_explained_is_of_the_loss_of_the_best_constant(unbalanced: bool) -> None:
    x, y = blobs(300)
    if unbalanced:
        y = torch.where(y == 2, 0, y)  # and one class does not occur
    model = network()
    with torch.no_grad():
        model[-1].bias.add_(torch.tensor([0.0, 3.0, -1.0]))  # the mean output is far from the best
    problem = Problem(model, (x, y))
    with torch.no_grad():
        loss = float(F.cross_entropy(model(x), y))
    entropy = float(torch.special.entr(torch.bincount(y) / len(y)).sum())
    found = number(made("untrained", problem), "explained-loss")
    assert found.value == pytest.approx(1 - loss / entropy, abs=1e-5)
    absolute = Problem(nn.Linear(8, 1), (x, x[:, :1].exp()), loss=nn.L1Loss(), task="regression")
    targets = x[:, :1].exp()
    with torch.no_grad():
        loss = float((absolute.model(x) - targets).abs().mean())
    spread = float((targets - targets.median()).abs().mean())
    found = number(made("untrained", absolute), "explained-loss")
    assert found.value == pytest.approx(1 - loss / spread, abs=1e-4)


def test_the_share_explained_has_a_range_that_covers_all_samples() -> None:
    data = blobs(2000)
    model = trained(network(), data, steps=15)
    whole = number(made("untrained", Problem(model, data)), "explained-loss")
    assert whole.exact
    hits = 0
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        part = made("untrained", Problem(model, data).restricted(200, 1, draw))
        found = number(part, "explained-loss")
        hits += found.low <= whole.value <= found.high
    assert hits >= 17


# --------------------------------------------------------------------------------- the outputs


def _nll(p: Tensor, y: Tensor) -> Tensor:
    return F.nll_loss(p.clamp_min(1e-9).log(), y)


@pytest.mark.parametrize(
    ("end", "loss", "accused"),
    [
        (nn.Softmax(1), None, True),
        (nn.Softmax(1), nn.CrossEntropyLoss(label_smoothing=0.1), True),
        (nn.Softmax(1), _nll, False),
        (nn.LogSoftmax(1), None, False),
        (nn.LogSoftmax(1), nn.NLLLoss(), False),
        (nn.Sigmoid(), None, False),  # odd, but no probability vector
        (nn.Identity(), None, False),
    ],
)
def test_a_softmax_is_a_defect_only_before_a_loss_that_has_one(
    end: nn.Module, loss: Any, accused: bool
) -> None:
    data = blobs()
    record = made("output-range", Problem(network(end), data, loss=loss))
    assert len(said(record)) == accused
    if accused:
        assert number(record, "least-loss").value == pytest.approx(math.log(1 + 2 / math.e))


def test_no_probabilities_have_a_smaller_cross_entropy_than_is_said() -> None:
    one_hot = torch.eye(7)
    assert float(F.cross_entropy(one_hot, torch.arange(7))) == pytest.approx(
        math.log(1 + 6 / math.e)
    )


@pytest.mark.parametrize(
    ("end", "loss", "state"),
    [
        (nn.Sigmoid(), None, State.DEFECT),
        (nn.Sigmoid(), nn.BCELoss(), None),
        (nn.Identity(), None, None),
        (nn.Hardtanh(0.0, 1.0), None, State.LOOK),  # in the range, by another name
    ],
)
def test_a_sigmoid_is_a_defect_only_before_a_loss_that_has_one(
    end: nn.Module, loss: Any, state: State | None
) -> None:
    x, y = blobs(classes=2)
    model = network(end, outputs=1)
    with torch.no_grad():
        model[2].weight.mul_(10)
        model[2].bias.sub_(model[:3](x).mean())  # outputs of both sides
    record = made("output-range", Problem(model, (x, y.float()[:, None]), loss=loss))
    assert [a.state for a in record.assessments] == ([] if state is None else [state])


def test_small_positive_logits_are_not_taken_for_probabilities() -> None:
    x, y = blobs(classes=2)
    model = network(outputs=1)
    with torch.no_grad():
        model[2].weight.mul_(0.1)
        model[2].bias.fill_(0.4)
    problem = Problem(model, (x, y.float()[:, None]))
    assert float(problem.outputs(problem.train).min()) > 0
    assert said(made("output-range", problem)) == []


def test_a_class_that_is_never_predicted_is_worth_a_look() -> None:
    x, y = blobs()
    model = trained(network(), (x, y))
    assert said(made("constant-outputs", Problem(model, (x, y)))) == []
    with torch.no_grad():
        model[2].bias[1] -= 1000
    (sentence,) = said(made("constant-outputs", Problem(model, (x, y))))
    assert sentence.startswith("It never predicts class 1 on the training data")
    with torch.no_grad():
        model[2].bias[2] += 2000
    record = made("constant-outputs", Problem(model, (x, y)))
    assert said(record)[0].startswith(("It predicts class 2 for every", "The outputs ignore"))


def test_one_rare_class_that_is_missed_may_be_chance() -> None:
    x, y = blobs()
    y = y.clamp(max=1)
    y[0] = 2
    model = trained(network(), (x[1:], y[1:]))
    with torch.no_grad():
        model[2].bias[2] -= 1000
    assert said(made("constant-outputs", Problem(model, (x, y)))) == []


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_outputs_of_any_shape_that_ignore_their_inputs(shape: tuple[int, ...]) -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, math.prod(shape))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x).reshape(len(x), *shape)

    x, _ = blobs()
    y = torch.randn(300, *shape, generator=torch.Generator().manual_seed(0))
    model = Head()
    assert said(made("constant-outputs", Problem(model, (x, y), task="regression"))) == []
    nn.init.zeros_(model.head.weight)
    (sentence,) = said(made("constant-outputs", Problem(model, (x, y), task="regression")))
    assert sentence.startswith("The outputs ignore the inputs: over 300 training samples")


def test_samples_of_a_class_that_come_together_are_no_collapse() -> None:
    """At the end of training the features of a class are one point, and classes differ."""
    x, y = blobs()
    centers = torch.stack([x[y == k].mean(0) for k in range(3)])
    model = trained(network(), (centers[y], y))
    record = made("feature-collapse", Problem(model, (centers[y], y)))
    assert said(record) == []
    assert number(record, "feature-spread").value > 0.1


def test_the_spread_of_features_by_hand_and_its_range() -> None:
    model = nn.Sequential(nn.Identity(), nn.Linear(1, 2))
    x = torch.tensor([[3.0], [4.0], [5.0]])  # variance 2/3, mean square 50/3
    record = made("feature-collapse", Problem(model, (x, torch.tensor([0, 1, 0]))))
    assert number(record, "feature-spread").value == pytest.approx(math.sqrt(2 / 50))
    rows = torch.randn(1000, 1, generator=torch.Generator().manual_seed(0)).double() + 3
    hits = 0
    for seed in range(40):
        some = Samples(rows, rows).some(100, torch.Generator().manual_seed(seed))
        found = row_statistic(lambda r: float(r.std()), some.x, some, 0.95)
        hits += found.low <= float(rows.std()) <= found.high
    assert hits >= 35


# --------------------------------------------------------------------------- signals and units


def test_few_samples_of_many_accuse_nobody() -> None:
    """From 4 of 3,000 samples, 43 of 128 units were once called dead."""
    data = blobs(3000)
    model = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 3))
    problem = Problem(model, data).restricted(4, 1, torch.Generator().manual_seed(0))
    record = made("units", problem)
    assert not record.complete
    assert record.assessments == []
    assert record.headlines == []
    assert record.quantities == []
    (claim,) = [c for c in record.claims if not c.self_check]
    assert claim.verdict is Verdict.NOT_DONE
    assert "4 of 3,000 samples are too few" in claim.reason


@pytest.mark.parametrize(
    ("finding", "quantity"),
    [
        ("units", "silent-units"),
        ("units", "flat-slopes"),
        ("gradients-by-depth", "gradient-ratio"),
        ("gradients-by-depth", "activation-ratio"),
    ],
)
def test_ranges_cover_the_value_on_all_samples(finding: str, quantity: str) -> None:
    data = blobs(2000)
    model = nn.Sequential(
        nn.Linear(8, 40), nn.ReLU(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 3)
    )
    trained(model, data, steps=30)
    problem = Problem(model, data)
    truth = number(made(finding, problem), quantity)
    assert truth.exact
    found = []
    for seed in range(20):
        part = problem.restricted(150, 1, torch.Generator().manual_seed(seed))
        found.append(number(made(finding, part, seed), quantity))
    assert all(q.used == 150 and q.population == 2000 for q in found)
    assert sum(q.low <= truth.value <= q.high for q in found) >= 17
    assert any(q.low < q.high for q in found)


def test_checks_of_our_own_do_not_count_as_claims() -> None:
    data = blobs()
    model = network()
    with torch.no_grad():
        model[0].bias[:4] = -100
    record = made("units", Problem(model, data))
    assert [c.self_check for c in record.claims] == [True]
    assert record.claims[0].verdict is Verdict.HOLDS
    assert said(record) == []
    affine = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 3))
    record = made("linearity", Problem(affine, data))
    assert [c.self_check for c in record.claims] == [True]
    assert record.assessments[0].area is Area.SIGNALS


def test_a_gradient_that_never_arrives_is_no_good_news() -> None:
    data = blobs(1000)
    model = network()
    nn.init.zeros_(model[2].weight)
    problem = Problem(model, data)
    for part in (problem, problem.restricted(200, 1, torch.Generator().manual_seed(0))):
        assert "gradient reaches the first layer" in said(made("gradients-by-depth", part))[0]
    few = made("gradients-by-depth", problem.restricted(10, 1, torch.Generator().manual_seed(0)))
    assert few.assessments == []


# ------------------------------------------------------------------- normalization statistics


def normalized() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def test_statistics_that_were_kept_fixed_in_training_are_no_defect() -> None:
    """They are those of no data, but the weights were trained with them."""
    data = blobs()
    model = normalized()
    model[1].running_mean.fill_(5.0)
    model[1].running_var.fill_(30.0)
    trained(model.eval(), data, steps=200)
    record = made("normalization-statistics", Problem(model, data))
    assert number(record, "statistics-off").value > 1
    assert said(record) == []
    assert "kept fixed" in record.notes[0]


def test_statistics_after_a_few_batches_are_worth_a_look() -> None:
    x, y = blobs()
    data = (20 * x + 1000, y)
    model = trained(normalized(), data)
    model[1].reset_running_stats()
    with torch.no_grad():
        for _ in range(2):
            model(data[0])
    record = made("normalization-statistics", Problem(model, data))
    assert record.assessments[0].state is State.LOOK
    assert "has seen 2 batches only" in said(record)[0]
    with torch.no_grad():
        for _ in range(40):
            model(data[0])
    assert said(made("normalization-statistics", Problem(model, data))) == []


def test_statistics_by_hand() -> None:
    model = nn.Sequential(nn.BatchNorm1d(1, eps=1e-9), nn.Linear(1, 2))
    x = torch.linspace(0, 1, 128)[:, None]
    model[0].running_mean.fill_(float(x.mean()))
    model[0].running_var.fill_(4 * float(x.var()))
    record = made("normalization-statistics", Problem(model, (x, (x[:, 0] > 0.5).long())))
    # twice the deviation: log 2, up to the means of groups of 32
    assert number(record, "statistics-off").value == pytest.approx(math.log(2), rel=0.1)


def test_statistics_that_happen_to_fit_are_fine_even_if_never_trained() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(4000, 6, generator=draw)
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2))
    record = made("normalization-statistics", Problem(model, (x, (x[:, 0] > 0).long())))
    assert number(record, "statistics-off").value < RESET_OFF
    assert said(record) == []


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (network(), "has no batch normalization"),
        (nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 3)), "40 samples are too few"),
    ],
)
def test_where_statistics_say_nothing(model: nn.Module, reason: str) -> None:
    (claim,) = made("normalization-statistics", Problem(model, blobs(40))).claims
    assert claim.verdict is Verdict.NOT_APPLICABLE
    assert reason in claim.reason


def test_batches_too_small_for_statistics_accuse_nobody() -> None:
    data = blobs()
    model = trained(normalized(), data)
    record = made("normalization-statistics", Problem(model, data, chunk=4))
    assert [c.verdict for c in record.claims] == [Verdict.NOT_DONE]
    assert said(record) == []
    assert said(made("normalization-statistics", Problem(model, data))) == []


# ------------------------------------------------------------------------------- training mode


@pytest.mark.parametrize(
    ("layer", "accused"),
    [
        (nn.Dropout(0.5), True),
        (nn.Dropout(0.0), False),
        (nn.BatchNorm1d(8), True),
        (nn.BatchNorm1d(8, track_running_stats=False), False),
        (nn.LayerNorm(8), False),
        (nn.Identity(), False),
    ],
)
def test_only_layers_with_two_modes_matter(layer: nn.Module, accused: bool) -> None:
    model = nn.Sequential(layer, *network()).train()
    problem = Problem(model, blobs(50), plain_mean=False)
    record = made("training-mode", problem)
    assert len(said(record)) == accused
    assert all(m.training for m in model.modules())
    if accused:
        assert "model.eval()" in record.assessments[0].action
        assert record.assessments[0].area is Area.TRAINING
    assert said(made("training-mode", Problem(model.eval(), blobs(50), plain_mean=False))) == []


# ---------------------------------------------------------------------------------- embeddings


class Words(nn.Module):
    def __init__(self, rows: int, *, tied: bool = False, padding: int | None = None) -> None:
        super().__init__()
        self.words = nn.Embedding(rows, 4, padding_idx=padding)
        self.head = nn.Linear(4, rows if tied else 3, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x).mean(1))


def sentences(n: int, words: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randint(1, words + 1, (n, 5), generator=draw)
    return x, x[:, 0] % 3


def test_rows_are_counted_without_padding() -> None:
    data = sentences(400, 10)
    record = made("embeddings", Problem(Words(12, padding=0), data))
    assert record.tables[0].rows == (("words", 11, 10, 1),)
    assert said(record) == []
    (sentence,) = said(made("embeddings", Problem(Words(41, padding=0), data)))
    assert sentence.startswith("30 of the 40 rows of the embedding table words are used by no")


def test_a_table_that_is_the_last_layer_as_well_is_trained_everywhere() -> None:
    data = sentences(100, 10)
    record = made("embeddings", Problem(Words(50, tied=True), data))
    assert record.claims == record.tables == []
    assert "read otherwise than row by row" in str(record.headlines)


def test_rows_that_only_the_test_data_use() -> None:
    problem = Problem(Words(21), sentences(400, 10), sentences(400, 20, seed=1))
    rows = number(made("embeddings", problem), "test-samples-with-untrained-rows")
    assert rows.value > 0.9
    assert any("was never trained" in s for s in said(made("embeddings", problem)))
    same = Problem(Words(11), sentences(400, 10), sentences(400, 10, seed=1))
    assert said(made("embeddings", same)) == []


def test_rows_that_other_samples_could_use_are_in_the_range() -> None:
    problem = Problem(Words(1001), sentences(300, 1000))
    whole = number(made("embeddings", problem), "unused-rows").value
    part = problem.restricted(100, 1, torch.Generator().manual_seed(0))
    found = number(made("embeddings", part), "unused-rows")
    assert found.low <= whole <= found.high
    assert found.low < found.high


def test_probabilities_with_their_own_loss_are_judged_at_one_half() -> None:
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(200, 2, generator=draw)
    y = (x[:, :1] > 0).float()
    model = nn.Sequential(nn.Linear(2, 1), nn.Sigmoid())
    model[0].weight.data = torch.tensor([[8.0, 0.0]])
    model[0].bias.data.zero_()
    found = tt.audit(
        model, (x, y), (x, y), loss=nn.BCELoss(),
        only=["risk", "output-range", "constant-outputs"], budget=None,
    )  # fmt: skip
    numbers = {q.name: q.value for f in found.findings for q in f.quantities}
    assert numbers["train-error"] == 0.0
    assert found.warnings == []
    logits = nn.Sequential(model[0])
    assert tt.audit(logits, (x, y), only=["risk"], budget=None).warnings == []


@pytest.mark.parametrize("seed", range(3))
def test_what_renewed_statistics_would_gain_is_measured(seed: int) -> None:
    """Variances twice too large are within what is usual, and cost errors all the same."""
    digits = load_digits()
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(seed))
    x, y = torch.tensor(digits.data / 16).float()[order], torch.tensor(digits.target)[order]
    torch.manual_seed(seed)
    model = nn.Sequential()
    for wide in (64, 32):
        model.extend([nn.Linear(wide, 32), nn.BatchNorm1d(32), nn.ReLU()])
    model.append(nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[:1200]), y[:1200]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    model.eval()
    data = (x[:1200], y[:1200]), (x[1200:], y[1200:])
    assert made("normalization-statistics", Problem(model, *data)).assessments == []
    for layer in (model[1], model[4]):
        layer.running_var.mul_(2.2)
    (found,) = made("normalization-statistics", Problem(model, *data)).assessments
    assert found.state is State.LOOK
    assert "with the statistics of the training data" in found.sentence


def test_a_table_of_positions_is_no_table_of_words() -> None:
    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(10, 4), nn.Embedding(100, 4)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = (self.words(x) + self.places(torch.arange(x.shape[1]))).mean(1)
            return out

    x = torch.arange(40).reshape(8, 5) % 10
    record = made("embeddings", Problem(Placed(), (x, torch.arange(8) % 4)))
    (table,) = record.tables
    assert [row[0] for row in table.rows] == ["words"]
    assert record.assessments == []


def test_positions_that_begin_behind_the_padding_are_positions() -> None:
    """As in RoBERTa: places count from the number of padding on, and padding has that row."""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(10, 4, padding_idx=1)
            self.places = nn.Embedding(100, 4, padding_idx=1)

        def forward(self, x: Tensor) -> Tensor:
            there = (x != 1).long()
            out: Tensor = (self.words(x) + self.places(there.cumsum(1) * there + 1)).mean(1)
            return out

    x = 2 + torch.arange(48).reshape(8, 6) % 8
    for k in range(8):
        x[k, 3 + k % 4 :] = 1  # sentences of other lengths
    record = made("embeddings", Problem(Padded(), (x, torch.arange(8) % 4)))
    assert [row[0] for row in record.tables[0].rows] == ["words"]


def test_units_whose_weights_are_computed_count() -> None:
    layers = (nn.utils.parametrizations.weight_norm(nn.Linear(8, 32)), nn.ReLU(), nn.Linear(32, 2))
    x = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    problem = Problem(nn.Sequential(*layers), (x, (x[:, 0] > 0).long()))
    (said,) = made("used-units", problem).assessments
    assert said.sentence == "Of 34 units of 2 layers, 100% have weights of their own."
