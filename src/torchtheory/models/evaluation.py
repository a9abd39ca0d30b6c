"""A model run on inputs: whatever goes wrong becomes a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from torchtheory.core.checks import first_entry
from torchtheory.core.errors import (
    InvalidType,
    ModelRaised,
    NonFinite,
    TorchTheoryError,
)
from torchtheory.core.foreign_code import ForeignCode
from torchtheory.models.model import PureFunction, global_randomness_kept, raised_on, real_rows
from torchtheory.models.repairs import repair_of, type_repairs, works

T = TypeVar("T")


def called(function: PureFunction, run: Callable[[Tensor], T], x: Tensor) -> T:
    """`run(x)`, which calls the function's model; what that raises becomes a sentence.

    Raises:
        InvalidType: if the inputs are of another type or layout than the model takes, with the
            change that helps.
        UnsupportedModel: with what the model says.
    """
    if function.rows is None:
        return answered(run, x, function.reference())
    try:
        with ForeignCode("the model", ModelRaised):
            return run(x)
    except ModelRaised as error:
        with global_randomness_kept():
            advice = _repair_of_part(function, run, x[:8])
        if advice is not None:
            raise InvalidType(advice) from error.raised
        inputs = f"of {function.rows.shapes()} a sample ({function.rows.types()})"
        raise raised_on(inputs, error) from error.raised


def _repair_of_part(
    function: PureFunction, run: Callable[[Tensor], object], x: Tensor
) -> str | None:
    """Which of several inputs has a type that the model does not take, and what helps."""
    rows, like = function.rows, function.reference()
    assert rows is not None
    try:
        for name, tensor in rows.named():
            for repair in type_repairs(tensor, like.dtype):
                function.rows = rows.with_part(name, repair.change(tensor))
                if works(run, x):
                    return (
                        f"the input {name!r} {repair.given} and the model takes {repair.wanted}: "
                        f"pass {name}{repair.code}"
                    )
    finally:
        function.rows = rows
    return None


def answered(run: Callable[[Tensor], T], x: Tensor, like: Tensor | None = None) -> T:
    """`run(x)`, which calls a model on inputs `[n, ...]`; what that raises becomes a sentence.

    Args:
        run: calls the model.
        x: its inputs.
        like: a tensor of the model's precision, such as a parameter; the inputs unless given.

    Raises:
        InvalidType, UnsupportedModel: as `called`.

    >>> answered(torch.nn.Linear(3, 1), torch.ones(2, 4))
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.ModelRaised: the model raised RuntimeError on inputs of shape ...
    """
    try:
        with ForeignCode("the model", ModelRaised):
            return run(x)
    except ModelRaised as error:
        with global_randomness_kept():
            advice = repair_of(run, x[:8], x if like is None else like)
        if advice is not None:
            raise InvalidType(advice) from error.raised
        inputs = f"of shape {list(x.shape)} and type {x.dtype}"
        raise raised_on(inputs, error) from error.raised


def evaluated(function: PureFunction, x: Tensor) -> Tensor:
    """The outputs `[n, ...]` at the function's own parameters: finite real numbers.

    >>> evaluated(PureFunction(torch.nn.Linear(2, 3)), torch.ones(4, 2)).shape
    torch.Size([4, 3])
    """
    outputs = called(function, lambda t: function(function.parameters, t), x)
    real_rows(outputs, len(x))
    if not bool(torch.isfinite(outputs).all()):
        raise NonFinite(
            "the model's outputs contain NaN or infinity on finite inputs: "
            f"{first_entry(outputs, 'the value', ~torch.isfinite(outputs))}"
        )
    return outputs


def same_twice(function: PureFunction, x: Tensor) -> bool:
    """Whether the same inputs give the same outputs twice, bit for bit."""
    with torch.no_grad(), global_randomness_kept():
        return torch.equal(evaluated(function, x), evaluated(function, x))


def depends_on_batch(function: PureFunction, x: Tensor) -> bool:
    """Whether the output for a sample depends on the other samples of its batch.

    Tried on the whole of `x` against its two halves.

    >>> depends_on_batch(PureFunction(torch.nn.Linear(2, 1)), torch.ones(4, 2))
    False
    """
    half = len(x) // 2
    if half == 0:
        return False
    try:
        with torch.no_grad(), global_randomness_kept():
            whole = evaluated(function, x)
            apart = torch.cat([evaluated(function, x[:half]), evaluated(function, x[half:])])
    except TorchTheoryError:  # not so few: what asks for one sample will say so
        return False
    # batches of other sizes are added up in another order, and a network may magnify that
    rounding = torch.finfo(whole.dtype).eps ** (1 / 3)
    return apart.shape != whole.shape or not torch.allclose(
        apart, whole, rtol=0.0, atol=rounding * float(whole.abs().max())
    )
