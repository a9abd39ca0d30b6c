"""Depth saves parameters in proportion to the symmetry of what is approximated."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.expressivity.folding import folding_network, sawtooth_network
from torchtheory.expressivity.pieces import affine_pieces
from torchtheory.labs.engine import COLORS, Run, lab, mean_interval
from torchtheory.nets.feedforward import dense
from torchtheory.neurons.regression import least_squares


@lab(
    "depth-and-symmetry",
    room="expressivity",
    covers=["S-50"],
    title="The more axes of symmetry a function has, the more depth saves",
    full={"folds": 7, "targets": 20},
    least={"folds": 2, "targets": 2, "parameters": 50},
)
def depth_and_symmetry(run: Run, folds: int = 5, targets: int = 3, parameters: int = 100) -> None:
    """Functions with the same number of pieces, $2^{folds+1}$, and more and more axes of symmetry.

    A random broken line is folded j times: j = 0 is a generic function, j = `folds` a sawtooth of
    random teeth with $2^j$ - 1 axes, global and local. Each is fitted by networks of ℓ folding layers
    of two units and one hidden layer more, at the same number of parameters: knots at the
    function's own kinks or evenly spaced, output weights by least squares. The error vanishes at
    depth j and not without folds, folds remove at least nine tenths of it for the function of most
    axes and less for the generic one, and the parameters that an exact network needs fall with j.
    Look at the error against depth.

    Args:
        targets: random functions for each number of folds.
        parameters: of every network that is fitted, whatever its depth.
    """
    pieces = 2 ** (folds + 1)
    units = units_for(0, parameters)
    run.assumes(
        units < pieces,
        f"one hidden layer of {units} units has {parameters} parameters and is exact for {pieces} pieces: folds have "
        "nothing to save",
    )
    made = {j: [Folded(run, j, pieces // 2**j) for _ in range(targets)] for j in range(folds + 1)}
    run.states("S-50", r"\text{pieces of } \varphi\circ t^{\circ j}, \text{ whatever } j").equal(
        [target.pieces for row in made.values() for target in row], pieces
    )
    errors = {
        j: [[fitted(target, depth, parameters) for depth in range(folds + 1)] for target in row]
        for j, row in made.items()
    }
    needed = exact_sizes(run, made)
    at_equal_size(run, errors, parameters)
    generic(run, made, errors)
    rows = []
    for j, row in errors.items():
        means = torch.tensor(row).mean(0).tolist()
        rows.append((2**j - 1, *[float(m) for m in means], needed[j]))
    run.table(
        "errors",
        [
            "axes",
            *[f"{depth} folding layers" for depth in range(folds + 1)],
            "parameters of an exact network",
        ],
        rows,
        caption=f"Root mean square error with at most {parameters} parameters, mean over targets of {pieces} pieces",
    )
    run.figure(
        "depth",
        lambda axes: plot(axes, errors, needed, made),
        grid=(1, 3),
        size=(13.5, 3.6),
        caption="Left: two functions with the same number of pieces. Middle: error against the "
        "number of folding layers, at equal numbers of parameters; curves coincide where the error "
        "is rounding, and one fold too many spoils the fit. Right: the parameters that an exact "
        "network needs.",
    )


class Folded:
    """A random broken line on [0, 1], seen through j tent maps."""

    def __init__(self, run: Run, folds: int, parts: int) -> None:
        steps = 0.5 + run.rand(parts)
        knots = torch.cat([steps.new_zeros(1), steps.cumsum(0) / steps.sum()])
        # low and high in turn, so that every knot is a kink and neighbors differ
        low = torch.arange(parts + 1) % 2 == 0
        values = torch.where(low, 0.4 * run.rand(parts + 1), 0.6 + 0.4 * run.rand(parts + 1))
        slopes = values.diff() / knots.diff()
        self.folds, self.knots = folds, knots[:-1]
        weights = torch.cat([slopes[:1], slopes.diff()])
        self.network = network(folds, self.knots, weights, values[:1])
        found = affine_pieces(self.network, 0.0, 1.0)
        self.pieces, self.bends = found.count, found.kinks

    def __call__(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            made: Tensor = self.network(x.unsqueeze(1))[:, 0]
        return made

    def kinks(self, depth: int) -> Tensor:
        """Where the function bends, seen after `depth` folds."""
        seen = folded(self.bends, depth).sort().values
        inner = seen[(seen > 1e-6) & (seen < 1 - 1e-6)]
        # mirror images agree up to rounding
        return torch.cat([inner[:1], inner[1:][inner.diff() > 1e-9]])


def network(depth: int, knots: Tensor, weights: Tensor, bias: Tensor) -> nn.Sequential:
    """`depth` folding layers, then ReLUs with these knots."""
    first = dense(torch.ones(len(knots), 1, dtype=torch.float64), -knots)
    last = dense(weights.unsqueeze(0), bias)
    if depth == 0:
        return nn.Sequential(first, nn.ReLU(), last).requires_grad_(False)
    inner = folding_network(1, [2] * depth, first)
    return nn.Sequential(*inner, nn.ReLU(), last).requires_grad_(False)


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def units_for(depth: int, parameters: int) -> int:
    """How many units the last hidden layer may have after so many folding layers of two."""
    if depth == 0:
        return (parameters - 1) // 3
    return (parameters - 1 - 4 - 6 * (depth - 1)) // 4


def folded(x: Tensor, depth: int) -> Tensor:
    if depth == 0:
        return x
    with torch.no_grad():
        made: Tensor = tents(depth)(x.unsqueeze(1))[:, 0]
    return made


@cache
def tents(depth: int) -> nn.Sequential:
    return sawtooth_network(depth)


def grid(points: int = 512) -> Tensor:
    """Centers of equal cells: the grid is its own mirror image."""
    return (torch.arange(points, dtype=torch.float64) + 0.5) / points


def fitted(target: Folded, depth: int, parameters: int) -> float:
    """The root mean square error of the better of two choices of knots."""
    units = units_for(depth, parameters)
    kinks = target.kinks(depth)
    if len(kinks) >= units:
        kinks = kinks[torch.linspace(0, len(kinks) - 1, units - 1).long()]
    even = torch.arange(units, dtype=torch.float64) / units
    own = torch.cat([kinks.new_zeros(1), kinks])
    return min(with_knots(target, depth, knots)[0] for knots in (own, even))


def with_knots(target: Folded, depth: int, knots: Tensor) -> tuple[float, Tensor, Tensor]:
    """The best output weights for these knots: the error they leave, weights and bias."""
    x = grid()
    features = torch.relu(folded(x, depth).unsqueeze(1) - knots)
    fit = least_squares(features, target(x), intercept=True)
    return float(fit.residual.square().mean().sqrt()), fit.weight, fit.bias.reshape(1)


def exact_network(target: Folded, depth: int) -> tuple[float, nn.Sequential]:
    """With a knot at every kink that is left after the folds: the network's own error."""
    knots = torch.cat([torch.zeros(1, dtype=torch.float64), target.kinks(depth)])
    net = network(depth, knots, *with_knots(target, depth, knots)[1:])
    x = grid()
    with torch.no_grad():
        left = net(x.unsqueeze(1))[:, 0] - target(x)
    return float(left.square().mean().sqrt()), net


