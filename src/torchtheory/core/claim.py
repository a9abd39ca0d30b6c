r"""A claim: a mathematical statement met by a measurement.

Labs and audits both produce claims, and whatever renders or stores results knows only claims,
tables and figures. The verdict is *computed* from what was promised and what was measured:

| relation | holds when (`t = tolerance * max(1, |promised|)`) |
|---|---|
| `<=` / `>=` | `measured <= promised + t` / `measured >= promised - t` |
| `<` / `>`   | strictly; no tolerance |
| `==`          | `|measured - promised| <= t` |
| `~`           | the measurement's confidence interval, widened by `t`, contains the promise |
| `slope`       | the same, where measured is a fitted rate |

An inequality that carries a confidence interval is *violated* only when the whole interval
contradicts it, i.e. when the data refute it at the stated confidence.

A claim also knows how much it *could* have shown. An inequality has a *slack*: how many times
better the promise could be and still hold, in the case nearest to it. A statistical equation
names alternatives (`against`) that its interval must exclude. `weaknesses` says what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal, SupportsFloat, cast

import numpy as np
import torch

from torchtheory.core import catalogue
from torchtheory.core.checks import described, nonnegative_number
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.core.foreign_text import printable
from torchtheory.core.intervals import COUNTED, Interval

Relation = Literal["<=", "<", ">=", ">", "==", "~", "slope"]
RELATIONS: tuple[Relation, ...] = ("<=", "<", ">=", ">", "==", "~", "slope")
INEQUALITIES = ("<=", "<", ">=", ">")
STATISTICAL = ("~", "slope")

#: A bound that could be more than so many times better in every case met is a weak check.
LARGEST_SLACK = 3.0

Number = float | int | bool
Values = Number | Sequence[Number] | np.ndarray[Any, Any] | torch.Tensor

#: A bound far from every case met; an equation that excludes no alternative; a control that fails
#: in few of its cases, without a number, or without the interval of its check; a tolerance as large
#: as the promise; alternatives so far away that half or twice the promise is met as well; a
#: control, or an alternative, that an interval excludes so narrowly that another seed's would not.
Weakness = Literal["loose", "unresolved", "control", "tolerance", "far", "narrow"]

#: What must lie outside of an interval lies so many of its half-widths away from the estimate. At
#: confidence 0.999 the half-width is 3.3 standard errors, and 6.6 leave a chance of 1 in 2,000.
MARGIN = 2.0


class Verdict(StrEnum):
    """What a claim came to."""

    HOLDS = "holds"
    VIOLATED = "violated"
    VACUOUS = "vacuous"
    NOT_APPLICABLE = "not applicable"
    NOT_DONE = "not done"


@dataclass(frozen=True, slots=True)
class Claim:
    r"""One statement, what it promises, and what was measured.

    Build claims with `claim`, which checks its arguments and reduces arrays to their worst
    case. The fields are plain data.

    Attributes:
        ids: catalogue ids the claim belongs to (may be empty for a user's own finding).
        statement: the statement, LaTeX.
        promised, relation, measured, tolerance: the comparison; see the module's table.
        reason: a sentence on why it does not apply, what vacuous means here, or where it was met.
        trivial: the value that is true without any theorem (a risk is at most 1); a promise no
            better than that is vacuous.
        interval: confidence interval of the measurement, where it is statistical.
        cases: how many comparisons the claim stands for; the worst of them is shown.
        violations: how many of them contradict the claim.
        slack: how many times smaller the promise of an inequality could be (larger for >=; in
            size the other way round where it is negative) and still hold in the nearest case.
            For a share of trials of at least one half it is that of the probability of failure.
            Infinite where it could be 0, None where a ratio has no meaning (a promise of 0, or
            that something is finite).
        loose: why no case can come near the bound; empty where one can.
        against: values that the interval of a statistical equation must exclude.
        control: the same check where a hypothesis is broken. It must come out violated.
        undone: whether it may well apply, and there was no time or memory to measure.
        self_check: whether only an error of ours could break it: it speaks about how a number was
            made, not about the network.
        blunt: whether the tolerance is as large as the promise in each of its cases, so that 0
            would do as well.
    """

    ids: tuple[str, ...]
    statement: str
    promised: float | None
    relation: Relation | None
    measured: float | None
    tolerance: float = 0.0
    reason: str = ""
    trivial: float | None = None
    interval: Interval | None = None
    cases: int = 1
    violations: int = 0
    slack: float | None = None
    loose: str = ""
    against: tuple[float, ...] = ()
    control: Claim | None = None
    undone: bool = False
    self_check: bool = False
    blunt: bool = False

    @property
    def verdict(self) -> Verdict:
        """Holds, violated, vacuous, not applicable or not done; computed, never given."""
        if self.relation is None or self.promised is None or self.measured is None:
            return Verdict.NOT_DONE if self.undone else Verdict.NOT_APPLICABLE
        low, high = self.measured, self.measured
        if self.interval is not None:
            low, high = self.interval.low, self.interval.high
        if not _holds(self.relation, self.promised, low, high, self.tolerance):
            return Verdict.VIOLATED
        if self.trivial is not None and not _better_than_trivial(
            self.relation, self.promised, self.trivial
        ):
            return Verdict.VACUOUS
        return Verdict.HOLDS

    @property
    def broken(self) -> bool:
        """Whether the measurement refutes it, or its control did not fail and it shows nothing."""
        return self.verdict is Verdict.VIOLATED or (
            self.control is not None and self.control.verdict is not Verdict.VIOLATED
        )

    @property
    def accepted(self) -> tuple[float, ...]:
        """The alternatives that the measurement does not exclude; there should be none."""
        if self.relation not in STATISTICAL or self.interval is None:
            return ()
        low, high = self.interval.low, self.interval.high
        return tuple(a for a in self.against if _holds(self.relation, a, low, high, self.tolerance))

    @property
    def about_failures(self) -> bool:
        """Whether its slack is that of the probability of failure, not of the share of hits."""
        counted = _is_counted(self.interval)
        return self.promised is not None and _about_failures(self.relation, self.promised, counted)

    @property
    def weaknesses(self) -> tuple[Weakness, ...]:
        """Why the check has less power than it should; empty for a good one."""
        found: list[Weakness] = []
        if self.slack is not None and round(self.slack, 1) > LARGEST_SLACK and not self.loose:
            found.append("loose")
        if self.relation in STATISTICAL and (not self.against or self.accepted):
            found.append("unresolved")
        if self.control is not None and _weak_control(self, self.control):
            found.append("control")
        if self.blunt:
            found.append("tolerance")
        if _half_or_twice_is_met(self):
            found.append("far")
        if _narrow(self):
            found.append("narrow")
        return tuple(found)

    def at(self, confidence: float) -> Claim:
        """The same comparison where its interval, and its control's, have another confidence."""
        control = None if self.control is None else self.control.at(confidence)
        if self.interval is None or self.relation is None:
            return replace(self, control=control)
        interval = self.interval.at(confidence)
        promised = np.array([self.promised])
        low, high = interval.low, interval.high
        return replace(
            self,
            interval=interval,
            control=control,
            violations=int(not _holds(self.relation, promised, low, high, self.tolerance)),
            slack=_slack(
                self.relation,
                promised,
                np.array([low if self.relation in ("<=", "<") else high]),
                counted=_is_counted(interval),
            ),
        )

    @property
    def id(self) -> str:
        return ", ".join(self.ids)

    def __repr__(self) -> str:
        r"""Id, verdict and comparison, then the statement and the reason.

        >>> claim("N-08", r"t \le R^2/\gamma^2", promised=9.0, relation="<=", measured=[4, 7])
        Claim N-08 holds: measured 7 <= promised 9 (worst of 2 cases)
          t \le R^2/\gamma^2
        """
        said = " ".join(filter(None, ("Claim", self.id, str(self.verdict))))
        if self.relation is not None and self.measured is not None and self.promised is not None:
            said += f": measured {self.measured:.4g} {self.relation} promised {self.promised:.4g}"
            if self.interval is not None:
                low, high = self.interval.low, self.interval.high
                said += f", interval [{low:.4g}, {high:.4g}]"
            if self.cases > 1:
                said += f" (worst of {self.cases:,} cases)"
        lines = [said, f"  {self.statement}"]
        if self.reason:
            lines.append(f"  {self.reason}")
        if self.control is not None:
            lines.append(f"  its control: {self.control.verdict}")
        return printable("\n".join(lines))

    @property
    def source(self) -> str:
        """Where the statement stands, from the catalogue."""
        return "; ".join(dict.fromkeys(catalogue.entry(i).citation for i in self.ids))

    def to_json(self) -> dict[str, Any]:
        """Plain data; non-finite numbers become the strings `"inf"`, `"-inf"`, `"nan"`."""
        return {
            "id": self.id,
            "statement": self.statement,
            "source": self.source,
            "promised": json_number(self.promised),
            "relation": self.relation,
            "measured": json_number(self.measured),
            "tolerance": self.tolerance,
            "verdict": str(self.verdict),
            "reason": self.reason,
            "trivial": json_number(self.trivial),
            "interval": None if self.interval is None else self.interval.to_json(),
            "cases": self.cases,
            "violations": self.violations,
            "slack": json_number(self.slack),
            "loose": self.loose,
            "against": [json_number(a) for a in self.against],
            "control": None if self.control is None else self.control.to_json(),
            "self_check": self.self_check,
            "blunt": self.blunt,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Claim:
        """Inverse of `to_json`; the verdict is computed again."""
        return cls(
            ids=split_ids(data["id"]),
            statement=data["statement"],
            promised=parse_number(data["promised"]),
            relation=data["relation"],
            measured=parse_number(data["measured"]),
            tolerance=data["tolerance"],
            reason=data["reason"],
            trivial=parse_number(data["trivial"]),
            interval=None if data["interval"] is None else Interval.from_json(data["interval"]),
            cases=data["cases"],
            violations=data.get("violations", 0),
            slack=parse_number(data.get("slack")),
            loose=data.get("loose", ""),
            against=tuple(float(a) for a in data.get("against", ())),
            control=None if data["control"] is None else cls.from_json(data["control"]),
            undone=data.get("verdict") == Verdict.NOT_DONE,
            self_check=data.get("self_check", False),
            blunt=data.get("blunt", False),
        )


def claim(
    id: str | Sequence[str],
    statement: str,
    *,
    promised: Values,
    relation: Relation,
    measured: Values,
    tolerance: float = 0.0,
    reason: str = "",
    trivial: float | None = None,
    interval: Interval | None = None,
    loose: str = "",
    against: Values = (),
) -> Claim:
    r"""Make a claim, refusing the ill-formed ones.

    `promised` and `measured` may be arrays of one shape (or one an array and the other a
    number): the claim is then about every entry, and the entry with the least slack is kept.

    >>> c = claim("N-08", r"t \le R^2/\gamma^2", promised=9.0, relation="<=", measured=[4, 9, 7])
    >>> c.measured, c.cases, str(c.verdict)
    (9.0, 3, 'holds')
    >>> str(claim("M-29", r"R \le 1", promised=1.3, relation="<=", measured=0.2, trivial=1).verdict)
    'vacuous'
    """
    if relation not in RELATIONS:
        raise InvalidInput(f"relation must be one of {', '.join(RELATIONS)}, not {relation!r}")
    nonnegative_number(tolerance, "tolerance")
    if relation in ("<", ">") and tolerance:
        raise InvalidInput("a strict relation has no tolerance; use <= or >=")
    if relation in STATISTICAL and interval is None:
        raise InvalidInput(
            f"relation {relation!r} needs the confidence interval of the measurement"
        )
    if relation == "==" and interval is not None:
        raise InvalidInput(
            "an equation with a confidence interval is statistical: its relation is ~ (or slope)"
        )
    if trivial is not None and relation not in INEQUALITIES:
        raise InvalidInput("only an inequality can be vacuous: trivial= does not go with ==")
    if loose and relation not in INEQUALITIES:
        raise InvalidInput(f"only a bound can be loose, and the relation is {relation!r}")
    others = tuple(_as_array(against, "against").ravel().tolist())
    if others and relation not in STATISTICAL:
        raise InvalidInput(
            f"alternatives go with a statistical equation, and the relation is {relation!r}"
        )
    if not all(map(math.isfinite, others)):
        raise InvalidInput(
            f"alternatives must be finite numbers, not {described(list(others))}: any interval "
            "excludes the others"
        )
    if trivial is not None and math.isnan(trivial):
        raise InvalidInput("trivial must be a number, not NaN")
    p, m = _as_array(promised, "promised"), _as_array(measured, "measured")
    if p.size == 0 or m.size == 0:
        raise InvalidInput("a claim needs at least one measurement: the arrays are empty")
    if p.shape != m.shape and 1 not in (p.size, m.size):
        # no broadcasting: [n, 1] against [n] would be n * n comparisons
        raise ShapeMismatch(
            f"promised has shape {list(p.shape)} and measured {list(m.shape)}; they must be equal, "
            "or one of them a number"
        )
    p, m = np.broadcast_arrays(p.ravel(), m.ravel())
    if interval is not None and p.size > 1:
        raise InvalidInput("a claim with a confidence interval is about one number, not an array")
    if interval is not None and not interval.low <= m[0] <= interval.high:
        raise InvalidInput(
            f"measured is {m[0]}, outside its own confidence interval "
            f"[{interval.low}, {interval.high}]"
        )
    if any(a == p[0] for a in others):
        raise InvalidInput(f"{p[0]:g} is what is promised, and cannot be an alternative to it")
    low, high = (m, m) if interval is None else (interval.low, interval.high)
    violated = ~np.atleast_1d(_holds(relation, p, low, high, tolerance))
    # rounding may rank an entry that just fails behind one that just holds
    shown = np.flatnonzero(violated) if violated.any() else np.arange(p.size)
    worst = int(shown[np.argmin(_room(relation, p, m)[shown])])
    # the end that decides: an interval reaching to 0 would meet any promise
    nearest = np.broadcast_to(low if relation in ("<=", "<") else high, m.shape)
    return Claim(
        ids=split_ids(id),
        statement=statement,
        promised=float(p[worst]),
        relation=relation,
        measured=float(m[worst]),
        tolerance=float(tolerance),
        reason=reason,
        trivial=None if trivial is None else float(trivial),
        interval=interval,
        cases=int(p.size),
        violations=int(violated.sum()),
        slack=_slack(relation, p, nearest, counted=_is_counted(interval)),
        loose=loose,
        against=others,
        blunt=_as_large_as_promised(tolerance, p),
    )


def not_applicable(id: str | Sequence[str], statement: str, reason: str) -> Claim:
    """A claim whose hypotheses the problem does not meet; `reason` says which."""
    if not reason:
        raise InvalidInput("say why nothing was measured: reason must not be empty")
    return Claim(split_ids(id), statement, None, None, None, reason=reason)


def not_done(id: str | Sequence[str], statement: str, reason: str) -> Claim:
    """A claim that nobody had the time or the memory to check; `reason` says which."""
    return replace(not_applicable(id, statement, reason), undone=True)


def with_control(made: Claim, control: Claim) -> Claim:
    """Attach the negative control of a claim."""
    return replace(made, control=control)


def split_ids(id: str | Sequence[str]) -> tuple[str, ...]:
    """Ids as a tuple, each known to the catalogue.

    >>> split_ids("N-06, N-07")
    ('N-06', 'N-07')
    """
    ids = [i.strip() for i in id.split(",")] if isinstance(id, str) else list(id)
    return tuple(catalogue.entry(i).id for i in ids if i)


def json_number(value: float | None) -> float | str | None:
    """A number as strict JSON can carry it."""
    return value if value is None or math.isfinite(value) else str(value)


def parse_number(value: float | str | None) -> float | None:
    """Inverse of `json_number`."""
    return None if value is None else float(value)


def _as_array(values: Values, name: str) -> np.ndarray[Any, Any]:
    if isinstance(values, torch.Tensor) and not values.is_complex():
        return cast("np.ndarray[Any, Any]", values.detach().cpu().double().numpy())
    try:
        if isinstance(values, str | bytes) or values is None or np.iscomplexobj(values):
            raise TypeError
        if isinstance(values, Sequence):
            values = [float(cast(SupportsFloat, v)) for v in values]
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InvalidType(
            f"{name} must be a real number or an array of them, not {values!r:.60}"
        ) from None


def _better_than_trivial(relation: Relation, promised: float, trivial: float) -> bool:
    return promised < trivial if relation in ("<=", "<") else promised > trivial


def _room(
    relation: Relation, promised: np.ndarray[Any, Any], measured: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """How far each comparison is from failing, in units of its tolerance; NaN counts as failed."""
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.where(promised == measured, 0.0, promised - measured)
        # an infinite promise is infinitely far from any number, not a NaN away
        scale = np.where(np.isinf(promised), 1.0, np.maximum(1.0, np.abs(promised)))
        if relation in ("<=", "<"):
            room = difference / scale
        elif relation in (">=", ">"):
            room = -difference / scale
        else:
            room = -np.abs(difference) / scale
    return np.where(np.isnan(room), -np.inf, room)


def _slack(
    relation: Relation,
    promised: np.ndarray[Any, Any],
    measured: np.ndarray[Any, Any],
    *,
    counted: bool,
) -> float | None:
    """The ratio by which the promise could be better in the case nearest to it."""
    if relation not in INEQUALITIES:
        return None
    if _about_failures(relation, promised, counted):
        relation, promised, measured = "<=", 1 - promised, 1 - measured
    larger, smaller = (promised, measured) if relation in ("<=", "<") else (measured, promised)
    with np.errstate(all="ignore"):
        # below zero the smaller number is the larger in size
        ratio = np.where(smaller < 0, smaller / larger, larger / smaller)
        ratio = np.where((larger >= 0) & (smaller <= 0), np.inf, ratio)
        ratio = np.where(larger <= smaller, 1.0, ratio)
    finiteness = np.isinf(promised) & (relation in ("<", ">"))
    ratio = np.where((promised == 0) | finiteness, np.nan, ratio)
    if np.isnan(ratio).all():
        return None
    return float(np.nanmin(ratio))


def _is_counted(interval: Interval | None) -> bool:
    return interval is not None and interval.test == COUNTED


def _weak_control(made: Claim, control: Claim) -> bool:
    """Whether a control shows less than it should.

    It fails in few of its cases, or because nothing could be measured, or one number stands against
    a check that would have needed a whole interval. (No failure at all is not weak but wrong.)
    """
    few = 0 < 2 * control.violations <= control.cases
    unmeasured = control.measured is None or math.isnan(control.measured)
    return few or unmeasured or (made.interval is not None and control.interval is None)


def _as_large_as_promised(tolerance: float, promised: np.ndarray[Any, Any]) -> bool:
    """Whether 0 in place of every promise would be within the tolerance as well."""
    sizes = np.abs(promised[np.isfinite(promised)])
    within = tolerance * np.maximum(1.0, sizes) >= sizes
    return tolerance > 0 and bool(sizes.any()) and bool(within.all())


def _half_or_twice_is_met(made: Claim) -> bool:
    """Whether its half or double is met too, all alternatives being farther away than 0 is."""
    if made.relation not in STATISTICAL or made.interval is None or not made.promised:
        return False
    size = abs(made.promised)
    if any(abs(a - made.promised) <= size * (1 + 1e-9) for a in made.against):
        return False
    low, high = made.interval.low, made.interval.high
    others = (made.promised / 2, 2 * made.promised)
    return bool(made.against) and any(
        _holds(made.relation, a, low, high, made.tolerance) for a in others
    )


def _narrow(made: Claim) -> bool:
    """Whether what must lie outside of an interval lies so near that it will not at other seeds."""
    found = [(made, a) for a in made.against]
    if made.control is not None and made.control.promised is not None:
        found.append((made.control, made.control.promised))
    return any(_excluded_narrowly(one, value) for one, value in found)


def _excluded_narrowly(made: Claim, value: float) -> bool:
    """Whether a value is excluded, but not by an interval `MARGIN` times as wide."""
    if made.interval is None or made.relation is None or made.interval.confidence == 1:
        return False
    i = made.interval
    if _holds(made.relation, value, i.low, i.high, made.tolerance):
        return False  # which is not narrow but wrong
    wider = (
        i.estimate - MARGIN * (i.estimate - i.low),
        i.estimate + MARGIN * (i.high - i.estimate),
    )
    return bool(_holds(made.relation, value, *wider, made.tolerance))


def _about_failures(relation: Relation | None, promised: Any, counted: bool) -> bool:
    """Whether a bound says that something holds *but for* a small probability.

    A probability of at least 0.95 that turns out as 1 is met 'within 5 %', and yet the probability
    of failure, which is what the theorem bounds, could be as small as one likes.
    """
    return counted and relation in (">=", ">") and bool(np.all(promised >= 0.5))


def _holds(relation: Relation, promised: Any, low: Any, high: Any, tolerance: float) -> Any:
    """Whether a comparison holds, entry by entry; of an interval, whether it does not refute it."""
    with np.errstate(invalid="ignore", over="ignore"):
        # a tolerance does not grow with an infinite promise: it would accept every number
        size = np.where(np.isfinite(promised), np.maximum(1.0, np.abs(promised)), 0.0)
        margin = tolerance * size
        match relation:
            case "<=":
                return low <= promised + margin
            case "<":
                return low < promised
            case ">=":
                return high >= promised - margin
            case ">":
                return high > promised
            case "==" | "~" | "slope":
                # equal infinities agree although their difference is not a number
                inside = (low - margin <= promised) & (promised <= high + margin)
                return inside | ((low == promised) & (promised == high))
