r"""Backpropagation from its definition, with every intermediate result to look at.

For a chain of layers $h^\ell=F^\ell[\theta^\ell](h^{\ell-1})$, $h^0=x$, and a loss
$E(h^L,y)$, the errors $\delta^\ell=\partial E/\partial h^\ell$ follow backwards from

$$
\delta^L=\frac{\partial E}{\partial h^L},\qquad
\delta^{\ell-1}=\Bigl[\frac{\partial h^\ell}{\partial h^{\ell-1}}\Bigr]^\top\delta^\ell,\qquad
\frac{\partial E}{\partial\theta^\ell}
=\Bigl[\frac{\partial h^\ell}{\partial\theta^\ell}\Bigr]^\top\delta^\ell.
$$

A network is taken as its operations, and each kind of operation is a rule that multiplies by its
transposed Jacobians without forming them. Where branches meet, each gets its own error back, and
where a value is taken twice, its errors add up. The network is never differentiated by autograd;
that the result equals autograd's is a test. Sources: notes "Deep Learning", section 3.1;
Foundations of Deep Learning, section 2.6; slides "Backpropagation".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_module
from torchtheory.core.errors import InvalidType, NonFinite, ShapeMismatch
from torchtheory.core.foreign_code import ForeignCode
from torchtheory.models.problem import Loss
from torchtheory.nets.activations.table import POINTWISE_LAYERS, Pointwise
from torchtheory.tracing.network import Network, Operation, Value, leaves, mapped
from torchtheory.training.backpropagation.evaluated import Evaluated
from torchtheory.training.backpropagation.there_and_back import ThereAndBack, there_and_back
from torchtheory.training.losses.classification import ClassificationLoss


@dataclass(frozen=True, slots=True)
class LayerStep:
    r"""One operation of a pass there and back: a layer, or a function such as `F.relu`.

    Attributes:
        name: of the layer in the model whose forward pass it belongs to.
        operation: its plain name, as "linear", "conv2d", "relu".
        input: $h^{\ell-1}$; the first of them where branches meet.
        output: $h^\ell$; the first of them where it makes several.
        delta: $\delta^\ell=\partial E/\partial h^\ell$, of the shape of the output.
        delta_input: its part of $\delta^{\ell-1}$, of the shape of the input; None if the input
            is not differentiated, as whole numbers are not.
        gradients: $\partial E/\partial\theta^\ell$ of the weights that it takes, by their names in
            the model; one that is computed from parameters goes by the layer's.
    """

    name: str
    operation: str
    input: Tensor
    output: Tensor
    delta: Tensor
    delta_input: Tensor | None
    gradients: dict[str, Tensor]
    _call: Evaluated = field(repr=False)

    @property
    def slope(self) -> Tensor | None:
        r"""$\phi'(h^{\ell-1})$ of a function of each entry by itself; None of any other."""
        return self._call.slope()


@dataclass(frozen=True, slots=True)
class Unit:
    r"""What backpropagation knows of one unit $h=\phi(z)$ for one sample.

    Attributes:
        layer: number of the dense layer, from 1.
        unit: number of the unit in it, from 1.
        net_input: $z$.
        value: $h$.
        delta: $\partial E/\partial h$.
        slope: $\phi'(z)$; None where the activation mixes units, as the softmax does.
        error: $\epsilon=\partial E/\partial z$.
    """

    layer: int
    unit: int
    net_input: float
    value: float
    delta: float
    slope: float | None
    error: float


