"""Networks on a graph: whether nodes stay apart, how far they hear, whether their numbers matter.

These are about models that hold their graph: `OnNodes` and `OnGraph` of
`torchtheory.graphs`.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import mean_range, quotient
from torchtheory.audit.findings.hypotheses import deterministic, floating_inputs
from torchtheory.core.budget import time_left
from torchtheory.core.errors import TorchTheoryError
from torchtheory.core.figure import COLORS
from torchtheory.core.intervals import clopper_pearson
from torchtheory.core.usual import above, at_most
from torchtheory.graphs.bottlenecks import bottleneck
from torchtheory.graphs.convolutions import GCN
from torchtheory.graphs.graph import Graph
from torchtheory.graphs.graph_sensitivity import (
    SensitivityByDistance,
    sensitivity_bound,
    sensitivity_by_distance,
)
from torchtheory.graphs.message_passing import OnGraph
from torchtheory.graphs.node_samples import OnNodes
from torchtheory.graphs.over_smoothing import layer_energies
from torchtheory.graphs.relabeling import graph_equivariance
from torchtheory.models.problem import Problem
from torchtheory.report.numbers import size_words
from torchtheory.tracing.layer_results import call_results

#: Where other features make less difference to a node, of the features' size, they are as good as
#: none; and they must make so many times more in the input for the layers to be the cause.
ALIKE, FALLEN = 0.03, 10.0

#: Below this nothing is left that a later layer could make much of.
LOST = 1e-6

#: Times that the nodes' features are handed around.
HANDED = 3

#: An error that is a larger part of that of one answer for all is no better than it.
NO_BETTER = 0.8

#: Nodes that listen, at most, and nodes of a graph whose bottleneck is looked for.
LISTENERS, LARGEST = 16, 5000

#: What is left of a sensitivity where it counts as nothing, of that of a node to itself.
NOTHING = 1e-3

#: Fewer of the nodes that hear as far as answers depend on others are a defect.
MOST_NODES = 0.5

#: Orders of the nodes that are tried, and the nodes of a graph at most: two matrices are kept.
ORDERS, LARGEST_ORDERED = 4, 2000

WITHOUT = (
    "the model holds no graph: give OnNodes(network, graph, x) with nodes as samples, or "
    "OnGraph(network, graph) with features as samples"
)


@dataclass(frozen=True, slots=True)
class Held:
    """A network, its graph, and one set of features.

    Attributes:
        distance: over how many edges answers depend on other nodes, if that is known.
    """

    network: nn.Module
    graph: Graph
    x: Tensor
    distance: int | None


def holds_a_graph(problem: Problem) -> str | None:
    if isinstance(problem.model, OnNodes):
        return None
    if not isinstance(problem.model, OnGraph):
        return WITHOUT
    if problem.several_inputs or floating_inputs(problem):
        return "the samples of an OnGraph are features of all its nodes, and these are not"
    return None


def undirected(problem: Problem) -> str | None:
    model = problem.model
    if isinstance(model, OnNodes | OnGraph) and model.graph.directed:
        return "the graph is directed, and energies are of undirected ones"
    if isinstance(model, OnNodes | OnGraph) and bool((model.graph.edge_weights() < 0).any()):
        return "the graph has negative weights, and energies need none"
    return None


def _held(problem: Problem) -> Held:
    model = problem.model
    if isinstance(model, OnNodes):
        return Held(model.network, model.graph, model.x, model.distance)
    assert isinstance(model, OnGraph)
    return Held(model.network, model.graph, problem.train.x[0], None)


def _one_of_many(problem: Problem) -> str:
    return "" if isinstance(problem.model, OnNodes) else " (features of the first sample)"


# ---------------------------------------------------------------------------------- over-smoothing


@finding(
    "over-smoothing",
    area="signals",
    title="Do layers keep the nodes apart?",
    cost="forward",
    needs=[holds_a_graph, undirected, deterministic],
    whole=True,
)
def over_smoothing(problem: Problem, record: FindingRecord) -> None:
    """What the features of a node still say after each layer, and whether the answers still differ.

    The nodes' features are handed around at random. What that changes in a layer, without the part
    that all nodes share (in equal measure, or as the roots of their degrees, which is where
    repeated coupling leads), is what the layer knows of *this* node. Little of it alone is no
    defect, as later layers may make much of it; with answers that are no better than one for all
    nodes it is.
    """
    held = _held(problem)
    names, known = _known_of_nodes(held, record.generator)
    energies: dict[str, list[float]] = {}
    for name, energy in _energies(held):
        energies.setdefault(name, []).append(energy)
    record.table(
        "layers",
        ("layer", "about the node itself", "energy over squared norm"),
        [
            (n, float(k), energies[n].pop(0) if energies.get(n) else None)
            for n, k in zip(names, known.mean(0), strict=True)
        ],
        caption="The share of a layer's features that changes when nodes exchange their inputs, "
        f"and how much features differ along edges{_one_of_many(problem)}.",
    )
    means = known.mean(0).tolist()
    record.figure(
        "layers",
        lambda ax: _plot_layers(ax, names, means),
        caption="The share of each layer that is about the node itself.",
    )
    last = record.quantity(
        "known-of-nodes",
        "share of the last layer that is about the node itself",
        means[-1],
        low=float(known[:, -1].min()),
        high=float(known[:, -1].max()),
        basis=f"{HANDED} random orders of the features on this graph",
    )
    collapsed = last.high < ALIKE and means[0] > FALLEN * last.high
    answer = _little_learned(problem)
    if collapsed and last.high < LOST:
        answer = answer or "the answers go by the graph alone"
    if collapsed and answer:
        record.defect(
            f"The layers make the nodes alike: a share of {means[0]:.2g} of the input is about the "
            f"node itself and {size_words(last)} of the last layer, and {answer}.",
            number=last,
            usual=above(ALIKE),
            action="Use fewer layers of message passing, or add shortcuts from the input or from "
            "layer to layer.",
            figure="layers",
        )
    elif collapsed:
        record.look(
            f"A share of {size_words(last)} of the last layer is about the node itself, "
            f"{means[0]:.2g} of the input; the answers are better than one for all.",
            number=last,
            usual=above(ALIKE),
            action="If more layers do worse, add shortcuts from layer to layer.",
            figure="layers",
        )
    elif means[0] < ALIKE:
        record.headline("The nodes are alike from the beginning, so layers cannot make them so.")
    elif last.low > ALIKE:
        record.fine(
            f"Nodes stay apart: a share of {size_words(last)} of the last layer is about the node "
            "itself.",
            number=last,
            usual=above(ALIKE),
            figure="layers",
        )
    else:
        record.open(last, above(ALIKE), figure="layers")


def _known_of_nodes(held: Held, generator: torch.Generator) -> tuple[list[str], Tensor]:
    """Names of the layers, the input first, and what each knows of a node, `[HANDED, layers]`."""
    before = _features(held, held.x)
    shared = _Shared(held.graph)
    rows = []
    for _ in range(HANDED):
        order = torch.randperm(held.graph.nodes, generator=generator)
        after = _features(held, held.x[order.to(held.x.device)])
        row = []
        for (_name, old), (_same, new) in zip(before, after, strict=True):
            own = shared.without(new - old)
            size = (float(old.norm()) + float(new.norm())) / 2
            share = float(own.norm()) / (math.sqrt(2) * size) if size > 0 else 0.0
            row.append(min(1.0, share))
        rows.append(row)
    return [name for name, _ in before], torch.tensor(rows, dtype=torch.float64)


class _Shared:
    """What all nodes of a component share: a constant, and a multiple of the roots of degrees."""

    def __init__(self, graph: Graph) -> None:
        self.parts = graph.components().cpu()
        self.sizes = torch.bincount(self.parts).double()
        roots = (graph.degrees(torch.float64).cpu() + 1).sqrt()[:, None]
        tilted = roots - self._means(roots)
        lengths = self._sums(tilted.square()).sqrt()[self.parts]
        self.tilted = torch.where(lengths > 1e-9, tilted / lengths.clamp(min=1e-9), 0.0)

    def without(self, features: Tensor) -> Tensor:
        """The features' part that is orthogonal to both."""
        rest = features - self._means(features)
        return rest - self.tilted * self._sums(self.tilted * rest)[self.parts]

    def _sums(self, rows: Tensor) -> Tensor:
        return rows.new_zeros(len(self.sizes), rows.shape[1]).index_add(0, self.parts, rows)

    def _means(self, rows: Tensor) -> Tensor:
        return (self._sums(rows) / self.sizes[:, None])[self.parts]


