r"""Derivatives as limits: difference quotients, gradient checks, Hessian-vector products.

`function` is always a torch function of one tensor `x` of any shape that leaves it unchanged.
Source: Foundations of Deep Learning, sections 1.3.1, 1.3.2 and Problem 3 of section 1.7.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from torchtheory.core.checks import all_finite, positive_number
from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, ShapeMismatch, UnknownName
from torchtheory.core.mapping import jacobian
from torchtheory.linalg.operators import LinearOperator

Function = Callable[[Tensor], Tensor]
Scheme = Literal["forward", "central"]

_COLUMNS = 4  # of an extrapolation table: more of them amplify rounding
_MOST_HALVINGS = 56  # of the step of a limit, where the point is 0 and rounding sets no end
_SMALLEST = 4  # steps that must resolve a function
_GRAIN = 3 / 8  # changes of a function below this power of eps, of its size, may be its rounding


def best_step(scheme: Scheme, dtype: torch.dtype = torch.float64) -> float:
    r"""The step that balances truncation and rounding for a function of size and curvature 1.

    A forward quotient errs by $O(t)+O(\varepsilon/t)$, a central one by
    $O(t^2)+O(\varepsilon/t)$: the best steps are $\varepsilon^{1/2}$ and
    $\varepsilon^{1/3}$, and half, respectively two thirds, of the digits are right.

    >>> best_step("forward")
    1.4901161193847656e-08
    """
    if scheme not in get_args(Scheme):
        raise UnknownName("difference scheme", scheme, get_args(Scheme))
    eps = torch.finfo(dtype).eps
    return math.sqrt(eps) if scheme == "forward" else eps ** (1 / 3)


def directional_difference(
    function: Function,
    x: Tensor,
    direction: Tensor,
    *,
    step: float | None = None,
    scheme: Scheme = "central",
) -> Tensor:
    r"""The quotient $(f(x+tu)-f(x))/t$, or $(f(x+tu)-f(x-tu))/(2t)$.

    For a differentiable function it tends to $J_f(x)u$. Of a gradient it is a
    Hessian-vector product (Problem 3b): `directional_difference(torch.func.grad(f), x, v)`.

    Args:
        function: from tensors of the shape of `x` to tensors of any shape.
        x: the point.
        direction: $u$, of the shape of `x`.
        step: $t$; `best_step` times $\max(1,\|x\|_\infty)/\|u\|_\infty$ unless
            told.
        scheme: `forward` or `central`.

    >>> x = torch.tensor(3.0, dtype=torch.float64)
    >>> float(directional_difference(torch.square, x, torch.ones_like(x), step=0.5))
    6.0
    """
    x = _point(x)
    direction = _along(x, direction)
    t = best_step(scheme, x.dtype)
    if step is not None:
        positive_number(step, "the step")
        t = step
    elif bool(direction.any()):
        t *= max(1.0, float(x.abs().max())) / float(direction.abs().max())
    ahead = function(x + t * direction)
    if scheme == "forward":
        return (ahead - function(x)) / t
    return (ahead - function(x - t * direction)) / (2 * t)


def numerical_jacobian(
    function: Function, x: Tensor, *, step: float | None = None, scheme: Scheme = "central"
) -> Tensor:
    r"""The partial derivatives $\partial f_i/\partial x_j$ by differences.

    Its shape is that of $f(x)$ followed by that of `x`: a number's gradient has the
    shape of `x`, a vector's Jacobian is a matrix. Two calls of the function per entry of `x`.

    >>> A = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).double()
    >>> numerical_jacobian(lambda v: A @ v, torch.zeros(2).double()).round(decimals=6)
    tensor([[1., 2.],
            [3., 4.]], dtype=torch.float64)
    """
    x = _point(x)
    columns = [
        directional_difference(function, x, e.reshape(x.shape), step=step, scheme=scheme)
        for e in torch.eye(x.numel(), dtype=x.dtype, device=x.device)
    ]
    return torch.stack(columns, dim=-1).reshape(*columns[0].shape, *x.shape)


@dataclass(frozen=True, slots=True)
class Limit:
    """A derivative as the limit of difference quotients.

    Attributes:
        value: the extrapolated limit.
        error: how far the derivative may be from it, judged by all steps: what the extrapolations
            still move, how much one-sided quotients disagree, what rounding of the points and of
            the function's values can do, and what smaller steps say instead. At a kink it reaches
            beyond both one-sided derivatives. It is infinite where the quotients diverge, at a
            jump, and where the numbers around the point are farther apart than the steps. No finite
            number of values proves more: what the function does between the steps, or below the
            rounding of its values, stays unseen.
        step: the smallest step that went into the value.
    """

    value: float
    error: float
    step: float


def derivative_by_limit(
    function: Function,
    x: Tensor,
    direction: Tensor | None = None,
    *,
    first_step: float = 0.25,
) -> Limit:
    r"""The derivative $\lim_{t\to0}(f(x+tu)-f(x))/t$ of a number, by extrapolation.

    Central quotients at steps halved down to the spacing of the numbers around `x` are
    extrapolated to step 0 (Romberg). With $g(t)=(f(x+tu)-2f(x)+f(x-tu))/t$, the difference of
    the one-sided quotients, $tg(t)$ without its even powers up to $t^6$ is the noise of the values,
    or a kink. The step is taken whose error, judged by the movement of the extrapolations, the
    noise, the distance of the rounded points from $x\pm tu$, and the disagreement with all smaller
    steps, is least; a function that changes as much on the smallest steps as on 16 times larger
    ones has a jump, and one that changes half as much on them as on the largest has waves that the
    numbers around `x` are too far apart for. About 12 digits for a smooth function, where a single
    quotient gives 10, at 2 calls per step and 1 more, about 110.

    Args:
        function: from tensors of the shape of `x` to a number.
        x: the point.
        direction: $u$; 1 for a number `x` unless given.
        first_step: the largest step; steps where the function is not finite are left out.

    >>> found = derivative_by_limit(torch.square, torch.tensor(3.0).double())
    >>> round(found.value, 11), found.error < 1e-10
    (6.0, True)
    >>> derivative_by_limit(torch.abs, torch.tensor(0.0).double()).error >= 1      # a kink
    True
    >>> derivative_by_limit(torch.sin, torch.tensor(1e8)).error          # neighbors are 8 away
    inf
    """
    x = _point(x)
    if direction is None:
        if x.numel() != 1:
            raise InvalidInput(f"x has {x.numel()} entries: say along which direction")
        direction = torch.ones_like(x)
    direction = _along(x, direction)
    positive_number(first_step, "first_step")
    size, length = float(x.abs().max()), float(direction.abs().max()) or 1.0
    eps = torch.finfo(x.dtype).eps
    count = 1 + max(
        4, min(_MOST_HALVINGS, int(math.log2(first_step * length / (eps * size or 1e-300))))
    )
    steps = first_step * 0.5 ** torch.arange(count, dtype=torch.float64)
    middle = _number(function, x)
    ahead = steps.new_tensor([_number(function, x + t * direction) for t in steps.tolist()])
    behind = steps.new_tensor([_number(function, x - t * direction) for t in steps.tolist()])
    moved = steps.new_tensor([_displacement_error(x, t * direction) for t in steps.tolist()])
    finite = ahead.isfinite() & behind.isfinite() & math.isfinite(middle)
    # a table goes on from row to row: it starts below the last step that left the domain
    start = 0 if bool(finite.all()) else int((~finite).nonzero().max()) + 1
    steps, ahead, behind, moved = steps[start:], ahead[start:], behind[start:], moved[start:]
    if len(steps) < _COLUMNS:
        raise NonFinite(f"the function is not finite within {float(first_step):g} of the point")
    central = (ahead - behind) / (2 * steps)
    change = torch.maximum((ahead - middle).abs(), (behind - middle).abs())
    largest = torch.maximum(
        torch.maximum(ahead.abs(), behind.abs()), ahead.new_tensor(middle).abs()
    )
    kinks = _extrapolated(((ahead - middle) + (behind - middle)) / steps, first_power=1)[-1]
    noise = (
        (steps * kinks.abs())
        .nan_to_num(nan=math.inf, posinf=math.inf)
        .flip(0)
        .cummax(0)
        .values.flip(0)
    )
    noise = (
        noise + eps * (largest + central.abs() * size / length) + _graininess(change, largest, eps)
    )
    rounding = noise / steps + central.abs() * moved / (1 - moved)
    rounding[moved > 0.5] = math.inf
    values, errors = _best_of_columns(_extrapolated(central, first_power=2), rounding)
    # what smaller steps deny is no limit: two early entries may agree by chance
    denied = (
        ((values[:, None] - values).abs() - errors)
        .nan_to_num(nan=0.0, posinf=math.inf)
        .clamp(min=0)
    )
    errors = errors + denied.triu(1).amax(1)
    resolved = change[moved <= 0.5]
    if _jumps(resolved, float(largest.max()), eps) or _too_coarse(resolved):
        errors = torch.full_like(errors, math.inf)
    at = int(errors.argmin()) if bool(errors.isfinite().any()) else len(errors) - 1
    return Limit(float(values[at]), float(errors[at]), float(steps[at]))


def _along(x: Tensor, direction: Tensor) -> Tensor:
    direction = _point(direction)
    if x.shape != direction.shape:
        raise ShapeMismatch(
            f"x is {list(x.shape)} and the direction {list(direction.shape)}: they must agree"
        )
    return direction


def _number(function: Function, x: Tensor) -> float:
    made = function(x)
    if made.numel() != 1:
        raise ShapeMismatch(f"the function must give one number, not {list(made.shape)}")
    return float(made)


def _displacement_error(x: Tensor, step: Tensor) -> float:
    r"""How far the rounded $x\pm tu$ are from these points, as a part of the step: from 0 to 1."""
    x, ahead, behind, wanted = (v.double() for v in (x, x + step, x - step, step))
    off = torch.maximum((ahead - x - wanted).abs().max(), (x - behind - wanted).abs().max())
    length = float(wanted.abs().max())
    return min(1.0, float(off) / length) if length else 0.0


def _extrapolated(quotients: Tensor, first_power: int) -> Tensor:
    r"""The table `[columns, n]` of quotients at halved steps: column $j$ has lost the powers
    $p,p+2,\dots,p+2(j-1)$ of the step. Not a number where there are too few rows."""
    columns = [quotients]
    for power in range(first_power, first_power + 2 * (_COLUMNS - 1), 2):
        last = columns[-1]
        better = (2.0**power * last[1:] - last[:-1]) / (2.0**power - 1)
        columns.append(torch.cat([last.new_full((1,), math.nan), better]))
    return torch.stack(columns)


def _graininess(change: Tensor, largest: Tensor, eps: float) -> float:
    """The least change of the function's values, where it is small enough to be their rounding.

    A function that cancels internally, as 1 - cos, is constant over many numbers: the derivative
    there is that of a staircase. A large first change is that of a function with a flat part.
    """
    changed = change.nonzero()
    if not len(changed) or change[-1] > 0:
        return 0.0
    least = float(change[changed.max()])
    return least if least <= _largest_grain(float(largest.max()), eps) else 0.0


def _largest_grain(largest: float, eps: float) -> float:
    """Changes of the values up to this one may be their rounding."""
    return max(math.pow(eps, _GRAIN) * largest, 4 * eps)


def _jumps(change: Tensor, largest: float, eps: float) -> bool:
    """Whether the last four halvings of the step do not even halve the function's change."""
    last = change[-5:]
    least, most = (float(last.min()), float(last.max())) if len(last) == 5 else (0.0, 0.0)
    return least > _largest_grain(largest, eps) and least >= most / 2


