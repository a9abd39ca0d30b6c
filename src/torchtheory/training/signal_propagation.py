r"""How large activations and gradients are, layer by layer: predicted, and measured.

For independent weights of mean 0 in wide layers the second moments
$q^\ell=\frac1{n_\ell}\|z^\ell\|^2$ of the pre-activations and
$g^\ell=\frac1{n_\ell}\|\partial L/\partial z^\ell\|^2$ of their gradients follow

$$
q^{\ell+1}=n_\ell\sigma_{\ell+1}^2\;\mathbb E\varrho(\sqrt{q^\ell}Z)^2,\qquad
g^\ell=n_{\ell+1}\sigma_{\ell+1}^2\;\mathbb E\varrho'(\sqrt{q^\ell}Z)^2\;g^{\ell+1},
$$

with corrections of order $1/n$ a layer. Source: Deep Learning (notes), section 8.1; the
recursion is that of Poole et al. (2016).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_batch, first_entry, module_with_values
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    NonFinite,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.models.model import evaluation_mode
from torchtheory.nets.activations.moments import Function, second_moment, squared_slope
from torchtheory.tracing.chain import as_chain
from torchtheory.training.backpropagation.chain import is_pointwise


@dataclass(frozen=True, slots=True)
class Signal:
    r"""Second moments over depth.

    Attributes:
        forward: `[..., L]`, $q^1,\dots,q^L$ of the pre-activations.
        backward: `[..., L]`, $g^1,\dots,g^L$ of the gradient in them;
            $g^L$ is that of the gradient handed to the output.
        names: the layers, where a model was measured.
    """

    forward: Tensor
    backward: Tensor
    names: tuple[str, ...] = ()

    @property
    def depth(self) -> int:
        return self.forward.shape[-1]


def predict_signal(
    forward_gains: Tensor,
    backward_gains: Tensor,
    activation: Function,
    *,
    input_moment: float | Tensor = 1.0,
    output_gradient: float | Tensor = 1.0,
    bias_variance: float | Tensor = 0.0,
) -> Signal:
    r"""The mean-field recursion, for any number of networks at once.

    Args:
        forward_gains: `[..., L]`, $n_{\ell-1}\sigma_\ell^2$ of the layers 1 to L.
        backward_gains: `[..., L]`, $n_\ell\sigma_\ell^2$.
        activation: between the layers; not applied to the last one's output.
        input_moment: $\frac1{n_0}\|x\|^2$.
        output_gradient: $g^L$.
        bias_variance: added to every $q^\ell$.

    >>> ones = torch.ones(2, 4, dtype=torch.float64)
    >>> gains = torch.tensor([[1.0], [2.0]]) * ones          # Xavier and He in a square network
    >>> predict_signal(gains, gains, "relu").forward
    tensor([[1.0000, 0.5000, 0.2500, 0.1250],
            [2.0000, 2.0000, 2.0000, 2.0000]], dtype=torch.float64)
    """
    if forward_gains.shape != backward_gains.shape or forward_gains.ndim < 1:
        raise ShapeMismatch(
            f"the gains of L layers are [..., L] twice, not {list(forward_gains.shape)} and "
            f"{list(backward_gains.shape)}"
        )
    depth = forward_gains.shape[-1]
    if depth == 0:
        raise EmptyData("a network has at least one layer")
    for gains in (forward_gains, backward_gains):
        if not bool((gains >= 0).all()):
            raise InvalidInput(
                f"a gain is a number >= 0: {first_entry(gains, 'the value', ~(gains >= 0))}"
            )
    like = torch.zeros_like(forward_gains[..., 0])
    forward = [forward_gains[..., 0] * input_moment + bias_variance + like]
    for layer in range(1, depth):
        moment = second_moment(activation, forward[-1])
        forward.append(forward_gains[..., layer] * moment + bias_variance)
    q = torch.stack(forward, -1)
    backward = [output_gradient + like]
    if depth > 1:
        slopes = squared_slope(activation, q[..., :-1])
        for layer in range(depth - 1, 0, -1):
            gain = backward_gains[..., layer] * slopes[..., layer - 1]
            backward.append(gain * backward[-1])
    return Signal(q, torch.stack(backward[::-1], -1))


def predict_signal_of(model: nn.Module, x: Tensor) -> Signal:
    r"""What the recursion says of a given network, from the norms of its weights alone.

    The gains are $\frac1{m}\|W\|_F^2$ forward and $\frac1n\|W\|_F^2$ backward, the
    bias variance of a layer is the mean of its squared biases. For a freshly drawn network this
    agrees with `measure_signal`; where the two part, the weights have structure.

    Args:
        model: a chain of dense layers and pointwise activations that ends in a dense layer.
        x: `[s, n_0]`.

    >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False))
    >>> _ = net.requires_grad_(False)
    >>> net[0].weight.copy_(torch.eye(2)), net[2].weight.copy_(2 * torch.eye(2))
    (...)
    >>> predict_signal_of(net, torch.ones(1, 2)).forward
    tensor([1., 2.])
    """
    module_with_values(model)
    layers: list[nn.Linear] = []
    between: list[list[nn.Module]] = []
    for link in as_chain(model, x):
        if isinstance(link.module, nn.Linear):
            layers.append(link.module)
            between.append([])
        elif is_pointwise(link.module) and layers:
            between[-1].append(link.module)
        else:
            raise UnsupportedModel(
                f"the recursion covers dense layers and pointwise activations after them, not "
                f"{link.name or type(link.module).__name__} ({type(link.module).__name__})"
            )
    if not layers or between[-1]:
        raise UnsupportedModel("the chain must end in a dense layer")
    as_batch(x)
    q = x.detach().square().mean()
    forward: list[Tensor] = []
    for i, layer in enumerate(layers):
        if i:
            q = second_moment(nn.Sequential(*between[i - 1]), q)
        q = layer.weight.detach().square().sum() / layer.out_features * q
        if layer.bias is not None:
            q = q + layer.bias.detach().square().mean()
        forward.append(q)
    g = torch.ones_like(q)
    backward = [g]
    for i in range(len(layers) - 1, 0, -1):
        weight = layers[i].weight.detach()
        slope = squared_slope(nn.Sequential(*between[i - 1]), forward[i - 1])
        g = weight.square().sum() / layers[i].in_features * slope * g
        backward.append(g)
    names = tuple(link.name for link in as_chain(model, x) if isinstance(link.module, nn.Linear))
    return Signal(torch.stack(forward), torch.stack(backward[::-1]), names)


def measure_signal(model: nn.Module, x: Tensor, *, generator: RandomSource = None) -> Signal:
    r"""Second moments of a network's pre-activations and of a gradient sent back through it.

    The gradient handed to the output is standard normal and scaled to second moment 1. Layers are
    those with a weight matrix or kernel, dense or convolutional. The model is run once each way,
    in evaluation mode, without hooks, and is left as it was.

    Args:
        model: any chain of layers; one with branches is refused.
        x: `[s, ...]`.
        generator: for the gradient at the output.

    >>> net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> signal = measure_signal(net, torch.ones(4, 8))
    >>> signal.names, signal.forward.shape, round(float(signal.backward[-1]), 6)
    (('0', '2'), torch.Size([2]), 1.0)
    """
    as_batch(x)
    chain = as_chain(model, x)
    found: list[Tensor] = []
    names: list[str] = []
    with evaluation_mode(model), torch.enable_grad():
        value = x.detach().clone().requires_grad_()
        for link in chain:
            # a copy: an activation that works in place would overwrite what is measured
            value = link.module(value.clone())
            weight = getattr(link.module, "weight", None)
            if isinstance(weight, Tensor) and weight.ndim > 1:
                found.append(value)
                names.append(link.name)
        if not found:
            raise UnsupportedModel(f"{type(model).__name__} has no layer with a weight matrix")
        generator = as_generator(generator)
        start = torch.randn(
            value.shape, generator=generator, dtype=value.dtype, device=generator.device
        ).to(value.device)
        start = start / start.square().mean().sqrt()
        gradients = torch.autograd.grad(value, found, start)
    forward = torch.stack([z.detach().square().mean() for z in found])
    backward = torch.stack([g.square().mean() for g in gradients])
    if not bool(torch.isfinite(forward).all() & torch.isfinite(backward).all()):
        raise NonFinite("the activations or their gradients overflow on the way through the model")
    return Signal(forward, backward, tuple(names))
