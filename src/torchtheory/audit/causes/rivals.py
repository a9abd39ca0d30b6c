"""Rivals of over-fitting that no map of the inputs undoes: names, labels, order, noise, source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy import optimize, stats
from torch import Tensor

from torchtheory.audit.causes.cause import Cause
from torchtheory.audit.causes.layout import layouts
from torchtheory.audit.causes.trial import PREPARE, Gap, costs, in_words
from torchtheory.audit.causes.undoing import Undoing
from torchtheory.audit.findings.input_neighbors import InputNeighbors, own_neighbors
from torchtheory.core.intervals import Interval, mean_interval
from torchtheory.core.naming import several
from torchtheory.core.random import as_generator
from torchtheory.data.neighbors import nearest
from torchtheory.data.wide_rows import rows_within
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples

#: A renaming of classes is one if it takes off this share of all test labels' errors.
RENAMED = 0.1

#: A label is voted against if so many of ten neighbors have one other; the network agrees with so
#: large a share of the votes where labels are to blame.
NEIGHBORS, VOTES, AGREES = 10, 8, 0.8

#: Fewest labels with sure votes, and part of the share of contradicted labels by which more test
#: labels contradict the test samples around them than training labels contradict theirs.
FEWEST_VOTES, OWN_SHARE = 20, 0.5

#: Share of test samples that are nearest to their own kind, where both follow one law 1/2, from
#: which on they are told apart; and how many standard deviations from chance it is.
OWN_KIND, DEVIATIONS = 0.6, 4.0

#: Rank correlation of errors with the order of the samples that is worth a word.
DRIFT = 0.2

#: A feature is noisier where its variance is this much larger, in parts of what it is.
NOISIER = 0.02

#: Factor by which two estimates of one variance of noise may differ.
UNLIKE = 1.5

#: Samples whose roughness is looked at, at most.
LOOKED_AT = 2000

#: Share of samples turned back at random that is too much for chance.
TURNED = 0.1


def classes_said(problem: Problem, samples: Samples) -> tuple[Tensor, int]:
    """The class that the network names for every sample, and how many there are."""
    outputs = problem.outputs(samples).cpu()
    if problem.task == "binary":
        return (outputs.reshape(len(samples)) > problem.decision_level).long(), 2
    return outputs.argmax(1), outputs.shape[1]


@dataclass(frozen=True, slots=True)
class Renaming:
    """The permutation of classes that makes most test labels right.

    Attributes:
        names: `[k]`, what each class that the network says is called in the test data.
        before, after: costs `[m]` on the half of the samples that did not choose it.
        wrong: share of all test samples on which the network errs with these names.
    """

    names: Tensor
    before: Tensor
    after: Tensor
    wrong: float

    @property
    def words(self) -> str:
        moved = [f"{i} is called {int(k)}" for i, k in enumerate(self.names) if i != int(k)]
        return several(moved, 3)


def judging_order(problem: Problem) -> Tensor:
    """The order in which test samples choose and judge, always the same."""
    assert problem.test is not None
    return torch.randperm(len(problem.test), generator=as_generator(0))


def best_renaming(problem: Problem, order: Tensor) -> Renaming | None:
    """One half of the test data tells which name each class has, the other whether it serves."""
    test = problem.test
    if test is None or not problem.is_classification:
        return None
    y = test.y.reshape(len(test)).long().cpu()
    said, classes = classes_said(problem, test)
    one, two = order[: len(order) // 2], order[len(order) // 2 :]
    counts = torch.bincount(said[one] * classes + y[one], minlength=classes**2)
    _, names = optimize.linear_sum_assignment(-counts.reshape(classes, classes).numpy())
    found = torch.as_tensor(names)
    if bool((found == torch.arange(classes)).all()):
        return None
    before = costs(problem, test)[two]
    missed = (found[said] != y).double()
    return Renaming(found, before, missed[two], float(missed.mean()))


def renamed(gap: Gap, order: Tensor) -> Cause | None:
    """Test labels with other names, or targets in other units."""
    if not gap.problem.is_classification:
        return other_units(gap, order)
    found = best_renaming(gap.problem, order)
    if found is None or float((found.before - found.after).mean()) < RENAMED:
        return None
    return gap.judged(
        "names",
        f"the classes have other names in the test data ({found.words})",
        "with these names",
        "Number the classes of training and test data by the same list of names.",
        found.before,
        found.after,
    )


def other_units(gap: Gap, order: Tensor) -> Cause | None:
    r"""Targets of a regression in other units, $y = a f + b$: fitted on one half of the test data.

    One target at a time; where it says little, the fit shrinks, which explains no gap.
    """
    problem, test = gap.problem, gap.problem.test
    assert test is not None
    f, y = (v.reshape(len(test), -1).double().cpu() for v in (problem.outputs(test), test.y))
    if f.shape != y.shape:
        return None
    one, two = order[: len(order) // 2], order[len(order) // 2 :]
    center, middle = f[one].mean(0), y[one].mean(0)
    spread = (f[one] - center).square().sum(0)
    a = ((f[one] - center) * (y[one] - middle)).sum(0) / spread.clamp(min=1e-300)
    b = middle - a * center
    if bool((spread == 0).any()):
        return None
    words = (
        f"the test targets are in other units ({float(a[0]):.3g} times as large, "
        f"{float(b[0]):+.3g})"
    )
    return gap.judged(
        "units", words, "converted back,",
        "Give the targets of training and test data in the same units.",
        (f[two] - y[two]).square().mean(1), (f[two] - (y[two] - b) / a).square().mean(1),
    ) if bool((a.abs() > 1e-6).all()) else None  # fmt: skip


def drift(gap: Gap) -> Cause | None:
    """Errors that grow along the order of the test data, beside what its classes explain."""
    problem, test = gap.problem, gap.problem.test
    assert test is not None
    if len(test) < test.population:  # a part of them, drawn at random
        return None
    cost = costs(problem, test)
    place = torch.arange(len(cost), dtype=torch.float64)
    apart = cost.clone()
    if problem.is_classification:  # where samples are sorted by class, the order is that of classes
        y = test.y.reshape(len(test)).long().cpu()
        for kind in torch.unique(y):
            apart[y == kind] -= cost[y == kind].mean()
    if float(apart.max()) == float(apart.min()):
        return None
    found = stats.spearmanr(place.numpy(), apart.numpy())
    if not abs(found.statistic) >= DRIFT or found.pvalue >= gap.level:
        return None
    third = len(cost) // 3
    first, last = cost[:third], cost[-third:]
    small, large = (first, last) if found.statistic > 0 else (last, first)
    where = ("first", "last") if found.statistic > 0 else ("last", "first")
    half = (float(large.mean()) + gap.train) / 2
    saved = Interval(
        float(large.mean() - small.mean()),
        mean_interval(large, 1 - gap.level).low - mean_interval(small, 1 - gap.level).high,
        mean_interval(large, 1 - gap.level).high - mean_interval(small, 1 - gap.level).low,
        1 - gap.level, len(cost), "Student t of two thirds",
    )  # fmt: skip
    return Cause(
        "drift",
        "the error changes along the order of the test data",
        f"in the {where[0]} third the network {in_words(problem, float(small.mean()))}, in the "
        f"{where[1]} third it {in_words(problem, float(large.mean()))}",
        "If the order is that of time, train on newer data; else find out what the order is.",
        saved,
        mean_interval(small, 1 - gap.level).high < half,
    )


def wrong_test_labels(gap: Gap, search: InputNeighbors) -> Cause | None:
    """Test labels against the votes of their training neighbors, with which the network agrees.

    Other inputs may lead votes and network astray together, so wrong labels must also contradict
    the test samples around them: right ones agree with each other wherever they are.
    """
    problem, test = gap.problem, gap.problem.test
    assert test is not None
    if not problem.is_classification or search.count < NEIGHBORS or len(test) <= NEIGHBORS:
        return None
    y, of_test = (s.y.reshape(len(s)).long().cpu() for s in (problem.train, test))
    found, inside = search.of("test", len(test)), search.of("train", len(problem.train))
    samples = found.samples.cpu()
    votes = _Votes.of(of_test[samples], y[found.index.cpu()])
    own = _Votes.of(y[inside.samples.cpu()], y[inside.index.cpu()])
    if int(votes.sure.sum()) < FEWEST_VOTES or int(own.sure.sum()) < FEWEST_VOTES:
        return None
    k, q = int(votes.against.sum()), int(votes.sure.sum())
    m, n = int(own.against.sum()), int(own.sure.sum())
    more = float(stats.hypergeom.sf(k - 1, q + n, k + m, q)) if k else 1.0
    said = classes_said(problem, test)[0][samples]
    if more >= gap.level or float((said == votes.said)[votes.against].double().mean()) < AGREES:
        return None
    index = own_neighbors(search.rows["test"], NEIGHBORS)
    among = float((of_test[index.cpu()].mode(1).values != of_test).double().mean())
    usual = float((own.said != y[inside.samples.cpu()]).double().mean())
    if among - usual < OWN_SHARE * k / q:
        return None
    return gap.judged(
        "labels",
        f"{100 * k / q:.3g}% of the test labels contradict the training samples around them "
        f"({100 * m / n:.3g}% of the training labels do)",
        "against the labels of these neighbors",
        "Look at the test labels: are they noisy, or read in another order than the inputs?",
        costs(problem, test)[samples][votes.sure],
        (said != votes.said).double()[votes.sure],
    )


@dataclass(frozen=True, slots=True)
class _Votes:
    """What neighbors say of each label: the class, whether they are sure, and of another."""

    said: Tensor
    sure: Tensor
    against: Tensor

    @classmethod
    def of(cls, labels: Tensor, around: Tensor) -> _Votes:
        said = around.mode(1).values
        sure = (around == said[:, None]).sum(1) >= VOTES
        return cls(said, sure, sure & (said != labels))


def noise_on_inputs(gap: Gap, samples: Samples, generator: torch.Generator) -> Cause | None:
    """Test inputs with noise that training inputs lack: put it on training inputs, and measure.

    The variance of neighboring entries' differences, or of features, is larger by that of the
    noise.
    """
    problem = gap.problem
    assert problem.test is not None
    extra = _extra_noise(problem)
    if extra is None:
        return None
    x = samples.x
    drawn = torch.randn(x.shape, generator=generator).to(x)
    noisy = Samples(x + extra * drawn, samples.y)
    return _redone(
        gap, "noise",
        f"the test inputs carry noise of standard deviation {extra:.2g} that training inputs do "
        "not", samples, noisy, "Turn off the augmentation of the test data.",
    )  # fmt: skip


def _extra_noise(problem: Problem) -> float | None:
    """Standard deviation of noise that is in the test inputs alone, by their roughness."""
    assert problem.test is not None
    found = layouts(problem)
    if not found:
        return None
    layout, rough = found[0], []
    most = rows_within(LOOKED_AT, problem.train.x[0].numel(), least=2)
    for samples in (problem.train, problem.test):
        shaped = samples.x[:most].reshape(-1, *layout.shape).double()
        parts = [_second_difference(shaped, d).square().flatten(1).mean(1) for d in layout.places]
        rough.append(torch.stack(parts).mean(0).cpu())
    one, two = rough
    if not mean_interval(two, 0.999).low > mean_interval(one, 0.999).high:
        return None
    variance = float(two.mean() - one.mean()) / 6  # of second differences: 1 + 4 + 1
    size, spread = (float(s.x[:most].double().var()) for s in (problem.train, problem.test))
    # noise adds to the variance what it adds to the roughness; another scale does not
    alike = (spread - size) / UNLIKE < variance < (spread - size) * UNLIKE
    return variance**0.5 if alike and variance > NOISIER * size else None


def _second_difference(x: Tensor, dimension: int) -> Tensor:
    return x.diff(dim=dimension).diff(dim=dimension)


def _redone(
    gap: Gap, kind: str, words: str, samples: Samples, changed: Samples, action: str
) -> Cause | None:
    """A cause, if the training error rises beyond doubt when it is done to training inputs."""
    before, after = costs(gap.problem, samples), costs(gap.problem, changed)
    rise = mean_interval(after - before, 1 - gap.level)
    if not rise.low > 0:
        return None
    assert gap.problem.test is not None
    there = float(costs(gap.problem, gap.problem.test).mean())
    size = there - gap.train
    how = f"put on training inputs, it {in_words(gap.problem, float(after.mean()))} of those"
    if not gap.problem.is_classification:
        how = f"put on training inputs, it {in_words(gap.problem, float(after.mean()))} there"
    return Cause(kind, words, how, action, rise, size / 2 < rise.low < 2 * size)


def turned_at_random(
    gap: Gap, samples: Samples, training: Samples, maps: Sequence[Undoing]
) -> Cause | None:
    """Some test inputs turned: each is shown as it is and turned, and the surer answer counts.

    No label is used. It is said where far more test than training samples are surer turned.
    """
    problem = gap.problem
    if not problem.is_classification:
        return None
    before, best = costs(problem, samples), None
    for undoing in maps:
        turned = undoing.of(samples)
        other = _sureness(problem, turned) > _sureness(problem, samples)
        share = float(other.double().mean())
        cause = gap.judged(
            "augmentation",
            f"part of the test inputs, about {100 * share:.2g}%, {undoing.words}",
            "with the surer of the two ways", PREPARE, before,
            torch.where(other, costs(problem, turned), before),
        )  # fmt: skip
        if cause is None or (best is not None and best.saved.estimate > cause.saved.estimate):
            continue
        here = _sureness(problem, undoing.of(training)) > _sureness(problem, training)
        if share - float(here.double().mean()) >= TURNED:
            best = cause
    return best


def _sureness(problem: Problem, samples: Samples) -> Tensor:
    """Margin between the first class and the second."""
    outputs = problem.outputs(samples).double().cpu()
    if problem.task == "binary":
        return (outputs.reshape(len(samples)) - problem.decision_level).abs()
    top = outputs.topk(2, 1).values
    return top[:, 0] - top[:, 1]


def own_kind(problem: Problem, search: InputNeighbors) -> float | None:
    """Share of samples whose nearest of their class is of their own data, where it is not 1/2.

    Equally many training and test samples are searched, so that it is 1/2, or a little less, where
    both follow one law, whatever the shares of the classes; of test samples that spread more it is
    less, of training samples then more. The share is that of test or of training samples, whichever
    is farther from 1/2; None where both are as chance has them.
    """
    test = problem.test
    assert test is not None
    of = [torch.zeros(len(s), dtype=torch.long) for s in (problem.train, test)]
    if problem.is_classification:
        of = [s.y.reshape(len(s)).long().cpu() for s in (problem.train, test)]
    source = torch.Generator().manual_seed(0)
    hits, trials = torch.zeros(2), 0
    for kind in torch.unique(of[1]).tolist():
        rows = [(labels == kind).nonzero().flatten() for labels in of]
        count = min(500, *(len(r) for r in rows))
        if count < 5:
            continue
        both = []
        for name, numbers in zip(("train", "test"), rows, strict=True):
            some = numbers[torch.randperm(len(numbers), generator=source)[:count]]
            both.append(search.rows[name][some.to(search.rows[name].device)])
        every = torch.cat(both)
        _, index = nearest(every, every, 1, torch.arange(2 * count, device=every.device))
        own = (index[:, 0] < count) == (torch.arange(2 * count, device=every.device) < count)
        hits += torch.stack([own[:count].sum(), own[count:].sum()]).cpu()
        trials += count
    if trials < 50:
        return None
    shares = hits.double() / trials
    far = (shares - 0.5).abs()
    # neighbors of neighbors come in pairs, which makes the spread somewhat larger
    if float(far.max()) < max(OWN_KIND - 0.5, DEVIATIONS * (0.25 / trials) ** 0.5):
        return None
    return float(shares[int(far.argmax())])
