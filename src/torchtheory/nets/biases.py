r"""Networks without biases: the constant 1 is carried through the layers by a unit of its own.

Source: Mathematical Aspects of Deep Learning, Remark 1.5, where the carrying unit is
$\varrho(1)=1$. That asks for an activation with $\varrho(1)=1$; for any other, the
carried constant is $v=\varrho(c)\ne0$ and the weights that read it are divided by it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchtheory.core.checks import module_with_values
from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnsupportedModel
from torchtheory.nets.feedforward import dense
from torchtheory.tracing.chain import as_chain


def augment(
    layers: Sequence[tuple[Tensor, Tensor]], carry: float = 1.0, carried: Sequence[float] = ()
) -> list[Tensor]:
    r"""Matrices of the bias-free network on $(x,1)$.

    Layer $\ell<L$ becomes $\begin{pmatrix}W&b/v\\0&c/v\end{pmatrix}$, the last
    $(W\ \ b/v)$, where $v$ is the constant that arrives (1 at the first layer) and
    $c$ the pre-activation of the carrying unit. With the defaults this is the source's
    construction: it supposes that $\varrho(1)=1$.

    Args:
        layers: `(W, b)` of every layer.
        carry: the pre-activation $c$.
        carried: $\varrho(c)$ after each hidden layer; all 1 unless told.

    >>> augment([(torch.tensor([[2.0]]), torch.tensor([3.0]))] * 2)
    [tensor([[2., 3.],
            [0., 1.]]), tensor([[2., 3.]])]
    """
    carried = list(carried) or [1.0] * (len(layers) - 1)
    if len(carried) != len(layers) - 1:
        raise ShapeMismatch(f"{len(layers)} layers carry {len(layers) - 1} constants")
    made, arriving = [], 1.0
    for i, (weight, bias) in enumerate(layers):
        matrix = torch.cat([weight, bias.unsqueeze(1) / arriving], dim=1)
        if i < len(layers) - 1:
            row = matrix.new_zeros(1, matrix.shape[1])
            row[0, -1] = carry / arriving
            matrix = torch.cat([matrix, row])
            arriving = carried[i]
        made.append(matrix)
    return made


class OnAugmentedInput(nn.Module):
    """A network applied to `(x, 1)`; the network itself has no biases."""

    def __init__(self, network: nn.Sequential) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.network(homogeneous(x))
        return out


def absorb_biases(model: nn.Module) -> OnAugmentedInput:
    r"""A network without biases that computes the same function from $(x,1)$.

    Works for dense chains with any activation for which some $c$ has
    $\varrho(c)\ne0$. One unit more in every hidden layer; the model is not changed.

    >>> from torchtheory.nets.feedforward import mlp
    >>> net, x = mlp([2, 3, 1], "tanh"), torch.ones(4, 2).double()
    >>> bare = absorb_biases(net)
    >>> bare.network[0].bias is None, torch.allclose(bare(x), net(x))
    (True, True)
    """
    module_with_values(model)
    links = [link.module for link in as_chain(model)]
    linears = [m for m in links if isinstance(m, nn.Linear)]
    if not linears or not isinstance(links[0], nn.Linear):
        raise UnsupportedModel("biases can be absorbed in a chain that starts with a dense layer")
    layers = [
        (
            m.weight.detach(),
            m.weight.new_zeros(m.out_features) if m.bias is None else m.bias.detach(),
        )
        for m in linears
    ]
    between: list[list[nn.Module]] = []
    for module in links:
        if isinstance(module, nn.Linear):
            between.append([])
        elif next(module.parameters(), None) is not None:
            raise UnsupportedModel(f"{module} is neither dense nor a function of each entry")
        else:
            between[-1].append(copy.deepcopy(module).eval())
    carry, carried = _constant(between[:-1], layers[0][0])
    modules: list[nn.Module] = []
    for matrix, functions in zip(augment(layers, carry, carried), between, strict=True):
        modules += [dense(matrix), *functions]
    return OnAugmentedInput(nn.Sequential(*modules))


def _constant(between: list[list[nn.Module]], like: Tensor) -> tuple[float, list[float]]:
    """A pre-activation whose image is far from 0 after every hidden layer, and the images."""
    best: tuple[float, list[float]] | None = None
    for c in (1.0, -1.0, 0.0, 0.5, -0.5, 2.0, -2.0):
        values = []
        for functions in between:
            value = like.new_full((1, 1), c)
            with torch.no_grad():
                for function in functions:
                    value = function(value)
            values.append(float(value))
        size = min((abs(v) for v in values), default=1.0)
        if size > 1e-3 and (best is None or c == 1.0):
            best = (c, values)
    if best is None:
        raise InvalidInput("an activation is 0 wherever it was tried: it cannot carry a constant")
    return best


def homogeneous(x: Tensor) -> Tensor:
    r"""$\tilde x = (x, 1)$: a bias is a weight on a constant feature.

    >>> homogeneous(torch.tensor([[2.0]]))
    tensor([[2., 1.]])
    """
    return torch.cat([x, x.new_ones(x.shape[0], 1)], dim=1)
