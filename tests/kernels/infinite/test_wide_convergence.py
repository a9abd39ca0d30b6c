"""Wide networks: last-layer kernel, gradient domination, Hessian, descent, zero risk."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.kernels.infinite.wide_convergence import (
    gradient_domination,
    last_layer_kernel,
    ratio_certificate,
    ratio_in_ball,
    squared_risk,
    step_size_limit,
    two_layer_hessian_norms,
    wide_descent,
    wide_network,
)
from torchtheory.kernels.infinite.wide_layer import fit_last_layer, last_layer_path, layer_ranks
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.models.model import PureFunction, flatten, unflatten
from torchtheory.tracing.layer_features import last_hidden_features

seeds = st.integers(0, 10_000)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Custom(nn.Module):
    """A user's own network, not a Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 20)
        self.second = nn.Linear(20, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def custom() -> nn.Module:
    net = Custom().double()
    with torch.no_grad():
        for k, value in enumerate(net.parameters()):
            value.copy_(normal(k, *value.shape))
    return net


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_chain_of_inequalities(seed: int) -> None:
    net = wide_network(12, 2, generator=seed)
    x, y = normal(seed + 1, 5, 2), normal(seed + 2, 5)
    found = gradient_domination(net, x, y)
    assert found.squared_gradient >= found.last_layer_part
    assert found.last_layer_part >= found.constant * found.risk - 1e-12
    loss = nn.functional.mse_loss(net(x)[:, 0], y)
    gradients = torch.autograd.grad(loss, list(net.parameters()))
    assert found.risk == pytest.approx(float(loss.detach()))
    assert found.squared_gradient == pytest.approx(float(sum(g.square().sum() for g in gradients)))
    assert found.last_layer_part == pytest.approx(float(gradients[-1].square().sum()))
    assert found.ratio == pytest.approx(found.squared_gradient / found.risk)


def test_kernel_of_a_users_network_with_biases_and_outputs() -> None:
    net, x = custom(), normal(9, 4, 3)
    before = copy.deepcopy(net.state_dict())
    kernel = last_layer_kernel(net, x)
    full = empirical_ntk(net, x, only=["second.weight", "second.bias"])
    assert torch.allclose(full, kernel[:, :, None, None] * torch.eye(2).double(), atol=1e-12)
    found = gradient_domination(net, x, normal(10, 4, 2))
    assert found.squared_gradient >= found.last_layer_part >= found.constant * found.risk
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())


@given(seeds, st.booleans(), st.sampled_from([nn.Tanh, nn.Sigmoid, nn.Softplus, nn.GELU]))
@settings(max_examples=15, deadline=None)
def test_hessian_norm_against_autodiff(seed: int, bias: bool, activation: type) -> None:
    net = nn.Sequential(nn.Linear(2, 4, bias=bias), activation(), nn.Linear(4, 1)).double()
    with torch.no_grad():
        for k, value in enumerate(net.parameters()):
            value.copy_(normal(seed + k, *value.shape))
    x = normal(seed + 9, 3, 2)
    f = PureFunction(net)
    point = flatten(f.parameters)
    expected = [
        float(
            torch.linalg.matrix_norm(
                torch.func.hessian(lambda t, z=z: f(unflatten(t, f.parameters), z[None])[0, 0])(
                    point
                ),
                2,
            )
        )
        for z in x
    ]
    assert two_layer_hessian_norms(net, x).tolist() == pytest.approx(expected, rel=1e-9)


@given(seeds)
@settings(max_examples=10, deadline=None)
def test_search_in_the_ball_respects_the_certificate(seed: int) -> None:
    net = wide_network(1500, 2, generator=seed)
    x = torch.tensor([[1.0, 0.0], [-1.0, 1.0]]).double()
    y = normal(seed, 2)
    found = ratio_in_ball(net, x, y, radius=0.5, samples=3, steps=5, generator=seed)
    assert found.smallest >= ratio_certificate(net, x, radius=0.5) > 0
    assert float(found.displacement.norm()) <= 0.5 + 1e-9
    risk = squared_risk(net, x, y)
    point = (flatten(PureFunction(net).parameters) + found.displacement).requires_grad_()
    value = risk(point)
    (slope,) = torch.autograd.grad(value, point)
    ratio = float(slope.square().sum()) / float(value.detach())
    assert ratio == pytest.approx(found.searched, rel=1e-9)


def test_certificate_bounds_the_features_change() -> None:
    net, x = wide_network(50, 3, generator=1), normal(2, 4, 3)
    f = PureFunction(net)
    point = flatten(f.parameters)
    size = math.sqrt(float(x.square().sum()) + 4)
    before = torch.linalg.svdvals(last_hidden_features(net, x))[-1]
    for seed in range(10):
        offset = normal(seed, len(point))
        moved = copy.deepcopy(net)
        moved.load_state_dict(unflatten(point + offset / offset.norm(), f.parameters))
        after = torch.linalg.svdvals(last_hidden_features(moved, x))[-1]
        assert abs(float(after - before)) <= size


def test_descent_is_torchs_sgd_and_below_its_prediction() -> None:
    net, x, y = wide_network(500, 3, generator=0), normal(1, 3, 3), normal(2, 3)
    eta = step_size_limit(net, x) / 2
    found = wide_descent(net, x, y, step=eta, steps=40)
    trained = copy.deepcopy(net)
    optimizer = torch.optim.SGD(trained.parameters(), lr=eta)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.mse_loss(trained(x)[:, 0], y).backward()
        optimizer.step()
    assert torch.allclose(flatten(PureFunction(trained).parameters), found.run.points[-1])
    assert bool((found.risks <= found.predicted * (1 + 1e-9)).all())
    assert float(found.distances[0]) == 0
    assert torch.equal(net[0].weight, wide_network(500, 3, generator=0)[0].weight)


