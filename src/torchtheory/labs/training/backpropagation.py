"""Backpropagation: right by induction, cheap by sharing, and what it is a shortcut for."""

from __future__ import annotations

import math
from collections.abc import Hashable
from functools import partial
from typing import Any

import networkx as nx
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.labs.training.autograd_reference import Loss, autograd_gradients, half_square
from torchtheory.labs.training.differentiation_cost import cost, modes
from torchtheory.labs.training.worked_network import plot_two_two_one, two_two_one
from torchtheory.models.model import flatten, unflatten
from torchtheory.nets.feedforward import mlp
from torchtheory.nets.graph import GraphNetwork
from torchtheory.primer.differences import numerical_jacobian
from torchtheory.training.backpropagation.chain import (
    Backpropagation,
    backpropagate,
    pull_back,
)
from torchtheory.training.backpropagation.graph import (
    GraphBackpropagation,
    backpropagate_graph,
    error_by_paths,
)
from torchtheory.training.losses.classification import classification_loss


@lab(
    "backpropagation",
    room="training",
    covers=["N-41", "S-26", "S-51", "A-22", "L-061"],
    title="Backpropagation is the chain rule in the right order, at three times a forward pass",
    errata=["backpropagation-without-derivatives"],
    full={"depth": 30, "width": 60, "graphs": 20, "units": 12},
    least={"width": 2, "units": 5},
)
def backpropagation(run: Run, depth: int = 10, width: int = 16, graphs: int = 4, units: int = 9) -> None:
    """Errors and gradients are computed by the recursion itself and compared with four others.

    Networks of dense and convolutional layers: every error and every gradient equals autograd's,
    and difference quotients away from kinks. The 2-2-1 network of the lectures: the recursion
    gives the formulas worked out by hand. Random acyclic graphs of single units: the error of each
    unit is the sum over all paths from it to the outputs, which is what correctness by induction
    says. Cost, by counted operations: the way back is two forward passes, whatever the number of
    parameters; forward differentiation pays once for every parameter. Look at the errors of a deep
    network as a heat map, and at how the three ways to differentiate scale.

    Args:
        depth: layers of the deep network.
        width: of its layers.
        graphs: random graphs.
        units: of each graph.
    """
    chains(run, width)
    printed_recursion(run)
    two_two_one(run)
    walk_through(run, width)
    correctness(run, graphs, units)
    modes(run)
    cost(run, width)
    deep = deep_network(run, depth, width)

    run.figure(
        "errors",
        lambda axes: plot_errors(axes, deep),
        caption="Errors of one sample in a deep tanh network, unit by unit, and their size as they "
        "travel back: with weights of variance 1/width they neither die nor grow by much, with "
        "half the weights they die geometrically.",
        grid=(1, 2),
    )
    run.figure(
        "two-two-one",
        plot_two_two_one,
        caption="The 2-2-1 network with the values of the forward pass in black and the gradients "
        "of the backward pass in red.",
        size=(7.5, 3.8),
    )


def autograd_errors(model: nn.Sequential, x: Tensor, y: Tensor, loss: Loss) -> list[Tensor]:
    """The derivative in every layer's output, by autograd."""
    h, values = x, []
    for module in model:
        h = module(h)
        values.append(h)
    return list(torch.autograd.grad(loss(h, y), values))


def without_slopes(model: nn.Module, found: Backpropagation) -> Tensor:
    """The recursion with every activation's slope left out: all gradients as one vector."""
    delta = found.steps[-1].delta
    gradients: list[Tensor] = []
    for step in reversed(found.steps):
        if step.slope is None:
            delta, own = pull_back(model.get_submodule(step.name), step.input, delta)
            gradients = [g.reshape(-1) for g in own.values()] + gradients
    return torch.cat(gradients)


def chains(run: Run, width: int) -> None:
    """Dense and convolutional networks under different losses."""
    labels = torch.randint(0, 3, (8,), generator=run.generator)
    log = classification_loss("log")
    image = nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 3, 2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(27, 3),
    ).double()
    for tensor in image.parameters():
        tensor.data = run.randn(*tensor.shape) / 3
    cases: list[tuple[nn.Sequential, Tensor, Tensor, Loss]] = [
        (mlp([5, width, 4, 3], "tanh", generator=run.generator), run.randn(8, 5), labels, log.mean),
        (mlp([5, width, 3], nn.GELU, generator=run.generator), run.randn(8, 5), labels, log.mean),
        (image, run.randn(8, 2, 7, 7), labels, F.cross_entropy),
        (
            mlp([5, width, 3], "logistic", output=partial(nn.Softmax, 1)(), generator=run.generator),
            run.randn(8, 5),
            run.randn(8, 3),
            half_square,
        ),
    ]
    theirs, ours, errors, our_errors, broken = [], [], [], [], []
    for model, x, y, loss in cases:
        found = backpropagate(model, x, y, log if loss == log.mean else loss)
        theirs.append(flatten(autograd_gradients(model, x, y, loss)))
        ours.append(flatten(found.gradients))
        errors += [e.reshape(-1) for e in autograd_errors(model, x, y, loss)]
        our_errors += [step.delta.reshape(-1) for step in found.steps]
        broken.append(without_slopes(model, found))
    says = run.states(
        ["N-41", "A-22"],
        r"\frac{\partial E}{\partial\theta^\ell}="
        r"\Bigl[\frac{\partial h^\ell}{\partial\theta^\ell}\Bigr]^\top\delta^\ell",
    )
    says.equal(
        torch.cat(ours),
        torch.cat(theirs),
        1e-12,
        where="dense and convolutional networks, four activations, three losses, by autograd",
    )
    says.fails("the slopes of the activations left out", torch.cat(broken))
    says = run.states(
        "N-41",
        r"\delta^{\ell-1}=\Bigl[\frac{\partial h^\ell}{\partial h^{\ell-1}}\Bigr]^\top\delta^\ell"
        r"=\frac{\partial E}{\partial h^{\ell-1}}",
    )
    says.equal(torch.cat(our_errors), torch.cat(errors), 1e-12)


