"""Convolution of finite signals: by its sum, as a matrix, by transforms, and in the plane."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.convolution.discrete import (
    binomial_kernel,
    convolve,
    cross_correlate,
    flip,
    index_range,
)
from torchtheory.convolution.integral_operators import convolve_functions
from torchtheory.convolution.layer_matrices import Extent, toeplitz_matrix
from torchtheory.labs.convolution.continuous_convolution import ROUNDING, normal
from torchtheory.labs.engine import Run, lab


@lab(
    "discrete-convolution",
    room="convolution",
    covers=["N-57", "N-59", "N-60", "M-72", "M-73", "M-74", "M-75", "M-81"],
    title="Finite signals: one sum, three ways to compute it, and which way the kernel is read",
    errata=["correlation-is-correlation-flipped", "centered-convolution-not-flipped", "transform-product-winds-round"],
    full={"cases": 200, "length": 2000, "taps": 301},
    least={"length": 60, "taps": 3},
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
        "the transposed matrix, $h_{j-i}$",
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
