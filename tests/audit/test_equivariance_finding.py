"""Shifted images: networks that hang on a pixel are named, twins that do not are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.audit.engine.finding import FindingRecord, all_findings, examine
from torchtheory.audit.findings.equivariance import OFTEN
from torchtheory.core.claim import Verdict
from torchtheory.core.diagnosis import Area, State
from torchtheory.data.real import digits
from torchtheory.models.problem import Problem
from torchtheory.models.untouched import ModelState

pytestmark = pytest.mark.usefixtures("no_figures")

SEEDS = range(5)


def made(name: str, problem: Problem, seed: int = 0, **options: Any) -> FindingRecord:
    return examine(all_findings()[name], problem, confidence=0.95, seed=seed, **options)


def accused(record: FindingRecord) -> list[str]:
    return [a.sentence for a in record.assessments if a.state in (State.DEFECT, State.LOOK)]


def quantity(record: FindingRecord, name: str) -> Any:
    return next(q for q in record.quantities if q.name == name)


def stripes(n: int, seed: int, phase: bool, size: int = 24) -> tuple[Tensor, Tensor]:
    """Stripes: the class is whether they begin at the border, or whether they are upright."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (n,), generator=draw)
    other = torch.randint(0, 2, (n,), generator=draw)
    starts = y if phase else other
    upright = other if phase else y
    line = (torch.arange(size)[None] + starts[:, None]) % 2
    x = line[:, None, :].expand(n, size, size).float()
    x = torch.where(upright[:, None, None] == 1, x, x.transpose(1, 2))
    return x[:, None] + 0.2 * torch.randn(n, 1, size, size, generator=draw), y


def convolutional(padding: str, seed: int) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1, padding_mode=padding), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2),
        )  # fmt: skip


def flat(seed: int, size: int = 24) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(size**2, 16), nn.ReLU(), nn.Linear(16, 2)
        )  # fmt: skip


def fit(model: Any, data: tuple[Tensor, Tensor], steps: int = 60) -> Any:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(data[0]), data[1]).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("seed", SEEDS)
def test_a_network_that_hangs_on_a_pixel_is_named(seed: int) -> None:
    train, test = stripes(200, seed, True), stripes(200, seed + 50, True)
    problem = Problem(fit(flat(seed), train), train, test)
    assert problem.errors(problem.test).float().mean() < 0.1
    record = made("shifted-images", problem, seed)
    (said,) = [a for a in record.assessments if a.state is State.LOOK]
    assert said.area is Area.ROBUSTNESS
    assert said.sentence.startswith("A shift by one pixel changes the prediction of ")
    assert said.sentence.endswith(
        "Equivariance ends at 1 (Linear), which has weights of its own for every position."
    )
    assert said.action
    assert quantity(record, "shift-1-changes").low > OFTEN
    # stripes are the same again after two pixels but for the edge
    assert quantity(record, "shift-2-changes").value < quantity(record, "shift-1-changes").value
    (claim,) = record.claims
    assert claim.verdict is Verdict.NOT_APPLICABLE
    assert "1 (Linear) has weights of its own" in claim.reason


class Pixel(nn.Module):
    """The class is whether one pixel is bright."""

    def forward(self, x: Tensor) -> Tensor:
        bright = x[:, 0, 12, 12]
        return torch.stack([0.5 - bright, bright - 0.5], 1)


