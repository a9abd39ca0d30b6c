r"""Gaussian priors $P=N(\theta_0,\lambda I)$, and how their scale may be chosen.

A scale picked after the samples were seen is paid for by a union bound over a grid that was fixed
before (Dziugaite and Roy, 2017): the scales $\lambda_j=ce^{-j/b}$, $j=1,2,\dots$,
share the failure probability as $\delta_j=6\delta/(\pi^2j^2)$. Here every parameter tensor
has a scale of its own on its own grid; their costs add up.
Source: Foundations of Deep Learning, section 9.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchtheory.core.checks import described
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.generalization.pac_bayes.divergences import gaussian_kl
from torchtheory.generalization.pac_bayes.stochastic_network import StochasticNetwork
from torchtheory.models.model import Parameters


@dataclass(frozen=True, slots=True)
class ScaleGrid:
    r"""The variances $\lambda_j=ce^{-j/b}$ a prior may choose from, $j\ge1$.

    Attributes:
        largest: $c$.
        precision: $b$, points per factor $e$.

    >>> grid = ScaleGrid(largest=0.1, precision=100)
    >>> round(grid.variance(100), 6), round(grid.cost(100), 3)
    (0.036788, 9.708)
    """

    largest: float = 1.0
    precision: float = 100.0

    def __post_init__(self) -> None:
        if not (0 < self.largest < math.inf and 0 < self.precision < math.inf):
            raise InvalidInput(
                "a grid of scales needs a positive largest variance and precision (largest = "
                f"{self.largest!r}, precision = {self.precision!r})"
            )

    @classmethod
    def for_size(cls, count: int) -> ScaleGrid:
        r"""A grid fine enough for `count` weights: $b=\sqrt D/4$.

        Being half a step off the best scale costs $D/(16b^2)$, here one nat.
        """
        return cls(precision=max(1.0, math.sqrt(count) / 4))

    def variance(self, j: int) -> float:
        r"""$\lambda_j$."""
        return self.largest * math.exp(-j / self.precision)

    def cost(self, j: int) -> float:
        r"""What choosing $\lambda_j$ adds to the divergence: $\ln(\pi^2j^2/6)$."""
        return math.log(math.pi**2 * j**2 / 6)

    def nearest(self, variance: float) -> list[int]:
        """The indices around a variance."""
        j = math.floor(self.precision * math.log(self.largest / variance))
        return sorted({max(1, j), max(1, j + 1)})


@dataclass(frozen=True, slots=True)
class PriorChoice:
    """A prior with its scales settled, and what that costs.

    Attributes:
        kl: KL(Q‖P), computed in double precision.
        cost: what the choice of scales adds to it (0 when they were fixed beforehand).
        variances: by the parameter's name.
        indices: place of each on its grid; empty when they were fixed.
    """

    kl: float
    cost: float
    variances: dict[str, float]
    indices: dict[str, int]


@dataclass(slots=True)
class Moments:
    """What a divergence needs of one parameter tensor, and its gradient is made of.

    Attributes:
        mean, log_variance: of the posterior.
        shift: the mean's distance from the prior's.
        variance: the posterior's.
        total: sum of the variances.
        logarithms: sum of their logarithms.
        scale: the prior's variance.
    """

    mean: Tensor
    log_variance: Tensor
    shift: Tensor
    variance: Tensor
    total: float = 0.0
    logarithms: float = 0.0
    scale: float = math.nan


@dataclass(frozen=True, slots=True)
class DivergenceParts:
    """A divergence, and what its gradient is made of until the weights change.

    Attributes:
        kl: KL(Q‖P).
        parts: by the parameter's name.
    """

    kl: float
    parts: dict[str, Moments]

    @torch.no_grad()
    def add_gradient(self, factor: float) -> None:
        r"""Add `factor` times the gradient to `.grad` of means and log-variances.

        $(\theta-\theta_0)/\lambda$ and $\frac12(s/\lambda-1)$; a scale at its best
        value contributes nothing. Frozen tensors are passed over.
        """
        for m in self.parts.values():
            if m.mean.requires_grad:
                _gradient(m.mean).add_(m.shift, alpha=factor / m.scale)
            if m.log_variance.requires_grad:
                half = factor / 2
                _gradient(m.log_variance).add_(m.variance, alpha=half / m.scale).sub_(half)

    @torch.no_grad()
    def make_natural(self, factor: float) -> None:
        """Multiply the means' gradients by the variances, and by `factor`."""
        for m in self.parts.values():
            if m.mean.requires_grad:
                _gradient(m.mean).mul_(m.variance).mul_(factor)


def _gradient(tensor: Tensor) -> Tensor:
    if tensor.grad is None:
        tensor.grad = torch.zeros_like(tensor)
    return tensor.grad


