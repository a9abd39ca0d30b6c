r"""AutoAttack (Croce and Hein 2020): four attacks of different kinds, one after another.

APGD on the cross-entropy, APGD on the targeted difference of logits ratio, FAB, and Square, which
takes no gradient. A sample that one of them fools leaves; robust accuracy is the share that none of
them fools, an upper bound of the true one.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import described, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.core.progress import track
from torchtheory.core.random import RandomSource
from torchtheory.models.opened import opened
from torchtheory.models.targets import Task
from torchtheory.robustness.attacks.adaptive import APGD
from torchtheory.robustness.attacks.attack import Attack, AttackResult, Best, checked_inputs, slack
from torchtheory.robustness.attacks.balls import as_norm, lengths
from torchtheory.robustness.attacks.goals import cross_entropy, margin
from torchtheory.robustness.attacks.gradient_steps import PGD
from torchtheory.robustness.attacks.shortest import FAB
from torchtheory.robustness.attacks.square import Square
from torchtheory.robustness.attacks.victim import Victim

#: Share of the samples that a search without gradients must certainly add to be suspicious.
_SUSPICIOUS = 0.01


class GradientMaskingWarning(UserWarning):
    """A search without gradients fools a model where attacks along the gradient do not."""


@dataclass(frozen=True, slots=True, repr=False)
class EnsembleResult(AttackResult):
    """What several attacks found, one after another.

    Attributes:
        fooled_by: the place, from 1, of the attack that fooled each sample; 0 where the model erred
            from the start, and -1 where none did, `[n]`.
        names: of the attacks.
    """

    fooled_by: Tensor
    names: tuple[str, ...]

    @property
    def accuracies(self) -> dict[str, float]:
        """Share of the samples that are left after each attack, and without any."""
        left = [float((self.fooled_by != 0).double().mean())]
        for k in range(1, len(self.names) + 1):
            left.append(left[-1] - float((self.fooled_by == k).double().mean()))
        return dict(zip(("clean", *self.names), left, strict=True))


@dataclass(frozen=True)
class Ensemble(Attack):
    """Attacks one after another, each on the samples that those before it have not fooled.

    Attributes:
        attacks: with the same norm; their own `generator` and `chunk` are not used.

    >>> net = torch.nn.Linear(2, 2, bias=False)
    >>> _ = net.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> x, y = torch.tensor([[1.0, 0.4], [2.0, 0.0]]), torch.tensor([0, 0])
    >>> Ensemble([PGD(0.31), Square(0.31, 20)])(net, x, y).accuracies
    {'clean': 1.0, 'PGD': 0.5, 'Square': 0.5}
    """

    attacks: Sequence[Attack] = ()
    _: KW_ONLY
    radius: float | None = None

    def __post_init__(self) -> None:
        if not self.attacks or not all(isinstance(a, Attack) for a in self.attacks):
            raise InvalidType(
                "an ensemble is made of attacks: give at least one, in a list, not "
                f"{described(self.attacks)}"
            )
        norms = {a.norm for a in self.attacks}
        if len(norms) > 1:
            raise InvalidInput(
                f"attacks in several norms ({', '.join(sorted(map(str, norms)))}) cannot be "
                "compared: choose one"
            )
        object.__setattr__(self, "norm", self.attacks[0].norm)
        super().__post_init__()
        if any(a.targeted for a in self.attacks) or self.targeted:
            raise InvalidInput("an ensemble leads the model away from y: no attack may be targeted")

    def _refuse(self, task: Task, probe: Tensor) -> None:
        for attack in self.attacks:
            attack._refuse(task, probe)

    def search(self, victim: Victim, best: Best, generator: torch.Generator) -> None:
        self._stages(victim, best, generator)

    def _stages(self, victim: Victim, best: Best, generator: torch.Generator) -> Tensor:
        """Run the attacks; which one fooled each sample."""
        fooled_by = torch.where(best.fooled, 0, -1)
        scores = victim.scores(victim.x)
        for k, attack in enumerate(track(list(self.attacks), "attacks"), 1):
            if bool(best.fooled.all()):
                break
            clean = attack.goal(victim.task)(scores, victim.y)
            own = attack._start(victim, clean, best.fooled.clone())
            attack.search(victim, own, generator)
            away = own.points.double() - victim.x.double()
            near = lengths(away, as_norm(self.norm)) <= attack._limit
            new = (own.fooled & near & ~best.fooled).nonzero().flatten()
            if len(new):
                fooled_by[new] = k
                at = own.points[new]
                values = margin(victim.scores(at, new), victim.y[new])
                best.offer(at, torch.ones_like(new, dtype=torch.bool), values, new)
        return fooled_by

    def _attacked(self, victim: Victim, generator: torch.Generator) -> EnsembleResult:
        scores = victim.scores(victim.x)
        clean = margin(scores, victim.y)
        before = victim.fooled(scores)
        best = Best(victim.x.clone(), before.clone(), clean.clone())
        fooled_by = self._stages(victim, best, generator)
        norm = as_norm(self.norm)
        return EnsembleResult(
            best.points,
            best.fooled,
            before,
            lengths(best.points - victim.x, norm),
            best.values,
            clean,
            victim.queries,
            victim.gradients,
            norm,
            fooled_by,
            _names(self.attacks),
        )


def auto_attack(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    radius: float,
    norm: str | float = "inf",
    *,
    box: tuple[float, float] | None = None,
    steps: int = 100,
    max_queries: int = 5000,
    task: Task | None = None,
    chunk: int | None = None,
    generator: RandomSource = None,
) -> EnsembleResult:
    r"""The AutoAttack protocol: four attacks, nothing to tune; fooled samples leave.

    Warns (`GradientMaskingWarning`) when Square fools samples that the attacks along the gradient
    left: then the gradients mislead, and neither attack can be trusted.

    Args:
        model: any classifier; it is not changed.
        x: inputs `[n, ...]`.
        y: class numbers `[n]`, or 0/1 for one logit.
        radius: $\varepsilon$.
        norm: `inf`, `2` or `1` (without Square, which has no form for it).
        box: lowest and highest value of an input.
        steps: of each ascent.
        max_queries: of Square.
        task: inferred unless given.
        chunk: samples at once.
        generator: of everything random.

    Returns:
        an `EnsembleResult`; its `accuracies` after each attack.

    Costs up to `21 * steps` gradients and `max_queries` queries for a sample that stays right.

    >>> net = torch.nn.Linear(2, 4, bias=False)
    >>> w = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    >>> _ = net.weight.data.copy_(w)
    >>> x, y = torch.tensor([[1.0, 0.4], [2.0, 0.0]]), torch.tensor([0, 0])
    >>> result = auto_attack(net, x, y, 0.31, steps=10, max_queries=10)
    >>> result.accuracies["Square"], result.fooled_by.tolist()
    (0.5, [1, -1])
    """
    attack = AutoAttack(
        radius,
        norm=norm,
        box=box,
        steps=steps,
        max_queries=max_queries,
        task=task,
        chunk=chunk,
        generator=generator,
    )
    result = attack(model, x, y)
    assert isinstance(result, EnsembleResult)
    by_search = [k for k, name in enumerate(result.names, 1) if name == "Square"]
    more = int(torch.isin(result.fooled_by, torch.tensor(by_search)).sum())
    right = int((result.fooled_by != 0).sum())
    if more and clopper_pearson(more, right).low > _SUSPICIOUS:
        warnings.warn(
            f"Square, which takes no gradients, fooled {more} of {right} samples that the attacks "
            "along the gradient had left: the model's gradients mislead, and its robust accuracy "
            "may be lower still",
            GradientMaskingWarning,
            stacklevel=2,
        )
    return result


@dataclass(frozen=True)
class AutoAttack(Attack):
    """The attacks of `auto_attack`, as an attack; they depend on the number of classes.

    Attributes:
        radius: of the ball.
        steps: of each ascent.
        max_queries: of Square.
    """

    radius: float
    _: KW_ONLY
    steps: int = 100
    max_queries: int = 5000

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_number(self.radius, "radius")
        whole_number(self.steps, "steps", least=1)
        whole_number(self.max_queries, "max_queries", least=1)
        if self.targeted:
            raise InvalidInput("AutoAttack leads the model away from y: use APGD(targeted=True)")

    def _refuse(self, task: Task, probe: Tensor) -> None:
        if task == "regression":
            raise InvalidInput("AutoAttack is for classifiers: for a regression use PGD or APGD")

    @property
    def _limit(self) -> float:
        return slack(self.radius)

    def stages(self, classes: int) -> list[Attack]:
        """The attacks, for a number of classes.

        >>> [type(a).__name__ for a in AutoAttack(0.1).stages(10)]
        ['APGD', 'APGD', 'FAB', 'Square']
        """
        same: dict[str, Any] = {"norm": self.norm, "box": self.box}
        first = APGD(self.radius, self.steps, **same)
        second = replace(first, targets=9) if classes >= 4 else replace(first, loss="margin")
        found: list[Attack] = [first, second, FAB(self.radius, steps=self.steps, **same)]
        if self.norm != "1":
            found.append(Square(self.radius, self.max_queries, **same))
        return found

    def search(self, victim: Victim, best: Best, generator: torch.Generator) -> None:
        Ensemble(self.stages(victim.classes)).search(victim, best, generator)

    def _attacked(self, victim: Victim, generator: torch.Generator) -> AttackResult:
        return Ensemble(self.stages(victim.classes))._attacked(victim, generator)


@dataclass(frozen=True, slots=True)
class GradientMasking:
    """Whether the gradients of a model show where it errs.

    Attributes:
        zero_gradients: share of the samples whose loss has the gradient 0, exactly.
        by_gradient: share of the right samples that attacks along the gradient fool.
        by_search: share that the search without gradients fools.
        found_more: share that the search fools and the attacks along the gradient do not, with a
            95% interval.
        suspicious: whether that share is above 1% with this confidence.
    """

    zero_gradients: float
    by_gradient: float
    by_search: float
    found_more: Interval
    suspicious: bool


def gradient_masking(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    radius: float,
    norm: str | float = "inf",
    *,
    box: tuple[float, float] | None = None,
    steps: int = 40,
    max_queries: int = 1000,
    generator: RandomSource = None,
) -> GradientMasking:
    """Whether a search without gradients fools a model where its gradients lead nowhere.

    PGD on the cross-entropy and on the margin stands against Square, at the same radius. Gradients
    that vanish, or point elsewhere, make a model look robust that is not: a defense that rounds,
    saturates or adds noise does that (Athalye et al. 2018).

    Args:
        model: a classifier; it is not changed.
        x, y: samples.
        radius, norm, box: of the perturbations.
        steps: of PGD.
        max_queries: of Square.
        generator: of everything random.

    Warns with a `GradientMaskingWarning` if it is suspicious.
    """
    same: dict[str, Any] = {"norm": norm, "box": box, "generator": generator}
    slopes = FirstGradients(**same)
    losses = ("cross_entropy", "margin")
    along = [PGD(radius, steps, loss=loss, **same) for loss in losses]
    search = Square(radius, max_queries, **same)
    with opened(model, checked_inputs(x, y, slopes.box), 0) as network:  # one copy for all of them
        zero = slopes(network, x, y, private=False)
        white = [attack(network, x, y, private=False) for attack in along]
        black = search(network, x, y, private=False)
    right = ~zero.success_before
    if not bool(right.any()):
        raise InvalidInput("the model errs on all of these samples: there is nothing to attack")
    by_gradient = (white[0].success | white[1].success)[right]
    by_search = black.success[right]
    more = by_search & ~by_gradient
    interval = clopper_pearson(int(more.sum()), int(right.sum()))
    vanishing = float((zero.losses == 0).double().mean())
    found = GradientMasking(
        vanishing,
        float(by_gradient.double().mean()),
        float(by_search.double().mean()),
        interval,
        interval.low > _SUSPICIOUS,
    )
    if found.suspicious:
        warnings.warn(
            f"a search without gradients fools {100 * interval.estimate:.3g}% of the samples where "
            f"attacks along the gradient fail, and {100 * vanishing:.3g}% of the gradients are 0: "
            "what attacks along the gradient say of this model's robustness is not to be trusted",
            GradientMaskingWarning,
            stacklevel=2,
        )
    return found


@dataclass(frozen=True)
class FirstGradients(Attack):
    """Not an attack: sizes of the gradients of the cross-entropy at the samples, as `losses`."""

    def _attacked(self, victim: Victim, generator: torch.Generator) -> AttackResult:
        scores, _, slopes = victim.slopes(victim.x, cross_entropy)
        norm = as_norm(self.norm)
        sizes = slopes.flatten(1).abs().amax(1)
        fooled = victim.fooled(scores)
        return AttackResult(
            victim.x,
            fooled,
            fooled,
            torch.zeros_like(sizes),
            sizes,
            margin(scores, victim.y),
            victim.queries,
            victim.gradients,
            norm,
        )

    def search(self, victim: Victim, best: Best, generator: torch.Generator) -> None:
        """Nothing is looked for."""


def _names(attacks: Sequence[Attack]) -> tuple[str, ...]:
    """Names of attacks, each once."""
    names: list[str] = []
    for attack in attacks:
        name = type(attack).__name__
        if isinstance(attack, APGD | PGD):
            loss = attack.loss if isinstance(attack.loss, str) else "own loss"
            plain = loss == "cross_entropy"
            if isinstance(attack, APGD) and attack.targets:
                name += " (targeted)"
            elif not plain:
                name += f" ({loss})"
        while name in names:
            name += "'"
        names.append(name)
    return tuple(names)
