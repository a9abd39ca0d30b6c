r"""Recurrent layers step by step, in operations of which each has a derivative rule.

`torch.lstm`, `torch.gru` and their relatives are single operations: nothing can be seen of how
often a weight is used, and `torch.func.vmap` refuses them. The functions here take the same
arguments and compute the same numbers with `linear`, products and non-linearities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.core.errors import UnsupportedModel

#: (projected input, projected state, state) -> state; a state is (h,) or (h, c)
State = tuple[Tensor, ...]
Step = Callable[[Tensor, Tensor, State], State]


def _tanh_step(a: Tensor, b: Tensor, state: State) -> State:
    return (torch.tanh(a + b),)


def _relu_step(a: Tensor, b: Tensor, state: State) -> State:
    return (torch.relu(a + b),)


def _gru_step(a: Tensor, b: Tensor, state: State) -> State:
    reset_a, update_a, new_a = a.chunk(3, -1)
    reset_b, update_b, new_b = b.chunk(3, -1)
    reset, update = torch.sigmoid(reset_a + reset_b), torch.sigmoid(update_a + update_b)
    new = torch.tanh(new_a + reset * new_b)
    return ((1 - update) * new + update * state[0],)


def _lstm_step(a: Tensor, b: Tensor, state: State) -> State:
    enter, forget, cell, leave = (a + b).chunk(4, -1)
    c = torch.sigmoid(forget) * state[1] + torch.sigmoid(enter) * torch.tanh(cell)
    return torch.sigmoid(leave) * torch.tanh(c), c


def _direction(
    step: Step, x: Tensor, state: State, weights: Sequence[Tensor], biases: bool, backwards: bool
) -> tuple[Tensor, State]:
    """One layer in one direction over `x [time, batch, d]`; `weights` as torch lists them."""
    into, across = weights[0], weights[1]
    b_into, b_across = (weights[2], weights[3]) if biases else (None, None)
    project = weights[-1] if len(weights) % 2 else None
    projected = F.linear(x, into, b_into)
    times = range(len(x) - 1, -1, -1) if backwards else range(len(x))
    states: dict[int, Tensor] = {}
    for t in times:
        state = step(projected[t], F.linear(state[0], across, b_across), state)
        if project is not None:
            state = (F.linear(state[0], project), *state[1:])
        states[t] = state[0]
    return torch.stack([states[t] for t in range(len(x))]), state


def _layers(
    step: Step,
    x: Tensor,
    initial: State,
    weights: Sequence[Tensor],
    biases: Any,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool = False,
) -> tuple[Tensor, ...]:
    if not isinstance(biases, bool):  # the arguments of a packed sequence, one further on
        raise UnsupportedModel(
            "packed sequences mix samples of several lengths; give one padded tensor instead"
        )
    if train and dropout > 0 and layers > 1:
        raise UnsupportedModel("a recurrent layer with dropout is random; call model.eval() first")
    if batch_first:
        x = x.transpose(0, 1)
    directions = 2 if bidirectional else 1
    each = len(weights) // (layers * directions)
    last: list[State] = []
    for layer in range(layers):
        sides = []
        for side in range(directions):
            k = layer * directions + side
            own = weights[k * each : (k + 1) * each]
            out, state = _direction(
                step, x, tuple(s[k] for s in initial), own, biases, backwards=side == 1
            )
            sides.append(out)
            last.append(state)
        x = torch.cat(sides, -1) if bidirectional else sides[0]
    final = [torch.stack(values) for values in zip(*last, strict=True)]
    return (x.transpose(0, 1) if batch_first else x, *final)


def _lstm(x: Tensor, hx: Sequence[Tensor], weights: Sequence[Tensor], *rest: Any) -> Any:
    return _layers(_lstm_step, x, tuple(hx), weights, *rest)


def _single(step: Step) -> Callable[..., Any]:
    def run(x: Tensor, hx: Tensor, weights: Sequence[Tensor], *rest: Any) -> Any:
        return _layers(step, x, (hx,), weights, *rest)

    return run


def _cell(step: Step) -> Callable[..., Any]:
    def run(
        x: Tensor,
        hx: Tensor | Sequence[Tensor],
        into: Tensor,
        across: Tensor,
        b_into: Tensor | None = None,
        b_across: Tensor | None = None,
    ) -> Any:
        state: State = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        new = step(F.linear(x, into, b_into), F.linear(state[0], across, b_across), state)
        return new if len(new) > 1 else new[0]

    return run


#: torch's operation -> the same in steps
IN_STEPS: dict[Any, Callable[..., Any]] = {
    torch.lstm: _lstm,
    torch.gru: _single(_gru_step),
    torch.rnn_tanh: _single(_tanh_step),
    torch.rnn_relu: _single(_relu_step),
    torch.lstm_cell: _cell(_lstm_step),
    torch.gru_cell: _cell(_gru_step),
    torch.rnn_tanh_cell: _cell(_tanh_step),
    torch.rnn_relu_cell: _cell(_relu_step),
}
