"""Integrals on grids: what is called a bound is one, and comes near its case."""

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchtheory.convolution.integral_operators import (
    CONVENTIONS,
    Convention,
    convolve_functions,
    fourier_transform_at,
    integral_operator,
    integrate_against,
    midpoint_error_bound,
    midpoints,
)
from torchtheory.core.errors import TorchTheoryError
from torchtheory.primer.function_spaces import fourier_transform

ROUNDING = 1e-12
U = torch.linspace(-1.5, 1.5, 13, dtype=torch.float64)


def box(t: Tensor) -> Tensor:
    return (t.abs() <= 0.5).double()


def bell(t: Tensor) -> Tensor:
    return torch.exp(-math.pi * t.square())


def one(u: Tensor, t: Tensor) -> Tensor:
    return torch.ones_like(u * t)


@settings(deadline=None)
@given(st.integers(2, 60), st.floats(0, 1), st.floats(0.1, 10))
def test_a_jump_anywhere_is_within_the_bound(panels: int, place: float, height: float) -> None:
    made = integrate_against(
        one, lambda t: height * (t > place).double(), U[:1], 0.0, 1.0, panels=panels,
        roughness=(1, height),
    )  # fmt: skip
    assert made.is_bound
    assert made.basis == "bound"
    assert abs(float(made.values[0]) - height * (1 - place)) <= float(made.error[0]) + ROUNDING


@settings(deadline=None)
@given(st.integers(2, 60), st.floats(0, 1))
def test_a_kink_anywhere_is_within_the_bound(panels: int, place: float) -> None:
    made = integrate_against(
        one, lambda t: (t - place).abs(), U[:1], 0.0, 1.0, panels=panels, roughness=(2, 2.0)
    )
    exact = (place**2 + (1 - place) ** 2) / 2
    assert abs(float(made.values[0]) - exact) <= float(made.error[0]) + ROUNDING


def test_the_bounds_are_attained() -> None:
    # a jump just behind a node, a kink at a node, a wave that meets every node at its top
    jump = integrate_against(
        one, lambda t: (t <= 0.45).double(), U[:1], 0.0, 1.0, panels=10, roughness=(1, 1.0)
    )
    assert abs(float(jump.values[0]) - 0.45) == pytest.approx(float(jump.error[0]))
    one_panel = integrate_against(
        one, lambda t: (t - 0.5).abs(), U[:1], 0.0, 1.0, panels=3, roughness=(2, 2.0)
    )
    assert abs(float(one_panel.values[0]) - 0.25) == pytest.approx(float(one_panel.error[0]))
    for p in (3, 4, 6, 9):
        # the wave with one turn per panel: every node sees the same number
        size = (2 * math.pi * 5) ** p * 2 / math.pi
        wave = integrate_against(
            one, lambda t: torch.cos(10 * math.pi * t), U[:1], 0.0, 1.0, panels=5,
            roughness=(p, size),
        )  # fmt: skip
        error = abs(float(wave.values[0]))
        assert error == pytest.approx(1.0)
        assert error <= float(wave.error[0]) < 1.6 * error


@pytest.mark.parametrize("u", [0.3, 2.0, -1.0])
def test_smooth_kernels_are_integrated_at_order_two(u: float) -> None:
    def run(panels: int) -> float:
        made = integrate_against(
            lambda v, t: torch.exp(v * t), torch.cos, torch.tensor([u]).double(), 0.0, 2.0,
            panels=panels,
        )  # fmt: skip
        exact = (math.exp(2 * u) * (u * math.cos(2) + math.sin(2)) - u) / (1 + u * u)
        error = abs(float(made.values[0]) - exact)
        assert not made.is_bound
        assert error <= float(made.error[0])
        return error

    assert run(50) / run(100) == pytest.approx(4, rel=0.01)


