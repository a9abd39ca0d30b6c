r"""The polar problem: which subnetwork agrees most with given output gradients?

$$
\Omega^\circ(Q)=\sup\{\langle Q,\phi(X,w)\rangle:\theta(w)\le1\}.
$$

For a linear unit it is a largest singular value. For a ReLU unit it is
$\max_{\|w\|\le1}\|Q^\top\max(Xw,0)\|$, a convex function to be *maximized*, which is hard in
general. It is solved exactly where the inputs span two dimensions (an angle is swept) and, for one
output, where the cells of the activation patterns can be listed; see
`activation_cells`. Otherwise a search from many starts gives a lower
bound, and says so. Source: Mathematical Aspects of Deep Learning, Eqs. (4.43), (4.49).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_matrix
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.mapping import Mapped
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.optimization.parallel_networks.activation_cells import (
    best_directions,
    circle,
    span_of_rows,
)
from torchtheory.optimization.parallel_networks.subnetworks import Subnetwork, with_ones

#: Local solutions that are kept, at most.
MOST_OTHERS = 200
#: What rounding can hide, relative to the sum of the sizes that enter.
ROUNDING = 1e-13


@dataclass(frozen=True, slots=True)
class Polar:
    r"""The best subnetwork found.

    Attributes:
        value: $\langle Q,\phi(X,w)\rangle$ for `weights`.
        weights: `[p]`, of penalty 1.
        bound: what no subnetwork of penalty 1 exceeds: the value and its rounding where the
            problem was solved, infinite where it was only searched.
        starts: of the search, 0 if there was none.
        others: `[k, p]`, local solutions, among them the best.
    """

    value: float
    weights: Tensor
    bound: float
    starts: int
    others: Tensor

    @property
    def exact(self) -> bool:
        r"""Whether the value is $\Omega^\circ(Q)$, and not a lower bound of it."""
        return math.isfinite(self.bound)


def polar(
    subnetwork: Subnetwork,
    x: Tensor,
    q: Tensor,
    *,
    starts: int = 50,
    generator: RandomSource = None,
) -> Polar:
    r"""Maximize $\langle Q,\phi(X,w)\rangle$ over $\theta(w)\le1$.

    Args:
        subnetwork: $\phi$ and $\theta$.
        x: `[m, ...]`.
        q: `[m, c]`.
        starts: of the search where there is no exact method.
        generator: seed or generator of the starts.

    Exact for a linear unit; for a ReLU unit on inputs that span at most two dimensions (a bias
    counts as one), or with one output and so few samples that the cells can be listed: up to 300
    in three dimensions, 40 in four, 17 in five. Computed in double precision for units; the
    weights come in the precision of `q`.

    >>> from torchtheory.optimization.parallel_networks.subnetworks import relu_unit
    >>> x, q = torch.eye(2).double(), torch.tensor([[3.0], [4.0]]).double()
    >>> found = polar(relu_unit(2, 1), x, q)                   # w = (3, 4) / 5 is in the first cone
    >>> round(found.value, 9), found.exact
    (5.0, True)
    """
    q = as_matrix(q, "the output gradients")
    if len(q) != len(x):
        raise ShapeMismatch(f"{len(x)} inputs and {len(q)} rows of output gradients must pair up")
    if starts < 1:
        raise InvalidInput(f"a search needs at least one start, not {starts!r}")
    if subnetwork.kind == "other":
        x = x.to(q) if x.is_floating_point() else x
        return _search(subnetwork, x, q, starts, generator)
    seen = _inputs_of_unit(subnetwork, x, q)
    slopes = q.double()
    if subnetwork.kind == "linear unit":
        right, sigma, left = torch.linalg.svd(seen.T @ slopes, full_matrices=False)
        best = torch.cat([right[:, 0], left[0]]).to(q)
        value = float(sigma[0])
        return Polar(value, best, value * (1 + ROUNDING * sum(seen.shape)), 0, best[None])
    # along what no sample sees a unit does nothing
    basis = span_of_rows(seen)
    inner, error = _directions(seen @ basis.T, slopes, starts, generator)
    inner = inner @ basis
    answers = torch.relu(inner @ seen.T) @ slopes  # [k, c]
    sizes, order = answers.norm(dim=1).sort(descending=True)
    inner, answers = inner[order[:MOST_OTHERS]], answers[order[:MOST_OTHERS]]
    outer = nn.functional.normalize(answers, dim=1, eps=1e-300)
    outer[sizes[:MOST_OTHERS] == 0, 0] = 1.0
    units = torch.cat([inner, outer], 1).to(q)
    value = float(sizes[0])
    scale = float(seen.norm(dim=1) @ slopes.norm(dim=1))
    bound = value + error + ROUNDING * scale
    return Polar(value, units[0], bound, 0 if math.isfinite(error) else starts, units)


def _inputs_of_unit(subnetwork: Subnetwork, x: Tensor, q: Tensor) -> Tensor:
    """Inputs `[m, d]` in double precision, once a probe has shown that it is a unit.

    A penalty or an architecture put in the place of a unit's own would make the exact methods
    answer another question.
    """
    x = as_matrix(x, "the inputs").double()
    seen = with_ones(x, subnetwork.bias)
    if subnetwork.size != seen.shape[1] + q.shape[1]:
        raise ShapeMismatch(
            f"the unit has {subnetwork.size} weights, and {seen.shape[1]} inputs and {q.shape[1]} "
            "outputs were given"
        )
    w = gaussian(subnetwork.size, generator=as_generator(0), dtype=torch.float64, device=x.device)
    first, last = w[: seen.shape[1]], w[seen.shape[1] :]
    hidden = seen @ first if subnetwork.kind == "linear unit" else torch.relu(seen @ first)
    with torch.no_grad():
        outputs, charge = subnetwork.outputs(x, w), float(subnetwork.penalty(w))
    decay, product = float(w.square().sum()) / 2, float(first.norm() * last.norm())
    penalized = any(math.isclose(charge, own, rel_tol=1e-9) for own in (decay, product))
    if not penalized or not torch.allclose(outputs, hidden[:, None] * last):
        raise InvalidInput(
            f"the subnetwork is said to be a {subnetwork.kind}, and its outputs or its penalty are "
            "others: give it the kind 'other'"
        )
    return seen


def _directions(x: Tensor, q: Tensor, starts: int, generator: RandomSource) -> tuple[Tensor, float]:
    """Unit vectors `[k, d]` for `x[m, d]` of full rank, and by how much the best of them can
    be off: infinite for those of a search."""
    if x.shape[1] == 0:
        return x.new_zeros(1, 0), 0.0
    if x.shape[1] == 1:
        return x.new_tensor([[1.0], [-1.0]]), 0.0
    if x.shape[1] == 2:
        return _swept(x, q), 0.0
    climbed = _climbed(x, q, starts, generator)
    _, sigma, right = torch.linalg.svd(q, full_matrices=False)
    if float(sigma[1:].sum()) <= 1e-13 * float(sigma[0]):  # in effect one output
        found = best_directions(x, q @ right[0], climbed)
        if found is not None:
            return found
    return climbed, math.inf


def _swept(x: Tensor, q: Tensor) -> Tensor:
    """Directions among which the best is: the ends of all sectors between two kinks and, where the
    quadratic form of a sector has its maximum inside, that point. O(m log m)."""
    turn = 2 * torch.pi
    own = torch.atan2(x[:, 1], x[:, 0])
    outer = x[:, :, None] * q[:, None]  # [m, 2, c]
    angles, order = (torch.cat([own - torch.pi / 2, own + torch.pi / 2]) % turn).sort()
    # sector k begins at kink k, where a sample is switched on or off; the last goes round past 0
    active = (circle((angles[:1] + turn + angles[-1:]) / 2) @ x.T > 0).to(x)
    forms = torch.einsum("sm,mdc->sdc", active, outer) + torch.cat([outer, -outer])[order].cumsum(0)
    widths = torch.cat([angles[1:], angles[:1] + turn]) - angles
    tops, sigma, _ = torch.linalg.svd(forms, full_matrices=False)
    tops = torch.cat([tops[:, :, 0], -tops[:, :, 0]])
    into = (torch.atan2(tops[:, 1], tops[:, 0]) - angles.repeat(2)) % turn
    ends = circle(angles)
    values = [
        torch.einsum("sdc,sd->sc", forms, ends).norm(dim=1),
        torch.where(into <= widths.repeat(2), sigma[:, 0].repeat(2), -1.0),
    ]
    best = torch.cat(values).topk(min(2 * MOST_OTHERS, 3 * len(angles))).indices
    return torch.cat([ends, tops])[best]


def _climbed(x: Tensor, q: Tensor, starts: int, generator: RandomSource) -> Tensor:
    """Linearize the convex function and go to the maximizer on the sphere, again and again."""
    source = as_generator(generator)
    w = gaussian(40 * starts, x.shape[1], generator=source, dtype=x.dtype, device=x.device)
    w = nn.functional.normalize(w, dim=1)
    pieces = torch.split(w, max(1, 2_000_000 // len(x)))
    worth = torch.cat([(torch.relu(some @ x.T) @ q).norm(dim=1) for some in pieces])
    w = w[worth.topk(starts).indices]
    for _ in range(200):
        hidden = torch.relu(w @ x.T)
        slope = (hidden @ q @ q.T * (hidden > 0)) @ x
        moved = nn.functional.normalize(slope, dim=1, eps=1e-300)
        moved = torch.where((slope.norm(dim=1) > 0)[:, None], moved, w)
        if float((moved - w).abs().max()) < 1e-12:
            break
        w = moved
    return w


def _search(
    subnetwork: Subnetwork, x: Tensor, q: Tensor, starts: int, generator: RandomSource
) -> Polar:
    """Ascent of the quotient <Q, phi(w)> / theta(w), which scaling does not change."""
    source = as_generator(generator)
    w = gaussian(starts, subnetwork.size, generator=source, dtype=q.dtype, device=q.device)
    w.requires_grad_()
    optimizer = torch.optim.Adam([w], lr=0.05)
    outputs = Mapped(lambda v: subnetwork.outputs(x, v))
    penalties = Mapped(subnetwork.penalty)

    def quotients() -> Tensor:
        made: Tensor = (outputs(w) * q).sum((1, 2)) / penalties(w)
        return made

    for step in range(200):
        optimizer.param_groups[0]["lr"] = 0.05 * 0.98**step
        optimizer.zero_grad()
        (-quotients().sum()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with torch.no_grad():
            w.div_(w.norm(dim=1, keepdim=True))
    with torch.no_grad():
        values = torch.nan_to_num(quotients(), nan=-math.inf)
        charge = penalties(w)
        units = w / charge[:, None] ** (1 / subnetwork.degree)
    top = int(values.argmax())
    return Polar(float(values[top]), units[top], math.inf, starts, units)