def _too_coarse(change: Tensor) -> bool:
    """Whether the smallest steps change the function half as much as the largest: waves between.

    Of a function that they resolve, steps that were halved twice leave a quarter of the change.
    """
    last = change[max(2, len(change) - _SMALLEST) :]
    return bool(len(last)) and float(last.max()) > float(change.max()) / 2


def _best_of_columns(table: Tensor, rounding: Tensor) -> tuple[Tensor, Tensor]:
    """The entry of each row whose error is least, and that error, both `[n]`.

    An entry errs by what its column still moves: by three times the sum of a geometric series
    with the ratio of the last movements, and at least by its distance from the last three.
    """
    older = [
        torch.cat([table.new_full((len(table), r), math.nan), table[:, :-r]], 1) for r in (1, 2, 3)
    ]
    moved = torch.stack([(table - o).abs() for o in older]).amax(0)
    before = torch.cat([moved.new_full((len(moved), 1), math.nan), moved[:, :-1]], 1)
    ratio = moved / before
    tail = torch.where(ratio < 1, ratio / (1 - ratio), math.inf).clamp(min=1 / 3)
    noise = 2 * rounding
    movement = torch.where(moved <= noise, moved, 3 * tail * moved)
    errors = (movement + noise).nan_to_num(nan=math.inf, posinf=math.inf)
    errors, column = errors.min(0)
    return table.gather(0, column[None])[0], errors


