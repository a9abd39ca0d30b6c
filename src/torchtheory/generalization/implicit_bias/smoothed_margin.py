r"""The smoothed margin, and gradient flow as its steepest ascent.

With margins $q_i(\theta)$ and the risk $r(\theta)=\frac1m\sum_ie^{-q_i}$, the smoothed
margin $r_1=-\log r$ grows along gradient flow of the risk, and its own gradient flow
$\dot\theta=\nabla r_1=-\nabla r/r$ runs through the same curve faster. Here the curve is
parametrized by the level $s=-\log r$ it has reached,

$$
\frac{d\theta}{ds}=\frac{\nabla r_1(\theta)}{\|\nabla r_1(\theta)\|^2},
$$

whose right-hand side changes on a scale of order 1 in $s$ for networks of any degree of
homogeneity: a risk of $e^{-1000}$, which gradient flow reaches after about $e^{1000}$
units of time, costs a few hundred gradients.
Source: Mathematical Aspects of Deep Learning, section 1.2.3, Eq. (1.26); Foundations of Deep
Learning, section 11.1.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from scipy.integrate import solve_ivp
from torch import Tensor

from torchtheory.core.checks import all_finite, described, positive_number
from torchtheory.core.errors import InvalidInput, NotConverged, ShapeMismatch
from torchtheory.nets.homogeneity import Margins

Loss = Literal["exponential", "logistic"]


def smoothed_minimum(margins: Tensor, beta: float = 1.0) -> Tensor:
    r"""$r_\beta=-\frac1\beta\log\bigl(\frac1m\sum_ie^{-\beta q_i}\bigr)$, over the last axis.

    For a linear model $-\log(r(\beta\theta))/\beta$. It lies between the smallest margin and
    that plus $\log(m)/\beta$.

    >>> smoothed_minimum(torch.tensor([1.0, 1.0]), 3.0)
    tensor(1.)
    """
    positive_number(beta, "beta")
    if margins.ndim == 0 or margins.shape[-1] == 0:
        raise ShapeMismatch(f"there must be at least one margin, not {list(margins.shape)}")
    return -(torch.logsumexp(-beta * margins, -1) - math.log(margins.shape[-1])) / beta


def growing_margin(
    margins: Tensor, norms: Tensor | float, degree: float, *, loss: Loss = "exponential"
) -> Tensor:
    r"""$\tilde\gamma=\ell^{-1}(\mathcal L)/\|\theta\|^L$, which gradient flow never lowers.

    With the *sum* $\mathcal L=\sum_i\ell(q_i)$ it is at most the normalized margin
    $\min_iq_i/\|\theta\|^L$, and for a network homogeneous of degree $L$ it does not
    fall once $\mathcal L<\ell(0)$ (Lyu and Li), which is when it is positive.

    Args:
        margins: `[..., m]`.
        norms: $\|\theta\|$, `[...]`.
        degree: $L$.

    >>> growing_margin(torch.tensor([3.0]), 2.0, 1.0), growing_margin(torch.tensor([3.0]), 2.0, 1.0,
    ...                                                               loss="logistic")
    (tensor(1.5000), tensor(1.5000))
    """
    positive_number(degree, "the degree")
    level = -torch.logsumexp(_log_loss(margins, loss), -1)  # -log of the summed loss
    if loss == "logistic":
        # the inverse of log(1 + e^{-u}) at e^{-level}; for large levels it is the level itself
        total = torch.exp(-level.clamp(max=30))
        level = torch.where(level > 30, level, -torch.log(torch.expm1(total)))
    return level / norms**degree


@dataclass(frozen=True, slots=True)
class MarginCurve:
    r"""The curve of gradient flow, at the points where the risk is $e^{-s}$.

    Attributes:
        levels: $s=-\log r$, `[T]`.
        points: $\theta$, `[T, p]`.
        margins: $q_i$, `[T, m]`.
        margin_times: when the flow of the smoothed margin, $\dot\theta=\nabla r_1$, is there.
        log_risk_times: logarithm of the time when $\dot\theta=-\nabla r$ is there.
        evaluations: of the right-hand side, one gradient each.
    """

    levels: Tensor
    points: Tensor
    margins: Tensor
    margin_times: Tensor
    log_risk_times: Tensor
    evaluations: int

    @property
    def norms(self) -> Tensor:
        r"""$\|\theta\|$, `[T]`."""
        lengths: Tensor = torch.linalg.vector_norm(self.points, dim=1)
        return lengths


def follow_margin(
    margins: Margins,
    start: Tensor,
    levels: Tensor | Sequence[float],
    *,
    loss: Loss = "exponential",
    rtol: float = 1e-8,
    most: int = 20_000,
) -> MarginCurve:
    r"""Follow gradient flow of the mean loss $r$ to the points where $-\log r=s$.

    Scipy's LSODA, which changes to an implicit method where that pays, in the level $s$; all
    in double precision. The clocks of the two flows are integrated along,
    $\frac{dt_1}{ds}=\|\nabla r_1\|^{-2}$ and $\frac{dt}{ds}=e^s\|\nabla r_1\|^{-2}$.
    About ten gradients a unit of $s$ at first and few later; each time the implicit method
    rebuilds its matrix it takes $p$ of them, so this is for small networks.

    Args:
        margins: $\theta\mapsto(q_i)_i$, `[p]` to `[m]`, differentiable.
        start: `[p]`, double precision.
        levels: increasing, the first not below the level of the start.
        loss: of a margin; `logistic` is $\log(1+e^{-q})$.
        rtol: relative error of a step.
        most: gradients that are computed before the attempt is given up.

    Raises:
        NotConverged: where the risk has a critical point on the way, so that a level is not met; or
            where the flow slides along a kink (the boundary of a ReLU stays on a sample), which no
            solver for smooth equations follows.

    >>> curve = follow_margin(lambda w: w, torch.zeros(1).double(), [0.0, 5.0])      # r = e^{-θ}
    >>> curve.points.flatten(), curve.log_risk_times[1].exp()                  # t = e^θ - 1
    (tensor([0.0000, 5.0000], dtype=torch.float64), tensor(147.4132, dtype=torch.float64))
    """
    if start.ndim != 1 or start.dtype != torch.float64 or start.numel() == 0:
        raise ShapeMismatch(
            f"the start must be one vector in double precision, not {described(start)}"
        )
    all_finite(start, "the start")
    heights = torch.as_tensor(levels, dtype=torch.float64)
    if heights.ndim != 1 or not len(heights) or not bool(torch.isfinite(heights).all()):
        raise ShapeMismatch(
            f"levels must be one row of finite numbers, not {described(heights.tolist())}"
        )
    begin = float(_level(margins(start.detach()).reshape(-1), loss).detach())
    if float(heights[0]) < begin - 1e-12 or bool((heights.diff() <= 0).any()):
        raise InvalidInput(f"levels must increase from the start's own, {begin:.6g}, or above")

    count = 0

    def velocity(s: float, state: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        nonlocal count
        count += 1
        if count > most:
            raise NotConverged(
                f"the flow was given up at level {s:.4g} after {most} gradients: it comes to rest "
                "there, or it slides along a kink of the network"
            )
        # the last coordinates are the clocks t_1 and log(e^{s_0} + t)
        theta = torch.from_numpy(state[:-2].copy()).requires_grad_()
        (slope,) = torch.autograd.grad(_level(margins(theta).reshape(-1), loss), theta)
        square = max(float(slope @ slope), 1e-300)
        clocks = [1 / square, math.exp(min(s - state[-1], 700.0)) / square]
        return np.append(slope.numpy() / square, clocks)

    end = max(float(heights[-1]), begin)
    if end > begin:
        found = solve_ivp(
            velocity,
            (begin, end),
            np.append(start.detach().numpy(), [0.0, begin]),
            method="LSODA",
            t_eval=heights.clamp(min=begin).numpy(),
            rtol=rtol,
            atol=1e-10,
        )
        if not found.success:
            raise NotConverged(f"the flow was not followed to the end: {found.message}")
        states = torch.from_numpy(found.y.T.copy())
    else:
        states = torch.cat([start.detach(), start.new_tensor([0.0, begin])])[None]
    points = states[:, :-2]
    with torch.no_grad():
        reached = torch.stack([margins(theta).reshape(-1) for theta in points])
    missed = (_level(reached, loss) - heights).abs() / heights.abs().clamp(min=1)
    if not bool((missed < 1e-3).all()):
        k = int((~(missed < 1e-3)).nonzero()[0])
        raise NotConverged(
            f"the level {float(heights[k]):.4g} was not met: the flow comes to rest at a risk of "
            "about that size, or the network has a kink there that it follows"
        )
    clock = states[:, -1]
    return MarginCurve(
        heights,
        points,
        reached,
        states[:, -2],
        clock + torch.log(-torch.expm1(begin - clock)),
        count,
    )


def _log_loss(margins: Tensor, loss: Loss) -> Tensor:
    r"""$\log\ell(q)$, accurate where $\ell$ underflows."""
    if loss == "exponential":
        return -margins
    if loss != "logistic":
        raise InvalidInput(f"loss must be 'exponential' or 'logistic', not {loss!r}")
    small = torch.log(F.softplus(-margins.clamp(max=30)))
    return torch.where(margins > 30, -margins - torch.exp(-margins) / 2, small)


def _level(margins: Tensor, loss: Loss) -> Tensor:
    """-log of the mean loss over the last axis."""
    return math.log(margins.shape[-1]) - torch.logsumexp(_log_loss(margins, loss), -1)
