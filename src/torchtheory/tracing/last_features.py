"""What a network's last layer sees: the features its output is linear in."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.tracing.network import BatchSize, Network, Operation, Value
from torchtheory.tracing.passes import layers_of_weights, network_of, values_of

#: What applies a matrix to rows.
DENSE = frozenset(("linear", "matmul", "addmm"))

#: What applies a matrix of weights: dense layers and convolutions.
LAYERS = DENSE | frozenset(
    """
    bilinear conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d
    """.split()
)


def _last(
    network: Network, names: Collection[str], dimensions: int | None, samples: int
) -> tuple[str, Value] | None:
    """The last of some layers that is applied to a row per sample: its name and its input."""
    weights = layers_of_weights(network)
    for op in reversed(network.operations):
        if op.name in names and (value := _rows(op, weights)) is not None:
            own = value.shape[0] if value.shape else None
            alike = own in (BatchSize(1), samples if network.rows == samples else None)
            # a convolution of one sample without its first dimension is not told from a batch
            if alike and len(value.shape) > 1 and dimensions in (None, len(value.shape)):
                return next(weights[v] for v in op.inputs if v in weights), value
    return None


def _rows(op: Operation, weights: dict[Value, str]) -> Value | None:
    """What a layer applies its weights to; None if it is no layer of its own weights."""
    first, *others = op.inputs if op.name != "addmm" else op.inputs[1:]
    return first if first.follows and any(v in weights for v in others) else None


def _inputs(
    problem: Problem, samples: Samples, names: Collection[str], dimensions: int | None
) -> tuple[str, Tensor] | None:
    """The place of the last of these layers, and its inputs, a row for each sample."""
    place, parts = "", []
    for x, _ in samples.chunks(problem.chunk):
        network = network_of(problem.function, x)
        last = _last(network, names, dimensions, len(x))
        if last is None:
            return None
        place, value = last
        (rows,) = values_of(problem.function, network, x, value)
        parts.append(rows.flatten(1))
    return (place, torch.cat(parts)) if len({p.shape[1] for p in parts}) == 1 else None


def last_features(problem: Problem, samples: Samples) -> Tensor | None:
    """Inputs `[n, p]` of the last dense layer that was applied to one row per sample.

    None where there is no such layer. Cost: one forward pass, in chunks.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 3))
    >>> p = Problem(net, (torch.randn(4, 2), torch.arange(4) % 3))
    >>> bool(torch.allclose(last_features(p, p.train), net[:2](p.train.x)))
    True
    """
    found = _inputs(problem, samples, DENSE, 2)
    return None if found is None else found[1]


def last_layer_inputs(problem: Problem, samples: Samples) -> tuple[str, Tensor] | None:
    """The dense or convolutional layer that runs last, and what goes into it as rows `[n, p]`.

    It goes by the name that its weight has among the parameters. None where there is no such layer,
    or where the size of its input changes from batch to batch. Cost: one forward pass up to there,
    in chunks.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten())
    >>> p = Problem(net, (torch.randn(4, 1, 6), torch.arange(4) % 3))
    >>> place, rows = last_layer_inputs(p, p.train)
    >>> place, rows.shape
    ('0', torch.Size([4, 6]))
    """
    return _inputs(problem, samples, LAYERS, None)
