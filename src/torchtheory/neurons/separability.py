r"""Is a sample linearly separable, by how much, and how many hyperplanes do it?

Write $z_i = y_i\tilde x_i$ with $\tilde x=(x,1)$, or $\tilde x=x$ without a
bias. The version space $\mathcal V(S)=\{v : z_i^\top v>0\ \forall i\}$ is an open convex
cone. By Gordan's theorem either it has a point, or the origin lies in the convex hull of the
$z_i$: whichever it is, the answer comes with the vector that proves it.
Source: notes "Deep Learning", section 1.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from torchtheory.core.checks import as_points, labeled_samples, whole_number
from torchtheory.core.errors import InvalidInput, NotConverged
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.nets.biases import homogeneous

Array = np.ndarray[Any, np.dtype[np.float64]]
EPS = float(np.finfo(np.float64).eps)

#: How close to the origin a point of the hull must come, relative to the sample, to count as it.
ROUNDING = 1e-13


class NotSeparable(InvalidInput):
    """No hyperplane has every point on the side its label asks for."""


@dataclass(frozen=True, slots=True)
class Separability:
    r"""The answer, and its proof.

    Attributes:
        separable: whether the version space is not empty.
        weight, bias: if it is not, a member of it; its side of every point was confirmed in exact
            arithmetic.
        combination: if it is empty, $\alpha\ge0$ with $\sum_i\alpha_i=1$ and
            $\sum_i\alpha_iz_i=0$; `[s]`.
        residual: norm of $\sum_i\alpha_iz_i$ as it came out. Whatever it is, no unit vector
            $v$ has $\min_i z_i^\top v$ above it.
    """

    separable: bool
    weight: Tensor | None
    bias: Tensor | None
    combination: Tensor | None
    residual: float

    def __bool__(self) -> bool:
        return self.separable


def separate(x: Tensor, y: Tensor, *, bias: bool = True) -> Separability:
    r"""Decide linear separability, with a certificate either way.

    The linear program $\max t$ subject to $z_i^\top v\ge t$, $|v_j|\le1$ gives
    a candidate $v$, or through its dual a candidate $\alpha$. A $v$ counts only
    if all the signs are right in exact arithmetic, an $\alpha$ only if its residual is at
    rounding level; where the program is not sharp enough, the point of the hull nearest to the
    origin decides.

    Args:
        x: `[s, d]`, for instance the features a frozen network hands to its last layer.
        y: `[s]` of ±1.
        bias: without it, hyperplanes through the origin.

    Raises:
        NotConverged: if the margin is within rounding of 0, so that neither proof can be had.

    >>> corners = torch.tensor([[0.0, 0], [1, 1], [0, 1], [1, 0]])
    >>> found = separate(corners, torch.tensor([1, 1, -1, -1]))       # exclusive or
    >>> found.separable, found.combination
    (False, tensor([0.2500, 0.2500, 0.2500, 0.2500]))
    >>> bool(separate(corners, torch.tensor([-1, 1, -1, -1])))        # and
    True
    """
    x, y = labeled_samples(x, y)
    z = _signed(x, y, bias)
    # the answer does not depend on the units of a feature or the length of a point; a solver does
    units = np.abs(z).max(0)
    units[units == 0] = 1.0
    lengths = np.linalg.norm(z / units, axis=1, keepdims=True)
    if not lengths.all():
        origin = (lengths == 0).ravel().astype(np.float64)
        return _empty(x, z, origin / origin.sum())
    unit = z / units / lengths
    for solve in (_separating_program, _nearest_of_hull):
        direction, alpha = solve(unit)
        witness = _as_witness(x, z, direction / units, bias)
        if witness is not None:
            return witness
        alpha = _polish(unit, alpha) / lengths.ravel()
        alpha = alpha / alpha.sum()
        if _vanishes(z, alpha):
            return _empty(x, z, alpha)
    raise NotConverged(
        "separable or not, the sample is so within rounding: in units of its features no margin "
        f"exceeds {np.linalg.norm(alpha @ (z / units)):.1e}"
    )


@dataclass(frozen=True, slots=True)
class MaxMargin:
    r"""The hyperplane furthest from the sample.

    Attributes:
        weight: unit vector `[d]`.
        bias: one number; 0 without a bias.
        margin: $\gamma^*=\min_i y_i(w^\top x_i+b)$, attained by `weight` and `bias`.
        upper_bound: no hyperplane has a margin above this; it meets `margin` up to rounding.
        combination: convex weights `[s]` on the support vectors: their signed mean is
            $\gamma^*w$ without a bias; with one, the two class means they give are the
            nearest points of the two hulls.
    """

    weight: Tensor
    bias: Tensor
    margin: float
    upper_bound: float
    combination: Tensor


def max_margin(x: Tensor, y: Tensor, *, bias: bool = True) -> MaxMargin:
    r"""The hard-margin support vector machine, $\max_{\|w\|=1,b}\min_i y_i(w^\top x_i+b)$.

    By duality the margin is the distance of the origin from the hull of the $y_ix_i$, or
    with a bias half the distance between the hulls of the two classes; `minimum_norm_point`
    finds it in finitely many steps, each $O(sd + d^3)$.

    Raises:
        NotSeparable: if no margin is positive.
        InvalidInput: with a bias and only one class, where the margin has no bound.

    >>> best = max_margin(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([-1, 1]))
    >>> best.weight, best.bias, best.margin
    (tensor([0.6000, 0.8000]), tensor(-2.5000), 2.5)
    """
    x, y = labeled_samples(x, y)
    rows, signs = x.double().cpu().numpy(), y.double().cpu().numpy()
    if bias:
        if abs(signs.sum()) == len(signs):
            raise InvalidInput("all labels are equal: with a bias the margin has no bound")
        nearest, alpha = _nearest_of_two_hulls(rows, signs)
    else:
        nearest, alpha = _nearest_of_hull(signs[:, None] * rows)
    distance = float(np.linalg.norm(nearest))
    radius = float(np.linalg.norm(rows, axis=1).max())
    if distance <= ROUNDING * radius:
        raise NotSeparable(f"not linearly separable: no margin exceeds {distance:.1e}")
    w = nearest / distance
    heights = rows @ w
    offset = 0.0
    if bias:
        offset = -0.5 * (heights[signs > 0].min() + heights[signs < 0].max())
    reached = float((signs * (heights + offset)).min())
    if reached <= 0:
        raise NotSeparable(f"not linearly separable: no margin exceeds {distance:.1e}")
    return MaxMargin(
        weight=torch.from_numpy(w).to(x),
        bias=x.new_tensor(offset),
        margin=reached,
        upper_bound=distance / 2 if bias else distance,
        combination=torch.from_numpy(alpha).to(x),
    )


def version_space_fractions(
    x: Tensor,
    y: Tensor,
    *,
    directions: Tensor | int = 10_000,
    bias: bool = True,
    generator: RandomSource = None,
) -> Tensor:
    r"""Share of the directions $v$ that classify the first $k$ points, for each k.

    The same directions serve every prefix, so the result can only fall: adding a point to the
    sample cuts the version space with one more half-space.

    Args:
        x, y: the sample.
        directions: how many isotropic random directions to draw, or the directions themselves,
            `[m, d + 1]` with a bias (last) and `[m, d]` without.
        bias: without it, hyperplanes through the origin.
        generator: generator or seed for the directions.

    Returns:
        `[s]`; entry $k-1$ belongs to the first $k$ points. Memory $O(md)$.

    >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([1, 1])
    >>> grid = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    >>> version_space_fractions(x, y, directions=grid, bias=False)
    tensor([0.5000, 0.2500])
    """
    x, y = labeled_samples(x, y)
    z = y.unsqueeze(1) * (homogeneous(x) if bias else x)
    if isinstance(directions, Tensor):
        v = directions.to(x)
        if v.ndim != 2 or v.shape[1] != z.shape[1] or len(v) == 0:
            raise InvalidInput(f"directions must be [m, {z.shape[1]}], not {list(v.shape)}")
    else:
        m = whole_number(directions, "directions", least=1)
        source = as_generator(generator, x.device)
        v = gaussian(m, z.shape[1], generator=source, dtype=x.dtype, device=x.device)
    total = len(v)
    left = x.new_zeros(len(z))
    for k in range(len(z)):
        v = v[v @ z[k] > 0]
        left[k] = len(v)
    return left / total


def weakly_separating_direction(x: Tensor, y: Tensor, *, bias: bool = True) -> Tensor | None:
    r"""A $v$ with $z_i^\top v\ge0$ for all points and $>0$ for some, or None.

    Such a direction exists iff the logistic loss of the sample has no minimizer (Albert and
    Anderson 1984): moving along it lowers the loss for ever. By Stiemke's lemma it does not iff
    some strictly positive $\alpha$ has $\sum_i\alpha_iz_i=0$. Values within
    $10^{-9}$ of 0 (relative to the points' lengths) count as 0. Returns `[d + 1]`, the
    bias last, or `[d]` without a bias.

    >>> x = torch.tensor([[0.0], [1.0], [1.0], [2.0]])         # the classes touch in one point
    >>> v = weakly_separating_direction(x, torch.tensor([-1, -1, 1, 1]))
    >>> bool(v[0] > 0), bool(separate(x, torch.tensor([-1, -1, 1, 1])))
    (True, False)
    >>> weakly_separating_direction(x, torch.tensor([-1, -1, 1, -1])) is None
    True
    """
    x, y = labeled_samples(x, y)
    z = _signed(x, y, bias)
    lengths = np.linalg.norm(z, axis=1)
    z = z[lengths > 0] / lengths[lengths > 0][:, None]
    if len(z) == 0:
        return None
    found = linprog(
        -z.sum(0),
        A_ub=np.vstack([-z, z]),
        b_ub=np.r_[np.zeros(len(z)), np.ones(len(z))],
        bounds=(None, None),
        method="highs",
        options=_SHARP,
    )
    if found.x is None or (z @ found.x).max() < 1e-6 or (z @ found.x).min() < -1e-9:
        return None
    return torch.from_numpy(found.x / np.linalg.norm(found.x)).to(x)


def minimum_norm_point(x: Tensor) -> tuple[Tensor, Tensor]:
    r"""The point of the convex hull of the rows of `x[s, d]` nearest to the origin (Wolfe 1976).

    Returns:
        The nearest point $p$ `[d]` and convex weights `[s]` that give it. It ends when
        no row $q$ has $p^\top q$ below $p^\top p$ by more than rounding.

    >>> minimum_norm_point(torch.tensor([[1.0, 1.0], [1.0, -1.0], [5.0, 0.0]]))
    (tensor([1., 0.]), tensor([0.5000, 0.5000, 0.0000]))
    """
    x = as_points(x)
    nearest, alpha = _nearest_of_hull(x.double().cpu().numpy())
    return torch.from_numpy(nearest).to(x), torch.from_numpy(alpha).to(x)


def _nearest_of_hull(rows: Array) -> tuple[Array, Array]:
    def lowest(p: Array) -> tuple[int, Array]:
        i = int(np.argmin(rows @ p))
        return i, rows[i]

    start = int(np.argmin((rows**2).sum(1)))
    nearest, weights, names = _wolfe(start, rows[start], lowest, 100 * sum(rows.shape))
    alpha = np.zeros(len(rows))
    alpha[names] = weights
    return nearest, alpha


def _wolfe(start: Any, first: Array, lowest: Any, limit: int) -> tuple[Array, Array, list[Any]]:
    """Wolfe's algorithm on a polytope known only through its lowest vertex in a direction."""
    corral, names, weights = first[None, :], [start], np.ones(1)
    p, size = first, float(first @ first)
    for _ in range(limit):
        name, vertex = lowest(p)
        size = max(size, float(vertex @ vertex))
        # p.p - p.q bounds how much closer the hull can come
        if p @ p - p @ vertex <= 64 * EPS * (p @ p + np.sqrt(size * (p @ p))) or name in names:
            return p, weights, names
        before = p, weights, names
        corral, names, weights = _improve(
            np.vstack([corral, vertex]), [*names, name], np.append(weights, 0.0)
        )
        p = weights @ corral
        if p @ p >= before[0] @ before[0]:
            # rounding has the last word: nothing comes closer any more
            return before
    raise NotConverged(f"the nearest point of the hull was not reached in {limit} steps")


def _improve(corral: Array, names: list[Any], weights: Array) -> tuple[Array, list[Any], Array]:
    """Move to the nearest point of the affine hull, dropping the vertices met on the way."""
    while True:
        affine = _affine_minimizer(corral)
        falling = affine <= 1e-14
        if not falling.any():
            return corral, names, affine
        fall = np.where(falling, np.maximum(weights - affine, 1e-300), 1.0)
        steps = np.where(falling, weights / fall, np.inf)
        step = min(1.0, float(steps.min()))
        weights = (1 - step) * weights + step * affine
        keep = weights > 1e-14
        keep[int(np.argmin(steps))] = False
        corral, weights = corral[keep], weights[keep] / weights[keep].sum()
        names = [n for n, k in zip(names, keep, strict=True) if k]


def _affine_minimizer(corral: Array) -> Array:
    """Weights with sum 1 (of any sign) of the point of the affine hull nearest to the origin."""
    base = corral[0]
    rest, *_ = np.linalg.lstsq((corral[1:] - base).T, -base, rcond=None)
    return np.concatenate([[1 - rest.sum()], rest])


def _nearest_of_two_hulls(rows: Array, signs: Array) -> tuple[Array, Array]:
    """The shortest vector from the negative hull to the positive one, and weights of its ends."""
    above, below = np.flatnonzero(signs > 0), np.flatnonzero(signs < 0)

    def lowest(p: Array) -> tuple[tuple[int, int], Array]:
        heights = rows @ p
        i = int(above[np.argmin(heights[above])])
        j = int(below[np.argmax(heights[below])])
        return (i, j), rows[i] - rows[j]

    name, first = lowest(rows[above].mean(0) - rows[below].mean(0))
    nearest, weights, names = _wolfe(name, first, lowest, 100 * sum(rows.shape))
    alpha = np.zeros(len(rows))
    for weight, (i, j) in zip(weights, names, strict=True):
        alpha[i] += weight
        alpha[j] += weight
    return nearest, alpha / 2


_SHARP = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


def _signed(x: Tensor, y: Tensor, bias: bool) -> Array:
    z = y.unsqueeze(1) * (homogeneous(x) if bias else x)
    return np.asarray(z.double().cpu().numpy())


def _separating_program(z: Array) -> tuple[Array, Array]:
    """Solve the program for unit rows; the direction, and the multipliers of the rows."""
    s, d = z.shape
    found = linprog(
        np.r_[np.zeros(d), -1.0],
        A_ub=np.hstack([-z, np.ones((s, 1))]),
        b_ub=np.zeros(s),
        bounds=[(-1.0, 1.0)] * d + [(None, 1.0)],
        method="highs",
        options=_SHARP,
    )
    if found.x is None:
        raise NotConverged(f"the linear program was not solved: {found.message}")
    alpha = np.maximum(-found.ineqlin.marginals, 0.0)
    return found.x[:d], alpha if alpha.any() else np.ones(s)


def _as_witness(x: Tensor, z: Array, direction: Array, bias: bool) -> Separability | None:
    """The direction as weights in the sample's own dtype, if they do separate it."""
    if not direction.any():
        return None
    v = torch.from_numpy(direction).to(x)
    if bias and not v[:-1].any():
        # any w works next to a bias that is large enough; w = 0 would be no hyperplane
        v = torch.zeros_like(v)
        v[0] = 1.0
        v[-1] = torch.sign(torch.from_numpy(direction)[-1]) * (2 * x[:, 0].abs().max() + 1)
    if not _positive(z, v.double().cpu().numpy()):
        return None
    w, b = (v[:-1], v[-1]) if bias else (v, v.new_zeros(()))
    return Separability(True, w, b, None, 0.0)


def _positive(z: Array, v: Array) -> bool:
    """Whether `z v > 0` in exact arithmetic: by an error bound, else by fractions."""
    heights = z @ v
    doubt = (z.shape[1] + 1) * EPS * (np.abs(z) @ np.abs(v))
    if (heights < -doubt).any():
        return False
    return all(_exactly_positive(row, v) for row in z[heights <= doubt])


def _exactly_positive(row: Array, v: Array) -> bool:
    terms = (Fraction(float(a)) * Fraction(float(b)) for a, b in zip(row, v, strict=True))
    return sum(terms, Fraction(0)) > 0


def _vanishes(z: Array, alpha: Array) -> bool:
    """Whether the combination vanishes, feature by feature, next to the terms it is made of."""
    return bool((np.abs(alpha @ z) <= ROUNDING * (alpha @ np.abs(z))).all())


def _polish(z: Array, alpha: Array) -> Array:
    """Solve for the combination again on its support, to rounding instead of to tolerance."""
    alpha = alpha / alpha.sum()
    support = np.flatnonzero(alpha > 1e-9)
    if len(support) > z.shape[1] + 1:
        return alpha
    matrix = np.vstack([z[support].T, np.ones(len(support))])
    solved, *_ = np.linalg.lstsq(matrix, np.append(np.zeros(z.shape[1]), 1.0), rcond=None)
    if (solved < 0).any():
        return alpha
    better = np.zeros_like(alpha)
    better[support] = solved / solved.sum()
    return better if np.linalg.norm(better @ z) < np.linalg.norm(alpha @ z) else alpha


def _empty(x: Tensor, z: Array, alpha: Array) -> Separability:
    weights = torch.from_numpy(alpha).to(x)
    residual = float(np.linalg.norm(alpha @ z))
    return Separability(False, None, None, weights, residual)
