"""Trained networks against training by hand, and what fits say about capacity."""

from __future__ import annotations

import copy
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch, UnknownName
from torchtheory.generalization.complexity.rademacher import exact_rademacher, finite_class
from torchtheory.generalization.memorization.experiment import (
    FittedNetworks,
    fit_and_test,
    memorization_test,
    seeded_network,
)
from torchtheory.generalization.memorization.fitting_capacity import (
    rademacher_from_fits,
    trained_class,
    vc_dimension_from_fits,
)
from torchtheory.generalization.memorization.puzzle_battery import puzzle_curve, squared_distance
from torchtheory.training.loop.trainer import fit
from torchtheory.training.losses.classification import one_hot_rows


def data(n: int = 40, tests: int = 60) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    x = torch.randn(n + tests, 6, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    return (x[:n], y[:n]), (x[n:], y[n:])


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 60), nn.ReLU(), nn.Linear(60, 3))


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 30), nn.ReLU(), nn.Dropout(0.1), nn.Linear(30, 3))


@pytest.mark.parametrize("make", [small, with_dropout])
def test_it_is_the_training_of_fit(make: type[nn.Module]) -> None:
    train, test = data()
    net = seeded_network(make, 1)
    before = copy.deepcopy(net.state_dict())
    labels = torch.stack([train[1], (train[1] + 1) % 3])
    found = fit_and_test(
        [net, net], train, test, labels=labels, epochs=5, weight_decay=[0.0, 0.1], seed=3
    )
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    for k, decay in enumerate((0.0, 0.1)):
        alone = copy.deepcopy(net)
        history = fit(
            alone, (train[0], labels[k]), epochs=5, batch_size=64, weight_decay=decay, seed=3
        )
        alone.eval()
        assert torch.allclose(found.train_loss[k], torch.tensor(history.train_losses).double())
        scores = alone(test[0])
        assert float(found.test_error[k]) == pytest.approx(
            float((scores.argmax(1) != test[1]).double().mean())
        )
        own = alone(train[0]).gather(1, labels[k][:, None]).squeeze(1)
        others = alone(train[0]).scatter(1, labels[k][:, None], -math.inf).amax(1)
        assert torch.allclose(found.margins[k], (own - others).double(), atol=1e-5)


def test_epochs_to_fit() -> None:
    running = torch.tensor([[0.5, 0.0, 0.1, 0.0], [0.5, 0.5, 0.5, 0.1]])
    nothing = torch.zeros(2)
    found = FittedNetworks((), running, running, nothing, nothing, running)
    assert found.epochs_to_fit.tolist() == [2.0, math.inf]


def test_memorization_of_random_labels() -> None:
    train, test = data()
    found = memorization_test(
        small,
        train,
        test,
        shares=[0, 1],
        images=["Gaussian images"],
        weight_decays=[0, 1e-4],
        seeds=[0, 1],
        epochs=150,
        learning_rate=0.01,
    )
    assert len(found.rows) == 12
    assert found.train_loss.shape == (12, 150)
    assert float(found.column("train_error").max()) == 0
    assert float(found.column("least_margin").min()) > 0
    true, coin = found.select(share=0.0), found.select(share=1.0)
    assert float(true.column("test_error").mean()) < 0.35
    assert float(coin.column("test_error").mean()) > 0.5
    assert float(coin.column("epochs_to_fit").mean()) > float(true.column("epochs_to_fit").mean())
    assert torch.equal(true.column("gap"), true.column("test_error"))
    row, net = found.rows[0], found.networks[0]
    weights = [p for p in net.parameters() if p.ndim > 1]
    product = math.prod(float(w.detach().norm()) for w in weights)
    assert row.frobenius_product == pytest.approx(product, rel=1e-5)
    start = seeded_network(small, row.seed)
    moved = [a - b for a, b in zip(net.parameters(), start.parameters(), strict=True)]
    assert row.distance == pytest.approx(
        float(torch.cat([m.detach().flatten() for m in moved]).norm())
    )
    columns, rows = found.table()
    assert len(rows) == 6
    assert all(len(r) == len(columns) for r in rows)


def test_few_parameters_do_not_fit_random_labels() -> None:
    train, test = data(100)
    found = memorization_test(
        lambda: nn.Linear(6, 3), train, test, shares=[1], images=[], seeds=[0, 1], epochs=60
    )
    assert float(found.column("train_error").min()) > 0.2
    assert bool(found.column("epochs_to_fit").isinf().all())


