"""Backpropagation: right by induction, cheap by sharing, and what it is a shortcut for."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import networkx as nx
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.figure import COLOURS
from torchtheory.core.lab import lab
from torchtheory.core.model import Parameters, flatten, unflatten
from torchtheory.core.record import Control
from torchtheory.core.run import Run
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.nets.graph import GraphNetwork
from torchtheory.primer.differences import numerical_jacobian
from torchtheory.training.backpropagation import (
    Backpropagation,
    backpropagate,
    count_flops,
    is_pointwise,
    pull_back,
)
from torchtheory.training.graph_backpropagation import (
    GraphBackpropagation,
    backpropagate_graph,
    error_by_paths,
)
from torchtheory.training.losses import classification_loss

Loss = Callable[[Tensor, Tensor], Tensor]


@lab(
    "backpropagation",
    room="training",
    covers=["N-41", "S-26", "S-51", "A-22", "L-061"],
    title="Backpropagation is the chain rule in the right order, at three times a forward pass",
    errata=["backpropagation-without-derivatives"],
    full={"depth": 30, "width": 60, "graphs": 20, "units": 12},
)
def backpropagation(
    run: Run, depth: int = 10, width: int = 16, graphs: int = 4, units: int = 9
) -> None:
    """Errors and gradients are computed by the recursion itself and compared with four others.

    Networks of dense and convolutional layers: every error and every gradient equals autograd's,
    and difference quotients away from kinks. The 2-2-1 network of the lectures: the recursion
    gives the formulas worked out by hand. Random acyclic graphs of single units: the error of each
    unit is the sum over all paths from it to the outputs, which is what correctness by induction
    says. Cost, by counted operations: the way back is two forward passes, whatever the number of
    parameters; forward differentiation pays once for every parameter. Look at the errors of a deep
    network as a heat map, and at how the three ways to differentiate scale.
    """
    chains(run, width)
    printed_recursion(run)
    two_two_one(run)
    walk_through(run, width)
    correctness(run, graphs, units)
    modes(run)
    costs = cost(run, width)
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
        lambda axis: plot_two_two_one(axis),
        caption="The 2-2-1 network with the values of the forward pass in black and the gradients "
        "of the backward pass in red.",
        size=(7.5, 3.8),
    )
    run.figure(
        "cost",
        lambda axis: plot_cost(axis, costs),
        caption="Operations for a gradient in units of one forward pass. Reverse differentiation "
        "costs three forward passes at any size, the other two as many as there are parameters.",
    )


# ------------------------------------------------------------------------------- chains


def autograd_gradients(model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> Parameters:
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(loss(model(x), y), list(parameters.values()))
    return dict(zip(parameters, found, strict=True))


def autograd_errors(model: nn.Sequential, x: Tensor, y: Tensor, loss: Loss) -> list[Tensor]:
    """The derivative in every layer's output, by autograd."""
    h, values = x, []
    for module in model:
        h = module(h)
        values.append(h)
    return list(torch.autograd.grad(loss(h, y), values))


def without_slopes(found: Backpropagation) -> Tensor:
    """The recursion with every activation's slope left out: all gradients as one vector."""
    delta = found.steps[-1].delta
    gradients: list[Tensor] = []
    for step in reversed(found.steps):
        if not is_pointwise(step.module):
            delta, own = pull_back(step.module, step.input, step.output, delta)
            gradients = [g.reshape(-1) for g in own.values()] + gradients
    return torch.cat(gradients)


