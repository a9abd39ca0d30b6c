"""Taylor polynomials and mean value theorems."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtheory.labs.engine import COLORS, Run, fit_slope, lab
from torchtheory.primer.differences import hessian_vector_product
from torchtheory.primer.mean_value import (
    mean_value_points,
    second_order_remainder,
    segment_gradients,
    segment_hessians,
)
from torchtheory.primer.taylor import derivative, taylor_polynomial

Scalar = Callable[[Tensor], Tensor]
#: Functions with their center, an interval, and a bound of the j-th derivative between a and x.
EXPANDED: list[tuple[Scalar, float, float, float, Callable[[Tensor, float, int], Tensor]]] = [
    (torch.exp, 0.5, -1.0, 2.0, lambda x, a, j: torch.exp(x.clamp_min(a))),
    (torch.sin, 1.0, -3.0, 5.0, lambda x, a, j: torch.ones_like(x)),
    (
        torch.log1p,
        0.0,
        -0.6,
        1.5,
        lambda x, a, j: math.factorial(j - 1) / (1 + x.clamp_max(a)) ** j,
    ),
]


@lab(
    "primer-taylor",
    room="primer",
    covers=["L-009", "L-010", "L-011", "L-012", "L-013", "L-036"],
    errata=[
        "taylor-drops-one-half",
        "third-derivative-bounded",
        "mean-value-from-taylor",
        "second-order-remainder-weight",
    ],
    title="Taylor polynomials with their remainder, and the mean value theorems",
    full={"width": 64, "inputs": 32, "pairs": 50},
)
def primer_taylor(run: Run, width: int = 12, inputs: int = 6, pairs: int = 8) -> None:
    """Local approximation by polynomials, and what a function's change says of its derivative.

    Remainders of exp, sin and log(1+x) stay below the bound with the largest next derivative, on
    both sides of the center, and vanish faster than the last term kept. Mean value points are
    found by bisection, for functions of one variable and along segments through a random network;
    the integral forms are computed by Gauss quadrature. The integral remainder of second order is
    printed with the wrong weight in the source, and the errata run its counterexample.

    Args:
        width: of the network.
        inputs: dimension of its input.
        pairs: of points for the mean value theorems.
    """
    taylor(run)
    mean_values(run)
    net = random_network(run, inputs, width)
    segments = [(run.randn(inputs), run.randn(inputs)) for _ in range(pairs)]
    along_segments(run, net, segments)
    second_order(run, net, segments)
    model_at_a_minimum(run, inputs)
    run.figure(
        "taylor",
        plot,
        caption="Left: Taylor polynomials of log(1+x) at 0 leave the function beyond |x| = 1, "
        "whatever their degree. Right: the chord of a function and its parallel tangents.",
        grid=(1, 2),
    )


def taylor(run: Run) -> None:
    bounds, remainders, vanishing = [], [], []
    for f, a, low, high, largest in EXPANDED:
        x = torch.linspace(low, high, 61, dtype=torch.float64)
        longest = taylor_polynomial(f, a, 7)
        for k in range(1, 7):
            polynomial = longest.truncate(k)
            bounds.append(polynomial.remainder_bound(x, largest(x, a, k + 1)))
            remainders.append(polynomial.remainder(x).abs())
            near = a + torch.tensor([-1e-3, 1e-3], dtype=torch.float64)
            if k <= 3:
                vanishing.append(float(polynomial.relative_remainder(near).abs().max()))
    says = run.states(
        "L-009", r"|f(x)-P_k(x)|\le M|x-a|^{k+1}/(k+1)!,\ M=\max|f^{(k+1)}| \text{ between } a \text{ and } x"
    )
    says.at_most(
        torch.cat(remainders),
        torch.cat(bounds),
        1e-14,
        where="exp, sin and log(1+x), degrees 1 to 6, on both sides of the center",
    )
    right = 0.5 + torch.linspace(0.1, 1, 10, dtype=torch.float64)
    exponential = [taylor_polynomial(torch.exp, 0.5, k) for k in range(1, 7)]
    says.fails(
        "M is the derivative at the center only (exp, to the right of it)",
        torch.cat([polynomial.remainder(right).abs() for polynomial in exponential]),
        promised=torch.cat([polynomial.remainder_bound(right, math.exp(0.5)) for polynomial in exponential]),
    )
    corner = taylor_polynomial(torch.abs, 0.0, 1)
    says = run.states("L-009", r"h_k(x)=(f(x)-P_k(x))/(x-a)^k\to0:\ |h_k| \text{ at distance } 10^{-3}")
    says.at_most(vanishing, 2e-3)
    says.fails("|x| at 0 is not differentiable", float(corner.relative_remainder(torch.tensor([1e-3]).double()).abs()))
    distances = [2.0**-i for i in range(2, 8)]
    rates = []
    longest_of_exp = taylor_polynomial(torch.exp, 0.5, 3)
    for k in (1, 2, 3):
        polynomial = longest_of_exp.truncate(k)
        x = 0.5 + torch.tensor(distances, dtype=torch.float64)
        rates.append(fit_slope(distances, polynomial.relative_remainder(x).abs()))
    rough = taylor_polynomial(lambda x: x.abs() ** 2.5, 0.0, 2)
    x = torch.tensor(distances, dtype=torch.float64)
    half = fit_slope(distances, rough.relative_remainder(x).abs())
    for k, rate in enumerate(rates, start=1):
        says = run.states("L-009", rf"f^{{({k + 1})}} \text{{ bounded: }} h_{k}(x)=O(|x-a|) \text{{ (exponent, exp)}}")
        says.slope(rate, 1.0, 0.05, against=[0.0, 0.5, 2.0])
        says.fails("$|x|^{5/2}$ at 0, k = 2: the third derivative is unbounded", half)
    one = torch.tensor(1.0, dtype=torch.float64)
    square = taylor_polynomial(torch.square, 0.0, 2)
    printed = square.coefficients[0] + square.coefficients[1] + 2 * square.coefficients[2]
    run.refutes(
        "taylor-drops-one-half", r"f(x)=f(a)+f'(a)(x-a)+f''(a)(x-a)^2+\iiint f''' \text{ for } f=x^2,\ a=0,\ x=1"
    ).equal(printed, float(torch.square(one)), where="the triple integral is 0")
    scales = [10.0**-i for i in range(1, 7)]
    third = derivative(lambda x: x.abs() ** 2.5, torch.tensor(scales, dtype=torch.float64), 3)
    growth = fit_slope(scales, third.abs())
    run.refutes(
        "third-derivative-bounded",
        r"f'' \text{ continuous, so } f''' \text{ bounded: exponent of } |f'''(x)| \text{ as } x\to0,\ f=|x|^{5/2}",
    ).at_least(growth, 0.0, where="a negative exponent is growth without bound")


def mean_values(run: Run) -> None:
    cube = mean_value_points(lambda x: x**3, 0.0, 1.0)
    says = run.states("L-010", r"f(x)=x^3 \text{ on } [0,1]:\ f'(c)=1 \text{ at } c=1/\sqrt3")
    says.equal(cube, 1 / math.sqrt(3), 1e-12)
    says.fails("the midpoint", 0.5)
    intervals: list[tuple[Scalar, float, float]] = [
        (torch.exp, -1.0, 2.0),
        (torch.sin, 0.0, 11.0),
        (lambda x: x**5 - 3 * x**2, -1.5, 1.7),
        (torch.sqrt, 0.0, 4.0),
    ]
    residuals = []
    counts = []
    for f, a, b in intervals:
        points = mean_value_points(f, a, b)
        ends = f(torch.tensor([a, b], dtype=torch.float64))
        slope = (ends[1] - ends[0]) / (b - a)
        residuals.append((derivative(f, points) - slope).abs().min())
        counts.append(points.numel())
    grid = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    away = derivative(torch.abs, grid[grid != 0]).abs().min()
    says = run.states(
        "L-010", r"\exists c\in(a,b):\ f'(c)=\frac{f(b)-f(a)}{b-a} \text{ (least difference of both sides)}"
    )
    says.equal(
        torch.stack(residuals),
        within=1e-9,
        where="exp, sin, a polynomial, and √x, which is not differentiable at an end",
    )
    says.fails("|x| on [−1, 1] is not differentiable at 0", away)
    says = run.states("L-010", r"\text{the number of such points is at least 1}")
    says.at_least(counts, 1)
    says.fails("|x| on [−1, 1]", mean_value_points(torch.abs, -1.0, 1.0).numel())
    remainder = taylor_polynomial(torch.abs, -1.0, 1).relative_remainder(
        torch.tensor([-1.001, -0.999], dtype=torch.float64)
    )
    run.refutes(
        "mean-value-from-taylor",
        r"f \text{ differentiable at } a, \text{ so } \min_c|f'(c)-\tfrac{f(b)-f(a)}{b-a}|=0"
        r" \text{ for } |x| \text{ on } [-1,1]",
    ).equal(
        away,
        where=f"Theorem 2 with k = 1 does hold at a = −1: its remainder there is {float(remainder.abs().max()):.1g}",
    )


def along_segments(run: Run, net: Scalar, segments: list[tuple[Tensor, Tensor]]) -> None:
    point_residuals, integral_residuals, jumps, ratios = [], [], [], []
    for x, y in segments:

        def line(t: Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
            flat = t.reshape(-1, 1)
            return torch.func.vmap(net)(x + flat * y).reshape(t.shape)

        c = mean_value_points(line, 0.0, 1.0, grid=64)
        change = net(x + y) - net(x)
        slopes = torch.stack([torch.func.grad(net)(x + t * y) @ y for t in c])
        point_residuals.append((slopes - change).abs().min())
        integral_residuals.append((segment_gradients(net, x, y) - change).abs())

        def jumping(v: Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
            return net(v) + ((v - x) @ y > 0.3 * (y @ y)).to(v)

        jumps.append((segment_gradients(jumping, x, y) - jumping(x + y) + jumping(x)).abs())
        ratios.append(len(c))
    turn = torch.linspace(0, 2 * math.pi, 1001, dtype=torch.float64)
    velocity = torch.stack([-turn.sin(), turn.cos()], dim=1).norm(dim=1)
    says = run.states("L-011", r"\exists c\in(0,1):\ f(x+y)-f(x)=\nabla f(x+cy)^\top y \text{ (random networks)}")
    says.equal(torch.stack(point_residuals), within=1e-9)
    says.fails("f is a circle in the plane, not a number: f(2π) = f(0), and |f'| = 1", velocity.min())
    says = run.states("L-011", r"f(x+y)-f(x)=\int_0^1\nabla f(x+ty)^\top y\,dt")
    says.equal(torch.stack(integral_residuals), within=1e-9)
    says.fails("f has a jump on the way", torch.stack(jumps))


def second_order(run: Run, net: Scalar, segments: list[tuple[Tensor, Tensor]]) -> None:
    gradient = torch.func.grad(net)
    correct, printed, slopes, frozen = [], [], [], []
    for x, y in segments:
        rest = net(x + y) - net(x) - gradient(x) @ y
        turn = segment_hessians(net, x, y)
        correct.append((second_order_remainder(net, x, y) - rest).abs())
        printed.append((0.5 * turn @ y - rest).abs())
        slopes.append((gradient(x) + turn - gradient(x + y)).abs().max())
        at_x = hessian_vector_product(net, x, y)
        frozen.append((gradient(x) + at_x - gradient(x + y)).abs().max())
    says = run.states("L-012", r"f(x+y)=f(x)+\nabla f(x)^\top y+\int_0^1(1-t)\,y^\top\nabla^2f(x+ty)\,y\,dt")
    says.equal(torch.stack(correct), within=1e-9)
    says.fails("the weight ½ of the source", torch.stack(printed))
    zero, one = torch.zeros(1).double(), torch.ones(1).double()

    def cube(v: Tensor) -> Tensor:
        return (v**3).sum()

    says = run.states("L-012", r"f(x)=x^3,\ x=0,\ y=1:\ \int_0^1(1-t)\,6t\,dt=1")
    says.equal(second_order_remainder(cube, zero, one), cube(one), 1e-12)
    says.fails("the weight ½", 0.5 * segment_hessians(cube, zero, one).sum())
    run.refutes(
        "second-order-remainder-weight",
        r"f(x+y)=f(x)+\nabla f(x)^\top y+\tfrac12\int_0^1y^\top\nabla^2f(x+ty)\,y\,dt \text{ for } f=x^3,\ x=0,\ y=1",
    ).equal(0.5 * segment_hessians(cube, zero, one).sum(), cube(one))
    says = run.states("L-013", r"\nabla f(x+y)=\nabla f(x)+\int_0^1\nabla^2f(x+ty)\,y\,dt")
    says.equal(torch.stack(slopes), within=1e-9)
    says.fails("the Hessian is frozen at x", torch.stack(frozen))


def model_at_a_minimum(run: Run, inputs: int) -> None:
    A = run.randn(inputs, inputs)

    def f(v: Tensor) -> Tensor:
        return (torch.cosh(A @ v) + torch.exp(A @ v) - A @ v).sum()

    # the minimum is where exp(z) + sinh(z) = 1; z = 0 solves it
    minimum = torch.zeros(inputs).double()
    direction = run.randn(inputs)
    direction = direction / direction.norm()
    radii = [10 ** (-1 - 0.25 * i) for i in range(9)]

    def errors(at: Tensor) -> list[float]:
        found = []
        for r in radii:
            step = r * direction
            curve = 0.5 * step @ hessian_vector_product(f, at, step)
            found.append(float((f(at + step) - f(at) - curve).abs()) / r**2)
        return found

    fitted = fit_slope(radii, errors(minimum))
    elsewhere = fit_slope(radii, errors(minimum + 0.3))
    says = run.states(
        "L-036",
        r"\nabla f(x^\star)=0:\ |f(x)-f(x^\star)-\tfrac12(x-x^\star)^\top H(x-x^\star)|"
        r"=o(\|x-x^\star\|^2) \text{ (exponent of the ratio } > 0)",
    )
    says.above(fitted, 0.0)
    says.fails("the point is no minimum: the gradient is missing from the model", elsewhere)
    says = run.states("L-036", r"f \in C^3: \text{ the ratio is } O(\|x-x^\star\|)")
    says.slope(fitted, 1.0, 0.05, against=[0.0, 2.0])
    says.fails("the point is no minimum", elsewhere)


def random_network(run: Run, inputs: int, width: int) -> Scalar:
    """A random tanh network with one output, as a function of one input vector."""
    W1, W2 = run.randn(width, inputs) / math.sqrt(inputs), run.randn(width, width)
    b, v = run.randn(width), run.randn(width)

    def net(x: Tensor) -> Tensor:
        return v @ torch.tanh(W2 @ torch.tanh(W1 @ x + b) / math.sqrt(width))

    return net


def plot(axes: Any) -> None:
    left, right = axes.ravel()
    x = torch.linspace(-0.95, 2.2, 400, dtype=torch.float64)
    longest = taylor_polynomial(torch.log1p, 0.0, 6)
    left.plot(x, torch.log1p(x), color=COLORS[6], lw=2.2, label="log(1+x)")
    for color, k in zip(COLORS, (1, 2, 3, 6), strict=False):
        polynomial = longest.truncate(k)
        left.plot(x, polynomial(x), color=color, lw=1.2, label=f"degree {k}")
    left.axvspan(1, 2.2, color="0.5", alpha=0.12, lw=0)
    left.set(ylim=(-3.2, 2.4), xlabel="x", title="log(1+x) around 0")
    left.legend(loc="upper left")

    def f(t: Tensor) -> Tensor:
        return torch.sin(2 * t) + t / 2

    a, b = 0.2, 4.6
    t = torch.linspace(-0.1, 4.9, 400, dtype=torch.float64)
    ends = torch.tensor([a, b], dtype=torch.float64)
    slope = float((f(ends)[1] - f(ends)[0]) / (b - a))
    right.plot(t, f(t), color=COLORS[0], label="f")
    right.plot(ends, f(ends), "o-", color=COLORS[1], label="chord")
    for i, c in enumerate(mean_value_points(f, a, b)):
        reach = torch.tensor([-0.55, 0.55], dtype=torch.float64)
        label = "parallel tangents" if i == 0 else None
        right.plot(c + reach, f(c) + slope * reach, color=COLORS[2], lw=2.4, label=label)
        right.plot(c, f(c), "o", color=COLORS[2], ms=4)
    right.set(xlabel="x", title="f'(c) is the slope of the chord")
    right.legend(loc="upper left")
