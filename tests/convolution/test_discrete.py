"""Convolution of finite signals against scipy, numpy, torch and its own definition."""

import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal
from torch import Tensor

from torchtheory.convolution.discrete import (
    METHODS,
    MODES,
    Method,
    Mode,
    binomial_kernel,
    convolve,
    cross_correlate,
    fastest_method,
    flip,
    index_range,
    wound,
)
from torchtheory.convolution.layer_matrices import toeplitz_matrix
from torchtheory.core.errors import InvalidInput, InvalidType, TorchTheoryError

EPS = torch.finfo(torch.float64).eps


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def rounding(f: Tensor, h: Tensor) -> float:
    """What the worst of the methods, the transform, may be wrong by."""
    return 10 * EPS * (2 + math.log2(f.numel() + h.numel())) * float(f.norm() * h.norm())


def by_definition(f: Tensor, h: Tensor, mode: Mode) -> Tensor:
    """The double sum over a dictionary of places, whatever the number of axes."""
    sizes, taps = f.shape, h.shape
    full: dict[tuple[int, ...], float] = {}
    for s in np.ndindex(*sizes):
        for t in np.ndindex(*taps):
            place = tuple(a + b for a, b in zip(s, t, strict=True))
            if mode == "circular":
                place = tuple(p % n for p, n in zip(place, sizes, strict=True))
            full[place] = full.get(place, 0.0) + float(f[s] * h[t])
    ranges = [index_range(n, m, mode) for n, m in zip(sizes, taps, strict=True)]
    wanted = [full[tuple(r[i] for r, i in zip(ranges, k, strict=True))]
              for k in np.ndindex(*map(len, ranges))]  # fmt: skip
    return torch.tensor(wanted, dtype=f.dtype).reshape([len(r) for r in ranges])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from(MODES),
    st.sampled_from(METHODS),
    st.integers(0, 10**6),
)
def test_every_method_is_the_definition_on_the_line(
    n: int, m: int, mode: Mode, method: Method, seed: int
) -> None:
    if mode == "valid" and m > n:
        n, m = m, n
    f, h = draw(n, seed=seed), draw(m, seed=seed + 1)
    made = convolve(f, h, mode=mode, method=method)
    assert (made - by_definition(f, h, mode)).abs().max() <= rounding(f, h)


@settings(max_examples=30, deadline=None)
@given(
    st.tuples(*[st.integers(1, 7)] * 4),
    st.sampled_from(MODES),
    st.sampled_from(METHODS),
    st.integers(0, 10**6),
)
def test_every_method_is_the_definition_in_the_plane(
    sizes: tuple[int, int, int, int], mode: Mode, method: Method, seed: int
) -> None:
    shape, taps = sizes[:2], sizes[2:]
    if mode == "valid":
        pairs = [sorted(p) for p in zip(shape, taps, strict=True)]
        taps, shape = (pairs[0][0], pairs[1][0]), (pairs[0][1], pairs[1][1])
    f, h = draw(*shape, seed=seed), draw(*taps, seed=seed + 1)
    made = convolve(f, h, mode=mode, method=method)
    assert (made - by_definition(f, h, mode)).abs().max() <= rounding(f, h)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("n", "m"), [(300, 5), (300, 64), (1000, 129), (64, 300), (4096, 700)])
def test_long_signals_against_numpy_and_scipy(n: int, m: int, method: Method) -> None:
    f, h = draw(n), draw(m, seed=1)
    exact = np.convolve(f.numpy(), h.numpy())
    assert np.abs(convolve(f, h, method=method).numpy() - exact).max() <= rounding(f, h)
    same = signal.convolve(f.numpy(), h.numpy(), mode="same", method="direct")
    assert np.abs(convolve(f, h, mode="same", method=method).numpy() - same).max() <= rounding(f, h)
    if m <= n:
        inside = np.convolve(f.numpy(), h.numpy(), "valid")
        made = convolve(f, h, mode="valid", method=method).numpy()
        assert np.abs(made - inside).max() <= rounding(f, h)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_images_against_scipy(mode: Mode, method: Method) -> None:
    f, h = draw(2, 31, 40), draw(7, 4, seed=1)
    made = convolve(f, h, mode=mode, method=method)
    exact = np.stack([signal.convolve2d(image.numpy(), h.numpy(), mode=mode) for image in f])
    assert np.abs(made.numpy() - exact).max() <= rounding(f, h)
    wrapped = signal.convolve2d(f[0].numpy(), h.numpy(), mode="full")
    circle = sum(np.pad(wrapped, ((0, 62 - 37), (0, 80 - 43)))[i : i + 31, j : j + 40]
                 for i in (0, 31) for j in (0, 40))  # fmt: skip
    made = convolve(f[0], h, mode="circular", method=method)
    assert np.abs(made.numpy() - circle).max() <= rounding(f, h)


