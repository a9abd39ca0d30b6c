r"""Recurrent networks over sequences: one cell, both directions, layers on top of each other.

$$
z_t=F(z_{t-1},x_t),\qquad z_0=0,\qquad y_t=G(z_t).
$$

Sequences are `[..., T, n]`. Sources: Deep Learning (notes), chapter 5; The Modern Mathematics of
Deep Learning, section 1.6.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.core.checks import described, one_of
from torchtheory.core.errors import EmptyData, InvalidType, ShapeMismatch, UnsupportedModel
from torchtheory.sequences.recurrent.cells import Cell, State

#: What is returned: an output per step (labels, or the next input), or the last one (a class).
Mode = Literal["every", "last"]


class Recurrent(nn.Module):
    """A cell run along a sequence, with a map from hidden states to outputs.

    Args:
        cell: from `cells`.
        head: from hidden states `[..., m]` to outputs; the identity unless given.
        mode: outputs at `every` step, to label a sequence or to predict the next input from each
            prefix, or at the `last`, to classify it.

    >>> from torchtheory.sequences.recurrent.cells import ElmanCell
    >>> net = Recurrent(ElmanCell(3, 4), nn.Linear(4, 2).double(), mode="last")
    >>> net(torch.zeros(5, 7, 3).double()).shape
    torch.Size([5, 2])
    """

    def __init__(self, cell: Cell, head: nn.Module | None = None, mode: Mode = "every") -> None:
        super().__init__()
        if not isinstance(cell, Cell):
            raise InvalidType(f"a recurrent network has a cell of cells.py, not {described(cell)}")
        self.cell = cell
        self.head = nn.Identity() if head is None else head
        self.mode = one_of(mode, "mode", ("every", "last"))

    @property
    def units(self) -> int:
        return self.cell.units

    def states(self, x: Tensor, state: State = None) -> list[State]:
        """The states after each step; of the zero state unless one is given."""
        _check_sequence(x)
        state = self.cell.start(x[..., 0, :]) if state is None else state
        found = []
        for moment in x.unbind(-2):
            state = self.cell(moment, state)
            found.append(state)
        return found

    def hidden(self, x: Tensor, state: State = None) -> Tensor:
        """The hidden states `[..., T, m]`."""
        return torch.stack([self.cell.visible(s) for s in self.states(x, state)], -2)

    def forward(self, x: Tensor, state: State = None) -> Tensor:
        z = self.hidden(x, state)
        made: Tensor = self.head(z if self.mode == "every" else z[..., -1, :])
        return made

    def unrolled(self, steps: int) -> Unrolled:
        """The feed-forward network of so many steps; every layer has the cell's own weights."""
        return Unrolled(self, steps)


class Unrolled(nn.Module):
    """A recurrent network as a feed-forward one: a layer per step, all with the same weights.

    Its input is `[..., T n]`, the sequence laid out in one vector, and so is its output.

    >>> from torchtheory.sequences.recurrent.cells import ElmanCell
    >>> flat = Recurrent(ElmanCell(3, 2)).unrolled(4)
    >>> flat(torch.zeros(5, 12).double()).shape, len(list(flat.parameters()))
    (torch.Size([5, 8]), 2)
    """

    def __init__(self, network: Recurrent, steps: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([network.cell] * steps)
        self.head = network.head
        self.mode = network.mode

    def forward(self, x: Tensor) -> Tensor:
        parts = x.chunk(len(self.layers), -1)
        first = self.layers[0]
        assert isinstance(first, Cell)
        state, found = first.start(parts[0]), []
        for layer, part in zip(self.layers, parts, strict=True):
            state = layer(part, state)
            found.append(self.head(first.visible(state)))
        return torch.cat(found, -1) if self.mode == "every" else found[-1]


class Bidirectional(nn.Module):
    r"""One cell forward and one backward in time; hidden states side by side, `[..., T, 2m]`.

    >>> from torchtheory.sequences.recurrent.cells import ElmanCell
    >>> net = Bidirectional(ElmanCell(3, 4), ElmanCell(3, 4, generator=1))
    >>> net(torch.zeros(5, 7, 3).double()).shape
    torch.Size([5, 7, 8])
    """

    def __init__(self, forward_cell: Cell, backward_cell: Cell) -> None:
        super().__init__()
        self.onward = Recurrent(forward_cell)
        self.backward = Recurrent(backward_cell)

    @property
    def units(self) -> int:
        return self.onward.units + self.backward.units

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.onward(x), self.backward(x.flip(-2)).flip(-2)], -1)


class Stacked(nn.Module):
    r"""Layers in depth: $z_{t,\ell}=F_\ell(z_{t-1,\ell},z_{t,\ell-1})$ with $z_{t,0}=x_t$.

    Args:
        layers: cells, or networks of this module; each takes the hidden states of the one before.

    >>> from torchtheory.sequences.recurrent.cells import ElmanCell, GRUCell
    >>> Stacked([ElmanCell(3, 4), GRUCell(4, 2)])(torch.zeros(5, 7, 3).double()).shape
    torch.Size([5, 7, 2])
    """

    def __init__(self, layers: Sequence[Cell | Recurrent | Bidirectional]) -> None:
        super().__init__()
        if not layers:
            raise EmptyData("a stacked network has at least one layer")
        made = [Recurrent(layer) if isinstance(layer, Cell) else layer for layer in layers]
        for layer in made:
            if not isinstance(layer, Recurrent | Bidirectional):
                raise UnsupportedModel(f"layers are cells or recurrent, not {described(layer)}")
        self.layers = nn.ModuleList(made)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def _check_sequence(x: Tensor) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise InvalidType(f"sequences are tensors of real numbers, not {described(x)}")
    if x.ndim < 2:
        raise ShapeMismatch(f"sequences have shape [..., T, n], not {list(x.shape)}")
    if x.shape[-2] == 0:
        raise EmptyData("the sequences have no steps")
