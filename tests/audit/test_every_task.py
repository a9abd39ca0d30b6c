"""Every task: what it is taken for, its metric by hand, one planted defect, and the right words."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.audit.engine.audit import Audit
from torchtheory.audit.findings.rankings import discounted_gain, wrong_pairs
from torchtheory.core.diagnosis import State
from torchtheory.core.errors import InvalidInput, LabelOutOfRange, ShapeMismatch
from torchtheory.models.problem import Problem

N, HALF = 500, 300

#: The findings that tell about targets, and are judged here.
TOLD = [
    "label-information", "risk", "position-errors", "label-errors", "label-balance",
    "class-balance", "class-overlap",
    "target-fits", "count-errors", "level-errors", "ranking-errors", "own-loss", "calibration",
    "token-calibration", "constant-outputs", "output-range", "features", "labels",
]  # fmt: skip


@dataclass
class Case:
    """A trained network with its data; what the head must say."""

    net: nn.Module
    x: Any
    y: Tensor | None
    task: str
    head: str
    finding: str
    options: dict[str, Any] = field(default_factory=dict)
    forbidden: str = r"\bclass(es)?\b|\bclassif|\bmost frequent"

    @property
    def train(self) -> Any:
        return self._part(slice(0, HALF))

    @property
    def test(self) -> Any:
        return self._part(slice(HALF, N))

    def _part(self, s: slice) -> Any:
        x = {k: v[s] for k, v in self.x.items()} if isinstance(self.x, dict) else self.x[s]
        return x if self.y is None else (x, self.y[s])


def mlp(inputs: int, outputs: int, width: int = 24) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, outputs),
    )  # fmt: skip


def fitted(
    net: nn.Module, x: Tensor, y: Tensor, loss: Any, steps: int = 120, rate: float = 0.01
) -> nn.Module:
    optimizer = torch.optim.Adam(net.parameters(), rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(net(x[:HALF]), y[:HALF]).backward()
        optimizer.step()
    return net


def inputs() -> Tensor:
    return torch.randn(N, 6)


def multilabel() -> Case:
    x = inputs()
    score = x @ torch.randn(6, 4) + 0.3 * torch.randn(N, 4)
    y = (score > torch.tensor([0.0, 0.8, -0.8, 1.5])).float()
    net = fitted(mlp(6, 4), x, y, F.binary_cross_entropy_with_logits)
    return Case(net, x, y, "multilabel", "multi-label, 4 yes-or-no labels", "label-errors")


def several_targets() -> Case:
    x = inputs()
    y = torch.stack([x[:, 0] * x[:, 1], x[:, 2] + x[:, 3], x[:, 4].abs()], 1)
    net = fitted(mlp(6, 3), x, y, F.mse_loss, 250)
    return Case(net, x, y, "regression", "regression, 3 numbers", "target-fits")


def counts() -> Case:
    x = inputs()
    y = torch.poisson((0.6 * x[:, :1] + 0.4 * x[:, 1:2] + 0.6).exp())
    loss = nn.PoissonNLLLoss()
    net = fitted(mlp(6, 1, 12), x, y, loss, 80)
    return Case(net, x, y, "count", "counts", "count-errors", {"loss": loss})


def levels() -> Case:
    x = inputs()
    steps = torch.tensor([-1.5, -0.5, 0.5, 1.5])
    level = torch.bucketize(x[:, 0] + x[:, 1] + 0.2 * torch.randn(N), steps)
    y = (level[:, None] > torch.arange(4)).float()
    net = fitted(mlp(6, 4, 12), x, y, F.binary_cross_entropy_with_logits)
    return Case(net, x, y, "ordinal", "ordered levels, by 4 thresholds", "level-errors")


def one_level() -> Case:
    x = inputs()
    y = (x[:, :1] + x[:, 1:2]).round().clamp(-2, 2) + 3
    net = fitted(mlp(6, 1), x, y, F.mse_loss, 200)
    return Case(net, x, y, "ordinal", "ordered levels", "level-errors", {"task": "ordinal"})


def listwise(f: Tensor, y: Tensor) -> Tensor:
    return -(y.softmax(1) * f.log_softmax(1)).sum(1).mean()


def rankings() -> Case:
    x = torch.randn(N, 5, 4)
    y = (x[..., 0] - x[..., 1] + 0.2 * torch.randn(N, 5)).argsort(1).argsort(1).float()
    net = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1), nn.Flatten())
    fitted(net, x, y, listwise, 80)
    return Case(net, x, y, "ranking", "ranking, 5 items", "ranking-errors", {"loss": listwise})


def exponential(f: Tensor, y: Tensor) -> Tensor:
    """Survival times `y[:, 0]`, seen to their end where `y[:, 1]` is 1."""
    return (f[:, 0].exp() * y[:, 0] - y[:, 1] * f[:, 0]).mean()


def survival() -> Case:
    x = inputs()
    time = torch.empty(N).exponential_() / (0.8 * x[:, 0]).exp()
    end = 2 * torch.rand(N)
    y = torch.stack([torch.minimum(time, end), (time <= end).float()], 1)
    net = fitted(mlp(6, 1, 8), x, y, exponential, 60)
    return Case(net, x, y, "own", "known to your loss alone", "own-loss", {"loss": exponential})


def disks() -> tuple[Tensor, Tensor]:
    grid = torch.linspace(-1, 1, 12)
    place, size = 1.2 * torch.rand(2, N) - 0.6, 0.3 + 0.3 * torch.rand(N)
    away = (grid[None, :, None] - place[0, :, None, None]) ** 2
    away = (away + (grid[None, None, :] - place[1, :, None, None]) ** 2).sqrt()
    y = (away < size[:, None, None]).long() + (away < size[:, None, None] / 2).long()
    x = torch.stack([y == 1, y == 2], 1).float() + 0.4 * torch.randn(N, 2, 12, 12)
    return x, y


def segmentation() -> Case:
    x, y = disks()
    y[:, 0] = 255
    net = nn.Sequential(nn.Conv2d(2, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 3, 1))
    loss = nn.CrossEntropyLoss(ignore_index=255)
    fitted(net, x, y, loss, 80, 0.02)
    return Case(
        net, x, y, "labeling", "one of 3 classes for each pixel", "class-overlap", {"loss": loss},
        forbidden=r"\bregression\b|R²|\btoken",
    )  # fmt: skip


def binary_segmentation() -> Case:
    x, y = disks()
    mask = (y > 0).float()[:, None]
    net = nn.Sequential(nn.Conv2d(2, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1))
    loss = nn.BCEWithLogitsLoss()
    fitted(net, x, mask, loss, 60, 0.02)
    return Case(
        net, x, mask, "labeling", "one of 2 classes for each pixel", "class-overlap",
        {"loss": loss}, forbidden=r"\bregression\b|R²|\btoken",
    )  # fmt: skip


def tokens() -> Case:
    x = torch.randint(12, (N, 8))
    y = (x + x.roll(1, 1)) % 3
    y[:, 0] = -100
    net = nn.Sequential(nn.Embedding(12, 16), _Pairs(), nn.Linear(32, 24), nn.ReLU(),
                        nn.Linear(24, 3))  # fmt: skip
    loss = lambda f, t: F.cross_entropy(f.flatten(0, 1), t.flatten())  # noqa: E731
    fitted(net, x, y, loss, 150, 0.02)
    return Case(net, x, y, "labeling", "one of 3 classes for each token", "position-errors",
                forbidden=r"\bregression\b|R²|\bpixel")  # fmt: skip


class _Pairs(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return torch.cat([h, h.roll(1, 1)], -1)


class Views(nn.Module):
    """Two views of a sample, embedded by one network."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(6, 3)

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        return torch.stack([self.body(one), self.body(two)], 1)


