r"""Test errors beyond interpolation: what regularization, initial weights, noise and width do.

Each item of the generalization puzzle is a curve: networks that all fit the training data, by the
strength of a penalty, the scale of the initial weights, the share of wrong labels, the width or the
batch size, over several seeds. Source: Mathematical Aspects of Deep Learning, section 1.1.3.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.errors import EmptyData, InvalidInput, UnknownName
from torchtheory.core.intervals import Interval, mean_interval
from torchtheory.generalization.memorization.experiment import (
    FittedNetworks,
    fit_and_test,
    seeded_network,
)
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Data
from torchtheory.training.many.networks import noisy_labels

MakeWidth = Callable[[int], nn.Module]
"""A function from the width to a new network."""

#: What the levels of a curve are, by the name of the item.
ITEMS = {
    "weight decay": "factor of half the squared norm",
    "initial scale": "factor of the initial weights",
    "label noise": "share of labels moved to another class, squared loss",
    "width": "hidden units",
    "batch size": "samples a step",
}


@dataclass(frozen=True, slots=True)
class ErrorCurve:
    """Errors by level and seed.

    Attributes:
        item: one of `ITEMS`.
        levels: what was varied.
        train_loss: `[levels, seeds]`, in the last epoch.
        train_error, test_error: `[levels, seeds]`, at the end.
    """

    item: str
    levels: tuple[float, ...]
    train_loss: Tensor
    train_error: Tensor
    test_error: Tensor

    def interpolating(self) -> list[int]:
        """Which levels leave no training error, with every seed."""
        return [i for i, row in enumerate(self.train_error) if bool((row == 0).all())]

    def change(self, level: int, base: int, confidence: float = 0.99) -> Interval:
        """Test error at a level minus that at another, paired by seed."""
        return mean_interval(self.test_error[level] - self.test_error[base], confidence)


def puzzle_curve(
    item: str,
    levels: Sequence[float],
    make_network: MakeWidth,
    train: Data,
    test: Data,
    *,
    width: int = 100,
    seeds: Sequence[int] = (0, 1, 2),
    epochs: int = 100,
    batch_size: int = 64,
    learning_rate: float | None = None,
) -> ErrorCurve:
    r"""Train networks with Adam at all levels of one item and count their errors.

    Args:
        item: `weight decay`, `initial scale`, `label noise`, `width` or `batch size`.
        levels: the values to try. Label noise is fitted with the squared distance to the unit
            vector of the (noisy) label, the others with the usual loss.
        make_network: builds a network of a width, one logit per class.
        train, test: classification data; test labels stay as they are.
        width: where another item is varied.
        seeds: of the initial weights (and of the noise).
        epochs, batch_size, learning_rate: as for `fit_many`.

    >>> x = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
    >>> y = (x.sum(1) > 0).long()
    >>> def make_network(width):
    ...     return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))
    >>> curve = puzzle_curve("width", [4, 64], make_network, (x[:40], y[:40]), (x[40:], y[40:]),
    ...                      learning_rate=0.02)
    >>> curve.test_error.shape, bool(curve.test_error[1].mean() < 0.3)
    (torch.Size([2, 3]), True)
    """
    if item not in ITEMS:
        raise UnknownName("item of the puzzle", str(item), ITEMS)
    levels, seeds = [float(v) for v in levels], list(seeds)
    if not levels or not seeds:
        raise EmptyData("there must be at least one level and one seed")
    cases = [(level, seed) for level in levels for seed in seeds]
    common: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
    }

    def build(width: float, seed: int) -> nn.Module:
        if width != int(width) or width < 1:
            raise InvalidInput(f"a width must be a whole number >= 1, not {width!r}")
        return seeded_network(lambda: make_network(int(width)), seed)

    plain = [build(width, seed) for _, seed in cases]
    if item == "batch size":
        parts = [
            fit_and_test(plain[: len(seeds)], train, test, **{**common, "batch_size": int(level)})
            for level in levels
        ]
        return _curve(item, levels, parts)
    if item == "width":
        plain = [build(level, seed) for level, seed in cases]
    elif item == "weight decay":
        common["weight_decay"] = [level for level, _ in cases]
    elif item == "initial scale":
        plain = [_scaled(net, level) for net, (level, _) in zip(plain, cases, strict=True)]
    else:
        problem = Problem(plain[0], train, test, limit=sys.maxsize)
        if problem.task != "multiclass" or problem.classes is None:
            raise InvalidInput("label noise is for networks with one logit per class")
        y, classes = problem.train.y, problem.classes
        common["labels"] = torch.stack(
            [noisy_labels(y, classes, level, seed=seed) for level, seed in cases]
        )
        common["loss"] = squared_distance
    return _curve(item, levels, [fit_and_test(plain, train, test, **common)])


def squared_distance(outputs: Tensor, y: Tensor) -> Tensor:
    r"""Mean of $\|f(x)-e_y\|_2^2$ over a batch, for classes `y[n]`.

    >>> squared_distance(torch.tensor([[0.0, 2.0]]), torch.tensor([1])).item()
    1.0
    """
    own = outputs.gather(1, y[:, None]).squeeze(1)
    return (outputs.square().sum(1) - 2 * own + 1).mean()


def _scaled(net: nn.Module, factor: float) -> nn.Module:
    made = copy.deepcopy(net)
    with torch.no_grad():
        for p in made.parameters():
            p.mul_(factor)
    return made


def _curve(item: str, levels: Sequence[float], parts: Sequence[FittedNetworks]) -> ErrorCurve:
    def joined(values: list[Tensor]) -> Tensor:
        return torch.cat(values).reshape(len(levels), -1)

    return ErrorCurve(
        item,
        tuple(levels),
        joined([p.train_loss[:, -1] for p in parts]),
        joined([p.train_error for p in parts]),
        joined([p.test_error for p in parts]),
    )