def test_few_images_that_change_are_no_accusation() -> None:
    """4 of 30 change, more than one in ten, but so few could be one in twenty."""
    x = torch.zeros(30, 1, 24, 24)
    x[:4, 0, 12, 12] = 1.0
    data = (x, (torch.arange(30) < 4).long())
    record = made("shifted-images", Problem(Pixel(), data, data))
    changed = quantity(record, "shift-1-changes")
    assert changed.value == pytest.approx(4 / 30)
    assert changed.low < OFTEN < changed.value
    (said,) = record.assessments
    assert said.state is State.OPEN
    assert "cannot be told" in said.sentence


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("padding", ["circular", "zeros"])
def test_its_twins_are_not_accused(padding: str, seed: int) -> None:
    train, test = stripes(200, seed, False), stripes(200, seed + 50, False)
    problem = Problem(fit(convolutional(padding, seed), train), train, test)
    record = made("shifted-images", problem, seed)
    assert accused(record) == []
    (said,) = record.assessments
    assert said.state is State.FINE
    (claim,) = record.claims
    if padding == "circular":
        assert claim.verdict is Verdict.HOLDS
        assert claim.control is not None
        assert claim.control.verdict is Verdict.VIOLATED
        assert record.headlines[0].startswith("At the images tried, no layer breaks")
    else:
        assert claim.verdict is Verdict.NOT_APPLICABLE
        assert claim.reason == "0 (Conv2d) pads the border with zeros"
    # a flat network of the same task learned where stripes may be, and is right about them
    flat_record = made("shifted-images", Problem(fit(flat(seed), train), train, test), seed)
    assert accused(flat_record) == []


def test_the_share_is_that_of_a_loop() -> None:
    """Every image is moved in one of four directions; a network that sees one pixel tells which."""
    n, size = 400, 24
    x = torch.rand(n, 1, size, size, generator=torch.Generator().manual_seed(0))

    class Pixel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            value = self.scale * (x[:, 0, 5, 5] - 0.5)
            return torch.stack([value, -value], 1)

    record = made("shifted-images", Problem(Pixel(), (x, (x[:, 0, 5, 5] < 0.5).long())))
    # another pixel of noise is on the other side with probability one half, left and right, up
    # and down alike
    near = quantity(record, "shift-1-changes")
    assert near.low < 0.5 < near.high
    other = x[:, 0, 5, size - 1 - 5]
    flipped = float(((other < 0.5) != (x[:, 0, 5, 5] < 0.5)).float().mean())
    assert quantity(record, "flip-changes").value == pytest.approx(flipped)
    assert accused(record) != []


def test_ranges_cover_the_share_of_all_images() -> None:
    train = stripes(2000, 0, True)
    model = fit(flat(0), (train[0][:100], train[1][:100]), steps=6)
    problem = Problem(model, train)
    truth = 0.0
    with torch.no_grad():
        before = model(train[0]).argmax(1)
        for axis, back in ((2, False), (2, True), (3, False), (3, True)):
            z = train[0].flip(axis) if back else train[0]
            first = z.narrow(axis, 0, 1)
            z = torch.cat([first, z.narrow(axis, 0, 23)], axis)
            z = z.flip(axis) if back else z
            truth += float((model(z).argmax(1) != before).float().mean()) / 4
    missed = 0
    for seed in range(30):
        part = problem.restricted(100, 0, torch.Generator().manual_seed(seed))
        found = quantity(made("shifted-images", part, seed), "shift-1-changes")
        assert found.sampled
        missed += not found.low <= truth <= found.high
    assert missed <= 6  # Bin(30, 0.05) is larger with probability 0.0006


def test_a_network_that_names_one_class_is_not_called_robust() -> None:
    train = stripes(100, 0, True)
    model = flat(0)
    with torch.no_grad():
        model[3].bias[0] = 1e3
    record = made("shifted-images", Problem(model, train))
    assert record.assessments == []
    assert "the same class for all 100 images tried" in record.headlines[0]


def test_small_images_are_not_judged_by_a_pixel() -> None:
    x, y = digits()
    x = x.reshape(-1, 1, 8, 8)[:300].float()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    record = made("shifted-images", Problem(fit(model, (x, y[:300]), 100), (x, y[:300])))
    assert record.assessments == []
    headline, _ = record.headlines
    assert "of images of 8 pixels that is a step of 12% of their size" in headline


