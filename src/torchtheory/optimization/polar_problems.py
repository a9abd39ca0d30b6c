r"""The polar problem: which subnetwork agrees most with given output gradients?

.. math::
    \Omega^\circ(Q)=\sup\{\langle Q,\phi(X,w)\rangle:\theta(w)\le1\}.

For a linear unit it is a largest singular value. For a ReLU unit it is
:math:`\max_{\|w\|\le1}\|Q^\top\max(Xw,0)\|`, a convex function to be *maximised*, which is hard in
general; it is solved exactly here for two inputs (an angle is swept) and, with one output, for few
samples: on each set of :math:`w` with one activation pattern the function is linear, so a
projection onto a cone decides. Otherwise a search from many starts gives a lower bound, and says
so. Source: Mathematical Aspects of Deep Learning, Eqs. (4.43), (4.49).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.expressivity.enumeration import enumerate_regions
from torchtheory.optimization.parallel_networks import Subnetwork, with_ones
from torchtheory.primer.arrays import matrix

#: With more samples than this in more than two dimensions, patterns are not listed.
MOST_SAMPLES = 12


@dataclass(frozen=True, slots=True)
class Polar:
    r"""The best subnetwork found.

    Attributes:
        value: :math:`\langle Q,\phi(X,w)\rangle` for ``weights``: :math:`\Omega^\circ(Q)` if
            ``exact``, a lower bound otherwise.
        weights: ``[p]``, of penalty 1.
        exact: whether the problem was solved.
        starts: of the search, 0 if there was none.
        others: ``[k, p]``, local solutions, among them the best.
    """

    value: float
    weights: Tensor
    exact: bool
    starts: int
    others: Tensor


def activation_patterns(x: Tensor) -> Tensor:
    r"""The sets :math:`\{i:x_i^\top w>0\}` that occur on open sets of :math:`w`, as 0 and 1.

    Args:
        x: ``[m, d]``.

    Returns:
        ``[patterns, m]``; in general position :math:`2\sum_{k<d}\binom{m-1}k` of them.

    Time :math:`O(m^2)` for :math:`d\le2`, a linear programme for each pattern and sample beyond.

    >>> len(activation_patterns(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])))
    6
    """
    x = matrix(x, "the inputs").double()
    if x.shape[1] == 1:
        inside = x.new_tensor([[1.0], [-1.0]])
    elif x.shape[1] == 2:
        kinks = _kinks(x)
        inside = _circle((kinks + torch.cat([kinks[1:], kinks[:1] + 2 * torch.pi])) / 2)
    else:
        layer = nn.Linear(x.shape[1], len(x), bias=False, dtype=torch.float64)
        layer.weight = nn.Parameter(x.clone(), requires_grad=False)
        one = torch.ones(x.shape[1], dtype=torch.float64)
        inside = enumerate_regions(nn.Sequential(layer, nn.ReLU()), -one, one).points
    found: Tensor = torch.unique((inside @ x.T > 0).double(), dim=0)
    return found


def polar(
    subnetwork: Subnetwork,
    x: Tensor,
    q: Tensor,
    *,
    patterns: Tensor | None = None,
    starts: int = 50,
    generator: RandomSource = None,
) -> Polar:
    r"""Maximise :math:`\langle Q,\phi(X,w)\rangle` over :math:`\theta(w)\le1`.

    Args:
        subnetwork: :math:`\phi` and :math:`\theta`.
        x: ``[m, ...]``.
        q: ``[m, c]``.
        patterns: of :func:`activation_patterns`, where they are known already (for inputs with
            the column of ones, if there is a bias).
        starts: of the search where there is no exact method.
        generator: seed or generator of the starts.

    Exact for a linear unit; for a ReLU unit with at most two inputs (a bias counts as one), and
    with one output and at most 12 samples or given patterns.

    >>> from torchtheory.optimization.parallel_networks import relu_unit
    >>> x, q = torch.eye(2).double(), torch.tensor([[3.0], [4.0]]).double()
    >>> found = polar(relu_unit(2, 1), x, q)                   # w = (3, 4) / 5 is in the first cone
    >>> round(found.value, 9), found.exact
    (5.0, True)
    """
    q = matrix(q, "the output gradients")
    if len(q) != len(x):
        raise ShapeMismatch(f"{len(x)} inputs and {len(q)} rows of output gradients must pair up")
    if starts < 1:
        raise InvalidInput("a search needs at least one start")
    if subnetwork.kind == "other":
        return _search(subnetwork, x, q, starts, generator)
    x = with_ones(matrix(x, "the inputs").to(q), subnetwork.bias)
    if subnetwork.size != x.shape[1] + q.shape[1]:
        raise ShapeMismatch(
            f"the unit has {subnetwork.size} weights, and {x.shape[1]} inputs and {q.shape[1]} "
            "outputs were given"
        )
    if subnetwork.kind == "linear unit":
        right, sigma, left = torch.linalg.svd(x.T @ q, full_matrices=False)
        best = torch.cat([right[:, 0], left[0]])
        return Polar(float(sigma[0]), best, True, 0, best[None])
    few = patterns is not None or len(x) <= MOST_SAMPLES
    exact = x.shape[1] <= 2 or (q.shape[1] == 1 and few)
    if x.shape[1] == 1:
        inner = x.new_tensor([[1.0], [-1.0]])
    elif x.shape[1] == 2:
        inner = _swept(x, q)
    elif exact:
        inner = _projected(x, q, activation_patterns(x) if patterns is None else patterns)
    else:
        inner = _climbed(x, q, starts, generator)
    answers = torch.relu(inner @ x.T) @ q  # [k, c]
    sizes = answers.norm(dim=1)
    outer = answers / sizes.clamp(min=torch.finfo(q.dtype).tiny)[:, None]
    outer[sizes == 0, 0] = 1.0
    units = torch.cat([inner, outer], 1)
    top = int(sizes.argmax())
    return Polar(float(sizes[top]), units[top], exact, 0 if exact else starts, units)


def _kinks(x: Tensor) -> Tensor:
    """The angles at which some unit changes sides, ascending in [0, 2 pi)."""
    seen = x[x.norm(dim=1) > 0]
    angle = torch.atan2(seen[:, 1], seen[:, 0])
    turned = torch.cat([angle + torch.pi / 2, angle - torch.pi / 2]) % (2 * torch.pi)
    found: Tensor = torch.unique(torch.cat([turned, turned.new_zeros(1)]))
    return found


def _circle(angle: Tensor) -> Tensor:
    return torch.stack([angle.cos(), angle.sin()], 1)


def _swept(x: Tensor, q: Tensor) -> Tensor:
    """Directions among which the best is: the ends of all sectors and, where the quadratic form
    of a sector has its maximum inside, that point."""
    kinks = _kinks(x)
    middle = _circle((kinks + torch.cat([kinks[1:], kinks[:1] + 2 * torch.pi])) / 2)
    forms = torch.einsum("mc,sm,md->scd", q, (middle @ x.T > 0).to(q), x)
    tops = torch.linalg.svd(forms, full_matrices=True)[2][:, 0]
    # outside its sector the point is a direction like any other, and does no harm
    return torch.cat([_circle(kinks), tops, -tops])


def _projected(x: Tensor, q: Tensor, patterns: Tensor) -> Tensor:
    """For each pattern and sign the projection of the gradient onto the pattern's cone.

    The cone is {w: A w >= 0}; by Moreau the projection is g + Aᵀμ with the μ >= 0 of least norm.
    """
    inner = []
    points, slopes = x.double().cpu().numpy(), q[:, 0].double().cpu().numpy()
    for pattern in patterns.double().cpu().numpy():
        cone = ((2 * pattern - 1)[:, None] * points).T
        gradient = points.T @ (pattern * slopes)
        inner += [g + cone @ nnls(cone, -g)[0] for g in (gradient, -gradient)]
    found = np.stack(inner)
    sizes = np.linalg.norm(found, axis=1, keepdims=True)
    useful = sizes[:, 0] > 1e-12 * max(1.0, float(sizes.max()))
    if not useful.any():  # every gradient points out of its cone: nothing is gained anywhere
        return torch.eye(x.shape[1]).to(x)
    return torch.as_tensor(found[useful] / sizes[useful]).to(x)


def _climbed(x: Tensor, q: Tensor, starts: int, generator: RandomSource) -> Tensor:
    """Linearise the convex function and go to the maximiser on the sphere, again and again."""
    source = as_generator(generator)
    w = gaussian(40 * starts, x.shape[1], generator=source, dtype=x.dtype, device=x.device)
    w = nn.functional.normalize(w, dim=1)
    w = w[(torch.relu(w @ x.T) @ q).norm(dim=1).topk(starts).indices]
    for _ in range(200):
        active = (w @ x.T > 0).to(q)
        slope = ((active * (w @ x.T)) @ q @ q.T * active) @ x
        moved = nn.functional.normalize(slope, dim=1)
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

    def quotients() -> Tensor:
        parts = torch.func.vmap(lambda v: subnetwork.outputs(x, v))(w)
        charge = torch.func.vmap(subnetwork.penalty)(w)
        return (parts * q).sum((1, 2)) / charge

    for step in range(200):
        optimizer.param_groups[0]["lr"] = 0.05 * 0.98**step
        optimizer.zero_grad()
        (-quotients().sum()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with torch.no_grad():
            w.div_(w.norm(dim=1, keepdim=True))
    with torch.no_grad():
        values = quotients()
        charge = torch.func.vmap(subnetwork.penalty)(w)
        units = w / charge[:, None] ** (1 / subnetwork.degree)
    top = int(values.argmax())
    return Polar(float(values[top]), units[top], False, starts, units)
