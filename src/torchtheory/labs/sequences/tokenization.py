"""Tokenization: from text to numbers and back, in four ways, and what tokens' vectors look like."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.labs.engine import Run, lab
from torchtheory.sequences.attention.transformers import LanguageModel
from torchtheory.sequences.language.byte_pairs import BytePairEncoding
from torchtheory.sequences.language.sources import python_manual
from torchtheory.sequences.language.text import bytes_per_token, split_text
from torchtheory.sequences.language.token_tables import GPT2_TABLE, TokenRow, token_table
from torchtheory.sequences.language.unigram import Unigram, splits
from torchtheory.sequences.language.wordpiece import WordPiece
from torchtheory.sequences.language.words import CharacterTokenizer, WordTokenizer


@lab(
    "tokenization",
    room="sequences",
    covers=["M-111", "M-112"],
    title="Merging frequent pairs shortens text and loses nothing; the likeliest split is found among $2^{n-1}$",
    full={"corpus": 400_000, "networks": 8},
    least={"corpus": 20_000, "networks": 2},
)
def tokenization(run: Run, corpus: int = 24_000, networks: int = 2) -> None:
    """Byte pairs, WordPiece, Unigram, characters and words on chapters of Python's own manual.

    Byte-pair encoding gives every text back, because it starts from bytes; a vocabulary of words
    does not. Each merge is the most frequent pair of a full count. Of all splits of a word the
    unigram model finds the likeliest without trying them, and its training never lowers the
    likelihood. Then small language models are trained, and the norms of their tokens' vectors are
    held against the tokens' frequencies.

    Args:
        corpus: characters of the text.
        networks: that are trained, with each of two optimizers.
    """
    text = python_manual()[:corpus]
    byte_pairs(run, text)
    unigram(run, text)
    compression(run, python_manual()[: 4 * corpus])
    norms(run, text, networks)


def byte_pairs(run: Run, text: str) -> None:
    tokenizer = BytePairEncoding.train([text], 300)
    words = WordTokenizer.train([text], 556)
    strange = [strange_text(run) for _ in range(50)]
    says = run.states("M-111", r"\mathrm{decode}(\mathrm{encode}(s))=s\text{ for every text }s")
    says.equal(sum(tokenizer.decode(tokenizer.encode(s)) != s for s in strange), 0, where="50 texts of any characters")
    says.fails("a vocabulary of words, as large", sum(words.decode(words.encode(s)) != s for s in strange))
    wanted = [0, 10, 100, 300]
    says = run.states("M-111", r"|\mathcal V|=256+\text{merges}")
    says.equal([len(BytePairEncoding.train([text], n)) for n in wanted], [256 + n for n in wanted])
    once = "the quick brown fox"
    says.fails("a text in which no pair occurs twice", [len(BytePairEncoding.train([once], n)) for n in wanted])
    sample = text[5_000:8_000]
    ours = BytePairEncoding.train([sample], 60)
    other = BytePairEncoding.train([text[10_000:13_000]], 60)
    says = run.states("M-111", r"\text{each merge joins the most frequent pair of all}")
    says.equal(excess(ours, sample), 0.0, where="how many times more frequent the best pair was, 60 merges")
    says.fails("merges of another text", excess(other, sample))
    sizes = [len(BytePairEncoding(tokenizer.merges[:n]).encode(text)) for n in range(0, 300, 30)]
    greek = "".join(chr(0x3B1 + i % 17) for i in range(2_000))
    foreign = [len(BytePairEncoding(tokenizer.merges[:n]).encode(greek)) for n in range(0, 300, 30)]
    says = run.states("M-111", r"\text{each merge leaves fewer tokens of the text it was learned on}")
    says.below(sizes[1:], sizes[:-1], where="every 30 merges")
    says.fails("a text of other letters", foreign[1:], promised=foreign[:-1])


def strange_text(run: Run) -> str:
    """Characters of many scripts, signs, spaces and emoji."""
    blocks = [(0x20, 0x7F), (0xA0, 0x250), (0x370, 0x400), (0x4E00, 0x4F00), (0x1F600, 0x1F650), (0x9, 0xE)]
    picks = torch.randint(len(blocks), (40,), generator=run.generator).tolist()
    places = torch.rand(40, generator=run.generator).tolist()
    return "".join(
        chr(int(blocks[b][0] + u * (blocks[b][1] - blocks[b][0]))) for b, u in zip(picks, places, strict=True)
    )


def excess(tokenizer: BytePairEncoding, text: str) -> float:
    """By which factor, less one, the most frequent pair was above the one merged; counted anew for each merge."""
    words = Counter(tuple(BytePairEncoding().encode(w)) for w in split_text(text))
    number = {piece: i for i, piece in enumerate(tokenizer.pieces)}
    worst = 0.0
    for a, b in tokenizer.merges:
        pairs: Counter[tuple[int, int]] = Counter()
        for word, n in words.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += n
        worst = max(worst, max(pairs.values()) / max(pairs[a, b], 0.5) - 1)
        new = number[tokenizer.pieces[a] + tokenizer.pieces[b]]
        merged: Counter[tuple[int, ...]] = Counter()
        for word, n in words.items():
            out: list[int] = []
            for symbol in word:
                # of three equal symbols the first two are merged: what was merged is no longer `a`
                if out and out[-1] == a and symbol == b:
                    out[-1] = new
                else:
                    out.append(symbol)
            merged[tuple(out)] += n
        words = merged
    return worst


def unigram(run: Run, text: str) -> None:
    letters = "abc"
    draws = torch.randint(3, (60, 10), generator=run.generator).tolist()
    texts = ["".join(letters[i] for i in row) for row in draws]
    pieces = {*letters, *(t[i : i + n] for t in texts[:12] for i in (0, 3, 6) for n in (2, 3, 4))}
    # long tokens are rare, so that the longest is often not the likeliest
    model = Unigram({t: -float(1 + 3 * run.rand(1)) * len(t) ** 1.2 for t in sorted(pieces)})
    every = [[model.log_probability(s) for s in splits(t)] for t in texts]
    says = run.states("M-111", r"\text{Viterbi: the largest }\prod_jp(t_j)\text{ of all }2^{n-1}\text{ splits}")
    best = [max(scores) for scores in every]
    says.equal([model.log_probability(model.tokens(t)) for t in texts], best, 1e-10, where="60 texts of 10 letters")
    says.fails("the longest token first", [model.log_probability(longest_first(model, t)) for t in texts])
    says = run.states("M-111", r"\text{forward: }\log\sum_s\prod_jp(t_j)\text{ over all }2^{n-1}\text{ splits}")
    sums = [math.log(sum(map(math.exp, scores))) for scores in every]
    says.equal([model.log_likelihood(t) for t in texts], sums, 1e-10)
    says.fails("the likeliest split only", best)
    words, others = (Counter(split_text(part)) for part in (text[:2_000], text[2_000:4_000]))
    learned = Unigram.seeded(words, 5)
    likelihoods = [total(learned, words)]
    for _ in range(6):
        learned = learned.improved(words)
        likelihoods.append(total(learned, words))
    says = run.states("M-111", r"\text{expectation maximization: }\log p(\text{corpus})\text{ does not fall}")
    says.at_least(likelihoods[1:], likelihoods[:-1], 1e-12, where="six steps on 2000 characters")
    # both start from a vocabulary that can cut both parts
    both = Unigram.seeded(words + others, 5).improved(words).improved(words)
    says.fails("counts expected in another text", total(both.improved(others), words), promised=total(both, words))
    run.curves(
        "likelihood",
        list(range(7)),
        {"log-likelihood per character": [v / 2_000 for v in likelihoods]},
        axes=("steps of expectation maximization", "log-likelihood per character"),
        caption="The unigram model's log-likelihood rises with each step of expectation maximization.",
    )


def longest_first(model: Unigram, text: str) -> list[str]:
    found: list[str] = []
    while text:
        size = max(n for n in range(1, len(text) + 1) if text[:n] in model.log_probabilities)
        found.append(text[:size])
        text = text[size:]
    return found


def total(model: Unigram, words: Counter[str]) -> float:
    return sum(n * model.log_likelihood(w) for w, n in words.items())


def compression(run: Run, text: str) -> None:
    train, test = text[: len(text) // 2], text[len(text) // 2 :]
    sizes = [300, 500, 800, 1300, 2000]
    pairs = BytePairEncoding.train([train], sizes[-1] - 256)
    pieces = WordPiece.train([train], sizes[-1]).vocabulary
    curves = {
        "byte pairs": [bytes_per_token(BytePairEncoding(pairs.merges[: n - 256]), test) for n in sizes],
        "WordPiece": [bytes_per_token(WordPiece(pieces[:n]), test) for n in sizes],
    }
    small = train[:3_000]
    likely, letters = Unigram.train([small], 300), set(small)
    known = "".join(c for c in test if c in letters)
    characters = bytes_per_token(CharacterTokenizer(test), test)
    run.curves(
        "compression",
        sizes,
        curves,
        {"single characters": characters},
        axes=("vocabulary", "bytes per token of new text"),
        log="x",
        caption="How much text a token holds, for vocabularies learned on one half of the text and used on the other.",
    )
    run.table(
        "tokenizers",
        ("tokenizer", "vocabulary", "bytes per token", "the word ' restatement' is cut into"),
        [
            ("characters", len(set(test)), characters, " | ".join(" restatement")),
            shown("byte pairs", BytePairEncoding(pairs.merges[:544]), test),
            shown("WordPiece", WordPiece(pieces[:800]), test),
            shown("unigram, learned on less", likely, known),
            shown("words", WordTokenizer.train([train], 800), test),
        ],
        caption="WordPiece drops spaces, and words it cannot cut; a tokenizer of words loses unknown words.",
    )


def shown(
    name: str, tokenizer: BytePairEncoding | WordPiece | Unigram | WordTokenizer, text: str
) -> tuple[object, ...]:
    cut = " | ".join(tokenizer.tokens(" restatement"))
    return name, len(tokenizer), bytes_per_token(tokenizer, text), cut


def norms(run: Run, text: str, networks: int) -> None:
    rows = {row.token: row.norm for row in GPT2_TABLE}
    run.states(
        "M-112", r"\max\|e_{\text{a}}\|,\|e_{\text{of}}\|,\|e_{\text{out}}\|<\min\text{ of Like, fish, water}"
    ).below(
        max(rows[t] for t in (" a", " of", " out")),
        min(rows[t] for t in ("Like", " fish", " water")),
        where="GPT-2, as Table 10.2 prints it",
    )
    rate = 1 / torch.arange(1.0, 201.0)
    found = {name: [trained(run, rate, name) for _ in range(networks)] for name in ("Adam", "SGD")}

    def order(first: int, last: int) -> float:
        """Rank correlation of norm and frequency among the tokens of these ranks, mean over networks."""
        norms = [m.embedding.weight.detach().norm(dim=1)[first:last] for m in found["Adam"]]
        return sum(rank_correlation(n, rate[first:last]) for n in norms) / networks

    says = run.states("M-112", r"\text{of the rarer tokens, the more frequent have shorter vectors}")
    says.below(
        order(30, 200),
        -0.5,
        where="rank correlation of norm and frequency, 170 of 200 tokens with the frequencies of Zipf; trained by Adam",
    )
    says.fails("the 20 most frequent tokens", order(0, 20))
    run.note(
        "That frequent tokens have shorter vectors, as in GPT-2's table, is no law. In these networks, whose head has "
        "the embedding's matrix, a vector must give the logarithm of its token's frequency, so that rare and very "
        "frequent tokens are long and those between are short."
    )
    tokenizer = BytePairEncoding.train([text], 256)
    vectors = run.randn(len(tokenizer), 16)
    run.table(
        "tokens",
        ("token", "number", "norm", "first entries"),
        [
            *((row.token, row.id, row.norm, entries(row)) for row in GPT2_TABLE),
            *((row.token, row.id, row.norm, entries(row)) for row in token_table("fish out", vectors, tokenizer)),
        ],
        caption="GPT-2's tokens of 'Like a fish out of water' as the lectures print them, then two words in a small "
        "vocabulary of byte pairs with random vectors.",
    )
    run.figure(
        "norms",
        lambda ax: plot_norms(ax, rate, {name: models[0] for name, models in found.items()}),
        caption="Norms of tokens' vectors against the tokens' frequency, for two optimizers: rare and very frequent "
        "tokens are long, since the head has the same matrix and must give the logarithm of the frequency.",
    )


def entries(row: TokenRow) -> str:
    return ", ".join(f"{v:.3f}" for v in row.first[:4])


def trained(run: Run, rate: Tensor, optimizer: str) -> LanguageModel:
    """A small language model on independent tokens with these frequencies."""
    model = LanguageModel(len(rate), 32, 2, 1, length=16, generator=run.generator, dtype=torch.float32)
    parameters = model.parameters()
    steps = torch.optim.Adam(parameters, lr=0.01) if optimizer == "Adam" else torch.optim.SGD(parameters, lr=1.0)
    for _ in range(40):
        x = torch.multinomial(rate, 24 * 17, replacement=True, generator=run.generator).view(24, 17)
        loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        steps.zero_grad()
        torch.autograd.backward(loss)
        steps.step()
    return model


def plot_norms(ax: Any, rate: Tensor, models: dict[str, LanguageModel]) -> None:
    for name, model in models.items():
        ax.loglog(rate / rate.sum(), model.embedding.weight.detach().norm(dim=1), ".", label=name)
    ax.set(xlabel="frequency of the token", ylabel="norm of its vector")
    ax.legend()


def rank_correlation(a: Tensor, b: Tensor) -> float:
    ranks = torch.stack([a.argsort().argsort(), b.argsort().argsort()]).double()
    return float(torch.corrcoef(ranks)[0, 1])
