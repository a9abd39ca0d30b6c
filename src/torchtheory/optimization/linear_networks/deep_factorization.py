r"""A matrix as a product $W=W_L\cdots W_1$, learned from linear measurements.

The measurements are $\langle W,A_i\rangle_F$, the labels those of a planted $W^\star$,
and the loss is $\frac1{2L}$ times the mean squared difference. With independent standard
normal entries of $A$ its expectation is $\frac1{2L}\|W-W^\star\|_F^2$. Under gradient
flow from balanced factors the product obeys an equation of its own,

$$
\dot W=\frac1L\sum_{k=1}^L(WW^\top)^{\frac{L-k}L}(W^\star-W)(W^\top W)^{\frac{k-1}L},
$$

and where $W$ and $W^\star$ share their singular vectors each singular value does:
$\dot s=s^{2-2/L}(s^\star-s)$. Factors are listed from the input on, each `[out, in]`.
Source: Foundations of Deep Learning, section 6.4, Problem 1 (called matrix completion there; what
it describes is matrix sensing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from scipy import special
from scipy.integrate import solve_ivp
from torch import Tensor, nn
from torchdiffeq import odeint

from torchtheory.core.checks import as_matrix, as_vector, described, first_entry, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, NotConverged, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.models.problem import Problem


class FactoredMatrix(nn.Module):
    r"""The product $W=W_L\cdots W_1$ as a model: from measurements $A_i$ to
    $\langle W,A_i\rangle_F$, or from vectors $x_i$ to $Wx_i$.

    Args:
        factors: $W_1,\dots,W_L$; copies of them are the parameters.

    The forward pass maps `[n, out, in]` to `[n]`, and `[n, in]` to `[n, out]`.

    >>> two = FactoredMatrix([torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [0.0]])])
    >>> two.product().tolist()
    [[3.0, 6.0], [0.0, 0.0]]
    >>> two(torch.ones(1, 2, 2)).tolist()
    [9.0]
    """

    def __init__(self, factors: Sequence[Tensor]) -> None:
        super().__init__()
        self.factors = nn.ParameterList(w.clone() for w in chained(factors))

    def product(self) -> Tensor:
        """$W$, `[out, in]`."""
        return product_of(list(self.factors))

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 2:
            return x @ self.product().T
        return x.flatten(1) @ self.product().flatten()


def chained(factors: Sequence[Tensor]) -> list[Tensor]:
    """The factors, detached, once it is known that they can be multiplied.

    >>> len(chained([torch.eye(2), torch.ones(1, 2)]))
    2
    """
    if not isinstance(factors, list | tuple) or not factors:
        raise InvalidType(
            f"the factors are a list of matrices, from the input on, not {described(factors)}"
        )
    checked = [as_matrix(w, f"factor {k}") for k, w in enumerate(factors, 1)]
    for k, (before, after) in enumerate(pairwise(checked), 1):
        if after.shape[1] != before.shape[0]:
            raise ShapeMismatch(
                f"factor {k} is {list(before.shape)} and factor {k + 1} {list(after.shape)}: "
                "what one gives the next must take"
            )
        if after.dtype != before.dtype:
            raise InvalidType(f"factor {k} is {before.dtype} and factor {k + 1} {after.dtype}")
    return checked


def product_of(factors: Sequence[Tensor]) -> Tensor:
    r"""$W_L\cdots W_1$ of `[..., out, in]`, from the input on.

    >>> product_of([torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0]])])
    tensor([[3., 6.]])
    """
    if not factors:
        raise InvalidInput("a product needs at least one factor")
    made = factors[0]
    for w in factors[1:]:
        made = w @ made
    return made


def gaussian_measurements(
    count: int,
    rows: int,
    columns: int,
    *,
    generator: RandomSource = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Matrices with independent standard normal entries, `[count, rows, columns]`.

    >>> gaussian_measurements(5, 2, 3).shape
    torch.Size([5, 2, 3])
    """
    for size, name in ((count, "measurements"), (rows, "rows"), (columns, "columns")):
        whole_number(size, f"the number of {name}", least=1)
    return gaussian(count, rows, columns, generator=as_generator(generator), dtype=dtype)


def entry_measurements(observed: Tensor) -> Tensor:
    r"""Matrix completion: one measurement $A=e_ie_j^\top$ for every observed entry.

    Args:
        observed: `[rows, columns]` of bool.

    In double precision, `[observed entries, rows, columns]`.

    >>> entry_measurements(torch.tensor([[True, False], [False, True]])).flatten(1).tolist()
    [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    """
    if observed.ndim != 2 or observed.dtype != torch.bool:
        raise InvalidType(
            f"which entries are observed is said by a matrix of bool, not {described(observed)}"
        )
    if not bool(observed.any()):
        raise InvalidInput("at least one entry must be observed")
    places = observed.flatten().nonzero()
    made = torch.zeros(len(places), observed.numel(), dtype=torch.float64, device=observed.device)
    return made.scatter_(1, places, 1.0).reshape(-1, *observed.shape)


