"""Singular values of noise, and those that noise does not explain."""

from __future__ import annotations

import pytest
import torch

from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.generalization.noise_bulk import noise_bulk, tracy_widom_edge


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_quantiles_of_tracy_and_widom() -> None:
    # the edge is mu + q s; tables of the law for beta = 1 have q at these levels
    n, p = 401, 100
    mu, s = (20 + 10) ** 2, (20 + 10) * (1 / 20 + 1 / 10) ** (1 / 3)
    for level, quantile in ((0.95, 0.9793), (0.99, 2.0234), (0.995, 2.4224)):
        assert (tracy_widom_edge(n, p, level) - mu) / s == pytest.approx(quantile, abs=0.02)
    assert tracy_widom_edge(p, n, 0.95) == tracy_widom_edge(n, p, 0.95)


@pytest.mark.parametrize("shape", [(300, 300), (64, 300), (300, 64), (100, 40)])
@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_noise_is_all_bulk(shape: tuple[int, int], kind: str) -> None:
    beyond = 0
    for seed in range(10):
        W = normal(seed, *shape)
        if kind == "uniform":
            W = torch.rand(*shape, generator=torch.Generator().manual_seed(seed)).double() - 0.5
        found = noise_bulk(torch.linalg.svdvals(0.02 * W), *shape)
        beyond += found.outliers
        assert found.deviation == pytest.approx(0.02 * float(W.std()), rel=0.06)
        assert found.distance < 0.1
    assert beyond <= 1  # at 99.9 %, two of ten have probability 4.5e-5


def test_what_was_added_is_counted() -> None:
    for seed in range(5):
        W = normal(seed, 200, 120)
        left, _ = torch.linalg.qr(normal(100 + seed, 200, 7))
        right, _ = torch.linalg.qr(normal(200 + seed, 120, 7))
        # each three times as large as the largest value of noise
        W = W + 75 * left @ right.T
        found = noise_bulk(torch.linalg.svdvals(W), 200, 120)
        assert found.outliers == 7
        assert found.deviation == pytest.approx(1.0, rel=0.06)


def test_a_heavy_spectrum_is_no_bulk() -> None:
    values = torch.arange(1, 201).double() ** -1.0
    found = noise_bulk(values, 200, 200)
    assert found.outliers > 5
    assert found.distance > 0.1


def test_refusals() -> None:
    with pytest.raises(ShapeMismatch, match="has 3 singular values, not 2"):
        noise_bulk(torch.ones(2), 3, 5)
    with pytest.raises(InvalidInput, match="a matrix of zeros"):
        noise_bulk(torch.zeros(3), 3, 5)
