"""Findings about several yes-or-no labels per sample: their errors, and how often each occurs."""

from __future__ import annotations

import torch
from scipy import optimize, stats
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.certificates import alarm_level
from torchtheory.audit.findings.hypotheses import deterministic, several_labels
from torchtheory.audit.findings.skill import FEWEST, Scored, Words, judge_skill
from torchtheory.core.diagnosis import Area
from torchtheory.core.intervals import Interval, clopper_pearson, mean_interval
from torchtheory.core.naming import several
from torchtheory.core.usual import at_most, below
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.training.losses.risks import sample_losses

#: Labels of a table.
SHOWN = 40

#: A difference of a label's shares in training and test data that is worth a look; one that is
#: certainly larger is a defect.
NOTICEABLE = 0.1

WORDS = Words(
    "share of wrong labels", "always giving each label's more frequent answer", percent=True
)


def yes(y: Tensor) -> Tensor:
    """Which labels are set, `[n, K]`: the second dimension, its positions counted as samples.

    Labels at positions `[n, K, ...]` become rows `[n * positions, K]`.
    """
    return (y > 0.5).movedim(1, -1).flatten(0, -2) if y.ndim > 1 else (y > 0.5)[:, None]


def answers(problem: Problem, samples: Samples) -> Tensor:
    """Which labels the network sets, in the shape of the outputs."""
    return problem.outputs(samples) > problem.decision_level


@finding(
    "label-errors",
    area="generalization",
    title="Errors of several labels per sample",
    cost="forward",
    needs=[several_labels, deterministic],
    whole=True,
)
def label_errors(problem: Problem, record: FindingRecord) -> None:
    """Wrong labels, samples with any, and each label against always giving one answer.

    Labels of one sample depend on each other: ranges of shares of labels are over samples.
    """
    frequent = (problem.train.y > 0.5).double().mean(0) > 0.5
    scored: dict[str, Scored] = {}
    for name, samples in (("train", problem.train), ("test", problem.test)):
        if samples is None:
            continue
        wrong = answers(problem, samples) != (samples.y > 0.5)
        missed = frequent.expand_as(wrong) != (samples.y > 0.5)
        shares = [w.flatten(1).double().mean(1).cpu() for w in (wrong, missed)]
        scored[name] = Scored(samples, *shares)
        where = "new data" if name == "test" else "the training data"
        known = name == "train" and len(samples) >= samples.population
        some = clopper_pearson(int(wrong.flatten(1).any(1).sum()), len(wrong), record.confidence)
        record.quantity(
            f"{name}-inexact", f"share of samples with a wrong label on {where}",
            some.estimate if known else some, samples=samples,
        )  # fmt: skip
        if len(samples) > 1:
            loss = mean_interval(sample_losses(problem, samples).cpu(), record.confidence)
            record.quantity(
                f"{name}-loss", f"mean loss on {where}", loss.estimate if known else loss,
                samples=samples,
            )  # fmt: skip
    judge_skill(record, scored, WORDS)
    _each(problem, record)


