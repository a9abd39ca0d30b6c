r"""Dense blocks of convolutions: every layer reads all feature maps before it.

$x_\ell=H_\ell([x_0,\dots,x_{\ell-1}])$ with $H=\mathrm{conv}\circ\varrho\circ\mathrm{BN}$, each
layer adding $k$ channels, the growth rate. The dense layers of vectors are in `layers`. Source:
Foundations of Deep Learning, section 10.2, Figure 10.16 (Huang et al. 2017).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtheory.core.checks import whole_number
from torchtheory.core.errors import ShapeMismatch
from torchtheory.core.random import RandomSource
from torchtheory.nets.residual.image_resnets import draw_convolutional


class DenseBlock(nn.Module):
    r"""`layers` convolutions, each reading the block's input and all earlier layers' maps.

    Args:
        channels: $k_0$, of the input.
        layers: $L$.
        growth: $k$, channels that every layer adds; $k_0+Lk$ come out.
        kernel: side of the filters, odd.
        generator: generator or seed for the weights.

    >>> block = DenseBlock(4, layers=3, growth=2)
    >>> [layer[2].in_channels for layer in block.layers]
    [4, 6, 8]
    >>> block(torch.ones(1, 4, 5, 5)).shape
    torch.Size([1, 10, 5, 5])
    """

    def __init__(
        self,
        channels: int,
        layers: int,
        growth: int,
        *,
        kernel: int = 3,
        generator: RandomSource = 0,
    ) -> None:
        super().__init__()
        _check(channels, layers, growth, kernel)
        self.channels, self.growth = channels, growth
        with torch.device("meta"):
            self.layers = nn.ModuleList(
                nn.Sequential(
                    nn.BatchNorm2d(channels + i * growth),
                    nn.ReLU(),
                    nn.Conv2d(
                        channels + i * growth, growth, kernel, padding=kernel // 2, bias=False
                    ),
                )
                for i in range(layers)
            )
        draw_convolutional(self, generator)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[1] != self.channels:
            raise ShapeMismatch(
                f"x must be images of {self.channels} channels, not {list(x.shape)}"
            )
        maps = x
        for layer in self.layers:
            maps = torch.cat([maps, layer(maps)], 1)
        return maps

    @property
    def connections(self) -> int:
        r"""$L(L+1)/2$: layer $\ell$ reads $\ell$ tensors, the block's input among them."""
        widths = [len(layer.get_parameter("0.weight")) for layer in self.layers]
        return sum(1 + (width - self.channels) // self.growth for width in widths)


def dense_block_parameters(channels: int, layers: int, growth: int, *, kernel: int = 3) -> int:
    r"""$\sum_{i<L}(k_0+ik)(k\,s^2+2)$ with filters of side $s$: weights and normalizations.

    >>> dense_block_parameters(4, 3, 2) == sum(p.numel() for p in DenseBlock(4, 3, 2).parameters())
    True
    """
    _check(channels, layers, growth, kernel)
    return sum((channels + i * growth) * (growth * kernel**2 + 2) for i in range(layers))


def plain_block_parameters(channels: int, layers: int, growth: int, *, kernel: int = 3) -> int:
    r"""The same for plain layers of which each carries $k_0+Lk$ channels on:
    $k_0(Cs^2+2)+(L-1)C(Cs^2+2)$ with $C=k_0+Lk$.

    What a dense block keeps by concatenation a plain one has to compute again in every layer.
    For many layers the dense block has about $1/(2L)$ of its parameters.

    >>> plain_block_parameters(4, 3, 2)      # 4 to 10, 10 to 10, 10 to 10 channels
    2208
    """
    _check(channels, layers, growth, kernel)
    out = channels + layers * growth
    return (channels + (layers - 1) * out) * (out * kernel**2 + 2)


def _check(channels: int, layers: int, growth: int, kernel: int) -> None:
    for name, value in (("channels", channels), ("layers", layers), ("growth", growth)):
        whole_number(value, name, least=1)
    whole_number(kernel, "kernel", least=1)
    if kernel % 2 == 0:
        raise ShapeMismatch(
            f"filters of side {kernel} do not keep the image's size: give an odd one"
        )
