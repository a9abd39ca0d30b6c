"""Networks made deeper on a box."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.approximation.universality.identity_layers import deepen_on_box
from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnsupportedModel
from torchtheory.nets.feedforward import affine_layers, mlp


def gap(a: nn.Module, b: nn.Module, x: Tensor) -> float:
    return float((a(x) - b(x)).abs().max().detach())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.sampled_from(["relu", "tanh", "softplus"]))
def test_relu_layers_are_exact_on_the_box(seed: int, layers: int, name: str) -> None:
    net = mlp([2, 5, 3], name, generator=seed)
    box = [(-1.0, 2.0), (0.0, 0.5)]
    made = deepen_on_box(net, layers, box)
    ends = torch.tensor(box, dtype=torch.float64)
    draws = torch.rand(200, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = torch.cat([ends[:, 0] + draws * (ends[:, 1] - ends[:, 0]), torch.cartesian_prod(*ends)])
    assert gap(made.network, net, x) <= made.bound < 1e-12
    assert len(affine_layers(made.network)[0]) == 2 + layers
    assert max(len(w) for w, _ in affine_layers(made.network)[0][1:]) == 3


@pytest.mark.parametrize("central", [True, False])
@pytest.mark.parametrize("name", ["tanh", "logistic"])
def test_smooth_layers_stay_within_their_bound(name: str, central: bool) -> None:
    net = mlp([1, 3, 2], "tanh", generator=0)
    x = torch.linspace(-2, 2, 101).double().unsqueeze(1)
    for step in (0.3, 0.01):
        made = deepen_on_box(net, 3, (-2, 2), activation=name, step=step, bias=0.3, central=central)
        assert 0 < gap(made.network, net, x) <= made.bound
    units = 2 if central else 1
    assert affine_layers(made.network)[0][2][0].shape == (2 * units, 2 * units)


def test_the_bound_is_met() -> None:
    net = nn.Sequential(nn.Linear(2, 1)).double()
    made = deepen_on_box(net, 1, [(-1, 1), (-1, 1)], activation="tanh", step=0.01, bias=0.3,
                         central=False)  # fmt: skip
    side = torch.linspace(-1, 1, 41).double()
    assert made.bound / 1.2 < gap(made.network, net, torch.cartesian_prod(side, side)) <= made.bound


def test_the_network_given_stays_as_it_was() -> None:
    net = mlp([1, 2, 1], "tanh", generator=0)
    before = [p.detach().clone() for p in net.parameters()]
    deepen_on_box(net, 2, (0, 1))
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_refused() -> None:
    net = mlp([2, 3, 1], "relu")
    with pytest.raises(ShapeMismatch):
        deepen_on_box(net, 1, (0, 1))
    with pytest.raises(InvalidInput):
        deepen_on_box(net, 0, [(0, 1), (0, 1)])
    with pytest.raises(UnsupportedModel):
        deepen_on_box(mlp([1, 3, 1], nn.GELU), 1, (0, 1))
    with pytest.raises(UnsupportedModel):
        deepen_on_box(net.float(), 1, [(0, 1), (0, 1)], activation="tanh")


@pytest.mark.parametrize("layer", [nn.LeakyReLU(-1.0), nn.ELU(-1.0)])
def test_activations_that_fall_for_their_parameter_are_refused(layer: nn.Module) -> None:
    net = nn.Sequential(nn.Linear(1, 1), layer, nn.Linear(1, 1)).double()
    with pytest.raises(UnsupportedModel, match="increasing"):
        deepen_on_box(net, 1, (-1, 1))


@pytest.mark.parametrize("beta", [1.0, -1.0])
def test_the_step_of_softplus_at_its_threshold_is_in_the_range(beta: float) -> None:
    net = nn.Sequential(nn.Linear(1, 1), nn.Softplus(beta, 0.0), nn.Linear(1, 1)).double()
    for p, value in zip(net.parameters(), (1.0, 0.0, 1.0, 0.0), strict=True):
        p.data.fill_(value)
    made = deepen_on_box(net, 2, (-0.5, 0.5))
    x = torch.linspace(-0.5, 0.5, 101).double().unsqueeze(1)
    assert gap(made.network, net, x) <= made.bound < 1e-12
