"""The linear autoencoder and low-rank approximation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA, TruncatedSVD

from torchtheory.core.errors import EmptyData, InvalidInput, NonFinite, ShapeMismatch
from torchtheory.neurons.autoencoder import LinearAutoencoder, least_loss, low_rank


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=30, deadline=None)
@given(n=st.integers(2, 9), d=st.integers(2, 9), seed=st.integers(0, 1000), data=st.data())
def test_eckart_young(n: int, d: int, seed: int, data) -> None:
    rank = data.draw(st.integers(0, min(n, d)))
    x = randn(n, d, seed=seed)
    best = low_rank(x, rank)
    assert torch.linalg.matrix_rank(best.matrix) <= rank
    assert (x - best.matrix).norm().item() == pytest.approx(best.error, abs=1e-12)
    rival = (
        randn(n, max(rank, 1), seed=seed + 1)[:, :rank] @ randn(max(rank, 1), d, seed=seed)[:rank]
    )
    assert (x - rival).norm() >= best.error - 1e-12
    assert best.energy[-1].item() == pytest.approx(1)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), code=st.integers(1, 4))
def test_optimum(seed: int, code: int) -> None:
    x = randn(12, 5, seed=seed)
    best = LinearAutoencoder.optimal(x, code)
    assert best.loss(x).item() == pytest.approx(least_loss(x, code), rel=1e-12)
    torch.testing.assert_close(best(x), low_rank(x, code).matrix)
    mixing = randn(code, code, seed=seed) + 3 * torch.eye(code).double()
    torch.testing.assert_close(LinearAutoencoder.optimal(x, code, mixing)(x), best(x))
    other = LinearAutoencoder(5, code, generator=seed)
    assert other.loss(x).item() >= least_loss(x, code)
    # the closed form is a critical point
    for gradient in best.gradients(x):
        assert gradient.abs().max() < 1e-12


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), code=st.integers(1, 4))
def test_gradients(seed: int, code: int) -> None:
    x = randn(7, 4, seed=seed)
    net = LinearAutoencoder(4, code, generator=seed)
    auto = torch.autograd.grad(net.loss(x), [net.encoder.weight, net.decoder.weight])
    for ours, theirs in zip(net.gradients(x), auto, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_by_hand() -> None:
    x = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))
    assert least_loss(x, 1) == pytest.approx(5 / 6)
    assert LinearAutoencoder.optimal(x, 1)(x).diagonal().tolist() == pytest.approx([3, 0, 0])
    assert low_rank(x, 2).energy.tolist() == pytest.approx([9 / 14, 13 / 14, 1])


def test_scikit_learn() -> None:
    x = randn(50, 6) + 2
    svd = TruncatedSVD(3, algorithm="arpack")
    theirs = torch.tensor(svd.inverse_transform(svd.fit_transform(x.numpy())))
    torch.testing.assert_close(LinearAutoencoder.optimal(x, 3)(x).detach(), theirs)
    pca = PCA(3, svd_solver="full")
    theirs = torch.tensor(pca.inverse_transform(pca.fit_transform(x.numpy())))
    centered = x - x.mean(0)
    torch.testing.assert_close(
        LinearAutoencoder.optimal(centered, 3)(centered).detach() + x.mean(0), theirs
    )
    assert not torch.allclose(LinearAutoencoder.optimal(x, 3)(x).detach(), theirs)


def test_dtype_is_kept() -> None:
    x = randn(5, 3).float()
    assert LinearAutoencoder.optimal(x, 2)(x).dtype == torch.float32
    assert low_rank(x, 1).matrix.dtype == torch.float32


def test_refusals() -> None:
    x = randn(5, 3)
    for rank in (-1, 4, 1.5, True):
        with pytest.raises(InvalidInput):
            low_rank(x, rank)
    with pytest.raises(InvalidInput):
        LinearAutoencoder.optimal(x, 0)
    with pytest.raises(ShapeMismatch):
        LinearAutoencoder.optimal(x, 2, torch.eye(3).double())
    with pytest.raises(ShapeMismatch):
        LinearAutoencoder.from_matrices(randn(2, 3), randn(2, 3))
    with pytest.raises(NonFinite):
        low_rank(x / 0, 1)
    with pytest.raises(EmptyData):
        least_loss(torch.zeros(0, 3).double(), 1)
