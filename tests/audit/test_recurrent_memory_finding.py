"""The finding about memory in time: networks that forget, that explode, and healthy twins."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.core.claim import Verdict
from torchtheory.core.diagnosis import State
from torchtheory.sequences.recurrent.gradients import recurrent_gradients
from torchtheory.sequences.recurrent.lru import LRU
from torchtheory.sequences.recurrent.minimal import MinGRU


class Classifier(nn.Module):
    """A recurrent layer, and the class from its last output."""

    def __init__(self, layer: nn.RNN | nn.LSTM | nn.GRU) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(layer.hidden_size, 3)

    def forward(self, x: Tensor) -> Tensor:
        last: Tensor = self.head(self.layer(x)[0][:, -1])
        return last


def data(steps: int = 60, n: int = 48) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, steps, 4, generator=torch.Generator().manual_seed(0))
    return x, torch.arange(n) % 3


def audited(model: nn.Module, given: tuple[Tensor, Tensor]) -> FindingRecord:
    (found,) = tt.audit(model, given, only=["recurrent-memory"], budget=None).findings
    assert all(c.verdict is not Verdict.VIOLATED for c in found.claims)
    return found


def elman(scale: float, seed: int = 0, activation: str = "tanh") -> Classifier:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Classifier(nn.RNN(4, 16, nonlinearity=activation, batch_first=True))
        turn = torch.linalg.qr(torch.randn(16, 16)).Q
    with torch.no_grad():
        model.layer.weight_hh_l0.copy_(scale * turn)
        model.layer.weight_ih_l0.mul_(0.1)
        model.layer.bias_ih_l0.zero_()
        model.layer.bias_hh_l0.zero_()
    return model


def lstm(forget: float, seed: int = 0) -> Classifier:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Classifier(nn.LSTM(4, 16, batch_first=True))
    with torch.no_grad():
        model.layer.bias_ih_l0[16:32] = forget
    return model


def test_vanishing_is_certified_where_the_norm_is_below_one() -> None:
    found = audited(elman(0.5), data())
    (said,) = found.assessments
    assert said.state is State.LOOK
    assert "reach back" in said.sentence
    assert "weights alone allows 6" in said.sentence
    assert said.number is not None
    assert said.number.value <= 7
    (claim,) = found.claims
    assert claim.verdict is Verdict.HOLDS
    assert [f.name for f in found.figures] == ["eigenvalues", "memory"]


@pytest.mark.parametrize("seed", range(3))
def test_vanishing_is_measured_in_an_lstm_that_forgets(seed: int) -> None:
    found = audited(lstm(-1.0, seed), data())
    (said,) = found.assessments
    assert said.state is State.LOOK
    assert "weights alone" not in said.sentence
    assert all(c.verdict is Verdict.NOT_APPLICABLE for c in found.claims)


@pytest.mark.parametrize("seed", range(3))
def test_healthy_twins_are_not_accused(seed: int) -> None:
    for model in (elman(1.0, seed), lstm(5.0, seed)):
        found = audited(model, data())
        assert [a.state for a in found.assessments] == [State.FINE]


def test_exploding_is_a_defect() -> None:
    model = elman(1.0, activation="relu")
    with torch.no_grad():
        # nothing negative, so that everything passes, and 1.5 times as much in each step
        model.layer.weight_hh_l0.copy_(1.5 * torch.eye(16).roll(1, 0))
        model.layer.weight_ih_l0.abs_()
    x, y = data()
    found = audited(model, (x.abs(), y))
    (said,) = found.assessments
    assert said.state is State.DEFECT
    assert "explode" in said.sentence
    assert said.number is not None
    assert said.number.value == pytest.approx(1.5**59, rel=1e-3)


def test_short_sequences_and_other_models() -> None:
    assert audited(elman(0.5), data(steps=5)).assessments == []
    found = audited(nn.Sequential(nn.Flatten(), nn.Linear(240, 3)), data())
    assert found.assessments == []
    assert all(c.verdict is Verdict.NOT_APPLICABLE for c in found.claims)


def test_the_furthest_layer_counts() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Classifier(nn.LSTM(4, 8, num_layers=2, batch_first=True))
    with torch.no_grad():
        model.layer.bias_ih_l0[8:16] = 6.0  # the lower layer keeps
        model.layer.bias_ih_l1[8:16] = -3.0  # the upper one forgets
    found = audited(model, data())
    assert [a.state for a in found.assessments] == [State.FINE]
    assert len(found.tables[0].rows) == 2


def test_range_covers_the_other_samples() -> None:
    model = lstm(1.0)
    x, y = data(n=400)
    found = audited(model, (x, y))
    quantity = next(q for q in found.quantities if q.name == "gradient-reach")
    assert quantity.low <= quantity.value <= quantity.high
    assert quantity.low < quantity.high
    from torchtheory.sequences.recurrent.gradients import recurrent_gradients

    (whole,) = recurrent_gradients(model, x, generator=5)
    mean = float(whole.reach(0.01).double().mean())
    width = quantity.high - quantity.low
    # twice the range: one interval of 95 % alone may miss
    assert quantity.low - width / 2 <= mean <= quantity.high + width / 2


class Linear(nn.Module):
    """A linear recurrence, and the class from its last output."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        last: Tensor = self.head(self.layer(x)[:, -1])
        return last


