"""Flatness of a minimum: how it is measured, and that it is no property of the function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.generalization.complexity.norm_bounds import frobenius_norms
from torchtheory.generalization.flatness.parameter_robustness import robust_parameter_ball
from torchtheory.generalization.flatness.rescaling import (
    balanced,
    block_hessian,
    rescalable_pairs,
    rescale_pair,
    rescaled,
    sharpening_factor,
)
from torchtheory.generalization.flatness.sharpness import (
    HessianSharpness,
    ball_sharpness,
    hessian_sharpness,
    noise_sharpness,
    relative_hessian,
)
from torchtheory.kernels.paths.path_kernel import path_norms
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.linalg.eigenvalues import top_eigenpairs
from torchtheory.models.model import flatten, unflatten
from torchtheory.models.problem import Problem
from torchtheory.nets.symmetries import with_parameters
from torchtheory.neurons.regression import least_squares
from torchtheory.training.loop.trainer import fit

FACTORS = (0.1, 1.0, 10.0, 100.0)
RADIUS, SIGMA = 0.05, 0.02


@lab(
    "flatness-and-rescaling",
    room="generalization",
    covers=["A-68", "A-69", "B-05", "B-06"],
    title="A flat minimum becomes as sharp as one likes while the function stays the same",
    errata=["robust-parameters-strict-margin", "no-error-is-not-separable"],
    full={"hidden": 64, "epochs": 2000},
    least={"samples": 10, "hidden": 2, "epochs": 1, "target": 1000},
    most={"target": 1000000000000.0},
)
def flatness_and_rescaling(
    run: Run, samples: int = 40, hidden: int = 6, epochs: int = 150, target: float = 1e6
) -> None:
    """The worst rise of the loss in a ball, its mean rise under noise, and the Hessian.

    First the measures against what they must be: on a quadratic loss and against a dense Hessian.
    Then a trained ReLU network whose first layer is multiplied by a and whose second is divided by
    it: outputs, risks and path norm stay, the Hessian's blocks scale by a² and 1/a², and the
    largest eigenvalue passes any target. Measures relative to each parameter's size stay as well.
    Last the linear classifier, where robustness of the parameters does bound the margin. Look at
    the valley that narrows in the figure while the generalization gap does not move.

    Args:
        samples: that the network is trained on.
        hidden: units of the network.
        epochs: of its training.
        target: sharpness that rescaling is to reach.
    """
    quadratic_loss(run)
    dense_hessian(run)
    case = trained(run, samples, hidden, epochs)
    same_function(run, case)
    blocks(run, case)
    as_sharp_as_wanted(run, case, target)
    measured_table(run, case, invariant_measures(run, case))
    linear_margin(run)


def quadratic_loss(run: Run) -> None:
    """Least squares at its minimum: delta² lambda_max / 2, lambda_max, and sigma² tr / 2."""
    x, truth = run.randn(30, 6), run.randn(6)
    y = x @ truth + 0.1 * run.randn(30)
    model = nn.Linear(6, 1, bias=False).double()
    problem = Problem(model, (x, y), task="regression")
    hessian = 2 * x.T @ x / len(x)
    exact = torch.linalg.eigvalsh(hessian)
    best = {"weight": least_squares(x, y).weight[None]}
    away = {"weight": best["weight"] + 1.0}
    found, elsewhere = (
        ball_sharpness(problem, 0.3, parameters=p, steps=200, starts=1, generator=run.generator) for p in (best, away)
    )
    says = run.states(["A-68", "B-05"], r"\max_{\|v\|\le\delta}L(\theta+v)-L(\theta)=\tfrac12\delta^2\lambda_{\max}")
    says.equal(
        found.value,
        0.3**2 * float(exact[-1]) / 2,
        1e-4,
        where="a quadratic loss at its minimum, where the ascent is the power method",
    )
    says.fails("not at a minimum: the gradient is not zero", elsewhere.value)
    curvature = hessian_sharpness(problem, count=3, generator=run.generator)
    run.states(["A-68", "B-05"], r"\lambda_{\max}(\nabla^2L)=\lambda_{\max}(\tfrac2nX^\top X)").equal(
        curvature.eigenvalues.values,
        exact.flip(0)[:3],
        1e-8,
        where="the three largest, by Lanczos from Hessian products alone",
    )
    noisy = noise_sharpness(problem, 0.3, parameters=best, draws=80, confidence=0.999, generator=run.generator)
    promised = 0.3**2 * float(exact.sum()) / 2
    run.states("A-68", r"\mathbb E\,L(\theta+\sigma z)-L(\theta)=\tfrac12\sigma^2\operatorname{tr}\nabla^2L").mean(
        noisy,
        promised,
        against=(2 * promised, promised / 0.3),  # without the one half; σ for σ²
    )


def dense_hessian(run: Run) -> None:
    """Lanczos and Hutch++ on a small network against the Hessian written out."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    theta = draw(run, net)
    problem = Problem(net, (run.randn(50, 3), torch.arange(50) % 3))
    like = problem.parameters

    def loss(vector: Tensor) -> Tensor:
        return problem.objective(problem.train)(unflatten(vector, like))

    exact = torch.func.hessian(loss)(flatten(theta))
    found = hessian_sharpness(problem, count=4, generator=run.generator)
    run.states(
        "A-68",
        r"\lambda_1\ge\dots\ge\lambda_4,\ \operatorname{tr}\text{ from products}=\text{those of the dense }\nabla^2L",
    ).equal(
        [*found.eigenvalues.values.tolist(), found.trace.value],
        torch.cat([torch.linalg.eigvalsh(exact).flip(0)[:4], exact.trace()[None]]),
        1e-8,
        where="tanh network with cross-entropy, 31 parameters, where the trace is exact",
    )


