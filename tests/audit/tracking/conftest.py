"""What the tests of tracking share: data, a network, a training that is tracked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.audit.tracking import quantities as quantity_module
from torchtheory.audit.tracking.quantities import find_quantities
from torchtheory.audit.tracking.result import Tracking
from torchtheory.audit.tracking.tracker import track


@pytest.fixture(autouse=True)
def own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    find_quantities()
    monkeypatch.setattr(quantity_module, "_QUANTITIES", dict(quantity_module._QUANTITIES))


def make_blobs(n: int = 60, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    x = torch.randn(n, 4, generator=generator)
    x[torch.arange(n), y] += 3
    return x, y


def make_net(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def tracked_descent(
    net: nn.Module, steps: int, rate: float = 0.1, data: Any = None, **settings: Any
) -> Tracking:
    x, y = data or make_blobs()
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    settings = {"every": 5, "overhead": None, "optimizer": optimizer, **settings}
    with track(net, (x, y), **settings) as tracker:
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
            tracker.step()
    return tracker.result()


@pytest.fixture(scope="session")
def blobs() -> Callable[..., tuple[Tensor, Tensor]]:
    """Samples of three classes."""
    return make_blobs


@pytest.fixture(scope="session")
def small_net() -> Callable[..., nn.Sequential]:
    """A network for them, from a seed."""
    return make_net


@pytest.fixture(scope="session")
def descend() -> Callable[..., Tracking]:
    """Train it by gradient descent, tracked."""
    return tracked_descent
