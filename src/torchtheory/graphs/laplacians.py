r"""Laplacians, of functions on $\mathbb R^d$ and on graphs, and the coupling matrix of GCNs.

The sign is opposite in the two worlds: $\Delta f$ is the mean nearby minus $f(x)$, while
$(Lf)_i=\sum_ja_{ij}(f_i-f_j)$ is the value minus what is nearby, so that $L\approx-h^2\Delta$ on a
grid with step $h$ and $L$ has no negative eigenvalue. Source: Deep Learning (notes), sections 7.4
(coupling matrix) and 7.5 (Definitions 7.6 and 7.7).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchtheory.core.checks import as_function, as_points, positive_number, whole_number
from torchtheory.core.errors import ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.graphs.edge_products import EdgePattern, SparseMatrix, incoming_pattern
from torchtheory.graphs.graph import Graph
from torchtheory.graphs.graph_reading import GraphSource, as_graph

#: A function of points, `[n, d]` to `[n]`.
Field = Callable[[Tensor], Tensor]


def laplacian(f: Field, x: Tensor) -> Tensor:
    r"""$\Delta f(x)=\sum_i\partial^2f/\partial x_i^2$ by automatic differentiation, `[n]`.

    Args:
        f: from points `[n, d]` to values `[n]`, each of its own point only.
        x: points `[n, d]`.

    Time: $d+1$ backward passes. Memory: that of a gradient with its graph.

    >>> points = torch.tensor([[1.0, 2.0], [0.5, -1.0]]).double()
    >>> laplacian(lambda x: x.square().sum(1), points).tolist()  # 2 d
    [4.0, 4.0]
    """
    as_function(f, "f")
    x = as_points(x).clone().requires_grad_()
    values = f(x)
    if values.shape != x.shape[:1]:
        raise ShapeMismatch(
            f"f must give one number per point, [{len(x)}], not {list(values.shape)}"
        )
    total = torch.zeros_like(x[:, 0])
    if not values.requires_grad:
        return total.detach()
    (gradient,) = torch.autograd.grad(values.sum(), x, create_graph=True)
    if not gradient.requires_grad:
        return total.detach()
    for i in range(x.shape[1]):
        # a linear network's gradient depends on its weights only
        (second,) = torch.autograd.grad(
            gradient[:, i].sum(), x, retain_graph=True, materialize_grads=True
        )
        total = total + second[:, i]
    return total.detach()


def sphere_mean_excess(
    f: Field, x: Tensor, radius: float, *, draws: int = 1000, generator: RandomSource = None
) -> Tensor:
    r"""The mean of $f$ over the sphere of radius $r$ about $x$, minus $f(x)$: `[n]`.

    $$\frac1{|S_r|}\int_{S_r(x)}f-f(x)=\frac{r^2}{2d}\Delta f(x)+O(r^4)$$

    In dimension 1 the sphere is two points. From dimension 2 on the mean is over `draws` frames:
    $d$ orthogonal directions each, turned at random, and their opposites. A frame is exact for
    quadratic functions already, so that only what is of order $r^4$ is estimated.

    Time: $2d\cdot$`draws` values of $f$ per point.

    >>> point = torch.tensor([[0.3, 0.4]]).double()
    >>> excess = sphere_mean_excess(lambda x: x.square().sum(1), point, 0.1, draws=1)
    >>> round(float(excess), 12)  # r^2 / (2 d) times 2 d
    0.01
    """
    as_function(f, "f")
    x = as_points(x)
    positive_number(radius, "radius")
    count = 1 if x.shape[1] == 1 else whole_number(draws, "draws", least=1)
    n, d = x.shape
    normal = torch.randn(count, d, d, generator=as_generator(generator), dtype=torch.float64)
    frames = torch.linalg.qr(normal).Q.to(x)
    around = torch.cat([frames, -frames]).reshape(-1, 1, d) * radius
    with torch.no_grad():
        values = f((x + around).reshape(-1, d)).reshape(-1, n)
        made: Tensor = values.mean(0) - f(x)
    return made


def graph_laplacian(
    graph: GraphSource, *, normalized: bool = False, dtype: torch.dtype | None = None
) -> SparseMatrix:
    r"""$L=D-A$, or $\tilde L=I-D^{-1/2}AD^{-1/2}$ if `normalized`, sparse and symmetric.

    $D$ holds the plain degrees, without the loops that `gcn_coupling` adds. $\langle x,Lx\rangle=
    \sum_{\{i,j\}\in E}a_{ij}(x_i-x_j)^2$. Loops cancel in $L$. An isolated node has $D_{ii}=0$ and
    no $D^{-1/2}$: its row of $\tilde L$ is 0 here (as for Chung and networkx), so that the
    multiplicity of the eigenvalue 0 is the number of components for both.

    Args:
        graph: undirected, with weights >= 0; anything that `as_graph` reads.
        normalized: $\tilde L$, whose eigenvalues lie in $[0,2]$.
        dtype: that of the weights, or float64, unless given.

    Time and memory: $O(M+E)$, once per graph.

    >>> graph_laplacian(torch.tensor([[0.0, 1.0], [1.0, 0.0]])).dense().tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    graph = as_graph(graph).undirected("a graph Laplacian").nonnegative("a graph Laplacian")
    made: SparseMatrix = graph.kept(
        ("laplacian", normalized), lambda: _laplacian(graph, normalized)
    )
    return made if dtype is None else made.to(dtype)


