r"""How the source trained its image classifiers: networks, augmentation, steps.

Recipes by name, with everything the source states and a note on what it leaves open. Each
trains with `fit`, with or without DARC1. Source: Mathematical
Aspects of Deep Learning, Chapter 2, Appendix B.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import MultiStepLR

from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnknownName
from torchtheory.models.model import global_randomness_kept
from torchtheory.models.samples import Data
from torchtheory.nets.image_networks import lenet, preactivation_resnet18, resnext29
from torchtheory.training.loop.history import History
from torchtheory.training.loop.state import Augment
from torchtheory.training.loop.trainer import fit
from torchtheory.training.regularizers.darc import WithDARC1


@dataclass(frozen=True)
class RandomAffineCrop:
    r"""Each image rotated, scaled and cropped at random, by one bilinear interpolation.

    Attributes:
        size: side of the crop, whose place is uniform over whole pixels.
        degrees: rotations are uniform in $\pm$ this.
        scaling: factors are uniform in $1\pm$ this.

    >>> x = torch.arange(16.0).reshape(1, 1, 4, 4)
    >>> crop = RandomAffineCrop(3, degrees=0.0, scaling=0.0)(x, torch.Generator().manual_seed(0))
    >>> (crop[0, 0] - crop[0, 0, 0, 0]).round().long()
    tensor([[ 0,  1,  2],
            [ 4,  5,  6],
            [ 8,  9, 10]])
    """

    size: int = 24
    degrees: float = 15.0
    scaling: float = 0.15

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        _images(x, self.size)
        n, height, width = len(x), *x.shape[-2:]

        def uniform() -> Tensor:
            return (2 * torch.rand(n, 1, 1, generator=generator) - 1).to(x)

        angle = uniform() * math.radians(self.degrees)
        scale = 1 + uniform() * self.scaling
        spare = torch.tensor([height - self.size, width - self.size])
        corner = (torch.rand(n, 2, generator=generator) * (spare + 1)).floor()
        shift = (corner - spare / 2).to(x)
        steps = torch.arange(self.size, dtype=x.dtype, device=x.device) - (self.size - 1) / 2
        down = steps[None, :, None] + shift[:, :1, None]
        right = steps[None, None, :] + shift[:, 1:, None]
        rows = (angle.cos() * down - angle.sin() * right) / scale
        columns = (angle.sin() * down + angle.cos() * right) / scale
        grid = torch.stack([2 * columns / (width - 1), 2 * rows / (height - 1)], -1)
        return F.grid_sample(x, grid, align_corners=True)


@dataclass(frozen=True)
class FlipAndCrop:
    """Each image mirrored with a probability, padded by zeros and cropped to its size at random.

    >>> x = torch.ones(200, 3, 8, 8)
    >>> moved = FlipAndCrop()(x, torch.Generator().manual_seed(0))
    >>> moved.shape == x.shape, bool(moved.mean() < 1)
    (True, True)
    """

    padding: int = 4
    flip: float = 0.5

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        _images(x, 1)
        n, (height, width) = len(x), x.shape[-2:]
        mirrored = (torch.rand(n, generator=generator) < self.flip).to(x.device)
        x = torch.where(mirrored[:, None, None, None], x.flip(-1), x)
        padded = F.pad(x, [self.padding] * 4)
        corner = torch.randint(0, 2 * self.padding + 1, (2, n), generator=generator).to(x.device)
        rows = corner[0, :, None] + torch.arange(height, device=x.device)
        columns = corner[1, :, None] + torch.arange(width, device=x.device)
        sample = torch.arange(n, device=x.device)[:, None, None]
        cut: Tensor = padded.movedim(1, -1)[sample, rows[:, :, None], columns[:, None, :]]
        return cut.movedim(-1, 1)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A network and how to train it.

    Attributes:
        network: makes it, with torch's usual initial weights.
        epochs: the source's; for Table A.2, and 1000 for Tables A.3 and A.4.
        learning_rate, momentum, nesterov, weight_decay, batch_size: of stochastic gradient descent.
        milestones: epochs from which the learning rate is a tenth of before.
        augment: applied to each batch; None for none.
        open_points: what the source does not say, and what is done here.
    """

    network: Callable[[], nn.Module]
    epochs: int
    learning_rate: float
    momentum: float
    nesterov: bool = False
    weight_decay: float = 0.0
    batch_size: int = 64
    milestones: tuple[int, ...] = ()
    augment: Augment | None = None
    open_points: str = ""

    def train(
        self,
        data: Data,
        *,
        darc1_strength: float = 0.0,
        epochs: int | None = None,
        seed: int = 0,
    ) -> tuple[nn.Module, History]:
        """A network trained on `(images, labels)`, images `[n, channels, h, w]` in [0, 1].

        Args:
            data: as for `fit`.
            darc1_strength: of DARC1, which the history's losses include; 0 for the base model.
            epochs: fewer than the source's; milestones move with them.
            seed: initial weights, order, augmentation and dropout follow from it.
        """
        count = self.epochs if epochs is None else epochs
        with global_randomness_kept():
            torch.manual_seed(seed)
            model = self.network()
        steps = [round(m * count / self.epochs) for m in self.milestones]
        history = fit(
            model,
            data,
            epochs=count,
            batch_size=self.batch_size,
            optimizer=lambda parameters: torch.optim.SGD(
                parameters,
                lr=self.learning_rate,
                momentum=self.momentum,
                nesterov=self.nesterov,
                weight_decay=self.weight_decay,
            ),
            schedule=(lambda o: MultiStepLR(o, steps, gamma=0.1)) if steps else None,
            loss=WithDARC1(darc1_strength) if darc1_strength else None,
            task="multiclass",
            augment=self.augment,
            seed=seed,
        )
        return model, history


