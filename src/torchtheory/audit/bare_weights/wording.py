"""How sentences about weights name layers, and what no time was left for."""

from __future__ import annotations

from collections.abc import Sequence

from torchtheory.audit.bare_weights.survey import Matrix, Survey, Values
from torchtheory.audit.engine.finding import FindingRecord


def say_unseen(found: Survey, record: FindingRecord, what: str) -> None:
    """Say that there was no time to look at some tensors."""
    total = found.unseen + len(found.tensors)
    reason = f"no time was left for {found.unseen:,} of {total:,} tensors; give a larger budget"
    record.not_done((), rf"\text{{{what}}}", reason)


def say_undone(found: Survey, record: FindingRecord, what: str) -> bool:
    """Say for which layers there was no time; whether there are such."""
    large = [m for m in found.matrices if m.too_large]
    late = [m for m in found.matrices if not m.too_large and m.singular is None]
    if large and what != "Norms of layers":
        record.note(
            f"{named_layers(large)} {are(len(large))} too large for all singular values; only the "
            "largest was computed."
        )
    if late:
        record.not_done(
            (),
            rf"\text{{{what}}}",
            f"no time was left for {named_layers(late)}; give a larger budget",
        )
    return bool(late)


def named_layers(chosen: Sequence[Matrix]) -> str:
    return _some([m.name for m in chosen], "layer")


def named_tensors(chosen: Sequence[Values]) -> str:
    return _some([t.name for t in chosen], "tensor")


def _some(names: Sequence[str], what: str) -> str:
    """At most three names, and how many there are where there are more."""
    if len(names) == 1:
        return names[0]
    shown = ", ".join(names[:3])
    if len(names) <= 3:
        first, _, last = shown.rpartition(", ")
        return f"{first} and {last}"
    return f"{len(names)} {what}s ({shown}, …)"


def are(count: int) -> str:
    return "is" if count == 1 else "are"
