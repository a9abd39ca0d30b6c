"""A linear map that commutes with shifts is a convolution, and by how much one that does not is none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchtheory.convolution.circulant_matrices import (
    circulant_eigenvalues,
    commutator_norm,
    nearest_convolution,
    off_diagonal_after_fourier,
)
from torchtheory.convolution.layer_matrices import toeplitz_matrix
from torchtheory.convolution.shift_equivariant import is_convolution
from torchtheory.labs.engine import Run, lab

ROUNDING = 1e-12


def drawn_layer(run: Run, module: nn.Module) -> nn.Module:
    """The layer in double precision, with standard normal parameters of the run."""
    module = module.double()
    for parameter in module.parameters():
        parameter.data = run.randn(*parameter.shape)
    return module


def distances(matrices: Sequence[Tensor]) -> list[float]:
    """How far from the nearest convolution each of them is."""
    return [nearest_convolution(m).distance for m in matrices]


@lab(
    "shift-equivariant-operators",
    room="convolution",
    covers=["N-58"],
    title="Linear and shift-equivariant: a convolution, whose kernel any layer gives up",
    errata=["shift-equivariant-kernel-function"],
    full={"sizes": (4, 8, 16, 32, 64, 128), "cases": 50},
    least={"sizes": 2},
)
def shift_equivariant_operators(run: Run, sizes: tuple[int, ...] = (4, 8, 16, 32), cases: int = 10) -> None:
    r"""Maps given by a matrix or as a black box are tested for being convolutions.

    Layers with circular padding give up their kernel; zeros at the border, strides, biases and
    rectifiers are named. The commutator with one shift bounds the distance to the nearest
    convolution, from both sides and sharply. On the line the theorem needs more care than the
    source gives it: the kernel of the identity is no function.

    Args:
        sizes: lengths of the signals.
        cases: random matrices and layers.
    """
    kernels(run, cases)
    commutators(run, sizes, cases)
    fourier(run, sizes, cases)
    on_the_line(run)


def kernels(run: Run, cases: int) -> None:
    def recovered(padding: Literal["circular", "zeros"]) -> tuple[list[float], list[float]]:
        gaps, residuals = [], []
        for _ in range(cases):
            layer = drawn_layer(run, nn.Conv2d(2, 3, 3, padding=1, padding_mode=padding, bias=False))
            found = is_convolution(layer, (2, 7, 6))
            assert found.kernel is not None  # the layer is linear
            # torch's layers correlate: their first tap stands one place before the middle
            index = torch.tensor([1, 0, -1])
            taps = found.kernel[:, :, index][:, :, :, index]
            weight = dict(layer.named_parameters())["weight"].detach()
            gaps.append(float((taps - weight).abs().max()))
            residuals.append(found.residual)
        return gaps, residuals

    ring, zeros = recovered("circular"), recovered("zeros")
    says = run.states("N-58", r"T\text{ linear},\ TS=ST\ \Rightarrow\ Tf=f*h,\quad h=T\delta")
    says.equal(
        ring[1], 0.0, ROUNDING, where="black boxes: layers with 2 and 3 channels, the part that is no convolution"
    )
    says.fails("zeros at the border, where shifts round the circle do not commute", zeros[1])
    says = run.states("N-58", r"h=T\delta\text{ is the layer's own kernel}")
    says.equal(ring[0], 0.0, ROUNDING)
    rectified = []
    for _ in range(cases):
        layer = drawn_layer(run, nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular", bias=False))
        weight = dict(layer.named_parameters())["weight"].detach()
        pulse = torch.zeros(2, 2, 7, 6, dtype=torch.float64)
        pulse[0, 0, 3, 3] = pulse[1, 1, 3, 3] = 1
        seen = layer(pulse).detach().relu().transpose(0, 1)[:, :, 2:5, 2:5].flip((2, 3))
        rectified.append(float((seen - weight).abs().max()))
    says.fails("a rectifier behind the layer: not linear", rectified)

    layers = {
        "circular padding": nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular", bias=False),
        "circular padding, bias": nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"),
        "zero padding": nn.Conv2d(1, 2, 3, padding=1, bias=False),
        "reflecting padding": nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect", bias=False),
        "no padding": nn.Conv2d(1, 2, 3, bias=False),
        "stride 2": nn.Conv2d(1, 2, 3, stride=2, padding=1, bias=False),
        "circular padding, ReLU": nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular", bias=False), nn.ReLU()
        ),
        "dense layer": nn.Sequential(nn.Flatten(), nn.Linear(64, 64, bias=False), nn.Unflatten(1, (1, 8, 8))),
        "average pooling, stride 1": nn.AvgPool2d(3, 1, padding=1),
    }
    rows = []
    for name, module in layers.items():
        found = is_convolution(drawn_layer(run, module), (1, 8, 8))
        rows.append([name, found.kind, found.commutator, found.residual, found.reason])
    run.table(
        "layers",
        ["layer", "what it is", "commutator", "residual", "why"],
        rows,
        caption="Layers on images of 8 x 8 places, tried as black boxes. Norms are relative to that of the layer.",
    )


def commutators(run: Run, sizes: tuple[int, ...], cases: int) -> None:
    def wave(n: int, turns: int) -> Tensor:
        return torch.diag(torch.cos(2 * math.pi * turns * torch.arange(n, dtype=torch.float64) / n))

    slow = [wave(n, 1) for n in sizes]
    fast = [wave(n, n // 2) for n in sizes]
    random = [run.randn(n, n) for n in sizes for _ in range(cases)]
    lower = [2 * math.sin(math.pi / len(m)) * d for m, d in zip(slow, distances(slow), strict=True)]
    says = run.states("N-58", r"\|MS-SM\|_F\ge2\sin(\pi/n)\,\|M-\Pi M\|_F,\quad\Pi M=\tfrac1n\sum_kS^{-k}MS^k")
    says.at_least([commutator_norm(m) for m in slow], lower, 1e-12, where="M diagonal, one turn of a wave")

    def twice(matrix: Tensor) -> float:
        return float((matrix - matrix.roll((2, 2), (0, 1))).norm())

    says.fails(
        "the shift by two places, which does not lead to all others",
        [twice(m) for m in fast],
        promised=[2 * math.sin(math.pi / len(m)) * d for m, d in zip(fast, distances(fast), strict=True)],
    )
    every = [*fast, *random]
    says = run.states("N-58", r"\|MS-SM\|_F\le2\,\|M-\Pi M\|_F")
    says.at_most(
        [commutator_norm(m) for m in every],
        [2 * d for d in distances(every)],
        1e-12,
        where="M diagonal with alternating signs, and random matrices",
    )

    def weighted(matrix: Tensor) -> float:
        shift = torch.diag(torch.linspace(1, 3, len(matrix), dtype=torch.float64)).roll(1, 0)
        return float((matrix @ shift - shift @ matrix).norm())

    says.fails("a shift with weights, which is no isometry", [weighted(m) for m in every])

    nearest = [nearest_convolution(m) for m in random]

    def inner(matrices: Sequence[Tensor], projections: Sequence[Tensor]) -> Tensor:
        """The largest inner product of the remainder with a power of the shift."""
        products = []
        for m, p in zip(matrices, projections, strict=True):
            powers = [torch.eye(len(m), dtype=torch.float64).roll(k, 0) for k in range(len(m))]
            products.append(max(abs(float(((m - p) * s).sum())) for s in powers) / len(m))
        return torch.tensor(products)

    says = run.states("N-58", r"\langle M-\Pi M,S^k\rangle=0\ \text{for all }k:\ \text{no convolution is nearer}")
    says.equal(inner(random, [p.matrix for p in nearest]), 0.0, ROUNDING)
    response = [toeplitz_matrix(m[:, 0], len(m), "circular") for m in random]
    says.fails("the response to one impulse as the kernel, of a map that is no convolution", inner(random, response))


def fourier(run: Run, sizes: tuple[int, ...], cases: int) -> None:
    random = [run.randn(n, n) for n in sizes for _ in range(cases)]
    says = run.states("N-58", r"\|\operatorname{offdiag}(FMF^*)\|_F=\|M-\Pi M\|_F,\ \text{0 for convolutions only}")
    away = torch.tensor(distances(random))
    says.equal(torch.tensor([off_diagonal_after_fourier(m) for m in random]) / away, 1.0, ROUNDING)

    def off_diagonal_after_cosines(matrix: Tensor) -> float:
        n = len(matrix)
        k = torch.arange(n, dtype=torch.float64)
        basis = torch.cos(math.pi * (k + 0.5) * k[:, None] / n) * math.sqrt(2 / n)
        basis[0] /= math.sqrt(2)
        turned = basis @ matrix @ basis.T
        return float((turned - torch.diag(turned.diagonal())).norm())

    says.fails(
        "the cosine transform in place of Fourier's",
        torch.tensor([off_diagonal_after_cosines(m) for m in random]) / away,
    )

    def waves_kept(n: int, extent: str) -> float:
        h = run.randn(n)
        k = torch.arange(n, dtype=torch.float64)
        waves = torch.exp(2j * math.pi * k[:, None] * k / n)
        matrix = toeplitz_matrix(h, n, "circular") if extent == "circular" else toeplitz_matrix(h, n)[:n]
        return float((matrix.to(waves) @ waves - waves * circulant_eigenvalues(h)).abs().max())

    says = run.states("N-58", r"h*_ne^{2\pi iku/n}=\hat h(k)\,e^{2\pi iku/n}")
    says.equal([waves_kept(n, "circular") for n in sizes], 0.0, 1e-11)
    says.fails("zeros outside of the signal", [waves_kept(n, "zeros") for n in sizes])

    n = 48
    smooth = torch.exp(-((torch.arange(n) + n // 2) % n - n // 2).double().square() / 8)
    circulant = toeplitz_matrix(smooth / smooth.sum(), n, "circular")
    border = torch.where((torch.arange(n)[:, None] - torch.arange(n)).abs() < n // 2, circulant, 0.0)
    scaled = circulant * torch.linspace(0.2, 1.8, n, dtype=torch.float64)[:, None]

    def picture(axes: Any) -> None:
        names = ("on a circle", "zeros at the border", "weights that vary with the place")
        for column, (name, matrix) in enumerate(zip(names, (circulant, border, scaled), strict=True)):
            share = off_diagonal_after_fourier(matrix) / float(matrix.norm())
            axes[0][column].imshow(matrix.numpy(), cmap="Blues")
            axes[0][column].set(title=name, xlabel="place of the signal", ylabel="place of the result")
            turned = torch.fft.ifft(torch.fft.fft(matrix, dim=0, norm="ortho"), dim=1, norm="ortho")
            size = torch.fft.fftshift(turned.abs())
            shown = axes[1][column].imshow(size.clamp(min=1e-6).log10().numpy(), cmap="viridis", vmin=-6, vmax=0)
            axes[1][column].set(
                title=f"off the diagonal: {100 * share:.2g} %" if share > 1e-12 else "off the diagonal: nothing",
                xlabel="frequency",
                ylabel="frequency",
                xticks=[0, 24, 47],
                xticklabels=["-24", "0", "23"],
                yticks=[0, 24, 47],
                yticklabels=["-24", "0", "23"],
            )
            for ax in (axes[0][column], axes[1][column]):
                ax.grid(False)
        ax.figure.colorbar(shown, ax=list(axes[1]), label="power of ten")

    run.figure(
        "circulant-spectrum",
        picture,
        grid=(2, 3),
        size=(9.5, 6.4),
        caption="Three maps (above) as Fourier's transform sees them (below, powers of ten): the first commutes with "
        "shifts and is diagonal, so a convolution; what the others have off the diagonal is their distance from one.",
    )

    def eigenvalues(axes: Any) -> None:
        h = torch.zeros(n, dtype=torch.float64)
        h[:3] = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
        predicted = circulant_eigenvalues(h)
        measured = torch.linalg.eigvals(toeplitz_matrix(h[:3], n, "circular"))
        axes.plot(predicted.real, predicted.imag, "o", ms=6, mfc="none", label="transform of the kernel")
        axes.plot(measured.real, measured.imag, "x", ms=4, label="eigenvalues of the matrix")
        cut = torch.linalg.eigvals(toeplitz_matrix(h[:3], n)[:n])
        axes.plot(cut.real, cut.imag, "s", ms=5, label="zeros at the border: all equal")
        axes.set(xlabel="real part", ylabel="imaginary part", aspect="equal", xlim=(0.1, 1.2), ylim=(-0.6, 0.85))
        axes.legend(loc="upper center", ncols=1)

    run.figure(
        "eigenvalues",
        eigenvalues,
        size=(5.0, 4.4),
        caption="The kernel (0.5, 0.3, 0.2) on a circle of 48 places: its eigenvalues are the values of its transform. "
        "Cut off at the border it has one eigenvalue only, 48 times.",
    )


def on_the_line(run: Run) -> None:
    grids = (32, 64, 128, 256)

    def height(width: float, n: int) -> float:
        """Of the kernel as a function of the circle of length 1: per place, divided by the spacing."""
        at = (torch.arange(n) + n // 2) % n / n - 0.5
        blur = torch.eye(n, dtype=torch.float64)[0]
        if width:
            copies = torch.stack([at.double() + k for k in (-1, 0, 1)])
            blur = torch.exp(-copies.square() / (2 * width**2)).sum(0) / (math.sqrt(2 * math.pi) * width * n)
        matrix = toeplitz_matrix(blur, n, "circular")
        found = is_convolution(matrix)
        assert found.kernel is not None
        return float(found.kernel.abs().max()) * n

    width = 0.1
    says = run.states(
        "N-58",
        r"(Tf)(u)=\int h(u-t)f(t)\,dt:\ n\,T\delta\to h\text{ as the grid gets finer};\ \sup h=1/(\sqrt{2\pi}\,s)",
    )
    blurred = [height(width, n) for n in grids]
    says.equal(
        blurred, 1 / (math.sqrt(2 * math.pi) * width), 1e-10, where="a blur of width s = 0.1 on a circle of length 1"
    )
    identity = [height(0.0, n) for n in grids]
    says.fails("the identity, linear and shift-equivariant as well", identity)
    run.refutes(
        "shift-equivariant-kernel-function",
        r"f=f*h\text{ for some function }h:\ \sup|n\,T\delta|\sim n^0\text{ for the identity }T",
    ).slope(grids, identity, 0.0, where="grids of 32 to 256 places: it grows like n")
    run.curves(
        "kernel-of-the-identity",
        grids,
        {
            "a blur of width 0.1": blurred,
            "a blur of width 0.03": [height(0.03, n) for n in grids],
            "the identity": identity,
        },
        {"$1/(\\sqrt{2\\pi}\\,s)$": 1 / (math.sqrt(2 * math.pi) * width)},
        axes=("places of the grid $n$", "largest value of the kernel"),
        log="xy",
        caption="The kernel that is recovered from a map on finer and finer grids. That of a blur settles, that of the "
        "identity grows without bound: it is no function.",
    )
