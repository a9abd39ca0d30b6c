r"""How long a code of a set must be: power sums of length $M$ do, shorter continuous ones do not.

With $\phi(x)=(x,x^2,\dots,x^M)$ the sum over a set of $M$ scalars are its power sums
$p_k=\sum_mx_m^k$. Newton's identities make elementary symmetric polynomials of them,

$$ k\,e_k=\sum_{i=1}^k(-1)^{i-1}e_{k-i}\,p_i,\qquad e_0=1, $$

which are the coefficients of $\prod_m(z-x_m)=\sum_k(-1)^ke_kz^{M-k}$, whose roots are the set. So
every symmetric $f$ is $\rho(\sum_m\phi(x_m))$ with a code of length $d=M$.

For $d<M$ and continuous $\phi$ two sets have the same code: $\Phi(x)=\sum_m\phi(x_m)$ is continuous
on the sorted tuples, an $M$-dimensional simplex, and no continuous map of one into $\mathbb R^d$
is injective (invariance of domain). Where $\phi$ is smooth such sets are found by following the
level set $\Phi(x)=\mathrm{const}$, whose tangent is the kernel of the $d\times M$ matrix
$(\phi'(x_1),\dots,\phi'(x_M))$. What the two have in common is taken from both and replaced by the
least element, which changes neither code equation nor inequality, so that at last their maxima
differ: no $\rho$ can tell them apart, and its error on one of the two is at least half of that.

Sources: Deep Learning (notes), section 7.2; E. Wagstaff et al., On the limitations of representing
functions on sets (2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, as_function, described, finite_number, whole_number
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.graphs.deep_sets import DeepSet

#: A code is refused if the set read from it has power sums that are further off, of their size.
#: Elements that occur m times come back to eps^(1/m) only, and their power sums to its square.
LARGEST_RESIDUAL = 0.01


class Powers(nn.Module):
    """Scalars `[..., 1]` to their first powers `[..., count]`.

    >>> Powers(3)(torch.tensor([[2.0]])).tolist()
    [[2.0, 4.0, 8.0]]
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = whole_number(count, "count", least=1)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1:] != (1,):
            raise ShapeMismatch(f"powers are of scalars [..., 1], not of {list(x.shape)}")
        powers: Tensor = x ** torch.arange(1, self.count + 1, device=x.device)
        return powers


def power_sum_encode(x: Tensor, count: int | None = None) -> Tensor:
    r"""The power sums $p_1,\dots,p_d$ of sets of scalars.

    Args:
        x: sets `[..., M]`.
        count: $d$; the size of the sets unless given.

    >>> power_sum_encode(torch.tensor([1.0, 2.0, 3.0])).tolist()
    [6.0, 14.0, 36.0]
    """
    x = _scalars(x, "x")
    powers: Tensor = Powers(x.shape[-1] if count is None else count)(x[..., None])
    return powers.sum(-2)


@dataclass(frozen=True, slots=True)
class DecodedSet:
    r"""What power sums say about the set they come from.

    Attributes:
        values: the set `[..., M]`, sorted.
        elementary: $e_1,\dots,e_M$, `[..., M]`.
        residual: largest difference of the power sums of `values` from the given ones, of their
            size, `[...]`.
        condition: by how many times a relative error of the code can grow in the set, to first
            order, `[...]`: $\|J^{-1}\|_2\|p\|/\|x\|$ with $J=\partial p/\partial x$; infinite
            where an element occurs twice.
    """

    values: Tensor
    elementary: Tensor
    residual: Tensor
    condition: Tensor


def elementary_symmetric(p: Tensor) -> Tensor:
    r"""$e_1,\dots,e_M$ from $p_1,\dots,p_M$ by Newton's identities; `[..., M]` both.

    >>> elementary_symmetric(torch.tensor([6.0, 14.0, 36.0])).tolist()
    [6.0, 11.0, 6.0]
    """
    p = _scalars(p, "p")
    found = [torch.ones_like(p[..., 0])]
    for k in range(1, p.shape[-1] + 1):
        terms = [(-1) ** (i - 1) * found[k - i] * p[..., i - 1] for i in range(1, k + 1)]
        found.append(torch.stack(terms).sum(0) / k)
    return torch.stack(found[1:], -1)