def printed_recursion(run: Run) -> None:
    """One unit per layer, where a quotient of values can at least be formed."""
    net = mlp([1, 1, 1, 1], "tanh", output="tanh", generator=run.generator)
    x, y = 1 + run.rand(1, 1), run.randn(1, 1)
    found = backpropagate(net, x, y, half_square)
    true = [float(step.delta) for step in found.steps if step.operation == "tanh"]
    values = [float(step.output) for step in found.steps if step.operation == "tanh"]
    printed = [values[i + 1] / values[i] * true[i + 1] for i in range(2)]
    run.refutes(
        "backpropagation-without-derivatives", r"\delta^\ell=\Bigl[\frac{h^{\ell+1}}{h^\ell}\Bigr]^\top\delta^{\ell+1}"
    ).equal(true[:2], printed, 1e-9, where="a chain of single tanh units, where the quotient exists")


def walk_through(run: Run, width: int) -> None:
    """Forward, errors back, update: the loss falls, and by how much."""
    net = mlp([3, width, 2], "tanh", generator=run.generator)
    x, y = run.randn(20, 3), run.randn(20, 2)
    found = backpropagate(net, x, y, half_square)
    squared = float(flatten(found.gradients).square().sum())
    theta = {name: p.detach() for name, p in net.named_parameters()}

    def after(rate: float) -> float:
        moved = {name: p - rate * found.gradients[name] for name, p in theta.items()}
        return float(half_square(torch.func.functional_call(net, moved, (x,)), y))

    rate = 1e-7
    start = float(found.loss)
    says = run.states(
        "S-26", r"\frac{E(\theta)-E(\theta-\eta\nabla E)}{\eta}\to\|\nabla E\|^2 \text{ after the update}"
    )
    says.equal((start - after(rate)) / rate / squared, 1, 1e-3)
    says.fails("the update with the wrong sign", (start - after(-rate)) / rate / squared)
    # the values on the way there are those of the network itself
    hidden = torch.tanh(x @ theta["0.weight"].T + theta["0.bias"])
    says = run.states(
        "S-26", r"\text{the value of a unit is } \phi \text{ of a linear combination of the layer before}"
    )
    says.equal(found.steps[1].output, hidden, 1e-13)
    says.fails("without the nonlinearity", found.steps[0].output)


def random_graph(run: Run, units: int) -> GraphNetwork:
    """Single tanh units in a random order, each fed by about half of those before it."""
    graph = nx.DiGraph()
    for j in range(units):
        graph.add_node(j, activation="tanh")
        before = [i for i in range(j) if float(run.rand(1)) < 0.6]
        if j >= 2 and not before:
            before = [j - 1]
        graph.add_edges_from((i, j) for i in before if j >= 2)
    graph.remove_nodes_from([v for v in list(graph) if graph.degree(v) == 0])
    return GraphNetwork(graph, generator=run.generator)


def by_successors(net: GraphNetwork, found: GraphBackpropagation, only_first: bool) -> list[Tensor]:
    """The formula of the exercise, for tanh units, from the successors' errors."""
    errors: list[Tensor] = []
    for v in inner_vertices(net):
        slope = 1 - found.values[v].square()
        total = found.deltas[v] if v in net.outputs else torch.zeros_like(slope)
        for k in list(net.graph.successors(v))[: 1 if only_first else None]:
            weight = affine(net, k).weight.detach()[0, net.predecessors[k].index(v)]
            total = total + weight * found.errors[k]
        errors.append((slope * total).reshape(-1))
    return errors


def affine(net: GraphNetwork, v: Hashable) -> nn.Linear:
    first = next(net.vertex(v).children())
    assert isinstance(first, nn.Linear)
    return first


def inner_vertices(net: GraphNetwork) -> list[Hashable]:
    return [v for v in net.order if net.predecessors[v]]


