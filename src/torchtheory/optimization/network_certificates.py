r"""Is a trained network globally optimal? The convex problem under it answers.

For a sum of subnetworks with a nondegenerate pair :math:`(\phi,\theta)` and a convex loss,

.. math::
    \mathcal L(Z)+\lambda\Omega(Z)\le\mathcal L(\Phi_r(X,W))+\lambda\Theta_r(W),\qquad
    Z=\Phi_r(X,W),

with equality for suitable weights. So with :math:`G=-\nabla\mathcal L(Z)` a network is a global
minimum, over all widths, if and only if :math:`\langle G,Z\rangle=\lambda\Theta_r(W)`, which holds
at every stationary point, and :math:`\Omega^\circ(G)\le\lambda`: no subnetwork is worth its
penalty. Where one is, adding it lowers the objective. The loss has to be convex, differentiable
and at least 0 in the outputs. Source: Mathematical Aspects of Deep Learning, Eqs. (4.49), (4.50),
Theorem 4.9.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize, minimize_scalar, nnls
from torch import Tensor

from torchtheory.core.errors import InvalidInput, NonFinite
from torchtheory.core.random import RandomSource
from torchtheory.optimization.nuclear_norm import check_strength
from torchtheory.optimization.parallel_networks import (
    HalfSquares,
    OutputLoss,
    ParallelNetwork,
    Subnetwork,
    parallel_network,
    with_ones,
)
from torchtheory.optimization.polar_problems import Polar, activation_patterns, polar

_Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class NetworkCertificate:
    r"""How far a network can be from the best one of any width.

    Attributes:
        verdict: ``globally optimal``, ``not optimal``, or ``no violation found in N starts`` where
            the polar problem was only searched, which proves nothing.
        objective: :math:`\mathcal L+\lambda\Theta_r`.
        lower_bound: what no network of such subnetworks goes below; None where the polar problem
            was not solved.
        balance: :math:`\langle G,Z\rangle-\lambda\Theta_r`; 0 at a stationary point.
        polar: the solution of the polar problem for :math:`G`.
        strength: :math:`\lambda`.
    """

    verdict: str
    objective: float
    lower_bound: float | None
    balance: float
    polar: Polar
    strength: float

    @property
    def optimal(self) -> bool:
        """Whether global optimality is proved, to the tolerance."""
        return self.verdict == "globally optimal"

    @property
    def gap(self) -> float | None:
        """At least the distance of the objective from the least one; None if unknown."""
        return None if self.lower_bound is None else self.objective - self.lower_bound

    @property
    def relative_gap(self) -> float:
        """The gap as a part of the objective; infinite if unknown, 0 where the objective is 0."""
        if self.gap is None:
            return math.inf
        return self.gap / self.objective if self.objective > 0 else 0.0


def certify_network(
    network: ParallelNetwork,
    x: Tensor,
    loss: OutputLoss,
    strength: float,
    *,
    patterns: Tensor | None = None,
    tolerance: float = 1e-6,
    starts: int = 50,
    generator: RandomSource = None,
) -> NetworkCertificate:
    r"""Certify that no network of such subnetworks, of any width, has a lower objective.

    Two lower bounds are tried. By convexity, as :math:`\Omega\le f/\lambda` at any better network,
    :math:`\min f\ge\mathcal L(Z)+\langle G,Z\rangle-(\Omega^\circ(G)-\lambda)_+f/\lambda`; and for
    ``HalfSquares`` the dual's value at :math:`G` scaled to :math:`\Omega^\circ\le\lambda`.

    Args:
        network: see ``split_hidden_units`` for one of torch's.
        x: ``[m, ...]``.
        loss: of all outputs ``[m, c]``: convex, differentiable, at least 0; the *same* that was
            trained with (a mean stays a mean).
        strength: :math:`\lambda` in front of :math:`\Theta_r`. A ``weight_decay`` of
            ``torch.optim.SGD`` is this :math:`\lambda` for units with weight decay.
        patterns: activation patterns of ``x``, where they are known already.
        tolerance: the largest gap, relative to the objective, that counts as optimal.
        starts: of the search, where the polar problem cannot be solved.
        generator: of the starts.

    Costs a gradient of the loss and one polar problem.

    >>> from torchtheory.optimization.parallel_networks import relu_unit
    >>> x, y = torch.eye(2).double(), torch.tensor([[3.0], [4.0]]).double()
    >>> best = 4**0.5 * torch.tensor([[0.6, 0.8, 1.0]]).double()     # 5 less the strength
    >>> certify_network(parallel_network(relu_unit(2, 1), best), x, HalfSquares(y), 1.0).verdict
    'globally optimal'
    >>> certify_network(parallel_network(relu_unit(2, 1)), x, HalfSquares(y), 1.0).verdict
    'not optimal'
    """
    check_strength(strength)
    if not tolerance >= 0:
        raise InvalidInput(f"the tolerance must be at least 0, not {tolerance!r}")
    Z = network(x).detach().requires_grad_()
    value = loss(Z)
    if value.ndim != 0 or not bool(torch.isfinite(value)):
        raise NonFinite("the loss must be one finite number at these outputs")
    if float(value.detach()) < 0:
        raise InvalidInput("the loss is negative: shift it to be at least 0")
    G = -torch.autograd.grad(value, Z)[0]
    penalty = strength * float(network.penalties().sum())
    objective = float(value.detach()) + penalty
    agreement = float((G * Z.detach()).sum())
    found = polar(
        network.subnetwork, x, G, patterns=patterns, starts=starts, generator=generator
    )  # fmt: skip
    lower = None
    if found.exact:
        excess = max(0.0, found.value - strength)
        lower = float(value.detach()) + agreement - excess * objective / strength
        if isinstance(loss, HalfSquares):
            scale = min(1.0, strength / found.value) if found.value > 0 else 1.0
            lower = max(lower, loss.dual(scale * G))
        lower = max(lower, 0.0)
    small = tolerance * objective
    if lower is not None:
        verdict = "globally optimal" if objective - lower <= small else "not optimal"
    elif found.value > strength * (1 + tolerance) or abs(agreement - penalty) > small:
        verdict = "not optimal"
    else:
        verdict = f"no violation found in {found.starts} starts"
    return NetworkCertificate(verdict, objective, lower, agreement - penalty, found, strength)


def worth_of_subnetwork(
    network: ParallelNetwork, weights: Tensor, x: Tensor, loss: OutputLoss, strength: float
) -> float:
    r"""The best :math:`\epsilon\ge0` for a further part :math:`\epsilon\phi(X,w)` of penalty
    :math:`\epsilon\theta(w)`.

    For ``HalfSquares`` it is :math:`(\langle G,\phi\rangle-\lambda\theta)_+/\|\phi\|^2`, and the
    objective falls by half of :math:`(\langle G,\phi\rangle-\lambda\theta)_+^2/\|\phi\|^2`.

    Args:
        network: what there is already.
        weights: :math:`w`, ``[p]``, for instance ``certificate.polar.weights``.
        x: ``[m, ...]``.
        loss: of the outputs.
        strength: :math:`\lambda`.
    """
    part = network.subnetwork.outputs(x, weights).detach()
    charge = strength * float(network.subnetwork.penalty(weights))
    Z = network(x).detach()
    size = float(part.square().sum())
    if size == 0:
        return 0.0
    if isinstance(loss, HalfSquares):
        return max(0.0, float(((loss.targets - Z) * part).sum()) - charge) / size
    most = float(loss(Z)) / charge  # the loss cannot fall by more than there is
    found = minimize_scalar(
        lambda e: float(loss(Z + e * part)) + charge * e, bounds=(0.0, most), method="bounded",
        options={"xatol": 1e-10 * most},
    )  # fmt: skip
    return float(found.x) if found.fun < float(loss(Z)) else 0.0


def best_scales(network: ParallelNetwork, x: Tensor, loss: OutputLoss, strength: float) -> Tensor:
    r"""The factors :math:`c_i\ge0` that minimise
    :math:`\mathcal L(\sum_ic_i\phi_i)+\lambda\sum_ic_i\theta_i`, ``[r]``: a convex problem.

    At these, :math:`\langle G,Z\rangle=\lambda\Theta_r`. Solved exactly for ``HalfSquares``, by
    L-BFGS-B for other losses.
    """
    parts = network.parts(x).detach()
    charges = strength * network.penalties().detach()
    if not len(network):
        return charges
    if isinstance(loss, HalfSquares):
        return _least_squares_scales(parts, charges, loss.targets)

    def value(c: _Array) -> tuple[float, _Array]:
        scales = torch.as_tensor(c).to(parts).requires_grad_()
        f = loss(torch.einsum("r,rmc->mc", scales, parts)) + scales @ charges
        (slope,) = torch.autograd.grad(f, scales)
        return float(f.detach()), slope.double().cpu().numpy()

    start = np.ones(len(network))
    solved = minimize(
        value, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * len(start),
        options={"ftol": 1e-16, "gtol": 1e-12, "maxiter": 2000, "maxfun": 4000},
    )  # fmt: skip
    return torch.as_tensor(solved.x if solved.fun < value(start)[0] else start).to(parts)


def _least_squares_scales(parts: Tensor, charges: Tensor, targets: Tensor) -> Tensor:
    r"""The scales for half squares, by their dual, which is a problem of least distance.

    The residual :math:`q` is the projection of :math:`y` onto
    :math:`\{q:\langle\phi_i,q\rangle\le\lambda\theta_i\}`; Lawson and Hanson turn that into
    non-negative least squares, whose solution is :math:`c` up to a factor.
    """
    A = parts.flatten(1).double().cpu().numpy()
    y = targets.flatten().double().cpu().numpy()
    system = np.vstack([-A.T, A @ y - charges.double().cpu().numpy()])
    solution, _ = nnls(system, np.append(np.zeros(len(y)), 1.0), maxiter=100 * len(A))
    factor = 1 - system[-1] @ solution
    return torch.as_tensor(solution / factor).to(parts)


@dataclass(frozen=True, slots=True)
class GrownNetwork:
    """A network grown until no subnetwork is worth its penalty.

    Attributes:
        network: without zero subnetworks.
        widths: after every round.
        objectives: then.
        certificate: of the last round.
    """

    network: ParallelNetwork
    widths: list[int]
    objectives: list[float]
    certificate: NetworkCertificate


def grow_network(
    subnetwork: Subnetwork,
    x: Tensor,
    loss: OutputLoss,
    strength: float,
    *,
    patterns: Tensor | None = None,
    tolerance: float = 1e-6,
    rounds: int = 200,
    dtype: torch.dtype = torch.float64,
    generator: RandomSource = None,
) -> GrownNetwork:
    r"""Train from nothing by adding the subnetworks that are worth most and rescaling all.

    Every round solves the polar problem, adds its solutions (the local ones as well), and finds
    the best scales of all parts; the objective never increases. Where the polar problem is solved
    exactly it ends at a global minimum, certified.

    Args:
        subnetwork: the architecture.
        x: ``[m, ...]``.
        loss: of all outputs.
        strength: :math:`\lambda`.
        patterns: activation patterns, where they are known already.
        tolerance: of the certificate.
        rounds: at most; the certificate says how far it came.
        dtype: of the weights.
        generator: of the starts of a search.

    >>> from torchtheory.optimization.parallel_networks import relu_unit
    >>> x = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]).double()
    >>> y = torch.tensor([[1.0], [-1.0], [-1.0], [1.0]]).double()            # exclusive or
    >>> grown = grow_network(relu_unit(2, 1), x, HalfSquares(y), 0.5)
    >>> grown.certificate.verdict, len(grown.network)
    ('globally optimal', 4)
    """
    network = parallel_network(subnetwork, torch.zeros(0, subnetwork.size, dtype=dtype))
    if patterns is None and subnetwork.kind == "relu unit" and x.shape[1] + subnetwork.bias > 2:
        # looked for once, not once a round
        patterns = activation_patterns(with_ones(x, subnetwork.bias)) if len(x) <= 12 else None
    widths, objectives = [], []
    for _ in range(rounds):
        found = certify_network(
            network, x, loss, strength, patterns=patterns, tolerance=tolerance,
            generator=generator,
        )  # fmt: skip
        widths.append(len(network))
        objectives.append(found.objective)
        units = found.polar.others
        worth = (parallel_network(subnetwork, units).parts(x) * _slope(network, x, loss)).sum(
            (1, 2)
        )
        new = units[worth > strength * (1 + 1e-12)]
        if found.optimal or not len(new):
            break
        larger = network.append(new)
        network = larger.scaled(best_scales(larger, x, loss, strength)).without_zeros()
    return GrownNetwork(network, widths, objectives, found)


def _slope(network: ParallelNetwork, x: Tensor, loss: OutputLoss) -> Tensor:
    Z = network(x).detach().requires_grad_()
    return -torch.autograd.grad(loss(Z), Z)[0]
