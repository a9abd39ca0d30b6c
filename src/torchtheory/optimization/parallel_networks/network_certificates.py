r"""Is a trained network globally optimal? The convex problem under it answers.

For a sum of subnetworks with a nondegenerate pair $(\phi,\theta)$ and a convex loss,

$$
\mathcal L(Z)+\lambda\Omega(Z)\le\mathcal L(\Phi_r(X,W))+\lambda\Theta_r(W),\qquad
Z=\Phi_r(X,W),
$$

with equality for suitable weights. So with $G=-\nabla\mathcal L(Z)$ a network is a global
minimum, over all widths, if and only if $\langle G,Z\rangle=\lambda\Theta_r(W)$, which holds
at every stationary point, and $\Omega^\circ(G)\le\lambda$: no subnetwork is worth its
penalty. Where one is, adding it lowers the objective. The loss has to be convex, differentiable
and at least 0 in the outputs. Source: Mathematical Aspects of Deep Learning, Eqs. (4.49), (4.50),
Theorem 4.9.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize, minimize_scalar, nnls
from torch import Tensor

from torchtheory.core.checks import positive_number
from torchtheory.core.errors import InvalidInput, NonFinite, UnsupportedModel
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.optimization.parallel_networks.nondegenerate_pairs import degree_of
from torchtheory.optimization.parallel_networks.polar_problems import Polar, polar
from torchtheory.optimization.parallel_networks.subnetworks import (
    HalfSquares,
    OutputLoss,
    ParallelNetwork,
    Subnetwork,
    parallel_network,
)

_Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class NetworkCertificate:
    r"""How far a network can be from the best one of any width.

    Attributes:
        verdict: `globally optimal`; `not optimal`, if one of the two conditions fails by more
            than the tolerance (the gap says how much there is to gain at most); or `no violation
            found in N starts` where the polar problem was only searched, which proves nothing.
        objective: $\mathcal L+\lambda\Theta_r$.
        lower_bound: what no network of such subnetworks goes below; None where the polar problem
            was not solved.
        balance: $\langle G,Z\rangle-\lambda\Theta_r$; 0 at a stationary point.
        polar: the solution of the polar problem for $G$.
        strength: $\lambda$.
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
    tolerance: float = 1e-6,
    starts: int = 50,
    generator: RandomSource = None,
) -> NetworkCertificate:
    r"""Certify that no network of such subnetworks, of any width, has a lower objective.

    Two lower bounds are tried. By convexity, as $\Omega\le f/\lambda$ at any better network,
    $\min f\ge\mathcal L(Z)+\langle G,Z\rangle-(\Omega^\circ(G)-\lambda)_+f/\lambda$; and for
    `HalfSquares` the dual's value at $G$ scaled to $\Omega^\circ\le\lambda$.

    Args:
        network: see `split_hidden_units` for one of torch's.
        x: `[m, ...]`.
        loss: of all outputs `[m, c]`, in double precision: convex, differentiable, at least 0;
            the *same* that was trained with (a mean stays a mean).
        strength: $\lambda$ in front of $\Theta_r$. A `weight_decay` of
            `torch.optim.SGD` is this $\lambda$ for units with weight decay.
        tolerance: the largest gap, relative to the objective, that counts as optimal.
        starts: of the search, where the polar problem cannot be solved.
        generator: of the starts.

    Costs a gradient of the loss and one polar problem, in double precision. A loss that some
    probes show not to be convex is refused, and so are subnetworks of another degree than their
    penalty; that the loss is convex everywhere is for the caller to know.

    >>> from torchtheory.optimization.parallel_networks.subnetworks import relu_unit
    >>> x, y = torch.eye(2).double(), torch.tensor([[3.0], [4.0]]).double()
    >>> best = 4**0.5 * torch.tensor([[0.6, 0.8, 1.0]]).double()     # 5 less the strength
    >>> certify_network(parallel_network(relu_unit(2, 1), best), x, HalfSquares(y), 1.0).verdict
    'globally optimal'
    >>> certify_network(parallel_network(relu_unit(2, 1)), x, HalfSquares(y), 1.0).verdict
    'not optimal'
    """
    positive_number(strength, "the strength of the decay")
    if not tolerance >= 0:
        raise InvalidInput(f"the tolerance must be at least 0, not {tolerance!r}")
    refuse_unequal_degrees(network.subnetwork, x)
    network, x = in_double(network, x)
    Z = network(x).detach()
    value, G = value_and_descent(loss, Z)
    penalty = strength * float(network.penalties().sum())
    objective = value + penalty
    agreement = float((G * Z).sum())
    found = polar(network.subnetwork, x, G, starts=starts, generator=generator)
    with torch.no_grad():
        best = network.subnetwork.outputs(x, found.weights)
    _refuse_other_losses(loss, Z, best, value, G)
    lower = None
    if found.exact:
        excess = max(0.0, found.bound - strength)
        lower = value + agreement - excess * objective / strength
        if isinstance(loss, HalfSquares):
            scale = min(1.0, strength / found.bound) if found.bound > 0 else 1.0
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


