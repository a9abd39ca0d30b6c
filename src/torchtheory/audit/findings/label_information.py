"""Finding: which of several labels per sample follow from the inputs, and which look shuffled."""

from __future__ import annotations

from scipy import stats

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.certificates import alarm_level
from torchtheory.audit.findings.hypotheses import deterministic, several_labels
from torchtheory.audit.findings.input_neighbors import input_neighbors, real_inputs
from torchtheory.audit.findings.label_errors import answers, yes
from torchtheory.core.naming import several
from torchtheory.core.usual import above
from torchtheory.data.neighbors import LabelInformation, linear_information, neighbor_information
from torchtheory.models.problem import Problem

#: Fewest training samples, and of either answer, that something is said of.
FEWEST, FEWEST_ANSWERS = 50, 20

#: A score of information that might still be this large is not said to be none; and one that
#: another label must certainly have.
NONE = 0.2

#: Training samples whose neighbors are asked, and labels looked at, at most.
ASKED, LABELS = 2000, 40


def labels_of_samples(problem: Problem) -> str | None:
    if problem.train.y.ndim > 2:
        return "the labels belong to positions, and inputs are compared as a whole"
    if len(problem.train) >= FEWEST:
        return None
    return f"{len(problem.train)} training samples are too few to tell labels from chance"


@finding(
    "label-information",
    area="data",
    title="Whether each of several labels follows from the inputs",
    cost="gradient",  # as long as several passes
    needs=[several_labels, real_inputs, labels_of_samples, deterministic],
    whole=True,
)
def label_information(problem: Problem, record: FindingRecord) -> None:
    """Neighbors and a linear fit predict every label; those that nothing predicts are named.

    A label is said to look shuffled only where others do not, and where the network, too, knows
    nothing of it on new data: it may see what neighbors and linear fits do not.
    """
    search = input_neighbors(problem)
    found = search.of("train", ASKED)
    y = yes(problem.train.y).long()
    scores: dict[int, LabelInformation] = {}
    silent = []
    level = alarm_level(record) / min(LABELS, y.shape[1])
    for k in range(min(LABELS, y.shape[1])):
        labels = y[:, k]
        if min(int(labels.sum()), int((1 - labels).sum())) < FEWEST_ANSWERS:
            continue
        both = [
            neighbor_information(
                labels[found.samples], found.index[:, 0], labels, found.samples, record.generator
            ),
            linear_information(search.rows["train"], labels),
        ]
        scores[k] = max(both, key=lambda i: i.score)
        if all(i.p_value >= level and i.score + 2.6 * i.deviation < NONE for i in both):
            silent.append(k)
    if not scores:
        record.note("No label has enough samples of both answers.")
        return
    record.table(
        "information",
        ("label", "score", "its spread by chance", "p-value"),
        [(k, i.score, i.deviation, i.p_value) for k, i in scores.items()],
        caption="How far a label follows from the inputs, by the nearest training sample or a "
        "linear fit, whichever tells more: 1 is a prediction without errors, 0 is chance.",
    )
    worst = min(scores, key=lambda k: scores[k].score)
    number = record.quantity(
        "least-information", f"how far label {worst}, the least, follows from inputs, 0 to 1",
        scores[worst].score, error=2 * max(scores[worst].deviation, 1e-12), samples=problem.train,
        basis="two standard deviations by chance",
    )  # fmt: skip
    known = any(i.score - 2.6 * i.deviation > NONE for i in scores.values())
    suspects = [k for k in silent if not _network_knows(problem, k, level)]
    if suspects and known:
        which = "Label" if len(suspects) == 1 else "Labels"
        record.look(
            f"{which} {several(suspects)} may be shuffled: neither neighboring samples nor a "
            "linear fit nor the network predict them better than chance, and other labels are "
            "predicted.",
            number=number, usual=above(NONE),
            action="Check that this column belongs to the same samples as the others.",
        )  # fmt: skip
    elif not silent:
        record.fine(
            "Every label follows from the inputs in part.", number=number, usual=above(NONE)
        )


def _network_knows(problem: Problem, label: int, level: float) -> bool:
    """Whether the network is better on new data than one answer; without such data, not known."""
    if problem.test is None:
        return True
    true = yes(problem.test.y)[:, label].cpu()
    wrong = yes(answers(problem, problem.test).float())[:, label].cpu() != true
    frequent = bool(yes(problem.train.y)[:, label].double().mean() > 0.5)
    missed = true != frequent
    gained, lost = int((missed & ~wrong).sum()), int((~missed & wrong).sum())
    return float(stats.binom.sf(gained - 1, gained + lost, 0.5)) < level
