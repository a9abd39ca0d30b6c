r"""Sums of many shifted copies of a few small networks, kept small in memory.

Proofs that cut a cube into patches add up one network a patch,

$$
f(x)=\sum_g\sum_bc_{gb}\,T_g(x-s_{gb}),
$$

where only the shift (a bias of the first layer) and the factor (in the last layer) differ. As
one dense network the layers are block diagonal, and their memory grows with the square of the
number of patches; here it grows with the number. `ShiftedSum.as_sequential` is the dense
network, where it fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import Size
from torchtheory.approximation.network_calculus import block_diagonal, chain, combine
from torchtheory.core.errors import EmptyData, InvalidInput, ShapeMismatch, UnsupportedModel
from torchtheory.nets.feedforward import affine_layers

#: Pairs of a point and a patch that are evaluated together.
_CHUNK = 1 << 15
#: Weights a dense layer may have.
MOST_WEIGHTS = 1 << 25


@dataclass(frozen=True, slots=True)
class Copies:
    """Shifted copies of one ReLU network.

    Attributes:
        template: from `[n, d]` to `[n, 1]`.
        shifts: `[b, d]`.
        factors: `[b]`.
        reach: `[d]`, distances in the coordinates beyond which the template is 0; None where
            it is not known to vanish.
    """

    template: nn.Sequential
    shifts: Tensor
    factors: Tensor
    reach: Tensor | None = None


class ShiftedSum(nn.Module):
    r"""$x\mapsto\sum_g\sum_bc_{gb}T_g(x-s_{gb})$, from `[n, d]` to `[n, 1]`.

    Time: a template for every pair of a point and a copy; with `reach` only for the pairs
    that are not known to give 0.

    >>> from torchtheory.approximation.piecewise.boxes import relu_bump
    >>> from torchtheory.approximation.certificates import network_size
    >>> bump = relu_bump(-0.25, 0.25, 0.25)
    >>> shifts, ones = torch.tensor([[0.0], [0.5], [1.0]]).double(), torch.ones(3).double()
    >>> made = ShiftedSum([Copies(bump, shifts, ones)])
    >>> made(torch.tensor([[0.0], [0.25], [0.375]]).double()).flatten().tolist()
    [1.0, 2.0, 1.5]
    >>> made.size.units, made.size.parameters, made.size == network_size(made.as_sequential())
    (12, 35, True)
    """

    def __init__(self, groups: Sequence[Copies]) -> None:
        super().__init__()
        if not groups or any(len(g.factors) == 0 for g in groups):
            raise EmptyData("a sum of shifted networks needs at least one copy of each")
        self.depths: list[int] = []
        self.reaches: list[Tensor | None] = []
        for i, group in enumerate(groups):
            maps, between = affine_layers(group.template)
            if not all(isinstance(m, nn.ReLU) for m in between):
                raise UnsupportedModel(
                    "shifted copies are those of ReLU networks, not "
                    f"{', '.join(sorted({type(m).__name__ for m in between}))}"
                )
            d = maps[0][0].shape[1]
            if group.shifts.shape != (len(group.factors), d) or len(maps[-1][1]) != 1:
                raise ShapeMismatch(
                    f"a template of {d} inputs and one output has shifts [b, {d}] and factors [b], "
                    f"not {list(group.shifts.shape)} and {list(group.factors.shape)}"
                )
            self.depths.append(len(maps))
            self.reaches.append(group.reach)
            self.register_buffer(f"shifts{i}", group.shifts.double())
            self.register_buffer(f"factors{i}", group.factors.double())
            for j, (weight, bias) in enumerate(maps):
                self.register_buffer(f"weight{i}_{j}", weight.double())
                self.register_buffer(f"bias{i}_{j}", bias.double())

    def forward(self, x: Tensor) -> Tensor:
        total = x.new_zeros(len(x))
        for i, reach in enumerate(self.reaches):
            shifts = self.get_buffer(f"shifts{i}")
            step = max(1, (_CHUNK if reach is None else 1 << 22) // len(shifts))
            total = total + torch.cat(
                [self._group(i, part, shifts, reach) for part in torch.split(x, step)]
            )
        return total.unsqueeze(1)

    def _group(self, i: int, x: Tensor, shifts: Tensor, reach: Tensor | None) -> Tensor:
        n, b = len(x), len(shifts)
        if reach is None:
            point = torch.arange(n, device=x.device).repeat_interleave(b)
            patch = torch.arange(b, device=x.device).repeat(n)
        else:
            near = torch.ones(n, b, dtype=torch.bool, device=x.device)
            for k in range(x.shape[1]):
                near &= (x[:, k : k + 1].detach() - shifts[:, k]).abs() <= reach[k]
            point, patch = near.nonzero(as_tuple=True)
        values = self._template(i, x[point] - shifts[patch]) * self.get_buffer(f"factors{i}")[patch]
        return x.new_zeros(n).index_add(0, point, values)

    def _template(self, i: int, z: Tensor) -> Tensor:
        for j in range(self.depths[i]):
            z = z @ self.get_buffer(f"weight{i}_{j}").T + self.get_buffer(f"bias{i}_{j}")
            if j < self.depths[i] - 1:
                z = z.relu()
        return z[:, 0]

    @property
    def depth(self) -> int:
        """Affine layers of the dense network."""
        return max(self.depths)

    @property
    def size(self) -> Size:
        """The size of the dense network, counted without building it."""
        width = [0] * (self.depth - 1)
        parameters, largest, offset = 0, 0.0, 0.0
        for i, depth in enumerate(self.depths):
            b = len(self.get_buffer(f"factors{i}"))
            for j in range(depth - 1):
                weight, bias = self._layer(i, j)
                width[j] += b * len(weight)
                parameters += b * _nonzero(weight) + _nonzero(bias) * (1 if j == 0 else b)
                largest = max(largest, float(weight.abs().max()), float(bias.abs().max()))
            last, constant = self._layer(i, depth - 1)
            missing = self.depth - depth
            if missing:
                # the sum of the group is carried on by two units a layer
                parameters += 2 * (_nonzero(last) + _nonzero(constant) + missing)
                largest = max(largest, 1.0, abs(float(constant)))
                for j in range(depth - 1, self.depth - 1):
                    width[j] += 2
            else:
                parameters += _nonzero(last)
                offset += float(constant)
            largest = max(largest, float(last.abs().max()))
        return Size(
            depth=self.depth,
            width=max(width, default=0),
            units=sum(width),
            parameters=parameters + (offset != 0),
            largest=max(largest, abs(offset)),
        )

    def _layer(self, i: int, j: int) -> tuple[Tensor, Tensor]:
        """Weight and bias; with those of every copy in the first layer and joined in the last."""
        weight, bias = self.get_buffer(f"weight{i}_{j}"), self.get_buffer(f"bias{i}_{j}")
        shifts, factors = self.get_buffer(f"shifts{i}"), self.get_buffer(f"factors{i}")
        last = j == self.depths[i] - 1
        if j == 0 and last:
            return factors.sum() * weight, factors[None] @ (bias - shifts @ weight.T)[:, 0]
        if j == 0:
            return weight, bias - shifts @ weight.T
        if last:
            return (factors[:, None] * weight).reshape(1, -1), factors.sum() * bias
        return weight, bias

    def as_sequential(self) -> nn.Sequential:
        """The dense network of the same function; refused where a layer would be too large."""
        widest = self.size.width
        if widest**2 > MOST_WEIGHTS:
            raise InvalidInput(
                f"a dense layer would have {widest} x {widest} weights, more than {MOST_WEIGHTS}: "
                "use the sum itself, or fewer patches"
            )
        groups = []
        for i, depth in enumerate(self.depths):
            b = len(self.get_buffer(f"factors{i}"))
            maps = []
            for j in range(depth):
                weight, bias = self._layer(i, j)
                if j == 0 and depth > 1:
                    weight, bias = weight.repeat(b, 1), bias.reshape(-1)
                elif j < depth - 1:
                    weight, bias = block_diagonal(*[weight] * b), bias.repeat(b)
                maps.append((weight, bias))
            groups.append(chain(maps, [nn.ReLU() for _ in maps[1:]]))
        return combine([1.0] * len(groups), groups)


def _nonzero(values: Tensor) -> int:
    return int(values.count_nonzero())
