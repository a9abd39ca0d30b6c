"""Findings about generalization: the risk with its intervals, and the margins."""

from __future__ import annotations

import math
from typing import Any

import torch
from scipy import stats

from torchtheory.audit.causes.differential import differential
from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.certificates import alarm_level
from torchtheory.audit.findings.hypotheses import class_or_number, classification, deterministic
from torchtheory.audit.findings.over_draws import mean_over_draws, over_draws, rate_over_draws
from torchtheory.audit.findings.skill import without_test_data
from torchtheory.core.diagnosis import Area
from torchtheory.core.intervals import (
    Interval,
    clopper_pearson,
    hoeffding_radius,
    mean_interval,
    median_interval,
)
from torchtheory.core.naming import several
from torchtheory.core.usual import Usual, above, below
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.training.losses.risks import most_frequent_errors, sample_losses

#: Samples outside the most frequent class without which no fit could be told from chance, 2^-7.
FEWEST_MISSED = 7

#: Fewest residuals that a mean of their squares is trusted for.
FEWEST_RESIDUALS = 20

#: Shares of the error of the best constant that are as good as all of it, and that are much.
NOTHING, LITTLE = 0.9, 0.5

#: An R² on the training data below which a regression fits little.
EXPLAINED = 0.2

#: Differences between training and test data that are worth a look: of error rates, of R².
LARGE_GAP, LARGE_LOSS = 0.1, 0.3

#: Mean residual, in standard deviations, and rank correlation with the order, worth a look.
ASIDE, DRIFT = 0.5, 0.3


@finding(
    "risk",
    area="generalization",
    title="Train and test risk with confidence intervals",
    cost="forward",
    covers=["M-29", "A-17"],
    needs=[class_or_number, deterministic],
    whole=True,
)
def risk(problem: Problem, record: FindingRecord) -> None:
    """Exact and distribution-free intervals for the error; a test of the i.i.d. assumption."""
    if problem.is_classification:
        _classification_risk(problem, record)
    else:
        _regression_risk(problem, record)


def _classification_risk(problem: Problem, record: FindingRecord) -> None:
    delta = 1 - record.confidence
    rows = []
    errors = {"train": problem.errors(problem.train)}
    if problem.test is not None:
        errors["test"] = problem.errors(problem.test)
    intervals = {}
    for name, wrong in errors.items():
        samples = problem.train if name == "train" else problem.test
        assert samples is not None
        exact = error_rate(problem, samples, record.confidence, new=name == "test")
        intervals[name] = exact
        radius = hoeffding_radius(len(wrong), delta)
        rate = exact.estimate
        rows.append(
            (
                name,
                len(wrong),
                round(rate * len(wrong)),
                rate,
                f"[{exact.low:.4f}, {exact.high:.4f}]" if name == "test" else "not valid",
                f"[{max(0.0, rate - radius):.4f}, {min(1.0, rate + radius):.4f}]"
                if name == "test"
                else "not valid",
                problem.risk(samples),
                most_frequent_errors(problem, samples) / len(wrong),
            )
        )
    record.table(
        "risk",
        ("data", "samples", "errors", "error rate", "Clopper-Pearson", "Hoeffding", "mean loss",
         "error of the most frequent class"),
        rows,
        caption=f"Intervals at {record.confidence:.0%}. They need data the model did not choose "
        "its weights by, so there is none for the training data. Last, what always naming the most "
        "frequent class of the training data would give.",
    )  # fmt: skip
    train, test = intervals["train"], intervals.get("test")
    if test is not None:
        record.figure(
            "risk",
            lambda ax: _plot_risk(ax, train, test, hoeffding_radius(test.trials, delta)),
            caption="Error rates. The bars are what the test data says about new samples.",
            size=(5, 2.2),
        )
    _assess_fit(problem, record, errors["train"], train)
    statement = r"|\hat R_S(f) - R(f)| \le \sqrt{\log(2/\delta) / (2n)}"
    if problem.test is None or test is None:
        record.not_applicable(["M-29", "A-17"], statement, "no test data was given")
        without_test_data(record)
        record.headline(
            f"It misclassifies {train.estimate:.2%} of the training data; without test data "
            "nothing is known about new samples."
        )
    else:
        _halves_agree(record, errors["test"], delta, statement)
        _assess_test_error(problem, record, train, test)
        record.headline(
            f"It misclassifies {train.estimate:.2%} of the training and {test.estimate:.2%} of "
            f"the test data; with {record.confidence:.0%} confidence the true error lies between "
            f"{test.low:.2%} and {test.high:.2%}.",
        )
    record.not_applicable(
        "M-29",
        statement + r" \text{ on the training data}",
        "the network was fitted to these samples; the inequality needs a function fixed before "
        "they were drawn",
    )


