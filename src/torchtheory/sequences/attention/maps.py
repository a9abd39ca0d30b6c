r"""What tokens look at, and what they depend on, in a network of the user's.

The weights $A_{it}$ of each attention layer, and the sizes $\|\partial y_i/\partial x_t\|$ of the
blocks of a Jacobian. The first say where one layer looks, the second what an output hangs on in the
end: after one layer of attention all tokens on all tokens, after one convolution only neighbors.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_batch, as_module, described
from torchtheory.core.errors import InvalidType, ShapeMismatch, UnsupportedModel
from torchtheory.models.model import evaluation_mode
from torchtheory.nets.residual.jacobians import block_jacobian
from torchtheory.sequences.attention.heads import MultiHeadAttention


def attention_maps(model: nn.Module, *inputs: Any, **options: Any) -> dict[str, Tensor]:
    """The weights `[B, heads, T, S]` of every attention layer, by its name, in the order of use.

    Layers are `MultiHeadAttention` and torch's `nn.MultiheadAttention`, also inside of torch's
    transformers. The model runs once, in evaluation mode and without gradients, and is not changed.
    A layer that is used twice has a second entry, `name (2)`.

    Args:
        model: a module that has such layers.
        inputs, options: what it is called with.

    Time: a forward pass, with all weights computed and kept.

    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> maps = attention_maps(nn.TransformerEncoder(layer, 2), torch.ones(3, 5, 8))
    >>> {name: list(a.shape) for name, a in maps.items()}
    {'layers.0.self_attn': [3, 2, 5, 5], 'layers.1.self_attn': [3, 2, 5, 5]}
    """
    as_module(model)
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, MultiHeadAttention | nn.MultiheadAttention)
    }
    if not layers:
        raise UnsupportedModel(
            f"{type(model).__name__} has no attention layer: MultiHeadAttention of this package or "
            "torch's nn.MultiheadAttention"
        )
    found: dict[str, Tensor] = {}
    busy = False

    def watch(name: str) -> Any:
        def before(layer: nn.Module, given: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            nonlocal busy
            if busy:  # the call below comes here again
                return
            busy = True
            try:
                weights = _weights(layer, given, keywords)
            finally:
                busy = False
            uses = sum(key == name or key.startswith(f"{name} (") for key in found)
            found[f"{name} ({uses + 1})" if uses else name] = weights

        return before

    # the stack is left first: it puts back whether gradients are taken as it found that
    with torch.no_grad(), ExitStack() as stack:
        stack.enter_context(evaluation_mode(model))
        for name, layer in layers.items():
            stack.enter_context(layer.register_forward_pre_hook(watch(name), with_kwargs=True))
        model(*inputs, **options)
    return found


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
    with torch.no_grad(), evaluation_mode(as_module(model)):
        y = model(x[:1])
    if x.ndim != 3 or not isinstance(y, Tensor) or y.ndim != 3:
        raise ShapeMismatch(
            "the model must map sequences [n, tokens, size] to sequences, not "
            f"{list(x.shape)} to {described(y)}"
        )
    full = block_jacobian(model, x).view(len(x), *y.shape[1:], *x.shape[1:])
    made: Tensor = full.square().sum((2, 4)).sqrt()
    return made


def _weights(layer: nn.Module, given: tuple[Any, ...], keywords: Mapping[str, Any]) -> Tensor:
    """The weights for what a layer is about to be called with."""
    if isinstance(layer, MultiHeadAttention):
        cache = keywords.get("cache")
        if cache is not None:
            raise UnsupportedModel("attention maps are of whole sequences: call without a cache")
        made = layer(*given, **{**keywords, "weights": True})
    else:
        wanted = {"need_weights": True, "average_attn_weights": False}
        made = layer(*given[:4], **{**_named(given[4:]), **keywords, **wanted})
    weights: Tensor = made[1]
    return weights


def _named(rest: tuple[Any, ...]) -> dict[str, Any]:
    """What torch's layer takes by position after queries, keys, values and padding."""
    names = ("need_weights", "attn_mask", "average_attn_weights", "is_causal")
    return dict(zip(names, rest, strict=False))
