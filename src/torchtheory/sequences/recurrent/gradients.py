r"""How gradients shrink or grow on their way back in time.

The state at time i depends on that at time t through a product of Jacobians,
$\partial z_i/\partial z_t=J_i\cdots J_{t+1}$. For Elman's cell $J_j=\dot\Phi_jU$, so with
$|\phi'|\le\alpha$

$$
\prod_j\sigma_{\min}(\dot\Phi_j)\;\sigma_{\min}(U)^{i-t}\le\sigma_{\min}\Big(\frac{\partial z_i}
{\partial z_t}\Big),\qquad
\Big\|\frac{\partial z_i}{\partial z_t}\Big\|_2\le(\alpha\,\sigma_{\max}(U))^{i-t}:
$$

gradients certainly vanish if $\sigma_{\max}(U)<1/\alpha$. If it is larger, they may do either.
Source: Deep Learning (notes), chapter 5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from torchtheory.core.checks import (
    described,
    module_with_values,
    number_between,
    whole_number,
)
from torchtheory.core.errors import InvalidType, ShapeMismatch, UnsupportedModel
from torchtheory.core.mapping import Mapped, jacobian
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.models.model import global_randomness_kept
from torchtheory.nets.activations.table import ACTIVATIONS
from torchtheory.sequences.recurrent.cells import Cell, ElmanCell, State
from torchtheory.sequences.recurrent.conversion import from_torch
from torchtheory.sequences.recurrent.lru import LRU
from torchtheory.sequences.recurrent.minimal import GatedLinear
from torchtheory.sequences.recurrent.networks import Bidirectional, Recurrent
from torchtheory.tracing.interpret import Call
from torchtheory.tracing.network import Operation, Value, pair_up
from torchtheory.tracing.recorder import record_call

#: torch's operations, and the layers that call them.
RECURRENT_OPERATIONS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn_tanh": nn.RNN, "rnn_relu": nn.RNN}

#: Recurrences that are diagonal and linear in the state, whose Jacobians are products of factors.
_LINEAR = (LRU, GatedLinear)


@dataclass(frozen=True, slots=True)
class LagBounds:
    r"""The Jacobian from the state k steps before the last to the last one, for $k=0,\dots,T-1$.

    Attributes:
        largest, smallest: its largest and smallest singular value, `[T]`.
        upper: $(\alpha\,\sigma_{\max}(U))^k$, `[T]`.
        lower: $\prod\sigma_{\min}(\dot\Phi_j)\,\sigma_{\min}(U)^k$, `[T]`.
        factor: $\alpha\,\sigma_{\max}(U)$; below 1 gradients vanish for certain.
    """

    largest: Tensor
    smallest: Tensor
    upper: Tensor
    lower: Tensor
    factor: float


def lag_bounds(cell: ElmanCell, x: Tensor, *, slope: float | None = None) -> LagBounds:
    r"""Singular values of $\partial z_T/\partial z_{T-k}$ along one sequence, and their bounds.

    Args:
        cell: Elman's.
        x: a sequence `[T, n]`.
        slope: $\alpha$, the largest slope of the activation; of the table of activations (1/4
            for the logistic function, 1 for tanh and ReLU) unless given.

    Time $O(Tm^3)$.

    >>> cell = ElmanCell(1, 2, nn.Identity)
    >>> with torch.no_grad():
    ...     _ = cell.recurrent.copy_(torch.tensor([[0.0, 10.0], [0.0, 0.0]]))
    >>> found = lag_bounds(cell, torch.zeros(3, 1).double(), slope=1.0)
    >>> found.factor, found.largest.tolist()                      # U² = 0 whatever its norm
    (10.0, [1.0, 10.0, 0.0])
    """
    if not isinstance(cell, ElmanCell):
        raise InvalidType(f"the bound is about Elman's cell, not {described(cell)}")
    alpha = steepest(cell.activation) if slope is None else number_between(slope, "slope", 0, 1e9)
    jacobians = state_jacobians(cell, x)
    U = cell.recurrent.detach()
    singular = torch.linalg.svdvals(U)
    slopes = _slopes(cell, x)
    product = torch.eye(cell.units, dtype=U.dtype, device=U.device)
    largest, smallest, lower = [], [], []
    weakest = torch.ones((), dtype=U.dtype, device=U.device)
    for k in range(len(x)):
        values = torch.linalg.svdvals(product)
        largest.append(values[0])
        smallest.append(values[-1])
        lower.append(weakest)
        # from the state of step T - k one step further back
        place = len(x) - 1 - k
        product = product @ jacobians[place]
        weakest = weakest * slopes[place].abs().min() * singular[-1]
    factor = alpha * float(singular[0])
    lags = torch.arange(len(x), dtype=U.dtype, device=U.device)
    return LagBounds(
        torch.stack(largest), torch.stack(smallest), factor**lags, torch.stack(lower), factor
    )


def steepest(activation: nn.Module) -> float:
    r"""$\sup|\phi'|$ of an activation of the table.

    >>> steepest(nn.Sigmoid()), steepest(nn.Tanh())
    (0.25, 1.0)
    """
    if isinstance(activation, nn.Identity):
        return 1.0
    for row in ACTIVATIONS.values():
        # the table knows it for its own parameters only
        fits = not row.parameters and row.module is not None and row.known.lipschitz is not None
        if fits and type(row.layer()) is type(activation):
            return float(row.known.lipschitz)
    raise UnsupportedModel(f"the largest slope of {activation} is not known: give slope=")


def state_jacobians(cell: Cell, x: Tensor, state: State = None) -> Tensor:
    r"""$J_t=\partial z_t/\partial z_{t-1}$ along one sequence `[T, n]`: `[T, s, s]`.

    The state of an LSTM is $(\zeta,z)$, so s is twice its units.

    >>> from torchtheory.sequences.recurrent.cells import LSTMCell
    >>> state_jacobians(LSTMCell(3, 4), torch.zeros(5, 3).double()).shape
    torch.Size([5, 8, 8])
    """
    if not isinstance(x, Tensor) or x.ndim != 2:
        raise ShapeMismatch(f"one sequence [T, n] is needed, not {described(x)}")
    with torch.no_grad():
        first = cell.start(x[0]) if state is None else state
        states = [first, *Recurrent(cell).states(x, first)[:-1]]
    flat = torch.stack([_joined(s) for s in states])
    parts = len(flat[0]) // cell.units

    def step(z: Tensor, moment: Tensor) -> Tensor:
        given = z if parts == 1 else tuple(z.chunk(parts, -1))
        return _joined(cell(moment, given))

    made: Tensor = Mapped(jacobian(step))(flat, x)
    return made.detach()


@dataclass(frozen=True, slots=True)
class LayerMemory:
    r"""How a recurrent layer's last state depends on the states before it.

    Attributes:
        name: of the module, with the number of the layer in it and its direction.
        kind: `RNN`, `LSTM` or `GRU`, or that of a linear recurrence, `LRU`, `MinGRU`, `MinLSTM`.
        units: of the hidden state.
        gains: $\|\partial z_T/\partial z_{T-k}\|_F/\sqrt s$, the root mean square of what a change
            of the state k steps before comes to, estimated for each sample, `[samples, T]` with
            $k=0,\dots,T-1$. For a layer that runs backwards T is the beginning.
        factor: $\alpha\,\sigma_{\max}(U)$ per step, for an `RNN` and an `LRU`; None for gates.
            Below 1 gradients vanish for certain: the gain at lag k is at most `factor ** k`.
        eigenvalues: those of $U$, `[units]`, complex; of a gated linear recurrence the geometric
            means of its factors over samples and steps; None for other gated cells.
    """

    name: str
    kind: str
    units: int
    gains: Tensor
    factor: float | None
    eigenvalues: Tensor | None = None

    @property
    def horizon(self) -> float | None:
        r"""Steps after which the slowest mode has decayed to $1/e$, $-1/\log\max|\lambda|$.

        Infinite where a mode does not decay; None where no eigenvalue is known. Of an `RNN`, that
        of its linear part.
        """
        if self.eigenvalues is None:
            return None
        largest = float(self.eigenvalues.abs().max())
        if largest >= 1:
            return math.inf
        return 0.0 if largest == 0 else -1 / math.log(largest)

    @property
    def steps(self) -> int:
        return self.gains.shape[1]

    def reach(self, share: float = 0.01) -> Tensor:
        """For each sample the largest lag with a gain of at least `share`, `[samples]`."""
        number_between(share, "share", 0, 1, closed="neither")
        lags = torch.arange(self.steps, device=self.gains.device)
        return ((self.gains >= share) * lags).amax(1)

    def certified_reach(self, share: float = 0.01) -> float | None:
        """The lag beyond which no input and no state gives a gain of `share`; None if unknown."""
        number_between(share, "share", 0, 1, closed="neither")
        if self.factor is None or self.factor >= 1:
            return None
        return 0.0 if self.factor == 0 else math.log(share) / math.log(self.factor)


def recurrent_gradients(
    model: nn.Module, x: Any, *, probes: int = 8, generator: RandomSource = None
) -> list[LayerMemory]:
    """How far back gradients reach in every recurrent layer of a model.

    These are torch's `nn.RNN`, `nn.LSTM` and `nn.GRU` and the linear recurrences of this package.
    The model runs once on `x`, in evaluation mode, to see what enters its recurrent layers; then
    each layer runs step by step, and random directions are carried back from its last state. Of
    linear recurrences the Jacobians are known: products of their factors.

    Args:
        model: any module, also from an archive; it is not changed.
        x: what it takes, with the samples along the first axis. Packed sequences inside of it are
            looked at up to the length of the shortest, in the order in which they are packed.
        probes: random directions per sample; the squared gain has a relative error of at most
            about $\\sqrt{2/\\text{probes}}$ for each sample.

    Time: per layer one run of T steps in Python, and `probes` backward passes. Memory: the states.

    >>> model = nn.LSTM(3, 4, batch_first=True)
    >>> (memory,) = recurrent_gradients(model, torch.zeros(2, 30, 3))
    >>> memory.kind, memory.gains.shape, bool(memory.gains[0, 20] < 0.1)
    ('LSTM', torch.Size([2, 30]), True)
    """
    whole_number(probes, "probes", least=1)
    source = as_generator(generator)
    entered = _entered(module_with_values(model), x if isinstance(x, tuple) else (x,))
    if not entered:
        raise UnsupportedModel(
            f"{type(model).__name__} runs no nn.RNN, nn.LSTM, nn.GRU and no linear recurrence"
        )
    found = []
    for name, layer, sequences, start in entered:
        if isinstance(layer, _LINEAR):
            found.append(_linear_memory(name, layer, sequences))
        else:
            found += _memories(name, layer, sequences, start, probes, source)
    return found


def _linear_memory(name: str, layer: LRU | GatedLinear, x: Tensor) -> LayerMemory:
    """Of a diagonal recurrence: the root mean square of the products of its last k factors."""
    kind = type(layer).__name__
    with torch.no_grad():
        if isinstance(layer, LRU):
            eigenvalues = layer.eigenvalues
            lags = torch.arange(x.shape[1], device=x.device)[:, None]
            sizes = eigenvalues.abs().double() ** lags
            gains = sizes.square().mean(1).sqrt().expand(len(x), -1)
            factor: float | None = float(eigenvalues.abs().max())
        else:
            factors = layer.coefficients(x)[0].double()  # [samples, T, m]
            logs = factors.clamp_min(1e-300).log()
            back = logs.flip(1).cumsum(1)[:, :-1]
            sums = torch.cat([torch.zeros_like(logs[:, :1]), back], 1)
            gains = (2 * sums).exp().mean(2).sqrt()
            eigenvalues = logs.mean((0, 1)).exp().to(torch.complex128)
            factor = None
    return LayerMemory(name or kind, kind, len(eigenvalues), gains, factor, eigenvalues)


# ---------------------------------------------------------------------------------- what runs


def _entered(model: nn.Module, x: tuple[Any, ...]) -> list[tuple[str, Any, Tensor, Any]]:
    """What enters each recurrent layer when it first runs: its name, itself, `[samples, T, n]`, and
    the state it starts with."""
    network, given = record_call(model, x, {})
    modules = dict(model.named_modules())
    inside: dict[tuple[str, Any], list[Operation]] = {}
    for op in network:
        for name, call in op.calls or [("", None)]:
            if isinstance(modules.get(name), _LINEAR):
                inside.setdefault((name, call), []).append(op)
    #: What a linear recurrence takes, by the operation that comes first in it.
    taken = {
        own[0].number: (name, network.boundary(own)[0][0]) for (name, _), own in inside.items()
    }
    found: dict[Any, tuple[str, Any, Tensor, Any]] = {}
    held: dict[Value, Any] = dict(zip(network.inputs, given, strict=True))

    def step(op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if op.number in taken:
            name, value = taken[op.number]
            sequences = held[value].flatten(0, -3)  # they are [..., T, n]
            found.setdefault(name, (name, modules[name], sequences, None))
        if op.name in RECURRENT_OPERATIONS:
            first = op.arguments["params"][0]
            if first not in found:
                found[first] = (op.layer, *_as_layer(Call(op, args, kwargs, len(given))))
        made = op.function(*args, **kwargs)
        pair_up(op.result, made, held)
        return made

    with torch.no_grad(), global_randomness_kept():
        network.evaluate(given, len(given[0]), step)
    return list(found.values())


def _as_layer(call: Call) -> tuple[Any, Tensor, Any]:
    """The layer whose operation it is, with its sequences, samples first, and its first state."""
    weights, kind = call["params"], RECURRENT_OPERATIONS[call.name]
    width = weights[1].shape[0] // {"lstm": 4, "gru": 3}.get(call.name, 1)
    options: dict[str, Any] = {"nonlinearity": call.name[-4:]} if kind is nn.RNN else {}
    if weights[1].shape[1] != width:
        options["proj_size"] = weights[1].shape[1]
    layer: Any = kind(
        weights[0].shape[1],
        width,
        num_layers=call["num_layers"],
        bias=call["has_biases"],
        bidirectional=call["bidirectional"],
        device="meta",  # without drawing weights that nobody wants
        **options,
    )
    for name, weight in zip(layer._flat_weights_names, weights, strict=True):
        setattr(layer, name, nn.Parameter(weight.detach()))
    if "batch_sizes" in call.arguments:
        packed = PackedSequence(call["data"], call["batch_sizes"])
        padded, lengths = pad_packed_sequence(packed, batch_first=True)
        return layer, padded[:, : int(lengths.min())], call["hx"]
    x = call["input"]
    return layer, x if call["batch_first"] else x.transpose(0, 1), call["hx"]


def _memories(
    name: str, layer: Any, x: Tensor, start: Any, probes: int, source: torch.Generator
) -> list[LayerMemory]:
    stack = from_torch(layer)
    kind = type(layer).__name__
    found, place = [], 0
    for depth, part in enumerate(stack.layers):
        assert isinstance(part, Recurrent | Bidirectional)
        directions = (
            [(part.onward, False), (part.backward, True)]
            if isinstance(part, Bidirectional)
            else [(part, False)]
        )
        outputs = []
        for network, backward in directions:
            cell, given = network.cell, x.flip(1) if backward else x
            first = _each(start, lambda v, place=place: v[place])
            gains, hidden = _gains(network, given, first, probes, source)
            outputs.append(hidden.flip(1) if backward else hidden)
            words = [name or kind]
            words += [f"layer {depth + 1}"] if layer.num_layers > 1 else []
            words += ["backwards"] if backward else []
            factor = eigenvalues = None
            if isinstance(cell, ElmanCell):
                matrix = cell.recurrent.detach().double()
                factor = steepest(cell.activation) * float(torch.linalg.matrix_norm(matrix, 2))
                eigenvalues = torch.linalg.eigvals(matrix)
            found.append(
                LayerMemory(", ".join(words), kind, cell.units, gains, factor, eigenvalues)
            )
            place += 1
        x = torch.cat(outputs, -1)
    return found


def _gains(
    network: Recurrent, x: Tensor, start: Any, probes: int, source: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The gains `[samples, T]`, and the hidden states `[samples, T, m]`."""
    with torch.enable_grad():
        cell = network.cell
        state = cell.start(x[:, 0]) if start is None else start
        # so that every state is a function of something, whatever the weights
        state = _each(state, lambda v: v.clone().requires_grad_())
        states = []
        for moment in x.unbind(1):
            # copies: parts of a state are coordinates of their own, also where one made the other
            state = _each(cell(moment, state), torch.clone)
            states.append(state)
        last = _joined(states[-1])
        leaves = [part for state in states for part in _parts(state)]
        total = torch.zeros(len(states), len(x), dtype=torch.float64, device=x.device)
        sent = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for _ in range(probes):
            probe = gaussian(*last.shape, generator=source, dtype=last.dtype, device=last.device)
            found = torch.autograd.grad((last * probe).sum(), leaves, retain_graph=True)
            squares = torch.stack([g.double().square().sum(1) for g in found])
            total += squares.reshape(len(states), -1, len(x)).sum(1)
            sent += probe.double().square().sum(1)
    # over what was sent and not over its mean: so it never exceeds the spectral norm
    gains = (total / sent).sqrt().flip(0).T
    hidden = torch.stack([cell.visible(s) for s in states], 1).detach()
    return gains, hidden


def _slopes(cell: ElmanCell, x: Tensor) -> Tensor:
    """$\\phi'$ at each step of a sequence, `[T, m]`."""
    with torch.no_grad():
        hidden = Recurrent(cell).hidden(x)
        before = torch.cat([torch.zeros_like(hidden[:1]), hidden[:-1]])
        sums = cell._summed(before, x)
    sums = sums.detach().requires_grad_()
    with torch.enable_grad():
        (slopes,) = torch.autograd.grad(cell.activation(sums).sum(), sums)
    return slopes


def _parts(state: State) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def _joined(state: State) -> Tensor:
    return torch.cat(_parts(state), -1)


def _each(state: Any, change: Any) -> Any:
    """The same change to every tensor of a state; None stays None."""
    if state is None:
        return None
    return tuple(change(v) for v in state) if isinstance(state, tuple | list) else change(state)
