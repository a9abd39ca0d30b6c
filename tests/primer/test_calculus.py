import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, interpolate, optimize

from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
    UnknownName,
)
from torchtheory.primer.differences import (
    chain_rule,
    derivative_by_limit,
    directional_difference,
    gradient_check,
    hessian_at,
    hessian_vector_product,
    numerical_jacobian,
)
from torchtheory.primer.mean_value import (
    mean_value_points,
    second_order_remainder,
    segment_gradients,
    segment_hessians,
)
from torchtheory.primer.objectives import (
    factorization_gradients,
    factorize,
    nonlinear_least_squares,
    nonlinear_least_squares_gradient,
    nonlinear_least_squares_hessian,
    squared_norm_gradient,
    squared_residual,
    squared_residual_gradient,
)
from torchtheory.primer.smoothness import (
    lipschitz_from_below,
    parabola_bounds,
    smoothness_from_below,
)
from torchtheory.primer.taylor import derivative, taylor_polynomial

seeds = st.integers(0, 2**31)


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def bumpy(x):
    return torch.sin(x).prod() + (x**2).sum() * torch.cos(x[0])


def cancelling(x):
    return 1 - torch.cos(x)


def slow(x):
    """The quotient at 0 is 1 / log t: nothing converges more slowly."""
    return torch.where(x == 0, 0 * x, x / torch.log(x.abs() + (x == 0) * 0.5))


def shaking(x):
    return x**2 * torch.sin(1 / (x + (x == 0)))


# function, point, and all that the limit may be: at a kink both one-sided derivatives
LIMITS = [
    (lambda x: (x - 3).abs(), 3.0, [-1, 1]),
    (lambda x: (x - 3).abs(), 3.0 + 1e-9, [1]),
    (lambda x: (x - 3).abs(), 3.1, [1]),
    (lambda x: x**2 + 1e-6 * x.abs(), 0.0, [-1e-6, 1e-6]),
    (torch.relu, 0.0, [0, 1]),
    (torch.relu, -0.2, [0]),
    (torch.relu, -1e-8, [0]),
    (torch.relu, 1e-5, [1]),
    (torch.round, 0.3, [0]),
    (torch.exp, 1.0, [math.e]),
    (torch.log, 0.1, [10]),
    (lambda x: x**3, 1e6, [3e12]),
    (lambda x: x**3, 1e-6, [3e-12]),
    (lambda x: x**20, 1.0, [20]),
    (lambda x: 1 / (1 + 1e6 * x**2), 1e-3, [-500]),
    (lambda x: torch.tanh(1e6 * x), 0.0, [1e6]),
    (lambda x: x + 1e-9 * torch.sin(1e9 * x), 0.0, [2]),
    (lambda x: (x + 1e8) - 1e8, 1.0, [1]),
    (lambda x: 0 * x + 7, 2.0, [0]),
    (cancelling, 1e-4, [math.sin(1e-4)]),
    (cancelling, 1.0, [math.sin(1.0)]),
    (lambda x: torch.log(1 + x), 1e-9, [1 - 1e-9]),
    (shaking, 0.0, [0]),
    (lambda x: x * x.abs(), 0.0, [0]),
    (lambda x: x * x.abs().sqrt(), 0.0, [0]),
    (lambda x: x * x.abs() ** 0.1, 0.0, [0]),
    (lambda x: x.abs() ** 1.1, 0.0, [0]),
    (slow, 0.0, [0]),
]


