r"""Networks for functions on a manifold: charts by projection, hats in each chart, one sum.

$$
g(x)=\sum_i\phi_i(x)\,g(x)=\sum_i(\phi_ig)\circ\gamma_i^{-1}(\gamma_i(x))
$$

with orthogonal projections $\gamma_i$ on tangent spaces and a partition of unity
$\phi_i$. Only the projections see the ambient space, so the number $D$ of its
dimensions enters the size once, linearly, and not at all through the accuracy. Source: The Modern
Mathematics of Deep Learning, section 1.4.1, Theorem 3.22 and Corollaries 3.23, 3.24 (Shaham,
Cloninger, Coifman, 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import network_size
from torchtheory.approximation.network_calculus import block_diagonal, chain
from torchtheory.approximation.piecewise.hats import hat_layers
from torchtheory.approximation.piecewise.manifolds import ParametrizedManifold
from torchtheory.core.checks import as_points, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, NotConverged
from torchtheory.nets.feedforward import affine_layers
from torchtheory.primer.norms import pairwise_distances

Intrinsic = Callable[[Tensor], Tensor]

#: The share of a chart's radius within which a point counts as covered by it.
_INNER = 0.7
#: Steps of Newton's method before it is given up.
_NEWTON_STEPS = 30


@dataclass(frozen=True, slots=True)
class Chart:
    r"""The orthogonal projection on a tangent space, and the directions across it.

    Attributes:
        center: `[D]`, a point of the manifold.
        tangent: `[d, D]`, orthonormal: the coordinates of the chart.
        normal: `[q - d, D]`, orthonormal, the rest of the space that the data span; they tell
            the chart's own sheet from others that project on the same place.
        radius: the chart is the part with tangential coordinates at most `radius` in absolute
            value.
        height: and normal coordinates at most `height`; other sheets have at least twice that.
    """

    center: Tensor
    tangent: Tensor
    normal: Tensor
    radius: float
    height: float

    def __call__(self, x: Tensor) -> Tensor:
        r"""The chart's coordinates $\gamma(x)$, `[n, d]`."""
        return (x - self.center) @ self.tangent.T

    def across(self, x: Tensor) -> Tensor:
        """The normal coordinates, `[n, q - d]`."""
        return (x - self.center) @ self.normal.T

    def contains(self, x: Tensor) -> Tensor:
        """Which points lie in the chart, `[n]`."""
        near = (self(x).abs() <= self.radius).all(1)
        return near & (self.across(x).abs() <= self.height).all(1)

    def bump(self, x: Tensor) -> Tensor:
        r"""$\prod_k(1-(z_k/R)^2)_+^2$ on the chart's own sheet, 0 elsewhere: `[n]`."""
        inside = (1 - (self(x) / self.radius) ** 2).clamp_min(0) ** 2
        own = (self.across(x).abs() <= self.height).all(1)
        return inside.prod(1) * own


def tangent_charts(
    x: Tensor,
    dimension: int,
    radius: float,
    height: float,
    *,
    neighbors: int = 12,
) -> list[Chart]:
    r"""Charts that cover a cloud of points, tangent spaces by local principal components.

    Greedy: as long as some point is not in the inner part (0.7 of the radius) of a chart,
    the one farthest from it becomes a center. Time `O(charts n D)`.

    Args:
        x: `[n, D]`, points of the manifold, dense compared with the radius.
        dimension: $d'$, that of the manifold.
        radius, height: of every chart; see `Chart`.
        neighbors: how many points the tangent space is fitted to.

    >>> from torchtheory.approximation.piecewise.manifolds import circle_curve
    >>> circle = circle_curve()
    >>> len(tangent_charts(circle(circle.draw(400, 0)), 1, 0.6, 0.3))
    9
    """
    whole_number(dimension, "dimension", least=1)
    positive_number(radius, "radius")
    positive_number(height, "height")
    whole_number(neighbors, "neighbors", least=dimension + 1)
    x = as_points(x).double()
    if len(x) <= neighbors:
        raise InvalidInput(f"{len(x)} points are too few for {neighbors} neighbors")
    span = _span(x)
    uncovered = torch.full((len(x),), float("inf"), dtype=torch.float64)
    found: list[Chart] = []
    at = 0
    while float(uncovered[at]) > _INNER:
        center = x[at]
        near = (x - center).norm(dim=1).topk(neighbors + 1, largest=False).indices
        tangent = torch.linalg.svd(x[near] - center, full_matrices=False).Vh[:dimension]
        # principal components have no sign: the cubes of the neighbors' coordinates choose it,
        # so that the chart is the same one wherever the manifold is laid
        cubes = (((x[near] - center) @ tangent.T) ** 3).sum(0)
        tangent = torch.where(cubes < 0, -1.0, 1.0).unsqueeze(1) * tangent
        # what of the span is orthogonal to the tangent space
        rest = span - span @ tangent.T @ tangent
        normal = torch.linalg.svd(rest, full_matrices=False).Vh[: len(span) - dimension]
        chart = Chart(center, tangent, normal, radius, height)
        inner = chart(x).abs().amax(1) / radius
        inner[(chart.across(x).abs() > height).any(1)] = float("inf")
        uncovered = torch.minimum(uncovered, inner)
        found.append(chart)
        at = int(uncovered.argmax())
    return found


