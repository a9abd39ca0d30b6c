"""How far two functions are apart: the norms in which approximation is measured."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from torchtheory.approximation.certificates import measured_error, sup_distance
from torchtheory.approximation.polynomials.divided_differences import monomial_network
from torchtheory.approximation.targets import Function
from torchtheory.labs.engine import Run, lab
from torchtheory.primer.function_spaces import lebesgue_norm


def bump(x: Tensor) -> Tensor:
    """The difference of x and x²."""
    return x - x**2


@lab(
    "approximation-error",
    room="approximation",
    covers=["L-069", "N-30"],
    title="Distances of functions in $L^p$, and a certified sup distance",
    errata=["uniform-convergence-exists"],
    least={"cases": 1},
)
def approximation_error(run: Run, cases: int = 20) -> None:
    """x and x² are 1/6, √(1/30) and 1/4 apart on [0, 1]; the norms of `cases` random waves grow.

    On an interval of length 1 the p-norm grows with p. A grid gives a lower bound of the sup
    distance, and with a Lipschitz constant an upper one as well. Two tanh units come arbitrarily
    close to the identity without a best pair. Look at how the interval closes.
    """
    sup = sup_distance(lambda x: x, torch.square, (0.0, 1.0)).lower
    exact = [1 / 6, math.sqrt(1 / 30), 1 / 4]
    longer = [lebesgue_norm(bump, 1, 0.0, 2.0), lebesgue_norm(bump, 2, 0.0, 2.0)]
    says = run.states(["L-069", "N-30"], r"\|x-x^2\|_1=\tfrac16,\ \|x-x^2\|_2=\sqrt{1/30},\ \|x-x^2\|_\infty=\tfrac14")
    says.equal([lebesgue_norm(bump, 1, 0.0, 1.0), lebesgue_norm(bump, 2, 0.0, 1.0), sup], exact, 1e-12)
    says.fails("on [0, 2]", [*longer, sup_distance(lambda x: x, torch.square, (0.0, 2.0)).lower])
    exponents = [1.0, 1.5, 2.0, 4.0, 8.0, math.inf]
    growth, long_growth = [], []
    lows, highs, truth = [], [], []
    for _ in range(cases):
        a, b, c = run.randn(3).tolist()

        def wave(x: Tensor, a: float = a, b: float = b, c: float = c) -> Tensor:
            return a * torch.sin(5 * x) + b * torch.cos(3 * x) + c

        norms = [lebesgue_norm(wave, p, 0.0, 1.0) for p in exponents]
        growth += [second - first for first, second in pairwise(norms)]
        # on a long interval the volume counts: constants have smaller norms for larger p
        flat = [lebesgue_norm(lambda x, c=c: c + 0 * x, p, 0.0, 4.0) for p in exponents]  # type: ignore[misc]
        long_growth += [second - first for first, second in pairwise(flat)]
        # three full turns: the sup norm is |a| + |c|, wherever the grid points fall
        turning = full_turns(a, c, float(run.rand(1)))
        sup_norm, steep = abs(a) + abs(c), 6 * math.pi * abs(a)
        rough = sup_distance(turning, torch.zeros_like, (0.0, 1.0), lipschitz=steep, most_points=20)
        lows.append(rough.lower - sup_norm)
        highs.append(sup_norm - rough.upper)
        steeper = sup_distance(turning, torch.zeros_like, (0.0, 1.0), lipschitz=steep / 40, most_points=20)
        truth.append(sup_norm - steeper.upper)
    says = run.states("L-069", r"\mu(S)=1,\ p\le q:\ \|f\|_q-\|f\|_p\ge0")
    says.at_least(growth, 0, 1e-9)
    says.fails("μ(S) = 4", long_growth)
    says = run.states(
        ["L-069", "N-30"], r"\max_{\text{grid}}\le\|f-g\|_\infty\le\max_{\text{grid}}+Lh/2: \text{ excess}"
    )
    says.at_most(lows + highs, 0, 1e-12)
    says.fails("functions forty times as steep as L says", truth)
    metric(run, cases)
    not_attained(run)
    shifts = [m % 2 for m in range(2, 12)]
    gaps = [sup_norm_of_shift(s) for s in shifts]
    run.refutes(
        "uniform-convergence-exists",
        r"\exists m:\|g_m-f\|_\infty<\epsilon\implies\|g_M-f\|_\infty<\epsilon \text{ for all } M\ge m",
    ).below(gaps, 0.1, where="$g_m$ = f for even m, f + 1 for odd m; m = 2 meets every ε")
    found = [
        sup_distance(lambda x: torch.sin(9 * x), lambda x: x, (0.0, 1.0), lipschitz=10.0, most_points=2**k)
        for k in range(4, 13)
    ]
    run.curves(
        "interval",
        [f.resolution for f in found],
        {"lower": [f.lower for f in found], "upper": [f.upper for f in found]},
        axes=("distance of grid points", "sup distance"),
        log="x",
        caption="The certified interval of the sup distance of sin 9x and x, over the grid size.",
    )


def metric(run: Run, cases: int) -> None:
    """The axioms on random waves; the squared distance breaks the last one."""
    detour, squared, turned = [], [], []
    for _ in range(cases):
        f, g, h = (wave_of(run.randn(3)) for _ in range(3))
        apart = {
            pair: sup_distance(*functions, (0.0, 1.0), most_points=1 << 11).lower
            for pair, functions in {"fg": (f, g), "gh": (g, h), "fh": (f, h), "gf": (g, f)}.items()
        }
        detour.append(apart["fh"] - apart["fg"] - apart["gh"])
        turned.append(apart["fg"] - apart["gf"])
        middle = wave_between(f, h)
        half = sup_distance(f, middle, (0.0, 1.0), most_points=1 << 11).lower ** 2
        other = sup_distance(middle, h, (0.0, 1.0), most_points=1 << 11).lower ** 2
        squared.append(apart["fh"] ** 2 - half - other)
    # each of the three is a maximum over its own grid
    says = run.states("N-30", r"d_K(f,h)\le d_K(f,g)+d_K(g,h): \text{ excess}")
    says.at_most(detour, 0, 1e-4)
    says.fails("squared distances, by way of (f + h)/2", squared)
    run.states("N-30", r"d_K(f,g)-d_K(g,f)=0").equal(turned)


def full_turns(amplitude: float, middle: float, start: float) -> Function:
    return lambda x: amplitude * torch.sin(2 * math.pi * (3 * x + start)) + middle


def wave_of(c: Tensor) -> Function:
    return lambda x: c[0] * torch.sin(5 * x) + c[1] * torch.cos(3 * x) + c[2]


def wave_between(f: Function, g: Function) -> Function:
    return lambda x: (f(x) + g(x)) / 2


def not_attained(run: Run) -> None:
    """Two tanh units come as near to x as one likes, and their weights grow without end."""
    steps = [0.3, 0.1, 0.03, 0.01]
    nets = [monomial_network(1, "tanh", 0.0, h, central=True) for h in steps]
    errors = [measured_error(lambda x: x, net, most_points=1 << 11).lower for net in nets]
    single = monomial_network(1, "tanh", 0.0, 1.0, central=True)
    says = run.states("N-30", r"d_K(x,\mathcal G_{1,2})\le h^2/12 \text{ for every } h, \text{ tanh units}")
    says.at_most(errors, [h**2 / 12 for h in steps], 1e-9)
    says.fails(
        "weights of 1 at most: the same two units with h = 1",
        measured_error(lambda x: x, single, most_points=1 << 11).lower,
        promised=steps[-1] ** 2 / 12,
    )
    run.states("N-30", r"\text{the infimum 0 is not attained: outer weights } 1/h").equal(
        [net.size.largest for net in nets], [1 / h for h in steps], 1e-12
    )


def sup_norm_of_shift(shift: float) -> float:
    """The sup distance of x + shift and x on [0, 1]."""
    return sup_distance(lambda x: x + shift, lambda x: x, (0.0, 1.0)).lower
