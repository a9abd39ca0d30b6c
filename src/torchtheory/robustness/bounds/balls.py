r"""The inputs that bounds are about: a ball, or what of it lies in a box of valid inputs."""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor

from torchtheory.core.checks import as_batch, first_entry
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.robustness.attacks.balls import DUAL_EXPONENTS, Norm, as_norm
from torchtheory.robustness.bounds.relaxations import Box, largest_entries
from torchtheory.robustness.bounds.rounding import (
    LONGEST,
    chain,
    entries,
    gamma,
    products,
    smallest,
)

Limits: TypeAlias = tuple[float | Tensor, float | Tensor]


class Ball:
    r"""$\{x : \|x-x_0\|_p\le r\}$, cut off at a box where there is one, for each of $b$ samples.

    Args:
        center: $x_0$, `[b, ...]`.
        radius: one number, or one per sample; 0 is a point.
        norm: `"inf"`, `"2"` or `"1"`.
        box: least and largest valid input, numbers or tensors that broadcast with a sample; the
            centers must lie in it.
    """

    def __init__(
        self, center: Tensor, radius: float | Tensor, norm: str | float, box: Limits | None = None
    ) -> None:
        center = as_batch(center)
        radii = torch.as_tensor(radius, dtype=torch.float64).detach()
        if radii.shape not in ((), (len(center),)):
            raise ShapeMismatch(
                f"a radius must be one number, or one for each of {len(center)} samples, not "
                f"{list(radii.shape)}"
            )
        if not bool(((radii >= 0) & radii.isfinite()).all()):
            raise InvalidInput(
                f"a radius must be a finite number of at least 0, not {_worst(radii)}"
            )
        self.center, self.norm = center, as_norm(norm)
        self.radius = radii.expand(len(center)).to(center)
        if center.dtype != torch.float64:  # rounded up, never down
            self.radius = torch.nextafter(self.radius, torch.full_like(self.radius, torch.inf))
            self.radius = torch.where(radii.to(center) == 0, 0.0, self.radius)
        self.limited = box is not None
        each = self.radius.reshape(-1, *[1] * (center.ndim - 1))
        lower, upper = (
            torch.where(each > 0, torch.nextafter(end, end.new_tensor(away)), end)
            for end, away in ((center - each, -torch.inf), (center + each, torch.inf))
        )
        if box is not None:
            low, high = (torch.as_tensor(v, dtype=center.dtype, device=center.device) for v in box)
            outside = (center < low) | (center > high)
            if bool(outside.any()):
                raise InvalidInput(
                    "inputs must lie in the box of valid inputs, and "
                    + first_entry(center, "the inputs", outside)
                )
            lower, upper = torch.maximum(lower, low), torch.minimum(upper, high)
        self.entries = Box(lower, upper)

    def __len__(self) -> int:
        return len(self.center)

    def least(self, a: Tensor) -> tuple[Tensor, Tensor]:
        r"""$\min\langle a,x\rangle$ for coefficients `[b, s, ...]` or `[1, s, ...]`, `[b, s]`.

        On the ball it is $\langle a,x_0\rangle-r\|a\|_q$ with the dual norm; in the part of a
        Euclidean or $\ell_1$ ball inside a box the larger of the bounds on the two sets.

        Returns:
            The minimum, less what rounding may do to it here, and its absolute value.
        """
        flat = entries(a)
        x = self.center.flatten(1)
        # what rounding may do to these sums of n numbers is counted as a larger ball
        share = 2 * gamma(chain(flat.shape[2]) + 16, flat.dtype)
        if self.norm == "inf" and not self.limited:
            reach = self.radius + share * (x.abs().amax(1) + self.radius)
            found = products(flat, x) - _dual_norms(flat, self.norm) * reach[:, None]
            return found, found.abs()
        sizes = flat.abs()
        if self.limited:
            lower, upper = (v.flatten(1) for v in self.entries)
            half = (upper - lower) / 2 + share * largest_entries(self.entries).flatten(1)
            within = products(flat, (lower + upper) / 2) - products(sizes, half)
            if self.norm == "inf":
                return within, within.abs()
        size = _dual_norms(flat, self.norm) * (1 + share) * self.radius[:, None]
        free = products(flat, x) - size - products(sizes, share * x.abs())
        if self.limited:
            free = torch.maximum(within, free)
        return free, free.abs()

    def part(self, rows: slice) -> Ball:
        """The balls of some samples."""
        made = object.__new__(Ball)
        made.center, made.norm, made.limited = self.center[rows], self.norm, self.limited
        made.radius = self.radius[rows]
        made.entries = Box(self.entries.lower[rows], self.entries.upper[rows])
        return made


def _dual_norms(flat: Tensor, norm: Norm) -> Tensor:
    """Dual norms `[b, s]` of coefficients `[b, s, n]`, not less than the true ones by underflow."""
    exponent = DUAL_EXPONENTS[norm]
    parts = [
        torch.linalg.vector_norm(part, exponent, dim=2) for part in torch.split(flat, LONGEST, 2)
    ]
    found: Tensor = parts[0]
    if len(parts) > 1:
        found = torch.linalg.vector_norm(torch.stack(parts, 2), exponent, dim=2)
    # squares may vanish, and numbers of which they do have this norm at most
    return found + math.sqrt(flat.shape[2]) * smallest(flat.dtype) if norm == "2" else found


def _worst(radii: Tensor) -> str:
    wrong = ~((radii >= 0) & radii.isfinite())
    return f"{float(radii[wrong].flatten()[0]) if radii.ndim else float(radii):g}"
