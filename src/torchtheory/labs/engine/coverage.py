"""What of the catalogue the labs exercise, and the errata with their counterexamples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torchtheory.core import catalogue
from torchtheory.core.claim import Claim
from torchtheory.core.errors import UnknownName
from torchtheory.labs.engine.many import Failure, run_many
from torchtheory.labs.engine.registry import find_lab, listed_labs
from torchtheory.labs.engine.store import RunStore

Status = Literal["covered", "background", "missing"]
STATUSES: tuple[Status, ...] = ("covered", "background", "missing")


@dataclass(frozen=True, slots=True)
class CoveredEntry:
    """A catalogue entry with the labs that exercise it."""

    entry: catalogue.Entry
    labs: tuple[str, ...]

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
        }


@dataclass(frozen=True, slots=True)
class Coverage:
    """Entries and how many of them are covered."""

    entries: tuple[CoveredEntry, ...]

    def count(self, status: Status) -> int:
        return sum(e.status == status for e in self.entries)

    def to_json(self) -> dict[str, Any]:
        return {
            "total": len(self.entries),
            "covered": self.count("covered"),
            "background": self.count("background"),
            "missing": self.count("missing"),
            "entries": [e.to_json() for e in self.entries],
        }


def coverage(
    query: str = "",
    *,
    source: str | None = None,
    room: str | None = None,
    missing_only: bool = False,
) -> Coverage:
    """The entries that match, with the labs that cover them.

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
    found = [
        CoveredEntry(e, tuple(by_id.get(e.id, ())))
        for e in matching
        if (source is None or e.source == source) and (room is None or e.room == room)
    ]
    return Coverage(tuple(e for e in found if not missing_only or e.status == "missing"))


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


def find_errata(query: str, store: RunStore) -> list[RefutedStatement]:
    """The errata that labs refute, with the numbers of their quick runs in `store`.

    Labs without a finished run there are run first; an erratum whose lab fails has no numbers.
    """
    texts = catalogue.errata()
    words = query.lower().split()

    def matches(key: str) -> bool:
        if key not in texts:  # the lab's run says so
            return False
        text = texts[key]
        everything = " ".join((key, text.id, catalogue.entry(text.id).citation, text.printed, text.correct)).lower()
        return all(word in everything for word in words)

    refuting = [lab for lab in listed_labs().values() if any(matches(k) for k in lab.errata)]
    chosen = [find_lab(lab.name) for lab in refuting]
    found = []
    for outcome in run_many(chosen, store):
        met = [] if isinstance(outcome, Failure) else outcome.errata
        for key in outcome.lab.errata:
            if matches(key):
                numbers = tuple(e.claim for e in met if e.key == key)
                found.append(RefutedStatement(texts[key], outcome.lab.name, numbers))
    place = {i: k for k, i in enumerate(catalogue.entries())}
    return sorted(found, key=lambda e: (place[e.text.id], e.text.key))