def test_torch_layers_correlate() -> None:
    f, h = draw(2, 1, 12), draw(5, seed=1)
    assert torch.allclose(
        F.conv1d(f, h[None, None]), cross_correlate(h, f, mode="valid"), atol=1e-13
    )
    f, h = draw(2, 1, 12, 9), draw(5, 4, seed=1)
    made = F.conv2d(f, h[None, None])
    assert torch.allclose(made, cross_correlate(h, f, mode="valid"), atol=1e-13)
    assert not torch.allclose(made, convolve(f, h, mode="valid"), atol=0.1)
    ring = F.conv2d(F.pad(f, (0, 3, 0, 4), mode="circular"), h[None, None])
    assert torch.allclose(ring, cross_correlate(h, f, mode="circular"), atol=1e-13)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_cross_correlation_against_scipy(mode: Mode) -> None:
    f, h = draw(20), draw(6, seed=1)
    exact = signal.correlate(f.numpy(), h.numpy(), mode=mode, method="direct")
    assert np.allclose(cross_correlate(h, f, mode=mode).numpy(), exact, atol=1e-13)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(-4, 4), st.integers(-4, 4))
def test_places_of_a_correlation(n: int, m: int, first: int, tap: int) -> None:
    f, h = draw(n, seed=n), draw(m, seed=10 * m)
    places = index_range(n, m, signal_start=first, kernel_start=tap, correlation=True)
    made = cross_correlate(h, f)
    assert len(made) == len(places)
    for u, value in zip(places, made.tolist(), strict=True):
        # sum of h[t] f[u + t], with f[first] the first entry and h[tap] the first tap
        total = sum(
            float(h[t] * f[u + tap + t - first]) for t in range(m) if 0 <= u + tap + t - first < n
        )
        assert abs(total - value) < 1e-13


@pytest.mark.parametrize("mode", MODES)
def test_places_of_the_modes(mode: Mode) -> None:
    f, h = draw(9), draw(4, seed=1)
    full = dict(zip(index_range(9, 4), convolve(f, h).tolist(), strict=True))
    if mode == "circular":
        full = {u: full[u] + full.get(u + 9, 0.0) for u in range(9)}
    places = index_range(9, 4, mode)
    expected = torch.tensor([full[u] for u in places], dtype=torch.float64)
    assert torch.allclose(convolve(f, h, mode=mode), expected, atol=1e-13)
    moved = index_range(9, 4, mode, signal_start=5, kernel_start=-2)
    assert [u - 3 for u in moved] == list(places)


def test_the_worked_example() -> None:
    f, h = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 1.0, 0.5])
    for method in METHODS:
        made = convolve(f, h, method=method)
        assert torch.allclose(made, torch.tensor([0.0, 1.0, 2.5, 4.0, 1.5]), atol=1e-6)


