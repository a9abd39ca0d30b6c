r"""Path features written out, for networks small enough to list their paths.

An output of a ReLU or max-pooling network is $f_k(x) = z(x)^\top\bar w_k$ with one entry a
path (`torchtheory.kernels.paths.path_kernel` has the definitions). Here both vectors are built
unit by unit from the layers' own matrices. Source: Mathematical Aspects of Deep Learning, section
2.5.1, Eq. (2.1).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, UnsupportedModel
from torchtheory.kernels.paths.path_kernel import (
    ADAPTIVE_POOLS,
    AVERAGE_POOLS,
    CONVOLUTIONS,
    MAX_POOLS,
    NORMALIZATIONS,
    SLOPED,
    checked_inputs,
    has_bias,
    number_of_paths,
    path_links,
    selected_places,
    slopes,
)
from torchtheory.models.model import evaluation_mode


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
    links = path_links(model)
    x = checked_inputs(model, x, "x")
    paths = number_of_paths(model, x.shape[1:])
    if paths > most:
        raise InvalidInput(
            f"there are {paths:.3g} paths, more than most={most}; use deep_path_kernel, which "
            "needs none of them"
        )
    last = max(i for i, link in enumerate(links) if isinstance(link.module, nn.Linear))
    with torch.no_grad(), evaluation_mode(model):
        value = x
        units = [
            (column.unsqueeze(1), column.new_ones(1)) for column in x.flatten(1).double().unbind(1)
        ]
        for link in links[:last]:
            units = _through(link.module, value, units)
            value = link.module(value)
        features = [z for z, _ in units]
        head = links[last].module
        assert isinstance(head, nn.Linear)
        weights = [torch.outer(head.weight[:, u].double(), w) for u, (_, w) in enumerate(units)]
        if head.bias is not None:
            features.append(torch.ones_like(features[0][:, :1]))
            weights.append(head.bias.double().unsqueeze(1))
        return PathFeatures(torch.cat(features, 1), torch.cat(weights, 1))


_Units = list[tuple[Tensor, Tensor]]  # features [n, paths] and weights [paths] of every unit


def _through(module: nn.Module, value: Tensor, units: _Units) -> _Units:
    if isinstance(module, SLOPED):
        factors = slopes(module, value).flatten(1)
        return [(z * factors[:, u, None], w) for u, (z, w) in enumerate(units)]
    if isinstance(module, MAX_POOLS):
        return _through_selection(module, value, units)
    if not isinstance(
        module, (nn.Linear, *CONVOLUTIONS, *AVERAGE_POOLS, *ADAPTIVE_POOLS, *NORMALIZATIONS)
    ):
        return units  # moves entries about, or passes them on
    matrix, support, bias = _matrix(module, value)
    one = torch.ones_like(units[0][0][:, :1])
    made = []
    for row, edges, shift in zip(matrix, support, bias, strict=True):
        sources = edges.nonzero().flatten().tolist()
        features = [units[u][0] for u in sources]
        weights = [row[u] * units[u][1] for u in sources]
        if has_bias(module):
            features.append(one)
            weights.append(shift.reshape(1))
        made.append((torch.cat(features, 1), torch.cat(weights)))
    return made


def _matrix(module: nn.Module, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Matrix `[out, in]`, which of its entries are connections, and bias `[out]`."""
    shape = value.shape[1:]
    basis = torch.eye(shape.numel(), dtype=value.dtype, device=value.device).reshape(-1, *shape)
    shift = module(torch.zeros_like(basis[:1])).flatten()
    matrix = (module(basis).flatten(1) - shift).mT
    if isinstance(module, nn.Linear):
        matrix, support = module.weight, torch.ones_like(module.weight)
    elif isinstance(module, CONVOLUTIONS):
        support = module._conv_forward(basis, torch.ones_like(module.weight), None).flatten(1).mT
    else:
        support = matrix
        if isinstance(module, NORMALIZATIONS):
            support = torch.eye(len(basis))
    return matrix.double(), support != 0, shift.double()


def _through_selection(module: nn.Module, value: Tensor, units: _Units) -> _Units:
    places = selected_places(module, value)
    inside = value[0, 0].numel()
    reach = [_windows(module, value, place) for place in range(inside)]
    made = []
    for channel in range(value.shape[1]):
        chosen = places[:, channel].flatten(1)
        for window in range(chosen.shape[1]):
            sources = [p for p in range(inside) if reach[p][window]]
            if not sources:
                raise UnsupportedModel("a window of a max pool has no input")
            features = [
                units[channel * inside + p][0] * (chosen[:, window] == p)[:, None].double()
                for p in sources
            ]
            made.append(
                (
                    torch.cat(features, 1),
                    torch.cat([units[channel * inside + p][1] for p in sources]),
                )
            )
    return made


def _windows(module: nn.Module, value: Tensor, place: int) -> Tensor:
    """Which windows see a place: those whose maximum it becomes when it is the only large one."""
    probe = torch.zeros_like(value[:1, :1])
    probe.view(-1)[place] = 1.0
    seen: Tensor = module(probe).flatten() > 0
    return seen
