"""Labs of generalization turn red where they should, and stay green at every size they allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from torchtheory.generalization.algorithmic_robustness import robustness_bound
from torchtheory.generalization.pac_bayes import certification
from torchtheory.generalization.pac_bayes.gibbs_risk import GibbsRisk, gibbs_risk
from torchtheory.labs.engine.run import run_lab
from torchtheory.labs.generalization import (
    algorithmic_robustness,
    finite_classes,
    pac_bayes_coverage,
    stability,
    validation_bound,
    vc_generalization,
)


@pytest.mark.parametrize("samples", [50, 60])
def test_random_labels_at_small_samples(samples: int) -> None:
    assert run_lab("random-labels", settings={"samples": samples}).problems == []


@pytest.mark.parametrize("seed", [4, 18])
def test_bias_and_variance_at_seeds_that_used_to_fail(seed: int) -> None:
    assert run_lab("bias-variance-of-least-squares", seed=seed).problems == []


def without_the_cells(oscillation: float, *args: Any, **options: Any) -> float:
    """The bound of Xu and Mannor without its probabilistic term."""
    return oscillation


def without_oscillation(oscillation: float, *args: Any, **options: Any) -> float:
    return robustness_bound(0.0, *args, **options)


def halved_risk(*args: Any, **options: Any) -> GibbsRisk:
    found = gibbs_risk(*args, **options)
    return replace(found, estimate=found.estimate / 2, upper=found.upper / 2)


@pytest.mark.parametrize(
    ("lab", "module", "name", "mutant"),
    [
        ("algorithmic-robustness", algorithmic_robustness, "robustness_bound", without_the_cells),
        ("algorithmic-robustness", algorithmic_robustness, "robustness_bound", without_oscillation),
        ("pac-bayes-coverage", certification, "gibbs_risk", halved_risk),
    ],
)
def test_a_dropped_term_is_noticed(
    lab: str,
    module: Any,
    name: str,
    mutant: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, name, mutant)
    assert run_lab(lab).problems


@pytest.mark.parametrize(
    ("lab", "module", "name"),
    [
        ("finite-class-bounds", finite_classes, "finite_class_radius"),
        ("finite-class-bounds", finite_classes, "weighted_class_radius"),
        ("pac-bayes-coverage", pac_bayes_coverage, "upper_kl_inverse"),
        ("uniform-stability", stability, "textbook_ridge_stability"),
        ("validation-set-bound", validation_bound, "validation_slack"),
        ("vc-generalization-bounds", vc_generalization, "vc_rate"),
    ],
)
def test_a_halved_promise_is_noticed(
    lab: str, module: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *args, **options: 0.5 * exact(*args, **options))
    assert run_lab(lab).problems
