"""Gradients and Hessian-vector products against torch's dense Hessian."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch
from torchtheory.linalg.eigenvalues import top_eigenpairs
from torchtheory.models.model import flatten, unflatten
from torchtheory.models.problem import Problem
from torchtheory.optimization.curvature.operators import (
    empirical_fisher_operator,
    fisher_operator,
    gauss_newton_operator,
    gradient,
    hessian_operator,
)

from ..peak_memory import peak_of_child


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 3, batch_first=True)
        self.out = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.lstm(x)[0][:, -1])
        return out


def problem(name: str, dtype: torch.dtype = torch.float64, **more: Any) -> Problem:
    torch.manual_seed(0)
    x, y = torch.randn(21, 4), torch.randint(0, 3, (21,))
    match name:
        case "mlp":
            net: nn.Module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
        case "norm":
            net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.GELU(), nn.Linear(4, 3))
            net[1].running_mean.uniform_()  # type: ignore[index,union-attr,operator]
        case "regression":
            net, y = nn.Sequential(nn.Linear(4, 5), nn.SiLU(), nn.Linear(5, 2)), torch.randn(21, 2)
        case "binary":
            net, y = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)), y % 2
        case "conv":
            x = x[:, None]
            net = nn.Sequential(nn.Conv1d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(6, 3))
        case "conv2d":
            x = torch.randn(21, 4, 9, 9)
            net = nn.Sequential(
                nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=2), nn.Tanh(),
                nn.Conv2d(4, 2, 2, dilation=2, bias=False), nn.Softplus(),
                nn.Conv2d(2, 1, 2, padding="same"), nn.Flatten(), nn.Linear(9, 3),
            )  # fmt: skip
        case "lstm":
            net, x, y = Recurrent(), x.reshape(21, 2, 2), y % 2
        case _:
            layer = nn.Linear(4, 4)
            net = nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(4, 3))
    return Problem(net.to(dtype), (x, y), **more)


NAMES = ["mlp", "norm", "regression", "binary", "conv", "conv2d", "lstm", "shared"]


def dense(p: Problem) -> Tensor:
    """torch's own Hessian of the loss in the flat parameters."""
    like = p.parameters

    def loss(vector: Tensor) -> Tensor:
        outputs = p.function(unflatten(vector, like), p.train.x)
        return p.loss(outputs, p.train.y)

    found: Tensor = torch.autograd.functional.hessian(loss, flatten(like))
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk", [5, 512])
def test_hessian_is_torchs(name: str, chunk: int) -> None:
    p = problem(name, chunk=chunk)
    expected = dense(p)
    found = hessian_operator(p).to_dense()
    assert torch.allclose(found, expected, atol=1e-11)
    assert torch.allclose(found, found.T, atol=1e-11)
    assert torch.allclose(found, found.T)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_is_backwards(name: str) -> None:
    p = problem(name, chunk=4)
    expected = torch.func.grad(p.objective(p.train))(p.parameters)
    assert torch.allclose(gradient(p), flatten(expected), atol=1e-12)
    net = p.model.eval()
    p.loss(net(p.train.x), p.train.y).backward()
    own = torch.cat([q.grad.reshape(-1) for q in net.parameters() if q.grad is not None])
    assert torch.allclose(gradient(p), own, atol=1e-12)


@pytest.mark.parametrize("chunk", [5, 512])
def test_single_precision(chunk: int) -> None:
    p = problem("mlp", torch.float32, chunk=chunk)
    operator = hessian_operator(p)
    assert operator.dtype == torch.float32
    exact = dense(p.in_precision(torch.float64))
    assert torch.allclose(operator.to_dense().double(), exact, atol=1e-6)


def test_other_points_and_samples() -> None:
    p = problem("mlp")
    moved = {k: v + 0.1 for k, v in p.parameters.items()}
    part = p.train.first(6)
    other = Problem(p.model, (part.x, part.y))
    other.function.parameters = moved
    found = hessian_operator(p, part, parameters=moved).to_dense()
    assert torch.allclose(found, dense(other), atol=1e-11)
    assert torch.allclose(gradient(p, part, parameters=moved), gradient(other), atol=1e-12)
    assert not torch.allclose(found, hessian_operator(p).to_dense(), atol=1e-3)


def test_the_quadratic_model_predicts_the_loss() -> None:
    p = problem("mlp")
    direction = torch.randn(p.function.count, dtype=torch.float64)
    direction = 1e-3 * direction / direction.norm()
    moved = unflatten(flatten(p.parameters) + direction, p.parameters)
    risk = float(p.objective(p.train)(moved)) - p.risk(p.train)
    model = gradient(p) @ direction + 0.5 * direction @ (hessian_operator(p) @ direction)
    assert risk == pytest.approx(float(model), rel=1e-5)


def test_linear_regression_by_hand() -> None:
    x = torch.randn(10, 3, dtype=torch.float64)
    p = Problem(nn.Linear(3, 1, bias=False).double(), (x, x.sum(1)), task="regression")
    assert torch.allclose(hessian_operator(p).to_dense(), 2 * x.T @ x / 10)
    residual = F.linear(x, p.parameters["weight"]).squeeze(1) - x.sum(1)
    assert torch.allclose(gradient(p), 2 * x.T @ residual / 10)