def chart_weights(charts: list[Chart], x: Tensor) -> Tensor:
    r"""$\phi_i=\eta_i/\sum_j\eta_j$ from the charts' bumps: `[n, charts]`; 0 where no chart
    is.

    >>> line = Chart(torch.zeros(1).double(), torch.eye(1).double(), torch.zeros(0, 1).double(),
    ...              1.0, 1.0)
    >>> chart_weights([line], torch.tensor([[0.5], [2.0]]).double()).tolist()
    [[1.0], [0.0]]
    """
    bumps = torch.stack([c.bump(x) for c in charts], 1)
    return bumps / bumps.sum(1, keepdim=True).clamp_min(torch.finfo(bumps.dtype).tiny)


def chart_inverse(manifold: ParametrizedManifold, chart: Chart, z: Tensor, start: Tensor) -> Tensor:
    r"""Intrinsic coordinates $u$ with $\gamma(F(u))=z$, by Newton's method.

    Args:
        z: `[n, d]`, coordinates in the chart.
        start: `[n, d]`, intrinsic coordinates of points near them on the chart's own sheet.

    >>> from torchtheory.approximation.piecewise.manifolds import circle_curve
    >>> circle = circle_curve()
    >>> right = Chart(circle(torch.zeros(1, 1).double())[0], torch.tensor([[0.0, 1.0]]).double(),
    ...               torch.tensor([[1.0, 0.0]]).double(), 0.7, 0.4)
    >>> half = torch.tensor([[0.5]]).double()
    >>> round(chart_inverse(circle, right, half, 0 * half).item() * 6 / torch.pi, 12)
    1.0
    """
    project = (manifold.frame @ chart.tangent.T).expand(len(z), -1, -1)
    return _newton(manifold, project, z + chart.center @ chart.tangent.T, start)


@dataclass(frozen=True, slots=True)
class ManifoldNetwork:
    """A network on a manifold and where its parameters are.

    Attributes:
        network: four affine layers with ReLUs between, from `[n, D]` to `[n, 1]`.
        charts: the atlas.
        terms: hats with a coefficient other than 0.
        projection_parameters: those of the first layer, the only ones that see the ambient space.
        other_parameters: all others.
    """

    network: nn.Sequential
    charts: list[Chart]
    terms: int
    projection_parameters: int
    other_parameters: int

    def __call__(self, x: Tensor) -> Tensor:
        """The network's values `[n]` at points `[n, D]`.

        A unit reads its own chart only: with sparse matrices the time is that of the parameters
        that are not 0, some charts times less than that of `network` itself.
        """
        (first, offset), *rest = affine_layers(self.network)[0]
        sparse = [(weight.to_sparse(), bias.unsqueeze(1)) for weight, bias in rest]
        parts = []
        for some in torch.split(x, 2048):
            z = first @ some.T + offset.unsqueeze(1)
            for weight, bias in sparse:
                z = weight @ z.relu() + bias
            parts.append(z[0])
        return torch.cat(parts)


