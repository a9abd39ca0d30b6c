"""Training a relation network to answer questions, and how well it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

from torchtheory.core.checks import as_module, open_fraction, positive_number, whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.data.visual_questions import VisualQuestions
from torchtheory.models.model import evaluation_mode
from torchtheory.training.loop.history import History
from torchtheory.training.loop.trainer import fit

#: Entries of a layer of all pairs that are made at once when answers are only read.
AT_ONCE = 2**23


def train_answers(
    model: nn.Module,
    data: VisualQuestions,
    *,
    validation: VisualQuestions | None = None,
    epochs: int = 3,
    batch_size: int = 64,
    learning_rate: float = 0.01,
    seed: int = 0,
    callbacks: tuple[Callable[[nn.Module, History], object], ...] = (),
) -> History:
    """Train a model of images and tokens in place, with Adam and one cycle of the learning rate.

    The rate rises for a fifth of the steps and then falls to almost 0, so that the statistics of
    batch normalization settle.

    Args:
        model: called with images and tokens, such as a `RelationNetwork`.
        data: questions with answers.
        validation: questions whose loss is recorded after each epoch.
        epochs: passes over the questions.
        batch_size: questions per step.
        learning_rate: the highest one.
        seed: of the order of questions.
        callbacks: see `training.fit`.
    """
    as_module(model)
    parts = [data] if validation is None else [data, validation]
    for part in parts:
        _with_answers(part)
    whole_number(epochs, "epochs", least=1)
    whole_number(batch_size, "batch_size", least=2)
    positive_number(learning_rate, "learning_rate")
    by_number = _ByNumber(model, parts)
    counts = [len(part) for part in parts]
    pairs = [
        (torch.arange(count) + sum(counts[:k]), part.answers)
        for k, (part, count) in enumerate(zip(parts, counts, strict=True))
    ]
    steps = epochs * -(-counts[0] // batch_size)
    return fit(
        by_number,
        pairs[0],
        validation=pairs[1] if validation is not None else None,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        schedule=partial(OneCycleLR, max_lr=learning_rate, total_steps=steps, pct_start=0.2),
        schedule_each="step",
        task="multiclass",
        seed=seed,
        callbacks=callbacks,
    )


def answer_scores(model: nn.Module, data: VisualQuestions) -> Tensor:
    """Scores `[n, answers]` of all answers to each question, some questions at a time."""
    pairs = getattr(getattr(model, "config", None), "objects", 1) ** 2
    some = max(1, AT_ONCE // (256 * pairs))
    by_number = _ByNumber(model, [data])
    with torch.no_grad(), evaluation_mode(model):
        return torch.cat([by_number(r) for r in torch.split(torch.arange(len(data)), some)])


def answer_accuracy(
    model: nn.Module, data: VisualQuestions, *, confidence: float = 0.99
) -> Interval:
    """How often the model is right, with Clopper and Pearson's interval."""
    open_fraction(confidence, "confidence")
    right = answer_scores(model, data).argmax(1) == _with_answers(data).answers
    return clopper_pearson(int(right.sum()), len(right), confidence)


def accuracy_without_images(
    known: VisualQuestions, asked: VisualQuestions, *, confidence: float = 0.99
) -> Interval:
    """How often the most common answer is right that `known` has to the same words.

    For words that `known` does not have, the most common answer to questions of the type. What a
    network gets beyond this it has from the images.
    """
    open_fraction(confidence, "confidence")
    by_words: dict[tuple[str, ...], Counter[int]] = {}
    by_type: dict[str, Counter[int]] = {}
    for words, kind, answer in zip(
        known.words, known.types, _with_answers(known).answers.tolist(), strict=True
    ):
        by_words.setdefault(words, Counter())[answer] += 1
        by_type.setdefault(kind, Counter())[answer] += 1
    right = 0
    for words, kind, answer in zip(
        asked.words, asked.types, _with_answers(asked).answers.tolist(), strict=True
    ):
        counts = by_words.get(words) or by_type.get(kind)
        right += counts is not None and counts.most_common(1)[0][0] == answer
    return clopper_pearson(right, len(asked), confidence)


class _ByNumber(nn.Module):
    """A model of images and tokens as one of numbers of questions.

    Several questions share an image, so numbers take less room than the images would.
    """

    def __init__(self, model: nn.Module, parts: list[VisualQuestions]) -> None:
        super().__init__()
        self.model = model
        self._parts = parts

    def forward(self, numbers: Tensor) -> Tensor:
        first = len(self._parts[0])
        # batches are of one part or of the other
        later = len(self._parts) > 1 and int(numbers.min()) >= first
        rows = (numbers - first if later else numbers).cpu()
        like = next(self.model.parameters())
        images, tokens = self._parts[later].inputs(rows)
        answers: Tensor = self.model(images.to(like), tokens.to(like.device))
        return answers


def _with_answers(data: VisualQuestions) -> VisualQuestions:
    if bool((data.answers < 0).any()):
        raise InvalidInput("these questions have no answers; the test set of CLEVR comes without")
    return data