def contrast(f: Tensor, y: Tensor | None = None) -> Tensor:
    one, two = F.normalize(f, dim=-1).unbind(1)
    return F.cross_entropy(one @ two.T / 0.2, torch.arange(len(f)))


def contrastive() -> Case:
    x = inputs()
    views = {"one": x + 0.1 * torch.randn(N, 6), "two": x + 0.1 * torch.randn(N, 6)}
    net = Views()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(40):
        optimizer.zero_grad()
        contrast(net(views["one"][:HALF], views["two"][:HALF])).backward()
        optimizer.step()
    return Case(net, views, None, "unlabeled", "no targets", "own-loss", {"loss": contrast})


def autoencoder() -> Case:
    x = torch.randn(N, 2) @ torch.randn(2, 6)
    net = fitted(mlp(6, 6), x, x, F.mse_loss)
    return Case(net, x, None, "regression", "regression, 6 numbers", "target-fits")


CASES: dict[str, Callable[[], Case]] = {
    f.__name__: f
    for f in (
        multilabel,
        several_targets,
        counts,
        levels,
        one_level,
        rankings,
        survival,
        segmentation,
        binary_segmentation,
        tokens,
        contrastive,
        autoencoder,
    )
}


@cache
def made(name: str) -> Case:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return CASES[name]()


