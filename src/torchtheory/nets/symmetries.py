r"""Symmetries: different parameters, the same function.

Permuting the units of a hidden layer, :math:`(W_\ell, b_\ell, W_{\ell+1}) \mapsto
(P W_\ell, P b_\ell, W_{\ell+1} P^\top)`, leaves the network's function unchanged for any
activation that acts on each unit alone (Deep Learning notes, section 2.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, UnsupportedModel
from torchtheory.core.model import Parameters
from torchtheory.nets.chain import as_chain

_POINTWISE = (
    nn.ReLU, nn.LeakyReLU, nn.ReLU6, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish,
    nn.Sigmoid, nn.LogSigmoid, nn.Tanh, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Softplus,
    nn.Softsign, nn.Tanhshrink, nn.Hardshrink, nn.Softshrink, nn.Threshold,
    nn.Identity, nn.Dropout, nn.AlphaDropout,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HiddenLayer:
    """Two dense layers with only unit-wise functions between them.

    Attributes:
        incoming, outgoing: names of the two ``nn.Linear`` in the model.
        units: how many units lie between them.
    """

    incoming: str
    outgoing: str
    units: int


def hidden_layers(model: nn.Module) -> list[HiddenLayer]:
    """The hidden layers of a chain whose units may be permuted.

    >>> net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1))
    >>> hidden_layers(net)
    [HiddenLayer(incoming='0', outgoing='2', units=5)]
    """
    found = []
    last: tuple[str, nn.Linear] | None = None
    for link in as_chain(model):
        if isinstance(link.module, nn.Linear):
            if last is not None:
                found.append(HiddenLayer(last[0], link.name, last[1].out_features))
            last = (link.name, link.module)
        elif not isinstance(link.module, _POINTWISE):
            last = None
    return found


def permute_units(parameters: Parameters, layer: HiddenLayer, permutation: Tensor) -> Parameters:
    r"""Parameters with the units of one hidden layer reordered.

    Unit ``permutation[i]`` becomes unit ``i``. Nothing is written to: changed entries are new
    tensors, the others are shared.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> theta = permute_units(dict(net.named_parameters()), hidden_layers(net)[0],
    ...                       torch.tensor([2, 0, 1]))
    >>> x = torch.randn(4, 2)
    >>> torch.allclose(torch.func.functional_call(net, theta, (x,)), net(x))
    True
    """
    if not torch.equal(permutation.sort().values, torch.arange(layer.units)):
        raise InvalidInput(f"a permutation of {layer.units} units lists 0..{layer.units - 1} once")
    weight = parameters[f"{layer.outgoing}.weight"]
    changed = dict(parameters)
    changed[f"{layer.outgoing}.weight"] = weight[:, permutation]
    for part in ("weight", "bias"):
        if f"{layer.incoming}.{part}" in parameters:
            changed[f"{layer.incoming}.{part}"] = parameters[f"{layer.incoming}.{part}"][
                permutation
            ]
    return changed


def log10_equivalent_parameters(layers: list[HiddenLayer]) -> float:
    r"""Decimal logarithm of :math:`\prod_\ell m_\ell!`, the parameter vectors permutation gives.

    >>> round(10 ** log10_equivalent_parameters([HiddenLayer("0", "2", 5)]))
    120
    """
    if not layers:
        raise UnsupportedModel("the network has no hidden layer between two dense layers")
    return sum(math.lgamma(layer.units + 1) for layer in layers) / math.log(10)


def is_permutation_matrix(matrix: Tensor) -> bool:
    """Whether entries are 0 or 1 and every row and column sums to 1.

    The sums alone do not suffice: the matrix with all entries 1/2 has them too.

    >>> is_permutation_matrix(torch.eye(3)[[2, 0, 1]])
    True
    >>> is_permutation_matrix(torch.full((2, 2), 0.5))
    False
    """
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]
    return square and bool(
        torch.isin(matrix, torch.tensor([0, 1], dtype=matrix.dtype, device=matrix.device)).all()
        and (matrix.sum(0) == 1).all()
        and (matrix.sum(1) == 1).all()
    )
