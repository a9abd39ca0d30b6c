"""Layers on graphs: what they share under relabeling, what they count, what keeps them bounded."""

from __future__ import annotations

from collections.abc import Callable

import networkx as nx
import torch
from torch import Tensor, nn

from torchtheory.core.random import numpy_generator
from torchtheory.graphs.convolutions import (
    GCN,
    ChebyshevConvolution,
    GraphConvolution,
    GraphIsomorphism,
    PolynomialGraphConvolution,
)
from torchtheory.graphs.graph import Graph
from torchtheory.graphs.graph_attention import GraphAttention
from torchtheory.graphs.graph_reading import as_graph
from torchtheory.graphs.laplacians import gcn_coupling, graph_laplacian
from torchtheory.graphs.message_passing import MessagePassing, pooled_nodes
from torchtheory.graphs.relabeling import graph_equivariance
from torchtheory.labs.engine import Run, lab
from torchtheory.labs.nets.comparing import gap
from torchtheory.nets.feedforward import drawn_linear

OnGraphs = Callable[[Tensor, Graph], Tensor]


@lab(
    "graph-layers",
    room="graphs",
    covers=["N-101", "N-102", "N-103", "N-104", "N-108", "N-115"],
    errata=[
        "equivariance-on-graphs-turned-around",
        "coupling-norm-bounds-activations",
        "coupling-weights-are-equal",
        "channels-summed-to-the-number-of-nodes",
    ],
    title="Layers on graphs: equivariant, blind to some things, and bounded with their weights",
    full={"nodes": 200, "width": 16},
    least={"nodes": 8, "width": 2},
)
def graph_layers(run: Run, nodes: int = 24, width: int = 4) -> None:
    """Message passing and its special cases, and the matrices that couple nodes.

    All layers commute with relabeling the nodes; a dense layer on the adjacency matrix does not.
    Sums over neighbors count them, means and maxima do not. The GCN's coupling matrix has norm 1, is
    known in closed form on cycles and complete graphs, and keeps activations bounded if the weights
    do. Attention's coefficients are a distribution over neighbors; without its vector u they are
    equal, which those of a GCN are not.

    Args:
        nodes: of the random graphs.
        width: numbers of features.
    """
    graph = random_graph(run, nodes)
    relabeling(run, graph, width)
    message_passing(run, graph, width)
    coupling(run, nodes)
    bounded(run, graph, width)
    attention(run, graph, width)
    channels(run, graph, width)


def random_graph(run: Run, nodes: int) -> Graph:
    """Connected, irregular: a random graph on top of a path."""
    drawn = nx.gnp_random_graph(nodes, 4 / nodes, seed=numpy_generator(run.generator))
    nx.add_path(drawn, range(nodes))
    return as_graph(drawn)


def layers(run: Run, width: int) -> list[nn.Module]:
    source = run.generator
    return [
        GCN([width, 2 * width, 3], generator=source),
        GraphAttention(width, 3, heads=2, generator=source),
        GraphIsomorphism(nn.Sequential(drawn_linear(width, 3, generator=source), nn.Tanh()), epsilon=0.3),
        ChebyshevConvolution(width, 3, 3, generator=source),
        PolynomialGraphConvolution(width, 3, 3, generator=source),
        MessagePassing(nn.Tanh(), torch.sub, "sum"),
        MessagePassing(nn.Tanh(), torch.sub, "mean"),
        MessagePassing(nn.Tanh(), torch.sub, "max"),
    ]


