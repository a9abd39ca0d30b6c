"""Architectures beyond the chain: shortcuts, dense connections, graphs, maxout."""

from __future__ import annotations

import math
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch import Tensor, nn

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.labs.nets.comparing import gap, linear_layer
from torchtheory.nets.activations.table import ACTIVATIONS, activation
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.nets.graph import GraphNetwork, layered_graph, neuron_graph
from torchtheory.nets.maxout import Maxout, piecewise_linear_as_maxouts
from torchtheory.nets.residual.layers import DenselyConnected, ResidualLayer, residual_network
from torchtheory.tracing.layer_results import layer_outputs


@lab(
    "shortcut-layers",
    room="nets",
    covers=["N-27", "N-28"],
    title="Residual layers start at the identity and keep gradients alive through 100 layers",
    full={"depth": 200, "width": 64, "samples": 1000},
)
def shortcut_layers(run: Run, depth: int = 100, width: int = 16, samples: int = 20) -> None:
    """A residual layer with zero weights is the identity for every activation; a plain one is not.

    With ‖W‖·Lip(φ) ≤ c < 1 every residual layer changes lengths of gradients by factors in
    [1−c, 1+c] only, so through `depth` layers they keep at least $(1−c)^{depth}$ of their size; those
    of the plain stack shrink at least like $c^{depth}$. The picture shows both, layer by layer. A
    densely connected network with its shortcuts set to 0 is the plain network.

    Args:
        width: of the layers.
        samples: random inputs.
    """
    x = run.randn(samples, width)
    rows = list(ACTIVATIONS.values())
    still = [residual(width, row.name) for row in rows]
    plain = [gap(row(torch.zeros_like(x)), x) for row in rows]
    says = run.states("N-27", r"F[0,0]=\mathrm{Id}\text{ for every }\phi")
    says.equal(
        [gap(layer(x), x) for layer in still], where="exactly, also where φ(0) ≠ 0 (logistic, softplus, Gaussian)"
    )
    says.fails("a plain layer with zero weights", plain)
    shift = run.randn(width)
    moved = []
    for row, layer in zip(rows, still, strict=True):
        with torch.no_grad():
            layer.inner.bias.copy_(shift)
        moved.append((gap(layer(x), x + row(shift) - row(torch.zeros(1).double())), gap(layer(x), x)))
    says = run.states("N-27", r"F[0,b](x)=x+\phi(b)-\phi(0):\ \text{a shift}")
    says.equal([m[0] for m in moved], within=1e-14)
    says.fails("taken for the identity", [m[1] for m in moved])
    v = run.randn(5, width)
    projected = residual(width, "logistic", 5)
    projected.projection = dense(v)
    run.states("N-27", r"F[V,0,0](x)=Vx,\ V\in\mathbb R^{m\times n}").equal(gap(projected(x), x @ v.T), within=1e-14)

    bound = 0.2
    stacks = {
        "residual": residual_network(width, depth, "tanh", generator=run.generator),
        "plain": mlp([width] * (depth + 1), "tanh", output="tanh", generator=run.generator),
    }
    for stack in stacks.values():
        for module in stack.modules():
            if isinstance(module, nn.Linear):
                with torch.no_grad():
                    module.weight.mul_(bound / torch.linalg.matrix_norm(module.weight, 2))
    norms = {name: gradient_norms(stack, x) for name, stack in stacks.items()}
    # every layer works against its shortcut, where tanh is steepest
    opposed = residual_network(width, depth, "tanh", generator=run.generator)
    with torch.no_grad():
        for name, parameter in opposed.named_parameters():
            eye = torch.eye(width, dtype=parameter.dtype)
            parameter.copy_(-bound * eye if name.endswith("weight") else torch.zeros(width))
    worst = gradient_norms(opposed, torch.zeros_like(x))

    def kept(lengths: list[float]) -> float:
        """What is left of the gradient, in units of what is promised: both are tiny numbers."""
        return lengths[0] / lengths[-1] / (1 - bound) ** depth

    says = run.states("N-27", r"\|W\|\,\mathrm{Lip}(\phi)\le c:\ \|\nabla_{x^0}\|\ge(1-c)^L\|\nabla_{x^L}\|")
    says.at_least(
        [kept(norms["residual"]), kept(worst)], 1.0, 1e-12,
        where=f"in units of $(1-c)^L$; tanh, c = {bound}, L = {depth}; random weights, and W = -cI at 0",
    )  # fmt: skip
    says.fails("no shortcut", kept(norms["plain"]))
    says = run.states("N-27", r"\|\nabla_{x^0}\|\le c^L\|\nabla_{x^L}\|\text{ without the shortcut: }\log_{10}")
    says.at_most(math.log10(norms["plain"][0]), depth * math.log10(bound) + math.log10(norms["plain"][-1]))
    says.fails(
        "with it",
        math.log10(norms["residual"][0]),
        promised=depth * math.log10(bound) + math.log10(norms["residual"][-1]),
    )

    def changes(lengths: list[float]) -> Tensor:
        along = torch.tensor(lengths, dtype=torch.float64)
        return (along[:-1] / along[1:] - 1).abs()

    says = run.states("N-27", r"(1-c)\le\|\nabla_{x^{\ell-1}}\|/\|\nabla_{x^\ell}\|\le1+c\text{ for every layer}")
    says.at_most(
        torch.cat([changes(norms["residual"]), changes(worst)]), bound, 1e-12,
        where="random weights, and W = -cI at 0, where it is met",
    )  # fmt: skip
    says.fails("no shortcut", changes(norms["plain"]))
    densely(run)
    run.curves(
        "gradients",
        range(depth + 1),
        {f"{name} stack": values for name, values in norms.items()},
        {f"$(1-{bound})^{{L-\\ell}}$": [(1 - bound) ** (depth - i) * norms["residual"][-1] for i in range(depth + 1)]},
        axes=("layer ℓ", "gradient norm"),
        log="y",
        caption=f"Gradient at the output of each layer, {depth} layers: the plain stack loses a "
        f"factor of at least {1 / bound:g} a layer, the residual stack hardly anything.",
    )


