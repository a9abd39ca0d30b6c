"""Shallow polynomials, sparse grids, and networks written as bits."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.approximation.certificates import network_size
from torchtheory.approximation.network_calculus import chain
from torchtheory.approximation.piecewise.shifted_sums import ShiftedSum
from torchtheory.approximation.piecewise.sparse_grids import (
    sparse_grid,
    sparse_grid_error,
    sparse_grid_network,
    sparse_grid_size,
    sparse_levels,
)
from torchtheory.approximation.polynomials.divided_differences import monomial_network
from torchtheory.approximation.polynomials.shallow import (
    exponential_span,
    kolmogorov_width,
    shallow_polynomial,
)
from torchtheory.approximation.rates.quantization import (
    WeightGrid,
    decode,
    encode,
    holder_error,
    holder_network,
    quantize,
)
from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch, UnsupportedModel
from torchtheory.nets.feedforward import mlp


def uniform(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def test_one_variable_is_the_monomial_network() -> None:
    c = torch.tensor([0.0, 0.0, 0.0, 1.0])
    x = torch.linspace(0, 1, 11, dtype=torch.float64)
    ours = shallow_polynomial(c, "logistic", 1.0, 0.05)
    assert torch.allclose(ours(x), monomial_network(3, "logistic", 1.0, 0.05)(x), atol=1e-9)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 3), st.integers(0, 10**6))
def test_polynomials_keep_their_promise(d: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    c = torch.randn(*[2] * d, dtype=torch.float64, generator=g)
    x = torch.rand(30, d, dtype=torch.float64, generator=g)
    made = shallow_polynomial(c, "exp", 0.0, 0.01)
    exact = torch.zeros(30).double()
    for alpha in itertools.product(range(2), repeat=d):
        exact += c[alpha] * (x ** torch.tensor(alpha)).prod(1)
    assert float((made(x) - exact).abs().max()) <= made.bound
    assert made.size.units == 2**d


def test_shallow_refused() -> None:
    with pytest.raises(InvalidInput, match="choose another bias"):
        shallow_polynomial(torch.tensor([0.0, 0.0, 1.0]), "logistic", 0.0, 0.1)
    with pytest.raises(ShapeMismatch):
        shallow_polynomial(torch.zeros(2, 3), "exp", 0.0, 0.1)
    with pytest.raises(NonFinite):
        shallow_polynomial(torch.tensor([math.nan]), "exp", 0.0, 0.1)
    with pytest.raises(InvalidInput, match="lower the degree"):
        shallow_polynomial(torch.zeros(30, 30, 30), "exp", 0.0, 0.1)
    with pytest.raises(InvalidInput, match="panels"):
        exponential_span(torch.sin, 300, 1)


def test_span_distance_against_least_squares() -> None:
    """Few units: the plain normal equations on a fine grid find the same distance."""
    x = (np.arange(20000) + 0.5) / 20000
    units = np.exp(np.outer(x, np.arange(4)))
    y = np.abs(x - 0.5)
    left = y - units @ np.linalg.lstsq(units, y, rcond=None)[0]
    ours = exponential_span(lambda x: (x - 0.5).abs(), 3, 1)
    assert ours.mean_square == pytest.approx(np.sqrt((left**2).mean()), rel=1e-4)
    assert exponential_span(lambda x: torch.exp(x[:, 0] + 2 * x[:, 1]), 2, 2).mean_square < 1e-12


def test_widths_by_hand() -> None:
    # in the plane the squares of the norms are 0, 1, 1, 2, 4, 4, 5, 5, 8, 9, ...
    squares = [0, 1, 1, 2, 4, 4, 5, 5, 8, 9]
    for n in range(8):
        exact = (1 + math.pi**2 * squares[n + 1]) ** -0.5
        assert kolmogorov_width(n, 2) == pytest.approx(exact)
    every = sorted(sum(i * i for i in k) for k in itertools.product(range(7), repeat=4))
    for n in (0, 3, 4, 5, 40, 300):
        assert kolmogorov_width(n, 4) == pytest.approx((1 + math.pi**2 * every[n + 1]) ** -0.5)
    # in eight dimensions 1 + 8 + 28 + 56 frequencies have squared norms 0 to 3, and 78 have 4
    for n, square in ((91, 3), (92, 4), (100, 4), (169, 4), (170, 5)):
        assert kolmogorov_width(n, 8) == pytest.approx((1 + math.pi**2 * square) ** -0.5)
    assert kolmogorov_width(10**6, 1) == pytest.approx(1 / (math.pi * (10**6 + 1)))
    with pytest.raises(InvalidInput, match="too many to count"):
        kolmogorov_width(10**15, 2)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 10**6))
def test_sparse_grid_interpolates(d: int, level: int, seed: int) -> None:
    a = torch.rand(d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.5

    def f(x: torch.Tensor) -> torch.Tensor:
        x = x.reshape(len(x), -1)
        return (x * (1 - x) * torch.exp(a * x)).prod(1)

    grid = sparse_grid(f, level, d)
    at = torch.cat(grid.points)
    assert torch.allclose(grid(at), f(at), atol=1e-12)
    assert grid.count == sparse_grid_size(level, d) == len({tuple(p) for p in at.tolist()})
    assert all(sum(v) <= level + d - 1 for v in sparse_levels(level, d))


def test_one_dimension_is_the_broken_line() -> None:
    grid = sparse_grid(lambda x: torch.sin(math.pi * x), 4, 1)
    x = uniform(50, 1)
    knots = np.linspace(0, 1, 17)
    exact = np.interp(x[:, 0].numpy(), knots, np.sin(np.pi * knots))
    assert np.allclose(grid(x).numpy(), exact, atol=1e-12)
    # x(1 - x): h^2 / 4 with h = 2^-m, against 2 * sum 4^-s / 2
    assert sparse_grid_error(4, 1, 2.0) >= 4.0**-4 / 4


def test_sparse_network() -> None:
    made = sparse_grid_network(lambda x: (x * (1 - x)).prod(1), 3, 2, 4, mixed=4.0)
    network = made.network
    assert isinstance(network, ShiftedSum)
    x = uniform(200, 2)
    dense = network.as_sequential()
    assert torch.allclose(dense(x)[:, 0], made(x), atol=1e-12)
    assert network_size(dense) == made.size
    gap = float((made(x) - (x * (1 - x)).prod(1)).abs().max())
    assert gap <= made.bound
    with pytest.raises(InvalidInput, match="lower the level"):
        sparse_grid(lambda x: x[:, 0], 20, 4)
    with pytest.raises(InvalidInput, match="vanishes"):
        sparse_grid_network(lambda x: 0 * x[:, 0], 2, 2, 3)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.integers(0, 10**6))
def test_bits_there_and_back(widths: list[int], seed: int) -> None:
    grid = WeightGrid(0.1, 2)
    net = mlp(widths, generator=seed)
    rounded = quantize(net, grid)
    for before, after in zip(net.parameters(), rounded.parameters(), strict=True):
        assert float((before.detach() - after).abs().max()) <= grid.spacing / 2
    text = encode(rounded, grid)
    back = decode(text, grid)
    for a, b in zip(rounded.parameters(), back.parameters(), strict=True):
        assert torch.equal(a, b)
    assert set(text) <= {"0", "1"}


def test_bits_refused() -> None:
    grid = WeightGrid(0.25, 1)
    net = mlp([2, 3, 1], generator=0)
    with pytest.raises(InvalidInput, match="quantize"):
        encode(net, grid)
    with pytest.raises(InvalidInput, match="beyond the grid"):
        quantize(chain([(torch.full((1, 1), 9.0), torch.zeros(1))], []), grid)
    with pytest.raises(UnsupportedModel):
        encode(mlp([1, 1, 1], "tanh", generator=0), grid)
    text = encode(quantize(net, grid), grid)
    for bad in ("", "2", text[:-1], text + "0", "1" * 200):
        with pytest.raises(InvalidInput):
            decode(bad, grid)
    with pytest.raises(InvalidInput):
        WeightGrid(1.5, 2)


@pytest.mark.parametrize(("d", "order"), [(1, 0), (1, 1), (2, 0), (2, 1)])
def test_holder_network(d: int, order: int) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x = x.reshape(len(x), -1)
        return torch.cos(x.sum(1) / 2)

    depths = set()
    for e in (0.5, 0.1):
        made = holder_network(f, order, 1.0, d, e)
        x = uniform(300, d) - 0.5
        gap = float((made(x) - f(x)).abs().max())
        assert gap <= made.bound == holder_error(order, 1.0, d, made.cells) <= e
        depths.add(made.size.depth)
    assert len(depths) == 1
    with pytest.raises(InvalidInput, match="linear finite elements"):
        holder_network(f, 2, 1.0, d, 0.1)