def relabeling(run: Run, graph: Graph, width: int) -> None:
    """N-101: relabeled nodes, relabeled outputs."""
    x = run.randn(graph.nodes, width)
    made = layers(run, width)
    dense = drawn_linear(graph.nodes**2, graph.nodes, generator=run.generator)

    def flattened(x: Tensor, adjacency: Tensor) -> Tensor:
        added: Tensor = dense(adjacency.flatten())
        return x + added.unsqueeze(1)

    says = run.states("N-101, N-102, N-104, N-108, N-115", r"f(PX,PAP^\top)=Pf(X,A)")
    says.equal(
        [graph_equivariance(f, x, graph, generator=run.generator).largest for f in made],
        within=1e-12,
        where="relative, GCN, GAT, GIN, Chebyshev, polynomial, sum, mean, max",
    )
    broken = graph_equivariance(flattened, x, graph, takes="adjacency", generator=run.generator)
    says.fails("a dense layer on the flattened adjacency matrix", broken.largest)

    def invariance(read: OnGraphs) -> list[float]:
        return [
            graph_equivariance(
                lambda x, g, f=f: read(f(x, g), g),
                x,
                graph,
                invariant=True,
                generator=run.generator,
            ).largest
            for f in made
        ]

    says = run.states("N-101", r"f(PX,PAP^\top)=f(X,A)")
    says.equal(invariance(lambda y, g: pooled_nodes(y, g, "sum")), within=1e-11, where="outputs summed over nodes")
    says.fails("the output of the first node", invariance(lambda y, g: y[:1]))
    order = [*range(1, graph.nodes), 0]
    run.refutes("equivariance-on-graphs-turned-around", r"f(X,A)=Pf(PX,PAP^\top)").equal(
        [gap(f(x, graph), f(x[order], graph.relabeled(order))[order]) for f in made],
        within=1e-12,
        where="P a cyclic shift of the nodes",
    )


def message_passing(run: Run, graph: Graph, width: int) -> None:
    """N-102: isomorphic graphs, what is counted, special cases."""
    x = run.randn(graph.nodes, width)
    net = GCN([width, 2 * width, 3], generator=run.generator)
    order = torch.randperm(graph.nodes, generator=run.generator)

    def sorted_rows(y: Tensor) -> Tensor:
        return y[y[:, 0].argsort()]

    moved = moved_edge(graph)
    says = run.states("N-102", r"G\cong H:\ \{\{\xi_m\}\}_G=\{\{\xi_m\}\}_H")
    says.equal(
        gap(sorted_rows(net(x, graph)), sorted_rows(net(x[order], graph.relabeled(order)))),
        within=1e-11,
        where="features carried over",
    )
    says.fails("one edge moved", gap(sorted_rows(net(x, graph)), sorted_rows(net(x, moved))))
    leaf = run.rand(1, width).expand(4, width)

    def counted(how: str) -> float:
        layer = MessagePassing(aggregate=how)  # type: ignore[arg-type]
        return gap(layer(leaf[:3], nx.star_graph(2))[0], layer(leaf, nx.star_graph(3))[0])

    says = run.states("N-102", r"\text{mean and max: two or three equal leaves give the same}")
    says.equal([counted("mean"), counted("max")], within=1e-12, where="stars, all features equal")
    says.fails("the sum", [counted("sum")] * 2)
    layer = GraphConvolution(width, 3, generator=run.generator)
    weighted = as_graph(gcn_coupling(graph).dense())
    as_messages = MessagePassing(layer.linear)
    says = run.states("N-102, N-104", r"\bar AXW:\ \psi(x)=W^\top x\text{, weights }\bar a_{nm}")
    says.equal(gap(layer(x, graph), as_messages(x, weighted)), within=1e-12)
    says.fails("weights 1", gap(layer(x, graph), as_messages(x, graph)))
    gat = GraphAttention(width, 3, generator=run.generator)
    values = MessagePassing(lambda x: x @ gat.values.T)

    def by_messages(features: Tensor) -> float:
        learned = as_graph(gat.attention(features, graph)[0].detach().T)
        return gap(gat(x, graph), values(x, learned))

    says = run.states("N-102, N-108", r"QXV^\top:\ \psi(x)=Vx\text{, weights }q_{mn}(X)")
    says.equal(by_messages(x), within=1e-12)
    says.fails("weights at other features", by_messages(run.randn(graph.nodes, width)))
    weights = dict(net.named_parameters())
    mlp = (x @ weights["layers.0.linear.weight"].T).relu() @ weights["layers.1.linear.weight"].T
    says = run.states("N-104", r"E=\emptyset:\ \bar A(\bar AXW_0)_+W_1=(XW_0)_+W_1")
    says.equal(gap(net(x, torch.zeros(graph.nodes, graph.nodes)), mlp), within=1e-12)
    says.fails("edges", gap(net(x, graph), mlp))


