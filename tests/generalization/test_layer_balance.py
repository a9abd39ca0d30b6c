"""Invariants between neighboring layers, and the alignment of linear ones."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch, UnsupportedModel
from torchtheory.generalization.implicit_bias.layer_balance import (
    alignment_bound,
    balanced_weights,
    layer_alignment,
    layer_balance_of,
)


def weights(seed: int, widths: tuple[int, ...] = (3, 4, 2, 1)) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return [
        torch.randn(after, before, generator=source, dtype=torch.float64)
        for before, after in pairwise(widths)
    ]


def test_small_case_by_hand() -> None:
    found = layer_balance_of([torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.tensor([[3.0, 1.0]])])
    assert found.neurons.tolist() == [9 - 5, 1 - 1]
    assert found.layers.tolist() == [4]
    assert found.matrices[0].tolist() == [[4, 1], [1, 0]]
    assert found.conserved == "matrices"


@pytest.mark.parametrize(
    ("activation", "kept"),
    [
        (nn.ReLU(), "neurons"),
        (nn.LeakyReLU(0.2), "neurons"),
        (nn.Tanh(), "nothing"),
        (nn.Identity(), "matrices"),
    ],
)
@pytest.mark.parametrize("bias", [False, True])
def test_rate_of_change_under_gradient_flow(activation: nn.Module, kept: str, bias: bool) -> None:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 4, bias), activation, nn.Linear(4, 2, bias)).double()
    x, y = torch.randn(9, 3).double(), torch.randn(9, 2).double()
    (net(x) - y).square().mean().backward()

    def at(step: float) -> torch.Tensor:
        moved = nn.Sequential(nn.Linear(3, 4, bias), activation, nn.Linear(4, 2, bias)).double()
        with torch.no_grad():
            for p, q in zip(moved.parameters(), net.parameters(), strict=True):
                assert q.grad is not None
                p.copy_(q - step * q.grad)
        found = layer_balance_of(moved)
        assert found.conserved == kept
        return found.matrices[0]

    rate = (at(1e-4) - at(-1e-4)) / 2e-4  # exact: the invariants are quadratic
    assert (float(rate.diagonal().abs().max()) < 1e-9) == (kept != "nothing")
    assert (float(rate.abs().max()) < 1e-9) == (kept == "matrices")


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_alignment_bound_holds_with_the_layers_own_matrices(seed: int) -> None:
    layers = weights(seed)
    bound = alignment_bound(layers, layer_balance_of(layers).matrices)
    assert bool((bound <= layer_alignment(layers) + 1e-9).all())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 3))
def test_balanced_weights(seed: int, rank: int) -> None:
    left, right = weights(seed, (rank, 4)), weights(seed + 1, (5, rank))
    product = left[0] @ right[0]
    layers = balanced_weights(product, [3, 6, 4], generator=seed)
    made = torch.linalg.multi_dot(layers[::-1])
    assert torch.allclose(made, product, atol=1e-9)
    assert all(float(m.abs().max()) < 1e-9 for m in layer_balance_of(layers).matrices)
    assert torch.allclose(layer_alignment(layers), torch.ones(3).double(), atol=1e-6)


def test_refusals() -> None:
    with pytest.raises(InvalidInput, match="two layers"):
        layer_balance_of([torch.eye(2)])
    with pytest.raises(ShapeMismatch, match="layer 1"):
        layer_alignment([torch.ones(2, 3), torch.ones(1, 3)])
    with pytest.raises(InvalidType):
        layer_balance_of("net")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModel):
        layer_balance_of(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)))
    with pytest.raises(InvalidInput, match="rank"):
        balanced_weights(torch.eye(3), [2])
    with pytest.raises(ShapeMismatch):
        alignment_bound([torch.eye(2), torch.eye(2)], [])
