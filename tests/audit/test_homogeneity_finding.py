"""Findings about homogeneity: degrees of any network, and certificates of global optimality."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.core.claim import Verdict
from torchtheory.optimization.parallel_networks.network_certificates import grow_network
from torchtheory.optimization.parallel_networks.subnetworks import HalfSquares, relu_unit


def _finding(
    name: str, model: nn.Module, data: tuple[Tensor, Tensor], **more: object
) -> FindingRecord:
    (found,) = tt.audit(model, data, only=[name], budget=None, **more).findings
    return found


def _quantity(record: FindingRecord, name: str) -> float:
    return next(q.value for q in record.quantities if q.name == name)


def _degrees(record: FindingRecord) -> dict[str, str]:
    return {str(row[0]): str(row[2]) for row in record.tables[0].rows}


def _data(n: int = 24, d: int = 3) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    return x, x[:, :1] * x[:, 1:2]


def _net(*widths: int, bias: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_degree_is_the_number_of_layers(depth: int) -> None:
    found = _finding("homogeneity", _net(3, *[6] * (depth - 1), 1), _data())
    assert _quantity(found, "homogeneity-degree") == depth
    degrees = _degrees(found)
    assert degrees.pop("all trained") == str(depth)
    assert set(degrees.values()) == {"1"}
    law, match = found.claims
    assert law.verdict is Verdict.HOLDS
    assert law.self_check
    assert (match.verdict is Verdict.HOLDS) == (depth == 2)
    if depth > 1:
        assert law.control is not None
        assert law.control.verdict is Verdict.VIOLATED
    if depth == 2:
        assert match.control is not None
        assert match.control.verdict is Verdict.VIOLATED
    if depth == 3:
        assert "degree 3 and weight decay 2" in match.reason
        assert "product of the norms" in found.advice[0]


def test_what_breaks_homogeneity_is_named() -> None:
    found = _finding("homogeneity", _net(3, 6, 1, bias=True), _data())
    assert not found.quantities
    assert _degrees(found) == {"all trained": "none", "0": "none", "2": "1"}
    assert "with 2.bias at 0 they are, of degree 2" in found.claims[0].reason
    tanh = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    assert "1 (Tanh)" in _finding("homogeneity", tanh, _data()).claims[0].reason


def test_a_bias_that_happens_to_be_zero_does_not_pass() -> None:
    net = _net(3, 6, 1, bias=True)
    nn.init.zeros_(net[2].bias)
    assert not _finding("homogeneity", net, _data()).quantities


def test_frozen_and_shared_weights() -> None:
    net = _net(3, 3, 1)
    net[0].requires_grad_(False)
    found = _finding("homogeneity", net, _data())
    assert _quantity(found, "homogeneity-degree") == 1
    assert "not trained" in found.notes[0]
    shared = nn.Linear(3, 3, bias=False)
    twice = nn.Sequential(shared, nn.ReLU(), shared, nn.ReLU(), nn.Linear(3, 1, bias=False))
    found = _finding("homogeneity", twice, _data())
    assert _degrees(found)["0"] == "2"
    assert _quantity(found, "homogeneity-degree") == 3


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.out = nn.Linear(4, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.attention(x, x, x)[0].mean(1))
        return out


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(2, 1, bias=False), nn.Linear(3, 1, bias=False)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        out: Tensor = self.left(a) * self.right(b)
        return out


def test_any_architecture_is_measured() -> None:
    x = torch.randn(10, 5, 4, generator=torch.Generator().manual_seed(1))
    found = _finding("homogeneity", Attending(), (x, x[:, 0, :1]))
    assert _degrees(found)["out"] == "1"
    assert found.claims[0].verdict is Verdict.NOT_APPLICABLE
    inputs = {"a": torch.randn(10, 2), "b": torch.randn(10, 3)}
    found = _finding("homogeneity", Both(), (inputs, torch.randn(10, 1)))  # type: ignore[arg-type]
    assert _quantity(found, "homogeneity-degree") == 2
    torch.manual_seed(0)
    normed = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1))
    normed(_data()[0])  # running statistics of its own
    assert not _finding("homogeneity", normed, _data()).quantities


def test_too_many_layers_are_taken_together() -> None:
    layers = [nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3)) for _ in range(21)]
    found = _finding("homogeneity", nn.Sequential(*layers, nn.Linear(3, 1)), _data())
    assert len(found.tables[0].rows) == 23


# -- global optimality --------------------------------------------------------------------------


def _optimum(strength: float) -> tuple[nn.Sequential, tuple[Tensor, Tensor]]:
    """A network grown to its certified optimum, as a user's module; the loss is a mean."""
    x, y = _data(12, 1)[0].double(), _data(12, 2)[1].double()
    unit = relu_unit(1, 1, bias=True)
    grown = grow_network(unit, x, HalfSquares(y), strength * len(x) / 2, tolerance=1e-7)
    assert grown.certificate.optimal
    w = grown.network.weights
    net = nn.Sequential(nn.Linear(1, len(w)), nn.ReLU(), nn.Linear(len(w), 1, bias=False)).double()
    with torch.no_grad():
        net[0].weight.copy_(w[:, :1])
        net[0].bias.copy_(w[:, 1])
        net[2].weight.copy_(w[:, 2:].T)
    return net, (x, y)


