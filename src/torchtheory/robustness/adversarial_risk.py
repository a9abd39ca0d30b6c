r"""Risk under attack: $R_{adv}(f)=\mathbb E\max_{\delta\in\Delta}\ell(f(x+\delta),y)$.

An attack finds less than the maximum, so the mean over samples that it gives is a lower bound of
the empirical adversarial risk, and the accuracy that it leaves an upper bound of the robust one.
Where the model is linear the maximum has a closed form: with the dual exponent $q$ of the norm,

$$
\min_{\|\delta\|\le\varepsilon}y\,(w^\top(x+\delta)+b)=y\,(w^\top x+b)-\varepsilon\|w\|_q .
$$

Source: Foundations of Deep Learning, section 12.4, Eqs. (12.9) to (12.13).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.checks import (
    as_matrix,
    as_vector,
    labeled_samples,
    nonnegative_number,
    positive_number,
)
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.core.intervals import Interval, clopper_pearson, mean_interval
from torchtheory.models.samples import Data, collect
from torchtheory.robustness.attacks.attack import Attack, AttackResult
from torchtheory.robustness.attacks.balls import as_norm, dual_lengths, lengths, nearest_on_plane
from torchtheory.robustness.bounds.output_bounds import check_labels


@dataclass(frozen=True, slots=True)
class RobustAccuracy:
    """The share of samples that stay right under an attack.

    Attributes:
        value: the share with its interval; an upper bound of the robust accuracy, as another
            attack may fool more.
        clean: the same without an attack.
        result: of the attack.
    """

    value: Interval
    clean: Interval
    result: AttackResult

    def __float__(self) -> float:
        return self.value.estimate


def robust_accuracy(
    model: nn.Module, data: Data, attack: Attack, *, confidence: float = 0.95
) -> RobustAccuracy:
    """Accuracy under an attack, with Clopper and Pearson's interval.

    Samples on which the model errs from the start are not attacked; fooled ones leave.

    Args:
        model: a classifier; it is not changed.
        data: `(x, y)`, a `Dataset` or a `DataLoader`.
        attack: not a targeted one.
        confidence: of the interval, which is about other samples of the same kind.

    >>> from torchtheory.robustness.attacks.gradient_steps import PGD
    >>> net = nn.Linear(2, 2, bias=False)
    >>> _ = net.weight.data.copy_(torch.eye(2))
    >>> data = (torch.tensor([[1.0, 0.4], [2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0, 0]))
    >>> found = robust_accuracy(net, data, PGD(0.31))
    >>> round(found.clean.estimate, 3), round(float(found), 3)
    (0.667, 0.333)
    """
    check_attack(attack)
    if attack.targeted:
        raise InvalidInput("robust accuracy is about any wrong class: give an untargeted attack")
    samples = collect(data, "attacked", limit=sys.maxsize)
    result = until_fooled(attack, True)(model, samples.x, samples.y)
    n = len(result)
    left, right = n - int(result.success.sum()), n - int(result.success_before.sum())
    return RobustAccuracy(
        clopper_pearson(left, n, confidence), clopper_pearson(right, n, confidence), result
    )


@dataclass(frozen=True, slots=True)
class AdversarialRisk:
    """The mean of the losses that an attack reaches.

    Attributes:
        value: the mean with Student's interval. A lower bound of the adversarial risk of these
            samples, as the attack may miss the maximum.
        clean: the same without an attack, the empirical risk.
        result: of the attack; its `losses` are those of the single samples.
    """

    value: Interval
    clean: Interval
    result: AttackResult

    def __float__(self) -> float:
        return self.value.estimate


def adversarial_risk(
    model: nn.Module, data: Data, attack: Attack, *, confidence: float = 0.95
) -> AdversarialRisk:
    r"""A lower bound of $\frac1n\sum_i\max_\delta\ell(f(x_i+\delta),y_i)$, by an attack.

    The attack goes on after the model errs, and its loss is what is averaged. It is never below
    the risk without an attack, except for FGSM, which gives what its one step leads to.

    Args:
        model: of any task; it is not changed.
        data: `(x, y)`, a `Dataset` or a `DataLoader`.
        attack: one that makes a loss large (FGSM, PGD, APGD, Square).
        confidence: of the interval.

    >>> from torchtheory.robustness.attacks.gradient_steps import PGD
    >>> net = nn.Linear(2, 1, bias=False)
    >>> _ = net.weight.data.copy_(torch.tensor([[1.0, -2.0]]))
    >>> x, y = torch.tensor([[1.0, 0.0], [0.5, 0.0]]), torch.tensor([1, 0])
    >>> found = adversarial_risk(net, (x, y), PGD(0.1))
    >>> margins = torch.tensor([1.0, -0.5]) - 0.1 * 3                # y w·x - ε‖w‖₁
    >>> abs(float(found) - float(F.softplus(-margins).mean())) < 1e-6
    True
    """
    check_attack(attack)
    samples = collect(data, "attacked", limit=sys.maxsize)
    result = until_fooled(attack, False)(model, samples.x, samples.y)
    losses, clean = result.losses.double(), result.clean_losses.double()
    if len(losses) < 2:
        raise InvalidInput("a risk with an interval needs at least two samples")
    return AdversarialRisk(
        mean_interval(losses, confidence), mean_interval(clean, confidence), result
    )


# ------------------------------------------------------------------------------- linear models


def linear_adversarial_margins(
    w: Tensor,
    x: Tensor,
    y: Tensor,
    radius: float,
    norm: str | float = "inf",
    *,
    bias: float | Tensor = 0.0,
) -> Tensor:
    r"""The smallest margins `[n]` of a linear classifier in a ball, exactly.

    $y(w^\top x+b)-\varepsilon\|w\|_q$ for two classes, and
    $\min_{c\ne y}\,(w_y-w_c)^\top x+b_y-b_c-\varepsilon\|w_y-w_c\|_q$ for several. The sample is
    robust where it is positive.

    Args:
        w: `[d]` for two classes, or `[K, d]`.
        x: samples `[n, d]`.
        y: -1 or 1 for two classes, class numbers for several, `[n]`.
        radius: $\varepsilon\ge0$.
        norm: of the ball.
        bias: a number, or `[K]`.

    >>> w, x = torch.tensor([1.0, -2.0]), torch.tensor([[1.0, 0.0]])
    >>> linear_adversarial_margins(w, x, torch.tensor([1]), 0.1)     # 1 - 0.1 (1 + 2)
    tensor([0.7000])
    """
    nonnegative_number(radius, "radius")
    kind = as_norm(norm)
    if w.ndim == 1:
        points, labels = labeled_samples(x, y)
        w = as_vector(w, "w", size=points.shape[1])
        return labels * (points @ w + bias) - radius * dual_lengths(w[None], kind)
    w = as_matrix(w, "w")
    if w.shape[1] != x.shape[1]:
        raise ShapeMismatch(f"w is {list(w.shape)} and x {list(x.shape)}: they need the same d")
    check_labels(y, len(w))
    scores = x @ w.T + bias
    apart = (w[:, None] - w[None]).flatten(0, 1)
    size = dual_lengths(apart, kind).reshape(len(w), len(w))
    gaps = scores.gather(1, y[:, None]) - scores - radius * size[y]
    return gaps.scatter(1, y[:, None], math.inf).amin(1)


def linear_adversarial_risk(
    w: Tensor,
    x: Tensor,
    y: Tensor,
    radius: float,
    norm: str | float = "inf",
    *,
    bias: float | Tensor = 0.0,
    loss: Callable[[Tensor], Tensor] | None = None,
) -> float:
    r"""The empirical adversarial risk of a linear classifier with two classes, exactly.

    The mean of $\ell(y(w^\top x+b)-\varepsilon\|w\|_q)$, for a loss that falls with the margin.

    Args:
        w: `[d]`.
        x: samples `[n, d]`.
        y: -1 or 1, `[n]`.
        radius: $\varepsilon\ge0$.
        norm: of the ball.
        bias: a number.
        loss: of margins; the logistic one, $\log(1+e^{-m})$, unless given.

    >>> w, x, y = torch.tensor([1.0, -2.0]), torch.tensor([[1.0, 0.0]]), torch.tensor([1])
    >>> round(linear_adversarial_risk(w, x, y, 0.1), 4)              # log(1 + exp(-0.7))
    0.4032
    """
    if w.ndim != 1:
        raise ShapeMismatch(f"w must be [d], one linear function for two classes: {list(w.shape)}")
    margins = linear_adversarial_margins(w, x, y, radius, norm, bias=bias)
    values = F.softplus(-margins) if loss is None else loss(margins)
    return float(values.mean())


def linear_perturbation(w: Tensor, y: Tensor, radius: float, norm: str | float = "inf") -> Tensor:
    r"""$\delta=-\varepsilon\,y\,\arg\max_{\|v\|\le1}w^\top v$ `[n, d]`: the worst one, exactly.

    $-\varepsilon y\,\mathrm{sign}(w)$ in $L^\infty$; it does not depend on $x$.

    >>> linear_perturbation(torch.tensor([1.0, -2.0]), torch.tensor([1.0]), 0.1)
    tensor([[-0.1000,  0.1000]])
    """
    positive_number(radius, "radius")
    kind = as_norm(norm)
    w = as_vector(w, "w")
    slopes = -y.to(w)[:, None] * w
    return nearest_on_plane(slopes, radius * dual_lengths(slopes, kind), kind)


@dataclass(frozen=True, slots=True)
class LinearFlip:
    r"""A step along the gradient of a linear function that turns its value to the negative.

    Attributes:
        moved: $x-\frac{2}{\|w\|^2}f(x)\,w$, `[n, d]`.
        before, after: $f(x)$ and $f$ there, `[n]`.
        lengths: $2|f(x)|/\|w\|$ `[n]`; half of it reaches the boundary.
    """

    moved: Tensor
    before: Tensor
    after: Tensor
    lengths: Tensor


def linear_flip(
    w: Tensor, x: Tensor, *, bias: float = 0.0, rate: float | None = None
) -> LinearFlip:
    r"""The step $x_+=x-\eta f(x)\nabla f$ of a linear function $f(x)=w^\top x+b$.

    $f(x_+)=f(x)(1-\eta\|w\|^2)$: with $\eta=2/\|w\|^2$ the value becomes $-f(x)$, at the distance
    $2|f(x)|/\|w\|$. For $w\sim\mathcal N(0,I_d)$ and $\|x\|=\sqrt d$ that is about
    $2|\mathcal N(0,1)|$, whatever $d$: small beside $\|x\|$ (Foundations of Deep Learning,
    Eq. 12.9).

    Args:
        w: `[d]`.
        x: points `[n, d]`.
        bias: $b$.
        rate: $\eta$; $2/\|w\|^2$ unless given.

    >>> flip = linear_flip(torch.tensor([3.0, 4.0]), torch.tensor([[1.0, 1.0]]))
    >>> flip.before, flip.after.round(decimals=4), flip.lengths        # 2 · 7 / 5
    (tensor([7.]), tensor([-7.]), tensor([2.8000]))
    """
    x = as_matrix(x, "x")
    w = as_vector(w, "w", size=x.shape[1])
    square = float(w @ w)
    if square == 0:
        raise InvalidInput("w is 0: a constant function has no sign to flip")
    eta = 2 / square if rate is None else rate
    before = x @ w + bias
    moved = x - eta * before[:, None] * w
    return LinearFlip(moved, before, moved @ w + bias, lengths(moved - x, "2"))


def gaussian_adversarial_error(
    w: Tensor,
    mean: Tensor,
    covariance: Tensor | float,
    radius: float,
    norm: str | float = "inf",
    *,
    bias: float = 0.0,
) -> float:
    r"""The true adversarial error of $\mathrm{sign}(w^\top x+b)$ on two Gaussian classes, exactly.

    $x=y\mu+\Sigma^{1/2}z$ with $y=\pm1$ equally often. With $s=\sqrt{w^\top\Sigma w}$ and $\Phi$ of
    the normal distribution it is

    $$
    \tfrac12\Phi\Bigl(\frac{\varepsilon\|w\|_q-w^\top\mu-b}{s}\Bigr)
    +\tfrac12\Phi\Bigl(\frac{\varepsilon\|w\|_q-w^\top\mu+b}{s}\Bigr).
    $$

    Args:
        w: `[d]`.
        mean: $\mu$ `[d]` of the class $+1$; that of $-1$ is $-\mu$.
        covariance: $\Sigma$ `[d, d]`, or a variance for all coordinates.
        radius: $\varepsilon\ge0$; 0 gives the error without an attack.
        norm: of the ball.
        bias: $b$.

    >>> w, mean = torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0])
    >>> round(gaussian_adversarial_error(w, mean, 1.0, 1.0), 6)         # Φ(0)
    0.5
    """
    nonnegative_number(radius, "radius")
    w = as_vector(w, "w").double()
    mean = as_vector(mean, "mean", size=len(w)).double()
    if isinstance(covariance, Tensor):
        if covariance.shape != (len(w), len(w)):
            raise ShapeMismatch(
                f"covariance must be [{len(w)}, {len(w)}] as w is [{len(w)}], not "
                f"{list(covariance.shape)}"
            )
        variance = float(w @ covariance.double() @ w)
    else:
        variance = positive_number(covariance, "covariance") * float(w @ w)
    if variance <= 0:
        raise InvalidInput(f"the variance of w·x must be positive, and it is {variance:g}")
    reach = radius * float(dual_lengths(w[None], as_norm(norm))) - float(w @ mean)
    places = torch.tensor([reach - bias, reach + bias], dtype=torch.float64) / math.sqrt(variance)
    return float(torch.special.ndtr(places).mean())


def check_attack(attack: Attack) -> None:
    if not isinstance(attack, Attack):
        raise InvalidType(f"attack must be an attack such as PGD(0.1), not {attack!r}")


def until_fooled(attack: Attack, stop: bool) -> Attack:
    """The attack that stops at the first error, or that goes on to make the loss large."""
    if "stop_when_fooled" in {f.name for f in fields(attack)}:
        return replace(attack, stop_when_fooled=stop)  # type: ignore[call-arg]
    return attack
