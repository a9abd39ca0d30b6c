"""A convolutional network with one wide layer fits any labels of a finite sample."""

from __future__ import annotations

from typing import Any

import torch

from torchtheory.approximation.memorization.convolutional import (
    convolutional_interpolant,
    pooled_network,
)
from torchtheory.data.real import digits
from torchtheory.kernels.infinite.wide_layer import layer_ranks
from torchtheory.labs.engine import COLORS, Run, lab

ACTIVATIONS = ("tanh", "logistic", "softplus")


@lab(
    "convolutional-interpolation",
    room="approximation",
    covers=["X-84"],
    title="Random filters and one wide layer: a convolutional network fits any labels",
    full={"samples": 400, "draws": 10},
    least={"samples": 16, "draws": 1},
)
def convolutional_interpolation(run: Run, samples: int = 80, draws: int = 3) -> None:
    """Handwritten digits with random labels go through random filters and max pooling.

    The second convolution has 4 neurons a channel. As soon as it has as many neurons as there are
    images, the images are linearly independent there and the last layer fits any labels; with one
    channel less it cannot, nor where an image appears twice with different labels. Look at the
    residual where neurons and samples meet.

    Args:
        samples: digits; a multiple of 4 of them is used.
        draws: random filters and labels per activation.
    """
    n = samples - samples % 4
    pixels, _ = digits(torch.float64)
    order = torch.randperm(len(pixels), generator=run.generator)[:n]
    x = pixels[order].reshape(n, 1, 8, 8)
    x = x / x.max()
    y = run.signs(n)
    full = n // 4
    shape = (1, 8, 8)
    ranks, short, residuals = [], [], []
    for name in ACTIVATIONS:
        for _ in range(draws):
            net = pooled_network(shape, (6, full), activation=name, generator=run.generator)
            ranks.append(layer_ranks(net, x)[4].rank)
            fewer = pooled_network(shape, (6, full - 1), activation=name, generator=run.generator)
            short.append(layer_ranks(fewer, x)[4].rank)
            fit = convolutional_interpolant(x, y, (6, 2 * full), activation=name, generator=run.generator)
            residuals.append(fit.residual)
    says = run.states("X-84", r"\text{as many neurons as samples, random filters: rank of the features}=n")
    says.equal(ranks, n, where=f"{n} digits, {', '.join(ACTIVATIONS)}, {draws} draws each; max pooling before")
    says.fails("one channel less: n - 4 neurons", short)
    narrow = convolutional_interpolant(x, y, (6, full - 1), generator=run.generator)
    says = run.states("X-84", r"\max_i|y_i-\Phi(x_i)| \text{ with the last layer solved}")
    says.equal(residuals, within=1e-8, where="twice as many neurons as samples")
    says.fails("fewer neurons than samples", narrow.residual)
    twins, labels = torch.cat([x, x[:1]]), torch.cat([y, -y[:1]])
    single = convolutional_interpolant(x, y, (6, 2 * full), generator=run.generator)
    twice = convolutional_interpolant(twins, labels, (6, 2 * full), generator=run.generator)
    says = run.states("X-84", r"\text{all images different: rank}-\text{samples}=0")
    says.equal(single.rank - single.samples)
    says.fails(
        f"one image twice with labels +1 and -1: an error of {twice.residual:.2f} remains", twice.rank - twice.samples
    )
    widths = sorted({1, full // 4, full // 2, full - 1, full, full + 1, 2 * full})
    rows = []
    for wide in widths:
        fit = convolutional_interpolant(x, y, (6, wide), generator=run.generator)
        rows.append((4 * wide, fit.rank, fit.residual))
    run.table(
        "width",
        ["neurons of the wide layer", "rank", "largest error"],
        rows,
        caption=f"{n} digits with random labels, tanh",
    )
    run.figure(
        "width",
        lambda axes: plot(axes, rows, n),
        grid=(1, 2),
        caption="The largest error (left) and the rank of the features (right) against the neurons "
        "of the second convolution; dashed, as many as samples.",
    )


def plot(axes: Any, rows: list[tuple[int, int, float]], n: int) -> None:
    left, right = axes[0]
    neurons = [row[0] for row in rows]
    left.semilogy(neurons, [row[2] for row in rows], "o-", color=COLORS[1], label="largest error")
    left.axvline(n, color="0.5", linestyle="--", linewidth=0.8)
    left.set(xlabel="neurons of the wide layer", ylabel="largest error", title=f"{n} samples")
    right.plot(neurons, [row[1] for row in rows], "o-", color=COLORS[0], label="rank")
    right.plot(neurons, [min(v, n) for v in neurons], "--", color="0.5", label="min(neurons, n)")
    right.set(xlabel="neurons of the wide layer", ylabel="rank of the features", title="rank")
    right.legend()
