r"""BERT in any size: an encoder that reads both ways, its two objectives, and heads for tuning.

Source: Deep Learning (notes), section 6.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.checks import described, one_of, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.nets.feedforward import dense, drawn_linear
from torchtheory.sequences.attention.blocks import EncoderBlock
from torchtheory.sequences.attention.positions import LearnedPositions
from torchtheory.sequences.attention.transformers import TokenEmbedding, TransformerEncoder
from torchtheory.sequences.language.bert_inputs import IGNORED, BertInputs


class Bert(nn.Module):
    """Embeddings of tokens, places and segments, a transformer encoder, and two predictions.

    Args:
        vocabulary: number of tokens.
        width: of the states.
        heads: of the attention.
        depth: number of blocks.
        length: longest sequence.
        hidden: units of the blocks' hidden layers, 4 times the width unless given.

    >>> model = Bert(20, 8, heads=2, depth=1, length=16)
    >>> ids = torch.tensor([[2, 7, 3]])
    >>> given = BertInputs(ids, ids * 0, ids > 0, ids < 5)
    >>> states = model(given)
    >>> states.shape, model.masked_logits(states).shape, model.next_logits(states).shape
    (torch.Size([1, 3, 8]), torch.Size([1, 3, 20]), torch.Size([1, 2]))
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        heads: int,
        depth: int,
        *,
        length: int = 512,
        hidden: int | None = None,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        source = as_generator(generator)
        # of spread 0.02 as in the paper: the head is the same matrix
        self.tokens = TokenEmbedding(vocabulary, width, spread=0.02, generator=source, dtype=dtype)
        self.places = LearnedPositions(length, width, generator=source, dtype=dtype)
        self.segments = TokenEmbedding(2, width, spread=0.02, generator=source, dtype=dtype)
        self.norm = nn.LayerNorm(width, dtype=dtype)
        self.encoder = TransformerEncoder(
            width,
            4 * width if hidden is None else hidden,
            heads,
            depth,
            activation=nn.GELU(),
            generator=source,
            dtype=dtype,
        )
        self.pooler = drawn_linear(width, width, generator=source, dtype=dtype)
        self.following = drawn_linear(width, 2, generator=source, dtype=dtype)
        self.transform = drawn_linear(width, width, generator=source, dtype=dtype)
        self.transform_norm = nn.LayerNorm(width, dtype=dtype)
        self.bias = nn.Parameter(torch.zeros(vocabulary, dtype=dtype))

    def forward(self, inputs: BertInputs) -> Tensor:
        """States `[B, T, d]`; padding is not looked at."""
        if not isinstance(inputs, BertInputs):
            raise InvalidType(f"inputs are made by bert_inputs, and are not {described(inputs)}")
        x = self.places(self.tokens(inputs.ids) + self.segments(inputs.segments))
        states: Tensor = self.encoder(self.norm(x), inputs.present.unsqueeze(1))
        return states

    def pooled(self, states: Tensor) -> Tensor:
        """What stands for the whole sequence: a layer on the state of `[CLS]`, `[B, d]`."""
        return torch.tanh(self.pooler(states[:, 0]))

    def next_logits(self, states: Tensor) -> Tensor:
        """Logits `[B, 2]`: the second sentence does not follow (0), it follows (1)."""
        found: Tensor = self.following(self.pooled(states))
        return found

    def masked_logits(self, states: Tensor) -> Tensor:
        """Logits `[..., V]` of the token at each place; the last matrix is the embedding's."""
        z = self.transform_norm(F.gelu(self.transform(states)))
        return F.linear(z, self.tokens.weight, self.bias)

    @classmethod
    def from_transformers(cls, weights: Mapping[str, Tensor], heads: int) -> Bert:
        """The same function as a `BertForPreTraining` of the package `transformers`.

        Its classes are in the other order: there 0 says that the second sentence follows. Other
        settings, which the weights do not tell, are BERT's own: GELU, and 1e-12 in the norms.
        """
        table, place = "bert.embeddings.word_embeddings.weight", "bert.embeddings."
        if table not in weights:
            raise InvalidInput(f"these are not the weights of a BertForPreTraining: no {table}")
        found = {name: w.detach() for name, w in weights.items()}
        (vocabulary, width), dtype = found[table].shape, found[table].dtype
        length = len(found[place + "position_embeddings.weight"])
        depth = len({n.split(".")[3] for n in found if n.startswith("bert.encoder.layer.")})
        hidden = len(found["bert.encoder.layer.0.intermediate.dense.bias"])
        made = cls(vocabulary, width, heads, depth, length=length, hidden=hidden, dtype=dtype)

        def give(module: nn.Module, name: str) -> None:
            kept = dict(module.named_parameters(recurse=False))
            module.load_state_dict({kind: found[f"{name}.{kind}"] for kind in kept})

        give(made.tokens, place + "word_embeddings")
        give(made.places, place + "position_embeddings")
        give(made.segments, place + "token_type_embeddings")
        give(made.norm, place + "LayerNorm")
        for i, block in enumerate(made.encoder.blocks):
            assert isinstance(block, EncoderBlock)
            here = f"bert.encoder.layer.{i}."
            for ours, theirs in (
                (block.attention.query, "attention.self.query"),
                (block.attention.key, "attention.self.key"),
                (block.attention.value, "attention.self.value"),
                (block.attention.output, "attention.output.dense"),
                (block.norm1, "attention.output.LayerNorm"),
                (block.network[0], "intermediate.dense"),
                (block.network[2], "output.dense"),
                (block.norm2, "output.LayerNorm"),
            ):
                assert isinstance(ours, nn.Module)
                give(ours, here + theirs)
        give(made.pooler, "bert.pooler.dense")
        give(made.transform, "cls.predictions.transform.dense")
        give(made.transform_norm, "cls.predictions.transform.LayerNorm")
        follows = "cls.seq_relationship."
        made.following = dense(found[follows + "weight"].flip(0), found[follows + "bias"].flip(0))
        with torch.no_grad():
            made.bias.copy_(found["cls.predictions.bias"])
        for module in made.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = 1e-12
        return made


