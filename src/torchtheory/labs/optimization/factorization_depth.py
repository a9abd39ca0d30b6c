"""What the number of factors does to learning: one equation for the product, one for each mode."""

from __future__ import annotations

import math
from typing import Any

import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from torchtheory.generalization.implicit_bias.layer_balance import balanced_weights
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.optimization.linear_networks.deep import flat_layers, layers_of
from torchtheory.optimization.linear_networks.deep_factorization import (
    align_factors,
    end_to_end_flow,
    end_to_end_velocity,
    factor_gradients,
    mode_flow,
    mode_time,
    mode_velocity,
    product_gradients,
    product_of,
)

DEPTHS = (1, 2, 3, 4)


@lab(
    "depth-of-factorization",
    room="optimization",
    covers=["L-164", "L-165"],
    title="More factors learn the singular values of a matrix later, faster and one by one",
    errata=["factor-velocity-last-frame"],
    full={"size": 8, "until": 4.0, "small": 1e-4, "step": 0.002},
    least={"size": 2, "until": 0.01, "small": 1e-05, "step": 0.001},
    most={"until": 100, "small": 0.005, "step": 0.1},
)
def depth_of_factorization(
    run: Run, size: int = 4, until: float = 1.0, small: float = 1e-3, step: float = 0.01
) -> None:
    """The product of balanced factors obeys an equation in which only the product appears.

    Its right side is compared with the gradient of the factors, and its solution with the flow of
    the factors. Where start and target share their singular vectors, every singular value moves on
    its own, by ṡ = $s^{2-2/L}$(s* - s): with one factor all modes take the same time, with more the
    large ones come first and the others wait. Look at the four panels, where gradient descent on
    the factors lies on the curves of that equation, and a mode is learned only when the one before
    has long been done.

    Args:
        size: of the matrix.
        until: the time to which the flow is followed.
        small: size of the start.
        step: of gradient descent.
    """
    velocities(run, size)
    flows(run, size, until)
    targets = torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)
    singular_values(run, targets)
    descent = modes(run, targets, small, step)
    waiting(run, targets, small)
    run.figure(
        "modes",
        lambda axes: plot_modes(axes, targets, small, descent),
        caption="Singular values of the product while it learns the target 3, 2, 1: the mode "
        "equation (lines) and gradient descent on the factors (dots), for one to four factors; "
        "all start at the same product.",
        grid=(2, 2),
        size=(10, 6.4),
    )


def balanced(product: Tensor, depth: int, run: Run) -> list[Tensor]:
    """Balanced factors of the same size with a given product."""
    if depth == 1:
        return [product]
    return balanced_weights(product, [len(product)] * (depth - 1), generator=run.generator)


def product_velocity(factors: list[Tensor], target: Tensor) -> Tensor:
    """The product rule, with minus the gradient of every factor."""
    slopes = product_gradients(factors, target)
    parts = [product_of([*factors[:k], -slopes[k], *factors[k + 1 :]]) for k in range(len(factors))]
    return torch.stack(parts).sum(0)


