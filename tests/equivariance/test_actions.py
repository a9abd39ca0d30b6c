"""Group actions against loops by hand, torch.roll and torch.rot90."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    ShapeMismatch,
    UnknownName,
)
from torchtheory.equivariance.actions import (
    GROUPS,
    Actions,
    Grid,
    Group,
    as_group,
    flips,
    permutations,
    rotations,
    roto_translations,
    translations,
)
from torchtheory.equivariance.layouts import Moved, act, act_back, input_layout, pushed


def moved(group: Group, element: object, x: Tensor) -> Tensor:
    found = act(group, element, x, input_layout(group, x.shape))
    assert found is not None
    return found


def images(n: int = 2, size: tuple[int, int] = (4, 4), seed: int = 0) -> Tensor:
    return torch.randn(n, 3, *size, generator=torch.Generator().manual_seed(seed))


def test_circular_shifts_are_a_loop_over_pixels() -> None:
    x = images(size=(3, 5))
    for down, right in itertools.product(range(3), range(5)):
        found = moved(translations(), (0, 0, down, right), x)
        for i, j in itertools.product(range(3), range(5)):
            assert torch.equal(found[:, :, (i + down) % 3, (j + right) % 5], x[:, :, i, j])
        assert torch.equal(found, x.roll((down, right), (2, 3)))


def test_shifts_that_fill_lose_what_leaves() -> None:
    x = torch.arange(1.0, 5.0).reshape(1, 1, 4)
    filled = translations(border=0.0)
    assert moved(filled, (0, 0, 1), x).flatten().tolist() == [0, 1, 2, 3]
    assert moved(filled, (0, 0, -2), x).flatten().tolist() == [3, 4, 0, 0]
    assert moved(translations(border=7.5), (0, 0, 3), x).flatten().tolist() == [7.5, 7.5, 7.5, 1]
    edge = translations(border="edge")
    assert moved(edge, (0, 0, 2), x).flatten().tolist() == [1, 1, 1, 2]
    assert moved(edge, (0, 0, -1), x).flatten().tolist() == [2, 3, 4, 4]
    assert not filled.invertible
    assert not edge.invertible


def test_turns_and_flips_are_those_of_torch() -> None:
    x = images()
    for turns in range(4):
        assert torch.equal(moved(rotations(), (0, turns, 0, 0), x), x.rot90(turns, (2, 3)))
    assert torch.equal(moved(flips("horizontal"), (1, 0, 0, 0), x), x.flip(3))
    assert torch.equal(moved(flips("vertical"), (1, 0, 0, 0), x), x.flip(2))
    assert torch.equal(moved(flips(), (3, 0, 0, 0), x), x.flip((2, 3)))
    both = moved(roto_translations(mirrored=True), (1, 3, 1, 2), x)
    assert torch.equal(both, x.flip(3).rot90(3, (2, 3)).roll((1, 2), (2, 3)))


@pytest.mark.parametrize(
    ("name", "count"),
    [("translations", 16), ("rotations", 4), ("flips", 4), ("horizontal-flips", 2),
     ("vertical-flips", 2), ("p4", 64), ("p4m", 128)],
)  # fmt: skip
def test_elements_are_a_group_of_different_maps(name: str, count: int) -> None:
    group, grid = GROUPS[name](), Grid.fine((4, 4))
    maps = {tuple(group.source(g, grid).tolist()) for g in group.elements(grid)}
    assert len(maps) == count == group.order(grid)
    assert next(iter(group.elements(grid))) == (0, 0, 0, 0)
    products = {tuple(a[i] for i in b) for a in maps for b in itertools.islice(maps, 8)}
    assert products <= maps  # closed
    steps = [tuple(group.source(g, grid).tolist()) for g in group.steps(grid)]
    reached = {tuple(range(16))}
    while len(more := reached | {tuple(a[i] for i in s) for a in reached for s in steps}) > len(
        reached
    ):
        reached = more
    assert reached == maps  # the steps generate the group


def test_permutations_move_all_their_axes() -> None:
    group, grid = permutations((1, 2)), Grid.fine((3,))
    assert group.order(grid) == len(list(group.elements(grid))) == 6
    a = torch.arange(9.0).reshape(1, 3, 3)
    order = (2, 0, 1)
    assert torch.equal(moved(group, order, a), a[:, order][:, :, order])
    reached = {(0, 1, 2)}
    for _ in range(4):
        reached |= {tuple(a[i] for i in s) for a in reached for s in group.steps(grid)}
    assert len(reached) == 6


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(["translations", "rotations", "flips", "p4", "p4m"]),
    st.integers(0, 10**6),
    st.integers(2, 6),
)
def test_an_element_and_its_inverse(name: str, seed: int, size: int) -> None:
    group, x = GROUPS[name](), images(size=(size, size), seed=seed)
    layout = input_layout(group, x.shape)
    element = group.draw(layout[0].grid, torch.Generator().manual_seed(seed))
    there = act(group, element, x, layout)
    assert there is not None
    assert torch.equal(there.flatten(1).sort().values, x.flatten(1).sort().values)
    back = act_back(group, element, there, layout)
    assert back is not None
    assert torch.equal(back, x)


def test_a_coarser_grid_follows_the_shifts_its_stride_divides() -> None:
    group, grid = translations(), Grid.fine((8, 8))
    coarse = Grid((4, 4), (Fraction(2),) * 2)
    acting = [g for g in group.elements(grid) if group.acts(g, coarse)]
    assert acting == list(group.elements(grid, [coarse]))
    assert len(acting) == group.order(grid, [coarse]) == 16
    assert all(a % 2 == b % 2 == 0 for _, _, a, b in acting)
    x = images(size=(8, 8))
    z = x[..., ::2, ::2]
    for g in acting:
        found = act(group, g, z, (Moved((2, 3), coarse),))
        assert found is not None
        assert torch.equal(found, moved(group, g, x)[..., ::2, ::2])
    assert act(group, (0, 0, 1, 0), z, (Moved((2, 3), coarse),)) is None
    assert translations(2).steps(grid) == [(0, 0, 2, 0), (0, 0, 0, 2)]
    assert translations(3).steps(coarse) == [(0, 0, 6, 0), (0, 0, 0, 6)]


@pytest.mark.parametrize(
    "rearrange",
    [
        lambda z: z.flatten(1),
        lambda z: z.flatten(2).transpose(1, 2),
        lambda z: z.permute(0, 2, 3, 1),
        lambda z: z.reshape(len(z), -1, 2),
        lambda z: z.unsqueeze(1).flatten(0, 1),
        lambda z: torch.cat([z, z], 1),
        lambda z: z.roll(1, 2),
    ],
)
def test_rearranged_tensors_move_with_what_they_came_from(rearrange: object) -> None:
    assert callable(rearrange)
    x, group = images(), translations()
    layout = input_layout(group, x.shape)
    (after,) = pushed([(x, layout)], lambda f: [rearrange(f(x))])
    assert after is not None
    for g in group.elements(layout[0].grid):
        found = act(group, g, rearrange(x), after)
        assert found is not None
        assert torch.equal(found, rearrange(moved(group, g, x)))


def test_a_cut_is_followed_by_nothing_and_a_joined_constant_stays() -> None:
    x, group = images(), permutations()
    layout = input_layout(group, x.shape)
    (after,) = pushed([(x, layout)], lambda f: [f(x)[:, 1:]])
    assert after is not None
    assert act(group, (1, 0, 2), x[:, 1:], after) is None
    assert act(group, (0, 2, 1), x[:, 1:], after) is not None
    extra = torch.ones(2, 1, 4, 4)
    (after,) = pushed([(extra, None), (x, layout)], lambda f: [torch.cat([f(extra), f(x)], 1)])
    assert after is not None
    found = act(group, (1, 2, 0), torch.cat([extra, x], 1), after)
    assert found is not None
    assert torch.equal(found, torch.cat([extra, x[:, [1, 2, 0]]], 1))


def test_labels_say_what_an_element_does() -> None:
    assert translations().label((0, 0, 1, 2)) == "shift by (1, 2)"
    assert translations().label((0, 0, 1)) == "shift by 1"
    assert flips("horizontal").label((1, 0, 0, 0)) == "horizontal flip"
    assert roto_translations().label((0, 1, 2, 0)) == "90 degrees, shift by (2, 0)"
    assert permutations().label((1, 0, 2)) == "exchange of 0 and 1"
    assert repr(translations(2)) == "circular shifts by multiples of 2"


def test_draws_are_uniform_and_follow_the_seed() -> None:
    group, grid = roto_translations(), Grid.fine((2, 2))
    draw = torch.Generator().manual_seed(0)
    drawn = [group.draw(grid, draw) for _ in range(1600)]
    counts = [drawn.count(g) for g in group.elements(grid)]
    # 16 cells of mean 100: chi squared with 15 degrees of freedom is below 45 but for 1 in 10^4
    assert sum((c - 100) ** 2 / 100 for c in counts) < 45
    again = torch.Generator().manual_seed(0)
    assert drawn[:5] == [group.draw(grid, again) for _ in range(5)]
    assert permutations().order(Grid.fine((5,))) == math.factorial(5)


def test_what_cannot_be_moved_is_refused() -> None:
    with pytest.raises(ShapeMismatch, match="turn a square, and the images are 4 × 6"):
        rotations().axes_of([1, 1, 4, 6])
    with pytest.raises(ShapeMismatch, match="are of a plane"):
        flips().axes_of([1, 1, 4])
    with pytest.raises(ShapeMismatch, match="move a grid"):
        translations().axes_of([5, 4])
    with pytest.raises(ShapeMismatch, match="permutations move axis"):
        permutations((3,)).axes_of([1, 2, 3])
    with pytest.raises(ShapeMismatch, match="they need one size"):
        permutations((1, 2)).axes_of([1, 2, 3])
    with pytest.raises(UnknownName, match="no group is named 'shift'"):
        as_group("shift")
    with pytest.raises(InvalidType, match="group must be a name"):
        as_group(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="step must be a whole number >= 1"):
        translations(0)
    with pytest.raises(UnknownName, match="no border is named"):
        translations(border="mirror")  # type: ignore[arg-type]
    with pytest.raises(EmptyData, match="no element to try"):
        Actions([], lambda g, x: x)
    with pytest.raises(InvalidType, match="elements must be a list of those to try, not 5"):
        Actions(5, lambda g, x: x)  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match="a list of those to try, not a generator"):
        Actions((k for k in range(2)), lambda g, x: x)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="need an axis"):
        permutations(())
