r"""What counting parameters says: bounds for large networks, and the curse of dimensionality.

Sources: Mathematical Aspects of Deep Learning, sections 1.2.2 and 1.3 (their introductions).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchtheory.core.errors import InvalidInput
from torchtheory.generalization.concentration import weighted_class_radius
from torchtheory.generalization.vc.bounds import vc_radius
from torchtheory.generalization.vc.networks import piecewise_linear_vc_order

#: Height, width and color channels of the images of common benchmarks, as they are usually used.
BENCHMARK_IMAGES: dict[str, tuple[int, int, int]] = {
    "MNIST": (28, 28, 1),
    "CIFAR-10": (32, 32, 3),
    "CIFAR-100": (32, 32, 3),
    "ImageNet": (256, 256, 3),
}


def input_dimension(benchmark: str, *, colors: bool = True) -> int:
    """Numbers in an image of a benchmark; without `colors` its pixels.

    >>> input_dimension("MNIST"), input_dimension("CIFAR-10"), input_dimension("ImageNet")
    (784, 3072, 196608)
    """
    if benchmark not in BENCHMARK_IMAGES:
        raise InvalidInput(f"known are {', '.join(BENCHMARK_IMAGES)}, not {benchmark!r}")
    height, width, channels = BENCHMARK_IMAGES[benchmark]
    return height * width * (channels if colors else 1)


@dataclass(frozen=True, slots=True)
class ParameterCounting:
    r"""Bounds from the number of parameters alone; 1 or more says nothing.

    Attributes:
        load: parameters a sample, $P/m$.
        interpolation_possible: whether the $O(d+m)$ parameters that suffice to fit any
            labels, $d+2m$ for the network $x\mapsto\sum_jv_j\varrho(a^\top x-b_j)$,
            are there.
        order: $\sqrt{P\log P/m}$, up to a constant.
        bits: Hoeffding with a union over all $2^{\text{bits}\cdot P}$ networks; certified.
        vc: from the VC dimension, its order $PL\log P$ taken with constant 1; infinite
            where that exceeds $2m$.
    """

    load: float
    interpolation_possible: bool
    order: float
    bits: float
    vc: float

    @property
    def vacuous(self) -> bool:
        """Whether none of the bounds is below 1."""
        return min(self.order, self.bits, self.vc) >= 1


def count_parameters_bounds(
    parameters: int,
    samples: int,
    *,
    layers: int = 2,
    inputs: int = 1,
    delta: float = 0.05,
    bits: int = 32,
) -> ParameterCounting:
    r"""What the parameter-counting bounds say about a network for the 0-1 loss.

    >>> found = count_parameters_bounds(1_600_000, 50_000)          # a CNN on CIFAR-10
    >>> round(found.order, 1), round(found.bits, 1), found.vacuous
    (21.4, 18.8, True)
    """
    if parameters < 2 or samples < 1 or layers < 1 or inputs < 1 or bits < 1:
        raise InvalidInput(
            "take at least 2 parameters, and 1 sample, layer, input and bit (parameters = "
            f"{parameters!r}, samples = {samples!r}, layers = {layers!r}, inputs = {inputs!r}, "
            f"bits = {bits!r})"
        )
    order = math.sqrt(parameters * math.log(parameters) / samples)
    dimension = math.ceil(piecewise_linear_vc_order(parameters, layers))
    vc = vc_radius(dimension, samples, delta, sharp=True) if dimension <= 2 * samples else math.inf
    return ParameterCounting(
        load=parameters / samples,
        interpolation_possible=parameters >= inputs + 2 * samples,
        order=order,
        bits=weighted_class_radius(bits * parameters * math.log(2), samples, delta),
        vc=vc,
    )


def log10_parameters_needed(dimension: int, error: float, *, discontinuous: bool = False) -> float:
    r"""Order of the parameters that uniform approximation of 1-Lipschitz functions takes.

    On the unit cube of $\mathbb R^d$, parameters that depend continuously on the function
    cannot do with fewer than the order of $\varepsilon^{-d}$; very deep networks with
    discontinuous assignment reach $\varepsilon^{-d/2}$. The logarithm to base 10, up to a
    constant factor of the number.

    >>> round(log10_parameters_needed(784, 0.5), 1)
    236.0
    >>> round(log10_parameters_needed(784, 0.5, discontinuous=True))
    118
    """
    if dimension < 1 or not 0 < error < 1:
        raise InvalidInput(
            "the dimension is at least 1 and the error strictly between 0 and 1 (dimension = "
            f"{dimension!r}, error = {error!r})"
        )
    return -dimension * math.log10(error) / (2 if discontinuous else 1)
