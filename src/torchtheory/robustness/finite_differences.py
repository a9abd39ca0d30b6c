r"""Gradients from queries alone: finite differences.

$$
\frac{f(x+he_i)-f(x-he_i)}{2h}=\partial_if(x)+O(h^2),\qquad
\frac{f(x+he_i)-f(x)}{h}=\partial_if(x)+O(h),
$$

$2d$ and $d+1$ queries for a gradient in $d$ coordinates. Fewer queries give an unbiased estimate of
a smoothed gradient: differences along $m$ random directions $u$,
$\frac1m\sum_u\frac{f(x+hu)-f(x-hu)}{2h}\,u$. Source: Foundations of Deep Learning, section 12.1,
which leaves the scheme open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from torchtheory.core.checks import one_of, positive_number, whole_number
from torchtheory.core.random import RandomSource, as_generator, rademacher

if TYPE_CHECKING:
    from torchtheory.robustness.attacks.goals import Goal
    from torchtheory.robustness.attacks.victim import Victim

Scheme = Literal["central", "forward"]

#: Points that are asked about at once.
_AT_ONCE = 4096


@dataclass(frozen=True)
class FiniteDifferences:
    """How to estimate gradients by queries; `PGD(..., gradient=FiniteDifferences())` is black-box.

    Attributes:
        width: $h$; too small a width is lost in rounding.
        scheme: `central` ($2d$ queries, error $O(h^2)$) or `forward` ($d+1$ queries, $O(h)$).
        directions: number of random directions instead of all coordinates; then $2m$ or $m+1$
            queries.
    """

    width: float = 1e-2
    _: KW_ONLY
    scheme: Scheme = "central"
    directions: int | None = None

    def __post_init__(self) -> None:
        positive_number(self.width, "width")
        one_of(self.scheme, "scheme", ("central", "forward"))
        if self.directions is not None:
            whole_number(self.directions, "directions", least=1)

    def queries(self, dimensions: int) -> int:
        """Queries for one gradient.

        >>> FiniteDifferences().queries(64), FiniteDifferences(scheme="forward").queries(64)
        (128, 65)
        """
        used = self.directions or dimensions
        return 2 * used if self.scheme == "central" else used + 1

    def slopes(
        self,
        victim: Victim,
        points: Tensor,
        goal: Goal,
        rows: Tensor | None,
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, values and estimated gradients of a goal, as `Victim.slopes` gives exact ones."""
        count = len(points)
        numbers = torch.arange(count, device=points.device) if rows is None else rows
        scores = victim.scores(points, rows)
        values = goal(scores, victim.targets(rows))

        def ask(some: Tensor, which: Tensor) -> Tensor:
            asked = numbers[which]
            return goal(victim.scores(some, asked), victim.y[asked])

        return scores, values, self._estimate(ask, points, values, generator)

    def _estimate(
        self,
        ask: Callable[[Tensor, Tensor], Tensor],
        points: Tensor,
        values: Tensor | None,
        generator: torch.Generator,
    ) -> Tensor:
        """Gradients `[n, ...]` of what `ask(points, numbers of their samples)` answers."""
        n, d = len(points), points[0].numel()
        flat, h = points.flatten(1), self.width
        total = torch.zeros_like(flat)
        used = self.directions or d
        at_once = max(1, _AT_ONCE // n)
        everything = torch.arange(n, device=points.device)
        for first in range(0, used, at_once):
            m = min(at_once, used - first)
            if self.directions is None:
                along = torch.zeros(m, 1, d, dtype=flat.dtype, device=flat.device)
                along[torch.arange(m), 0, torch.arange(first, first + m)] = 1.0
            else:
                along = rademacher(
                    m, n, d, generator=generator, dtype=flat.dtype, device=flat.device
                )
            who = everything.repeat(m)

            def at(moved: Tensor, who: Tensor = who, m: int = m) -> Tensor:
                return ask(moved.reshape(m * n, *points.shape[1:]), who).reshape(m, n, 1)

            ahead = at((flat + h * along).expand(m, n, d))
            if self.scheme == "central":
                change = (ahead - at((flat - h * along).expand(m, n, d))) / (2 * h)
            else:
                assert values is not None
                change = (ahead - values[:, None]) / h
            total += (change.to(flat.dtype) * along).sum(0)
        if self.directions is not None:
            total /= used
        return total.reshape(points.shape)


def finite_difference_gradient(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    width: float = 1e-4,
    scheme: Scheme = "central",
    directions: int | None = None,
    generator: RandomSource = None,
) -> Tensor:
    r"""The gradient of a function at points `x[n, ...]`, estimated from its values alone.

    Args:
        function: maps `[m, ...]` to one number per row, `[m]`.
        x: points.
        width: $h$.
        scheme: `central` or `forward`.
        directions: number of random directions instead of all coordinates.
        generator: of the directions.

    >>> x = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    >>> finite_difference_gradient(lambda x: x.pow(3).sum(1), x, width=1e-3).round(decimals=4)
    tensor([[ 3., 12.]], dtype=torch.float64)
    """
    how = FiniteDifferences(width, scheme=scheme, directions=directions)
    with torch.no_grad():
        values = function(x) if scheme == "forward" else None
        return how._estimate(lambda some, _: function(some), x, values, as_generator(generator))
