r"""Backpropagation from its definition, with every intermediate result to look at.

For a chain of layers $h^\ell=F^\ell[\theta^\ell](h^{\ell-1})$, $h^0=x$, and a loss
$E(h^L,y)$, the errors $\delta^\ell=\partial E/\partial h^\ell$ follow backwards from

$$
\delta^L=\frac{\partial E}{\partial h^L},\qquad
\delta^{\ell-1}=\Bigl[\frac{\partial h^\ell}{\partial h^{\ell-1}}\Bigr]^\top\delta^\ell,\qquad
\frac{\partial E}{\partial\theta^\ell}
=\Bigl[\frac{\partial h^\ell}{\partial\theta^\ell}\Bigr]^\top\delta^\ell.
$$

Each kind of layer is a rule that multiplies by its two transposed Jacobians without forming them.
No call of autograd is involved; that the result equals autograd's is a test. Sources: notes "Deep
Learning", section 3.1; Foundations of Deep Learning, section 2.6; slides "Backpropagation".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import grad as adjoints
from torch.utils.flop_counter import FlopCounterMode

from torchtheory.core.checks import as_module
from torchtheory.core.errors import InvalidType, NonFinite, ShapeMismatch, UnsupportedModel
from torchtheory.core.foreign_code import ForeignCode
from torchtheory.models.model import evaluation_mode
from torchtheory.models.problem import Loss
from torchtheory.nets.activations.table import POINTWISE_LAYERS, Pointwise
from torchtheory.tracing.chain import Rearrangement, as_chain, has_own_forward
from torchtheory.training.losses.classification import ClassificationLoss

PulledBack = tuple[Tensor, dict[str, Tensor]]
"""The error at a layer's input, and the gradients of its parameters by name."""


@dataclass(frozen=True, slots=True)
class LayerStep:
    r"""One layer of a pass there and back.

    Attributes:
        name: of the layer in the model ("" for a function such as `F.relu`).
        module: the layer.
        input: $h^{\ell-1}$.
        output: $h^\ell$.
        delta: $\delta^\ell=\partial E/\partial h^\ell$, of the shape of the output.
        delta_input: $\delta^{\ell-1}$, of the shape of the input.
        gradients: $\partial E/\partial\theta^\ell$ by parameter name.
    """

    name: str
    module: nn.Module
    input: Tensor
    output: Tensor
    delta: Tensor
    delta_input: Tensor
    gradients: dict[str, Tensor]


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
    """A forward and a backward pass, layer by layer.

    Attributes:
        loss: the loss of the batch.
        steps: the layers in forward order.
        gradients: by name, as `model.named_parameters()` has them; a parameter that occurs in
            several layers has the sum.
    """

    loss: Tensor
    steps: tuple[LayerStep, ...]
    gradients: dict[str, Tensor]

    @property
    def delta_input(self) -> Tensor:
        r"""$\delta^0=\partial E/\partial x$: how the loss depends on the input."""
        return self.steps[0].delta_input

    def units(self, sample: int = 0) -> list[Unit]:
        """The units of all dense layers for one sample, in forward order."""
        found = []
        layer = 0
        for i, step in enumerate(self.steps):
            if not isinstance(step.module, nn.Linear):
                continue
            layer += 1
            after = self.steps[i + 1] if i + 1 < len(self.steps) else None
            if after is not None and isinstance(after.module, nn.Linear):
                after = None
            top = step if after is None else after
            slopes: Sequence[float | None]
            if after is None:
                slopes = [1.0] * step.module.out_features
            elif is_pointwise(after.module):
                slopes = _slope(after.module, after.input, after.output)[sample].tolist()
            else:
                slopes = [None] * step.module.out_features
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
        for step in self.steps:
            for key, gradient in step.gradients.items():
                value: Tensor = getattr(step.module, key).detach()
                name = f"{step.name}.{key}" if step.name else key
                for place in torch.cartesian_prod(*(torch.arange(n) for n in value.shape)):
                    index = tuple(int(i) for i in place.reshape(-1))
                    old, slope = float(value[index]), float(gradient[index])
                    shown = ",".join(str(i + 1) for i in index)
                    rows.append((f"{name}[{shown}]", old, slope, old - rate * slope))
        return rows


