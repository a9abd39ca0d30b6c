"""Finding: test samples that are training samples, and training samples that contradict others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from torchtheory.audit.causes.trial import in_words
from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.certificates import alarm_level
from torchtheory.audit.findings.input_neighbors import Found, input_neighbors, real_inputs
from torchtheory.audit.findings.near_samples import changed_places, mates
from torchtheory.core.diagnosis import Area
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.core.naming import several
from torchtheory.core.quantity import Quantity
from torchtheory.core.usual import at_most, below
from torchtheory.data.duplicates import equal_rows, row_digests, shared_rows
from torchtheory.data.neighbors import standardizer
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples

#: From so large a share of the test data on, copies change what the test error says.
MUCH = 0.01

#: Samples that are compared with all training samples to find near copies.
COMPARED = 2000

#: A near copy is closer than this part of the distance that training samples usually keep.
CLOSER = 0.5

#: Fewest samples whose distances are compared.
FEWEST = 100

#: Distances within the training data come in pairs, so the test that takes them for independent is
#: asked for so many times more; and so many near copies for each of the training data.
STRICTER, TIMES = 10, 3

#: Rows of a table that names samples.
NAMED = 20

#: Share of test samples with mates in the training data that is too much.
MATES = 0.1


def digests_of(problem: Problem, samples: Samples) -> list[bytes]:
    """A hash of every sample's inputs."""
    rows = problem.function.rows
    if rows is None:
        return row_digests(samples.x)
    return row_digests(*rows.take(samples.x).tensors())


@dataclass(frozen=True, slots=True)
class Copies:
    """Test samples that are training samples, exactly or nearly.

    Attributes:
        test: `[k]`, their numbers.
        train: `[k]`, the training samples they are copies of.
        compared: how many test samples were looked at.
        p_value: of so many for test data that were drawn like the training data.
        nearly: whether they are near copies.
        how: what was done to the copies, in words.
    """

    test: Tensor
    train: Tensor
    compared: int
    p_value: float
    nearly: bool = False
    how: str = ""

    @property
    def share(self) -> float:
        return len(self.test) / self.compared


@finding(
    "repeated-samples",
    area="data",
    title="Test samples that are training samples, and samples that contradict each other",
    cost="gradient",  # as long as several passes, and after what is known of the outputs
    whole=True,
)
def repeated_samples(problem: Problem, record: FindingRecord) -> None:
    """Equal rows by hashing, near copies by nearest neighbors; against what chance explains."""
    train = digests_of(problem, problem.train)
    groups = equal_rows(train)
    extra = sum(len(g) - 1 for g in groups)
    _share(
        record, "repeated-training-samples", "share of training samples that repeat another",
        extra, len(train), problem.train,
    )  # fmt: skip
    if problem.is_classification:
        _contradictions(problem, record, groups)
    if problem.test is None:
        record.note("With test data, the audit would also check whether they are training samples.")
        return
    found = shared_rows(train, digests_of(problem, problem.test), record.generator)
    copies = Copies(
        torch.tensor(found.test, dtype=torch.long), torch.tensor(found.train, dtype=torch.long),
        len(problem.test), found.p_value,
    )  # fmt: skip
    level = alarm_level(record)
    share = _share_of_copies(problem, record, copies)
    if copies.p_value >= level or copies.share < MUCH:
        real = real_inputs(problem) is None
        near = _near_copies(problem, record) if real else None
        if near is not None and near.p_value < level and near.share >= MUCH:
            _accuse(problem, record, near, _share_of_copies(problem, record, near))
            return
        turned = changed_copies(problem, level) if real else None
        if turned is not None and turned.share >= MUCH:
            _accuse(problem, record, turned, _share_of_copies(problem, record, turned))
            return
        if real and copies.p_value >= level and _same_sources(problem, record):
            return
    if copies.p_value < level:
        _accuse(problem, record, copies, share)
    else:
        few = (
            f"{len(copies.test):,} of {copies.compared:,} test samples equal a training sample, "
            "no more than samples drawn alike would"
            if len(copies.test)
            else f"None of {copies.compared:,} test samples is a training sample"
        )
        # a new sample equals one of the training data about as often as one of these another
        twins = sum(len(g) for g in groups) / len(train)
        tail = (1 - record.confidence) / 2
        chance = float(stats.binom.isf(tail, copies.compared, twins)) / copies.compared
        record.fine(f"{few}.", number=share, usual=at_most(chance, "0, or what chance explains"))


