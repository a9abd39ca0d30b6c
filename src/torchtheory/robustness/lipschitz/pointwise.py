"""Suprema of the slopes of functions that act on each entry alone."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from torchtheory.core.errors import UnsupportedModel
from torchtheory.core.naming import operation_words
from torchtheory.tracing.activations import ActivationFacts, activation_facts, layer_facts


def pointwise_constant(layer: nn.Module) -> float:
    """The Lipschitz constant of an activation.

    >>> pointwise_constant(nn.LeakyReLU(-3.0)), pointwise_constant(nn.Sigmoid())
    (3.0, 0.25)

    Raises:
        UnsupportedModel: if it is none whose constant is known, or has none.
    """
    return _finite(layer_facts(layer), type(layer).__name__)


def operation_constant(name: str, arguments: dict[str, Any]) -> float:
    """The Lipschitz constant of an activation, by the name of the operation and its arguments.

    >>> operation_constant("elu", {"alpha": 2.0})
    2.0
    """
    return _finite(activation_facts(name, **arguments), operation_words(name))


def _finite(facts: ActivationFacts, name: str) -> float:
    if math.isfinite(facts.lipschitz):
        return facts.lipschitz
    why = f"jumps at {facts.jumps[0][0]:g}" if facts.jumps else "becomes ever steeper"
    raise UnsupportedModel(f"{name} {why}, so that it has no Lipschitz constant")
