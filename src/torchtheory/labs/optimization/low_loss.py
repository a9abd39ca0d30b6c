"""Two minima of a wide network, and a path between them that stays low."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.kernels.infinite.wide_layer import fit_last_layer
from torchtheory.labs.engine import COLORS, Interval, Run, fit_slope, lab, mean_interval
from torchtheory.linalg.eigenvalues import extremal_eigenvalues
from torchtheory.models.model import flatten
from torchtheory.models.problem import Problem
from torchtheory.nets.feedforward import dense
from torchtheory.optimization.curvature.operators import hessian_operator
from torchtheory.optimization.landscape.low_loss_paths import (
    LEGS,
    LowLossPath,
    last_layer_problem,
    low_loss_path,
    make_monotone,
    minimize_last_layer,
    path_losses,
)
from torchtheory.optimization.landscape.parameter_space import losses_at
from torchtheory.optimization.landscape.slices import probe_segment
from torchtheory.optimization.landscape.trained_paths import bend_path


@lab(
    "low-loss-paths",
    room="optimization",
    covers=["A-117", "A-118", "A-119"],
    title="Two global minima of a wide network are joined by a path that stays low",
    errata=["maximum-on-the-boundary", "merging-path-stands-still"],
    full={"widths": tuple(2**k for k in range(6, 15)), "repeats": 6},
    least={"widths": 8, "repeats": 2, "samples": 15, "count": 2},
    items={"widths": 4},
)
def low_loss_paths(
    run: Run,
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024),
    repeats: int = 3,
    samples: int = 20,
    count: int = 21,
) -> None:
    """For fixed hidden units the loss is convex in the output weights.

    That is enough to join two minima of a wide network by a path of seven straight legs: half of
    the units move onto their nearest neighbors and are merged into them, their places are taken
    by units of the other network, and the output weights do the rest. Only the first and the last
    leg can raise the loss, by an amount that is bounded through the distance of neighbors, which
    shrinks as the network grows. Look at the straight path beside it, which does not get lower.
    Then a path from a bad start is rescaled in its last layer until the loss falls all the way.

    Args:
        widths: of the hidden layer.
        repeats: pairs of minima for each width.
        samples: that are fitted.
        count: points on a path.
    """
    x = run.randn(samples, 2)
    y = torch.sin(2 * x[:, :1]) + x[:, 1:].square() / 2
    convexity(run, x, y)
    boundary(run, x, y)
    profiles = paths(run, x, y, widths, repeats, count)
    curves = monotone(run, x, y, widths[0], count)
    run.figure(
        "paths",
        lambda axes: plot(axes, *profiles, curves, count),
        caption="Left: the loss on the constructed path (seven legs) and on the straight one, for "
        "the smallest and the largest width. Middle: the barrier of both by width, with the bound. "
        "Right: a path from a bad start, as constructed and with its last layer rescaled.",
        grid=(1, 3),
        size=(14.5, 4.2),
    )


def sphere(run: Run, count: int, size: int) -> Tensor:
    return F.normalize(run.randn(count, size), dim=1)


def network(run: Run, width: int, inputs: int, scale: float = 1.0) -> nn.Sequential:
    """Hidden units with rows uniform on the sphere, output weights of either sign."""
    rows = sphere(run, width, inputs + 1)
    output = scale * run.randn(1, width) / math.sqrt(width)
    return nn.Sequential(dense(rows[:, :-1], rows[:, -1]), nn.ReLU(), dense(output))


def minimum(run: Run, width: int, x: Tensor, y: Tensor) -> nn.Module:
    """A network of loss 0: random hidden units, and the output weights solved for."""
    start = network(run, width, x.shape[1], scale=0.0)
    return fit_last_layer(start, x, y).model


def vector_of(model: nn.Module) -> Tensor:
    return flatten({k: p.detach() for k, p in model.named_parameters()})


def convexity(run: Run, x: Tensor, y: Tensor) -> None:
    net = network(run, 12, 2)
    labels = (y > y.median()).double()
    squared = Problem(net, (x, y), task="regression")
    logistic = Problem(net, (x, labels), task="binary")
    smallest, whole, excess, outside = [], [], [], []
    for problem in (squared, logistic):
        convex = last_layer_problem(problem)
        for _ in range(5):
            at = {k: p + run.randn(*p.shape) for k, p in convex.parameters.items()}
            there = {k: p + run.randn(*p.shape) for k, p in convex.parameters.items()}
            smallest.append(extremal_eigenvalues(hessian_operator(convex, parameters=at)).smallest)
            excess.append(probe_segment(convex, flatten(at), flatten(there)).excess)
        whole.append(extremal_eigenvalues(hessian_operator(problem)).smallest)
    says = run.states(
        "A-117",
        r"\theta^{(2)}\mapsto r(\theta^{(1)},\theta^{(2)}) \text{ is convex: its Hessian is positive semi-definite}",
    )
    says.at_least(smallest, 0, 1e-8, where="squared and logistic loss, five points each")
    says.fails("the Hessian in all parameters", whole)
    says = run.states(
        "A-117",
        r"r(\theta^{(1)},(1-\lambda)\theta^{(2)}+\lambda\bar\theta^{(2)})\le(1-\lambda)r+\lambda\bar "
        r"r: \text{ most above the chord}",
    )
    # a minimum in the last layer, and the same function with its units in another order
    fitted = minimum(run, 12, x, y)
    for _ in range(10):
        order = torch.randperm(12, generator=run.generator)
        shuffled = flatten(
            {name: p[..., order] if p.shape[0] == 1 else p[order] for name, p in fitted.named_parameters()}
        )
        outside.append(probe_segment(Problem(fitted, (x, y), task="regression"), vector_of(fitted), shuffled).excess)
    says.at_most(excess, 0, 1e-12, where="ten random segments of the last layer")
    says.fails("segments in all parameters, between a minimum and its permutations", outside)
    fit = minimize_last_layer(squared, tolerance=1e-7, steps=5000)
    exact = fit_last_layer(net, x, y).model
    with torch.no_grad():
        best = float((exact(x) - y).square().mean())
    other = network(run, 12, 2)
    says = run.states("A-117", r"\text{the convex problem in the last layer is solved: } \min_{\theta^{(2)}}r")
    says.equal(fit.risk, best, 1e-8, where=f"by descent (gradient {fit.gradient_norm:.1e} left), against least squares")
    says.fails(
        "other hidden units",
        minimize_last_layer(Problem(other, (x, y), task="regression"), tolerance=1e-7, steps=5000).risk,
    )


def boundary(run: Run, x: Tensor, y: Tensor) -> None:
    """The maximum of a convex function lies on the boundary of a compact set."""
    net = network(run, 6, 2)
    problem = Problem(net, (x, y), task="regression")
    theta = flatten(problem.parameters)
    rest, size = theta[:-6], 6
    # a concave loss too has its maximum on the boundary, unless its critical point is inside
    center = vector_of(fit_last_layer(net, x, y).model)[-size:]
    corners = center + torch.tensor(list(itertools.product((-1.0, 1.0), repeat=size))).double()
    inside = center + 2 * run.rand(2000, size) - 1
    inside[:: len(inside) // 10] = center

    def risks(outputs: Tensor) -> Tensor:
        points = torch.cat([rest.expand(len(outputs), -1), outputs], 1)
        return losses_at(problem, points)

    says = run.states(
        "A-117",
        r"\max_{\theta^{(2)}\in\theta_*+[-1,1]^n}r \text{ is attained on the boundary: no inner point is "
        r"above the highest corner}",
    )

    def highest(values: Tensor) -> Tensor:
        return values.reshape(10, -1).amax(1)

    says.at_most(
        highest(risks(inside)),
        risks(corners).max(),
        where=f"the highest of {len(inside) // 10} points of the cube around the minimum θ*, ten times; "
        f"{len(corners)} corners",
    )
    says.fails("the loss -(Φ - y)², which is not convex", highest(-risks(inside)), promised=-risks(corners).min())
    direction = theta[-6:]
    ray = risks(torch.tensor([0.0, 1.0, 10.0, 100.0]).double()[:, None] * direction)
    run.refutes(
        "maximum-on-the-boundary",
        r"\text{for every } \mathcal P\subset\mathbb R^n \text{ the map assumes its maximum on } \partial\mathcal P",
    ).at_most(
        ray[1:].max(), ray[0], where="the ray from 0 through the output weights: closed, convex, its only end is 0"
    )


def paths(
    run: Run, x: Tensor, y: Tensor, widths: tuple[int, ...], repeats: int, count: int
) -> tuple[dict[int, list[Tensor]], list[tuple[int, float, float, float]]]:
    reach = float(torch.cat([x, torch.ones(len(x), 1)], 1).square().sum(1).mean().sqrt())
    profiles: dict[int, list[Tensor]] = {}
    barriers: list[tuple[int, float, float, float]] = []
    rows: list[tuple[float, ...]] = []
    roots, allowed, still, across, edges, dropped = [], [], [], [], [], []
    straight_tops, tops = [], []
    for width in widths:
        for k in range(repeats):
            nets = [minimum(run, width, x, y) for _ in range(2)]
            problem = Problem(nets[0], (x, y), task="regression")
            ends = [vector_of(net) for net in nets]
            path = low_loss_path(problem, *ends)
            losses = path_losses(problem, path.corners, count=count)
            straight = probe_segment(problem, *ends, count=7 * count).losses
            top = max(float(losses[0, 0]), float(losses[-1, -1]))
            bounds = [
                (math.sqrt(float(losses[0, 0])) + path.start_shift * reach),
                (math.sqrt(float(losses[-1, -1])) + path.end_shift * reach),
            ]
            roots += [losses[0].max().sqrt(), losses[-1].max().sqrt()]
            allowed += bounds
            still += [losses[leg] - losses[leg, 0] for leg in (1, 2, 4, 5)]
            across.append(losses[3].max())
            edges.append(torch.maximum(losses[3, 0], losses[3, -1]))
            straight_tops.append(straight.max())
            tops.append(top)
            if width == widths[-1]:
                dropped.append(without_merging(problem, path, width) - losses[0, -1])
            barrier = float(losses.max()) - top
            barriers.append((width, barrier, float(straight.max()) - top, max(bounds) ** 2 - top))
            if k == 0:
                profiles[width] = [losses, straight]
                rows.append(
                    (
                        width,
                        float(path.start_distances.max()),
                        float(path.end_distances.max()),
                        float(ends[0][-width:].abs().sum()),
                        barrier,
                        float(straight.max()) - top,
                    )
                )
    says = run.states(
        "A-118",
        r"\sqrt{r} \text{ rises on the first and last leg by at most } \mathrm{Lip}(\varrho)"
        r"\textstyle\sum_j|\theta_j^{(2)}|\,\epsilon_j\bigl(\tfrac1m\sum_i\|(x_i,1)\|^2\bigr)^{1/2}",
    )
    of_trained, for_trained = trained(run, x, y, widths[0], reach, rows[0][1])
    of_rays, for_rays, too_far = moving_together(widths[0], x[:1])
    says.at_most(
        torch.cat([torch.stack(roots), of_trained, of_rays]),
        torch.cat([torch.tensor(allowed), for_trained, for_rays]),
        1e-9,
        where=f"widths {widths[0]} to {widths[-1]}, {repeats} pairs of minima each; two networks with all weights "
        "trained; and units that all move towards one sample, where the bound is met",
    )
    says.fails("those units move six times as far as their nearest neighbors are", too_far, promised=for_rays)
    says = run.states("A-118", r"\text{merging neighbors and exchanging idle units do not change the loss}")
    says.equal(torch.stack(still), within=1e-10, where="four legs of every path")
    says.fails("output weights are dropped instead of added", torch.stack(dropped))
    says = run.states(
        "A-118", r"\text{on the leg across, in one linear space of networks, } r \text{ is at most that of its ends}"
    )
    says.at_most(torch.stack(across), torch.stack(edges), 1e-12)
    says.fails("the straight segment between the two minima", torch.stack(straight_tops), promised=tops)
    made, direct = barrier_slopes(barriers)
    says = run.states(
        "A-118",
        r"\text{the barrier falls as the network grows, at least as fast as } (\|\theta^{(2)}\|_1"
        r"\,\epsilon)^2\sim n^{-1}: \text{ exponent}",
    )
    says.at_most(
        made.high, -1, where=f"upper end of the 99% interval around {made.estimate:.2f}; ε falls like $n^{{-1/2}}$"
    )
    says.fails("the straight path", direct.high)
    neighbors(run, widths, repeats)
    small = low_loss_path(problem, *ends)
    merged, apart = small.corners[2][-width:], small.corners[1][-width:]
    run.refutes(
        "merging-path-stands-still",
        r"\lambda\theta_*^{(2)}+(1-\lambda)\theta_*^{(2)} \text{ leads from } \theta^{(2)} \text{ to } \theta_*^{(2)}",
    ).equal(merged, apart, 1e-6, where="its point at λ = 0 against the output weights it should start from")
    run.table(
        "paths",
        ["width", "ε of the start", "ε of the end", "‖θ⁽²⁾‖₁", "barrier", "straight"],
        rows,
        caption="Largest distance of a unit from its nearest neighbor at either end, and the "
        "barriers, for one pair a width",
    )
    return profiles, barriers


def without_merging(problem: Problem, path: LowLossPath, width: int) -> Tensor:
    """The loss where the units that moved are given output weight 0, and nothing else is done."""
    theta = path.corners[1].clone()
    theta[-(width - width // 2) :] = 0
    return losses_at(problem, theta[None])[0]


def barrier_slopes(
    barriers: list[tuple[int, float, float, float]],
) -> tuple[Interval, Interval]:
    widths = [float(w) for w, *_ in barriers]
    made = fit_slope(widths, [max(b, 1e-15) for _, b, _, _ in barriers])
    return made, fit_slope(widths, [max(s, 1e-15) for _, _, s, _ in barriers])


def neighbors(run: Run, widths: tuple[int, ...], repeats: int) -> None:
    """How far a random unit is from the nearest of m = n/2 others.

    A cap of chordal radius r is r²/4 of the sphere, so that the nearest is farther with probability
    (1 - r²/4)^m, and the mean is the integral of that.
    """

    def ratios(size: int) -> Interval:
        found = []
        for width in widths:
            half = width // 2
            expected = math.sqrt(math.pi) * math.exp(math.lgamma(half + 1) - math.lgamma(half + 1.5))
            for _ in range(4 * repeats):
                rows = sphere(run, width, size)
                nearest = torch.cdist(rows[half:], rows[:half]).min(1).values
                found.append(float(nearest.mean()) / expected)
        return mean_interval(found, 0.999)

    found, many = ratios(3), ratios(40)
    says = run.states(
        "A-118",
        r"\text{rows uniform on } S^2: \mathbb E\min_{k\le m}\|\theta_j-\theta_k\|=\sqrt\pi\,"
        r"\Gamma(m+1)/\Gamma(m+\tfrac32)\sim\sqrt{\pi/m},\ m=\tfrac n2: \text{ ratio of the means}",
    )
    # caps of half or twice the area
    says.mean(
        found,
        1,
        against=(math.sqrt(0.5), math.sqrt(2)),
        where=f"{found.trials} independent sets of rows, widths {widths[0]} to {widths[-1]}",
    )
    says.fails("rows on the sphere of 39 dimensions", many)


def moving_together(width: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One sample, and units on its ray, half of them a little longer: root of the loss on the first
    leg, its bound, and the root where the units move six times as far."""
    lifted = torch.cat([x, torch.ones(1, 1, dtype=x.dtype)], 1)
    lengths = torch.ones(width, 1, dtype=x.dtype)
    lengths[width // 2 :] = 1.1
    units = lengths * F.normalize(lifted, dim=1)
    output = torch.full((1, width), 1 / width, dtype=x.dtype)
    net = nn.Sequential(dense(units[:, :-1], units[:, -1]), nn.ReLU(), dense(output))
    problem = Problem(net, (x, net(x).detach()), task="regression")
    start = vector_of(net)
    path = low_loss_path(problem, start, start)
    losses = path_losses(problem, path.corners)
    farther = losses_at(problem, (start + 6 * (path.corners[1] - start))[None])
    return losses[0].max().sqrt()[None], (path.start_shift * lifted.norm())[None], farther.sqrt()


def trained(run: Run, x: Tensor, y: Tensor, width: int, reach: float, random: float) -> tuple[Tensor, Tensor]:
    """Two networks with all weights trained, whose units need not be spread like random ones: root of
    the loss on the first and last leg, and its bound."""
    nets = [network(run, width, x.shape[1]) for _ in range(2)]
    for net in nets:
        optimizer = torch.optim.LBFGS(net.parameters(), max_iter=80, line_search_fn="strong_wolfe")

        def closure(net: nn.Module = net, optimizer: torch.optim.LBFGS = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(net(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(closure)  # type: ignore[no-untyped-call]
    problem = Problem(nets[0], (x, y), task="regression")
    path = low_loss_path(problem, *nets)
    losses = path_losses(problem, path.corners)
    ends = torch.stack([losses[0, 0], losses[-1, -1]])
    straight = probe_segment(problem, *nets).losses
    corners = bend_path(problem, *nets, steps=150, batch=len(x), learning_rate=0.03, generator=run.generator)
    bent = path_losses(problem, corners)
    run.table(
        "trained",
        ["path", "legs", "largest loss on it", "larger loss of the ends"],
        [
            (name, legs, values.max(), ends.max())
            for name, legs, values in (
                ("straight", 1, straight),
                ("constructed", len(LEGS), losses),
                ("one bend, trained", 2, bent),
            )
        ],
        caption=f"Between two trained networks of width {width}; no theorem promises the bend. The farthest unit is "
        f"{float(path.start_distances.max()):.2g} from its neighbor, {random:.2g} with random rows: that units are "
        "well spread is a hypothesis, not a consequence of being a minimum",
    )
    roots = torch.stack([losses[0].max(), losses[-1].max()]).sqrt()
    return roots, ends.sqrt() + reach * torch.tensor([path.start_shift, path.end_shift])


def monotone(run: Run, x: Tensor, y: Tensor, width: int, count: int) -> tuple[Tensor, Tensor, float]:
    factors = torch.linspace(0.05, 0.95, 10, dtype=torch.float64)
    zero = float(y.square().mean())
    chords, rays, above, begins = [], [], [], []
    good = minimum(run, width, x, y)
    problem = Problem(good, (x, y), task="regression")

    def along_ray(theta: Tensor, scales: Tensor) -> Tensor:
        points = theta.expand(len(scales), -1).clone()
        points[:, -width:] *= scales[:, None]
        return losses_at(problem, points)

    for _ in range(10):
        theta = vector_of(network(run, width, 2, scale=6.0))
        begin = float(losses_at(problem, theta[None]))
        if begin <= zero:
            continue
        begins.append(begin)
        rays.append(along_ray(theta, factors))
        chords.append(factors * begin + (1 - factors) * zero)
        above.append(along_ray(theta, 1 + factors))
    end = vector_of(good)
    least = float(losses_at(problem, end[None]))
    says = run.states(
        "A-119",
        r"r(\lambda)\le\lambda r(1)+(1-\lambda)r(0)<r(1) \text{ for } 0<\lambda<1 \text{ where } "
        r"r(1)>r(0): \text{ smaller output weights lower the loss}",
    )
    says.at_most(
        torch.stack(rays),
        torch.stack(chords),
        1e-12,
        where=f"{len(begins)} random networks worse than the zero function; ten factors each",
    )

    def saturated(losses: Tensor) -> Tensor:
        return 1 - (-losses / zero).exp()

    ends = saturated(torch.tensor(begins, dtype=torch.float64))[:, None]
    says.fails(
        "the loss 1 - exp(-r/r(0)), which is not convex in λ",
        saturated(torch.stack(rays)),
        promised=factors * ends + (1 - factors) * saturated(torch.tensor(zero)),
    )
    says = run.states(
        "A-119",
        r"r(\lambda)<r(1) \text{ for } \lambda<1 \text{ and } r(\lambda)>r(1) \text{ for } "
        r"\lambda>1: \text{ least of the differences}",
    )
    says.above(torch.stack([torch.cat([b - r, a - b]) for b, r, a in zip(begins, rays, above, strict=True)]), 0)
    says.fails("a start better than the zero function", least - along_ray(end, factors))
    start = vector_of(network(run, width, 2, scale=6.0))
    path = low_loss_path(problem, start, end)
    t = torch.linspace(0, 1, count, dtype=torch.float64)[:, None]
    legs = [torch.lerp(a, b, t)[:-1] for a, b in itertools.pairwise(path.corners)]
    points = torch.cat([*legs, path.corners[-1:]])
    before = losses_at(problem, points)
    made = make_monotone(problem, points)
    says = run.states(
        "A-119", r"\text{with the last layer rescaled the loss falls strictly along the whole path: largest step}"
    )
    says.below(made.losses.diff(), 0, where=f"{len(points)} points of the constructed path and 20 of the last piece")
    says.fails("the path as constructed", before.diff())
    says = run.states("A-119", r"\text{and it ends at the same minimum: distance}")
    says.equal((made.points[-1] - end).abs().max(), within=1e-12)
    says.fails("where the path ends before the last piece", (made.points[len(points) - 1] - end).abs().max())
    return before, made.losses, zero


def plot(
    axes: Any,
    profiles: dict[int, list[Tensor]],
    barriers: list[tuple[int, float, float, float]],
    curves: tuple[Tensor, Tensor, float],
    count: int,
) -> None:
    left, middle, right = axes[0]
    ends = (min(profiles), max(profiles))
    for width, color in zip(ends, COLORS, strict=False):
        losses, straight = profiles[width]
        place = torch.arange(len(LEGS))[:, None] + torch.linspace(0, 1, count)
        left.plot(place.flatten(), losses.flatten(), color=color, label=f"constructed, n = {width}")
        left.plot(
            torch.linspace(0, len(LEGS), len(straight)),
            straight,
            "--",
            color=color,
            linewidth=1,
            label=f"straight, n = {width}",
        )
    left.set(xlabel="leg of the path", ylabel="loss", xticks=range(len(LEGS) + 1))
    left.set_ylim(top=1.45 * left.get_ylim()[1])
    left.legend(loc="upper center", ncols=2)
    widths = [w for w, *_ in barriers]
    for k, (name, marker) in enumerate((("constructed", "o"), ("straight", "s"), ("bound", "_"))):
        heights = [b[k + 1] for b in barriers]
        middle.loglog(widths, heights, marker, color=COLORS[k], markersize=5, label=name)
    middle.set(xlabel="width n", ylabel="barrier")
    middle.legend(loc="lower left")
    before, after, zero = curves
    right.semilogy(before.clamp_min(1e-6), color=COLORS[1], label="constructed path")
    right.semilogy(after.clamp_min(1e-6), color=COLORS[0], label="last layer rescaled")
    right.axhline(zero, color="0.5", linewidth=0.9, linestyle="--")
    right.annotate("zero function", (1, zero), xytext=(0, -10), textcoords="offset points", fontsize=8)
    right.set(xlabel="point of the path", ylabel="loss")
    right.set_ylim(1e-4, 20 * float(before.max()))
    right.legend(loc="upper right")
