r"""What tokens look at, and what they depend on, in a network of the user's.

The weights $A_{it}$ of each attention layer, and the sizes $\|\partial y_i/\partial x_t\|$ of the
blocks of a Jacobian. The first say where one layer looks, the second what an output hangs on in the
end: after one layer of attention all tokens on all tokens, after one convolution only neighbors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_batch, described, module_with_values
from torchtheory.core.errors import InvalidType, ShapeMismatch, UnsupportedModel
from torchtheory.models.model import evaluation_mode
from torchtheory.nets.residual.jacobians import block_jacobian
from torchtheory.sequences.attention.cache import KeyValueCache
from torchtheory.tracing.network import Network, Operation, Value
from torchtheory.tracing.passes import without_composites
from torchtheory.tracing.recorder import record_call


def attention_maps(model: nn.Module, *inputs: Any, **options: Any) -> dict[str, Tensor]:
    """The weights `[B, heads, T, S]` of every attention, by its layer's name, in the order of use.

    Attention is a softmax whose result a matrix of values is multiplied by: that of this package
    and of torch, fused or not, written by hand, or in an exported archive. The model runs in
    evaluation mode and without gradients, and is not changed. A layer that is used twice has a
    second entry, `name (2)`.

    Args:
        model: a module with attention.
        inputs, options: what it is called with.

    Time: two forward passes, the second up to the last of the weights. Memory: what the first
    computes.

    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> maps = attention_maps(nn.TransformerEncoder(layer, 2), torch.ones(3, 5, 8))
    >>> {name: list(a.shape) for name, a in maps.items()}
    {'layers.0.self_attn': [3, 2, 5, 5], 'layers.1.self_attn': [3, 2, 5, 5]}
    """
    if any(isinstance(given, KeyValueCache) for given in (*inputs, *options.values())):
        raise UnsupportedModel("attention maps are of whole sequences: call without a cache")
    network, given = record_call(
        module_with_values(model), inputs, options, known=without_composites
    )
    uses = attentions(network)
    if not uses:
        raise UnsupportedModel(
            f"{type(model).__name__} has no attention layer: values are multiplied by no softmax"
        )
    with torch.no_grad():
        found = network.until(*(use.weights for use in uses)).replay(*given)
    maps: dict[str, Tensor] = {}
    for use, weights in zip(uses, found, strict=True):
        name = use.softmax.layer
        times = sum(key == name or key.startswith(f"{name} (") for key in maps)
        maps[f"{name} ({times + 1})" if times else name] = by_heads(weights)
    return maps


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention of a recorded network.

    Attributes:
        softmax: the operation that makes the weights.
        weights: they themselves, by heads where the network looks at them so.
    """

    softmax: Operation
    weights: Value

    @property
    def scores(self) -> Value:
        """What the softmax is of."""
        return self.softmax.inputs[0]


def attentions(network: Network) -> list[Attention]:
    """Every softmax over the last axis whose result is the left factor of a product."""
    return [
        Attention(op, _with_heads(network, op.outputs[0]))
        for op in network
        if op.name == "softmax" and op.follows and _over_keys(op) and _multiplies(network, op)
    ]


def _over_keys(op: Operation) -> bool:
    ndim = len(op.outputs[0].shape)
    return ndim > 2 and op.arguments.get("dim") in (-1, ndim - 1)


#: What may happen to weights before values are multiplied by them: masks, dropout, another form.
_PASSING = ("nan_to_num", "masked_fill", "where", "mul")


def _passed_on(network: Network, value: Value) -> Iterator[tuple[Operation, Value]]:
    """The operations that take a value, or what masks, dropout and reshaping make of it."""
    for op in network.users.get(value, []):
        yield op, value
        if op.kind in ("moves", "random") or op.name in _PASSING:
            for made in op.outputs:
                yield from _passed_on(network, made)


def _multiplies(network: Network, op: Operation) -> bool:
    """Whether a matrix is multiplied by what an operation makes, from the left."""
    return any(
        user.name in ("matmul", "einsum", "baddbmm")
        and next(v for v in user.inputs if v.follows) is value
        for user, value in _passed_on(network, op.outputs[0])
    )


def _with_heads(network: Network, weights: Value) -> Value:
    """The same weights `[B, heads, T, S]`, where a network that joined B and heads parts them."""
    if len(weights.shape) == 4:
        return weights
    for op in network.users.get(weights, []):
        shape = op.outputs[0].shape if op.kind == "moves" else ()
        if len(shape) == 4 and shape[-2:] == weights.shape[-2:]:
            return op.outputs[0]
    return weights


def by_heads(weights: Tensor) -> Tensor:
    """Weights `[B, heads, T, S]`; without heads of their own they have one."""
    return weights.unsqueeze(1) if weights.ndim == 3 else weights.flatten(1, -3)


def attention_entropy(weights: Tensor) -> Tensor:
    r"""$-\sum_ta_t\ln a_t$ of weights `[..., T, S]`, `[..., T]`: 0 for one token, ln S for all.

    >>> attention_entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    tensor([0.0000, 0.6931])
    """
    if not isinstance(weights, Tensor) or weights.ndim < 1 or not weights.is_floating_point():
        raise InvalidType(f"weights must be a tensor [..., tokens], not {described(weights)}")
    entropy: Tensor = torch.special.entr(weights).sum(-1)
    return entropy


def token_jacobian(model: nn.Module, x: Tensor) -> Tensor:
    r"""$\|\partial y_i/\partial x_t\|_F$ of a network from sequences to sequences, `[n, T, S]`.

    Entry `[i, t]` is 0 exactly where output token i does not depend on input token t, to first
    order. The network runs in evaluation mode.

    Args:
        model: a module that maps `[n, S, d]` to `[n, T, e]`.
        x: inputs `[n, S, d]`.

    Time: one backward pass per entry of an output, many of them at once.

    >>> token_jacobian(nn.Linear(2, 3, bias=False), torch.ones(1, 4, 2))[0].bool().int()
    tensor([[1, 0, 0, 0],
            [0, 1, 0, 0],
            [0, 0, 1, 0],
            [0, 0, 0, 1]], dtype=torch.int32)
    """
    x = as_batch(x)
    with torch.no_grad(), evaluation_mode(module_with_values(model)):
        y = model(x[:1])
    if x.ndim != 3 or not isinstance(y, Tensor) or y.ndim != 3:
        raise ShapeMismatch(
            "the model must map sequences [n, tokens, size] to sequences, not "
            f"{list(x.shape)} to {described(y)}"
        )
    full = block_jacobian(model, x).view(len(x), *y.shape[1:], *x.shape[1:])
    made: Tensor = full.square().sum((2, 4)).sqrt()
    return made