def _laplacian(graph: Graph, normalized: bool) -> SparseMatrix:
    pattern, values = _with_loops(graph, graph.edge_weights(), added=0.0)
    degrees, loop = graph.degrees(), pattern.rows == pattern.columns
    entries = -values
    entries[loop] += degrees
    if normalized:
        scale = _inverse_roots(degrees)
        entries = entries * scale[pattern.rows] * scale[pattern.columns]
    return SparseMatrix(pattern, entries, symmetric=True)


def gcn_coupling(graph: GraphSource, *, dtype: torch.dtype | None = None) -> SparseMatrix:
    r"""The coupling matrix $\bar A=D^{-1/2}(A+I)D^{-1/2}$ with $d_m=1+\sum_na_{nm}$, sparse.

    For an undirected graph it is symmetric with eigenvalues in $(-1,1]$; $D^{1/2}\mathbf 1$ is an
    eigenvector for 1, and 1 occurs once per component. A node that has a loop already keeps it
    and gets no other (as in PyTorch Geometric). For a directed graph, row $m$ collects what
    reaches $m$: $\bar a_{mn}=a_{nm}/\sqrt{d_md_n}$.

    Time and memory: $O(M+E)$, once per graph and precision.

    >>> triangle = torch.ones(3, 3) - torch.eye(3)
    >>> round(gcn_coupling(triangle).dense().sum().item(), 9)  # all entries 1/3
    3.0
    """
    graph = as_graph(graph).nonnegative("the coupling matrix")
    made: SparseMatrix = graph.kept("gcn coupling", lambda: _coupling(graph))
    return made if dtype is None else made.to(dtype)


def _coupling(graph: Graph) -> SparseMatrix:
    pattern, values = _with_loops(graph, graph.coupling_weights(), added=1.0)
    degrees = values.new_zeros(graph.nodes).index_add_(0, pattern.rows, values)
    scale = _inverse_roots(degrees)
    entries = values * scale[pattern.rows] * scale[pattern.columns]
    return SparseMatrix(pattern, entries, symmetric=not graph.directed)


def neighbor_sums(graph: GraphSource, *, dtype: torch.dtype | None = None) -> SparseMatrix:
    r"""The matrix that sums over neighbors, $(Sx)_m=\sum_na_{nm}x_n$: $A^\top$, which is $A$ for
    an undirected graph.

    >>> (neighbor_sums(torch.tensor([[0.0, 1.0], [1.0, 0.0]])) @ torch.tensor([3.0, 5.0])).tolist()
    [5.0, 3.0]
    """
    graph = as_graph(graph)
    made: SparseMatrix = graph.kept("neighbor sums", lambda: _neighbor_sums(graph))
    return made if dtype is None else made.to(dtype)


def _neighbor_sums(graph: Graph) -> SparseMatrix:
    pattern, _ = incoming_pattern(graph)
    return SparseMatrix(pattern, graph.edge_weights(), symmetric=not graph.directed)


def _with_loops(graph: Graph, weights: Tensor, *, added: float) -> tuple[EdgePattern, Tensor]:
    """The entries of the edges, and `added` on the diagonal where there is no loop."""
    pattern, number = incoming_pattern(graph, loops=True)
    weights = torch.cat([weights, weights.new_full((1,), added)])
    return pattern, weights[number]  # number -1 is the last


def _inverse_roots(degrees: Tensor) -> Tensor:
    """Degrees to the power -1/2, and 0 for isolated nodes."""
    return torch.where(degrees > 0, degrees, torch.inf).rsqrt()
