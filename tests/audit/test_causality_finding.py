"""The finding about the future: language models that see what they predict, and their twins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.audit.engine.finding import FindingRecord, all_findings, examine
from torchtheory.core.claim import Verdict
from torchtheory.core.diagnosis import Area, State
from torchtheory.models.problem import Problem

LETTERS, T = 8, 12

pytestmark = pytest.mark.usefixtures("no_figures")


class Letters(nn.Module):
    """A transformer of letters whose mask is off by some positions, or missing in a layer."""

    def __init__(self, off: tuple[int | None, ...] = (0, 0), channels_first: bool = False) -> None:
        super().__init__()
        self.off, self.channels_first = off, channels_first
        self.embed, self.out = nn.Embedding(LETTERS, 16), nn.Linear(16, LETTERS)
        self.places = nn.Parameter(0.5 * torch.randn(T, 16))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in off
        )

    def forward(self, x: Tensor) -> Tensor:
        h, n = self.embed(x) + self.places[: x.shape[1]], x.shape[1]
        for layer, off in zip(self.layers, self.off, strict=True):
            mask = None if off is None else torch.ones(n, n, dtype=torch.bool).triu(1 + off)
            h = layer(h, src_mask=mask)
        logits: Tensor = self.out(h)
        return logits.mT if self.channels_first else logits


class Recurrent(nn.Module):
    def __init__(self, both: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(LETTERS, 8)
        self.states = nn.GRU(8, 8, batch_first=True, bidirectional=both)
        self.out = nn.Linear(16 if both else 8, LETTERS)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(self.states(self.embed(x))[0])
        return logits


class Forecast(nn.Module):
    """Real numbers, by convolutions that look back or to both sides."""

    def __init__(self, centered: bool) -> None:
        super().__init__()
        self.conv, self.centered = nn.Conv1d(2, 2, 3), centered

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.conv(F.pad(x.mT, (1, 1) if self.centered else (2, 0))).mT
        return made


def model(build: Any, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made: nn.Module = build()
    return made


def text(seed: int, count: int = 60) -> tuple[Tensor, Tensor]:
    x = torch.randint(0, LETTERS, (count, T + 1), generator=torch.Generator().manual_seed(seed))
    return x[:, :-1], x[:, 1:]


def made(net: nn.Module, data: Any, seed: int = 0) -> FindingRecord:
    report = tt.audit(net, data, only=["future-leakage"], budget="60s", seed=seed)
    assert report.violated == []
    (found,) = report.findings
    return found


def assert_fine(found: FindingRecord) -> None:
    assert found.assessments == []
    assert "no output sees the " in found.headlines[0]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Letters((1, 0)), ("one token ahead", "attention in layers.0.self_attn")),
        (lambda: Letters((0, 1)), ("one token ahead", "attention in layers.1.self_attn")),
        (lambda: Letters((0, None)), ("11 tokens ahead", "attention in layers.1.self_attn")),
        (lambda: Letters((1,), True), ("one token ahead", "Mask the attention")),
        (lambda: Recurrent(True), ("11 tokens ahead", "gru in states", "one direction")),
    ],
)
def test_language_models_that_see_the_next_token(build: Any, words: tuple[str, ...]) -> None:
    for seed in range(5):
        found = made(model(build, seed), text(seed), seed)
        (said,) = found.assessments
        assert (said.state, said.area) == (State.DEFECT, Area.GENERALIZATION)
        assert "sees the token that it is asked to predict" in said.sentence
        for word in words:
            assert word in f"{said.sentence} {said.action}"
        assert [c.verdict for c in found.claims] == [Verdict.NOT_APPLICABLE]


@pytest.mark.parametrize("build", [Letters, lambda: Letters((0,), True), lambda: Recurrent(False)])
def test_causal_twins_are_fine_at_twenty_seeds(build: Any) -> None:
    for seed in range(20):
        found = made(model(build, seed), text(seed), seed)
        assert_fine(found)
        assert [c.verdict for c in found.claims] == [Verdict.HOLDS]
        assert found.quantities[0].value == 0


def test_series_of_real_numbers() -> None:
    x = torch.randn(40, T + 1, 2, generator=torch.Generator().manual_seed(0)).cumsum(1)
    data = (x[:, :-1], x[:, 1:])
    (said,) = made(model(lambda: Forecast(True), 0), data).assessments
    assert said.state is State.DEFECT
    assert "sees the input that it is asked to predict" in said.sentence
    assert "Pad to the left" in said.action
    assert_fine(made(model(lambda: Forecast(False), 0), data))


def test_a_causal_model_of_transformers_with_its_own_labels() -> None:
    x, _ = text(0)
    net = model(
        lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=LETTERS, n_positions=T, n_embd=8, n_layer=2, n_head=2,
                bos_token_id=0, eos_token_id=0,
            )
        ),
        0,
    )  # fmt: skip
    labels = x.clone()
    labels[:, :3] = -100
    data = {"input_ids": x, "attention_mask": torch.ones_like(x), "labels": labels}
    assert_fine(made(net, data))


def test_where_targets_are_no_next_inputs_nothing_is_said() -> None:
    """A tagger may see the whole sentence, and a model that repeats its input as well."""
    x, y = text(0)
    net = model(lambda: Letters((None,)), 0)
    for data in ((x, (x + y) % LETTERS), (x, x), (torch.ones_like(x), torch.ones_like(x))):
        found = made(net, data)
        assert found.assessments == []
        assert "targets are not the inputs that follow" in found.claims[0].reason
    found = made(nn.Linear(3, 2), (torch.randn(20, 3), torch.arange(20) % 2))
    assert "targets are not" in found.claims[0].reason


def test_a_small_budget_is_enough_for_a_few_positions() -> None:
    problem = Problem(model(lambda: Letters((0, None)), 0), text(0, 200))
    found = examine(
        all_findings()["future-leakage"], problem, confidence=0.95, seed=0, seconds=1e-3, at_most=60
    )
    (said,) = found.assessments
    assert said.state is State.DEFECT
    assert "layers.1.self_attn" in said.sentence
