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
    report = tt.audit(model, data, only=NAMES, budget=None, **more)
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
    assert "stationary point:" in found.headlines[0]
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
    assert "are a stationary point" in found.headlines[0]


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
    assert _quantity(found, "disturbed-loss") > own
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
    report = tt.audit(net, (x, y), only=["point-reached"], budget=None)
    found = next(q for q in report.findings[0].quantities if q.name == "smallest-eigenvalue")
    dense = torch.linalg.eigvalsh(hessian_operator(Problem(net, (x, y))).to_dense())
    assert -0.02 < dense[0] / dense[-1] < -1e-3  # the case that is meant
    assert found.low <= dense[0] <= found.high


# -- no false alarm, and is training at its end -------------------------------------------------

TRAINING = [
    "training-end",
    "curvature",
    "point-reached",
    "gradient-noise",
    "layer-balance",
    "tangent-kernel",
]


def _problem(task: str, seed: int) -> tuple[nn.Sequential, tuple[Tensor, Tensor]]:
    """A ReLU network with more than one hidden layer, fresh, and data that it can learn."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(300, 4, generator=generator)
    signal = x[:, 0] * x[:, 1] + x[:, 2].sin()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(),
            nn.Linear(16, 1 if task == "regression" else 2),
        )  # fmt: skip
    if task == "regression":
        return net, (x, (signal + 0.1 * torch.randn(300, generator=generator))[:, None])
    return net, (x, (signal > 0).long())


def _train(net: nn.Sequential, data: tuple[Tensor, Tensor], steps: int = 500) -> None:
    x, y = data
    loss = nn.functional.mse_loss if y.is_floating_point() else nn.functional.cross_entropy
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(0)
    for k in range(steps):
        optimizer.param_groups[0]["lr"] = 0.01 * (1 - k / steps)
        batch = torch.randint(len(x), (64,), generator=draw)
        optimizer.zero_grad()
        loss(net(x[batch]), y[batch]).backward()
        optimizer.step()


@pytest.mark.parametrize("task", ["regression", "classification"])
@pytest.mark.parametrize("seed", range(3))
def test_trained_and_fresh_relu_networks(task: str, seed: int) -> None:
    """Kinks break no promise; only the trained network is at its end."""
    net, data = _problem(task, seed)
    fresh = tt.audit(net, data, only=TRAINING, budget=None)
    _train(net, data)
    trained = tt.audit(net, data, only=TRAINING, budget=None)
    for report, said in ((fresh, "not at its end"), (trained, "is at its end")):
        assert not report.violated
        checked = {i for c in report.self_checks for i in c.ids}
        assert {"L-125", "L-136", "L-137", "L-162", "A-55", "A-56"} <= checked
        (assessed,) = [a for f in report.findings for a in f.assessments]
        assert said in assessed.sentence
        assert assessed.number is not None
        assert assessed.number.name == "loss-still-falling"
    assert trained.looks == []
    assert len(fresh.looks) == 1
    # negative curvature of fresh weights is checked, by slopes so near that no kink lies between
    assert "L-118" in {i for c in fresh.self_checks for i in c.ids}


def test_a_network_at_a_kink_is_not_accused() -> None:
    """Inputs of 0 and no bias: every unit stands on its kink, and gradients are no derivatives."""
    net = nn.Sequential(nn.Linear(3, 6, bias=False), nn.ReLU(), nn.Linear(6, 1))
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    x[::2] = 0
    report = tt.audit(net, (x, x[:, :1] + 1), only=TRAINING, budget=None)
    assert not report.violated


def test_a_saddle_is_worth_a_look() -> None:
    """At the origin the gradient is 0 and every direction of descent is one of curvature."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=generator)
    net = nn.Sequential(nn.Linear(3, 5, bias=False), nn.Tanh(), nn.Linear(5, 1, bias=False))
    for p in net.parameters():
        nn.init.zeros_(p)
    found = _findings(net, (x, x[:, :1]))["point-reached"]
    (look,) = found.assessments
    assert "saddle" in look.sentence
    assert look.number is not None
    assert look.number.name == "fall-along-negative-curvature"
    assert look.number.low > 0.1  # what the sentence says, and not the curvature, decides
    (curvature,) = [q for q in found.quantities if q.name == "negative-curvature"]
    assert curvature.low <= 1 <= curvature.high  # as far down as up
    stuck = tt.audit(net, (x, x[:, :1]), only=["training-end"], budget=None).findings[0]
    (look,) = stuck.assessments
    assert "constant prediction" in look.sentence


@pytest.mark.parametrize(("factor", "state"), [(0.3, "fine"), (1.3, ""), (30.0, "defect")])
def test_the_learning_rate_against_the_limit(factor: float, state: str) -> None:
    net, data = _problem("regression", 0)
    _train(net, data)
    limit = _quantity(
        tt.audit(net, data, only=["curvature"], budget=None).findings[0], "step-limit"
    )
    found = tt.audit(
        net, data, only=["curvature"], learning_rate=factor * limit, budget=None
    ).findings[0]
    assert _quantity(found, "step-over-limit") == pytest.approx(factor, rel=1e-3)
    said = [a for a in found.assessments if "learning rate" in a.sentence]
    assert [str(a.state) for a in said if state] == ([state] if state else [])
    if state == "defect":
        assert said[0].action.startswith("Lower the learning rate")
        assert said[0].figure in [f.name for f in found.figures]


def test_what_was_sub_sampled_is_in_the_sentence() -> None:
    net, data = _problem("classification", 1)
    report = tt.audit(
        net, data, only=["curvature", "point-reached", "gradient-noise"], limit=120, budget=None
    )
    for found in report.findings:
        assert any("of 300 training samples)" in s for s in found.headlines)
        sampled = [q for q in found.quantities if q.sampled]
        assert sampled
        assert all(q.low < q.high and q.population == 300 for q in sampled)
    names = [q.name for f in report.findings for q in f.quantities]
    assert len(names) == len(set(names))
    assert "negative-directions" not in names  # which a part of the samples does not tell


def test_too_few_of_many_samples_are_no_measurement() -> None:
    net, data = _problem("classification", 1)
    names = ["curvature", "point-reached", "gradient-noise", "tangent-kernel", "loss-slice"]
    report = tt.audit(net, data, only=names, limit=10, budget=None)
    for found in report.findings:
        assert not found.quantities
        assert not found.assessments
        assert not found.complete
    assert not report.violated
