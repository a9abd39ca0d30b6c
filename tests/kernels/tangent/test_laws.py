"""The law of a model over its initialization, during and after training."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.kernels.tangent.dynamics import DescentRule
from torchtheory.kernels.tangent.laws import law_of_training
from torchtheory.primer.gaussians import Gaussian

seeds = st.integers(0, 10**6)


def normal(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def joint(seed, size=7, rank=12):
    root = normal(seed, size, rank) / math.sqrt(rank)
    return root @ root.T


def test_one_point_by_hand():
    # Θ = 2 on the training point, 1 across; Σ = 1 everywhere on the diagonal, 0.5 across
    kernel = torch.tensor([[2.0], [1.0]]).double()
    initial = torch.tensor([[1.0, 0.5], [0.5, 1.0]]).double()
    law = law_of_training(kernel, torch.tensor([4.0]).double(), initial=initial)
    assert law.mean.tolist() == [4.0, 2.0]
    # 1 - 2 · ½ · ½ + ½ · 1 · ½
    assert law.covariance[1, 1] == pytest.approx(0.75)
    assert law.covariance[0].tolist() == [0.0, 0.0]


def test_the_start_is_the_initial_law():
    kernel, initial = joint(0), joint(1)
    law = law_of_training(kernel, normal(2, 4), 0.0, initial=initial)
    assert torch.allclose(law.mean, torch.zeros(7).double())
    assert torch.allclose(law.covariance, initial)
    feature = law_of_training(kernel, normal(2, 4), 0.0)
    assert torch.allclose(feature.covariance, kernel)


@given(seeds, st.floats(0.01, 20))
@settings(max_examples=25, deadline=None)
def test_it_is_the_affine_image_of_the_initial_law(seed, time):
    kernel, initial, y = joint(seed), joint(seed + 1), normal(seed + 2, 4)
    law = law_of_training(kernel, y, time, initial=initial, rate=0.5)
    left = torch.from_numpy(expm(-0.5 * time * kernel[:4, :4].numpy()))
    across = kernel[:, :4] @ torch.linalg.solve(kernel[:4, :4], torch.eye(4).double() - left)
    change = torch.eye(7).double()
    change[:, :4] -= across
    expected = Gaussian(torch.zeros(7).double(), initial).affine(change, across @ y)
    assert torch.allclose(law.mean, expected.mean, atol=1e-7)
    assert torch.allclose(law.covariance, expected.covariance, atol=1e-7)


@given(seeds)
@settings(max_examples=25, deadline=None)
def test_the_three_terms_of_a_network_trained_in_all_layers(seed):
    theta, sigma, y = joint(seed), joint(seed + 1), normal(seed + 2, 4)
    law = law_of_training(theta[:, :4], y, initial=sigma)
    weights = torch.linalg.solve(theta[:4, :4], theta[:4, 4:]).T
    cross = weights @ sigma[:4, 4:]
    variance = sigma[4:, 4:] + weights @ sigma[:4, :4] @ weights.T - cross - cross.T
    assert torch.allclose(law.mean[4:], weights @ y, atol=1e-7)
    assert torch.allclose(law.covariance[4:, 4:], variance, atol=1e-7)
    assert torch.allclose(law.mean[:4], y)
    assert law.covariance[:4].abs().max() < 1e-12


def test_a_feature_model_ends_as_gaussian_process_regression():
    x, grid = normal(5, 5, 1), normal(6, 9, 1)
    points = torch.cat([x, grid]).numpy()
    kernel = torch.from_numpy(RBF(0.7)(points))
    y = normal(7, 5)
    law = law_of_training(kernel, y)
    reference = GaussianProcessRegressor(RBF(0.7), alpha=1e-12, optimizer=None)
    mean, covariance = reference.fit(x.numpy(), y.numpy()).predict(grid.numpy(), return_cov=True)
    assert torch.allclose(law.mean[5:], torch.from_numpy(mean), atol=1e-6)
    assert torch.allclose(law.covariance[5:, 5:], torch.from_numpy(covariance), atol=1e-6)


def test_training_points_among_the_test_points_have_no_variance_left():
    x = torch.linspace(-1, 1, 6, dtype=torch.float64)
    points = torch.cat([x, x])
    kernel = torch.exp(-(points[:, None] - points).square())  # singular: every point twice
    law = law_of_training(kernel, x.sin())
    assert torch.allclose(law.mean[6:], x.sin(), atol=1e-9)
    assert law.covariance.diagonal().max() < 1e-9


def test_many_steps_below_the_limit_end_where_the_flow_does():
    kernel, y = joint(11), normal(12, 4)
    step = 1 / float(torch.linalg.eigvalsh(kernel[:4, :4])[-1])
    flow, steps = law_of_training(kernel, y), law_of_training(kernel, y, rule=DescentRule(step))
    assert torch.allclose(flow.mean, steps.mean)
    assert torch.allclose(flow.covariance, steps.covariance)
    few = law_of_training(kernel, y, 3, rule=DescentRule(step))
    assert (few.covariance.diagonal()[:4] > 1e-6).all()


def test_members_of_an_ensemble_have_that_law():
    phi, y = normal(21, 7, 30) / math.sqrt(30), normal(22, 4)
    kernel = phi @ phi.T
    law = law_of_training(kernel, y, 1.5)
    starts = phi @ normal(23, 30, 40_000)
    left = torch.from_numpy(expm(-1.5 * kernel[:4, :4].numpy()))
    across = kernel[:, :4] @ torch.linalg.solve(kernel[:4, :4], torch.eye(4).double() - left)
    members = starts + across @ (y[:, None] - starts[:4])
    spread = law.covariance.diagonal().sqrt()
    assert ((members.mean(1) - law.mean).abs() < 5 * spread / 200).all()
    assert ((members.var(1) / spread**2 - 1).abs() < 5 * math.sqrt(2 / 40_000)).all()


def test_bad_input_is_refused():
    kernel, y = joint(0), normal(1, 4)
    with pytest.raises(ShapeMismatch, match="training points"):
        law_of_training(kernel[:, :5], y)
    with pytest.raises(ShapeMismatch, match="training points"):
        law_of_training(kernel[:3, :3], y)
    with pytest.raises(ShapeMismatch, match="without an initial"):
        law_of_training(kernel[:, :4], y)
    with pytest.raises(ShapeMismatch, match="same points"):
        law_of_training(kernel, y, initial=kernel[:5, :5])
    with pytest.raises(ShapeMismatch):
        law_of_training(kernel, y[:, None])
    with pytest.raises(InvalidInput, match="negative eigenvalue"):
        law_of_training(kernel, y, initial=-kernel)
    with pytest.raises(InvalidInput, match=">= 0"):
        law_of_training(kernel, y, math.nan)
