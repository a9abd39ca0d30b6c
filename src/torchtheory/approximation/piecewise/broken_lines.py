r"""Every continuous piecewise linear function of one variable is one hidden layer of ReLUs.

With bends at $x_1<\dots<x_{m-1}$ and slopes $s_1,\dots,s_m$,

$$
g(x)=s_1x+b+\sum_{i=1}^{m-1}(s_{i+1}-s_i)\max(x-x_i,0),\qquad b=g(x_1)-s_1x_1,
$$

and the line $s_1x$ costs two more units, $\max(x,0)-\max(-x,0)$. A jump is out of
reach: the function has to be continuous. Source: Deep Learning (notes), Theorem 2.11.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtheory.approximation.network_calculus import chain
from torchtheory.core.checks import all_finite, described
from torchtheory.core.errors import EmptyData, InvalidInput, ShapeMismatch


def broken_line_network(
    knots: Tensor, values: Tensor, left_slope: float, right_slope: float
) -> nn.Sequential:
    r"""The ReLU network that is the broken line through given points, on all of the line.

    Args:
        knots: $x_1<\dots<x_{m-1}$, `[m - 1]`.
        values: $g(x_i)$, `[m - 1]`.
        left_slope: slope before the first knot.
        right_slope: slope after the last one.

    Returns:
        Affine, ReLU, affine, from `[n, 1]` to `[n, 1]`: a unit a knot, and two for the slope
        on the left where it is not 0. `affine_pieces`
        gives the points back.

    >>> tooth = broken_line_network(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 1.0, 0.0]),
    ...                             0.0, 0.0)
    >>> tooth(torch.tensor([[-3.0], [0.5], [1.0], [9.0]])).flatten().tolist()
    [0.0, 0.5, 1.0, 0.0]
    """
    if knots.ndim != 1 or knots.shape != values.shape:
        raise ShapeMismatch(
            f"knots and values are two lists of equal length, not {list(knots.shape)} and "
            f"{list(values.shape)}"
        )
    if len(knots) == 0:
        raise EmptyData(f"a broken line needs at least one knot, not {list(knots.shape)}")
    slopes_given = torch.tensor([left_slope, right_slope], dtype=torch.float64)
    for given, name in ((knots, "knots"), (values, "values"), (slopes_given, "the slopes")):
        all_finite(given, name)
    if bool((knots.diff() <= 0).any()):
        raise InvalidInput(
            "knots must increase strictly: two values at one place would be a jump, and sums of "
            f"ReLUs are continuous (given: {described(knots.tolist())})"
        )
    ends = values.new_tensor([left_slope, right_slope])
    slopes = torch.cat([ends[:1], values.diff() / knots.diff(), ends[1:]])
    weight, bias, out = torch.ones_like(knots), -knots, slopes.diff()
    offset = values[0]
    if left_slope != 0:
        # bent at the first knot, not at 0: no cancellation between far-away numbers
        weight = torch.cat([weight, weight.new_tensor([1.0, -1.0])])
        bias = torch.cat([bias, torch.stack([-knots[0], knots[0]])])
        out = torch.cat([out, out.new_tensor([left_slope, -left_slope])])
    return chain([(weight.unsqueeze(1), bias), (out.unsqueeze(0), offset.reshape(1))], [nn.ReLU()])
