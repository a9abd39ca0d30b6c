r"""Integral operators, the Fourier transform and convolution of functions, each with its error.

$$
(Tf)(u)=\int_a^bH(u,t)\,f(t)\,dt,\qquad H=e^{-2\pi itu}:\ \text{Fourier},\qquad
H=h(u-t):\ \text{convolution}.
$$

Every integral is a sum over the midpoints of panels, and every result says how wrong it may be: by
a *bound*, if the caller knows how rough the integrand is, or else by an *estimate*, the change
since half as many panels. With spacing $\tau$ and $g$ the integrand, the sum is wrong by at most

$$
\frac\tau2\operatorname{Var}(g),\qquad \frac{\tau^2}8\int_a^b|g''|,\qquad
2\zeta(p)\Bigl(\frac\tau{2\pi}\Bigr)^p\int_a^b|g^{(p)}|\quad(p\ge3),
$$

the first two for any $g$ (Koksma's inequality for the midpoints; Peano's kernel), the third if
$g,\dots,g^{(p-1)}$ agree at the two ends, as where they vanish (Euler and Maclaurin). Sources:
Deep Learning (notes), section 4.1; Foundations of Deep Learning, sections 10.1.1 and 10.1.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from scipy.special import zeta
from torch import Tensor

from torchtheory.core.checks import (
    all_finite,
    as_function,
    described,
    finite_number,
    nonnegative_number,
    one_of,
    positive_number,
    whole_number,
)
from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.core.memory import refuse_too_large

Function = Callable[[Tensor], Tensor]
Kernel = Callable[[Tensor, Tensor], Tensor]
Roughness = tuple[int, float]
Convention = Literal["ordinary", "angular", "unitary", "synthesis"]

#: The transform is $c\int f(t)e^{-iktu}dt$: the number k in the exponent and the factor c.
CONVENTIONS: dict[Convention, tuple[float, float]] = {
    "ordinary": (2 * math.pi, 1.0),
    "angular": (1.0, 1.0),
    "unitary": (1.0, 1 / math.sqrt(2 * math.pi)),
    "synthesis": (1.0, 1 / (2 * math.pi)),
}

_TILE = 2**22  # values of the kernel that are in memory at once


@dataclass(frozen=True, slots=True)
class Approximation:
    r"""Values of an integral, and how far they may be from it.

    Attributes:
        values: one for each place that was asked for.
        error: of the same shape. A bound is one on $|\text{value}-\text{integral}|$, apart from
            the rounding of the sum, if what the caller said of the integrand is true. An estimate
            is the change since half as many panels: at least the error wherever those are at
            least twice as wrong, and no more than a hint elsewhere.
        is_bound: which of the two.
    """

    values: Tensor
    error: Tensor
    is_bound: bool

    @property
    def basis(self) -> str:
        """What the error is: `bound` or `estimate`."""
        return "bound" if self.is_bound else "estimate"


def midpoints(low: float, high: float, panels: int) -> tuple[Tensor, float]:
    """The midpoints of equal panels of an interval, `[panels]`, and their spacing.

    >>> midpoints(0.0, 1.0, 2)
    (tensor([0.2500, 0.7500], dtype=torch.float64), 0.5)
    """
    low, high = finite_number(low, "low"), finite_number(high, "high")
    if not low < high:
        raise InvalidInput(
            f"an interval goes from low to high, and {low:g} and {high:g} were given"
        )
    count = whole_number(panels, "panels", least=1)
    spacing = (high - low) / count
    return low + spacing * (torch.arange(count, dtype=torch.float64) + 0.5), spacing


def midpoint_error_bound(
    spacing: float, roughness: Roughness, *, turns: Tensor | None = None
) -> Tensor:
    r"""How wrong the midpoint sum of an integral is at most; see the formulas of this module.

    On the whole line, and with an oscillating factor, $g(t)e^{-2\pi itu}$, there is more to be
    said. By Poisson's formula the sum is $\sum_m\pm\hat g(u+m/\tau)$, so that the error is what
    the terms other than $\hat g(u)$ can be: for $p\ge2$ and $|u|\tau<1$

    $$\Bigl(\frac\tau{2\pi}\Bigr)^p\bigl(\zeta(p,1+u\tau)+\zeta(p,1-u\tau)\bigr)\int|g^{(p)}|,$$

    with Hurwitz's zeta function.

    Args:
        spacing: $\tau$, the length of a panel.
        roughness: `(p, N)`: $N\ge\int|g^{(p)}|$, for p = 1 the total variation. For p from 3 on,
            on an interval, the derivatives below p must agree at the two ends.
        turns: $u\tau$, turns of the oscillating factor per panel, in any shape, for an integral
            over the whole line; p is at least 2 then.

    Returns:
        A number, or one for each of the turns: infinite from one turn per panel on.

    >>> float(midpoint_error_bound(0.5, (1, 1.0)))       # a jump of 1, anywhere in a panel
    0.25
    """
    order, size = _checked_roughness(roughness)
    positive_number(spacing, "spacing")
    if turns is None:
        factor = {1: 1 / 2, 2: 1 / 8}.get(order) or 2 * float(zeta(order)) / (2 * math.pi) ** order
        return torch.tensor(size * factor * spacing**order, dtype=torch.float64)
    if order == 1:
        raise InvalidInput(
            "the terms of Poisson's formula have no finite sum for p = 1; take the variation of "
            "the whole integrand, oscillating factor included, and no turns"
        )
    if not isinstance(turns, Tensor) or turns.is_complex():
        raise InvalidType(f"turns must be a tensor of real numbers, not {described(turns)}")
    turn = turns.detach().double().abs()
    inside = turn.clamp(max=1 - 1e-12).cpu().numpy()
    others = torch.as_tensor(zeta(order, 1 + inside) + zeta(order, 1 - inside)).to(turn)
    return torch.where(turn < 1, others * size * (spacing / (2 * math.pi)) ** order, math.inf)


def integral_operator(kernel: Kernel, u: Tensor, low: float, high: float, panels: int) -> Tensor:
    r"""The matrix of $(Tf)(u)=\int_a^bH(u,t)f(t)dt$ on the values of f at midpoints.

    Args:
        kernel: $H(u,t)$, called with u `[k, 1]` and t `[1, panels]`; real or complex.
        u: `[k]`, where the result is wanted.
        low, high: a and b; both finite.
        panels: $N$.

    Returns:
        `[k, N]`, the values $H(u_i,t_j)\tau$: times `f(midpoints(low, high, panels)[0])` it is
        the midpoint sum of `integrate_against`, without its error. Time and memory $kN$.

    Sources: Deep Learning (notes), Definition 4.1; Foundations of Deep Learning, section 10.1.1.

    >>> running = integral_operator(lambda u, t: (t < u).double(), torch.ones(1), 0.0, 1.0, 4)
    >>> running.tolist()
    [[0.25, 0.25, 0.25, 0.25]]
    """
    as_function(kernel, "kernel")
    places = _places(u)
    nodes, spacing = _nodes(low, high, panels, places)
    refuse_too_large(16 * len(places) * len(nodes), "the matrix of this operator")
    return _kernel_values(kernel, places, nodes) * spacing


def integrate_against(
    kernel: Kernel,
    f: Function,
    u: Tensor,
    low: float,
    high: float,
    *,
    panels: int = 1000,
    roughness: Roughness | None = None,
) -> Approximation:
    r"""The integral operator $(Tf)(u)=\int_a^bH(u,t)f(t)dt$, with its discretization error.

    Args:
        kernel: $H(u,t)$, called with u `[k, 1]` and t `[1, n]`; real or complex.
        f: a function of a tensor, entry by entry.
        u: `[k]`, where the result is wanted.
        low, high: a and b; both finite.
        panels: $N$.
        roughness: `(p, M)` with $M\ge\int_a^b|\partial_t^p(H(u,t)f(t))|dt$ for every u, for p = 1
            the total variation: then the error is a bound (see `midpoint_error_bound`); an
            estimate otherwise, at half as many evaluations more.

    Returns:
        An `Approximation`, `[k]`. Time $kN$; memory a few million values at a time.

    Sources: Deep Learning (notes), Definition 4.1; Foundations of Deep Learning, section 10.1.1.

    Example: $\int_0^1e^{ut}dt$ at u = 1, where $\int|g''|=e-1$.

    >>> made = integrate_against(
    ...     lambda u, t: torch.exp(u * t), torch.ones_like, torch.ones(1), 0.0, 1.0, panels=100,
    ...     roughness=(2, math.e - 1),
    ... )
    >>> gap = abs(float(made.values) - (math.e - 1))
    >>> gap <= float(made.error), made.basis, f"{float(made.error):.1e}"
    (True, 'bound', '2.1e-05')
    """
    as_function(kernel, "kernel")
    as_function(f, "f")
    places = _places(u)

    def once(count: int) -> Tensor:
        nodes, spacing = _nodes(low, high, count, places)
        return _summed(kernel, _values(f, nodes, "f"), places, nodes) * spacing

    values = once(whole_number(panels, "panels", least=2))
    if roughness is None:
        return _estimated(values, once(panels // 2))
    spacing = (high - low) / panels
    bound = midpoint_error_bound(spacing, roughness)
    return Approximation(values, bound.to(places).expand(values.shape).clone(), True)


def fourier_transform_at(
    f: Function,
    u: Tensor,
    low: float,
    high: float,
    *,
    convention: Convention,
    panels: int = 1000,
    roughness: Roughness | None = None,
    tail: float = 0.0,
) -> Approximation:
    r"""The Fourier transform $c\int f(t)e^{-iktu}dt$ at given frequencies, with its error.

    `convention` fixes k and c, which sources do differently:

    | convention | transform | inverse |
    |---|---|---|
    | `ordinary` | $\int f(t)e^{-2\pi itu}dt$ | $\int\hat f(u)e^{2\pi itu}du$ |
    | `angular` | $\int f(t)e^{-itu}dt$ | $\frac1{2\pi}\int\hat f(u)e^{itu}du$ |
    | `unitary` | $\int f(t)e^{-itu}dt/\sqrt{2\pi}$ | $\int\hat f(u)e^{itu}du/\sqrt{2\pi}$ |
    | `synthesis` | $\frac1{2\pi}\int f(t)e^{-itu}dt$ | $\int\hat f(u)e^{itu}du$ |

    The notes and the lectures use the first, the slides' Barron constant the last. On a whole grid
    of frequencies at once: `torchtheory.primer.function_spaces.fourier_transform`.

    Args:
        f: a function of a tensor, entry by entry.
        u: `[k]`, the frequencies.
        low, high: f is integrated from low to high.
        convention: one of the four; there is no default.
        panels: $N$.
        roughness: `(p, M)` with $M\ge\int|f^{(p)}|$ over the line, for p = 1 the total variation
            of f, which may jump; then the error is a bound. From p = 2 on, f must have p - 2
            continuous derivatives on the whole line, so that cutting it off at the ends is not
            felt beyond `tail`.
        tail: a bound on the integral of |f| over what lies outside of the interval, where |f| must
            not increase with the distance; 0 for a function that vanishes there.

    Returns:
        A complex `Approximation`, `[k]`. With spacing $\tau$ and $u'=ku/2\pi$ the bound is c times
        $\frac\tau2(M+2\pi|u'|\int_a^b|f|)+$ `tail` for p = 1 and, for p from 2 on,
        `midpoint_error_bound` with $u'\tau$ turns, plus what the panels beyond the interval would
        add, $\text{tail}+\frac\tau2(|f(a)|+|f(b)|)$. Without `roughness` it is an estimate that
        knows nothing of what lies outside. Time $kN$.

    Sources: Deep Learning (notes), Definition 4.2; Foundations of Deep Learning, section 10.1.1.

    Example: the box of length 1 has the transform $\sin(\pi u)/(\pi u)$.

    >>> box = lambda t: (t.abs() <= 0.5).double()
    >>> u = torch.tensor([0.0, 0.5], dtype=torch.float64)
    >>> made = fourier_transform_at(box, u, -1.0, 1.0, convention="ordinary", roughness=(1, 2.0))
    >>> bool(((made.values - torch.sinc(u)).abs() <= made.error).all())
    True
    """
    as_function(f, "f")
    one_of(convention, "convention", CONVENTIONS)
    rate, factor = CONVENTIONS[convention]
    places = _places(u)
    nonnegative_number(tail, "tail")

    def once(count: int) -> Tensor:
        nodes, spacing = _nodes(low, high, count, places)
        weights = _values(f, nodes, "f") * spacing * factor
        return _summed(lambda v, t: torch.exp(-1j * rate * v * t), weights, places, nodes)

    values = once(whole_number(panels, "panels", least=2))
    if roughness is None:
        return _estimated(values, once(panels // 2))
    nodes, spacing = _nodes(low, high, panels, places)
    order, size = _checked_roughness(roughness)
    frequencies = places * rate / (2 * math.pi)
    if order == 1:
        # the mass comes from the same sum, and may be too small by its own error
        mass = float(_values(f, nodes, "f").abs().sum()) * spacing + size * spacing / 2
        variation = size + 2 * math.pi * frequencies.abs() * mass
        bound = variation * spacing / 2 + tail
    else:
        ends = _values(f, places.new_tensor([low, high]), "f").abs().sum()
        bound = midpoint_error_bound(spacing, (order, size), turns=frequencies * spacing)
        bound = bound + tail + float(ends) * spacing / 2
    return Approximation(values, bound * factor, True)


def convolve_functions(
    f: Function,
    h: Function,
    u: Tensor,
    low: float | Sequence[float],
    high: float | Sequence[float],
    *,
    panels: int = 1000,
    roughness: Roughness | Sequence[float] | None = None,
) -> Approximation:
    r"""The convolution $(f*h)(u)=\int h(u-t)f(t)dt$ of functions on the line or in the plane.

    Args:
        f: a function of `[n]`, or of points `[n, 2]`; only its values in the interval (the box)
            count, so it should vanish outside.
        h: the same, anywhere.
        u: `[k]`, or points `[k, 2]`.
        low, high: the interval, or the corners of the box, two numbers each.
        panels: $N$ of the interval, or of each side of the box.
        roughness: what makes the error a bound. On the line `(p, M)` as for `integrate_against`,
            for the integrand $g(t)=h(u-t)f(t)$ at every u. In the plane two numbers, bounds on
            $\sup|\partial_1^2g|$ and $\sup|\partial_2^2g|$: the error is then at most
            $\frac{A}{24}(\tau_1^2M_1+\tau_2^2M_2)$ on a box of area A.

    Returns:
        An `Approximation`, `[k]`. Time $kN$, or $kN^2$ in the plane.

    Sources: Deep Learning (notes), Definition 4.3; Foundations of Deep Learning, sections 10.1.1
    and 10.1.2.

    Example: two boxes make a triangle; box times box has a variation of 2.

    >>> box = lambda t: (t.abs() <= 0.5).double()
    >>> u = torch.linspace(-1, 1, 5, dtype=torch.float64)
    >>> made = convolve_functions(box, box, u, -0.5, 0.5, roughness=(1, 2.0))
    >>> bool(((made.values - (1 - u.abs())).abs() <= made.error).all())
    True
    """
    as_function(f, "f")
    as_function(h, "h")
    if not isinstance(low, Sequence) and not isinstance(high, Sequence):
        line = None if roughness is None else _checked_roughness(roughness)
        return integrate_against(
            lambda v, t: _values(h, v - t, "h"), f, u, low, high, panels=panels, roughness=line
        )
    corners = _checked_corners(low, high)
    points = _points(u)

    def once(count: int) -> Tensor:
        lines, steps = zip(*(_nodes(a, b, count, points) for a, b in corners), strict=True)
        nodes = torch.cartesian_prod(*lines)
        weights = _values(f, nodes, "f", len(nodes)) * math.prod(steps)
        sums = []
        for some in torch.split(points, max(1, _TILE // len(nodes))):
            apart = (some[:, None] - nodes).reshape(-1, 2)
            found = _values(h, apart, "h", len(apart)).reshape(len(some), len(nodes))
            sums.append(found @ weights)
        return torch.cat(sums)

    values = once(whole_number(panels, "panels", least=2))
    if roughness is None:
        return _estimated(values, once(panels // 2))
    if not isinstance(roughness, Sequence) or len(roughness) != 2:
        raise ShapeMismatch(
            "in the plane the roughness is two numbers, one second derivative along each axis, not "
            f"{described(roughness)}"
        )
    curvatures = [nonnegative_number(m, "a bound of the roughness") for m in roughness]
    sides = [b - a for a, b in corners]
    bound = sum(
        math.prod(sides) / 24 * (side / panels) ** 2 * m
        for side, m in zip(sides, curvatures, strict=True)
    )
    return Approximation(values, torch.full_like(values, bound), True)


# -- what they share -------------------------------------------------------------------------------


def _nodes(low: float, high: float, panels: int, like: Tensor) -> tuple[Tensor, float]:
    nodes, spacing = midpoints(low, high, panels)
    return nodes.to(like.device), spacing


def _estimated(values: Tensor, coarser: Tensor) -> Approximation:
    return Approximation(values, (values - coarser).abs(), False)


def _kernel_values(kernel: Kernel, u: Tensor, t: Tensor) -> Tensor:
    found = kernel(u[:, None], t[None])
    if not isinstance(found, Tensor):
        raise InvalidType(f"the kernel must give a tensor, not {described(found)}")
    try:
        found = found.expand(len(u), len(t))
    except RuntimeError:
        raise ShapeMismatch(
            f"the kernel gives the shape {list(found.shape)} for u [{len(u)}, 1] and t "
            f"[1, {len(t)}]; [{len(u)}, {len(t)}] is needed"
        ) from None
    # a kernel of whole numbers or of True and False times a float would be float32
    exact = found if found.is_floating_point() or found.is_complex() else found.double()
    return all_finite(exact, "the kernel")


def _summed(kernel: Kernel, weights: Tensor, u: Tensor, nodes: Tensor) -> Tensor:
    sums = []
    for some in torch.split(u, max(1, _TILE // len(nodes))):
        tile = _kernel_values(kernel, some, nodes)
        common = torch.promote_types(tile.dtype, weights.dtype)
        sums.append(tile.to(common) @ weights.to(common))
    return torch.cat(sums)


def _values(f: Function, t: Tensor, name: str, count: int | None = None) -> Tensor:
    found = f(t)
    shape = t.shape if count is None else (count,)
    if not isinstance(found, Tensor) or found.shape != shape:
        raise ShapeMismatch(
            f"{name} must give one number per point, {list(shape)} for {list(t.shape)}, not "
            f"{described(found)}"
        )
    made = found.detach()
    if not made.is_complex():
        made = made.double()
    if not bool(torch.isfinite(made).all()):
        raise NonFinite(f"{name} must be finite at every midpoint, and it is not")
    return made


def _places(u: Tensor) -> Tensor:
    if not isinstance(u, Tensor) or u.is_complex() or u.ndim != 1 or len(u) == 0:
        raise ShapeMismatch(f"u must be real places [k], at least one, not {described(u)}")
    return all_finite(u.detach().double(), "u")


def _points(u: Tensor) -> Tensor:
    if not isinstance(u, Tensor) or u.is_complex() or u.shape[1:] != (2,) or len(u) == 0:
        raise ShapeMismatch(
            f"in the plane u must be points [k, 2], at least one, not {described(u)}"
        )
    return all_finite(u.detach().double(), "u")


def _checked_corners(
    low: float | Sequence[float], high: float | Sequence[float]
) -> list[tuple[float, float]]:
    if (
        not isinstance(low, Sequence)
        or not isinstance(high, Sequence)
        or not len(low) == len(high) == 2
    ):
        raise ShapeMismatch(
            "low and high are two numbers for an interval, or two pairs for a box, not "
            f"{described(low)} and {described(high)}"
        )
    return list(zip(low, high, strict=True))


def _checked_roughness(roughness: Roughness | Sequence[float]) -> Roughness:
    if not isinstance(roughness, Sequence) or len(roughness) != 2:
        raise InvalidType(
            "roughness is a pair (p, bound on the integral of the p-th derivative), not "
            f"{described(roughness)}"
        )
    order, size = roughness
    return (
        whole_number(order, "the order of the roughness", least=1, most=100),
        nonnegative_number(size, "the bound of the roughness"),
    )
