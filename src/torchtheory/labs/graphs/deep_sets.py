"""Functions of sets: symmetric by construction, and how long a code must be."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtheory.equivariance.actions import Actions, Grid, permutations
from torchtheory.equivariance.measure import equivariance_defect, measure_equivariance
from torchtheory.graphs.deep_sets import POOLS, DeepSet, EquivariantDeepSet, Pool, pad_sets
from torchtheory.graphs.power_sums import (
    Powers,
    elementary_symmetric,
    power_sum_decode,
    power_sum_encode,
    power_sum_network,
    set_collision,
)
from torchtheory.labs.engine import Run, lab
from torchtheory.labs.nets.comparing import gap
from torchtheory.nets.feedforward import dense, mlp


@lab(
    "deep-sets",
    room="graphs",
    covers=["N-96", "N-97", "N-98", "N-99"],
    errata=["equivariance-permutes-twice", "deep-sets-universal-at-fixed-length"],
    title="Sums make functions of sets, if the code is as long as the set is large",
    full={"iterations": 600, "samples": 2000, "units": 32},
    least={"iterations": 10, "samples": 20, "units": 4},
)
def deep_sets(run: Run, iterations: int = 80, samples: int = 200, units: int = 12) -> None:
    """Deep Sets are invariant or equivariant exactly; shorter codes than sets collide.

    A sum of codes does not know the order, so that the two forms pass every permutation, where a
    network of the elements side by side fails. Power sums, as many as there are elements, tell the
    set itself; with fewer numbers two sets with one code are found by following its level set, and
    no network behind the code can tell them apart. The pictures show such a path, and the error of
    trained networks by the length of the code.

    Args:
        iterations: of the quasi-Newton method that trains.
        samples: sets to train on.
        units: of the hidden layers.
    """
    symmetric(run)
    unions(run)
    power_sums(run)
    collisions(run)
    two_numbers(run, iterations, units)
    medians(run, iterations, samples, units)


class Placed(nn.Module):
    """A network of sets that first adds its number to every element."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.inner(x + torch.arange(x.shape[-2], dtype=x.dtype)[:, None])
        return made


