"""Tokenizers: round trips, brute force, and the package `tokenizers` on the same vocabulary."""

from __future__ import annotations

import itertools
import math
import random
import unicodedata
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, MissingPackage
from torchtheory.sequences.language import token_tables
from torchtheory.sequences.language.byte_pairs import BYTE_ORDER, BytePairEncoding
from torchtheory.sequences.language.sources import python_manual
from torchtheory.sequences.language.text import bytes_per_token, normalize, split_text, split_words
from torchtheory.sequences.language.token_tables import GPT2_TABLE, gpt2_token_table, token_table
from torchtheory.sequences.language.unigram import Unigram, splits
from torchtheory.sequences.language.wordpiece import SPECIAL, WordPiece, wordpiece
from torchtheory.sequences.language.words import CharacterTokenizer, WordTokenizer

CORPUS = python_manual()[:60_000]
STRANGE = "naïve café ☃ 🙂👩‍👩‍👧  \t\n x²Ⅷ ½ 日本語テキスト العربية don't we'll I'D 3.14_foo  "


def byte_level(merges: int, texts: list[str]) -> Tokenizer:
    theirs = Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + merges,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    theirs.train_from_iterator(texts, trainer)
    return theirs


@pytest.mark.parametrize("merges", [0, 1, 50, 700])
def test_byte_pairs_are_those_of_the_package(merges: int) -> None:
    texts = [CORPUS, STRANGE * 3, "aaaaaaa aaaa aaa abababab" * 5]
    theirs, ours = byte_level(merges, texts), BytePairEncoding.train(texts, merges)
    assert len(ours) == theirs.get_vocab_size() == 256 + merges
    for text in (*texts, "unseen words: floccinaucinihilipilification", "", "   ", "a" * 1000):
        assert ours.encode(text) == theirs.encode(text).ids
        assert ours.decode(ours.encode(text)) == text


#: Letters, signs, ideographs, Korean, marks, and what only controls.
ODD = "aÉß İ9½²,-$‘你𠀀한ア\u0301\u00ad\u200b\u200d\x00\x1c\x1f\x85\ufffd\n\t\u00a0\u3000👍\ufe0f'"
LETTERS = sorted(
    {
        c
        for form in ("NFC", "NFD")
        for c in unicodedata.normalize(form, ODD + ODD.lower())
        if c.strip()
    }
)


def test_splits_are_those_of_the_package() -> None:
    theirs = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for text in (CORPUS, STRANGE, "a  b   c", "x\u00a0y \u2003 z", "''s'll'LL", "e\u0301"):
        found = split_text(text)
        assert "".join(found) == text
        places = [span for _, span in theirs.pre_tokenize_str(text)]
        assert found == [text[a:b] for a, b in places]


def test_merges_of_gpt2_are_read() -> None:
    ours = BytePairEncoding.train([CORPUS], 40)
    names = dict(zip(BYTE_ORDER, sorted(pre_tokenizers.ByteLevel.alphabet()), strict=True))

    def spelled(token: int) -> str:
        return "".join(names[b] for b in ours.pieces[token])

    lines = ["#version: 0.2", *(f"{spelled(a)} {spelled(b)}" for a, b in ours.merges)]
    again = BytePairEncoding.from_gpt2(lines)
    assert again.merges == ours.merges
    assert again.pieces == ours.pieces
    with pytest.raises(InvalidInput, match="line 2 of the merges"):
        BytePairEncoding.from_gpt2(["a b", "abc d"])


@given(st.text())
@settings(max_examples=80, deadline=None)
def test_byte_pairs_round_trip(text: str) -> None:
    tokenizer = BytePairEncoding.train([CORPUS[:3000]], 60)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def slow_merges(words: Counter[tuple[bytes, ...]], merges: int) -> list[tuple[bytes, bytes]]:
    """Counting everything anew for each merge."""
    number = {bytes([b]): i for i, b in enumerate(BYTE_ORDER)}
    found: list[tuple[bytes, bytes]] = []
    while len(number) < 256 + merges:
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for word, n in words.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += n
        if not pairs or max(pairs.values()) < 2:
            break
        a, b = min(pairs, key=lambda p: (-pairs[p], number[p[0]], number[p[1]]))
        number.setdefault(a + b, len(number))
        found.append((a, b))
        merged: Counter[tuple[bytes, ...]] = Counter()
        for word, n in words.items():
            out, i = [], 0
            while i < len(word):
                if i + 1 < len(word) and (word[i], word[i + 1]) == (a, b):
                    out.append(a + b)
                    i += 2
                else:
                    out.append(word[i])
                    i += 1
            merged[tuple(out)] += n
        words = merged
    return found


