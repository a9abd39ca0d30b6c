r"""Risk against the size of the model: curves through and beyond the interpolation threshold.

The classical curve of the test error is a U; past the size at which the training data are fitted
exactly it comes down again (Belkin, Hsu, Ma and Mandal 2019). Sources: Foundations of Deep
Learning, Figures 11.1 and 13.1; Mathematical Aspects of Deep Learning, Figure 1.6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import nonnegative_number
from torchtheory.core.errors import EmptyData, InvalidInput, ShapeMismatch
from torchtheory.training.many.networks import fit_many, mlp_family, noisy_labels


@dataclass(frozen=True, slots=True)
class RiskCurve:
    """Training and test risk by size of the model, for several repetitions.

    Attributes:
        sizes: numbers of features, or widths.
        train: `[sizes, repetitions]`.
        test: `[sizes, repetitions]`.
    """

    sizes: tuple[int, ...]
    train: Tensor
    test: Tensor

    def first_below(self, level: float) -> int | None:
        """The smallest size whose median training risk is at most `level`; None if there is none.

        >>> RiskCurve((1, 2), torch.tensor([[0.5], [0.0]]), torch.zeros(2, 1)).first_below(1e-10)
        2
        """
        fitted = (self.train.median(1).values <= level).nonzero()
        return self.sizes[int(fitted[0])] if len(fitted) else None

    @property
    def peak(self) -> int:
        """The size with the largest median test risk."""
        return self.sizes[int(self.test.median(1).values.argmax())]


def feature_curve(
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    sizes: Sequence[int],
    *,
    ridge: float = 0.0,
) -> RiskCurve:
    r"""Least squares with the first 1, 2, ... of a list of features.

    With `ridge` 0 the minimum-norm fit $\Phi^+y$, else the minimizer of
    $\frac1m\|\Phi w-y\|^2+\alpha\|w\|^2$. Singular values below
    $\max(m,p)\,\varepsilon\,\sigma_1$ count as 0.

    Args:
        train: features `[r, m, P]` and targets `[r, m]` of `r` repetitions.
        test: features `[r, t, P]` and targets `[r, t]`.
        sizes: numbers of features, each at most `P`.
        ridge: $\alpha\ge0$.

    Returns:
        mean squared errors. Cost: a singular value decomposition a size and repetition.

    >>> phi = torch.eye(3).double()[None]
    >>> curve = feature_curve((phi, torch.ones(1, 3).double()), (phi, torch.ones(1, 3)), [1, 3])
    >>> curve.train.flatten().round(decimals=4), curve.first_below(1e-10)
    (tensor([0.6667, 0.0000], dtype=torch.float64), 3)
    """
    (phi, y), (phi_test, y_test) = train, test
    if phi.ndim != 3 or phi_test.ndim != 3 or phi.shape[::2] != phi_test.shape[::2]:
        raise ShapeMismatch(
            f"features must be [r, m, P] and [r, t, P], not {list(phi.shape)} and "
            f"{list(phi_test.shape)}"
        )
    if y.shape != phi.shape[:2] or y_test.shape != phi_test.shape[:2]:
        raise ShapeMismatch(
            f"there must be one target per sample, [r, m] and [r, t] (y is {list(y.shape)}, phi is "
            f"{list(phi.shape)}, y_test is {list(y_test.shape)}, phi_test is {list(phi_test.shape)}"
            ")"
        )
    if not sizes:
        raise EmptyData("there is no size to fit")
    if min(sizes) < 1 or max(sizes) > phi.shape[2]:
        raise InvalidInput(f"sizes must lie in 1..{phi.shape[2]}")
    nonnegative_number(ridge, "the ridge")
    m = phi.shape[1]
    errors, risks = [], []
    for p in sizes:
        u, s, v = torch.linalg.svd(phi[..., :p], full_matrices=False)
        cut = max(m, p) * torch.finfo(s.dtype).eps * s[:, :1]
        factor = torch.where(s > cut, s / (s.square() + m * ridge), 0.0)
        weights = v.mT @ (factor * (u.mT @ y[..., None])[..., 0])[..., None]
        errors.append(((phi[..., :p] @ weights)[..., 0] - y).square().mean(1))
        risks.append(((phi_test[..., :p] @ weights)[..., 0] - y_test).square().mean(1))
    return RiskCurve(tuple(sizes), torch.stack(errors), torch.stack(risks))


def width_curve(
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    widths: Sequence[int],
    *,
    seeds: Sequence[int] = (0,),
    label_noise: float = 0.0,
    epochs: int = 100,
    batch_size: int = 50,
    learning_rate: float | None = None,
) -> RiskCurve:
    """Errors of networks with one hidden layer by its width, without explicit regularization.

    All widths and seeds are trained together by `fit_many`, with Adam. The noise on the training
    labels is the same for all.

    Args:
        train: inputs `[n, d]` and labels `[n]` in 0..classes-1.
        test: the same, with clean labels.
        widths: hidden units.
        seeds: one training a width and seed.
        label_noise: share of the training labels moved to another class.
        epochs, batch_size, learning_rate: as for `fit_many`.

    Returns:
        shares of errors after the last step, on the (noisy) training set and on the test set.

    >>> x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    >>> data = (x, (x[:, 0] > 0).long())
    >>> curve = width_curve(data, data, [1, 8], epochs=20)
    >>> curve.train.shape, curve.sizes
    (torch.Size([2, 1]), (1, 8))
    """
    (x, y), (x_test, y_test) = train, test
    if not widths or not seeds:
        raise EmptyData("there must be at least one width and one seed")
    classes = int(torch.cat([y, y_test]).max()) + 1
    noisy = noisy_labels(y, classes, label_noise)
    networks = mlp_family(x.shape[1], widths, max(2, classes), seeds=seeds, dtype=x.dtype)
    fitted = fit_many(
        networks,
        (x, noisy),
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        task="multiclass",
    )
    shape = (len(widths), len(seeds))
    wrong = (fitted.outputs(x).argmax(2) != noisy).double().mean(1).reshape(shape)
    missed = (fitted.outputs(x_test).argmax(2) != y_test).double().mean(1).reshape(shape)
    return RiskCurve(tuple(widths), wrong, missed)


def effective_complexity(
    training_risk: Callable[[int], float], sizes: Sequence[int], epsilon: float
) -> int | None:
    r"""The largest sample an algorithm still fits.

    $\max\{m:\mathbb E[\hat R_S(\mathcal A(S))]\le\varepsilon,\ S\sim\mathbb P^m\}$ over the
    given sizes (Nakkiran et al. 2020; Mathematical Aspects of Deep Learning, Figure 1.6). It
    depends on the algorithm and on the data, labels included, not only on the class.

    Args:
        training_risk: the mean training risk on samples of `m`.
        sizes: the `m` to try.
        epsilon: $\varepsilon\ge0$.

    Returns:
        the largest of `sizes` that is fitted, or None.

    >>> effective_complexity(lambda m: max(0.0, 1 - 5 / m), range(1, 20), 0.01)   # 5 features
    5
    """
    if not sizes:
        raise EmptyData("there is no sample size to try")
    if not epsilon >= 0:
        raise InvalidInput(f"epsilon must be a number >= 0, not {epsilon!r}")
    return max((m for m in sizes if training_risk(m) <= epsilon), default=None)
