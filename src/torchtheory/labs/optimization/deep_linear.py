"""The landscape of deep linear networks: what depth adds, and which theorems cover it."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import torch
from scipy import optimize
from torch import Tensor, nn

from torchtheory.labs.engine import COLORS, Run, fit_slope, lab
from torchtheory.labs.optimization.two_layer_linear import regression, settled, weighted_fit
from torchtheory.nets.feedforward import dense
from torchtheory.optimization.descent.iterates import Function, gradient_descent
from torchtheory.optimization.landscape.critical_points import (
    critical_point,
    landscape_probe,
    lower_point,
)
from torchtheory.optimization.linear_networks.deep import (
    balanced_layers,
    critical_product,
    deep_critical_point,
    deep_linear_function,
    deep_linear_gradients,
    deep_linear_optimum,
    deep_linear_slope,
    flat_layers,
    layers_of,
)
from torchtheory.optimization.linear_networks.deep_factorization import product_of
from torchtheory.optimization.linear_networks.deep_saddles import (
    SaddleReport,
    deep_saddle_report,
    linear_landscape_certificate,
)
from torchtheory.optimization.linear_networks.second_moments import Covariances, least_squares_map

#: What a computed eigenvalue may be off by.
ROUNDING = 1e-6


@lab(
    "deep-linear-landscape",
    room="optimization",
    covers=["L-151", "L-152", "B-35", "B-36", "B-38"],
    title="Deep linear networks have no bad minima, but saddles without a descending direction",
    errata=["deep-critical-product-inverse", "deep-linear-escape-needs-strictness"],
    full={"samples": 400, "starts": 20, "steps": 40_000},
    least={"samples": 6, "steps": 2000},  # of few samples descent takes long to end
)
def deep_linear_landscape(run: Run, samples: int = 50, starts: int = 4, steps: int = 6000) -> None:
    """Depth changes neither what a linear network can be nor the values of its critical points; it
    changes the Hessians there. Critical points are written down and searched for, and put next to
    Kawaguchi's theorem: a saddle whose middle layers have full rank has a negative eigenvalue, one
    whose middle layers have not may have none. Look at the figure: points on the line 0 above the
    optimum are the degenerate saddles.

    Args:
        samples: of the data.
        starts: of the searches.
        steps: of gradient descent, at most.
    """
    x, y, values = regression(run, samples, 4, torch.tensor([5.0, 2.5, 1.0]).double())
    moments = Covariances.from_samples(x, y)
    closed_forms(run, x, y, moments, values)
    searched = critical_formula(run, moments, starts)
    reports = strictness(run, moments, searched)
    origin(run, x, y, moments)
    certified(run, samples, starts, steps)
    run.figure(
        "saddles",
        lambda axis: plot_reports(axis, reports),
        size=(8, 4),
        caption="Critical points of a network of widths 4, 2, 2, 3: risk and least eigenvalue of "
        "the Hessian. Next to them the eigenvectors used and the rank of the middle layer.",
    )


def closed_forms(run: Run, x: Tensor, y: Tensor, moments: Covariances, values: Tensor) -> None:
    closed: list[Tensor] = []
    wrong: list[Tensor] = []
    automatic, risks, direct = [], [], []
    shuffled = Covariances.from_samples(x, y[torch.randperm(len(y), generator=run.generator)])
    for widths in ((4, 2, 3), (4, 3, 2, 3), (4, 2, 5, 3, 3)):
        layers = [run.randn(b, a) for a, b in pairwise(widths)]
        net = nn.Sequential(*(dense(w) for w in layers))
        loss = (net(x) - y).square().sum(1).mean()
        automatic += [g.reshape(-1) for g in torch.autograd.grad(loss, list(net.parameters()))]
        closed += [g.reshape(-1) for g in deep_linear_gradients(layers, moments)]
        wrong += [g.reshape(-1) for g in deep_linear_gradients(layers, shuffled)]
        risks.append(moments.risk(product_of(layers)))
        direct.append(loss.detach())
    says = run.states(
        "B-35", r"\nabla_{W_\ell}R=2(W_L\cdots W_{\ell+1})^\top(P\Sigma_{xx}-\Sigma_{yx})(W_{\ell-1}\cdots W_1)^\top"
    )
    says.equal(
        torch.cat(closed),
        torch.cat(automatic),
        1e-9,
        where="automatic differentiation of an nn.Sequential, 2 to 4 layers",
    )
    says.fails("targets given to the wrong inputs", torch.cat(wrong))
    run.states(
        "B-35", r"\frac1m\|Y-PX\|_F^2=\operatorname{tr}(\Sigma_{yy}-2\Sigma_{yx}P^\top+P\Sigma_{xx}P^\top)"
    ).equal(torch.stack(risks), torch.stack(direct), 1e-10)
    total = float(y.square().sum(1).mean())
    promised, measured, narrower, unbalanced = [], [], [], []
    for widths in ((4, 2, 3), (4, 3, 2, 3), (4, 1, 3, 3, 3), (4, 4, 3, 3)):
        rank = min(widths)
        layers = balanced_layers(deep_linear_optimum(moments, widths).map, widths)
        promised.append(total - float(values[:rank].sum()))
        measured.append((y - x @ product_of(layers).T).square().sum(1).mean())
        less = (4, *[min(rank, 2) - 1 or 1] * 2, 3) if rank > 1 else (4, 1, 3)
        below = balanced_layers(deep_linear_optimum(moments, less).map, less)
        narrower.append((y - x @ product_of(below).T).square().sum(1).mean())
        unbalanced += [(b.T @ b - a @ a.T).reshape(-1) for a, b in pairwise(layers)]
    says = run.states(
        "B-35",
        r"\min R=\operatorname{tr}\Sigma_{yy}-\sum_{i\le r}\lambda_i,\ r=\min_\ell n_\ell, "
        r"\text{ reached by balanced layers}",
    )
    says.equal(torch.stack(measured), promised, 1e-9, where="mean squared error on the samples, 2 to 4 layers")
    says.fails("one unit in the narrowest layer", torch.stack(narrower))
    run.states("B-35", r"W_{\ell+1}^\top W_{\ell+1}=W_\ell W_\ell^\top \text{ for the balanced factorization}").equal(
        torch.cat(unbalanced), within=1e-9
    )


def critical_formula(run: Run, moments: Covariances, starts: int) -> list[list[Tensor]]:
    """The product at critical points that were searched for, which are returned, and at ones
    written down."""
    searched, written, anywhere, deficient = [], [], [], []
    for widths in ((4, 2, 3), (4, 2, 2, 3), (4, 2, 2, 2, 3)):
        sizes = sum(a * b for a, b in pairwise(widths))
        for _ in range(max(2, starts // 2)):
            start = 0.7 * run.randn(sizes)
            anywhere.append(layers_of(start, widths))
            end, size = zero_of(deep_linear_slope(widths, moments), start)
            if size < 1e-8:
                searched.append(layers_of(end, widths))
        for count in range(3):
            sets = combinations(range(3), count)
            written += [deep_critical_point(moments, widths, chosen) for chosen in sets]
        deficient.append(deep_critical_point(moments, widths, [1]))

    def off(layers: list[Tensor]) -> float:
        # a gradient of 1e-8 decides on directions in which C exceeds 1e-4, up to an error of 1e-4
        return float((product_of(layers) - critical_product(layers, moments, 1e-4)).abs().max())

    says = run.states(
        "L-151",
        r"\nabla L=0\Rightarrow W_{H+1}\cdots W_1=C(C^\top C)^-C^\top YX^\top(XX^\top)^{-1},\ C=W_{H+1}\cdots W_2",
    )
    says.equal(
        [off(layers) for layers in [*searched, *written]],
        within=1e-3,
        where="H = 1, 2, 3; zeros of the gradient found from random starts, and written down",
    )
    says.fails("at the starts", [off(layers) for layers in anywhere])
    least = [torch.linalg.svdvals(product_of(layers[1:]))[-1] for layers in deficient]
    run.refutes("deep-critical-product-inverse", r"C^\top C \text{ is invertible at critical points}").above(
        torch.stack(least), 1e-9, where="least singular value of C at critical points that use one eigenvector of two"
    )
    return searched


def zero_of(gradient: Function, start: Tensor) -> tuple[Tensor, float]:
    """Where least squares takes the gradient, and how long it is there."""
    shifts = 1e-5 * torch.eye(len(start), dtype=start.dtype)

    def value(theta: Any) -> Any:
        return gradient(torch.from_numpy(theta)).numpy()

    def derivative(theta: Any) -> Any:
        here = torch.from_numpy(theta)
        return ((gradient(here + shifts) - gradient(here - shifts)) / 2e-5).T.numpy()

    done = optimize.least_squares(value, start.numpy(), derivative, gtol=1e-14, xtol=1e-14, max_nfev=80)
    return torch.from_numpy(done.x), float(np.linalg.norm(done.fun))


def strictness(run: Run, moments: Covariances, searched: list[list[Tensor]]) -> list[tuple[str, SaddleReport]]:
    """Critical points of a network with two hidden layers of two units, and those found."""
    widths = (4, 2, 2, 3)
    reports: list[tuple[str, SaddleReport]] = []
    slopes = []
    for count in range(3):
        for chosen in combinations(range(3), count):
            for rank in range(count, 3):
                layers = deep_critical_point(moments, widths, chosen, rank)
                slopes.append(flat_layers(deep_linear_gradients(layers, moments)))
                report = deep_saddle_report(layers, moments, generator=run.generator)
                name = "{" + ", ".join(str(j + 1) for j in chosen) + "}" if chosen else "∅"
                reports.append((f"{name}, {rank}", report))
    saddles = [(n, r) for n, r in reports if r.value > r.optimum + 1e-6]
    guaranteed = [r.smallest_eigenvalue for _, r in saddles if r.guarantee == "strict"]
    short = [r.smallest_eigenvalue for _, r in saddles if r.guarantee != "strict"]
    # where the leading eigenvectors are in use, no exchange of two of them leads down
    leading = [r.smallest_eigenvalue for n, r in saddles if n in ("∅, 0", "∅, 1", "{1}, 1")]
    says = run.states(
        ["B-36", "L-152"],
        r"\operatorname{rank}(W_{L-1}\cdots W_2)=\min_\ell n_\ell \text{ at a saddle}\Rightarrow"
        r"\lambda_{\min}(\nabla^2R)<0",
    )
    says.below(
        torch.tensor(guaranteed) + ROUNDING,
        0,
        where=f"saddles written down with middle layers of full rank, {ROUNDING:g} for rounding",
    )
    says.fails("middle layers of smaller rank, leading eigenvectors", torch.tensor(leading) + ROUNDING)
    ended = gradient_descent(weighted_fit, run.randn(20, 4), 0.1, 600)
    last = ended.values[-1]
    bad = landscape_probe(
        weighted_fit,
        ended.points[-1, int(last.argmax())],
        infimum=float(last.min()),
        generator=run.generator,
    )
    strict_all_the_same = [e for e in short if e < -ROUNDING]
    run.states(
        "B-36", r"\text{a smaller rank decides nothing: some of those saddles are strict, some are not}"
    ).at_least([len(strict_all_the_same), len(short) - len(strict_all_the_same)], [1, 1])
    others = [deep_saddle_report(w, moments, generator=run.generator) for w in searched]
    above = [*(r for _, r in saddles), *(r for r in others if r.value > r.optimum + 1e-6)]
    says = run.states(
        ["B-36", "L-152"], r"\text{every critical point above the optimum is a saddle: no other label occurs}"
    )
    says.equal(
        sum("saddle" not in r.label for r in above),
        where=f"{len(saddles)} written down, and {len(above) - len(saddles)} above the optimum "
        f"among {len(others)} zeros of the gradient found from random starts",
    )
    says.fails(
        "every entry of the residual has its own weight: the worst end of 20 descents",
        int("saddle" not in bad.label and bad.value > float(last.min()) + 1e-6),
    )
    run.states("B-36", r"\text{the points written down are critical}").equal(torch.cat(slopes), within=1e-9)
    run.table(
        "critical-points",
        ["eigenvectors, middle rank", "risk", "label", "theorem says", "least eigenvalue"],
        [(n, r.value, r.label, r.guarantee, r.smallest_eigenvalue) for n, r in reports],
        caption="Widths 4, 2, 2, 3; what the theorem says is about saddles",
    )
    return reports


def origin(run: Run, x: Tensor, y: Tensor, moments: Covariances) -> None:
    """All weights 0: strict for one hidden layer, flat to order L for more."""
    two, three = (4, 2, 3), (4, 2, 2, 3)
    sigma = torch.linalg.svdvals(moments.yx).repeat_interleave(2)
    spectrum = critical_point(deep_linear_function(two, moments), torch.zeros(14).double())
    deeper = critical_point(deep_linear_function(three, moments), torch.zeros(18).double())
    both = torch.cat([2 * sigma, -2 * sigma, torch.zeros(2).double()]).sort().values
    says = run.states(
        "L-152",
        r"H=1: \text{ the Hessian at the origin has the eigenvalues } \pm2\sigma_i(\Sigma_{yx}), "
        r"p \text{ times each, and } 0",
    )
    says.equal(spectrum.eigenvalues, both, 1e-9)
    says.fails("H = 2", deeper.eigenvalues[:14])
    gains = {}
    steps = torch.tensor([0.2, 0.1, 0.05, 0.025]).double()
    for widths in (two, three, (4, 2, 2, 2, 3)):
        function = deep_linear_function(widths, moments)
        size = sum(a * b for a, b in pairwise(widths))
        zero = torch.zeros(size).double()
        down = lower_point(function, zero, 0.5, generator=run.generator)
        assert down is not None
        gains[len(widths) - 1] = function(zero) - function(steps[:, None] * down)
    fits = {depth: fit_slope(steps, gain) for depth, gain in gains.items()}
    for depth in (3, 4):
        says = run.states(
            ["B-36", "L-152"],
            rf"L={depth}: \text{{ some step of size }} t \text{{ from the origin gains }} \propto t^{{{depth}}}",
        )
        says.slope(fits[depth], depth, 0.02, against=(depth - 1, depth + 1))
        says.fails("L = 2", fits[2])
    best = balanced_layers(deep_linear_optimum(moments, three).map, three)
    # two other minima: signs changed, and one layer scaled against the next
    others = [-best[0], -best[1], best[2]], [1.5 * best[0], best[1] / 1.5, best[2]]
    ends = [float(moments.risk(product_of(best)) + moments.risk(product_of(other))) / 2 for other in others]
    middles = [
        float(moments.risk(product_of([(a + b) / 2 for a, b in zip(best, other, strict=True)]))) for other in others
    ]
    line = least_squares_map(moments)
    other = line + run.randn(*line.shape)
    says = run.states(
        "L-152", r"R \text{ is not convex: } R(\tfrac{W+W'}2)>\tfrac12(R(W)+R(W')) \text{ for two minima}"
    )
    says.above(middles, ends)
    says.fails(
        "no hidden layer",
        moments.risk((line + other) / 2),
        promised=float(moments.risk(line) + moments.risk(other)) / 2,
    )
    at_best = critical_point(deep_linear_function(three, moments), flat_layers(best))
    run.states("L-152", r"R \text{ is not concave: } \lambda_{\max}(\nabla^2R)>0 \text{ at a minimum}").above(
        at_best.eigenvalues[-1] - ROUNDING, 0
    )
    net = nn.Sequential(*(dense(0 * layer) for layer in best))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for i in torch.randint(len(x), (100,), generator=run.generator).tolist():
        optimizer.zero_grad()
        (net(x[i]) - y[i]).square().sum().backward()
        optimizer.step()
    with torch.no_grad():
        after = (net(x) - y).square().sum(1).mean()
    run.refutes(
        "deep-linear-escape-needs-strictness", r"\text{stochastic gradient descent ends at the global minimum}"
    ).equal(
        after,
        deep_linear_optimum(moments, three).value,
        1e-2,
        where="two hidden layers, started at 0: the gradient of every example is 0, and so is the Hessian",
    )


def certified(run: Run, samples: int, starts: int, steps: int) -> None:
    """Which theorem covers which network, and where descent ends."""
    kinds = {
        "regular": regression(run, samples, 4, torch.tensor([4.0, 2.0, 1.0]).double()),
        "repeated": regression(run, samples, 4, torch.tensor([3.0, 3.0, 1.0]).double()),
        "singular Σxx": regression(run, samples, 4, torch.tensor([4.0, 2.0, 1.0]).double(), rank=3),
    }
    rows, gaps, at_zero, uncovered = [], [], [], {}
    for kind, (x, y, _) in kinds.items():
        moments = Covariances.from_samples(x, y)
        for widths in ((4, 2, 3), (4, 3, 3, 3), (4, 2, 2, 3)):
            theorems = [t.name for t in linear_landscape_certificate(widths, moments) if t.applies]
            uncovered[kind, widths] = len(theorems)
            best = deep_linear_optimum(moments, widths).value
            size = sum(a * b for a, b in pairwise(widths))
            start = torch.cat([0.6 * run.randn(starts, size), torch.zeros(1, size).double()])
            theta = settled(widths, moments, start, 0.05, steps)
            ends = deep_linear_function(widths, moments)(theta)
            if theorems:
                gaps.append(ends[:-1] - best)
                at_zero.append(ends[-1:] - best)
            worst = float(ends[:-1].max()) - best
            rows.append((kind, str(widths), ", ".join(theorems) or "none", worst))
    says = run.states(
        ["B-38", "B-36", "B-35"], r"\text{descent ends at the optimum wherever a theorem excludes bad minima}"
    )
    says.equal(
        torch.cat(gaps), within=1e-6, where="gradient descent from random starts; gap to the reduced-rank optimum"
    )
    says.fails("started at 0, a saddle", torch.cat(at_zero))
    says = run.states("B-38", r"\text{two narrow hidden layers with singular } \Sigma_{xx}: \text{ no theorem applies}")
    says.equal(uncovered["singular Σxx", (4, 2, 2, 3)])
    says.fails("hidden layers as wide as the output", uncovered["singular Σxx", (4, 3, 3, 3)])
    run.table(
        "certificates",
        ["data", "widths", "theorems that apply", "worst end above the optimum"],
        rows,
    )


def plot_reports(axis: Any, reports: list[tuple[str, SaddleReport]]) -> None:
    colors = {
        "global minimum": COLORS[2],
        "strict saddle": COLORS[0],
        "degenerate saddle": COLORS[1],
    }
    seen = set()
    names: dict[tuple[float, float], str] = {}
    for name, report in reports:
        label = None if report.label in seen else report.label
        seen.add(report.label)
        at = (report.value, report.smallest_eigenvalue)
        axis.plot(*at, "o", color=colors.get(report.label, "black"), label=label, markersize=5)
        place = round(at[0], 6), round(at[1], 6)
        names[place] = f"{names[place]} and {name}" if place in names else name
    for place, name in names.items():
        last = place[0] > 0.97 * max(report.value for _, report in reports)
        axis.annotate(
            name, place, xytext=(2, -11) if last else (4, 3), textcoords="offset points",
            ha="right" if last else "left", fontsize=7,
        )  # fmt: skip
    axis.axhline(0, color="0.6", linewidth=0.8)
    axis.margins(y=0.12)
    axis.set(xlabel="risk", ylabel="least eigenvalue of the Hessian")
    axis.legend(loc="lower left")
