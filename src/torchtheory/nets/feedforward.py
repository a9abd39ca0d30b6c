r"""Fully connected feed-forward networks.

An architecture $a=(N,\varrho)$ with $N=(N_0,\dots,N_L)$ realizes

$$
\Phi^{(1)}=W^{(1)}x+b^{(1)},\qquad \bar\Phi^{(\ell)}=\varrho(\Phi^{(\ell)}),\qquad
\Phi^{(\ell+1)}=W^{(\ell+1)}\bar\Phi^{(\ell)}+b^{(\ell+1)},
$$

with $W^{(\ell)}\in\mathbb R^{N_\ell\times N_{\ell-1}}$,
$b^{(\ell)}\in\mathbb R^{N_\ell}$ and no activation on the last layer. Source: Mathematical
Aspects of Deep Learning, Definitions 1.4 and 1.6; Deep Learning (notes), section 2.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import module_with_values, whole_number, whole_numbers
from torchtheory.core.errors import ShapeMismatch, UnsupportedModel
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.nets.activations.table import Activation, activation, as_layer
from torchtheory.tracing.chain import as_chain


def drawn_linear(
    inputs: int,
    outputs: int,
    *,
    bias: bool = True,
    generator: RandomSource = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> nn.Linear:
    r"""An `nn.Linear` drawn as torch draws it, but from a generator that is given.

    Weights and biases are uniform on $[-1/\sqrt n,1/\sqrt n]$, $n$ the inputs.

    >>> drawn_linear(3, 2).weight.shape
    torch.Size([2, 3])
    """
    whole_number(inputs, "inputs", least=1)
    whole_number(outputs, "outputs", least=1)
    source = as_generator(generator)
    # made on the meta device, so that torch draws nothing itself
    layer = nn.Linear(inputs, outputs, bias=bias, dtype=dtype, device="meta")
    layer = layer.to_empty(device=device)
    with torch.no_grad():
        for tensor in layer.parameters():
            draws = torch.rand(tensor.shape, generator=source, dtype=dtype, device=source.device)
            tensor.copy_((2 * draws - 1) / math.sqrt(inputs))
    return layer


def dense(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """An `nn.Linear` with copies of a given matrix `[m, n]` and bias `[m]`.

    >>> dense(torch.tensor([[1.0, 2.0]]))(torch.tensor([3.0, 4.0])).tolist()
    [11.0]
    """
    # without its constructor, which draws weights that nobody wants: explicit networks have many
    # layers, and that would take thirty times as long
    layer = nn.Linear.__new__(nn.Linear)
    nn.Module.__init__(layer)
    layer.out_features, layer.in_features = weight.shape
    layer.weight = nn.Parameter(weight.detach().clone(memory_format=torch.contiguous_format))
    made = None if bias is None else nn.Parameter(bias.detach().to(weight).clone())
    layer.register_parameter("bias", made)
    return layer


def mlp(
    widths: Sequence[int],
    nonlinearity: str | Activation | type[nn.Module] | Callable[..., Any] = "relu",
    *,
    bias: bool = True,
    last_bias: bool | None = None,
    output: str | Activation | type[nn.Module] | Callable[..., Any] | None = None,
    generator: RandomSource = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> nn.Sequential:
    """A dense network as an `nn.Sequential` of torch's own layers.

    Args:
        widths: `(N_0, ..., N_L)`: inputs, hidden layers, outputs.
        nonlinearity: a name of the table of activations, a row of it, a module class or a function.
        bias: without it, the layers are linear instead of affine.
        last_bias: whether the last layer has one; as `bias` unless told.
        output: an activation on the last layer as well.
        generator: generator or seed for the weights; see `drawn_linear`.

    >>> mlp([3, 4, 1], "tanh")
    Sequential(
      (0): Linear(in_features=3, out_features=4, bias=True)
      (1): Tanh()
      (2): Linear(in_features=4, out_features=1, bias=True)
    )
    """
    source = as_generator(generator)
    _widths(widths)
    layers: list[nn.Module] = []
    depth = len(widths) - 1
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        with_bias = bias if i < depth - 1 or last_bias is None else last_bias
        layers.append(
            drawn_linear(
                inputs, outputs, bias=with_bias, generator=source, dtype=dtype, device=device
            )
        )
        if i < depth - 1:
            layers.append(as_layer(nonlinearity))
    if output is not None:
        layers.append(as_layer(output))
    return nn.Sequential(*layers)


@dataclass(frozen=True)
class Architecture:
    r"""An architecture $a=(N,\varrho)$ and the hypotheses it stands for.

    `realize(theta, x)` is $\Phi_a(x,\theta)$ for flat parameters: the regression
    hypotheses are $\mathcal F_a=\{\Phi_a(\cdot,\theta):\theta\in\mathbb R^{P(N)}\}$, the
    classifiers $\operatorname{sgn}\circ\Phi_a$ ($\operatorname{sgn}0=1$), or the
    argmax with several outputs.

    Attributes:
        widths: $N=(N_0,\dots,N_L)$.
        nonlinearity: $\varrho$.

    >>> a = Architecture((3, 4, 6, 1), activation("relu"))
    >>> a.parameters, a.depth, a.width, a.deep
    (53, 3, 6, True)
    """

    widths: tuple[int, ...]
    nonlinearity: Callable[[Tensor], Tensor]

    def __post_init__(self) -> None:
        _widths(self.widths)

    @classmethod
    def of(cls, model: nn.Module) -> Architecture:
        """Read the architecture of a chain of dense layers with one activation between them.

        >>> Architecture.of(mlp([2, 5, 1], "tanh")).widths
        (2, 5, 1)
        """
        links = [link.module for link in as_chain(model)]
        dense = links[::2]
        between = links[1::2]
        if not all(isinstance(m, nn.Linear) for m in dense) or len(links) % 2 == 0:
            raise UnsupportedModel("an architecture is dense, activation, dense, ..., dense")
        kinds = {repr(m) for m in between}
        if len(kinds) > 1:
            raise UnsupportedModel(f"the activations differ: {', '.join(sorted(kinds))}")
        if any(getattr(m, "bias", None) is None for m in dense):
            raise UnsupportedModel("a layer has no bias; an architecture has one in every layer")
        widths = (dense[0].in_features, *(m.out_features for m in dense))
        return cls(widths, between[0] if between else activation("linear"))  # type: ignore[arg-type]

    @property
    def parameters(self) -> int:
        r"""$P(N)=\sum_\ell N_\ell N_{\ell-1}+N_\ell$."""
        return sum(m * n + m for n, m in pairwise(self.widths))

    @property
    def depth(self) -> int:
        """Number of affine maps $L$."""
        return len(self.widths) - 1

    @property
    def width(self) -> int:
        """Largest layer, input and output included."""
        return max(self.widths)

    @property
    def deep(self) -> bool:
        return self.depth > 2

    @property
    def shallow(self) -> bool:
        return self.depth == 2

    def layers(self, theta: Tensor) -> list[tuple[Tensor, Tensor]]:
        """`theta[..., P]` as matrices `[..., N_l, N_{l-1}]` and biases `[..., N_l]`.

        The order is that of `nn.Sequential`: a layer's weight row by row, then its bias.
        """
        if theta.shape[-1] != self.parameters:
            raise ShapeMismatch(
                f"{self.widths} has {self.parameters} parameters, not {theta.shape[-1]}"
            )
        found, start = [], 0
        for n, m in pairwise(self.widths):
            weight = theta[..., start : start + m * n].reshape(*theta.shape[:-1], m, n)
            bias = theta[..., start + m * n : start + m * n + m]
            found.append((weight, bias))
            start += m * n + m
        return found

    @staticmethod
    def join(layers: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """The inverse of `layers`."""
        return torch.cat([t for w, b in layers for t in (w.flatten(-2), b)], dim=-1)

    def preactivations(self, theta: Tensor, x: Tensor) -> list[Tensor]:
        r"""$\Phi^{(1)},\dots,\Phi^{(L)}$ for `x[s, N_0]`; each `[..., s, N_l]`."""
        if x.ndim != 2 or x.shape[1] != self.widths[0]:
            raise ShapeMismatch(f"x must be [samples, {self.widths[0]}], not {list(x.shape)}")
        found: list[Tensor] = []
        for weight, bias in self.layers(theta):
            values = self.nonlinearity(found[-1]) if found else x
            found.append(values @ weight.transpose(-1, -2) + bias.unsqueeze(-2))
        return found

    def realize(self, theta: Tensor, x: Tensor) -> Tensor:
        r"""$\Phi_a(x,\theta)$: `[s, N_L]`, or `[k, s, N_L]` for `theta[k, P]`."""
        return self.preactivations(theta, x)[-1]

    def classify(self, theta: Tensor, x: Tensor) -> Tensor:
        """The class of every sample: ±1 with one output, an index with several."""
        return decide(self.realize(theta, x))

    def network(self, theta: Tensor) -> nn.Sequential:
        """The same function as a module of its own."""
        given = self.nonlinearity
        layer = given if isinstance(given, Activation) else as_layer(given)
        made = mlp(self.widths, layer, dtype=theta.dtype, device=theta.device)
        nn.utils.vector_to_parameters(theta.detach().clone(), made.parameters())
        return made


def decide(outputs: Tensor) -> Tensor:
    r"""Classes from outputs `[..., s, k]`: the sign for $k=1$, else the argmax.

    $\operatorname{sgn}(0)=+1$. For $k\ge2$ ties go to the smallest index.

    >>> decide(torch.tensor([[-2.0], [0.0], [3.0]])).tolist()
    [-1, 1, 1]
    """
    if outputs.ndim < 2:
        raise ShapeMismatch(f"outputs must be [samples, outputs], not {list(outputs.shape)}")
    if outputs.shape[-1] == 1:
        return torch.where(outputs[..., 0] >= 0, 1, -1)
    return outputs.argmax(-1)


def parameter_count(widths: Sequence[int]) -> int:
    r"""$P(N)=\sum_{\ell=1}^L N_\ell N_{\ell-1}+N_\ell$.

    >>> parameter_count((3, 4, 6, 1))
    53
    """
    _widths(widths)
    return sum(m * n + m for n, m in pairwise(widths))


@dataclass(frozen=True, slots=True)
class GeneralizedLinearModel:
    r"""One layer seen as a statistician would: $E[y\mid x]=\mu(Wx+b)$.

    Attributes:
        weight, bias: the linear predictor; the bias may be None.
        mean: the inverse link $\mu$, in order of application.
    """

    weight: Tensor
    bias: Tensor | None
    mean: tuple[nn.Module, ...]

    def __call__(self, x: Tensor) -> Tensor:
        value = nn.functional.linear(x, self.weight, self.bias)
        for part in self.mean:
            value = part(value)
        return value


def generalized_linear_models(model: nn.Module) -> list[GeneralizedLinearModel]:
    r"""A dense network as composed generalized linear models
    $f^{(L)}(\dots f^{(1)}(x,\theta^{(1)})\dots,\theta^{(L)})$.

    >>> len(generalized_linear_models(mlp([2, 3, 1], output="logistic")))
    2
    """
    module_with_values(model)
    found: list[GeneralizedLinearModel] = []
    for link in as_chain(model):
        if isinstance(link.module, nn.Linear):
            weight, bias = link.module.weight.detach(), link.module.bias
            found.append(
                GeneralizedLinearModel(weight, None if bias is None else bias.detach(), ())
            )
        elif not found:
            raise UnsupportedModel(f"the chain starts with {link.module}, not a dense layer")
        else:
            last = found[-1]
            found[-1] = GeneralizedLinearModel(last.weight, last.bias, (*last.mean, link.module))
    return found


def _widths(widths: Sequence[int]) -> None:
    whole_numbers(widths, "widths", fewest=2)  # an input and an output layer at least


def affine_layers(network: nn.Sequential) -> tuple[list[tuple[Tensor, Tensor]], list[nn.Module]]:
    """The matrices and biases of a chain, and the activations between them.

    >>> maps, between = affine_layers(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    >>> [list(weight.shape) for weight, _ in maps], between
    ([[3, 2], [1, 3]], [ReLU()])
    """
    # its iterator, not children(), which leaves out a module that stands in two places
    children = list(network) if isinstance(network, nn.Sequential) else []
    alternates = len(children) % 2 == 1 and all(
        isinstance(m, nn.Linear) == (i % 2 == 0) for i, m in enumerate(children)
    )
    activations = children[1::2]
    if not alternates or any(next(m.parameters(), None) is not None for m in activations):
        raise UnsupportedModel(
            "a network to combine is an nn.Sequential of nn.Linear layers with one activation "
            f"without parameters between any two, not {type(network).__name__}"
        )
    maps = []
    for layer in children[::2]:
        assert isinstance(layer, nn.Linear)
        weight = layer.weight.detach()
        bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach()
        maps.append((weight, bias))
    return maps, activations