def densely(run: Run) -> None:
    """N-28: widths, parameters and the plain network inside."""
    cases = [(2, (3, 4, 1)), (5, (2, 2, 2, 2, 3)), (1, (7,))]
    nets = [DenselyConnected(n, m, "tanh", generator=run.generator) for n, m in cases]
    says = run.states("N-28", r"\text{layer }\ell+1\text{ has }n+\sum_{j\le\ell}m_j\text{ inputs: parameters}")
    says.equal(
        [sum(p.numel() for p in net.parameters()) for net in nets],
        [DenselyConnected.parameter_count(n, m) for n, m in cases],
    )
    says.fails(
        "the plain network of the same widths", [sum(p.numel() for p in mlp((n, *m)).parameters()) for n, m in cases]
    )
    x = run.randn(30, 5)
    net = nets[1]
    layers = []
    read = (5, *net.growths[:-1])
    for i, m in enumerate(read):
        state = net.layers[i].state_dict()
        layers += [dense(state["weight"][:, :m], state["bias"]), nn.Tanh()]
    plain = nn.Sequential(*layers[:-1])
    says = run.states("N-28", r"\text{shortcut blocks set to }0:\ \text{the plain network}")
    says.equal(gap(net.without_shortcuts()(x), plain(x)), within=1e-14)
    says.fails("the shortcuts left in", gap(net(x), plain(x)))
    values = layer_outputs(net, x)
    inputs = [torch.tanh(values[f"layers.{i}"]) for i in range(4)]
    last = torch.cat([*inputs[::-1], x], 1)
    says = run.states("N-28", r"x^{\ell+1}=F^{\ell+1}(x^\ell,\dots,x^1,x)")
    says.equal(gap(net.layers[4](last), net(x)), within=1e-14)
    says.fails("the order reversed", gap(net.layers[4](last.flip(1)), net(x)))


