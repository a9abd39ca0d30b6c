"""Residual and densely connected layers, maxout."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.nets.activations.table import ACTIVATIONS
from torchtheory.nets.feedforward import dense
from torchtheory.nets.maxout import Maxout, piecewise_linear_as_maxouts
from torchtheory.nets.residual.layers import (
    DenselyConnected,
    Residual,
    ResidualLayer,
    residual_network,
)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_residual_layer_at_zero_is_the_identity_exactly(name: str) -> None:
    layer = ResidualLayer(4, nonlinearity=name)
    for p in layer.parameters():
        nn.init.zeros_(p)
    x = randn(6, 4)
    assert torch.equal(layer(x), x)


def test_residual_layer_by_hand() -> None:
    layer = ResidualLayer(1, nonlinearity="logistic")
    layer.inner = dense(torch.tensor([[2.0]]).double(), torch.tensor([1.0]).double())
    x = torch.tensor([[0.5]]).double()
    wanted = 0.5 + torch.sigmoid(torch.tensor(2.0).double()) - 0.5
    torch.testing.assert_close(layer(x).squeeze(), wanted)


def test_projection() -> None:
    layer = ResidualLayer(3, 5, "softplus")
    nn.init.zeros_(layer.inner.weight)
    nn.init.zeros_(layer.inner.bias)
    x = randn(4, 3)
    torch.testing.assert_close(layer(x), x @ layer.projection.weight.T)
    assert ResidualLayer(3).projection is None


def test_residual_network_is_its_layers() -> None:
    net = residual_network(3, 5, "tanh")
    x = randn(2, 3)
    value = x
    for layer in net:
        value = value + torch.tanh(layer.inner(value))
    torch.testing.assert_close(net(x), value)
    with pytest.raises(InvalidInput):
        residual_network(3, 0)


@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 4), growths=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_densely_connected(n: int, growths: list[int]) -> None:
    net = DenselyConnected(n, growths, "tanh", generator=1)
    count = sum(p.numel() for p in net.parameters())
    assert count == DenselyConnected.parameter_count(n, growths)
    x = randn(5, n)
    plain, value = net.without_shortcuts(), x
    for i, m in enumerate((n, *growths[:-1])):
        layer = net.layers[i]
        value = value @ layer.weight[:, :m].T + layer.bias
        if i < len(growths) - 1:
            value = torch.tanh(value)
    torch.testing.assert_close(plain(x), value)
    seen, value = x, x
    for i, layer in enumerate(net.layers):
        value = layer(seen)
        if i < len(growths) - 1:
            value = torch.tanh(value)
            seen = torch.cat([value, seen], 1)
    torch.testing.assert_close(net(x), value)


def test_densely_connected_refuses() -> None:
    with pytest.raises(InvalidInput):
        DenselyConnected(2, [])
    with pytest.raises(ShapeMismatch):
        DenselyConnected(2, [1])(torch.zeros(1, 3).double())


def test_maxout_special_cases() -> None:
    x = torch.linspace(-2, 2, 9, dtype=torch.float64).unsqueeze(1)
    unit = Maxout(1, 1)
    for weights, wanted in (
        ([0.0, 1.0], torch.relu(x)),
        ([1.0, -1.0], x.abs()),
        ([0.1, 1.0], nn.functional.leaky_relu(x, 0.1)),
    ):
        unit.set_pieces(torch.tensor(weights).double().reshape(1, 2, 1), torch.zeros(1, 2))
        torch.testing.assert_close(unit(x), wanted, rtol=0, atol=1e-8)
    with pytest.raises(ShapeMismatch):
        unit.set_pieces(torch.zeros(1, 3, 1), torch.zeros(1, 3))
    with pytest.raises(InvalidInput):
        Maxout(1, 1, 0)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), pieces=st.integers(1, 6))
def test_maxout_is_convex(seed: int, pieces: int) -> None:
    unit = Maxout(3, 4, pieces, generator=seed)
    x, y = randn(10, 3, seed=seed), randn(10, 3, seed=seed + 1)
    middle = unit((x + y) / 2)
    assert (middle <= (unit(x) + unit(y)) / 2 + 1e-12).all()


@settings(max_examples=30, deadline=None)
@given(
    gaps=st.lists(st.floats(0.1, 3), min_size=1, max_size=8),
    data=st.data(),
    ends=st.tuples(st.floats(-3, 3), st.floats(-3, 3)),
)
def test_difference_of_maxouts_is_any_piecewise_linear_function(gaps, data, ends) -> None:
    knots = np.cumsum(gaps)
    values = np.array([data.draw(st.floats(-3, 3)) for _ in gaps])
    up, down = piecewise_linear_as_maxouts(torch.tensor(knots), torch.tensor(values), *ends)
    x = np.linspace(-2, knots[-1] + 2, 101)
    wanted = np.interp(x, knots, values)
    wanted = np.where(x < knots[0], values[0] + ends[0] * (x - knots[0]), wanted)
    wanted = np.where(x > knots[-1], values[-1] + ends[1] * (x - knots[-1]), wanted)
    column = torch.tensor(x).unsqueeze(1)
    got = (up(column) - down(column)).squeeze(1).detach().numpy()
    np.testing.assert_allclose(got, wanted, atol=1e-9)


def test_piecewise_linear_refuses() -> None:
    with pytest.raises(InvalidInput, match="increase"):
        piecewise_linear_as_maxouts(torch.tensor([1.0, 1.0]), torch.zeros(2), 0, 0)
    with pytest.raises(ShapeMismatch):
        piecewise_linear_as_maxouts(torch.tensor([1.0]), torch.zeros(2), 0, 0)


def test_residual_around_any_module() -> None:
    x = randn(5, 3)
    body = nn.Sequential(dense(randn(3, 3, seed=1)), nn.Tanh())
    torch.testing.assert_close(Residual(body)(x), x + body(x))
    v = randn(2, 3, seed=2)
    tall = nn.Sequential(dense(randn(2, 3, seed=3)), nn.Tanh())
    fixed = Residual(tall, v)
    torch.testing.assert_close(fixed(x), x @ v.T + tall(x))
    assert not any(p.requires_grad for p in fixed.shortcut.parameters())
    learned = Residual(tall, dense(v))
    torch.testing.assert_close(learned(x), fixed(x))
    assert all(p.requires_grad for p in learned.parameters())


def test_layers_left_out_at_random() -> None:
    x = randn(2, 3)
    net = residual_network(3, 1, "tanh", keep=0.5, generator=0)
    change = net[0].body(x)
    torch.testing.assert_close(net.eval()(x), x + 0.5 * change)
    net.train()
    taken = [bool((net(x) != x).any()) for _ in range(200)]
    assert 60 < sum(taken) < 140  # 7 standard deviations around 100 would be 50 and 150


def test_shortcuts_over_several_layers() -> None:
    net = residual_network(3, 2, "tanh", skip=2, generator=0)
    x = randn(4, 3)
    value = x
    for block in net:
        value = value + block.body(value)
    torch.testing.assert_close(net(x), value)


def test_residual_refuses() -> None:
    with pytest.raises(ShapeMismatch):
        Residual(nn.Linear(3, 2).double())(randn(1, 3))
    with pytest.raises(ShapeMismatch):
        Residual(nn.Identity(), torch.ones(3))
    for keep in (0.0, 1.5):
        with pytest.raises(InvalidInput):
            Residual(nn.Identity(), keep=keep)
    with pytest.raises(InvalidInput):
        residual_network(3, 2, skip=0)