class TestDifferences:
    def test_by_hand(self):
        x, one = torch.tensor(3.0).double(), torch.tensor(1.0).double()
        forward = directional_difference(torch.square, x, one, step=0.5, scheme="forward")
        assert float(forward) == 6.5
        assert float(directional_difference(torch.square, x, one, step=0.5)) == 6.0

    @settings(max_examples=15, deadline=None)
    @given(seeds)
    def test_against_autograd(self, seed):
        x = draw(seed, 4)
        exact = torch.func.grad(bumpy)(x)
        assert torch.allclose(numerical_jacobian(bumpy, x), exact, atol=1e-8)
        assert gradient_check(bumpy, x).error < 1e-8
        u = draw(seed + 1, 4)
        limit = derivative_by_limit(bumpy, x, u)
        assert limit.value == pytest.approx(float(exact @ u), abs=1e-8)

    def test_against_scipy(self):
        x = draw(5, 3)
        ours = numerical_jacobian(bumpy, x, scheme="forward", step=1e-7)
        theirs = optimize.approx_fprime(
            x.numpy(), lambda v: float(bumpy(torch.from_numpy(v))), 1e-7
        )
        assert np.allclose(ours, theirs, atol=1e-8)

    def test_limit_is_accurate_and_says_so(self):
        found = derivative_by_limit(torch.exp, torch.tensor(1.0).double())
        assert abs(found.value - math.e) < 1e-11
        assert found.error < 1e-9

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_limit_at_a_jump(self, dtype):
        for function, point in (
            (lambda x: (x > 0).to(x), 0.0),
            (lambda x: (x >= 0.25).to(x), 0.25),
            (torch.sign, 0.0),
            (torch.floor, 100.0),
            (torch.round, 1.5),
            (lambda x: torch.sin(x) + 0.1 * (x > 0.5).to(x), 0.5),
        ):
            assert derivative_by_limit(function, torch.tensor(point, dtype=dtype)).error == math.inf
        near = derivative_by_limit(lambda x: (x > 0.5 + 1e-7).to(x), torch.tensor(0.5).double())
        assert (near.value, near.error) == (0.0, 0.0)
        root = derivative_by_limit(
            lambda x: x.sign() * x.abs() ** (1 / 3), torch.zeros(()).double()
        )
        assert root.error == math.inf

    @pytest.mark.parametrize(("function", "point", "derivatives"), LIMITS)
    def test_the_error_of_a_limit_is_honest(self, function, point, derivatives):
        found = derivative_by_limit(function, torch.tensor(point, dtype=torch.float64))
        for exact in derivatives:
            assert abs(found.value - exact) <= found.error

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    @pytest.mark.parametrize("exponent", [2, 3, 4, 5, 6, 7, 8, 12, 15, 16, 20])
    def test_the_error_covers_the_rounding_of_the_points(self, exponent, dtype):
        x = torch.tensor(10.0**exponent, dtype=dtype)
        for first_step in (0.25, 0.3):
            found = derivative_by_limit(torch.sin, x, first_step=first_step)
            assert abs(found.value - math.cos(float(x))) <= found.error
        for first_step in (64.0, 1024.0, 1e5):  # steps that the numbers have, and waves between
            found = derivative_by_limit(torch.sin, x, first_step=first_step)
            assert abs(found.value - math.cos(float(x))) <= found.error
        # a large entry along which nothing moves does no harm
        pair = torch.stack([x, torch.ones_like(x)])
        along = torch.tensor([0.0, 1.0], dtype=dtype)
        found = derivative_by_limit(lambda v: torch.sin(v[1]), pair, along)
        assert abs(found.value - math.cos(1)) <= found.error

    @pytest.mark.parametrize("frequency", [10.0, 1e3, 1e5, 1e7, 2**20 * 2 * math.pi])
    @pytest.mark.parametrize("point", [0.0, 0.3, 1.0, 7.7])
    def test_waves_are_followed_to_their_length(self, frequency, point):
        found = derivative_by_limit(
            lambda x: torch.sin(frequency * x), torch.tensor(point, dtype=torch.float64)
        )
        exact = frequency * math.cos(frequency * point)
        assert abs(found.value - exact) <= found.error < 1e-4 * frequency

    @settings(max_examples=40, deadline=None)
    @given(st.floats(-3, 3), st.floats(-4, 1), st.sampled_from([torch.float64, torch.float32]))
    def test_honest_at_any_point_and_scale(self, point, scale, dtype):
        x, s = torch.tensor(point, dtype=dtype), 2.0 ** round(3 * scale)
        smooth = {
            torch.sin: torch.cos,
            torch.tanh: lambda v: 1 - torch.tanh(v) ** 2,
            torch.abs: torch.sign,
            torch.nn.functional.softplus: torch.sigmoid,
        }
        for function, slope in smooth.items():
            found = derivative_by_limit(lambda v, f=function: f(s * v), x)
            exact = s * float(slope(s * x.double()))
            assert abs(found.value - exact) <= found.error

    def test_a_limit_inside_the_domain(self):
        found = derivative_by_limit(torch.log, torch.tensor(1e-6, dtype=torch.float64))
        assert abs(found.value - 1e6) <= found.error < 1
        with pytest.raises(NonFinite):
            derivative_by_limit(torch.log, torch.tensor(-1.0, dtype=torch.float64))

    def test_jacobian_shapes(self):
        A = draw(0, 2, 3)
        assert numerical_jacobian(lambda M: M @ M.T, A).shape == (2, 2, 2, 3)
        check = gradient_check(lambda M: (M @ M.T).trace(), A, 2 * A)
        assert check.error < 1e-9
        assert len(check.worst) == 2

    def test_float32(self):
        assert gradient_check(lambda v: v.square().sum(), torch.ones(3)).error < 1e-2

    def test_hessian_products(self):
        x, v = draw(1, 4), draw(2, 4)
        dense = torch.func.hessian(bumpy)(x)
        assert torch.allclose(hessian_vector_product(bumpy, x, v), dense @ v)
        assert torch.allclose(hessian_at(bumpy, x).to_dense(), dense)
        difference = directional_difference(torch.func.grad(bumpy), x, v)
        assert torch.allclose(difference, dense @ v, atol=1e-8)

    @settings(max_examples=10, deadline=None)
    @given(seeds)
    def test_chain_rule(self, seed):
        A, B, x = draw(seed, 3, 2), draw(seed + 1, 2, 4), draw(seed + 2, 4)
        rule = chain_rule(lambda u: torch.sin(A @ u), lambda u: torch.tanh(B @ u), x)
        assert rule.outer.shape == (3, 2)
        assert rule.inner.shape == (2, 4)
        assert rule.residual < 1e-12
        slow = chain_rule(
            lambda u: torch.sin(A @ u), lambda u: torch.tanh(B @ u), x, numerical=True
        )
        assert slow.residual < 1e-7

    def test_bad_input(self):
        x = torch.ones(2).double()
        with pytest.raises(ShapeMismatch):
            directional_difference(bumpy, x, torch.ones(3).double())
        with pytest.raises(InvalidInput, match="step"):
            directional_difference(bumpy, x, x, step=0.0)
        with pytest.raises(UnknownName):
            directional_difference(bumpy, x, x, scheme="sideways")
        with pytest.raises(InvalidType):
            numerical_jacobian(bumpy, torch.ones(2, dtype=torch.int64))
        with pytest.raises(NonFinite):
            numerical_jacobian(bumpy, torch.tensor([math.inf, 0.0]))
        with pytest.raises(InvalidInput, match="direction"):
            derivative_by_limit(bumpy, x)
        with pytest.raises(ShapeMismatch):
            gradient_check(bumpy, x, torch.ones(3).double())
        with pytest.raises(ShapeMismatch):
            chain_rule(torch.sin, torch.sin, torch.ones(2, 2))