@lab(
    "graph-networks",
    room="nets",
    covers=["A-07"],
    title="Networks are functions on directed acyclic graphs; chains are the dense case",
    full={"samples": 2000, "vertices": 60},
    least={"vertices": 5},
)
def graph_networks(run: Run, samples: int = 40, vertices: int = 12) -> None:
    """One module for any acyclic graph: a chain gives the dense network bit for bit.

    The same network is built three times: as nn.Sequential, as a chain of layers and as a graph
    of single neurons (drawn below, Figure 1.1 of the source). Shortcut edges turn it into the
    residual and the densely connected network. On a random graph the gradients are compared with
    difference quotients, and the values do not depend on the topological order that was taken.

    Args:
        samples: random inputs.
        vertices: of the random graph.
    """
    x = run.randn(samples, 3)
    net = mlp([3, 4, 6, 1], "tanh", generator=run.generator)
    chain = GraphNetwork(layered_graph([3, 4, 6, 1], "tanh"))
    for i in (1, 2, 3):
        state = linear_layer(net, 2 * i - 2).state_dict()
        linear_layer(chain.vertex(i), 0).load_state_dict(state)
    says = run.states(["A-07", "A-08"], r"\text{a chain graph is the dense network, bit for bit}")
    says.equal(gap(chain(x), net(x)))
    says.fails("other weights", gap(GraphNetwork(layered_graph([3, 4, 6, 1], "tanh"))(x), net(x)))
    neurons = neuron_graph(net)
    run.states(["A-07", "A-08"], r"\text{the graph of its single neurons computes the same}").equal(
        gap(neurons(x), net(x)), within=1e-14
    )
    run.states("A-07", r"\#\text{vertices}=\sum N_\ell,\ \#\text{edges}=\sum N_\ell N_{\ell-1}").equal(
        [neurons.graph.number_of_nodes(), neurons.graph.number_of_edges()], [14, 42]
    )
    shortcut = DenselyConnected(3, [4, 6, 1], "tanh", generator=run.generator)
    every = layered_graph([3, 4, 6, 1], "tanh")
    for before, after in ((0, 2), (1, 3), (0, 3)):
        every.add_edge(before, after)
    joined = GraphNetwork(every)
    for i in (1, 2, 3):
        state = shortcut.layers[i - 1].state_dict()
        linear_layer(joined.vertex(i), 0).load_state_dict(state)
    says = run.states(["A-07", "N-28"], r"\text{with all shortcut edges it is the densely connected network}")
    says.equal(gap(joined(x), shortcut(x)), within=1e-14)
    says.fails("without them", gap(chain(x), shortcut(x)))
    graph = random_graph(run, vertices)
    built = GraphNetwork(graph, generator=run.generator)
    z = run.randn(5, built.features)
    says = run.states("A-07", r"\text{gradient of a random graph network = difference quotients}")
    says.equal(quotient_gap(built, z), within=1e-8)
    says.fails("gradients of the network with one edge's weights set to 0", quotient_gap(built, z, cut=True))
    values = built.values(z)
    again = by_recursion(built, z)
    run.states("A-07", r"\text{the value of a vertex depends on its predecessors only, not on the order taken}").equal(
        [gap(values[v], again[v]) for v in graph]
    )
    run.figure(
        "neurons",
        lambda axes: plot_graphs(axes, neurons.graph, graph),
        caption="Left: the fourteen neurons of the dense network (3, 4, 6, 1). Right: a random "
        "acyclic graph; inputs blue, outputs orange.",
        grid=(1, 2),
        size=(10, 4),
    )


