"""Reliability, calibration error, its test and the temperature, against known truths."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from torchtheory.core.errors import TorchTheoryError
from torchtheory.core.intervals import clopper_pearson
from torchtheory.generalization.learning.calibration import (
    calibration_error,
    calibration_test,
    fit_temperature,
    predicted_confidence,
    reliability_curve,
)


def answers(n: int, gap: float, seed: int) -> tuple[Tensor, Tensor]:
    """Confidences in [1/2, 1], right with a probability that is smaller by `gap`."""
    draw = torch.Generator().manual_seed(seed)
    p = 0.5 + 0.5 * torch.rand(n, generator=draw, dtype=torch.float64)
    return p, torch.rand(n, generator=draw, dtype=torch.float64) < p - gap


def test_bins_hold_equally_many_in_order() -> None:
    p, right = answers(163, 0.0, 0)
    bins = reliability_curve(p, right)
    assert [b.samples for b in bins] == [41, 41, 41, 40]
    assert [b.confidence for b in bins] == sorted(b.confidence for b in bins)
    order = p.argsort()[:41]
    assert bins[0].accuracy == clopper_pearson(int(right[order].sum()), 41)
    assert sum(b.samples * b.confidence for b in bins) == pytest.approx(float(p.sum()))


@pytest.mark.parametrize("gap", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("n", [100, 1000])
def test_the_interval_covers_the_error(n: int, gap: float) -> None:
    made = [calibration_error(*answers(n, gap, seed)) for seed in range(100)]
    covered = sum(i.low <= gap <= i.high for i in made)
    assert clopper_pearson(covered, 100, 0.999).high >= 0.95
    assert all(i.low <= i.estimate <= i.high for i in made)


def test_the_estimate_has_no_bias_where_the_usual_one_does() -> None:
    """Of a calibrated classifier: 0 would be right, and the usual estimate is far from it."""
    usual, corrected = [], []
    for seed in range(200):
        p, right = answers(400, 0.0, seed)
        bins = reliability_curve(p, right)
        usual.append(
            sum(b.samples * abs(b.confidence - b.accuracy.estimate) for b in bins) / len(p)
        )
        corrected.append(calibration_error(p, right).estimate)
    assert sum(usual) / 200 > 0.03
    assert sum(corrected) / 200 < 0.015
    clear = [calibration_error(*answers(4000, 0.2, seed)).estimate for seed in range(50)]
    assert sum(clear) / 50 == pytest.approx(0.2, abs=0.005)


def test_the_test_keeps_its_level_and_has_power() -> None:
    false = sum(calibration_test(*answers(300, 0.0, s)).p_value <= 0.05 for s in range(200))
    assert clopper_pearson(false, 200, 0.999).low <= 0.05
    found = sum(calibration_test(*answers(300, 0.15, s)).p_value <= 0.05 for s in range(50))
    assert found >= 48
    sure = torch.full((500,), 0.999, dtype=torch.float64)
    assert calibration_test(sure, torch.arange(500) > 10).p_value == 0.001


def test_the_gap_by_chance_is_that_of_calibrated_answers() -> None:
    p, right = answers(500, 0.0, 1)
    expected = calibration_test(p, right).by_chance
    drawn = [calibration_test(p, answers_like(p, s)).gap for s in range(100)]
    assert sum(drawn) / 100 == pytest.approx(expected, rel=0.1)


def answers_like(p: Tensor, seed: int) -> Tensor:
    return (
        torch.rand(len(p), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) < p
    )


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_of_labels_drawn_with_one(temperature: float) -> None:
    draw = torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(60):
        z = 2 * torch.randn(400, 5, generator=draw, dtype=torch.float64)
        y = torch.multinomial((z / temperature).softmax(1), 1, generator=draw)
        found = fit_temperature(z, y)
        covered += found.low <= temperature <= found.high
    assert clopper_pearson(covered, 60, 0.999).high >= 0.95
    assert found.high - found.low < temperature


@given(st.integers(0, 10**6), st.floats(0.1, 10))
def test_no_other_temperature_is_better(seed: int, scale: float) -> None:
    draw = torch.Generator().manual_seed(seed)
    z = scale * torch.randn(50, 3, generator=draw, dtype=torch.float64)
    y = torch.randint(0, 3, (50,), generator=draw)
    best = fit_temperature(z, y).estimate

    def loss(beta: float) -> float:
        return float(F.cross_entropy(beta * z, y))

    beta = 0.0 if math.isinf(best) else 1 / best
    others = [0.0, 0.5 * beta, 0.99 * beta, 1.01 * beta, 2 * beta, 0.01 / scale, 1 / scale]
    assert all(loss(beta) <= loss(b) + 1e-12 for b in others)


def test_logits_that_say_nothing_have_no_finite_temperature() -> None:
    z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    found = fit_temperature(z, torch.tensor([1, 1, 0]))
    assert found.estimate == math.inf
    assert 0 < found.low < math.inf


def test_confidence_of_the_class_that_is_named() -> None:
    z = torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    p, right = predicted_confidence(z, torch.tensor([0, 1]))
    assert p.tolist() == pytest.approx([math.e**2 / (math.e**2 + 2), math.e / (math.e + 2)])
    assert right.tolist() == [True, False]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: fit_temperature(torch.eye(3), torch.arange(3)), "every sample is classified"),
        (lambda: fit_temperature(torch.zeros(3, 1), torch.zeros(3)), "one column per class"),
        (lambda: fit_temperature(torch.eye(3), torch.arange(2)), "3 rows of logits but 2 labels"),
        (lambda: predicted_confidence(torch.eye(2), torch.tensor([0, 2])), "there are 2 classes"),
        (lambda: calibration_error(torch.tensor([1.2]), torch.ones(1)), r"lies in \[0, 1\]"),
        (lambda: calibration_error(torch.ones(3), torch.ones(2)), "3 confidences but 2 answers"),
        (lambda: calibration_error(torch.ones(3), torch.ones(3), level=1.0), "level"),
    ],
)
def test_what_is_refused(call: object, sentence: str) -> None:
    assert callable(call)
    with pytest.raises(TorchTheoryError, match=sentence):
        call()


def test_one_confidence_for_all_is_judged_by_the_mean_gap() -> None:
    """ECE is at least the mean gap: bins of one confidence cannot hide it."""
    hits = 0
    for seed in range(200):
        right = torch.rand(540, generator=torch.Generator().manual_seed(seed)) < 0.954
        found = calibration_error(torch.ones(540), right)
        gap = 1 - float(right.double().mean())
        assert found.estimate >= gap - 1e-12
        assert 0 < found.low < gap < found.high
        hits += found.low <= 0.046 <= found.high
    # 95 % of 200, less what chance takes once in a thousand times
    assert hits >= 180


def test_the_lower_end_is_a_normal_quantile_of_both_estimates() -> None:
    """One bin of 70 confident answers, 14 of them wrong in a known order."""
    right = torch.arange(70) % 5 > 0
    found = calibration_error(torch.full((70,), 0.95), right)
    share = (56 + 1) / (70 + 2)
    error = math.sqrt(share * (1 - share) / 70)
    z = 2.2414027276  # two lower ends share the level: 97.5 %, two-sided
    assert found.estimate == pytest.approx(0.15)
    assert found.low == pytest.approx(0.15 - z * error, abs=1e-6)
    assert found.low > 0


def test_gaps_of_both_signs_are_judged_by_their_halves() -> None:
    """Half of the answers are surer by 0.3 than they are right, half less: the mean gap is 0."""
    p = torch.tensor([0.5] * 50 + [0.9] * 50, dtype=torch.float64)
    right = torch.cat([torch.arange(50) % 5 > 0, torch.arange(50) % 5 > 1])  # 80 % and 60 %
    found = calibration_error(p, right)
    shares = [(40 + 1) / 52, (30 + 1) / 52]
    variance = sum(0.25 * s * (1 - s) / 50 for s in shares)
    z = 2.2414027276  # two lower ends share the level: 97.5 %, two-sided
    assert found.estimate == pytest.approx(0.3)
    assert found.low == pytest.approx(0.3 - z * math.sqrt(2 * variance), abs=1e-6)
    assert found.high == pytest.approx(0.3 + 1.959963985 * math.sqrt(variance), abs=1e-6)
    assert found.low > 0
