r"""Layers whose weights are independent Gaussians, sampled where their noise arrives.

For one input $x$ and independent weights $w_{ji}\sim N(\mu_{ji},s_{ji})$ the sum
$\sum_iw_{ji}x_i$ is exactly $N(\sum_i\mu_{ji}x_i,\sum_is_{ji}x_i^2)$, independently
over $j$: drawing that *local* noise instead of the weights gives every row of a batch its own
weights for the price of a second product (Kingma, Salimans and Welling, 2015).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

#: Layers with a local form. In a convolution one filter serves all positions of an input, so that
#: independent noise at the positions has the right variances but not the right correlations.
CONVOLUTIONS: dict[type[nn.Module], Any] = {
    nn.Conv1d: F.conv1d,
    nn.Conv2d: F.conv2d,
    nn.Conv3d: F.conv3d,
}


class GaussianLayer(nn.Module):
    r"""A dense or convolutional layer with local noise.

    It has no attribute `weight`: a model that reads its layers' weights past `forward` fails
    here and is given drawn weights instead.

    Args:
        layer: the `nn.Linear` or `nn.Conv*d` it stands for.
        means, log_variances: of the weight and, if there is one, the bias.
        generator: where the noise comes from.
        names: what the network calls its weight and bias.

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
        names: list[str] | None = None,
    ) -> None:
        super().__init__()
        self.dense = isinstance(layer, nn.Linear)
        self.means, self.log_variances = means, log_variances  # lists: owned by the network
        self.generator, self.names = generator, names or ["weight", "bias"][: len(means)]
        self.variances: list[Tensor] | None = None  # e^{log_variances}, while someone holds them
        self.calls: list[torch.Size] | None = None  # shapes of inputs, while someone watches
        self.last: tuple[Tensor, Tensor, Tensor] | None = None
        if not self.dense:
            self.convolution = CONVOLUTIONS[type(layer)]
            self.settings = {
                name: getattr(layer, name) for name in ("stride", "padding", "dilation", "groups")
            }

    def __getstate__(self) -> dict[str, Any]:
        # what is held between two steps belongs to a graph, which cannot be copied
        return {**self.__dict__, "variances": None, "calls": None, "last": None}

    def law(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the layer's output at each input."""
        if self.dense:
            return self._dense_law(x)
        mean = self._convolve(x, self.means)
        return mean, self._convolve(x * x, [v.exp() for v in self.log_variances])

    def forward(self, x: Tensor) -> Tensor:
        """One draw of the output, independent over the rows."""
        if self.calls is not None:
            self.calls.append(x.shape)
        mean, variance = self.law(x)
        noise = torch.randn(
            mean.shape, generator=self.generator, dtype=mean.dtype, device=self.generator.device
        )
        drawn: Tensor = _Normal.apply(  # type: ignore[no-untyped-call]
            mean, variance, noise.to(mean.device)
        )
        self.last = (mean, variance, drawn)
        return drawn

    def _dense_law(self, x: Tensor) -> tuple[Tensor, Tensor]:
        held = self.variances
        if held is None:
            held = [v.detach().exp() for v in self.log_variances]
        tensors = [*self.means, *self.log_variances, *held]
        law: tuple[Tensor, Tensor] = _DenseLaw.apply(x, *tensors)  # type: ignore[no-untyped-call]
        return law

    def _convolve(self, x: Tensor, tensors: list[Tensor]) -> Tensor:
        bias = tensors[1] if len(tensors) == 2 else None
        result: Tensor = self.convolution(x, tensors[0], bias, **self.settings)
        return result


class _DenseLaw(torch.autograd.Function):
    r"""The two products $x\mu^\top$ and $x^2s^\top$, each with its bias.

    Arguments: the input, the means, the logarithms $\rho$ of the variances and
    $s=e^\rho$ itself, for the weight and, if there is one, the bias. With $g$ and
    $h$ the gradients of mean and variance, those of $\mu,\rho,x$ are
    $g^\top x$, $s\odot h^\top x^2$ and $g\mu+2x\odot hs$; what nobody asked
    for is not computed.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        count = len(tensors) // 3
        means, variances = tensors[:count], tensors[2 * count :]
        squares = x * x
        ctx.save_for_backward(x, squares, means[0], *variances)
        ctx.count = count
        return F.linear(x, *means), F.linear(squares, *variances)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, squares, weight, *variances = ctx.saved_tensors
        count = ctx.count
        wanted = ctx.needs_input_grad
        g, h = (t.reshape(-1, t.shape[-1]) for t in gradients)
        by_input = None
        if wanted[0]:
            by_input = (h @ variances[0]).mul_(x.reshape(-1, x.shape[-1])).mul_(2).addmm_(g, weight)
            by_input = by_input.reshape(x.shape)
        by: list[Tensor | None] = [None] * (2 * count)
        for k, (gradient, inputs) in enumerate(((g, x), (h, squares))):
            if wanted[1 + k * count]:
                by[k * count] = gradient.T @ inputs.reshape(-1, x.shape[-1])
            if count == 2 and wanted[2 + k * count]:
                by[k * count + 1] = gradient.sum(0)
        for tensor, variance in zip(by[count:], variances, strict=True):
            if tensor is not None:
                tensor.mul_(variance)
        return by_input, *by, *[None] * count


class _Normal(torch.autograd.Function):
    r"""$m+\sqrt v\,\xi$; the derivative in $v$ is $\xi/(2\sqrt v)$."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
        # the root has no slope at 0, where an input is zero and there is no bias
        spread = (variance + 1e-20).sqrt_()
        drawn = torch.addcmul(mean, spread, noise)
        ctx.save_for_backward(noise.div_(spread).div_(2))
        return drawn

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (slope,) = ctx.saved_tensors
        (g,) = gradients
        return g, g * slope, None


def has_local_form(layer: nn.Module) -> bool:
    """Whether a layer is one `GaussianLayer` can stand for (subclasses are not)."""
    if type(layer) is nn.Linear:
        return True
    return type(layer) in CONVOLUTIONS and getattr(layer, "padding_mode", "") == "zeros"
