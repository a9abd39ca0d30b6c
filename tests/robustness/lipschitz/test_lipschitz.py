"""Lipschitz constants against dense matrices, fine grids and brute force."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchtheory.convolution.layer_matrices import layer_matrix
from torchtheory.core.errors import UnsupportedModel
from torchtheory.models.problem import Problem
from torchtheory.models.untouched import ModelState
from torchtheory.robustness.lipschitz.layers import (
    LayerNorm,
    jacobian_norms,
    layer_norms,
    weight_norms,
)
from torchtheory.tracing.activations import ACTIVATION_LAYERS
from torchtheory.tracing.chain import Rearrangement


def dense(layer: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """The matrix of the linear part of a layer."""
    layer = layer.double().eval()
    zero = torch.zeros(1, *shape, dtype=torch.float64)
    basis = torch.eye(zero.numel(), dtype=torch.float64).reshape(-1, *shape)
    with torch.no_grad():
        return (layer(basis) - layer(zero)).reshape(len(basis), -1).T


def check(layer: nn.Module, shape: tuple[int, ...]) -> None:
    matrix = dense(layer, shape)
    (found,) = layer_norms(nn.Sequential(layer), shape)
    exact = float(torch.linalg.matrix_norm(matrix, 2))
    assert exact * (1 - 1e-9) <= found.lipschitz <= exact * 1.02
    assert found.frobenius == pytest.approx(float(matrix.norm()), rel=1e-10)


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({}, 5),
        ({"padding": 1}, 5),
        ({"padding": 2, "stride": 2}, 6),
        ({"dilation": 2, "padding": 1}, 7),
        ({"groups": 2, "padding": 1}, 5),
        ({"padding": "same"}, 5),
        ({"padding": "same", "dilation": 2, "padding_mode": "circular"}, 6),
        ({"padding": 1, "padding_mode": "circular"}, 5),
        ({"padding": 1, "padding_mode": "reflect"}, 5),
        ({"padding": 2, "padding_mode": "replicate", "stride": 2}, 5),
        ({"padding": (1, 2), "padding_mode": "reflect", "stride": (2, 1)}, 5),
        ({"padding": 2, "padding_mode": "circular", "groups": 2}, 3),
        ({"kernel_size": (1, 3), "padding": (0, 1), "padding_mode": "replicate"}, 4),
        ({"kernel_size": 1}, 1),
        ({"kernel_size": 2, "padding": "same", "padding_mode": "replicate"}, 4),
    ],
)
def test_convolutions_against_their_matrix(options: dict[str, Any], size: int) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 4, **({"kernel_size": 3} | options))
    check(layer, (2, size, size + 1 if size > 1 else 1))


@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect", "replicate"])
def test_other_dimensions(mode: Any) -> None:
    torch.manual_seed(1)
    check(nn.Conv1d(2, 3, 4, padding=2, padding_mode=mode), (2, 9))
    check(nn.Conv3d(1, 2, (2, 3, 2), padding=1, padding_mode=mode), (1, 3, 4, 3))


def test_transposed_convolutions() -> None:
    torch.manual_seed(3)
    check(nn.ConvTranspose1d(2, 3, 4, stride=2), (2, 9))
    check(nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1, groups=2), (4, 5, 4))


def test_large_convolutions() -> None:
    """Beyond a decomposition: exact where circular, from above and close where not."""
    torch.manual_seed(4)
    kernel = torch.zeros(4, 4, 3, 3, dtype=torch.float64)
    kernel[torch.arange(4), torch.arange(4)] = torch.ones(3, 3, dtype=torch.float64)
    for mode, exact in (("circular", 9.0), ("zeros", (1 + 2 * math.cos(math.pi / 25)) ** 2)):
        layer = nn.Conv2d(4, 4, 3, padding=1, bias=False, padding_mode=mode, dtype=torch.float64)  # type: ignore[arg-type]
        layer.weight.data.copy_(kernel)
        (found,) = layer_norms(nn.Sequential(layer), (4, 24, 24))
        assert found.lipschitz == pytest.approx(exact, rel=1e-10)
        assert found.lower is not None
        assert 0.999 * exact < found.lower <= exact * (1 + 1e-12)


def test_norms_are_known_from_both_sides() -> None:
    """A strided convolution between zeros is bounded from both sides, and both hold."""
    torch.manual_seed(6)
    layer = nn.Conv2d(1, 8, 5, stride=2, padding=2, dtype=torch.float64)
    (found,) = layer_norms(nn.Sequential(layer), (1, 28, 28))
    matrix = layer_matrix(layer, (1, 28, 28)).to_dense()
    exact = float(torch.linalg.matrix_norm(matrix, 2))
    assert found.lower is not None
    assert found.lower < found.lipschitz
    assert found.lower <= exact * (1 + 1e-12)
    assert exact <= found.lipschitz * (1 + 1e-12)
    for other, shape in ((nn.Linear(5, 3), (5,)), (nn.BatchNorm1d(3), (3,))):
        (exactly,) = layer_norms(nn.Sequential(other), shape)
        assert exactly.lower == exactly.lipschitz
    (large,) = layer_norms(nn.Sequential(nn.Linear(600, 600)), (600,))
    assert large.lower is None


class Residual(nn.Module):
    """A shortcut, a gate that no rule knows, and a layer that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular", dtype=torch.float64)
        self.second = nn.ConvTranspose2d(2, 4, 2, stride=2, dtype=torch.float64)
        self.unused = nn.Linear(2, 2)
        self.last = nn.Linear(2, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.glu(self.second(x + self.first(x)), 1)
        made: Tensor = self.last(h.amax((2, 3)))
        return made


def test_norms_of_layers_that_are_no_chain() -> None:
    torch.manual_seed(7)
    net, x = Residual().train(), torch.randn(3, 2, 6, 5, dtype=torch.float64)
    before = ModelState(net)
    found = {n.name: n for n in weight_norms(net, x)}
    assert before.changes(net) == []
    assert list(found) == ["first", "second", "last"]
    for name in ("first", "second"):
        matrix = layer_matrix(net.get_submodule(name), (2, 6, 5)).to_dense()  # type: ignore[arg-type]
        exact = float(torch.linalg.matrix_norm(matrix, 2))
        assert found[name].lipschitz == pytest.approx(exact, rel=1e-10)
        assert found[name].frobenius == pytest.approx(float(matrix.norm()), rel=1e-10)
    with pytest.raises(UnsupportedModel, match="the model raised"):
        list(weight_norms(net, x[:, :1]))


def test_dense_layers_and_batch_norm() -> None:
    torch.manual_seed(2)
    check(nn.Linear(5, 3), (5,))
    for norm, shape in ((nn.BatchNorm1d(3), (3,)), (nn.BatchNorm2d(3), (3, 2, 4))):
        norm.running_var.uniform_(0.1, 3.0)  # type: ignore[union-attr]
        nn.init.normal_(norm.weight)
        check(norm, shape)
    check(nn.BatchNorm1d(3, affine=False), (3, 5))
    with pytest.raises(UnsupportedModel, match="statistics of its batch even in evaluation mode"):
        layer_norms(nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False)), (3,))


