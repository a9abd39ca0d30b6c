"""Networks in neural tangent parametrization."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from torchtheory.core.errors import InvalidInput, InvalidType, UnknownName
from torchtheory.kernels.infinite.parametrization import (
    ScaledConv2d,
    ScaledLinear,
    ntk_convolutional,
    ntk_mlp,
)


def scales(net: nn.Module) -> list[float]:
    kinds = ScaledLinear | ScaledConv2d
    return [round(m.scale, 9) for m in net.modules() if isinstance(m, kinds)]


def test_scales_of_the_three_conventions() -> None:
    widths = [4, 9, 25, 1]
    root = math.sqrt(2)
    for scaling, divisors in (
        ("fan_in", [2, 3, 5]),
        ("unscaled_input", [1, 3, 5]),
        ("fan_out", [3, 5, 1]),
    ):
        net = ntk_mlp(widths, scaling=scaling)  # type: ignore[arg-type]
        assert scales(net) == pytest.approx([root / d for d in divisors])


def test_forward_pass_is_the_formula() -> None:
    net = ntk_mlp([3, 5, 2], "tanh", weight_variance=1.5, bias_variance=0.3, dtype=torch.float64)
    first, last = net[0], net[2]
    assert isinstance(first, ScaledLinear)
    assert isinstance(last, ScaledLinear)
    assert first.bias is not None
    assert last.bias is not None
    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    hidden = torch.tanh(math.sqrt(1.5 / 3) * x @ first.weight.T + math.sqrt(0.3) * first.bias)
    wanted = math.sqrt(1.5 / 5) * hidden @ last.weight.T + math.sqrt(0.3) * last.bias
    assert torch.allclose(net(x), wanted)


def test_parameters_are_standard_normal_and_seeded() -> None:
    net = ntk_mlp([100, 200, 50], bias_variance=1.0, generator=5)
    numbers = torch.cat([p.detach().flatten() for p in net.parameters()])
    assert abs(float(numbers.mean())) < 5 / math.sqrt(len(numbers))
    assert abs(float(numbers.var()) - 1) < 5 * math.sqrt(2 / len(numbers))
    again = ntk_mlp([100, 200, 50], bias_variance=1.0, generator=5)
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), again.parameters(), strict=True))
    assert sum(p.numel() for p in ntk_mlp([3, 4, 1]).parameters()) == 16


def test_convolution_is_torch_s_own() -> None:
    x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    for padding in ("zeros", "circular"):
        ours = ScaledConv2d(3, 4, 3, scale=0.5, bias_scale=0.1, padding=padding)  # type: ignore[arg-type]
        theirs = nn.Conv2d(3, 4, 3, padding=1, padding_mode=padding)
        assert ours.bias is not None
        assert theirs.bias is not None
        with torch.no_grad():
            theirs.weight.copy_(0.5 * ours.weight)
            theirs.bias.copy_(0.1 * ours.bias)
        assert torch.allclose(ours(x), theirs(x), atol=1e-5)


def test_convolutional_network() -> None:
    x = torch.ones(2, 3, 4, 4)
    for readout, fan in (("mean", 8), ("flatten", 8 * 16)):
        net = ntk_convolutional([3, 4, 8], 5, (4, 4), readout=readout)  # type: ignore[arg-type]
        assert net(x).shape == (2, 5)
        assert scales(net) == pytest.approx([math.sqrt(2 / f) for f in (27, 36, fan)])


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidInput):
        ntk_mlp([3])
    with pytest.raises(InvalidInput):
        ntk_mlp([3, 0, 1])
    with pytest.raises(UnknownName):
        ntk_mlp([3, 1], scaling="fan")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        ntk_mlp([3, 1], weight_variance=-1.0)
    with pytest.raises(InvalidType):
        ntk_mlp([3, 1], weight_variance="2")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        ScaledConv2d(1, 1, 2, scale=1.0)
    with pytest.raises(UnknownName):
        ScaledConv2d(1, 1, 3, scale=1.0, padding="same")  # type: ignore[arg-type]
    with pytest.raises(UnknownName):
        ntk_convolutional([1, 2], 1, (3, 3), readout="max")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        ntk_convolutional([1], 1, (3, 3))
