r"""Graph spectra: the Fourier transform of a graph, convolution, and filters of the Laplacian.

$L=U\Lambda U^\top$; the columns of $U$ are the waves of the graph, the eigenvalues their
frequencies. Source: Deep Learning (notes), section 7.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchtheory.core.checks import (
    as_function,
    as_vector,
    described,
    nonnegative_number,
    whole_number,
)
from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.core.figure import Figure, draw
from torchtheory.core.memory import refuse_too_large
from torchtheory.core.random import RandomSource
from torchtheory.graphs.graph import Graph
from torchtheory.graphs.graph_reading import GraphSource, as_graph
from torchtheory.graphs.laplacians import graph_laplacian
from torchtheory.linalg.eigenvalues import top_eigenpairs

#: A function of eigenvalues, entry by entry.
Response = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class GraphFourier:
    r"""The eigenvalues and an orthonormal eigenbasis of a graph's Laplacian.

    The basis is one of many: each column may change its sign, and an eigenspace of dimension above
    1 may be turned. What `filter` gives does not depend on that choice; transforms and `convolve`
    do.

    Attributes:
        graph: the graph.
        frequencies: eigenvalues, ascending, `[M]` (or the lowest `[k]`).
        basis: $U$, `[M, M]` (or `[M, k]`), real or complex, columns in the same order.
    """

    graph: Graph = field(repr=False)
    frequencies: Tensor
    basis: Tensor = field(repr=False)

    def transform(self, x: Tensor) -> Tensor:
        r"""$\hat x=U^*x$ ($U^\top x$ for a real basis), for `x[M]` or `x[..., M, c]`."""
        return self.basis.mH @ _signal(x, self.graph).to(self.basis.dtype)

    def inverse(self, x_hat: Tensor) -> Tensor:
        r"""$x=U\hat x$."""
        return self.basis @ x_hat

    def convolve(self, x: Tensor, y: Tensor) -> Tensor:
        r"""$x*y=U(U^\top x\odot U^\top y)$ for signals `[M]` or `[M, c]` of one shape.

        Each column of $U$ occurs three times, so that $x*y$ changes with its sign: without a fixed
        basis this convolution is not defined by the graph.
        """
        return self.inverse(self.transform(x) * self.transform(y))

    def filter(self, response: Response, x: Tensor) -> Tensor:
        r"""$g(L)x=Ug(\Lambda)U^\top x$; `response` is $g$, from eigenvalues to numbers."""
        gains = _gains(response, self.frequencies)
        return self.inverse((gains if x.ndim == 1 else gains.unsqueeze(-1)) * self.transform(x))

    def plot(self, ax: Any, which: int = 1) -> None:
        """Nodes at the second and third eigenvector, colored by eigenvector `which`."""
        place = self.basis[:, 1:3].cpu()
        if place.shape[1] < 2:
            raise InvalidInput("a drawing by eigenvectors needs at least three nodes")
        i, j = self.graph.edges.cpu()
        for a, b in zip(i[i < j].tolist(), j[i < j].tolist(), strict=True):
            ax.plot(*place[[a, b]].T, color="0.85", lw=0.7, zorder=0)
        shown = ax.scatter(*place.T, c=self.basis[:, which].cpu(), cmap="coolwarm", s=28, ec="0.3")
        shown.axes.figure.colorbar(shown, ax=ax, label=f"eigenvector {which}")
        ax.set(xlabel="eigenvector 1", ylabel="eigenvector 2")

    def figure(self, which: int = 1) -> Figure:
        """The plot as a figure that can be kept."""
        return draw(
            "graph-fourier",
            partial(self.plot, which=which),
            caption=f"Nodes placed by the slowest waves of the graph, colored by wave {which}.",
        )


def graph_fourier(
    graph: GraphSource,
    *,
    normalized: bool = False,
    lowest: int | None = None,
    generator: RandomSource = None,
) -> GraphFourier:
    r"""The Fourier basis of a graph, $L=U\Lambda U^\top$.

    Signs are fixed so that the entry of largest modulus of each column is positive (the first of
    those); an eigenspace of dimension above 1 is still turned in some way.

    Args:
        graph: undirected, with weights >= 0.
        normalized: take $I-D^{-1/2}AD^{-1/2}$ instead of $D-A$.
        lowest: only so many of the lowest frequencies, by Lanczos' method without a matrix
            `[M, M]`. A multiple eigenvalue may be found less often than it occurs.
        generator: of the start vectors of that method.

    Time $O(M^3)$ and memory $O(M^2)$; with `lowest` some hundreds of products, $O(E)$ each.

    >>> import networkx as nx
    >>> graph_fourier(nx.path_graph(3)).frequencies.round(decimals=6).abs().tolist()
    [0.0, 1.0, 3.0]
    """
    graph = as_graph(graph)
    L = graph_laplacian(graph, normalized=normalized)
    if lowest is None:
        refuse_too_large(24 * graph.nodes**2, "the eigenbasis (chebyshev_filter needs none)")
        values, basis = torch.linalg.eigh(L.dense())
    else:
        lowest = whole_number(lowest, "lowest", least=1, most=graph.nodes)
        found = top_eigenpairs(
            L.operator(), lowest, which="smallest", steps=20_000, generator=generator
        )
        values, basis = found.values, found.vectors
    largest = basis.gather(0, basis.abs().argmax(0, keepdim=True))
    signs = torch.where(largest < 0, -1.0, 1.0).to(basis)
    return GraphFourier(graph, values, basis * signs)


def cycle_fourier(nodes: int) -> GraphFourier:
    r"""The cycle with the waves $e^{2\pi ijm/M}/\sqrt M$: the unitary discrete Fourier transform.

    In this basis, which the graph alone does not single out, `convolve` is circular convolution
    divided by $\sqrt M$. The frequencies are $2-2\cos(2\pi j/M)$, in the order of $j$.

    >>> cycle_fourier(4).frequencies.round(decimals=9).tolist()
    [0.0, 2.0, 4.0, 2.0]
    """
    whole_number(nodes, "nodes", least=3)
    turns = torch.arange(nodes, dtype=torch.float64) * (2 * torch.pi / nodes)
    # j m modulo M first, so that no digits of large angles are lost
    angles = turns[torch.outer(torch.arange(nodes), torch.arange(nodes)) % nodes]
    basis = torch.polar(torch.full_like(angles, nodes**-0.5), angles)
    steps = torch.arange(nodes)
    graph = as_graph(torch.stack([steps, (steps + 1) % nodes]), directed=False)
    return GraphFourier(graph, 2 - 2 * turns.cos(), basis)


def spectral_filter(
    graph: GraphSource, response: Response, x: Tensor, *, normalized: bool = False
) -> Tensor:
    r"""$g(L)x=U\,g(\Lambda)\,U^\top x$ for any function $g$ of the eigenvalues.

    Independent of the choice of $U$, and equivariant. $e^{-t\lambda}$ is the heat kernel. Time
    $O(M^3)$ (kept with the graph for the next filter), memory $O(M^2)$; `polynomial_filter` and
    `chebyshev_filter` need no eigenvectors.

    Args:
        graph: undirected, with weights >= 0.
        response: $g$, entry by entry.
        x: signal `[M]` or signals `[..., M, c]`.

    >>> import networkx as nx
    >>> heat = spectral_filter(nx.complete_graph(2), lambda f: (-f).exp(), torch.eye(2).double())
    >>> heat.sum(0).round(decimals=9).tolist()  # heat is kept
    [1.0, 1.0]
    """
    graph = as_graph(graph)
    x = _signal(x, graph)
    key = ("fourier", normalized)
    basis: GraphFourier = graph.kept(key, lambda: graph_fourier(graph, normalized=normalized))
    if x.dtype != basis.basis.dtype:
        basis = GraphFourier(graph, basis.frequencies.to(x.dtype), basis.basis.to(x.dtype))
    return basis.filter(response, x)


def polynomial_filter(
    graph: GraphSource,
    coefficients: Tensor | Sequence[float],
    x: Tensor,
    *,
    normalized: bool = False,
) -> Tensor:
    r"""$\sum_{k=0}^K\alpha_kL^kx$ by Horner's scheme: $K$ sparse products, no eigenvectors.

    Node $i$ sees the nodes up to $K$ edges away. Differentiable in the coefficients and in `x`.
    Time $O(KEc)$, memory $O(Mc)$ (and $K$ of them for derivatives).

    Args:
        graph: undirected, with weights >= 0.
        coefficients: $\alpha_0,\dots,\alpha_K$.
        x: signal `[M]` or signals `[..., M, c]`.

    >>> import networkx as nx
    >>> impulse = torch.tensor([1.0, 0.0, 0.0, 0.0]).double()
    >>> polynomial_filter(nx.path_graph(4), [0.0, 0.0, 1.0], impulse).tolist()
    [2.0, -3.0, 1.0, 0.0]
    """
    graph = as_graph(graph)
    x = _signal(x, graph)
    given = torch.as_tensor(coefficients)
    alpha = given if given.dtype == x.dtype else given.to(x.dtype)
    as_vector(alpha, "the coefficients")
    L = graph_laplacian(graph, normalized=normalized)
    made = alpha[-1] * x
    for k in range(len(alpha) - 2, -1, -1):
        made = L @ made + alpha[k] * x
    return made


def chebyshev_filter(
    graph: GraphSource, response: Response, x: Tensor, degree: int, *, normalized: bool = False
) -> Tensor:
    r"""$g(L)x$ with $g$ replaced by its Chebyshev interpolation on the range of the spectrum.

    $\lVert g(L)x-p(L)x\rVert\le\max_{[0,\lambda]}|g-p|\,\lVert x\rVert$, which falls geometrically
    with the degree if $g$ is analytic. $\lambda$ is 2 for the normalized Laplacian and twice the
    largest degree otherwise, which bound the spectrum. Time $O(KEc)$, memory $O(Mc)$: for large
    graphs, where `spectral_filter` cannot go.

    Args:
        graph: undirected, with weights >= 0.
        response: $g$, entry by entry.
        x: signal `[M]` or signals `[..., M, c]`.
        degree: $K$.

    >>> import networkx as nx
    >>> cycle, x = nx.cycle_graph(9), torch.eye(9).double()
    >>> heat = lambda f: (-f).exp()
    >>> error = chebyshev_filter(cycle, heat, x, 20) - spectral_filter(cycle, heat, x)
    >>> float(error.norm()) < 1e-9
    True
    """
    graph = as_graph(graph)
    x = _signal(x, graph)
    whole_number(degree, "degree", least=0)
    as_function(response, "response")
    L = graph_laplacian(graph, normalized=normalized)
    half = 1.0 if normalized else max(float(graph.degrees().max()), 1e-300)
    weights = chebyshev_coefficients(lambda t: response(half * (t + 1)), degree).to(x)

    def scaled(v: Tensor) -> Tensor:
        return (L @ v) / half - v

    before, now = x, x
    made = weights[0] * x
    for k in range(1, degree + 1):
        now, before = (scaled(x), x) if k == 1 else (2 * scaled(now) - before, now)
        made = made + weights[k] * now
    return made


def chebyshev_coefficients(function: Response, degree: int) -> Tensor:
    r"""$c_k$ of the polynomial $\sum_kc_kT_k$ that meets a function at the Chebyshev nodes.

    >>> chebyshev_coefficients(lambda t: t**2, 2).round(decimals=9).tolist()  # T_0 / 2 + T_2 / 2
    [0.5, 0.0, 0.5]
    """
    count = degree + 1
    angles = (torch.arange(count, dtype=torch.float64) + 0.5) * torch.pi / count
    values = _gains(function, angles.cos())
    waves = (torch.arange(count, dtype=torch.float64)[:, None] * angles).cos()
    weights = 2 / count * waves @ values
    weights[0] /= 2
    return weights


def heat_diffusion(
    graph: GraphSource, x: Tensor, time: float, *, normalized: bool = False
) -> Tensor:
    r"""$e^{-tL}x$: heat that spreads along the edges for a time $t$, from $x$.

    By `chebyshev_filter` with $\sqrt{37\,t\lambda}+20$ products: the coefficients fall as
    $e^{-k^2/(t\lambda)}$, so the error is that of rounding.

    >>> import networkx as nx
    >>> warm = heat_diffusion(nx.complete_graph(2), torch.tensor([1.0, 0.0]).double(), 50.0)
    >>> warm.round(decimals=9).tolist()
    [0.5, 0.5]
    """
    graph = as_graph(graph)
    nonnegative_number(time, "time")
    reach = time * (2.0 if normalized else 2 * float(graph.degrees().max()))
    degree = int((37 * reach) ** 0.5) + 20
    return chebyshev_filter(graph, lambda f: (-time * f).exp(), x, degree, normalized=normalized)


def _gains(response: Response, frequencies: Tensor) -> Tensor:
    given = torch.as_tensor(as_function(response, "response")(frequencies))
    if given.is_complex():
        raise InvalidType(
            f"the response must be real, not {given.dtype}: filter its real and imaginary part "
            "apart"
        )
    gains = given.to(frequencies)
    if gains.ndim == 0:
        gains = gains.expand_as(frequencies)
    if gains.shape != frequencies.shape:
        raise ShapeMismatch(
            f"the response must give one number per eigenvalue, [{len(frequencies)}], "
            f"not {list(gains.shape)}"
        )
    if not bool(torch.isfinite(gains).all()):
        at = int((~torch.isfinite(gains)).nonzero()[0])
        raise NonFinite(
            f"the response must be finite on the spectrum, and at {float(frequencies[at]):.3g} it "
            f"is {float(gains[at])}"
        )
    return gains


def _signal(x: Tensor, graph: Graph) -> Tensor:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise InvalidType(
            f"a signal on a graph is a tensor of floating-point numbers, not {described(x)}"
        )
    rows = x.shape[0] if x.ndim == 1 else x.shape[-2] if x.ndim > 1 else 0
    if rows != graph.nodes:
        raise ShapeMismatch(
            f"a graph of {graph.nodes} nodes takes signals [{graph.nodes}] or [{graph.nodes}, c], "
            f"not {list(x.shape)}"
        )
    return x
