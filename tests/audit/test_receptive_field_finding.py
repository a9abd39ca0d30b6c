"""The finding about receptive fields: a bag of small patches, and its healthy twins."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.core.claim import Verdict
from torchtheory.core.diagnosis import State


def _data(*shape: int, n: int = 24) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, *shape, generator=torch.Generator().manual_seed(0))
    return x, torch.arange(n) % 3


def _finding(model: nn.Module, data: tuple[Tensor, Tensor], **more: object) -> FindingRecord:
    (found,) = tt.audit(model, data, only=["receptive-field"], budget=None, **more).findings
    assert all(c.verdict is not Verdict.VIOLATED for c in found.claims)
    return found


def _bag(*head: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    body = [nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*body, *head)


POOLED = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))


def test_a_bag_of_small_patches_is_worth_a_look() -> None:
    found = _finding(_bag(*POOLED), _data(1, 24, 24))
    (said,) = found.assessments
    assert said.state is State.LOOK
    assert "sees a window of 5 × 5 of 24 × 24 places" in said.sentence
    assert said.number is not None
    assert said.number.value == pytest.approx(5 / 24)
    assert [f.name for f in found.figures] == ["field"]
    (check,) = found.claims
    assert check.self_check
    names = [q.name for q in found.quantities]
    assert names == ["receptive-field", "effective-field"]
    assert 1.0 <= found.quantities[1].value <= 5.5


@pytest.mark.parametrize(
    "head",
    [
        (nn.Flatten(), nn.Linear(6 * 576, 3)),  # a dense layer knows where the units stand
        (nn.MaxPool2d(4), nn.Flatten(), nn.Linear(6 * 36, 3)),
        (nn.MaxPool2d(4), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(), *POOLED),  # sees 16 of 24
    ],
)
def test_healthy_twins(head: tuple[nn.Module, ...]) -> None:
    found = _finding(_bag(*head), _data(1, 24, 24))
    assert [a.state for a in found.assessments] == [State.FINE]


def test_the_longer_side_of_an_image_decides() -> None:
    found = _finding(_bag(*POOLED), _data(1, 6, 24))
    (said,) = found.assessments
    assert said.state is State.LOOK
    assert said.number is not None
    assert said.number.value == pytest.approx(5 / 24)


def test_a_small_image_is_seen_as_a_whole() -> None:
    found = _finding(_bag(*POOLED), _data(1, 5, 5))
    (said,) = found.assessments
    assert said.state is State.FINE
    assert "the whole extent of the input" in said.sentence


def test_signals_in_one_dimension() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv1d(2, 4, 5, padding=2), nn.Tanh(), nn.AdaptiveMaxPool1d(1), nn.Flatten(),
        nn.Linear(4, 3),
    )  # fmt: skip
    found = _finding(net, _data(2, 40))
    assert [a.state for a in found.assessments] == [State.LOOK]


class Attentive(nn.Module):
    """Patches that attention joins before they are averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 8, 4, stride=4)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.places = nn.Parameter(torch.randn(36, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).mT + self.places
        joined, _ = self.attention(tokens, tokens, tokens)
        out: Tensor = self.head(joined.mean(1))
        return out


def test_attention_that_knows_the_places() -> None:
    torch.manual_seed(0)
    found = _finding(Attentive(), _data(1, 24, 24))
    assert [a.state for a in found.assessments] == [State.FINE]


def test_one_output_per_place() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1))
    x, _ = _data(1, 8, 8)
    found = _finding(net, (x, torch.zeros(len(x), 8, 8).long()))
    assert found.assessments == []
    assert "places of their own" in found.headlines[0]


def test_where_it_does_not_apply() -> None:
    dense = nn.Sequential(nn.Linear(4, 3))
    found = _finding(dense, _data(4))
    assert [c.verdict for c in found.claims] == [Verdict.NOT_APPLICABLE]
    assert "no convolution layer" in str(found.claims[0].reason)
    assert found.assessments == []


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 6, 24, 24))

    def forward(self, x: Tensor) -> Tensor:
        return self.table.expand(len(x), -1, -1, -1)


class Written(nn.Module):
    """A bag of patches whose end is written as functions, in several ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.body, self.head = how, _bag(), nn.Linear(6, 3)
        self.side, self.positions = nn.Conv2d(6, 2, 5, padding=2), Positions()

    def forward(self, x: Tensor) -> object:
        if self.how == "precision":
            x = x.float()
        if self.how == "noise":
            x = x + 0.1 * torch.randn(1, dtype=x.dtype)
        z = self.body(x)
        if self.how == "positions":
            z = z + self.positions(x)
        if self.how == "mean":
            return z.mean((2, 3))[:, :3]
        logits = self.head(z.mean((2, 3)))
        if self.how == "tuple":
            return logits, self.side(z)
        return {"logits": logits, "side": self.side(z)} if self.how == "dict" else logits


@pytest.mark.parametrize("how", ["mean", "positions", "tuple", "dict", "noise", "precision"])
def test_what_follows_may_be_written_in_other_ways(how: str) -> None:
    """Outputs are the model's, not those of its last module."""
    torch.manual_seed(0)
    model, state = Written(how), torch.get_rng_state()
    found = _finding(model, _data(1, 24, 24))
    assert torch.equal(torch.get_rng_state(), state)
    (said,) = found.assessments
    assert said.state is State.LOOK
    assert "sees a window of 5 × 5 of 24 × 24 places" in said.sentence
    assert "joins all places alike" in said.sentence
