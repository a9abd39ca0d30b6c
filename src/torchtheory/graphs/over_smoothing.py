r"""Over-smoothing: repeated coupling makes the features of all nodes alike, and how fast.

On a connected graph $\bar A^k\to\frac{D^{1/2}\mathbf 1\mathbf 1^\top D^{1/2}}{\mathbf 1^\top D
\mathbf 1}$ with error exactly $|\lambda|_{(2)}^k$ in the spectral norm, $|\lambda|_{(2)}$ the
second largest modulus of an eigenvalue of $\bar A$; with several components, on each. $D$ holds the
degrees with the loop, as in `gcn_coupling`. Source: Deep Learning (notes), section 7.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_module, whole_number
from torchtheory.core.errors import InvalidInput, NotConverged
from torchtheory.core.figure import Figure, draw
from torchtheory.core.random import RandomSource
from torchtheory.graphs.graph import Graph
from torchtheory.graphs.graph_reading import GraphSource, as_graph
from torchtheory.graphs.laplacians import gcn_coupling
from torchtheory.graphs.message_passing import check_features
from torchtheory.linalg.eigenvalues import top_eigenpairs
from torchtheory.linalg.operators import LinearOperator
from torchtheory.models.untouched import refuse_compiled
from torchtheory.tracing.layer_results import call_results

# up to this size all eigenvalues are computed; above it Lanczos' method is cheaper
_DENSE = 400
# entries of differences along edges that are held at once
_ENTRIES = 2**22


def dirichlet_energy(features: Tensor, graph: GraphSource, *, normalized: bool = True) -> Tensor:
    r"""How much features differ along edges, summed over features: `[..., M, c]` to `[...]`.

    $$E(X)=\sum_{\{i,j\}\in E}a_{ij}\Big\|\frac{x_i}{\sqrt{d_i}}-\frac{x_j}{\sqrt{d_j}}\Big\|^2=
    \operatorname{tr}X^\top(I-\bar A)X$$

    with $d_i=1+\sum_ja_{ij}$. It is 0 where $\bar AX=X$, and $E(\bar AX)\le|\lambda|_{(2)}^2E(X)$.
    A linear layer multiplies it by at most $\lVert W\rVert^2$, a ReLU by at most 1. Compare layers
    of different sizes of features by $E(X)/\lVert X\rVert^2$, which is at most 2.

    Args:
        features: `[..., M, c]`, or `[M]`.
        graph: undirected, with weights >= 0.
        normalized: False for $\sum a_{ij}\|x_i-x_j\|^2=\operatorname{tr}X^\top LX$.

    Computed by differences, so that small energies have all their digits. Time $O(Ec)$, memory
    $O(Mc)$ and a chunk.

    >>> path = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> dirichlet_energy(torch.tensor([[1.0], [3.0]]), path, normalized=False).item()
    4.0
    """
    graph = as_graph(graph).undirected("the Dirichlet energy").nonnegative("the Dirichlet energy")
    x = features.unsqueeze(-1) if features.ndim == 1 else features
    check_features(x, graph)
    if normalized:
        x = x / graph.coupled_degrees().to(x.dtype).sqrt().unsqueeze(-1)
    once = graph.sources < graph.targets
    i, j = graph.edges[:, once]
    weights = graph.edge_weights(x.dtype)[once].unsqueeze(-1)
    chunk = max(1, _ENTRIES // max(1, x[..., 0, :].numel()))
    total = x.new_zeros(x.shape[:-2])
    for k in range(0, len(i), chunk):
        part = slice(k, k + chunk)
        differences = x.index_select(-2, i[part]) - x.index_select(-2, j[part])
        total = total + (weights[part] * differences.square()).sum((-2, -1))
    return total


def smoothing_limit(x: Tensor, graph: GraphSource) -> Tensor:
    r"""$\lim_k\bar A^kX$, `[..., M, c]`: on each component $C$, $D^{1/2}\mathbf 1_C$ times
    $\mathbf 1_C^\top D^{1/2}X/\sum_{m\in C}d_m$.

    Constant on a component only after division by $\sqrt{d_m}$. Time $O(Mc+E)$.

    >>> smoothing_limit(torch.tensor([[1.0], [3.0]]), torch.ones(2, 2)).flatten().tolist()
    [2.0, 2.0]
    """
    graph = as_graph(graph).undirected("the limit of smoothing").nonnegative("smoothing")
    check_features(x, graph)
    roots = graph.coupled_degrees().to(x.dtype).sqrt()
    member = graph.kept("components", graph.components)
    count = int(member.max()) + 1
    shape = (*x.shape[:-2], count, x.shape[-1])
    sums = x.new_zeros(shape).index_add(-2, member, roots.unsqueeze(-1) * x)
    mass = roots.new_zeros(count).index_add(0, member, roots.square())
    means = sums / mass.unsqueeze(-1)
    made: Tensor = roots.unsqueeze(-1) * means.index_select(-2, member)
    return made


def second_modulus(graph: GraphSource, *, generator: RandomSource = None) -> float:
    r"""$|\lambda|_{(2)}$: the largest modulus of an eigenvalue of $\bar A$ besides 1 on components.

    Below 1 always, since the loops exclude -1. By all eigenvalues of small graphs, and otherwise by
    Lanczos' method on $\bar A$ with the limit taken off: some hundreds of products, $O(E)$ each.

    >>> import networkx as nx
    >>> round(second_modulus(nx.cycle_graph(12)), 6) == round((1 + 2 * 0.75**0.5) / 3, 6)
    True
    """
    graph = as_graph(graph).undirected("the rate of smoothing")
    found: float = graph.kept("second modulus", lambda: _second_modulus(graph, generator))
    return found


def _second_modulus(graph: Graph, generator: RandomSource) -> float:
    coupling = gcn_coupling(graph, dtype=torch.float64)
    if graph.nodes <= _DENSE:
        identity = torch.eye(graph.nodes, dtype=torch.float64, device=graph.device)
        rest = coupling.dense() - smoothing_limit(identity, graph)
        return float(torch.linalg.eigvalsh((rest + rest.T) / 2).abs().max())
    operator = LinearOperator(
        coupling.shape,
        lambda v: (coupling @ v) - smoothing_limit(v, graph),
        batched=True,
        symmetric=True,
        dtype=torch.float64,
        device=graph.device,
    )
    result = top_eigenpairs(operator, 1, which="magnitude", steps=5000, generator=generator)
    if not result.converged:
        raise NotConverged(
            f"the second eigenvalue of the graph was found to within "
            f"{float(result.residuals.max()):.1g} only, after {result.steps} products"
        )
    return float(result.values.abs().max())


@dataclass(frozen=True, slots=True)
class SmoothingCurve:
    r"""What repeated coupling does to features, step by step from 0.

    Attributes:
        distances: $\lVert\bar A^kX-\lim\rVert_F$, `[depth + 1]`.
        bound: $|\lambda|_{(2)}^k\lVert X-\lim\rVert_F$, which they stay below.
        energies: $E(\bar A^kX)$, the Dirichlet energy.
        energy_bound: $|\lambda|_{(2)}^{2k}E(X)$, which they stay below.
        spread: root mean square distance of two nodes of one component, of the rows of
            $D^{-1/2}\bar A^kX$.
        rate: $|\lambda|_{(2)}$.
        components: of the graph.
    """

    distances: Tensor
    bound: Tensor
    energies: Tensor
    energy_bound: Tensor
    spread: Tensor
    rate: float
    components: int

    @property
    def half_depth(self) -> float:
        """After how many steps the distance is sure to be half of what it was."""
        return math.log(0.5) / math.log(self.rate) if self.rate > 0 else 0.0

    def plot(self, ax: Any) -> None:
        """Distances and energies against depth, with their bounds, on matplotlib's Axes."""
        depth = range(len(self.distances))
        ax.semilogy(depth, self.distances, "o-", ms=3, label="distance to the limit")
        ax.semilogy(depth, self.bound, "k--", lw=1, label=rf"bound, rate {self.rate:.3g}")
        ax.semilogy(depth, self.energies, "s-", ms=3, label="Dirichlet energy")
        ax.semilogy(depth, self.energy_bound, "k:", lw=1, label="its bound, rate squared")
        ax.set(xlabel="depth", ylabel="")
        ax.legend()

    def figure(self) -> Figure:
        """The plot as a figure that can be kept."""
        return draw("smoothing", self.plot, caption="Features under repeated coupling.")


