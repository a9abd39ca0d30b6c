"""Networks as sums over paths: every path listed."""

from __future__ import annotations

import math
from typing import Any

import networkx as nx
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.data.real import digits, split
from torchtheory.kernels.paths.deep_paths import path_features
from torchtheory.kernels.paths.graph import every_path
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.feedforward import mlp
from torchtheory.nets.graph import GraphNetwork
from torchtheory.training.loop.trainer import fit

Shape = tuple[int, ...]


def filled(run: Run, *layers: nn.Module) -> nn.Sequential:
    """A network whose numbers come from the run."""
    net = nn.Sequential(*layers).double().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(run.randn(*parameter.shape))
    return net


def chains(run: Run) -> dict[str, tuple[nn.Sequential, Shape]]:
    """Small networks, one for each kind of layer that paths go through."""
    return {
        "layered 3-4-4-2": (
            filled(run, nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False),
                   nn.ReLU(), nn.Linear(4, 2, bias=False)), (3,)),
        "layered 3-4-4-2, biases": (mlp([3, 4, 4, 2], generator=run.generator), (3,)),
        "convolution, max pool": (
            filled(run, nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                   nn.Linear(8, 2)), (1, 4, 4)),
        "overlapping max pool": (
            filled(run, nn.Conv1d(1, 2, 2), nn.ReLU(), nn.MaxPool1d(3, 1), nn.Conv1d(2, 2, 2),
                   nn.ReLU(), nn.Flatten(), nn.Linear(6, 2)), (1, 7)),
        "strided, padded, average pool": (
            filled(run, nn.Conv1d(2, 3, 3, stride=2, padding=1), nn.ReLU(), nn.AvgPool1d(2),
                   nn.Flatten(), nn.Linear(6, 2, bias=False)), (2, 8)),
    }  # fmt: skip


def skipping(run: Run) -> GraphNetwork:
    """Two hidden layers, an edge from the inputs to the outputs and one past the second."""
    graph = nx.DiGraph()
    graph.add_node("x", width=3)
    graph.add_node("g", width=4, activation="relu")
    graph.add_node("h", width=4, activation="relu")
    graph.add_node("y", width=2)
    graph.add_edges_from([("x", "g"), ("g", "h"), ("h", "y"), ("x", "y"), ("g", "y")])
    return GraphNetwork(graph, generator=run.generator)


@lab(
    "deep-path-representation",
    room="generalization",
    covers=["B-13"],
    title="An output is a sum over paths: products of weights, of 0-1 activations, and an input",
    full={"points": 50, "width": 12, "epochs": 60},
    least={"points": 2, "width": 3, "epochs": 1, "learning_rate": 0.0001},
    most={"learning_rate": 0.1},
)
def deep_path_representation(
    run: Run, points: int = 5, width: int = 8, epochs: int = 12, learning_rate: float = 0.01
) -> None:
    """Every path of small networks is listed by a search of the graph of their units.

    Layered networks, convolutions with shared weights, pools and a graph with skip connections:
    the contributions of the paths add up to what the forward pass gives, and layer by layer the
    same features and weights are found without a search. Overlapping windows of a max pool need
    a mask for every connection; one for every unit is not enough, and the control shows it. The
    table names the paths that made one output. Look at the figure for a trained network: part of
    the paths is open for an input, and a smaller part makes most of its output.

    Args:
        points: inputs at which the sum over paths is compared with the output.
        width: of the hidden layers.
        epochs: of the training along which paths are watched.
        learning_rate: of that training.
    """
    sums_over_paths(run, points)
    number_and_activity(run, points)
    windows_that_overlap(run, points)
    trained_paths(run, width, epochs, learning_rate)


def sums_over_paths(run: Run, points: int) -> None:
    sums, forward, frozen, listed, layerwise, rows = [], [], [], [], [], []
    for name, (net, shape) in chains(run).items():
        x = run.randn(points, *shape)
        outputs = net(x).detach()
        found = path_features(net, x)
        for k in range(outputs.shape[1]):
            table = every_path(net, x, output=k)
            sums.append(table.outputs)
            forward.append(outputs[:, k])
            # the masks of one input with the numbers of another
            frozen.append((table.inputs * table.activity.roll(1, 0)) @ table.weights)
            listed.append(table.contributions.sort(1).values.flatten())
            layerwise.append((found.features * found.weights[k]).sort(1).values.flatten())
        rows.append((name, len(table.weights), float(table.activity.mean()),
                     float((table.outputs - outputs[:, -1]).abs().max())))  # fmt: skip
    net_with_skips = skipping(run)
    x = run.randn(points, 3)
    for k in range(2):
        table = every_path(net_with_skips, x, output=k)
        sums.append(table.outputs)
        forward.append(net_with_skips(x).detach()[:, k])
        frozen.append((table.inputs * table.activity.roll(1, 0)) @ table.weights)
    rows.append(("graph with skip connections", len(table.weights), float(table.activity.mean()),
                 float((table.outputs - forward[-1]).abs().max())))  # fmt: skip
    says = run.states("B-13", r"z_k^{[L]}(x)=\sum_j\bar w_{k,j}\,\bar\sigma_j(x)\,\bar x_j")
    says.equal(
        torch.cat(sums),
        torch.cat(forward),
        1e-12,
        where=f"{len(rows)} networks, {points} inputs each; the graph of units is searched",
    )
    says.fails("the activations of another input", torch.cat(frozen))
    run.states(
        "B-13",
        r"\text{contributions } \bar w_{k,j}\bar\sigma_j\bar x_j \text{ in order: unit by unit as by the search}",
    ).equal(
        torch.cat(layerwise), torch.cat(listed), 1e-12, where="the chains; path_features builds them layer by layer"
    )
    run.table(
        "paths",
        ("network", "paths to an output", "share open for an input", "difference from the forward"),
        rows,
        caption="Networks whose paths were listed. Biases are paths from a unit of value 1.",
    )
    run.table(
        "strongest-paths",
        ("path", "weight", "active", "contribution"),
        table.strongest(0, 8),
        caption=f"Which paths made the output {float(table.outputs[0]):.4f} of the graph with skip "
        "connections: the eight with the largest contributions.",
    )


