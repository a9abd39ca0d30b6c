"""How many affine pieces a network has along a line."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.expressivity.bounds import (
    curvature_floor,
    doubling_bound,
    even_bound,
    most_pieces,
)
from torchtheory.expressivity.folding import sawtooth_network, zigzag_network
from torchtheory.expressivity.pieces import Pieces, affine_pieces
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.feedforward import dense, mlp


@lab(
    "affine-pieces",
    room="expressivity",
    covers=["L-104", "L-105", "L-106", "A-88", "A-94", "X-69"],
    title="Every piece of a network along a line, counted exactly, and the bounds on their number",
    full={"networks": 300, "width": 64},
    least={"width": 2},
)
def affine_pieces_lab(run: Run, networks: int = 5, width: int = 12) -> None:
    """A ReLU network along a line is piecewise linear; all its breakpoints are found exactly.

    Random networks with one, two and three hidden layers are taken along a line. From the pieces
    the function is put together again and compared with the network, and their number with the
    slopes that automatic differentiation finds between the breakpoints. One hidden layer of n
    units has n + 1 pieces whenever all kinks are on the line; more layers stay below the product of
    the n + 1, and composed zigzags reach the product of the widths. Counting a ReLU as doubling
    and a sum as adding gives the coarser bound $2^L$ times the product; spread evenly over L layers
    it is largest at an average width of e/2, where real networks have very few pieces.

    Args:
        networks: random networks of each shape.
        width: hidden units of the shallow networks, which have one piece more.
    """
    shallow = [_shallow(run, width) for _ in range(networks)]
    counted = [affine_pieces(net, -_far(net), _far(net)) for net in shallow]
    says = run.states(
        ["A-88", "X-69", "L-104"], r"\text{one hidden layer of } n \text{ generic units: exactly } n+1 \text{ pieces}"
    )
    says.equal([p.count for p in counted], width + 1)
    says.fails(
        "not generic: all units share one kink", affine_pieces(_shallow(run, width, shared=True), -4.0, 4.0).count
    )
    hidden = [[width], [width, width], [width, width // 2, width]]
    deep = [(h, mlp([1, *h, 1], generator=run.generator)) for _ in range(networks) for h in hidden]
    found = [(h, net, affine_pieces(net, -8.0, 8.0)) for h, net in deep]
    says = run.states(["A-94", "X-69", "L-105"], r"\delta_A\le\prod_\ell(n_\ell+1)\le 2^L\prod_\ell n_\ell")
    says.at_most([p.count for _, _, p in found], [most_pieces(h) for h, _, _ in found])
    says.fails(
        "units with two kinks each (clamps)",
        affine_pieces(_shallow(run, width, unit=nn.Hardtanh()), -99.0, 99.0).count,
        promised=most_pieces([width]),
    )
    t = run.rand(400)
    says = run.states(["L-104", "X-69"], r"\text{the pieces put together are the network: largest difference}")
    says.at_most([_difference(p, net, t) for _, net, p in found], 0.0, 1e-12)
    says.fails("one breakpoint left out", _difference(_without_one(found[0][2]), found[0][1], t))
    run.states(
        ["L-104", "X-69"],
        r"\#\{\text{changes of } f' \text{ between neighboring intervals}\}+1\text{, by automatic differentiation}",
    ).equal([_pieces_by_slopes(net, p) for _, net, p in found], [p.count for _, _, p in found])
    absolute = nn.Sequential(dense(torch.tensor([[1.0], [-1.0]]).double()), nn.ReLU())
    absolute.append(dense(torch.ones(1, 2).double()))
    run.states("L-104", r"\delta_A(|x|)=2").equal(affine_pieces(absolute, -1.0, 1.0).count, 2)

    inner = [(net, p) for _, net, p in found]
    says = run.states("L-105", r"\delta_A(\rho\circ f)\le2\,\delta_A(f)")
    says.at_most([affine_pieces(_centered(net), -8.0, 8.0).count for net, p in inner], [2 * p.count for _, p in inner])
    says.fails(
        "a clamp to a small interval instead of a ReLU",
        affine_pieces(nn.Sequential(zigzag_network([6]), nn.Hardtanh(0.4, 0.6)), 0.0, 1.0).count,
        promised=2 * 6,
    )
    pairs = [(inner[i], inner[i + 1]) for i in range(0, len(inner) - 1, 2)]
    run.states("L-105", r"\delta_A(f+g)\le\delta_A(f)+\delta_A(g)-1").at_most(
        [affine_pieces(_Sum(a, b), -8.0, 8.0).count for (a, _), (b, _) in pairs],
        [p.count + q.count - 1 for (_, p), (_, q) in pairs],
    )
    folds = [[2, 3], [3, 3], [2, 2, 2], [5], [4, 3, 2]]
    run.states("A-94", r"\text{composed zigzags with } n_\ell \text{ units reach } \prod_\ell n_\ell").equal(
        [affine_pieces(zigzag_network(q), 0.0, 1.0).count for q in folds], [math.prod(q) for q in folds]
    )
    many = 600  # so many units that rounding the depth to a whole number hardly matters
    depths = range(1, 2 * many + 1)
    best = max(depths, key=lambda depth: even_bound(many, depth))
    says = run.states("L-106", r"\arg\max_L(2m/L)^L=2m/e,\quad \log\max_L(2m/L)^L=2m/e")
    says.equal(
        [best, math.log(even_bound(many, best))],
        2 * many / math.e,
        2e-3,
        where=f"m = {many}; over whole numbers L, whose rounding is within the tolerance",
    )
    says.fails("at half that depth", [best // 2, math.log(even_bound(many, best // 2))])
    best = max(range(1, 25), key=lambda depth: even_bound(12, depth))
    thin = [mlp([1, *[1] * best, 1], generator=run.generator) for _ in range(4)]
    says = run.states(
        "L-106", r"\text{at that shape (layers of one unit) a network has at most 3 pieces: two constants and a line}"
    )
    says.at_most([affine_pieces(net, -8.0, 8.0).count for net in [*thin, _clip(best)]], 3)
    says.fails("as many units, as zigzags of width 2", affine_pieces(zigzag_network([2] * 6), 0.0, 1.0).count)
    run.table(
        "bounds",
        ["hidden layers", "most pieces met", "product of n + 1", "$2^L$ product of n"],
        [
            (
                "-".join(map(str, h)),
                max(p.count for g, _, p in found if g == h),
                most_pieces(h),
                doubling_bound(h),
            )
            for h in hidden
        ],
        caption=f"{networks} random networks each, on [-8, 8].",
    )
    show = next((net, p) for h, net, p in found if len(h) == 3)
    run.figure(
        "pieces",
        lambda axes: _plot(axes, *show),
        caption="A random network with three hidden layers and every point where it bends.",
    )


def _clip(depth: int) -> nn.Sequential:
    """Layers of one unit each: the first two clip at 0 and at 1, the others only carry on."""
    one = torch.ones(1, 1).double()
    layers: list[nn.Module] = [dense(one, 0 * one[0]), nn.ReLU(), dense(-one, one[0]), nn.ReLU()]
    for _ in range(depth - 2):
        layers += [dense(one, 0 * one[0]), nn.ReLU()]
    return nn.Sequential(*layers, dense(one, 0 * one[0]))


@lab(
    "depth-floor",
    room="expressivity",
    covers=["X-64", "A-93"],
    title="An architecture cannot come closer to a curved function than its pieces allow",
    full={"steps": 2000, "widths": [2, 4, 8, 16]},
)
def depth_floor(run: Run, steps: int = 150, widths: list[int] | None = None) -> None:
    r"""p affine pieces cannot come closer to x² on [0, 1] than 1/(8p²), whatever the weights.

    The best function with p pieces is written down (the interpolant, lowered by half its error)
    and its error compared with the floor. Networks of one and two hidden layers are trained on x²;
    their largest error, exact from their pieces, is compared with the floor of their architecture
    and with the higher floor of the pieces they really have.

    Args:
        steps: training steps of each network that is fitted to the square.
        widths: of the hidden layers; 2, 4 and 8 unless given.
    """
    sizes = widths or [2, 4, 8]
    best = []
    for p in sizes:
        net = _square_with_pieces(p)
        assert affine_pieces(net, 0.0, 1.0).count == p
        best.append(_sup_error(net))
    says = run.states(["X-64", "A-93"], r"\min_{p\text{ pieces}}\sup_{[0,1]}|x^2-g|=\frac1{8p^2}")
    says.equal(best, [curvature_floor(2.0, 1.0, p) for p in sizes], 1e-12)
    says.fails("the interpolant itself, not lowered", [_sup_error(_square_with_pieces(p, 0.0)) for p in sizes])
    shapes = [*([n] for n in sizes), *([n, n] for n in sizes[:2])]
    trained = [(h, _fit_square(run, h, steps)) for h in shapes]
    errors = [_sup_error(net) for _, net in trained]
    used = [affine_pieces(net, 0.0, 1.0).count for _, net in trained]
    says = run.states(
        ["X-64", "A-93"], r"\sup|x^2-\Phi|\ge\frac1{8\prod_\ell(n_\ell+1)^2}\ \text{ for hidden widths } n_\ell"
    )
    says.at_least(
        errors + best,
        [curvature_floor(2.0, 1.0, most_pieces(h)) for h in [*shapes, *([n] for n in sizes)]],
        1e-12,
        where="one and two hidden layers, trained, and the best functions with n units and n pieces on [0, 1]",
    )
    says.fails(
        "tents composed up to four times, against the floor of one layer of eight units",
        _sup_error(_SquareOfTents(4)),
        promised=curvature_floor(2.0, 1.0, 9),
    )
    run.states("X-64", r"\sup|x^2-\Phi|\ge\frac1{8p^2},\ p\text{ the pieces the trained network has}").at_least(
        errors + best, [curvature_floor(2.0, 1.0, p) for p in [*used, *sizes]], 1e-12
    )
    run.table(
        "trained",
        ["hidden layers", "pieces on [0, 1]", "largest error", "floor of its pieces",
         "floor of the widths"],
        [
            ("-".join(map(str, h)), p, e, curvature_floor(2.0, 1.0, p),
             curvature_floor(2.0, 1.0, most_pieces(h)))
            for (h, _), p, e in zip(trained, used, errors, strict=True)
        ],
    )  # fmt: skip
    run.figure(
        "floor",
        lambda axes: _plot_floor(axes, [len(h) for h in shapes], used, errors),
        caption="The largest error of trained networks and of composed tents against the number of "
        "affine pieces they have, and the floor that no function with so many pieces goes below. "
        "Depth buys pieces: k tents of two units make $2^k$.",
    )


def _plot_floor(axes: Any, depths: list[int], used: list[int], errors: list[float]) -> None:
    tents = [_SquareOfTents(k) for k in (1, 2, 3, 4)]
    counts = [affine_pieces(net, 0.0, 1.0).count for net in tents]
    pieces = torch.arange(1, max(*counts, *used) + 1)
    floor = [curvature_floor(2.0, 1.0, int(p)) for p in pieces]
    axes.loglog(pieces, floor, color="0.3", label="floor $1/(8p^2)$")
    for number, name in ((1, "one hidden layer"), (2, "two hidden layers")):
        points = [(p, e) for d, p, e in zip(depths, used, errors, strict=True) if d == number]
        x, y = zip(*points, strict=True)
        axes.loglog(x, y, "o", color=COLORS[number], label=f"trained, {name}")
    axes.loglog(counts, [_sup_error(net) for net in tents], "s", color=COLORS[0], label="tents")
    axes.set(xlabel="affine pieces p", ylabel="largest error on [0, 1]")
    axes.legend()


def _shallow(run: Run, width: int, *, shared: bool = False, unit: nn.Module | None = None) -> nn.Sequential:
    slopes = run.signs(width, 1) * (0.5 + run.rand(width, 1))
    kinks = run.randn(width, 1) * (0.0 if shared else 1.0)
    return nn.Sequential(dense(slopes, -(slopes * kinks)[:, 0]), unit or nn.ReLU(), dense(run.randn(1, width)))


def _far(net: nn.Sequential) -> float:
    layer = net[0]
    assert isinstance(layer, nn.Linear)
    return 1.0 + float((layer.bias / layer.weight[:, 0]).detach().abs().max())


def _pieces_by_slopes(net: nn.Module, pieces: Pieces) -> int:
    """Count the changes of the derivative between the middles of neighboring intervals."""
    middles = (16 * (pieces.breakpoints[1:] + pieces.breakpoints[:-1]) / 2 - 8)[:, None]
    _, slopes = torch.func.jvp(net, (middles,), (torch.ones_like(middles),))  # type: ignore[misc]
    steps = slopes[:, 0].diff().abs()
    return int((steps > 1e-9 * slopes.abs().max()).sum()) + 1


def _difference(pieces: Pieces, net: nn.Module, t: Tensor) -> float:
    """The largest distance between the pieces and the network on [-8, 8]."""
    with torch.no_grad():
        return float((pieces(t) - net(16 * t[:, None] - 8)).abs().max())


def _sup_error(net: nn.Module) -> float:
    """The largest distance from x² on [0, 1], exactly: at the ends of a piece, or where the
    parabola's slope is the piece's."""
    found = affine_pieces(net, 0.0, 1.0)
    tangent = (found.slopes[:, 0] / 2).clamp(0, 1)
    x = torch.cat([found.breakpoints, tangent])
    return float((found(x)[:, 0] - x**2).abs().max())


def _without_one(pieces: Pieces) -> Pieces:
    keep = torch.ones_like(pieces.bends)
    keep[len(keep) // 2] = False
    return Pieces(pieces.breakpoints[keep], pieces.values[keep], pieces.bends[keep], pieces.changes[keep])


def _centered(net: nn.Module) -> nn.Module:
    """ReLU of the network, moved so that 0 is in the middle of its values."""
    with torch.no_grad():
        level = net(torch.linspace(-8, 8, 201).double()[:, None]).median().reshape(1)
    return nn.Sequential(net, dense(torch.ones(1, 1).double(), -level), nn.ReLU())


class _Sum(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.first(x) + self.second(x)
        return out


class _SquareOfTents(nn.Module):
    r"""$x-\sum_{k\le n}4^{-k}h_k(x)$, $h_k$ the tent map composed $k$ times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.tents = nn.ModuleList(sawtooth_network(k) for k in range(1, times + 1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x - sum(h(x) / 4.0**k for k, h in enumerate(self.tents, start=1))
        return out


def _square_with_pieces(p: int, lowered: float = 1.0) -> nn.Sequential:
    """The interpolant of x² at p + 1 points, lowered by half its error."""
    knots = torch.arange(p).double() / p
    slopes = 2 * knots + 1 / p
    steps = torch.cat([slopes[:1], slopes.diff()])
    shift = torch.tensor([-lowered / (8 * p * p)]).double()
    return nn.Sequential(dense(torch.ones(p, 1).double(), -knots), nn.ReLU(), dense(steps[None], shift))


def _fit_square(run: Run, hidden: list[int], steps: int) -> nn.Sequential:
    net = mlp([1, *hidden, 1], generator=run.generator)
    first = net[0]
    assert isinstance(first, nn.Linear)
    with torch.no_grad():  # kinks inside the interval
        first.weight.fill_(1.0)
        first.bias.copy_(-run.rand(hidden[0]))
    x = torch.linspace(0, 1, 257).double()[:, None]
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (net(x) - x**2).pow(2).mean()
        loss.backward()
        optimizer.step()
    return net


def _plot(axes: Any, net: nn.Module, pieces: Pieces) -> None:
    x = 16 * pieces.breakpoints - 8
    axes.plot(x, pieces.values[:, 0], color=COLORS[0])
    axes.plot(16 * pieces.kinks - 8, pieces(pieces.kinks)[:, 0], "o", ms=3.5, color=COLORS[1])
    axes.set_xlabel("x")
    axes.set_ylabel("network")
    axes.set_title(f"{pieces.count} affine pieces")