def test_the_operator_is_a_matrix_on_values() -> None:
    u = torch.linspace(0, 1, 5, dtype=torch.float64)
    matrix = integral_operator(lambda v, t: torch.exp(-v * t), u, 0.0, 2.0, 40)
    nodes, spacing = midpoints(0.0, 2.0, 40)
    assert spacing == pytest.approx(0.05)
    made = integrate_against(lambda v, t: torch.exp(-v * t), torch.sin, u, 0.0, 2.0, panels=40)
    assert torch.allclose(matrix @ torch.sin(nodes), made.values, atol=1e-14)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.2, 3), st.integers(10, 200), st.integers(1, 6))
def test_fourier_bounds_of_a_box_and_its_powers(width: float, panels: int, order: int) -> None:
    # the box convolved with itself has the transform sinc^p, and its p-th derivative is a sum of
    # 2^p jumps: of a B-spline of order p
    u = torch.linspace(-2, 2, 17, dtype=torch.float64)

    def spline(t: Tensor) -> Tensor:
        total = torch.zeros_like(t)
        for k in range(order + 1):
            sign = (-1) ** k * math.comb(order, k)
            x = (t / width + order / 2 - k).clamp(min=0)
            jump = (t / width + order / 2 - k >= 0).double()
            total = total + sign * (jump if order == 1 else x ** (order - 1))
        return total / math.factorial(order - 1)

    size = 2**order / width ** (order - 1)
    half = width * order / 2 + 0.1
    made = fourier_transform_at(
        spline, u, -half, half, convention="ordinary", panels=panels, roughness=(order, size)
    )
    exact = width * torch.sinc(width * u) ** order
    assert bool(((made.values - exact).abs() <= made.error + ROUNDING).all())


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_conventions_and_the_bell(convention: Convention) -> None:
    rate, factor = CONVENTIONS[convention]
    made = fourier_transform_at(
        bell, U, -3.0, 3.0, convention=convention, panels=60,
        roughness=(4, 120.0), tail=math.erfc(3 * math.sqrt(math.pi)),
    )  # fmt: skip
    exact = factor * bell(rate * U / (2 * math.pi))
    # the integral of the fourth derivative is 97.6, below what was said
    assert bool(((made.values - exact).abs() <= made.error + ROUNDING).all())
    assert float((made.values - exact).abs().max()) < 1e-11


def test_the_factors_of_the_conventions() -> None:
    """A box of length 1 has the integral 1, and what is in front of it is in front of the bound."""
    zero = torch.zeros(1, dtype=torch.float64)
    factors: dict[Convention, float] = {
        "ordinary": 1.0,
        "angular": 1.0,
        "unitary": 0.3989422804014327,
        "synthesis": 0.15915494309189535,
    }
    for convention, factor in factors.items():
        made = fourier_transform_at(
            box, zero, -1.0, 1.0, convention=convention, panels=8, roughness=(1, 2.0)
        )
        assert float(made.values.real) == pytest.approx(factor)
        assert float(made.error) == pytest.approx(0.25 * factor)
        smooth = fourier_transform_at(
            bell, zero, -1.0, 1.0, convention=convention, panels=8, roughness=(2, 8.0)
        )
        bound = 0.0625 / 12 * 8 + 0.25 * math.exp(-math.pi)
        assert float(smooth.error) == pytest.approx(bound * factor)


def test_kernels_of_true_and_false_are_exact() -> None:
    made = integral_operator(lambda u, t: t < u, torch.ones(1), 0.0, 1.0, 10)
    assert made.dtype == torch.float64
    assert float(made.sum()) == pytest.approx(1.0, rel=1e-14)


def test_the_bell_is_its_own_transform_only_with_two_pi() -> None:
    def gap(convention: Convention) -> float:
        made = fourier_transform_at(bell, U, -6.0, 6.0, convention=convention, panels=400)
        return float((made.values - bell(U)).abs().max())

    assert gap("ordinary") < 1e-14
    assert gap("angular") > 0.1
    assert gap("unitary") > 0.1