def _features(held: Held, x: Tensor) -> list[tuple[str, Tensor]]:
    """What modules give out that has one row per node, call by call; the input first."""
    inside = call_results(held.network, x, lambda net, features: net(features, held.graph))
    found = [(name, out) for name, out, _ in inside if out.ndim == 2 and len(out) == len(x)]
    return [(name, out.detach().double().cpu()) for name, out in [("input", x), *found]]


def _energies(held: Held) -> list[tuple[str, float]]:
    try:
        found = layer_energies(held.network, held.x, held.graph)
    except TorchTheoryError:
        return []
    return list(zip(found.names, found.shares.tolist(), strict=True))


def _little_learned(problem: Problem) -> str:
    """That the answers are no better than one for all, if they are not; else nothing."""
    y = problem.train.y
    outputs = problem.outputs(problem.train)
    if problem.is_classification:
        constant = 1 - float(torch.bincount(y.long().flatten()).max()) / len(y)
        wrong = float(problem.errors(problem.train).double().mean())
        if wrong < NO_BETTER * constant or constant == 0:
            return ""
        return f"it errs on {wrong:.0%} of the training data, one class for all on {constant:.0%}"
    if problem.task != "regression":
        return ""
    left = float((outputs - y).double().square().mean())
    spread = float((y - y.mean(0)).double().square().mean())
    if left < NO_BETTER * spread or spread == 0:
        return ""
    return f"its squared error is {left / spread:.2g} of that of one number for all"


