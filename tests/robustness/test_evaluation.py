"""Certified, exact and attacked: the order holds, and a contradiction is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from torchtheory.core.errors import EmptyData, InvalidInput, NotConverged
from torchtheory.models.untouched import private_copy
from torchtheory.robustness.attacks.gradient_steps import PGD
from torchtheory.robustness.bounds.certified import certified_accuracy
from torchtheory.robustness.bounds.output_bounds import output_bounds
from torchtheory.robustness.bounds.training import IntervalTraining, interval_bounds
from torchtheory.robustness.evaluation import evaluate, robust_radius
from torchtheory.training.loop.trainer import fit


@pytest.fixture(scope="module")
def trained():
    source = torch.Generator().manual_seed(0)
    x = torch.rand(300, 4, generator=source)
    y = ((x[:, 0] - x[:, 1]).abs() + 0.3 * x[:, 2] > 0.5).long()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 2)
        )
    fit(net, (x, y), epochs=40, learning_rate=0.01)
    return net, x[:40], y[:40]


@pytest.mark.parametrize("norm", ["inf", "2", "1"])
def test_the_sandwich(trained, norm: str) -> None:
    net, x, y = trained
    radii = [0.0, 0.02, 0.05, 0.1, 0.2]
    found = evaluate(net, (x, y), norm, radii, exact=8, box=(0.0, 1.0))
    assert (found.certified <= found.standing).all()
    assert (found.certified[1:] <= found.certified[:-1]).all()
    assert (found.standing[1:] <= found.standing[:-1]).all()
    known = ~found.exact.isnan()
    assert int(known.sum()) == 8
    for k, r in enumerate(radii):
        robust = found.exact[known] > r
        assert (found.certified[k][known] <= robust).all()
        assert (robust <= found.standing[k][known]).all()
    clean = (net(x).argmax(1) == y).float().mean()
    assert found.attacked_accuracy[0].estimate == pytest.approx(float(clean))
    assert found.certified_accuracy[1].estimate > 0.3
    assert found.attacked_accuracy[-1].estimate < 0.9 or norm == "1"
    assert found.figure().name == "robust-accuracy"
    assert [row[1] for row in found.table()] == [s.estimate for s in found.certified_accuracy]


def test_attacks_of_one_evaluation_share_a_copy(trained, monkeypatch) -> None:
    net, x, y = trained
    copies = []
    monkeypatch.setattr(
        "torchtheory.models.opened.private_copy", lambda m: copies.append(m) or private_copy(m)
    )
    found = evaluate(net, (x, y), "2", [0.02, 0.05, 0.1])
    assert len(copies) == 1
    alone = ~PGD(0.02, 40, restarts=2, norm="2", generator=0)(net, x, y).success
    assert (found.standing[0] == alone).all()

    given = []

    def own(model, x, y):
        given.append(model)
        return SimpleNamespace(adversarial=x, success=torch.zeros(len(x), dtype=torch.bool))

    evaluate(net, (x, y), "2", [0.02, 0.05], attack=lambda radius: own)
    assert given == [net, net]


def test_a_sample_without_a_distance_loses_no_table(trained, monkeypatch) -> None:
    import torchtheory.robustness.evaluation as module

    net, x, y = trained
    real = module.minimal_perturbation

    def failing(model, point, *given, **options):
        if torch.equal(point, x[1]):
            raise NotConverged("the mixed-integer program failed")
        return real(model, point, *given, **options)

    whole = evaluate(net, (x[:4], y[:4]), "inf", 0.05, exact=4)
    monkeypatch.setattr(module, "minimal_perturbation", failing)
    found = evaluate(net, (x[:4], y[:4]), "inf", 0.05, exact=4)
    assert whole.failed == {}
    assert found.failed == {1: "the mixed-integer program failed"}
    assert found.exact.isnan().tolist() == [False, True, False, False]
    assert found.exact[[0, 2, 3]].tolist() == whole.exact[[0, 2, 3]].tolist()
    assert found.table()[0][2] is None  # of a part it cannot be compared


def test_a_contradiction_is_refused(trained) -> None:
    net, x, y = trained
    found = certified_accuracy(net, (x, y), 0.01)
    assert found.certified.any()

    # an attack that hands in points far outside is pulled back into the ball, and is no success
    def far(radius: float):
        return lambda model, x, y: SimpleNamespace(
            adversarial=x + 5.0, success=torch.ones(len(x), dtype=torch.bool)
        )

    assert (evaluate(net, (x, y), "inf", 0.01, attack=far).certified[0] == found.certified).all()
    # a certificate that is wrong is caught: labels flipped behind its back
    import torchtheory.robustness.evaluation as module

    real = module.margins_in_ball
    try:
        module.margins_in_ball = lambda network, x, y, *a, **k: torch.ones(len(x))
        with pytest.raises(NotConverged, match="please report"):
            evaluate(net, (x, y), "inf", 0.5)
    finally:
        module.margins_in_ball = real


@pytest.mark.parametrize("norm", ["inf", "2"])
def test_robust_radius_encloses_the_exact_distance(trained, norm: str) -> None:
    from torchtheory.robustness.exact.distance import minimal_perturbation

    net, x, y = trained
    found = robust_radius(net, x[:6], y[:6], norm)
    assert (found.lower <= found.upper).all()
    for k in range(6):
        exact = minimal_perturbation(net, x[k], int(y[k]), norm).distance
        assert float(found.lower[k]) <= exact * (1 + 1e-6) + 1e-9
        assert exact <= float(found.upper[k]) * (1 + 1e-6) + 1e-9


def test_bad_input(trained) -> None:
    net, x, y = trained
    with pytest.raises(EmptyData, match="at least one radius"):
        evaluate(net, (x, y), "inf", [])
    with pytest.raises(InvalidInput, match="radius"):
        evaluate(net, (x, y), "inf", -0.1)
    with pytest.raises(InvalidInput, match="norm"):
        evaluate(net, (x, y), "7", 0.1)
    with pytest.raises(InvalidInput, match="labels"):
        evaluate(net, (x, y + 5), "inf", 0.1)


def test_interval_bounds_are_those_without_gradients(trained) -> None:
    net, x, _ = trained
    box = interval_bounds(net, x, 0.05)
    same = output_bounds(net, x, 0.05, method="interval")
    torch.testing.assert_close(box.lower.detach(), same.lower)
    assert box.lower.requires_grad
    assert all(p.grad is None for p in net.parameters())


def test_the_gradient_of_the_bounds_is_their_derivative() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    x = torch.rand(4, 3, generator=torch.Generator().manual_seed(0)).double()
    weight = net[0].weight
    (gradient,) = torch.autograd.grad(interval_bounds(net, x, 0.1).upper.sum(), weight)
    step, at = 1e-6, (2, 1)
    with torch.no_grad():
        weight[at] += step
        up = interval_bounds(net, x, 0.1).upper.sum()
        weight[at] -= 2 * step
        down = interval_bounds(net, x, 0.1).upper.sum()
        weight[at] += step
    assert float(gradient[at]) == pytest.approx(float((up - down) / (2 * step)), rel=1e-5)


def test_interval_training_certifies_more() -> None:
    source = torch.Generator().manual_seed(0)
    x = torch.rand(400, 4, generator=source)
    y = (x[:, 0] + 0.5 * x[:, 1] > 0.75).long()
    shares = []
    for robust in (False, True):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = nn.Sequential(
                nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2)
            )
        if robust:
            wrapped = IntervalTraining(net, 0.05, 0.7, box=(0.0, 1.0), warm_up=100)
            fit(wrapped, (x, y), epochs=30, learning_rate=0.01, loss=wrapped.loss)
        else:
            fit(net, (x, y), epochs=30, learning_rate=0.01)
        found = certified_accuracy(net, (x, y), 0.05, method="interval", box=(0.0, 1.0))
        shares.append(found.accuracy)
    assert shares[1].low > shares[0].high


def test_radii_may_be_a_tensor() -> None:
    net = nn.Linear(2, 2, bias=False)
    net.weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    data = torch.tensor([[3.0, 1.0]]), torch.tensor([0])  # the true distance is 1
    assert evaluate(net, data, "2", torch.tensor(0.5)).radii == (0.5,)
    assert evaluate(net, data, "2", torch.tensor([1.5, 0.5])).table()[0][1] == 1.0


class OneNumber(nn.Module):
    """One logit per sample, `[n]`, without an axis of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x).squeeze(1)


def test_one_logit_without_an_axis() -> None:
    torch.manual_seed(0)
    model, x = OneNumber(), torch.randn(40, 3)
    y = (model(x) > 0).long()
    distances = model(x).detach().abs() / model.line.weight.detach().abs().sum()
    rows = evaluate(model, (x, y), "inf", [0.1, 0.4]).table()
    for radius, certified, _, attacked in rows:
        assert certified == attacked == pytest.approx(float((distances > radius).float().mean()))