def power_sum_decode(p: Tensor) -> DecodedSet:
    r"""The set of $M$ real numbers whose power sums are $p_1,\dots,p_M$.

    Computed in double precision, as the eigenvalues of a companion matrix. The condition number
    of the problem grows exponentially with $M$ and is reported.

    Args:
        p: `[..., M]`.

    Raises:
        InvalidInput: if no real set has these power sums.

    Time: $O(M^3)$ per set.

    >>> power_sum_decode(torch.tensor([6.0, 14.0, 36.0])).values.round(decimals=6).tolist()
    [1.0, 2.0, 3.0]
    """
    p = _scalars(p, "p").double()
    size = p.shape[-1]
    e = elementary_symmetric(p)
    signs = torch.tensor([(-1.0) ** k for k in range(size)], dtype=p.dtype, device=p.device)
    companion = torch.diag(torch.ones(size - 1, dtype=p.dtype, device=p.device), -1)
    companion = companion.expand(*p.shape[:-1], size, size).clone()
    companion[..., 0, :] = signs * e
    values = torch.linalg.eigvals(companion).real.sort(-1).values
    again = power_sum_encode(values)
    # p_k is of the order of M times the k-th power of the largest element
    size_of = values.abs().amax(-1, keepdim=True).clamp(min=1e-300)
    scale = size * size_of ** torch.arange(1, size + 1, device=p.device)
    residual = ((again - p).abs() / torch.maximum(scale, p.abs()).clamp(min=1e-300)).amax(-1)
    if bool((residual > LARGEST_RESIDUAL).any()):
        raise InvalidInput(
            f"no set of {size} real numbers has these power sums: the nearest one found is off by "
            f"{float(residual.max()):.2g} of their size"
        )
    orders = torch.arange(1, size + 1, device=p.device, dtype=p.dtype)
    slopes = orders[:, None] * values[..., None, :] ** (orders[:, None] - 1)
    smallest = torch.linalg.svdvals(slopes)[..., -1]
    condition = p.norm(dim=-1) / (smallest * values.norm(dim=-1))
    # of the set of zeros every error is infinitely large in comparison
    condition = torch.where(condition.isfinite(), condition, math.inf)
    return DecodedSet(values, e, residual, condition)


class _Decoded(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, p: Tensor) -> Tensor:
        return self.function(power_sum_decode(p).values.to(p.dtype))


def power_sum_network(function: Callable[[Tensor], Tensor], size: int) -> DeepSet:
    r"""Any symmetric function of `size` scalars as a Deep Set with a code of that length.

    Args:
        function: from sorted sets `[..., M]` to outputs.

    >>> middle = power_sum_network(lambda x: x[..., 1], 3)
    >>> round(middle(torch.tensor([[7.0], [1.0], [2.0]])).item(), 6)
    2.0
    """
    as_function(function, "function")
    return DeepSet(Powers(size), _Decoded(function))


# ------------------------------------------------------------------------------------- collisions


@dataclass(frozen=True, slots=True)
class Collision:
    r"""Two sets with one code and different values of a function.

    Attributes:
        first, second: the sets `[M]`, sorted.
        distance: of their codes, of the codes' size: what rounding leaves.
        values: of the target.
        forced_error: half the difference of the values: every $\rho$ is wrong by at least so much
            on one of the two.
        path: the sets on the way from one to the other, `[steps, M]`, all with that code.
    """

    first: Tensor
    second: Tensor
    distance: float
    values: tuple[float, float]
    path: Tensor = field(repr=False)

    @property
    def forced_error(self) -> float:
        return abs(self.values[0] - self.values[1]) / 2


#: How far a step goes along the path, of the interval; and Newton's steps back to the level set.
STEP, CORRECTIONS = 0.02, 6

#: Steps of a path in each direction, at most.
STEPS = 100

#: Codes are taken to be equal if they differ by no more rounding than so many units, of their size.
ROUNDING = 1e3


