"""Findings about PAC-Bayes: a certificate for the network, and whether its prior is allowed."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from scipy import stats
from torch import Tensor, nn

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings import hypotheses
from torchtheory.audit.findings.hypotheses import (
    classification,
    deterministic,
    differentiable,
    has_parameters,
    one_output,
)
from torchtheory.core.budget import check_time, time_left
from torchtheory.core.figure import COLORS
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.core.usual import above, below
from torchtheory.generalization.pac_bayes.bound_training import BoundEpoch
from torchtheory.generalization.pac_bayes.certification import RiskCertificate, risk_certificate
from torchtheory.generalization.pac_bayes.gibbs_risk import gibbs_risk
from torchtheory.generalization.pac_bayes.stochastic_network import StochasticNetwork
from torchtheory.models.cost import seconds_taken
from torchtheory.models.model import Parameters
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.models.untouched import copied
from torchtheory.optimization.curvature.operators import gradient
from torchtheory.report.numbers import share_words

#: Epochs of the prior's training, of the bound's minimization and passes of the final estimate.
PRIOR_EPOCHS, BOUND_EPOCHS, PASSES = 40, 20, 30

#: Fewest of them that are worth the while, and fewest samples.
LEAST_EPOCHS, LEAST_SAMPLES = 3, 64

#: With less time it is not even worth finding out how long a certificate takes.
LEAST_SECONDS = 0.5

#: From so many samples on, batches are larger.
MANY = 5000

#: Most test samples that a stochastic network is tried on, each with weights of its own.
TRIED = 1000

#: Quantiles of the pooled losses at which training and test data are compared.
LEVELS = (0.5, 0.75, 0.9)


def prior_given(problem: Problem) -> str | None:
    if problem.prior is not None:
        return None
    return "no network was given as prior (prior=, or --prior-weights)"


# ------------------------------------------------------------------- has the prior seen the data?


@dataclass(frozen=True, slots=True)
class Exchangeability:
    """How training and test data compare under a network that should have seen neither.

    Attributes:
        p_value: probability that data of which none was seen differ as much or more.
        shares: what is compared, in words, and its share of the training and the test data.
    """

    p_value: float
    shares: tuple[tuple[str, float, float, float], ...]


def exchangeability(problem: Problem, parameters: Parameters) -> Exchangeability:
    """Are a network's losses on training data smaller than on test data by more than chance?

    Minus the margins of a classifier, squared residuals of a regression. Cost: one forward pass
    over training and test data.
    """
    assert problem.test is not None
    there = problem.at(parameters)
    train, test = (_losses(there, s) for s in (problem.train, problem.test))
    return compare_losses(train, test, errors_above=0.0 if problem.is_classification else None)


def compare_losses(
    train: Tensor, test: Tensor, *, errors_above: float | None = None
) -> Exchangeability:
    r"""Fisher's exact test, one-sided, of `train[n]` being smaller than `test[m]`.

    For a network fixed before the data were drawn all losses are exchangeable: given the pooled
    ones, which of them belong to the training data is a draw without replacement. The number of
    training samples with a loss at or above a threshold, which may be any function of the pooled
    losses, is then hypergeometric. Several thresholds divide the level equally: the p-value is the
    least one times their number.

    Args:
        train, test: losses.
        errors_above: a loss from here on is an error; None where there are no errors.

    >>> found = compare_losses(-torch.ones(3), torch.ones(3), errors_above=0.0)
    >>> round(found.shares[0][3], 4), round(found.p_value, 4)      # one way of 6 choose 3
    (0.05, 0.2)
    """
    pooled = torch.cat([train, test])
    thresholds = [("misclassified", errors_above)] if errors_above is not None else []
    for level in LEVELS:
        name = f"loss from the pooled {level:.0%} quantile on"
        thresholds.append((name, float(pooled.quantile(level, interpolation="higher"))))
    rows = []
    for words, threshold in thresholds:
        here, there = int((train >= threshold).sum()), int((test >= threshold).sum())
        chance = stats.hypergeom.cdf(here, len(pooled), here + there, len(train))
        rows.append((words, here / len(train), there / len(test), float(chance)))
    return Exchangeability(min(1.0, len(rows) * min(row[3] for row in rows)), tuple(rows))


def _losses(problem: Problem, samples: Samples) -> Tensor:
    """Minus the margin, or the squared residual: one number per sample."""
    if problem.is_classification:
        return -problem.margins(samples).double().cpu()
    residuals = (problem.outputs(samples) - samples.y).double().cpu()
    return residuals.reshape(len(samples), -1).square().mean(1)


@finding(
    "prior-independence",
    area="generalization",
    title="Has the prior seen the training data?",
    cost="forward",
    covers=["M-57"],
    needs=[prior_given, hypotheses.test_data, hypotheses.one_label_per_sample, deterministic],
)
def prior_independence(problem: Problem, record: FindingRecord) -> None:
    """Fisher's exact test on the prior's errors and losses, on training and on test data."""
    assert problem.prior is not None
    delta = alarm_level(record)
    found = exchangeability(problem, problem.prior)
    trained = exchangeability(problem, problem.parameters)
    says = record.states(
        "M-57", r"P \perp S \Rightarrow p \ge \delta \ \text{but for probability}\ \delta"
    )
    says.at_least(
        found.p_value,
        delta,
        where="p-value of the losses of the prior's network on training and test data, which are "
        f"exchangeable if it has seen neither; a false alarm has probability {delta:.3g}",
    )
    if trained.p_value < delta:
        says.fails("the trained network in the place of the prior", trained.p_value)
    p_value = record.quantity(
        "prior-p-value", "p-value of the prior not having seen the training data", found.p_value
    )
    record.table(
        "losses",
        ("samples", "of the training data", "of the test data", "p-value"),
        found.shares,
        caption="One-sided: the probability of so few among the training data, were the two parts "
        f"mixed at random. The p-value of all is the least times {len(found.shares)}.",
    )
    if found.p_value >= delta:
        record.headline(
            f"Nothing suggests that the prior has seen the training data (p = {found.p_value:.2g})."
        )
        return
    _, here, there, _ = min(found.shares, key=lambda row: row[3])
    what = "errs on" if problem.is_classification else "has large losses on"
    if problem.is_classification:
        _, here, there, chance = found.shares[0]
        if chance > delta:
            what = "has large losses on"
            _, here, there, _ = min(found.shares, key=lambda row: row[3])
    record.defect(
        f"The prior has seen the training data: it {what} {here:.1%} of it but {there:.1%} of new "
        f"data (p = {found.p_value:.1e}); a PAC-Bayes bound with this prior is not valid.",
        number=p_value,
        usual=above(delta),
        action="Train the prior on a part of the data that the bound does not use, or take the "
        "random weights training began with. If the prior has not seen the training data, the "
        "test data follow another law.",
    )


def alarm_level(record: FindingRecord) -> float:
    """Probability of a false alarm: nobody is accused of a leak at less than 99 % confidence."""
    return min(1 - record.confidence, 0.01)


# ------------------------------------------------------------------------------- the certificate


@dataclass(frozen=True, slots=True)
class Plan:
    """What there is time for.

    Attributes:
        samples: of the training data that are used.
        prior_epochs, epochs: see `risk_certificate`.
        seconds: what it should take.
    """

    samples: int
    prior_epochs: int
    epochs: int
    seconds: float


def plan(problem: Problem, seconds: float) -> Plan | None:
    """As many samples and epochs as fit; None if too few do."""
    n, given = len(problem.train), problem.prior is not None
    if seconds <= 0:
        return None
    if seconds == math.inf:
        return Plan(n, PRIOR_EPOCHS, BOUND_EPOCHS, 0.0)
    step = _seconds_per_step_sample(problem)
    forward = problem.seconds_per_sample

    def cost(samples: int, prior_epochs: int, epochs: int) -> float:
        part = samples if given else samples / 2
        ordinary = 0.0 if given else prior_epochs * part * step
        passes = PASSES + (0 if given else 2 * len(LEVELS) + 20)  # the flatness of the prior
        return ordinary + 4 * epochs * part * step + 2 * passes * part * forward

    for share in (1.0, 0.7, 0.5, 0.3, 0.2, 0.15):
        prior_epochs = max(LEAST_EPOCHS, round(share * PRIOR_EPOCHS))
        epochs = max(LEAST_EPOCHS, round(share * BOUND_EPOCHS))
        found = Plan(n, prior_epochs, epochs, cost(n, prior_epochs, epochs))
        if found.seconds <= seconds:
            return found
    fewer = int(n * seconds / found.seconds)
    if fewer < min(LEAST_SAMPLES, n):
        return None
    return Plan(fewer, prior_epochs, epochs, seconds)


def _seconds_per_step_sample(problem: Problem) -> float:
    """Time of a training step per sample: a gradient of the loss, and as much again."""
    few = problem.train.first(64)
    return 2 * seconds_taken(lambda: gradient(problem, few)) / len(few)


def _rehearse(problem: Problem) -> float:
    """Seconds that a certificate of hardly any samples takes: what does not grow with them."""
    start = time.perf_counter()
    few = problem.train.first(LEAST_SAMPLES)
    risk_certificate(
        problem.model, (few.x, few.y), prior="data", prior_epochs=1, epochs=1, passes=1,
        batch_size=LEAST_SAMPLES, task=problem.task,
    )  # fmt: skip
    return time.perf_counter() - start


@finding(
    "pac-bayes",
    area="generalization",
    title="A PAC-Bayes certificate",
    cost="training",
    covers=["M-60", "M-63", "M-64"],
    needs=[classification, has_parameters, deterministic, differentiable, one_output],
)
def pac_bayes(problem: Problem, record: FindingRecord) -> None:
    """A stochastic network of this architecture with a certified error, from training data."""
    statement = (
        r"\mathbb E_Q R \le \mathrm{kl}^{-1}\Bigl(\hat r \,\Big|\, \tfrac1n\bigl[\mathrm{KL}(Q\|P)"
        r" + \ln\tfrac{J(n)}\delta + \textstyle\sum_\ell\ln\tfrac{\pi^2 j_\ell^2}6\bigr]\Bigr)"
    )
    ids = ["M-60", "M-63", "M-64"]
    if problem.several_inputs:
        record.not_applicable(ids, statement, "the model takes several inputs")
        return
    if problem.prior is not None and problem.test is not None:
        seen = exchangeability(problem, problem.prior)
        if seen.p_value < alarm_level(record):
            record.not_applicable(
                ids, statement, f"the prior has seen the training data (p = {seen.p_value:.1e}): "
                "the theorem needs one that was fixed without it",
            )  # fmt: skip
            return
    left, planned = time_left(), None
    if left == math.inf or len(problem.train) < 2 * LEAST_SAMPLES:
        planned = plan(problem, math.inf)
    elif left > LEAST_SECONDS and plan(problem, left) is not None:
        fixed = _rehearse(problem)
        planned = plan(problem, 0.5 * time_left() - fixed)
    if planned is None:
        record.not_done(
            ids,
            statement,
            "there was too little time to train a prior and a posterior even on "
            f"{LEAST_SAMPLES} samples; give a larger budget",
        )
        return
    certificate = _certificate(problem, record, planned)
    if not certificate.valid:
        record.not_applicable(ids, statement, certificate.invalid)
        return
    _report(problem, record, certificate, planned, ids, statement)


def _certificate(problem: Problem, record: FindingRecord, planned: Plan) -> RiskCertificate:
    delta = 1 - record.confidence
    used = problem.train.some(planned.samples, record.generator)
    prior: Any = "data"
    if problem.prior is not None:
        prior = _with(problem.model, problem.prior)

    def keep_time(epoch: BoundEpoch) -> None:
        check_time()

    return risk_certificate(
        problem.model,
        (used.x, used.y),
        prior=prior,
        prior_data=() if problem.prior is not None else None,
        prior_epochs=planned.prior_epochs,
        task=problem.task,
        delta=0.8 * delta,
        delta_draws=0.2 * delta,
        epochs=planned.epochs,
        batch_size=64 if len(used) < MANY else 256,
        passes=PASSES,
        seed=int(torch.randint(2**31, (1,), generator=record.generator)),
        after_epoch=keep_time,
    )


def _with(model: nn.Module, parameters: Parameters) -> nn.Module:
    new = copied(model)
    with torch.no_grad():
        for name, value in new.named_parameters():
            if name in parameters:
                value.copy_(parameters[name])
    return new


def stochastic_test_error(
    network: StochasticNetwork, problem: Problem, record: FindingRecord
) -> Interval | None:
    """Error on test samples, each with weights of its own: independent trials of one probability.

    None if there is no test data.
    """
    if problem.test is None:
        return None
    cheap = network.independent_rows(problem.test.x[:1])  # a draw for every row at once
    tried = problem.test.some(TRIED if cheap else TRIED // 5, record.generator)
    network.generator.manual_seed(int(torch.randint(2**31, (1,), generator=record.generator)))
    risk = gibbs_risk(network, tried, passes=1, block=1)
    return clopper_pearson(round(risk.estimate * len(tried)), len(tried), record.confidence)


def _report(
    problem: Problem,
    record: FindingRecord,
    certificate: RiskCertificate,
    planned: Plan,
    ids: list[str],
    statement: str,
) -> None:
    n, bound = certificate.samples, certificate.bound
    confidence = certificate.log_constant - math.log(certificate.delta)
    nats = certificate.kl + certificate.scale_cost + confidence
    why = ""
    if bound >= 1:
        why = (
            f"vacuous because the stochastic network errs on {certificate.empirical.estimate:.0%} "
            f"of the {n} samples and {nats / n:.2g} nats are to be added for each: "
            f"KL {certificate.kl:.3g}, scales {certificate.scale_cost:.3g}, confidence "
            f"{confidence:.3g}; "
        )
    basis = (
        f"{why}prior {certificate.prior}; error {certificate.empirical.estimate:.2%} on the "
        f"{n} samples of the bound, KL {certificate.kl:.1f}, scales {certificate.scale_cost:.1f}"
    )
    measured = stochastic_test_error(certificate.network, problem, record)
    if measured is None:
        record.not_applicable(
            ids,
            statement,
            f"the certificate is {bound:.2%}, and without test data there is nothing to compare it "
            f"with; {basis}",
        )
    else:
        record.states(ids, statement).at_most(
            measured,
            bound,
            trivial=1.0,
            where=f"test error of the stochastic network, weights drawn anew for each of "
            f"{measured.trials} samples; {basis}",
        )
    record.table(
        "certificate",
        ("", "value"),
        [
            ("certified error", bound),
            ("probability that it holds", certificate.confidence),
            ("samples of the bound", n),
            ("samples the prior has seen", certificate.prior_samples),
            ("training error of the stochastic network", certificate.empirical.estimate),
            ("the same, from above, over all weights", certificate.empirical.upper),
            ("KL(Q‖P), nats", certificate.kl),
            ("paid for the prior's scales, nats", certificate.scale_cost),
            ("ln(J(n)/δ), nats", confidence),
            ("test error of the stochastic network", measured.estimate if measured else None),
        ],
        caption="What the certificate rests on. The network it is about draws its weights anew for "
        "every prediction; the weights given here are "
        + ("where it starts." if problem.prior is not None else "not used: it is trained anew."),
    )
    number = record.quantity(
        "pac-bayes-bound", "certified error of a stochastic network", bound,
        low=0.0, high=bound, basis=f"true error at most this, confidence {record.confidence:g}",
    )  # fmt: skip
    if bound < 1:
        record.fine(
            f"PAC-Bayes certifies an error of at most {bound:.1%} for a network of this "
            "architecture that draws its weights anew for every prediction.",
            number=number, usual=below(1, "below 1, where a bound says something"),
            figure="certificate",
        )  # fmt: skip
    if planned.samples < len(problem.train) or planned.epochs < BOUND_EPOCHS:
        record.note(
            f"There was time for {planned.samples} of {len(problem.train)} samples, "
            f"{planned.epochs} epochs of minimizing the bound; a larger budget gives a smaller one."
        )
    if problem.prior is not None and problem.test is None:
        record.note(
            "Whether the prior has seen the training data was not tested: that needs test data."
        )
    said = "" if measured is None else f" (test error {share_words(measured)})"
    record.headline(
        f"PAC-Bayes certifies an error of at most {bound:.1%} for a stochastic network of this "
        f"architecture{said}."
        if bound < 1
        else f"The PAC-Bayes certificate is {why.rstrip('; ')}.",
    )
    record.figure(
        "certificate",
        lambda ax: _plot(ax, certificate, measured),
        caption="What the certificate is made of: the error on the samples of the bound, what is "
        "added for draws not made, and for KL(Q‖P), scales and confidence. The band is the test "
        "error with its interval.",
        size=(6.4, 1.9),
    )


def _plot(ax: Any, certificate: RiskCertificate, measured: Interval | None) -> None:
    ends = (
        ("error on the samples", certificate.empirical.estimate),
        ("over all weights", certificate.empirical.upper),
        ("certificate", certificate.bound),
    )
    start = 0.0
    for place, (_, end) in enumerate(ends):
        ax.barh(place, max(end - start, 0.0), left=start, color=COLORS[place], height=0.6)
        ax.annotate(
            f"{end:.1%}", (end, place), xytext=(4, 0), textcoords="offset points",
            va="center", fontsize=8,
        )  # fmt: skip
        start = end
    if measured is not None:
        ax.axvspan(measured.low, measured.high, color="0.8", alpha=0.5, zorder=0)
        ax.axvline(measured.estimate, color="0.3", linestyle="--", label="test error", zorder=0)
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), borderpad=0)
    ax.set(
        yticks=range(len(ends)),
        yticklabels=[words for words, _ in ends],
        ylim=(len(ends) - 0.5, -0.5),
        xlim=(0, 1.15 * max(certificate.bound, measured.high if measured else 0.0)),
        xlabel="error of the stochastic network",
    )
    ax.grid(visible=False, axis="y")
