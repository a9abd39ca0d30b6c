"""Neighbors of samples, and what they say about labels."""

from __future__ import annotations

import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from torchtheory.core.errors import EmptyData, ShapeMismatch
from torchtheory.core.intervals import clopper_pearson
from torchtheory.data.neighbors import (
    comparable,
    linear_information,
    nearest,
    neighbor_information,
    standardizer,
)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_neighbors_are_those_of_scikit_learn() -> None:
    base, queries = normal(200, 5), normal(30, 5, seed=1)
    distances, index = nearest(queries, base, 4)
    expected, numbers = NearestNeighbors(n_neighbors=4).fit(base).kneighbors(queries)
    assert torch.allclose(distances.double(), torch.as_tensor(expected), atol=1e-4)
    assert torch.equal(index, torch.as_tensor(numbers))
    own, _ = nearest(base[:7], base, 1, own=torch.arange(7))
    expected, _ = NearestNeighbors(n_neighbors=2).fit(base).kneighbors(base[:7])
    assert torch.allclose(own[:, 0].double(), torch.as_tensor(expected)[:, 1], atol=1e-4)


def test_neighbors_far_from_the_origin_keep_their_digits() -> None:
    base = 1000 + 1e-2 * normal(50, 3)
    distances, index = nearest(base, base, 1, own=torch.arange(50))
    exact = (base - base[index[:, 0]]).norm(dim=1)
    assert torch.equal(distances[:, 0], exact)


def test_too_few_rows_and_other_columns_are_refused() -> None:
    with pytest.raises(EmptyData):
        nearest(normal(3, 2), normal(3, 2), 3, own=torch.arange(3))
    with pytest.raises(ShapeMismatch):
        nearest(normal(3, 2), normal(3, 4), 1)
    with pytest.raises(EmptyData):
        standardizer(normal(1, 2))


def test_columns_of_a_table_weigh_alike_and_pixels_as_they_are() -> None:
    x = normal(500, 3) * torch.tensor([1.0, 1e4, 1e-3]) + torch.tensor([0.0, 5e4, 1.0])
    z = standardizer(x)(x)
    assert z.mean(0).abs().max() < 1e-2
    assert (z.std(0) - 1).abs().max() < 0.05  # but for what is cut at 3
    images = normal(100, 1, 2, 2) * torch.tensor([1.0, 1.0, 1.0, 0.01]).reshape(1, 2, 2)
    assert standardizer(images)(images).std(0)[3] < 0.02


def test_rare_values_do_not_outweigh_the_rest() -> None:
    x = normal(400, 4)
    x[:, 3] = 0
    x[0, 3] = 1e-3
    z = standardizer(x)(x)
    assert float(z[0, 3]) <= 3
    assert bool((z[1:, 3].abs() < 0.1).all())


def test_principal_components_keep_distances_of_few_dimensions() -> None:
    low = normal(300, 5)
    x = low @ normal(5, 200, seed=1)
    rows, whole = comparable(x)(x), standardizer(x)(x)
    assert rows.shape == (300, 64)
    a = torch.cdist(rows, rows)
    b = torch.cdist(whole, whole)
    assert torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1] > 0.98


def test_information_of_labels() -> None:
    x = normal(400, 3)
    y = (x[:, 0] > 0).long()
    _, index = nearest(x, x, 1, own=torch.arange(400))
    own = torch.arange(400)
    found = neighbor_information(y, index[:, 0], y, own)
    agreement = float((y[index[:, 0]] == y).double().mean())
    assert found.p_value < 0.001
    assert found.score == pytest.approx(2 * agreement - 1, abs=0.03)
    assert linear_information(x, y).score > 0.9
    numbers = x[:, 0] + 0.1 * x[:, 1]
    assert linear_information(x, numbers).score > 0.99
    assert neighbor_information(numbers, index[:, 0], numbers, own).p_value < 0.001
    equal = torch.zeros(400).long()
    assert neighbor_information(equal, index[:, 0], equal, own).p_value == 1.0
    assert linear_information(x, equal).p_value == 1.0


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_labels_independent_of_inputs_are_rarely_taken_for_known(kind: str) -> None:
    alarms = {"neighbors": 0, "queries": 0, "linear": 0}
    trials = 100
    for seed in range(trials):
        x, y = normal(40, 2, seed=seed), normal(40, seed=1000 + seed)
        labels = (y > 0.3).long() if kind == "classes" else y
        _, index = nearest(x, x, 1, own=torch.arange(40))
        _, there = nearest(x[25:], x[:25], 1)
        whole = neighbor_information(labels, index[:, 0], labels, torch.arange(40), seed)
        part = neighbor_information(labels[25:], there[:, 0], labels[:25], None, seed)
        alarms["neighbors"] += whole.p_value <= 0.05
        alarms["queries"] += part.p_value <= 0.05
        alarms["linear"] += linear_information(x, labels).p_value <= 0.05
    for name, count in alarms.items():
        assert clopper_pearson(count, trials, 0.99).low <= 0.05, name
