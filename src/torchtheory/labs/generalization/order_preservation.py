"""Which measures rank trained networks as their generalization gaps do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.generalization.complexity.norm_bounds import frobenius_norms
from torchtheory.generalization.order_preservation import (
    OrderComparison,
    compare_orders,
    order_table,
    precedes,
)
from torchtheory.generalization.paths.gap_decomposition import GapDecomposition, decompose_gap
from torchtheory.labs.engine import Run, lab, quantile_interval
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.training.loop.trainer import fit

EXACT, BOUND, NORM = "exact decomposition", "bound by path norms", "path norm"


@lab(
    "order-preservation",
    room="generalization",
    covers=["B-22"],
    errata=["order-of-instances-not-antisymmetric"],
    title="The exact gap formula keeps the order of trained networks; bounds and norms lose it",
    full={"repeats": 8, "epochs": 200, "population": 200, "trials": 2000},
    # the largest sample has 40 points, and the population has to be larger
    least={"repeats": 1, "epochs": 1, "population": 50, "trials": 50},
)
def order_preservation_lab(
    run: Run, repeats: int = 2, epochs: int = 25, population: int = 60, trials: int = 150
) -> None:
    """Networks of several sizes, on samples of several sizes, with and without label noise.

    Each is a problem instance with a gap that a finite population gives exactly. The instances are
    ordered by their gaps; every measure of the list orders them in its own way, and the audit
    counts the pairs it turns round. The exact decomposition of the gap keeps the order; replacing
    its cosines by 1 makes it a valid bound that does not; random numbers have no correlation. The
    confidence interval of the rank correlation is checked on normal pairs, whose correlation is
    known. Look at the figure: gap against three measures.

    Args:
        repeats: trainings of each kind of network.
        epochs: of a training.
        population: points of the law, over which the risk is exact.
        trials: samples by which the coverage of an interval is counted.
    """
    instances = train_instances(run, repeats, epochs, population)
    audit(run, instances)
    valid_but_misleading(run)
    preorder(run, [i.gap for i in instances])
    interval_coverage(run, trials)


@dataclass
class Instance:
    """A trained network with its sample and its population."""

    name: str
    net: nn.Sequential
    samples: int
    parts: GapDecomposition

    @property
    def gap(self) -> float:
        """From the two risks."""
        return self.parts.gap

    @property
    def exact(self) -> float:
        """From labels, lengths, cosines and eigenvalues."""
        p = self.parts
        linear = 2 * p.label_norms * p.path_norms * p.cosines
        spectral = p.path_norms.square() * (p.eigenvalues[:, None] * p.alignments).sum(0)
        return p.label_term + float((linear + spectral).sum())


def train_instances(run: Run, repeats: int, epochs: int, population: int) -> list[Instance]:
    x = run.randn(population, 3)
    clean = torch.stack([(2 * x[:, 0]).sin(), x[:, 1] * x[:, 2]], 1)
    made = []
    for width in (3, 10, 30):
        for samples in (10, 40):
            for noise in (0.0, 1.0):
                for repeat in range(repeats):
                    y = clean + noise * run.randn(population, 2)
                    chosen = torch.randperm(population, generator=run.generator)[:samples]
                    net = mlp([3, width, 2], generator=run.generator)
                    train = (x[chosen], y[chosen])
                    fit(net, train, epochs=epochs, batch_size=samples, learning_rate=0.05)
                    parts = decompose_gap(net, train, (x, y))
                    name = f"width {width}, {samples} samples, noise {noise:g}, no. {repeat + 1}"
                    made.append(Instance(name, net, samples, parts))
    return made


def measures(run: Run, instances: list[Instance]) -> dict[str, list[float]]:
    sizes = [sum(p.numel() for p in i.net.parameters()) for i in instances]
    return {
        EXACT: [i.exact for i in instances],
        BOUND: [i.parts.bound for i in instances],
        NORM: [float(i.parts.path_norms.norm()) for i in instances],
        "product of Frobenius norms": [math.prod(weight_norms(i.net)) for i in instances],
        "number of parameters": [float(s) for s in sizes],
        "parameters / samples": [s / i.samples for s, i in zip(sizes, instances, strict=True)],
        "1 / √samples": [i.samples**-0.5 for i in instances],
        "minus training risk": [-i.parts.train_risk for i in instances],
        "random numbers": run.rand(len(instances)).tolist(),
    }


def weight_norms(net: nn.Sequential) -> list[float]:
    """Frobenius norms of the weight matrices, biases left out."""
    return frobenius_norms(nn.Sequential(*[dense(m.weight.detach()) if isinstance(m, nn.Linear) else m for m in net]))


def audit(run: Run, instances: list[Instance]) -> None:
    gaps = [i.gap for i in instances]
    values = measures(run, instances)
    blind = [compare_orders(gaps, run.rand(len(gaps))) for _ in range(200)]
    found = order_table(gaps, values, names=[i.name for i in instances])
    says = run.states("B-22", r"\tau=1 \text{ for the exact decomposition of the gap}")
    says.equal(
        found[EXACT].kendall.estimate,
        1.0,
        1e-12,
        where=f"{len(instances)} trained networks; lengths, cosines and eigenvalues against the "
        "difference of the two risks",
    )
    says.fails("the cosines replaced by 1, which makes it an upper bound", found[BOUND].kendall.estimate)
    says = run.states("B-22", r"\text{regret: gap of the network that the measure likes best, minus the least gap}")
    says.equal(found[EXACT].regret)
    says.fails("random numbers as a measure, on average", sum(b.regret for b in blind) / len(blind))
    draws = [b.kendall.estimate for b in blind]
    noisy = [
        compare_orders(gaps, torch.tensor(gaps).double() + 0.5 * run.randn(len(gaps))).kendall.estimate
        for _ in range(50)
    ]
    says = run.states("B-22", r"\mathbb E\,\tau=0 \text{ for random numbers}")
    says.mean(draws, 0.0, against=(-0.1, 0.1), confidence=0.999, where="200 draws")
    says.fails("the gap itself with noise", noisy)
    run.table(
        "measures",
        ("measure", "Kendall τ", "low", "high", "Spearman ρ", "discordant pairs", "not told apart",
         "regret"),
        [
            (name, c.kendall.estimate, c.approximate.low, c.approximate.high, c.spearman,
             c.discordant, c.merged, c.regret)
            for name, c in found.items()
        ],
        caption=f"{len(instances)} networks, {len(instances) * (len(instances) - 1) // 2} pairs; "
        "95 % jackknife intervals, for networks like these drawn independently. Regret is the gap "
        "one gets by choosing with the measure, above the least one (the worst choice among ties).",
    )  # fmt: skip
    worst = found[BOUND].misleading[:5]
    run.table(
        "misleading-pairs",
        ("smaller gap", "larger gap", "difference of the gaps", "difference of the bounds"),
        [(p.better, p.worse, p.gap_difference, p.measure_difference) for p in worst],
        caption="The costliest pairs that the bound by path norms ranks the wrong way round.",
    )
    run.figure(
        "orders",
        lambda axes: plot_orders(axes, gaps, values, found),
        caption="Gap of each trained network against three measures. Only the first is an "
        "increasing curve; the second is above every gap and still ranks many pairs wrongly.",
        grid=(1, 3),
        size=(11.5, 3.4),
    )


def plot_orders(
    axes: Any, gaps: list[float], values: dict[str, list[float]], found: dict[str, OrderComparison]
) -> None:
    for ax, name in zip(axes[0], (EXACT, BOUND, NORM), strict=True):
        ax.plot(values[name], gaps, "o", ms=4)
        ax.set(xlabel=name, title=f"τ = {found[name].kendall.estimate:.2f}")
        if name == BOUND:
            ax.set_xscale("log")
            ax.minorticks_off()
    axes[0][0].set_ylabel("squared-loss gap")


def valid_but_misleading(run: Run) -> None:
    """A bound above every gap that prefers the worse network: units that cancel."""
    x = run.randn(80, 2)
    y = x[:, :1].sin() + 0.3 * run.randn(80, 1)
    train = (x[:12], y[:12])
    small, large = mlp([2, 6, 1], generator=run.generator), mlp([2, 6, 1], generator=run.generator)
    fit(small, train, epochs=10, batch_size=12, learning_rate=0.03)
    fit(large, train, epochs=60, batch_size=12, learning_rate=0.1)
    plain = [decompose_gap(net, train, (x, y)) for net in (small, large)]
    better = int(plain[1].gap < plain[0].gap)
    nets = [small, large]
    nets[better] = with_canceling_units(nets[better], 1000.0)
    rest = mlp([2, 6, 1], generator=run.generator)  # a third instance, untrained
    parts = [decompose_gap(net, train, (x, y)) for net in (*nets, rest)]
    gaps = [p.gap for p in parts]
    bounds = compare_orders(gaps, [p.bound for p in parts])
    formula = compare_orders(gaps, [p.label_term + float((p.linear + p.quadratic).sum()) for p in parts])
    says = run.states("B-22", r"\text{a valid bound can prefer the worse network: pairs turned round}")
    says.at_least(
        bounds.discordant,
        1.0,
        where="two units with output weights ±1000 that cancel were added to the better network: "
        "the same function and gap, another bound",
    )
    says.fails("the exact decomposition", formula.discordant)
    # one path and positive inputs: no cosine but ±1, and +1 for one of the two signs
    line, part = (x[:, :1].abs(), y), (x[:12, :1].abs(), y[:12])
    paths = [
        decompose_gap(nn.Sequential(dense(torch.ones(1, 1).double()), nn.ReLU(), dense(sign)), part, line)
        for sign in torch.tensor([[[1.0]], [[-1.0]]]).double()
    ]
    run.states("B-22", r"R-R_S\le \text{bound, all the same}").at_most(
        gaps + [p.gap for p in paths],
        [p.bound for p in [*parts, *paths]],
        1e-12,
        where="these networks, and two of a single path",
    )


def with_canceling_units(net: nn.Sequential, size: float) -> nn.Sequential:
    """The same function with two more equal hidden units whose output weights are ±size."""
    first, last = net[0], net[2]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    weight, bias = first.weight.detach(), first.bias.detach()
    signs = size * torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    return nn.Sequential(
        dense(torch.cat([weight, weight[:1], weight[:1]]), torch.cat([bias, bias[:1], bias[:1]])),
        nn.ReLU(),
        dense(torch.cat([last.weight.detach(), signs], 1), last.bias.detach()),
    )


def preorder(run: Run, gaps: list[float]) -> None:
    """Total, reflexive, transitive; not antisymmetric."""
    order = precedes(gaps)
    tensor = torch.tensor(gaps).double()
    blurred = tensor[:, None] <= tensor[None] + tensor.std()
    says = run.states("B-22", r"\preceq \text{ is a total preorder: failures of totality and of transitivity}")
    says.equal(failures(order) + float((~(order | order.mT)).sum()))
    says.fails("gaps compared up to one standard deviation", failures(blurred) + float((~(blurred | blurred.mT)).sum()))
    x, y = run.randn(20, 2), run.randn(20, 1)
    nets = [mlp([2, 4, 1], generator=run.generator) for _ in range(3)]
    whole = [decompose_gap(net, (x, y), (x, y)).gap for net in nets]
    both = precedes(whole) & precedes(whole).mT
    run.refutes(
        "order-of-instances-not-antisymmetric",
        r"(P,S,f)\preceq(P',S',f')\preceq(P,S,f)\Rightarrow \text{ equal: pairs of different ones}",
    ).equal(
        (int(both.sum()) - len(nets)) / 2,
        where="three different networks on a sample that is the whole population: every gap is 0",
    )


def failures(order: Tensor) -> float:
    """Triples i, j, k with i before j before k and i not before k."""
    chain = order.double() @ order.double() > 0
    return float((chain & ~order).sum())


def interval_coverage(run: Run, trials: int) -> None:
    r"""Normal pairs with correlation r have Kendall's tau (2/π) arcsin r."""
    correlation, size = 0.6, 30
    truth = 2 / math.pi * math.asin(correlation)

    def used(found: OrderComparison, truth: float) -> float:
        """How much of its interval's half-length the estimate is off."""
        tau = found.kendall
        return abs(tau.estimate - truth) / max(tau.high - tau.estimate, tau.estimate - tau.low)

    narrow, estimates, hard, copied = 0, [], [], []
    for _ in range(trials):
        a, b = run.randn(2, size)
        b = correlation * a + math.sqrt(1 - correlation**2) * b
        found = compare_orders(a, b, confidence=0.9)
        estimates.append(found.kendall.estimate)
        narrow += found.approximate.low <= truth <= found.approximate.high
        copied.append(used(compare_orders(a[:2].repeat(size // 2), b[:2].repeat(size // 2), confidence=0.9), truth))
        # on the rising or on the falling branch, by a coin: tau is 0, and each instance weighs much
        u = run.rand(size)
        hard.append(used(compare_orders(u, u * run.signs(size), confidence=0.9), 0.0))
    says = run.states("B-22", r"\Pr[\tau\in\text{interval}]\ge0.9 \text{ for independent instances}")
    says.at_most(
        quantile_interval(hard, 0.9, 0.99),
        1.0,
        where=f"error over half-length, quantile at 0.9 over {trials} samples of {size} points on two branches; "
        f"for normal pairs the jackknife interval covers in {narrow / trials:.1%}",
    )
    says.fails(
        "two instances, fifteen copies of each: not independent, and turned round with "
        "probability 1/2 - arcsin(r)/π = 0.3",
        quantile_interval(copied, 0.9, 0.99),
    )
    run.states("B-22", r"\mathbb E\,\tau=\tfrac2\pi\arcsin r \text{ for normal pairs with correlation } r").mean(
        estimates,
        truth,
        against=(correlation, 6 / math.pi * math.asin(correlation / 2)),  # Pearson's, Spearman's
        confidence=0.999,
        where="r = 0.6",
    )
