r"""How close the Gram matrix of a finite two-layer network is to its expectation.

$\hat G=\frac1m\sum_kH_k$ with
$(H_k)_{ij}=x_i^\top x_j\,\sigma'(w_k^\top x_i) \sigma'(w_k^\top x_j)$ is a mean of $m$ independent
matrices, one a hidden unit. With $|\sigma'|\le B$ and probability at least $1-\delta$,

$$
\|\hat G-G\|_{\mathrm{op}}\le\star=\frac{2B^2\|X\|_F^2}{\sqrt m}
+6B^2\|X\|_F^2\sqrt{\frac{\log(2/\delta)}{2m}},
$$

and with Weyl's inequality no eigenvalue moves further. Source: Foundations of Deep Learning,
chapter 8, exercise "Concentration of NTK Eigenvalues".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_points, as_symmetric, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.intervals import hoeffding_radius
from torchtheory.core.random import RandomSource, as_generator, rademacher
from torchtheory.kernels.infinite.two_layer import expected_gram, sampled_gram
from torchtheory.nets.activations.moments import Function, slope_of
from torchtheory.nets.activations.table import Activation, activation


def slope_bound(given: Function) -> float:
    r"""$B=\sup|\sigma'|$ of an activation of the table.

    >>> slope_bound("relu"), slope_bound("logistic")
    (1.0, 0.25)
    """
    row = activation(given) if isinstance(given, str) else given
    if not isinstance(row, Activation):
        name = type(row).__name__ if isinstance(row, nn.Module) else repr(row)
        raise InvalidInput(f"the largest slope of {name} is not in the table: give it as a number")
    if not math.isfinite(row.known.lipschitz):
        raise InvalidInput(f"the slope of {row.name} is not bounded, and the theorem needs a bound")
    return row.known.lipschitz


def unit_gram_norms(x: Tensor, weight: Tensor, activation: Function = "relu") -> Tensor:
    r"""$\|H_k\|_F$ of every hidden unit, `[m]`; each is at most $B^2\|X\|_F^2$.

    Costs $O(mn^2)$ and the memory of `[m, n]`.

    >>> unit_gram_norms(torch.eye(2).double(), torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double())
    tensor([1.4142, 1.0000], dtype=torch.float64)
    """
    x = as_points(x)
    squares = slope_of(activation)(x @ as_points(weight, "weight").to(x).T).square()  # [n, m]
    return (squares * ((x @ x.T).square() @ squares)).sum(0).sqrt()


def rademacher_draws(
    x: Tensor,
    weight: Tensor,
    activation: Function = "relu",
    *,
    draws: int,
    generator: RandomSource = None,
) -> Tensor:
    r"""$\frac1m\|\sum_k\epsilon_kH_k\|_F$ for independent sign vectors, `[draws]`.

    Their mean is the Rademacher complexity of $\{U\mapsto\langle U,V\rangle_F: \|V\|_F\le1\}$
    on $H_1,\dots,H_m$, since the supremum over $V$ is the norm. Costs
    $O(mn^2)$ a draw; no $H_k$ is formed.

    >>> x, w = torch.eye(2).double(), torch.ones(1, 2).double()
    >>> rademacher_draws(x, w, draws=2)                             # one unit: its own norm
    tensor([1.4142, 1.4142], dtype=torch.float64)
    """
    whole_number(draws, "draws", least=1)
    x = as_points(x)
    slopes = slope_of(activation)(x @ as_points(weight, "weight").to(x).T)
    inner, width = x @ x.T, slopes.shape[1]
    generator = as_generator(generator)
    norms = x.new_empty(draws)
    for k in range(draws):
        signs = rademacher(width, generator=generator, dtype=x.dtype, device=x.device)
        norms[k] = (inner * ((slopes * signs) @ slopes.T)).norm() / width
    return norms


def gram_radius(x: Tensor, width: int, *, bound: float = 1.0, delta: float = 0.05) -> float:
    r"""$\star=B^2\|X\|_F^2\bigl(\tfrac2{\sqrt m}+6\sqrt{\log(2/\delta)/2m}\bigr)$.

    With probability at least $1-\delta$ over standard normal (or any independent, equally
    distributed) weights, $|u^\top(\hat G-G)u|\le\star$ for all $\|u\|\le1$. What counts
    is the number $m$ of hidden units: they are the independent draws, not the data.

    Args:
        x: `[n, d]`.
        width: $m$.
        bound: $B$; see `slope_bound`.
        delta: $\delta$.

    >>> round(gram_radius(torch.eye(3), width=10_000), 5)
    0.30446
    """
    x = as_points(x)
    whole_number(width, "width", least=1)
    positive_number(bound, "the bound on the slope")
    size = bound**2 * float(x.square().sum())
    # the range of the functions is 2 B^2 |X|^2, and three times Hoeffding's radius is paid
    return size * (2 / math.sqrt(width) + 6 * hoeffding_radius(width, delta))


def width_for_accuracy(
    x: Tensor, accuracy: float, *, bound: float = 1.0, delta: float = 0.05
) -> int:
    r"""The smallest $m$ with $\star\le$ `accuracy`.

    To know that $\lambda_{\min}(\hat G)\ge\frac12\lambda_{\min}(G)$, ask for an accuracy of
    half the smallest eigenvalue. The answer is large: $\star$ is a worst case.

    >>> m = width_for_accuracy(torch.eye(3), 0.1)
    >>> gram_radius(torch.eye(3), m) <= 0.1 < gram_radius(torch.eye(3), m - 1)
    True
    """
    positive_number(accuracy, "the accuracy")
    at_one = gram_radius(x, 1, bound=bound, delta=delta)  # and it falls like m^(-1/2)
    m = max(1, math.floor((at_one / accuracy) ** 2) - 1)
    while gram_radius(x, m, bound=bound, delta=delta) > accuracy:
        m += 1
    return m


@dataclass(frozen=True, slots=True)
class WeylBounds:
    r"""Weyl's inequalities for the extreme eigenvalues of $A+B$.

    Attributes:
        smallest, largest: of $A+B$.
        lower: $\lambda_{\min}(A)+\lambda_{\min}(B)\le$ `smallest`.
        upper: $\lambda_{\max}(A)+\lambda_{\max}(B)\ge$ `largest`.
    """

    smallest: float
    largest: float
    lower: float
    upper: float


def weyl_bounds(A: Tensor, B: Tensor) -> WeylBounds:
    r"""The extreme eigenvalues of a sum of symmetric matrices, and what Weyl promises of them.

    >>> weyl_bounds(torch.diag(torch.tensor([1.0, 0.0])), torch.diag(torch.tensor([0.0, 1.0])))
    WeylBounds(smallest=1.0, largest=1.0, lower=0.0, upper=2.0)
    """
    A, B = as_symmetric(A, "the first matrix"), as_symmetric(B, "the second matrix")
    if A.shape != B.shape:
        raise ShapeMismatch(f"matrices of sizes {len(A)} and {len(B)} have no sum")
    a, b, both = (torch.linalg.eigvalsh(M) for M in (A, B, A + B))
    return WeylBounds(float(both[0]), float(both[-1]), float(a[0] + b[0]), float(a[-1] + b[-1]))


@dataclass(frozen=True, slots=True)
class GramComparison:
    r"""A sampled Gram matrix next to its expectation.

    Attributes:
        distance: $\|\hat G-G\|_{\mathrm{op}}$.
        radius: $\star$, which it exceeds with probability at most $\delta$.
        smallest, largest: extreme eigenvalues of $\hat G$.
        expected_smallest, expected_largest: of $G$.
        required_width: hidden units for which $\star\le\frac12\lambda_{\min}(G)$; None where
            $G$ is singular.
    """

    distance: float
    radius: float
    smallest: float
    largest: float
    expected_smallest: float
    expected_largest: float
    required_width: int | None

    @property
    def informative(self) -> bool:
        r"""Whether $\star<\lambda_{\min}(G)$: the bound excludes a singular matrix."""
        return self.radius < self.expected_smallest


def compare_gram(
    x: Tensor,
    weight: Tensor,
    activation: Function = "relu",
    *,
    bound: float | None = None,
    delta: float = 0.05,
) -> GramComparison:
    r"""The Gram matrix at these weights against its expectation, with $\star$.

    Args:
        x: `[n, d]`.
        weight: `[m, d]`, drawn from $\mathcal N(0,I)$.
        activation: $\sigma$.
        bound: $B$; from the table of activations unless given.
        delta: $\delta$.

    >>> w = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0)).double()
    >>> found = compare_gram(torch.eye(2).double(), w)
    >>> found.distance < found.radius, found.informative, found.required_width
    (True, False, 6592)
    """
    B = slope_bound(activation) if bound is None else bound
    sampled, expected = sampled_gram(x, weight, activation), expected_gram(x, activation)
    values, limits = torch.linalg.eigvalsh(sampled), torch.linalg.eigvalsh(expected)
    rounding = 8 * len(expected) * torch.finfo(expected.dtype).eps * float(limits[-1])
    regular = float(limits[0]) > rounding
    return GramComparison(
        distance=float(torch.linalg.matrix_norm(sampled - expected, 2)),
        radius=gram_radius(x, len(weight), bound=B, delta=delta),
        smallest=float(values[0]),
        largest=float(values[-1]),
        expected_smallest=float(limits[0]),
        expected_largest=float(limits[-1]),
        required_width=width_for_accuracy(x, float(limits[0]) / 2, bound=B, delta=delta)
        if regular
        else None,
    )
