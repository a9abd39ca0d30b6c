"""Attacks on a network for digits: what one step finds, and what many do."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.data.real import digits, split
from torchtheory.labs.engine import Run, clopper_pearson, lab
from torchtheory.robustness.adversarial_risk import robust_accuracy
from torchtheory.robustness.attacks.adaptive import APGD
from torchtheory.robustness.attacks.attack import Attack
from torchtheory.robustness.attacks.goals import cross_entropy
from torchtheory.robustness.attacks.gradient_steps import FGSM, PGD
from torchtheory.robustness.attacks.square import Square
from torchtheory.training.loop.trainer import fit

#: Pixels of the digits are 0, 1/16, ..., 1: the smallest step of their encoding.
SMALLEST_STEP = 1 / 16


@lab(
    "adversarial-digits",
    room="robustness",
    covers=["M-142", "M-144", "M-145", "M-147"],
    title="A change of every pixel by the smallest step of its encoding changes what the network reads",
    full={"epochs": 60, "attacked": 500, "steps": 40},
    least={"attacked": 100, "steps": 6},
)
def adversarial_digits(run: Run, epochs: int = 15, attacked: int = 150, steps: int = 12) -> None:
    """A network is trained on digits, then its test digits are moved along the sign of the gradient.

    One step of ε times the sign solves the linearized problem: its gain is ε times the L1 norm of
    the gradient. Projected ascent keeps to the ball and finds more. With ε = 1/16, one grey level,
    many digits are misread, while random signs of the same size change almost nothing.

    Args:
        epochs: of the training.
        attacked: test digits.
        steps: of projected ascent.
    """
    logits = 5 * run.randn(40, 7)
    labels = torch.randint(7, (40,), generator=run.generator)
    ones = F.one_hot(labels, 7).double()
    says = run.states("M-142", r"\ell=\log\sum_je^{f_j}-f_y:\ \nabla_f\ell=\mathrm{softmax}(f)-e_y")
    says.equal(slope(lambda z: cross_entropy(z, labels), logits), logits.softmax(1) - ones, 1e-9)
    says.fails("probabilities are given for logits", slope(lambda z: cross_entropy(z.softmax(1), labels), logits))
    large = torch.tensor([[1e4, 0.0], [0.0, 1e4], [-1e4, -1e4]], dtype=torch.float64)
    says = run.states("M-142", r"f=(10^4,0),(0,10^4),(-10^4,-10^4):\ \ell=0,10^4,\log2")
    says.equal(cross_entropy(large, torch.zeros(3, dtype=torch.long)), [0.0, 1e4, math.log(2)], 1e-9)
    says.fails("the exponentials are added as they are", large.exp().sum(1).log() - large[:, 0])

    net, (x, y) = trained(run, epochs, attacked)
    with torch.no_grad():
        right = net(x).argmax(1) == y
    x, y = x[right], y[right]
    eps = SMALLEST_STEP
    gradients = slope(lambda v: cross_entropy(net(v), y), x)
    moved = FGSM(eps)(net, x, y)
    gain = (gradients * (moved.adversarial - x)).sum(1)
    says = run.states(
        "M-145",
        r"\delta=\varepsilon\,\mathrm{sign}(g):\ \langle g,\delta\rangle=\varepsilon\|g\|_1,\ "
        r"\text{the most for }\|\delta\|_\infty\le\varepsilon",
    )
    unit = gradients.abs().sum(1)
    says.equal(gain / unit, eps, 1e-9)
    from_random = PGD(eps, 1, step=eps, stop_when_fooled=False, generator=run.generator)(net, x, y).adversarial
    says.fails("the step starts at a random point of the ball, not at 0", (gradients * (from_random - x)).sum(1) / unit)

    g = gradients[:1, gradients[0] != 0]
    plane = nn.Linear(g.shape[1], 1, bias=False, dtype=g.dtype)  # a loss with this gradient everywhere
    with torch.no_grad():
        plane.weight.copy_(g)
    how: dict[str, Any] = {"random_start": False, "ascent": "gradient", "stop_when_fooled": False, "loss": "margin"}
    origin, enough = torch.zeros_like(g), eps / float(g.abs().min())

    def clipped(share: float) -> Tensor:
        return PGD(eps, 1, step=share * enough, **how)(plane, origin, torch.tensor([0])).adversarial

    weakest = g.abs().argmin()
    says = run.states(
        ["M-144", "M-145"],
        r"\eta=\varepsilon/\min_i|g_i|:\ \mathrm{clip}(\eta g,-\varepsilon,\varepsilon)=\varepsilon\,\mathrm{sign}(g)",
    )
    says.equal(torch.cat([clipped(k) for k in (1.0, 3.0, 100.0)]), (eps * g.sign()).expand(3, -1), 1e-9)
    says = run.states(["M-144", "M-145"], r"\ldots\text{ also in the entry where }|g_i|\text{ is smallest}")
    says.equal(clipped(1.0)[0, weakest].abs(), eps, 1e-9)
    says.fails("half of that step", clipped(0.5)[0, weakest].abs())

    ascent = PGD(eps, steps, stop_when_fooled=False, generator=run.generator)
    says = run.states("M-144", r"\|\delta\|_\infty\le\varepsilon")
    says.at_most(ascent(net, x, y).norms, eps, 1e-9)
    free = x.clone()
    for _ in range(steps):
        free = free + 2.5 * eps / steps * slope(lambda v: cross_entropy(net(v), y), free).sign()
    says.fails("the same steps without the projection", (free - x).abs().amax(1))
    small, wild = (path(net, x, y, eps, steps, length) for length in (eps / steps, 40 * eps))
    says = run.states("M-144", r"\text{small }\eta:\ \text{the loss grows at every step}")
    says.above(min(b - a for a, b in pairwise(small)), 0.0)
    says.fails("steps of 40 times the radius, from corner to corner", min(b - a for a, b in pairwise(wild)))
    one_step = float(moved.losses.mean())
    says = run.states(
        "M-144",
        r"\text{gradients at the present }\delta_k:\ \text{loss after }k\text{ steps} / \text{loss of one step}>1",
    )
    says.above(float(ascent(net, x, y).losses.mean() / one_step), 1.0)
    says.fails(
        "all steps along the gradient at 0",
        float(cross_entropy(net(x + eps * gradients.sign()), y).mean().detach()) / one_step,
    )

    fooled = moved.success
    says = run.states(
        "M-147", r"x+\varepsilon\,\mathrm{sign}(g),\ \varepsilon=\tfrac1{16}:\ \text{share of digits misread}>0.1"
    )
    says.above(
        clopper_pearson(int(fooled.sum()), len(fooled), 0.999).low, 0.1, where="the lower end of a 99.9% interval"
    )
    signs = run.signs(*x.shape)
    with torch.no_grad():
        by_chance = net(x + eps * signs).argmax(1) != y
    says.fails("random signs of the same size", clopper_pearson(int(by_chance.sum()), len(fooled), 0.999).low)
    says = run.states("M-147", r"\|\delta\|_\infty=\varepsilon\ \text{(the sign itself has norm 1)}")
    says.equal(moved.norms, eps, 1e-9)
    says.fails("the perturbation is the sign of the gradient, as a caption has it", gradients.sign().abs().amax(1))

    radii = [0.01, 0.03, 0.0625, 0.1]
    attacks: dict[str, Any] = {
        "random signs": None,
        "FGSM": lambda r: FGSM(r, box=(0, 1)),
        "Square, 100 queries": lambda r: Square(r, 100, box=(0, 1)),
        "PGD": lambda r: PGD(r, steps, box=(0, 1)),
        "APGD": lambda r: APGD(r, steps, box=(0, 1)),
    }
    shares = {}
    for name, make in attacks.items():
        if make is None:
            with torch.no_grad():
                shares[name] = [float((net((x + r * signs).clamp(0, 1)).argmax(1) == y).double().mean()) for r in radii]
        else:
            shares[name] = [left(net, x, y, make(r)) for r in radii]
    run.curves(
        "radii",
        radii,
        shares,
        axes=("radius in L∞", "accuracy left"),
        at={"one grey level": eps},
        ylim=(0, 1.02),
        caption="What is left of the accuracy on digits that the network reads rightly, by attack.",
    )
    run.curves(
        "steps",
        range(len(small)),
        {f"steps of ε/{steps}": small, f"steps of 2.5 ε/{steps}": path(net, x, y, eps, steps, 2.5 * eps / steps)},
        {"one step of ε": one_step},
        axes=("step k", "mean cross-entropy"),
        caption="The loss along projected ascent from the digits themselves.",
    )
    shown = (moved.success & PGD(eps, steps)(net, x, y).success).nonzero().flatten()[:5]
    with torch.no_grad():
        read = net(moved.adversarial).argmax(1)
    run.figure(
        "digits",
        lambda axes: draw_digits(axes, x[shown], moved.adversarial[shown], y[shown], read[shown]),
        caption="Digits, the perturbation (one grey level up or down in every pixel, shown ten times as strong), "
        "and what the network reads then.",
        grid=(3, max(1, len(shown))),
        size=(8, 5),
    )


def trained(run: Run, epochs: int, attacked: int) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A network for digits in double precision, and test digits."""
    train, (x, y) = split(*digits(torch.float64), 0.4, run.generator)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).double()
    for p in net.parameters():
        nn.init.normal_(p, std=0.12, generator=run.generator)
    fit(net, train, epochs=epochs, batch_size=64, learning_rate=0.005, seed=run.seed)
    return net, (x[:attacked], y[:attacked])


