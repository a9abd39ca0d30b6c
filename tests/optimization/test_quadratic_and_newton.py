"""Quadratics in closed form, quadratic models, convexity probes and descent directions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from torch import nn

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    NonFinite,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.linalg.conjugate_gradients import NotPositiveDefinite
from torchtheory.linalg.operators import LinearOperator
from torchtheory.models.problem import Problem
from torchtheory.optimization.certificates.convexity import (
    probe_convex_set,
    probe_convexity,
    tangent_excess,
)
from torchtheory.optimization.certificates.regression_constants import (
    logistic_ridge_constants,
    ridge_constants,
)
from torchtheory.optimization.curvature.operators import hessian_operator
from torchtheory.optimization.descent.directions import descent_report
from torchtheory.optimization.descent.iterates import gradient_descent, last_iterate
from torchtheory.optimization.descent.newton import (
    approximation_error,
    diagonal_blocks,
    isotropic_model,
    layer_sizes,
    newton_direction,
    quadratic_model,
    quadratic_model_of,
)
from torchtheory.optimization.descent.quadratic_dynamics import (
    condition_report,
    least_squares_bound,
    preconditioned_matrix,
    quadratic_descent,
)
from torchtheory.optimization.landscape.critical_points import critical_point


def random_definite(seed: int, size: int = 4) -> torch.Tensor:
    half = torch.randn(
        size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return half @ half.T + 0.1 * torch.eye(size, dtype=torch.float64)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.05, 1.9))
def test_closed_form_is_gradient_descent(seed: int, share: float) -> None:
    matrix = random_definite(seed)
    linear, start = torch.randn(2, 4, dtype=torch.float64)
    eta = share / float(torch.linalg.eigvalsh(matrix)[-1])
    exact = quadratic_descent(matrix, linear, start, eta, 12)
    done = gradient_descent(lambda x: (x @ matrix * x).sum(-1) / 2 - x @ linear, start, eta, 12)
    assert torch.allclose(exact.points, done.points, atol=1e-9)
    assert torch.allclose(exact.values, done.values, atol=1e-8)
    assert torch.allclose(matrix @ exact.minimizer, linear, atol=1e-7)
    report = condition_report(matrix)
    assert report.rate(report.optimal_step) == pytest.approx(report.optimal_rate)
    assert report.rate(eta) >= report.optimal_rate - 1e-12


def test_optimal_step_against_scipy() -> None:
    report = condition_report(torch.diag(torch.tensor([0.5, 2.0, 9.0], dtype=torch.float64)))
    found = optimize.minimize_scalar(report.rate, bounds=(0, 1), method="bounded")
    assert found.x == pytest.approx(report.optimal_step, abs=1e-4)
    assert report.condition == 18.0
    assert report.largest_step == pytest.approx(2 / 9)


def test_flat_directions_stand_still() -> None:
    matrix = torch.diag(torch.tensor([0.0, 1.0]))
    run = quadratic_descent(matrix, torch.zeros(2), torch.ones(2), 0.5, 3)
    assert run.points[:, 0].tolist() == [1.0] * 4
    with pytest.raises(InvalidInput, match="no minimum"):
        quadratic_descent(matrix, torch.ones(2), torch.ones(2), 0.5, 3)
    with pytest.raises(InvalidInput, match="negative eigenvalue"):
        quadratic_descent(-torch.eye(2), torch.zeros(2), torch.ones(2), 0.5, 3)
    assert condition_report(matrix).condition == math.inf
    assert condition_report(matrix).steps_to(0.1) == math.inf
    with pytest.raises(InvalidInput):
        condition_report(-torch.eye(2))
    with pytest.raises(ShapeMismatch):
        quadratic_descent(matrix, torch.zeros(3), torch.ones(2), 0.5, 3)
    with pytest.raises(InvalidInput):
        quadratic_descent(matrix, torch.zeros(2), torch.ones(2), 0.0, 3)


def test_flat_directions_in_single_precision() -> None:
    half = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    matrix = half @ half.T
    run = quadratic_descent(matrix, matrix @ torch.ones(6), torch.zeros(6), 0.01, 400)
    assert torch.allclose(matrix @ run.minimizer, matrix @ torch.ones(6), atol=1e-3)


def test_preconditioning() -> None:
    matrix = random_definite(3)
    assert torch.allclose(
        preconditioned_matrix(matrix, matrix), torch.eye(4, dtype=torch.float64), atol=1e-10
    )
    with pytest.raises(InvalidInput, match="definite"):
        preconditioned_matrix(matrix, 0 * matrix)
    operator = condition_report(LinearOperator.from_matrix(matrix))
    assert operator.condition == pytest.approx(condition_report(matrix).condition, rel=1e-5)
    with pytest.raises(ShapeMismatch):
        least_squares_bound(torch.eye(3), torch.zeros(2), torch.zeros(3), 0.1, 2)
    with pytest.raises(InvalidInput, match="positive step"):
        least_squares_bound(torch.eye(3), torch.zeros(3), torch.zeros(3), 0.0, 2)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.0, 1.0))
def test_regression_constants_bound_the_hessian(seed: int, penalty: float) -> None:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(9, 3, dtype=torch.float64, generator=random)
    w = torch.randn(3, dtype=torch.float64, generator=random)
    y = torch.ones(9, dtype=torch.float64)

    def logistic(v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.softplus(-y * (x @ v)).mean() + penalty / 2 * v.square().sum()

    def ridge(v: torch.Tensor) -> torch.Tensor:
        return (x @ v - y).square().mean() / 2 + penalty / 2 * v.square().sum()

    for f, (low, high) in (
        (logistic, logistic_ridge_constants(x, penalty)),
        (ridge, ridge_constants(x, penalty)),
    ):
        spectrum = torch.linalg.eigvalsh(torch.func.hessian(f)(w))
        assert low - 1e-9 <= float(spectrum[0])
        assert float(spectrum[-1]) <= high + 1e-9


def test_regression_constants_refuse() -> None:
    with pytest.raises(ShapeMismatch):
        ridge_constants(torch.zeros(3))
    with pytest.raises(InvalidInput):
        ridge_constants(torch.eye(2), -1.0)
    with pytest.raises(NonFinite):
        logistic_ridge_constants(torch.tensor([[math.nan]]))
    assert ridge_constants(torch.ones(1, 2))[0] == 0.0


def test_newton_against_scipy() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.exp() + x.square()).sum() + x.prod()

    found = last_iterate(newton_direction(f), torch.zeros(3).double(), [1.0] * 12)
    other = optimize.minimize(
        lambda v: float(f(torch.as_tensor(v))), np.zeros(3), method="BFGS", options={"gtol": 1e-9}
    )
    assert np.allclose(found.numpy(), other.x, atol=1e-5)


def test_functions_without_second_derivatives_are_refused() -> None:
    places = torch.eye(3).double()

    def distances(x: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x[None], places).sum()

    for use in (
        lambda: newton_direction(distances)(torch.ones(3).double(), 0),
        lambda: critical_point(distances, torch.ones(3).double()),
    ):
        with pytest.raises(UnsupportedModel, match="no second derivative"):
            use()


def test_models() -> None:
    model = quadratic_model(lambda x: (x**2).sum() / 2 + x.sum(), torch.zeros(2).double())
    assert torch.allclose(model.minimizer(), -torch.ones(2).double())
    assert model(torch.ones(2).double()) == pytest.approx(3.0)
    assert torch.allclose(model.minimizer(damping=1.0), -torch.ones(2).double() / 2)
    saddle = quadratic_model(lambda x: x[0] ** 2 - x[1] ** 2, torch.ones(2).double())
    with pytest.raises(NotPositiveDefinite):
        saddle.minimizer()
    assert saddle.minimizer(damping=3.0).shape == (2,)
    with pytest.raises(InvalidInput):
        model.minimizer(damping=-1.0)
    with pytest.raises(InvalidInput):
        isotropic_model(lambda x: x.sum(), torch.ones(2), 0.0)


def test_blocks_of_a_network() -> None:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    x = torch.randn(6, 2, dtype=torch.float64)
    problem = Problem(net, (x, x[:, :1]), task="regression")
    hessian = hessian_operator(problem)
    dense = hessian.to_dense()
    blocks = diagonal_blocks(hessian, layer_sizes(problem))
    assert [len(b) for b in blocks.blocks] == [6, 3]
    assert torch.allclose(
        blocks.operator.to_dense(), torch.block_diag(dense[:6, :6], dense[6:, 6:])
    )
    rest = dense - torch.diag(dense.diag())
    assert approximation_error(hessian, diagonal_blocks(hessian)) == pytest.approx(
        float(torch.linalg.matrix_norm(rest, 2)), rel=1e-4
    )
    v = torch.randn(9, dtype=torch.float64)
    assert torch.allclose(blocks.operator @ blocks.solve(v), v, atol=1e-7)
    assert quadratic_model_of(problem).value == pytest.approx(problem.risk(problem.train))
    with pytest.raises(ShapeMismatch):
        diagonal_blocks(hessian, [4, 4])
    with pytest.raises(InvalidInput):
        diagonal_blocks(hessian, "rows")  # type: ignore[arg-type]
    with pytest.raises(ShapeMismatch, match="as many entries"):
        blocks.solve(v[:4])
    same = diagonal_blocks(LinearOperator.from_matrix(torch.diag(v)))
    assert approximation_error(LinearOperator.from_matrix(torch.diag(v)), same) == 0.0
    with pytest.raises(InvalidInput, match="singular"):
        diagonal_blocks(LinearOperator.from_matrix(torch.zeros(2, 2))).solve(torch.ones(2))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_convex_functions_pass_and_their_negatives_do_not(seed: int) -> None:
    matrix = random_definite(seed)
    points = torch.randn(30, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x @ matrix).logsumexp(-1) + x.square().sum()

    assert not probe_convexity(f, points, pairs=50, curvature_points=2).violated
    found = probe_convexity(lambda x: -f(x), points, pairs=50, curvature_points=2)
    chord = found.counterexample
    assert chord is not None
    assert float(-f(chord.between)) == pytest.approx(chord.height)
    assert chord.height > chord.chord
    assert "Not convex" in str(found)
    assert bool((tangent_excess(f, points, points.flip(0)) <= 1e-10).all())


def test_negative_curvature_is_found_where_random_chords_miss_it() -> None:
    points = torch.tensor([[0.0, 0.0], [5.0, 0.0], [-5.0, 0.1]], dtype=torch.float64)

    def f(x: torch.Tensor) -> torch.Tensor:
        return x[0].square().square() - 1e-3 * x[1].square()

    assert not probe_convexity(f, points[:2], curvature_points=0).violated
    assert probe_convexity(f, points[:2]).violated


def test_a_dent_is_not_hidden_by_rounding_elsewhere() -> None:
    # far out the function is linear, and the rounding of its values exceeds the dent at 0
    points = torch.tensor([[0.0], [101.7], [333.3], [777.7], [999.1]], dtype=torch.float64)

    def f(x: torch.Tensor) -> torch.Tensor:
        return 1e9 * torch.relu(x - 1).sum() + 1e-2 * torch.exp(-x.square()).sum()

    found = probe_convexity(f, points)
    assert found.smallest_curvature < 0
    assert found.violated
    assert found.worst.excess > found.worst.rounding


def test_many_parameters_are_probed_without_a_dense_hessian() -> None:
    size = 3000
    points = torch.randn(6, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = torch.linspace(1, 2, size, dtype=torch.float64)
    weights[7] = -0.5

    def f(x: torch.Tensor) -> torch.Tensor:
        return (weights * x.square()).sum()

    found = probe_convexity(f, points, pairs=20, curvature_points=1)
    assert found.violated
    assert found.smallest_curvature == pytest.approx(-1.0, rel=1e-3)


def test_sets_and_refusals() -> None:
    points = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    assert probe_convex_set(lambda x: x.norm(dim=1) < 1, points) is None
    with pytest.raises(EmptyData):
        probe_convex_set(lambda x: x.norm(dim=1) < 0, points)
    with pytest.raises(EmptyData):
        probe_convexity(lambda x: x.sum(), torch.zeros(1, 2))
    with pytest.raises(InvalidInput):
        probe_convexity(lambda x: x.sum(), torch.zeros(2, 2), pairs=0)
    with pytest.raises(NonFinite):
        probe_convexity(lambda x: x.log().sum(), torch.tensor([[-1.0], [1.0]]))
    with pytest.raises(ShapeMismatch):
        tangent_excess(lambda x: x.sum(), torch.zeros(2, 2), torch.zeros(3, 2))


@settings(max_examples=30, deadline=None)
@given(st.floats(-math.pi, math.pi))
def test_angles_decide(angle: float) -> None:
    point = torch.tensor([1.0, 0.0], dtype=torch.float64)
    direction = torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
    found = descent_report(lambda x: x.square().sum(), point, direction, longest=3.0)
    assert found.cosine == pytest.approx(-math.cos(angle), abs=1e-9)
    # |x + αs|² < 1 if and only if α < -2 cos
    if found.cosine > 1e-4:
        assert found.descends
        assert found.decreases_up_to <= 2 * found.cosine
    elif found.cosine < -1e-4:
        assert found.decreases_up_to == 0.0


def test_single_precision_directions_reach_as_far() -> None:
    found = [
        descent_report(
            lambda x: x.square().sum() + 100,
            torch.tensor([0.01, 0.0], dtype=dtype),
            torch.tensor([-1.0, 0.0], dtype=dtype),
            longest=1.0,
        )
        for dtype in (torch.float32, torch.float64)
    ]
    assert all(r.descends for r in found)
    assert found[1].decreases_up_to <= 0.02
    assert found[0].decreases_up_to > 0


def test_directions_refuse() -> None:
    with pytest.raises(InvalidInput, match="0"):
        descent_report(lambda x: x.sum(), torch.ones(2), torch.zeros(2))
    with pytest.raises(ShapeMismatch):
        descent_report(lambda x: x.sum(), torch.ones(2), torch.zeros(3))
    flat = descent_report(lambda x: (x**2).sum(), torch.zeros(1), torch.ones(1))
    assert math.isnan(flat.cosine)
    assert not flat.descends
