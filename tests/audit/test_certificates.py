"""Findings about PAC-Bayes: certificates, and priors that have seen too much."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from torchtheory.audit.engine.audit import Audit, audit
from torchtheory.audit.engine.finding import FindingRecord, all_findings, examine
from torchtheory.audit.findings.certificates import (
    BOUND_EPOCHS,
    PRIOR_EPOCHS,
    compare_losses,
    exchangeability,
    plan,
    stochastic_test_error,
)
from torchtheory.core.claim import Verdict
from torchtheory.core.diagnosis import Area, State
from torchtheory.core.intervals import clopper_pearson
from torchtheory.generalization.pac_bayes.stochastic_network import StochasticNetwork
from torchtheory.models.problem import Problem
from torchtheory.training.loop.trainer import fit


def net(*sizes: int, seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise(sizes):
            layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def noisy(n: int, seed: int, noise: float = 0.15) -> tuple[Tensor, Tensor]:
    """Two classes in ten dimensions, some labels wrong: what is learned by heart does not help."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 10, generator=generator)
    flipped = torch.rand(n, generator=generator) < noise
    return x, ((x[:, 0] > 0) ^ flipped).long()


@pytest.fixture(scope="module")
def overfitted() -> nn.Sequential:
    """A network that knows the first 200 samples by heart."""
    model = net(10, 64, 2)
    fit(model, noisy(200, 0), epochs=100, batch_size=200, learning_rate=2e-2)
    return model


def independence(prior: nn.Module | None, train_seed: int = 0, test: bool = True) -> Audit:
    data = noisy(200, 1) if test else None
    return audit(
        net(10, 64, 2, seed=3), noisy(200, train_seed), data, prior=prior,
        only=["prior-independence"], budget=None,
    )  # fmt: skip


def test_a_prior_that_has_seen_the_training_data_is_found_out(overfitted: nn.Module) -> None:
    report = independence(overfitted)
    (claim,) = report.claims
    assert claim.verdict is Verdict.VIOLATED
    assert len(report.warnings) == 1
    assert "has seen the training data" in report.warnings[0]
    assert "not valid" in report.warnings[0]
    (quantity,) = report.findings[0].quantities
    assert quantity.value < 1e-3


@pytest.mark.parametrize("kind", ["other data", "random"])
def test_a_healthy_prior_is_not_accused(overfitted: nn.Module, kind: str) -> None:
    prior = overfitted if kind == "other data" else net(10, 64, 2, seed=9)
    report = independence(prior, train_seed=7)
    assert report.warnings == []
    assert [c.verdict for c in report.claims] == [Verdict.HOLDS]


def test_the_trained_network_is_the_control(overfitted: nn.Module) -> None:
    report = audit(
        overfitted, noisy(200, 0), noisy(200, 1), prior=net(10, 64, 2, seed=9),
        only=["prior-independence"],
    )  # fmt: skip
    (claim,) = report.claims
    assert claim.verdict is Verdict.HOLDS
    assert claim.control is not None
    assert claim.control.verdict is Verdict.VIOLATED


def test_independence_needs_a_prior_and_test_data() -> None:
    assert "prior" in independence(None).claims[0].reason
    report = independence(net(10, 64, 2), test=False)
    assert report.claims[0].verdict is Verdict.NOT_APPLICABLE
    assert "test data" in report.claims[0].reason


def test_fishers_test_by_hand() -> None:
    x = torch.tensor([[1.0], [2.0], [3.0], [-1.0], [-2.0], [-3.0]])
    flipped = nn.Linear(1, 1, bias=False)
    nn.init.ones_(flipped.weight)
    problem = Problem(
        flipped, (x[:3], torch.ones(3)), (x[3:], torch.ones(3)), task="binary"
    )  # right on all of train, wrong on all of test
    found = exchangeability(problem, problem.parameters)
    assert found.shares[0][:3] == ("misclassified", 0.0, 1.0)
    assert found.shares[0][3] == pytest.approx(1 / 20)  # one way of 6 choose 3
    assert found.p_value == pytest.approx(4 / 20)
    table = [[0, 3], [3, 0]]
    exact = stats.fisher_exact(table, alternative="less").pvalue
    assert found.shares[0][3] == pytest.approx(exact)


def test_false_alarms_are_as_rare_as_promised() -> None:
    alarms, trials = 0, 1000
    generator = torch.Generator().manual_seed(0)
    for _ in range(trials):
        losses = torch.randn(90, generator=generator).round(decimals=1)  # with ties
        alarms += compare_losses(losses[:50], losses[50:], errors_above=0.5).p_value < 0.05
    assert clopper_pearson(alarms, trials, 0.99).low <= 0.05
    assert alarms > 0


