"""Classes of nodes and of graphs: what edges add to features, and what sums see that means do not."""

from __future__ import annotations

from typing import Any

import networkx as nx
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.checks import whole_number
from torchtheory.core.intervals import Interval, mean_interval
from torchtheory.labs.engine import Run, lab
from torchtheory.nets.feedforward import drawn_linear
from torchtheory.nets.geometric.convolutions import GCN
from torchtheory.nets.geometric.graphs import Graph, as_graph, graph_union
from torchtheory.nets.geometric.message_passing import Aggregation, MessagePassing, pooled_nodes
from torchtheory.nets.geometric.node_classification import NodeFit, fit_nodes
from torchtheory.nets.geometric.spectral import graph_fourier

RATE = 0.05


@lab(
    "graph-classification",
    room="nets",
    covers=["N-104"],
    title="A graph network classifies nodes from two that are known, and needs the edges for it",
    full={"trials": 40, "members": 100, "steps": 200},
)
def graph_classification(run: Run, trials: int = 5, members: int = 30, steps: int = 30) -> None:
    """The karate club, drawn communities, and regular against irregular graphs.

    With two members of the karate club known, a GCN finds nearly all the others' sides; the same
    network without edges, which is a feedforward network on the features, cannot. On drawn
    communities with noisy features it beats that network as well, unless edges are drawn without
    regard to the communities. Regular graphs are told from others by sums over neighbors, while means
    of equal features are equal whatever the graph.

    Args:
        trials: graphs that are drawn, and starts on the karate club.
        members: of each of the two communities.
        steps: of training.
    """
    whole_number(trials, "trials", least=4)
    whole_number(members, "members", least=10)
    whole_number(steps, "steps", least=10)
    club = karate(run, trials, steps)
    communities(run, trials, members, steps)
    whole_graphs(run, trials, steps)
    picture(run, club)


def karate(run: Run, trials: int, steps: int) -> NodeFit:
    drawn = nx.karate_club_graph()
    club = as_graph(nx.to_numpy_array(drawn, weight=None))
    sides = torch.tensor([int(drawn.nodes[i]["club"] != "Mr. Hi") for i in drawn])
    known = torch.tensor([0, 33])  # the instructor and the president
    features = torch.eye(club.nodes, dtype=torch.float64)
    alone = as_graph(torch.zeros(club.nodes, club.nodes))
    fits, without = [], []
    for _ in range(trials):
        net = GCN([club.nodes, 8, 2], generator=run.generator)
        fits.append(fit_nodes(net, features, club, sides, known, steps=steps, rate=RATE))
        without.append(fit_nodes(net, features, alone, sides, known, steps=steps, rate=RATE))
    says = run.states("N-104", r"\operatorname{softmax}(\bar A(\bar AXW_0)_+W_1):\ 28\text{ of }32\text{ sides from 2}")
    says.at_least(accuracy(fits), 28 / 32, where=f"karate club, {trials} starts, features that tell nothing")
    says.fails("no edges", accuracy(without))
    return fits[0]


def accuracy(fits: list[NodeFit]) -> Interval:
    return mean_interval(torch.tensor([f.other_accuracy for f in fits]), 0.99)


def communities(run: Run, trials: int, members: int, steps: int) -> None:
    sides = torch.arange(2).repeat_interleave(members)

    def compared(inside: float, across: float) -> tuple[float, float]:
        """How many nodes the GCN has right, and how many the same network without edges."""
        fits, without = [], []
        for _ in range(trials):
            chances = [[inside, across], [across, inside]]
            drawn = nx.stochastic_block_model([members] * 2, chances, seed=drawn_seed(run))
            graph = as_graph(nx.to_numpy_array(drawn))
            alone = as_graph(torch.zeros(graph.nodes, graph.nodes))
            x = run.randn(2 * members, 4)
            x[:, 0] += 2.0 * sides - 1
            known = torch.cat([torch.randperm(members, generator=run.generator)[:4] + k * members for k in (0, 1)])
            net = GCN([4, 8, 2], generator=run.generator)
            fits.append(fit_nodes(net, x, graph, sides, known, steps=steps, rate=RATE))
            without.append(fit_nodes(net, x, alone, sides, known, steps=steps, rate=RATE))
        return accuracy(fits).estimate, accuracy(without).estimate

    says = run.states("N-104", r"\text{GCN: a tenth more right than the same network on features alone}")
    dense = 8 / members
    found, alone = compared(dense, dense / 8)
    says.at_least(found, alone + 0.1, where=f"on average over {trials} graphs of two communities, 4 known in each")
    found, alone = compared(9 / 16 * dense, 9 / 16 * dense)
    says.fails("edges that do not know of the communities", found, promised=alone + 0.1)


