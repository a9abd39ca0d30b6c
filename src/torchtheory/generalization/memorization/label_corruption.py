r"""Data sets with what there is to learn taken out: from the labels, or from the images.

A network trained on them fits or does not fit, and has nothing (or less) to learn. Labels are made
random, all of them or a share; images are shuffled, replaced by shuffles of their own, or by noise.
Every function draws from the generator it is given and returns new tensors. Source: Mathematical
Aspects of Deep Learning, sections 1.1.3 and 2.3 (Zhang et al. 2017).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchtheory.core.checks import closed_fraction, described, first_entry, whole_number
from torchtheory.core.errors import (
    EmptyData,
    InvalidType,
    LabelOutOfRange,
    NonFinite,
    ShapeMismatch,
    UnknownName,
)
from torchtheory.core.random import RandomSource, as_generator

Pair = tuple[Tensor, Tensor]


def corrupted_labels(
    y: Tensor, classes: int, share: float, *, generator: RandomSource = None
) -> Tensor:
    r"""Labels `y[n]` of which each is, with probability `share`, drawn anew from all classes.

    $$
    \tilde y_i = \begin{cases} U_i & \text{with probability } p\\ y_i & \text{otherwise}
    \end{cases}, \qquad U_i\sim\mathcal U\{0,\dots,C-1\}
    $$

    A label drawn anew is right by chance once in $C$, so the expected share of wrong labels
    is $p(1-1/C)$, and at $p=1$ the labels say nothing about the images. In
    `noisy_labels` a fixed number of labels moves to
    *another* class, which at share 1 still says what the class is not.

    >>> y = torch.zeros(1000, dtype=torch.long)
    >>> int((corrupted_labels(y, 4, 0.5) != 0).sum())                 # about 0.5 (1 - 1/4) 1000
    369
    >>> bool((corrupted_labels(y, 4, 0.0) == y).all())
    True
    """
    _check_labels(y, classes)
    closed_fraction(share, "the share of corrupted labels")
    generator = as_generator(generator)
    place = generator.device
    chosen = torch.rand(len(y), generator=generator, device=place) < share
    drawn = torch.randint(0, classes, (len(y),), generator=generator, device=place)
    return torch.where(chosen.to(y.device), drawn.to(y), y)


def shuffled_pixels(*images: Tensor, generator: RandomSource = None) -> list[Tensor]:
    r"""All images with *one* permutation of their entries, $x\mapsto x_{\pi}$.

    Nothing is lost: whoever knows $\pi$ has the images back, and a dense network does not
    notice. What is lost is that neighbors are alike, which convolutions use.

    Args:
        images: one or several sets `[n, ...]` of images of one shape (training and test).

    >>> train, test = torch.arange(6.0).view(2, 3), torch.tensor([[7.0, 8.0, 9.0]])
    >>> shuffled_pixels(train, test)
    [tensor([[2., 0., 1.],
            [5., 3., 4.]]), tensor([[9., 7., 8.]])]
    """
    if not images:
        raise EmptyData("there are no images to shuffle")
    for x in images:
        _check_images(x)
        if x.shape[1:] != images[0].shape[1:]:
            raise ShapeMismatch(
                f"images of the shapes {list(images[0].shape[1:])} and {list(x.shape[1:])} have "
                "no permutation in common"
            )
    generator = as_generator(generator)
    order = torch.randperm(images[0][0].numel(), generator=generator, device=generator.device)
    return [x.flatten(1)[:, order.to(x.device)].view(x.shape) for x in images]


def random_pixels(x: Tensor, *, generator: RandomSource = None) -> Tensor:
    r"""Every image of `x[n, ...]` with a permutation of its own.

    Which values an image has is kept and where they are is lost: what a classifier can still
    learn, it learns from the distribution of the gray values.

    >>> x = torch.arange(6.0).view(2, 3)
    >>> random_pixels(x).sort(1).values
    tensor([[0., 1., 2.],
            [3., 4., 5.]])
    """
    _check_images(x)
    generator = as_generator(generator)
    flat = x.flatten(1)
    keys = torch.rand(flat.shape, generator=generator, device=generator.device)
    return flat.gather(1, keys.argsort(1).to(x.device)).view(x.shape)


def gaussian_images(x: Tensor, *, generator: RandomSource = None) -> Tensor:
    r"""Independent normal entries with the mean and the variance of all entries of `x[n, ...]`.

    Nothing of the images is left, so no classifier is better than guessing.

    >>> noise = gaussian_images(torch.rand(500, 20, generator=torch.Generator().manual_seed(0)))
    >>> round(float(noise.mean()), 2), round(float(noise.var()) * 12, 1)   # 1/2 and 1/12
    (0.5, 1.0)
    """
    _check_images(x)
    if not x.is_floating_point():
        raise InvalidType(f"normal noise needs images of floating-point numbers, not {x.dtype}")
    generator = as_generator(generator)
    noise = torch.randn(x.shape, generator=generator, device=generator.device, dtype=x.dtype)
    spread, mean = torch.std_mean(x, correction=0)
    return noise.to(x.device) * spread + mean


ImageCorruption = Callable[[Tensor, Tensor, torch.Generator], Pair]
"""Training and test images to corrupted ones."""

IMAGE_CORRUPTIONS: dict[str, ImageCorruption] = {
    "shuffled pixels": lambda a, b, g: _pair(shuffled_pixels(a, b, generator=g)),
    "random pixels": lambda a, b, g: (random_pixels(a, generator=g), random_pixels(b, generator=g)),
    "Gaussian images": lambda a, b, g: (
        gaussian_images(a, generator=g),
        gaussian_images(b, generator=g),
    ),
}


def corrupted_images(
    kind: str, train: Tensor, test: Tensor, *, generator: RandomSource = None
) -> Pair:
    """Training and test images after one of `IMAGE_CORRUPTIONS`; the test images suffer the same.

    >>> a, b = corrupted_images("shuffled pixels", torch.eye(3), torch.eye(3), generator=1)
    >>> bool((a == b).all())
    True
    """
    if kind not in IMAGE_CORRUPTIONS:
        raise UnknownName("corruption of images", str(kind), IMAGE_CORRUPTIONS)
    return IMAGE_CORRUPTIONS[kind](train, test, as_generator(generator))


def _pair(both: list[Tensor]) -> Pair:
    return both[0], both[1]


def _check_labels(y: Tensor, classes: int) -> None:
    if not isinstance(y, Tensor) or y.is_floating_point() or y.is_complex():
        raise InvalidType(f"labels must be a tensor of whole numbers 0, 1, ..., not {described(y)}")
    if y.ndim != 1:
        raise ShapeMismatch(f"labels must have the shape [n], not {list(y.shape)}")
    whole_number(classes, "classes", least=2)
    if len(y) == 0:
        raise EmptyData(f"there are no labels to corrupt (the shape is {list(y.shape)})")
    if int(y.min()) < 0 or int(y.max()) >= classes:
        raise LabelOutOfRange(
            f"labels go from {int(y.min())} to {int(y.max())}, and {classes} classes are numbered "
            f"0 to {classes - 1}"
        )


def _check_images(x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise InvalidType(f"images must be a tensor, not {type(x).__name__}")
    if x.ndim < 2:
        raise ShapeMismatch(f"images must have the shape [n, ...], not {list(x.shape)}")
    if x.numel() == 0:
        raise EmptyData(f"there are no images in a tensor of shape {list(x.shape)}")
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise NonFinite(
            f"the images contain NaN or infinity: {first_entry(x, 'the value', ~torch.isfinite(x))}"
        )
