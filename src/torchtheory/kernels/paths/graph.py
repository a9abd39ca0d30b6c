r"""Every path of a small network, one by one: which paths made this output.

In a directed acyclic graph of ReLU and max-pooling units an output is the sum over the paths
$j$ from an input (or from a bias, a unit of value 1) to it,

$$
f_k(x)=\sum_j\bar w_{k,j}\,\bar\sigma_j(x)\,\bar x_j ,
$$

of the product of the weights on the path, the product of the slopes of its units (0 or 1 for ReLU;
1 for the input that a max-pooling window selects), and the input it starts from. Here the units
are made the nodes of a graph and the paths are listed by searching it, so that skip connections
need no rule of their own. Slopes and selections are read off derivatives. Networks too large for
a list are met by `torchtheory.kernels.paths.path_kernel`. Source: Mathematical Aspects of Deep
Learning, section 2.5.1, Eq. (2.1) and Table 2.1.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx
import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, InvalidType, UnsupportedModel
from torchtheory.kernels.paths.path_kernel import (
    CONVOLUTIONS,
    MAX_POOLS,
    PASSING,
    REARRANGING,
    SLOPED,
    checked_inputs,
    path_links,
)
from torchtheory.models.model import evaluation_mode
from torchtheory.nets.graph import GraphNetwork
from torchtheory.tracing.chain import Link, as_chain


@dataclass(frozen=True, slots=True)
class PathTable:
    r"""All paths to one output, for $n$ inputs and $P$ paths.

    Attributes:
        units: the units on each path by name, from the input (or `1`, a bias) to the output.
        inputs: $\bar x_j$, `[n, P]`.
        activity: $\bar\sigma_j$, `[n, P]`; 0 or 1 for ReLU and max pooling.
        weights: $\bar w_j$, `[P]`.
    """

    units: tuple[tuple[str, ...], ...]
    inputs: Tensor
    activity: Tensor
    weights: Tensor

    @property
    def features(self) -> Tensor:
        r"""$z_j(x_i)=\bar x_j\bar\sigma_j$, `[n, P]`."""
        return self.inputs * self.activity

    @property
    def contributions(self) -> Tensor:
        r"""$\bar w_j\bar\sigma_j\bar x_j$, `[n, P]`; a row sums to the output."""
        return self.features * self.weights

    @property
    def outputs(self) -> Tensor:
        """The output for every input, `[n]`."""
        return self.contributions.sum(1)

    def strongest(self, sample: int, count: int = 10) -> list[tuple[str, float, bool, float]]:
        """The paths that contribute most in size: path, weight, whether active, contribution."""
        if not -len(self.inputs) <= sample < len(self.inputs):
            raise InvalidInput(f"there are {len(self.inputs)} inputs, and no input {sample}")
        order = self.contributions[sample].abs().argsort(descending=True, stable=True)
        return [
            (
                " → ".join(self.units[j]),
                float(self.weights[j]),
                bool(self.activity[sample, j] != 0),
                float(self.contributions[sample, j]),
            )
            for j in order[:count].tolist()
        ]


def every_path(model: nn.Module, x: Tensor, *, output: int = 0, most: int = 20_000) -> PathTable:
    r"""List the paths to one output of a small network.

    Args:
        model: a `GraphNetwork` (any graph, skip connections
            included) whose vertices are dense layers and ReLU-like activations, or a chain that
            `deep_path_kernel` takes.
        x: inputs `[n, ...]`.
        output: which one.
        most: more paths than this are refused.

    Time and memory are the number of paths times that of samples. At ties (a net input of 0, equal
    maxima) the slope or selection is the one torch's derivative takes.

    >>> net = nn.Sequential(nn.Linear(2, 1, bias=False), nn.ReLU(), nn.Linear(1, 1))
    >>> _ = net[0].weight.data.copy_(torch.tensor([[2.0, -3.0]]))
    >>> _ = net[2].weight.data.fill_(5.0), net[2].bias.data.fill_(7.0)
    >>> table = every_path(net, torch.tensor([[4.0, 1.0]]))
    >>> table.strongest(0)[0], float(table.outputs)
    (('x[0] → 0[0] → 2[0]', 10.0, True, 40.0), 32.0)
    """
    if isinstance(output, bool) or not isinstance(output, int):
        raise InvalidType(f"output is the number of an output, not {output!r}")
    if not isinstance(model, GraphNetwork):
        path_links(model)  # refuses what has no paths, with the reason
    x = checked_inputs(model, x, "x")
    with evaluation_mode(model):
        units = _Units(x)
        ends = _of_graph(units, model, x) if isinstance(model, GraphNetwork) else _of_chain(
            units, as_chain(model), x, units.inputs(x)
        )  # fmt: skip
    if not -len(ends) <= output < len(ends):
        raise InvalidInput(f"the network has {len(ends)} outputs, and no output {output}")
    return units.table(ends[output], most)


def graph_path_norms(network: GraphNetwork, *, order: float = 2) -> Tensor:
    r"""$\|\bar w_k\|_p$ of a graph network, `[outputs]`: one forward pass.

    The same graph with its weights to the power $p$, without nonlinearity, on the input of
    ones; biases count as weights from a unit of value 1. For chains, convolutions and pools there
    is `path_norms`.

    >>> g = nx.DiGraph([("x", "h"), ("h", "y"), ("x", "y")])
    >>> net = GraphNetwork(g, generator=0)
    >>> for v, w, b in (("h", [2.0], 0.0), ("y", [3.0, 1.0], 0.5)):
    ...     _ = net.vertex(v)[0].weight.data.copy_(torch.tensor([w]))
    ...     _ = net.vertex(v)[0].bias.data.fill_(b)
    >>> graph_path_norms(net, order=1)            # 3 · 2 + 1 + 0.5
    tensor([7.5000], dtype=torch.float64)
    """
    if not isinstance(network, GraphNetwork):
        raise InvalidType(f"a GraphNetwork is needed, not {type(network).__name__}; see path_norms")
    if not (order >= 1 and math.isfinite(order)):
        raise InvalidInput(f"the order of a norm is a finite number >= 1, not {order!r}")
    made = copy.deepcopy(network).double()
    for name in made.vertices:
        links = _dense_links(made.vertices[name], name)
        dense = [link.module for link in links if isinstance(link.module, nn.Linear)]
        made.vertices[name] = nn.Sequential(*dense)
        for p in (p for layer in dense for p in layer.parameters()):
            p.data = p.data.abs() ** order
    device = next(made.parameters()).device
    with torch.no_grad():
        ones = torch.ones(1, made.features, dtype=torch.float64, device=device)
        norms: Tensor = made(ones)[0] ** (1 / order)
    return norms


# --------------------------------------------------------------------------- units and their graph

BIAS = "1"


class _Units:
    """A growing graph of units: edges carry a weight and a gate `[n]`, nodes a slope `[n]`."""

    def __init__(self, x: Tensor) -> None:
        self.one = torch.ones(len(x), dtype=torch.float64, device=x.device)
        self.graph = nx.DiGraph()
        self.graph.add_node(BIAS, slope=self.one, value=self.one)

    def inputs(self, x: Tensor) -> list[str]:
        names = [f"x[{i}]" for i in range(x[0].numel())]
        for name, value in zip(names, x.flatten(1).double().unbind(1), strict=True):
            self.graph.add_node(name, slope=self.one, value=value)
        return names

    def add(self, names: Sequence[str]) -> None:
        self.graph.add_nodes_from(names, slope=self.one)

    def connect(self, source: str, target: str, weight: float, gate: Tensor | None = None) -> None:
        self.graph.add_edge(source, target, weight=weight, gate=gate)

    def multiply(self, name: str, slope: Tensor) -> None:
        self.graph.nodes[name]["slope"] = self.graph.nodes[name]["slope"] * slope

    def table(self, end: str, most: int) -> PathTable:
        nodes, edges = self.graph.nodes, self.graph.edges
        starts = [v for v in self.graph if "value" in nodes[v]]
        count = self._count(end)
        if count > most:
            raise InvalidInput(f"there are {count} paths, more than most={most}; use path_norms")
        found = [p for s in starts for p in nx.all_simple_paths(self.graph, s, end)]
        inputs, activity, weights = [], [], []
        for path in found:
            weight, active = 1.0, self.one
            for u, v in pairwise(path):
                weight *= edges[u, v]["weight"]
                gate = edges[u, v]["gate"]
                active = active * nodes[v]["slope"] * (1.0 if gate is None else gate)
            inputs.append(nodes[path[0]]["value"])
            activity.append(active)
            weights.append(weight)
        return PathTable(
            tuple(tuple(p) for p in found),
            torch.stack(inputs, 1),
            torch.stack(activity, 1),
            torch.tensor(weights, dtype=torch.float64, device=self.one.device),
        )

    def _count(self, end: str) -> int:
        """How many paths there are, without listing them."""
        paths: dict[str, int] = {}
        for v in nx.topological_sort(self.graph):
            before = sum(paths[u] for u in self.graph.predecessors(v))
            paths[v] = before + (1 if "value" in self.graph.nodes[v] else 0)
        return paths[end]


def _of_chain(units: _Units, links: Sequence[Link], x: Tensor, names: list[str]) -> list[str]:
    """Send units through a chain of layers; their names after it."""
    value = x
    for link in links:
        module = link.module
        if isinstance(module, SLOPED):
            for name, slope in zip(names, _derivative(module, value).unbind(1), strict=True):
                units.multiply(name, slope)
        elif isinstance(module, MAX_POOLS):
            names = _pooled(units, link, value, names)
        elif not isinstance(module, PASSING + REARRANGING):
            names = _weighted(units, link, value, names)
        value = module(value).detach()
    return names


def _of_graph(units: _Units, network: GraphNetwork, x: Tensor) -> list[str]:
    values = {v: h.detach() for v, h in network.values(x).items()}
    dealt = iter(units.inputs(x))
    names = {v: [next(dealt) for _ in range(network.widths[v])] for v in network.inputs}
    for v in network.order:
        before = network.predecessors[v]
        if not before:
            continue
        links = _dense_links(network.vertex(v), str(v))
        joined = torch.cat([values[u] for u in before], 1)
        links = [Link(f"{v}" if isinstance(k.module, nn.Linear) else "", k.module) for k in links]
        names[v] = _of_chain(units, links, joined, [n for u in before for n in names[u]])
    return [n for v in network.outputs for n in names[v]]


def _dense_links(module: nn.Module, vertex: str) -> list[Link]:
    links = as_chain(module)
    dense = sum(isinstance(link.module, nn.Linear) for link in links)
    if dense != 1 or not all(isinstance(k.module, (nn.Linear, *SLOPED, *PASSING)) for k in links):
        raise UnsupportedModel(
            f"vertex {vertex} is not one dense layer followed by ReLU, leaky ReLU or nothing"
        )
    return links


def _weighted(units: _Units, link: Link, value: Tensor, before: list[str]) -> list[str]:
    """A layer of weights: every connection counts, also where its weight is 0."""
    module = link.module
    zero = torch.zeros_like(value[:1])
    matrix = _matrix(module, zero)
    connected = matrix != 0
    if isinstance(module, (nn.Linear, *CONVOLUTIONS)):
        ones = copy.deepcopy(module)
        ones.weight.data = torch.ones_like(ones.weight.data)
        connected = _matrix(ones, zero) != 0
    shift = module(zero).detach().flatten().tolist()
    names = [f"{link.name}[{i}]" for i in range(len(matrix))]
    units.add(names)
    biased = getattr(module, "bias", None) is not None or hasattr(module, "running_mean")
    for i, name in enumerate(names):
        for j in connected[i].nonzero().flatten().tolist():
            units.connect(before[j], name, float(matrix[i, j]))
        if biased:
            units.connect(BIAS, name, shift[i])
    return names


def _pooled(units: _Units, link: Link, value: Tensor, before: list[str]) -> list[str]:
    """A layer of maxima: every input of a window is connected, one of them has the gate open."""
    gates = _gates(link.module, value)
    places = torch.arange(value[0].numel(), dtype=value.dtype, device=value.device)
    shape = value.shape[1:]
    reach = []
    for place in range(value[0].numel()):  # the only large entry is the maximum where it is seen
        seen: Tensor = link.module((places == place).to(value).reshape(1, *shape)) > 0
        reach.append(seen.flatten())
    connected = torch.stack(reach, 1)
    names = [f"{link.name}[{i}]" for i in range(len(connected))]
    units.add(names)
    for i, name in enumerate(names):
        for j in connected[i].nonzero().flatten().tolist():
            units.connect(before[j], name, 1.0, gates[:, i, j])
    return names


def _matrix(layer: nn.Module, zero: Tensor) -> Tensor:
    """Matrix `[out, in]` of an affine layer."""
    basis = torch.eye(zero.numel(), dtype=zero.dtype, device=zero.device)
    images: Tensor = layer(basis.reshape(-1, *zero.shape[1:])) - layer(zero)
    return images.detach().flatten(1).mT.double()


def _gates(pool: nn.Module, value: Tensor) -> Tensor:
    """Derivative `[n, out, in]` of a pool at every input: 1 at what a window selects."""
    with torch.enable_grad():
        at = value.detach().clone().requires_grad_()
        rows = [
            torch.autograd.grad(window.sum(), at, retain_graph=True)[0].flatten(1)
            for window in pool(at).flatten(1).unbind(1)
        ]
    return torch.stack(rows, 1).double()


def _derivative(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Slopes `[n, units]` of a function of each entry."""
    with torch.enable_grad():
        at = at.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(function(at).sum(), at)
    return slope.flatten(1).double()