def sensing_problem(
    factors: Sequence[Tensor], target: Tensor, measurements: Tensor | None = None
) -> Problem:
    r"""Learning $W^\star$ by a product: a problem for `gradient_flow`, `gradient` or
    `hessian_operator`.

    The loss is $\frac1{2L}\frac1n\sum_i\langle W-W^\star,A_i\rangle_F^2$, in expectation
    $\frac1{2L}\|W-W^\star\|_F^2=\frac1{2L}\sum_j\|(W-W^\star)e_j\|^2$: that of a linear
    network which is shown the unit vectors.

    Args:
        factors: $W_1,\dots,W_L$ at the start.
        target: $W^\star$, `[out, in]`.
        measurements: $A$, `[n, out, in]`, from `gaussian_measurements` or
            `entry_measurements`; the expectation over Gaussian ones unless given.

    >>> p = sensing_problem([torch.eye(4), torch.eye(4)], 3 * torch.eye(4))
    >>> p.risk(p.train)                                                   # 4 * 2² / 4
    4.0
    """
    model = FactoredMatrix(factors)
    goal = as_matrix(target, "the target")
    shape = model.product().shape
    if goal.shape != shape:
        raise ShapeMismatch(f"the target is {list(goal.shape)} and the product {list(shape)}")
    if goal.dtype != model.factors[0].dtype:
        raise InvalidType(f"the target is {goal.dtype} and the factors {model.factors[0].dtype}")
    if measurements is None:
        # scaled so that the mean over the unit vectors is their sum
        x = torch.eye(shape[1], dtype=goal.dtype, device=goal.device) * shape[1] ** 0.5
        labels = x @ goal.T
    elif measurements.ndim != 3 or measurements.shape[1:] != shape or not len(measurements):
        raise ShapeMismatch(
            f"measurements are [n, {shape[0]}, {shape[1]}], not {list(measurements.shape)}"
        )
    else:
        x = measurements.to(goal)
        labels = x.flatten(1) @ goal.flatten()
    depth = len(model.factors)

    def half_square(outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - y).square().sum() / (2 * depth * len(y))

    return Problem(model, (x, labels), loss=half_square, task="regression", limit=len(labels))


def product_gradients(factors: Sequence[Tensor], target: Tensor) -> list[Tensor]:
    r"""$\partial\mathcal L/\partial W_k=\frac1L(W_L\cdots W_{k+1})^\top(W-W^\star)
    (W_{k-1}\cdots W_1)^\top$ of $\mathcal L=\frac1{2L}\|W-W^\star\|_F^2$.

    Costs about $3L$ products of matrices.

    >>> [g.tolist() for g in product_gradients([torch.eye(1) * 2, torch.eye(1) * 3], torch.eye(1))]
    [[[7.5]], [[5.0]]]
    """
    weights = chained(factors)
    as_matrix(target, "the target")

    def outer(product: Tensor) -> Tensor:
        if target.shape != product.shape:
            raise ShapeMismatch(
                f"the target is {list(target.shape)} and the product {list(product.shape)}"
            )
        return (product - target) / len(weights)

    return factor_gradients(weights, outer)


def factor_gradients(factors: Sequence[Tensor], outer: Callable[[Tensor], Tensor]) -> list[Tensor]:
    r"""$(W_L\cdots W_{k+1})^\top G\,(W_{k-1}\cdots W_1)^\top$ for every $k$: the chain
    rule of a product of matrices `[..., n_k, n_(k-1)]`.

    Args:
        outer: the gradient $G$ in the product, of the product.

    Costs about $3L$ products of matrices.

    >>> [g.item() for g in factor_gradients([torch.eye(1) * 2, torch.eye(1) * 3], torch.ones_like)]
    [3.0, 2.0]
    """
    below = [torch.eye(factors[0].shape[-1]).to(factors[0])]
    for factor in factors:
        below.append(factor @ below[-1])
    slope = outer(below[-1])
    made = []
    for factor, under in zip(reversed(factors), reversed(below[:-1]), strict=True):
        made.append(slope @ under.transpose(-2, -1))
        slope = factor.transpose(-2, -1) @ slope
    return made[::-1]


