"""Training against attacks, and Danskin's theorem."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torchtheory.core.errors import InvalidInput, InvalidType
from torchtheory.core.random import as_generator, gaussian
from torchtheory.data.real import digits, split
from torchtheory.robustness.adversarial_risk import linear_adversarial_risk, robust_accuracy
from torchtheory.robustness.adversarial_training import (
    AdversarialTraining,
    Trades,
    danskin_check,
)
from torchtheory.robustness.attacks.gradient_steps import FGSM, PGD
from torchtheory.training.loop.trainer import fit


def network(seed=0):
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    for p in net.parameters():
        nn.init.normal_(p, std=0.15, generator=as_generator(seed))
    return net


@pytest.mark.parametrize("how", [AdversarialTraining, Trades])
def test_robust_accuracy_rises(how):
    train, test = split(*digits(), 0.5, 0)
    attack = PGD(0.15, 5, box=(0, 1))
    plain, robust = network(), network()
    fit(plain, train, epochs=15, learning_rate=0.005)
    fit(robust, train, epochs=15, learning_rate=0.005, batch_loss=how(attack))
    strong = PGD(0.15, 20, box=(0, 1))
    before, after = (robust_accuracy(net, test, strong) for net in (plain, robust))
    assert after.value.low > before.value.high
    assert after.clean.estimate > 0.8


def test_linear_training_minimizes_the_exact_adversarial_risk():
    """FGSM is exact for a linear model: training with it descends y w·x - eps |w|_1."""
    g = as_generator(0)
    x = gaussian(200, 3, generator=g, dtype=torch.float64)
    y = torch.where(x[:, 0] + 0.5 * gaussian(200, generator=g, dtype=torch.float64) > 0, 1, -1)
    net = nn.Linear(3, 1, dtype=torch.float64)
    for p in net.parameters():
        nn.init.zeros_(p)
    # a start at 0 has no worst perturbation: anything else has
    nn.init.constant_(net.weight, 0.1)
    fit(net, (x, y), epochs=400, batch_size=200, optimizer="sgd", learning_rate=0.5,
        batch_loss=AdversarialTraining(FGSM(0.2)))  # fmt: skip

    w = torch.full((3,), 0.1, dtype=torch.float64, requires_grad=True)
    b = torch.zeros((), dtype=torch.float64, requires_grad=True)
    for _ in range(400):
        margins = y * (x @ w + b) - 0.2 * w.abs().sum()
        loss = nn.functional.softplus(-margins).mean()
        gw, gb = torch.autograd.grad(loss, (w, b))
        with torch.no_grad():
            w -= 0.5 * gw
            b -= 0.5 * gb
    torch.testing.assert_close(net.weight.detach()[0], w.detach(), rtol=1e-9, atol=1e-9)
    risk = linear_adversarial_risk(w.detach(), x, y, 0.2, bias=b.detach())
    plain = nn.Linear(3, 1, dtype=torch.float64)
    fit(plain, (x, y), epochs=400, batch_size=200, optimizer="sgd", learning_rate=0.5)
    other = linear_adversarial_risk(plain.weight.detach()[0], x, y, 0.2, bias=plain.bias.detach())
    assert risk < other


def test_attacks_leave_batch_statistics_and_modes_to_the_step():
    net = nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
    x, y = digits()
    fit(net, (x[:128], y[:128]), epochs=1, batch_size=64,
        batch_loss=AdversarialTraining(PGD(0.1, 7), clean=0.0))  # fmt: skip
    assert int(net[1].num_batches_tracked) == 2
    assert all(p.requires_grad for p in net.parameters())


def test_resumed_training_ends_where_one_run_does(tmp_path):
    x, y = digits()
    data = (x[:200], y[:200])
    how = AdversarialTraining(PGD(0.1, 3, box=(0, 1)))
    once, parts = network(), network()
    fit(once, data, epochs=4, batch_loss=how)
    fit(parts, data, epochs=2, batch_loss=how, checkpoint=tmp_path / "state")
    fit(parts, data, epochs=4, batch_loss=how, checkpoint=tmp_path / "state")
    assert torch.equal(once[0].weight, parts[0].weight)


def test_danskin_and_its_limit():
    """F(w) = max over |d|_inf <= e of the logistic loss; at w_1 = 0 two maximizers tie."""
    x, y, eps = torch.tensor([0.4, -0.3], dtype=torch.float64), 1.0, 0.2

    def value(w, d):
        return nn.functional.softplus(-y * (w @ (x + d)))

    def worst(w):
        return -eps * y * torch.where(w >= 0, 1.0, -1.0).double()

    v = torch.tensor([1.0, 0.0], dtype=torch.float64)
    smooth = danskin_check(value, worst, torch.tensor([0.7, -0.2], dtype=torch.float64), v)
    assert smooth.danskin == pytest.approx(smooth.difference, abs=1e-8)
    assert not smooth.ties
    kink = danskin_check(value, worst, torch.tensor([0.0, -0.2], dtype=torch.float64), v)
    assert kink.ties
    assert kink.danskin == pytest.approx(kink.ahead, abs=1e-4)  # the largest of the slopes
    assert abs(kink.danskin - kink.difference) > 0.05


def test_refused():
    with pytest.raises(InvalidType):
        AdversarialTraining("pgd")
    with pytest.raises(InvalidInput, match="targeted"):
        AdversarialTraining(PGD(0.1, targeted=True))
    with pytest.raises(InvalidInput, match="give a PGD"):
        Trades(FGSM(0.1))
    with pytest.raises(InvalidInput, match="weight"):
        Trades(PGD(0.1), weight=-1)


def test_the_loss_of_trades_is_the_loss_and_the_weighted_divergence() -> None:
    net = nn.Linear(2, 2).double()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.0, -2.0], [0.5, 1.0]]))
        net.bias.zero_()
    x, y = torch.tensor([[0.3, 0.2]], dtype=torch.float64), torch.tensor([0])
    law = net(x).softmax(1)
    # two classes: the divergence is largest where the difference of logits moves furthest
    corners = x + 0.1 * torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.float64)
    moved = net(corners).log_softmax(1)
    largest = float((law * (law.log() - moved)).sum(1).max())
    clean = float(F.cross_entropy(net(x), y))
    for weight in (1.0, 6.0):
        source = torch.Generator().manual_seed(0)
        how = Trades(PGD(0.1, 60, restarts=3), weight=weight)
        value, _ = how(net, x, y, F.cross_entropy, source)
        assert float(value) == pytest.approx(clean + weight * largest, rel=1e-6)
    assert Trades(PGD(0.1)).weight == 6.0
