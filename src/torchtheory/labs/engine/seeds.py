r"""Labs at many seeds: a check that passes at seed 0 may have been lucky.

A claim with a confidence interval says how often it may fail: at confidence $c$ a true statement is
contradicted at a share of at most $1-c$ of the seeds, and all claims of a true lab together at one of
200 at most (see `torchtheory.labs.engine.confidence`). Over $N$ seeds, $k$ violations are too many if
$P(\mathrm{Bin}(N, 1-c) \ge k) < 0.001$. A claim without statistics has to hold at every seed, and
whatever must fail (a control, an erratum, an alternative) has to fail at every seed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text
from scipy import special

from torchtheory.core.checks import open_fraction, whole_number
from torchtheory.core.claim import Claim, Verdict, json_number
from torchtheory.core.parallel import Backend
from torchtheory.labs.engine.many import Failure, run_many
from torchtheory.labs.engine.registry import Lab, Preset
from torchtheory.labs.engine.run import Run
from torchtheory.labs.engine.store import RunStore
from torchtheory.report.numbers import number_text, percent

#: So many violations as a true claim has with a smaller probability than this are too many.
LEVEL = 0.001

#: Nobody waits for more runs of a lab.
MOST_SEEDS = 1_000_000


@dataclass(slots=True)
class ClaimRate:
    """How often one claim of a lab did what it should.

    A claim is known at other seeds by its place: the lab, its ids (or the key of an erratum), and
    how many claims with these ids were made before it.

    Attributes:
        lab: the lab's name.
        id: the claim's catalogue ids, or the key of the erratum.
        place: how many claims of the lab with the same ids come before it.
        erratum: whether it is what a source prints wrongly, and must be violated.
        statement: LaTeX; of the first seed, where it depends on the seed.
        confidence: the smallest confidence of its intervals; `None` where it has none.
        seeds: the seeds at which it was made.
        violated: those at which it was violated (for an erratum: was not refuted).
        control_held: those at which its control did not fail.
        accepted: those at which an alternative was not excluded.
        smallest_slack, largest_slack: over the seeds; `None` where it has no slack.
    """

    lab: str
    id: str
    place: int
    erratum: bool
    statement: str
    confidence: float | None = None
    seeds: list[int] = field(default_factory=list)
    violated: list[int] = field(default_factory=list)
    control_held: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    smallest_slack: float | None = None
    largest_slack: float | None = None

    @property
    def allowed(self) -> int:
        """How many violations its confidence excuses."""
        if self.confidence is None or self.erratum:
            return 0
        return allowed_violations(len(self.seeds), self.confidence)

    @property
    def passed(self) -> bool:
        """Not violated more often than its confidence says, and all that must fail failed."""
        return len(self.violated) <= self.allowed and not (self.control_held or self.accepted)

    @property
    def steady(self) -> bool:
        """Whether it did what it should at every seed."""
        return not (self.violated or self.control_held or self.accepted)

    def add(self, seed: int, claim: Claim) -> None:
        """Count the claim made at one seed."""
        self.seeds.append(seed)
        if (claim.verdict is Verdict.VIOLATED) is not self.erratum:
            self.violated.append(seed)
        if claim.control is not None and claim.control.verdict is not Verdict.VIOLATED:
            self.control_held.append(seed)
        if claim.accepted:
            self.accepted.append(seed)
        if claim.interval is not None:
            self.confidence = min(self.confidence or 1.0, claim.interval.confidence)
        if claim.slack is not None:
            self.smallest_slack = min(self.smallest_slack or math.inf, claim.slack)
            self.largest_slack = max(self.largest_slack or 0.0, claim.slack)

    def to_json(self) -> dict[str, Any]:
        return {
            "lab": self.lab,
            "id": self.id,
            "place": self.place,
            "erratum": self.erratum,
            "statement": self.statement,
            "confidence": self.confidence,
            "seeds": len(self.seeds),
            "violated": self.violated,
            "allowed": self.allowed,
            "control_held": self.control_held,
            "accepted": self.accepted,
            "smallest_slack": json_number(self.smallest_slack),
            "largest_slack": json_number(self.largest_slack),
            "passed": self.passed,
        }


@dataclass(frozen=True, slots=True)
class SeedReport:
    """What came of labs at many seeds.

    Attributes:
        seeds: at how many seeds the labs were run.
        rates: every claim of every lab, in the order they were made.
        failures: runs that raised.
        problems: other problems of the runs (something declared was not met), by lab and sentence,
            with the seeds.
    """

    seeds: int
    rates: tuple[ClaimRate, ...]
    failures: tuple[Failure, ...]
    problems: Mapping[tuple[str, str], Sequence[int]]

    @property
    def failures_by_sentence(self) -> dict[tuple[str, str], list[int]]:
        """What runs raised, by lab and sentence, with the seeds."""
        found: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        for f in self.failures:
            found[f.lab.name, f.sentence].append(f.seed)
        return dict(found)

    @property
    def passed(self) -> bool:
        """No run raised, and no claim fails more often than it may."""
        return not (self.failures or self.problems) and all(r.passed for r in self.rates)

    def to_json(self) -> dict[str, Any]:
        return {
            "seeds": self.seeds,
            "passed": self.passed,
            "claims": [r.to_json() for r in self.rates],
            "problems": [
                {"lab": lab, "problem": sentence, "seeds": list(seeds)}
                for (lab, sentence), seeds in self.problems.items()
            ],
            "failures": [{"lab": f.lab.name, "seed": f.seed, "sentence": f.sentence} for f in self.failures],
        }


def allowed_violations(seeds: int, confidence: float, level: float = LEVEL) -> int:
    r"""How many violations of a true claim are no surprise.

    The largest $k$ with $P(\mathrm{Bin}(N, 1-c) \ge k) \ge$ `level`.

    >>> [allowed_violations(n, 0.99) for n in (1, 20, 100)]
    [1, 3, 5]
    >>> allowed_violations(20, 0.999)
    1
    """
    whole_number(seeds, "seeds", least=1)
    open_fraction(confidence, "confidence")
    allowed = 0
    while allowed < seeds and special.bdtrc(allowed, seeds, 1 - confidence) >= level:
        allowed += 1
    return allowed


def run_seeds(
    labs: Sequence[Lab],
    store: RunStore,
    seeds: int,
    *,
    first: int = 0,
    preset: Preset = "quick",
    settings: Mapping[str, Any] | None = None,
    jobs: int = 1,
    backend: Backend = "loky",
    force: bool = False,
) -> SeedReport:
    """Run labs at the seeds `first`, `first + 1`, … and count how often each claim does well.

    The runs are kept in `store`, so an interrupted call goes on where it was; see
    `torchtheory.labs.engine.many.run_many` for the other arguments.
    """
    whole_number(seeds, "seeds", least=1, most=MOST_SEEDS)
    outcomes = run_many(
        labs,
        store,
        preset=preset,
        seed=range(first, first + seeds),
        settings=settings,
        jobs=jobs,
        backend=backend,
        force=force,
    )
    report = rates_over(outcomes, seeds)
    order = {lab.name: k for k, lab in enumerate(labs)}
    return SeedReport(
        seeds,
        tuple(sorted(report.rates, key=lambda r: order[r.lab])),
        tuple(sorted(report.failures, key=lambda f: (order[f.lab.name], f.seed))),
        dict(sorted(report.problems.items(), key=lambda item: order[item[0][0]])),
    )


def rates_over(outcomes: Iterable[Run | Failure], seeds: int) -> SeedReport:
    """Count the claims of runs; nothing else of a run is kept."""
    rates: dict[tuple[str, bool, str, int], ClaimRate] = {}
    failures: list[Failure] = []
    problems: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            failures.append(outcome)
            continue
        name, earlier = outcome.lab.name, Counter[tuple[bool, str]]()
        made = [(False, c.id, c) for c in outcome.claims]
        made += [(True, e.key, e.claim) for e in outcome.errata]
        for erratum, key, claim in made:
            place = earlier[erratum, key]
            earlier[erratum, key] += 1
            rate = rates.setdefault(
                (name, erratum, key, place),
                ClaimRate(name, key, place, erratum, claim.statement),
            )
            rate.add(outcome.seed, claim)
        for sentence in outcome.declared_problems:
            problems[name, sentence].append(outcome.seed)
    for rate in rates.values():
        for seen in (rate.seeds, rate.violated, rate.control_held, rate.accepted):
            seen.sort()
    return SeedReport(seeds, tuple(rates.values()), tuple(failures), dict(problems))


def print_seeds(report: SeedReport, console: Console, *, verbose: bool = False) -> None:
    """A table of the claims that fail at some seed (of all claims if `verbose`)."""
    shown = [r for r in report.rates if verbose or not r.steady or len(r.seeds) < report.seeds]
    if shown:
        grid = Grid(box=None, header_style="bold", pad_edge=False)
        rows = [_cells(rate, report.seeds) for rate in shown]
        # a column in which nothing happened would only squeeze the others
        told = {
            "control": any(r.control_held for r in shown),
            "accepted": any(r.accepted for r in shown),
            "slack": verbose,
        }
        columns = ("lab", "claim", "violated", "allowed", "control", "accepted", "slack", "")
        for column in columns:
            if told.get(column, True):
                grid.add_column(column, overflow="fold", min_width=min(len(column) + 4, 9))
        for row in rows:
            cells = zip(columns, row, strict=True)
            grid.add_row(*(cell for column, cell in cells if told.get(column, True)))
        console.print(grid)
    for (lab, sentence), seeds in report.problems.items():
        where = f"at {len(seeds)} of {report.seeds} seeds"
        console.print(Text(f"{lab}: {sentence} ({where}, first {min(seeds)})"))
    failing = sum(not r.passed for r in report.rates)
    flaky = sum(r.passed and not r.steady for r in report.rates)
    console.print(
        f"{len(report.rates)} claims at {report.seeds} seeds: {failing} fail more often than they "
        f"may, {flaky} at the rate their confidence states"
    )


def _cells(rate: ClaimRate, seeds: int) -> list[Text]:
    made = len(rate.seeds)
    confidence = "" if rate.confidence is None else f" ({percent(rate.confidence)})"
    slack = ""
    if rate.smallest_slack is not None:
        slack = f"{number_text(rate.smallest_slack, 3)} to {number_text(rate.largest_slack, 3)}"
    word, style = ("ok", "green") if rate.passed else ("FAILS", "bold red")
    if made < seeds:
        word += f", made at {made} of {seeds} seeds"
    return [
        Text(rate.lab),
        Text(f"{rate.id} #{rate.place + 1}" + (" (erratum)" if rate.erratum else "")),
        _count(rate.violated),
        Text(f"{rate.allowed}{confidence}"),
        _count(rate.control_held),
        _count(rate.accepted),
        Text(slack),
        Text(word, style=style),
    ]


def counted_seeds(seeds: Sequence[int]) -> str:
    """Some seeds in words.

    >>> counted_seeds([3]), counted_seeds([0, 1]), counted_seeds(range(20))
    ('seed 3', '2 seeds (0, 1)', '20 seeds (0, 1, 2, 3, …)')
    """
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds ({_first(seeds)})"


def _count(seeds: Sequence[int]) -> Text:
    if not seeds:
        return Text("0", style="dim")
    return Text(f"{len(seeds)} (seed{'s' * (len(seeds) > 1)} {_first(seeds)})")


def _first(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds[:4])) + (", …" if len(seeds) > 4 else "")
