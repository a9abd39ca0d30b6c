"""Inputs in units of their own spread, so that one radius means the same for all of them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.core.budget import time_left
from torchtheory.core.errors import UnsupportedModel
from torchtheory.models.model import parts_of
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.models.targets import Task
from torchtheory.models.untouched import copied
from torchtheory.robustness.attacks.attack import AT_ONCE
from torchtheory.robustness.attacks.gradient_steps import PGD

#: Training samples that tell the spread, at most.
SPREAD_OF = 4096


def no_noise(problem: Problem) -> str | None:
    if problem.draws_random_numbers:
        return "the model draws random numbers, so that an input has no one class to attack"
    return None


class InUnits(nn.Module):
    """A classifier of inputs in standard deviations; if it has one output, it decides at 0.

    Args:
        model: of inputs `scale * z + center`.
        scale, center: of the inputs, one number or one for each feature.
        output: which of several outputs is meant.
        level: of the decision, taken off the outputs.
    """

    scale: Tensor
    center: Tensor

    def __init__(
        self,
        model: nn.Module,
        scale: Tensor,
        center: Tensor,
        output: int | str | None,
        level: float,
    ) -> None:
        super().__init__()
        self.model, self.output, self.level = model, output, level
        self.register_buffer("scale", scale)
        self.register_buffer("center", center)

    def forward(self, z: Tensor) -> Any:
        made: Any = self.model(z * self.scale + self.center)
        if self.output is not None:
            made = parts_of(made)[self.output]
        if made.ndim == 1:  # one logit, without a dimension of its own
            made = made.unsqueeze(1)
        return made - self.level if self.level else made


@dataclass(frozen=True, slots=True)
class Scene:
    """What is attacked.

    Attributes:
        problem: in double precision where the model's own would lose small steps.
        model: of inputs in standard deviations.
        x, y: samples, the inputs in standard deviations.
        samples: the same, as given.
        box: least and largest value of images, in these units.
        step: what moves by how much, with a place for the share.
        name: `train` or `test`.
        exact: whether the model can be run in double precision.
    """

    problem: Problem
    model: InUnits
    x: Tensor
    y: Tensor
    samples: Samples
    box: tuple[float, float] | None
    step: str
    name: str
    exact: bool

    def attack(self, radius: float, steps: int, record: FindingRecord) -> PGD:
        """Along the margin: the gradient of a cross-entropy vanishes where a model is sure."""
        return PGD(
            radius,
            steps,
            loss="margin",
            box=self.box,
            task=self.task,
            chunk=self.at_once,
            generator=record.generator,
        )

    @property
    def images(self) -> bool:
        """Whether the samples can be looked at."""
        return self.x.ndim == 4 and self.x.shape[1] in (1, 3) and min(self.x.shape[2:]) > 3

    @property
    def part(self) -> str:
        """How many samples there were time for; empty for all of them."""
        used, all_ = len(self.samples), self.samples.population
        return f" (from {used:,} of {all_:,} {self.name} samples)" if used < all_ else ""

    @property
    def task(self) -> Task:
        return self.problem.task

    @property
    def classes(self) -> int:
        outputs = self.problem.outputs(self.samples.first(1))
        return 2 if self.task == "binary" else outputs.shape[1]

    @property
    def at_once(self) -> int:
        """Samples whose gradients fit into the memory together."""
        return max(1, min(self.problem.capacity, max(16, AT_ONCE // self.x[0].numel())))

    def within(self, attack: PGD, steps: float, share: float, fewest: int) -> Scene:
        """The samples that so many steps of an attack fit into a share of the time left for.

        A few steps are taken to see, for few samples and for all of them: what a call costs does
        not depend on their number. None where there is no time for `fewest`.
        """
        if time_left() == math.inf:
            return self
        few = min(fewest, len(self.x))
        self._seconds(attack, 1, few)  # the first call of a model is slow
        low, high = (self._seconds(attack, steps, count) for count in (few, len(self.x)))
        limit = share * time_left()
        if limit < min(low, high):
            return self.first(0)
        part = 1.0 if high <= limit else (limit - low) / (high - low)
        return self.first(int(few + part * (len(self.x) - few)))

    def _seconds(self, attack: PGD, steps: float, count: int) -> float:
        """What so many steps will take, from 1 and 5 of them: the rest is spent once."""
        taken = []
        for k in (1, 5):
            start = time.perf_counter()
            replace(attack, steps=k)(self.model, self.x[:count], self.y[:count])
            taken.append(time.perf_counter() - start)
        return taken[0] + max(0.0, taken[1] - taken[0]) / 4 * steps

    def first(self, count: int) -> Scene:
        """Some of the samples."""
        return replace(self, x=self.x[:count], y=self.y[:count], samples=self.samples.first(count))

    def right(self) -> Tensor:
        """Which samples are classified right, `[n]`."""
        return ~self.problem.errors(self.samples)

    def named(self, z: Tensor) -> Tensor:
        """The classes `[k]` that the model gives to inputs in these units."""
        points = replace(self.samples.first(len(z)), x=z * self.model.scale + self.model.center)
        outputs = self.problem.outputs(points)
        if self.task == "binary":
            return (outputs.reshape(len(z)) > self.model.level).long()
        return outputs.argmax(1)


def scene(problem: Problem, record: FindingRecord, most: int) -> Scene:
    """At most so many samples, of the test data if there is any, in units of their spread.

    Every feature of a table in its own standard deviation, everything else in that of all entries.
    A feature that never changes is not moved.
    """
    which = problem.function.output
    if isinstance(which, tuple):
        raise UnsupportedModel("the model has several outputs side by side, and this is about one")
    double = problem.in_double_if_possible()
    exact = double.function.reference().dtype == torch.float64
    model = problem.model
    if torch.finfo(problem.function.reference().dtype).eps > 1e-6:
        if not exact:
            raise UnsupportedModel(
                "the model computes in a precision in which a small step is lost to rounding"
            )
        problem, model = double, copied(model).double()
    name, source = ("train", problem.train) if problem.test is None else ("test", problem.test)
    samples = source.some(most, record.generator)
    known = torch.cat([problem.train.x[:SPREAD_OF], samples.x])
    shape = known.shape[1:]
    if len(shape) == 1:
        step = "every feature moves by at most {} of its standard deviation"
        still = (known == known[0]).all(0)
        scale = torch.where(still, 0.0, known.std(0))
        center = torch.where(still, known[0], known.mean(0))
    else:
        step = (
            f"every {'pixel' if len(shape) == 3 else 'entry'} moves by at most {{}} of the "
            "standard deviation of all of them"
        )
        scale, center = known.std(), torch.zeros_like(known.flatten()[0])
    if not bool(((scale > 0) & scale.isfinite()).any()):
        raise UnsupportedModel("all inputs are equal, so there is no scale to move them by")
    unit = torch.where(scale > 0, scale, 1.0)
    box = None
    if len(shape) == 3:  # pixels have a least and a largest value
        box = (float((known.min() - center) / unit), float((known.max() - center) / unit))
    return Scene(
        problem,
        InUnits(model, scale, center, which, problem.decision_level),
        (samples.x - center) / unit,
        samples.y.reshape(len(samples)).long(),
        samples,
        box,
        step,
        name,
        exact,
    )
