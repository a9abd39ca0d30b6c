"""The one sentence an audit comes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torchtheory.core.claim import Claim
from torchtheory.core.diagnosis import Assessment, State


class Diagnosed(Protocol):
    """What the sentence is about: an audit."""

    @property
    def diagnosis(self) -> Sequence[Assessment]: ...
    @property
    def findings(self) -> Sequence[object]: ...
    @property
    def undone(self) -> Sequence[object]: ...
    @property
    def violated(self) -> Sequence[Claim]: ...
    @property
    def facts(self) -> dict[str, str]: ...
    @property
    def interrupted(self) -> bool: ...


#: Under which fact it is said that the model is not as it was, should that ever happen.
CHANGED = "model changed"


def verdict_sentence(audit: Diagnosed) -> str:
    """What matters most, the worst first: a model that was changed, an audit that is mostly undone,
    defects, a promise of theory that is broken, what is worth a look.
    """
    if CHANGED in audit.facts:
        return audit.facts[CHANGED]
    said = list(audit.diagnosis)
    bad, look, fine, silent = ([a for a in said if a.state is state] for state in State)
    head = ""
    if audit.interrupted:
        head = "The audit was interrupted; of what it has: "
    elif 2 * len(audit.undone) > len(audit.findings):
        head = (
            f"Most of this audit is not done: {len(audit.undone)} of {len(audit.findings)} "
            "findings ran out of time. Of what was measured: "
        )
    if bad:
        others = f" Also: {_listed(bad[1:])}." if len(bad) > 1 else ""
        sentence = f"{'Defect' if len(bad) == 1 else 'Defects'}: {bad[0].sentence}{others}"
    elif audit.violated:
        sentence = (
            "No defect was found, but a promise of theory is not what was measured: see the "
            "claims that are violated."
        )
    elif look:
        sentence = f"No defect was found; worth a look: {_listed(look)}."
    elif fine:
        measured = f"{len(fine)} of {len(said)}" if silent else f"all {len(said)}"
        sentence = f"Nothing wrong was found in {measured} areas."
    else:
        sentence = "Nothing was measured."
    return head + (sentence[0].lower() + sentence[1:] if head else sentence)


def _listed(said: Sequence[Assessment]) -> str:
    *first, last = (a.area.question.lower() for a in said)
    return f"{', '.join(first)} and {last}" if first else last
