r"""The angle between path features and path weights.

An output of a ReLU or max-pooling network is an inner product over paths,
$f_k(x)=z(x)^\top\bar w_k$, hence

$$
f_k(x)=\|z(x)\|_2\,\|\bar w_k\|_2\,\cos\theta_k(x),
$$

and a large path norm $\|\bar w_k\|_2$ goes with outputs of ordinary size where the cosine is
small. None of the factors needs the list of paths. Source: Mathematical Aspects of Deep Learning,
section 2.5.3, after Theorem 2.9.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.kernels.paths.path_kernel import Squares, path_norms
from torchtheory.kernels.paths.rules import PathNetwork, checked_inputs
from torchtheory.models.model import evaluation_mode


@dataclass(frozen=True, slots=True)
class PathAngles:
    r"""The three factors of every output.

    Attributes:
        outputs: $f_k(x_i)$, `[n, outputs]`.
        feature_norms: $\|z(x_i)\|_2$, `[n]`.
        path_norms: $\|\bar w_k\|_2$, `[outputs]`.
    """

    outputs: Tensor
    feature_norms: Tensor
    path_norms: Tensor

    @property
    def cosines(self) -> Tensor:
        r"""$\cos\theta_k(x_i)$, `[n, outputs]`; NaN where a factor is 0."""
        return self.outputs / (self.feature_norms[:, None] * self.path_norms)


def path_cosines(model: nn.Module, x: Tensor) -> PathAngles:
    r"""Norms of path features and path weights, and the outputs, in `float64`.

    Takes the networks of `deep_path_kernel`, whose diagonal
    $\|z(x)\|^2$ is. Costs three forward passes.

    >>> net = nn.Sequential(nn.Linear(2, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False))
    >>> _ = [layer.weight.data.fill_(w) for layer, w in zip(net[::2], (1.0, 2.0))]
    >>> found = path_cosines(net, torch.tensor([[3.0, 3.0], [3.0, -1.0]]))
    >>> found.cosines.flatten()              # the paths have equal weights, as has the first input
    tensor([1.0000, 0.4472], dtype=torch.float64)
    """
    x = checked_inputs(model, x, "x")
    norms = feature_norms(model, x)
    with torch.no_grad(), evaluation_mode(model):
        outputs = model(x.clone()).double().reshape(len(x), -1)
    return PathAngles(outputs, norms, path_norms(model, x.shape[1:]))


def feature_norms(model: nn.Module, x: Tensor, *, output: int = 0) -> Tensor:
    r"""$\|z(x_i)\|_2$ of the paths into an output, `[n]`, by one pass.

    Squared inputs go through the network with all weights and biases 1 and squared slopes; a
    max-pooling window passes on what it selects. The outputs of a last dense layer have the same
    paths but for their end.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> _ = [nn.init.ones_(p) for p in net.parameters()]
    >>> feature_norms(net, torch.tensor([[1.0, 2.0]])).square().round()  # 3 (1² + 2² + 1) + 1
    tensor([19.], dtype=torch.float64)
    """
    x = checked_inputs(model, x, "x")
    with torch.no_grad():
        network = PathNetwork(model, x)
        start = network.samples(x)
        found: Squares = network.carry(Squares(start, start.double().square()))
    return found.sums.reshape(len(x), -1)[:, output].sqrt()
