r"""The unigram language model: tokens with probabilities, and the likeliest way to cut a text.

A split $s=(t_1,\dots,t_k)$ of a text has the probability $\prod_jp(t_j)$. Of the $2^{n-1}$ splits
of n characters, dynamic programming finds the likeliest (Viterbi) and sums all of them (forward) in
nL steps, L being the longest token. Training is expectation maximization, which never lowers the
likelihood, and pruning of tokens that are missed least. Source: Foundations of Deep Learning,
section 10.4.5, which names it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from torchtheory.core.checks import finite_number, open_fraction, whole_number
from torchtheory.core.errors import EmptyData, InvalidInput
from torchtheory.sequences.language.text import as_ids, as_text, split_text
from torchtheory.sequences.language.words import as_texts


def splits(text: str) -> Iterator[tuple[str, ...]]:
    """All $2^{n-1}$ ways to cut a text of n characters, and the one way to cut none.

    >>> list(splits("abc"))
    [('abc',), ('a', 'bc'), ('ab', 'c'), ('a', 'b', 'c')]
    """
    if not as_text(text):
        yield ()
        return
    for cuts in itertools.product((False, True), repeat=len(text) - 1):
        places = [0, *(i for i, cut in enumerate(reversed(cuts), 1) if cut), len(text)]
        yield tuple(text[a:b] for a, b in itertools.pairwise(places))


class Unigram:
    """A tokenizer that takes the likeliest split.

    Args:
        log_probabilities: of each token, natural logarithms; they need not sum to one.

    >>> tokenizer = Unigram({"a": -1.0, "b": -1.0, "ab": -1.5, "ba": -5.0})
    >>> tokenizer.tokens("abba"), tokenizer.log_probability(["ab", "b", "a"])
    (['ab', 'b', 'a'], -3.5)
    """

    def __init__(self, log_probabilities: Mapping[str, float]) -> None:
        if not log_probabilities:
            raise EmptyData("the vocabulary is empty")
        self.log_probabilities = {
            as_text(t): finite_number(v, f"the log-probability of {t!r}")
            for t, v in log_probabilities.items()
        }
        if "" in self.log_probabilities:
            raise InvalidInput("the empty text cannot be a token")
        self.vocabulary = tuple(self.log_probabilities)
        self._number = {t: i for i, t in enumerate(self.vocabulary)}
        self._longest = max(map(len, self.vocabulary))

    def __len__(self) -> int:
        return len(self.vocabulary)

    def tokens(self, text: str) -> list[str]:
        """The likeliest split. Time: nL for n characters and tokens of at most L."""
        best: list[float] = [0.0]
        start: list[int] = [0]
        for end in range(1, len(as_text(text)) + 1):
            score, place = -math.inf, end - 1
            for i in range(max(0, end - self._longest), end):
                chance = self.log_probabilities.get(text[i:end])
                if chance is not None and best[i] + chance > score:
                    score, place = best[i] + chance, i
            best.append(score)
            start.append(place)
        if best[-1] == -math.inf:
            raise InvalidInput(self._unreachable(text, best))
        found: list[str] = []
        end = len(text)
        while end:
            found.append(text[start[end] : end])
            end = start[end]
        return found[::-1]

    def encode(self, text: str) -> list[int]:
        """The numbers of the likeliest split's tokens."""
        return [self._number[t] for t in self.tokens(text)]

    def decode(self, ids: list[int]) -> str:
        """The tokens, joined."""
        return "".join(self.vocabulary[i] for i in as_ids(ids, len(self)))

    def log_probability(self, tokens: Iterable[str]) -> float:
        """Of one split: the sum over its tokens; minus infinity if one is not a token."""
        return sum(self.log_probabilities.get(t, -math.inf) for t in tokens)

    def log_likelihood(self, text: str) -> float:
        """Of a text: the logarithm of the sum over all of its splits."""
        return self._forward(text)[-1]

    def expected_counts(self, text: str) -> dict[str, float]:
        """How often each token occurs in a split drawn with its probability, given the text."""
        forward, backward = self._forward(text), self._backward(text)
        if forward[-1] == -math.inf:
            raise InvalidInput(self._unreachable(text, forward))
        found: dict[str, float] = defaultdict(float)
        for end in range(1, len(text) + 1):
            for i in range(max(0, end - self._longest), end):
                chance = self.log_probabilities.get(text[i:end])
                if chance is not None:
                    weight = forward[i] + chance + backward[end] - forward[-1]
                    found[text[i:end]] += math.exp(weight)
        return dict(found)

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        size: int,
        *,
        longest: int = 8,
        rounds: int = 2,
        kept: float = 0.75,
    ) -> Unigram:
        """Learn a vocabulary of `size` tokens, all characters of the texts among them.

        All substrings of words that occur at least twice begin; each round improves the
        probabilities by expectation maximization, `rounds` times, then keeps a share of the tokens,
        those whose loss costs most likelihood.

        Args:
            texts: the corpus; tokens do not cross the pieces of `split_text`.
            size: of the vocabulary.
            longest: token, in characters.
            rounds: of expectation maximization between prunings.
            kept: share of the tokens that a pruning keeps, below 1.
        """
        whole_number(longest, "longest", least=1)
        whole_number(rounds, "rounds", least=1)
        open_fraction(kept, "kept")
        words = Counter(w for text in as_texts(texts) for w in split_text(text))
        characters = {c for w in words for c in w}
        whole_number(size, "size", least=len(characters))
        model = cls.seeded(words, longest)
        while True:
            for _ in range(rounds):
                model = model.improved(words)
            if len(model) <= size:
                return model
            model = model._pruned(words, max(size, int(kept * len(model))))

    @classmethod
    def seeded(cls, words: Mapping[str, int], longest: int) -> Unigram:
        """All characters, and all substrings of words that occur twice, with their frequencies."""
        counts: Counter[str] = Counter()
        for word, n in words.items():
            for i in range(len(word)):
                for j in range(i + 1, min(len(word), i + longest) + 1):
                    counts[word[i:j]] += n
        chosen = {t: n for t, n in counts.items() if len(t) == 1 or n >= 2}
        total = sum(chosen.values())
        return cls({t: math.log(chosen[t] / total) for t in sorted(chosen)})

    def improved(self, words: Mapping[str, int]) -> Unigram:
        """One step of expectation maximization; the likelihood of the words does not fall."""
        counts = self._counted(words)
        total = sum(counts.values())
        # a token that is never used leaves; characters stay, or a text could not be cut
        floor = 1e-12 * total
        found = {
            t: math.log(max(counts.get(t, 0.0), floor) / total)
            for t in self.vocabulary
            if len(t) == 1 or counts.get(t, 0.0) > floor
        }
        return type(self)(found)

    def _counted(self, words: Mapping[str, int]) -> dict[str, float]:
        counts: dict[str, float] = defaultdict(float)
        for word, n in words.items():
            for token, expected in self.expected_counts(word).items():
                counts[token] += n * expected
        return counts

    def _pruned(self, words: Mapping[str, int], size: int) -> Unigram:
        counts = self._counted(words)
        loss = {}
        for token in self.vocabulary:
            if len(token) > 1:
                rest = self._without(token)
                loss[token] = counts.get(token, 0.0) * (self.log_probabilities[token] - rest)
        letters = [t for t in self.vocabulary if len(t) == 1]
        ranked = sorted(loss, key=lambda t: (-loss[t], t))[: max(0, size - len(letters))]
        chosen = {*letters, *ranked}
        return type(self)({t: v for t, v in self.log_probabilities.items() if t in chosen})

    def _without(self, token: str) -> float:
        """The likeliest split of a token into other tokens."""
        best = [0.0]
        for end in range(1, len(token) + 1):
            best.append(
                max(
                    best[i] + self.log_probabilities.get(token[i:end], -math.inf)
                    for i in range(end)
                    if end - i < len(token)
                )
            )
        return best[-1]

    def _forward(self, text: str) -> list[float]:
        """Logarithms of the sums over all splits of each beginning of the text."""
        found = [0.0]
        for end in range(1, len(as_text(text)) + 1):
            terms = [
                found[i] + chance
                for i in range(max(0, end - self._longest), end)
                if (chance := self.log_probabilities.get(text[i:end])) is not None
            ]
            found.append(_log_sum(terms))
        return found

    def _backward(self, text: str) -> list[float]:
        """The same for each end of the text."""
        found = [0.0] * (len(text) + 1)
        for start in range(len(text) - 1, -1, -1):
            terms = [
                found[j] + chance
                for j in range(start + 1, min(len(text), start + self._longest) + 1)
                if (chance := self.log_probabilities.get(text[start:j])) is not None
            ]
            found[start] = _log_sum(terms)
        return found

    def _unreachable(self, text: str, best: list[float]) -> str:
        place = next(i for i, v in enumerate(best) if v == -math.inf)
        strange = [c for c in text if c not in self.log_probabilities]
        shown = strange[0] if strange else text[place - 1]
        return (
            f"the text cannot be cut into tokens: the character {shown!r} is not one of them; "
            "train on texts that have it"
        )


def _log_sum(terms: list[float]) -> float:
    top = max(terms, default=-math.inf)
    if top == -math.inf:
        return top
    return top + math.log(sum(math.exp(t - top) for t in terms))
