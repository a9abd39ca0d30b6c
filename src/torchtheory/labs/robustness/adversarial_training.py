"""Training against attacks: Danskin's gradient, and what it buys."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.data.real import digits, split
from torchtheory.labs.engine import Run, lab, mean_interval
from torchtheory.models.problem import Loss
from torchtheory.robustness.adversarial_risk import (
    linear_adversarial_risk,
    linear_perturbation,
    robust_accuracy,
)
from torchtheory.robustness.adversarial_training import AdversarialTraining, Trades, danskin_check
from torchtheory.robustness.attacks.gradient_steps import FGSM, PGD
from torchtheory.training.loop.state import BatchLoss
from torchtheory.training.loop.trainer import fit


@lab(
    "adversarial-training",
    room="robustness",
    covers=["M-159", "M-160"],
    title="The gradient at the worst perturbation is the gradient of the worst loss",
    full={"epochs": 40, "samples": 900, "steps": 10},
    least={"epochs": 6, "samples": 250, "radius": 0.096},
    most={"radius": 0.24},
)
def adversarial_training(
    run: Run, epochs: int = 15, samples: int = 500, steps: int = 4, radius: float = 0.12, cases: int = 20
) -> None:
    """Danskin's theorem on linear models, where the worst perturbation is known, and on digits.

    The slope of the adversarial risk along random directions is compared with the gradient at the
    worst perturbation. Where a weight is 0 two perturbations tie, and the slope from the left and
    from the right are not the same. Then a linear model is trained with FGSM, which is exact for
    it, and ends where descent on the closed form does; and networks for digits are trained on
    plain, on noisy and on attacked inputs.

    Args:
        epochs: of a training on digits.
        samples: digits that are trained on.
        steps: of the attack in training.
        radius: of the perturbations.
        cases: linear models and directions.
    """
    d, n, eps = 6, 40, 0.3
    x, y = run.randn(n, d), run.signs(n)

    def value(w: Tensor, delta: Tensor) -> Tensor:
        return F.softplus(-y * ((x + delta) @ w)).mean()

    def worst(w: Tensor) -> Tensor:
        # where w is 0 every perturbation is as bad: take the positive one
        return linear_perturbation(torch.where(w == 0, 1e-300, w), y, eps)

    smooth, tied = [], []
    for _ in range(cases):
        w, v = run.randn(d), run.randn(d)
        smooth.append(danskin_check(value, worst, w, v))
        w[0], v[0] = 0.0, v[0].sign() * (1 + v[0].abs())
        tied.append(danskin_check(value, worst, w, v))
    says = run.states(
        "M-160",
        r"\delta^*\text{ unique: }\max_\delta\ell\text{ has the slope }\langle\nabla_w\ell(w,\delta^*),v\rangle",
    )
    says.equal([c.difference - c.danskin for c in smooth], 0.0, 1e-6)
    says.fails("a weight is 0, so that two maximizers tie", [c.difference - c.danskin for c in tied])
    says = run.states("M-160", r"\ldots\text{ and then the slopes from both sides agree: left minus right}")
    says.equal([c.ahead - c.behind for c in smooth], 0.0, 1e-3)
    says.fails("a weight is 0", [c.ahead - c.behind for c in tied])
    jump = [c.ahead - c.behind for c in tied]
    says = run.states("M-160", r"\text{at a tie the slope from the right is the larger one, by convexity}")
    says.above(jump, 0.0)
    says.fails("no tie", [round(c.ahead - c.behind, 3) for c in smooth])

    # -- a linear model
    start = run.randn(d) / 10
    risks = {}
    for name, attack in (("FGSM", FGSM(eps)), ("random start, one short step", PGD(eps, 1, step=eps / 4))):
        net = nn.Linear(d, 1, bias=False, dtype=torch.float64)
        with torch.no_grad():
            net.weight.copy_(start[None])
        fit(net, (x, y), epochs=60, batch_size=n, optimizer="sgd", learning_rate=0.2,
            batch_loss=AdversarialTraining(attack), seed=run.seed)  # fmt: skip
        risks[name] = net.weight.detach()[0]
    w = start.clone()
    for _ in range(60):
        leaf = w.requires_grad_(True)
        (g,) = torch.autograd.grad(F.softplus(-(y * (x @ leaf) - eps * leaf.abs().sum())).mean(), leaf)
        w = (leaf - 0.2 * g).detach()
    says = run.states(
        "M-160",
        r"w\leftarrow w-\tfrac\eta{|B|}\sum\nabla_w\ell(f(x+\delta^*),y)\text{ is descent on the adversarial risk}",
    )
    says.equal(risks["FGSM"], w, 1e-8)
    says.fails("perturbations that are not the worst", risks["random start, one short step"])
    plain = nn.Linear(d, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        plain.weight.copy_(start[None])
    fit(plain, (x, y), epochs=60, batch_size=n, optimizer="sgd", learning_rate=0.2, seed=run.seed)
    says = run.states("M-159", r"\text{adversarial risk after adversarial training / after plain training}<1")
    usual = linear_adversarial_risk(plain.weight.detach()[0], x, y, eps)
    says.below(linear_adversarial_risk(risks["FGSM"], x, y, eps) / usual, 1.0)
    says.fails("radius 0", linear_adversarial_risk(plain.weight.detach()[0], x, y, eps) / usual)

    # -- digits
    run.assumes(
        epochs * samples >= 3000,
        f"{epochs} epochs of {samples} digits are {epochs * samples // 50} steps: a network that meets the worst "
        "perturbations has learned too little after fewer than 60 of them",
    )
    train, test = split(*digits(torch.float64), 0.4, run.generator)
    train, test = (train[0][:samples], train[1][:samples]), (test[0][:300], test[1][:300])
    initial = network(run)
    in_training = PGD(radius, steps, box=(0, 1))
    trainings: dict[str, BatchLoss | None] = {
        "plain": None,
        "noise": noisy(radius),
        "PGD": AdversarialTraining(in_training),
        "TRADES": Trades(in_training, weight=3.0),
    }
    radii = [0.03, 0.06, radius, 0.18]
    curves: dict[str, list[float]] = {}
    stays: dict[str, Tensor] = {}
    for name, how in trainings.items():
        reader = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10)).double()
        reader.load_state_dict(initial)
        fit(reader, train, epochs=epochs, batch_size=50, learning_rate=0.005, batch_loss=how, seed=run.seed)
        found = {r: robust_accuracy(reader, test, PGD(r, 15, box=(0, 1))) for r in radii}
        curves[name] = [found[radius].clean.estimate, *(float(f) for f in found.values())]
        stays[name] = (~found[radius].result.success).double()
    gains = {name: mean_interval(stays[name] - stays["noise"], 0.999).low for name in ("plain", "PGD", "TRADES")}
    says = run.states(
        "M-160",
        r"\text{robust accuracy, trained at the worst }\delta\text{ minus trained at random ones of that size}>0",
    )
    says.above([gains["PGD"], gains["TRADES"]], 0.0, where="lower ends of 99.9% intervals over the test digits")
    says.fails("trained on the digits as they are, δ = 0", gains["plain"])
    run.table(
        "accuracies",
        ["training", "clean", *(f"radius {r:g}" for r in radii)],
        [(name, *values) for name, values in curves.items()],
        caption="Accuracy on test digits under PGD with 15 steps",
    )
    run.curves(
        "digits",
        [0.0, *radii],
        curves,
        axes=("radius in L∞", "accuracy left by PGD"),
        at={"radius in training": radius},
        ylim=(0, 1.02),
        caption="Robust accuracy of networks for digits, by how they were trained.",
    )


def network(run: Run) -> dict[str, Tensor]:
    """Initial weights."""
    net = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10)).double()
    for p in net.parameters():
        nn.init.normal_(p, std=0.12, generator=run.generator)
    return net.state_dict()


def noisy(radius: float) -> BatchLoss:
    """The loss at inputs with random signs of a size added."""

    def batch_loss(
        model: nn.Module, x: Tensor, y: Tensor, loss: Loss, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        signs = torch.randint(0, 2, x.shape, generator=generator).to(x) * 2 - 1
        outputs = model((x + radius * signs).clamp(0, 1))
        return loss(outputs, y), outputs

    return batch_loss
