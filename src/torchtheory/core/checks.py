"""What users pass, checked: tensors, numbers and choices, refused in one clear sentence.

Every check takes the value and its name, in this order, and gives the value back in the form in
which the caller needs it. A refusal says what was given and what is needed, and what to do where
that is not obvious. A name is the parameter's, `"x"`, or words, `"the confusion matrix"`.

Tensors keep their dtype and device and come back detached. Numbers may be Python's, numpy's or
tensors without dimensions, and come back as Python's; True and False are not numbers.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, SupportsFloat, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    LabelOutOfRange,
    NonFinite,
    ShapeMismatch,
    UnknownName,
    UnsupportedModel,
)

Number: TypeAlias = float | np.number[Any] | Tensor
Closed: TypeAlias = Literal["neither", "left", "right", "both"]

_Choice = TypeVar("_Choice")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_LONGEST = 60  # characters of a refused value that a message shows
# ... and as many layers of a network.
_MOST_LAYERS = 6


# -- tensors ---------------------------------------------------------------------------------------


def as_points(value: Tensor, name: str = "x", *, features: int | None = None) -> Tensor:
    """Finite points `[n, d]`, one per row, with at least one row and one column.

    >>> as_points(torch.eye(2)).shape
    torch.Size([2, 2])
    >>> as_points(torch.tensor([[0.0, 1.0], [2.0, float("nan")]]))
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.NonFinite: x must be finite, and x[1, 1] is nan
    """
    x = _real_tensor(value, name)
    if x.ndim != 2:
        raise ShapeMismatch(f"{name} must be [samples, features], not {list(x.shape)}")
    if x.shape[0] == 0:
        raise EmptyData(
            f"{name} has no rows, its shape is {list(x.shape)}: at least one sample is needed"
        )
    if x.shape[1] == 0:
        raise EmptyData(
            f"{name} has no columns, its shape is {list(x.shape)}: at least one feature is needed"
        )
    if features is not None and x.shape[1] != features:
        raise ShapeMismatch(f"{name} must be [samples, {features}], not {list(x.shape)}")
    return all_finite(x, name)


def as_batch(value: Tensor, name: str = "x") -> Tensor:
    """Finite real inputs `[n, ...]` of any shape and precision, one sample per row.

    >>> as_batch(torch.zeros(5, 3, 8, 8)).shape
    torch.Size([5, 3, 8, 8])
    """
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise InvalidType(
            f"{name} must be a tensor of floating-point numbers, not {described(value)}"
        )
    if value.ndim < 2:
        raise ShapeMismatch(
            f"{name} must be [samples, ...], one row per sample, not {list(value.shape)}"
        )
    return all_finite(_not_empty(value, name), name).detach()


def as_matrix(
    value: Tensor,
    name: str = "the matrix",
    *,
    rows: int | None = None,
    columns: int | None = None,
) -> Tensor:
    """A finite real matrix `[m, n]`, not empty.

    >>> as_matrix(torch.eye(2)).shape
    torch.Size([2, 2])
    """
    matrix = _real_tensor(value, name)
    given = list(matrix.shape)
    if len(given) != 2 or rows not in (None, given[0]) or columns not in (None, given[1]):
        m, n = "m" if rows is None else rows, "n" if columns is None else columns
        raise ShapeMismatch(f"{name} must have the shape [{m}, {n}], not {given}")
    return all_finite(_not_empty(matrix, name), name)


def as_square(value: Tensor, name: str = "the matrix") -> Tensor:
    """A finite real matrix `[d, d]`.

    >>> as_square(torch.eye(2)).shape
    torch.Size([2, 2])
    """
    matrix = as_matrix(value, name)
    if matrix.shape[0] != matrix.shape[1]:
        raise ShapeMismatch(f"{name} must be square, its shape is {list(matrix.shape)}")
    return matrix


def as_symmetric(value: Tensor, name: str = "the matrix") -> Tensor:
    """`A[d, d]` with the rounding of its asymmetry removed; real asymmetry is refused.

    >>> as_symmetric(torch.tensor([[1.0, 2.0], [2.0, 1.0]])).tolist()
    [[1.0, 2.0], [2.0, 1.0]]
    """
    matrix = as_square(value, name)
    rounding = 8 * len(matrix) * torch.finfo(matrix.dtype).eps * float(matrix.abs().max())
    difference = (matrix - matrix.T).abs()
    if float(difference.max()) > rounding:
        i, j = divmod(int(difference.argmax()), len(matrix))
        raise InvalidInput(
            f"{name} must be symmetric, and its entries [{i}, {j}] and [{j}, {i}] are "
            f"{float(matrix[i, j]):g} and {float(matrix[j, i]):g}; (A + A.T) / 2 is its symmetric "
            "part"
        )
    return (matrix + matrix.T) / 2


def as_vector(value: Tensor, name: str = "the vector", *, size: int | None = None) -> Tensor:
    """A finite real vector `[d]`, not empty.

    >>> as_vector(torch.ones(3)).shape
    torch.Size([3])
    >>> as_vector(torch.ones(3), "w", size=2)
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.ShapeMismatch: w must have the shape [2], not [3]
    """
    vector = _real_tensor(value, name)
    if vector.ndim != 1 or (size is not None and len(vector) != size):
        wanted = "d" if size is None else size
        raise ShapeMismatch(f"{name} must have the shape [{wanted}], not {list(vector.shape)}")
    return all_finite(_not_empty(vector, name), name)


def as_targets(value: Tensor, x: Tensor, name: str = "y") -> Tensor:
    """Finite targets `y[n]` or `y[n, k]` for the rows of `x`, in the dtype of `x`.

    >>> as_targets(torch.tensor([3, 4]), torch.eye(2))
    tensor([3., 4.])
    """
    if not isinstance(value, Tensor):
        raise InvalidType(f"{name} must be a torch tensor, not {described(value)}")
    if value.is_complex():
        raise InvalidType(f"{name} must hold real numbers, not {_dtype(value)}")
    if value.ndim == 0 or value.shape[0] != x.shape[0]:
        raise ShapeMismatch(
            f"{name} must have one row per sample, {x.shape[0]} of them, not {list(value.shape)}"
        )
    if value.device != x.device:
        raise InvalidInput(
            f"the samples are on {x.device} and {name} on {value.device}: move one of them"
        )
    return all_finite(_not_empty(value, name).detach().to(x.dtype), name)


def labeled_samples(
    x: Tensor, y: Tensor, classes: tuple[float, float] = (-1.0, 1.0)
) -> tuple[Tensor, Tensor]:
    """Points `x[n, d]` and labels `y[n]` in the dtype of `x`, of the two classes only.

    >>> labeled_samples(torch.eye(2), torch.tensor([1, -1]))[1]
    tensor([ 1., -1.])
    >>> labeled_samples(torch.eye(2), torch.tensor([0, 1]))
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.LabelOutOfRange: labels must be -1 or 1, and y[0] is 0
    """
    x = as_points(x)
    y = as_targets(y, x)
    if y.ndim != 1:
        raise ShapeMismatch(f"y must be [samples], not {list(y.shape)}")
    low, high = classes
    wrong = (y != low) & (y != high)
    if wrong.any():
        raise LabelOutOfRange(
            f"labels must be {low:g} or {high:g}, and {first_entry(y, 'y', wrong)}"
        )
    return x, y


def all_finite(value: Tensor, name: str) -> Tensor:
    """The tensor itself, if no entry is NaN or infinite. Time: one pass over it.

    >>> all_finite(torch.tensor([1.0, float("inf")]), "the start")
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.NonFinite: the start must be finite, and entry [1] is inf
    """
    if value.is_meta:
        raise NonFinite(f"{name} is on the meta device, which holds no values")
    inner = value.detach()
    # a finite sum has finite terms, and takes one pass; an infinite one may have overflowed
    if not bool(torch.isfinite(inner.sum())) and not bool(torch.isfinite(inner).all()):
        raise NonFinite(f"{name} must be finite, and {_not_finite(inner, name)}")
    return value


def first_entry(value: Tensor, name: str, wrong: Tensor) -> str:
    """The first entry where `wrong` is true, in words for a message.

    Args:
        value: the tensor that is refused.
        name: what it is called.
        wrong: of the same shape, true where an entry cannot be used.

    >>> p = torch.tensor([0.5, -0.5])
    >>> first_entry(p, "p", p < 0), first_entry(p, "the law", p < 0)
    ('p[1] is -0.5', 'entry [1] is -0.5')
    """
    place = [int(i) for i in wrong.nonzero()[0]]
    entry = value.detach()[tuple(place)].item()
    number = f"{entry:g}" if isinstance(entry, float) else str(entry)
    if not place:
        return f"{name} is {number}"
    return f"{name}{place} is {number}" if name.isidentifier() else f"entry {place} is {number}"


# -- numbers ---------------------------------------------------------------------------------------


def equal_rows(value: Tensor) -> tuple[int, int] | None:
    """The numbers of two rows that are equal, for a message; None where all differ.

    >>> equal_rows(torch.tensor([[1.0], [2.0], [1.0]])), equal_rows(torch.eye(2))
    ((0, 2), None)
    """
    distinct, place = torch.unique(value.detach(), dim=0, return_inverse=True)
    if len(distinct) == len(value):
        return None
    twice = int((place.bincount() > 1).nonzero()[0])
    first, second = (place == twice).nonzero()[:2, 0].tolist()
    return first, second


def finite_number(value: Number, name: str) -> float:
    """A real number, neither NaN nor infinite.

    >>> finite_number(-2.5, "bias"), finite_number(torch.tensor(3), "bias")
    (-2.5, 3)
    """
    needed = "be a finite number"
    number = _number(value, name, needed)
    if not _is_finite(number):
        raise _refused(value, name, needed)
    return number


def positive_number(value: Number, name: str) -> float:
    """A finite number above 0.

    >>> positive_number(0, "radius")
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.InvalidInput: radius must be a positive number, not 0
    """
    needed = "be a positive number"
    number = _number(value, name, needed)
    if not (_is_finite(number) and number > 0):
        raise _refused(value, name, needed)
    return number


def nonnegative_number(value: Number, name: str) -> float:
    """A finite number, 0 or above.

    >>> nonnegative_number(0, "penalty")
    0
    """
    needed = "be a number >= 0"
    number = _number(value, name, needed)
    if not (_is_finite(number) and number >= 0):
        raise _refused(value, name, needed)
    return number


def number_between(
    value: Number, name: str, low: float, high: float, *, closed: Closed = "both"
) -> float:
    """A number from `low` to `high`, with the ends that are `closed`.

    >>> number_between(0.9, "momentum", 0, 1, closed="left")
    0.9
    >>> number_between(1, "momentum", 0, 1, closed="left")
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.InvalidInput: momentum must be a number in [0, 1), not 1
    """
    left, right = closed in ("left", "both"), closed in ("right", "both")
    needed = f"be a number in {'[' if left else '('}{low}, {high}{']' if right else ')'}"
    number = _number(value, name, needed)
    above = number >= low if left else number > low
    below = number <= high if right else number < high
    if not (above and below):
        raise _refused(value, name, needed)
    return number


def closed_fraction(value: Number, name: str) -> float:
    """A number from 0 to 1, such as a probability.

    >>> closed_fraction(1, "probability")
    1
    """
    return number_between(value, name, 0, 1)


def open_fraction(value: Number, name: str) -> float:
    """A number strictly between 0 and 1, such as a confidence or the chance of an error.

    >>> open_fraction(0.05, "delta")
    0.05
    >>> open_fraction(5, "delta")
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.InvalidInput: delta must lie strictly between 0 and 1, not 5
    """
    needed = "lie strictly between 0 and 1"
    number = _number(value, name, needed)
    if not 0 < number < 1:
        raise _refused(value, name, needed)
    return number


def whole_number(value: Number, name: str, *, least: int, most: int | None = None) -> int:
    """A whole number from `least` on, and not above `most`.

    >>> whole_number(3, "samples", least=1), whole_number(np.int64(3), "samples", least=1)
    (3, 3)
    >>> whole_number(2.5, "samples", least=1)
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.InvalidInput: samples must be a whole number >= 1, not 2.5
    """
    needed = f"be a whole number >= {least}"
    if most is not None:
        needed = f"be a whole number from {least} to {most}"
    number = _number(value, name, needed)
    if not isinstance(number, int) or number < least or (most is not None and number > most):
        raise _refused(value, name, needed)
    return number


def whole_numbers(
    values: Sequence[int], name: str, *, least: int = 1, fewest: int = 1
) -> tuple[int, ...]:
    """Whole numbers from `least` on, such as the widths of layers; `fewest` of them or more.

    >>> whole_numbers([2, 3, 1], "widths")
    (2, 3, 1)
    >>> whole_numbers([2, 0, 1], "widths")
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.InvalidInput: widths[1] must be a whole number >= 1, not 0
    """
    try:
        items = list(values)
    except TypeError:
        raise InvalidType(
            f"{name} must be a list of whole numbers, not {described(values)}"
        ) from None
    if len(items) < fewest:
        raise InvalidInput(
            f"{name} must hold at least {fewest} whole number{'s' * (fewest > 1)}, not {items}"
        )
    single = f"{name}[{{}}]" if name.isidentifier() else f"entry [{{}}] of {name}"
    return tuple(whole_number(v, single.format(i), least=least) for i, v in enumerate(items))


# -- other objects ---------------------------------------------------------------------------------


def one_of(value: _Choice, name: str, choices: Iterable[_Choice]) -> _Choice:
    """One of several choices.

    >>> one_of("relu", "activation", ["relu", "tanh"])
    'relu'
    >>> one_of("rule", "activation", ["relu", "tanh"])
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.UnknownName: no activation is named 'rule'; did you mean 'relu'?
    """
    known = list(choices)
    if value in known:
        return value
    if isinstance(value, str) and all(isinstance(c, str) for c in known):
        raise UnknownName(name, value, [str(c) for c in known])
    listed = ", ".join(repr(c) for c in known)
    raise InvalidInput(f"{name} must be one of {listed}, not {described(value)}")


def as_function(value: _Function, name: str) -> _Function:
    """Something that can be called.

    >>> as_function(3, "loss")
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.InvalidType: loss must be a function, not 3
    """
    if not callable(value):
        raise InvalidType(f"{name} must be a function, not {described(value)}")
    return value


def as_module(value: nn.Module, name: str = "the model") -> nn.Module:
    """A `torch.nn.Module` that was made as torch wants it, with real weights and no empty layer.

    Time: a look at every sub-module and parameter.

    >>> as_module(nn.ReLU())
    ReLU()
    >>> as_module(nn.Linear(3, 0))
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.UnsupportedModel: the parameter weight of the model is empty, ...
    """
    if not isinstance(value, nn.Module):
        raise InvalidType(f"{name} must be a torch.nn.Module, not {described(value)}")
    _refuse_unwalkable(value, name)
    for key, parameter in _listed(value.named_parameters, name):
        if isinstance(parameter, UninitializedParameter):
            continue
        if parameter.numel() == 0:
            raise UnsupportedModel(
                f"the parameter {key} of {name} is empty, {list(parameter.shape)}: a layer needs "
                "at least one unit, and a parameter at least one number"
            )
        if parameter.is_complex():
            raise UnsupportedModel(
                f"the parameter {key} of {name} is {_dtype(parameter)}, and the theory is about "
                "real weights: make two parameters of its real and imaginary parts"
            )
        if parameter.layout != torch.strided:
            raise UnsupportedModel(
                f"the parameter {key} of {name} is sparse: make it dense, by .to_dense()"
            )
    return value


def _refuse_unwalkable(model: nn.Module, name: str) -> None:
    """Refuse what torch's own walks through a module fail on, or never come back from."""
    waiting: list[tuple[str, nn.Module, tuple[int, ...]]] = [("", model, ())]
    seen: set[int] = set()
    while waiting:
        path, module, above = waiting.pop()
        which = f"{path} of {name}" if path else name
        if id(module) in above:
            raise UnsupportedModel(
                f"{which} ({type(module).__name__}) is a module that contains itself, in which "
                "torch's own model.eval() does not end: keep the reference in a list or a tuple"
            )
        if id(module) in seen or isinstance(module, torch.jit.ScriptModule):
            continue
        seen.add(id(module))
        children = vars(module).get("_modules")
        if children is None:
            raise UnsupportedModel(
                f"{which} ({type(module).__name__}) was not initialized: its __init__ must call "
                "super().__init__() first"
            )
        inside = (*above, id(module))
        waiting += [
            (f"{path}.{k}" if path else k, child, inside)
            for k, child in children.items()
            if child is not None
        ]


