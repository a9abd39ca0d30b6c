"""Convolution of functions and other integral operators, with the errors of their grids."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtheory.convolution.integral_operators import (
    convolve_functions,
    fourier_transform_at,
    integrate_against,
    midpoints,
)
from torchtheory.labs.engine import Run, lab

Function = Callable[[Tensor], Tensor]

#: What rounding may change in sums of some hundred terms of size 1.
ROUNDING = 1e-12


def box(t: Tensor) -> Tensor:
    """1 on an interval of length 1 around 0."""
    return (t.abs() <= 0.5).double()


def bell(t: Tensor) -> Tensor:
    """The function that is its own Fourier transform."""
    return torch.exp(-math.pi * t.square())


def normal(variance: float) -> Function:
    """The density of a normal law around 0."""
    return lambda t: torch.exp(-t.square() / (2 * variance)) / math.sqrt(2 * math.pi * variance)


def laplace(variance: float) -> Function:
    """The density of a Laplace law around 0."""
    scale = math.sqrt(variance / 2)
    return lambda t: torch.exp(-t.abs() / scale) / (2 * scale)


def one(u: Tensor, t: Tensor) -> Tensor:
    """The kernel of the plain integral."""
    return torch.ones_like(u * t)


def some_bells(run: Run, count: int = 3) -> Function:
    """A random sum of bells, smooth, asymmetric, and 0 to rounding outside of (-6, 6)."""
    heights, places = run.randn(count), 2 * run.rand(count) - 1
    return lambda t: torch.stack([a * bell(t - p) for a, p in zip(heights, places, strict=True)]).sum(0)


@lab(
    "continuous-convolution",
    room="convolution",
    covers=["N-53", "N-54", "N-55", "M-70", "M-71"],
    title="Integral operators on grids: how wrong they are at most, and what convolution does",
    full={"panels": (40, 80, 160, 320, 640, 1280, 2560), "cases": 200},
    least={"panels": 10},
    items={"panels": 3},
)
def continuous_convolution(run: Run, panels: tuple[int, ...] = (20, 40, 80, 160, 320), cases: int = 40) -> None:
    r"""Integral operators are computed as midpoint sums, and the bounds on their errors are met.

    Jumps, kinks and waves are put where the sums are worst, and the errors come within a factor of
    the bounds that is 1 for jumps and kinks. Then the two operators of the sources: the Fourier
    transform, whose convention decides whether $e^{-\pi t^2}$ is its own transform, and the
    convolution, which is linear, commutative and shift-equivariant, and makes a triangle of boxes.

    Args:
        panels: numbers of panels of the grids.
        cases: random functions.
    """
    start = torch.zeros(1, dtype=torch.float64)

    def error_of(f: Function, exact: float, count: int, roughness: tuple[int, float]) -> tuple[float, float]:
        made = integrate_against(one, f, start, 0.0, 1.0, panels=count, roughness=roughness)
        return abs(float(made.values[0]) - exact), float(made.error[0])

    def worst_jump(count: int, height: float) -> tuple[float, float]:
        place = (count // 2 + 0.5) / count  # at a node: it sees the jump, half a panel too early
        return error_of(lambda t: height * (t <= place + 1e-9).double(), height * place, count, (1, 1.0))

    says = run.states(
        ("N-53", "M-70"),
        r"\Bigl|\int g-\tau\sum_jg(t_j)\Bigr|\le\frac\tau2\operatorname{Var}(g)\text{ at midpoints }t_j",
    )
    found = [worst_jump(n, 1.0) for n in panels]
    says.at_most([e for e, _ in found], [b for _, b in found], 1e-8, where="a jump at a node")
    says.fails("a variation of 1.2 where 1 was said", [worst_jump(n, 1.2)[0] for n in panels])

    def worst_kink(count: int, slope: float) -> tuple[float, float]:
        # an odd number of panels has a node at 1/2
        odd = count + 1
        return error_of(lambda t: slope * (t - 0.5).abs(), slope / 4, odd, (2, 2.0))

    says = run.states(("N-53", "M-70"), r"\Bigl|\int g-\tau\sum_jg(t_j)\Bigr|\le\frac{\tau^2}8\int|g''|")
    found = [worst_kink(n, 1.0) for n in panels]
    says.at_most([e for e, _ in found], [b for _, b in found], 1e-12, where="a kink at a node")
    says.fails("a kink of 2.4 where 2 was said", [worst_kink(n, 1.2)[0] for n in panels])

    def wave(count: int, order: int, turns: int) -> tuple[float, float]:
        size = (2 * math.pi * count) ** order * 2 / math.pi  # of the wave with one turn per panel
        return error_of(lambda t: torch.cos(2 * math.pi * turns * t), 0.0, count, (order, size))

    orders = (3, 4, 6)
    says = run.states(
        ("N-53", "M-70"),
        r"\Bigl|\int g-\tau\sum_jg(t_j)\Bigr|\le2\zeta(p)\Bigl(\frac\tau{2\pi}\Bigr)^p\int|g^{(p)}|,\ "
        r"g^{(k)}(a)=g^{(k)}(b)\text{ for }k<p",
    )
    found = [wave(n, p, n) for n in panels for p in orders]
    says.at_most(
        [e for e, _ in found], [b for _, b in found], 1e-9, where="a wave of one turn per panel, p = 3, 4 and 6"
    )
    open_ended = [error_of(lambda t: t.exp(), math.e - 1, n, (p, math.e - 1)) for n in panels[:3] for p in orders]
    says.fails(
        "the exponential function, which has not the same derivatives at the two ends",
        [e for e, _ in open_ended],
        promised=[b for _, b in open_ended],
    )

    finer = [round(panels[0] * 2 ** (k / 2)) for k in range(2 * len(panels) + 3)]

    def errors_at(f: Function, exact: float) -> list[float]:
        slope = torch.tensor([0.7], dtype=torch.float64)
        made = [integrate_against(lambda u, t: (u * t).exp(), f, slope, 0.0, 2.0, panels=n) for n in finer]
        return [abs(float(m.values[0]) - exact) for m in made]

    smooth = (math.exp(1.4) * (0.7 * math.cos(2) + math.sin(2)) - 0.7) / 1.49
    # the substitution t = s^2 makes the integral of the root a smooth one
    root = integrate_against(
        lambda u, s: 2 * s.square() * (u * s.square()).exp(), torch.ones_like, torch.tensor([0.7]), 0.0, math.sqrt(2),
        panels=100_000,
    )  # fmt: skip
    says = run.states("N-53", r"(Tf)(u)=\int e^{ut}f(t)\,dt:\ \text{the error of }N\text{ panels is}\sim N^{-2}")
    says.slope(finer, errors_at(torch.cos, smooth), -2.0, 0.01, against=(-1.5, -3.0), where="f the cosine")
    says.fails("f the root, whose derivative is not bounded", finer, errors_at(torch.sqrt, float(root.values[0])))

    fourier(run, cases)
    convolution_of_functions(run, cases)


def fourier(run: Run, cases: int) -> None:
    u = torch.linspace(-2, 2, 33, dtype=torch.float64)

    def gap(convention: Any) -> Tensor:
        made = fourier_transform_at(bell, u, -6.0, 6.0, convention=convention, panels=240)
        return (made.values - bell(u)).abs().max()

    says = run.states(
        ("N-54", "M-70"), r"\mathcal F e^{-\pi t^2}=e^{-\pi u^2},\quad (\mathcal Ff)(u)=\int e^{-2\pi itu}f(t)\,dt"
    )
    says.equal(gap("ordinary"), 0.0, ROUNDING)
    says.fails("no 2π in the exponent", gap("angular"))

    functions = [some_bells(run) for _ in range(max(2, cases // 10))]
    nodes, _ = midpoints(-7.0, 7.0, 280)

    def energies(convention: Any) -> list[float]:
        made = [fourier_transform_at(f, nodes, -7.0, 7.0, convention=convention, panels=280) for f in functions]
        return [
            float(m.values.abs().square().sum() / f(nodes).square().sum()) for m, f in zip(made, functions, strict=True)
        ]

    says = run.states("N-54", r"\|\mathcal Ff\|_2=\|f\|_2")
    says.equal(energies("ordinary"), 1.0, 1e-10, where="random sums of bells, ratio of the squares")
    says.fails("no 2π in the exponent, and no factor", energies("angular"))

    at = torch.tensor([0.0, 0.25, 0.5, 1.5, 2.5], dtype=torch.float64)

    def sampled(f: Function, exact: Tensor) -> tuple[Tensor, Tensor]:
        """On nodes at the multiples of 1/15, with what is promised for the triangle."""
        made = fourier_transform_at(f, at, -1.1, 1.1, convention="ordinary", panels=33, roughness=(2, 4.0))
        return (made.values - exact).abs(), made.error

    says = run.states(
        "N-54",
        r"\Bigl|\hat f(u)-\tau\sum_jf(t_j)e^{-2\pi it_ju}\Bigr|\le\Bigl(\frac\tau{2\pi}\Bigr)^p"
        r"\bigl(\zeta(p,1+u\tau)+\zeta(p,1-u\tau)\bigr)\int|f^{(p)}|",
    )
    gaps, bounds = sampled(lambda t: (1 - t.abs()).clamp(min=0), torch.sinc(at) ** 2)
    says.at_most(gaps, bounds, 1e-12, where="the triangle, p = 2, at u = 0, 1/4, 1/2, 3/2, 5/2")
    jumps, _ = sampled(lambda t: box(t * 15 / 14 - 1e-9), 14 / 15 * torch.sinc(at * 14 / 15))
    says.fails("a box, which jumps: its second derivative has no finite integral", jumps)


def convolution_of_functions(run: Run, cases: int) -> None:
    u = torch.linspace(-1.5, 1.5, 121, dtype=torch.float64)
    triangle = (1 - u.abs()).clamp(min=0)
    made = convolve_functions(box, box, u, -1.0, 1.0, panels=62, roughness=(1, 2.0))
    says = run.states(("M-71", "N-55"), r"\text{box}*\text{box}=\text{triangle}")
    says.at_most(
        (made.values - triangle).abs().max(), made.error.max(), 1e-12, where="62 panels: their whole error is a panel"
    )
    wide = convolve_functions(box, lambda t: box(t / 1.5), u, -1.0, 1.0, panels=62, roughness=(1, 2.0))
    says.fails("boxes of different lengths, which make a trapezoid", (wide.values - triangle).abs().max())

    v = torch.linspace(-3, 3, 25, dtype=torch.float64)

    def excess(law: Callable[[float], Function]) -> Tensor:
        sum_of_two = convolve_functions(law(0.3), law(0.5), v, -12.0, 12.0, panels=2400)
        return (sum_of_two.values - law(0.8)(v)).abs().max()

    says = run.states(("N-55", "M-71"), r"N(0,a)*N(0,b)=N(0,a+b)")
    says.equal(excess(normal), 0.0, ROUNDING)
    says.fails("Laplace's law instead of the normal one", excess(laplace))

    pairs = [(some_bells(run), some_bells(run)) for _ in range(max(2, cases // 10))]

    def both_orders(half: float) -> Tensor:
        sides = [
            [convolve_functions(a, b, v, -half, half, panels=300).values for a, b in ((f, h), (h, f))] for f, h in pairs
        ]
        return torch.stack([(x - y).abs().max() for x, y in sides])

    says = run.states(("N-55", "M-71"), r"f*h=h*f")
    says.equal(both_orders(9.0), 0.0, ROUNDING)
    says.fails("the integral over (-0.5, 0.5) only, not over the line", both_orders(0.5))

    delta = 0.7

    def moved(f: Function) -> Function:
        return lambda t: f(t + delta)

    def shift_gap(bent: float) -> Tensor:
        gaps = []
        for f, h in pairs:

            def kernel(x: Tensor, t: Tensor, h: Function = h) -> Tensor:
                return h(x - t) * (1 + bent * t)

            left = integrate_against(kernel, moved(f), v, -9.0, 9.0, panels=300).values
            right = integrate_against(kernel, f, v + delta, -9.0, 9.0, panels=300).values
            gaps.append((left - right).abs().max())
        return torch.stack(gaps)

    says = run.states(("M-71", "N-53"), r"f_{\delta}*h=(f*h)_{\delta},\quad f_{\delta}(t)=f(t+\delta)")
    says.equal(shift_gap(0.0), 0.0, ROUNDING)
    says.fails("a kernel H(u,t) that is no function of u - t", shift_gap(0.3))

    def image(f: Function, h: Function, before: Function) -> Tensor:
        return convolve_functions(lambda t: before(f(t)), h, v, -9.0, 9.0, panels=300).values

    def difference(f: Function) -> Function:
        return lambda t: f(t) - 2 * bell(t)

    def sum_gap(before: Function) -> Tensor:
        gaps = [image(difference(f), h, before) - image(f, h, before) + 2 * image(bell, h, before) for f, h in pairs]
        return torch.stack([g.abs().max() for g in gaps])

    says = run.states(("M-71", "N-53"), r"T(f-2g)=Tf-2\,Tg,\quad Tf=f*h")
    says.equal(sum_gap(lambda x: x), 0.0, ROUNDING)
    says.fails("a rectifier before it", sum_gap(torch.relu))

    def picture(axes: Any) -> None:
        x = torch.linspace(-1.8, 1.8, 721, dtype=torch.float64)
        places = (-0.75, 0.0, 0.4)
        for ax, at in zip(axes[0], places, strict=True):
            sliding, still = box(at - x), box(x)
            ax.plot(x, still, label="$f(t)$")
            ax.plot(x, sliding, label="$h(u-t)$")
            ax.fill_between(x, still * sliding, alpha=0.3, color="C2", label="$f(t)\\,h(u-t)$")
            ax.set(title=f"$u={at:g}$: area {1 - abs(at):.2f}", xlabel="$t$", ylim=(-0.05, 1.35))
        axes[0][0].legend(loc="upper left", ncols=2)
        ax = axes[1][0]
        ax.plot(u, made.values, "o", ms=2.5, label="62 panels")
        ax.plot(u, triangle, color="0.25", ls="--", label="triangle")
        ax.fill_between(
            u, triangle - made.error, triangle + made.error, color="C0", alpha=0.15, label="bound of the error"
        )
        ax.plot(places, [1 - abs(p) for p in places], "o", color="C1", ms=5, label="the three above")
        ax.set(title="box * box", xlabel="$u$", ylim=(-0.08, 1.5))
        ax.legend(ncols=2, loc="upper center")
        ax = axes[1][1]
        fine = torch.linspace(0, 1.2, 481, dtype=torch.float64)
        for n in (6, 14, 30):  # with nodes at the ends of the box
            m = convolve_functions(box, box, fine, -1.0, 1.0, panels=n)
            ax.plot(fine, (m.values - (1 - fine).clamp(min=0)).abs() / (2 / n), lw=1, label=f"{n} panels")
        ax.axhline(1, color="0.25", ls="--")
        ax.set(title="error in panels: at most 1", xlabel="$u$", ylim=(-0.05, 1.5))
        ax.legend(ncols=3, loc="upper center")
        ax = axes[1][2]
        wide_range = torch.linspace(-3, 3, 241, dtype=torch.float64)
        for variance in (0.3, 0.5, 0.8):
            ax.plot(wide_range, normal(variance)(wide_range), label=f"N(0, {variance:g})")
        two = convolve_functions(normal(0.3), normal(0.5), v, -8.0, 8.0, panels=300)
        ax.plot(v, two.values, "ko", ms=3, label="the first two convolved")
        ax.set(title="variances add", xlabel="$u$", ylim=(-0.03, 1.1))
        ax.legend(loc="upper right")

    run.figure(
        "box-times-box",
        picture,
        grid=(2, 3),
        size=(10.5, 6.0),
        caption="One function slides over the other, turned round; the area of the product is their convolution. "
        "Two boxes make a triangle, as exactly as the grid allows, and two bells a wider bell.",
    )