@pytest.mark.parametrize("seed", range(6))
def test_counts_that_are_kept_are_those_counted_anew(seed: int) -> None:
    source = random.Random(seed)
    text = " ".join("".join(source.choices("ab", k=source.randint(1, 9))) for _ in range(60))
    words = Counter(tuple(bytes([b]) for b in w.encode()) for w in split_text(text))
    ours = BytePairEncoding.train([text], 40)
    assert [(ours.pieces[a], ours.pieces[b]) for a, b in ours.merges] == slow_merges(words, 40)


def test_wordpiece_is_that_of_the_package() -> None:
    ours = WordPiece.train([CORPUS], 600)
    theirs = Tokenizer(
        models.WordPiece(ours.number, unk_token="[UNK]", max_input_chars_per_word=100)
    )
    theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    theirs.normalizer = normalizers.BertNormalizer()
    unseen = "Xylophones & zebras' ☃ snow-men; " + "a" * 101 + " " + "a" * 100
    for text in (CORPUS, STRANGE, unseen, ""):
        assert ours.encode(text) == theirs.encode(text).ids
    assert len(ours) == 600
    assert ours.vocabulary[:5] == SPECIAL
    assert "[UNK]" not in ours.tokens(CORPUS)
    words = " ".join(split_words(normalize(CORPUS, form=None, lowercase=True, accents=False)))
    assert ours.decode(ours.encode(CORPUS)) == words


@given(st.text(ODD, max_size=12))
def test_words_and_pieces_of_any_text_are_those_of_the_packages(text: str) -> None:
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert len(split_text(text)) == len(bytes_of.pre_tokenize_str(text))
    for uncased in (True, False):
        # every character is a token, so that each word can be told from its pieces
        ours = WordPiece([*SPECIAL, *LETTERS, *("##" + c for c in LETTERS)], uncased=uncased)
        cleaned = normalizers.BertNormalizer(lowercase=uncased).normalize_str(text)
        words = [word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(cleaned)]
        assert ours.tokens(text) == [p for word in words for p in wordpiece(word, ours.number)]


def test_wordpiece_takes_the_longest() -> None:
    # the longest first piece makes the rest impossible: greedy does not look back
    assert wordpiece("abc", {"ab", "a", "##bc"}) == ["[UNK]"]
    assert wordpiece("abc", {"a", "##b", "##bc"}) == ["a", "##bc"]


@pytest.mark.parametrize("seed", range(5))
def test_viterbi_is_brute_force(seed: int) -> None:
    source = random.Random(seed)
    letters = "abc"
    tokens = {
        *letters,
        *("".join(source.choices(letters, k=source.randint(2, 4))) for _ in range(12)),
    }
    model = Unigram({t: -source.expovariate(1) - 0.3 * len(t) for t in sorted(tokens)})
    for n in range(1, 11):
        text = "".join(source.choices(letters, k=n))
        every = list(splits(text))
        assert len(set(every)) == 2 ** (n - 1)
        scores = [model.log_probability(s) for s in every]
        assert model.log_probability(model.tokens(text)) == pytest.approx(max(scores), abs=1e-12)
        assert model.log_likelihood(text) == pytest.approx(
            math.log(sum(math.exp(s) for s in scores)), abs=1e-12
        )
        shares = [math.exp(s - model.log_likelihood(text)) for s in scores]
        counts = model.expected_counts(text)
        for token in tokens:
            wanted = sum(p * s.count(token) for p, s in zip(shares, every, strict=True))
            assert counts.get(token, 0.0) == pytest.approx(wanted, abs=1e-12)


def test_unigram_is_that_of_the_package() -> None:
    ours = Unigram.train([CORPUS[:8000]], 300)
    theirs = Tokenizer(models.Unigram(list(ours.log_probabilities.items())))
    for piece in split_text(CORPUS[:20_000]):
        if all(c in ours.vocabulary for c in piece):
            assert ours.tokens(piece) == theirs.encode(piece).tokens
    assert len(ours) == 300
    assert math.isclose(sum(map(math.exp, ours.log_probabilities.values())), 1, rel_tol=1e-9)


def test_expectation_maximization_does_not_lower_the_likelihood() -> None:
    words = Counter(split_text(CORPUS[:5000]))
    model = Unigram.seeded(words, 6)

    def total(m: Unigram) -> float:
        return sum(n * m.log_likelihood(w) for w, n in words.items())

    values = [total(model)]
    for _ in range(5):
        model = model.improved(words)
        values.append(total(model))
    assert all(b >= a - 1e-6 * abs(a) for a, b in itertools.pairwise(values))
    assert values[-1] > values[0] + 100


