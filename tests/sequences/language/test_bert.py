"""BERT: equal to that of transformers, its inputs, its masks, its pairs, its heads."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertForPreTraining

from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch
from torchtheory.sequences.language.bert import Bert, FineTuned, best_span, pretraining_loss
from torchtheory.sequences.language.bert_inputs import (
    IGNORED,
    BertInputs,
    bert_inputs,
    mask_tokens,
    next_sentence_pairs,
)
from torchtheory.sequences.language.wordpiece import SPECIAL, WordPiece

WORDS = WordPiece([*SPECIAL, "cats", "dogs", "purr", "bark", "##s", "bird", "sing", "loud", "##ly"])


def inputs() -> BertInputs:
    return bert_inputs([("cats purr", "birds sing loudly"), "dogs bark", ("birds", "dogs")], WORDS)


def test_states_and_predictions_are_those_of_transformers() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=40,
            hidden_size=24,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=36,
            max_position_embeddings=32,
        )
        theirs = BertForPreTraining(config).eval()
        with torch.no_grad():
            for p in theirs.parameters():
                p.add_(0.1 * torch.randn_like(p))
            # so small that it matters what the norms add to the variance
            theirs.bert.embeddings.word_embeddings.weight.mul_(1e-3)
            theirs.bert.embeddings.position_embeddings.weight.mul_(1e-3)
            theirs.bert.embeddings.token_type_embeddings.weight.mul_(1e-3)
    given = inputs()
    ours = Bert.from_transformers(theirs.state_dict(), heads=4)
    with torch.no_grad():
        wanted = theirs(
            input_ids=given.ids,
            token_type_ids=given.segments,
            attention_mask=given.present.long(),
        )
        states = ours(given)
        found = ours.masked_logits(states)
    real = given.present
    assert torch.allclose(found[real], wanted.prediction_logits[real], atol=2e-5)
    following = ours.next_logits(states).detach()
    assert torch.allclose(following, wanted.seq_relationship_logits.flip(1), atol=2e-5)
    with pytest.raises(InvalidInput, match="not the weights of a BertForPreTraining"):
        Bert.from_transformers({}, heads=4)


def test_inputs_have_their_marks() -> None:
    given = inputs()
    assert WORDS.decode(given.ids[0].tolist()) == "[CLS] cats purr [SEP] birds sing loudly [SEP]"
    assert WORDS.decode(given.ids[1][:4].tolist()) == "[CLS] dogs bark [SEP]"
    assert given.present.sum(1).tolist() == [10, 4, 6]
    assert given.segments[2][:6].tolist() == [0, 0, 0, 0, 1, 1]
    assert (given.special == (given.ids < 5)).all()


def test_padding_changes_nothing() -> None:
    model = Bert(len(WORDS), 8, heads=2, depth=2, length=16)
    given = inputs()
    alone = bert_inputs(["dogs bark"], WORDS)
    assert torch.allclose(model(given)[1, :4], model(alone)[0])


def test_long_pairs_lose_the_end_of_the_longer_sentence() -> None:
    made = bert_inputs([("cats purr", "dogs bark loud sing bird")], WORDS, length=8)
    assert WORDS.decode(made.ids[0].tolist()) == "[CLS] cats purr [SEP] dogs bark loud [SEP]"


def within(count: Tensor, total: int, chance: float) -> bool:
    """Within five standard deviations of a binomial count."""
    return abs(int(count) - total * chance) <= 5 * math.sqrt(total * chance * (1 - chance))


def test_masks_have_their_frequencies() -> None:
    total, vocabulary = 200_000, 50
    ids = torch.randint(
        5, vocabulary, (20, total // 20), generator=torch.Generator().manual_seed(1)
    )
    hidden, labels = mask_tokens(ids, vocabulary, generator=2)
    chosen = labels != IGNORED
    assert torch.equal(labels[chosen], ids[chosen])
    assert torch.equal(hidden[~chosen], ids[~chosen])
    masked, kept = hidden == 4, chosen & (hidden == ids)
    other = chosen & ~masked & ~kept
    assert within(chosen.sum(), total, 0.15)
    assert within(masked.sum(), total, 0.12)
    # a token drawn to replace another is the same one by chance
    assert within(other.sum(), total, 0.015 * (1 - 1 / 45))
    assert within(kept.sum(), total, 0.015 * (1 + 1 / 45))
    assert int(hidden[other].min()) >= 5


def test_special_tokens_are_never_masked() -> None:
    given = inputs()
    hidden, labels = mask_tokens(
        given.ids, len(WORDS), special=given.special, share=1.0, generator=1
    )
    assert torch.equal(labels != IGNORED, ~given.special)
    assert torch.equal(hidden[given.special], given.ids[given.special])
    again = mask_tokens(given.ids, len(WORDS), share=1.0, generator=1)
    assert torch.equal(again[0], hidden)


def test_pairs_are_half_true_and_no_false_one_follows() -> None:
    documents = [[f"{d}.{i % 7}" for i in range(30)] for d in range(3)]
    pairs = next_sentence_pairs(documents, generator=0)
    true = {(a, b) for d in documents for a, b in itertools.pairwise(d)}
    assert len(pairs) == 87
    assert sum(p.follows for p in pairs) == 44
    assert all(((p.first, p.second) in true) == p.follows for p in pairs)
    # one sentence among two hundred that may be drawn
    pairs = next_sentence_pairs([["a"] * 200, ["z"]], generator=0)
    assert {p.second for p in pairs if not p.follows} == {"z"}


def test_the_loss_is_the_sum_of_both() -> None:
    model = Bert(len(WORDS), 8, heads=2, depth=1, length=16)
    given = inputs()
    hidden, labels = mask_tokens(given.ids, len(WORDS), share=0.6, generator=1)
    follows = torch.tensor([True, False, False])
    with torch.no_grad():
        found = pretraining_loss(model, given._replace(ids=hidden), labels, follows)
        states = model(given._replace(ids=hidden))
        logs = model.masked_logits(states).log_softmax(-1)
        pairs = model.next_logits(states).log_softmax(-1)
    asked = [(b, t) for b, t in (labels != IGNORED).nonzero().tolist()]
    masked = -sum(float(logs[b, t, labels[b, t]]) for b, t in asked) / len(asked)
    following = -float(pairs[0, 1] + pairs[1, 0] + pairs[2, 0]) / 3
    assert float(found.masked) == pytest.approx(masked)
    assert float(found.following) == pytest.approx(following)
    assert float(found.total) == pytest.approx(masked + following)


@pytest.mark.parametrize("longest", [None, 1, 3])
def test_spans_are_those_of_brute_force(longest: int | None) -> None:
    source = torch.Generator().manual_seed(0)
    for _ in range(30):
        starts, ends = torch.randn(2, 3, 9, generator=source)
        passage = torch.rand(3, 9, generator=source) < 0.7
        passage[:, 4] = True
        found = best_span(starts, ends, passage=passage, longest=longest)
        for b in range(3):
            allowed = [
                (float(starts[b, i] + ends[b, j]), i, j)
                for i in range(9)
                for j in range(i, 9)
                if passage[b, i : j + 1].all() and (longest is None or j - i < longest)
            ]
            score, i, j = max(allowed)
            assert (int(found.start[b]), int(found.end[b])) == (i, j)
            assert float(found.score[b]) == pytest.approx(score)


@pytest.mark.parametrize(("reading", "classes"), [("sequence", 3), ("tokens", 4), ("span", None)])
@pytest.mark.parametrize("frozen", [True, False])
def test_only_full_tuning_changes_the_encoder(
    reading: Any, classes: int | None, frozen: bool
) -> None:
    bert = Bert(len(WORDS), 8, heads=2, depth=1, length=16)
    before = {name: p.clone() for name, p in bert.named_parameters()}
    model = FineTuned(bert, reading, classes=classes, frozen=frozen)
    head = model.head.weight.clone()
    optimizer = torch.optim.SGD(model.trained_parameters(), lr=0.1)
    outputs = model(inputs())
    torch.autograd.backward(outputs.square().sum())
    optimizer.step()
    assert outputs.shape == {"sequence": (3, 3), "tokens": (3, 10, 4), "span": (3, 10, 2)}[reading]
    assert not torch.equal(model.head.weight, head)
    moved = [name for name, p in bert.named_parameters() if not torch.equal(p, before[name])]
    assert bool(moved) is not frozen
    assert all(p.requires_grad for p in bert.parameters())


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: bert_inputs([], WORDS), EmptyData, "at least one"),
        (lambda: bert_inputs([("a", "b", "c")], WORDS), InvalidType, "a pair of them, not"),  # type: ignore[list-item]
        (lambda: bert_inputs(["a"], WordPiece(["[UNK]"])), InvalidInput, r"no token \[PAD\]"),
        (lambda: bert_inputs(["cats"], WORDS, length=2), InvalidInput, "length"),
        (lambda: mask_tokens(torch.tensor([[99]]), 50), InvalidInput, "0 to 49"),
        (lambda: mask_tokens(torch.zeros(2, 2), 50), InvalidType, "tensor of tokens"),
        (lambda: mask_tokens(torch.tensor([[9]]), 50, share=1.2), InvalidInput, "share"),
        (
            lambda: mask_tokens(torch.tensor([[9]]), 50, split=(0.8, 0.1, 0.2)),
            InvalidInput,
            "sum to 1",
        ),
        (lambda: mask_tokens(torch.tensor([[-4]]), 50), InvalidInput, "the token -4"),
        (
            lambda: mask_tokens(torch.tensor([[9]]), 50, split=(math.nan, 0.5, 0.5)),
            InvalidInput,
            "split",
        ),
        (
            lambda: mask_tokens(torch.tensor([[9]]), 50, special=[[0]]),  # type: ignore[arg-type]
            InvalidType,
            "tensor of booleans",
        ),
        (lambda: bert_inputs([None], WORDS), InvalidType, "a pair of them"),  # type: ignore[list-item]
        (lambda: bert_inputs([()], WORDS), InvalidType, "a pair of them"),  # type: ignore[list-item]
        (lambda: Bert(9, 4, 1, 1)(torch.zeros(1, 3).long()), InvalidType, "made by bert_inputs"),
        (lambda: FineTuned(Bert(9, 4, 1, 1), "tokens"), InvalidInput, "give classes="),
        (lambda: mask_tokens(torch.tensor([[3]]), 5), InvalidInput, "all tokens are reserved"),
        (lambda: next_sentence_pairs([["one"]]), EmptyData, "two sentences"),
        (lambda: next_sentence_pairs(["one two"]), InvalidType, "list of sentences"),
        (lambda: next_sentence_pairs([["a", "a", "a"]]), InvalidInput, "no false pair"),
        (lambda: best_span(torch.zeros(2, 3), torch.zeros(2, 4)), ShapeMismatch, "both be"),
        (
            lambda: best_span(
                torch.zeros(1, 2), torch.zeros(1, 2), passage=torch.zeros(1, 2).bool()
            ),
            InvalidInput,
            "passage is empty",
        ),
        (lambda: FineTuned(Bert(9, 4, 1, 1), "span", classes=2), InvalidInput, "no classes"),
    ],
)
def test_bad_input_is_refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_masks_of_numbers_are_those_of_booleans() -> None:
    given = inputs()
    plain = mask_tokens(given.ids, len(WORDS), special=given.special, share=0.6, generator=1)
    numbers = mask_tokens(
        given.ids, len(WORDS), special=given.special.long(), share=0.6, generator=1
    )
    assert all(torch.equal(a, b) for a, b in zip(plain, numbers, strict=True))
    starts, ends = torch.tensor([[9.0, 1.0, 2.0]]), torch.tensor([[9.0, 3.0, 1.0]])
    found = best_span(starts, ends, passage=torch.tensor([[0, 1, 1]]))
    assert found[:2] == best_span(starts, ends, passage=torch.tensor([[False, True, True]]))[:2]
    assert found.start.tolist() == found.end.tolist() == [1]
