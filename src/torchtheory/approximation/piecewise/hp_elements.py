r"""The $hp$ method as a ReLU network: small elements at a singularity, high degrees far from it.

A function that is analytic except at 0, such as $x^{3/4}$ on $(0,1)$, is approximated by
polynomials on the elements of the geometric mesh $0<\sigma^L<\dots<\sigma<1$, of a degree that
grows linearly with the distance from 0, counted in elements. With $O(L^2)$ coefficients the error
in $H^1$ falls geometrically in $L$. Each polynomial is a Horner scheme of network products, fed
with the element's own coordinate, clipped to its element,

$$
s_j(x)+1=\sigma\bigl(\tfrac2{h_j}(x-a_j)\bigr)-\sigma\bigl(\tfrac2{h_j}(x-b_j)\bigr)\in[0,2],
\qquad u(x)\approx u(0)+\sum_j\bigl(q_j(s_j(x))-q_j(-1)\bigr),
$$

so that the sum is continuous without any partition of unity. Products of $n=O(L)$ levels err in
the derivative by $O(2^{-n})$: the network has $O(L^3)$ weights, polylogarithmically many in the
error. Sources: The Modern Mathematics of Deep Learning, section 1.4.1 (Opschoor et al.);
Expressivity of Deep Neural Networks, section 3.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.polynomial import legendre
from torch import Tensor, nn

from torchtheory.approximation.certificates import Size, network_size
from torchtheory.approximation.layer_maps import (
    Maps,
    affine_map,
    layer_maps_of,
    merge_maps,
    relu_chain,
)
from torchtheory.approximation.network_calculus import block_diagonal, combine
from torchtheory.approximation.polynomials.products import product_network
from torchtheory.approximation.targets import Function, values_of
from torchtheory.core.checks import all_finite, number_between, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator


def geometric_mesh(levels: int, ratio: float = 0.15) -> Tensor:
    r"""The nodes $0,\sigma^L,\dots,\sigma,1$ of $L+1$ elements that shrink towards 0.

    >>> geometric_mesh(2, 0.5).tolist()
    [0.0, 0.25, 0.5, 1.0]
    """
    whole_number(levels, "levels", least=0)
    number_between(ratio, "ratio", 0, 1, closed="neither")
    powers = ratio ** torch.arange(levels, -1, -1, dtype=torch.float64)
    return torch.cat([powers.new_zeros(1), powers])


@dataclass(frozen=True, slots=True)
class HpSpline:
    r"""A continuous function that is a polynomial on each element of a mesh.

    Attributes:
        nodes: of the mesh, increasing, `[m + 1]`.
        coefficients: for element $j$ the coefficients `[p_j + 1]` of $q_j(s)=\sum_kc_ks^k$ in its
            own coordinate $s\in[-1,1]$.
    """

    nodes: Tensor
    coefficients: tuple[Tensor, ...]

    @property
    def degrees(self) -> tuple[int, ...]:
        return tuple(len(c) - 1 for c in self.coefficients)

    def __call__(self, x: Tensor) -> Tensor:
        """Values at points `[n]` of the mesh's interval, `[n]`."""
        return self._evaluate(x, self.coefficients, False)

    def derivative(self, x: Tensor) -> Tensor:
        """The derivative at points `[n]`; at a node that of the element to its right."""
        down = tuple(c[1:] * torch.arange(1, len(c)).to(c) for c in self.coefficients)
        return self._evaluate(x, down, True)

    def _evaluate(self, x: Tensor, parts: Sequence[Tensor], per_length: bool) -> Tensor:
        if x.ndim != 1:
            raise ShapeMismatch(f"the points of an interval are [n], not {list(x.shape)}")
        at = torch.searchsorted(self.nodes[1:-1].contiguous(), x.contiguous(), right=True)
        out = torch.empty_like(x)
        for j, c in enumerate(parts):
            here = at == j
            a, b = self.nodes[j], self.nodes[j + 1]
            s = (2 * x[here] - a - b) / (b - a)
            value = torch.zeros_like(s)
            for k in reversed(range(len(c))):
                value = value * s + c[k]
            out[here] = value * (2 / (b - a)) if per_length else value
        return out


