"""What an audit comes to: the one sentence, and the pictures that say most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torchtheory.core.claim import Claim, Verdict
from torchtheory.core.diagnosis import Area, Assessment, State
from torchtheory.core.figure import Figure
from torchtheory.core.quantity import Quantity


class Found(Protocol):
    """What an audit is made of: a finding."""

    @property
    def name(self) -> str: ...
    @property
    def area(self) -> Area: ...
    @property
    def assessments(self) -> Sequence[Assessment]: ...
    @property
    def figures(self) -> Sequence[Figure]: ...
    @property
    def claims(self) -> Sequence[Claim]: ...
    @property
    def quantities(self) -> Sequence[Quantity]: ...
    @property
    def complete(self) -> bool: ...


class Diagnosed(Protocol):
    """What the sentence is about: an audit."""

    @property
    def diagnosis(self) -> Sequence[Assessment]: ...
    @property
    def applicable(self) -> Sequence[object]: ...
    @property
    def undone(self) -> Sequence[object]: ...
    @property
    def mostly_undone(self) -> bool: ...
    @property
    def self_checks(self) -> Sequence[Claim]: ...
    @property
    def violated(self) -> Sequence[Claim]: ...
    @property
    def facts(self) -> dict[str, str]: ...
    @property
    def interrupted(self) -> bool: ...


#: Under which fact it is said that the model is not as it was, should that ever happen.
CHANGED = "model changed"

#: Under which fact it is said how much of a core there was, where that was little.
PROCESSOR = "processor"

#: What an area is called inside a sentence.
NOUNS = {
    Area.DATA: "the data",
    Area.FIT: "the fit",
    Area.GENERALIZATION: "generalization",
    Area.CALIBRATION: "calibration",
    Area.TRAINING: "training",
    Area.SIGNALS: "signals",
    Area.CAPACITY: "capacity",
    Area.ROBUSTNESS: "robustness",
}

#: The pictures that say most about a network of which nothing special is to be said.
USUAL_PICTURES = (
    ("risk", "risk"),
    ("generalization-bounds", "bounds"),
    ("margins", "margins"),
    ("curvature", "slice"),
    ("certified-radius", "radii"),
    ("gradients-by-depth", "depth"),
)

#: How many pictures stand on the first screen.
PICTURES = 3

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")


def verdict_sentence(audit: Diagnosed) -> str:
    """What matters most, the worst first: a model that was changed, an audit that is mostly undone,
    defects, a promise of theory that is broken, what is worth a look.
    """
    if CHANGED in audit.facts:
        return audit.facts[CHANGED]
    head = ""
    if audit.interrupted:
        head = "The audit was interrupted. Of what it has: "
    elif audit.mostly_undone:
        had = f" ({audit.facts[PROCESSOR]})" if PROCESSOR in audit.facts else ""
        head = (
            f"Most of this audit is not done: {len(audit.undone)} of {len(audit.applicable)} "
            f"findings that may apply ran out of time{had}. Of what was measured: "
        )
    sentence = _judgment(audit)
    return head + (sentence[0].lower() + sentence[1:] if head else sentence)


def _judgment(audit: Diagnosed) -> str:
    said = list(audit.diagnosis)
    bad, look, undecided, fine, silent = ([a for a in said if a.state is state] for state in State)
    if len(bad) == 1:
        return f"One defect: {bad[0].sentence}"
    if bad:
        return f"{_NUMBERS[len(bad)].capitalize()} defects, in {_listed(bad)}: {bad[0].sentence}"
    if any(c.broken for c in audit.self_checks):
        return "No defect was found, but torchtheory failed a check of its own: please report it."
    if audit.violated:
        return (
            "No defect was found, but a promise of theory is not what was measured: see the "
            "claims that are violated."
        )
    if look:
        return f"No defect was found; worth a look: {_listed(look)}."
    if undecided:
        return (
            f"Nothing wrong was found, but too little was measured to decide about "
            f"{_listed(undecided)}."
        )
    if fine and silent:
        measured = (
            "one area that was" if len(fine) == 1 else f"{_NUMBERS[len(fine)]} areas that were"
        )
        return f"Nothing wrong was found in the {measured} measured, of {_NUMBERS[len(said)]}."
    if fine:
        return f"Nothing wrong was found in any of the {_NUMBERS[len(said)]} areas."
    return "Nothing was measured."


#: Words of reasons that are about something else than what keeps an area from being judged.
ELSEWHERE = ("prior", "at every token or pixel", "of another kind", "inputs that follow")


def why_silent(findings: Sequence[Found], area: Area) -> str:
    """Why no finding judges an area, in a sentence."""
    here = [f for f in findings if f.area is area]
    if any(not f.complete for f in here):
        return "There was no time to measure this; give a larger budget."
    if any(f.quantities for f in here):
        return "There are numbers about this, but none that is right or wrong by itself."
    reasons = [c.reason for f in here for c in f.claims if c.verdict is Verdict.NOT_APPLICABLE]
    # that a prior was not given, or that this is another task, is no reason why nothing is known
    reasons.sort(key=lambda reason: any(words in reason for words in ELSEWHERE))
    if reasons:
        return reasons[0][:1].upper() + reasons[0][1:] + ("" if reasons[0].endswith(".") else ".")
    return "Nothing was measured about this."


def chosen_pictures(findings: Sequence[Found]) -> list[tuple[str, Figure]]:
    """The figures that say most, with the names of their findings.

    Those of defects come first, then those of what is worth a look, the usual ones, those of what
    is fine, and the first figures of areas not shown yet.
    """
    drawn = {(f.name, figure.name): (f, figure) for f in findings for figure in f.figures}
    said = {
        state: [(f.name, a.figure) for f in findings for a in f.assessments if a.state is state]
        for state in State
    }
    wanted = [
        *said[State.DEFECT],
        *said[State.LOOK],
        *said[State.OPEN],
        *USUAL_PICTURES,
        *said[State.FINE],
    ]
    found = [place for place in dict.fromkeys(wanted) if place in drawn][:PICTURES]
    shown = {drawn[place][0].area for place in found}
    for place, (finding, _) in drawn.items():
        if len(found) < PICTURES and finding.area not in shown:
            found.append(place)
            shown.add(finding.area)
    return [(place[0], drawn[place][1]) for place in found]


def _listed(said: Sequence[Assessment]) -> str:
    *first, last = (NOUNS[a.area] for a in said)
    return f"{', '.join(first)} and {last}" if first else last
