r"""Adversarial training: gradient descent on the adversarial risk.

$$
\theta\leftarrow\theta-\frac\eta{|B|}\sum_{i\in B}\nabla_\theta\ell(f_\theta(x_i+\delta_i^*),y_i),
\qquad \delta_i^*=\arg\max_{\delta\in\Delta}\ell(f_\theta(x_i+\delta),y_i).
$$

By Danskin's theorem this is the gradient of the maximum where $\delta^*$ is unique. Where several
$\delta$ tie, the maximum has only directional derivatives, the largest of the slopes over the ties;
and an attack that misses the maximum gives the slope at another point. Source: Foundations of Deep
Learning, Eqs. (12.14) and (12.15); TRADES: Zhang et al. 2019.

`fit(model, data, batch_loss=AdversarialTraining(PGD(0.1, 10)))` trains that way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.checks import closed_fraction, nonnegative_number, positive_number
from torchtheory.core.errors import InvalidInput
from torchtheory.models.model import evaluating
from torchtheory.models.problem import Loss
from torchtheory.models.targets import Task
from torchtheory.robustness.adversarial_risk import check_attack, until_fooled
from torchtheory.robustness.attacks.attack import Attack
from torchtheory.robustness.attacks.gradient_steps import PGD
from torchtheory.robustness.attacks.victim import as_scores


@dataclass(frozen=True)
class AdversarialTraining:
    r"""The loss at adversarial inputs, for the `batch_loss` of `fit`.

    The attack runs on the model as it is, in evaluation mode (so that batch statistics and dropout
    do not move with it), and the step in training mode. It goes on after the model errs.

    Attributes:
        attack: on each batch, such as `PGD(0.1, 10)`.
        clean: share of the loss at the inputs as they are.

    >>> from torchtheory.training.loop.trainer import fit
    >>> x = torch.linspace(-1, 1, 40)[:, None]
    >>> net = nn.Linear(1, 1)
    >>> history = fit(net, (x, x[:, 0] > 0), epochs=2,
    ...               batch_loss=AdversarialTraining(PGD(0.1, 3)))
    >>> len(history)
    2
    """

    attack: Attack
    _: KW_ONLY
    clean: float = 0.0

    def __post_init__(self) -> None:
        check_attack(self.attack)
        closed_fraction(self.clean, "clean")
        if self.attack.targeted:
            raise InvalidInput("a model is trained against any wrong class, not a targeted attack")

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, loss: Loss, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        attack = replace(until_fooled(self.attack, False), generator=generator)
        moved = attack(model, x, y, private=False).adversarial
        outputs = model(moved)
        found = loss(outputs, y)
        if self.clean:
            found = (1 - self.clean) * found + self.clean * loss(model(x), y)
        return found, outputs


@dataclass(frozen=True)
class Trades:
    r"""TRADES: the loss at the inputs, and how far the model's law moves near them.

    $\ell(f(x),y)+\beta\max_{\delta\in\Delta}\mathrm{KL}(p(x)\,\|\,p(x+\delta))$ with
    $p=\mathrm{softmax}f$; the maximum by PGD from a point near $x$. For classifiers.

    Attributes:
        attack: a `PGD`, whose loss is replaced.
        weight: $\beta$; larger is more robust and less accurate.
    """

    attack: PGD
    _: KW_ONLY
    weight: float = 6.0

    def __post_init__(self) -> None:
        check_attack(self.attack)
        if not isinstance(self.attack, PGD):
            raise InvalidInput("TRADES replaces the loss of its attack: give a PGD")
        nonnegative_number(self.weight, "weight")

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, loss: Loss, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        calm = _outputs_in_evaluation(model, x)
        task: Task = "binary" if calm[0].numel() == 1 else "multiclass"
        fixed = as_scores(calm, task).log_softmax(1)

        def divergence(scores: Tensor, _: Tensor) -> Tensor:
            return _kl(fixed, scores.log_softmax(1))

        attack = replace(
            self.attack,
            loss=divergence,
            stop_when_fooled=False,
            random_start=True,  # at x itself the divergence has the gradient 0
            chunk=len(x),  # each sample meets its own row of the laws
            generator=generator,
        )
        moved = attack(model, x, y, private=False).adversarial
        outputs = model(x)
        law = as_scores(outputs, task).log_softmax(1)
        near = as_scores(model(moved), task).log_softmax(1)
        return loss(outputs, y) + self.weight * _kl(law, near).mean(), outputs


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """Divergences `[n]` of laws given by logarithms."""
    return F.kl_div(q, p, reduction="none", log_target=True).sum(1)


def _outputs_in_evaluation(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad(), evaluating(model):
        outputs: Tensor = model(x)
    return outputs


@dataclass(frozen=True, slots=True)
class DanskinCheck:
    r"""The slope of a maximum against the slope at its maximizer.

    Attributes:
        difference: of the maximum, $(F(\theta+hv)-F(\theta-hv))/2h$.
        ahead, behind: the one-sided differences; they differ where the maximum has a kink.
        danskin: $\langle\nabla_\theta\ell(\theta,\delta^*),v\rangle$ at the maximizer found.
        ties: whether the one-sided slopes differ by more than a thousandth: the maximizer is not
            unique, and the maximum has no gradient there.
    """

    difference: float
    ahead: float
    behind: float
    danskin: float
    ties: bool


def danskin_check(
    value: Callable[[Tensor, Tensor], Tensor],
    maximizer: Callable[[Tensor], Tensor],
    theta: Tensor,
    direction: Tensor,
    *,
    width: float = 1e-5,
) -> DanskinCheck:
    r"""Compare the slope of $F(\theta)=\max_\delta\ell(\theta,\delta)$ with Danskin's formula.

    Args:
        value: $\ell(\theta,\delta)$, differentiable in $\theta$; a number.
        maximizer: gives $\delta^*(\theta)$, exactly or by an attack.
        theta: parameters $\theta$, in double precision.
        direction: $v$, of the same shape.
        width: $h$.

    Costs three maximizations and one gradient.

    >>> theta = torch.tensor([2.0, -1.0], dtype=torch.float64)
    >>> v = torch.tensor([1.0, 0.0], dtype=torch.float64)
    >>> found = danskin_check(lambda t, d: t @ d, torch.sign, theta, v)      # F = ‖θ‖₁
    >>> round(found.difference, 6), found.danskin, found.ties
    (1.0, 1.0, False)
    """
    positive_number(width, "width")

    def top(at: Tensor) -> float:
        return float(value(at, maximizer(at)))

    center, plus, minus = top(theta), top(theta + width * direction), top(theta - width * direction)
    with torch.enable_grad():
        leaf = theta.detach().clone().requires_grad_(True)
        best = maximizer(theta).detach()
        (gradient,) = torch.autograd.grad(value(leaf, best), leaf)
    ahead, behind = (plus - center) / width, (center - minus) / width
    scale = max(1.0, abs(ahead), abs(behind))
    return DanskinCheck(
        (plus - minus) / (2 * width),
        ahead,
        behind,
        float((gradient * direction).sum()),
        abs(ahead - behind) > 1e-3 * scale,
    )