def hp_spline(function: Function, nodes: Tensor, degrees: Sequence[int]) -> HpSpline:
    r"""The best approximation in $|\cdot|_{H^1}$ that meets the function in the nodes.

    On each element the derivative of $q_j$ is the $L^2$ projection of $u'$ onto polynomials of
    degree $p_j-1$, with Legendre coefficients from values of $u$ alone,
    $\langle u',P_k\rangle=[uP_k]-\int uP_k'$, by Gauss's rule with $p_j+20$ points: on elements
    of degree 1 it is exact, on others it asks for a function that is smooth there.

    Args:
        function: $u$, from `[n, 1]` to `[n]` or `[n, 1]`.
        nodes: increasing, `[m + 1]`.
        degrees: $p_j\ge1$, one for each element.

    Cost: $O(\sum_jp_j^2)$.

    >>> cubic = hp_spline(lambda x: x**3, torch.tensor([0.0, 0.5, 1.0]).double(), [3, 3])
    >>> x = torch.linspace(0, 1, 11).double()
    >>> bool((cubic(x) - x**3).abs().max() < 1e-12)
    True
    """
    nodes = _checked_nodes(nodes)
    if len(degrees) != len(nodes) - 1:
        raise ShapeMismatch(f"{len(nodes) - 1} elements need as many degrees, not {len(degrees)}")
    at_nodes = values_of(function, nodes.unsqueeze(1))
    all_finite(at_nodes, "the function's values in the nodes")
    parts = []
    for j, p in enumerate(degrees):
        whole_number(p, "degree", least=1)
        a, b = nodes[j], nodes[j + 1]
        places, weights = legendre.leggauss(p + 20)
        x = (a + b) / 2 + (b - a) / 2 * torch.from_numpy(places)
        # of degree 1 only the ends count: the function may be singular in between
        inside = values_of(function, x.unsqueeze(1)).numpy() if p > 1 else np.zeros_like(places)
        left, right = float(at_nodes[j]), float(at_nodes[j + 1])
        slopes = []
        for k in range(p):
            bend = legendre.legval(places, legendre.legder([0.0] * k + [1.0]))
            against = right - (-1) ** k * left - float(weights @ (inside * bend))
            slopes.append((2 * k + 1) / 2 * against)
        made = legendre.leg2poly(legendre.legint(slopes, lbnd=-1, k=left))
        padded = np.zeros(p + 1)
        padded[: len(made)] = made
        parts.append(torch.from_numpy(padded))
    return HpSpline(nodes, tuple(parts))


@dataclass(frozen=True, slots=True)
class HpNetwork:
    r"""A ReLU network that follows an `HpSpline`.

    Attributes:
        network: from `[n, 1]` to `[n, 1]`, in double precision.
        spline: what it follows, and meets exactly in the first node.
        slope_errors: for each element a bound of the difference of the two derivatives, `[m]`.
    """

    network: nn.Sequential
    spline: HpSpline
    slope_errors: Tensor

    @property
    def size(self) -> Size:
        return network_size(self.network)

    @property
    def deviation(self) -> float:
        r"""A bound of $\|(\text{network}-\text{spline})'\|_{L^2}$ over the mesh."""
        return float((self.spline.nodes.diff() * self.slope_errors.square()).sum().sqrt())

    def __call__(self, x: Tensor) -> Tensor:
        """Values at points `[n]`, `[n]`."""
        with torch.no_grad():
            value: Tensor = self.network(x.double().unsqueeze(1))[:, 0]
        return value


def hp_network(spline: HpSpline, levels: int) -> HpNetwork:
    r"""A spline of high degrees as a ReLU network of products with `levels` saw-teeth.

    Horner's scheme $v_k=c_k+s\,v_{k+1}$ with the product of `product_network` for numbers of size
    at most $B_{k+1}=\sum_{i>k}|c_i|$, which it does not leave. With $\delta=4^{-(n+1)}$ and
    $\eta=2^{-n}$, the errors of a product and of its partial derivatives, values and derivatives
    of the scheme err by at most

    $$
    e_k=e_{k+1}+B_{k+1}\delta,\qquad
    e_k'=e_{k+1}'+e_{k+1}+\eta\bigl(B_{k+1}+|v_{k+1}'|+e_{k+1}'\bigr).
    $$

    Depth $2+(n+1)(\max_jp_j-1)$, at most 7 units a layer for each element.

    Args:
        spline: from `hp_spline`.
        levels: $n$, of the squares inside the products.

    Cost: $O(m^2nP)$ for $m$ elements and the largest degree $P$; layers are stored as dense
    matrices, of which $O(nmP)$ entries are not zero.

    >>> root = hp_spline(lambda x: x**0.75, geometric_mesh(3), [1, 2, 3, 4])
    >>> made = hp_network(root, 10)
    >>> x = torch.linspace(0, 1, 101).double()
    >>> bool((made(x) - root(x)).abs().max() <= made.deviation)
    True
    """
    whole_number(levels, "levels", least=1)
    parts, errors, starts = [], [], []
    for a, b, c in zip(spline.nodes[:-1], spline.nodes[1:], spline.coefficients, strict=True):
        part = relu_chain(_element(float(a), float(b), c, levels))
        parts.append(part)
        starts.append(float(part(spline.nodes[:1].unsqueeze(1))))
        errors.append(2 / float(b - a) * _slope_error(c, levels))
    # every element adds what changes along it; at the first node all that is left is the value
    first = float(spline(spline.nodes[:1]))
    constant = relu_chain(affine_map([[0.0]], [first - sum(starts)]))
    network = combine([1.0] * (len(parts) + 1), [*parts, constant])
    return HpNetwork(network, spline, torch.tensor(errors, dtype=torch.float64))


