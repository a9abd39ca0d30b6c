r"""Classes with a boundary of finite Barron constant: few mistakes, whatever the dimension.

A point $(x,t)\in\mathbb R^{d-1}\times\mathbb R$ has class 1 if $t>g(x)$. With a network $g_n$ in
the place of $g$ the two classifications differ where $t$ lies between $g(x)$ and $g_n(x)$, so that

$$
\mathbb P(\text{classes differ})\le\varrho\;\mathbb E|g(x)-g_n(x)|,
$$

where $\varrho$ bounds the density of $t$ given $x$; with equality where $t$ is uniform on an
interval that holds both. For $g$ with Barron's constant $C_g$ and $n$ pairs of random steps
(`draw_step_pairs`) on the ball of radius $r$ the right side is at most $\varrho rC_g/\sqrt n$, on
average over the draws: no curse of dimension for functions that are not even continuous. Without
a bound of the density nothing is promised. Source: The Modern Mathematics of Deep Learning, section
1.4.2 (Caragea et al.).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.approximation.barron.random_steps import draw_step_pairs, step_pair_network
from torchtheory.approximation.barron.spectra import Spectrum
from torchtheory.approximation.network_calculus import chain, combine, compose
from torchtheory.core.checks import positive_number
from torchtheory.core.errors import ShapeMismatch
from torchtheory.core.random import RandomSource
from torchtheory.nets.feedforward import affine_layers


def boundary_score(boundary: nn.Sequential) -> nn.Sequential:
    r"""$(x,t)\mapsto t-g_n(x)$ as one ReLU chain, for a ReLU chain $g_n$ of $x$.

    >>> g = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).double()
    >>> x = torch.tensor([[0.3, -0.2, 5.0]]).double()
    >>> bool(torch.isclose(boundary_score(g)(x), x[:, 2:] - g(x[:, :2])))
    True
    """
    first = affine_layers(boundary)[0][0][0]
    d = first.shape[1]
    eye = torch.eye(d + 1, dtype=first.dtype, device=first.device)
    rest = chain([(eye[:d], eye.new_zeros(d))], [])
    last = chain([(eye[d:], eye.new_zeros(1))], [])
    return combine([1.0, -1.0], [last, compose(boundary, rest)])


@dataclass(frozen=True, slots=True)
class BoundaryClassifier:
    r"""A network whose sign is the class of a point, and what Barron's theorem promises about it.

    Attributes:
        score: from `[m, d]` to `[m, 1]`; class 1 where it is positive.
        boundary_error: at least $\mathbb E\,\mathbb E_x|g(x)-g_n(x)|$ for every law of $x$ on the
            ball, the outer mean over the draws of the network.
    """

    score: nn.Sequential
    boundary_error: float

    def __call__(self, points: Tensor) -> Tensor:
        """Whether points `[m, d]` are in class 1, `[m]`."""
        if points.ndim != 2 or points.shape[1] != self.score[0].in_features:
            raise ShapeMismatch(
                f"the points must be [m, {self.score[0].in_features}], not {list(points.shape)}"
            )
        with torch.no_grad():
            above: Tensor = self.score(points)[:, 0] > 0
        return above

    def mistakes_bound(self, density: float) -> float:
        r"""The promised share of mistakes where $\varrho$ bounds the density of $t$ given $x$."""
        return positive_number(density, "density") * self.boundary_error


def barron_classifier(
    boundary: Spectrum,
    count: int,
    radius: float = 1.0,
    *,
    width: float = 1e-3,
    generator: RandomSource = None,
) -> BoundaryClassifier:
    r"""A ReLU network for the class $t>g(x)$ with $4n+2$ hidden units.

    $n$ pairs of steps are drawn for $g$ and become ramps of width $\delta$, which changes their
    mean by at most $C_g\delta$ on average: together $C_g(r/\sqrt n+\delta)$.

    Args:
        boundary: $g$, of $d-1$ variables.
        count: $n$.
        radius: of the ball that holds $x$; $t$ may be any number.
        width: $\delta$.

    Cost: $O(nd)$.

    >>> from torchtheory.approximation.barron.spectra import GaussianBump
    >>> bump = GaussianBump(2)
    >>> made = barron_classifier(bump, 400, generator=0)
    >>> made(torch.tensor([[0.0, 0.0, 2.0], [0.0, 0.0, 0.0]]).double()).tolist()
    [True, False]
    """
    pairs = draw_step_pairs(boundary, count, radius, generator)
    network = step_pair_network(pairs, "relu", width=width)
    error = boundary.barron_constant * (radius / math.sqrt(count) + width)
    return BoundaryClassifier(boundary_score(network), error)