def drawn_seed(run: Run) -> int:
    return int(torch.randint(2**31, (1,), generator=run.generator))


class Reader(nn.Module):
    """Two rounds of messages, nodes averaged, a class per graph."""

    def __init__(self, how: Aggregation, run: Run, width: int = 8) -> None:
        super().__init__()
        self.rounds = nn.ModuleList(MessagePassing(update=torch.add, aggregate=how) for _ in range(2))
        self.mixing = nn.ModuleList(
            drawn_linear(a, b, generator=run.generator) for a, b in ((1, width), (width, width))
        )
        self.last = drawn_linear(width, 2, generator=run.generator)

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        for messages, mix in zip(self.rounds, self.mixing, strict=True):
            x = mix(messages(x, graph) / 4).tanh()  # there are four neighbors on average
        made: Tensor = self.last(pooled_nodes(x, graph, "mean"))
        return made


def whole_graphs(run: Run, trials: int, steps: int) -> None:
    size = 20

    def sample() -> tuple[Graph, Tensor]:
        kinds = torch.arange(2).repeat(4 * trials)
        seeds = [drawn_seed(run) for _ in kinds]
        drawn = [
            nx.gnm_random_graph(size, 2 * size, seed=s) if k else nx.random_regular_graph(4, size, seed=s)
            for k, s in zip(kinds.tolist(), seeds, strict=True)
        ]
        return graph_union(drawn), kinds

    learning, other = sample(), sample()

    def right(how: Aggregation) -> float:
        net = Reader(how, run)
        ones = torch.ones(learning[0].nodes, 1, dtype=torch.float64)
        optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
        for _ in range(5 * steps):  # one network for all graphs, so this takes little
            optimizer.zero_grad()
            F.cross_entropy(net(ones, learning[0]), learning[1]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            predicted = net(ones, other[0]).argmax(1)
        return float((predicted == other[1]).double().mean())

    says = run.states("N-104", r"\text{regular and irregular graphs, as many edges, equal features: told apart}")
    says.at_least(right("sum"), 0.9, where=f"sums over neighbors, {8 * trials} graphs that were not learned from")
    says.fails("means over neighbors, equal wherever there are any", right("mean"))


def picture(run: Run, fit: NodeFit) -> None:
    drawn = nx.karate_club_graph()
    waves = graph_fourier(nx.to_numpy_array(drawn, weight=None), normalized=True)
    place = nx.kamada_kawai_layout(drawn, weight=None)
    wrong = [i for i in drawn if int(drawn.nodes[i]["club"] != "Mr. Hi") != int(fit.predicted[i])]

    def plot(axes: Any) -> None:
        style = {"cmap": "coolwarm", "edgecolors": "0.3"}
        for ax, values, title in (
            (axes[0, 0], fit.predicted, "predicted from two members (squares)"),
            (axes[0, 1], waves.basis[:, 1], "the slowest wave of the graph"),
        ):
            colors = [float(v) for v in values]
            nx.draw_networkx_edges(drawn, place, ax=ax, edge_color="0.8", width=0.7)
            nx.draw_networkx_nodes(drawn, place, ax=ax, node_color=colors, node_size=60, **style)
            ax.set_title(title)
        nx.draw_networkx_nodes(
            drawn, place, [0, 33], ax=axes[0, 0], node_color=[0.0, 1.0], node_shape="s", node_size=130, **style
        )
        nx.draw_networkx_labels(drawn, place, dict.fromkeys(wrong, "x"), ax=axes[0, 0])

    caption = "The karate club: sides from two known members (x marks errors), and what the spectrum sees."
    run.figure("karate", plot, grid=(1, 2), caption=caption)