@dataclass(frozen=True, slots=True)
class AlignedFactors:
    r"""Factors written as $W_k=Q_k\Sigma Q_{k-1}^\top$ with one $\Sigma$ for all.

    Attributes:
        frames: $Q_0,\dots,Q_L$: the right singular vectors of $W_1$, then the left ones
            of $W_1,\dots,W_L$, each those of the next factor on the right.
        singular_values: the diagonal of $\Sigma$, descending.
        residual: the largest entry of a $W_k-Q_k\Sigma Q_{k-1}^\top$: rounding if the
            factors are aligned, and only then.
    """

    frames: tuple[Tensor, ...]
    singular_values: Tensor
    residual: float


def align_factors(factors: Sequence[Tensor]) -> AlignedFactors:
    r"""Singular decompositions of square factors that fit together: $U_k=V_{k+1}$.

    Balanced factors, $W_{k+1}^\top W_{k+1}=W_kW_k^\top$, have the same singular values and,
    where these are distinct, $U_k=V_{k+1}$ up to the sign of each column. Decompositions
    computed one by one differ by such signs; here each frame is the image of the one before,
    $Q_k=W_kQ_{k-1}\Sigma^{-1}$, which settles them.

    >>> turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    >>> found = align_factors([turn * torch.tensor([2.0, 1.0]), torch.diag(torch.tensor([1.0, 2]))])
    >>> found.singular_values.tolist(), found.residual < 1e-6
    ([2.0, 1.0], True)
    """
    weights = chained(factors)
    if any(w.shape[0] != w.shape[1] for w in weights):
        raise ShapeMismatch(
            f"aligned decompositions are for square factors, not {[list(w.shape) for w in weights]}"
        )
    _, singular, vt = torch.linalg.svd(weights[0])
    if not bool(singular[-1] > torch.finfo(singular.dtype).eps * len(singular) * singular[0]):
        raise InvalidInput("the first factor is singular: its frames are not determined")
    frames, residual = [vt.T], 0.0
    for w in weights:
        # the polar factor is the nearest frame to the image, and the image itself if aligned
        left, _, right = torch.linalg.svd(w @ frames[-1] / singular)
        frame = left @ right
        gap = w - frame * singular @ frames[-1].T
        residual = max(residual, float(gap.abs().max()))
        frames.append(frame)
    return AlignedFactors(tuple(frames), singular, residual)


def end_to_end_velocity(product: Tensor, target: Tensor, depth: int) -> Tensor:
    r"""The velocity of the product,
    $\frac1L\sum_{k=1}^L(WW^\top)^{\frac{L-k}L}(W^\star-W)(W^\top W)^{\frac{k-1}L}$.

    What gradient flow on balanced factors does to their product; the power 0 is the identity. One
    singular value decomposition.

    >>> end_to_end_velocity(4 * torch.eye(1), 5 * torch.eye(1), depth=2)
    tensor([[4.]])
    """
    W = as_matrix(product, "the product")
    as_matrix(target, "the target")
    whole_number(depth, "depth", least=1, most=10**6)
    if target.shape != W.shape:
        raise ShapeMismatch(f"the target is {list(target.shape)} and the product {list(W.shape)}")
    u, s, vt = torch.linalg.svd(W)
    left, right = (torch.cat([s, s.new_zeros(len(q) - len(s))]) for q in (u, vt))
    powers = torch.arange(depth, dtype=s.dtype, device=s.device)[:, None] * 2 / depth
    # Σ_k s_i^{2(L-k)/L} s_j^{2(k-1)/L}, entry by entry in the singular frames
    gains = (left**powers).flip(0).T @ right**powers / depth
    made: Tensor = u @ (gains * (u.T @ (target - W) @ vt.T)) @ vt
    return made


def end_to_end_flow(
    start: Tensor,
    target: Tensor,
    depth: int,
    times: Tensor | Sequence[float],
) -> Tensor:
    r"""The solution of `end_to_end_velocity` at increasing `times`, `[T, out, in]`.

    `start` is $W$ at the first of them. For depth 1 it is
    $W^\star+(W(0)-W^\star)e^{-t}$. Dormand-Prince of order 5.

    >>> path = end_to_end_flow(torch.zeros(1, 1).double(), torch.eye(1).double(), 1, [0.0, 1.0])
    >>> round(float(path[-1]), 7)                                          # 1 - exp(-1)
    0.6321206
    """
    W = as_matrix(start, "the start")
    moments = _moments(times).to(W)
    end_to_end_velocity(W, target, depth)  # refuses what does not fit before the solver starts
    made: Tensor = odeint(
        lambda _, w: end_to_end_velocity(w, target, depth),
        W,
        moments,
        rtol=1e-8,
        atol=1e-10,
        method="dopri5",
    )
    return made


