r"""Functions known by their frequencies, and how to draw frequencies from them.

A function with an integrable spectrum is a mixture of plane waves,

$$
f(x)=\int\cos(\omega^\top x+\varphi(\omega))\,|F|(d\omega),\qquad
C_f=\int|\omega|\,|F|(d\omega),
$$

with a positive measure $|F|$, the magnitudes, and phases $\varphi$. Barron's constant
$C_f$ is its first moment. Frequencies are angular here, as in Barron's paper and in the
slides; with $e^{2\pi i\omega^\top x}$, as in the lectures, the constant is
$C_f/2\pi$. Sources: Foundations of Deep Learning, section 4.1; Mathematical Foundations of
Deep Learning (slides), "Barron's Theorem".
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from scipy import special
from torch import Tensor

from torchtheory.core.checks import all_finite, described, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import gaussian


class Spectrum(ABC):
    r"""A function $f(x)=\int\cos(\omega^\top x+\varphi)\,|F|(d\omega)$.

    Attributes:
        dimension: $d$, of the inputs.
        mass: $|F|(\mathbb R^d)$.
        barron_constant: $C_f=\int|\omega|\,|F|(d\omega)$, angular frequencies.
    """

    dimension: int
    mass: float
    barron_constant: float

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """The function itself at the rows of `x[n, d]`."""

    @abstractmethod
    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        r"""Frequencies `[n, d]` from $|\omega|\,|F|(d\omega)/C_f$, and their phases."""

    @abstractmethod
    def draw_plain(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        r"""Frequencies `[n, d]` from $|F|/|F|(\mathbb R^d)$, and their phases."""

    def at_origin(self) -> float:
        """$f(0)$."""
        return float(self(torch.zeros(1, self.dimension, dtype=torch.float64)))

    def _points(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor) or x.ndim != 2 or x.shape[1] != self.dimension:
            shape = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ShapeMismatch(f"the points must be [n, {self.dimension}], not {shape}")
        return x


class PlaneWaves(Spectrum):
    r"""A finite sum of plane waves, $f(x)=\sum_jc_j\cos(a_j^\top x+\varphi_j)$.

    $C_f=\sum_j|c_j||a_j|$ where the $\pm a_j$ differ; with repeated frequencies it is
    the constant of this way of writing the function, an upper bound.

    Args:
        amplitudes: $c$, `[m]`.
        frequencies: $a$, `[m, d]`.
        phases: $\varphi$, `[m]`; zeros unless told.

    >>> a = torch.tensor([[3.0, 4.0], [0.0, 1.0]], dtype=torch.float64)
    >>> f = PlaneWaves(torch.tensor([2.0, -1.0], dtype=torch.float64), a)
    >>> f.barron_constant, f.mass, f.at_origin()
    (11.0, 3.0, 1.0)
    """

    def __init__(
        self, amplitudes: Tensor, frequencies: Tensor, phases: Tensor | None = None
    ) -> None:
        if amplitudes.ndim != 1 or frequencies.ndim != 2 or len(frequencies) != len(amplitudes):
            raise ShapeMismatch(
                "amplitudes are [m] and frequencies [m, d], not "
                f"{list(amplitudes.shape)} and {list(frequencies.shape)}"
            )
        phases = torch.zeros_like(amplitudes) if phases is None else phases
        if phases.shape != amplitudes.shape:
            raise ShapeMismatch(f"as many phases as amplitudes, not {list(phases.shape)}")
        for tensor in (amplitudes, frequencies, phases):
            all_finite(tensor, "amplitudes, frequencies and phases")
        # a negative amplitude is half a turn of the phase
        self.amplitudes = amplitudes.abs()
        self.phases = phases + math.pi * (amplitudes < 0).to(phases)
        self.frequencies = frequencies
        self.dimension = frequencies.shape[1]
        self.mass = float(self.amplitudes.sum())
        self.barron_constant = float(self.amplitudes @ frequencies.norm(dim=1))
        if self.barron_constant <= 0:
            raise InvalidInput("a sum of waves needs one that is not constant")

    def __call__(self, x: Tensor) -> Tensor:
        angles = self._points(x) @ self.frequencies.T + self.phases
        return angles.cos() @ self.amplitudes

    def __mul__(self, other: PlaneWaves) -> PlaneWaves:
        r"""The product, $\cos A\cos B=\tfrac12\cos(A+B)+\tfrac12\cos(A-B)$.

        >>> w = PlaneWaves(torch.ones(1), torch.tensor([[3.0]]))
        >>> (w * w).barron_constant                     # 1/2 + cos(6x)/2
        3.0
        """
        if other.dimension != self.dimension:
            raise ShapeMismatch(
                f"the two factors take inputs of different dimensions: {self.dimension} and "
                f"{other.dimension}"
            )
        half = torch.outer(self.amplitudes, other.amplitudes).flatten() / 2
        parts = [
            (
                (self.frequencies[:, None] + s * other.frequencies).flatten(0, 1),
                (self.phases[:, None] + s * other.phases).flatten(),
            )
            for s in (1, -1)
        ]
        return PlaneWaves(
            half.repeat(2), torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
        )

    def __add__(self, other: PlaneWaves) -> PlaneWaves:
        if other.dimension != self.dimension:
            raise ShapeMismatch(
                f"the two terms take inputs of different dimensions: {self.dimension} and "
                f"{other.dimension}"
            )
        return PlaneWaves(
            torch.cat([self.amplitudes, other.amplitudes]),
            torch.cat([self.frequencies, other.frequencies]),
            torch.cat([self.phases, other.phases]),
        )

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return self.pick(self.amplitudes * self.frequencies.norm(dim=1), count, generator)

    def draw_plain(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return self.pick(self.amplitudes, count, generator)

    def pick(
        self, weights: Tensor, count: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Waves with probabilities proportional to `weights[m]`: frequencies and phases."""
        chosen = torch.multinomial(weights, count, replacement=True, generator=generator)
        return self.frequencies[chosen], self.phases[chosen]


