"""Methods and rules by the names that a command takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torchtheory.core.errors import InvalidInput, TorchTheoryError, UnknownName
from torchtheory.explanation import rules
from torchtheory.explanation.by_feature import Method
from torchtheory.explanation.composites import Composite, preset
from torchtheory.explanation.explanation import Explanation
from torchtheory.explanation.lrp import lrp
from torchtheory.explanation.methods.gradients import (
    gradient_times_input,
    integrated_gradients,
    sensitivity,
    smooth_gradient,
)
from torchtheory.explanation.methods.lime import lime
from torchtheory.explanation.methods.occlusion import occlusion
from torchtheory.explanation.methods.shapley import shapley
from torchtheory.explanation.methods.taylor import taylor

METHODS: Mapping[str, Callable[..., Explanation]] = {
    "lrp": lrp,
    "gradient-times-input": gradient_times_input,
    "integrated-gradients": integrated_gradients,
    "smooth-gradient": smooth_gradient,
    "occlusion": occlusion,
    "shapley": shapley,
    "lime": lime,
    "sensitivity": sensitivity,
    "taylor": taylor,
}

RULES: Mapping[str, type[rules.Rule]] = {
    "zero": rules.Zero,
    "epsilon": rules.Epsilon,
    "gamma": rules.Gamma,
    "alpha-beta": rules.AlphaBeta,
    "flat": rules.Flat,
    "w-square": rules.WSquare,
    "z-box": rules.ZBox,
}


def method_named(name: str, **options: Any) -> Method:
    """A method by the name that a command takes, with those of the options that it has.

    >>> method_named("gradient-times-input", generator=3).keywords
    {}
    """
    if name not in METHODS:
        raise UnknownName("method of explanation", name, METHODS)
    method = METHODS[name]
    taken = inspect.signature(method).parameters
    return partial(method, **{k: v for k, v in options.items() if k in taken and v is not None})


def methods_with(option: str) -> list[str]:
    """The names of the methods that have an option.

    >>> methods_with("rules"), methods_with("patch")
    (['lrp'], ['occlusion', 'shapley', 'lime'])
    """
    return [name for name, m in METHODS.items() if option in inspect.signature(m).parameters]


def parse_rules(text: str) -> rules.Rule | Composite:
    """Rules from the words of a command: a preset, or a rule with its numbers.

    >>> parse_rules("epsilon=0.01")
    Epsilon(epsilon=0.01)
    """
    name, equals, numbers = text.partition("=")
    if name not in RULES:
        if equals:
            raise UnknownName("rule", name, RULES)
        return preset(name)
    try:
        values = [float(v) for v in numbers.split(",")] if equals else []
        return RULES[name](*values)
    except (TypeError, ValueError) as error:
        if isinstance(error, TorchTheoryError):
            raise
        raise InvalidInput(f"{text!r} is no rule: give numbers, such as epsilon=0.01") from None
