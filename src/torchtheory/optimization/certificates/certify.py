r"""Certificates: a recorded descent beside what a theorem promises of it.

`certify` takes a run of any descent (a formula, a network, a list of losses) and the
assumptions someone makes about it, and answers: what do they promise at every step, is it kept,
where is it first broken, and which assumption does the run itself contradict? A promise that is
kept proves nothing about the assumptions; a promise that is broken refutes one of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from scipy import special
from torch import Tensor

from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.figure import COLORS, Figure, draw
from torchtheory.optimization.certificates.assumptions import SYMBOLS, Assumptions
from torchtheory.optimization.certificates.contradictions import (
    PLAIN,
    Contradiction,
    contradictions_of,
)
from torchtheory.optimization.certificates.promises import POWER_LAWS, PROMISES, Kind, Promise
from torchtheory.optimization.certificates.recorded_runs import AnyRun, RecordedRun, as_recorded
from torchtheory.optimization.certificates.run_constants import (
    MET,
    Constant,
    convexity_from_run,
    dominance_from_run,
    gradient_norms_of_run,
    minimum_from_run,
    smoothness_from_run,
)

LAST = "to the last point of the run"


@dataclass(frozen=True, slots=True)
class ConvergenceCertificate:
    """A run beside the promise.

    Attributes:
        kind: the theorem.
        statement: its inequality, LaTeX.
        measure: what is bounded, in words.
        times: `[T]`, the steps it speaks of.
        promised, measured: `[T]`, the two curves; over several runs `measured` is the mean.
        slack: `[T]`, promised minus measured; over several runs, minus the lower end of the
            interval of their mean, Student's, at 99% for all steps at once.
        rounding: `[T]`, how much of a negative slack rounding explains.
        first_broken: the first step at which the promise is broken, or None.
        contradictions: which assumptions the run refutes.
        constants: what was used, and how far each can be trusted.
        caveats: what the direction of an estimate means for the verdict, a sentence each.
        conclusive: whether a broken promise refutes an assumption: no constant may be off in the
            direction in which the true promise is weaker than this one.
        trials: number of runs.
    """

    kind: Kind
    statement: str
    measure: str
    times: Tensor
    promised: Tensor
    measured: Tensor
    slack: Tensor
    rounding: Tensor
    first_broken: int | None
    contradictions: tuple[Contradiction, ...]
    constants: Mapping[str, Constant]
    caveats: tuple[str, ...]
    conclusive: bool
    trials: int

    @property
    def kept(self) -> bool:
        """Whether the promise is kept at every recorded step."""
        return self.first_broken is None

    @property
    def share(self) -> float:
        """The largest measured over promised, of the steps where the promise is above rounding."""
        clear = self.promised > 2 * self.rounding
        ratios = (self.measured / self.promised)[clear]
        return float(ratios.max()) if len(ratios) else 0.0

    @property
    def sentence(self) -> str:
        """The result in plain words."""
        what = PROMISES[self.kind].title
        last = int(self.times[-1])
        if self.first_broken is None:
            said = (
                f"The promise for {what} is kept up to step {last}: the {self.measure} is at most "
                f"{self.share:.3g} times what is promised."
            )
        else:
            at = int((self.times == self.first_broken).nonzero()[0])
            said = (
                f"The promise for {what} is broken at step {self.first_broken}: the {self.measure} "
                f"is {float(self.measured[at]):.3g}, promised was {float(self.promised[at]):.3g}."
            )
            if not self.conclusive and self.caveats:
                said += " That refutes nothing: a constant is only an estimate, see the caveats."
        if PROMISES[self.kind].expected and self.trials == 1:
            said += " It is about the mean of many runs, and this is one."
        return " ".join([said, *(c.sentence for c in self.contradictions)])

    def plot(self) -> Figure:
        """Both curves as a picture; `.png` holds its bytes."""
        return draw("certificate", self.draw_on, caption=self.sentence)

    def draw_on(self, axis: Any) -> None:
        """Both curves on the Axes of a figure of one's own; what rounding decides is left out."""
        promised, measured = self.promised.clone(), self.measured.clone()
        promised[promised <= self.rounding] = math.nan
        measured[measured <= self.rounding] = math.nan
        # a power law is a line on logarithmic steps, a geometric one on plain ones
        power = self.kind in POWER_LAWS
        later = int(power and PROMISES[self.kind].first == 0)  # 0 has no logarithm
        axis.plot(self.times + later, promised, "--", color=COLORS[1], label="promised")
        axis.plot(self.times + later, measured, color=COLORS[0], label="measured")
        if self.first_broken is not None:
            at = self.first_broken + later
            axis.axvline(at, color="0.5", linewidth=0.8, linestyle=":", label="first broken")
        axis.set_yscale("log")
        axis.set_xscale("log" if power else "linear")
        axis.set(xlabel="step k + 1" if later else "step k", ylabel=self.measure)
        for side in (axis.xaxis, axis.yaxis) if power else (axis.yaxis,):
            side.set_minor_formatter("")  # labels between the powers of ten would overlap
        axis.legend(loc="best")

    def __str__(self) -> str:
        return "\n".join([self.sentence, *self.caveats])


