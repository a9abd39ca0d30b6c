import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.budget import within
from torchtheory.core.errors import InvalidInput, UnsupportedModel
from torchtheory.nets.feedforward import mlp
from torchtheory.robustness.lipschitz.bound import lipschitz_bound
from torchtheory.robustness.lipschitz.implicit_form import ImplicitForm, implicit_form
from torchtheory.robustness.lipschitz.semidefinite import (
    bound_of_multipliers,
    semidefinite_lipschitz,
)


def whole_matrix(form: ImplicitForm, multipliers: tuple[Tensor, ...], rho: float) -> Tensor:
    """The matrix of LipSDP, written out for z = Cx + Av, y = Dx + Ev: nowhere positive."""
    sizes = form.sizes
    ends = [0, *torch.tensor(sizes).cumsum(0).tolist()]

    def row(maps: dict[int, Tensor], units: int) -> Tensor:
        whole = torch.zeros(units, ends[-1], dtype=torch.float64)
        for j, matrix in maps.items():
            whole[:, ends[j] : ends[j + 1]] = matrix
        return whole

    z = torch.cat([row(m, n) for m, n in zip(form.maps, sizes[1:], strict=False)])
    v = torch.eye(ends[-1], dtype=torch.float64)[sizes[0] :]
    y = row(form.maps[-1], len(next(iter(form.maps[-1].values()))))
    low, high = (
        torch.cat([torch.full((n,), s[k]) for n, s in zip(sizes[1:], form.slopes, strict=True)])
        for k in (0, 1)
    )
    t = torch.cat(multipliers)
    cross = (v - low[:, None] * z).T @ (t[:, None] * (high[:, None] * z - v))
    matrix = y.T @ y + cross + cross.T
    matrix[: sizes[0], : sizes[0]] -= rho * torch.eye(sizes[0])
    return matrix


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.GELU(), nn.LeakyReLU(0.2), nn.Sigmoid()])
def test_multipliers_prove_the_bound_and_nothing_smaller(activation: nn.Module) -> None:
    torch.manual_seed(0)
    chain = nn.Sequential(
        nn.Linear(4, 7), activation, nn.Linear(7, 6), activation, nn.Linear(6, 2)
    ).double()
    for net in (chain, Branched(activation).double()):
        found = semidefinite_lipschitz(net, (4,), steps=60)
        form = implicit_form(net, (4,))
        for factor, proved in ((1 + 1e-7, True), (0.99, False)):
            rho = (factor * found.constant) ** 2
            largest = torch.linalg.eigvalsh(whole_matrix(form, found.multipliers, rho))[-1]
            assert (float(largest) <= 1e-9) is proved
        assert bound_of_multipliers(form, found.multipliers) == pytest.approx(
            found.constant, rel=1e-8
        )
        assert found.constant < 0.95 * found.product


def test_a_chain_by_the_recursion_over_its_layers() -> None:
    """The elimination of a chain as it stands in the paper, for any multipliers."""
    torch.manual_seed(2)
    net = nn.Sequential(
        nn.Linear(3, 5), nn.LeakyReLU(0.3), nn.Linear(5, 4), nn.SiLU(), nn.Linear(4, 2)
    ).double()
    weights = [m.weight.detach() for m in net if isinstance(m, nn.Linear)]
    form = implicit_form(net, (3,))
    size = float(torch.linalg.matrix_norm(weights[-1], 2)) ** 2
    multipliers = [size * (20 + torch.rand(n).double()) for n in (5, 4)]
    behind = weights[2].T @ weights[2]
    for w, (low, high), t in zip(weights[1::-1], form.slopes[::-1], multipliers[::-1], strict=True):
        inverse = torch.linalg.inv(2 * torch.diag(t) - behind)
        inner = (low + high) ** 2 * t[:, None] * inverse * t - 2 * low * high * torch.diag(t)
        behind = w.T @ inner @ w
    expected = float(torch.linalg.eigvalsh(behind)[-1]) ** 0.5
    assert bound_of_multipliers(form, multipliers) == pytest.approx(expected, rel=1e-10)


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


