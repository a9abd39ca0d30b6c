"""Attention maps and Jacobians by token, of our networks and of torch's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.tracing.architectures import architecture, archived
from torch import Tensor, nn

from torchtheory.core.errors import InvalidType, ShapeMismatch, UnsupportedModel
from torchtheory.models.model import PureFunction
from torchtheory.sequences.attention.blocks import EncoderBlock
from torchtheory.sequences.attention.dot_product import linear_attention
from torchtheory.sequences.attention.heads import MultiHeadAttention
from torchtheory.sequences.attention.maps import attention_entropy, attention_maps, token_jacobian
from torchtheory.sequences.attention.transformers import (
    LanguageModel,
    Transformer,
    TransformerEncoder,
)
from torchtheory.sequences.attention.watching import watch_attention


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_maps_of_torch_and_ours_agree() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.3)
    torchs = nn.TransformerEncoder(layer, 3).double()
    x = draw(2, 5, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    found = attention_maps(torchs, x, mask=mask)
    ours = TransformerEncoder.from_torch(torchs)
    expected = attention_maps(ours, x, mask)
    assert list(found) == [f"layers.{i}.self_attn" for i in range(3)]
    assert list(expected) == [f"blocks.{i}.attention" for i in range(3)]
    for a, b in zip(found.values(), expected.values(), strict=True):
        assert a.shape == (2, 2, 5, 5)
        assert torch.allclose(a, b)
        assert not a.triu(1).any()
    assert torchs.training
    assert not any(m._forward_pre_hooks for m in torchs.modules())


def test_maps_are_those_of_the_run() -> None:
    model = LanguageModel(7, 8, 2, 2, length=6, generator=1)
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6]])
    maps = attention_maps(model, tokens)
    x = model.positions(model.embedding(tokens))
    first, second = model.blocks
    assert torch.allclose(
        maps["blocks.0.attention"], first.attention(first.norm1(x), causal=True, weights=True)[1]
    )
    x = first(x, causal=True)
    assert torch.allclose(
        maps["blocks.1.attention"], second.attention(second.norm1(x), causal=True, weights=True)[1]
    )


def test_maps_of_cross_attention_and_of_a_layer_used_twice() -> None:
    model = Transformer(5, 5, 8, 16, 2, depth=1)
    maps = attention_maps(model, torch.zeros(1, 4).long(), torch.zeros(1, 3).long())
    assert maps["blocks.0.cross"].shape == (1, 2, 3, 4)
    assert list(maps) == ["encoder.blocks.0.attention", "blocks.0.attention", "blocks.0.cross"]
    layer = MultiHeadAttention(8, 2)
    twice = attention_maps(nn.Sequential(layer, layer), draw(1, 3, 8))
    assert list(twice) == ["0", "0 (2)"]


def by_hand(name: str, model: Any, x: Tensor) -> Tensor:
    """The weights of the one attention of an architecture, `[B, heads, T, S]`."""
    if name == "own-attention":
        q, k, _ = (t.unflatten(-1, (2, 3)).transpose(1, 2) for t in model.qkv(x).chunk(3, -1))
        return torch.softmax(q @ k.mT / math.sqrt(3), -1)
    scores = model.q(x) @ model.k(x).mT / math.sqrt(6)
    seen = torch.ones(5, 5, dtype=torch.bool).tril()
    return torch.softmax(scores.masked_fill(~seen, -math.inf), -1).unsqueeze(1)


@pytest.mark.parametrize("name", ["own-attention", "causal-attention"])
def test_maps_of_attention_that_is_no_layer(name: str) -> None:
    """Written by hand and fused, in the model and in an archive of it."""
    made = architecture(name)
    for model in (made.model, archived(name)):
        ((layer, weights),) = attention_maps(model, made.x).items()
        assert layer == ""
        torch.testing.assert_close(weights, by_hand(name, made.model, made.x).detach())
        ((heads,), _) = watch_attention(PureFunction(model), made.x)
        torch.testing.assert_close(heads.weights, weights[0])


def test_an_archive_of_torchs_layers() -> None:
    made = architecture("encoder")
    own, theirs = (attention_maps(m, made.x) for m in (made.model, archived("encoder")))
    assert list(own) == list(theirs) == [f"encoder.layers.{k}.self_attn" for k in (0, 1)]
    for a, b in zip(own.values(), theirs.values(), strict=True):
        torch.testing.assert_close(a, b)
    functions = [PureFunction(m) for m in (made.model, archived("encoder"))]
    (_, one), (_, two) = (watch_attention(f, made.x) for f in functions)
    assert [s.name for s in one] == [s.name for s in two]
    assert len(one) == 3
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a.distance, b.distance)


def test_positions_first() -> None:
    """The first axis of the input is not that of the samples."""
    layer, x = nn.MultiheadAttention(8, 2).double(), draw(5, 3, 8)
    (weights,) = attention_maps(layer, x, x, x).values()
    expected = layer(x, x, x, average_attn_weights=False)[1]
    torch.testing.assert_close(weights, expected.detach())


def test_a_mixture_is_no_attention() -> None:
    class Mixture(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x.softmax(-1) * x).sum(-1)

    with pytest.raises(UnsupportedModel, match="no attention"):
        attention_maps(Mixture(), draw(2, 3, 4))


def test_entropy_from_one_token_to_all() -> None:
    weights = torch.tensor([[1.0, 0, 0, 0], [0.25] * 4, [0.5, 0.5, 0, 0]])
    expected = torch.tensor([0.0, math.log(4), math.log(2)])
    assert torch.allclose(attention_entropy(weights), expected)


def test_jacobian_by_token_against_differences() -> None:
    block, x = EncoderBlock(4, 6, 2, "pre", activation="tanh", generator=2), draw(2, 3, 4)
    found = token_jacobian(block, x)
    h = 1e-6
    for t in range(3):
        columns = []
        for c in range(4):
            up, down = x.clone(), x.clone()
            up[:, t, c] += h
            down[:, t, c] -= h
            columns.append(((block(up) - block(down)) / (2 * h)).detach())
        expected = torch.stack(columns).square().sum((0, 3)).sqrt()
        assert torch.allclose(found[:, :, t], expected, rtol=1e-6)


def test_linear_attention_in_both_orders() -> None:
    for t, s, k, v in ((3, 40, 2, 3), (3, 4, 9, 9)):
        q, keys, values = draw(2, t, k), draw(2, s, k, seed=1), draw(2, s, v, seed=2)
        assert torch.allclose(linear_attention(q, keys, values), q @ keys.mT @ values)


def test_refusals() -> None:
    with pytest.raises(UnsupportedModel, match="Linear has no attention layer"):
        attention_maps(nn.Linear(2, 2), torch.zeros(1, 2))
    with pytest.raises(InvalidType, match="weights must be"):
        attention_entropy([0.5, 0.5])  # type: ignore[arg-type]
    with pytest.raises(ShapeMismatch, match="sequences"):
        token_jacobian(nn.Linear(2, 2).double(), draw(3, 2))
    model = LanguageModel(7, 8, 2, 1, length=6)
    with pytest.raises(UnsupportedModel, match="without a cache"):
        attention_maps(model, torch.zeros(1, 2).long(), model.cache())
