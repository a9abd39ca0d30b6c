"""The nearest adversarial input of small networks, exactly, between certificate and attack."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.robustness.bounds.certified import certified_radius
from torchtheory.robustness.evaluation import Evaluation, evaluate
from torchtheory.robustness.exact.distance import MinimalPerturbation, minimal_perturbation
from torchtheory.training.loop.trainer import fit

DUALS = {"inf": 1.0, "2": 2.0, "1": math.inf}


@lab(
    "exact-perturbations",
    room="robustness",
    covers=["M-143", "M-148"],
    title="Certified ≤ true ≤ attacked: the nearest adversarial input, computed exactly",
    full={"samples": 80, "networks": 8, "epochs": 80},
    least={"samples": 6, "epochs": 10},
)
def exact_perturbations(run: Run, samples: int = 12, networks: int = 2, epochs: int = 40) -> None:
    """Exact distances from two unrelated methods, and what certificates and attacks make of them.

    For an affine classifier the distance is that of a plane. For ReLU networks a mixed-integer
    program and a walk through the cells in the order of their distance give the same number. A
    trained classifier of the plane is then certified, solved and attacked over radii: the exact
    curve lies between the other two.

    Args:
        samples: of the trained classifier, whose distances are computed.
        networks: random networks for which both methods run.
        epochs: of training.
    """
    # -- planes
    planes, found, bent = [], [], []
    for _ in range(networks):
        weight, shift = run.randn(3, 4), 0.3 * run.randn(3)
        x = run.randn(4)
        values = weight @ x + shift
        y = int(values.argmax())
        lifted = scores(weight, shift + 50.0)  # no unit bends nearby
        for norm, dual in DUALS.items():
            gaps = [
                float((values[y] - values[j]) / torch.linalg.vector_norm(weight[y] - weight[j], dual))
                for j in range(3)
                if j != y
            ]
            planes.append(min(gaps))
            found.append(minimal_perturbation(lifted, x, y, norm).distance)
            level = values.max() - 0.1 * (values.max() - values.topk(2).values[1])
            bent.append(min(minimal_perturbation(scores(weight, shift - level), x, y, norm, largest=9.0).distance, 9.0))
    says = run.states("M-143", r"\text{affine scores}:\ \min\|\delta\|_p=\min_j(f_y-f_j)/\|w_y-w_j\|_q")
    says.equal(found, planes, 1e-5)
    says.fails("units bend between the sample and the planes", bent)

    # -- two methods
    program: list[float] = []
    cells: list[float] = []
    boxed: list[float] = []
    while len(program) < 2 * networks:
        net = mlp([2, 5, 4, 3], "relu", generator=run.generator).double().requires_grad_(False)
        for layer in net:
            if isinstance(layer, nn.Linear):
                layer.bias.copy_(0.3 * run.randn(*layer.bias.shape))
        x = run.randn(2)
        y = int(net(x[None]).argmax())
        for norm in ("inf", "1"):
            one = minimal_perturbation(net, x, y, norm, method="milp", largest=4.0)
            if one.adversarial is None:
                continue
            program.append(one.distance)
            cells.append(minimal_perturbation(net, x, y, norm, method="cells", largest=4.0).distance)
            boxed.append(beside(net, x, y, norm, one))
    says = run.states("M-143", r"\min\{\|\delta\|:f(x+\delta)\text{ of another class}\}:\ \text{program}=\text{cells}")
    says.equal(program, cells, 1e-5)
    says.fails("inputs on the way to the nearest adversarial one are not valid", boxed)

    # -- the sandwich
    classifier, inputs, labels = trained(run, epochs, samples)
    radii = [0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.45, 0.6]
    sandwich = evaluate(classifier, (inputs, labels), "2", radii, exact=samples)
    certified = [s.estimate for s in sandwich.certified_accuracy]
    true = [s.estimate for s in sandwich.exact_accuracy or []]
    attacked = [s.estimate for s in sandwich.attacked_accuracy]
    run.assumes(true[0] > 0, f"the classifier errs at all of {samples} samples: no accuracy can fall")
    says = run.states("M-148", r"\text{certified accuracy}(r)\le\text{robust accuracy}(r)")
    says.at_most(certified, true)
    says.fails("the ball has six times the radius", certified, promised=[share(sandwich, 6 * r) for r in radii])
    says = run.states("M-148", r"\text{robust accuracy}(r)\le\text{accuracy under attack}(r)")
    says.at_most(true, attacked)
    says.fails("the attack may move six times as far", true, promised=wider(classifier, inputs, labels, radii))
    run.figure(
        "sandwich",
        lambda axes: plot(axes, classifier, inputs, labels, sandwich),
        grid=(1, 2),
        size=(10.0, 4.0),
        caption="Left: samples, their nearest adversarial inputs (lines) and the balls that are certified. Right: "
        "accuracy over the radius, certified, exact and under attack.",
    )


def scores(weight: Tensor, shift: Tensor) -> nn.Sequential:
    """A classifier whose scores are units: max(Wx + b, 0)."""
    eye, zero = torch.eye(len(weight), dtype=torch.float64), torch.zeros(len(weight), dtype=torch.float64)
    return nn.Sequential(dense(weight, shift), nn.ReLU(), dense(eye, zero)).requires_grad_(False)


def beside(net: nn.Module, x: Tensor, y: int, norm: str, found: MinimalPerturbation) -> float:
    """The distance with the nearest adversarial input outside of the box of valid ones."""
    assert found.adversarial is not None
    delta = found.adversarial - x
    low, high = x - 4.0, x + 4.0
    k = int(delta.abs().argmax())
    if delta[k] > 0:
        high[k] = x[k] + 0.5 * delta[k]
    else:
        low[k] = x[k] + 0.5 * delta[k]
    return min(minimal_perturbation(net, x, y, norm, box=(low, high), largest=4.0).distance, 4.0)


def trained(run: Run, epochs: int, samples: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A small classifier of two half moons, and fresh samples."""
    x, y = moons(run, 300)
    net = mlp([2, 8, 8, 2], "relu", generator=run.generator).double()
    fit(net, (x, y), epochs=epochs, learning_rate=0.02, seed=run.seed)
    return (net.requires_grad_(False), *moons(run, samples))