@dataclass(frozen=True, slots=True)
class Case:
    """A trained network with its training problem and its test data."""

    net: nn.Sequential
    problem: Problem
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    def at(self, factor: float) -> nn.Module:
        return rescaled(self.net, factor)

    def gap(self, net: nn.Module) -> float:
        """Test minus training risk."""
        problem = Problem(net, self.train, self.test, task="regression")
        assert problem.test is not None
        return problem.risk(problem.test) - problem.risk(problem.train)


def trained(run: Run, samples: int, hidden: int, epochs: int) -> Case:
    """A ReLU network without biases in the path norm's way, fitted to a noisy target."""
    net = nn.Sequential(
        nn.Linear(2, hidden, bias=False),
        nn.ReLU(),
        nn.Linear(hidden, hidden, bias=False),
        nn.ReLU(),
        nn.Linear(hidden, 1, bias=False),
    ).double()
    draw(run, net)
    x, other = run.randn(samples, 2), run.randn(500, 2)

    def target(z: Tensor) -> Tensor:
        return (z[:, :1] - z[:, 1:]).abs()

    train = (x, target(x) + 0.1 * run.randn(samples, 1))
    fit(net, train, epochs=epochs, batch_size=samples, learning_rate=0.02)
    problem = Problem(net, train, task="regression")
    return Case(net, problem, train, (other, target(other)))


