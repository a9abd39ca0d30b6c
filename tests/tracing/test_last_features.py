"""What the last dense layer sees."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtheory.models.problem import Problem
from torchtheory.tracing.last_features import last_features, last_layer_inputs


class Own(nn.Module):
    """A dense layer that is no module, and one applied to every position before it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.weight = nn.Linear(4, 6), nn.Parameter(torch.randn(3, 6))

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x).tanh().mean(1)
        return nn.functional.linear(h, self.weight)


def test_features_are_the_input_of_the_last_layer() -> None:
    torch.manual_seed(0)
    model = Own()
    problem = Problem(model, (torch.randn(700, 5, 4), torch.arange(700) % 3))
    found = last_features(problem, problem.train)
    assert found is not None
    assert found.shape == (700, 6)
    assert torch.allclose(found @ model.weight.T, problem.outputs(problem.train), atol=1e-5)


def test_networks_without_a_dense_layer_have_none() -> None:
    x = torch.randn(6, 2, 3, 3)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten())
    problem = Problem(model, (x, torch.arange(6) % 4))
    assert last_features(problem, problem.train) is None


def test_the_layer_that_ran_last_is_named() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 2, 3, 3)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten())
    problem = Problem(model, (x, torch.arange(40) % 4), chunk=16)
    found = last_layer_inputs(problem, problem.train)
    assert found is not None
    assert found[0] == "0"
    assert torch.equal(found[1], x.flatten(1))
    own = Problem(Own(), (torch.randn(9, 5, 4), torch.arange(9) % 3))
    last = last_layer_inputs(own, own.train)
    assert last is not None
    assert (last[0], last[1].shape) == ("weight", (9, 6))  # a weight of the model itself
    positions = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    token = Problem(positions, (torch.randn(9, 5, 4), torch.zeros(9, 5, 3)))
    last = last_layer_inputs(token, token.train)
    assert last is not None
    assert (last[0], last[1].shape) == ("2", (9, 30))


def test_a_model_without_such_a_layer() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.size = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.size * x

    problem = Problem(Scaled(), (torch.randn(9, 3), torch.arange(9) % 3))
    assert last_layer_inputs(problem, problem.train) is None
