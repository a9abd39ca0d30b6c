r"""The best uniform fit of a linear family: how far a target stays from everything it can say.

$\min_c\max_i|y_i-\sum_jc_j\phi_j(x_i)|$ is a linear program. Where its value does not fall,
no choice of output weights helps. Source: Foundations of Deep Learning, sections 3.1, 3.4 and 3.5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from torchtheory.core.checks import as_points, as_targets, positive_number, whole_number
from torchtheory.core.errors import NotConverged
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.nets.activations.table import as_layer
from torchtheory.neurons.regression import least_squares


@dataclass(frozen=True, slots=True)
class UniformFit:
    """The best uniform fit.

    Attributes:
        coefficients: `[p]`.
        error: the largest difference left, the least possible.
    """

    coefficients: Tensor
    error: float


def best_uniform_fit(features: Tensor, target: Tensor) -> UniformFit:
    r"""Minimize $\max_i|y_i-(\Phi c)_i|$ by a linear program.

    Args:
        features: $\Phi$, `[n, p]`.
        target: `[n]`.

    >>> x = torch.cos(torch.arange(13) * torch.pi / 12).double()
    >>> quadratics = torch.stack([x**0, x, x**2], dim=1)
    >>> round(best_uniform_fit(quadratics, x**3).error, 9)        # Chebyshev: 2 ** -2
    0.25
    """
    phi = as_points(features, "features")
    y = as_targets(target, phi, "target")
    # orthonormal columns: the program is solved to an absolute tolerance, and near-copies among
    # the features would otherwise let huge coefficients cheat it
    u, sigma, vh = torch.linalg.svd(phi.cpu().double(), full_matrices=False)
    rank = int((sigma > max(phi.shape) * torch.finfo(phi.dtype).eps * sigma[0]).sum())
    a = (u[:, :rank] * len(phi) ** 0.5).numpy()
    b = y.cpu().double().numpy()
    n, p = a.shape
    ones = np.ones((n, 1))
    found = linprog(
        np.append(np.zeros(p), 1.0),
        A_ub=np.block([[a, -ones], [-a, -ones]]),
        b_ub=np.concatenate([b, -b]),
        bounds=[(None, None)] * p + [(0, None)],
        method="highs",
    )
    if found.status != 0:
        raise NotConverged(f"the linear program was not solved: {found.message}")
    inner = torch.from_numpy(found.x[:p]) * len(phi) ** 0.5 / sigma[:rank]
    return UniformFit((vh[:rank].T @ inner).to(phi), float(found.fun))


def random_units(
    activation: str | Callable[[Tensor], Tensor],
    units: int,
    x: Tensor,
    *,
    steepness: float = 6.0,
    generator: RandomSource = None,
) -> Tensor:
    r"""Features $\sigma(a_j(x-c_j))$ of random units on [-1, 1], `[n, units]`.

    $|a_j|$ is uniform up to `steepness` with a random sign, $c_j$ uniform on
    [-1, 1]. The first units of a longer draw from the same seed are those of a shorter one.

    >>> random_units("tanh", 3, torch.zeros(5), generator=0).shape
    torch.Size([5, 3])
    """
    whole_number(units, "units", least=1)
    positive_number(steepness, "steepness")
    draws = torch.rand(units, 2, dtype=torch.float64, generator=as_generator(generator))
    slope, center = (2 * draws - 1).to(x).unbind(1)
    made: Tensor = as_layer(activation)(steepness * slope * (x.unsqueeze(1) - center))
    return made


def span_error(features: Tensor, target: Tensor) -> float:
    """The sup error on the points of the least squares fit, with a constant besides the features.

    >>> x = torch.linspace(-1, 1, 9).double()
    >>> span_error(x.unsqueeze(1), 3 * x + 1) < 1e-12
    True
    """
    phi = as_points(features, "features")
    phi = torch.cat([phi / phi.abs().amax(0).clamp(min=1e-300), torch.ones_like(phi[:, :1])], 1)
    y = as_targets(target, phi, "target")
    fitted = least_squares(phi, y)
    return float((phi @ fitted.weight - y).abs().max())