def same_function(run: Run, case: Case) -> None:
    """Outputs, risks, path norm and product of Frobenius norms for every factor."""
    x = case.test[0]
    nets = [case.at(a) for a in FACTORS]
    tanh = nn.Sequential(*(nn.Tanh() if isinstance(m, nn.ReLU) else m for m in case.net))  # the same weights
    pair = rescalable_pairs(case.net)[0]
    theta = theta_of(tanh)
    squashed = [with_parameters(tanh, rescale_pair(theta, pair, a)) for a in FACTORS]
    says = run.states("B-06", r"f_{(aW_1,W_2/a,\dots)}(x)=f_{(W_1,W_2,\dots)}(x)")
    says.at_most(
        [relative_change(case.net, n, x) for n in nets],
        0.0,
        1e-10,
        where="largest relative change of the outputs on 500 points, a from 0.1 to 100",
    )
    says.fails("tanh, which is not positively homogeneous", [relative_change(tanh, n, x) for n in squashed])
    gaps = [case.gap(n) for n in nets]
    run.states("B-06", r"R-R_S\text{ does not depend on }a").equal(gaps, case.gap(case.net), 1e-10)
    names = [n for n, _ in case.net.named_parameters()]
    both = with_parameters(case.net, {n: p * (10.0 if n in names[:2] else 1.0) for n, p in theta_of(case.net).items()})
    says = run.states(
        "B-06", r"\|\bar w(aW_1,W_2/a)\|=\|\bar w(W_1,W_2)\|,\ \textstyle\prod_\ell\|W_\ell\|_F\text{ likewise}"
    )
    says.equal(
        [*map(path_norm, nets), *map(product, nets)],
        [*([path_norm(case.net)] * len(nets)), *([product(case.net)] * len(nets))],
        1e-10,
        where="path norm and product of Frobenius norms",
    )
    says.fails(
        "both layers multiplied by 10",
        [path_norm(both), product(both)],
        promised=[path_norm(case.net), product(case.net)],
    )
    says = run.states("B-06", r"\textstyle\sum_\ell\|W_\ell\|_F^2\text{ is not invariant: larger after }a=100")
    says.above(squares(case.at(100.0)) - squares(case.net), 0.0)
    says.fails("a = 1: nothing was rescaled", squares(case.at(1.0)) - squares(case.net))


def blocks(run: Run, case: Case) -> None:
    """The Hessian's blocks of the two layers scale by 1/a² and a²."""
    pair = rescalable_pairs(case.net)[0]

    def traces(net: nn.Module) -> list[float]:
        problem = Problem(net, case.train, task="regression")
        return [
            float(block_hessian(problem, f"{name}.weight").to_dense().trace())
            for name in (pair.incoming, pair.outgoing)
        ]

    before = traces(case.net)
    run.assumes(min(before) > 0, "no hidden unit is active on the data, so both blocks of the Hessian are 0")
    after = [traces(case.at(a)) for a in FACTORS]
    ratios = [[now / then for now, then in zip(row, before, strict=True)] for row in after]
    tanh = nn.Sequential(*(nn.Tanh() if isinstance(m, nn.ReLU) else m for m in case.net))
    moved = with_parameters(tanh, rescale_pair(theta_of(tanh), pair, 10.0))
    broken = [now / then for now, then in zip(traces(moved), traces(tanh), strict=True)]
    says = run.states(
        "B-06",
        r"\operatorname{tr}\nabla^2_{W_1}L,\ \operatorname{tr}\nabla^2_{W_2}L"
        r"\ \mapsto\ a^{-2},\ a^2\text{ times themselves}",
    )
    says.equal(
        [r for a, (one, two) in zip(FACTORS, ratios, strict=True) for r in (one * a**2, two / a**2)],
        torch.ones(2 * len(FACTORS)),
        1e-8,
        where="ratios of exact traces, divided by what they should be",
    )
    says.fails("tanh instead of ReLU, a = 10", [broken[0] * 100, broken[1] / 100], promised=[1.0, 1.0])


def as_sharp_as_wanted(run: Run, case: Case, target: float) -> None:
    """A factor for any largest eigenvalue."""
    factor = sharpening_factor(case.problem, target, generator=run.generator)
    sharp = case.at(factor)
    top = top_eigenvalue(Problem(sharp, case.train, task="regression"))
    own = top_eigenvalue(case.problem)
    says = run.states(
        ["B-06", "B-05"],
        r"\lambda_{\max}(\nabla^2L)\ge\text{target at }a=\sqrt{n\,\text{target}/\operatorname{tr}\nabla^2_{W_2}L}",
    )
    # one unit, one output: the block is a number, and its trace is its eigenvalue
    one = nn.Sequential(nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 1)).double()
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.fill_(1.0)
    x = run.rand(20, 2)
    data = (x, one(x).detach() + 0.1 * run.randn(20, 1))
    problem = Problem(one, data, task="regression")
    needed = sharpening_factor(problem, target, generator=run.generator)
    sharpest = with_parameters(one, rescale_pair(theta_of(one), rescalable_pairs(one)[0], needed))
    says.at_least(
        [top, top_eigenvalue(Problem(sharpest, data, task="regression"))],
        target,
        where=f"a = {factor:.4g}; and a network of one unit, a = {needed:.4g}",
    )
    says.fails("the networks as they were, a = 1", [own, top_eigenvalue(problem)])
    run.states(["B-06", "B-05"], r"\text{and still }R-R_S\text{ is the same}").equal(
        case.gap(sharp), case.gap(case.net), 1e-10
    )