def velocities(run: Run, size: int) -> None:
    """Parts d), e) and f) of the exercise at points that are balanced, and at one that is not."""
    target = run.randn(size, size)
    W = run.randn(size, size) / math.sqrt(size)
    automatic, by_frames, printed = [], [], []
    rule, in_frames, closed = [], [], []
    for depth in DEPTHS:
        factors = balanced(W, depth, run)
        found = align_factors(factors)
        frames, sigma = found.frames, found.singular_values
        core = frames[-1].T @ (target - W) @ frames[0]
        gradient = product_gradients(factors, target)
        total = torch.zeros_like(W)
        for k in range(1, depth + 1):
            middle = sigma[:, None] ** (depth - k) * core * sigma ** (k - 1) / depth
            automatic.append(-gradient[k - 1])
            by_frames.append(frames[k] @ middle @ frames[k - 1].T)
            if k > 1:
                printed.append((by_frames[-1], frames[k] @ middle @ frames[k - 2].T))
            powers = sigma[:, None] ** (2 * depth - 2 * k) * core * sigma ** (2 * k - 2)
            total += frames[-1] @ powers @ frames[0].T / depth
        in_frames.append(total)
        rule.append(product_velocity(factors, target))
        closed.append(end_to_end_velocity(W, target, depth))
    loose = [run.randn(size, size) / math.sqrt(size) for _ in range(3)]
    chain = align_factors(loose)
    core = chain.frames[-1].T @ (target - product_of(loose)) @ chain.frames[0]
    pretended = [
        chain.frames[k]
        @ (chain.singular_values[:, None] ** (3 - k) * core * chain.singular_values ** (k - 1) / 3)
        @ chain.frames[k - 1].T
        for k in (1, 2, 3)
    ]
    says = run.states("L-164", r"\dot W_k=\tfrac1LV_{k+1}\Sigma^{L-k}U_L^\top(W^\star-W)V_1\Sigma^{k-1}V_k^\top")
    says.equal(
        torch.stack(by_frames),
        torch.stack(automatic),
        1e-10,
        where="balanced factors, depths 1 to 4, against the gradient",
    )
    says.fails(
        "factors that are not balanced, with the frames nearest to theirs",
        torch.stack(pretended),
        promised=-torch.stack(product_gradients(loose, target)),
    )
    run.refutes(
        "factor-velocity-last-frame",
        r"\dot W_k=\tfrac1LV_{k+1}\Sigma^{L-k}U_L^\top(W^\star-W)V_1\Sigma^{k-1}V_{k-1}^\top",
    ).equal(
        torch.stack([wrong for _, wrong in printed]),
        torch.stack([right for right, _ in printed]),
        1e-3,
        where="every k > 1 for 2 to 4 balanced factors; the right side is minus the gradient",
    )
    says = run.states(
        "L-164",
        r"\dot W=\tfrac1L\sum_kU_L\Sigma^{2L-2k}U_L^\top(W^\star-W)V_1\Sigma^{2k-2}V_1^\top="
        r"\tfrac1L\sum_k[WW^\top]^{\frac{L-k}L}(W^\star-W)[W^\top W]^{\frac{k-1}L}",
    )
    says.equal(
        torch.stack([*in_frames, *closed]),
        torch.stack([*rule, *rule]),
        1e-10,
        where="against the product rule, depths 1 to 4",
    )
    says.fails(
        "factors that are not balanced",
        end_to_end_velocity(product_of(loose), target, 3),
        promised=product_velocity(loose, target),
    )


def flows(run: Run, size: int, until: float) -> None:
    target = run.randn(size, size)
    W = run.randn(size, size) / math.sqrt(size)
    times = torch.linspace(0, until, 5, dtype=torch.float64)
    direct, products = [], []
    for depth in DEPTHS:
        direct.append(end_to_end_flow(W, target, depth, times))
        products.append(follow(balanced(W, depth, run), target, times))
    # the same product, written with one factor ten times as large as it should be
    first, second = balanced(W, 2, run)
    uneven = follow([10 * first, second / 10], target, times)
    says = run.states("L-164", r"\text{the product of balanced factors and the end-to-end equation: the same } W(t)")
    says.equal(
        torch.stack(products),
        torch.stack(direct),
        1e-5,
        where=f"depths 1 to 4, five times until {until:g}; solvers' relative errors are 1e-8",
    )
    says.fails("the same product of factors 10 and 1/10 as large", uneven, promised=direct[1])
    closed = target + (W - target) * (-times)[:, None, None].exp()
    says = run.states("L-164", r"L=1: W(t)=W^\star+(W(0)-W^\star)e^{-t}")
    says.equal(torch.stack([direct[0], products[0]]), torch.stack([closed, closed]), 1e-5)
    says.fails("two factors", torch.stack([direct[1], products[1]]))


def follow(factors: list[Tensor], target: Tensor, times: Tensor) -> Tensor:
    """The product along the gradient flow of all its factors, `[T, out, in]`."""
    widths = [len(target)] * (len(factors) + 1)

    def velocity(_: float, theta: Any) -> Any:
        return -flat_layers(slopes(layers_of(torch.from_numpy(theta), widths), target)).numpy()

    path = solve_ivp(
        velocity,
        (float(times[0]), float(times[-1])),
        flat_layers(factors).numpy(),
        t_eval=times.numpy(),
        rtol=1e-8,
        atol=1e-10,
        method="DOP853",
    )
    return product_of(layers_of(torch.from_numpy(path.y.T.copy()), widths))


def slopes(factors: list[Tensor], target: Tensor) -> list[Tensor]:
    """`product_gradients` for many steps: nothing is checked."""
    return factor_gradients(factors, lambda product: (product - target) / len(factors))


def frames(run: Run, size: int) -> tuple[Tensor, Tensor]:
    left, right = (torch.linalg.qr(run.randn(size, size)).Q for _ in range(2))
    return left, right