class TestTaylor:
    def test_exponential(self):
        polynomial = taylor_polynomial(torch.exp, 0.0, 6)
        exact = [1 / math.factorial(j) for j in range(7)]
        assert np.allclose(polynomial.coefficients, exact)
        assert polynomial.truncate(2).degree == 2

    def test_against_scipy(self):
        ours = taylor_polynomial(torch.sin, 0.4, 4)
        theirs = interpolate.approximate_taylor_polynomial(np.sin, 0.4, 4, 0.1, order=8)
        assert np.allclose(ours.coefficients, theirs.coefficients[::-1], atol=1e-4)

    @settings(max_examples=25, deadline=None)
    @given(st.floats(-2, 2), st.floats(-2, 2), st.integers(0, 5))
    def test_remainder_bound(self, a, x, k):
        polynomial = taylor_polynomial(torch.sin, a, k)
        at = torch.tensor([x], dtype=torch.float64)
        bound = polynomial.remainder_bound(at, 1.0)
        assert float(polynomial.remainder(at).abs()) <= float(bound) + 1e-14

    def test_derivative_of_constants(self):
        x = torch.ones(3).double()
        assert not derivative(lambda v: v, x, 2).any()
        assert torch.equal(derivative(lambda v: v**3, x, 3), 6 * x)

    def test_bad_input(self):
        with pytest.raises(InvalidInput):
            derivative(torch.sin, torch.ones(1), 13)
        with pytest.raises(InvalidInput):
            taylor_polynomial(torch.sin, 0.0, -1)
        with pytest.raises(NonFinite):
            taylor_polynomial(torch.sqrt, 0.0, 2)
        with pytest.raises(InvalidInput):
            taylor_polynomial(torch.sin, 0.0, 2).truncate(3)