def test_more_tokens_compress_more() -> None:
    text = CORPUS[:20_000]
    found = [bytes_per_token(BytePairEncoding.train([text], n), text) for n in (0, 100, 400, 1600)]
    assert found == sorted(found)
    assert found[0] == 1
    assert bytes_per_token(CharacterTokenizer(text), text) == pytest.approx(1, abs=0.01)
    assert bytes_per_token(WordTokenizer.train([text], 100), text) > found[2]


def test_tables_of_tokens() -> None:
    matrix = torch.arange(512 * 3).reshape(512, 3).double()
    tokenizer = BytePairEncoding.train([CORPUS], 256)
    rows = token_table(
        "the tokens", torch.nn.Embedding.from_pretrained(matrix), tokenizer, entries=2
    )
    assert "".join(r.token for r in rows) == "the tokens"
    for row in rows:
        assert row.norm == pytest.approx(float(matrix[row.id].norm()))
        assert row.first == tuple(matrix[row.id, :2].tolist())
    # the table of the source: the three frequent words have the three smallest norms
    ranked = sorted(GPT2_TABLE, key=lambda r: r.norm)
    assert {r.token for r in ranked[:3]} == {" a", " of", " out"}
    assert [r.id for r in GPT2_TABLE] == [7594, 257, 5916, 503, 286, 1660]
    assert "".join(r.token for r in GPT2_TABLE) == "Like a fish out of water"


def test_gpt2_needs_its_package_and_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="GPT2_TABLE"):
        gpt2_token_table("fish", name="/nowhere/at/all")

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(token_tables.importlib, "import_module", missing)
    with pytest.raises(MissingPackage, match="pip install transformers"):
        gpt2_token_table("fish")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: CharacterTokenizer("abc").encode("abd"),
            InvalidInput,
            "'d' is not in the alphabet",
        ),
        (lambda: CharacterTokenizer(""), EmptyData, "alphabet is empty"),
        (lambda: BytePairEncoding.train([], 3), EmptyData, "corpus is empty"),
        (lambda: BytePairEncoding.train(["a"], -1), InvalidInput, "merges"),
        (lambda: BytePairEncoding([(0, 256)]), InvalidInput, "only 256 then"),
        (lambda: BytePairEncoding().decode([256]), InvalidInput, "256 is not in the vocabulary"),
        (lambda: BytePairEncoding().encode("\ud800"), InvalidInput, "surrogate"),
        (lambda: BytePairEncoding().encode(b"abc"), InvalidType, "a text is a string"),  # type: ignore[arg-type]
        (lambda: WordPiece(["a"]), InvalidInput, r"needs the token \[UNK\]"),
        (
            lambda: WordPiece(["[UNK]", "a", "a"]),
            InvalidInput,
            "'a' stands in the vocabulary twice",
        ),
        (lambda: WordPiece.train(["abc"], 6), InvalidInput, "size must be a whole number >= 8"),
        (lambda: Unigram({}), EmptyData, "vocabulary is empty"),
        (lambda: Unigram({"a": math.nan}), InvalidInput, "log-probability of 'a'"),
        (lambda: Unigram({"a": -1.0}).encode("ab"), InvalidInput, "character 'b'"),
        (lambda: Unigram({"ab": -1.0, "b": -2.0}).encode("ba"), InvalidInput, "character 'a'"),
        (lambda: Unigram.train(["abc"], 2), InvalidInput, "size must be a whole number >= 3"),
        (lambda: BytePairEncoding().decode("12"), InvalidType, "list of whole numbers"),  # type: ignore[arg-type]
        (lambda: BytePairEncoding().decode([1.7]), InvalidType, "list of whole numbers"),  # type: ignore[list-item]
        (lambda: BytePairEncoding().shown(-1), InvalidInput, "the token -1 is not in the"),
        (lambda: BytePairEncoding([(1,)]), InvalidType, "merges are pairs"),  # type: ignore[list-item]
        (lambda: BytePairEncoding.train(3, 3), InvalidType, "a corpus is a list"),  # type: ignore[arg-type]
        (
            lambda: token_table("é", torch.zeros(3, 2), BytePairEncoding()),
            InvalidInput,
            "different vocabularies",
        ),
    ],
)
def test_bad_input_is_refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_the_empty_text_is_cut_in_one_way() -> None:
    assert list(splits("")) == [()]
    assert WordTokenizer(["[UNK]", "a"]).vocabulary == ("[UNK]", "a")


def test_training_begins_with_what_occurs_twice() -> None:
    begun = Unigram.seeded({"ab": 2, "cd": 1}, 5)
    assert begun.vocabulary == ("a", "ab", "b", "c", "d")
    assert math.isclose(begun.log_probabilities["ab"], math.log(2 / 8))