def symmetric(run: Run) -> None:
    """N-96 to N-98: all permutations, what generates them, and the printed test."""
    size, width = 4, 3
    x = run.randn(5, size, width)
    source = run.generator

    def invariant(pool: Pool) -> DeepSet:
        return DeepSet(mlp([width, 8, 5], "tanh", generator=source), mlp([5, 8, 2], "tanh", generator=source), pool)

    def equivariant() -> EquivariantDeepSet:
        return EquivariantDeepSet(
            mlp([width, 8, 5], "tanh", generator=source), mlp([width + 5, 8, 2], "tanh", generator=source)
        )

    def largest(net: nn.Module, on_output: str) -> float:
        # all 24 orders of each set
        return measure_equivariance(
            net, "permutations", x, on_output=on_output, elements=30, generator=run.seed
        ).largest

    says = run.states(["N-96", "N-97"], r"f(PX)=f(X)\text{ for all }P")
    says.equal(
        [largest(invariant(pool), "invariant") for pool in POOLS],
        within=1e-12,
        where="sum, mean and maximum, all orders of 4 elements",
    )
    side_by_side = nn.Sequential(nn.Flatten(), mlp([size * width, 8, 2], "tanh", generator=source))
    says.fails("the elements side by side in one vector", [largest(side_by_side, "invariant")] * 3)
    says = run.states(["N-96", "N-98"], r"f(PX)=Pf(X)\text{ for all }P")
    pointwise = mlp([width, 8, 2], "tanh", generator=source)
    says.equal(
        [largest(equivariant(), "equivariant"), largest(pointwise, "equivariant")],
        within=1e-12,
        where="ρ(x, Σφ), and a network of each element alone",
    )
    says.fails("each element knows its place", [largest(Placed(equivariant()), "equivariant")] * 2)
    # one exchange and one cycle generate all permutations
    grid = Grid.fine((size,))
    generators = permutations().steps(grid)
    weight = run.randn(2, size, width)
    weight[:, 1] = weight[:, 0]  # the first two may be exchanged, the others not
    half = nn.Sequential(nn.Flatten(), dense(weight.flatten(1)))
    says = run.states(
        "N-96", r"\text{an exchange and a cycle suffice: }f(PX)=f(X)\text{ for them}\Rightarrow\text{all}"
    )
    sure = invariant("sum")

    def at(net: nn.Module, elements: list[tuple[int, ...]]) -> float:
        return max(
            float(equivariance_defect(net, "permutations", g, x, on_output="invariant").abs().max()) for g in elements
        )

    assert at(sure, generators) < 1e-12
    says.equal(largest(sure, "invariant"), within=1e-12, where="a network that passes these two, all 24 orders")
    assert at(half, generators[:1]) < 1e-12
    says.fails("the exchange alone", largest(half, "invariant"))
    # the printed test permutes once more than it should
    net = equivariant()
    exchange, cycle = (1, 0, 2, 3), (1, 2, 0, 3)
    says = run.states("N-96", r"f(X)=P^\top f(PX)\text{, also for }P^3=I\ne P^2")
    says.equal(defect(net, x, [exchange, cycle], back=True), within=1e-12, where="an exchange and a cycle of three")
    says.fails("P in the place of its transpose, for the cycle", defect(net, x, [cycle], back=False))
    run.refutes("equivariance-permutes-twice", r"f\text{ equivariant}\iff f(X)=Pf(PX)\text{ for all }P").equal(
        defect(net, x, [cycle], back=False), within=1e-12, where="Deep Sets, a cycle of three"
    )
    says = run.states("N-96", r"P^2=I:\ f(X)=Pf(PX)\text{ as printed}")
    says.equal(defect(net, x, [exchange], back=False), within=1e-12, where="an exchange, which hides the error")
    says.fails("a cycle of three", defect(net, x, [cycle], back=False))
    x[:, 2] = x[:, 0]
    says = run.states("N-98", r"x_m=x_{m'}\Rightarrow f(X)_m=f(X)_{m'}")
    y, placed = net(x), Placed(net)(x)
    says.equal(gap(y[:, 2], y[:, 0]), within=1e-12)
    says.fails("each element knows its place", gap(placed[:, 2], placed[:, 0]))
    element_by_element(run, equivariant(), x)


def element_by_element(run: Run, net: EquivariantDeepSet, x: Tensor) -> None:
    """N-98: each output written out, and what it hears of the others."""

    def written_out(others: Tensor) -> Tensor:
        """The outputs at x, the codes being those of other sets."""
        total = sum(net.phi(others[:, k]) for k in range(x.shape[1]))
        assert isinstance(total, Tensor)
        outputs: list[Tensor] = [net.rho(torch.cat([x[:, m], total], -1)) for m in range(x.shape[1])]
        return torch.stack(outputs, 1)

    says = run.states("N-98", r"f(X)_m=\rho\Bigl(x_m,\sum_{m'}\phi(x_{m'})\Bigr)")
    says.equal(gap(net(x), written_out(x)), within=1e-12, where="one element at a time")
    moved = x.clone()
    moved[:, -1] += 1
    says.fails("one element of the sum is another one", gap(net(x), written_out(moved)))
    # the other outputs see the element that moved through the sum alone
    says = run.states("N-98", r"\phi(x_{m'})\text{ moves}:\ f(X)_m\text{ moves for every }m\ne m'")
    says.above((net(moved) - net(x))[:, :-1].detach().abs().amax(-1), 0.0, where="the last element moved by 1")
    with torch.no_grad():
        for p in net.phi.parameters():
            p.zero_()  # φ is constant, so that the sum tells the number of elements only
        says.fails("a constant φ", (net(moved) - net(x))[:, :-1].abs().amax(-1))


