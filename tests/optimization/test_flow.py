"""Gradient flow of a model's mean loss."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.linalg import expm
from torch import nn

from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.models.model import flatten
from torchtheory.models.problem import Problem
from torchtheory.optimization.curvature.operators import gradient, hessian_operator
from torchtheory.optimization.descent.flow import function_flow, gradient_flow
from torchtheory.optimization.descent.iterates import gradient_descent
from torchtheory.optimization.descent.objectives import objective_of


def normal(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def network(seed=0, outputs=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, outputs)).double()


def test_a_quadratic_is_solved_by_the_matrix_exponential():
    line = nn.Linear(3, 1, bias=False).double()
    x, y = normal(1, 8, 3), normal(2, 8, 1)
    problem = Problem(line, (x, y), task="regression", chunk=5)
    hessian = hessian_operator(problem).to_dense()
    best = torch.linalg.lstsq(x, y).solution.flatten()
    start = flatten(problem.parameters)
    times = [0.0, 0.3, 2.0]
    path = gradient_flow(problem, times, rtol=1e-8, atol=1e-10)
    for k, t in enumerate(times):
        expected = best + torch.from_numpy(expm(-t * hessian.numpy())) @ (start - best)
        assert torch.allclose(path.points[k], expected, atol=1e-6)
        loss = (x @ path.points[k] - y.flatten()).square().mean()
        assert torch.allclose(path.losses[k], loss)
    assert path.parameters(1)["weight"].shape == (1, 3)


@pytest.mark.parametrize("task", ["regression", "binary", "multiclass"])
def test_the_loss_falls_at_the_square_of_the_gradient(task):
    net = network(outputs=3 if task == "multiclass" else 1)
    x = normal(3, 10, 2)
    y = {"regression": normal(4, 10, 1), "binary": (x[:, 0] > 0).double()}.get(
        task, torch.arange(10) % 3
    )
    problem = Problem(net, (x, y), task=task)
    h = 1e-3
    path = gradient_flow(problem, [1 - h, 1.0, 1 + h], rtol=1e-10, atol=1e-12)
    slope = (path.losses[2] - path.losses[0]) / (2 * h)
    norm = gradient(problem, parameters=path.parameters(1)).square().sum()
    assert slope == pytest.approx(-float(norm), rel=1e-4)


def test_times_between_cost_nothing_and_change_nothing():
    problem = Problem(network(), (normal(5, 12, 2), normal(6, 12, 1)))
    few = gradient_flow(problem, [3.0])
    many = gradient_flow(problem, torch.linspace(0, 3, 50))
    assert torch.allclose(few.points[0], many.points[-1], atol=1e-12)
    assert many.evaluations == few.evaluations
    assert (many.losses.diff() <= 0).all()
    assert torch.equal(many.points[0], flatten(problem.parameters))


def test_the_model_and_the_global_generator_stay_as_they_were():
    net = nn.Sequential(network(), nn.Dropout())
    before = {k: v.clone() for k, v in net.state_dict().items()}
    problem = Problem(net, (normal(7, 5, 2), normal(8, 5, 1)))
    state = torch.get_rng_state()
    path = gradient_flow(problem, [0.5])
    assert torch.equal(state, torch.get_rng_state())
    assert net.training
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    again = gradient_flow(problem, [0.25], parameters=gradient_flow(problem, [0.25]).parameters(0))
    assert torch.allclose(again.points[0], path.points[0], atol=1e-6)


def test_single_precision_and_the_start_alone():
    problem = Problem(network().float(), (normal(9, 5, 2).float(), normal(1, 5, 1).float()))
    path = gradient_flow(problem, [0.0, 0.1])
    assert path.points.dtype == torch.float32
    assert gradient_flow(problem, [0.0]).evaluations == 0


def test_the_flow_of_a_function_against_scipy():
    def f(x):
        return (x[..., 0] ** 2 - 1) ** 2 + x[..., 0] * x[..., 1] + x[..., 1] ** 2

    starts, times = normal(2, 3, 2), [0.0, 0.4, 1.5]
    path = function_flow(f, starts, times)
    assert path.shape == (3, 3, 2)

    def velocity(_, z):
        a, b = z
        return [-4 * a * (a * a - 1) - b, -a - 2 * b]

    for k in range(3):
        other = solve_ivp(velocity, (0, 1.5), starts[k], t_eval=times, rtol=1e-10, atol=1e-12)
        assert torch.allclose(path[:, k], torch.from_numpy(other.y.T), atol=1e-6)


def test_the_two_flows_are_one_and_descent_is_eulers_method():
    problem = Problem(network(), (normal(3, 10, 2), normal(4, 10, 1)))
    f, start = objective_of(problem)
    path = gradient_flow(problem, [0.5])
    assert torch.allclose(function_flow(f, start, [0.5])[0], path.points[0], atol=1e-6)
    off = [
        (gradient_descent(f, start, 0.5 / k, k).points[-1] - path.points[0]).norm()
        for k in (50, 100)
    ]
    assert float(off[0] / off[1]) == pytest.approx(2, rel=0.05)


def test_single_precision_function_flow_and_refusals():
    path = function_flow(lambda x: x.square().sum(-1), torch.ones(2), [0.1])
    assert path.dtype == torch.float32
    with pytest.raises(InvalidType):
        function_flow(lambda x: x.sum(-1), torch.ones(2, dtype=torch.int64), [1.0])
    with pytest.raises(ShapeMismatch, match="one value a vector"):
        function_flow(lambda x: x, torch.ones(2), [1.0])
    with pytest.raises(NonFinite):
        function_flow(lambda x: x.sum(-1), torch.tensor([math.inf]), [1.0])
    with pytest.raises(NonFinite, match="at time"):
        function_flow(lambda x: x.sqrt().sum(-1), torch.ones(1), [10.0])


class Blows(nn.Module):
    """The loss of its square root of the weight has no finite gradient at 0."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1).double())

    def forward(self, x):
        return self.weight.sqrt() * x


def test_bad_input_is_refused():
    problem = Problem(network(), (normal(1, 5, 2), normal(2, 5, 1)))
    with pytest.raises(InvalidInput, match="increase"):
        gradient_flow(problem, [1.0, 1.0])
    with pytest.raises(InvalidInput, match="finite"):
        gradient_flow(problem, [math.inf])
    with pytest.raises(InvalidInput, match="finite"):
        gradient_flow(problem, [-1.0])
    with pytest.raises(ShapeMismatch, match="times"):
        gradient_flow(problem, [])
    with pytest.raises(ShapeMismatch, match="names"):
        gradient_flow(problem, [1.0], parameters={"weight": torch.ones(1)})
    wrong = {k: v * math.nan for k, v in problem.parameters.items()}
    with pytest.raises(NonFinite, match="starting"):
        gradient_flow(problem, [1.0], parameters=wrong)
    with pytest.raises(InvalidInput, match="tolerances"):
        gradient_flow(problem, [1.0], rtol=0.0)
    x = torch.ones(2, 1).double()
    with pytest.raises(NonFinite, match="at time"):
        gradient_flow(Problem(Blows(), (x, -x)), [10.0])
