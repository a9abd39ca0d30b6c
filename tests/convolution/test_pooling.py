"""Pooling as maps: maxima, averages, subsampling, and blocks of convolution and pooling."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchtheory.convolution.layer_matrices import layer_matrix
from torchtheory.convolution.layer_sizes import output_size
from torchtheory.convolution.pooling import (
    ConvolutionBlock,
    average_as_convolution,
    average_pool,
    max_pool,
    subsample,
)
from torchtheory.core.errors import TorchTheoryError
from torchtheory.equivariance.groups import cyclic_group, group_convolve, product_group


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(2, 9), size=st.integers(1, 4), stride=st.integers(1, 3), seed=st.integers(0, 99)
)
def test_maxima_by_definition(n: int, size: int, stride: int, seed: int) -> None:
    if size > n:
        return
    x = random(1, 1, n, n + 1, seed=seed)
    found = max_pool(x, size, stride)
    rows, columns = (output_size(k, size, stride) for k in (n, n + 1))
    assert found.values.shape == (1, 1, rows, columns)
    for i, j in itertools.product(range(rows), range(columns)):
        window = x[0, 0, stride * i : stride * i + size, stride * j : stride * j + size]
        assert float(found.values[0, 0, i, j]) == float(window.max())
        place = int(found.places[0, 0, i, j])
        assert float(x[0, 0].flatten()[place]) == float(window.max())


def test_maxima_are_monotone_and_lipschitz() -> None:
    x, y = random(20, 2, 7, 7), random(20, 2, 7, 7, seed=1)
    pooled = [max_pool(z, 3, 2).values for z in (x, y, torch.maximum(x, y))]
    assert bool((pooled[2] >= torch.maximum(pooled[0], pooled[1])).all())
    gap = (pooled[0] - pooled[1]).abs().flatten(1).amax(1)
    assert bool((gap <= (x - y).abs().flatten(1).amax(1)).all())


def test_gradients_go_to_the_maximum_or_to_all() -> None:
    x = torch.tensor([[1.0, 2, 5, 6], [3, 4, 7, 8], [9, 10, 13, 14], [11, 12, 15, 16]])
    x = x.double()[None, None].requires_grad_()
    pooled = max_pool(x, 2)
    assert pooled.values.tolist() == [[[[4, 8], [12, 16]]]]
    (slope,) = torch.autograd.grad(pooled.values.sum(), x)
    assert sorted(slope.flatten().nonzero().flatten().tolist()) == sorted(
        pooled.places.flatten().tolist()
    )
    assert average_pool(x, 2).tolist() == [[[[2.5, 6.5], [10.5, 14.5]]]]
    (slope,) = torch.autograd.grad(average_pool(x, 2).sum(), x)
    assert set(slope.flatten().tolist()) == {0.25}


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_averages_are_convolutions_that_are_subsampled(dims: int) -> None:
    x = random(2, 3, *(8, 9, 7)[:dims])
    for size, stride in ((2, 2), (3, 2), (2, 1), (1, 2)):
        layer = average_as_convolution(3, size, stride, dimensions=dims, dtype=torch.float64)
        torch.testing.assert_close(average_pool(x, size, stride), layer(x).detach())
        every = average_as_convolution(3, size, 1, dimensions=dims, dtype=torch.float64)
        torch.testing.assert_close(subsample(every(x).detach(), stride), layer(x).detach())


def test_a_block_is_a_convolution_on_a_group() -> None:
    d = 3
    kernel, x = random(2, 1, 3, 3), random(1, 1, 2 * d, 2 * d, seed=1)
    group = product_group(cyclic_group(2 * d), cyclic_group(2 * d))
    wide = torch.zeros(2, 2 * d, 2 * d, dtype=torch.float64)
    wide[:, :3, :3] = kernel[:, 0]
    exact = torch.stack([group_convolve(x.flatten(), w.flatten(), group) for w in wide])
    exact = exact.reshape(1, 2, 2 * d, 2 * d)
    torch.testing.assert_close(ConvolutionBlock(kernel)(x).detach(), exact)
    for pooling, pooled in (
        ("subsample", exact[:, :, ::2, ::2]),
        ("average", F.avg_pool2d(exact, 2)),
        ("max", F.max_pool2d(exact, 2)),
    ):
        block = ConvolutionBlock(kernel, pooling)  # type: ignore[arg-type]
        torch.testing.assert_close(block(x).detach(), pooled)
    bias = torch.tensor([1.0, -2.0]).double()
    block = ConvolutionBlock(kernel, "max", bias=bias, activation=torch.relu)
    with_bias = F.relu(F.max_pool2d(exact + bias[:, None, None], 2))
    torch.testing.assert_close(block(x).detach(), with_bias)


def test_channels_are_added() -> None:
    kernels, x = random(2, 3, 2, 2), random(1, 3, 4, 4, seed=1)
    parts = [ConvolutionBlock(kernels[:, c : c + 1])(x[:, c : c + 1]) for c in range(3)]
    torch.testing.assert_close(ConvolutionBlock(kernels)(x), torch.stack(parts).sum(0))


def test_a_block_is_rows_of_a_block_circulant_matrix() -> None:
    d, count = 4, 3
    kernel = random(count, 1, 3, 3)
    whole = ConvolutionBlock(kernel).strided_layer()
    strided = ConvolutionBlock(kernel, "subsample").strided_layer()
    shape = (1, 2 * d, 2 * d)
    all_rows = layer_matrix(whole, shape).to_dense().reshape(count, 2 * d, 2 * d, -1)
    rows = layer_matrix(strided, shape).to_dense()
    assert rows.shape == (count * d * d, 4 * d * d)
    torch.testing.assert_close(all_rows[:, ::2, ::2].reshape(rows.shape), rows)
    # a shift of the image by one place shifts the rows: block circulant
    torch.testing.assert_close(
        all_rows.roll(1, 2).flatten(0, 2),
        all_rows.reshape(-1, 2 * d, 2 * d).roll(-1, 2).reshape(count * 4 * d * d, -1),
    )
    assert set((rows != 0).sum(1).tolist()) == {9}
    x = random(1, *shape, seed=1)
    by_block = ConvolutionBlock(kernel, "subsample")(x).detach()
    torch.testing.assert_close(strided(x.roll((1, 1), (2, 3))).detach(), by_block)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: max_pool(random(1, 1, 3), 4), "do not fit"),
        (lambda: max_pool(random(3, 3), 2), "images must be"),
        (lambda: max_pool([1.0], 2), "images must be a tensor"),  # type: ignore[arg-type]
        (lambda: average_pool(random(1, 1, 3), 0), "size must be"),
        (lambda: subsample(random(1, 1, 3), 0), "stride must be"),
        (lambda: ConvolutionBlock(random(1, 1, 3), "mean"), "no pooling is named 'mean'"),  # type: ignore[arg-type]
        (lambda: ConvolutionBlock(random(1, 1, 3), "max")(random(1, 1, 7)), "multiples of 2"),
        (lambda: ConvolutionBlock(random(1, 1, 3))(random(1, 1, 7, 7)), "of 3 dimensions"),
        (lambda: ConvolutionBlock(random(1, 1, 3), "max").strided_layer(), "no convolution layer"),
        (lambda: ConvolutionBlock(random(1, 1, 2)).strided_layer(), "odd size"),
    ],
)
def test_refusals(call: Any, words: str) -> None:
    with pytest.raises(TorchTheoryError, match=words):
        call()