def exact_sizes(run: Run, made: dict[int, list[Folded]]) -> dict[int, int]:
    """The network with j folding layers is exact; with one unit less it is not."""
    exact, short, sizes, flat = [], [], {}, {}
    for j, row in made.items():
        for target in row:
            error, net = exact_network(target, j)
            exact.append(error)
            sizes[j] = count(net)
            knots = torch.cat([torch.zeros(1, dtype=torch.float64), target.kinks(j)])
            without = torch.cat([knots[:1], knots[2:]])
            short.append(with_knots(target, j, without)[0])
        flat[j] = count(exact_network(row[0], 0)[1])
    says = run.states("S-50", r"j \text{ folding layers and } 2^{\,J+1-j} \text{ units: root mean square error}")
    says.equal(exact, within=1e-9)
    says.fails("one unit less in the last hidden layer", short)
    says = run.states("S-50", r"\text{parameters of an exact network: each further fold of the function saves some}")
    says.above([sizes[j] / sizes[j + 1] for j in range(len(sizes) - 1)], 1.0)
    says.fails(
        "one hidden layer, which spends a unit on every piece", [flat[j] / flat[j + 1] for j in range(len(sizes) - 1)]
    )
    return sizes


def at_equal_size(run: Run, errors: dict[int, list[list[float]]], parameters: int) -> None:
    """The share of the error that depth removes, for much and for no symmetry."""
    removed = {j: mean_interval([1 - min(row) / row[0] for row in rows]) for j, rows in errors.items()}
    top = max(removed)
    spent = []
    for depth in errors:
        line = torch.ones(units_for(depth, parameters), dtype=torch.float64)
        spent.append(count(network(depth, line, line, line[:1])))
    run.states("S-50", r"\text{parameters of the networks that are compared}").at_most(spent, parameters)
    says = run.states(
        "S-50",
        rf"\text{{at most }} {parameters} \text{{ parameters: share of one hidden layer's error "
        r"that folding removes from the function of most axes}",
    )
    says.at_least(removed[top].low, 0.9)
    says.fails("a generic function with as many pieces", removed[0].high)


