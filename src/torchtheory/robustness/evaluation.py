r"""Attack, exact answer and certificate in one table.

For every sample and radius, what is certain is at most what is true, and that is at most what an
attack leaves standing:

$$
\text{certified}(r)\le\text{robust}(r)\le\text{not attacked}(r) .
$$

A sample that is certified and attacked is a contradiction: an error in one of the two, and never a
property of the network. It is refused with the sample's number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from torchtheory.core.budget import check_time
from torchtheory.core.checks import as_module, nonnegative_number, whole_number
from torchtheory.core.errors import EmptyData, InvalidInput, NotConverged
from torchtheory.core.figure import COLORS, Figure, draw
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.models.model import one_output, real_rows
from torchtheory.models.opened import opened
from torchtheory.models.samples import Data
from torchtheory.models.untouched import copied
from torchtheory.robustness.attacks.attack import Attack
from torchtheory.robustness.attacks.balls import Norm, as_norm, lengths
from torchtheory.robustness.attacks.gradient_steps import PGD
from torchtheory.robustness.attacks.shortest import FAB, DeepFool
from torchtheory.robustness.bounds.balls import Limits
from torchtheory.robustness.bounds.certified import (
    certified_radius,
    class_rows,
    labeled_pair,
    margins_in_ball,
)
from torchtheory.robustness.bounds.output_bounds import BoundedNetwork, Method
from torchtheory.robustness.exact.distance import minimal_perturbation


class Attacked(Protocol):
    """What an attack returns."""

    @property
    def adversarial(self) -> Tensor: ...

    @property
    def success(self) -> Tensor: ...


#: `attack(radius)` makes an attack, and that is called with a model, inputs and labels.
MakeAttack = Callable[[float], Callable[[nn.Module, Tensor, Tensor], Attacked]]


#: By how much balls shrink in the search for a shorter perturbation.
_SHRINK = 0.9


@dataclass(frozen=True)
class Evaluation:
    """Robustness of samples over radii; see `evaluate`.

    Attributes:
        norm: of the perturbations.
        radii: the radii, rising.
        certified: `[radii, n]`, whether every input of the ball is classified right.
        standing: `[radii, n]`, whether no adversarial input was found in the ball.
        exact: `[n]`, the distances to the nearest adversarial input where they were computed; NaN
            elsewhere.
        confidence: of the intervals.
        failed: why there is no exact distance, by the number of the sample, where one was asked
            for and its computation failed.
    """

    norm: str
    radii: tuple[float, ...]
    certified: Tensor
    standing: Tensor
    exact: Tensor
    confidence: float
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def certified_accuracy(self) -> list[Interval]:
        """The certified share at each radius, with an interval for the population."""
        return [self._share(row) for row in self.certified]

    @property
    def attacked_accuracy(self) -> list[Interval]:
        """The share that no attack misled, with an interval for the population."""
        return [self._share(row) for row in self.standing]

    @property
    def exact_accuracy(self) -> list[Interval] | None:
        """The robust share among the samples whose distance is known exactly."""
        known = ~self.exact.isnan()
        if not bool(known.any()):
            return None
        return [self._share(self.exact[known] > r) for r in self.radii]

    @property
    def undecided(self) -> Tensor:
        """`[radii]`, the share of samples that are neither certified nor misled."""
        return (self.standing & ~self.certified).double().mean(1)

    def _share(self, flags: Tensor) -> Interval:
        return clopper_pearson(int(flags.sum()), len(flags), self.confidence)

    def table(self) -> list[tuple[float, float, float | None, float]]:
        """Radius, certified, exact and attacked accuracy, a row per radius.

        The exact one only where it is known for all samples: that of a part cannot be compared.
        """
        exact = None if bool(self.exact.isnan().any()) else self.exact_accuracy
        return [
            (
                r,
                self.certified_accuracy[k].estimate,
                None if exact is None else exact[k].estimate,
                self.attacked_accuracy[k].estimate,
            )
            for k, r in enumerate(self.radii)
        ]

    def figure(self) -> Figure:
        """The sandwich over radii."""
        return draw(
            "robust-accuracy",
            self.plot,
            caption="What is certified, what an attack leaves standing, and between them what is "
            "not known; the bars are intervals for the population.",
        )

    def plot(self, ax: Any) -> None:
        """Draw the curves on matplotlib's Axes."""
        lines = {
            "no attack succeeds": (self.attacked_accuracy, COLORS[1]),
            "certified": (self.certified_accuracy, COLORS[0]),
        }
        for label, (shares, color) in lines.items():
            middle = [s.estimate for s in shares]
            bars = [
                [s.estimate - s.low for s in shares],
                [s.high - s.estimate for s in shares],
            ]
            ax.errorbar(
                self.radii, middle, bars, fmt="o-", color=color, label=label, elinewidth=0.9,
                markersize=3.5,
            )  # fmt: skip
        low = [s.estimate for s in self.certified_accuracy]
        high = [s.estimate for s in self.attacked_accuracy]
        ax.fill_between(self.radii, low, high, color="0.85", label="not known")
        exact = self.exact_accuracy
        if exact is not None:
            middle = [s.estimate for s in exact]
            known = int((~self.exact.isnan()).sum())
            part = "" if known == len(self.exact) else f" (of {known} samples)"
            ax.plot(self.radii, middle, "k--", label=f"exact{part}", linewidth=1.2, zorder=5)
        name = {"inf": r"\infty", "2": "2", "1": "1"}[self.norm]
        ax.set(xlabel=rf"radius ($\ell_{{{name}}}$)", ylabel="accuracy", ylim=(-0.02, 1.02))
        ax.legend()


