"""As many samples as outputs, channels and places: what `vmap` could take for each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.models.problem import Problem
from torchtheory.robustness.lipschitz.layers import jacobian_norms

SIZE = 4


class Distances(nn.Module):
    """Distances to places that are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(SIZE, SIZE))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cdist(x, self.places)


class Solved(nn.Module):
    """The solution of linear equations whose right-hand side is the input."""

    def __init__(self) -> None:
        super().__init__()
        self.diagonal = nn.Parameter(torch.randn(SIZE).exp())

    def forward(self, x: Tensor) -> Tensor:
        matrix = torch.diag(self.diagonal) + 0.1
        made: Tensor = torch.linalg.solve(matrix, x[..., None])
        return made[..., 0]


ON_VECTORS: dict[str, Any] = {
    "PReLU": nn.PReLU,
    "PReLU of each unit": lambda: nn.PReLU(SIZE),
    "distances": Distances,
    "solved": Solved,
    "RReLU": nn.RReLU,
    "GLU": lambda: nn.Sequential(nn.Linear(SIZE, 2 * SIZE), nn.GLU()),
    "Softmax": lambda: nn.Softmax(1),
    "LayerNorm": lambda: nn.LayerNorm(SIZE),
    "RMSNorm": lambda: nn.RMSNorm(SIZE),
    "BatchNorm1d": lambda: nn.BatchNorm1d(SIZE),
    "GroupNorm": lambda: nn.GroupNorm(2, SIZE),
}
ON_IMAGES: dict[str, Any] = {
    "PReLU of each channel": lambda: nn.PReLU(SIZE),
    "GroupNorm": lambda: nn.GroupNorm(2, SIZE),
    "InstanceNorm2d": lambda: nn.InstanceNorm2d(SIZE, affine=True),
    "BatchNorm2d": lambda: nn.BatchNorm2d(SIZE),
    "grouped": lambda: nn.Conv2d(SIZE, SIZE, 2, groups=2),
    "depthwise": lambda: nn.Conv2d(SIZE, SIZE, 2, groups=SIZE),
    "transposed": lambda: nn.ConvTranspose2d(SIZE, SIZE, 2),
    "MaxPool2d": lambda: nn.MaxPool2d(2),
    "Upsample": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
}


def network(layer: nn.Module, images: bool) -> nn.Module:
    """The layer with nonlinear ones behind it, so that slopes differ from sample to sample."""
    first = nn.Conv2d(1, SIZE, 3, padding=1) if images else nn.Linear(SIZE, SIZE)
    layers = [first, layer, nn.Flatten(), nn.LazyLinear(SIZE), nn.ReLU(), nn.Linear(SIZE, SIZE)]
    net = nn.Sequential(*layers)
    net(torch.randn(2, 1, SIZE, SIZE) if images else torch.randn(2, SIZE))
    return net.double().eval()


@pytest.mark.parametrize("name", ON_VECTORS)
@pytest.mark.parametrize("count", [SIZE, SIZE - 1])
def test_kernels_on_vectors(name: str, count: int, jacobian: Any) -> None:
    net = network(ON_VECTORS[name](), images=False)
    x = torch.randn(count, SIZE, dtype=torch.float64)
    j = jacobian(net, x)
    expected = torch.einsum("ncp,mdp->nmcd", j, j)
    assert torch.allclose(empirical_ntk(net, x), expected, atol=1e-10)


@pytest.mark.parametrize("name", ON_IMAGES)
def test_kernels_on_images(name: str, jacobian: Any) -> None:
    net = network(ON_IMAGES[name](), images=True)
    x = torch.randn(SIZE, 1, SIZE, SIZE, dtype=torch.float64)
    j = jacobian(net, x)
    expected = torch.einsum("ncp,mdp->nmcd", j, j)
    assert torch.allclose(empirical_ntk(net, x), expected, atol=1e-10)


@pytest.mark.parametrize("name", ["PReLU", "distances", "solved"])
def test_norms_of_jacobians(name: str) -> None:
    net = network(ON_VECTORS[name](), images=False)
    x = torch.randn(SIZE, SIZE, dtype=torch.float64)
    problem = Problem(net, (x, x), task="regression")
    alone = [torch.autograd.functional.jacobian(lambda v: net(v[None])[0], v) for v in x]
    expected = torch.linalg.matrix_norm(torch.stack(alone), 2)
    assert torch.allclose(jacobian_norms(problem, x), expected, atol=1e-10)