def error_rate(
    problem: Problem, samples: Samples, confidence: float, *, new: bool = True
) -> Interval:
    """Of a network without noise by Clopper and Pearson, of one with noise over its draws.

    Args:
        new: whether the samples stand for new ones; else for all that there are of them.
    """
    if not problem.draws_random_numbers:
        wrong = problem.errors(samples)
        return clopper_pearson(int(wrong.sum()), len(wrong), confidence)
    wrong = over_draws(problem, lambda there: there.errors(samples))
    return rate_over_draws(wrong, confidence, None if new else samples)


def _assess_fit(
    problem: Problem, record: FindingRecord, wrong: torch.Tensor, train: Interval
) -> None:
    """The training error, against always naming the most frequent class."""
    noisy = problem.draws_random_numbers
    whole = len(problem.train) == problem.train.population and not noisy
    error = record.quantity(
        "train-error", "error rate on the training data", train.estimate if whole else train,
        samples=problem.train,
    )  # fmt: skip
    loss: float | Interval = problem.risk(problem.train)
    if not whole and len(problem.train) > 1:
        losses = over_draws(problem, lambda there: sample_losses(there, problem.train))
        loss = mean_over_draws(losses, record.confidence, problem.train)
    if whole or isinstance(loss, Interval):
        record.quantity("train-loss", "mean loss on the training data", loss, samples=problem.train)
    frequent = torch.mode(problem.train.y.flatten()).values
    missed = problem.train.y.flatten() != frequent
    trivial = int(missed.sum())
    if trivial < FEWEST_MISSED:  # not even a network without errors could be told from chance
        record.note("Nearly all labels are equal, so a network can hardly show that it fits them.")
        return
    # of the samples that only one of the two gets right, chance gives each half (McNemar)
    gained, lost = int((missed & ~wrong).sum()), int((~missed & wrong).sum())
    chance = stats.binom.sf(gained - 1, gained + lost, 0.5)
    rate = trivial / len(wrong)
    usual = below(
        LITTLE * rate, f"well below {rate:.1%}, the error of always naming the most frequent class"
    )
    if chance >= alarm_level(record):
        say = record.defect if train.estimate > NOTHING * rate else record.look
        say(
            f"The network has not learned its training data: it errs on {train.estimate:.1%} of "
            f"it, always naming the most frequent class on {rate:.1%}.",
            number=error, usual=usual, area=Area.FIT,
            action="Check that these are the trained weights, and that inputs and labels are those "
            "of training; else train longer or with another step size.",
        )  # fmt: skip
    elif train.estimate > LITTLE * rate:
        record.look(
            f"The network fits its training data in part: it errs on {train.estimate:.1%} of it, "
            f"always naming the most frequent class on {rate:.1%}.",
            number=error, usual=usual, area=Area.FIT,
            action="Train longer, or a larger network; if that does not help, the inputs may not "
            "tell more.",
        )  # fmt: skip
    else:
        record.fine(
            f"It errs on {train.estimate:.1%} of the training data; always naming the most "
            f"frequent class errs on {rate:.1%}.",
            number=error, usual=usual, area=Area.FIT,
        )  # fmt: skip


