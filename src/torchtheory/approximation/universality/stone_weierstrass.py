r"""The four conditions of the Stone-Weierstrass theorem, and cosine networks, which meet them.

An algebra of continuous functions that vanishes nowhere and separates points is dense. Networks
with one hidden layer of cosines are an algebra, since
$\cos A\cos B=\tfrac12[\cos(A+B)+\cos(A-B)]$. Source: Foundations of Deep Learning, Problem 2
of section 3.5.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.approximation.network_calculus import chain
from torchtheory.core.checks import as_points
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.nets.activations.table import as_layer
from torchtheory.neurons.regression import least_squares


@dataclass(frozen=True, slots=True)
class CosineNetwork:
    r"""$f(x)=\sum_ia_i\cos(w_i^\top x+b_i)$, with sum and product.

    Attributes:
        weight: `[m, d]`.
        bias: `[m]`.
        output: `[m]`.

    >>> one = CosineNetwork(torch.zeros(1, 1), torch.zeros(1), torch.ones(1))
    >>> wave = CosineNetwork(torch.ones(1, 1), torch.zeros(1), torch.ones(1))
    >>> both = wave * (wave + one)
    >>> both.units, both(torch.zeros(1, 1)).item()
    (4, 2.0)
    """

    weight: Tensor
    bias: Tensor
    output: Tensor

    def __post_init__(self) -> None:
        as_points(self.weight, "weight")
        if self.bias.shape != self.weight.shape[:1] or self.output.shape != self.bias.shape:
            raise ShapeMismatch(
                f"{len(self.weight)} units need as many biases and output weights, not "
                f"{list(self.bias.shape)} and {list(self.output.shape)}"
            )

    @property
    def units(self) -> int:
        return len(self.bias)

    def __call__(self, x: Tensor) -> Tensor:
        """Values `[n]` at `x[n, d]`."""
        return torch.cos(x @ self.weight.T + self.bias) @ self.output

    def network(self) -> nn.Sequential:
        """The same function as an ordinary module."""
        out = (self.output.unsqueeze(0), self.output.new_zeros(1))
        return chain([(self.weight, self.bias), out], [as_layer(torch.cos)])

    def __add__(self, other: CosineNetwork) -> CosineNetwork:
        self._same_input(other)
        return CosineNetwork(
            torch.cat([self.weight, other.weight]),
            torch.cat([self.bias, other.bias]),
            torch.cat([self.output, other.output]),
        )

    def __mul__(self, other: CosineNetwork) -> CosineNetwork:
        r"""The product, with $2m_1m_2$ units of weights $w_i\pm v_j$."""
        self._same_input(other)
        d = self.weight.shape[1]
        w, v = self.weight.unsqueeze(1), other.weight.unsqueeze(0)
        b, c = self.bias.unsqueeze(1), other.bias.unsqueeze(0)
        half = torch.outer(self.output, other.output).flatten() / 2
        return CosineNetwork(
            torch.cat([(w + v).reshape(-1, d), (w - v).reshape(-1, d)]),
            torch.cat([(b + c).flatten(), (b - c).flatten()]),
            torch.cat([half, half]),
        )

    def _same_input(self, other: CosineNetwork) -> None:
        if self.weight.shape[1] != other.weight.shape[1]:
            raise ShapeMismatch(
                f"one network takes {self.weight.shape[1]} inputs, the other "
                f"{other.weight.shape[1]}"
            )


def separating_cosine(x: Tensor, other: Tensor) -> CosineNetwork:
    r"""One unit with the values $\cos1$ at $x$ and 1 at $x'$.

    $z\mapsto\cos\bigl((z-x')^\top(x-x')/\|x-x'\|^2\bigr)$.

    >>> x, y = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 2.0]])
    >>> f = separating_cosine(x[0], y[0])
    >>> round(f(x).item(), 4), f(y).item()
    (0.5403, 1.0)
    """
    if x.shape != other.shape or x.ndim != 1:
        raise ShapeMismatch(f"two points [d] are needed, not {list(x.shape)}, {list(other.shape)}")
    gap = x - other
    if not gap.any():
        raise InvalidInput("a point cannot be told from itself: the two points are equal")
    w = gap / (gap @ gap)
    return CosineNetwork(w.unsqueeze(0), -(w @ other).reshape(1), torch.ones_like(w[:1]))


@dataclass(frozen=True, slots=True)
class Conditions:
    """How a family of functions stands to conditions ii to iv, on a sample of points.

    Attributes:
        nonvanishing: the least, over the points, of the largest absolute value in the family.
        separation: the least, over the pairs of points, of the largest difference.
        product_gap: how far products of two members stay from the larger family, in sup norm.
    """

    nonvanishing: float
    separation: float
    product_gap: float


def algebra_conditions(family: Tensor, larger: Tensor) -> Conditions:
    """Test conditions ii to iv of Stone-Weierstrass on sampled functions.

    Args:
        family: `[n, p]`, the values of p functions at n points.
        larger: `[n, q]`, functions of the same class whose span should hold the products.

    Time: `O(n² p + n q² )`.

    >>> x = torch.linspace(0, 1, 9).double()
    >>> found = algebra_conditions(torch.stack([x**0, x], 1), torch.stack([x**0, x, x**2], 1))
    >>> found.nonvanishing, found.separation, found.product_gap < 1e-12
    (1.0, 0.125, True)
    """
    f, g = as_points(family, "family"), as_points(larger, "larger")
    if len(f) != len(g):
        raise ShapeMismatch(f"the families are sampled at {len(f)} and {len(g)} points")
    apart = torch.cdist(f, f, p=torch.inf)
    apart.fill_diagonal_(torch.inf)
    p = f.shape[1]
    i, j = torch.triu_indices(p, p)
    products = f[:, i] * f[:, j]
    left = least_squares(g, products).residual
    return Conditions(float(f.abs().amax(1).min()), float(apart.min()), float(left.abs().max()))