def number_and_activity(run: Run, points: int) -> None:
    depths = [[3, 4, 4, 2], [2, 5, 1], [4, 2, 3, 2, 1]]
    products = [float(torch.tensor(w[:-1]).prod()) for w in depths]
    nets = [mlp(w, bias=False, generator=run.generator) for w in depths]
    biased = [mlp(w, generator=run.generator) for w in depths]
    says = run.states("B-13", r"d_z=n_0n_1\cdots n_{L-1}")
    says.equal([len(every_path(n, run.randn(1, w[0])).weights) for n, w in zip(nets, depths, strict=True)], products)
    says.fails(
        "biases, which are paths too",
        [len(every_path(n, run.randn(1, w[0])).weights) for n, w in zip(biased, depths, strict=True)],
    )
    x = run.randn(points, 3)
    leaky = nn.Sequential(*(nn.LeakyReLU(0.1) if isinstance(m, nn.ReLU) else m for m in nets[0]))
    strict, loose = (every_path(n, x).activity for n in (nets[0], leaky))
    says = run.states("B-13", r"\bar\sigma_j(x)\in\{0,1\}:\ \bar\sigma_j(1-\bar\sigma_j)")
    says.equal(strict * (1 - strict), torch.zeros_like(strict))
    says.fails("leaky ReLU, with slopes 0.1 and 1", loose * (1 - loose))


def windows_that_overlap(run: Run, points: int) -> None:
    """One mask per unit is enough for windows that are apart, and not for overlapping ones."""

    def with_unit_masks(stride: int) -> tuple[Tensor, Tensor]:
        first, second = run.randn(6, 4), run.randn(6 // stride if stride == 2 else 5)
        z = run.randn(points, 4) @ first.mT
        pooled, places = F.max_pool1d(z[:, None], 2, stride, return_indices=True)
        taken = torch.zeros_like(z).scatter(1, places[:, 0], 1.0)  # by any of the windows
        sums = F.avg_pool1d((taken * z)[:, None], 2, stride)[:, 0] * 2
        return pooled[:, 0] @ second, sums @ second

    apart, overlapping = with_unit_masks(2), with_unit_masks(1)
    says = run.states("B-13", r"\text{max pooling by a mask of each unit, windows that do not overlap}")
    says.equal(apart[1], apart[0], 1e-12, where="overlapping windows need a mask of each connection, as every_path has")
    says.fails("windows that overlap", overlapping[1], promised=overlapping[0])


def trained_paths(run: Run, width: int, epochs: int, learning_rate: float) -> None:
    train, test = split(*digits(torch.float64), 0.3, run.generator)
    net = mlp([64, width, width, 10], bias=False, generator=run.generator)
    fit(net, train, epochs=epochs, learning_rate=learning_rate, seed=run.seed)
    x, y = test[0][:200], test[1][:200]
    found = path_features(net, x)
    predicted = found.outputs.argmax(1)
    contributions = found.features * found.weights[predicted]
    order = contributions.abs().sort(1, descending=True).values
    shares = (order.cumsum(1) / order.sum(1, keepdim=True)).mean(0)
    closed = float((found.features == 0).double().mean())
    run.note(
        f"On {len(x)} test digits the trained network is right in "
        f"{float((predicted == y).double().mean()):.1%}; {closed:.1%} of its "
        f"{found.features.shape[1]} paths carry nothing for an input (a unit on them is off, or "
        f"the pixel is 0), and {int((shares < 0.9).sum()) + 1} paths make 90 % of the sum of "
        "absolute contributions."
    )
    run.figure(
        "contributions",
        lambda axes: plot_contributions(axes, contributions[0], shares),
        caption="Left, what the paths of a network trained on handwritten digits contribute to the "
        "largest output for one digit, from the most negative to the most positive. Right, the "
        "share of the sum of absolute contributions that the strongest paths make, on average.",
        grid=(1, 2),
        size=(9, 3.4),
    )


def plot_contributions(axes: Any, one: Tensor, shares: Tensor) -> None:
    left, right = axes.flat
    open_paths = one[one != 0].sort().values
    places = torch.unique(torch.linspace(0, len(open_paths) - 1, 200).long())[: len(open_paths)]
    for sign, color in ((1, COLORS[0]), (-1, COLORS[1])):
        left.fill_between(places, (open_paths[places] * sign).clamp(min=0) * sign,
                          color=color, linewidth=0)  # fmt: skip
    left.set(xlabel="open paths, in order", ylabel="contribution",
             title=f"{len(open_paths)} of {len(one)} paths are open")  # fmt: skip
    counts = torch.unique(torch.logspace(0, math.log10(len(shares)), 100).round().long())
    right.plot(counts, shares[counts - 1], color=COLORS[0])
    right.axhline(0.9, color="0.4", linestyle="--", linewidth=1)
    right.set(xlabel="strongest paths", ylabel="share of |contributions|", xscale="log",
              title="the strongest paths", ylim=(0, 1.05))  # fmt: skip
    right.minorticks_off()