def audited(case: Case, **changes: Any) -> Audit:
    options = {"train": case.train, "test": case.test, "only": TOLD, "budget": "30s"}
    return tt.audit(case.net, **{**options, **case.options, **changes})


@cache
def report(name: str) -> Audit:
    return audited(made(name))


def numbers(found: Audit) -> dict[str, Any]:
    return {q.name: q for f in found.findings for q in f.quantities}


@pytest.mark.parametrize("name", CASES)
def test_the_task_is_stated_at_the_top(name: str) -> None:
    case, found = made(name), report(name)
    assert found.facts["task"] == case.head
    first = repr(found).splitlines()[:8]
    line = " ".join(" ".join(first).split())
    assert f"Task: {case.head}, because" in line
    assert "else say task= (--task)" in line
    assert "loss:" in line
    ran = next(f for f in found.findings if f.name == case.finding)
    if name != "contrastive":  # whose loss is of a batch
        assert ran.quantities
    problem = Problem(case.net, case.train, case.test, **case.options)
    assert problem.task == case.task


@pytest.mark.parametrize("name", CASES)
def test_a_healthy_network_is_accused_of_nothing(name: str) -> None:
    found = report(name)
    said = [a for f in found.findings for a in f.assessments if f.name not in ("labels",)]
    assert [a.sentence for a in said if a.state is State.DEFECT] == []
    fit = [a for a in said if str(a.area) == "fit" and a.state is State.FINE]
    assert fit or name == "contrastive"


@pytest.mark.parametrize("name", CASES)
def test_words_are_those_of_the_task(name: str) -> None:
    case, found = made(name), report(name)
    for f in found.findings:
        said = [*f.headlines, *f.advice, *(q.label for q in f.quantities)]
        said += [a.sentence for a in f.assessments] + [a.action for a in f.assessments]
        wrong = [s for s in said if re.search(case.forbidden, s)]
        assert wrong == [], f.name
        assert not any("could not be computed" in c.reason for c in f.claims), f.name


# ------------------------------------------------------------------------------- the metric by hand


def outputs(case: Case, part: Any) -> Tensor:
    with torch.no_grad():
        made = case.net(part)
    assert isinstance(made, Tensor)
    return made


def test_labels_by_hand() -> None:
    case, found = made("multilabel"), numbers(report("multilabel"))
    x, y = case.test
    said = outputs(case, x) > 0
    assert found["test-error"].value == pytest.approx(
        metrics.hamming_loss(y.numpy(), said.numpy()), abs=1e-6
    )
    exact = 1 - metrics.accuracy_score(y.numpy(), said.numpy())
    assert found["test-inexact"].value == pytest.approx(exact)
    assert found["test-error"].low < found["test-error"].value < found["test-error"].high
    trivial = (y != (case.train[1].mean(0) > 0.5)).double().mean(1)
    wrong = (said != y.bool()).double().mean(1)
    assert found["test-skill"].value == pytest.approx(float(1 - wrong.mean() / trivial.mean()))
    loss = F.binary_cross_entropy_with_logits(outputs(case, x), y)
    assert found["test-loss"].value == pytest.approx(float(loss), rel=1e-5)
    # every label has a row, and its error is its own
    table = next(t for f in report("multilabel").findings for t in f.tables if t.name == "labels")
    each = (said != y.bool()).double().mean(0)
    assert {row[0]: row[4] for row in table.rows} == pytest.approx(dict(enumerate(each.tolist())))


