r"""What explanations of answers rest on: which words, how late in the question, which objects.

Source: Mathematical Aspects of Deep Learning, section 5.5, Figures 5.4 to 5.6.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import one_of, open_fraction, whole_number
from torchtheory.core.errors import EmptyData, InvalidInput, ShapeMismatch
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.data.visual_questions import ATTRIBUTES, VisualQuestions
from torchtheory.explanation.visual_questions.explaining import (
    AnswerExplanation,
    Method,
    explain_answers,
)

#: Words that tell what kind of question it is, whatever the image.
TELLING_WORDS: dict[str, tuple[str, ...]] = {
    **{f"query_{a}": (a,) for a in ATTRIBUTES},
    **{f"equal_{a}": ("same", a) for a in ATTRIBUTES},
    "count": ("many", "number"),
    "exist": ("there", "any"),
    "less_than": ("fewer", "than"),
    "greater_than": ("more", "than"),
    "equal_integer": ("same", "number"),
}


@dataclass(frozen=True, slots=True)
class WordStatistics:
    """How often words are among the most relevant ones of their question.

    Attributes:
        top: so many words of each question count.
        questions: how many there are of each type.
        counts: of the questions of a type, by method, type and word.
        telling: `[n]` by method: whether a word that tells the type is among the most relevant.
    """

    top: int
    questions: dict[str, int]
    counts: dict[str, dict[str, Counter[str]]]
    telling: dict[str, Tensor]

    def rows(self, words: int = 6) -> list[list[str]]:
        """Type, method, and the most frequent words with their shares; one row for each pair."""
        return [
            [
                kind,
                method,
                ", ".join(
                    f"{word} {count / self.questions[kind]:.0%}"
                    for word, count in by_type[kind].most_common(words)
                ),
            ]
            for kind in self.questions
            for method, by_type in self.counts.items()
        ]


def explain_questions(
    model: nn.Module,
    data: VisualQuestions,
    methods: Sequence[str] | Mapping[str, Method] = ("lrp", "gradient_times_input", "occlusion"),
) -> dict[str, AnswerExplanation]:
    """Explanations of the answers to all questions, by the name of the method.

    Args:
        model, methods: see `explain_answers`.
        data: the questions.
    """
    named = methods if isinstance(methods, Mapping) else {name: name for name in methods}
    images, tokens = data.inputs()
    return {name: explain_answers(model, images, tokens, m) for name, m in named.items()}


def word_statistics(
    explanations: Mapping[str, AnswerExplanation], data: VisualQuestions, *, top: int = 3
) -> WordStatistics:
    """The most relevant words of each question, counted by type of question and by method.

    A word that stands in a question twice counts once for it.

    Args:
        explanations: of the questions, by the name of the method; see `explain_questions`.
        data: the questions.
        top: so many words of each question count, by absolute relevance.
    """
    whole_number(top, "top", least=1)
    if not data.types or not explanations:
        raise EmptyData("there are no questions, or no explanations of them")
    counts: dict[str, dict[str, Counter[str]]] = {}
    telling: dict[str, Tensor] = {}
    for method, found in explanations.items():
        _same_questions(found, data)
        chosen = top_words(found.word_strengths, found.tokens, top)
        by_type = {kind: Counter[str]() for kind in dict.fromkeys(data.types)}
        hits = []
        for words, kind, among in zip(data.words, data.types, chosen.tolist(), strict=True):
            said = {w for w, is_top in zip(words, among, strict=False) if is_top}
            by_type[kind].update(sorted(said))
            hits.append(not said.isdisjoint(TELLING_WORDS.get(kind, ())))
        counts[method] = by_type
        telling[method] = torch.tensor(hits)
    return WordStatistics(top, dict(Counter(data.types)), counts, telling)


def top_words(strengths: Tensor, tokens: Tensor, top: int) -> Tensor:
    """Which words `[n, T]` are among the `top` strongest of their question.

    All words of a question that has no more; of equally strong ones the first.
    """
    words = tokens != 0
    order = strengths.masked_fill(~words, -1.0).argsort(dim=1, descending=True, stable=True)
    return (order.argsort(1) < top) & words


def position_slopes(strengths: Tensor, tokens: Tensor) -> Tensor:
    r"""How much stronger the last word of a question is than the first, `[n]`.

    With shares $s_t$ of the $L$ words of a question, the slope of $L\,s_t$ over the place
    $t/(L-1)\in[0,1]$: 0 where all words have the same share or strong ones lie anywhere; positive
    where late words are stronger.
    """
    words = tokens != 0
    count = words.sum(1, keepdim=True)
    if bool((count < 2).any()):
        raise InvalidInput("a question of one word has no first and last one")
    strength = strengths.double() * words
    shares = count * strength / strength.sum(1, keepdim=True)
    place = torch.arange(tokens.shape[1]) / (count - 1)
    centered = (place - 0.5) * words
    return (centered * shares).sum(1) / centered.square().sum(1)


def object_relevance(found: AnswerExplanation, data: VisualQuestions) -> Tensor:
    """Mean absolute relevance `[n, K]` of a pixel of each object; NaN where there is none."""
    if data.masks is None:
        raise InvalidInput("these questions do not tell which pixels belong to which object")
    _same_questions(found, data)
    masks = data.masks[data.image_of].to(found.maps)
    total = torch.einsum("nhw,nkhw->nk", found.maps.abs(), masks)
    return total / masks.sum((2, 3))


def agreeing_objects(
    found: AnswerExplanation, data: VisualQuestions, attribute: str, answers: Sequence[str]
) -> tuple[Tensor, Tensor]:
    """Whether the most relevant object has the attribute that the model answered, `[n]` each.

    The second tensor is the share of the objects of the image that have it: how often an object
    drawn at random would.

    Args:
        found: explanations of the questions.
        data: the questions, with masks and objects.
        attribute: such as `color`.
        answers: the words of the answers by number.
    """
    one_of(attribute, "attribute", tuple(ATTRIBUTES))
    if data.scenes is None:
        raise InvalidInput("these questions do not tell which objects there are")
    strongest = object_relevance(found, data).nan_to_num(nan=-1.0).argmax(1)
    hits, chances = [], []
    for image, k, answer in zip(
        data.image_of.tolist(), strongest.tolist(), found.answers.tolist(), strict=True
    ):
        values = [getattr(o, attribute) for o in data.scenes[image]]
        hits.append(values[k] == answers[answer])
        chances.append(values.count(answers[answer]) / len(values))
    return torch.tensor(hits), torch.tensor(chances)


def share_of(hits: Tensor, confidence: float = 0.99) -> Interval:
    """How often something happens, with Clopper and Pearson's interval."""
    open_fraction(confidence, "confidence")
    return clopper_pearson(int(hits.sum()), len(hits), confidence)


def confident_examples(
    found: AnswerExplanation,
    data: VisualQuestions,
    types: Sequence[str],
    *,
    correct: bool = True,
    count: int = 3,
) -> Tensor:
    """Numbers of the questions of some types that the model is most sure about, surest first.

    Of several about the same image only the surest counts.

    Args:
        found: explanations of the questions, with the probabilities of the answers.
        data: the questions.
        types: of questions that count.
        correct: whether the answer is to be right, or wrong.
        count: at most so many.
    """
    whole_number(count, "count", least=1)
    _same_questions(found, data)
    rows = data.of_types(*types)
    rows = rows[(found.answers[rows] == data.answers[rows]) == correct]
    order = found.probabilities[rows].argsort(dim=0, descending=True, stable=True)
    chosen: dict[int, int] = {}
    for row in rows[order].tolist():
        chosen.setdefault(int(data.image_of[row]), row)
    return torch.tensor(list(chosen.values())[:count], dtype=torch.long)


def _same_questions(found: AnswerExplanation, data: VisualQuestions) -> None:
    if not torch.equal(found.tokens, data.tokens):
        raise ShapeMismatch(
            f"the explanations of {len(found)} questions are not of these {len(data)}"
        )