def _assess_test_error(
    problem: Problem, record: FindingRecord, train: Interval, test: Interval
) -> None:
    """The test error against the training error and the most frequent class."""
    assert problem.test is not None
    error = record.quantity("test-error", "error rate on new data", test, samples=problem.test)
    spread = 0.0
    if len(problem.train) < problem.train.population or problem.draws_random_numbers:
        spread = max(train.high - train.estimate, train.estimate - train.low)
    gap = record.quantity(
        "gap", "error rate on new data minus that on the training data",
        test.estimate - train.estimate, low=test.low - train.estimate - spread,
        high=test.high - train.estimate + spread, basis=f"{record.confidence:.4g} {test.test}",
        samples=problem.test,
    )  # fmt: skip
    if len(problem.test) > 1:
        test_samples = problem.test
        each = over_draws(problem, lambda there: sample_losses(there, test_samples))
        losses = mean_over_draws(each, record.confidence)
        record.quantity("test-loss", "mean loss on new data", losses, samples=problem.test)
    trivial = most_frequent_errors(problem, problem.test) / len(problem.test)
    where = f"between {test.low:.1%} and {test.high:.1%} of new data"
    if test.low > trivial > 0:
        cause, action = why_worse(problem, overfits=False)
        record.defect(
            "The network is worse than always naming the most frequent class of the training data: "
            f"it errs on {test.estimate:.1%} of the test data, that rule on {trivial:.1%}.{cause}",
            number=error, usual=below(trivial, f"below {trivial:.1%}"), figure="risk",
            action=action,
        )  # fmt: skip
    elif gap.low > 0 and gap.value >= LARGE_GAP:
        cause, action = why_worse(problem)
        record.look(
            f"It errs on {train.estimate:.1%} of the training data and on {where}.{cause}",
            number=gap, usual=below(LARGE_GAP), figure="risk", action=action,
        )  # fmt: skip
    elif test.high >= trivial > 0:
        usual = below(trivial, f"below {trivial:.1%}, the error of the most frequent class")
        record.open(error, usual, figure="risk")
    elif test.estimate > LITTLE * trivial > 0:
        record.look(
            f"It errs on {where}; always naming the most frequent class errs on {trivial:.1%}.",
            number=error, usual=below(LITTLE * trivial, f"well below {trivial:.1%}"),
            figure="risk",
            action="See whether the network fits its training data, and whether the inputs tell "
            "more.",
        )  # fmt: skip
    else:
        record.fine(
            f"It errs on {where}; {test.estimate:.1%} of the test data, {train.estimate:.1%} of "
            "the training data.",
            number=error, figure="risk",
            usual=below(trivial, f"below {trivial:.1%}, the most frequent class"),
        )  # fmt: skip


def why_worse(problem: Problem, *, overfits: bool = True) -> tuple[str, str]:
    """Why new data is answered worse, as sentences that follow the symptom, and what to do.

    Args:
        overfits: whether over-fitting would explain so much.
    """
    found = differential(problem)
    if found.explained:
        return f" {found.words}.", found.causes[0].action
    prepare = (
        "Check that training and test data are prepared alike and that labels mean the same in "
        "both."
    )
    if found.open:
        return f" It may be that {found.possible}.", prepare
    if not overfits:
        return "", prepare
    tried = several(found.tried, len(found.tried))
    return (
        f" It overfits: nothing else was found that explains it (tried: {tried}).",
        "More data, weight decay, augmentation or an earlier stop would narrow the gap.",
    )