def invariant_measures(run: Run, case: Case) -> list[tuple[HessianSharpness, float]]:
    """Relative to each parameter's size, or at the balanced point, flatness is invariant.

    Returns the curvature and the relative eigenvalue for every factor.
    """
    curvatures, relative, middle = [], [], []
    for a in FACTORS:
        problem = Problem(case.at(a), case.train, task="regression")
        curvatures.append(hessian_sharpness(problem, trace_samples=30, generator=0))
        relative.append(top_eigenvalue(problem, True))
        even = Problem(balanced(case.at(a)), case.train, task="regression")
        middle.append(top_eigenvalue(even))
    plain = [c.largest for c in curvatures]
    says = run.states(
        "A-68",
        r"\lambda_{\max}(D\nabla^2L\,D),\ D=\operatorname{diag}|\theta|,\text{ and }"
        r"\lambda_{\max}\text{ at the balanced point do not depend on }a",
    )
    says.equal([*relative, *middle], [*([relative[1]] * len(FACTORS)), *([middle[1]] * len(FACTORS))], 1e-6)
    says.fails("the Hessian itself, in the parameters as they are", plain, promised=plain[1])
    return list(zip(curvatures, relative, strict=True))


def measured_table(run: Run, case: Case, curvatures: Sequence[tuple[HessianSharpness, float]]) -> None:
    """Every measure for every factor, and the valley seen along its steepest direction."""
    rows, curves = [], []
    grid = torch.linspace(-1, 1, 25, dtype=torch.float64)
    for a, (curvature, relative) in zip(FACTORS, curvatures, strict=True):
        net = case.at(a)
        problem = Problem(net, case.train, task="regression")
        ball = ball_sharpness(problem, RADIUS, starts=1, steps=8, generator=0)
        noise = noise_sharpness(problem, SIGMA, draws=10, generator=0)
        rows.append(
            (a, case.gap(net), ball.value, noise.estimate, curvature.largest,
             curvature.trace.value, relative, path_norm(net), squares(net))
        )  # fmt: skip
        direction = curvature.eigenvalues.vectors[:, 0] * RADIUS
        theta = flatten(problem.parameters)
        curves.append(
            [problem.at(unflatten(theta + t * direction, problem.parameters)).risk(problem.train) for t in grid]
        )
    run.table(
        "rescaled-networks",
        ("a", "gap", f"worst rise, |v| ≤ {RADIUS}", f"mean rise, σ = {SIGMA}", "largest eigenvalue",
         "trace", "relative eigenvalue", "path norm", "Σ|W|²"),
        rows,
        caption="One function, four parametrizations. The worst rise is what ascent found, a lower "
        "bound of the maximum.",
    )  # fmt: skip
    run.figure(
        "one-function-many-valleys",
        lambda axes: plot(axes, grid, curves, rows),
        caption="Left, the training loss along the Hessian's top eigenvector for the same function "
        "with its first layer times a. Right, what depends on a and what does not.",
        grid=(1, 2),
        size=(10.0, 3.8),
    )


