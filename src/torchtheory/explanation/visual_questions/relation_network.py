r"""The relation network that answers questions about images.

A CNN makes of an image a grid of "objects" $o_1,\dots,o_N$, its last pixels; an LSTM makes of the
question its last hidden state $q$. The answer is

$$
f\Big(\sum_{i,j=1}^{N} g(o_i,o_j,q)\Big)
$$

with two networks $g$ and $f$, so that the order of the objects does not matter.
Source: Mathematical Aspects of Deep Learning, section 5.5, Figure 5.3.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import described, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.tracing.folding import fold_batch_norm

_SIZES = (
    "image_size",
    "channels",
    "kernels",
    "convolutions",
    "vocabulary",
    "embedding",
    "hidden",
    "answers",
)


@dataclass(frozen=True, slots=True)
class RelationConfig:
    """Sizes of a relation network; the chapter's unless told.

    Attributes:
        image_size: pixels on each side of an image.
        channels: of an image.
        kernels: of each convolution.
        convolutions: layers of the CNN, each 3 x 3 with stride 2 and without padding, then ReLU,
            then batch normalization.
        vocabulary: words, numbered from 1; 0 is no word.
        embedding: size of a word's vector.
        hidden: units of the LSTM.
        relation: widths of the layers of g.
        readout: widths of the layers of f before the output.
        answers: outputs.
        coordinates: whether an object knows its place in the grid. The chapter does not say; the
            network it follows does so, and without it nothing is left or right of anything.
    """

    image_size: int = 128
    channels: int = 3
    kernels: int = 24
    convolutions: int = 4
    vocabulary: int = 80
    embedding: int = 32
    hidden: int = 128
    relation: tuple[int, ...] = (256, 256, 256, 256)
    readout: tuple[int, ...] = (256, 256, 256)
    answers: int = 28
    coordinates: bool = True

    def __post_init__(self) -> None:
        for name in _SIZES:
            whole_number(getattr(self, name), name, least=1)
        for name in ("relation", "readout"):
            for width in getattr(self, name):
                whole_number(width, f"a width of {name}", least=1)
        if not self.relation:
            raise InvalidInput("relation needs at least one width")
        if self.grid < 1:
            raise InvalidInput(
                f"nothing is left of {self.image_size} pixels after {self.convolutions} "
                "convolutions with stride 2"
            )

    @property
    def grid(self) -> int:
        """Objects on each side of the last feature map."""
        side = self.image_size
        for _ in range(self.convolutions):
            side = (side - 3) // 2 + 1
        return side

    @property
    def objects(self) -> int:
        """How many there are; pairs are the square of it."""
        return self.grid**2

    @property
    def pair_size(self) -> int:
        """Inputs of g: two objects and the question."""
        return 2 * (self.kernels + 2 * self.coordinates) + self.hidden


class RelationNetwork(nn.Module):
    r"""Answers `[n, answers]`, before the softmax, to questions about images.

    It is called with images `[n, channels, H, W]` in [0, 1] and tokens `[n, T]` (see
    `data.visual_questions`); a question ends where zeros begin. Its parts are public:
    `objects(images)`, `question(tokens)` and `related(objects, question)`.

    Time and memory grow with the square of the number of objects: 2401 pairs of 49 objects for
    the chapter's images, 2.5 MB per image in each layer of g.

    Args:
        config: sizes; the chapter's unless given.

    >>> net = RelationNetwork(RelationConfig(image_size=32, convolutions=3))
    >>> net(torch.rand(2, 3, 32, 32), torch.tensor([[1, 2, 3], [4, 5, 0]])).shape
    torch.Size([2, 28])
    """

    def __init__(self, config: RelationConfig | None = None) -> None:
        super().__init__()
        config = RelationConfig() if config is None else config
        if not isinstance(config, RelationConfig):
            raise InvalidType(f"config is a RelationConfig, not {described(config)}")
        self.config = config
        layers: list[nn.Module] = []
        for k in range(config.convolutions):
            entering = config.channels if k == 0 else config.kernels
            layers += [nn.Conv2d(entering, config.kernels, 3, stride=2), nn.ReLU()]
            layers += [nn.BatchNorm2d(config.kernels)]
        self.convolutions = nn.Sequential(*layers)
        self.embedding = nn.Embedding(config.vocabulary + 1, config.embedding, padding_idx=0)
        self.lstm = nn.LSTM(config.embedding, config.hidden, batch_first=True)
        self.relation = _perceptron(config.pair_size, config.relation)
        self.readout = _perceptron(config.relation[-1], config.readout)
        self.output = nn.Linear([*config.relation, *config.readout][-1], config.answers)
        side = (torch.arange(config.grid) + 0.5) / config.grid
        places = torch.stack(torch.meshgrid(side, side, indexing="ij"), -1).reshape(-1, 2)
        self.places: Tensor
        self.register_buffer("places", places, persistent=False)

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        return self.related(self.objects(images), self.question(tokens))

    def objects(self, images: Tensor) -> Tensor:
        """Objects `[n, N, kernels]` of images, with two coordinates if they have them."""
        config = self.config
        wanted = (config.channels, config.image_size, config.image_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != wanted:
            raise ShapeMismatch(
                f"images are [n, {', '.join(map(str, wanted))}], not {list(images.shape)}"
            )
        features: Tensor = self.convolutions(images).flatten(2).transpose(1, 2)
        if not config.coordinates:
            return features
        return torch.cat([features, self.places.expand(len(images), -1, -1)], 2)

    def question(self, tokens: Tensor) -> Tensor:
        """The hidden state `[n, hidden]` of the LSTM after the last word of each question."""
        if tokens.ndim != 2 or tokens.is_floating_point():
            raise ShapeMismatch(
                f"tokens are whole numbers [n, T], not {tokens.dtype} {list(tokens.shape)}"
            )
        words = (tokens != 0).sum(1)
        if int(words.min()) < 1:
            raise InvalidInput("a question has no words")
        states: Tensor = self.lstm(self.embedding(tokens))[0]
        last = (words - 1)[:, None, None].expand(-1, 1, states.shape[2])
        return states.gather(1, last)[:, 0]

    def related(self, objects: Tensor, question: Tensor) -> Tensor:
        """Answers of objects `[n, N, d]` in any order and a question `[n, hidden]`."""
        n, count, size = objects.shape
        first = objects[:, :, None].expand(n, count, count, size)
        second = objects[:, None].expand(n, count, count, size)
        asked = question[:, None, None].expand(n, count, count, question.shape[1])
        pairs = torch.cat([first, second, asked], 3).flatten(1, 2)
        answers: Tensor = self.output(self.readout(self.relation(pairs).sum(1)))
        return answers

    def without_normalizations(self) -> RelationNetwork:
        """A copy that answers as this one does in evaluation mode, without batch normalization.

        Each normalization is folded into the layer after it, the last one into the first layer of
        the relation, which is exact as nothing is padded. Then convolutions receive what leaves
        ReLUs, as the rules of LRP for them assume.
        """
        made = copy.deepcopy(self).eval()
        like = next(self.parameters())
        side, kernels = self.config.image_size, self.config.kernels
        probe = torch.zeros(1, self.config.channels, side, side).to(like)
        folded = fold_batch_norm(self.convolutions, probe).model
        assert isinstance(folded, nn.Sequential)
        last, first = folded[-1], made.relation[0]
        assert isinstance(last, nn.BatchNorm2d)
        assert isinstance(first, nn.Linear)
        assert last.running_var is not None
        assert last.running_mean is not None
        scale = last.weight * torch.rsqrt(last.running_var + last.eps)
        shift = last.bias - last.running_mean * scale
        with torch.no_grad():
            for start in (0, self.config.pair_size - self.config.hidden >> 1):
                own = first.weight[:, start : start + kernels]
                first.bias.add_(own @ shift)
                own.mul_(scale)
        folded[-1] = nn.Identity()
        made.convolutions = folded
        return made


def _perceptron(entering: int, widths: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Linear(entering, width), nn.ReLU()]
        entering = width
    return nn.Sequential(*layers)
