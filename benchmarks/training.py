"""Training beside the plain PyTorch loop: many small networks at once, and one network.

(a) `fit_many` on many small networks against a loop that trains the same networks one after the
other, with the same initial weights and the same batches; the losses must agree.
(b) a single `fit` against a loop written by hand, with the same batches; the weights must agree
to the last bit.

Repetitions are interleaved and their median is shown, with the load of the machine.

    python benchmarks/training.py --threads 2
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.progress import hidden
from torchtheory.data.real import digits
from torchtheory.training.loop.seeds import epoch_order
from torchtheory.training.loop.trainer import fit
from torchtheory.training.many.networks import fit_many, mlp_family
from torchtheory.training.optimizers.named import OPTIMIZERS


def by_hand(
    net: nn.Module, x: Tensor, y: Tensor, name: str, epochs: int, batch_size: int, seed: int
) -> list[float]:
    """What one would write without a library; mean losses of the epochs."""
    kind, settings, rate = OPTIMIZERS[name]
    optimizer = kind(net.parameters(), lr=rate, **settings)
    losses = []
    net.train()
    for epoch in range(1, epochs + 1):
        total = torch.zeros(())
        for index in torch.split(epoch_order(len(x), seed, epoch), batch_size):
            inputs, labels = x[index], y[index]
            optimizer.zero_grad()
            loss = F.cross_entropy(net(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.detach() * len(index)
        losses.append(total.item() / len(x))
    return losses


def interleaved(
    works: list[Callable[[], Any]], repeats: int
) -> tuple[list[list[float]], list[Any]]:
    """Seconds of each work, repetition by repetition, and its last result."""
    seconds: list[list[float]] = [[] for _ in works]
    results: list[Any] = [None for _ in works]
    for _ in range(repeats):
        for i, work in enumerate(works):
            start = time.perf_counter()
            results[i] = work()
            seconds[i].append(time.perf_counter() - start)
    return seconds, results


def report(title: str, peer: list[float], ours: list[float], note: str) -> None:
    ratio = statistics.median(p / o for p, o in zip(peer, ours, strict=True))
    print(
        f"{title:44s} loop {statistics.median(peer):8.3f} s   torchtheory "
        f"{statistics.median(ours):8.3f} s   loop/torchtheory {ratio:6.2f}   "
        f"torchtheory/loop {1 / ratio:6.3f}   {note}"
    )


def many(arguments: argparse.Namespace, x: Tensor, y: Tensor, name: str, shared: bool) -> None:
    networks = mlp_family(64, [arguments.width], 10, seeds=range(arguments.networks))
    seeds = [0] * len(networks) if shared else list(range(len(networks)))

    def loop() -> Tensor:
        rows = [
            by_hand(copy.deepcopy(net), x, y, name, arguments.epochs, arguments.batch_size, seed)
            for net, seed in zip(networks, seeds, strict=True)
        ]
        return torch.tensor(rows)

    def together() -> Tensor:
        return fit_many(
            networks,
            (x, y),
            epochs=arguments.epochs,
            batch_size=arguments.batch_size,
            optimizer=name,
            seed=seeds,
        ).train_loss

    (peer, ours), (a, b) = interleaved([loop, together], arguments.repeats)
    worst = float(((a - b).abs() / a.abs()).max())
    batches = "same batches for all" if shared else "own batches"
    report(
        f"{len(networks)} x 64-{arguments.width}-10, {name}, {batches}",
        peer,
        ours,
        f"largest relative difference of a loss {worst:.1e}",
    )


def single(arguments: argparse.Namespace, x: Tensor, y: Tensor, name: str, width: int) -> None:
    start = mlp_family(64, [width], 10)[0]

    def loop() -> nn.Module:
        net = copy.deepcopy(start)
        by_hand(net, x, y, name, arguments.epochs, arguments.batch_size, 0)
        return net

    def ours() -> nn.Module:
        net = copy.deepcopy(start)
        fit(net, (x, y), epochs=arguments.epochs, batch_size=arguments.batch_size, optimizer=name)
        return net

    repeats = 4 * arguments.repeats
    (peer, mine), (a, b) = interleaved([loop, ours], repeats)
    equal = all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    report(f"one 64-{width}-10, {name}", peer, mine, f"same bits: {'yes' if equal else 'NO'}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", type=int, default=64, help="how many small networks")
    parser.add_argument("--width", type=int, default=32, help="hidden units of each")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3, help="interleaved repetitions")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="torch's threads")
    parser.add_argument("--optimizers", nargs="+", default=["sgd", "adam"], choices=["sgd", "adam"])
    parser.add_argument("--only", choices=["many", "single"], help="one of the two parts")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    x, y = digits()
    x, y = x[:1437], y[:1437]
    fit(nn.Linear(64, 10), (x, y), epochs=1)  # loads what torch loads late
    load = ", ".join(f"{v:.1f}" for v in os.getloadavg())
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {load}")
    with hidden():
        for name in arguments.optimizers:
            if arguments.only != "single":
                many(arguments, x, y, name, shared=False)
                many(arguments, x, y, name, shared=True)
            if arguments.only != "many":
                single(arguments, x, y, name, arguments.width)
                single(arguments, x, y, name, 512)
    print("load afterwards " + ", ".join(f"{v:.1f}" for v in os.getloadavg()))


if __name__ == "__main__":
    main()