def half_square(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs - y).square().sum() / 2


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
        (mlp([5, width, 4, 3], "tanh", random=run.generator), run.randn(8, 5), labels, log.mean),
        (mlp([5, width, 3], nn.GELU, random=run.generator), run.randn(8, 5), labels, log.mean),
        (image, run.randn(8, 2, 7, 7), labels, F.cross_entropy),
        (
            mlp([5, width, 3], "logistic", output=partial(nn.Softmax, 1)(), random=run.generator),
            run.randn(8, 5), run.randn(8, 3), half_square,
        ),
    ]  # fmt: skip
    theirs, ours, errors, our_errors, broken = [], [], [], [], []
    for model, x, y, loss in cases:
        found = backpropagate(model, x, y, log if loss == log.mean else loss)
        theirs.append(flatten(autograd_gradients(model, x, y, loss)))
        ours.append(flatten(found.gradients))
        errors += [e.reshape(-1) for e in autograd_errors(model, x, y, loss)]
        our_errors += [step.delta.reshape(-1) for step in found.steps]
        broken.append(without_slopes(found))
    run.claim(
        ["N-41", "A-22"],
        r"\frac{\partial E}{\partial\theta^\ell}="
        r"\Bigl[\frac{\partial h^\ell}{\partial\theta^\ell}\Bigr]^\top\delta^\ell",
        promised=torch.cat(theirs),
        relation="==",
        measured=torch.cat(ours),
        tolerance=1e-12,
        reason="dense and convolutional networks, four activations, three losses, by autograd",
        control=Control("the slopes of the activations left out", torch.cat(broken)),
    )
    run.claim(
        "N-41",
        r"\delta^{\ell-1}=\Bigl[\frac{\partial h^\ell}{\partial h^{\ell-1}}\Bigr]^\top\delta^\ell"
        r"=\frac{\partial E}{\partial h^{\ell-1}}",
        promised=torch.cat(errors),
        relation="==",
        measured=torch.cat(our_errors),
        tolerance=1e-12,
    )


def printed_recursion(run: Run) -> None:
    """One unit a layer, where a quotient of values can at least be formed."""
    net = mlp([1, 1, 1, 1], "tanh", output="tanh", random=run.generator)
    x, y = 1 + run.rand(1, 1), run.randn(1, 1)
    found = backpropagate(net, x, y, half_square)
    true = [float(step.delta) for step in found.steps if isinstance(step.module, nn.Tanh)]
    values = [float(step.output) for step in found.steps if isinstance(step.module, nn.Tanh)]
    printed = [values[i + 1] / values[i] * true[i + 1] for i in range(2)]
    run.erratum(
        "backpropagation-without-derivatives",
        r"\delta^\ell=\Bigl[\frac{h^{\ell+1}}{h^\ell}\Bigr]^\top\delta^{\ell+1}",
        promised=printed,
        relation="==",
        measured=true[:2],
        tolerance=1e-9,
        reason="a chain of single tanh units, where the quotient exists",
    )


# ------------------------------------------------------------------------------- 2-2-1

#: The weights of Figure 2.7 by the source's names: w_ij leads from input i to hidden unit j, and
#: w_3j from hidden unit j to the output.
WEIGHTS = {"w11": 0.5, "w21": -0.4, "w12": 0.3, "w22": 0.8, "w31": 1.2, "w32": -0.7}
POINT, TARGET, RATE = (1.0, 2.0), 1.0, 0.5


def small_network() -> tuple[nn.Sequential, Tensor, Tensor]:
    w = WEIGHTS
    hidden = torch.tensor([[w["w11"], w["w21"]], [w["w12"], w["w22"]]], dtype=torch.float64)
    last = torch.tensor([[w["w31"], w["w32"]]], dtype=torch.float64)
    net = nn.Sequential(dense(hidden), nn.Sigmoid(), dense(last), nn.Sigmoid())
    point = torch.tensor([POINT], dtype=torch.float64)
    return net, point, torch.tensor([[TARGET]], dtype=torch.float64)


def by_hand() -> dict[str, float]:
    """The source's formulas, one line each."""
    w = WEIGHTS
    x1, x2 = POINT

    def s(t: float) -> float:
        return 1 / (1 + math.exp(-t))

    net_h1 = w["w11"] * x1 + w["w21"] * x2
    net_h2 = w["w12"] * x1 + w["w22"] * x2
    h1, h2 = s(net_h1), s(net_h2)
    net_o = w["w31"] * h1 + w["w32"] * h2
    y_hat = s(net_o)
    error = (y_hat - TARGET) * y_hat * (1 - y_hat)
    d1, d2 = error * w["w31"] * h1 * (1 - h1), error * w["w32"] * h2 * (1 - h2)
    return {
        "net_h1": net_h1, "net_h2": net_h2, "h1": h1, "h2": h2, "net_o": net_o, "ŷ": y_hat,
        "L": (TARGET - y_hat) ** 2 / 2, "∂L/∂ŷ": y_hat - TARGET, "∂L/∂net_o": error,
        "∂L/∂h1": error * w["w31"], "∂L/∂h2": error * w["w32"],
        "∂L/∂net_h1": d1, "∂L/∂net_h2": d2,
        "w11": d1 * x1, "w21": d1 * x2, "w12": d2 * x1, "w22": d2 * x2,
        "w31": error * h1, "w32": error * h2,
    }  # fmt: skip


