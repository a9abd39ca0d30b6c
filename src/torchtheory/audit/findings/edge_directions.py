"""Finding: a graph whose edges were listed in one direction only."""

from __future__ import annotations

import torch
from torch import nn

from torchtheory.audit.causes.trial import costs, instead
from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.certificates import alarm_level
from torchtheory.audit.findings.graphs import holds_a_graph
from torchtheory.audit.findings.hypotheses import deterministic, one_label_per_sample
from torchtheory.core.intervals import mean_interval
from torchtheory.core.usual import at_most
from torchtheory.graphs.graph import Graph
from torchtheory.graphs.graph_reading import as_graph
from torchtheory.graphs.message_passing import OnGraph
from torchtheory.graphs.node_samples import OnNodes
from torchtheory.models.problem import Problem

#: Fewest edges that say anything, and share of them that have their reverse where directions were
#: lost.
FEWEST, REVERSED = 20, 0.05


def reversed_share(graph: Graph) -> float:
    """Share of the edges, loops apart, whose reverse is there as well."""
    apart = graph.edges[0] != graph.edges[1]
    edges = graph.edges[:, apart]
    if edges.shape[1] == 0:
        return 1.0
    there = edges[0] * graph.nodes + edges[1]
    back = edges[1] * graph.nodes + edges[0]
    return float(torch.isin(there, back).double().mean())


def with_both_directions(graph: Graph) -> Graph:
    """The undirected graph with the same edges; their weights are those of either direction."""
    dense = graph.adjacency()
    return as_graph(torch.maximum(dense, dense.T))


@finding(
    "edge-directions",
    area="data",
    title="Are edges listed in both directions?",
    cost="forward",
    needs=[holds_a_graph, one_label_per_sample, deterministic],
    whole=True,
)
def edge_directions(problem: Problem, record: FindingRecord) -> None:
    """The network on its graph with every edge in both directions: better, or not?"""
    model = problem.model
    assert isinstance(model, OnNodes | OnGraph)
    graph = model.graph
    share = reversed_share(graph)
    record.quantity("reversed-edges", "share of the edges whose reverse is listed too", share)
    if not graph.directed or share > REVERSED or graph.edges.shape[1] < FEWEST:
        return
    if graph.edge_features is not None or bool((graph.edge_weights() < 0).any()):
        record.note("The edges have features or negative weights, so their reverse is not known.")
        return
    both = with_both_directions(graph)
    other: nn.Module = (
        OnNodes(model.network, both, model.x)
        if isinstance(model, OnNodes)
        else OnGraph(model.network, both)
    )
    there = Problem(
        other, (problem.train.x, problem.train.y), loss=problem.loss, task=problem.task
    )  # fmt: skip
    before, after = costs(problem, problem.train), costs(there, there.train)
    if problem.test is not None:
        before = torch.cat([before, costs(problem, problem.test)])
        after = torch.cat([after, costs(there, problem.test)])
    gain = mean_interval(before - after, 1 - alarm_level(record))
    number = record.quantity(
        "error-by-directions", "error that both directions of the edges take off", gain
    )
    if not gain.low > 0:
        record.note("No edge has its reverse, and the network is not better with both directions.")
        return
    words = instead(problem, float(after.mean()), float(before.mean()))
    record.defect(
        f"The edges of the graph are listed in one direction only: with both, the network {words}.",
        number=number, usual=at_most(0, "0 or less"),
        action="List every edge of an undirected graph in both directions, as to_undirected does.",
    )  # fmt: skip
