"""What a page and a terminal say of a lab beside its results: what to try, and its parameters."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchtheory.core import catalogue
from torchtheory.report.results import LabRun, LabText, ParameterText
from torchtheory.report.wording import shown

#: Seeds that `--seeds` is suggested with.
SEEDS = 20


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A command worth running, and what it does."""

    options: str
    command: str
    purpose: str


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """A parameter of a run: its value there and by default, what it takes and what it means."""

    name: str
    used: str
    default: str
    full: str
    takes: str
    meaning: str


@dataclass(frozen=True, slots=True)
class CitedResult:
    """A result a lab is about: its id, what it is called and where it stands."""

    id: str
    name: str
    citation: str


def suggestions(lab: LabText, used: Mapping[str, Any] | None = None) -> list[Suggestion]:
    """Commands that show more of a lab: a parameter changed, many seeds, the source's sizes.

    What the lab itself says is worth trying comes first. Where it says nothing, a parameter takes
    its value of another preset, which the lab is known to take.

    Args:
        lab: the lab; one that no command can find, as of a notebook, has no suggestions.
        used: the values of the run at hand, so that another is suggested; the default ones
            unless given.
    """
    if lab.address is None:
        return []
    parameters = list(lab.parameters.values())
    made = [(c.options, c.look) for c in lab.teaching.changes]
    if parameters and not made:
        name, now, other = _another_value(parameters, used or {})
        setting = shlex.quote(f"{name}={typed(other)}")
        change = f"{name} {shown(other)} in place of {shown(now)}"
        same = f"this value of {name}, or another one"
        made.append((f"--set {setting}", same if typed(other) == typed(now) else change))
    more = [(f"--seeds {SEEDS}", f"{SEEDS} seeds: how often does each claim fail?")]
    if any(p.full != p.quick for p in parameters):
        more.append(("--preset full", "the source's sizes; takes minutes"))
    known = {options for options, _ in made}
    made += [one for one in more if one[0] not in known]
    start = f"torchtheory lab run {lab.address}"
    return [Suggestion(options, f"{start} {options}", purpose) for options, purpose in made]


def suggestion_line(found: list[Suggestion]) -> str:
    """All suggestions in one line, the command said once; empty where there are none."""
    return " or ".join([s.command for s in found[:1]] + [s.options for s in found[1:]])


def parameter_rows(run: LabRun) -> list[ParameterRow]:
    """The parameters of a run, those the lab no longer has included."""
    known = run.lab.parameters
    rows = []
    for name, value in run.parameters.items():
        p = known.get(name)
        rows.append(
            ParameterRow(name, shown(value), shown(p.quick), shown(p.full), takes(p), p.meaning)
            if p is not None
            else ParameterRow(name, shown(value), "", "", "", "")
        )
    return rows


def cited_results(ids: tuple[str, ...]) -> list[CitedResult]:
    """Catalogue ids with their names and places; ids no catalogue knows are left out."""
    known = catalogue.entries()
    return [CitedResult(i, known[i].name, known[i].citation) for i in ids if i in known]


def takes(parameter: ParameterText) -> str:
    """What a parameter takes: its type and its range."""
    return ", ".join(filter(None, (parameter.kind, parameter.range)))


def typed(value: Any) -> str:
    """A parameter's value as `--set` takes it.

    >>> typed((16, 32)), typed(True), typed(None), typed(0.05)
    ('16,32', 'true', 'none', '0.05')
    """
    match value:
        case bool():
            return str(value).lower()
        case None:
            return "none"
        case list() | tuple():
            return ",".join(typed(v) for v in value)
    return str(value)


def _another_value(
    parameters: Sequence[ParameterText], used: Mapping[str, Any]
) -> tuple[str, Any, Any]:
    """The first parameter that a preset gives another value: its name, its value and the other.

    The first of all with its value twice, if the presets are alike.
    """
    for p in parameters:
        now = used.get(p.name, p.quick)
        for other in (p.full, p.quick):
            if typed(other) != typed(now):
                return p.name, now, other
    first = parameters[0]
    now = used.get(first.name, first.quick)
    return first.name, now, now
