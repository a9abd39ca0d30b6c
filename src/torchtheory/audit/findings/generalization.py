"""Findings about generalization: the risk with its intervals, and the margins."""

from __future__ import annotations

import math
from typing import Any

import torch

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import (
    classification,
    deterministic,
    one_label_per_sample,
)
from torchtheory.core.intervals import (
    Interval,
    clopper_pearson,
    hoeffding_radius,
    mean_interval,
    median_interval,
)
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.training.risks import sample_losses


@finding(
    "risk",
    area="generalization",
    title="Train and test risk with confidence intervals",
    cost="forward",
    covers=["M-29", "A-17"],
    needs=[one_label_per_sample, deterministic],
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
        exact = clopper_pearson(int(wrong.sum()), len(wrong), record.confidence)
        intervals[name] = exact
        radius = hoeffding_radius(len(wrong), delta)
        rate = exact.estimate
        rows.append(
            (
                name,
                len(wrong),
                int(wrong.sum()),
                rate,
                f"[{exact.low:.4f}, {exact.high:.4f}]" if name == "test" else "not valid",
                f"[{max(0.0, rate - radius):.4f}, {min(1.0, rate + radius):.4f}]"
                if name == "test"
                else "not valid",
                problem.risk(samples),
            )
        )
    record.table(
        "risk",
        ("data", "samples", "errors", "error rate", "Clopper-Pearson", "Hoeffding", "mean loss"),
        rows,
        caption=f"Intervals at {record.confidence:.0%}. They need data the model did not choose "
        "its weights by, so there is none for the training data.",
    )
    _risk_quantities(problem, record, intervals)
    statement = r"|\hat R_S(f) - R(f)| \le \sqrt{\log(2/\delta) / (2n)}"
    record.not_applicable(
        "M-29",
        statement + r" \text{ on the training data}",
        "the network was fitted to these samples; the inequality needs a function fixed before "
        "they were drawn",
    )
    if problem.test is None:
        record.not_applicable(["M-29", "A-17"], statement, "no test data was given")
        record.headline(
            f"It misclassifies {intervals['train'].estimate:.2%} of the training data; without "
            "test data nothing is known about new samples."
        )
        return
    _halves_agree(record, errors["test"], delta, statement)
    train, test = intervals["train"], intervals["test"]
    record.headline(
        f"It misclassifies {train.estimate:.2%} of the training and {test.estimate:.2%} of the "
        f"test data; with {record.confidence:.0%} confidence the true error lies between "
        f"{test.low:.2%} and {test.high:.2%}.",
        3,
    )
    record.figure(
        "risk",
        lambda ax: _plot_risk(ax, train, test, hoeffding_radius(test.trials, delta)),
        caption="Error rates. The bars are what the test data says about new samples.",
        size=(5, 2.2),
    )


def _risk_quantities(
    problem: Problem, record: FindingRecord, intervals: dict[str, Interval]
) -> None:
    train = intervals["train"].estimate
    record.quantity("train-error", "error rate on the training data", train)
    record.quantity("train-loss", "mean loss on the training data", problem.risk(problem.train))
    if problem.test is None:
        return
    test = intervals["test"]
    record.quantity("test-error", "error rate on new data", test)
    record.quantity(
        "gap", "error rate on new data minus that on the training data", test.estimate - train,
        low=test.low - train, high=test.high - train, basis=f"{record.confidence:.4g} {test.test}",
    )  # fmt: skip
    if len(problem.test) > 1:
        losses = mean_interval(sample_losses(problem, problem.test), record.confidence)
        record.quantity("test-loss", "mean loss on new data", losses)
    frequent = torch.mode(problem.train.y.flatten()).values
    trivial = float((problem.test.y.flatten() != frequent).double().mean())
    if test.low > trivial > 0:
        record.defect(
            "The network is worse than always naming the most frequent class of the training data: "
            f"it errs on {test.estimate:.1%} of the test data, that rule on {trivial:.1%}.",
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
        variance = float(samples.y.double().var(correction=0)) if len(samples) > 1 else 0.0
        explained = 1 - float(residuals.mean()) / variance if variance > 0 else math.nan
        valid = name == "test" and len(residuals) > 1
        interval = mean_interval(residuals, record.confidence) if valid else None
        rows.append(
            (
                name,
                len(samples),
                float(residuals.mean()),
                f"[{interval.low:.4g}, {interval.high:.4g}]" if interval else "not valid",
                explained,
                problem.risk(samples),
            )
        )
    record.table(
        "risk",
        ("data", "samples", "mean squared error", "Student t", "R²", "mean loss"),
        rows,
        caption=f"The interval, at {record.confidence:.0%}, is asymptotic: squared errors are "
        "not bounded.",
    )
    record.not_applicable(
        ["M-29", "A-17"],
        r"|\hat R_S(f) - R(f)| \le (b - a) \sqrt{\log(2/\delta) / (2n)}",
        "the squared loss is unbounded, and the inequality needs losses in an interval [a, b]",
    )
    for name, samples in (("train", problem.train), ("test", problem.test)):
        if samples is None:
            continue
        residuals = _squared_residuals(problem, samples)
        valid = name == "test" and len(residuals) > 1
        words = "new data" if name == "test" else "the training data"
        record.quantity(
            f"{name}-error",
            f"mean squared error on {words}",
            mean_interval(residuals, record.confidence) if valid else float(residuals.mean()),
        )
    record.headline("; ".join(f"{r[0]} mean squared error {r[2]:.4g}" for r in rows) + ".", 3)


def _squared_residuals(problem: Problem, samples: Samples) -> torch.Tensor:
    difference = (problem.outputs(samples) - samples.y).double()
    return difference.reshape(len(samples), -1).square().mean(1)


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
        )
    values = {k: v.cpu().numpy() for k, v in found.items()}
    record.figure(
        "margins", lambda ax: _plot_margins(ax, values), caption="Margins; below zero is an error."
    )
    record.headline(
        f"The smallest training margin is {rows[0][1]:.3g} and the median {rows[0][4]:.3g} "
        "(in units of the outputs).",
        0,
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
