"""Linear maps that commute with shifts, and those that do not."""

import copy
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import circulant
from torch import Tensor, nn

from torchtheory.convolution import shift_equivariant
from torchtheory.convolution.circulant_matrices import (
    circulant_eigenvalues,
    commutator_norm,
    nearest_convolution,
    off_diagonal_after_fourier,
)
from torchtheory.convolution.discrete import convolve
from torchtheory.convolution.shift_equivariant import is_convolution
from torchtheory.core.errors import TorchTheoryError


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def layer(module: nn.Module, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    module = module.to(dtype)
    for p in module.parameters():
        p.data = torch.randn(p.shape, generator=generator, dtype=dtype)
    return module


def ring(channels: int, outputs: int, taps: int, dims: int, **more: bool) -> nn.Module:
    kind = {1: nn.Conv1d, 2: nn.Conv2d}[dims]
    return kind(channels, outputs, taps, padding="same", padding_mode="circular", **more)


def test_kernels_as_long_as_zeros_outside_allow() -> None:
    """Every difference of two places has a number of its own, up to the corners of the grid."""
    whole = layer(nn.Conv2d(1, 1, (7, 5), padding=(3, 2), bias=False))
    found = is_convolution(whole, (1, 4, 3))
    assert found.kind == "convolution with zeros outside"
    assert found.toeplitz_residual < 1e-14


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(0, 10**6))
def test_circulant_matrices_and_no_others(n: int, seed: int) -> None:
    h = draw(n, seed=seed)
    matrix = torch.from_numpy(circulant(h.numpy()))
    found = is_convolution(matrix)
    assert found
    assert found.kernel is not None
    assert torch.allclose(found.kernel, h, atol=1e-14)
    assert found.commutator < 1e-15
    assert found.residual < 1e-14
    nearest = nearest_convolution(matrix)
    assert torch.allclose(nearest.matrix, matrix, atol=1e-14)
    if n > 1:
        other = is_convolution(draw(n, n, seed=seed))
        assert other.kind == "not shift-equivariant"
        assert other.commutator > 1e-3


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.integers(0, 10**6))
def test_the_mean_over_shifts_is_the_projection(n: int, seed: int) -> None:
    matrix = draw(n, n, seed=seed)
    shift = torch.eye(n, dtype=torch.float64).roll(1, 0)
    powers = [torch.linalg.matrix_power(shift, k) for k in range(n)]
    mean = sum(p.T @ matrix @ p for p in powers) / n
    found = nearest_convolution(matrix)
    assert torch.allclose(found.matrix, mean, atol=1e-13)
    assert found.distance == pytest.approx(float((matrix - mean).norm()))
    # orthogonal to every circulant matrix: none is nearer
    for p in powers:
        assert abs(float(((matrix - mean) * p).sum())) < 1e-12
    gap = commutator_norm(matrix)
    assert gap == pytest.approx(float((matrix @ shift - shift @ matrix).norm()))
    assert 2 * math.sin(math.pi / n) * found.distance <= gap * (1 + 1e-12)
    assert gap <= 2 * found.distance * (1 + 1e-12)
    assert off_diagonal_after_fourier(matrix) == pytest.approx(found.distance)


@pytest.mark.parametrize("n", [2, 3, 6, 11, 40])
def test_the_inequalities_are_attained(n: int) -> None:
    wave = torch.cos(2 * torch.pi * torch.arange(n, dtype=torch.float64) / n)
    slow = torch.diag(wave)
    distance = nearest_convolution(slow).distance
    assert commutator_norm(slow) == pytest.approx(2 * math.sin(math.pi / n) * distance)
    if n % 2 == 0:
        fast = torch.diag((-1.0) ** torch.arange(n).double())
        assert commutator_norm(fast) == pytest.approx(2 * nearest_convolution(fast).distance)


