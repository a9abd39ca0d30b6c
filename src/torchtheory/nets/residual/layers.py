r"""Layers that keep what they are given: residual and densely connected.

Source: Deep Learning (notes), section 2.3. The densely connected architecture is due to Huang,
Liu, van der Maaten and Weinberger (2017).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.nets.activations import Activation, as_layer
from torchtheory.nets.feedforward import drawn_linear

Nonlinearity = str | Activation | type[nn.Module] | Callable[..., Any]


class ResidualLayer(nn.Module):
    r"""$F[W,b](x)=x+\phi(Wx+b)-\phi(0)$, or with a projection
    $F[V,W,b](x)=Vx+\phi(Wx+b)-\phi(0)$.

    Subtracting $\phi(0)$ makes $F[0,0]$ the identity for every $\phi$.

    Args:
        inputs: $n$.
        outputs: $m$; a projection $V\in\mathbb R^{m\times n}$ is used when given.
        nonlinearity: $\phi$, acting on each entry.

    >>> layer = ResidualLayer(3, nonlinearity="logistic")
    >>> _ = [nn.init.zeros_(p) for p in layer.parameters()]
    >>> x = torch.randn(2, 3, dtype=torch.float64)
    >>> bool((layer(x) == x).all())
    True
    """

    def __init__(
        self,
        inputs: int,
        outputs: int | None = None,
        nonlinearity: Nonlinearity = "relu",
        *,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        source = as_generator(generator)
        inner = inputs if outputs is None else outputs
        self.inner = drawn_linear(inputs, inner, generator=source, dtype=dtype, device=device)
        self.nonlinearity = as_layer(nonlinearity)
        self.projection = (
            None
            if outputs is None
            else drawn_linear(
                inputs, outputs, bias=False, generator=source, dtype=dtype, device=device
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.projection is None else self.projection(x)
        at_zero = self.nonlinearity(x.new_zeros(()))
        # grouped so that a change of exactly 0 leaves x exactly
        out: Tensor = kept + (self.nonlinearity(self.inner(x)) - at_zero)
        return out


def residual_network(
    width: int,
    depth: int,
    nonlinearity: Nonlinearity = "tanh",
    *,
    generator: RandomSource = None,
    dtype: torch.dtype = torch.float64,
) -> nn.Sequential:
    """`depth` residual layers of one width, one after the other.

    >>> len(residual_network(4, 100))
    100
    """
    whole_number(depth, "depth", least=1)
    source = as_generator(generator)
    return nn.Sequential(
        *(
            ResidualLayer(width, nonlinearity=nonlinearity, generator=source, dtype=dtype)
            for _ in range(depth)
        )
    )


class DenselyConnected(nn.Module):
    r"""Every layer reads all earlier ones:
    $x^{\ell+1}=\phi(W^{\ell+1}(x^\ell,\dots,x^1,x)+b^{\ell+1})$.

    Layer $\ell+1$ has $n+\sum_{j\le\ell}m_j$ inputs, the latest first. The last
    layer has no activation.

    Args:
        inputs: $n$.
        growths: $m_1,\dots,m_L$, the units each layer adds; the last are the outputs.

    >>> net = DenselyConnected(2, [3, 4, 1])
    >>> [layer.in_features for layer in net.layers]
    [2, 5, 9]
    """

    def __init__(
        self,
        inputs: int,
        growths: Sequence[int],
        nonlinearity: Nonlinearity = "relu",
        *,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        if not growths:
            raise InvalidInput("a densely connected network needs at least one layer")
        source = as_generator(generator)
        self.inputs, self.growths = inputs, tuple(growths)
        self.nonlinearity = as_layer(nonlinearity)
        self.layers = nn.ModuleList(
            drawn_linear(inputs + sum(growths[:i]), m, generator=source, dtype=dtype, device=device)
            for i, m in enumerate(growths)
        )

    @staticmethod
    def parameter_count(inputs: int, growths: Sequence[int]) -> int:
        r"""$\sum_\ell m_\ell(n+\sum_{j<\ell}m_j)+m_\ell$.

        >>> DenselyConnected.parameter_count(2, [3, 4, 1])
        43
        """
        return sum(m * (inputs + sum(growths[:i])) + m for i, m in enumerate(growths))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.inputs:
            raise ShapeMismatch(f"x must have {self.inputs} features, not {x.shape[-1]}")
        everything = x
        last = len(self.layers) - 1
        value = x
        for i, layer in enumerate(self.layers):
            value = layer(everything)
            if i < last:
                value = self.nonlinearity(value)
                everything = torch.cat([value, everything], dim=-1)
        return value

    def without_shortcuts(self) -> DenselyConnected:
        """A copy in which each layer reads the one before only: a plain dense network."""
        plain = DenselyConnected(self.inputs, self.growths, dtype=self.layers[0].weight.dtype)  # type: ignore[arg-type]
        plain.nonlinearity = self.nonlinearity
        plain.load_state_dict(self.state_dict())
        with torch.no_grad():
            for layer, m in zip(list(plain.layers)[1:], self.growths, strict=False):
                layer.weight[:, m:] = 0.0  # type: ignore[operator]
        return plain
