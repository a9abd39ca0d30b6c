"""The width sweep of the double-descent curve: one batched training beside a plain loop.

Networks with one hidden layer of 25 widths and 10 seeds on 1000 digits with noisy labels, as in
the lab `width-and-test-error`. The loop trains the same networks one after the other with the same
initial weights and the same batches; the final losses must agree. Repetitions are interleaved,
medians are shown, and the ratio is what counts: both sides see the same load.

    python benchmarks/double_descent.py --epochs 5
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.progress import hidden
from torchtheory.data.real import digits
from torchtheory.training.loop.seeds import epoch_order
from torchtheory.training.many.networks import fit_many, mlp_family, noisy_labels

WIDTHS = [*range(1, 11), 12, 14, 16, 18, 20, 24, 28, 32, 40, 48, 64, 96, 128, 192, 256]
RATE = 0.01


def one_by_one(
    networks: list[nn.Module], x: Tensor, y: Tensor, epochs: int, batch: int
) -> list[float]:
    """Mean losses of the last epoch, by a loop as one writes it without a library."""
    losses = []
    for net in networks:
        optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
        for epoch in range(1, epochs + 1):
            total = torch.zeros(())
            for index in torch.split(epoch_order(len(x), 0, epoch), batch):
                optimizer.zero_grad()
                loss = F.cross_entropy(net(x[index]), y[index])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                total += loss.detach() * len(index)
        losses.append(total.item() / len(x))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    x, y = digits()
    x, y = x[:1000], noisy_labels(y[:1000], 10, 0.15)
    networks = mlp_family(64, WIDTHS, 10, seeds=range(given.seeds))
    loop_seconds, stacked_seconds = [], []
    for _ in range(given.repeats):
        start = time.perf_counter()
        loop = one_by_one(copy.deepcopy(networks), x, y, given.epochs, given.batch)
        loop_seconds.append(time.perf_counter() - start)
        start = time.perf_counter()
        with hidden():
            many = fit_many(
                networks,
                (x, y),
                epochs=given.epochs,
                batch_size=given.batch,
                learning_rate=RATE,
                task="multiclass",
            )
        stacked_seconds.append(time.perf_counter() - start)
    difference = (many.train_loss[:, -1] - torch.tensor(loop).double()).abs().max()
    slow, fast = statistics.median(loop_seconds), statistics.median(stacked_seconds)
    print(f"{len(networks)} networks, {given.epochs} epochs, {given.threads} thread(s)")
    print(f"one by one {slow:8.2f} s")
    print(f"fit_many   {fast:8.2f} s    {slow / fast:.1f} times faster")
    print(f"largest difference of the final losses {float(difference):.1e}")


if __name__ == "__main__":
    main()
