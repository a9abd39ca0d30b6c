"""Findings about the point reached: index, gradient noise, what gradient flow conserves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.core.claim import Verdict
from torchtheory.models.problem import Problem
from torchtheory.optimization.curvature.operators import hessian_operator

NAMES = ["point-reached", "loss-slice", "gradient-noise", "layer-balance"]


def _findings(
    model: nn.Module, data: tuple[Tensor, Tensor], **more: object
) -> dict[str, FindingRecord]:
    report = tt.audit(model, data, only=NAMES, **more)
    return {f.name: f for f in report.findings}


def _quantity(record: FindingRecord, name: str) -> float:
    return next(q.value for q in record.quantities if q.name == name)


def _data(n: int = 60, d: int = 4) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] * x[:, 1] > 0).long()


def _net(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 10), *layers, nn.Linear(10, 2))


def test_an_untrained_network_is_taken_apart() -> None:
    found = _findings(_net(nn.ReLU()), _data())
    for name in NAMES:
        assert found[name].complete
        assert all(c.verdict != Verdict.VIOLATED for c in found[name].claims)
    shares = [
        _quantity(found["point-reached"], f"{k}-directions")
        for k in ("negative", "flat", "positive")
    ]
    assert sum(shares) == pytest.approx(1.0)
    assert _quantity(found["point-reached"], "smallest-eigenvalue") < 0
    balance = found["layer-balance"].claims[0]
    assert balance.verdict == Verdict.HOLDS
    assert balance.control is not None
    assert balance.control.verdict == Verdict.VIOLATED
    assert len(found["gradient-noise"].claims) == 2
    for noise in found["gradient-noise"].claims:
        assert noise.verdict == Verdict.HOLDS
        assert noise.control is not None
        assert noise.control.verdict == Verdict.VIOLATED


def test_index_of_a_saddle_and_of_a_minimum() -> None:
    """A product of two numbers at the origin, and least squares at its solution."""
    x = torch.linspace(-1, 1, 21, dtype=torch.float64)[:, None]
    saddle = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    for p in saddle.parameters():
        nn.init.zeros_(p)
    found = _findings(saddle, (x, x))["point-reached"]
    assert _quantity(found, "negative-directions") == pytest.approx(0.5, abs=0.26)
    assert _quantity(found, "one-step-gain") == 0
    assert found.claims[0].verdict == Verdict.HOLDS
    assert "stationary point:" in found.headlines[0][0]
    line = nn.Linear(1, 1).double()
    nn.init.ones_(line.weight)
    nn.init.zeros_(line.bias)
    noisy = x + 0.1 * torch.cos(40 * x)
    fitted = torch.linalg.lstsq(torch.cat([x, torch.ones_like(x)], 1), noisy).solution
    with torch.no_grad():
        line.weight.copy_(fitted[:1])
        line.bias.copy_(fitted[1])
    found = _findings(line, (x, noisy))["point-reached"]
    assert _quantity(found, "negative-directions") == 0
    assert found.claims[0].verdict == Verdict.NOT_APPLICABLE


@pytest.mark.parametrize("activation", [nn.LeakyReLU(0.2), nn.Identity()])
def test_balance_of_homogeneous_activations(activation: nn.Module) -> None:
    (claim,) = _findings(_net(activation), _data())["layer-balance"].claims
    assert claim.verdict == Verdict.HOLDS


def test_no_balance_behind_a_tanh() -> None:
    (claim,) = _findings(_net(nn.Tanh()), _data())["layer-balance"].claims
    assert claim.verdict == Verdict.NOT_APPLICABLE
    assert "homogeneous" in claim.reason


def test_few_samples_and_equal_ones() -> None:
    x, y = _data()
    (claim,) = _findings(_net(nn.ReLU()), (x[:5], y[:5]))["gradient-noise"].claims
    assert "too few" in claim.reason
    same = x[:1].expand(20, 4), torch.zeros(20, dtype=torch.long)
    claims = _findings(_net(nn.ReLU()), same, task="multiclass")["gradient-noise"].claims
    assert "no noise" in claims[-1].reason


def test_a_network_that_fits_everything_is_at_a_stationary_point() -> None:
    x = torch.linspace(-1, 1, 21, dtype=torch.float64)[:, None]
    line = nn.Linear(1, 1).double()
    nn.init.ones_(line.weight)
    nn.init.zeros_(line.bias)
    found = _findings(line, (x, x))["point-reached"]
    assert "are a stationary point" in found.headlines[0][0]


def test_the_plane_around_trained_weights() -> None:
    """A trained network with batch normalization: convex in the last layer, not in all of them."""
    x, y = _data(200)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    found = _findings(net.eval(), (x, y))["loss-slice"]
    with torch.no_grad():
        own = float(nn.functional.cross_entropy(net(x), y))
    assert _quantity(found, "loss-on-plane") > own
    (claim,) = found.claims
    assert claim.verdict == Verdict.HOLDS
    assert claim.control is not None
    assert claim.control.verdict == Verdict.VIOLATED
    assert [f.name for f in found.figures] == ["plane"]


def test_no_convexity_is_promised_for_a_loss_of_the_users_own() -> None:
    x, y = _data()

    def bounded(outputs: Tensor, targets: Tensor) -> Tensor:
        return 1 - nn.functional.softmax(outputs, 1)[torch.arange(len(targets)), targets].mean()

    (claim,) = _findings(_net(nn.ReLU()), (x, y), loss=bounded)["loss-slice"].claims
    assert claim.verdict == Verdict.NOT_APPLICABLE
    (claim,) = _findings(nn.Sequential(_net(nn.ReLU()), nn.Tanh()), (x, y))["loss-slice"].claims
    assert "last layer" in claim.reason


def test_a_small_negative_eigenvalue_is_not_overlooked() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    x = torch.randn(80, 6).double()
    y = (x[:, 1] > 0).long()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    report = tt.audit(net, (x, y), only=["point-reached"])
    found = next(q for q in report.findings[0].quantities if q.name == "smallest-eigenvalue")
    dense = torch.linalg.eigvalsh(hessian_operator(Problem(net, (x, y))).to_dense())
    assert -0.02 < dense[0] / dense[-1] < -1e-3  # the case that is meant
    assert found.low <= dense[0] <= found.high
