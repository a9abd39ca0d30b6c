r"""The image classifiers of the experiments: a LeNet, pre-activation ResNet-18, ResNeXt-29.

Source: Mathematical Aspects of Deep Learning, Chapter 2, Appendix B; the residual networks are
those of He et al. (2016) and Xie et al. (2017) for images of 32 x 32 pixels.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, ShapeMismatch


class CenterCrop(nn.Module):
    """The middle `size` x `size` pixels of images `[n, channels, h, w]`.

    >>> import torch
    >>> CenterCrop(2)(torch.arange(16.0).reshape(1, 1, 4, 4))
    tensor([[[[ 5.,  6.],
              [ 9., 10.]]]])
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        if min(height, width) < self.size:
            raise ShapeMismatch(f"images of {height} x {width} have no {self.size} x {self.size}")
        top, left = (height - self.size) // 2, (width - self.size) // 2
        return x[..., top : top + self.size, left : left + self.size]


def lenet(size: int = 28, *, padded: bool = False) -> nn.Sequential:
    """Two convolutions of 32 filters 5 x 5, each max-pooled, 1024 units, dropout, 10 outputs.

    Args:
        size: images are cropped to `size` x `size` around their center.
        padded: whether convolutions keep the size; the source does not say.

    >>> [lenet(24, padded=p)[8].in_features for p in (False, True)]      # 32·3·3 and 32·6·6
    [288, 1152]
    """
    reach = 0 if padded else 4
    side = ((size - reach) // 2 - reach) // 2
    if side < 1:
        raise InvalidInput(f"images of {size} x {size} leave nothing after two convolutions")
    padding = 2 if padded else 0
    return nn.Sequential(
        CenterCrop(size),
        nn.Conv2d(1, 32, 5, padding=padding),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(32, 32, 5, padding=padding),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * side * side, 1024),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(1024, 10),
    )


class PreActivationBlock(nn.Module):
    """Normalize and activate, then convolve, twice; the input is added to the result."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first_norm = nn.BatchNorm2d(inputs)
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.shortcut = (
            nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            if stride != 1 or inputs != outputs
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.first_norm(x))
        kept = x if self.shortcut is None else self.shortcut(active)
        out: Tensor = kept + self.second(F.relu(self.second_norm(self.first(active))))
        return out


def preactivation_resnet18() -> nn.Sequential:
    """Eight pre-activation blocks of 64, 128, 256 and 512 channels; images 32 x 32, 10 classes.

    >>> import torch
    >>> with torch.device("meta"):
    ...     net = preactivation_resnet18()
    >>> sum(p.numel() for p in net.parameters())
    11172170
    """
    blocks: list[nn.Module] = []
    channels = 64
    for stage in range(4):
        outputs = 64 * 2**stage
        for stride in (1 if stage == 0 else 2, 1):
            blocks.append(PreActivationBlock(channels, outputs, stride))
            channels = outputs
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1, bias=False),
        *blocks,
        nn.BatchNorm2d(512),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


class AggregatedBlock(nn.Module):
    """1 x 1, grouped 3 x 3, 1 x 1 convolutions, normalized; the input is added to the result."""

    def __init__(self, inputs: int, inner: int, outputs: int, groups: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, inner, 3, stride, 1, groups=groups, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = (
            nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
            if stride != 1 or inputs != outputs
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.shortcut is None else self.shortcut(x)
        return F.relu(kept + self.body(x))


def resnext29(groups: int = 16) -> nn.Sequential:
    """ResNeXt-29 (`groups` x 64d): three stages of three blocks; images 32 x 32, 10 classes.

    >>> import torch
    >>> with torch.device("meta"):
    ...     net = resnext29()
    >>> sum(p.numel() for p in net.parameters()) // 10**5        # 68.1 million in Xie et al.
    681
    """
    blocks: list[nn.Module] = []
    channels = 64
    for stage in range(3):
        inner, outputs = groups * 64 * 2**stage, 256 * 2**stage
        for place in range(3):
            stride = 2 if stage > 0 and place == 0 else 1
            blocks.append(AggregatedBlock(channels, inner, outputs, groups, stride))
            channels = outputs
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, 10),
    )
