"""Networks with random weights: how many regions they have, and how long curves become."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchtheory.core.intervals import mean_interval
from torchtheory.core.lab import lab
from torchtheory.core.record import Control
from torchtheory.core.run import Run
from torchtheory.expressivity.arrangement import PlaneSlice, plane_arrangement
from torchtheory.expressivity.bounds import most_regions
from torchtheory.expressivity.folding import montufar_network
from torchtheory.expressivity.pieces import pieces_along
from torchtheory.expressivity.trajectory import circle, gaussian_network, image_length
from torchtheory.nets.feedforward import dense


@lab(
    "random-regions",
    room="expressivity",
    covers=["A-98"],
    title="At random weights the number of regions follows the number of units, not the depth",
    full={"units": 96, "networks": 20},
)
def random_regions(run: Run, units: int = 16, networks: int = 5) -> None:
    """As many units in one, two and four hidden layers: about as many regions, with random weights.

    Weights are normal with variance 2/n and biases normal with standard deviation 1/1000, as in
    the experiments of Hanin and Rolnick. The activation regions on the square [-1, 1]² are counted
    exactly; the criterion, fixed beforehand, is that the mean count of a deeper
    network is within a factor of 2 of the shallow one's, so that its base-2 logarithm is between
    -1 and 1. The networks that fold have as many units and break it.
    """
    shapes = {d: [units // d] * d for d in (1, 2, 4)}
    counts = {
        d: [plane_arrangement(_small_biases(run, [2, *h, 1])).patterns for _ in range(networks)]
        for d, h in shapes.items()
    }
    means = {d: float(np.mean(c)) for d, c in counts.items()}
    folded = plane_arrangement(
        montufar_network(2, units // 4, 4), PlaneSlice.of_the_plane((0, 0), (1, 1))
    ).patterns
    run.claim(
        "A-98",
        r"\bigl|\log_2\bigl(\overline{\#}_{\text{deep}}/\overline{\#}_{\text{shallow}}\bigr)\bigr|\le1",
        promised=1.0,
        relation="<=",
        measured=[abs(float(np.log2(means[d] / means[1]))) for d in (2, 4)],
        reason=f"means over {networks} networks",
        control=Control(
            "weights that fold instead of random ones, four layers",
            abs(float(np.log2(folded / means[1]))),
        ),
    )
    run.claim(
        "A-98",
        r"\text{mean count below a tenth of the combinatorial maximum (four layers)}",
        promised=most_regions(2, shapes[4]) / 10,
        relation="<=",
        measured=means[4],
        interval=mean_interval([float(c) for c in counts[4]], 0.99),
        control=Control(
            "one layer, where generic weights come near the maximum",
            means[1],
            promised=most_regions(2, shapes[1]) / 10,
            interval=mean_interval([float(c) for c in counts[1]], 0.99),
        ),
    )
    run.table(
        "counts",
        ["hidden layers", "fewest", "mean", "most", "combinatorial maximum"],
        [
            ("-".join(map(str, h)), min(counts[d]), means[d], max(counts[d]), most_regions(2, h))
            for d, h in shapes.items()
        ],
        caption=f"{networks} random networks with {units} units each, on the square [-1, 1]².",
    )


@lab(
    "trajectory-length",
    room="expressivity",
    covers=["A-99", "A-100"],
    title="A circle's way through a random network: how its length grows",
    errata=["trajectory-same-law"],
    full={"networks": 60, "trials": 1000, "corners": 400},
)
def trajectory_length(
    run: Run, sigma: float = 2.0, networks: int = 7, trials: int = 30, corners: int = 16
) -> None:
    """The image of a polygon is a polygon, so its length after each layer is exact.

    With the same normal numbers at σ = 1 and at another σ, weights scale by σ. If the biases of
    layer ℓ scale by σ^ℓ the length after layer ℓ scales by exactly σ^ℓ, network by network. If all
    biases scale by σ, as in the source, it does not from the second layer on, and the outputs have
    another law; the *expected* length still scales by σ^ℓ, because the sign of a unit is a fair
    coin that does not know how fast its pre-activation moves. The figure sends a circle through
    networks with variance 4/n and no, three and ten hidden layers: the length and the number of
    turns grow with depth.
    """
    curve = circle(corners)
    widths = [2, 12, 12, 12]
    seeds = [int(s) for s in torch.randint(0, 2**31, (trials,), generator=run.generator)]
    depth = len(widths) - 1
    few = seeds[:4]
    exact = [
        (_lengths(widths, 1.0, "power", s, curve), _lengths(widths, sigma, "power", s, curve))
        for s in few
    ]
    wrong = [_lengths(widths, sigma, "sigma", s, curve) for s in few]
    promised = torch.tensor([[sigma ** (k + 1) for k in range(depth)]] * len(few)).double()
    run.claim(
        "A-99",
        r"b^{(\ell)} \text{ scaled by } \sigma^\ell:\ \mathrm{length}_\sigma/\mathrm{length}_1"
        r"=\sigma^\ell \text{ in every network}",
        promised=promised,
        relation="==",
        measured=torch.tensor(
            [[b / a for a, b in zip(*pair, strict=True)] for pair in exact], dtype=torch.float64
        ),
        tolerance=1e-10,
        control=Control(
            "biases scaled by σ in every layer",
            torch.tensor(
                [
                    [b / a for a, b in zip(one, two, strict=True)]
                    for (one, _), two in zip(exact, wrong, strict=True)
                ],
                dtype=torch.float64,
            ),
        ),
    )
    gaps, sizes = [], []
    point = curve[:1]
    for s in seeds:
        one, two = (
            nn.Sequential(gaussian_network(widths, v, random=s), nn.ReLU()) for v in (1.0, sigma)
        )
        gaps.append(image_length(two, curve) - sigma**depth * image_length(one, curve))
        with torch.no_grad():
            squares = [float(net(point).square().sum()) for net in (one, two)]
        sizes.append(squares[1] - sigma ** (2 * depth) * squares[0])
    run.claim(
        "A-99",
        rf"E[\mathrm{{length}}_\sigma]-\sigma^\ell E[\mathrm{{length}}_1] = 0,\ \ell={depth},"
        r"\text{ with biases of variance } \sigma^2 \text{ in every layer}",
        promised=0.0,
        relation="~",
        measured=float(np.mean(gaps)),
        interval=mean_interval(gaps, 0.99),
        reason=f"{trials} pairs of networks with the same normal numbers, confidence 99 %",
    )
    run.erratum(
        "trajectory-same-law",
        r"\bar\Phi^{(\ell)}(\cdot,\Theta_\sigma)\sim\sigma^\ell\bar\Phi^{(\ell)}(\cdot,\Theta_1):\ "
        r"E\|\bar\Phi_\sigma(x)\|^2-\sigma^{2\ell}E\|\bar\Phi_1(x)\|^2=0",
        promised=0.0,
        relation="~",
        measured=float(np.mean(sizes)),
        interval=mean_interval(sizes, 0.99),
        reason=f"{trials} pairs of networks with the same normal numbers, confidence 99 %",
    )
    depths = (0, 3, 10)
    shown = {d: [_figure_network(run, d) for _ in range(networks)] for d in depths}
    fine = circle(6 * corners)
    images = {d: [pieces_along(net, fine) for net in nets] for d, nets in shown.items()}
    length = {
        d: np.median([float(p.values.diff(dim=0).norm(dim=1).sum()) for p in found])
        for d, found in images.items()
    }
    turns = {d: np.median([_turns(p.values) for p in found]) for d, found in images.items()}
    run.claim(
        "A-100",
        r"\text{median length of the image grows from 0 to 3 to 10 hidden layers}",
        promised=[length[0], length[3]],
        relation=">",
        measured=[length[3], length[10]],
        control=Control(
            "variance 1/n instead of 4/n",
            float(
                np.median(
                    [image_length(_figure_network(run, 10, 1.0), fine) for _ in range(networks)]
                )
            ),
            promised=length[0],
        ),
    )
    run.claim(
        "A-100",
        r"\text{median number of changes of direction grows with depth}",
        promised=[turns[0], turns[3]],
        relation=">",
        measured=[turns[3], turns[10]],
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


def _small_biases(run: Run, widths: list[int]) -> nn.Sequential:
    """Weights of variance 2/n, biases of standard deviation 1/1000."""
    layers: list[nn.Module] = []
    for n, m in pairwise(widths):
        layers += [dense(run.randn(m, n) * (2 / n) ** 0.5, 1e-3 * run.randn(m)), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _lengths(widths: list[int], sigma: float, bias: Any, seed: int, curve: Tensor) -> list[float]:
    """Lengths after every hidden layer, activation included."""
    net = nn.Sequential(*gaussian_network(widths, sigma, bias=bias, random=seed), nn.ReLU())
    return [image_length(net[: 2 * (k + 1)], curve) for k in range(len(widths) - 1)]


def _figure_network(run: Run, depth: int, variance: float = 4.0) -> nn.Sequential:
    return gaussian_network([2, *[20] * depth, 2], variance**0.5, bias="none", random=run.generator)


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