def certify(run: AnyRun, assumptions: Assumptions) -> ConvergenceCertificate:
    r"""Compare a run with what its assumptions promise.

    Args:
        run: a `Descent`, a
            `RecordedRun`, the history of a
            `fit` with one step an epoch, or just the values
            $f(x_0),f(x_1),\dots$ as a list, array or tensor. Of iterates
            `record_points` makes a record, of an
            optimizer with a closure
            `record_optimizer`. Stochastic promises
            are about means: give independent runs as `[T, trials]`.
        assumptions: which theorem, the step, and the constants that are known.

    Rounding is allowed for: a promise counts as broken where it is exceeded by more than a few
    hundred units in the last place of the recorded values. Costs $O(Tp)$.

    Raises:
        InvalidInput: where a constant is neither given nor to be had from the run.

    >>> from torchtheory.optimization.descent.iterates import gradient_descent
    >>> f = lambda x: (x * x * torch.tensor([1.0, 4.0])).sum(-1) / 2
    >>> start = torch.ones(2, dtype=torch.float64)
    >>> known = dict(smoothness=4.0, convexity=1.0, minimum=0.0)
    >>> run = gradient_descent(f, start, 0.25, 20)
    >>> print(certify(run, Assumptions("quadratic", 0.25, **known)))
    The promise for quadratics is kept up to step 20: the gap is at most 1 times what is promised.
    >>> found = certify([1.0, 0.9, 0.88], Assumptions("quadratic", 0.25, **known))
    >>> found.first_broken                                      # (3/4)² times 1 was promised
    1
    >>> big = certify(gradient_descent(f, start, 0.6, 20), Assumptions("quadratic", 0.6, **known))
    >>> print(big.contradictions[0].sentence)
    The step 0.6 exceeds the limit 2/L = 0.5.
    """
    recorded, promise = as_recorded(run), PROMISES[assumptions.kind]
    constants = _constants(recorded, promise, assumptions)
    numbers = {name: c.value for name, c in constants.items()}
    numbers["step"] = assumptions.step
    if "minimum" in numbers:
        numbers["gap"] = max(0.0, float(recorded.values[0].mean()) - numbers["minimum"])
    times, measured, low, noise = _measured(recorded, promise, assumptions, numbers)
    promised = promise.curve(numbers, times.double())
    slack = promised - low
    noise = noise + 300 * torch.finfo(recorded.values.dtype).eps * promised
    broken = ~(slack >= -noise)  # NaN where a run diverged counts as broken
    first = int(times[int(broken.int().argmax())]) if bool(broken.any()) else None
    caveats, sound = _caveats(promise, constants)
    if any(c.how in (MET, LAST) for c in constants.values()):
        caveats += (
            "Constants were read off the run itself, which then tends to keep its promise: only "
            "constants from elsewhere put it to the test.",
        )
    return ConvergenceCertificate(
        kind=assumptions.kind,
        statement=promise.statement,
        measure=promise.measure,
        times=times,
        promised=promised,
        measured=measured,
        slack=slack,
        rounding=noise,
        first_broken=first,
        contradictions=tuple(contradictions_of(recorded, promise, assumptions, constants)),
        constants=constants,
        caveats=caveats,
        conclusive=sound and (recorded.trials > 1 or not promise.expected),
        trials=recorded.trials,
    )


