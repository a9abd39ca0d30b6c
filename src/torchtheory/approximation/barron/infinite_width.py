r"""Networks of infinite width on the line: a function as an integral over cosines or steps.

With $f(x)=\int\cos(\omega x+\varphi(\omega))|F(\omega)|\,d\omega$ (angular frequencies) both
integrals give $f(x)-f(0)$: the one over cosines everywhere, the one over steps for
$|x|\le r$. Source: Foundations of Deep Learning, Theorem 26.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import ShapeMismatch


def cosine_integral(
    magnitude: Callable[[Tensor], Tensor],
    phase: Callable[[Tensor], Tensor],
    points: Tensor,
    frequencies: Tensor,
) -> Tensor:
    r"""The infinite-width representation by cosines on the line, on an even grid.

    $\int(\cos(\omega x+\varphi)-\cos\varphi)\,|F(\omega)|\,d\omega=f(x)-f(0)$.

    Args:
        magnitude, phase: $|F(\omega)|$ and $\varphi(\omega)$.
        points: $x$, `[n]`.
        frequencies: `[m]`, even spacing.

    >>> w = torch.linspace(-9, 9, 181, dtype=torch.float64)
    >>> bell = lambda w: torch.exp(-w**2 / 2) / (2 * torch.pi) ** 0.5
    >>> x = torch.tensor([0.5, 3.0], dtype=torch.float64)
    >>> found = cosine_integral(bell, torch.zeros_like, x, w)
    >>> torch.allclose(found, torch.exp(-x**2 / 2) - 1)
    True
    """
    if points.ndim != 1 or frequencies.ndim != 1 or len(frequencies) < 2:
        raise ShapeMismatch(
            f"points and frequencies are one-dimensional grids (points is {list(points.shape)}, "
            f"frequencies is {list(frequencies.shape)})"
        )
    angle = phase(frequencies)
    change = torch.cos(points[:, None] * frequencies + angle) - torch.cos(angle)
    return change @ magnitude(frequencies) * float(frequencies[1] - frequencies[0])


def step_integral(
    magnitude: Callable[[Tensor], Tensor],
    phase: Callable[[Tensor], Tensor],
    points: Tensor,
    frequencies: Tensor,
    *,
    radius: float = 1.0,
    offsets: int = 400,
) -> Tensor:
    r"""The infinite-width representation by steps on the line, as a double integral.

    $$
    -\int\!\int_0^{r|\omega|}1[\omega x\ge u]\sin(u+\varphi)|F|\,du\,d\omega
    +\int\!\int_{-r|\omega|}^01[\omega x\le u]\sin(u+\varphi)|F|\,du\,d\omega ,
    $$

    which is $f(x)-f(0)$ for $|x|\le r$, and another function beyond.

    Args:
        magnitude, phase: $|F(\omega)|$ and $\varphi(\omega)$.
        points: $x$, `[n]`.
        frequencies: an even grid of $\omega$, `[m]`.
        offsets: midpoints of the inner integral on either side.

    Cost: $O(nm\cdot\text{offsets})$; the error of the inner rule is of order 1/offsets.

    >>> w = torch.linspace(-8, 8, 161, dtype=torch.float64)
    >>> bell = lambda w: torch.exp(-w**2 / 2) / (2 * torch.pi) ** 0.5
    >>> x = torch.tensor([0.5], dtype=torch.float64)
    >>> found = step_integral(bell, torch.zeros_like, x, w)
    >>> bool((found - (torch.exp(-x**2 / 2) - 1)).abs() < 1e-2)
    True
    """
    if points.ndim != 1 or frequencies.ndim != 1 or len(frequencies) < 2:
        raise ShapeMismatch(
            f"points and frequencies are one-dimensional grids (points is {list(points.shape)}, "
            f"frequencies is {list(frequencies.shape)})"
        )
    positive_number(radius, "radius")
    whole_number(offsets, "offsets", least=1)
    middle = (torch.arange(offsets, dtype=frequencies.dtype) + 0.5) / offsets
    reach = radius * frequencies.abs()
    u = reach[:, None] * middle  # [m, offsets]
    cell = (reach / offsets)[:, None]
    angle = phase(frequencies)[:, None]
    z = points[:, None, None] * frequencies[:, None]  # [n, m, 1]
    right = ((z >= u) * (torch.sin(u + angle) * cell)).sum(2)
    left = ((z <= -u) * (torch.sin(-u + angle) * cell)).sum(2)
    spacing = float(frequencies[1] - frequencies[0])
    return (left - right) @ magnitude(frequencies) * spacing
