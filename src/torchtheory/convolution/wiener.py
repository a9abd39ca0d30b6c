r"""The best affine denoiser: Wiener's filter, for a signal in white noise.

Of $y=x+\sigma z$ with $z$ standard normal, the affine map of least mean squared error is

$$
\hat x=\mu+\Sigma(\Sigma+\sigma^2I)^{-1}(y-\mu),\qquad
\mathbb E\|x-\hat x\|^2=\operatorname{tr}\big(\Sigma-\Sigma(\Sigma+\sigma^2I)^{-1}\Sigma\big)
$$

with mean $\mu$ and covariance $\Sigma$ of $x$. Of all circular convolutions the best one has
$\hat k=S/(S+\sigma^2)$ with the power spectrum $S$ of $x$; for stationary signals the two are one.
For normal $x$ no estimator at all is better, so what a network gains over it is gained from signals
that are not normal.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import as_batch, positive_number
from torchtheory.core.errors import EmptyData, ShapeMismatch


@dataclass(frozen=True, slots=True)
class WienerFilter:
    r"""The best affine denoiser of one law of signals and one level of noise.

    Attributes:
        mean: $\mu$, of the shape of a signal.
        gain: $\Sigma(\Sigma+\sigma^2I)^{-1}$, `[d, d]` for signals of d entries.
        error: $\frac1d\mathbb E\|x-\hat x\|^2$ for the law with this mean and covariance.
    """

    mean: Tensor
    gain: Tensor
    error: float

    def __call__(self, noisy: Tensor) -> Tensor:
        """Estimates of signals `[n, ...]`."""
        _refuse_other_shape(noisy, self.mean)
        return self.mean + ((noisy - self.mean).flatten(1) @ self.gain).view(noisy.shape)


@dataclass(frozen=True, slots=True)
class WienerConvolution:
    r"""The best circular convolution of one law of signals and one level of noise.

    Attributes:
        mean: of all entries of all signals.
        spectrum: $S/(S+\sigma^2)$, of the shape of a signal: what each frequency is multiplied by.
        error: mean squared error of an entry for the law with this mean and spectrum.
    """

    mean: float
    spectrum: Tensor
    error: float

    def __call__(self, noisy: Tensor) -> Tensor:
        """Estimates of signals `[n, ...]`."""
        _refuse_other_shape(noisy, self.spectrum)
        axes = tuple(range(1, noisy.ndim))
        spectrum = torch.fft.fftn(noisy - self.mean, dim=axes) * self.spectrum
        back: Tensor = torch.fft.ifftn(spectrum, dim=axes).real
        return self.mean + back


def wiener_convolution(clean: Tensor, noise: float) -> WienerConvolution:
    r"""The best circular convolution over all axes of the signals, from examples of them.

    Args:
        clean: examples of the signals `[n, ...]`.
        noise: $\sigma$, the standard deviation of the noise.

    Time $O(nd\log d)$ for d entries.

    >>> x = torch.randn(500, 16, generator=torch.Generator().manual_seed(0)).double()
    >>> round(wiener_convolution(x, 1.0).error, 1)         # white: nothing better than halving
    0.5
    """
    x = as_batch(clean, "clean").detach()
    noise = positive_number(noise, "noise")
    mean = float(x.mean())
    axes = tuple(range(1, x.ndim))
    power = torch.fft.fftn(x - mean, dim=axes).abs().square().mean(0) / x[0].numel()
    gains = power / (power + noise**2)
    return WienerConvolution(mean, gains, float((gains * noise**2).mean()))


def wiener_filter(clean: Tensor, noise: float) -> WienerFilter:
    r"""Wiener's filter with the mean and the covariance of examples.

    Args:
        clean: examples of the signals `[n, ...]`, at least two.
        noise: $\sigma$, the standard deviation of the noise.

    Time $O(nd^2+d^3)$ for d entries.

    >>> x = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)      # variance 1
    >>> found = wiener_filter(x, 1.0)
    >>> round(found.error, 6), found(torch.ones(1, 1).double()).round(decimals=6).tolist()
    (0.5, [[0.5]])
    """
    x = as_batch(clean, "clean").detach()
    if len(x) < 2:
        raise EmptyData("a covariance needs at least two examples")
    noise = positive_number(noise, "noise")
    mean = x.mean(0)
    flat = (x - mean).flatten(1)
    covariance = flat.T @ flat / len(x)
    values, vectors = torch.linalg.eigh(covariance)
    values = values.clamp_min(0)
    gains = values / (values + noise**2)
    error = float((values * noise**2 / (values + noise**2)).mean())
    return WienerFilter(mean, (vectors * gains) @ vectors.T, error)


def _refuse_other_shape(noisy: Tensor, like: Tensor) -> None:
    if noisy.shape[1:] != like.shape:
        raise ShapeMismatch(
            f"signals must be [n, {', '.join(map(str, like.shape))}], not {list(noisy.shape)}"
        )
