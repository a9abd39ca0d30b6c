r"""Training on interval bounds: a loss that no input of the ball can exceed.

The worst logits that interval bounds allow, the lower bound of the true class and the upper bounds
of the others, give a cross-entropy that is at least that of every input of the ball (Gowal et al.
2018). It is a differentiable function of the weights; mixed with the usual loss it trains networks
that interval bounds can certify.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.checks import (
    as_batch,
    closed_fraction,
    module_with_values,
    nonnegative_number,
    positive_number,
)
from torchtheory.core.errors import InvalidInput, UnsupportedModel
from torchtheory.robustness.bounds.balls import Ball, Limits
from torchtheory.robustness.bounds.output_bounds import check_labels
from torchtheory.robustness.bounds.propagation import Propagation
from torchtheory.robustness.bounds.relaxations import Box
from torchtheory.robustness.bounds.tracing import graph_of, recorded, refuse_mixed_samples
from torchtheory.tracing.network import Network


def interval_bounds(
    model: nn.Module,
    x: Tensor,
    radius: float,
    *,
    box: Limits | None = None,
    network: Network | None = None,
) -> Box:
    """Interval bounds of the outputs `[b, ...]` that carry gradients to the model's parameters.

    Args:
        model: the network, whose parameters are used as they are.
        x, radius, box: the ball in the norm of largest entries, as in `output_bounds`.
        network: the model as `tracing.recorded` gave it, where the caller keeps it.

    >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> interval_bounds(net, torch.zeros(5, 3), 0.1).upper.sum().backward()
    >>> bool(net[0].weight.grad.abs().sum() > 0)
    True
    """
    module_with_values(model)
    as_batch(x)
    if network is None:
        network = recorded(model, x)
        refuse_mixed_samples(network, x)
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    named = {**network.parameters, **network.buffers}
    graph = graph_of(network, x, tensors={v: own[k] for k, v in named.items()})
    ball = Ball(graph.centers(x), nonnegative_number(radius, "radius"), "inf", box)
    found = Propagation(graph, ball).intervals()
    return Box(*(graph.rows(end, graph.outputs) for end in found))


def worst_logits(box: Box, labels: Tensor) -> Tensor:
    """The lower bound of each true class and the upper bounds of the others, `[b, classes]`.

    >>> box = Box(torch.tensor([[0.0, 1.0]]), torch.tensor([[2.0, 3.0]]))
    >>> worst_logits(box, torch.tensor([0]))
    tensor([[0., 3.]])
    """
    check_labels(labels, box.lower.shape[1])
    own = F.one_hot(labels, box.lower.shape[1]).bool()
    return torch.where(own, box.lower, box.upper)


class IntervalTraining(nn.Module):
    r"""A model whose loss knows the balls about its inputs; for `training.fit`.

    $$
    (1-\kappa)\,\ell(f(x),y) + \kappa\,\ell(\text{worst logits on the ball},y)
    $$

    Give the wrapper as the model and its `loss` as the loss: `fit(wrapped, data,
    loss=wrapped.loss)`. The model inside is trained; in evaluation mode the wrapper is the model.
    Normalization uses its stored statistics in the bounds.

    Args:
        model: a classifier with one output per class.
        radius: $r$ of the balls, in the norm of largest entries.
        weight: $\kappa$.
        box: least and largest valid input.
        warm_up: steps over which the radius grows from 0.

    >>> wrapped = IntervalTraining(nn.Linear(2, 2), 0.1)
    >>> outputs = wrapped(torch.zeros(3, 2))
    >>> wrapped.loss(outputs, torch.tensor([0, 1, 0])).backward()
    """

    def __init__(
        self,
        model: nn.Module,
        radius: float,
        weight: float = 0.5,
        *,
        box: Limits | None = None,
        warm_up: int = 0,
    ) -> None:
        super().__init__()
        self.model = module_with_values(model)
        self.radius = positive_number(radius, "radius")
        self.weight = closed_fraction(weight, "weight")
        self.box, self.warm_up, self.steps = box, warm_up, 0
        self._network: Network | None = None
        self._bounds: Box | None = None

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.model(x)
        self._bounds = None
        if self.training and torch.is_grad_enabled():
            if outputs.ndim != 2 or outputs.shape[1] < 2:
                raise UnsupportedModel("interval training is for one output per class")
            share = min(1.0, (self.steps + 1) / self.warm_up) if self.warm_up else 1.0
            if self._network is None:
                self._network = recorded(self.model, x)
                refuse_mixed_samples(self._network, x)
            self._bounds = interval_bounds(
                self.model, x, share * self.radius, box=self.box, network=self._network
            )
            self.steps += 1
        return outputs

    @property
    def loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        """The mixed loss in training mode, and the usual one where no bounds were asked for."""

        def mixed(outputs: Tensor, y: Tensor) -> Tensor:
            plain = F.cross_entropy(outputs, y)
            bounds = self._bounds
            if bounds is None or not torch.is_grad_enabled():
                return plain
            if len(bounds.lower) != len(outputs):
                raise InvalidInput("the loss belongs to the batch that ran last")
            robust = F.cross_entropy(worst_logits(bounds, y), y)
            return (1 - self.weight) * plain + self.weight * robust

        return mixed
