"""Questions about pictures of objects, their words as numbers, and the objects they are about.

Objects are those of CLEVR: one of eight colors, two materials, two sizes and three shapes each; an
answer is one of 28 words. `data.clevr` reads the rendered set, `data.mini_clevr` makes a flat one.
Source: Mathematical Aspects of Deep Learning, section 5.5.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchtheory.core.checks import whole_number
from torchtheory.core.errors import InvalidInput

COLORS = ("gray", "red", "blue", "green", "brown", "purple", "cyan", "yellow")
MATERIALS = ("metal", "rubber")
SIZES = ("large", "small")
SHAPES = ("cube", "sphere", "cylinder")

#: What an object can be asked for, and the values.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "size": SIZES,
    "color": COLORS,
    "material": MATERIALS,
    "shape": SHAPES,
}

#: The 28 answers, in the order of their numbers.
ANSWERS = ("yes", "no", *map(str, range(11)), *COLORS, *MATERIALS, *SIZES, *SHAPES)

#: What questions ask for, in the words of CLEVR's programs.
QUESTION_TYPES = (
    *(f"query_{a}" for a in ATTRIBUTES),
    "count",
    "exist",
    *(f"equal_{a}" for a in ATTRIBUTES),
    "less_than",
    "greater_than",
    "equal_integer",
)


class SceneObject(NamedTuple):
    """An object of a scene: its attributes, and where its center is (0 to 1, from the top left)."""

    size: str
    color: str
    material: str
    shape: str
    x: float
    y: float


Scene = tuple[SceneObject, ...]


@dataclass(frozen=True)
class VisualQuestions:
    """Questions about images, several of which may be about the same one.

    Attributes:
        images: `[m, 3, H, W]`, in [0, 1].
        image_of: `[n]`, which image a question is about.
        words: the words of each question, without punctuation and in lower case.
        tokens: `[n, T]`, their numbers from 1, then zeros.
        answers: `[n]`, numbers of `ANSWERS`; -1 where none is known.
        types: of each question, such as `query_color`; empty where none is known.
        vocabulary: the words by number, from 1.
        scenes: the objects of each image, or None.
        masks: `[m, K, H, W]`, the pixels of each object of an image, or None.
        about: the numbers of the objects that each question is about, or None: the one it asks for
            and those it names to find it, or all that it counts.
    """

    images: Tensor
    image_of: Tensor
    words: tuple[tuple[str, ...], ...]
    tokens: Tensor
    answers: Tensor
    types: tuple[str, ...]
    vocabulary: tuple[str, ...]
    scenes: tuple[Scene, ...] | None = None
    masks: Tensor | None = None
    about: tuple[tuple[int, ...], ...] | None = None

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        return f"VisualQuestions({len(self)} questions about {len(self.images)} images)"

    def inputs(self, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Images `[n, 3, H, W]` and tokens `[n, T]` of some questions, of all unless told."""
        at = torch.arange(len(self)) if rows is None else rows
        return self.images[self.image_of[at]], self.tokens[at]

    def at(self, rows: Tensor | Sequence[int]) -> VisualQuestions:
        """The questions of the given numbers, with all images."""
        index = torch.as_tensor(rows, dtype=torch.long)
        chosen = index.tolist()
        return replace(
            self,
            image_of=self.image_of[index],
            words=tuple(self.words[k] for k in chosen),
            tokens=self.tokens[index],
            answers=self.answers[index],
            types=tuple(self.types[k] for k in chosen),
            about=None if self.about is None else tuple(self.about[k] for k in chosen),
        )

    def of_types(self, *types: str) -> Tensor:
        """Numbers of the questions of some types."""
        return torch.tensor([k for k, t in enumerate(self.types) if t in types], dtype=torch.long)

    def split(self, questions: int) -> tuple[VisualQuestions, VisualQuestions]:
        """About so many questions, and the rest: no image is in both.

        The first part ends before the image of the question of that number.
        """
        whole_number(questions, "questions", least=1, most=len(self) - 1)
        boundary = int(self.image_of[questions])
        first = (self.image_of < boundary).nonzero()[:, 0]
        rest = (self.image_of >= boundary).nonzero()[:, 0]
        if not len(first):
            raise InvalidInput(f"the first {questions} questions are about one image: give more")
        return self.at(first), self.at(rest)

    def objects_asked_about(self) -> Tensor:
        """`[n, H, W]`, the pixels of the objects that each question is about."""
        if self.masks is None or self.about is None:
            raise InvalidInput("these questions do not tell which pixels they are about")
        found = torch.zeros(len(self), *self.masks.shape[2:], dtype=torch.bool)
        for k, (image, objects) in enumerate(zip(self.image_of.tolist(), self.about, strict=True)):
            if objects:
                found[k] = self.masks[image, list(objects)].any(0)
        return found


def as_words(question: str) -> tuple[str, ...]:
    """A question in lower case without punctuation, as words.

    >>> as_words("There is a big thing left of it; what material is it?")[-4:]
    ('what', 'material', 'is', 'it')
    """
    return tuple(re.sub(r"[^\w\s]", " ", question.lower()).split())


def as_tokens(questions: Sequence[Sequence[str]], vocabulary: Sequence[str]) -> Tensor:
    """Numbers `[n, T]` of the words of questions from 1, then zeros.

    >>> as_tokens([("what", "is", "it"), ("it",)], ("is", "it", "what"))
    tensor([[3, 1, 2],
            [2, 0, 0]])
    """
    number = {word: k for k, word in enumerate(vocabulary, 1)}
    longest = max((len(q) for q in questions), default=0)
    rows = torch.zeros(len(questions), longest, dtype=torch.long)
    for k, question in enumerate(questions):
        unknown = [w for w in question if w not in number]
        if unknown:
            raise InvalidInput(
                f"the vocabulary has no word {unknown[0]!r}, which stands in the question "
                f"{' '.join(question)!r}"
            )
        if not question:
            raise InvalidInput(f"question {k} has no words")
        rows[k, : len(question)] = torch.tensor([number[w] for w in question])
    return rows
