r"""Functions of sequences of any length: followed in probability, and not in the sup norm.

A probability on $(\mathbb R^m)^*=\bigcup_{i\ge0}(\mathbb R^m)^i$ puts little weight on long
sequences. So a recurrent network that keeps the last $i_0$ entries in a shift register, and
computes a shallow network of them, errs only on what is longer, or badly fitted. No bounded
activation follows a function that grows with the length, and no ReLU network one that grows faster
than every exponential. Source: Mathematical Aspects of Deep Learning, section 3.8.3 (Definition
3.33, Theorem 3.34).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from torchtheory.approximation.architectures.recurrent_systems import ShallowRNN, rnn_with_bias
from torchtheory.approximation.network_calculus import chain
from torchtheory.core.checks import nonnegative_number, open_fraction, positive_number, whole_number
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    NotConverged,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.nets.activations.table import Activation, Pointwise, activation
from torchtheory.nets.feedforward import affine_layers
from torchtheory.neurons.regression import least_squares
from torchtheory.robustness.lipschitz.pointwise import pointwise_constant
from torchtheory.tracing.activations import layer_facts

SequenceFunction = Callable[[Tensor], Tensor]
"""From sequences `[batch, i, m]` of one length, any length, to `[batch, p]`."""


def length_cutoff(tail: Callable[[int], float], delta: float, *, most: int = 1_000_000) -> int:
    r"""The least $i_0$ with $P(\text{length}>i_0)\le\delta/2$.

    Args:
        tail: $i\mapsto P(\text{length}>i)$.
        delta: the probability of failure that is allowed; half of it goes to long sequences.
        most: where to give up.

    >>> length_cutoff(lambda i: 0.5**i, 0.2)
    4
    """
    open_fraction(delta, "delta")
    if tail(most) > delta / 2:
        raise NotConverged(f"sequences longer than {most} are likelier than {delta / 2:g}")
    low, high = -1, most  # the tail falls, so halving finds the place
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if tail(middle) <= delta / 2 else (middle, high)
    return high


def sequence_values(function: SequenceFunction, sequences: Sequence[Tensor]) -> Tensor:
    """Values `[k, p]` of a function at `k` sequences `[i, m]`, those of one length together.

    >>> sequence_values(lambda x: x.sum(1), [torch.ones(3, 1), torch.ones(0, 1)]).tolist()
    [[3.0], [0.0]]
    """
    if not sequences:
        raise EmptyData("there is no sequence")
    if any(s.ndim != 2 or s.shape[1] != sequences[0].shape[1] for s in sequences):
        raise ShapeMismatch(
            f"sequences are [length, m] with one m, not {[list(s.shape) for s in sequences]}"
        )
    groups: dict[int, list[int]] = defaultdict(list)
    for k, sequence in enumerate(sequences):
        groups[len(sequence)].append(k)
    parts: list[Tensor | None] = [None] * len(sequences)
    with torch.no_grad():
        for members in groups.values():
            made = function(torch.stack([sequences[k] for k in members]))
            if made.ndim != 2 or len(made) != len(members):
                raise ShapeMismatch(
                    f"a function of sequences gives [batch, p], not {list(made.shape)}"
                )
            for k, value in zip(members, made, strict=True):
                parts[k] = value
    return torch.stack([part for part in parts if part is not None])


def failure_probability(
    approximation: SequenceFunction,
    target: SequenceFunction,
    sequences: Sequence[Tensor],
    accuracy: float,
    *,
    confidence: float = 0.99,
) -> Interval:
    r"""$P(\|f_1-f_2\|>\epsilon)$ from independent draws, with its exact interval.

    The source calls $\delta$ in $P(\|f_1-f_2\|>\epsilon)<\delta$ the probability of
    the approximation; it is the probability that it fails.

    Args:
        sequences: drawn from $P$, each `[length, m]`.
        accuracy: $\epsilon$.

    >>> draws = [torch.ones(1, 1)] * 3 + [torch.ones(9, 1)]
    >>> failure_probability(lambda x: x[:, :1, 0], lambda x: x.sum(1), draws, 0.5).estimate
    0.25
    """
    positive_number(accuracy, "accuracy")
    gap = sequence_values(approximation, sequences) - sequence_values(target, sequences)
    failures = int((gap.norm(dim=1) > accuracy).sum())
    return clopper_pearson(failures, len(sequences), confidence)


def windows(sequences: Tensor, memory: int, fill: float = 0.0) -> Tensor:
    r"""What a register of `memory` entries holds at the end, and the length:
    `[batch, memory * m + 1]`, the newest entry first.

    >>> windows(torch.tensor([[[1.0], [2.0], [3.0]]]), 2).tolist()
    [[3.0, 2.0, 3.0]]
    """
    whole_number(memory, "memory", least=1)
    if sequences.ndim != 3:
        raise ShapeMismatch(f"sequences are [batch, i, m], not {list(sequences.shape)}")
    batch, length, m = sequences.shape
    kept = sequences.flip(1)[:, :memory]
    missing = sequences.new_full((batch, memory - kept.shape[1], m), fill)
    count = sequences.new_full((batch, 1), float(length))
    return torch.cat([kept.flatten(1), missing.flatten(1), count], dim=1)


def sequence_network(
    network: nn.Sequential, inputs: int, memory: int, *, fill: float = 0.0
) -> ShallowRNN:
    r"""The shallow recurrent network that applies a shallow one to its last entries, exactly.

    The state holds the positive and negative parts of the last $i_0$ entries, the length, a
    constant neuron, and the hidden units of the network: these read the register *after* the new
    entry, which is affine in the old register and the entry. All are ReLUs.

    Args:
        network: one hidden layer of ReLUs, from `windows` (`memory * inputs + 1` numbers).
        inputs: $m$.
        memory: $i_0$.
        fill: what the register holds before anything came.

    >>> last = chain([(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.zeros(2)),
    ...               (torch.tensor([[1.0, -1.0]]), torch.zeros(1))], [nn.ReLU()])
    >>> sequence_network(last, 1, 1).encode(torch.tensor([[5.0], [-7.0]])).tolist()
    [-7.0]
    """
    whole_number(inputs, "inputs", least=1)
    whole_number(memory, "memory", least=1)
    maps, between = affine_layers(network)
    if len(maps) != 2 or not isinstance(between[0], nn.ReLU):
        raise UnsupportedModel("a network with one hidden layer of ReLUs is needed")
    (W, b), (readout, c) = maps
    held = inputs * memory
    if W.shape[1] != held + 1:
        raise ShapeMismatch(
            f"{memory} entries of {inputs} and the length are {held + 1} numbers, and the network "
            f"takes {W.shape[1]}"
        )
    shift = (
        torch.diag(W.new_ones(held - inputs), -inputs) if memory > 1 else W.new_zeros(held, held)
    )
    enter = torch.eye(held, inputs).to(W)
    # register after the step, in terms of the state (positive part, negative part, length, hidden)
    after = torch.cat([shift, -shift, W.new_zeros(held, 1 + len(W))], dim=1)
    count = W.new_zeros(1, after.shape[1])
    count[0, 2 * held] = 1.0
    A = torch.cat([after, -after, count, W[:, :held] @ after + W[:, held:] @ count])
    B = torch.cat([enter, -enter, W.new_zeros(1, inputs), W[:, :held] @ enter])
    bias = torch.cat([W.new_zeros(2 * held), W.new_ones(1), b + W[:, held]])
    start = W.new_full((held,), fill)
    hidden = torch.relu(W[:, :held] @ start + b)
    initial = torch.cat([start.clamp(min=0), (-start).clamp(min=0), W.new_zeros(1), hidden])
    C = torch.cat([W.new_zeros(len(readout), 2 * held + 1), readout], dim=1)
    made = rnn_with_bias(A, B, C, bias, "relu", read_bias=c, initial=initial)
    return made.requires_grad_(False)


def fit_sequences(
    target: SequenceFunction,
    sequences: Sequence[Tensor],
    memory: int,
    width: int,
    *,
    steps: int = 500,
    generator: RandomSource = None,
) -> ShallowRNN:
    r"""A recurrent network for a function of sequences, fitted on those that fit its register.

    Each length has hidden ReLUs of its own, which the places of the register that are not yet
    filled switch off at all other lengths, and a constant of its own. The units begin with random
    normals through random registers of the sample; all are then moved to make the mean absolute
    error small, and the output weights are fitted once more where that is better. Nothing is
    promised of the error: see `fit_in_probability`.

    Args:
        sequences: draws, each `[length, m]`; longer ones than `memory` are left out.
        memory: $i_0$, as from `length_cutoff`; places not yet filled hold a number below all
            entries.
        width: hidden units, shared out among the lengths up to `memory`; as many as there are
            lengths come on top for the constants.
        steps: of the training.

    Time: $O(sN)$ a step for $s$ sequences and $N$ units of a length.

    >>> grid = torch.linspace(0, 1, 12, dtype=torch.float64)
    >>> draws = [torch.cartesian_prod(*[grid] * i).reshape(-1, i, 1) for i in (1, 2)]
    >>> draws = [s for batch in draws for s in batch]
    >>> made = fit_sequences(lambda x: x.sum(1), draws, 2, 40, steps=0, generator=0)
    >>> abs(made.encode(torch.tensor([[0.5], [0.25]]).double()).item() - 0.75) < 0.01
    True
    """
    whole_number(width, "width", least=1)
    whole_number(steps, "steps", least=0)
    short = [s for s in sequences if len(s) <= memory]
    if not short:
        raise EmptyData(f"no sequence has at most {memory} entries")
    inputs = short[0].shape[1]
    entries = torch.cat(short)
    low, high = (float(v) for v in (entries.min(), entries.max())) if len(entries) else (0.0, 0.0)
    fill = low - max(1.0, high - low)
    x = sequence_values(lambda s: windows(s, memory, fill), short)
    y = sequence_values(target, short)
    source = as_generator(generator)
    share = max(1, width // memory)
    hidden, biases, outs, constants = [], [], [], []
    for i in range(memory + 1):
        rows = x[:, -1] == i
        mine, values = x[rows, : i * inputs], y[rows]
        if not len(mine) or not i:  # nothing is known, or nothing to know but one value
            constants.append(values.mean(0) if len(values) else y.new_zeros(y.shape[1]))
            continue
        units = _fitted_units(mine, values, share, steps, source)
        normals, bias = _gated(units, i, memory, inputs, fill, (low, high))
        hidden.append(normals)
        biases.append(bias)
        outs.append(units.out)
        constants.append(units.constant)
    # the constant of each length: a broken line in the length, level beyond the last
    level = torch.stack(constants)
    slopes = torch.cat([level.diff(dim=0), level.new_zeros(1, level.shape[1])])
    slopes = slopes.diff(dim=0, prepend=level.new_zeros(1, level.shape[1]))
    count = x.new_zeros(len(slopes), x.shape[1])
    count[:, -1] = 1.0
    network = chain(
        [
            (torch.cat([*hidden, count]), torch.cat([*biases, -torch.arange(len(slopes)).to(x)])),
            (torch.cat([*outs, slopes]).T, level[0]),
        ],
        [nn.ReLU()],
    )
    return sequence_network(network, inputs, memory, fill=fill)


@dataclass(frozen=True, slots=True)
class _Units:
    """ReLUs of the entries of sequences of one length: normals, biases, outputs, a constant."""

    normals: Tensor
    bias: Tensor
    out: Tensor
    constant: Tensor

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.normals.T + self.bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self.features(x) @ self.out + self.constant

    def refitted(self, x: Tensor, y: Tensor) -> _Units:
        fit = least_squares(self.features(x), y, intercept=True)
        return replace(self, out=fit.weight, constant=fit.bias)


def _fitted_units(
    x: Tensor, y: Tensor, width: int, steps: int, source: torch.Generator | None
) -> _Units:
    normals = torch.randn(width, x.shape[1], dtype=x.dtype, generator=source)
    through = x[torch.randint(len(x), (width,), generator=source)]
    start = _Units(normals, -(normals * through).sum(1), y.new_zeros(0), y.new_zeros(0))
    start = start.refitted(x, y)
    spread = float(y.std(dim=0, correction=0).max())
    if not steps or spread == 0:
        return start
    begin = start.normals, start.bias, torch.zeros_like(start.out), y.mean(0)
    parts = [v.clone().requires_grad_() for v in begin]
    optimizer = torch.optim.Adam(parts, lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
    for _ in range(steps):
        gap = (_Units(*parts)(x) - y).square().sum(1)
        loss = (gap + (1e-2 * spread) ** 2).sqrt().mean()  # a jump is worth a steep ramp
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    moved = _Units(*(v.detach() for v in parts))
    return min(
        (start, moved, moved.refitted(x, y)), key=lambda u: float((u(x) - y).norm(dim=1).mean())
    )


def _gated(
    units: _Units, length: int, memory: int, inputs: int, fill: float, box: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    r"""The same units of the whole register and the length $\ell$, off unless $\ell=i$.

    $K(\ell-i)$ switches them off for shorter sequences. For longer ones places that are empty at
    length $i$ are filled, and each takes away more than the length adds.
    """
    reach = max(abs(fill), abs(box[0]), abs(box[1])) + abs(fill - box[0])
    most = 1 + 2 * (units.normals.abs().sum(1) * reach + units.bias.abs())
    normals = units.normals.new_zeros(len(units.normals), memory * inputs + 1)
    normals[:, : length * inputs] = units.normals
    normals[:, -1] = most
    bias = units.bias - length * most
    taken = 4 * most / (box[0] - fill)
    for place in range(length, memory):
        normals[:, place * inputs] = -taken
        bias = bias + taken * fill
    return normals, bias


def fit_in_probability(
    target: SequenceFunction,
    sequences: Sequence[Tensor],
    accuracy: float,
    delta: float,
    *,
    width: int = 64,
    most: int = 1024,
    steps: int = 500,
    confidence: float = 0.99,
    generator: RandomSource = None,
) -> tuple[ShallowRNN, Interval]:
    r"""A recurrent network with $P(\|f_1-f_2\|>\epsilon)\le\delta$, or a refusal that says why not.

    The first half of the draws chooses the register, so that about $\delta/2$ of them are longer,
    and is fitted with more and more units. Each network is tried on a part of the second half that
    was not looked at before, and the first whose failures are below $\delta$, with the upper end
    of their exact interval, is the one.

    Args:
        sequences: independent draws from $P$, each `[length, m]`.
        accuracy: $\epsilon$.
        delta: $\delta$.
        width: hidden units to begin with; doubled up to `most`.
        confidence: that the promise holds, all trials together.

    Returns:
        the network and the interval of its failures.

    Raises:
        NotConverged: with the share of failures that was reached.

    >>> draws = [torch.rand(1 + i % 3, 1, generator=torch.Generator().manual_seed(i)).double()
    ...          for i in range(400)]
    >>> made, share = fit_in_probability(lambda x: x.amax(1), draws, 0.1, 0.2, generator=0)
    >>> share.high <= 0.2
    True
    """
    positive_number(accuracy, "accuracy")
    open_fraction(delta, "delta")
    whole_number(width, "width", least=1)
    widths = [width]
    while 2 * widths[-1] <= most:
        widths.append(2 * widths[-1])
    half = len(sequences) // 2
    if half < len(widths):
        raise EmptyData(f"{len(sequences)} sequences are too few: give more to fit and to try")
    train, trials = sequences[:half], sequences[half:]
    lengths = sorted(len(s) for s in train)
    memory = max(1, lengths[math.ceil((1 - delta / 2) * half) - 1])
    source = as_generator(generator)
    size = len(trials) // len(widths)
    for k, units in enumerate(widths):
        made = fit_sequences(target, train, memory, units, steps=steps, generator=source)
        fresh = trials[k * size : (k + 1) * size]
        level = 1 - (1 - confidence) / len(widths)
        share = failure_probability(made, target, fresh, accuracy, confidence=level)
        if share.high <= delta:
            return made, share
    raise NotConverged(
        f"with {units} units and a register of {memory} entries the error exceeds {accuracy:g} on "
        f"{share.estimate:.3g} of {size} fresh sequences (at most {share.high:.3g} of all, "
        f"{delta:g} are allowed): give more sequences, units or steps, or ask for less"
    )


@dataclass(frozen=True, slots=True)
class LengthStress:
    r"""How a recurrent network fares on longer and longer sequences.

    Attributes:
        lengths: `[k]`.
        errors: `[k]`, the largest error among the sequences of each length.
        bounds: `[k]`, what no output of that length can exceed in norm.
        floors: `[k]`, the largest $\|f\|-$ bound, below which the error cannot be.
    """

    lengths: Tensor
    errors: Tensor
    bounds: Tensor
    floors: Tensor


def _constants(sigma: nn.Module) -> tuple[float, float]:
    """The Lipschitz constant of an activation and its supremum, known and not measured."""
    if type(sigma) is nn.Identity:
        return 1.0, math.inf
    row = sigma.function if isinstance(sigma, Pointwise) else None
    if isinstance(row, Activation) and row.parameters == activation(row.name).parameters:
        return row.known.lipschitz, max(abs(row.known.lowest), abs(row.known.highest))
    try:
        steepest, facts = pointwise_constant(sigma), layer_facts(sigma)
    except UnsupportedModel as error:
        raise UnsupportedModel(
            "of an activation that is neither torch's nor of the table no bound can be read off "
            f"its values ({error}): give its Lipschitz constant as lipschitz="
        ) from error
    return steepest, max(abs(facts.lowest), abs(facts.highest))


def output_bounds(
    rnn: ShallowRNN,
    time: int,
    radius: float,
    *,
    lipschitz: float | None = None,
    largest: float = math.inf,
) -> Tensor:
    r"""Norms that the outputs cannot exceed after $0,\dots,T$ entries, `[T + 1]`.

    With $r_0=\|h_0\|$,

    $$
    r_{i+1}=\min\bigl(\sqrt n\,\sup|\sigma|,\ \sqrt n|\sigma(0)|+
    \lambda(\|A\|r_i+\|B\|R)\bigr),\qquad\|y_i\|\le\|C\|r_i:
    $$

    constant for a bounded activation, exponential in the length otherwise.

    Args:
        radius: $R$, the largest norm of an entry.
        lipschitz: $\lambda$, of an activation that is neither torch's nor of the table, whose
            values at some points prove nothing of the others.
        largest: $\sup|\sigma|$ of such an activation, where it has one.

    Raises:
        UnsupportedModel: if the activation is such a one and `lipschitz` is not given.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> output_bounds(ShallowRNN(2 * one, one, one, "relu"), 3, 1.0).tolist()
    [0.0, 1.0, 3.0, 7.0]
    """
    whole_number(time, "time", least=0)
    nonnegative_number(radius, "radius")
    if lipschitz is None:
        steepest, highest = _constants(rnn.nonlinearity)
    else:
        steepest = nonnegative_number(lipschitz, "lipschitz")
        highest = largest
        if not highest >= 0:
            raise InvalidInput(f"largest is an upper bound of |σ|, at least 0, not {largest}")
    a, b, c = (float(torch.linalg.matrix_norm(p.detach(), ord=2)) for p in (rnn.A, rnn.B, rnn.C))
    root = math.sqrt(len(rnn.A))
    top = root * highest
    origin = root * abs(float(rnn.nonlinearity(torch.zeros(1, dtype=torch.float64))))
    reach = [float(rnn.initial.norm())]
    for _ in range(time):
        reach.append(min(top, origin + steepest * (a * reach[-1] + b * radius)))
    return c * torch.tensor(reach, dtype=torch.float64)


def length_stress_test(
    rnn: ShallowRNN,
    target: SequenceFunction,
    sequences: Sequence[Tensor],
    *,
    lipschitz: float | None = None,
    largest: float = math.inf,
) -> LengthStress:
    r"""Errors and what can be proved about them, length by length.

    Args:
        sequences: one batch `[batch, i, m]` for each length $i$.
        lipschitz, largest: of an activation of your own, as in `output_bounds`.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> net = ShallowRNN(one, one, one, "tanh")
    >>> long = [torch.ones(1, i, 1, dtype=torch.float64) for i in (1, 10)]
    >>> found = length_stress_test(net, lambda x: x.sum(1), long)
    >>> [round(f, 9) for f in found.floors.tolist()], bool((found.errors >= found.floors).all())
    ([0.0, 9.0], True)
    """
    if not sequences:
        raise EmptyData("there is no sequence")
    if any(s.ndim != 3 for s in sequences):
        raise ShapeMismatch(
            "give one batch [batch, i, m] for each length, not "
            f"{[list(s.shape) for s in sequences]}"
        )
    lengths = [s.shape[1] for s in sequences]
    radius = max((float(s.norm(dim=2).max()) for s in sequences if s.numel()), default=0.0)
    allowed = output_bounds(rnn, max(lengths), radius, lipschitz=lipschitz, largest=largest)
    allowed = allowed[lengths]
    errors, sizes = [], []
    with torch.no_grad():
        for batch in sequences:
            wanted = target(batch)
            errors.append((rnn(batch) - wanted).norm(dim=1).max())
            sizes.append(wanted.norm(dim=1).max())
    floors = (torch.stack(sizes) - allowed).clamp(min=0)
    return LengthStress(torch.tensor(lengths), torch.stack(errors), allowed, floors)
