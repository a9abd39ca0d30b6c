r"""In how many ways networks of one architecture can be right and wrong on $m$ samples.

The counting of `torchtheory.generalization.vc.networks` for the network at hand: convolutions
share their parameters among many units, and several classes are several comparisons. Layer
$i$ with $k_i$ units and $b_i$ breakpoints of the activation behind it has
$M_i=mk_ib_i$ polynomials of degree $i$ in the $W_i$ parameters so far, and the
error of sample $x,y$ is decided by the signs of $f_y-f_j$, $j\ne y$.

A maximum over a window of $k$ entries is decided by the signs of their $k(k-1)/2$ differences,
polynomials of the degree of the entries: one more layer of counting, without parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import nn

from torchtheory.core.errors import UnsupportedModel
from torchtheory.generalization.vc.bounds import first_whole_number
from torchtheory.generalization.vc.growth import log_sauer_polynomial, sauer_bound
from torchtheory.kernels.path_kernel import (
    ADAPTIVE_POOLS,
    AVERAGE_POOLS,
    CONVOLUTIONS,
    NORMALIZATIONS,
    PASSING,
    REARRANGING,
)
from torchtheory.models.model import evaluation_mode
from torchtheory.models.problem import Problem
from torchtheory.nets.chain import as_chain, has_own_forward

#: Breakpoints of piecewise linear activations.
BREAKPOINTS: dict[type[nn.Module], int] = {
    nn.ReLU: 1,
    nn.LeakyReLU: 1,
    nn.ReLU6: 2,
    nn.Hardtanh: 2,
    nn.Hardshrink: 2,
    nn.Softshrink: 2,
    nn.Threshold: 1,
}


MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)

#: Beyond this dimension the Sauer-Shelah bound is taken in its polynomial form.
EXACT = 100


@dataclass(frozen=True, slots=True)
class NetworkSize:
    r"""An architecture as far as counting needs it.

    Attributes:
        breaks: $k_ib_i$ of every layer but the last, for one sample.
        parameters: $W_i$, those of the layers up to the $i$-th.
        comparisons: signs that decide an error, 1 for one logit and classes - 1 otherwise.
        halfspaces: parameters of a linear classifier with one logit, which are the VC dimension
            of its losses (an output of 0 is an error for either label); None for another network.
    """

    breaks: tuple[int, ...]
    parameters: tuple[int, ...]
    comparisons: int
    halfspaces: int | None = None

    def log2_growth(self, samples: int) -> float:
        """Bound of the logarithm of the number of ways to err on so many samples.

        >>> NetworkSize((2,), (4, 7), 1).log2_growth(3)      # widths 1, 2, 1
        9.0
        """
        if self.halfspaces is not None:
            if samples <= self.halfspaces:
                return float(samples)
            if self.halfspaces > EXACT:
                return log_sauer_polynomial(samples, self.halfspaces) / math.log(2)
            return math.log2(sauer_bound(samples, self.halfspaces))
        total = 0.0
        counts = (*self.breaks, self.comparisons)
        for degree, (each, parameters) in enumerate(
            zip(counts, self.parameters, strict=True), start=1
        ):
            polynomials = samples * each
            bits = float(polynomials)
            if polynomials >= parameters > 0:
                ratio = 2 * math.e * polynomials * degree / parameters
                bits = min(bits, 1 + parameters * math.log2(ratio))
            total += bits
        return total


def loss_dimension(size: NetworkSize) -> int:
    """Bound of the VC dimension of the 0-1 losses: no more samples are shattered.

    >>> loss_dimension(NetworkSize((), (3,), 1, 3))           # half-planes
    3
    >>> loss_dimension(NetworkSize((), (3,), 1))                      # the same, merely counted
    15
    """
    if size.halfspaces is not None:
        return size.halfspaces
    least = max(1, math.ceil(size.parameters[-1] / size.comparisons))
    return max(1, first_whole_number(lambda m: size.log2_growth(m) < m, least) - 1)


def measure_size(problem: Problem) -> NetworkSize:
    """The architecture of a chain of linear layers and piecewise linear activations.

    Raises:
        UnsupportedModel: if a layer is of another kind; the message names it.
    """
    links = as_chain(problem.model)
    if problem.several_inputs or not problem.train.x.is_floating_point():
        raise UnsupportedModel("counting needs one input tensor of real numbers")
    weighted = (nn.Linear, *CONVOLUTIONS, *NORMALIZATIONS)
    silent = (*PASSING, *REARRANGING, *AVERAGE_POOLS, *ADAPTIVE_POOLS)
    counts: list[int] = []
    breaks: list[int] = []

    def decided_by(signs: int) -> None:
        """What the signs of so many polynomials decide, behind what was decided before."""
        if breaks[-1]:
            counts.append(0)
            breaks.append(0)
        breaks[-1] = signs

    value = problem.train.x[:1]
    with torch.no_grad(), evaluation_mode(problem.model):
        for link in links:
            module, name = link.module, link.name or type(link.module).__name__
            known = isinstance(module, (*weighted, *silent, *MAX_POOLS))
            known = known or type(module) in BREAKPOINTS
            if not known or not has_own_forward(module):
                raise UnsupportedModel(
                    f"layer {name!r} ({type(module).__name__}) is neither linear nor a piecewise "
                    "linear function of each unit, nor a maximum over windows"
                )
            value = module(value)
            if isinstance(module, weighted):
                shifts = 2 * module.num_features if isinstance(module, NORMALIZATIONS) else 0
                counts.append(shifts or sum(p.numel() for p in module.parameters()))
                breaks.append(0)
            elif type(module) in BREAKPOINTS:
                if counts:  # otherwise a function of the inputs alone
                    decided_by(value[0].numel() * BREAKPOINTS[type(module)])
            elif isinstance(module, MAX_POOLS) and counts:
                entries = _window(module, value.ndim - 2)
                decided_by(value[0].numel() * entries * (entries - 1) // 2)
    if not counts or breaks[-1]:
        raise UnsupportedModel("counting needs a linear last layer without an activation after it")
    comparisons = 1 if problem.task == "binary" else (problem.classes or 2) - 1
    halfspaces = None
    if problem.task == "binary" and len(counts) == 1:
        (layer,) = (link.module for link in links if isinstance(link.module, weighted))
        if isinstance(layer, nn.Linear):
            halfspaces = counts[0]
    return NetworkSize(tuple(breaks[:-1]), tuple(accumulate(counts)), comparisons, halfspaces)


def _window(module: nn.Module, dimensions: int) -> int:
    """Entries of a window of a pooling."""
    assert isinstance(module, MAX_POOLS)
    size = module.kernel_size
    return size**dimensions if isinstance(size, int) else math.prod(size)