def test_toeplitz_matrix_of_the_same_package_is_the_same() -> None:
    f, h = draw(8), draw(3, seed=1)
    assert torch.allclose(toeplitz_matrix(h, 8) @ f, convolve(f, h), atol=1e-14)
    assert torch.allclose(
        toeplitz_matrix(h, 8, "circular") @ f, convolve(f, h, mode="circular"), atol=1e-14
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", ["direct", "fft"])
def test_gradients(mode: Mode, method: Method) -> None:
    f, h = draw(2, 7).requires_grad_(), draw(3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: convolve(a, b, mode=mode, method=method), (f, h))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_and_batch(dtype: torch.dtype) -> None:
    f, h = draw(3, 2, 50).to(dtype), draw(7, seed=1).to(dtype)
    for method in METHODS:
        made = convolve(f, h, method=method)
        assert made.dtype == dtype
        assert made.shape == (3, 2, 56)
        assert torch.allclose(made[1, 1], convolve(f[1, 1], h, method="direct"), atol=1e-5)


def test_binomial_kernel() -> None:
    assert (16 * binomial_kernel()).tolist() == [1, 4, 6, 4, 1]
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    made = half
    for m in range(2, 12):
        kernel = binomial_kernel(m)
        t = torch.arange(m, dtype=torch.float64)
        mean = float(kernel @ t)
        assert abs(float(kernel.sum()) - 1) < 1e-15
        assert abs(float(kernel @ (t - mean) ** 2) - (m - 1) / 4) < 1e-13
        assert torch.allclose(made, kernel, atol=1e-15)
        made = convolve(made, half, method="direct")
    assert torch.isfinite(binomial_kernel(1000)).all()
    plane = binomial_kernel(5)[:, None] * binomial_kernel(5)
    f = draw(9, 11)
    rows = convolve(f, binomial_kernel(5))
    both = convolve(rows.T.contiguous(), binomial_kernel(5)).T
    assert torch.allclose(both, convolve(f, plane), atol=1e-14)


def test_the_kernel_is_wound_round_the_circle() -> None:
    h = draw(7)
    expected = torch.stack([h[k::3].sum() for k in range(3)])
    assert torch.allclose(wound(h, [3]), expected, atol=1e-15)
    assert wound(h, [7]) is h
    g = draw(5, 7)
    expected = torch.stack([torch.stack([g[i::2, k::3].sum() for k in range(3)]) for i in range(2)])
    assert torch.allclose(wound(g, [2, 3]), expected, atol=1e-14)


def test_the_faster_method_is_chosen() -> None:
    assert fastest_method([100], [3]) == "direct"
    assert fastest_method([10**6], [10**4]) == "fft"
    assert fastest_method([512, 512], [3, 3]) == "direct"
    assert fastest_method([512, 512], [63, 63]) == "fft"
    assert flip(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist() == [[4.0, 3.0], [2.0, 1.0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: convolve([1.0, 2.0], torch.ones(2)), "f must be a tensor"),  # type: ignore[arg-type]
        (lambda: convolve(torch.ones(3), torch.ones(2).long()), "h must be a tensor"),
        (lambda: convolve(torch.ones(3), torch.ones(1, 1, 1)), "one axis or two"),
        (lambda: convolve(torch.ones(3), torch.ones(2, 2)), "at least as many"),
        (lambda: convolve(torch.ones(3).to_sparse(), torch.ones(2)), "f must be a dense tensor"),
        (lambda: convolve(torch.ones(0), torch.ones(2)), "f is empty"),
        (lambda: convolve(torch.ones(3), torch.ones(4), mode="valid"), "fits inside"),
        (lambda: convolve(torch.ones(3), torch.ones(2).double()), "of one kind"),
        (lambda: convolve(torch.tensor([1.0, math.nan]), torch.ones(2)), "f[1] is nan"),
        (lambda: convolve(torch.ones(3), torch.ones(2), mode="vaild"), "did you mean 'valid'"),  # type: ignore[arg-type]
        (lambda: convolve(torch.ones(3), torch.ones(2), method="fast"), "no method"),  # type: ignore[arg-type]
        (lambda: index_range(3, 0), "taps must be a whole number"),
        (lambda: index_range(3, 2, signal_start=0.5), "signal_start must be"),  # type: ignore[arg-type]
        (lambda: binomial_kernel(0), "taps must be"),
        (lambda: fastest_method([3], [5], mode="valid"), "fits inside"),
        (lambda: fastest_method([3, 3], [2]), "as many of the kernel"),
        (lambda: fastest_method([3], [0]), "from 1 on"),
    ],
)
def test_bad_input_is_refused(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TorchTheoryError, match=re.escape(message)) as caught:
        call()
    assert isinstance(caught.value, InvalidInput | InvalidType)
