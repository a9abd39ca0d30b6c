r"""Layers that keep what they are given: residual and densely connected.

Sources: Deep Learning (notes), section 2.3; Foundations of Deep Learning, section 10.2;
Mathematical Aspects of Deep Learning, section 1.6.2. The densely connected architecture is due to
Huang, Liu, van der Maaten and Weinberger (2017).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_module, number_between, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.nets.activations.table import Activation, as_layer
from torchtheory.nets.feedforward import dense, drawn_linear

Nonlinearity = str | Activation | type[nn.Module] | Callable[..., Any]


class Residual(nn.Module):
    r"""$g(x)=Vx+f(x)$ around any module $f$; $V$ is the identity unless given.

    With the shortcut $V$, $J_g=V+J_f$: gradients pass through $V$ whatever $f$ does, and as well
    as $V$ is conditioned.

    Args:
        body: $f$.
        shortcut: $V$: a matrix `[m, n]`, which stays fixed, or a module (a dense layer, a
            1 x 1 convolution), which is trained.
        keep: the probability that $f$ takes part in a training step, for the batch as a whole
            (stochastic depth, Huang et al. 2016). In evaluation $f$ counts `keep` times.
        generator: for `keep` below 1.

    >>> g = Residual(nn.Tanh(), 2 * torch.eye(3))
    >>> bool((g(torch.ones(1, 3)) == 2 + torch.tanh(torch.tensor(1.0))).all())
    True
    """

    def __init__(
        self,
        body: nn.Module,
        shortcut: nn.Module | Tensor | None = None,
        *,
        keep: float = 1.0,
        generator: RandomSource = None,
    ) -> None:
        super().__init__()
        self.body = as_module(body, "the body")
        self.shortcut = _fixed(shortcut) if isinstance(shortcut, Tensor) else shortcut
        self.keep = number_between(keep, "keep", 0, 1, closed="right")
        self.generator = as_generator(generator)

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.shortcut is None else self.shortcut(x)
        share = 1.0
        if self.keep < 1:
            share = self.keep
            if self.training:
                draw = torch.rand((), generator=self.generator, device=self.generator.device)
                share = float(draw < self.keep)
        change = self.body(x)
        if change.shape != kept.shape:
            raise ShapeMismatch(
                f"the shortcut gives {list(kept.shape)} and the body {list(change.shape)}: only "
                "tensors of one shape are added; give a shortcut that changes the shape"
            )
        out: Tensor = kept + change if share == 1 else kept + share * change
        return out


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
    skip: int = 1,
    keep: float = 1.0,
    generator: RandomSource = None,
    dtype: torch.dtype = torch.float64,
) -> nn.Sequential:
    r"""`depth` residual blocks of one width, one after the other.

    Args:
        skip: how many layers a shortcut leaps over. With 1 a block is a `ResidualLayer`; with
            more it is $x+f(x)$, $f$ being `skip` times affine and $\phi$.
        keep: the probability that a block takes part in a training step; see `Residual`.

    >>> len(residual_network(4, 100)), len(residual_network(4, 3, skip=2)[0].body)
    (100, 4)
    """
    whole_number(depth, "depth", least=1)
    whole_number(skip, "skip", least=1)
    source = as_generator(generator)

    def block() -> nn.Module:
        if skip == 1 and keep == 1:
            return ResidualLayer(width, nonlinearity=nonlinearity, generator=source, dtype=dtype)
        layers: list[nn.Module] = []
        for _ in range(skip):
            layers.append(drawn_linear(width, width, generator=source, dtype=dtype))
            layers.append(as_layer(nonlinearity))
        return Residual(nn.Sequential(*layers), keep=keep, generator=source)

    return nn.Sequential(*(block() for _ in range(depth)))


def _fixed(matrix: Tensor) -> nn.Linear:
    if matrix.ndim != 2:
        raise ShapeMismatch(f"a shortcut is a matrix [m, n], not {list(matrix.shape)}")
    return dense(matrix).requires_grad_(False)


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
