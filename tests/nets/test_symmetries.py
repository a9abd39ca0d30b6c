"""Permutations of hidden units: found where they are symmetries, and only there."""

from __future__ import annotations

import math
from itertools import pairwise, permutations, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, UnsupportedModel
from torchtheory.nets.symmetries import (
    HiddenLayer,
    hidden_layers,
    is_permutation_matrix,
    log10_equivalent_parameters,
    permute_units,
)


def mlp(widths: list[int], act: nn.Module) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), act]
    return nn.Sequential(*layers[:-1]).double()


@given(
    st.lists(st.integers(1, 6), min_size=3, max_size=5),
    st.sampled_from([nn.ReLU(), nn.Tanh(), nn.GELU(), nn.Sequential(nn.ELU(), nn.Dropout())]),
    st.integers(0, 100),
)
@settings(max_examples=30, deadline=None)
def test_permuting_changes_parameters_but_not_the_function(
    widths: list[int], act: nn.Module, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    net = mlp(widths, act).eval()
    x = torch.randn(7, widths[0], dtype=torch.float64, generator=generator)
    own = dict(net.named_parameters())
    theta = own
    layers = hidden_layers(net)
    assert [layer.units for layer in layers] == widths[1:-1]
    for layer in layers:
        theta = permute_units(theta, layer, torch.randperm(layer.units, generator=generator))
    assert torch.allclose(torch.func.functional_call(net, theta, (x,)), net(x), atol=1e-12)
    assert all(own[k] is p for k, p in net.named_parameters())
    assert all(
        sorted(theta[k].flatten().tolist()) == sorted(own[k].flatten().tolist()) for k in own
    )


def test_unit_order() -> None:
    net = nn.Sequential(nn.Linear(1, 3, bias=False), nn.ReLU(), nn.Linear(3, 1, bias=False))
    theta = {
        "0.weight": torch.tensor([[1.0], [2.0], [3.0]]),
        "2.weight": torch.tensor([[4.0, 5, 6]]),
    }
    moved = permute_units(theta, hidden_layers(net)[0], torch.tensor([2, 0, 1]))
    assert moved["0.weight"].flatten().tolist() == [3, 1, 2]
    assert moved["2.weight"].flatten().tolist() == [6, 4, 5]


def test_what_stands_between_matters() -> None:
    def between(*layers: nn.Module) -> int:
        return len(hidden_layers(nn.Sequential(nn.Linear(2, 4), *layers, nn.Linear(4, 2))))

    assert between() == between(nn.ReLU(), nn.Dropout()) == 1
    assert between(nn.BatchNorm1d(4), nn.ReLU()) == 1
    frozen = nn.BatchNorm1d(4, track_running_stats=False)
    for mixing in (nn.Softmax(-1), nn.LayerNorm(4), nn.PReLU(4), nn.Flatten(), frozen):
        assert between(mixing) == 0


def test_shared_and_computed_weights_are_left_out() -> None:
    layer = nn.Linear(3, 3)
    twice = nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(3, 3))
    assert hidden_layers(twice) == []
    tied = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    tied[2].weight = tied[0].weight
    assert hidden_layers(tied) == []
    normed = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), nn.ReLU(), nn.Linear(3, 1)
    )
    assert hidden_layers(normed) == []

    class First(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).cumsum(-1)

    class Mixing(nn.ReLU):
        def forward(self, x: Tensor) -> Tensor:
            return x.cumsum(-1)

    assert hidden_layers(nn.Sequential(First(3, 3), nn.ReLU(), nn.Linear(3, 1))) == []
    assert hidden_layers(nn.Sequential(nn.Linear(3, 3), Mixing(), nn.Linear(3, 1))) == []


@pytest.mark.parametrize("bad", [[0, 1], [0, 1, 1], [1, 2, 3], [0, 1, 2, 3]])
def test_bad_permutations_are_refused(bad: list[int]) -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    with pytest.raises(InvalidInput, match=r"lists 0\.\.2 once"):
        permute_units(dict(net.named_parameters()), hidden_layers(net)[0], torch.tensor(bad))


def test_orbit_size() -> None:
    layers = [HiddenLayer("a", "b", 3), HiddenLayer("b", "c", 4)]
    assert 10 ** log10_equivalent_parameters(layers) == pytest.approx(6 * 24)
    big = log10_equivalent_parameters([HiddenLayer("a", "b", 10**6)])
    assert big == pytest.approx(5565708.917, abs=0.01)
    assert math.isfinite(big)
    with pytest.raises(UnsupportedModel, match="no hidden layer"):
        log10_equivalent_parameters([])


def test_permutation_matrices_exactly() -> None:
    good = {tuple(torch.eye(3)[list(p)].flatten().tolist()) for p in permutations(range(3))}
    for entries in product((0.0, 1.0), repeat=9):
        assert is_permutation_matrix(torch.tensor(entries).reshape(3, 3)) == (entries in good)
    assert not is_permutation_matrix(torch.full((2, 2), 0.5))
    assert not is_permutation_matrix(torch.tensor([[2.0, -1.0], [-1.0, 2.0]]))
    assert not is_permutation_matrix(torch.ones(1, 2))
    assert not is_permutation_matrix(torch.ones(3))


class ReadsItsWeight(nn.Module):
    """The second layer's matrix once more, behind the back of the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        again: Tensor = hidden @ self.first.weight @ self.first.weight.t()
        return torch.add(again, self.second(hidden))


def test_layers_whose_weights_are_used_elsewhere_have_no_free_units() -> None:
    assert hidden_layers(ReadsItsWeight()) == []
