"""Networks with bounded weights: how complex they are, what the bounds say, and margins."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchtheory.generalization.complexity.margin_bounds import (
    best_margin_bound,
    margin_bound,
    margin_error,
    ramp_loss,
)
from torchtheory.generalization.complexity.norm_bounds import (
    ascended_relu_class,
    frobenius_bound,
    frobenius_norms,
    largest_unit,
    normalize_layers,
    planar_relu_class,
)
from torchtheory.generalization.complexity.rademacher import (
    empirical_uniform_deviation,
    estimate_rademacher,
    exact_rademacher,
    finite_class,
    linear_bounds,
    linear_class,
)
from torchtheory.labs.engine import Run, lab, quantile_interval
from torchtheory.nets.activations.properties import inspect_activation
from torchtheory.nets.feedforward import mlp


@lab(
    "norm-bounded-networks",
    room="generalization",
    covers=["M-48", "A-63", "A-64", "A-65"],
    title="Networks with small weights have small complexity, whatever their width",
    full={"samples": 12, "draws": 1000, "steps": 200},
    least={"samples": 4, "draws": 50, "steps": 20},
)
def norm_bounded_networks(run: Run, samples: int = 8, draws: int = 80, steps: int = 40) -> None:
    """The complexity of two-layer ReLU networks in the plane is computed exactly.

    Scaling a layer scales the network, so norms are all that matters. The supremum over a weight
    matrix is one over a single row: random matrices never exceed it, and one hidden unit attains
    it. Deeper networks are trained on random signs, which bounds their complexity from below; the
    theorem bounds it from above. Look at the figure: what training
    reaches does not grow with depth while the bound doubles with each layer, and a bound above the
    largest value of the functions is empty.

    Args:
        samples: for which complexities are computed.
        draws: of signs for the averages.
        steps: of the ascent that looks for the supremum.
    """
    rescaling(run)
    peeling(run, samples)
    two_layers(run, samples, steps)
    rows = depth(run, samples, draws, steps)
    run.table(
        "depth",
        ["layers", "from below", "$2^{L-1}$ ∏C/√m", "(√(2L ln 2)+1) ∏C/√m", "$(2B)^L$/√m"],
        rows,
        caption=f"Networks with C = B = 1 on {8 * samples} unit vectors; every function is at most "
        "1, so a bound above 1 says nothing",
    )
    layers, low, high, root, lecture = zip(*rows, strict=True)
    run.curves(
        "depth",
        layers,
        {
            "trained networks (from below)": low,
            r"$2^{L-1}\prod C/\sqrt{m}$": high,
            r"$(\sqrt{2L\,\ln 2}+1)\prod C/\sqrt{m}$": root,
            r"$(2B)^L/\sqrt{m}$": lecture,
        },
        {"vacuous above": 1},
        axes=("layers L", "Rademacher complexity"),
        log="y",
        beside=True,
        caption="Complexity of networks of unit norm against depth: what trained networks reach, "
        "and three bounds; above the dashed line a bound is vacuous.",
    )


def on_sphere(run: Run, samples: int, dimension: int) -> Tensor:
    """Points drawn uniformly from the unit sphere."""
    return nn.functional.normalize(run.randn(samples, dimension), dim=1)


def rescaling(run: Run) -> None:
    """Positive homogeneity of activations and of networks."""
    activations: dict[str, nn.Module] = {"ReLU": nn.ReLU(), "leaky ReLU": nn.LeakyReLU(0.2)}
    says = run.states("A-63", r"\varrho(\lambda x)=\lambda\varrho(x),\ \lambda>0:\ \text{ReLU and leaky ReLU}")
    says.equal([inspect_activation(a).positively_homogeneous for a in activations.values()], 1)
    says.fails("tanh", inspect_activation(nn.Tanh()).positively_homogeneous)
    x = run.randn(50, 3)
    for bias in (False, True):
        net = mlp([3, 8, 8, 1], "relu", bias=bias, generator=run.generator)
        before = net(x)[:, 0].detach()
        factors = (0.3 + run.rand(3)).tolist()
        with torch.no_grad():
            matrices = [p for p in net.parameters() if p.ndim == 2]
            for weight, factor in zip(matrices, factors, strict=True):
                weight.mul_(factor)
        after = net(x)[:, 0].detach() / math.prod(factors)
        if not bias:
            plain, scaled, kept = before, after, net
        else:
            broken, broken_scaled = before, after
    says = run.states(
        "A-63",
        r"\Phi_{(\lambda_\ell W^{(\ell)})}=\prod_\ell\lambda_\ell\cdot\Phi_{(W^{(\ell)})} \text{ without biases}",
    )
    says.equal(scaled, plain, 1e-13)
    says.fails("with biases", broken_scaled, promised=broken)
    unit, factor = normalize_layers(kept)
    says = run.states("A-63", r"\Phi=\text{factor}\cdot\Phi_{\text{unit norms}}")
    says.equal(factor * unit(x)[:, 0], kept(x)[:, 0], 1e-13)
    says.fails("the factor left out", unit(x)[:, 0])
    says = run.states("A-63", r"\|W^{(\ell)}\|_F=1 \text{ after normalizing}")
    says.equal(frobenius_norms(unit), 1, 1e-13)
    says.fails("before", frobenius_norms(kept))


def peeling(run: Run, m: int) -> None:
    """The supremum over a matrix is attained by one row."""
    x = on_sphere(run, m, 2)
    signs = run.signs(40, m)
    best, direction = largest_unit(x, signs)
    single = [
        float((t[:, None] * torch.relu(x @ w)[:, None]).sum(0).norm()) for t, w in zip(signs, direction, strict=True)
    ]
    weights = run.randn(300, 5, 2)
    weights = weights / weights.norm(dim=(1, 2), keepdim=True)
    hidden = torch.relu(torch.einsum("rkd,md->rkm", weights, x))
    reached = torch.einsum("sm,rkm->srk", signs, hidden).norm(dim=2)
    other = torch.stack([-direction[:, 1], direction[:, 0]], 1)
    rows = torch.stack([direction, other, -other], 1)
    spectral = torch.einsum("sm,skm->sk", signs, torch.relu(rows @ x.T)).norm(dim=1)
    says = run.states(
        "A-65",
        r"\|W\|_F\le C:\ \bigl\|\sum_i\tau_i\varrho(Wx_i)\bigr\|_2\le "
        r"C\sup_{\|w\|\le1}\bigl|\sum_i\tau_i\varrho(\langle w,x_i\rangle)\bigr|",
    )
    says.at_most(
        reached.amax(1), best, 1e-13, where="300 random matrices with five rows, 40 sign vectors, in the plane"
    )
    says.fails("more unit rows are added, which C does not allow", spectral)
    says = run.states("A-65", r"\text{with equality for a matrix with one row}")
    says.equal(single, best, 1e-13)
    says.fails("the row turned by 90 degrees", (signs * torch.relu(other @ x.T)).sum(1).abs())


def two_layers(run: Run, m: int, steps: int) -> None:
    """Exact complexity of two-layer networks in the plane, its bounds, and training."""
    exact, longer, bound, linear, found, outside = [], [], [], [], [], []
    for c in (0.5, 1.0, 2.0):
        x = on_sphere(run, m, 2)
        exact.append(exact_rademacher(planar_relu_class(x, c, c), m))
        longer.append(exact_rademacher(planar_relu_class(x, 2 * c, 2 * c), m))
        linear.append(c * exact_rademacher(linear_class(x), m))
        bound.append(frobenius_bound([c, c], exact_rademacher(linear_class(x), m)))
        signs = run.signs(60, m)
        ascent = ascended_relu_class(x, [6], [c, c], steps=steps, generator=run.generator)(signs)
        found.append(ascent / planar_relu_class(x, c, c)(signs))
        larger = ascended_relu_class(x, [6], [c, 2 * c], steps=steps, generator=run.generator)(signs)
        outside.append(larger / planar_relu_class(x, c, c)(signs))
    says = run.states(["A-64", "A-65"], r"L=2:\ \mathfrak R\le\tfrac{2C^2}m\,\mathbb E\bigl\|\sum_i\tau_ix_i\bigr\|")
    says.at_most(exact, bound, where="the exact complexity of networks of any width, all signs")
    says.fails("matrices of norm 2C", longer)
    says = run.states(["A-64", "M-48"], r"\text{trained networks of width 6 stay below the exact supremum: ratio}\le1")
    says.at_most(torch.cat(found), 1, 1e-9)
    says.fails("the output layer may have norm 2C", torch.cat(outside))


def depth(run: Run, m: int, draws: int, steps: int) -> list[tuple[int, float, float, float, float]]:
    """Lower and upper bounds for growing depth."""
    m = 8 * m
    x = on_sphere(run, m, 3)
    unit = linear_bounds(x)[1]
    rows, lows, highs, root, lecture, scaled = [], [], [], [], [], []
    for layers in range(1, 6):
        norms = [1.0] * layers
        widths = [8] * (layers - 1)
        ascent = ascended_relu_class(x, widths, norms, steps=steps, generator=run.generator)
        low = estimate_rademacher(ascent, m, draws=draws, generator=run.generator)
        lows.append(low.low)
        scaled.append(low.low * 3.0**layers)
        highs.append(frobenius_bound(norms, unit))
        root.append(frobenius_bound(norms, unit, depth_factor="root"))
        lecture.append(2.0**layers * unit)
        rows.append((layers, low.estimate, highs[-1], root[-1], lecture[-1]))
    says = run.states("A-64", r"\mathfrak R_m\le C(2C)^{L-1}/\sqrt m,\quad L=1,\dots,5")
    says.at_most(lows, highs, where="networks trained on random signs, lower end of a 99% interval: a lower bound")
    says.fails("matrices of norm 3 instead of 1", scaled)
    says = run.states("A-64", r"\mathfrak R_m\le(\sqrt{2L\ln2}+1)\prod_\ell C_\ell/\sqrt m")
    says.at_most(lows, root, where="Golowich, Rakhlin and Shamir")
    says.fails("matrices of norm 3 instead of 1", scaled)
    says = run.states("M-48", r"\hat R(\mathcal F_B)\le(2B)^L/\sqrt n")
    says.at_most(lows, lecture)
    says.fails("matrices of norm 3 instead of 1", scaled)
    one, wide = [], []
    for d in (2, 20, 200):
        points = on_sphere(run, m, d)
        one.append(estimate_rademacher(linear_class(points), m, draws=draws, generator=run.generator).low)
        cube = run.signs(m, d)
        wide.append(estimate_rademacher(linear_class(cube), m, draws=draws, generator=run.generator).low)
    says = run.states(["A-64", "M-48"], r"L=1:\ \mathfrak R\le C/\sqrt m \text{ in every dimension}")
    says.at_most(one, unit, where="d = 2, 20, 200")
    says.fails("points ±1 of a cube, of norm √d", wide)
    says = run.states("A-64", r"C=1,\ L=3,\ m=10^4:\ 0.04")
    says.equal(frobenius_bound([1.0] * 3, 1 / math.sqrt(10**4)), 0.04, 1e-15)
    says.fails("C = 2", frobenius_bound([2.0] * 3, 1 / math.sqrt(10**4)))
    return rows


@lab(
    "margin-bounds",
    room="generalization",
    covers=["A-66", "A-67", "M-52"],
    title="Confident decisions generalize: risk bounds by margins",
    full={"samples": 5000, "trials": 500},
    least={"samples": 100, "trials": 50},
)
def margin_bounds(run: Run, samples: int = 1000, trials: int = 100) -> None:
    """Linear classifiers on the circle with noisy labels, whose risk is an angle.

    The ramp loss lies between two step functions and is Lipschitz, so contraction applies. Labels
    do not change the complexity: signs absorb them. The bound must hold for all directions at once,
    in all but a share δ of the samples; where the complexity is left out, interpolation of pure
    noise in high dimension breaks it. Look at the trade-off in γ, and at what deep networks make of
    the bound.

    Args:
        samples: size of a sample.
        trials: samples in which the bounds may fail.
    """
    ramp(run)
    labels_absorbed(run)
    coverage(run, samples, trials)
    clipped(run)
    curve = trade_off(run, samples)
    gamma, error, complexity, total = zip(*curve, strict=True)
    run.curves(
        "trade-off",
        gamma,
        {"margins below γ": error, r"$2R_m/\gamma$": complexity},
        {"bound": total, "vacuous above": 1},
        axes=("γ", "risk"),
        log="x",
        ylim=(0, 1.5),
        caption="The two parts of the margin bound and their sum against γ, for a linear "
        "classifier on the circle; a small γ costs complexity, a large one margin errors.",
    )


def ramp(run: Run) -> None:
    """Between two step functions, and Lipschitz."""
    gammas = [0.1, 1.0, 3.0]
    t = torch.linspace(-2, 5, 7001, dtype=torch.float64)
    losses = torch.cat([ramp_loss(t, g) for g in gammas])
    hinge = torch.cat([(1 - t[t < 0] / g).clamp_min(0) for g in gammas])
    below = (t <= 0).double().repeat(3)
    above = torch.cat([(t < g).double() for g in gammas])
    says = run.states("A-66", r"1_{(-\infty,0]}(t)\le\ell_\gamma(t)")
    says.at_least(losses, below)
    wrong = t[(t > -1) & (t <= 0)]
    says.fails(
        "the ramp moved to the left by 1, at t from -1 to 0",
        torch.cat([ramp_loss(wrong + 1, g) for g in gammas]),
        promised=1.0,
    )
    says = run.states("A-66", r"\ell_\gamma(t)\le1_{(-\infty,\gamma)}(t)")
    says.at_most(losses, above, 1e-15)
    says.fails("the hinge loss, without the clip, at t < 0", hinge, promised=1.0)
    step = float(t[1] - t[0])
    slopes, steeper = ([float(ramp_loss(t, c * g).diff().abs().max()) / step for g in gammas] for c in (1, 0.5))
    says = run.states("A-66", r"\mathrm{Lip}(\ell_\gamma)=1/\gamma")
    says.equal(slopes, [1 / g for g in gammas], 1e-9)
    says.fails("half the margin", steeper)


def labels_absorbed(run: Run, m: int = 8) -> None:
    """The complexity of the margins is that of the functions."""
    values = run.randn(6, m)
    y, zero_one = run.signs(m), (run.rand(m) < 0.5).double()
    says = run.states("A-67", r"\mathfrak R(M\circ\mathcal F)=\mathfrak R(\mathcal F),\quad M(f,z)=yf(x)")
    says.equal(exact_rademacher(finite_class(values * y), m), exact_rademacher(finite_class(values), m), 1e-14)
    says.fails("labels 0 and 1 in place of ±1", exact_rademacher(finite_class(values * zero_one), m))


def circle(run: Run, samples: int, noise: float) -> tuple[Tensor, Tensor]:
    """Points on the circle, labeled by their first coordinate, some labels flipped."""
    x = on_sphere(run, samples, 2)
    flips = torch.where(run.rand(samples) < noise, -1.0, 1.0).double()
    return x, torch.where(x[:, 0] > 0, 1.0, -1.0).double() * flips


def coverage(run: Run, samples: int, trials: int, gamma: float = 0.5, delta: float = 0.1, noise: float = 0.1) -> None:
    """All directions at once; and what happens without the complexity."""
    angle = torch.linspace(-math.pi, math.pi, 181, dtype=torch.float64)
    directions = torch.stack([angle.cos(), angle.sin()], 1)
    risk = noise + (1 - 2 * noise) * angle.abs() / math.pi
    complexity = frobenius_bound([1.0], 1 / math.sqrt(samples))
    used, tightest = [], 1.0
    for _ in range(trials):
        x, y = circle(run, samples, noise)
        margins = y[:, None] * (x @ directions.T)
        share = (margins < gamma).double().mean(0)
        bound = share + margin_bound(torch.ones(samples), complexity, gamma, delta)
        used.append(float((risk / bound).max()))
        tightest = min(tightest, float((bound - risk).min()))
    dimension, few, wrong = 400, 40, []
    for _ in range(trials):
        x, y = on_sphere(run, few, dimension), run.signs(few)
        w = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
        margins = y * (x @ w) / w.norm()
        smallest = 0.99 * float(margins.min())
        wrong.append(0.5 / margin_bound(margins, 0.0, smallest, delta))
    says = run.states(
        "A-67",
        r"\Pr\bigl[\forall f:\ \Pr[yf\le0]\le\tfrac1m\sum_i1[y_if(x_i)<\gamma]+"
        r"\tfrac2\gamma\mathfrak R_m+\sqrt{\ln(1/\delta)/(2m)}\bigr]\ge1-\delta",
    )
    says.at_most(
        quantile_interval(used, 1 - delta, 0.99),
        1.0,
        where="the largest risk over bound of 181 directions, quantile at 1 - δ; the smallest difference was "
        f"{tightest:.3f}",
    )
    says.fails(
        "the complexity left out, pure noise interpolated in dimension 400", quantile_interval(wrong, 1 - delta, 0.99)
    )


def clipped(run: Run, n: int = 500) -> None:
    """The exercise's bound follows from the empirical one for δ up to 1/2."""
    deltas = torch.linspace(0.01, 0.5, 50, dtype=torch.float64)
    large = torch.linspace(0.55, 0.99, 45, dtype=torch.float64)

    def terms(grid: Tensor) -> tuple[Tensor, Tensor]:
        return 3 * (2 * (1 / grid).log() / n).sqrt(), 3 * ((2 / grid).log() / n).sqrt()

    printed, theorem = terms(deltas)
    says = run.states("M-52", r"\delta\le\tfrac12:\ 3\sqrt{\ln(2/\delta)/n}\le3\sqrt{2\ln(1/\delta)/n}")
    says.at_most(
        theorem, printed, 1e-14, where="so the bound with the ramp loss follows from the theorem given before it"
    )
    says.fails("δ above 1/2", terms(large)[1], promised=terms(large)[0])
    m = 8
    values = run.randn(7, m)
    before = exact_rademacher(finite_class(values), m)
    says = run.states("M-52", r"\ell(t)=\min(1,\max(0,t)):\ \hat R(\ell\circ\mathcal F)\le\hat R(\mathcal F)")
    says.at_most(exact_rademacher(finite_class(values.clamp(0, 1)), m), before)
    small = 0.01 * values
    says.fails(
        "a step instead of the ramp, on small values",
        exact_rademacher(finite_class((small > 0).double()), m),
        promised=exact_rademacher(finite_class(small), m),
    )
    # y f + 1/2 for a linear class on the circle: the mean of the ramp is an integral
    used, bare, trials, delta = [], [], 100, 0.3
    angle = torch.linspace(-math.pi, math.pi, 91, dtype=torch.float64)
    directions = torch.stack([angle.cos(), angle.sin()], 1)
    x, y = circle(run, 50_000, 0.2)
    truth = (0.5 - y[:, None] * (x @ directions.T)).clamp(0, 1).mean(0)
    spread = hoeffding_all(len(y), len(angle))
    for _ in range(trials):
        x, y = circle(run, 20, 0.2)
        mean = (0.5 - y[:, None] * (x @ directions.T)).clamp(0, 1).mean(0)
        complexity = estimate_rademacher(linear_class(x), len(x), draws=50, generator=run.generator).high
        deviation = empirical_uniform_deviation(complexity, len(x), delta)
        used.append(float(((truth - spread) / (mean + deviation)).max()))
        bare.append(float(((truth - spread) / mean).max()))
    says = run.states(
        "M-52",
        r"\Pr\bigl[\forall f:\ \mathbb E\,\ell\le\tfrac1n\sum_i\ell+2\hat R(\mathcal F)+"
        r"3\sqrt{\ln(2/\delta)/(2n)}\bigr]\ge1-\delta",
    )
    says.at_most(
        quantile_interval(used, 1 - delta, 0.99),
        1.0,
        where="ramp loss of 1/2 - y f(x), linear functions, n = 20: the largest mean over bound, quantile at 1 - δ",
    )
    says.fails("the sample's mean alone", quantile_interval(bare, 1 - delta, 0.99))