def _plot_layers(ax: Any, names: list[str], known: list[float]) -> None:
    places = range(len(names))
    ax.semilogy(places, [max(k, 1e-16) for k in known], "o-", ms=4, color=COLORS[0])
    ax.axhline(ALIKE, color=COLORS[1], ls="--", lw=1, label="as good as nothing below")
    if len(names) <= 12:
        ax.set_xticks(places, names, rotation=45, ha="right")
    else:
        ax.set(xlabel="modules, in the order of their calls")
    ax.set(ylabel="share about the node itself")
    ax.legend()


# ------------------------------------------------------------------------------------- bottlenecks

BOUND = r"\|\partial\xi_i/\partial x_j\|\le\prod_\ell\|W_\ell\|\cdot(\bar A^k)_{ij}"
ZERO = r"\mathrm{dist}(i,j)>k\Rightarrow\partial\xi_i/\partial x_j=0"


@finding(
    "graph-reach",
    area="signals",
    title="How far nodes hear of each other",
    cost="gradient",
    covers=["N-105", "N-107"],
    needs=[holds_a_graph, deterministic],
)
def graph_reach(problem: Problem, record: FindingRecord) -> None:
    """What is left of another node's features by its distance, and where the graph is narrow."""
    held = _held(problem)
    nodes = _affordable_listeners(held)
    if nodes == 0:
        record.not_done(("N-105", "N-107"), ZERO, "there was no time for the derivatives of a node")
        return
    try:
        curve = sensitivity_by_distance(
            held.network, held.x, held.graph, nodes=nodes, generator=record.generator
        )
    except TorchTheoryError as error:
        record.not_applicable(("N-105", "N-107"), ZERO, str(error))
        return
    _bounds(record, held, curve)
    record.table(
        "distances",
        ("distance", "mean sensitivity", "largest", "pairs"),
        [
            (int(r), float(m), float(t), int(p))
            for r, m, t, p in zip(
                curve.distances, curve.mean, curve.largest, curve.pairs, strict=True
            )
        ],
        caption=f"Norms of the derivative of a node's output by another node's features, {nodes} "
        f"nodes that listen{_one_of_many(problem)}.",
    )
    record.figure("distances", curve.plot, caption="Sensitivity by distance on the graph.")
    narrow = _narrow(record, held.graph)
    farthest = int(curve.distances[-1])
    record.quantity(
        "graph-reach",
        "edges over which a node hears of another one at all",
        float(curve.reach),
        # a node that was not asked may hear further, never less far
        low=float(curve.reach),
        high=float(curve.reach if nodes == held.graph.nodes else held.graph.nodes - 1),
        basis=f"{nodes} of {held.graph.nodes} nodes",
        unit="edges",
    )
    left = float(curve.mean[curve.reach] / curve.mean[0]) if curve.mean[0] > 0 else math.nan
    if held.distance is not None and held.distance <= farthest:
        _assess(record, held, held.distance, curve, narrow)
        return
    said = f"A node hears of others up to {curve.reach} edges away, of {farthest} that there are"
    if math.isfinite(left) and curve.reach:
        said += f"; at that distance {left:.2g} of what it hears of itself"
    record.headline(f"{said}. {narrow}".strip())