def manifold_network(
    manifold: ParametrizedManifold,
    function: Intrinsic,
    charts: list[Chart],
    cells: int,
    samples: Tensor,
) -> ManifoldNetwork:
    r"""The function on the manifold as a ReLU network of depth 4.

    Layer 1 projects on the charts (each unit shifted so that it is never negative on the
    manifold); layer 2 has the mesh lines of every chart and two units for every normal coordinate
    $n$; layer 3 has one unit a hat, from which
    $(\rho(n-a)+\rho(-n-a))/a$ is subtracted, so that it is 0 on other sheets
    ($|n|\ge2a$); layer 4 adds up, with the values of $\phi_ig$ at the nodes as
    coefficients. Memory `O(terms * charts * cells)`, for dense matrices.

    Args:
        function: of the intrinsic coordinates, `[n, d]` to `[n]`; also a little outside the
            box.
        charts: from `tangent_charts`.
        cells: of the mesh of hats on every chart, a side.
        samples: `[n, d]`, intrinsic coordinates from which the charts' inverses start.

    >>> from torchtheory.approximation.piecewise.manifolds import circle_curve
    >>> circle = circle_curve(10, generator=0)
    >>> u = circle.draw(400, 0)
    >>> charts = tangent_charts(circle(u), 1, 0.6, 0.3)
    >>> net = manifold_network(circle, lambda u: torch.sin(u[:, 0]), charts, 32, u)
    >>> bool((net(circle(u)) - torch.sin(u[:, 0])).abs().max() < 0.01)
    True
    """
    whole_number(cells, "cells", least=2)
    if not charts:
        raise InvalidInput("there is no chart")
    d, x = manifold.dimension, manifold(samples)
    firsts, seconds, thirds, offsets, values = [], [], [], [], []
    shift = 1.05 * max(float(torch.cat([c(x), c.across(x)], 1).abs().max()) for c in charts)
    one = {r: hat_layers(cells, ((-r, r),) * d) for r in {c.radius for c in charts}}
    meshes = [one[c.radius] for c in charts]
    # hats on the edge of a chart have coefficient 0
    inners = [
        nodes.abs().amax(1) < c.radius * (1 - 1e-9)
        for c, (_, _, nodes) in zip(charts, meshes, strict=True)
    ]
    project, wanted, starts = [], [], []
    for chart, (_, _, nodes), inner in zip(charts, meshes, inners, strict=True):
        z = nodes[inner]
        project.append((manifold.frame @ chart.tangent.T).expand(len(z), -1, -1))
        wanted.append(z + chart.center @ chart.tangent.T)
        starts.append(_starts(chart, x, samples, z))
    everywhere = _newton(manifold, torch.cat(project), torch.cat(wanted), torch.cat(starts))
    share = chart_weights(charts, manifold(everywhere)) * function(everywhere).unsqueeze(1)
    counts = [int(inner.sum()) for inner in inners]
    ends = torch.tensor([0, *counts]).cumsum(0).tolist()
    for i, (chart, inner) in enumerate(zip(charts, inners, strict=True)):
        lines, hats, _ = meshes[i]
        directions = torch.cat([chart.tangent, chart.normal])
        firsts.append((directions, shift - directions @ chart.center))
        coefficients = share[ends[i] : ends[i + 1], i]
        kept = coefficients != 0
        cuts = len(chart.normal)
        eye = torch.eye(cuts, dtype=torch.float64)
        gates = torch.cat([eye, -eye])
        layer = block_diagonal(lines[0], gates) if cuts else lines[0]
        bias = torch.cat([lines[1], lines[1].new_full((2 * cuts,), -chart.height)])
        # the first layer hands over z + shift
        seconds.append((layer, bias - shift * layer.sum(1)))
        rows = hats[0][inner][kept]
        closed = rows.new_full((len(rows), 2 * cuts), -1 / chart.height)
        thirds.append(torch.cat([rows, closed], 1))
        offsets.append(hats[1][inner][kept])
        values.append(coefficients[kept])
    total = torch.cat(values).unsqueeze(0)
    network = chain(
        [
            (torch.cat([w for w, _ in firsts]), torch.cat([b for _, b in firsts])),
            (block_diagonal(*[w for w, _ in seconds]), torch.cat([b for _, b in seconds])),
            (block_diagonal(*thirds), torch.cat(offsets)),
            (total, total.new_zeros(1)),
        ],
        [nn.ReLU(), nn.ReLU(), nn.ReLU()],
    )
    first = network[0]
    assert isinstance(first, nn.Linear)
    seeing = int(first.weight.count_nonzero())
    return ManifoldNetwork(
        network, charts, total.shape[1], seeing, network_size(network).parameters - seeing
    )


def l1_terms_bound(norm: float, terms: int) -> float:
    r"""$\Sigma_N\le\tfrac12\|c\|_1N^{-1/2}$ for an orthonormal system.

    Sharp for $2N$ equal coefficients: the number of terms for an error $\epsilon$ is
    of order $\epsilon^{-2}$.

    >>> l1_terms_bound(1.0, 4)
    0.25
    """
    return float(positive_number(norm, "norm") / (2 * whole_number(terms, "terms", least=1) ** 0.5))


def _newton(
    manifold: ParametrizedManifold, project: Tensor, wanted: Tensor, start: Tensor
) -> Tensor:
    """`u[n, d]` with `roll(u) @ project = wanted`, every row with its own `project[q, d]`."""
    derivative = torch.func.vmap(torch.func.jacfwd(manifold.roll))
    u = start.clone()
    for _ in range(_NEWTON_STEPS):
        gap = (manifold.roll(u).unsqueeze(1) @ project).squeeze(1) - wanted
        if float(gap.abs().max()) <= 1e-12 * (1 + float(wanted.abs().max())):
            return u
        slope = project.transpose(1, 2) @ derivative(u)
        step, info = torch.linalg.solve_ex(slope, gap.unsqueeze(2))
        if bool(info.any()):
            break
        u = u - step.squeeze(2)
    raise NotConverged(
        "the projection on a tangent space has no inverse here: take a smaller radius"
    )


def _span(x: Tensor) -> Tensor:
    """An orthonormal basis `[q, D]` of the directions in which the points vary."""
    centered = x - x.mean(0)
    _, s, vh = torch.linalg.svd(centered, full_matrices=False)
    kept: Tensor = vh[s > 1e-9 * s[0]]
    return kept


def _starts(chart: Chart, x: Tensor, samples: Tensor, z: Tensor) -> Tensor:
    """The sample of the chart's own sheet whose coordinates are nearest to each node."""
    own = (chart.across(x).abs() <= chart.height).all(1)
    near = pairwise_distances(z, chart(x[own])).argmin(1)
    return samples[own][near]
