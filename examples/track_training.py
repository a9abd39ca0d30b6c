"""Gradient descent on handwritten digits, watched: the sharpness climbs to 2 / learning rate.

    python examples/track_training.py [directory]

writes `tracking.png` and `tracking.json` there (`tracking` unless told). Takes about a minute
on one core.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.audit.tracking.tracker import track
from torchtheory.data.real import digits, split


def squared(outputs: Tensor, labels: Tensor) -> Tensor:
    """Half the squared distance to the one-hot label, the mean over samples."""
    return (outputs - F.one_hot(labels, 10)).square().sum(1).mean() / 2


def main(directory: str = "tracking", steps: int = 1500) -> None:
    train, test = split(*digits(), test_fraction=0.7)
    x, y = train
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.15)
    # probe: all training samples, so that it is the sharpness of the loss that is descended
    tracker = track(
        net,
        train,
        test,
        loss=squared,
        task="multiclass",
        every=25,
        optimizer=optimizer,
        probe=540,
        overhead=None,
    )
    with tracker:
        for _ in range(steps):
            optimizer.zero_grad()
            squared(net(x), y).backward()
            optimizer.step()
            tracker.step()
    found = tracker.result()
    print(found)
    print("written to", found.save(directory))


if __name__ == "__main__":
    main(*sys.argv[1:2])
