"""Whether two samples follow one law: classes, locations, scales."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from torchtheory.core.errors import EmptyData, ShapeMismatch
from torchtheory.core.intervals import clopper_pearson
from torchtheory.data.shift import balance_shift, column_shift


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_two_classes_are_fishers_test() -> None:
    a, b = torch.tensor([30, 10]), torch.tensor([12, 14])
    exact = stats.fisher_exact([[30, 10], [12, 14]]).pvalue
    draws = [balance_shift(a, b, seed).p_value for seed in range(20)]
    assert sum(draws) / 20 == pytest.approx(exact, rel=0.15)
    assert balance_shift(a, b).distance == pytest.approx(30 / 40 - 12 / 26)


def test_many_rare_classes_of_one_law_are_not_accused() -> None:
    generator = torch.Generator().manual_seed(0)
    alarms, trials = 0, 200
    for seed in range(trials):
        y = torch.randint(0, 60, (150,), generator=generator)
        n, m = torch.bincount(y[:100], minlength=60), torch.bincount(y[100:], minlength=60)
        found = balance_shift(n, m, seed)
        alarms += found.p_value <= 0.05
        assert found.distance > 0.25  # by chance alone
        assert found.beyond_chance < 0.15
    assert clopper_pearson(alarms, trials, 0.99).low <= 0.05


def test_refused_counts() -> None:
    with pytest.raises(ShapeMismatch):
        balance_shift(torch.tensor([1, 2]), torch.tensor([1, 2, 3]))
    with pytest.raises(EmptyData):
        balance_shift(torch.tensor([1, 2]), torch.tensor([0, 0]))
    with pytest.raises(ShapeMismatch):
        column_shift(normal(10, 2), normal(10, 3))
    with pytest.raises(EmptyData):
        column_shift(normal(10, 2), normal(2, 2))


def test_without_labels_it_is_welchs_test() -> None:
    one, two = normal(50, 4), 1.5 * normal(30, 4, seed=1) + 0.3
    found = column_shift(one, two)
    assert found.columns.tolist() == [0, 1, 2, 3]
    t = stats.ttest_ind(two, one, equal_var=False)
    difference = two.double().mean(0) - one.double().mean(0)
    assert torch.allclose(found.shift, difference / one.double().std(0))
    assert torch.allclose(found.ratio, (two.double().std(0) / one.double().std(0)))
    # fewer degrees of freedom than Welch's make it the more careful one
    assert bool((found.shift_p_value >= torch.as_tensor(t.pvalue) - 1e-9).all())
    assert found.shift_p_value == pytest.approx(t.pvalue, rel=0.3)


def test_another_class_balance_alone_shifts_nothing() -> None:
    y = torch.arange(3000) % 3
    x = normal(3000, 5) * (1 + y[:, None]) + 4.0 * y[:, None]
    other = torch.cat([torch.arange(0, 1500, 3), torch.arange(1501, 1800, 3)])
    train = torch.arange(1800, 3000)
    plain = column_shift(x[train], x[other])
    fair = column_shift(x[train], x[other], (y[train], y[other]))
    assert plain.shift.abs().min() > 0.3
    assert fair.shift.abs().max() < 0.2
    assert (fair.ratio.log().abs() < 0.1).all()
    assert float(fair.shift_p_value.min()) > 1e-3


def test_constant_columns_and_missing_classes_are_left_out() -> None:
    x, y = normal(60, 3), torch.arange(60) % 2
    x[:, 1] = 1e6
    found = column_shift(x[:40], x[40:], (y[:40], torch.where(y[40:] > 0, 1, 2)))
    assert found.columns.tolist() == [0, 2]


@pytest.mark.parametrize("law", ["normal", "heavy", "dependent"])
def test_one_law_is_rarely_accused_by_the_median(law: str) -> None:
    alarms, trials = {"shift": 0, "ratio": 0}, 200
    for seed in range(trials):
        x = normal(160, 6, seed=seed)
        if law == "heavy":
            x = x.sign() * x.abs() ** 1.5
        if law == "dependent":
            x = x[:, :1].expand(-1, 6)
        found = column_shift(x[:100], x[100:])
        alarms["shift"] += 2 * float(found.shift_p_value.median()) <= 0.05
        alarms["ratio"] += 2 * float(found.ratio_p_value.median()) <= 0.05
    for name, count in alarms.items():
        assert clopper_pearson(count, trials, 0.99).low <= 0.05, name
