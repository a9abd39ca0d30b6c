"""Graph spectra: Laplacians, the waves of a graph, filters, and what the waves do not define."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import networkx as nx
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from torchtheory.graphs.graph import Graph
from torchtheory.graphs.graph_reading import as_graph
from torchtheory.graphs.laplacians import graph_laplacian, laplacian, sphere_mean_excess
from torchtheory.graphs.relabeling import graph_equivariance
from torchtheory.graphs.spectral import (
    GraphFourier,
    cycle_fourier,
    graph_fourier,
    heat_diffusion,
    polynomial_filter,
    spectral_filter,
)
from torchtheory.labs.engine import Run, lab
from torchtheory.labs.graphs.graph_layers import random_graph
from torchtheory.labs.nets.comparing import gap


@lab(
    "graph-spectra",
    room="graphs",
    covers=["N-110", "N-111", "N-112", "N-113", "N-114"],
    errata=["graph-convolution-depends-on-the-basis"],
    title="The waves of a graph: filters are defined by it, convolution is not",
    full={"nodes": 120, "degree": 6},
    least={"nodes": 12, "degree": 1},
    most={"degree": 8},
)
def graph_spectra(run: Run, nodes: int = 24, degree: int = 3) -> None:
    """Laplacians of functions and of graphs, Fourier transforms, and filters with and without them.

    The mean of a function over a small sphere exceeds its value by the Laplacian, up to the fourth
    power of the radius; the Laplacian of a path is minus the second derivative. On a cycle the waves
    can be chosen so that convolution is the usual one, but the graph does not choose them, and other
    waves give another product. Filters do not depend on that choice. Polynomial ones see only so many
    edges far and need no waves at all; the heat kernel is the exponential of the Laplacian.

    Args:
        nodes: of the graphs.
        degree: of the polynomial filters.
    """
    graph = random_graph(run, nodes)
    spheres(run)
    laplacians(run, graph)
    second_derivative(run)
    transforms(run, graph)
    filters(run, graph)
    polynomials(run, graph, degree)
    pictures(run, degree)


def spheres(run: Run) -> None:
    """N-110: the Laplacian as a mean over small spheres."""
    radii = torch.tensor([0.4, 0.2, 0.1, 0.05], dtype=torch.float64)
    point = 0.5 * run.randn(1, 3)
    direction = run.randn(3)

    def smooth(x: Tensor) -> Tensor:
        values: Tensor = (x @ direction / direction.norm()).exp()
        return values

    def kinked(x: Tensor) -> Tensor:
        values: Tensor = smooth(x) + 30 * torch.linalg.vector_norm(x - point, dim=1) ** 3
        return values

    def errors(f: Callable[[Tensor], Tensor]) -> list[float]:
        exact = laplacian(smooth, point)  # the kinked one's second derivatives are the same there
        return [
            gap(sphere_mean_excess(f, point, float(r), draws=20, generator=run.seed), r**2 / 6 * exact) for r in radii
        ]

    says = run.states("N-110", r"\frac1{|S_r|}\int_{S_r(x)}f-f(x)-\frac{r^2}{2d}\Delta f(x)\sim r^4")
    says.slope(radii, errors(smooth), 4.0, 0.1, against=(2.0, 3.0, 5.0), where="d = 3, a plane exponential")
    says.fails("third derivatives that jump", radii, errors(kinked))
    x = run.randn(20, 2)
    says = run.states("N-110", r"f\text{ harmonic}:\ \Delta f=0")

    def wave(frequency: float) -> Tensor:
        return laplacian(lambda x: x[:, 0].exp() * (frequency * x[:, 1]).cos(), x)

    says.equal(wave(1.0), within=1e-11, where="exp(x) cos(y) at random points")
    says.fails("exp(x) cos(2 y)", wave(2.0))


def laplacians(run: Run, graph: Graph) -> None:
    """N-111: graph Laplacians."""
    x = run.randn(graph.nodes)
    L, one = graph_laplacian(graph), torch.ones(graph.nodes, dtype=torch.float64)
    looped = graph_laplacian(graph).dense() + torch.eye(graph.nodes)
    along_edges = sum(float((x[i] - x[j]) ** 2) for i, j in graph.to_networkx().edges)
    says = run.states("N-111", r"x^\top Lx=\sum_{\{i,j\}\in E}(x_i-x_j)^2")
    says.equal(float(x @ (L @ x)), along_edges, within=1e-12)
    says.fails("degrees with a loop, as for a GCN", float(x @ looped @ x))
    says = run.states("N-111", r"L\mathbf 1=0")
    says.equal(L @ one, within=1e-12)
    says.fails("degrees with a loop, as for a GCN", looped @ one)
    parts = [nx.cycle_graph(6), nx.complete_graph(4), nx.path_graph(3), nx.empty_graph(2)]
    several = [nx.disjoint_union_all(parts[: k + 1]) for k in range(4)]

    def zeros(g: nx.Graph) -> list[int]:
        return [int((graph_fourier(g, normalized=n).frequencies < 1e-9).sum()) for n in (False, True)]

    says = run.states("N-111", r"\dim\ker L=\dim\ker\tilde L=\text{number of components}")
    says.equal([n for g in several for n in zeros(g)], [1, 1, 2, 2, 3, 3, 5, 5], where="single nodes among them")
    joined = [nx.compose(g, nx.path_graph(len(g))) for g in several]
    says.fails("a path through all of them", [n for g in joined for n in zeros(g)])
    pair = nx.disjoint_union(nx.path_graph(2), parts[1])
    bipartite = [nx.cycle_graph(8), nx.star_graph(5), nx.balanced_tree(2, 3), pair]
    says = run.states("N-111", r"\lambda_{\max}(\tilde L)=2\iff\text{a component is bipartite}")

    def largest(graphs: Sequence[Any]) -> list[float]:
        return [float(graph_fourier(g, normalized=True).frequencies[-1]) for g in graphs]

    says.equal(largest(bipartite), 2.0, within=1e-12, where="cycle of 8, star, tree, an edge beside a complete graph")
    odd = [nx.cycle_graph(7), nx.complete_graph(5), nx.wheel_graph(6), nx.disjoint_union(nx.cycle_graph(3), parts[1])]
    says.fails("odd cycles in every component", largest(odd))
    says = run.states("N-111", r"\lambda_{\max}(\tilde L)\le2")
    says.at_most(largest([graph, *bipartite, *odd]), 2.0, within=1e-12)
    says.fails("not divided by degrees", [float(graph_fourier(g).frequencies[-1]) for g in (graph, *bipartite, *odd)])


def second_derivative(run: Run) -> None:
    """N-111: the path."""
    sizes = torch.tensor([20, 40, 80, 160])
    phase = float(run.rand(1))

    def errors(where: slice) -> list[float]:
        found = []
        for n in sizes.tolist():
            t = torch.linspace(0, 1, n, dtype=torch.float64)
            f, second = (3 * t + phase).sin(), -9 * (3 * t + phase).sin()
            step = 1 / (n - 1)
            found.append(float(((graph_laplacian(nx.path_graph(n)) @ f) / step**2 + second)[where].abs().max()))
        return found

    says = run.states("N-111", r"(Lf)_i/h^2+f''(t_i)\sim h^2")
    says.slope(1 / (sizes - 1).double(), errors(slice(1, -1)), 2.0, 0.1, against=(1.0, 3.0), where="a path, inside")
    says.fails("the two ends, where a neighbor is missing", 1 / (sizes - 1).double(), errors(slice(0, None)))


def flipped(run: Run, fourier: GraphFourier) -> GraphFourier:
    """Another basis of eigenvectors: signs at random, eigenspaces turned at random."""
    basis = fourier.basis * run.signs(len(fourier.frequencies))
    start = 0
    for end in range(1, len(fourier.frequencies) + 1):
        if end == len(fourier.frequencies) or fourier.frequencies[end] - fourier.frequencies[start] > 1e-8:
            turn = torch.linalg.qr(run.randn(end - start, end - start)).Q
            basis[:, start:end] = basis[:, start:end] @ turn
            start = end
    return GraphFourier(fourier.graph, fourier.frequencies, basis)


def transforms(run: Run, graph: Graph) -> None:
    """N-112: the Fourier transform, and the convolution that needs more than the graph."""
    fourier = graph_fourier(graph)
    x, y, z = run.randn(3, graph.nodes)
    says = run.states("N-112", r"\|U^\top x\|=\|x\|,\ UU^\top x=x")

    def kept(waves: GraphFourier) -> list[float]:
        there = waves.transform(x)
        return [abs(float(there.norm() - x.norm())), gap(waves.inverse(there), x)]

    says.equal(kept(fourier), within=1e-11)
    says.fails("the lowest half of the waves", kept(graph_fourier(graph, lowest=graph.nodes // 2)))
    says = run.states("N-112", r"x*y=y*x,\ (ax+z)*y=a(x*y)+z*y")

    def products(convolve: Callable[[Tensor, Tensor], Tensor]) -> list[float]:
        bent = convolve(2 * x + z, y) - 2 * convolve(x, y) - convolve(z, y)
        return [gap(convolve(x, y), convolve(y, x)), float(bent.abs().max())]

    says.equal(products(fourier.convolve), within=1e-11)

    def squared(x: Tensor, y: Tensor) -> Tensor:
        return fourier.inverse(fourier.transform(x) ** 2 * fourier.transform(y))

    says.fails("the first transform squared", products(squared))
    cycle = cycle_fourier(graph.nodes)
    circular = torch.fft.ifft(torch.fft.fft(x) * torch.fft.fft(y)).real / graph.nodes**0.5
    says = run.states("N-112", r"C_M,\ u_{mj}=e^{2\pi ijm/M}/\sqrt M:\ (x*y)_m=\tfrac1{\sqrt M}\sum_kx_ky_{m-k}")
    says.equal(gap(cycle.convolve(x, y).real, circular), within=1e-11)
    says.fails(
        "sines and cosines, waves of the cycle as well", gap(graph_fourier(cycle.graph).convolve(x, y), circular)
    )
    printed = r"x*y\text{ is the same for every }U\text{ with }L=U\Lambda U^\top"
    run.refutes("graph-convolution-depends-on-the-basis", printed).equal(
        gap(fourier.convolve(x, y), flipped(run, fourier).convolve(x, y)),
        within=1e-11,
        where="signs of the eigenvectors drawn at random",
    )


def filters(run: Run, graph: Graph) -> None:
    """N-113: filters."""
    x = run.randn(graph.nodes, 3)
    cycle = as_graph(nx.cycle_graph(graph.nodes))  # every eigenspace but two has two dimensions
    bases = [graph_fourier(graph), graph_fourier(cycle)]

    def low_pass(frequencies: Tensor) -> Tensor:
        return 1 / (1 + frequencies)

    def by_place(frequencies: Tensor) -> Tensor:
        return torch.linspace(1, 0, len(frequencies), dtype=torch.float64)

    def moved(response: Callable[[Tensor], Tensor], waves: GraphFourier) -> float:
        return gap(waves.filter(response, x), flipped(run, waves).filter(response, x))

    says = run.states("N-113", r"U g(\Lambda)U^\top x\text{ is the same for every }U")
    says.equal([moved(low_pass, f) for f in bases], within=1e-11, where="a random graph, a cycle")
    says.fails("gains that differ within an eigenspace, on the cycle", [moved(by_place, bases[1])] * 2)
    L = graph_laplacian(graph)
    says = run.states("N-113", r"g(L)\,L=L\,g(L)")
    filtered = spectral_filter(graph, low_pass, x)
    says.equal(gap(spectral_filter(graph, low_pass, L @ x), L @ filtered), within=1e-11)
    other = graph_laplacian(cycle)
    says.fails("the Laplacian of another graph", gap(spectral_filter(graph, low_pass, other @ x), other @ filtered))

    def equivariance(response: Callable[[Tensor], Tensor], on: Graph) -> float:
        found = graph_equivariance(
            lambda x, g: spectral_filter(g, response, x), x, on, orders=4, generator=run.generator
        )
        return found.largest

    says = run.states("N-113", r"g(PLP^\top)Px=P\,g(L)x")
    says.equal([equivariance(low_pass, g) for g in (graph, cycle)], within=1e-11, where="a random graph, a cycle")
    says.fails("gains that differ within an eigenspace, on the cycle", [equivariance(by_place, cycle)] * 2)
    heat = torch.matrix_exp(-0.5 * L.dense()) @ x
    says = run.states("N-113", r"g(\lambda)=e^{-t\lambda}:\ g(L)=e^{-tL}\text{, the heat kernel}")

    def heated(normalized: bool) -> list[float]:
        by_waves = spectral_filter(graph, lambda f: (-0.5 * f).exp(), x, normalized=normalized)
        return [gap(by_waves, heat), gap(heat_diffusion(graph, x, 0.5, normalized=normalized), heat)]

    says.equal(heated(False), within=1e-11, where="by eigenvectors, and by products alone")
    says.fails("the normalized Laplacian", heated(True))


def polynomials(run: Run, graph: Graph, degree: int) -> None:
    """N-114: polynomial filters."""
    alpha = run.randn(degree + 1) * 0.3 ** torch.arange(degree + 1)
    impulses = torch.eye(graph.nodes, dtype=torch.float64)

    def powers(frequencies: Tensor) -> Tensor:
        return (alpha * frequencies.unsqueeze(-1) ** torch.arange(degree + 1)).sum(-1)

    says = run.states("N-114", r"\sum_k\alpha_kL^kx=U\Big(\sum_k\alpha_k\Lambda^k\Big)U^\top x")
    by_products = polynomial_filter(graph, alpha, impulses)
    says.equal(gap(by_products, spectral_filter(graph, powers, impulses)), within=1e-10)
    says.fails("a coefficient left out", gap(polynomial_filter(graph, alpha[:-1], impulses), by_products))
    path = as_graph(nx.path_graph(graph.nodes))
    says = run.states("N-114", r"\mathrm{dist}(i,j)>K:\ \Big(\sum_{k\le K}\alpha_kL^k\Big)_{ij}=0")

    def beyond(matrix: Tensor, on: Graph) -> float:
        return float(matrix[on.distances() > degree].abs().max())

    says.equal(beyond(polynomial_filter(path, alpha, impulses), path), where="a path, exactly")
    says.fails("the heat kernel, which is no polynomial", beyond(heat_diffusion(path, impulses, 1.0), path))
    cycle = as_graph(nx.cycle_graph(graph.nodes))

    def against_taps(on: Graph) -> list[float]:
        """Is it the circular convolution with its answer to one impulse, even, and how long is that?"""
        matrix = polynomial_filter(on, alpha, impulses)
        taps = matrix[:, 0]
        shifted = torch.stack([taps.roll(k) for k in range(on.nodes)], 1)
        return [gap(matrix, shifted), gap(taps, taps.flip(0).roll(1))]

    says = run.states("N-114", r"C_M:\ \text{a circular convolution with }h_{-j}=h_j")
    says.equal(against_taps(cycle), within=1e-11)
    says.fails("a path, which has ends", against_taps(path))
    longest = [int((polynomial_filter(g, alpha, impulses)[:, g.nodes // 2].abs() > 1e-12).sum()) for g in (cycle,)]
    says = run.states("N-114", r"C_M:\ 2K+1\text{ taps from }K+1\text{ numbers}")
    says.equal(longest, 2 * degree + 1)
    grown = heat_diffusion(cycle, impulses, 1.0)[:, 0]
    says.fails("the heat kernel, which is no polynomial", int((grown.abs() > 1e-12).sum()))
    sizes = [graph.nodes * 2**k for k in range(4)]

    def work(filtered: Callable[[Graph, Tensor], Tensor]) -> list[int]:
        """Entries of matrices that a filter of one signal multiplies with, on longer and longer cycles."""
        found = []
        for size in sizes:
            on, x = as_graph(nx.cycle_graph(size)), torch.ones(size, 1, dtype=torch.float64)
            with Multiplied() as counted:
                filtered(on, x)
            found.append(counted.entries)
        return found

    says = run.states("N-114", r"C_M:\ K\text{ products with the }3M\text{ entries of }L,\text{ no eigenvectors}")
    says.equal(work(lambda on, x: polynomial_filter(on, alpha, x)), [3 * degree * m for m in sizes])
    says.fails("by eigenvectors, with $M^2$ entries", work(lambda on, x: spectral_filter(on, powers, x)))


class Multiplied(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the entries of the left factors of matrix products, those of sparse ones only if stored."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            left = args[0 if func.overloadpacket is torch.ops.aten.mm else 1]
            self.entries += len(left.values()) if left.layout is torch.sparse_csr else left.numel()
        return func(*args, **(kwargs or {}))


def pictures(run: Run, degree: int) -> None:
    width = 36
    near = [[0.5 if i == j else 0.03 for j in range(3)] for i in range(3)]
    blocks = nx.stochastic_block_model([12, 12, 12], near, seed=run.seed)
    for path in ((0, 12, 24), range(12), range(12, 24), range(24, 36)):
        nx.add_path(blocks, path)  # connected, whatever was drawn
    waves = graph_fourier(blocks)
    ring = as_graph(nx.cycle_graph(width))
    impulse = torch.eye(width, dtype=torch.float64)[width // 2]
    warm = [heat_diffusion(ring, impulse, t) for t in (0.5, 4.0, 30.0)]
    local = polynomial_filter(ring, [(-1.0) ** k / 4**k for k in range(degree + 1)], impulse)

    def plot(axes: Any) -> None:
        waves.plot(axes[0, 0])
        axes[0, 0].set_title("three communities")
        axes[0, 1].plot(waves.frequencies, "o", ms=3)
        axes[0, 1].set(xlabel="number", ylabel="eigenvalue", title="three low frequencies, then a gap")
        for t, w in zip((0.5, 4, 30), warm, strict=True):
            axes[0, 2].plot(w, label=f"heat after {t}")
        axes[0, 2].plot(local, "k--", lw=1, label=f"polynomial of degree {degree}")
        axes[0, 2].set(xlabel="node of a cycle", title="one impulse, filtered")
        axes[0, 2].legend()

    run.figure(
        "waves", plot, grid=(1, 3), caption="Eigenvectors place the communities; filters spread an impulse on a cycle."
    )
