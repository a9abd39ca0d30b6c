"""A PAC-Bayes training step beside an ordinary training step of the same network.

The ordinary step: zero the gradients, forward, logistic loss or cross-entropy, backward, Adam, with
torch's Adam as it comes ("ordinary", what the trainer does) and with its fused form ("fused"). The
PAC-Bayes step does the same for the bound, over means *and* variances (twice the parameters), by
fused Adam, with the noise drawn on the weights ("mixed", what `certify` does unless told) or
where it arrives ("local", two products for one); there also with the variances changed at every
second or fourth step only ("local/2", "local/4": the mean over a round of steps). "table" is the
step of the table on MNIST: local/2 with natural steps for the means, by fused SGD with momentum.
Repetitions are interleaved; the least time of each kind is shown, since others share the machine:
the processor's own time on one thread, the clock's on several.

    python benchmarks/pac_bayes.py --threads 1
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.generalization.pac_bayes.bound_training import bound_step
from torchtheory.generalization.pac_bayes.gaussian_prior import GaussianPrior
from torchtheory.generalization.pac_bayes.stochastic_network import Noise, StochasticNetwork
from torchtheory.models.model import global_randomness_kept

Step = Callable[[], object]


def dense(widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 25, 10),
    )


def ordinary(net: nn.Module, x: Tensor, y: Tensor, *, fused: bool) -> Step:
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=fused or None)

    def step() -> None:
        optimizer.zero_grad()
        outputs = net(x)
        if outputs.shape[1] == 1:
            loss = F.binary_cross_entropy_with_logits(outputs, y)
        else:
            loss = F.cross_entropy(outputs, y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def certified(
    net: nn.Module, x: Tensor, y: Tensor, noise: Noise, every: int = 1, natural: bool = False
) -> Step:
    network = StochasticNetwork(net, spread=0.01)
    prior = GaussianPrior(network.means)
    means, logarithms = list(network.means.values()), list(network.log_variances.values())
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.SGD(means, lr=1e-4, momentum=0.9, dampening=0.9, fused=True)
        if natural
        else torch.optim.Adam(means, lr=1e-4, fused=True),
        torch.optim.Adam(logarithms, lr=1e-4, fused=True),
    ]

    count = 0

    def step() -> None:
        nonlocal count
        same = count > 0 and (count - 1) % every != 0
        network.zero_grad()
        with network.variances_frozen(count % every != 0):
            bound_step(
                network,
                prior,
                x,
                y,
                n=55_000,
                constant=20.0,
                noise=noise,
                same_variances=same,
                natural=natural,
            )
        for optimizer in optimizers:
            optimizer.step()
        count += 1

    return step


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    parser.add_argument("--steps", type=int, default=4, help="steps in a repetition")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=256)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    load = ", ".join(f"{v:.1f}" for v in os.getloadavg())
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {load}")
    with global_randomness_kept():
        torch.manual_seed(0)
        x = torch.rand(arguments.batch_size, 784)
        two = (torch.rand(arguments.batch_size, 1) > 0.5).float()
        ten = torch.randint(0, 10, (arguments.batch_size,))
        cases: list[tuple[str, nn.Module, Tensor]] = [
            ("784-600-1", dense([784, 600, 1]), two),
            ("784-600-600-600-1", dense([784, 600, 600, 600, 1]), two),
            ("784-1200-1200-1", dense([784, 1200, 1200, 1]), two),
            ("784-600-10", dense([784, 600, 10]), ten),
            ("two convolutions, 10 classes", convolutional(), ten),
        ]
        for name, net, y in cases:
            steps = {
                "ordinary": ordinary(net, x, y, fused=False),
                "fused": ordinary(net, x, y, fused=True),
                "mixed": certified(net, x, y, "mixed"),
                "local": certified(net, x, y, "local"),
                "local/2": certified(net, x, y, "local", 2),
                "local/4": certified(net, x, y, "local", 4),
                "table": certified(net, x, y, "local", 2, natural=True),
            }
            report(name, steps, arguments.repeats, arguments.steps)


def report(name: str, steps: dict[str, Step], repeats: int, count: int) -> None:
    seconds: dict[str, list[float]] = {kind: [] for kind in steps}
    for step in steps.values():
        for _ in range(4):
            step()
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    for _ in range(repeats):
        for kind, step in steps.items():
            start = clock()
            for _ in range(count):
                step()
            seconds[kind].append((clock() - start) / count)
    best = {kind: min(values) for kind, values in seconds.items()}
    print(f"{name}: ordinary {1e3 * best['ordinary']:.1f} ms, fused {1e3 * best['fused']:.1f} ms")
    for kind in list(best)[2:]:
        ratios = (
            f"{best[kind] / best['ordinary']:.2f} ordinary, {best[kind] / best['fused']:.2f} fused"
        )
        print(f"  {kind:8s} {1e3 * best[kind]:6.1f} ms = {ratios}", flush=True)


if __name__ == "__main__":
    main()
