r"""Weights with few bits: rounding a network, writing it as a string of bits, and reading it back.

A weight is *encodable* when it lies in
$[-\epsilon^{-s},\epsilon^{-s}]\cap2^{-s\lceil\log_2(1/\epsilon)\rceil}\mathbb Z$: a number
of $O(\log_21/\epsilon)$ bits. Networks of fixed depth with such weights do as well for
Hölder functions as any: here finite elements, for $n+\zeta\le2$. Source: Mathematical
Aspects of Deep Learning, Theorem 3.14 (Petersen and Voigtlaender).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import Approximant
from torchtheory.approximation.network_calculus import chain
from torchtheory.approximation.piecewise.finite_elements import cube_mesh, nodal_network
from torchtheory.approximation.piecewise.shifted_sums import Copies, ShiftedSum
from torchtheory.approximation.targets import Function, values_of
from torchtheory.core.checks import described, open_fraction, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, UnsupportedModel
from torchtheory.nets.feedforward import affine_layers


@dataclass(frozen=True, slots=True)
class WeightGrid:
    r"""The numbers
    $[-\epsilon^{-s},\epsilon^{-s}]\cap2^{-s\lceil\log_2(1/\epsilon)\rceil} \mathbb Z$.

    >>> grid = WeightGrid(0.25, 2)
    >>> grid.spacing, grid.largest, grid.bits
    (0.0625, 16.0, 10)
    """

    error: float
    exponent: int

    def __post_init__(self) -> None:
        open_fraction(self.error, "error")
        whole_number(self.exponent, "exponent", least=1)

    @property
    def spacing(self) -> float:
        return float(2.0 ** (-self.exponent * math.ceil(math.log2(1 / self.error))))

    @property
    def largest(self) -> float:
        return float(self.error**-self.exponent)

    @property
    def bits(self) -> int:
        """Bits of a number of the grid, its sign included."""
        return math.ceil(math.log2(2 * math.floor(self.largest / self.spacing) + 1))


def quantize(network: nn.Sequential, grid: WeightGrid) -> nn.Sequential:
    """The network with every weight and bias rounded to the grid; the network itself is kept.

    >>> net = chain([(torch.tensor([[0.3]]).double(), torch.tensor([1.01]).double())], [])
    >>> [p.item() for p in quantize(net, WeightGrid(0.25, 2)).parameters()]
    [0.3125, 1.0]
    """
    maps, between = affine_layers(network)
    largest = max(float(v.abs().max()) for m in maps for v in m if v.numel())
    if not largest <= grid.largest:
        raise InvalidInput(
            f"the largest weight is {largest:.4g}, beyond the grid's {grid.largest:.4g}: take a "
            "larger exponent or a smaller error"
        )
    spacing = grid.spacing
    rounded = [((w / spacing).round() * spacing, (b / spacing).round() * spacing) for w, b in maps]
    return chain(rounded, between)


def encode(network: nn.Sequential, grid: WeightGrid) -> str:
    r"""A ReLU network with weights of the grid as a string of the characters 0 and 1.

    A head (numbers of 32 bits: layers, and of each layer outputs, inputs and non-zero weights),
    then place and value of each weight that is not zero: for $M$ of them in layers of
    $n$ entries $M(\lceil\log_2n\rceil+O(\log_2\tfrac1\epsilon))$ bits. Biases count
    as one more input.

    >>> net = chain([(torch.tensor([[0.25]]).double(), torch.zeros(1).double())], [])
    >>> len(encode(net, WeightGrid(0.25, 2)))              # 4 * 32, one place and ten bits
    139
    """
    maps, between = affine_layers(network)
    if not all(isinstance(m, nn.ReLU) for m in between):
        raise UnsupportedModel(
            "only ReLU networks are written as bits, not "
            f"{', '.join(sorted({type(m).__name__ for m in between}))}"
        )
    parts = [_number(len(maps), 32)]
    offset = math.floor(grid.largest / grid.spacing)
    for weight, bias in maps:
        both = torch.cat([weight, bias.unsqueeze(1)], dim=1).double()
        whole = both / grid.spacing
        off = (whole != whole.round()) | (whole.abs() > offset)
        if bool(off.any()):
            raise InvalidInput(
                f"the weight {float(both[off][0]):g} is not on the grid of spacing "
                f"{grid.spacing:g} up to {grid.largest:g}: quantize the network first"
            )
        places = both.flatten().nonzero()[:, 0].tolist()
        values = whole.flatten()[places].long().tolist()
        parts += [_number(n, 32) for n in (*weight.shape, len(places))]
        width = _place_bits(both.numel())
        parts += [
            _number(p, width) + _number(v + offset, grid.bits)
            for p, v in zip(places, values, strict=True)
        ]
    return "".join(parts)


def decode(bits: str, grid: WeightGrid) -> nn.Sequential:
    """The network of a string of bits; inverse of `encode`.

    >>> net = chain([(torch.tensor([[0.25]]).double(), torch.ones(1).double())], [])
    >>> grid = WeightGrid(0.25, 2)
    >>> [p.item() for p in decode(encode(net, grid), grid).parameters()]
    [0.25, 1.0]
    """
    if not isinstance(bits, str) or set(bits) - {"0", "1"}:
        raise InvalidInput(
            f"a network is read from a string of the characters 0 and 1, not {described(bits)}"
        )
    at = 0

    def read(width: int) -> int:
        nonlocal at
        if at + width > len(bits):
            raise InvalidInput(f"the string of {len(bits)} bits ends in the middle of a network")
        at += width
        return int(bits[at - width : at] or "0", 2)

    offset = math.floor(grid.largest / grid.spacing)
    maps: list[tuple[Tensor, Tensor]] = []
    for _ in range(read(32)):
        outputs, inputs, count = read(32), read(32), read(32)
        entries = outputs * (inputs + 1)
        if count > entries or entries > 1 << 27:
            raise InvalidInput("the string is not that of a network")
        both = np.zeros(entries)
        width = _place_bits(entries)
        for _ in range(count):
            place, value = read(width), read(grid.bits)
            if place >= entries:
                raise InvalidInput("the string is not that of a network")
            both[place] = (value - offset) * grid.spacing
        matrix = torch.from_numpy(both).reshape(outputs, inputs + 1)
        maps.append((matrix[:, :-1], matrix[:, -1]))
    if at != len(bits) or not maps:
        raise InvalidInput("the string is not that of a network")
    return chain(maps, [nn.ReLU() for _ in maps[1:]])


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderApproximant(Approximant):
    """A network of fixed depth for a Hölder function, on the cube [-1/2, 1/2]^d.

    Attributes:
        cells: cells of the mesh a side.
    """

    network: ShiftedSum
    cells: int


def holder_error(order: int, exponent: float, dimension: int, cells: int) -> float:
    r"""Sup error of linear finite elements for $\|f\|_{C^{n,\zeta}}\le1$, structured mesh.

    $(h\sqrt d)^\zeta$ for $n=0$ and
    $\frac{\sqrt d}{1+\zeta}(h\sqrt d)^{1+\zeta}$ for $n=1$, since no point of a
    simplex is further than $h\sqrt d$ from its corners.

    >>> holder_error(0, 1.0, 1, 4)
    0.25
    """
    if order not in (0, 1) or not 0 < exponent <= 1:
        raise InvalidInput(
            "linear finite elements reach n + ζ <= 2: order is 0 or 1 and exponent in (0, 1], "
            f"not {order!r} and {exponent!r}"
        )
    reach = math.sqrt(dimension) / whole_number(cells, "cells", least=1)
    if order == 0:
        return float(reach**exponent)
    return float(math.sqrt(dimension) / (1 + exponent) * reach ** (1 + exponent))


def holder_network(
    function: Function, order: int, exponent: float, dimension: int, error: float
) -> HolderApproximant:
    r"""A ReLU network of fixed depth for a function with $\|f\|_{C^{n,\zeta}}\le1$.

    The finite element interpolant on the structured mesh of $[-\frac12,\frac12]^d$ with a
    power of two of cells, so that its inner weights are whole numbers: about
    $\epsilon^{-d/(n+\zeta)}$ copies of one network, whose depth does not depend on
    $\epsilon$. For $n+\zeta\le2$.

    >>> made = holder_network(lambda x: x.abs(), 0, 1.0, 1, 0.25)
    >>> made.cells, made(torch.tensor([0.25]).double()).item()
    (4, 0.25)
    """
    positive_number(error, "error")
    whole_number(dimension, "dimension", least=1)
    cells = 1
    while holder_error(order, exponent, dimension, cells) > error:
        cells *= 2
        if (cells + 1) ** dimension > 1 << 20:
            raise InvalidInput(f"an error of {error:.3g} takes too many cells for the memory")
    # the middle node of the mesh with two cells a side, at the origin with unit cells
    middle = cube_mesh(2, dimension)
    nodes = (middle.nodes * 2 - 1) / cells
    template = nodal_network(type(middle)(nodes, middle.simplices), len(nodes) // 2)
    shifts = cube_mesh(cells, dimension).nodes - 0.5
    reach = torch.full((dimension,), 1 / cells, dtype=torch.float64)
    network = ShiftedSum([Copies(template, shifts, values_of(function, shifts), reach)])
    bound = holder_error(order, exponent, dimension, cells)
    return HolderApproximant(
        network=network,
        bound=bound,
        domain=((-0.5, 0.5),) * dimension,
        theorem="X-38",
        cells=cells,
    )


def _number(value: int, width: int) -> str:
    return format(value, f"0{width}b") if width else ""


def _place_bits(entries: int) -> int:
    return max(1, math.ceil(math.log2(entries)))
