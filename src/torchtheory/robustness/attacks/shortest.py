r"""Attacks that look for the shortest perturbation: DeepFool, Carlini-Wagner, and FAB.

They stop at the boundary of the model's classes, and give an upper bound of the distance to it. For
an affine classifier the distance is

$$
\min_{c\ne y}\frac{z_y-z_c}{\|w_y-w_c\|_q},
$$

with the dual exponent $q$ of the norm, and all three reach it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace

import torch
from torch import Tensor

from torchtheory.core.checks import (
    nonnegative_number,
    positive_number,
    whole_number,
)
from torchtheory.core.errors import InvalidInput
from torchtheory.core.progress import track
from torchtheory.models.targets import Task
from torchtheory.robustness.attacks.attack import (
    AT_ONCE,
    Attack,
    AttackResult,
    Best,
    room_in,
    slack,
)
from torchtheory.robustness.attacks.balls import (
    Norm,
    as_norm,
    dual_lengths,
    lengths,
    nearest_on_plane,
)
from torchtheory.robustness.attacks.goals import margin
from torchtheory.robustness.attacks.victim import Victim, finite, refuse_constant

#: Halvings of the segment from a sample to a point beyond the boundary.
_HALVINGS = 12


@dataclass(frozen=True)
class ShortestAttack(Attack):
    """An attack that makes the perturbation short; see `DeepFool`, `CarliniWagner`, `FAB`.

    Where it finds none the norm is infinite, as that of no perturbation would be a distance of 0.

    Attributes:
        radius: beyond which a perturbation does not count as a success; none unless given.
    """

    radius: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.radius is not None:
            positive_number(self.radius, "radius")

    @property
    def _limit(self) -> float:
        return math.inf if self.radius is None else slack(self.radius)

    def _refuse(self, task: Task, probe: Tensor) -> None:
        if task == "regression":
            raise InvalidInput(
                f"{type(self).__name__} looks for where the class changes, and this is a "
                "regression: use PGD, which makes the loss large"
            )
        if self.targeted and not isinstance(self, CarliniWagner):
            raise InvalidInput(f"{type(self).__name__} is not targeted: use CarliniWagner or PGD")

    def _start(self, victim: Victim, clean: Tensor, fooled: Tensor) -> Best:
        return Best(victim.x.clone(), fooled, torch.zeros_like(clean), holds_goal=False)

    def _attacked(self, victim: Victim, generator: torch.Generator) -> AttackResult:
        found = super()._attacked(victim, generator)
        missed = lengths(found.adversarial - victim.x, found.norm) == 0
        missed &= ~found.success
        return replace(found, norms=found.norms.masked_fill(missed, math.inf))

    def search(self, victim: Victim, best: Best, generator: torch.Generator) -> None:
        rows = (~best.fooled).nonzero().flatten()
        if len(rows):
            self._approach(victim, best, rows)
            self._pull_back(victim, best, rows)

    @abstractmethod
    def _approach(self, victim: Victim, best: Best, rows: Tensor) -> None:
        """Offer points where the samples `rows` are fooled, the closer the better."""

    def _offer(self, victim: Victim, best: Best, points: Tensor, rows: Tensor) -> Tensor:
        """Scores at the points, which are kept if they fool the model from closer by."""
        scores = victim.scores(points, rows)
        self._keep(victim, best, points, scores, rows)
        return scores

    def _keep(
        self, victim: Victim, best: Best, points: Tensor, scores: Tensor, rows: Tensor
    ) -> None:
        fooled = beyond(victim, scores, rows)
        if bool(fooled.any()):
            size = lengths(points - victim.x[rows], as_norm(self.norm))
            best.offer(points, fooled, -size, rows)

    def _pull_back(self, victim: Victim, best: Best, rows: Tensor) -> None:
        """Halve the segment from each sample to its best point where the class changes."""
        rows = rows[best.fooled[rows]]
        if not len(rows):
            return
        x, far = victim.x[rows], best.points[rows].clone()
        low = torch.zeros(len(rows), dtype=x.dtype, device=x.device)
        high = torch.ones_like(low)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            points = x + middle.reshape(-1, *[1] * (x.ndim - 1)) * (far - x)
            over = beyond(victim, self._offer(victim, best, points, rows), rows)
            low, high = torch.where(over, low, middle), torch.where(over, middle, high)


def beyond(victim: Victim, scores: Tensor, rows: Tensor) -> Tensor:
    """Whether the model errs by more than the rounding of its scores, `[k]`.

    At the boundary itself, a pass with another number of samples may decide otherwise.
    """
    gap = margin(scores, victim.y[rows])
    rounding = 64 * torch.finfo(scores.dtype).eps * scores.abs().amax(1)
    return (-gap if victim.targeted else gap) > rounding


@dataclass(frozen=True)
class DeepFool(ShortestAttack):
    r"""Steps to the nearest of the linearized boundaries (Moosavi-Dezfooli et al. 2016).

    Each step goes to where the linearization of $z_y-z_c$ would vanish, for the class $c$ where
    that is nearest; a point a little further from the sample is tried. Then the segment from the
    sample is halved at the boundary. Costs up to `steps` gradients for each of the `competitors`.

    Attributes:
        steps: at most.
        overshoot: share by which the point tried is further from the sample than the steps led.
        competitors: classes next in score that are looked at.

    >>> net = torch.nn.Linear(2, 2, bias=False)
    >>> _ = net.weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> found = DeepFool(norm="2")(net, torch.tensor([[3.0, 1.0]]), torch.tensor([0]))
    >>> round(float(found.norms), 3)                             # (9 - 4) / ‖(3, -4)‖
    1.0
    """

    _: KW_ONLY
    steps: int = 50
    overshoot: float = 0.02
    competitors: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number(self.steps, "steps", least=1)
        whole_number(self.competitors, "competitors", least=1)
        nonnegative_number(self.overshoot, "overshoot")

    def _approach(self, victim: Victim, best: Best, rows: Tensor) -> None:
        norm = as_norm(self.norm)
        points = victim.x[rows]
        for _ in range(self.steps):
            competitors = min(self.competitors, victim.classes - 1)
            values, slopes = nearest_boundary(victim.run, points, victim.y[rows], norm, competitors)
            victim.count(rows, queries=1, gradients=competitors)
            x = victim.x[rows]
            room = room_in(self.box, points)
            points = points + nearest_on_plane(slopes, -values, norm, *room)
            further = x + (1 + self.overshoot) * (points - x)
            if self.box is not None:
                points, further = points.clamp(*self.box), further.clamp(*self.box)
            scores = self._offer(victim, best, further, rows)
            left = ~beyond(victim, scores, rows)
            points, rows = points[left], rows[left]
            if not len(rows):
                break


def nearest_boundary(
    run: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, norm: Norm, competitors: int
) -> tuple[Tensor, Tensor]:
    r"""$z_y-z_c$ and its gradient for the class whose linearized boundary is nearest.

    Args:
        run: maps points to scores `[n, K]`.
        x: points `[n, ...]`.
        y: classes `[n]`.
        norm: in which distances are taken.
        competitors: classes next in score that are looked at.

    Returns:
        the differences `[n]` and their gradients `[n, ...]`.
    """
    with torch.enable_grad():
        moved = x.detach().requires_grad_(True)
        scores = run(moved)
        refuse_constant(scores)
        own = scores.gather(1, y[:, None])
        others = scores.detach().scatter(1, y[:, None], -math.inf)
        chosen = others.topk(min(competitors, scores.shape[1] - 1), dim=1).indices
        differences = own - scores.gather(1, chosen)
        slopes = [
            finite(
                torch.autograd.grad(
                    differences[:, k].sum(), moved, retain_graph=k + 1 < chosen.shape[1]
                )[0]
            )
            for k in range(chosen.shape[1])
        ]
    values = differences.detach()
    sizes = torch.stack([dual_lengths(s, norm) for s in slopes], 1)
    reach = torch.where(sizes > 0, values.abs() / sizes, math.inf)
    nearest = reach.argmin(1)
    rows = torch.arange(len(x), device=x.device)
    return values[rows, nearest], torch.stack(slopes, 1)[rows, nearest]


@dataclass(frozen=True)
class CarliniWagner(ShortestAttack):
    r"""The attack of Carlini and Wagner (2017) in $L^2$, as an optimization with a penalty.

    Minimizes $\|\delta\|^2+c\max(z_y-\max_{j\ne y}z_j+\kappa,0)$ by Adam, for constants $c$
    found by bisection for each sample. In a box, $x+\delta$ is written with a hyperbolic tangent,
    so that it never leaves it. Costs `steps * searches` gradients.

    Attributes:
        steps: of one minimization.
        searches: constants that are tried for each sample.
        rate: of Adam, in units of the box or else of the inputs.
        constant: the first $c$.
        confidence: $\kappa$, how far beyond the boundary to go.

    >>> net = torch.nn.Linear(2, 2, bias=False)
    >>> _ = net.weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> found = CarliniWagner()(net, torch.tensor([[3.0, 1.0]]), torch.tensor([0]))
    >>> round(float(found.norms), 2)
    1.0
    """

    norm: str | float = "2"
    _: KW_ONLY
    steps: int = 200
    searches: int = 6
    rate: float = 0.01
    constant: float = 1.0
    confidence: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm != "2":
            raise InvalidInput(f"CarliniWagner measures in norm '2', not {self.norm!r}: use FAB")
        whole_number(self.steps, "steps", least=1)
        whole_number(self.searches, "searches", least=1)
        positive_number(self.rate, "rate")
        positive_number(self.constant, "constant")
        nonnegative_number(self.confidence, "confidence")

    def _approach(self, victim: Victim, best: Best, rows: Tensor) -> None:
        x = victim.x[rows]
        constants = torch.full((len(rows),), self.constant, dtype=x.dtype, device=x.device)
        low, high = torch.zeros_like(constants), torch.full_like(constants, math.inf)
        for _ in track(range(self.searches), "constants"):
            found = self._minimize(victim, best, rows, x, constants)
            high = torch.where(found, torch.minimum(high, constants), high)
            low = torch.where(found, low, torch.maximum(low, constants))
            constants = torch.where(high.isinf(), constants * 10, (low + high) / 2)

    def _minimize(
        self, victim: Victim, best: Best, rows: Tensor, x: Tensor, constants: Tensor
    ) -> Tensor:
        """Adam on the penalized problem; which samples it fooled."""
        sign, kappa = (-1.0 if self.targeted else 1.0), self.confidence

        def penalty(scores: Tensor, y: Tensor) -> Tensor:
            return (kappa - sign * margin(scores, y)).clamp_min(0.0)

        middle, half = 0.0, 1.0
        if self.box is not None:
            middle, half = sum(self.box) / 2, (self.box[1] - self.box[0]) / 2
            shrunk = ((x - middle) / half).clamp(-1 + 1e-6, 1 - 1e-6)
            w = torch.atanh(shrunk)
        else:
            w = x.clone()
        first, second = torch.zeros_like(w), torch.zeros_like(w)
        found = torch.zeros(len(rows), dtype=torch.bool, device=x.device)
        weight = constants.reshape(-1, *[1] * (x.ndim - 1))
        for k in range(1, self.steps + 1):
            points = w if self.box is None else middle + half * torch.tanh(w)
            scores, _, gradient = victim.slopes(points, penalty, rows)
            self._keep(victim, best, points, scores, rows)
            found |= beyond(victim, scores, rows)
            slope = 2 * (points - x) + weight * gradient
            if self.box is not None:
                slope = slope * half * (1 - torch.tanh(w).square())
            first = 0.9 * first + 0.1 * slope
            second = 0.999 * second + 0.001 * slope.square()
            scale = (second / (1 - 0.999**k)).sqrt() + 1e-8
            w = w - self.rate * (first / (1 - 0.9**k)) / scale
        return found


@dataclass(frozen=True)
class FAB(ShortestAttack):
    r"""The fast adaptive boundary attack (Croce and Hein 2020), class by class.

    For each of the classes next in score, the boundary to it is linearized at the present point;
    the nearest points on that plane, in the box, from the present point and from the sample are
    mixed, and a point beyond the boundary is drawn back towards the sample. Costs up to
    `steps * targets` gradients.

    Attributes:
        steps: per class.
        targets: classes next in score.
    """

    _: KW_ONLY
    steps: int = 100
    targets: int = 9

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number(self.steps, "steps", least=1)
        whole_number(self.targets, "targets", least=1)

    def _approach(self, victim: Victim, best: Best, rows: Tensor) -> None:
        scores = victim.scores(victim.x[rows], rows)
        others = scores.scatter(1, victim.y[rows][:, None], -math.inf)
        order = others.argsort(1, descending=True)[:, : min(self.targets, scores.shape[1] - 1)]
        # several classes at once, as long as that is no more than a chunk
        at_once = max(1, AT_ONCE // (len(rows) * victim.x[0].numel()))
        for targets in track(torch.split(order, at_once, dim=1), "FAB"):
            keep = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
            if self.radius is not None:  # those within the radius are done
                keep = ~(best.fooled[rows] & (-best.values[rows] <= self.radius))
            if bool(keep.any()):
                self._towards(victim, best, rows[keep], targets[keep])

    def _towards(self, victim: Victim, best: Best, rows: Tensor, targets: Tensor) -> None:
        """Approach the boundaries to the classes `targets[k, m]` of the samples `rows[k]`."""
        norm, classes = as_norm(self.norm), targets.shape[1]
        every, target = rows.repeat(classes), targets.T.reshape(-1, 1)
        x = victim.x[every]
        points, zero = x, torch.zeros(len(x), dtype=x.dtype, device=x.device)
        found = Best(x.clone(), torch.zeros_like(zero, dtype=torch.bool), zero)
        column = [-1, *[1] * (x.ndim - 1)]

        def gap(scores: Tensor, y: Tensor) -> Tensor:
            return (scores.gather(1, y[:, None]) - scores.gather(1, target)).squeeze(1)

        for _ in range(self.steps):
            scores, values, slopes = victim.slopes(points, gap, every)
            over = beyond(victim, scores, every)
            if bool(over.any()):
                found.offer(points, over, -lengths(points - x, norm))
            values_at_x = values + ((x - points) * slopes).flatten(1).sum(1)
            both = nearest_on_plane(  # from the point and from the sample
                torch.cat([slopes, slopes]),
                -torch.cat([values, values_at_x]),
                norm,
                *room_in(self.box, torch.cat([points, x])),
            )
            (here, there), (a, b) = both.chunk(2), lengths(both, norm).chunk(2)
            share = (a / (a + b).clamp_min(1e-12)).clamp_max(0.1).reshape(column)
            mixed = (1 - share) * (points + 1.05 * here) + share * (x + 1.05 * there)
            # beyond the boundary: the next step starts nearer to the sample
            mixed = torch.where(over.reshape(column), x + 0.9 * (points - x), mixed)
            points = mixed if self.box is None else mixed.clamp(*self.box)
        over = beyond(victim, victim.scores(points, every), every)
        found.offer(points, over, -lengths(points - x, norm))
        per_class = (
            torch.split(part, len(rows)) for part in (found.points, found.fooled, found.values)
        )
        for closest, fooled, size in zip(*per_class, strict=True):
            best.offer(closest, fooled, size, rows)
