"""Convolutions as matrices, and how far layers are from commuting with shifts."""

from __future__ import annotations

import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.approximation.architectures.shift_structure import (
    convolution_matrix,
    equivariance_gaps,
)
from torchtheory.core.errors import EmptyData, NonFinite, ShapeMismatch, UnsupportedModel


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 2),
    st.sampled_from(["zeros", "circular", "reflect", "replicate"]),
    st.integers(0, 10**6),
)
def test_matrix_is_the_layer(
    space: int, groups: int, size: int, stride: int, dilation: int, mode: str, seed: int
) -> None:
    torch.manual_seed(seed)
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[space - 1]
    layer = kind(
        2 * groups, 3 * groups, size, stride, padding=1, dilation=dilation, groups=groups,
        bias=False, padding_mode=mode, dtype=torch.float64,
    )  # fmt: skip
    shape = (2 * groups, *(5, 4, 6)[:space])
    x = torch.randn(3, *shape, dtype=torch.float64)
    found = (convolution_matrix(layer, shape) @ x.flatten(1).T).T
    torch.testing.assert_close(found, layer(x).flatten(1), atol=1e-12, rtol=1e-12)


def test_periodic_filter_is_scipys_circulant() -> None:
    layer = nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular", bias=False, dtype=torch.float64)
    left, middle, right = layer.weight.detach().flatten().tolist()
    expected = scipy.linalg.circulant([middle, left, 0.0, 0.0, 0.0, right])
    made = convolution_matrix(layer, (1, 6))
    assert made.to_dense().tolist() == expected.tolist()
    assert made._nnz() == 18


def test_same_padding_of_an_even_filter() -> None:
    layer = nn.Conv1d(1, 1, 4, padding="same", padding_mode="circular", bias=False).double()
    x = torch.randn(1, 1, 7, dtype=torch.float64)
    found = convolution_matrix(layer, (1, 7)) @ x[0, 0]
    torch.testing.assert_close(found, layer(x)[0, 0].detach())


def test_matrix_refuses() -> None:
    with pytest.raises(UnsupportedModel):
        convolution_matrix(nn.Linear(2, 2), (2,))
    with pytest.raises(ShapeMismatch):
        convolution_matrix(nn.Conv1d(2, 1, 3), (1, 5))
    with pytest.raises(ShapeMismatch):
        convolution_matrix(nn.Conv1d(1, 1, 6), (1, 5))


def test_gap_by_hand() -> None:
    subsample = nn.Conv1d(1, 1, 1, stride=2, bias=False).double()
    nn.init.ones_(subsample.weight)
    x = torch.tensor([[[1.0, 2.0, 4.0, 8.0]]], dtype=torch.float64)
    # every second entry: (1, 4), and (8, 2) after a shift by one; nearest grid shift: (4, 1)
    assert equivariance_gaps(subsample, x, [1]) == {"(model)": pytest.approx((17 / 17) ** 0.5)}
    assert equivariance_gaps(subsample, x, [2]) == {"(model)": 0.0}


def test_layers_that_commute_and_layers_that_do_not() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ).double()
    x = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    odd = equivariance_gaps(net, x, [1, 3])
    assert odd["0"] < 1e-14
    assert odd["1"] < 1e-14
    assert odd["2"] > 0.05
    assert odd["4"] > 1e-4
    assert max(equivariance_gaps(net, x, [2, 4]).values()) < 1e-14
    assert net.training


def test_gap_refuses() -> None:
    layer = nn.Conv1d(1, 1, 1)
    with pytest.raises(ShapeMismatch):
        equivariance_gaps(layer, torch.ones(1, 1, 4), [1, 1])
    with pytest.raises(EmptyData):
        equivariance_gaps(layer, torch.ones(0, 1, 4), [1])
    with pytest.raises(NonFinite):
        equivariance_gaps(layer, torch.full((1, 1, 4), torch.nan), [1])
