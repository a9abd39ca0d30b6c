r"""Maurey's lemma: an average of $k$ random elements comes near any mixture.

If $X=\mathbb EV$ in a Hilbert space and $V_1,\dots,V_k$ are independent copies,

$$
\mathbb E\Big\|X-\frac1k\sum_iV_i\Big\|^2=\frac{\mathbb E\|V\|^2-\|X\|^2}k
\le\frac{\sup\|V\|^2}k ,
$$

and some choice is at least as good. With signed weights, $\sum_ja_jv_j$ is the mean of
$V=\operatorname{sign}(a_j)\|a\|_1v_j$, $j$ drawn with probability
$|a_j|/\|a\|_1$: a wide network with one hidden layer is compressed to $k$ units.
Source: Foundations of Deep Learning, Lemmas 28 and 29.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, as_points, described_layers, whole_number
from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.nets.feedforward import dense


@dataclass(frozen=True, slots=True)
class MaureyError:
    r"""What sampling $k$ terms costs in mean square.

    Attributes:
        expected: $(\mathbb E\|V\|^2-\|X\|^2)/k$, exact.
        second_moment: $\mathbb E\|V\|^2/k$.
        worst: $\max_j\|V_j\|^2/k$, which does not need the distribution.
    """

    expected: float
    second_moment: float
    worst: float


def maurey_error(points: Tensor, weights: Tensor, terms: int) -> MaureyError:
    r"""The error of $k$ sampled terms of $X=\sum_ja_jv_j$, exactly and bounded.

    Args:
        points: $v_j$, `[m, D]`.
        weights: $a$, `[m]`, of any sign.
        terms: $k$.

    >>> found = maurey_error(torch.eye(4).double(), torch.full((4,), 0.25).double(), 3)
    >>> found.expected, found.worst        # (1 - 1/4)/3 and 1/3
    (0.25, 0.3333333333333333)
    """
    chance, values = _scaled(points, weights)
    whole_number(terms, "terms", least=1)
    squares = values.square().sum(1)
    moment = float(chance @ squares)
    mixture = float((chance @ values).square().sum())
    used = squares[chance > 0]
    return MaureyError((moment - mixture) / terms, moment / terms, float(used.max()) / terms)


def maurey_average(
    points: Tensor, weights: Tensor, terms: int, draws: int = 1, generator: RandomSource = None
) -> Tensor:
    r"""Averages of $k$ sampled terms, `[draws, D]`; each has $\sum_ja_jv_j$ as mean.

    Cost: $O(m\,D)$ a draw.

    >>> maurey_average(torch.eye(2).double(), torch.tensor([1.0, -1.0]).double(), 2, 2).shape
    torch.Size([2, 2])
    """
    chance, values = _scaled(points, weights)
    counts = _counts(chance, terms, draws, generator)
    return counts @ values / terms


@dataclass(frozen=True, slots=True)
class CompressedNetwork:
    r"""A network with $k$ of the units of a wider one.

    Attributes:
        model: `Linear -> activation -> Linear`; units drawn repeatedly are one unit.
        units: how many different units were drawn.
        error: the mean squared change of the outputs on the given inputs that was to be expected.
    """

    model: nn.Sequential
    units: int
    error: MaureyError


def compress_network(
    model: nn.Sequential, inputs: Tensor, terms: int, *, generator: RandomSource = None
) -> CompressedNetwork:
    r"""Sample $k$ units of a network with one hidden layer and one output.

    $f(x)=\sum_ja_jg_j(x)+a_0$ becomes
    $\frac{\|a\|_1}k\sum_i\operatorname{sign}(a_{j_i})g_{j_i}(x)+a_0$, with
    $j_i$ drawn with probability $|a_j|/\|a\|_1$. The expected mean squared change on
    the inputs is known exactly before anything is drawn. The given model stays as it is.

    >>> wide = nn.Sequential(nn.Linear(2, 500), nn.Tanh(), nn.Linear(500, 1)).double()
    >>> x = torch.zeros(3, 2, dtype=torch.float64)
    >>> compress_network(wide, x, 20).units <= 20
    True
    """
    first, activation, last = _shallow(model)
    # in the precision of the weights, as the network itself would have it
    inputs = as_points(inputs, "inputs").to(first.weight.dtype)
    if inputs.shape[1] != first.in_features:
        raise ShapeMismatch(f"the inputs must be [n, {first.in_features}]")
    with torch.no_grad():
        values = activation(first(inputs))
        weights = last.weight.detach()[0]
        # the mean over the inputs is the squared norm
        error = maurey_error(values.T / len(inputs) ** 0.5, weights, terms)
        size = weights.abs().sum()
        counts = _counts(weights.abs() / size, terms, 1, generator)[0]
        kept = counts > 0
        outer = counts[kept] / terms * size * torch.sign(weights[kept])
        bias = None if first.bias is None else first.bias[kept]
        offset = None if last.bias is None else last.bias.detach()
        slim = nn.Sequential(
            dense(first.weight[kept], bias), activation, dense(outer[None], offset)
        )
    return CompressedNetwork(slim, int(kept.sum()), error)


def _shallow(model: nn.Module) -> tuple[nn.Linear, nn.Module, nn.Linear]:
    layers = list(model) if isinstance(model, nn.Sequential) else []
    if len(layers) == 3:
        first, activation, last = layers
        plain = not list(activation.parameters()) and not isinstance(activation, nn.Linear)
        linear = isinstance(first, nn.Linear) and isinstance(last, nn.Linear)
        if linear and plain and last.out_features == 1 and last.in_features == first.out_features:
            return cast("nn.Linear", first), activation, cast("nn.Linear", last)
    raise UnsupportedModel(
        "the model must be nn.Sequential(Linear, activation without parameters, Linear) "
        f"with one output, not {described_layers(model)}"
    )


def _scaled(points: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities of the terms, and the terms with their sign and the total mass."""
    if points.ndim != 2 or weights.shape != points.shape[:1]:
        raise ShapeMismatch(
            f"points are [m, D] and weights [m], not {list(points.shape)} and {list(weights.shape)}"
        )
    if not (points.is_floating_point() and points.dtype == weights.dtype):
        raise InvalidType(
            f"points and weights are floating point numbers of one precision, not {points.dtype} "
            f"and {weights.dtype}"
        )
    all_finite(points, "points")
    all_finite(weights, "weights")
    mass = weights.abs().sum()
    if not mass > 0:
        raise InvalidInput("some weight must differ from 0")
    return weights.abs() / mass, mass * torch.sign(weights)[:, None] * points


def _counts(chance: Tensor, terms: int, draws: int, generator: RandomSource) -> Tensor:
    """How often each of the m terms is drawn, `[draws, m]`."""
    whole_number(terms, "terms", least=1)
    whole_number(draws, "draws", least=1)
    source = as_generator(generator)
    chosen = torch.multinomial(chance.expand(draws, -1), terms, replacement=True, generator=source)
    counts = torch.zeros(draws, len(chance), dtype=chance.dtype)
    return counts.scatter_add_(1, chosen, torch.ones_like(chosen, dtype=chance.dtype))
