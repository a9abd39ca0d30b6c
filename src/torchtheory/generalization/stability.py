r"""Uniform stability: a training algorithm that one sample hardly moves generalizes.

An algorithm $A$ has uniform stability $\beta$ if for *all* samples $S$ of size
$m$, all $i$ and all $z=(x,y)$, with $S\setminus i$ the sample without its
$i$-th member,

$$
|\ell(A(S);z)-\ell(A(S\setminus i);z)|\le\beta .
$$

For a loss in $[0,M]$, with probability at least $1-\delta$ (Bousquet and Elisseeff,
2002),

$$
R-R_S\le2\beta+(4m\beta+M)\sqrt{\ln(1/\delta)/(2m)} .
$$

Source: Mathematical Aspects of Deep Learning, section 2.2 and Proposition 2.3. Stability on
average, under exchange of a sample: $A$ is $\epsilon$-stable if
$\sup_{S,S',z}\mathbb E_A[\ell(A(S);z)-\ell(A(S');z)]\le\epsilon$ over samples that differ in one
example, and then $|\mathbb E_{S,A}[\hat J(A(S))-J(A(S))]|\le\epsilon$ (Hardt, Recht and Singer,
2016; slides "Mathematical Foundations of Deep Learning").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import (
    described,
    first_entry,
    nonnegative_number,
    open_fraction,
    positive_number,
)
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
)
from torchtheory.core.random import RandomSource, as_generator

Trained = Callable[[Tensor, Tensor], Tensor]
"""A trained model as its losses: `losses(x, y)` gives one number an example."""

Training = Callable[[Tensor, Tensor, int], Trained]
"""`train(x, y, seed)`: everything random in it must follow from the seed."""


def uniform_stability_bound(
    stability: float, samples: int, delta: float, *, largest_loss: float = 1.0
) -> float:
    r"""Bousquet and Elisseeff's $2\beta+(4m\beta+M)\sqrt{\ln(1/\delta)/(2m)}$.

    It bounds $R-R_S$ and vanishes only if $\beta$ falls faster than
    $1/\sqrt m$. At $M$ or above it says nothing.

    Args:
        stability: $\beta$, *proved* for the algorithm; what `leave_one_out` measures is
            a lower estimate and makes this number no guarantee.
        samples: $m$.
        delta: the probability that it fails.
        largest_loss: $M$.

    >>> round(uniform_stability_bound(1e-4, 10_000, 0.05), 5)
    0.06139
    """
    nonnegative_number(stability, "the stability")
    if samples < 1:
        raise EmptyData(f"a sample has at least one member, not {samples!r}")
    open_fraction(delta, "delta")
    positive_number(largest_loss, "the largest loss")
    root = math.sqrt(math.log(1 / delta) / (2 * samples))
    return 2 * stability + (4 * samples * stability + largest_loss) * root


def ridge_stability(
    penalty: float, samples: int, *, feature_norm: float = 1.0, largest_target: float = 1.0
) -> float:
    r"""A uniform stability of ridge regression, in the space of any kernel.

    The algorithm minimizes $\frac1m\sum_i(f(x_i)-y_i)^2+\lambda\|f\|^2$; its predictions are
    clipped to $[0,B]$, where the targets lie, and the loss is squared. With
    $K(x,x)\le\kappa^2$, $g$ fitted without sample $i$ and $f$ with it,

    $$
    f-g=-\bigl(\textstyle\sum_jk_jk_j^\top+m\lambda\bigr)^{-1}
    \bigl((g(x_i)-y_i)k_i+\lambda g\bigr),\qquad
    \|g\|\le\frac{B}{2\sqrt\lambda},
    $$

    and the loss moves by at most $2B|f(x)-g(x)|$, so

    $$
    \beta=\frac{2\kappa B^2}{\lambda m}\Bigl(\kappa+\frac{\kappa^2}{2\sqrt\lambda}
    +\frac{\sqrt\lambda}2\Bigr).
    $$

    The well-known $2\kappa^2B^2/(\lambda m)$ is the first of the three terms: it needs a
    fit without $i$ that keeps dividing by $m$, and predictions that lie in
    $[0,B]$ *before* they are clipped (`textbook_ridge_stability`).

    Args:
        penalty: $\lambda>0$.
        samples: $m$.
        feature_norm: $\kappa$, the largest $\sqrt{K(x,x)}$.
        largest_target: $B$.

    >>> ridge_stability(1.0, 100)
    0.04
    """
    first = textbook_ridge_stability(
        penalty, samples, feature_norm=feature_norm, largest_target=largest_target
    )
    root = math.sqrt(penalty)
    return first * (1 + feature_norm / (2 * root) + root / (2 * feature_norm))


def textbook_ridge_stability(
    penalty: float, samples: int, *, feature_norm: float = 1.0, largest_target: float = 1.0
) -> float:
    r"""$2\kappa^2B^2/(\lambda m)$, if no residual exceeds $B$ without clipping.

    Then the stability of the minimizer of $\frac1m\sum_i(f(x_i)-y_i)^2+\lambda\|f\|^2$
    against that of the same sum without one term, still divided by $m$ (Bousquet and
    Elisseeff, 2002). Clipping the predictions afterwards is not enough.

    >>> textbook_ridge_stability(1.0, 100)
    0.02
    """
    positive_number(penalty, "the penalty")
    positive_number(feature_norm, "the norm of the features")
    positive_number(largest_target, "the largest target")
    if samples < 1:
        raise EmptyData(f"a sample has at least one member, not {samples!r}")
    return 2 * (feature_norm * largest_target) ** 2 / (penalty * samples)


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    r"""What training without one sample changes.

    Attributes:
        changes: $\ell(A(S\setminus i);z)-\ell(A(S);z)$, `[left out, probes]`.
        stability: the largest $|\cdot|$ of them: a *lower* estimate of $\beta$, which
            is about all samples and all $z$.
        own: $\ell(A(S\setminus i);z_i)-\ell(A(S);z_i)$ of each left-out sample, `[left
            out]`; the mean compares the leave-one-out estimate of the risk with $R_S$.
        left_out: which samples, `[left out]`.
    """

    changes: Tensor
    stability: float
    own: Tensor
    left_out: Tensor


def leave_one_out(
    train: Training,
    x: Tensor,
    y: Tensor,
    probe_x: Tensor | None = None,
    probe_y: Tensor | None = None,
    *,
    left_out: Sequence[int] | Tensor | None = None,
    seed: int = 0,
) -> LeaveOneOut:
    r"""Train on a sample and on what is left without one of its members, with the same randomness.

    Args:
        train: `train(x, y, seed)` returns `losses(x, y)`, one number an example; everything
            random in it must follow from the seed.
        x: inputs `[m, ...]`.
        y: targets `[m, ...]`.
        probe_x, probe_y: further $z$ to look at; the sample itself is always looked at.
        left_out: numbers of the samples to leave out; every one unless given.
        seed: of every training.

    Costs one training more than there are samples left out.

    >>> def mean(x, y, seed):                           # the mean; losses are squared distances
    ...     center = y.mean()
    ...     return lambda x, y: (y - center).square()
    >>> found = leave_one_out(mean, torch.zeros(3), torch.tensor([0.0, 0.0, 3.0]))
    >>> found.own.tolist(), found.stability             # the mean is 1; without the last, 0
    ([1.25, 1.25, 5.0], 5.0)
    """
    m = len(x)
    if len(y) != m:
        raise ShapeMismatch(f"there are {m} inputs but {len(y)} targets")
    if m < 2:
        raise EmptyData(f"leaving one sample out needs at least two, not {m!r}")
    if (probe_x is None) != (probe_y is None):
        raise InvalidInput("probes need inputs and targets")
    chosen = torch.arange(m) if left_out is None else torch.as_tensor(left_out)
    if chosen.ndim != 1 or chosen.is_floating_point() or chosen.numel() == 0:
        raise InvalidInput(f"left_out must list numbers of samples, not {described(chosen)}")
    if int(chosen.min()) < 0 or int(chosen.max()) >= m:
        raise InvalidInput(f"the samples are numbered 0..{m - 1}")
    probes = (x, y)
    if probe_x is not None and probe_y is not None:
        if len(probe_x) != len(probe_y):
            raise ShapeMismatch(f"there are {len(probe_x)} probes but {len(probe_y)} targets")
        probes = torch.cat([x, probe_x]), torch.cat([y, probe_y])
    before = _losses(train(x, y, seed), *probes)
    rows = []
    for i in chosen.tolist():
        kept = torch.arange(m) != i
        rows.append(_losses(train(x[kept], y[kept], seed), *probes) - before)
    changes = torch.stack(rows)
    own = changes[torch.arange(len(chosen)), chosen]
    return LeaveOneOut(changes, float(changes.abs().max()), own, chosen)


def choose_by_sample(
    chosen: Trained, sample: tuple[Tensor, Tensor], otherwise: Trained
) -> Training:
    r"""The algorithm $A'(S')=f$ if $S'=S$, and $f'$ otherwise.

    Its gap on $S$ is that of $f$, while its stability is as bad as
    $|\ell(f;z)-\ell(f';z)|$ for the worst $z$, and its robustness is that of
    $f'$ (Mathematical Aspects of Deep Learning, Proposition 2.3 (ii)).

    Args:
        chosen: $f$ as its losses, `losses(x, y)`.
        sample: $S$.
        otherwise: $f'$.

    >>> zero, far = (lambda x, y: y.square()), (lambda x, y: (y - 100).square())
    >>> s = torch.zeros(2), torch.zeros(2)
    >>> leave_one_out(choose_by_sample(zero, s, far), *s).stability
    10000.0
    """
    if not callable(chosen) or not callable(otherwise):
        raise InvalidType(
            f"the two functions are given as losses(x, y) (chosen is {described(chosen)}, "
            f"otherwise is {described(otherwise)})"
        )
    own_x, own_y = sample

    def train(x: Tensor, y: Tensor, seed: int) -> Trained:
        return chosen if torch.equal(x, own_x) and torch.equal(y, own_y) else otherwise

    return train


def stability_bound(
    lipschitz: float, smoothness: float, step_sizes: Sequence[float] | Tensor, samples: int
) -> Tensor:
    r"""Hardt, Recht and Singer's $\frac{2L^2}n\sum_{t\le T}\eta_t$ for
    $T=1,2,\dots$, convex case.

    It bounds the uniform stability of stochastic gradient descent with one example per step when
    the loss of every example is convex, $\beta$-smooth and $L$-Lipschitz *as a function of
    the parameters*, and $\eta_t\le2/\beta$. It is attained by linear losses. For a neural
    network the loss is not convex in the parameters and the number is no guarantee.

    Args:
        lipschitz: $L$.
        smoothness: $\beta$; 0 for a linear loss.
        step_sizes: $\eta_1,\dots,\eta_T$; one above $2/\beta$ is refused.
        samples: $n$.

    Returns:
        `[T]`, double precision.

    >>> stability_bound(1.0, 0.25, [8.0, 4.0], samples=100).tolist()
    [0.16, 0.24]
    """
    return lipschitz * distance_bound(lipschitz, smoothness, step_sizes, samples)


def distance_bound(
    lipschitz: float, smoothness: float, step_sizes: Sequence[float] | Tensor, samples: int
) -> Tensor:
    r"""$\mathbb E\|\theta_T-\theta'_T\|\le\frac{2L}n\sum_{t\le T}\eta_t$ for coupled runs.

    Arguments and conditions of `stability_bound`.

    >>> distance_bound(2.0, 1.0, [1.0], samples=4).tolist()
    [1.0]
    """
    nonnegative_number(lipschitz, "the Lipschitz constant")
    nonnegative_number(smoothness, "the smoothness constant")
    if samples < 1:
        raise EmptyData(f"a sample has at least one example, not {samples!r}")
    etas = torch.as_tensor(step_sizes, dtype=torch.float64)
    if etas.ndim != 1 or not bool((torch.isfinite(etas) & (etas >= 0)).all()):
        raise InvalidInput(
            f"the step sizes must be a list of finite numbers >= 0, not {described(etas.tolist())}"
        )
    if etas.numel() and smoothness > 0 and float(etas.max()) > 2 / smoothness * (1 + 1e-12):
        raise InvalidInput(
            f"a step of {float(etas.max()):.6g} exceeds 2/β = {2 / smoothness:.6g}: there a "
            "gradient step can expand, and the bound does not hold"
        )
    return 2 * lipschitz / samples * etas.cumsum(0)


def logistic_constants(x: Tensor) -> tuple[float, float]:
    r"""Lipschitz and smoothness constants of logistic regression in the parameters.

    For $\ell(\theta;x,y)=\log(1+e^{-y\langle\theta,x\rangle})$ they are
    $L=\max\|x\|$ and $\beta=\max\|x\|^2/4$, for `x[n, d]`.

    >>> logistic_constants(torch.tensor([[3.0, 4.0], [1.0, 0.0]]))
    (5.0, 6.25)
    """
    if x.ndim != 2 or not len(x):
        raise ShapeMismatch(f"examples have the shape [n, d] with n > 0, not {list(x.shape)}")
    largest = float(x.norm(dim=1).max())
    return largest, largest**2 / 4


def replace_example(indices: Tensor, old: Tensor | int, new: Tensor | int) -> Tensor:
    r"""The same steps on a sample whose example `old` is exchanged for `new`.

    With both samples in one tensor ($S$ and the replacements behind it), coupled runs are
    two runs of `minibatch_direction` with `indices` and with the result. `old` and `new`
    broadcast against `indices[..., K, m]`: `[..., 1, 1]` for another exchange in each run.

    >>> replace_example(torch.tensor([[0], [2], [0]]), old=0, new=9).flatten().tolist()
    [9, 2, 9]
    """
    return torch.where(indices == old, new, indices)


@dataclass(frozen=True, slots=True)
class MeasuredStability:
    r"""What retraining with one example exchanged showed.

    Attributes:
        stability: largest $|\mathbb E_A[\ell(A(S);z)-\ell(A(S');z)]|$ over the exchanges and
            the examples $z$ looked at; a lower estimate of the uniform stability, up to the
            noise of the average over runs.
        standard_error: of the average that attains it; NaN for a single run.
        expected_gap: mean of $\ell(A(S^{i});z_i)-\ell(A(S);z_i)$, where $z_i$ is the
            example taken out of $S$ to make $S^i$. Its expectation over $S$ is
            exactly $\mathbb E[J(A(S))-\hat J(A(S))]$: no test set is needed.
        differences: `[runs, exchanges, probes]`, $\ell(A(S);z)-\ell(A(S^i);z)$.
    """

    stability: float
    standard_error: float
    expected_gap: float
    differences: Tensor


def measure_stability(
    train: Training,
    x: Tensor,
    y: Tensor,
    other_x: Tensor,
    other_y: Tensor,
    *,
    runs: int = 5,
    generator: RandomSource = None,
) -> MeasuredStability:
    r"""Train on a sample and on samples with one example exchanged, with the same randomness.

    Args:
        train: `train(x, y, seed)` returns `losses(x, y)`; see `Training`.
        x: inputs of the sample, `[n, ...]`.
        y: targets, `[n, ...]`.
        other_x: fresh examples of the same law, `[k, ...]`; each replaces a random example.
        other_y: their targets.
        runs: seeds to average over; one is enough for a deterministic training.
        generator: seed or generator of the choice of examples and seeds.

    The probes $z$ are all examples given. Costs `runs * (k + 1)` trainings.

    >>> def mean(x, y, seed):                            # the mean; losses are squared distances
    ...     center = x.mean()
    ...     return lambda x, y: (x - center).square()
    >>> x = torch.tensor([0.0, 0.0, 0.0, 0.0])
    >>> found = measure_stability(mean, x, x, torch.tensor([4.0]), torch.tensor([0.0]), runs=1)
    >>> found.stability, found.expected_gap              # the mean moves from 0 to 1
    (7.0, 1.0)
    """
    n, k = len(x), len(other_x)
    if len(y) != n or len(other_y) != k:
        raise ShapeMismatch(
            f"inputs and targets must have the same number of rows (y is {list(y.shape)}, other_y "
            f"is {list(other_y.shape)})"
        )
    if n < 1 or k < 1 or runs < 1:
        raise EmptyData(
            f"stability needs an example, a replacement and a run at least (n = {n!r}, k = {k!r}, "
            f"runs = {runs!r})"
        )
    random = as_generator(generator)
    taken = torch.randint(n, (k,), generator=random)
    seeds = torch.randint(2**31, (runs,), generator=random).tolist()
    probes = torch.cat([x, other_x]), torch.cat([y, other_y])
    rows = []
    for seed in seeds:
        before = _losses(train(x, y, seed), *probes)
        after = []
        for j, i in enumerate(taken.tolist()):
            new_x, new_y = x.clone(), y.clone()
            new_x[i], new_y[i] = other_x[j], other_y[j]
            after.append(_losses(train(new_x, new_y, seed), *probes))
        rows.append(before - torch.stack(after))
    differences = torch.stack(rows)
    means = differences.mean(0)
    worst = int(means.abs().argmax())
    spread = float(differences.std(0).flatten()[worst]) / math.sqrt(runs) if runs > 1 else math.nan
    own = -differences[:, torch.arange(k), taken]
    return MeasuredStability(
        float(means.abs().max()), spread, float(own.mean()), differences.detach()
    )


def _losses(trained: Trained, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        values = trained(x, y)
    if not isinstance(values, Tensor) or values.shape != (len(x),):
        shape = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ShapeMismatch(
            f"losses(x, y) must give one number an example, [{len(x)}], not {shape}"
        )
    if not bool(torch.isfinite(values).all()):
        raise NonFinite(
            "a loss after training is NaN or infinite: "
            f"{first_entry(values, 'the value', ~torch.isfinite(values))}"
        )
    return values
