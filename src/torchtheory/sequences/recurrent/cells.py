r"""Recurrent cells $z_t=F(z_{t-1},x_t)$ as they are defined: Elman's, the LSTM, the GRU.

A cell takes the inputs at one moment and its state and returns the new state. Its `visible` part,
the hidden state, is what layers above it see. Biases are optional, as the definitions have none.
Source: Deep Learning (notes), chapter 5; The Modern Mathematics of Deep Learning, section 1.6.6.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_matrix, one_of, whole_number
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.nets.activations.table import Activation, as_layer

#: A tensor `[..., m]`, or several of them.
State = Any

Reset = Literal["before", "after"]


class Cell(nn.Module):
    r"""What cells share: weights for the state and for the input, one block per gate.

    Attributes:
        inputs: size n of an input.
        units: size m of the hidden state.
        recurrent: weights on the hidden state, `[g m, m]` for g blocks.
        entering: weights on the input, `[g m, n]`.
        bias: `[g m]`, or None.
    """

    blocks = 1
    bias: nn.Parameter | None

    def __init__(
        self,
        inputs: int,
        units: int,
        *,
        bias: bool = False,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self.inputs = whole_number(inputs, "inputs", least=1)
        self.units = whole_number(units, "units", least=1)
        source, rows = as_generator(generator), self.blocks * self.units
        self.recurrent = _drawn(source, dtype, units, rows, self.units)
        self.entering = _drawn(source, dtype, units, rows, self.inputs)
        self.register_parameter("bias", _drawn(source, dtype, units, rows) if bias else None)

    def start(self, x: Tensor) -> State:
        """The state 0 for inputs `[..., n]`."""
        return x.new_zeros(*x.shape[:-1], self.units)

    def visible(self, state: State) -> Tensor:
        """The hidden state `[..., m]`."""
        shown: Tensor = state
        return shown

    def matrices(self) -> list[Tensor]:
        r"""The matrix `[m, m + n]` of each block, that multiplies $[z_{t-1},x_t]$."""
        return list(torch.cat([self.recurrent, self.entering], 1).chunk(self.blocks))

    def extra_repr(self) -> str:
        return f"{self.inputs}, {self.units}"

    def _set(self, matrices: list[Tensor]) -> None:
        """Weights from one matrix `[m, m + n]` per block."""
        checked = [
            as_matrix(m, rows=self.units, columns=self.units + self.inputs) for m in matrices
        ]
        whole = torch.cat(checked)
        with torch.no_grad():
            self.recurrent.copy_(whole[:, : self.units])
            self.entering.copy_(whole[:, self.units :])

    def _summed(self, state: Tensor, x: Tensor) -> Tensor:
        """All blocks of weighted sums, `[..., g m]`."""
        sums = state @ self.recurrent.T + x @ self.entering.T
        return sums if self.bias is None else sums + self.bias


class ElmanCell(Cell):
    r"""$F(z,x)=\phi(Uz+Vx)$, with $U$ `recurrent` and $V$ `entering`.

    >>> cell = ElmanCell(1, 1, nn.Identity)
    >>> with torch.no_grad():
    ...     _ = cell.recurrent.fill_(0.5), cell.entering.fill_(1.0)
    >>> one = torch.ones(1).double()
    >>> cell(one, cell(one, cell.start(one))).item()
    1.5
    """

    def __init__(
        self,
        inputs: int,
        units: int,
        activation: str | Activation | Callable[..., Any] = "tanh",
        *,
        bias: bool = False,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(inputs, units, bias=bias, generator=generator, dtype=dtype)
        self.activation = as_layer(activation)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        made: Tensor = self.activation(self._summed(state, x))
        return made


class LSTMCell(Cell):
    r"""The long short-term memory, with cell state $z$ and hidden state $\zeta$.

    $$
    z_t=\sigma(F\tilde x_t)\odot z_{t-1}+\sigma(G\tilde x_t)\odot\tanh(V\tilde x_t),\qquad
    \zeta_t=\sigma(H\tilde x_t)\odot\tanh(Uz_t),\qquad\tilde x_t=[\zeta_{t-1},x_t].
    $$

    $\sigma(F\tilde x)$ is the forget gate, $\sigma(G\tilde x)$ the input gate, $\sigma(H\tilde x)$
    the output gate, $\tanh(V\tilde x)$ the candidate. The common LSTM, and torch's, is $U=I$. The
    blocks of the weights stand in torch's order: G, F, V, H. The state is the pair $(\zeta,z)$.

    Args:
        mixing: whether there is a matrix $U$.

    >>> sum(p.numel() for p in LSTMCell(3, 5, mixing=True).parameters()) == 4 * 5 * 8 + 25
    True
    """

    blocks = 4
    mixing: nn.Parameter | None

    def __init__(
        self,
        inputs: int,
        units: int,
        *,
        mixing: bool = False,
        bias: bool = False,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        source = as_generator(generator)
        super().__init__(inputs, units, bias=bias, generator=source, dtype=dtype)
        drawn = _drawn(source, dtype, units, units, units) if mixing else None
        self.register_parameter("mixing", drawn)

    @classmethod
    def from_matrices(
        cls, F: Tensor, G: Tensor, V: Tensor, H: Tensor, U: Tensor | None = None
    ) -> LSTMCell:
        r"""The cell with given matrices `[m, m + n]`, and `U[m, m]` if any; no biases."""
        units = len(as_matrix(F, "F"))
        cell = cls(F.shape[1] - units, units, mixing=U is not None, dtype=F.dtype)
        cell._set([G, F, V, H])
        if cell.mixing is not None and U is not None:
            with torch.no_grad():
                cell.mixing.copy_(as_matrix(U, "U", rows=units, columns=units))
        return cell

    def start(self, x: Tensor) -> tuple[Tensor, Tensor]:
        zero: Tensor = super().start(x)
        return zero, zero

    def visible(self, state: tuple[Tensor, Tensor]) -> Tensor:
        return state[0]

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        hidden, cell = state
        enter, forget, candidate, leave = self._summed(hidden, x).chunk(4, -1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
        shown = cell if self.mixing is None else cell @ self.mixing.T
        return leave.sigmoid() * shown.tanh(), cell


class GRUCell(Cell):
    r"""The gated recurrent unit: reset $\zeta$, update $s$, candidate $\tilde z$.

    $$
    \zeta_t=\sigma(H[z_{t-1},x_t]),\quad s_t=\sigma(G[z_{t-1},x_t]),\quad
    \tilde z_t=\tanh(V[\zeta_t\odot z_{t-1},x_t]),\quad
    z_t=s_t\odot z_{t-1}+(1-s_t)\odot\tilde z_t.
    $$

    Args:
        reset: `before` the product with $V$, as defined; or `after` it, as torch has it:
            $\tilde z=\tanh(V_xx+\zeta\odot(V_zz+c))$, another function of the same matrices.

    Attributes:
        inner_bias: $c$ of the reset after the product, `[m]`, or None.

    The blocks of the weights stand in torch's order: H, G, V.

    >>> sum(p.numel() for p in GRUCell(3, 5).parameters()) == 3 * 5 * 8
    True
    """

    blocks = 3
    inner_bias: nn.Parameter | None

    def __init__(
        self,
        inputs: int,
        units: int,
        *,
        reset: Reset = "before",
        bias: bool = False,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        source = as_generator(generator)
        super().__init__(inputs, units, bias=bias, generator=source, dtype=dtype)
        self.reset = one_of(reset, "reset", ("before", "after"))
        inner = _drawn(source, dtype, units, units) if bias and reset == "after" else None
        self.register_parameter("inner_bias", inner)

    @classmethod
    def from_matrices(cls, H: Tensor, G: Tensor, V: Tensor, *, reset: Reset = "before") -> GRUCell:
        r"""The cell with given matrices `[m, m + n]`; no biases."""
        units = len(as_matrix(H, "H"))
        cell = cls(H.shape[1] - units, units, reset=reset, dtype=H.dtype)
        cell._set([H, G, V])
        return cell

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        m = self.units
        entered = x @ self.entering.T
        if self.bias is not None:
            entered = entered + self.bias
        gates = (entered[..., : 2 * m] + state @ self.recurrent[: 2 * m].T).sigmoid()
        reset, update = gates.chunk(2, -1)
        inner = self.recurrent[2 * m :].T
        if self.reset == "before":
            kept = (reset * state) @ inner
        else:
            kept = state @ inner
            kept = reset * (kept if self.inner_bias is None else kept + self.inner_bias)
        candidate = (entered[..., 2 * m :] + kept).tanh()
        return update * state + (1 - update) * candidate


class DeepTransitionCell(Cell):
    r"""$F(z,x)$ a feed-forward network of $[z,x]$, such as `feedforward.mlp` makes.

    >>> from torchtheory.nets.feedforward import mlp
    >>> cell = DeepTransitionCell(mlp([5, 7, 2], "tanh", output="tanh"), units=2)
    >>> cell(torch.ones(4, 3).double(), torch.zeros(4, 2).double()).shape
    torch.Size([4, 2])
    """

    def __init__(self, transition: nn.Module, units: int) -> None:
        nn.Module.__init__(self)
        self.transition = transition
        self.units = whole_number(units, "units", least=1)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        made: Tensor = self.transition(torch.cat([state, x], -1))
        return made

    def extra_repr(self) -> str:
        return f"units={self.units}"


def _drawn(source: torch.Generator, dtype: torch.dtype, units: int, *shape: int) -> nn.Parameter:
    """Uniform on $[-1/\\sqrt m,1/\\sqrt m]$, as torch draws them, from a generator."""
    draws = torch.rand(shape, generator=source, dtype=dtype, device=source.device)
    return nn.Parameter((2 * draws - 1) / math.sqrt(units))
