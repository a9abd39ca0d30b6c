r"""Random features: a hidden layer that is drawn once and never trained.

The model is $f(x,\theta)=p^{-1/2}\theta^\top\phi(x)$ with $\phi_i(x)=s(w_i^\top x)$,
so its gradient in $\theta$ is $p^{-1/2}\phi(x)$ wherever $\theta$ is, and its
tangent kernel is the kernel of the features. Source: Foundations of Deep Learning, section 7.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_matrix, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.kernels.learning.functions import Kernel, from_features
from torchtheory.nets.activations.table import Activation, as_layer


class RandomFeatures(nn.Module):
    r"""The model $f(x,\theta)=p^{-1/2}\theta^\top\phi(x)$,
    $\phi_i(x)=s(w_i^\top x)$.

    A network with one hidden layer of which only the top is trained: `theta` is a parameter,
    drawn from $N(0,I)$, and the `weights` are a buffer. The factor $p^{-1/2}$ keeps
    outputs and kernel of order 1 as $p\to\infty$.

    Args:
        dimension: $d$, the number of coordinates of a point.
        count: $p$, the number of features.
        activation: $s$: a name (`"relu"`), a module or a function of a tensor.
        weights: the rows $w_i$, `[p, d]`, if they are not to be drawn from
            $N(0,I)$; `dtype` is then theirs.
        generator: a generator or a seed, for the weights first and then for `theta`.
        dtype: double precision unless told.

    Attributes:
        weights: the buffer `[p, d]`.
        theta: the parameter `[p]`.
        count: $p$.

    Maps points `[n, d]` to outputs `[n, 1]`.

    >>> model = RandomFeatures(3, 1000, "relu", generator=0)
    >>> x = torch.eye(3).double()
    >>> [name for name, _ in model.named_parameters()], model(x).shape
    (['theta'], torch.Size([3, 1]))
    >>> from torchtheory.kernels.learning.functions import arc_cosine
    >>> bool((model.kernel(x) - arc_cosine()(x)).abs().max() < 0.1)      # its limit
    True
    """

    weights: Tensor

    def __init__(
        self,
        dimension: int,
        count: int,
        activation: str | Activation | nn.Module | Callable[..., Any] = "relu",
        *,
        weights: Tensor | None = None,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        whole_number(dimension, "dimension", least=1)
        whole_number(count, "count", least=1)
        source = as_generator(generator)
        if weights is None:
            weights = gaussian(count, dimension, generator=source, dtype=dtype)
        self.activation = as_layer(activation)
        self.register_buffer("weights", _checked(weights, dimension))
        self.count = count
        theta = gaussian(count, generator=source, dtype=weights.dtype, device=weights.device)
        self.theta = nn.Parameter(theta)

    @classmethod
    def fourier(
        cls,
        dimension: int,
        count: int,
        *,
        lengthscale: float = 1.0,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> RandomFeatures:
        r"""Features of the Gaussian kernel: $\sqrt2\cos w_i^\top x$ and
        $\sqrt2\sin w_i^\top x$ with $w_i\sim N(0,\ell^{-2}I)$ (Rahimi and Recht, 2007).

        In pairs, so that the kernel is a mean of $\cos w_i^\top(x-x')$: it depends on the
        difference only, is exactly 1 at equal points, and has the mean
        $e^{-\|x-x'\|^2/2\ell^2}$. `count` must be even: `weights` has half as many rows.

        >>> model = RandomFeatures.fourier(2, 2000, generator=1)
        >>> k = model.kernel(torch.tensor([[0.0, 0.0], [1.0, 0.0]]).double())
        >>> round(float(k[0, 0]), 6), round(float(k[0, 1]), 1)
        (1.0, 0.6)
        """
        whole_number(count, "count", least=1)
        if count % 2:
            raise InvalidInput(f"cosines and sines come in pairs: count must be even, not {count}")
        positive_number(lengthscale, "the lengthscale")
        whole_number(dimension, "dimension", least=1)
        source = as_generator(generator)
        frequencies = gaussian(count // 2, dimension, generator=source, dtype=dtype) / lengthscale
        return cls(dimension, count, CosineSine(), weights=frequencies, generator=source)

    def features(self, x: Tensor) -> Tensor:
        r"""$\phi(x)$, `[n, p]`, without the factor $p^{-1/2}$."""
        if not isinstance(x, Tensor) or x.ndim != 2 or x.shape[1] != self.weights.shape[1]:
            given = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ShapeMismatch(
                f"the features are functions of points [n, {self.weights.shape[1]}], not of {given}"
            )
        if x.dtype != self.weights.dtype:
            raise InvalidType(f"the model is {self.weights.dtype} and x {x.dtype}; convert one")
        made: Tensor = self.activation(x @ self.weights.T)
        if made.shape != (len(x), self.count):
            raise ShapeMismatch(
                f"the activation must give [{len(x)}, {self.count}] features, it gave "
                f"{list(made.shape)}"
            )
        return made

    @property
    def kernel(self) -> Kernel:
        r"""The kernel $K(x,x')=\frac1p\langle\phi(x),\phi(x')\rangle$ on
        $\mathbb R^d\times\mathbb R^d$: `model.kernel(x1, x2)`.

        It is the tangent kernel of the model at every $\theta$.
        """
        root = math.sqrt(self.count)
        return from_features(lambda x: self.features(x) / root, f"random_features({self.count})")

    def forward(self, x: Tensor) -> Tensor:
        """The outputs `[n, 1]`."""
        return (self.features(x) @ self.theta / math.sqrt(self.count)).unsqueeze(1)

    def extra_repr(self) -> str:
        return f"{self.weights.shape[1]} -> {self.count} -> 1"


class CosineSine(nn.Module):
    r"""$u\mapsto\sqrt2(\cos u,\sin u)$, from `[n, p / 2]` to `[n, p]`."""

    def forward(self, u: Tensor) -> Tensor:
        return math.sqrt(2) * torch.cat([u.cos(), u.sin()], dim=-1)


def _checked(weights: Tensor, dimension: int) -> Tensor:
    return as_matrix(weights, "the weights", columns=dimension).clone()
