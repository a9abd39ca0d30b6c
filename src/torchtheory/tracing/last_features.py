"""What a network's last layer sees: the features its output is linear in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchtheory.models.model import global_randomness_kept
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples

Layer = Callable[..., Any]

#: What applies a matrix of weights: dense layers and convolutions.
LAYERS: tuple[Layer, ...] = (
    F.linear, F.bilinear, F.conv1d, F.conv2d, F.conv3d,
    F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d,
)  # fmt: skip


class _LastInput(TorchFunctionMode):
    """Keeps the first input and the weights of the layer that ran last."""

    def __init__(self, layers: Collection[Layer], fits: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.layers, self.fits = layers, fits
        self.found: Tensor | None = None
        self.weights: tuple[Any, ...] = ()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in self.layers and args and isinstance(args[0], Tensor) and self.fits(args[0]):
            self.found, self.weights = args[0].detach(), args[1:3]
        return result


def _inputs(
    problem: Problem, samples: Samples, layers: Collection[Layer], dimensions: int | None
) -> tuple[str, Tensor] | None:
    """The place of the last of these layers, and its inputs, a row for each sample."""
    place, parts = "", []
    for x, _ in samples.chunks(problem.chunk):
        count = len(x)

        def fits(value: Tensor, count: int = count) -> bool:
            # a convolution of one sample without its first dimension is not told from a batch
            alike = value.ndim > 1 if dimensions is None else value.ndim == dimensions
            return alike and len(value) == count

        watch = _LastInput(layers, fits)
        with torch.no_grad(), global_randomness_kept(), watch:
            problem.function(problem.parameters, x)
        if watch.found is None:
            return None
        parts.append(watch.found.flatten(1))
        names = [n for n, p in problem.parameters.items() if any(p is w for w in watch.weights)]
        place = names[0].rpartition(".")[0] if names else ""
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
    found = _inputs(problem, samples, (F.linear,), 2)
    return None if found is None else found[1]


def last_layer_inputs(problem: Problem, samples: Samples) -> tuple[str, Tensor] | None:
    """The dense or convolutional layer that ran last, and what went into it as rows `[n, p]`.

    The name is empty where the weights are not parameters of a layer. None where no such layer was
    seen to run, or where the size of its input changes from batch to batch. Cost: one forward
    pass, in chunks.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten())
    >>> p = Problem(net, (torch.randn(4, 1, 6), torch.arange(4) % 3))
    >>> place, rows = last_layer_inputs(p, p.train)
    >>> place, rows.shape
    ('0', torch.Size([4, 6]))
    """
    return _inputs(problem, samples, LAYERS, None)
