"""Convolution on finite groups: the algebra, and the circular convolution as a case of it."""

import itertools
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchtheory.convolution.discrete import convolve, cross_correlate
from torchtheory.core.errors import TorchTheoryError
from torchtheory.equivariance.groups import (
    FiniteGroup,
    cyclic_group,
    dihedral_group,
    finite_group,
    group_characters,
    group_convolution_matrix,
    group_convolve,
    group_cross_correlate,
    product_group,
    reverse,
    symmetric_group,
    translate,
)

QUATERNIONS = [
    # 1, -1, i, -i, j, -j, k, -k
    [0, 1, 2, 3, 4, 5, 6, 7],
    [1, 0, 3, 2, 5, 4, 7, 6],
    [2, 3, 1, 0, 6, 7, 5, 4],
    [3, 2, 0, 1, 7, 6, 4, 5],
    [4, 5, 7, 6, 1, 0, 2, 3],
    [5, 4, 6, 7, 0, 1, 3, 2],
    [6, 7, 4, 5, 3, 2, 1, 0],
    [7, 6, 5, 4, 2, 3, 0, 1],
]


def group_named(name: str) -> FiniteGroup:
    made = {
        "Z1": lambda: cyclic_group(1),
        "Z7": lambda: cyclic_group(7),
        "Z4 x Z6": lambda: product_group(cyclic_group(4), cyclic_group(6)),
        "Z2 x Z2 x Z3": lambda: product_group(*map(cyclic_group, (2, 2, 3))),
        "D4": lambda: dihedral_group(4),
        "D2": lambda: dihedral_group(2),
        "S3": lambda: symmetric_group(3),
        "S4": lambda: symmetric_group(4),
        "D3 x Z2": lambda: product_group(dihedral_group(3), cyclic_group(2)),
        "Q8": lambda: finite_group(QUATERNIONS, name="Q8"),
    }
    return made[name]()


NAMES = ["Z1", "Z7", "Z4 x Z6", "Z2 x Z2 x Z3", "D4", "D2", "S3", "S4", "D3 x Z2", "Q8"]
ABELIAN = {"Z1", "Z7", "Z4 x Z6", "Z2 x Z2 x Z3", "D2"}