def value_and_descent(loss: OutputLoss, outputs: Tensor) -> tuple[float, Tensor]:
    r"""$\mathcal L(Z)$ and $G=-\nabla\mathcal L(Z)$, once they are finite numbers."""
    Z = outputs.detach().requires_grad_()
    try:
        value = loss(Z)
        (slope,) = torch.autograd.grad(value, Z)
    except RuntimeError as error:
        sentence = " ".join(str(error).split())[:200]
        raise InvalidInput(
            f"the loss must take outputs {list(Z.shape)} in double precision and give one number "
            f"that can be differentiated (targets in float64?): {sentence}"
        ) from error
    number = float(value.detach())
    if not (math.isfinite(number) and bool(torch.isfinite(slope).all())):
        raise NonFinite("the loss must be finite at these outputs, and so must its gradient")
    if number < 0:
        raise InvalidInput(f"the loss is negative: shift it to be at least 0 (number = {number!r})")
    return number, -slope


def in_double(network: ParallelNetwork, x: Tensor) -> tuple[ParallelNetwork, Tensor]:
    """Both in double precision: a proof must not hang on the rounding of single precision."""
    return replace(network, weights=network.weights.double()), (
        x.double() if x.is_floating_point() else x
    )


def refuse_unequal_degrees(subnetwork: Subnetwork, x: Tensor) -> None:
    """Refuse subnetworks that are not homogeneous of the degree of their penalty.

    A further one may then not be worth adding although the polar problem says so, and the other
    way round.
    """
    if subnetwork.kind != "other":  # the polar problem looks at units itself
        return
    x = x.double() if x.is_floating_point() else x
    points = gaussian(3, subnetwork.size, generator=as_generator(0), dtype=torch.float64)
    points = points.to(x.device)
    own = degree_of(lambda w: subnetwork.outputs(x, w), points).degree
    charged = degree_of(subnetwork.penalty, points).degree
    if own is None or charged is None or own <= 0 or not math.isclose(own, charged, rel_tol=1e-6):
        raise UnsupportedModel(
            "the network and its penalty must be homogeneous of one degree, and theirs are "
            f"{'none' if own is None else f'{own:g}'} and "
            f"{'none' if charged is None else f'{charged:g}'}: see check_pair"
        )


def _refuse_other_losses(
    loss: OutputLoss, Z: Tensor, best: Tensor, value: float, G: Tensor
) -> None:
    """Refuse a loss that is seen to be negative or not convex: the bound would be false.

    Looked at are points on the ways to no output at all, to the best further subnetwork and to
    random outputs, near and far: a loss that passes may still be wrong, one that fails is.
    """
    source = as_generator(0)
    size = max(float(Z.abs().max()), float(best.abs().max()), 1e-3)
    noise = [
        size * gaussian(*Z.shape, generator=source, dtype=Z.dtype, device=Z.device)
        for _ in range(3)
    ]
    for way in (-Z, best, *noise):
        for step in (0.1, 1.0, 10.0):
            with torch.no_grad():
                there = float(loss(Z + step * way))
            promised = value - step * float((G * way).sum())
            room = 1e-9 * (1 + value + abs(promised) + abs(there))
            if there < promised - room or there < 0:  # NaN is outside of where it is defined
                raise InvalidInput(
                    "the loss must be convex in the outputs and at least 0, and this one is not: "
                    "nothing is proved for it"
                )