def _each(problem: Problem, record: FindingRecord) -> None:
    """Every label alone; those that are never set, or that nothing was learned of."""
    name, samples = ("train", problem.train) if problem.test is None else ("test", problem.test)
    true, said = yes(samples.y).cpu(), yes(answers(problem, samples).float()).cpu()
    trained = yes(problem.train.y).cpu()
    frequent = trained.double().mean(0) > 0.5
    wrong, missed = said != true, frequent != true
    order = wrong.double().mean(0).argsort(descending=True)
    count, per = len(true), true.shape[1]
    rates = [clopper_pearson(int(wrong[:, k].sum()), count, record.confidence) for k in range(per)]
    record.table(
        "labels",
        ("label", "share of training data", f"share of {name} data", "set by the network",
         "error", "from", "to", "error of one answer"),
        [
            (int(k), float(trained[:, k].double().mean()), float(true[:, k].double().mean()),
             float(said[:, k].double().mean()), rates[k].estimate,
             rates[k].low if samples.y.ndim == 2 else None,
             rates[k].high if samples.y.ndim == 2 else None, float(missed[:, k].double().mean()))
            for k in order.tolist()[:SHOWN]
        ],
        caption=f"Labels by their error on the {name} data, the worst first, at "
        f"{record.confidence:.0%}. One answer: always what is more frequent in training.",
    )  # fmt: skip
    if samples.y.ndim > 2:  # positions of one sample are no independent trials
        return
    if name == "test" and _other_order(record, said, true, samples):
        return
    level = alarm_level(record) / per
    never = [
        k for k in range(per)
        if not bool(said[:, k].any())
        and clopper_pearson(int(true[:, k].sum()), count, 1 - 2 * level).low
        > clopper_pearson(0, count, 1 - 2 * level).high
    ]  # fmt: skip
    if never:
        _never(record, never, true, samples, name)
        return
    # no label that occurs may be worse than one answer, where chance gives each half (McNemar)
    bad = []
    for k in range(per):
        gained = int((missed[:, k] & ~wrong[:, k]).sum())
        lost = int((~missed[:, k] & wrong[:, k]).sum())
        if lost > gained and float(stats.binom.sf(lost - 1, gained + lost, 0.5)) < level:
            bad.append(k)
    if bad:
        worst = max(bad, key=lambda k: rates[k].estimate)
        more = wrong[:, worst].double() - missed[:, worst].double()
        number = record.quantity(
            "worst-label", f"error of label {worst} on the {name} data, minus that of one answer",
            mean_interval(more, record.confidence), samples=samples,
        )  # fmt: skip
        rate = float(missed[:, worst].double().mean())
        record.look(
            f"Of {_named(bad)} the network knows less than how often it occurs: of label "
            f"{worst} it errs on {rates[worst].estimate:.1%}, always giving one answer on "
            f"{rate:.1%}.",
            number=number, usual=at_most(0, "0 or less"), area=Area.FIT,
            action="Check that the columns of outputs and targets are in the same order, and that "
            "this label is right.",
        )  # fmt: skip


