"""Composing, stacking, adding and deepening networks keeps their functions exactly."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.approximation.certificates import network_size
from torchtheory.approximation.network_calculus import chain, combine, compose, deepen, stack
from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnsupportedModel
from torchtheory.nets.feedforward import affine_layers, mlp

widths = st.lists(st.integers(1, 4), min_size=0, max_size=3)
seeds = st.integers(0, 2**16)


def points(seed: int, d: int) -> torch.Tensor:
    return torch.randn(7, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=20, deadline=None)
@given(widths, widths, st.integers(1, 3), seeds)
def test_composition(first: list[int], then: list[int], middle: int, seed: int) -> None:
    inner = mlp([2, *first, middle], generator=seed)
    outer = mlp([middle, *then, 2], generator=seed + 1)
    made = compose(outer, inner)
    x = points(seed, 2)
    torch.testing.assert_close(made(x), outer(inner(x)), rtol=0, atol=1e-12)
    parts = network_size(inner), network_size(outer)
    assert network_size(made).depth == parts[0].depth + parts[1].depth - 1
    assert network_size(made).width == max(parts[0].width, parts[1].width)


@settings(max_examples=20, deadline=None)
@given(widths, widths, seeds, st.floats(-3, 3))
def test_stacking_and_adding(first: list[int], then: list[int], seed: int, c: float) -> None:
    f, g = mlp([3, *first, 2], generator=seed), mlp([3, *then, 2], generator=seed + 1)
    x = points(seed, 3)
    torch.testing.assert_close(stack(f, g)(x), torch.cat([f(x), g(x)], 1), rtol=0, atol=1e-12)
    total = combine([c, 1.0], [f, g])
    torch.testing.assert_close(total(x), c * f(x) + g(x), rtol=0, atol=1e-12)
    sizes = network_size(f), network_size(g)
    assert network_size(total).depth == max(s.depth for s in sizes)
    if sizes[0].depth == sizes[1].depth:
        both = network_size(stack(f, g))
        assert both.parameters == sizes[0].parameters + sizes[1].parameters
        assert both.units == sizes[0].units + sizes[1].units


@settings(max_examples=20, deadline=None)
@given(widths, st.integers(0, 3), seeds)
def test_deepening(hidden: list[int], more: int, seed: int) -> None:
    f = mlp([2, *hidden, 3], generator=seed)
    deep = deepen(f, network_size(f).depth + more)
    x = points(seed, 2)
    torch.testing.assert_close(deep(x), f(x), rtol=0, atol=1e-12)
    assert network_size(deep).depth == network_size(f).depth + more


def test_nothing_given_is_changed() -> None:
    f = mlp([2, 3, 1], generator=0)
    before = [p.clone() for p in f.parameters()]
    combine([2.0, 1.0], [f, f])[0].weight.zero_()  # type: ignore[union-attr, operator]
    assert all(torch.equal(a, b) for a, b in zip(before, f.parameters(), strict=True))
    assert all(p.requires_grad for p in f.parameters())


def test_layers_and_back() -> None:
    f = mlp([2, 3, 1], "tanh", bias=False, generator=0)
    x = points(0, 2)
    torch.testing.assert_close(chain(*affine_layers(f))(x), f(x))


def test_refused() -> None:
    relu, tanh = mlp([2, 3, 1], generator=0), mlp([2, 3, 1], "tanh", generator=0)
    with pytest.raises(UnsupportedModel):
        stack(relu, tanh)
    with pytest.raises(UnsupportedModel):
        deepen(tanh, 5)
    with pytest.raises(UnsupportedModel):
        affine_layers(nn.Sequential(nn.Linear(1, 1), nn.PReLU(), nn.Linear(1, 1)))
    with pytest.raises(UnsupportedModel):
        affine_layers(nn.Linear(1, 1))  # type: ignore[arg-type]
    with pytest.raises(ShapeMismatch):
        compose(relu, relu)
    with pytest.raises(ShapeMismatch):
        stack(relu, mlp([3, 1], generator=0))
    with pytest.raises(ShapeMismatch):
        combine([1.0], [relu, relu])
    with pytest.raises(InvalidInput):
        combine([1.0, 1.0], [relu, mlp([2, 2], generator=0)])
    with pytest.raises(InvalidInput):
        deepen(relu, 1)
    with pytest.raises(InvalidInput):
        stack()