def mode_velocity(singular: Tensor, target: Tensor, depth: int) -> Tensor:
    r"""$\dot s=s^{2-2/L}(s^\star-s)$, the speed of a singular value of the product.

    >>> mode_velocity(torch.tensor([0.25, 0.25]), torch.tensor([1.25, 2.25]), depth=2)
    tensor([0.2500, 0.5000])
    """
    whole_number(depth, "depth", least=1, most=10**6)
    if bool((singular < 0).any()):
        raise InvalidInput(
            f"singular values are at least 0: {first_entry(singular, 'singular', singular < 0)}"
        )
    return singular ** (2 - 2 / depth) * (target - singular)


def mode_flow(
    start: Tensor,
    target: Tensor,
    depth: int,
    times: Tensor | Sequence[float],
) -> Tensor:
    r"""Singular values of the product along gradient flow, `[T, modes]`.

    Args:
        start: $s(0)\ge0$ at the first time, `[modes]`.
        target: $s^\star$, `[modes]`.
        depth: $L$.
        times: increasing.

    The solver is Dormand-Prince of order 8 in double precision.

    >>> path = mode_flow(torch.tensor([0.1]).double(), torch.tensor([1.0]).double(), 2, [0.0, 2.0])
    >>> round(float(path[-1]), 8)                                       # 1 / (1 + 9 exp(-2))
    0.45085306
    """
    s, goal = as_vector(start, "the start"), as_vector(target, "the target")
    if s.shape != goal.shape:
        raise ShapeMismatch(f"{len(s)} modes have {len(s)} targets, not {len(goal)}")
    mode_velocity(s, goal, depth)  # refuses what does not fit before the solver starts
    moments = _moments(times).cpu().numpy()
    goals, power = goal.double().cpu().numpy(), 2 - 2 / depth
    # one number a mode: the solver's own work would be most of the time in torch
    solved = solve_ivp(
        lambda _, now: now.clip(0) ** power * (goals - now),
        (moments[0], moments[-1]),
        s.double().cpu().numpy(),
        t_eval=moments,
        rtol=1e-9,
        atol=1e-12,
        method="DOP853",
    )
    if not solved.success:
        raise NotConverged(f"the mode equation could not be solved: {solved.message}")
    return torch.from_numpy(solved.y.T).to(s)


def mode_time(
    start: Tensor | float, end: Tensor | float, target: Tensor | float, depth: int
) -> Tensor:
    r"""How long a singular value takes from `start` to `end`, both below $s^\star$.

    $\int ds/(s^{2-2/L}(s^\star-s))$ in closed form: with $u=s/s^\star$ and
    $b=2/L-1$ it is $(s^\star)^{b-1}\bigl[\frac{u^b}b\,{}_2F_1(1,b;b+1;u)\bigr]$, and
    $\frac1{s^\star}\log\frac u{1-u}$ for two factors, $-\log(1-u)$ for one. From a
    small start it is about $\frac1{s^\star}\log\frac{s^\star}{s(0)}$ for two factors and
    grows like a power of $1/s(0)$ for more.

    Args:
        start, end, target: `[...]` or numbers, broadcast; `0 < start <= end < target`.

    >>> round(float(mode_time(0.1, 0.9, 1.0, depth=2)), 6)                         # log 81
    4.394449
    """
    whole_number(depth, "depth", least=1, most=10**6)
    low, high, goal = (
        s if isinstance(s, Tensor) else torch.tensor(float(s), dtype=torch.float64)
        for s in (start, end, target)
    )
    if not bool(((low > 0) & (low <= high) & (high < goal)).all()):
        raise InvalidInput(
            "a mode grows from a start > 0 to an end below its target, not from "
            f"{described(start)} to {described(end)} with the target {described(target)}"
        )
    b = 2 / depth - 1

    def primitive(s: Tensor) -> Tensor:
        u = s / goal
        if depth == 2:
            return u.logit()
        if depth == 1:
            return -torch.log1p(-u)
        series = special.hyp2f1(1.0, b, b + 1, u.double().cpu().numpy())
        return u**b / b * torch.as_tensor(series).to(u)

    spans = primitive(high) - primitive(low)
    made: Tensor = goal ** (b - 1) * spans
    return made


def _moments(times: Tensor | Sequence[float]) -> Tensor:
    moments = torch.as_tensor(times, dtype=torch.float64)
    if moments.ndim != 1 or len(moments) < 2:
        raise ShapeMismatch(
            "times must be one row of at least two numbers, the start first, not "
            f"{list(moments.shape)}"
        )
    if not bool(torch.isfinite(moments).all()) or bool((moments.diff() <= 0).any()):
        raise InvalidInput(f"times must be finite and increase, not {described(moments.tolist())}")
    return moments