def smoothing_curve(
    graph: GraphSource, x: Tensor, depth: int, *, generator: RandomSource = None
) -> SmoothingCurve:
    r"""How features approach the limit of $\bar A^kX$ for $k=0,\dots,$ `depth`.

    Args:
        graph: undirected, with weights >= 0; it need not be connected.
        x: features `[M, c]`.
        depth: number of steps.
        generator: for the eigenvalue of a large graph.

    Time $O(\text{depth}\cdot Ec)$ and one eigenvalue, memory $O(Mc)$.

    >>> import networkx as nx
    >>> curve = smoothing_curve(nx.cycle_graph(5), torch.eye(5).double(), 20)
    >>> bool((curve.distances <= curve.bound * (1 + 1e-9)).all()), float(curve.spread[-1]) < 0.01
    (True, True)
    """
    graph = as_graph(graph)
    whole_number(depth, "depth", least=1)
    check_features(x, graph, dimensions=2)
    rate = second_modulus(graph, generator=generator)
    coupling = gcn_coupling(graph, dtype=x.dtype)
    # the part of the limit does not change, so it is taken off once, and no digits are lost later
    rest = x - smoothing_limit(x, graph)
    distances, energies, spread = [], [], []
    for k in range(depth + 1):
        if k:
            rest = coupling @ rest
        distances.append(torch.linalg.matrix_norm(rest))
        energies.append(dirichlet_energy(rest, graph))
        spread.append(_spread(rest, graph))
    powers = rate ** torch.arange(depth + 1, dtype=x.dtype)
    return SmoothingCurve(
        torch.stack(distances),
        distances[0] * powers,
        torch.stack(energies),
        energies[0] * powers.square(),
        torch.stack(spread),
        rate,
        int(graph.components().max()) + 1,
    )


