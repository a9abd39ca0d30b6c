"""The linearized network: what it equals, what it leaves alone, what it refuses."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.kernels.tangent.linearization import (
    activation_smoothness,
    linearization_gap,
    linearize,
    two_layer_gap_bound,
)
from torchtheory.nets.activations.table import nth_derivative
from torchtheory.nets.feedforward import mlp
from torchtheory.training.loop.trainer import fit


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def move(lin: nn.Module, size: float = 0.3, seed: int = 1) -> None:
    random = generator(seed)
    with torch.no_grad():
        for p in lin.parameters():
            p += size * torch.randn(p.shape, generator=random, dtype=p.dtype)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(3, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.cells(x)[0][:, -1])
        return out


def models() -> list[tuple[nn.Module, Tensor]]:
    convolution = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.GELU(), nn.Flatten(), nn.Linear(48, 2)
    )
    attention = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for model in (convolution, attention):
            for p in model.parameters():
                nn.init.normal_(p, std=0.3)
    return [
        (mlp([3, 6, 2], "tanh", generator=0), randn(5, 3)),
        (convolution.double().eval(), randn(5, 1, 6, 6)),
        (attention.double().eval(), randn(3, 5, 4)),
        (Recurrent().double(), randn(3, 5, 3)),
    ]


def test_by_hand() -> None:
    # f = v * w * x at v = 2, w = 3: f_lin = 6x + 3x dv + 2x dw
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    with torch.no_grad():
        net[0].weight.fill_(3.0)
        net[1].weight.fill_(2.0)
    lin = linearize(net)
    with torch.no_grad():
        lin.get_parameter("displaced.0.weight").fill_(4.0)
        lin.get_parameter("displaced.1.weight").fill_(7.0)
    x = torch.tensor([[2.0]]).double()
    assert lin(x).item() == 2 * (6 + 3 * 5 + 2 * 1)
    assert lin.exact(x).item() == 2 * 28
    assert {k: v.item() for k, v in lin.displacement().items()} == {"0.weight": 1, "1.weight": 5}


@pytest.mark.parametrize("case", range(4))
def test_any_module(case: int) -> None:
    net, x = models()[case]
    before = copy.deepcopy(net.state_dict())
    lin = linearize(net)
    torch.testing.assert_close(lin(x), net(x))
    move(lin)
    # independent: the Jacobian in full
    names = list(lin.displacement())
    start = {k: p.detach() for k, p in net.named_parameters()}

    def output(theta: dict[str, Tensor]) -> Tensor:
        made: Tensor = torch.func.functional_call(net, theta, (x,))
        return made

    jacobian = torch.func.jacrev(output)(start)
    expected = net(x).detach()
    for name in names:
        step = lin.displacement()[name]
        expected = expected + (jacobian[name] * step).flatten(expected.ndim).sum(-1)
    torch.testing.assert_close(lin(x), expected)
    for k, v in net.state_dict().items():
        assert torch.equal(v, before[k])


@given(seed=st.integers(0, 10**6), a=st.floats(-3, 3), b=st.floats(-3, 3))
@settings(max_examples=20, deadline=None)
def test_affine_in_the_parameters(seed: int, a: float, b: float) -> None:
    net, x = mlp([2, 4, 1], "tanh", generator=seed), randn(3, 2, seed=seed)
    origin = linearize(net)(x)

    def change(weights: list[float]) -> Tensor:
        lin = linearize(net)
        for weight, direction in zip(weights, (1, 2), strict=True):
            move(lin, weight, direction)
        made: Tensor = lin(x) - origin
        return made

    torch.testing.assert_close(change([a, b]), a * change([1, 0]) + b * change([0, 1]))


def test_kernel_is_constant_and_that_of_the_network() -> None:
    net, x = mlp([3, 5, 2], "tanh", generator=0), randn(4, 3)
    lin = linearize(net)
    expected = empirical_ntk(net, x)
    torch.testing.assert_close(empirical_ntk(lin, x), expected)
    move(lin, 2.0)
    torch.testing.assert_close(empirical_ntk(lin, x), expected)


def test_training_by_torch_and_by_fit() -> None:
    net, x, y = mlp([2, 8, 1], "tanh", generator=0), randn(6, 2), randn(6, 1, seed=3)
    ours, theirs = linearize(net), linearize(net)
    history = fit(ours, (x, y), epochs=30, batch_size=6, optimizer="sgd", learning_rate=0.1)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.mse_loss(theirs(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(ours(x), theirs(x))
    assert history.train_losses[-1] < history.train_losses[0]
    assert torch.equal(linearize(net)(x), net(x))  # the network has not moved


def test_frozen_parameters_and_state_dict_and_precision() -> None:
    net, x = mlp([2, 4, 1], "tanh", generator=0), randn(3, 2)
    net[0].requires_grad_(False)
    lin = linearize(net)
    trainable = [k for k, p in lin.named_parameters() if p.requires_grad]
    assert trainable == ["displaced.2.weight", "displaced.2.bias"]
    torch.testing.assert_close(empirical_ntk(lin, x), empirical_ntk(net, x))
    move(lin)
    other = linearize(mlp([2, 4, 1], "tanh", generator=5))
    other.load_state_dict(lin.state_dict())
    assert torch.equal(other(x), lin(x))
    again = copy.deepcopy(lin).to(torch.float32)
    assert again(x.float()).dtype == torch.float32
    torch.testing.assert_close(again(x.float()).double(), lin(x), rtol=1e-4, atol=1e-5)


def test_at_other_parameters() -> None:
    net, other, x = mlp([2, 4, 1], generator=0), mlp([2, 4, 1], generator=1), randn(3, 2)
    for given_as in (other, other.state_dict(), dict(other.named_parameters())):
        assert torch.equal(linearize(net, given_as)(x), other(x))


def test_gap_is_of_second_order() -> None:
    net, x = mlp([3, 6, 1], "tanh", generator=0), randn(4, 3)
    start = copy.deepcopy(net)
    gaps = []
    for size in (1e-3, 2e-3):
        moved = copy.deepcopy(start)
        move(moved, size)
        gaps.append(float(linearization_gap(moved, start, x).max()))
    assert math.isclose(gaps[1] / gaps[0], 4, rel_tol=0.02)
    assert float(linearization_gap(start, start, x).max()) < 1e-15


@pytest.mark.parametrize(
    "name", "linear logistic tanh softplus sin arctan silu gelu elu softsign".split()
)
def test_smoothness_constants(name: str) -> None:
    functions = {
        "linear": lambda z: 1.0 * z, "logistic": torch.sigmoid, "tanh": torch.tanh,
        "softplus": nn.functional.softplus, "sin": torch.sin, "arctan": torch.atan,
        "silu": nn.functional.silu, "gelu": nn.functional.gelu, "elu": nn.functional.elu,
        "softsign": nn.functional.softsign,
    }  # fmt: skip
    slopes = nth_derivative(functions[name], torch.linspace(-9, 9, 90_002, dtype=torch.float64), 1)
    largest = float(slopes.diff().abs().max()) / (18 / 90_001)
    assert math.isclose(largest, activation_smoothness(name), rel_tol=1e-3, abs_tol=1e-9)


def test_two_layer_bound_by_hand_and_for_relu() -> None:
    step, x = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[3.0, 4.0]])
    bound = two_layer_gap_bound(step, torch.tensor([[0.5, -1.0]]), x, 2.0)
    assert bound.tolist() == [[1.0 * 5 * 25]]
    assert activation_smoothness(nn.ReLU()) == math.inf
    still = two_layer_gap_bound(torch.zeros(2, 2), torch.ones(2), x, math.inf)
    assert still.tolist() == [0.0]
    assert activation_smoothness(nn.ELU(alpha=0.5)) == math.inf
    with pytest.raises(UnsupportedModel, match="Softmax"):
        activation_smoothness(nn.Softmax(1))
    with pytest.raises(ShapeMismatch, match="hidden units"):
        two_layer_gap_bound(step, torch.ones(3), x, 1.0)
    with pytest.raises(InvalidInput, match="number >= 0"):
        two_layer_gap_bound(step, torch.ones(2), x, -1.0)


def test_refused() -> None:
    norm = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(UnsupportedModel, match="training mode"):
        linearize(norm)
    with pytest.raises(UnsupportedModel, match="training mode"):
        linearize(nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
    with pytest.raises(InvalidType):
        linearize("net")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModel, match="no parameter"):
        linearize(nn.ReLU())
    net = nn.Linear(2, 1)
    with pytest.raises(InvalidInput, match="have no 'bias'"):
        linearize(net, {"weight": net.weight})
    with pytest.raises(InvalidInput, match="another architecture"):
        linearize(net, {**net.state_dict(), "more": torch.ones(1)})
    with pytest.raises(ShapeMismatch, match=r"\[3\]"):
        linearize(net, {"weight": net.weight, "bias": torch.ones(3)})
    with pytest.raises(NonFinite, match="bias"):
        linearize(net, {"weight": net.weight, "bias": torch.full((1,), math.nan)})
    with pytest.raises(InvalidType, match="state dict"):
        linearize(net, 3)  # type: ignore[arg-type]
