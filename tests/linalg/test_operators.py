"""LinearOperator: the action, the algebra, the adjoint, the refusals; and seeds."""

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d

from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.core.random import as_generator, gaussian, rademacher
from torchtheory.linalg.operators import LinearOperator, adjoint_from_autograd, column_blocks

F64 = torch.float64


def random_matrix(m, n, seed=0, dtype=F64):
    return gaussian(m, n, generator=as_generator(seed), dtype=dtype)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("given_adjoint", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_action_and_adjoint_agree_with_the_matrix(batched, given_adjoint, dtype):
    M = random_matrix(4, 6, dtype=dtype)
    seen = []

    def matvec(v):
        seen.append(v.ndim)
        return M @ v

    rmatvec = (lambda u: M.T @ u) if given_adjoint else None
    A = LinearOperator((4, 6), matvec, rmatvec, batched=batched, dtype=dtype)
    for columns in (None, 1, 3):
        shape = (6,) if columns is None else (6, columns)
        v = gaussian(*shape, generator=as_generator(1), dtype=dtype)
        u = gaussian(4, *shape[1:], generator=as_generator(2), dtype=dtype)
        torch.testing.assert_close(A @ v, M @ v)
        torch.testing.assert_close(A.T @ u, M.T @ u)
        torch.testing.assert_close(A.adjoint.adjoint @ v, M @ v)
    assert set(seen) == ({2} if batched else {1})
    assert (A @ torch.empty(6, 0, dtype=dtype)).shape == (4, 0)


def test_algebra_agrees_with_matrices():
    M, N, P = random_matrix(3, 5, 0), random_matrix(3, 5, 1), random_matrix(5, 2, 2)
    A, B, C = map(LinearOperator.from_matrix, (M, N, P))
    half = torch.tensor(0.5, dtype=F64)
    combined = (2 * A - B / 4 + A * half) @ C
    expected = (2 * M - N / 4 + M * half) @ P
    torch.testing.assert_close(combined.to_dense(), expected)
    torch.testing.assert_close(combined.T.to_dense(), expected.T)
    torch.testing.assert_close(combined.T.T.to_dense(), expected)
    torch.testing.assert_close((-A).to_dense(), -M)
    shifted = A @ A.T + 3 * LinearOperator.identity(3, dtype=F64)
    torch.testing.assert_close(shifted.to_dense(), M @ M.T + 3 * torch.eye(3, dtype=F64))


def test_symmetric_operators_are_their_own_adjoint():
    H = LinearOperator((2, 2), lambda v: 2 * v, symmetric=True)
    assert H.T is H
    assert LinearOperator.from_matrix(torch.eye(3)).symmetric
    assert not LinearOperator.from_matrix(random_matrix(3, 3)).symmetric
    assert (H + 0.5 * H).symmetric


@pytest.mark.parametrize("batched", [False, True])
def test_convolution_as_an_operator(batched):
    weight = gaussian(3, 2, 3, 3, generator=as_generator(0), dtype=F64).requires_grad_()
    A = LinearOperator.from_function(
        lambda x: conv2d(x, weight, stride=2, padding=1), (2, 5, 6), batched=batched, dtype=F64
    )
    assert A.shape == (3 * 3 * 3, 2 * 5 * 6)
    dense = A.to_dense()
    x = gaussian(2, 5, 6, generator=as_generator(1), dtype=F64)
    expected = conv2d(x[None], weight, stride=2, padding=1).flatten()
    torch.testing.assert_close(dense @ x.flatten(), expected)
    torch.testing.assert_close(A.T.to_dense(), dense.T)
    # the action itself stays differentiable
    (A @ x.flatten()).sum().backward()
    assert weight.grad is not None


def test_adjoint_records_the_graph_once_and_sees_new_weights():
    weight = torch.ones(3)
    calls = []

    def action(v):
        calls.append(1)
        return weight * v

    A = LinearOperator((3, 3), action)
    At = A.adjoint
    for _ in range(4):
        At @ torch.ones(3)
    assert len(calls) == 1
    weight = torch.full((3,), 2.0)
    assert (A.adjoint @ torch.ones(3)).tolist() == [2.0, 2.0, 2.0]


def test_adjoint_works_without_grad_mode():
    M = random_matrix(3, 4)
    with torch.no_grad():
        A = LinearOperator((3, 4), lambda v: M @ v, dtype=F64)
        torch.testing.assert_close(A.T.to_dense(), M.T)


def test_adjoint_that_cannot_be_differentiated_says_what_to_do():
    A = LinearOperator((2, 2), lambda v: torch.from_numpy(v.numpy().copy()))
    with pytest.raises(InvalidInput, match="give rmatvec"):
        A.T @ torch.ones(2)


def test_affine_maps_are_refused():
    with pytest.raises(InvalidInput, match="drop its bias"):
        LinearOperator.from_function(nn.Linear(3, 2), (3,))
    with pytest.raises(InvalidInput, match="drop its bias"):
        adjoint_from_autograd(LinearOperator((3, 3), lambda v: v + 1))(torch.ones(3))
    with pytest.raises(NonFinite):
        LinearOperator.from_function(lambda x: x / 0, (3,))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.bfloat16, torch.complex64])
