r"""Attention in a user's network while it runs: what each head looks at, how alike tokens become.

Functions are watched rather than modules: torch's `scaled_dot_product_attention` and
`multi_head_attention_forward`, which its layers, those of this package and those of other libraries
call, and a softmax over the last of four axes, which attention written by hand has. A token's
weights $a$ over the n tokens that it may look at have the relative entropy
$-\sum_ta_t\ln a_t/\ln n$: 0 for one token, 1 for an average of all.

Attention averages, so that without residual connections tokens become alike with depth: their
matrix X tends to one with equal rows (Y. Dong, J.-B. Cordonnier and A. Loukas, *Attention is not
all you need*, 2021). How far it is from there is $\|X-1\bar x^\top\|_F/\|X\|_F$.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.models.evaluation import called
from torchtheory.models.model import PureFunction, global_randomness_kept, tensors_in
from torchtheory.sequences.attention.maps import attention_entropy
from torchtheory.sequences.attention.tracing import NamedCalls

#: A score so far below the largest of its row is that of a mask: its weight is 0 in any precision.
_MASKED = 500.0


@dataclass(frozen=True, slots=True)
class WatchedHeads:
    """One use of an attention layer.

    Attributes:
        name: path of the module that calls attention; empty for the model itself.
        kind: its class.
        entropy: relative entropy of a head's weights, mean over the tokens that may look at
            several, `[samples, heads]`.
        favorite: the largest mean weight of a token that is looked at, the same, `[samples, heads]`.
        weights: of the first sample, `[heads, T, S]`.
    """  # noqa: E501 - of a docstring

    name: str
    kind: str
    entropy: Tensor
    favorite: Tensor
    weights: Tensor

    @property
    def heads(self) -> int:
        return self.entropy.shape[1]


@dataclass(frozen=True, slots=True)
class TokenSpread:
    r"""How far the tokens that a block returns are from being all the same.

    Attributes:
        name: path of the block; of what enters the first one, with `(input)`.
        stack: path of the list of blocks that it is in.
        distance: $\|X-1\bar x^\top\|_F/\|X\|_F$, `[samples]`.
    """

    name: str
    stack: str
    distance: Tensor


def watch_attention(
    function: PureFunction, x: Tensor
) -> tuple[list[WatchedHeads], list[TokenSpread]]:
    """What the heads of a network look at, and how alike its tokens are, in the order of use.

    A block is the innermost module of a numbered list (`nn.ModuleList`, `nn.Sequential`) that an
    attention layer belongs to.

    Args:
        function: the network.
        x: inputs, samples first.

    Time: a forward pass, and attention once more. Memory: the weights of a layer.

    >>> from torch import nn
    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    >>> heads, spreads = watch_attention(PureFunction(net), torch.randn(3, 5, 8))
    >>> [(h.name, tuple(h.entropy.shape)) for h in heads]
    [('layers.0.self_attn', (3, 2)), ('layers.1.self_attn', (3, 2))]
    >>> [s.name for s in spreads]
    ['layers.0 (input)', 'layers.0', 'layers.1']
    """
    watch = _Attention(function, len(x))
    with torch.no_grad(), global_randomness_kept(), watch.named(), watch:
        called(function, lambda t: function.call(function.parameters, t), x)
    return watch.heads, watch.spreads


def joined_heads(parts: Sequence[list[WatchedHeads]]) -> list[WatchedHeads]:
    """The same layers at more samples."""
    return [
        replace(
            uses[0],
            entropy=torch.cat([u.entropy for u in uses]),
            favorite=torch.cat([u.favorite for u in uses]),
        )
        for uses in zip(*parts, strict=True)
    ]


def joined_spreads(parts: Sequence[list[TokenSpread]]) -> list[TokenSpread]:
    """The same blocks at more samples."""
    return [
        replace(uses[0], distance=torch.cat([u.distance for u in uses]))
        for uses in zip(*parts, strict=True)
    ]


def token_distance(tokens: Tensor) -> Tensor:
    r"""$\|X-1\bar x^\top\|_F/\|X\|_F$ of tokens `[..., T, d]`, `[...]`; 0 where they are all the same.

    >>> token_distance(torch.tensor([[1.0, 1.0], [1.0, 1.0]])).item()
    0.0
    >>> round(token_distance(torch.eye(2)).item(), 4)
    0.7071
    """  # noqa: E501 - of a docstring
    x = tokens.double()
    apart = (x - x.mean(-2, keepdim=True)).square().sum((-2, -1))
    return (apart / x.square().sum((-2, -1)).clamp_min(1e-300)).sqrt()


class _Attention(NamedCalls):
    def __init__(self, function: PureFunction, samples: int) -> None:
        super().__init__(function.model)
        self.samples = samples
        self.heads: list[WatchedHeads] = []
        self.spreads: list[TokenSpread] = []
        self.entered: list[tuple[Any, ...]] = [()]
        self.blocks: dict[str, tuple[int, int]] = {}

    def enters(self, name: str, args: tuple[Any, ...]) -> None:
        self.entered.append(args)

    def leaves(self, name: str, result: Any) -> None:
        args = self.entered.pop()
        sizes = self.blocks.pop(name, None)
        if sizes is None:
            return
        stack = name.rpartition(".")[0]
        if not any(s.stack == stack for s in self.spreads):
            self._spread(f"{name} (input)", stack, args, sizes)
        self._spread(name, stack, [result], sizes)

    def calls_function(
        self, func: Any, args: tuple[Any, ...], named: dict[str, Any], result: Any
    ) -> None:
        name = getattr(func, "__name__", "")
        found = None
        if name == "multi_head_attention_forward":
            found = _of_layer(args, named)
        elif name == "scaled_dot_product_attention":
            found = _of_function(*args, **named)
        elif name == "softmax":
            found = _of_softmax(args, named, result)
        if found is not None:
            self._met(*found)

    def _met(self, weights: Tensor, allowed: Tensor) -> None:
        """Attention with weights `[B, heads, T, S]` and where these may be positive."""
        if weights.ndim != 4 or len(weights) % self.samples:
            return
        times = len(weights) // self.samples
        several = allowed.sum(-1)
        count = several.clamp_min(2).double().log()
        looks = (several > 1).double()
        tokens = looks.sum(-1).clamp_min(1)
        entropy = (attention_entropy(weights.double()) / count * looks).sum(-1) / tokens
        mean = (weights.double() * looks.unsqueeze(-1)).sum(-2) / tokens.unsqueeze(-1)

        def by_sample(values: Tensor) -> Tensor:
            return values.reshape(self.samples, times, -1).mean(1).cpu()

        if bool((several > 1).any()):
            path, kind = self.path[-1]
            self.heads.append(
                WatchedHeads(
                    path, kind, by_sample(entropy), by_sample(mean.amax(-1)), weights[0].cpu()
                )
            )
        block = next((p for p, _ in reversed(self.path) if p.rpartition(".")[2].isdigit()), None)
        if block is not None and times == 1:
            self.blocks[block] = (self.samples, weights.shape[-2])

    def _spread(self, name: str, stack: str, values: Any, sizes: tuple[int, int]) -> None:
        tokens = next((t for t in tensors_in(values) if t.ndim == 3), None)
        if tokens is None:
            return
        if tokens.shape[:2] != sizes:
            tokens = tokens.transpose(0, 1)
        if tokens.shape[:2] == sizes and sizes[1] > 1:
            self.spreads.append(TokenSpread(name, stack, token_distance(tokens).cpu()))


def _of_layer(args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Weights of torch's layer, asked for once more."""
    given = inspect.signature(F.multi_head_attention_forward).bind(*args, **named)
    given.apply_defaults()
    asked = given.arguments
    if asked["query"].ndim != 3 or asked["bias_k"] is not None or asked["add_zero_attn"]:
        return None
    asked |= {"need_weights": True, "average_attn_weights": False}
    weights = F.multi_head_attention_forward(*given.args, **given.kwargs)[1]
    assert weights is not None
    open_ = torch.ones_like(weights, dtype=torch.bool)
    mask, padding = asked["attn_mask"], asked["key_padding_mask"]
    if mask is not None:
        shape = mask.shape if mask.ndim == 2 else weights.shape
        open_ = open_ & ~_closed(mask).reshape(shape)
    if padding is not None:
        open_ = open_ & ~_closed(padding)[:, None, None]
    return weights, open_


