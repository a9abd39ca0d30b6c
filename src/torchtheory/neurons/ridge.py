r"""Ridge functions $f(x)=\phi(x^\top\theta)$: what one unit can be.

Source: Foundations of Deep Learning, section 2.4.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.nets.activations.table import Activation

_SAMPLES = 100  # points at which gradients are compared
_TOLERANCE = 1e-9  # relative size of a singular value that counts as rounding


@dataclass(frozen=True, slots=True)
class Ridge:
    r"""The unit $f(x)=\phi(x^\top\theta)$.

    It is constant along every direction orthogonal to $\theta$, and its gradient is
    $\phi'(x^\top\theta)\,\theta$: the activation sets the rate of change, the weights its
    direction.

    Attributes:
        direction: $\theta$, `[n]`.
        nonlinearity: $\phi$.

    >>> from torchtheory.nets.activations.table import activation
    >>> unit = Ridge(torch.tensor([3.0, 4.0]), activation("relu"))
    >>> unit(torch.tensor([[1.0, 1.0], [-1.0, 0.0]])), unit.rate(torch.tensor([[1.0, 1.0]]))
    (tensor([7., 0.]), tensor([5.]))
    """

    direction: Tensor
    nonlinearity: Activation

    def __post_init__(self) -> None:
        if self.direction.ndim != 1:
            raise ShapeMismatch(f"the direction is a vector, not {list(self.direction.shape)}")

    def __call__(self, x: Tensor) -> Tensor:
        return self.nonlinearity(x @ self.direction)

    def gradient(self, x: Tensor) -> Tensor:
        r"""$\nabla_xf=\phi'(x^\top\theta)\,\theta$, `[s, n]`."""
        return self.nonlinearity.slope(x @ self.direction).unsqueeze(-1) * self.direction

    def rate(self, x: Tensor) -> Tensor:
        r"""$\|\nabla_xf\|=|\phi'(x^\top\theta)|\,\|\theta\|$, `[s]`."""
        slope = self.nonlinearity.slope(x @ self.direction)
        rate: Tensor = slope.abs() * self.direction.norm()
        return rate


@dataclass(frozen=True, slots=True)
class RidgeTest:
    r"""How many directions a function depends on.

    Attributes:
        singular_values: of the matrix of gradients at the sample points, largest first.
        direction: unit vector, the first right singular vector.
        ridge: whether the second is at rounding level next to the first.
    """

    singular_values: Tensor
    direction: Tensor
    ridge: bool


def find_ridge(
    function: Callable[[Tensor], Tensor],
    inputs: int,
    *,
    generator: RandomSource = None,
    dtype: torch.dtype = torch.float64,
) -> RidgeTest:
    r"""Is $f:\mathbb R^n\to\mathbb R$ a ridge function, and along which direction?

    All gradients of a ridge function are parallel, so the matrix of gradients at 100 random
    points has rank one; its right singular vector is $\pm\theta/\|\theta\|$.

    >>> theta = torch.tensor([3.0, 4.0], dtype=torch.float64)
    >>> find_ridge(lambda x: torch.tanh(x @ theta), 2).direction.abs()
    tensor([0.6000, 0.8000], dtype=torch.float64)
    >>> find_ridge(lambda x: x.square().sum(-1), 2).ridge
    False
    """
    points = gaussian(_SAMPLES, inputs, generator=as_generator(generator), dtype=dtype)
    points.requires_grad_()
    with torch.enable_grad():
        values = function(points)
        if values.shape != (_SAMPLES,):
            raise ShapeMismatch(
                f"the function must give one number per row, not {list(values.shape)}"
            )
        (gradients,) = torch.autograd.grad(values.sum(), points)
    _, values, vectors = torch.linalg.svd(gradients, full_matrices=False)
    if not bool(values[0] > 0):
        raise InvalidInput("the function is constant at all points tried: it has no direction")
    single = len(values) < 2 or bool(values[1] <= _TOLERANCE * values[0])
    return RidgeTest(values, vectors[0], single)