def evaluate(
    model: nn.Module,
    data: Data,
    norm: str | float = "inf",
    radius: float | Sequence[float] | Tensor = 0.1,
    *,
    method: Method = "crown",
    attack: MakeAttack | None = None,
    exact: int = 0,
    box: Limits | None = None,
    chunk: int = 64,
    confidence: float = 0.95,
) -> Evaluation:
    """Certified, exact and attacked accuracy of a classifier at one radius or several.

    Args:
        model: a classifier with one output per class, or one logit; it is left as it is.
        data: `(x, y)`, a `Dataset` or a `DataLoader` of inputs and class numbers.
        norm: `"inf"`, `"2"` or `"1"`.
        radius: one radius, or several.
        method: how samples are certified, as in `output_bounds`.
        attack: `radius -> attack`, and `attack(model, x, y)` gives something with `adversarial`
            and `success`; PGD with 40 steps and a restart unless given.
        exact: for so many samples from the first on the distance to the nearest adversarial
            input is computed exactly; for small ReLU networks only. A sample for which that
            fails is listed in `failed`, and the others are not lost with it.
        box: least and largest valid input.
        chunk: samples that are bounded at once.
        confidence: of the intervals.

    Raises:
        NotConverged: if a sample is both certified and misled: an error in this package.

    Time: a bound and an attack for each radius; samples that were misled at a smaller radius, or
    certified at a larger one, are not looked at again.

    >>> net = nn.Linear(2, 2, bias=False)
    >>> _ = net.weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> data = torch.tensor([[3.0, 1.0]]), torch.tensor([0])         # the true distance is 1
    >>> [row[1:] for row in evaluate(net, data, "2", (0.9, 1.1), exact=1).table()]
    [(1.0, 1.0, 1.0), (0.0, 0.0, 0.0)]
    """
    as_module(model)
    named = as_norm(norm)
    if isinstance(radius, Tensor):
        radius = radius.detach().double().reshape(-1).tolist()
    given = (radius,) if isinstance(radius, int | float) else tuple(radius)
    if not given:
        raise EmptyData("at least one radius is needed")
    radii = tuple(sorted(nonnegative_number(r, "radius") for r in given))
    whole_number(exact, "exact", least=0)
    x, y = labeled_pair(data)
    network = BoundedNetwork(model, x)
    x = x.to(dtype=network.dtype, device=network.device)
    y = y.to(network.device)
    make = attack if attack is not None else _usual_attack(named, box)
    count = len(x)
    certified = torch.zeros(len(radii), count, dtype=torch.bool)
    standing = torch.zeros(len(radii), count, dtype=torch.bool)
    clean = margins_in_ball(network, x, y, 0.0, named, "interval", box=box, chunk=chunk).cpu() > 0
    own = copied(model).double().eval().requires_grad_(False)
    right = _margins(own, x.double(), y).cpu() > 0
    known = torch.full((count,), math.nan, dtype=torch.float64)
    failed: dict[int, str] = {}
    for k in range(min(exact, count)):
        check_time()
        try:
            known[k] = minimal_perturbation(model, x[k], int(y[k]), named, box=box).distance
        except NotConverged as error:  # of this sample; the others have their distances
            failed[k] = str(error)
    # certificates from the largest radius down: smaller balls lie inside
    done = torch.zeros(count, dtype=torch.bool)
    for k in reversed(range(len(radii))):
        rest = (~done & clean).nonzero()[:, 0]
        if len(rest):
            where = rest.to(x.device)
            margins = margins_in_ball(
                network, x[where], y[where], radii[k], named, method, box=box, chunk=chunk
            )
            done[rest] = margins.cpu() > 0
        certified[k] = done
    left = right.clone()
    with _under_attack(model, x) as attacked:
        for k, r in enumerate(radii):
            rest = left.nonzero()[:, 0]
            if len(rest) and r > 0:
                where = rest.to(x.device)
                result = attacked(make(r), x[where], y[where])
                misled = _misled(own, x[where], y[where], result, r, named)
                left[rest] = ~misled.cpu()
            standing[k] = left
    both = certified & ~standing
    if bool(both.any()):
        k, sample = both.nonzero()[0].tolist()
        raise NotConverged(
            f"sample {sample} is certified at the radius {radii[k]:g} and was misled there: this "
            "is an error in torchtheory, please report it with the model"
        )
    _refuse_contradiction(known, certified, standing, radii)
    return Evaluation(named, radii, certified, standing, known, confidence, failed)