def test_the_eigenvalues_of_a_matrix_are_shown() -> None:
    found = audited(elman(0.5), data())
    table = next(t for t in found.tables if t.name == "eigenvalues")
    ((name, kind, largest, smallest, lasts),) = table.rows
    assert (name, kind) == ("layer", "RNN")
    # of half an orthogonal matrix
    assert largest == pytest.approx(0.5)
    assert smallest == pytest.approx(0.5)
    assert lasts == "1.44"  # -1 / log 0.5
    assert "slowest mode of the recurrence layer lasts 1.44 steps" in found.headlines[0]
    large = audited(elman(1.2), data())
    assert "an eigenvalue of size 1.2" in large.headlines[0]
    gated = audited(lstm(1.0), data())
    assert [t.name for t in gated.tables] == ["layers"]


@pytest.mark.parametrize("seed", range(20))
def test_a_linear_recurrence_with_a_long_memory_is_fine(seed: int) -> None:
    x, y = data()
    layer = LRU(4, 16, 5, smallest=0.9, largest=0.999, generator=seed)
    found = audited(Linear(layer, 5), (x.double(), y))
    (said,) = found.assessments
    assert said.state is State.FINE
    (claim,) = found.claims
    assert claim.verdict is Verdict.HOLDS
    assert [f.name for f in found.figures] == ["eigenvalues", "memory"]


def test_a_linear_recurrence_that_forgets_is_worth_a_look() -> None:
    x, y = data()
    for layer in (
        LRU(4, 16, 5, smallest=0.1, largest=0.6, generator=0),
        MinGRU(4, 5, bias=True, generator=0),
    ):
        if isinstance(layer, MinGRU):
            with torch.no_grad():
                layer.gate.bias.fill_(-1.0)
        found = audited(Linear(layer, 5), (x.double(), y))
        (said,) = found.assessments
        assert said.state is State.LOOK
        assert said.number is not None
        assert said.number.high < 30


def test_gains_of_linear_recurrences_are_those_of_the_jacobian() -> None:
    x = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0)).double()
    layer = MinGRU(4, 3, generator=1)
    (memory,) = recurrent_gradients(layer, x)
    a, b = layer.coefficients(x)
    for sample in range(2):
        for lag in range(6):
            start = torch.zeros(3).double()

            def last(z: Tensor, sample: int = sample, lag: int = lag) -> Tensor:
                for t in range(6 - lag, 6):
                    z = a[sample, t].detach() * z + b[sample, t].detach()
                return z

            jacobian = torch.autograd.functional.jacobian(last, start) if lag else torch.eye(3)
            size = float(jacobian.double().square().sum().sqrt()) / 3**0.5
            assert float(memory.gains[sample, lag]) == pytest.approx(size)