def _share(
    record: FindingRecord, name: str, label: str, count: int, of: int, samples: Samples
) -> Quantity:
    """A share of samples; a range where they are not all there were."""
    value: float | Interval = count / of
    if of < samples.population:
        value = clopper_pearson(count, of, record.confidence)
    return record.quantity(name, label, value, samples=samples)


def _share_of_copies(problem: Problem, record: FindingRecord, copies: Copies) -> Quantity:
    assert problem.test is not None
    name, word = ("near-copies", "nearly equal") if copies.nearly else ("copies", "equal")
    label = f"share of test samples that {word} a training sample"
    seen = len(problem.train) / problem.train.population
    whole = copies.compared == problem.test.population and seen == 1
    if whole:
        return record.quantity(name, label, copies.share, samples=problem.test)
    # a training sample that was not looked at hides its copy: the share may be 1/seen times larger
    found = clopper_pearson(len(copies.test), copies.compared, record.confidence)
    return record.quantity(
        name, label, min(1.0, found.estimate / seen), low=found.low,
        high=min(1.0, found.high / seen), samples=problem.test,
        basis=f"{record.confidence:.4g} {found.test}, {copies.compared} of "
        f"{problem.test.population} test and {len(problem.train)} of {problem.train.population} "
        "training samples",
    )  # fmt: skip


def _accuse(problem: Problem, record: FindingRecord, copies: Copies, share: Quantity) -> None:
    assert problem.test is not None
    rest = _errors_apart(problem, record, copies)
    shown = [
        (int(a), int(b), *_labels(problem, int(a), int(b)))
        for a, b in zip(copies.test[:NAMED], copies.train[:NAMED], strict=True)
    ]
    used = " of those used" if problem.test.note or problem.train.note else ""
    record.table(
        "copies",
        ("test sample", "training sample", "test target", "training target"),
        shown,
        caption=f"The first {len(shown)} of {len(copies.test)} test samples that are copies of "
        f"training samples, by their numbers{used}, from 0.",
    )
    word = "nearly copies of" if copies.nearly else "also"
    if copies.how:
        word = f"copies, {copies.how}, of"
    sentence = (
        f"{len(copies.test):,} of {copies.compared:,} test samples ({100 * copies.share:.3g}%) "
        f"are {word} training samples{rest}."
    )
    action = (
        "Take them out of the test data: what was seen in training says nothing about new data."
    )
    usual = at_most(0, "0, or what chance explains")
    if copies.share >= MUCH:
        record.defect(sentence, number=share, usual=usual, action=action)
        record.look(
            "The test error says little about new data: training saw much of the test data.",
            number=share, usual=usual, action=action, area=Area.GENERALIZATION,
        )  # fmt: skip
    else:
        record.look(sentence, number=share, usual=usual, action=action)


def _labels(problem: Problem, test: int, train: int) -> tuple[str, str]:
    assert problem.test is not None
    a, b = problem.test.y[test], problem.train.y[train]
    if a.numel() != 1:
        return f"{a.numel()} numbers", f"{b.numel()} numbers"
    return f"{float(a):.4g}", f"{float(b):.4g}"


def _errors_apart(problem: Problem, record: FindingRecord, copies: Copies) -> str:
    """The error on the copies and on the rest, in words."""
    assert problem.test is not None
    if not problem.is_classification or not problem.deterministic:
        return ""
    wrong = problem.errors(problem.test).cpu()
    among = torch.zeros(len(wrong), dtype=torch.bool)
    among[copies.test.cpu()] = True
    own, other = wrong[among], wrong[~among]
    if len(other) == 0:
        return ", so nothing is known about new data"
    exact = clopper_pearson(int(other.sum()), len(other), record.confidence)
    record.quantity("error-without-copies", "error rate on test samples that are not copies", exact)
    return (
        f"; the error is {float(own.double().mean()):.1%} on them and {exact.estimate:.1%} on the "
        "others"
    )


def changed_copies(problem: Problem, level: float) -> Copies | None:
    """Test samples that are training samples mirrored, turned, moved or re-encoded."""
    found = changed_places(problem, level)
    if found is None:
        return None
    return Copies(
        found.test, found.train, found.compared, found.p_value, nearly=True, how=found.words
    )


