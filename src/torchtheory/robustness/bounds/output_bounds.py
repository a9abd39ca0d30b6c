r"""Bounds of a network's outputs on a ball of inputs, and what they certify.

For every $x$ with $\|x-x_0\|_p\le r$ (inside a box of valid inputs where there is one) and every
row $c$ of a specification, $\text{lower}\le\langle c,f(x)\rangle\le\text{upper}$. The methods are
described in `propagation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_batch, module_with_values, one_of, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, LabelOutOfRange, ShapeMismatch
from torchtheory.robustness.bounds.balls import Ball, Limits
from torchtheory.robustness.bounds.graph import Graph
from torchtheory.robustness.bounds.kept import graph_of
from torchtheory.robustness.bounds.propagation import KEPT, Propagation, meet
from torchtheory.robustness.bounds.relaxations import Box, largest_entries
from torchtheory.robustness.bounds.rounding import chain, gamma, products, smallest

Method: TypeAlias = Literal["interval", "crown", "crown-interval", "alpha-crown"]
METHODS: tuple[Method, ...] = ("interval", "crown", "crown-interval", "alpha-crown")


@dataclass(frozen=True)
class LayerBounds:
    """Bounds of a value inside a network.

    Attributes:
        name: of the layer that makes it.
        lower, upper: `[b, ...]`.
    """

    name: str
    lower: Tensor
    upper: Tensor


@dataclass(frozen=True)
class OutputBounds:
    """Bounds of the outputs, or of linear functions of them; see `output_bounds`.

    Attributes:
        lower, upper: `[b, ...]`, or `[b, k]` of a specification with k rows.
        layers: bounds of the values inside, in their order, where they were asked for.
    """

    lower: Tensor
    upper: Tensor
    layers: tuple[LayerBounds, ...] = ()

    @property
    def width(self) -> Tensor:
        return self.upper - self.lower


class BoundedNetwork:
    """A network traced once, for bounds of many batches; the arguments are `output_bounds`'s.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> bounded = BoundedNetwork(net, torch.zeros(1, 2))
    >>> found = bounded.bounds(torch.randn(5, 2), 0.1, method="crown")
    >>> bool((found.lower <= found.upper).all())
    True
    """

    def __init__(self, model: nn.Module, x: Tensor, *, output: int | str | None = None) -> None:
        module_with_values(model)
        if isinstance(x, Tensor) and not (x.is_floating_point() or x.is_complex()):
            raise InvalidType(
                f"x holds whole numbers ({str(x.dtype).removeprefix('torch.')}), and there is no "
                "ball around tokens: bound what follows the embedding, or give x.float()"
            )
        with torch.inference_mode(False):  # the graph may be kept, and used when that is over
            graph, like = graph_of(model, _ordinary(as_batch(x)), output)
        self.graph: Graph = graph
        self.dtype, self.device = like.dtype, like.device

    @property
    def outputs(self) -> tuple[int, ...]:
        """Shape of one output."""
        return self.graph.outputs

    @torch.inference_mode(False)  # slopes of lines are optimized by gradients
    @torch.no_grad()
    def bounds(
        self,
        x: Tensor,
        radius: float | Tensor,
        norm: str | float = "inf",
        method: Method = "crown",
        *,
        box: Limits | None = None,
        specification: Tensor | None = None,
        sides: Literal["both", "lower"] = "both",
        layers: bool = False,
        iterations: int = 20,
        inner_iterations: int = 0,
        chunk: int = 64,
    ) -> OutputBounds:
        """Bounds on the balls about a batch; see `output_bounds`."""
        one_of(method, "method", METHODS)
        steps = (
            whole_number(iterations, "iterations", least=1),
            whole_number(inner_iterations, "inner_iterations", least=0),
        )
        whole_number(chunk, "chunk", least=1)
        x = as_batch(x).to(dtype=self.dtype, device=self.device)
        given = x.shape if self.graph.whole else x.shape[1:]
        if given != self.graph.inputs:
            raise ShapeMismatch(
                f"an input has the shape {list(given)}, and the network was traced with "
                f"{list(self.graph.inputs)}"
            )
        ball = Ball(self.graph.centers(_ordinary(x)), radius, norm, box)
        samples = len(ball)
        rows = None if specification is None else self._rows(specification, samples)
        parts: list[tuple[Box, list[LayerBounds]]] = []
        for start in range(0, samples, chunk):
            some = slice(start, start + chunk)
            mine = None if rows is None else rows if len(rows) == 1 else rows[some]
            parts.append(
                self._bounds(ball.part(some), mine, method, sides == "both", layers, steps)
            )
        inner = zip(*(p[1] for p in parts), strict=True)
        # where numbers grew beyond the precision, nothing is known
        low, high = (
            torch.cat([p[0][k] for p in parts]).nan_to_num(end, torch.inf, -torch.inf)
            for k, end in enumerate((-torch.inf, torch.inf))
        )
        if rows is None:
            low, high = (self.graph.rows(v, self.graph.outputs) for v in (low, high))
        return OutputBounds(
            low,
            high,
            tuple(
                LayerBounds(
                    same[0].name,
                    *(torch.cat([getattr(s, end) for s in same]) for end in ("lower", "upper")),
                )
                for same in inner
            ),
        )

    def _rows(self, specification: Tensor, samples: int) -> Tensor:
        """`[1 or b, k, outputs...]`."""
        given = specification.detach().to(dtype=self.dtype, device=self.device)
        size = self.graph.vertices[self.graph.output].entries
        if given.ndim == 2:
            given = given[None]
        if given.ndim != 3 or given.shape[2] != size or len(given) not in (1, samples):
            raise ShapeMismatch(
                f"a specification must be [k, {size}] or [{samples}, k, {size}], with one column "
                f"per output, not {list(specification.shape)}"
            )
        return _ordinary(given).reshape(len(given), -1, *self._shape)

    @property
    def _shape(self) -> tuple[int, ...]:
        """Of one output in the graph."""
        return self.graph.vertices[self.graph.output].shape

    def _bounds(
        self,
        ball: Ball,
        rows: Tensor | None,
        method: Method,
        both: bool,
        layers: bool,
        steps: tuple[int, int],
    ) -> tuple[Box, list[LayerBounds]]:
        run = Propagation(self.graph, ball)
        if method == "interval":
            found = _with_smallest(run.intervals())
            if rows is not None:
                found = _of_rows(found, rows)
        else:
            inner = steps[1] if method == "alpha-crown" else 0
            run.relax(intermediate=method != "crown-interval", iterations=inner)
            found = self._linear(run, rows, method, both, steps[0])
        kept = []
        for v in self.graph.vertices if layers else ():
            shape = v.shape if self.graph.whole else v.shape[1:]
            one = self.graph.whole or v.shape[:1] != (1,)  # its first dimension is no batch
            kept.append(
                LayerBounds(
                    v.name, *(b if one else b.reshape(-1, *shape) for b in run.boxes[v.place])
                )
            )
        return found, kept

    def _linear(
        self, run: Propagation, rows: Tensor | None, method: Method, both: bool, iterations: int
    ) -> Box:
        last = self.graph.output
        shape = (len(run.ball), *self._shape)
        whole = rows is None
        if rows is None:
            eye = torch.eye(self.graph.vertices[last].entries, dtype=self.dtype, device=self.device)
            rows = eye.reshape(1, -1, *self._shape)
        count = rows.shape[1]
        lower, upper = [], []
        # what is optimized keeps what its derivative needs
        copies = (1 + both) * (KEPT if method == "alpha-crown" else 1)
        for part in run.pieces(torch.arange(count), last, copies):
            some = rows[:, part]
            seed = torch.cat([some, -some], 1) if both else some
            if method == "alpha-crown":
                least = run.optimized(seed, last, iterations)
            else:
                least = run.least(seed, last)
            lower.append(least[:, : len(part)])
            if both:
                upper.append(-least[:, len(part) :])
        low = torch.cat(lower, 1)
        high = torch.cat(upper, 1) if both else torch.full_like(low, torch.inf)
        by_intervals = _with_smallest(run.boxes[last])
        if whole:
            return meet(Box(low.reshape(shape), high.reshape(shape)), by_intervals)
        return meet(Box(low, high), _of_rows(by_intervals, rows))


def _with_smallest(box: Box) -> Box:
    """Bounds moved apart by what numbers too small for the precision may do."""
    least = smallest(box.lower.dtype)
    return Box(box.lower - least, box.upper + least)


def _of_rows(box: Box, rows: Tensor) -> Box:
    """Linear functions of an interval, `[b, k]`."""
    count = len(box.lower)  # a network of one output may leave out its axis
    flat = rows.reshape(*rows.shape[:2], -1)
    ends = Box(*(v.reshape(count, -1) for v in box))
    middle, half = (ends.lower + ends.upper) / 2, (ends.upper - ends.lower) / 2
    # of these sums, and of those that somebody makes of the outputs
    share = 2 * gamma(chain(flat.shape[2]) + 8, flat.dtype)
    center = products(flat, middle)
    spread = products(flat.abs(), half + share * largest_entries(ends))
    return Box(center - spread, center + spread)


def output_bounds(
    model: nn.Module,
    x: Tensor,
    radius: float | Tensor,
    norm: str | float = "inf",
    method: Method = "crown",
    *,
    box: Limits | None = None,
    specification: Tensor | None = None,
    layers: bool = False,
    output: int | str | None = None,
    iterations: int = 20,
    inner_iterations: int = 0,
    chunk: int = 64,
) -> OutputBounds:
    r"""Bounds of a network's outputs over balls of inputs.

    Args:
        model: any network of linear, convolutional, pooling, normalizing, recurrent and attention
            layers, activations, sums, products, joins and rearrangements, also from a `.pt2`
            archive; it runs in evaluation mode and is left as it is.
        x: the centers of the balls, `[b, ...]`. If the network runs on this number of rows only,
            such as one whose rows are the nodes of a graph, all of them are one sample with one
            ball, and a row of a specification is about all outputs together.
        radius: of the balls, one number or one per sample.
        norm: `"inf"`, `"2"` or `"1"`.
        method: `"interval"`; `"crown"`; `"crown-interval"`, which finds the bounds inside the
            network by intervals and only those of the outputs by CROWN; or `"alpha-crown"`, with
            lines around activations that are optimized for each output of each sample.
        box: least and largest valid input, such as `(0, 1)`.
        specification: rows of linear functions of the (flattened) outputs, `[k, outputs]` or
            `[b, k, outputs]`, such as those of `margin_rows`; the outputs themselves unless given.
        layers: whether to return bounds of all values inside the network, too.
        output: position or key of the output that is meant, where there are several.
        iterations: steps of Adam for `"alpha-crown"`.
        inner_iterations: such steps for the bounds inside the network, too, each unit with slopes
            of its own: tighter, and as many times the cost of CROWN.
        chunk: samples that are bounded at once.

    Returns:
        Bounds that hold for the network in exact arithmetic and for its outputs as torch computes
        them, in whatever order it sums: every rounding is counted at its worst (`rounding`), a sum
        of $n$ products of size $s$ at $2^{-24}ns$ in single precision. Not counted are algorithms
        that compute a convolution by other sums, such as those of Winograd on graphics cards.

    Raises:
        UnsupportedModel: if an operation has no rule; the message names it and its place. Networks
            in half precision or under autocast are refused.

    Cost: following the network takes a few passes for one sample; the graph of a model that
    consists of torch's own layers is kept while it lives and does not change, so that later calls
    begin with the bounds (`BoundedNetwork` keeps that of any). Interval bounds take two forward
    passes. CROWN takes, for each layer of $n$ units that
    an activation follows, a backward pass of $2n$ functions through the layers before it; of
    ReLUs only for the units whose interval bounds have both signs. Memory: 32 MiB of
    coefficients a few times over, and the bounds of all values of `chunk` samples.

    >>> net = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> _ = net[0].weight.data.copy_(torch.tensor([[1.0], [-1.0]])), net[0].bias.data.zero_()
    >>> _ = net[2].weight.data.copy_(torch.tensor([[1.0, 1.0]])), net[2].bias.data.zero_()
    >>> found = output_bounds(net.double(), torch.zeros(1, 1), 1.0, method="interval")   # |x|
    >>> found.lower.round(decimals=6).item(), found.upper.round(decimals=6).item()
    (-0.0, 2.0)
    >>> found = output_bounds(net, torch.zeros(1, 1), 1.0, method="crown")
    >>> found.upper.round(decimals=6).item()
    1.0
    """
    bounded = BoundedNetwork(model, x, output=output)
    return bounded.bounds(
        x, radius, norm, method, box=box, specification=specification, layers=layers,
        iterations=iterations, inner_iterations=inner_iterations, chunk=chunk,
    )  # fmt: skip


def _ordinary(tensor: Tensor) -> Tensor:
    """A tensor that gradients may be taken with, also of one that was made for inference alone."""
    return tensor.clone() if tensor.is_inference() else tensor


def margin_rows(labels: Tensor, classes: int) -> Tensor:
    r"""The rows of $f_y-f_j$ for all $j\ne y$, `[b, classes - 1, classes]`.

    >>> margin_rows(torch.tensor([1]), 3)
    tensor([[[-1.,  1.,  0.],
             [ 0.,  1., -1.]]])
    """
    whole_number(classes, "classes", least=2)
    check_labels(labels, classes)
    eye = torch.eye(classes, device=labels.device)
    others = torch.arange(classes, device=labels.device).expand(len(labels), -1)
    others = others[others != labels[:, None]].reshape(len(labels), classes - 1)
    return eye[labels][:, None] - eye[others]


def check_labels(labels: Tensor, classes: int) -> Tensor:
    """Class numbers `[n]` from 0 to `classes - 1`."""
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex():
        raise InvalidInput(
            f"labels must be whole numbers [n], one per sample, not {list(labels.shape)} of "
            f"{str(labels.dtype).removeprefix('torch.')}"
        )
    wrong = (labels < 0) | (labels >= classes)
    if bool(wrong.any()):
        k = int(wrong.nonzero()[0, 0])
        raise LabelOutOfRange(
            f"labels must be from 0 to {classes - 1}, and that of sample {k} is {int(labels[k])}"
        )
    return labels