def singular_values(run: Run, targets: Tensor) -> None:
    """One equation for every singular value, where start and target share their vectors."""
    left, right = frames(run, len(targets))
    other_left, other_right = frames(run, len(targets))
    target = left * targets @ right.T
    start = torch.full_like(targets, 0.2)
    times = torch.linspace(0, 1.5, 4, dtype=torch.float64)
    seen, promised = [], []
    for depth in (2, 4):
        path = follow(balanced(left * start @ right.T, depth, run), target, times)
        seen.append(left.T @ path @ right)
        promised.append(torch.diag_embed(mode_flow(start, targets, depth, times)))
    turned = follow(balanced(other_left * start @ other_right.T, 2, run), target, times)
    says = run.states(
        "L-165",
        r"W(0), W^\star \text{ share singular vectors: } U^\top W(t)V \text{ is diagonal, with } "
        r"\dot s=s^{2-2/L}(s^\star-s)",
    )
    says.equal(torch.stack(seen), torch.stack(promised), 1e-5, where="flow of 2 and of 4 factors, four times until 1.5")
    says.fails(
        "a start with other singular vectors: their values against the equation's",
        torch.linalg.svdvals(turned),
        promised=mode_flow(start, targets, 2, times),
    )
    grid = torch.linspace(0, 3, 31, dtype=torch.float64)
    logistic = targets / (1 + (targets / start - 1) * torch.exp(-targets * grid[:, None]))
    says = run.states("L-165", r"L=2: s(t)=\frac{s^\star}{1+(s^\star/s_0-1)e^{-s^\star t}}")
    says.equal(mode_flow(start, targets, 2, grid), logistic, 1e-6)
    says.fails("three factors", mode_flow(start, targets, 3, grid))
    reached, taken = [], []
    for depth in DEPTHS:
        levels = mode_flow(start, targets, depth, grid)[1:]
        reached.append(mode_time(start.expand_as(levels), levels, targets, depth))
        taken.append(grid[1:, None].expand_as(levels))
    levels = mode_flow(start, targets, 3, grid)[1:]
    says = run.states(
        "L-165",
        r"t=(s^\star)^{b-1}\Bigl[\tfrac{u^b}b\,{}_2F_1(1,b;b+1;u)\Bigr]_{s_0/s^\star}^{s/s^\star},"
        r"\ b=\tfrac2L-1: \text{ the time until } s",
    )
    says.equal(torch.stack(reached), torch.stack(taken), 1e-5, where="levels of the solver's curves, depths 1 to 4")
    says.fails(
        "the formula of four factors for three",
        mode_time(start.expand_as(levels), levels, targets, 4),
        promised=taken[2],
    )


def modes(run: Run, targets: Tensor, small: float, step: float) -> dict[int, tuple[Tensor, Tensor]]:
    """Gradient descent on the factors themselves, and how far it is from the flow."""
    left, right = frames(run, len(targets))
    target = left * targets @ right.T
    kept = {}
    for depth in DEPTHS:
        last = float(mode_time(*ends(targets, small, 0.95), depth)[-1])
        # about 400 steps, since several factors wait long and move slowly while they do, but none
        # above 1 over the curvature at the end, where descent would begin to oscillate
        size = max(step, min(last / 400, float(targets[0]) ** (2 / depth - 2)))
        kept[depth] = descend(balanced(left * small @ right.T, depth, run), target, size, last)
    # from further up, where nothing waits, to see the error of the steps themselves
    start, until = torch.full_like(targets, 0.2), 1.0
    turned, _ = frames(run, len(targets))

    def error(depth: int, frame: Tensor) -> Tensor:
        """How far a factor's singular values are from the flow, over the step, for step → 0."""
        flow = mode_flow(start, targets, depth, [0.0, until])[-1] ** (1 / depth)
        factors = balanced(frame * start @ right.T, depth, run)
        found = []
        for size in (step, step / 2):
            product = descend(factors, target, size, until)[1][-1]
            found.append((torch.linalg.svdvals(product) ** (1 / depth) - flow) / size)
        # what is proportional to the step cancels
        extrapolated: Tensor = 2 * found[1] - found[0]
        return extrapolated

    predicted = []
    for depth in DEPTHS[1:]:
        # Euler's method to first order: -½ f(w_T) log(f(w_T) / f(w_0)), for a factor's ẇ = f(w)
        speeds = [
            mode_velocity(s, targets, depth) * s ** (1 / depth - 1) / depth
            for s in mode_flow(start, targets, depth, [0.0, until])
        ]
        predicted.append(-speeds[1] / 2 * (speeds[1] / speeds[0]).log())
    says = run.states(
        "L-165",
        r"\text{descent on the factors follows the mode equation: its error a step is } -\tfrac12"
        r"f(w_T)\log\tfrac{f(w_T)}{f(w_0)},\ w=s^{1/L},\ \dot w=f(w)",
    )
    says.equal(
        torch.stack([error(depth, left) for depth in DEPTHS[1:]]),
        torch.stack(predicted),
        20 * step**2,
        where=f"2, 3 and 4 factors until time 1, extrapolated from steps of {step:g} and "
        f"{step / 2:g}: what is left is of the order of the step squared",
    )
    says.fails("a start with other singular vectors", error(2, turned), promised=predicted[0])
    return kept