def named(hidden: Tensor, last: Tensor) -> list[float]:
    """Gradients of the two matrices in the order of ``WEIGHTS``."""
    return [*hidden.reshape(-1).tolist(), *last.reshape(-1).tolist()]


def two_two_one(run: Run) -> None:
    """The example the lectures work out by hand."""
    net, x, y = small_network()
    found = backpropagate(net, x, y, half_square)
    hand = by_hand()
    by_formula = [hand[name] for name in WEIGHTS]
    ours = named(found.gradients["0.weight"], found.gradients["2.weight"])
    swapped = named(found.gradients["0.weight"].T, found.gradients["2.weight"])
    run.claim(
        "L-061",
        r"\frac{\partial L}{\partial w_{3j}}=(\hat y-y)\sigma'(\mathrm{net}_o)h_j,\quad"
        r"\frac{\partial L}{\partial w_{ij}}=(\hat y-y)\sigma'(\mathrm{net}_o)w_{3j}"
        r"\sigma'(\mathrm{net}_{h_j})x_i",
        promised=by_formula,
        relation="==",
        measured=ours,
        tolerance=1e-14,
        control=Control("w₁₂ and w₂₁ taken for each other", swapped),
    )
    autograd = autograd_gradients(net, x, y, half_square)
    run.claim(
        ["L-061", "A-22"],
        r"\text{the hand-worked gradients are those of autograd and of difference quotients}",
        promised=[*named(autograd["0.weight"], autograd["2.weight"]), *quotients(net, x, y)],
        relation="==",
        measured=[*by_formula, *by_formula],
        tolerance=1e-9,
    )
    inner = [unit for unit in found.units() if unit.layer == 1]
    run.claim(
        "L-061",
        r"\frac{\partial L}{\partial h_j}=(\hat y-y)\,\sigma'(\mathrm{net}_o)\,w_{3j}",
        promised=[hand["∂L/∂h1"], hand["∂L/∂h2"]],
        relation="==",
        measured=[unit.delta for unit in inner],
        tolerance=1e-14,
        control=Control("the error at the hidden net inputs", [unit.error for unit in inner]),
    )
    run.table(
        "two-two-one-units",
        ["unit", "net input", "value", "∂L/∂value", "σ'(net input)", "∂L/∂net input"],
        [
            (name, u.net_input, u.value, u.delta, u.slope, u.error)
            for name, u in zip(("h1", "h2", "ŷ"), found.units(), strict=True)
        ],
        caption=f"x = {POINT}, y = {TARGET:g}, L = {float(found.loss):.6f}",
    )
    run.table(
        "two-two-one-weights",
        ["weight", "value", "∂L/∂w", "updated"],
        [(name, w, g, w - RATE * g) for (name, w), g in zip(WEIGHTS.items(), ours, strict=True)],
        caption=f"One step of gradient descent at rate {RATE:g}",
    )


def quotients(net: nn.Sequential, x: Tensor, y: Tensor) -> list[float]:
    theta = {name: p.detach() for name, p in net.named_parameters()}

    def value(vector: Tensor) -> Tensor:
        return half_square(torch.func.functional_call(net, unflatten(vector, theta), (x,)), y)

    made: list[float] = numerical_jacobian(value, flatten(theta)).tolist()
    return made