def derivative_error(
    derivative: Function,
    network: Callable[[Tensor], Tensor],
    nodes: Tensor,
    points: int = 400,
    *,
    generator: RandomSource = None,
) -> float:
    r"""$\|u'-\phi'\|_{L^2}$ of a network $\phi$ over the elements of a mesh.

    One random point in each of `points` cells of every element, so that no grid can fall into
    step with the pieces of the network; the derivative of the network is taken by autograd.
    Points of the first element crowd at its left end as $y^4$: the square of $u'=O(x^{-3/8})$
    and milder singularities there is integrated without infinite values.

    Args:
        derivative: $u'$, from `[n, 1]` to `[n]` or `[n, 1]`.
        network: from `[n, 1]` to `[n, 1]`, a module or any function autograd can follow.
        nodes: increasing, `[m + 1]`.
        points: per element.

    >>> line = nn.Sequential(nn.Linear(1, 1).double())
    >>> _ = nn.init.zeros_(line[0].weight)
    >>> round(derivative_error(lambda x: x, line, torch.tensor([0.0, 1.0]), generator=0) ** 2, 2)
    0.33
    """
    whole_number(points, "points", least=2)
    nodes = _checked_nodes(nodes)
    source = as_generator(generator)
    cells = torch.arange(points, dtype=torch.float64)
    draws = torch.rand(len(nodes) - 1, points, generator=source, dtype=torch.float64)
    y = (cells + draws) / points
    density = torch.ones_like(y)
    density[0], y[0] = 4 * y[0] ** 3, y[0] ** 4
    h = nodes.diff().unsqueeze(1)
    x = (nodes[:-1].unsqueeze(1) + h * y).reshape(-1, 1).requires_grad_()
    (slope,) = torch.autograd.grad(network(x).sum(), x)
    gap = values_of(derivative, x.detach()) - slope[:, 0]
    return float((gap.square().reshape(y.shape) * density * h).mean(1).sum().sqrt())


def _element(a: float, b: float, c: Tensor, levels: int) -> Maps:
    """The layers of $q(s(x))$ on one element; constant to both sides of it."""
    steep = 2 / (b - a)
    maps = affine_map([[steep], [steep]], [-steep * a, -steep * b])
    coefficients = c.tolist()
    p = len(coefficients) - 1
    high, low = coefficients[p], coefficients[p - 1]
    # from the two ramps: s + 1, and c_{p-1} + c_p s
    maps += affine_map([[1.0, -1.0], [high, -high]], [0.0, low - high])
    product = layer_maps_of(product_network(levels))
    carried = torch.ones(1, 1, dtype=torch.float64)
    size = abs(high) + abs(low)
    for k in reversed(range(p - 1)):
        scale = size or 1.0
        enter = affine_map([[1.0, 0.0], [1.0, 0.0], [0.0, 1 / scale]], [0.0, -1.0, 0.0])
        inner = [
            (block_diagonal(carried, w), torch.cat([b_.new_zeros(1), b_])) for w, b_ in product
        ]
        leave = affine_map([[1.0, 0.0], [0.0, scale]], [0.0, coefficients[k]])
        maps = merge_maps(merge_maps(leave, merge_maps(inner, enter)), maps)
        size += abs(coefficients[k])
    return merge_maps(affine_map([[0.0, 1.0]]), maps)


def _slope_error(c: Tensor, levels: int) -> float:
    """The bound $e_0'$ of the recursion in `hp_network`, in the element's coordinate."""
    coefficients = [abs(v) for v in c.tolist()]
    p = len(coefficients) - 1
    delta, eta = 4.0 ** -(levels + 1), 2.0**-levels
    value = slope = 0.0
    for k in reversed(range(p - 1)):
        size = math.fsum(coefficients[k + 1 :])
        steep = math.fsum(i * v for i, v in enumerate(coefficients[k + 1 :]))
        slope += value + eta * (size + steep + slope)
        value += size * delta
    return slope


def _checked_nodes(nodes: Tensor) -> Tensor:
    if nodes.ndim != 1 or len(nodes) < 2:
        raise ShapeMismatch(f"a mesh has at least two nodes, [m + 1], not {list(nodes.shape)}")
    all_finite(nodes, "the nodes of a mesh")
    if len(back := (~(nodes.diff() > 0)).nonzero()):
        k = int(back[0])
        raise InvalidInput(
            f"the nodes of a mesh increase, and after {float(nodes[k]):g} comes "
            f"{float(nodes[k + 1]):g}"
        )
    return nodes.double()
