"""Functions of sequences of any length: recurrent networks fail rarely, and then without limit."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.approximation.architectures.recurrent_sequences import (
    LengthStress,
    SequenceFunction,
    failure_probability,
    fit_in_probability,
    fit_sequences,
    length_cutoff,
    length_stress_test,
    output_bounds,
    sequence_network,
    sequence_values,
    windows,
)
from torchtheory.approximation.architectures.recurrent_simulation import simulate_system
from torchtheory.approximation.architectures.recurrent_systems import (
    DynamicalSystem,
    ShallowRNN,
    rnn_with_bias,
)
from torchtheory.approximation.network_calculus import chain
from torchtheory.approximation.piecewise.interpolants import relu_interpolant
from torchtheory.labs.engine import COLORS, Interval, Run, lab
from torchtheory.nets.feedforward import affine_layers, mlp


def median(x: Tensor) -> Tensor:
    """The middle entry, the mean of both middle ones where the length is even."""
    ordered = x[..., 0].sort(dim=1).values
    i = x.shape[1]
    return (ordered[:, (i - 1) // 2] + ordered[:, i // 2]).unsqueeze(1) / 2


def length(x: Tensor) -> Tensor:
    return x.new_full((len(x), 1), float(x.shape[1]))


def parity(x: Tensor) -> Tensor:
    return x.new_full((len(x), 1), float(x.shape[1] % 2))


TARGETS: dict[str, SequenceFunction] = {
    "sum": lambda x: x.sum(1),
    "maximum": lambda x: x.amax(1),
    "median": median,
    "parity of the length": parity,
    "sum above 2": lambda x: (x.sum(1) > 2).double(),
    "entries above 0.6": lambda x: (x > 0.6).double().sum(1),
}

#: slope of the ramps that stand for jumps
RAMP = 200.0


@lab(
    "recurrent-sequences",
    room="approximation",
    covers=["X-94", "X-95"],
    title="On sequences of any length: close with high probability, never everywhere",
    full={"draws": 20000, "width": 600, "longest": 4000},
    least={"draws": 100, "longest": 50, "ending": 0.25, "width": 30},
    most={"ending": 0.9},
)
def recurrent_sequences(run: Run, draws: int = 8000, width: int = 240, longest: int = 400, ending: float = 0.3) -> None:
    """Sequences of random length, and functions of them: sum, maximum, median, parity, jumps.

    The proof's recipe is carried out: longer sequences than a cutoff are given up, a register
    keeps the others, a shallow network of the register is fitted. The share of sequences on which
    the recurrent network errs by more than 0.1 stays below δ = 0.17, with the upper end of its
    confidence interval. The same networks fail on longer and longer sequences without limit: the
    outputs of a bounded activation are bounded, those of ReLUs grow at most exponentially.

    Args:
        draws: random sequences to fit, and as many to test.
        width: units of the fitted networks.
        longest: steps of a long sequence.
        ending: probability that a sequence ends with a step.
    """
    # the tail at the cutoff 7 is 0.7^7 = 0.082, nearly all of the half of δ that long sequences get
    delta, accuracy = 0.17, 0.1
    memory = cutoffs(run, ending, delta)
    register(run, memory)
    train, test = drawn(run, draws, ending), drawn(run, draws, ending)
    distant = drawn(run, draws // 4, ending / 5)
    nets = networks(run, train, memory, width)
    counter = tanh_counter(run, memory, accuracy)
    shares = in_probability(run, {**nets, "length": counter}, test, distant, accuracy, delta)
    fitted_to_a_promise(run, accuracy)
    exact_failures(run, nets["sum"], test, accuracy, ending, memory)
    every_accuracy(run, test)
    every_probability(run, test, ending)
    stress = bounded(run, counter, longest)
    growth = unbounded(run)
    run.table(
        "failures",
        ["target", "neurons", "share of failures", "99% interval from", "to", "δ"],
        [
            (name, len({**nets, "length": counter}[name].A), s.estimate, s.low, s.high, delta)
            for name, s in shares.items()
        ],
        caption=f"Sequences of geometric length, cutoff {memory}, accuracy {accuracy}",
    )
    run.figure(
        "lengths",
        lambda axes: plot(axes, nets, test, stress, growth),
        grid=(1, 3),
        size=(13.5, 3.6),
        caption="Left: the mean error by length; beyond the cutoff nothing is promised. Middle: "
        "counting with tanh. Right: outputs of ReLU networks stay below their exponential "
        "bounds, and $2^{2^i}$ does not.",
    )


def drawn(run: Run, count: int, ending: float) -> list[Tensor]:
    """Sequences of entries uniform on [0.2, 1] whose length, from 1 on, is geometric."""
    lengths = 1 + torch.floor(torch.log1p(-run.rand(count)) / math.log1p(-ending)).long()
    return [0.2 + 0.8 * run.rand(i, 1) for i in lengths.clamp(max=60).tolist()]


def cutoffs(run: Run, ending: float, delta: float) -> int:
    """Geometric lengths: the cutoff in closed form."""
    endings, deltas = (0.5, 0.3, 0.1, 0.02), (0.3, 0.1, 0.011)
    found, formula, tails, sooner = [], [], [], []
    for q in endings:
        for d in deltas:
            i = length_cutoff(lambda n, q=q: (1 - q) ** n, d)  # type: ignore[misc]
            found.append(i)
            formula.append(math.ceil(math.log(d / 2) / math.log(1 - q)))
            tails.append((1 - q) ** i / d)
            sooner.append((1 - q) ** (i - 1) / d)
    run.states("X-94", r"P(\mathrm{length}>i)=(1-q)^i:\ i_0=\lceil\ln(\delta/2)/\ln(1-q)\rceil").equal(found, formula)
    says = run.states("X-94", r"P(\mathrm{length}>i_0)/\delta\le\tfrac12")
    says.at_most(tails, 0.5)
    says.fails("a cutoff one shorter", sooner)
    return length_cutoff(lambda n: (1 - ending) ** n, delta)


def register(run: Run, memory: int) -> None:
    """The shift register keeps the last entries exactly, and the length for ever."""
    promised, measured, forgetful = [], [], []
    for inputs in (1, 2):
        net = mlp([inputs * memory + 1, 9, 2], "relu", generator=run.generator).requires_grad_(False)
        rnn = sequence_network(net, inputs, memory, fill=-1.0)
        maps, between = affine_layers(net)
        (W, b), last = maps
        blind = W.clone()
        blind[:, inputs * (memory - 1) : inputs * memory] = 0
        short = sequence_network(chain([(blind, b), last], between), inputs, memory, fill=-1.0)
        for i in range(memory + 4):
            x = run.randn(5, i, inputs)
            promised.append(net(windows(x, memory, -1.0)).flatten())
            measured.append(rnn(x).flatten())
            forgetful.append(short(x).flatten())
    says = run.states("X-94", r"\text{the recurrent network gives } \Phi(x_i,\dots,x_{i-i_0+1},i) \text{ at every } i")
    says.equal(torch.cat(measured), torch.cat(promised), 1e-11)
    says.fails("a register one entry shorter", torch.cat(forgetful))


def networks(run: Run, train: list[Tensor], memory: int, width: int) -> dict[str, ShallowRNN]:
    """Sum, parity and the functions that jump are written down, maximum and median fitted."""
    add = torch.ones(1, memory + 1, dtype=torch.float64)
    add[0, -1] = 0.0
    zero = torch.zeros(1, dtype=torch.float64)
    total = chain([(add, zero), (torch.ones(1, 1, dtype=torch.float64), zero)], [nn.ReLU()])
    zigzag = relu_interpolant(
        lambda n: (1 - torch.cos(math.pi * n)) / 2, memory, (0.0, float(memory)), lipschitz=2.0
    ).network
    assert isinstance(zigzag, nn.Sequential)
    (slopes, bias), last = affine_layers(zigzag)[0]
    ahead = torch.cat([slopes.new_zeros(len(slopes), memory), slopes], dim=1)
    made = {
        "sum": sequence_network(total, 1, memory),
        "parity of the length": sequence_network(chain([(ahead, bias), last], [nn.ReLU()]), 1, memory),
    }
    made["sum above 2"] = sequence_network(jumps(add, 2.0), 1, memory)
    made["entries above 0.6"] = sequence_network(jumps(torch.eye(memory, memory + 1).double(), 0.6), 1, memory)
    for name in ("maximum", "median"):
        made[name] = fit_sequences(TARGETS[name], train, memory, width, steps=200, generator=run.generator)
    return made


def jumps(rows: Tensor, threshold: float) -> nn.Sequential:
    """The number of rows whose value exceeds the threshold, each jump a ramp of two ReLUs."""
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    weight, bias = RAMP * rows.repeat(2, 1), -RAMP * threshold - ends.repeat_interleave(len(rows))
    readout = torch.tensor([[1.0, -1.0]], dtype=torch.float64).repeat_interleave(len(rows), dim=1)
    return chain([(weight, bias), (readout, torch.zeros(1, dtype=torch.float64))], [nn.ReLU()])


def in_probability(
    run: Run,
    nets: dict[str, ShallowRNN],
    test: list[Tensor],
    distant: list[Tensor],
    accuracy: float,
    delta: float,
) -> dict[str, Interval]:
    """The share of failures on fresh sequences, for every target."""
    shares, longer = {}, []
    for name, target in {**TARGETS, "length": length}.items():
        shares[name] = failure_probability(nets[name], target, test, accuracy)
        longer.append(failure_probability(nets[name], target, distant, accuracy).low)
    says = run.states("X-94", r"P(|f_1-f_2|>\epsilon)<\delta: \text{ upper end of the 99\% interval}")
    says.below([s.high for s in shares.values()], delta)
    says.fails("sequences from another distribution, five times as long (lower end)", longer)
    return shares


def fitted_to_a_promise(run: Run, accuracy: float, delta: float = 0.2) -> None:
    """The register and the units are chosen from draws alone, and the promise is kept on others."""
    test, distant = drawn(run, 3000, 0.3), drawn(run, 500, 0.06)
    shares, longer = [], []
    for name in ("sum", "median"):
        made, _ = fit_in_probability(
            TARGETS[name],
            drawn(run, 4000, 0.3),
            accuracy,
            delta,
            most=256,
            steps=100,
            generator=run.generator,
        )
        shares.append(failure_probability(made, TARGETS[name], test, accuracy).high)
        longer.append(failure_probability(made, TARGETS[name], distant, accuracy).low)
    says = run.states(
        "X-94",
        r"\text{for } \epsilon,\delta \text{ and draws from } P \text{ alone, a network with } "
        r"P(|f_1-f_2|>\epsilon)<\delta: \text{ upper end of the 99\% interval on other draws}",
    )
    says.below(shares, delta, where=f"sum and median, ε = {accuracy}, δ = {delta}")
    says.fails("sequences from another distribution, five times as long (lower end)", longer)


def exact_failures(run: Run, net: ShallowRNN, test: list[Tensor], accuracy: float, ending: float, memory: int) -> None:
    """The sum fails exactly on what does not fit the register."""
    found = failure_probability(net, TARGETS["sum"], test, accuracy, confidence=0.999)
    shorter = [s[:memory] for s in test]
    none = failure_probability(net, TARGETS["sum"], shorter, accuracy, confidence=0.999)
    says = run.states("X-94", r"\text{sum: } P(|f_1-f_2|>\epsilon)=P(\mathrm{length}>i_0)=(1-q)^{i_0}")
    says.mean(found, (1 - ending) ** memory, against=[(1 - ending) ** (memory + i) for i in (-1, 1)])
    says.fails("sequences cut off at the register's length", none)


def every_accuracy(run: Run, test: list[Tensor]) -> None:
    """What is counted: errors larger than ε, in the Euclidean norm."""
    levels = (0.3, 0.5, 0.8)

    def pair(x: Tensor) -> Tensor:
        """The last entry as a vector of that length."""
        return torch.cat([0.6 * x[:, -1], 0.8 * x[:, -1]], dim=1)

    def failures(apart: float) -> list[Interval]:
        return [
            failure_probability(lambda x: apart * pair(x), lambda x: 0 * pair(x), test, e, confidence=0.999)
            for e in levels
        ]

    for level, found, louder in zip(levels, failures(1.0), failures(2.0), strict=True):
        says = run.states("X-94", r"|f_1-f_2| \text{ uniform on } [0.2,1]:\ P(|f_1-f_2|>\epsilon)=(1-\epsilon)/0.8")
        says.mean(
            found,
            (1 - level) / 0.8,
            against=[(1 - level) / 0.8 + gap for gap in (-0.1, 0.1)],
            where=f"ε = {level}, the error is the last entry, as a vector",
        )
        says.fails("the error is twice the last entry", louder)


def every_probability(run: Run, test: list[Tensor], ending: float) -> None:
    """Smaller and smaller probabilities of failure: the register grows like log(1/δ)."""
    deltas = (0.6, 0.3, 0.1, 0.05, 0.03)
    memories = [length_cutoff(lambda n: (1 - ending) ** n, d) for d in deltas]

    def share(memory: int, delta: float) -> float:
        add = torch.ones(1, memory + 1, dtype=torch.float64)
        add[0, -1] = 0.0
        zero = torch.zeros(1, dtype=torch.float64)
        total = chain([(add, zero), (torch.ones(1, 1, dtype=torch.float64), zero)], [nn.ReLU()])
        made = sequence_network(total, 1, memory)
        return failure_probability(made, TARGETS["sum"], test, 0.1, confidence=0.999).low / delta

    says = run.states("X-94", r"\text{sum, memory } i_0(\delta):\ P(|f_1-f_2|>\epsilon)/\delta\le\tfrac12")
    says.at_most(
        [share(i, d) for i, d in zip(memories, deltas, strict=True)],
        0.5,
        where=f"lower ends of 99.9 % intervals, δ = {', '.join(map(str, deltas))}",
    )
    fewer = [share(max(1, i - 3), d) for i, d in zip(memories, deltas, strict=True)]
    says.fails("three entries less in the register", fewer)


def tanh_counter(run: Run, memory: int, accuracy: float) -> ShallowRNN:
    """The length, by the recipe with another activation: a system, simulated."""
    system = DynamicalSystem(1, 1, 1, lambda h, x: h + 1 + 0 * x, lambda h: h)
    made = simulate_system(system, (-0.1, 0.1), (0.2, 1.0), memory, accuracy / 2, generator=run.generator)
    start = made.encode(torch.zeros(1, dtype=torch.float64))
    rnn = ShallowRNN(made.rnn.A, made.rnn.B, made.rnn.C, "tanh", initial=start)
    return rnn.requires_grad_(False)


def bounded(run: Run, counter: ShallowRNN, longest: int) -> LengthStress:
    """A bounded activation cannot count, although it seldom errs."""
    one = torch.ones(1, 1, dtype=torch.float64)
    true_counter = rnn_with_bias(one, 0 * one, one, one[0], "relu").requires_grad_(False)
    top = float(torch.linalg.matrix_norm(counter.C, ord=2)) * math.sqrt(len(counter.A))
    # a floor is proved beyond the largest output
    steps = sorted({1, 2, 3, 4, 6, 10, 20, 50, longest // 4, longest, math.ceil(2 * top)})
    batches = [0.2 + 0.8 * run.rand(3, i, 1) for i in steps]
    stress = length_stress_test(counter, length, batches)
    # one long run has the outputs at all lengths
    outputs = counter.run(batches[-1]).outputs[:, steps[1:]].abs().amax((0, 2)).tolist()
    # every unit near 1 and C along them: the norms' product is reached
    saturated = ShallowRNN(
        torch.zeros(9, 9).double(), 25 * torch.ones(9, 1).double(), torch.ones(1, 9).double(), "tanh"
    ).requires_grad_(False)
    outputs.append(float(saturated(batches[1]).abs().max()))
    allowed = output_bounds(counter, steps[-1], 1.0)[steps[1:]].tolist()
    allowed.append(float(output_bounds(saturated, steps[1], 1.0)[-1]))
    right = true_counter.run(batches[-1]).outputs[:, steps[1:]].abs().amax((0, 2)).tolist()
    says = run.states("X-95", r"\sigma=\tanh:\ |y|\le\|C\|\sqrt n\,\sup|\sigma| \text{ at every length}")
    says.at_most(outputs, allowed)
    says.fails(
        "ReLU is not bounded: the network that counts rightly",
        right,
        promised=float(torch.linalg.matrix_norm(true_counter.C, ord=2)) * math.sqrt(len(true_counter.A)),
    )
    exact = length_stress_test(true_counter, length, batches)
    far = stress.floors > 0
    says = run.states("X-95", r"f=\text{length}:\ |f-f_1|\ge i-\|C\|\sqrt n\,\sup|\sigma|\to\infty")
    says.at_least(stress.errors[far], stress.floors[far])
    says.fails("ReLU counts: no error at any length", exact.errors[far])
    return stress


def unbounded(run: Run) -> dict[str, tuple[Tensor, Tensor]]:
    """ReLUs grow like an exponential of the length; 2^(2^i) grows faster."""
    lengths = list(range(10))
    found: dict[str, tuple[Tensor, Tensor]] = {}
    measured, allowed, behind = [], [], []
    wanted = torch.tensor([2.0**i for i in lengths], dtype=torch.float64)  # its logarithm
    for size in (1.0, 3.0, 10.0):
        parts = size * run.randn(8, 8), run.randn(8, 1), run.randn(1, 8)
        rnn = ShallowRNN(*parts, "relu", initial=run.randn(8)).requires_grad_(False)
        x = 2 * run.rand(20, lengths[-1], 1) - 1
        outputs = rnn.run(x).outputs.norm(dim=2).amax(0)
        bounds = output_bounds(rnn, lengths[-1], 1.0)
        found[f"weights of size {size:g}"] = outputs, bounds
        measured.append(outputs)
        allowed.append(bounds)
        missing = (torch.exp2(wanted[-1]) - outputs[-1]).abs()
        behind.append(float(torch.log2(missing)))
    one = torch.ones(1, 1, dtype=torch.float64)
    doubling = ShallowRNN(2 * one, 0 * one, one, "relu", initial=one[0]).requires_grad_(False)
    followed = doubling(torch.zeros(1, lengths[-1], 1, dtype=torch.float64))
    left = (torch.exp2(torch.tensor(float(lengths[-1]))) - followed).abs()
    says = run.states("X-95", r"\text{ReLU: }|y_i|\le\|C\|r_i,\ r_{i+1}=\|A\|r_i+\|B\|R")
    # all entries equal, so that every product has the norm of its factors
    full = ShallowRNN(torch.full((8, 8), 0.25).double(), torch.ones(8, 1).double(), torch.ones(1, 8).double(), "relu")
    full.requires_grad_(False)
    ones, reached = torch.ones(1, lengths[-1], 1).double(), output_bounds(full, lengths[-1], 1.0)
    measured.append(full.run(ones).outputs.norm(dim=2)[0])
    allowed.append(reached)
    says.at_most(torch.cat(measured), torch.cat(allowed), 1e-9)
    says.fails("inputs twice as large as R", full.run(2 * ones).outputs.norm(dim=2)[0, 1:], promised=reached[1:])
    away_from_zero(run)
    says = run.states("X-95", r"f=2^{2^i},\ i=9:\ \log_2|f-f_1|\ge 2^9-1")
    says.at_least(behind, 2.0**9 - 1)
    says.fails("f = $2^i$ is followed exactly by one neuron", float(torch.log2(left)), promised=9 - 1)
    return found


def away_from_zero(run: Run, steps: int = 8) -> None:
    """Activations with σ(0) ≠ 0, in networks that come near to the bound."""
    n, radius = 8, 2.0
    equal, wide = torch.ones(n, n).double() / n, torch.ones(n, 1).double()
    cases = [
        # (σ, ‖A‖, ‖B‖/√n): without input the first step is √n|σ(0)|, small ones meet the slope, large ones the top
        ("softplus", 0.0, 0.0),
        ("softplus", 3.0, 1.0),
        ("logistic", 0.0, 0.0),
        ("logistic", 0.1, 0.1),
        ("logistic", 40.0, 0.0),
    ]
    outputs, allowed = [], []
    for name, a, b in cases:
        net = ShallowRNN(a * equal, b * wide, wide.T, name).requires_grad_(False)
        outputs.append(net.run(radius * torch.ones(1, steps, 1).double()).outputs[0, 1:, 0])
        allowed.append(output_bounds(net, steps, radius)[1:])
    ratios = torch.stack(outputs) / torch.stack(allowed)
    says = run.states(
        "X-95",
        r"|y_i|\le\|C\|r_i,\ r_{i+1}=\min\bigl(\sqrt n\sup|\sigma|,\ \sqrt n|\sigma(0)|+\lambda(\|A\|r_i+\|B\|R)\bigr):"
        r"\ |y_i|/\|C\|r_i",
    )
    says.at_most(ratios, 1.0, 1e-12, where="softplus and the logistic function, all entries of A and of B equal")
    loud = ShallowRNN(0 * equal, wide, wide.T, "softplus").requires_grad_(False)
    beyond = loud.run(2 * radius * torch.ones(1, steps, 1).double()).outputs[0, 1:, 0]
    says.fails("entries twice as large as R", beyond / output_bounds(loud, steps, radius)[1:])
    says = run.states("X-95", r"\text{and the bound is met: least } \max_i|y_i|/\|C\|r_i \text{ of a network}")
    # softplus has the slope 1 only far away from 0, where |σ(0)| is not added any more
    says.at_least(ratios.amax(1), [0.999, 0.7, 0.999, 0.99, 0.999], where="the same networks")
    mixed = ShallowRNN(3 * equal, wide, wide.T * torch.tensor([1.0, -1.0] * (n // 2)), "softplus")
    cancelled = mixed.requires_grad_(False).run(radius * torch.ones(1, steps, 1).double()).outputs[0, 1:, 0].abs()
    says.fails("C of both signs, across the states", (cancelled / output_bounds(mixed, steps, radius)[1:]).amax())


def plot(
    axes: Any,
    nets: dict[str, ShallowRNN],
    test: list[Tensor],
    stress: LengthStress,
    growth: dict[str, tuple[Tensor, Tensor]],
) -> None:
    left, middle, right = axes[0]
    size = torch.tensor([len(s) for s in test])
    shown = range(1, min(9, int(size.max())) + 1)
    for (name, target), mark in zip(TARGETS.items(), "os^dvP", strict=True):
        gap = (sequence_values(nets[name], test) - sequence_values(target, test))[:, 0].abs()
        means = [float(gap[size == i].mean()) for i in shown]
        left.plot(shown, means, mark + "-", markersize=4, linewidth=0.8, label=name)
    left.axhline(0.1, color="0.4", linestyle=":", label="ε")
    left.set(xlabel="length", ylabel="mean error", title="beyond the cutoff", ylim=(-0.1, 2))
    left.legend()
    middle.loglog(stress.lengths, stress.errors, "o", color=COLORS[1], label="error of counting")
    far = stress.floors > 0
    middle.loglog(stress.lengths[far], stress.floors[far], "k_-", label="provable")
    middle.set(xlabel="length", title="tanh cannot count")
    middle.legend()
    for color, (name, (outputs, bounds)) in zip(COLORS, growth.items(), strict=False):
        lengths = range(len(outputs))
        right.semilogy(lengths, bounds, color=color, linewidth=0.9)
        right.semilogy(lengths, outputs, "o", markersize=4, color=color, label=name)
    right.semilogy(range(8), [2.0 ** (2**i) for i in range(8)], "k--", label="$2^{2^i}$")
    right.set(xlabel="length", title="ReLUs grow exponentially")
    right.legend()
