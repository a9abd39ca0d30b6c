"""Expectations for any activation, by its expansion in Hermite polynomials."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput
from torchtheory.nets.activations.moments import second_moment, slope_of, squared_slope
from torchtheory.nets.activations.table import as_layer
from torchtheory.nets.infinite_width.duals.angles import correlation
from torchtheory.nets.infinite_width.duals.moments import DualActivation, Moments, Prepared
from torchtheory.primer.gaussian_means import gaussian_rule

_TERMS = 200
_ROWS_AT_ONCE = 1000


class HermiteExpansion(DualActivation):
    r"""Any activation, by its coefficients in the normalized Hermite polynomials.

    With $a_j(k)=\mathbb E\,\varphi(\sqrt kZ)h_j(Z)$ and the correlation $\rho$,
    Mehler's formula gives

    $$
    \mathbb E\varphi(z)\varphi(z')=\sum_{j\ge0}a_j(k_{11})a_j(k_{22})\rho^j,
    $$

    and the same for the slopes with the coefficients of $\varphi'$. What is cut off after
    $J$ terms is at most $\sqrt{R(k_{11})R(k_{22})}$ by Cauchy and Schwarz, where
    $R(k)=\mathbb E\varphi(\sqrt kZ)^2-\sum_{j\le J}a_j(k)^2$; terms are added until that is
    at the level of rounding, at most `terms` of them, and the bound for the worst pair of points
    is the `error` of the result. A smooth activation needs a few dozen. One with a kink leaves an
    error for nearly equal points, and one with a kink elsewhere than at 0 also has an error
    $\Delta(k)$ in the coefficients themselves, because the quadrature rule does not split there:
    it is taken as twice the largest difference to rules with two and three times as many panels,
    and enters the `error` as $\|\Delta\|\,\|a'\|+\|a\|\,\|\Delta'\|+\|\Delta\|\,\|\Delta'\|$. That
    part is an estimate, not a bound.

    Args:
        function: $\varphi$, entry by entry.
        terms: most terms.

    Cost: 900 evaluations and $900J$ multiplications for each distinct variance (six times as
    many with a kink elsewhere than at 0), then $2J$ operations a pair. It is not differentiated.
    """

    def __init__(self, function: Any, *, terms: int = _TERMS) -> None:
        if isinstance(terms, bool) or not isinstance(terms, int) or not 1 <= terms <= 400:
            raise InvalidInput(f"terms must be a whole number from 1 to 400, not {terms!r}")
        self.module = function if isinstance(function, nn.Module) else as_layer(function)
        self.given, self.derivative = function, slope_of(function)
        self.terms = terms
        self.name = str(getattr(function, "name", type(self.module).__name__))

    def layer(self) -> nn.Module:
        return self.module

    def prepare(self, variance: Tensor) -> Prepared:
        """Standard deviations `[*k]`; then for the function and for its derivative coefficients
        `[terms, *k]`, what each partial sum leaves `[terms, *k]`, and their error `[*k]`."""
        distinct, place = torch.unique(variance.double(), return_inverse=True)
        found = []
        for f in (self._values, self.derivative):
            a, left, error = self._coefficients(f, distinct)
            found += [a[:, place].to(variance), left[:, place].to(variance), error[place]]
        return (variance.sqrt(), *found)

    def pair(self, k12: Tensor, one: Prepared, other: Prepared, *, slopes: bool) -> Moments:
        cosine = correlation(k12, one[0] * other[0])
        values, error = _series(cosine, one[1:4], other[1:4])
        if not slopes:
            return Moments(values, None, error)
        slope, slope_error = _series(cosine, one[4:], other[4:])
        return Moments(values, slope, max(error, slope_error))

    def on_diagonal(self, variance: Tensor, *, slopes: bool = True) -> Moments:
        q = variance.double()
        values = second_moment(self.module, q).to(variance)
        return Moments(values, squared_slope(self.given, q).to(variance) if slopes else None)

    def _values(self, z: Tensor) -> Tensor:
        with torch.no_grad():
            return self.module(z)  # type: ignore[no-any-return]

    def _coefficients(
        self, f: Callable[[Tensor], Tensor], variance: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`a [terms, n]`, the part of the second moment that the first terms leave, and the
        length `[n]` of the error of `a`."""
        a, whole = self._projected(f, variance, 1)
        # the widest Gaussian meets every kink that a narrower one meets
        error = self._quadrature_error(f, variance[-1:], a[:, -1:], whole[-1:])
        rounding = 1e3 * torch.finfo(variance.dtype).eps * whole[-1:].sqrt()
        if bool((error > rounding).any()):
            error = self._quadrature_error(f, variance, a, whole)
        else:
            error = torch.zeros_like(variance)
        left = (whole - a.square().cumsum(0)).clamp_min(0)
        # the second moment is off by as much as twice its root times the error of the function
        return a, left + 2 * error * whole.sqrt(), error

    def _quadrature_error(
        self, f: Callable[[Tensor], Tensor], variance: Tensor, a: Tensor, whole: Tensor
    ) -> Tensor:
        """How far coefficients may be off: by what finer rules say, `[n]`."""
        finer = [self._projected(f, variance, panels) for panels in (2, 3)]
        lengths = [(a - b).norm(dim=0) for b, _ in finer]
        lengths.append((finer[0][0] - finer[1][0]).norm(dim=0))
        size = whole.sqrt().where(whole > 0, 1.0)
        lengths += [(whole - w).abs() / (2 * size) for _, w in finer]
        return 2 * torch.stack(lengths).amax(0)

    def _projected(
        self, f: Callable[[Tensor], Tensor], variance: Tensor, panels: int
    ) -> tuple[Tensor, Tensor]:
        """Coefficients `[terms, n]` and second moments `[n]`, by a rule so many times as fine."""
        nodes, weights, weighted = (
            t.to(variance.device) for t in _weighted_polynomials(self.terms, panels)
        )
        made = []
        for scale in torch.split(variance.sqrt(), _ROWS_AT_ONCE):
            at_nodes = f(scale[:, None] * nodes)
            made.append((weighted @ at_nodes.T, at_nodes.square() @ weights))
        return torch.cat([a for a, _ in made], 1), torch.cat([whole for _, whole in made])


@cache
def _weighted_polynomials(terms: int, panels: int) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes and weights `[n]`, and the normalized Hermite polynomials at the nodes times the
    weights `[terms, n]`."""
    z, weights = gaussian_rule(torch.float64, torch.device("cpu"), panels)
    rows = [torch.ones_like(z), z]
    for j in range(1, terms - 1):
        rows.append((z * rows[j] - math.sqrt(j) * rows[j - 1]) / math.sqrt(j + 1))
    return z, weights, torch.stack(rows[:terms]) * weights


def _series(cosine: Tensor, one: Prepared, other: Prepared) -> tuple[Tensor, float]:
    """Mehler's sum by Horner's rule, and how far it may be off for the worst pair."""
    (a, left_a, error_a), (b, left_b, error_b) = one, other
    worst = (left_a.reshape(len(a), -1).amax(1) * left_b.reshape(len(b), -1).amax(1)).sqrt()
    size_a, size_b = (float(c.square().sum(0).max()) ** 0.5 for c in (a, b))
    enough = torch.finfo(cosine.dtype).eps * size_a * size_b
    small = (worst <= enough).nonzero()
    count = int(small[0]) + 1 if len(small) else len(a)
    total = (a[count - 1] * b[count - 1]).expand_as(cosine).clone()
    for j in range(count - 2, -1, -1):
        total.mul_(cosine).addcmul_(a[j], b[j])
    off_a, off_b = float(error_a.max()), float(error_b.max())
    error = float(worst[count - 1]) + off_a * size_b + size_a * off_b + off_a * off_b
    return total, error if error > 16 * enough else 0.0