def _affordable_listeners(held: Held) -> int:
    """For how many nodes there is time: a backward pass for each of their outputs."""
    start = time.perf_counter()
    with torch.no_grad():
        out = held.network(held.x, held.graph)
    taken = time.perf_counter() - start
    each = 3 * taken * (out.shape[-1] if isinstance(out, Tensor) and out.ndim else 1)
    left = time_left()
    most = LISTENERS if left == math.inf else int(0.5 * left / max(each, 1e-9))
    return min(LISTENERS, held.graph.nodes, most)


def _bounds(record: FindingRecord, held: Held, curve: SensitivityByDistance) -> None:
    if not isinstance(held.network, GCN):
        record.not_applicable("N-107", BOUND, "it is for a GCN, whose coupling matrix is fixed")
        return
    layers = len(held.network.layers)
    beyond = curve.norms[curve.apart > layers]
    if len(beyond):
        says = record.states("N-105", ZERO)
        says.equal(float(beyond.max()), where=f"pairs further apart than its {layers} layers reach")
    else:
        record.not_applicable("N-105", ZERO, f"no two nodes are further apart than {layers} edges")
    try:
        limits = torch.stack(
            [sensitivity_bound(held.network, held.graph, i) for i in curve.nodes.tolist()]
        )
    except TorchTheoryError as error:
        record.not_applicable("N-107", BOUND, str(error))
        return
    record.states("N-107", BOUND).at_most(
        curve.norms, limits, within=1e-4, where="all pairs of a node that listens with another"
    )


def _narrow(record: FindingRecord, graph: Graph) -> str:
    """A sentence on the narrowest place, if there is one to speak of."""
    if graph.nodes > LARGEST or time_left() < 1:
        return ""
    try:
        found = bottleneck(graph)
    except TorchTheoryError as error:
        record.note(f"No bottleneck was looked for: {error}.")
        return ""
    record.quantity(
        "conductance",
        "conductance of the narrowest place that was found",
        found.conductance,
        low=found.gap / 2,
        high=found.conductance,
        basis="Cheeger's inequality for the narrowest place of all",
    )
    i, j = found.edge
    names = graph.names
    a, b = (i, j) if names is None else (names[i], names[j])
    count = found.crossing.shape[1]
    behind = f"with {int(found.side.sum())} of {graph.nodes} nodes behind it"
    if count == 1:
        return f"The narrowest place is the edge between {a} and {b}, {behind}."
    return (
        f"The narrowest place is a cut of {count} edges, {behind}; the most important one joins "
        f"{a} and {b}."
    )