# ------------------------------------------------------------------------------------ constants


def _constants(run: RecordedRun, promise: Promise, given: Assumptions) -> dict[str, Constant]:
    found: dict[str, Constant] = {}
    # the minimum first: others are estimated with it
    for name in sorted(promise.effect, key=lambda n: (n == "distance", n != "minimum")):
        value = getattr(given, name)
        if isinstance(value, Constant):
            found[name] = value
        elif value is not None:
            found[name] = Constant(float(value))
        else:
            estimate = _estimate(name, run, given, found)
            if estimate is None:
                raise InvalidInput(
                    f"{SYMBOLS[name]} is neither given nor to be had from this run; give "
                    f"{name}=, or record points and gradient norms as well"
                )
            found[name] = estimate
    return found


def _estimate(
    name: str, run: RecordedRun, given: Assumptions, found: Mapping[str, Constant]
) -> Constant | None:
    plain = given.kind in PLAIN
    match name:
        case "minimum":
            return minimum_from_run(run)
        case "smoothness" if plain:
            return smoothness_from_run(run, given.step)
        case "convexity" if plain:
            return convexity_from_run(run, given.step)
        case "dominance":
            return dominance_from_run(run, given.step, found["minimum"])
        case "gradient_bound" if run.points is not None and run.every_step:
            longest = float(run.points.diff(dim=0).norm(dim=-1).max()) / given.step
            if math.isfinite(longest):
                return Constant(longest, "at least", MET)
        case "distance":
            return _distance(run, given, found)
    return None


def _distance(
    run: RecordedRun, given: Assumptions, found: Mapping[str, Constant]
) -> Constant | None:
    if given.minimizer is not None and run.points is not None:
        away = (run.points[0] - _minimizer(run, given)).norm(dim=-1)
        return Constant(float(away.max()), "equal", "from the minimizer that was given")
    if "convexity" in found and "minimum" in found:
        gap = max(0.0, float(run.values[0].mean()) - found["minimum"].value)
        safe = found["convexity"].truth in ("equal", "at least")
        safe = safe and found["minimum"].truth in ("equal", "at least")
        return Constant(
            math.sqrt(2 * gap / found["convexity"].value),
            "at most" if safe else "either side",
            "from μ and the first gap",
        )
    if run.points is not None and run.points.ndim == 2:
        far = float((run.points[0] - run.points[-1]).norm())
        if math.isfinite(far):
            return Constant(far, "either side", LAST)
    return None


def _minimizer(run: RecordedRun, given: Assumptions) -> Tensor:
    assert run.points is not None
    assert given.minimizer is not None
    if given.minimizer.shape != run.points.shape[-1:]:
        raise ShapeMismatch(
            f"the minimizer has shape {list(given.minimizer.shape)}, the points "
            f"{list(run.points.shape)}"
        )
    return given.minimizer.to(run.points)


