"""The tails behind random networks: Bernstein, chi-square, and how long a gradient is at least."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import optimize, stats
from torch import Tensor

from torchtheory.generalization.concentration import bernstein_radius
from torchtheory.labs.engine import Run, clopper_pearson, lab, quantile_interval
from torchtheory.nets.activations.table import activation, as_layer, nth_derivative
from torchtheory.primer.gaussian_means import gaussian_rule
from torchtheory.primer.growth import Growth, growth_compare, polynomial_growth
from torchtheory.primer.moment_tails import (
    chi_square_radii,
    chi_square_radius,
    moment_bernstein_exponent,
    moment_bernstein_radius,
    moment_constants,
    moment_generating_bound,
    moment_limits,
    nonnegative_mean_floor,
)
from torchtheory.robustness.random_networks import (
    gradient_factors,
    gradient_lower_bound,
    one_step_attack,
    random_steps,
    random_two_layer,
    slope_constants,
    slope_log_moments,
    sphere_points,
    squared_slope_floor,
)

BOUNDED = ("linear", "relu", "tanh", "softplus", "logistic", "elu", "softsign", "arctan")


@lab(
    "concentration-at-initialization",
    room="robustness",
    covers=["M-152", "M-153", "M-154", "M-155", "M-156"],
    title="Bernstein's inequality and chi-square tails, exactly, and gradients of random networks",
    errata=["chi-square-without-linear-term"],
    full={"networks": 4000, "trials": 100_000},
    least={"networks": 25, "trials": 300, "gamma": 0.0005},
    most={"gamma": 0.25},
)
def concentration_at_initialization(run: Run, networks: int = 150, trials: int = 20_000, gamma: float = 0.05) -> None:
    """Bounds of sums held against their exact tails, then used on random networks.

    The exponential law nearly meets Bernstein's inequality at every level. The printed
    concentration of chi-square variables fails where k is small and γ tiny, and holds with the
    condition log(2/γ) ≤ k. Together with the moments of the activation's derivative, this bounds
    the gradient of a random network from below.

    Args:
        networks: random networks whose gradient is measured.
        trials: draws for coverage.
        gamma: probability with which a bound may fail.
    """
    bernstein(run, trials)
    chi_square(run)
    growth(run)
    moments(run)
    gradient(run, networks, trials, gamma)


def bernstein(run: Run, trials: int) -> None:
    counts, levels = [1, 5, 50, 1000], [1.0, 3.0, 7.0, 14.0]
    cases = [(k, level) for k in counts for level in levels]
    exact = [exponential_quantile(k, level) for k, level in cases]
    radii = [moment_bernstein_radius(k, 1.0, 1.0, math.exp(-level)) for k, level in cases]
    says = run.states(
        "M-152",
        r"X=E-1:\ \text{the }1-\gamma\text{ quantile of }\textstyle\sum X_j\le\sqrt{2\sigma^2k\ell}+c\ell",
    )
    says.at_most(exact, radii, where="σ = c = 1 and ℓ = log(1/γ): the exact quantiles of Gamma laws")
    heavy = [7.0, 9.0, 14.0, 20.0]
    says.fails(
        "X = (E² - 2)/√20, of variance 1 and without the moment condition, k = 1",
        [(level**2 - 2) / math.sqrt(20) for level in heavy],
        promised=[moment_bernstein_radius(1, 1.0, 1.0, math.exp(-level)) for level in heavy],
    )
    sums = (-torch.log1p(-run.rand(trials, 20))).sum(1) - 20
    says = run.states("M-152", r"\Pr\bigl(\textstyle\sum X_j\le\sqrt{2\sigma^2k\ell}+c\ell\bigr)\ge1-\gamma")
    says.at_least(
        clopper_pearson(int((sums <= moment_bernstein_radius(20, 1.0, 1.0, 0.1)).sum()), trials, 0.9999),
        0.9,
        loose="Markov's inequality for the exponential costs a factor in γ; radii, not levels, come near",
        where="E - 1, k = 20, γ = 0.1",
    )
    says.fails(
        "all $X_j$ are the same variable, not independent",
        clopper_pearson(
            int((20 * (-torch.log1p(-run.rand(trials)) - 1) <= moment_bernstein_radius(20, 1.0, 1.0, 0.1)).sum()),
            trials,
            0.9999,
        ),
    )

    orders = 24
    exponential = exponential_log_moments(orders)
    says = run.states("M-152", r"\mathbb E|E-1|^q\le\tfrac{q!}2\quad(\sigma=c=1)")
    says.at_most(exponential.exp() / moment_limits(orders, 1.0, 1.0).exp(), 1.0, 1e-9, where="over the limit, q ≤ 24")
    lognormal = (lognormal_log_moments(orders) - moment_limits(orders, 1.0, 1.0)).exp()
    says.fails("X = ($e^N$ - √e)/√(e² - e), lognormal", lognormal[4:])
    found = moment_constants(exponential)
    says = run.states("M-152", r"\text{least constants for }E-1:\ \sigma^2=1,\ c\to1")
    says.equal([found.variance, found.scale], [1.0, 1.0], 0.02)
    says = run.states("M-152", r"|X|\le B:\ \sigma^2=\mathbb EX^2,\ c=B/3")
    says.equal(moment_constants(torch.zeros(orders - 1).double()).scale, 1 / 3, 1e-12, where="X = ±1")

    rates = torch.linspace(0.05, 0.95, 19).tolist()
    says = run.states(
        "M-152", r"\mathbb Ee^{\lambda X}\le\exp\tfrac{\sigma^2\lambda^2}{2(1-\lambda c)},\ 0\le\lambda<1/c"
    )
    says.at_most(
        [math.exp(-r) / (1 - r) for r in rates], [moment_generating_bound(r, 1.0, 1.0) for r in rates], where="E - 1"
    )
    says.fails(
        "E - 1 where σ² = 1/4, below its variance",
        [math.exp(-r) / (1 - r) for r in rates],
        promised=[moment_generating_bound(r, 0.25, 1.0) for r in rates],
    )

    settings = [(k, v, c, level) for k in (1, 10, 300) for v in (0.2, 3.0) for c in (0.1, 2.0) for level in (0.5, 8.0)]
    lowest, capped, closed, wanted = [], [], [], []
    for k, v, c, level in settings:
        t = moment_bernstein_radius(k, v, c, math.exp(-level))
        lowest.append(least_exponent(t, k, v, c, 1.0) / level)
        capped.append(least_exponent(t, k, v, c, 0.05) / level)
        closed.append(moment_bernstein_exponent(t, k, v, c) / level)
        wanted.append(-1.0)
    says = run.states(
        "M-152",
        r"t=\sqrt{2\sigma^2k\ell}+c\ell:\ \inf_\lambda\tfrac{k\sigma^2\lambda^2}{2(1-\lambda c)}-\lambda t=-\ell",
    )
    says.equal(lowest, wanted, 1e-7, where="over ℓ; minimized numerically")
    worst = [e for e, s in zip(capped, settings, strict=True) if s[0] < 300 and s[2] > 1]
    says.fails("λ is kept below a twentieth of 1/c", worst, promised=[-1.0] * len(worst))
    says.equal(closed, wanted, 1e-12, where="over ℓ; in closed form")
    says = run.states(
        "M-152", r"|X|\le B,\ c=B/3:\ \sqrt{2\sigma^2k\ell}+c\ell\le\text{the bound for bounded variables}"
    )
    says.at_most(
        [moment_bernstein_radius(k, v, c, math.exp(-level)) for k, v, c, level in settings],
        [k * bernstein_radius(v, 3 * c, k, math.exp(-level)) for k, v, c, level in settings],
        1e-12,
    )
    fine, shown = np.linspace(0.2, 16, 40), (1, 20, 1000)
    run.curves(
        "bernstein",
        fine,
        {f"k = {k}": [exponential_quantile(k, e) / math.sqrt(k) for e in fine] for k in shown},
        {
            f"k = {k}": [moment_bernstein_radius(k, 1.0, 1.0, math.exp(-e)) / math.sqrt(k) for e in fine]
            for k in shown
        },
        axes=("log(1/γ)", "quantile of the sum over √k"),
        caption="Sums of centered exponentials: exact quantiles (marks) and Bernstein's bound (dashed).",
    )  # fmt: skip


def chi_square(run: Run) -> None:
    allowed = [
        (k, level) for k in (1, 2, 5, 20, 200, 5000) for level in (0.7, 1.0, 2.0, 5.0, 20.0, 200.0) if level <= k
    ]
    says = run.states(
        "M-153",
        r"\ell=\log\tfrac2\gamma\le k:\ \text{the }1-\gamma\text{ quantile of }|\chi_k^2-k|\le4\sqrt{k\ell}",
    )
    says.at_most(
        [two_sided_quantile(k, 2 * math.exp(-level)) for k, level in allowed],
        [chi_square_radius(k, 2 * math.exp(-level)) for k, level in allowed],
        where="exact quantiles",
    )
    small = [(1, 30.0), (2, 40.0), (5, 90.0), (20, 300.0)]
    says.fails(
        "γ so small that log(2/γ) > k",
        [two_sided_quantile(k, 2 * math.exp(-level)) for k, level in small],
        promised=[4 * math.sqrt(k * level) for k, level in small],
    )
    says = run.states(
        "M-153", r"\text{for all }k,\gamma:\ \text{quantiles of both tails}\le2\sqrt{k\ell},\ 2\sqrt{k\ell}+2\ell"
    )
    cases = allowed + small
    ends = [chi_square_radii(k, 2 * math.exp(-level)) for k, level in cases]
    exact = [(k - lower(k, level), upper(k, level) - k) for k, level in cases]
    says.at_most(torch.tensor(exact), torch.tensor(ends), where="each tail of probability γ/2")
    scaled = [(k - 3 * lower(k, level), 3 * upper(k, level) - k) for k, level in cases]
    says.fails("Gaussians of variance 3", torch.tensor(scaled)[:, 1], promised=torch.tensor(ends)[:, 1])
    sharpness(run)
    printed = run.refutes(
        "chi-square-without-linear-term",
        r"\Pr\bigl(|\textstyle\sum X_j^2-k|>4\sqrt{k\log(2/\gamma)}\bigr)/\gamma\le1",
    )
    printed.at_most(
        [leaving(1, 2.25e-7) / 2.25e-7, leaving(2, 1e-6) / 1e-6], 1.0, where="k = 1, γ = 2.25e-7; k = 2, γ = 1e-6"
    )
    levels = np.linspace(0.8, 60, 40)
    shown = (1, 2, 5, 20)
    run.curves(
        "chi-square",
        levels,
        {f"k = {k}": [two_sided_quantile(k, 2 * math.exp(-e)) / math.sqrt(k * e) for e in levels] for k in shown},
        {"printed: 4": [4.0] * len(levels)},
        axes=("log(2/γ)", "quantile over √(k log(2/γ))"),
        caption="Where the printed concentration of a chi-square variable fails: above 4.",
    )


def sharpness(run: Run) -> None:
    """How near the tails come to their bounds, and how far the printed one reaches."""

    def over_radii(k: int, level: float) -> list[float]:
        below, above = chi_square_radii(k, 2 * math.exp(-level))
        return [(k - lower(k, level)) / below, (upper(k, level) - k) / above]

    many, level = 10**8, 200.0
    says = run.states(
        "M-153", r"1\ll\ell\ll k:\ \text{quantiles of both tails over }2\sqrt{k\ell},\ 2\sqrt{k\ell}+2\ell\to1"
    )
    says.equal(over_radii(many, level), 1.0, 0.02, where=f"k = {many:.0e}, ℓ = {level:g}")
    says.fails("ℓ = 9 is not small beside k = 10", over_radii(10, 9.0))
    # the exponent of the upper tail at k(1 + x) is k(x - log(1 + x))/2
    at_k = float(optimize.brentq(lambda x: x - math.log1p(x) - 2, 1.0, 10.0))
    k = 300
    says = run.states("M-153", r"\ell=k\to\infty:\ \text{quantile over }4\sqrt{k\ell}\to x/4,\ x-\log(1+x)=2")
    ratio = two_sided_quantile(k, 2 * math.exp(-k)) / chi_square_radius(k, 2 * math.exp(-k))
    says.equal(ratio, at_k / 4, 0.02, where=f"k = ℓ = {k}: {at_k / 4:.4f}")
    half = two_sided_quantile(2 * k, 2 * math.exp(-k)) / chi_square_radius(2 * k, 2 * math.exp(-k))
    says.fails("ℓ = k/2", half)
    # beyond ℓ = k: Chernoff's exponent stays above ℓ as long as ℓ <= ck
    most = float(optimize.brentq(lambda c: 4 * math.sqrt(c) - math.log1p(4 * math.sqrt(c)) - 2 * c, 1.0, 3.0))
    says = run.states(
        "M-153",
        r"\ell=ck,\ 4\sqrt c-\log(1+4\sqrt c)=2c\ (c=1.68):\ "
        r"\tfrac1\ell\log\tfrac2{\Pr(|\chi_k^2-k|>4\sqrt{k\ell})}\ge1\text{, so the probability is at most }\gamma",
    )

    def spent(k: int, level: float) -> float:
        return math.log(2 / leaving(k, 2 * math.exp(-level))) / level

    counts = (1, 2, 5, 10, 50, 200, 400)
    says.at_least(
        [spent(n, most * n) for n in counts] + [spent(10, math.log(2e6))],
        1.0,
        where=f"c = {most:.4f}, k = 1 to 400, and k = 10 with γ = 1e-6",
    )
    says.fails("ℓ = 2ck", [spent(n, 2 * most * n) for n in counts if 5 <= n <= 200])


def growth(run: Run) -> None:
    says = run.states("M-154", r"6n^4-2n^3+5=O(n^4),\ 3n+4=\Omega(n),\ n^2=o(n^3):\ \text{true of each}")
    quartic = growth_compare(lambda n: 6 * n**4 - 2 * n**3 + 5, lambda n: n**4)
    linear = growth_compare(lambda n: 3 * n + 4, lambda n: n)
    square = growth_compare(lambda n: n**2, lambda n: n**3)
    says.equal([quartic.big_o, linear.omega, square.little_o], [1.0, 1.0, 1.0])
    says.fails(
        "a factor n more, log n less, and as many powers",
        [
            growth_compare(lambda n: 6 * n**5, lambda n: n**4).big_o,
            growth_compare(lambda n: n / math.log(n), lambda n: n).omega,
            growth_compare(lambda n: n**3 + n**2, lambda n: n**3).little_o,
        ],
    )
    says = run.states("M-154", r"\lim f/g=6,\ 3,\ 0")
    exact = [
        polynomial_growth(*pair)
        for pair in (([6, -2, 0, 0, 5], [1, 0, 0, 0, 0]), ([3, 4], [1, 0]), ([1, 0, 0], [1, 0, 0, 0]))
    ]
    says.equal([g.largest for g in exact], [6.0, 3.0, 0.0], 1e-12, where="exactly, for polynomials")
    says.equal([g.largest for g in (quartic, linear, square)], [6.0, 3.0, 0.0], 1e-9, where="at n = $2^{128}$")
    says = run.states("M-154", r"\log^3n=o(n^{1/4}),\ n\log n\ne O(n),\ (2+(-1)^n)n=\Theta(n),\ \log\log n\ne O(1)")
    pairs: list[tuple[Callable[[int], float], Callable[[int], float]]] = [
        (lambda n: math.log(n) ** 3, lambda n: math.exp(math.log(n) / 4)),
        (lambda n: n * math.log(n), lambda n: n),
        (lambda n: (2 + (-1) ** (n % 2)) * n, lambda n: n),
        (lambda n: math.log(math.log(n)), lambda n: 1),
    ]
    says.equal(
        torch.tensor([signature(growth_compare(f, g)) for f, g in pairs]),
        torch.tensor([(1.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.0, 1.0, 1.0), (0.0, 0.0, 1.0)]),
        where="o, O and Ω of each pair, as 0 and 1",
    )


def signature(found: Growth) -> tuple[float, float, float]:
    return float(found.little_o), float(found.big_o), float(found.omega)


def moments(run: Run) -> None:
    orders = 20
    says = run.states("M-155", r"|\sigma'|\le B:\ \mathbb E|\sigma'(X)|^{2q}\le\tfrac{q!}2B^4B^{2(q-2)},\ q\ge2")
    ratios, unbounded = [], []
    for name in BOUNDED:
        bound = activation(name).known.lipschitz
        ratios.append((slope_log_moments(name, orders) - moment_limits(orders, bound**4, bound**2)).exp())
    says.at_most(torch.cat(ratios), 1.0, 1e-9, where=f"over the limit; {', '.join(BOUNDED)}")
    for power in (3, 4):
        logs = slope_log_moments(lambda z, p=power: z**p / p, orders)
        unbounded.append((logs - moment_limits(orders, 1.0, 1.0)).exp())
    says.fails("σ' is not bounded: σ = x³/3 and x⁴/4, with its bound B = 1 on [-1, 1]", torch.cat(unbounded))
    fitted = {name: slope_constants(name, orders) for name in BOUNDED}
    fitted["x²/2"] = slope_constants(square, orders)
    run.table(
        "constants",
        ["activation", "s²", "c"],
        [(name, found.variance, found.scale) for name, found in fitted.items()],
        caption=f"The least constants of the moment assumption, for orders up to {orders}",
    )
    says = run.states("M-155", r"\text{ReLU}:\ s^2=\tfrac12,\ c=\tfrac13;\quad x^2/2:\ s^2=3,\ c\le2")
    says.equal([fitted["relu"].variance, fitted["relu"].scale, fitted["x²/2"].variance], [0.5, 1 / 3, 3.0], 1e-8)
    says.at_most(fitted["x²/2"].scale, 2.0, where="x²/2: c grows to 2 with the number of orders")
    many = [5, 7, 10, 14, 20]
    says = run.states("M-155", r"c\text{ over the orders }q\le Q\text{ stays bounded}:\ c\sim Q^0")
    says.slope(many, [slope_constants(square, q).scale for q in many], 0.0, 0.12, against=(0.5, 1.0), where="σ = x²/2")
    cubes = [slope_constants(cube, q).scale for q in many]
    says.fails("σ = x³/3, whose derivative squared has no exponential tail", many, cubes)
    run.curves(
        "moments",
        many,
        {"x³/3": cubes, "x²/2": [slope_constants(square, q).scale for q in many],
         **{n: [slope_constants(n, q).scale for q in many] for n in ("relu", "tanh")}},
        axes=("orders", "least c"),
        log="xy",
        caption="The constant of the moment assumption by the number of moments: where it grows, the assumption fails.",
    )  # fmt: skip


def gradient(run: Run, networks: int, trials: int, gamma: float) -> None:
    width, d = 20, 400
    ratios = relative_gradients(run, networks, width, d)
    printed, sharper = gradient_factors(d, gamma)
    lowest = quantile_interval(ratios, gamma, 0.999)
    narrow = relative_gradients(run, networks, width, d, rank=8)
    says = run.states(
        "M-156",
        r"\Pr\bigl(\|\nabla f\|\ge(1-5\sqrt{\ell/d})\sqrt{\tfrac1k\textstyle\sum\sigma'(w_jx)^2}\bigr)\ge1-\gamma",
    )
    says.at_least(lowest, printed, where=f"the γ quantile of the ratio, tanh, k = {width}, d = {d}")
    says = run.states("M-156", r"\text{the same with }\sqrt{(d-1-2\sqrt{(d-1)\log(1/\gamma)})/d}")
    says.at_least(lowest, sharper, where="the lower tail alone")
    says.fails("the $w_j$ lie in a space of 8 dimensions, N(0, P/8)", quantile_interval(narrow, gamma, 0.999))

    says = run.states("M-156", r"k,d\to\infty:\ \|\nabla f\|\to\sqrt{\mathbb E\sigma'^2}=0.7071\text{ for ReLU}")
    wide = random_steps(150, 300, 300, "relu", generator=run.generator).gradient_norms
    says.mean(wide, math.sqrt(0.5), 0.005, against=(0.5, 0.6, 0.8, 1.0), confidence=0.999, where="k = d = 300")
    biased = random_steps(1500, 2, 300, "relu", generator=run.generator).gradient_norms
    says.fails("k = 2, not large", biased)

    k = 300
    means = {a: slope_means(run, trials // 10, k, a) for a in ("relu", "tanh", "softplus")}
    says = run.states(
        "M-156",
        r"Y=\sigma'(w^\top x)^2:\ \Pr\bigl(\bar Y\ge\mu-\sqrt{4s^2\ell/k}-c\ell/k\bigr)\ge1-\gamma",
    )
    for a, values in means.items():
        floor = squared_slope_floor(a, k, gamma)
        says.at_least(quantile_interval(values, gamma, 0.999), floor, where=f"the γ quantile; {a}, k = {k}")
        if a == "relu":
            says.fails(
                "all units share one weight", quantile_interval(slope_means(run, trials // 10, 1, a), gamma, 0.999)
            )
    says = run.states("M-156", r"\mathbb E|Y-\mu|^q\le\tfrac{q!}2(2s^2)c^{q-2}")
    orders = 16
    over, alone = [], []
    for function in ("relu", "tanh", "softplus", square):
        found = slope_constants(function, orders)
        centered = centered_log_moments(function, orders)
        over.append((centered - moment_limits(orders, 2 * found.variance, found.scale)).exp())
        alone.append((centered - moment_limits(orders, 0.02 * found.variance, found.scale)).exp()[0])
    says.at_most(torch.cat(over), 1.0, 1e-9, where="over the limit; ReLU, tanh, softplus, x²/2")
    says.fails("with s² fifty times below the fourth moment of σ'", torch.stack(alone))
    says = run.states(
        "M-156",
        r"\mathbb EY^q\le\tfrac{q!}2s^2c^{q-2}:\ \bar Y\text{ has the }\gamma\text{ quantile }\ge\text{floor}",
    )
    # exponentials: E Y^q = q!, so s² = 2 and c = 1
    says.at_least(
        [float(stats.gamma.ppf(g, n)) / n for n in (50, 500, 5000) for g in (0.3, 0.05, 0.001)],
        [nonnegative_mean_floor(1.0, n, 2.0, 1.0, g) for n in (50, 500, 5000) for g in (0.3, 0.05, 0.001)],
        where="exponentials, exactly",
    )


def square(z: Tensor) -> Tensor:
    return z**2 / 2


def cube(z: Tensor) -> Tensor:
    return z**3 / 3


def relative_gradients(run: Run, count: int, width: int, d: int, rank: int | None = None) -> Tensor:
    """‖∇f‖ over the root mean square of σ' at an input, for random networks.

    With a rank, only so many entries of the weights are not 0; their mean length is the same.
    """
    found = []
    for _ in range(count):
        net: Any = random_two_layer(width, d, "tanh", generator=run.generator)
        x = sphere_points(1, d, run.generator)
        if rank is not None:
            with torch.no_grad():
                net[0].weight[:, rank:] = 0.0
                net[0].weight *= math.sqrt(d / rank)
        floor = gradient_lower_bound(net, x, 0.05)
        found.append(one_step_attack(net, x).gradient_norms / floor.mean_square.sqrt())
    return torch.cat(found)


def slope_means(run: Run, count: int, width: int, name: str) -> Tensor:
    return activation(name).slope(run.randn(count, width)).square().mean(1)


def exponential_quantile(k: int, level: float) -> float:
    """Where the sum of k centered exponentials is exceeded with probability e^-level."""
    return float(stats.gamma.isf(math.exp(-level), k)) - k


def exponential_log_moments(orders: int) -> Tensor:
    """log E|E - 1|^q: the part above 1 is q!/e, the part below an integral over [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    x = (nodes + 1) / 2
    below = [float((weights / 2 * (1 - x) ** q * np.exp(-x)).sum()) for q in range(2, orders + 1)]
    above = [math.exp(math.lgamma(q + 1) - 1) for q in range(2, orders + 1)]
    return (torch.tensor(below, dtype=torch.float64) + torch.tensor(above, dtype=torch.float64)).log()


def lognormal_log_moments(orders: int) -> Tensor:
    """log E|X|^q of the standardized lognormal, from below: only |X| ≤ 10^6 is counted."""
    z = torch.linspace(-8, 14, 20_001, dtype=torch.float64)
    step = float(z[1] - z[0])
    density = -z.square() / 2 - math.log(2 * math.pi) / 2 + math.log(step)
    size = ((z.exp() - math.exp(0.5)) / math.sqrt(math.exp(2) - math.e)).abs().clamp_min(1e-300).log()
    q = torch.arange(2, orders + 1, dtype=torch.float64)
    return torch.logsumexp(q[:, None] * size + density, 1)


def centered_log_moments(function: Any, orders: int) -> Tensor:
    """log E|Y - μ|^q of Y = σ'(X)²."""

    nodes, weights = gaussian_rule(torch.float64, torch.device("cpu"))
    y = nth_derivative(as_layer(function), nodes, 1).square()
    apart = (y - weights @ y).abs().log()
    q = torch.arange(2, orders + 1, dtype=torch.float64)
    return torch.logsumexp(q[:, None] * apart + weights.log(), 1)


def least_exponent(t: float, k: int, variance: float, c: float, most: float) -> float:
    """The infimum over λ by golden sections, λ below `most`/c."""
    found = optimize.minimize_scalar(
        lambda r: -r / c * t + k * variance * (r / c) ** 2 / 2 / (1 - r),
        bounds=(0.0, most * (1 - 1e-12)),
        method="bounded",
        options={"xatol": 1e-13, "maxiter": 500},
    )
    return float(found.fun)


def two_sided_quantile(k: int, gamma: float) -> float:
    """Where P(|Q - k| > r) falls to γ, Q chi-square with k degrees."""
    top = float(stats.chi2.isf(gamma / 2, k)) + k
    return float(optimize.brentq(lambda r: outside(k, r) - gamma, 0.0, top, xtol=1e-12, rtol=1e-12))


def outside(k: int, radius: float) -> float:
    return float(stats.chi2.sf(k + radius, k) + stats.chi2.cdf(max(k - radius, 0.0), k))


def leaving(k: int, gamma: float) -> float:
    return outside(k, 4 * math.sqrt(k * math.log(2 / gamma)))


def upper(k: int, level: float) -> float:
    return float(stats.chi2.isf(math.exp(-level), k))


def lower(k: int, level: float) -> float:
    return float(stats.chi2.ppf(math.exp(-level), k))
