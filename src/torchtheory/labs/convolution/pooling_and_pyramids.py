"""Pooling, and networks that alternate it with convolutions."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from torchtheory.convolution.image_classifier import convolutional_network, feature_maps, tiled
from torchtheory.convolution.layer_sizes import layer_table, output_size
from torchtheory.convolution.pooling import (
    ConvolutionBlock,
    average_as_convolution,
    average_pool,
    max_pool,
    subsample,
)
from torchtheory.convolution.receptive_fields import dependence
from torchtheory.equivariance.groups import cyclic_group, group_convolve, product_group
from torchtheory.labs.engine import Run, lab
from torchtheory.labs.nets.comparing import gap

EXACT = 1e-12


@lab(
    "pooling-maps",
    room="convolution",
    covers=["N-63", "M-82", "A-127"],
    title="Pooling: maxima, averages and every second place",
    errata=["max-pooling-stride-one"],
    full={"images": 100, "side": 16},
    least={"images": 2, "side": 6},
)
def pooling_maps(run: Run, images: int = 10, side: int = 8) -> None:
    """Maxima over windows against their definition, averages as convolutions, blocks on a torus.

    The maximum changes no more than its input does and sends its gradient to one place; the
    average is a convolution with even weights whose output is subsampled. Only a stride makes
    images smaller: the printed formula has none, and takes n places to n - r + 1.

    Args:
        images: random images.
        side: of the images.
    """
    maxima(run, images, side)
    averages(run, images, side)
    blocks(run, side // 2)


def maxima(run: Run, images: int, side: int) -> None:
    x = run.randn(images, 1, side, side + 1)
    for size, stride in ((2, 2), (3, 2), (3, 1)):
        exact = windowed(x, size, stride).amax(-1)
        found = max_pool(x, size, stride)
        says = run.states("N-63, M-82", r"I'[i,j]=\max\{I[si+k,sj+\ell]:0\le k,\ell<r\}")
        says.equal(gap(found.values, exact), where=f"r = {size}, s = {stride}")
        says.fails("the minimum, that is the maximum of -I", gap(max_pool(-x, size, stride).values, exact))
    sizes = [max_pool(run.rand(1, 1, n, n), r, s).values.shape[2] for n, r, s in ((28, 2, 2), (9, 3, 2), (7, 3, 1))]
    says = run.states("N-63, M-82", r"\lfloor(n-r)/s\rfloor+1\text{ places}")
    says.equal(sizes, [14, 4, 5], where="28 with r = s = 2; 9 with r = 3, s = 2; 7 with r = 3, s = 1")
    says.fails(
        "a rim of one place", [output_size(n, r, s, padding=1) for n, r, s in ((28, 2, 2), (9, 3, 2), (7, 3, 1))]
    )
    printed = [max_pool(run.rand(1, 1, n, n), 2, 1).values.shape[2] for n in (16, 28)]
    run.refutes(
        "max-pooling-stride-one", r"\text{pooling with windows of }r\text{ places downsamples: }n\to n/r"
    ).equal(printed, [8, 14], where="r = 2 and the printed formula, in which windows move by one place")
    other = x.clone()
    place = max_pool(x, 2).places.flatten(1)[:, :1]
    other.flatten(1).scatter_add_(1, place, torch.full_like(place, 3, dtype=torch.float64))
    noisy = x + 0.3 * run.randn(*x.shape)

    def stretch(pool: Any) -> Tensor:
        pairs = [(pool(x) - pool(z)).abs().amax() / (x - z).abs().amax() for z in (other, noisy, x + 1)]
        return torch.stack(pairs).amax()

    says = run.states("N-63", r"\|P(I)-P(J)\|_\infty\le\|I-J\|_\infty")
    says.at_most(
        stretch(lambda z: max_pool(z, 2).values), 1.0, EXACT, where="a maximum that grows, noise, and all places by 1"
    )
    says.fails("sums over windows in place of maxima", stretch(nn.LPPool2d(1, 2)))
    above = x + run.rand(*x.shape)
    says = run.states("N-63", r"I\le J\Rightarrow P(I)\le P(J):\ \text{the smallest difference}")
    says.at_least(
        float((max_pool(above, 3, 2).values - max_pool(x, 3, 2).values).min()),
        0.0,
        loose="a strict increase everywhere leaves a difference above 0",
    )
    below = x - run.rand(*x.shape)
    says.fails("J below I", float((max_pool(below, 3, 2).values - max_pool(x, 3, 2).values).min()))
    routed(run, x)


def routed(run: Run, x: Tensor) -> None:
    """Where gradients go: to the place of the maximum, or evenly to all."""
    point = x.clone().requires_grad_()
    pooled = max_pool(point, 2)
    upstream = run.randn(*pooled.values.shape)
    (slope,) = torch.autograd.grad(pooled.values, point, upstream)
    routes = torch.zeros_like(x).flatten(2)
    routes.scatter_add_(2, pooled.places.flatten(2), upstream.flatten(2))
    (even,) = torch.autograd.grad(average_pool(point, 2), point, upstream)
    says = run.states("N-63, M-82", r"\partial L/\partial I\text{ goes to the place of the maximum and nowhere else}")
    says.equal(gap(slope.flatten(2), routes), within=EXACT)
    says.fails("the average, which spreads it", gap(even.flatten(2), routes))
    wide = upstream.repeat_interleave(2, 2).repeat_interleave(2, 3) / 4
    spread = torch.zeros_like(x)
    spread[..., : wide.shape[2], : wide.shape[3]] = wide
    says = run.states("M-82", r"\text{average: }\partial L/\partial I=g/r^2\text{ at each place of the window}")
    says.equal(gap(even, spread), within=EXACT)
    says.fails("the maximum", gap(slope, spread))


def averages(run: Run, images: int, side: int) -> None:
    x = run.randn(images, 2, side, side)
    for size, stride in ((2, 2), (3, 2)):
        every = average_as_convolution(2, size, 1, dtype=torch.float64)
        says = run.states(
            "A-127, M-82", r"\text{average}=\text{subsampling}\circ\text{convolution with }r^{-2}\mathbf 1"
        )
        says.equal(
            gap(average_pool(x, size, stride), subsample(every(x), stride)),
            within=EXACT,
            where=f"r = {size}, s = {stride}",
        )
        padded = nn.functional.pad(subsample(x, stride), (0, side, 0, side))
        first = every(padded)[..., : output_size(side, size, stride), : output_size(side, size, stride)]
        says.fails("subsampled first, then convolved", gap(average_pool(x, size, stride), first))


def blocks(run: Run, d: int) -> None:
    """Convolution on the group (Z/2d)², pooled to (Z/d)²."""
    kernels, x = run.randn(3, 1, 3, 3), run.randn(1, 1, 2 * d, 2 * d)
    group = product_group(cyclic_group(2 * d), cyclic_group(2 * d))
    wide = torch.zeros(3, 2 * d, 2 * d, dtype=torch.float64)
    wide[:, :3, :3] = kernels[:, 0]
    exact = torch.stack([group_convolve(x.flatten(), w.flatten(), group) for w in wide]).reshape(1, 3, 2 * d, 2 * d)
    poolings = {
        "subsample": exact[..., ::2, ::2],
        "average": windowed(exact, 2, 2).mean(-1),
        "max": windowed(exact, 2, 2).amax(-1),
    }
    says = run.states(
        "A-127", r"x\mapsto(p(x*\kappa_i))_{i\le C},\ p:\mathbb R^{(\mathbb Z/2d)^2}\to\mathbb R^{(\mathbb Z/d)^2}"
    )
    says.equal(
        [gap(ConvolutionBlock(kernels, kind)(x), pooled) for kind, pooled in poolings.items()],  # type: ignore[arg-type]
        within=EXACT,
        where="subsampling, average and maximum; the convolution summed over the group",
    )
    turned = kernels.flip(2, 3)
    says.fails(
        "cross-correlation",
        [gap(ConvolutionBlock(turned, kind)(x), pooled) for kind, pooled in poolings.items()],  # type: ignore[arg-type]
    )
    moved = [x.roll((s, 2), (2, 3)) for s in (2, 1)]
    block = ConvolutionBlock(kernels, "max")
    says = run.states(
        "A-127", r"p((\tau_{2u}x)*\kappa)=\tau_up(x*\kappa):\ \text{shifts by two places become shifts by one}"
    )
    says.equal(gap(block(moved[0]), block(x).roll((1, 1), (2, 3))), within=EXACT)
    says.fails("a shift by one place", gap(block(moved[1]), block(x).roll((1, 1), (2, 3))))
    fields = [dependence(nn.Sequential(layer), (1, 12))[-1].size for layer in (nn.Conv1d(1, 1, 3), nn.MaxPool1d(2))]
    both = nn.Sequential(nn.Conv1d(1, 1, 3), nn.MaxPool1d(2))
    run.states("A-127", r"\text{a unit of the block depends on }k+r-1\text{ places}").equal(
        [n for size in fields for n in size] + list(dependence(both, (1, 12))[-1].size), [3, 2, 4]
    )


def windowed(x: Tensor, size: int, stride: int) -> Tensor:
    """The entries of every window, one after another, by their indices."""
    rows, columns = (1 + (n - size) // stride for n in x.shape[2:])
    made = torch.zeros(*x.shape[:2], rows, columns, size * size, dtype=x.dtype)
    for i, j in itertools.product(range(rows), range(columns)):
        part = x[:, :, stride * i : stride * i + size, stride * j : stride * j + size]
        made[:, :, i, j] = part.flatten(2)
    return made


@lab(
    "convolutional-pyramid",
    room="convolution",
    covers=["M-69", "M-83", "N-64"],
    title="Convolutions, pooling and a dense head",
    full={"steps": 600, "filters": 16},
    least={"steps": 1},
)
def convolutional_pyramid(run: Run, steps: int = 50, filters: int = 8) -> None:
    """A small network on scikit-learn's digits: shapes, parameters, fields, a probability.

    Resolution falls and fields grow from block to block, by the recursion; the logistic output is
    a probability. The pictures show the filters of the first layer after training and what they
    make of a digit.

    Args:
        steps: of training.
        filters: of the first block; the second has twice as many.
    """
    shape, channels = (1, 12, 12), (filters, 2 * filters)
    net = convolutional_network(shape, channels, [16], 1, probability=True, padding=1, generator=run.generator)
    net = net.double()
    rows = layer_table(net, shape)
    spatial = [r for r in rows if len(r.shape) == 3]
    sizes, side = [], 12
    for width in channels:
        sizes += [(width, side, side)] * 2 + [(width, side // 2, side // 2)]
        side //= 2
    says = run.states(
        "M-69, M-83, N-64", r"\text{each block: }n\to\lfloor n/2\rfloor,\ \text{as many channels as filters}"
    )
    says.equal([n for r in spatial for n in r.shape], [n for s in sizes for n in s])
    flat = convolutional_network(shape, channels, [16], 1, pool=1, padding=1, generator=0)
    unpooled = [r for r in layer_table(flat, shape) if len(r.shape) == 3]
    says.fails(
        "no pooling",
        [unpooled[k].shape[1] for k in (1, 3)],
        promised=[sizes[2][1], sizes[5][1]],
    )
    parameters = 9 * filters + filters + 2 * filters * 9 * filters + 2 * filters + 2 * filters * 9 * 16 + 16 + 17
    says = run.states("M-69", r"\text{parameters: }C(9C'+1)\text{ per convolution, and the dense head}")
    says.equal(sum(r.parameters for r in rows), parameters)
    says.fails("no pooling", sum(p.numel() for p in flat.parameters()))
    seen = {d.name: d.size for d in dependence(net, shape)}
    grown = [(r.field, seen[r.name]) for r in spatial]
    says = run.states("N-64", r"r_\ell=r_{\ell-1}+(k_\ell-1)\prod_{j<\ell}s_j:\ 3,3,4,8,8,10")
    says.equal([f[0] for f, _ in grown if f], [3, 3, 4, 8, 8, 10])
    says.equal(
        [s[0] for _, s in grown], [min(f[0], 12) for f, _ in grown if f], where="what the middle unit depends on"
    )
    says.fails("no pooling", [r.field[0] for r in unpooled if r.field], promised=[4, 8, 10, 10])
    x, y = digits()
    losses = train(net, x, y, steps)
    maps = feature_maps(net, x[3])
    logits = nn.Sequential(*list(net)[:-1])(x).detach()
    probabilities = net(x).detach()
    says = run.states("M-69", r"P(Y=1\mid x)=1/(1+e^{-f(x)})")
    says.equal(gap(probabilities, 1 / (1 + torch.exp(-logits))), within=EXACT)
    says.fails("the output before the logistic function", gap(logits, 1 / (1 + torch.exp(-logits))))
    says = run.states("M-69", r"0\le P\le1:\ \bigl|P-\tfrac12\bigr|\le\tfrac12")
    says.at_most((probabilities - 0.5).abs().max(), 0.5)
    says.fails("the output before the logistic function", (logits - 0.5).abs().max())
    exact = net[0](x[3][None]).detach()[0]
    says = run.states(
        "M-83", r"\text{a layer of }C\text{ filters gives }C\text{ feature maps, each the image seen by a filter}"
    )
    says.equal(gap(maps["0"], exact), within=EXACT, where=f"{filters} maps of 12 × 12")
    says.fails("the maps of another digit", gap(feature_maps(net, x[4])["0"], exact))
    weight = net[0].weight
    assert isinstance(weight, Tensor)
    run.figure(
        "maps",
        lambda axes: plot_maps(axes, x[3, 0], weight.detach()[:, 0], maps["1"], maps["4"]),
        caption="A digit, the filters of the first layer after training, the feature maps of the first and of the "
        "second layer; each panel scaled by its own largest value.",
        grid=(1, 4),
        size=(10, 2.7),
    )
    run.curves(
        "loss",
        range(1, len(losses) + 1),
        {"training loss": losses},
        axes=("step", "cross-entropy"),
        caption="Is the digit below 5? Training on all digits, full batches.",
    )


def digits() -> tuple[Tensor, Tensor]:
    """Scikit-learn's digits with a rim of two places, and whether they are below 5."""
    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(images).reshape(-1, 1, 8, 8) / 16
    return nn.functional.pad(x, (2, 2, 2, 2))[:300], (torch.from_numpy(labels)[:300] < 5).double()


def train(net: nn.Module, x: Tensor, y: Tensor, steps: int) -> list[float]:
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy(net(x)[:, 0], y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def plot_maps(axes: Any, image: Tensor, filters: Tensor, first: Tensor, second: Tensor) -> None:
    panels = (
        ("image", image, "gray"),
        ("filters", tiled(filters), "RdBu_r"),
        ("maps of layer 1", tiled(first), "viridis"),
        ("maps of layer 2", tiled(second), "viridis"),
    )
    for ax, (title, picture, colors) in zip(axes[0], panels, strict=True):
        signed = colors == "RdBu_r"
        ax.imshow(picture.numpy(), cmap=colors, vmin=-1 if signed else None, vmax=1 if signed else None)
        ax.set_title(title)
        ax.set_axis_off()
