r"""Say it, check it, break it: a statement, its measurement, and the control that must fail.

```python
says = run.states("M-24", r"\|H(0)-H^\infty\|_F \sim m^{-1/2}")
says.slope(widths, errors, -0.5, against=(-1.0, 0.0))
says.fails("weights with mean 0.3", widths, shifted)
```

Each verb measures and records one claim. `fails` sends observations made with a hypothesis broken
through the *same* estimator, relation, tolerance and confidence, so a control cannot be another
check. Wherever a verb takes observations, an `Interval` that was made of them already will do. The
confidence that a verb takes is the least: a lab judges all of its claims together, at a higher one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
import torch

from torchtheory.core import catalogue
from torchtheory.core.checks import described, number_between
from torchtheory.core.claim import Claim, Relation, Values, claim, split_ids, with_control
from torchtheory.core.errors import InvalidInput, InvalidType, UnknownName
from torchtheory.core.intervals import (
    Interval,
    SampleValues,
    clopper_pearson,
    fit_slope,
    mean_interval,
)

Observed = Any  # numbers, an array of them, or an Interval
Estimator = Callable[..., Observed]


class Recorder(Protocol):
    """What keeps claims: the run of a lab, a finding of the audit."""

    @property
    def claims(self) -> list[Claim]: ...
    @property
    def errata(self) -> list[CounterExample]: ...


@dataclass(frozen=True, slots=True)
class CounterExample:
    """An error of a source with the numbers that refute it; its claim must be violated."""

    key: str
    claim: Claim

    @property
    def text(self) -> catalogue.Erratum:
        return erratum_text(self.key)

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "id": self.text.id,
            "printed": self.text.printed,
            "correct": self.text.correct,
            "claim": self.claim.to_json(),
        }


class _Check(NamedTuple):
    """The check that was made last, so that `fails` can make it again."""

    place: int
    estimator: Estimator
    observations: int
    promised: Values
    relation: Relation
    tolerance: float


@dataclass(slots=True)
class Statement:
    r"""A statement to be checked by verbs; made by `states`, `checks` and `refutes` of a record.

    Every verb takes `where`, a sentence on where the statement was met, and returns the claim.

    >>> from torchtheory.core.record import Record
    >>> run = Record()
    >>> says = run.states("N-08", r"t \le R^2/\gamma^2")
    >>> str(says.at_most([3, 8], 9).verdict)
    'holds'
    >>> str(says.fails("no margin", [12, 40]).control.verdict)
    'violated'
    """

    record: Recorder
    ids: str | Sequence[str]
    text: str
    erratum: str = ""
    self_check: bool = False
    _check: _Check | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        ids = [self.ids] if isinstance(self.ids, str) else self.ids
        if not isinstance(ids, Sequence) or not all(isinstance(i, str) for i in ids):
            raise InvalidType(
                f"a statement names catalogue ids such as 'N-08', not {described(self.ids)}"
            )
        if not isinstance(self.text, str):
            raise InvalidType(f"a statement is LaTeX in a string, not {described(self.text)}")
        split_ids(self.ids)  # unknown ones are met here, not at the first check

    def equal(
        self, measured: Observed, promised: Values = 0.0, within: float = 0.0, *, where: str = ""
    ) -> Claim:
        """`measured` is `promised`, up to the tolerance `within * max(1, |promised|)`."""
        return self._meet("==", _as_given, (measured,), promised, within, where)

    def at_most(
        self,
        measured: Observed,
        promised: Values,
        within: float = 0.0,
        *,
        trivial: float | None = None,
        loose: str = "",
        where: str = "",
    ) -> Claim:
        """`measured <= promised`; of an interval, unless all of it lies above.

        Args:
            trivial: the value that is true without any theorem; a promise no better is vacuous.
            loose: why no case can come within a factor of 3 of the bound.
        """
        return self._meet("<=", _as_given, (measured,), promised, within, where, trivial, loose)

    def at_least(
        self,
        measured: Observed,
        promised: Values,
        within: float = 0.0,
        *,
        trivial: float | None = None,
        loose: str = "",
        where: str = "",
    ) -> Claim:
        """`measured >= promised`; see `at_most`."""
        return self._meet(">=", _as_given, (measured,), promised, within, where, trivial, loose)

    def below(
        self,
        measured: Observed,
        promised: Values,
        *,
        trivial: float | None = None,
        loose: str = "",
        where: str = "",
    ) -> Claim:
        """`measured < promised`, strictly."""
        return self._meet("<", _as_given, (measured,), promised, 0.0, where, trivial, loose)

    def above(
        self,
        measured: Observed,
        promised: Values,
        *,
        trivial: float | None = None,
        loose: str = "",
        where: str = "",
    ) -> Claim:
        """`measured > promised`, strictly."""
        return self._meet(">", _as_given, (measured,), promised, 0.0, where, trivial, loose)

    def mean(
        self,
        samples: Observed,
        promised: Values,
        within: float = 0.0,
        *,
        against: Values = (),
        confidence: float = 0.99,
        where: str = "",
    ) -> Claim:
        """The mean of independent samples is `promised`: Student's interval contains it.

        Args:
            against: other values that the interval must exclude, or nothing was resolved.
        """
        return self._meet(
            "~",
            lambda x: x if isinstance(x, Interval) else mean_interval(_numbers(x), confidence),
            (samples,),
            promised,
            within,
            where,
            against=against,
        )

    @overload
    def slope(
        self,
        fit: Interval,
        promised: float,
        within: float = 0.0,
        /,
        *,
        against: Values = (),
        where: str = "",
    ) -> Claim: ...

    @overload
    def slope(
        self,
        x: SampleValues,
        y: SampleValues,
        promised: float,
        within: float = 0.0,
        *,
        against: Values = (),
        confidence: float = 0.99,
        log: bool = True,
        where: str = "",
    ) -> Claim: ...

    def slope(
        self,
        x: Any,
        y: Any = None,
        promised: Any = None,
        within: Any = None,
        *,
        against: Values = (),
        confidence: float = 0.99,
        log: bool = True,
        where: str = "",
    ) -> Claim:
        r"""$y\sim x^\beta$ with the exponent `promised` (a line's slope with `log=False`).

        `slope(x, y, promised, within)`, or `slope(fit, promised, within)` of a fitted interval.

        Args:
            against: other rates that the interval must exclude, or nothing was resolved.
        """
        observed: tuple[Any, ...] = (x,) if isinstance(x, Interval) else (x, y)
        # without y, what follows it stands one place earlier
        rest = [v for v in (y, promised, within)[len(observed) - 1 :] if v is not None]
        if not 1 <= len(rest) <= 2:
            raise InvalidInput(
                "slope takes x, y, the promised rate and a tolerance, or a fitted Interval in "
                f"place of x and y, and {len(rest)} numbers came after "
                f"{'the Interval' if isinstance(x, Interval) else 'x and y'}"
            )
        rate, tolerance = (*rest, 0.0)[:2]

        def fit(*line: Any) -> Interval:
            if isinstance(line[0], Interval):
                return line[0]
            across, values = line
            return fit_slope(_numbers(across), _numbers(values), confidence, log=log)

        return self._meet("slope", fit, observed, rate, tolerance, where, against=against)

    def share(
        self, hits: Observed, at_least: float, *, confidence: float = 0.999, where: str = ""
    ) -> Claim:
        """A share of at least `at_least` of independent trials hits, `hits` being one bool each.

        Clopper and Pearson's interval is taken; the claim is violated if all of it lies below.
        """
        number_between(at_least, "at_least", 0, 1, closed="right")

        def measure(good: Any) -> Interval:
            if isinstance(good, Interval):
                return good
            flags = torch.as_tensor(_numbers(good))
            if not ((flags == 0) | (flags == 1)).all():
                raise InvalidInput("a share is counted over trials: give one True or False each")
            return clopper_pearson(int(flags.sum()), flags.numel(), confidence)

        return self._meet(">=", measure, (hits,), at_least, 0.0, where)

    def fails(self, broken: str, *observed: Observed, promised: Values | None = None) -> Claim:
        """The last check again, with a hypothesis broken: it must come out violated.

        Args:
            broken: which hypothesis is broken, and how.
            observed: what was observed then, as the verb took it.
            promised: what the statement promises then; as before unless given.
        """
        if self.erratum:
            raise InvalidInput("a refuted statement must fail itself; it has no control")
        if self._check is None:
            raise InvalidInput("say what must hold before you say what fails")
        if not isinstance(broken, str) or not broken.strip():
            raise InvalidInput(
                f"say first which hypothesis is broken, in words, not {described(broken)}"
            )
        last, made = self._check, self.record.claims[self._check.place]
        if made.control is not None:
            raise InvalidInput("this check has a control already; make the check again for another")
        ready = len(observed) == 1 and isinstance(observed[0], Interval)
        if len(observed) != last.observations and not ready:
            wanted = "x and y" if last.observations == 2 else "one argument"
            raise InvalidInput(f"the check took {wanted} (or an Interval), and so does its control")
        measured, interval = _split(last.estimator(*observed))
        if made.interval and interval and made.interval.confidence != interval.confidence:
            raise InvalidInput(
                f"the check has confidence {made.interval.confidence:g} and its control "
                f"{interval.confidence:g}; they must be equal"
            )
        control = claim(
            self.ids,
            self.text,
            promised=last.promised if promised is None else promised,
            relation=last.relation,
            measured=measured,
            tolerance=last.tolerance,
            reason=broken,
            interval=interval,
        )
        self.record.claims[last.place] = with_control(made, control)
        return self.record.claims[last.place]

    def _meet(
        self,
        relation: Relation,
        estimator: Estimator,
        observed: tuple[Observed, ...],
        promised: Values,
        within: float,
        where: str,
        trivial: float | None = None,
        loose: str = "",
        against: Values = (),
    ) -> Claim:
        measured, interval = _split(estimator(*observed))
        made = claim(
            self.ids,
            self.text,
            promised=promised,
            relation=relation,
            measured=measured,
            tolerance=within,
            reason=where,
            trivial=trivial,
            interval=interval,
            loose=loose.strip(),
            against=against,
        )
        made = replace(made, self_check=self.self_check)
        if self.erratum and made.measured is not None and math.isnan(made.measured):
            raise InvalidInput(
                f"{self.erratum} is refuted by a number, and what was measured is NaN"
            )
        if self.erratum:
            self.record.errata.append(CounterExample(self.erratum, made))
        else:
            place, count = len(self.record.claims), 2 if relation == "slope" else 1
            self._check = _Check(place, estimator, count, promised, relation, within)
            self.record.claims.append(made)
        return made


def erratum_text(key: str) -> catalogue.Erratum:
    """The words of an erratum, by its key."""
    known = catalogue.errata()
    if key not in known:
        raise UnknownName("erratum", key, known)
    return known[key]


def _as_given(x: Observed) -> Observed:
    return x


def _numbers(x: Observed) -> Observed:
    """The observations as they are, if they are numbers."""
    if isinstance(x, torch.Tensor):
        return x
    try:
        if isinstance(x, str | bytes) or x is None:
            raise TypeError
        np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidType(
            f"a check is made on numbers, an array of them or an Interval, not {described(x)}"
        ) from None
    return x


def _split(found: Observed) -> tuple[Values, Interval | None]:
    return (found.estimate, found) if isinstance(found, Interval) else (found, None)