@contextmanager
def _under_attack(model: nn.Module, x: Tensor) -> Iterator[Callable[..., Attacked]]:
    """`(attack, x, y) -> what it found`; all attacks of this package share one copy of the model.

    An attack of the user's gets the model itself.
    """
    with opened(model, x, 0) as network:

        def attacked(attack: Callable[..., Attacked], x: Tensor, y: Tensor) -> Attacked:
            if isinstance(attack, Attack):
                return attack(network, x, y, private=False)
            return attack(model, x, y)

        yield attacked


def _usual_attack(norm: str, box: Limits | None) -> MakeAttack:
    limits = _two_numbers(box)
    return lambda radius: PGD(radius, 40, restarts=2, norm=norm, box=limits, generator=0)


def _two_numbers(box: Limits | None) -> tuple[float, float] | None:
    """A box as attacks know it."""
    if box is None:
        return None
    ends = [torch.as_tensor(v) for v in box]
    if any(bool((e != e.flatten()[0]).any()) for e in ends):
        raise InvalidInput("the usual attacks need a box of two numbers")
    return float(ends[0].min()), float(ends[1].max())


def _margins(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The smallest margin `[n]`, in double precision."""
    with torch.no_grad():
        parts = torch.split(x, 256)
        outputs = torch.cat([real_rows(one_output(model(part)), len(part)) for part in parts])
    rows = class_rows(y, tuple(outputs.shape[1:])).double()
    return torch.bmm(rows, outputs.reshape(len(x), -1, 1))[..., 0].amin(1)


def _misled(
    own: nn.Module, x: Tensor, y: Tensor, result: Attacked, radius: float, norm: Norm
) -> Tensor:
    """Whether an attack's points, pulled back into the ball, are misclassified in exact terms.

    An attack may leave the ball by the rounding of x + delta, and a network in single precision
    may err by the rounding of its outputs; neither is an adversarial input.
    """
    start = x.double()
    delta = result.adversarial.double() - start
    size = lengths(delta, norm)
    share = torch.where(size > radius, radius * (1 - 1e-12) / size.clamp_min(1e-300), 1.0)
    inside = start + delta * share.reshape(-1, *[1] * (x.ndim - 1))
    return result.success.to(x.device) & (_margins(own, inside, y) <= 0)


def _refuse_contradiction(
    exact: Tensor, certified: Tensor, standing: Tensor, radii: tuple[float, ...]
) -> None:
    """Exact distances lie between what is certified and what an attack found."""
    for k, r in enumerate(radii):
        slack = 1e-6 * max(1.0, r)
        wrong = (certified[k] & (exact < r - slack)) | (~standing[k] & (exact > r + slack))
        if bool(wrong.any()):
            sample = int(wrong.nonzero()[0, 0])
            raise NotConverged(
                f"the exact distance {float(exact[sample]):.4g} of sample {sample} contradicts its "
                f"certificate or its attack at the radius {r:g}: this is an error in torchtheory, "
                "please report it with the model"
            )


@dataclass(frozen=True)
class RobustRadius:
    """Between which numbers the distance of each sample to the nearest adversarial input lies.

    Attributes:
        lower: `[n]`, certified.
        upper: `[n]`, the length of a perturbation that was found; infinite where none was.
    """

    lower: Tensor
    upper: Tensor


def robust_radius(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    norm: str | float = "2",
    *,
    method: Method = "crown",
    box: Limits | None = None,
    largest: float = 1e3,
) -> RobustRadius:
    """A certified lower and an attacked upper bound of each sample's distance to the boundary.

    The lower bound comes from bisection over certificates (`certified_radius`), the upper one from
    DeepFool and FAB, from PGD in balls that grow until the samples that neither misled are, and
    from PGD in balls that shrink by tenths; what is found is cut off where the class changes.

    Raises:
        NotConverged: if a lower bound is above its upper one: an error in this package.

    >>> net = nn.Linear(2, 2, bias=False).double()
    >>> _ = net.weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> found = robust_radius(net, torch.tensor([[3.0, 1.0]]), torch.tensor([0]))
    >>> bool(0.99 < found.lower <= 1 <= found.upper < 1.001)
    True
    """
    named = as_norm(norm)
    network = BoundedNetwork(model, x)
    x = x.to(dtype=network.dtype, device=network.device)
    y = y.to(network.device)
    lower = certified_radius(model, x, y, named, method, box=box, largest=largest)
    own = copied(model).double().eval().requires_grad_(False)
    ball = _usual_attack(named, box)
    limits = _two_numbers(box)
    upper = torch.full((len(x),), math.inf, dtype=torch.float64)
    upper[_margins(own, x.double(), y).cpu() <= 0] = 0.0

    with _under_attack(model, x) as attacked:

        def keep_shorter(attack: Callable[..., Attacked], rest: Tensor) -> None:
            """Attack the samples `rest`, and keep what is shorter than what is known."""
            check_time()
            where = rest.nonzero()[:, 0].to(x.device)
            result = attacked(attack, x[where], y[where])
            found = _shortest(own, x[where], y[where], result.adversarial, named).cpu()
            upper[rest] = torch.minimum(upper[rest], found)

        standing = upper > 0
        if bool(standing.any()):
            for shortest in (DeepFool(norm=named, box=limits), FAB(norm=named, box=limits)):
                keep_shorter(shortest, standing)
        size = max(float(lower.max()), 1e-3)
        while size <= largest and bool(upper.isinf().any()):
            keep_shorter(ball(size), upper.isinf())
            size *= 2
        # a shorter ball at a time, for the samples that may still be misled in it
        known = upper[upper.isfinite() & (upper > 0)]
        size = float(known.max()) if len(known) else 0.0
        while size > float(lower.min()) and size > 1e-6:
            size *= _SHRINK
            rest = (lower < size) & (size < upper) & upper.isfinite()
            if bool(rest.any()):
                keep_shorter(ball(size), rest)
            if not bool((upper.isfinite() & (lower < size)).any()):
                break
    if bool((lower > upper * (1 + 1e-9) + 1e-12).any()):
        k = int((lower > upper).nonzero()[0, 0])
        raise NotConverged(
            f"sample {k} is certified beyond a perturbation that misleads the model: this is an "
            "error in torchtheory, please report it with the model"
        )
    return RobustRadius(lower, upper)


def _shortest(own: nn.Module, x: Tensor, y: Tensor, found: Tensor, norm: Norm) -> Tensor:
    """Lengths `[n]` of perturbations, cut off where the class changes; infinite where it stays."""
    start = x.double()
    delta = found.double() - start
    ends = [1] * (x.ndim - 1)
    wrong = _margins(own, start + delta, y) <= 0
    low, high = torch.zeros(len(x), dtype=torch.float64), torch.ones(len(x), dtype=torch.float64)
    low, high = low.to(x.device), high.to(x.device)
    for _ in range(30):
        middle = (low + high) / 2
        past = _margins(own, start + middle.reshape(-1, *ends) * delta, y) <= 0
        low, high = torch.where(past, low, middle), torch.where(past, middle, high)
    return torch.where(wrong, high * lengths(delta, norm), math.inf)
