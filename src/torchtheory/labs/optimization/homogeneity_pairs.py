"""Which networks and regularizers the theory of parallel networks covers, and which it does not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.feedforward import mlp
from torchtheory.nets.homogeneity import measure_homogeneity
from torchtheory.optimization.parallel_networks.nondegenerate_pairs import (
    check_pair,
    degree_of,
    match_degrees,
)
from torchtheory.optimization.parallel_networks.subnetworks import (
    Subnetwork,
    deep_subnetwork,
    linear_unit,
    parallel_network,
    relu_unit,
)


@lab(
    "homogeneity-pairs",
    room="optimization",
    covers=["B-45", "B-47"],
    title="Weight decay matches two layers: degrees of networks and of their regularizers",
    full={"depths": (1, 2, 3, 4, 5, 6, 8), "copies": (1, 2, 4, 8, 16, 32, 64, 128)},
    least={"depths": 1, "copies": 1},
    items={"copies": 2, "depths": 3},
)
def homogeneity_pairs(
    run: Run, depths: tuple[int, ...] = (1, 2, 3, 4), copies: tuple[int, ...] = (1, 2, 4, 8, 16)
) -> None:
    """A network is homogeneous in its weights if scaling them scales its outputs by a power.

    ReLU networks without biases are, with their number of layers as the degree; so are
    convolutions, max-pooling and leaky ReLU, and biases in the only hidden layer do no harm.
    The theorems on global optimality ask the regularizer to have the *same* degree, and weight
    decay always has degree 2. What happens otherwise is computed: with a penalty of higher degree
    copies of a network make any function free, with one of lower degree the cost is not convex,
    and a penalty that forgets a layer bounds nothing. Look at the cost of splitting a unit.

    Args:
        depths: of the networks whose degree is measured.
        copies: numbers of copies of a unit, two or more of them.
    """
    depths = tuple(sorted(depths))
    degrees = {"network": degrees_of_networks(run, depths)}
    refused(run)
    degrees |= degrees_of_penalties(run, depths)
    definition(run)
    costs = splitting(run, sorted(copies))
    run.figure(
        "degrees",
        lambda axes: plot(axes, depths, degrees, sorted(copies), costs),
        caption="Left, the degree of a network by its depth and that of three penalties, as "
        "measured: products and powers go with the network (markers inside each other), weight "
        "decay meets it at two layers only. Right, the total penalty of r equal units "
        "that together compute what one unit of penalty 1 did.",
        grid=(1, 2),
    )


def plain(depth: int, run: Run, x: Tensor, bias: bool = False) -> nn.Module:
    """A ReLU network, drawn again until it answers: where all units are silent there is no degree."""
    while True:
        net = mlp([3, *[5] * (depth - 1), 2], nn.ReLU, bias=bias, generator=run.generator)
        with torch.no_grad():
            if bool(net(x).any()):
                return net


def degree(model: nn.Module, x: Tensor) -> float:
    """The measured degree; not a number where there is none."""
    found = measure_homogeneity(model, x).degree
    return math.nan if found is None else found


def degrees_of_networks(run: Run, depths: tuple[int, ...]) -> list[float]:
    x = run.randn(7, 3)
    measured = [degree(plain(depth, run, x), x) for depth in depths]
    run.states("B-45", r"\text{the measured degree of a ReLU network without biases is } L \text{, its layers}").equal(
        measured, list(depths)
    )
    deep = [depth for depth in depths if depth > 1]
    says = run.states("B-45", r"\text{its departure from homogeneity of degree } L")
    says.equal([departure(plain(depth, run, x), x, depth) for depth in deep], within=1e-10)
    says.fails("with biases", [departure(plain(depth, run, x, bias=True), x, depth) for depth in deep])
    hidden = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2, bias=False)).double()
    deeper = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 2, bias=False)).double()
    says = run.states("B-45", r"\text{biases in the only hidden layer are admissible: the degree is 2}")
    says.equal(
        [degree(hidden, x) - 2, departure(hidden, x, 2.0)],
        within=1e-10,
        where="measured degree minus 2, and departure from it; a bias is the weight of an input that is always 1",
    )
    says.fails("two hidden layers with biases, degree 3", departure(deeper, x, 3.0))
    images = run.randn(4, 1, 6, 6)
    blocks: list[tuple[nn.Module, Tensor, float]] = [
        (
            nn.Sequential(
                nn.Conv2d(1, 3, 3, bias=False), nn.LeakyReLU(), nn.MaxPool2d(2), nn.Flatten(),
                nn.Linear(12, 2, bias=False),
            ),
            images,
            2.0,
        ),
        (plain(3, run, x), x, 3.0),
        (nn.Sequential(nn.Linear(3, 4, bias=False), Square(), nn.Linear(4, 2, bias=False)), x, 3.0),
    ]  # fmt: skip
    saturating = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 2, bias=False))
    says = run.states("B-45", r"\|\phi(aw)-a^p\phi(w)\|/(a^p\|\phi(w)\|) \text{ for } a=0,\tfrac12,2,10")
    says.equal(
        [departure(model.double(), inputs, p) for model, inputs, p in blocks],
        within=1e-10,
        where="convolution with max-pooling and leaky ReLU, p = 2; three layers, p = 3; two "
        "layers with squares between, p = 3",
    )
    says.fails("tanh between two layers", departure(saturating.double(), x, 2.0))
    return measured


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.square()


class Skip(nn.Module):
    """A layer added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.layer(x))


