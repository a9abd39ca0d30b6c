"""Stochastic gradient descent: an unbiased gradient, and what a batch makes of its noise."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.labs.optimization.example_losses import half_square
from torchtheory.optimization.curvature.noise_scale import gradient_noise_scale
from torchtheory.optimization.descent.iterates import descend, last_iterate, trajectory
from torchtheory.optimization.descent.minibatch import (
    draw_batches,
    minibatch_direction,
    minibatch_gradient,
)

#: Confidence of each statistical comparison.
SURE = 0.9999

#: Batch sizes, the variance of the gradient with and without replacement, and of one example.
Variances = tuple[list[int], Tensor, float]


@lab(
    "stochastic-gradient-descent",
    room="optimization",
    covers=["N-52", "S-21", "A-23", "L-135", "L-136", "L-137"],
    title="Stochastic gradient descent: unbiased steps, and what a larger batch buys",
    full={"trials": 4000},
    least={"trials": 80},
)
def stochastic(run: Run, trials: int = 400) -> None:
    """A random subset of the examples gives the full gradient on average, exactly, and its variance
    falls like one over the size of the batch; an epoch of a random order does not, given what it
    has shown so far.

    A larger batch makes the best step longer and the progress of it better, but not without end:
    beyond the noise scale of the gradient little is left to gain. Look at the batch sizes where the
    two variances part, and where progress has reached a half.

    Args:
        trials: batches of each size.
    """
    unbiased(run)
    variances = batch_variance(run, trials)
    progress = noise_scale(run)
    same_as_torch(run)
    run.figure(
        "batches",
        lambda axes: plot(axes, variances, progress),
        caption="Left: variance of the mini-batch gradient; beyond the last square it is 0. Right: "
        "decrease of the loss by the best step with batches of B, over all batches, relative to "
        "the best step with the full gradient.",
        grid=(1, 2),
        size=(9.5, 3.4),
    )


def unbiased(run: Run) -> None:
    """Every subset of a small sample, and every order of it."""
    samples, size = 8, 3
    x, y, theta = run.randn(samples, 4), run.randn(samples), run.randn(4)
    full = minibatch_gradient(half_square, theta, x, y)
    subsets = [torch.tensor(list(itertools.combinations(range(samples), m))) for m in range(1, samples + 1)]

    def mean_gradient(chosen: Tensor) -> Tensor:
        each = minibatch_gradient(half_square, theta.expand(len(chosen), -1), x[chosen], y[chosen])
        return each.mean(0)

    # the control's sampler prefers the examples with large residuals: it leaves the smallest out
    order = ((x @ theta - y).abs()).argsort()
    says = run.states(
        "A-23, S-21, N-52, L-136, L-137",
        r"\text{mean of } \tfrac1{m'}\sum_{z\in S'}\nabla\ell(\theta,z) \text{ over all } S'"
        r" \text{ of size } m' = \nabla r(\theta)",
    )
    says.equal(
        torch.stack([mean_gradient(s) for s in subsets]),
        full.expand(samples, -1),
        1e-12,
        where="all subsets of 8 examples; m' = 1, the average of single gradients, to m' = 8",
    )
    says.fails(
        "only the harder half is drawn from",
        mean_gradient(order[samples // 2 :][subsets[0][: samples // 2]]),
        promised=full,
    )
    # given the first n - 1 examples of an epoch the last one is no longer random
    last = minibatch_gradient(half_square, theta.expand(samples, -1), x[:, None], y[:, None])
    remaining = torch.stack([last[list(left)].mean(0) for left in itertools.combinations(range(samples), size)])
    says = run.states(
        "A-23",
        r"\mathbb E[D^{(k)}\mid\Theta^{(k-1)}]=\nabla r(\Theta^{(k-1)}) \text{ for independent"
        r" batches: largest deviation}",
    )
    says.equal((mean_gradient(subsets[0]) - full).norm(), within=1e-12)
    says.fails(
        "epoch sampling: the mean over the 3 examples an epoch has not shown yet", (remaining - full).norm(dim=1).max()
    )
    run.states(
        "A-23", r"\text{epoch sampling is unbiased before the epoch has shown anything: mean over all pasts}"
    ).equal(remaining.mean(0), full, 1e-12)
    counted: list[int] = []

    def counting(point: Tensor, a: Tensor, b: Tensor) -> Tensor:
        counted.append(b.numel())
        return half_square(point, a, b)

    for n in (10, 1000, 100_000):
        data = [run.randn(n, 4), run.randn(n)]
        steps = draw_batches(n, 1, 3, generator=run.generator)
        list(descend(minibatch_direction(counting, data, steps), theta, [0.1] * 3))
    stochastic_evaluations = list(counted)
    counted.clear()
    minibatch_gradient(counting, theta, *data)
    says = run.states("N-52", r"\text{gradients computed in a step, for } s=10,\,10^3,\,10^5")
    says.equal(stochastic_evaluations, 1)
    says.fails("the full gradient", counted)


def batch_variance(run: Run, trials: int) -> Variances:
    samples, sizes = 64, [1, 2, 4, 8, 16, 32, 64]
    x, y, theta = run.randn(samples, 4), run.randn(samples), run.randn(4)
    each = minibatch_gradient(half_square, theta.expand(samples, -1), x[:, None], y[:, None])
    full = each.mean(0)
    single = float((each - full).square().sum(1).mean())

    def measured(sampling: Any) -> Tensor:
        rows = []
        for m in sizes:
            chosen = draw_batches(samples, m, 1, trials=(25 * trials,), sampling=sampling, generator=run.generator)
            rows.append((each[chosen[:, 0]].mean(1) - full).square().sum(1))
        return torch.stack(rows)

    drawn = measured("replacement")
    subset = measured("subset")
    says = run.states("N-52, S-21, L-137", r"\mathrm{Var}\,\hat g\propto1/m: \text{ slope on logarithmic scales}")
    says.slope(
        sizes,
        drawn.mean(1),
        -1,
        against=(-2.0, -0.5, 0.0),
        confidence=SURE,
        where=f"{10 * trials} batches with replacement for each m = 1, 2, 4, ..., 64",
    )
    says.fails(
        "the draws are not independent: one example, m times",
        sizes,
        measured_copies(run, each, full, sizes, 10 * trials),
    )
    says = run.states("N-52, S-21, L-137", r"m=8:\ \mathbb E\|\hat g-\nabla r\|^2=\sigma^2/8")
    # without replacement, a variance like 1/m², and none gained
    without = single / 8 * (samples - 8) / (samples - 1)
    says.mean(drawn[3], single / 8, against=(without, single / 8**2, single), confidence=SURE)
    says.fails("m = 1", drawn[0])
    says = run.states(
        "S-21, A-23, L-137",
        r"\text{without replacement: } \mathbb E\|\hat g-\nabla r\|^2=\frac{\sigma^2}m\frac{n-m}{n-1}",
    )
    says.mean(
        subset[5],
        single / 32 * (samples - 32) / (samples - 1),
        against=(single / 32, single / 32 / (samples - 1)),
        confidence=SURE,
        where="m = 32 of n = 64",
    )
    says.fails("with replacement", drawn[5])
    return sizes, torch.stack([drawn.mean(1), subset.mean(1)]), single


def measured_copies(run: Run, each: Tensor, full: Tensor, sizes: list[int], trials: int) -> list[float]:
    """Variance of the gradient when a batch is one example again and again."""
    found = []
    for m in sizes:
        chosen = draw_batches(len(each), 1, 1, trials=(trials,), generator=run.generator)
        copies = chosen[:, 0].expand(-1, m)
        found.append(float((each[copies].mean(1) - full).square().sum(1).mean()))
    return found


Progress = tuple[list[int], list[float], float]


def noise_scale(run: Run) -> Progress:
    """The best step with batches of B: the mean over all batches, and the formula."""
    # what the examples share lies along the first axis, most of what they do not along the others
    x, sizes = run.randn(5, 3) + torch.tensor([1.5, 0.0, 0.0]).double(), [1, 2, 3, 4, 5]

    def centered(theta: Tensor, z: Tensor) -> Tensor:
        """Half the squared distance, whose curvature is 1 in every direction."""
        return (theta - z).square().sum(-1) / 2

    def stretched(theta: Tensor, z: Tensor) -> Tensor:
        """The same with curvatures 1, 4 and 4."""
        return ((theta - z).square() * torch.tensor([1.0, 4.0, 4.0])).sum(-1) / 2

    def shares(loss: Any) -> tuple[list[float], float]:
        """Decrease by the best step over that with the gradient, by batch; and the noise scale."""
        start = torch.zeros(3, dtype=torch.float64)
        curvature = torch.func.hessian(lambda t: loss(t, x).mean())(start)
        each = minibatch_gradient(loss, start.expand(5, -1), x[:, None])
        found = []
        for size in sizes:
            chosen = torch.tensor(list(itertools.product(range(5), repeat=size)))
            g = each[chosen].mean(1)
            # the mean over batches of L(-eta g) is a parabola in eta
            slope, bend = (g @ each.mean(0)).mean(), ((g @ curvature) * g).sum(1).mean()
            found.append(float(slope**2 / (2 * bend)))
        whole = each.mean(0)
        best = whole.square().sum() ** 2 / (2 * whole @ curvature @ whole)
        # with the divisor n in the variance of a complete set of n examples
        scale = gradient_noise_scale(each @ each.T, 1, complete=True).value * (5 - 1) / 5
        return [f / float(best) for f in found], scale

    found, scale = shares(centered)
    uneven, other = shares(stretched)
    says = run.states(
        "L-137",
        r"\text{the best step with batches of } B \text{ lowers } L \text{ by } "
        r"\Bigl(1+\frac{\operatorname{tr}\Sigma}{B\|\nabla L\|^2}\Bigr)^{-1} \text{ of the best step with } \nabla L",
    )
    says.equal(
        found,
        [1 / (1 + scale / size) for size in sizes],
        1e-12,
        where="curvature 1 in every direction; all batches of 1 to 5 of five examples",
    )
    says.fails("curvatures 1, 4 and 4", uneven, promised=[1 / (1 + other / b) for b in sizes])
    return sizes, found, scale


def same_as_torch(run: Run) -> None:
    """The algorithm of the slides, torch's optimizer on the same batches, and the average."""
    samples, steps, size = 24, 40, 6
    x, y, start = run.randn(samples, 3), run.randn(samples), run.randn(3)
    rates = [0.1 / math.sqrt(k + 1) for k in range(steps)]
    chosen = draw_batches(samples, size, steps, generator=run.generator)
    direction = minibatch_direction(half_square, [x, y], chosen)
    path = trajectory(direction, start, rates)
    shuffled = minibatch_direction(half_square, [x, y], chosen.flip(0))

    layer = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(start[None])
    averaged = AveragedModel(layer)
    optimizer = torch.optim.SGD(layer.parameters(), lr=rates[0])
    schedule = LambdaLR(optimizer, lambda k: 1 / math.sqrt(k + 1))
    for k in range(steps):
        averaged.update_parameters(layer)
        optimizer.zero_grad()
        batch = chosen[k]
        loss = (layer(x[batch])[:, 0] - y[batch]).square().mean() / 2
        loss.backward()
        optimizer.step()
        schedule.step()
    says = run.states(
        "S-21, A-23, N-52, L-135",
        r"\theta\leftarrow\theta-\epsilon_k\hat g \text{ is torch.optim.SGD with the same batches"
        r" and schedule: largest difference}",
    )
    says.equal((layer.weight.detach()[0] - path[-1]).abs().max(), within=1e-12)
    says.fails("other batches", (last_iterate(shuffled, start, rates) - layer.weight.detach()[0]).abs().max())
    mean = averaged.module.get_parameter("weight").detach()[0]
    says = run.states(
        "A-23",
        r"\text{torch's AveragedModel before each step: } \bar\Theta=\frac1K\sum_{k=0}^{K-1}"
        r"\Theta^{(k)}: \text{ largest difference}",
    )
    says.equal((mean - path[:-1].mean(0)).abs().max(), within=1e-12)
    says.fails("updated after each step", (mean - path[1:].mean(0)).abs().max())
    whole = draw_batches(samples, samples, steps, generator=run.generator)
    full = minibatch_direction(half_square, [x, y], torch.arange(samples).expand(steps, -1))
    again = draw_batches(samples, samples, steps, sampling="replacement", generator=run.generator)

    def apart(batches: Tensor) -> Tensor:
        ends = [last_iterate(d, start, rates) for d in (minibatch_direction(half_square, [x, y], batches), full)]
        return (ends[0] - ends[1]).abs().max()

    says = run.states("S-21, A-23", r"m=n \text{ without replacement is gradient descent: largest difference}")
    says.equal(apart(whole), within=1e-12)
    says.fails("with replacement", apart(again))


def plot(axes: Any, variances: Variances, progress: Progress) -> None:
    left, right = axes[0]
    sizes, measured, single = variances
    left.loglog(sizes, [single / m for m in sizes], "--", color="0.4", label=r"$\sigma^2/m$")
    left.loglog(sizes, measured[0], "o", color=COLORS[0], label="with replacement")
    left.loglog(sizes[:-1], measured[1][:-1], "s", color=COLORS[1], label="subsets")
    left.set(xlabel="batch size m", ylabel="variance of the gradient", title="n = 64 examples")
    left.legend()
    batches, found, scale = progress
    grid = torch.linspace(0.05, 12, 200)
    right.plot(grid, 1 / (1 + scale / grid), "--", color="0.4", label=r"$1/(1+B_\mathrm{noise}/B)$")
    right.plot(batches, found, "o", color=COLORS[0], label="over all batches")
    right.axvline(scale, color=COLORS[1], linestyle=":", label=rf"$B_\mathrm{{noise}}={scale:.2g}$")
    right.set(xlabel="batch size B", ylabel="share of the progress", ylim=(0, 1), title="one step")
    right.legend(loc="lower right")
