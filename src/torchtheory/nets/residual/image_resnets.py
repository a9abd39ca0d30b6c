r"""Residual networks for images: their blocks, the family from 18 to 152 layers, and ResNet9.

The family is that of He, Zhang, Ren and Sun (2016), with the stride of a bottleneck in its 3 x 3
convolution, and with the names of torchvision's modules, so that weights trained there load here.
Source: Foundations of Deep Learning, section 10.2 (Figures 10.13 and 10.15, Listing 10.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import one_of, whole_number
from torchtheory.core.errors import ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.nets.residual.layers import Residual

#: Blocks of the four stages, by depth; from 50 layers on they are bottlenecks.
STAGES: dict[int, tuple[int, int, int, int]] = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}


class BasicBlock(nn.Module):
    r"""Two normalized 3 x 3 convolutions around which the input is added:
    $\varrho(Vx+f(x))$, $f=\mathrm{BN}\circ\mathrm{conv}\circ\varrho\circ\mathrm{BN}\circ
    \mathrm{conv}$.

    $V$ is the identity, or a normalized 1 x 1 convolution where the shape changes. Without the
    shortcut the block is $\varrho(f(x))$. Where the last normalization has scale and shift 0 the
    block is $\varrho(Vx)$: the identity on what earlier blocks put out, which is not negative.

    Args:
        inputs, outputs: channels.
        stride: of the first convolution.
        shortcut: whether the input is added.

    >>> BasicBlock(8, 16, stride=2)(torch.ones(2, 8, 6, 6)).shape
    torch.Size([2, 16, 3, 3])
    """

    expansion = 1

    def __init__(
        self, inputs: int, outputs: int, stride: int = 1, *, shortcut: bool = True
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.shortcut = shortcut
        self.downsample = _projection(inputs, outputs, stride) if shortcut else None

    def change(self, x: Tensor) -> Tensor:
        """$f(x)$, what is added to the input."""
        out: Tensor = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return out

    def forward(self, x: Tensor) -> Tensor:
        return _joined(self, x)

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        return self.bn2


class Bottleneck(nn.Module):
    r"""1 x 1, 3 x 3 and 1 x 1 convolutions, normalized, around which the input is added.

    The 3 x 3 convolution works on a quarter of the channels that come out.

    Args:
        inputs: channels that come in.
        inner: channels of the 3 x 3 convolution; four times as many come out.
        stride: of the 3 x 3 convolution.
        shortcut: whether the input is added.

    >>> Bottleneck(16, 8, stride=2)(torch.ones(2, 16, 6, 6)).shape
    torch.Size([2, 32, 3, 3])
    """

    expansion = 4

    def __init__(self, inputs: int, inner: int, stride: int = 1, *, shortcut: bool = True) -> None:
        super().__init__()
        outputs = inner * self.expansion
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.shortcut = shortcut
        self.downsample = _projection(inputs, outputs, stride) if shortcut else None

    def change(self, x: Tensor) -> Tensor:
        """$f(x)$, what is added to the input."""
        inner = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))
        out: Tensor = self.bn3(self.conv3(inner))
        return out

    def forward(self, x: Tensor) -> Tensor:
        return _joined(self, x)

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        return self.bn3


class ResNet(nn.Module):
    r"""A stem, four stages of residual blocks, the mean over the image, a dense layer.

    Args:
        block: `BasicBlock` or `Bottleneck`.
        stages: blocks of each stage; the first block of every later stage halves the image.
        channels, classes: what comes in and goes out.
        width: channels of the first stage, doubled by every later one.
        stem: 7 x 7 with stride 2 and pooling for photographs, or 3 x 3 for small images.
        shortcuts: whether inputs are added; without, the plain network of the same layers.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        stages: Sequence[int],
        *,
        channels: int = 3,
        classes: int = 1000,
        width: int = 64,
        stem: str = "photographs",
        shortcuts: bool = True,
    ) -> None:
        super().__init__()
        one_of(stem, "stem", ("photographs", "small images"))
        large = stem == "photographs"
        self.conv1 = (
            nn.Conv2d(channels, width, 7, 2, 3, bias=False)
            if large
            else nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        )
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        inputs = width
        for stage, count in enumerate(stages):
            blocks: list[nn.Module] = []
            for place in range(count):
                stride = 2 if stage > 0 and place == 0 else 1
                blocks.append(block(inputs, width * 2**stage, stride, shortcut=shortcuts))
                inputs = width * 2**stage * block.expansion
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.stages = len(stages)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)

    def blocks(self) -> list[BasicBlock | Bottleneck]:
        """All residual blocks, in order."""
        return [m for m in self.modules() if isinstance(m, BasicBlock | Bottleneck)]

    def features(self, x: Tensor) -> Tensor:
        """What the last stage puts out, before the mean over the image."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(self.stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.avgpool(self.features(x)).flatten(1))
        return out


def resnet(
    depth: int = 34,
    *,
    channels: int = 3,
    classes: int = 1000,
    width: int = 64,
    stem: str = "photographs",
    shortcuts: bool = True,
    generator: RandomSource = 0,
) -> ResNet:
    """The residual network of 18, 34, 50, 101 or 152 layers, freshly drawn.

    Convolutions are drawn as He et al. (2015) do, normal with variance 2 over the fan out, and
    the dense layer as torch draws it. Its state has torchvision's names: weights trained there
    are loaded by `load_state_dict`.

    Args:
        depth: layers with weights on the longest way, projections not counted.
        channels, classes: of the images and of the answer.
        width: channels of the first stage.
        stem: `photographs` (7 x 7 with stride 2, pooled) or `small images` (3 x 3).
        shortcuts: without them it is the plain network to compare with.
        generator: generator or seed for the weights.

    >>> with torch.device("meta"):
    ...     [sum(p.numel() for p in resnet(d).parameters()) for d in (18, 34, 50, 101, 152)]
    [11689512, 21797672, 25557032, 44549160, 60192808]
    """
    one_of(depth, "depth", STAGES)
    for name, value in (("channels", channels), ("classes", classes), ("width", width)):
        whole_number(value, name, least=1)
    block = BasicBlock if depth < 50 else Bottleneck
    # made on the meta device, so that torch draws nothing itself
    with torch.device("meta"):
        net = ResNet(
            block,
            STAGES[depth],
            channels=channels,
            classes=classes,
            width=width,
            stem=stem,
            shortcuts=shortcuts,
        )
    return draw_convolutional(net, generator)  # type: ignore[return-value]


def resnet9(
    channels: int = 3,
    classes: int = 10,
    *,
    width: int = 64,
    pooling: str = "adaptive",
    generator: RandomSource = 0,
) -> nn.Sequential:
    r"""The nine-layer residual network of the lectures' listing.

    Eight normalized 3 x 3 convolutions of $w,2w,(2w,2w),4w,8w,(8w,8w)$ channels, the pairs in
    parentheses with a shortcut, three of them followed by 2 x 2 pooling; then the maximum over the
    image and a dense layer.

    Args:
        channels, classes: of the images and of the answer.
        width: $w$; 64 in the listing.
        pooling: `adaptive` takes the maximum over whatever is left of the image, so any size from
            8 x 8 on will do; `listing` is `MaxPool2d(4)` as printed, for 32 x 32 only. The two
            agree there.
        generator: generator or seed for the weights; see `resnet`.

    >>> with torch.device("meta"):
    ...     sum(p.numel() for p in resnet9().parameters())
    6575370
    """
    one_of(pooling, "pooling", ("adaptive", "listing"))
    for name, value in (("channels", channels), ("classes", classes), ("width", width)):
        whole_number(value, name, least=1)
    w = width
    with torch.device("meta"):
        net = nn.Sequential()
        net.add_module("conv1", _convolution(channels, w))
        net.add_module("conv2", _convolution(w, 2 * w, pool=True))
        net.add_module("res1", _two_convolutions(2 * w))
        net.add_module("conv3", _convolution(2 * w, 4 * w, pool=True))
        net.add_module("conv4", _convolution(4 * w, 8 * w, pool=True))
        net.add_module("res2", _two_convolutions(8 * w))
        net.add_module("pool", nn.AdaptiveMaxPool2d(1) if pooling == "adaptive" else _Pool4())
        net.add_module("flatten", nn.Flatten())
        net.add_module("classifier", nn.Linear(8 * w, classes))
    return draw_convolutional(net, generator)  # type: ignore[return-value]


def draw_convolutional(net: nn.Module, generator: RandomSource = None) -> nn.Module:
    r"""Draw the weights of a network made on the meta device, and return it.

    Convolutions are normal with variance $2/(k^2\cdot\text{outputs})$, dense layers and biases
    uniform on $\pm1/\sqrt n$, normalizations start at scale 1 and shift 0. Where the default
    device is meta, nothing is drawn and the network stays there.

    >>> with torch.device("meta"):
    ...     layer = nn.Conv2d(1, 50, 3)
    >>> round(draw_convolutional(layer, 0).weight.std().item(), 2)      # (2/450)^(1/2)
    0.07
    """
    if torch.empty(0).is_meta:
        return net
    source = as_generator(generator)
    net.to_empty(device="cpu")
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.reset_parameters()
                continue
            for name, tensor in module.named_parameters(recurse=False):
                weight = module.get_parameter("weight")
                if isinstance(module, nn.Conv2d) and name == "weight":
                    scale = math.sqrt(2 / (weight[0, 0].numel() * len(weight)))
                    tensor.copy_(torch.randn(tensor.shape, generator=source) * scale)
                else:
                    reach = 1 / math.sqrt(weight[0].numel())
                    draws = torch.rand(tensor.shape, generator=source)
                    tensor.copy_((2 * draws - 1) * reach)
    return net


# ------------------------------------------------------------------- what others have measured


@dataclass(frozen=True, slots=True)
class ImageNetError:
    """A row of the table of errors on ImageNet: percent of the validation images, one model.

    Attributes:
        method: the network.
        top1, top5: percent for which the first guess, all of five guesses were wrong; None where
            the table has no number.
        depth: layers of a residual network, None for others.
    """

    method: str
    top1: float | None
    top5: float
    depth: int | None = None


#: Printed, not measured here: Foundations of Deep Learning, section 10.2, from He et al. (2016).
#: The table marks the first row's number (reported on the test set there) with a dagger.
IMAGENET_ERRORS = (
    ImageNetError("VGG (ILSVRC'14)", None, 8.43),
    ImageNetError("GoogLeNet (ILSVRC'14)", None, 7.89),
    ImageNetError("VGG (v5)", 24.4, 7.1),
    ImageNetError("PReLU-net", 21.59, 5.71),
    ImageNetError("BN-inception", 21.99, 5.81),
    ImageNetError("ResNet-34 B", 21.84, 5.71, 34),
    ImageNetError("ResNet-34 C", 21.53, 5.60, 34),
    ImageNetError("ResNet-50", 20.74, 5.25, 50),
    ImageNetError("ResNet-101", 19.87, 4.60, 101),
    ImageNetError("ResNet-152", 19.38, 4.49, 152),
)


# ------------------------------------------------------------------------------------ pieces


def _projection(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


def _joined(block: BasicBlock | Bottleneck, x: Tensor) -> Tensor:
    change = block.change(x)
    if not block.shortcut:
        return torch.relu(change)
    kept = x if block.downsample is None else block.downsample(x)
    return torch.relu(kept + change)


def _convolution(inputs: int, outputs: int, *, pool: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    ]
    return nn.Sequential(*layers, *[nn.MaxPool2d(2)] * pool)


def _two_convolutions(channels: int) -> Residual:
    return Residual(
        nn.Sequential(_convolution(channels, channels), _convolution(channels, channels))
    )


class _Pool4(nn.MaxPool2d):
    """The listing's pooling, which fits 32 x 32 images only; others are told so."""

    def __init__(self) -> None:
        super().__init__(4)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-2:] != (4, 4):
            height, width = (8 * size for size in x.shape[-2:])
            raise ShapeMismatch(
                f"the listing's pooling leaves one pixel of 32 x 32 images, not of about "
                f"{height} x {width}; pooling='adaptive' takes any size"
            )
        pooled: Tensor = super().forward(x)
        return pooled
