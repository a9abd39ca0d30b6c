r"""The approximate Carathéodory lemma without luck, and pruning of shallow ReLU networks with it.

For $X=\sum_jp_jV_j$ in a Hilbert space, $k$ terms chosen one after the other, each so
that the running sum stays nearest to its mean,

$$
j_t=\arg\min_j\Big\|\sum_{s<t}V_{j_s}+V_j-tX\Big\|,
$$

always satisfy $\|X-\frac1k\sum_tV_{j_t}\|^2\le(\mathbb E\|V\|^2-\|X\|^2)/k$, which random
terms reach only on average: the best next term is at least as good as a random one (the method of
conditional expectations, and a relaxed greedy algorithm). Units of a wide network are such terms,
so one percent of them, reweighted, stand for all of them. Source: Mathematical Aspects of Deep
Learning, section 1.6.5, Proposition 1.29.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.approximation.barron.maurey import maurey_error
from torchtheory.approximation.network_calculus import chain
from torchtheory.core.checks import all_finite, described_layers, positive_number
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.nets.feedforward import affine_layers


@dataclass(frozen=True, slots=True)
class Selection:
    r"""A short mixture in place of a long one.

    Attributes:
        coefficients: `[m]`; $\sum_jc_jv_j\approx\sum_ja_jv_j$, at most $k$ of them
            not zero, with $\|c\|_1=\|a\|_1$.
        error: $\|\sum_j(c_j-a_j)v_j\|$.
        bound: $\sqrt{(\mathbb E\|V\|^2-\|X\|^2)/k}$; chosen greedily the error is never
            larger, drawn at random its root mean square is exactly this.
        worst: $\max_j\|V_j\|/\sqrt k=C/\sqrt k$, the bound of the lemma.
    """

    coefficients: Tensor
    error: float
    bound: float
    worst: float


def few_terms(
    points: Tensor,
    weights: Tensor,
    terms: int,
    *,
    method: Literal["greedy", "sample"] = "greedy",
    generator: RandomSource = None,
) -> Selection:
    r"""At most $k$ of the terms of $X=\sum_ja_jv_j$, with new coefficients.

    With $V_j=\operatorname{sign}(a_j)\|a\|_1v_j$ the target is the mean of $V$ under
    $p_j=|a_j|/\|a\|_1$, and the result is $\frac1k\sum_tV_{j_t}$; a term may be taken
    more than once.

    Args:
        points: $v_j$, `[m, D]`.
        weights: $a$, `[m]`, of any sign.
        terms: $k$.
        method: `"greedy"` by conditional expectations, `"sample"` independent draws.
        generator: for `"sample"`.

    Cost: greedy $O(k\,m\,D)$.

    >>> corners = torch.eye(4, dtype=torch.float64)
    >>> made = few_terms(corners, torch.full((4,), 0.25).double(), 4)
    >>> made.coefficients.tolist(), made.error
    ([0.25, 0.25, 0.25, 0.25], 0.0)
    """
    error = maurey_error(points, weights, terms)  # refuses what cannot be mixed
    mass = weights.abs().sum()
    signed = mass * torch.sign(weights)
    if method == "greedy":
        counts = _greedy_counts(signed[:, None] * points, weights @ points, weights != 0, terms)
    elif method == "sample":
        chosen = torch.multinomial(
            weights.abs(), terms, replacement=True, generator=as_generator(generator)
        )
        counts = torch.bincount(chosen, minlength=len(weights))
    else:
        raise InvalidInput(f"method is 'greedy' or 'sample', not {method!r}")
    coefficients = signed * counts / terms
    away = float(((coefficients - weights) @ points).norm())
    return Selection(coefficients, away, math.sqrt(max(0.0, error.expected)), error.worst**0.5)


def _greedy_counts(values: Tensor, mean: Tensor, allowed: Tensor, terms: int) -> Tensor:
    """How often each term is taken: every one keeps the running sum nearest to its mean."""
    moves = values - mean
    squares = moves.square().sum(1)
    squares[~allowed] = math.inf
    away = torch.zeros_like(mean)
    counts = torch.zeros(len(values), dtype=torch.long, device=values.device)
    for _ in range(terms):
        chosen = int((squares + 2 * (moves @ away)).argmin())
        away = away + moves[chosen]
        counts[chosen] += 1
    return counts


@dataclass(frozen=True, slots=True)
class PrunedNetwork:
    r"""A shallow ReLU network of which few units are left, in the architecture it had.

    Attributes:
        model: `Linear -> ReLU -> Linear`; the kept units have their old inner weights and
            biases and new outer weights, everything else is 0.
        units: how many are kept.
        error: $\|\Phi-\tilde\Phi\|_{L^2(\mu)}$ for the given inputs.
        bound: $M/\sqrt k$, $M=\sum_i|w_i|\max(r\|a_i\|+b_i,0)$; never exceeded when
            chosen greedily. It is known without the inputs.
        zero_share: the share of the parameters that are 0.
    """

    model: nn.Sequential
    units: int
    error: float
    bound: float
    zero_share: float


def prune_units(
    model: nn.Sequential,
    inputs: Tensor,
    keep: float = 0.01,
    *,
    method: Literal["greedy", "sample"] = "greedy",
    generator: RandomSource = None,
) -> PrunedNetwork:
    r"""Keep a share of the units of $\Phi(x)=\sum_iw_i\max(\langle a_i,x\rangle+b_i,0)+w_0$.

    On the ball of radius $r$ a unit is at most $s_i=\max(r\|a_i\|+b_i,0)$. Divided by
    $s_i$, with its outer weight multiplied by it, it is at most 1, and $\Phi-w_0$ is a
    mixture of total mass $M=\sum_i|w_i|s_i$. Carathéodory's lemma keeps
    $k=\lfloor\text{keep}\cdot n\rfloor$ units with
    $\|\Phi-\tilde\Phi\|_{L^2(\mu)}\le M/\sqrt k$, for $\mu$ uniform on the inputs.
    With $r=1$, $\|a_i\|\le\frac12$, $b_i\le\frac12$ and one percent kept,
    $M/\sqrt k\le15\|w\|_1/\sqrt n$ for $n\ge100$: Proposition 1.29.

    Args:
        model: `nn.Sequential(Linear, ReLU, Linear)` with one output; it stays as it is.
        inputs: the points $\mu$ lives on, `[N, d]`; $r$ is the length of the
            longest.
        keep: share of the units.
        method: as in `few_terms`; drawn at random, the bound holds in the mean square.

    Cost: $O(k\,n\,N)$ greedily; memory $O(n\,N)$.

    >>> wide = nn.Sequential(nn.Linear(2, 400), nn.ReLU(), nn.Linear(400, 1)).double()
    >>> x = torch.tensor([[0.0, 1.0], [0.6, -0.8], [0.1, 0.2]], dtype=torch.float64)
    >>> made = prune_units(wide, x)
    >>> made.units <= 4, made.error <= made.bound, made.zero_share > 0.98
    (True, True, True)
    """
    maps, between = affine_layers(model)
    if len(maps) != 2 or not isinstance(between[0], nn.ReLU) or len(maps[1][0]) != 1:
        raise UnsupportedModel(
            "pruning by Carathéodory's lemma is for nn.Sequential(Linear, ReLU, Linear) "
            f"with one output, not {described_layers(model)}"
        )
    (inner, bias), (outer, offset) = maps
    if inputs.ndim != 2 or inputs.shape[1] != inner.shape[1]:
        raise ShapeMismatch(f"the inputs must be [N, {inner.shape[1]}], not {list(inputs.shape)}")
    if len(inputs) == 0:
        raise EmptyData(
            f"there is no input to compare the networks on (the shape is {list(inputs.shape)})"
        )
    all_finite(inputs, "the inputs")
    if not 0 < positive_number(keep, "keep") <= 1:
        raise InvalidInput(f"keep is a share of the units, in (0, 1], not {keep!r}")
    # 0.01 * 300 is a little below 3 in floating point
    terms = math.floor(keep * len(inner) + 1e-9)
    if terms < 1:
        raise InvalidInput(
            f"keep={keep!r} of {len(inner)} units is less than one: take 1/{len(inner)} or more"
        )
    size = (float(inputs.norm(dim=1).max()) * inner.norm(dim=1) + bias).clamp(min=0)
    masses = outer[0] * size
    mass = float(masses.abs().sum())
    if mass == 0:
        outer_kept = torch.zeros_like(outer[0])
    else:
        used = size > 0
        values = torch.relu(inputs @ inner.T + bias)
        scaled = torch.where(used, values / torch.where(used, size, 1.0), 0.0)
        chosen = few_terms(
            scaled.T / math.sqrt(len(inputs)), masses, terms, method=method, generator=generator
        )
        outer_kept = torch.where(used, chosen.coefficients / torch.where(used, size, 1.0), 0.0)
    kept = outer_kept != 0
    slim = chain([(inner * kept[:, None], bias * kept), (outer_kept[None], offset)], [nn.ReLU()])
    with torch.no_grad():
        error = float((slim(inputs) - model(inputs)).square().mean().sqrt())
    parameters = [p for layer in affine_layers(slim)[0] for p in layer]
    zeros = sum(int((p == 0).sum()) for p in parameters)
    return PrunedNetwork(
        slim,
        int(kept.sum()),
        error,
        mass / math.sqrt(terms),
        zeros / sum(p.numel() for p in parameters),
    )