def test_unsupported_dtypes_are_refused(dtype):
    with pytest.raises(InvalidType, match="float32 or float64"):
        LinearOperator((2, 2), lambda v: v, dtype=dtype)
    with pytest.raises(TypeError):
        LinearOperator.from_matrix(torch.ones(2, 2).to(dtype))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (3,), (-1, 2)])
def test_bad_shapes_are_refused(shape):
    with pytest.raises(ShapeMismatch):
        LinearOperator(shape, lambda v: v)


def test_mismatches_are_refused():
    A = LinearOperator.from_matrix(torch.ones(2, 3))
    for bad in (torch.ones(2), torch.ones(2, 3), torch.ones(()), torch.ones(3, 1, 1)):
        with pytest.raises(ShapeMismatch):
            A @ bad
    with pytest.raises(InvalidType, match="convert"):
        A @ torch.ones(3, dtype=F64)
    with pytest.raises(ShapeMismatch, match="compose"):
        A @ A
    with pytest.raises(ShapeMismatch, match="add"):
        A + A.T
    with pytest.raises(InvalidType, match="combine"):
        A + LinearOperator.from_matrix(torch.ones(2, 3, dtype=F64))
    with pytest.raises(InvalidType, match="use @"):
        A * torch.ones(3)
    with pytest.raises(TypeError):
        A + 1
    with pytest.raises(TypeError):
        A * "2"
    with pytest.raises(TypeError):
        A @ [1.0, 2.0, 3.0]
    with pytest.raises(ShapeMismatch, match="2 dimensions"):
        LinearOperator.from_matrix(torch.ones(3))
    with pytest.raises(ShapeMismatch, match="square"):
        LinearOperator((2, 3), lambda v: v[:2], symmetric=True)


def test_wrong_images_are_refused():
    with pytest.raises(ShapeMismatch, match="must return"):
        LinearOperator((2, 3), lambda v: v) @ torch.ones(3)
    with pytest.raises(InvalidType, match="returned"):
        LinearOperator((3, 3), lambda v: v.double()) @ torch.ones(3)
    with pytest.raises(InvalidType, match="tensor"):
        LinearOperator((3, 3), lambda v: v.tolist()) @ torch.ones(3)
    with pytest.raises(InvalidType, match="tensor"):
        LinearOperator.from_function(lambda x: 0.0, (3,))


def test_dense_refuses_what_is_too_large():
    A = LinearOperator.identity(10**6)
    with pytest.raises(InvalidInput, match="limit"):
        A.to_dense()
    with pytest.raises(InvalidInput):
        LinearOperator.identity(10).to_dense(limit=99)


def test_column_blocks_cover_everything_once():
    for rows, columns in ((1, 1), (10**9, 3), (7, 100)):
        blocks = list(column_blocks(rows, columns, budget=50))
        assert [i for block in blocks for i in block] == list(range(columns))
        assert all(len(b) == 1 or rows * len(b) <= 50 for b in blocks)


def test_repr():
    assert repr(LinearOperator.identity(2)) == "LinearOperator(2x2, torch.float32, cpu)"


class TestSeeds:
    def test_same_seed_same_numbers_and_none_is_zero(self):
        draw = lambda seed: gaussian(5, generator=as_generator(seed), dtype=F64)  # noqa: E731
        assert torch.equal(draw(3), draw(3))
        assert torch.equal(draw(None), draw(0))
        assert not torch.equal(draw(1), draw(2))

    def test_global_state_is_untouched(self):
        before = torch.get_rng_state()
        generator = as_generator(5)
        gaussian(10, generator=generator, dtype=F64)
        rademacher(10, generator=generator, dtype=F64)
        assert torch.equal(before, torch.get_rng_state())

    @pytest.mark.parametrize("bad", [1.5, "7", True])
    def test_wrong_kinds_are_refused(self, bad):
        with pytest.raises(InvalidType, match="seed"):
            as_generator(bad)

    @pytest.mark.parametrize("bad", [-1, 2**64])
    def test_seeds_out_of_range_are_refused(self, bad):
        with pytest.raises(InvalidInput, match="seed"):
            as_generator(bad)
