"""Short filters in a row, and shallow networks as deep convolutional ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.approximation.architectures.filter_factorization import (
    FullConvolution,
    convolve_filters,
    deep_convolutional_network,
    factor_filter,
    sobolev_depth_exponents,
)
from torchtheory.core.errors import InvalidInput, NonFinite, NotConverged, ShapeMismatch


def normal(*shape: int, seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=draw)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 50),
    st.integers(2, 6),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 10**6),
)
def test_factors_give_the_filter_back(
    degree: int, span: int, before: int, after: int, seed: int
) -> None:
    core = normal(degree + 1, seed=seed)
    long = torch.cat([torch.zeros(before).double(), core, torch.zeros(after).double()])
    short = factor_filter(long, span)
    assert all(len(w) == span + 1 for w in short)
    assert len(short) <= math.ceil((degree + before) / (span - 1))
    product = convolve_filters(short)[: len(long)]
    np.testing.assert_allclose(product, long[: len(product)], atol=1e-8 * float(long.abs().max()))
    expected = short[0].numpy()
    for w in short[1:]:
        expected = np.convolve(expected, w.numpy())
    np.testing.assert_allclose(convolve_filters(short), expected, rtol=1e-9, atol=1e-12)


def test_known_factors() -> None:
    (only,) = factor_filter(torch.tensor([2.0, -3.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(only, torch.tensor([2.0, -3.0, 1.0], dtype=torch.float64))
    assert factor_filter(torch.tensor([3.0]))[0].tolist() == pytest.approx([3.0, 0.0, 0.0])


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 8), st.integers(2, 5), st.integers(2, 4), st.integers(0, 10**6))
def test_deep_network_is_the_ridge_sum(m: int, d: int, span: int, seed: int) -> None:
    span = min(span, d)
    a, t, c = normal(m, d, seed=seed), normal(m, seed=seed + 1), normal(m, seed=seed + 2)
    made = deep_convolutional_network(a, t, c, offset=3.0, radius=2.0, span=span)
    x = 2 * (2 * torch.rand(50, d, dtype=torch.float64) - 1)
    expected = 3 + torch.relu(x @ a.T - t) @ c
    scale = float(c.abs().sum() * a.abs().sum(1).max())
    assert float((made.network(x)[:, 0] - expected).abs().max()) < 1e-7 * max(1.0, scale)
    widths = [
        len(layer.bias) for layer in made.network.children() if isinstance(layer, FullConvolution)
    ]
    assert made.widths == (d, *widths)
    assert made.depth == len(widths) <= max(1, math.ceil((m * d - 1) / (span - 1)))


def test_full_convolution_is_numpys() -> None:
    w, x = normal(4, seed=0), normal(3, 6, seed=1)
    made = FullConvolution(w, torch.zeros(9, dtype=torch.float64))(x).detach()
    np.testing.assert_allclose(made, [np.convolve(row, w) for row in x.numpy()], atol=1e-13)


def test_exponents() -> None:
    found = sobolev_depth_exponents(4, 3)
    assert (found.printed, found.theorem, found.least) == (1 / 3, 6 / 5, 3 / 8)
    for d in range(2, 30):
        found = sobolev_depth_exponents(d / 2 + 2.01, d)
        assert found.theorem > found.least


def test_refused() -> None:
    one = torch.ones(1)
    with pytest.raises(InvalidInput):
        factor_filter(torch.zeros(4))
    with pytest.raises(InvalidInput):
        factor_filter(torch.ones(4), 1)
    with pytest.raises(NonFinite):
        factor_filter(torch.tensor([1.0, torch.nan]))
    with pytest.raises(ShapeMismatch):
        factor_filter(torch.ones(2, 2))
    with pytest.raises(NotConverged):  # a root of multiplicity 40
        factor_filter(torch.tensor([math.comb(40, k) for k in range(41)]).double(), tolerance=1e-18)
    with pytest.raises(InvalidInput):
        convolve_filters([])
    with pytest.raises(ShapeMismatch):
        deep_convolutional_network(torch.ones(2, 3), one, one)
    with pytest.raises(InvalidInput):
        deep_convolutional_network(torch.zeros(1, 3), one, one)
    with pytest.raises(InvalidInput):
        deep_convolutional_network(torch.ones(1, 3), one, one, span=4)
    with pytest.raises(InvalidInput):
        sobolev_depth_exponents(3, 3)
    with pytest.raises(ShapeMismatch):
        FullConvolution(torch.ones(3), torch.ones(2))
