r"""Norms: the axioms, the induced norms of a matrix, Cauchy-Schwarz.

The vector norms themselves are `torch.linalg.vector_norm(v, p)`, Frobenius and nuclear norm
`torch.linalg.matrix_norm`. Source: Foundations of Deep Learning, section 1.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.checks import as_matrix, as_vector, whole_number
from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator, gaussian

Axiom = Literal["non-negativity", "definiteness", "homogeneity", "triangle inequality"]
AXIOMS: tuple[Axiom, ...] = (
    "non-negativity",
    "definiteness",
    "homogeneity",
    "triangle inequality",
)


def pairwise_distances(x: Tensor, y: Tensor) -> Tensor:
    r"""Euclidean distances `[n, m]` between the rows of `x[n, d]` and `y[m, d]`.

    By differences. Through $\|a\|^2+\|b\|^2-2a^\top b$, which `torch.cdist` takes for more than 25
    rows unless told otherwise, points nearer to each other than to the origin lose every digit.
    Time: `O(nmd)`; memory: `O(nm)`.

    >>> x = 1e4 + torch.arange(30.0)[:, None]
    >>> pairwise_distances(x, x)[0, :3].tolist()
    [0.0, 1.0, 2.0]
    """
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")


@dataclass(frozen=True, slots=True)
class Counterexample:
    r"""Arguments at which an axiom of a norm fails.

    Attributes:
        axiom: which one.
        u, v: the vectors; only `v` where the axiom is about one.
        scalar: $a$, where the axiom is homogeneity.
        left, right: both sides, as computed: $p(v)$ and 0, $p(av)$ and
            $|a|p(v)$, or $p(u+v)$ and $p(u)+p(v)$.
    """

    axiom: Axiom
    u: Tensor | None
    v: Tensor
    scalar: float | None
    left: float
    right: float


@dataclass(frozen=True, slots=True)
class NormCheck:
    """What a search for counterexamples to the axioms found.

    Attributes:
        counterexamples: the worst one of each axiom that fails.
        trials: how many pairs of vectors were tried.
    """

    counterexamples: dict[Axiom, Counterexample]
    trials: int

    @property
    def refuted(self) -> bool:
        """Whether an axiom fails. False means only that no counterexample was met."""
        return bool(self.counterexamples)


def check_norm(
    function: Callable[[Tensor], Tensor | float],
    shape: Sequence[int],
    *,
    trials: int = 300,
    generator: RandomSource = None,
    dtype: torch.dtype = torch.float64,
) -> NormCheck:
    r"""Look for counterexamples to $p$ being a norm on tensors of a shape.

    The axioms are $p(v)\ge0$; $p(v)=0$ only for $v=0$; $p(av)=|a|p(v)$;
    $p(u+v)\le p(u)+p(v)$. They are tried on unit vectors and their sums and differences, on
    random vectors of very different length, on sparse ones and on multiples of each other.
    Sampling can refute an axiom and cannot prove it.

    Args:
        function: $p$, from a tensor of the shape to a number.
        shape: of the vectors; `(m, n)` for a norm of matrices.
        trials: number of random pairs.
        generator: seed or generator of the vectors.
        dtype: of the vectors. Equality is meant up to $10^4$ machine epsilons.

    Cost: about `4 * trials` calls of the function.

    >>> check_norm(lambda v: v.abs().sum(), (3,)).refuted
    False
    >>> found = check_norm(lambda v: v.square().sum(), (3,)).counterexamples
    >>> sorted(found)
    ['homogeneity', 'triangle inequality']
    """
    if any(side < 1 for side in shape):
        raise ShapeMismatch(f"vectors need at least one entry, the shape is {tuple(shape)}")
    whole_number(trials, "trials", least=1)
    worst: dict[Axiom, tuple[float, Counterexample]] = {}
    slack = 1e4 * torch.finfo(dtype).eps

    def p(v: Tensor) -> float:
        value = float(function(v))
        if not math.isfinite(value):
            raise NonFinite(f"the function is {value} at a vector of length {float(v.norm()):g}")
        return value

    def meet(found: Counterexample, excess: float) -> None:
        if found.axiom not in worst or excess > worst[found.axiom][0]:
            worst[found.axiom] = (excess, found)

    count = 0
    for u, v, a in _trial_vectors(tuple(shape), trials, as_generator(generator), dtype):
        count += 1
        of_u, of_v, of_sum, of_multiple = p(u), p(v), p(u + v), p(a * v)
        size = float(v.norm())
        if of_v < 0:
            meet(Counterexample("non-negativity", None, v, None, of_v, 0.0), -of_v)
        elif size > 0 and of_v <= slack * size:
            meet(Counterexample("definiteness", None, v, None, of_v, 0.0), size)
        scale = max(abs(of_multiple), abs(a * of_v))
        excess = abs(of_multiple - abs(a) * of_v)
        if excess > slack * max(scale, size * abs(a)):
            example = Counterexample("homogeneity", None, v, a, of_multiple, abs(a) * of_v)
            meet(example, excess / scale)
        excess = of_sum - of_u - of_v
        if excess > slack * max(abs(of_u) + abs(of_v), float(u.norm()) + size):
            example = Counterexample("triangle inequality", u, v, None, of_sum, of_u + of_v)
            meet(example, excess / max(abs(of_sum), abs(of_u) + abs(of_v)))
    return NormCheck({axiom: worst[axiom][1] for axiom in AXIOMS if axiom in worst}, count)


def _trial_vectors(
    shape: tuple[int, ...], trials: int, generator: torch.Generator, dtype: torch.dtype
) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Pairs of vectors and scalars, from the most telling to the random ones."""
    size = math.prod(shape)
    units = torch.eye(min(size, 8), size, dtype=dtype)
    for i, e in enumerate(units):
        yield e.reshape(shape), e.reshape(shape), -2.0
        for f in units[:i]:
            yield e.reshape(shape), f.reshape(shape), -1.0
            yield (e + f).reshape(shape), (e - f).reshape(shape), 0.5
    yield torch.zeros(shape, dtype=dtype), units[0].reshape(shape), 0.0
    for trial in range(trials):
        draws = gaussian(2, size, generator=generator, dtype=dtype)
        a, *exponents = gaussian(3, generator=generator, dtype=dtype).tolist()
        u, v = draws[0] * 10 ** exponents[0], draws[1] * 10 ** exponents[1]
        if trial % 4 == 1:
            u = v * a
        if trial % 4 == 2:
            u = torch.where(u.abs() < u.abs().max(), 0.0, u)
        yield u.reshape(shape), v.reshape(shape), 3 * a


