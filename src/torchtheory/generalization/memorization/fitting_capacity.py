r"""What fitting random labels says about the capacity of a class.

If training fits the uniformly random labelings it is shown, the class contains many of them. Two
numbers follow, with a confidence, and need no more than the fits themselves: a lower bound of the
empirical Rademacher complexity of the signs of the networks, and one of their VC dimension. A bound
on the generalization gap that is built from either, and from nothing about the labels, then cannot
be small. Sources: Mathematical Aspects of Deep Learning, section 1.1.3 (i); Foundations of Deep
Learning, section 8.4.
"""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from torchtheory.core.checks import described, first_entry, open_fraction
from torchtheory.core.errors import EmptyData, InvalidInput, ShapeMismatch
from torchtheory.core.intervals import clopper_pearson
from torchtheory.generalization.complexity.rademacher import Supremum
from torchtheory.generalization.memorization.experiment import (
    MakeNetwork,
    fit_and_test,
    seeded_network,
)
from torchtheory.generalization.vc.bounds import first_whole_number
from torchtheory.generalization.vc.growth import sauer_bound
from torchtheory.training.loop.seeds import derived_seed


def trained_class(
    make_network: MakeNetwork,
    x: Tensor,
    *,
    epochs: int = 100,
    batch_size: int = 64,
    learning_rate: float | None = None,
    seed: int = 0,
) -> Supremum:
    r"""The class $\{\operatorname{sgn}f\}$ of a network on `x[m, ...]`, from below.

    For each row of signs a network is trained on them, and
    $\frac1m\sum_i\sigma_i\operatorname{sgn}f(x_i)=1-2\cdot(\text{share of errors})$ is what
    it reached, at most the supremum. All rows are one batched training, with Adam. For
    `estimate_rademacher`, and for
    `rademacher_from_fits`.

    Args:
        make_network: builds a network with one output or two.
        x: the sample.
        epochs, batch_size, learning_rate: of each training.
        seed: of initial weights and batches.

    >>> from torch import nn
    >>> x = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
    >>> wide = trained_class(lambda: nn.Sequential(nn.Linear(6, 50), nn.ReLU(), nn.Linear(50, 1)),
    ...                      x, learning_rate=0.01)
    >>> wide(torch.tensor([[1.0, -1.0] * 6, [-1.0] * 3 + [1.0] * 9]))
    tensor([1., 1.], dtype=torch.float64)
    """
    if not isinstance(x, Tensor) or x.ndim < 2 or len(x) == 0:
        raise ShapeMismatch(
            f"x must be a tensor of at least one sample, [m, ...], not {described(x)}"
        )

    def supremum(signs: Tensor) -> Tensor:
        if signs.ndim != 2 or signs.shape[1] != len(x):
            raise ShapeMismatch(f"signs must be [s, {len(x)}], not {list(signs.shape)}")
        networks = [
            seeded_network(make_network, derived_seed(seed, "network", k))
            for k in range(len(signs))
        ]
        labels = (signs > 0).long().to(x.device)
        found = fit_and_test(
            networks,
            (x, torch.arange(len(x), device=x.device) % 2),
            labels=labels,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            seed=seed,
        )
        return 1 - 2 * found.train_error

    return supremum


def rademacher_from_fits(reached: Tensor, samples: int, delta: float = 0.01) -> float:
    r"""A lower bound of $\hat R_S(\mathcal F)$, with probability at least $1-\delta$.

    With $v_j\le\sup_f\frac1m\sum_i\sigma^{(j)}_if(x_i)$ reached for $s$ independent
    draws of signs and functions into $[-1,1]$,

    $$
    \hat R_S(\mathcal F) \ge \frac1s\sum_jv_j - \sqrt{\frac{2\ln(1/\delta)}{ms}},
    $$

    for a sign changes the mean of the suprema by at most $2/(ms)$ (McDiarmid). How the
    $v_j$ were found does not matter; Student's interval would need them to vary.

    Args:
        reached: `[s]`, e.g. from `trained_class`.
        samples: $m$.

    >>> round(rademacher_from_fits(torch.ones(20), 300), 4)
    0.9608
    """
    if not isinstance(reached, Tensor) or reached.ndim != 1 or len(reached) == 0:
        raise EmptyData(
            "reached must be a tensor [s] with the value of at least one draw, not "
            f"{described(reached)}"
        )
    if not bool((reached.abs() <= 1).all()):
        raise InvalidInput(
            "the correlation of signs with values in [-1, 1] lies in [-1, 1]: "
            f"{first_entry(reached, 'reached', ~(reached.abs() <= 1))}"
        )
    if samples < 1:
        raise EmptyData(f"a sample needs at least one point, not {samples!r}")
    open_fraction(delta, "delta")
    radius = math.sqrt(2 * math.log(1 / delta) / (samples * len(reached)))
    return float(reached.double().mean()) - radius


def vc_dimension_from_fits(
    fitted: int, draws: int, samples: int, *, confidence: float = 0.99
) -> int:
    r"""A lower bound of the VC dimension from how many random labelings were fitted.

    A class with $\Pi$ labelings of the $m$ points contains a uniform one with
    probability $\Pi/2^m$. If that is at least $p$ (Clopper and Pearson's lower end),
    the VC dimension $h$ satisfies $\sum_{i\le h}\binom mi\ge\Pi\ge p\,2^m$ by Sauer's
    lemma. Fitting every labeling one is shown thus proves about $m/2$, not $m$: to
    conclude that the points are shattered one would have to see them all.

    Args:
        fitted: how many of the labelings were fitted without an error.
        draws: how many were drawn.
        samples: $m$.

    >>> vc_dimension_from_fits(20, 20, 300)
    156
    >>> vc_dimension_from_fits(0, 20, 300)
    0
    """
    if samples < 1:
        raise EmptyData(f"a sample needs at least one point, not {samples!r}")
    share = Fraction(clopper_pearson(fitted, draws, confidence).low)
    least = share * 2**samples
    return 0 if least <= 1 else first_whole_number(lambda h: sauer_bound(samples, h) >= least, 1)