def _halves_agree(record: FindingRecord, wrong: torch.Tensor, delta: float, statement: str) -> None:
    """Two halves of a test set, in the order given, estimate the same risk if it is i.i.d."""
    half = len(wrong) // 2
    if half == 0:
        record.not_applicable(["M-29", "A-17"], statement, "one test sample has no two halves")
        return
    promised = hoeffding_radius(half, delta / 2) + hoeffding_radius(len(wrong) - half, delta / 2)
    says = record.states(
        ["M-29", "A-17"],
        r"|\hat R_{S_1}(f) - \hat R_{S_2}(f)| \le \varepsilon(n_1, \delta/2) + "
        r"\varepsilon(n_2, \delta/2), \quad \varepsilon(n, \delta) = \sqrt{\log(2/\delta)/(2n)}",
    )
    says.at_most(
        _difference_of_halves(wrong),
        promised,
        trivial=1.0,
        where="first against second half of the test data, in the order given; if this fails "
        "the test data is not independent and identically distributed",
    )
    in_order = _difference_of_halves(wrong.sort().values)
    if in_order > promised:  # else not even that could be told from chance
        says.fails("the test data sorted by whether it is classified correctly", in_order)


def _difference_of_halves(wrong: torch.Tensor) -> float:
    half = len(wrong) // 2
    return abs(float(wrong[:half].double().mean() - wrong[half:].double().mean()))


def _regression_risk(problem: Problem, record: FindingRecord) -> None:
    rows: list[tuple[Any, ...]] = []
    for name, samples in (("train", problem.train), ("test", problem.test)):
        if samples is None:
            continue
        residuals = _squared_residuals(problem, samples)
        new = name == "test"
        valid = new and len(samples) > 1
        exact = not new and len(samples) == samples.population and len(residuals) == 1
        interval = None
        if len(samples) > 1:
            interval = mean_over_draws(residuals, record.confidence, None if new else samples)
        mean = float(residuals.mean())
        words = "new data" if name == "test" else "the training data"
        record.quantity(
            f"{name}-error", f"mean squared error on {words}",
            mean if exact or interval is None else interval,
            samples=samples if interval is not None else None,
        )  # fmt: skip
        skill = explained_share(problem, samples, record.confidence)
        rows.append(
            (
                name,
                len(samples),
                mean,
                f"[{interval.low:.4g}, {interval.high:.4g}]" if valid and interval else "not valid",
                skill.estimate if skill is not None else math.nan,
                problem.risk(samples),
            )
        )
    record.table(
        "risk",
        ("data", "samples", "mean squared error", "Student t", "R²", "mean loss"),
        rows,
        caption=f"The interval, at {record.confidence:.0%}, is asymptotic: squared errors are "
        "not bounded. R² is the share of the squared error of the training targets' mean that the "
        "network saves.",
    )
    _assess_regression(problem, record)
    record.not_applicable(
        ["M-29", "A-17"],
        r"|\hat R_S(f) - R(f)| \le (b - a) \sqrt{\log(2/\delta) / (2n)}",
        "the squared loss is unbounded, and the inequality needs losses in an interval [a, b]",
    )
    record.headline("; ".join(f"{r[0]} mean squared error {r[2]:.4g}" for r in rows) + ".")


def explained_share(problem: Problem, samples: Samples, confidence: float) -> Interval | None:
    r"""$R^2 = 1 - \overline{r^2}/\overline{t^2}$, with residuals $r$, and $t$ those of the mean.

    The mean is that of the training targets. The interval is Student's for the linearized quotient.
    None where the targets do not vary.
    """
    if len(samples) < 2:
        return None
    mean = problem.train.y.double().mean(0)
    trivial = (samples.y.double() - mean).reshape(len(samples), -1).square().mean(1)
    size = float(trivial.mean())
    if size == 0:
        return None
    residuals = _squared_residuals(problem, samples)
    share = 1 - float(residuals.mean()) / size
    around = mean_over_draws((residuals - (1 - share) * trivial.cpu()) / size, confidence)
    return Interval(
        share, share - around.high, share - around.low, confidence, len(samples),
        "Student t, linearized",
    )  # fmt: skip


