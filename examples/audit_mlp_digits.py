"""What theory says about a small network on handwritten digits.

    python examples/audit_mlp_digits.py [--directory audit-digits] [--width 64] [--epochs 30]

trains a network on scikit-learn's digits, audits it and writes the report.
"""

from __future__ import annotations

import argparse
import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torchtheory as tt
from torchtheory.data.real import digits, split


def main(arguments: list[str] | None = None) -> tt.audit.Audit:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", default="audit-digits")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--samples", type=int, default=1300)
    parser.add_argument("--budget", default="60s")
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    (x, y), test = split(*digits(), test_fraction=0.25)
    train = TensorDataset(x[: options.samples], y[: options.samples])
    net = nn.Sequential(
        nn.Linear(64, options.width), nn.ReLU(),
        nn.Linear(options.width, options.width), nn.ReLU(),
        nn.Linear(options.width, 10),
    )  # fmt: skip
    start = copy.deepcopy(net.state_dict())  # some findings compare with where training began
    optimizer = torch.optim.SGD(net.parameters(), lr=options.rate)
    for _ in range(options.epochs):
        for inputs, labels in DataLoader(train, batch_size=64, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()

    report = tt.audit(
        net, train, test, initial=start, learning_rate=options.rate, budget=options.budget
    )
    print(*report.summary, sep="\n")
    print("written to", report.save(options.directory))
    return report


if __name__ == "__main__":
    main()