def moons(run: Run, count: int) -> tuple[Tensor, Tensor]:
    angle = math.pi * run.rand(count)
    y = (run.rand(count) < 0.5).long()
    upper = torch.stack([angle.cos(), angle.sin()], 1)
    lower = torch.stack([1 - angle.cos(), 0.35 - angle.sin()], 1)
    return torch.where((y > 0)[:, None], lower, upper) + 0.08 * run.randn(count, 2), y


def share(found: Evaluation, radius: float) -> float:
    """The share of samples whose exact distance is beyond a radius."""
    return float((found.exact > radius).double().mean())


def wider(net: nn.Module, x: Tensor, y: Tensor, radii: list[float]) -> list[float]:
    return [s.estimate for s in evaluate(net, (x, y), "2", [6 * r for r in radii]).attacked_accuracy]


def plot(axes: Any, net: nn.Module, x: Tensor, y: Tensor, sandwich: Evaluation) -> None:
    left, right = axes[0]
    t, s = torch.linspace(-1.5, 2.5, 200).double(), torch.linspace(-1.2, 1.6, 140).double()
    values = net(torch.cartesian_prod(t, s)).argmax(1).reshape(200, 140)
    left.imshow(values.T.numpy(), origin="lower", extent=(-1.5, 2.5, -1.2, 1.6), cmap="Blues", vmax=3, aspect="equal")
    radii = certified_radius(net, x, y, "2")
    for k in range(len(x)):
        found = minimal_perturbation(net, x[k], int(y[k]), "2")
        color = COLORS[1] if y[k] else COLORS[2]
        left.plot(*x[k].tolist(), "o", color=color, markersize=3)
        if found.adversarial is not None and found.distance > 0:
            left.plot(*zip(x[k].tolist(), found.adversarial.tolist(), strict=True), color=color, linewidth=0.8)
            turn = torch.linspace(0, 2 * math.pi, 60)
            r = float(radii[k])
            left.plot(x[k, 0] + r * turn.cos(), x[k, 1] + r * turn.sin(), color=color, linewidth=0.7, alpha=0.7)
    left.set(xlim=(-1.5, 2.5), ylim=(-1.2, 1.6), xlabel="$x_1$", ylabel="$x_2$")
    left.grid(False)
    sandwich.plot(right)
