r"""Cybenko's sums of sigmoids, written down for a Lipschitz function of one variable.

On $N$ cells of length $h$ with ends $x_i$ and middles $m_i$,

$$
G(x)=2f(x_0)\,\sigma(0)+\sum_{i=1}^N\bigl(f(x_i)-f(x_{i-1})\bigr)\,
\sigma\bigl(\kappa(x-m_i)\bigr)
$$

goes from one value of $f$ to the next in each middle. The constant is a unit of weight 0, so
that $G$ is a plain sum of units. Source: Mathematical Foundations of Deep Learning (slides),
"Cybenko Theorem", which gives no construction.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from torchtheory.approximation.certificates import Approximant, as_box
from torchtheory.approximation.network_calculus import chain
from torchtheory.approximation.targets import Function, values_of
from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import InvalidInput


def staircase_factor(sharpness: float) -> float:
    r"""$1+2e^{-s/2}/(1-e^{-s})$, by how much soft steps cost more than hard ones.

    Args:
        sharpness: $s=\kappa h$, the steepness of a step times the length of a cell.

    >>> round(staircase_factor(10.0), 4)
    1.0135
    """
    positive_number(sharpness, "sharpness")
    return 1 + 2 * math.exp(-sharpness / 2) / -math.expm1(-sharpness)


def sigmoid_staircase(
    function: Function,
    cells: int,
    interval: tuple[float, float] = (0.0, 1.0),
    *,
    lipschitz: float,
    sharpness: float = 10.0,
) -> Approximant:
    r"""A sum of $N+1$ logistic units near a $\Lambda$-Lipschitz function.

    At distance $\delta$ from the nearest middle the hard staircase errs by at most
    $\Lambda(\tfrac h2-\delta)$, the nearest soft step by $\tfrac12\Lambda h$, and the
    others, at distances of at least $\tfrac h2,\tfrac{3h}2,\dots$ on either side, by a
    geometric sum: altogether

    $$
    \sup|f-G|\le\Lambda h\Bigl[1+\frac{2e^{-\kappa h/2}}{1-e^{-\kappa h}}\Bigr].
    $$

    Args:
        function: $f$, of one variable.
        cells: $N$.
        lipschitz: $\Lambda$ on the interval; the bound is wrong if it is too small.
        sharpness: $\kappa h$.

    >>> line = sigmoid_staircase(lambda x: 3 * x, 6, lipschitz=3.0)
    >>> line.size.units, round(line.bound, 4)
    (7, 0.5067)
    """
    whole_number(cells, "cells", least=1)
    positive_number(lipschitz, "lipschitz")
    factor = staircase_factor(sharpness)
    ((low, high),) = box = as_box(interval)
    length = (high - low) / cells
    ends = torch.linspace(low, high, cells + 1, dtype=torch.float64)
    values = values_of(function, ends.unsqueeze(1))
    middles = (ends[1:] + ends[:-1]) / 2
    kappa = sharpness / length
    weight = torch.cat([torch.zeros(1).double(), torch.full((cells,), kappa).double()])
    bias = torch.cat([torch.zeros(1).double(), -kappa * middles])
    jumps = torch.cat([2 * values[:1], values.diff()])
    network = chain(
        [(weight.unsqueeze(1), bias), (jumps.unsqueeze(0), jumps.new_zeros(1))], [nn.Sigmoid()]
    )
    return Approximant(network, lipschitz * length * factor, box, "S-28")


def soft_indicator(low: float, high: float, sharpness: float) -> nn.Sequential:
    r"""$\sigma(a(x-c_1))-\sigma(a(x-c_2))$: two units near the indicator of an interval.

    At a distance $\delta$ from both ends they err by at most $2e^{-a\delta}$, so they
    tend to $1_{(c_1,c_2)}$ away from the ends, and to $\tfrac12$ at them.

    >>> box = soft_indicator(0.0, 1.0, 100.0)
    >>> box(torch.tensor([[-1.0], [0.5], [2.0]]).double()).round(decimals=6).flatten().tolist()
    [0.0, 1.0, 0.0]
    """
    positive_number(sharpness, "sharpness")
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InvalidInput(f"an interval has two finite ends, the first smaller: {low}, {high}")
    ends = torch.tensor([low, high], dtype=torch.float64)
    weight = torch.full((2, 1), float(sharpness), dtype=torch.float64)
    out = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    return chain([(weight, -sharpness * ends), (out, out.new_zeros(1))], [nn.Sigmoid()])
