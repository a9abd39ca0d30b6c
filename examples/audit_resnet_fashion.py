"""What theory says about a residual network with batch normalization.

    python examples/audit_resnet_fashion.py [--directory audit-resnet] [--batches 60]

trains a small ResNet for some batches of Fashion-MNIST, audits it and writes the report. Where
Fashion-MNIST is not on this machine, scikit-learn's digits take its place.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.core.errors import FileProblem
from torchtheory.data.image_sets import load_image_set
from torchtheory.data.real import digits, split

Pair = tuple[Tensor, Tensor]


class Block(nn.Module):
    """Two convolutions, and what goes around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(h)))


def resnet(channels: int, blocks: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        *[Block(channels) for _ in range(blocks)],
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, 10),
    )


def images() -> tuple[Pair, Pair]:
    """Images `[n, 1, height, width]` in [0, 1] and their classes: to train on, and to test."""
    try:
        (x, y), (x_test, y_test) = load_image_set("fashion-mnist")
    except FileProblem as missing:
        print(f"Using scikit-learn's digits: {missing}.")
        (x, y), (x_test, y_test) = split(*digits(), test_fraction=0.25)
        return (x.reshape(-1, 1, 8, 8), y), (x_test.reshape(-1, 1, 8, 8), y_test)
    return (x[:, None] / 255, y), (x_test[:, None] / 255, y_test)


def main(arguments: list[str] | None = None) -> tt.audit.Audit:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", default="audit-resnet")
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--budget", default="2min")
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    (x, y), (x_test, y_test) = images()
    x, y = x[: options.samples], y[: options.samples]
    test = x_test[: options.samples], y_test[: options.samples]
    net = resnet(options.channels, options.blocks)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(options.batches):
        batch = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        F.cross_entropy(net(x[batch]), y[batch]).backward()
        optimizer.step()

    # in train mode still: the audit evaluates it as it would be used, and puts its mode back
    report = tt.audit(net, (x, y), test, budget=options.budget, title="A small ResNet")
    print(*report.summary, sep="\n")
    print("written to", report.save(options.directory))
    return report


if __name__ == "__main__":
    main()