_MNIST = "padding (none here) and the batch size of Tables A.3 and A.4 (64 here)"

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "mnist": Recipe(
            partial(lenet, 24),
            3000,
            0.01,
            0.5,
            augment=RandomAffineCrop(24, 15.0, 0.15),
            open_points=f"{_MNIST}; test images are cropped to the middle 24 x 24",
        ),
        "mnist-nd": Recipe(
            partial(lenet, 28),
            1000,
            0.01,
            0.5,
            open_points=f"{_MNIST}; the input size without augmentation (28 x 28 here)",
        ),
        "cifar10": Recipe(
            preactivation_resnet18,
            1000,
            0.001,
            0.9,
            augment=FlipAndCrop(4, 0.5),
            open_points="whether pixels were standardized (not here)",
        ),
        "cifar10-nd": Recipe(
            preactivation_resnet18,
            1000,
            0.001,
            0.9,
            open_points="not among the source's runs; whether pixels were standardized (not here)",
        ),
        "cifar10-resnext": Recipe(
            resnext29,
            300,
            0.05,
            0.9,
            nesterov=True,
            weight_decay=5e-4,
            milestones=(150, 250),
            augment=FlipAndCrop(4, 0.5),
            open_points="whether pixels were standardized (not here)",
        ),
    }
)
"""By name: MNIST and CIFAR-10 with and without (`nd`) data augmentation for Tables A.3 and A.4,
and CIFAR-10 with the larger network for Table A.2."""


def recipe(name: str) -> Recipe:
    """The recipe with this name.

    >>> recipe("mnist").learning_rate, recipe("cifar10-resnext").milestones
    (0.01, (150, 250))
    """
    if name not in RECIPES:
        raise UnknownName("recipe", name, RECIPES)
    return RECIPES[name]


def _images(x: Tensor, size: int) -> None:
    if x.ndim != 4:
        raise ShapeMismatch(f"images must be [n, channels, height, width], not {list(x.shape)}")
    if min(x.shape[-2:]) < max(2, size):
        raise InvalidInput(f"images of {list(x.shape[-2:])} have no crop of {size} x {size}")
