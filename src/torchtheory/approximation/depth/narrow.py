r"""How narrow a ReLU network may be: $d+1$ units a layer suffice, $d$ do not.

A string of maxima and minima of affine functions is exactly a network of width $d+1$: the
inputs are carried along in $d$ units and one more holds
$\max(y,\ell)=\ell+\varrho(y-\ell)$ or $\min(y,\ell)=\ell-\varrho(\ell-y)$. A network
all of whose hidden layers have at most $d$ units never rises along some path from any point
to infinity (`level_path`), so it cannot come close to $|x|^2$. Source: Mathematical
Aspects of Deep Learning, section 3.3 (Hanin and Sellke; Lu et al.).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import (
    Approximant,
    Box,
    as_box,
    box_grid,
)
from torchtheory.approximation.network_calculus import chain
from torchtheory.approximation.targets import evaluate, values_of
from torchtheory.core.checks import described, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnknownName, UnsupportedModel
from torchtheory.expressivity.bounds import most_pieces
from torchtheory.nets.feedforward import affine_layers

Operation = Literal["max", "min"]
Space = Literal["continuous on a cube", "integrable"]


def max_min_string(
    operations: Sequence[Operation], weight: Tensor, bias: Tensor, x: Tensor
) -> Tensor:
    r"""$o_{m-1}(\dots o_1(\ell_1,\ell_2)\dots,\ell_m)$ of $\ell_i(x)=w_i\cdot x+b_i$.

    Args:
        operations: $m-1$ times `"max"` or `"min"`.
        weight, bias: `[m, d]` and `[m]`.
        x: `[n, d]`.

    >>> hat = torch.tensor([[1.0], [-1.0]]), torch.tensor([0.0, 1.0])
    >>> max_min_string(["min"], *hat, torch.tensor([[0.5], [1.0]])).tolist()
    [0.5, 0.0]
    """
    _check_string(operations, weight, bias)
    lines = x @ weight.T + bias
    value = lines[:, 0]
    for i, operation in enumerate(operations, 1):
        larger = operation == "max"
        value = (torch.maximum if larger else torch.minimum)(value, lines[:, i])
    return value


def max_min_network(
    operations: Sequence[Operation],
    weight: Tensor,
    bias: Tensor,
    domain: Sequence[tuple[float, float]] | tuple[float, float],
) -> nn.Sequential:
    r"""A string of $m$ affine functions as $m-1$ hidden layers of width $d+1$.

    Exact on the box: coordinate $i$ is carried as $\varrho(x_i-a_i)=x_i-a_i$.

    Args:
        operations, weight, bias: as of `max_min_string`.
        domain: the box.

    >>> hat = torch.tensor([[1.0], [-1.0]]).double(), torch.tensor([0.0, 1.0]).double()
    >>> max_min_network(["min"], *hat, (0.0, 1.0))(torch.tensor([[0.25], [0.75]]).double()).tolist()
    [[0.25], [0.25]]
    """
    _check_string(operations, weight, bias)
    box = as_box(domain)
    d = weight.shape[1]
    if len(box) != d:
        raise ShapeMismatch(f"the lines have {d} variables and the box {len(box)} dimensions")
    low = weight.new_tensor([a for a, _ in box])
    offset = bias + weight @ low  # the lines in terms of u = x - a
    eye, one = torch.eye(d).to(weight), weight.new_ones(1, 1)
    # y = read . (u, h) + shift; at first there is no h
    read, shift = weight[:1], offset[:1]
    maps = []
    for i, operation in enumerate(operations, 1):
        sign = 1.0 if operation == "max" else -1.0
        line = torch.cat([weight[i : i + 1], weight.new_zeros(1, len(read[0]) - d)], dim=1)
        unit, unit_bias = sign * (read - line), sign * (shift - offset[i])
        keep = torch.cat([eye, weight.new_zeros(d, len(read[0]) - d)], dim=1)
        into = torch.cat([keep, unit])
        into_bias = torch.cat([weight.new_zeros(d), unit_bias])
        if i == 1:
            into_bias = into_bias - into @ low
        maps.append((into, into_bias))
        read, shift = torch.cat([weight[i : i + 1], sign * one], dim=1), offset[i : i + 1]
    last = (read, shift if maps else shift - read @ low)
    return chain([*maps, last], [nn.ReLU() for _ in maps])


def narrow_broken_line(knots: Tensor, values: Tensor) -> nn.Sequential:
    r"""A broken line on an interval, exactly, by hidden layers of two units.

    One unit carries $u_k=\varrho(u_{k-1}-(t_k-t_{k-1}))=\varrho(x-t_k)$, the other the sum
    so far, $s_{k+1}=\varrho(s_k+c_ku_k)$, shifted so that it stays positive.

    Args:
        knots: `[p + 1]`, increasing; the network is the broken line between the first and last.
        values: `[p + 1]`.

    Returns:
        A network with $p-1$ hidden layers for $p$ pieces.

    >>> tent = narrow_broken_line(torch.tensor([0.0, 0.5, 1.0]), torch.tensor([0.0, 1.0, 0.0]))
    >>> tent(torch.tensor([[0.25], [0.5], [1.0]]).double()).flatten().tolist()
    [0.5, 1.0, 0.0]
    """
    if knots.ndim != 1 or knots.shape != values.shape or len(knots) < 2:
        raise ShapeMismatch(
            "a broken line has as many knots [p + 1] as values, at least two (knots is "
            f"{list(knots.shape)}, values is {list(values.shape)})"
        )
    t, y = knots.double(), values.double()
    if not bool((t.diff() > 0).all()):
        raise InvalidInput(f"the knots of a broken line increase, not {described(t.tolist())}")
    slopes = y.diff() / t.diff()
    bends = slopes.diff()
    # every partial sum is a line beyond its last kink, so its least value is at a knot or the end
    least = torch.minimum(y[:-1], y[:-1] + slopes * (t[-1] - t[:-1])).min()
    shift = 1 - least
    start, first = t[:1], slopes[:1]
    maps, breaks = [], t[1:-1]
    for k in range(len(breaks)):
        if k == 0:
            into = torch.stack([torch.ones_like(first), first])
            maps.append((into, torch.cat([-breaks[:1], y[:1] + shift - first * start])))
        else:
            into = torch.stack(
                [t.new_tensor([1.0, 0.0]), torch.stack([bends[k - 1], t.new_ones(())])]
            )
            maps.append((into, torch.stack([breaks[k - 1] - breaks[k], t.new_zeros(())])))
    if not maps:
        return chain([(first.reshape(1, 1), y[:1] - first * start)], [])
    last = torch.stack([bends[-1], t.new_ones(())]).unsqueeze(0)
    return chain([*maps, (last, -shift.reshape(1))], [nn.ReLU() for _ in maps])


def tangent_network(
    function: Callable[[Tensor], Tensor],
    curvature: float,
    cells: int,
    domain: Sequence[tuple[float, float]] | tuple[float, float],
) -> Approximant:
    r"""A convex function as the largest of its tangents: width $d+1$ and any precision.

    Tangents touch at the centers $c$ of `cells` $^d$ cells. Where the Hessian is at
    most $M$ (as an operator), the error at $x$ is at most
    $\tfrac M2|x-c|^2\le\tfrac M2\cdot\tfrac14\sum_jh_j^2$, $h$ the sides of a cell.

    Args:
        function: convex and differentiable, from `[n, d]` to `[n]`.
        curvature: $M$.

    >>> bowl = tangent_network(lambda x: x.square().sum(-1), 2.0, 3, ((-1.0, 1.0), (-1.0, 1.0)))
    >>> bowl.size.width, bowl.size.depth, round(bowl.bound, 4)
    (3, 9, 0.2222)
    """
    positive_number(curvature, "curvature")
    whole_number(cells, "cells", least=1)
    box: Box = as_box(domain)
    sides = [(b - a) / cells for a, b in box]
    inner: Box = tuple((a + h / 2, b - h / 2) for (a, b), h in zip(box, sides, strict=True))
    centers = (
        box_grid(inner, cells)
        if cells > 1
        else torch.tensor([[(a + b) / 2 for a, b in box]], dtype=torch.float64)
    )
    with torch.enable_grad():
        at = centers.clone().requires_grad_()
        made = evaluate(function, at)
        (gradient,) = torch.autograd.grad(made.sum(), at)
    bias = values_of(function, centers) - (gradient * centers).sum(1)
    operations: list[Operation] = ["max"] * (len(centers) - 1)
    network = max_min_network(operations, gradient, bias, box)
    return Approximant(network, curvature / 8 * sum(h * h for h in sides), box, "X-24")


def level_path(network: nn.Sequential, start: Tensor) -> tuple[Tensor, Tensor]:
    r"""A path from a point to infinity on which a narrow ReLU network never rises.

    All hidden layers have at most $d$ units, $d$ the inputs. As long as every unit is
    active and every matrix invertible the network is an affine bijection; the path starts in a
    direction in which the first layer that is neither (or the last) gives nothing or falls. Where
    it meets the kink of a unit $j$ of an earlier layer it turns to the direction that only
    lowers that unit, so that nothing behind it changes any more.

    Args:
        network: affine, ReLU, ..., affine with one output.
        start: `[d]`.

    Returns:
        The corners `[c, d]` of the path, the start first, and the direction `[d]` of the ray
        it ends in.

    >>> net = chain([(torch.eye(2), torch.ones(2)), (torch.ones(1, 2), torch.zeros(1))],
    ...             [nn.ReLU()])
    >>> corners, ray = level_path(net, torch.zeros(2))
    >>> along = net(torch.stack([corners[0], corners[-1], corners[-1] + ray])).flatten()
    >>> [round(v, 5) for v in along.tolist()]
    [2.0, 0.0, 0.0]
    """
    maps, between = affine_layers(network)
    d = maps[0][0].shape[1]
    if not all(isinstance(m, nn.ReLU) for m in between):
        raise UnsupportedModel(
            "paths of constant value are known of ReLU networks only, not "
            f"{', '.join(sorted({type(m).__name__ for m in between}))}"
        )
    if len(maps[-1][0]) != 1:
        raise UnsupportedModel(f"a network with one output is needed, not {len(maps[-1][0])}")
    if any(len(weight) > d for weight, _ in maps[:-1]):
        raise UnsupportedModel(f"every hidden layer must have at most {d} units, as many as inputs")
    if start.shape != (d,):
        raise ShapeMismatch(f"the start must be [{d}], not {list(start.shape)}")
    # the layers that are bijections near the start: pre-activations M_k x + c_k
    forms: list[tuple[Tensor, Tensor]] = []
    matrix, shift = torch.eye(d).to(start), torch.zeros_like(start)
    direction: Tensor | None = None
    for weight, bias in maps[:-1]:
        if len(weight) < d or int(torch.linalg.matrix_rank(weight)) < d:
            kernel = torch.linalg.svd(weight, full_matrices=True).Vh[-1]
            direction = torch.linalg.solve(matrix, kernel)
            break
        matrix, shift = weight @ matrix, weight @ shift + bias
        asleep = (matrix @ start + shift <= 0).nonzero()
        if len(asleep):
            lower = torch.zeros_like(start).index_fill(0, asleep[0], -1.0)
            direction = torch.linalg.solve(matrix, lower)
            break
        forms.append((matrix, shift))
    if direction is None:
        slope = (maps[-1][0] @ matrix)[0]
        direction = -slope if bool(slope.any()) else torch.eye(d).to(start)[0]
    direction = direction / direction.norm()
    corners = [start]
    while True:
        meeting = _first_kink(forms, corners[-1], direction)
        if meeting is None:
            return torch.stack(corners), direction
        time, layer, unit = meeting
        corners.append(corners[-1] + time * direction)
        lower = torch.zeros_like(start)
        lower[unit] = -1.0
        direction = torch.linalg.solve(forms[layer][0], lower)
        direction = direction / direction.norm()
        forms = forms[:layer]


def _first_kink(
    forms: list[tuple[Tensor, Tensor]], point: Tensor, direction: Tensor
) -> tuple[float, int, int] | None:
    """When, in which layer and at which unit the ray first meets a kink."""
    best: tuple[float, int, int] | None = None
    for layer, (matrix, shift) in enumerate(forms):
        value, speed = matrix @ point + shift, matrix @ direction
        times = torch.where(speed < 0, value.clamp(min=0) / -speed, torch.inf)
        unit = int(times.argmin())
        if bool(times[unit].isfinite()) and (best is None or float(times[unit]) < best[0]):
            best = float(times[unit]), layer, unit
    return best


def sphere_witness(network: nn.Sequential) -> Tensor:
    r"""A point $|x|=1$ with $g(x)\le g(0)$, for a ReLU network no wider than its input.

    So $\max(|g(0)-0|,|g(x)-1|)\ge1/2$: no such network is closer to $|x|^2$ than
    $1/2$ on the unit ball. It lies on the `level_path` from 0.

    >>> from torchtheory.nets.feedforward import mlp
    >>> net = mlp([3, 3, 3, 1], generator=0)
    >>> x = sphere_witness(net)
    >>> round(float(x.norm()), 9), bool(net(x) <= net(torch.zeros_like(x)) + 1e-12)
    (1.0, True)
    """
    first = affine_layers(network)[0][0][0]
    corners, ray = level_path(network, first.new_zeros(first.shape[1]))
    outside = (corners.norm(dim=1) >= 1).nonzero()
    if len(outside):
        after = int(outside[0, 0])
        point, step = corners[after - 1], corners[after] - corners[after - 1]
    else:
        point, step = corners[-1], ray
    # |point + t step| = 1, the root with t > 0
    a, b, c = step @ step, point @ step, point @ point - 1
    t = (-b + torch.sqrt(b * b - a * c)) / a
    return point + t * step


def fixed_size_floor(hidden: Sequence[int], alternations: int) -> float:
    r"""What every ReLU network of one input with these hidden widths misses of some zigzag.

    The zigzag takes the values 0 and 1 in turn at $q+1$ points. A function nearer than
    $\tfrac12$ crosses the level $\tfrac12$ $q$ times, and one of $p$
    affine pieces at most $p$ times: for $q>p$ the error is at least
    $\tfrac12$, whatever the weights; $p\le\prod(n_\ell+1)$.

    >>> fixed_size_floor([3, 3], 17), fixed_size_floor([3, 3], 16)
    (0.5, 0.0)
    """
    whole_number(alternations, "alternations", least=1)
    return 0.5 if alternations > most_pieces(hidden) else 0.0


@dataclass(frozen=True, slots=True)
class WidthThreshold:
    """What is known of the least width at which ReLU networks of any depth are dense.

    Attributes:
        lower: no smaller width is enough.
        upper: this width is enough.
        source: who showed it.
    """

    lower: int
    upper: int
    source: str


def minimal_width(space: Space, inputs: int, outputs: int = 1) -> WidthThreshold:
    r"""The least width for density, between two bounds.

    | $C([0,1]^d,\mathbb R^n)$ | at least | enough |
    |---|---|---|
    | continuous on a cube | $d+1$ | $d+n$ |
    | integrable, $L_1(\mathbb R^d)$ | $d+1$ | $d+4$, one output |

    >>> minimal_width("continuous on a cube", 3).upper
    4
    """
    d, n = whole_number(inputs, "inputs", least=1), whole_number(outputs, "outputs", least=1)
    if space == "continuous on a cube":
        return WidthThreshold(d + 1, d + n, "Hanin and Sellke 2017")
    if space == "integrable":
        if n > 1:
            raise InvalidInput(
                f"the threshold of integrable functions is known here for one output (n = {n!r})"
            )
        return WidthThreshold(d + 1, d + 4, "Lu, Pu, Wang, Hu and Wang 2017")
    raise UnknownName("space", space, ["continuous on a cube", "integrable"])


def _check_string(operations: Sequence[str], weight: Tensor, bias: Tensor) -> None:
    if weight.ndim != 2 or bias.shape != weight.shape[:1] or not len(weight):
        raise ShapeMismatch(
            f"affine functions are a matrix [m, d] and a bias [m] (weight is {list(weight.shape)}, "
            f"bias is {list(bias.shape)})"
        )
    if len(operations) != len(weight) - 1:
        raise ShapeMismatch(f"{len(weight)} affine functions have {len(weight) - 1} operations")
    for operation in operations:
        if operation not in ("max", "min"):
            raise UnknownName("operation", str(operation), ["max", "min"])
