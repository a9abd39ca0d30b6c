"""What a network's last dense layer sees: the features its output is linear in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchtheory.models.model import global_randomness_kept
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples


class _LastInput(TorchFunctionMode):
    """Keeps the input of the last dense layer applied to one row per sample."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.samples = samples
        self.found: Tensor | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is F.linear and args and isinstance(args[0], Tensor):
            x = args[0]
            if x.ndim == 2 and len(x) == self.samples:
                self.found = x.detach()
        return result


def last_features(problem: Problem, samples: Samples) -> Tensor | None:
    """Inputs `[n, p]` of the last dense layer at the samples; None where there is no such layer.

    Cost: one forward pass, in chunks.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 3))
    >>> p = Problem(net, (torch.randn(4, 2), torch.arange(4) % 3))
    >>> bool(torch.allclose(last_features(p, p.train), net[:2](p.train.x)))
    True
    """
    parts: list[Tensor] = []
    for x, _ in samples.chunks(problem.chunk):
        watch = _LastInput(len(x))
        with torch.no_grad(), global_randomness_kept(), watch:
            problem.function(problem.parameters, x)
        if watch.found is None:
            return None
        parts.append(watch.found)
    return torch.cat(parts)
