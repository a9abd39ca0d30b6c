r"""An architecture as a graph and as a drawing: a node a neuron, an edge a weight that is not 0.

For $\Phi=((W^{[1]},b^{[1]}),\dots,(W^{[L]},b^{[L]}))$ with widths
$d=n_0,n_1,\dots,n_L$ there are $N=d+\sum_jn_j$ nodes in $L+1$ columns and
$\sum_\ell\|W^{[\ell]}\|_0$ edges. Source: Mathematical Aspects of Deep Learning, section
3.1.1, Definition 3.1 and Figure 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from torch import nn

from torchtheory.core.errors import InvalidInput
from torchtheory.core.figure import COLORS
from torchtheory.nets.feedforward import affine_layers

#: More edges than that nobody can see, and no viewer opens them quickly.
MOST_EDGES = 20_000

Node = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ArchitectureGraph:
    r"""The neurons and non-zero weights of a chain of dense layers.

    Attributes:
        widths: $(n_0,\dots,n_L)$.
        edges: `((layer, neuron), (layer + 1, neuron), weight)`.
        weights_per_layer: $M_\ell=\|W^{[\ell]}\|_0+\|b^{[\ell]}\|_0$.
        activations: names of the activations between the layers.
    """

    widths: tuple[int, ...]
    edges: tuple[tuple[Node, Node, float], ...]
    weights_per_layer: tuple[int, ...]
    activations: tuple[str, ...]

    @property
    def neurons(self) -> int:
        r"""$N=d+\sum_{j=1}^Ln_j$, inputs and outputs among them."""
        return sum(self.widths)

    @property
    def layers(self) -> int:
        """$L$, the number of affine maps."""
        return len(self.widths) - 1

    @property
    def weights(self) -> int:
        r"""$M=\sum_\ell M_\ell$."""
        return sum(self.weights_per_layer)

    @property
    def width(self) -> int:
        r"""$\max(n_1,\dots,n_{L-1})$; 0 without hidden layers."""
        return max(self.widths[1:-1], default=0)

    def positions(self) -> dict[Node, tuple[float, float]]:
        """A place for each neuron: columns left to right, each centered; distance 1 apart."""
        return {
            (layer, j): (float(layer), (n - 1) / 2 - j)
            for layer, n in enumerate(self.widths)
            for j in range(n)
        }


def architecture_graph(network: nn.Sequential) -> ArchitectureGraph:
    """The graph of a network of dense layers with activations between them.

    >>> from torchtheory.nets.feedforward import mlp
    >>> graph = architecture_graph(mlp([4, 5, 3]))
    >>> graph.neurons, graph.weights, graph.layers, graph.width, len(graph.edges)
    (12, 43, 2, 5, 35)
    """
    maps, between = affine_layers(network)
    edges: list[tuple[Node, Node, float]] = []
    for layer, (weight, _) in enumerate(maps):
        for target, source in weight.nonzero().tolist():
            edges.append(((layer, source), (layer + 1, target), float(weight[target, source])))
    return ArchitectureGraph(
        (maps[0][0].shape[1], *(len(weight) for weight, _ in maps)),
        tuple(edges),
        tuple(int(w.count_nonzero() + b.count_nonzero()) for w, b in maps),
        tuple(type(m).__name__ for m in between),
    )


def draw_architecture(network: nn.Sequential, *, height: float = 320.0) -> str:
    """The network as an SVG drawing that needs nothing else.

    Circles are neurons (inputs, hidden, outputs in three colors); lines are weights that are not
    0, blue where positive and orange where negative, wider for larger ones.

    >>> from torchtheory.nets.feedforward import mlp
    >>> picture = draw_architecture(mlp([4, 5, 3]))
    >>> picture.count("<circle"), picture.count("<line")
    (12, 35)
    """
    graph = architecture_graph(network)
    if len(graph.edges) > MOST_EDGES:
        raise InvalidInput(
            f"{len(graph.edges)} weights are too many to draw; at most {MOST_EDGES} can be seen"
        )
    if not height > 0:
        raise InvalidInput(f"height must be a positive number, not {height!r}")
    spacing = height / (max(graph.widths) + 1)
    column = height * 0.6
    size = min(0.35 * spacing, 14.0)
    width = column * graph.layers + 6 * size
    places = {
        node: (3 * size + column * x, (height / 2) - spacing * y)
        for node, (x, y) in graph.positions().items()
    }
    largest = max((abs(w) for *_, w in graph.edges), default=1.0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.1f} {height:.1f}" '
        f'width="{width:.0f}" height="{height:.0f}">',
        f"<title>{escape(_words(graph))}</title>",
    ]
    for start, end, weight in graph.edges:
        (x1, y1), (x2, y2) = places[start], places[end]
        stroke = 0.4 + 1.4 * abs(weight) / largest
        parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
            f'stroke="{COLORS[0] if weight > 0 else COLORS[1]}" stroke-width="{stroke:.2f}" '
            'stroke-opacity="0.7"/>'
        )
    for (layer, _), (x, y) in places.items():
        fill = COLORS[2] if layer == 0 else COLORS[3] if layer == graph.layers else "#ffffff"
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}" fill="{fill}" stroke="#000000"/>'
        )
    return "\n".join([*parts, "</svg>"])


def _words(graph: ArchitectureGraph) -> str:
    chain = ", ".join(str(n) for n in graph.widths)
    return (
        f"({chain}): {graph.neurons} neurons, {graph.layers} layers, {graph.weights} weights "
        "and biases that are not 0"
    )
