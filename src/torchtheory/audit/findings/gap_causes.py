"""Finding: what was done to the test data that makes the network err on it."""

from __future__ import annotations

from torchtheory.audit.causes.differential import NO_TIME, differential
from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import deterministic, one_label_per_sample, test_data
from torchtheory.core.usual import at_most
from torchtheory.models.problem import Problem

GAP = r"R(f) > \hat R_S(f)"

#: What may be meant, and is worth a look only.
MEANT = ("drift",)


@finding(
    "test-causes",
    area="data",
    title="Why new data is answered worse than training data",
    cost="gradient",  # as long as several passes, and after what is known of the outputs
    needs=[one_label_per_sample, test_data, deterministic],
    whole=True,
)
def causes_of_gap(problem: Problem, record: FindingRecord) -> None:
    """Each rival of over-fitting is undone on test samples, and the error measured."""
    found = differential(problem)
    if found.gap is None:
        reason = found.untried or "the error on new data is not larger beyond chance"
        record.not_applicable((), GAP, reason)
        return
    record.quantity(
        "gap-to-explain", "error on new data minus that on the training data", found.gap,
        samples=problem.test,
    )  # fmt: skip
    if found.untried == NO_TIME:
        record.not_done((), GAP, f"{NO_TIME} to try what may have caused it")
        return
    tried = [*found.causes, *found.partly]
    if tried:
        record.table(
            "causes",
            ("what", "evidence", "explains the gap"),
            [(c.words, c.evidence, "yes" if c.explains else "in part") for c in tried],
            caption="Each chosen on one half of the test data where there was a choice, and "
            "measured on the other.",
        )
    if found.tried:
        record.note(f"Tried: {', '.join(found.tried)}.")
    if found.causes:
        cause = found.causes[0]
        number = record.quantity(
            "saved-by-cause", "error on new data that is gone without its cause", cause.saved,
            samples=problem.test,
        )  # fmt: skip
        say = record.look if cause.kind in MEANT else record.defect
        say(f"{found.words}.", number=number, usual=at_most(0, "0 or less"), action=cause.action)
    if found.partly:
        part = found.partly[0]
        number = record.quantity(
            "saved-in-part", "error on new data that is gone without a part of its causes",
            part.saved, samples=problem.test,
        )  # fmt: skip
        either = ", or ".join(cause.sentence for cause in found.partly)
        record.look(
            f"A part of the error on new data has another cause than over-fitting: {either}.",
            number=number, usual=at_most(0, "0 or less"), action=part.action,
        )  # fmt: skip