def draw(group: FiniteGroup, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(group.order, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("name", NAMES)
def test_the_tables_are_groups(name: str) -> None:
    group = group_named(name)
    t, e = group.table, group.identity
    n = group.order
    again = finite_group(t, elements=group.elements)
    assert again.identity == e
    for i, j, k in itertools.islice(itertools.product(range(n), repeat=3), 5000):
        assert t[t[i, j], k] == t[i, t[j, k]]
    assert (t[torch.arange(n), group.inverse] == e).all()
    assert (t[group.inverse, torch.arange(n)] == e).all()
    assert group.is_abelian == (name in ABELIAN)


def test_elements_multiply_as_what_they_stand_for() -> None:
    group = symmetric_group(4)
    for i, j in itertools.product(range(24), repeat=2):
        s, t = group.elements[i], group.elements[j]
        assert isinstance(s, tuple)
        assert isinstance(t, tuple)
        assert group.elements[int(group.table[i, j])] == tuple(s[t[x]] for x in range(4))
    group = dihedral_group(5)
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    flip = torch.tensor([[1.0, 0.0], [0.0, -1.0]], dtype=torch.float64)
    matrices = [
        torch.linalg.matrix_exp(turn * (2 * torch.pi * k / 5)) @ torch.matrix_power(flip, s)
        for k, s in group.elements  # type: ignore[misc]
    ]
    for i, j in itertools.product(range(10), repeat=2):
        assert torch.allclose(matrices[i] @ matrices[j], matrices[int(group.table[i, j])])


@pytest.mark.parametrize("name", NAMES)
def test_the_convolution_is_its_definition(name: str) -> None:
    group = group_named(name)
    a, b = draw(group, 1), draw(group, 2)
    expected = torch.zeros_like(a)
    flipped = torch.zeros_like(a)
    for i, j in itertools.product(range(group.order), repeat=2):
        expected[i] += a[j] * b[group.table[group.inverse[j], i]]
        flipped[i] += b[group.table[group.inverse[i], j]] * a[j]
    assert torch.allclose(group_convolve(a, b, group), expected, atol=1e-13)
    assert torch.allclose(group_convolve(a, b, group, method="sum"), expected, atol=1e-13)
    assert torch.allclose(group_convolution_matrix(b, group) @ a, expected, atol=1e-13)
    assert torch.allclose(group_cross_correlate(b, a, group), flipped, atol=1e-13)
    assert torch.allclose(reverse(reverse(b, group), group), b)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(NAMES), st.integers(0, 10**6))
def test_the_algebra(name: str, seed: int) -> None:
    group = group_named(name)
    a, b, c = (draw(group, seed + k) for k in range(3))
    ab = group_convolve(a, b, group)
    left = group_convolve(ab, c, group)
    right = group_convolve(a, group_convolve(b, c, group), group)
    assert torch.allclose(left, right, atol=1e-11)
    unit = torch.zeros_like(a)
    unit[group.identity] = 1
    assert torch.allclose(group_convolve(unit, a, group), a, atol=1e-14)
    assert torch.allclose(group_convolve(a, unit, group), a, atol=1e-14)
    ba = group_convolve(b, a, group)
    assert torch.allclose(ab, ba, atol=1e-12) == group.is_abelian
    backwards = group_convolve(reverse(b, group), reverse(a, group), group)
    assert torch.allclose(reverse(ab, group), backwards, atol=1e-12)
    for g in (0, group.order // 2, group.order - 1):
        moved = translate(a, g, group)
        assert torch.allclose(group_convolve(moved, b, group), translate(ab, g, group), atol=1e-12)
        correlated = group_cross_correlate(b, a, group)
        assert torch.allclose(
            group_cross_correlate(b, moved, group), translate(correlated, g, group), atol=1e-12
        )


@pytest.mark.parametrize("name", sorted(ABELIAN))
def test_characters(name: str) -> None:
    group = group_named(name)
    chi, n = group_characters(group), group.order
    products = chi[:, group.table]
    assert torch.allclose(products, chi[:, :, None] * chi[:, None, :], atol=1e-12)
    identity = torch.eye(n, dtype=chi.dtype)
    assert torch.allclose(chi.conj() @ chi.T, n * identity, atol=1e-11)
    a, b = draw(group, 3), draw(group, 4)
    made = group_convolve(a, b, group, method="characters")
    assert torch.allclose(made, group_convolve(a, b, group, method="sum"), atol=1e-12)
    if group.cyclic_orders:
        fast = group_convolve(a, b, group, method="fft")
        assert torch.allclose(fast, made, atol=1e-12)


def test_relabeled_tables_have_the_same_characters() -> None:
    # a table of Z/2 x Z/4 in a scrambled order, of which no cyclic factors are known
    known = product_group(cyclic_group(2), cyclic_group(4))
    order = torch.tensor([5, 2, 7, 0, 3, 6, 1, 4])
    place = order.argsort()
    group = finite_group(place[known.table[order][:, order]])
    assert not group.cyclic_orders
    a, b = draw(group, 5), draw(group, 6)
    made = group_convolve(a, b, group, method="characters")
    assert torch.allclose(made, group_convolve(a, b, group, method="sum"), atol=1e-12)


def test_images_are_functions_on_a_torus() -> None:
    group = product_group(cyclic_group(5), cyclic_group(6))
    a, b = draw(group, 7), draw(group, 8)
    made = group_convolve(a, b, group)
    exact = convolve(a.reshape(5, 6), b.reshape(5, 6), mode="circular", method="direct")
    assert torch.allclose(made.reshape(5, 6), exact, atol=1e-13)
    correlated = cross_correlate(b.reshape(5, 6), a.reshape(5, 6), mode="circular")
    assert torch.allclose(group_cross_correlate(b, a, group).reshape(5, 6), correlated, atol=1e-13)
    batch = torch.stack([a, b])
    assert torch.allclose(group_convolve(batch, b, group)[0], made, atol=1e-13)


def test_no_function_at_all_is_convolved() -> None:
    for group in (cyclic_group(3), symmetric_group(3)):
        made = group_convolve(ones(group.order)[None][:0], ones(group.order), group)
        assert made.shape == (0, group.order)


def test_gradients_pass() -> None:
    group = dihedral_group(3)
    a, b = draw(group, 1).requires_grad_(), draw(group, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, y: group_convolve(x, y, group), (a, b))


def ones(n: int) -> Tensor:
    return torch.ones(n)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: finite_group([[0, 1], [0, 1]]), "column 0 of the table holds 0 twice"),
        (lambda: finite_group([[0, 2], [1, 0]]), "numbers from 0 to 1"),
        (lambda: finite_group([[1, 2, 0], [2, 0, 1], [0, 1, 2]][::-1]), "neutral"),
        (lambda: finite_group(torch.ones(2, 2)), "whole numbers"),
        (lambda: finite_group([[0, 1]]), "square"),
        (lambda: finite_group([[0, 1], [1]]), "square"),
        (lambda: finite_group(None), "whole numbers"),  # type: ignore[arg-type]
        (lambda: finite_group(torch.zeros(0, 0).long()), "at least one element"),
        # a loop of order 5 that is not associative
        (
            lambda: finite_group(
                [
                    [0, 1, 2, 3, 4],
                    [1, 0, 3, 4, 2],
                    [2, 4, 0, 1, 3],
                    [3, 2, 4, 0, 1],
                    [4, 3, 1, 2, 0],
                ]
            ),
            "not associative",
        ),
        (lambda: group_convolve(ones(4), ones(3), cyclic_group(3)), "a is a function on Z/3"),
        (lambda: group_convolve(ones(3), ones(3), 3), "a group is made by"),  # type: ignore[arg-type]
        (lambda: group_convolve(ones(3), ones(3).double(), cyclic_group(3)), "of one kind"),
        (lambda: group_convolve(ones(6), ones(6), symmetric_group(3), method="fft"), "cyclic"),
        (lambda: group_characters(symmetric_group(3)), "only an abelian group"),
        (lambda: translate(ones(3), 3, cyclic_group(3)), "by must be"),
        (lambda: symmetric_group(8), "n must be"),
        (lambda: product_group(), "at least one"),
        (lambda: group_convolve(ones(3), ones(3), cyclic_group(3), method="ftt"), "did you mean"),  # type: ignore[arg-type]
    ],
)
def test_bad_input_is_refused(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TorchTheoryError, match=re.escape(message)):
        call()