def test_several_targets_by_hand() -> None:
    case, found = made("several_targets"), report("several_targets")
    x, y = case.test
    mean = case.train[1].mean(0)
    rest = 1 - (y - outputs(case, x)).square().mean(0) / (y - mean).square().mean(0)
    table = next(t for f in found.findings for t in f.tables if t.name == "targets")
    assert [row[4] for row in table.rows] == pytest.approx(rest.tolist(), rel=1e-4)
    for row in table.rows:
        assert row[5] < row[4] < row[6]


def test_counts_by_hand() -> None:
    case, found = made("counts"), numbers(report("counts"))
    x, y = case.test
    rate = outputs(case, x).exp().double().flatten().numpy()
    by_peer = metrics.mean_poisson_deviance(y.double().flatten().numpy(), rate)
    assert found["test-error"].value == pytest.approx(by_peer, rel=1e-5)
    assert found["total"].value == pytest.approx(rate.sum() / float(y.sum()), rel=1e-5)
    # without a loss, counts are to be asked for, and outputs are logarithms of rates again
    asked = Problem(case.net, case.train, task="count")
    assert asked.outputs_are_logarithms
    assert Problem(case.net, case.train).task == "regression"
    assert "say task='count'" in Problem(case.net, case.train).remarks["targets"]


def test_rates_are_not_taken_for_their_logarithms() -> None:
    case = made("counts")
    x, y = case.train
    rates = nn.Sequential(*case.net, _Exponential())
    loss = nn.PoissonNLLLoss(log_input=False)
    p = Problem(rates, (x, y), loss=loss)
    assert (p.task, p.outputs_are_logarithms) == ("count", False)
    found = audited(Case(rates, case.x, case.y, "count", "counts", "count-errors", {"loss": loss}))
    assert numbers(found)["test-error"].value == pytest.approx(
        numbers(report("counts"))["test-error"].value, rel=1e-4
    )


