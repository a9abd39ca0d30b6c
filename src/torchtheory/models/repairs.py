"""Inputs that a model refuses, and the usual change after which it takes them.

Images come from files as whole numbers with the channels last, and tables of tokens as floats; the
model then raises something about strides or dtypes. The changes that people forget are tried, and
the one that helps is named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Repair:
    """A change of the inputs.

    Attributes:
        given: what the inputs are, to follow "the inputs".
        wanted: what the model takes.
        code: the change as Python, to follow `x`.
        change: the change.
    """

    given: str
    wanted: str
    code: str
    change: Callable[[Tensor], Tensor]


def repair_of(runs: Callable[[Tensor], object], x: Tensor, like: Tensor) -> str | None:
    """A sentence that says how to change inputs `x` so that `runs(x)` raises nothing.

    Args:
        runs: raises if the model does not take the inputs.
        x: inputs `[n, ...]` that it does not take.
        like: a tensor of the model's precision.

    Returns:
        None if no usual change helps.

    >>> convolution = torch.nn.Conv2d(3, 1, 3)
    >>> repair_of(convolution, torch.zeros(2, 8, 8, 3), convolution.weight)
    'the inputs have their channels last and the model takes them first: x.permute(0, 3, 1, 2)'
    """
    kinds, shapes = _kinds(x, like.dtype), _shapes(x)
    for kind in (None, *kinds):
        for shape in (None, *shapes):
            chosen = [r for r in (shape, kind) if r is not None]
            changed = x
            for repair in chosen:
                changed = repair.change(changed)
            if chosen and works(runs, changed):
                return _sentence(chosen, x)
    return None


def _sentence(chosen: list[Repair], x: Tensor) -> str:
    real = any(".to(" in r.code for r in chosen)
    scaled = real and x.dtype == torch.uint8
    advice = ""
    if real:
        advice = ("scale and " if scaled else "") + "convert them as in training, such as "
    code = "x" + "".join(r.code for r in chosen) + (" / 255" if scaled else "")
    return (
        f"the inputs {' and '.join(r.given for r in chosen)} and the model takes "
        f"{' and '.join(r.wanted for r in chosen)}: {advice}{code}"
    )


def works(runs: Callable[[Tensor], object], x: Tensor) -> bool:
    """Whether a model takes the inputs."""
    try:
        with torch.no_grad():
            runs(x)
    except Exception:  # whatever a model raises at inputs that it was not made for
        return False
    return True


def _kinds(x: Tensor, real: torch.dtype) -> list[Repair]:
    name = str(x.dtype).removeprefix("torch.")
    if not x.is_floating_point():
        wanted = str(real).removeprefix("torch.")
        return [Repair(f"are {name}", wanted, f".to(torch.{wanted})", lambda t: t.to(real))]
    if bool((x == x.round()).all()):
        return [
            Repair(f"are {name}", "whole numbers, such as tokens", ".long()", lambda t: t.long())
        ]
    return []


def type_repairs(x: Tensor, real: torch.dtype) -> list[Repair]:
    """Changes of type that one of several inputs may need, such as a mask of whole numbers.

    >>> [r.code for r in type_repairs(torch.tensor([0, 1]), torch.float32)]
    ['.bool()', '.to(torch.float32)']
    """
    name = str(x.dtype).removeprefix("torch.")
    mask = x.dtype != torch.bool and bool(((x == 0) | (x == 1)).all())
    truth = Repair(f"is {name}", "true and false", ".bool()", lambda t: t.bool())
    kinds = [Repair(f"is {name}", k.wanted, k.code, k.change) for k in _kinds(x, real)]
    return [truth, *kinds] if mask else kinds


def _shapes(x: Tensor) -> list[Repair]:
    found = []
    if x.ndim == 4:
        found.append(
            Repair(
                "have their channels last", "them first", ".permute(0, 3, 1, 2)",
                lambda t: t.permute(0, 3, 1, 2),
            )
        )  # fmt: skip
    if x.ndim == 3:
        found.append(
            Repair(
                "have no dimension of channels", "one", ".unsqueeze(1)", lambda t: t.unsqueeze(1)
            )
        )
    if x.ndim > 2:
        found.append(
            Repair(
                f"have shape {list(x.shape[1:])} a sample", "rows", ".flatten(1)",
                lambda t: t.flatten(1),
            )
        )  # fmt: skip
    return found
