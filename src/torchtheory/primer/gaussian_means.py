r"""Expectations over a Gaussian, $\mathbb E f(\sqrt q Z)$ with $Z\sim N(0,1)$.

The rule integrates each half-line on its own, on panels that shrink towards 0. Gauss-Hermite
quadrature, the usual choice, converges only like $1/k$ in the number of points where
$f$ has a kink at 0, as ReLU and its relatives do, and misses the step of a saturating
function when $q$ is large; here both are integrated to rounding error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtheory.core.checks import described, first_entry
from torchtheory.core.errors import InvalidInput

_FARTHEST = 14.0  # beyond it the standard normal density is below 1e-43


_PER_PANEL = 16


def gaussian_mean(function: Callable[[Tensor], Tensor], variance: Tensor) -> Tensor:
    r"""$\mathbb E f(\sqrt q Z)$ for each entry $q$ of `variance`.

    Exact to rounding where $f$ is smooth on either side of 0 and grows less than
    exponentially. About 900 evaluations an entry.

    >>> gaussian_mean(torch.relu, torch.tensor([1.0, 4.0], dtype=torch.float64)) ** 2 * torch.pi
    tensor([0.5000, 2.0000], dtype=torch.float64)
    """
    q = _variances(variance)
    nodes, weights = gaussian_rule(q.dtype, q.device)
    return function(q.sqrt()[..., None] * nodes) @ weights


def _variances(variance: Tensor) -> Tensor:
    if not isinstance(variance, Tensor) or not variance.is_floating_point():
        raise InvalidInput(
            f"variances are given as a tensor of real numbers, not {described(variance)}"
        )
    if not bool((variance >= 0).all()):  # also for NaN
        raise InvalidInput(
            f"a variance is a number >= 0: {first_entry(variance, 'variance', ~(variance >= 0))}"
        )
    return variance


def gaussian_rule(
    dtype: torch.dtype, device: torch.device, panels: int = 1
) -> tuple[Tensor, Tensor]:
    r"""Nodes and weights $x_k, w_k$ with $\sum_k w_k f(x_k) \approx \mathbb E f(z)$.

    Exact to rounding for $z \sim N(0, 1)$ and functions smooth on either side of 0. For others,
    rules with each panel cut into several `panels` show how far off it is.

    >>> x, w = gaussian_rule(torch.float64, torch.device("cpu"))
    >>> round(float(w @ x.relu()), 12) == round((2 * torch.pi) ** -0.5, 12)
    True
    """
    nodes, weights = _half_line(panels)
    both = np.concatenate([-nodes[::-1], nodes]), np.concatenate([weights[::-1], weights])
    x, w = (torch.as_tensor(v.copy(), dtype=dtype, device=device) for v in both)
    return x, w


@cache
def _half_line(panels: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Gauss-Legendre on panels whose ends double, times the normal density."""
    points, weights = np.polynomial.legendre.leggauss(_PER_PANEL)
    fine = 2.0 ** np.arange(-14, 1)
    ends = np.concatenate([[0.0], fine, np.arange(2.0, _FARTHEST + 1)])
    cuts = np.linspace(0, len(ends) - 1, panels * (len(ends) - 1) + 1)
    ends = np.interp(cuts, np.arange(len(ends)), ends)
    middle, half = (ends[1:] + ends[:-1]) / 2, np.diff(ends) / 2
    x = (middle[:, None] + half[:, None] * points).ravel()
    w = (half[:, None] * weights).ravel() * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    return x, w
