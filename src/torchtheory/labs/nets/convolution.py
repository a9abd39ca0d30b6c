"""Convolution of functions, of finite signals and on finite groups, with the errors of the grids."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.labs.engine import Run, lab
from torchtheory.nets.convolutional.discrete import (
    binomial_kernel,
    convolve,
    cross_correlate,
    flip,
    index_range,
)
from torchtheory.nets.convolutional.groups import (
    FiniteGroup,
    cyclic_group,
    dihedral_group,
    finite_group,
    group_characters,
    group_convolve,
    group_cross_correlate,
    product_group,
    symmetric_group,
    translate,
)
from torchtheory.nets.convolutional.integral_operators import (
    convolve_functions,
    fourier_transform_at,
    integrate_against,
    midpoints,
)
from torchtheory.nets.convolutional.layer_matrices import Extent, toeplitz_matrix

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
    room="nets",
    covers=["N-53", "N-54", "N-55", "M-70", "M-71"],
    title="Integral operators on grids: how wrong they are at most, and what convolution does",
    full={"panels": (40, 80, 160, 320, 640, 1280, 2560), "cases": 200},
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

    def errors_at(f: Function, exact: float) -> list[float]:
        slope = torch.tensor([0.7], dtype=torch.float64)
        made = [integrate_against(lambda u, t: (u * t).exp(), f, slope, 0.0, 2.0, panels=n) for n in panels]
        return [abs(float(m.values[0]) - exact) for m in made]

    smooth = (math.exp(1.4) * (0.7 * math.cos(2) + math.sin(2)) - 0.7) / 1.49
    # the substitution t = s^2 makes the integral of the root a smooth one
    root = integrate_against(
        lambda u, s: 2 * s.square() * (u * s.square()).exp(), torch.ones_like, torch.tensor([0.7]), 0.0, math.sqrt(2),
        panels=100_000,
    )  # fmt: skip
    says = run.states("N-53", r"(Tf)(u)=\int e^{ut}f(t)\,dt:\ \text{the error of }N\text{ panels is}\sim N^{-2}")
    says.slope(panels, errors_at(torch.cos, smooth), -2.0, 0.01, against=(-1.5, -3.0), where="f the cosine")
    says.fails("f the root, whose derivative is not bounded", panels, errors_at(torch.sqrt, float(root.values[0])))

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


@lab(
    "discrete-convolution",
    room="nets",
    covers=["N-57", "N-59", "N-60", "M-72", "M-73", "M-74", "M-75", "M-81"],
    title="Finite signals: one sum, three ways to compute it, and which way the kernel is read",
    errata=["correlation-is-correlation-flipped", "centered-convolution-not-flipped", "transform-product-winds-round"],
    full={"cases": 200, "length": 2000, "taps": 301},
)
def discrete_convolution(run: Run, cases: int = 30, length: int = 300, taps: int = 41) -> None:
    """The convolution of finite signals by its definition, as a Toeplitz matrix and by transforms.

    The three agree to rounding, which the transform does only after padding with zeros; without,
    it computes the circular convolution. The cross-correlation, which deep-learning libraries
    call convolution, reads the kernel the other way round: two sources mix the two up.

    Args:
        cases: random signals.
        length: of the signals.
        taps: of the kernels.
    """
    worked = convolve(torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([0.0, 1.0, 0.5]).double())
    says = run.states("N-59", r"(1,2,3)*(0,1,\tfrac12)=(0,1,\tfrac52,4,\tfrac32)")
    says.equal(worked, torch.tensor([0.0, 1.0, 2.5, 4.0, 1.5]).double(), ROUNDING)
    backwards = cross_correlate(torch.tensor([0.0, 1.0, 0.5]).double(), torch.tensor([1.0, 2.0, 3.0]).double())
    says.fails("the kernel read forwards, f[u+t]", backwards)

    def by_places(start: int, tap: int, told: bool) -> float:
        f, h = run.randn(9), run.randn(4)
        signal = {start + k: float(v) for k, v in enumerate(f)}
        kernel = {tap + k: float(v) for k, v in enumerate(h)}
        places = index_range(9, 4, signal_start=start, kernel_start=tap if told else 0)
        made = convolve(f, h)
        exact = [sum(kernel[t] * signal.get(u - t, 0.0) for t in kernel) for u in places]
        return float((made - torch.tensor(exact, dtype=torch.float64)).abs().max())

    starts = [(int(a), int(b)) for a, b in torch.randint(-9, 10, (cases, 2), generator=run.generator)]
    starts = [(a, b if b else 1) for a, b in starts]
    says = run.states(
        ("N-59", "M-72"),
        r"(f*h)[u]=\sum_{t=t_{\min}}^{t_{\max}}h[t]\,f[u-t],\ \text{on }n+m-1\text{ places from }s+t_{\min}\text{ on}",
    )
    says.equal([by_places(a, b, True) for a, b in starts], 0.0, ROUNDING)
    says.fails("the kernel's first place taken for 0", [by_places(a, b, False) for a, b in starts])

    methods(run, cases, length, taps)
    smoothing(run)
    correlation(run, cases)
    plane(run, cases)


def methods(run: Run, cases: int, length: int, taps: int) -> None:
    pairs = [(run.randn(length), run.randn(taps)) for _ in range(cases)]
    exact = [convolve(f, h, method="direct") for f, h in pairs]

    def largest(made: list[Tensor], expected: list[Tensor]) -> Tensor:
        return torch.stack([(a - b).abs().max() for a, b in zip(made, expected, strict=True)])

    short = [torch.fft.irfft(torch.fft.rfft(f) * torch.fft.rfft(h, length), length) for f, h in pairs]
    says = run.states(
        ("N-57", "M-81"), r"\mathcal F(f*h)=\mathcal Ff\cdot\mathcal Fh,\ \text{padded with zeros to }N\ge n+m-1"
    )
    says.equal(largest([convolve(f, h, method="fft") for f, h in pairs], exact), 0.0, 1e-11)
    wound = [F.pad(s, (0, taps - 1)) for s in short]
    says.fails("transforms of length n, without padding", largest(wound, exact))
    two = torch.ones(2, dtype=torch.float64)
    run.refutes(
        "transform-product-winds-round",
        r"f*h=\mathcal F^{-1}\{\mathcal F f\cdot\mathcal F h\}\text{ at the first place}",
    ).equal(
        float(torch.fft.irfft(torch.fft.rfft(two) ** 2, 2)[0]),
        float(convolve(two, two, method="direct")[0]),
        1e-6,
        where="f = h = (1, 1), transforms of length 2",
    )
    circle = [convolve(f, h, mode="circular", method="direct") for f, h in pairs]
    says = run.states("N-57", r"\mathcal F_n(f*_nh)=\mathcal F_nf\cdot\mathcal F_nh,\ \text{indices modulo }n")
    says.equal(largest(short, circle), 0.0, 1e-11)
    says.fails("zeros outside of the signal", largest(short, [e[:length] for e in exact]))

    n = min(length, 200)
    head = [(f[:n], h) for f, h in pairs]
    matrices = [toeplitz_matrix(h, n) for _, h in head]
    says = run.states("M-72", r"f*h=Hf,\ H_{ij}=h_{i-j}")
    direct = [convolve(f, h, method="direct") for f, h in head]
    says.equal(largest([H @ f for H, (f, _) in zip(matrices, head, strict=True)], direct), 0.0, 1e-11)
    says.fails(
        "the transposed matrix, h_{j-i}",
        largest([toeplitz_matrix(flip(h), n) @ f for f, h in head], direct),
    )

    def shifted(mode: Any) -> Tensor:
        gaps = []
        for f, h in head:
            by = 7
            later = F.pad(f, (by, 0)) if mode == "full" else F.pad(f, (by, 0))[:n]
            moved, still = convolve(later, h, mode=mode), convolve(f, h, mode=mode)
            gaps.append((moved[by:] - still[: len(moved) - by]).abs().max())
        return torch.stack(gaps)

    says = run.states("M-72", r"f_{\Delta}*h=(f*h)_{\Delta}")
    says.equal(shifted("full"), 0.0, 1e-11, where="full convolution, a shift by 7 places")
    says.fails("signal and result cut off after n places", shifted("same"))

    h = binomial_kernel(7)

    def picture(axes: Any) -> None:
        modes: tuple[Extent, ...] = ("full", "valid", "circular")
        for ax, mode, title in zip(
            axes[0], modes, ("full: $n+m-1$ rows", "valid: $n-m+1$ rows", "circular: $n$ rows"),
            strict=True,
        ):  # fmt: skip
            shown = ax.imshow(toeplitz_matrix(h, 20, mode).numpy(), cmap="Blues", vmin=0)
            ax.set(title=title, xlabel="place of the signal", ylabel="place of the result" if mode == "full" else "")
            ax.set(xticks=range(0, 20, 5), yticks=range(0, len(toeplitz_matrix(h, 20, mode)), 5))
            ax.grid(False)
        ax.figure.colorbar(shown, ax=list(axes[0]), shrink=0.8, label="entry")

    run.figure(
        "toeplitz",
        picture,
        grid=(1, 3),
        size=(9.5, 3.9),
        caption="The convolution with a kernel of 7 taps on 20 places, as a matrix: the same numbers on every "
        "diagonal. On a circle they come in again at the other side.",
    )


def smoothing(run: Run) -> None:
    five, t = binomial_kernel(), torch.arange(-2, 3).double()
    says = run.states("M-73", r"h=\tfrac1{16}(1,4,6,4,1):\ \sum h=1,\ \sum th=0")
    says.equal(torch.stack([five.sum(), five @ t]), [1.0, 0.0], ROUNDING)
    says = run.states("M-73", r"\sum_tt^2h[t]=1")
    says.equal(five @ t.square(), 1.0, ROUNDING)
    says.fails("equal weights on the five taps", t.square().mean())

    def repeated(weights: tuple[float, float], count: int) -> Tensor:
        step = torch.tensor(weights, dtype=torch.float64)
        made = step
        for _ in range(count - 1):
            made = convolve(made, step, method="direct")
        return made

    says = run.states("M-73", r"h=(\tfrac12,\tfrac12)*(\tfrac12,\tfrac12)*(\tfrac12,\tfrac12)*(\tfrac12,\tfrac12)")
    says.equal((five - repeated((0.5, 0.5), 4)).abs().max(), 0.0, ROUNDING)
    says.fails("weights 0.4 and 0.6", (five - repeated((0.4, 0.6), 4)).abs().max())

    sizes = (9, 17, 33, 65, 129)

    def distances(weights: tuple[float, float]) -> list[float]:
        gaps = []
        for m in sizes:
            kernel = binomial_kernel(m) if weights == (0.5, 0.5) else repeated(weights, m - 1)
            places = torch.arange(m).double() - weights[1] * (m - 1)
            gaps.append(float((kernel - normal(weights[0] * weights[1] * (m - 1))(places)).abs().max()))
        return gaps

    even = distances((0.5, 0.5))
    says = run.states("M-73", r"\sup_t|h[t]-N(0,\tfrac{m-1}4)(t)|\sim m^{-3/2}")
    says.slope([m - 1 for m in sizes], even, -1.5, 0.02, against=(-1.0, -2.0))
    says.fails("unequal weights 0.2 and 0.8: the law is skewed", [m - 1 for m in sizes], distances((0.8, 0.2)))


def correlation(run: Run, cases: int) -> None:
    pairs = [(run.randn(5), run.randn(12)) for _ in range(cases)]

    def gap(left: Callable[[Tensor, Tensor], Tensor], right: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return torch.stack([(left(h, f) - right(h, f)).abs().max() for h, f in pairs])

    def libraries(h: Tensor, f: Tensor) -> Tensor:
        made: Tensor = F.conv1d(f[None, None], h[None, None], padding=4)[0, 0]
        return made

    says = run.states(("N-60", "M-74"), r"(h\star f)[u]=\sum_th[t]\,f[u+t]=(\bar h*f)[u],\ \bar h[t]=h[-t]")
    says.equal(gap(lambda h, f: convolve(f, flip(h)), libraries), 0.0, ROUNDING, where="torch's layers correlate")
    says.fails("the kernel not flipped", gap(lambda h, f: convolve(f, h), libraries))
    says = run.states(("N-60", "M-74"), r"(h\star f)[u]=(f\star h)[-u]")
    says.equal(gap(cross_correlate, lambda h, f: flip(cross_correlate(f, h))), 0.0, ROUNDING)
    says.fails("the order of the places kept", gap(cross_correlate, lambda h, f: cross_correlate(f, h)))
    run.refutes("correlation-is-correlation-flipped", r"h\star f=\bar h\star f").equal(
        gap(cross_correlate, lambda h, f: cross_correlate(flip(h), f)).min(),
        0.0,
        1e-6,
        where="random kernels of 5 taps",
    )


def plane(run: Run, cases: int) -> None:
    images = [(run.randn(4, 4), run.randn(3, 3)) for _ in range(cases)]

    def summed(image: Tensor, kernel: Tensor, sign: int) -> Tensor:
        """The double sum over the kernel, at places 0 to 3, with zeros outside."""
        made = torch.zeros(4, 4, dtype=torch.float64)
        for i in range(4):
            for j in range(4):
                for u in range(3):
                    for v in range(3):
                        a, b = i + sign * (u - 1), j + sign * (v - 1)
                        if 0 <= a < 4 and 0 <= b < 4:
                            made[i, j] += image[a, b] * kernel[u, v]
        return made

    def gap(sign: int, made: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return torch.stack([(summed(i, k, sign) - made(i, k)).abs().max() for i, k in images])

    def centered(i: Tensor, k: Tensor) -> Tensor:
        return convolve(i, k, mode="same")

    says = run.states("M-75", r"(I*K)[i,j]=\sum_{u,v}I[i+u_0-u,\,j+v_0-v]\,K[u,v]")
    says.equal(gap(-1, centered), 0.0, ROUNDING, where="4 x 4 images, 3 x 3 kernels, zeros outside")
    says.fails("the kernel read forwards", gap(-1, lambda i, k: cross_correlate(k, i, mode="same")))
    run.refutes("centered-convolution-not-flipped", r"(I*K)[i,j]=\sum_{u,v}I[i-u_0+u,\,j-v_0+v]\,K[u,v]").equal(
        gap(1, centered).min(), 0.0, 1e-6, where="random 3 x 3 kernels"
    )
    says = run.states("M-75", r"\text{valid: }(H_I-H_K+1)\times(W_I-W_K+1)")
    says.equal(list(convolve(run.randn(4, 6), run.randn(3, 2), mode="valid").shape), [2, 5])
    says.fails("padding that keeps the size", list(convolve(run.randn(4, 6), run.randn(3, 2), mode="same").shape))

    def rows_and_columns(image: Tensor, h: Tensor, k: Tensor) -> Tensor:
        columns = convolve(image, h)
        return convolve(columns.T.contiguous(), k).T

    two = [(run.randn(9, 9), run.randn(5), run.randn(3)) for _ in range(cases)]
    says = run.states(("M-75", "M-73"), r"K[u,v]=k[u]\,h[v]\ \Rightarrow\ I*K=k*_1(h*_2I)")
    says.equal(
        torch.stack([(convolve(i, k[:, None] * h) - rows_and_columns(i, h, k)).abs().max() for i, h, k in two]),
        0.0,
        1e-11,
    )
    coupled = [
        (convolve(i, k[:, None] * h + 0.1 * torch.eye(3, 5).double()), rows_and_columns(i, h, k)) for i, h, k in two
    ]
    says.fails("a kernel of rank two", torch.stack([(a - b).abs().max() for a, b in coupled]))

    at = torch.tensor([[0.0, 0.0], [0.5, -0.3]], dtype=torch.float64)

    def waves(count: int, height: float) -> tuple[float, float]:
        made = convolve_functions(
            lambda x: height * torch.cos(2 * math.pi * count * x[:, 0]),
            lambda x: torch.ones(len(x)).double(),
            at,
            (0.0, 0.0),
            (1.0, 1.0),
            panels=count,
            roughness=((2 * math.pi * count) ** 2, 0.0),
        )
        return float(made.values.abs().max()), float(made.error.max())

    found = [waves(n, 1.0) for n in (5, 10, 20)]
    says = run.states(
        "M-75",
        r"\Bigl|\iint g-\tau_1\tau_2\sum g\Bigr|"
        r"\le\tfrac A{24}\bigl(\tau_1^2\sup|\partial_1^2g|+\tau_2^2\sup|\partial_2^2g|\bigr)",
    )
    says.at_most([e for e, _ in found], [b for _, b in found], where="a wave of one turn per panel")
    says.fails("curvatures 1.8 times as large as was said", [waves(n, 1.8)[0] for n in (5, 10, 20)])

    def hills(half: float) -> Tensor:
        def hill(x: Tensor) -> Tensor:
            return torch.exp(-x.square().sum(-1))

        return convolve_functions(hill, hill, at, (-half, -half), (half, half), panels=60).values

    says = run.states("M-75", r"e^{-|x|^2}*e^{-|x|^2}=\tfrac\pi2e^{-|x|^2/2}")
    says.equal(hills(6.0), math.pi / 2 * torch.exp(-at.square().sum(-1) / 2), ROUNDING)
    says.fails("the integral over the unit square only", hills(0.5))


#: A Latin square with a neutral element whose product is not associative.
LOOP = ((0, 1, 2, 3, 4), (1, 0, 3, 4, 2), (2, 4, 0, 1, 3), (3, 2, 4, 0, 1), (4, 3, 1, 2, 0))


@lab(
    "group-convolution",
    room="nets",
    covers=["A-126"],
    title="Convolution on a finite group: what needs a commutative group, and what does not",
    full={"cases": 100, "largest": 5},
)
def group_convolution(run: Run, cases: int = 10, largest: int = 4) -> None:
    """Functions on cyclic groups and their products, on dihedral and symmetric groups are convolved.

    Associativity and the equivariance under translations from the left hold on every group; that
    the order of the factors does not matter, and that characters make a product of the
    convolution, on commutative groups only. On tori the convolution is the circular one of images.

    Args:
        cases: random functions per group.
        largest: degree of the largest symmetric group.
    """
    abelian = [cyclic_group(12), product_group(cyclic_group(4), cyclic_group(6)), dihedral_group(2)]
    others = [dihedral_group(4), dihedral_group(5), symmetric_group(3), symmetric_group(largest)]
    groups = [*abelian, *others]

    def draws(group: FiniteGroup, count: int = 2) -> list[tuple[Tensor, ...]]:
        return [tuple(run.randn(group.order) for _ in range(count)) for _ in range(cases)]

    def orders(group: FiniteGroup) -> Tensor:
        gaps = [(group_convolve(a, b, group) - group_convolve(b, a, group)).abs().max() for a, b in draws(group)]
        return torch.stack(gaps)

    says = run.states("A-126", r"a*b=b*a\text{ for all }a,b\iff G\text{ is commutative}")
    says.equal(torch.cat([orders(g) for g in abelian]), 0.0, ROUNDING, where=", ".join(g.name for g in abelian))
    says.fails(", ".join(g.name for g in others) + ": not commutative", torch.cat([orders(g) for g in others]))

    loop = FiniteGroup("loop", torch.tensor(LOOP), tuple(range(5)))

    def grouping(group: FiniteGroup) -> Tensor:
        gaps = []
        for a, b, c in draws(group, 3):
            left = group_convolve(group_convolve(a, b, group), c, group)
            gaps.append((left - group_convolve(a, group_convolve(b, c, group), group)).abs().max())
        return torch.stack(gaps)

    says = run.states("A-126", r"(a*b)*c=a*(b*c),\quad(a*b)_i=\sum_{j\in G}a_j\,b_{j^{-1}i}")
    says.equal(torch.cat([grouping(g) for g in groups]), 0.0, 1e-11)
    says.fails("a multiplication table that is not associative", grouping(loop))

    def translated(group: FiniteGroup, side: str) -> Tensor:
        gaps = []
        for (a, b), g in zip(draws(group), range(1, cases + 1), strict=True):
            element = g % (group.order - 1) + 1
            right = group.table[:, group.inverse[element]]

            def move(x: Tensor, element: int = element, right: Tensor = right) -> Tensor:
                return translate(x, element, group) if side == "left" else x[right]

            gaps.append((group_convolve(move(a), b, group) - move(group_convolve(a, b, group))).abs().max())
        return torch.stack(gaps)

    says = run.states("A-126", r"(L_ga)*b=L_g(a*b),\quad(L_ga)_j=a_{g^{-1}j}")
    says.equal(torch.cat([translated(g, "left") for g in groups]), 0.0, 1e-11)
    says.fails("translations from the right, on S3", translated(symmetric_group(3), "right"))

    scrambled = torch.randperm(24, generator=run.generator)
    table = scrambled.argsort()[abelian[1].table[scrambled][:, scrambled]]
    hidden = finite_group(table, name="a table of Z/4 x Z/6 in a random order")

    def spectra(group: FiniteGroup, characters: FiniteGroup) -> Tensor:
        chi = group_characters(characters).conj()
        gaps = []
        for a, b in draws(group):
            product = (chi @ a.to(chi)) * (chi @ b.to(chi))
            gaps.append((chi @ group_convolve(a, b, group, method="sum").to(chi) - product).abs().max())
        return torch.stack(gaps)

    says = run.states("A-126", r"\widehat{a*b}=\hat a\,\hat b,\quad\hat a(\chi)=\sum_ja_j\overline{\chi(j)}")
    says.equal(torch.cat([spectra(g, g) for g in (*abelian, hidden)]), 0.0, 1e-11)
    says.fails("characters of another group with 24 elements, Z/24", spectra(hidden, cyclic_group(24)))

    def torus(method: Callable[[Tensor, Tensor, FiniteGroup], Tensor]) -> Tensor:
        group, gaps = abelian[1], []
        for image, kernel in draws(group):
            grid = image.reshape(1, 1, 4, 6)
            layer = F.conv2d(F.pad(grid, (0, 5, 0, 3), mode="circular"), kernel.reshape(1, 1, 4, 6))
            gaps.append((layer.reshape(-1) - method(kernel, image, group)).abs().max())
        return torch.stack(gaps)

    says = run.states("A-126", r"(b\star a)_i=\sum_jb_{i^{-1}j}\,a_j=(a*\bar b)_i,\ \bar b_j=b_{j^{-1}}")
    says.equal(
        torus(group_cross_correlate), 0.0, ROUNDING, where="what torch's layer computes on a torus of 4 x 6 places"
    )
    says.fails("the kernel not reversed", torus(lambda b, a, g: group_convolve(a, b, g)))
    says = run.states(
        "A-126", r"G=\mathbb Z/4\times\mathbb Z/6:\ \text{the sum over }G\text{ is the product of the transforms}"
    )
    torus_pairs = draws(abelian[1])

    def transforms(group: FiniteGroup) -> list[float]:
        made = [group_convolve(a, b, group, method="fft") for a, b in torus_pairs]
        exact = [group_convolve(a, b, abelian[1], method="sum") for a, b in torus_pairs]
        return [float((m - e).abs().max()) for m, e in zip(made, exact, strict=True)]

    says.equal(transforms(abelian[1]), 0.0, ROUNDING)
    says.fails("the transform of Z/2 x Z/12", transforms(product_group(cyclic_group(2), cyclic_group(12))))

    shown = [cyclic_group(8), product_group(cyclic_group(2), cyclic_group(4)), dihedral_group(4)]

    def tables(axes: Any) -> None:
        for ax, group in zip(axes[0], shown, strict=True):
            ax.imshow(group.left_division.T.numpy(), cmap="tab10", vmin=0, vmax=9)
            ax.set(title=f"{group.name}{'' if group.is_abelian else ', not commutative'}", xlabel="$j$", ylabel="$i$")
            ax.grid(False)

    run.figure(
        "group-tables",
        tables,
        grid=(1, 3),
        size=(9.0, 3.3),
        caption="Which entry of the kernel stands where in the matrix of a convolution, the number of the element "
        "j⁻¹i in row i and column j: circulant, block circulant, and a third kind.",
    )
