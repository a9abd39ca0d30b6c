"""Language models: losses, errors and calibration per token, with whole sequences as samples."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.audit.engine.audit import Audit
from torchtheory.audit.findings.positions import ratio_interval
from torchtheory.core.diagnosis import Area, State
from torchtheory.generalization.learning.calibration import (
    calibration_test,
    clustered_calibration,
)
from torchtheory.sequences.attention.transformers import LanguageModel

LETTERS, T = 7, 10

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture(autouse=True)
def own_seed() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


class Chain(nn.Module):
    """The next letter given the present one, by a table of logits."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(logits.clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.table[x]


def written(logits: Tensor, count: int, seed: int, length: int = T + 1) -> Tensor:
    """Text of the chain itself."""
    draw = torch.Generator().manual_seed(seed)
    text = torch.randint(LETTERS, (count, 1), generator=draw)
    for _ in range(length - 1):
        following = torch.multinomial(logits.softmax(1)[text[:, -1]], 1, generator=draw)
        text = torch.cat([text, following], 1)
    return text


def pairs(text: Tensor) -> tuple[Tensor, Tensor]:
    return text[:, :-1], text[:, 1:].clone()


def ragged(text: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Sequences of different lengths, padded, without labels behind their end."""
    x, y = pairs(text)
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, T + 1, (len(x), 1), generator=draw)
    y[torch.arange(T) >= lengths] = -100
    return x, y


def numbers(report: Audit) -> dict[str, Any]:
    return {q.name: q for f in report.findings for q in f.quantities}


def test_every_token_counts_the_same_and_those_without_label_do_not() -> None:
    logits = 2 * torch.randn(LETTERS, LETTERS)
    model = Chain(logits + torch.randn(LETTERS, LETTERS))
    train, test = (ragged(written(logits, 80, seed), seed) for seed in (0, 1))
    report = tt.audit(model, train, test, only=["position-errors"])
    found = numbers(report)
    with torch.no_grad():
        outputs = model(test[0])
    loss = F.cross_entropy(outputs.mT, test[1], ignore_index=-100)
    known = test[1] != -100
    wrong = (outputs.argmax(-1) != test[1])[known].double().mean()
    assert found["test-loss"].value == pytest.approx(float(loss), rel=1e-5)
    assert found["test-error"].value == pytest.approx(float(wrong))
    assert "jackknife over samples" in found["test-loss"].basis
    words = report.findings[0].headlines[0]
    assert words == "Sequences are taken as independent samples; the tokens within one are not."
    assert "the tokens within one are not" in report.facts["labels"]
    assert "per token" in found["test-loss"].label


def test_ranges_per_token_cover_for_sequences_that_differ_in_length() -> None:
    """The loss of a token depends on its sequence, and long sequences are harder."""
    draw, missed, truth = torch.Generator().manual_seed(0), 0, 0.0
    lengths = torch.arange(1, 11).double()
    truth = float((lengths * lengths / 10).sum() / lengths.sum())
    for _ in range(400):
        n = torch.randint(1, 11, (60,), generator=draw).double()
        level = n / 10 * torch.rand(60, generator=draw).double() * 2
        found = ratio_interval(level * n, n, 0.95)
        missed += not found.low <= truth <= found.high
    # a true rate of 7 % would give more than 43 of 400 once in a thousand times
    assert missed <= 43


def answers(seed: int, count: int, length: int, wide: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Calibrated answers: right with the probability that is said, alike within a sequence."""
    draw = torch.Generator().manual_seed(seed)
    p = 0.3 + 0.6 * torch.rand(count, length, generator=draw)
    u = torch.rand(count, 1 if wide else length, generator=draw)
    who = torch.arange(count)[:, None].expand(count, length)
    return p.flatten(), (u < p).flatten(), who.flatten()


@pytest.mark.parametrize("wide", [False, True])
def test_calibrated_answers_are_not_accused_however_alike_they_are(wide: bool) -> None:
    small, missed, alone = 0, 0, 0
    for seed in range(200):
        p, right, who = answers(seed, 60, 20, wide)
        found = clustered_calibration(p, right, who, generator=seed)
        small += found.test.p_value <= 0.05
        missed += not found.excess.low <= 0 <= found.excess.high
        alone += calibration_test(p, right, generator=seed).p_value <= 0.001
        assert found.error.low <= found.error.estimate <= found.error.high
    # at a true rate of 5 %, more than 23 of 200 once in ten thousand times
    assert small <= 23
    assert missed <= 23
    # as single answers, those that are alike would often be called wrong
    assert (alone > 20) == wide


def test_a_gap_is_found_at_the_size_it_has() -> None:
    draw = torch.Generator().manual_seed(0)
    who = torch.arange(100).repeat_interleave(20)
    right = torch.rand(2000, generator=draw) < 0.6
    found = clustered_calibration(torch.full((2000,), 0.8), right, who)
    assert found.error.low <= 0.2 <= found.error.high
    assert found.excess.estimate == pytest.approx(0.8 - float(right.double().mean()))
    assert found.test.p_value == 0.001


@pytest.mark.parametrize("seed", range(20))
def test_a_model_that_wrote_the_text_is_calibrated(seed: int) -> None:
    logits = 1.5 * torch.randn(LETTERS, LETTERS, generator=torch.Generator().manual_seed(seed))
    train, test = (pairs(written(logits, 60, 2 * seed + k)) for k in (0, 1))
    report = tt.audit(Chain(logits), train, test, only=["token-calibration"], seed=seed)
    (said,) = report.findings[0].assessments
    assert said.state in (State.FINE, State.OPEN)


def test_a_model_that_is_too_sure_is_told_so_with_the_temperature_that_helps() -> None:
    logits = 1.5 * torch.randn(LETTERS, LETTERS)
    train, test = (pairs(written(logits, 200, k)) for k in (0, 1))
    report = tt.audit(Chain(3 * logits), train, test, only=["token-calibration"])
    (said,) = report.findings[0].assessments
    assert said.state is State.DEFECT
    assert "more certain than it is" in said.sentence
    assert "Divide the logits by" in said.action
    temperature = numbers(report)["temperature"]
    assert temperature.low <= 3 <= temperature.high
    few = tt.audit(Chain(logits), train, (test[0][:9], test[1][:9]), only=["token-calibration"])
    assert "too few" in few.findings[0].claims[0].reason


#: What an exception that nobody foresaw is reported with.
UNFORESEEN = ("could not be computed", "the model raised")


def gpt2() -> nn.Module:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=LETTERS, n_positions=T + 1, n_embd=8, n_layer=2, n_head=2,
            bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


def encoded(text: Tensor) -> Any:
    given = {"input_ids": text, "attention_mask": torch.ones_like(text), "labels": text}
    return transformers.BatchEncoding(given)


@pytest.mark.parametrize("kind", ["own", "transformers"])
def test_every_finding_is_made_or_says_why_not(kind: str) -> None:
    logits = 2 * torch.randn(LETTERS, LETTERS)
    texts = [written(logits, 120, k) for k in (0, 1)]
    if kind == "own":
        model: nn.Module = LanguageModel(LETTERS, 8, 2, 2, length=T, dtype=torch.float32)
        train, test = (pairs(text) for text in texts)
    else:
        model, train, test = gpt2(), *(encoded(text) for text in texts)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        outputs = model(texts[0][:, :-1])
        outputs = outputs if isinstance(outputs, Tensor) else outputs.logits
        F.cross_entropy(outputs.mT, texts[0][:, 1:]).backward()
        optimizer.step()
    model.eval()
    report = tt.audit(model, train, test, budget="8s")
    unforeseen = {
        f.name: c.reason
        for f in report.findings
        for c in f.claims
        if c.reason.startswith(UNFORESEEN) or "Error:" in c.reason
    }
    assert unforeseen == {}
    assert report.violated == []
    assert report.warnings == []
    with torch.no_grad():
        outputs = model(texts[1][:, :-1])
        outputs = outputs if isinstance(outputs, Tensor) else outputs.logits
        loss = float(F.cross_entropy(outputs.mT, texts[1][:, 1:]))
    assert numbers(report)["test-loss"].value == pytest.approx(loss, rel=1e-4)
    assert loss < 0.9 * math.log(LETTERS)
    states = {a.area: a.state for a in report.diagnosis}
    assert states[Area.FIT] is not State.UNMEASURED
    assert states[Area.CALIBRATION] in (State.FINE, State.OPEN, State.LOOK)
    made = {f.name: f for f in report.findings}
    assert made["future-leakage"].headlines[0].startswith("Of 4 sequences of")
    assert made["attention-maps"].quantities[0].name == "attention-entropy"