def _caveats(promise: Promise, constants: Mapping[str, Constant]) -> tuple[tuple[str, ...], bool]:
    """A sentence for every constant that is not known, and whether a broken promise tells."""
    said, sound = [], True
    for name, constant in constants.items():
        if constant.truth == "equal":
            continue
        effect = promise.effect[name]
        # the side of the true constant on which less is promised, or nothing at all
        worse = "at most" if effect == "stronger" or name == "convexity" else "at least"
        safe = constant.truth not in (worse, "either side")
        sound &= safe
        if effect == "limit" and name == "convexity":
            known = "the momentum that is needed may be " + ("smaller" if safe else "larger")
        elif effect == "limit":
            known = "the true limit of the step may be " + ("larger" if safe else "smaller")
        elif constant.truth == "either side":
            known = "the true promise may be stronger or weaker"
        elif safe:
            known = "the true promise may be stronger"
        else:
            known = "the true promise may be weaker"
        known += " than the one that was checked, so "
        known += "keeping this one proves less" if safe else "breaking this one refutes nothing"
        said.append(f"{SYMBOLS[name][0].upper()}{SYMBOLS[name][1:]} is {constant}: {known}.")
    return tuple(said), sound


# ------------------------------------------------------------------------------ what is compared


def _measured(
    run: RecordedRun, promise: Promise, given: Assumptions, numbers: Mapping[str, float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Times, the measured curve, its lower end where it is a mean, and what rounding may do."""
    eps = torch.finfo(run.values.dtype).eps
    if promise.expected and not run.every_step:
        raise InvalidInput("a mean over the steps needs all of them: record every step")
    if not promise.expected and run.values.ndim != 1:
        raise ShapeMismatch(
            f"the promise for {promise.title} is about single runs; this record holds "
            f"{run.trials}: certify them one at a time"
        )
    values = run.values.double()
    size = values.abs().maximum(values[0].abs())
    noise = 300 * eps * (size.amax(1) if size.ndim == 2 else size).nan_to_num(0.0, 0.0)
    curve = values
    match promise.measure:
        case "gap" | "mean gap":
            curve = values - numbers["minimum"]
        case "squared distance":
            if run.points is None or given.minimizer is None:
                raise InvalidInput("distances need the points of the run and the minimizer")
            at = _minimizer(run, given)
            curve = (run.points - at).double().square().sum(-1)
            blur = 300 * eps * (float(at.norm()) + float(run.points[0].norm()))
            noise = blur * (2 * curve.sqrt() + blur)
        case "best squared gradient" | "mean squared gradient":
            norms = gradient_norms_of_run(run, given.step)
            if norms is None or (promise.expected and run.gradient_norms is None):
                raise InvalidInput("this promise is about gradients: record gradient_norms")
            if not run.every_step:
                raise InvalidInput("the best gradient needs all steps: record every step")
            curve = norms.double().square()
            noise = torch.zeros_like(curve if curve.ndim == 1 else curve[:, 0])
    if promise.measure == "best squared gradient":
        curve = curve.cummin(0).values
    if promise.measure in ("mean gap", "mean squared gradient"):
        # over x_0, ..., x_{k-1}, the points where directions were taken
        counts = torch.arange(1, len(curve), dtype=curve.dtype)
        curve = curve[:-1].cumsum(0) / counts.reshape(-1, *[1] * (curve.ndim - 1))
        times = run.times[1 : len(curve) + 1]
    else:
        times = run.times[: len(curve)]
        later = times >= promise.first
        curve, times, noise = curve[later], times[later], noise[: len(later)][later]
    if not len(times):
        raise InvalidInput("the run is too short: the promise speaks of later steps only")
    low = curve
    if curve.ndim == 2:
        low, curve = _lower_end(curve), curve.mean(1)
    return times, curve, low, noise[: len(curve)]


def _lower_end(curves: Tensor) -> Tensor:
    """Lower ends of Student's intervals for the means of the rows, 99% for all rows at once."""
    steps, trials = curves.shape
    if trials < 2:
        return curves.mean(1)
    quantile = -float(special.stdtrit(trials - 1, 0.005 / steps))
    return curves.mean(1) - quantile * curves.std(1) / math.sqrt(trials)