def jacobian(p: Problem) -> Tensor:
    """torch's own, of all outputs in the flat parameters: `[n, outputs, p]`."""

    def outputs(vector: Tensor) -> Tensor:
        return p.function(unflatten(vector, p.parameters), p.train.x).flatten(1)

    made: Tensor = torch.autograd.functional.jacobian(outputs, flatten(p.parameters))
    return made


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk", [5, 512])
def test_gauss_newton_and_fisher_from_the_jacobian(name: str, chunk: int) -> None:
    p = problem(name, chunk=chunk)
    J, f = jacobian(p), p.outputs(p.train).flatten(1)
    if p.task == "multiclass":
        q = f.softmax(1)
        middle = torch.diag_embed(q) - q[:, :, None] * q[:, None, :]
    elif p.task == "binary":
        q = f.sigmoid()
        middle = (q * (1 - q))[:, :, None]
    else:
        middle = torch.eye(2).double().expand(len(f), 2, 2)
    fisher = torch.einsum("nai,nab,nbj->ij", J, middle, J) / len(f)
    assert torch.allclose(fisher_operator(p).to_dense(), fisher, atol=1e-11)
    # the mean squared error over c outputs has the second derivative 2/c
    factor = 2 / f.shape[1] if p.task == "regression" else 1.0
    assert torch.allclose(gauss_newton_operator(p).to_dense(), factor * fisher, atol=1e-11)


def test_fisher_of_labels_and_counts() -> None:
    torch.manual_seed(0)
    x = torch.randn(15, 4).double()
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    labels = Problem(net, (x, torch.randint(0, 2, (15, 2))), task="multilabel")
    # the usual losses have canonical links, and are means over two outputs
    twice = 2 * gauss_newton_operator(labels).to_dense()
    assert torch.allclose(fisher_operator(labels).to_dense(), twice, atol=1e-12)
    counts = Problem(net, (x, torch.randint(0, 5, (15, 2))), task="count")
    twice = 2 * gauss_newton_operator(counts).to_dense()
    assert torch.allclose(fisher_operator(counts).to_dense(), twice, atol=1e-12)
    with pytest.raises(InvalidInput, match="no law of its targets is known"):
        fisher_operator(Problem(net, (x, torch.randn(15, 2)), task="ranking")).to_dense()


@pytest.mark.parametrize("name", ["mlp", "regression", "binary", "conv2d"])
def test_empirical_fisher_from_gradients_one_by_one(name: str) -> None:
    p = problem(name, chunk=4)
    each = [gradient(p, p.train.at(torch.tensor([i]))) for i in range(len(p.train))]
    expected = sum(torch.outer(g, g) for g in each) / len(each)
    assert torch.allclose(empirical_fisher_operator(p).to_dense(), expected, atol=1e-11)


def test_hessian_is_gauss_newton_where_the_network_is_linear() -> None:
    torch.manual_seed(0)
    p = Problem(nn.Linear(4, 3).double(), (torch.randn(12, 4), torch.arange(12) % 3))
    assert torch.allclose(hessian_operator(p).to_dense(), gauss_newton_operator(p).to_dense())
    q = problem("mlp")
    assert not torch.allclose(
        hessian_operator(q).to_dense(), gauss_newton_operator(q).to_dense(), atol=1e-3
    )


def test_little_memory_records_anew_and_agrees() -> None:
    rich, poor = problem("conv2d"), problem("conv2d", memory="1MiB")
    assert len(rich.train) <= rich.capacity
    assert len(poor.train) > poor.capacity
    v = torch.randn(rich.function.count, dtype=torch.float64)
    assert torch.allclose(hessian_operator(poor) @ v, hessian_operator(rich) @ v, atol=1e-12)


def test_a_loss_that_is_linear_has_no_curvature() -> None:
    net = nn.Linear(2, 1).double()
    p = Problem(net, (torch.randn(5, 2), torch.randn(5, 1)), loss=lambda f, y: (f * y).mean())
    assert not hessian_operator(p).to_dense().any()
    assert not gauss_newton_operator(p).to_dense().any()


def test_the_model_is_left_alone() -> None:
    p = problem("conv2d")
    before = {k: v.clone() for k, v in p.model.state_dict().items()}
    operator = hessian_operator(p)
    _ = operator @ torch.ones(operator.shape[0], dtype=torch.float64)
    assert all(q.grad is None and q.requires_grad for q in p.model.parameters())
    assert all(torch.equal(before[k], v) for k, v in p.model.state_dict().items())
    assert p.model[0].weight.is_contiguous()  # type: ignore[index,union-attr]


def test_points_that_do_not_fit_are_refused() -> None:
    p = problem("mlp")
    point = dict(p.parameters)
    with pytest.raises(InvalidInput, match="the point has 'more', which is no parameter"):
        gradient(p, parameters={**point, "more": torch.zeros(1)})
    with pytest.raises(ShapeMismatch, match=r"0.bias is \[1\] in the point"):
        fisher_operator(p, parameters={**point, "0.bias": torch.zeros(1).double()})
    with pytest.raises(InvalidType, match=r"0.bias is torch.float32 in the point"):
        gradient(p, parameters={**point, "0.bias": torch.zeros(5)})
    with pytest.raises(EmptyData, match="at least one sample"):
        hessian_operator(p, p.train.first(0))


