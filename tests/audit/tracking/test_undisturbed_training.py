"""The training does not notice that it is measured."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from torchtheory.audit.tracking.tracker import track


class Noisy(nn.Module):
    """Dropout, batch normalization, noise from three global generators, an attribute it sets."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)
        )
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.training:
            x = x + 0.1 * torch.randn_like(x) + 0.01 * random.random()
            x = x + 0.01 * float(np.random.rand())  # noqa: NPY002
        out: Tensor = self.body(x)
        return out


def noisy_training(watched: bool, blobs: Any) -> tuple[dict[str, Tensor], list[Any]]:
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002
    net = Noisy()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(*blobs(50)), batch_size=16, shuffle=True)
    tracker = None
    if watched:
        tracker = track(
            net, loader, blobs(20, seed=1), every=3, overhead=None, optimizer=optimizer, probe=24
        )
    seen: list[Any] = []
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
            gradients = [p.grad.clone() for p in net.parameters() if p.grad is not None]
            if tracker is not None:
                tracker.step()
            now = [p.grad for p in net.parameters() if p.grad is not None]
            seen.append([torch.equal(a, b) for a, b in zip(gradients, now, strict=True)])
    if tracker is not None:
        result = tracker.result()
        assert result.steps == (0, 3, 6, 9, 12)
        assert not [r for name, r in result.reasons.items() if name != "normalized-margin"]
    assert net.training
    assert all(m.training for m in net.modules())
    tail = [net.calls, random.random(), float(np.random.rand()), float(torch.rand(()))]  # noqa: NPY002
    return copy.deepcopy(net.state_dict()), [seen, *tail]


def test_training_is_bitwise_the_same_with_and_without_a_tracker(blobs: Any) -> None:
    (plain, plain_rest), (watched, watched_rest) = (
        noisy_training(False, blobs),
        noisy_training(True, blobs),
    )
    assert plain_rest == watched_rest
    assert all(all(step) for step in watched_rest[0])
    assert plain.keys() == watched.keys()
    assert all(torch.equal(plain[k], watched[k]) for k in plain)


def test_a_network_with_frozen_layers_and_mixed_modes_is_left_alone(descend: Any) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    net[1].eval()
    for p in net[0].parameters():
        p.requires_grad_(False)
    hooks = [len(m._forward_hooks) for m in net.modules()]
    found = descend(net, 5)
    assert [m.training for m in net] == [True, False, True, True]
    assert [p.requires_grad for p in net[0].parameters()] == [False, False]
    assert [len(m._forward_hooks) for m in net.modules()] == hooks
    assert set(found["gradient-norms"]) == {"all", "1", "3"}  # the frozen layer is not trained


def test_measuring_does_not_depend_on_the_modes_of_the_caller(blobs: Any, small_net: Any) -> None:
    found = []
    for context in (
        torch.enable_grad,
        torch.no_grad,
        lambda: torch.autocast("cpu", torch.bfloat16),
    ):
        with context():  # type: ignore[operator]
            tracker = track(small_net(), blobs(), quantities=["loss", "sharpness", "kernel-drift"])
        found.append(tracker.result().table().rows)
    assert found[0] == found[1] == found[2]
