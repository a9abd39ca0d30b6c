"""Linear recurrences: what a scan costs, forward and backward, against loops and peers.

  scan   z_t = a_t z_{t-1} + b_t for B = 8 sequences of T = 2048 steps with D = 128 entries, with
         gradients in both: linear_scan() by each method. Peers: the loop over `unbind` under
         autograd, the loop over indices `a[:, t]` (with --indexed: it takes several seconds), and
         doubling under autograd.

Every result and gradient is compared with the loop's before it is timed. Times are the shortest of
several runs on one thread, in milliseconds.

    python benchmarks/sequences.py
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor

from torchtheory.sequences.recurrent.linear_scans import METHODS, linear_scan

Scan = Callable[[Tensor, Tensor], Tensor]


def unbind_loop(a: Tensor, b: Tensor) -> Tensor:
    z, found = torch.zeros_like(a[:, 0]), []
    for factor, added in zip(a.unbind(1), b.unbind(1), strict=True):
        z = factor * z + added
        found.append(z)
    return torch.stack(found, 1)


def indexed_loop(a: Tensor, b: Tensor) -> Tensor:
    z, found = torch.zeros_like(a[:, 0]), []
    for t in range(a.shape[1]):
        z = a[:, t] * z + b[:, t]
        found.append(z)
    return torch.stack(found, 1)


def run(scan: Scan, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
    z = scan(a, b)
    z.sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    return z.detach(), a.grad, b.grad


def milliseconds(scan: Scan, a: Tensor, b: Tensor, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run(scan, a, b)
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--indexed", action="store_true", help="time the loop over indices too")
    parser.add_argument("--repeats", type=int, default=7)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    source = torch.Generator().manual_seed(0)
    a, b = torch.rand(8, 2048, 128, generator=source), torch.randn(8, 2048, 128, generator=source)
    wanted = run(unbind_loop, a, b)
    scans: dict[str, Scan] = {"loop over unbind": unbind_loop}
    for method in METHODS:
        scans[f"linear_scan, {method}"] = lambda a, b, method=method: linear_scan(  # type: ignore[misc]
            a, b, method=method
        )
    if chosen.indexed:
        scans["loop over indices"] = indexed_loop
    peer = None
    print(f"{'forward and backward, B=8, T=2048, D=128':45s} {'ms':>8s} {'times faster':>13s}")
    for name, scan in scans.items():
        for found, exact in zip(run(scan, a, b), wanted, strict=True):
            torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-3)
        taken = milliseconds(scan, a, b, 1 if scan is indexed_loop else chosen.repeats)
        peer = taken if peer is None else peer
        print(f"{name:45s} {taken:8.1f} {peer / taken:13.2f}")


if __name__ == "__main__":
    main()
