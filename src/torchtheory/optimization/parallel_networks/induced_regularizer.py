r"""What the penalty of the weights charges the function: the induced convex regularizer.

$$
\Omega(Z)=\min_r\min_{\Phi_r(X,W)=Z}\Theta_r(W),\qquad
\Omega(Z)=\max\{\langle Q,Z\rangle:\Omega^\circ(Q)\le1\}.
$$

It is $\infty$ where no network has the outputs $Z$. For a nondegenerate pair it is
convex, positively homogeneous of degree 1 and positive, whatever the network; for linear units on
$X=I$ it is the nuclear norm. Where the polar $\Omega^\circ$ is solved exactly, so is
this: units are added to a linear program until its dual is feasible. Source: Mathematical
Aspects of Deep Learning, Eq. (4.48), Proposition 4.8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.optimize import linprog
from torch import Tensor

from torchtheory.core.checks import as_matrix
from torchtheory.core.errors import NotConverged, ShapeMismatch, UnsupportedModel
from torchtheory.optimization.parallel_networks.activation_cells import edges, span_of_rows
from torchtheory.optimization.parallel_networks.nuclear_norm import balanced_factors
from torchtheory.optimization.parallel_networks.polar_problems import Polar, polar
from torchtheory.optimization.parallel_networks.subnetworks import (
    ParallelNetwork,
    Subnetwork,
    parallel_network,
    with_ones,
)

#: Relative difference of the two bounds at which the method ends, and rounds of it at most.
CLOSE, ROUNDS = 1e-6, 100


@dataclass(frozen=True, slots=True)
class InducedPenalty:
    r"""Bounds of $\Omega(Z)$ from both sides, each with its witness.

    Attributes:
        upper: $\Theta_r$ of `network`, whose outputs are $Z$; infinite where no
            network has them.
        lower: $\langle Q,Z\rangle$ of `dual`.
        network: with at most as many subnetworks as $Z$ has entries.
        dual: `[m, c]`, a $Q$ with $\Omega^\circ(Q)\le1$.
        rounds: of the cutting plane method.
    """

    upper: float
    lower: float
    network: ParallelNetwork
    dual: Tensor
    rounds: int


def induced_penalty(subnetwork: Subnetwork, x: Tensor, z: Tensor) -> InducedPenalty:
    r"""$\Omega(Z)$: the least penalty of any network of such units with outputs $Z$.

    Args:
        subnetwork: a linear or a ReLU unit.
        x: `[m, d]`.
        z: `[m, c]`.

    For linear units it is the nuclear norm of $X^+Z$. For ReLU units a linear program over
    the units found so far, whose dual asks the polar problem for the next ones; each round costs
    one of either, and there are at most `ROUNDS`, until the bounds differ by less than `CLOSE`,
    relatively. ReLU units need a polar problem that is solved, see `polar`. Computed in
    double precision, in which the network and the dual come; outputs that no network has are told
    from those that one has up to the rounding of `z` in its own precision.

    >>> from torchtheory.optimization.parallel_networks.subnetworks import relu_unit
    >>> x, z = torch.eye(2).double(), torch.tensor([[3.0], [4.0]]).double()
    >>> round(induced_penalty(relu_unit(2, 1), x, z).upper, 5)          # one unit does
    5.0
    >>> round(induced_penalty(relu_unit(2, 1), x, z * z.new_tensor([[1], [-1]])).upper, 5)
    7.0
    """
    z = as_matrix(z, "the outputs")
    if len(z) != len(x):
        raise ShapeMismatch(f"{len(x)} inputs and {len(z)} rows of outputs must pair up")
    rounding = 1e3 * max(z.shape) * torch.finfo(z.dtype).eps
    x, z = as_matrix(x, "the inputs").double(), z.double()
    empty = parallel_network(subnetwork)
    nothing = torch.zeros_like(z)
    if subnetwork.kind == "other":
        raise UnsupportedModel("only units have a polar problem that can be solved: see polar")
    asked = _solved(subnetwork, x, z)
    if not bool(z.any()):
        return InducedPenalty(0.0, 0.0, empty, nothing, 0)
    if subnetwork.kind == "linear unit":
        found = _linear(empty, x, z, rounding)
    else:
        found = _cutting_planes(subnetwork, x, z, asked, rounding)
    return found or InducedPenalty(math.inf, math.inf, empty, nothing, 0)


def _solved(subnetwork: Subnetwork, x: Tensor, q: Tensor) -> Polar:
    found = polar(subnetwork, x, q)
    if not found.exact:
        raise UnsupportedModel(
            "the polar problem of ReLU units is solved for inputs of two dimensions, or for one "
            f"output and few samples; with {list(x.shape)} inputs and {q.shape[1]} outputs it is "
            "not"
        )
    return found


def _linear(empty: ParallelNetwork, x: Tensor, z: Tensor, rounding: float) -> InducedPenalty | None:
    inverse = torch.linalg.pinv(x)
    map_ = inverse @ z
    if float((x @ map_ - z).norm()) > rounding * float(z.norm()):
        return None
    V, U = balanced_factors(map_)
    left, sigma, right = torch.linalg.svd(map_, full_matrices=False)
    kept = sigma > 1e-12 * sigma[0]
    dual = inverse.T @ left[:, kept] @ right[kept]
    network = empty.append(torch.cat([V, U]).T)
    return InducedPenalty(float(sigma.sum()), float((dual * z).sum()), network, dual, 0)


def _cutting_planes(
    subnetwork: Subnetwork,
    x: Tensor,
    z: Tensor,
    asked: Polar,
    rounding: float,
) -> InducedPenalty | None:
    units = torch.cat([_units_along_edges(subnetwork, x, z.shape[1]), asked.others])
    columns = _outputs(subnetwork, x, units)
    basis, sigma, _ = torch.linalg.svd(columns, full_matrices=False)
    basis = basis[:, sigma > 1e-9 * sigma[0]]
    size = float(z.norm())  # the program is solved to absolute tolerances
    reached = (basis @ (basis.T @ z.flatten())).reshape(z.shape)
    if float((z - reached).norm()) > rounding * size:
        return None
    lower, dual = 0.0, torch.zeros_like(z)
    for count in range(1, ROUNDS + 1):
        columns = _outputs(subnetwork, x, units)
        solved = linprog(
            [1.0] * len(units),
            A_eq=(basis.T @ columns).cpu().numpy(),
            b_eq=(basis.T @ z.flatten() / size).cpu().numpy(),
            bounds=(0, None),
            method="highs-ds",
            options={"dual_feasibility_tolerance": 1e-10, "primal_feasibility_tolerance": 1e-10},
        )
        if solved.status != 0:
            raise NotConverged(f"the linear program failed: {solved.message}")
        q = (basis @ torch.as_tensor(solved.eqlin.marginals).to(z)).reshape(z.shape)
        new = []
        # between the program's dual and the best feasible one cuts are deeper than at a corner
        for point in (q, (q + dual) / 2):
            found = _solved(subnetwork, x, point)
            bound = float((point * z).sum()) / max(1.0, found.bound)
            if bound > lower:
                lower, dual = bound, point / max(1.0, found.bound)
            gains = (_outputs(subnetwork, x, found.others) * q.flatten()[:, None]).sum(0)
            new.append(found.others[gains > 1 + 1e-12])
        upper = size * float(solved.fun)
        if upper - lower <= CLOSE * upper:
            weights = torch.as_tensor(solved.x).to(z) * size
            kept = weights > 0
            network = parallel_network(subnetwork, units[kept]).scaled(weights[kept])
            return InducedPenalty(upper, lower, network, dual, count)
        units = torch.cat([units, *new])
    raise NotConverged(
        f"after {ROUNDS} rounds the penalty is known to lie in [{lower:.8g}, {upper:.8g}] only"
    )


def _units_along_edges(subnetwork: Subnetwork, x: Tensor, outputs: int) -> Tensor:
    """Units of penalty 1 whose outputs span what units can say."""
    seen = with_ones(x, subnetwork.bias)
    basis = span_of_rows(seen)
    inner = edges(seen @ basis.T) @ basis if len(basis) else seen.new_zeros(1, seen.shape[1])
    outer = torch.eye(outputs).to(x)
    both = torch.cat([outer, -outer])
    return torch.cat([inner.repeat_interleave(len(both), 0), both.repeat(len(inner), 1)], 1)


def _outputs(subnetwork: Subnetwork, x: Tensor, units: Tensor) -> Tensor:
    """`[entries of Z, units]`."""
    return parallel_network(subnetwork, units).parts(x).flatten(1).T