def set_collision(
    phi: nn.Module | Callable[[Tensor], Tensor],
    size: int,
    target: Callable[[Tensor], Tensor] | None = None,
    *,
    low: float = 0.0,
    high: float = 1.0,
    starts: int = 8,
    generator: RandomSource = None,
) -> Collision | None:
    r"""Two sets of `size` numbers whose codes $\sum_m\phi(x_m)$ agree, though their values do not.

    From random sets, the level set of the code is followed in steps along the kernel of its
    derivative, in the direction that changes the target most, each with Newton's steps back to
    the level set, until it leaves the interval or ends. Of what is met, the pair that forces the
    largest error is returned.

    Args:
        phi: from scalars `[n, 1]` to codes `[n, d]`, differentiable almost everywhere.
        target: from sets `[..., M]` to numbers `[...]`, symmetric; the maximum unless given.
        low, high: the interval that elements are from.
        starts: how many random sets to begin with.

    Returns:
        None if no such pair was met, as where $d\ge M$ and the code has full rank.

    Time: at most `STEPS` times a few derivatives of `phi` at 2 × `starts` × `size` points.

    >>> found = set_collision(nn.Identity(), 2)      # the sum alone: {0.2, 0.6} and {0, 0.8}
    >>> found.forced_error > 0.1, found.distance < 1e-12
    (True, True)
    >>> set_collision(Powers(2), 2) is None
    True
    """
    as_function(phi, "phi")
    size = whole_number(size, "size", least=1)
    low, high = finite_number(low, "low"), finite_number(high, "high")
    if not low < high:
        raise InvalidInput(f"the interval from {low:g} to {high:g} is empty")
    starts = whole_number(starts, "starts", least=1)
    value = _largest if target is None else as_function(target, "target")
    source = as_generator(generator)
    drawn = torch.rand(starts, size, generator=source, dtype=torch.float64).sort(-1).values
    first = (low + (high - low) * drawn).to(_precision(phi))
    paths = _followed(phi, first, value, low, high)
    found = [_widest(phi, path, value, low) for path in paths]
    return max((c for c in found if c is not None), key=lambda c: c.forced_error, default=None)


def _followed(
    phi: Callable[[Tensor], Tensor],
    start: Tensor,
    value: Callable[[Tensor], Tensor],
    low: float,
    high: float,
) -> list[Tensor]:
    """From each set `[starts, M]` the level set of its code, both ways: `[steps, M]` each."""
    count, step = len(start), STEP * (high - low)
    # one half of the batch goes forward, the other half back
    x = torch.cat([start, start])
    wanted, _ = _codes(phi, x)
    slope = _gradient(value, x)
    direction = torch.cat([slope[:count], -slope[count:]])
    going = torch.ones(2 * count, dtype=torch.bool)
    met: list[list[Tensor]] = [[] for _ in x]
    for k in range(STEPS):
        _, slopes = _codes(phi, x)
        tangent = _kernel_part(slopes, direction)
        if k == 0:  # where the target's own slope has no part in the kernel, both ways the same
            tangent[count:] = -tangent[:count]
        length = tangent.norm(dim=-1)
        direction = tangent / length.clamp(min=1e-300)[:, None]
        moved, close = _corrected(phi, x + step * direction * going[:, None], wanted)
        inside = ((moved >= low) & (moved <= high)).all(-1)
        # too short a step is one that is stuck at a corner of phi
        going &= close & inside & (length > 0.5) & ((moved - x).norm(dim=-1) > 0.1 * step)
        if not bool(going.any()):
            break
        x = torch.where(going[:, None], moved, x)
        for row in going.nonzero()[:, 0].tolist():
            met[row].append(x[row])
    return [torch.stack([*reversed(met[count + k]), start[k], *met[k]]) for k in range(count)]