class GaussianBump(Spectrum):
    r"""A bump $f(x)=h\,e^{-|x-c|^2/2s^2}$ in $d$ dimensions.

    Its magnitudes are $|h|$ times the density of $N(0,s^{-2}I)$ and its phases
    $-\omega^\top c$, so that

    $$
    C_f=\frac{|h|}s\,\frac{\sqrt2\,\Gamma(\frac{d+1}2)}{\Gamma(\frac d2)}
    \le\frac{|h|}s\sqrt d .
    $$

    With $h=(2\pi s^2)^{-d/2}$ it is a Gaussian density. Drawn by `draw`, the length
    of a frequency is $s^{-1}$ times a $\chi_{d+1}$ variable.

    >>> [round(GaussianBump(d).barron_constant, 6) for d in (1, 2, 3)]
    [0.797885, 1.253314, 1.595769]
    """

    def __init__(
        self,
        dimension: int,
        width: float = 1.0,
        *,
        center: Tensor | Sequence[float] | None = None,
        height: float = 1.0,
    ) -> None:
        self.dimension = whole_number(dimension, "dimension", least=1)
        self.width = positive_number(width, "width")
        if not (math.isfinite(height) and height != 0):
            raise InvalidInput(f"height must be a finite number other than 0, not {height!r}")
        self.height = height
        at = [0.0] * dimension if center is None else center
        self.center = torch.as_tensor(at, dtype=torch.float64)
        if self.center.shape != (dimension,) or not torch.isfinite(self.center).all():
            raise ShapeMismatch(f"the center must be {dimension} finite numbers")
        self.mass = abs(height)
        ratio = math.exp(special.gammaln((dimension + 1) / 2) - special.gammaln(dimension / 2))
        self.barron_constant = abs(height) / width * math.sqrt(2) * ratio

    def __call__(self, x: Tensor) -> Tensor:
        away = self._points(x) - self.center.to(x)
        return self.height * torch.exp(-away.square().sum(1) / (2 * self.width**2))

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        # the length of d + 1 normal coordinates, in the direction of d others
        z = gaussian(count, 2 * self.dimension + 1, generator=generator, dtype=torch.float64)
        length = z[:, self.dimension :].norm(dim=1, keepdim=True) / self.width
        direction = z[:, : self.dimension]
        return self._with_phases(length * direction / direction.norm(dim=1, keepdim=True))

    def draw_plain(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        z = gaussian(count, self.dimension, generator=generator, dtype=torch.float64)
        return self._with_phases(z / self.width)

    def _with_phases(self, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        turn = math.pi if self.height < 0 else 0.0
        return frequencies, turn - frequencies @ self.center


class RidgeSpectrum(Spectrum):
    r"""A function of one direction, $f(x)=g(u^\top x)$; $C_f=|u|\,C_g$.

    Args:
        profile: $g$, of one variable.
        direction: $u$, `[d]`, not zero.

    >>> u = torch.tensor([0.0, 2.0], dtype=torch.float64)
    >>> round(RidgeSpectrum(GaussianBump(1), u).barron_constant, 6)
    1.595769
    """

    def __init__(self, profile: Spectrum, direction: Tensor) -> None:
        if profile.dimension != 1:
            raise ShapeMismatch(
                f"the profile of a ridge function takes one variable, not {profile.dimension}"
            )
        if direction.ndim != 1 or not torch.isfinite(direction).all() or not direction.any():
            raise InvalidInput(
                "the direction must be one vector of finite numbers, not all 0, not "
                f"{described(direction.tolist())}"
            )
        self.profile = profile
        self.direction = direction
        self.dimension = len(direction)
        self.mass = profile.mass
        self.barron_constant = float(direction.norm()) * profile.barron_constant

    def __call__(self, x: Tensor) -> Tensor:
        return self.profile((self._points(x) @ self.direction)[:, None])

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        frequencies, phases = self.profile.draw(count, generator)
        return frequencies * self.direction, phases

    def draw_plain(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        frequencies, phases = self.profile.draw_plain(count, generator)
        return frequencies * self.direction, phases
