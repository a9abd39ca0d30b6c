r"""A dense network is what a convolutional one computes at one place of a circle, and conversely.

The first dense layer $Wx+b$ becomes a convolution with full-size filters, the rows of
$W$; the later ones become convolutions of size 1. With periodic padding the value at the
place $g$ is that of the dense network at the input moved by $-g$. So a dense network
that is near $f$ gives an equivariant one, with as many non-zero parameters, that is near
$F(x)_g=f(T_{-g}x)$. Conversely a convolution is a dense layer with at most as many copies
of each number as there are places. Source: Mathematical Aspects of Deep Learning, section 3.8.1
(Petersen and Voigtlaender 2020).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from torchtheory.approximation.architectures.shift_structure import Convolution, convolution_matrix
from torchtheory.approximation.network_calculus import chain
from torchtheory.core.checks import module_with_values
from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnsupportedModel
from torchtheory.nets.feedforward import affine_layers

_KINDS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def as_convolutional(
    network: nn.Sequential, sizes: Sequence[int], *, channels: int = 1
) -> nn.Sequential:
    r"""The periodic convolutional network whose value at place 0 is the dense network's.

    Args:
        network: `nn.Linear` layers with one activation, acting entry by entry, between any two;
            its inputs are images `[channels, *sizes]`, flattened.
        sizes: of the grid, in 1 to 3 dimensions.

    Returns:
        From `[n, channels, *sizes]` to `[n, outputs, *sizes]`, with the same non-zero
        parameters; at place $g$ it is the network of the input moved by $-g$.

    Source: Mathematical Aspects of Deep Learning, section 3.8.1.

    >>> net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> x = torch.linspace(-1, 1, 10).reshape(2, 5)
    >>> made = as_convolutional(net, [5])
    >>> bool(torch.allclose(made(x[:, None])[:, :, 0], net(x), atol=1e-6))
    True
    """
    maps, between = affine_layers(network)
    grid = tuple(sizes)
    if len(grid) not in _KINDS or min(grid, default=0) < 1 or channels < 1:
        raise InvalidInput(
            f"a grid has 1 to 3 sizes, and inputs have channels, all at least 1; not "
            f"{list(grid)} and {channels}"
        )
    weight = maps[0][0]
    if weight.shape[1] != channels * math.prod(grid):
        raise ShapeMismatch(
            f"the network takes {weight.shape[1]} numbers, and {channels} channels of "
            f"{list(grid)} places have {channels * math.prod(grid)}"
        )
    axes = tuple(range(2, 2 + len(grid)))
    rows = weight.reshape(len(weight), channels, *grid)
    # torch pads a filter of size n by (n - 1) // 2 places in front
    filters = [(torch.roll(rows, [(n - 1) // 2 for n in grid], axes), maps[0][1])]
    filters += [(w.reshape(*w.shape, *[1] * len(grid)), b) for w, b in maps[1:]]
    layers: list[nn.Module] = [_periodic(*filters[0])]
    for activation, following in zip(between, filters[1:], strict=True):
        layers += [activation, _periodic(*following)]
    return nn.Sequential(*layers).requires_grad_(False)


def as_fully_connected(
    network: nn.Sequential, sizes: Sequence[int], *, place: Sequence[int] | None = None
) -> nn.Sequential:
    r"""The dense network that a convolutional one is on images of given sizes.

    Args:
        network: `nn.Conv1d`, `nn.Conv2d` or `nn.Conv3d` layers with one activation, acting
            entry by entry, between any two; any padding, stride and groups.
        sizes: of the images.
        place: which place of the output to keep; all, flattened, unless told.

    Returns:
        `nn.Linear` layers from flattened images; of each number of a layer's filters it has at
        most as many copies as the layer has places. Dense matrices: `O(inputs * outputs)`.

    Source: Mathematical Aspects of Deep Learning, section 3.8.1.

    >>> ring = nn.Sequential(nn.Conv1d(1, 2, 3, padding=1, padding_mode="circular"))
    >>> as_fully_connected(ring, [6], place=[0])
    Sequential(
      (0): Linear(in_features=6, out_features=2, bias=True)
    )
    """
    children = list(network.children()) if isinstance(network, nn.Sequential) else []
    alternates = len(children) % 2 == 1 and all(
        isinstance(m, Convolution) == (i % 2 == 0) for i, m in enumerate(children)
    )
    activations = children[1::2]
    if not alternates or any(next(m.parameters(), None) is not None for m in activations):
        raise UnsupportedModel(
            "the network is an nn.Sequential of convolutions with one activation without "
            f"parameters between any two, not {type(network).__name__}"
        )
    maps = []
    shape: tuple[int, ...] = tuple(sizes)
    for layer in children[::2]:
        assert isinstance(layer, Convolution)
        matrix = convolution_matrix(layer, (layer.in_channels, *shape)).to_dense()
        places = len(matrix) // layer.out_channels
        bias = matrix.new_zeros(layer.out_channels) if layer.bias is None else layer.bias.detach()
        maps.append((matrix, bias.repeat_interleave(places)))
        shape = _sizes_after(layer, shape)
    if place is not None:
        spot = tuple(place)
        if len(spot) != len(shape) or any(
            not 0 <= p < n for p, n in zip(spot, shape, strict=False)
        ):
            raise InvalidInput(f"the output has the places of {list(shape)}, not {list(spot)}")
        strides = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
        index = sum(p * s for p, s in zip(spot, strides, strict=True))
        matrix, bias = maps[-1]
        kept = slice(index, None, math.prod(shape))
        maps[-1] = (matrix[kept], bias[kept])
    return chain(maps, activations)


def nonzero_parameters(network: nn.Module) -> list[int]:
    """Non-zero weights and biases of each layer that has some, in order.

    >>> nonzero_parameters(nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU(), nn.Conv1d(2, 1, 1)))
    [8, 3]
    """
    module_with_values(network)
    own = ([p.detach() for p in m.parameters(recurse=False)] for m in network.modules())
    return [sum(int(p.count_nonzero()) for p in layer) for layer in own if layer]


def _periodic(weight: Tensor, bias: Tensor) -> nn.Module:
    outputs, inputs, *size = weight.shape
    # made on the meta device, so that torch draws nothing itself
    layer = _KINDS[len(size)](
        inputs,
        outputs,
        tuple(size),  # type: ignore[arg-type]
        padding="same",
        padding_mode="circular",
        dtype=weight.dtype,
        device="meta",
    )
    layer = layer.to_empty(device=weight.device)
    with torch.no_grad():
        layer.weight.copy_(weight)
        assert layer.bias is not None
        layer.bias.copy_(bias)
    return layer


def _sizes_after(layer: Convolution, sizes: tuple[int, ...]) -> tuple[int, ...]:
    both = layer._reversed_padding_repeated_twice[::-1]
    padded = [n + a + b for n, (a, b) in zip(sizes, list(pairwise(both))[::2], strict=True)]
    return tuple(
        (n - d * (k - 1) - 1) // s + 1
        for n, d, k, s in zip(padded, layer.dilation, layer.kernel_size, layer.stride, strict=True)
    )