def generic(run: Run, made: dict[int, list[Folded]], errors: dict[int, list[list[float]]]) -> None:
    """A folded network is symmetric: it misses at least the odd part of a function."""
    x = grid()
    odd = []
    for target in made[0]:
        y = target(x)
        odd.append(float(((y - y.flip(0)) / 2).square().mean().sqrt()))
    top = max(made)
    depth = range(1, top + 1)
    says = run.states("S-50", r"\text{folded networks: }\|f-\Phi\|\ge\|\tfrac12(f(x)-f(1-x))\| \text{ in mean square}")
    says.at_least([row[d] for row in errors[0] for d in depth], [o for o in odd for _ in depth], 1e-12)
    says.fails(
        "functions that are symmetric, held against the same floors", [row[d] for row in errors[top] for d in depth]
    )


def plot(
    axes: Any,
    errors: dict[int, list[list[float]]],
    needed: dict[int, int],
    made: dict[int, list[Folded]],
) -> None:
    left, middle, right = axes[0]
    x = torch.linspace(0, 1, 1500, dtype=torch.float64)
    top = max(made)
    for shift, j, label in ((0, 0, "generic"), (1.3, 3 if top > 3 else top, "")):
        label = label or f"{2**j - 1} axes"
        left.plot(x, made[j][0](x) + shift, linewidth=0.9, label=label)
    left.set(xlabel="x", yticks=[], title="as many pieces", ylim=(-0.1, 2.7))
    left.legend(loc="upper right", ncols=2)
    shades = [*COLORS, "0.5", "0.7"]
    for color, (j, rows) in zip(shades, errors.items(), strict=False):
        means = torch.tensor(rows).mean(0).clamp(min=1e-16)
        middle.semilogy(means, "o-", markersize=4, color=color, label=f"{2**j - 1}")
    middle.set(xlabel="folding layers", ylabel="root mean square error")
    middle.set(title="error at equal numbers of parameters")
    middle.legend(title="axes", ncols=2)
    right.plot(list(needed), list(needed.values()), "o-", color=COLORS[0], label="folding first")
    right.axhline(needed[0], linestyle=":", color="0.4", label="one hidden layer")
    right.set_xticks(list(needed), [str(2**j - 1) for j in needed])
    right.set(xlabel="axes of symmetry", ylabel="parameters", title="parameters of an exact network")
    right.set_ylim(0, None)
    right.legend(loc="lower left")
