"""Singular values of convolution layers through the Fourier transform."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.convolution.layer_matrices import (
    CONVOLUTIONS,
    convolution_layer,
    layer_matrix,
    toeplitz_matrix,
)
from torchtheory.convolution.spectra import (
    convolution_norm,
    convolution_singular_values,
    singular_value_bounds,
    symbol,
)
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.labs.nets.comparing import gap


@lab(
    "convolution-spectra",
    room="convolution",
    covers=["N-61", "A-128"],
    title="Singular values of a convolution layer, frequency by frequency",
    full={"side": 18, "channels": 4, "layers": 10},
    least={"side": 6, "channels": 2},
)
def convolution_spectra(run: Run, side: int = 12, channels: int = 4, layers: int = 4) -> None:
    """Blocks of the Fourier transform against decompositions of the whole matrix.

    A layer on a torus is block diagonal in the Fourier basis, also with a stride (frequencies that
    fall together share a block), groups and channels: its singular values are those of small
    blocks. With zero padding it is a part of a layer on a larger torus, and every singular value
    has bounds from both sides. The picture shows them.

    Args:
        side: of the images.
        channels: of the layers.
        layers: random layers with zero padding.
    """
    circular(run, side, channels)
    chain_of_bounds(run)
    zero_padding(run, side, channels, layers)


def circular(run: Run, side: int, channels: int) -> None:
    side -= side % 6
    errors, broken = [], []
    for stride, groups, dims in itertools.product((1, 2, 3), (1, 2), (1, 2)):
        taps = stride + 2 if stride < 3 else 3
        shape = (channels, *[side] * dims)
        layer, zeros = (drawn(run, dims, channels, taps, stride, groups, mode) for mode in ("circular", "zeros"))
        with torch.no_grad():
            zeros.weight.copy_(layer.weight)
        found = convolution_singular_values(layer, shape)
        errors.append(gap(found, decomposed(layer, shape)) / float(found[0]))
        if stride < 3:  # windows that tile the image meet no padding
            broken.append(gap(found, decomposed(zeros, shape)) / float(found[0]))
    says = run.states("N-61, A-128", r"\{\sigma_j(W)\}=\bigcup_q\{\sigma_j(\hat W(q))\}\text{ on a torus}")
    says.equal(errors, within=1e-10, where="largest error over σ₁; strides 1, 2, 3, groups 1, 2, lines and planes")
    says.fails("zero padding, decomposed as a whole", broken)
    layer = drawn(run, 1, channels, 3, 1, 1, "circular")
    blocks = symbol(layer, (channels, side))
    energy = float(blocks.abs().square().sum())
    says = run.states("N-61", r"\|W\|_F^2=\sum_q\|\hat W(q)\|_F^2")
    exact = float(layer_matrix(layer, (channels, side)).detach().to_dense().square().sum())
    says.equal(energy, exact, 1e-12)
    says.fails("half of the frequencies", float(blocks[: side // 2].abs().square().sum()))


def chain_of_bounds(run: Run) -> None:
    """The norm of a Toeplitz matrix, the largest value of the transform, the sum of the entries."""
    n = 40
    mixed, positive = torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64), run.rand(4)
    cases = [mixed, positive, run.randn(5)]
    norms = [convolution_norm(full_layer(h), (1, n), certain=True).upper for h in cases]
    exact = [float(torch.linalg.matrix_norm(toeplitz_matrix(h, n), 2)) for h in cases]
    run.states("N-61", r"\|H\|_2\text{ by the layer and by the matrix}").equal(norms, exact, 1e-10)
    largest = [float(torch.fft.fft(h, n + len(h) - 1).abs().max()) for h in cases]
    says = run.states("N-61", r"\|H_n^h\|_2\le\max_u|\hat h(u)|")
    says.at_most(
        exact, largest, 1e-12, where="û at the frequencies of n + m - 1 places: (1, 1, -1), positive, Gaussian"
    )
    signs = [toeplitz_matrix(h, n).abs() for h in (cases[0],)]
    says.fails(
        "each row with signs of its own, (1, 1, 1) in place of (1, 1, -1)",
        [float(torch.linalg.matrix_norm(s, 2)) for s in signs],
        promised=largest[:1],
    )
    says = run.states("N-61", r"\max_u|\hat h(u)|\le\|h\|_1")
    says.at_most(largest, [float(h.abs().sum()) for h in cases], 1e-12, where="met by positive kernels at frequency 0")
    growing = [h * 1.25 ** torch.arange(len(h)) for h in cases]
    says.fails(
        "waves that grow by a quarter a step", [float(torch.fft.fft(h, n + len(h) - 1).abs().max()) for h in growing]
    )


def zero_padding(run: Run, side: int, channels: int, layers: int) -> None:
    shape = (channels, side, side)
    drawn_layers = [drawn(run, 2, channels, 3, 1, 1, "zeros") for _ in range(layers)]
    exact = [decomposed(layer, shape) for layer in drawn_layers]
    bounds = [singular_value_bounds(layer, shape) for layer in drawn_layers]
    says = run.states(
        "N-61",
        r"\text{zero padding: }\sigma_1(W)\le\min_\theta\max_q\|\hat W_\theta(q)\|\text{ on a larger, twisted torus}",
    )
    upper = [float(high[0]) for _, high in bounds]
    says.at_most([float(e[0]) for e in exact], upper, 1e-12)
    ones = convolution_layer(torch.ones(1, 1, 3, 3, dtype=torch.float64) / 9, padding=1)
    rim = convolution_layer(torch.ones(1, 1, 3, 3, dtype=torch.float64) / 9, padding=1, padding_mode="replicate")
    own = singular_value_bounds(ones, (1, side, side))[1]
    says.fails("the rim repeated in place of zeros", float(decomposed(rim, (1, side, side))[0]), promised=float(own[0]))
    says = run.states(
        "N-61", r"\tau_{j+r}\le\sigma_j\le\tau_j\text{ for all }j:\ \text{the smallest distance to a bound}"
    )
    inside = [
        float(torch.minimum(e - low, high - e).min() / e[0]) for e, (low, high) in zip(exact, bounds, strict=True)
    ]
    says.at_least(inside, 0.0, 1e-12, loose="a distance is compared with 0")
    repeated = decomposed(rim, (1, side, side))
    low, high = singular_value_bounds(ones, (1, side, side))
    says.fails("the rim repeated in place of zeros", float(torch.minimum(repeated - low, high - repeated).min()))
    twisted = [(1 + 2 * math.cos(math.pi / (n + 1))) for n in (5, 12, 31)]
    three = [
        singular_value_bounds(convolution_layer(torch.ones(1, 1, 3).double(), padding=1), (1, n)) for n in (5, 12, 31)
    ]
    says = run.states("N-61", r"(1,1,1)\text{ on }n\text{ places, half twist: }\sigma_1=1+2\cos\tfrac\pi{n+1}")
    says.equal([float(high[0]) for _, high in three], twisted, 1e-12, where="n = 5, 12, 31: the bound is the norm")
    around = convolution_layer(torch.ones(1, 1, 3).double(), padding=1, padding_mode="circular")
    says.fails("a circle", [float(convolution_singular_values(around, (1, n))[0]) for n in (5, 12, 31)])
    low, high = bounds[0]
    circle = drawn(run, 2, channels, 3, 1, 1, "circular")
    with torch.no_grad():
        circle.weight.copy_(drawn_layers[0].weight)
    torus = convolution_singular_values(circle, shape)
    run.figure(
        "spectrum",
        lambda axes: plot_spectrum(axes, exact[0], low, high, torus, symbol_norms(circle, shape)),
        caption="Left: all singular values of a layer with zero padding, their bounds from a larger torus, and those "
        "of the same layer with circular padding. Right: the norm of the circular layer's block at each frequency.",
        grid=(1, 2),
        size=(10, 3.4),
    )


def drawn(run: Run, dims: int, channels: int, taps: int, stride: int, groups: int, mode: Any) -> Any:
    """A layer with Gaussian weights whose output has as many places as its input, over the stride."""
    layer = CONVOLUTIONS[dims - 1](
        channels, channels, taps, stride, max(0, (taps - stride) // 2), 1, groups, False, mode, dtype=torch.float64
    )
    with torch.no_grad():
        layer.weight.copy_(run.randn(*layer.weight.shape) / math.sqrt(layer.weight[0].numel()))
    return layer


def full_layer(h: Tensor) -> nn.Conv1d | nn.Conv2d | nn.Conv3d:
    return convolution_layer(h[None, None], padding=len(h) - 1, flip=True)


def decomposed(layer: Any, shape: tuple[int, ...]) -> Tensor:
    values: Tensor = torch.linalg.svdvals(layer_matrix(layer, shape).detach().to_dense())
    return values


def symbol_norms(layer: Any, shape: tuple[int, ...]) -> Tensor:
    norms: Tensor = torch.linalg.matrix_norm(symbol(layer, shape), 2)
    shifted: Tensor = torch.fft.fftshift(norms)
    return shifted


def plot_spectrum(axes: Any, exact: Tensor, low: Tensor, high: Tensor, torus: Tensor, norms: Tensor) -> None:
    left, right = axes[0]
    places = range(1, len(exact) + 1)
    left.fill_between(places, low.numpy(), high.numpy(), color=COLORS[0], alpha=0.25, label="bounds")
    left.plot(places, exact.numpy(), color=COLORS[0], label="zero padding")
    left.plot(places, torus.numpy(), color=COLORS[1], linestyle=":", label="circular padding")
    left.set(xlabel="place in order", ylabel="singular value", ylim=(0, None))
    left.legend()
    low_end, high_end = -(len(norms) // 2) - 0.5, len(norms) - len(norms) // 2 - 0.5
    picture = right.imshow(norms.numpy(), cmap="viridis", extent=(low_end, high_end, high_end, low_end))
    right.grid(False)
    right.set(xlabel="horizontal frequency", ylabel="vertical frequency")
    right.figure.colorbar(picture, ax=right, label="norm of the block")
