r"""The vision transformer: an image as a sequence of patches.

An image `[c, H, W]` is cut into patches of P by P pixels, each is flattened and mapped linearly to
a token, a class token is put in front, positions are added, and an encoder follows; classes are
read from the class token. The cut and the map together are a convolution of kernel and stride P.
Source: Foundations of Deep Learning, section 10.4.5; Deep Learning (notes), section 6.6.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.checks import described, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.nets.feedforward import drawn_linear
from torchtheory.sequences.attention.positions import LearnedPositions
from torchtheory.sequences.attention.transformers import TransformerEncoder


def image_patches(images: Tensor, patch: int) -> Tensor:
    r"""The patches of images, row by row, each flattened: `[B, (H/P)(W/P), c P^2]`.

    Entries of a patch stand in the order channel, row, column, as in a convolution's weight.

    Args:
        images: `[B, c, H, W]`.
        patch: P; it divides H and W.

    >>> image = torch.arange(16.0).reshape(1, 1, 4, 4)
    >>> image_patches(image, 2)[0].tolist()
    [[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0], [8.0, 9.0, 12.0, 13.0], [10.0, 11.0, 14.0, 15.0]]
    """
    if not isinstance(images, Tensor) or not images.is_floating_point() or images.ndim != 4:
        raise InvalidType(
            "images must be a tensor of numbers [images, channels, height, width], not "
            f"{described(images)}"
        )
    _check_divides(patch, *images.shape[2:])
    return F.unfold(images, patch, stride=patch).mT


class PatchEmbedding(nn.Module):
    r"""Patches as tokens, with a class token in front: `[B, c, H, W]` to `[B, n + 1, d]`.

    Attributes:
        linear: the map of a flattened patch to a token.
        first: the class token, `[d]`.

    >>> PatchEmbedding(2, 3, 8)(torch.zeros(5, 3, 4, 6).double()).shape
    torch.Size([5, 7, 8])
    """

    def __init__(
        self,
        patch: int,
        channels: int,
        width: int,
        *,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self.patch = whole_number(patch, "patch", least=1)
        self.channels = whole_number(channels, "channels", least=1)
        source = as_generator(generator)
        self.linear = drawn_linear(channels * patch**2, width, generator=source, dtype=dtype)
        self.first = nn.Parameter(0.02 * gaussian(width, generator=source, dtype=dtype))

    def reset_parameters(self) -> None:
        nn.init.normal_(self.first, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.linear(image_patches(images, self.patch))
        return torch.cat([self.first.expand(len(tokens), 1, -1), tokens], 1)

    def as_convolution(self) -> nn.Conv2d:
        """The map to tokens as a convolution of kernel and stride P: `[B, d, H/P, W/P]`.

        >>> embedding, images = PatchEmbedding(2, 1, 8), torch.ones(1, 1, 4, 4).double()
        >>> tokens = embedding.as_convolution()(images).flatten(2).mT
        >>> bool(torch.allclose(tokens, embedding(images)[:, 1:]))
        True
        """
        weight = self.linear.weight
        made = nn.Conv2d(
            self.channels,
            len(weight),
            self.patch,
            stride=self.patch,
            dtype=weight.dtype,
            device="meta",
        ).to_empty(device=weight.device)
        with torch.no_grad():
            made.weight.copy_(weight.view_as(made.weight))
            assert made.bias is not None
            made.bias.copy_(self.linear.bias)
        return made


class VisionTransformer(nn.Module):
    r"""Classes of images by a transformer encoder over their patches.

    Blocks normalize first and have GELU between; positions are learned. Without positions the
    logits do not change when patches are shuffled.

    Args:
        image_size: height and width of the images, or one number for both.
        patch: size P of the patches; it divides both.
        width: d of the tokens.
        heads: of the attention.
        depth: number of blocks.
        classes: number of classes.
        channels: of the images.
        hidden: units of the blocks' hidden layers, 4 d unless given.
        positions: whether there are any.

    Tokens: $(H/P)(W/P)+1$. Time: $O(n d^2+n^2d)$ per block for n tokens.

    >>> model = VisionTransformer(8, 2, width=16, heads=2, depth=1, classes=10)
    >>> model(torch.zeros(3, 1, 8, 8).double()).shape, model.tokens
    (torch.Size([3, 10]), 17)
    """

    def __init__(
        self,
        image_size: int | tuple[int, int],
        patch: int,
        width: int,
        heads: int,
        depth: int,
        classes: int,
        *,
        channels: int = 1,
        hidden: int | None = None,
        positions: bool = True,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        sides = image_size if isinstance(image_size, tuple) else (image_size, image_size)
        if len(sides) != 2:
            raise InvalidInput(f"image_size must be (height, width), not {described(image_size)}")
        self.image_size = tuple(whole_number(s, "image_size", least=1) for s in sides)
        _check_divides(patch, *self.image_size)
        source = as_generator(generator)
        self.embedding = PatchEmbedding(patch, channels, width, generator=source, dtype=dtype)
        self.tokens = 1 + math.prod(s // patch for s in self.image_size)
        places = (
            LearnedPositions(self.tokens, width, generator=source, dtype=dtype)
            if positions
            else None
        )
        self.encoder = TransformerEncoder(
            width,
            4 * width if hidden is None else hidden,
            heads,
            depth,
            norm="pre",
            positions=places,
            activation=nn.GELU,
            generator=source,
            dtype=dtype,
        )
        self.head = drawn_linear(width, classes, generator=source, dtype=dtype)

    def forward(self, images: Tensor) -> Tensor:
        """Logits `[B, classes]` of images `[B, c, H, W]`."""
        wanted = (self.embedding.channels, *self.image_size)
        if not isinstance(images, Tensor) or images.ndim != 4 or images.shape[1:] != wanted:
            raise ShapeMismatch(
                f"images must be [images, {', '.join(map(str, wanted))}], not {described(images)}"
            )
        logits: Tensor = self.head(self.encoder(self.embedding(images))[:, 0])
        return logits


def _check_divides(patch: int, *sides: int) -> None:
    patch = whole_number(patch, "patch", least=1)
    for side in sides:
        if side % patch:
            raise InvalidInput(
                f"patches of {patch} pixels do not divide a side of {side}: crop, pad or choose "
                "others"
            )
