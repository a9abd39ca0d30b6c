"""Residual networks and differential equations."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnsupportedModel
from torchtheory.nets.residual.euler import ode_from_resnet, resnet_from_ode
from torchtheory.nets.residual.layers import Residual, residual_network


def test_linear_equation_by_hand() -> None:
    net = resnet_from_ode(lambda t, x: -2 * x, 1.0, 10)
    assert net(torch.ones(1).double()).item() == pytest.approx(0.8**10)


def test_time_is_that_before_the_step() -> None:
    net = resnet_from_ode(lambda t, x: t * torch.ones_like(x), 1.0, 4)
    # 1/4 (0 + 1/4 + 1/2 + 3/4)
    assert net(torch.zeros(1).double()).item() == pytest.approx(0.375)


def test_error_halves_with_twice_the_layers() -> None:
    exact = math.exp(-1.0)
    errors = [
        abs(resnet_from_ode(lambda t, x: -x, 1.0, n)(torch.ones(1).double()).item() - exact)
        for n in (200, 400)
    ]
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.01)


def test_a_module_as_field_is_trained() -> None:
    class Turn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, t: Tensor, x: Tensor) -> Tensor:
            return torch.tanh(self.layer(x))

    net = resnet_from_ode(Turn(), 1.0, 3)
    assert len(list(net.parameters())) == 2  # shared by the blocks


def test_there_and_back() -> None:
    net = residual_network(3, 5, "tanh", generator=0)
    x = torch.linspace(-1, 1, 6).double().reshape(2, 3)
    again = resnet_from_ode(ode_from_resnet(net), 5.0, 5)
    torch.testing.assert_close(again(x), net(x))


def test_between_whole_times() -> None:
    net = nn.Sequential(*(Residual(nn.Linear(1, 1)) for _ in range(2))).double()
    for block, value in zip(net, (1.0, 3.0), strict=True):
        nn.init.zeros_(block.body.weight)
        nn.init.constant_(block.body.bias, value)
    x = torch.zeros(1, 1).double()
    for interpolate, wanted in ((False, 1.0), (True, 1.5)):
        field = ode_from_resnet(net, interpolate=interpolate)
        assert field(torch.tensor(0.25), x).item() == pytest.approx(wanted)
    assert ode_from_resnet(net, interpolate=True)(torch.tensor(7.5), x).item() == 3.0


def test_refused() -> None:
    x = torch.ones(1, 2)
    with pytest.raises(InvalidInput):
        resnet_from_ode(lambda t, x: x, 1.0, 0)
    with pytest.raises(InvalidInput):
        resnet_from_ode(lambda t, x: x, -1.0, 3)
    with pytest.raises(ShapeMismatch):
        resnet_from_ode(lambda t, x: x[:, :1], 1.0, 2)(x)
    with pytest.raises(UnsupportedModel):
        ode_from_resnet(nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(ShapeMismatch):
        ode_from_resnet(nn.Sequential(nn.Linear(2, 1)))(torch.tensor(0.0), x)
    with pytest.raises(InvalidInput):
        ode_from_resnet(nn.Sequential(nn.Identity()))(torch.tensor(-1.0), x)
