"""Jacobians and gradients block by block, against torch.func and by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tracing.architectures import architecture, archived
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, UnknownName, UnsupportedModel
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.nets.residual import jacobians
from torchtheory.nets.residual.image_resnets import resnet
from torchtheory.nets.residual.jacobians import (
    block_jacobian,
    gradient_profile,
    jacobian_profile,
)
from torchtheory.nets.residual.layers import Residual, residual_network


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Convolved(nn.Module):
    """A user's own module: a convolution, a shortcut, a functional activation in place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 2, 3, padding=1)
        self.inner = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2))
        self.head = nn.Linear(2 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu_(self.stem(x))
        x = x + self.inner(x)
        out: Tensor = self.head(x.flatten(1))
        return out


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 5))
def test_jacobian_is_that_of_torch_func(seed: int, inputs: int, outputs: int) -> None:
    net = mlp([inputs, 4, outputs], "tanh", generator=seed)
    x = randn(3, inputs, seed=seed)
    wanted = torch.stack([torch.func.jacrev(net)(sample) for sample in x])
    torch.testing.assert_close(block_jacobian(net, x), wanted)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.05, 3.0))
def test_singular_values_lie_around_one(seed: int, scale: float) -> None:
    body = dense(scale * randn(4, 4, seed=seed))
    (block,) = jacobian_profile(nn.Sequential(Residual(body)), randn(2, 4)).blocks
    norm = float(torch.linalg.matrix_norm(body.weight.detach(), 2))
    assert block.departure == pytest.approx(norm)
    assert block.bounds is not None
    assert block.smallest is not None
    assert block.bounds[0] - 1e-12 <= block.smallest <= block.largest <= block.bounds[1] + 1e-12


def test_through_depth_is_the_jacobian_of_the_whole() -> None:
    net = residual_network(5, 6, "tanh", generator=1)
    x = randn(2, 5)
    profile = jacobian_profile(net, x)
    whole = torch.linalg.svdvals(torch.stack([torch.func.jacrev(net)(s) for s in x])).detach()
    assert profile.largest is not None
    assert profile.smallest is not None
    assert float(profile.largest[-1]) == pytest.approx(float(whole[:, 0].max()))
    assert float(profile.smallest[-1]) == pytest.approx(float(whole[:, -1].min()))


def test_small_singular_values_of_long_products_are_not_lost() -> None:
    shrinking = torch.diag(torch.tensor([1.0, 0.1], dtype=torch.float64))
    turn = torch.linalg.qr(randn(2, 2)).Q
    net = nn.Sequential(*(dense(turn.T @ shrinking @ turn) for _ in range(30)))
    profile = jacobian_profile(net, randn(1, 2))
    assert profile.smallest is not None
    assert float(profile.smallest[-1]) == pytest.approx(1e-30, rel=1e-6)


def test_layers_with_other_shapes_have_no_departure_and_rank_deficient_ones_a_zero() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2)).double()
    net[0].bias.data.fill_(-100.0)
    profile = jacobian_profile(net, randn(2, 3))
    assert [b.departure is None for b in profile.blocks] == [True, False, False]
    assert profile.blocks[1].smallest == 0 == profile.blocks[1].largest
    assert profile.smallest is not None
    assert profile.smallest[1:].tolist() == [0, 0]


def test_a_users_module_is_left_as_it_was_and_its_blocks_are_found() -> None:
    net = Convolved().double().train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    x = randn(2, 1, 4, 4)
    profile = jacobian_profile(net, x, blocks=["stem", "inner", "head"])
    assert [b.name for b in profile.blocks] == ["stem", "inner", "head"]
    assert profile.largest is None  # the shortcut runs around the block: no chain
    gradients = gradient_profile(net, x, loss=torch.sum)
    assert gradients.names == ("stem", "inner.0", "inner.1", "head")
    assert net.training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert not any(m._forward_hooks for m in net.modules())


def test_gradients_against_autograd() -> None:
    net = Convolved().double().eval()
    x = randn(2, 1, 4, 4)
    found = gradient_profile(net, x, blocks=["stem", "head"], loss=lambda out: out.square().sum())
    grads = torch.autograd.grad(net(x).square().sum(), [net.stem.weight, net.stem.bias])
    length = math.sqrt(sum(float(g.square().sum()) for g in grads))
    assert float(found.parameter_gradients[0]) == pytest.approx(length)
    outputs = net(x).detach()
    assert float(found.gradients[1]) == pytest.approx(float((2 * outputs).norm()) / math.sqrt(2))


def test_gradients_below_the_smallest_square() -> None:
    net = nn.Sequential(*(dense(torch.full((1, 1), 1e-10).double()) for _ in range(20)))
    found = gradient_profile(net, torch.ones(1, 1).double(), loss=torch.sum)
    assert float(found.gradients[0]) == pytest.approx(1e-190)
    assert found.rate == pytest.approx(math.log(1e-10))