def _closed(mask: Tensor) -> Tensor:
    return mask if mask.dtype == torch.bool else mask < -_MASKED


def _of_function(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor] | None:
    """Weights of `scaled_dot_product_attention`, which does not return them."""
    if query.ndim == 3:
        query, key = query.unsqueeze(1), key.unsqueeze(1)
        if attn_mask is not None and attn_mask.ndim == 3:
            attn_mask = attn_mask.unsqueeze(1)
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = factor * query @ key.mT
    if is_causal:
        blocked = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(blocked, -math.inf)
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(-1).nan_to_num(0.0), _allowed(scores)


def _allowed(scores: Tensor) -> Tensor:
    """Where a mask is seen by a score far below the largest of its row."""
    return scores > scores.amax(-1, keepdim=True) - _MASKED


def _of_softmax(
    args: tuple[Any, ...], named: dict[str, Any], result: Any
) -> tuple[Tensor, Tensor] | None:
    """Attention written by hand: a softmax over the last axis of scores `[B, heads, T, S]`."""
    scores = args[0] if args else named.get("input")
    axis = named.get("dim", args[1] if len(args) > 1 else None)
    if not isinstance(scores, Tensor) or scores.ndim != 4 or axis not in (-1, 3):
        return None
    return (result, _allowed(scores)) if min(scores.shape[-2:]) > 1 else None