def _same_sources(problem: Problem, record: FindingRecord) -> bool:
    """Say so if test samples have mates in the training data, and the network does better there."""
    assert problem.test is not None
    found = mates(problem)
    if found is None or not found.beyond_chance.low > MATES:
        return False
    number = record.quantity(
        "test-samples-with-mates", "share of test samples with a training sample of their source",
        found.beyond_chance, samples=problem.test,
    )  # fmt: skip
    confirmed = found.with_mates is not None and found.difference is not None
    words = ""
    if found.with_mates is not None and found.without is not None:
        words = (
            f"; the network {in_words(problem, found.with_mates)} of them and "
            f"{in_words(problem, found.without)} of the others"
        )
    if not confirmed or found.difference is None or not found.difference.low > 0:
        record.note(
            f"About {found.beyond_chance.estimate:.0%} of the test samples have a training sample "
            f"far nearer than the others around{words}: they may be of one source."
        )
        return False
    record.defect(
        f"About {found.beyond_chance.estimate:.0%} of the test samples have mates in the training "
        f"data, far nearer than the other samples around them, as if of one source{words}.",
        number=number, usual=below(MATES),
        action="Split by source (person, scene, time), not by sample: all of one source on one "
        "side.",
    )  # fmt: skip
    return True


def _near_copies(problem: Problem, record: FindingRecord) -> Copies | None:
    """Test samples far closer to a training sample than training samples are to each other.

    If both are drawn alike, a test sample has its neighbors at the distances at which a training
    sample has the others, so the shares of both within a distance agree.
    """
    assert problem.test is not None
    search = input_neighbors(problem)
    inside, tested = search.of("train", COMPARED), search.of("test", COMPARED)
    standardize = standardizer(problem.train.x)
    own = _distances(standardize, problem.train.x, problem.train.x, inside)
    others = _distances(standardize, problem.test.x, problem.train.x, tested)
    positive = own[own > 0]
    if len(positive) < FEWEST or len(others) < FEWEST:
        return None
    within = CLOSER * float(positive.median())
    here, there = int((others < within).sum()), int((own < within).sum())
    if here * len(own) < TIMES * there * len(others):
        return None
    p_value = stats.hypergeom.sf(here - 1, len(others) + len(own), here + there, len(others))
    p_value = min(1.0, STRICTER * float(p_value))
    close = (others < within).cpu()
    return Copies(
        tested.samples.cpu()[close], tested.index[:, 0].cpu()[close], len(others), p_value,
        nearly=True,
    )  # fmt: skip


def _distances(
    standardize: Callable[[Tensor], Tensor], x: Tensor, train: Tensor, found: Found
) -> Tensor:
    """Distances to the nearest neighbor in all columns, not in the principal components."""
    parts = [
        (standardize(x[a]) - standardize(train[b])).norm(dim=1)
        for a, b in zip(
            torch.split(found.samples, 256), torch.split(found.index[:, 0], 256), strict=True
        )
    ]
    return torch.cat(parts).double()


def _contradictions(problem: Problem, record: FindingRecord, groups: list[list[int]]) -> None:
    """Equal inputs with different labels: errors that no function of the inputs can avoid."""
    labels = problem.train.y.reshape(len(problem.train)).long().cpu()
    split = [g for g in groups if len(torch.unique(labels[g])) > 1]
    lost = sum(len(g) - int(labels[g].bincount().max()) for g in split)
    floor = _share(
        record, "contradictions", "least training error that any function of the inputs can have",
        lost, len(labels), problem.train,
    )  # fmt: skip
    if not split:
        return
    record.table(
        "contradictions",
        ("training samples", "labels"),
        [(several(g, 8), several(labels[g].tolist(), 8)) for g in split[:NAMED]],
        caption=f"The first {min(NAMED, len(split))} of {len(split)} inputs that occur with "
        "different labels, by the numbers of the samples, from 0.",
    )
    if floor.value >= MUCH:
        involved = sum(len(g) for g in split)
        record.look(
            f"{involved:,} training samples have the input of another with another label: no "
            f"network can err on fewer than {floor.value:.1%} of the training data.",
            number=floor,
            usual=below(MUCH),
            action="Look at the table of contradictions: are labels wrong, or is an input missing "
            "that tells these samples apart?",
        )
