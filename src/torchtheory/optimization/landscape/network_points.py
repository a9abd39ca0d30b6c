r"""What kind of point a network's weights are, from products with its Hessian alone.

For functions of some hundred variables `critical_points` takes the
dense Hessian. Here the two ends of the spectrum come from Lanczos, with an error bar, and the index
(the share of negative eigenvalues) from stochastic quadrature, with a standard error. Source:
Foundations of Deep Learning, section 5.1; Mathematical Aspects of Deep Learning, section 1.5.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.errors import InvalidInput
from torchtheory.core.estimate import Estimate
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.linalg.density import spectral_density
from torchtheory.linalg.eigenvalues import top_eigenpairs
from torchtheory.linalg.operators import LinearOperator
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.optimization.curvature.operators import gradient, hessian_operator
from torchtheory.optimization.landscape.critical_points import Kind, classify


@dataclass(frozen=True, slots=True)
class NetworkPoint:
    r"""A point of the loss of a network.

    Attributes:
        kind: what it is, see `classify_network`.
        loss: the mean loss there.
        gradient_norm: $\|\nabla L\|$.
        gain: $\|\nabla L\|^2/(2\lambda)$ with the largest $|\lambda|$: what one step of
            gradient descent can lower the loss by, to second order.
        smallest, largest: the ends of the Hessian's spectrum.
        residual: an eigenvalue lies within this of each.
        index: share of eigenvalues below `-flat`, over random probes.
        zeros: share of eigenvalues within `flat` of 0: what the index leaves open.
        flat: up to which size an eigenvalue counts as 0.
        direction: `[p]`, the unit eigenvector of the smallest eigenvalue where that is negative
            beyond `flat`: the loss falls along it on both sides.
    """

    kind: Kind
    loss: float
    gradient_norm: float
    gain: float
    smallest: float
    largest: float
    residual: float
    index: Estimate
    zeros: Estimate
    flat: float
    direction: Tensor | None


def classify_network(
    problem: Problem,
    samples: Samples | None = None,
    *,
    tolerance: float = 1e-3,
    probes: int = 6,
    steps: int = 50,
    generator: RandomSource = None,
) -> NetworkPoint:
    r"""Classify the weights of a network as a point of its loss.

    It counts as stationary where one step of gradient descent can gain at most `tolerance` of
    the loss; an eigenvalue as 0 up to `tolerance` times the largest. Both signs make a saddle,
    one sign a minimum or maximum; networks with more parameters than samples, or with symmetries,
    have eigenvalues 0 and are degenerate where no eigenvalue is negative.

    Args:
        problem: model, loss and data; `problem.at(parameters)` for other weights.
        samples: of the loss; the training data unless given.
        tolerance: see above.
        probes: random vectors for the index; its standard error falls like one over their root.
        steps: products with the Hessian for each of them.
        generator: seed or generator of start vectors and probes.

    The standard errors are those of the probes, and of what `steps` products do not resolve at the
    border between the index and the zeros (see `SpectralDensity.share_between`). Where
    `probes * steps` products make the whole matrix, index and zeros are exact, with error 0.

    Costs about `probes * steps` products with the Hessian, each about ten forward passes.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    >>> for p in net.parameters():
    ...     _ = nn.init.zeros_(p)
    >>> one = torch.ones(1, 1).double()
    >>> found = classify_network(Problem(net, (one, one), task="regression"))    # (1 - ab)²
    >>> found.kind, round(found.smallest, 6), found.index.value
    ('saddle', -2.0, 0.5)
    """
    if not 0 <= tolerance < 1:
        raise InvalidInput(f"the tolerance is a share from 0 to below 1, not {tolerance!r}")
    samples = problem.train if samples is None else samples
    generator = as_generator(generator)
    hessian = hessian_operator(problem, samples)
    ends = top_eigenpairs(
        hessian, min(2, hessian.shape[0]), which="both", tolerance=1e-4, generator=generator
    )
    largest, smallest = float(ends.values[0]), float(ends.values[-1])
    residual = float(ends.residuals.max())
    scale = max(abs(largest), abs(smallest))
    flat = max(tolerance * scale, residual)
    slope, loss = float(gradient(problem, samples).norm()), problem.risk(samples)
    gain = slope**2 / (2 * scale) if scale > 0 else (math.inf if slope > 0 else 0.0)
    stationary = gain <= tolerance * abs(loss)
    index, zeros = _shares(hessian, flat, probes, steps, generator)
    return NetworkPoint(
        kind=classify(smallest, largest, flat) if stationary else "not stationary",
        loss=loss,
        gradient_norm=slope,
        gain=gain,
        smallest=smallest,
        largest=largest,
        residual=residual,
        index=index,
        zeros=zeros,
        flat=flat,
        direction=ends.vectors[:, -1] if smallest < -flat else None,
    )


def _shares(
    hessian: LinearOperator, flat: float, probes: int, steps: int, generator: torch.Generator
) -> tuple[Estimate, Estimate]:
    """The shares of negative eigenvalues and of those that count as 0."""
    size = hessian.shape[0]
    if size <= probes * steps:
        dense = hessian.to_dense()
        eigenvalues = torch.linalg.eigvalsh((dense + dense.T) / 2)
        index, zeros = (
            Estimate(float(share.double().mean()), 0.0, size)
            for share in (eigenvalues < -flat, eigenvalues.abs() <= flat)
        )
        return index, zeros
    found = spectral_density(hessian, probes=probes, steps=steps, generator=generator)
    above = math.nextafter(flat, math.inf)  # `flat` itself counts as 0
    return found.share_between(-math.inf, -flat), found.share_between(-flat, above)
