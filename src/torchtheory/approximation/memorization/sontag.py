r"""Twice as many points as neurons: Sontag's interpolation by sigmoidal units.

$2N+1$ points on the line need only $N+1$ units. A multiple of $x$ makes the
values increase; each of $N$ steep units then climbs through three points at once, and the
last unit, used where it is nearly straight, takes the multiple of $x$ away again. Source:
Mathematical Aspects of Deep Learning, section 3.2.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.approximation.network_calculus import chain
from torchtheory.core.checks import all_finite, positive_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnknownName
from torchtheory.nets.activations.table import as_layer


@dataclass(frozen=True, slots=True)
class SontagInterpolant:
    r"""A network of $N+1$ sigmoidal units near $2N+1$ points.

    Attributes:
        network: from `[n, 1]` to `[n, 1]`.
        bound: the promised $\max_i|\Phi(x_i)-y_i|$, rounding left aside.
        residual: the measured one.
        tilt: $A$, the multiple of $x$ that makes the values increase.
        steepness: $B$ of the steps.
        step: $h$ of the nearly straight unit.
    """

    network: nn.Sequential
    bound: float
    residual: float
    tilt: float
    steepness: float
    step: float

    @property
    def units(self) -> int:
        first = self.network[0]
        assert isinstance(first, nn.Linear)
        return first.out_features


def sontag_interpolant(
    x: Tensor,
    y: Tensor,
    error: float,
    *,
    activation: Literal["logistic", "tanh"] = "logistic",
) -> SontagInterpolant:
    r"""The network of $N+1$ units with $\max_i|\Phi(x_i)-y_i|\le\epsilon$.

    With sorted $x_i$, $z_i=y_i+Ax_i$ strictly increasing,
    $c_i=z_{2i+1}-z_{2i-1}$, $v_i=(z_{2i}-z_{2i-1})/c_i$ and
    $\sigma(u_i)=v_i$,

    $$
    \Phi(x)=z_1+\sum_{i=1}^Nc_i\,\sigma\bigl(B(x-x_{2i})+u_i\bigr)
    -A\,\frac{\sigma(hx)-\sigma(0)}{h\,\sigma'(0)}.
    $$

    For the logistic function a step misses 0 or 1 by at most $e^{-(Bg-|u_i|)}$ at a
    distance $g$, and the last term misses $Ax$ by at most $Ah^2|x|^3/12$;
    $B$ and $h$ are chosen so that each part is at most $\epsilon/2$. The points
    are centered first. $\tanh(z/2)=2\sigma(z)-1$ gives the same network in tanh.

    Args:
        x: `[2N + 1]`, all different.
        y: `[2N + 1]`.
        error: $\epsilon$.

    >>> x, y = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 1.0, 0.0])
    >>> made = sontag_interpolant(x, y, 1e-3)
    >>> made.units, made.residual < 1e-3
    (2, True)
    """
    positive_number(error, "error")
    if activation not in ("logistic", "tanh"):
        raise UnknownName("sigmoidal activation", activation, ["logistic", "tanh"])
    if x.ndim != 1 or x.shape != y.shape or len(x) < 3 or len(x) % 2 == 0:
        raise ShapeMismatch(
            "an odd number of points is needed, x [2N + 1] and y [2N + 1], N >= 1 (x is "
            f"{list(x.shape)}, y is {list(y.shape)})"
        )
    given, values = x.double(), y.double()
    all_finite(given, "x")
    all_finite(values, "y")
    given, order = given.sort()
    values = values[order]
    gaps = given.diff()
    if not bool((gaps > 0).all()):
        same = float(given[int((~(gaps > 0)).nonzero()[0])])
        raise InvalidInput(
            f"two points have the same x = {same:g}: no function has two values there"
        )
    center = (given[0] + given[-1]) / 2
    t = given - center
    # twice the steepest descent keeps every step of z between A/2 and 3A/2 times the gap
    least = error / float(t[-1] - t[0])  # for values that do not vary at all
    tilt = 2 * max(float((values.diff() / gaps).abs().max()), least)
    z = values + tilt * t
    heights = z[2::2] - z[:-2:2]
    u = torch.logit((z[1::2] - z[:-2:2]) / heights)
    total = float(heights.sum())
    steepness = (float(u.abs().max()) + math.log(2 * total / error)) / float(gaps.min())
    step = math.sqrt(6 * error / (tilt * float(t.abs().max()) ** 3))
    weight = torch.cat([torch.full_like(u, steepness), t.new_tensor([step])])
    bias = torch.cat([u - steepness * given[1::2], -t.new_tensor([step]) * center])
    output = torch.cat([heights, t.new_tensor([-4 * tilt / step])])
    shift = z[0] + 2 * tilt / step
    if activation == "tanh":
        weight, bias = weight / 2, bias / 2
        shift = shift + output.sum() / 2
        output = output / 2
    maps = [(weight.unsqueeze(1), bias), (output.unsqueeze(0), shift.reshape(1))]
    network = chain(maps, [as_layer(activation)])
    residual = float((network(given.unsqueeze(1))[:, 0] - values).abs().max())
    return SontagInterpolant(network, error, residual, tilt, steepness, step)