@pytest.mark.parametrize(
    "pool",
    [
        nn.AvgPool2d(2),
        nn.AvgPool2d(3, stride=1, padding=1),
        nn.AvgPool2d(2, ceil_mode=True),
        nn.AdaptiveAvgPool2d(2),
        nn.AdaptiveAvgPool2d(1),
    ],
)
def test_average_pools(pool: nn.Module) -> None:
    exact = float(torch.linalg.matrix_norm(dense(pool, (2, 5, 5)), 2))
    (found,) = layer_norms(nn.Sequential(pool), (2, 5, 5))
    assert exact * (1 - 1e-9) <= found.lipschitz <= exact * 1.02
    assert found.frobenius is None


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"),
    [
        (2, 2, 1), (3, 2, 1), (3, 1, 1), (2, 3, 1), (3, 2, 2),
        (3, 1, 2), (3, 4, 2), (4, 2, 3), (5, 6, 4),
    ],
)  # fmt: skip
def test_max_pool_is_bounded_by_its_busiest_entry(kernel: int, stride: int, dilation: int) -> None:
    """The constant is attained where one entry wins in every window that covers it."""
    pool = nn.MaxPool1d(kernel, stride, dilation=dilation)
    n = 40
    (found,) = layer_norms(nn.Sequential(pool), (1, n))
    best = 0.0
    for k in range(n):
        x = torch.zeros(1, 1, n, dtype=torch.float64)
        x[0, 0, k] = 1.0
        best = max(best, float(pool(x).norm()))
    assert found.lipschitz == pytest.approx(best)
    flat = nn.MaxPool2d(kernel, stride, dilation=dilation)
    (square,) = layer_norms(nn.Sequential(flat), (1, n, n))
    assert square.lipschitz == pytest.approx(best**2)
    x = torch.randn(200, 1, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = x + 0.1 * torch.randn(200, 1, n, generator=torch.Generator().manual_seed(1)).double()
    ratios = (pool(x) - pool(y)).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)
    assert float(ratios.max()) <= found.lipschitz


GRID = torch.linspace(-15, 15, 600_001, dtype=torch.float64)
MOVES = (nn.Flatten, nn.Unflatten, nn.Identity, Rearrangement, nn.Softmax)
POINTWISE = [
    *(kind() for kind in ACTIVATION_LAYERS if kind not in (nn.Hardshrink, nn.Threshold)),
    nn.LeakyReLU(0.3),
    nn.LeakyReLU(-2.0),
    nn.ELU(0.5),
    nn.ELU(2.0),
    nn.CELU(2.0),
    nn.GELU(),
    nn.GELU("tanh"),
    nn.Softplus(beta=3),
    nn.PReLU(init=1.5),
]


