r"""What the theory says about a point, and about the whole landscape, of a deep linear network.

Sources: Mathematical Aspects of Deep Learning, Theorems 4.2-4.4 and the end of section 4.3.2;
Foundations of Deep Learning, Theorem 46.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput
from torchtheory.core.random import RandomSource
from torchtheory.linalg.operators import effective_tolerance
from torchtheory.optimization.landscape.critical_points import Label, landscape_probe
from torchtheory.optimization.linear_networks.deep import (
    check_layers,
    check_widths,
    deep_linear_function,
    deep_linear_optimum,
    flat_layers,
    layers_of,
    linear_layers,
)
from torchtheory.optimization.linear_networks.deep_factorization import product_of
from torchtheory.optimization.linear_networks.second_moments import Covariances

Guarantee = Literal["strict", "may be degenerate", "nothing"]


#: Of the ball that is searched around a point whose Hessian does not decide.
RADIUS = 0.3


@dataclass(frozen=True, slots=True)
class SaddleReport:
    r"""A point of a deep linear network next to Kawaguchi's theorem.

    Attributes:
        value: the risk.
        optimum: the least risk a network of these widths can have.
        gradient_norm: 0 at a critical point.
        middle_rank: rank of $W_{L-1}\cdots W_2$; the width of the hidden layer where
            there is only one, the empty product being the identity.
        narrowest: the narrowest hidden width, which bounds it.
        guarantee: what the theorem says of the point if it is a saddle: `strict` where the
            middle rank is the narrowest width, else `may be degenerate`, which decides nothing;
            `nothing` where the data do not meet its hypotheses.
        label: what the point is, from its Hessian and a search; see `landscape_probe`.
        smallest_eigenvalue: of the Hessian.
        downhill: layers' direction of descent: that of negative curvature, or towards the lower
            point a search has found; None where there is none.
    """

    value: float
    optimum: float
    gradient_norm: float
    middle_rank: int
    narrowest: int
    guarantee: Guarantee
    label: Label
    smallest_eigenvalue: float
    downhill: list[Tensor] | None


def deep_saddle_report(
    network: nn.Module | Sequence[Tensor],
    covariances: Covariances,
    *,
    generator: RandomSource = None,
) -> SaddleReport:
    r"""Put a point of a deep linear network next to what is known of such points.

    Kawaguchi's theorem: with $\Sigma_{xx}$ and $\Sigma_{xy}$ of full rank,
    $n_L\le n_0$ and distinct eigenvalues of $\Sigma$, a critical point is a global
    minimum or a saddle, and a saddle with
    $\operatorname{rank}(W_{L-1}\cdots W_2)= \min_{0<\ell<L}n_\ell$ has a Hessian with a negative
    eigenvalue. Saddles of two layers have one whenever $\Sigma_{xx}$ is invertible.
    `linear_landscape_certificate` says which hypothesis is missing.

    Args:
        network: dense layers without biases in a chain, or their weights, first layer first; at
            least two.
        covariances: of inputs and targets.
        generator: seed or generator of the search, in a ball of radius `RADIUS` where the Hessian
            does not decide.

    The Hessian is dense: $O(p^2)$ memory and $O(p^3)$ time for $p$ weights.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> report = deep_saddle_report([0 * one, 0 * one, 0 * one], Covariances(one, one, one))
    >>> report.label, report.guarantee, report.smallest_eigenvalue
    ('degenerate saddle', 'may be degenerate', 0.0)
    """
    layers = linear_layers(network) if isinstance(network, nn.Module) else list(network)
    if len(layers) < 2:
        raise InvalidInput(
            f"a network with at least one hidden layer is needed, not {len(layers)} layers"
        )
    check_layers(layers, covariances)
    widths = (layers[0].shape[1], *(len(layer) for layer in layers))
    optimum = deep_linear_optimum(covariances, widths).value
    theta = flat_layers(layers).detach()
    probe = landscape_probe(
        deep_linear_function(widths, covariances),
        theta,
        infimum=optimum,
        radius=RADIUS,
        generator=generator,
    )
    narrowest = min(widths[1:-1])
    middle = narrowest
    if len(layers) > 2:
        least = effective_tolerance(1e-9, theta.dtype)
        middle = int(torch.linalg.matrix_rank(product_of(layers[1:-1]), rtol=least))
    way = probe.direction if probe.lower is None else probe.lower - theta
    return SaddleReport(
        value=probe.value,
        optimum=optimum,
        gradient_norm=probe.gradient_norm,
        middle_rank=middle,
        narrowest=narrowest,
        guarantee=_guarantee(widths, covariances, middle == narrowest),
        label=probe.label,
        smallest_eigenvalue=float(probe.eigenvalues[0]),
        downhill=None if way is None else layers_of(way, widths),
    )


def _guarantee(widths: Sequence[int], covariances: Covariances, full: bool) -> Guarantee:
    applying = {t.name for t in linear_landscape_certificate(widths, covariances) if t.applies}
    if "Kawaguchi" in applying:
        return "strict" if full else "may be degenerate"
    return "strict" if len(widths) == 3 and covariances.invertible else "nothing"


@dataclass(frozen=True, slots=True)
class LandscapeTheorem:
    """A theorem on the landscape, held against one architecture and its data.

    Attributes:
        name: whose it is.
        promises: what it says where it applies.
        applies: whether its hypotheses are met.
        missing: the hypotheses that are not.
    """

    name: str
    promises: str
    applies: bool
    missing: tuple[str, ...]


def linear_landscape_certificate(
    widths: Sequence[int], covariances: Covariances
) -> list[LandscapeTheorem]:
    r"""Which theorems promise that a linear network has no spurious local minima.

    Args:
        widths: $(n_0,\dots,n_L)$.
        covariances: of inputs and targets.

    | theorem | hypotheses |
    |---|---|
    | two layers, classification (4.2) | $L=2$, $n_1\le\min(n_0,n_2)$,
      $\Sigma_{xx}$ invertible, eigenvalues of $\Sigma$ positive and distinct |
    | two layers, any data (4.3) | $L=2$ |
    | Kawaguchi (4.4) | $n_L\le n_0$, $\Sigma_{xx}$, $\Sigma_{xy}$ of full rank,
      eigenvalues of $\Sigma$ positive and distinct |
    | Lu and Kawaguchi | $\Sigma_{xx}$, $\Sigma_{xy}$ of full rank |
    | Laurent and von Brecht | $n_1,\dots,n_{L-1}\ge\min(n_0,n_L)$ |

    Ranks are numerical. That none applies does not mean that there is a bad minimum.

    >>> moments = Covariances(torch.eye(2), torch.diag(torch.tensor([2.0, 1.0])), 4 * torch.eye(2))
    >>> [t.name for t in linear_landscape_certificate((2, 1, 1, 2), moments) if t.applies]
    ['Kawaguchi', 'Lu and Kawaguchi']
    """
    check_widths(widths, covariances)
    if len(widths) < 3:
        raise InvalidInput(
            "without a hidden layer the risk is convex: no theorem is needed (widths = "
            f"{list(widths)})"
        )
    inputs, outputs, hidden = widths[0], widths[-1], widths[1:-1]
    two = {"two layers of weights": len(widths) == 3}
    full = {
        "Σxx invertible": covariances.invertible,
        "Σxy of full rank": int(torch.linalg.matrix_rank(covariances.yx)) == min(inputs, outputs),
    }
    spread = {"eigenvalues of Σ positive and distinct": covariances.distinct()}
    fits = {"no more outputs than inputs": outputs <= inputs}
    narrow = {"hidden width at most that of inputs and outputs": hidden[0] <= min(inputs, outputs)}
    wide = {
        "no hidden layer narrower than both inputs and outputs": min(hidden) >= min(inputs, outputs)
    }
    invertible = {"Σxx invertible": covariances.invertible}
    table: list[tuple[str, str, dict[str, bool]]] = [
        (
            "two layers, classification",
            "all critical points are listed; all but the global minima are strict saddles",
            two | narrow | invertible | spread,
        ),
        (
            "two layers, any data",
            "every local minimum is global"
            + ("; all other critical points are strict saddles" if covariances.invertible else ""),
            two,
        ),
        (
            "Kawaguchi",
            "every local minimum is global, every other critical point a saddle; strict where the "
            "middle product has the rank of the narrowest hidden layer",
            full | spread | fits,
        ),
        ("Lu and Kawaguchi", "every local minimum is global", full),
        ("Laurent and von Brecht", "every local minimum is global", wide),
    ]
    return [
        LandscapeTheorem(
            name, promises, all(needs.values()), tuple(n for n, met in needs.items() if not met)
        )
        for name, promises, needs in table
    ]
