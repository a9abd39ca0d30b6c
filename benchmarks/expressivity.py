"""Exact pieces and cells of networks: against dense sampling, and time against the number of cells.

  pieces   all breakpoints of a network along a segment, exactly, against evaluating activation
           patterns at equally spaced points, twice as many each time, until as many changes are
           seen (or the number of points given with --most is reached without seeing them all)
  cells    all cells of a network on a plane: seconds and peak memory against the number of cells

Seconds are seconds of processor time on one thread, of the last and successful sampling only.

    python benchmarks/expressivity.py --quick
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.expressivity.arrangement import PlaneSlice, plane_arrangement
from torchtheory.expressivity.pieces import affine_pieces
from torchtheory.expressivity.regions import activation_pattern
from torchtheory.nets.feedforward import mlp


class SmallResNet(nn.Module):
    """Three residual blocks of two convolutions on 1 x 8 x 8 images, max and average pooling."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.Conv2d(channels, channels, 3, padding=1),
                    nn.BatchNorm2d(channels),
                    nn.Conv2d(channels, channels, 3, padding=1),
                ]
            )
            for _ in range(3)
        )
        self.read = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(F.relu(self.stem(x)), 2)
        for first, norm, second in self.blocks:  # type: ignore[misc]
            h = F.relu(h + second(F.relu(norm(first(h)))))
        return self.read(F.adaptive_avg_pool2d(h, 1).flatten(1))


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    result = run()
    return result, time.process_time() - start


def changes_seen(model: nn.Module, start: Tensor, end: Tensor, points: int) -> int:
    """Intervals of constant activation pattern that equally spaced points can tell apart."""
    seen, last = 1, None
    for t in torch.linspace(0, 1, points, dtype=torch.float64).split(2048):
        x = torch.lerp(start.double(), end.double(), t.reshape(-1, *[1] * start.ndim))
        pattern = torch.cat(activation_pattern(model, x), 1).to(torch.uint8)
        if last is not None:
            pattern = torch.cat([last, pattern])
        seen += int((pattern[1:] != pattern[:-1]).any(1).sum())
        last = pattern[-1:]
    return seen


def pieces(name: str, model: nn.Module, start: Tensor, end: Tensor, most: int) -> None:
    affine_pieces(model, start, end)  # warm
    exact, seconds = timed(lambda: affine_pieces(model, start, end))
    points = 4096
    while True:
        seen, sampling = timed(lambda: changes_seen(model, start, end, points))  # noqa: B023
        print(
            f"{name:18} exact: {exact.patterns:6} patterns, {exact.count:6} affine pieces,"
            f" {seconds:7.3f} s   {points:8} points: {seen:6} seen, {sampling:8.3f} s,"
            f" ratio {sampling / seconds:6.1f}",
            flush=True,
        )
        if seen >= exact.patterns or points * 2 > most:
            return
        points *= 2


def cells(width: int, depth: int, inputs: int) -> None:
    net = mlp([inputs, *[width] * depth, 1], generator=0)
    g = torch.Generator().manual_seed(1)
    origin, u, v = torch.randn(3, inputs, generator=g, dtype=torch.float64)
    plane = PlaneSlice(0 * origin, u, v, (-1.0, -1.0), (1.0, 1.0))
    found, seconds = timed(lambda: plane_arrangement(net, plane))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{depth} x {width:4} units: {len(found):8} cells {seconds:8.2f} s"
        f" {1e6 * seconds / len(found):8.1f} us a cell, peak memory {peak:7.0f} MiB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    parser.add_argument("--most", type=int, default=2**20, help="most points of the sampling")
    parser.add_argument("--only", choices=("pieces", "cells"), help="one of the two")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    most = min(given.most, 2**15) if given.quick else given.most
    if given.only != "cells":
        start, end = torch.randn(2, 64)
        pieces("MLP 4 x 256", mlp([64, 256, 256, 256, 256, 10], generator=0), start, end, most)
        pieces("ResNet, 7 layers", SmallResNet(), *torch.randn(2, 1, 8, 8), most)
    if given.only == "pieces":
        return
    plane_arrangement(mlp([2, 8, 1]))  # warm
    widths = (16, 32, 64) if given.quick else (16, 32, 64, 100, 150, 200, 240)
    for width in widths:
        cells(width, 3, 10)


if __name__ == "__main__":
    main()
