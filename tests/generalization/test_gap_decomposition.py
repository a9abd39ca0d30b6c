"""The gap taken apart: by hand, by enumerated paths, and for any sample."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch
from torchtheory.generalization.paths.gap_decomposition import decompose_gap
from torchtheory.kernels.paths.deep_paths import path_features
from torchtheory.nets.feedforward import mlp


def numbers(seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)


def networks(seed: int) -> list[tuple[nn.Module, tuple[int, ...]]]:
    torch.manual_seed(seed)
    conv = nn.Sequential(
        nn.Conv2d(1, 2, 2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(8, 2)
    )
    return [(mlp([3, 4, 3, 2], generator=seed), (3,)), (conv.double(), (1, 4, 4))]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 9), st.sampled_from([0, 1]))
def test_identity_and_bound(seed: int, m: int, n: int, kind: int) -> None:
    net, shape = networks(seed)[kind]
    randn = numbers(seed)
    train = (randn(m, *shape), randn(m, 2))
    population = (3 * randn(n, *shape) + 1, 2 * randn(n, 2))  # unrelated to the sample
    masses = randn(n).abs()
    masses /= masses.sum()
    found = decompose_gap(net, train, population, masses=masses)
    with torch.no_grad():
        own = (net(train[0]) - train[1]).square().sum(1).mean()
        all_of_it = masses @ (net(population[0]) - population[1]).square().sum(1)
    assert found.gap == pytest.approx(float(all_of_it - own), rel=1e-9, abs=1e-9)
    z, pz = (path_features(net, s[0]).features for s in (train, population))
    w = path_features(net, train[0]).weights
    matrix = pz.mT @ (masses[:, None] * pz) - z.mT @ z / m
    v = train[1].mT @ z / m - (masses[:, None] * population[1]).mT @ pz
    size = max(1.0, float(matrix.abs().max()))
    exact = {"rtol": 1e-8, "atol": 1e-9 * size}
    torch.testing.assert_close(found.label_norms, v.norm(dim=1), **exact)
    torch.testing.assert_close(found.path_norms, w.norm(dim=1), **exact)
    torch.testing.assert_close(found.linear, 2 * (v * w).sum(1), **exact)
    torch.testing.assert_close(found.quadratic, ((w @ matrix) * w).sum(1), **exact)
    spectral = (found.eigenvalues[:, None] * found.alignments).sum(0) * found.path_norms.square()
    torch.testing.assert_close(spectral, found.quadratic, **exact)
    listed = torch.linalg.eigvalsh(matrix)
    assert found.largest_eigenvalue == pytest.approx(float(listed[-1]), rel=1e-8, abs=1e-8 * size)
    assert found.gap - found.label_term == pytest.approx(
        float((found.linear + found.quadratic).sum()), rel=1e-8, abs=1e-8
    )
    assert found.gap <= found.bound + 1e-9 * size
    assert bool((found.cosines.abs() <= 1 + 1e-9).all())
    assert bool((found.alignments.sum(0) <= 1 + 1e-9).all())


def test_one_path_by_hand() -> None:
    net = nn.Sequential(nn.Linear(1, 1, bias=False)).double()
    net[0].weight.data.fill_(2.0)
    x = torch.tensor([[1.0], [-1.0]]).double()
    found = decompose_gap(net, (x, x.flatten()), (3 * x, torch.zeros(2)))
    # v = 1 - 0, w = 2, G = 9 - 1, c_y = 0 - 1
    assert found.label_term == -1
    assert found.linear.tolist() == [4.0]
    assert found.quadratic.tolist() == [32.0]
    assert found.gap == 35
    assert found.bound == pytest.approx(35)
    assert found.ratio == pytest.approx(1)
    assert found.cosines.tolist() == pytest.approx([1.0])
    assert found.largest_eigenvalue == pytest.approx(8)


def test_negative_eigenvalue_and_full_span() -> None:
    net = mlp([3, 2], bias=False, generator=0)
    x, y = numbers(0)(20, 3), numbers(1)(20, 2)
    found = decompose_gap(net, (2 * x, y), (x, y))
    assert found.largest_eigenvalue < 0
    torch.testing.assert_close(found.alignments.sum(0), torch.ones(2).double())
    assert found.gap <= found.bound


def test_equal_sets_have_no_gap_and_a_zero_network_the_labels() -> None:
    net, x, y = mlp([3, 4, 2], generator=0), numbers(0)(8, 3), numbers(1)(8, 2)
    same = decompose_gap(net, (x, y), (x, y))
    assert same.gap == pytest.approx(0, abs=1e-12)
    assert same.bound == pytest.approx(0, abs=1e-6)
    for p in net[2].parameters():
        p.data.zero_()
    empty = decompose_gap(net, (x, y), (x, 2 * y))
    assert empty.gap == pytest.approx(empty.label_term)
    assert empty.bound == pytest.approx(empty.label_term)
    assert empty.cosines.tolist() == [0.0, 0.0]


def test_single_precision_and_one_output() -> None:
    net = mlp([3, 4, 1], generator=0).float()
    x, y = torch.randn(6, 3), torch.randn(6)
    found = decompose_gap(net, (x, y), (2 * x, y))
    assert found.linear.dtype is torch.float64
    assert found.gap == pytest.approx(
        found.label_term + float((found.linear + found.quadratic).sum()), rel=1e-5
    )


@pytest.mark.parametrize(
    ("population", "masses", "error", "sentence"),
    [
        ((torch.ones(2, 4), torch.ones(2)), None, ShapeMismatch, "a sample"),
        ((torch.ones(2, 3), torch.ones(3)), None, ShapeMismatch, "y of the population must be"),
        ((torch.ones(2, 3), torch.ones(2, 2)), None, ShapeMismatch, "as the outputs are"),
        ((torch.ones(2, 3), torch.tensor([1.0, math.nan])), None, NonFinite, "y of the population"),
        ((torch.ones(2, 3), torch.ones(2)), torch.ones(2), InvalidInput, "sum to 1"),
        ((torch.ones(2, 3), torch.ones(2)), torch.ones(1), InvalidInput, "2 numbers"),
    ],
)
def test_refused(
    population: tuple[Tensor, Tensor],
    masses: Tensor | None,
    error: type[Exception],
    sentence: str,
) -> None:
    with pytest.raises(error, match=sentence):
        decompose_gap(mlp([3, 4, 1]), (torch.ones(1, 3), torch.ones(1)), population, masses=masses)
