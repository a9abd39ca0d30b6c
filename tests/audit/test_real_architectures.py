"""Networks as people build them: what can be said of each, and that it is true."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.audit.findings.network_growth import measure_size
from torchtheory.core.claim import Verdict
from torchtheory.core.diagnosis import State
from torchtheory.models.problem import Problem

FINDINGS = ["lipschitz", "certified-radius", "permutation-symmetry", "used-units", "width"]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.one, self.norm1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.two, self.norm2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        h = self.norm2(self.two(F.relu(self.norm1(self.one(x)))))
        out: Tensor = self.head(F.adaptive_avg_pool2d(F.relu(x + h), 1).flatten(1))
        return out


class Encoding(nn.Module):
    """An encoder block with attention written in the usual way, before it a normalization."""

    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 12), nn.GELU(), nn.Linear(12, d))

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, n, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        read = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = x + self.out(read)
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Vision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.first = nn.Conv2d(1, 8, 3, 3), nn.Parameter(torch.randn(1, 1, 8))
        self.place, self.block = nn.Parameter(torch.randn(1, 5, 8)), Encoding()
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.place
        out: Tensor = self.head(self.norm(self.block(x))[:, 0])
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(x.squeeze(1))
        out: Tensor = self.head(states[:, -1])
        return out


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
        self.embed, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(self.embed(x.squeeze(1))).mean(1))
        return out


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3),
    )  # fmt: skip


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3))


ARCHITECTURES: dict[str, Any] = {
    "convolutional": convolutional,
    "residual": Residual,
    "vision transformer": Vision,
    "recurrent": Recurrent,
    "encoder": Encoder,
    "dense": dense,
}
#: Those in which no hidden layer stands between two dense layers or convolutions.
WITHOUT_UNITS = {"recurrent"}


def pictures(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three kinds of pictures, 6 by 6, with noise."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.zeros(3, 1, 6, 6)
    kinds[0, :, :3], kinds[1, :, :, :3], kinds[2, :, 2:4, 2:4] = 1.0, 1.0, 2.0
    y = torch.arange(90) % 3
    return kinds[y] + 0.3 * torch.randn(90, 1, 6, 6, generator=generator), y


def trained(net: nn.Module, x: Tensor, y: Tensor, steps: int = 60) -> nn.Module:
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    net.train()
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net.eval()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_is_said_of_each_architecture(name: str) -> None:
    torch.manual_seed(0)
    x, y = pictures()
    net = trained(ARCHITECTURES[name](), x, y)
    report = tt.audit(net, (x, y), pictures(1), only=FINDINGS, budget=None)
    found: dict[str, FindingRecord] = {f.name: f for f in report.findings}
    for which in ("lipschitz", "certified-radius"):
        assert [c.verdict for c in found[which].claims] == [Verdict.HOLDS]
        assert not found[which].claims[0].self_check
    (control,) = (c.control for c in found["lipschitz"].claims)
    assert control is not None
    assert control.verdict is Verdict.VIOLATED
    (symmetry,) = found["permutation-symmetry"].claims
    if name in WITHOUT_UNITS:
        assert symmetry.verdict is Verdict.NOT_APPLICABLE
    else:
        assert symmetry.verdict is Verdict.HOLDS
        assert symmetry.self_check
        assert symmetry.control is not None
        assert symmetry.control.verdict is Verdict.VIOLATED
    states = {a.area: a.state for f in report.findings for a in f.assessments}
    assert states == {"robustness": State.FINE, "capacity": State.FINE}
    if name != "dense":
        assert "in a row, and" in found["width"].claims[0].reason
    quantities = {q.name: q for f in report.findings for q in f.quantities}
    share = quantities["relative-boundary-distance"]
    assert 0 < share.low < share.value < share.high
    assert share.sampled
    assert quantities["units-in-use"].value == 1.0


def test_reasons_name_the_operation_and_its_place() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.exp(-x.square())

    torch.manual_seed(0)
    x, y = pictures()
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 5), Odd(), nn.Linear(5, 3))
    report = tt.audit(net, (x, y), only=["lipschitz", "certified-radius", "width"], budget=None)
    reasons = {f.name: f.claims[0].reason for f in report.findings}
    assert reasons["lipschitz"] == (
        "no bound is known: there is no rule for exp (in layer '2', Odd)"
    )
    assert reasons["certified-radius"] == reasons["lipschitz"]
    assert "layer '2' is a Odd" in reasons["width"]
    # what was found by search is said all the same
    assert [a.area for f in report.findings for a in f.assessments] == ["robustness"]


# --------------------------------------------------------------------- defects, and their twins


@pytest.mark.parametrize("seed", range(5))
def test_units_that_are_copies(seed: int) -> None:
    torch.manual_seed(seed)
    x, y = pictures(seed)

    def assessed(net: nn.Module) -> Any:
        report = tt.audit(trained(net, x, y), (x, y), only=["used-units"], budget=None)
        (said,) = report.findings[0].assessments
        return said

    copies = dense()
    with torch.no_grad():
        for p in copies.parameters():
            p.fill_(0.01)
    bad = assessed(copies)
    assert bad.state is State.DEFECT
    assert "7 of 8 units" in bad.sentence
    assert bad.number is not None
    assert bad.action
    assert assessed(dense()).state is State.FINE
    partly = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        partly[1].weight[:2], partly[1].bias[:2] = 0.0, 0.0
    report = tt.audit(partly, (x, y), only=["used-units"], budget=None)
    assert report.findings[0].assessments[0].state is State.LOOK


@pytest.mark.parametrize("seed", range(5))
def test_classes_that_hang_on_what_cannot_be_seen(seed: int) -> None:
    """The class is in one coordinate, which is tiny, or as large as the others."""
    generator = torch.Generator().manual_seed(seed)
    states = []
    for size in (1e-4, 3.0):
        x = torch.randn(200, 20, generator=generator)
        y = torch.arange(200) % 2
        x[:, 0] = size * (2 * y - 1)
        net = nn.Linear(20, 2, bias=False)
        with torch.no_grad():
            net.weight.zero_()
            net.weight[1, 0] = 3 / size
        report = tt.audit(net, (x, y), only=["certified-radius"], budget=None)
        (said,) = report.findings[0].assessments
        assert said.number is not None
        assert said.usual == "above 0.03"
        states.append(said.state)
    assert states == [State.DEFECT, State.FINE]


@pytest.mark.parametrize("seed", range(3))
def test_a_regression_is_as_steep_as_its_data(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(200, 1, generator=generator)
    states = []
    for frequency in (1.0, 3000.0):

        class Wave(nn.Module):
            def __init__(self, frequency: float) -> None:
                super().__init__()
                self.frequency = nn.Parameter(torch.tensor(frequency))

            def forward(self, x: Tensor) -> Tensor:
                return torch.sin(self.frequency * x)

        net = Wave(frequency)
        y = net(x).detach()
        report = tt.audit(net, (x, y), only=["lipschitz"], budget=None)
        (said,) = report.findings[0].assessments
        states.append(said.state)
        assert report.findings[0].claims[0].verdict is Verdict.HOLDS
    assert states == [State.FINE, State.LOOK]


# ------------------------------------------------------------------------------------- counting


def test_maxima_are_counted_by_their_differences() -> None:
    net = nn.Sequential(
        nn.Conv1d(1, 2, 1), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(4, 1)
    )
    problem = Problem(net, (torch.randn(10, 1, 4), torch.arange(10) % 2), task="binary")
    size = measure_size(problem)
    # 8 units with a kink each, then 4 maxima of two, decided by one difference each
    assert size.breaks == (8, 4)
    assert size.parameters == (4, 4, 9)
    assert size.comparisons == 1
    # never fewer ways to err than networks with random weights show
    x = torch.randn(4, 1, 4, generator=torch.Generator().manual_seed(0))
    ways = set()
    for _ in range(2000):
        with torch.no_grad():
            for p in net.parameters():
                p.normal_()
            ways.add(tuple((net(x)[:, 0] > 0).tolist()))
    assert len(ways) <= 2 ** size.log2_growth(4)
    plain = nn.Sequential(nn.Conv1d(1, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(8, 1))
    other = Problem(plain, (torch.randn(10, 1, 4), torch.arange(10) % 2), task="binary")
    assert measure_size(other).breaks == (8,)