def _codes(phi: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """The codes `[n, d]` of sets `[n, M]` and their derivatives `[n, d, M]`."""
    points = x.detach().reshape(-1, 1).clone().requires_grad_()
    with torch.enable_grad():
        each = phi(points)
    if each.ndim != 2 or len(each) != len(points):
        raise ShapeMismatch(
            f"phi must map scalars [{len(points)}, 1] to codes [{len(points)}, d], not to "
            f"{list(each.shape)}"
        )
    # each code is of its own scalar; forward mode would take ten times as long for small networks
    rows = [torch.autograd.grad(c.sum(), points, retain_graph=True)[0] for c in each.unbind(1)]
    shape = (*x.shape, each.shape[1])
    return each.detach().reshape(shape).sum(1), torch.cat(rows, 1).reshape(shape).mT


def _kernel_part(slopes: Tensor, direction: Tensor) -> Tensor:
    """A direction's part in the kernel, of length 1; any of the kernel if it has none; else 0."""
    _, s, right = torch.linalg.svd(slopes, full_matrices=True)
    size = right.shape[-1]
    full = torch.zeros_like(right[..., 0])
    full[..., : s.shape[-1]] = s
    free = full <= 1e-10 * full.amax(-1, keepdim=True)
    kernel = right * free[..., None]
    part = (kernel.mT @ (kernel @ direction[..., None]))[..., 0]
    lost = part.norm(dim=-1) < 1e-9 * direction.norm(dim=-1).clamp(min=1e-9)
    part = torch.where(lost[:, None], kernel[..., size - 1, :], part)
    size_of: Tensor = part.norm(dim=-1, keepdim=True).clamp(min=1e-300)
    return part / size_of


def _corrected(phi: Callable[[Tensor], Tensor], x: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Newton's method of least norm, to sets with the wanted codes; and which came there."""
    eps = torch.finfo(x.dtype).eps
    scale = wanted.norm(dim=-1).clamp(min=1.0)
    for _ in range(CORRECTIONS):
        code, slopes = _codes(phi, x)
        missing = wanted - code
        if bool((missing.norm(dim=-1) <= 32 * eps * scale).all()):
            break
        x = x + (torch.linalg.pinv(slopes, rtol=1e-10) @ missing[..., None])[..., 0]
        x = torch.where(x.isfinite(), x, 1e9)  # far outside, where the path ends
    else:
        missing = wanted - _codes(phi, x)[0]
    return x, missing.norm(dim=-1) <= ROUNDING * eps * scale


def _widest(
    phi: Callable[[Tensor], Tensor], path: Tensor, value: Callable[[Tensor], Tensor], low: float
) -> Collision | None:
    """The pair on a path whose values differ most."""
    values = value(path).detach()
    pair = torch.stack([path[values.argmin()], path[values.argmax()]]).sort(-1).values
    if value is _largest and len(path) > 1 and float(values.max() - values.min()) == 0:
        pair = _without_common(path[0], path[-1], low)
    a, b = (float(v) for v in value(pair))
    codes, _ = _codes(phi, pair)
    distance = float((codes[0] - codes[1]).norm()) / max(1.0, float(codes[0].norm()))
    if abs(a - b) <= 1e-6 or distance > ROUNDING * torch.finfo(path.dtype).eps:
        return None
    return Collision(pair[0], pair[1], distance, (a, b), path)


def _without_common(first: Tensor, second: Tensor, low: float) -> Tensor:
    """What two sets have in common taken from both, and the least element instead: `[2, M]`."""
    a, b = first.tolist(), second.tolist()
    for x in list(a):
        if x in b:
            a.remove(x)
            b.remove(x)
    filled = [[low] * (len(first) - len(rest)) + sorted(rest) for rest in (a, b)]
    return first.new_tensor(filled)


def _gradient(value: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    y = x.clone().requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(value(y).sum(), y)
    return slope


def _largest(x: Tensor) -> Tensor:
    return x.max(-1).values


def _precision(phi: object) -> torch.dtype:
    if isinstance(phi, nn.Module):
        for parameter in phi.parameters():
            return parameter.dtype
    return torch.float64


def _scalars(x: Tensor, name: str) -> Tensor:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise InvalidType(f"{name} must be a tensor of real numbers, not {described(x)}")
    if x.ndim == 0 or x.numel() == 0:
        raise EmptyData(f"{name} must be sets of at least one number [..., M], not {described(x)}")
    return all_finite(x, name)
