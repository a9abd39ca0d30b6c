"""Convolutions: what they cost, against what others take for the same.

  fft   convolve() by the direct sum and by the fast Fourier transform, on the line and in the
        plane: from which number of taps on the transform is faster, and where method="auto"
        changes over. Peers: numpy.convolve, scipy.signal's fftconvolve and oaconvolve, torch's
        conv1d and conv2d with the kernel flipped. And how time grows with the length of two
        equally long signals.
  singular_values
        all singular values of a circular layer through the Fourier transform. Peers: the dense
        decomposition of the layer's matrix (as far as that can be made, and from there to 64
        channels on 32 x 32 by the cube), and numpy.linalg.svd of numpy.fft.fft2, frequency by
        frequency. And bounds of the norm where zeros are padded, with their distance.

Every result is compared with the peer's before it is timed. Times are the shortest of several runs
on one thread, in microseconds of processor time.

    python benchmarks/convolutional.py --only fft --quick
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.nn.functional as F
from scipy import signal
from torch import Tensor

from torchtheory.convolution.discrete import convolve, fastest_method
from torchtheory.convolution.layer_matrices import layer_matrix
from torchtheory.convolution.spectra import (
    convolution_norm,
    convolution_singular_values,
)

#: torch writes down all windows of a convolution in double precision: not more numbers than this.
MOST_WINDOWS = 2e7


def microseconds(run: Callable[[], Any], least: float = 0.02, repeats: int = 5) -> float:
    """The shortest of several runs, each as many calls as take `least` seconds."""
    run()
    calls, best = 1, math.inf
    for _ in range(repeats):
        while True:
            start = time.process_time()
            for _ in range(calls):
                run()
            seconds = time.process_time() - start
            if seconds >= least or calls >= 10_000:
                break
            calls = max(2 * calls, math.ceil(1.2 * calls * least / max(seconds, 1e-6)))
        best = min(best, seconds / calls)
    return 1e6 * best


def crossover(taps: Sequence[int], direct: Sequence[float], fft: Sequence[float]) -> float:
    """The number of taps from which on the transform stays faster, between two measured ones."""
    ratios = [math.log(d / f) for d, f in zip(direct, fft, strict=True)]
    slower = [k for k, r in enumerate(ratios) if r < 0]
    if not slower:
        return taps[0]
    last = slower[-1]
    if last == len(taps) - 1:
        return math.inf
    share = ratios[last] / (ratios[last] - ratios[last + 1])
    return math.exp((1 - share) * math.log(taps[last]) + share * math.log(taps[last + 1]))


def agree(found: Tensor, peer: Any, scale: float) -> None:
    gap = float(np.abs(found.numpy() - np.asarray(peer)).max())
    allowed = 1e3 * float(torch.finfo(found.dtype).eps) * scale
    if not gap <= allowed:
        raise SystemExit(f"results differ from the peer's by {gap:.1e}, more than {allowed:.1e}")


def fft(quick: bool) -> None:
    dtypes = (torch.float64,) if quick else (torch.float64, torch.float32)
    for dtype in dtypes:
        for length in (1000, 10_000) if quick else (1000, 10_000, 100_000):
            _line(length, (4, 16, 64, 256) if quick else (4, 8, 16, 32, 64, 128, 256, 512), dtype)
        for side in (64, 256) if quick else (64, 256, 512):
            _plane(side, (3, 7, 15, 31) if quick else (3, 5, 7, 11, 15, 21, 31, 45), dtype)
    _growth((1000, 2000, 4000, 8000) if quick else (1000, 2000, 4000, 8000, 16_000, 32_000))


def _line(length: int, taps: Sequence[int], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    print(f"\nline, {length} places, {str(dtype).removeprefix('torch.')}, microseconds")
    names = ("direct", "fft", "auto", "numpy", "fftconvolve", "oaconvolve", "conv1d")
    print(f"{'taps':>8}" + "".join(f"{n:>12}" for n in names) + "  chosen")
    direct, fast = [], []
    for m in taps:
        f = torch.randn(length, dtype=dtype, generator=generator)
        h = torch.randn(m, dtype=dtype, generator=generator)
        a, b = f.numpy(), h.numpy()
        exact = np.convolve(a.astype(float), b.astype(float))
        scale = float(f.norm() * h.norm())
        for method in ("direct", "fft", "auto"):
            agree(convolve(f, h, method=method), exact, scale)  # type: ignore[arg-type]
        flipped = h.flip(0)[None, None]
        times = [
            microseconds(lambda: convolve(f, h, method="direct")),  # noqa: B023
            microseconds(lambda: convolve(f, h, method="fft")),  # noqa: B023
            microseconds(lambda: convolve(f, h)),  # noqa: B023
            microseconds(lambda: np.convolve(a, b)),  # noqa: B023
            microseconds(lambda: signal.fftconvolve(a, b)),  # noqa: B023
            microseconds(lambda: signal.oaconvolve(a, b)),  # noqa: B023
        ]
        if length * m <= MOST_WINDOWS:
            run = lambda: F.conv1d(f[None, None], flipped, padding=m - 1)  # noqa: B023, E731
            times.append(microseconds(run))
        direct.append(times[0])
        fast.append(times[1])
        shown = "".join(f"{t:12.0f}" for t in times) + " " * 12 * (len(names) - len(times))
        print(f"{m:>8}{shown}  {fastest_method([length], [m])}", flush=True)
    _changes(crossover(taps, direct, fast), range(1, 2 * max(taps)), (length,), 1)


def _plane(side: int, taps: Sequence[int], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    print(f"\nplane, {side} x {side} places, {str(dtype).removeprefix('torch.')}, microseconds")
    names = ("direct", "fft", "auto", "fftconvolve", "conv2d")
    print(f"{'taps':>8}" + "".join(f"{n:>12}" for n in names) + "  chosen")
    direct, fast = [], []
    for m in taps:
        f = torch.randn(side, side, dtype=dtype, generator=generator)
        h = torch.randn(m, m, dtype=dtype, generator=generator)
        a, b = f.numpy(), h.numpy()
        scale = float(f.norm() * h.norm())
        exact = signal.fftconvolve(a.astype(float), b.astype(float))
        for method in ("direct", "fft", "auto"):
            agree(convolve(f, h, method=method), exact, scale)  # type: ignore[arg-type]
        flipped = h.flip(0, 1)[None, None]
        times = [
            microseconds(lambda: convolve(f, h, method="direct"), repeats=3),  # noqa: B023
            microseconds(lambda: convolve(f, h, method="fft"), repeats=3),  # noqa: B023
            microseconds(lambda: convolve(f, h), repeats=3),  # noqa: B023
            microseconds(lambda: signal.fftconvolve(a, b), repeats=3),  # noqa: B023
        ]
        if side * side * m * m <= MOST_WINDOWS:
            run = lambda: F.conv2d(f[None, None], flipped, padding=m - 1)  # noqa: B023, E731
            times.append(microseconds(run, repeats=3))
        direct.append(times[0])
        fast.append(times[1])
        shown = "".join(f"{t:12.0f}" for t in times) + " " * 12 * (len(names) - len(times))
        print(f"{m:>8}{shown}  {fastest_method([side, side], [m, m])}", flush=True)
    _changes(crossover(taps, direct, fast), range(1, 2 * max(taps)), (side, side), 2)


def _changes(measured: float, taps: Sequence[int], sizes: tuple[int, ...], axes: int) -> None:
    chosen = next((m for m in taps if fastest_method(sizes, [m] * axes) == "fft"), math.inf)
    print(
        f"  the transform is faster from about {measured:.0f} taps on; auto takes it from {chosen}"
    )


def _growth(lengths: Sequence[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    print("\ntwo signals of N places, float64, microseconds")
    print(f"{'N':>8}{'direct':>12}{'fft':>12}")
    times: dict[str, list[float]] = {"direct": [], "fft": []}
    for n in lengths:
        f, h = torch.randn(2, n, dtype=torch.float64, generator=generator)
        for method in times:
            run = lambda: convolve(f, h, method=method)  # type: ignore[arg-type]  # noqa: B023, E731
            times[method].append(microseconds(run, repeats=3))
        print(f"{n:>8}{times['direct'][-1]:12.0f}{times['fft'][-1]:12.0f}", flush=True)
    logs = np.log(np.array(lengths))
    slopes = {k: float(np.polyfit(logs, np.log(v), 1)[0]) for k, v in times.items()}
    print(f"  time grows like N^{slopes['direct']:.2f} and N^{slopes['fft']:.2f}")


def singular_values(quick: bool) -> None:
    """Exact spectra by blocks of the Fourier transform against whole matrices."""
    print("\nall singular values of a circular 3 x 3 layer")
    dense_seconds = {}
    for channels, side in ((4, 12), (8, 12)) if quick else ((4, 12), (8, 12), (8, 16), (16, 12)):
        layer, shape = _circular(channels), (channels, side, side)
        matrix = layer_matrix(layer, shape).detach().to_dense()
        dense = torch.linalg.svdvals(matrix)
        found = convolution_singular_values(layer, shape)
        error = float((found - dense).abs().max() / dense[0])
        slow = microseconds(lambda m=matrix: torch.linalg.svdvals(m), repeats=1)
        fast = microseconds(lambda c=layer, s=shape: convolution_singular_values(c, s))
        dense_seconds[len(matrix)] = slow / 1e6
        print(
            f"  {channels:3d} channels, {side} x {side}: dense {slow / 1e3:9.1f} ms, blocks "
            f"{fast / 1e3:7.2f} ms, {slow / fast:8.0f} times faster, largest difference {error:.1e}"
        )
    channels, shape = 64, (64, 32, 32)
    layer = _circular(channels)
    fast = microseconds(lambda: convolution_singular_values(layer, shape), repeats=3)
    kernel = layer.weight.detach().permute(2, 3, 0, 1).numpy()

    def by_frequency() -> Any:
        return np.linalg.svd(np.fft.fft2(kernel, shape[1:], axes=(0, 1)), compute_uv=False)

    peer = microseconds(by_frequency, repeats=2)
    found = convolution_singular_values(layer, shape).numpy()
    exact = np.sort(by_frequency().ravel())[::-1]
    error = np.abs(found - exact).max() / exact[0]
    size = max(dense_seconds)
    cube = dense_seconds[size] * (64 * 1024 / size) ** 3
    print(
        f"   64 channels, 32 x 32: blocks {fast / 1e6:.2f} s; numpy, every frequency "
        f"{peer / 1e6:.2f} s, {peer / fast:.1f} times as long, largest difference {error:.1e}; "
        f"dense, by the cube of {size} rows: {cube / 3600:.0f} hours, {1e6 * cube / fast:.0e} "
        "times as long (and 34 GB)"
    )
    print("\nnorm of a 3 x 3 layer with zeros around the image")
    for channels, side in ((8, 16), (8, 32), (16, 32), (3, 64)) + (() if quick else ((64, 32),)):
        layer = torch.nn.Conv2d(channels, channels, 3, padding=1, dtype=torch.float64)
        start = time.process_time()
        bounds = convolution_norm(layer, (channels, side, side), certain=True)
        seconds = time.process_time() - start
        print(
            f"  {channels:3d} channels, {side} x {side}: {bounds.lower:.5f} to {bounds.upper:.5f}, "
            f"{bounds.error:.2%} apart, {seconds:.2f} s"
        )


def _circular(channels: int) -> torch.nn.Conv2d:
    torch.manual_seed(0)
    return torch.nn.Conv2d(
        channels, channels, 3, padding=1, padding_mode="circular", dtype=torch.float64
    )


SECTIONS: dict[str, Callable[[bool], None]] = {"fft": fft, "singular_values": singular_values}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=sorted(SECTIONS), help="one section; all unless given")
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for name, section in SECTIONS.items():
        if chosen.only in (None, name):
            print(f"== {name} ==")
            section(chosen.quick)


if __name__ == "__main__":
    main()
