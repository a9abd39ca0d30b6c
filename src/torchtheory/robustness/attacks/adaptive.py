r"""Projected ascent that chooses its own steps: APGD (Croce and Hein 2020).

Starts with steps of $2\varepsilon$ and a momentum,

$$
z=\Pi(x_k+\eta\,s(\nabla\ell)),\qquad
x_{k+1}=\Pi\bigl(x_k+\tfrac34(z-x_k)+\tfrac14(x_k-x_{k-1})\bigr),
$$

and halves $\eta$ for a sample, going on from its best point, when at a checkpoint fewer than three
quarters of the steps since the last one have increased the loss, or neither $\eta$ nor the largest
loss has changed. Checkpoints come closer and closer.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.core.progress import track
from torchtheory.models.targets import Task
from torchtheory.robustness.attacks.attack import Attack, Best, Region, named_goal, signed, slack
from torchtheory.robustness.attacks.balls import as_norm
from torchtheory.robustness.attacks.goals import Goal, margin, targeted_dlr
from torchtheory.robustness.attacks.victim import Victim


@dataclass(frozen=True)
class APGD(Attack):
    r"""Adaptive projected ascent on a loss; nothing to tune.

    Costs up to `steps * restarts` gradients, times the number of target classes if there are any.

    Attributes:
        radius: $\varepsilon$.
        steps: of one ascent.
        restarts: number of ascents from random points.
        loss: `cross_entropy`, `dlr`, `margin`, or `(scores, y) -> [n]`.
        targets: 0 for one ascent on the loss; otherwise one ascent towards each of so many classes
            next in score, on the targeted difference of logits ratio (the loss is then not used).
        stop_when_fooled: whether a sample leaves as soon as the model errs on it.

    >>> net = torch.nn.Linear(2, 2, bias=False)
    >>> _ = net.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> APGD(0.31)(net, torch.tensor([[1.0, 0.4]]), torch.tensor([0])).success
    tensor([True])
    """

    radius: float
    steps: int = 100
    _: KW_ONLY
    restarts: int = 1
    loss: str | Goal = "cross_entropy"
    targets: int = 0
    stop_when_fooled: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_number(self.radius, "radius")
        whole_number(self.steps, "steps", least=1)
        whole_number(self.restarts, "restarts", least=1)
        whole_number(self.targets, "targets", least=0)
        named_goal(self.loss, "multiclass")
        if self.targets and self.targeted:
            raise InvalidInput(
                "targets are classes that APGD chooses itself, and a targeted attack is told them: "
                "give one of the two"
            )

    def goal(self, task: Task) -> Goal:
        return margin if self.targets else named_goal(self.loss, task)

    @property
    def _limit(self) -> float:
        return slack(self.radius)

    def _refuse(self, task: Task, probe: Tensor) -> None:
        super()._refuse(task, probe)
        if self.targets and (task != "multiclass" or probe.shape[1] < 4):
            raise InvalidInput(
                "the targeted difference of logits ratio needs at least 4 classes, and the model "
                f"answers with {list(probe.shape[1:])}: use targets=0 and loss='margin'"
            )

    def _start(self, victim: Victim, clean: Tensor, fooled: Tensor) -> Best:
        return Best(victim.x.clone(), fooled, clean.clone(), self.stop_when_fooled)

    def search(self, victim: Victim, best: Best, generator: torch.Generator) -> None:
        goal = signed(self.goal(victim.task), self.targeted)
        if not self.targets:
            for _ in range(self.restarts):
                self._ascend(victim, best, goal, None, generator)
            return
        scores = victim.scores(victim.x)
        others = scores.scatter(1, victim.y[:, None], -math.inf)
        order = others.argsort(1, descending=True)[:, : min(self.targets, scores.shape[1] - 1)]
        for target in track(order.T, "targets", total=order.shape[1]):
            for _ in range(self.restarts):
                self._ascend(victim, best, goal, target, generator)

    def _ascend(
        self,
        victim: Victim,
        best: Best,
        goal: Goal,
        target: Tensor | None,
        generator: torch.Generator,
    ) -> None:
        """One ascent of the samples that are left, towards a class each if one is given."""
        rows = torch.arange(len(victim.x), device=victim.x.device)
        if self.stop_when_fooled:
            rows = rows[~best.fooled]
        if not len(rows):
            return
        region = Region(victim.x, self.radius, as_norm(self.norm), self.box)
        points = region.random_points(generator)[rows]
        region = region.at(rows)
        climb = goal if target is None else targeted_dlr(target[rows])
        column = [-1, *[1] * (points.ndim - 1)]
        before, top = points, points.clone()
        eta = torch.full((len(rows),), 2 * self.radius, dtype=points.dtype, device=points.device)
        top_value = torch.full_like(eta, -math.inf)
        top_slope = torch.zeros_like(points)
        increases, last = torch.zeros_like(eta), top_value.clone()
        at_checkpoint, halved = top_value.clone(), torch.ones_like(eta, dtype=torch.bool)
        checkpoints = _checkpoints(self.steps)
        since = 0
        for k in range(self.steps + 1):
            if k == self.steps:
                scores = victim.scores(points, rows)
                values = goal(scores, victim.y[rows])
                best.offer(points, victim.fooled(scores, rows), values, rows)
                break
            scores, values, slopes = victim.slopes(points, climb, rows)
            fooled = victim.fooled(scores, rows)
            if not self.stop_when_fooled or bool(fooled.any()):
                reached = values if target is None else goal(scores, victim.y[rows])
                best.offer(points, fooled, reached, rows)
            higher = values > top_value
            if bool(higher.any()):
                top = torch.where(higher.reshape(column), points, top)
                top_slope = torch.where(higher.reshape(column), slopes, top_slope)
                top_value = torch.where(higher, values, top_value)
            if k:  # the first value is no increase over anything
                increases += values > last
                since += 1
            last = values
            if k in checkpoints:
                few = increases < 0.75 * since
                stuck = ~halved & (at_checkpoint >= top_value)
                halved = few | stuck
                at_checkpoint, since = top_value.clone(), 0
                increases.zero_()
                eta = torch.where(halved, eta / 2, eta)
                back = halved.reshape(column)
                points, before = torch.where(back, top, points), torch.where(back, top, before)
                slopes = torch.where(back, top_slope, slopes)
                last = torch.where(halved, top_value, last)
            if self.stop_when_fooled and bool(fooled.any()):
                left = (~fooled).nonzero().flatten()
                if not len(left):
                    return
                rows, region, points, before = (
                    rows[left],
                    region.at(left),
                    points[left],
                    before[left],
                )
                top, top_value, top_slope = top[left], top_value[left], top_slope[left]
                slopes, eta, increases, last = slopes[left], eta[left], increases[left], last[left]
                at_checkpoint, halved = at_checkpoint[left], halved[left]
                climb = goal if target is None else targeted_dlr(target[rows])
            ahead = region.ascend(points, slopes, eta)
            if k:
                mixed = points + 0.75 * (ahead - points) + 0.25 * (points - before)
                ahead = region.project(mixed)
            before, points = points, ahead
        if target is None:  # the highest points of those that were not fooled
            best.offer(top, torch.zeros_like(halved), top_value, rows)


def _checkpoints(steps: int) -> set[int]:
    """Steps at which the progress is judged."""
    places, gap, place = set(), 0.22, 0.22
    while place <= 1:
        places.add(math.ceil(place * steps))
        gap = max(gap - 0.03, 0.06)
        place += gap
    return places
