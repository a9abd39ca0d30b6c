"""Every kind of model gets an audit: what applies is measured, and for the rest a reason is given.

Each kind is audited with all findings; no reason may be an exception's own words, no claim may be
violated, and the numbers that can be known otherwise must be right.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import make_moons
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.audit.engine.audit import Audit
from torchtheory.audit.findings.positions import share_interval
from torchtheory.core.diagnosis import Area, State

BUDGET = "5s"


def trained(model: nn.Module, steps: int, loss: Any) -> nn.Module:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()
    return model


@pytest.fixture(autouse=True)
def own_seed() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


class Language(nn.Module):
    """A recurrent model of the next letter."""

    def __init__(self, letters: int = 6, width: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(letters, width)
        self.states = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, letters)

    def forward(self, words: Tensor) -> Tensor:
        logits: Tensor = self.out(self.states(self.embed(words))[0])
        return logits


class Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(6, 4), nn.Linear(2, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, size = self.inward(x).chunk(2, -1)
        return self.outward(mean + 0.3 * size.tanh() * torch.randn_like(mean)), mean, size


class Careless(nn.Module):
    """Dropout that nobody switches off."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 16), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(F.dropout(self.first(x).relu(), 0.2))
        return logits


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.kind, self.size = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.body(x).tanh()
        return {"kind": self.kind(h), "size": self.size(h)}


def walks(count: int, length: int = 7) -> Tensor:
    """Letters that go up by one or two, modulo six."""
    return (
        torch.cat(
            [torch.randint(6, (count, 1)), torch.randint(1, 3, (count, length - 1))], 1
        ).cumsum(1)
        % 6
    )


def language() -> tuple[nn.Module, Any, Any, dict[str, Any]]:
    x = walks(200)
    train, test = x[:120], x[120:]
    model = trained(Language(), 60, lambda m: F.cross_entropy(m(train[:, :-1]).mT, train[:, 1:]))
    return model, (train[:, :-1], train[:, 1:]), (test[:, :-1], test[:, 1:]), {}


def dense() -> tuple[nn.Module, Any, Any, dict[str, Any]]:
    x = torch.randn(80, 2, 6, 5)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0)
    model = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 3, 1))
    trained(model, 40, lambda m: F.cross_entropy(m(x[:40]), y[:40]))
    return model, (x[:40], y[:40]), (x[40:], y[40:]), {}


def autoencoder() -> tuple[nn.Module, Any, Any, dict[str, Any]]:
    x = torch.randn(160, 2) @ torch.randn(2, 6)
    model = nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 6))
    trained(model, 60, lambda m: F.mse_loss(m(x[:80]), x[:80]))
    return model, x[:80], x[80:], {}


def generator() -> tuple[nn.Module, Any, Any, dict[str, Any]]:
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 10)), torch.randn(60, 3), None, {}


def variational() -> tuple[nn.Module, Any, Any, dict[str, Any]]:
    x = torch.randn(160, 2) @ torch.randn(2, 6)
    model = trained(Variational(), 60, lambda m: F.mse_loss(m(x[:80])[0], x[:80]))
    return model, x[:80], x[80:], {}


def careless() -> tuple[nn.Module, Any, Any, dict[str, Any]]:
    x = torch.randn(160, 4)
    y = (x[:, 0] > 0).long()
    model = trained(Careless(), 60, lambda m: F.cross_entropy(m(x[:80]), y[:80]))
    return model, (x[:80], y[:80]), (x[80:], y[80:]), {}


def weighted() -> tuple[nn.Module, Any, Any, dict[str, Any]]:
    x = torch.randn(120, 4)
    y = {"kind": (x[:, 0] > 0).long() + (x[:, 1] > 0), "size": x[:, 2:3]}
    first, rest = ({k: v[part] for k, v in y.items()} for part in (slice(80), slice(80, None)))
    return Two(), (x[:80], first), (x[80:], rest), {"output": {"kind": 1.0, "size": 0.3}}


def estimator() -> tuple[Any, Any, Any, dict[str, Any]]:
    x, y = make_moons(200, noise=0.2, random_state=0)
    names = np.array(["low", "high"])[y]
    model = make_pipeline(
        StandardScaler(),
        MLPClassifier(hidden_layer_sizes=(16,), solver="lbfgs", max_iter=60, random_state=0),
    ).fit(x[:120], names[:120])
    return model, (x[:120], names[:120]), (x[120:], names[120:]), {}


KINDS = {
    "language": language,
    "dense": dense,
    "autoencoder": autoencoder,
    "generator": generator,
    "variational": variational,
    "careless": careless,
    "weighted": weighted,
    "estimator": estimator,
}