def walk_through(run: Run, width: int) -> None:
    """Forward, errors back, update: the loss falls, and by how much."""
    net = mlp([3, width, 2], "tanh", random=run.generator)
    x, y = run.randn(20, 3), run.randn(20, 2)
    found = backpropagate(net, x, y, half_square)
    squared = float(flatten(found.gradients).square().sum())
    theta = {name: p.detach() for name, p in net.named_parameters()}

    def after(rate: float) -> float:
        moved = {name: p - rate * found.gradients[name] for name, p in theta.items()}
        return float(half_square(torch.func.functional_call(net, moved, (x,)), y))

    rate = 1e-7
    start = float(found.loss)
    run.claim(
        "S-26",
        r"\frac{E(\theta)-E(\theta-\eta\nabla E)}{\eta}\to\|\nabla E\|^2 \text{ after the update}",
        promised=1,
        relation="==",
        measured=(start - after(rate)) / rate / squared,
        tolerance=1e-3,
        control=Control("the update with the wrong sign", (start - after(-rate)) / rate / squared),
    )
    # the values on the way there are those of the network itself
    hidden = torch.tanh(x @ theta["0.weight"].T + theta["0.bias"])
    run.claim(
        "S-26",
        r"\text{the value of a unit is } \phi \text{ of a linear combination of the layer before}",
        promised=hidden,
        relation="==",
        measured=found.steps[1].output,
        tolerance=1e-13,
        control=Control("without the nonlinearity", found.steps[0].output),
    )


# ------------------------------------------------------------------------------- graphs


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
    return GraphNetwork(graph, random=run.generator)


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
    run.claim(
        ["S-51", "A-22"],
        r"\delta_j=\sum_{\text{paths } j\to\text{output}}\ \prod w\,\phi'",
        promised=torch.cat(paths),
        relation="==",
        measured=torch.cat(ours),
        tolerance=1e-12,
        reason=f"{graphs} random acyclic graphs of {units} tanh units",
        control=Control("the paths through the first successor only", torch.cat(partial_)),
    )
    run.claim(
        "S-51",
        r"\delta_j=\phi'(a_j)\sum_{k\in\mathrm{succ}(j)}w_{jk}\delta_k",
        promised=torch.cat(formula),
        relation="==",
        measured=torch.cat(ours),
        tolerance=1e-12,
    )
    run.claim(
        ["S-51", "S-26"],
        r"\delta_j=\partial E/\partial a_j \text{ by autograd and by difference quotients}",
        promised=torch.cat([*autograd, *numerical]),
        relation="==",
        measured=torch.cat([*ours, *ours]),
        tolerance=1e-8,
    )
    run.claim(
        ["S-51", "A-22"],
        r"\partial E/\partial w_{ij}=h_i\,\delta_j",
        promised=torch.cat(their_gradients),
        relation="==",
        measured=torch.cat(gradients),
        tolerance=1e-12,
        control=Control("errors that start from another target", torch.cat(elsewhere)),
    )
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


# ------------------------------------------------------------------------------- cost


def modes(run: Run) -> None:
    """Reverse, forward and numerical differentiation, and where they part."""
    net = mlp([3, 5, 4, 1], "relu", random=run.generator)
    theta = {name: p.detach() for name, p in net.named_parameters()}
    x, y = run.randn(6, 3), run.randn(6, 1)

    def value(vector: Tensor, at: Tensor = x) -> Tensor:
        return half_square(torch.func.functional_call(net, unflatten(vector, theta), (at,)), y)

    point = flatten(theta)
    reverse = flatten(backpropagate(net, x, y, half_square).gradients)
    forward = torch.stack(
        [torch.func.jvp(value, (point,), (e,))[1] for e in torch.eye(len(point)).double()]
    )
    run.claim(
        "A-22",
        r"\nabla E \text{ by reverse accumulation}=\bigl(\partial E/\partial\theta_i\bigr)_i"
        r"\text{ by forward accumulation, one direction at a time}",
        promised=forward,
        relation="==",
        measured=reverse,
        tolerance=1e-12,
    )
    kinked = mlp([3, 5, 4, 1], "relu", random=run.generator)
    for layer in (kinked[0], kinked[2]):
        assert isinstance(layer, nn.Linear)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)

    def kinked_value(vector: Tensor) -> Tensor:
        moved = unflatten(vector, theta)
        return half_square(torch.func.functional_call(kinked, moved, (x,)), y)

    at_kink = flatten({name: p.detach() for name, p in kinked.named_parameters()})
    scale = float(reverse.abs().max())
    run.claim(
        ["A-22", "N-41"],
        r"\text{away from kinks the difference to central quotients, relative to } "
        r"\|\nabla E\|_\infty",
        promised=1e-6,
        relation="<=",
        measured=(reverse - numerical_jacobian(value, point)).abs().max() / scale,
        control=Control(
            "every hidden unit exactly at the kink of its ReLU",
            (
                flatten(backpropagate(kinked, x, y, half_square).gradients)
                - numerical_jacobian(kinked_value, at_kink)
            )
            .abs()
            .max()
            / scale,
        ),
    )


