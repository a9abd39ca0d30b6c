"""The path kernel against enumerated paths, by hand, and on networks it refuses."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.kernels.paths import path_kernel
from torchtheory.kernels.paths.deep_paths import path_features
from torchtheory.kernels.paths.path_kernel import deep_path_kernel, number_of_paths, path_norms
from torchtheory.nets.biases import absorb_biases
from torchtheory.nets.feedforward import mlp


def randomized(net: nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    net = net.double()
    for name, tensor in [*net.named_parameters(), *net.named_buffers()]:
        if tensor.is_floating_point():
            values = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            tensor.data.copy_(values.abs() + 0.3 if name.endswith("running_var") else values)
    return net


class Tutorial(nn.Module):
    """Flat input, view with the batch size, functional ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.out = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.conv(x.view(x.shape[0], 1, 4, 4))))
        out: Tensor = self.out(x.view(x.size(0), -1))
        return out


CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(3, 2), (3,)),
    "dense": (lambda: mlp([3, 4, 4, 2], bias=False), (3,)),
    "biases": (lambda: mlp([3, 4, 4, 2]), (3,)),
    "leaky": (lambda: nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(0.3), nn.Linear(4, 2)), (3,)),
    "prelu, batch norm": (
        lambda: nn.Sequential(
            nn.Linear(3, 4), nn.BatchNorm1d(4), nn.PReLU(4), nn.Dropout(), nn.Linear(4, 1),
            nn.Flatten(0),
        ),
        (3,),
    ),
    "tutorial": (Tutorial, (16,)),
    "overlapping pools": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 2, 2, bias=False), nn.MaxPool2d(2, 1), nn.ReLU(), nn.Conv2d(2, 2, 2),
            nn.ReLU(), nn.Flatten(), nn.Linear(8, 2),
        ),
        (2, 5, 5),
    ),
    "padding, stride": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 2), nn.ReLU(), nn.MaxPool2d(2, 1, padding=1),
            nn.Conv2d(2, 2, 2, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(2, 2),
        ),
        (1, 4, 4),
    ),
    "groups, average pool": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 2, groups=2), nn.BatchNorm2d(4), nn.ReLU(),
            nn.Conv2d(4, 2, 2, groups=2, padding=1, dilation=2), nn.ReLU(),
            nn.AvgPool2d(2, 1, padding=1, count_include_pad=False), nn.Flatten(), nn.Linear(18, 2),
        ),
        (2, 3, 3),
    ),
    "circular padding, uneven windows": (
        lambda: nn.Sequential(
            nn.Conv1d(1, 2, 3, padding=1, padding_mode="circular"), nn.ReLU(),
            nn.AdaptiveAvgPool1d(2), nn.Flatten(), nn.Linear(4, 2),
        ),
        (1, 5),
    ),
    "windows over the rim": (
        lambda: nn.Sequential(
            nn.MaxPool1d(2, ceil_mode=True), nn.AvgPool1d(2, 1, padding=1), nn.Flatten(),
            nn.Linear(3, 2),
        ),
        (1, 3),
    ),
    "one dimension": (
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 7)), nn.Conv1d(1, 2, 3), nn.LeakyReLU(),
            nn.MaxPool1d(2, 1, dilation=2), nn.Flatten(), nn.Linear(6, 2), nn.ReLU(),
            nn.Linear(2, 1),
        ),
        (7,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_against_enumerated_paths(name: str) -> None:
    make, shape = CASES[name]
    net = randomized(make()).train()
    x, y = torch.randn(5, *shape).double(), torch.randn(4, *shape).double()
    listed, others = path_features(net, x), path_features(net, y)
    assert net.training
    with torch.no_grad():
        torch.testing.assert_close(listed.outputs, net.eval()(x).reshape(5, -1))
    scale = {"rtol": 1e-12, "atol": 1e-10}
    torch.testing.assert_close(
        deep_path_kernel(net, x, y), listed.features @ others.features.mT, **scale
    )
    torch.testing.assert_close(
        deep_path_kernel(net, x), listed.features @ listed.features.mT, **scale
    )
    torch.testing.assert_close(path_norms(net, shape), listed.weights.norm(dim=1), **scale)
    assert number_of_paths(net, shape) == listed.features.shape[1] == listed.weights.shape[1]


def test_tiles_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = randomized(Tutorial()), torch.randn(11, 16).double()
    whole, block = deep_path_kernel(net, x), deep_path_kernel(net, x, x[:7])
    monkeypatch.setattr(path_kernel, "_ENTRIES", 4 * 32)
    torch.testing.assert_close(deep_path_kernel(net, x), whole, rtol=1e-13, atol=0)
    torch.testing.assert_close(deep_path_kernel(net, x, x[:7]), block, rtol=1e-13, atol=0)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.integers(0, 10_000),
)
def test_dense_networks_by_the_definition(hidden: list[int], seed: int) -> None:
    """Every path as a tuple of units, as the source writes it."""
    generator = torch.Generator().manual_seed(seed)
    net = mlp([3, *hidden, 2], bias=False, generator=generator)
    x = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    masks, value = [], x
    with torch.no_grad():
        for layer in net:
            value = layer(value)
            if isinstance(layer, nn.ReLU):
                masks.append((value > 0).double())
        features, weights = [], []
        matrices = [m.weight for m in net if isinstance(m, nn.Linear)]
        for path in itertools.product(range(3), *map(range, hidden)):
            z, w = x[:, path[0]], torch.ones((), dtype=torch.float64)
            for layer, (a, b) in enumerate(itertools.pairwise(path)):
                z = z * masks[layer][:, b]
                w = w * matrices[layer][b, a]
            features.append(z)
            weights.append(w * matrices[-1][:, path[-1]])
        z, w = torch.stack(features, 1), torch.stack(weights, 1)
        torch.testing.assert_close(z @ w.mT, net(x))
        torch.testing.assert_close(deep_path_kernel(net, x), z @ z.mT, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(path_norms(net, (3,)), w.norm(dim=1))
        assert number_of_paths(net, (3,)) == len(features)
    assert torch.linalg.eigvalsh(deep_path_kernel(net, x))[0] > -1e-9


def test_biases_are_paths_of_the_network_that_absorbed_them() -> None:
    """Its connections of weight 0 (inputs to carrying units) are no connections here."""
    net = mlp([2, 3, 3, 1], generator=0)
    bare = absorb_biases(net)
    x = torch.randn(4, 2).double()
    listed = path_features(bare.network, torch.cat([x, torch.ones(4, 1)], 1))
    real = listed.weights[0] != 0
    z = listed.features[:, real]
    assert int(real.sum()) == number_of_paths(net, (2,))
    torch.testing.assert_close(deep_path_kernel(net, x), z @ z.mT)


def test_single_precision_and_the_model_is_left_alone() -> None:
    net = mlp([4, 300, 300, 300, 2], generator=0).float().train()
    before = [p.clone() for p in net.parameters()]
    x = torch.randn(3, 4)
    kernel = deep_path_kernel(net, x)
    assert kernel.dtype is torch.float64
    assert net.training
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert torch.equal(kernel, kernel.mT)
    assert number_of_paths(net, (4,)) == 4 * 300**3 + 300**3 + 300**2 + 300 + 1


@pytest.mark.parametrize(
    ("model", "x", "error", "sentence"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)), torch.ones(1, 2),
         UnsupportedModel, r"no rule for tanh \(in layer '1', Tanh\)"),
        (nn.Sequential(nn.AdaptiveMaxPool1d(2), nn.Flatten(), nn.Linear(2, 1)),
         torch.ones(1, 1, 5), UnsupportedModel, "uneven"),
        (nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False), nn.Linear(2, 1)),
         torch.ones(1, 2), UnsupportedModel, "statistics of its batch"),
        (nn.Linear(2, 1), torch.ones(1, 3), ShapeMismatch, "does not take inputs of shape"),
        (nn.Linear(2, 1), torch.ones(2), ShapeMismatch, "one row per"),
        (nn.Linear(2, 1), torch.ones(0, 2), EmptyData, "empty"),
        (nn.Linear(2, 1), torch.full((1, 2), float("nan")), NonFinite, "is nan"),
        (nn.Linear(2, 1), torch.ones(1, 2).long(), InvalidType, "floating-point"),
        ("net", torch.ones(1, 2), InvalidType, "torch.nn.Module"),
    ],
)  # fmt: skip
def test_refused(model: Any, x: Tensor, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        deep_path_kernel(model, x)


def test_refused_pairs_and_too_many_paths() -> None:
    with pytest.raises(ShapeMismatch, match="x2"):
        deep_path_kernel(nn.Linear(2, 1), torch.ones(1, 2), torch.ones(1, 3))
    with pytest.raises(InvalidInput, match="use deep_path_kernel"):
        path_features(mlp([9, 99, 1]), torch.ones(1, 9), most=900)
    deep = mlp([2, *[100] * 160, 1], bias=False)
    for p in deep.parameters():
        p.data.abs_()
    with pytest.raises(NonFinite, match="beyond the largest number"):
        deep_path_kernel(deep, torch.ones(1, 2))
