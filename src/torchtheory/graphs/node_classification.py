r"""Classes of nodes from a few that are known, $Y=\operatorname{softmax}(\bar A(\bar AXW_0)_+W_1)$.

Source: Deep Learning (notes), section 7.4; Kipf and Welling (2017).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.checks import (
    as_module,
    described,
    module_with_values,
    nonnegative_number,
    positive_number,
    whole_number,
)
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    LabelOutOfRange,
    ModelRaised,
    ShapeMismatch,
)
from torchtheory.core.foreign_code import ForeignCode
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.graphs.graph_reading import GraphSource, as_graph
from torchtheory.graphs.message_passing import check_features
from torchtheory.models.model import global_randomness_kept, one_output
from torchtheory.models.untouched import copied


@dataclass(frozen=True, slots=True)
class NodeFit:
    """A network trained on the nodes whose class is known.

    Attributes:
        network: the trained copy.
        losses: cross-entropy on the known nodes before each step, `[steps]`.
        predicted: classes of all nodes, `[M]`.
        known_accuracy: share of known nodes that are predicted right.
        other_accuracy: the same of the others; NaN if there are none.
    """

    network: nn.Module = field(repr=False)
    losses: Tensor = field(repr=False)
    predicted: Tensor = field(repr=False)
    known_accuracy: float
    other_accuracy: float


def fit_nodes(
    network: nn.Module,
    x: Tensor,
    graph: GraphSource,
    labels: Tensor,
    known: Tensor,
    *,
    steps: int = 200,
    rate: float = 0.01,
    decay: float = 5e-4,
    generator: RandomSource = None,
) -> NodeFit:
    r"""Train a network on graphs to classify nodes, by cross-entropy on those that are known.

    All nodes are seen at each step (the edges lead to those without a known class), and Adam
    moves the weights. The network that is given is not changed.

    Args:
        network: `network(x, graph)` gives one row of logits per node.
        x: features `[M, d]`.
        graph: anything that `as_graph` reads.
        labels: classes from 0, `[M]`; those of nodes that are not known only serve to score.
        known: which nodes are known: booleans `[M]`, or their numbers.
        steps: of training.
        rate: Adam's learning rate.
        decay: weight of the penalty $\frac12\lVert\theta\rVert^2$.
        generator: of what the network itself draws while it trains, such as dropout.

    Time: `steps` forward and backward passes.

    >>> import networkx as nx
    >>> from torchtheory.graphs.convolutions import GCN
    >>> two = nx.disjoint_union(nx.complete_graph(4), nx.complete_graph(4))
    >>> sides = torch.tensor([0] * 4 + [1] * 4)
    >>> fit = fit_nodes(GCN([8, 4, 2]), torch.eye(8).double(), two, sides, torch.tensor([0, 7]))
    >>> fit.other_accuracy
    1.0
    """
    module_with_values(network)
    graph = as_graph(graph)
    as_module(network, "network")
    check_features(x, graph, dimensions=2)
    whole_number(steps, "steps", least=1)
    positive_number(rate, "rate")
    nonnegative_number(decay, "decay")
    mask = _known(known, graph.nodes)
    if next(network.parameters(), None) is None:
        raise InvalidInput("the network has no parameters to train")
    trained = copied(network).eval()
    with torch.no_grad(), ForeignCode("the network", ModelRaised):
        outputs = one_output(trained(x, graph))
    trained.train()
    if outputs.ndim != 2 or len(outputs) != graph.nodes:
        raise ShapeMismatch(
            f"the network must give one row per node, [{graph.nodes}, classes], "
            f"not {list(outputs.shape)}"
        )
    labels = _labels(labels, graph.nodes, outputs.shape[1])
    optimizer = torch.optim.Adam(trained.parameters(), lr=rate, weight_decay=decay)
    losses = []
    with global_randomness_kept():
        torch.manual_seed(int(torch.randint(2**62, (1,), generator=as_generator(generator))))
        for _ in range(steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(trained(x, graph)[mask], labels[mask])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(float(loss.detach()))
    trained.eval()
    with torch.no_grad():
        predicted = trained(x, graph).argmax(1)
    right = (predicted == labels).double()
    others = float(right[~mask].mean()) if bool((~mask).any()) else math.nan
    curve = torch.tensor(losses, dtype=torch.float64)
    return NodeFit(trained, curve, predicted, float(right[mask].mean()), others)


def _known(known: Tensor, nodes: int) -> Tensor:
    if not isinstance(known, Tensor) or known.is_floating_point():
        raise InvalidType(
            f"known must be booleans [{nodes}] or numbers of nodes, not {described(known)}"
        )
    if known.dtype == torch.bool:
        if known.shape != (nodes,):
            raise ShapeMismatch(f"known must be booleans [{nodes}], not {list(known.shape)}")
        mask = known
    else:
        if known.numel() and not 0 <= int(known.min()) <= int(known.max()) < nodes:
            raise LabelOutOfRange(f"known must hold numbers of nodes from 0 to {nodes - 1}")
        mask = torch.zeros(nodes, dtype=torch.bool, device=known.device)
        mask[known.long()] = True
    if not bool(mask.any()):
        raise EmptyData("no node is known: at least one is needed to learn from")
    return mask


def _labels(labels: Tensor, nodes: int, classes: int) -> Tensor:
    if not isinstance(labels, Tensor) or labels.is_floating_point():
        raise InvalidType(f"labels must be whole numbers [{nodes}], not {described(labels)}")
    if labels.shape != (nodes,):
        raise ShapeMismatch(f"labels must be [{nodes}], one per node, not {list(labels.shape)}")
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise LabelOutOfRange(
            f"the network has {classes} outputs, so labels go from 0 to {classes - 1}, "
            f"and there are {int(labels.min())} to {int(labels.max())}"
        )
    return labels.long()