def correctness(run: Run, graphs: int, units: int) -> None:
    """The error of every unit of random graphs, in four ways."""
    ours, paths, autograd, numerical, formula, partial_ = [], [], [], [], [], []
    several: list[bool] = []
    gradients, their_gradients, elsewhere = [], [], []
    rows = []
    for number in run.track(range(graphs), "graphs"):
        net = random_graph(run, units)
        x = run.randn(1, net.features)
        y = run.randn(1, len(net.outputs))
        found = backpropagate_graph(net, x, y, half_square)
        count = 0
        for v in inner_vertices(net):
            ours.append(found.errors[v].reshape(-1))
            summed = error_by_paths(net, x, y, half_square, v)
            paths.append(summed.error)
            count += summed.paths
            several.append(net.graph.out_degree(v) > 1)
        formula += by_successors(net, found, only_first=False)
        partial_ += by_successors(net, found, only_first=True)
        theirs = autograd_gradients(net, x, y, half_square)
        gradients.append(flatten({k: found.gradients[k] for k in theirs}))
        their_gradients.append(flatten(theirs))
        other = backpropagate_graph(net, x, y + 1, half_square)
        elsewhere.append(flatten({k: other.gradients[k] for k in theirs}))
        # one sample: moving a unit's bias moves its net input
        places = {id(p): name for name, p in net.named_parameters()}
        biases = [places[id(affine(net, v).bias)] for v in inner_vertices(net)]
        autograd += [theirs[name] for name in biases]
        numerical.append(bias_quotients(net, biases, x, y))
        rows.append((number, len(net.order), net.graph.number_of_edges(), count))
    says = run.states(["S-51", "A-22"], r"\delta_j=\sum_{\text{paths } j\to\text{output}}\ \prod w\,\phi'")
    says.equal(torch.cat(ours), torch.cat(paths), 1e-12, where=f"{graphs} random acyclic graphs of {units} tanh units")
    branching = torch.tensor(several)
    says.fails(
        "the paths through the first of several successors only",
        torch.cat(partial_)[branching],
        promised=torch.cat(paths)[branching],
    )
    run.states("S-51", r"\delta_j=\phi'(a_j)\sum_{k\in\mathrm{succ}(j)}w_{jk}\delta_k").equal(
        torch.cat(ours), torch.cat(formula), 1e-12
    )
    run.states(
        ["S-51", "S-26"], r"\delta_j=\partial E/\partial a_j \text{ by autograd and by difference quotients}"
    ).equal(torch.cat([*ours, *ours]), torch.cat([*autograd, *numerical]), 1e-8)
    says = run.states(["S-51", "A-22"], r"\partial E/\partial w_{ij}=h_i\,\delta_j")
    says.equal(torch.cat(gradients), torch.cat(their_gradients), 1e-12)
    says.fails("errors that start from another target", torch.cat(elsewhere))
    run.table(
        "graphs",
        ["graph", "units", "edges", "paths to an output"],
        rows,
        caption="Backpropagation uses every edge once; the sums it replaces have this many terms",
    )


def bias_quotients(net: GraphNetwork, names: list[str], x: Tensor, y: Tensor) -> Tensor:
    theta = {name: p.detach() for name, p in net.named_parameters()}
    chosen = {name: theta[name] for name in names}

    def value(vector: Tensor) -> Tensor:
        moved = {**theta, **unflatten(vector, chosen)}
        return half_square(torch.func.functional_call(net, moved, (x,)), y)

    return numerical_jacobian(value, flatten(chosen))


def deep_network(run: Run, depth: int, width: int) -> tuple[Backpropagation, list[Tensor]]:
    """Errors in a deep network, and their sizes at two scales of the weights."""
    sizes = []
    shown: Backpropagation | None = None
    for scale in (1.0, 0.5):
        net = mlp([width] * (depth + 1), "tanh", generator=run.generator)
        for layer in net:
            if isinstance(layer, nn.Linear):
                layer.weight.data = scale * run.randn(width, width) / math.sqrt(width)
                nn.init.zeros_(layer.bias)
        found = backpropagate(net, run.randn(1, width), run.randn(1, width), half_square)
        errors = [s.delta for s in found.steps if s.operation == "linear"]
        sizes.append(torch.tensor([float(e.norm()) for e in errors]))
        shown = shown or found
    assert shown is not None
    return shown, sizes


def plot_errors(axes: Any, deep: tuple[Backpropagation, list[Tensor]]) -> None:
    found, sizes = deep
    left, right = axes[0]
    errors = torch.stack([s.delta[0] for s in found.steps if s.operation == "linear"])
    top = float(errors.abs().max())
    image = left.imshow(
        errors.T, aspect="auto", cmap="RdBu_r", vmin=-top, vmax=top, interpolation="nearest",
        extent=(0.5, len(errors) + 0.5, errors.shape[1] + 0.5, 0.5),
    )  # fmt: skip
    left.grid(False)
    left.set(xlabel="layer", ylabel="unit", title=r"errors $\partial E/\partial z$, unit by unit")
    left.figure.colorbar(image, ax=left)
    layers = range(1, len(errors) + 1)
    for size, label, color in zip(sizes, ("1/width", "1/(4 width)"), COLORS, strict=False):
        right.semilogy(layers, size, "o-", ms=3, color=color, label=f"weights of variance {label}")
    right.set(xlabel="layer", ylabel=r"$\|\partial E/\partial z^\ell\|$", title="size of the error")
    right.legend()