def moved_edge(graph: Graph) -> Graph:
    """The same number of edges, one of them elsewhere."""
    drawn = graph.to_networkx()
    elsewhere = next(iter(nx.non_edges(drawn)))
    drawn.remove_edge(*next(iter(drawn.edges)))
    drawn.add_edge(*elsewhere)
    return as_graph(drawn)


def coupling(run: Run, nodes: int) -> None:
    """N-103: the coupling matrix."""
    even = nodes + nodes % 2
    waves = (1 + 2 * (2 * torch.pi * torch.arange(even, dtype=torch.float64) / even).cos()) / 3
    graphs = [random_graph(run, nodes), as_graph(nx.star_graph(nodes - 1)), as_graph(nx.cycle_graph(even))]

    def spectrum(graph: Graph) -> Tensor:
        found: Tensor = torch.linalg.eigvalsh(gcn_coupling(graph).dense())
        return found

    def printed(graph: Graph, added: float, loop: float) -> Tensor:
        """With another diagonal in A or in D."""
        roots = (graph.degrees() + added).rsqrt()
        looped = graph.adjacency() + loop * torch.eye(graph.nodes, dtype=torch.float64)
        found: Tensor = torch.linalg.eigvalsh(roots[:, None] * looped * roots)
        return found

    says = run.states("N-103", r"C_M:\ \lambda_j=\tfrac13(1+2\cos\tfrac{2\pi j}M)")
    says.equal(spectrum(graphs[2]), waves.sort().values, within=1e-12, where=f"M = {even}")
    says.fails("degrees without the loop", printed(graphs[2], 0.0, 1.0))
    complete = gcn_coupling(nx.complete_graph(nodes)).dense()
    says = run.states("N-103", r"K_M:\ \bar A=\mathbf 1\mathbf 1^\top/M")
    says.equal(complete.flatten(), 1 / nodes, within=1e-12)
    missing = nx.complete_graph(nodes)
    missing.remove_edges_from([(i, (i + 1) % nodes) for i in range(nodes)])
    says.fails("a cycle of edges removed", gcn_coupling(missing).dense().flatten())
    says = run.states("N-103", r"\|\bar A\|_2\le1")
    says.at_most([float(spectrum(g).abs().max()) for g in graphs], 1.0, within=1e-12, where="random, star, cycle")
    says.fails("degrees without the loop", [float(printed(g, 0.0, 1.0).abs().max()) for g in graphs])
    says = run.states("N-103", r"1+\lambda_{\min}(\bar A)\ge2/\max_md_m")
    promised = [2 / (1 + float(g.degrees().max())) for g in graphs]
    says.at_least([1 + float(spectrum(g).min()) for g in graphs], promised, within=1e-12, where="d with the loop")
    bipartite = [as_graph(g) for g in (nx.path_graph(nodes), nx.star_graph(nodes - 1), nx.cycle_graph(even))]
    says.fails("no loops, on bipartite graphs", [1 + float(printed(g, 0.0, 0.0).min()) for g in bipartite])
    says = run.states("N-103", r"\bar AD^{1/2}\mathbf 1=D^{1/2}\mathbf 1")

    def moved_by(root: Callable[[Tensor], Tensor]) -> list[float]:
        vectors = [root(1 + g.degrees()) for g in graphs[:2]]
        return [gap(gcn_coupling(g) @ v, v) for g, v in zip(graphs[:2], vectors, strict=True)]

    says.equal(moved_by(torch.sqrt), within=1e-12)
    says.fails("the constant vector, where degrees differ", moved_by(torch.ones_like))
    parts = [nx.cycle_graph(5), nx.star_graph(4), nx.path_graph(3), nx.empty_graph(2)]
    several = [nx.disjoint_union_all(parts[: k + 1]) for k in range(4)]

    def ones(graph: nx.Graph) -> int:
        return int((spectrum(as_graph(graph)) > 1 - 1e-9).sum())

    says = run.states("N-103", r"\dim\ker(I-\bar A)=\text{number of components}")
    says.equal(
        [ones(g) for g in several], [1, 2, 3, 5], where="a cycle, a star, a path, two single nodes, added in turn"
    )
    joined = [nx.compose(g, nx.path_graph(len(g))) for g in several]
    says.fails("a path through all of them", [ones(g) for g in joined])


