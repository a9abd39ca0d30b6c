"""Products by smooth units, and sum-product trees."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.approximation.depth.sum_product import (
    ShallowSumProduct,
    SumProductTree,
    expand_tree,
)
from torchtheory.approximation.polynomials.divided_differences import monomial_network
from torchtheory.approximation.polynomials.smooth_gates import (
    best_product_step,
    deep_product_network,
    shallow_product_error,
    shallow_product_network,
    smooth_square_network,
)
from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch


@given(st.sampled_from(["exp", "softplus", "logistic", "cos"]), st.floats(1e-4, 0.5))
@settings(max_examples=25)
def test_square_is_the_central_difference(name: str, step: float) -> None:
    center = 0.4
    x = torch.linspace(-1, 1, 41, dtype=torch.float64)
    ours = smooth_square_network(name, center, step)
    theirs = monomial_network(2, name, center, step, central=True)
    assert float((ours(x) - x**2).abs().max()) <= ours.bound
    assert float((ours(x) - theirs(x)).abs().max()) <= ours.bound


def test_product_of_two_by_hand() -> None:
    h, x, y = 0.1, 0.7, -0.4
    by_hand = sum(
        s * t * math.exp(h * (s * x + t * y)) for s, t in itertools.product((1, -1), repeat=2)
    ) / (4 * h * h)
    found = shallow_product_network(2, "exp", 0.0, h)(torch.tensor([[x, y]], dtype=torch.float64))
    assert found.item() == pytest.approx(by_hand, abs=1e-12)
    # the sum over signs of exp is a product of sinh
    assert by_hand == pytest.approx(math.sinh(h * x) * math.sinh(h * y) / h**2, abs=1e-12)


def test_gates_on_a_larger_box() -> None:
    x = torch.linspace(-3, 3, 31, dtype=torch.float64)
    square = smooth_square_network("softplus", 0.0, 1e-3, radius=3.0)
    assert square.domain == ((-3.0, 3.0),)
    assert float((square(x) - x**2).abs().max()) <= square.bound
    step = best_product_step(2, "exp", 0.0, bound=3.0)
    assert step < best_product_step(2, "exp", 0.0)  # truncation grows with the box
    times = shallow_product_network(2, "exp", 0.0, step, bound=3.0)
    pairs = torch.cartesian_prod(x, x)
    assert float((times(pairs) - pairs.prod(1)).abs().max()) <= times.bound


@given(st.integers(1, 6), st.sampled_from(["exp", "softplus", "logistic"]))
@settings(max_examples=12, deadline=None)
def test_products_keep_their_promise(d: int, name: str) -> None:
    center = 0.9
    x = 2 * torch.rand(60, d, dtype=torch.float64, generator=torch.Generator().manual_seed(d)) - 1
    a = shallow_product_network(d, name, center, best_product_step(d, name, center))
    assert a.size.units == 2**d
    assert float((a(x) - x.prod(1)).abs().max()) <= a.bound
    if d > 1:
        deep = deep_product_network(d, name, center, 1e-3)
        assert float((deep(x) - x.prod(1)).abs().max()) <= deep.bound


@pytest.mark.parametrize("d", [2, 4, 8, 16])
def test_tree_has_four_units_a_product(d: int) -> None:
    size = deep_product_network(d, "exp", 0.0, 1e-3).size
    assert (size.units, size.depth) == (4 * (d - 1), int(math.log2(d)) + 1)


def test_gates_refuse_vanishing_derivatives() -> None:
    with pytest.raises(InvalidInput, match="another center"):
        shallow_product_error(2, "tanh", 0.0, 0.1)
    with pytest.raises(InvalidInput, match="another bias"):
        smooth_square_network("tanh", 0.0, 0.1)
    with pytest.raises(InvalidInput, match="factors"):
        deep_product_network(1, "exp", 0.0, 0.1)
    with pytest.raises(InvalidInput, match="step"):
        shallow_product_network(2, "exp", 0.0, 0.0)


@given(st.integers(1, 2), st.integers(0, 1000))
@settings(max_examples=15)
def test_tree_equals_its_expansion(rounds: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = [
        torch.randn(4 ** (rounds - r), 2, dtype=torch.float64, generator=generator)
        for r in range(1, rounds + 1)
    ]
    tree = SumProductTree(rounds, weights)
    terms = expand_tree(tree)
    assert len(terms) == 2 ** (2**rounds - 1)
    x = torch.randn(5, tree.inputs, dtype=torch.float64, generator=generator)
    by_hand = [
        sum(c * np.prod([v for v, e in zip(row, t, strict=True) if e]) for t, c in terms.items())
        for row in x.tolist()
    ]
    with torch.no_grad():
        np.testing.assert_allclose(tree(x)[:, 0].numpy(), by_hand, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(ShallowSumProduct(terms)(x), tree(x))


def test_tree_counts() -> None:
    tree = SumProductTree(3)
    assert (tree.inputs, tree.neurons, tree.depth, len(expand_tree(tree))) == (64, 63, 6, 128)


def test_bad_trees_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="rounds"):
        SumProductTree(2, [torch.ones(1, 2)])
    with pytest.raises(NonFinite, match="weight"):
        SumProductTree(1, [torch.tensor([[1.0, float("nan")]])])
    with pytest.raises(ShapeMismatch, match="takes"):
        SumProductTree(1)(torch.zeros(2, 3))
    with pytest.raises(InvalidInput, match="too many terms"):
        expand_tree(SumProductTree(5))
    with pytest.raises(ShapeMismatch, match="take"):
        ShallowSumProduct({(1, 1): 1.0})(torch.zeros(2, 3))
