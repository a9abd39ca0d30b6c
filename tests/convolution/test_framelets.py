"""Hankel matrices, framelets and their duals, against scipy and against sums written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import fft, linalg
from torch import Tensor

from torchtheory.convolution.framelets import (
    Framelet,
    cosine_basis,
    dual_frame,
    framelet,
    haar_basis,
    random_basis,
    svd_framelet,
    truncation_bound,
)
from torchtheory.convolution.hankel import (
    from_hankel,
    hankel,
    hankel_adjoint,
    hankel_product,
    hankel_rank,
    hankel_singular_values,
)
from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, ShapeMismatch


def signal(d: int, seed: int = 0, *batch: int) -> Tensor:
    return torch.randn(
        *batch, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 9))
def test_hankel_is_what_scipy_makes(d: int, n: int, seed: int) -> None:
    n = min(d, n)
    x = signal(d, seed)
    twice = np.concatenate([x.numpy(), x.numpy()])
    assert np.array_equal(hankel(x, n).numpy(), linalg.hankel(twice[:d], twice[d - 1 : d + n - 1]))
    v, matrix = signal(n, seed + 1), signal(n, seed + 2, d)
    assert torch.allclose(hankel_product(x, v), hankel(x, n) @ v, atol=1e-12)
    assert torch.allclose((hankel(x, n) * matrix).sum(), x @ hankel_adjoint(matrix), atol=1e-11)
    assert torch.allclose(from_hankel(hankel(x, n)), x, atol=1e-12)
    # the nearest Hankel matrix: what is left over is orthogonal to all of them
    rest = matrix - hankel(from_hankel(matrix), n)
    assert torch.allclose(hankel_adjoint(rest), torch.zeros(d, dtype=torch.float64), atol=1e-11)


def test_batches_dtypes_and_gradients() -> None:
    x = signal(9, 0, 2, 3).float().requires_grad_()
    assert hankel(x, 4).shape == (2, 3, 9, 4)
    assert hankel(x, 4).dtype == torch.float32
    assert torch.equal(hankel(x, 4)[1, 2], hankel(x[1, 2], 4))
    # the derivative of a linear map is its adjoint
    m = signal(4, 1, 2, 3, 9).float()
    (g,) = torch.autograd.grad((hankel(x, 4) * m).sum(), x)
    assert torch.allclose(g, hankel_adjoint(m), atol=1e-5)


def test_rank_of_waves_by_hand() -> None:
    d = 40
    t = torch.arange(d, dtype=torch.float64)

    def wave(f: float) -> Tensor:
        return torch.cos(2 * math.pi * f * t / d + 0.4)

    assert hankel_rank(wave(3), 8) == 2
    assert hankel_rank(wave(3) + 1, 8) == 3
    assert hankel_rank(wave(3) + wave(7) + wave(11), 8) == 6
    assert hankel_rank(wave(3) + wave(7) + wave(11), 5) == 5
    assert hankel_rank(wave(3.5), 8) == 8
    assert hankel_rank(wave(3) + 1e-9 * wave(7), 8) == 4
    assert hankel_rank(wave(3) + 1e-9 * wave(7), 8, tolerance=1e-6) == 2
    assert hankel_rank(torch.zeros(d, dtype=torch.float64), 8) == 0
    # with as many columns as rows, the singular values are the moduli of the transform
    x = signal(d)
    moduli = np.sort(np.abs(fft.fft(x.numpy())))[::-1]
    assert np.allclose(hankel_singular_values(x, d).numpy(), moduli, atol=1e-10)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 12), st.integers(1, 12), st.integers(0, 4), st.integers(0, 3))
def test_frames_give_everything_back(d: int, n: int, more: int, seed: int) -> None:
    n = min(d, n)
    made = framelet(signal(d + more, seed, d), signal(n + more, seed + 1, n))
    x = signal(d, seed + 2, 3)
    # a random square frame may be badly conditioned: what is lost is rounding times that
    worst = float(torch.linalg.cond(made.pooling) * torch.linalg.cond(made.filters))
    assert torch.allclose(made.decode(made.encode(x)), x, atol=1e-13 * max(10.0, worst) * 10)
    c = made.encode(x)
    assert torch.allclose(c, made.pooling.T @ hankel(x, n) @ made.filters, atol=1e-10)
    peer = np.linalg.pinv(made.pooling.numpy()).T
    assert np.allclose(
        dual_frame(made.pooling).numpy(), peer, atol=1e-12 * worst * (1 + abs(peer).max())
    )


def test_one_coefficient_by_hand() -> None:
    """x = (1, 2, 3) and v = (1, -1): differences to the neighbor; u = (1, 0, 0) takes the first."""
    u = torch.tensor([[1.0], [0.0], [0.0]], dtype=torch.float64)
    v = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    made = Framelet(u, v, u, v)
    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    assert made.encode(x).tolist() == [[-1.0]]
    # decoded: -1/2 (u * v) = -1/2 (1, -1, 0)
    assert made.decode(made.encode(x)).tolist() == [-0.5, 0.5, 0.0]


def test_bases_are_orthonormal_and_known() -> None:
    for basis in (cosine_basis(6), haar_basis(8), random_basis(7, 3)):
        eye = torch.eye(len(basis), dtype=torch.float64)
        assert torch.allclose(basis.T @ basis, eye, atol=1e-12)
    x = signal(6)
    assert np.allclose((cosine_basis(6).T @ x).numpy(), fft.dct(x.numpy(), norm="ortho"))
    haar = haar_basis(4)
    assert torch.allclose(haar[:, 0], torch.full((4,), 0.5, dtype=torch.float64))
    assert torch.allclose(haar[:, 1], torch.tensor([0.5, 0.5, -0.5, -0.5], dtype=torch.float64))
    assert not torch.equal(random_basis(3, 0), random_basis(3, 1))
    # Gram and Schmidt's of a normal matrix: what is left is triangular with a positive diagonal
    left = random_basis(7, 3).T @ signal(7, 3, 7)
    assert torch.allclose(left, left.triu(), atol=1e-12)
    assert float(left.diagonal().min()) > 0
    made = framelet(cosine_basis(6), haar_basis(4))
    assert torch.equal(made.pooling, cosine_basis(6))
    assert torch.equal(made.filters, haar_basis(4))


def test_own_singular_vectors() -> None:
    x = signal(15)
    made = svd_framelet(x, 6)
    c = made.encode(x)
    values = np.linalg.svd(hankel(x, 6).numpy(), compute_uv=False)
    assert np.allclose(c.numpy(), np.diag(values), atol=1e-11)
    assert torch.allclose(made.decode(c), x, atol=1e-11)
    assert bool((made.filters.amax(0) > -made.filters.amin(0)).all())
    for rank in range(1, 6):
        part = svd_framelet(x, 6, rank)
        lost = float((x - part.decode(part.encode(x))).norm())
        bound = truncation_bound(hankel_singular_values(x, 6), rank)
        assert bound == pytest.approx(math.sqrt((values[rank:] ** 2).sum() / 6))
        assert lost <= bound + 1e-12
    assert truncation_bound(hankel_singular_values(x, 6), 0) == pytest.approx(float(x.norm()))


def test_what_does_not_fit_is_refused() -> None:
    x = signal(5)
    for n in (0, 6, 2.5):
        with pytest.raises(InvalidInput):
            hankel(x, n)  # type: ignore[arg-type]
    with pytest.raises(InvalidType):
        hankel(torch.arange(5), 2)
    with pytest.raises(NonFinite):
        hankel(torch.tensor([1.0, math.nan]), 1)
    with pytest.raises(ShapeMismatch):
        hankel_product(x, signal(6))
    with pytest.raises(InvalidInput, match="span"):
        dual_frame(signal(3, 0, 4))
    with pytest.raises(InvalidInput, match="span"):
        dual_frame(torch.ones(3, 5, dtype=torch.float64))
    with pytest.raises(ShapeMismatch, match="circle"):
        framelet(torch.eye(3, dtype=torch.float64), torch.eye(4, dtype=torch.float64))
    made = framelet(torch.eye(5, dtype=torch.float64), torch.eye(2, dtype=torch.float64))
    with pytest.raises(ShapeMismatch):
        made.encode(signal(4))
    with pytest.raises(ShapeMismatch):
        made.decode(signal(4))
    with pytest.raises(InvalidType, match="signals must be torch"):
        made.encode(signal(5).float())
    with pytest.raises(InvalidType, match="coefficients must be torch"):
        made.decode(made.encode(signal(5)).float())
    with pytest.raises(InvalidType, match="filters must be torch"):
        framelet(torch.eye(5, dtype=torch.float64), torch.eye(2))
    with pytest.raises(InvalidType, match="float32 or float64"):
        hankel_rank(torch.ones(4).half(), 2)
    for values in (hankel_singular_values(signal(5, 0, 2), 2), torch.ones(0)):
        with pytest.raises(InvalidInput):
            truncation_bound(values, 0)
    with pytest.raises(InvalidInput, match="power of 2"):
        haar_basis(6)
    with pytest.raises(ShapeMismatch):
        svd_framelet(signal(5, 0, 2), 2)
    with pytest.raises(ShapeMismatch):
        hankel_rank(signal(5, 0, 2), 2)