def worth_of_subnetwork(
    network: ParallelNetwork, weights: Tensor, x: Tensor, loss: OutputLoss, strength: float
) -> float:
    r"""The best $\epsilon\ge0$ for a further part $\epsilon\phi(X,w)$ of penalty
    $\epsilon\theta(w)$.

    For `HalfSquares` it is $(\langle G,\phi\rangle-\lambda\theta)_+/\|\phi\|^2$, and the
    objective falls by half of $(\langle G,\phi\rangle-\lambda\theta)_+^2/\|\phi\|^2$.

    Args:
        network: what there is already.
        weights: $w$, `[p]`, for instance `certificate.polar.weights`.
        x: `[m, ...]`.
        loss: of the outputs.
        strength: $\lambda$.
    """
    positive_number(strength, "the strength of the decay")
    network, x = in_double(network, x)
    part = network.subnetwork.outputs(x, weights.detach().double())
    charge = strength * float(network.subnetwork.penalty(weights.detach().double()))
    if charge <= 0 and bool(part.any()):
        raise InvalidInput("the subnetwork costs nothing: there is no best size of it")
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
    r"""The factors $c_i\ge0$ that minimize
    $\mathcal L(\sum_ic_i\phi_i)+\lambda\sum_ic_i\theta_i$, `[r]`: a convex problem.

    At these, $\langle G,Z\rangle=\lambda\Theta_r$. Solved exactly for `HalfSquares`, by
    L-BFGS-B for other losses.
    """
    positive_number(strength, "the strength of the decay")
    own = network.weights
    network, x = in_double(network, x)
    parts = network.parts(x).detach()
    charges = strength * network.penalties().detach()
    if not len(network):
        return charges.to(own)
    if isinstance(loss, HalfSquares):
        return _least_squares_scales(parts, charges, loss.targets).to(own)

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
    return torch.as_tensor(solved.x if solved.fun < value(start)[0] else start).to(own)


def _least_squares_scales(parts: Tensor, charges: Tensor, targets: Tensor) -> Tensor:
    r"""The scales for half squares, by their dual, which is a problem of least distance.

    The residual $q$ is the projection of $y$ onto
    $\{q:\langle\phi_i,q\rangle\le\lambda\theta_i\}$; Lawson and Hanson turn that into
    non-negative least squares, whose solution is $c$ up to a factor.
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
        widths: before the first round and after every one.
        objectives: then.
        certificate: of the network.
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
    tolerance: float = 1e-6,
    rounds: int = 200,
    generator: RandomSource = None,
) -> GrownNetwork:
    r"""Train from nothing by adding the subnetworks that are worth most and rescaling all.

    Every round solves the polar problem, adds its solutions (the local ones as well), and finds
    the best scales of all parts; the objective never increases. Where the polar problem is solved
    exactly it ends at a global minimum, certified. The network is in double precision.

    Args:
        subnetwork: the architecture.
        x: `[m, ...]`.
        loss: of all outputs.
        strength: $\lambda$.
        tolerance: of the certificate.
        rounds: at most; the certificate says how far it came.
        generator: of the starts of a search.

    >>> from torchtheory.optimization.parallel_networks.subnetworks import relu_unit
    >>> x = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]).double()
    >>> y = torch.tensor([[1.0], [-1.0], [-1.0], [1.0]]).double()            # exclusive or
    >>> grown = grow_network(relu_unit(2, 1), x, HalfSquares(y), 0.5)
    >>> grown.certificate.verdict, len(grown.network)
    ('globally optimal', 4)
    """
    if rounds < 1:
        raise InvalidInput(f"growing takes at least one round, not {rounds!r}")
    network = parallel_network(subnetwork)
    network, x = in_double(replace(network, weights=network.weights.to(x.device)), x)
    widths, objectives = [], []
    while True:
        found = certify_network(
            network, x, loss, strength, tolerance=tolerance, generator=generator
        )
        widths.append(len(network))
        objectives.append(found.objective)
        if found.optimal or len(widths) > rounds:
            break
        units = found.polar.others
        _, G = value_and_descent(loss, network(x))
        worth = (parallel_network(subnetwork, units).parts(x) * G).sum((1, 2))
        new = units[worth > strength * (1 + 1e-12)]
        if not len(new):
            break
        larger = network.append(new)
        network = larger.scaled(best_scales(larger, x, loss, strength)).without_zeros()
    return GrownNetwork(network, widths, objectives, found)
