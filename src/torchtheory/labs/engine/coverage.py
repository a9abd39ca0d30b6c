"""What of the catalogue the labs exercise, and the errata with their counterexamples."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torchtheory.core import catalogue, progress
from torchtheory.core.claim import LARGEST_SLACK, Claim, split_ids
from torchtheory.core.errors import UnknownName
from torchtheory.labs.engine.debts import Debts, read_debts
from torchtheory.labs.engine.errata_numbers import kept_numbers, numbers_of
from torchtheory.labs.engine.many import Failure, run_many
from torchtheory.labs.engine.registry import find_lab, listed_labs
from torchtheory.labs.engine.run import keyed
from torchtheory.labs.engine.store import RunStore

Status = Literal["covered", "background", "missing"]
STATUSES: tuple[Status, ...] = ("covered", "background", "missing")


@dataclass(slots=True)
class Power:
    """How sharply the claims about an entry were checked.

    Attributes:
        loose: bounds that no case comes near, each as its lab and its key.
        unresolved: statistical equations that exclude no alternative, likewise.
        reasons: why no case can come near a bound, where the lab says so.
        bounds: how many bounds there are, loose or not; None unless every lab's run is kept.
    """

    loose: list[str] = field(default_factory=list)
    unresolved: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    bounds: int | None = None

    @property
    def words(self) -> str:
        """What a list says: `loose` where all bounds are known to be, else how many.

        >>> Power(["a N-08#1"], bounds=1).words, Power(["a N-08#1"], ["a N-08#2"]).words
        ('loose', '1 loose, 1 unresolved')
        """
        said = []
        if self.loose and len(self.loose) == self.bounds:
            said.append("loose")
        elif self.loose:
            of = f" of {self.bounds}" if self.bounds is not None else ""
            said.append(f"{len(self.loose)}{of} loose")
        if self.unresolved:
            said.append(f"{len(self.unresolved)} unresolved")
        return ", ".join(said)

    def to_json(self) -> dict[str, Any]:
        return {
            "loose": list(self.loose),
            "unresolved": list(self.unresolved),
            "reasons": list(self.reasons),
            "bounds": self.bounds,
        }


@dataclass(frozen=True, slots=True)
class CoveredEntry:
    """A catalogue entry with the labs that exercise it, and how sharply they do."""

    entry: catalogue.Entry
    labs: tuple[str, ...]
    power: Power = field(default_factory=Power)

    @property
    def status(self) -> Status:
        """Covered by a lab; background, with nothing to compute; or missing."""
        if self.labs:
            return "covered"
        return "background" if self.entry.background else "missing"

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.entry.id,
            "name": self.entry.name,
            "source": self.entry.citation,
            "kind": self.entry.kind,
            "room": self.entry.room,
            "status": self.status,
            "labs": list(self.labs),
            **self.power.to_json(),
        }


@dataclass(frozen=True, slots=True)
class Coverage:
    """Entries and how many of them are covered."""

    entries: tuple[CoveredEntry, ...]

    def count(self, status: Status) -> int:
        return sum(e.status == status for e in self.entries)

    @property
    def loose(self) -> int:
        """How many entries have a bound that no case comes near."""
        return sum(bool(e.power.loose) for e in self.entries)

    @property
    def unresolved(self) -> int:
        """How many entries have a statistical equation that excludes no alternative."""
        return sum(bool(e.power.unresolved) for e in self.entries)

    def to_json(self) -> dict[str, Any]:
        return {
            "total": len(self.entries),
            "covered": self.count("covered"),
            "background": self.count("background"),
            "missing": self.count("missing"),
            "loose": self.loose,
            "unresolved": self.unresolved,
            "entries": [e.to_json() for e in self.entries],
        }


def coverage(
    query: str = "",
    *,
    source: str | None = None,
    room: str | None = None,
    missing_only: bool = False,
    loose_only: bool = False,
    store: RunStore | None = None,
) -> Coverage:
    """The entries that match, with the labs that cover them.

    Args:
        missing_only: only what no lab covers.
        loose_only: only what is checked weakly, by a loose bound or an unresolved equation.
        store: where finished runs may be; for labs without one, `debts.toml` says what is weak.

    >>> [e.labs for e in coverage("N-08").entries]
    [('perceptron-novikoff',)]
    """
    if source is not None and source not in catalogue.sources():
        raise UnknownName("source", source, catalogue.sources())
    by_id: dict[str, list[str]] = {}
    for lab in listed_labs().values():
        for i in lab.covers:
            by_id.setdefault(i, []).append(lab.name)
    matching: Sequence[catalogue.Entry] = (
        catalogue.search(query) if query.strip() else list(catalogue.entries().values())
    )
    chosen = [e for e in matching if (source is None or e.source == source) and (room is None or e.room == room)]
    labs = dict.fromkeys(name for e in chosen for name in by_id.get(e.id, ()))
    powers = _powers(labs, by_id, store)
    found = [CoveredEntry(e, tuple(by_id.get(e.id, ())), powers[e.id]) for e in chosen]
    return Coverage(
        tuple(
            e
            for e in found
            if (not missing_only or e.status == "missing") and (not loose_only or e.power.loose or e.power.unresolved)
        )
    )


def _powers(labs: Iterable[str], by_id: Mapping[str, Sequence[str]], store: RunStore | None) -> defaultdict[str, Power]:
    found: defaultdict[str, Power] = defaultdict(Power)
    debts = read_debts()
    bounds, kept = Counter[str](), set[str]()
    for lab in labs:
        claims = None if store is None else store.claims(lab)
        if claims is None:
            _from_debts(lab, debts, found)
            continue
        kept.add(lab)
        for key, c in keyed(claims):
            for i in c.ids:
                bounds[i] += c.slack is not None
                if c.slack is not None and round(c.slack, 1) > LARGEST_SLACK:
                    found[i].loose.append(f"{lab} {key}")
                if c.loose:
                    found[i].reasons.append(c.loose)
                if "unresolved" in c.weaknesses:
                    found[i].unresolved.append(f"{lab} {key}")
    for i, power in found.items():
        if kept.issuperset(by_id.get(i, ())):
            power.bounds = bounds[i]
    return found


def _from_debts(lab: str, debts: Debts, found: defaultdict[str, Power]) -> None:
    for key in debts["loose"].get(lab, ()):
        for i in split_ids(key.rpartition("#")[0]):
            found[i].loose.append(f"{lab} {key}")
    for key in debts["unresolved"].get(lab, ()):
        for i in split_ids(key.rpartition("#")[0]):
            found[i].unresolved.append(f"{lab} {key}")


@dataclass(frozen=True, slots=True)
class RefutedStatement:
    """An error of a source: its words, the lab that refutes it, and the numbers."""

    text: catalogue.Erratum
    lab: str
    claims: tuple[Claim, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.text.key,
            "id": self.text.id,
            "source": catalogue.entry(self.text.id).citation,
            "printed": self.text.printed,
            "correct": self.text.correct,
            "lab": self.lab,
            "counterexamples": [c.to_json() for c in self.claims],
        }


def find_errata(query: str, store: RunStore, *, anew: bool = False) -> list[RefutedStatement]:
    """The errata that labs refute, with the numbers of their quick runs.

    They are those kept with the package. Labs that are not among them, as a user's own, are run
    first unless their run is in `store`; an erratum whose lab fails has no numbers.

    Args:
        query: words that all stand in an erratum's text, its id or its source.
        store: where finished runs are, and new ones are added.
        anew: run the labs whatever is kept.
    """
    texts = catalogue.errata()
    words = query.lower().split()

    def matches(key: str) -> bool:
        if key not in texts:  # the lab's run says so
            return False
        text = texts[key]
        everything = " ".join((key, text.id, catalogue.entry(text.id).citation, text.printed, text.correct)).lower()
        return all(word in everything for word in words)

    matching = {lab.name: [key for key in lab.errata if matches(key)] for lab in listed_labs().values()}
    numbers: dict[str, Mapping[str, tuple[Claim, ...]]] = {} if anew else dict(kept_numbers())
    unknown = [name for name, keys in matching.items() if not set(keys) <= set(numbers.get(name, ()))]
    if unknown:
        with progress.display():
            chosen = [find_lab(name) for name in progress.track(unknown, "reading labs")]
            for outcome in run_many(chosen, store, force=anew):
                met = [] if isinstance(outcome, Failure) else outcome.errata
                numbers[outcome.lab.name] = numbers_of(met)
    found = [
        RefutedStatement(texts[key], name, numbers[name].get(key, ()))
        for name, keys in matching.items()
        for key in keys
    ]
    place = {i: k for k, i in enumerate(catalogue.entries())}
    return sorted(found, key=lambda e: (place[e.text.id], e.text.key))
