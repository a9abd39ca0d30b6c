"""Stability of stochastic gradient descent: what one example does, and the gap."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from torchtheory.generalization.stability import (
    distance_bound,
    logistic_constants,
    measure_stability,
    replace_example,
    stability_bound,
)
from torchtheory.labs.engine import COLORS, Interval, Run, lab, mean_interval
from torchtheory.optimization.descent.iterates import last_iterate, trajectory
from torchtheory.optimization.descent.minibatch import draw_batches, minibatch_direction

#: The law of the examples is uniform on this many, so that the risk is an exact mean.
POPULATION = 2000


@lab(
    "sgd-stability",
    room="generalization",
    covers=["S-23", "S-24", "S-25"],
    title="One example moves SGD by at most 2LΣη/n, and that bounds the generalization gap",
    errata=["stability-bound-equality", "stability-bound-in-parameters"],
    full={"samples": 100, "dimension": 10, "trials": 2000, "steps": 500},
    least={"samples": 2, "dimension": 3, "trials": 300, "steps": 15, "rate": 0.8},
    most={"rate": 8},
)
def stability(
    run: Run,
    samples: int = 20,
    dimension: int = 5,
    trials: int = 1000,
    steps: int = 200,
    rate: float = 4.0,
) -> None:
    """Logistic regression with inputs in the unit ball and noisy labels, from a law whose risk is
    an exact mean. `trials` samples are drawn; on each, stochastic gradient descent is run twice
    with the same random indices, once with one example exchanged.

    The two runs stay within 2LΣη/n of each other on average, as Hardt, Recht and Singer prove for
    convex losses, and linear losses attain the bound. The gap between risk and empirical risk is 0
    for parameters fixed in advance, negative after training (in the slides' sign), equal in
    expectation to the change of the loss at the exchanged example, and at most the stability.
    Look at how the three curves lie below the bound.

    Args:
        samples: in a sample, of which one is exchanged.
        dimension: of the inputs.
        steps: of stochastic gradient descent.
        rate: of the first step; step t has this over the root of t.
    """
    law = unit_ball_law(run, dimension)
    etas = [rate / math.sqrt(t + 1) for t in range(steps)]
    coupled = couple(run, law, samples, trials, etas)
    pair = one_exchange(run, law, coupled)
    gap_of_fixed_parameters(run, law, coupled, samples)
    gap_and_stability(run, law, coupled, pair)
    hardt_recht_singer(run, law, coupled, pair)
    non_expansive(run, dimension)
    tight_case(run)
    printed_bound(run)
    own_training(run, samples)
    run.figure(
        "stability",
        lambda axes: plot_stability(axes, law, coupled, pair),
        caption="Left: mean distance of the coupled runs and its bound. Right: the gap, the "
        "largest mean change of a loss over the examples looked at, and the bound.",
        grid=(1, 2),
    )


class Law(NamedTuple):
    """Uniform on the rows: inputs in the unit ball, labels ±1 with noise."""

    x: Tensor
    y: Tensor


class Coupled(NamedTuple):
    """Runs on S and on S with one example exchanged.

    indices `[trials, n]` of S in the law, `taken` and `given` of the exchanged examples,
    and both trajectories `[T + 1, trials, p]`.
    """

    members: Tensor
    taken: Tensor
    given: Tensor
    path: Tensor
    other: Tensor
    steps: list[float]


def logistic(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return softplus(-y * (theta * x).sum(-1))


def unit_ball_law(run: Run, dimension: int) -> Law:
    x = run.randn(POPULATION, dimension)
    x = x / x.norm(dim=1, keepdim=True) * run.rand(POPULATION, 1) ** (1 / dimension)
    flips = torch.where(run.rand(POPULATION) < 0.2, -1.0, 1.0)
    return Law(x, torch.sign(x[:, 0]) * flips)


def losses(theta: Tensor, law: Law, rows: Tensor) -> Tensor:
    """Losses `[..., m]` of parameters `[..., p]` on rows `[..., m]` of the law."""
    return logistic(theta.unsqueeze(-2), law.x[rows], law.y[rows])


def risk(theta: Tensor, law: Law) -> Tensor:
    """The exact risk `[...]`, one product for all parameters."""
    return softplus(-law.y * (theta @ law.x.T)).mean(-1)


def couple(run: Run, law: Law, samples: int, trials: int, etas: list[float]) -> Coupled:
    members = draw_batches(POPULATION, samples, trials, sampling="replacement", generator=run.generator)
    given = draw_batches(POPULATION, 1, trials, generator=run.generator)
    place = torch.randint(samples, (trials, 1), generator=run.generator)
    chosen = draw_batches(samples, 1, len(etas), trials=(trials,), generator=run.generator)
    # a row of the law for every step of every run; the exchanged place gets the new example
    rows = members.gather(1, chosen[..., 0])[..., None]
    exchanged = torch.where(chosen == place[..., None], given[..., None], rows)
    start = torch.zeros(trials, law.x.shape[1], dtype=torch.float64)
    paths = [trajectory(minibatch_direction(logistic, law, r), start, etas) for r in (rows, exchanged)]
    return Coupled(members, members.gather(1, place), given, paths[0], paths[1], etas)


def empirical_gap(theta: Tensor, law: Law, members: Tensor) -> Tensor:
    """Empirical risk minus risk, the sign of the slides."""
    return losses(theta, law, members).mean(-1) - risk(theta, law)


def gap_of_fixed_parameters(run: Run, law: Law, coupled: Coupled, samples: int) -> None:
    fixed = run.randn(law.x.shape[1]).expand(len(coupled.members), -1)
    before = mean_interval(empirical_gap(fixed, law, coupled.members))
    after = mean_interval(empirical_gap(coupled.path[-1], law, coupled.members))
    says = run.states("S-23", r"\theta \text{ fixed in advance: } \mathbb E[\hat J(\theta)-J(\theta)]=0")
    # what training makes of it, and a tenth of that
    says.mean(
        before,
        0,
        against=(after.estimate, after.estimate / 10),
        where=f"{before.trials} samples of {samples} examples",
    )
    says.fails("θ trained on the sample", after)
    says = run.states("S-23", r"\theta \text{ trained on the sample: } \mathbb E[\hat J(\theta)-J(\theta)]<0")
    says.below(after.high, 0, where="upper end of the 99% interval")
    says.fails("θ fixed in advance", before.high)


def gap_and_stability(run: Run, law: Law, coupled: Coupled, pair: list[Tensor]) -> None:
    theta, other = coupled.path[-1], coupled.other[-1]
    gap = -empirical_gap(theta, law, coupled.members)
    change = losses(other, law, coupled.taken) - losses(theta, law, coupled.taken)
    fresh = draw_batches(POPULATION, 1, len(theta), generator=run.generator)
    unseen = losses(other, law, fresh) - losses(theta, law, fresh)
    says = run.states(
        "S-24",
        r"\mathbb E[J(A(S))-\hat J(A(S))]=\mathbb E[\ell(A(S^i);z_i)-\ell(A(S);z_i)]: \text{ difference of the two}",
    )
    # either side alone, and half of it
    size = float(gap.mean())
    says.mean(
        gap - change[:, 0],
        0,
        against=(size, -size, size / 2, -size / 2),
        where="$z_i$ is the example taken out of S to make Sⁱ",
    )
    says.fails("an example in neither sample instead of $z_i$", gap - unseen[:, 0])
    measured = mean_interval(gap)
    lipschitz, _ = logistic_constants(law.x)
    stable = mean_interval(lipschitz * (theta - other).norm(dim=1))
    far = Law(10 * law.x, -law.y)
    elsewhere = risk(theta, far) - losses(theta, law, coupled.members).mean(-1)
    shifted = mean_interval(elsewhere)
    largest = float(largest_changes(law, pair, torch.tensor([len(coupled.steps)]))[0])
    exact = coin_toss()
    says = run.states("S-24", r"|\mathbb E[\hat J(A(S))-J(A(S))]|\le L\,\mathbb E\|A(S)-A(S^i)\|")
    says.at_most(
        [measured.high, exact.gap],
        [stable.low, exact.distance],
        1e-12,
        where="the ends of 99% intervals that are worse for it; and linear losses of ±1, which attain it",
    )
    says.fails(
        "J is taken under another law: longer inputs, labels turned round", [shifted.low], promised=[stable.high]
    )
    says = run.states(
        "S-24, S-23", r"|\mathbb E[\hat J(A(S))-J(A(S))]|\le\epsilon_s, \text{ measured on one pair } S,S'"
    )
    says.at_most(
        [measured.high, exact.gap],
        [largest, exact.stability],
        where="the largest mean change of a loss there is a lower estimate of ε_s; and linear losses of ±1",
    )
    says.fails("J is taken under another law: longer inputs, labels turned round", [shifted.low], promised=[largest])


class CoinToss(NamedTuple):
    """Exact expectations for linear losses ⟨θ, z⟩ with z = 1 or -1, each with chance 1/2."""

    gap: float
    distance: float
    stability: float


def coin_toss() -> CoinToss:
    """Two steps on three examples: all samples, all indices, all exchanges."""
    size, etas = 3, [1.0, 0.5]
    every = itertools.product(
        itertools.product((0, 1), repeat=size), itertools.product(range(size), repeat=len(etas)), range(size), (0, 1)
    )
    cases = [torch.tensor(part) for part in zip(*every, strict=True)]
    members, chosen, place, given = cases
    z = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    rows = members.gather(1, chosen)
    exchanged = torch.where(chosen == place[:, None], given[:, None], rows)
    start = torch.zeros(len(rows), 1, dtype=torch.float64)
    first, second = (
        last_iterate(minibatch_direction(linear, [z], r[..., None]), start, etas) for r in (rows, exchanged)
    )
    gap = (first * z[members].mean(1))[:, 0]  # the risk is 0
    turned = members.gather(1, place[:, None])[:, 0] != given
    change = (first - second).abs()[:, 0]
    return CoinToss(float(gap.mean().abs()), float(change.mean()), float(change[turned].mean()))


def hardt_recht_singer(run: Run, law: Law, coupled: Coupled, pair: list[Tensor]) -> None:
    lipschitz, smooth = logistic_constants(law.x)
    samples = coupled.members.shape[1]
    distance = (coupled.path[1:] - coupled.other[1:]).norm(dim=-1)
    allowed = distance_bound(lipschitz, smooth, coupled.steps, samples)
    # five standard errors above the mean at every time at once
    error = 5 * distance.std(1) / math.sqrt(distance.shape[1])
    apart, formula = not_convex(run, samples, len(distance[0]))
    says = run.states("S-25", r"\mathbb E\|\theta_T-\theta_T'\|\le\frac{2L}n\sum_{t\le T}\eta_t \text{ for every } T")
    says.at_most(distance.mean(1) + error, allowed, where="mean over the coupled runs plus five standard errors")
    says.fails("losses that are not convex: ⟨θ, z⟩ - √(1 + ‖θ‖²)", apart, promised=formula)
    times = torch.tensor([t for t in (1, 5, 20, 50, 100, 200, 500, 1000) if t < len(coupled.path)])
    worst = largest_changes(law, pair, times)
    longer = Law(10 * law.x, law.y)
    bound = stability_bound(lipschitz, smooth, coupled.steps, samples)[times - 1]
    says = run.states(
        "S-25, S-24", r"\max_z|\mathbb E[\ell(\theta_T;z)-\ell(\theta_T';z)]|\le\frac{2L^2}n\sum_{t\le T}\eta_t"
    )
    # two steps on three examples of ±1, as the coin toss has them
    attained = stability_bound(1.0, 0.0, [1.0, 0.5], 3)[-1:]
    says.at_most(
        torch.cat([worst, torch.tensor([coin_toss().stability]).double()]),
        torch.cat([bound, attained]),
        1e-12,
        where=f"one sample with one example turned round, 200 examples z; T = {', '.join(str(int(t)) for t in times)}; "
        "and linear losses of ±1, which attain it",
    )
    says.fails(
        "inputs ten times as long, so that the losses are not 1-Lipschitz",
        largest_changes(longer, one_exchange(run, longer, coupled), times),
        promised=bound,
    )
    run.table(
        "bounds",
        ["T", "E‖θ-θ'‖", "2LΣη/n", "largest change of a loss", "2L²Ση/n"],
        [(int(t), distance[t - 1].mean(), allowed[t - 1], w, b) for t, w, b in zip(times, worst, bound, strict=True)],
        caption="Coupled runs of stochastic gradient descent and Hardt, Recht and Singer's bounds",
    )


def not_convex(run: Run, samples: int, trials: int) -> tuple[Tensor, Tensor]:
    """Distances and the bound's formula where every loss falls off in all directions.

    All examples are 0 but one, which is exchanged for its negative: the first time it is met, the
    two runs set out in opposite directions. The losses are 2-Lipschitz and 1-smooth.
    """

    def loss(theta: Tensor, z: Tensor) -> Tensor:
        return (theta * z).sum(-1) - (1 + theta.square().sum(-1)).sqrt()

    examples = torch.zeros(samples + 1, 1, dtype=torch.float64)
    examples[0], examples[-1] = 0.1, -0.1
    steps = [1.0] * 100
    chosen = draw_batches(samples, 1, 100, trials=(trials,), generator=run.generator)
    start = torch.zeros(trials, 1, dtype=torch.float64)
    first, second = (
        trajectory(minibatch_direction(loss, [examples], i), start, steps)[1:]
        for i in (chosen, replace_example(chosen, 0, samples))
    )
    return (first - second).norm(dim=-1).mean(1), distance_bound(2.0, 1.0, steps, samples)


def one_exchange(run: Run, law: Law, coupled: Coupled) -> list[Tensor]:
    """Many coupled runs on one pair of samples: trajectories on S and on S'.

    The exchange is the one that should matter most: the longest example, turned round.
    """
    trials, size = coupled.members.shape
    x, y = law.x[coupled.members[0]], law.y[coupled.members[0]]
    place = int(x.norm(dim=1).argmax())
    examples = [torch.cat([x, -x[place : place + 1]]), torch.cat([y, y[place : place + 1]])]
    chosen = draw_batches(size, 1, len(coupled.steps), trials=(trials,), generator=run.generator)
    start = torch.zeros(trials, x.shape[1], dtype=torch.float64)
    return [
        trajectory(minibatch_direction(logistic, examples, i), start, coupled.steps)
        for i in (chosen, replace_example(chosen, place, size))
    ]


def largest_changes(law: Law, pair: list[Tensor], times: Tensor) -> Tensor:
    """The largest mean change of a loss at each of the times, over 200 examples of the law."""
    x, y = law.x[::10], law.y[::10]
    found = []
    for t in times:
        before, after = (softplus(-y * (path[t] @ x.T)) for path in pair)
        found.append((before - after).mean(0).abs().max())
    return torch.stack(found)


def non_expansive(run: Run, dimension: int) -> None:
    """A gradient step of a convex smooth function never drives two points apart."""
    x = run.randn(2000, dimension)
    x = x / x.norm(dim=1, keepdim=True)
    y = run.signs(2000)
    first, second = 0.5 * run.randn(2000, dimension), 0.5 * run.randn(2000, dimension)

    def stretch(eta: float) -> Tensor:
        rows = torch.arange(2000)[:, None, None]
        direction = minibatch_direction(logistic, [x, y], rows)
        ends = [last_iterate(direction, at, [eta]) for at in (first, second)]
        made: Tensor = (ends[0] - ends[1]).norm(dim=1) / (first - second).norm(dim=1)
        return made

    _, smooth = logistic_constants(x)
    says = run.states(
        "S-25",
        r"\eta\le2/\beta:\ \|G(\theta)-G(\theta')\|\le\|\theta-\theta'\|,\ G(\theta)=\theta-\eta\nabla\ell(\theta;z)",
    )
    says.at_most(torch.stack([stretch(r / smooth) for r in (0.5, 1.0, 2.0)]), 1, 1e-12)
    says.fails("η = 4/β", stretch(4 / smooth))


def linear(theta: Tensor, z: Tensor) -> Tensor:
    return (theta * z).sum(-1)


def tight_case(run: Run) -> None:
    """Linear losses: the expectation over every sequence of indices, exactly."""
    samples, steps, lipschitz = 3, 5, 2.0
    z = lipschitz * torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    others = run.randn(samples - 1, 2)
    others = lipschitz * others / others.norm(dim=1, keepdim=True)
    examples = torch.cat([z, others, -z])
    etas = [1.0, 0.5, 0.7, 0.1, 2.0]
    every = torch.tensor(list(itertools.product(range(samples), repeat=steps)))[..., None]
    start = torch.zeros(len(every), 2, dtype=torch.float64)

    def run_on(loss: Callable[..., Tensor], indices: Tensor) -> Tensor:
        direction = minibatch_direction(loss, [examples], indices)
        return trajectory(direction, start, etas)[1:]

    def differences(loss: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        a, b = run_on(loss, every), run_on(loss, replace_example(every, 0, samples))
        change = loss(b, z) - loss(a, z)
        return (a - b).norm(dim=-1).mean(1), change.mean(1)

    def bent(theta: Tensor, example: Tensor) -> Tensor:
        """Softplus of the linear loss: as steep at most, and not linear."""
        return softplus((theta * example).sum(-1))

    distance, change = differences(linear)
    says = run.states(
        "S-25", r"\ell=\langle\theta,z\rangle,\ z\to-z:\ \mathbb E\|\theta_T-\theta_T'\|=\frac{2L}n\sum\eta_t"
    )
    says.equal(
        distance,
        distance_bound(lipschitz, 0.0, etas, samples),
        1e-12,
        where="all 243 sequences of indices for n = 3, T = 5: an exact expectation",
    )
    says.fails("the loss is not linear: log(1 + exp⟨θ, z⟩)", differences(bent)[0])
    says = run.states(
        "S-25, S-24",
        r"\ell=\langle\theta,z\rangle:\ \mathbb E[\ell(\theta_T';z)-\ell(\theta_T;z)]"
        r"=\frac{2L^2}n\sum\eta_t: \text{ the bound is attained}",
    )
    says.equal(change, stability_bound(lipschitz, 0.0, etas, samples), 1e-12)
    says.fails("the loss is not linear: log(1 + exp⟨θ, z⟩)", differences(bent)[1])


def printed_bound(run: Run) -> None:
    """Two ways in which the printed theorem goes wrong, both exact."""
    samples = 10

    def one_step(length: float, eta: float) -> tuple[float, float]:
        """Largest mean change of a loss after one step from 0, and of the parameter.

        The exchanged example and the probe run over all pairs of directions of that length; the
        exchange is met with probability 1/n, and otherwise nothing changes.
        """
        angles = torch.linspace(0, 2 * math.pi, 73, dtype=torch.float64)[:-1]
        x = length * torch.stack([angles.cos(), angles.sin()], 1)
        after = eta / 2 * x  # -η ∇ℓ at 0 with label 1
        change = softplus(-(after @ x.T))  # trained on the row, looked at in the column
        largest = (change[:, None] - change[None]).abs().max()
        return float(largest) / samples, float(torch.cdist(after, after).max()) / samples

    change, moved = one_step(1.0, 1.0)
    run.refutes("stability-bound-equality", r"\epsilon_s=\frac{2L^2}n\sum_t\eta_t").equal(
        change,
        stability_bound(1.0, 0.25, [1.0], samples)[0],
        1e-3,
        where="logistic regression on the unit circle, one step of 1 from 0, n = 10; the largest "
        f"over all exchanges and probes, while even the parameters move by {moved:.3g} at most",
    )
    change, _ = one_step(10.0, 1.0)
    # in the output the logistic cost has L = 1 and β = 1/4, and η = 1 is below 2/β = 8
    run.refutes(
        "stability-bound-in-parameters",
        r"J(\cdot,y) \text{ 1-Lipschitz and } \tfrac14\text{-smooth in the output} \implies"
        r" \epsilon_s\le\frac2n\sum_t\eta_t",
    ).at_most(change, stability_bound(1.0, 0.25, [1.0], samples)[0], where="the same with inputs of norm 10")


def own_training(run: Run, samples: int) -> None:
    """The tool for a user's own training, on ridge regression of a constant, where all is a formula."""
    weight = 0.1
    x, low = torch.ones(samples, 1, dtype=torch.float64), -torch.ones(samples, dtype=torch.float64)

    def ridge(a: Tensor, b: Tensor, seed: int) -> Callable[[Tensor, Tensor], Tensor]:
        eye = torch.eye(a.shape[1], dtype=a.dtype)
        theta = torch.linalg.solve(a.T @ a + weight * len(a) * eye, a.T @ b)
        return lambda u, v: (u @ theta - v).square()

    def found(size: float) -> float:
        labels = size * low
        return measure_stability(ridge, x, labels, x[:1], -labels[:1], runs=1, generator=run.generator).stability

    # θ = Σy/(n(1+λ)) lies in ±1/(1+λ), and one label moves it by 2/(n(1+λ)) at most
    bound = 2 / (samples * (1 + weight)) * (2 + 2 / (1 + weight))
    says = run.states(
        "S-24",
        r"\text{ridge regression, } x=1,\ |y|\le1:\ \epsilon_s\le\frac4{n(1+\lambda)}\Bigl(1+\frac1{1+\lambda}\Bigr)",
    )
    says.at_most(found(1.0), bound, where="measured by retraining, with one of equal labels turned round")
    says.fails("labels of size 2", found(2.0))


def plot_stability(axes: Any, law: Law, coupled: Coupled, pair: list[Tensor]) -> None:
    left, right = axes[0]
    lipschitz, smooth = logistic_constants(law.x)
    samples = coupled.members.shape[1]
    times = torch.arange(1, len(coupled.steps) + 1)
    distance = (coupled.path[1:] - coupled.other[1:]).norm(dim=-1)
    bound = distance_bound(lipschitz, smooth, coupled.steps, samples)
    left.plot(times, bound, "--", color="0.4", label=r"$\frac{2L}{n}\sum\eta_t$")
    left.plot(times, distance.mean(1), color=COLORS[0], label=r"mean of $\|\theta_T-\theta_T'\|$")
    left.set(xlabel="steps T", ylabel="distance", title=f"n = {samples}")
    left.legend()
    shown = torch.unique(torch.logspace(0, math.log10(len(times)), 25).long())
    gaps: list[Interval] = [mean_interval(-empirical_gap(coupled.path[t], law, coupled.members)) for t in shown]
    right.loglog(shown, lipschitz * bound[shown - 1], "--", color="0.4", label=r"$\frac{2L^2}{n}\sum\eta_t$")
    right.loglog(
        shown,
        largest_changes(law, pair, shown),
        "s-",
        markersize=3,
        color=COLORS[1],
        label="largest change of a loss",
    )
    right.loglog(
        shown,
        [g.estimate for g in gaps],
        "o-",
        markersize=3,
        color=COLORS[0],
        label=r"gap $J-\hat J$",
    )
    right.set(xlabel="steps T", ylabel="change of a loss")
    right.legend(loc="upper left")
