r"""In how many ways networks of one architecture can be right and wrong on $m$ samples.

The counting of `torchtheory.generalization.vc.networks` for the network at hand: convolutions
share their parameters among many units, and several classes are several comparisons. Layer
$i$ with $k_i$ units and $b_i$ breakpoints of the activation behind it has
$M_i=mk_ib_i$ polynomials of degree $d_i$ in the $W_i$ parameters so far, and the
error of sample $x,y$ is decided by the signs of $f_y-f_j$, $j\ne y$. The degree counts the weighted
layers on the longest way from the input: a shortcut or a concatenation adds none, since sums of
polynomials have the largest of their degrees.

A maximum over a window of $k$ entries is decided by the signs of their $k(k-1)/2$ differences,
polynomials of the degree of the entries: one more layer of counting, without parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.errors import UnsupportedModel
from torchtheory.generalization.vc.bounds import first_whole_number
from torchtheory.generalization.vc.growth import log_sauer_polynomial, sauer_bound
from torchtheory.kernels.paths.path_kernel import (
    ADAPTIVE_POOLS,
    AVERAGE_POOLS,
    CONVOLUTIONS,
    NORMALIZATIONS,
    PASSING,
    REARRANGING,
)
from torchtheory.models.model import evaluation_mode
from torchtheory.models.problem import Problem
from torchtheory.tracing.chain import (
    Average,
    Concatenation,
    Sum,
    Transposition,
    as_steps,
    has_own_forward,
)

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
WEIGHTED = (nn.Linear, *CONVOLUTIONS, *NORMALIZATIONS)
SILENT = (
    *PASSING, *REARRANGING, *AVERAGE_POOLS, *ADAPTIVE_POOLS, Average, Sum, Concatenation,
    Transposition,
)  # fmt: skip

#: Beyond this dimension the Sauer-Shelah bound is taken in its polynomial form.
EXACT = 100


@dataclass(frozen=True, slots=True)
class NetworkSize:
    r"""An architecture as far as counting needs it.

    Attributes:
        breaks: $k_ib_i$ of every decision but the last, for one sample.
        parameters: $W_i$, those that had a say up to the $i$-th.
        degrees: $d_i$, of the polynomials whose signs decide.
        comparisons: signs that decide an error, 1 for one logit and classes - 1 otherwise.
        halfspaces: parameters of a linear classifier with one logit, which are the VC dimension
            of its losses (an output of 0 is an error for either label); None for another network.
    """

    breaks: tuple[int, ...]
    parameters: tuple[int, ...]
    degrees: tuple[int, ...]
    comparisons: int
    halfspaces: int | None = None

    def log2_growth(self, samples: int) -> float:
        """Bound of the logarithm of the number of ways to err on so many samples.

        >>> NetworkSize((2,), (4, 7), (1, 2), 1).log2_growth(3)      # widths 1, 2, 1
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
        for each, parameters, degree in zip(counts, self.parameters, self.degrees, strict=True):
            polynomials = samples * each
            bits = float(polynomials)
            if polynomials >= parameters > 0:
                ratio = 2 * math.e * polynomials * degree / parameters
                bits = min(bits, 1 + parameters * math.log2(ratio))
            total += bits
        return total


def loss_dimension(size: NetworkSize) -> int:
    """Bound of the VC dimension of the 0-1 losses: no more samples are shattered.

    >>> loss_dimension(NetworkSize((), (3,), (1,), 1, 3))     # half-planes
    3
    >>> loss_dimension(NetworkSize((), (3,), (1,), 1))                # the same, merely counted
    15
    """
    if size.halfspaces is not None:
        return size.halfspaces
    least = max(1, math.ceil(size.parameters[-1] / size.comparisons))
    return max(1, first_whole_number(lambda m: size.log2_growth(m) < m, least) - 1)


def measure_size(problem: Problem) -> NetworkSize:
    """The architecture of a network of linear layers and piecewise linear activations.

    Its data flow may branch and meet again in sums and concatenations.

    Raises:
        UnsupportedModel: if a layer is of another kind; the message names it.
    """
    if problem.several_inputs or not problem.train.x.is_floating_point():
        raise UnsupportedModel("counting needs one input tensor of real numbers")
    steps = as_steps(problem.model, problem.train.x)
    breaks: list[int] = []
    parameters: list[int] = []
    degrees: list[int] = []
    values: list[Tensor] = [problem.train.x[:1]]  # that of step i at i + 1
    degree = [0]
    counted: dict[int, int] = {}  # a layer that is used twice has its parameters once
    with torch.no_grad(), evaluation_mode(problem.model):
        for step in steps:
            module, name = step.link.module, step.link.name or type(step.link.module).__name__
            known = isinstance(module, (*WEIGHTED, *SILENT, *MAX_POOLS))
            known = known or type(module) in BREAKPOINTS
            if not known or not has_own_forward(module):
                raise UnsupportedModel(
                    f"layer {name!r} ({type(module).__name__}) is neither linear nor a piecewise "
                    "linear function of each unit, nor a maximum over windows"
                )
            value = module(*(values[i + 1] for i in step.inputs))
            reached = max(degree[i + 1] for i in step.inputs)
            signs = 0
            if isinstance(module, WEIGHTED):
                reached += 1
                counted[id(module)] = _free_numbers(module)
            elif type(module) in BREAKPOINTS:
                signs = value[0].numel() * BREAKPOINTS[type(module)]
            elif isinstance(module, MAX_POOLS):
                entries = _window(module, value.ndim - 2)
                signs = value[0].numel() * entries * (entries - 1) // 2
            if signs and reached:  # otherwise a function of the inputs alone
                breaks.append(signs)
                parameters.append(sum(counted.values()))
                degrees.append(reached)
            values.append(value)
            degree.append(reached)
    last = steps[-1].link.module
    if not counted or type(last) in BREAKPOINTS or isinstance(last, MAX_POOLS):
        raise UnsupportedModel("counting needs a linear last layer without an activation after it")
    total = sum(counted.values())
    halfspaces = None
    if problem.task == "binary" and not breaks and len(counted) == 1:
        (layer,) = (s.link.module for s in steps if isinstance(s.link.module, WEIGHTED))
        halfspaces = total if isinstance(layer, nn.Linear) else None
    return NetworkSize(
        tuple(breaks),
        (*parameters, total),
        (*degrees, degree[-1]),
        1 if problem.task == "binary" else (problem.classes or 2) - 1,
        halfspaces,
    )


def _free_numbers(module: nn.Module) -> int:
    """Numbers that a layer is a polynomial of: its weights, also where it computes them."""
    if isinstance(module, NORMALIZATIONS):
        return 2 * module.num_features
    weights = (module.weight, module.bias)
    return sum(w.numel() for w in weights if isinstance(w, Tensor))


def _window(module: nn.Module, dimensions: int) -> int:
    """Entries of a window of a pooling."""
    assert isinstance(module, MAX_POOLS)
    size = module.kernel_size
    return size**dimensions if isinstance(size, int) else math.prod(size)
