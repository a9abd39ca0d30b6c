"""Long ReLU chains put together as lists of matrices, and made a module once at the end.

What `network_calculus` does with modules takes a module for every
intermediate step; a chain of a hundred layers from twenty parts is written down faster as
matrices.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import Approximant
from torchtheory.approximation.network_calculus import chain
from torchtheory.core.errors import ShapeMismatch, UnsupportedModel
from torchtheory.nets.feedforward import affine_layers

Maps = list[tuple[Tensor, Tensor]]


def layer_maps_of(made: Approximant | nn.Module) -> Maps:
    """The matrices and biases of a chain of ReLU layers.

    >>> [list(w.shape) for w, _ in layer_maps_of(nn.Sequential(nn.Linear(2, 1)))]
    [[1, 2]]
    """
    network = made.network if isinstance(made, Approximant) else made
    if not isinstance(network, nn.Sequential):
        raise UnsupportedModel(f"a chain is an nn.Sequential, not {type(network).__name__}")
    maps, between = affine_layers(network)
    if not all(isinstance(m, nn.ReLU) for m in between):
        raise UnsupportedModel(
            "these layers are joined by ReLU only, not "
            f"{', '.join(sorted({type(m).__name__ for m in between}))}"
        )
    return maps


def merge_maps(outer: Maps, inner: Maps) -> Maps:
    """The layers of a composition: the last of the inner and the first of the outer are one.

    >>> two, three = [(torch.tensor([[c]]), torch.zeros(1)) for c in (2.0, 3.0)]
    >>> merge_maps([two], [three])[0][0].item()
    6.0
    """
    (a, b), (c, d) = inner[-1], outer[0]
    if c.shape[1] != a.shape[0]:
        raise ShapeMismatch(f"the inner has {a.shape[0]} outputs and the outer {c.shape[1]} inputs")
    return [*inner[:-1], (c @ a, c @ b + d), *outer[1:]]


def affine_map(weight: Sequence[Sequence[float]], bias: Sequence[float] | None = None) -> Maps:
    """A single layer in double precision, without bias unless told.

    >>> affine_map([[1.0, -1.0]])[0][1].tolist()
    [0.0]
    """
    made = torch.tensor(weight, dtype=torch.float64)
    if bias is None:
        return [(made, made.new_zeros(len(made)))]
    return [(made, torch.tensor(bias, dtype=torch.float64))]


def relu_chain(maps: Maps) -> nn.Sequential:
    """The network of these layers with ReLU between any two.

    >>> relu_chain(affine_map([[-1.0]]) * 2)(torch.tensor([[-3.0]]).double()).item()
    -3.0
    """
    return chain(maps, [nn.ReLU() for _ in maps[1:]])
