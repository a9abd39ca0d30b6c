"""The limit of a module against kernels that neural-tangents' stax computed.

`benchmarks/kernels_peers/stax_limits.py` made the numbers, and says how.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from torchtheory.kernels.infinite.module_kernels import module_limit

_TABLE = json.loads((Path(__file__).parent / "stax_limits.json").read_text())


class Residual(nn.Module):
    def __init__(self, *branch: nn.Module) -> None:
        super().__init__()
        self.branch = nn.Sequential(*branch)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)  # type: ignore[no-any-return]


class Erf(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.erf(x)


def _conv(inputs: int = 4, stride: int = 1) -> nn.Module:
    return nn.Conv2d(inputs, 4, 3, stride, 1 if stride == 1 else 0)


def _layer() -> nn.Module:
    return nn.Linear(4, 4)


def _pooled() -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1)]


def _norm() -> nn.Module:
    return nn.LayerNorm(4, eps=1e-12, elementwise_affine=False)


def _network(name: str) -> nn.Module:
    first, last, relu = nn.Linear(5, 4), nn.Linear(4, 1), nn.ReLU
    layers: dict[str, list[nn.Module]] = {
        "dense": [first, relu(), _layer(), Erf(), last],
        "gelu": [first, nn.GELU(), _layer(), nn.GELU(), last],
        "convolution": [
            _conv(2), relu(), _conv(4, 2), relu(), nn.Flatten(), nn.Linear(36, 1),
        ],
        "residual": [
            first, *(Residual(relu(), _layer(), relu(), _layer()) for _ in range(2)), relu(), last,
        ],
        "residual images": [_conv(2), Residual(relu(), _conv()), relu(), *_pooled()],
        "pooling": [_conv(2), relu(), nn.AvgPool2d(2), _conv(), relu(), *_pooled()],
        "layer norm": [first, _norm(), relu(), _layer(), _norm(), Erf(), last],
    }  # fmt: skip
    return nn.Sequential(*layers[name]).double()


@pytest.mark.parametrize("name", [k for k in _TABLE if k != "versions"])
def test_both_kernels_are_those_of_stax(name: str) -> None:
    told = _TABLE[name]
    net = _network(name)
    for p in net.parameters():  # variances of the law, exactly
        nn.init.constant_(p, 1.3 / math.sqrt(p[0].numel()) if p.ndim > 1 else 0.4)
    shape = told["shape"]
    x = torch.arange(1, 1 + math.prod(shape), dtype=torch.float64).sin().reshape(shape)
    found = module_limit(net, x)
    for kind in ("nngp", "ntk"):
        wanted = torch.tensor(told[kind], dtype=torch.float64)
        # the table has twelve decimals, and angles of equal points are moved a little there
        torch.testing.assert_close(getattr(found, kind), wanted, rtol=1e-9, atol=0)