def departure(model: nn.Module, x: Tensor, p: float) -> float:
    """The largest of a few relative departures from the power law."""
    weights = [w.detach().clone() for w in model.parameters()]

    def outputs(a: float) -> Tensor:
        scaled = {n: a * w for (n, _), w in zip(model.named_parameters(), weights, strict=True)}
        return torch.func.functional_call(model, scaled, (x,))  # type: ignore[no-any-return]

    with torch.no_grad():
        here = outputs(1.0)
        return max(
            float((outputs(a) - a**p * here).norm() / (max(a**p, 1.0) * here.norm())) for a in (0.0, 0.5, 2.0, 10.0)
        )


def refused(run: Run) -> None:
    x = run.randn(7, 3)

    def two_layers(between: nn.Module, bias: bool = False) -> nn.Module:
        first = nn.Linear(3, 4, bias=False)
        return nn.Sequential(first, between, nn.Linear(4, 2, bias=bias)).double()

    normal = nn.BatchNorm1d(4)
    normal.running_mean = run.randn(4)
    bad = {
        "tanh": two_layers(nn.Tanh()),
        "sigmoid": two_layers(nn.Sigmoid()),
        "batch normalization": two_layers(normal).eval(),
        "output bias": two_layers(nn.ReLU(), bias=True),
        "skip connection": nn.Sequential(Skip(), nn.Linear(3, 2, bias=False)).double(),
    }
    good = {
        "ReLU": two_layers(nn.ReLU()),
        "leaky ReLU": two_layers(nn.LeakyReLU()),
        "absolute value": two_layers(Absolute()),
        "maximum of pairs": nn.Sequential(
            nn.Linear(3, 4, bias=False), nn.MaxPool1d(2), nn.Linear(2, 2, bias=False)
        ).double(),
        "identity": two_layers(nn.Identity()),
    }
    verdicts = {name: match_degrees(model, x) for name, model in [*bad.items(), *good.items()]}
    says = run.states(
        "B-45", r"\text{tanh, sigmoid, batch normalization, output bias, skip connection: how many are refused}"
    )
    says.equal(sum(not verdicts[name].matches for name in bad), len(bad))
    says.fails("admissible ones: " + ", ".join(good), sum(not verdicts[name].matches for name in good))
    run.table(
        "networks",
        ["network", "covered", "reason"],
        [(name, v.matches, v.reason) for name, v in verdicts.items()],
        caption="Two layers with weight decay: does the theory of parallel networks apply?",
    )


