"""A model as a function of one input that a group moves, and what is rounding in its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, as_module, described
from torchtheory.core.errors import (
    EmptyData,
    InvalidType,
    ShapeMismatch,
    TorchTheoryError,
    UnsupportedModel,
)
from torchtheory.equivariance.actions import Actions, Group
from torchtheory.equivariance.layouts import input_layout
from torchtheory.models.evaluation import called, depends_on_batch, evaluated, same_twice
from torchtheory.models.model import PureFunction, global_randomness_kept, main_output


def checked_inputs(x: Tensor, group: Group | Actions) -> Tensor:
    """Inputs that the group acts on, or a refusal."""
    if not isinstance(x, Tensor):
        raise InvalidType(f"x must be a torch tensor of inputs, not {described(x)}")
    if x.layout != torch.strided:
        raise InvalidType(f"x must be a dense tensor of inputs, not {x.layout}: call .to_dense()")
    if x.ndim == 0 or len(x) == 0 or x.numel() == 0:
        raise EmptyData(f"x must hold at least one input, and its shape is {list(x.shape)}")
    if x.is_floating_point():
        all_finite(x, "x")
    if isinstance(group, Group):
        layout = input_layout(group, x.shape)
        if group.order(layout[0].grid) < 2:
            raise ShapeMismatch(
                f"{group.name} of a grid of {layout[0].grid} are the identity alone: give larger "
                "inputs"
            )
    return x.detach()


def exact_function(
    model: nn.Module | PureFunction, x: Tensor, output: int | str | None = None
) -> tuple[PureFunction, Tensor, float]:
    """The model as a function of one input, in double precision where it runs so.

    Returns the function, the inputs in its precision, and what a defect that is rounding alone
    stays below: of weights that are rounded themselves where they are less precise than the
    computation (a kernel that is symmetric but for its last digit), else half of the digits.

    Raises:
        UnsupportedModel: if it is no function of one input: it is random, or couples the samples
            of a batch.
    """
    if isinstance(model, PureFunction):
        function = model
    else:
        function = PureFunction(as_module(model), output=output)
    like = function.reference()
    x = x.to(like.device)
    if x.is_floating_point() and like.numel():
        x = x.to(like.dtype)
    first = x[:8]
    with torch.no_grad(), global_randomness_kept():
        if function is not model and output is None:
            returned = called(function, lambda t: function.call(function.parameters, t), first)
            function.output = main_output(returned)
        evaluated(function, first)
    if not same_twice(function, first):
        raise UnsupportedModel(
            "the model is no function of its input: the same input gave two different outputs"
        )
    if depends_on_batch(function, first):
        raise UnsupportedModel(
            "the model is no function of one input: its output for a sample depends on the other "
            "samples of its batch, also in evaluation mode"
        )
    own = like.dtype if like.numel() or not x.is_floating_point() else x.dtype
    half = torch.finfo(own).eps ** 0.5
    if not x.is_floating_point() or x.dtype == torch.float64:
        return function, x, half
    double = function.in_precision(torch.float64)
    try:
        with torch.no_grad(), global_randomness_kept():
            evaluated(double, first.double())
    except TorchTheoryError:  # its code fixes a precision
        return function, x, half
    return double, x.double(), torch.finfo(own).eps ** 0.75


#: Units of rounding, of the outputs, below which differences are none.
_ROUNDINGS = 1e3


def constant_part(parts: Callable[[], Iterable[Tensor]]) -> Tensor | None:
    """The mean of outputs `[n, ...]`, flat, or None if they do not vary around it.

    What is the same at all inputs, and stays as it is when it is moved, says nothing about what a
    network makes of its inputs.

    Args:
        parts: lists the outputs, moved by the elements that are tried and by none, some at a time;
            called twice.
    """
    total, count, square, unit = torch.zeros(()), 0, 0.0, 0.0
    for part in parts():
        rows = _rows(part)
        total, count = rows.sum(0) + total.to(rows), count + len(rows)
        square += float(rows.square().sum())
        unit = _unit(part)
    if not count:
        return None
    mean = total / count
    varying = sum(float((_rows(part) - mean).square().sum()) for part in parts())
    return mean if varying**0.5 > _ROUNDINGS * unit * square**0.5 else None


def relative_defects(found: Tensor, expected: Tensor, constant: Tensor | None = None) -> Tensor:
    r"""The relative defects `[n]` of outputs `[n, ...]` against those that equivariance asks for.

    $\|a-b\|\big/\sqrt{(\|a-c\|^2+\|b-c\|^2)/2}$ with $a$ found, $b$ expected and $c$ the
    constant part of the outputs: from 0 to 2, whatever $c$ is. A difference that is rounding of the
    outputs is 0, and that of outputs that are not finite is NaN.

    >>> a, b = torch.tensor([[1e6 + 1, 1e6]]).double(), torch.tensor([[1e6, 1e6 + 1]]).double()
    >>> c = torch.full((2,), 1e6 + 0.5).double()
    >>> [round(float(d), 9) for d in (relative_defects(a, b), relative_defects(a, b, c))]
    [1e-06, 2.0]
    """
    a, b = _rows(found), _rows(expected)
    size = _root_mean(a, b)
    difference = (a - b).square().sum(1).sqrt()
    if constant is not None:
        a, b = a - constant, b - constant
    scale = _root_mean(a, b)
    relative = difference / torch.where(scale > 0, scale, 1.0)
    # NaN is no rounding
    rounding = (difference <= _ROUNDINGS * _unit(found) * size) & size.isfinite()
    return torch.where(rounding, 0.0, relative)


def _unit(outputs: Tensor) -> float:
    return torch.finfo(outputs.dtype if outputs.is_floating_point() else torch.float64).eps


def _rows(outputs: Tensor) -> Tensor:
    return outputs.reshape(len(outputs), -1).double()


def _root_mean(a: Tensor, b: Tensor) -> Tensor:
    return ((a.square().sum(1) + b.square().sum(1)) / 2).sqrt()