def defect(net: nn.Module, x: Tensor, elements: list[tuple[int, ...]], *, back: bool) -> float:
    """Largest relative difference of f(X) from P^T f(PX), or from P f(PX) as printed."""

    def inverse(p: tuple[int, ...]) -> list[int]:
        return sorted(range(len(p)), key=lambda i: p[i])

    group = Actions(
        elements,
        lambda p, z: z[:, list(p)],
        lambda p, y: y[:, list(p)] if back else y[:, inverse(p)],
        name="both forms",
    )
    return measure_equivariance(net, group, x).largest


def unions(run: Run) -> None:
    """N-97: any number of elements."""
    nets = {pool: DeepSet(mlp([3, 8, 5], "tanh", generator=run.generator), nn.Identity(), pool) for pool in POOLS[:2]}
    a, b = run.randn(4, 3), run.randn(7, 3)

    def apart(net: DeepSet) -> float:
        return gap(net(torch.cat([a, b])), net(a) + net(b))

    says = run.states("N-97", r"\sum_{A\cup B}\phi=\sum_A\phi+\sum_B\phi")
    says.equal(apart(nets["sum"]), within=1e-12, where="disjoint sets of 4 and 7 elements")
    says.fails("means instead of sums", apart(nets["mean"]))
    # trained on sets of 4, asked about sets of 12
    x, more = run.rand(200, 4, 1), run.rand(200, 12, 1)
    errors = {}
    for pool in POOLS[:2]:
        net = DeepSet(mlp([1, 12, 1], "tanh", generator=run.generator), nn.Identity(), pool)
        train(net, x, x.square().sum(1), 60)
        wanted = more.square().sum(1)
        errors[pool] = gap(net(more), wanted) / float(wanted.mean())
    says = run.states("N-97", r"\text{trained on sets of }4\text{, the sum of squares of sets of }12")
    says.equal(errors["sum"], within=0.05, where="largest error, of the mean of the target")
    says.fails("means instead of sums, which do not know the number of elements", errors["mean"])
    padded, mask = pad_sets([a, b])
    says = run.states("N-97", r"\text{in one padded batch as alone}")
    says.equal(gap(nets["sum"](padded, mask), torch.stack([nets["sum"](a), nets["sum"](b)])), within=1e-12)
    says.fails("without the mask", gap(nets["sum"](padded), torch.stack([nets["sum"](a), nets["sum"](b)])))


def power_sums(run: Run) -> None:
    """N-99: the code of length M that tells everything."""
    one = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    p = power_sum_encode(one)
    says = run.states("N-99", r"\{1,2,3\}:\ p=(6,14,36),\ e=(6,11,6),\text{ roots }1,2,3")

    def all_three(code: Tensor) -> Tensor:
        return torch.cat([code, elementary_symmetric(code), power_sum_decode(code).values])

    says.equal(all_three(p) - torch.tensor([6.0, 14, 36, 6, 11, 6, 1, 2, 3]), within=1e-11)
    says.fails(
        "p of {1, 2, 2}",
        all_three(power_sum_encode(torch.tensor([1.0, 2.0, 2.0]))) - torch.tensor([6.0, 14, 36, 6, 11, 6, 1, 2, 3]),
    )
    sizes = (2, 3, 4, 5, 6, 8, 10, 12)
    sets = [torch.linspace(0, 1, m + 2, dtype=torch.float64)[1:-1] for m in sizes]
    found = [power_sum_decode(power_sum_encode(x)) for x in sets]
    errors = [gap(f.values, x) / float(x.norm()) for f, x in zip(found, sets, strict=True)]
    # the condition number is exact to first order: a change of the code along its worst direction
    x = (torch.arange(4) + 0.4 + 0.2 * run.rand(4)) / 4
    code = power_sum_encode(x)
    orders = torch.arange(1, 5).double()
    slopes = orders[:, None] * x ** (orders[:, None] - 1)
    worst = torch.linalg.svd(slopes).U[:, -1]

    def growth(step: float) -> float:
        moved = power_sum_decode(code + step * code.norm() * worst).values
        return float((moved - x).norm() / x.norm()) / step / float(power_sum_decode(code).condition)

    says = run.states("N-99", r"\frac{\|\Delta x\|/\|x\|}{\|\Delta p\|/\|p\|}\to\kappa=\|J^{-1}\|\,\|p\|/\|x\|")
    says.equal(growth(1e-7 / float(power_sum_decode(code).condition)), 1.0, within=0.01, where="4 numbers in [0, 1]")
    says.fails("a change of the code that is not small", growth(0.06 / float(power_sum_decode(code).condition)))
    run.table(
        "decoding",
        ("elements", "condition", "error of the set, of its size"),
        [(m, float(f.condition), e) for m, f, e in zip(sizes, found, errors, strict=True)],
        caption="Sets of equally spaced numbers in [0, 1], read back from their power sums in double precision.",
    )
    eps = torch.finfo(torch.float64).eps
    run.curves(
        "decoding",
        sizes,
        {"error": [max(e, eps) for e in errors]},
        {"ε times the condition": [float(f.condition) * eps for f in found]},
        axes=("elements", "error of the set"),
        log="y",
        caption="Power sums tell the set, with an error that grows exponentially with its size.",
    )
    net = power_sum_network(lambda v: torch.stack([v.amax(-1), v.median(-1).values], -1), 5)
    x = run.rand(20, 5)
    wanted = torch.stack([x.amax(-1), x.median(-1).values], -1)
    says = run.states("N-99", r"d=M:\ \text{any symmetric }f=\rho\bigl(\sum_m(x_m,\dots,x_m^M)\bigr)")
    says.equal(gap(net(x[..., None]), wanted), within=1e-3, where="maximum and median of 5 numbers at once")
    short = net.code(x[..., None]).clone()
    short[:, -1] = 5 / 6  # the mean of the fifth power sum, whatever the set
    apart = []
    for one_code, value in zip(short, wanted, strict=True):
        try:
            apart.append(gap(net.rho(one_code), value))
        except ValueError:  # no real set has such a code
            apart.append(1.0)
    says.fails("four power sums and a constant in the place of the fifth", max(apart))


