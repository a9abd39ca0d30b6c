r"""How noisy the gradient of one example is, layer by layer of a network.

Source: Foundations of Deep Learning, section 5.7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from torchtheory.core.errors import EmptyData
from torchtheory.models.model import as_leaves, global_randomness_kept
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples


@dataclass(frozen=True, slots=True)
class LayerNoise:
    r"""The gradient in the parameters of one layer.

    Attributes:
        layer: its name.
        parameters: how many trainable ones it has.
        signal: $\|\nabla f\|^2$, of the mean over examples.
        noise: $\frac1n\sum_i\|\nabla f-\nabla f_i\|^2$; a batch of $r$ independent
            examples has $1/r$ of it.
    """

    layer: str
    parameters: int
    signal: float
    noise: float

    @property
    def batch(self) -> float:
        """Examples in a batch for which noise and signal are alike."""
        if self.signal == 0:
            return math.inf if self.noise > 0 else 0.0
        return self.noise / self.signal


def gradient_noise_by_layer(problem: Problem, samples: Samples | None = None) -> list[LayerNoise]:
    r"""Signal and noise of the stochastic gradient in every layer, at the model as it is.

    At a minimum of the training loss the signal is 0; the noise is 0 as well only where every
    example has its own minimum there, and then stochastic descent converges with a constant step.
    Any model whose samples do not depend on each other in evaluation mode. Costs a forward
    and a backward pass a sample, and the memory of a few gradients in double precision.

    Args:
        problem: model, data and loss.
        samples: the examples; the training data unless given.

    >>> from torch import nn
    >>> net = nn.Linear(1, 1, bias=False)
    >>> _ = net.weight.data.fill_(0.0)
    >>> x, y = torch.ones(2, 1), torch.tensor([[1.0], [3.0]])   # gradients -2 and -6
    >>> found = gradient_noise_by_layer(Problem(net, (x, y), task="regression"))
    >>> [(row.signal, row.noise, row.batch) for row in found]
    [(16.0, 4.0, 0.25)]
    """
    given = problem.train if samples is None else samples
    if not len(given):
        raise EmptyData("there is no sample to take a gradient at")
    point = problem.trainable
    names = list(point)
    mean = {k: torch.zeros_like(point[k], dtype=torch.float64) for k in names}
    scatter = dict.fromkeys(names, 0.0)
    free = as_leaves(point)
    leaves = [free[k] for k in names]
    # one at a time: in a larger batch the way back from one loss goes through all of the batch
    for seen, (x, y) in enumerate(given.chunks(1), 1):
        with torch.enable_grad(), global_randomness_kept():
            loss = problem.loss(problem.function(free, x), y).reshape(())
            slopes = torch.autograd.grad(loss, leaves, allow_unused=True)
        for name, slope in zip(names, slopes, strict=True):
            # Welford's recursion: nothing cancels where the noise is small
            own = torch.zeros_like(mean[name]) if slope is None else slope.double()
            gap = own - mean[name]
            mean[name] += gap / seen
            scatter[name] += float((gap * (own - mean[name])).sum())
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(name.rpartition(".")[0] or name, []).append(name)
    return [
        LayerNoise(
            layer,
            sum(point[k].numel() for k in own),
            math.fsum(float(mean[k].square().sum()) for k in own),
            max(0.0, math.fsum(scatter[k] for k in own) / len(given)),
        )
        for layer, own in layers.items()
    ]