def _other_order(record: FindingRecord, said: Tensor, true: Tensor, samples: Samples) -> bool:
    """Say so if test labels follow from the answers once their columns are in another order.

    One half of the samples tells the order, the other half whether it serves.
    """
    count, per = true.shape
    if count < 2 * FEWEST or per < 2:
        return False
    shuffled = torch.randperm(count, generator=record.generator)
    one, two = shuffled[: count // 2], shuffled[count // 2 :]
    apart = (said[one][:, :, None] != true[one][:, None, :]).double().mean(0)
    order = torch.as_tensor(optimize.linear_sum_assignment(apart.numpy())[1])
    own, other = (
        (said[two] != labels).double().mean(1) for labels in (true[two], true[two][:, order])
    )
    saved = mean_interval(own - other, 1 - 2 * alarm_level(record))
    # an order that is wrong explains most errors; what chance gains leaves most of them
    if saved.low <= 0 or float(other.mean()) > float(own.mean()) / 2:
        return False
    number = record.quantity(
        "errors-by-order", "wrong test labels that another order of the columns takes off",
        mean_interval(own - other, record.confidence), samples=samples,
    )  # fmt: skip
    moved = [f"output {k} answers label {int(j)}" for k, j in enumerate(order) if k != int(j)]
    record.defect(
        "The labels of the test data look to be in another order than the outputs: "
        f"{several(moved, 3)}. On half of the test data the share of wrong labels is "
        f"{float(own.mean()):.1%} as they are and {float(other.mean()):.1%} in this order, which "
        "the other half told.",
        number=number, usual=at_most(0, "0 or less"),
        action="Give the columns of training and test targets the same order.",
    )  # fmt: skip
    return True


def _named(labels: list[int]) -> str:
    return f"label{'' if len(labels) == 1 else 's'} {several(labels)}"


def _never(
    record: FindingRecord, never: list[int], true: Tensor, samples: Samples, name: str
) -> None:
    worst = max(never, key=lambda k: int(true[:, k].sum()))
    share: Interval = clopper_pearson(int(true[:, worst].sum()), len(true), record.confidence)
    number = record.quantity(
        "never-set", f"share of the {name} samples with label {worst}, which is never set", share,
        samples=samples,
    )  # fmt: skip
    record.look(
        f"The network never sets {_named(never)} on {len(true):,} {name} samples, though "
        f"{share.estimate:.1%} of them have label {worst}.",
        number=number, usual=at_most(0, "0"), area=Area.FIT,
        action="Look at this output's weights and bias and at its column of the targets; else give "
        "rare labels more weight (pos_weight) or a lower threshold.",
    )  # fmt: skip


@finding(
    "label-balance",
    area="data",
    title="How often each of several labels occurs",
    cost="parameters",
    needs=[several_labels],
    whole=True,
)
def label_balance(problem: Problem, record: FindingRecord) -> None:
    """Shares of every label in training and test data, and labels that do not vary."""
    train = yes(problem.train.y).cpu()
    n, per = len(problem.train), train.shape[1]
    shares = train.double().mean(0)
    constant = [k for k in range(per) if float(shares[k]) in (0.0, 1.0)]
    if constant and n >= 10 * per:
        record.look(
            f"{_named(constant).capitalize()} {'is' if len(constant) == 1 else 'are'} the same for "
            f"all {n:,} training samples looked at: nothing can be learned of that.",
            action="Leave the output out, or give samples with the other answer.",
        )
    rarest = int(torch.where(shares > 0, shares, torch.ones_like(shares)).argmin())
    labels = problem.train.y.reshape(n, per, -1) > 0.5
    record.quantity(
        "rarest-label", f"share of training samples with label {rarest}, the rarest that occurs",
        clopper_pearson(int(labels[:, rarest].any(1).sum()), n, record.confidence),
        samples=problem.train,
    )  # fmt: skip
    if problem.test is None or problem.train.y.ndim > 2:
        if not constant:
            record.fine("Every label occurs, and is missing elsewhere.")
        return
    test = yes(problem.test.y).cpu()
    level = alarm_level(record) / per
    rows = []
    for k in range(per):
        a, b = int(train[:, k].sum()), int(test[:, k].sum())
        p = float(stats.fisher_exact([[a, n - a], [b, len(test) - b]]).pvalue)
        rows.append((k, a / n, b / len(test), p))
    rows.sort(key=lambda r: -abs(r[1] - r[2]))
    record.table(
        "balance", ("label", "share of training", "share of test", "p-value"), rows[:SHOWN],
        caption="The labels whose shares differ most come first; Fisher's exact test.",
    )  # fmt: skip
    worst = min(rows, key=lambda r: (r[3] >= level, -abs(r[1] - r[2])))
    half = [
        clopper_pearson(int(part[:, worst[0]].sum()), len(part), 1 - (1 - record.confidence) / per)
        for part in (train, test)
    ]
    gap = abs(worst[1] - worst[2])
    # Newcombe: the two ends of each share, added in squares
    reach = sum(max(h.high - h.estimate, h.estimate - h.low) ** 2 for h in half) ** 0.5
    distance = record.quantity(
        "balance-distance", f"difference of the shares of label {worst[0]}, training and test data",
        gap, low=max(0.0, gap - reach), high=min(1.0, gap + reach), samples=problem.test,
        basis=f"{record.confidence:.4g} for all {per} labels, Newcombe",
    )  # fmt: skip
    if worst[3] < level and gap >= NOTICEABLE:
        record.defect(
            f"Label {worst[0]} is set in {worst[1]:.1%} of the training and {worst[2]:.1%} of the "
            "test data.",
            number=distance, usual=below(NOTICEABLE),
            action="Draw the test data at random from the same source as the training data, and "
            "check that the columns are in the same order.",
        )  # fmt: skip
    elif not constant:
        record.fine(
            "Every label is about as frequent in the test data as in the training data.",
            number=distance, usual=below(NOTICEABLE),
        )  # fmt: skip