@dataclass(frozen=True, slots=True)
class InducedNorm:
    r"""The norm $\|A\|_p$ of a matrix, or an enclosure of it; `float(n)` is the value.

    Attributes:
        value: $\|Ax\|_p/\|x\|_p$ at `maximizer`: the norm itself for
            $p\in\{1,2,\infty\}$, and a lower bound for other $p$.
        upper: an upper bound; the value itself where it is exact.
        maximizer: `[n]`, of unit $p$-norm.
    """

    value: float
    upper: float
    maximizer: Tensor

    @property
    def exact(self) -> bool:
        """Whether the value is the norm (up to rounding) and not only a lower bound."""
        return self.value == self.upper

    def __float__(self) -> float:
        return self.value


def induced_norm(
    A: Tensor,
    p: float = 2.0,
    *,
    starts: int = 20,
    steps: int = 200,
    generator: RandomSource = None,
) -> InducedNorm:
    r"""The operator norm $\|A\|_p=\sup_{x\ne0}\|Ax\|_p/\|x\|_p$ of `A[m, n]`.

    For $p=1$ the largest column sum of moduli, for $p=\infty$ the largest row sum,
    for $p=2$ the largest singular value. Computing it for other $p$ is hard in
    general. There the value is a lower bound, the best of several runs of Boyd's power method
    $x\leftarrow\psi_q(A^\top\psi_p(Ax))$ with $\psi_p(y)=|y|^{p-1}\operatorname{sgn}y$
    and $1/p+1/q=1$, which never decreases the ratio and finds the norm of a matrix with
    positive entries; and `upper` is the bound by Riesz and Thorin from the two exact norms
    next to $p$. For a map that is known only by its action see
    `torchtheory.linalg.singular_values.operator_norm`.

    Args:
        A: `[m, n]`.
        p: from 1 to `math.inf`.
        starts: of the power method, besides the unit vectors of the largest columns.
        steps: of the power method.
        generator: seed or generator of its starts.

    Cost: $O(mn)$ for 1 and $\infty$, $O(mn\min(m,n))$ for 2, else
    $O(mn)$ per start and iteration.

    >>> A = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
    >>> float(induced_norm(A, 1)), float(induced_norm(A, math.inf))
    (6.0, 7.0)
    >>> between = induced_norm(A.double(), 4)
    >>> between.exact, between.value <= between.upper
    (False, True)
    """
    A = as_matrix(A)
    if math.isnan(p) or p < 1:
        raise InvalidInput(f"an induced norm needs 1 <= p <= inf, not {p}: below 1 it is no norm")
    if p == 1:
        return _attained(A, torch.eye(A.shape[1]).to(A)[int(A.abs().sum(0).argmax())], p)
    if p == math.inf:
        row = A[int(A.abs().sum(1).argmax())]
        return _attained(A, torch.where(row < 0, -1.0, 1.0).to(A), p)
    if p == 2:
        _, sigma, right = torch.linalg.svd(A, full_matrices=False)
        return InducedNorm(float(sigma[0]), float(sigma[0]), right[0])
    whole_number(starts, "starts", least=1, most=10**6)
    whole_number(steps, "steps", least=1)
    lower = _power_method(A, p, starts, steps, as_generator(generator))
    near, share = (1.0, 2 / p - 1) if p < 2 else (math.inf, 1 - 2 / p)
    outer, middle = induced_norm(A, near).value, induced_norm(A, 2.0).value
    return InducedNorm(
        lower.value, max(lower.value, outer**share * middle ** (1 - share)), lower.maximizer
    )


