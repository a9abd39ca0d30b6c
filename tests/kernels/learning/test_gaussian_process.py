import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as reference

from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.kernels.learning.functions import gaussian, laplace, linear, matern
from torchtheory.kernels.learning.gaussian_process import posterior, sample_paths
from torchtheory.kernels.learning.regression import SingularKernelMatrix, kernel_least_squares
from torchtheory.primer.gaussians import Gaussian


def draw(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("noise", [1e-8, 0.2])
@pytest.mark.parametrize("outputs", [None, 2])
def test_posterior_against_scikit_learn(noise, outputs):
    x, new = draw(0, 15, 2), draw(1, 9, 2)
    y = draw(2, 15) if outputs is None else draw(2, 15, outputs)
    after = posterior(1.7 * matern(1.5, 0.8), x, y, noise=noise)
    k = reference.ConstantKernel(1.7) * reference.Matern(0.8, nu=1.5)
    peer = GaussianProcessRegressor(k, alpha=noise, optimizer=None).fit(x.numpy(), y.numpy())
    mean, covariance = peer.predict(new.numpy(), return_cov=True)
    covariance = covariance if outputs is None else covariance[..., 0]
    torch.testing.assert_close(after.mean(new), torch.from_numpy(mean), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(
        after.kernel(new), torch.from_numpy(covariance), rtol=1e-8, atol=1e-8
    )
    torch.testing.assert_close(
        after.standard_deviation(new), after.kernel(new).diagonal().sqrt(), rtol=1e-7, atol=1e-7
    )
    evidence = peer.log_marginal_likelihood(k.theta)
    assert float(after.log_marginal_likelihood.sum()) == pytest.approx(evidence, rel=1e-9)


def test_one_observation_by_hand():
    x, y = torch.zeros(1).double(), torch.tensor([2.0]).double()
    after = posterior(gaussian(), x, y, noise=1.0)
    t = torch.tensor([0.0, 1.0]).double()
    rho = math.exp(-0.5)
    assert after.mean(t).tolist() == pytest.approx([1.0, rho])
    assert after.kernel(t).tolist()[0] == pytest.approx([0.5, rho / 2])
    assert float(after.log_marginal_likelihood) == pytest.approx(-1 - 0.5 * math.log(4 * math.pi))


@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 8), noise=st.sampled_from([0.0, 0.3]), seed=st.integers(0, 10**6))
def test_posterior_is_regression_and_conditioning(n, noise, seed):
    x, y, new = draw(seed, n, 2), draw(seed + 1, n), draw(seed + 2, 5, 2)
    after = posterior(laplace(), x, y, noise=noise)
    fit = kernel_least_squares(laplace(), x, y, ridge=noise)
    torch.testing.assert_close(after.mean(new), fit.predict(new))
    law = Gaussian(torch.zeros(n).double(), laplace()(x) + noise * torch.eye(n).double())
    torch.testing.assert_close(after.log_marginal_likelihood, law.log_density(y[None])[0])
    # observing in two steps is observing at once
    if n > 1:
        first = posterior(laplace(), x[:1], y[:1], noise=noise)
        both = posterior(first.kernel, x[1:], y[1:], noise=noise, mean=first.mean)
        torch.testing.assert_close(both.mean(new), after.mean(new))
        torch.testing.assert_close(both.kernel(new), after.kernel(new))
        total = first.log_marginal_likelihood + both.log_marginal_likelihood
        torch.testing.assert_close(total, after.log_marginal_likelihood)


def test_mean_function():
    x, y, new = draw(0, 6), draw(1, 6), draw(2, 4)
    shifted = posterior(laplace(), x, y + 3 * x, noise=0.1, mean=lambda t: 3 * t)
    plain = posterior(laplace(), x, y, noise=0.1)
    torch.testing.assert_close(shifted.mean(new), plain.mean(new) + 3 * new)
    many = posterior(laplace(), x, (y + 3 * x)[:, None], noise=0.1, mean=lambda t: 3 * t)
    torch.testing.assert_close(many.mean(new)[:, 0], shifted.mean(new))


def test_marginal_likelihood_carries_gradients():
    x, y = draw(0, 7, 2), draw(1, 7)
    lengths = torch.ones(2).double().requires_grad_()

    def evidence(scale):
        after = posterior(gaussian().after(lambda v: v / scale), x, y, noise=0.1)
        return after.log_marginal_likelihood

    assert torch.autograd.gradcheck(evidence, (lengths,))


@pytest.mark.parametrize("method", ["cholesky", "eigenvalues"])
def test_draws_have_the_covariance(method):
    t = torch.tensor([0.0, 0.5, 1.0, 2.5]).double()
    draws = 20_000
    f = sample_paths(gaussian(), t, draws, mean=torch.sin, method=method, generator=0)
    assert f.shape == (draws, 4)
    expected = gaussian()(t)
    error = ((expected**2 + torch.outer(expected.diagonal(), expected.diagonal())) / draws).sqrt()
    centered = f - torch.sin(t)
    assert bool((((centered.T @ centered) / draws - expected).abs() < 5 * error).all())
    assert bool((centered.mean(0).abs() < 5 / math.sqrt(draws)).all())
    again = sample_paths(gaussian(), t, draws, mean=torch.sin, method=method, generator=0)
    assert torch.equal(f, again)


def test_draws_of_a_singular_process():
    t = torch.linspace(-1, 1, 200, dtype=torch.float64)
    lines = sample_paths(linear(), t, 4, method="eigenvalues", generator=0)
    torch.testing.assert_close(lines, torch.outer(lines[:, -1], t), rtol=0, atol=1e-6)
    close = sample_paths(linear(), t, 4, generator=0)
    torch.testing.assert_close(close, torch.outer(close[:, -1], t), rtol=0, atol=1e-3)
    with pytest.raises(SingularKernelMatrix, match="ridge"):
        sample_paths(linear(), t, 4, jitter=0.0)


def test_draws_after_observations_pass_through_them():
    x, y = torch.tensor([-1.0, 0.5]).double(), torch.tensor([2.0, -1.0]).double()
    after = posterior(gaussian(), x, y)
    t = torch.cat([x, torch.linspace(-2, 2, 20, dtype=torch.float64)])
    f = sample_paths(after.kernel, t, 5, mean=after.mean, method="eigenvalues")
    torch.testing.assert_close(f[:, :2], y.expand(5, 2), rtol=0, atol=1e-6)


def test_refused():
    x, y = draw(0, 3), draw(1, 3)
    with pytest.raises(InvalidInput, match="noise"):
        posterior(gaussian(), x, y, noise=-1.0)
    with pytest.raises(SingularKernelMatrix, match="noise"):
        posterior(gaussian(), torch.zeros(3).double(), y)
    with pytest.raises(ShapeMismatch, match="targets"):
        posterior(gaussian(), x, y[:2])
    with pytest.raises(ShapeMismatch, match="mean function"):
        posterior(gaussian(), x, y, mean=lambda t: t[:, None])
    with pytest.raises(InvalidInput, match="method"):
        sample_paths(gaussian(), x, 2, method="qr")
    with pytest.raises(InvalidInput, match="draws"):
        sample_paths(gaussian(), x, 0)
    with pytest.raises(InvalidInput, match="jitter"):
        sample_paths(gaussian(), x, 1, jitter=-1.0)
