"""Corruptions of labels and images against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    LabelOutOfRange,
    NonFinite,
    ShapeMismatch,
    UnknownName,
)
from torchtheory.generalization.memorization.label_corruption import (
    IMAGE_CORRUPTIONS,
    corrupted_images,
    corrupted_labels,
    gaussian_images,
    random_pixels,
    shuffled_pixels,
)

shapes = st.lists(st.integers(1, 4), min_size=1, max_size=3)


def images(seed: int, *shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def test_share_zero_keeps_and_share_one_forgets() -> None:
    y = torch.arange(5000) % 5
    assert torch.equal(corrupted_labels(y, 5, 0.0, generator=1), y)
    drawn = corrupted_labels(y, 5, 1.0, generator=1)
    # independent of the true labels, and uniform: a chi-squared test of the whole table
    table = torch.bincount(5 * y + drawn, minlength=25).reshape(5, 5).numpy()
    assert stats.chi2_contingency(table).pvalue > 0.01
    assert stats.chisquare(table.sum(0)).pvalue > 0.01


@given(st.floats(0, 1), st.integers(2, 10), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_share_of_wrong_labels(share: float, classes: int, seed: int) -> None:
    y = torch.arange(4000) % classes
    new = corrupted_labels(y, classes, share, generator=seed)
    wrong = float((new != y).double().mean())
    expected = share * (1 - 1 / classes)
    assert abs(wrong - expected) <= 6 * (expected * (1 - expected) / 4000) ** 0.5 + 1e-9
    assert new.dtype == y.dtype
    assert 0 <= int(new.min()) <= int(new.max()) < classes


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_corruption_is_nested_in_the_share(a: float, b: float, seed: int) -> None:
    y = torch.arange(300) % 7
    small, large = (corrupted_labels(y, 7, p, generator=seed) for p in sorted((a, b)))
    changed = small != y
    assert torch.equal(small[changed], large[changed])


@given(shapes, st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_one_permutation_for_all_images(shape: list[int], seed: int) -> None:
    train, test = images(seed, 4, *shape), images(seed + 1, 3, *shape)
    a, b = shuffled_pixels(train, test, generator=seed)
    size = train[0].numel()
    order = shuffled_pixels(torch.arange(size).view(1, *shape), generator=seed)[0].flatten()
    assert torch.equal(order.sort().values, torch.arange(size))
    assert torch.equal(a.flatten(1), train.flatten(1)[:, order])
    assert torch.equal(b.flatten(1), test.flatten(1)[:, order])
    # distances, and so whatever a dense network or a kernel of distances sees, are kept
    assert torch.allclose(torch.cdist(a.flatten(1), b.flatten(1)),
                          torch.cdist(train.flatten(1), test.flatten(1)), atol=1e-5)  # fmt: skip


@given(shapes, st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_random_pixels_keep_each_image_s_values(shape: list[int], seed: int) -> None:
    x = images(seed, 5, *shape)
    new = random_pixels(x, generator=seed)
    assert new.shape == x.shape
    assert torch.equal(new.flatten(1).sort(1).values, x.flatten(1).sort(1).values)


def test_every_image_has_a_permutation_of_its_own() -> None:
    x = torch.arange(50.0).expand(20, 50)
    rows = {tuple(r) for r in random_pixels(x).tolist()}
    assert len(rows) == 20
    # uniform: every value is equally often in every place
    many = random_pixels(torch.arange(3).expand(6000, 3), generator=2)
    orders = np.unique(many.numpy(), axis=0, return_counts=True)[1]
    assert len(orders) == 6
    assert stats.chisquare(orders).pvalue > 0.01


def test_gaussian_images_have_the_moments_of_the_set() -> None:
    x = 3 + 2 * images(0, 400, 6, 6).double()
    new = gaussian_images(x, generator=3)
    assert new.dtype == torch.float64
    assert abs(float(new.mean() - x.mean())) < 0.03
    assert abs(float(new.std() / x.std()) - 1) < 0.03
    standard = ((new - x.mean()) / x.std()).flatten().numpy()
    assert stats.kstest(standard, "norm").pvalue > 0.01


@pytest.mark.parametrize("kind", IMAGE_CORRUPTIONS)
def test_the_given_images_stay(kind: str) -> None:
    train, test = images(0, 6, 2, 3), images(1, 4, 2, 3)
    kept = train.clone(), test.clone()
    state = torch.get_rng_state()
    a, b = corrupted_images(kind, train, test, generator=4)
    assert torch.equal(torch.get_rng_state(), state)
    assert a.shape == train.shape
    assert b.shape == test.shape
    assert torch.equal(train, kept[0])
    assert torch.equal(test, kept[1])
    again = corrupted_images(kind, train, test, generator=4)
    assert torch.equal(a, again[0])
    assert torch.equal(b, again[1])


def test_bad_input_is_refused() -> None:
    y = torch.tensor([0, 1, 2])
    with pytest.raises(InvalidInput, match=r"must be a number in \[0, 1\]"):
        corrupted_labels(y, 3, 1.5)
    with pytest.raises(LabelOutOfRange, match="0 to 1"):
        corrupted_labels(y, 2, 0.5)
    with pytest.raises(InvalidInput, match="classes"):
        corrupted_labels(torch.zeros(3, dtype=torch.long), 1, 0.5)
    with pytest.raises(InvalidType, match="whole numbers"):
        corrupted_labels(y.float(), 3, 0.5)
    with pytest.raises(ShapeMismatch, match=r"\[n\]"):
        corrupted_labels(y[None], 3, 0.5)
    with pytest.raises(EmptyData, match="no labels"):
        corrupted_labels(y[:0], 3, 0.5)
    with pytest.raises(EmptyData, match="no images"):
        shuffled_pixels()
    with pytest.raises(ShapeMismatch, match="in common"):
        shuffled_pixels(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(ShapeMismatch, match=r"\[n, \.\.\.\]"):
        random_pixels(torch.zeros(3))
    with pytest.raises(NonFinite, match="NaN"):
        gaussian_images(torch.full((2, 2), float("nan")))
    with pytest.raises(InvalidType, match="floating-point"):
        gaussian_images(torch.zeros(2, 2, dtype=torch.uint8))
    with pytest.raises(InvalidType, match="must be a tensor"):
        random_pixels([[1.0]])  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="shuffled pixels"):
        corrupted_images("shuffled pixel", torch.zeros(2, 2), torch.zeros(2, 2))