def test_the_fast_transform_is_the_same_sum() -> None:
    nodes, spacing = midpoints(-4.0, 4.0, 128)
    xi, fast = fourier_transform(bell(nodes - 1), float(nodes[0]), spacing)
    made = fourier_transform_at(
        lambda t: bell(t - 1), xi, -4.0, 4.0, convention="ordinary", panels=128
    )
    assert torch.allclose(made.values, fast, atol=1e-13)


def test_what_lies_outside_is_in_the_bound() -> None:
    # a bell cut off where it is still large
    half = 0.7
    tail = math.erfc(half * math.sqrt(math.pi))
    made = fourier_transform_at(
        bell, U, -half, half, convention="ordinary", panels=20, roughness=(2, 8.0), tail=tail
    )
    gap = (made.values - bell(U)).abs()
    assert bool((gap <= made.error).all())
    assert float(gap.max()) > float(made.error.min()) / 3


def test_the_bounds_are_the_formulas() -> None:
    u = torch.tensor([0.0, 0.3, -2.0], dtype=torch.float64)
    half, panels, tail = 0.8, 16, 0.05
    step = 2 * half / panels
    smooth = fourier_transform_at(
        bell, u, -half, half, convention="ordinary", panels=panels, roughness=(2, 8.0), tail=tail
    )
    ends = 2 * math.exp(-math.pi * half**2)
    inner = midpoint_error_bound(step, (2, 8.0), turns=u * step)
    assert torch.allclose(smooth.error, inner + tail + ends * step / 2, rtol=1e-12)
    rough = fourier_transform_at(
        box, u, -half, half, convention="angular", panels=panels, roughness=(1, 2.0), tail=tail
    )
    mass = 1.0 + step  # ten nodes inside the box, and the error of that sum
    assert torch.allclose(rough.error, (2 + u.abs() * mass) * step / 2 + tail, rtol=1e-12)
    plane = convolve_functions(
        lambda x: x[:, 0], lambda x: x[:, 1], torch.zeros(1, 2), (0.0, 0.0), (1.0, 3.0), panels=10,
        roughness=(2.0, 5.0),
    )  # fmt: skip
    assert float(plane.error) == pytest.approx(3 / 24 * (0.01 * 2 + 0.09 * 5))


def test_beyond_one_turn_a_panel_there_is_no_bound() -> None:
    u = torch.tensor([0.0, 9.9, 10.1], dtype=torch.float64)
    made = fourier_transform_at(
        bell, u, -5.0, 5.0, convention="ordinary", panels=100, roughness=(4, 120.0)
    )
    assert made.error[0] < made.error[1] < math.inf
    assert made.error[2] == math.inf
    bound = midpoint_error_bound(0.1, (2, 1.0), turns=torch.zeros(1))
    assert float(bound) == pytest.approx(0.01 / 12)


def test_boxes_and_bells_convolve() -> None:
    triangle = convolve_functions(box, box, U, -0.5, 0.5, panels=100, roughness=(1, 2.0))
    exact = (1 - U.abs()).clamp(min=0)
    assert bool(((triangle.values - exact).abs() <= triangle.error + ROUNDING).all())

    def normal(t: Tensor, variance: float) -> Tensor:
        return torch.exp(-t.square() / (2 * variance)) / math.sqrt(2 * math.pi * variance)

    made = convolve_functions(
        lambda t: normal(t, 0.3), lambda t: normal(t, 0.5), U, -8.0, 8.0, panels=300
    )
    assert float((made.values - normal(U, 0.8)).abs().max()) < 1e-13
    back = convolve_functions(
        lambda t: normal(t, 0.5), lambda t: normal(t, 0.3), U, -8.0, 8.0, panels=300
    )
    assert torch.allclose(made.values, back.values, atol=1e-13)