def test_eigenvalues_are_the_transform() -> None:
    h = draw(9)
    matrix = circulant(h.numpy())
    gaps = np.abs(np.linalg.eigvals(matrix)[:, None] - circulant_eigenvalues(h).numpy())
    assert gaps.min(0).max() < 1e-12
    assert gaps.min(1).max() < 1e-12
    wave = torch.exp(2j * torch.pi * torch.arange(9) * 4 / 9).to(torch.complex128)
    image = torch.from_numpy(matrix).to(wave.dtype) @ wave
    assert torch.allclose(image, circulant_eigenvalues(h)[4] * wave, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dims", [1, 2])
def test_a_users_layer_gives_up_its_kernel(dims: int, dtype: torch.dtype) -> None:
    module = layer(ring(2, 3, 3, dims, bias=False), dtype=dtype)
    shape = (2, *(6, 5)[:dims])
    found = is_convolution(module, shape)
    assert found
    assert found.is_exact
    assert found.kernel is not None
    assert found.kernel.shape == (3, *shape)
    # torch correlates: the tap in front of the middle is at place 1, the one behind at place -1
    weight = dict(module.named_parameters())["weight"].detach()
    index = torch.tensor([1, 0, -1])
    taps = found.kernel[:, :, index] if dims == 1 else found.kernel[:, :, index][:, :, :, index]
    assert torch.allclose(taps, weight, atol=1e-5)
    assert float(found.kernel.square().sum()) == pytest.approx(
        float(weight.square().sum()), rel=1e-5
    )
    x = draw(4, *shape).to(dtype)
    made = sum(
        convolve(x[:, c], found.kernel[1, c], mode="circular", method="direct") for c in range(2)
    )
    assert torch.allclose(module(x)[:, 1], made, atol=1e-4 if dtype == torch.float32 else 1e-12)


def test_the_reasons() -> None:
    image, line = (1, 6, 6), (1, 7)
    cases: list[tuple[object, object, str, str]] = [
        (ring(1, 2, 3, 2), image, "convolution plus a constant", "affine"),
        (nn.Conv2d(1, 2, 3, padding=1, bias=False), image, "convolution with zeros outside", "cut"),
        (nn.Conv2d(1, 2, 3, padding=1), image, "convolution with zeros outside", "plus a bias"),
        (nn.Conv2d(1, 2, 3), image, "changes the grid", "[2, 4, 4]"),
        (nn.Conv2d(1, 2, 3, stride=2, padding=1), image, "changes the grid", "[2, 3, 3]"),
        (nn.Flatten(), image, "changes the grid", "[36]"),
        (
            nn.Conv1d(1, 1, 3, padding=1, padding_mode="reflect", bias=False),
            line,
            "not shift-equivariant",
            "axis 0",
        ),
        (nn.Linear(7, 7, bias=False), line, "not shift-equivariant", "not a shift"),
        (nn.Sequential(ring(1, 1, 3, 1), nn.ReLU()), line, "not linear", "not linear"),
        (nn.AvgPool1d(3, 1, padding=1), line, "convolution with zeros outside", "cut"),
        (nn.MaxPool1d(3, 1, padding=1), line, "not linear", "sum"),
        (nn.Softmax(-1), line, "not linear", "sum"),
    ]
    for module, shape, kind, words in cases:
        assert isinstance(module, nn.Module)
        found = is_convolution(layer(module), shape)  # type: ignore[arg-type]
        assert found.kind == kind, (module, found)
        assert words in found.reason
        assert "nan" not in repr(found)
        assert not found
    columns = is_convolution(lambda x: x * torch.linspace(1, 2, 5)[:, None], (1, 5, 4))
    assert columns.kind == "not shift-equivariant"
    assert "axis 0" in columns.reason
    rows = is_convolution(lambda x: x * torch.linspace(1, 2, 4), (1, 5, 4))
    assert "axis 1" in rows.reason


def test_functions() -> None:
    found = is_convolution(lambda x: x.roll(2, -1) - 3 * x, 5)
    assert found
    assert found.kernel is not None
    assert found.kernel.tolist() == [-3.0, 0.0, 1.0, 0.0, 0.0]
    assert is_convolution(lambda x: x + torch.arange(5), 5).kind == "affine"
    assert is_convolution(lambda x: 0 * x, 5)
    assert is_convolution(torch.sin, 5).kind == "not linear"
    # only signals of several sizes tell
    assert is_convolution(lambda x: x.where(x.abs() <= 10, 0), 8).kind == "not linear"
    weight = torch.tensor([[[1.0, 2.0]]])
    made = is_convolution(
        lambda x: nn.functional.conv1d(nn.functional.pad(x, (1, 0), mode="circular"), weight),
        (1, 4),
        dtype=torch.float32,
    )
    assert made
    assert made.kernel is not None
    assert made.kernel.tolist() == [[[2.0, 1.0, 0.0, 0.0]]]


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float32, 1e-30), (torch.float32, 1e30), (torch.float64, 1e-200)]
)
def test_tiny_and_huge_maps(dtype: torch.dtype, size: float) -> None:
    diagonal = size * torch.arange(4, dtype=dtype).diag()
    assert is_convolution(diagonal).kind == "not shift-equivariant"
    ring_shift = size * torch.eye(4, dtype=dtype).roll(1, 0)
    found = is_convolution(ring_shift)
    assert found
    assert found.kernel is not None
    assert torch.equal(found.kernel, ring_shift[:, 0])
    assert is_convolution(lambda x: size * x.abs(), 4, dtype=dtype).kind == "not linear"
    moved = is_convolution(lambda x: size * (x + torch.arange(4)), 4, dtype=dtype)
    assert moved.kind == "affine"


def test_numbers_that_depend_on_the_place_are_told_from_a_bias() -> None:
    slope = 1e-3 * torch.arange(5)
    assert is_convolution(lambda x: x + slope, 5).kind == "affine"
    assert is_convolution(lambda x: x + 1e-3, 5).kind == "convolution plus a constant"


def test_the_commutator_is_the_largest_over_the_axes() -> None:
    # it commutes with shifts of the rows, and not of the columns
    matrix = torch.eye(3, dtype=torch.float64).kron(torch.tensor([1.0, -1.0]).double().diag())
    assert commutator_norm(matrix, (1, 3, 2)) == pytest.approx(math.sqrt(6 * 4))
    matrix = torch.tensor([1.0, -1.0]).double().diag().kron(torch.eye(3, dtype=torch.float64))
    assert commutator_norm(matrix, (1, 2, 3)) == pytest.approx(math.sqrt(6 * 4))


