r"""Where the error of a learned function comes from: approximation, estimation, optimization.

For $f_S\in\mathcal F$ found on a sample, the empirical risk minimizer $\hat f_S$, and
the best of the class $f^*_{\mathcal F}$,

$$
R(f_S)-R^* \le \varepsilon^{opt} + 2\varepsilon^{gen} + \varepsilon^{approx},\qquad
\varepsilon^{opt}=\hat R_S(f_S)-\hat R_S(\hat f_S),\quad
\varepsilon^{gen}=\sup_{\mathcal F}|R-\hat R_S|,\quad
\varepsilon^{approx}=R(f^*_{\mathcal F})-R^*.
$$

Sources: Mathematical Aspects of Deep Learning, Eq. (1.7); slides, "Objective".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.errors import InvalidInput, ShapeMismatch


@dataclass(frozen=True, slots=True)
class ErrorTerms:
    r"""The terms of both decompositions, each `[...]` over samples.

    Attributes:
        excess: $R(f_S)-R^*$.
        approximation: $R(f^*_{\mathcal F})-R^*$, the same for all samples.
        generalization: $\sup_{f\in\mathcal F}|R(f)-\hat R_S(f)|$.
        optimization: $\hat R_S(f_S)-\hat R_S(\hat f_S)$.
        estimation: $R(\hat f_S)-R(f^*_{\mathcal F})$, what the sample costs.
        search: $R(f_S)-R(\hat f_S)$, what the search costs; it can be negative.
    """

    excess: Tensor
    approximation: Tensor
    generalization: Tensor
    optimization: Tensor
    estimation: Tensor
    search: Tensor

    @property
    def bound(self) -> Tensor:
        r"""$\varepsilon^{opt}+2\varepsilon^{gen}+\varepsilon^{approx}$, >= the excess."""
        return self.optimization + 2 * self.generalization + self.approximation

    @property
    def sum(self) -> Tensor:
        """Approximation, estimation and search: equal to the excess."""
        return self.approximation + self.estimation + self.search


def decompose_error(
    risks: Tensor, empirical_risks: Tensor, chosen: Tensor, bayes_risk: float
) -> ErrorTerms:
    r"""Both decompositions for a finite hypothesis set.

    Args:
        risks: $R(f)$ of every hypothesis, `[h]`.
        empirical_risks: $\hat R_S(f)$, `[..., h]` over samples.
        chosen: the number of the hypothesis an algorithm picked, `[...]`. The first of equal
            empirical risks counts as the minimizer.
        bayes_risk: $R^*$, the least risk of any function.

    >>> terms = decompose_error(torch.tensor([0.5, 0.3]), torch.tensor([0.25, 0.5]),
    ...                         torch.tensor(0), bayes_risk=0.1)
    >>> [round(v, 6) for v in (terms.excess.item(), terms.bound.item(), terms.sum.item())]
    [0.4, 0.7, 0.4]
    >>> [round(v, 6) for v in (terms.approximation.item(), terms.generalization.item())]
    [0.2, 0.25]
    """
    if risks.ndim != 1 or empirical_risks.shape[-1:] != risks.shape or len(risks) == 0:
        raise ShapeMismatch(
            f"risks [h] and empirical risks [..., h] must agree, not {list(risks.shape)} and "
            f"{list(empirical_risks.shape)}"
        )
    if chosen.shape != empirical_risks.shape[:-1]:
        raise ShapeMismatch(
            f"one hypothesis must be chosen for each sample (chosen is {list(chosen.shape)}, "
            f"empirical_risks is {list(empirical_risks.shape)})"
        )
    if bool(((chosen < 0) | (chosen >= len(risks))).any()):
        raise InvalidInput(f"chosen must lie in 0..{len(risks) - 1}: the algorithm left the class")
    best = risks.min()
    minimizer = empirical_risks.argmin(-1)
    picked = empirical_risks.gather(-1, chosen[..., None]).squeeze(-1)
    return ErrorTerms(
        excess=risks[chosen] - bayes_risk,
        approximation=torch.full_like(picked, float(best) - bayes_risk),
        generalization=(risks - empirical_risks).abs().amax(-1),
        optimization=picked - empirical_risks.amin(-1),
        estimation=risks[minimizer] - best,
        search=risks[chosen] - risks[minimizer],
    )
