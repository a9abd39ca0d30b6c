"""Interpolators on a line, against NumPy's and SciPy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import BarycentricInterpolator
from sklearn.kernel_ridge import KernelRidge

from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.generalization.interpolation.interpolators import (
    noise_amplification,
    piecewise_linear_weights,
    polynomial_weights,
    singular_kernel_weights,
)
from torchtheory.kernels.learning.functions import gaussian
from torchtheory.kernels.learning.regression import kernel_least_squares

ALL = [singular_kernel_weights, piecewise_linear_weights, polynomial_weights]


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 9))
def test_weights_sum_to_one_and_interpolate(seed: int, n: int) -> None:
    nodes, x = rand(n, seed=seed), rand(11, seed=seed + 1)
    for weights in ALL:
        scale = float(weights(x, nodes).abs().max())
        assert torch.allclose(
            weights(x, nodes).sum(1), torch.ones(11).double(), atol=1e-9 * max(1.0, scale)
        )
        assert torch.allclose(weights(nodes, nodes), torch.eye(n).double(), atol=1e-9)


def test_against_peers() -> None:
    nodes, y, x = rand(8), rand(8, seed=1), rand(30, seed=2)
    order = nodes.argsort()
    line = np.interp(x.numpy(), nodes[order].numpy(), y[order].numpy())
    assert np.allclose((piecewise_linear_weights(x, nodes) @ y).numpy(), line)
    peer = BarycentricInterpolator(nodes.numpy(), y.numpy())(x.numpy())
    assert np.allclose((polynomial_weights(x, nodes) @ y).numpy(), peer, rtol=1e-6)


def test_broken_line_keeps_two_thirds_of_the_noise() -> None:
    x = (torch.arange(30_000).double() + 0.5) / 30_000
    nodes = torch.tensor([0.0, 0.2, 0.35, 1.0]).double()
    kept = float(noise_amplification(piecewise_linear_weights(x, nodes)))
    assert kept == pytest.approx(2 / 3, abs=1e-6)


def test_singular_kernel_by_hand() -> None:
    weights = singular_kernel_weights(torch.tensor([0.0]), torch.tensor([1.0, -2.0]), 2.0)
    assert torch.allclose(weights, torch.tensor([[0.8, 0.2]]))


def test_kernel_ridge_is_that_of_scikit_learn() -> None:
    x, y, new = rand(12, 2), rand(12, seed=1), rand(6, 2, seed=2)
    decay = 0.05
    peer = KernelRidge(alpha=12 * decay, kernel="rbf", gamma=0.5).fit(x.numpy(), y.numpy())
    ours = kernel_least_squares(gaussian(1.0), x, y, ridge=12 * decay).predict(new)
    assert np.allclose(ours.numpy(), peer.predict(new.numpy()))


def test_refusals() -> None:
    x = torch.rand(3, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InvalidInput, match="different"):
        polynomial_weights(x, torch.tensor([1.0, 1.0]))
    with pytest.raises(ShapeMismatch):
        piecewise_linear_weights(x, torch.eye(2))
    with pytest.raises(EmptyData):
        piecewise_linear_weights(x, torch.empty(0))
    with pytest.raises(InvalidType):
        piecewise_linear_weights(x, torch.arange(3))
    with pytest.raises(NonFinite):
        singular_kernel_weights(x, torch.tensor([math.nan]))
    with pytest.raises(InvalidInput):
        singular_kernel_weights(x, x, 0.0)
    with pytest.raises(ShapeMismatch):
        noise_amplification(x)
