"""Residual networks for images, against modules written out by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.nets.residual.dense_blocks import (
    DenseBlock,
    dense_block_parameters,
    plain_block_parameters,
)
from torchtheory.nets.residual.image_resnets import (
    IMAGENET_ERRORS,
    BasicBlock,
    Bottleneck,
    resnet,
    resnet9,
)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Listing(nn.Module):
    """The listing of the lectures, written out."""

    def __init__(self, channels: int, classes: int, w: int) -> None:
        super().__init__()
        self.conv1 = self.block(channels, w)
        self.conv2 = self.block(w, 2 * w, pool=True)
        self.res1 = nn.Sequential(self.block(2 * w, 2 * w), self.block(2 * w, 2 * w))
        self.conv3 = self.block(2 * w, 4 * w, pool=True)
        self.conv4 = self.block(4 * w, 8 * w, pool=True)
        self.res2 = nn.Sequential(self.block(8 * w, 8 * w), self.block(8 * w, 8 * w))
        self.classifier = nn.Sequential(nn.MaxPool2d(4), nn.Flatten(), nn.Linear(8 * w, classes))

    @staticmethod
    def block(inputs: int, outputs: int, *, pool: bool = False) -> nn.Sequential:
        layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, 3, padding=1)]
        layers += [nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if pool else []))

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv2(self.conv1(x))
        out = self.res1(out) + out
        out = self.conv4(self.conv3(out))
        out = self.res2(out) + out
        answer: Tensor = self.classifier(out)
        return answer


def test_resnet9_is_the_listing() -> None:
    ours, theirs = resnet9(3, 10, width=4, pooling="listing"), Listing(3, 10, 4)
    theirs.load_state_dict(dict(zip(theirs.state_dict(), ours.state_dict().values(), strict=True)))
    x = randn(2, 3, 32, 32)
    for mode in (True, False):
        torch.testing.assert_close(ours.train(mode)(x), theirs.train(mode)(x))


@pytest.mark.parametrize("side", [8, 28, 40])
def test_resnet9_takes_any_size_with_adaptive_pooling_only(side: int) -> None:
    x = randn(2, 1, side, side)
    assert resnet9(1, 7, width=2)(x).shape == (2, 7)
    with pytest.raises(ShapeMismatch, match="adaptive"):
        resnet9(1, 7, width=2, pooling="listing")(x)


@pytest.mark.parametrize(
    ("depth", "parameters"),
    [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032), (101, 44_549_160), (152, 60_192_808)],
)
def test_known_parameter_counts(depth: int, parameters: int) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in resnet(depth).parameters()) == parameters


def test_resnet_18_written_out() -> None:
    net = resnet(18, width=4, classes=5, generator=1).eval()
    x = randn(2, 3, 32, 32)
    state = net.state_dict()

    def normal(z: Tensor, name: str) -> Tensor:
        s = [state[f"{name}.{k}"] for k in ("running_mean", "running_var", "weight", "bias")]
        return F.batch_norm(z, *s, training=False, eps=1e-5)

    z = F.relu(normal(F.conv2d(x, state["conv1.weight"], None, 2, 3), "bn1"))
    z = F.max_pool2d(z, 3, 2, 1)
    for stage in range(1, 5):
        for place in range(2):
            name = f"layer{stage}.{place}"
            stride = 2 if stage > 1 and place == 0 else 1
            inner = F.conv2d(z, state[f"{name}.conv1.weight"], None, stride, 1)
            inner = F.relu(normal(inner, f"{name}.bn1"))
            inner = normal(
                F.conv2d(inner, state[f"{name}.conv2.weight"], None, 1, 1), f"{name}.bn2"
            )
            if f"{name}.downsample.0.weight" in state:
                z = F.conv2d(z, state[f"{name}.downsample.0.weight"], None, stride)
                z = normal(z, f"{name}.downsample.1")
            z = F.relu(z + inner)
    wanted = z.mean((2, 3)) @ state["fc.weight"].T + state["fc.bias"]
    torch.testing.assert_close(net(x), wanted)


def test_convolutions_have_the_variance_of_he() -> None:
    net = resnet(18, width=16, classes=5, generator=3)
    for block in net.blocks():
        weight = block.conv2.weight.detach()
        assert abs(float(weight.square().mean()) * 9 * len(weight) / 2 - 1) < 0.15


def test_a_bottleneck_strides_in_its_wide_kernel() -> None:
    block = Bottleneck(4, 2, stride=2).eval()
    x = randn(1, 4, 6, 6)
    inner = torch.relu(block.bn1(F.conv2d(x, block.conv1.weight)))
    inner = torch.relu(block.bn2(F.conv2d(inner, block.conv2.weight, None, 2, 1)))
    torch.testing.assert_close(block.change(x), block.bn3(F.conv2d(inner, block.conv3.weight)))


def test_plain_network_differs_by_the_shortcuts_only() -> None:
    net, plain = resnet(18, width=4, classes=5), resnet(18, width=4, classes=5, shortcuts=False)
    shared = {k for k in net.state_dict() if "downsample" not in k}
    assert set(plain.state_dict()) == shared
    block = plain.blocks()[0]
    x = randn(1, 4, 6, 6)
    torch.testing.assert_close(block(x), torch.relu(block.change(x)))


@pytest.mark.parametrize("block", [BasicBlock(8, 8), Bottleneck(8, 2)])
def test_block_with_last_scale_zero_is_the_identity(block: BasicBlock | Bottleneck) -> None:
    nn.init.zeros_(block.last_norm.weight)
    x = torch.relu(randn(3, 8, 5, 5))
    assert torch.equal(block(x), x)
    assert block.downsample is None


def test_drawing_is_seeded_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    a, b, c = (resnet9(1, 2, width=2, generator=s).state_dict() for s in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert not torch.equal(a["conv1.0.weight"], c["conv1.0.weight"])


def test_table_of_errors() -> None:
    best = min(IMAGENET_ERRORS, key=lambda row: row.top5)
    assert (best.method, best.top1, best.top5) == ("ResNet-152", 19.38, 4.49)
    assert len(IMAGENET_ERRORS) == 10


def test_dense_block_written_out() -> None:
    block = DenseBlock(3, layers=4, growth=2).eval()
    x = randn(2, 3, 6, 6)
    maps = [x]
    for layer in block.layers:
        maps.append(layer(torch.cat(maps, 1)))
    torch.testing.assert_close(block(x), torch.cat(maps, 1))
    assert block.connections == 10


@pytest.mark.parametrize("case", [(3, 1, 4, 3), (8, 5, 2, 5), (2, 7, 3, 1)])
def test_parameters_of_blocks(case: tuple[int, int, int, int]) -> None:
    channels, layers, growth, kernel = case
    block = DenseBlock(channels, layers, growth, kernel=kernel)
    counted = sum(p.numel() for p in block.parameters())
    assert dense_block_parameters(channels, layers, growth, kernel=kernel) == counted
    out = channels + layers * growth
    plain = nn.Sequential()
    for entering in [channels, *[out] * (layers - 1)]:
        plain.extend([nn.BatchNorm2d(entering), nn.Conv2d(entering, out, kernel, bias=False)])
    counted = sum(p.numel() for p in plain.parameters())
    assert plain_block_parameters(channels, layers, growth, kernel=kernel) == counted


def test_refused() -> None:
    with pytest.raises(InvalidInput):
        resnet(35)
    with pytest.raises(InvalidInput):
        resnet9(pooling="mean")
    with pytest.raises(InvalidInput):
        resnet(18, stem="none")
    with pytest.raises(ShapeMismatch):
        DenseBlock(3, 2, 2)(randn(1, 4, 5, 5))
    with pytest.raises(ShapeMismatch):
        DenseBlock(3, 2, 2, kernel=2)


def test_the_dense_layer_is_uniform_within_one_over_the_root_of_its_inputs() -> None:
    layer = resnet9(width=8).get_submodule("classifier")
    reach = 64**-0.5
    assert 0.95 * reach < float(layer.get_parameter("weight").abs().max()) <= reach
