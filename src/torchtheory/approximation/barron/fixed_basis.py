r"""What no fixed basis can do: a lower bound on linear approximation of Barron's class.

Let $\Gamma_C$ be the functions on the cube $[-\frac12,\frac12]^d$ with
$C_f\le C$. It contains $\frac C{2\pi|\ell|}\cos2\pi\ell^\top x$ and the sines for all
whole vectors $\ell\ne0$; they are orthogonal with squared norm
$\frac{C^2}{8\pi^2|\ell|^2}$. For any $k$-dimensional space and $N$ orthogonal
functions of squared norm at least $\rho$, the mean squared distance is at least
$\rho(1-k/N)$, so that

$$
\inf_{\dim V=k}\sup_{f\in\Gamma_C}\operatorname{dist}(f,V)^2\ge
\max_{N>k}\Big(1-\frac kN\Big)\frac{C^2}{8\pi^2|\ell_N|^2}\sim k^{-2/d}
$$

while networks of $k$ units reach $d\,C^2/k$. Source: Foundations of Deep Learning,
section 4.1, Remark 3, after Barron (1993), Theorem 6.
"""

from __future__ import annotations

import math

import numpy as np

from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import InvalidInput

#: How many functions of a basis are looked at before the comparison is given up.
_MOST_TERMS = 10**9


def lattice_shells(dimension: int, functions: int) -> list[tuple[int, int]]:
    r"""How many whole vectors have each squared length, until there are enough of them.

    Args:
        dimension: $d$.
        functions: how many vectors other than 0 are wanted at least.

    Returns:
        pairs (squared length, number of vectors), ascending, without empty shells. A vector and
        its negative stand for a cosine and a sine.

    >>> lattice_shells(2, 10)
    [(1, 4), (2, 4), (4, 4)]
    >>> lattice_shells(100, 1)
    [(1, 200)]
    """
    whole_number(dimension, "dimension", least=1)
    whole_number(functions, "functions", least=1)
    most = 1
    while True:
        counts = _representations(dimension, most)
        if sum(counts[1:]) >= functions:
            break
        most *= 2
    shells, total = [], 0
    for squared, count in enumerate(counts):
        if squared and count:
            shells.append((squared, count))
            total += count
            if total >= functions:
                break
    return shells


def fixed_basis_floor(terms: int, dimension: int, barron_constant: float = 1.0) -> float:
    r"""A squared error that some function of the class has in every $k$-dimensional space.

    Args:
        terms: $k$, the number of basis functions, chosen before the target is known.
        dimension: $d$.
        barron_constant: $C$ of the class.

    Cost: $O(d\,q^{3/2})$ with $q$ the largest squared length, $k^{2/d}$ or so.

    >>> round(fixed_basis_floor(4, 2) * 8 * math.pi**2, 6)      # max over N: (1 - 4/8) / 2
    0.25
    >>> round(fixed_basis_floor(100, 100) * 8 * math.pi**2, 6)
    0.5
    """
    whole_number(terms, "terms", least=1)
    constant = positive_number(barron_constant, "barron_constant")
    best, total = 0.0, 0
    # (1 - k/N) N^(-2/d) is largest at N = k (1 + d/2); every N gives a valid bound
    for squared, count in lattice_shells(dimension, (2 + dimension) * terms):
        total += count
        if total > terms:
            best = max(best, (1 - terms / total) / squared)
    return best * constant**2 / (8 * math.pi**2)


def fourier_basis_error(terms: int, dimension: int, barron_constant: float = 1.0) -> float:
    r"""The worst squared error over the waves of the class with the $k$ lowest ones as basis.

    $\frac{C^2}{8\pi^2|\ell_{k+1}|^2}$: the lowest frequencies are the natural fixed basis.

    >>> round(fourier_basis_error(4, 2) * 8 * math.pi**2, 6)
    0.5
    """
    whole_number(terms, "terms", least=1)
    constant = positive_number(barron_constant, "barron_constant")
    squared = lattice_shells(dimension, terms + 1)[-1][0]
    return constant**2 / (8 * math.pi**2 * squared)


def network_beats_every_basis(dimension: int) -> int:
    r"""The first power of two $k$ at which $dC^2/k$ is below the floor of every basis.

    From there on a network of $k$ units is provably better, in the worst case over the
    class, than any $k$ functions fixed in advance. The ball around the cube has radius
    $\sqrt d/2$, hence $(2rC)^2/k=dC^2/k$.

    >>> network_beats_every_basis(8)
    8192
    """
    if dimension < 3:
        raise InvalidInput(
            "in one or two dimensions a fixed basis is as fast: take 3 or more (dimension = "
            f"{dimension!r})"
        )
    k = 1
    while k <= _MOST_TERMS:
        if dimension / k < fixed_basis_floor(k, dimension):
            return k
        k *= 2
    raise InvalidInput(f"not before {_MOST_TERMS} functions in {dimension} dimensions")


def _representations(dimension: int, most: int) -> list[int]:
    """Numbers of whole vectors of squared length 0..most: one coordinate after the other."""
    counts = np.zeros(most + 1)  # whole numbers, exact in floating point up to 2^53
    counts[0] = 1
    for _ in range(dimension):
        longer = counts.copy()
        for i in range(1, math.isqrt(most) + 1):
            longer[i * i :] += 2 * counts[: most + 1 - i * i]
        counts = longer
    return [int(c) for c in counts]