def test_an_optimum_is_certified_and_its_weight_decay_recovered() -> None:
    net, data = _optimum(0.02)
    found = _finding("global-optimality", net, data)
    assert _quantity(found, "implied-weight-decay") == pytest.approx(0.02, rel=1e-4)
    assert _quantity(found, "optimality-gap") < 1e-4
    assert "global minimum" in found.headlines[0]


def test_other_weights_are_not_certified() -> None:
    net, (x, y) = _optimum(0.02)
    found = _finding("global-optimality", net, (x, 1.5 * y + x))  # the optimum of other data
    assert _quantity(found, "optimality-gap") > 1e-2
    (better,) = [c for c in found.claims if c.ids == ("B-50",)]
    assert better.verdict is Verdict.HOLDS
    assert better.control is not None
    assert better.control.verdict is Verdict.VIOLATED
    (bound,) = [c for c in found.claims if c.ids == ("B-49",)]
    assert bound.verdict is Verdict.HOLDS
    assert not any("global minimum" in sentence for sentence in found.headlines)


def test_output_biases_are_kept() -> None:
    net, (x, y) = _optimum(0.02)
    shifted = nn.Sequential(net[0], nn.ReLU(), nn.Linear(net[2].in_features, 1).double())
    with torch.no_grad():
        shifted[2].weight.copy_(net[2].weight)
        shifted[2].bias.fill_(3.0)
    found = _finding("global-optimality", shifted, (x, y + 3))
    assert _quantity(found, "optimality-gap") < 1e-4
    assert "with this output bias" in found.headlines[0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("deep", "not Linear, ReLU, Linear, ReLU, Linear"),
        ("frozen", "frozen or shared"),
        ("untrained", "larger weights do not lower the loss"),
    ],
)
def test_where_there_is_no_certificate(change: str, sentence: str) -> None:
    net, (x, y) = _net(3, 5, 1), _data()
    if change == "deep":
        net = _net(3, 5, 5, 1)
    elif change == "frozen":
        net[0].requires_grad_(False)
    else:
        with torch.no_grad():
            y = net(x) / 2
    (claim,) = _finding("global-optimality", net, (x, y)).claims
    assert claim.verdict is Verdict.NOT_APPLICABLE
    assert sentence in claim.reason


def test_a_search_proves_nothing() -> None:
    net, (x, _) = _net(3, 8, 2), _data()
    with torch.no_grad():
        y = 2 * net(x)
    found = _finding("global-optimality", net, (x, y))
    assert "optimality-gap" not in [q.name for q in found.quantities]
    (bound,) = [c for c in found.claims if c.ids == ("B-49",)]
    assert "only searched" in bound.reason


def test_a_part_of_the_samples_certifies_nothing() -> None:
    """The loss of all samples is meant, so one of a part of them has no certificate."""
    net, (x, y) = _optimum(0.02)
    found = _finding("global-optimality", net, (x, y), limit=8)
    assert [c.verdict for c in found.claims] == [Verdict.NOT_DONE]
    assert "8 of them" in found.claims[0].reason
    assert not found.quantities
