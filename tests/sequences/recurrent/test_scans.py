"""Prefix scans: every method is the loop, counts are those of the books, bad input is refused."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch
from torchtheory.sequences.recurrent.linear_scans import METHODS as LINEAR
from torchtheory.sequences.recurrent.linear_scans import join_affine, linear_scan
from torchtheory.sequences.recurrent.scans import METHODS, Counted, associative_scan


def source(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=source(seed), dtype=dtype)


def loop(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
    """The recurrence along the first axis, as it is written."""
    found, z = [], start
    for factor, added in zip(a, b, strict=True):
        z = factor * z + added
        found.append(z)
    return torch.stack(found)


# ------------------------------------------------------------------------- any operation


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 13, 64])
def test_sums_are_cumulative(method: str, length: int) -> None:
    x = draw(3, length, 2)
    found = associative_scan(torch.add, x, 1, method=method)  # type: ignore[arg-type]
    torch.testing.assert_close(found, x.cumsum(1))
    back = associative_scan(torch.add, x, 1, reverse=True, method=method)  # type: ignore[arg-type]
    torch.testing.assert_close(back, x.flip(1).cumsum(1).flip(1))


@pytest.mark.parametrize("method", METHODS)
def test_order_is_kept_where_the_operation_does_not_commute(method: str) -> None:
    x = draw(11, 3, 3) / 2
    found = associative_scan(lambda a, b: b @ a, x, 0, method=method)  # type: ignore[arg-type]
    back = associative_scan(
        lambda a, b: b @ a,
        x,
        0,
        reverse=True,
        method=method,  # type: ignore[arg-type]
    )
    product = torch.eye(3).double()
    for t in range(11):
        product = x[t] @ product
        torch.testing.assert_close(found[t], product)
    product = torch.eye(3).double()
    for t in reversed(range(11)):
        product = x[t] @ product
        torch.testing.assert_close(back[t], product)


@pytest.mark.parametrize("method", METHODS)
def test_trees_keep_their_form(method: str) -> None:
    a, b = draw(9, 2), draw(9, 2, seed=1)

    def op(
        left: dict[str, list[Tensor]], right: dict[str, list[Tensor]]
    ) -> dict[str, list[Tensor]]:
        return {"ab": list(join_affine(tuple(left["ab"]), tuple(right["ab"])))}  # type: ignore[arg-type]

    found = associative_scan(op, {"ab": [a, b]}, 0, method=method)  # type: ignore[arg-type]
    torch.testing.assert_close(found["ab"][0], a.cumprod(0))
    torch.testing.assert_close(found["ab"][1], loop(a, b, torch.zeros(2).double()))


@pytest.mark.parametrize("power", [1, 2, 3, 6])
def test_counts(power: int) -> None:
    n = 2**power
    counts = {}
    for method in METHODS:
        op = Counted(torch.add)
        associative_scan(op, draw(n), 0, method=method)
        counts[method] = (op.depth, op.work)
    assert counts["sequential"] == (n - 1, n - 1)
    assert counts["hillis_steele"] == (power, sum(n - 2**k for k in range(power)))
    assert counts["blelloch"] == (2 * power - 1, 2 * n - 2 - power)


@pytest.mark.parametrize("n", [3, 5, 11, 100])
def test_counts_of_other_lengths(n: int) -> None:
    doubling, tree = Counted(torch.add), Counted(torch.add)
    associative_scan(doubling, draw(n), 0, method="hillis_steele")
    associative_scan(tree, draw(n), 0, method="blelloch")
    assert doubling.depth == math.ceil(math.log2(n))
    assert tree.depth <= 2 * math.ceil(math.log2(n))
    assert n - 1 <= tree.work < 2 * n


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6))
def test_joining_is_associative(seed: int) -> None:
    x, y, z = ((draw(4, seed=3 * seed + k), draw(4, seed=3 * seed + k + 10**7)) for k in range(3))
    left = join_affine(join_affine(x, y), z)
    right = join_affine(x, join_affine(y, z))
    torch.testing.assert_close(left, right)


def test_what_is_refused() -> None:
    with pytest.raises(EmptyData, match="length 0"):
        associative_scan(torch.add, torch.zeros(2, 0), 1)
    with pytest.raises(ShapeMismatch, match="different lengths"):
        associative_scan(lambda a, b: a, (torch.zeros(2), torch.zeros(3)), 0)
    with pytest.raises(ShapeMismatch, match="no axis 1"):
        associative_scan(torch.add, torch.zeros(2), 1)
    with pytest.raises(InvalidType, match="tensors"):
        associative_scan(lambda a, b: a, [1.0, 2.0], 0)
    with pytest.raises(ShapeMismatch, match="keeps their shape"):
        associative_scan(lambda a, b: (a + b).sum(), torch.zeros(4), 0)
    with pytest.raises(InvalidInput, match="2 tensors for 1"):
        associative_scan(lambda a, b: (a, b), torch.zeros(4), 0)  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidInput, match="method"):
        associative_scan(torch.add, torch.zeros(4), 0, method="fast")  # type: ignore[arg-type]


# ------------------------------------------------------------------------- the linear recurrence


@pytest.mark.parametrize("method", LINEAR)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("length", [1, 5, 32, 100])
def test_linear_scan_is_the_loop(method: str, dtype: torch.dtype, length: int) -> None:
    a, b = draw(length, 2, 3, dtype=dtype), draw(length, 2, 3, seed=1, dtype=dtype)
    start = draw(2, 3, seed=2, dtype=dtype)
    wanted = loop(a, b, start)
    scale = float(loop(a.abs(), b.abs(), start.abs()).abs().max())
    found = linear_scan(a, b, initial=start, dim=0, method=method)  # type: ignore[arg-type]
    assert float((found - wanted).abs().max()) < 1e-13 * scale
    moved = linear_scan(
        a.movedim(0, 1),
        b.movedim(0, 1),
        initial=start,
        method=method,  # type: ignore[arg-type]
    )
    assert float((moved.movedim(1, 0) - wanted).abs().max()) < 1e-13 * scale
    back = linear_scan(a, b, initial=start, dim=0, reverse=True, method=method)  # type: ignore[arg-type]
    wanted = loop(a.flip(0), b.flip(0), start).flip(0)
    assert float((back - wanted).abs().max()) < 1e-13 * scale


@pytest.mark.parametrize("method", LINEAR)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("reverse", [False, True])
def test_gradients(method: str, dtype: torch.dtype, reverse: bool) -> None:
    a = (draw(40, 2, dtype=dtype) / 2).requires_grad_()
    b, start = draw(40, 2, seed=1, dtype=dtype), draw(2, seed=2, dtype=dtype)
    b.requires_grad_()
    start.requires_grad_()

    def run(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
        # the last ones depend on all
        made = linear_scan(a, b, initial=start, dim=0, reverse=reverse, method=method)  # type: ignore[arg-type]
        return made[::13]

    assert torch.autograd.gradcheck(run, (a, b, start))


@pytest.mark.parametrize("method", ["blocked", "sequential"])
def test_second_and_forward_derivatives(method: str) -> None:
    a, b, start = (draw(34, 1) / 2).requires_grad_(), draw(34, 1, seed=1), draw(1, seed=2)
    b.requires_grad_()
    start.requires_grad_()

    def run(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
        return linear_scan(a, b, initial=start, dim=0, method=method)[::11]  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(run, (a, b, start), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(run, (a, b, start))


def test_under_vmap_and_per_example_gradients() -> None:
    a, b = draw(5, 40, 2) / 2, draw(5, 40, 2, seed=1)
    together = linear_scan(a, b)
    torch.testing.assert_close(torch.func.vmap(linear_scan)(a, b), together)
    shared = torch.func.vmap(lambda x: linear_scan(a[0], x), in_dims=2, out_dims=2)
    inner = draw(40, 2, 6, seed=4)
    wanted = torch.stack([linear_scan(a[0], inner[:, :, k]) for k in range(6)], 2)
    torch.testing.assert_close(shared(inner), wanted)

    def square(x: Tensor, y: Tensor) -> Tensor:
        return linear_scan(x, y).square().sum()

    found = torch.func.vmap(torch.func.grad(square))(a, b)
    leaf = a.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(square(leaf, b), leaf)
    torch.testing.assert_close(found, wanted)


def test_tiny_and_zero_factors_are_exact() -> None:
    # cumulative products underflow here: what divides by them would return NaN
    a = torch.full((300, 1), 1e-30)
    a[::7] = 0.0
    b = draw(300, 1, dtype=torch.float32)
    found = linear_scan(a, b)
    torch.testing.assert_close(found, b)
    assert bool(found.isfinite().all())


def test_large_factors_on_a_zero_state_do_not_overflow() -> None:
    a, b = torch.full((256, 1), 1e6), torch.zeros(256, 1)
    b[-1] = 1.0
    found = linear_scan(a, b)
    assert found.flatten().tolist() == [0.0] * 255 + [1.0]


def test_shapes_broadcast_and_dtypes_join() -> None:
    a, b = torch.tensor([0.5, 0.25]).double(), draw(3, 6, 2)
    torch.testing.assert_close(linear_scan(a, b), linear_scan(a.expand(3, 6, 2), b))
    turning = torch.polar(torch.ones(2), torch.tensor([0.1, 0.2]))
    assert linear_scan(turning, torch.ones(6, 2)).dtype is torch.complex64


def test_wrong_arguments_of_the_linear_scan() -> None:
    one = torch.ones(4, 2)
    with pytest.raises(ShapeMismatch, match="dim=0"):
        linear_scan(torch.ones(4), torch.ones(4))
    with pytest.raises(ShapeMismatch, match="broadcast"):
        linear_scan(torch.ones(3, 2), one)
    with pytest.raises(ShapeMismatch, match="broadcast"):
        linear_scan(torch.ones(5, 4, 2), one)
    with pytest.raises(ShapeMismatch, match="state"):
        linear_scan(one, one, initial=torch.ones(3))
    with pytest.raises(InvalidType, match="real or complex"):
        linear_scan(one, torch.ones(4, 2, dtype=torch.long))
    with pytest.raises(EmptyData):
        linear_scan(torch.ones(0, 2), torch.ones(0, 2))
    with pytest.raises(InvalidInput, match="method"):
        linear_scan(one, one, method="fast")  # type: ignore[arg-type]
