r"""Barron's theorem with two steps a draw, its exponentials, and functions that are mean steps.

With $f(x)=\int\cos(\omega^\top x+\vartheta(\omega))\,|F|(d\omega)$ (angular frequencies),
draw $\omega$ from $|\omega||F|/C_f$ and $u$ uniform on $[0,1]$, let
$e=\omega/|\omega|$ and, for a ball of radius $r$,

$$
\Gamma(x)=-\sin(ru|\omega|+\vartheta)\,1[e^\top x>ru]
+\sin(\vartheta-ru|\omega|)\,1[-e^\top x>ru] .
$$

Then $f(x)-f(0)=rC_f\,\mathbb E\,\Gamma(x)$ for $|x|\le r$, and $|\Gamma|\le1$:
$n$ draws err by at most $(rC_f)^2/n$ in the mean square. The two steps need weights of
their own; with one sign for both every $\Gamma$ would be odd. With frequencies in cycles,
$C_f=2\pi C_g$. Source: Mathematical Aspects of Deep Learning, section 1.4.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.approximation.barron.sampled_networks import OpenStep
from torchtheory.approximation.barron.spectra import Spectrum
from torchtheory.approximation.network_calculus import chain
from torchtheory.core.checks import all_finite, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator, rademacher
from torchtheory.nets.activations.table import as_layer


@dataclass(frozen=True, slots=True)
class StepPairs:
    r"""Pairs of steps $x\mapsto\alpha_i1[e_i^\top x>t_i]+\beta_i1[-e_i^\top x>t_i]$.

    Attributes:
        directions: $e$, unit vectors `[n, d]`.
        thresholds: $t$, `[n]`, from 0 to the radius.
        ahead, behind: $\alpha$ and $\beta$, `[n]`, at most $rC_f$ in size.
        at_origin: $f(0)$, which the mean of the pairs leaves out.
    """

    directions: Tensor
    thresholds: Tensor
    ahead: Tensor
    behind: Tensor
    at_origin: float = 0.0

    def __call__(self, x: Tensor) -> Tensor:
        """The values of the pairs at the points `x[m, d]`, `[m, n]`."""
        if x.ndim != 2 or x.shape[1] != self.directions.shape[1]:
            raise ShapeMismatch(
                f"the points must be [m, {self.directions.shape[1]}], not {list(x.shape)}"
            )
        z = x @ self.directions.T
        return (z > self.thresholds) * self.ahead + (-z > self.thresholds) * self.behind


def draw_step_pairs(
    target: Spectrum, count: int, radius: float = 1.0, generator: RandomSource = None
) -> StepPairs:
    r"""Independent pairs of steps, each with mean $f-f(0)$ on the ball of radius $r$.

    Cost: $O(nd)$.

    >>> from torchtheory.approximation.barron.spectra import GaussianBump
    >>> pairs = draw_step_pairs(GaussianBump(3), 100, generator=0)
    >>> bool((pairs.ahead.abs() <= GaussianBump(3).barron_constant).all())
    True
    """
    whole_number(count, "count", least=1)
    positive_number(radius, "radius")
    source = as_generator(generator)
    frequencies, phases = target.draw(count, source)
    lengths = frequencies.norm(dim=1)
    thresholds = radius * torch.rand(count, generator=source, dtype=phases.dtype)
    size = radius * target.barron_constant
    return StepPairs(
        frequencies / lengths[:, None],
        thresholds,
        -size * torch.sin(thresholds * lengths + phases),
        size * torch.sin(phases - thresholds * lengths),
        target.at_origin(),
    )


def step_pair_network(
    pairs: StepPairs,
    units: Literal["step", "sigmoid", "relu"] = "step",
    *,
    width: float = 1e-3,
) -> nn.Sequential:
    r"""The mean of $n$ pairs of steps, plus $f(0)$, as a network of one hidden layer.

    `"step"`: $2n$ units $1[z>0]$. `"sigmoid"`: $2n$ logistic units
    $\varrho(az-\sqrt a)$, $a=1/\delta$, which tend to the step at every $z$,
    also at 0. `"relu"`: $4n$ units, as
    $1[z>0]=\lim_{\delta\to0}\varrho_R(z/\delta)-\varrho_R(z/\delta-1)$.

    Args:
        pairs: from `draw_step_pairs`.
        units: of the hidden layer.
        width: $\delta$, over which a unit that is no step rises.

    >>> from torchtheory.approximation.barron.spectra import GaussianBump
    >>> pairs = draw_step_pairs(GaussianBump(2), 10)
    >>> [step_pair_network(pairs, u)[0].out_features for u in ("step", "sigmoid", "relu")]
    [20, 20, 40]
    """
    inner = torch.cat([pairs.directions, -pairs.directions])
    bias = -torch.cat([pairs.thresholds, pairs.thresholds])
    outer = torch.cat([pairs.ahead, pairs.behind]) / len(pairs.ahead)
    activation: nn.Module = OpenStep()
    if units != "step":
        positive_number(width, "width")
        inner, bias = inner / width, bias / width
    if units == "sigmoid":
        activation = as_layer("logistic")
        bias = bias - 1 / math.sqrt(width)
    elif units == "relu":
        activation = nn.ReLU()
        inner, bias, outer = (
            torch.cat([inner, inner]),
            torch.cat([bias, bias - 1]),
            torch.cat([outer, -outer]),
        )
    elif units != "step":
        raise InvalidInput(f"units are 'step', 'sigmoid' or 'relu', not {units!r}")
    return chain([(inner, bias), (outer[None], outer.new_tensor([pairs.at_origin]))], [activation])


@dataclass(frozen=True, slots=True)
class Exponentials:
    r"""A sum of complex exponentials, $x\mapsto c_0+\sum_jc_je^{i\omega_j^\top x}$.

    Attributes:
        coefficients: $c_1,\dots,c_n$, complex `[n]`.
        frequencies: $\omega$, angular, `[n, d]`.
        constant: $c_0$.
    """

    coefficients: Tensor
    frequencies: Tensor
    constant: complex

    def __call__(self, x: Tensor) -> Tensor:
        """Complex values at the points `x[m, d]`, `[m]`."""
        if x.ndim != 2 or x.shape[1] != self.frequencies.shape[1]:
            raise ShapeMismatch(
                f"the points must be [m, {self.frequencies.shape[1]}], not {list(x.shape)}"
            )
        return torch.exp(1j * (x @ self.frequencies.T)) @ self.coefficients + self.constant


def sampled_exponentials(
    target: Spectrum, terms: int, generator: RandomSource = None
) -> Exponentials:
    r"""The target as $n$ complex exponentials at frequencies drawn from $|\omega||F|$.

    $$
    f(0)+\frac{C_f}n\sum_je^{i\vartheta_j}\frac{e^{i\omega_j^\top x}-1}{|\omega_j|},
    \qquad\Big|\frac{e^{i\omega^\top x}-1}{|\omega|}\Big|\le|x| ,
    $$

    so that the mean squared error on the ball of radius $r$ is at most $(rC_f)^2/n$.
    Each frequency is turned around with its phase by a fair coin, which makes the mean real.

    >>> from torchtheory.approximation.barron.spectra import GaussianBump
    >>> made = sampled_exponentials(GaussianBump(2), 50)
    >>> abs(made(torch.zeros(1, 2).double()) - 1).max() < 1e-12           # exact at 0
    tensor(True)
    """
    whole_number(terms, "terms", least=1)
    source = as_generator(generator)
    frequencies, phases = target.draw(terms, source)
    turn = rademacher(terms, generator=source, dtype=phases.dtype)
    lengths = frequencies.norm(dim=1)
    coefficients = target.barron_constant / terms * torch.exp(1j * turn * phases) / lengths
    constant = target.at_origin() - complex(coefficients.sum())
    return Exponentials(coefficients, turn[:, None] * frequencies, constant)


@dataclass(frozen=True, slots=True)
class MeanOfSteps:
    r"""A generalized Barron function, $x\mapsto\mathbb E[A\,1[\langle\Xi,x\rangle>T]]$.

    A variable with values in an interval of length $\ell$ has a variance of at most
    $\ell^2/4$, so a mean of $n$ draws errs by at most $\ell^2/(4n)$ in the mean
    square, at every $x$: $1/(4n)$ without amplitudes ($A=1$), when all values lie
    in $[0,1]$. Signed amplitudes make these functions a vector space.

    Attributes:
        sampler: `sampler(n, generator)` gives directions `[n, d]`, thresholds `[n]` and
            amplitudes `[n]`, independent rows.
        lowest, highest: bounds of the amplitudes.

    >>> def ramp(n, g):                       # P(x > T) for T uniform on [0, 1]
    ...     return torch.ones(n, 1).double(), torch.rand(n, generator=g).double(), torch.ones(n)
    >>> net = MeanOfSteps(ramp).subsample(4000, generator=0)
    >>> bool((net(torch.tensor([[0.3]]).double()) - 0.3).abs() < 0.05)
    True
    """

    sampler: Callable[[int, torch.Generator], tuple[Tensor, Tensor, Tensor]]
    lowest: float = 1.0
    highest: float = 1.0

    def subsample(self, units: int, generator: RandomSource = None) -> nn.Sequential:
        """A network of `units` steps whose mean over draws is the function itself."""
        whole_number(units, "units", least=1)
        inner, thresholds, amplitudes = self.sampler(units, as_generator(generator))
        if inner.ndim != 2 or {len(inner), *thresholds.shape, *amplitudes.shape} != {units}:
            raise ShapeMismatch(
                f"the sampler must give {units} directions, thresholds and amplitudes, not "
                f"{list(inner.shape)}, {list(thresholds.shape)}, {list(amplitudes.shape)}"
            )
        outer = amplitudes.to(inner) / units
        all_finite(outer, "outer")
        all_finite(inner, "inner")
        if bool(((amplitudes < self.lowest) | (amplitudes > self.highest)).any()):
            raise InvalidInput(
                f"the sampler gave an amplitude outside of [{self.lowest}, {self.highest}]"
            )
        return chain(
            [(inner, -thresholds.to(inner)), (outer[None], outer.new_zeros(1))], [OpenStep()]
        )

    def error_bound(self, units: int) -> float:
        r"""The mean squared error of `subsample` at any point is at most this.

        >>> MeanOfSteps(lambda n, g: None).error_bound(25)            # 1 / (4 * 25)
        0.01
        """
        spread = max(0.0, self.highest) - min(0.0, self.lowest)
        return spread**2 / (4 * whole_number(units, "units", least=1))
