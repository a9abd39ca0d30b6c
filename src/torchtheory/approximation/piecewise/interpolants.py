r"""Step functions and broken lines as networks with one hidden layer, weights written down.

A $\rho$-Lipschitz function on an interval is met within $\epsilon$ by
$\lceil\rho(b-a)/\epsilon\rceil$ threshold units, and by half as many ReLUs. Source:
Foundations of Deep Learning, Theorem 14.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import nn

from torchtheory.approximation.certificates import Approximant, as_box
from torchtheory.approximation.network_calculus import chain
from torchtheory.approximation.targets import Function, values_of
from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.nets.activations.table import as_layer


def threshold_interpolant(
    function: Function,
    lipschitz: float,
    error: float,
    interval: tuple[float, float] = (0.0, 1.0),
    *,
    value_at: Literal["left", "middle"] = "left",
) -> Approximant:
    r"""A staircase of $m=\lceil\rho(b-a)/\epsilon\rceil$ steps within $\epsilon$.

    With $b_i=a+i\epsilon/\rho$, $a_0=g(b_0)$ and $a_i=g(b_i)-g(b_{i-1})$,

    $$
    f(x)=\sum_{i=0}^{m-1}a_i\,\mathbf 1[x\ge b_i].
    $$

    Hidden weights 1, hidden biases $-b_i$, output weights $a_i$, no output bias.
    On each step the function leaves its value at the left end by at most
    $\rho\cdot\epsilon/\rho$. Values in the middle of each step halve the error.

    Args:
        function: $g$, of one variable.
        lipschitz: $\rho$ on the interval; the bound is wrong if it is too small.
        error: $\epsilon$.
        value_at: where on a step the function is met.

    >>> line = threshold_interpolant(lambda x: 4 * x, lipschitz=4.0, error=1.0)
    >>> line(torch.tensor([0.0, 0.24, 0.25, 1.0], dtype=torch.float64)).tolist()
    [0.0, 0.0, 1.0, 3.0]
    >>> line.size.units, line.bound
    (4, 1.0)
    """
    positive_number(lipschitz, "lipschitz")
    positive_number(error, "error")
    if value_at not in ("left", "middle"):
        raise InvalidInput(f"value_at is 'left' or 'middle', not {value_at!r}")
    ((low, high),) = box = as_box(interval)
    steps = math.ceil(lipschitz * (high - low) / error)
    starts = low + torch.arange(steps, dtype=torch.float64) * (error / lipschitz)
    met = starts
    if value_at == "middle":
        met = (starts + torch.cat([starts[1:], starts.new_tensor([high])])) / 2
    values = values_of(function, met.unsqueeze(1))
    jumps = torch.cat([values[:1], values.diff()])
    network = chain(
        [(torch.ones(steps, 1).double(), -starts), (jumps.unsqueeze(0), starts.new_zeros(1))],
        [as_layer("closed heaviside")],
    )
    bound = error if value_at == "left" else error / 2
    return Approximant(network, bound, box, "L-071")


def relu_interpolant(
    function: Function,
    pieces: int,
    interval: tuple[float, float] = (0.0, 1.0),
    *,
    lipschitz: float = math.inf,
    curvature: float = math.inf,
) -> Approximant:
    r"""The broken line through `pieces + 1` equally spaced values of a function, as ReLUs.

    Between two knots of distance $h$ the broken line errs by at most $\rho h/2$ where
    $g$ is $\rho$-Lipschitz, and by at most $Mh^2/8$ where
    $|g''|\le M$; the bound is the smaller of the two. Unit $i$ is
    $\max(x-x_i,0)$ and its output weight the change of slope at $x_i$.

    >>> tent = relu_interpolant(lambda x: (x - 0.5).abs(), 2, lipschitz=1.0)
    >>> tent(torch.tensor([0.0, 0.25, 1.0], dtype=torch.float64)).tolist(), tent.bound
    ([0.5, 0.25, 0.5], 0.25)
    """
    whole_number(pieces, "pieces", least=1)
    ((low, high),) = box = as_box(interval)
    if not (lipschitz > 0 and curvature > 0) or math.isinf(min(lipschitz, curvature)):
        raise InvalidInput(
            "a bound needs the Lipschitz constant or a bound of the curvature, > 0 (lipschitz = "
            f"{lipschitz!r}, curvature = {curvature!r})"
        )
    knots = torch.linspace(low, high, pieces + 1, dtype=torch.float64)
    values = values_of(function, knots.unsqueeze(1))
    slopes = values.diff() / knots.diff()
    bends = torch.cat([slopes[:1], slopes.diff()])
    network = chain(
        [(torch.ones(pieces, 1).double(), -knots[:-1]), (bends.unsqueeze(0), values[:1])],
        [nn.ReLU()],
    )
    h = (high - low) / pieces
    bound = min(lipschitz * h / 2, curvature * h * h / 8)
    return Approximant(network, bound, box, "L-071")