def backpropagate(
    model: nn.Module, x: Tensor, y: Tensor, loss: Loss | ClassificationLoss
) -> Backpropagation:
    r"""Run a chain of layers forwards and backwards, and keep everything.

    Args:
        model: an `nn.Sequential`, or any module that is a chain of layers; run in evaluation
            mode and left as it was. Dense and convolutional layers, pointwise activations,
            softmax, log-softmax and reshaping have rules.
        x: inputs `[n, ...]`.
        y: targets, as the loss takes them.
        loss: a row of the table of losses (its mean is taken, its own gradient starts the
            recursion), or a function of outputs and targets to a number.

    Two matrix products a dense layer on the way back, one on the way there: the cost is three
    times that of the forward pass, whatever the number of parameters. Memory: all activations
    and all errors.

    >>> net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Tanh()).double()
    >>> _ = nn.init.constant_(net[0].weight, 0.0)
    >>> half_square = lambda h, y: (h - y).square().sum() / 2
    >>> one = torch.ones(1, 1).double()
    >>> there_and_back = backpropagate(net, 3 * one, one, half_square)
    >>> there_and_back.gradients["0.weight"]                 # (tanh 0 - 1) tanh'(0) 3
    tensor([[-3.]], dtype=torch.float64)
    """
    as_module(model)
    if not x.is_floating_point():
        raise InvalidType(f"the inputs must be floating-point numbers, not {x.dtype}")
    if x.ndim < 2 or len(x) == 0:
        raise ShapeMismatch(f"x must be [samples, ...] with a sample, not {list(x.shape)}")
    links = as_chain(model, x)
    with evaluation_mode(model), torch.no_grad():
        values = [x.detach()]
        for link in links:
            # a copy: an activation with inplace=True writes to what it is given
            values.append(link.module(values[-1].clone()))
        number, delta = loss_and_error(loss, values[-1], y)
        steps = []
        for link, before, after in reversed(list(zip(links, values[:-1], values[1:], strict=True))):
            below, gradients = pull_back(link.module, before, after, delta)
            steps.append(LayerStep(link.name, link.module, before, after, delta, below, gradients))
            delta = below
    steps.reverse()
    return Backpropagation(number, tuple(steps), collect_gradients(model, steps))


