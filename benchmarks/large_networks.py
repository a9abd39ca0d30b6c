"""Networks of the sizes people train, for the benchmarks: 10 to 20 million parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two convolutions with batch normalization around a skip connection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        self.skip: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.skip = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(inner)) + self.skip(x))


def resnet18(classes: int = 10) -> nn.Sequential:
    """The layers of ResNet-18 for 32 x 32 images: 11.2 million parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    width = 64
    for outputs, stride in (
        *((64, 1), (64, 1), (128, 2), (128, 1)),
        *((256, 2), (256, 1), (512, 2), (512, 1)),
    ):
        layers.append(Block(width, outputs, stride))
        width = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class Encoder(nn.Module):
    """Six transformer layers of width 512 over 64 tokens, averaged: 20.0 million parameters."""

    words, length, classes = 2000, 64, 4

    def __init__(self, width: int = 512, layers: int = 6) -> None:
        super().__init__()
        self.embedding = nn.Embedding(self.words, width)
        self.places = nn.Parameter(0.02 * torch.randn(self.length, width))
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, self.classes)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.layers(self.embedding(tokens) + self.places).mean(1)
        logits: Tensor = self.head(hidden)
        return logits


def wide_network() -> nn.Sequential:
    """Two hidden layers of 3000 units on 100 features: 9.3 million parameters."""
    return nn.Sequential(
        *(nn.Linear(100, 3000), nn.ReLU()),
        *(nn.Linear(3000, 3000), nn.ReLU()),
        nn.Linear(3000, 10),
    )
