"""Telgarsky's sawtooth: 2^k pieces from k layers of two units, and what shallow networks miss."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.approximation.piecewise.broken_lines import broken_line_network
from torchtheory.expressivity.bounds import (
    alternation_floor,
    least_units,
    most_pieces,
    sawtooth_floor,
)
from torchtheory.expressivity.folding import sawtooth_network, zigzag_network
from torchtheory.expressivity.pieces import affine_pieces
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.feedforward import dense, mlp


@lab(
    "sawtooth",
    room="expressivity",
    covers=["A-89", "L-107", "S-42", "S-43", "X-74"],
    title="The tent map composed k times has exactly 2ᵏ affine pieces",
    errata=["sawtooth-number-of-spikes"],
    full={"times": 14},
    least={"times": 2},
    most={"times": 16},
)
def sawtooth(run: Run, times: int = 8) -> None:
    r"""Two units make a tent; composing it doubles the pieces, adding units only adds some.

    The pieces of the composed tent on [0, 1] are counted exactly, its values at the dyadic points
    compared with 0 and 1 (they are exact in floating point), its integral with 1/2. The same
    function as one hidden layer needs a unit for every piece: the number of units that any depth
    needs for $K^L$ pieces is compared with the zigzags that reach it.

    Theorem:
        Let $h$ be the tent map, which two ReLU units compute.
        *Onto*: $h$ maps either half of $[0,1]$ linearly onto all of $[0,1]$.
        Then $h$ composed $k$ times, a network of $k$ layers with two units each, has exactly $2^k$ affine pieces.

        Let a ReLU network of one input have $\tilde L$ hidden layers and $p$ affine pieces.
        Then it has at least $\tilde L(p^{1/\tilde L}-1)$ units: a single hidden layer needs a unit for every bend.

    Symbols:
        $h$, $m$: the tent map, by two names: it rises from 0 to 1 on $[0,\tfrac12]$ and falls back on $[\tfrac12,1]$.
        $h^{\circ k}$: the tent map composed $k$ times; $n$ times where a source calls it that.
        $\rho$: the rectifier, $\rho(x)=\max(x,0)$.
        $x$: a number in $[0,1]$.
        $p$: the number of compositions of the tent, or of pieces of a network.
        $t_q$: the zigzag of $q$ pieces, each onto $[0,1]$, from $q$ units.
        $K$, $L$: pieces of one zigzag, and how many are composed.
        $\tilde L$: layers that the same number of pieces is spread over.

    Idea:
        Each of the two pieces of the tent covers all of $[0,1]$, so whatever is applied afterwards appears
        twice, once mirrored: composing doubles the pieces. Adding functions does less: the bends of a
        sum are among the bends of its terms, so a layer adds at most as many as it has units, on each
        piece of the layer before. Multiplied over the layers, that bounds the pieces by a product.

    Try:
        times=4: the table ends with 16 pieces from 8 units, beside 15 in one hidden layer.
        times=12: 4096 pieces from 24 units; one hidden layer would take 4095.

    Exercise:
        Write down a ReLU network `net` with at most six hidden units and eight affine pieces on $[0,1]$.
        How many units would one hidden layer need?
        check: tt.expressivity.affine_pieces(net, 0.0, 1.0).count == 8 and tt.expressivity.least_units(8, 1) == 7
        answer: net = tt.expressivity.sawtooth_network(3)

    Args:
        times: how often the tent map is composed with itself, at most.
    """
    sizes = range(1, times + 1)
    nets = {k: sawtooth_network(k) for k in sizes}
    found = {k: affine_pieces(net, 0.0, 1.0) for k, net in nets.items()}
    says = run.states(["A-89", "L-107", "S-43"], r"\text{pieces of } h^{\circ k} \text{ on } [0,1] = 2^k")
    says.equal([found[k].count for k in sizes], [2**k for k in sizes])
    says.fails(
        "a tent that only reaches 1/2 does not fold [0, 1] onto itself",
        [affine_pieces(_low_tent(k), 0.0, 1.0).count for k in sizes],
    )
    run.states("L-107", r"2^p+2 \text{ pieces on } \mathbb R \text{ with the tent that is 0 outside } [0,1]").equal(
        [affine_pieces(sawtooth_network(k, clipped=True), -1.0, 2.0).count for k in range(1, 7)],
        [2**k + 2 for k in range(1, 7)],
    )
    long = 50
    grid = torch.arange(0, 2**12 + 1).double() / 2**12
    index = (torch.randint(0, 2**long, (500,), generator=run.generator)).double()
    run.states(["A-89", "L-107", "S-43"], r"h^{\circ k}(i/2^k) = i \bmod 2\ \text{ exactly, } k\le50").equal(
        torch.cat(
            [sawtooth_network(long)((index / 2.0**long)[:, None])[:, 0], sawtooth_network(12)(grid[:, None])[:, 0]]
        ).detach(),
        torch.cat([index % 2, torch.arange(2**12 + 1).double() % 2]),
    )
    x = run.rand(300)
    folded = (2.0 ** (times - 1) * x) % 1.0
    run.states(["L-107", "S-43"], r"h^{\circ k}(x) = h(\mathrm{frac}(2^{k-1}x))").equal(
        nets[times](x[:, None])[:, 0].detach(), 1 - (2 * folded - 1).abs(), 1e-12
    )
    run.states(["L-107", "S-43"], r"\int_0^1 h^{\circ k} = \tfrac12").equal(
        [_integral(p.breakpoints, p.values[:, 0]) for p in found.values()], 0.5, 1e-14
    )
    t = torch.linspace(-2, 3, 1001).double()
    tent = torch.relu(1 - (2 * t - 1).abs())
    inner = nets[1]
    says = run.states("S-42", r"\rho(2\rho(x)-4\rho(x-\tfrac12)) = m(x) \text{ on } [0,1],\ 0 \text{ outside}")
    says.equal(torch.relu(inner(t[:, None]))[:, 0].detach(), tent, 1e-15)
    says.fails(
        "without the outer ReLU, outside of [0, 1]",
        inner(t[t > 1][:, None])[:, 0].detach(),
        promised=tent[t > 1],
    )
    spikes = [int((p.values[:, 0] == 1).sum()) for p in found.values()]
    run.refutes("sawtooth-number-of-spikes", r"\text{spikes of } h^{\circ n} = 2^n").equal(
        spikes, [2**k for k in sizes]
    )
    cases = [(2, 4, d) for d in (1, 2, 4)] + [(3, 2, d) for d in (1, 2)] + [(2, 6, d) for d in (2, 3)]
    folds = [[k ** (length // depth)] * depth for k, length, depth in cases]
    run.states(
        "X-74",
        r"t_q\circ\dots\circ t_q \text{ with } q=K^{L/\tilde L},\ \tilde L \text{ times, has } K^L \text{ pieces}",
    ).equal([affine_pieces(zigzag_network(q), 0.0, 1.0).count for q in folds], [k**length for k, length, _ in cases])
    composed = [(k, length, zigzag_network([k] * length)) for k, length, d in cases if d == length]
    run.states("X-74", r"t_K\circ\dots\circ t_K,\ L \text{ times, takes exactly } KL \text{ units}").equal(
        [_units(net) for _, _, net in composed], [k * length for k, length, _ in composed]
    )
    hidden = [[9], [6, 5], [4, 3, 4]]
    random = [mlp([1, *h, 1], generator=run.generator) for h in hidden for _ in range(4)]
    counted = [affine_pieces(net, -8.0, 8.0).count for net in random]
    says = run.states(
        "X-74", r"p \text{ pieces from } \tilde L \text{ layers take at least } \tilde L(p^{1/\tilde L}-1)\text{ units}"
    )
    says.at_least(
        [_units(zigzag_network(q)) for q in folds] + [_units(net) for net in random],
        [least_units(k**length, depth) for k, length, depth in cases]
        + [least_units(p, len(h)) for p, h in zip(counted, [h for h in hidden for _ in range(4)], strict=True)],
        where="the zigzags of the claim before, and random networks by the pieces they have",
    )
    says.fails(
        "more layers than the bound counts: $2^6$ pieces from 6 layers, judged as one",
        _units(zigzag_network([2] * 6)),
        promised=least_units(2**6, 1),
    )
    run.table(
        "sizes",
        ["k", "pieces", "units, composed", "least units, one hidden layer"],
        [(k, found[k].count, _units(nets[k]), least_units(2**k, 1)) for k in sizes],
    )
    run.figure(
        "sawtooth",
        _plot,
        caption="The tent map composed one, two, three and five times.",
        grid=(1, 4),
        size=(11, 2.6),
    )


@lab(
    "telgarsky-separation",
    room="expressivity",
    covers=["L-108", "X-68", "S-44", "S-45"],
    title="Few pieces cannot follow many teeth: Telgarsky's lower bounds, certified",
    errata=[
        "telgarsky-hidden-layers",
        "telgarsky-width-condition",
        "telgarsky-display",
        "telgarsky-one-layer",
    ],
    full={"networks": 40, "steps": 400},
)
def telgarsky_separation(run: Run, networks: int = 3, steps: int = 60) -> None:
    """A function with few affine pieces crosses 1/2 rarely, so it misses most teeth of a sawtooth.

    The L₁ distance of trained shallow networks to the sawtooth is computed exactly (the absolute
    difference is itself a piecewise linear network, whose pieces are integrated one by one) and
    compared with the bound that their own number of pieces certifies; so are functions that follow
    some or all of the teeth exactly, and errors on points with alternating labels. The composed tent has
    no error at all.

    Args:
        networks: trained networks of each shape.
        steps: training steps of each.
    """
    p = 6
    target = sawtooth_network(p)
    trained = [_fit(run, target, [4], steps) for _ in range(networks)]
    trained += [_fit(run, target, [2, 2], steps) for _ in range(networks)]
    pieces = [affine_pieces(net, 0.0, 1.0).count for net in trained]
    distances = [_distance(target, net) for net in trained]
    follow = (1, 2, 9, 17, 25, 33, 49, 64)
    followers = [_follower(p, n) for n in follow]
    missed = [_distance(target, net) for net in followers]
    run.states(
        "L-108", r"g=\Delta^p \text{ on } [0,t],\ \tfrac12 \text{ beyond}:\ \|\Delta^p-g\|_{L_1}=\tfrac14(1-t)"
    ).equal(missed, [(1 - max(0.0, n - 1.5) / 2**p) / 4 for n in follow], 1e-12)
    every = [*trained, *followers, target]
    counts = [affine_pieces(net, 0.0, 1.0).count for net in every]
    apart = [*distances, *missed, _distance(target, target)]
    others = [(q, n) for q in (2, 4, 8) for n in (1, 2 ** (q - 2) + 1, 2**q)]
    says = run.states("L-108", r"\|\Delta^{p}-g\|_{L_1}\ge\tfrac14-(\delta_A(g)-1)2^{-p-1}")
    says.at_least(
        apart + [_distance(sawtooth_network(q), _follower(q, n)) for q, n in others],
        [sawtooth_floor(p, n) for n in counts] + [sawtooth_floor(q, n) for q, n in others],
        1e-12,
        where="p = 6: trained networks, functions that follow up to 62 of the 64 half teeth, the sawtooth itself; "
        "p = 2, 4, 8: such functions",
    )
    says.fails(
        "g with 49 and with 64 pieces, judged as if it had 9",
        [_distance(target, _follower(p, n)) for n in (49, 64)],
        promised=sawtooth_floor(p, 9),
    )
    says = run.states(["L-108", "X-68"], r"\|\Delta^{p}-g\|_{L_1}\ge\tfrac12[2^p-2\delta_A(g)]2^{-p-2}")
    says.at_least(apart, [max(0.0, 2**p - 2 * n) / 2 ** (p + 3) for n in counts], 1e-12, where="the same functions")
    says.fails(
        "g with 49 and with 64 pieces, judged as if it had 9",
        [_distance(target, _follower(p, n)) for n in (49, 64)],
        promised=(2**p - 2 * 9) / 2 ** (p + 3),
    )
    depths = range(2, 7)
    says = run.states("L-108", r"L\ge2,\ p=L^2+2,\ \delta_A(g)\le(2\cdot2^L/L)^L:\ \int|\Delta^p-g|\ge\tfrac18")
    says.at_least(
        [sawtooth_floor(L * L + 2, math.floor((2 * 2**L / L) ** L)) for L in depths],
        1 / 8,
        where="the floor, L = 2, ..., 6",
    )
    says.fails("L = 1", sawtooth_floor(3, 4))
    small = [(d, n) for d, n in zip(apart, counts, strict=True) if n <= most_pieces([2, 2])]
    run.states(
        "L-108",
        r"L=2:\ \int|\Delta^6-g|\ge\tfrac1{32} \text{ for every } g \text{ with at most 4 units in at most 2 layers}",
    ).at_least(
        [d for d, _ in small],
        1 / 32,
        loose="such a g has at most 9 pieces, and the floor for these is 3/16; the proof allows 16 pieces, and counts "
        "half of the triangles on one side of the line only",
    )
    run.states("X-68", r"\|g_m-h\|_{L_1}\ge\tfrac18-\tfrac{p+1}{2^{m+2}}").at_least(
        apart, [1 / 8 - (n + 1) / 2 ** (p + 2) for n in counts], 1e-12
    )
    shallow = {m: _fit(run, sawtooth_network(m), [4], steps) for m in (4, 5, 7, 8)} | {p: trained[0]}
    says = run.states("X-68", r"\text{trained on } g_m,\ m=4,\dots,8:\ \|g_m-h\|_{L_1}\ge\tfrac18-\tfrac{p+1}{2^{m+2}}")
    says.at_least(
        [_distance(sawtooth_network(m), net) for m, net in shallow.items()],
        [_oscillation_floor(m, net) for m, net in shallow.items()],
    )
    says.fails(
        "m layers of two units, judged as the shallow network of m = 8",
        _distance(sawtooth_network(8), sawtooth_network(8)),
        promised=_oscillation_floor(8, shallow[8]),
    )
    half = nn.Sequential(dense(torch.zeros(1, 1).double(), torch.full((1,), 0.5).double()))
    run.states("L-108", r"\int_0^1|\Delta^6-\tfrac12| = \tfrac14").equal(_distance(target, half), 0.25, 1e-14)
    says = run.states(["S-44", "X-68"], r"R(m^{(n)}) = 0 \text{ on its own } 2^n \text{ points}")
    says.equal([_error(sawtooth_network(n), n) for n in range(1, 15)])
    says.fails("the constant 1/2", [_error(half, n) for n in range(1, 15)])
    errors = [_error(net, p) for net in trained]
    says = run.states("S-45", r"R(g)\ge\tfrac12-\tfrac{t+1}{2N},\quad t \text{ the pieces of } g")
    says.at_least(errors, [alternation_floor(2**p, n) for n in pieces])
    says.fails(
        "the sawtooth of 12 units, judged as one hidden layer of 12",
        _error(target, p),
        promised=alternation_floor(2**p, most_pieces([12])),
    )
    best = [_best_error(16, t) for t in (2, 5, 9)]
    run.states("S-45", r"\text{the best classifier with } t+1 \text{ intervals has error at least the floor}").at_least(
        best,
        [alternation_floor(16, t) for t in (2, 5, 9)],
        where="found by dynamic programming over all ways to place the intervals",
    )
    k = 4
    layers = nn.Sequential(*[m for _ in range(k) for m in (sawtooth_network(1), nn.ReLU())])
    run.refutes(
        "telgarsky-hidden-layers", r"m^{(4)} \text{ as tents one after the other has } 2^k \text{ hidden layers}"
    ).equal(sum(isinstance(m, nn.ReLU) for m in layers.modules()), 2**k)
    run.refutes(
        "telgarsky-width-condition", r"k=3,\ l=1,\ w=8<2^{(8-3)/1-1}:\ R\ge\tfrac12-\tfrac1{3\cdot2^{k-1}}"
    ).at_least(_error(zigzag_network([8]), 3), 0.5 - 1 / (3 * 4))
    run.refutes(
        "telgarsky-display", r"L=2:\ \tfrac12[2^{L^2+2}-1-2\cdot2^L]2^{-L^2-4}=\tfrac12[2^{L^2+1}-1]2^{-L^2-4}"
    ).equal((2**6 - 1 - 2 * 2**2) / 2**9, (2**5 - 1) / 2**9, 1e-12)
    run.refutes(
        "telgarsky-one-layer",
        r"L=1:\ \delta_A(g)\le2^{L^2}=2 \text{ for every } g \text{ with at most 2 nodes in one layer}",
    ).at_most(affine_pieces(_ramp(), 0.0, 1.0).count, 2, where="two ReLUs make a ramp between two constants")
    run.table(
        "trained",
        ["hidden layers", "pieces", "L₁ distance", "certified", "error", "certified error"],
        [
            (
                "4" if i < networks else "2-2",
                n,
                d,
                sawtooth_floor(p, n),
                e,
                alternation_floor(2**p, n),
            )
            for i, (n, d, e) in enumerate(zip(pieces, distances, errors, strict=True))
        ],
        caption="Trained on the sawtooth with 64 pieces.",
    )
    run.figure(
        "telgarsky",
        lambda axes: _plot_distances(axes, shallow),
        caption="Left: a sawtooth and a network of one hidden layer trained on it, which crosses "
        "1/2 rarely. Right: the distance of such networks from sawtooths of more and more teeth, "
        "the floor that their number of pieces certifies, and the composed tents, which are exact.",
        grid=(1, 2),
        size=(10, 3.3),
    )


class _Distance(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        return torch.abs(self.first(x) - self.second(x))


def _distance(first: nn.Module, second: nn.Module) -> float:
    """The L₁ distance on [0, 1], exactly: every piece of |f - g| is integrated."""
    pieces = affine_pieces(_Distance(first, second), 0.0, 1.0)
    return _integral(pieces.breakpoints, pieces.values[:, 0])


def _oscillation_floor(m: int, net: nn.Module) -> float:
    """What a network with so many pieces cannot come below, for the sawtooth of 2^m pieces."""
    return 1 / 8 - (affine_pieces(net, 0.0, 1.0).count + 1) / 2.0 ** (m + 2)


def _integral(t: Tensor, y: Tensor) -> float:
    return float(torch.trapezoid(y, t))


def _follower(teeth: int, pieces: int) -> nn.Sequential:
    """The sawtooth of 2^p pieces up to half of its piece `pieces - 1`, then 1/2 all the way."""
    if pieces == 1:
        return nn.Sequential(dense(torch.zeros(1, 1).double(), torch.full((1,), 0.5).double()))
    ends = torch.arange(1, pieces - 1, dtype=torch.float64)
    # the last piece ends half-way, where the tooth is at 1/2
    knots = torch.cat([ends, ends.new_full((1,), pieces - 1.5)]) / 2**teeth
    values = torch.cat([ends % 2, ends.new_full((1,), 0.5)])
    return broken_line_network(knots, values, 2.0**teeth, 0.0)


def _ramp() -> nn.Sequential:
    return broken_line_network(torch.tensor([0.25, 0.75]).double(), torch.tensor([0.0, 1.0]).double(), 0.0, 0.0)


def _low_tent(times: int) -> nn.Sequential:
    one = nn.Sequential(
        dense(torch.ones(2, 1).double(), torch.tensor([0.0, -0.5]).double()),
        nn.ReLU(),
        dense(torch.tensor([[1.0, -2.0]]).double()),
    )
    return nn.Sequential(*[one] * times)


def _units(net: nn.Sequential) -> int:
    layers = [m for m in net if isinstance(m, nn.Linear)]
    return sum(m.out_features for m in layers[:-1])


def _fit(run: Run, target: nn.Module, hidden: list[int], steps: int) -> nn.Sequential:
    net = mlp([1, *hidden, 1], generator=run.generator)
    first = net[0]
    assert isinstance(first, nn.Linear)
    with torch.no_grad():  # kinks inside the interval
        first.bias.copy_(-first.weight[:, 0] * run.rand(hidden[0]))
    x = torch.linspace(0, 1, 513).double()[:, None]
    with torch.no_grad():
        y = target(x)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.03)
    for _ in range(steps):
        optimizer.zero_grad()
        (net(x) - y).pow(2).mean().backward()
        optimizer.step()
    return net


def _error(net: nn.Module, n: int) -> float:
    """The share of the points i/2^n with label i mod 2 that the threshold at 1/2 has wrong."""
    i = torch.arange(2**n).double()
    with torch.no_grad():
        predicted = net((i / 2**n)[:, None])[:, 0] >= 0.5
    return float((predicted != (i % 2 == 1)).double().mean())


def _best_error(points: int, pieces: int) -> float:
    """Least error on alternating labels of a classifier with at most `pieces + 1` intervals."""
    # best[j][c]: fewest mistakes so far with j changes, the class now c
    big = points + 1
    best = [[0 if j == 0 else big] * 2 for j in range(pieces + 1)]
    for i in range(points):
        new = [[big, big] for _ in best]
        for j in range(pieces + 1):
            for c in (0, 1):
                stay = best[j][c]
                change = best[j - 1][1 - c] if j else big
                new[j][c] = min(stay, change) + int(c != i % 2)
        best = new
    return min(map(min, best)) / points


def _plot(axes: Any) -> None:
    for panel, k in zip(axes[0], (1, 2, 3, 5), strict=True):
        p = affine_pieces(sawtooth_network(k), 0.0, 1.0)
        panel.plot(p.breakpoints, p.values[:, 0], color=COLORS[0], lw=1.3)
        panel.plot(p.kinks, p(p.kinks)[:, 0], "o", ms=3, color=COLORS[1])
        panel.set_title(f"k = {k}: {p.count} pieces")
        panel.set_xlabel("x")


def _plot_distances(axes: Any, shallow: dict[int, nn.Sequential]) -> None:
    left, right = axes[0]
    sizes = sorted(shallow)
    tooth, net = affine_pieces(sawtooth_network(4), 0.0, 1.0), shallow[4]
    own = affine_pieces(net, 0.0, 1.0)
    left.plot(tooth.breakpoints, tooth.values[:, 0], color=COLORS[0], lw=1, label="sawtooth, pieces: 16")
    label = f"trained, pieces: {own.count}"
    left.plot(own.breakpoints, own.values[:, 0], color=COLORS[1], label=label)
    left.axhline(0.5, color="0.4", ls=":", lw=1)
    left.set(xlabel="x", ylabel="value", ylim=(-0.1, 1.35))
    left.legend(loc="upper right", ncols=2)
    distances = [_distance(sawtooth_network(m), shallow[m]) for m in sizes]
    exact = [_distance(sawtooth_network(m), sawtooth_network(m)) for m in sizes]
    right.plot(sizes, distances, "o-", color=COLORS[1], label="four units, one layer")
    floors = [_oscillation_floor(m, shallow[m]) for m in sizes]
    right.plot(sizes, floors, "--", color="0.3", label="floor of its pieces")
    right.plot(sizes, exact, "s-", color=COLORS[0], label="m layers of two units")
    right.set(xlabel="m (sawtooth of $2^m$ pieces)", ylabel="$L_1$ distance", xticks=sizes)
    right.set_ylim(-0.02, 0.36)
    right.legend(loc="upper center", ncols=3, fontsize=7)
