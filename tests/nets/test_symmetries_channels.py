"""Channels of convolutions permute and rescale like units, also inside of other networks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, UnsupportedModel
from torchtheory.models.model import Parameters
from torchtheory.nets.symmetries import (
    HiddenLayer,
    canonical_form,
    hidden_layers,
    permutation_distance,
    permute_units,
    rescalable_layers,
    rescale_units,
    unit_products,
    with_parameters,
)
from torchtheory.tracing.chain import as_chain, straight_paths
from torchtheory.tracing.layer_features import layer_values


def shaken(net: nn.Module) -> nn.Module:
    """With statistics of normalizations other than those they begin with, in double precision."""
    generator = torch.Generator().manual_seed(0)
    net = net.double().eval()
    with torch.no_grad():
        for name, tensor in [*net.named_parameters(), *net.named_buffers()]:
            if tensor.is_floating_point():
                noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
                tensor.add_(noise if "running_var" in name else 0.2 * (noise - 0.5))
    return net


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm1 = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.two, self.norm2 = nn.Conv2d(4, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.one(x)))
        return F.relu(self.norm2(self.two(h)) + x)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(1, 3, 3), nn.Sequential(Block(), Block())
        self.head = nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.blocks(F.relu(self.stem(x)))
        out: Tensor = self.head(h.mean((2, 3)))
        return out


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 4, 2)
        self.fc1, self.fc2 = nn.Linear(4 * 2 * 2, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.one(x)), 2)
        x = F.relu(self.two(x))
        x = F.dropout(x.view(x.size(0), -1), 0.3, self.training)
        out: Tensor = self.fc2(torch.tanh(self.fc1(x)))
        return out


def plain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(),
        nn.Linear(16, 5), nn.BatchNorm1d(5, affine=False), nn.ReLU(), nn.Linear(5, 2),
    )  # fmt: skip


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, dropout=0.0)
    return nn.Sequential(
        nn.Flatten(2), nn.Linear(64, 4), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    )


NETWORKS = {
    "plain": (plain, [("0", "4", 3), ("4", "9", 4), ("9", "12", 5)], ["1", "4"]),
    "residual": (
        Residual,
        [
            ("blocks.0.one", "blocks.0.two", 4),
            ("blocks.1.one", "blocks.1.two", 4),
            ("head.0", "head.2", 5),
        ],
        ["blocks.0.norm1", "blocks.1.norm1"],
    ),
    "functional": (
        Functional, [("one", "two", 3), ("two", "fc1", 4), ("fc1", "fc2", 5)], ["one", "two"]
    ),
    "encoder": (
        encoder,
        [(f"2.layers.{k}.linear1", f"2.layers.{k}.linear2", 6) for k in range(2)],
        [f"2.layers.{k}.linear1" for k in range(2)],
    ),
}  # fmt: skip


def tensors(net: nn.Module) -> Parameters:
    return {**dict(net.named_parameters()), **dict(net.named_buffers())}


@pytest.mark.parametrize("name", NETWORKS)
def test_channels_permute_and_rescale(name: str) -> None:
    build, expected, scaled = NETWORKS[name]
    torch.manual_seed(0)
    net = shaken(build())
    x = torch.randn(6, 1, 8, 8, dtype=torch.float64)
    layers = hidden_layers(net)
    assert [(m.incoming, m.outgoing, m.units) for m in layers] == expected
    theta = tensors(net)
    before = net(x)
    for layer in layers:
        order = torch.arange(layer.units).roll(1)
        moved = permute_units(theta, layer, order)
        assert torch.allclose(torch.func.functional_call(net, moved, (x,)), before, atol=1e-10)
        half = {**moved, f"{layer.outgoing}.weight": theta[f"{layer.outgoing}.weight"]}
        assert not torch.allclose(torch.func.functional_call(net, half, (x,)), before, atol=1e-6)
    scales = rescalable_layers(net)
    assert [m.incoming for m in scales] == scaled
    for layer in scales:
        factors = torch.linspace(0.3, 4.0, layer.units, dtype=torch.float64)
        moved = rescale_units(theta, layer, factors)
        assert torch.allclose(torch.func.functional_call(net, moved, (x,)), before, atol=1e-10)


@pytest.mark.parametrize("name", NETWORKS)
def test_both_sides_of_a_unit_grow_alike(name: str) -> None:
    torch.manual_seed(0)
    net = shaken(NETWORKS[name][0]())
    x = torch.randn(6, 1, 8, 8, dtype=torch.float64)
    theta = {k: p.detach().requires_grad_() for k, p in net.named_parameters()}
    loss = torch.func.functional_call(net, theta, (x,)).square().sum()
    slopes = dict(zip(theta, torch.autograd.grad(loss, [*theta.values()]), strict=True))
    for layer in rescalable_layers(net):
        entering, leaving = unit_products(theta, slopes, layer)
        torch.testing.assert_close(entering, leaving, rtol=1e-8, atol=1e-8)
        assert float(leaving.detach().abs().max()) > 0


def test_canonical_forms_of_channels() -> None:
    torch.manual_seed(0)
    net = shaken(plain())
    theta = tensors(net)
    for layer in hidden_layers(net):
        theta = permute_units(theta, layer, torch.arange(layer.units).roll(2))
    for layer in rescalable_layers(net):
        theta = rescale_units(theta, layer, torch.linspace(0.5, 3.0, layer.units))
    other = with_parameters(net, theta)
    x = torch.randn(6, 1, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(other(x), net(x))
    one, two = (canonical_form(n, rescaling=True) for n in (net, other))
    for key, value in one.items():
        torch.testing.assert_close(two[key], value)
    torch.testing.assert_close(with_parameters(net, one)(x), net(x))
    alone = tensors(net)
    for layer in hidden_layers(net):
        alone = permute_units(alone, layer, torch.arange(layer.units).roll(1))
    assert permutation_distance(net, with_parameters(net, alone)) == 0


def test_what_mixes_channels_is_left_out() -> None:
    def between(one: nn.Module, *layers: nn.Module) -> list[HiddenLayer]:
        return hidden_layers(nn.Sequential(one, *layers))

    conv = nn.Conv2d(2, 4, 3)
    assert between(conv, nn.ReLU(), nn.Conv2d(4, 2, 3))
    assert not between(conv, nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2))
    assert not between(nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 2, 3))
    assert not between(conv, nn.GroupNorm(2, 4), nn.Conv2d(4, 2, 3))
    assert not between(conv, nn.ReLU(), nn.Linear(4, 2))  # over the last dimension of a picture
    assert not between(conv, nn.PixelShuffle(2), nn.Conv2d(1, 2, 3))
    assert not between(conv, nn.Flatten(2), nn.Linear(4, 2))
    assert not between(conv, nn.BatchNorm2d(4, track_running_stats=False), nn.Conv2d(4, 2, 3))
    used_twice = nn.Sequential(conv, nn.ReLU(), nn.Conv2d(4, 2, 3), nn.ReLU(), conv)
    assert hidden_layers(used_twice) == []


def test_functions_stand_for_layers_in_evaluation_mode() -> None:
    net = Functional().double()
    x = torch.randn(3, 1, 8, 8, dtype=torch.float64)
    value = x
    for link in as_chain(net):
        value = link.module(value)
    assert torch.equal(value, net.eval()(x))
    assert torch.equal(layer_values(net.train(), x)[-1], value)


def test_branches_end_a_path() -> None:
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.a(x))
            out: Tensor = self.b(h) + h  # the hidden units are seen from outside
            return out

    assert hidden_layers(Skip()) == []
    assert [len(path) for path in straight_paths(Skip())] == [2, 1]


def test_running_statistics_are_asked_for_and_what_cannot_be_traced_is_named() -> None:
    net = plain()
    with pytest.raises(InvalidInput, match=r"1\.running_mean"):
        permute_units(dict(net.named_parameters()), hidden_layers(net)[0], torch.arange(3))

    class Deciding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.a(x)
            return out if x.sum() > 0 else -out

    with pytest.raises(UnsupportedModel, match="asks what is in its input"):
        hidden_layers(Deciding())
