"""Attention maps and Jacobians by token, of our networks and of torch's."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidType, ShapeMismatch, UnsupportedModel
from torchtheory.sequences.attention.blocks import EncoderBlock
from torchtheory.sequences.attention.dot_product import linear_attention
from torchtheory.sequences.attention.heads import MultiHeadAttention
from torchtheory.sequences.attention.maps import attention_entropy, attention_maps, token_jacobian
from torchtheory.sequences.attention.transformers import (
    LanguageModel,
    Transformer,
    TransformerEncoder,
)


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