@dataclass(frozen=True, slots=True)
class GradientCheck:
    """A claimed gradient against difference quotients.

    Attributes:
        claimed, numerical: both gradients, of the shape of the point.
        error: the largest difference, relative to the largest entry of either (or 1).
        worst: index of the entry where they differ most.
    """

    claimed: Tensor
    numerical: Tensor
    error: float
    worst: tuple[int, ...]


def gradient_check(
    function: Function, x: Tensor, gradient: Tensor | Function | None = None
) -> GradientCheck:
    r"""Compare a gradient with `numerical_jacobian`; about $10^{-10}$ is agreement.

    Args:
        function: from tensors of the shape of `x` to a number, or to a tensor (then the claimed
            gradient is the Jacobian).
        x: the point, best in float64.
        gradient: the claimed gradient at `x`, or the function that computes it; what automatic
            differentiation gives unless told.

    >>> x = torch.tensor([1.0, 2.0]).double()
    >>> gradient_check(lambda v: (v**3).sum(), x, 3 * x**2).error < 1e-9
    True
    >>> gradient_check(lambda v: (v**3).sum(), x, 2 * x**2).error > 0.1
    True
    """
    x = _point(x)
    if gradient is None:
        gradient = jacobian(function)
    claimed = gradient if isinstance(gradient, Tensor) else gradient(x)
    numerical = numerical_jacobian(function, x)
    if claimed.shape != numerical.shape:
        raise ShapeMismatch(
            f"the claimed gradient is {list(claimed.shape)}, it should be {list(numerical.shape)}"
        )
    difference = (claimed - numerical).abs()
    scale = max(1.0, float(claimed.abs().max()), float(numerical.abs().max()))
    worst = tuple(int(i) for i in torch.unravel_index(difference.argmax(), difference.shape))
    return GradientCheck(claimed, numerical, float(difference.max()) / scale, worst)