def bounded(run: Run, graph: Graph, width: int) -> None:
    """N-103: activations stay bounded if the weights do."""
    depth = 12
    start = (1 + graph.degrees()).sqrt().unsqueeze(1) * torch.ones(1, width, dtype=torch.float64)
    starts = [start, run.randn(graph.nodes, width)]

    def norms(scale: float) -> list[float]:
        found = []
        for x in starts:
            net = GCN([width] * (depth + 1), bias=False, generator=run.generator)
            with torch.no_grad():
                for weight in net.parameters():
                    weight.copy_(scale * torch.eye(width))
            found.append(float(net(x, graph).detach().norm() / x.norm()))
        return found

    says = run.states("N-103", r"\|W_\ell\|_2\le1:\ \|X_k\|_F\le\|X_0\|_F")
    says.at_most(norms(1.0), 1.0, within=1e-12, where=f"{depth} layers with ReLU, the limit of smoothing and random")
    says.fails("weights of norm 1.5", norms(1.5)[:1] * 2)
    run.refutes("coupling-norm-bounds-activations", r"\|X_k\|_F\le\|X_0\|_F\text{ as }\|\bar A\|_2\le1").at_most(
        norms(1.5)[0], 1.0, where=f"{depth} layers with ReLU and W = 1.5 I"
    )


def attention(run: Run, graph: Graph, width: int) -> None:
    """N-108: attention over neighbors."""
    x = run.randn(graph.nodes, width)
    features = run.randn(graph.edges.shape[1], 2)
    featured = as_graph(graph.edges, nodes=graph.nodes, edge_features=features)
    gat = GraphAttention(width, 3, heads=2, edge_features=2, loops=False, generator=run.generator)
    off = graph.adjacency() == 0

    def by_hand(along: Tensor) -> Tensor:
        """The definition, with a dense softmax."""
        found = []
        for h in range(gat.heads):
            projected = x @ gat.projections()[h].T
            scores = (projected @ gat.receiving[h]).unsqueeze(1) + projected @ gat.sending[h]
            j, i = graph.edges
            extra = torch.zeros_like(scores).index_put((i, j), features @ along[h])
            masked = nn.functional.leaky_relu(scores + extra, 0.2).masked_fill(off, -torch.inf)
            found.append(masked.softmax(1))
        return torch.stack(found)

    assert gat.along is not None
    Q = gat.attention(x, featured)
    says = run.states("N-108", r"q_{ij}=\mathrm{softmax}_{j\in N(i)}\,\rho(u^\top[Vx_i,Vx_j,x_{ij}])")
    says.equal(gap(Q, by_hand(gat.along)), within=1e-12)
    says.fails("edge features left out", gap(Q, by_hand(torch.zeros_like(gat.along))))
    plain = GraphAttention(width, 3, loops=False, generator=run.generator)
    everyone = torch.ones(graph.nodes, graph.nodes) - torch.eye(graph.nodes)
    says = run.states("N-108", r"q_{ij}=0\text{ off the graph},\ \sum_{j\in N(i)}q_{ij}=1")

    def outside(on: object) -> list[float]:
        q = plain.attention(x, on)[0]
        return [gap(q[off], torch.zeros(1)), gap((q * ~off).sum(1), torch.ones(graph.nodes))]

    says.equal(outside(graph), within=1e-12)
    says.fails("a softmax over all nodes", outside(everyone))
    flat = GraphAttention(width, 3, bias=False, generator=run.generator)
    means = MessagePassing(lambda x: x @ flat.values.T, aggregate="mean")
    looped = graph.adjacency() + torch.eye(graph.nodes)
    says = run.states("N-108", r"u=0:\ \xi_i=\tfrac1{|N(i)|}\sum_{j\in N(i)}Vx_j")
    learned = gap(flat(x, graph), means(x, looped))
    with torch.no_grad():
        flat.receiving.zero_()
        flat.sending.zero_()
    says.equal(gap(flat(x, graph), means(x, looped)), within=1e-12, where="the node itself among its neighbors")
    says.fails("u not 0", learned)
    path = gcn_coupling(nx.path_graph(4)).dense()
    run.refutes("coupling-weights-are-equal", r"\bar a_{mn}=\bar a_{mn'}\text{ for neighbors }n,n'").equal(
        float(path[1, 0]), float(path[1, 2]), within=1e-12, where="the second node of a path of four"
    )