@dataclass(frozen=True, slots=True)
class Backpropagation:
    r"""A forward and a backward pass, operation by operation.

    Attributes:
        loss: the loss of the batch.
        steps: the operations in forward order.
        gradients: by name, as `model.named_parameters()` has them; a parameter that occurs in
            several layers has the sum.
        delta_input: $\delta^0=\partial E/\partial x$: how the loss depends on the input; None of
            whole numbers.
        parameters: their values, by name.
    """

    loss: Tensor
    steps: tuple[LayerStep, ...]
    gradients: dict[str, Tensor]
    delta_input: Tensor | None
    parameters: dict[str, Tensor]

    def units(self, sample: int = 0) -> list[Unit]:
        """The units of all dense layers for one sample, in forward order."""
        found = []
        dense = [i for i, step in enumerate(self.steps) if step.operation == "linear"]
        for layer, i in enumerate(dense, 1):
            step = self.steps[i]
            after = self.steps[i + 1] if i + 1 < len(self.steps) else None
            if after is not None and (
                after.operation == "linear" or after.input is not step.output
            ):
                after = None
            top = step if after is None else after
            width = step.output.shape[-1]
            slopes: Sequence[float | None] = [1.0] * width if after is None else [None] * width
            slope = None if after is None else after.slope
            if slope is not None:
                slopes = slope[sample].tolist()
            columns = (step.output, top.output, top.delta, step.delta)
            z, h, delta, error = (c[sample].reshape(-1).tolist() for c in columns)
            found += [
                Unit(layer, j + 1, z[j], h[j], delta[j], slopes[j], error[j]) for j in range(len(z))
            ]
        return found

    def update(self, rate: float) -> list[tuple[str, float, float, float]]:
        r"""One step of gradient descent, weight by weight: (name, value, gradient, new value).

        Entries are named by their indices, from 1, output first: `0.weight[2,1]` leads from
        input 1 to unit 2.
        """
        rows = []
        for name, gradient in self.gradients.items():
            value = self.parameters[name]
            for place in torch.cartesian_prod(*(torch.arange(n) for n in value.shape)):
                index = tuple(int(i) for i in place.reshape(-1))
                old, slope = float(value[index]), float(gradient[index])
                shown = ",".join(str(i + 1) for i in index)
                rows.append((f"{name}[{shown}]", old, slope, old - rate * slope))
        return rows


def backpropagate(
    model: nn.Module, x: Tensor, y: Any, loss: Loss | ClassificationLoss
) -> Backpropagation:
    r"""Run a network forwards and backwards, and keep everything.

    Args:
        model: any module, also from an archive; run in evaluation mode and left as it was. An
            operation that has no rule is written out in simpler ones: attention in products and
            softmaxes, recurrent layers in their steps.
        x: inputs `[n, ...]`.
        y: targets, as the loss takes them.
        loss: a row of the table of losses (its mean is taken, its own gradient starts the
            recursion), or a function of what the model returns and of targets to a number.

    Raises:
        UnsupportedModel: where an operation has no rule and cannot be written out in such as have
            one; with its name and its place.

    Two matrix products per dense layer on the way back, one on the way there: the cost is three
    times that of the forward pass, whatever the number of parameters. Memory: all values and all
    errors.

    >>> net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Tanh()).double()
    >>> _ = nn.init.constant_(net[0].weight, 0.0)
    >>> half_square = lambda h, y: (h - y).square().sum() / 2
    >>> one = torch.ones(1, 1).double()
    >>> found = backpropagate(net, 3 * one, one, half_square)
    >>> found.gradients["0.weight"]                          # (tanh 0 - 1) tanh'(0) 3
    tensor([[-3.]], dtype=torch.float64)
    >>> [step.operation for step in found.steps]
    ['linear', 'tanh']
    """
    as_module(model)
    if x.is_complex() or x.dtype == torch.bool:
        raise InvalidType(f"the inputs must be real or whole numbers, not {x.dtype}")
    if x.ndim < 2 or len(x) == 0:
        raise ShapeMismatch(f"x must be [samples, ...] with a sample, not {list(x.shape)}")
    numbers: list[Tensor] = []

    def start(outputs: Any) -> Any:
        number, errors = loss_and_error(loss, outputs, y)
        numbers.append(number)
        return errors

    both = there_and_back(model, x, start)
    parameters = {k: p.detach() for k, p in model.named_parameters()}
    at_input = both.deltas.get(both.network.inputs[0])
    if at_input is None and x.is_floating_point():
        at_input = torch.zeros_like(x)
    return Backpropagation(
        numbers[-1], layer_steps(both), _in_order(both, parameters), at_input, parameters
    )


