"""Betti numbers: boundary matrices, hand-made sets, networks whose regions are known."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from torch import nn

from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.expressivity.folding import sawtooth_network
from torchtheory.expressivity.pieces import affine_pieces
from torchtheory.expressivity.topology import (
    betti_numbers,
    decision_betti_numbers,
    euler_characteristic,
    most_intervals,
    region_betti_numbers,
)
from torchtheory.nets.feedforward import mlp

SQUARE = ((-1.0, 1.0), (-1.0, 1.0))


def rank(rows: list[int]) -> int:
    """The rank over the field of two elements of rows given as bits."""
    found: dict[int, int] = {}
    for row in rows:
        while row and row.bit_length() in found:
            row ^= found[row.bit_length()]
        if row:
            found[row.bit_length()] = row
    return len(found)


def by_boundaries(cells: np.ndarray) -> tuple[int, ...]:
    """Homology from the boundary matrices of all faces: a face has an odd coordinate along every
    axis in which it is extended."""
    faces: set[tuple[int, ...]] = set()
    for cell in zip(*np.nonzero(cells), strict=True):
        center = [2 * int(c) + 1 for c in cell]
        faces |= set(product(*[(c - 1, c, c + 1) for c in center]))
    d = cells.ndim
    by_dimension = [sorted(f for f in faces if sum(c % 2 for c in f) == k) for k in range(d + 1)]
    index = [{f: i for i, f in enumerate(level)} for level in by_dimension]
    ranks = [0]
    for k in range(1, d + 1):
        rows = []
        for face in by_dimension[k]:
            bits = 0
            for axis, c in enumerate(face):
                if c % 2:
                    for end in (c - 1, c + 1):
                        bits ^= 1 << index[k - 1][(*face[:axis], end, *face[axis + 1 :])]
            rows.append(bits)
        ranks.append(rank(rows))
    ranks.append(0)
    return tuple(len(by_dimension[k]) - ranks[k] - ranks[k + 1] for k in range(d))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([(9,), (5, 6), (3, 4, 4)]), st.floats(0.2, 0.8))
def test_boundary_matrices_agree(seed: int, shape: tuple[int, ...], share: float) -> None:
    cells = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share
    found = betti_numbers(cells)
    assert found.numbers == by_boundaries(cells.numpy())
    assert found.euler == sum((-1) ** k * b for k, b in enumerate(found.numbers))
    assert found.cells == int(cells.sum())
    assert found.total == sum(found.numbers)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.2, 0.8))
def test_labeling_agrees_in_the_plane(seed: int, share: float) -> None:
    cells = torch.rand(20, 30, generator=torch.Generator().manual_seed(seed)) < share
    b0, b1 = betti_numbers(cells).numbers
    assert b0 == ndimage.label(cells.numpy(), np.ones((3, 3)))[1]
    assert b0 - b1 == euler_characteristic(cells.numpy())


def test_by_hand() -> None:
    assert betti_numbers(torch.tensor([True, False, True, True])).numbers == (2,)
    assert betti_numbers(torch.zeros(3, 3).bool()).numbers == (0, 0)
    hollow = torch.ones(3, 3, 3).bool()
    hollow[1, 1, 1] = False
    assert betti_numbers(hollow).numbers == (1, 0, 1)
    hollow[1, 1, 0] = False  # a well: the cavity opens
    assert betti_numbers(hollow).numbers == (1, 0, 0)
    hollow[1, 1, 2] = False  # and a tunnel
    assert betti_numbers(hollow).numbers == (1, 1, 0)
    assert [most_intervals(n) for n in range(7)] == [1, 1, 2, 3, 3, 4, 4]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9))
def test_one_hidden_layer_has_few_intervals(seed: int, width: int) -> None:
    source = torch.Generator().manual_seed(seed)
    net = mlp([1, width, 1], "relu", generator=source).requires_grad_(False)
    for p in net.parameters():
        p.copy_(torch.randn(p.shape, generator=source, dtype=torch.float64))
    pieces = affine_pieces(net, -8.0, 8.0)
    ends = torch.cat([torch.zeros(1).double(), pieces.crossings(), torch.ones(1).double()])
    middles = (ends[:-1] + ends[1:]) / 2
    assert int((pieces(middles)[:, 0] >= 0).sum()) <= most_intervals(width)


@pytest.mark.parametrize("layers", [1, 3, 5])
def test_sawtooth_intervals(layers: int) -> None:
    net = sawtooth_network(layers)
    found = region_betti_numbers(net, ((0.0, 1.0),), 16 * 2**layers, level=0.5)
    assert found.numbers == (2 ** (layers - 1),)


def test_classifier_is_left_alone() -> None:
    net = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    regions = decision_betti_numbers(net, SQUARE, 24)
    assert sum(r.cells for r in regions) == 24 * 24
    assert net.training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    again = region_betti_numbers(nn.Sequential(net, nn.Linear(3, 1)), SQUARE, 24)  # in float32
    assert again.cells <= 24 * 24
    assert net.training
    one = nn.Linear(2, 1)
    nn.init.zeros_(one.weight)
    nn.init.ones_(one.bias)
    assert [r.numbers for r in decision_betti_numbers(one, SQUARE, 5)] == [(0, 0), (1, 0)]


def test_refused() -> None:
    with pytest.raises(InvalidType, match="boolean"):
        betti_numbers(torch.zeros(3, 3))
    with pytest.raises(ShapeMismatch):
        betti_numbers(torch.zeros(2, 2, 2, 2).bool())
    with pytest.raises(InvalidInput):
        region_betti_numbers(lambda x: x[:, 0], ((1.0, 0.0),), 4)
    with pytest.raises(InvalidInput):
        region_betti_numbers(lambda x: x[:, 0], ((0.0, 1.0),), 0)
    with pytest.raises(ShapeMismatch):
        region_betti_numbers(lambda x: torch.cat([x, x], 1), SQUARE, 4)
    with pytest.raises(InvalidInput, match="pair of ends"):
        region_betti_numbers(lambda x: x[:, 0], (0.0, 1.0), 4)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="more than"):
        region_betti_numbers(lambda x: x[:, 0], (*SQUARE, (0.0, 1.0)), 2000)
    with pytest.raises(ShapeMismatch, match="2 features"):
        decision_betti_numbers(nn.Linear(3, 2), SQUARE, 4)
    with pytest.raises(NonFinite):
        region_betti_numbers(lambda x: x[:, 0] / 0, ((0.0, 1.0),), 4)
    with pytest.raises(InvalidType):
        decision_betti_numbers(lambda x: x, SQUARE, 4)  # type: ignore[arg-type]
