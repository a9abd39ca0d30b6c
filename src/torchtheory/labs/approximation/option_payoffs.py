"""Pay-offs of options are ReLU networks, without error."""

from __future__ import annotations

import math
from typing import Any, get_args

import torch
from torch import Tensor

from torchtheory.approximation.certificates import network_size
from torchtheory.approximation.piecewise.payoffs import Payoff, payoff_network
from torchtheory.labs.engine import COLORS, Run, lab

KINDS: tuple[Payoff, ...] = get_args(Payoff)


@lab(
    "option-payoffs",
    room="approximation",
    covers=["A-111"],
    title="Calls, puts, straddles and spreads are exact ReLU networks of depth log d",
    full={"largest": 256, "prices": 20_000},
    least={"largest": 4},
)
def option_payoffs(run: Run, largest: int = 32, prices: int = 2000) -> None:
    """Eight pay-offs on d prices are written down as ReLU networks and compared with formulas.

    The largest of d prices is a tree of ⌈log₂ d⌉ layers, a strike one more layer. On random
    prices, also negative ones, the networks agree with the formulas to rounding, with O(d) units.
    A digital option jumps, and no network comes closer to it than 1/2. Look at the surface of a
    call on the larger of two prices.

    Args:
        largest: number of prices, at most.
        prices: random draws of all prices.
    """
    dimensions = [d for d in range(1, largest + 1) if d <= 5 or d & (d - 1) == 0]
    rows = [compare(run, kind, d, prices) for kind in KINDS for d in dimensions]
    x = run.randn(prices, 3)
    digital = (x.mean(1) >= 0.1).double()
    best = payoff_network("call spread", 3, 0.1 - 1e-3, second_strike=0.1)
    steep = torch.tensor([[0.1 - 1e-9] * 3, [0.1 + 1e-12] * 3]).double()
    values = best(torch.cat([x, steep]))[:, 0] / 1e-3
    target = torch.cat([digital, torch.tensor([0.0, 1.0]).double()])
    says = run.states("A-111", r"\max|\Phi(x)-\text{pay-off}(x)| \text{ over random prices}")
    says.equal(
        [row[5] for row in rows],
        within=1e-13,
        where=f"{len(KINDS)} pay-offs, {dimensions[0]} to {dimensions[-1]} prices",
    )
    says.fails("a digital option, which jumps, by a steep spread", float((values - target).abs().max()))
    trees = [row for row in rows if "max" in row[0] or "min" in row[0]]
    flat = [row for row in rows if row not in trees]
    says = run.states("A-111", r"\text{affine layers}=\lceil\log_2d\rceil+2 \text{ on the largest or smallest price}")
    says.equal([row[2] for row in trees], [math.ceil(math.log2(row[1])) + 2 for row in trees])
    says.fails(
        "baskets, which need no tree",
        [row[2] for row in flat],
        promised=[math.ceil(math.log2(row[1])) + 2 for row in flat],
    )
    run.states("A-111", r"\text{hidden units}\le3d+2\log_2d+2").at_most(
        [row[3] for row in rows], [3 * row[1] + 2 * math.log2(row[1]) + 2 for row in rows]
    )
    run.table(
        "payoffs",
        ["pay-off", "d", "affine layers", "units", "parameters", "largest difference"],
        rows,
        caption="The networks, and how far they are from the formulas on random prices",
    )
    run.figure(
        "payoffs",
        plot,
        grid=(1, 2),
        caption="Left: pay-offs of one price, strikes 1 and 1.5. Right: a call on the larger of "
        "two prices; dashed, where the network bends.",
    )


def formula(kind: str, x: Tensor, strike: float, second: float) -> Tensor:
    """The pay-offs as they are printed."""
    if kind.endswith("max"):
        price = x.max(1).values
    elif kind.endswith("min"):
        price = x.min(1).values
    else:
        price = x.mean(1)
    gain = price - strike
    if kind == "straddle":
        return gain.abs()
    if kind == "call spread":
        return gain.clamp(min=0) - (price - second).clamp(min=0)
    return (-gain if "put" in kind else gain).clamp(min=0)


def compare(run: Run, kind: Payoff, d: int, prices: int) -> tuple[str, int, int, int, int, float]:
    second = 0.7 if kind == "call spread" else None
    network = payoff_network(kind, d, 0.3, second_strike=second)
    x = run.randn(prices, d)
    apart = float((network(x)[:, 0] - formula(kind, x, 0.3, 0.7)).abs().max())
    size = network_size(network)
    return kind, d, size.depth, size.units, size.parameters, apart


def plot(axes: Any) -> None:
    left, right = axes[0]
    x = torch.linspace(0, 2.5, 501, dtype=torch.float64)[:, None]
    shown: tuple[Payoff, ...] = ("straddle", "basket call", "basket put", "call spread")
    for color, kind, width in zip(COLORS, shown, (5.0, 3.0, 3.0, 1.2), strict=False):
        second = 1.5 if kind == "call spread" else None
        net = payoff_network(kind, 1, 1.0, second_strike=second)
        left.plot(x, net(x), linewidth=width, color=color, label=kind.removeprefix("basket "))
    left.set(xlabel="price", ylabel="pay-off", title="one price")
    left.legend()
    side = torch.linspace(0, 2, 201, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)
    values = payoff_network("call on max", 2, 1.0)(grid).reshape(201, 201).T
    surface = right.contourf(side, side, values, levels=11, cmap="viridis")
    right.plot([0, 1, 1], [1, 1, 0], "--", color="white", linewidth=1)
    right.plot([1, 2], [1, 2], "--", color="white", linewidth=1)
    right.set(xlabel="first price", ylabel="second price", title="call on the larger, strike 1")
    right.figure.colorbar(surface, ax=right)