def cost(run: Run, width: int) -> list[tuple[int, float, float, float]]:
    """Operations of one gradient in forward passes, for networks of growing size."""
    ratios, back, forward_ratios, depths, rows = [], [], [], [], []
    n = 8
    for layers in range(2, 9):
        net = mlp([width] * layers + [1], "tanh", random=run.generator)
        x, y = run.randn(n, width), run.randn(n, 1)
        theta = {name: p.detach() for name, p in net.named_parameters()}
        point = flatten(theta)

        def value(
            vector: Tensor, model: nn.Module = net, like: Parameters = theta, at: Tensor = x,
            aim: Tensor = y,
        ) -> Tensor:  # fmt: skip
            outputs = torch.func.functional_call(model, unflatten(vector, like), (at,))
            return half_square(outputs, aim)

        there = count_flops(partial(value, point))
        whole = count_flops(partial(backpropagate, net, x, y, half_square))
        autograd = count_flops(partial(autograd_gradients, net, x, y, half_square))
        one = count_flops(partial(torch.func.jvp, value, (point,), (torch.ones_like(point),)))
        ratios += [whole / there, autograd / there]
        back.append((whole - there) / there)
        forward_ratios.append(len(point) * one / there)
        depths.append(float(whole))
        rows.append((len(point), whole / there, len(point) * one / there, 2.0 * len(point)))
    run.claim(
        ["A-22", "N-41"],
        r"\text{operations of loss and gradient}\le3\times\text{those of the loss}",
        promised=3,
        relation="<=",
        measured=ratios,
        reason="matrix products, counted; ours and autograd's, 2 to 8 layers",
        control=Control(
            "forward accumulation, one direction a parameter", forward_ratios, promised=3
        ),
    )
    run.claim(
        "S-26",
        r"\text{the way back costs exactly two ways there, errors down to the input included}",
        promised=2,
        relation="==",
        measured=back,
        control=Control("forward accumulation", [r - 1 for r in forward_ratios]),
    )
    totals = torch.tensor(depths)
    paths = torch.tensor([float(width) ** (layers - 1) for layers in range(2, 9)])
    run.claim(
        ["N-41", "S-51"],
        r"\text{cost is linear in depth: its second differences are } 0",
        promised=0,
        relation="==",
        measured=totals.diff().diff(),
        control=Control("the number of paths to the output instead", paths.diff().diff()),
    )
    run.table(
        "cost",
        ["parameters", "reverse", "forward, all directions", "central differences"],
        rows,
        caption="Operations of one gradient in units of one forward pass",
    )
    return rows


# ------------------------------------------------------------------------------- figures


def deep_network(run: Run, depth: int, width: int) -> tuple[Backpropagation, list[Tensor]]:
    """Errors in a deep network, and their sizes at two scales of the weights."""
    sizes = []
    shown: Backpropagation | None = None
    for scale in (1.0, 0.5):
        net = mlp([width] * (depth + 1), "tanh", random=run.generator)
        for layer in net:
            if isinstance(layer, nn.Linear):
                layer.weight.data = scale * run.randn(width, width) / math.sqrt(width)
                nn.init.zeros_(layer.bias)
        found = backpropagate(net, run.randn(1, width), run.randn(1, width), half_square)
        errors = [s.delta for s in found.steps if isinstance(s.module, nn.Linear)]
        sizes.append(torch.tensor([float(e.norm()) for e in errors]))
        shown = shown or found
    assert shown is not None
    return shown, sizes


