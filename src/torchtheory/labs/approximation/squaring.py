"""The square by saw-teeth: a broken line with twice as many pieces for every layer more."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import Approximant, measured_error
from torchtheory.approximation.network_calculus import chain
from torchtheory.approximation.piecewise.interpolants import relu_interpolant
from torchtheory.approximation.polynomials.squaring import (
    recurrent_square,
    square_network,
    squaring_levels,
)
from torchtheory.expressivity.bounds import curvature_floor, most_pieces
from torchtheory.expressivity.folding import sawtooth_network
from torchtheory.expressivity.pieces import affine_pieces
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.feedforward import affine_layers


@lab(
    "squaring-network",
    room="approximation",
    covers=["A-90", "A-145", "X-26"],
    title="Width 3 and n layers square within $4^{-(n+1)}$, and a recurrent net of 4 units forever",
    errata=["fixed-size-relu-affine"],
    full={"levels": 12},
    least={"levels": 2},
)
def squaring_network(run: Run, levels: int = 6) -> None:
    """The networks of Figures 1.9 and 3.3 are written down for 1 to `levels` hidden layers.

    Their affine pieces are found exactly: the breakpoints are the dyadic points, the values there
    the squares, the largest error the one in the middle of each piece. The recurrent network of
    four units gives the same numbers step by step without ever growing, and a network of a fixed
    size without recurrence cannot. Look at how each row of saw-teeth halves the distance of the
    points where the broken line meets the parabola.
    """
    made = [square_network(n) for n in range(1, levels + 1)]
    interpolation(run, made)
    promises(run, made)
    sizes(run, made)
    recurrent(run, made)
    fixed_size(run)
    x = torch.linspace(0, 1, 1025, dtype=torch.float64)
    run.figure(
        "saw-teeth-of-the-square",
        lambda axes: plot_chapter_three(axes, x),
        grid=(1, 3),
        caption="Left: the saw-teeth g₁, g₂, g₃. Middle: x² and its broken lines f₀ to f₃. "
        "Right: what they are too large by, with the promise 4⁻ⁿ⁻¹ as dashed lines.",
    )
    run.figure(
        "interpolation-as-a-sum",
        lambda axes: plot_chapter_one(axes, x, made),
        grid=(1, 3),
        caption="Left and middle: x - x² (gray), its interpolant Iₙ on 2ⁿ + 1 points, and the "
        "saw-teeth hₖ/4ᵏ that it is the sum of: each of them is Iₖ - Iₖ₋₁. Right: promised (line) "
        "and measured (marks) errors, against the best that a single hidden layer can do.",
    )


def interpolation(run: Run, made: list[Approximant]) -> None:
    """f_n is the broken line through x² at the dyadic points, found piece by piece."""
    knots, values, counts, unfolded = [], [], [], []
    for n, a in enumerate(made, 1):
        found = affine_pieces(a.network, 0.0, 1.0)
        dyadic = torch.arange(1, 2**n, dtype=torch.float64) / 2**n
        counts.append(found.count)
        same = len(found.kinks) == len(dyadic)
        knots.append(float((found.kinks - dyadic).abs().max()) if same else torch.inf)
        values.append(float((a(dyadic) - dyadic**2).abs().max()))
        third = (torch.arange(1, 2**n, dtype=torch.float64) - 1 / 3) / 2**n
        unfolded.append(float((a(third) - third**2).abs().max()))
    says = run.states(["A-90", "X-26"], r"f_n \text{ has } 2^n \text{ affine pieces on } [0,1]")
    says.equal(counts, [2**n for n in range(1, len(made) + 1)])
    says.fails(
        "the hats of all layers subtracted from the first layer's hat, not composed",
        [affine_pieces(not_composed(n), 0.0, 1.0).count for n in range(1, len(made) + 1)],
    )
    run.states("X-26", r"\text{the breakpoints of } f_n \text{ are } k2^{-n}: \text{ largest difference}").equal(
        knots, within=1e-12
    )
    says = run.states(["A-90", "X-26"], r"f_n(k2^{-n})=(k2^{-n})^2: \text{ largest difference}")
    says.equal(values, within=1e-14)
    says.fails("points a third of a step beside the dyadic ones", unfolded)
    teeth, wrong = [], []
    grid = torch.linspace(0, 1, 997, dtype=torch.float64)
    for n in range(2, len(made) + 1):
        gap = (made[n - 2](grid) - made[n - 1](grid)) * 4.0**n
        teeth.append(float((gap - sawtooth(n, grid)).abs().max()))
        wrong.append(float((gap - sawtooth(n - 1, grid)).abs().max()))
    says = run.states("A-90", r"I_n-I_{n-1}=h_n/2^{2n}: \text{ largest difference, times } 4^n")
    says.equal(teeth, within=1e-9)
    says.fails("the saw-tooth of one fold less", wrong)


def parabola_error(a: Approximant) -> float:
    """The exact sup error of x² on [0, 1], from the affine pieces.

    A grid would miss it: the points of a halved grid are where the broken line meets x².
    """
    found = affine_pieces(a.network, 0.0, 1.0)
    t, y = found.breakpoints, found.values.flatten()
    slope = y.diff() / t.diff()
    inside = (slope / 2).clamp(t[:-1], t[1:])
    between = y[:-1] + slope * (inside - t[:-1]) - inside**2
    return float(torch.cat([between, y - t**2]).abs().max())


def not_composed(n: int) -> nn.Module:
    """n hats side by side in one layer: as many units, and no folding."""
    hat = affine_layers(sawtooth_network(1))[0]
    weight = torch.cat([hat[0][0]] * n)
    out = torch.cat([4.0**-m * hat[1][0] for m in range(1, n + 1)], dim=1)
    return chain([(weight, torch.cat([hat[0][1]] * n)), (out, hat[1][1])], [nn.ReLU()])


def sawtooth(times: int, x: Tensor) -> Tensor:
    teeth: Tensor = sawtooth_network(times)(x.unsqueeze(1))[:, 0]
    return teeth.detach()


def promises(run: Run, made: list[Approximant]) -> None:
    """The error is one-sided, equal to the bound, and the slopes are off by 2^-n."""
    largest, smallest, slopes, outside, middles = [], [], [], [], []
    for n, a in enumerate(made, 1):
        largest.append(parabola_error(a))
        x = torch.linspace(0, 1, 4099, dtype=torch.float64)
        smallest.append(float((a(x) - x**2).min()))
        pieces = affine_pieces(a.network, 0.0, 1.0)
        left = torch.arange(2**n, dtype=torch.float64) / 2**n
        # 2x runs over an interval of length 2^(1-n) on a piece: the farther end decides
        ends = torch.stack([2 * left, 2 * left + 2.0 ** (1 - n)])
        slopes.append(float((pieces.slopes.flatten() - ends).abs().max()))
        middle = left + 0.5 / 2**n
        middles.append(float((a(middle) - middle**2 - a.bound).abs().max()))
        beyond = torch.linspace(1, 1.5, 501, dtype=torch.float64)
        outside.append(float((a(beyond) - beyond**2).abs().max()))
    bounds = [a.bound for a in made]
    says = run.states(["A-90", "X-26"], r"\sup_{[0,1]}|f_n-x^2|\le4^{-(n+1)}")
    says.at_most(largest, bounds, 1e-14)
    says.fails("on [1, 3/2] instead of [0, 1]", outside)
    run.states(["A-90", "X-26"], r"f_n-x^2=4^{-(n+1)} \text{ half-way between neighboring breakpoints}").equal(
        middles, within=1e-14
    )
    shifted = [float((a(x) - a.bound / 2 - x**2).min()) for a in made]
    says = run.states(["A-90", "X-26"], r"f_n\ge x^2: \text{ the least difference}")
    says.at_least(smallest, 0.0, 1e-14)
    says.fails("the best broken line on these points, half the bound lower", shifted)
    run.states("X-26", r"\sup|f_n'-2x|=2^{-n}").equal(slopes, [2.0**-n for n in range(1, len(made) + 1)], 1e-9)


def sizes(run: Run, made: list[Approximant]) -> None:
    """Depth, neurons and weights as counted by hand, and the levels an error needs."""
    counted = [
        (a.size.depth, a.size.units + 2, a.size.parameters, a.size.width) for a in made
    ]  # N of the source counts the input and the output
    by_hand = [(n + 1, 3 * n + 2, 8 * n - 1, 3) for n in range(1, len(made) + 1)]
    run.states(["A-90", "X-26"], r"L=n+1,\quad N=3n+2,\quad M=8n-1,\quad\text{width }3").equal(
        [v for row in counted for v in row], [v for row in by_hand for v in row]
    )
    errors = [10.0**-k for k in range(1, 8)]
    chosen = [square_network(squaring_levels(e)) for e in errors]
    fine = [e for e in errors if squaring_levels(e) > 1]
    fewer = [square_network(squaring_levels(e) - 1) for e in fine]
    says = run.states("X-26", r"n=\lceil\tfrac12\log_2(1/\epsilon)\rceil-1 \text{ levels err by at most }\epsilon")
    says.at_most([parabola_error(a) for a in chosen], errors)
    says.fails("one level less", [parabola_error(a) for a in fewer], promised=fine)
    run.table(
        "squaring-networks",
        ["n", "error", "depth", "neurons", "weights", "pieces", "one hidden layer needs"],
        [(n, a.bound, a.size.depth, a.size.units + 2, a.size.parameters, 2**n, 2**n) for n, a in enumerate(made, 1)],
        caption="The squaring network, and the units of one hidden layer with the same error",
    )


def recurrent(run: Run, made: list[Approximant]) -> None:
    """The same numbers from a network that does not grow."""
    x = torch.cat([run.rand(500), torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)])
    again = [recurrent_square(n) for n in range(1, len(made) + 1)]
    says = run.states("A-145", r"\text{after } k \text{ steps the output is } f_k(x): \text{ largest difference}")
    says.equal([float((a(x) - b(x)).abs().max()) for a, b in zip(made, again, strict=True)], within=1e-14)
    says.fails(
        "the scale c is not divided by 4",
        [float((a(x) - unscaled(n, x)).abs().max()) for n, a in enumerate(made, 1) if n > 1],
    )
    stopped = recurrent_square(1)
    says = run.states(
        "A-145", r"\sup_{[0,1]}|y_k-x^2|=4^{-(k+1)} \text{ after } k \text{ steps, with 4 units throughout}"
    )
    says.equal([parabola_error(b) for b in again], [b.bound for b in again], 1e-6)
    says.fails("the network stops after one step", [parabola_error(stopped) for _ in again])
    says = run.states(
        "A-145", r"\text{neurons, and weights that are not 0, of the recurrent network after } k \text{ steps}"
    )
    says.equal(
        [v for b in again for v in (b.size.units, b.size.parameters)],
        [again[0].size.units, again[0].size.parameters] * len(again),
    )
    says.fails("the network without recurrence", [v for a in made for v in (a.size.units, a.size.parameters)])


def unscaled(steps: int, x: Tensor) -> Tensor:
    """The recurrence with the threshold kept where it started."""
    network = recurrent_square(steps).network
    step = network.step
    assert isinstance(step, nn.Linear)
    step.weight[2, 2] = 1.0
    return Approximant(network, 1.0, ((0.0, 1.0),), "A-145")(x)


def fixed_size(run: Run) -> None:
    """Three layers of three units leave an error for ever, but not for |x|."""
    tries = [square_network(3)]
    tries += [relu_interpolant(torch.square, m, curvature=2.0) for m in (4, 16, 64)]
    hidden = [[3, 3, 3], [4], [16], [64]]
    floors = [curvature_floor(2.0, 1.0, most_pieces(h)) for h in hidden]
    x = torch.linspace(0, 1, (1 << 14) + 1, dtype=torch.float64)
    # a chord lies above x²; half its largest gap lower it is the best line of its piece
    gaps = [a(x) - x**2 for a in tries]
    lowered = [float((gap - gap.max() / 2).abs().max()) for gap in gaps]
    deeper = parabola_error(recurrent_square(12))
    says = run.states("A-145", r"\text{without recurrence, at most } p \text{ pieces}:\ \sup|f-x^2|\ge\tfrac1{8p^2}")
    says.at_least(lowered, floors, where="hidden layers (3, 3, 3), (4), (16), (64), with the best broken lines known")
    says.fails("the recurrent network of four units, after 12 steps", deeper, promised=floors[0])
    absolute = chain(
        [
            (torch.tensor([[1.0], [-1.0]]).double(), torch.zeros(2).double()),
            (torch.ones(1, 2).double(), torch.zeros(1).double()),
        ],
        [nn.ReLU()],
    )
    exact = Approximant(absolute, 0.0, ((-1.0, 1.0),), "A-145")
    run.refutes(
        "fixed-size-relu-affine", r"f \text{ not affine: every ReLU network of a fixed size leaves an error}>0"
    ).above(measured_error(torch.abs, exact).lower, 0.0, where="the absolute value, and a network of two units")


def plot_chapter_three(axes: Any, x: Tensor) -> None:
    left, middle, right = axes[0]
    left.set(title="saw-teeth", xlabel="x")
    for m, style in ((1, "-"), (2, "--"), (3, ":")):
        left.plot(x, sawtooth(m, x), style, color=COLORS[m], label=f"$g_{m}$")
    left.legend(loc="upper center", ncols=3, bbox_to_anchor=(0.5, -0.16))
    middle.plot(x, x**2, color="0.5", linewidth=3, alpha=0.5, label="$x^2$")
    for n in range(4):
        f = x if n == 0 else square_network(n)(x)
        middle.plot(x, f, color=COLORS[n], linewidth=1.1, label=f"$f_{n}$")
        right.semilogy(x[1:-1], (f - x**2)[1:-1].clamp(min=1e-5), color=COLORS[n])
        right.axhline(4.0 ** -(n + 1), color=COLORS[n], linestyle="--", linewidth=0.8)
    middle.set(title="broken lines through $x^2$", xlabel="x")
    middle.legend()
    right.set(title="$f_n - x^2$", xlabel="x", ylim=(1e-4, 0.5))


def plot_chapter_one(axes: Any, x: Tensor, made: list[Approximant]) -> None:
    for n, axis in zip((2, 3), axes[0], strict=False):
        axis.plot(x, x - x**2, color="0.5", linewidth=3, alpha=0.5, label="$x - x^2$")
        axis.plot(x, x - square_network(n)(x), color=COLORS[0], label=f"$I_{n}$")
        for k in range(1, n + 1):
            tooth = sawtooth(k, x) / 4**k
            axis.plot(x, tooth, color=COLORS[k], linewidth=0.9, label=f"$h_{k}/4^{k}$")
        axis.set(title=f"{2**n + 1} points", xlabel="x", ylim=(-0.01, 0.36))
        axis.legend(ncols=3, loc="upper center")
    axis = axes[0][2]
    units = [a.size.units for a in made]
    axis.semilogy(units, [a.bound for a in made], color=COLORS[0], label="promised")
    axis.semilogy(units, [parabola_error(a) for a in made], "o", color=COLORS[0], label="measured")
    shallow = [curvature_floor(2.0, 1.0, most_pieces([u])) for u in units]
    axis.semilogy(units, shallow, "--", color=COLORS[1], label="least, one hidden layer")
    axis.set(xlabel="hidden units", title="sup error of $x^2$ on [0, 1]")
    axis.legend()
