r"""What the penalty of the weights charges the function: the induced convex regulariser.

.. math::
    \Omega(Z)=\min_r\min_{\Phi_r(X,W)=Z}\Theta_r(W),\qquad
    \Omega(Z)=\max\{\langle Q,Z\rangle:\Omega^\circ(Q)\le1\}.

It is :math:`\infty` where no network has the outputs :math:`Z`. For a nondegenerate pair it is
convex, positively homogeneous of degree 1 and positive, whatever the network; for linear units on
:math:`X=I` it is the nuclear norm. Where the polar :math:`\Omega^\circ` is solved exactly, so is
this: units are added to a linear programme until its dual is feasible. Source: Mathematical
Aspects of Deep Learning, Eq. (4.48), Proposition 4.8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.optimize import linprog
from torch import Tensor, nn

from torchtheory.core.errors import NotConverged, ShapeMismatch, UnsupportedModel
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.optimization.nuclear_norm import balanced_factors
from torchtheory.optimization.parallel_networks import (
    ParallelNetwork,
    Subnetwork,
    parallel_network,
    with_ones,
)
from torchtheory.optimization.polar_problems import activation_patterns, polar
from torchtheory.primer.arrays import matrix


@dataclass(frozen=True, slots=True)
class InducedPenalty:
    r"""Bounds of :math:`\Omega(Z)` from both sides, each with its witness.

    Attributes:
        upper: :math:`\Theta_r` of ``network``, whose outputs are :math:`Z`; infinite where no
            network has them.
        lower: :math:`\langle Q,Z\rangle` of ``dual``.
        network: with at most as many subnetworks as :math:`Z` has entries.
        dual: ``[m, c]``, a :math:`Q` with :math:`\Omega^\circ(Q)\le1`.
        rounds: of the cutting plane method.
    """

    upper: float
    lower: float
    network: ParallelNetwork
    dual: Tensor
    rounds: int


def induced_penalty(
    subnetwork: Subnetwork,
    x: Tensor,
    z: Tensor,
    *,
    patterns: Tensor | None = None,
    tolerance: float = 1e-6,
    rounds: int = 100,
    generator: RandomSource = None,
) -> InducedPenalty:
    r""":math:`\Omega(Z)`: the least penalty of any network of such units with outputs :math:`Z`.

    Args:
        subnetwork: a linear or a ReLU unit.
        x: ``[m, d]``.
        z: ``[m, c]``.
        patterns: activation patterns, where they are known already; see ``polar``.
        tolerance: relative difference of the bounds at which the method ends.
        rounds: at most.
        generator: of the first units.

    For linear units it is the nuclear norm of :math:`X^+Z`. For ReLU units a linear programme over
    the units found so far, whose dual asks the polar problem for the next ones; each round costs
    one of either. ReLU units need an exact polar: at most two inputs, or one output and few
    samples.

    >>> from torchtheory.optimization.parallel_networks import relu_unit
    >>> x, z = torch.eye(2).double(), torch.tensor([[3.0], [4.0]]).double()
    >>> round(induced_penalty(relu_unit(2, 1), x, z).upper, 5)          # one unit does
    5.0
    >>> round(induced_penalty(relu_unit(2, 1), x, z * z.new_tensor([[1], [-1]])).upper, 5)
    7.0
    """
    z = matrix(z, "the outputs")
    if len(z) != len(x):
        raise ShapeMismatch(f"{len(x)} inputs and {len(z)} rows of outputs must pair up")
    x = matrix(x, "the inputs").to(z)
    empty = parallel_network(subnetwork, z.new_zeros(0, subnetwork.size))
    if subnetwork.kind == "linear unit":
        return _linear(empty, x, z)
    if subnetwork.kind == "other":
        raise UnsupportedModel("only units have a polar problem that can be solved: see polar")
    if patterns is None:
        patterns = activation_patterns(with_ones(x, subnetwork.bias))
    if not polar(subnetwork, x, z, patterns=patterns).exact:
        raise UnsupportedModel(
            "the polar problem of ReLU units is solved for two inputs or for one output; with "
            f"{x.shape[1]} inputs and {z.shape[1]} outputs it is not"
        )
    if not bool(z.any()):
        return InducedPenalty(0.0, 0.0, empty, torch.zeros_like(z), 0)
    units = _first_units(subnetwork, x, z, patterns, generator)
    if not _reachable(subnetwork, x, z, units):
        return InducedPenalty(math.inf, math.inf, empty, torch.zeros_like(z), 0)
    return _cutting_planes(subnetwork, x, z, units, patterns, tolerance, rounds)


def _linear(empty: ParallelNetwork, x: Tensor, z: Tensor) -> InducedPenalty:
    inverse = torch.linalg.pinv(x)
    map_ = inverse @ z
    if float((x @ map_ - z).norm()) > 1e-9 * float(z.norm()):
        return InducedPenalty(math.inf, math.inf, empty, torch.zeros_like(z), 0)
    V, U = balanced_factors(map_)
    norm = float(torch.linalg.matrix_norm(map_, "nuc"))
    left, sigma, right = torch.linalg.svd(map_, full_matrices=False)
    kept = sigma > 1e-12 * sigma[0]
    dual = inverse.T @ left[:, kept] @ right[kept]
    network = empty.append(torch.cat([V, U]).T)
    return InducedPenalty(norm, float((dual * z).sum()), network, dual, 0)


def _first_units(
    subnetwork: Subnetwork, x: Tensor, z: Tensor, patterns: Tensor, generator: RandomSource
) -> Tensor:
    """Units of penalty 1 whose outputs span what units can say: some of every pattern."""
    seen = with_ones(x, subnetwork.bias)
    source = as_generator(generator)
    d = seen.shape[1]
    drawn = gaussian(50 * len(patterns), d, generator=source, dtype=z.dtype, device=z.device)
    # each pattern's own vectors, as random directions may miss a narrow cone
    inner = torch.cat([drawn, (2 * patterns.to(z) - 1) @ torch.linalg.pinv(seen).T])
    codes = (inner @ seen.T > 0).to(z)
    found = torch.unique(codes, dim=0)
    chosen = [inner[(codes == pattern).all(1)][: d + 1] for pattern in found]
    inner = nn.functional.normalize(torch.cat(chosen), dim=1)
    inner = inner[inner.norm(dim=1) > 0.5]
    outer = torch.eye(z.shape[1]).to(z)
    both = torch.cat([outer, -outer])
    return torch.cat(
        [inner.repeat_interleave(len(both), 0), both.repeat(len(inner), 1)], 1
    )  # fmt: skip


def _outputs(subnetwork: Subnetwork, x: Tensor, units: Tensor) -> Tensor:
    """``[entries of Z, units]``."""
    return parallel_network(subnetwork, units).parts(x).flatten(1).T


def _reachable(subnetwork: Subnetwork, x: Tensor, z: Tensor, units: Tensor) -> bool:
    columns = _outputs(subnetwork, x, units)
    basis, sigma, _ = torch.linalg.svd(columns, full_matrices=False)
    basis = basis[:, sigma > 1e-9 * sigma[0]]
    flat = z.flatten()
    return float((flat - basis @ (basis.T @ flat)).norm()) <= 1e-8 * float(flat.norm())


def _cutting_planes(
    subnetwork: Subnetwork,
    x: Tensor,
    z: Tensor,
    units: Tensor,
    patterns: Tensor,
    tolerance: float,
    rounds: int,
) -> InducedPenalty:
    lower, dual = 0.0, torch.zeros_like(z)
    scale = float(z.norm())  # the programme is solved to absolute tolerances
    for count in range(1, rounds + 1):
        columns = _outputs(subnetwork, x, units)
        solved = linprog(
            [1.0] * len(units),
            A_eq=columns.double().cpu().numpy(),
            b_eq=(z / scale).flatten().double().cpu().numpy(),
            bounds=(0, None),
            method="highs-ds",
            options={"dual_feasibility_tolerance": 1e-10, "primal_feasibility_tolerance": 1e-10},
        )
        if solved.status != 0:
            raise NotConverged(f"the linear programme failed: {solved.message}")
        q = torch.as_tensor(solved.eqlin.marginals).to(z).reshape(z.shape)
        found = polar(subnetwork, x, q, patterns=patterns)
        bound = float((q * z).sum()) / max(1.0, found.value)
        if bound > lower:
            lower, dual = bound, q / max(1.0, found.value)
        upper = scale * float(solved.fun)
        if upper - lower <= tolerance * upper:
            weights = torch.as_tensor(solved.x).to(z) * scale
            kept = weights > 0
            network = parallel_network(subnetwork, units[kept]).scaled(weights[kept])
            return InducedPenalty(upper, lower, network, dual, count)
        gains = (_outputs(subnetwork, x, found.others) * q.flatten()[:, None]).sum(0)
        units = torch.cat([units, found.others[gains > 1 + 1e-12]])
    raise NotConverged(
        f"after {rounds} rounds the penalty is known to lie in [{lower:.8g}, {upper:.8g}] only: "
        "allow more rounds or a larger tolerance"
    )
