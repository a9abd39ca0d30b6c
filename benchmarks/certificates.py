"""Bounds of a network in a ball: time, memory and width.

  bounds    interval bounds, CROWN and CROWN with optimized slopes (of the outputs, and of the units
            inside as well) of a 784-256-256-10 network, 64 samples, single precision.
  memory    the peak memory of each of these in a process of its own, above that of a forward pass.
  images    the same for a small convolutional network, 16 images of 1 x 28 x 28.
  smoothing votes per second of a smoothed classifier.
  exact     exact distances of a small network by both methods.

The peer is auto_LiRPA, where a copy that imports is on the path (`--peer DIRECTORY`); its bounds
are compared with ours before anything is timed. Version 0.3 from PyPI does not import with recent
torch and numpy. What it was measured to take elsewhere, for reference: 0.0028 s for intervals,
0.353 s and 280 MiB for CROWN, 32.5 s for 20 iterations with slopes.

Times are seconds of processor time on one thread, the shortest of several runs.

    python benchmarks/certificates.py --only bounds
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn

from torchtheory.core.memory import resident_memory
from torchtheory.robustness.bounds.output_bounds import BoundedNetwork
from torchtheory.robustness.exact.distance import minimal_perturbation
from torchtheory.robustness.smoothing import SmoothedClassifier

RADIUS = 0.05
CASES: dict[str, dict[str, Any]] = {
    "intervals": {"method": "interval"},
    "CROWN": {"method": "crown"},
    "CROWN, slopes of the outputs": {"method": "alpha-crown", "iterations": 20},
    "CROWN, slopes inside as well": {"method": "alpha-crown", "inner_iterations": 6},
}


def perceptron() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    layers = [nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    return nn.Sequential(*layers), torch.rand(64, 784)


def convolutional() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(1, 8, 4, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 4, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10),
    ]  # fmt: skip
    return nn.Sequential(*layers), torch.rand(16, 1, 28, 28)


def seconds(run: Callable[[], Any], repeats: int) -> float:
    best = math.inf
    for _ in range(repeats):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return best


def bounds(build: Callable[[], tuple[nn.Module, Tensor]], radius: float, quick: bool) -> None:
    net, x = build()
    network = BoundedNetwork(net, x[:1])
    plain = None
    for name, options in CASES.items():
        if quick and "slopes" in name:
            continue
        found = network.bounds(x, radius, **options)
        width = float(found.width.mean())
        plain = width if options["method"] == "crown" else plain
        took = seconds(
            lambda o=options: network.bounds(x, radius, **o), 2 if "slopes" in name else 5
        )
        narrower = (
            "" if plain is None else f", {100 * (1 - width / plain):.1f} % narrower than CROWN"
        )
        print(f"  {name:30} {took:9.4f} s   mean width {width:.4f}{narrower}")


def against_peer(radius: float) -> None:
    try:
        from auto_LiRPA import BoundedModule, BoundedTensor
        from auto_LiRPA.perturbations import PerturbationLpNorm
    except ImportError as error:
        print(f"  auto_LiRPA does not import ({error}); see the reference above")
        return
    net, x = perceptron()
    network = BoundedNetwork(net, x[:1])
    theirs = BoundedModule(net, x[:1])
    ball = BoundedTensor(x, PerturbationLpNorm(norm=float("inf"), eps=radius))
    for name, method in (("intervals", "IBP"), ("CROWN", "CROWN")):
        low, high = theirs.compute_bounds(x=(ball,), method=method)
        mine = network.bounds(x, radius, **CASES[name])
        off = max(float((mine.lower - low).abs().max()), float((mine.upper - high).abs().max()))
        took = seconds(lambda m=method: theirs.compute_bounds(x=(ball,), method=m), 5)
        ours = seconds(lambda n=name: network.bounds(x, radius, **CASES[n]), 5)
        print(
            f"  {name:30} ours {ours:.4f} s, auto_LiRPA {took:.4f} s ({took / ours:.2f} times); "
            f"bounds differ by {off:.1e} of {float((high - low).mean()):.3g}"
        )


def peak(name: str, answer: Any) -> None:
    """Above what a forward pass takes, in MiB."""
    net, x = perceptron()
    network = BoundedNetwork(net, x[:1])
    with torch.no_grad():
        net(x)
    network.bounds(x[:1], RADIUS, method="interval")
    before = resident_memory()
    network.bounds(x, RADIUS, **CASES[name])
    answer.put((resident_memory(peak=True) - before) / 2**20)


def memory() -> None:
    context = multiprocessing.get_context("spawn")
    for name in CASES:
        answer = context.Queue()
        process = context.Process(target=peak, args=(name, answer))
        process.start()
        print(f"  {name:30} {answer.get():9.0f} MiB")
        process.join()


def smoothing() -> None:
    net, x = perceptron()
    smooth = SmoothedClassifier(net, 0.25)
    took = seconds(lambda: smooth.votes(x[:4], 5000), 3)
    print(f"  {20_000 / took:,.0f} votes per second")


def exact() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 3)]
    net = nn.Sequential(*layers).double()
    x = torch.randn(4, generator=torch.Generator().manual_seed(0)).double()
    y = int(net(x[None]).argmax())
    for norm, method in (("inf", "milp"), ("inf", "cells"), ("1", "milp"), ("2", "cells")):
        start = time.process_time()
        found = minimal_perturbation(net, x, y, norm, method=method, largest=20.0)
        took = time.process_time() - start
        print(f"  norm {norm:3} by {method:5} {took:8.2f} s   distance {found.distance:.6f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=["bounds", "memory", "images", "smoothing", "exact"])
    parser.add_argument("--peer", help="directory with a copy of auto_LiRPA that imports")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.peer:
        sys.path.append(given.peer)
    wanted = [given.only] if given.only else ["bounds", "memory", "images", "smoothing", "exact"]
    for name in wanted:
        print(name)
        if name == "bounds":
            bounds(perceptron, RADIUS, given.quick)
            against_peer(RADIUS)
        elif name == "memory":
            memory()
        elif name == "images":
            bounds(convolutional, 0.02, given.quick)
        elif name == "smoothing":
            smoothing()
        else:
            exact()


if __name__ == "__main__":
    main()