@dataclass(frozen=True, slots=True)
class ChainRule:
    r"""The Jacobians of $f\circ g$ and of its parts at a point.

    Attributes:
        outer: $J_f(g(x))$, `[d, m]`.
        inner: $J_g(x)$, `[m, k]`.
        composed: $J_{f\circ g}(x)$, `[d, k]`, differentiated as one function.
    """

    outer: Tensor
    inner: Tensor
    composed: Tensor

    @property
    def residual(self) -> float:
        r"""The largest entry of $J_{f\circ g}-J_fJ_g$, relative to the largest of it."""
        scale = max(1.0, float(self.composed.abs().max()))
        return float((self.composed - self.outer @ self.inner).abs().max()) / scale


def chain_rule(
    outer: Function, inner: Function, x: Tensor, *, numerical: bool = False
) -> ChainRule:
    r"""Both sides of $J_{f\circ g}(x)=J_f(g(x))\,J_g(x)$ for functions of vectors.

    Args:
        outer: $f$, from `[m]` to `[d]`.
        inner: $g$, from `[k]` to `[m]`.
        x: `[k]`.
        numerical: by differences instead of automatic differentiation, which itself is the
            chain rule.

    >>> rule = chain_rule(torch.sin, lambda v: v[:1] * v[1:], torch.tensor([0.0, 2.0]))
    >>> rule.outer, rule.inner, rule.composed
    (tensor([[1.]]), tensor([[2., 0.]]), tensor([[2., 0.]]))
    """
    x = _point(x)
    if x.ndim != 1:
        raise ShapeMismatch(f"x must be a vector, not {list(x.shape)}")

    def matrix(function: Function, at: Tensor) -> Tensor:
        return numerical_jacobian(function, at) if numerical else jacobian(function)(at)

    middle = inner(x)
    return ChainRule(matrix(outer, middle), matrix(inner, x), matrix(lambda v: outer(inner(v)), x))


def hessian_vector_product(function: Function, x: Tensor, v: Tensor) -> Tensor:
    r"""$\nabla^2f(x)v$ exactly, as the derivative of the gradient along $v$.

    Pearlmutter's method: forward over reverse differentiation, about twice the cost of a
    gradient; the Hessian is never formed.

    >>> x, v = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0])
    >>> hessian_vector_product(lambda x: x[0] ** 2 * x[1], x, v)
    tensor([4., 2.])
    """
    x, v = _point(x), _point(v)
    if x.shape != v.shape:
        raise ShapeMismatch(f"x is {list(x.shape)} and v {list(v.shape)}: they must agree")
    product: Tensor = torch.func.jvp(torch.func.grad(function), (x,), (v,))[1]
    return product


def hessian_at(function: Function, x: Tensor) -> LinearOperator:
    r"""The Hessian $\nabla^2f(x)$ of a plain function as an operator on `[d]`.

    For the loss of a network on data see `torchtheory.optimization`. Each product costs what
    `hessian_vector_product` costs.

    >>> hessian_at(lambda x: x[0] ** 2 * x[1], torch.tensor([1.0, 2.0])).to_dense()
    tensor([[4., 2.],
            [2., 0.]])
    """
    x = _point(x)
    d = x.numel()

    def product(v: Tensor) -> Tensor:
        return hessian_vector_product(function, x, v.reshape(x.shape)).reshape(-1)

    return LinearOperator((d, d), product, symmetric=True, dtype=x.dtype, device=x.device)


def _point(x: Tensor) -> Tensor:
    if not isinstance(x, Tensor):
        raise InvalidType(f"the point must be a torch tensor, not {type(x).__name__}")
    if x.dtype not in (torch.float32, torch.float64):
        raise InvalidType(f"the point must be float32 or float64, not {x.dtype}")
    all_finite(x, "the point")
    return x.detach()
