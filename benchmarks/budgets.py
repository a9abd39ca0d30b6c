"""Does an audit keep its time and memory? Five networks, each in a process of its own.

    python benchmarks/budgets.py [--budget 10] [--memory 4GiB] [--busy]

prints for each network the wall time of `tt.audit` from the call to the return over its budget
(without the second that torch's own imports take in a fresh process), the peak of memory above what
the process held before, and how many findings are not done. With `--busy`
two other processes use the cores meanwhile.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.core.memory import bytes_of, resident_memory
from torchtheory.models.derivative import import_differentiation


class Encoder(nn.Module):
    """A transformer encoder of about 22 million parameters on sequences of 64 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8000, 448)
        layer = nn.TransformerEncoderLayer(448, 8, 1792, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
        self.out = nn.Linear(448, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.layers(self.embed(x)).mean(1))
        return out


def mlp(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for k in range(len(widths) - 1):
        layers += [nn.Linear(widths[k], widths[k + 1]), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 64, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 128, batch_first=True)
        self.out = nn.Linear(128, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.lstm(x)[0][:, -1])
        return out


def network(name: str) -> tuple[nn.Module, Tensor, int]:
    """The network, inputs of 2,000 samples and the number of classes."""
    torch.manual_seed(0)
    match name:
        case "width 4096":
            return mlp(784, 4096, 4096, 10), torch.randn(2000, 784), 10
        case "10 M":
            return mlp(784, 2048, 2048, 2048, 10), torch.randn(2000, 784), 10
        case "encoder 22 M":
            return Encoder(), torch.randint(0, 8000, (2000, 64)), 4
        case "cnn":
            return cnn(), torch.randn(2000, 3, 32, 32), 10
        case _:
            return Recurrent(), torch.randn(2000, 30, 16), 5


NAMES = ("width 4096", "10 M", "encoder 22 M", "cnn", "lstm")


def measure(name: str, budget: float, memory: str) -> dict[str, float]:
    """One audit in this process, after the imports that torch makes on first use."""
    import_differentiation()
    model, x, classes = network(name)
    y = torch.randint(0, classes, (len(x),))
    tt.audit(nn.Linear(2, 2), (torch.randn(9, 2), torch.arange(9) % 2), only=["layers"])
    before = resident_memory()
    start = time.perf_counter()
    report = tt.audit(
        model, (x[:1500], y[:1500]), (x[1500:], y[1500:]), budget=budget, memory=memory
    )
    took = time.perf_counter() - start
    status = Path("/proc/self/status").read_text("ascii")
    peak = 1024 * int(status.partition("VmHWM:")[2].split()[0])
    return {
        "took": took,
        "peak": peak - before,
        "undone": len(report.undone),
        "findings": len(report.findings),
    }


def spin() -> None:
    while True:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=10.0)
    parser.add_argument("--memory", default="4GiB")
    parser.add_argument("--only", nargs="+", default=NAMES)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given.budget, given.memory)))
        return 0
    others = [multiprocessing.Process(target=spin, daemon=True) for _ in range(2)]
    for other in others if given.busy else ():
        other.start()
    print(
        f"{'network':14} {'budget':>7} {'took':>7} {'ratio':>6} {'peak':>9} {'allowed':>9}  undone"
    )
    for name in given.only:
        command = [sys.executable, __file__, "--one", name]
        options = ["--budget", str(given.budget), "--memory", given.memory]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name:14} failed: {done.stderr.strip().splitlines()[-1]}")
            continue
        r = json.loads(done.stdout.strip().splitlines()[-1])
        print(
            f"{name:14} {given.budget:6g}s {r['took']:6.1f}s {r['took'] / given.budget:6.2f} "
            f"{r['peak'] / 2**20:6.0f}MiB {bytes_of(given.memory) / 2**20:6.0f}MiB  "
            f"{r['undone']:.0f} of {r['findings']:.0f}",
            flush=True,
        )
    for other in others if given.busy else ():
        other.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
