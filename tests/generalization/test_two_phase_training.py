"""Two-phase training: gates, values, and what a user may hand in."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch, UnsupportedModel
from torchtheory.generalization.paths.two_phase_training import (
    FrozenGates,
    first_phase_size,
    fit_two_phases,
    gate_pattern,
    gated_outputs,
    matching_epochs,
)
from torchtheory.kernels.paths.deep_paths import path_features
from torchtheory.nets.feedforward import dense, mlp


def normal(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def convolutional(seed: int, stride: int = 2) -> nn.Sequential:
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2, stride, padding=0 if stride == 2 else 1),
        nn.Flatten(),
        nn.Linear(8 if stride == 2 else 50, 2),
    ).double()
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(normal(seed + i, *p.shape))
    return net


def test_by_hand() -> None:
    gates = nn.Sequential(dense(torch.tensor([[1.0], [-1.0]])), nn.ReLU(), dense(torch.ones(1, 2)))
    values = nn.Sequential(
        dense(torch.tensor([[-4.0], [6.0]])), nn.ReLU(), dense(torch.tensor([[10.0, 1.0]]))
    )
    x = torch.tensor([[2.0], [-3.0]])
    # the first input opens unit 1: 10 · (-4) · 2; the second opens unit 2: 1 · 6 · (-3)
    assert gated_outputs(values, gates, x).flatten().tolist() == [-80.0, -18.0]
    assert [p.tolist() for p in gate_pattern(gates, x)] == [[[1.0, 0.0], [0.0, 1.0]]]


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_equals_the_sum_over_paths(seed: int) -> None:
    for make, shape in (
        (lambda s: mlp([3, 4, 3, 2], generator=s), (3,)),
        (lambda s: convolutional(s, 2), (1, 4, 4)),
    ):
        values, gates, x = make(seed), make(seed + 50_000), normal(seed, 5, *shape)
        listed = path_features(gates, x).features @ path_features(values, x).weights.mT
        torch.testing.assert_close(gated_outputs(values, gates, x), listed)
        torch.testing.assert_close(gated_outputs(values, values, x), values(x.clone()))


@pytest.mark.parametrize("stride", [1, 2])
def test_gradient_of_tied_gates_is_the_ordinary_one(stride: int) -> None:
    net = convolutional(3, stride)
    x = normal(1, 6, 1, 4, 4)
    found = [
        torch.autograd.grad(outputs.square().sum(), list(net.parameters()))
        for outputs in (gated_outputs(net, net, x), net(x.clone()))
    ]
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


@given(st.integers(0, 10_000), st.floats(-3, 3), st.floats(-3, 3))
@settings(max_examples=25, deadline=None)
def test_linear_in_a_layer(seed: int, a: float, b: float) -> None:
    gates, one, two = (mlp([3, 5, 2], bias=False, generator=seed + i) for i in range(3))
    two[2] = copy.deepcopy(one[2])
    both = copy.deepcopy(one)
    both[0] = dense(a * one[0].weight.detach() + b * two[0].weight.detach())
    x = normal(seed, 7, 3)
    torch.testing.assert_close(
        gated_outputs(both, gates, x),
        a * gated_outputs(one, gates, x) + b * gated_outputs(two, gates, x),
    )


def test_traced_model_and_precision() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.relu(self.first(x)))

    net = Net()
    x = normal(0, 5, 3).float()
    frozen = FrozenGates(net)
    torch.testing.assert_close(frozen(x), net(x))
    assert frozen(x).dtype == torch.float32
    twice = copy.deepcopy(frozen)
    with torch.no_grad():
        frozen.values.first.weight.zero_()
    torch.testing.assert_close(twice(x), net(x))


def test_training_moves_values_only_and_leaves_the_model_alone() -> None:
    net = mlp([2, 8, 1], generator=0).train()
    net[0].weight.grad = torch.ones_like(net[0].weight)
    kept = copy.deepcopy(net.state_dict())
    x = normal(0, 60, 2)
    y = (x[:, :1] * x[:, 1:]).sin()
    made = fit_two_phases(net, (x, y), 0.5, epochs=5, batch_size=10, learning_rate=0.02)
    for name, value in net.state_dict().items():
        assert torch.equal(value, kept[name])
    assert net.training
    assert bool((net[0].weight.grad == 1).all())
    for ours, first in zip(made.network.gates.parameters(), made.first.parameters(), strict=True):
        assert torch.equal(ours, first)
        assert ours.grad is None
    assert not torch.equal(made.network.values[0].weight, made.first[0].weight)
    assert (made.first_size, len(made.fresh)) == (30, 30)
    assert torch.equal(made.fresh.x, x[30:])
    assert made.second_history.train_losses[-1] < made.second_history.train_losses[0]
    again = fit_two_phases(net, (x, y), 0.5, epochs=5, batch_size=10, learning_rate=0.02)
    torch.testing.assert_close(again.network(x), made.network(x), rtol=0, atol=0)


def test_dropout_acts_on_values_only() -> None:
    net = nn.Sequential(nn.Linear(4, 50), nn.ReLU(), nn.Dropout(0.5), nn.Linear(50, 1))
    frozen = FrozenGates(net).train()
    assert frozen.values[2].training
    assert not frozen.gates[2].training


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)), "Tanh"),
        (nn.Sequential(nn.Linear(2, 3), nn.PReLU(), nn.Linear(3, 1)), "slope"),
        (nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)), "normalizes"),
        (nn.Sequential(nn.Linear(2, 3), nn.ReLU()), "last layer is dense"),
    ],
)
def test_refuses_models(model: nn.Module, words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        FrozenGates(model)


def test_refuses_other_input() -> None:
    net = mlp([2, 3, 1])
    with pytest.raises(UnsupportedModel, match="same layers"):
        gated_outputs(net, mlp([2, 3, 3, 1]), torch.zeros(1, 2).double())
    with pytest.raises(InvalidType, match="floating"):
        FrozenGates(net)(torch.zeros(1, 2, dtype=torch.long))
    with pytest.raises(ShapeMismatch, match="does not take"):
        FrozenGates(net)(torch.zeros(1, 5).double())
    for share in (0.0, 1.5, float("nan")):
        with pytest.raises(InvalidInput, match="share"):
            first_phase_size(10, share)
    with pytest.raises(InvalidType, match="share"):
        first_phase_size(10, "half")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        matching_epochs(0, 10, 5, 2)