def _assess_regression(problem: Problem, record: FindingRecord) -> None:
    """R² on training and test data: 0 is what the mean of the targets gives."""
    train = explained_share(problem, problem.train, record.confidence)
    if train is None:
        record.note("The training targets do not vary, so nothing tells a fit from their mean.")
        if problem.test is None:
            without_test_data(record)
        return
    whole = len(problem.train) == problem.train.population and not problem.draws_random_numbers
    fitted = record.quantity(
        "train-explained", "R² on the training data", train.estimate if whole else train,
        samples=problem.train,
    )  # fmt: skip
    usual = above(0, "above 0, the error of predicting the mean")
    well = above(EXPLAINED, f"above {EXPLAINED:g}, where predicting the mean has 0")
    # squared errors of several targets are added up: the largest ones decide
    pooled = "R² of all targets together" if problem.train.y[0].numel() > 1 else "R²"
    said = f"{pooled} is {train.estimate:.3g} on the training data"
    if train.low <= 0 and len(problem.train) >= FEWEST_RESIDUALS:
        say = record.defect if train.high < EXPLAINED else record.look
        say(
            f"The network has not learned its training data: {said}, no better than the mean of "
            "the targets.",
            number=fitted, usual=well, area=Area.FIT,
            action="Check that these are the trained weights, and that inputs and targets are "
            "scaled as in training; else train longer.",
        )  # fmt: skip
    elif train.estimate < EXPLAINED:
        record.look(
            f"The network fits its training data in part: {said}.",
            number=fitted, usual=well, area=Area.FIT,
            action="Train longer, or a larger network; if that does not help, the inputs may not "
            "tell more.",
        )  # fmt: skip
    else:
        record.fine(f"{said}.", number=fitted, usual=well, area=Area.FIT)
    if problem.test is None:
        without_test_data(record)
        return
    _residual_drift(problem, record)
    test = explained_share(problem, problem.test, record.confidence)
    if test is None or len(problem.test) < FEWEST_RESIDUALS:
        record.note("Too few test samples, or targets that do not vary: R² says nothing.")
        return
    share = record.quantity("test-explained", "R² on new data", test, samples=problem.test)
    said = f"{pooled} is {test.estimate:.3g} on the test data ({train.estimate:.3g} in training)"
    if test.high < 0:
        cause, action = why_worse(problem, overfits=False)
        record.defect(
            f"The network is worse on new data than the mean of the training targets: {said}."
            f"{cause}",
            number=share, usual=usual, action=action,
        )  # fmt: skip
    elif train.estimate - test.high > 0 and train.estimate - test.estimate >= LARGE_LOSS:
        cause, action = why_worse(problem)
        record.look(
            f"{said}.{cause}", number=share,
            usual=above(
                train.estimate - LARGE_LOSS, f"less than {LARGE_LOSS} below that in training"
            ),
            action=action,
        )  # fmt: skip
    elif test.low <= 0:
        record.open(share, usual)
    else:
        record.fine(f"{said}.", number=share, usual=usual)


def _residual_drift(problem: Problem, record: FindingRecord) -> None:
    """Residuals of the test data that lie to one side, or that change with the order given."""
    assert problem.test is not None
    residuals = (problem.outputs(problem.test) - problem.test.y).double().cpu()
    residuals = residuals.reshape(len(residuals), -1).mean(1)
    if len(residuals) < FEWEST_RESIDUALS or float(residuals.std()) == 0:
        return
    level = alarm_level(record) / 2  # of two tests
    mean = mean_interval(residuals, 1 - level)
    aside = abs(mean.estimate) / float(residuals.std())
    if mean.low * mean.high > 0 and aside >= ASIDE:
        number = record.quantity(
            "test-bias", "mean residual on new data",
            mean_interval(residuals, record.confidence), samples=problem.test,
        )  # fmt: skip
        side = "large" if mean.estimate > 0 else "small"
        record.look(
            f"On new data the predictions are too {side} by {abs(mean.estimate):.3g} on average.",
            number=number, usual=Usual("around 0", low=0, high=0, closed=True),
            action="Compare the targets and inputs of training and test data: their laws differ.",
        )  # fmt: skip
    drift = stats.spearmanr(range(len(residuals)), residuals.numpy())
    if drift.pvalue < level and abs(drift.statistic) >= DRIFT:
        error = 2 / math.sqrt(len(residuals) - 1)
        number = record.quantity(
            "test-drift", "correlation of the residuals' ranks with the order of the test data",
            float(drift.statistic), error=error, basis="two standard deviations by chance",
            samples=problem.test,
        )  # fmt: skip
        record.look(
            "The residuals of the test data change with its order: the error drifts.",
            number=number, usual=Usual("around 0", low=0, high=0, closed=True),
            action="If the order is that of time, train on newer data; else shuffle before "
            "splitting.",
        )  # fmt: skip


