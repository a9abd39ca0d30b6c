r"""Networks for cartoon-like functions: hats for what is smooth, horizon patches for the jump.

A curve of smoothness $n\in\{1,2\}$ is followed by a polygon of $m$ sides within an area
$O(m^{-n})$, so the $L_2$ error is $O(m^{-n/2})$ with $M=O(m)$ weights, and
no method with encodable weights does better. Source: The Modern Mathematics of Deep Learning,
section 3.5 (the exponent $\gamma^*=2/n$).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchtheory.approximation.dictionaries.cartoons import Cartoon
from torchtheory.approximation.dictionaries.horizons import gated_network, indicator_network
from torchtheory.approximation.network_calculus import combine
from torchtheory.approximation.piecewise.boxes import cell_centers
from torchtheory.approximation.piecewise.hats import hat_interpolant
from torchtheory.approximation.targets import Function, values_of
from torchtheory.core.checks import whole_number

_SQUARE = ((0.0, 1.0), (0.0, 1.0))

#: Angles per side at which a polygon is held against its curve.
_ANGLES = 64


def cartoon_network(drawing: Cartoon, sides: int) -> nn.Sequential:
    r"""A ReLU network for $f_1+\mathbf 1_Bf_2$ with $O(m)$ weights.

    $B$ becomes a polygon with `sides` sides and ramps of width $m^{-n}/100$; the
    smooth parts become hats on a mesh with about $m$ nodes; one ReLU gates $f_2$.

    >>> from torchtheory.approximation.dictionaries.cartoons import cartoon
    >>> drawing = cartoon(2, generator=0)
    >>> net = cartoon_network(drawing, 32)
    >>> x = torch.tensor([[0.5, 0.5], [0.05, 0.05]]).double()
    >>> bool((net(x)[:, 0] - drawing(x)).abs().max() < 0.05)
    True
    """
    whole_number(sides, "sides", least=8)
    delta = float(sides) ** -drawing.smoothness / 100
    gate = indicator_network(drawing.polygon(sides), drawing.center, delta)
    cells = math.ceil(math.sqrt(sides))
    parts = []
    for part in (drawing.background, drawing.inside):
        made = hat_interpolant(part, cells, _SQUARE, curvature=2 * part.derivative_bound(2))
        assert isinstance(made.network, nn.Sequential)
        parts.append(made.network)
    # one network within the other's bounds: interpolants stay within the values they meet
    inside = gated_network(gate, parts[1], drawing.inside.derivative_bound(0))
    return combine([1.0, 1.0], [parts[0], inside])


def cartoon_error(
    drawing: Cartoon, approximation: Function, width: float, *, points: int = 64
) -> float:
    r"""The $L_2([0,1]^2)$ distance, with polar coordinates where the jump is.

    The band of half-width `width` around the curve is integrated by the midpoint rule in angle
    and radius, the rest by that of `points` squared cells: what happens in a thin band is not
    left to the few pixels that meet it.

    Args:
        approximation: from `[n, 2]` to `[n]`.
        width: at least the distance of the polygon to the curve, and ramps.
        points: cells a side; the band gets 32 times as many angles and 8 radii.

    >>> from torchtheory.approximation.dictionaries.cartoons import cartoon
    >>> drawing = cartoon(2, generator=0)
    >>> cartoon_error(drawing, drawing, 0.01)
    0.0
    """
    whole_number(points, "points", least=2)
    x = cell_centers(_SQUARE, points)
    away = x - drawing.center
    angle = torch.atan2(away[:, 1], away[:, 0])
    radius = away.norm(dim=1)
    outside = (radius - drawing.radius(angle.unsqueeze(1))).abs() > width
    total = _squares(drawing, approximation, x[outside]).sum() / points**2
    angles = (torch.arange(32 * points, dtype=torch.float64) + 0.5) * 2 * math.pi / (32 * points)
    offsets = (torch.arange(8, dtype=torch.float64) + 0.5) / 4 - 1
    r = drawing.radius(angles.unsqueeze(1)).unsqueeze(1) + width * offsets
    direction = torch.stack([torch.cos(angles), torch.sin(angles)], 1)
    band = drawing.center + r.unsqueeze(2) * direction.unsqueeze(1)
    inside = _squares(drawing, approximation, band.reshape(-1, 2)).reshape(r.shape)
    cell = (2 * math.pi / len(angles)) * (2 * width / len(offsets))
    return float((total + (inside * r).sum() * cell).sqrt())


def polygon_distance(drawing: Cartoon, sides: int) -> float:
    """The largest difference of the curve's radius and the polygon's, on 64 angles per side.

    >>> from torchtheory.approximation.dictionaries.cartoons import cartoon
    >>> drawing = cartoon(2, generator=0)
    >>> polygon_distance(drawing, 64) < polygon_distance(drawing, 16)
    True
    """
    a = drawing.polygon(sides) - drawing.center
    edge = a.roll(-1, 0) - a
    fraction = (torch.arange(_ANGLES, dtype=torch.float64) + 0.5) / _ANGLES
    angle = 2 * math.pi * (torch.arange(sides, dtype=torch.float64).unsqueeze(1) + fraction) / sides
    direction = torch.stack([torch.cos(angle), torch.sin(angle)], 2)
    # the ray t·u meets the side a + s·e where t = (a x e) / (u x e)
    across = (a[:, 0] * edge[:, 1] - a[:, 1] * edge[:, 0]).unsqueeze(1)
    along = direction[..., 0] * edge[:, 1:] - direction[..., 1] * edge[:, :1]
    radius = drawing.radius(angle.reshape(-1, 1)).reshape(angle.shape)
    return float((across / along - radius).abs().max())


def _squares(f: Function, g: Function, x: Tensor) -> Tensor:
    parts = [x[i : i + (1 << 14)] for i in range(0, len(x), 1 << 14)]
    return torch.cat([(values_of(f, part) - values_of(g, part)) ** 2 for part in parts])
