"""Functions with known frequencies, their constants, and the networks drawn from them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, signal

from torchtheory.approximation.barron.constants import (
    gaussian_density,
    grid_barron_constant,
    monte_carlo_barron_constant,
    radial_barron_constant,
    root_dimension_bound,
)
from torchtheory.approximation.barron.fourier_pairs import FOURIER_PAIRS, convolve_on_grid
from torchtheory.approximation.barron.infinite_width import cosine_integral, step_integral
from torchtheory.approximation.barron.sampled_networks import (
    OpenStep,
    absolute_sine_integral,
    ball_points,
    barron_network,
    best_network,
    draw_steps,
    inverse_sine_integral,
    total_variation,
    units_for_error,
    wave_variation,
)
from torchtheory.approximation.barron.spectra import GaussianBump, PlaneWaves, RidgeSpectrum
from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch

angles = st.floats(-50, 50)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def two_waves():
    return PlaneWaves(tensor(1.0, -0.5), tensor([3.0, 0.0], [1.0, -2.0]), tensor(0.3, 1.1))


@given(angles)
@settings(deadline=None)
def test_absolute_sine_integral_is_scipy_s_and_has_its_inverse(y):
    value = float(absolute_sine_integral(tensor(y))[0])
    turns = math.floor(y / math.pi)
    rest, _ = integrate.quad(lambda t: abs(math.sin(t)), turns * math.pi, y)
    assert value == pytest.approx(2 * turns + rest, abs=1e-8)
    assert float(inverse_sine_integral(tensor(value))[0]) == pytest.approx(y, abs=1e-6)


@given(st.floats(0.01, 20), angles)
@settings(deadline=None)
def test_variation_of_a_wave_is_at_most_twice_its_reach(reach, phase):
    found = float(wave_variation(tensor(reach), tensor(phase))[0])
    assert -1e-9 <= found <= 2 * reach + 1e-9


def test_waves_by_hand():
    f = two_waves()
    x = tensor([0.2, -0.4])
    by_hand = math.cos(0.6 + 0.3) - 0.5 * math.cos(0.2 + 0.8 + 1.1)
    assert float(f(x)) == pytest.approx(by_hand, abs=1e-14)
    assert f.barron_constant == pytest.approx(3 + 0.5 * math.sqrt(5))
    assert f.mass == 1.5


@given(st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_sum_and_product_of_waves_are_those_of_the_functions(seed):
    g = torch.Generator().manual_seed(seed)
    a, b = (
        PlaneWaves(
            *(torch.randn(s, generator=g, dtype=torch.float64) for s in ((3,), (3, 2), (3,)))
        )
        for _ in range(2)
    )
    x = torch.randn(5, 2, generator=g, dtype=torch.float64)
    torch.testing.assert_close((a * b)(x), a(x) * b(x))
    torch.testing.assert_close((a + b)(x), a(x) + b(x))
    # |A + B| <= |A| + |B|: a product's constant
    most = a.barron_constant * b.mass + a.mass * b.barron_constant
    assert (a * b).barron_constant <= most * (1 + 1e-12)


@pytest.mark.parametrize("d", [1, 2, 3, 10])
def test_constant_of_a_gaussian_is_the_radial_integral(d):
    found = radial_barron_constant(
        lambda rho: math.exp(-(rho**2) / 2) / (2 * math.pi) ** (d / 2), d
    )
    assert GaussianBump(d).barron_constant == pytest.approx(found.value, rel=1e-7)
    assert found.value <= math.sqrt(d)
    assert GaussianBump(d, 0.5, height=-3.0).barron_constant == pytest.approx(6 * found.value)


def test_gaussian_density_of_the_exercise():
    f = gaussian_density(1, 1.0)
    assert f.at_origin() == pytest.approx(1 / math.sqrt(2 * math.pi))
    assert f.barron_constant / (2 * math.pi) == pytest.approx(1 / (2 * math.pi**2))
    assert root_dimension_bound(f) / (2 * math.pi) == pytest.approx(0.06349, abs=1e-5)


@pytest.mark.parametrize(
    "f",
    [
        two_waves(),
        GaussianBump(2, 0.7, center=[0.3, -0.1], height=-2.0),
        RidgeSpectrum(GaussianBump(1, 0.5), torch.tensor([1.0, 2.0], dtype=torch.float64)),
    ],
)
def test_draws_give_back_the_function(f):
    g = torch.Generator().manual_seed(3)
    x = ball_points(4, 2, generator=1)
    n = 40_000
    w, phase = f.draw_plain(n, g)
    plain = f.mass * torch.cos(x @ w.T + phase)
    assert ((plain.mean(1) - f(x)).abs() < 5 * plain.std(1) / n**0.5).all()
    w, phase = f.draw(n, g)
    tilted = f.barron_constant * torch.cos(x @ w.T + phase) / w.norm(dim=1)
    assert ((tilted.mean(1) - f(x)).abs() < 6 * tilted.std(1) / n**0.5).all()
    steps = draw_steps(f, n, 1.0, g)
    values = steps(x)
    assert ((values.mean(1) - f(x) + f.at_origin()).abs() < 5 * values.std(1) / n**0.5).all()
    assert steps.weights.abs().max() <= 2 * f.barron_constant * (1 + 1e-12)
    assert (steps.thresholds <= 1 + 1e-12).all()


def test_network_is_the_mean_of_its_steps():
    f = two_waves()
    net = barron_network(f, 30, 1.5, generator=4)
    steps = draw_steps(f, 30, 1.5, 4)
    x = ball_points(50, 2, 1.5, generator=0)
    torch.testing.assert_close(net.model(x)[:, 0].detach(), steps(x).mean(1) + f.at_origin())
    assert net.weight_sum == pytest.approx(total_variation(f, 1.5))
    assert net.guarantee == pytest.approx((3 * f.barron_constant) ** 2 / 30)
    assert units_for_error(net.guarantee, f.barron_constant, 1.5) == 30


def test_steep_sigmoids_become_steps():
    z = tensor(-0.1, 0.2)
    torch.testing.assert_close(OpenStep(1e4)(z), OpenStep()(z))
    with pytest.raises(InvalidInput):
        OpenStep(0.0)


def test_best_network_is_no_worse_than_the_mean_and_wants_the_ball():
    f = GaussianBump(2)
    x = ball_points(100, 2, generator=0)
    best, errors = best_network(f, 40, x, 6, generator=2)
    with torch.no_grad():
        again = float((best.model(x)[:, 0] - f(x)).square().mean())
    assert again == pytest.approx(min(errors))
    with pytest.raises(InvalidInput, match="outside"):
        best_network(f, 40, 3 * x, 6)
    wider, _ = best_network(f, 40, 3 * x, 6, radius=3.0)
    assert wider.guarantee == pytest.approx(9 * best.guarantee)


def test_infinite_width_representations():
    w = torch.linspace(-9, 9, 181, dtype=torch.float64)
    x = tensor(-0.9, 0.3, 0.7)

    def bell(v):
        return torch.exp(-v.square() / 2) / math.sqrt(2 * math.pi)

    def phase(v):
        return -0.2 * v

    wanted = torch.exp(-((x - 0.2) ** 2) / 2) - math.exp(-0.02)
    torch.testing.assert_close(cosine_integral(bell, phase, x, w), wanted)
    assert (step_integral(bell, phase, x, w, offsets=800) - wanted).abs().max() < 2e-3
    assert (step_integral(bell, phase, 3 * x, w, offsets=100) - wanted).abs().max() > 0.05
    with pytest.raises(ShapeMismatch):
        cosine_integral(bell, phase, x[:, None], w)


@pytest.mark.parametrize("pair", FOURIER_PAIRS, ids=lambda p: p.name)
def test_pairs_are_the_integral(pair):
    for xi in (0.0, 0.4, 1.3):
        half = 0.5 if pair.name == "box" else 1.0 if pair.name == "triangle" else math.inf

        def even(x):
            return float(pair.function(tensor(x))[0])

        if math.isinf(half):
            found, _ = (
                integrate.quad(even, 0, math.inf, weight="cos", wvar=2 * math.pi * xi)
                if (xi)
                else integrate.quad(even, 0, math.inf)
            )
        else:
            found, _ = integrate.quad(even, 0, half, weight="cos", wvar=2 * math.pi * xi)
        assert 2 * found == pytest.approx(float(pair.transform(tensor(xi))[0]), abs=1e-6)


def test_convolution_is_scipy_s():
    rng = np.random.default_rng(0)
    f, g = rng.normal(size=17), rng.normal(size=9)
    found = convolve_on_grid(torch.tensor(f), torch.tensor(g), 0.5)
    np.testing.assert_allclose(found.numpy(), 0.5 * signal.convolve(f, g), atol=1e-12)


def test_grid_constant_settles_or_grows():
    def on(function, h):
        x = torch.arange(-20, 20, h, dtype=torch.float64)
        return grid_barron_constant(function(x), -20.0, h)

    gauss = FOURIER_PAIRS[0]
    found = on(gauss.function, 0.0625)
    assert found.value == pytest.approx(gauss.barron_constant, rel=2e-3)
    assert found.error < 1e-9
    box = FOURIER_PAIRS[1]
    assert on(box.function, 1 / 64).error > 0.4 * on(box.function, 1 / 64).value


def test_plane_grid_constant():
    x = torch.arange(-20, 20, 0.25, dtype=torch.float64)
    values = torch.exp(-(x[:, None] ** 2 + x**2) / 2)
    assert grid_barron_constant(values, -20.0, 0.25).value == pytest.approx(1.253314, rel=2e-3)


def test_bad_input_is_refused():
    with pytest.raises(ShapeMismatch):
        PlaneWaves(torch.ones(2), torch.ones(3, 1))
    with pytest.raises(NonFinite):
        PlaneWaves(torch.tensor([math.nan]), torch.ones(1, 1))
    with pytest.raises(InvalidInput):
        PlaneWaves(torch.ones(1), torch.zeros(1, 2))
    with pytest.raises(ShapeMismatch):
        GaussianBump(2)(torch.ones(3, 3))
    with pytest.raises(ShapeMismatch):
        GaussianBump(2, center=[1.0])
    with pytest.raises(InvalidInput):
        GaussianBump(2, -1.0)
    with pytest.raises(ShapeMismatch):
        RidgeSpectrum(GaussianBump(2), torch.ones(2))
    with pytest.raises(InvalidInput):
        RidgeSpectrum(GaussianBump(1), torch.zeros(2))
    with pytest.raises(InvalidInput):
        barron_network(GaussianBump(1), 0)
    with pytest.raises(InvalidInput):
        draw_steps(GaussianBump(1), 5, radius=-1.0)
    with pytest.raises(NonFinite):
        grid_barron_constant(torch.full((16,), math.inf), 0.0, 1.0)
    with pytest.raises(InvalidInput):
        monte_carlo_barron_constant(torch.ones_like, lambda w: w[:, 0] * 0, torch.ones(4, 1))
    with pytest.raises(InvalidInput):
        radial_barron_constant(lambda r: 1.0, 1, cutoff=-1.0)