def _assess(
    record: FindingRecord, held: Held, distance: int, curve: SensitivityByDistance, narrow: str
) -> None:
    """Where it is known how far answers depend on others."""
    there = curve.apart == distance
    asked = there.any(1)
    hear = clopper_pearson(
        int(((curve.norms > 0) & (curve.apart >= distance)).any(1)[asked].sum()),
        int(asked.sum()),
        record.confidence,
    )
    if len(curve.nodes) == held.graph.nodes:
        hear = replace(hear, low=hear.estimate, high=hear.estimate, test="all nodes")
    if hear.high < MOST_NODES:
        record.defect(
            f"Nodes hear of others up to {curve.reach} edges away ({len(curve.nodes)} of "
            f"{held.graph.nodes} nodes were asked), and answers depend on nodes {distance} away.",
            number=record.quantity(
                "nodes-that-hear", f"share of nodes that hear of others {distance} edges away", hear
            ),
            usual=above(MOST_NODES),
            action="Add layers of message passing, edges between nodes that are far apart, or a "
            "node that is joined to all.",
            figure="distances",
        )
        return
    means = (curve.norms * there).sum(1)[asked] / there.sum(1)[asked]
    own = curve.norms[curve.apart == 0]
    whole = len(curve.nodes) == held.graph.nodes
    ratio = quotient(
        *(
            mean_range(v, len(v), len(v) if whole else held.graph.nodes, record.confidence)
            for v in (means, own)
        )
    )
    heard = record.quantity(
        "heard-at-distance",
        f"what a node hears of others {distance} edges away over what it hears of itself",
        ratio.estimate,
        low=ratio.low,
        high=ratio.high,
        basis=f"{record.confidence:.4g} {ratio.test}, {len(curve.nodes)} of {held.graph.nodes} "
        "nodes",
    )
    if heard.value < NOTHING:
        record.look(
            f"Of nodes {distance} edges away, on which answers depend, a node hears "
            f"{size_words(heard)} of what it hears of itself. {narrow}".strip(),
            number=heard,
            usual=above(NOTHING),
            action="Widen the narrow place by edges across it, or join a node to all others.",
            figure="distances",
        )
        return
    record.fine(
        f"Nodes hear as far as answers depend on others, {distance} edges: {size_words(heard)} of "
        "what they hear of themselves is left there.",
        number=heard,
        usual=above(NOTHING),
        figure="distances",
    )


# ------------------------------------------------------------------------------------ node numbers

ORDER = r"f(PX, PAP^\top) = P\,f(X, A)"


@finding(
    "node-order",
    area="robustness",
    title="Do the numbers of the nodes matter?",
    cost="forward",
    covers=["N-101"],
    needs=[holds_a_graph, deterministic],
)
def node_order(problem: Problem, record: FindingRecord) -> None:
    """The network on the same graph with its nodes in another order."""
    held = _held(problem)
    if held.graph.nodes > LARGEST_ORDERED:
        record.not_done(
            "N-101", ORDER, f"it takes matrices of {held.graph.nodes} × {held.graph.nodes}"
        )
        return
    try:
        found = graph_equivariance(
            held.network, held.x, held.graph, orders=ORDERS, generator=record.generator,
            invariant=_one_answer(held),
        )  # fmt: skip
    except TorchTheoryError as error:
        record.not_applicable("N-101", ORDER, str(error))
        return
    number = record.quantity(
        "node-order-defect",
        f"largest relative change of outputs by {ORDERS} other numberings of the nodes",
        found.largest,
    )
    if found.exact:
        record.fine(
            f"The numbers of the nodes are nothing to the network: {ORDERS} other orders gave the "
            "same answers.",
            number=number,
            usual=at_most(found.rounding, "0, up to rounding"),
        )
        return
    record.look(
        f"Another numbering of the same nodes changes the outputs by up to {found.largest:.2g} of "
        "their size: what it has learned is about these nodes, not about graphs.",
        number=number,
        usual=at_most(found.rounding, "0, unless nodes are to have weights of their own"),
        action="For other graphs, leave out weights and features that go by the number of a node.",
    )


def _one_answer(held: Held) -> bool:
    """Whether the outputs are about the graph as a whole."""
    with torch.no_grad():
        out = held.network(held.x, held.graph)
    return not (isinstance(out, Tensor) and out.shape[:1] == (held.graph.nodes,))
