r"""From the worst gap of a class to its Rademacher complexity, without a single random number.

On a finite distribution every expectation of the symmetrization proof is a finite sum. The signs
are part of the draw: pairs $(z_i,\sigma_i)$ are independent draws from twice as many atoms,
and what matters of them is only how often each occurs. Sources: Foundations of Deep Learning,
Theorem 62; Mathematical Aspects of Deep Learning, Equation (1.16).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.errors import ShapeMismatch
from torchtheory.generalization.learning.finite_distributions import FiniteDistribution, multisets


@dataclass(frozen=True, slots=True)
class SymmetrizationChain:
    r"""The quantities of the proof, each at most the next (the second and third are equal).

    Attributes:
        worst_gap: $\mathbb E_S\sup_f(\mathbb E f-\hat{\mathbb E}_Sf)$.
        ghost_gap: $\mathbb E_{S,S'}\sup_f(\hat{\mathbb E}_{S'}f-\hat{\mathbb E}_Sf)$.
        signed_ghost_gap:
            $\mathbb E_{S,S',\sigma}\sup_f\frac1m\sum_i\sigma_i(f(z_i')-f(z_i))$.
        twice_rademacher: $2R_m(\mathcal F)$.
    """

    worst_gap: float
    ghost_gap: float
    signed_ghost_gap: float
    twice_rademacher: float


def expected_rademacher(
    law: FiniteDistribution, values: Tensor, samples: int, *, absolute: bool = False
) -> float:
    r"""$R_m(\mathcal F)=\mathbb E_S\hat R_S(\mathcal F)$, exactly.

    Args:
        law: the distribution of $z$, on $a$ atoms.
        values: $f(z)$ at every atom, `[h, a]`, for instance `law.losses(...)`.
        samples: $m$; there are $\binom{2a+m-1}m$ terms.
        absolute: with $\sup_f|\cdot|$.

    >>> law = FiniteDistribution.of([0.0, 1.0], [0.0, 0.0])
    >>> expected_rademacher(law, torch.tensor([[1.0, 1.0]]), 2)
    0.0
    >>> expected_rademacher(law, torch.tensor([[1.0, 1.0]]), 2, absolute=True)
    0.5
    """
    at = _values(law, values)
    signed = torch.cat([at, -at], 1)
    return _mean_supremum(signed, torch.cat([law.mass, law.mass]) / 2, samples, absolute)


def expected_worst_gap(
    law: FiniteDistribution, values: Tensor, samples: int, *, absolute: bool = False
) -> float:
    r"""$\mathbb E_S\sup_f(\mathbb E f-\hat{\mathbb E}_Sf)$, or of $\sup_f|\cdot|$.

    >>> law = FiniteDistribution.of([0.0, 1.0], [0.0, 0.0])
    >>> expected_worst_gap(law, torch.eye(2), 1)
    0.5
    """
    at = _values(law, values)
    return _mean_supremum((at @ law.mass)[:, None] - at, law.mass, samples, absolute)


def symmetrization_chain(
    law: FiniteDistribution, values: Tensor, samples: int
) -> SymmetrizationChain:
    r"""The four quantities of the proof of the Rademacher bound.

    Cost: $h\binom{2a^2+m-1}m$ for $h$ functions, $a$ atoms, $m$ samples.

    >>> law = FiniteDistribution.of([0.0, 1.0], [0.0, 0.0])
    >>> symmetrization_chain(law, torch.eye(2), 1)
    SymmetrizationChain(worst_gap=0.5, ghost_gap=0.5, signed_ghost_gap=0.5, twice_rademacher=1.0)
    """
    at = _values(law, values)
    drawn, chance = law.all_samples(samples)
    means = at[:, drawn].mean(-1)  # [h, s]
    ghost = torch.stack([(means - means[:, [i]]).amax(0) @ chance for i in range(len(drawn))])
    difference = (at[:, :, None] - at[:, None, :]).reshape(len(at), -1)
    pair = torch.outer(law.mass, law.mass).reshape(-1)
    signed = _mean_supremum(
        torch.cat([difference, -difference], 1), torch.cat([pair, pair]) / 2, samples, False
    )
    return SymmetrizationChain(
        worst_gap=expected_worst_gap(law, values, samples),
        ghost_gap=float(ghost @ chance),
        signed_ghost_gap=signed,
        twice_rademacher=2 * expected_rademacher(law, values, samples),
    )


def _mean_supremum(values: Tensor, mass: Tensor, samples: int, absolute: bool) -> float:
    """Mean of the largest sample mean over the rows of `values`, over all samples of kinds."""
    drawn, orderings = multisets(len(mass), samples)
    chance = mass[drawn].prod(1) * orderings.to(mass)
    best = []
    for part in torch.split(drawn, max(1, (1 << 22) // (len(values) * samples))):
        mean = values[:, part].mean(-1)
        best.append((mean.abs() if absolute else mean).amax(0))
    return float(torch.cat(best) @ chance)


def _values(law: FiniteDistribution, values: Tensor) -> Tensor:
    if values.ndim != 2 or len(values) == 0 or values.shape[1] != len(law):
        raise ShapeMismatch(
            f"functions on {len(law)} atoms are a matrix [h, {len(law)}], not {list(values.shape)}"
        )
    return values.to(law.mass)