def _squared_residuals(problem: Problem, samples: Samples) -> torch.Tensor:
    """Mean over the outputs, `[draws, n]`."""

    def each(there: Problem) -> torch.Tensor:
        difference = (there.outputs(samples) - samples.y).double()
        return difference.reshape(len(samples), -1).square().mean(1)

    return over_draws(problem, each)


def _plot_risk(ax: Any, train: Interval, test: Interval, radius: float) -> None:
    ax.errorbar(
        test.estimate, 1, xerr=[[min(radius, test.estimate)], [radius]],
        fmt="none", capsize=4, color="#56B4E9", label="Hoeffding",
    )  # fmt: skip
    ax.errorbar(
        test.estimate, 1, xerr=[[test.estimate - test.low], [test.high - test.estimate]],
        fmt="o", capsize=6, color="#0072B2", label="test, Clopper-Pearson", linewidth=3,
    )  # fmt: skip
    ax.plot(train.estimate, 0, "s", color="#D55E00", label="train")
    ax.set(yticks=[0, 1], yticklabels=["train", "test"], ylim=(-0.6, 1.6), xlabel="error rate")
    ax.set_xlim(left=-0.002)
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))


@finding(
    "margins",
    area="robustness",
    title="Distribution of the classification margins",
    cost="forward",
    needs=[classification, deterministic],
    whole=True,
)
def margins(problem: Problem, record: FindingRecord) -> None:
    """Quantiles of the margins; what they promise is in the finding on certified radii."""
    levels = (0.0, 0.01, 0.1, 0.5, 0.9, 1.0)
    found = {"train": problem.margins(problem.train).double()}
    if problem.test is not None:
        found["test"] = problem.margins(problem.test).double()
    grid = torch.tensor(levels, dtype=torch.float64, device=found["train"].device)
    rows = [
        (name, *[float(q) for q in values.quantile(grid)], float((values <= 0).double().mean()))
        for name, values in found.items()
    ]
    record.table(
        "margins",
        ("data", "smallest", "1 %", "10 %", "median", "90 %", "largest", "share ≤ 0"),
        rows,
        caption="Margin: the output of the true class minus the largest other output.",
    )
    for name, margin in found.items():
        record.quantity(
            f"{name}-median-margin",
            f"median margin on the {name} data",
            median_interval(margin.cpu(), record.confidence),
            samples=problem.train if name == "train" else problem.test,
        )
    values = {k: v.cpu().numpy() for k, v in found.items()}
    record.figure(
        "margins", lambda ax: _plot_margins(ax, values), caption="Margins; below zero is an error."
    )
    record.headline(
        f"The smallest training margin is {rows[0][1]:.3g} and the median {rows[0][4]:.3g} "
        "(in units of the outputs).",
    )


def _plot_margins(ax: Any, values: dict[str, Any]) -> None:
    low = min(v.min() for v in values.values())
    high = max(v.max() for v in values.values())
    bins = [low + (high - low) * k / 60 for k in range(61)] if high > low else 10
    for (name, v), color in zip(values.items(), ("#0072B2", "#D55E00"), strict=False):
        ax.hist(v, bins=bins, density=True, histtype="stepfilled", alpha=0.35, color=color)
        ax.hist(v, bins=bins, density=True, histtype="step", color=color, label=name)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set(xlabel="margin", ylabel="density")
    ax.legend()
