"""Blocks and transformers against torch's, against GPT-2, and against their definitions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch
from torchtheory.nets.fresh_weights import drawn_anew
from torchtheory.sequences.attention.blocks import DecoderBlock, EncoderBlock, Norm
from torchtheory.sequences.attention.positions import LearnedPositions, SinusoidalPositions
from torchtheory.sequences.attention.transformers import (
    LanguageModel,
    Transformer,
    TransformerEncoder,
)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shaken(module: nn.Module) -> nn.Module:
    """All parameters drawn: norms and biases start where an error in them would not show."""
    source = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=source).to(parameter) / 2)
    return module.double().eval()


# -- blocks ----------------------------------------------------------------------------------------


def test_block_by_its_formula() -> None:
    x = draw(2, 5, 8)
    block = EncoderBlock(8, 16, 2, None, alpha1=0.7, alpha2=-0.3, generator=1)
    z = 0.7 * block.attention(x) + x
    y = torch.relu(z @ block.network[0].weight.T + block.network[0].bias)
    y = y @ block.network[2].weight.T + block.network[2].bias
    assert torch.allclose(block(x), -0.3 * y + z)
    still = EncoderBlock(8, 16, 2, None, 0, 0)
    assert torch.equal(still(x), x)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("first", [True, False])
def test_encoder_layer_of_torch(first: bool, activation: str) -> None:
    torchs = shaken(
        nn.TransformerEncoderLayer(
            8, 2, 16, activation=activation, norm_first=first, batch_first=True
        )
    )
    x = draw(3, 5, 8)
    ours = EncoderBlock.from_torch(torchs)
    assert ours.norm == ("pre" if first else "post")
    assert torch.allclose(ours(x), torchs(x), atol=1e-6)
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    assert torch.allclose(ours(x, causal=True), torchs(x, src_mask=mask), atol=1e-6)


@pytest.mark.parametrize("first", [True, False])
def test_decoder_layer_of_torch(first: bool) -> None:
    torchs = shaken(nn.TransformerDecoderLayer(8, 2, 16, norm_first=first, batch_first=True))
    x, memory = draw(3, 5, 8), draw(3, 4, 8, seed=1)
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    ours = DecoderBlock.from_torch(torchs)
    assert torch.allclose(ours(x, memory), torchs(x, memory, tgt_mask=mask), atol=1e-6)


@pytest.mark.parametrize("last", [True, False])
def test_encoder_of_torch(last: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, norm_first=last, batch_first=True)
    norm = nn.LayerNorm(8) if last else None
    torchs = shaken(nn.TransformerEncoder(layer, 3, norm, enable_nested_tensor=False))
    x = draw(3, 5, 8)
    ours = TransformerEncoder.from_torch(torchs)
    assert torch.allclose(ours(x), torchs(x), atol=1e-6)
    padding = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 0, 0, 0, 1]]).bool()
    expected = torchs(x, src_key_padding_mask=padding)
    assert torch.allclose(ours(x, ~padding[:, None])[~padding], expected[~padding], atol=1e-6)


def test_post_norm_leaves_mean_zero_and_variance_one() -> None:
    out = EncoderBlock(16, 32, 4, generator=1)(draw(2, 5, 16))
    assert out.mean(-1).abs().max() < 1e-12
    assert (out.var(-1, correction=0) - 1).abs().max() < 1e-3


@pytest.mark.parametrize("norm", ["post", "pre", None])
def test_decoder_sees_the_past_and_all_of_the_memory(norm: Norm | None) -> None:
    block = DecoderBlock(8, 16, 2, norm, memory_width=6, generator=1)
    x, memory = draw(1, 5, 8), draw(1, 4, 6, seed=1)
    out = block(x, memory)
    later = x.clone()
    later[:, 3:] = draw(1, 2, 8, seed=2)
    assert torch.allclose(block(later, memory)[:, :3], out[:, :3], atol=1e-12)
    assert (block(later, memory)[:, 3:] - out[:, 3:]).abs().min() > 1e-6
    for j in range(4):
        other = memory.clone()
        other[:, j] += 1
        assert (block(x, other) - out).abs().amax(-1).min() > 1e-6


# -- language models -------------------------------------------------------------------------------


def tiny_gpt2(**options: object) -> GPT2LMHeadModel:
    torch.manual_seed(5)
    config = GPT2Config(
        vocab_size=23,
        n_positions=12,
        n_embd=16,
        n_layer=3,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        **options,
    )
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():  # biases start at 0, where an error would not show
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("tied", [True, False])
def test_logits_of_gpt2(tied: bool) -> None:
    peer = tiny_gpt2(tie_word_embeddings=tied)
    ours = LanguageModel.from_gpt2(peer.state_dict(), heads=4)
    assert (ours.head is None) == tied
    tokens = torch.randint(23, (2, 12), generator=torch.Generator().manual_seed(1))
    expected = peer(tokens).logits
    assert torch.allclose(ours(tokens), expected, atol=1e-5)
    cache = ours.cache()
    parts = [ours(tokens[:, a:b], cache) for a, b in ((0, 4), (4, 5), (5, 12))]
    assert torch.allclose(torch.cat(parts, 1), expected, atol=1e-5)
    # the state dict is copied, not shared
    with torch.no_grad():
        ours.embedding.weight.zero_()
    assert peer.transformer.wte.weight.abs().sum() > 0


def test_gpt2_without_a_head_is_tied() -> None:
    peer = tiny_gpt2()
    plain: GPT2Model = peer.transformer
    tokens = torch.arange(6)[None]
    ours = LanguageModel.from_gpt2(plain.state_dict(), heads=4)
    assert torch.allclose(ours(tokens), peer(tokens).logits, atol=1e-5)
    assert ours.vocabulary == 23


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@pytest.mark.parametrize("norm", ["pre", "post", None])
def test_cache_equals_the_whole_pass(positions: str, norm: Norm | None) -> None:
    model = LanguageModel(
        11, 8, 2, 2, length=9, positions=positions, norm=norm, tied=False, generator=3
    )
    tokens = torch.randint(11, (3, 9), generator=torch.Generator().manual_seed(1))
    whole = model(tokens)
    cache = model.cache()
    steps = torch.cat([model(tokens[:, t : t + 1], cache) for t in range(9)], 1)
    assert torch.allclose(steps, whole)
    assert cache.length == 9
    # reordered sequences go on as if they had been there from the start
    cache = model.cache()
    model(tokens[:, :8], cache)
    moved = cache.select(torch.tensor([2, 2, 0, 1]))
    assert torch.allclose(model(tokens[[2, 2, 0, 1], 8:], moved), whole[[2, 2, 0, 1], 8:])


def test_encoder_decoder_with_a_cache() -> None:
    model = Transformer(7, 5, 8, 16, 2, depth=2, generator=3)
    x = torch.randint(7, (3, 6), generator=torch.Generator().manual_seed(1))
    y = torch.randint(5, (3, 4), generator=torch.Generator().manual_seed(2))
    previous = model.after_start(y)
    assert previous[:, 0].tolist() == [5, 5, 5]
    assert torch.equal(previous[:, 1:], y[:, :-1])
    whole = model(x, previous)
    cache, memory = model.cache(), model.encode(x)
    steps = [model.decode(previous[:, t : t + 1], memory, cache) for t in range(4)]
    assert torch.allclose(torch.cat(steps, 1), whole)
    # teacher-forced loss is the sum over the steps
    logp = whole.log_softmax(-1).gather(-1, y[..., None])[..., 0]
    by_step = [
        s.log_softmax(-1)[:, 0].gather(-1, y[:, t : t + 1])[:, 0] for t, s in enumerate(steps)
    ]
    assert torch.allclose(logp.sum(1), torch.stack(by_step).sum(0))


def test_weights_can_be_drawn_anew() -> None:
    model = LanguageModel(11, 8, 2, 1, length=9)
    new = drawn_anew(model, 1)
    assert not torch.equal(new.embedding.weight, model.embedding.weight)
    assert new.embedding.weight.std() < 0.05


def test_models_are_the_same_for_the_same_seed_and_leave_torch_alone() -> None:
    before = torch.get_rng_state()
    one, two = (LanguageModel(11, 8, 2, 1, length=9, generator=4) for _ in range(2))
    assert all(map(torch.equal, one.state_dict().values(), two.state_dict().values()))
    Transformer(7, 5, 8, 16, 2, depth=1)
    assert torch.equal(before, torch.get_rng_state())


def test_bad_tokens_and_weights_are_refused() -> None:
    model = LanguageModel(11, 8, 2, 1, length=4)
    with pytest.raises(InvalidInput, match="token 11, and there are 11: 0 to 10"):
        model(torch.tensor([[1, 11]]))
    with pytest.raises(InvalidInput, match="token -1"):
        model(torch.tensor([[-1, 3]]))
    with pytest.raises(InvalidType, match="whole numbers"):
        model(torch.zeros(1, 2))
    with pytest.raises(ShapeMismatch, match="sequences, positions"):
        model(torch.zeros(3).long())
    with pytest.raises(EmptyData, match="empty"):
        model(torch.zeros(1, 0).long())
    with pytest.raises(InvalidInput, match="5 tokens is longer than the 4 positions"):
        model(torch.zeros(1, 5).long())
    cache = model.cache()
    model(torch.zeros(1, 4).long(), cache)
    with pytest.raises(InvalidInput, match="5 tokens is longer than the 4 positions"):
        model(torch.zeros(1, 1).long(), cache)
    with pytest.raises(InvalidInput, match=r"wte\.weight is not among them"):
        LanguageModel.from_gpt2({}, heads=2)
    with pytest.raises(InvalidInput, match="3 heads do not divide the width 16"):
        LanguageModel.from_gpt2(tiny_gpt2().state_dict(), heads=3)
    with pytest.raises(InvalidType, match="TransformerEncoderLayer is needed"):
        EncoderBlock.from_torch(nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="positions"):
        LanguageModel(11, 8, 2, 1, positions="rotary")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="norm must be one of"):
        EncoderBlock(8, 16, 2, "middle")  # type: ignore[arg-type]


def test_positions_are_part_of_the_encoder() -> None:
    x = draw(2, 4, 8)
    places = SinusoidalPositions(8)
    with_places = TransformerEncoder(8, 16, 2, depth=2, positions=places, norm="pre", generator=1)
    without = TransformerEncoder(8, 16, 2, depth=2, norm="pre", generator=1)
    assert torch.allclose(with_places(x), without(places(x)))
    order = torch.tensor([2, 0, 3, 1])
    assert torch.allclose(without(x[:, order]), without(x)[:, order])
    assert not torch.allclose(with_places(x[:, order]), with_places(x)[:, order], atol=1e-3)
    learned = LearnedPositions(4, 8, spread=1.0, generator=2)
    assert torch.allclose(learned(x, 0) - x, learned.weight.expand_as(x))


def test_what_is_padding_in_the_source_changes_nothing() -> None:
    model = Transformer(5, 4, 8, 16, 2, depth=2, generator=0)
    x = torch.tensor([[1, 2, 3, 0, 0]])
    present = torch.tensor([[True, True, True, False, False]])
    previous = torch.tensor([[4, 1, 2]])
    memory = model.encode(x, present[:, None])
    short = model.encode(x[:, :3])
    assert torch.allclose(memory[:, :3], short)
    wanted = model.decode(previous, short)
    assert torch.allclose(model.decode(previous, memory, memory_mask=present[:, None]), wanted)
    assert not torch.allclose(model.decode(previous, memory), wanted, atol=1e-4)
    assert torch.allclose(model(x, previous, mask=present[:, None]), wanted)
    assert not torch.allclose(model(x, previous), wanted, atol=1e-4)
    cache = model.cache()
    steps = [
        model.decode(previous[:, t : t + 1], memory, cache, memory_mask=present[:, None])
        for t in range(3)
    ]
    assert torch.allclose(torch.cat(steps, 1), wanted)
