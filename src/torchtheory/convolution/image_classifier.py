r"""A network of convolutions: alternating with activations and pooling, and a dense head.

Resolution shrinks and channels grow from block to block, a pyramid, and what is left is flattened
for dense layers. A head of one output stands for $P(Y=1\mid x)=1/(1+e^{-f(x)})$. Sources: the
notes, section 4.2; the lectures, section 10.1, Figures 10.3, 10.11 and 10.12.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from torchtheory.convolution.layer_sizes import output_size
from torchtheory.core.checks import as_module, one_of, whole_number, whole_numbers
from torchtheory.core.errors import ShapeMismatch, UnsupportedModel
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.models.evaluation import answered
from torchtheory.models.model import global_randomness_kept
from torchtheory.tracing.layer_results import layer_outputs

_CONVOLUTION = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_POOL = {
    "max": (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    "average": (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
}


def convolutional_network(
    input_shape: Sequence[int],
    channels: Sequence[int],
    dense: Sequence[int] = (),
    outputs: int = 1,
    *,
    taps: int = 3,
    pool: int = 2,
    pooling: str = "max",
    padding: int = 0,
    probability: bool = False,
    generator: RandomSource = None,
) -> nn.Sequential:
    r"""Blocks of convolution, ReLU and pooling, then dense layers with ReLU between them.

    Args:
        input_shape: `[channels, ...]` of one input, 1 to 3 dimensions.
        channels: of the convolutions, one block each.
        dense: units of hidden dense layers.
        outputs: of the network.
        taps: of each filter, per dimension.
        pool: size and stride of the pooling windows; 1 for no pooling.
        pooling: `max` or `average`.
        padding: zeros around the input of each convolution.
        probability: whether the logistic function is applied in the end.
        generator: seed or generator of the weights, Gaussian with variance 2 / fan-in; biases 0.

    Weights are in torch's default precision.

    >>> net = convolutional_network((1, 28, 28), [8, 16], [32], 10, generator=0)
    >>> net(torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5, 10])
    """
    shape = whole_numbers(tuple(input_shape), "input_shape", fewest=2)
    widths = whole_numbers(channels, "channels")
    units = whole_numbers(tuple(dense), "dense", fewest=0)
    whole_number(outputs, "outputs", least=1)
    whole_number(pool, "pool", least=1)
    one_of(pooling, "pooling", _POOL)
    dims = len(shape) - 1
    if dims > 3:
        raise ShapeMismatch(f"images have 1 to 3 dimensions, not {dims}")
    sizes = list(shape[1:])
    for _ in widths:
        sizes = [output_size(n, taps, padding=padding) for n in sizes]
        sizes = [output_size(n, pool, pool) for n in sizes]
    with global_randomness_kept():  # torch's layers draw weights, which are drawn anew below
        layers: list[nn.Module] = []
        for before, width in pairwise((shape[0], *widths)):
            layers += [_CONVOLUTION[dims - 1](before, width, taps, padding=padding), nn.ReLU()]
            if pool > 1:
                layers.append(_POOL[pooling][dims - 1](pool))
        layers.append(nn.Flatten())
        for before, width in pairwise((widths[-1] * math.prod(sizes), *units, outputs)):
            layers += [nn.Linear(before, width), nn.ReLU()]
    layers[-1:] = [nn.Sigmoid()] if probability else []
    random = as_generator(generator)
    with torch.no_grad():
        for layer in layers:
            if isinstance(layer, (*_CONVOLUTION, nn.Linear)):
                deviation = math.sqrt(2 / layer.weight[0].numel())
                layer.weight.normal_(0.0, deviation, generator=random)
                assert layer.bias is not None
                layer.bias.zero_()
    return nn.Sequential(*layers)


def feature_maps(model: nn.Module, image: Tensor) -> dict[str, Tensor]:
    """What every layer makes of an image, `[channels, ...]` each, where it still is one.

    Args:
        model: any module.
        image: `[channels, ...]`, one input.

    >>> net = convolutional_network((1, 12, 12), [4, 8], outputs=2, generator=0)
    >>> {name: tuple(maps.shape) for name, maps in feature_maps(net, torch.zeros(1, 12, 12)).items()
    ...  if name in ("0", "2", "3", "5")}
    {'0': (4, 10, 10), '2': (4, 5, 5), '3': (8, 3, 3), '5': (8, 1, 1)}
    """
    as_module(model)
    if image.ndim < 2 or not image.is_floating_point():
        raise ShapeMismatch(f"an image is [channels, ...] of real numbers, not {list(image.shape)}")
    like = next(iter(model.parameters()), None)
    with torch.no_grad():
        found = answered(lambda t: layer_outputs(model, t), image[None], like)
    maps = {name: out[0] for name, out in found.items() if out.ndim == image.ndim + 1}
    if not maps:
        raise UnsupportedModel("no layer gives an image out")
    return maps


def tiled(images: Tensor, *, columns: int | None = None, gap: int = 1) -> Tensor:
    """Images side by side in one: filters or feature maps, to look at.

    Each is scaled to [-1, 1] by its own largest absolute entry; NaN is between them.

    Args:
        images: `[n, height, width]`.
        columns: images per row; about as many as rows unless told.
        gap: places between them.

    >>> tiled(torch.ones(4, 2, 2)).shape
    torch.Size([5, 5])
    """
    if images.ndim != 3 or images.numel() == 0:
        raise ShapeMismatch(f"images must be [n, height, width], not {list(images.shape)}")
    count, height, width = images.shape
    across = math.ceil(math.sqrt(count)) if columns is None else columns
    whole_number(across, "columns", least=1)
    whole_number(gap, "gap", least=0)
    down = math.ceil(count / across)
    made = torch.full(
        (down * (height + gap) - gap, across * (width + gap) - gap), math.nan, dtype=images.dtype
    )
    for k, image in enumerate(images.detach().cpu()):
        row, column = divmod(k, across)
        largest = float(image.abs().max())
        top, left = row * (height + gap), column * (width + gap)
        made[top : top + height, left : left + width] = image / largest if largest > 0 else image
    return made
