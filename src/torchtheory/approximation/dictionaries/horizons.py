r"""Edges as networks: a five-weight step, horizons, indicators, and functions gated by them.

A discontinuity is out of reach in the sup norm and cheap in $L_p$: two ReLUs make a ramp of
width $\delta$, and a network that follows the edge turns the ramp into the edge. Source: The
Modern Mathematics of Deep Learning, section 3.5, Theorem 3.21 (Petersen and Voigtlaender, 2018).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import Approximant
from torchtheory.approximation.network_calculus import chain, combine, compose, stack
from torchtheory.approximation.piecewise.boxes import cell_centers
from torchtheory.approximation.targets import Function, values_of
from torchtheory.core.checks import all_finite, described, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.nets.feedforward import affine_layers


def heaviside_network(delta: float) -> nn.Sequential:
    r"""$H_\delta(x)=\rho(x/\delta)-\rho(x/\delta-1)$: the step at 0, with a ramp.

    Exactly five parameters are not zero. For $0<p<\infty$,
    $\|\mathbf 1_{[0,\infty)}-H_\delta\|_p^p=\delta/(p+1)$, while the sup-norm error is 1.

    >>> step = heaviside_network(0.5)
    >>> step(torch.tensor([[-1.0], [0.0], [0.25], [3.0]]).double()).flatten().tolist()
    [0.0, 0.0, 0.5, 1.0]
    """
    positive_number(delta, "delta")
    slope = torch.full((2, 1), 1 / delta, dtype=torch.float64)
    bias = torch.tensor([0.0, -1.0], dtype=torch.float64)
    out = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    return chain([(slope, bias), (out, out.new_zeros(1))], [nn.ReLU()])


def heaviside_error(delta: float, p: float) -> float:
    r"""The exact $L_p$ distance $(\delta/(p+1))^{1/p}$ of the step and its ramp.

    >>> heaviside_error(0.3, 2.0) ** 2
    0.1
    """
    return float((positive_number(delta, "delta") / (positive_number(p, "p") + 1)) ** (1 / p))


def horizon_network(boundary: Approximant, delta: float) -> Approximant:
    r"""The horizon function $\mathbf 1[x_d\le\gamma(x')]$ as
    $H_\delta(\tilde\gamma(x')-x_d)$.

    The two differ only where $x_d$ lies between $\min(\gamma,\tilde\gamma-\delta)$ and
    $\max(\gamma,\tilde\gamma)$, and by at most 1, so on the unit cube

    $$
    \|\mathbf 1[x_d\le\gamma]-H_\delta(\tilde\gamma-x_d)\|_p^p
    \le\|\gamma-\tilde\gamma\|_\infty+\delta.
    $$

    An $L_p$ error $\epsilon$ therefore needs $\gamma$ within $\epsilon^p$.

    Args:
        boundary: $\tilde\gamma$, a ReLU network of $x'\in[0,1]^{d-1}$ with its sup-norm
            bound.
        delta: width of the ramp.

    Returns:
        the network of $(x',x_d)\in[0,1]^d$; its bound is the right side above, the promise
        for the mean error; its power $1/p$ is the promise in $L_p$.

    >>> from torchtheory.approximation.piecewise.interpolants import relu_interpolant
    >>> half = relu_interpolant(lambda x: 0 * x + 0.5, 1, lipschitz=1e-9)
    >>> edge = horizon_network(half, 0.25)
    >>> edge(torch.tensor([[0.3, 0.0], [0.3, 0.375], [0.3, 0.9]]).double()).tolist()
    [1.0, 0.5, 0.0]
    """
    maps, between = _chain_of(boundary)
    if boundary.norm != "sup" or any(end != (0.0, 1.0) for end in boundary.domain):
        raise InvalidInput(
            "a horizon's boundary is approximated in the sup norm on [0,1]^(d-1), not in "
            f"{boundary.norm} on {boundary.domain}"
        )
    weight, bias = maps[0]
    wide = torch.cat([weight, weight.new_zeros(len(weight), 1)], dim=1)
    last = weight.new_zeros(1, wide.shape[1])
    last[0, -1] = 1.0
    height = chain([(last, last.new_zeros(1))], [])
    gap = combine([1.0, -1.0], [chain([(wide, bias), *maps[1:]], between), height])
    network = compose(heaviside_network(delta), gap)
    return Approximant(
        network, boundary.bound + delta, (*boundary.domain, (0.0, 1.0)), "X-49", norm="mean"
    )


def horizon_error(
    boundary: Function, approximation: Function, delta: float, p: float, *, points: int = 4096
) -> float:
    r"""The $L_p([0,1]^2)$ distance of a horizon function and its network.

    For every $x'$ the integral over $x_2$ is done in closed form (powers of a ramp);
    the one over $x'$ is the midpoint rule.

    Args:
        boundary, approximation: $\gamma$ and $\tilde\gamma$, functions of one variable.
        delta: width of the ramp.
        p: exponent, any positive number.
        points: nodes of the midpoint rule.

    >>> flat = lambda x: 0 * x + 0.5
    >>> round(horizon_error(flat, flat, 0.3, 2.0) ** 2, 12)      # delta / (p + 1)
    0.1
    """
    positive_number(delta, "delta")
    positive_number(p, "p")
    whole_number(points, "points", least=1)
    x = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    gamma = values_of(boundary, x.unsqueeze(1)).clamp(0, 1)
    ramp = values_of(approximation, x.unsqueeze(1))

    def primitive(s: Tensor) -> Tensor:
        inner = s.clamp(0, 1) ** (p + 1) / (p + 1)
        return inner + (s - 1).clamp_min(0)

    above = primitive((ramp - gamma) / delta) - primitive((ramp - 1) / delta)
    below = primitive((gamma - ramp) / delta + 1) - primitive(-ramp / delta + 1)
    return float((delta * (above + below)).mean() ** (1 / p))


def indicator_network(vertices: Tensor, center: Tensor, delta: float) -> nn.Sequential:
    r"""The indicator of a star-shaped polygon: one horizon patch a side, glued along rays.

    The polygon is the fan of the triangles $(c,v_i,v_{i+1})$. With ramps $H_\delta$ of
    the distance to a ray and to a side, patch $i$ is
    $\rho(H_\delta(\ell_i)+1-H_\delta(\ell_{i+1})+H_\delta(e_i)-2)$. Two patches share the
    ramp along their ray, so they add to 1 across it. With $m$ sides: $4m+m$ ReLUs and
    at most $20m$ parameters. What differs from the indicator has area at most
    $\delta\cdot\text{perimeter}+\pi(\delta/\sin\alpha)^2$, $\alpha$ the smallest angle
    between neighboring rays.

    Args:
        vertices: `[m, 2]`, counter-clockwise around the center, each less than a half turn from
            the one before.
        center: `[2]`, a point that sees the whole polygon.
        delta: width of the ramps.

    >>> square = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]).double()
    >>> net = indicator_network(square, torch.zeros(2).double(), 0.01)
    >>> net(torch.tensor([[0.2, 0.3], [0.8, 0.8]]).double()).flatten().round().tolist()
    [1.0, 0.0]
    """
    positive_number(delta, "delta")
    v, c = vertices.detach().double(), center.detach().double()
    if v.ndim != 2 or v.shape[1] != 2 or len(v) < 3 or c.shape != (2,):
        raise ShapeMismatch(
            f"a polygon is [m, 2] with m >= 3 and its center [2], not {list(v.shape)} and "
            f"{list(c.shape)}"
        )
    all_finite(v, "the vertices")
    all_finite(c, "the center")
    ray = v - c
    following = ray.roll(-1, 0)
    if not bool((ray[:, 0] * following[:, 1] - ray[:, 1] * following[:, 0] > 0).all()):
        raise InvalidInput(
            "the vertices must turn counter-clockwise around the center, by less than a half turn "
            "from one to the next"
        )
    m = len(v)
    # normals that point counter-clockwise of a ray, and inwards from a side
    turn = torch.stack([-ray[:, 1], ray[:, 0]], 1) / ray.norm(dim=1, keepdim=True)
    side = v.roll(-1, 0) - v
    inward = torch.stack([-side[:, 1], side[:, 0]], 1) / side.norm(dim=1, keepdim=True)
    normals = torch.cat([turn, inward]) / delta
    offsets = -torch.cat([turn @ c, (inward * v).sum(1)]) / delta
    first = torch.stack([normals, normals], 1).reshape(-1, 2)
    bias = torch.stack([offsets, offsets - 1], 1).reshape(-1)
    eye = torch.eye(m, dtype=torch.float64)
    joined = torch.cat([eye - eye.roll(1, 1), eye], dim=1)
    ramp = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    second = torch.kron(joined, ramp)
    one = torch.ones(1, m, dtype=torch.float64)
    return chain(
        [(first, bias), (second, -one[0]), (one, one.new_zeros(1))], [nn.ReLU(), nn.ReLU()]
    )


def indicator_bound(vertices: Tensor, center: Tensor, delta: float) -> float:
    r"""The area where `indicator_network` may leave the indicator of its polygon.

    >>> square = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]).double()
    >>> round(indicator_bound(square, torch.zeros(2).double(), 0.01), 6)    # 0.04 √2 + π 0.0001
    0.056883
    """
    positive_number(delta, "delta")
    ray = (vertices - center).double()
    ray = ray / ray.norm(dim=1, keepdim=True)
    following = ray.roll(-1, 0)
    sine = (ray[:, 0] * following[:, 1] - ray[:, 1] * following[:, 0]).min()
    perimeter = (vertices.roll(-1, 0) - vertices).norm(dim=1).sum()
    return float(delta * perimeter + math.pi * (delta / sine) ** 2)


def gated_network(indicator: nn.Sequential, smooth: nn.Sequential, bound: float) -> nn.Sequential:
    r"""$\mathbf 1_K\,g$ without a multiplication: one ReLU opens and closes.

    For $|g|\le B$ and $\chi\in[0,1]$,
    $\rho(g+B-2B(1-\chi))-B\chi$ is $g$ where $\chi=1$ and 0 where
    $\chi=0$; in between it stays within $[-B,B]$.

    Args:
        indicator: $\chi$, a ReLU network with values in [0, 1].
        smooth: $g$, a ReLU network of the same input.
        bound: $B\ge|g|$ on the domain.

    >>> one = chain([(torch.zeros(1, 1).double(), torch.ones(1).double())], [])
    >>> line = chain([(torch.ones(1, 1).double(), torch.zeros(1).double())], [])
    >>> gated_network(one, line, 1.0)(torch.tensor([[-0.5]]).double()).item()
    -0.5
    """
    positive_number(bound, "bound")
    both = stack(smooth, indicator)
    gate = torch.tensor([[1.0, 2 * bound], [0.0, 1.0]], dtype=torch.float64)
    shift = torch.tensor([-bound, 0.0], dtype=torch.float64)
    out = torch.tensor([[1.0, -bound]], dtype=torch.float64)
    return compose(chain([(gate, shift), (out, out.new_zeros(1))], [nn.ReLU()]), both)


def boundary_exponent(smoothness: float, dimension: int, p: float = 2.0) -> float:
    r"""The exponent $p(d-1)/\beta$: weights $M\lesssim\epsilon^{-p(d-1)/\beta}$ for
    $\mathbf 1_Kg$ in $L_p$ where $\partial K\in C^\beta$.

    >>> boundary_exponent(2.0, 2)
    1.0
    """
    positive_number(smoothness, "smoothness")
    positive_number(p, "p")
    return p * (whole_number(dimension, "dimension", least=2) - 1) / smoothness


def matching_smoothness(smoothness: float, dimension: int, p: float = 2.0) -> float:
    r"""The smoothness $\beta'=d\beta/(p(d-1))$ that makes the inside as cheap as the edge.

    >>> matching_smoothness(2.0, 2)
    2.0
    """
    return dimension / boundary_exponent(smoothness, dimension, p)


def lp_distance(f: Function, g: Function, p: float, *, points: int = 512) -> float:
    r"""$\|f-g\|_{L_p([0,1]^2)}$ by the midpoint rule on `points` squared cells.

    >>> round(lp_distance(lambda x: x[:, 0], lambda x: 0 * x[:, 0], 1.0), 12)
    0.5
    """
    positive_number(p, "p")
    whole_number(points, "points", least=2)
    x = cell_centers(((0.0, 1.0), (0.0, 1.0)), points)
    parts = [x[i : i + (1 << 14)] for i in range(0, len(x), 1 << 14)]
    gaps = [(values_of(f, part) - values_of(g, part)).abs() ** p for part in parts]
    return float(torch.cat(gaps).mean() ** (1 / p))


def _chain_of(boundary: Approximant) -> tuple[list[tuple[Tensor, Tensor]], list[nn.Module]]:
    network = boundary.network
    if not isinstance(network, nn.Sequential):
        raise InvalidInput(
            f"the boundary's network must be an nn.Sequential of layers, not {described(network)}"
        )
    return affine_layers(network)
