r"""Which words and which pixels an answer rests on.

The answer that the model gives is explained. With LRP the LSTM hands on relevance by the epsilon
rule ($\varepsilon=0.001$) and all of a product to its signal; the rest of the network by the rule
$\alpha=1,\beta=0$, once batch normalizations have been folded into the layers after them. That rule
is made for inputs that are not negative, and the state of the LSTM has both signs: `lrp` with the
preset `vqa` warns of it (`DoubtfulRules`), and the functions here do not, as these are the rules of
the source. A word has the sum over its embedding, a pixel the sum over its channels. For display,
absolute values are taken, and maps are blurred with a standard deviation of 0.02 times the size of
the image. Source: Mathematical Aspects of Deep Learning, section 5.5.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.ndimage import gaussian_filter1d
from torch import Tensor, nn

from torchtheory.core.checks import described, one_of
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.data.mini_clevr import VOCABULARY
from torchtheory.data.visual_questions import as_tokens, as_words
from torchtheory.explanation.composites import DoubtfulRules
from torchtheory.explanation.explanation import Explanation
from torchtheory.explanation.lrp import lrp
from torchtheory.explanation.methods.gradients import gradient_times_input
from torchtheory.explanation.methods.occlusion import occlusion
from torchtheory.explanation.score import Target
from torchtheory.explanation.visual_questions.relation_network import RelationNetwork
from torchtheory.models.model import evaluation_mode

#: Standard deviation of the blur of a displayed map, as a share of the size of the image.
BLUR = 0.02

Method = Callable[[nn.Module, tuple[Tensor, Tensor], Target], Explanation]


@dataclass(frozen=True, slots=True)
class AnswerExplanation:
    """Relevance of words and pixels for the answers to some questions.

    Attributes:
        explanation: of the method, with relevance of images and of words.
        tokens: `[n, T]`, the questions.
        probabilities: `[n]`, of the answers that are explained.
        of_pixels: whether the method looks at single pixels; occlusion here does not.
    """

    explanation: Explanation
    tokens: Tensor
    probabilities: Tensor
    of_pixels: bool = True

    def __len__(self) -> int:
        return len(self.tokens)

    def at(self, rows: Tensor | Sequence[int]) -> AnswerExplanation:
        """The explanations of the questions of the given numbers, without their ledger."""
        index = torch.as_tensor(rows, dtype=torch.long)
        whole = self.explanation
        images, words = whole.relevance
        reference = None if whole.reference is None else whole.reference[index]
        part = replace(
            whole,
            relevance=(images[index], words[index]),
            score=whole.score[index],
            classes=self.answers[index],
            reference=reference,
            error=None,
            ledger=None,
        )
        return replace(
            self,
            explanation=part,
            tokens=self.tokens[index],
            probabilities=self.probabilities[index],
        )

    @property
    def answers(self) -> Tensor:
        """`[n]`, numbers of the answers that are explained."""
        assert self.explanation.classes is not None  # the target is a class
        return self.explanation.classes

    @property
    def words(self) -> Tensor:
        """`[n, T]`, relevance of words: the sum over their embeddings; 0 where there is none."""
        return self.explanation.relevance[1]

    @property
    def maps(self) -> Tensor:
        """`[n, H, W]`, raw heatmaps: the sum over channels, nothing else."""
        if not self.of_pixels:
            raise InvalidInput("occlusion of every pixel is too expensive: it has no heatmap here")
        return self.explanation.relevance[0].sum(1)

    @property
    def word_strengths(self) -> Tensor:
        """`[n, T]`, what is displayed of words: absolute values."""
        return self.words.abs()

    @property
    def overlays(self) -> Tensor:
        """`[n, H, W]`, what is laid over an image: blurred absolute values of the raw maps."""
        return blurred(self.maps.abs())


def blurred(maps: Tensor, share: float = BLUR) -> Tensor:
    """Maps `[..., H, W]` after a Gaussian blur with a standard deviation of `share` times the size.

    Images need not be square: each direction has its own. The border reflects, so that the sum of
    a map stays what it is.

    >>> dot = torch.zeros(1, 50, 50)
    >>> dot[0, 25, 25] = 1.0
    >>> round(float(blurred(dot).sum()), 6), round(float(blurred(dot).max()), 3)  # std of a pixel
    (1.0, 0.159)
    """
    values = maps.detach().double().cpu().numpy()
    for axis in (-2, -1):
        # eight standard deviations leave nothing that could be seen out
        values = gaussian_filter1d(values, share * maps.shape[axis], axis, truncate=8.0)
    return torch.as_tensor(np.ascontiguousarray(values)).to(maps)


def explain_answers(
    model: nn.Module,
    images: Tensor,
    tokens: Tensor,
    method: str | Method = "lrp",
    answers: Tensor | None = None,
) -> AnswerExplanation:
    """Relevance of words and pixels for the answers of a model to questions about images.

    Args:
        model: called with images and tokens, such as a `RelationNetwork`.
        images: `[n, C, H, W]`, in [0, 1].
        tokens: `[n, T]`; zeros are no words.
        method: `lrp`, `gradient_times_input`, `occlusion` (of words only: by how much the
            probability of the answer falls when the word's embedding is 0), or any method
            `(model, (images, tokens), classes) -> Explanation`.
        answers: `[n]`, which answers are explained; those that the model gives unless told.

    Time: LRP and the gradient take one pass in each direction, occlusion one forward per word.
    """
    if not isinstance(method, str) and not callable(method):
        raise InvalidType(f"a method is a name or a function, not {described(method)}")
    run = METHODS[one_of(method, "method", tuple(METHODS))] if isinstance(method, str) else method
    if len(images) != len(tokens):
        raise ShapeMismatch(f"there are {len(images)} images and {len(tokens)} questions")
    like = next(iter(model.parameters()), images)
    images, tokens = images.to(like), tokens.to(like.device)
    with torch.no_grad(), evaluation_mode(model):
        scores = model(images, tokens)
    classes = scores.argmax(1) if answers is None else answers
    found = run(model, (images, tokens), classes)
    probabilities = scores.softmax(1).gather(1, classes[:, None])[:, 0]
    return AnswerExplanation(found, tokens, probabilities, method != "occlusion")


def explain_answer(
    model: nn.Module,
    image: Tensor,
    question: str | Sequence[str],
    method: str | Method = "lrp",
    *,
    vocabulary: Sequence[str] = VOCABULARY,
) -> AnswerExplanation:
    """Relevance of the words of one question and of the pixels of one image.

    Args:
        model, method: see `explain_answers`.
        image: `[C, H, W]`, in [0, 1].
        question: a sentence, or its words.
        vocabulary: of the model: words by number, from 1.
    """
    if image.ndim != 3:
        raise ShapeMismatch(f"one image is [C, H, W], not {list(image.shape)}")
    words = as_words(question) if isinstance(question, str) else tuple(question)
    return explain_answers(model, image[None], as_tokens([words], vocabulary), method)


def _words_occluded(
    model: nn.Module, x: tuple[Tensor, Tensor], target: Target = None
) -> Explanation:
    """Occlusion of each word, and of the image as a whole."""
    images, tokens = x
    whole = torch.zeros(images.shape[1:], dtype=torch.long)
    each = torch.arange(1, tokens.shape[1] + 1)
    return occlusion(model, x, target, features=(whole, each), probabilities=True)


def _propagated(model: nn.Module, x: tuple[Tensor, Tensor], target: Target = None) -> Explanation:
    """LRP by the rules of the chapter, batch normalizations folded first."""
    if isinstance(model, RelationNetwork):
        model = model.without_normalizations()
    with warnings.catch_warnings():
        # the state of the LSTM has both signs, which the rule for the relation is not made for
        warnings.simplefilter("ignore", DoubtfulRules)
        return lrp(model, x, target, "vqa")


METHODS: dict[str, Method] = {
    "lrp": _propagated,
    "gradient_times_input": gradient_times_input,
    "occlusion": _words_occluded,
}