class Branched(nn.Module):
    """A sum over a shortcut, and two branches side by side."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation
        self.first, self.inner = nn.Linear(4, 6), nn.Linear(6, 6)
        self.aside, self.last = nn.Linear(4, 3), nn.Linear(9, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = h + self.inner(self.activation(h))
        both = torch.cat([self.activation(h), torch.tanh(self.aside(x)) * 0.5], 1)
        return self.last(both) + x[:, :2] / 3


class Pictures(nn.Module):
    """A residual network on images with normalization, pooling and up-sampling."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2)
        self.second, self.last = nn.Conv2d(2, 2, 3, padding=1), nn.Linear(32, 3)
        self.norm.running_var.fill_(0.3)  # type: ignore[union-attr, operator]

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.norm(self.first(x)))
        h = h + F.leaky_relu(self.second(h), 0.1)
        small = F.avg_pool2d(h, 2)
        return self.last((h + F.interpolate(small, scale_factor=2)).flatten(1))


class Repeated(nn.Module):
    """The same weights three times, with a constant mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)
        self.register_buffer("mask", torch.tensor([1.0, 0.0, 1.0, 0.5, 2.0]))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = 0.5 * x + torch.relu(self.layer(x) * self.mask)
        return x.mean(1, keepdim=True)


def steepest(net: nn.Module, shape: tuple[int, ...], generator: torch.Generator) -> float:
    """The largest norm of a Jacobian, from many points and up its gradient from the best."""
    single = torch.func.jacrev(lambda v: net(v[None])[0].flatten())

    def norm(v: Tensor) -> Tensor:
        return torch.linalg.matrix_norm(single(v).flatten(1), 2)

    x = 2 * torch.randn(600, *shape, generator=generator, dtype=torch.float64)
    sizes = torch.func.vmap(norm)(x)
    best = x[sizes.argsort()[-8:]]
    largest = float(sizes.max())
    for _ in range(60):
        slope = torch.func.vmap(torch.func.grad(norm))(best)
        length = slope.flatten(1).norm(dim=1).clamp_min(1e-12)
        best = best + 0.1 * slope / length.reshape(-1, *[1] * len(shape))
        largest = max(largest, float(torch.func.vmap(norm)(best).max()))
    return largest


@pytest.mark.parametrize(
    ("make", "shape", "near"),
    [
        (lambda: Branched(nn.ReLU()), (4,), 1.35),
        (lambda: Branched(nn.GELU()), (4,), 1.5),
        (Pictures, (1, 4, 4), 1.5),
        (Repeated, (5,), 2.0),
    ],
)
def test_branches_are_between_the_steepest_point_and_the_interpreted_bound(
    make: Callable[[], nn.Module], shape: tuple[int, ...], near: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    for seed in range(3):
        torch.manual_seed(seed)
        net = make().double().eval().requires_grad_(False)
        found = semidefinite_lipschitz(net, shape)
        largest = steepest(net, shape, generator)
        assert largest <= found.constant <= near * largest
        assert found.constant <= float(lipschitz_bound(net, shape))
        assert found.constant <= found.product


def test_a_sum_knows_that_its_terms_go_together() -> None:
    """relu(x) + x and relu(x) - x have slopes of 1 to 2, and of -1 to 0; norms add up to 2."""
    for sign, exact in ((1, 2.0), (-1, 1.0)):
        found = semidefinite_lipschitz(Function(lambda x, s=sign: torch.relu(x) + s * x), (3,))
        assert found.constant == pytest.approx(exact, rel=1e-6)
        assert found.product == pytest.approx(2.0)


def test_large_constants_cost_no_digits() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    net = net.double().eval().requires_grad_(False)
    plain = implicit_form(net, (3,))
    for layer in (net[0], net[1], net[3]):
        layer.bias.fill_(1e12)
    net[1].running_mean.fill_(-1e12)
    moved = implicit_form(Function(lambda x: net(x + torch.tensor(1e12).double())), (3,))
    for maps, others in zip(plain.maps, moved.maps, strict=True):
        for j, matrix in maps.items():
            torch.testing.assert_close(others[j], matrix, rtol=1e-14, atol=0)


def test_the_input_is_turned_to_what_is_seen_of_it() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(30, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    form = implicit_form(net, (30,))
    assert form.sizes == (3, 3)
    matrix = form.maps[0][0]
    weight = net[0].weight.detach()
    torch.testing.assert_close(matrix @ matrix.T, weight @ weight.T)


def test_refused_in_a_sentence() -> None:
    with pytest.raises(UnsupportedModel, match="Softmax"):
        semidefinite_lipschitz(nn.Sequential(nn.Linear(2, 2), nn.Softmax(1), nn.Linear(2, 2)), (2,))
    with pytest.raises(UnsupportedModel, match="3000 units and all together 3000"):
        semidefinite_lipschitz(nn.Sequential(nn.Linear(3000, 2)), (3000,))
    with pytest.raises(UnsupportedModel, match="MaxPool"):
        semidefinite_lipschitz(nn.Sequential(nn.MaxPool2d(2), nn.Flatten()), (1, 4, 4))
    with pytest.raises(InvalidInput, match="steps"):
        semidefinite_lipschitz(nn.Linear(2, 1), (2,), steps=0)
    with pytest.raises(UnsupportedModel, match="product of two values"):
        semidefinite_lipschitz(Function(lambda x: x * torch.relu(x)), (3,))
    with pytest.raises(UnsupportedModel, match="no largest slope"):
        semidefinite_lipschitz(nn.Hardshrink(), (3,))
    with pytest.raises(UnsupportedModel, match="samples are not kept apart"):
        semidefinite_lipschitz(Function(lambda x: x - x.mean(0)), (3,))
    with pytest.raises(UnsupportedModel, match="samples are not kept apart"):
        semidefinite_lipschitz(Function(lambda x: x + x.flip(0)), (3,))
    with pytest.raises(UnsupportedModel, match="returns 2 values"):
        semidefinite_lipschitz(Function(lambda x: (x, 2 * x)), (3,))
    with pytest.raises(UnsupportedModel, match="no rule for gt"):
        semidefinite_lipschitz(Function(lambda x: torch.where(x > 0, x, -x)), (3,))


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> object:
        return self.function(x)


@pytest.mark.parametrize(
    ("words", "function"),
    [
        ("rounds to whole numbers", lambda x: torch.div(x, 0.3, rounding_mode="floor")),
        ("rounds to whole numbers", lambda x: x.long().to(x.dtype)),
        ("rounds to whole numbers", lambda x: x.to(torch.int32).double()),
        ("not kept apart", lambda x: x.roll(1)),
    ],
)
def test_what_jumps_or_mixes_samples_is_refused(
    words: str, function: Callable[[Tensor], Tensor]
) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        semidefinite_lipschitz(Function(function), (3,))
    assert float(semidefinite_lipschitz(Function(lambda x: x.roll(1, 1)), (3,))) == pytest.approx(1)


def test_a_bias_that_is_the_weight_as_well() -> None:
    norm = nn.BatchNorm1d(2, eps=0.0)
    norm.weight = norm.bias = nn.Parameter(torch.tensor([3.0, -2.0]))
    assert float(semidefinite_lipschitz(norm, (2,))) == pytest.approx(3)


def test_a_large_number_that_is_added_takes_no_digits() -> None:
    shifted = Function(lambda x: torch.relu(x / 3 + 1e12) - 1e12)
    assert float(semidefinite_lipschitz(shifted, (3,))) == pytest.approx(1 / 3, rel=1e-8)
