"""torch's optimizers by name, each with its usual learning rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchtheory.core.checks import nonnegative_number
from torchtheory.core.errors import InvalidInput, InvalidType, UnknownName

MakeOptimizer = Callable[[list[nn.Parameter]], Optimizer]

#: Optimizers by name: the class, its settings, and the learning rate unless one is given.
OPTIMIZERS: dict[str, tuple[Callable[..., Optimizer], dict[str, Any], float]] = {
    "sgd": (torch.optim.SGD, {}, 0.1),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}, 0.05),
    "nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}, 0.05),
    "adagrad": (torch.optim.Adagrad, {}, 0.01),
    "rmsprop": (torch.optim.RMSprop, {}, 1e-3),
    "adam": (torch.optim.Adam, {}, 1e-3),
    "adamw": (torch.optim.AdamW, {}, 1e-3),
}


def make_optimizer(
    parameters: Iterable[nn.Parameter],
    optimizer: str | MakeOptimizer,
    learning_rate: float | None = None,
    weight_decay: float = 0.0,
) -> Optimizer:
    """A torch optimizer by name, or the one a function makes of the parameters.

    >>> make_optimizer(nn.Linear(1, 1).parameters(), "momentum").defaults["momentum"]
    0.9
    """
    parameters = list(parameters)
    if callable(optimizer):
        if learning_rate is not None or weight_decay:
            raise InvalidInput(
                "learning_rate and weight_decay are for optimizers given by name: a function that "
                f"makes the optimizer sets its own (learning_rate = {learning_rate!r}, "
                f"weight_decay = {weight_decay!r})"
            )
        made = optimizer(parameters)
        if not isinstance(made, Optimizer):
            raise InvalidType(
                f"the optimizer function must return a torch.optim.Optimizer, not "
                f"{type(made).__name__}"
            )
        if isinstance(made, torch.optim.LBFGS):
            raise InvalidInput("LBFGS evaluates the loss many times per step; fit does not do that")
        return made
    if optimizer not in OPTIMIZERS:
        raise UnknownName("optimizer", str(optimizer), OPTIMIZERS)
    kind, settings, usual = OPTIMIZERS[optimizer]
    rate = usual if learning_rate is None else learning_rate
    nonnegative_number(rate, "learning_rate")
    nonnegative_number(weight_decay, "weight_decay")
    if kind is torch.optim.AdamW or weight_decay:
        settings = {**settings, "weight_decay": weight_decay}
    return kind(parameters, lr=rate, **settings)