def test_linear_model_has_the_exact_step_limit() -> None:
    net = nn.Linear(2, 1, bias=False).double()
    x = torch.tensor([[2.0, 0.0], [0.0, 1.0]]).double()
    assert step_size_limit(net, x) == pytest.approx(2 / 4)
    y = torch.tensor([1.0, 1.0])
    below = wide_descent(net, x, y, step=0.49, steps=200)
    above = wide_descent(net, x, y, step=0.51, steps=200)
    assert below.risks[-1] < 1e-3 * below.risks[0]
    assert above.risks[-1] > above.risks[0]
    with pytest.raises(InvalidInput, match="not below the limit"):
        _ = above.predicted


def test_last_layer_solution_is_the_nearest() -> None:
    net, x, y = custom(), normal(1, 6, 3), normal(2, 6, 2)
    fit = fit_last_layer(net, x, y)
    assert fit.rank == fit.samples == 6
    assert fit.residual < 1e-10
    assert torch.allclose(fit.model(x), y, atol=1e-10)
    design = torch.cat([torch.tanh(net.first(x)), torch.ones(6, 1).double()], 1).detach().numpy()
    change = np.linalg.pinv(design) @ (y - net(x)).detach().numpy()
    moved = torch.cat(
        [fit.model.second.weight - net.second.weight,
         (fit.model.second.bias - net.second.bias)[:, None]], 1,
    )  # fmt: skip
    assert np.allclose(moved.detach().numpy().T, change, atol=1e-9)
    assert torch.equal(fit.model.first.weight, net.first.weight)


@given(seeds)
@settings(max_examples=15, deadline=None)
def test_path_falls_quadratically(seed: int) -> None:
    net = wide_network(30, 2, generator=seed)
    t = torch.linspace(0, 1, 7).double()
    x, y = normal(seed, 5, 2), normal(seed + 1, 5)
    risks = last_layer_path(net, x, y, t)
    assert torch.allclose(risks, (1 - t).square() * risks[0], atol=1e-10 + 1e-8 * float(risks[0]))


def test_ranks_by_hand() -> None:
    line = torch.linspace(-1, 1, 6).double()[:, None]
    net = nn.Sequential(nn.Linear(1, 8), nn.Identity(), nn.Linear(8, 9), nn.Tanh()).double()
    with torch.no_grad():
        for k, value in enumerate(net.parameters()):
            value.copy_(normal(k, *value.shape))
    found = layer_ranks(net, line)
    assert [r.rank for r in found] == [2, 2, 2, 6]
    assert [r.independent for r in found] == [False, False, False, True]
    assert found[-1].smallest > 0
    narrow = fit_last_layer(nn.Sequential(nn.Linear(1, 1)).double(), line, line[:, 0] ** 2)
    assert narrow.rank == 2
    assert narrow.residual > 0.1


def test_in_place_layers_and_images() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8, 1)
    ).double()
    images = normal(0, 5, 1, 4, 4)
    kept = images.clone()
    assert [r.width for r in layer_ranks(net, images)] == [8, 8, 8, 1]
    assert torch.equal(images, kept)


def test_refused_input() -> None:
    net, x, y = wide_network(5, 2), normal(0, 3, 2), normal(1, 3)
    with pytest.raises(UnsupportedModel, match=r"nn\.Linear, not Tanh"):
        last_layer_kernel(nn.Sequential(nn.Linear(2, 1), nn.Tanh()).double(), x)
    with pytest.raises(UnsupportedModel, match="Linear, an activation"):
        two_layer_hessian_norms(nn.Linear(2, 1).double(), x)
    with pytest.raises(UnsupportedModel, match="2 outputs"):
        step_size_limit(custom(), normal(0, 3, 3))
    with pytest.raises(UnsupportedModel, match="one is needed"):
        two_layer_hessian_norms(custom(), normal(0, 3, 3))
    with pytest.raises(InvalidInput, match="targets"):
        squared_risk(net, x, torch.ones(3, 2))
    with pytest.raises(InvalidInput, match="outputs"):
        fit_last_layer(net, x, torch.ones(3, 2))
    with pytest.raises(ShapeMismatch):
        squared_risk(net, x, torch.ones(4))
    with pytest.raises(InvalidInput, match="step"):
        wide_descent(net, x, y, step=0.0, steps=3)
    with pytest.raises(InvalidInput, match="steps"):
        wide_descent(net, x, y, step=0.1, steps=0)
    with pytest.raises(InvalidInput, match="radius"):
        ratio_in_ball(net, x, y, radius=-1.0)
    with pytest.raises(InvalidInput, match="first_deviation"):
        wide_network(5, 2, first_deviation=0.0)
    with pytest.raises(InvalidType, match="tensor"):
        layer_ranks(net, [[1.0]])
    with pytest.raises(NonFinite):
        layer_ranks(net, torch.full((2, 2), math.nan).double())
    two_equal = torch.ones(2, 2).double()
    singular = wide_descent(net, two_equal, torch.ones(2), step=1e-3, steps=1)
    assert singular.constant == pytest.approx(0, abs=1e-12)
