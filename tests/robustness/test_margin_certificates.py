"""Certified radii and the perturbations a search finds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import UnsupportedModel
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.nets.feedforward import mlp
from torchtheory.robustness.lipschitz.layers import layer_norms
from torchtheory.robustness.margin_certificates import boundary_distances, certified_radii


def labeled(net: nn.Module, x: torch.Tensor) -> Problem:
    """A problem whose labels are the model's own predictions."""
    with torch.no_grad():
        scores = net(x)
    y = scores.argmax(1) if scores.shape[1] > 1 else (scores > 0).long().reshape(-1)
    return Problem(net, (x, y), task="multiclass" if scores.shape[1] > 1 else "binary")


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1, 2, 5]))
def test_linear_models_have_the_distance_itself(seed: int, outputs: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    net = mlp([4, outputs], generator=generator)
    x = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    problem = labeled(net, x)
    weight, bias = net[0].weight.detach(), net[0].bias.detach()
    if outputs == 1:
        exact = (x @ weight[0] + bias).abs() / weight.norm()
    else:
        y = problem.train.y
        scores = x @ weight.mT + bias
        apart = (weight[y][:, None] - weight).norm(dim=2)
        exact = ((scores.gather(1, y[:, None]) - scores) / apart).nan_to_num(math.inf).amin(1)
    torch.testing.assert_close(certified_radii(problem, problem.train), exact)
    torch.testing.assert_close(
        boundary_distances(problem, problem.train), exact, rtol=1e-4, atol=1e-7
    )


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1, 3]))
def test_nothing_is_found_inside_the_radius(seed: int, outputs: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    net = mlp([3, 8, 8, outputs], generator=generator)
    for p in net.parameters():
        p.data *= 2
    x = torch.randn(20, 3, generator=generator, dtype=torch.float64)
    problem = labeled(net, x)
    radii = certified_radii(problem, problem.train)
    found = boundary_distances(problem, problem.train)
    assert bool((radii > 0).all())
    assert bool((found >= radii).all())
    direction = torch.randn(20, 3, generator=generator, dtype=torch.float64)
    moved = x + 0.999 * radii[:, None] * direction / direction.norm(dim=1, keepdim=True)
    assert not bool(problem.errors(Samples(moved, problem.train.y)).any())


def test_without_a_last_dense_layer_two_outputs_move_apart() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Softsign()).double()
    problem = labeled(net, torch.randn(9, 2).double())
    product = math.prod(n.lipschitz for n in layer_norms(net, (2,)))
    expected = problem.margins(problem.train) / (math.sqrt(2) * product)
    torch.testing.assert_close(certified_radii(problem, problem.train), expected)


def test_mistakes_constants_and_convolutions() -> None:
    net = mlp([2, 3], generator=0)
    x = torch.randn(6, 2).double()
    wrong = (net(x).argmax(1) + 1) % 3
    problem = Problem(net, (x, wrong))
    assert certified_radii(problem, problem.train).tolist() == [0.0] * 6
    assert boundary_distances(problem, problem.train).tolist() == [0.0] * 6
    net[0].weight.data.zero_()
    net[0].bias.data = torch.tensor([1.0, 0.0, 0.0]).double()
    constant = Problem(net, (x, torch.zeros(6).long()))
    assert certified_radii(constant, constant.train).tolist() == [math.inf] * 6
    assert boundary_distances(constant, constant.train).tolist() == [math.inf] * 6
    conv = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)
    )
    pictures = labeled(conv, torch.randn(10, 1, 6, 6))
    radii = certified_radii(pictures, pictures.train)
    found = boundary_distances(pictures, pictures.train)
    assert bool((found >= radii).all())
    assert bool(torch.isfinite(found).any())


def test_refused() -> None:
    class Sorted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sort(-1).values

    net = nn.Sequential(nn.Linear(2, 4), Sorted(), nn.Linear(4, 2))
    problem = Problem(net, (torch.randn(4, 2), torch.tensor([0, 1, 0, 1])))
    with pytest.raises(UnsupportedModel, match=r"sort.*layer '1', Sorted"):
        certified_radii(problem, problem.train)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_found_inside_the_radius_of_networks_with_local_bounds(seed: int) -> None:
    """Layer normalization, attention and gates: the certificate of each sample's own ball."""
    torch.manual_seed(seed)

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)
            self.attention = nn.MultiheadAttention(3, 1, batch_first=True)
            self.head = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.norm(torch.sigmoid(self.inner(x)) * x)
            tokens = x.unflatten(1, (2, 3))
            mixed, _ = self.attention(tokens, tokens, tokens)
            out: torch.Tensor = self.head(mixed.flatten(1))
            return out

    net = Gated().double().eval()
    x = torch.randn(12, 6, dtype=torch.float64)
    problem = labeled(net, x)
    radii = certified_radii(problem, problem.train)
    found = boundary_distances(problem, problem.train)
    assert bool((radii > 0).all())
    assert bool((found >= radii).all())
    direction = torch.randn(50, 12, 6, dtype=torch.float64)
    direction /= direction.norm(dim=2, keepdim=True)
    moved = (x + 0.999 * radii[:, None] * direction).flatten(0, 1)
    assert not bool(problem.errors(Samples(moved, problem.train.y.repeat(50))).any())
