r"""Deep Taylor decomposition: relevance of one neuron as a first-order expansion.

Relevance of a neuron is modeled as $\hat r_k(x)=c_k\max(0,w_k^\top x+b_k)$ with a constant $c_k$,
and handed on by its expansion at a reference point $\tilde x$ in the active domain,
$R_{k\to j}=(x_j-\tilde x_j)w_{jk}c_k$, which has no second-order term. Which $\tilde x$, decides
the rule (`rules.RootPoint`). Source: Mathematical Aspects of Deep Learning, sections 5.4.2 and
5.4.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.core.checks import module_with_values, positive_number
from torchtheory.core.errors import InvalidInput
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.explanation.composites import Rules
from torchtheory.explanation.lrp import layer_relevances
from torchtheory.explanation.score import Target
from torchtheory.tracing.layer_features import layer_values


@dataclass(frozen=True, slots=True)
class NeuronExpansion:
    r"""First-order expansion of a neuron's relevance $c\max(0,w^\top x+b)$.

    Attributes:
        messages: `[n, d]`, $(x_j-\tilde x_j)w_jc$.
        zero_order: `[n]`, the relevance of the reference.
        residual: `[n]`, what is left: 0 if reference and input are both in the active domain.
    """

    messages: Tensor
    zero_order: Tensor
    residual: Tensor


def neuron_expansion(
    x: Tensor, weight: Tensor, reference: Tensor, *, bias: float = 0.0, factor: float = 1.0
) -> NeuronExpansion:
    """Expand a ReLU neuron's relevance at a reference point.

    On the boundary of the active domain, where a root is, the slope is that of the active side.

    Args:
        x, reference: `[n, d]`.
        weight, bias: of the neuron, `[d]` and a number.
        factor: the constant c.
    """
    at = reference @ weight + bias
    scale = 1e-9 * ((reference.abs() @ weight.abs()) + abs(bias))
    active = (at >= -scale).to(x)
    messages = factor * active[:, None] * (x - reference) * weight
    zero_order = factor * at.clamp_min(0)
    value = factor * (x @ weight + bias).clamp_min(0)
    return NeuronExpansion(messages, zero_order, value - zero_order - messages.sum(1))


def root_along(x: Tensor, weight: Tensor, direction: Tensor, *, bias: float = 0.0) -> Tensor:
    r"""The root $\tilde x=x-tv$ of a neuron on a line, $t=(w^\top x+b)/(w^\top v)$, `[n, d]`.

    Args:
        x, direction: `[n, d]`.
        weight, bias: of the neuron.

    Raises:
        InvalidInput: if the neuron does not change along a direction, so that there is no root.
    """
    change = direction @ weight
    if bool((change == 0).any()):
        raise InvalidInput(
            "the neuron does not change along the direction, so it has no root there"
        )
    return x - ((x @ weight + bias) / change)[:, None] * direction


def relevance_variation(
    model: nn.Module,
    x: Tensor,
    target: Target = None,
    rules: Rules = None,
    layers: Sequence[str] = (),
    *,
    radius: float = 1e-3,
    generator: RandomSource = None,
) -> dict[str, float]:
    r"""How constant $c_k=R_k/x_k$ is near the samples, by layer.

    Deep Taylor decomposition takes $c_k$ for a constant. Samples are moved by Gaussian noise of
    standard deviation `radius`, and the largest change of $c$ at units that are active before and
    after is divided by the largest $|c|$. With `Zero` in a network of ReLUs c is the gradient,
    which is constant in a linear region.

    Args:
        model: a chain of layers such as `nn.Sequential`.
        x: inputs `[n, ...]`.
        target, rules: as of `lrp`.
        layers: names of layers with activations that are not negative, such as ReLUs.
        radius: of the noise.
        generator: of the noise.
    """
    module_with_values(model)
    positive_number(radius, "radius")
    noise = torch.randn(x.shape, generator=as_generator(generator), dtype=x.dtype)
    before = _factors(model, x, target, rules, layers)
    after = _factors(model, x + radius * noise, target, rules, layers)
    found = {}
    for layer in layers:
        (c, on), (d, still) = before[layer], after[layer]
        both = on & still
        largest = float(c[both].abs().max()) if bool(both.any()) else 0.0
        change = float((c - d)[both].abs().max()) if largest > 0 else 0.0
        found[layer] = change / largest if largest > 0 else 0.0
    return found


def _factors(
    model: nn.Module, x: Tensor, target: Target, rules: Rules, layers: Sequence[str]
) -> dict[str, tuple[Tensor, Tensor]]:
    """c and where it is defined, for each layer."""
    relevances = layer_relevances(model, x, target, rules, layers)
    names = [name for name, _ in model.named_children()]
    values = dict(zip(names, layer_values(model, x), strict=True))
    found = {}
    for layer in layers:
        a = values[layer].to(relevances[layer])
        on = a > 0
        found[layer] = (torch.where(on, relevances[layer] / torch.where(on, a, 1), 0), on)
    return found


@dataclass(frozen=True, slots=True)
class ProductExpansion:
    r"""Expansion of $c\,\sigma(z_g)\,h(z_j)$ at its nearest root, as functions of the entries.

    Attributes:
        root: the gate's and the signal's pre-activation of the root, `[n, 2]`.
        gate, signal: first-order terms $R_g$ and $R_j$, `[n]`.
        residual: `[n]`, the relevance less both.
        bound: `[n]`, what the absolute value of the residual is at most.
    """

    root: Tensor
    gate: Tensor
    signal: Tensor
    residual: Tensor
    bound: Tensor


def product_expansion(
    gate: Tensor,
    signal: Tensor,
    factor: float = 1.0,
    *,
    activation: Literal["tanh", "relu"] = "tanh",
    root: Tensor | None = None,
) -> ProductExpansion:
    r"""Taylor expansion of a gated product's relevance, which gives the gate nothing.

    The nearest root of $\sigma(z_g)h(z_j)$, with $h$ the hyperbolic tangent or a ReLU on its active
    side, is $(z_g,0)$. There $R_g=0$ and $R_j=c\,\sigma(z_g)z_j$: all of the relevance for a ReLU,
    and for tanh all but $c\,\sigma(z_g)(\tanh z_j-z_j)$, which is at most
    $c\,\sigma(z_g)|z_j|^3/3$.

    Args:
        gate, signal: pre-activations `[n]`; for a ReLU the signal must be positive.
        factor: the constant c.
        activation: of the signal.
        root: another root `[n, 2]` to expand at; its signal must be 0.
    """
    if activation not in ("tanh", "relu"):
        raise InvalidInput(f"the activation is 'tanh' or 'relu', not {activation!r}")
    if activation == "relu" and not bool((signal > 0).all()):
        raise InvalidInput("a ReLU has relevance where its input is positive")
    nearest = torch.stack([gate, torch.zeros_like(signal)], 1)
    at = nearest if root is None else root
    if bool((at[:, 1] != 0).any()):
        raise InvalidInput("a root has the signal 0")
    h = torch.tanh if activation == "tanh" else torch.relu
    value = factor * torch.sigmoid(gate) * h(signal)
    # the slope of both activations at 0 is 1, and their value 0
    of_gate = torch.zeros_like(gate)
    of_signal = factor * torch.sigmoid(at[:, 0]) * signal
    largest = abs(factor) * torch.sigmoid(gate) * signal.abs() ** 3 / 3
    bound = largest if activation == "tanh" else torch.zeros_like(gate)
    return ProductExpansion(at, of_gate, of_signal, value - of_gate - of_signal, bound)