@lab(
    "maxout",
    room="nets",
    covers=["S-03"],
    title="Maxout units are convex, and the difference of two is any piecewise linear function",
    full={"samples": 20_000},
    least={"pieces": 2},
)
def maxout(run: Run, samples: int = 500, features: int = 4, pieces: int = 5) -> None:
    """The maximum of affine functions contains ReLU, |x| and leaky ReLU, and is always convex.

    Convexity is tested on random segments. A continuous piecewise linear function on the line is
    split into a convex and a concave part, each of which is one maxout unit: the picture shows
    the function and the two.

    Args:
        samples: random inputs.
        features: of an input.
        pieces: affine maps per unit.
    """
    x = run.randn(samples, features)
    w, b = run.randn(features), run.randn(1)
    zero = torch.zeros(features).double()
    cases = {
        "relu": (torch.stack([zero, w]), torch.cat([0 * b, b]), torch.relu(x @ w + b)),
        "absolute value": (torch.stack([w, -w]), torch.zeros(2), (x @ w).abs()),
        "leaky relu": (torch.stack([0.1 * w, w]), torch.zeros(2), activation("leaky relu")(x @ w)),
    }
    found = {}
    for name, (weights, biases, wanted) in cases.items():
        unit = Maxout(features, 1)
        unit.set_pieces(weights.unsqueeze(0), biases.double().unsqueeze(0))
        found[name] = gap(unit(x)[:, 0], wanted)
    says = run.states("S-03", r"\max(0,w^\top x+b),\ \max(w^\top x,-w^\top x),\ \max(0.1w^\top x,w^\top x)")
    says.equal(list(found.values()), within=1e-14, where="ReLU, absolute value, leaky ReLU")
    says.fails("ReLU against |·|", gap(cases["relu"][2], cases["absolute value"][2]))
    units = Maxout(features, 10, pieces, generator=run.generator)
    y, t = run.randn(samples, features), run.rand(samples, 1)
    says = run.states("S-03", r"f(tx+(1-t)y)\le tf(x)+(1-t)f(y)")
    says.at_most((units(t * x + (1 - t) * y) - t * units(x) - (1 - t) * units(y)).detach(), 0, 1e-13)
    says.fails("tanh units", torch.tanh(t * x + (1 - t) * y) - t * torch.tanh(x) - (1 - t) * torch.tanh(y))
    by_hand = torch.stack(
        [
            (x @ units.affine.weight.T + units.affine.bias)[:, i * pieces : (i + 1) * pieces].max(1).values
            for i in range(10)
        ],
        dim=1,
    )
    run.states("S-03", r"\text{unit }i=\max_j(w_{ij}^\top x+b_{ij})").equal(gap(units(x), by_hand), within=1e-14)
    says = run.states("S-03", r"\text{parameters: }k(d+1)m,\ k\text{ times those of a pointwise layer}")
    says.equal(sum(p.numel() for p in units.parameters()), pieces * (features + 1) * 10)
    says.fails("a ReLU layer", sum(p.numel() for p in mlp([features, 10]).parameters()))
    knots = torch.linspace(-4, 4, 8).double() + 0.6 * (run.rand(8) - 0.5)
    values = run.randn(8)
    slopes = run.randn(2).tolist()
    up, down = piecewise_linear_as_maxouts(knots, values, *slopes)
    grid = torch.linspace(-6, 6, 2001, dtype=torch.float64)
    wanted = torch.from_numpy(piecewise(grid.numpy(), knots.numpy(), values.numpy(), *slopes))
    got = (up(grid.unsqueeze(1)) - down(grid.unsqueeze(1)))[:, 0].detach()
    says = run.states("S-03", r"f=\max_j(a_jx+b_j)-\max_j(c_jx+d_j)\text{ for any continuous piecewise linear }f")
    says.equal(gap(got, wanted), within=1e-11, where="eight random knots, against numpy's interpolation")
    says.fails("one convex unit alone", gap(up(grid.unsqueeze(1))[:, 0], wanted))
    run.figure(
        "difference",
        lambda axes: plot_difference(axes, grid, got, up, down, knots, values),
        caption="A piecewise linear function through given knots (right) as the difference of two "
        "convex maxout units (left).",
        grid=(1, 2),
        size=(9, 3.2),
    )


def residual(width: int, name: str, outputs: int | None = None) -> ResidualLayer:
    """A residual layer with all weights 0."""
    layer = ResidualLayer(width, outputs, name)
    for p in layer.parameters():
        nn.init.zeros_(p)
    return layer


def gradient_norms(stack: nn.Sequential, x: Tensor) -> list[float]:
    """Norm of the gradient of a fixed linear functional at the input and after every block."""
    size = 2 if isinstance(stack[0], nn.Linear) else 1
    values = [x[:1].clone().requires_grad_()]
    for start in range(0, len(stack), size):
        values.append(stack[start : start + size](values[-1]))
    gradients = torch.autograd.grad(values[-1].sum(), values)
    # squares of the smallest would underflow
    sizes = [g.abs().max() for g in gradients]
    return [float(size * (g / size).norm()) for size, g in zip(sizes, gradients, strict=True)]


def random_graph(run: Run, vertices: int) -> nx.DiGraph:
    """An acyclic graph with mixed widths and activations, every vertex on some path."""
    names = ("tanh", "logistic", "softplus", "arctan")
    graph = nx.DiGraph()
    for v in range(vertices):
        graph.add_node(v, width=1 + v % 3, activation=names[v % 4])
        if v >= 3:
            order = torch.randperm(v, generator=run.generator)[: 1 + v % 3]
            graph.add_edges_from((int(u), v) for u in order)
    graph.remove_nodes_from([v for v in range(3) if graph.out_degree(v) == 0])
    return graph