@pytest.mark.parametrize("layer", POINTWISE, ids=repr)
def test_pointwise_constants_are_suprema_of_the_derivative(layer: nn.Module) -> None:
    x = GRID.clone().requires_grad_()
    (slope,) = torch.autograd.grad(layer.double()(x).sum(), x)
    largest = float(slope.abs().max())
    (found,) = layer_norms(nn.Sequential(layer), (1,))
    # torch's own constants are rounded to single precision
    assert largest - 1e-8 <= found.lipschitz <= largest + 1e-3


def test_softmax_and_layers_that_only_move() -> None:
    rows = torch.randn(2000, 3, generator=torch.Generator().manual_seed(0)).double() * 5
    rows = torch.cat([rows, torch.tensor([[0.0, 0.0, -60.0]]).double()])
    jacobian = torch.func.vmap(torch.func.jacrev(lambda v: v.softmax(-1)))(rows)
    largest = float(torch.linalg.matrix_norm(jacobian, 2).max())
    (found,) = layer_norms(nn.Sequential(nn.Softmax(-1)), (3,))
    assert largest == pytest.approx(found.lipschitz) == 0.5
    moves = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Identity(), nn.Unflatten(1, (2, 2)))
    assert [n.lipschitz for n in layer_norms(moves.train(), (4,))] == [1.0] * 4
    assert moves.training


def networks() -> list[tuple[nn.Module, tuple[int, ...]]]:
    torch.manual_seed(3)
    act = nn.SiLU()
    shared = nn.Linear(6, 6)
    return [
        (nn.Sequential(nn.Linear(6, 9), act, nn.Linear(9, 6), act, nn.Linear(6, 3)), (6,)),
        (nn.Sequential(shared, nn.GELU(), shared, nn.GELU(), shared), (6,)),
        (
            nn.Sequential(
                nn.Conv2d(1, 3, 3, padding=1, padding_mode="reflect"), nn.BatchNorm2d(3), nn.ELU(),
                nn.MaxPool2d(3, 1), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 2), nn.Softmax(-1),
            ),
            (1, 6, 6),
        ),
        (nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 2)), (6,)),
    ]  # fmt: skip


@pytest.mark.parametrize(("net", "shape"), networks())
def test_the_product_bounds_the_jacobian(net: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(40, *shape, generator=torch.Generator().manual_seed(0))
    problem = Problem(net, (x, torch.zeros(40, dtype=torch.long)), task="multiclass")
    product = math.prod(n.lipschitz for n in layer_norms(net, shape))
    norms = jacobian_norms(problem, x)
    assert norms.shape == (40,)
    assert float(norms.max()) <= product * 1.0001


def test_jacobian_norms_are_torchs() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    problem = Problem(net, (x, torch.zeros(5, dtype=torch.long)))
    found = jacobian_norms(problem, x)
    for row, norm in zip(x, found, strict=True):
        jacobian = torch.autograd.functional.jacobian(net, row)
        assert float(torch.linalg.matrix_norm(jacobian, 2)) == pytest.approx(float(norm))
    half = Problem(net.bfloat16(), (x, torch.zeros(5, dtype=torch.long)))
    assert jacobian_norms(half, half.train.x).isfinite().all()


def test_stable_rank() -> None:
    assert LayerNorm("0", "Linear", 2.0, 4.0).stable_rank == 4.0
    assert LayerNorm("0", "Linear", 0.0, 0.0).stable_rank is None
    assert LayerNorm("0", "ReLU", 1.0, None).stable_rank is None


def test_layers_without_a_rule_are_named() -> None:
    class Scaled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 100 * super().forward(x)

    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.square()

    with pytest.raises(UnsupportedModel, match="layer 1 is a LayerNorm"):
        layer_norms(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), (3,))
    with pytest.raises(UnsupportedModel, match="Scaled with a forward of its own"):
        layer_norms(nn.Sequential(Scaled(3, 3)), (3,))
    with pytest.raises(UnsupportedModel, match="Odd with a forward of its own"):
        layer_norms(nn.Sequential(Odd()), (3,))


def test_nothing_is_changed() -> None:
    net = networks()[2][0].train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    layer_norms(net, (1, 6, 6))
    assert all(m.training for m in net.modules())
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert all(p.grad is None for p in itertools.chain(net.parameters()))


def test_jacobians_of_a_layer_that_torch_cannot_map() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.PReLU(), nn.Linear(4, 2)).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    problem = Problem(net, (x, torch.zeros(5, 2).double()), task="regression")
    for point, norm in zip(x, jacobian_norms(problem, x), strict=True):
        h = net[0](point)
        slopes = torch.where(h > 0, 1.0, net[1].weight)
        jacobian = net[2].weight @ torch.diag(slopes) @ net[0].weight
        assert torch.isclose(norm, torch.linalg.matrix_norm(jacobian, 2))


def test_a_normalization_with_negative_factors() -> None:
    """A factor of -5 stretches by 5."""
    norm = nn.BatchNorm1d(2, eps=0.0)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([-5.0, 2.0]))
    (found,) = layer_norms(nn.Sequential(norm), (2,))
    assert found.lipschitz == pytest.approx(5.0)
