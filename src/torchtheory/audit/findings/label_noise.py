"""Finding: labels that have nothing to do with the inputs, and labels learned by heart.

Labels are judged by the samples around them, in the inputs or in what the network's last layer
sees, whichever tells more about new data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from torchtheory.audit.causes.differential import differential
from torchtheory.audit.causes.rivals import best_renaming, judging_order
from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.certificates import alarm_level
from torchtheory.audit.findings.data_overlap import NAMED
from torchtheory.audit.findings.hypotheses import deterministic, one_label_per_sample
from torchtheory.audit.findings.input_neighbors import (
    COUNT,
    Found,
    InputNeighbors,
    input_neighbors,
    own_neighbors,
    real_inputs,
)
from torchtheory.core.intervals import clopper_pearson
from torchtheory.core.naming import several
from torchtheory.core.quantity import Quantity
from torchtheory.core.usual import above, at_most, below
from torchtheory.data.neighbors import (
    LabelInformation,
    comparable,
    linear_information,
    neighbor_information,
)
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.tracing.last_features import last_features

#: Fewest samples of which something is said.
FEWEST = 50

#: Samples that decide which neighbors tell more, and that labels are permuted of.
TRIED = 500
PERMUTED = 4000

#: A score of information about classes, or about numbers, that might still be this large is not
#: said to be none.
NONE, NONE_OF_NUMBERS = 0.2, 0.3

#: A network of so much skill on new data has found what neighbors and linear fits do not see.
KNOWS = 0.25

#: A label is contradicted if so many of ten neighbors have one other label, and so many its own.
AGAINST, FOR = 8, 1

#: Shares of labels learned by heart that are a defect, and of contradicted ones worth a look.
BY_HEART, CONTRADICTED = 0.02, 0.02


def one_target(problem: Problem) -> str | None:
    if (reason := one_label_per_sample(problem)) is not None or problem.train.y[0].numel() == 1:
        return reason
    return "the targets are vectors, and this is about one label per sample"


def enough_samples(problem: Problem) -> str | None:
    if len(problem.train) >= FEWEST:
        return None
    return f"{len(problem.train)} training samples are too few to tell labels from chance"


@finding(
    "labels",
    area="data",
    title="Labels that contradict their neighbors, and whether labels follow from inputs at all",
    cost="gradient",  # as long as several passes, and after what is known of the outputs
    needs=[one_target, enough_samples, deterministic],
    whole=True,
)
def labels(problem: Problem, record: FindingRecord) -> None:
    """Neighbors vote on every label; a permutation test says whether they know anything."""
    y = target(problem, problem.train)
    if bool((y == y[0]).all()):
        record.note("All labels are equal.")
        return
    by_input = input_neighbors(problem) if real_inputs(problem) is None else None
    by_feature = _feature_neighbors(problem)
    if by_input is None and by_feature is None:
        record.not_applicable(
            (), r"y \not\perp x", "the inputs have no distances, and no last dense layer was seen"
        )
        return
    if _shuffled(problem, record, by_input, by_feature):
        return
    search, words = _more_telling(problem, by_input, by_feature)
    if problem.is_classification and search.count == COUNT:
        _noise(problem, record, search, words)
    else:
        record.fine("Nothing shows that targets were mixed up.")


def target(problem: Problem, samples: Samples) -> Tensor:
    """Labels `[n]`: whole numbers for classes."""
    y = samples.y.reshape(len(samples))
    return y.long() if problem.is_classification else y.double()


def _feature_neighbors(problem: Problem) -> InputNeighbors | None:
    """Neighbors by what the last layer sees; it has seen the labels, so new data must judge it."""
    if problem.test is None or len(problem.test) < FEWEST:
        return None
    if problem.affordable(1, share=0.3) < len(problem.train) + len(problem.test):
        return None
    features, tested = (last_features(problem, s) for s in (problem.train, problem.test))
    if features is None or tested is None or features.shape[1] == 0:
        return None
    to_rows = comparable(features)
    return InputNeighbors(to_rows(features), to_rows(tested))


def _more_telling(
    problem: Problem, by_input: InputNeighbors | None, by_feature: InputNeighbors | None
) -> tuple[InputNeighbors, str]:
    """The neighbors by which test labels are predicted better, and what they are neighbors by."""
    by_layer = "the features of its last layer"
    if by_feature is None or problem.test is None:
        assert by_input is not None
        return by_input, "inputs"
    if by_input is None:
        return by_feature, by_layer
    of_train, of_test = target(problem, problem.train), target(problem, problem.test)
    scores = []
    for search in (by_input, by_feature):
        found = search.of("test", TRIED)
        scores.append(_score(of_test[found.samples], of_train[found.index]))
    return (by_feature, by_layer) if scores[1] > scores[0] else (by_input, "inputs")


def _score(y: Tensor, around: Tensor) -> float:
    """How well neighbors predict labels: the share of right votes, or minus the squared error."""
    if y.is_floating_point():
        return -float((around.mean(1) - y).square().mean())
    return float((around.mode(1).values == y).double().mean())


# ------------------------------------------------------------------ do labels follow from inputs?


def _own_information(
    search: InputNeighbors, labels: Tensor, record: FindingRecord
) -> LabelInformation:
    """Do test samples have the labels of their neighbors among the test samples?

    Labels that are right predict each other also where inputs are not those of training.
    """
    rows = search.rows["test"][:PERMUTED]
    index = own_neighbors(rows, 1)[:, 0]
    every = torch.arange(len(rows), device=rows.device)
    return neighbor_information(
        labels[: len(rows)], index, labels[: len(rows)], every, record.generator
    )


def _says_nothing(found: LabelInformation, level: float, none: float) -> bool:
    """Whether labels are as if they were random, and a larger score would have been seen."""
    return found.p_value >= level and found.score + 2.6 * found.deviation < none


def _shuffled(
    problem: Problem,
    record: FindingRecord,
    by_input: InputNeighbors | None,
    by_feature: InputNeighbors | None,
) -> bool:
    """Say so if training or test labels have nothing to do with the inputs, or other names."""
    level, y = alarm_level(record), target(problem, problem.train)
    train: dict[str, LabelInformation] = {}
    if by_input is not None:  # features would have the labels they were trained with
        found = by_input.of("train", PERMUTED)
        train["training labels by the nearest neighbor"] = neighbor_information(
            y[found.samples], found.index[:, 0], y, found.samples, record.generator
        )
        train["training labels by a linear fit"] = linear_information(by_input.rows["train"], y)
    none = NONE if problem.is_classification else NONE_OF_NUMBERS
    # a network that learned shuffled labels may be wrong on others in any way
    if (not train or _informative(train, none)) and _renamed(problem, record):
        return True
    test: dict[str, LabelInformation] = {}
    if problem.test is not None and len(problem.test) >= FEWEST:
        of_test = target(problem, problem.test)
        for words, search in (("inputs", by_input), ("features", by_feature)):
            if search is not None:
                found = search.of("test", PERMUTED)
                test[f"test labels by the nearest training sample, by {words}"] = (
                    neighbor_information(
                        of_test[found.samples], found.index[:, 0], y, generator=record.generator
                    )
                )
                test[f"test labels by the nearest other test sample, by {words}"] = (
                    _own_information(search, of_test, record)
                )
    record.table(
        "information",
        ("prediction", "score", "its spread by chance", "p-value"),
        [(name, i.score, i.deviation, i.p_value) for name, i in {**train, **test}.items()],
        caption="How far labels follow from the others: a score of 1 is a prediction without "
        "errors, 0 is chance.",
    )
    network = _network_knows(problem, level)
    for name, about, samples in (("training", train, problem.train), ("test", test, problem.test)):
        if not about:
            continue
        best = max(about.values(), key=lambda i: i.score)
        number = record.quantity(
            f"{name}-label-information", f"how far {name} labels follow from inputs, 0 to 1",
            best.score, error=2 * max(best.deviation, 1e-12), samples=samples,
            basis="two standard deviations by chance",
        )  # fmt: skip
        if name == "test" and train and not _informative(train, none):
            continue  # they are predicted from the training labels, which may be the wrong ones
        # a network that predicts new labels knows what neighbors may not see
        random = all(_says_nothing(i, level, none) for i in about.values())
        if (network or 0.0) > KNOWS or not random:
            continue
        if name == "test" and any(c.kind != "labels" for c in differential(problem).causes):
            continue  # something else was done to the test data
        say = record.defect if network == 0.0 else record.look
        say(
            f"The {name} labels look shuffled: neighboring samples"
            + (" and a linear fit" if name == "training" else ", of training and of test data,")
            + " do not predict them better than chance"
            + (", nor does the network predict new ones." if network == 0.0 else "."),
            number=number,
            usual=above(none),
            action=f"Check that inputs and labels of the {name} data are read in the same order.",
        )
        return True
    return False


def _renamed(problem: Problem, record: FindingRecord) -> bool:
    """Say so if test labels follow from the predictions once classes have other names."""
    if not problem.is_classification:
        return False
    found = next((c for c in differential(problem).causes if c.kind == "names"), None)
    if found is None:
        return False
    number = record.quantity(
        "errors-by-names", "errors on test labels that other names of the classes take off",
        found.saved, samples=problem.test,
    )  # fmt: skip
    names = best_renaming(problem, judging_order(problem))
    assert names is not None
    assert problem.test is not None
    own = float(problem.errors(problem.test).double().mean())
    record.defect(
        "The test labels look renamed: a consistent renaming of the classes explains them "
        f"({names.words}). The network errs on {own:.1%} of them as they are, and on "
        f"{names.wrong:.1%} with these names.",
        number=number, usual=at_most(0, "0 or less"), action=found.action,
    )  # fmt: skip
    return True


def _informative(about: Mapping[str, LabelInformation], least: float) -> bool:
    """Whether the best prediction is beyond chance and beyond what counts as none."""
    best = max(about.values(), key=lambda i: i.score)
    return best.score - 2.6 * best.deviation > least  # 99.5 % of a normal law


def _network_knows(problem: Problem, level: float) -> float | None:
    """The network's skill on new data: 0 if it is no better than the best constant, else up to 1.

    None if there are no data to tell it by.
    """
    test = problem.test
    if test is None or len(test) < FEWEST:
        return None
    y = target(problem, test)
    if bool((y == y[0]).all()):
        return None
    if problem.is_classification:
        trivial = len(y) - int(torch.bincount(y).max())
        wrong = int(problem.errors(test).sum())
        by_chance = float(stats.binom.cdf(wrong, len(y), trivial / len(y)))
        return 0.0 if by_chance >= level else 1 - wrong / trivial
    outputs = problem.outputs(test).reshape(len(test)).double()
    r = float(torch.corrcoef(torch.stack([outputs, y]))[0, 1])
    return r if r > 2.6 / len(y) ** 0.5 else 0.0


# -------------------------------------------------------------------------- labels learned by heart


@dataclass(frozen=True, slots=True)
class Votes:
    """What the neighbors of some samples say.

    Attributes:
        samples: `[q]`, their numbers.
        label: `[q]`, as given.
        said: `[q]`, the most frequent label around.
        strength: `[q]`, how many of ten neighbors have it.
        own: `[q]`, how many have the sample's own label.
        by_network: `[q]`, whether the network says what the label says.
    """

    samples: Tensor
    label: Tensor
    said: Tensor
    strength: Tensor
    own: Tensor
    by_network: Tensor

    @property
    def contradicted(self) -> Tensor:
        return (self.said != self.label) & (self.strength >= AGAINST) & (self.own <= FOR)

    @property
    def learned(self) -> Tensor:
        """Contradicted, and the network says the label nevertheless."""
        return self.contradicted & self.by_network


def _votes(problem: Problem, samples: Samples, found: Found) -> Votes:
    around = target(problem, problem.train)[found.index]
    label = target(problem, samples)[found.samples]
    said = around.mode(1).values
    right = ~problem.errors(samples)[found.samples]
    parts = (
        found.samples, label, said, (around == said[:, None]).sum(1),
        (around == label[:, None]).sum(1), right,
    )  # fmt: skip
    return Votes(*(p.cpu() for p in parts))


def _noise(problem: Problem, record: FindingRecord, search: InputNeighbors, words: str) -> None:
    """Contradicted labels; learned by heart are those that the network would not say of new data.

    New samples are drawn as the training samples were, so the network says a contradicted label as
    often for them, unless it has learned the training labels by heart.
    """
    tested = None
    # test data that something was done to does not tell how often new labels are contradicted
    alike = not differential(problem).explained
    if problem.test is not None and len(problem.test) >= FEWEST and alike:
        tested = _votes(problem, problem.test, search.of("test", PERMUTED))
    votes = _votes(problem, problem.train, search.of("train", len(problem.train)))
    bad, q = votes.contradicted, len(votes.samples)
    asked = problem.train.at(votes.samples)  # those whose neighbors there was time for
    learned = int(votes.learned.sum())
    share = _noise_share(record, problem, asked, votes, tested)
    seen = record.quantity(
        "contradicted-labels", "share of training labels that contradict the samples around them",
        clopper_pearson(int(bad.sum()), q, record.confidence), samples=asked,
    )  # fmt: skip
    names = _table(problem, record, votes, words)
    found = clopper_pearson(int(bad.sum()), q, 1 - 2 * alarm_level(record))
    usual = below(CONTRADICTED)
    action = "Look at the samples in the table and fix their labels, or stop training earlier."
    if tested is not None:
        there, m = int(tested.learned.sum()), len(tested.samples)
        p_value = stats.hypergeom.sf(learned - 1, q + m, learned + there, q)
        if p_value < alarm_level(record) and learned / q - there / m >= BY_HEART:
            record.defect(
                f"{int(bad.sum()):,} of {q:,} training labels contradict the samples around them, "
                f"and the network has learned {learned:,} of these by heart; look at samples "
                f"{names} first.",
                number=share, usual=at_most(0, "0"), action=action,
            )  # fmt: skip
            return
    if found.low > CONTRADICTED:
        record.look(
            f"{int(bad.sum()):,} of {q:,} training labels contradict the samples around them; look "
            f"at samples {names} first.",
            number=seen, usual=usual, action=action,
        )  # fmt: skip
        return
    record.fine(
        f"{int(bad.sum()):,} of {q:,} training labels contradict the samples around them."
        if int(bad.sum())
        else f"No label of {q:,} training samples contradicts the samples around it.",
        number=seen, usual=usual,
    )  # fmt: skip


def _noise_share(
    record: FindingRecord, problem: Problem, asked: Samples, votes: Votes, tested: Votes | None
) -> Quantity:
    r"""Estimated share of wrong training labels.

    If votes err on a share $e$ of right labels, and on $d$ of the labels given, of which a share
    $\eta$ is random among the $K - 1$ others, then $d = e + \eta(1 - eK/(K-1))$. The votes on test
    labels tell $e$; without test data, contradicted labels are counted.
    """
    name, label = "wrong-labels", "estimated share of wrong training labels"
    q = len(votes.samples)
    miss = clopper_pearson(int((votes.said != votes.label).sum()), q, record.confidence)
    sure = clopper_pearson(int(votes.contradicted.sum()), q, record.confidence)
    if tested is None:
        return record.quantity(
            name, label, sure.estimate, low=sure.low, high=miss.high, samples=asked,
            basis=f"{record.confidence:.4g} Clopper-Pearson, contradicted at least and outvoted "
            "at most",
        )  # fmt: skip
    wrong = int((tested.said != tested.label).sum())
    error = clopper_pearson(wrong, len(tested.samples), record.confidence)
    classes = problem.classes or 2

    def share(d: float, e: float) -> float:
        return min(1.0, max(0.0, (d - e) / (1 - e * classes / (classes - 1))))

    if error.high >= 0.9 * (1 - 1 / classes):  # the votes are hardly better than chance
        return record.quantity(
            name, label, sure.estimate, low=0.0, high=1.0, samples=asked,
            basis="neighbors do not predict the test labels, so nothing is excluded",
        )  # fmt: skip

    return record.quantity(
        name, label, share(miss.estimate, error.estimate), low=share(miss.low, error.high),
        high=share(miss.high, error.low), samples=asked,
        basis=f"{record.confidence:.4g} Clopper-Pearson, if test labels are right",
    )  # fmt: skip


def _table(problem: Problem, record: FindingRecord, votes: Votes, words: str) -> str:
    """Name the contradicted samples, those with the strongest votes first."""
    bad = votes.contradicted.nonzero().flatten()
    if len(bad) == 0:
        return ""
    order = sorted(
        bad.tolist(),
        key=lambda k: (int(votes.own[k]) - int(votes.strength[k]), int(votes.samples[k])),
    )
    used = " of those used" if problem.train.note else ""
    record.table(
        "contradicted",
        ("training sample", "label", "neighbors say", "of ten", "the network agrees with"),
        [
            (
                int(votes.samples[k]),
                int(votes.label[k]),
                int(votes.said[k]),
                int(votes.strength[k]),
                "the label" if bool(votes.by_network[k]) else "another",
            )
            for k in order[:NAMED]
        ],
        caption=f"The first {min(NAMED, len(order))} of {len(order)} training samples whose "
        f"neighbors by {words} have another label, by their numbers{used}, from 0.",
    )
    return several([int(votes.samples[k]) for k in order])