def slope(loss: Any, x: Tensor) -> Tensor:
    """Gradients of a sum of losses, one row each."""
    leaf = x.detach().clone().requires_grad_(True)
    (found,) = torch.autograd.grad(loss(leaf).sum(), leaf)
    return found.detach()


def path(net: nn.Module, x: Tensor, y: Tensor, eps: float, steps: int, length: float) -> list[float]:
    """Mean losses after 0, 1, ... steps of ascent from the samples."""
    seen: list[float] = []

    def watched(scores: Tensor, labels: Tensor) -> Tensor:
        values = cross_entropy(scores, labels)
        seen.append(float(values.detach().mean()))
        return values

    PGD(eps, steps, step=length, random_start=False, stop_when_fooled=False, loss=watched)(net, x, y)
    return seen[1:]  # the first is that of the samples, before the ascent


def left(net: nn.Module, x: Tensor, y: Tensor, attack: Attack) -> float:
    return float(robust_accuracy(net, (x, y), attack))


def draw_digits(axes: Any, x: Tensor, moved: Tensor, y: Tensor, read: Tensor) -> None:
    for k in range(len(x)):
        for row, image, title in (
            (0, x[k], f"a {int(y[k])}"),
            (1, 10 * (moved[k] - x[k]), ""),
            (2, moved[k], f"read as {int(read[k])}"),
        ):
            ax = axes[row][k]
            ax.imshow(
                image.reshape(8, 8), cmap="coolwarm" if row == 1 else "gray_r", vmin=-1 if row == 1 else 0, vmax=1
            )
            ax.set(xticks=[], yticks=[], title=title)
            ax.grid(False)