def collisions(run: Run) -> None:
    """N-99: shorter continuous codes, whatever the network."""
    cases = [(2, 1), (3, 1), (3, 2), (4, 3)]
    found, rows, shown = [], [], None
    for m, d in cases:
        phi = mlp([1, 10, d], "tanh", generator=run.generator)
        met = set_collision(phi, m, starts=6 if (m, d) == (3, 2) else 2, generator=run.generator)
        assert met is not None
        found.append((met.forced_error, met.distance))
        rows.append((m, d, met.forced_error, met.distance))
        shown = met if (m, d) == (3, 2) else shown
    run.table(
        "collisions",
        ("elements M", "length d", "forced error", "difference of the codes"),
        rows,
        caption="Random smooth codes: two sets with one code, and the error in the maximum that every ρ makes on one.",
    )
    says = run.states("N-99", r"d<M,\ \phi\text{ continuous}:\ \Phi(X)=\Phi(Y),\ \max X\ne\max Y\text{ for some }X,Y")
    says.above([f for f, _ in found], 0.0, where="half the difference of the maxima, random φ, M = 2, 3, 4")
    free = [set_collision(Powers(m), m, starts=3, generator=run.generator) for m in (2, 3, 4)]
    says.fails("d = M, the power sums", [0.0 if c is None else c.forced_error for c in free])
    says = run.states("N-99", r"\Phi(X)=\Phi(Y)")
    says.equal([d for _, d in found], within=1e-11, where="codes of these pairs, of their size")
    assert shown is not None
    longer = mlp([1, 10, 3], "tanh", generator=run.generator)
    codes = [longer(s[:, None]).detach().sum(0) for s in (shown.first, shown.second)]
    says.fails("the sets of three numbers, with a code of length 3", gap(codes[0], codes[1]) / float(codes[0].norm()))
    path, code = shown.path, shown

    def plot(ax: object) -> None:
        for k in range(path.shape[1]):
            ax.plot(torch.arange(len(path)), path.sort(-1).values[:, k], label=f"element {k + 1}")  # type: ignore[attr-defined]
        ax.set(xlabel="steps along the level set", ylabel="elements of the set", ylim=(0, 1))  # type: ignore[attr-defined]
        ax.legend()  # type: ignore[attr-defined]

    run.figure(
        "collision",
        plot,
        caption="Sets of 3 numbers that all have one code of length 2 (random φ); their maxima differ by up to "
        f"{2 * code.forced_error:.2g}.",
    )


