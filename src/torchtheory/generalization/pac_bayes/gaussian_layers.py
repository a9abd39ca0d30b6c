r"""Layers whose weights are independent Gaussians, sampled where their noise arrives.

For one input :math:`x` and independent weights :math:`w_{ji}\sim N(\mu_{ji},s_{ji})` the sum
:math:`\sum_iw_{ji}x_i` is exactly :math:`N(\sum_i\mu_{ji}x_i,\sum_is_{ji}x_i^2)`, independently
over :math:`j`: drawing that *local* noise instead of the weights gives every row of a batch its own
weights for the price of a second product (Kingma, Salimans and Welling, 2015).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: Layers with a local form. In a convolution one filter serves all positions of an input, so that
#: independent noise at the positions has the right variances but not the right correlations.
CONVOLUTIONS: dict[type[nn.Module], Any] = {
    nn.Conv1d: F.conv1d,
    nn.Conv2d: F.conv2d,
    nn.Conv3d: F.conv3d,
}


class GaussianLayer(nn.Module):
    r"""A dense or convolutional layer with local noise.

    It has no attribute ``weight``: a model that reads its layers' weights past ``forward`` fails
    here and is given drawn weights instead.

    Args:
        layer: the ``nn.Linear`` or ``nn.Conv*d`` it stands for.
        means, log_variances: of the weight and, if there is one, the bias.
        generator: where the noise comes from.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> mean, spread = [torch.tensor([[3.0, 4.0]])], [torch.zeros(1, 2)]
    >>> noisy = GaussianLayer(layer, mean, spread, torch.Generator())
    >>> [t.item() for t in noisy.law(torch.tensor([[1.0, 2.0]]))]     # mean, variance
    [11.0, 5.0]
    """

    def __init__(
        self,
        layer: nn.Module,
        means: list[Tensor],
        log_variances: list[Tensor],
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.dense = isinstance(layer, nn.Linear)
        self.means, self.log_variances = means, log_variances  # lists: owned by the network
        self.generator = generator
        self.calls: list[torch.Size] | None = None  # shapes of inputs, while someone watches
        self.last: tuple[Tensor, Tensor, Tensor] | None = None
        if not self.dense:
            self.convolution = CONVOLUTIONS[type(layer)]
            self.settings = {
                name: getattr(layer, name) for name in ("stride", "padding", "dilation", "groups")
            }

    def law(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the layer's output at each input."""
        mean = self._apply_to(x, self.means)
        return mean, self._apply_to(x * x, [v.exp() for v in self.log_variances])

    def forward(self, x: Tensor) -> Tensor:
        """One draw of the output, independent over the rows."""
        if self.calls is not None:
            self.calls.append(x.shape)
        mean, variance = self.law(x)
        noise = torch.randn(
            mean.shape, generator=self.generator, dtype=mean.dtype, device=self.generator.device
        )
        # the root has no slope at 0, where an input is zero and there is no bias
        drawn = mean + (variance + 1e-20).sqrt() * noise.to(mean.device)
        self.last = (mean, variance, drawn)
        return drawn

    def _apply_to(self, x: Tensor, tensors: list[Tensor]) -> Tensor:
        bias = tensors[1] if len(tensors) == 2 else None
        if self.dense:
            return F.linear(x, tensors[0], bias)
        result: Tensor = self.convolution(x, tensors[0], bias, **self.settings)
        return result


def has_local_form(layer: nn.Module) -> bool:
    """Whether a layer is one :class:`GaussianLayer` can stand for (subclasses are not)."""
    if type(layer) is nn.Linear:
        return True
    return type(layer) in CONVOLUTIONS and getattr(layer, "padding_mode", "") == "zeros"
