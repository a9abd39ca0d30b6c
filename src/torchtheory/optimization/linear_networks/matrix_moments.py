r"""Moments of products of random matrices, exactly.

The matrices $W^1,\dots,W^L$ are independent of each other; the entries of
$W^\ell\in\mathbb R^{d_\ell\times d_{\ell-1}}$ are independent with mean 0, variance
$\sigma_\ell^2$ and kurtosis $\kappa_\ell=\mathbb Ew^4/\sigma_\ell^4$: 3 for a normal
distribution, 9/5 for a uniform one, 1 for fair signs. Then second and fourth moments of
$W^L\cdots W^1x$ and of $W^L\cdots W^1$ follow layer by layer, without any limit of wide
layers. Source: Foundations of Deep Learning, section 6.2.3, Lemmas 48 and 50 for square matrices;
the recursions for other shapes and for $\|W^\top W\|_F^2$ are ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import as_matrix, as_vector
from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, ShapeMismatch

PerLayer = float | Sequence[float]
"""One number for all layers, or one per layer."""

KURTOSIS = {"normal": 3.0, "uniform": 1.8, "signs": 1.0}
"""Of the entries, by distribution."""


def sandwiched_norm(left: Tensor, right: Tensor, deviation: float) -> float:
    r"""$\mathbb E\|AWB\|_F^2=\sigma^2\|A\|_F^2\|B\|_F^2$.

    For random $A$ and $B$ take their mean squares; all three must be *independent*:
    that they are uncorrelated is not enough.

    >>> sandwiched_norm(torch.eye(3), torch.ones(2, 1), 0.5)
    1.5
    """
    (sigma,) = _deviations(deviation, 1)
    sizes = [float(as_matrix(m, n).double().square().sum()) for m, n in ((left, "A"), (right, "B"))]
    return sigma**2 * sizes[0] * sizes[1]


def forward_norms(widths: Sequence[int], deviations: PerLayer) -> list[float]:
    r"""$\mathbb E\|W^{\ell:1}x\|^2/\|x\|^2=\prod_{j\le\ell}d_j\sigma_j^2$ for
    $\ell=0,\dots,L$.

    Args:
        widths: $d_0,\dots,d_L$.
        deviations: $\sigma_\ell$.

    >>> forward_norms([3, 2, 4], 0.5)
    [1.0, 0.5, 0.5]
    """
    sigmas = _deviations(deviations, _depth(widths))
    factors = [1.0]
    for width, sigma in zip(widths[1:], sigmas, strict=True):
        factors.append(factors[-1] * width * sigma**2)
    return factors


@dataclass(frozen=True, slots=True)
class FourthMoments:
    r"""Fourth moments of a random vector $v$.

    Attributes:
        euclidean: $\mathbb E\|v\|_2^4$.
        entries: $\mathbb E\|v\|_4^4$, the sum of fourth powers.
    """

    euclidean: float
    entries: float


def fourth_moments(
    x: Tensor, widths: Sequence[int], deviations: PerLayer, kurtosis: PerLayer = 3.0
) -> list[FourthMoments]:
    r"""Fourth moments of $W^{\ell:1}x$ for $\ell=0,\dots,L$.

    For $\xi$ independent of $W\in\mathbb R^{p\times q}$,

    $$
    \begin{aligned}
    \mathbb E\|W\xi\|_2^4&=\sigma^4\bigl(p(p+2)\,\mathbb E\|\xi\|_2^4
    +(\kappa-3)\,p\,\mathbb E\|\xi\|_4^4\bigr),\\
    \mathbb E\|W\xi\|_4^4&=\sigma^4p\bigl(3\,\mathbb E\|\xi\|_2^4
    +(\kappa-3)\,\mathbb E\|\xi\|_4^4\bigr),
    \end{aligned}
    $$

    so the two are followed together; for normal entries the second is not needed.

    Args:
        x: `[d_0]`.
        widths: $d_0,\dots,d_L$.
        deviations: $\sigma_\ell$.
        kurtosis: $\kappa_\ell\ge1$.

    >>> one = torch.ones(1)
    >>> [m.euclidean for m in fourth_moments(one, [1, 1], 1.0)]          # E w^4 = 3
    [1.0, 3.0]
    >>> [m.euclidean for m in fourth_moments(one, [1, 1, 1], 1.0, 1.0)]  # a product of signs
    [1.0, 1.0, 1.0]
    """
    depth = _depth(widths)
    sigmas, kappas = _deviations(deviations, depth), _kurtoses(kurtosis, depth)
    squares = sized_vector(x, widths[0], "x").square()
    found = [FourthMoments(float(squares.sum()) ** 2, float(squares.square().sum()))]
    for p, sigma, kappa in zip(widths[1:], sigmas, kappas, strict=True):
        e, f, s = found[-1].euclidean, found[-1].entries, sigma**4
        excess = (kappa - 3) * f
        found.append(FourthMoments(s * p * ((p + 2) * e + excess), s * p * (3 * e + excess)))
    return found


@dataclass(frozen=True, slots=True)
class GramMoments:
    r"""Moments of $M=PP^\top$ for a random matrix $P$.

    Attributes:
        trace: $\mathbb E(\operatorname{tr}M)^2=\mathbb E\|P\|_F^4$.
        norm: $\mathbb E\|M\|_F^2=\mathbb E\|P^\top P\|_F^2$.
        diagonal: $\mathbb E\sum_iM_{ii}^2$.
    """

    trace: float
    norm: float
    diagonal: float


def gram_moments(
    widths: Sequence[int], deviations: PerLayer, kurtosis: PerLayer = 3.0
) -> list[GramMoments]:
    r"""Moments of $PP^\top$, $P=W^{\ell:1}$, for $\ell=0,\dots,L$.

    With $t=(\operatorname{tr}M)^2$, $s=\|M\|_F^2$, $u=\sum_iM_{ii}^2$ and
    $c=t+2s+(\kappa-3)u$, the matrix $WMW^\top$ has on average

    $$
    t'=\sigma^4p\,((p-1)t+c),\qquad s'=\sigma^4p\,((p-1)s+c),\qquad u'=\sigma^4p\,c .
    $$

    For normal entries and equal widths $d$ that is
    $\mathbb E\|P^\top P\|_F^2=\frac{\sigma^{4m}}3 \bigl((d(d+2))^{m+1}-(d(d-1))^{m+1}\bigr)$
    after $m$ layers.

    >>> [round(m.norm, 9) for m in gram_moments([2, 2, 2], 1.0)]     # (8^(m+1) - 2^(m+1)) / 3
    [2.0, 20.0, 168.0]
    """
    depth = _depth(widths)
    sigmas, kappas = _deviations(deviations, depth), _kurtoses(kurtosis, depth)
    d = float(widths[0])
    found = [GramMoments(d**2, d, d)]
    for p, sigma, kappa in zip(widths[1:], sigmas, kappas, strict=True):
        t, s, u = found[-1].trace, found[-1].norm, found[-1].diagonal
        c = t + 2 * s + (kappa - 3) * u
        scale = sigma**4 * p
        found.append(GramMoments(scale * ((p - 1) * t + c), scale * ((p - 1) * s + c), scale * c))
    return found


def three_valued_matrices(rows: int, columns: int, kurtosis: float) -> tuple[Tensor, Tensor]:
    r"""Every matrix with entries $-\sqrt\kappa,0,\sqrt\kappa$, and its probability.

    Entries that are 0 with probability $1-1/\kappa$ and otherwise
    $\pm\sqrt\kappa$ have mean 0, variance 1 and kurtosis $\kappa$; with 3 they share
    their first five moments with a standard normal number. Expectations of polynomials of low
    degree are then finite sums, without sampling. There are $3^{pq}$ matrices, or
    $2^{pq}$ for $\kappa=1$.

    Returns:
        `[N, rows, columns]` and `[N]`, in double precision.

    >>> matrices, chance = three_valued_matrices(1, 2, 3.0)
    >>> len(matrices), round(float(chance @ matrices[:, 0, 0] ** 4), 9)
    (9, 3.0)
    """
    (kappa,) = _kurtoses(kurtosis, 1)
    _depth([rows, columns])
    if 3 ** (rows * columns) > 10**7:
        raise InvalidInput(f"there are more than 10^7 matrices of {rows} x {columns} entries")
    signs = torch.tensor([-1.0, 1.0] if kappa == 1 else [-1.0, 0.0, 1.0], dtype=torch.float64)
    chances = 1 - 1 / kappa + (3 / kappa / 2 - 1) * signs.abs()
    which = torch.cartesian_prod(*[torch.arange(len(signs))] * (rows * columns))
    which = which.reshape(-1, rows * columns)
    return kappa**0.5 * signs[which].reshape(-1, rows, columns), chances[which].prod(1)


def per_layer(values: PerLayer, depth: int, name: str) -> list[float]:
    """One finite number per layer, from one for all or from a list or vector.

    >>> per_layer(2.0, 3, "deviations")
    [2.0, 2.0, 2.0]
    """
    try:
        numbers = torch.as_tensor(values, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidType(f"{name} must be a number or one per layer, not {values!r}") from None
    given: list[float] = [float(numbers)] * depth if not numbers.ndim else numbers.tolist()
    if len(given) != depth:
        raise ShapeMismatch(f"there are {depth} layers and {len(given)} {name}")
    if not all(math.isfinite(v) for v in given):
        raise NonFinite(f"{name} must be finite numbers")
    return given


def _depth(widths: Sequence[int]) -> int:
    if not widths or not all(w >= 1 and w == int(w) for w in widths):
        raise InvalidInput(f"widths are whole numbers >= 1, d_0 to d_L, not {list(widths)}")
    return len(widths) - 1


def _deviations(values: PerLayer, depth: int) -> list[float]:
    found = per_layer(values, depth, "deviations")
    if any(v < 0 for v in found):
        raise InvalidInput(f"a standard deviation is at least 0, not {min(found)!r}")
    return found


def _kurtoses(values: PerLayer, depth: int) -> list[float]:
    found = per_layer(values, depth, "kurtoses")
    if any(v < 1 for v in found):
        raise InvalidInput(f"a kurtosis is at least 1, and {min(found)} is not")
    return found


def sized_vector(x: Tensor, size: int, name: str) -> Tensor:
    """A finite vector of that many entries, in double precision.

    >>> sized_vector(torch.ones(2), 2, "x")
    tensor([1., 1.], dtype=torch.float64)
    """
    x = as_vector(x, name)
    if len(x) != size:
        raise ShapeMismatch(f"{name} must be [{size}], not {list(x.shape)}")
    return x.double()
