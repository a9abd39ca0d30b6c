"""None of capacity, stability, robustness and flatness is necessary for a small gap."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.generalization.algorithmic_robustness import (
    Grid,
    cell_oscillation,
    robustness_bound,
)
from torchtheory.generalization.complexity.rademacher import (
    exact_rademacher,
    finite_class,
    uniform_deviation,
)
from torchtheory.generalization.flatness.rescaling import rescaled, sharpening_factor
from torchtheory.generalization.stability import (
    Trained,
    Training,
    choose_by_sample,
    leave_one_out,
    uniform_stability_bound,
)
from torchtheory.generalization.vc.hypothesis_sets import all_labelings
from torchtheory.generalization.vc.shattering import relu_shattering
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.linalg.eigenvalues import top_eigenpairs
from torchtheory.models.problem import Problem
from torchtheory.nets.symmetries import hidden_layers, permute_units, with_parameters
from torchtheory.optimization.curvature.operators import hessian_operator
from torchtheory.training.loop.trainer import fit

TARGETS = (1.0, 1e3, 1e6)
GRID = Grid(-1.0, 1.0, 10, 1)


@lab(
    "unnecessary-conditions",
    room="generalization",
    covers=["B-10"],
    title="A small gap without capacity control, stability, robustness or flatness",
    full={"epochs": 2000, "samples": 200},
    least={"samples": 20, "epochs": 1, "delta": 0.01},
    most={"delta": 0.5},
)
def unnecessary_conditions(run: Run, samples: int = 60, epochs: int = 150, delta: float = 0.1) -> None:
    """A law on finitely many points, a sample, and a network f whose gap on it is small.

    The algorithm that returns f for this very sample, and for any other a function as wild as one
    likes, has the gap of f, while its stability and robustness pass any target; f itself sits at a
    minimum as sharp as wanted, in a class that shatters. So every bound says nothing, and the gap
    is small: each condition is sufficient, and none is necessary. Then the reason: the gap is a
    function of law, sample and f alone. Look at the flat line under the rising ones.

    Args:
        samples: that the network is trained on.
        epochs: of its training.
        delta: probability with which a bound may fail.
    """
    case = prepare(run, samples, epochs)
    small_gap(run, case)
    seen = [unstable_and_fragile(case, target) for target in TARGETS]
    steady = leave_one_out(choose_by_sample(case.losses, case.sample, case.losses), *case.sample, left_out=[0])
    says = run.states("B-10", r"\beta(A')\ge|\ell(f;z)-\ell(f';z)|\ge T\text{ for any }T")
    says.at_least([s[0] for s in seen], TARGETS, where="the largest change when one sample is left out")
    says.fails("f' = f: an algorithm that does not look at its sample", steady.stability)
    says = run.states("B-10", r"\zeta(S')\ge T\text{ for any }T,\ S'\ne S")
    says.at_least(
        [s[1] for s in seen], TARGETS, where="oscillation within ten fixed cells for S without its first member"
    )
    says.fails("f' = f", oscillation(case, case.losses))
    sharp = sharp_minima(run, case)
    capacity(run, case, delta)
    only_the_function(run, case)
    table_and_figure(run, case, seen, sharp, delta)


@dataclass(frozen=True, slots=True)
class Case:
    """The law (equally likely points), the sample, and the network f."""

    x: Tensor
    y: Tensor
    drawn: Tensor
    net: nn.Sequential

    @property
    def sample(self) -> tuple[Tensor, Tensor]:
        return self.x[self.drawn], self.y[self.drawn]

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Squared losses of f."""
        with torch.no_grad():
            values: Tensor = (self.net(x) - y).square()[:, 0]
        return values

    def wild(self, target: float) -> Trained:
        """f': right on the sample, and elsewhere off by more than f by at least `target`."""
        bound = math.sqrt(target + float(self.losses(self.x, self.y).max())) + 2.0
        known = self.x[self.drawn][:, 0]

        def losses(x: Tensor, y: Tensor) -> Tensor:
            spike = bound * torch.sin(1e5 * x).sign()
            remembered = torch.isin(x[:, 0], known)
            return torch.where(remembered, 0.0, spike[:, 0].square())

        return losses

    def gap(self, losses: Trained) -> float:
        return float(losses(self.x, self.y).mean() - losses(*self.sample).mean())

    def gap_of(self, net: nn.Module) -> float:
        with torch.no_grad():
            return self.gap(lambda x, y: (net(x) - y).square()[:, 0])