class TestMeanValue:
    def test_by_hand(self):
        points = mean_value_points(lambda x: x**3, -1.0, 1.0)
        assert np.allclose(points, [-1 / math.sqrt(3), 1 / math.sqrt(3)], atol=1e-12)
        assert mean_value_points(torch.abs, -1.0, 2.0).numel() == 0
        # a kink on the grid, where automatic differentiation says 0, as the mean slope is
        for grid in (1, 2, 9, 100, 2000):
            assert mean_value_points(torch.abs, -1.0, 1.0, grid=grid).numel() == 0
        waves = mean_value_points(lambda x: torch.sin(200 * x), 0.0, math.pi)
        assert waves.numel() == 200

    def test_straight_line(self):
        assert mean_value_points(lambda x: 2 * x, 0.0, 1.0, grid=10).numel() > 0

    @settings(max_examples=15, deadline=None)
    @given(seeds)
    def test_segments(self, seed):
        x, y = draw(seed, 3), draw(seed + 1, 3)
        change = bumpy(x + y) - bumpy(x)
        slope = torch.func.grad(bumpy)(x)
        assert float(segment_gradients(bumpy, x, y)) == pytest.approx(float(change), abs=1e-9)
        gradient = torch.func.grad(bumpy)(x + y) - slope
        assert torch.allclose(segment_hessians(bumpy, x, y), gradient, atol=1e-9)
        rest = change - slope @ y
        assert float(second_order_remainder(bumpy, x, y)) == pytest.approx(float(rest), abs=1e-9)

    def test_against_scipy(self):
        x, y = draw(3, 3), draw(4, 3)
        gradient = torch.func.grad(bumpy)
        reference, _ = integrate.quad(lambda t: float(gradient(x + t * y) @ y), 0, 1)
        assert float(segment_gradients(bumpy, x, y)) == pytest.approx(reference, abs=1e-9)

    def test_printed_formula_is_wrong(self):
        one = torch.ones(1).double()

        def cube(v):
            return (v**3).sum()

        assert float(second_order_remainder(cube, 0 * one, one)) == pytest.approx(1.0)
        assert 0.5 * float(segment_hessians(cube, 0 * one, one)) == pytest.approx(1.5)

    def test_bad_input(self):
        with pytest.raises(InvalidInput):
            mean_value_points(torch.sin, 1.0, 0.0)
        with pytest.raises(ShapeMismatch):
            segment_gradients(bumpy, torch.ones(2), torch.ones(3))


