"""Residual networks: the identity for free, a plain network inside, and memory."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.approximation.architectures.residual import (
    ResidualBlock,
    ResidualMemorizer,
    ResidualNetwork,
    residual_memorizer,
    unroll_residual,
)
from torchtheory.approximation.certificates import network_size
from torchtheory.labs.engine import COLORS, Run, lab, mean_interval


@lab(
    "residual-memorization",
    room="approximation",
    covers=["X-85", "X-86"],
    title="Residual blocks: unrolled, trained at depth, and writing down a sample in 2nk weights",
    full={"largest": 6400, "depths": (8, 16, 32, 64), "steps": 300, "seeds": 12},
    least={"largest": 100, "seeds": 8},
)
def residual_memorization(
    run: Run,
    largest: int = 1600,
    depths: tuple[int, ...] = (2, 24),
    steps: int = 50,
    seeds: int = 12,
) -> None:
    """Residual networks are unrolled into plain ones, trained at depth, and made to memorize.

    The plain network that carries the input along computes exactly the same with 3k units a layer.
    Stated before training: with the same step and number of steps, blocks of two layers and
    shortcuts that start as the identity, the training loss of the deepest plain network is above
    that of the deepest residual one and above that of the shallow plain one, over `seeds` seeds;
    that of residual networks does not rise. Then the network of Hardt and Ma gives n random
    points on a sphere their classes, with about 2nk weights, k = ⌈8 log n⌉. Look at how the weights
    grow with n, and at the training losses.

    Args:
        largest: points to memorize, at most.
        depths: of the trained networks, in blocks of two layers.
        steps: of training.
    """
    unrolling(run)
    losses = degradation(run, depths, steps, seeds)
    sizes = [n for n in (100, 400, 1600, 6400) if n <= largest]
    rows = memory(run, sizes)
    run.table(
        "memory",
        ["n", "classes", "width k", "blocks", "weights M", "M / (n log n)", "residual"],
        rows,
        caption="Residual networks that give n random points of the sphere random classes",
    )
    run.figure(
        "residual",
        lambda axes: plot(axes, depths, losses, rows),
        grid=(1, 2),
        caption="Left: training losses of plain and residual ReLU networks of width 12 after "
        f"{steps} steps, one dot a seed. Right: weights of the memorizing network, and n log n.",
    )


def random_blocks(run: Run, k: int, count: int) -> list[ResidualBlock]:
    scale = 1 / math.sqrt(k)
    return [ResidualBlock(run.randn(k, k) * scale, run.randn(k), run.randn(k, k) * scale) for _ in range(count)]


def unrolling(run: Run) -> None:
    apart, widths, promised, dropped, identity, negative = [], [], [], [], [], []
    for k in (1, 3, 8):
        for between in (False, True):
            blocks = random_blocks(run, k, 5)
            net = ResidualNetwork(blocks, activation_between=between)
            plain = unroll_residual(net)
            x = run.randn(200, k)
            value = net(x)
            # values may all be cut off to 0, and what the network carries is as large as x
            scale = max(float(value.abs().max()), float(x.abs().max()))
            apart.append(float((plain(x) - value).abs().max()) / scale)
            widths.append(network_size(plain).width)
            promised.append(3 * k)
            cut = unroll_residual(net)
            with torch.no_grad():  # the units that carry the negative part of the input
                cut[0].weight[2 * k :] = 0.0  # type: ignore[operator]
            dropped.append(float((cut(x) - value).abs().max()) / scale)
            zeros = [ResidualBlock(b.inner.weight, b.inner.bias, torch.zeros(k, k).double()) for b in blocks]
            still = ResidualNetwork(zeros, activation_between=between)
            given = x.abs() if between else x
            identity.append(float((still(given) - given).abs().max()))
            with_relu = ResidualNetwork(zeros, activation_between=True)
            negative.append(float((with_relu(x) - x).abs().max()))
    says = run.states(
        "X-85", r"\max|\Phi_{\text{plain}}(x)-\Phi_{\text{residual}}(x)|/\max|\Phi| \text{ for the unrolled network}"
    )
    says.equal(apart, within=1e-12)
    says.fails("without the k units that carry the negative part of x", dropped)
    run.states("X-85", r"\text{width of the unrolled network}=3k").equal(widths, promised)
    says = run.states("X-85", r"V=0:\ \Phi(x)=x,\ \text{with ReLU between the blocks for } x\ge0")
    says.equal(identity)
    says.fails("ReLU between the blocks, and x of any sign", negative)


def degradation(run: Run, depths: tuple[int, ...], steps: int, seeds: int) -> dict[tuple[str, int], Tensor]:
    """Plain and residual networks on one task; all seeds are one batched training."""
    k = 12
    x = run.randn(64, k)
    teacher = run.randn(k, 1)
    y = torch.tanh(x @ teacher / math.sqrt(k)) + (x[:, :1] * x[:, 1:2])
    losses: dict[tuple[str, int], Tensor] = {}
    for depth in depths:
        inner = run.randn(seeds, depth, k, k) * math.sqrt(2 / k)
        outer = run.randn(seeds, depth, k, k) * math.sqrt(2 / k)
        head = run.randn(seeds, k, 1) / math.sqrt(k)
        losses["plain", depth] = train(x, y, inner, outer, head, steps, residual=False)
        # blocks start as the identity, V = 0: what a shortcut makes possible
        losses["residual", depth] = train(x, y, inner, 0 * outer, head, steps, residual=True)
    deepest, shallow = max(depths), min(depths)
    worse = losses["plain", deepest].log() - losses["residual", deepest].log()
    gap = mean_interval(worse)
    run.states(
        "X-85",
        r"\text{mean of }\log(\text{loss of the plain}/\text{of the residual network})>0 "
        rf"\text{{ at depth {deepest}}}",
    ).above(gap.low, 0.0, where=f"lower end of the 99% interval over {seeds} seeds; estimate {gap.estimate:.2f}")
    deeper = mean_interval(losses["plain", deepest].log() - losses["plain", shallow].log())
    kept = mean_interval(losses["residual", deepest].log() - losses["residual", shallow].log())
    says = run.states(
        "X-85", rf"\text{{plain: mean of }}\log(\text{{loss at depth {deepest}}}/\text{{at depth {shallow}}})>0"
    )
    says.above(deeper.low, 0.0, where=f"lower end of the 99% interval; estimate {deeper.estimate:.2f}")
    says.fails("residual networks, whose loss does not rise with depth", kept.low)
    return losses


def train(x: Tensor, y: Tensor, inner: Tensor, outer: Tensor, head: Tensor, steps: int, *, residual: bool) -> Tensor:
    """The training loss of every seed after full-batch Adam."""
    w, v = ([m.contiguous().requires_grad_() for m in given.unbind(1)] for given in (inner, outer))
    zero = torch.zeros(len(inner), 1, inner.shape[-1], dtype=torch.float64)
    biases = [zero.clone().requires_grad_() for _ in w]
    last = head.clone().requires_grad_()
    adam = torch.optim.Adam([*w, *v, *biases, last], lr=0.01)
    each = zero
    for step in range(steps + 1):
        state = x.expand(len(inner), -1, -1)
        for first, second, bias in zip(w, v, biases, strict=True):
            made = torch.bmm(torch.relu(torch.baddbmm(bias, state, first)), second)
            state = state + made if residual else torch.relu(made)
        each = (torch.bmm(state, last) - y).square().mean((1, 2))
        if step < steps:
            adam.zero_grad()
            each.sum().backward()  # type: ignore[no-untyped-call]
            adam.step()
    return each.detach()


def memory(run: Run, sizes: list[int]) -> list[tuple[int, int, int, int, int, float, float]]:
    rows, made, bad = [], [], []
    for n in sizes:
        for classes in (10, 3 * math.ceil(8 * math.log(n))):
            found = memorized(run, n, classes)
            made.append((found, n, classes))
            m = found.network.weights
            ratio = m / (n * math.log(n))
            rows.append((n, classes, found.width, found.blocks, m, ratio, found.residual))
    small = memorized(run, sizes[0], 10, thresholds_kept=False)
    bad.append(small.residual)
    says = run.states("X-86", r"\max_i|\Phi(x_i)-e_{y_i}|")
    says.equal([f.residual for f, *_ in made], within=1e-8)
    says.fails("thresholds 0: the neurons fire at other samples as well", bad)
    run.states("X-86", r"\text{blocks}=\lceil n/k\rceil").equal(
        [f.blocks for f, *_ in made], [math.ceil(n / f.width) for f, n, _ in made]
    )
    plain = [n * n + n for _, n, _ in made]
    says = run.states(
        "X-86", r"M\le2nk+n+2k^2+k+dk+k \text{ and } 2s^2+s+sk+s \text{ for } s \text{ classes};\ k=\lceil8\log n\rceil"
    )
    says.at_most(
        [f.network.weights for f, *_ in made],
        [
            2 * n * f.width + n + 2 * f.width**2 + f.width * (DIMENSION + 2) + 2 * s * s + 2 * s + s * f.width
            for f, n, s in made
        ],
    )
    says.fails("one neuron a sample in a single layer of n coordinates", plain)
    return rows


DIMENSION = 128


def memorized(run: Run, n: int, classes: int, *, thresholds_kept: bool = True) -> ResidualMemorizer:
    x = run.randn(n, DIMENSION)
    x = x / x.norm(dim=1, keepdim=True)
    labels = torch.randint(0, classes, (n,), generator=run.generator)
    labels[: min(n, classes)] = torch.arange(min(n, classes))
    made = residual_memorizer(x, labels, math.ceil(8 * math.log(n)), generator=run.generator)
    if thresholds_kept:
        return made
    for block in made.network:
        if isinstance(block, ResidualBlock):
            nn.init.zeros_(block.inner.bias)
    wanted = nn.functional.one_hot(labels, int(labels.max()) + 1)
    left = float((made.network(x) - wanted).abs().max())
    return ResidualMemorizer(made.network, left, made.width, made.blocks)


def plot(
    axes: Any,
    depths: tuple[int, ...],
    losses: dict[tuple[str, int], Tensor],
    rows: list[tuple[int, int, int, int, int, float, float]],
) -> None:
    left, right = axes[0]
    for color, kind in zip(COLORS, ("plain", "residual"), strict=False):
        for depth in depths:
            values = losses[kind, depth]
            place = depth * (0.95 if kind == "plain" else 1.05)
            left.plot([place] * len(values), values, "o", color=color, markersize=3)
        left.plot(
            [d * (0.95 if kind == "plain" else 1.05) for d in depths],
            [float(losses[kind, d].median()) for d in depths],
            color=color, label=kind,
        )  # fmt: skip
    left.set(xscale="log", yscale="log", xlabel="blocks of two layers", ylabel="training loss")
    left.set_xticks(depths, [str(d) for d in depths])
    left.set_xticks([], minor=True)
    left.set_title("the same steps for both")
    left.legend()
    few = [r for r in rows if r[1] == 10]
    n = [r[0] for r in few]
    right.loglog(n, [r[4] for r in few], "o-", label="weights M, 10 classes")
    right.loglog(n, [16 * v * math.log(v) for v in n], "--", color="0.5", label="16 n log n")
    right.set(xlabel="samples n", ylabel="weights", title="memory")
    right.legend()
