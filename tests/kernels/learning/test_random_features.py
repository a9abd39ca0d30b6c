import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.core.intervals import fit_slope
from torchtheory.kernels.learning.functions import arc_cosine, gaussian
from torchtheory.kernels.learning.random_features import RandomFeatures
from torchtheory.kernels.learning.regression import kernel_least_squares
from torchtheory.kernels.tangent.kernel import empirical_ntk


def draw(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_by_hand():
    weights = torch.tensor([[1.0, 0.0], [0.0, -1.0]]).double()
    model = RandomFeatures(2, 2, "relu", weights=weights)
    with torch.no_grad():
        model.theta.copy_(torch.tensor([3.0, 5.0]))
    x = torch.tensor([[2.0, 1.0], [1.0, -4.0]]).double()
    assert model.features(x).tolist() == [[2.0, 0.0], [1.0, 4.0]]
    torch.testing.assert_close(model(x), torch.tensor([[6.0], [23.0]]).double() / math.sqrt(2.0))
    torch.testing.assert_close(model.kernel(x), torch.tensor([[2.0, 1.0], [1.0, 8.5]]).double())
    assert model.kernel.diagonal(x).tolist() == pytest.approx([2.0, 8.5])


def test_it_is_a_network_with_a_trained_top():
    model = RandomFeatures(4, 30, nn.Tanh, generator=3)
    net = nn.Sequential(nn.Linear(4, 30, bias=False), nn.Tanh(), nn.Linear(30, 1, bias=False))
    net = net.double()
    with torch.no_grad():
        net[0].weight.copy_(model.weights)
        net[2].weight.copy_(model.theta[None] / math.sqrt(30))
    x = draw(0, 6, 4)
    torch.testing.assert_close(model(x), net(x))


@settings(max_examples=15, deadline=None)
@given(
    activation=st.sampled_from(["relu", "tanh", torch.sin, "fourier"]),
    p=st.integers(1, 20),
    seed=st.integers(0, 10**6),
)
def test_tangent_kernel_is_the_kernel_at_every_theta(activation, p, seed):
    if activation == "fourier":
        model = RandomFeatures.fourier(3, 2 * p, generator=seed)
    else:
        model = RandomFeatures(3, p, activation, generator=seed)
    x, y = draw(seed, 4, 3), draw(seed + 1, 5, 3)
    here = empirical_ntk(model, x, y, outputs="trace")
    torch.testing.assert_close(here, model.kernel(x, y), rtol=1e-12, atol=1e-12)
    there = empirical_ntk(
        model, x, y, outputs="trace", parameters={"theta": 100 * draw(seed, model.count)}
    )
    torch.testing.assert_close(there, here, rtol=1e-12, atol=1e-12)


def test_limits():
    x = draw(0, 5, 4) / 2
    relu = RandomFeatures(4, 200_000, "relu", generator=0)
    assert float((relu.kernel(x) - arc_cosine()(x)).abs().max()) < 0.02
    waves = RandomFeatures.fourier(4, 200_000, lengthscale=1.5, generator=0)
    assert float((waves.kernel(x) - gaussian(1.5)(x)).abs().max()) < 0.02
    torch.testing.assert_close(waves.kernel.diagonal(x), torch.ones(5).double())


def test_rate():
    x, counts = draw(0, 6, 3), [2**k for k in range(4, 13)]
    errors = []
    for p in counts:
        models = [RandomFeatures(3, p, generator=s) for s in range(30)]
        square = [(m.kernel(x) - arc_cosine()(x)).square().mean() for m in models]
        errors.append(float(torch.stack(square).mean().sqrt()))
    slope = fit_slope(counts, errors)
    assert slope.low - 0.02 <= -0.5 <= slope.high + 0.02


def test_training_the_top_ends_at_kernel_regression():
    model = RandomFeatures(2, 50, "tanh", generator=1)
    x, y, new = draw(0, 6, 2), draw(1, 6), draw(2, 4, 2)
    phi = model.features(x) / math.sqrt(50)
    with torch.no_grad():
        model.theta.copy_(torch.linalg.pinv(phi) @ y)
    fit = kernel_least_squares(model.kernel, x, y)
    torch.testing.assert_close(model(new)[:, 0], fit.predict(new), rtol=1e-6, atol=1e-6)


def test_seeds():
    a, b, c = (RandomFeatures(3, 8, generator=s) for s in (5, 5, 6))
    assert torch.equal(a.weights, b.weights)
    assert torch.equal(a.theta, b.theta)
    assert not torch.equal(a.weights, c.weights)
    before = torch.get_rng_state()
    RandomFeatures.fourier(3, 8, generator=1)
    assert torch.equal(before, torch.get_rng_state())
    assert set(a.state_dict()) == {"weights", "theta"}
    assert a.float()(torch.ones(2, 3)).dtype == torch.float32


def test_refused():
    model = RandomFeatures(3, 8)
    with pytest.raises(ShapeMismatch, match=r"\[n, 3\]"):
        model(torch.zeros(2, 8).double())
    with pytest.raises(InvalidType, match="convert"):
        model(torch.zeros(2, 3))
    with pytest.raises(InvalidInput, match="even"):
        RandomFeatures.fourier(3, 7)
    with pytest.raises(InvalidInput, match="lengthscale"):
        RandomFeatures.fourier(3, 8, lengthscale=0.0)
    with pytest.raises(InvalidInput, match="count must be a whole number >= 1, not 0"):
        RandomFeatures(3, 0)
    with pytest.raises(ShapeMismatch, match="weights"):
        RandomFeatures(3, 8, weights=torch.zeros(8, 2))
    with pytest.raises(ShapeMismatch, match="features"):
        RandomFeatures(3, 8, weights=torch.zeros(7, 3))(torch.zeros(1, 3))
