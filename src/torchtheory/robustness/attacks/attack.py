r"""What all attacks share: how they are called, what they return, and where they may look.

An attack looks for

$$
\max_{\delta\in\Delta}\ \ell(f(x+\delta),y),\qquad
\Delta=\{\|\delta\|_p\le\varepsilon,\ x+\delta\in\text{box}\},
$$

or for the shortest $\delta$ at which the model errs. What it finds is a lower bound of that maximum
and an upper bound of that length, never more. Source: Foundations of Deep Learning, Eqs. (12.1) and
(12.2).
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, as_function, described, one_of, whole_number
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch
from torchtheory.core.progress import track
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.models.opened import opened
from torchtheory.models.targets import Task, targets_for
from torchtheory.models.task import infer_task
from torchtheory.robustness.attacks import balls
from torchtheory.robustness.attacks.balls import Norm, as_norm, lengths
from torchtheory.robustness.attacks.goals import GOALS, Goal
from torchtheory.robustness.attacks.victim import Victim, part_of

#: Entries of inputs at once, as in 32 images of 3 x 32 x 32: what a pass makes of many more would
#: not stay in the processor's cache. And the fewest samples at once.
AT_ONCE, _FEWEST = 32 * 3 * 32 * 32, 16

#: Share of the radius up to which the rounding of inputs need not be looked at.
_FINE = 5e-5


@dataclass(frozen=True, slots=True)
class AttackResult:
    """What an attack found.

    Attributes:
        adversarial: inputs `[n, ...]`; where the attack failed, the best that it saw.
        success: whether the model errs there (a targeted attack: whether it says the target), and
            within the radius if there is one, `[n]`; in regression, whether the loss grew. It is
            true for samples on which the model erred from the start.
        success_before: the same without a perturbation, `[n]`.
        norms: lengths `[n]` of the perturbations in the attack's norm; infinite where an attack
            that looks for the shortest one found none.
        losses: what the attack made large, at the inputs found, `[n]`.
        clean_losses: the same at the inputs given.
        queries: passes forward in which each sample took part, `[n]`.
        gradients: passes backward, `[n]`.
        norm: in which perturbations are measured.
    """

    adversarial: Tensor
    success: Tensor
    success_before: Tensor
    norms: Tensor
    losses: Tensor
    clean_losses: Tensor
    queries: Tensor
    gradients: Tensor
    norm: Norm

    def __len__(self) -> int:
        return len(self.success)

    @property
    def success_rate(self) -> float:
        """Share of the samples on which the model errs now."""
        return float(self.success.double().mean())

    def __repr__(self) -> str:
        found = self.norms[self.norms.isfinite()].tolist()
        return (
            f"AttackResult({int(self.success.sum())} of {len(self)} fooled, longest perturbation "
            f"{max(found, default=0.0):.3g} in L{self.norm}, {int(self.queries.sum())} queries, "
            f"{int(self.gradients.sum())} gradients)"
        )

    @classmethod
    def joined(cls, parts: Sequence[AttackResult]) -> AttackResult:
        """The results for parts of the samples, one after another."""
        kind = type(parts[0])
        columns = {f.name: [getattr(p, f.name) for p in parts] for f in fields(kind)}
        joined: dict[str, Any] = {
            k: torch.cat(v) if isinstance(v[0], Tensor) else v[0] for k, v in columns.items()
        }
        return kind(**joined)


@dataclass(frozen=True, kw_only=True)
class Attack(ABC):
    """A way to look for adversarial inputs: `attack(model, x, y)` gives an `AttackResult`.

    Attributes:
        norm: `inf`, `2` or `1`.
        box: lowest and highest value of an input, such as `(0, 1)`; none unless given.
        targeted: whether `y` are classes to lead the model to, not the true ones.
        task: `multiclass`, `binary` (one logit) or `regression`; inferred unless given.
        chunk: samples at once; as many as have 100,000 entries, but at least 16, unless given.
        generator: of everything random, a `torch.Generator` or a seed.
    """

    norm: str | float = "inf"
    box: tuple[float, float] | None = None
    targeted: bool = False
    task: Task | None = None
    chunk: int | None = None
    generator: RandomSource = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm", as_norm(self.norm))
        if self.chunk is not None:
            whole_number(self.chunk, "chunk", least=1)
        if self.task is not None:
            one_of(self.task, "task", ("multiclass", "binary", "regression"))
        if self.box is not None:
            ends = tuple(self.box) if isinstance(self.box, tuple | list) else ()
            if len(ends) != 2 or not float(ends[0]) < float(ends[1]):
                raise InvalidInput(
                    f"box is the lowest and the highest value of an input, such as (0, 1), not "
                    f"{described(self.box)}"
                )

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, private: bool = True
    ) -> AttackResult:
        """Attack a model at samples `x[n, ...]` with targets `y`; see `AttackResult`.

        Args:
            model: any module that maps a batch to one row of outputs per sample. It is not
                changed: a copy of it is attacked, in evaluation mode.
            x: inputs of a floating type, inside of the box.
            y: class numbers `[n]`; 0/1 or -1/1 for one logit; real targets for regression.
            private: False attacks the model itself, which saves the copy; for use in a training.
        """
        x = checked_inputs(x, y, self.box)
        source = as_generator(self.generator)
        seed = int(torch.randint(2**62, (1,), generator=source, device=source.device))
        with opened(model, x, seed, private=private) as network:
            _refuse_other_type(network, x)
            part, probe = part_of(network, x[:2])
            task = infer_task(probe, y) if self.task is None else self.task
            if task not in ("multiclass", "binary", "regression"):
                raise InvalidInput(
                    "attacks are for one prediction per sample, and these targets and outputs "
                    f"{list(probe.shape)} mean several"
                )
            self._refuse(task, probe)
            # attacks compare classes by number
            targets = targets_for(task, y, probe, "attacked").to(x.device)
            if task == "binary":
                targets = targets.reshape(len(x)).long()
            size = self.chunk or max(_FEWEST, AT_ONCE // x[0].numel())
            pieces = list(zip(torch.split(x, size), torch.split(targets, size), strict=True))
            found = [
                self._attacked(
                    Victim(
                        network,
                        some,
                        wanted,
                        task,
                        targeted=self.targeted,
                        part=part,
                        classes=probe.shape[1] if task == "multiclass" else 2,
                    ),
                    source,
                )
                for some, wanted in (track(pieces, "attack") if len(pieces) > 1 else pieces)
            ]
        return AttackResult.joined(found)

    @abstractmethod
    def search(self, victim: Victim, best: Best, generator: torch.Generator) -> None:
        """Offer points near `victim.x` to `best`."""

    def goal(self, task: Task) -> Goal:
        """What is made large, before the sign of a targeted attack."""
        return GOALS["squared_error" if task == "regression" else "margin"]

    def _refuse(self, task: Task, probe: Tensor) -> None:
        """Refuse a task that the attack is not made for."""
        if task == "regression" and self.targeted:
            raise InvalidInput("a targeted attack leads to a class, and this is a regression")

    def _attacked(self, victim: Victim, generator: torch.Generator) -> AttackResult:
        goal = signed(self.goal(victim.task), self.targeted)
        x = victim.x
        scores = victim.scores(x)
        clean = goal(scores, victim.y)
        before = victim.fooled(scores)
        best = self._start(victim, clean, before.clone())
        self.search(victim, best, generator)
        norm = as_norm(self.norm)
        norms = lengths(best.points.double() - x.double(), norm)
        if victim.task == "regression":
            success = best.values > clean
        else:
            success = best.fooled & (norms <= self._limit)
        losses = best.values if best.holds_goal else goal(victim.scores(best.points), victim.y)
        return AttackResult(
            best.points,
            success,
            before,
            norms.to(x.dtype),
            losses,
            clean,
            victim.queries,
            victim.gradients,
            norm,
        )

    def _start(self, victim: Victim, clean: Tensor, fooled: Tensor) -> Best:
        return Best(victim.x.clone(), fooled, clean.clone())

    @property
    def _limit(self) -> float:
        """Longest perturbation that counts, with room for the rounding of x + delta."""
        return math.inf


@dataclass(slots=True)
class Best:
    """The best point seen for each sample.

    Attributes:
        points: `[n, ...]`.
        fooled: whether the model errs there, `[n]`.
        values: what is made large, `[n]`.
        fooling_first: whether a point where the model errs beats all where it does not.
        holds_goal: whether the values are those of the attack's goal.
    """

    points: Tensor
    fooled: Tensor
    values: Tensor
    fooling_first: bool = True
    holds_goal: bool = True

    def offer(
        self, points: Tensor, fooled: Tensor, values: Tensor, rows: Tensor | None = None
    ) -> None:
        """Keep the points that are better than what was known for the samples `rows`."""
        known = self.values if rows is None else self.values[rows]
        better = values > known
        if self.fooling_first:
            before = self.fooled if rows is None else self.fooled[rows]
            better = (fooled & ~before) | ((fooled == before) & better)
        if not bool(better.any()):
            return
        if rows is None:
            each = better.reshape(-1, *[1] * (points.ndim - 1))
            self.points = torch.where(each, points.to(self.points.dtype), self.points)
            self.fooled = torch.where(better, fooled, self.fooled)
            self.values = torch.where(better, values.to(self.values.dtype), self.values)
            return
        places = rows[better]
        self.points[places] = points[better].to(self.points.dtype)
        self.fooled[places] = fooled[better]
        self.values[places] = values[better].to(self.values.dtype)


class Region:
    """The inputs that an attack may give: within a radius of the samples, and in the box.

    Args:
        x: samples `[n, ...]`.
        radius: of the ball.
        norm: of the ball.
        box: lowest and highest value, or None.
    """

    def __init__(
        self, x: Tensor, radius: float, norm: Norm, box: tuple[float, float] | None
    ) -> None:
        self.x, self.radius, self.norm, self.box = x, radius, norm, box
        # in half precision, or for inputs far from 0, the rounding of x + delta is longer than what
        # a radius leaves room for
        unit = torch.finfo(x.dtype).eps * (float(x.abs().max()) + radius) if len(x) else 0.0
        self.coarse = unit * x[:1].numel() ** (1 / float(norm)) > _FINE * radius
        self.room = (None, None) if norm == "inf" else room_in(box, x)
        if norm == "inf":
            # a radius itself is rounded to the precision of what it is added to
            exact = x.double() if self.coarse else x
            lower, upper = (self._within((exact + end).to(x.dtype)) for end in (-radius, radius))
            self.lower = lower if box is None else lower.clamp_min(box[0])
            self.upper = upper if box is None else upper.clamp_max(box[1])

    def at(self, rows: Tensor) -> Region:
        """The region of some of the samples."""
        part = copy.copy(self)
        part.x = self.x[rows]
        low, high = self.room
        part.room = (None, None) if low is None or high is None else (low[rows], high[rows])
        if self.norm == "inf":
            part.lower, part.upper = self.lower[rows], self.upper[rows]
        return part

    def project(self, points: Tensor, *, boxed: bool = False) -> Tensor:
        """The nearest points of the region.

        Args:
            points: anywhere.
            boxed: whether they are known to lie in the box, where those that are nearest in the
                L1 ball lie as well: it takes every entry towards x.
        """
        if self.norm == "inf":
            return torch.clamp(points, self.lower, self.upper)
        low, high = (None, None) if boxed and self.norm == "1" else self.room
        delta = points.double() - self.x.double() if self.coarse else points - self.x
        return self.moved(balls.project(delta, self.radius, self.norm, low, high))

    def moved(self, delta: Tensor) -> Tensor:
        """x + delta in the box, for perturbations inside of the ball."""
        if self.coarse:  # they may have been rounded out of it
            delta = balls.project(delta.double(), self.radius, self.norm)
        points = self._within((self.x + delta).to(self.x.dtype), delta)
        return points if self.box is None else points.clamp(*self.box)

    def _within(self, points: Tensor, delta: Tensor | None = None) -> Tensor:
        """Entries that rounding moved further from x than asked, one unit back towards it."""
        if not self.coarse:
            return points
        asked = self.radius if delta is None else delta.double().abs()
        away = points.double() - self.x.double()
        unit = torch.finfo(points.dtype).eps * points.double().abs()
        nearer = (away.abs() - unit).clamp_min(0.0) * away.sign()
        back = (self.x.double() + nearer).to(points.dtype)
        return torch.where(away.abs() > asked, back, points)

    def ascend(self, points: Tensor, gradient: Tensor, length: float | Tensor) -> Tensor:
        """A steepest step of a length, back in the region."""
        low, high = room_in(self.box, points) if self.norm == "1" else (None, None)
        step = balls.steepest_step(gradient, length, self.norm, low, high)
        return self.project(step.add_(points), boxed=self.norm == "1")

    def random_points(self, generator: torch.Generator) -> Tensor:
        """Points that are uniform in the ball, put into the box."""
        moved = self.x + balls.random_perturbation(self.x, self.radius, self.norm, generator)
        return self.project(moved)


def room_in(box: tuple[float, float] | None, points: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """How far each entry of the points may fall and rise, or None and None without a box."""
    return (None, None) if box is None else (box[0] - points, box[1] - points)


def named_goal(loss: str | Goal, task: Task) -> Goal:
    """The loss of one sample each that a name stands for, or the function given."""
    if isinstance(loss, str):
        one_of(loss, "loss", GOALS)
        return GOALS["squared_error" if task == "regression" else loss]
    return as_function(loss, "loss")


def signed(goal: Goal, targeted: bool) -> Goal:
    """A targeted attack makes the loss small."""
    return (lambda scores, y: -goal(scores, y)) if targeted else goal


def slack(radius: float) -> float:
    """What the rounding of x + delta may add to a length."""
    return radius * (1 + 1e-4)


def checked_inputs(x: Tensor, y: Tensor, box: tuple[float, float] | None) -> Tensor:
    """The inputs of an attack, refused where they cannot be attacked."""
    for value, name in ((x, "x"), (y, "y")):
        if not isinstance(value, Tensor):
            raise InvalidType(f"{name} must be a torch tensor, not {described(value)}")
    if x.numel() == 0:
        raise EmptyData(f"there is nothing to attack: the shape of x is {list(x.shape)}")
    if not x.is_floating_point():
        raise InvalidType(
            f"an attack moves inputs by small amounts, and x is {described(x)}: give it in a "
            "floating type, such as x / 255 for pixels"
        )
    if x.ndim < 2 or y.ndim == 0 or len(x) != len(y):
        raise ShapeMismatch(
            f"x must be [samples, ...] with one target in y per sample, and the shapes are "
            f"{list(x.shape)} and {list(y.shape)}"
        )
    x = all_finite(x.detach(), "x")
    if box is not None:
        low, high = float(x.min()), float(x.max())
        if low < box[0] or high > box[1]:
            raise InvalidInput(
                f"x reaches from {low:.4g} to {high:.4g}, outside of the box from {box[0]:g} to "
                f"{box[1]:g}: scale it, or give the box of these inputs"
            )
    return x


def _refuse_other_type(network: nn.Module, x: Tensor) -> None:
    for p in network.parameters():
        if p.is_floating_point():
            if p.dtype != x.dtype or p.device != x.device:
                raise InvalidType(
                    f"the model computes in {str(p.dtype)[6:]} on {p.device}, and x is "
                    f"{str(x.dtype)[6:]} on {x.device}: call x.to(...)"
                )
            return