class Stretched(nn.Module):
    """From [0, 1] to [-3, 3], where tanh bends."""

    def forward(self, x: Tensor) -> Tensor:
        return 6 * x - 3


def fitted(run: Run, length: int, x: Tensor, y: Tensor, iterations: int, units: int) -> DeepSet:
    source = run.generator
    net = DeepSet(
        nn.Sequential(Stretched(), mlp([1, units, length], "tanh", generator=source)),
        mlp([length, units, units, 1], "tanh", generator=source),
    )
    train(net, x, y, iterations)
    return net


def train(net: nn.Module, x: Tensor, y: Tensor, iterations: int) -> None:
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=iterations, history_size=20, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        return float(loss.detach())

    optimizer.step(closure)  # type: ignore[no-untyped-call]


def two_numbers(run: Run, iterations: int, units: int) -> None:
    """N-99: where the forced error is known, one half, and met."""

    def squared(x: Tensor) -> Tensor:
        return (x[..., 0, :] - x[..., 1, :]).square()

    line = torch.linspace(0, 1, 17, dtype=torch.float64)
    grid = torch.cartesian_prod(line, line)[..., None]
    net = fitted(run, 1, grid, squared(grid), iterations, units)
    z = halfway(net.phi)
    pair = torch.tensor([[0.0, 1.0], [z, z]], dtype=torch.float64)[..., None]
    short = gap(net(pair), squared(pair))
    long = power_sum_network(lambda x: (x[..., 1] - x[..., 0]).square()[..., None], 2)
    says = run.states("N-99", r"d=1,\ M=2:\ \sup|\rho(\phi(x)+\phi(y))-(x-y)^2|\ge\tfrac12\text{ for continuous }\phi")
    says.at_least(short, 0.5, within=1e-9, where="trained; {0, 1} and {z, z} with 2φ(z) = φ(0) + φ(1)")
    says.fails("d = 2, the power sums", gap(long(pair), squared(pair)))
    run.refutes(
        "deep-sets-universal-at-fixed-length", r"d=1\text{ suffices at }M=2\text{: the error can be made small}"
    ).below(short, 0.1, where="trained networks with d = 1, the target (x - y)²")


def halfway(phi: nn.Module) -> float:
    """Where a continuous code is halfway between those of 0 and 1."""

    def beyond(z: float) -> float:
        at = phi(torch.tensor([[z], [0.0], [1.0]], dtype=torch.float64))[:, 0].detach()
        return float(2 * at[0] - at[1] - at[2])

    low, high = (0.0, 1.0) if beyond(0.0) <= 0 else (1.0, 0.0)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) <= 0 else (low, middle)
    return low


def medians(run: Run, iterations: int, samples: int, units: int) -> None:
    """N-99: errors of trained networks by the length of the code."""
    size, lengths = 3, (1, 2, 3, 4)

    def middle(x: Tensor) -> Tensor:
        return x.median(-2).values

    x, test = run.rand(samples, size, 1), run.rand(1000, size, 1)
    errors = []
    for d in lengths:
        net = fitted(run, d, x, middle(x), iterations, units)
        errors.append(float((net(test) - middle(test)).detach().square().mean().sqrt()))
    says = run.states(
        "N-99", r"\text{the trained error of the median of }3\text{ numbers falls by a third or more to }d=3"
    )
    says.at_least(errors[0], 1.5 * errors[2], where="d = 1 against d = 3")
    says.fails("d = 4 against d = 3: long enough already", errors[3])
    run.curves(
        "lengths",
        lengths,
        {"median of 3 numbers": errors},
        axes=("length d of the code", "root mean square error"),
        at={"M = 3": 3.0},
        ylim=(0, None),
        caption="Deep Sets trained on the median: a longer code helps up to as many numbers as the set has.",
    )
