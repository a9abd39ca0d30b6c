r"""Cardinal B-splines as networks of powers of ReLUs, exactly.

$$
N_k(x)=\frac1{k!}\sum_{j=0}^{k+1}(-1)^j\binom{k+1}j\max(x-j,0)^k
$$

is the B-spline of degree $k$ on the knots $0,\dots,k+1$: one hidden layer of
$k+2$ units $\max(z,0)^k$. Source: Expressivity of Deep Neural Networks, section 3.4
(Mhaskar).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchtheory.approximation.network_calculus import chain
from torchtheory.core.checks import all_finite, positive_number, whole_number
from torchtheory.core.errors import ShapeMismatch
from torchtheory.nets.activations.table import activation


def spline_network(
    coefficients: Tensor, degree: int, *, start: float = 0.0, spacing: float = 1.0
) -> nn.Sequential:
    r"""$\sum_jc_jN_k((x-a)/h-j)$ as one hidden layer of $\max(z,0)^k$ units.

    Neighboring splines share their knots: $m$ coefficients need $m+k+1$ units, whose
    output weights are the $(k+1)$-st differences of the coefficients over $k!$.
    In floating point the sum loses about $u\,m^k$ to cancellation far from the first knot.

    Args:
        coefficients: $c$, `[m]`.
        degree: $k\ge1$.
        start, spacing: $a$ and $h$: the knots are $a+jh$.

    >>> hat = spline_network(torch.ones(1).double(), 1)
    >>> hat(torch.tensor([[0.5], [1.0], [1.5], [3.0]]).double()).flatten().tolist()
    [0.5, 1.0, 0.5, 0.0]
    """
    whole_number(degree, "degree", least=1)
    positive_number(spacing, "spacing")
    if coefficients.ndim != 1 or len(coefficients) == 0:
        raise ShapeMismatch(f"coefficients are [m], m >= 1, not {list(coefficients.shape)}")
    all_finite(coefficients, "the coefficients of a spline")
    c = coefficients.double()
    out = c.new_zeros(len(c) + degree + 1)
    for j in range(degree + 2):
        out[j : j + len(c)] += (-1) ** j * math.comb(degree + 1, j) * c
    knots = torch.arange(len(out), dtype=torch.float64, device=c.device)
    return chain(
        [
            (torch.full_like(knots, 1 / spacing).unsqueeze(1), -start / spacing - knots),
            (out.unsqueeze(0) / math.factorial(degree), c.new_zeros(1)),
        ],
        [activation("power relu", k=degree).layer()],
    )