class Absolute(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.abs()


def degrees_of_penalties(run: Run, depths: tuple[int, ...]) -> dict[str, list[float]]:
    measured: dict[str, list[float]] = {}
    for name in ("product", "powers", "decay"):
        measured[name] = []
        for depth in depths:
            net = deep_subnetwork([3, *[4] * (depth - 1), 2], penalty=name)
            found = degree_of(net.penalty, run.randn(4, net.size)).degree
            measured[name].append(math.nan if found is None else found)
    says = run.states(
        "B-45", r"\prod_l\|W_l\| \text{ and } \tfrac1L\sum_l\|W_l\|^L \text{ have the degree } L \text{ of the network}"
    )
    says.equal(measured["product"] + measured["powers"], [*depths, *depths])
    says.fails("weight decay", [*measured["decay"], *measured["decay"]])
    x = run.randn(6, 3)
    says = run.states("B-45", r"\text{weight decay matches two layers, and no other number}")
    says.equal(
        [float(match_degrees(plain(depth, run, x), x).matches) for depth in depths],
        [1.0 if depth == 2 else 0.0 for depth in depths],
        where="theorems that ask for one degree do not cover deeper networks with weight decay",
    )
    says.fails(
        "the product of the norms of all layers instead", [float(product_matches(run, depth, x)) for depth in depths]
    )
    return measured


def product_matches(run: Run, depth: int, x: Tensor) -> bool:
    net = deep_subnetwork([3, *[5] * (depth - 1), 2], penalty="product")
    return match_degrees(plain(depth, run, x), x, net.penalty).matches


# -- nondegenerate pairs ------------------------------------------------------------------------


def half_forgotten(unit: Subnetwork, inputs: int) -> Subnetwork:
    """The same unit with only the first layer's weights in its penalty."""
    return replace(unit, penalty=lambda w: w[:inputs].square().sum() / 2, kind="other")


def power_of(unit: Subnetwork, exponent: float) -> Subnetwork:
    """The same unit with its penalty raised to a power."""
    base = unit.penalty
    return replace(unit, penalty=lambda w: base(w) ** exponent, kind="other")


def definition(run: Run) -> None:
    x = run.randn(6, 2)
    unit = relu_unit(2, 1)
    pairs = {
        "ReLU unit, weight decay": unit,
        "ReLU unit, product of norms": relu_unit(2, 1, penalty="product"),
        "linear unit, weight decay": linear_unit(2, 1),
        "three layers, product of norms": deep_subnetwork([2, 3, 3, 1], penalty="product"),
        "three layers, third powers": deep_subnetwork([2, 3, 3, 1], penalty="powers"),
        "three layers, weight decay": deep_subnetwork([2, 3, 3, 1], penalty="decay"),
        "ReLU unit, squared weight decay": power_of(unit, 2),
        "ReLU unit, root of weight decay": power_of(unit, 0.5),
        "ReLU unit, first layer decayed only": half_forgotten(unit, 2),
    }
    # a unit has a local maximum between any two kinks, and few starts miss the largest
    found = {name: check_pair(pair, x, generator=0, starts=100, steps=120) for name, pair in pairs.items()}
    good, bad = list(pairs)[:5], list(pairs)[5:]
    says = run.states("B-47", r"\text{degree, sign and compactness hold for these pairs: how many}")
    says.equal(sum(found[name].nondegenerate for name in good), len(good), where="; ".join(good))
    says.fails("; ".join(bad), sum(found[name].nondegenerate for name in bad))
    angles = torch.arange(3600).double() * 2 * math.pi / 3600
    largest = torch.relu(x @ torch.stack([angles.cos(), angles.sin()])).norm(dim=0).max()
    says = run.states(
        "B-47", r"\max\{\|\phi(X,w)\|:\theta(w)\le1\} \text{ of a ReLU unit: the search against all directions}"
    )
    says.equal(found["ReLU unit, weight decay"].largest_output, float(largest), 1e-4)
    says.fails("the penalty forgets a layer", found["ReLU unit, first layer decayed only"].largest_output)
    run.table(
        "pairs",
        ["pair", "nondegenerate", "reason"],
        [(name, f.nondegenerate, f.reason) for name, f in found.items()],
        caption="Definition 4.7 for units and three-layer networks on 6 points of the plane",
    )


def splitting(run: Run, copies: list[int]) -> dict[int, list[float]]:
    """One unit as r equal ones that add up to it, under penalties of three degrees."""
    x, unit = run.randn(6, 2), relu_unit(2, 1)
    w = run.randn(3)
    w = w / unit.penalty(w).sqrt()  # of penalty 1
    whole = unit.outputs(x, w)
    costs: dict[int, list[float]] = {}
    drift = []
    for p, exponent in ((1, 0.5), (2, 1.0), (4, 2.0)):
        charged = power_of(unit, exponent)
        costs[p] = []
        for r in copies:
            network = parallel_network(charged, (w / math.sqrt(r)).expand(r, 3).clone())
            drift.append(float((network(x) - whole).abs().max()))
            costs[p].append(float(network.penalties().sum()))
    says = run.states(
        "B-47",
        r"\theta \text{ of degree 4, } \phi \text{ of degree 2: } r \text{ units in the place of "
        r"one cost } 1/r, \text{ so } \Omega=0",
    )
    says.equal(costs[4], [1 / r for r in copies], 1e-12, where=f"the outputs stay the same up to {max(drift):.0e}")
    says.fails("weight decay, of degree 2", costs[2])
    half = unit.outputs(x, w / math.sqrt(2))
    assert bool(torch.allclose(half, whole / 2))
    says = run.states(
        "B-47",
        r"\theta \text{ of degree 1: half the function costs more than half, } "
        r"\Omega(\tfrac12Z)>\tfrac12\Omega(Z)+\tfrac12\Omega(0), \text{ so } \Omega \text{ is not convex}",
    )
    says.above(
        float(power_of(unit, 0.5).penalty(w / math.sqrt(2))),
        0.5 + 1e-9,
        where="splitting a unit only costs more under it, so one unit is the best",
    )
    says.fails("weight decay", float(unit.penalty(w / math.sqrt(2))))
    return costs


def plot(
    axes: Any,
    depths: tuple[int, ...],
    degrees: dict[str, list[float]],
    copies: list[int],
    costs: dict[int, list[float]],
) -> None:
    axis = axes[0, 0]
    styles = {
        "network": ("o-", 10, "network"),
        "product": ("s", 6, "product of the layers' norms"),
        "powers": (".", 4, "L-th powers of the norms"),
        "decay": ("^--", 6, "weight decay"),
    }
    for i, (name, (style, size, label)) in enumerate(styles.items()):
        axis.plot(
            depths, degrees[name], style, markersize=size, color=COLORS[(0, 4, 6, 1)[i]],
            label=label,
        )  # fmt: skip
    axis.set(xlabel="layers L", ylabel="degree", xticks=depths, yticks=range(max(depths) + 1))
    axis.legend()
    axis = axes[0, 1]
    for i, (p, values) in enumerate(costs.items()):
        axis.loglog(copies, values, "o-", color=COLORS[i + 2], label=f"penalty of degree {p}")
    axis.set(xlabel="units r", ylabel="penalty of the same function", xticks=copies)
    axis.set_xticklabels([str(r) for r in copies])
    axis.minorticks_off()
    axis.legend()
