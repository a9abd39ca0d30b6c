r"""Gradients of many networks at once.

Autograd allocates the values of every layer and the gradient of every parameter anew in each step;
for small networks that takes about half as long as the arithmetic. A chain is differentiated by its
formulas instead, in memory that is kept: with $\delta$ the derivative of the loss in the outputs
$W_lA_l+b_l$ of a linear layer,

$$
G_l=\delta A_l^\top,\qquad g_l=\delta\mathbf 1,\qquad \delta_{A_l}=W_l^\top\delta.
$$
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from torchtheory.core.errors import UnsupportedModel
from torchtheory.training.many.stacked import Stack
from torchtheory.training.many.stacked_chain import Affine, StackedChain
from torchtheory.training.many.stacked_losses import StackedLosses

Differentiated = tuple[Tensor, list[Tensor]]
"""Outputs `[K, outputs, n]`, and the gradients of the trained stacks of parameters."""


class Gradients(Protocol):
    """Differentiates the losses of a stack of networks."""

    def __call__(self, x: Tensor, y: Tensor, *, shared: bool) -> Differentiated:
        """Outputs and gradients; those of padded and pruned weights are 0.

        Args:
            x: inputs of each network, `[K, n, ...]`, or the same for all, `[n, ...]`.
            y: targets, as for `StackedLosses`.
            shared: whether the inputs are the same for all.

        The next call may overwrite both.
        """

    def outputs(self, x: Tensor) -> Tensor:
        """Outputs `[K, outputs, n]` for the same inputs `[n, ...]`, until the next call."""


def gradients_of(stack: Stack, losses: StackedLosses) -> Gradients:
    """The faster way to differentiate a stack."""
    if isinstance(stack, StackedChain):
        return ChainGradients(stack, losses)
    return TracedGradients(stack, losses)


class TracedGradients:
    """The gradients of any stack, by autograd."""

    def __init__(self, stack: Stack, losses: StackedLosses) -> None:
        self.stack, self.losses = stack, losses

    def __call__(self, x: Tensor, y: Tensor, *, shared: bool) -> Differentiated:
        stack = self.stack
        outputs = stack.on_shared(x) if shared else stack(x)
        if not outputs.requires_grad:
            raise UnsupportedModel(
                "no gradient leads from the outputs to the parameters: the model detaches its "
                "outputs, or runs under no_grad"
            )
        slopes = self.losses.slopes(outputs.detach(), y)
        gradients = list(torch.autograd.grad(outputs, stack.trained, slopes))
        if stack.masks is not None:
            gradients = [g.mul_(m) for g, m in zip(gradients, stack.masks, strict=True)]
        return outputs.detach(), gradients

    @torch.no_grad()
    def outputs(self, x: Tensor) -> Tensor:
        return self.stack.on_shared(x)


class ChainGradients:
    """The gradients of stacked chains, by their formulas, in memory that is kept.

    The derivative of $(ax-2)^2$ with respect to $a=0$ at $x=3$:

    >>> from torchtheory.models.problem import Problem
    >>> net = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.zeros_(net.weight)
    >>> x, y = torch.tensor([[3.0]]), torch.tensor([[2.0]])
    >>> losses = StackedLosses(Problem(net, (x, y)), usual=True)
    >>> ChainGradients(StackedChain([net]), losses)(x, y, shared=True)[1]
    [tensor([[[-12.]]])]
    """

    def __init__(self, stack: StackedChain, losses: StackedLosses) -> None:
        self.stack, self.losses = stack, losses
        self._gradients = [torch.empty_like(p) for p in stack.trained]
        self._of = {id(p): g for p, g in zip(stack.trained, self._gradients, strict=True)}
        self._held: dict[tuple[str, int, int], Tensor] = {}
        # most masks of biases leave out nothing
        masks = stack.masks or [torch.ones(1)] * len(stack.trained)
        pairs = zip(self._gradients, masks, strict=True)
        self._masked = [(gradient, mask) for gradient, mask in pairs if not bool(mask.all())]

    @torch.no_grad()
    def __call__(self, x: Tensor, y: Tensor, *, shared: bool) -> Differentiated:
        links = self.stack.links
        values = self._values(self.stack.columns(x, shared=shared))
        outputs = values[-1].detach()
        slope = self.losses.slopes(outputs, y)
        for place in range(len(links) - 1, self.stack.lowest - 1, -1):
            link, a = links[place], values[place]
            if isinstance(link, Affine):
                self._differentiate(link, a, slope)
                if place > self.stack.lowest:
                    out = self._room("slopes", place, link.weight.shape[2], slope)
                    slope = torch.bmm(link.weight.mT, slope, out=out)
            elif type(link) is nn.ReLU:
                out = self._room("slopes", place, a.shape[1], slope)
                slope = torch.ops.aten.threshold_backward.grad_input(
                    slope, values[place + 1], 0, grad_input=out
                )
            else:
                (slope,) = torch.autograd.grad(values[place + 1], a, slope)
        for gradient, mask in self._masked:
            gradient.mul_(mask)
        return outputs, self._gradients

    @torch.no_grad()
    def outputs(self, x: Tensor) -> Tensor:
        return self._values(self.stack.columns(x, shared=True))[-1].detach()

    def _values(self, a: Tensor) -> list[Tensor]:
        """What each link is given, and what the last one returns."""
        values, overwritable = [a], False
        for place, link in enumerate(self.stack.links):
            if isinstance(link, Affine):
                a = link(a, out=self._room("values", place, link.weight.shape[1], a))
            elif type(link) is nn.ReLU:
                a = a.relu_() if overwritable else a.relu()
            else:
                with torch.enable_grad():
                    values[-1] = given = a.detach().requires_grad_()
                    a = link(given.clone() if getattr(link, "inplace", False) else given)
            overwritable = isinstance(link, Affine)
            values.append(a)
        return values

    def _differentiate(self, layer: Affine, a: Tensor, slope: Tensor) -> None:
        """The gradients of a layer with the inputs `a`."""
        weight = self._of.get(id(layer.weight))
        if weight is not None and a.ndim == 3:
            torch.bmm(slope, a.mT, out=weight)
        elif weight is not None:
            torch.mm(slope.reshape(-1, a.shape[1]), a.T, out=weight.view(-1, len(a)))
        bias = self._of.get(id(layer.bias))
        if bias is not None:
            torch.sum(slope, 2, keepdim=True, out=bias)

    def _room(self, what: str, place: int, units: int, like: Tensor) -> Tensor:
        """Memory `[K, units, n]` for what is worked out at this place in every step."""
        key = (what, place, like.shape[-1])
        if key not in self._held:
            networks = len(self._gradients[0])
            self._held[key] = like.new_empty(networks, units, like.shape[-1])
        return self._held[key]
