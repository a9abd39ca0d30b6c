"""The finding about attention: heads that average, tokens that collapse, and healthy twins."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.core.diagnosis import State
from torchtheory.models.model import PureFunction
from torchtheory.sequences.attention.transformers import LanguageModel
from torchtheory.sequences.attention.watching import token_distance, watch_attention

LETTERS, T, WIDTH = 9, 11, 12

pytestmark = pytest.mark.usefixtures("no_figures")


class Tagger(nn.Module):
    """Attention layers with or without residual connections, and a label for each token."""

    def __init__(self, layers: int, residual: bool, sharp: float, pooled: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(LETTERS, WIDTH)
        self.places = nn.Parameter(torch.randn(T, WIDTH))
        self.layers = nn.ModuleList(Layer(residual, sharp) for _ in range(layers))
        self.out, self.pooled = nn.Linear(WIDTH, LETTERS), pooled

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) + self.places
        for layer in self.layers:
            h = layer(h)
        logits: Tensor = self.out(h.mean(1) if self.pooled else h)
        return logits


class Layer(nn.Module):
    def __init__(self, residual: bool, sharp: float) -> None:
        super().__init__()
        self.qkv, self.residual, self.sharp = nn.Linear(WIDTH, 3 * WIDTH), residual, sharp

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = (p.unflatten(-1, (2, -1)).transpose(1, 2) for p in self.qkv(h).chunk(3, -1))
        seen = F.scaled_dot_product_attention(self.sharp * q, k, v).transpose(1, 2).flatten(2)
        return h + seen if self.residual else 2 * seen


def net(build: Any, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made: nn.Module = build()
    return made


def letters(seed: int, count: int = 60) -> Tensor:
    return torch.randint(0, LETTERS, (count, T), generator=torch.Generator().manual_seed(seed))


def made(model: nn.Module, data: Any, seed: int = 0) -> FindingRecord:
    (found,) = tt.audit(model, data, only=["attention-maps"], budget=None, seed=seed).findings
    return found


def test_heads_that_average_are_worth_a_look() -> None:
    for seed in range(5):
        x = letters(seed)
        found = made(net(lambda: Tagger(2, True, 0.0), seed), (x, x.flip(1)), seed)
        (said,) = found.assessments
        assert said.state is State.LOOK
        assert "All 4 heads average" in said.sentence
        assert said.number is not None
        assert said.number.value == pytest.approx(1.0)


def test_tokens_that_collapse_are_a_defect_of_what_labels_tokens() -> None:
    for seed in range(5):
        x = letters(seed)
        deep = net(lambda: Tagger(10, False, 1.0), seed)
        (said,) = made(deep, (x, x.flip(1)), seed).assessments
        assert said.state is State.DEFECT
        assert "Tokens become alike with depth: behind layers.9" in said.sentence
        pooled = net(lambda: Tagger(10, False, 1.0, pooled=True), seed)
        (said,) = made(pooled, (x, x[:, 0]), seed).assessments
        assert said.state is State.LOOK


def test_healthy_twins_are_not_accused_at_twenty_seeds() -> None:
    for seed in range(20):
        x = letters(seed)
        twin = net(lambda: Tagger(10, True, 3.0), seed)
        found = made(twin, (x, x.flip(1)), seed)
        assert found.assessments == []
        assert found.headlines[0].startswith("Attention has ")
        plain = nn.TransformerEncoderLayer(WIDTH, 2, 24, batch_first=True)
        encoder = net(
            lambda plain=plain: nn.Sequential(
                nn.Embedding(LETTERS, WIDTH), nn.TransformerEncoder(plain, 3), nn.Linear(WIDTH, 9)
            ),
            seed,
        )
        assert made(encoder, (x, x.flip(1)), seed).assessments == []


def test_weights_are_those_that_torch_says() -> None:
    layer = net(lambda: nn.MultiheadAttention(WIDTH, 3, batch_first=True), 0).eval()
    x = torch.randn(4, T, WIDTH, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(T, T, dtype=torch.bool).triu(1)

    class Own(nn.Module):
        def __init__(self, floating: bool) -> None:
            super().__init__()
            self.attention, self.floating = layer, floating

        def forward(self, x: Tensor) -> Tensor:
            given = torch.zeros(T, T).masked_fill(mask, -math.inf) if self.floating else mask
            made: Tensor = self.attention(x, x, x, attn_mask=given, need_weights=False)[0]
            return made

    _, weights = layer(x, x, x, attn_mask=mask, average_attn_weights=False)
    rows = torch.arange(2, T + 1).log()
    expected = (torch.special.entr(weights).sum(-1)[:, :, 1:] / rows).mean(-1)
    for floating in (False, True):
        ((found,), spreads) = watch_attention(PureFunction(Own(floating)), x)
        assert (found.name, found.kind, spreads) == ("attention", "MultiheadAttention", [])
        torch.testing.assert_close(found.weights, weights[0].detach())
        torch.testing.assert_close(found.entropy, expected.double().detach())


def test_functions_layers_and_hand_written_attention_agree() -> None:
    """Of one GPT-2: fused attention, eager attention, and the language model of this package."""
    config = transformers.GPT2Config(
        vocab_size=LETTERS, n_positions=T, n_embd=WIDTH, n_layer=2, n_head=2,
        bos_token_id=0, eos_token_id=0, initializer_range=1.0,
    )  # fmt: skip
    fused = net(lambda: transformers.GPT2LMHeadModel(config), 0)
    state = fused.state_dict()
    eager_config = transformers.GPT2Config(**{**config.to_dict(), "initializer_range": 1.0})
    eager_config._attn_implementation = "eager"
    eager = transformers.GPT2LMHeadModel(eager_config)
    eager.load_state_dict(state)
    x = letters(0, 5)
    one, two = (watch_attention(PureFunction(m), x) for m in (fused, eager))
    for a, b in zip(one[0], two[0], strict=True):
        assert a.name == b.name
        torch.testing.assert_close(a.entropy, b.entropy, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(a.favorite, b.favorite, atol=1e-5, rtol=1e-5)
    assert [s.name for s in one[1]] == [
        "transformer.h.0 (input)", "transformer.h.0", "transformer.h.1",
    ]  # fmt: skip
    own = LanguageModel(LETTERS, WIDTH, 2, 2, length=T)
    heads, spreads = watch_attention(PureFunction(own), x)
    assert [h.entropy.shape for h in heads] == [(5, 2), (5, 2)]
    assert len(spreads) == 3


def test_positions_first_and_padding() -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16)  # [T, B, width]

    class PositionsFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(LETTERS, WIDTH)
            self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

        def forward(self, x: Tensor) -> Tensor:
            h = self.body(self.embed(x).transpose(0, 1), src_key_padding_mask=x == 0)
            made: Tensor = h.transpose(0, 1)
            return made

    x = letters(0, 4).clamp(min=1)
    x[:, -1] = 0
    x[0, 2:] = 0  # two tokens are there
    model = net(PositionsFirst, 0)
    ((heads,), spreads) = watch_attention(PureFunction(model), x)
    assert float(heads.weights[:, :, 2:].abs().max()) == 0
    assert bool((heads.entropy <= 1 + 1e-6).all())
    with torch.no_grad():
        out = model.eval()(x)
    torch.testing.assert_close(spreads[1].distance, token_distance(out), rtol=1e-4, atol=1e-4)


def test_what_the_distance_is() -> None:
    same = torch.ones(2, 5, 3)
    assert token_distance(same).tolist() == [0.0, 0.0]
    apart = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])  # the mean is 0
    assert float(token_distance(apart)) == 1.0


def test_models_without_attention_are_told_so() -> None:
    found = made(nn.Linear(3, 2), (torch.randn(20, 3), torch.arange(20) % 2))
    assert found.claims[0].reason == "the model calls no attention"
    assert found.quantities == []


def test_a_head_that_always_looks_at_the_first_token_is_named_in_the_table() -> None:
    model = net(lambda: Tagger(1, True, 1.0), 0)
    with torch.no_grad():
        model.layers[0].qkv.weight[: 2 * WIDTH].zero_()
        model.layers[0].qkv.bias[: 2 * WIDTH].fill_(1.0)
        # keys of the first place alone agree with the queries
        model.places.zero_()
        model.places[0, 0] = 50.0
        model.layers[0].qkv.weight[WIDTH : 2 * WIDTH, 0] = 1.0
    x = letters(0)
    found = made(model, (x, x.flip(1)))
    rows = found.tables[0].rows
    assert {row[-1] for row in rows} == {"one and the same token"}
    assert "2 look at one and the same token" in found.headlines[0]