def _attained(A: Tensor, x: Tensor, p: float) -> InducedNorm:
    x = x / torch.linalg.vector_norm(x, p)
    value = float(torch.linalg.vector_norm(A @ x, p))
    return InducedNorm(value, value, x)


def _power_method(
    A: Tensor, p: float, starts: int, steps: int, generator: torch.Generator
) -> InducedNorm:
    n = A.shape[1]
    largest = torch.linalg.vector_norm(A, p, dim=0).argsort(descending=True)[:8].cpu()
    random = gaussian(n, starts, generator=generator, dtype=A.dtype, device=A.device)
    x = torch.cat([torch.eye(n).to(A)[:, largest], random, random.abs()], dim=1)
    q = p / (p - 1)
    for _ in range(steps):
        x = _dual(A.T @ _dual(A @ x, p), q)
    x = x / torch.linalg.vector_norm(x, p, dim=0).clamp_min(torch.finfo(x.dtype).tiny)
    best = int(torch.linalg.vector_norm(A @ x, p, dim=0).argmax())
    return _attained(A, x[:, best], p) if bool(x[:, best].any()) else _attained(A, x[:, 0] + 1, p)


def _dual(y: Tensor, p: float) -> Tensor:
    """Columns $|y|^{p-1} sgn y$, scaled to modulus at most 1 so that no power overflows."""
    y = y / y.abs().amax(0).clamp_min(torch.finfo(y.dtype).tiny)
    return y.sign() * y.abs() ** (p - 1)


@dataclass(frozen=True, slots=True)
class CauchySchwarz:
    r"""Both sides of $|\langle x,y\rangle|\le\|x\|\|y\|$, and the parabola that proves it.

    Attributes:
        inner: $\langle x,y\rangle$.
        bound: $\|x\|\|y\|$.
        minimizer: $z^\star=\langle x,y\rangle/\|y\|^2$, which minimizes
            $f(z)=\sum_i(x_i-zy_i)^2$; 0 for $y=0$.
        minimum: $f(z^\star)\ge0$, which is
            $(\|x\|^2\|y\|^2-\langle x,y\rangle^2)/\|y\|^2$.
    """

    inner: float
    bound: float
    minimizer: float
    minimum: float

    @property
    def gap(self) -> float:
        r"""$\|x\|\|y\|-|\langle x,y\rangle|$; 0 exactly for linearly dependent vectors."""
        return self.bound - abs(self.inner)


def cauchy_schwarz(x: Tensor, y: Tensor) -> CauchySchwarz:
    r"""The Cauchy-Schwarz inequality for two vectors `[d]` (Proposition 1).

    >>> found = cauchy_schwarz(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 0.0]))
    >>> found.inner, found.bound, found.gap, found.minimum
    (3.0, 5.0, 2.0, 16.0)
    """
    x, y = as_vector(x, "x"), as_vector(y, "y")
    if x.shape != y.shape:
        raise ShapeMismatch(f"x has {len(x)} entries and y has {len(y)}")
    inner, square = x @ y, y @ y
    z = inner / square if bool(square > 0) else torch.zeros_like(inner)
    return CauchySchwarz(
        float(inner), float(x.norm() * y.norm()), float(z), float((x - z * y).square().sum())
    )
