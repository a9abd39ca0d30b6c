r"""Constants of a function, read off a run of gradient descent on it.

What a run shows is never the constant itself but a bound on one side of it, and each estimate says
which: a run that meets curvature 3 shows that $L\ge3$, not that $L=3$.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.errors import InvalidInput
from torchtheory.optimization.certificates.convergence import polyak_lojasiewicz_constant
from torchtheory.optimization.certificates.recorded_runs import RecordedRun

Side = Literal["equal", "at least", "at most", "either side"]
"""Where the true constant lies, seen from the value that is used."""

MET = "met on the run"
"""How a constant is known that was read off the run it is used for."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of a function, and in which direction it may be off.

    Attributes:
        value: the number that is used.
        truth: `equal` for one that is known, `at least` for a lower bound of the true one, `at
            most` for an upper bound, `either side` where nothing is known.
        how: where it comes from, in words.
    """

    value: float
    truth: Side = "equal"
    how: str = "given"

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise InvalidInput(f"a constant must be a finite number, not {self.value!r}")
        if self.truth not in ("equal", "at least", "at most", "either side"):
            raise InvalidInput(f"a constant is not known to be {self.truth!r}")

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        said = {
            "equal": "",
            "at least": "at least ",
            "at most": "at most ",
            "either side": "about ",
        }
        return f"{said[self.truth]}{self.value:.4g} ({self.how})"


def gradients_of_run(run: RecordedRun, step: float) -> Tensor | None:
    r"""$\nabla f(x_k)=(x_k-x_{k+1})/\eta$ of plain gradient descent, `[T - 1, p]`.

    None where points are missing or there are several runs.

    >>> from torchtheory.optimization.certificates.recorded_runs import record_run
    >>> run = record_run([0.5, 0.125], points=torch.tensor([[1.0], [0.5]]))
    >>> gradients_of_run(run, 0.5)
    tensor([[1.]])
    """
    if run.points is None or not run.every_step or run.values.ndim != 1 or len(run.values) < 2:
        return None
    return (run.points[:-1] - run.points[1:]) / step


def gradient_norms_of_run(run: RecordedRun, step: float) -> Tensor | None:
    """The recorded gradient norms, or those the points imply (all but the last), or None."""
    if run.gradient_norms is not None:
        return run.gradient_norms
    slopes = gradients_of_run(run, step)
    return None if slopes is None else slopes.norm(dim=-1)


def smoothness_from_run(run: RecordedRun, step: float) -> Constant | None:
    r"""A lower bound of the smoothness constant $L$, from a run of gradient descent.

    The larger of what the descent inequality needs,
    $L\ge\frac2\eta\bigl(1-\frac{f(x_k)-f(x_{k+1})}{\eta\|\nabla f(x_k)\|^2}\bigr)$, and,
    where points were kept, of $\|\nabla f(x_k)-\nabla f(x_{k+1})\|/\|x_k-x_{k+1}\|$.

    >>> from torchtheory.optimization.descent.iterates import gradient_descent
    >>> from torchtheory.optimization.certificates.recorded_runs import as_recorded
    >>> run = gradient_descent(lambda x: 2 * x.square().sum(-1), torch.ones(1).double(), 0.1, 5)
    >>> found = smoothness_from_run(as_recorded(run), 0.1)
    >>> round(found.value, 9), found.truth
    (4.0, 'at least')
    """
    met = smoothness_met(run, step)
    if met is None or not len(met):
        return None
    largest = float(met.max())
    return Constant(largest, "at least", MET) if largest > 0 else None


def smoothness_met(run: RecordedRun, step: float) -> Tensor | None:
    r"""The lower bound of $L$ that each step shows, `[T - 1]`; see
    `smoothness_from_run`. Steps that rounding decides show nothing and are left at 0."""
    norms = gradient_norms_of_run(run, step)
    if norms is None or not run.every_step or run.values.ndim != 1 or len(run.values) < 2:
        return None
    squares = norms[: len(run.values) - 1].square()
    fall = run.values[:-1] - run.values[1:]
    eps = torch.finfo(run.values.dtype).eps
    noise = 100 * eps * (_size(run.values) + step * squares)
    shown = step * squares > 10 * noise
    met = torch.where(shown, 2 / step * (1 - (fall + noise) / (step * squares)), 0.0)
    slopes = gradients_of_run(run, step)
    if slopes is not None and run.points is not None and len(slopes) > 1:
        moved = run.points.diff(dim=0).norm(dim=-1)[:-1]
        lengths = run.points[:-2].norm(dim=-1)
        quotients = (slopes.diff(dim=0).norm(dim=-1) - 10 * eps * lengths / step) / moved
        clear = moved > 1e5 * eps * lengths
        met[:-1] = met[:-1].maximum(torch.where(clear, quotients, 0.0).to(met))
    return torch.nan_to_num(met, nan=0.0, posinf=0.0).clamp_min(0.0)


def _size(values: Tensor) -> Tensor:
    """What the rounding of each step is relative to: its values, or the first where that is larger
    (small values are often differences of large ones)."""
    return values[:-1].abs().maximum(values[1:].abs()).maximum(values[0].abs())


def convexity_met(run: RecordedRun, step: float) -> Tensor | None:
    r"""The upper bound of the strong convexity $\mu$ that each step shows, `[T - 1]`.

    $\mu\le\frac2{\eta^2\|\nabla f(x_k)\|^2}\bigl(f(x_{k+1})-f(x_k)+ \eta\|\nabla f(x_k)\|^2\bigr)$,
    from the tangent at $x_k$; a negative entry shows that the
    function is not convex. Steps that rounding decides are left at infinity.
    """
    norms = gradient_norms_of_run(run, step)
    if norms is None or not run.every_step or run.values.ndim != 1 or len(run.values) < 2:
        return None
    squares = norms[: len(run.values) - 1].square()
    rise = run.values[1:] - run.values[:-1]
    eps = torch.finfo(run.values.dtype).eps
    noise = 100 * eps * (_size(run.values) + step * squares)
    shown = step * squares > 10 * noise
    bound = 2 * (rise + noise + step * squares) / (step**2 * squares)
    return torch.where(shown & torch.isfinite(bound), bound, torch.inf)


def convexity_from_run(run: RecordedRun, step: float) -> Constant | None:
    r"""An upper bound of the strong convexity constant $\mu$; see `convexity_met`."""
    met = convexity_met(run, step)
    if met is None or not len(met):
        return None
    least = float(met.min())
    return Constant(least, "at most", MET) if 0 < least < math.inf else None


def dominance_from_run(run: RecordedRun, step: float, minimum: Constant) -> Constant | None:
    r"""An upper bound of the Polyak-Łojasiewicz constant: the smallest
    $\|\nabla f(x_k)\|^2/(2(f(x_k)-f^\star))$ of the run.

    Where the minimum that is used lies below the true one the bound may be off on either side.
    """
    norms = gradient_norms_of_run(run, step)
    if norms is None or run.values.ndim != 1:
        return None
    values = run.values[: len(norms)]
    small = 1e4 * torch.finfo(values.dtype).eps * values.abs().maximum(values[0].abs())
    clear = torch.isfinite(values) & (values - minimum.value > small)
    if not bool(clear.any()):
        return None
    found = polyak_lojasiewicz_constant(values[clear], norms[: len(values)][clear], minimum.value)
    truth: Side = "at most" if minimum.truth in ("equal", "at most") else "either side"
    return Constant(found, truth, MET) if found > 0 else None


def minimum_from_run(run: RecordedRun) -> Constant:
    """The smallest value met: the minimum is at most this."""
    finite = run.values[torch.isfinite(run.values)]
    return Constant(float(finite.min()), "at most", MET)