def plot_errors(axes: Any, deep: tuple[Backpropagation, list[Tensor]]) -> None:
    found, sizes = deep
    left, right = axes[0]
    errors = torch.stack([s.delta[0] for s in found.steps if isinstance(s.module, nn.Linear)])
    top = float(errors.abs().max())
    image = left.imshow(
        errors.T, aspect="auto", cmap="RdBu_r", vmin=-top, vmax=top, interpolation="nearest",
        extent=(0.5, len(errors) + 0.5, errors.shape[1] + 0.5, 0.5),
    )  # fmt: skip
    left.grid(False)
    left.set(xlabel="layer", ylabel="unit", title=r"errors $\partial E/\partial z$, unit by unit")
    left.figure.colorbar(image, ax=left)
    layers = range(1, len(errors) + 1)
    for size, label, colour in zip(sizes, ("1/width", "1/(4 width)"), COLOURS, strict=False):
        right.semilogy(layers, size, "o-", ms=3, color=colour, label=f"weights of variance {label}")
    right.set(xlabel="layer", ylabel=r"$\|\partial E/\partial z^\ell\|$", title="size of the error")
    right.legend()


def plot_two_two_one(axis: Any) -> None:
    """The source's Figure 2.8: the graph with values and, in red, gradients."""
    hand = by_hand()
    red, paper = "#C1121F", {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
    places = {"x1": (0, 1), "x2": (0, 0), "h1": (1.6, 1), "h2": (1.6, 0), "ŷ": (3.1, 0.5)}
    edges = {
        "w11": ("x1", "h1", 0.5), "w21": ("x2", "h1", 0.3), "w12": ("x1", "h2", 0.3),
        "w22": ("x2", "h2", 0.5), "w31": ("h1", "ŷ", 0.5), "w32": ("h2", "ŷ", 0.5),
    }  # fmt: skip
    for name, (start, end, along) in edges.items():
        (x0, y0), (x1, y1) = places[start], places[end]
        axis.plot([x0, x1], [y0, y1], color="0.6", linewidth=1, zorder=1)
        at = (x0 + along * (x1 - x0), y0 + along * (y1 - y0))
        digit = f"{name[0]}_{{{name[1:]}}}"
        axis.annotate(
            rf"${digit}={WEIGHTS[name]:g}$", at, xytext=(0, 5), textcoords="offset points",
            ha="center", fontsize=8, bbox=paper,
        )  # fmt: skip
        axis.annotate(
            f"{hand[name]:+.4f}", at, xytext=(0, -11), textcoords="offset points", ha="center",
            fontsize=8, color=red, bbox=paper,
        )  # fmt: skip
    values = {"x1": POINT[0], "x2": POINT[1], "h1": hand["h1"], "h2": hand["h2"], "ŷ": hand["ŷ"]}
    for name, (x, y) in places.items():
        axis.scatter([x], [y], s=1500, color="white", edgecolors="black", zorder=2)
        axis.text(x, y, f"{name}\n{values[name]:.3f}", ha="center", va="center", fontsize=8)
        key = f"∂L/∂{name}"
        if key in hand:
            axis.annotate(
                f"{key} = {hand[key]:+.4f}", (x, y), xytext=(0, 26 if y == 1 else -32),
                textcoords="offset points",
                ha="center", fontsize=8, color=red,
            )  # fmt: skip
    axis.annotate(
        "", (4.15, 0.5), (3.32, 0.5), arrowprops={"arrowstyle": "->", "color": "0.6"}, zorder=1
    )
    axis.text(4.2, 0.5, f"L = {hand['L']:.4f}\n(y = {TARGET:g})", va="center", fontsize=8)
    axis.set(xlim=(-0.4, 4.9), ylim=(-0.45, 1.35))
    axis.axis("off")


def plot_cost(axis: Any, rows: list[tuple[int, float, float, float]]) -> None:
    count = [row[0] for row in rows]
    labels = ("reverse (backpropagation)", "forward, all directions", "central differences")
    for i, (label, mark) in enumerate(zip(labels, ("o-", "s-", "x--"), strict=True), start=1):
        axis.loglog(count, [row[i] for row in rows], mark, ms=4, label=label)
    axis.axhline(1, color="0.4", linewidth=1)
    axis.text(count[0], 1.1, "one forward pass", fontsize=8, color="0.3")
    axis.set(xlabel="parameters", ylabel="cost of a gradient (forward passes)")
    axis.set_xticks(count[::2], [str(c) for c in count[::2]])
    axis.minorticks_off()
    axis.legend(loc="center right")
