"""Convolutional networks that are written down compute what they should."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, UnsupportedModel
from torchtheory.equivariance.measure import measure_equivariance
from torchtheory.equivariance.universality import (
    circular_average,
    first_position,
    subsampled_network,
)


def network(size: int, outputs: int | None = None, bias: bool = True) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(size, 7, bias=bias), nn.Tanh(), nn.Linear(7, outputs or size, bias=bias)
        ).double()


def signals(n: int, size: int) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(n, 1, size, generator=draw, dtype=torch.float64)


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize("bias", [False, True])
def test_the_average_is_a_circular_network(size: int, bias: bool) -> None:
    net, x = network(size, bias=bias), signals(4, size)
    with torch.no_grad():
        shifted = [net(x[:, 0].roll(-k, 1)).roll(k, 1) for k in range(size)]
        torch.testing.assert_close(circular_average(net)(x)[:, 0], sum(shifted) / size)
    if size > 1:
        assert measure_equivariance(circular_average(net), "translations", x).exact


@pytest.mark.parametrize("size", [1, 2, 8, 16])
def test_subsampling_reaches_every_network(size: int) -> None:
    net, x = network(size, 3), signals(4, size)
    with torch.no_grad():
        torch.testing.assert_close(subsampled_network(net)(x)[..., 0], net(x[:, 0]))


def test_padding_tells_the_border_and_circular_convolutions_do_not() -> None:
    x = signals(3, 6)
    with torch.no_grad():
        kept = first_position(6)(x)
        torch.testing.assert_close(kept[..., 0], x[..., 0])
        assert float(kept[..., 1:].abs().max()) < 1e-12
        torch.testing.assert_close(first_position(6, padding_mode="circular")(x), x)


def test_other_networks_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="one hidden layer"):
        circular_average(nn.Linear(3, 3))
    with pytest.raises(InvalidInput, match="as many outputs as inputs"):
        circular_average(network(4, 3))
    with pytest.raises(InvalidInput, match="a power of 2, not 6"):
        subsampled_network(network(6))
    with pytest.raises(InvalidInput, match="size must be"):
        first_position(0)