def channels(run: Run, graph: Graph, width: int) -> None:
    """N-115: many channels, polynomials of the Laplacian between them."""
    degree, outputs = 3, 5
    layer = PolynomialGraphConvolution(width, outputs, degree, normalized=False, generator=run.generator)
    with torch.no_grad():
        layer.bias.copy_(run.randn(outputs))
        layer.coefficients.mul_(torch.tensor([1.0, 0.1, 0.01, 0.001]))  # powers of L grow
    x, y = run.randn(graph.nodes, width), run.randn(graph.nodes, width)
    L = graph_laplacian(graph).dense()
    powers = torch.stack([torch.linalg.matrix_power(L, k) for k in range(degree + 1)])

    def by_channel(features: Tensor, used: int) -> Tensor:
        filters = torch.einsum("mnk,kij->mnij", layer.coefficients, powers)
        return torch.einsum("mnij,jn->im", filters[:, :used], features[:, :used]) + layer.bias

    says = run.states("N-115", r"\xi_m=\sum_{n=1}^{N}p_{mn}(L)x_n+b_m\mathbf 1")
    says.equal(gap(layer(x, graph), by_channel(x, width)), within=1e-11)
    with torch.no_grad():
        normal = PolynomialGraphConvolution(width, outputs, degree, normalized=True)
        normal.load_state_dict(layer.state_dict())
    says.fails("the normalized Laplacian", gap(normal(x, graph), by_channel(x, width)))

    def bend(f: OnGraphs) -> float:
        return gap(f(x + y, graph) - f(x, graph) - f(y, graph) + f(torch.zeros_like(x), graph), torch.zeros(1))

    says = run.states("N-115", r"X\mapsto\Xi\text{ is affine}")
    says.equal(bend(layer), within=1e-11)
    says.fails("a ReLU behind it", bend(lambda x, g: layer(x, g).relu()))
    says = run.states("N-115", r"N_{out}N_{in}(K+1)+N_{out}\text{ parameters, whatever the graph}")
    says.equal(sum(p.numel() for p in layer.parameters()), outputs * width * (degree + 1) + outputs)
    says.fails(
        "a dense layer from all nodes", sum(p.numel() for p in drawn_linear(width * graph.nodes, outputs).parameters())
    )
    small = as_graph(nx.path_graph(width - 1))
    few = run.randn(width - 1, width)
    L = graph_laplacian(small).dense()
    powers = torch.stack([torch.linalg.matrix_power(L, k) for k in range(degree + 1)])
    run.refutes("channels-summed-to-the-number-of-nodes", r"\xi_m=\sum_{n=1}^Mp_{mn}(L)x_n+b_m\mathbf 1").equal(
        gap(layer(few, small), by_channel(few, width - 1)),
        within=1e-11,
        where=f"{width} channels on a path of M = {width - 1} nodes",
    )
