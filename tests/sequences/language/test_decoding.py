"""Decoding: equal to transformers' generate, to brute force, and to itself without a cache."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, NonFinite, UnknownName
from torchtheory.sequences.attention.transformers import LanguageModel, Transformer
from torchtheory.sequences.language.decoding import generate, sequence_log_probability
from torchtheory.sequences.language.filters import filtered, keep_top_k, keep_top_p
from torchtheory.sequences.recurrent import sequence_to_sequence
from torchtheory.sequences.recurrent.sequence_to_sequence import Seq2Seq

VOCABULARY = 29


def gpt2(seed: int = 0, scale: float = 15.0) -> GPT2LMHeadModel:
    """A small GPT-2 with random weights, large enough that its distributions are not flat."""
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=64,
        n_embd=16,
        n_layer=2,
        n_head=4,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = GPT2LMHeadModel(config).eval()
        with torch.no_grad():
            for p in model.parameters():
                if p.ndim > 1:
                    p.mul_(scale)
    return model


def tokens(*shape: int, seed: int = 0, count: int = VOCABULARY) -> Tensor:
    return torch.randint(count, shape, generator=torch.Generator().manual_seed(seed))


def ours(theirs: GPT2LMHeadModel) -> LanguageModel:
    return LanguageModel.from_gpt2(theirs.state_dict(), heads=4)


def test_the_language_model_has_the_logits_of_gpt2() -> None:
    theirs = gpt2()
    x = tokens(3, 10)
    with torch.no_grad():
        assert torch.allclose(ours(theirs)(x), theirs(x).logits, atol=1e-4)


@pytest.mark.parametrize("end", [None, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_greedy_is_that_of_transformers(end: int | None, seed: int) -> None:
    theirs, prompt = gpt2(seed), tokens(5, 4, seed=seed)
    wanted = theirs.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=20,
        do_sample=False,
        eos_token_id=end,
    )
    for model, cache in ((ours(theirs), True), (ours(theirs), False), (theirs, True)):
        found = generate(model, prompt, max_new_tokens=20, end=end, padding=1, cache=cache)
        assert torch.equal(found.tokens, wanted)


@pytest.mark.parametrize("stopping", ["safe", "current", "full"])
@pytest.mark.parametrize("penalty", [0.0, 1.0, -0.7, 2.0])
@pytest.mark.parametrize("end", [None, 3])
def test_beams_are_those_of_transformers(stopping: Any, penalty: float, end: int | None) -> None:
    early: Any = {"safe": "never", "current": False, "full": True}[stopping]
    ended = 0
    for seed, beams in itertools.product(range(3), (2, 5)):
        theirs, prompt = gpt2(seed), tokens(3, 4, seed=seed)
        wanted = theirs.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=12,
            do_sample=False,
            num_beams=beams,
            num_return_sequences=beams,
            length_penalty=penalty,
            early_stopping=early,
            eos_token_id=end,
            return_dict_in_generate=True,
            output_scores=True,
        )
        options: dict[str, Any] = {"end": end, "padding": 1, "beams": beams}
        options |= {"length_penalty": penalty, "stopping": stopping}
        found = generate(ours(theirs), prompt, method="beam", max_new_tokens=12, **options)
        assert torch.equal(found.hypotheses.flatten(0, 1), wanted.sequences)
        assert torch.allclose(found.scores.flatten(), wanted.sequences_scores, atol=1e-4)
        again = generate(
            ours(theirs), prompt, method="beam", max_new_tokens=12, cache=False, **options
        )
        assert torch.equal(again.hypotheses, found.hypotheses)
        ended += int((found.lengths < 12).sum())
    if end is None:
        assert ended == 0
    elif penalty < 2:  # which favors long sequences so much that few end early
        assert ended > 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_k": 4},
        {"top_p": 0.6},
        {"temperature": 0.7},
        {"temperature": 1.5, "top_k": 9, "top_p": 0.8},
    ],
)
@pytest.mark.parametrize("end", [None, 3])
def test_samples_are_those_of_transformers(options: dict[str, Any], end: int | None) -> None:
    for seed in range(4):
        theirs, prompt = gpt2(seed), tokens(6, 4, seed=seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            wanted = theirs.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=15,
                do_sample=True,
                eos_token_id=end,
                **{"top_k": 0, "top_p": 1.0, "temperature": 1.0} | options,
            )
        found = generate(
            ours(theirs),
            prompt,
            method="sample",
            max_new_tokens=15,
            end=end,
            padding=1,
            generator=seed,
            **options,
        )
        assert torch.equal(found.tokens, wanted)


def test_log_probabilities_are_those_of_the_whole_sequence() -> None:
    model = ours(gpt2())
    prompt = tokens(4, 3)
    for method in ("greedy", "beam", "sample"):
        found = generate(model, prompt, method=method, max_new_tokens=6)
        whole = sequence_log_probability(model, found.tokens, prompt=3)
        assert torch.allclose(found.log_probabilities[:, 0], whole, atol=1e-4)


def brute(model: Any, prompt: Tensor, steps: int, vocabulary: int, end: int) -> dict[Any, float]:
    """Every sequence that ends by `end` or by its length, with its log-probability."""
    found = {}
    for length in range(1, steps + 1):
        for written in itertools.product(range(vocabulary), repeat=length):
            if end in written[:-1] or (length < steps and written[-1] != end):
                continue
            whole = torch.cat([prompt, torch.tensor([written])], 1)
            found[written] = float(sequence_log_probability(model, whole, prompt=2))
    return found


@pytest.mark.parametrize("penalty", [0.0, 1.0, -1.0])
def test_exhaustive_search_is_brute_force(penalty: float) -> None:
    model = LanguageModel(4, 8, heads=2, depth=1, generator=3, tied=False)
    prompt = torch.tensor([[1, 2]])
    with torch.no_grad():
        every = brute(model, prompt, 4, 4, 0)
    assert math.isclose(sum(math.exp(v) for v in every.values()), 1, rel_tol=1e-9)
    ranked = sorted(every, key=lambda y: -every[y] / len(y) ** penalty)[:7]
    options: dict[str, Any] = {"max_new_tokens": 4, "end": 0, "beams": 7}
    options["length_penalty"] = penalty
    found = generate(model, prompt, method="exhaustive", **options)
    assert [
        tuple(h[2 : 2 + n].tolist())
        for h, n in zip(found.hypotheses[0], found.lengths[0], strict=True)
    ] == ranked
    # a beam that loses nothing finds the same
    options["beams"] = 4**3
    wide = generate(model, prompt, method="beam", **options)
    assert torch.equal(wide.hypotheses[:, :7, : found.hypotheses.shape[-1]], found.hypotheses)
    assert torch.allclose(wide.scores[:, :7], found.scores)


def test_a_beam_of_one_is_greedy() -> None:
    model = ours(gpt2(4))
    prompt = tokens(7, 3, seed=4)
    greedy = generate(model, prompt, max_new_tokens=10)
    assert torch.equal(
        generate(model, prompt, method="beam", beams=1, max_new_tokens=10).tokens, greedy.tokens
    )


def test_every_kind_of_model_writes() -> None:
    source = tokens(3, 5, count=4)
    recurrent = Seq2Seq(4, 3, 6)
    start = torch.full((3, 1), 3)
    found = generate(recurrent, start, max_new_tokens=6, source=source)
    assert torch.equal(found.tokens[:, 1:], sequence_to_sequence.greedy(recurrent, source, 6))
    pair = Transformer(4, 3, 8, 16, 2, depth=2)
    for method in ("greedy", "beam", "sample", "exhaustive"):
        both = [
            generate(pair, start, method=method, max_new_tokens=4, source=source, cache=cache)
            for cache in (True, False)
        ]
        assert torch.equal(both[0].hypotheses, both[1].hypotheses)
        whole = pair(source, both[0].tokens[:, :-1]).log_softmax(-1)
        wanted = whole.gather(-1, both[0].tokens[:, 1:, None]).sum((1, 2))
        assert torch.allclose(both[0].log_probabilities[:, 0], wanted)
    row = torch.tensor([0.0, 1.0, 2.0])
    assert generate(
        lambda t: row.expand(len(t), 3), torch.tensor([0]), max_new_tokens=2
    ).tokens.tolist() == [[0, 2, 2]]


def test_evaluations_are_those_the_model_was_asked_for() -> None:
    asked = 0

    def counting(x: Tensor) -> Tensor:
        nonlocal asked
        asked += len(x) * 3
        return torch.sin(x.double().cumsum(1)[..., None] * torch.arange(1, 4).double())

    for method, beams, wanted in (
        ("greedy", None, 5 * 3),
        ("beam", 2, 3 + 4 * 2 * 3),
        ("beam", 9, 3 + 9 + 3 * 27),
        ("exhaustive", None, 3 + 9 + 27 + 81 + 243),
    ):
        asked = 0
        found = generate(counting, torch.tensor([1]), method=method, beams=beams, max_new_tokens=5)
        assert found.evaluations == asked == wanted


def test_the_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Dropout(0.5), nn.Linear(4, 5))
    model.train()
    state = torch.get_rng_state()
    first = generate(model, torch.tensor([1]), max_new_tokens=5).tokens
    assert torch.equal(first, generate(model, torch.tensor([1]), max_new_tokens=5).tokens)
    assert model.training
    assert model[1].training
    assert torch.equal(state, torch.get_rng_state())


def test_filters_keep_what_they_say() -> None:
    chances = torch.tensor([0.4, 0.35, 0.25], dtype=torch.float64).log()
    assert filtered(chances, top_p=0.5).softmax(-1).tolist() == pytest.approx(
        [0.4 / 0.75, 0.35 / 0.75, 0]
    )
    assert torch.equal(keep_top_p(chances, 1), chances)
    assert torch.equal(keep_top_k(chances, 9), chances)
    # exactly k, also where logits are equal
    assert keep_top_k(torch.zeros(5), 2).isfinite().tolist() == [True, True, False, False, False]
    assert keep_top_p(torch.zeros(4), 0.5).isfinite().tolist() == [True, True, False, False]
    assert keep_top_p(torch.zeros(4), 1e-9).isfinite().sum() == 1


START = torch.tensor([0])


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"prompt": torch.zeros(1, 0).long()}, EmptyData, "a prompt is empty"),
        ({"prompt": torch.tensor([[-1]])}, InvalidInput, "count from 0"),
        ({"prompt": torch.tensor([[77]])}, InvalidInput, "has the token 77"),
        ({"prompt": [1, 2]}, InvalidType, "torch.tensor makes one"),
        ({"max_new_tokens": 0}, InvalidInput, "max_new_tokens"),
        ({"method": "beams"}, UnknownName, "did you mean 'beam'"),
        ({"method": "sample", "top_p": 0.0}, InvalidInput, r"top_p must be a number in \(0, 1\]"),
        ({"method": "sample", "top_p": 1.5}, InvalidInput, r"top_p must be a number in \(0, 1\]"),
        ({"method": "sample", "top_k": 0}, InvalidInput, "top_k must be a whole number >= 1"),
        ({"method": "sample", "temperature": 0.0}, InvalidInput, "temperature"),
        ({"top_k": 3}, InvalidInput, "are for method='sample'"),
        ({"beams": 3}, InvalidInput, "keeps one hypothesis"),
        ({"method": "beam", "beams": 0}, InvalidInput, "beams"),
        ({"method": "beam", "beams": 126}, InvalidInput, r"only 5\^3 = 125 sequences"),
        ({"method": "beam", "length_penalty": math.nan}, InvalidInput, "length_penalty"),
        ({"method": "exhaustive", "max_new_tokens": 40}, InvalidInput, "use fewer steps"),
        ({"end": 5}, InvalidInput, "end is the token 5"),
        ({"method": "beam", "end": 9}, InvalidInput, "end is the token 9"),
        ({"source": torch.zeros(1, 3).long()}, InvalidInput, "no encoder"),
        ({"model": 3}, InvalidType, "function from tokens"),
        ({"model": lambda x: x}, InvalidType, "must give logits"),
        ({"model": lambda x: torch.full((1, 2), torch.nan)}, NonFinite, "NaN"),
        ({"model": lambda x: torch.full((1, 2), torch.inf)}, NonFinite, "infinity"),
        ({"model": lambda x: torch.full((1, 2), -torch.inf)}, NonFinite, "no token comes next"),
        ({"model": nn.Embedding(2, 5), "prompt": torch.tensor([3])}, InvalidInput, "cannot read"),
        ({"length_penalty": 1.0}, InvalidInput, "beams and length_penalty are for method='beam'"),
        ({"stopping": "full"}, InvalidInput, "stopping is for method='beam'"),
    ],
)
def test_bad_input_is_refused(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    given: dict[str, Any] = {"model": LanguageModel(5, 4, heads=1, depth=1), "prompt": START}
    given |= {"max_new_tokens": 3} | changes
    model, prompt = given.pop("model"), given.pop("prompt")
    with pytest.raises(error, match=words):
        generate(model, prompt, **given)


def test_an_encoder_decoder_needs_its_source() -> None:
    with pytest.raises(InvalidInput, match="give source="):
        generate(Seq2Seq(4, 3, 6), START, max_new_tokens=2)


def test_a_probability_needs_logits() -> None:
    tokens = torch.zeros(1, 3).long()
    for wrong, words in ((3, "function from tokens"), (lambda x: None, "must give logits")):
        with pytest.raises(InvalidType, match=words):
            sequence_log_probability(wrong, tokens)


def test_padding_need_not_be_a_token() -> None:
    # after 0 comes 1, after 1 comes 2, after 2 comes 0; a token 99 would be refused
    cycle = nn.Embedding.from_pretrained(torch.eye(3).roll(1, 1))
    prompts = torch.tensor([[0], [1]])
    found = generate(cycle, prompts, max_new_tokens=6, end=1, padding=99)
    assert found.tokens.tolist() == [[0, 1, 99, 99], [1, 2, 0, 1]]
    assert found.lengths.tolist() == [[1], [3]]


def test_a_beam_whose_only_token_ends() -> None:
    found = generate(
        lambda x: torch.zeros(*x.shape, 1), START, method="beam", beams=1, end=0, max_new_tokens=4
    )
    assert found.lengths.tolist() == [[1]]
    assert found.log_probabilities.tolist() == [[0.0]]


@pytest.mark.parametrize("end", [None, 1])
def test_an_encoder_decoder_of_transformers(end: int | None) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = T5Config(
            vocab_size=13,
            d_model=16,
            d_kv=8,
            d_ff=32,
            num_layers=2,
            num_heads=2,
            decoder_start_token_id=0,
            eos_token_id=end,
            pad_token_id=2,
            initializer_factor=3.0,
        )
        theirs = T5ForConditionalGeneration(config).eval()
    sources = torch.randint(3, 13, (3, 5), generator=torch.Generator().manual_seed(1))
    start = torch.zeros(3, 1).long()
    options: dict[str, Any] = {"source": sources, "max_new_tokens": 5, "end": end, "padding": 2}
    wanted = theirs.generate(sources, do_sample=False, max_new_tokens=5)
    assert torch.equal(generate(theirs, start, **options).tokens, wanted)
    beam = {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.0}
    many = theirs.generate(
        sources, do_sample=False, max_new_tokens=5, early_stopping="never", **beam
    )
    found = generate(theirs, start, method="beam", beams=3, **options).hypotheses
    assert torch.equal(found, many.view(3, 3, -1))
    one = generate(theirs, start[0], **{**options, "source": sources[0]}).tokens
    assert torch.equal(one[0], wanted[0, : one.shape[1]])


def test_a_safe_beam_allows_for_all_the_steps_that_are_left() -> None:
    # 1 ends at once with the probability 0.7; 2 has 0.3, and then follows itself for certain
    table = torch.tensor([[0.0, 0.7, 0.3], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]).log()
    options: dict[str, Any] = {"method": "beam", "beams": 1, "end": 1, "length_penalty": 1.0}

    def written(**more: Any) -> list[int]:
        found = generate(lambda x: table[x], START, max_new_tokens=6, **{**options, **more})
        return found.tokens[0, 1:].tolist()

    # ln 0.3 over 6 is more than ln 0.7, and ln 0.3 over 2 less
    assert written() == written(method="exhaustive") == [2] * 6
    assert written(stopping="current") == written(stopping="full") == [1]
