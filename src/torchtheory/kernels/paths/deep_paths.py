r"""Path features written out, for networks small enough to list their paths.

An output of a ReLU or max-pooling network is $f_k(x) = z(x)^\top\bar w_k$ with one entry a
path (`torchtheory.kernels.paths.path_kernel` has the definitions). Here both vectors are built
unit by unit from the matrices of the operations. Source: Mathematical Aspects of Deep Learning,
section 2.5.1, Eq. (2.1).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.errors import UnsupportedModel
from torchtheory.kernels.paths.graph import listed
from torchtheory.kernels.paths.rules import checked_inputs


@dataclass(frozen=True, slots=True)
class PathFeatures:
    r"""Features and weights of all paths.

    Attributes:
        features: $z(x_i)$, `[n, paths]`.
        weights: $\bar w_k$, `[outputs, paths]`.
    """

    features: Tensor
    weights: Tensor

    @property
    def outputs(self) -> Tensor:
        r"""$f_k(x_i) = z(x_i)^\top\bar w_k$, `[n, outputs]`."""
        return self.features @ self.weights.mT


def path_features(model: nn.Module, x: Tensor, *, most: int = 200_000) -> PathFeatures:
    r"""$z(x)$ and $\bar w$ of a small network, in `float64`.

    Takes the networks of `deep_path_kernel`. Time and
    memory are the number of samples times the number of paths; more than `most` paths are
    refused.

    >>> net = nn.Sequential(nn.Linear(2, 1, bias=False), nn.ReLU(), nn.Linear(1, 1))
    >>> _ = net[0].weight.data.copy_(torch.tensor([[2.0, 3.0]]))
    >>> _ = net[2].weight.data.fill_(5.0), net[2].bias.data.fill_(7.0)
    >>> found = path_features(net, torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
    >>> found.features, found.weights
    (tensor([[1., 1., 1.],
            [0., -0., 1.]], dtype=torch.float64), tensor([[10., 15.,  7.]], dtype=torch.float64))
    """
    x = checked_inputs(model, x, "x")
    ends = listed(model, x, output=0, most=most)
    first = ends[0]
    starts = [path[:-1] for path in first.names]
    if any([path[:-1] for path in unit.names] != starts for unit in ends):
        raise UnsupportedModel(
            "the outputs of the model have different paths, so there is no one feature vector for "
            "all of them, as there is for a last dense layer; every_path lists those of one output"
        )
    return PathFeatures(first.inputs * first.activity, torch.stack([unit.weights for unit in ends]))
