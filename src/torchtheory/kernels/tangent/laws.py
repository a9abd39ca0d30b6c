r"""The law of a model over its random initialization, before, during and after training.

Training with a fixed kernel is an affine map of the initial function
(`KernelTraining`), so a Gaussian process stays one. Sources:
Foundations of Deep Learning, Theorems 55 and 56 and Figure 7.3; The Modern Mathematics of Deep
Learning, Eq. (1.24).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtheory.core.checks import as_matrix, as_symmetric, as_vector
from torchtheory.core.errors import ShapeMismatch
from torchtheory.kernels.tangent.dynamics import KernelTraining, Rule
from torchtheory.primer.gaussians import Gaussian


def law_of_training(
    kernel: Tensor,
    y: Tensor,
    time: float = math.inf,
    *,
    initial: Tensor | None = None,
    rate: float = 1.0,
    rule: Rule | None = None,
) -> Gaussian:
    r"""The Gaussian law of $(f_t(X),f_t(x))$, training points first, over the random start.

    If $f_0$ is a centered Gaussian process with covariance $\Sigma$ and training has
    the kernel $\Theta$, then with the influence
    $C_t=\Theta_{xX}\Theta_{XX}^{-1}(I-e^{-\rho\Theta_{XX}t})$

    $$
    \begin{aligned}
    \mathbb E f_t(x)&=C_ty,\\
    \operatorname{Cov}f_t(x)&=\Sigma_{xx}-C_t\Sigma_{Xx}-\Sigma_{xX}C_t^\top
        +C_t\Sigma_{XX}C_t^\top,
    \end{aligned}
    $$

    at $t=\infty$ mean $\Theta_{xX}\Theta_{XX}^{-1}y$. Two cases:

    - *a feature model*, of which only the last layer is trained: $\Sigma=\Theta=K$. The law
      at 0 is $N(0,K)$, and at infinity that of noise-free Gaussian process regression,
      $K_{xx}-K_{xX}K_{XX}^{-1}K_{Xx}$ (Theorems 55, 56);
    - *a wide network trained in all layers*: $\Sigma$ the covariance of its outputs (NNGP),
      $\Theta$ its tangent kernel. The law at infinity is no Gaussian process posterior, for
      either kernel.

    Args:
        kernel: $\Theta$ on all points against the training points, `[N, n]`, or against
            all points, `[N, N]` (then only the first $n$ columns count). The first
            $n$ points are the training points.
        y: targets of the training points, `[n]`. The outputs of a wide network are independent:
            take one at a time.
        time: $t$, or the number of steps where the rule has steps; infinite unless given.
        initial: $\Sigma$, `[N, N]`; the kernel itself unless given.
        rate, rule: as for `KernelTraining`.

    The covariance is formed as a product $BB^\top$, so that it is positive semidefinite also
    where it almost vanishes; numbers below $\sqrt\epsilon$ times the initial standard
    deviation are rounding. $O(N^3)$ time, $O(N^2)$ memory.

    >>> K = torch.tensor([[2.0, 1.0], [1.0, 2.0]]).double()
    >>> law = law_of_training(K, torch.tensor([4.0]).double())
    >>> law.mean.tolist()                                     # y, and K(x,X) y / K(X,X)
    [4.0, 2.0]
    >>> round(float(law.covariance[1, 1]), 12)                # 2 - 1 * 1 / 2
    1.5
    """
    y, kernel = as_vector(y, "y"), as_matrix(kernel, "the kernel")
    n, points = len(y), len(kernel)
    if points < n or kernel.shape[1] not in (n, points):
        raise ShapeMismatch(
            f"for {n} targets the kernel must be [N, {n}] or [N, N] with N >= {n}, training points "
            f"first, not {list(kernel.shape)}"
        )
    if initial is None:
        if kernel.shape[1] != points:
            raise ShapeMismatch(
                "without an initial covariance the kernel must be given on all points, [N, N] "
                f"(the shape is {list(kernel.shape)})"
            )
        initial = kernel
    start = as_symmetric(initial, "the initial covariance")
    if len(start) != points:
        raise ShapeMismatch(
            f"the initial covariance {list(start.shape)} and the kernel {list(kernel.shape)} must "
            "be on the same points"
        )
    training = KernelTraining(kernel[:n, :n], y, rate=rate, rule=rule)
    # the rows of training points map f_0 to e_t f_0, without the cancellation in I - C_t
    vectors = training.eigenvectors
    left = vectors * training.residual(time) @ vectors.mT
    influence = training.influence(kernel[n:, :n], time) if points > n else kernel.new_empty(0, n)
    root = Gaussian(torch.zeros_like(start[0]), start).root()
    spread = torch.cat([left @ root[:n], root[n:] - influence @ root[:n]])
    mean = torch.cat([training.train(time), influence @ y])
    covariance = spread @ spread.mT
    return Gaussian(mean, (covariance + covariance.mT) / 2)
