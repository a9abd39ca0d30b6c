"""Inputs of another type or layout than the model takes: the refusal says what to pass."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidType, UnsupportedModel
from torchtheory.models.problem import Problem

Y = torch.arange(6) % 2


def images(*shape: int, kind: torch.dtype = torch.float32) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randint(0, 255, (6, *shape), generator=draw).to(kind) / (
        1 if kind == torch.uint8 else 255
    )


def network(channels: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.mark.parametrize(
    ("model", "x", "sentence"),
    [
        (
            network(3), images(8, 9, 3),
            r"^the inputs have their channels last and the model takes them first: "
            r"x\.permute\(0, 3, 1, 2\)$",
        ),
        (
            network(3), images(8, 9, 3, kind=torch.uint8).byte(),
            r"^the inputs have their channels last and are uint8 and the model takes them first "
            r"and float32: scale and convert them as in training, such as "
            r"x\.permute\(0, 3, 1, 2\)\.to\(torch\.float32\) / 255$",
        ),
        (
            network(3), images(3, 8, 9, kind=torch.uint8).byte(),
            r"^the inputs are uint8 and the model takes float32: scale and convert them as in "
            r"training, such as x\.to\(torch\.float32\) / 255$",
        ),
        (network(1), images(8, 9), r"have no dimension of channels .*: x\.unsqueeze\(1\)$"),
        (nn.Linear(72, 2), images(1, 8, 9), r"shape \[1, 8, 9\] a sample .*: x\.flatten\(1\)$"),
        (
            nn.Sequential(nn.Embedding(300, 2), nn.Flatten(), nn.Linear(8, 2)),
            images(4, kind=torch.uint8).float(),
            r"takes whole numbers, such as tokens: x\.long\(\)$",
        ),
    ],
)  # fmt: skip
def test_what_to_pass(model: nn.Module, x: Tensor, sentence: str) -> None:
    with pytest.raises(InvalidType, match=sentence):
        Problem(model, (x, Y))


def test_what_no_change_helps_is_said_as_it_is() -> None:
    with pytest.raises(UnsupportedModel, match=r"raised RuntimeError on inputs of shape \[6, 5\]"):
        Problem(nn.Linear(3, 2), (torch.randn(6, 5), Y))