def _listed(
    named: Callable[[], Iterable[tuple[str, Tensor]]], name: str
) -> list[tuple[str, Tensor]]:
    """What a module's own method lists."""
    try:
        return list(named())
    except Exception as error:  # a model may have methods of these names
        raise UnsupportedModel(
            f"{name} cannot list its parameters: {type(error).__name__}: {described(str(error))}"
        ) from error


def module_with_values(value: nn.Module, name: str = "the model") -> nn.Module:
    """A module that can be run: its parameters and buffers hold numbers.

    >>> module_with_values(nn.LazyLinear(2))
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.UnsupportedModel: weight is a lazy tensor without values; run ...
    """
    as_module(value, name)
    for key, tensor in [*value.named_parameters(), *_listed(value.named_buffers, name)]:
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            raise UnsupportedModel(
                f"{key} is a lazy tensor without values; run the model once on a batch first"
            )
        if tensor.is_meta:
            raise UnsupportedModel(
                f"{key} is on the meta device, which holds no values; load the weights first"
            )
    return value


def described(value: object) -> str:
    """A value as a message shows it: short, on one line, and never the entries of an array.

    >>> described(torch.zeros(2, 3)), described(np.zeros(4)), described("abc")
    ('a float32 tensor [2, 3]', 'a float64 numpy array [4]', "'abc'")
    >>> described(nn.ReLU), described([1, 2])
    ('the class ReLU', '[1, 2]')
    """
    if isinstance(value, Tensor | np.ndarray | np.generic) and value.ndim == 0:
        value = value.item()
    if isinstance(value, Tensor):
        return f"a {_dtype(value)} tensor {list(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"a {value.dtype} numpy array {list(value.shape)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    simple = (str, bytes, numbers.Number, list, tuple, set, frozenset, dict, range, type(None))
    kind = type(value).__name__
    article = "an" if kind[:1].lower() in "aeiou" else "a"
    if not isinstance(value, simple):
        return f"{article} {kind}"
    try:
        words = " ".join(repr(value).split())
    except ValueError:  # Python writes no integer of more than 4300 digits
        words = f"a number of {int(value).bit_length()} bits" if isinstance(value, int) else kind
    if len(words) <= _LONGEST:
        return words
    size = f" of {len(value)}" if isinstance(value, list | tuple | set | frozenset | dict) else ""
    return f"{words[:_LONGEST]}... ({kind}{size})"


def described_layers(model: nn.Module) -> str:
    """A network as a message shows it: its class with those of its layers.

    >>> described_layers(nn.Sequential(nn.Linear(2, 3), nn.Tanh()))
    'Sequential(Linear, Tanh)'
    """
    layers = [type(layer).__name__ for layer in model.children()]
    more = [f"... {len(layers)} layers"] if len(layers) > _MOST_LAYERS else []
    return f"{type(model).__name__}({', '.join(layers[:_MOST_LAYERS] + more)})"


# -- what they share -------------------------------------------------------------------------------


def _real_tensor(value: object, name: str) -> Tensor:
    if not isinstance(value, Tensor):
        advice = ": torch.as_tensor makes one" if isinstance(value, np.ndarray | list) else ""
        raise InvalidType(f"{name} must be a torch tensor, not {described(value)}{advice}")
    if value.dtype not in (torch.float32, torch.float64):
        advice = "use its real and imaginary parts" if value.is_complex() else "call .double()"
        raise InvalidType(f"{name} must be float32 or float64, not {_dtype(value)}: {advice}")
    if value.layout is not torch.strided:
        layout = str(value.layout).removeprefix("torch.")
        raise InvalidType(f"{name} must be a dense tensor, not {layout}: call .to_dense()")
    return value.detach()


def _not_empty(value: Tensor, name: str) -> Tensor:
    if value.numel() == 0:
        raise EmptyData(f"{name} is empty, its shape is {list(value.shape)}")
    return value


def _not_finite(value: Tensor, name: str) -> str:
    wrong = ~torch.isfinite(value)
    count = int(wrong.sum())
    more = "" if count == 1 else f", the first of {count} such entries"
    return first_entry(value, name, wrong) + more


def _number(value: object, name: str, needed: str) -> float:
    """A Python number for a number of any kind."""
    number = value
    if isinstance(value, Tensor | np.ndarray | np.generic) and value.ndim == 0:
        number = value.item()
    if isinstance(number, bool) or not isinstance(number, numbers.Real):
        raise InvalidType(f"{name} must {needed}, not {described(value)}")
    if isinstance(number, numbers.Integral):
        return int(number)
    return number  # type: ignore[return-value]  # a float, or a fraction, which serves as one


def _is_finite(number: SupportsFloat) -> bool:
    # integers and fractions are finite, also those too large for a float
    return isinstance(number, numbers.Rational) or math.isfinite(number)


def _refused(value: object, name: str, needed: str) -> InvalidInput:
    return InvalidInput(f"{name} must {needed}, not {described(value)}")


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")