def _spread(x: Tensor, graph: Graph) -> Tensor:
    """Root mean square distance of the rescaled rows of two nodes of one component."""
    rows = x / graph.coupled_degrees().to(x.dtype).sqrt().unsqueeze(-1)
    member = graph.kept("components", graph.components)
    sizes = torch.bincount(member).to(x.dtype)
    means = x.new_zeros(len(sizes), x.shape[1]).index_add_(0, member, rows) / sizes.unsqueeze(-1)
    squares = (rows - means[member]).square().sum(1)
    pairs = float((sizes * (sizes - 1) / 2).sum())
    # over the pairs of n points, squared distances sum to n times those to the mean
    total = (sizes[member] * squares).sum()
    return (total / max(pairs, 1.0)).sqrt()


@dataclass(frozen=True, slots=True)
class LayerEnergies:
    """The Dirichlet energies of the features inside a network.

    Attributes:
        names: of the modules, in the order in which they were done; `input` first.
        energies: of what each gave out.
        shares: energies over the squared norm of the features, at most 2; near 0 the features
            are what repeated coupling makes of anything.
    """

    names: list[str]
    energies: Tensor
    shares: Tensor

    def plot(self, ax: Any) -> None:
        """The shares layer by layer, on matplotlib's Axes."""
        places = range(len(self.names))
        ax.semilogy(places, self.shares.clamp(min=1e-300), "o-", ms=4)
        ax.set_xticks(places, self.names, rotation=45, ha="right")
        ax.set(ylabel="energy over squared norm")

    def figure(self) -> Figure:
        """The plot as a figure that can be kept."""
        return draw("layer-energies", self.plot, caption="Dirichlet energy by layer.")


def layer_energies(
    network: nn.Module,
    x: Tensor,
    graph: GraphSource,
    *,
    call: Callable[[nn.Module, Tensor], Any] | None = None,
) -> LayerEnergies:
    """Dirichlet energies of a network's features after each of its modules.

    Modules that give one row per node count, those inside others included. The network runs once
    in evaluation mode, without derivatives, and is left as it was.

    Args:
        network: any module on graphs.
        x: features `[M, c]`.
        graph: undirected, with weights >= 0.
        call: how to run it, `call(network, x)`; `network(x, graph)` unless given. For one of
            PyTorch Geometric, `lambda net, x: net(x, edge_index)`.

    >>> from torchtheory.graphs.convolutions import GCN
    >>> found = layer_energies(GCN([2, 4, 3]), torch.eye(2).double(), torch.ones(2, 2))
    >>> found.names
    ['input', 'layers.0', 'activation', 'layers.1']
    """
    graph = as_graph(graph)
    refuse_compiled(as_module(network))
    check_features(x, graph, dimensions=2)
    inside = call_results(network, x, call or (lambda net, features: net(features, graph)))
    found = [("input", x.detach())]
    found += [
        (name, out)
        for name, out, passed_on in inside
        if not passed_on and out.ndim == 2 and len(out) == graph.nodes
    ]
    if len(found) == 1:
        raise InvalidInput("no module of the network gives one row of features per node")
    names = [name for name, _ in found]
    features = [out.to(torch.float64) for _, out in found]
    energies = torch.stack([dirichlet_energy(f, graph) for f in features])
    norms = torch.stack([f.square().sum() for f in features])
    return LayerEnergies(names, energies, torch.where(norms > 0, energies / norms, 0.0))