def test_the_plane() -> None:
    def hill(x: Tensor) -> Tensor:
        return torch.exp(-x.square().sum(-1))

    u = torch.tensor([[0.0, 0.0], [0.5, -1.0], [1.0, 2.0]], dtype=torch.float64)
    exact = math.pi / 2 * torch.exp(-u.square().sum(-1) / 2)
    coarse = convolve_functions(hill, hill, u, (-6.0, -6.0), (6.0, 6.0), panels=12)
    assert float((coarse.values - exact).abs().max()) < float(coarse.error.max())
    # |second derivative| of exp(-t^2 - (u-t)^2) is at most 4, that at its top where u = 0
    bounded = convolve_functions(
        hill, hill, u, (-6.0, -6.0), (6.0, 6.0), panels=200, roughness=(4.0, 4.0)
    )
    assert bounded.is_bound
    assert bool(((bounded.values - exact).abs() <= bounded.error).all())
    # a wave that meets every node at its top is as wrong as such a function can be, but for pi^2/6
    wave = convolve_functions(
        lambda x: torch.cos(10 * math.pi * x[:, 0]), lambda x: torch.ones(len(x)).double(), u,
        (0.0, 0.0), (1.0, 1.0), panels=5, roughness=((10 * math.pi) ** 2, 0.0),
    )  # fmt: skip
    gap = float(wave.values.abs().max())
    assert gap == pytest.approx(1)
    assert gap <= float(wave.error[0]) < 2 * gap


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: midpoints(1.0, 1.0, 3), "from low to high"),
        (lambda: midpoints(0.0, math.inf, 3), "high must be a finite number"),
        (lambda: midpoints(0.0, 1.0, 0), "panels must be"),
        (lambda: integrate_against(one, bell, U[None], 0.0, 1.0), "u must be real places"),
        (lambda: integrate_against(one, 3, U, 0.0, 1.0), "f must be a function"),  # type: ignore[arg-type]
        (lambda: integrate_against(one, lambda t: t[:2], U, 0.0, 1.0), "one number per point"),
        (lambda: integrate_against(one, lambda t: t / 0, U, 0.0, 1.0), "must be finite"),
        (lambda: integrate_against(lambda u, t: u[:3] * t, bell, U, 0.0, 1.0), "the kernel gives"),
        (
            lambda: integrate_against(one, bell, U, 0.0, 1.0, roughness=(0, 1.0)),
            "the order of the roughness",
        ),
        (
            lambda: integrate_against(one, bell, U, 0.0, 1.0, roughness=3),  # type: ignore[arg-type]
            "roughness is a pair",
        ),
        (lambda: fourier_transform_at(bell, U, -1.0, 1.0, convention="2pi"), "no convention"),  # type: ignore[arg-type]
        (
            lambda: fourier_transform_at(bell, U, -1.0, 1.0, convention="angular", tail=-1.0),
            "tail must be",
        ),
        (lambda: midpoint_error_bound(0.1, (1, 1.0), turns=U), "Poisson"),
        (lambda: convolve_functions(bell, bell, U, (0.0, 0.0), (1.0, 1.0)), "points [k, 2]"),
        (lambda: convolve_functions(bell, bell, U, (0.0, 0.0), 1.0), "two pairs"),
        (
            lambda: convolve_functions(
                bell, bell, U[:0, None].expand(0, 2), (0.0, 0.0), (1.0, 1.0)
            ),
            "at least one",
        ),
        (
            lambda: convolve_functions(
                lambda x: x[:, 0],
                lambda x: x[:, 1],
                torch.zeros(1, 2),
                (0.0, 0.0),
                (1.0, 1.0),
                panels=2,
                roughness=3.0,  # type: ignore[arg-type]
            ),
            "two numbers",
        ),
        (lambda: midpoint_error_bound(0.1, (2, 1.0), turns=[0.5]), "turns must be"),  # type: ignore[arg-type]
    ],
)
def test_bad_input_is_refused(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TorchTheoryError, match=re.escape(message)):
        call()
