r"""Attention in a user's network while it runs: what each head looks at, how alike tokens become.

Attention is found among the operations of the network: a softmax by whose result values are
multiplied, in torch's layers, those of this package and of other libraries, written by hand or in
an archive. A token's weights $a$ over the n tokens that it may look at have the relative entropy
$-\sum_ta_t\ln a_t/\ln n$: 0 for one token, 1 for an average of all.

Attention averages, so that without residual connections tokens become alike with depth: their
matrix X tends to one with equal rows (Y. Dong, J.-B. Cordonnier and A. Loukas, *Attention is not
all you need*, 2021). How far it is from there is $\|X-1\bar x^\top\|_F/\|X\|_F$.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchtheory.models.model import PureFunction
from torchtheory.sequences.attention.maps import (
    Attention,
    attention_entropy,
    attentions,
    by_heads,
)
from torchtheory.tracing.network import BatchSize, Network, Operation, Value, Visit, called
from torchtheory.tracing.passes import evaluated, network_of, without_composites
from torchtheory.tracing.recorder import input_tensors

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
    network = network_of(function, x, without_composites)
    watch = _Watched(network, len(x))
    watch.tokens.update(zip(network.inputs, input_tensors(function, x), strict=True))
    with torch.no_grad():
        evaluated(function, network, x, watch.step)
    return watch.heads, watch.spreads()


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


class _Watched:
    """Keeps what is asked of the weights of every attention and of the tokens of every block."""

    def __init__(self, network: Network, samples: int) -> None:
        self.samples = samples
        uses = attentions(network)
        self.uses = {use.weights: use for use in uses}
        self.scores = {use.scores for use in uses}
        self.allowed: dict[Value, Tensor] = {}
        self.heads: list[WatchedHeads] = []
        self.blocks = _blocks(network, uses)
        self.tokens: dict[Value, Tensor] = {}
        self.wanted = {v for block in self.blocks for v in (block.input, block.output)}

    def step(self, op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = called(op, args, kwargs)
        if op.outputs and isinstance(made, Tensor):
            value = op.outputs[0]
            if value in self.scores:
                self.allowed[value] = _allowed(made)
            if value in self.uses:
                self._met(self.uses[value], made)
            if value in self.wanted:
                self.tokens[value] = made
        return made

    def _met(self, use: Attention, made: Tensor) -> None:
        """Attention with weights `[B, heads, T, S]`, and where these may be positive."""
        weights = by_heads(made.nan_to_num(0.0))
        allowed = self.allowed.pop(use.scores).reshape(weights.shape)
        if len(weights) % self.samples:
            return
        several = allowed.sum(-1)
        if not bool((several > 1).any()):
            return
        count = several.clamp_min(2).double().log()
        looks = (several > 1).double()
        tokens = looks.sum(-1).clamp_min(1)
        entropy = (attention_entropy(weights.double()) / count * looks).sum(-1) / tokens
        mean = (weights.double() * looks.unsqueeze(-1)).sum(-2) / tokens.unsqueeze(-1)
        times = len(weights) // self.samples

        def by_sample(values: Tensor) -> Tensor:
            return values.reshape(self.samples, times, -1).mean(1).cpu()

        self.heads.append(
            WatchedHeads(
                use.softmax.layer,
                use.softmax.layer_kind,
                by_sample(entropy),
                by_sample(mean.amax(-1)),
                weights[0].cpu(),
            )
        )

    def spreads(self) -> list[TokenSpread]:
        """How alike tokens are before the first block of a stack and behind every block."""
        found: list[TokenSpread] = []
        for block in self.blocks:
            stack = block.name.rpartition(".")[0]
            places = [(block.name, block.output)]
            if not any(s.stack == stack for s in found):
                places.insert(0, (f"{block.name} (input)", block.input))
            for name, value in places:
                tokens = None if value is None else self.tokens.get(value)
                if tokens is None:
                    continue
                sizes = (self.samples, block.length)
                tokens = tokens if tokens.shape[:2] == sizes else tokens.transpose(0, 1)
                if tokens.shape[:2] == sizes and block.length > 1:
                    found.append(TokenSpread(name, stack, token_distance(tokens).cpu()))
        return found


@dataclass(frozen=True, slots=True)
class _Block:
    """A part of a numbered list of modules: its name, what enters and leaves it, and tokens."""

    name: str
    input: Value | None
    output: Value | None
    length: int


def _blocks(network: Network, uses: list[Attention]) -> list[_Block]:
    """The innermost module of a numbered list that each attention belongs to, in order."""
    found: dict[Visit, _Block] = {}
    for use in uses:
        numbered = [v for v in use.softmax.visits if v.layer.rpartition(".")[2].isdigit()]
        length = use.weights.shape[-2]
        if not numbered or not isinstance(length, int) or _several_per_sample(network, use):
            continue
        entering, leaving = network.boundary(
            [op for op in network if numbered[-1] in op.visits and op.follows]
        )
        first = next((v for v in entering if len(v.shape) == 3), None)
        last = next((v for v in reversed(leaving) if len(v.shape) == 3), None)
        found.setdefault(numbered[-1], _Block(numbered[-1].layer, first, last, length))
    return list(found.values())


def _several_per_sample(network: Network, use: Attention) -> bool:
    """Whether the first axis of the weights holds more than the samples, windows say."""
    first = use.weights.shape[0]
    return first not in (BatchSize(1), network.rows)


def _allowed(scores: Tensor) -> Tensor:
    """Where a mask is seen by a score far below the largest of its row."""
    return scores > scores.amax(-1, keepdim=True) - _MASKED