class TestSmoothness:
    def test_linear_map_into_several_dimensions(self):
        A = draw(0, 3, 4)
        found = lipschitz_from_below(lambda x: A @ x, draw(1, 30, 4))
        assert found.from_derivatives == pytest.approx(float(torch.linalg.matrix_norm(A, 2)))
        assert found.from_pairs <= found.from_derivatives * (1 + 1e-12)

    def test_ascent_finds_the_maximum(self):
        found = lipschitz_from_below(
            lambda x: torch.sin(x).sum(), torch.tensor([[0.7], [0.9]]).double()
        )
        assert found.value == pytest.approx(1.0, abs=1e-6)
        at_points = lipschitz_from_below(
            lambda x: torch.sin(x).sum(), torch.tensor([[0.7], [0.9]]).double(), ascent_steps=0
        )
        assert at_points.value == pytest.approx(math.cos(0.7))

    def test_box(self):
        points = torch.tensor([[0.1], [0.2]]).double()
        found = lipschitz_from_below(lambda x: (x**2).sum(), points, box=(-1.0, 1.0))
        assert found.from_derivatives == pytest.approx(2.0)
        assert float(found.point) == 1.0

    @settings(max_examples=10, deadline=None)
    @given(seeds)
    def test_quadratic(self, seed):
        G = draw(seed, 4, 4)
        Q = G + G.T

        def f(x):
            return 0.5 * x @ Q @ x

        L = float(torch.linalg.eigvalsh(Q).abs().max())
        found = smoothness_from_below(f, draw(seed + 1, 10, 4), ascent_steps=2)
        assert found.value == pytest.approx(L)
        low, value, high = parabola_bounds(f, draw(seed + 2, 4), draw(seed + 3, 20, 4), L)
        assert bool((low <= value + 1e-9).all() and (value <= high + 1e-9).all())

    def test_bad_input(self):
        with pytest.raises(InvalidInput):
            lipschitz_from_below(torch.sum, torch.ones(3, 1), box=(1.0, 0.0))
        with pytest.raises(InvalidInput):
            lipschitz_from_below(torch.sum, torch.ones(1, 1))
        with pytest.raises(InvalidInput):
            parabola_bounds(torch.sum, torch.ones(1), torch.ones(2, 1), -1.0)


class TestObjectives:
    @settings(max_examples=10, deadline=None)
    @given(seeds)
    def test_gradients_against_autograd(self, seed):
        A, y, x = draw(seed, 6, 3), draw(seed + 1, 6), draw(seed + 2, 3)
        exact = torch.func.grad(lambda v: squared_residual(A, y, v))(x)
        assert torch.allclose(squared_residual_gradient(A, y, x), exact)
        assert torch.allclose(squared_norm_gradient(lambda v: A @ v - y, x), exact)
        U, V, R = draw(seed + 3, 4, 2), draw(seed + 4, 2, 5), draw(seed + 5, 4, 5)
        loss = torch.func.grad(lambda u, v: 0.5 * (u @ v - R).square().sum(), argnums=(0, 1))
        for ours, theirs in zip(factorization_gradients(U, V, R), loss(U, V), strict=True):
            assert torch.allclose(ours, theirs)
        for link in (torch.sigmoid, torch.tanh, torch.exp):

            def objective(w, link=link):
                return nonlinear_least_squares(link, w, A, y)

            gradient = nonlinear_least_squares_gradient(link, x, A, y)
            assert torch.allclose(gradient, torch.func.grad(objective)(x))
            hessian = nonlinear_least_squares_hessian(link, x, A, y)
            assert torch.allclose(hessian, torch.func.hessian(objective)(x))

    def test_factorization_reaches_the_best_rank(self):
        R = draw(0, 8, 6)
        sigma = torch.linalg.svdvals(R)
        fit = factorize(R, 2, sweeps=500)
        assert float(fit.losses[-1]) == pytest.approx(0.5 * float(sigma[2:].square().sum()))
        assert bool((fit.losses.diff() <= 1e-12).all())
        left, right = factorization_gradients(fit.U, fit.V, R)
        assert float(left.abs().max()) < 1e-4
        assert float(right.abs().max()) < 1e-4

    def test_bad_input(self):
        with pytest.raises(ShapeMismatch):
            squared_residual(torch.eye(2), torch.ones(3), torch.ones(2))
        with pytest.raises(InvalidInput, match="dtypes"):
            squared_residual(torch.eye(2), torch.ones(2).double(), torch.ones(2))
        with pytest.raises(ShapeMismatch):
            factorization_gradients(torch.ones(2, 2), torch.ones(3, 2), torch.ones(2, 2))
        with pytest.raises(InvalidInput):
            factorize(torch.eye(2), 3)
