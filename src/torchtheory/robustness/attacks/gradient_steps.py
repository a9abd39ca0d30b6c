r"""Attacks along the gradient: one step (FGSM), and projected steps (PGD).

$$
\delta\leftarrow\Pi_\Delta\bigl(\delta+\eta\,s(\nabla_\delta\ell(f(x+\delta),y))\bigr)
$$

with the gradient taken at the present $\delta$. $s$ is the steepest direction of the norm
($\mathrm{sign}$ for $L^\infty$), or the identity (`ascent="gradient"`). One step from 0 with
$\eta=\varepsilon$ solves the linearized problem: the gain is $\varepsilon\|\nabla\|_q$ with the
dual exponent $q$. For $L^\infty$, the plain gradient does the same from
$\eta=\varepsilon/\min_i|g_i|$ on, where $\mathrm{clip}(\eta g,-\varepsilon,\varepsilon)=
\varepsilon\,\mathrm{sign}(g)$. Source: Foundations of Deep Learning, Eqs. (12.3) and (12.4).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.checks import as_function, one_of, positive_number, whole_number
from torchtheory.core.progress import track
from torchtheory.models.targets import Task
from torchtheory.robustness.attacks.attack import (
    Attack,
    Best,
    Region,
    named_goal,
    signed,
    slack,
)
from torchtheory.robustness.attacks.balls import as_norm
from torchtheory.robustness.attacks.goals import Goal
from torchtheory.robustness.attacks.victim import Victim
from torchtheory.robustness.finite_differences import FiniteDifferences

Schedule = Callable[[float], float]
"""The share of the steps that is done, in [0, 1), to a factor of the step length."""

SCHEDULES: dict[str, Schedule] = {
    "constant": lambda share: 1.0,
    "linear": lambda share: 1.0 - share,
    "cosine": lambda share: (1.0 + math.cos(math.pi * share)) / 2,
}

#: Share of the samples at work that must be done before they leave: torch keeps a plan and a work
#: space for every size of a batch, so that batches of all sizes would take three times the memory.
_LEAVING = 0.2


@dataclass(frozen=True)
class FGSM(Attack):
    r"""One steepest step of length $\varepsilon$ from the sample.

    Costs one gradient and one further query.

    Attributes:
        radius: $\varepsilon$.
        loss: `cross_entropy`, `margin`, `dlr`, or `(scores, y) -> [n]`.

    >>> net = torch.nn.Linear(2, 2, bias=False)
    >>> _ = net.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> FGSM(0.5)(net, torch.tensor([[1.0, 0.4]]), torch.tensor([0])).adversarial
    tensor([[0.5000, 0.9000]])
    """

    radius: float
    _: KW_ONLY
    loss: str | Goal = "cross_entropy"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_number(self.radius, "radius")
        named_goal(self.loss, "multiclass")

    def goal(self, task: Task) -> Goal:
        return named_goal(self.loss, task)

    def _start(self, victim: Victim, clean: Tensor, fooled: Tensor) -> Best:
        # whatever the step leads to is the answer
        return Best(victim.x.clone(), fooled, torch.full_like(clean, -math.inf), False)

    @property
    def _limit(self) -> float:
        return slack(self.radius)

    def search(self, victim: Victim, best: Best, generator: torch.Generator) -> None:
        goal = signed(self.goal(victim.task), self.targeted)
        region = Region(victim.x, self.radius, as_norm(self.norm), self.box)
        _, _, gradient = victim.slopes(victim.x, goal)
        points = region.ascend(victim.x, gradient, self.radius)
        scores = victim.scores(points)
        best.offer(points, victim.fooled(scores), goal(scores, victim.y))


@dataclass(frozen=True)
class PGD(Attack):
    r"""Projected gradient ascent on the loss, from one start or several.

    The best point of all that were visited is kept. Costs `steps * restarts` gradients per sample,
    less for samples that are fooled on the way.

    Attributes:
        radius: $\varepsilon$.
        steps: of one ascent.
        step: $\eta$; $2.5\,\varepsilon/\mathrm{steps}$ unless given.
        restarts: number of ascents.
        random_start: whether to start at a random point of the ball, or at the sample.
        schedule: `constant`, `linear`, `cosine`, or a function of the share of steps done.
        loss: `cross_entropy`, `margin`, `dlr`, or `(scores, y) -> [n]`.
        ascent: `steepest` in the norm, or along the `gradient` as it is.
        gradient: None for the exact one, or `FiniteDifferences` made of queries.
        stop_when_fooled: whether samples leave once the model errs on them, a few at a time;
            otherwise the ascent goes on, and the point of largest loss is kept.

    >>> net = torch.nn.Linear(2, 2, bias=False)
    >>> _ = net.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> x, y = torch.tensor([[1.0, 0.4]]), torch.tensor([0])
    >>> attack = PGD(0.5, norm="2", random_start=False, stop_when_fooled=False)
    >>> result = attack(net, x, y)
    >>> bool(result.success), (result.adversarial - x).round(decimals=3)      # ε (-1, 1) / √2
    (True, tensor([[-0.3540,  0.3540]]))
    """

    radius: float
    steps: int = 40
    _: KW_ONLY
    step: float | None = None
    restarts: int = 1
    random_start: bool = True
    schedule: str | Schedule = "constant"
    loss: str | Goal = "cross_entropy"
    ascent: Literal["steepest", "gradient"] = "steepest"
    gradient: FiniteDifferences | None = None
    stop_when_fooled: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_number(self.radius, "radius")
        whole_number(self.steps, "steps", least=1)
        whole_number(self.restarts, "restarts", least=1)
        if self.step is not None:
            positive_number(self.step, "step")
        if isinstance(self.schedule, str):
            one_of(self.schedule, "schedule", SCHEDULES)
        else:
            as_function(self.schedule, "schedule")
        one_of(self.ascent, "ascent", ("steepest", "gradient"))
        named_goal(self.loss, "multiclass")

    def goal(self, task: Task) -> Goal:
        return named_goal(self.loss, task)

    def _start(self, victim: Victim, clean: Tensor, fooled: Tensor) -> Best:
        return Best(victim.x.clone(), fooled, clean.clone(), self.stop_when_fooled)

    @property
    def _limit(self) -> float:
        return slack(self.radius)

    def search(self, victim: Victim, best: Best, generator: torch.Generator) -> None:
        for _ in range(self.restarts):
            if not self._ascend(victim, best, generator):
                break

    def _ascend(self, victim: Victim, best: Best, generator: torch.Generator) -> bool:
        """One ascent; whether a sample is left to attack."""
        goal = signed(self.goal(victim.task), self.targeted)
        schedule = SCHEDULES[self.schedule] if isinstance(self.schedule, str) else self.schedule
        length = self.step or 2.5 * self.radius / self.steps
        region = Region(victim.x, self.radius, as_norm(self.norm), self.box)
        rows: Tensor | None = None
        points = region.random_points(generator) if self.random_start else victim.x
        if self.stop_when_fooled and bool(best.fooled.any()):
            rows = (~best.fooled).nonzero().flatten()
            if not len(rows):
                return False
            region, points = region.at(rows), points[rows]
        steps = range(self.steps)
        enough = _LEAVING if self.gradient is None else 0.0  # what is made of queries is dear
        for k in track(steps, "ascent") if self.gradient is not None else steps:
            if self.gradient is None:
                scores, values, gradient = victim.slopes(points, goal, rows)
            else:
                scores, values, gradient = self.gradient.slopes(
                    victim, points, goal, rows, generator
                )
            fooled = victim.fooled(scores, rows)
            self._offer(best, points, fooled, values, rows)
            if self.stop_when_fooled:
                done = best.fooled if rows is None else best.fooled[rows]
                if bool(done.all()):
                    return not bool(best.fooled.all())
                share = float(done.double().mean())
                if share > 0 and share >= enough:
                    left = (~done).nonzero().flatten()
                    rows = left if rows is None else rows[left]
                    region, points, gradient = region.at(left), points[left], gradient[left]
            eta = length * schedule(k / self.steps)
            if self.ascent == "steepest":
                points = region.ascend(points, gradient, eta)
            else:
                points = region.project(points + eta * gradient)
        scores = victim.scores(points, rows)
        fooled = victim.fooled(scores, rows)
        self._offer(best, points, fooled, goal(scores, victim.targets(rows)), rows)
        return not (self.stop_when_fooled and bool(best.fooled.all()))

    def _offer(
        self, best: Best, points: Tensor, fooled: Tensor, values: Tensor, rows: Tensor | None
    ) -> None:
        """Keep what is better; samples that are done keep what they have while they wait."""
        if self.stop_when_fooled:
            done = best.fooled if rows is None else best.fooled[rows]
            values = values.masked_fill(done, -math.inf)
        best.offer(points, fooled, values, rows)
