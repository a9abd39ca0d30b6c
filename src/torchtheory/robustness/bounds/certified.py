"""What bounds certify: classes that no perturbation of a size can change."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import first_entry, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnsupportedModel
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.models.samples import Data, collect
from torchtheory.robustness.bounds.balls import Limits
from torchtheory.robustness.bounds.output_bounds import (
    BoundedNetwork,
    Method,
    check_labels,
    margin_rows,
)

#: Samples of a data set that are looked at unless told.
LIMIT = 10_000


@dataclass(frozen=True)
class Certification:
    """What is certain of a classifier's samples in balls of a radius.

    Attributes:
        margins: `[n]`, lower bounds of the smallest $f_y-f_j$ over the ball.
        certified: `[n]`, whether that is positive: no input of the ball is misclassified.
        accuracy: the certified share, with Clopper and Pearson's interval for the population the
            samples were drawn from.
    """

    margins: Tensor
    certified: Tensor
    accuracy: Interval


def class_rows(labels: Tensor, outputs: tuple[int, ...]) -> Tensor:
    r"""Linear functions that are all positive where a classifier is right, `[b, k, outputs]`.

    The differences $f_y-f_j$; for one logit, the logit itself with the sign of the class.

    >>> class_rows(torch.tensor([0, 1]), (1,)).flatten()
    tensor([-1.,  1.])
    """
    size = 1
    for n in outputs:
        size *= n
    if size == 1:
        check_labels(labels, 2)
        return (2.0 * labels - 1).reshape(-1, 1, 1)
    if len(outputs) != 1:
        raise InvalidInput(
            f"the model makes several predictions for a sample (outputs {list(outputs)}), not one"
        )
    return margin_rows(labels, size)


def labeled_pair(data: Data) -> tuple[Tensor, Tensor]:
    """Inputs and class numbers of data of any accepted kind."""
    samples = collect(data, "data", limit=LIMIT)
    if samples.rows is not None or not samples.labeled:
        raise InvalidInput("robustness is about one input tensor and one class per sample")
    y = samples.y
    if y.is_floating_point():
        if not bool((y == y.round()).all()):
            raise InvalidInput(
                f"labels must be class numbers, and {first_entry(y, 'the labels', y != y.round())}"
            )
        y = y.long()
    if y.ndim > 1:
        y = y.reshape(len(y), -1)
        if y.shape[1] != 1:
            raise ShapeMismatch(f"one class per sample is needed, not labels {list(y.shape)}")
        y = y[:, 0]
    return samples.x, y


def certified_accuracy(
    model: nn.Module,
    data: Data,
    radius: float,
    norm: str | float = "inf",
    method: Method = "crown",
    *,
    box: Limits | None = None,
    iterations: int = 20,
    chunk: int = 64,
    confidence: float = 0.95,
) -> Certification:
    """The share of samples that are provably classified right in the whole ball.

    Args:
        model: a classifier with one output per class, or one logit for the classes 0 and 1.
        data: `(x, y)`, a `Dataset` or a `DataLoader`; 10,000 samples at most are looked at.
        radius, norm, method, box, iterations, chunk: as in `output_bounds`.
        confidence: of the interval.

    >>> net = nn.Linear(2, 2, bias=False)
    >>> _ = net.weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> data = torch.tensor([[3.0, 1.0]]), torch.tensor([0])         # the true distance is 1
    >>> [certified_accuracy(net, data, r, "2").certified.item() for r in (0.99, 1.01)]
    [True, False]
    """
    x, y = labeled_pair(data)
    margins = margins_in_ball(
        BoundedNetwork(model, x), x, y, radius, norm, method,
        box=box, iterations=iterations, chunk=chunk,
    )  # fmt: skip
    certified = margins > 0
    share = clopper_pearson(int(certified.sum()), len(certified), confidence)
    return Certification(margins, certified, share)


def margins_in_ball(
    network: BoundedNetwork,
    x: Tensor,
    y: Tensor,
    radius: float | Tensor,
    norm: str | float,
    method: Method,
    *,
    box: Limits | None = None,
    iterations: int = 20,
    chunk: int = 64,
) -> Tensor:
    """Lower bounds `[n]` of the smallest margin over each sample's ball."""
    labels = y.to(network.device)
    if network.graph.whole:  # of each row of one sample, such as a node of a graph
        each = class_rows(labels, network.outputs[1:])
        rows = torch.block_diag(*each)[None]  # type: ignore[no-untyped-call]
        found = network.bounds(
            x, radius, norm, method, box=box, specification=rows, sides="lower",
            iterations=iterations, chunk=chunk,
        )  # fmt: skip
        return found.lower.reshape(len(labels), -1).amin(1)
    rows = class_rows(labels, network.outputs)
    found = network.bounds(
        x, radius, norm, method, box=box, specification=rows, sides="lower",
        iterations=iterations, chunk=chunk,
    )  # fmt: skip
    return found.lower.amin(1)


def certified_radius(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    norm: str | float = "inf",
    method: Method = "crown",
    *,
    box: Limits | None = None,
    largest: float = 1e6,
    steps: int = 24,
    iterations: int = 20,
    chunk: int = 64,
) -> Tensor:
    """The largest radius `[n]` found at which each sample is certified; 0 for a mistake.

    Doubles from a small radius and then bisects, all samples at once; each step bounds the
    network at a radius of its own for each sample.

    Args:
        largest: radii beyond this are not looked for.
        steps: halvings; the radius is found to a relative accuracy of 2^-steps, or better.

    >>> net = nn.Linear(2, 2, bias=False).double()
    >>> _ = net.weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> certified_radius(net, torch.tensor([[3.0, 1.0]]), torch.tensor([0]), "2").round(decimals=5)
    tensor([1.], dtype=torch.float64)
    """
    positive_number(largest, "largest")
    whole_number(steps, "steps", least=1)
    network = BoundedNetwork(model, x)
    if network.graph.whole:
        raise UnsupportedModel(
            "the rows of this network's input are one sample, which has one radius: ask "
            "certified_accuracy at a radius"
        )

    def certain(radius: Tensor) -> Tensor:
        return (
            margins_in_ball(
                network, x, y, radius, norm, method, box=box, iterations=iterations, chunk=chunk
            )
            > 0
        ).cpu()

    low = torch.zeros(len(x), dtype=torch.float64)
    right = certain(low)
    high = torch.full_like(low, 1e-3)
    while True:  # from where each sample is certified to where it is not
        more = certain(high) & right & (high < largest)
        if not bool(more.any()):
            break
        low = torch.where(more, high, low)
        high = torch.where(more, 2 * high, high)
    for _ in range(steps):
        middle = (low + high) / 2
        fits = certain(middle) & right
        low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
    return torch.where(right, low, 0.0)