def loss_and_error(
    loss: Loss | ClassificationLoss, outputs: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    r"""The loss and the error at the output, $\delta^L=\partial E/\partial h^L$."""
    if isinstance(loss, ClassificationLoss):
        value, delta = loss.mean(outputs, y), loss.gradient(outputs, y)
        delta = delta / max(1, delta.numel() // delta.shape[-1])
    else:
        with ForeignCode("the loss"):
            delta, value = torch.func.grad_and_value(loss)(outputs, y)
    if not bool(torch.isfinite(value)):
        raise NonFinite(f"the loss is {float(value)}: there is nothing to propagate")
    return value, delta


def collect_gradients(model: nn.Module, steps: Sequence[LayerStep]) -> dict[str, Tensor]:
    """The gradients of all steps under the model's own names, shared parameters summed."""
    names = {id(p): name for name, p in model.named_parameters()}
    found: dict[str, Tensor] = {}
    for step in steps:
        for key, gradient in step.gradients.items():
            name = names[id(getattr(step.module, key))]
            found[name] = found[name] + gradient if name in found else gradient
    return {name: found[name] for name in names.values() if name in found}


# ------------------------------------------------------------------------------- the rules


def pull_back(module: nn.Module, before: Tensor, after: Tensor, delta: Tensor) -> PulledBack:
    r"""Multiply an error by the transposed Jacobians of one layer.

    Args:
        module: the layer; `before` and `after` are its input and output.
        delta: $\delta^\ell$, of the shape of `after`.

    Returns:
        $[\partial h^\ell/\partial h^{\ell-1}]^\top\delta^\ell$ and, by parameter,
        $[\partial h^\ell/\partial\theta^\ell]^\top\delta^\ell$.

    >>> relu = nn.ReLU()
    >>> z = torch.tensor([[-1.0, 2.0]])
    >>> pull_back(relu, z, relu(z), torch.ones(1, 2))
    (tensor([[0., 1.]]), {})
    """
    if has_own_forward(module):
        if is_pointwise(module):
            return delta * _slope(module, before, after), {}
        for kind, rule in RULES.items():
            if isinstance(module, kind):
                return rule(module, before, after, delta)
    raise UnsupportedModel(
        f"there is no rule of backpropagation for {type(module).__name__}; use autograd, or a "
        "network of dense, convolutional, activation, softmax and reshaping layers"
    )


def _dense(layer: Any, h: Tensor, _: Tensor, delta: Tensor) -> PulledBack:
    r"""For $z=Wh+b$: $W^\top\epsilon$, and $\epsilon h^\top$, $\epsilon$
    summed over the samples."""
    rows, inputs = delta.reshape(-1, delta.shape[-1]), h.reshape(-1, h.shape[-1])
    gradients = {"weight": rows.T @ inputs}
    if layer.bias is not None:
        gradients["bias"] = rows.sum(0)
    return delta @ layer.weight, gradients


def _convolution(layer: Any, h: Tensor, _: Tensor, delta: Tensor) -> PulledBack:
    """Correlation with the kernel pulls back to convolution with it."""
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise UnsupportedModel(
            f"{layer} pads by {layer.padding_mode!r}, {layer.padding!r}: the rule needs zeros, "
            "and their number"
        )
    dimensions = len(layer.kernel_size)
    how = (layer.stride, layer.padding, layer.dilation, layer.groups)
    to_input = getattr(adjoints, f"conv{dimensions}d_input")
    to_weight = getattr(adjoints, f"conv{dimensions}d_weight")
    gradients = {"weight": to_weight(h, layer.weight.shape, delta, *how)}
    if layer.bias is not None:
        gradients["bias"] = delta.sum([0, *range(2, delta.ndim)])
    return to_input(h.shape, layer.weight, delta, *how), gradients


def _softmax(layer: Any, _: Tensor, p: Tensor, delta: Tensor) -> PulledBack:
    r"""$(\mathrm{diag}\,p-pp^\top)\delta$."""
    along = _dimension(layer)
    return p * (delta - (p * delta).sum(along, keepdim=True)), {}


def _log_softmax(layer: Any, _: Tensor, log_p: Tensor, delta: Tensor) -> PulledBack:
    r"""$(I-p1^\top)\delta$."""
    along = _dimension(layer)
    return delta - log_p.exp() * delta.sum(along, keepdim=True), {}


def _dimension(layer: Any) -> int:
    if layer.dim is None:
        raise UnsupportedModel(f"{layer} has no dim: say along which dimension it normalizes")
    along: int = layer.dim
    return along


def _reshaped(_: Any, h: Tensor, __: Tensor, delta: Tensor) -> PulledBack:
    """Entries only moved in order: their errors move back."""
    return delta.reshape(h.shape), {}


def _unchanged(_: Any, __: Tensor, ___: Tensor, delta: Tensor) -> PulledBack:
    return delta, {}


#: How an error passes back through each kind of layer. Pointwise activations are `SLOPES`.
RULES: dict[type[nn.Module], Callable[[Any, Tensor, Tensor, Tensor], PulledBack]] = {
    nn.Linear: _dense,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
    nn.Softmax: _softmax,
    nn.LogSoftmax: _log_softmax,
    nn.Flatten: _reshaped,
    nn.Unflatten: _reshaped,
    Rearrangement: _reshaped,
    nn.Identity: _unchanged,
    nn.Dropout: _unchanged,  # in evaluation mode
}

#: The slope of an activation from its input z and its value h.
SLOPES: dict[type[nn.Module], Callable[[Any, Tensor, Tensor], Tensor]] = {
    nn.ReLU: lambda _, z, h: (z > 0).to(z),
    nn.LeakyReLU: lambda a, z, h: torch.where(z > 0, torch.ones_like(z), a.negative_slope),
    nn.Sigmoid: lambda _, z, h: h * (1 - h),
    nn.Tanh: lambda _, z, h: 1 - h.square(),
}


def is_pointwise(module: nn.Module) -> bool:
    """Whether a layer is a function of each entry by itself.

    >>> is_pointwise(nn.GELU()), is_pointwise(nn.Softmax(1))
    (True, False)
    """
    return isinstance(module, (*POINTWISE_LAYERS, Pointwise))


def _slope(module: nn.Module, z: Tensor, h: Tensor) -> Tensor:
    r"""$\phi'(z)$: written out, or the derivative along the vector of ones."""
    for kind, slope in SLOPES.items():
        if isinstance(module, kind):
            return slope(module, z, h)
    tangent: Tensor = torch.func.jvp(_not_in_place(module), (z,), (torch.ones_like(z),))[1]
    return tangent


def _not_in_place(module: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda z: module(z.clone())


# ------------------------------------------------------------------------------- cost


def count_flops(function: Callable[[], object]) -> int:
    """Floating-point operations of the matrix products and convolutions of a computation.

    Two for each multiply-add, as torch counts them; what is done entry by entry is not counted.

    >>> a = torch.ones(2, 3)
    >>> count_flops(lambda: a @ a.T)                         # 2 x 3 x 2 multiply-adds
    24
    """
    with FlopCounterMode(display=False) as counter:
        function()
    return int(counter.get_total_flops())