class PretrainingLoss(NamedTuple):
    """The two losses of BERT, and their sum, which is trained."""

    total: Tensor
    masked: Tensor
    following: Tensor


def pretraining_loss(
    model: Bert, inputs: BertInputs, labels: Tensor, follows: Tensor
) -> PretrainingLoss:
    """Cross-entropy of the masked tokens plus that of 'the second sentence follows'.

    Args:
        model: whose logits are judged.
        inputs: with masked tokens in `ids`.
        labels: what stood there, `[B, T]`, `IGNORED` elsewhere.
        follows: `[B]`, true where the second sentence follows.
    """
    if labels.shape != inputs.ids.shape:
        raise ShapeMismatch(f"labels are {list(labels.shape)}, tokens {list(inputs.ids.shape)}")
    if follows.shape != (len(inputs.ids),):
        raise ShapeMismatch(f"follows must be [{len(inputs.ids)}], not {list(follows.shape)}")
    states = model(inputs)
    asked = labels != IGNORED
    # only the states that are asked for go through the large last matrix
    logits = model.masked_logits(states[asked])
    masked = F.cross_entropy(logits, labels[asked]) if asked.any() else logits.sum()
    following = F.cross_entropy(model.next_logits(states), follows.long())
    return PretrainingLoss(masked + following, masked, following)


Reading = Literal["sequence", "tokens", "span"]


class FineTuned(nn.Module):
    """A pre-trained BERT with a new layer on top.

    Args:
        bert: is part of the new model, and trained with it unless frozen.
        reading: `"sequence"` classifies by the state of `[CLS]`, `"tokens"` classifies each token,
            `"span"` scores each token as the start and as the end of an answer.
        classes: of a classification.
        frozen: whether only the new layer is trained; `bert` then stays as it is.

    Outputs are `[B, classes]`, `[B, T, classes]` or `[B, T, 2]`.

    >>> model = FineTuned(Bert(20, 8, heads=2, depth=1), "sequence", classes=3, frozen=True)
    >>> [tuple(p.shape) for p in model.trained_parameters()]
    [(3, 8), (3,)]
    """

    def __init__(
        self,
        bert: Bert,
        reading: Reading,
        *,
        classes: int | None = None,
        frozen: bool = False,
        generator: RandomSource = None,
    ) -> None:
        super().__init__()
        self.reading = one_of(reading, "reading", ("sequence", "tokens", "span"))
        if reading == "span" and classes is not None:
            raise InvalidInput("a span has a start and an end, and no classes")
        if reading != "span" and classes is None:
            raise InvalidInput(f"reading={reading!r} classifies: give classes=")
        outputs = 2 if classes is None else whole_number(classes, "classes", least=2)
        self.bert, self.frozen = bert, frozen
        weight = bert.pooler.weight
        self.head = drawn_linear(
            weight.shape[0], outputs, generator=generator, dtype=weight.dtype, device=weight.device
        )

    def trained_parameters(self) -> Iterator[nn.Parameter]:
        """What an optimizer is given: everything, or the new layer's if the rest is frozen."""
        return (self.head if self.frozen else self).parameters()

    def forward(self, inputs: BertInputs) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            states = self.bert(inputs)
            read = self.bert.pooled(states) if self.reading == "sequence" else states
        found: Tensor = self.head(read)
        return found


class Span(NamedTuple):
    """First and last token of the best answer, and its score, `[B]` each."""

    start: Tensor
    end: Tensor
    score: Tensor


def best_span(
    starts: Tensor, ends: Tensor, *, passage: Tensor | None = None, longest: int | None = None
) -> Span:
    r"""$\arg\max_{i\le j}s_i+e_j$ over spans within the passage.

    Args:
        starts, ends: scores of each token as the first and the last, `[B, T]`.
        passage: True where the answer may stand, `[B, T]`; everywhere unless given. All tokens of
            a span must stand there.
        longest: answer, in tokens.

    Cost: time and memory $BT^2$.

    >>> best_span(torch.tensor([[0.0, 1.0, 3.0]]), torch.tensor([[5.0, 2.0, 1.0]]))[:2]
    (tensor([0]), tensor([0]))
    """
    if starts.ndim != 2 or starts.shape != ends.shape or not starts.shape[1]:
        raise ShapeMismatch(
            f"starts and ends must both be [B, T], not {list(starts.shape)} and {list(ends.shape)}"
        )
    n = starts.shape[1]
    scores = starts.unsqueeze(2) + ends.unsqueeze(1)
    allowed = torch.ones(n, n, dtype=torch.bool, device=starts.device).triu()
    if longest is not None:
        allowed &= ~allowed.triu(whole_number(longest, "longest", least=1))
    inside = allowed.expand(len(starts), n, n)
    if passage is not None:
        if passage.shape != starts.shape:
            raise ShapeMismatch(f"passage is {list(passage.shape)}, starts {list(starts.shape)}")
        passage = passage.bool()
        if not passage.any(1).all():
            raise InvalidInput("a passage is empty, so that no answer can stand in it")
        # tokens outside the passage up to each place: equal at both ends of a span within it
        outside = (~passage).cumsum(1)
        whole = outside.unsqueeze(2) == outside.unsqueeze(1)
        inside = inside & whole & passage.unsqueeze(2) & passage.unsqueeze(1)
    best, place = scores.masked_fill(~inside, -torch.inf).flatten(1).max(1)
    return Span(place // n, place % n, best)
