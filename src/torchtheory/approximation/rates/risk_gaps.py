r"""What an approximation error means for the risk, and the chain of errors it is a part of.

For a loss that is Lipschitz in its first argument, $|R(f)-R(g)|\le\mathrm{Lip}\, \|f-g\|_\infty$:
every construction with a sup error is a construction with a risk gap. With
$\hat f$ the best function, $\hat f_H$ the best of a class, $\hat f_{H,S}$ the
best on the sample and $\hat f^*_{H,S}$ what training returned,

$$
|R(\hat f)-R(\hat f^*_{H,S})|\le|R(\hat f^*_{H,S})-R(\hat f_{H,S})|
+|R(\hat f_{H,S})-R(\hat f_H)|+|R(\hat f_H)-R(\hat f)|.
$$

For the finite classes where every term is a sum there is
`decompose_error`. Source: Mathematical
Aspects of Deep Learning, section 3.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from torchtheory.approximation.certificates import SupError
from torchtheory.core.checks import as_points, as_targets, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch
from torchtheory.neurons.regression import least_squares

LossName = Literal["absolute", "logistic", "hinge", "squared"]


def loss_lipschitz(loss: LossName, bound: float | None = None) -> float:
    r"""The Lipschitz constant of $z\mapsto L(z,y)$ for all $y$.

    1 for the absolute loss $|z-y|$ and, for $y=\pm1$, for the hinge and the logistic
    loss. The squared loss $(z-y)^2$ has none on the whole line; for $|z|,|y|\le B$ it
    is $4B$.

    >>> loss_lipschitz("hinge"), loss_lipschitz("squared", bound=2.0)
    (1.0, 8.0)
    """
    if loss not in get_args(LossName):
        raise InvalidInput(f"the loss is one of {', '.join(get_args(LossName))}, not {loss!r}")
    if loss != "squared":
        return 1.0
    if bound is None:
        raise InvalidInput(
            "the squared loss is Lipschitz on bounded values only: give bound=, the largest "
            "absolute value of predictions and labels"
        )
    return 4 * positive_number(bound, "bound")


def risk_gap_bound(distance: SupError, lipschitz: float) -> float:
    r"""$\mathrm{Lip}\,\sup|f-g|\ge|R(f)-R(g)|$, for every law of the data on the domain.

    Args:
        distance: what `sup_distance` or `measured_error` found, with the Lipschitz constant or
            the curvature that bounds the supremum from above; infinite without.
        lipschitz: of the loss, see `loss_lipschitz`.

    >>> from torchtheory.approximation.certificates import sup_distance
    >>> apart = sup_distance(torch.square, lambda x: x, (0.0, 1.0), lipschitz=1.0)
    >>> round(risk_gap_bound(apart, loss_lipschitz("hinge")), 4)
    0.25
    """
    return positive_number(lipschitz, "lipschitz") * distance.upper


@dataclass(frozen=True, slots=True)
class RiskChain:
    r"""Risks along the chain from the best function to the trained one.

    Attributes:
        best: $R(\hat f)$, the least risk of all functions.
        in_class: $R(\hat f_H)$, the least of the class.
        on_sample: $R(\hat f_{H,S})$, of the empirical risk minimizer.
        trained: $R(\hat f^*_{H,S})$, of what training returned.
    """

    best: float
    in_class: float
    on_sample: float
    trained: float

    def __post_init__(self) -> None:
        if any(math.isnan(r) for r in (self.best, self.in_class, self.on_sample, self.trained)):
            raise NonFinite("a risk is not a number")

    @property
    def approximation(self) -> float:
        """What the class costs."""
        return abs(self.in_class - self.best)

    @property
    def estimation(self) -> float:
        """What the sample costs."""
        return abs(self.on_sample - self.in_class)

    @property
    def optimization_gap(self) -> float:
        """What training costs; the source calls it the training error."""
        return abs(self.trained - self.on_sample)

    @property
    def total(self) -> float:
        return abs(self.trained - self.best)

    @property
    def bound(self) -> float:
        """The sum of the three parts, at least the total."""
        return self.optimization_gap + self.estimation + self.approximation


def linear_class_chain(
    features: Tensor, target: Tensor, noise: float, sample: Tensor, labels: Tensor, steps: int
) -> RiskChain:
    r"""The chain for a linear class under squared loss, every reference function exact.

    The inputs are uniform on $n$ points, labels are the target plus noise of a standard
    deviation; $\hat f_H$ is the projection of the target, $\hat f_{H,S}$ the least
    squares fit of the sample, and training is gradient descent from 0 on the sample, with the step
    $1/\lambda_{\max}$, in an orthonormal basis of the class.

    Args:
        features: values of a basis, `[n, p]`.
        target: $\hat f$, the conditional mean, `[n]`.
        noise: standard deviation of the labels.
        sample: which points were drawn, `[m]`, whole numbers below `n`.
        labels: `[m]`.
        steps: of gradient descent.

    >>> x = torch.linspace(0, 1, 5).double()
    >>> lines = torch.stack([torch.ones(5).double(), x], 1)
    >>> chain = linear_class_chain(lines, 2 * x, 0.0, torch.arange(5), 2 * x, 500)
    >>> round(chain.total, 9)
    0.0
    """
    phi = as_points(features, "features")
    f = as_targets(target, phi, "target")
    whole_number(steps, "steps", least=0)
    if sample.ndim != 1 or sample.shape != labels.shape or len(sample) == 0:
        raise ShapeMismatch(
            "sample and labels are two lists of equal length, not empty (sample is "
            f"{list(sample.shape)}, labels is {list(labels.shape)})"
        )
    if noise < 0 or not math.isfinite(noise):
        raise InvalidInput(f"the noise is a standard deviation, not {noise!r}")
    if int(sample.min()) < 0 or int(sample.max()) >= len(phi):
        raise InvalidInput(f"sampled points are numbers from 0 to {len(phi) - 1}")
    basis = torch.linalg.qr(phi).Q * len(phi) ** 0.5
    seen = basis[sample]
    best = basis.T @ f / len(phi)
    fitted = least_squares(seen, labels).weight
    # the normal matrix is p x p: its largest eigenvalue sets the step
    gram, moment = seen.T @ seen / len(sample), seen.T @ labels.to(f) / len(sample)
    rate = 1 / float(torch.linalg.eigvalsh(gram)[-1])
    trained = torch.zeros_like(best)
    for _ in range(steps):
        trained = trained - rate * (gram @ trained - moment)
    risks = [float((basis @ w - f).square().mean()) + noise**2 for w in (best, fitted, trained)]
    return RiskChain(noise**2, *risks)