def test_what_cannot_be_memorized_is_refused() -> None:
    train, test = data()
    with pytest.raises(EmptyData, match="no network"):
        fit_and_test([], train)
    with pytest.raises(InvalidType, match="not a torch"):
        fit_and_test([3], train)  # type: ignore[list-item]
    with pytest.raises(ShapeMismatch, match="labels must be"):
        fit_and_test([small()], train, labels=train[1])
    with pytest.raises(ShapeMismatch, match="learning_rate"):
        fit_and_test([small()], train, learning_rate=[0.1, 0.2])
    with pytest.raises(InvalidInput, match="regression"):
        fit_and_test([nn.Linear(6, 1)], (train[0], train[0][:, :1]))
    two = (train[0], train[1] % 2)
    with pytest.raises(InvalidInput, match="one logit per class"):
        memorization_test(lambda: nn.Linear(6, 1), two, two)
    with pytest.raises(InvalidType, match="function without arguments"):
        memorization_test(small(), train, test)
    with pytest.raises(InvalidType, match="returned a int"):
        seeded_network(lambda: 3, 0)  # type: ignore[arg-type, return-value]
    with pytest.raises(EmptyData, match="seed"):
        memorization_test(small, train, test, seeds=[])
    with pytest.raises(UnknownName, match="random pixels"):
        memorization_test(small, train, test, shares=[], images=["random pixel"])
    found = memorization_test(small, train, test, shares=[0], images=[], seeds=[0], epochs=1)
    with pytest.raises(InvalidInput, match="no network was trained"):
        found.select(share=0.5)


def test_the_trained_class_lies_below_the_supremum() -> None:
    x = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    signs = torch.tensor([[1.0, 1, -1, -1], [1.0, -1, 1, -1], [-1.0, -1, -1, -1]])
    reached = trained_class(lambda: nn.Linear(1, 1), x, epochs=300, learning_rate=0.05)(signs)
    line = torch.tensor([[1.0] * k + [-1.0] * (4 - k) for k in range(5)])
    best = finite_class(torch.cat([line, -line]))(signs).double()
    assert bool((reached <= best + 1e-12).all())
    assert reached.tolist()[0] == reached.tolist()[2] == 1
    with pytest.raises(ShapeMismatch, match="signs"):
        trained_class(lambda: nn.Linear(1, 1), x)(signs[:, :2])


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 30))
@settings(max_examples=25, deadline=None)
def test_the_lower_bound_of_the_complexity_holds(seed: int, functions: int, draws: int) -> None:
    g = torch.Generator().manual_seed(seed)
    values = 2 * torch.rand(functions, 8, generator=g, dtype=torch.float64) - 1
    supremum = finite_class(values)
    exact = exact_rademacher(supremum, 8)
    signs = 2.0 * torch.randint(0, 2, (draws, 8), generator=g).double() - 1
    # fails with probability at most 1e-6
    assert rademacher_from_fits(supremum(signs), 8, 1e-6) <= exact


def test_the_lower_bound_of_the_vc_dimension() -> None:
    # a class that has exactly Sauer's number of labelings has the dimension itself
    for m, h in ((10, 3), (12, 6), (9, 9)):
        share = Fraction(sum(math.comb(m, i) for i in range(h + 1)), 2**m)
        draws = 400_000
        found = vc_dimension_from_fits(round(float(share) * draws), draws, m)
        assert h - 1 <= found <= h
    assert vc_dimension_from_fits(30, 30, 200) >= 100
    assert vc_dimension_from_fits(0, 5, 50) == 0
    with pytest.raises(InvalidInput, match="successes"):
        vc_dimension_from_fits(6, 5, 50)
    with pytest.raises(EmptyData, match="point"):
        vc_dimension_from_fits(1, 5, 0)
    with pytest.raises(InvalidInput, match=r"\[-1, 1\]"):
        rademacher_from_fits(torch.tensor([2.0]), 5)
    with pytest.raises(EmptyData, match="at least one draw"):
        rademacher_from_fits(torch.zeros(0), 5)


def wide(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))


@pytest.mark.parametrize(
    ("item", "levels"),
    [
        ("weight decay", [0.0, 1.0]),
        ("initial scale", [1.0, 3.0]),
        ("label noise", [0.0, 1.0]),
        ("width", [2, 50]),
        ("batch size", [10, 40]),
    ],
)
def test_curves(item: str, levels: list[float]) -> None:
    train, test = data()
    curve = puzzle_curve(
        item, levels, wide, train, test, width=50, seeds=[0, 1], epochs=120, learning_rate=0.01
    )
    assert curve.test_error.shape == curve.train_error.shape == curve.train_loss.shape == (2, 2)
    change = curve.change(1, 0)
    assert change.estimate == pytest.approx(
        float((curve.test_error[1] - curve.test_error[0]).mean())
    )
    fitted = {
        "weight decay": [0],
        "initial scale": [0, 1],
        "label noise": [0, 1],
        "width": [1],
        "batch size": [0, 1],
    }
    assert curve.interpolating() == fitted[item]


def test_squared_distance_is_that_to_the_unit_vectors() -> None:
    outputs = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    y = torch.arange(7) % 4
    expected = (outputs - one_hot_rows(outputs, y)).square().sum(1).mean()
    assert torch.allclose(squared_distance(outputs, y), expected)


def test_curves_refuse() -> None:
    train, test = data()
    with pytest.raises(UnknownName, match="width"):
        puzzle_curve("widht", [1], wide, train, test)
    with pytest.raises(EmptyData, match="level"):
        puzzle_curve("width", [], wide, train, test)
    with pytest.raises(InvalidInput, match="whole number"):
        puzzle_curve("width", [2.5], wide, train, test)
