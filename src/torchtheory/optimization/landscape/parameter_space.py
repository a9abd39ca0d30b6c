r"""The loss as a function on parameter space: at vectors, networks and state dicts.

Everything that draws a landscape or walks through one evaluates the loss at many points, without
derivatives. The model that a problem was made of is not changed. The space is that of the
trainable parameters; frozen ones have the model's values at every point.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.checks import as_matrix, as_vector, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnknownName, UnsupportedModel
from torchtheory.core.mapping import Mapped
from torchtheory.core.progress import track
from torchtheory.models.model import (
    Initial,
    flatten,
    global_randomness_kept,
    parameters_from,
    unflatten,
)
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.optimization.landscape.batch_statistics import (
    batch_normalizations,
    with_renewed_statistics,
)

#: Samples times parameters up to which points are evaluated together: then calls cost most.
SMALL_WORK = 2**22

#: A place in parameter space: a vector `[p]`, a network of the same shape, or its state dict.
Point = Tensor | Initial

#: Which means and variances layers of batch normalization use: the model's, or the point's own.
Statistics = Literal["kept", "renewed"]


def point_vector(problem: Problem, point: Point, name: str = "the point") -> Tensor:
    """A point of parameter space as a vector `[p]`, in the order of `problem.trainable`.

    Args:
        problem: says which parameters there are, and their precision and device.
        point: the vector itself, a network of the same shape, or its state dict. What is frozen in
            the problem's model has to be the same in these.
        name: what to call it in messages.

    >>> from torch import nn
    >>> one, other = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    >>> p = Problem(one, (torch.ones(2, 1), torch.ones(2, 1)), task="regression")
    >>> bool(point_vector(p, other) == other.weight)
    True
    """
    like = problem.trainable
    own = flatten(like)
    if not isinstance(point, Tensor):
        found = parameters_from(problem.model, point)
        for frozen in found.keys() - like.keys():
            kept = problem.parameters[frozen]
            if not torch.equal(found[frozen].to(kept), kept):
                raise InvalidInput(
                    f"{frozen} is frozen in the model and has other values in {name}: set its "
                    "requires_grad, or give both the same"
                )
        return flatten({k: found[k] for k in like}).to(own)
    theta = as_vector(point, name)
    if len(theta) != len(own):
        raise ShapeMismatch(f"the model has {len(own)} trainable parameters, {name} {len(theta)}")
    return theta.to(own)


def refuse_frozen(problem: Problem, names: Iterable[str], what: str) -> None:
    """Raise if `what` would have to move a frozen parameter."""
    for name in names:
        if name not in problem.trainable:
            raise UnsupportedModel(f"{what} moves {name}, which is frozen: set its requires_grad")


def losses_at(
    problem: Problem,
    points: Tensor,
    samples: Samples | None = None,
    *,
    statistics: Statistics = "kept",
    together: int | None = None,
) -> Tensor:
    """The mean loss at many parameter vectors, `[m]`, with a progress bar.

    Args:
        problem: model, loss and data; the model is not changed.
        points: `[m, p]`, in the order of `flatten(problem.trainable)`.
        samples: the training data unless given.
        statistics: of batch normalization, where the model has it: `kept` at what the model
            has, or `renewed` at every point, for points far from it.
        together: how many points are evaluated at once, by `Mapped`. Unless given,
            several where the network is so small that calls cost more than numbers.

    Costs `m` forward passes over the samples, twice as many with renewed statistics; memory is
    that of `together` passes over a chunk and as many parameter vectors.

    >>> from torch import nn
    >>> x = torch.tensor([[1.0], [2.0]])
    >>> p = Problem(nn.Linear(1, 1, bias=False), (x, 3 * x), task="regression")
    >>> losses_at(p, torch.tensor([[3.0], [2.0], [1.0]])).tolist()
    [0.0, 2.5, 10.0]
    """
    points = as_matrix(points, "the points")
    own = flatten(problem.trainable)
    if points.shape[1] != len(own):
        raise ShapeMismatch(
            f"the model has {len(own)} trainable parameters, the points {points.shape[1]}"
        )
    if statistics not in ("kept", "renewed"):
        raise UnknownName("kind of statistics", str(statistics), ["kept", "renewed"])
    if together is not None:
        whole_number(together, "together", least=1)
    samples = problem.train if samples is None else samples
    if statistics == "renewed" and batch_normalizations(problem):
        return _losses_with_own_statistics(problem, points.to(own), samples)
    if together is None:
        work = min(problem.chunk, len(samples)) * len(own)
        together = max(1, min(256, SMALL_WORK // work))
    blocks = torch.split(points, together)
    with torch.no_grad(), global_randomness_kept():
        found = [
            _block_losses(problem, block.to(own), samples) for block in track(blocks, "losses")
        ]
    return torch.cat(found)


def _block_losses(problem: Problem, block: Tensor, samples: Samples) -> Tensor:
    """The mean losses at a few points, all at once where there are several."""

    def part(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        named = unflatten(theta, problem.trainable)
        return problem.loss(problem.function(named, x), y).reshape(())

    parts = Mapped(part, (0, None, None))
    total = block.new_zeros(len(block))
    for x, y in samples.chunks(problem.chunk):
        losses = parts(block, x, y) if len(block) > 1 else part(block[0], x, y)[None]
        total += len(x) / len(samples) * losses
    return total


def _losses_with_own_statistics(problem: Problem, points: Tensor, samples: Samples) -> Tensor:
    """The same, batch normalization having the means and variances of the training data there."""
    found = [
        with_renewed_statistics(problem.at(unflatten(theta, problem.trainable))).risk(samples)
        for theta in track(points, "losses")
    ]
    return points.new_tensor(found)


def segment_losses(
    problem: Problem,
    start: Tensor,
    end: Tensor,
    count: int,
    *,
    samples: Samples | None = None,
    statistics: Statistics = "renewed",
    together: int | None = None,
) -> Tensor:
    """The loss at `count` equidistant points from one parameter vector to another, `[count]`.

    Memory is that of a few points at a time; see `losses_at` for the rest.

    >>> from torch import nn
    >>> net = nn.Linear(1, 1, bias=False)
    >>> p = Problem(net, (torch.ones(1, 1), torch.zeros(1, 1)), task="regression")
    >>> segment_losses(p, torch.tensor([0.0]), torch.tensor([2.0]), 3).tolist()
    [0.0, 1.0, 4.0]
    """
    whole_number(count, "count", least=1)
    if count < 2:
        raise InvalidInput(f"a segment has two ends: count must be at least 2 (count = {count!r})")
    t = torch.linspace(0, 1, count, dtype=start.dtype, device=start.device)[:, None]
    pieces = torch.split(t, points_at_once(len(start)))
    return torch.cat(
        [
            losses_at(
                problem,
                torch.lerp(start, end, piece),
                samples,
                statistics=statistics,
                together=together,
            )
            for piece in track(pieces, "segment")
        ]
    )


def points_at_once(size: int) -> int:
    """How many copies of so many parameters are made at a time: some megabytes of them.

    >>> points_at_once(10), points_at_once(10**8)
    (256, 1)
    """
    return max(1, min(256, 2**22 // size))
