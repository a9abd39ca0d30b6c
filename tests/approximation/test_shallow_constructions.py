"""Broken lines, polynomial fits, Fourier and smoothed networks, identities, risks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate
from torch import nn

from torchtheory.approximation.certificates import measured_error, sup_distance
from torchtheory.approximation.piecewise.broken_lines import broken_line_network
from torchtheory.approximation.polynomials.fits import (
    best_polynomial,
    chebyshev_basis,
    equispaced_interpolant,
    weierstrass_degree,
)
from torchtheory.approximation.rates.risk_gaps import (
    RiskChain,
    linear_class_chain,
    loss_lipschitz,
    risk_gap_bound,
)
from torchtheory.approximation.universality.approximate_identity import (
    deepen_approximately,
    identity_network,
)
from torchtheory.approximation.universality.chart import which_universality
from torchtheory.approximation.universality.fourier_networks import (
    CosineSquasher,
    fourier_network,
    squashed_cosine,
)
from torchtheory.approximation.universality.mollified_activations import (
    mollified_activation,
    smooth_bump,
    smoothed_relu_power,
)
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    NonFinite,
    NotConverged,
    ShapeMismatch,
    UnknownName,
)
from torchtheory.expressivity.pieces import affine_pieces


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.integers(0, 10**6))
def test_broken_line_is_numpys_between_its_knots(count: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    knots = (0.05 + torch.rand(count, dtype=torch.float64, generator=generator)).cumsum(0)
    values = torch.randn(count, dtype=torch.float64, generator=generator)
    left, right = torch.randn(2, dtype=torch.float64, generator=generator).tolist()
    net = broken_line_network(knots, values, left, right)
    x = torch.linspace(float(knots[0]), float(knots[-1]), 50, dtype=torch.float64)
    np.testing.assert_allclose(
        net(x.unsqueeze(1))[:, 0].numpy(), np.interp(x, knots, values), atol=1e-11
    )
    for side, at, slope in ((-1.0, 0, left), (1.0, -1, right)):
        far = knots[at] + side * 3
        assert net(far.reshape(1, 1)).item() == pytest.approx(
            float(values[at]) + side * 3 * slope, abs=1e-10
        )
    assert affine_pieces(net, knots[:1] - 1, knots[-1:] + 1).count == count + 1


def test_broken_line_refuses() -> None:
    one = torch.ones(2)
    with pytest.raises(InvalidInput, match="jump"):
        broken_line_network(one, one, 0.0, 0.0)
    with pytest.raises(ShapeMismatch):
        broken_line_network(one, torch.ones(3), 0.0, 0.0)
    with pytest.raises(EmptyData):
        broken_line_network(torch.ones(0), torch.ones(0), 0.0, 0.0)
    with pytest.raises(NonFinite):
        broken_line_network(torch.ones(1), torch.ones(1), math.inf, 0.0)


def test_chebyshev_basis_is_numpys() -> None:
    t = torch.linspace(-1, 1, 41, dtype=torch.float64)
    wanted = np.polynomial.chebyshev.chebvander(t.numpy(), 7)
    np.testing.assert_allclose(chebyshev_basis(7, t).numpy(), wanted, atol=1e-13)


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_best_polynomial_of_the_next_power(degree: int) -> None:
    # Chebyshev: x^{m+1} stays at distance 2^{-m} on [-1, 1]
    made = best_polynomial(lambda x: x ** (degree + 1), degree, (-1.0, 1.0))
    assert made.floor == pytest.approx(2.0**-degree, rel=1e-3)
    assert made.bound == math.inf
    assert measured_error(lambda x: x ** (degree + 1), made).lower >= made.floor - 1e-9


def test_best_polynomial_finds_a_polynomial_on_any_interval() -> None:
    made = best_polynomial(lambda x: x**3 - x, 3, (2.0, 5.0))
    assert made.floor < 1e-8
    x = torch.linspace(2, 5, 20, dtype=torch.float64)
    torch.testing.assert_close(made(x), x**3 - x, atol=1e-6, rtol=0)


def test_weierstrass_degree_and_runge() -> None:
    assert weierstrass_degree(lambda x: x**3, 0.2, (-1.0, 1.0))[0] == 3
    assert weierstrass_degree(lambda x: x**3, 0.3, (-1.0, 1.0))[0] == 1
    with pytest.raises(NotConverged):
        weierstrass_degree(lambda x: torch.sin(40 * x), 0.01, most=3)
    through = equispaced_interpolant(lambda x: 1 / (1 + 25 * x**2), 20, (-1.0, 1.0))
    assert through(torch.tensor([0.97], dtype=torch.float64)).abs().item() > 10


@settings(max_examples=40, deadline=None)
@given(st.floats(-20, 20), st.floats(0.1, 20), st.floats(0, 1))
def test_squashers_are_a_cosine(low: float, length: float, share: float) -> None:
    bias, weight, constant = squashed_cosine(low, low + length)
    t = low + share * length
    value = constant + float(weight @ CosineSquasher()(t + bias))
    assert value == pytest.approx(math.cos(t), abs=1e-11)


def test_fourier_coefficients_are_numpys() -> None:
    made = fourier_network(lambda x: torch.exp(torch.sin(2 * math.pi * x)), 6, samples=256)
    t = (np.arange(256) + 0.5) / 256
    raw = np.fft.rfft(np.exp(np.sin(2 * math.pi * t))) / 128
    shift = raw[:7] * np.exp(-1j * math.pi * np.arange(7) / 256)
    np.testing.assert_allclose(made.cosines.numpy(), shift.real, atol=1e-12)
    np.testing.assert_allclose(made.sines[1:].numpy(), -shift.imag[1:], atol=1e-12)
    x = torch.linspace(0, 1, 200, dtype=torch.float64)
    torch.testing.assert_close(made(x), made.series(x), atol=1e-12, rtol=0)


def test_fourier_refuses() -> None:
    with pytest.raises(InvalidInput):
        fourier_network(torch.sin, 10, samples=20)
    with pytest.raises(InvalidInput):
        squashed_cosine(1.0, 0.0)


def test_mollified_is_the_integral() -> None:
    x = 0.2
    exact, _ = integrate.quad(
        lambda y: max(x - y, 0.0) * float(smooth_bump(torch.tensor(y).double(), 0.5)), -0.5, 0.5,
        points=[x],
    )  # fmt: skip
    made = mollified_activation("relu", 0.5, 1001)(torch.tensor([[x]], dtype=torch.float64))
    assert made.item() == pytest.approx(exact, abs=1e-6)


def test_bump_is_zero_outside() -> None:
    y = torch.tensor([-2.0, -0.5, 0.5, 3.0], dtype=torch.float64)
    assert smooth_bump(y, 0.5).tolist() == [0.0] * 4


@pytest.mark.parametrize("order", [2, 3])
def test_powers_by_relus(order: int) -> None:
    made = smoothed_relu_power(order, 1.0, 2000, 0.1)
    x = torch.linspace(-1, 1, 21, dtype=torch.float64).unsqueeze(1)
    assert (made(x) - x**order).abs().max() < 0.05
    with pytest.raises(InvalidInput):
        smoothed_relu_power(4, 1.0, 10, 0.1)


@pytest.mark.parametrize("name", ["tanh", "logistic", "softplus", "exp"])
def test_identity_keeps_its_promise(name: str) -> None:
    made = identity_network(name, 0.3, 2.0, 1e-5)
    assert made.bound <= 1e-5
    assert measured_error(lambda x: x, made).lower <= made.bound


def test_deepen_approximately() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    before = [p.clone() for p in net.parameters()]
    made = deepen_approximately(net, 4, "tanh", ((0.0, 1.0), (-1.0, 1.0)), 1e-4)
    x = torch.rand(200, 2, dtype=torch.float64)
    x[:, 1] = 2 * x[:, 1] - 1
    assert (made(x) - net(x)[:, 0]).abs().max() <= made.bound <= 1e-4
    assert made.size.depth == 6
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_identity_refuses() -> None:
    with pytest.raises(InvalidInput, match="rounding"):
        identity_network("tanh", 0.3, 1.0, 1e-16)
    two = nn.Sequential(nn.Linear(1, 2)).double()
    with pytest.raises(ShapeMismatch):
        deepen_approximately(two, 1, "tanh", (0.0, 1.0), 0.1)
    with pytest.raises(InvalidType, match="double"):
        deepen_approximately(nn.Sequential(nn.Linear(1, 1)), 1, "tanh", (0.0, 1.0), 0.1)


def test_chart() -> None:
    assert all(c.applies for c in which_universality(torch.sigmoid))
    assert not any(c.applies for c in which_universality(torch.square))
    (hornik,) = which_universality(torch.tanh, "Lp(mu)")
    assert hornik.failed == ("limits 0 and 1",)
    assert hornik.met == ("increasing",)
    with pytest.raises(UnknownName):
        which_universality(torch.tanh, "L3(K)")


@settings(max_examples=30, deadline=None)
@given(*[st.floats(0, 5) for _ in range(4)])
def test_chain_of_risks(best: float, in_class: float, on_sample: float, trained: float) -> None:
    chain = RiskChain(best, in_class, on_sample, trained)
    assert chain.total <= chain.bound + 1e-12


def test_linear_class_chain_against_sums() -> None:
    x = torch.linspace(0, 1, 9, dtype=torch.float64)
    features = torch.stack([torch.ones(9).double(), x], 1)
    where = torch.tensor([0, 3, 3, 8])
    labels = torch.tensor([0.0, 0.5, 0.7, 1.0], dtype=torch.float64)
    chain = linear_class_chain(features, x**2, 0.1, where, labels, 4000)
    slope, offset = np.polyfit(x[where].numpy(), labels.numpy(), 1)
    fitted = float(((slope * x + offset) - x**2).square().mean()) + 0.01
    line = np.polyval(np.polyfit(x.numpy(), (x**2).numpy(), 1), x.numpy())
    assert chain.on_sample == pytest.approx(fitted)
    assert chain.in_class == pytest.approx(float(np.mean((line - x.numpy() ** 2) ** 2)) + 0.01)
    assert chain.trained == pytest.approx(fitted, abs=1e-9)
    assert chain.best == pytest.approx(0.01)


def test_risk_gap() -> None:
    waves = 4096 * math.pi
    apart = sup_distance(
        lambda x: torch.sin(waves * x), torch.zeros_like, (0.0, 1.0), lipschitz=waves
    )
    # a law at one crest: the risks of sin and 0 differ by 1, whatever a grid met
    assert risk_gap_bound(apart, loss_lipschitz("hinge")) >= 1
    assert risk_gap_bound(apart, loss_lipschitz("squared", 1.0)) == 4 * apart.upper
    unknown = sup_distance(torch.square, torch.sqrt, (0.0, 1.0))
    assert risk_gap_bound(unknown, 1.0) == math.inf
    with pytest.raises(InvalidInput, match="bound="):
        loss_lipschitz("squared")
    with pytest.raises(InvalidInput):
        loss_lipschitz("cubic")  # type: ignore[arg-type]
    with pytest.raises(ShapeMismatch):
        linear_class_chain(torch.ones(3, 1), torch.ones(3), 0.0, torch.arange(2), torch.ones(3), 1)
    with pytest.raises(NonFinite):
        RiskChain(0.0, math.nan, 0.0, 0.0)
