r"""Networks in neural tangent parametrization: standard normal parameters, scaled forward pass.

A dense layer is $f^l = \frac{\sigma_w}{\sqrt{n_{l-1}}}W^lh^{l-1}+\sigma_bb^l$ with every
entry of $W^l, b^l$ drawn from $N(0,1)$: the variance sits in the forward pass, not in
the initialization. The function has the same law either way, its gradients do not: here the tangent
kernel has a limit as the width grows, in the ordinary parametrization it grows with the width.

Source: Foundations of Deep Learning, section 7.3. The divisor printed there is the layer's *own*
width; it must be the width before it (`scaling="fan_out"` shows what goes wrong).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.checks import whole_number, whole_numbers
from torchtheory.core.errors import InvalidInput, InvalidType, UnknownName
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.nets.infinite_width.dual_activations import AnyActivation, activation_layer

#: What each layer divides by. `fan_in`: the root of the number of its inputs. `unscaled_input`:
#: the same, but the first layer divides by nothing (Theorem 57). `fan_out`: the root of its own
#: width, as printed.
Scaling = Literal["fan_in", "unscaled_input", "fan_out"]
Readout = Literal["flatten", "mean"]


class ScaledLinear(nn.Module):
    r"""The layer $x\mapsto s\,Wx+\sigma_bb$ with $W_{ij},b_i\sim N(0,1)$.

    Args:
        inputs, outputs: the widths.
        scale: $s$.
        bias_scale: $\sigma_b$; 0 leaves the bias out.

    >>> layer = ScaledLinear(3, 2, scale=2.0)
    >>> x = torch.ones(1, 3)
    >>> torch.equal(layer(x), 2 * x @ layer.weight.T)
    True
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        scale: float,
        bias_scale: float = 0.0,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        whole_number(inputs, "inputs", least=1)
        whole_number(outputs, "outputs", least=1)
        generator = as_generator(generator)
        self.scale, self.bias_scale = float(scale), float(bias_scale)
        self.weight = _parameter(outputs, inputs, generator=generator, dtype=dtype)
        self.bias = _bias(outputs, bias_scale, generator, dtype)

    def forward(self, x: Tensor) -> Tensor:
        # the parameter itself enters the product: its Jacobian is the layer's input, times a number
        out = self.scale * F.linear(x, self.weight)
        return out if self.bias is None else out + self.bias_scale * self.bias

    def extra_repr(self) -> str:
        outputs, inputs = self.weight.shape
        return f"{inputs}, {outputs}, scale={self.scale:.4g}, bias_scale={self.bias_scale:.4g}"