def hoeffding_all(samples: int, functions: int) -> float:
    """How far all means of a large sample may be off, with probability 0.999."""
    return math.sqrt(math.log(2 * functions / 0.001) / (2 * samples))


def trade_off(run: Run, samples: int) -> list[tuple[float, float, float, float]]:
    """Both parts of the bound against the margin, and the best of a grid."""
    x, y = circle(run, samples, 0.05)
    w = (y[:, None] * x).mean(0)
    margins = y * (x @ (w / w.norm()))
    complexity = frobenius_bound([1.0], 1 / math.sqrt(samples))
    gammas = torch.logspace(-1.5, 0.3, 30).tolist()
    curve = [
        (
            g,
            margin_error(margins, g),
            2 * complexity / g,
            margin_bound(margins, complexity, g, 0.05),
        )
        for g in gammas
    ]
    best, gamma = best_margin_bound(margins, complexity, gammas, 0.05)
    risk = 0.05 + 0.9 * float(torch.atan2(w[1], w[0]).abs()) / math.pi
    # labels that are hardly better than coins: most of the bound is the risk
    noisy = circle(run, samples, 0.35)
    v = (noisy[1][:, None] * noisy[0]).mean(0)
    noisy_best, _ = best_margin_bound(noisy[1] * (noisy[0] @ (v / v.norm())), complexity, gammas, 0.05)
    noisy_risk = 0.35 + 0.3 * float(torch.atan2(v[1], v[0]).abs()) / math.pi
    says = run.states("A-67", r"R(f)\le\min_\gamma\text{ over a grid, }\delta\text{ divided among its points}")
    says.at_most(
        [risk, noisy_risk],
        [best, noisy_best],
        trivial=1,
        where=f"5 % of the labels flipped, at γ = {gamma:.3f}, and 35 %; the risk is exact, an angle",
    )
    says.fails("labels of the sample swapped", 1 - risk, promised=best)
    rows = []
    for layers in range(1, 7):
        net = frobenius_bound([2.0] * layers, 1 / math.sqrt(samples))
        rows.append((layers, net, min(1.0, 2 * net), 2 * net >= 1))
    run.table(
        "networks",
        ["layers", "complexity bound", "its share of the risk bound at γ = 1", "vacuous"],
        rows,
        caption=f"Layers of Frobenius norm 2, {samples} unit vectors: the bound is empty soon",
    )
    return curve
