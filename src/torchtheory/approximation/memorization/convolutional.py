r"""Convolutional networks that fit a finite sample exactly.

If some layer of a convolutional network has at least as many neurons as there are samples, random
filters up to it make the samples linearly independent there (almost surely, for an analytic
activation that is no polynomial), and the layer behind it can be solved for any labels. Source:
Mathematical Aspects of Deep Learning, section 3.8.1 (Nguyen and Hein).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchtheory.core.checks import whole_number, whole_numbers
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.kernels.infinite.wide_layer import ZeroRiskFit, fit_last_layer
from torchtheory.nets.activations.table import as_layer

#: Side of the filters of the first convolution.
_SIDE = 3


def pooled_network(
    image: tuple[int, int, int],
    channels: tuple[int, int],
    outputs: int = 1,
    *,
    activation: str = "tanh",
    generator: RandomSource = None,
) -> nn.Sequential:
    r"""Convolution, activation, max pooling, convolution, activation, dense; random filters.

    The filters are normal with variance one over the entries they look at, and the wide layer is
    the second convolution. The dense layer has no bias.

    Args:
        image: channels, height and width of the inputs.
        channels: of the two convolutions, with filters of side 3 and 2; pooling is by 2.

    >>> net = pooled_network((1, 8, 8), (4, 5))
    >>> net(torch.zeros(3, 1, 8, 8).double()).shape, net[-1].in_features
    (torch.Size([3, 1]), 20)
    """
    colors, height, width = whole_numbers(image, "image", fewest=3)
    first, wide = whole_numbers(channels, "channels", fewest=2)
    sides = [(side - _SIDE + 1) // 2 - 1 for side in (height, width)]
    if min(sides) < 1:
        raise InvalidInput(f"images of {height} x {width} are too small for filters of {_SIDE}")
    source = as_generator(generator)

    def filters(n: int, m: int, side: int) -> nn.Conv2d:
        # made on the meta device, so that torch draws nothing itself
        layer = nn.Conv2d(n, m, side, dtype=torch.float64, device="meta").to_empty(device="cpu")
        with torch.no_grad():
            scale = 1 / math.sqrt(n * side * side)
            draws = gaussian(m, n, side, side, generator=source, dtype=torch.float64)
            layer.weight.copy_(scale * draws)
            assert layer.bias is not None
            layer.bias.copy_(gaussian(m, generator=source, dtype=torch.float64))
        return layer

    neurons = wide * sides[0] * sides[1]
    last = nn.Linear(neurons, whole_number(outputs, "outputs", least=1), bias=False, device="meta")
    last = last.to(torch.float64).to_empty(device="cpu")
    nn.init.zeros_(last.weight)
    return nn.Sequential(
        filters(colors, first, _SIDE),
        as_layer(activation),
        nn.MaxPool2d(2),
        filters(first, wide, 2),
        as_layer(activation),
        nn.Flatten(),
        last,
    )


def convolutional_interpolant(
    x: Tensor,
    y: Tensor,
    channels: tuple[int, int],
    *,
    activation: str = "tanh",
    generator: RandomSource = None,
) -> ZeroRiskFit:
    r"""A convolutional network with max pooling and $\sum_i|y_i-\Phi(x_i)|^2=0$.

    Random filters, and the last layer solved by least squares. The fit is exact (up to rounding)
    where the rank that is returned equals the number of samples; that takes at least as many
    neurons in the second convolution as samples, and no two equal images with different labels.

    Args:
        x: `[n, colors, height, width]`.
        y: `[n]` or `[n, outputs]`.
        channels, activation: as of `pooled_network`.

    >>> x = torch.randn(12, 1, 6, 6, dtype=torch.float64, generator=as_generator(0))
    >>> fit = convolutional_interpolant(x, torch.arange(12.0), (3, 12), generator=0)
    >>> fit.rank, fit.residual < 1e-8
    (12, True)
    """
    if x.ndim != 4:
        raise ShapeMismatch(f"images are [n, colors, height, width], not {list(x.shape)}")
    outputs = 1 if y.ndim == 1 else y.shape[-1]
    shape = (x.shape[1], x.shape[2], x.shape[3])
    network = pooled_network(shape, channels, outputs, activation=activation, generator=generator)
    return fit_last_layer(network, x.double(), y)
