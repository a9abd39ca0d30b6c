"""Inputs that are not one tensor: several, by position or by name, looked up by row.

Whatever splits, shuffles or differentiates data sees one tensor of inputs. For a model that takes
several, that tensor holds the numbers of the samples, and the function looks up the rows they name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchtheory.core.errors import ShapeMismatch

Parts = tuple[Tensor, ...] | dict[str, Tensor]


class Rows:
    """A table of inputs: tensors with one row per sample, by position or by name.

    >>> rows = Rows({"ids": torch.tensor([[1, 2], [3, 4]]), "weight": torch.ones(2)})
    >>> len(rows), rows.shapes()
    (2, 'ids 2, weight scalar')
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        counts = {len(t) for t in self.tensors()}
        if len(counts) != 1:
            raise ShapeMismatch(
                "the inputs of several parts have different numbers of rows: "
                + ", ".join(f"{name} {len(t)}" for name, t in self.named())
            )
        self.count = counts.pop()

    def __len__(self) -> int:
        return self.count

    def __deepcopy__(self, memo: dict[int, Any]) -> Rows:
        return self  # never written to, and as large as the data

    def named(self) -> list[tuple[str, Tensor]]:
        """The parts with their names, or their positions."""
        if isinstance(self.parts, dict):
            return list(self.parts.items())
        return [(str(k), t) for k, t in enumerate(self.parts)]

    def tensors(self) -> list[Tensor]:
        return [t for _, t in self.named()]

    def shapes(self) -> str:
        """Names and shapes of a sample, in words."""
        return ", ".join(
            f"{name} {' × '.join(map(str, t.shape[1:])) or 'scalar'}" for name, t in self.named()
        )

    def take(self, index: Tensor) -> Rows:
        """The rows of the given numbers."""
        return self._each(lambda t: t[index.to(t.device)])

    def to(self, like: Tensor) -> Rows:
        """On a device, with floating parts in a precision."""
        return self._each(
            lambda t: t.to(like.device, like.dtype if t.is_floating_point() else t.dtype)
        )

    def followed_by(self, other: Rows) -> Rows:
        """These rows and then the others, which must have the same parts."""
        if [(n, t.shape[1:]) for n, t in self.named()] != [
            (n, t.shape[1:]) for n, t in other.named()
        ]:
            raise ShapeMismatch(
                f"two data sets have different inputs: {self.shapes()}; and {other.shapes()}"
            )
        pairs = zip(self.tensors(), other.tensors(), strict=True)
        return self._like([torch.cat(pair) for pair in pairs])

    def taken_by(self, model: nn.Module) -> Rows:
        """Without what a model of the transformers library does not take.

        Such a model names its main input; tables for it have other columns as well, which its
        trainer leaves out. For other models, all parts.
        """
        if not isinstance(self.parts, dict):
            return self
        if getattr(model, "main_input_name", None) not in self.parts:
            return self
        known = inspect.signature(model.forward).parameters
        return Rows({k: t for k, t in self.parts.items() if k in known})

    def arguments(
        self, model: nn.Module, index: Tensor, like: Tensor
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to call a model with: `(args, kwargs)` for the rows of the given numbers.

        Parts by name go to arguments of those names if `forward` has them, else the dictionary
        itself is the one argument. Parts by position are spread if `forward` takes so many, else
        the tuple is the one argument.
        """
        chosen = self.take(index).to(like).parts
        if isinstance(chosen, dict):
            return ((), chosen) if _accepts(model, (), chosen) else ((chosen,), {})
        return (chosen, {}) if _accepts(model, chosen, {}) else ((chosen,), {})

    def copied(self) -> Rows:
        """The same rows in memory of their own."""
        return self._each(Tensor.clone)

    def types(self) -> str:
        """Names and types, in words."""
        return ", ".join(f"{n} {str(t.dtype).removeprefix('torch.')}" for n, t in self.named())

    def with_part(self, name: str, tensor: Tensor) -> Rows:
        """The same rows with one part replaced."""
        return self._like([tensor if n == name else t for n, t in self.named()])

    def _each(self, change: Callable[[Tensor], Tensor]) -> Rows:
        return self._like([change(t) for t in self.tensors()])

    def _like(self, tensors: list[Tensor]) -> Rows:
        if isinstance(self.parts, dict):
            return Rows(dict(zip(self.parts, tensors, strict=True)))
        return Rows(tuple(tensors))


def as_mapping(value: object) -> dict[str, Any] | None:
    """A dictionary of whatever has keys and entries, such as a `BatchEncoding`; else None.

    Tables of pandas have both and are none: their columns are not inputs of a network.

    >>> as_mapping({"a": 1}), as_mapping([1])
    ({'a': 1}, None)
    """
    if isinstance(value, Mapping):
        return dict(value)
    kind = type(value)
    if kind.__module__.split(".")[0] in ("pandas", "polars"):
        return None
    keys = getattr(kind, "keys", None)
    if keys is None or not hasattr(kind, "__getitem__"):
        return None
    return {key: value[key] for key in keys(value)}  # type: ignore[index]


def is_several(x: object) -> bool:
    """Whether inputs are a mapping or a tuple of arrays rather than one array."""
    if as_mapping(x) is not None:
        return True
    return (
        isinstance(x, tuple)
        and bool(x)
        and all(isinstance(p, Tensor | np.ndarray) and p.ndim > 0 for p in x)
    )


def _accepts(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return False
    return True
