r"""Kullback-Leibler divergences, and the change of measure they pay for.

$$
\mathrm{KL}(Q\|P)=\int \ln\frac{dQ}{dP}\,dQ
$$

is zero for equal laws only, is not symmetric (so it is no metric), and is infinite unless
$Q\ll P$. Source: Foundations of Deep Learning, section 9.1, Eqs. (9.1)-(9.2), Lemma 68, and
section 9.2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.core.checks import first_entry
from torchtheory.core.errors import InvalidInput, ShapeMismatch


def dominates(p: Tensor, q: Tensor) -> bool:
    r"""Whether $Q\ll P$ for laws `p[k]`, `q[k]` on a finite set.

    >>> dominates(torch.tensor([0.5, 0.5, 0.0]), torch.tensor([1.0, 0.0, 0.0]))
    True
    >>> dominates(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]))
    False
    """
    _law(p, "p")
    _law(q, "q")
    _same_length(p, q)
    return not bool(((p == 0) & (q > 0)).any())


def discrete_kl(q: Tensor, p: Tensor) -> Tensor:
    r"""$\sum_i q_i\ln(q_i/p_i)$ over the last dimension; infinite where not dominated.

    Args:
        q, p: laws `[..., k]` on a finite set.

    >>> discrete_kl(torch.tensor([0.1, 0.9]).double(), torch.tensor([0.5, 0.5]).double())
    tensor(0.3681, dtype=torch.float64)
    """
    _law(q, "q")
    _law(p, "p")
    _same_length(q, p)
    terms: Tensor = torch.special.xlogy(q, q) - torch.special.xlogy(q, p)
    return terms.sum(-1).clamp(min=0.0)


def gaussian_kl(
    mean: Tensor, variance: Tensor, prior_mean: Tensor | float, prior_variance: Tensor | float
) -> Tensor:
    r"""KL divergence of Gaussians with independent entries.

    For $Q=N(\theta,\operatorname{diag}s)$ and $P=N(\theta_0,\lambda I)$

    $$
    \mathrm{KL}(Q\|P)=\frac12\Bigl[\frac1\lambda\sum_i s_i-D
    +\frac{\|\theta-\theta_0\|^2}{\lambda}+D\ln\lambda-\sum_i\ln s_i\Bigr].
    $$

    Args:
        mean, variance: of Q, one shape; `variance` holds $s_i$, not its root.
        prior_mean, prior_variance: of P; numbers, or tensors that broadcast.

    >>> one = torch.ones(3).double()
    >>> gaussian_kl(2 * one, one, 0.0, 1.0)       # 3 * 2**2 / 2
    tensor(6., dtype=torch.float64)
    """
    if mean.shape != variance.shape:
        raise ShapeMismatch(
            f"the mean has shape {list(mean.shape)} and the variance {list(variance.shape)}"
        )
    scale = torch.as_tensor(prior_variance, dtype=mean.dtype, device=mean.device)
    if not bool((variance > 0).all()) or not bool((scale > 0).all()):
        least = min(float(variance.min()), float(scale.min()))
        raise InvalidInput(
            f"variances must be positive, and one is {least:g}: a Gaussian without spread has no "
            "density"
        )
    ratio = variance / scale
    return 0.5 * (ratio - 1 - ratio.log() + (mean - prior_mean).square() / scale).sum()


def donsker_varadhan(q: Tensor, p: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    r"""Both sides of $\mathbb E_Q\varphi\le\mathrm{KL}(Q\|P)+\ln\mathbb E_Pe^\varphi$.

    They are equal when $Q\propto Pe^{\varphi}$. Source: Foundations of Deep Learning,
    Lemma 68.

    Args:
        q, p: laws `[..., k]` on a finite set.
        values: $\varphi$, `[..., k]`.

    Returns:
        the left side and the right side, `[...]`.

    >>> p = torch.tensor([0.5, 0.5]).double()
    >>> left, right = donsker_varadhan(tilted(p, torch.arange(2).double()), p, torch.arange(2))
    >>> bool((left - right).abs() < 1e-15)
    True
    """
    if not bool(torch.isfinite(values).all()):
        raise InvalidInput(
            "the function must have finite values: "
            f"{first_entry(values, 'the value', ~torch.isfinite(values))}"
        )
    divergence = discrete_kl(q, p)
    exponential = torch.logsumexp(torch.where(p > 0, p.log() + values, -torch.inf), -1)
    return (q * values).sum(-1), divergence + exponential


def tilted(p: Tensor, values: Tensor) -> Tensor:
    r"""The law $Q\propto Pe^\varphi$, for which the change of measure costs nothing.

    >>> tilted(torch.tensor([0.5, 0.5]), torch.tensor([0.0, 0.0]))
    tensor([0.5000, 0.5000])
    """
    _law(p, "p")
    return torch.softmax(torch.where(p > 0, p.log() + values, -torch.inf), -1)


def _law(values: Tensor, name: str) -> None:
    if values.ndim == 0 or not values.is_floating_point() or not bool((values >= 0).all()):
        raise InvalidInput(f"{name} must be a law on a finite set: floating numbers at least 0")
    if not bool(((values.sum(-1) - 1).abs() < 1e-5).all()):
        raise InvalidInput(f"{name} must be a law on a finite set: its masses must add up to 1")


def _same_length(q: Tensor, p: Tensor) -> None:
    if q.shape[-1] != p.shape[-1]:
        raise ShapeMismatch(f"q is a law on {q.shape[-1]} points and p on {p.shape[-1]}")