def _in_order(both: ThereAndBack, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    found = both.gradients
    return {name: found[name] for name in parameters if name in found}


def layer_steps(both: ThereAndBack) -> tuple[LayerStep, ...]:
    """The operations that follow the input, as what is shown of them."""
    found = []
    for call, errors in both.calls:
        op = call.operation
        if not op.follows:
            continue
        taken = next(v for v in op.inputs if v.follows)
        made = next(v for v in op.outputs if v in both.deltas)
        found.append(
            LayerStep(
                op.layer,
                op.name,
                both.values[taken],
                both.values[made],
                both.deltas[made],
                errors.get(taken),
                {_name(op, v): error for v, error in errors.items() if not v.follows},
                call,
            )
        )
    return tuple(found)


def _name(op: Operation, value: Value) -> str:
    if value.origin == "parameter":
        return value.name
    argument = next((k for k, v in op.arguments.items() if v is value), "weight")
    return f"{op.layer}.{argument}" if op.layer else argument


def loss_and_error(loss: Loss | ClassificationLoss, outputs: Any, y: Any) -> tuple[Tensor, Any]:
    r"""The loss and the error at the output, $\delta^L=\partial E/\partial h^L$."""
    if isinstance(loss, ClassificationLoss):
        if not isinstance(outputs, Tensor):
            raise InvalidType(
                f"a loss of the table is about one tensor, and the model returns a "
                f"{type(outputs).__name__}: give a function of it"
            )
        value, delta = loss.mean(outputs, y), loss.gradient(outputs, y)
        delta = delta / max(1, delta.numel() // delta.shape[-1])
    else:
        value, delta = _by_autograd(loss, outputs, y)
    if not bool(torch.isfinite(value)):
        raise NonFinite(f"the loss is {float(value)}: there is nothing to propagate")
    return value, delta


def _by_autograd(loss: Loss, outputs: Any, y: Any) -> tuple[Tensor, Any]:
    """A loss is the user's own function, and no part of the network."""

    def is_real(leaf: Any) -> bool:
        return isinstance(leaf, Tensor) and leaf.is_floating_point()

    def replaced(parts: Sequence[Tensor], others: Callable[[Any], Any]) -> Any:
        waiting = iter(parts)
        return mapped(outputs, lambda leaf: next(waiting) if is_real(leaf) else others(leaf))

    def value_of(parts: Sequence[Tensor]) -> Tensor:
        return loss(replaced(parts, lambda leaf: leaf), y)

    with ForeignCode("the loss"):
        real = list(filter(is_real, leaves(outputs)))
        errors, value = torch.func.grad_and_value(value_of)(real)
    return value, replaced(errors, lambda leaf: None)


def pull_back(
    model: nn.Module | Network, x: Tensor, delta: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    r"""Multiply an error by the transposed Jacobians of a layer, or of a whole network $f$.

    Args:
        model: any module, or what `torchtheory.tracing.record` made of one.
        x: its inputs `[n, ...]`.
        delta: $\delta$, of the shape of the output.

    Returns:
        $[\partial f/\partial x]^\top\delta$ and, by parameter,
        $[\partial f/\partial\theta]^\top\delta$.

    >>> pull_back(nn.ReLU(), torch.tensor([[-1.0, 2.0]]), torch.ones(1, 2))
    (tensor([[0., 1.]]), {})
    """
    both = there_and_back(model, x, lambda outputs: delta)
    below = both.deltas.get(both.network.inputs[0])
    return torch.zeros_like(x) if below is None else below, both.gradients


def is_pointwise(module: nn.Module) -> bool:
    """Whether a layer is a function of each entry by itself.

    >>> is_pointwise(nn.GELU()), is_pointwise(nn.Softmax(1))
    (True, False)
    """
    return isinstance(module, (*POINTWISE_LAYERS, Pointwise))
