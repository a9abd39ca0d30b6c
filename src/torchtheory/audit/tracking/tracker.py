r"""Following quantities of theory while a network is trained, in the user's own loop.

The training does not notice: parameters, gradients, buffers, modes and random states are the same
bits with a tracker as without.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchtheory.audit.tracking.clock import MeasuringClock, Timetable
from torchtheory.audit.tracking.quantities import (
    KERNEL_SAMPLES,
    Reading,
    Snapshot,
    TrackedQuantity,
    find_quantities,
)
from torchtheory.audit.tracking.result import Tracking
from torchtheory.core import progress
from torchtheory.core.checks import module_with_values, open_fraction, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, TorchTheoryError
from torchtheory.core.random import as_generator
from torchtheory.models.model import PureFunction, evaluation_mode, global_randomness_kept
from torchtheory.models.problem import Loss, Problem, Task
from torchtheory.models.samples import Data, Samples

#: A quantity that fails so many times in a row is not tried again.
_FAILURES = 3


def track(
    model: nn.Module,
    data: Data,
    test: Data | None = None,
    *,
    quantities: Sequence[str] | None = None,
    every: int = 20,
    learning_rate: float | None = None,
    optimizer: Optimizer | None = None,
    overhead: float | None = 0.1,
    probe: int = 256,
    loss: Loss | None = None,
    task: Task | None = None,
    output: int | str | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Tracker:
    r"""Follow quantities of theory while `model` is trained.

    Args:
        model: the network that is being trained; it is not changed.
        data: what it is trained on: `(x, y)`, a `Dataset` or a `DataLoader`.
        test: data it does not see, if there is any.
        quantities: names of what to follow, in order; everything that applies unless given. Your
            own join them by `tracked`.
        every: measure at every so many steps, as far as there is time for it.
        learning_rate: of plain gradient descent, for the limit $2/\eta$ of the sharpness.
        optimizer: instead of `learning_rate`: what takes the steps. Its learning rate and
            momentum are read at each measurement, so it may be scheduled.
        overhead: measuring takes at most this share of the training time (a tenth of a second is
            allowed in any case); None for no bound, and then everything is measured at once and on
            time. Where time is short, what costs four times as much is measured half as often. The
            network at the start is kept and measured when there is time for it; at the end time
            that was held back is used, and what there is none for is said. Only the first of the
            quantities is measured at the start and at the end in any case. When something is
            measured depends on the clock, its value does not.
        probe: everything is measured on at most so many samples of `data` (and of `test`),
            drawn once with `seed`, and evaluated in one go.
        loss: mean loss; the task's usual one unless given.
        task: `regression`, `binary` or `multiclass`; inferred unless given.
        output: which output is meant, where the model returns several.
        confidence: of every interval.
        seed: everything random follows from it.

    Everything is measured in evaluation mode. It costs one copy of the weights in memory, and what
    the quantities take.

    >>> x = torch.linspace(-1, 1, 32)[:, None]
    >>> net = nn.Linear(1, 1)
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    >>> with track(net, (x, 3 * x), every=5, optimizer=optimizer, overhead=None) as tracker:
    ...     for _ in range(10):
    ...         optimizer.zero_grad()
    ...         (net(x) - 3 * x).square().mean().backward()
    ...         optimizer.step()
    ...         tracker.step()
    >>> found = tracker.result()
    >>> found.steps
    (0, 5, 10)
    >>> [round(v, 3) for v in found.values("sharpness")[1]]       # 2 max(1, mean of x²)
    [2.0, 2.0, 2.0]
    """
    return Tracker(
        model,
        data,
        test,
        quantities=find_quantities(quantities),
        every=every,
        learning_rate=learning_rate,
        optimizer=optimizer,
        overhead=overhead,
        probe=probe,
        loss=loss,
        task=task,
        output=output,
        confidence=confidence,
        seed=seed,
    )


class Tracker:
    """Measures as a training goes on; made by `track`, whose arguments it takes.

    Call `step` after each step of the optimizer, or pass the tracker to
    `torchtheory.training.fit` as a callback (it then counts epochs), or `lightning` to
    a Lightning trainer. `result` measures a last time.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        test: Data | None,
        *,
        quantities: Sequence[TrackedQuantity],
        every: int,
        learning_rate: float | None,
        optimizer: Optimizer | None,
        overhead: float | None,
        probe: int,
        loss: Loss | None,
        task: Task | None,
        output: int | str | None,
        confidence: float,
        seed: int,
    ) -> None:
        self._clock = MeasuringClock()
        _check_settings(every, learning_rate, optimizer, overhead, probe, confidence)
        module_with_values(model)
        # what torch.compile wraps has the same parameters, and derivatives of every order
        self.model: nn.Module = getattr(model, "_orig_mod", model)
        self.every, self.overhead, self.confidence, self.seed = every, overhead, confidence, seed
        self.learning_rate, self.optimizer = learning_rate, optimizer
        self.unit, self.steps, self.stopped = "step", 0, ""
        self.quantities = tuple(quantities)
        self.series: dict[str, dict[str, dict[int, Reading]]] = {q.name: {} for q in quantities}
        self.reasons: dict[str, str] = {}
        self._measured: list[int] = []
        self._timetable = (
            None
            if overhead is None
            else Timetable(self._clock, {q.name: q.passes for q in quantities}, overhead)
        )
        self._last_read = {q.name: -1 for q in quantities}
        self._remarks: list[str] = []
        self._memories: dict[str, dict[str, Any]] = {q.name: {} for q in quantities}
        self._failures: dict[str, int] = {}

        as_generator(seed)  # refuses what is not a seed
        with self._undisturbed():
            self._problem = Problem(
                self.model,
                data,
                test,
                loss,
                task,
                output=output,
                limit=probe,
                chunk=probe,
                seed=seed,
            )
            # in random order: the first samples of a sorted data set are all of one class
            self._problem.train = _shuffled(self._problem.train, seed)
            self._start = {k: p.clone() for k, p in self._problem.parameters.items()}
            self._begun_with = _frozen(self.optimizer)
            self._drop_what_does_not_apply()
        self._facts = self._describe()
        # in any case the first of them, so that there is a beginning
        self._measure(self.quantities if self._timetable is None else self._leading())
        if self._timetable is not None:
            self._clock.reset()

    # ------------------------------------------------------------------------------------ use

    def begin(self) -> None:
        """Say that training begins now: the time before it is none that measuring has a share of.

        Only before the first step, and needed only where something slow lies between making the
        tracker and that step, as the start of a trainer.
        """
        if self.steps == 0:
            self._clock.reset()

    def step(self) -> None:
        """Note that a step was taken; measure if it is time to."""
        self.steps += 1
        if self.stopped or self.steps % self.every:
            return
        if self._timetable is None:
            self._measure(self.quantities)
        else:
            self._measure_some(self._timetable.due(self._active()))

    def __call__(self, model: nn.Module, history: object = None) -> None:
        """The same as a callback of `torchtheory.training.fit`, once an epoch."""
        if getattr(model, "_orig_mod", model) is not self.model:
            raise InvalidInput("the tracker was made for another model than the one being trained")
        self.unit = "epoch"
        self.step()

    def lightning(self) -> Any:
        """A callback for the trainer of Lightning.

        It counts the trainer's optimizer steps, and takes the trainer's optimizer if the tracker
        was not given a learning rate.

        Raises:
            MissingPackage: if neither `lightning` nor `pytorch_lightning` is installed.
        """
        from torchtheory.audit.tracking.lightning import callback_for

        return callback_for(self)

    def result(self) -> Tracking:
        """What was found, with a measurement of the network as it is now, as far as time allows."""
        self.measure_last()
        return Tracking(
            title=type(self.model).__name__,
            unit=self.unit,
            facts={**self._facts, "quantities": ", ".join(q.name for q in self.quantities)},
            quantities=self.quantities,
            series={q: {k: dict(s) for k, s in found.items()} for q, found in self.series.items()},
            reasons={**self.reasons, **self._about_lack_of_time()},
            remarks=(*self._remarks, *self._about_spacing()),
            steps=tuple(sorted(set(self._measured))),
            taken=self.steps,
            seconds=self._clock.own,
            training_seconds=self._clock.training,
            stopped=self.stopped,
        )

    def measure_last(self) -> None:
        """Measure the network as it is now, unless this step was: what time was held back for."""
        left = [name for name in self._active() if self._last_read[name] != self.steps]
        if self.stopped or not left:
            return
        if self._timetable is None or self.steps == 0:  # or there is no training to keep up
            self._measure([q for q in self.quantities if q.name in left])
            return
        now = self._timetable.last(left)
        now += [q.name for q in self._leading() if q.name in left and q.name not in now]
        self._measure_some([name for name in now if self._last_read[name] < 0], also_now=now)

    def __enter__(self) -> Tracker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.measure_last()

    # ------------------------------------------------------------------------------ measuring

    def _leading(self) -> list[TrackedQuantity]:
        """The first of the quantities that apply."""
        active = self._active()
        return [q for q in self.quantities if q.name in active[:1]]

    def _active(self) -> list[str]:
        """The quantities that apply and have not failed too often."""
        return [q.name for q in self.quantities if self._failures.get(q.name, 0) < _FAILURES]

    def _measure_some(self, names: Sequence[str], also_now: Sequence[str] = ()) -> None:
        """These, at the start if they were not measured yet, and otherwise as they are now.

        `also_now` as they are now in any case, and before the start where there is not time for
        both: the end of a training says more than its beginning.
        """
        assert self._timetable is not None
        fresh = [n for n in names if self._last_read[n] < 0]
        now = [n for n in names if n not in fresh] if not also_now else list(also_now)
        if also_now:
            room = self._timetable.left - sum(map(self._timetable.cost, now))
            fresh = [n for n in fresh if (room := room - self._timetable.cost(n)) >= 0]
        for chosen, at_start in ((fresh, True), (now, False)):
            if chosen and not self.stopped:
                self._measure([q for q in self.quantities if q.name in chosen], at_start)

    def _measure(self, quantities: Sequence[TrackedQuantity], at_start: bool = False) -> None:
        self._clock.start()
        try:
            with self._undisturbed():
                if at_start:
                    self._take_start(quantities)
                else:
                    self._take(quantities)
        finally:
            self._clock.stop()

    def _take_start(self, quantities: Sequence[TrackedQuantity]) -> None:
        """The network as it was when tracking began, from the copy that was made of it."""
        optimizer, rate = self._begun_with, self.learning_rate
        if optimizer is None and self.optimizer is not None:  # it came later, from a trainer
            optimizer = self.optimizer
        self._read_all(quantities, self._problem, 0, _rate(optimizer, rate), optimizer)

    def _take(self, quantities: Sequence[TrackedQuantity]) -> None:
        problem = self._now()
        try:
            problem.function.refuse_non_finite_parameters()
        except NonFinite as error:
            last = max(self._measured, default=0)
            self.stopped = (
                f"{error}: training diverged between {self.unit} {last} and {self.unit} "
                f"{self.steps}, and nothing was measured after that."
            )
            return
        rate = _rate(self.optimizer, self.learning_rate)
        self._read_all(quantities, problem, self.steps, rate, self.optimizer)

    def _read_all(
        self,
        quantities: Sequence[TrackedQuantity],
        problem: Problem,
        step: int,
        rate: float | None,
        optimizer: Optimizer | None,
    ) -> None:
        at = Snapshot(
            problem,
            step,
            self._start,
            rate,
            optimizer,
            self.confidence,
            first=self._problem,
            remarks=self._remarks,
        )
        for quantity in quantities:
            self._last_read[quantity.name] = step
            if self._failures.get(quantity.name, 0) < _FAILURES:
                with self._clock.counted(quantity.name):
                    self._read(quantity, at)
        if step not in self._measured:
            self._measured.append(step)

    def _read(self, quantity: TrackedQuantity, at: Snapshot) -> None:
        """One quantity; whatever it raises becomes a reason."""
        at.memory, at.generator = self._memories[quantity.name], as_generator(self.seed)
        try:
            readings = quantity.measure(at)
        except Exception as error:
            self._failures[quantity.name] = self._failures.get(quantity.name, 0) + 1
            reason = str(error)
            if not isinstance(error, TorchTheoryError):
                sentence = " ".join(reason.split())[:300]
                reason = f"could not be computed: {type(error).__name__}: {sentence}"
            measured = bool(self.series[quantity.name])
            where = f"not measured at {self.unit} {at.step}" if measured else "not applicable"
            self.reasons[quantity.name] = f"{where}: {reason}"
            return
        self._failures[quantity.name] = 0
        for label, reading in readings.items():
            self.series[quantity.name].setdefault(label, {})[at.step] = reading

    def _now(self) -> Problem:
        """The problem with parameters and buffers as they are at this moment."""
        first, all_of_it = self._problem, sys.maxsize
        # made anew: outputs are kept in a problem and buffers in a function, and the model may
        # have got new tensors
        problem = first.restricted(all_of_it, all_of_it, as_generator(self.seed))
        problem.function = PureFunction(
            self.model, rows=first.function.rows, output=first.function.output
        )
        device = problem.function.reference().device
        if problem.train.x.device != device:
            problem.train = _moved(problem.train, device)
            problem.test = None if problem.test is None else _moved(problem.test, device)
            first.train, first.test = problem.train, problem.test
        return problem

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Measure the same whatever the caller's modes, and leave no trace."""
        devices = {p.device.type for p in self.model.parameters()} | {"cpu"}
        if "cuda" in devices:
            torch.cuda.synchronize()  # or the steps still queued would count as ours
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            for device in devices:
                stack.enter_context(torch.autocast(device, enabled=False))
            stack.enter_context(global_randomness_kept())
            stack.enter_context(progress.hidden())
            stack.enter_context(evaluation_mode(self.model))
            yield

    # ------------------------------------------------------------------------------ describing

    def _drop_what_does_not_apply(self) -> None:
        for quantity in self.quantities:
            try:
                reason = next((r for n in quantity.needs if (r := n(self._problem))), None)
            except TorchTheoryError as error:
                reason = str(error)
            if reason is not None:
                self.reasons[quantity.name] = f"not applicable: {reason}"
                self._failures[quantity.name] = _FAILURES

    def _describe(self) -> dict[str, str]:
        train, test = self._problem.train, self._problem.test
        facts = {
            "model": type(self.model).__name__,
            "parameters": f"{self._problem.function.count:,}",
            "task": self._problem.task,
            "probe": train.note or f"all {len(train)} training samples",
            "test": "none" if test is None else test.note or f"{len(test)} samples",
            "seed": str(self.seed),
        }
        if any(q.name.startswith("kernel") for q in self.quantities):
            facts["kernel"] = f"{min(len(train), KERNEL_SAMPLES)} samples of the probe"
        return facts

    def _about_lack_of_time(self) -> dict[str, str]:
        """Why what applies was never measured."""
        if self.overhead is None or self.stopped:
            return {}
        return {
            name: f"not measured: there was no time for it within {self.overhead:.0%} of the "
            "training time; a larger overhead, or None, measures it"
            for name in self._active()
            if self._last_read[name] < 0
        }

    def _about_spacing(self) -> list[str]:
        due = 1 + self.steps // self.every
        taken = {
            name: max(len(series) for series in found.values())
            for name, found in self.series.items()
            if found
        }
        due += self.steps % self.every > 0
        rare = sorted((n, name) for name, n in taken.items() if n < due)
        if not rare or self.overhead is None or self.stopped:
            return []
        some = ", ".join(f"{name} {n:,}" for n, name in rare[:3])
        return [
            f"Of {due:,} measurements, some were left out to keep the overhead below "
            f"{self.overhead:.0%} (taken of {some}); overhead=None takes them all."
        ]