def quotient_gap(net: GraphNetwork, x: Tensor, *, cut: bool = False) -> float:
    """Automatic gradient of the summed outputs against central differences, in x and one weight."""
    net.zero_grad()
    point = x.clone().requires_grad_()
    weight = linear_layer(net.vertex(net.outputs[-1]), 0).weight
    kept = weight.detach().clone()
    if cut:
        with torch.no_grad():
            weight.zero_()
    net(point).sum().backward()
    gradient, by_weight = point.grad, weight.grad
    assert gradient is not None
    assert by_weight is not None
    with torch.no_grad():
        weight.copy_(kept)
        h = 1e-5
        worst = 0.0
        for i in range(x.shape[1]):
            step = torch.zeros_like(x)
            step[:, i] = h
            quotient = (net(x + step).sum(1) - net(x - step).sum(1)) / (2 * h)
            worst = max(worst, gap(quotient, gradient[:, i]))
        for value in (1, -1):
            weight[0, 0] = kept[0, 0] + value * h
            total = float(net(x).sum())
            by_weight[0, 0] -= value * total / (2 * h)
        weight.copy_(kept)
    return max(worst, float(by_weight[0, 0].abs()))


def by_recursion(net: GraphNetwork, x: Tensor) -> dict[Any, Tensor]:
    """Values by depth-first recursion, an order of its own."""
    dealt = torch.split(x, [net.widths[v] for v in net.inputs], dim=1)
    known: dict[Any, Tensor] = dict(zip(net.inputs, dealt, strict=True))

    def value(v: Any) -> Tensor:
        if v not in known:
            joined = torch.cat([value(u) for u in net.predecessors[v]], dim=1)
            known[v] = net.vertex(v)(joined)
        return known[v]

    for v in reversed(list(net.graph)):
        value(v)
    return known


def piecewise(x: Any, knots: Any, values: Any, left: float, right: float) -> Any:
    inside = np.interp(x, knots, values)
    inside = np.where(x < knots[0], values[0] + left * (x - knots[0]), inside)
    return np.where(x > knots[-1], values[-1] + right * (x - knots[-1]), inside)


ARROW = {"arrowstyle": "->", "color": "0.6", "shrinkA": 6, "shrinkB": 6, "lw": 0.7}


def plot_graphs(axes: Any, neurons: nx.DiGraph, graph: nx.DiGraph) -> None:
    tall = {0: 3, 1: 4, 2: 6, 3: 1}
    place = {(i, j): (i, j - (tall[i] - 1) / 2) for i, j in neurons}
    depth = dict.fromkeys(graph, 0)
    for v in nx.topological_sort(graph):
        depth[v] = max((depth[u] + 1 for u in graph.predecessors(v)), default=0)
    rows: dict[int, int] = {}
    spread = {}
    for v in graph:
        rows[depth[v]] = rows.get(depth[v], 0) + 1
        spread[v] = (depth[v], rows[depth[v]] + 0.37 * (depth[v] % 2))
    for axis, g, position in ((axes[0, 0], neurons, place), (axes[0, 1], graph, spread)):
        for u, v in g.edges:
            axis.annotate("", position[v], position[u], arrowprops=ARROW)
        for v in g:
            inner = COLORS[1] if g.out_degree(v) == 0 else "white"
            ends = COLORS[0] if g.in_degree(v) == 0 else inner
            axis.plot(*position[v], marker="o", markersize=10, color=ends, markeredgecolor="0.3")
        axis.margins(0.12)
        axis.axis("off")


def plot_difference(axes: Any, x: Tensor, got: Tensor, up: Maxout, down: Maxout, knots: Tensor, values: Tensor) -> None:
    column = x.unsqueeze(1)
    left, right = axes[0]
    left.plot(x, up(column)[:, 0].detach(), color=COLORS[0], label="first unit")
    left.plot(x, down(column)[:, 0].detach(), color=COLORS[1], linestyle="--", label="second unit")
    left.set_title("two convex units")
    right.plot(x, got, color="black", label="their difference")
    right.scatter(knots, values, color=COLORS[2], s=22, zorder=3, label="knots given")
    right.set_title("their difference")
    for axis in (left, right):
        axis.set_xlabel("x")
        axis.legend()