def ends(targets: Tensor, small: float, share: float) -> tuple[Tensor, Tensor, Tensor]:
    return torch.full_like(targets, small), share * targets, targets


def descend(factors: list[Tensor], target: Tensor, step: float, until: float) -> tuple[Tensor, Tensor]:
    """Gradient descent on the factors: times and products."""
    products = [product_of(factors)]
    for _ in range(round(until / step)):
        moves = zip(factors, slopes(factors, target), strict=True)
        factors = [w - step * g for w, g in moves]
        products.append(product_of(factors))
    return step * torch.arange(len(products)), torch.stack(products)


def waiting(run: Run, targets: Tensor, small: float) -> None:
    """Which mode comes when, and how suddenly."""
    half = {L: mode_time(*ends(targets, small, 0.5), L) for L in DEPTHS}
    low = {L: mode_time(*ends(targets, small, 0.1), L) for L in DEPTHS}
    high = {L: mode_time(*ends(targets, small, 0.9), L) for L in DEPTHS}
    deep = DEPTHS[1:]
    says = run.states("L-165", r"L\ge2: \text{ the larger } s^\star, \text{ the sooner it is half learned}")
    says.below(
        torch.stack([half[L][:-1] for L in deep]),
        torch.stack([half[L][1:] for L in deep]),
        where=f"targets 3, 2, 1; all modes start at {small:g}",
    )
    says.fails("one factor: all at about log 2", half[1][:-1], promised=half[1][1:])
    says = run.states(
        "L-165", r"\text{one after the other: a mode is at nine tenths before the next one is at one tenth}"
    )
    says.below(
        torch.stack([high[L][:-1] for L in deep[1:]]),
        torch.stack([low[L][1:] for L in deep[1:]]),
        where="3 and 4 factors",
    )
    says.fails("one factor", high[1][:-1], promised=low[1][1:])
    # a start at half of the target: depth then has nothing to wait for
    near = {L: mode_time(0.5 * targets, 0.75 * targets, targets, L) for L in DEPTHS}
    says = run.states("L-165", r"\text{deeper is later: the time until } s^\star/2 \text{ grows with } L")
    says.above(
        torch.stack([half[L] for L in deep]), torch.stack([half[L] for L in DEPTHS[:-1]]), where="from depth to depth"
    )
    says.fails(
        "a start at half of the target, until three quarters",
        torch.stack([near[L] for L in deep]),
        promised=torch.stack([near[L] for L in DEPTHS[:-1]]),
    )
    sharp = {L: (high[L] - low[L]) / half[L] for L in DEPTHS}
    run.states(
        "L-165",
        r"\text{and sharper: the time from } \tfrac1{10} \text{ to } \tfrac9{10}, \text{ relative "
        r"to the time until } \tfrac12, \text{ falls with } L",
    ).below(torch.stack([sharp[L] for L in deep]), torch.stack([sharp[L] for L in DEPTHS[:-1]]))
    rows = [
        (L, float(s), float(low[L][k]), float(half[L][k]), float(high[L][k]))
        for L in DEPTHS
        for k, s in enumerate(targets)
    ]
    run.table(
        "times",
        ["factors", "s*", "time until s*/10", "until s*/2", "until 9 s*/10"],
        rows,
        caption=f"When each singular value is learned, from {small:g} on",
    )


def plot_modes(axes: Any, targets: Tensor, small: float, descent: dict[int, tuple[Tensor, Tensor]]) -> None:
    start = torch.full_like(targets, small)
    for axis, depth in zip(axes.flat, DEPTHS, strict=True):
        times, products = descent[depth]
        grid = torch.linspace(0, float(times[-1]), 300, dtype=torch.float64)
        curves = mode_flow(start, targets, depth, grid)
        shown = torch.linspace(0, len(times) - 1, 24).round().long()
        values = torch.linalg.svdvals(products[shown])
        for k, goal in enumerate(targets):
            axis.axhline(float(goal), color="0.8", linewidth=0.8, linestyle="--")
            axis.plot(grid, curves[:, k], color=COLORS[k], label=f"$s^\\star={float(goal):g}$")
            axis.plot(times[shown], values[:, k], "o", color=COLORS[k], markersize=3.2)
        name = "one factor" if depth == 1 else f"{depth} factors"
        axis.set(title=name, xlabel="time", ylabel="singular values", ylim=(-0.1, 3.3))
    axes[0, 0].legend(loc="lower right")
