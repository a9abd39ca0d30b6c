"""Loop, scan and convolution agree; what cannot be diagonalized is refused; the LRU."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from torchtheory.convolution.discrete import convolve
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.sequences.recurrent.linear_systems import (
    METHODS,
    causal_convolution,
    diagonalize,
    impulse_response,
    linear_states,
)
from torchtheory.sequences.recurrent.lru import LRU, memory_horizon, modulus, ring_initialization


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("start", [None, draw(5, seed=9)])
def test_three_ways(start: Tensor | None) -> None:
    A, B, x = draw(5, 5) / 3, draw(5, 2, seed=1), draw(3, 90, 2, seed=2)
    found = [linear_states(A, B, x, start=start, method=m) for m in METHODS]
    for other in found[1:]:
        assert float((other - found[0]).abs().max()) < 1e-11 * float(found[0].abs().max() + 1)


def test_diagonal_system() -> None:
    A, B, x = draw(6, 6) / 3, draw(6, 2, seed=1), draw(40, 2, seed=2)
    system = diagonalize(A, B)
    rounding = 1e-13 * system.condition
    back = system.basis @ torch.diag(system.eigenvalues) @ torch.linalg.inv(system.basis)
    assert float((back - A).abs().max()) < rounding
    states = system.states(x) @ system.basis.mT
    assert float(states.imag.abs().max()) < rounding
    # eigenvalues of a real matrix come in conjugate pairs
    values = system.eigenvalues
    gaps = (values[:, None] - values.conj()[None, :]).abs().min(1).values
    assert float(gaps.max()) < 1e-12
    powers = torch.stack([system.basis @ torch.diag(values**k) @ system.entering for k in range(9)])
    assert float((powers - impulse_response(A, B, 9)).abs().max()) < rounding


def test_jordan_blocks_are_refused_and_run_by_the_loop() -> None:
    A, B = torch.tensor([[0.9, 1.0], [0.0, 0.9]]).double(), torch.eye(2).double()
    with pytest.raises(InvalidInput, match="Jordan"):
        diagonalize(A, B)
    near = A + torch.tensor([[0.0, 0.0], [1e-18, 0.0]]).double()
    with pytest.raises(InvalidInput, match="condition number"):
        diagonalize(near, B)
    x = draw(30, 2)
    torch.testing.assert_close(
        linear_states(A, B, x, method="loop"), linear_states(A, B, x, method="convolution")
    )
    rotation = torch.linalg.qr(draw(3, 3, seed=5)).Q
    block = torch.tensor([[0.5, 1.0, 0.0], [0.0, 0.5, 1.0], [0.0, 0.0, 0.5]]).double()
    with pytest.raises(InvalidInput, match="Jordan"):
        diagonalize(rotation @ block @ rotation.T, torch.eye(3).double())
    # repeated eigenvalues with full eigenvectors are no obstacle
    assert diagonalize(0.5 * torch.eye(3).double(), torch.eye(3).double()).condition < 1.001


def test_causal_convolution_is_convolve() -> None:
    kernel, x = draw(7), draw(20, seed=1)
    found = causal_convolution(kernel[:, None, None], x[:, None])[:, 0]
    torch.testing.assert_close(found, convolve(x, kernel)[:20])
    torch.testing.assert_close(found, convolve(x, kernel, method="direct")[:20])


def test_wrong_arguments() -> None:
    A, B = torch.eye(2).double(), torch.ones(2, 1).double()
    with pytest.raises(ShapeMismatch):
        linear_states(A, B, torch.zeros(5, 2).double())
    with pytest.raises(InvalidType, match="dtype"):
        linear_states(A, B, torch.zeros(5, 1))
    with pytest.raises(ShapeMismatch):
        diagonalize(torch.ones(2, 3).double(), B)
    with pytest.raises(InvalidInput, match="ring"):
        ring_initialization(3, 0.9, 0.5)
    for ends in ((0.5, 1.0), (-0.1, 0.5)):
        with pytest.raises(InvalidInput):
            ring_initialization(3, *ends)


@pytest.mark.parametrize("spread", ["area", "radius"])
def test_ring_is_uniform_as_it_says(spread: str) -> None:
    nu, phi = ring_initialization(4000, 0.3, 0.9, spread=spread, generator=4)  # type: ignore[arg-type]
    r = modulus(nu)
    u = (r**2 - 0.09) / (0.81 - 0.09) if spread == "area" else (r - 0.3) / 0.6
    other = (r - 0.3) / 0.6 if spread == "area" else (r**2 - 0.09) / (0.81 - 0.09)
    assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-4
    assert stats.kstest(other.numpy(), "uniform").pvalue < 1e-6
    assert stats.kstest((phi / (2 * math.pi)).numpy(), "uniform").pvalue > 1e-4
    torch.testing.assert_close((-r.log()).log(), nu)


def test_horizon() -> None:
    nu, _ = ring_initialization(10, 0.5, 0.99)
    torch.testing.assert_close(
        modulus(nu) ** memory_horizon(nu), torch.full((10,), 1 / math.e).double()
    )


def test_lru_is_a_dense_recurrence_and_a_convolution() -> None:
    layer = LRU(2, 3, 2, smallest=0.5, largest=0.95, generator=3)
    x = draw(4, 60, 2)
    with torch.no_grad():
        values, entering = layer.eigenvalues, layer.scaled

        def real(matrix: Tensor) -> Tensor:
            """Multiplication by complex numbers, on real and imaginary parts."""
            return torch.cat(
                [
                    torch.cat([matrix.real, -matrix.imag], 1),
                    torch.cat([matrix.imag, matrix.real], 1),
                ]
            )

        A, B = real(torch.diag(values)), torch.cat([entering.real, entering.imag])
        states = linear_states(A, B, x, method="loop")
        W = torch.cat([layer.leaving.real, -layer.leaving.imag], 1)
        wanted = states @ W.T + layer.through(x)
        torch.testing.assert_close(layer(x), wanted)
        torch.testing.assert_close(layer(x, method="convolution"), wanted)


def test_lru_states_are_bounded_and_normalized() -> None:
    layer = LRU(1, 200, 1, smallest=0.2, largest=0.99, generator=1)
    with torch.no_grad():
        pulse = torch.zeros(1500, 1).double()
        pulse[0] = 1.0
        size = layer.entering.abs().square().squeeze(1)
        # white noise has the mean square that an impulse has in total
        total = layer.states(pulse).abs().square().sum(0) / size
        torch.testing.assert_close(total, 1 - modulus(layer.nu) ** 3000)
        x = draw(8, 500, 1, seed=1)
        plain = LRU(1, 200, 1, smallest=0.2, largest=0.99, normalized=False, generator=1)
        bounded = x.clamp(-1, 1)
        most = plain.scaled.abs().squeeze(1) / (1 - modulus(plain.nu))
        assert bool((plain.states(bounded).abs().amax((0, 1)) <= most).all())
    assert bool((LRU(1, 5, 1).eigenvalues.abs() < 1).all())


def test_lru_trains() -> None:
    layer = LRU(1, 8, 1, smallest=0.5, largest=0.9, generator=2)
    x = draw(16, 40, 1)
    y = torch.cat([torch.zeros(16, 3, 1).double(), x[:, :-3]], 1)  # the input three steps ago
    step = torch.optim.Adam(layer.parameters(), lr=0.02)
    losses = []
    for _ in range(150):
        step.zero_grad()
        loss = (layer(x) - y).square().mean()
        loss.backward()
        step.step()
        losses.append(float(loss))
    assert losses[-1] < 0.1 * losses[0]
    with pytest.raises(InvalidInput, match="state 0"):
        layer(x, torch.zeros(8), method="convolution")