def prepare(run: Run, samples: int, epochs: int) -> Case:
    x = torch.linspace(-0.995, 0.995, 400).double()[:, None]
    y = x.abs() + 0.1 * run.randn(400, 1)
    drawn = torch.randperm(400, generator=run.generator)[:samples]
    net = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(run.randn(*p.shape) / 2)
    fit(net, (x[drawn], y[drawn]), epochs=epochs, batch_size=samples, learning_rate=0.02)
    return Case(x, y, drawn, net)


def algorithm(case: Case, target: float) -> Training:
    return choose_by_sample(case.losses, case.sample, case.wild(target))


def small_gap(run: Run, case: Case) -> None:
    """The algorithm's gap on S, for every wildness."""
    x, y = case.sample
    trained = [algorithm(case, t)(x, y, 0) for t in TARGETS]
    elsewhere = [algorithm(case, t)(x[1:], y[1:], 0) for t in TARGETS]
    says = run.states("B-10", r"R[A'(S)]-R_S[A'(S)]\le\epsilon")
    says.at_most(
        [case.gap(t) for t in trained],
        case.gap(case.losses),
        1e-12,
        where="ε the gap of f itself, with no room added; risks are sums over the 400 points of the law",
    )
    says.fails("another sample: S without its first member", [case.gap(t) for t in elsewhere])


def unstable_and_fragile(case: Case, target: float) -> tuple[float, float]:
    """Measured stability and oscillation of the algorithm."""
    found = leave_one_out(algorithm(case, target), *case.sample, case.x, case.y, left_out=[0, 1])
    return found.stability, oscillation(case, case.wild(target))


def oscillation(case: Case, losses: Trained) -> float:
    cells = GRID(case.x, case.y)
    values = losses(case.x, case.y)
    kept = case.drawn[1:]
    return cell_oscillation(values[kept], cells[kept], values, cells).oscillation


def sharp_minima(run: Run, case: Case) -> list[float]:
    """f at parameters whose Hessian has any largest eigenvalue."""
    problem = Problem(case.net, case.sample, task="regression")
    nets = [rescaled(case.net, sharpening_factor(problem, t)) for t in TARGETS]
    tops = [top(Problem(net, case.sample, task="regression")) for net in nets]
    says = run.states("B-10", r"\lambda_{\max}(\nabla^2R_S)\ge T\text{ at parameters of the same }f")
    # one unit on one side of 0: its block of the Hessian is a number, and nothing is given away
    one = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1)).double()
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.fill_(1.0)
    alone = Problem(one, case.sample, task="regression")
    sharpest = [rescaled(one, sharpening_factor(alone, t)) for t in TARGETS]
    says.at_least(
        tops + [top(Problem(net, case.sample, task="regression")) for net in sharpest],
        [*TARGETS, *TARGETS],
        where="f, and a network of one unit",
    )
    says.fails("the parameters as they were trained, for the largest target", top(problem), promised=TARGETS[-1])
    return tops


def top(problem: Problem) -> float:
    return float(top_eigenpairs(hessian_operator(problem)).values[0])