class GaussianPrior:
    r"""$N(\theta_0,\operatorname{diag}\lambda)$ with one variance per parameter tensor.

    Args:
        center: $\theta_0$ by the parameter's name.
        variances: fixed without looking at the samples of the bound; None to choose them from
            `ScaleGrid.for_size` after the fact, which `settle` charges for.

    >>> net = torch.nn.Linear(3, 1)
    >>> network = StochasticNetwork(net, spread=0.1)
    >>> prior = GaussianPrior(dict(network.means), {"weight": 0.01, "bias": 0.01})
    >>> round(prior.settle(network).kl, 6)
    0.0
    """

    def __init__(self, center: Parameters, variances: dict[str, float] | None = None) -> None:
        self.center = {k: v.detach().clone() for k, v in center.items()}
        self.variances = variances
        self._moments: dict[str, Moments] = {}
        self.grids = {k: ScaleGrid.for_size(v.numel()) for k, v in self.center.items()}
        if variances is not None:
            if variances.keys() != self.center.keys():
                raise ShapeMismatch(
                    "there must be one prior variance for every parameter tensor, "
                    f"{described(list(self.center))}, not for {described(list(variances))}"
                )
            if not all(0 < v < math.inf for v in variances.values()):
                raise InvalidInput(
                    "prior variances must be positive numbers, not "
                    f"{described(list(variances.values()))}"
                )

    def __getstate__(self) -> dict[str, Any]:
        # without the tensors to compute in, which refer to one network
        return {**self.__dict__, "_moments": {}}

    def divergence(self, network: StochasticNetwork) -> Tensor:
        r"""KL(Q‖P), differentiable, in the network's precision.

        Scales that are not fixed take their best value
        $\lambda= (\sum_is_i+\|\theta-\theta_0\|^2)/D$, between the points of the grid.
        """
        total = torch.zeros(()).to(network.means[network.names[0]])
        for name, mean in network.means.items():
            variance, center = network.log_variances[name].exp(), self.center[name]
            if self.variances is None:
                scale = (variance.sum() + (mean - center).square().sum()) / mean.numel()
            else:
                scale = torch.full_like(total, self.variances[name])
            total = total + gaussian_kl(mean, variance, center, scale)
        return total

    @torch.no_grad()
    def divergence_parts(
        self, network: StochasticNetwork, *, same_variances: bool = False
    ) -> DivergenceParts:
        """The same number with its gradient in closed form, in a few passes over the weights.

        It is computed in tensors that the next call uses again.

        Args:
            same_variances: the network's are those of the last call, and not computed anew.
        """
        kl = 0.0
        means, logarithms = network.means, network.log_variances
        parts = {name: self._scratch(name, means[name], logarithms[name]) for name in means}
        for name, m in parts.items():
            count = m.mean.numel()
            torch.sub(m.mean, self.center[name], out=m.shift)
            flat = m.shift.view(-1)
            if not (same_variances and m.total):
                torch.exp(m.log_variance, out=m.variance)
                sums = torch.stack([m.variance.sum(), m.log_variance.sum()])
                m.total, m.logarithms = sums.tolist()
            moment = float(torch.dot(flat, flat)) + m.total
            m.scale = moment / count if self.variances is None else self.variances[name]
            kl += 0.5 * (moment / m.scale - count + count * math.log(m.scale) - m.logarithms)
        return DivergenceParts(kl, parts)

    def _scratch(self, name: str, mean: Tensor, log_variance: Tensor) -> Moments:
        """Tensors to compute in: fresh memory every step would cost more than the step."""
        found = self._moments.get(name)
        if found is None or found.log_variance is not log_variance or found.mean is not mean:
            shift, variance = (
                torch.empty_like(mean, memory_format=torch.contiguous_format) for _ in range(2)
            )
            found = self._moments[name] = Moments(mean, log_variance, shift, variance)
        return found

    @torch.no_grad()
    def settle(self, network: StochasticNetwork) -> PriorChoice:
        """The divergence and its cost at scales on the grid, in double precision."""
        kl, cost = 0.0, 0.0
        chosen: dict[str, float] = {}
        indices: dict[str, int] = {}
        for name, mean in network.means.items():
            moments = (
                mean.detach().double(),
                network.log_variances[name].detach().double().exp(),
                self.center[name].double(),
            )
            if self.variances is not None:
                chosen[name] = self.variances[name]
                kl += float(gaussian_kl(*moments, chosen[name]))
                continue
            grid = self.grids[name]
            best = float((moments[0] - moments[2]).square().sum() + moments[1].sum())
            options = [
                (float(gaussian_kl(*moments, grid.variance(j))), grid.cost(j), j)
                for j in grid.nearest(best / mean.numel())
            ]
            own, charge, j = min(options, key=lambda o: o[0] + o[1])
            kl, cost = kl + own, cost + charge
            chosen[name], indices[name] = grid.variance(j), j
        return PriorChoice(kl, cost, chosen, indices)