class _Exponential(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


@pytest.mark.parametrize("name", ["levels", "one_level"])
def test_levels_by_hand(name: str) -> None:
    case, found = made(name), numbers(report(name))
    x, y = case.test
    f = outputs(case, x)
    said = (f > 0).sum(1) if f.shape[1] > 1 else f.round().clamp(1, 5).flatten().long()
    true = y.sum(1).long() if f.shape[1] > 1 else y.flatten().long()
    assert found["test-error"].value == pytest.approx(float((said - true).abs().float().mean()))
    assert found["test-wrong-levels"].value == pytest.approx(float((said != true).float().mean()))


def test_rankings_by_hand() -> None:
    case, found = made("rankings"), numbers(report("rankings"))
    x, y = case.test
    f = outputs(case, x)
    gain = metrics.ndcg_score((torch.exp2(y) - 1).numpy(), f.numpy())
    assert found["test-gain"].value == pytest.approx(gain, rel=1e-5)
    wrong, pairs = 0, 0
    for i in range(len(y)):
        for a in range(5):
            for b in range(5):
                if y[i, a] > y[i, b]:
                    pairs += 1
                    wrong += int(f[i, a] < f[i, b])
    assert found["test-error"].value == pytest.approx(wrong / pairs, abs=1e-6)
    assert found["test-error"].value < 0.2
    assert float(wrong_pairs(f, y)[1].sum()) == pairs
    assert float(discounted_gain(y, y).min()) == pytest.approx(1.0)


def test_regions_by_hand() -> None:
    case, found = made("segmentation"), report("segmentation")
    x, y = case.test
    said, known = outputs(case, x).argmax(1), y != 255
    by_peer = metrics.jaccard_score(y[known].numpy(), said[known].numpy(), average=None)
    table = next(t for f in found.findings for t in f.tables if t.name == "overlap")
    assert {row[0]: row[2] for row in table.rows} == pytest.approx(dict(enumerate(by_peer)))
    q = numbers(found)
    assert q["mean-overlap"].value == pytest.approx(by_peer.mean())
    assert q["mean-overlap"].low < by_peer.mean() < q["mean-overlap"].high
    assert q["test-error"].value == pytest.approx(float((said != y)[known].double().mean()))
    # pixels of one image depend on each other: the range is wider than that of as many trials
    n, e = int(known.sum()), q["test-error"].value
    assert q["test-error"].high - q["test-error"].low > 2 * 1.96 * (e * (1 - e) / n) ** 0.5
    assert q["test-loss"].value == pytest.approx(
        float(F.cross_entropy(outputs(case, x), y, ignore_index=255)), rel=1e-4
    )


def test_two_classes_by_one_logit() -> None:
    case, found = made("binary_segmentation"), numbers(report("binary_segmentation"))
    x, y = case.test
    f = outputs(case, x)
    assert found["test-error"].value == pytest.approx(float(((f > 0) != y.bool()).double().mean()))
    p = Problem(case.net, case.train, **case.options)
    whole = F.binary_cross_entropy_with_logits(outputs(case, case.train[0]), case.train[1])
    assert p.risk(p.train) == pytest.approx(float(whole), rel=1e-5)
    # by probabilities the same
    ends = nn.Sequential(*case.net, nn.Sigmoid())
    q = Problem(ends, case.train, loss=nn.BCELoss())
    assert q.risk(q.train) == pytest.approx(float(whole), rel=1e-4)
    assert torch.equal(q.wrong_labels(q.train)[0], p.wrong_labels(p.train)[0])


def test_a_loss_of_ones_own_by_hand() -> None:
    case, found = made("survival"), numbers(report("survival"))
    x, y = case.test
    assert found["test-loss"].value == pytest.approx(float(exponential(outputs(case, x), y)))
    reasons = [c.reason for f in report("survival").findings for c in f.claims]
    assert any("only your loss knows" in r for r in reasons)


def cox(f: Tensor, y: Tensor) -> Tensor:
    """A partial likelihood: every sample is compared with those that are left."""
    order = y[:, 0].argsort(descending=True)
    risk, seen = f[order, 0], y[order, 1]
    return -((risk - risk.logcumsumexp(0)) * seen).sum() / seen.sum().clamp(min=1)


def test_a_loss_that_couples_samples() -> None:
    case = made("survival")
    p = Problem(case.net, case.train, loss=cox)
    assert (p.task, p.has_loss, p.couples_samples) == ("own", False, True)
    found = audited(case, loss=cox)
    assert "not the mean of its samples' own losses" in found.facts["loss"]
    own = next(f for f in found.findings if f.name == "own-loss")
    assert not own.quantities
    assert "not the mean of the samples' own losses" in own.claims[0].reason
    # what has usual errors insists on the loss of a sample
    labels = made("multilabel")
    with pytest.raises(InvalidInput, match=r"mean over the batch|plain mean"):
        Problem(labels.net, labels.train, loss=lambda f, y: f.var(0).sum())
    assert "left out" in report("contrastive").facts["loss"]


# ------------------------------------------------------------------------------------ one defect


def defect(found: Audit, words: str) -> None:
    said = [
        a.sentence for f in found.findings for a in f.assessments
        if a.state in (State.DEFECT, State.LOOK)
    ]  # fmt: skip
    assert any(re.search(words, s) for s in said), said


def last_layer(case: Case) -> nn.Sequential:
    net = copy.deepcopy(case.net)
    assert isinstance(net, nn.Sequential)
    return net


def test_a_label_that_is_never_set_is_named() -> None:
    case = made("multilabel")
    net = last_layer(case)
    with torch.no_grad():
        net[-1].bias[2] = -100.0  # type: ignore[index,operator]
    defect(audited(Case(net, *_rest(case))), "never sets label 2 on 200 test samples")


def test_labels_in_another_order_are_named() -> None:
    case = made("multilabel")
    x, y = case.test
    found = audited(case, test=(x, y[:, [1, 0, 2, 3]]))
    defect(found, r"in another order.*output 0 answers label 1, output 1 answers label 0")
    healthy = audited(case, test=(x, y))
    assert not any("another order" in a.sentence for f in healthy.findings for a in f.assessments)


def test_a_label_of_another_frequency_is_named() -> None:
    case = made("multilabel")
    x, y = case.test
    rare = y.clone()
    rare[:, 2] = 0.0
    defect(audited(case, test=(x, rare)), r"Label 2 is set in 57.7% of the training and 0.0%")


def test_a_label_that_is_shuffled_is_named() -> None:
    case = made("multilabel")
    assert case.y is not None
    g = torch.Generator().manual_seed(0)
    y = case.y.clone()
    y[:, 1] = (torch.rand(N, generator=g) < 0.4).float()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = fitted(mlp(6, 4), case.x, y, F.binary_cross_entropy_with_logits, 60)
    found = audited(Case(net, case.x, y, "multilabel", "", ""))
    defect(found, "Label 1 may be shuffled")


def test_a_sigmoid_before_a_loss_that_has_one_is_named() -> None:
    case = made("multilabel")
    ends = nn.Sequential(*last_layer(case), nn.Sigmoid())
    defect(audited(Case(ends, *_rest(case))), "ends with a sigmoid, and its loss applies another")
    fine = audited(Case(ends, *_rest(case)), loss=nn.BCELoss())
    twin = numbers(report("multilabel"))
    assert numbers(fine)["test-error"].value == twin["test-error"].value
    assert numbers(fine)["calibration-error"].value == pytest.approx(
        twin["calibration-error"].value, abs=1e-4
    )


def _rest(case: Case) -> tuple[Any, ...]:
    return case.x, case.y, case.task, case.head, case.finding, case.options


def test_a_target_that_drowns_is_named() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x = inputs()
        y = torch.stack([300 * (x[:, 0] + x[:, 1]), 0.01 * x[:, 2]], 1)
        net = fitted(mlp(6, 2), x, y, F.mse_loss, 300)
    case = Case(net, x, y, "regression", "", "target-fits")
    found = audited(case)
    defect(found, "Target 1 is not learned though others are")
    assert "standard deviations from 0.011 to 4.4e+02" in found.facts["targets"]
    p = Problem(mlp(6, 1), (x, 1e4 + x[:, :1]))
    assert "badly scaled for a network" in p.remarks["targets"]


def test_counts_of_another_exposure_are_named() -> None:
    case = made("counts")
    x, y = case.test
    defect(audited(case, test=(x, 3 * y)), "It predicts too few: its predictions sum to 0.3")


def test_levels_in_reverse_are_named() -> None:
    case = made("levels")
    x, y = case.test
    turned = (4 - y.sum(1, keepdim=True) > torch.arange(4)).float()
    defect(audited(case, test=(x, turned)), "worse on new data than always naming the median level")


def test_an_order_in_reverse_is_named() -> None:
    case = made("rankings")
    x, y = case.test
    defect(audited(case, test=(x, 4 - y)), "worse on new data than a random order")


def test_a_class_that_is_found_nowhere_is_named() -> None:
    case = made("segmentation")
    net = last_layer(case)
    with torch.no_grad():
        net[-1].bias[2] = -100.0  # type: ignore[index,operator]
    defect(audited(Case(net, *_rest(case))), "Class 2 is predicted at no pixel of 200 test images")


def test_masks_that_are_turned_over_are_named() -> None:
    case = made("binary_segmentation")
    x, y = case.test
    defect(audited(case, test=(x, 1 - y)), "worse than no network|errs at")


def test_labels_one_token_late_are_named() -> None:
    case = made("tokens")
    assert case.y is not None
    late = case.y.roll(1, 1)
    late[:, :2] = -100
    found = audited(case, train=(case.x[:HALF], late[:HALF]), test=(case.x[HALF:], late[HALF:]))
    said = [a.sentence for f in found.findings for a in f.assessments if a.state is State.FINE]
    assert not any("knows more than how frequent" in s for s in said)


def test_an_untrained_network_of_a_loss_of_ones_own_is_named() -> None:
    case = made("survival")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = mlp(6, 1)
        with torch.no_grad():
            net[-1].bias += 3.0
    found = audited(Case(net, *_rest(case)))
    defect(found, "worse than one output for all samples")


def test_an_untrained_autoencoder_is_named() -> None:
    case = made("autoencoder")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        found = audited(Case(mlp(6, 6), *_rest(case)))
    defect(found, "has not learned its training data")


# ---------------------------------------------------------------------------------- what is decided


@pytest.mark.parametrize(
    ("outputs", "targets", "loss", "task"),
    [
        ((4, 3), "01", None, "multilabel"),
        ((4, 3), "01", nn.BCEWithLogitsLoss(), "multilabel"),
        ((4, 3), "01", nn.MSELoss(), "multilabel"),
        ((4, 3), "soft", None, "regression"),
        ((4, 3), "soft", nn.BCELoss(), "multilabel"),
        ((4, 3), "soft", lambda f, y: 2 * F.binary_cross_entropy(f.sigmoid(), y), "multilabel"),
        ((4, 3), "real", nn.MSELoss(), "regression"),
        ((4, 3), "real", listwise, "ranking"),
        ((4, 3), "counts", nn.PoissonNLLLoss(), "count"),
        ((4, 3), "counts", lambda f, y: (f.exp() - y * f).mean(), "count"),
        ((4, 3), "counts", None, "regression"),
        ((4, 3), "one-hot", None, "multiclass"),
        ((4, 3), "one-hot", nn.CrossEntropyLoss(), "multiclass"),
        ((4, 3), "one-hot", nn.BCEWithLogitsLoss(), "multilabel"),
        ((4, 3), "steps", None, "ordinal"),
        ((4, 1, 5, 5), "01", None, "labeling"),
        ((4, 5, 5), "01", None, "labeling"),
        ((4, 3, 5, 5), "01", None, "multilabel"),
        ((4, 3, 5, 5), "one-hot", None, "labeling"),
        ((4, 3, 5, 5), "real", None, "regression"),
    ],
)
def test_targets_in_the_shape_of_the_outputs(
    outputs: tuple[int, ...], targets: str, loss: Any, task: str
) -> None:
    g = torch.Generator().manual_seed(0)
    shape = (40, *outputs[1:])
    index = torch.randint(3, (40, *outputs[2:]), generator=g)
    y = {
        "01": torch.randint(2, shape, generator=g).float(),
        "soft": torch.rand(shape, generator=g),
        "real": torch.randn(shape, generator=g),
        "counts": torch.randint(9, shape, generator=g).float(),
        "one-hot": F.one_hot(index, 3).movedim(-1, 1).float(),
        "steps": (torch.arange(40)[:, None] % 4 > torch.arange(3)).float(),
    }[targets]
    end = nn.Sigmoid() if isinstance(loss, nn.BCELoss) else nn.Identity()
    net = nn.Sequential(
        nn.Flatten(), nn.LazyLinear(y[0].numel()), nn.Unflatten(1, outputs[1:]), end
    )
    x = torch.randn(40, 7, generator=g)
    net(x)
    assert Problem(net, (x, y), loss=loss).task == task


def test_levels_for_thresholds() -> None:
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    y = torch.arange(60) % 4

    def own(f: Tensor, t: Tensor) -> Tensor:
        return F.softplus(f * (1 - 2 * (t[:, None] > torch.arange(3)).float())).mean()

    p = Problem(nn.Linear(4, 3), (x, y), loss=own)
    assert (p.task, p.train.y.shape) == ("ordinal", (60, 3))
    same = own(p.outputs(p.train), y)
    assert p.risk(p.train) == pytest.approx(float(same), rel=1e-5)
    with pytest.raises(LabelOutOfRange, match="task='multiclass'"):
        Problem(nn.Linear(4, 2), (x, y), task="ordinal")
    with pytest.raises(LabelOutOfRange, match="lie between 0 and 1"):
        Problem(nn.Linear(4, 2), (x, torch.randn(60, 2)), task="multilabel")
    with pytest.raises(LabelOutOfRange, match="must not be negative"):
        Problem(nn.Linear(4, 2), (x, -torch.ones(60, 2)), task="count")
    with pytest.raises(ShapeMismatch, match="one number per sample"):
        Problem(nn.Linear(4, 3), (x, torch.ones(60, 2)), task="ordinal")


def test_the_user_decides() -> None:
    case = made("multilabel")
    p = Problem(case.net, case.train, task="regression")
    assert (p.task, p.task_reason) == ("regression", "you said so")