def test_a_shared_block_is_listed_at_each_use() -> None:
    layer = dense(2 * torch.eye(2).double())
    net = nn.Sequential(layer, layer)
    assert [b.name for b in jacobian_profile(net, randn(1, 2)).blocks] == ["0", "0 (2)"]


def test_large_blocks_go_by_products(monkeypatch: pytest.MonkeyPatch) -> None:
    net = residual_network(6, 2, "tanh", generator=3)
    x = randn(2, 6)
    exact = jacobian_profile(net, x)
    monkeypatch.setattr(jacobians, "LARGEST_MATRIX", 1)
    found = jacobian_profile(net, x)
    assert found.largest is None
    for a, b in zip(found.blocks, exact.blocks, strict=True):
        assert a.smallest is None
        assert a.largest == pytest.approx(b.largest, rel=1e-3)
        assert a.departure == pytest.approx(b.departure, rel=1e-3)


def test_a_residual_network_for_images() -> None:
    net = resnet(18, width=2, classes=3, stem="small images").double()
    names = ["layer1.0", "layer1.1", "layer2.0"]
    profile = jacobian_profile(net, randn(1, 3, 4, 4), blocks=names)
    assert [b.departure is None for b in profile.blocks] == [False, False, True]


def test_tokens() -> None:
    net = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 4), nn.Tanh()).double()
    x = torch.tensor([[0, 1], [4, 2]])
    profile = jacobian_profile(net, x)
    assert profile.skipped == ("0",)
    assert [b.name for b in profile.blocks] == ["1", "2", "3"]
    assert len(gradient_profile(net, x).names) == 3


def test_refused() -> None:
    net = residual_network(2, 2)
    with pytest.raises(UnknownName):
        jacobian_profile(net, randn(1, 2), blocks=["7"])
    with pytest.raises(InvalidInput):
        gradient_profile(net, randn(1, 2), loss=lambda out: out)
    with pytest.raises(InvalidInput):
        gradient_profile(nn.Sequential(net[0]), randn(1, 2)).rate  # noqa: B018
    with pytest.raises(UnsupportedModel):
        jacobian_profile(nn.Sequential(nn.Embedding(3, 2)), torch.tensor([[0], [1]]), blocks=["0"])
    for measure in (jacobian_profile, gradient_profile, block_jacobian):
        with pytest.raises(UnsupportedModel, match=r"the model raised RuntimeError on .*\[1, 5\]"):
            measure(net, randn(1, 5))


@pytest.mark.parametrize("first", [True, False])
def test_blocks_that_work_in_place_are_measured_where_they_started(first: bool) -> None:
    def made(inplace: bool) -> nn.Sequential:
        layer = dense(randn(3, 3), randn(3, seed=1))
        act = nn.SiLU(inplace=inplace)
        return nn.Sequential(act, layer) if first else nn.Sequential(layer, act)

    x = randn(2, 3, seed=2)
    here, there = jacobian_profile(made(True), x), jacobian_profile(made(False), x)
    assert here.blocks == there.blocks
    assert here.largest is not None
    assert there.largest is not None
    assert torch.equal(here.largest, there.largest)
    sums = [gradient_profile(made(i), x, loss=torch.sum).gradients for i in (True, False)]
    assert torch.equal(*sums)


def test_an_input_that_is_changed_after_its_block_is_kept() -> None:
    class Added(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Tanh()

        def forward(self, x: Tensor) -> Tensor:
            change = self.inner(x)
            x += change
            return x

    x = randn(2, 3)
    (block,) = jacobian_profile(Added(), x, blocks=["inner"]).blocks
    assert block.change == pytest.approx(float((x.tanh() - x).norm() / x.norm()))
    assert block.largest == pytest.approx(float((1 - x.tanh() ** 2).max()))


def test_a_module_in_two_containers_has_its_first_name() -> None:
    act, layer = nn.Tanh(), dense(randn(3, 3), randn(3, seed=1))
    net = nn.Sequential(nn.Sequential(layer, act), nn.Sequential(layer, act))
    found = jacobian_profile(net, randn(2, 3, seed=2))
    assert [b.name for b in found.blocks] == ["0.0", "0.1", "0.0 (2)", "0.1 (2)"]
    assert found.largest is not None
    assert len(jacobian_profile(net, randn(1, 3), blocks=["1.1"])) == 2


@pytest.mark.parametrize("name", ["resnet", "encoder", "lstm"])
def test_an_archive_has_the_blocks_of_its_module(name: str) -> None:
    made = architecture(name)
    own, theirs = (jacobian_profile(m, made.x[:2]) for m in (made.model, archived(name)))
    assert [b.name for b in own.blocks] == [b.name for b in theirs.blocks]
    for a, b in zip(own.blocks, theirs.blocks, strict=True):
        assert a.largest == pytest.approx(b.largest)
    sums = [gradient_profile(m, made.x, loss=torch.sum) for m in (made.model, archived(name))]
    torch.testing.assert_close(sums[0].gradients, sums[1].gradients)
    torch.testing.assert_close(sums[0].parameter_gradients, sums[1].parameter_gradients)