class ScaledConv2d(nn.Module):
    r"""The convolution $x\mapsto s\,W*x+\sigma_bb$ of stride 1 that keeps the image's size.

    Args:
        inputs, outputs: numbers of channels.
        kernel_size: side of the filter, odd.
        scale: $s$; $\sigma_w/\sqrt{k^2c_{\rm in}}$ for the neural tangent scaling.
        padding: `zeros`, or `circular` for an image on a torus.

    >>> ScaledConv2d(2, 4, 3, scale=0.1)(torch.ones(1, 2, 8, 8)).shape
    torch.Size([1, 4, 8, 8])
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel_size: int,
        *,
        scale: float,
        bias_scale: float = 0.0,
        padding: Literal["zeros", "circular"] = "zeros",
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        whole_number(inputs, "inputs", least=1)
        whole_number(outputs, "outputs", least=1)
        if whole_number(kernel_size, "kernel_size", least=1) % 2 == 0:
            raise InvalidInput(f"the side of the filter must be odd, not {kernel_size}")
        if padding not in ("zeros", "circular"):
            raise UnknownName("padding", str(padding), ("zeros", "circular"))
        generator = as_generator(generator)
        self.scale, self.bias_scale, self.padding = float(scale), float(bias_scale), padding
        self.weight = _parameter(
            outputs, inputs, kernel_size, kernel_size, generator=generator, dtype=dtype
        )
        self.bias = _bias(outputs, bias_scale, generator, dtype)

    def forward(self, x: Tensor) -> Tensor:
        reach = self.weight.shape[-1] // 2
        if self.padding == "circular":
            x = F.pad(x, (reach, reach, reach, reach), mode="circular")
            reach = 0
        out = self.scale * F.conv2d(x, self.weight, padding=reach)
        return out if self.bias is None else out + self.bias_scale * self.bias[:, None, None]

    def extra_repr(self) -> str:
        outputs, inputs, side, _ = self.weight.shape
        return f"{inputs}, {outputs}, kernel_size={side}, scale={self.scale:.4g}"


def ntk_mlp(
    widths: Sequence[int],
    activation: AnyActivation = "relu",
    *,
    weight_variance: float = 2.0,
    bias_variance: float = 0.0,
    scaling: Scaling = "fan_in",
    generator: RandomSource = None,
    dtype: torch.dtype = torch.float32,
) -> nn.Sequential:
    r"""A fully connected network in neural tangent parametrization.

    $f^l=\frac{\sigma_w}{\sqrt{n_{l-1}}}W^lh^{l-1}+\sigma_bb^l$ and $h^l=\varphi(f^l)$
    for $l=1,\dots,L$, with $h^0=x$; the output is $f^L$.

    Args:
        widths: $n_0,\dots,n_L$, input and output included: `len(widths) - 1` affine layers.
        activation: whatever `dual_activation` takes.
        weight_variance, bias_variance: $\sigma_w^2$ and $\sigma_b^2$.
        scaling: see `Scaling`. With the first two, the limits are those of
            `limit_kernels` with the same argument.

    >>> net = ntk_mlp([4, 100, 1], "tanh", bias_variance=0.1)
    >>> net(torch.ones(5, 4)).shape
    torch.Size([5, 1])
    >>> [round(layer.scale, 4) for layer in net if isinstance(layer, ScaledLinear)]
    [0.7071, 0.1414]
    """
    sizes = whole_numbers(widths, "widths", fewest=2)  # of the input and the output at least
    std, bias_std = _deviations(weight_variance, bias_variance)
    generator = as_generator(generator)
    layers: list[nn.Module] = []
    for place, (before, after) in enumerate(pairwise(sizes)):
        if place:
            layers.append(activation_layer(activation))
        divisor = _divisor(scaling, before, after, first=place == 0)
        layers.append(
            ScaledLinear(
                before,
                after,
                scale=std / math.sqrt(divisor),
                bias_scale=bias_std,
                generator=generator,
                dtype=dtype,
            )
        )
    return nn.Sequential(*layers)


def ntk_convolutional(
    channels: Sequence[int],
    outputs: int,
    image: tuple[int, int],
    activation: AnyActivation = "relu",
    *,
    kernel_size: int = 3,
    readout: Readout = "mean",
    weight_variance: float = 2.0,
    bias_variance: float = 0.0,
    padding: Literal["zeros", "circular"] = "zeros",
    generator: RandomSource = None,
    dtype: torch.dtype = torch.float32,
) -> nn.Sequential:
    r"""Convolutions of stride 1, each followed by the activation, then one dense layer.

    Args:
        channels: $c_0,c_1,\dots,c_{L-1}$, those of the input first.
        outputs: width of the dense layer.
        image: height and width.
        readout: `mean` pools over the whole image first, `flatten` gives each pixel its own
            weights.

    The limits are those of `convolutional_kernels`.

    >>> ntk_convolutional([1, 8, 8], 10, (8, 8))(torch.ones(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    sizes = list(channels)
    if len(sizes) < 2:
        raise InvalidInput(f"at least one convolution is needed: channels are {sizes}")
    if readout not in ("flatten", "mean"):
        raise UnknownName("readout", str(readout), ("flatten", "mean"))
    std, bias_std = _deviations(weight_variance, bias_variance)
    generator = as_generator(generator)
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [
            ScaledConv2d(
                before,
                after,
                kernel_size,
                scale=std / math.sqrt(kernel_size**2 * before),
                bias_scale=bias_std,
                padding=padding,
                generator=generator,
                dtype=dtype,
            ),
            activation_layer(activation),
        ]
    features = sizes[-1] if readout == "mean" else sizes[-1] * image[0] * image[1]
    if readout == "mean":
        layers.append(nn.AdaptiveAvgPool2d(1))
    layers += [
        nn.Flatten(),
        ScaledLinear(
            features,
            outputs,
            scale=std / math.sqrt(features),
            bias_scale=bias_std,
            generator=generator,
            dtype=dtype,
        ),
    ]
    return nn.Sequential(*layers)


def _rescaled(layer: nn.Linear, std: float, bias_std: float) -> ScaledLinear:
    scale = std / math.sqrt(layer.in_features)
    has_bias = layer.bias is not None
    made = ScaledLinear(
        layer.in_features,
        layer.out_features,
        scale=scale,
        bias_scale=bias_std if has_bias else 0.0,
        dtype=layer.weight.dtype,
    ).to(layer.weight.device)
    with torch.no_grad():
        made.weight.copy_(layer.weight / scale)
        if made.bias is not None:
            made.bias.copy_(layer.bias / bias_std)
    return made


def _divisor(scaling: Scaling, before: int, after: int, *, first: bool) -> int:
    match scaling:
        case "fan_in":
            return before
        case "unscaled_input":
            return 1 if first else before
        case "fan_out":
            return after
    raise UnknownName("scaling", str(scaling), ("fan_in", "unscaled_input", "fan_out"))


def _deviations(weight_variance: float, bias_variance: float) -> tuple[float, float]:
    check_variances(weight_variance, bias_variance)
    return math.sqrt(weight_variance), math.sqrt(bias_variance)


def check_variances(weight_variance: float, bias_variance: float) -> None:
    """Refuse what is no variance: weights need a positive one, biases one that is not negative."""
    for value, name, least in (
        (weight_variance, "weight_variance", "a positive number"),
        (bias_variance, "bias_variance", "a number >= 0"),
    ):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidType(f"{name} must be a number, not {value!r}")
        allowed = value > 0 or (value == 0 and name == "bias_variance")
        if not (math.isfinite(value) and allowed):
            raise InvalidInput(f"{name} must be {least}, not {value!r}")


def _parameter(*shape: int, generator: torch.Generator, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(gaussian(*shape, generator=generator, dtype=dtype))


def _bias(
    outputs: int, scale: float, generator: torch.Generator, dtype: torch.dtype
) -> nn.Parameter | None:
    return _parameter(outputs, generator=generator, dtype=dtype) if scale else None