def test_binary_outputs_and_other_inputs() -> None:
    x, y = stripes(100, 0, False)
    one = nn.Sequential(*convolutional("circular", 0)[:-1], nn.Linear(6, 1))
    record = made("shifted-images", Problem(one, (x, y.float())))
    assert len(record.quantities) == 3
    for shape, words in (
        ((100, 4), "the inputs are no images"),
        ((100, 1, 2, 2), "too small to be shifted"),
    ):
        size = shape[1] if len(shape) == 2 else 4
        net = nn.Sequential(nn.Flatten(), nn.Linear(size, 2))
        record = made("shifted-images", Problem(net, (torch.randn(*shape), y)))
        assert words in record.claims[0].reason
    regression = nn.Sequential(nn.Flatten(), nn.Linear(576, 1))
    record = made("shifted-images", Problem(regression, (x, torch.randn(100, 1))))
    assert "regression" in record.claims[0].reason


def test_without_time_nothing_is_said_and_the_model_stays_as_it_was() -> None:
    train = stripes(200, 0, False)
    model = convolutional("circular", 0).train()
    state = ModelState(model)
    problem = Problem(model, train)
    record = made("shifted-images", problem, seconds=1e-4)
    assert accused(record) == []
    assert not record.complete
    made("shifted-images", problem)
    assert state.changes(model) == []
    assert model.training


# -------------------------------------------------------------------------------------- tokens


class Attention(nn.Module):
    def __init__(self, positions: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.positions = nn.Parameter(torch.randn(1, 6, 8)) if positions else None
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = self.embed(x)
        return self.head(self.layer(z if self.positions is None else z + self.positions).mean(1))


@pytest.mark.parametrize("seed", SEEDS)
def test_attention_without_positions_is_said_to_be_blind_to_the_order(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 9, (60, 6), generator=draw)
    y = torch.randint(0, 2, (60,), generator=draw)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        blind, seeing = Attention(False), Attention(True)
    (said,) = accused(made("token-order", Problem(blind, (x, y)), seed))
    assert said == (
        "The order of the tokens is nothing to the network: its outputs are the same for each of 4 "
        "orders tried (from 8 of 60 training samples)."
    )
    (seen,) = made("token-order", Problem(blind, (x, y)), seed).assessments
    limit = float(seen.usual.split()[1].rstrip(","))
    assert seen.number is not None
    assert seen.number.value < limit < 1e-3
    record = made("token-order", Problem(seeing, (x, y)), seed)
    assert accused(record) == []
    assert record.headlines[0].startswith("Another order of the tokens changes the outputs by ")
    bag = nn.Sequential(nn.EmbeddingBag(9, 4), nn.Linear(4, 2))  # meant to be blind
    assert "no attention layer" in made("token-order", Problem(bag, (x, y))).claims[0].reason
    same = torch.ones_like(x)
    record = made("token-order", Problem(blind, (same, y)))
    assert "all tokens of a sequence are the same" in record.claims[0].reason


def test_they_are_part_of_an_audit() -> None:
    train, test = stripes(100, 0, True), stripes(100, 1, True)
    names = ["shifted-images", "token-order"]
    report = tt.audit(fit(flat(0), train), train, test, only=names, budget="20s")
    assert [f.name for f in report.findings] == ["token-order", "shifted-images"]
    assert report.warnings == []
    assert report.violated == []
    assert any("A shift by one pixel" in a.sentence for a in report.diagnosis)


class Noisy(nn.Module):
    """It draws noise of its own in every pass, one number for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular")
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        noise = 0.1 * torch.randn(x.shape[1:], dtype=x.dtype)
        made: Tensor = self.head(F.relu(self.conv(x + noise)).mean((2, 3)))
        return made


def test_noise_is_no_position_encoding() -> None:
    torch.manual_seed(0)
    found = made("shifted-images", Problem(Noisy(), stripes(40, 0, phase=False)))
    assert not any("position encoding" in c.reason for c in found.claims)
    assert not any("Equivariance ends" in s for s in found.headlines)
