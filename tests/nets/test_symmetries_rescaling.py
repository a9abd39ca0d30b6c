"""Rescaling, canonical forms, orbits, and the sigmoid-tanh converter."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnsupportedModel
from torchtheory.nets.activations.table import ACTIVATIONS
from torchtheory.nets.conversion import Affine, convert_activation
from torchtheory.nets.feedforward import mlp
from torchtheory.nets.symmetries import (
    canonical_form,
    hidden_layers,
    permutation_distance,
    permutation_orbit,
    permute_units,
    rescalable_layers,
    rescale_units,
    with_parameters,
)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rescaled(net: nn.Module, seed: int) -> nn.Module:
    theta = dict(net.named_parameters())
    for layer in hidden_layers(net):
        theta = rescale_units(theta, layer, torch.exp(randn(layer.units, seed=seed)))
    return with_parameters(net, theta)


def permuted(net: nn.Module, seed: int) -> nn.Module:
    source = torch.Generator().manual_seed(seed)
    theta = dict(net.named_parameters())
    for layer in hidden_layers(net):
        theta = permute_units(theta, layer, torch.randperm(layer.units, generator=source))
    return with_parameters(net, theta)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_rescaling_is_a_symmetry_of_homogeneous_activations_only(name: str) -> None:
    net = mlp([3, 6, 5, 2], name, generator=1)
    before = copy.deepcopy(net.state_dict())
    x = randn(30, 3)
    same = torch.allclose(rescaled(net, 3)(x), net(x), rtol=0, atol=1e-12)
    # a step does not see the size of its argument, but the weights behind it do
    assert same == ACTIVATIONS[name].known.positively_homogeneous
    assert (len(rescalable_layers(net)) == 2) == same
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_rescaling_by_hand() -> None:
    net = mlp([1, 1, 1], "relu")
    (layer,) = hidden_layers(net)
    theta = rescale_units(dict(net.named_parameters()), layer, torch.tensor([4.0]))
    assert torch.equal(theta["0.weight"], 4 * net[0].weight)
    assert torch.equal(theta["0.bias"], 4 * net[0].bias)
    assert torch.equal(theta["2.weight"], net[2].weight / 4)
    assert theta["2.bias"] is net[2].bias


@settings(max_examples=25, deadline=None)
@given(
    widths=st.lists(st.integers(1, 6), min_size=3, max_size=5),
    seed=st.integers(0, 10_000),
    name=st.sampled_from(["relu", "tanh", "leaky relu"]),
)
def test_canonical_form_forgets_permutations(widths: list[int], seed: int, name: str) -> None:
    net = mlp(widths, name, generator=seed)
    moved = permuted(net, seed)
    for key, value in canonical_form(net).items():
        assert torch.equal(value, canonical_form(moved)[key])
    assert permutation_distance(net, moved) == 0
    x = randn(4, widths[0])
    torch.testing.assert_close(with_parameters(net, canonical_form(net))(x), net(x))


def test_canonical_form_with_rescaling() -> None:
    net = mlp([3, 6, 5, 2], "relu", generator=1)
    other = permuted(rescaled(net, 2), 5)
    a, b = canonical_form(net, rescaling=True), canonical_form(other, rescaling=True)
    for key in a:
        torch.testing.assert_close(a[key], b[key])
    plain = canonical_form(other)
    assert any(not torch.allclose(canonical_form(net)[k], plain[k]) for k in plain)
    incoming = torch.cat([a["0.weight"], a["0.bias"].unsqueeze(1)], 1)
    torch.testing.assert_close(incoming.norm(dim=1), torch.ones(6).double())


def test_matching_tolerates_noise() -> None:
    net = mlp([3, 8, 1], "tanh", generator=1)
    noisy = permuted(net, 2)
    with torch.no_grad():
        for p in noisy.parameters():
            p += 1e-6 * randn(*p.shape, seed=7)
    assert 0 < permutation_distance(net, noisy) < 1e-5
    assert permutation_distance(net, mlp([3, 8, 1], "tanh", generator=2)) > 0.1
    with pytest.raises(ShapeMismatch):
        permutation_distance(net, mlp([3, 7, 1]))


@pytest.mark.parametrize("widths", [(2, 3, 1), (1, 2, 3, 1), (2, 1)])
def test_orbit(widths: tuple[int, ...]) -> None:
    net = mlp(widths, "tanh", generator=1)
    members = list(permutation_orbit(net))
    assert len(members) == math.prod(math.factorial(m) for m in widths[1:-1])
    x = randn(3, widths[0])
    for theta in members:
        torch.testing.assert_close(with_parameters(net, theta)(x), net(x))
    vectors = {tuple(torch.cat([p.flatten() for p in t.values()]).tolist()) for t in members}
    assert len(vectors) == len(members)


def test_symmetry_refusals() -> None:
    net = mlp([2, 3, 1])
    (layer,) = hidden_layers(net)
    theta = dict(net.named_parameters())
    for factors in (torch.tensor([1.0, 0.0, 1.0]), torch.tensor([1.0, -1.0, 1.0])):
        with pytest.raises(InvalidInput, match="positive"):
            rescale_units(theta, layer, factors)
    with pytest.raises(ShapeMismatch):
        rescale_units(theta, layer, torch.ones(2))
    with pytest.raises(InvalidInput, match="limit"):
        permutation_orbit(mlp([2, 12, 1]))


@settings(max_examples=30, deadline=None)
@given(
    widths=st.lists(st.integers(1, 5), min_size=2, max_size=5),
    bias=st.booleans(),
    end=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_conversion(widths: list[int], bias: bool, end: bool, seed: int) -> None:
    x = randn(9, widths[0], seed=seed)
    for start, to, back in (("logistic", "tanh", "sigmoid"), ("tanh", "sigmoid", "tanh")):
        net = mlp(widths, start, bias=bias, output=start if end else None, generator=seed)
        turned = convert_activation(net, to)
        torch.testing.assert_close(turned(x), net(x))
        assert not any(type(m) is type(ACTIVATIONS[start].layer()) for m in turned)
        torch.testing.assert_close(convert_activation(turned, back)(x), net(x))


def test_conversion_by_hand() -> None:
    net = nn.Sequential(nn.Linear(1, 1), nn.Sigmoid(), nn.Linear(1, 1)).double()
    turned = convert_activation(net, "tanh")
    torch.testing.assert_close(turned[0].weight, net[0].weight / 2)
    torch.testing.assert_close(turned[2].weight, net[2].weight / 2)
    torch.testing.assert_close(turned[2].bias, net[2].bias + net[2].weight[0] / 2)


def test_conversion_puts_in_affine_layers_where_nothing_can_take_the_factors() -> None:
    net = nn.Sequential(nn.Tanh(), nn.Dropout(0.5), nn.Linear(2, 2), nn.Conv1d(1, 1, 1)).eval()
    kinds = [type(m) for m in convert_activation(net, "sigmoid")]
    assert kinds == [Affine, nn.Sigmoid, Affine, nn.Dropout, nn.Linear, nn.Conv1d]
    twice = nn.Sequential(nn.Sigmoid(), nn.Sigmoid())
    x = randn(3, 2)
    torch.testing.assert_close(convert_activation(twice, "tanh")(x), twice(x))


def test_conversion_refusals() -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(UnsupportedModel, match="twice"):
        convert_activation(nn.Sequential(layer, nn.Tanh(), layer), "sigmoid")
    with pytest.raises(InvalidInput, match="'relu'"):
        convert_activation(nn.Sequential(layer), "relu")  # type: ignore[arg-type]