#: What an exception that nobody foresaw is reported with.
UNFORESEEN = ("could not be computed", "the model raised")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_every_finding_is_made_or_says_why_not(kind: str) -> None:
    model, train, test, options = KINDS[kind]()
    before = (
        {k: v.clone() for k, v in model.state_dict().items()}
        if isinstance(model, nn.Module)
        else None
    )
    report = tt.audit(model, train, test, budget=BUDGET, **options)
    unforeseen = {
        f.name: c.reason
        for f in report.findings
        for c in f.claims
        if c.reason.startswith(UNFORESEEN) or "Error:" in c.reason
    }
    assert unforeseen == {}
    assert [c.statement for c in report.violated] == []
    if before is not None:
        after = model.state_dict()
        assert all(torch.equal(after[k], v) for k, v in before.items())
    said = {
        "language": ("labels", "sequences are taken as independent samples; the tokens"),
        "dense": ("labels", "6 × 5 positions"),
        "autoencoder": ("targets", "autoencoder"),
        "generator": ("targets", "pass train=(x, y)"),
        "variational": ("randomness", "fixed to one draw"),
        "careless": ("randomness", "fixed to one draw"),
        "weighted": ("loss", "0.3 times that of 'size'"),
    }
    if kind in said:
        fact, words = said[kind]
        assert words in report.facts[fact]


def numbers(report: Audit) -> dict[str, Any]:
    return {q.name: q for f in report.findings for q in f.quantities}


def test_the_errors_of_a_language_model() -> None:
    model, train, test, _ = language()
    report = tt.audit(model, train, test, only=["position-errors"])
    found = numbers(report)
    with torch.no_grad():
        wrong = (model(test[0]).argmax(-1) != test[1]).double()
        loss = F.cross_entropy(model(test[0]).mT, test[1])
    assert found["test-error"].value == pytest.approx(float(wrong.mean()))
    assert found["test-loss"].value == pytest.approx(float(loss), rel=1e-5)
    # one of two letters can be guessed at best, and by frequency one of six
    assert found["test-error"].low < 0.55
    assert found["gain-on-most-frequent"].low > 0
    assert report.warnings == []
    # the range knows sequences, not letters
    whole = wrong.mean(1)
    half = 1.99 * float(whole.std()) / math.sqrt(len(whole))
    assert found["test-error"].high - found["test-error"].value == pytest.approx(half, rel=0.02)


def test_labels_that_belong_to_other_positions_are_noticed() -> None:
    """A model that never names the right label is worse than none."""
    model, train, test, _ = language()
    off = [(x, (y + 3) % 6) for x, y in (train, test)]
    report = tt.audit(model, *off, only=["position-errors"])
    assert [a.state for a in report.diagnosis if a.area is Area.FIT] == [State.DEFECT]
    assert "worse than no network" in report.warnings[0]


@pytest.mark.parametrize("dependent", [False, True])
def test_ranges_by_samples_cover(dependent: bool) -> None:
    """95 % ranges of the share of errors, over samples whose positions agree or do not."""
    draw, truth, missed = torch.Generator().manual_seed(0), 0.2, 0
    for _ in range(400):
        if dependent:
            wrong = 20.0 * (torch.rand(60, generator=draw) < truth)
        else:
            wrong = (torch.rand(60, 20, generator=draw) < truth).double().sum(1)
        found = share_interval(wrong, torch.full((60,), 20.0), 0.95)
        missed += not found.low <= truth <= found.high
    # a true rate of 7 % would give more than 43 of 400 once in a thousand times
    assert missed <= 43
    none = share_interval(torch.zeros(60), torch.ones(60), 0.95)
    assert (none.low, none.high) == (0.0, pytest.approx(1 - 0.025 ** (1 / 60)))
    every = share_interval(torch.ones(60), torch.ones(60), 0.95)
    assert (every.low, every.high) == (pytest.approx(0.025 ** (1 / 60)), 1.0)


def test_the_loss_of_a_random_model_is_its_expectation() -> None:
    """Against independent noise for every sample, as the model draws it in use."""
    model, x, _, _ = variational()
    report = tt.audit(model, x, only=["noise"], budget=None)
    found = numbers(report)["expected-train-loss"]
    with torch.no_grad():
        used = torch.stack([F.mse_loss(model(x)[0], x) for _ in range(500)])
    truth, error = float(used.mean()), 4 * float(used.std()) / math.sqrt(500)
    assert found.low - error <= truth <= found.high + error
    assert found.high - found.low < truth  # and it says something


def test_dropout_that_nobody_switches_off_is_worth_a_look() -> None:
    model, train, test, _ = careless()
    report = tt.audit(model, train, test, only=["noise"])
    assert any("also in evaluation mode" in sentence for sentence in report.looks)
    assert report.warnings == []
    sane = nn.Sequential(model.first, nn.ReLU(), nn.Dropout(0.2), model.last)  # type: ignore[arg-type]
    assert tt.audit(sane, train, test, only=["noise"]).looks == []


def test_an_estimator_is_audited_as_the_network_it_is() -> None:
    model, train, test, _ = estimator()
    report = tt.audit(model, train, test, only=["risk", "layers"], budget=BUDGET)
    found = numbers(report)
    assert found["test-error"].value == pytest.approx(1 - model.score(*test))
    assert report.facts["task"] == "binary"
    assert report.facts["precision"] == "float64"