def test_derivatives_in_the_parameters_that_are_named() -> None:
    p = problem("mlp")
    moved = p.at({k: 0.5 * v for k, v in p.parameters.items()})
    part = {k: v for k, v in moved.parameters.items() if k.startswith("2.")}
    places = torch.cat([torch.full((v.numel(),), k in part) for k, v in moved.parameters.items()])
    assert torch.allclose(gradient(moved, parameters=part), gradient(moved)[places])
    found = hessian_operator(moved, parameters=part).to_dense()
    assert torch.allclose(found, hessian_operator(moved).to_dense()[places][:, places])


def test_the_order_of_names_does_not_matter() -> None:
    p = problem("mlp")
    turned = dict(reversed(p.parameters.items()))
    assert torch.equal(gradient(p, parameters=turned), gradient(p))


def test_a_loss_that_looks_at_numbers_has_an_empirical_fisher_matrix() -> None:
    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        error = (outputs - y).square().mean()
        return error if error.item() >= 0 else -error

    known = problem("regression", loss=nn.MSELoss())
    looking = problem("regression", loss=loss)
    found = empirical_fisher_operator(looking).to_dense()
    assert torch.allclose(found, empirical_fisher_operator(known).to_dense())


class _Rectified(nn.Module):
    """Every way to say max(x, 0)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 3, 2), nn.Conv2d(3, 2, 2)
        self.third, self.last = nn.Linear(8, 6), nn.Linear(6, 2)
        self.act, self.inside = nn.ReLU(), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inside(self.second(self.act(self.first(x)))).flatten(1)
        h = F.relu(self.third(torch.relu(h)), inplace=True)
        return self.last(h.relu() + F.relu(h - 1))  # type: ignore[no-any-return]


def test_rectifiers_of_every_kind() -> None:
    torch.manual_seed(0)
    net = _Rectified().double()
    x, y = torch.randn(7, 1, 4, 4).double(), torch.arange(7) % 2
    p = Problem(net, (x, y))

    def loss(theta: Tensor) -> Tensor:
        named = unflatten(theta, p.parameters)
        return F.cross_entropy(torch.func.functional_call(net, named, x), y)

    exact = torch.autograd.functional.hessian(loss, flatten(p.parameters))
    assert torch.allclose(hessian_operator(p).to_dense(), exact, atol=1e-12)


def _large_problem() -> Problem:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 2900), nn.Tanh(), nn.Linear(2900, 2900), nn.Linear(2900, 2))
    return Problem(net, (torch.randn(8, 20), torch.arange(8) % 2), memory="250MiB")


def _largest_curvature(given: Problem, memory: int) -> None:
    del memory  # the problem says what there is
    found = top_eigenpairs(hessian_operator(given), tolerance=0.1, steps=12)
    assert float(found.values[0]) > 0


def test_curvature_of_many_parameters_keeps_to_the_memory_of_the_problem() -> None:
    """8.5 million parameters in 250 MiB, of which one vector takes 32."""
    peak = peak_of_child(_largest_curvature, _large_problem, 0)
    # pages of torch that are met for the first time count as well
    assert peak <= 250 * 2**20 + 2 * 34 * 2**20 + 60 * 2**20


class Viewed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(2, 4, 3)
        self.out = nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.max_pool2d(torch.relu(self.inner(x)), 2)
        out: Tensor = self.out(hidden.view(len(x), -1)[:, :9])
        return out


def test_a_view_of_images_is_what_it_is_to_the_user() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(9, 2, 8, 8).double(), torch.randint(0, 3, (9,))
    given = Problem(Viewed().double(), (x, y))
    theta = flatten(given.trainable)

    def loss(vector: Tensor) -> Tensor:
        return given.loss(given.function(unflatten(vector, given.trainable), x), y)

    expected = torch.func.hessian(loss)(theta)
    torch.testing.assert_close(hessian_operator(given).to_dense(), expected)


def test_hessian_of_normalized_weights_is_the_slope_of_the_gradient() -> None:
    """torch's own second derivative of a normalized weight holds the norm fixed."""
    torch.manual_seed(0)
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(2, 3))
    net = nn.Sequential(normed, nn.Tanh(), nn.Linear(3, 1)).double()
    x, y = torch.randn(5, 2).double(), torch.randn(5, 1).double()
    problem = Problem(net, (x, y), task="regression")
    matrix = hessian_operator(problem).to_dense()
    point, step = problem.trainable, 1e-5
    vector = flatten(point)
    rows = [
        (
            gradient(problem, parameters=unflatten(vector + step * e, point))
            - gradient(problem, parameters=unflatten(vector - step * e, point))
        )
        / (2 * step)
        for e in torch.eye(len(vector)).double()
    ]
    torch.testing.assert_close(matrix, torch.stack(rows), atol=1e-8, rtol=1e-7)
