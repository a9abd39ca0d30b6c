"""Risk curves by features and by width."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from torchtheory.core.errors import EmptyData, InvalidInput, ShapeMismatch
from torchtheory.generalization.interpolation.double_descent import (
    RiskCurve,
    effective_complexity,
    feature_curve,
    width_curve,
)
from torchtheory.neurons.regression import least_squares
from torchtheory.training.loop.trainer import fit
from torchtheory.training.many.networks import mlp_family


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=source)


def test_feature_curve_is_least_squares_at_each_size() -> None:
    phi, y, phi_test, y_test = randn(2, 9, 15), randn(2, 9, seed=1), randn(2, 7, 15), randn(2, 7)
    curve = feature_curve((phi, y), (phi_test, y_test), [4, 9, 15])
    for i, p in enumerate(curve.sizes):
        for r in range(2):
            weight = least_squares(phi[r, :, :p], y[r]).weight
            risk = (phi_test[r, :, :p] @ weight - y_test[r]).square().mean()
            assert curve.test[i, r] == pytest.approx(float(risk), rel=1e-6)
    assert curve.first_below(1e-10) == 9


def test_ridge_is_that_of_scikit_learn() -> None:
    phi, y = randn(1, 12, 5), randn(1, 12, seed=1)
    curve = feature_curve((phi, y), (phi, y), [5], ridge=0.3)
    peer = Ridge(alpha=12 * 0.3, fit_intercept=False).fit(phi[0].numpy(), y[0].numpy())
    error = np.mean((peer.predict(phi[0].numpy()) - y[0].numpy()) ** 2)
    assert float(curve.train) == pytest.approx(float(error))


def test_width_curve_is_the_single_training() -> None:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    curve = width_curve((x, y), (x, y), [2, 5], seeds=[0, 1], epochs=8, learning_rate=0.02)
    net = mlp_family(3, [5], 2, seeds=[1])[0]
    fit(net, (x, y), epochs=8, batch_size=50, learning_rate=0.02, seed=0)
    with torch.no_grad():
        error = (net(x).argmax(1) != y).double().mean()
    assert float(curve.train[1, 1]) == pytest.approx(float(error))
    assert torch.equal(curve.train, curve.test)


def test_peak_and_threshold() -> None:
    curve = RiskCurve(
        (1, 2, 3), torch.tensor([[1.0], [0.5], [0.2]]), torch.tensor([[1.0], [9], [2]])
    )
    assert curve.peak == 2
    assert curve.first_below(1e-10) is None
    assert curve.first_below(0.5) == 2


def test_effective_complexity() -> None:
    assert effective_complexity(lambda m: 0.0 if m in (2, 6) else 1.0, range(1, 9), 0.1) == 6
    assert effective_complexity(lambda m: 1.0, [1, 2], 0.1) is None
    with pytest.raises(EmptyData):
        effective_complexity(lambda m: 1.0, [], 0.1)
    with pytest.raises(InvalidInput):
        effective_complexity(lambda m: 1.0, [1], -1.0)


def test_refusals() -> None:
    phi, y = randn(1, 4, 3), randn(1, 4)
    with pytest.raises(ShapeMismatch):
        feature_curve((phi[0], y), (phi, y), [1])
    with pytest.raises(ShapeMismatch):
        feature_curve((phi, y[:, :2]), (phi, y), [1])
    with pytest.raises(InvalidInput):
        feature_curve((phi, y), (phi, y), [4])
    with pytest.raises(EmptyData):
        feature_curve((phi, y), (phi, y), [])
    with pytest.raises(InvalidInput):
        feature_curve((phi, y), (phi, y), [1], ridge=-1.0)
    with pytest.raises(EmptyData):
        width_curve((phi[0], y[0].long()), (phi[0], y[0].long()), [])
