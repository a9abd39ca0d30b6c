r"""Regularizing the size of the outputs: directly approximately regularizing complexity (DARC).

With outputs (logits) $z_k(x_i)$ of a mini-batch and random signs $\xi_i$,

$$
\frac\lambda{\bar m}\Bigl|\max_k\sum_{i=1}^{\bar m}\xi_iz_k(x_i)\Bigr|
\qquad\text{and}\qquad
\mathrm{DARC1}=\frac\lambda{\bar m}\max_k\sum_{i=1}^{\bar m}|z_k(x_i)|
$$

are added to the loss. The first is, but for the absolute value, an unbiased estimate of the
empirical Rademacher complexity of the outputs; the second is at least as large whatever the signs
are. Both are convex and positively homogeneous in the outputs, and neither is invariant when one
number is added to all logits of a sample, which changes no decision. Source: Mathematical Aspects
of Deep Learning, Chapter 2, Appendix A1, Eq. (A.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from scipy.optimize import brentq
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, described, whole_number
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    ShapeMismatch,
)
from torchtheory.core.random import RandomSource, as_generator, rademacher
from torchtheory.models.model import evaluation_mode, global_randomness_kept
from torchtheory.models.problem import Loss

#: The source's λ: λ/m̄ = 0.001 with mini-batches of m̄ = 64.
STRENGTH = 0.064


def darc1(outputs: Tensor, strength: float = STRENGTH) -> Tensor:
    r"""$\frac\lambda{\bar m}\max_k\sum_i|z_k(x_i)|$ of the outputs `[samples, classes]`.

    A term to add to any loss in any training loop:
    `loss = F.cross_entropy(z, y) + darc1(z)`. Its gradient is
    $\frac\lambda{\bar m}\mathrm{sign}(z_k(x_i))$ on the one class that attains the maximum
    and 0 on the others. Safe under `torch.func` transforms.

    Args:
        outputs: logits of a batch.
        strength: $\lambda$; 0.064 is the source's 0.001 for each of 64 samples.

    >>> darc1(torch.tensor([[1.0, -4.0], [2.0, 2.0]]), strength=1.0)       # max(3, 6) / 2
    tensor(3.)
    """
    _check(outputs, strength)
    return strength * outputs.abs().mean(0).max(0).values


def darc_with_signs(
    outputs: Tensor,
    signs: Tensor | RandomSource = None,
    strength: float = STRENGTH,
    *,
    absolute: str = "outside",
) -> Tensor:
    r"""$\frac\lambda{\bar m}|\max_k\sum_i\xi_iz_k(x_i)|$ of outputs `[samples, classes]`.

    The outputs may be those for any inputs like the data: generated, augmented, unlabeled.

    Args:
        outputs: logits.
        signs: $\xi$ as a tensor of ±1 `[samples]`, or a generator or seed to draw it.
        strength: $\lambda$.
        absolute: `outside` the maximum as the source prints it, `inside` for
            $\max_k|\cdot|$, or `none`, which is unbiased for the Rademacher complexity.

    >>> z = torch.tensor([[1.0, -4.0], [2.0, 2.0]])
    >>> signs = torch.tensor([1.0, 1.0])
    >>> [darc_with_signs(z, signs, 1.0, absolute=a).item() for a in ("outside", "inside")]
    [1.5, 1.5]
    >>> [darc_with_signs(z, -signs, 1.0, absolute=a).item() for a in ("outside", "inside", "none")]
    [1.0, 1.5, 1.0]
    """
    _check(outputs, strength)
    if not isinstance(signs, Tensor):
        signs = rademacher(len(outputs), generator=as_generator(signs), dtype=outputs.dtype)
    if signs.shape != outputs.shape[:1]:
        raise ShapeMismatch(f"{len(outputs)} samples need as many signs, not {list(signs.shape)}")
    sums = signs.to(outputs) @ outputs / len(outputs)
    if absolute == "inside":
        return strength * sums.abs().max(0).values
    if absolute == "outside":
        return strength * sums.max(0).values.abs()
    if absolute == "none":
        return strength * sums.max(0).values
    raise InvalidInput(f"absolute is 'outside', 'inside' or 'none', not {absolute!r}")


@dataclass(frozen=True, slots=True)
class WithDARC1:
    r"""A loss with DARC1 added: the `loss` of
    `fit` and
    `fit_many`.

    Attributes:
        strength: $\lambda$.
        loss: `loss(outputs, targets)`, a mean over the batch.

    >>> z, y = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    >>> bool(WithDARC1()(z, y) == F.cross_entropy(z, y) + 0.064 * 2)
    True
    """

    strength: float = STRENGTH
    loss: Loss = F.cross_entropy

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(outputs, targets) + darc1(outputs, self.strength)


def output_size(model: nn.Module, x: Tensor, *, chunk: int = 512) -> float:
    r"""$\frac1m\max_k\sum_i|z_k(x_i)|$ over a whole data set: the values of Table A.4.

    In evaluation mode, without gradients; the model is left as it was.

    >>> net = nn.Linear(1, 2, bias=False)
    >>> _ = net.weight.data.copy_(torch.tensor([[1.0], [-3.0]]))
    >>> output_size(net, torch.tensor([[1.0], [-2.0]]))
    4.5
    """
    if not isinstance(x, Tensor) or x.ndim < 1 or len(x) == 0:
        raise EmptyData(
            f"the size of outputs is measured on a tensor of at least one input, not {described(x)}"
        )
    sums: Tensor | None = None
    with torch.no_grad(), evaluation_mode(model), global_randomness_kept():
        for part in torch.split(x, chunk):
            outputs = model(part.clone())
            _check(outputs, 0.0)
            added = outputs.double().abs().sum(0)
            sums = added if sums is None else sums + added
    assert sums is not None
    all_finite(sums, "the outputs of the model")
    return float(sums.max()) / len(x)


@dataclass(frozen=True, slots=True)
class FreeOptimum:
    r"""Where cross-entropy with DARC1 is least when every logit may be chosen freely.

    Attributes:
        margin: $\Delta=\ln\frac{(K-1)(1-q)}q,\ q=\lambda/K$, the logit of the right class;
            the others are 0.
        size: $\frac1m\max_k\sum_i|z_k|=\Delta/K$.
        objective: $-\ln(1-q)+\lambda\Delta/K$.
    """

    margin: float
    size: float
    objective: float


def free_optimum(classes: int, strength: float = STRENGTH) -> FreeOptimum:
    r"""The least cross-entropy plus DARC1 over *all* logits, reached for classes of equal size.

    Logits of size $s=\frac1m\max_k\sum_i|z_k(x_i)|$ have a cross-entropy of at least
    $\ln(1+(K-1)e^{-Ks})$, whatever the labels: by Jensen's inequality it is at least
    $\ln(1+(K-1)e^{-\Delta})$ with the mean $\Delta$ of the right class' logit minus the
    average of the others, and $\Delta\le\frac1m\sum_{i,k}|z_k(x_i)|\le Ks$. With classes of
    equal size, the right logit $\Delta$ and the others 0, all are equalities. What is left
    has derivative $\lambda/K-(K-1)e^{-\Delta}/(1+(K-1)e^{-\Delta})$. From
    $\lambda=K-1$ on the best logits are all 0: nothing is learned.

    >>> round(free_optimum(10).size, 3)         # Table A.4 has 1.30, 1.35 and 0.96
    0.724
    >>> free_optimum(10, strength=9.0).margin
    0.0
    """
    whole_number(classes, "classes", least=2)
    _strength(strength)
    if strength == 0:
        return FreeOptimum(math.inf, math.inf, 0.0)
    if strength >= classes - 1:
        return FreeOptimum(0.0, 0.0, math.log(classes))
    q = strength / classes
    margin = math.log((classes - 1) * (1 - q) / q)
    return FreeOptimum(margin, margin / classes, -math.log1p(-q) + q * margin)


def largest_size(objective: float, classes: int, strength: float = STRENGTH) -> float:
    r"""The largest size $s$ of outputs whose cross-entropy plus DARC1 is `objective`.

    The larger root of $\ln(1+(K-1)e^{-Ks})+\lambda s$, the least objective at size $s$
    (see `free_optimum`): what a trained network's objective says about its outputs.

    Args:
        objective: at least that of the free optimum.
        classes: $K$.
        strength: $\lambda>0$.

    >>> best = free_optimum(10)
    >>> bool(abs(largest_size(best.objective, 10) - best.size) < 1e-6)
    True
    >>> round(largest_size(0.128, 10), 3)                  # a little below 0.128 / λ = 2
    2.0
    """
    best = free_optimum(classes, strength)
    if strength == 0:
        raise InvalidInput("without DARC1 outputs of any size have every objective")
    if not math.isfinite(objective) or objective < best.objective - 1e-9:
        raise InvalidInput(
            f"no outputs have the objective {objective}: the least is {best.objective:.6g}"
        )

    def excess(size: float) -> float:
        return math.log1p((classes - 1) * math.exp(-classes * size)) + strength * size - objective

    if excess(best.size) >= 0:
        return best.size
    return float(brentq(excess, best.size, objective / strength + 1, xtol=1e-12))


def _check(outputs: Tensor, strength: float) -> None:
    if not isinstance(outputs, Tensor) or not outputs.is_floating_point():
        raise InvalidType(
            f"outputs must be a tensor of floating-point numbers, not {described(outputs)}"
        )
    if outputs.ndim != 2:
        raise ShapeMismatch(f"outputs must be [samples, classes], not {list(outputs.shape)}")
    if 0 in outputs.shape:
        raise EmptyData(f"there are no outputs in a tensor of shape {list(outputs.shape)}")
    _strength(strength)


def _strength(strength: float) -> None:
    if not (strength >= 0 and math.isfinite(strength)):
        raise InvalidInput(f"the strength must be a finite number >= 0, not {strength!r}")