def capacity(run: Run, case: Case, delta: float) -> None:
    """A class of ReLU networks that shatters the sample has a vacuous Rademacher bound."""
    x = case.sample[0][:10]
    net, weights = relu_shattering(x)
    with torch.no_grad():
        outputs = (weights @ net[1](net[0](x)).T).sign()
    labels = run.signs(10)
    losses = (1 - outputs * labels) / 2
    says = run.states(
        "B-10", r"\mathcal F\text{ memorizes any labels}\ \Rightarrow\ 2\,\mathrm{Rad}_S(\ell\circ\mathcal F)=1"
    )
    says.equal(
        2 * exact_rademacher(finite_class(losses), 10),
        1.0,
        1e-9,
        where="0-1 losses of 1024 networks on ten points of the sample, all sign patterns",
    )
    says.fails("one network alone", 2 * exact_rademacher(finite_class(losses[:1]), 10))
    shattered = int((outputs[:, None] == all_labelings(10)[None]).all(-1).any(0).sum())
    run.note(
        f"The class shatters: {shattered} of 1024 labelings occur. Its bound on the gap is "
        f"{uniform_deviation(0.5, len(case.drawn), delta):.2f}."
    )


def only_the_function(run: Run, case: Case) -> None:
    """Remark 2.4: other parameters, other classes, other algorithms; the same f, the same gap."""
    net = case.net
    layer = hidden_layers(net)[0]
    theta = {n: p.detach() for n, p in net.named_parameters()}
    order = torch.randperm(8, generator=run.generator)
    permuted = with_parameters(net, permute_units(theta, layer, order))
    wider = nn.Sequential(nn.Linear(1, 20), nn.ReLU(), nn.Linear(20, 1)).double()
    with torch.no_grad():
        for p in wider.parameters():
            p.copy_(run.randn(*p.shape))
        copied = dict(wider.named_parameters())
        copied["2.weight"].zero_()
        copied["0.weight"][:8], copied["0.bias"][:8] = theta["0.weight"], theta["0.bias"]
        copied["2.weight"][:, :8] = theta["2.weight"]
        copied["2.bias"].copy_(theta["2.bias"])
    moved = with_parameters(net, {**theta, "2.bias": theta["2.bias"] + 0.5})
    same = [rescaled(net, 1e3), rescaled(net, 1e-3), permuted, wider]
    says = run.states("B-10", r"R-R_S\text{ is determined by }(P,S,f)")
    says.equal(
        [case.gap_of(n) for n in same],
        case.gap_of(net),
        1e-12,
        where="rescaled up and down, units permuted, inside a wider class of networks",
    )
    says.fails("another function: f + 1/2", case.gap_of(moved))


def table_and_figure(run: Run, case: Case, seen: list[tuple[float, float]], sharp: list[float], delta: float) -> None:
    m = len(case.drawn)
    gap = case.gap(case.losses)
    rows = []
    for target, (stability, zeta), eigenvalue in zip(TARGETS, seen, sharp, strict=True):
        largest = float(case.wild(target)(case.x, case.y).max())
        rows.append(
            (target, stability, uniform_stability_bound(stability, m, delta, largest_loss=largest),
             zeta, robustness_bound(zeta, GRID.count, m, delta, width=largest), eigenvalue, gap)
        )  # fmt: skip
    run.table(
        "bounds-and-gap",
        ("target", "stability", "its bound", "oscillation", "its bound", "largest eigenvalue",
         "gap"),
        rows,
        caption="Measured stability and oscillation are lower estimates, so the bounds are at "
        "least these numbers.",
    )  # fmt: skip

    def plot(ax: Any) -> None:
        columns = {1: "stability", 3: "oscillation within cells", 5: "largest eigenvalue"}
        styles = ("o-", "s--", "^:")
        for color, style, (k, name) in zip(COLORS, styles, columns.items(), strict=False):
            ax.loglog(TARGETS, [r[k] for r in rows], style, color=color, label=name)
        ax.loglog(TARGETS, [abs(gap)] * 3, "D-", color=COLORS[6], label="|gap|")
        ax.set(xlabel="target", ylabel="value")
        ax.minorticks_off()
        ax.legend(loc="upper left")

    run.figure(
        "small-gap-without-conditions",
        plot,
        caption="One function f, one sample: whatever is asked of stability, robustness and "
        "sharpness, the gap stays where it is.",
    )