def test_a_regression_learned_by_heart() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(80, 40, generator=generator), torch.randn(80, 1, generator=generator)
    model = nn.Linear(40, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.linalg.lstsq(x[:40], y[:40]).solution.T)
    report = audit(
        model, (x[:40], y[:40]), (x[40:], y[40:]), task="regression", prior=model,
        only=["prior-independence"],
    )  # fmt: skip
    assert "large losses" in report.warnings[0]


# ------------------------------------------------------------------------------- the certificate


def certificate(model: nn.Module, n: int = 400, test: bool = True, **settings: Any) -> Audit:
    data = noisy(300, 5, noise=0.0) if test else None
    return audit(
        model, noisy(n, 4, noise=0.0), data, only=["pac-bayes"], **settings,
    )  # fmt: skip


def test_a_certificate_that_says_something_and_holds() -> None:
    model = net(10, 8, 2)
    before = copy.deepcopy(model.state_dict())
    report = certificate(model, budget=None)
    (claim,) = report.claims
    assert claim.verdict is Verdict.HOLDS
    assert claim.promised is not None
    assert claim.promised < 0.5
    assert "trained on 200 samples" in claim.reason
    assert claim.interval is not None
    assert claim.interval.low <= claim.promised
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    (said,) = report.findings[0].assessments
    assert said.state is State.FINE
    assert said.number is not None
    assert said.number.value == pytest.approx(claim.promised)
    assert len(report.findings[0].figures) == 1


def test_a_certificate_without_test_data_is_not_compared() -> None:
    report = certificate(net(10, 4, 2), n=100, test=False, budget=None)
    (claim,) = report.claims
    assert claim.verdict is Verdict.NOT_APPLICABLE
    assert "nothing to compare" in claim.reason
    assert report.findings[0].quantities[0].name == "pac-bayes-bound"
    again = certificate(net(10, 4, 2), n=100, test=False, budget=None)
    assert again.findings[0].tables == report.findings[0].tables


def test_a_given_prior_is_where_the_bound_starts() -> None:
    prior = net(10, 4, 2, seed=2)
    report = certificate(net(10, 4, 2), n=100, prior=prior, budget=None)
    (claim,) = report.claims
    assert "given, having seen 0 of the samples" in claim.reason
    assert claim.verdict in (Verdict.HOLDS, Verdict.VACUOUS)


def test_no_certificate_from_a_prior_that_has_seen_the_data(overfitted: nn.Module) -> None:
    report = audit(overfitted, noisy(200, 0), noisy(200, 1), prior=overfitted, only=["pac-bayes"])
    (claim,) = report.claims
    assert claim.verdict is Verdict.NOT_APPLICABLE
    assert "has seen the training data" in claim.reason


def test_a_vacuous_certificate_says_why() -> None:
    model = net(10, 64, 2)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(100)  # far from the prior
    report = certificate(model, n=20, prior=net(10, 64, 2, seed=1), budget=None)
    (claim,) = report.claims
    assert claim.verdict is Verdict.VACUOUS
    assert "vacuous because" in claim.reason


@pytest.mark.parametrize("seconds", [1e-9, 1e-3])
def test_too_little_time_is_said(seconds: float) -> None:
    problem = Problem(net(10, 8, 2), noisy(2000, 0))
    record = examine(all_findings()["pac-bayes"], problem, confidence=0.95, seed=0, seconds=seconds)
    (claim,) = record.claims
    assert claim.verdict is Verdict.NOT_DONE
    assert "larger budget" in claim.reason
    assert not record.complete


def test_plans_follow_the_time() -> None:
    problem = Problem(net(10, 8, 2), noisy(2000, 0))
    whole = plan(problem, float("inf"))
    assert whole is not None
    assert (whole.samples, whole.prior_epochs, whole.epochs) == (2000, PRIOR_EPOCHS, BOUND_EPOCHS)
    assert plan(problem, 1e-7) is None
    enough = plan(problem, 1e4)
    assert enough is not None
    assert enough.samples == 2000
    short = plan(problem, enough.seconds / 20)
    assert short is not None
    assert short.seconds <= enough.seconds / 20
    assert short.epochs < enough.epochs


def test_regressions_and_several_inputs_have_reasons() -> None:
    x = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    report = audit(nn.Linear(3, 1), (x, x[:, :1]), only=["pac-bayes"])
    assert "regression" in report.claims[0].reason


def test_the_error_of_a_stochastic_network() -> None:
    linear = nn.Linear(1, 1, bias=False)
    nn.init.ones_(linear.weight)
    network = StochasticNetwork(linear, spread=1.0)
    data = (torch.ones(900, 1), torch.ones(900))
    problem = Problem(linear, data, data, task="binary")
    record = FindingRecord(
        name="a", title="", area=Area.GENERALIZATION, cost="forward", confidence=0.999
    )
    found = stochastic_test_error(network, problem, record)
    assert found is not None
    assert found.low < stats.norm.cdf(-1) < found.high
