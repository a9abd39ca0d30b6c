"""The autoregressive audit: models that see the future, and their twins that do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    ShapeMismatch,
    TorchTheoryError,
    UnsupportedModel,
)
from torchtheory.sequences.attention.causality import measure_causality
from torchtheory.sequences.recurrent.lru import LRU
from torchtheory.sequences.recurrent.minimal import MinGRU

T, LETTERS, WIDTH = 10, 7, 8


class Transformer(nn.Module):
    """Encoder layers with a mask of its own for each: how far ahead they may look, or no mask."""

    def __init__(self, ahead: tuple[int | None, ...], padding: bool = False) -> None:
        super().__init__()
        self.embed, self.ahead, self.padding = nn.Embedding(LETTERS, WIDTH), ahead, padding
        self.places = nn.Parameter(torch.randn(T, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True) for _ in ahead
        )
        self.out = nn.Linear(WIDTH, LETTERS)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens) + self.places[: tokens.shape[1]]
        empty = tokens == 0 if self.padding else None
        for layer, ahead in zip(self.layers, self.ahead, strict=True):
            mask = None
            if ahead is not None:
                size = tokens.shape[1]
                mask = torch.ones(size, size, dtype=torch.bool).triu(1 + ahead)
            h = layer(h, src_mask=mask, src_key_padding_mask=empty)
        logits: Tensor = self.out(h)
        return logits


class Own(nn.Module):
    """Attention written by hand, with a mask that adds a number."""

    def __init__(self, masked: float) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(LETTERS, WIDTH), nn.Linear(WIDTH, LETTERS)
        self.qkv, self.masked = nn.Linear(WIDTH, 3 * WIDTH), masked

    def forward(self, tokens: Tensor) -> Tensor:
        q, k, v = self.qkv(self.embed(tokens)).chunk(3, -1)
        scores = q @ k.mT / WIDTH**0.5
        size = tokens.shape[1]
        scores = scores + torch.full((size, size), self.masked).triu(1).to(scores)
        logits: Tensor = self.out(scores.softmax(-1) @ v)
        return logits


class Letters(nn.Module):
    """Tokens through a recurrent layer, of one or both directions."""

    def __init__(self, both: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(LETTERS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True, bidirectional=both)
        self.out = nn.Linear((1 + both) * WIDTH, LETTERS)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.out(self.lstm(self.embed(tokens))[0])
        return logits


class Waves(nn.Module):
    """Dilated convolutions, padded to the left or on both sides."""

    def __init__(self, centered: bool) -> None:
        super().__init__()
        self.centered = centered
        self.layers = nn.ModuleList(nn.Conv1d(3, 3, 3, dilation=d) for d in (1, 2))

    def forward(self, x: Tensor) -> Tensor:
        h = x.mT
        for layer in self.layers:
            (d,) = layer.dilation
            h = layer(F.pad(h, (d, d) if self.centered else (2 * d, 0))).tanh()
        return h.mT


class Normalized(nn.Module):
    """Real sequences with a normalization between two layers."""

    def __init__(self, norm: nn.Module, channels_first: bool) -> None:
        super().__init__()
        self.norm, self.channels_first = norm, channels_first
        self.first, self.last = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = self.norm(h.mT).mT if self.channels_first else self.norm(h)
        made: Tensor = self.last(h.relu())
        return made


class Pooled(nn.Module):
    """It adds the mean of all positions, or of those so far, to each."""

    def __init__(self, all_positions: bool) -> None:
        super().__init__()
        self.all, self.body, self.out = all_positions, nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x).tanh()
        count = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]
        whole = h.mean(1, keepdim=True) if self.all else h.cumsum(1) / count
        made: Tensor = self.out(h + whole)
        return made


class Fourier(nn.Module):
    """A convolution with a decaying filter by the fast Fourier transform, which mixes roundings."""

    def __init__(self, circular: bool) -> None:
        super().__init__()
        self.filter, self.circular = nn.Parameter(torch.randn(T, 3)), circular

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1] if self.circular else 2 * x.shape[1]
        made = torch.fft.rfft(x, n, 1) * torch.fft.rfft(self.filter, n, 0)
        return torch.fft.irfft(made, n, 1)[:, : x.shape[1]]


def made(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build()


def tokens(seed: int, count: int = 3) -> Tensor:
    return torch.randint(0, LETTERS, (count, T), generator=torch.Generator().manual_seed(seed))


def numbers(seed: int, count: int = 3) -> Tensor:
    return torch.randn(count, T, 3, generator=torch.Generator().manual_seed(seed))


#: Builder of the model, inputs, and of a leak: how far ahead it looks, where it comes in.
LEAKS: dict[str, tuple[Callable[[], nn.Module], Any, int, str]] = {
    "mask off by one": (lambda: Transformer((1, 1)), tokens, 2, "layers.0.self_attn"),
    "no mask": (lambda: Transformer((None, None)), tokens, T - 1, "layers.0.self_attn"),
    "one layer without": (lambda: Transformer((0, None)), tokens, T - 1, "layers.1.self_attn"),
    "one layer off by two": (lambda: Transformer((0, 2, 0)), tokens, 2, "layers.1.self_attn"),
    "padding mask alone": (lambda: Transformer((None,), True), tokens, T - 1, "layers.0.self_attn"),
    "mask of -10": (lambda: Own(-10.0), tokens, T - 1, ""),
    "both directions": (lambda: Letters(True), tokens, T - 1, "lstm"),
    "centered convolutions": (lambda: Waves(True), numbers, 3, "layers.0"),
    "norm over time": (
        lambda: Normalized(nn.InstanceNorm1d(5), True), numbers, T - 1, "norm",
    ),
    "norm over all": (lambda: Normalized(nn.LayerNorm([T, 5]), False), numbers, T - 1, "norm"),
    "norm of the batch": (
        lambda: Normalized(nn.BatchNorm1d(5, track_running_stats=False), True), numbers, T - 1,
        "norm",
    ),
    "mean of all positions": (lambda: Pooled(True), numbers, T - 1, ""),
    "circular filter": (lambda: Fourier(True), numbers, T - 1, ""),
}  # fmt: skip

TWINS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "transformer": (lambda: Transformer((0, 0)), tokens),
    "with a padding mask": (lambda: Transformer((0,), True), tokens),
    "mask of -inf": (lambda: Own(-torch.inf), tokens),
    "mask of -1e9": (lambda: Own(-1e9), tokens),
    "lstm": (lambda: Letters(False), tokens),
    "causal convolutions": (lambda: Waves(False), numbers),
    "norm of the layer": (lambda: Normalized(nn.LayerNorm(5), False), numbers),
    "norm with statistics": (lambda: Normalized(nn.BatchNorm1d(5), True), numbers),
    "mean so far": (lambda: Pooled(False), numbers),
    "filter by FFT": (lambda: Fourier(False), numbers),
    "LRU": (lambda: LRU(3, 4, 2), numbers),
    "minGRU": (lambda: MinGRU(3, 4), numbers),
    "GRU": (lambda: nn.GRU(3, 4, batch_first=True), numbers),
}


@pytest.mark.parametrize("kind", LEAKS)
def test_leaks_are_found_measured_and_placed(kind: str) -> None:
    build, data, reach, where = LEAKS[kind]
    for seed in range(3):
        found = measure_causality(made(build, seed), data(seed), generator=seed)
        assert not found.causal
        assert found.first == 0
        assert found.reach == reach
        assert found.largest > 1e3 * found.rounding
        assert found.leak is not None
        # of a function that pads before a layer, the module is the model itself
        assert found.leak.module == where or (kind.startswith("centered") and not found.leak.module)
        assert "Not causal" in repr(found)
        assert found.couples == (kind == "norm of the batch")


@pytest.mark.parametrize("kind", TWINS)
def test_twins_are_silent_at_twenty_seeds(kind: str) -> None:
    build, data = TWINS[kind]
    for seed in range(20):
        found = measure_causality(made(build, seed), data(seed), generator=seed)
        assert found.causal, repr(found)
        assert (found.first, found.reach, found.leak, found.positions) == (None, 0, None, [])
        assert not found.couples
        assert found.rounding < 1e-7  # the catalogue's own measure


def test_the_derivatives_are_those_of_autograd() -> None:
    net = made(lambda: Waves(True), 0).double()
    x = numbers(0).double()
    found = measure_causality(net, x)
    exact = torch.stack(
        [torch.autograd.functional.jacobian(lambda z: net(z[None])[0], one) for one in x]
    )  # [B, T, F, T, d]
    sizes = exact.square().sum((2, 4)).mean(0).sqrt()
    assert found.gradient is not None
    torch.testing.assert_close(found.gradient, sizes / sizes.max())
    assert bool((found.gradient > found.rounding).equal(sizes > 0))


def test_a_single_replacement_changes_what_a_loop_says() -> None:
    net = made(lambda: Transformer((1,)), 0).double().eval()
    x = tokens(0, 1)
    found = measure_causality(net, x, vocabulary=LETTERS, draws=1, generator=3)
    # a triangle with one diagonal too many
    seen = found.influence > found.rounding
    assert bool(seen.equal(torch.ones(T, T, dtype=torch.bool).tril(1)))
    with torch.no_grad():
        before = net(x)
        sizes = torch.zeros(T)
        for letter in range(LETTERS):
            other = x.clone()
            other[0, 4] = letter
            sizes = torch.maximum(sizes, (net(other) - before).abs().amax((0, 2)).float())
    # the largest over all letters is no less than that over one of them
    assert bool((found.influence[:, 4] <= sizes / float(before.abs().max()) + 1e-6).all())


def test_long_sequences_are_tried_at_some_places() -> None:
    net = made(lambda: nn.Conv1d(2, 2, 3, padding=1), 0)
    x = torch.randn(2, 2, 200, generator=torch.Generator().manual_seed(0))
    found = measure_causality(net, x, axis=2, places=20)
    assert found.influence.shape == (200, 20)
    assert (found.first, found.reach) == (0, 1)
    assert found.leak is not None
    assert found.leak.function == "conv1d"
    assert found.figure().name == "causality"


def test_channels_first_outputs_and_positions_first_layers() -> None:
    class PositionsFirst(nn.Module):
        def __init__(self, both: bool) -> None:
            super().__init__()
            self.embed = nn.Embedding(LETTERS, 6)
            self.gru = nn.GRU(6, 5, bidirectional=both)

        def forward(self, tokens: Tensor) -> Tensor:
            h = self.gru(self.embed(tokens).transpose(0, 1))[0]
            return h.permute(1, 2, 0)  # [B, features, T]

    assert measure_causality(made(lambda: PositionsFirst(False), 0), tokens(0)).causal
    found = measure_causality(made(lambda: PositionsFirst(True), 0), tokens(0))
    assert found.leak is not None
    assert found.leak.module == "gru"


@pytest.mark.parametrize("causal", [True, False])
def test_models_of_transformers(causal: bool) -> None:
    config = {"vocab_size": 19, "n_positions": 12, "n_embd": 8, "n_layer": 2, "n_head": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if causal:
            model: nn.Module = transformers.GPT2LMHeadModel(transformers.GPT2Config(**config))
        else:
            model = transformers.BertForMaskedLM(
                transformers.BertConfig(
                    vocab_size=19, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
                    intermediate_size=16, max_position_embeddings=12,
                )
            )  # fmt: skip
    ids = torch.randint(0, 19, (2, 12), generator=torch.Generator().manual_seed(1))
    given = transformers.BatchEncoding(
        {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    )
    found = measure_causality(model, given)
    assert found.causal == causal
    assert found.sequences == 2
    assert not found.couples
    if not causal:
        assert found.leak is not None
        assert found.leak.module.startswith("bert.encoder.layer.0.attention")


def test_the_model_is_left_as_it_was() -> None:
    net = made(lambda: Transformer((1, None)), 0).train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    state = torch.get_rng_state()
    measure_causality(net, tokens(0))
    assert net.training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in net.modules())
    assert all(p.grad is None for p in net.parameters())
    assert torch.equal(torch.get_rng_state(), state)


class Random(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


@pytest.mark.parametrize(
    ("model", "x", "error", "words"),
    [
        (nn.Linear(3, 2), [[1.0]], InvalidType, "must be a tensor of sequences"),
        (nn.Linear(3, 2), torch.zeros(3), ShapeMismatch, "a batch and positions"),
        (nn.Linear(3, 2), torch.zeros(0, 4, 3), EmptyData, "no sequence"),
        (nn.Linear(3, 2), torch.zeros(2, 1, 3), ShapeMismatch, "has no future"),
        (nn.Linear(3, 2), torch.zeros(2, 4, 3).bool(), InvalidType, "tokens or real numbers"),
        (nn.Flatten(), torch.randn(2, 4, 3), ShapeMismatch, "one output for each of the 4"),
        (nn.Embedding(5, 2), torch.ones(2, 4).long(), InvalidInput, "give vocabulary="),
        (nn.Embedding(5, 2), torch.full((2, 4), 9), TorchTheoryError, "index out of range"),
        (Random(), torch.randn(2, 4, 3), UnsupportedModel, "no function of its input"),
        (3, torch.randn(2, 4, 3), InvalidType, "must be a torch.nn.Module"),
        (nn.Linear(3, 2), {"pixels": torch.zeros(2, 4)}, InvalidInput, "must be one of input_ids"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(model: Any, x: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words) as refused:
        measure_causality(model, x)
    assert "\n" not in str(refused.value)


class Single(nn.Module):
    """A transformer whose code fixes single precision."""

    def __init__(self, ahead: int) -> None:
        super().__init__()
        self.body = Transformer((ahead, ahead))

    def forward(self, tokens: Tensor) -> Tensor:
        h = (self.body.embed(tokens) + self.body.places).float()
        mask = torch.ones(T, T, dtype=torch.bool).triu(1 + self.body.ahead[0])
        for layer in self.body.layers:
            h = layer(h, src_mask=mask)
        logits: Tensor = self.body.out(h)
        return logits


def test_a_model_of_single_precision_has_the_rounding_of_that() -> None:
    for seed in range(5):
        found = measure_causality(made(lambda: Single(0), seed), tokens(seed), generator=seed)
        assert found.causal
        assert 1e-7 < found.rounding < 1e-3
        leaking = measure_causality(made(lambda: Single(1), seed), tokens(seed), generator=seed)
        assert (leaking.first, leaking.reach) == (0, 2)


def test_what_only_several_later_tokens_together_change() -> None:
    """One letter at a time and all at once are both tried."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            # it tells whether all letters behind a position are above 5, of seven
            high = (x > 5).double()
            every = high.flip(1).cumprod(1).flip(1)
            later = torch.cat([every[:, 1:], torch.zeros_like(every[:, :1])], 1)
            return (self.scale * (x + later)).unsqueeze(-1)

    x = torch.full((2, 4), 6)
    x[:, 0] = 0
    found = measure_causality(Both(), x, vocabulary=LETTERS, generator=0)
    assert not found.causal
    assert found.reach == 3
