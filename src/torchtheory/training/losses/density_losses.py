r"""Losses whose risk is least at the density the data came from.

A density $f$ with respect to a measure $\mu$ is judged at data $z$ of density
$p$ either by $-2f(z)+\|f\|^2_{L^2(\mu)}$, with the risk
$\|f-p\|^2_{L^2(\mu)}-\|p\|^2_{L^2(\mu)}$, or by its surprisal $-\log f(z)$, with the
risk $\mathrm{KL}(p\|f)+H(p)$. Source: Mathematical Aspects of Deep Learning, Remark 1.3.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchtheory.core.checks import described, first_entry
from torchtheory.core.errors import EmptyData, InvalidInput, ShapeMismatch

Density = Callable[[Tensor], Tensor]


def l2_density_loss(values: Tensor, squared_norm: Tensor | float) -> Tensor:
    r"""$-2f(z)+\|f\|^2_{L^2(\mu)}$ from the values $f(z)$ and the norm.

    >>> l2_density_loss(torch.tensor([0.5, 2.0]), 1.0)
    tensor([ 0., -3.])
    """
    _non_negative(values)
    return squared_norm - 2 * values


def surprisal(values: Tensor) -> Tensor:
    r"""$-\log f(z)$; infinite where the density says that $z$ cannot happen.

    >>> surprisal(torch.tensor([1.0, 0.0]))
    tensor([-0., inf])
    """
    _non_negative(values)
    return -torch.log(values)


def squared_norm(density: Density, nodes: Tensor, weights: Tensor) -> Tensor:
    r"""$\|f\|^2_{L^2(\mu)}$ for the measure with the given `weights` at the `nodes`.

    A finite space has its points as nodes; a continuous one is approximated by a quadrature rule.

    >>> squared_norm(lambda z: 2 * z, torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.5]))
    tensor(2.)
    """
    if weights.ndim != 1 or len(nodes) != len(weights):
        raise ShapeMismatch(f"{len(nodes)} nodes need as many weights, not {list(weights.shape)}")
    return (weights * density(nodes).square()).sum()


def histogram(z: Tensor, edges: Tensor) -> Tensor:
    r"""The piecewise constant density with heights $n_b/(nw_b)$, the best for both losses.

    Among all densities that are constant on the bins it has the least empirical risk, whether
    that is measured by `l2_density_loss` or by `surprisal`.

    Args:
        z: observations `[n]`, all within the edges.
        edges: `[b + 1]`, increasing.

    >>> histogram(torch.tensor([0.1, 0.2, 0.3, 0.9]), torch.tensor([0.0, 0.5, 1.0]))
    tensor([1.5000, 0.5000])
    """
    if z.ndim != 1 or len(z) == 0:
        raise EmptyData(f"a histogram needs observations [n], not {list(z.shape)}")
    if edges.ndim != 1 or len(edges) < 2 or not bool((edges.diff() > 0).all()):
        raise InvalidInput(
            f"edges must increase, and there must be at least two, not {described(edges.tolist())}"
        )
    if bool((z < edges[0]).any()) or bool((z > edges[-1]).any()):
        raise InvalidInput(
            f"an observation lies outside the edges: they go from {float(edges[0]):g} to "
            f"{float(edges[-1]):g}, and the observations from {float(z.min()):g} to "
            f"{float(z.max()):g}"
        )
    counts = torch.bincount(which_bin(z, edges), minlength=len(edges) - 1)
    return counts.to(z) / (len(z) * edges.diff())


def which_bin(z: Tensor, edges: Tensor) -> Tensor:
    """The index of the bin of every observation; the last bin is closed.

    >>> which_bin(torch.tensor([0.0, 0.5, 1.0]), torch.tensor([0.0, 0.5, 1.0])).tolist()
    [0, 1, 1]
    """
    return torch.bucketize(z, edges[1:-1].contiguous(), right=True)


def _non_negative(values: Tensor) -> None:
    if not bool((values >= 0).all()):
        raise InvalidInput(
            f"a density is nowhere negative: {first_entry(values, 'values', ~(values >= 0))}"
        )
