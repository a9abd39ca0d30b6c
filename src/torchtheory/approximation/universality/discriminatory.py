r"""Which activations see every measure: rank on finitely many points, and measures nobody sees.

$\sigma$ is discriminatory on $K$ if $\int_K\sigma(w^\top x+b)\,d\mu(x)=0$ for all
$w,b$ forces $\mu=0$. For measures $\mu=\sum_i\mu_i\delta_{x_i}$ on
$m$ distinct points this is the rank of the matrix $\sigma(w_j^\top x_i+b_j)$: it is
$m$ unless $\sigma$ is a polynomial of degree $q$, where it is at most
$\binom{d+q}q$. Sources: Mathematical Aspects of Deep Learning, Eq. (1.9) and Definition 3.3;
slides, "Universal Approximation Theorem".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import as_points, equal_rows, positive_number, whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.nets.activations.table import as_layer


def ridge_units(
    activation: str | Callable[[Tensor], Tensor],
    units: int,
    x: Tensor,
    *,
    steepness: float = 6.0,
    generator: RandomSource = None,
) -> Tensor:
    r"""Values of random units $\sigma(a_ju_j^\top(x-c_j))$ at points `x[n, d]`.

    Directions $u_j$ are uniform on the sphere, $a_j$ uniform on [0, `steepness`] and
    $c_j$ uniform on the smallest box that holds the points. The first units of a longer draw
    from the same seed are those of a shorter one. Returns `[n, units]`.

    >>> ridge_units("tanh", 3, torch.rand(5, 2), generator=0).shape
    torch.Size([5, 3])
    """
    whole_number(units, "units", least=1)
    positive_number(steepness, "steepness")
    x = as_points(x)
    d = x.shape[1]
    generator = as_generator(generator)
    draws = torch.rand(units, 2 * d + 1, dtype=torch.float64, generator=generator)
    # normal numbers from uniform ones, so that each unit takes its own row of the draw
    direction = torch.special.ndtri(draws[:, :d].clamp(1e-12, 1 - 1e-12))
    direction = direction / direction.norm(dim=1, keepdim=True)
    low, high = x.amin(0), x.amax(0)
    center = low + (high - low) * draws[:, d : 2 * d].to(x)
    weight = (steepness * draws[:, 2 * d :] * direction).to(x)
    made: Tensor = as_layer(activation)(x @ weight.T - (weight * center).sum(1))
    return made


@dataclass(frozen=True, slots=True)
class DiscriminatoryTest:
    r"""What random units see of the measures on given points.

    Attributes:
        rank: of the values of the units at the points.
        points: how many there are; a rank below that leaves measures unseen.
        singular_values: `[min(units, points)]`, decreasing.
        null_measure: `[points]`, masses of total variation 1 that every unit integrates to 0;
            None where the rank is full.
    """

    rank: int
    points: int
    singular_values: Tensor
    null_measure: Tensor | None

    @property
    def discriminates(self) -> bool:
        """Whether no measure on the points but 0 is unseen."""
        return self.rank == self.points


def discriminatory_test(
    activation: str | Callable[[Tensor], Tensor],
    x: Tensor,
    units: int,
    *,
    steepness: float = 50.0,
    generator: RandomSource = None,
) -> DiscriminatoryTest:
    r"""The rank of `ridge_units` at distinct points, and a measure they do not see.

    Singular values below $\max(n,m)\,\varepsilon\,s_1$ count as 0. Full rank proves that no
    measure on these points is unseen; a lower rank may also mean too few or too flat units.
    Time: $O(nm\min(n,m))$.

    Args:
        x: `[m, d]`, no two rows equal.
        units: $n$, at least as many as points.
        steepness: of the units; flat ones are nearly linear and hard to tell apart.

    >>> x = torch.linspace(0, 1, 5).double().unsqueeze(1)
    >>> found = discriminatory_test(torch.square, x, 20)
    >>> found.rank, found.discriminates, discriminatory_test("relu", x, 200).rank
    (3, False, 5)
    """
    x = as_points(x)
    if same := equal_rows(x):
        raise InvalidInput(
            f"points {same[0]} and {same[1]} are equal: masses +1 and -1 on the two would cancel"
        )
    whole_number(units, "units", least=len(x))
    values = ridge_units(activation, units, x, steepness=steepness, generator=generator)
    _, sigma, vh = torch.linalg.svd(values.T, full_matrices=False)
    rank = int((sigma > max(values.shape) * torch.finfo(x.dtype).eps * sigma[0]).sum())
    null = None
    if rank < len(x):
        null = vh[-1]
        null = null / null.abs().sum()
    return DiscriminatoryTest(rank, len(x), sigma, null)


def polynomial_rank(degree: int, dimension: int) -> int:
    r"""$\binom{d+q}q$, how many monomials of degree at most $q$ there are.

    >>> polynomial_rank(2, 2)
    6
    """
    return math.comb(
        whole_number(dimension, "dimension", least=1) + whole_number(degree, "degree", least=0),
        degree,
    )
