r"""Sums of subnetworks of one architecture, each with its own weights and its own penalty.

$$
\Phi_r(X,W)=\sum_{i=1}^r\phi(X,W_i),\qquad\Theta_r(W)=\sum_{i=1}^r\theta(W_i).
$$

A layer of hidden units is such a sum, with one unit a subnetwork; so is a matrix factorization,
with one column of both factors (the input is the identity); so are deep networks side by side.
What is known of factorizations with weight decay carries over if $\phi$ and $\theta$
are positively homogeneous of one degree. Inputs are rows, $X[m,\dots]$, and so are outputs,
`[m, c]`; the weights of one subnetwork are a vector `[p]`, those of all a matrix `[r, p]`.
Source: Mathematical Aspects of Deep Learning, Eqs. (4.44) to (4.47), Figure 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from torchtheory.core.checks import all_finite, module_with_values
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.core.mapping import Mapped
from torchtheory.tracing.chain import as_chain, has_own_forward

OutputLoss = Callable[[Tensor], Tensor]
"""The loss as a function of all outputs `[m, c]`: convex and at least 0."""

Kind = Literal["linear unit", "relu unit", "other"]


@dataclass(frozen=True, slots=True)
class Subnetwork:
    r"""The architecture $\phi$ of one subnetwork and its penalty $\theta$.

    Attributes:
        outputs: $\phi$, from `x[m, ...]` and `w[p]` to `[m, c]`.
        penalty: $\theta$, from `w[p]` to a number.
        size: $p$.
        degree: what both are said to be homogeneous of; see `check_pair`.
        kind: what is known of it: for a unit the polar problem can be solved exactly.
        bias: whether a unit sees a further input that is always 1.
    """

    outputs: Callable[[Tensor, Tensor], Tensor]
    penalty: Callable[[Tensor], Tensor]
    size: int
    degree: float
    kind: Kind = "other"
    bias: bool = False


def linear_unit(inputs: int, outputs: int) -> Subnetwork:
    r"""$\phi(X,w)=(Xw_1)w_2^\top$ with weight decay $(\|w_1\|^2+\|w_2\|^2)/2$.

    With $X=I$ the sum of $r$ is a factorization with $r$ columns.

    >>> unit = linear_unit(2, 1)
    >>> unit.outputs(torch.eye(2), torch.tensor([1.0, 2.0, 3.0])), unit.penalty(torch.ones(3))
    (tensor([[3.],
            [6.]]), tensor(1.5000))
    """
    return _unit(inputs, outputs, False, "linear unit", "decay")


def relu_unit(
    inputs: int,
    outputs: int,
    *,
    bias: bool = False,
    penalty: Literal["decay", "product"] = "decay",
) -> Subnetwork:
    r"""$\phi(X,w)=\max(Xw_1,0)\,w_2^\top$, a hidden unit with its outgoing weights.

    Args:
        inputs: $n_0$.
        outputs: $c$.
        bias: the last entry of $w_1$ belongs to a further input that is always 1. The unit
            stays homogeneous of degree 2 (and its bias is decayed with the rest).
        penalty: `decay` is $(\|w_1\|^2+\|w_2\|^2)/2$, `product` is
            $\|w_1\|\|w_2\|$. Both have the same least value for the same function.

    >>> unit = relu_unit(1, 1, bias=True)                          # 2 max(x - 1, 0)
    >>> unit.outputs(torch.tensor([[0.0], [3.0]]), torch.tensor([1.0, -1.0, 2.0])).flatten()
    tensor([0., 4.])
    """
    return _unit(inputs, outputs, bias, "relu unit", penalty)


def deep_subnetwork(
    widths: Sequence[int], *, penalty: Literal["decay", "product", "powers"] = "product"
) -> Subnetwork:
    r"""A ReLU network without biases, $n_0\to n_1\to\dots\to n_L$, of degree $L$.

    Args:
        widths: from the inputs to the outputs, so one more than there are layers.
        penalty: `product` is $\prod_l\|W_l\|_F$, `powers` is
            $\frac1L\sum_l\|W_l\|_F^L$, both of degree $L$; `decay`,
            $\frac12\sum_l\|W_l\|_F^2$, has degree 2 and matches two layers only.

    >>> net = deep_subnetwork([2, 3, 3, 1])
    >>> net.size, net.degree, net.outputs(torch.ones(5, 2), torch.ones(net.size)).shape
    (18, 3.0, torch.Size([5, 1]))
    """
    if len(widths) < 2 or min(widths) < 1:
        raise InvalidInput(
            f"the widths must be at least two whole numbers from 1 on, not {list(widths)}"
        )
    if penalty not in ("decay", "product", "powers"):
        raise InvalidInput(f"penalty must be decay, product or powers, not {penalty!r}")
    shapes = list(zip(widths[1:], widths, strict=False))
    depth = len(shapes)

    def layers(w: Tensor) -> list[Tensor]:
        pieces = torch.split(w, [a * b for a, b in shapes])
        return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]

    def outputs(x: Tensor, w: Tensor) -> Tensor:
        *hidden, last = layers(w)
        for weight in hidden:
            x = torch.relu(x @ weight.T)
        return x @ last.T

    def charge(w: Tensor) -> Tensor:
        squares = torch.stack([weight.square().sum() for weight in layers(w)])
        if penalty == "decay":
            return squares.sum() / 2
        return squares.prod().sqrt() if penalty == "product" else (squares ** (depth / 2)).mean()

    return Subnetwork(outputs, charge, sum(a * b for a, b in shapes), float(depth))


def _unit(inputs: int, outputs: int, bias: bool, kind: Kind, penalty: str) -> Subnetwork:
    if inputs < 1 or outputs < 1:
        raise InvalidInput(
            f"a unit needs at least one input and one output (inputs = {inputs!r}, outputs = "
            f"{outputs!r})"
        )
    if penalty not in ("decay", "product"):
        raise InvalidInput(f"penalty must be decay or product, not {penalty!r}")
    seen = inputs + bias

    def value(x: Tensor, w: Tensor) -> Tensor:
        if x.ndim != 2 or x.shape[1] != inputs:
            raise ShapeMismatch(f"the unit takes inputs [m, {inputs}], not {list(x.shape)}")
        inner = with_ones(x, bias) @ w[:seen]
        return (torch.relu(inner) if kind == "relu unit" else inner)[:, None] * w[seen:]

    def charge(w: Tensor) -> Tensor:
        if penalty == "product":
            return (w[:seen].square().sum() * w[seen:].square().sum()).sqrt()
        return w.square().sum() / 2

    return Subnetwork(value, charge, seen + outputs, 2.0, kind, bias)


def with_ones(x: Tensor, bias: bool) -> Tensor:
    """Inputs `[m, d]` with a further column of ones, if the units have a bias."""
    return torch.cat([x, x.new_ones(len(x), 1)], 1) if bias else x


@dataclass(frozen=True, slots=True)
class ParallelNetwork:
    r"""$\Phi_r$: $r$ subnetworks of one architecture, summed.

    Attributes:
        subnetwork: the architecture and its penalty.
        weights: `[r, p]`; $r$ may be 0.

    >>> net = ParallelNetwork(linear_unit(2, 2), torch.tensor([[1.0, 0.0, 0.0, 3.0]]))
    >>> net(torch.eye(2)), float(net.penalties().sum())
    (tensor([[0., 3.],
            [0., 0.]]), 5.0)
    """

    subnetwork: Subnetwork
    weights: Tensor

    def __post_init__(self) -> None:
        if self.weights.ndim != 2 or self.weights.shape[1] != self.subnetwork.size:
            raise ShapeMismatch(
                f"the weights must be [subnetworks, {self.subnetwork.size}], not "
                f"{list(self.weights.shape)}"
            )
        all_finite(self.weights, "the weights")

    def __len__(self) -> int:
        return len(self.weights)

    def __call__(self, x: Tensor) -> Tensor:
        r"""$\Phi_r(X)$, `[m, c]`."""
        return self.parts(x).sum(0)

    def parts(self, x: Tensor) -> Tensor:
        r"""$\phi(X,W_i)$, `[r, m, c]`."""
        if x.ndim == 0 or len(x) == 0:
            raise EmptyData(f"the network needs at least one input, not {list(x.shape)}")
        x = x.to(self.weights) if x.is_floating_point() else x
        if not len(self):
            zero = self.weights.new_zeros(self.subnetwork.size)
            return self.subnetwork.outputs(x, zero)[None][:0]
        made: Tensor = Mapped(lambda w: self.subnetwork.outputs(x, w))(self.weights)
        return made

    def penalties(self) -> Tensor:
        r"""$\theta(W_i)$, `[r]`."""
        if not len(self):
            return self.weights.new_zeros(0)
        made: Tensor = Mapped(self.subnetwork.penalty)(self.weights)
        return made

    def objective(self, x: Tensor, loss: OutputLoss, strength: float) -> Tensor:
        r"""$\mathcal L(\Phi_r(X))+\lambda\Theta_r$, differentiable in the weights."""
        return loss(self(x)) + strength * self.penalties().sum()

    def append(self, weights: Tensor) -> ParallelNetwork:
        """The network with one more subnetwork `[p]`, or several `[k, p]`."""
        if weights.shape[-1:] != (self.subnetwork.size,):
            raise ShapeMismatch(
                f"a subnetwork has {self.subnetwork.size} weights, and {list(weights.shape)} were "
                "given"
            )
        more = weights.reshape(-1, self.subnetwork.size).to(self.weights)
        return replace(self, weights=torch.cat([self.weights, more]))

    def scaled(self, factors: Tensor) -> ParallelNetwork:
        r"""The network whose part $i$ and its penalty are $c_i\ge0$ times as large.

        The weights are multiplied by $c_i^{1/p}$, with the degree $p$.
        """
        if factors.shape != (len(self),) or bool((factors < 0).any()):
            raise InvalidInput(f"{len(self)} factors >= 0 are needed")
        roots = factors.to(self.weights) ** (1 / self.subnetwork.degree)
        return replace(self, weights=roots[:, None] * self.weights)

    def is_zero(self) -> Tensor:
        """Which subnetworks have no weight but 0, `[r]`."""
        return self.weights.abs().amax(1) == 0

    def without_zeros(self) -> ParallelNetwork:
        """The network without the subnetworks that are zero."""
        return replace(self, weights=self.weights[~self.is_zero()])


def parallel_network(subnetwork: Subnetwork, weights: Tensor | None = None) -> ParallelNetwork:
    """A network of given weights `[r, p]`, empty unless given (in double precision).

    >>> len(parallel_network(relu_unit(2, 1)))
    0
    """
    if weights is None:
        weights = torch.zeros(0, subnetwork.size, dtype=torch.float64)
    return ParallelNetwork(subnetwork, weights)


def split_hidden_units(model: nn.Module, *, keep_output_bias: bool = True) -> ParallelNetwork:
    r"""A dense network with one hidden ReLU layer as the sum of its hidden units.

    Biases of the hidden layer are weights of a further input that is always 1. Dropout is off, as
    in evaluation mode, and behind an `nn.Flatten` the units take flat inputs `[m, d]`.

    Args:
        model: a linear layer, `nn.ReLU` and a linear layer.
        keep_output_bias: an output bias has no place in a homogeneous network, and one that is
            not 0 is refused; with `False` it is left out, for a loss that adds it to the outputs.

    >>> net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2, bias=False))
    >>> x = torch.ones(4, 3)
    >>> units = split_hidden_units(net)
    >>> len(units), bool(torch.allclose(units(x), net(x)))
    (5, True)
    """
    module_with_values(model)
    layers = [
        link.module
        for link in as_chain(model)
        if not isinstance(link.module, nn.Identity | nn.Dropout)
    ]
    if len(layers) > 3 and type(layers[0]) is nn.Flatten:
        layers = layers[1:]
    match layers:
        case [nn.Linear() as first, nn.ReLU(), nn.Linear() as last] if all(
            has_own_forward(layer) and not is_parametrized(layer) for layer in layers
        ):
            pass
        case _:
            raise UnsupportedModel(
                "the network must be a linear layer, nn.ReLU and a linear layer, not "
                + ", ".join(type(layer).__name__ for layer in layers)
            )
    if keep_output_bias and last.bias is not None and bool((last.bias != 0).any()):
        raise UnsupportedModel("an output bias is not homogeneous: take it out, or set it to 0")
    rows = [first.weight] if first.bias is None else [first.weight, first.bias[:, None]]
    weights = torch.cat([*rows, last.weight.T], 1).detach().clone()
    unit = relu_unit(first.in_features, last.out_features, bias=first.bias is not None)
    return ParallelNetwork(unit, weights)


@dataclass(frozen=True, slots=True)
class HalfSquares:
    r"""The loss $\tfrac12\|Y-Z\|_F^2$ of outputs $Z$.

    Attributes:
        targets: $Y$, `[m, c]`.

    >>> HalfSquares(torch.ones(2, 1))(torch.zeros(2, 1))
    tensor(1.)
    """

    targets: Tensor

    def __post_init__(self) -> None:
        if self.targets.ndim != 2:
            raise ShapeMismatch(
                f"targets are [m, c], not {list(self.targets.shape)}: reshape a vector to [m, 1]"
            )
        all_finite(self.targets, "the targets")

    def __call__(self, outputs: Tensor) -> Tensor:
        if outputs.shape != self.targets.shape:
            raise ShapeMismatch(
                f"outputs {list(outputs.shape)} and targets {list(self.targets.shape)} do not fit "
                "together"
            )
        return (outputs - self.targets.to(outputs)).square().sum() / 2

    def dual(self, q: Tensor) -> float:
        r"""$\min_Z\mathcal L(Z)+\langle Q,Z\rangle=\langle Q,Y\rangle-\tfrac12\|Q\|^2$."""
        return float((q * self.targets).sum() - q.square().sum() / 2)
