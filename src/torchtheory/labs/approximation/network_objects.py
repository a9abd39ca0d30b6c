"""A network is its parameters; the function is another thing. Counters, drawing, activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import network_size
from torchtheory.approximation.network_calculus import block_diagonal, chain, compose, deepen, stack
from torchtheory.labs.engine import Run, lab
from torchtheory.nets.activations.properties import MOST_DERIVATIVES, inspect_activation
from torchtheory.nets.activations.table import Activation, activation, nth_derivative
from torchtheory.nets.drawings import (
    ArchitectureGraph,
    architecture_graph,
    draw_architecture,
)
from torchtheory.nets.feedforward import affine_layers, mlp


@lab(
    "network-objects",
    room="approximation",
    covers=["X-03", "X-04", "X-05"],
    title="Counting, combining and drawing networks; which activation has which derivatives at 0",
    errata=["width-of-undefined-numbers"],
    full={"points": 5000},
    least={"points": 10},
)
def network_objects(run: Run, points: int = 200) -> None:
    """The counters of Definition 3.1, the calculus of networks, Figure 3.2 and Table 3.1.

    Architecture (4, 5, 3) has 12 neurons, 43 weights and 2 layers. Composition and parallel
    networks compute the combined functions and have the sizes of the formulas. The same function
    has parameters of different sizes: the counters belong to the parameters. The drawing is read
    again and its circles and lines are counted. Derivatives of the activations on both sides of 0
    are measured. Look at the drawings.

    Args:
        points: random inputs.
    """
    counters(run)
    calculus(run, points)
    not_the_function(run, points)
    shallow, deep, thin = drawings(run)
    table_of_activations(run)
    run.figure(
        "architectures",
        lambda axes: plot(axes, [shallow, deep, thin]),
        caption="A shallow and a deep network with 4 inputs and 3 outputs, and the deep one with "
        "half of its weights set to 0. Blue: positive weights; orange: negative.",
        grid=(1, 3),
        size=(12, 3.6),
    )


def realize(net: nn.Sequential, x: Tensor) -> Tensor:
    """The recursion of the definition, written out once more."""
    maps, between = affine_layers(net)
    for (weight, bias), sigma in zip(maps[:-1], between, strict=True):
        x = sigma(torch.einsum("ij,nj->ni", weight, x) + bias)
    weight, bias = maps[-1]
    return torch.einsum("ij,nj->ni", weight, x) + bias


def counters(run: Run) -> None:
    net = mlp([4, 5, 3], generator=run.generator)
    graph = architecture_graph(net)
    size = network_size(net)
    shared = [size.parameters - graph.weights, size.depth - graph.layers, size.width - graph.width]
    tied = mlp([4, 5, 3], bias=False, generator=run.generator)
    says = run.states("X-03", r"(4,5,3): \quad N=12,\ M=5\cdot4+5+3\cdot5+3=43,\ L=2,\ M_\ell=25,18")
    says.equal([graph.neurons, graph.weights, graph.layers, *graph.weights_per_layer], [12, 43, 2, 25, 18])
    says.fails(
        "the same widths without biases",
        [*counts(architecture_graph(tied)), *architecture_graph(tied).weights_per_layer],
    )
    run.states("X-03", r"\text{the counters of the graph and of the calculus agree (weights, layers, width)}").equal(
        shared
    )
    up_to = [sum(graph.widths[: layer + 1]) for layer in range(1, graph.layers)]
    run.refutes(
        "width-of-undefined-numbers",
        r"(4,5,3): \quad\text{width}=\max\{N_1,\dots,N_{L-1}\}\text{, }N_\ell\text{ neurons up to layer }\ell",
    ).equal(size.width, max(up_to))


def counts(graph: ArchitectureGraph) -> list[int]:
    return [graph.neurons, graph.weights, graph.layers]


def separate(f: nn.Sequential, g: nn.Sequential) -> nn.Sequential:
    """Side by side on inputs of their own: block-diagonal everywhere."""
    first, between = affine_layers(f)
    second, _ = affine_layers(g)
    maps = [(block_diagonal(a, c), torch.cat([b, d])) for (a, b), (c, d) in zip(first, second, strict=True)]
    return chain(maps, between)


def calculus(run: Run, points: int) -> None:
    """Functions and sizes of what is put together."""
    f = mlp([3, 6, 4], generator=run.generator)
    g = mlp([4, 5, 7, 2], generator=run.generator)
    h = mlp([3, 8, 2], generator=run.generator)
    x, y = run.randn(points, 3), run.randn(points, 3)
    both, beside, apart, deeper = compose(g, f), stack(f, h), separate(f, h), deepen(f, 5)
    with torch.no_grad():
        away = [
            (realize(f, x) - f(x)).abs().max(),
            (both(x) - g(f(x))).abs().max(),
            (beside(x) - torch.cat([f(x), h(x)], 1)).abs().max(),
            (apart(torch.cat([x, y], 1)) - torch.cat([f(x), h(y)], 1)).abs().max(),
            (deeper(x) - f(x)).abs().max(),
        ]
        swapped = (compose(h, mlp([2, 4, 3], generator=run.generator))(x[:, :2]) - h(x)).abs().max()
    says = run.states(
        "X-03",
        r"\text{realization by the recursion; }\Phi^1\circ\Phi^2,\ (\Phi^1,\Phi^2)\text{ on shared "
        r"and on separate inputs, padded depth: distance from the functions}",
    )
    says.equal([float(a) for a in away], within=1e-12)
    says.fails("another inner network in the composition", float(swapped))
    m = {name: network_size(net) for name, net in (("f", f), ("g", g), ("h", h))}
    says = run.states(
        "X-03", r"L(\Phi^1\circ\Phi^2)=L_1+L_2-1,\quad M(\Phi^1,\Phi^2)=M_1+M_2\text{ (shared, separate)}"
    )
    says.equal(
        [
            network_size(both).depth,
            network_size(beside).parameters,
            network_size(apart).parameters,
            network_size(deeper).depth,
        ],
        [
            m["f"].depth + m["g"].depth - 1,
            m["f"].parameters + m["h"].parameters,
            m["f"].parameters + m["h"].parameters,
            5,
        ],
    )
    says.fails(
        "composed without merging the two affine maps in the middle",
        len(affine_layers(f)[0]) + len(affine_layers(g)[0]),
        promised=m["f"].depth + m["g"].depth - 1,
    )


def not_the_function(run: Run, points: int) -> None:
    """Different parameters, the same function."""
    net = mlp([3, 6, 2], generator=run.generator)
    (a, b), (c, d) = affine_layers(net)[0]
    factors = 0.5 + run.rand(6)
    order = torch.randperm(6, generator=run.generator)
    dead = torch.cat([a, a.new_zeros(4, 3)]), torch.cat([b, -b.new_ones(4)])
    same = [
        chain([(factors[:, None] * a, factors * b), (c / factors, d)], [nn.ReLU()]),
        chain([(a[order], b[order]), (c[:, order], d)], [nn.ReLU()]),
        chain([dead, (torch.cat([c, run.randn(2, 4)], 1), d)], [nn.ReLU()]),
    ]
    x = run.randn(points, 3)
    negative = chain([(-factors[:, None] * a, -factors * b), (-c / factors, d)], [nn.ReLU()])
    with torch.no_grad():
        away = [float((other(x) - net(x)).abs().max()) for other in same]
        turned = float((negative(x) - net(x)).abs().max())
    says = run.states("X-03", r"\text{rescaled, permuted, dead units added: the same realization}")
    says.equal(away, within=1e-12)
    says.fails("rescaled by negative factors", turned)
    says = run.states("X-03", r"M(\Phi)\text{ is no property of the function: }M\text{ with four dead units is larger}")
    says.above(network_size(same[2]).parameters, network_size(net).parameters)
    says.fails("permuted units", network_size(same[1]).parameters)


def drawings(run: Run) -> tuple[nn.Sequential, nn.Sequential, nn.Sequential]:
    """The drawing, read again."""
    shallow = mlp([4, 7, 3], generator=run.generator)
    deep = mlp([4, 6, 5, 6, 3], generator=run.generator)
    maps, between = affine_layers(deep)
    thin = chain([(w * (run.rand(*w.shape) < 0.5), b) for w, b in maps], between)
    nets = (shallow, deep, thin)
    circles, lines = zip(*(shapes(draw_architecture(net)) for net in nets), strict=True)
    weights = [sum(int(w.count_nonzero()) for w, _ in affine_layers(net)[0]) for net in nets]
    neurons = [architecture_graph(net).neurons for net in nets]
    says = run.states("X-04", r"\text{drawn circles}=N(\Phi)=d+\textstyle\sum_jn_j")
    says.equal(circles, [4 + 7 + 3, 4 + 6 + 5 + 6 + 3, 4 + 6 + 5 + 6 + 3])
    says.fails("hidden units only", [network_size(net).units for net in nets])
    says = run.states("X-04", r"\text{drawn lines}=\textstyle\sum_\ell\|W^{[\ell]}\|_0")
    says.equal(lines, weights)
    says.fails("the pruned network drawn with every weight", lines[1], promised=weights[2])
    run.table(
        "architectures",
        ["widths", "neurons N", "layers L", "weights M", "width", "circles", "lines"],
        [
            [str(g.widths), n, g.layers, g.weights, g.width, c, e]
            for g, n, c, e in zip(map(architecture_graph, nets), neurons, circles, lines, strict=True)
        ],
        caption="A shallow network, a deep one, and the deep one with half of its weights at 0",
    )
    return nets


def shapes(svg: str) -> tuple[int, int]:
    """Circles and lines with different places in a drawing."""
    root = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    circles = {(c.get("cx"), c.get("cy")) for c in root.iter(f"{space}circle")}
    ends = ("x1", "y1", "x2", "y2")
    lines = {tuple(e.get(k) for k in ends) for e in root.iter(f"{space}line")}
    return len(circles), len(lines)


def one_sided(row: Activation, order: int, side: float) -> float:
    """The derivative next to 0, on one side."""
    x = torch.tensor([side * 1e-7], dtype=torch.float64)
    return float(nth_derivative(row, x, order))


def between_zero_and_one(row: Activation, limit: float) -> Callable[[Tensor], Tensor]:
    """The affine change that takes the limits ∓c to 0 and 1."""
    return lambda x: (row(x) / limit + 1) / 2


def table_of_activations(run: Run) -> None:
    """Smoothness at 0, one-sided derivatives, limits."""
    many = MOST_DERIVATIVES
    expected = {
        "relu": 0,
        "leaky relu": 0,
        "elu": 1,
        "softsign": 1,
        "isrlu": 2,
        "isru": many,
        "logistic": many,
        "tanh": many,
        "arctan": many,
        "softplus": many,
    }
    rows = {name: activation(name) for name in expected}
    found = {name: inspect_activation(row) for name, row in rows.items()}
    says = run.states(
        "X-05", rf"k\text{{ with }}\varrho\in C^k\setminus C^{{k+1}}\ ({many}: \text{{that much or more}})"
    )
    says.equal([found[name].smoothness for name in expected], list(expected.values()), where=", ".join(expected))
    says.fails(
        "ELU with α = 2, whose first derivative jumps",
        inspect_activation(activation("elu", alpha=2.0)).smoothness,
        promised=1,
    )
    a = 0.7
    isrlu = activation("isrlu", a=a)
    softsign, elu = rows["softsign"], rows["elu"]
    says = run.states("X-05", r"\text{ELU}''(0^\mp)=1,0;\ \text{softsign}''(0^\mp)=\pm2;\ \text{ISRLU}'''(0^\mp)=-3a,0")
    says.equal(
        [
            one_sided(elu, 2, -1),
            one_sided(elu, 2, 1),
            one_sided(softsign, 2, -1),
            one_sided(softsign, 2, 1),
            one_sided(isrlu, 3, -1),
            one_sided(isrlu, 3, 1),
        ],
        [1, 0, 2, -2, -3 * a, 0],
        1e-5,
    )
    says.fails("ISRLU with another a", one_sided(activation("isrlu", a=1.0), 3, -1), promised=-2.1)
    far = torch.tensor([-1e9, 1e9], dtype=torch.float64)
    values = (0.25, 1.0, 4.0)
    says = run.states("X-05", r"\text{ISRU}\to\pm1/\sqrt a;\ \text{leaky ReLU with slope 0 is ReLU}")
    says.equal(
        [float(t) for v in values for t in activation("isru", a=v)(far)]
        + [float((activation("leaky relu", slope=0.0)(far) - torch.relu(far)).abs().max())],
        [s / math.sqrt(v) for v in values for s in (-1, 1)] + [0.0],
        1e-9,
    )
    says.fails("ISRU with a = 1 for a = 4", float(activation("isru")(far[1:])), promised=0.5)
    sigmoidal = {name: found[name].sigmoidal for name in expected}
    limits = {"tanh": 1.0, "arctan": math.pi / 2, "softsign": 1.0, "isru": 1.0}
    # softsign comes near its limit like 1/x
    rescaled = [inspect_activation(between_zero_and_one(rows[name], c)).sigmoidal for name, c in limits.items()]
    says = run.states(
        "X-05",
        r"\text{limits 0 and 1: the logistic function alone; tanh, arctan, softsign, ISRU after an affine change}",
    )
    says.equal([*sigmoidal.values(), *rescaled], [*(name == "logistic" for name in expected), *([1] * len(limits))])
    says.fails(
        "softplus after the same change",
        float(inspect_activation(lambda x: (torch.nn.functional.softplus(x) + 1) / 2).sigmoidal),
        promised=1.0,
    )
    run.table(
        "activations",
        ["activation", "smoothness", "bounded", "increasing", "sigmoidal", "Lipschitz"],
        [[name, p.smoothness, p.bounded, p.increasing, p.sigmoidal, p.lipschitz] for name, p in found.items()],
        caption="Table 3.1, with what the theorems ask for, measured",
    )


def plot(axes: Any, nets: list[nn.Sequential]) -> None:
    titles = ("shallow", "deep", "deep, half of the weights")
    for axis, net, title in zip(axes[0], nets, titles, strict=True):
        graph = architecture_graph(net)
        places = graph.positions()
        for start, end, weight in graph.edges:
            (x1, y1), (x2, y2) = places[start], places[end]
            axis.plot([x1, x2], [y1, y2], color="C0" if weight > 0 else "C1", lw=0.8, alpha=0.7)
        for (layer, _), (x, y) in places.items():
            color = "C2" if layer == 0 else "C3" if layer == graph.layers else "white"
            axis.plot(x, y, "o", ms=9, mfc=color, mec="black", mew=0.8)
        axis.set_title(f"{title}: N = {graph.neurons}, M = {graph.weights}")
        axis.set_axis_off()
