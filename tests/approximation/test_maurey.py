"""Sampling terms of a mixture, and what no fixed basis can do."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.approximation.barron.fixed_basis import (
    fixed_basis_floor,
    fourier_basis_error,
    lattice_shells,
    network_beats_every_basis,
)
from torchtheory.approximation.barron.maurey import compress_network, maurey_average, maurey_error
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
    UnsupportedModel,
)


@given(st.integers(0, 10_000), st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_expected_error_is_the_mean_over_all_choices(seed: int, k: int) -> None:
    g = torch.Generator().manual_seed(seed)
    points = torch.randn(4, 3, generator=g, dtype=torch.float64)
    weights = torch.randn(4, generator=g, dtype=torch.float64)
    target, mass = weights @ points, weights.abs().sum()
    mean, best = 0.0, math.inf
    for choice in itertools.product(range(4), repeat=k):
        c = list(choice)
        chance = float((weights[c].abs() / mass).prod())
        average = (mass * weights[c].sign()[:, None] * points[c]).mean(0)
        square = float((average - target).square().sum())
        mean += chance * square
        best = min(best, square)
    error = maurey_error(points, weights, k)
    assert error.expected == pytest.approx(mean, rel=1e-9)
    assert best <= error.expected + 1e-12
    assert error.expected <= error.second_moment <= error.worst + 1e-12


def test_averages_have_the_mixture_as_mean() -> None:
    points = torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = torch.tensor([1.0, -2.0, 0.5, 0.0, 1.0, -0.5], dtype=torch.float64)
    found = maurey_average(points, weights, 5, 20_000, generator=1)
    away = (found.mean(0) - weights @ points).abs() / (found.std(0) / 20_000**0.5)
    assert away.max() < 5


def test_compressed_network_keeps_the_offset_and_the_given_model() -> None:
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Linear(2, 60), nn.Tanh(), nn.Linear(60, 1)).double()
    before = {k: v.clone() for k, v in wide.state_dict().items()}
    x = torch.randn(30, 2, dtype=torch.float64)
    errors = []
    for seed in range(60):
        slim = compress_network(wide, x, 15, generator=seed)
        assert slim.units <= 15
        errors.append(float((slim.model(x) - wide(x)).detach().square().mean()))
    mean = sum(errors) / len(errors)
    spread = float(torch.tensor(errors).std()) / len(errors) ** 0.5
    assert abs(mean - slim.error.expected) < 5 * spread
    assert torch.equal(slim.model[2].bias, wide[2].bias)  # type: ignore[arg-type]
    assert all(torch.equal(v, before[k]) for k, v in wide.state_dict().items())


def test_bad_input_is_refused() -> None:
    with pytest.raises(ShapeMismatch):
        maurey_error(torch.ones(3, 2), torch.ones(2), 1)
    with pytest.raises(InvalidInput):
        maurey_error(torch.ones(3, 2), torch.zeros(3), 1)
    with pytest.raises(NonFinite):
        maurey_error(torch.full((1, 1), math.inf), torch.ones(1), 1)
    with pytest.raises(InvalidInput):
        maurey_average(torch.ones(3, 2), torch.ones(3), 0)
    x = torch.ones(2, 2)
    for model in (
        nn.Linear(2, 1),
        nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(2, 3), nn.PReLU(), nn.Linear(3, 1)),
    ):
        with pytest.raises(UnsupportedModel):
            compress_network(model, x, 2)  # type: ignore[arg-type]
    with pytest.raises(ShapeMismatch):
        compress_network(
            nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)), torch.ones(2, 3), 2
        )


@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_shells_count_lattice_points(d: int) -> None:
    shells = dict(lattice_shells(d, 30 if d > 1 else 4))
    most = max(shells)
    side = range(-math.isqrt(most), math.isqrt(most) + 1)
    counts: dict[int, int] = {}
    for vector in itertools.product(side, repeat=d):
        q = sum(v * v for v in vector)
        if 0 < q <= most:
            counts[q] = counts.get(q, 0) + 1
    assert shells == counts


@given(st.integers(1, 30), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_no_space_is_below_the_floor(k: int, seed: int) -> None:
    norms = torch.cat(
        [torch.full((n,), 1 / q, dtype=torch.float64) for q, n in lattice_shells(2, 5 * k)]
    ) / (8 * math.pi**2)
    g = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(len(norms), k, generator=g, dtype=torch.float64)).Q
    worst = float((norms * (1 - basis.square().sum(1))).max())
    assert worst >= fixed_basis_floor(k, 2) - 1e-12
    assert fourier_basis_error(k, 2) >= fixed_basis_floor(k, 2)


def test_the_floor_is_met_in_many_dimensions() -> None:
    # the wave sin(2 pi x) / (2 pi) has Barron constant 1, its largest slope, and is orthogonal to
    # the span of cos(2 pi x); of 2d such waves no one function comes near more than one
    x = ((torch.arange(4000, dtype=torch.float64) + 0.5) / 4000 - 0.5).requires_grad_()
    wave = torch.sin(2 * math.pi * x) / (2 * math.pi)
    (slope,) = torch.autograd.grad(wave.sum(), x)
    assert float(slope.max()) == pytest.approx(1, abs=1e-5)
    distance = float(wave.detach().square().mean())
    for d in (10, 50, 200):
        assert (1 - 1 / d) * distance < fixed_basis_floor(1, d) < distance
        assert fourier_basis_error(1, d) == pytest.approx(distance)
        assert fixed_basis_floor(1, d, 3.0) == pytest.approx(9 * fixed_basis_floor(1, d))


def test_crossing_is_where_it_says() -> None:
    k = network_beats_every_basis(6)
    assert 6 / k < fixed_basis_floor(k, 6)
    assert 6 / (k // 2) >= fixed_basis_floor(k // 2, 6)
    with pytest.raises(InvalidInput):
        network_beats_every_basis(2)


def test_compression_takes_any_precision_and_refuses_the_rest() -> None:
    wide = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 1))
    for x in (torch.randn(5, 2), torch.randn(5, 2).double()):
        slim = compress_network(wide, x, 6, generator=0).model
        assert slim(x.float()).dtype == torch.float32
    for bad, error in (
        (torch.zeros(0, 2), EmptyData),
        (torch.ones(3, 2, dtype=torch.long), InvalidType),
        (torch.full((3, 2), math.nan), NonFinite),
        (torch.zeros(3, 3), ShapeMismatch),
    ):
        with pytest.raises(error):
            compress_network(wide, bad, 6)
    with pytest.raises(InvalidType, match="one precision"):
        maurey_error(torch.eye(3), torch.ones(3).double(), 2)
    with pytest.raises(InvalidType, match="one precision"):
        maurey_average(torch.eye(3).long(), torch.ones(3).long(), 2)


def test_the_floor_has_the_norms_of_the_waves() -> None:
    # k = 1 in one dimension: N = 2 waves of frequency 1, whose norm is found by a midpoint rule
    x = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000 - 0.5
    square = float((torch.cos(2 * torch.pi * x) / (2 * torch.pi)).square().mean())
    assert fixed_basis_floor(1, 1) == pytest.approx((1 - 1 / 2) * square)
    assert fixed_basis_floor(1, 1, 3.0) == pytest.approx(9 * (1 - 1 / 2) * square)
    assert fourier_basis_error(1, 1) == pytest.approx(square)
    assert fourier_basis_error(2, 1) == pytest.approx(square / 4)