def test_maps_that_write_to_their_input(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_convolution(lambda x: x.mul_(2), 6)
    monkeypatch.setattr(shift_equivariant, "_LARGEST_MATRIX", 1)
    assert is_convolution(lambda x: x.mul_(2), 6)


def test_large_maps_are_tried_on_random_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [
        (ring(2, 3, 3, 2, bias=False), "convolution"),
        (ring(2, 3, 3, 2), "convolution plus a constant"),
        (nn.Conv2d(2, 3, 3, padding=1, bias=False), "convolution with zeros outside"),
        (nn.Sequential(ring(2, 3, 3, 2), nn.ReLU()), "not linear"),
        (nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), "not shift-equivariant"),
    ]
    exact = [is_convolution(layer(m), (2, 9, 8)) for m, _ in cases]
    monkeypatch.setattr(shift_equivariant, "_LARGEST_MATRIX", 1)
    for (module, kind), known in zip(cases, exact, strict=True):
        found = is_convolution(layer(module), (2, 9, 8), generator=3)
        assert found.kind == known.kind == kind
        assert not found.is_exact
        assert known.is_exact
        if known.kernel is not None:
            assert found.kernel is not None
            assert torch.allclose(found.kernel, known.kernel, atol=1e-12)
            # 16 signals of 144 numbers each: a norm to within a few hundredths
            assert found.commutator == pytest.approx(known.commutator, rel=0.3, abs=1e-12)


def test_the_model_is_left_as_it_was() -> None:
    module = nn.Sequential(ring(1, 2, 3, 1), nn.BatchNorm1d(2), nn.Dropout(0.5)).double()
    before = copy.deepcopy(module.state_dict())
    state = torch.get_rng_state()
    assert is_convolution(module, (1, 6)).kind == "convolution plus a constant"
    assert module.training
    assert torch.equal(state, torch.get_rng_state())
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key])


def test_channels_of_a_matrix() -> None:
    module = layer(ring(2, 3, 3, 2, bias=False))
    units = torch.eye(2 * 4 * 5, dtype=torch.float64).reshape(-1, 2, 4, 5)
    matrix = module(units).detach().reshape(40, -1).T
    found = nearest_convolution(matrix, (2, 4, 5))
    assert found.distance < 1e-13
    assert off_diagonal_after_fourier(matrix, (2, 4, 5)) < 1e-12
    assert commutator_norm(matrix, (2, 4, 5)) < 1e-13
    made = is_convolution(matrix, (2, 4, 5))
    assert made
    assert made.kernel is not None
    assert torch.allclose(made.kernel, found.kernel, atol=1e-13)
    noisy = matrix + 0.1 * draw(60, 40)
    assert not is_convolution(noisy, (2, 4, 5))
    assert is_convolution(noisy, (2, 4, 5), tolerance=0.9)
    near = nearest_convolution(noisy, (2, 4, 5))
    assert off_diagonal_after_fourier(noisy, (2, 4, 5)) == pytest.approx(near.distance)
    # the mean over 20 shifts leaves a 20th of the noise's energy
    assert float((near.matrix - matrix).norm()) < 0.1 * math.sqrt(60 * 40 / 20) * 1.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: is_convolution(torch.ones(2, 3)), "multiple of 3 rows"),
        (lambda: is_convolution(torch.ones(4, 4), (1, 3)), "has 3 columns"),
        (lambda: is_convolution(torch.ones(4, 4), (1, 2, 2, 1)), "one axis of places or two"),
        (lambda: is_convolution(nn.ReLU()), "say what a signal looks like"),
        (lambda: is_convolution("relu", 3), "a matrix, a module or a function"),  # type: ignore[arg-type]
        (lambda: is_convolution(nn.Conv1d(2, 2, 1), (3, 4)), "expected input"),
        (lambda: is_convolution(lambda x: x.sum(), 4), "one result per signal"),
        (lambda: is_convolution(lambda x: None, 4), "a tensor of real numbers"),  # type: ignore[arg-type,return-value]
        (lambda: is_convolution(lambda x: x / 0, 4), "not finite"),
        (lambda: is_convolution(torch.eye(3), tolerance=2.0), "tolerance must be"),
        (lambda: is_convolution(torch.eye(3), dtype=torch.int64), "dtype must be"),
        (lambda: nearest_convolution(torch.tensor([[math.nan]])), "must be finite"),
        (lambda: circulant_eigenvalues(torch.ones(2, 2, 2)), "a kernel is real"),
        (lambda: circulant_eigenvalues(torch.ones(0)), "a kernel is real"),
        (lambda: circulant_eigenvalues(torch.ones(3).half()), "a kernel is real"),
        (lambda: circulant_eigenvalues(torch.tensor([math.nan])), "must be finite"),
        (lambda: is_convolution(nn.Linear(16, 16).bfloat16(), 16), "copy.deepcopy(module).float()"),
    ],
)
def test_bad_input_is_refused(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TorchTheoryError, match=re.escape(message)):
        call()
