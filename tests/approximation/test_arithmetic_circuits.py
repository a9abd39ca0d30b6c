"""Arithmetic circuits: coefficients, ranks, least squares, refused input."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.approximation.depth.arithmetic_circuits import (
    DeepCircuit,
    ShallowCircuit,
    best_shallow_circuit,
    coefficient_tensor,
    generic_rank,
    matricization_rank,
    matricize,
    random_deep_circuit,
    shallow_from_tensor,
)
from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.booleans(), st.integers(0, 10**6))
def test_coefficients_are_the_scores(levels: int, r: int, shared: bool, seed: int) -> None:
    m = 2**levels
    circuit = random_deep_circuit(m, [2] * levels, r, 3, shared=shared, generator=seed)
    x = torch.randn(4, m, r, dtype=torch.float64, generator=generator(seed))
    tensor = coefficient_tensor(circuit)
    scores = tensor[None].expand(4, *tensor.shape)
    for j in range(m):
        scores = torch.einsum("nor...,nr->no...", scores, x[:, j])
    torch.testing.assert_close(circuit(x), scores)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(0, 10**6))
def test_shallow_rank_is_at_most_its_terms(terms: int, seed: int) -> None:
    draw = generator(seed)
    factors = torch.randn(4, terms, 3, dtype=torch.float64, generator=draw)
    circuit = ShallowCircuit(factors, torch.ones(1, terms, dtype=torch.float64))
    tensor = coefficient_tensor(circuit)[0]
    assert matricization_rank(tensor) <= terms
    expected = torch.einsum("za,zb,zc,zd->abcd", *factors)
    torch.testing.assert_close(tensor, expected)
    again = coefficient_tensor(shallow_from_tensor(tensor))[0]
    torch.testing.assert_close(again, tensor)


def test_deep_ranks() -> None:
    for m, ranks, r, rank in ((4, [3, 3], 3, 9), (8, [2, 2, 2], 2, 16), (8, [1, 2, 2], 2, 1)):
        for shared in (False, True):
            assert generic_rank(m, ranks, r, shared=shared, generator=1) == rank
        tensor = coefficient_tensor(random_deep_circuit(m, ranks, r, generator=1))[0]
        assert matricization_rank(tensor) == rank
        assert matricization_rank(tensor, "halves") <= ranks[-1]


def test_matricize_by_hand() -> None:
    tensor = torch.arange(81).reshape(3, 3, 3, 3)
    made = matricize(tensor)
    assert made[1 * 3 + 2, 0 * 3 + 1] == tensor[1, 0, 2, 1]
    assert matricize(tensor, "halves")[3 * 1 + 2, 3 * 0 + 1] == tensor[1, 2, 0, 1]
    assert matricization_rank(torch.zeros(2, 2)) == 0


def test_least_squares_finds_a_tensor_of_few_terms() -> None:
    factors = torch.randn(4, 2, 3, dtype=torch.float64, generator=generator(0))
    tensor = torch.einsum("za,zb,zc,zd->abcd", *factors)
    made = coefficient_tensor(best_shallow_circuit(tensor, 2, sweeps=200, generator=3))[0]
    assert float((made - tensor).norm() / tensor.norm()) < 1e-6


def test_refused() -> None:
    with pytest.raises(ShapeMismatch):
        ShallowCircuit(torch.ones(2, 3, 2), torch.ones(1, 2))
    with pytest.raises(ShapeMismatch):
        DeepCircuit([torch.ones(3, 2, 2)], torch.ones(1, 2))
    with pytest.raises(NonFinite):
        DeepCircuit([torch.full((2, 1, 1), torch.nan)], torch.ones(1, 1))
    with pytest.raises(InvalidInput):
        random_deep_circuit(6, [2, 2], 2)
    with pytest.raises(ShapeMismatch):
        matricize(torch.ones(2, 2, 2))
    with pytest.raises(InvalidInput):
        matricize(torch.ones(2, 2), "thirds")  # type: ignore[arg-type]
    with pytest.raises(ShapeMismatch):
        shallow_from_tensor(torch.ones(2, 3))
    with pytest.raises(ShapeMismatch):
        random_deep_circuit(4, [2, 2], 2)(torch.ones(1, 4, 3).double())
