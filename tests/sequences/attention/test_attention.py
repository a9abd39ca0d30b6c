"""Attention against its formulas and torch's, with masks, heads and caches."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.sequences.attention.cache import KeysAndValues, KeyValueCache
from torchtheory.sequences.attention.dot_product import (
    attention,
    causal_mask,
    one_matrix_attention,
    self_attention,
)
from torchtheory.sequences.attention.heads import MultiHeadAttention
from torchtheory.sequences.attention.positions import SinusoidalPositions


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# -- dot products ----------------------------------------------------------------------------------


def test_two_keys_by_hand() -> None:
    """Scores ln 3 and 0 are weights 3/4 and 1/4."""
    q, k = torch.tensor([[math.log(3.0)]]), torch.tensor([[1.0], [0.0]])
    out, weights = attention(q, k, torch.tensor([[4.0], [8.0]]))
    assert torch.allclose(weights, torch.tensor([[0.75, 0.25]]))
    assert torch.allclose(out, torch.tensor([[5.0]]))
    # four times the key's size halves the score
    wide = attention(q.expand(1, 4) / 4, k.expand(2, 4), torch.eye(2))[1]
    assert torch.allclose(wide[0, 0] / wide[0, 1], torch.tensor(3.0).sqrt())


@pytest.mark.parametrize("mask", ["none", "causal", "boolean", "numbers"])
def test_equals_torch(mask: str) -> None:
    q, k, v = draw(2, 3, 5, 4), draw(2, 3, 7, 4, seed=1), draw(2, 3, 7, 6, seed=2)
    given_mask = {
        "none": None,
        "causal": causal_mask(5, 7),
        "boolean": draw(2, 1, 5, 7, seed=3) > 0,
        "numbers": draw(5, 7, seed=3),
    }[mask]
    out, weights = attention(q, k, v, given_mask)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=given_mask)
    assert torch.allclose(out, expected, atol=1e-12)
    assert torch.allclose(weights @ v, out, atol=1e-14)
    scaled = attention(q, k, v, given_mask, scale=0.3)[0]
    assert torch.allclose(
        scaled, F.scaled_dot_product_attention(q, k, v, attn_mask=given_mask, scale=0.3)
    )


def test_a_query_that_sees_nothing_gets_zero_and_finite_gradients() -> None:
    q = draw(1, 4).requires_grad_()
    mask = torch.zeros(1, 3, dtype=torch.bool)
    out, weights = attention(q, draw(3, 4), draw(3, 2), mask)
    assert not out.any()
    assert not weights.any()
    out.sum().backward()
    assert q.grad is not None
    assert torch.isfinite(q.grad).all()


def test_large_scores_do_not_overflow() -> None:
    x = 1e3 * torch.eye(3, dtype=torch.float32)
    out, weights = self_attention(x)
    assert torch.equal(weights, torch.eye(3))
    assert torch.equal(out, x)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 1000))
def test_rows_are_means(tokens: int, size: int, seed: int) -> None:
    x = draw(tokens, size, seed=seed)
    y, weights = self_attention(x)
    assert torch.allclose(weights.sum(-1), torch.ones(tokens).double())
    assert (weights > 0).all()
    assert (y <= x.max(0).values + 1e-12).all()
    assert (y >= x.min(0).values - 1e-12).all()
    order = torch.randperm(tokens, generator=torch.Generator().manual_seed(seed))
    assert torch.allclose(self_attention(x[order])[0], y[order])


def test_one_matrix_gives_symmetric_scores() -> None:
    x, u = draw(2, 5, 4), draw(4, 3, seed=1)
    y, weights = one_matrix_attention(x, u)
    scores = (x @ u) @ (x @ u).mT
    assert torch.allclose(weights, scores.softmax(-1))
    assert torch.allclose(y, scores.softmax(-1) @ x @ u)
    # the softmax of symmetric scores: a diagonal times it is symmetric
    sums = scores.exp().sum(-1, keepdim=True)
    assert torch.allclose(weights * sums, (weights * sums).mT)


def test_causal_mask_is_lower_triangular() -> None:
    x = draw(6, 4).requires_grad_()
    y, weights = attention(x, x, x, causal_mask(6))
    assert torch.equal(weights.triu(1), torch.zeros(6, 6).double())
    assert torch.allclose(weights.sum(1), torch.ones(6).double())
    assert weights[0].tolist() == [1, 0, 0, 0, 0, 0]
    for i in range(6):
        (grad,) = torch.autograd.grad(y[i].sum(), x, retain_graph=True)
        assert not grad[i + 1 :].any()
        assert grad[: i + 1].abs().sum(1).min() > 0
    assert torch.equal(causal_mask(2, 6), causal_mask(6)[-2:])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"keys": torch.zeros(7, 5)}, "same size, not 4 and 5"),
        ({"values": torch.zeros(6, 4)}, "6 values for 7 keys"),
        ({"mask": torch.zeros(5, 6)}, r"\[5, 6\] does not fit scores \[5, 7\]"),
        ({"mask": torch.zeros(5, 7).long()}, "booleans"),
        ({"queries": torch.zeros(4)}, "tokens, size"),
        ({"scale": math.nan}, "scale must be a finite number"),
        ({"keys": torch.zeros(7, 4).double()}, "one precision, not float32, float64, float32"),
        ({"queries": torch.zeros(5, 0), "keys": torch.zeros(7, 0)}, "size 0 have no scores"),
        (
            {"queries": torch.zeros(3, 5, 4), "keys": torch.zeros(2, 7, 4)},
            r"same leading axes, not \[3\], \[2\], \[\]",
        ),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Tensor], words: str) -> None:
    usual = {"queries": torch.zeros(5, 4), "keys": torch.zeros(7, 4), "values": torch.zeros(7, 3)}
    with pytest.raises((ShapeMismatch, InvalidType, InvalidInput, EmptyData), match=words):
        attention(**{**usual, **change})


def test_more_refusals() -> None:
    with pytest.raises(ShapeMismatch, match="need a matrix"):
        one_matrix_attention(torch.zeros(3, 4), torch.zeros(3, 3))
    with pytest.raises(InvalidType, match="matrix must be a tensor"):
        one_matrix_attention(draw(3, 4), [[1.0]])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="keys must be"):
        causal_mask(4, 3)
    with pytest.raises(InvalidType, match="tokens must be a tensor of numbers"):
        SinusoidalPositions(4)(torch.zeros(1, 2, 4).long())


# -- heads -----------------------------------------------------------------------------------------


def test_fused_heads_are_separate_heads() -> None:
    a, b = draw(2, 5, 6), draw(2, 7, 3, seed=1)
    layer = MultiHeadAttention(6, 4, memory_width=3, key_size=5, value_size=2, generator=2)
    out, weights = layer(a, b, weights=True)
    heads, seen = [], []
    for j in range(4):
        keys, values = slice(5 * j, 5 * j + 5), slice(2 * j, 2 * j + 2)
        q = a @ layer.query.weight[keys].T + layer.query.bias[keys]
        k = b @ layer.key.weight[keys].T + layer.key.bias[keys]
        v = b @ layer.value.weight[values].T + layer.value.bias[values]
        one = attention(q, k, v)
        heads.append(one[0])
        seen.append(one[1])
    assert torch.allclose(out, torch.cat(heads, -1) @ layer.output.weight.T + layer.output.bias)
    assert torch.allclose(weights, torch.stack(seen, 1))
    assert torch.allclose(layer(a, b), out)


def test_one_head_and_identity_is_dot_product_attention() -> None:
    layer = MultiHeadAttention(4, 1, bias=False)
    with torch.no_grad():
        layer.output.weight.copy_(torch.eye(4))
    x = draw(1, 5, 4)
    expected = attention(layer.query(x), layer.key(x), layer.value(x))[0]
    assert torch.allclose(layer(x), expected)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("memory", [None, 5])
def test_torch_both_ways(bias: bool, memory: int | None) -> None:
    torch.manual_seed(3)
    torchs = nn.MultiheadAttention(
        8, 2, bias=bias, kdim=memory, vdim=memory, batch_first=True, dtype=torch.float64
    )
    for parameter in torchs.parameters():  # biases start at 0, where an error would not show
        nn.init.normal_(parameter)
    x, other = draw(3, 4, 8), draw(3, 6, memory or 8, seed=1)
    expected, shown = torchs(x, other, other, average_attn_weights=False)
    ours = MultiHeadAttention.from_torch(torchs)
    out, weights = ours(x, other, weights=True)
    assert torch.allclose(out, expected, atol=1e-6)
    assert torch.allclose(weights, shown, atol=1e-6)
    back = ours.to_torch()
    assert torch.allclose(back(x, other, other)[0], expected, atol=1e-12)
    assert back.state_dict().keys() == torchs.state_dict().keys()


def test_torch_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    MultiHeadAttention(8, 2).to_torch()
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("masked", ["causal", "padding", "both", "numbers"])
def test_masks_with_and_without_weights_agree(masked: str) -> None:
    layer, x = MultiHeadAttention(8, 2, generator=1), draw(3, 5, 8)
    present = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 1, 0, 1]]).bool()
    mask = {"causal": None, "numbers": draw(3, 5, 5, seed=5)}.get(masked, present[:, None])
    causal = masked in ("causal", "both")
    out, weights = layer(x, mask=mask, causal=causal, weights=True)
    assert torch.allclose(layer(x, mask=mask, causal=causal), out, atol=1e-12)
    if causal:
        assert not weights.triu(1).any()
    if masked in ("padding", "both"):
        assert not weights.transpose(1, 3)[~present].any()


def test_a_mask_of_keys_alone() -> None:
    layer, x = MultiHeadAttention(8, 2, generator=1), draw(3, 5, 8)
    keys = torch.tensor([True, False, True, True, False])
    assert torch.allclose(layer(x, mask=keys), layer(x, x[:, keys]), atol=1e-12)


def test_cache_is_the_whole_sequence() -> None:
    layer, x = MultiHeadAttention(8, 2, generator=1), draw(3, 6, 8)
    whole = layer(x, causal=True)
    kept = KeysAndValues()
    parts = [layer(x[:, a:b], causal=True, cache=kept) for a, b in ((0, 2), (2, 3), (3, 6))]
    assert torch.allclose(torch.cat(parts, 1), whole)
    assert kept.length == 6


def test_memory_is_projected_once() -> None:
    layer, x, memory = MultiHeadAttention(8, 2, generator=1), draw(3, 2, 8), draw(3, 6, 8, seed=2)
    kept = KeysAndValues()
    first = layer(x, memory, cache=kept)
    # the memory is not read again, so that another one changes nothing
    assert torch.equal(layer(x, memory + 1, cache=kept), first)
    assert kept.length == 6


def test_select_reorders_and_repeats() -> None:
    cache = KeyValueCache(2)
    keys = draw(3, 2, 4, 5)
    for kept in (*cache.layers, cache.memory[1]):
        kept.extend(keys, 2 * keys)
    chosen = cache.select(torch.tensor([2, 0, 0, 1]))
    assert chosen.length == cache.length == 4
    for kept in (*chosen.layers, chosen.memory[1]):
        assert torch.equal(kept.keys, keys[[2, 0, 0, 1]])
        assert torch.equal(kept.values, 2 * keys[[2, 0, 0, 1]])
    assert chosen.memory[0].length == 0
    chosen.layers[0].extend(keys[[0, 0, 0, 0]], keys[[0, 0, 0, 0]])
    assert cache.layers[0].length == 4
    with pytest.raises(InvalidInput, match=r"cache\.select"):
        cache.layers[0].extend(keys[:2], keys[:2])
    with pytest.raises(InvalidType, match="whole numbers"):
        cache.select([0, 1])  # type: ignore[arg-type]


def test_heads_refuse_what_does_not_fit() -> None:
    with pytest.raises(InvalidInput, match="3 heads do not divide the width 8"):
        MultiHeadAttention(8, 3)
    layer = MultiHeadAttention(8, 2)
    with pytest.raises(ShapeMismatch, match=r"x must be \[sequences, tokens, 8\], not \[4, 8\]"):
        layer(draw(4, 8))
    with pytest.raises(ShapeMismatch, match=r"memory must be .* not \[2, 4, 7\]"):
        layer(draw(2, 4, 8), draw(2, 4, 7))
    with pytest.raises(ShapeMismatch, match="2 sequences cannot look at 3"):
        layer(draw(2, 4, 8), draw(3, 4, 8))
    with pytest.raises(ShapeMismatch, match="does not fit"):
        layer(draw(2, 4, 8), mask=causal_mask(5))
    with pytest.raises(InvalidType, match="tensor of numbers"):
        layer(torch.zeros(2, 4, 8).long())
    with pytest.raises(InvalidType, match="mask must be a tensor"):
        layer(draw(2, 4, 8), mask=[[True]])
    with pytest.raises(EmptyData, match=r"x is empty, its shape is \[2, 0, 8\]"):
        layer(draw(2, 0, 8))
    with pytest.raises(EmptyData, match="memory is empty"):
        layer(draw(2, 4, 8), draw(2, 0, 8))
    for weights in (False, True):
        with pytest.raises(ShapeMismatch, match="5 tokens cannot be the last of the 3"):
            layer(draw(2, 5, 8), draw(2, 3, 8), causal=True, weights=weights)
    with pytest.raises(InvalidType, match=r"nn\.MultiheadAttention is needed"):
        MultiHeadAttention.from_torch(nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModel, match="add_bias_kv"):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(8, 2, add_bias_kv=True))
    with pytest.raises(UnsupportedModel, match="different sizes"):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(8, 2, kdim=3))
    with pytest.raises(UnsupportedModel, match="width / heads"):
        MultiHeadAttention(8, 2, key_size=3).to_torch()
