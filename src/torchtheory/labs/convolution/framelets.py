"""Hankel matrices and framelets: convolution layers that lose nothing."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.convolution.discrete import convolve
from torchtheory.convolution.framelets import (
    Framelet,
    cosine_basis,
    framelet,
    haar_basis,
    random_basis,
    svd_framelet,
    truncation_bound,
)
from torchtheory.convolution.hankel import (
    from_hankel,
    hankel,
    hankel_adjoint,
    hankel_product,
    hankel_rank,
    hankel_singular_values,
)
from torchtheory.labs.engine import Run, lab

EXACT = 1e-11


@lab(
    "framelets",
    room="convolution",
    covers=["A-134", "A-135", "A-136"],
    title="Convolutional framelets: encode, decode, and lose nothing",
    full={"d": 96, "n": 13, "signals": 20},
    least={"d": 10, "n": 5, "signals": 2},
)
def framelets(run: Run, d: int = 30, n: int = 7, signals: int = 4) -> None:
    """Products with Hankel matrices are convolutions, and frames with their duals undo them.

    The filters need not divide the circle: n = 7 on a circle of 30. Every pair of bases or of
    frames with canonical duals gives the signal back. A signal's own singular vectors make the
    coefficients diagonal: look at the three matrices of coefficients of one sum of waves. What is
    lost by keeping few of them stays below a bound that waves on the filters' own circle meet.

    Args:
        d: length of the signals.
        n: length of a window.
        signals: random signals.
    """
    x = run.randn(signals, d)
    identities(run, x, n)
    reconstruction(run, x, n)
    diagonal(run, x, n)
    waves(run)
    truncation(run, x, n)


def unwrapped(x: Tensor, n: int) -> Tensor:
    """The Hankel matrix of a signal that ends, instead of beginning again."""
    return hankel(torch.cat([x, x.new_zeros(*x.shape[:-1], n - 1)], -1), n)[..., : x.shape[-1], :]


def distances(found: Tensor, wanted: Tensor) -> Tensor:
    """How far each signal is from the one it should be."""
    far: Tensor = (found - wanted).norm(dim=-1)
    return far


def identities(run: Run, x: Tensor, n: int) -> None:
    d = x.shape[1]
    v, u, matrix = run.randn(n), run.randn(d), run.randn(len(x), d, n)
    units = torch.eye(d, dtype=torch.float64)
    shifted = convolve(units, v, mode="circular")  # the rows are e_i * v
    on_a_line = convolve(units, v)[:, :d]
    says = run.states("A-134", r"\langle e^{(i)},\mathbb H_n(x)v\rangle=\langle x,e^{(i)}*\bar v\rangle")
    product = hankel(x, n) @ v
    says.equal(distances(product, x @ shifted.T), within=EXACT, where=f"n = {n} does not divide d = {d}")
    says.fails("a convolution on the line", distances(product, x @ on_a_line.T))
    says = run.states("A-134", r"\mathbb H_n(x)v=\bar v\star x")
    says.equal(hankel_product(x, v), hankel(x, n) @ v, EXACT)
    says.fails("a convolution instead of a cross-correlation", convolve(x, v, mode="circular"))
    traces = torch.einsum("kij,sij->sk", hankel(units, n), hankel(x, n)) / n
    says = run.states("A-134", r"\tfrac1n\operatorname{Tr}(\mathbb H_n(e^{(k)})^\top\mathbb H_n(x))=x_k")
    says.equal(distances(traces, x), within=EXACT)
    ending = torch.einsum("kij,sij->sk", unwrapped(units, n), unwrapped(x, n)) / n
    says.fails("the signal ends instead of beginning again", distances(ending, x))
    says = run.states("A-134", r"\tfrac1n\mathbb H_n^*\mathbb H_n=I")
    says.equal(distances(from_hankel(hankel(x, n)), x), within=EXACT)
    says.fails("the signal ends instead of beginning again", distances(from_hankel(unwrapped(x, n)), x))
    says = run.states("A-134", r"\langle\mathbb H_n(x),M\rangle_F=\langle x,\mathbb H_n^*(M)\rangle")
    products = (x * hankel_adjoint(matrix)).sum(1)
    says.equal((hankel(x, n) * matrix).sum((1, 2)), products, EXACT)
    says.fails("the signal ends instead of beginning again", (unwrapped(x, n) * matrix).sum((1, 2)))
    says = run.states("A-134", r"\langle x,u*v\rangle=\langle u,v\star x\rangle")
    says.equal(hankel_product(x, v) @ u, x @ convolve(u, v, mode="circular"), EXACT)
    says.fails("a convolution on the line", hankel_product(x, v) @ u, promised=x @ convolve(u, v)[:d])
    says = run.states("A-134", r"\|\mathbb H_n(x)\|_F^2=n\|x\|^2")
    squares = n * x.square().sum(1)
    says.equal(hankel(x, n).square().sum((1, 2)), squares, EXACT)
    says.fails("the signal ends instead of beginning again", unwrapped(x, n).square().sum((1, 2)))


def reconstruction(run: Run, x: Tensor, n: int) -> None:
    d = x.shape[1]
    pairs: dict[str, tuple[Tensor, Tensor]] = {
        "identity and cosines": (torch.eye(d, dtype=torch.float64), cosine_basis(n)),
        "cosines and Haar": (cosine_basis(d), haar_basis(4)),
        "random bases": (random_basis(d, run.generator), random_basis(n, run.generator)),
        "frames": (run.randn(d, d + 5), run.randn(n, n + 3)),
    }
    made = {name: framelet(u, v) for name, (u, v) in pairs.items()}
    says = run.states(
        "A-135",
        r"\tilde UU^\top=I_d,\ V\tilde V^\top=I_n:\quad "
        r"x=\tfrac1n\sum_{ij}\langle x,u_i*v_j\rangle\,\tilde u_i*\tilde v_j",
    )
    says.equal(_lost(list(made.values()), x), within=1e-9, where=", ".join(made))
    says.fails("one pooling vector is left out", _lost([_fewer(f) for f in made.values()], x))
    frames = made["frames"]
    own = Framelet(frames.pooling, frames.filters, frames.pooling, frames.filters)
    says = run.states("A-135", r"p>d,\ q>n:\quad \text{the canonical duals give } x \text{ back}")
    says.equal(_lost([frames], x), within=1e-9, where=f"p = {d + 5}, q = {n + 3}")
    says.fails("a frame that is taken for its own dual", _lost([own], x))
    says = run.states("A-135", r"C=U^\top\mathbb H_n(x)V:\quad C_{ij}=\langle x,u_i*v_j\rangle")
    by_hand = torch.stack(
        [x @ convolve(frames.pooling.T.contiguous(), v.contiguous(), mode="circular").T for v in frames.filters.T], -1
    )
    says.equal(frames.encode(x), by_hand, EXACT)
    says.fails("filters that are turned round", framelet(frames.pooling, frames.filters.flip(0)).encode(x))
    first = torch.cat([frames.dual_pooling @ frames.pooling.T - torch.eye(d, dtype=torch.float64)])
    says = run.states("A-135", r"\tilde F=(FF^\top)^{-1}F:\quad \tilde FF^\top=I")
    says.equal(first, within=EXACT)
    says.fails("the frame itself", frames.pooling @ frames.pooling.T - torch.eye(d, dtype=torch.float64))


def _lost(framelets: list[Framelet], x: Tensor) -> Tensor:
    return torch.cat([distances(f.decode(f.encode(x)), x) for f in framelets])


def _fewer(made: Framelet) -> Framelet:
    return Framelet(made.pooling[:, 1:], made.filters, made.dual_pooling[:, 1:], made.dual_filters)


def off_diagonal(c: Tensor) -> Tensor:
    return c - torch.diag_embed(c.diagonal(dim1=-2, dim2=-1))


def diagonal(run: Run, x: Tensor, n: int) -> None:
    own = [svd_framelet(signal, n) for signal in x]
    scale = float(x.norm())
    coefficients = torch.stack([f.encode(signal) for f, signal in zip(own, x, strict=True)])
    foreign = torch.stack([f.encode(signal) for f, signal in zip(own, x.roll(1, 0), strict=True)])
    says = run.states("A-136", r"U,V \text{ singular vectors of } \mathbb H_n(x):\quad C_{ij}=0,\ i\ne j")
    says.equal(off_diagonal(coefficients) / scale, within=EXACT)
    says.fails("singular vectors of another signal", off_diagonal(foreign) / scale)
    says = run.states("A-136", r"C_{ii}=\sigma_i \text{ and } x=\tfrac1n\sum_i\sigma_i\,u_i*v_i")
    values = hankel_singular_values(x, n)
    says.equal(coefficients.diagonal(dim1=-2, dim2=-1), values, 1e-10)
    says.fails("of another signal", foreign.diagonal(dim1=-2, dim2=-1))
    back = torch.stack([f.decode(c) for f, c in zip(own, coefficients, strict=True)])
    fewer = torch.stack([f.decode(f.encode(s)) for s in x for f in [svd_framelet(s, n, n - 1)]])
    says = run.states("A-136", r"p=q=r=\operatorname{rank}\mathbb H_n(x):\quad \text{perfect reconstruction}")
    says.equal(back, x, 1e-10)
    says.fails("one singular vector less than the rank", fewer)


def wave(d: int, frequency: float, phase: float) -> Tensor:
    return torch.cos(2 * math.pi * frequency * torch.arange(d, dtype=torch.float64) / d + phase)


def waves(run: Run) -> None:
    d, n = 48, 12
    phases = (2 * math.pi * run.rand(5)).tolist()
    counts = [1, 2, 3, 4]

    def rank(count: int, shift: float) -> int:
        signal = torch.stack([wave(d, 2 + 3 * k + shift, phases[k]) for k in range(count)]).sum(0)
        return hankel_rank(signal, n, tolerance=1e-9)

    says = run.states("A-136", r"x=\sum_{j\le k}\cos(2\pi f_jt/d+\varphi_j):\quad \operatorname{rank}\mathbb H_n(x)=2k")
    says.equal([rank(k, 0.0) for k in counts], [2 * k for k in counts], where=f"k = 1 to 4, d = {d}, n = {n}")
    says.fails("frequencies that do not close on the circle", [rank(k, 0.4) for k in counts])
    signal = torch.stack([wave(d, 2 + 3 * k, phases[k]) for k in range(3)]).sum(0)
    noisy = signal + 0.3 * run.randn(d)
    run.curves(
        "rank",
        list(range(1, n + 1)),
        {
            "three waves": hankel_singular_values(signal, n).clamp_min(1e-16),
            "three waves and noise": hankel_singular_values(noisy, n),
        },
        axes=("number", "singular value"),
        log="y",
        caption="Singular values of the Hankel matrix of a sum of three waves: six, and rounding.",
    )
    made = {
        "identity and cosines": framelet(torch.eye(d, dtype=torch.float64), cosine_basis(n)),
        "cosines and cosines": framelet(cosine_basis(d), cosine_basis(n)),
        "its own singular vectors": svd_framelet(signal, n),
    }
    run.figure(
        "coefficients",
        lambda axes: plot_coefficients(axes, {k: f.encode(signal) for k, f in made.items()}),
        caption="Coefficients of a sum of three waves in three framelets: in the last one six of them are not 0.",
        grid=(1, 3),
        size=(9, 3.6),
    )


def truncation(run: Run, x: Tensor, n: int) -> None:
    """The bound on random signals, and on waves that are orthogonal on the filter's circle."""
    d, m = 48, 12  # 12 divides 48: waves of 4, 8, 16 periods close on the filter as well
    closed = wave(d, 4, 0.3) + 2 * wave(d, 8, 1.0) + 3 * wave(d, 16, 2.0)
    losses, bounds, others = [], [], []
    for signal, size in [*((s, n) for s in x), (closed, m)]:
        values = hankel_singular_values(signal, size)
        for rank in (2, 4):
            kept = svd_framelet(signal, size, rank)
            losses.append(float((signal - kept.decode(kept.encode(signal))).norm()))
            bounds.append(truncation_bound(values, rank))
            whole = svd_framelet(signal, size)
            u, v = whole.pooling[:, -rank:], whole.filters[:, -rank:]
            smallest = Framelet(u, v, u, v)
            others.append(float((signal - smallest.decode(smallest.encode(signal))).norm()))
    says = run.states("A-136", r"\|x-\hat x_k\|\le\big(\tfrac1n\sum_{i>k}\sigma_i^2\big)^{1/2}")
    says.at_most(losses, bounds, 1e-12, where="random signals, and waves that close on the filter")
    says.fails("the last singular vectors instead of the first", others)
    says = run.states(
        "A-136",
        r"\text{waves that are orthogonal on the filter:}\quad "
        r"\|x-\hat x_k\|=\big(\tfrac1n\sum_{i>k}\sigma_i^2\big)^{1/2}",
    )
    says.equal(losses[-2:], bounds[-2:], 1e-10, where="k = 2 and 4 of 6")
    open_end = wave(d, 3, 0.3) + 2 * wave(d, 7, 1.0) + 3 * wave(d, 17, 2.0)
    values = hankel_singular_values(open_end, m)
    kept_two = [svd_framelet(open_end, m, rank) for rank in (2, 4)]
    says.fails(
        "waves that do not close on the filter",
        [float((open_end - f.decode(f.encode(open_end))).norm()) for f in kept_two],
        promised=[truncation_bound(values, rank) for rank in (2, 4)],
    )


def plot_coefficients(axes: Any, matrices: dict[str, Tensor]) -> None:
    for ax, (name, c) in zip(axes[0], matrices.items(), strict=True):
        size = c.abs() / c.abs().max()
        ax.imshow(size, cmap="Greys", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        ax.set(title=name, xlabel="filter j", ylabel="pooling i")
        ax.grid(visible=False)
