"""Classes of nodes and of graphs: what edges add to features, and what sums see that means do not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import networkx as nx
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.intervals import clopper_pearson, mean_interval
from torchtheory.graphs.convolutions import GCN
from torchtheory.graphs.graph import Graph
from torchtheory.graphs.graph_reading import as_graph, graph_union
from torchtheory.graphs.message_passing import Aggregation, MessagePassing, pooled_nodes
from torchtheory.graphs.node_classification import NodeFit, fit_nodes
from torchtheory.graphs.spectral import graph_fourier
from torchtheory.labs.engine import Run, lab
from torchtheory.nets.feedforward import drawn_linear

RATE, DECAY = 0.05, 5e-4

#: Half the distance of the communities' means in the one feature that tells of them, in standard
#: deviations: without edges the best rule is right on so many nodes as the normal law has below it.
SIGNAL = 1.0
BEST_ALONE = 0.5 * math.erfc(-SIGNAL / math.sqrt(2))


@lab(
    "graph-classification",
    room="graphs",
    covers=["N-104"],
    title="A graph network classifies nodes from two that are known, and needs the edges for it",
    full={"trials": 200, "members": 100, "graphs": 200, "steps": 200},
    least={"trials": 10, "members": 10, "graphs": 10, "steps": 10},
)
def graph_classification(run: Run, trials: int = 40, members: int = 30, graphs: int = 40, steps: int = 30) -> None:
    """The karate club, drawn communities, and regular against irregular graphs.

    With two members of the karate club known, a GCN finds nearly all the others' sides; the same
    network without edges, which is a feedforward network on the features, cannot. On drawn
    communities with noisy features it is right on more nodes than any rule on the features alone, and
    than that network, unless edges are drawn without regard to the communities. Regular graphs are
    told from others by sums over neighbors, while means of equal features are equal whatever the graph.

    Args:
        trials: starts on the karate club; features, known members and starts on drawn communities.
        members: of each of the two communities.
        graphs: that are learned from, and as many to be told apart afterwards.
        steps: of training.
    """
    club = karate(run, trials, steps)
    communities(run, trials, members, steps)
    whole_graphs(run, graphs, steps)
    picture(run, club)


def trained_together(
    nets: Sequence[GCN], x: Tensor, graph: Graph, sides: Tensor, known: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    """`fit_nodes` for many starts at once, on features `[T, M, d]` with nodes `known[T, k]`.

    Returns the losses of all steps `[steps, T]`, and the share of the other nodes that is right `[T]`.
    Adam moves each weight by its own gradients, so that this is what training one by one would give.
    """
    weights, _ = torch.func.stack_module_state(list(nets))
    weights = {k: v.detach().requires_grad_() for k, v in weights.items()}
    skeleton = nets[0]

    def outputs() -> Tensor:
        called = torch.func.vmap(lambda w, given: torch.func.functional_call(skeleton, w, (given, graph)))
        made: Tensor = called(weights, x)
        return made

    optimizer = torch.optim.Adam(weights.values(), lr=RATE, weight_decay=DECAY)
    rows = torch.arange(len(x))[:, None]
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        shown = outputs()[rows, known]
        loss = F.cross_entropy(shown.mT, sides[known], reduction="none").mean(1)
        loss.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    with torch.no_grad():
        right = (outputs().argmax(-1) == sides).double()
    right[rows, known] = 0.0
    return torch.stack(losses), right.sum(1) / (graph.nodes - known.shape[1])


def karate(run: Run, trials: int, steps: int) -> NodeFit:
    drawn = nx.karate_club_graph()
    club = as_graph(nx.to_numpy_array(drawn, weight=None))
    sides = torch.tensor([int(drawn.nodes[i]["club"] != "Mr. Hi") for i in drawn])
    known = torch.tensor([0, 33])  # the instructor and the president
    features = torch.eye(club.nodes, dtype=torch.float64)
    alone = as_graph(torch.zeros(club.nodes, club.nodes))
    nets = [GCN([club.nodes, 8, 2], generator=run.generator) for _ in range(trials)]
    given = features.expand(trials, -1, -1), known.expand(trials, -1)
    losses, right = trained_together(nets, given[0], club, sides, given[1], steps)
    _, without = trained_together(nets, given[0], alone, sides, given[1], steps)
    fit = fit_nodes(nets[0], features, club, sides, known, steps=steps, rate=RATE, decay=DECAY)

    says = run.states("N-104", r"Y=\operatorname{softmax}(\bar A(\bar AXW_0)_+W_1)\text{: starts together as alone}")
    says.equal(losses[:, 0], fit.losses, 1e-9, where="losses of the first start, step by step")
    says = run.states("N-104", r"\text{GCN: more than 28 of 32 sides of the karate club from 2, on average}")
    where = f"lower 99% limit of the mean over {trials} starts, features that tell nothing"
    says.above(surely(right), 28 / 32, where=where)
    says.fails("no edges", surely(without))
    return fit


def surely(rights: Tensor) -> float:
    """What the mean of independent trials exceeds with 99% confidence."""
    return mean_interval(rights, 0.98).low


def communities(run: Run, trials: int, members: int, steps: int) -> None:
    sides = torch.arange(2).repeat_interleave(members)
    x = run.randn(trials, 2 * members, 4)
    x[..., 0] += SIGNAL * (2.0 * sides - 1)
    drawn = run.rand(trials, 2, members).argsort(-1)[..., :4]
    known = (drawn + members * torch.arange(2)[:, None]).flatten(1)
    nets = [GCN([4, 8, 2], generator=run.generator) for _ in range(trials)]

    def right(inside: float, across: float) -> Tensor:
        chances = [[inside, across], [across, inside]]
        graph = nx.stochastic_block_model([members] * 2, chances, seed=drawn_seed(run))
        return trained_together(nets, x, as_graph(nx.to_numpy_array(graph)), sides, known, steps)[1]

    dense = 8 / members
    found, blind = right(dense, dense / 8), right(9 / 16 * dense, 9 / 16 * dense)
    alone = right(0.0, 0.0)
    where = f"{trials} draws of features and 8 known nodes, on a graph with 8 neighbors inside and 1 across"
    says = run.states("N-104", r"\text{GCN: more right than any rule on features alone, }\Phi(1)")
    says.above(surely(found), BEST_ALONE, where=f"lower 99% limit of the mean over {where}")
    says.fails("edges that do not know of the communities", surely(blind))
    says = run.states("N-104", r"\text{GCN: more right than the same network without edges}")
    says.above(surely(found), mean_interval(alone, 0.98).high, where=f"against the upper limit, {where}")
    says.fails("edges that do not know of the communities", surely(blind))


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


def whole_graphs(run: Run, graphs: int, steps: int) -> None:
    size = 20

    def sample() -> tuple[Graph, Tensor]:
        kinds = torch.arange(graphs) % 2
        seeds = [drawn_seed(run) for _ in kinds]
        drawn = [
            nx.gnm_random_graph(size, 2 * size, seed=s) if k else nx.random_regular_graph(4, size, seed=s)
            for k, s in zip(kinds.tolist(), seeds, strict=True)
        ]
        return graph_union(drawn), kinds

    learning, other = sample(), sample()

    def limit(told: Tensor) -> float:
        return clopper_pearson(int(told.sum()), len(told), 0.998).low

    def right(how: Aggregation) -> Tensor:
        net = Reader(how, run)
        ones = torch.ones(learning[0].nodes, 1, dtype=torch.float64)
        optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
        for _ in range(5 * steps):  # one network for all graphs, so this takes little
            optimizer.zero_grad()
            F.cross_entropy(net(ones, learning[0]), learning[1]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            predicted = net(ones, other[0]).argmax(1)
        told: Tensor = predicted == other[1]
        return told

    says = run.states("N-104", r"\text{regular and irregular graphs, equal features: told apart better than by chance}")
    where = f"lower 99.9% limit over {graphs} graphs that were not learned from, sums over neighbors"
    says.above(limit(right("sum")), 0.5, where=where)
    says.fails("means over neighbors, equal wherever there are any", limit(right("mean")))


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
