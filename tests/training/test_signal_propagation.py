"""Gaussian moments, the mean-field recursion, and what a model really does."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import nn

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    NonFinite,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.nets.activations.moments import second_moment, squared_slope
from torchtheory.nets.activations.table import activation
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.primer.gaussian_means import gaussian_mean
from torchtheory.training.initialization import draw_weight, initialize
from torchtheory.training.signal_propagation import (
    measure_signal,
    predict_signal,
    predict_signal_of,
)


@given(st.floats(1e-8, 1e8))
@settings(max_examples=40, deadline=None)
def test_closed_forms(q: float) -> None:
    v = torch.tensor(q, dtype=torch.float64)
    assert float(second_moment("relu", v)) == pytest.approx(q / 2, rel=1e-12)
    assert float(second_moment("linear", v)) == pytest.approx(q, rel=1e-12)
    assert float(squared_slope("relu", v)) == pytest.approx(0.5, rel=1e-12)
    slope = activation("leaky relu").parameters["slope"]
    assert float(second_moment("leaky relu", v)) == pytest.approx((1 + slope**2) / 2 * q, rel=1e-12)
    assert float(gaussian_mean(torch.abs, v)) == pytest.approx(np.sqrt(2 * q / np.pi), rel=1e-12)


def test_the_arcsine_law_of_the_error_function() -> None:
    q = torch.logspace(-3, 3, 13, dtype=torch.float64)
    exact = 2 / torch.pi * torch.asin(2 * q / (1 + 2 * q))
    assert torch.allclose(second_moment(torch.erf, q), exact, rtol=1e-12)
    exact_slope = 4 / torch.pi / (1 + 4 * q).sqrt()
    assert torch.allclose(squared_slope(torch.erf, q), exact_slope, rtol=1e-11)


@pytest.mark.parametrize("name", ["tanh", "softplus", "elu", "logistic"])
@pytest.mark.parametrize("q", [0.1, 2.0, 50.0])
def test_against_scipy(name: str, q: float) -> None:
    row = activation(name)

    def integrand(z: float) -> float:
        value = float(row(torch.tensor(np.sqrt(q) * z, dtype=torch.float64)))
        return value**2 * stats.norm.pdf(z)

    exact = sum(
        integrate.quad(integrand, a, b, limit=200, epsabs=1e-12)[0] for a, b in ((-12, 0), (0, 12))
    )
    assert float(second_moment(name, torch.tensor(q).double())) == pytest.approx(exact, rel=1e-6)


def test_gauss_hermite_is_worse_at_a_kink() -> None:
    z, w = np.polynomial.hermite_e.hermegauss(200)
    hermite = (np.maximum(z, 0) @ w) / np.sqrt(2 * np.pi)
    exact = 1 / np.sqrt(2 * np.pi)
    ours = float(gaussian_mean(torch.relu, torch.tensor(1.0).double()))
    assert abs(hermite - exact) > 1e-6
    assert abs(ours - exact) < 1e-13


def test_slope_by_autograd_is_the_tables() -> None:
    q = torch.tensor([0.3, 4.0], dtype=torch.float64)
    assert torch.allclose(squared_slope("tanh", q), squared_slope(nn.Tanh(), q))
    assert torch.allclose(second_moment(nn.PReLU().double(), q), q * (1 + 0.25**2) / 2)


@given(st.floats(0.1, 3.0), st.floats(0.1, 3.0), st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_linear_networks_multiply_their_gains(a: float, b: float, depth: int) -> None:
    gains = torch.full((depth,), a, dtype=torch.float64)
    back = torch.full((depth,), b, dtype=torch.float64)
    signal = predict_signal(gains, back, "linear", input_moment=2.0, output_gradient=3.0)
    powers = torch.arange(depth, dtype=torch.float64)
    assert torch.allclose(signal.forward, 2 * a ** (powers + 1))
    assert torch.allclose(signal.backward, 3 * b ** powers.flip(0))
    assert signal.depth == depth


def test_batches_of_networks_are_each_by_itself() -> None:
    gains = torch.rand(3, 2, 5, dtype=torch.float64) + 0.5
    both = predict_signal(gains, gains, "tanh", bias_variance=0.1)
    one = predict_signal(gains[2, 1], gains[2, 1], "tanh", bias_variance=0.1)
    assert torch.allclose(both.forward[2, 1], one.forward)
    assert torch.allclose(both.backward[2, 1], one.backward)


def test_orthogonal_networks_are_measured_as_isometries() -> None:
    net = mlp([16] * 30, "linear", bias=False)
    initialize(net, "orthogonal")
    x = torch.randn(7, 16, dtype=torch.float64)
    signal = measure_signal(net, x)
    assert torch.allclose(signal.forward, x.square().mean().expand(29))
    assert torch.allclose(signal.backward, torch.ones(29).double())


def test_measured_gradients_are_those_of_autograd_by_hand() -> None:
    net = nn.Sequential(
        dense(torch.eye(2)), nn.ReLU(inplace=True), dense(torch.tensor([[2.0, 0.0]]))
    )
    signal = measure_signal(net, torch.tensor([[1.0, -3.0]]))
    assert signal.forward.tolist() == pytest.approx([5.0, 4.0])
    assert signal.backward.tolist() == pytest.approx([2.0, 1.0])  # (±2, 0), mean square 2
    assert signal.names == ("0", "2")


def test_the_model_is_left_as_it_was() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    net.append(nn.Linear(4 * 16, 2))
    state = {k: v.clone() for k, v in net.state_dict().items()}
    signal = measure_signal(net, torch.randn(3, 1, 6, 6))
    assert signal.names == ("0", "4")
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    assert net.training
    assert all(p.grad is None for p in net.parameters())
    assert not any(m._forward_hooks for m in net.modules())


def test_prediction_of_a_wide_network() -> None:
    net = mlp([20, 400, 300, 400, 10], "tanh", generator=1)
    initialize(net, "he", activation="tanh", generator=2)
    x = torch.randn(200, 20, generator=torch.Generator().manual_seed(3)).double()
    measured, predicted = measure_signal(net, x), predict_signal_of(net, x)
    assert torch.allclose(measured.forward, predicted.forward, rtol=0.15)
    # a gradient into 10 outputs fluctuates by 1/sqrt(10) even in wide layers
    assert torch.allclose(measured.backward, predicted.backward, rtol=0.5)
    assert predicted.names == measured.names


def _with_equal_biases(net: nn.Module, bias: float) -> nn.Module:
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            nn.init.constant_(layer.bias, bias)
    return net


@pytest.mark.parametrize(
    "activation", [nn.ReLU(), nn.Tanh(), nn.GELU(), nn.ELU(), nn.LeakyReLU(0.2), nn.Hardtanh()]
)
def test_a_chain_is_the_recursion(activation: nn.Module) -> None:
    net = nn.Sequential(
        nn.Linear(5, 7), activation, nn.Linear(7, 6), activation, nn.Linear(6, 3)
    ).double()
    _with_equal_biases(net, 0.3)
    x = torch.randn(1, 5, dtype=torch.float64)
    squares = [m.weight.detach().square().sum() for m in net if isinstance(m, nn.Linear)]
    by_recursion = predict_signal(
        torch.stack([s / n for s, n in zip(squares, (7, 6, 3), strict=True)]),
        torch.stack([s / n for s, n in zip(squares, (5, 7, 6), strict=True)]),
        activation,
        input_moment=x.square().mean(),
        bias_variance=0.09,
    )
    found = predict_signal_of(net, x)
    torch.testing.assert_close(found.forward, by_recursion.forward, rtol=1e-13, atol=0)
    torch.testing.assert_close(found.backward, by_recursion.backward, rtol=1e-13, atol=0)
    assert (found.names, found.entries, found.correlations) == (("0", "2", "4"), (7, 6, 3), None)


def test_blocks_of_samples_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(15, 4))
    x = torch.randn(6, 2, 6, dtype=torch.float64)
    whole = predict_signal_of(net, x)
    monkeypatch.setattr("torchtheory.training.signal_propagation._AT_ONCE", 300)
    parts = predict_signal_of(net, x)
    torch.testing.assert_close(parts.forward, whole.forward)
    torch.testing.assert_close(parts.backward, whole.backward)
    assert whole.entries == (15, 4)


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, width), nn.Linear(width, 160)
        self.inner = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.outer = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        for inner, outer in zip(self.inner, self.outer, strict=True):
            h = h + 1.5 * outer(torch.tanh(inner(torch.relu(h))))
        return self.last(torch.relu(h))


class _Images(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, stride=2)
        self.short, self.last = nn.Conv2d(width, width, 1, 2), nn.Linear(width, 160)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.first(x))
        h = self.second(h) + self.short(h)[..., :2, :2]
        return self.last(torch.tanh(h).mean((2, 3)))


class _Joined(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, width), nn.Linear(width, 2 * width)
        self.norm = nn.LayerNorm(width)
        self.c, self.last = nn.Linear(3 * width, width), nn.Linear(width, 160)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.norm(self.a(x)))
        h = torch.cat([h, torch.sigmoid(self.b(h))], 1)
        return self.last(nn.functional.gelu(self.c(h)))


_WIDTH, _COPIES = 256, 40


@pytest.mark.parametrize(
    ("make", "shape"), [(_Residual, (6,)), (_Images, (2, 5, 5)), (_Joined, (6,))]
)
def test_branched_networks_are_as_predicted(make: type[nn.Module], shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(4)
    # samples of different lengths, each of which has moments of its own
    x = torch.randn(4, *shape, generator=generator, dtype=torch.float64)
    x *= torch.tensor([0.3, 1.0, 2.0, 3.0]).reshape(-1, *[1] * len(shape))
    torch.manual_seed(5)
    ratios, turned = [], []
    for _ in range(_COPIES):
        net = make(_WIDTH).double()
        measured, predicted = measure_signal(net, x, generator=generator), predict_signal_of(net, x)
        assert measured.names == predicted.names
        assert measured.entries == predicted.entries
        assert measured.correlations is not None
        assert predicted.correlations is not None
        ratios.append(
            torch.stack(
                [measured.forward / predicted.forward, measured.backward / predicted.backward]
            )
        )
        turned.append(measured.correlations - predicted.correlations)
    for found, center in ((torch.stack(ratios), 1.0), (torch.stack(turned), 0.0)):
        spread = found.std(0) / _COPIES**0.5
        room = 5 * spread + 6 / _WIDTH  # what the width leaves
        off = found.mean(0) - center
        assert bool((off.abs() <= room).all())
        # a fifth more or less of anything would be seen
        assert bool((room < 0.2).all())


def test_every_sample_has_its_own_moments() -> None:
    torch.manual_seed(0)
    x = torch.tensor([[0.1], [10.0]], dtype=torch.float64) * torch.ones(2, 20).double()
    gains = torch.full((3,), 1 / 3, dtype=torch.float64)  # torch's rule, in square layers
    together = predict_signal(
        gains, gains, "tanh", input_moment=x.square().mean(), bias_variance=0.0
    )
    found = []
    for _ in range(40):
        net = mlp([20, 300, 300, 300], "tanh", bias=False)
        for layer in net:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
        ratio = measure_signal(net, x).forward / predict_signal_of(net, x).forward
        found.append(float(ratio[-1]))
    assert np.mean(found) == pytest.approx(1, abs=5 * np.std(found) / 40**0.5 + 6 / 300)
    own = float(predict_signal_of(net, x).forward[-1])
    assert float(together.forward[-1]) > 1.5 * own  # the moments of a mean sample are others


def test_he_and_xavier_under_relu() -> None:
    generator = torch.Generator().manual_seed(0)
    ratios = {"he": [], "xavier": []}
    for scheme, found in ratios.items():
        for _ in range(200):
            a = torch.randn(64, 1, generator=generator, dtype=torch.float64).clamp(min=0)
            z = draw_weight((64, 64), scheme, generator=generator) @ a
            found.append(float(z.clamp(min=0).square().sum() / a.square().sum()))
    assert np.mean(ratios["he"]) == pytest.approx(1, abs=0.1)
    assert np.mean(ratios["xavier"]) == pytest.approx(0.5, abs=0.05)


def test_bad_input_is_refused() -> None:
    one = torch.ones(3, dtype=torch.float64)
    with pytest.raises(ShapeMismatch):
        predict_signal(one, torch.ones(4).double(), "relu")
    with pytest.raises(EmptyData):
        predict_signal(one[:0], one[:0], "relu")
    with pytest.raises(InvalidInput, match="gain"):
        predict_signal(-one, one, "relu")
    with pytest.raises(InvalidInput, match="variance"):
        gaussian_mean(torch.relu, torch.tensor([-1.0]))
    with pytest.raises(InvalidInput, match="tensor"):
        gaussian_mean(torch.relu, torch.tensor([1]))
    net = nn.Sequential(nn.Linear(2, 2), nn.Softmax(1), nn.Linear(2, 2))
    with pytest.raises(UnsupportedModel, match="Softmax"):
        predict_signal_of(net, torch.ones(1, 2))
    with pytest.raises(UnsupportedModel, match="no layer"):
        predict_signal_of(nn.ReLU(), torch.ones(1, 2))
    with pytest.raises(UnsupportedModel, match="used 2 times"):
        predict_signal_of(nn.Sequential(net[0], nn.ReLU(), net[0]), torch.ones(1, 2))
    with pytest.raises(UnsupportedModel, match="2500 places"):
        predict_signal_of(nn.Conv2d(1, 2, 1), torch.ones(1, 1, 50, 50))
    with pytest.raises(EmptyData):
        predict_signal_of(net, torch.ones(0, 2))
    with pytest.raises(NonFinite):
        predict_signal_of(net, torch.full((1, 2), torch.nan))
    with pytest.raises(UnsupportedModel, match="no layer"):
        measure_signal(nn.ReLU(), torch.ones(1, 2))
    with pytest.raises(NonFinite):
        measure_signal(net, torch.full((1, 2), torch.nan))
    with pytest.raises(EmptyData):
        measure_signal(net, torch.ones(0, 2))
    with pytest.raises(ShapeMismatch):
        measure_signal(net, torch.ones(2))
    huge = nn.Sequential(dense(torch.full((2, 2), 1e30)), dense(torch.full((2, 2), 1e30)))
    with pytest.raises(NonFinite, match="overflow"):
        measure_signal(huge, torch.ones(1, 2))
