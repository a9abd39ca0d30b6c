"""Networks with random weights: how many regions they have, and how long curves become."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchtheory.expressivity.arrangement import Arrangement, PlaneSlice, plane_arrangement
from torchtheory.expressivity.bounds import most_regions
from torchtheory.expressivity.folding import montufar_network
from torchtheory.expressivity.pieces import affine_pieces, pieces_along
from torchtheory.expressivity.trajectory import circle, gaussian_network, image_length
from torchtheory.labs.engine import Run, lab, mean_interval
from torchtheory.labs.expressivity.montufar import draw_cells
from torchtheory.nets.feedforward import dense

DEPTHS = (1, 2, 4)

#: Standard deviation of the biases in the experiments of Hanin and Rolnick: variance 1e-6.
BIASES = 1e-3


@lab(
    "random-regions",
    room="expressivity",
    covers=["A-98"],
    title="At random weights the number of regions follows the number of units, not the depth",
    full={"units": 32, "networks": 24},
    # counts scatter by 0.2 of their mean: at eight, Student's interval tells a ratio of 1 from 2
    least={"networks": 8, "units": 16},
)
def random_regions(run: Run, units: int = 16, networks: int = 20) -> None:
    """As many units in one, two and four hidden layers: about as many regions, with random weights.

    Weights are normal with variance 2/n and biases with variance 10⁻⁶, as in the experiments of
    Hanin and Rolnick. The activation regions on [-1, 1] and on the square [-1, 1]² are counted
    exactly. The criterion, fixed beforehand: the mean of a deeper network is that of the shallow
    one up to a quarter, within the error of the draws. Networks that fold have as many units and
    break it. Only the quotient of square and biases matters, and
    here it is large, so that the square stands for the plane: the last rows of the table have
    biases as large as the square, where depth leaves fewer regions still. Look at the cells in the
    middle of the square.

    Args:
        units: in all hidden layers together: a multiple of 4, at least 16.
        networks: random networks for each depth.
    """
    run.assumes(units % 4 == 0, f"{units} units do not make four layers of equal width")
    hidden = {depth: [units // depth] * depth for depth in DEPTHS}
    planes = {d: [_on_the_square(run, h) for _ in range(networks)] for d, h in hidden.items()}
    # a line costs far less than a square
    lines = {d: [_on_the_line(run, h) for _ in range(2 * networks)] for d, h in hidden.items()}
    # sixteen units whatever `units` is: with more of them, folds have millions of regions
    square = PlaneSlice.of_the_plane((0, 0), (1, 1))
    folded = [plane_arrangement(montufar_network(2, 4, 4, generator=seed), square).patterns for seed in range(2)]
    zigzag = [affine_pieces(montufar_network(1, 4, 4, generator=seed), 0.0, 1.0).patterns for seed in range(2)]
    for inputs, counts, folding in ((1, lines, zigzag), (2, planes, folded)):
        shallow = float(np.mean(counts[1]))
        for depth in DEPTHS[1:]:
            says = run.states(
                "A-98",
                rf"d={inputs}:\ \overline{{\#}}_{{{depth}\text{{ layers}}}}/\overline{{\#}}_{{1\text{{ layer}}}}=1"
                r" \text{ up to a quarter}",
            )
            says.mean(
                [count / shallow for count in counts[depth]],
                1.0,
                0.25,
                against=2.0,
                where=f"{len(counts[depth])} networks; 2 if two layers in place of one doubled the regions",
            )
            if depth >= 4:
                says.fails(
                    "weights that fold, four layers of four units, against the most that one layer of sixteen can have",
                    [count / most_regions(inputs, [16]) for count in folding],
                )
        says = run.states("A-98", rf"d={inputs}:\ \text{{mean count below a tenth of the combinatorial maximum}}")
        says.at_most(
            mean_interval(counts[4], 0.99),
            most_regions(inputs, hidden[4]) / 10,
            where="four layers",
            loose="the maximum grows exponentially with the depth and the mean does not grow at all",
        )
        says.fails(
            "one layer, where generic weights come near the maximum",
            mean_interval(counts[1], 0.99),
            promised=most_regions(inputs, hidden[1]) / 10,
        )
    few = max(2, networks // 2)
    large = {d: [_on_the_square(run, h, 1.0) for _ in range(few)] for d, h in hidden.items()}
    run.table(
        "counts",
        ["where", "biases", "hidden layers", "fewest", "mean", "most", "combinatorial maximum"],
        [
            (where, bias, "-".join(map(str, h)), min(counts[d]), float(np.mean(counts[d])),
             max(counts[d]), most_regions(inputs, h))
            for where, inputs, bias, counts in (
                ("line", 1, BIASES, lines), ("square", 2, BIASES, planes), ("square", 2, 1.0, large)
            )
            for d, h in hidden.items()
        ],
        caption=f"Random networks with {units} units each, {networks} on the square [-1, 1]² "
        f"({few} with large biases) and {2 * networks} on the line [-1, 1]. Biases: their standard "
        "deviation.",
    )  # fmt: skip
    middle = PlaneSlice.of_the_plane((-3 * BIASES, -3 * BIASES), (3 * BIASES, 3 * BIASES))
    shown = [plane_arrangement(_random_network(run, [2, *h, 1]), middle) for h in hidden.values()]
    run.figure(
        "cells",
        lambda axes: _plot_cells(axes, shown, list(hidden.values())),
        caption=f"The cells of random networks with {units} units in one, two and four hidden "
        "layers, in the middle of the square. Deeper layers bend their lines.",
        grid=(1, 3),
        size=(10.5, 4.1),
    )


def _random_network(run: Run, widths: list[int], biases: float = BIASES) -> nn.Sequential:
    """Weights of variance 2/n, and biases of this standard deviation."""
    layers: list[nn.Module] = []
    for n, m in pairwise(widths):
        layers += [dense(run.randn(m, n) * (2 / n) ** 0.5, biases * run.randn(m)), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _on_the_square(run: Run, hidden: list[int], biases: float = BIASES) -> float:
    return float(plane_arrangement(_random_network(run, [2, *hidden, 1], biases)).patterns)


def _on_the_line(run: Run, hidden: list[int]) -> float:
    return float(affine_pieces(_random_network(run, [1, *hidden, 1]), -1.0, 1.0).patterns)


def _plot_cells(axes: Any, arrangements: list[Arrangement], hidden: list[list[int]]) -> None:
    for panel, found, widths in zip(axes[0], arrangements, hidden, strict=True):
        draw_cells(panel, found)
        layers = "-".join(map(str, widths))
        panel.set(title=f"hidden layers {layers}: {found.patterns} regions", xlabel="$x_1$")
        ends = (found.plane.low[0], 0.0, found.plane.high[0])
        panel.set_xticks(ends, [f"{t:g}" for t in ends])
        panel.set_yticks(ends, [f"{t:g}" for t in ends])
    axes[0, 0].set_ylabel("$x_2$")


@lab(
    "trajectory-length",
    room="expressivity",
    covers=["A-99", "A-100"],
    title="A circle's way through a random network: how its length grows",
    errata=["trajectory-same-law"],
    full={"networks": 60, "trials": 1000, "corners": 400},
    least={"trials": 15, "corners": 3, "sigma": 1.5},
    most={"sigma": 4},
)
def trajectory_length(run: Run, sigma: float = 2.0, networks: int = 7, trials: int = 30, corners: int = 16) -> None:
    """The image of a polygon is a polygon, so its length after each layer is exact.

    With the same normal numbers at σ = 1 and at another σ, weights scale by σ. If the biases of
    layer ℓ scale by $σ^ℓ$ the length after layer ℓ scales by exactly $σ^ℓ$, network by network. If all
    biases scale by σ, as in the source, it does not from the second layer on, and the outputs have
    another law; the *expected* length still scales by $σ^ℓ$, because the sign of a unit is a fair
    coin that does not know how fast its pre-activation moves. The figure sends a circle through
    networks with variance 4/n and no, three and ten hidden layers: the length and the number of
    turns grow with depth.

    Args:
        sigma: standard deviation that the weights are scaled by.
        trials: pairs of networks with the same normal numbers.
        corners: of the polygon that stands for the circle.
        networks: random networks of each depth in the figure.
    """
    curve = circle(corners)
    widths = [2, 12, 12, 12]
    seeds = [int(s) for s in torch.randint(0, 2**31, (trials,), generator=run.generator)]
    depth = len(widths) - 1
    few = seeds[:4]
    exact = [(_lengths(widths, 1.0, "power", s, curve), _lengths(widths, sigma, "power", s, curve)) for s in few]
    wrong = [_lengths(widths, sigma, "sigma", s, curve) for s in few]
    promised = torch.tensor([[sigma ** (k + 1) for k in range(depth)]] * len(few)).double()
    says = run.states(
        "A-99",
        r"b^{(\ell)} \text{ scaled by } \sigma^\ell:\ \mathrm{length}_\sigma/\mathrm{length}_1"
        r"=\sigma^\ell \text{ in every network}",
    )
    says.equal(
        torch.tensor([[b / a for a, b in zip(*pair, strict=True)] for pair in exact], dtype=torch.float64),
        promised,
        1e-10,
    )
    says.fails(
        "biases scaled by σ in every layer",
        torch.tensor(
            [[b / a for a, b in zip(one, two, strict=True)] for (one, _), two in zip(exact, wrong, strict=True)],
            dtype=torch.float64,
        ),
    )
    gaps, sizes, lengths = [], [], []
    point = curve[:1]
    for s in seeds:
        one, two = (nn.Sequential(gaussian_network(widths, v, generator=s), nn.ReLU()) for v in (1.0, sigma))
        lengths.append(sigma**depth * image_length(one, curve))
        gaps.append(image_length(two, curve) - lengths[-1])
        with torch.no_grad():
            squares = [float(net(point).square().sum()) for net in (one, two)]
        sizes.append(squares[1] - sigma ** (2 * depth) * squares[0])
    expected = sum(lengths) / trials
    run.states(
        "A-99",
        rf"E[\mathrm{{length}}_\sigma]-\sigma^\ell E[\mathrm{{length}}_1] = 0,\ \ell={depth},"
        r"\text{ with biases of variance } \sigma^2 \text{ in every layer}",
    ).mean(
        gaps,
        0.0,
        against=(expected / sigma - expected, sigma * expected - expected),
        where=f"{trials} pairs of networks with the same normal numbers, confidence 99 %",
    )
    run.refutes(
        "trajectory-same-law",
        r"\bar\Phi^{(\ell)}(\cdot,\Theta_\sigma)\sim\sigma^\ell\bar\Phi^{(\ell)}(\cdot,\Theta_1):\ "
        r"E\|\bar\Phi_\sigma(x)\|^2-\sigma^{2\ell}E\|\bar\Phi_1(x)\|^2=0",
    ).mean(sizes, 0.0, where=f"{trials} pairs of networks with the same normal numbers, confidence 99 %")
    depths = (0, 3, 10)
    shown = {d: [_figure_network(run, d) for _ in range(networks)] for d in depths}
    fine = circle(6 * corners)
    images = {d: [pieces_along(net, fine) for net in nets] for d, nets in shown.items()}
    length = {
        d: np.median([float(p.values.diff(dim=0).norm(dim=1).sum()) for p in found]) for d, found in images.items()
    }
    turns = {d: np.median([_turns(p.values) for p in found]) for d, found in images.items()}
    says = run.states("A-100", r"\text{median length of the image grows from 0 to 3 to 10 hidden layers}")
    says.above([length[3], length[10]], [length[0], length[3]])
    says.fails(
        "variance 1/n instead of 4/n",
        float(np.median([image_length(_figure_network(run, 10, 1.0), fine) for _ in range(networks)])),
        promised=length[0],
    )
    run.states("A-100", r"\text{median number of changes of direction grows with depth}").above(
        [turns[3], turns[10]],
        [turns[0], turns[3]],
        loose="the source says that it grows, and not by how much",
    )
    run.table(
        "growth",
        ["hidden layers", "median length", "median changes of direction"],
        [(d, length[d], turns[d]) for d in depths],
    )
    run.figure(
        "trajectories",
        lambda axes: _plot(axes, {d: images[d][0].values for d in depths}),
        caption="The image of a circle under networks with 0, 3 and 10 hidden layers of 20 units.",
        grid=(1, 3),
        size=(10, 3.4),
    )


def _lengths(
    widths: list[int], sigma: float, bias: Any, generator: torch.Generator | int, curve: Tensor
) -> list[float]:
    """Lengths after every hidden layer, activation included."""
    net = nn.Sequential(*gaussian_network(widths, sigma, bias=bias, generator=generator), nn.ReLU())
    return [image_length(net[: 2 * (k + 1)], curve) for k in range(len(widths) - 1)]


def _figure_network(run: Run, depth: int, variance: float = 4.0) -> nn.Sequential:
    return gaussian_network([2, *[20] * depth, 2], variance**0.5, bias="none", generator=run.generator)


def _turns(values: Tensor) -> int:
    """Corners of the image where it turns by more than a right angle."""
    steps = values.diff(dim=0)
    steps = steps[steps.norm(dim=1) > 0]
    return int(((steps[1:] * steps[:-1]).sum(1) < 0).sum())


def _plot(axes: Any, curves: dict[int, Tensor]) -> None:
    for panel, (depth, values) in zip(axes[0], curves.items(), strict=True):
        panel.plot(values[:, 0], values[:, 1], lw=1.0)
        length = float(values.diff(dim=0).norm(dim=1).sum())
        panel.set_title(f"{depth} hidden layers, length {length:.3g}")
        panel.set_aspect("equal", adjustable="datalim")
        panel.set_xlabel("first output")
    axes[0, 0].set_ylabel("second output")
