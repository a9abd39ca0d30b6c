"""Dense and convolutional networks that compute the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.approximation.architectures.convolutional_equivalence import (
    as_convolutional,
    as_fully_connected,
    nonzero_parameters,
)
from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnsupportedModel
from torchtheory.nets.feedforward import mlp


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.integers(1, 2),
    st.integers(0, 10**6),
)
def test_convolutional_network_is_the_dense_one(sizes: list[int], channels: int, seed: int) -> None:
    inputs = channels * int(torch.tensor(sizes).prod())
    net = mlp([inputs, 5, 4, 2], "tanh", generator=seed)
    made = as_convolutional(net, sizes, channels=channels)
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(3, channels, *sizes, dtype=torch.float64, generator=draw)
    out = made(x)
    assert out.shape == (3, 2, *sizes)
    axes = tuple(range(2, 2 + len(sizes)))
    for place in torch.cartesian_prod(*[torch.arange(n) for n in sizes]).reshape(-1, len(sizes)):
        by = [-int(p) for p in place]
        expected = net(torch.roll(x, by, axes).flatten(1))
        found = out[(slice(None), slice(None), *place.tolist())]
        torch.testing.assert_close(found, expected.detach())
    assert nonzero_parameters(made) == nonzero_parameters(net)
    back = as_fully_connected(made, sizes, place=[0] * len(sizes))
    torch.testing.assert_close(back(x.flatten(1)), out.flatten(2)[..., 0])


def test_any_convolutional_network_becomes_dense() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=(1, 0), groups=2),
        nn.ReLU(),
        nn.Conv2d(4, 3, 2, bias=False, padding=1),
    ).double()
    x = torch.randn(5, 2, 7, 6, dtype=torch.float64)
    made = as_fully_connected(net, (7, 6))
    torch.testing.assert_close(made(x.flatten(1)), net(x).flatten(1).detach())
    at = as_fully_connected(net, (7, 6), place=(2, 1))
    torch.testing.assert_close(at(x.flatten(1)), net(x)[:, :, 2, 1].detach())
    places = 5 * 3
    for dense, filters in zip(nonzero_parameters(made), nonzero_parameters(net), strict=True):
        assert dense <= places * filters


def test_refused() -> None:
    net = mlp([6, 3, 1])
    with pytest.raises(ShapeMismatch):
        as_convolutional(net, [5])
    with pytest.raises(InvalidInput):
        as_convolutional(net, [])
    with pytest.raises(UnsupportedModel):
        as_convolutional(nn.Sequential(nn.Conv1d(1, 1, 1)), [6])
    with pytest.raises(UnsupportedModel):
        as_fully_connected(net, [6])
    with pytest.raises(InvalidInput):
        as_fully_connected(as_convolutional(net, [6]), [6], place=[6])
