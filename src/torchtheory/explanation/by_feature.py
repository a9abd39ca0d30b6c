"""What judging explanations has in common: relevance by feature, features taken away, intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, as_function, described
from torchtheory.core.errors import EmptyData, InvalidType, ShapeMismatch
from torchtheory.core.intervals import Interval, SampleValues, mean_interval
from torchtheory.explanation.explanation import Explanation, Relevance, flat
from torchtheory.explanation.removal import Removal
from torchtheory.explanation.score import Inputs, Target

#: A method as a value: what it is called with is a model, inputs and a target.
Method = Callable[[nn.Module, Inputs, Target], Explanation]


def feature_totals(relevance: Relevance) -> Tensor:
    """Relevance `[n, features]`: a pixel has that of all its channels.

    The features of several inputs stand side by side, in the order of `Score.features`.

    >>> feature_totals(torch.ones(2, 3, 4, 4)).shape, float(feature_totals(torch.ones(1, 3, 1, 1)))
    (torch.Size([2, 16]), 3.0)
    """
    parts = (relevance,) if isinstance(relevance, Tensor) else relevance
    return flat(tuple(p.sum(1) if p.ndim == 4 else p for p in parts))


def relevance_of(given: Explanation | Relevance, samples: int) -> Relevance:
    """The relevance that is judged, finite and of so many samples."""
    relevance = given.relevance if isinstance(given, Explanation) else given
    parts = (relevance,) if isinstance(relevance, Tensor) else relevance
    if not isinstance(parts, tuple) or not all(isinstance(p, Tensor) for p in parts):
        raise InvalidType(
            f"give an Explanation, or relevance in the shape of the inputs, not {described(given)}"
        )
    for p in parts:
        if p.ndim < 2 or len(p) != samples:
            raise ShapeMismatch(
                f"relevance of {samples} samples has the shape of the inputs, not {list(p.shape)}"
            )
        all_finite(p, "the relevance")
    return relevance


def target_of(given: Explanation | Relevance, target: Target) -> Target:
    """What the relevance is about: what the caller says, or the classes that were explained."""
    if target is None and isinstance(given, Explanation) and given.classes is not None:
        return given.classes
    return target


def named_methods(methods: Method | Mapping[str, Method]) -> dict[str, Method]:
    """Methods by name; a single one has the name of its function."""
    if not isinstance(methods, Mapping):
        as_function(methods, "a method")
        inner = getattr(methods, "func", methods)  # of functools.partial
        return {getattr(inner, "__name__", "method").replace("_", " "): methods}
    if not methods:
        raise EmptyData("there is no method to judge")
    return {str(k): as_function(m, f"method {k!r}") for k, m in methods.items()}


def explained_by(
    method: Method, model: nn.Module, x: Inputs, target: Target, name: str = "the method"
) -> Explanation:
    """What a method returns, which must be an explanation."""
    made = as_function(method, name)(model, x, target)
    if not isinstance(made, Explanation):
        raise InvalidType(f"{name} must return an Explanation, not {described(made)}")
    return made


def totals(removal: Removal, relevance: Relevance) -> Tensor:
    """Relevance `[n, features]` of the features that are taken away, such as patches."""
    score, numbers = removal.score, flat(relevance).double()
    owner = torch.zeros(int(score.places.max()) + 1, dtype=torch.long, device=numbers.device)
    owner[score.places.to(numbers.device)] = removal.features.to(numbers.device)
    if numbers.shape[1] != len(owner):
        raise ShapeMismatch(
            f"the inputs have {len(owner)} entries, and there is relevance of {numbers.shape[1]}: "
            "it must have the shape of the inputs"
        )
    return numbers.new_zeros(len(numbers), removal.count).index_add_(1, owner, numbers)


def sample_mean(values: SampleValues, confidence: float) -> Interval:
    """The mean over samples with Student's interval; one sample says nothing about its error.

    >>> sample_mean([2.0], 0.95).high
    inf
    """
    numbers = torch.as_tensor(values, dtype=torch.float64).flatten()
    if len(numbers) == 1:
        alone = float(numbers[0])
        return Interval(alone, -math.inf, math.inf, confidence, 1, "Student t")
    return mean_interval(numbers, confidence)


def agreement(one: Relevance, other: Relevance, confidence: float) -> Interval:
    """How far two explanations of the same samples agree: the rank correlation of features.

    1 where they put all features in the same order, 0 where their orders have nothing to do with
    each other. The mean over samples, with its interval; channels of a pixel are added.

    >>> found = agreement(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[5.0, 4.0, 1.0]]), 0.95)
    >>> round(found.estimate, 6)
    -1.0
    """
    a, b = (feature_totals(relevance).cpu() for relevance in (one, other))
    return sample_mean(rank_correlation(a, b), confidence)


def rank_correlation(a: Tensor, b: Tensor) -> Tensor:
    r"""Spearman's rank correlation of the rows of two matrices, `[n]`; equal values share ranks.

    1 where the orders agree; 0 where one of the rows is constant, so has no order.

    >>> found = rank_correlation(torch.tensor([[1.0, 2.0, 9.0]]), torch.tensor([[0.0, 5.0, 6.0]]))
    >>> round(float(found), 6)
    1.0
    """
    return correlation(_ranks(a), _ranks(b))


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """Pearson's correlation of the rows of two matrices, `[n]`; 0 where a row is constant."""
    a, b = (t.double() - t.double().mean(1, keepdim=True) for t in (a, b))
    size = a.norm(dim=1) * b.norm(dim=1)
    return torch.where(size > 0, (a * b).sum(1) / torch.where(size > 0, size, 1.0), 0.0)


def _ranks(rows: Tensor) -> Tensor:
    """Mean ranks of each row, from 1."""
    ordered = rows.double().sort(1).values.contiguous()
    values = rows.double().contiguous()
    below = torch.searchsorted(ordered, values, right=False)
    up_to = torch.searchsorted(ordered, values, right=True)
    return (below + up_to + 1).double() / 2