def _rate(optimizer: Optimizer | None, learning_rate: float | None) -> float | None:
    """The learning rate, if it is known and one number."""
    if optimizer is None:
        return learning_rate
    rates = {float(group["lr"]) for group in optimizer.param_groups}
    return rates.pop() if len(rates) == 1 else None


def _frozen(optimizer: Optimizer | None) -> Optimizer | None:
    """The optimizer with its settings of now, which a schedule may change later."""
    if optimizer is None:
        return None
    kept: Optimizer = object.__new__(type(optimizer))
    kept.__dict__.update(optimizer.__dict__)
    kept.param_groups = [dict(group) for group in optimizer.param_groups]
    return kept


def _shuffled(samples: Samples, seed: int) -> Samples:
    return samples.at(torch.randperm(len(samples), generator=as_generator(seed)))


def _moved(samples: Samples, device: torch.device) -> Samples:
    return replace(samples, x=samples.x.to(device), y=samples.y.to(device))


def _check_settings(
    every: int,
    learning_rate: float | None,
    optimizer: object,
    overhead: float | None,
    probe: int,
    confidence: float,
) -> None:
    for name, value in (("every", every), ("probe", probe)):
        whole_number(value, name, least=1)
    if learning_rate is not None and optimizer is not None:
        raise InvalidInput("give learning_rate or optimizer, not both: they may disagree")
    if learning_rate is not None:
        positive_number(learning_rate, "learning_rate")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise InvalidType(
            f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}"
        )
    if overhead is not None and not 0 < overhead <= 1:
        raise InvalidInput(f"overhead is a share of the time in (0, 1], or None, not {overhead!r}")
    open_fraction(confidence, "confidence")
