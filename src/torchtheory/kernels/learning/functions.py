r"""Kernels as small objects that are called, added, multiplied, scaled and composed.

A kernel is a symmetric function $K(x,x')=\langle\phi(x),\phi(x')\rangle$ of two points. A
`Kernel` is called with points as rows, `k(x1, x2) -> [n, m]`; the features stay
unwritten. Sources: Foundations of Deep Learning, Definition 25 and section 7.2.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.checks import all_finite, positive_number, whole_number
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch
from torchtheory.linalg.operators import LinearOperator, column_blocks
from torchtheory.primer.norms import pairwise_distances

Features = Callable[[Tensor], Tensor]

#: Coordinates up to which differences one by one are as fast as a matrix product.
FEW = 8


@dataclass(frozen=True, slots=True, repr=False)
class Kernel:
    r"""A kernel $K(x,x')$, from what it does to two arrays of points.

    `k(x1, x2)` is the matrix $K(x_i,x'_j)$ `[n, m]` and `k(x)` the Gram matrix
    $K(x_i,x_j)$ `[n, n]`; rows are computed in blocks, so that what is needed on the way
    stays below a fixed size. `k.diagonal(x)` is $K(x_i,x_i)$ `[n]` without the matrix.
    Sums and products of kernels are kernels, and so are positive multiples and
    $K(g(x),g(x'))$ for any map $g$: `k1 + k2`, `k1 * k2`, `2.0 * k`,
    `k.after(g)`. Gradients flow to the points and to whatever the functions depend on.

    Attributes:
        matrix: from `x1[n, ...]` and `x2[m, ...]` to `[n, m]`, without checks or blocks.
        on_diagonal: from `x[n, ...]` to `[n]`.
        name: what it prints as.

    Example: a sum of kernels has the features of both.

    >>> x = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
    >>> k = linear() + 2.0 * polynomial(2)
    >>> k
    linear() + 2 * polynomial(2)
    >>> k(x), k.diagonal(x)
    (tensor([[ 3.,  3.],
            [ 3., 55.]]), tensor([ 3., 55.]))
    """

    matrix: Callable[[Tensor, Tensor], Tensor]
    on_diagonal: Callable[[Tensor], Tensor]
    name: str = "kernel"

    def __call__(self, x1: Tensor, x2: Tensor | None = None) -> Tensor:
        """The matrix of all pairs, `[n, m]`; `x2` is `x1` unless given."""
        first, second = _two_samples(x1, x2)
        n, m = len(first), len(second)
        blocks = list(column_blocks(m, n))
        if len(blocks) == 1:
            return self._checked(self.matrix(first, second), n, m)
        out = first.new_empty(n, m)
        for rows in blocks:
            part = self.matrix(first[rows.start : rows.stop], second)
            out[rows.start : rows.stop] = self._checked(part, len(rows), m)
        return out

    def diagonal(self, x: Tensor) -> Tensor:
        """The values at equal points, `[n]`."""
        return self.on_diagonal(_sample(x, "x"))

    def after(self, function: Features) -> Kernel:
        r"""The kernel $K(g(x),g(x'))$ of a map $g$ of the points, row by row.

        A restriction to some coordinates, a change of units, or the layers of a network.

        >>> k = gaussian().after(lambda x: x[:, :1])            # sees the first coordinate only
        >>> k(torch.tensor([[1.0, 5.0], [1.0, -7.0]]))
        tensor([[1., 1.],
                [1., 1.]])
        """
        if not callable(function):
            raise InvalidType(f"a map of the points is a function, not {function!r:.60}")
        return Kernel(
            lambda a, b: self.matrix(function(a), function(b)),
            lambda a: self.on_diagonal(function(a)),
            f"{self.name}.after({getattr(function, '__name__', 'map')})",
        )

    def __add__(self, other: Kernel) -> Kernel:
        if not isinstance(other, Kernel):
            return NotImplemented
        return Kernel(
            lambda a, b: self.matrix(a, b) + other.matrix(a, b),
            lambda a: self.on_diagonal(a) + other.on_diagonal(a),
            f"{self.name} + {other.name}",
        )

    def __mul__(self, other: Kernel | float) -> Kernel:
        if isinstance(other, Kernel):
            return Kernel(
                lambda a, b: self.matrix(a, b) * other.matrix(a, b),
                lambda a: self.on_diagonal(a) * other.on_diagonal(a),
                f"{_factor(self)} * {_factor(other)}",
            )
        if isinstance(other, bool) or not isinstance(other, int | float):
            return NotImplemented
        if not (math.isfinite(other) and other > 0):
            raise InvalidInput(f"a multiple of a kernel is one for factors above 0, not {other}")
        scale = float(other)
        return Kernel(
            lambda a, b: scale * self.matrix(a, b),
            lambda a: scale * self.on_diagonal(a),
            f"{scale:g} * {_factor(self)}",
        )

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return self.name

    def _checked(self, part: Tensor, n: int, m: int) -> Tensor:
        if part.shape != (n, m):
            raise ShapeMismatch(
                f"{self.name} must give [{n}, {m}] for {n} and {m} points, it gave "
                f"{list(part.shape)}"
            )
        return part


# -- the kernels --------------------------------------------------------------------------------


def from_features(phi: Features, name: str = "from_features") -> Kernel:
    r"""The kernel $K(x,x')=\langle\phi(x),\phi(x')\rangle$ of a feature map (Definition 25).

    Args:
        phi: from points `[n, ...]` to features `[n, p]`; a network's last layer will do.
        name: what the kernel prints as.

    Cost: $O(nmp)$ and the features, which are computed once for each block of rows.

    >>> k = from_features(lambda x: torch.cat([x, x**2], dim=1))
    >>> k(torch.tensor([[1.0], [2.0]]))
    tensor([[ 2.,  6.],
            [ 6., 20.]])
    """
    if not callable(phi):
        raise InvalidType(f"a feature map is a function of the points, not {phi!r:.60}")

    def features(x: Tensor) -> Tensor:
        made = phi(x)
        if made.ndim != 2 or len(made) != len(x):
            raise ShapeMismatch(
                f"a feature map takes {len(x)} points to [{len(x)}, p], this one gave "
                f"{list(made.shape)}"
            )
        return made

    def matrix(a: Tensor, b: Tensor) -> Tensor:
        left = features(a)
        right = left if b is a else features(b)
        return left @ right.T

    return Kernel(matrix, lambda a: features(a).square().sum(1), name)


def linear() -> Kernel:
    r"""The inner product $x^\top x'$.

    >>> linear()(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
    tensor([[11.]])
    """
    return Kernel(lambda a, b: _inner(a, b), lambda a: _rows(a).square().sum(1), "linear()")


def polynomial(degree: int = 2, offset: float = 0.0) -> Kernel:
    r"""$(x^\top x'+c)^q$, whose features are the monomials of degree $q$.

    With an `offset` $c>0$, of all degrees up to $q$. For degree 2 without offset
    the features are `quadratic_features`.

    >>> polynomial(2)(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, -1.0]]))
    tensor([[1.]])
    """
    whole_number(degree, "degree", least=1, most=1000)
    if not (math.isfinite(offset) and offset >= 0):
        raise InvalidInput(
            f"the offset of a polynomial kernel must be a number >= 0, not {offset!r}: below 0 "
            "its matrices are not positive semidefinite"
        )
    return Kernel(
        lambda a, b: (_inner(a, b) + offset) ** degree,
        lambda a: (_rows(a).square().sum(1) + offset) ** degree,
        f"polynomial({degree}{f', {offset:g}' if offset else ''})",
    )


def gaussian(lengthscale: float = 1.0) -> Kernel:
    r"""The Gaussian or radial basis function kernel $\exp(-\|x-x'\|^2/2\ell^2)$.

    Distances as in `squared_distances`; an image counts as the vector of its pixels. A
    length for each coordinate is `gaussian().after(lambda x: x / lengths)`.

    >>> gaussian()(torch.tensor([[0.0]]), torch.tensor([[0.0], [1.0]]))
    tensor([[1.0000, 0.6065]])
    """
    length = _length(lengthscale)
    return Kernel(
        lambda a, b: squared_distances(a, b).mul(-0.5 / length**2).exp(),
        _ones,
        f"gaussian({length:g})",
    )


def matern(smoothness: float = 1.5, lengthscale: float = 1.0) -> Kernel:
    r"""The Matérn kernel of smoothness $\nu$, whose Gaussian process is differentiable
    $\lceil\nu\rceil-1$ times.

    With $r=\|x-x'\|/\ell$: $e^{-r}$ for $\nu=1/2$,
    $(1+\sqrt3r)e^{-\sqrt3r}$ for $3/2$, and
    $(1+\sqrt5r+\frac53r^2)e^{-\sqrt5r}$ for $5/2$; the Gaussian is the limit
    $\nu\to\infty$.

    >>> matern(0.5)(torch.tensor([[0.0]]), torch.tensor([[2.0]]))        # exp(-2)
    tensor([[0.1353]])
    """
    length = _length(lengthscale)
    polynomials: dict[float, Callable[[Tensor], Tensor]] = {
        0.5: torch.ones_like,
        1.5: lambda s: 1 + s,
        2.5: lambda s: 1 + s + s.square() / 3,
    }
    if smoothness not in polynomials:
        raise InvalidInput(f"the smoothness must be 0.5, 1.5 or 2.5, not {smoothness!r}")
    factor = polynomials[smoothness]

    def matrix(a: Tensor, b: Tensor) -> Tensor:
        s = distances(a, b) * (math.sqrt(2 * smoothness) / length)
        return factor(s) * torch.exp(-s)

    return Kernel(matrix, _ones, f"matern({smoothness:g}, {length:g})")


def laplace(lengthscale: float = 1.0) -> Kernel:
    r"""The Laplace kernel $e^{-\|x-x'\|/\ell}$ with the Euclidean norm: Matérn's at 1/2.

    >>> laplace(2.0)(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]]))   # exp(-5/2)
    tensor([[0.0821]])
    """
    made = matern(0.5, lengthscale)
    return Kernel(made.matrix, made.on_diagonal, f"laplace({lengthscale:g})")


def arc_cosine(order: Literal[0, 1, 2] = 1) -> Kernel:
    r"""The mean $\mathbb E\,s(w^\top x)s(w^\top x')$ over $w\sim N(0,I)$, for
    $s(u)=\max(u,0)^q$ (Cho and Saul, 2009).

    With the angle $t$ between the points it is $\frac{\|x\|^q\|x'\|^q}{2\pi}J_q(t)$,
    $J_0=\pi-t$, $J_1=\sin t+(\pi-t)\cos t$,
    $J_2=3\sin t\cos t+(\pi-t)(1+2\cos^2t)$. Order 1 is the kernel of infinitely many random
    ReLU features, order 0 that of threshold units. The angle is
    $2\arctan(\|u-u'\|/\|u+u'\|)$ of the unit vectors, accurate also where the points are
    almost parallel and the arc cosine is not. At the origin the orders 1 and 2 are 0, and order 0
    is refused.

    >>> k = arc_cosine()
    >>> k(torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]]))
    tensor([[1.0000, 0.4775, 0.0000]])
    """
    if order not in (0, 1, 2):
        raise InvalidInput(f"the order of an arc-cosine kernel is 0, 1 or 2, not {order!r}")

    def lengths_and_units(x: Tensor) -> tuple[Tensor, Tensor]:
        x = _rows(x)
        lengths = x.norm(dim=1)
        if order == 0 and not bool(lengths.all()):
            raise InvalidInput("the arc-cosine kernel of order 0 has no value at the origin")
        return lengths, x / lengths.clamp_min(torch.finfo(x.dtype).tiny)[:, None]

    def matrix(a: Tensor, b: Tensor) -> Tensor:
        (left, u), (right, v) = lengths_and_units(a), lengths_and_units(b)
        # s is pi - t, exactly 0 for opposite points, where the kernel vanishes
        s = 2 * torch.atan2(distances(u, -v), distances(u, v))
        if order == 0:
            return s / (2 * math.pi)
        if order == 1:
            angular = torch.sin(s) - s * torch.cos(s)
        else:
            angular = s * (1 + 2 * torch.cos(s).square()) - 3 * torch.sin(s) * torch.cos(s)
        return torch.outer(left**order, right**order) * angular / (2 * math.pi)

    constant = {0: 0.5, 1: 0.5, 2: 1.5}[order]
    return Kernel(
        matrix,
        lambda a: constant * lengths_and_units(a)[0] ** (2 * order),
        f"arc_cosine({order})",
    )


def cosine_normalized(kernel: Kernel) -> Kernel:
    r"""$K(x,x')/\sqrt{K(x,x)K(x',x')}$, the cosine of the angle between the features.

    >>> cosine_normalized(linear())(torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0, 0.0]]))
    tensor([[0.6000]])
    """

    def lengths(x: Tensor) -> Tensor:
        square = kernel.on_diagonal(x)
        if bool((square <= 0).any()):
            raise InvalidInput(
                f"{kernel.name} is 0 at some point with itself: its features have no direction"
            )
        return square.sqrt()

    return Kernel(
        lambda a, b: kernel.matrix(a, b) / lengths(a)[:, None] / lengths(b),
        lambda a: torch.ones_like(lengths(a)),
        f"cosine_normalized({kernel.name})",
    )


def quadratic_features(x: Tensor) -> Tensor:
    r"""The squares and $\sqrt2x_ix_j$, `[n, d (d + 1) / 2]`: features of
    $(x^\top x')^2$.

    In the plane, $\phi(x)=(x_1^2,x_2^2,\sqrt2x_1x_2)$; in general the $d$ squares
    come first, then the products with $i<j$ row by row.

    >>> quadratic_features(torch.tensor([[1.0, 3.0]]))
    tensor([[1.0000, 9.0000, 4.2426]])
    """
    x = _rows(_sample(x, "x"))
    i, j = torch.triu_indices(x.shape[1], x.shape[1], offset=1, device=x.device)
    return torch.cat([x.square(), math.sqrt(2) * x[:, i] * x[:, j]], dim=1)


# -- the matrix as a map ------------------------------------------------------------------------


def kernel_operator(kernel: Kernel, x1: Tensor, x2: Tensor | None = None) -> LinearOperator:
    r"""The map $v\mapsto K(x_1,x_2)v$ of shape `(n, m)`, in blocks of rows.

    For as many points as the matrix would not fit for: products, conjugate gradients, leading
    eigenvalues. Symmetric when `x2` is left out.

    Cost: each product computes the kernel again, $O(nm)$ values in $O(m)$ memory and
    a fixed block.

    >>> x = torch.tensor([[0.0], [1.0]])
    >>> kernel_operator(gaussian(), x) @ torch.tensor([1.0, 0.0])
    tensor([1.0000, 0.6065])
    """
    first, second = _two_samples(x1, x2)
    n, m = len(first), len(second)

    def product(a: Tensor, b: Tensor) -> Callable[[Tensor], Tensor]:
        def action(v: Tensor) -> Tensor:
            # blocks of a few megabytes: larger ones only leave the cache
            blocks = column_blocks(len(b), len(a), 2**20)
            return torch.cat([kernel.matrix(a[r.start : r.stop], b) @ v for r in blocks])

        return action

    return LinearOperator(
        (n, m),
        product(first, second),
        product(second, first),
        batched=True,
        symmetric=x2 is None,
        dtype=first.dtype,
        device=first.device,
    )


# -- distances ----------------------------------------------------------------------------------


def distances(x1: Tensor, x2: Tensor) -> Tensor:
    r"""Euclidean distances `[n, m]`, each with a relative error near rounding.

    See `squared_distances`; the distance of a point from itself is exactly 0.

    >>> distances(torch.tensor([[1e8], [1e8 + 8]]), torch.tensor([[1e8]])).tolist()
    [[0.0], [8.0]]
    """
    a, b = _rows(x1), _rows(x2)
    if a.shape[1] <= FEW:
        return pairwise_distances(a, b)
    square = squared_distances(a, b)
    # the square root's slope at 0 would be infinite, and a gradient of it not a number
    zero = square == 0
    return square.masked_fill(zero, 1.0).sqrt().masked_fill(zero, 0.0)


def squared_distances(x1: Tensor, x2: Tensor) -> Tensor:
    r"""Squared Euclidean distances `[n, m]` without the cancellation of the usual expansion.

    $\|a\|^2+\|b\|^2-2a^\top b$ is one matrix product, and loses every digit of the distance
    of two points that are much nearer to each other than to the origin. Up to 8 coordinates the
    differences are squared and summed one by one instead. Beyond, the expansion is used around the
    mean, and the pairs for which it would lose two digits or more are done one by one (all of
    them, if they are more than one in a hundred).

    Cost: $O(nmd)$, memory $O(nm)$.

    >>> x = 1e6 + torch.tensor([[0.0], [1.0], [2.0]])
    >>> squared_distances(x, x[:1]).tolist()
    [[0.0], [1.0], [4.0]]
    """
    a, b = _rows(x1), _rows(x2)
    if a.shape[1] <= FEW:
        return pairwise_distances(a, b).square()
    center = b.mean(0)
    a, b = a - center, b - center
    size = a.square().sum(1)[:, None] + b.square().sum(1)
    square = size - 2 * a @ b.T
    i, j = (square < 1e-2 * size).nonzero(as_tuple=True)
    if len(i) > max(100, square.numel() // 100):
        return pairwise_distances(a, b).square()
    return square.clamp_min(0).index_put((i, j), (a[i] - b[j]).square().sum(1))


# -- points -------------------------------------------------------------------------------------


def _sample(x: Tensor, name: str) -> Tensor:
    """Points `[n, ...]`, checked; a plain vector is n points of the line."""
    if not isinstance(x, Tensor):
        raise InvalidType(f"{name} must be a torch tensor of points, not {type(x).__name__}")
    if x.dtype not in (torch.float32, torch.float64):
        raise InvalidType(f"{name} must be float32 or float64, not {x.dtype}: call .double()")
    if x.ndim == 0 or x.numel() == 0:
        raise EmptyData(f"{name} must be [points, ...] with at least one point")
    all_finite(x, name)
    return x


def _two_samples(x1: Tensor, x2: Tensor | None) -> tuple[Tensor, Tensor]:
    first = _sample(x1, "x" if x2 is None else "x1")
    if x2 is None:
        return first, first
    second = _sample(x2, "x2")
    if first.shape[1:] != second.shape[1:]:
        raise ShapeMismatch(
            f"a kernel compares points of one shape, not {list(first.shape[1:])} with "
            f"{list(second.shape[1:])}"
        )
    if first.dtype != second.dtype or first.device != second.device:
        raise InvalidType(
            f"x1 is {first.dtype} on {first.device} and x2 {second.dtype} on {second.device}; "
            "convert one"
        )
    return first, second


def _rows(x: Tensor) -> Tensor:
    return x.reshape(len(x), -1)


def _inner(a: Tensor, b: Tensor) -> Tensor:
    return _rows(a) @ _rows(b).T


def _ones(x: Tensor) -> Tensor:
    return x.new_ones(len(x))


def _length(lengthscale: float) -> float:
    positive_number(lengthscale, "the lengthscale")
    return float(lengthscale)


def _factor(kernel: Kernel) -> str:
    return f"({kernel.name})" if " + " in kernel.name else kernel.name
