import math

import pytest
import torch
from torch import Tensor, nn

from torchtheory.core.budget import within
from torchtheory.core.errors import InvalidInput, UnsupportedModel
from torchtheory.nets.feedforward import mlp
from torchtheory.robustness.lipschitz.semidefinite import (
    affine_pieces,
    bound_of_multipliers,
    semidefinite_lipschitz,
    slope_range,
)


def whole_matrix(
    weights: list[Tensor],
    slopes: list[tuple[float, float]],
    multipliers: tuple[Tensor, ...],
    rho: float,
) -> Tensor:
    """The matrix of LipSDP, written out: it must not be positive anywhere."""
    sizes = [weights[0].shape[1], *(len(w) for w in weights[:-1])]
    ends = [0, *torch.tensor(sizes).cumsum(0).tolist()]
    matrix = torch.zeros(ends[-1], ends[-1], dtype=torch.float64)
    matrix[: sizes[0], : sizes[0]] -= rho * torch.eye(sizes[0])
    last = slice(ends[-2], ends[-1])
    matrix[last, last] += weights[-1].T @ weights[-1]
    for k, (low, high) in enumerate(slopes):
        here, there = slice(ends[k], ends[k + 1]), slice(ends[k + 1], ends[k + 2])
        t = torch.diag(multipliers[k])
        matrix[here, here] -= 2 * low * high * weights[k].T @ t @ weights[k]
        matrix[here, there] += (low + high) * weights[k].T @ t
        matrix[there, here] += (low + high) * t @ weights[k]
        matrix[there, there] -= 2 * t
    return matrix


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.GELU(), nn.LeakyReLU(0.2), nn.Sigmoid()])
def test_multipliers_prove_the_bound_and_nothing_smaller(activation: nn.Module) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(4, 7), activation, nn.Linear(7, 6), activation, nn.Linear(6, 2)
    ).double()
    found = semidefinite_lipschitz(net, (4,), steps=60)
    weights, slopes = affine_pieces(net, (4,))
    for factor, proved in ((1 + 1e-7, True), (0.99, False)):
        rho = (factor * found.constant) ** 2
        largest = torch.linalg.eigvalsh(whole_matrix(weights, slopes, found.multipliers, rho))[-1]
        assert (float(largest) <= 1e-9) is proved
    assert bound_of_multipliers(weights, slopes, found.multipliers) == pytest.approx(
        found.constant, rel=1e-8
    )
    assert found.constant < 0.9 * found.product


def test_no_jacobian_is_larger_and_one_comes_near() -> None:
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        net = mlp([3, 12, 1], "relu", generator=generator).double()
        found = semidefinite_lipschitz(net, (3,))
        x = 5 * torch.randn(20_000, 3, generator=generator, dtype=torch.float64)
        x.requires_grad_(True)
        (slopes,) = torch.autograd.grad(net(x).sum(), x)
        largest = float(slopes.norm(dim=1).max())
        assert largest <= found.constant <= 1.3 * largest


def test_convolutions_normalization_and_pooling_are_affine_pieces() -> None:
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(27, 2),
    )
    net[1].running_var.fill_(0.25)
    net.eval()
    found = semidefinite_lipschitz(net, (1, 6, 6))
    x = torch.randn(500, 1, 6, 6)
    jacobians = torch.func.vmap(torch.func.jacrev(lambda v: net(v[None])[0]))(x).flatten(2)
    assert float(torch.linalg.matrix_norm(jacobians, 2).max()) <= found.constant < found.product


def test_a_linear_network_has_its_norm_and_time_is_kept() -> None:
    net = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)).double()
    exact = float(torch.linalg.matrix_norm(net[1].weight @ net[0].weight, 2))
    assert float(semidefinite_lipschitz(net, (5,))) == pytest.approx(exact, rel=1e-8)
    with within(1e-9, math.inf):
        early = semidefinite_lipschitz(mlp([2, 8, 8, 1], "relu"), (2,))
    assert early.constant <= early.product


def test_slopes_are_within_their_range() -> None:
    x = torch.linspace(-8, 8, 4001, dtype=torch.float64, requires_grad=True)
    layers = [nn.ReLU(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Hardswish(), nn.Mish()]
    layers += [nn.Sigmoid(), nn.SELU(), nn.ELU(2.0), nn.ELU(-1.0), nn.CELU(0.5), nn.Softplus()]
    layers += [nn.Tanhshrink()]
    for layer in (*layers, nn.LeakyReLU(-0.3), nn.LeakyReLU(2.0), nn.PReLU(init=-0.4).double()):
        (slope,) = torch.autograd.grad(layer(x).sum(), x)
        low, high = slope_range(layer)
        assert float(slope.min()) >= low - 1e-12, layer
        assert float(slope.max()) <= high + 1e-12, layer
        # and the range is hardly wider than they are: slopes tend to 0 far away
        assert float(slope.min()) <= low + 2e-3, layer
        assert float(slope.max()) >= high - 2e-3, layer


def test_refused_in_a_sentence() -> None:
    with pytest.raises(UnsupportedModel, match="softmax acts on all entries"):
        semidefinite_lipschitz(nn.Sequential(nn.Linear(2, 2), nn.Softmax(1), nn.Linear(2, 2)), (2,))
    with pytest.raises(UnsupportedModel, match="3000 units"):
        semidefinite_lipschitz(nn.Sequential(nn.Linear(3000, 2)), (3000,))
    with pytest.raises(UnsupportedModel, match="MaxPool"):
        semidefinite_lipschitz(nn.Sequential(nn.MaxPool2d(2), nn.Flatten()), (1, 4, 4))
    with pytest.raises(InvalidInput, match="steps"):
        semidefinite_lipschitz(nn.Linear(2, 1), (2,), steps=0)