def linear_margin(run: Run) -> None:
    """Robustness of a linear classifier's parameters against its margin."""
    theta = run.randn(5)
    x = run.randn(60, 5)
    x = x[(x @ theta).abs() > 0.2]
    y = (x @ theta).sign()
    found = robust_parameter_ball(theta, x, y)

    def errors(scale: float) -> float:
        """Risk after the worst move of length `scale` times the radius for every sample."""
        moves = -scale * found.radius * y[:, None] * x / x.norm(dim=1, keepdim=True)
        return float((((theta + moves) * x).sum(1) * y < -1e-12).double().mean())

    says = run.states(
        "A-69", r"\max\{\delta:r(\theta+v)=0\ \forall\|v\|\le\delta\}=\min_iy_i\langle\theta,x_i\rangle/\|x_i\|"
    )
    says.equal(errors(1.0), where="share of samples whose own worst move v = -δ yx/|x| makes an error")
    says.fails("a radius larger by a thousandth", errors(1.001))
    unit = x / x.norm(dim=1, keepdim=True)
    radii = (y * (unit @ theta)).sort().values
    says = run.states(
        "A-69", r"r(\theta+v)=0\ \forall\|v\|\le\delta\ \Rightarrow\ \gamma(\theta)\ge\delta\min_i\|x_i\|"
    )
    says.at_least(found.margin, found.promised_margin, where="at the largest robust δ")
    says.fails(
        "unit vectors, and δ at which the second-closest sample is only just robust: the closest one is not",
        float(radii[0]),
        promised=float(radii[1]),
    )
    one = torch.ones(1, 1, dtype=torch.float64)
    single = robust_parameter_ball(torch.tensor([0.5]), one, one[0])
    run.refutes("robust-parameters-strict-margin", r"0<\gamma(\hat\theta)-\delta\min_i\|x_i\|").above(
        single.margin - single.radius * 1.0, 0.0, where="d = 1, x = y = 1, θ = δ = 1/2: no error in the closed ball"
    )
    twice = torch.ones(2, 1, dtype=torch.float64)
    wrong = (torch.tensor([1.0, -1.0]) * (twice @ torch.zeros(1).double()) < 0).double().mean()
    run.refutes(
        "no-error-is-not-separable",
        r"\text{data that no }\theta\text{ separates has }r(\theta)>0\text{ for every }\theta",
    ).above(wrong, 0.0, where="one point with both labels, θ = 0")


def top_eigenvalue(problem: Problem, relative: bool = False) -> float:
    return float(top_eigenpairs(relative_hessian(problem, relative=relative)).values[0])


def draw(run: Run, net: nn.Module) -> dict[str, Tensor]:
    """Gaussian weights with variance 2 over the number of inputs, from the run's generator."""
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(run.randn(*p.shape) * (2 / p.shape[-1]) ** 0.5)
    return theta_of(net)


def theta_of(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in net.named_parameters()}


def relative_change(net: nn.Module, other: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        before = net(x)
        return float((other(x) - before).abs().max() / before.abs().max())


def path_norm(net: nn.Module) -> float:
    return float(path_norms(net, (2,))[0])


def product(net: nn.Module) -> float:
    return float(torch.tensor(frobenius_norms(net), dtype=torch.float64).prod())


def squares(net: nn.Module) -> float:
    return float(sum(p.detach().square().sum() for p in net.parameters()))


def plot(axes: Any, grid: Tensor, curves: list[list[float]], rows: Sequence[tuple[float, ...]]) -> None:
    left, right = axes[0]
    for color, a, curve in zip(COLORS, FACTORS, curves, strict=False):
        left.semilogy(grid * RADIUS, curve, color=color, label=f"a = {a:g}")
    left.set(xlabel="distance along the top eigenvector", ylabel="training loss")
    left.legend(loc="upper right")
    names = {
        4: "largest eigenvalue",
        2: "worst rise in the ball",
        6: "relative eigenvalue",
        7: "path norm",
        1: "generalization gap",
    }
    for color, (column, name) in zip(COLORS, names.items(), strict=False):
        dashed = "-" if column in (2, 4) else "--"
        right.loglog(FACTORS, [r[column] for r in rows], dashed, marker="o", color=color,
                     label=name)  # fmt: skip
    right.set(xlabel="factor a of the first layer", ylabel="value")
    right.legend(loc="upper left", fontsize=8)
    for axis in (left, right):
        axis.minorticks_off()
