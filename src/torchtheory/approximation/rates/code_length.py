r"""Bits: how long a description of a function must be, and how long that of a network is.

The minimax code length $L(\epsilon,\mathcal C)$ of a class is the length of the shortest bit
strings from which every function of the class comes back within $\epsilon$ in
$L_2$, and its optimal exponent the smallest $\gamma$ with
$L(\epsilon)\lesssim\epsilon^{-\gamma}$. A network whose weights have few bits is such a
description, so it cannot be shorter.
Source: Mathematical Aspects of Deep Learning, section 3.5.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from torchtheory.approximation.network_calculus import chain
from torchtheory.approximation.piecewise.bumps import SplineBump
from torchtheory.approximation.targets import Function, values_of
from torchtheory.core.checks import described, first_entry, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch
from torchtheory.generalization.complexity.covering import covering_number, packing_number
from torchtheory.generalization.vc.bounds import first_whole_number
from torchtheory.nets.feedforward import affine_layers


@dataclass(frozen=True, slots=True)
class LipschitzCodec:
    r"""Codes $\rho$-Lipschitz functions on $[0,1]$ with $|f(0)|\le B$, one bit a
    step.

    Steps of length $\epsilon/\rho$; a broken line follows the function, going up or down by
    $\epsilon$ a step, towards it. Where it starts within $\epsilon$ it stays within
    $\epsilon$ everywhere: at the steps because the gap is at most $2\epsilon$ before
    the move, and between them because the line is the steepest the function can be, so the gap
    is monotone. Bits: $\lceil\rho/\epsilon\rceil+\lceil\log_2\lceil B/\epsilon\rceil\rceil$.

    Attributes:
        error: $\epsilon$, promised in the sup norm and hence in $L_2$.
        lipschitz: $\rho$.
        largest: $B$.

    >>> codec = LipschitzCodec(0.125)
    >>> code = codec.encode(torch.sin)
    >>> codec.bits, len(code)
    (11, 11)
    >>> x = torch.linspace(0, 1, 101).double()
    >>> bool(((codec.decode(code)(x) - torch.sin(x)).abs() <= 0.125).all())
    True
    """

    error: float
    lipschitz: float = 1.0
    largest: float = 1.0

    def __post_init__(self) -> None:
        positive_number(self.error, "error")
        positive_number(self.lipschitz, "lipschitz")
        positive_number(self.largest, "largest")
        if self.lipschitz / self.error > 1e7:
            raise InvalidInput(
                f"the code would have more than ten million bits (lipschitz = {self.lipschitz!r}, "
                f"error = {self.error!r})"
            )

    @property
    def steps(self) -> int:
        return math.ceil(self.lipschitz / self.error - 1e-9)

    @property
    def head(self) -> int:
        """Bits of the start value."""
        return (max(1, math.ceil(self.largest / self.error - 1e-9)) - 1).bit_length()

    @property
    def bits(self) -> int:
        """The length of every code."""
        return self.head + self.steps

    def encode(self, function: Function) -> str:
        """The code of a function of one variable, a string of 0 and 1."""
        x = torch.arange(self.steps + 1, dtype=torch.float64) * self.error / self.lipschitz
        values = values_of(function, x.clamp(max=1.0).unsqueeze(1)).tolist()
        if abs(values[0]) > self.largest * (1 + 1e-12):
            raise InvalidInput(f"the code is for |f(0)| <= {self.largest}, not {values[0]:.3g}")
        cell = int((values[0] + self.largest) / (2 * self.error))
        cell = min(cell, max(0, math.ceil(self.largest / self.error - 1e-9) - 1))
        line = self._start(cell)
        signs = []
        for value in values[1:]:
            up = value >= line
            line += self.error if up else -self.error
            signs.append("1" if up else "0")
        return (f"{cell:0{self.head}b}" if self.head else "") + "".join(signs)

    def decode(self, code: str) -> Function:
        """The broken line of a code, at every number of a tensor."""
        if len(code) != self.bits or set(code) - {"0", "1"}:
            raise InvalidInput(f"a code is {self.bits} characters 0 or 1, not {code!r:.40}")
        cell = int(code[: self.head], 2) if self.head else 0
        moves = torch.tensor([float(c == "1") for c in code[self.head :]], dtype=torch.float64)
        levels = torch.cat([moves.new_zeros(1), (2 * moves - 1).cumsum(0)]) * self.error
        levels = levels + self._start(cell)
        step = self.error / self.lipschitz

        def line(x: Tensor) -> Tensor:
            place = (x.double() / step).clamp(0, self.steps)
            left = place.floor().clamp(max=self.steps - 1).long()
            made = levels[left] + (place - left) * (levels[left + 1] - levels[left])
            return made.to(x)

        return line

    def _start(self, cell: int) -> float:
        return -self.largest + (2 * cell + 1) * self.error


def code_length_bounds(values: Tensor, error: float) -> tuple[int, int]:
    r"""$\lceil\log_2P(2\epsilon)\rceil\le L(\epsilon)\le\lceil\log_2C(\epsilon)\rceil$ for
    finitely many functions.

    Functions more than $2\epsilon$ apart need different codes (packing number
    $P$); the nearest center is a code (covering number $C$).

    Args:
        values: `[q, m]`, the functions at `m` points of equal weight; at most 400.

    >>> code_length_bounds(torch.eye(5), 0.1)
    (3, 3)
    """
    packing = packing_number(values, 2 * positive_number(error, "error"))
    covering = covering_number(values, error)
    return (packing - 1).bit_length(), (covering - 1).bit_length()


@dataclass(frozen=True, slots=True)
class PackingBound:
    r"""Many functions of a class, far apart.

    Attributes:
        error: $\epsilon$; any two of them are more than $2\epsilon$ apart in
            $L_2([0,1]^d)$.
        bits: $\log_2$ of how many there are at least: no shorter code is within
            $\epsilon$ of all of them.
    """

    error: float
    bits: float


def smooth_packing(cells: int, smoothness: int, dimension: int) -> PackingBound:
    r"""Functions of the unit ball of $C^n$ whose labels differ in a quarter of the cells.

    There are $2^{K(1-h(1/4))}$ labelings of $K=N^d$ cells with pairwise Hamming
    distance at least $K/4$ (Gilbert and Varshamov, $h$ the binary entropy); their
    functions differ by $\sqrt{H/K}\,c_\phi N^{-n}\|\phi\|_2$. So
    $\gamma^*\ge d/n$.

    >>> smooth_packing(10, 1, 2).bits > smooth_packing(5, 1, 2).bits
    True
    """
    bump = SplineBump(smoothness, dimension)
    apart = bump.height * float(cells) ** -smoothness * math.sqrt(bump.moment(2) / 4)
    return PackingBound(_under(apart / 2), _gilbert_varshamov(cells**dimension))


def cartoon_packing(cells: int, smoothness: int, dimension: int) -> PackingBound:
    r"""Cartoons $\mathbf 1[x_d\le\frac12+f_y(x')]$ with $N^{d-1}$ labels in the edge.

    Their squared distance is the area between the edges,
    $\frac HK c_\phi N^{-n}\int\phi$. So $\gamma^*\ge2(d-1)/n$.

    >>> cartoon_packing(8, 1, 2).error > smooth_packing(8, 1, 2).error
    True
    """
    whole_number(dimension, "dimension", least=2)
    bump = SplineBump(smoothness, dimension - 1)
    area = bump.height * float(cells) ** -smoothness * bump.moment(1) / 4
    return PackingBound(_under(math.sqrt(area) / 2), _gilbert_varshamov(cells ** (dimension - 1)))


def _under(half: float) -> float:
    """Strictly below half the distance."""
    return half * (1 - 1e-12)


def _gilbert_varshamov(count: int) -> float:
    quarter = 0.25
    entropy = -quarter * math.log2(quarter) - (1 - quarter) * math.log2(1 - quarter)
    return count * (1 - entropy)


@dataclass(frozen=True, slots=True)
class NetworkBits:
    """The length of a network's description.

    Attributes:
        head: bits of the architecture: how many layers, each width, how many weights are used.
        topology: bits that say which weights and biases are not 0.
        weights: bits of their values.
    """

    head: int
    topology: int
    weights: int

    @property
    def total(self) -> int:
        return self.head + self.topology + self.weights


#: Bits of a width, and of the number of layers, in the head of a code.
_WIDTH_BITS = 16


def network_bits(network: nn.Sequential, bits_per_weight: int) -> NetworkBits:
    r"""How many bits `encode_network` needs: $M(\lceil\log_2P\rceil+b)$ and a head.

    $M$ weights and biases are not 0 among $P$ of the dense layers. Without idle units
    $P\le(M+d+2)^2$, so the order is $M(\log M+b)$.

    >>> net = chain([(torch.eye(2), torch.zeros(2)), (torch.ones(1, 2), torch.zeros(1))],
    ...             [nn.ReLU()])
    >>> network_bits(net, 8)
    NetworkBits(head=80, topology=16, weights=32)
    """
    whole_number(bits_per_weight, "bits_per_weight", least=1)
    values = _flat(network)
    used = int(values.count_nonzero())
    layers = len(affine_layers(network)[0])
    place = (len(values) - 1).bit_length()
    head = (layers + 3) * _WIDTH_BITS
    return NetworkBits(head, used * place, used * bits_per_weight)


def encode_network(network: nn.Sequential, bits_per_weight: int, resolution: float) -> str:
    r"""A network as a string of bits; its values must be multiples $k\cdot$ `resolution`
    with $-2^{b-1}\le k<2^{b-1}$.

    The activations are not part of the code: the decoder is told.

    >>> net = chain([(torch.eye(2), torch.zeros(2)), (torch.ones(1, 2), torch.zeros(1))],
    ...             [nn.ReLU()])
    >>> len(encode_network(net, 8, 0.5)) == network_bits(net, 8).total
    True
    """
    positive_number(resolution, "resolution")
    values = _flat(network)
    steps = (values / resolution).round()
    half = 2 ** (whole_number(bits_per_weight, "bits_per_weight", least=1) - 1)
    if not torch.equal(steps * resolution, values):
        raise InvalidInput(f"the weights are no multiples of {resolution}; round them first")
    if bool((steps >= half).any()) or bool((steps < -half).any()):
        raise InvalidInput(f"{bits_per_weight} bits do not hold a weight of this network")
    widths = _widths(network)
    used = steps.nonzero().flatten().tolist()
    numbers = [len(widths) - 1, *widths, len(used)]
    if max(numbers) >= 1 << _WIDTH_BITS:
        raise InvalidInput(f"a code holds widths and weights below {1 << _WIDTH_BITS}")
    place = (len(values) - 1).bit_length()
    parts = [f"{n:0{_WIDTH_BITS}b}" for n in numbers]
    for index in used:
        parts.append(f"{index:0{place}b}" if place else "")
        parts.append(f"{int(steps[index]) % (2 * half):0{bits_per_weight}b}")
    return "".join(parts)


def decode_network(
    code: str, bits_per_weight: int, resolution: float, between: nn.Module
) -> nn.Sequential:
    """The network of a code, in double precision, with the activation between its layers.

    >>> net = chain([(torch.eye(2), torch.zeros(2)), (torch.ones(1, 2), torch.zeros(1))],
    ...             [nn.ReLU()])
    >>> again = decode_network(encode_network(net, 8, 0.5), 8, 0.5, nn.ReLU())
    >>> again(torch.tensor([[1.0, -1.0]]).double()).item()
    1.0
    """
    if not code or set(code) - {"0", "1"}:
        raise InvalidInput(f"a code is a string of 0 and 1, not {described(code)}")
    layers = int(code[:_WIDTH_BITS], 2)
    head = (layers + 3) * _WIDTH_BITS
    numbers = [int(code[i : i + _WIDTH_BITS], 2) for i in range(0, head, _WIDTH_BITS)]
    widths, used = numbers[1:-1], numbers[-1]
    shapes = [(out, into) for into, out in pairwise(widths)]
    count = sum(out * into + out for out, into in shapes)
    place = (count - 1).bit_length()
    entry = place + bits_per_weight
    if len(code) != head + used * entry:
        raise InvalidInput(f"the code should have {head + used * entry} bits, not {len(code)}")
    values = torch.zeros(count, dtype=torch.float64)
    for start in range(head, len(code), entry):
        index = int(code[start : start + place], 2) if place else 0
        step = int(code[start + place : start + entry], 2)
        values[index] = (step - (step >> (bits_per_weight - 1) << bits_per_weight)) * resolution
    maps, at = [], 0
    for out, into in shapes:
        weight = values[at : at + out * into].reshape(out, into)
        maps.append((weight, values[at + out * into : at + out * into + out]))
        at += out * into + out
    # a module that stands in a chain twice would be listed once
    return chain(maps, [copy.deepcopy(between) for _ in maps[1:]])


def minimum_weights_from_bits(code_length: float, bits_per_weight: int, inputs: int = 1) -> int:
    r"""The fewest weights a network needs to be a description of `code_length` bits.

    A network without idle units has at most $M$ hidden ones; with the inputs, the constant
    and the output, each weight is an edge between two of $M+d+2$ nodes with a value of
    $b$ bits. The smallest $M$ with
    $M(2\lceil\log_2(M+d+2)\rceil+b)\ge$ code length.

    >>> minimum_weights_from_bits(10_000, 8)           # 385 * (2 * 9 + 8) = 10010
    385
    """
    whole_number(bits_per_weight, "bits_per_weight", least=1)
    whole_number(inputs, "inputs", least=1)
    positive_number(code_length, "code_length")
    return first_whole_number(
        lambda m: m * (2 * (m + inputs + 1).bit_length() + bits_per_weight) >= code_length, 1
    )


def _flat(network: nn.Sequential) -> Tensor:
    maps, _ = affine_layers(network)
    values = torch.cat([part.detach().double().flatten() for pair in maps for part in pair])
    if not bool(torch.isfinite(values).all()):
        raise NonFinite(
            "the network has weights that are not finite: "
            f"{first_entry(values, 'the value', ~torch.isfinite(values))}"
        )
    return values


def _widths(network: nn.Sequential) -> list[int]:
    maps, _ = affine_layers(network)
    widths = [maps[0][0].shape[1], *(weight.shape[0] for weight, _ in maps)]
    for k, ((w, _), n) in enumerate(zip(maps, widths, strict=False)):
        if w.shape[1] != n:
            raise ShapeMismatch(f"affine layer {k} takes {w.shape[1]} numbers and is given {n}")
    return widths
