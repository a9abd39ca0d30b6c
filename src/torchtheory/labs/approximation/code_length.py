"""Bits: one a step for a Lipschitz function, and at least one a label for a network."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.approximation.memorization.label_coding import label_function, read_labels
from torchtheory.approximation.network_calculus import chain
from torchtheory.approximation.piecewise.interpolants import relu_interpolant
from torchtheory.approximation.rates.code_length import (
    LipschitzCodec,
    code_length_bounds,
    decode_network,
    encode_network,
    minimum_weights_from_bits,
    network_bits,
    smooth_packing,
)
from torchtheory.approximation.targets import Function
from torchtheory.generalization.vc.hypothesis_sets import all_labelings
from torchtheory.labs.engine import COLORS, Run, fit_slope, lab
from torchtheory.nets.feedforward import affine_layers


@lab(
    "code-length",
    room="approximation",
    covers=["X-41", "X-43"],
    title="1/ε bits describe a Lipschitz function, and a network is such a description",
    full={"functions": 100, "halvings": 10, "labels": 9},
    least={"functions": 3, "halvings": 3},
)
def code_length(run: Run, functions: int = 12, halvings: int = 6, labels: int = 6) -> None:
    """A codec for Lipschitz functions is built, and networks are written as strings of bits.

    The codec follows a function with a broken line, one bit a step: its error never passes ε with
    1/ε bits and a few, and functions that are far apart show that the exponent 1 is the least
    possible. For finitely many functions the code length is caught between packing and covering.
    Networks with rounded weights are encoded, decoded and compared; those that hold all labelings
    of N cells have as many different codes, so N bits at least, and hence so many weights. Look at
    the figure: the bits of codec and packing run in parallel.

    Args:
        functions: random Lipschitz functions.
        halvings: errors 1/4, 1/8, 1/16, ..., so many of them.
        labels: that a network holds; all labelings are tried.
    """
    curve = codec(run, functions, halvings)
    finite(run)
    networks(run, labels)
    run.table(
        "codes",
        ["error", "bits of the codec", "largest error met", "bits no code avoids"],
        curve,
        caption="Lipschitz functions on [0, 1]",
    )
    run.figure(
        "bits",
        lambda axes: plot(axes, curve),
        grid=(1, 2),
        caption="Left: a function and the broken line of its code, 1 bit a step. Right: bits "
        "against the error; no code lies below the packing bound.",
    )


def random_lipschitz(run: Run, steepness: float = 1.0) -> Function:
    """A broken line through a random walk with slopes up to the steepness, or a smooth wave.

    Both start within [0, 1/2], where the code of the class can begin."""
    if float(run.rand(1)) < 0.3:
        frequency, phase = 1 + 20 * float(run.rand(1)), 6 * float(run.rand(1))
        start = math.sin(phase)
        return lambda x: steepness / frequency * (torch.sin(frequency * x + phase) - start)
    slopes = steepness * (2 * run.rand(64) - 1)
    heights = torch.cat([slopes.new_zeros(1), slopes.cumsum(0) / 64])
    start = 0.5 * float(run.rand(1))

    def line(x: Tensor) -> Tensor:
        place = (x * 64).clamp(0, 64)
        left = place.floor().clamp(max=63).long()
        return start + heights[left] + (place - left) * (heights[left + 1] - heights[left])

    return line


def codec(run: Run, functions: int, halvings: int) -> list[tuple[float, int, float, float]]:
    x = torch.linspace(0, 1, 4001, dtype=torch.float64)
    made = [random_lipschitz(run) for _ in range(functions)]
    steep = [random_lipschitz(run, 3.0) for _ in range(functions)]
    errors = [0.25 * 2.0**-k for k in range(halvings)]
    met, broken, rows = [], [], []
    for error in errors:
        c = LipschitzCodec(error)
        worst = max(float((c.decode(c.encode(f))(x) - f(x)).abs().max()) for f in made)
        met.append(worst)
        broken.append(max(float((c.decode(c.encode(f))(x) - f(x)).abs().max()) for f in steep))
        rows.append((error, c.bits, worst, bits_no_code_avoids(error)))
    says = run.states("X-41", r"\sup_{f\in\mathcal C}\|D(E(f))-f\|_\infty\le\epsilon")
    says.at_most(met, errors, 1e-12)
    says.fails("functions with Lipschitz constant up to 3", broken)
    small = [2.0**-k for k in range(6, 16)]
    bits = [LipschitzCodec(e).bits for e in small]
    grid = [math.ceil(1 / e) * math.ceil(math.log2(2 / e)) for e in small]
    slope = fit_slope([1 / e for e in small], bits)
    naive = fit_slope([1 / e for e in small], grid)
    says = run.states("X-41", r"\gamma^*=d/n=1: \text{ exponent of the codec's bits in } 1/\epsilon")
    says.equal(slope.estimate, 1.0, 0.02)
    says.fails("every value stored with log(1/ε) bits instead of its step", naive.estimate)
    says = run.states("X-41", r"\log_2\text{packing}(2\epsilon)\le L(\epsilon)\le \text{ bits of the codec}")
    cells = (3, 5, 7, 9)
    walks = [far_apart(zigzags(k), 0.999 / k) for k in cells]
    says.at_most(
        [*(low for *_, low in rows), *walks],
        [*(c for _, c, _, _ in rows), *(LipschitzCodec(0.999 / k).bits for k in cells)],
        where="packings of bumps; and all broken lines of slopes ±1 in k cells at ε just below 1/k, k up to 9",
    )
    says.fails(
        "functions with Lipschitz constant 200, further apart at the same number of cells",
        [bits_no_code_avoids(e / 200) for e in errors],
        promised=[c for _, c, _, _ in rows],
    )
    return rows


def zigzags(cells: int) -> Tensor:
    """The values of all broken lines with slopes ±1: where two part, they are 2/cells apart a cell later."""
    turns = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * cells)
    return 0.25 + turns.cumsum(1) / cells


def far_apart(values: Tensor, error: float) -> float:
    """Bits for functions any two of which are more than 2ε apart; 0 where some are not."""
    return math.log2(len(values)) if float(torch.pdist(values, math.inf).min()) > 2 * error else 0.0


def bits_no_code_avoids(error: float) -> float:
    """The packing bound at this error: the most cells that are still far enough apart."""
    cells = int(smooth_packing(1, 1, 1).error / error)  # the distance falls as 1 / cells
    return smooth_packing(cells, 1, 1).bits if cells else 0.0


def finite(run: Run) -> None:
    """Finitely many functions: packing and covering."""
    counts = [3, 5, 8, 17, 33]
    low, high, near = [], [], []
    for q in counts:
        values = run.randn(q, 400)
        error = 0.4 * float(torch.pdist(values).min()) / 20
        found = code_length_bounds(values, error)
        low.append(found[0])
        high.append(found[1])
        close = values[:1] + 1e-3 * values
        near.append(code_length_bounds(close, error)[0])
    exact = [math.ceil(math.log2(q)) for q in counts]
    says = run.states(
        "X-41", r"q \text{ functions more than } 2\epsilon \text{ apart: } L(\epsilon)=\lceil\log_2q\rceil"
    )
    says.equal(low + high, exact + exact)
    says.fails("functions closer than that", near, promised=exact)
    q = 60
    line = torch.arange(q, dtype=torch.float64)[:, None] / q
    errors = [0.5 / q, 1.5 / q, 4.2 / q, 0.2]
    pairs = [code_length_bounds(line, e) for e in errors]
    says = run.states("X-41", r"\lceil\log_2P(2\epsilon)\rceil\le\lceil\log_2C(\epsilon)\rceil, \text{ constants}")
    says.at_most([a for a, _ in pairs], [b for _, b in pairs])
    says.fails("packing at half the distance", [code_length_bounds(line, e / 4)[0] for e in errors])


def rounded(network: nn.Sequential, resolution: float) -> nn.Sequential:
    """The network with every weight at the nearest multiple."""
    maps, between = affine_layers(network)
    made = [tuple((part / resolution).round() * resolution for part in pair) for pair in maps]
    return chain([(w, b) for w, b in made], between)


def networks(run: Run, labels: int) -> None:
    """Networks that hold labels, as bits."""
    rows = (all_labelings(labels) > 0).long()
    pieces = 4 * labels
    bits, resolution = 12, 2.0**-8
    codes, shares, apart, sizes, coarse = [], [], [], [], []
    x = torch.linspace(0, 1, 301, dtype=torch.float64).unsqueeze(1)
    for y in rows:
        f = label_function(y, 1)
        net = relu_interpolant(f, pieces, lipschitz=1.0).network
        assert isinstance(net, nn.Sequential)
        small = rounded(net, resolution)
        code = encode_network(small, bits, resolution)
        again = decode_network(code, bits, resolution, nn.ReLU())
        apart.append(float((again(x) - small(x)).abs().max()))
        shares.append(float((read_labels(again, f) == y).double().mean()))
        codes.append(code)
        coarse.append(encode_network(rounded(net, 4.0), 3, 4.0))
        sizes.append(network_bits(small, bits))
    says = run.states("X-43", r"\text{decode}(\text{encode}(\Phi))=\Phi: \text{ largest difference of the functions}")
    says.equal(apart)
    says.fails(
        "decoded with half the resolution it was encoded with",
        float((decode_network(codes[-1], bits, resolution / 2, nn.ReLU())(x) - again(x)).abs().max()),
    )
    says = run.states("X-43", r"2^N \text{ labelings, as many different codes}")
    says.equal(len(set(codes)), len(rows))
    says.fails("weights rounded to multiples of 4, 3 bits each", len(set(coarse)))
    run.states("X-43", r"\text{the rounded networks hold all labels: share that is read}").equal(shares, 1.0)
    used = [s.weights // bits for s in sizes]
    says = run.states("X-43", r"\text{bits}\le M(2\lceil\log_2(M+d+2)\rceil+b)+\text{head}")
    says.at_most([s.total for s in sizes], [edge_bits(m, bits) + s.head for m, s in zip(used, sizes, strict=True)])
    says.fails(
        "a network with 63 idle units",
        network_bits(idle(), bits).total,
        promised=edge_bits(2, bits) + network_bits(idle(), bits).head,
    )
    largest = max(used)
    says = run.states("X-43", r"N \text{ labels are } N \text{ bits: } M\ge M_{\min}(N)")
    says.at_least(
        largest,
        minimum_weights_from_bits(labels, bits),
        loose="interpolants spend several weights of b bits on every label, and the bound has b labels in each",
    )
    says.fails(
        "a network of two weights, for a million labels",
        network_bits(idle(), bits).weights // bits,
        promised=minimum_weights_from_bits(1e6, bits),
    )
    run.note(
        f"{labels} labels: {largest} weights of {bits} bits, {max(s.total for s in sizes)} bits "
        f"altogether; no network with fewer than {minimum_weights_from_bits(labels, bits)} weights "
        "could hold them"
    )


def edge_bits(weights: int, bits: int) -> int:
    """Every weight as an edge between two of its M + d + 2 nodes, d = 1, and a value."""
    return weights * (2 * (weights + 2).bit_length() + bits)


def idle() -> nn.Sequential:
    """Two weights in a network that is otherwise 0."""
    first, last = torch.zeros(64, 1).double(), torch.zeros(1, 64).double()
    first[0], last[0, 0] = 1.0, 1.0
    zero = torch.zeros(64).double()
    return chain([(first, zero), (last, zero[:1])], [nn.ReLU()])


def plot(axes: Any, curve: list[tuple[float, int, float, float]]) -> None:
    left, right = axes[0]
    x = torch.linspace(0, 1, 801, dtype=torch.float64)
    shown = LipschitzCodec(1 / 16)

    def f(t: Tensor) -> Tensor:
        return 0.3 * torch.sin(3 * t) + 0.02 * torch.sin(5 * t)

    code = shown.encode(f)
    left.plot(x, f(x), color="0.4", label="f")
    left.plot(x, shown.decode(code)(x), color=COLORS[0], label=f"its code, {shown.bits} bits")
    left.fill_between(x, f(x) - 1 / 16, f(x) + 1 / 16, color=COLORS[0], alpha=0.12, linewidth=0)
    left.set(xlabel="x", title=f"{code[: shown.head]} {code[shown.head :]}")
    left.legend()
    errors = [e for e, *_ in curve]
    right.loglog(errors, [b for _, b, _, _ in curve], "o-", color=COLORS[0], label="codec")
    kept = [(e, low) for e, _, _, low in curve if low > 0]
    right.loglog([e for e, _ in kept], [low for _, low in kept], "s-", color=COLORS[1],
                 label="packing: no code below")  # fmt: skip
    right.loglog(errors, [1 / e for e in errors], "--", color="0.5", label="1/ε")
    right.invert_xaxis()
    right.set(xlabel="error", ylabel="bits", title="Lipschitz functions on [0, 1]")
    right.legend()
