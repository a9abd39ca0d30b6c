"""A lottery-ticket sweep as batched trainings, beside the same trainings one after the other.

`lottery_tickets` trains tickets and their two controls at 8 sparsities and 5 seeds, one batched
training per round. The peer trains the same sub-networks (same initial weights, masks, batches)
one by one: `torch.nn.utils.prune` holds the masks, the loop is the usual one. A sample of the
peer's trainings is timed, and stands for all of them; the weights must agree.

    python benchmarks/lottery.py --threads 2
"""

from __future__ import annotations

import argparse
import copy
import itertools
import os
import statistics
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

from torchtheory.core.progress import hidden
from torchtheory.data.real import digits, split
from torchtheory.training.loop.seeds import epoch_order
from torchtheory.training.many.networks import fit_many
from torchtheory.training.pruning.lottery import KINDS, Recipe, Tickets, lottery_tickets
from torchtheory.training.pruning.masks import Masks

SPARSITIES = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.985)
SEEDS = (0, 1, 2, 3, 4)


def one_alone(
    start: nn.Module,
    masks: Masks | None,
    data: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    recipe: Recipe,
    seed: int,
) -> nn.Module:
    """What one would write with torch alone; test errors are looked at in the end."""
    net = copy.deepcopy(start)
    for name, mask in (masks or {}).items():
        torch_prune.custom_from_mask(net.get_submodule(name.rpartition(".")[0]), "weight", mask)
    optimizer = torch.optim.Adam(net.parameters(), lr=recipe.learning_rate or 1e-3)
    x, y = data
    for epoch in range(1, recipe.epochs + 1):
        for index in torch.split(epoch_order(len(x), seed, epoch), recipe.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(net(x[index]), y[index]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    with torch.no_grad():
        (net(test[0]).argmax(1) != test[1]).double().mean()
    return net


def lottery(widths: tuple[int, ...], epochs: int, alone: int, iterative: bool) -> None:
    """Time a sweep and `alone` of its trainings, and print their ratio."""
    train, test = split(*digits(), 0.3, 0)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise((64, *widths, 10)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    recipe = Recipe(epochs=epochs, learning_rate=3e-3)
    trainings = len(SEEDS) * (1 + len(KINDS) * len(SPARSITIES))

    def sweep() -> Tickets:
        return lottery_tickets(
            model, train, test, sparsities=SPARSITIES, seeds=SEEDS, recipe=recipe,
            iterative=iterative,
        )  # fmt: skip

    with hidden():
        found = sweep()  # what is met first is not timed
        ours, peer, largest = [], [], 0.0
        for k in range(alone):
            s, seed = k % len(SPARSITIES), k % len(SEEDS)
            if k % max(1, alone // 3) == 0:
                start = time.perf_counter()
                sweep()
                ours.append(time.perf_counter() - start)
            masks = found.masks[s][seed]
            start = time.perf_counter()
            net = one_alone(found.starts[seed], masks, train, test, recipe, SEEDS[seed])
            peer.append(time.perf_counter() - start)
            many = fit_many(
                [found.starts[seed]], train, masks=[masks], epochs=epochs, learning_rate=3e-3,
                seed=SEEDS[seed],
            ).network(0)  # fmt: skip
            with torch.no_grad():
                largest = max(largest, float((net(test[0]) - many(test[0])).abs().max()))
    one, all_of_them = statistics.median(peer), statistics.median(ours)
    print(
        f"64-{'-'.join(map(str, widths))}-10, {epochs} epochs, "
        f"{'round after round' if iterative else 'all at once'}: {trainings} trainings in "
        f"{all_of_them:.2f} s; one alone {one:.3f} s, all of them {one * trainings:.1f} s; "
        f"ratio {one * trainings / all_of_them:.1f}; largest difference of outputs {largest:.1e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--alone", type=int, default=12, help="trainings of the peer that are timed"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"{arguments.threads} threads, load {os.getloadavg()[0]:.1f}")
    for widths in ((32,), (100,), (300, 100)):
        for iterative in (True, False):
            lottery(widths, arguments.epochs, arguments.alone, iterative)


if __name__ == "__main__":
    main()
