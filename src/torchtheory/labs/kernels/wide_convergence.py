"""Gradient descent on a wide network converges exponentially, and hardly moves."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.kernels.infinite.wide_convergence import (
    WideDescent,
    gradient_domination,
    last_layer_kernel,
    ratio_certificate,
    ratio_in_ball,
    step_size_limit,
    two_layer_hessian_norms,
    wide_descent,
    wide_network,
)
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.labs.engine import Interval, Run, clopper_pearson, fit_slope, lab
from torchtheory.models.model import PureFunction, flatten, unflatten
from torchtheory.nets.biases import homogeneous
from torchtheory.primer.gaussian_pairs import gaussian_pair_mean
from torchtheory.tracing.layer_features import last_hidden_features

STEEPEST_BEND = 4 / (3 * math.sqrt(3))
r"""$\sup|\tanh''|$, attained where $\tanh^2=\frac13$."""


@lab(
    "wide-network-convergence",
    room="kernels",
    covers=["A-122", "A-123", "A-124", "A-125"],
    title="A wide network is trained exponentially fast without leaving its neighborhood",
    errata=[
        "initialization-shrinks-with-width",
        "eigenvalue-moves-by-a-constant",
        "iterates-stay-longer-than-they-do",
    ],
    full={"widths": (256, 1024, 4096, 16384), "draws": 50, "trials": 20_000, "steps": 150},
    least={"samples": 2, "draws": 4, "dimension": 3, "widths": 2, "trials": 50, "steps": 3},
    items={"widths": 3},
)
def wide_network_convergence(
    run: Run,
    samples: int = 6,
    dimension: int = 4,
    widths: tuple[int, ...] = (256, 1024, 4096),
    draws: int = 20,
    trials: int = 2000,
    steps: int = 60,
) -> None:
    """A tanh network with one hidden layer of n units is trained on m samples, all layers.

    The gradient with respect to the last layer alone already bounds the risk from above through
    the kernel of the last layer, whose smallest eigenvalue grows like n. The Hessian of the network
    stays bounded, so the inequality survives in a ball of radius 1, and gradient descent
    converges geometrically before it has moved by √(m/n). Each step is measured. Look at the
    measured risk below the predicted line, at the distance that shrinks with the width, and at
    what happens under the initialization that the source prints.

    Args:
        samples: that are trained on.
        dimension: of the inputs.
        widths: of the hidden layer, three or more.
        draws: networks of each width.
        trials: draws by which dependent features are counted.
        steps: of gradient descent.
    """
    run.assumes(
        min(widths) >= 8 * samples,
        f"{min(widths)} units are not many for {samples} samples (take 8 for each): the smallest eigenvalue of "
        "the last layer's kernel does not grow with the width yet",
    )
    x, y = run.randn(samples, dimension), run.randn(samples)
    identity(run, x, y)
    nonsingular(run, trials)
    limit, growth = smallest_eigenvalue(run, x, widths, draws)
    domination(run, x, y, widths, limit)
    perturbation(run, x, widths, draws)
    hessian(run, x, widths)
    descents = convergence(run, x, y, widths, steps)
    step_size(run, x, y, widths[1])
    leaving_the_ball(run, x, y)
    run.figure(
        "convergence",
        lambda axes: plot_convergence(axes, widths, descents, growth),
        caption="Risk (solid) and its predicted bound (dotted) for growing widths; the distance "
        "from the start, which shrinks like $n^{-1/2}$; the smallest eigenvalue of the last-layer "
        "kernel for a first layer N(0, I), and for the printed N(0, I/n).",
        grid=(1, 3),
    )


def identity(run: Run, x: Tensor, y: Tensor) -> None:
    """The last layer's share of the gradient."""
    net = wide_network(50, x.shape[1], generator=run.generator)
    bent = nn.Sequential(*net, nn.Tanh())
    kernel = last_layer_kernel(net, x)
    m = len(x)

    def by_autodiff(model: nn.Module) -> float:
        f = PureFunction(model)

        def risk(weight: Tensor) -> Tensor:
            return (f({**f.parameters, "2.weight": weight}, x)[:, 0] - y).square().mean()

        return float(torch.func.grad(risk)(f.parameters["2.weight"]).square().sum())

    with torch.no_grad():
        residual, bent_residual = net(x)[:, 0] - y, bent(x)[:, 0] - y
    says = run.states("A-122", r"\|\nabla_{\theta^{(2)}}r\|^2=\frac4{m^2}e^\top\bar K_\Theta e")
    says.equal(by_autodiff(net), 4 / m**2 * float(residual @ kernel @ residual), 1e-12)
    says.fails(
        "an activation after the last layer",
        by_autodiff(bent),
        promised=4 / m**2 * float(bent_residual @ kernel @ bent_residual),
    )
    says = run.states("A-122", r"\bar K_\Theta=\sum_kv_kv_k^\top \text{ is the tangent kernel of the last layer}")
    says.equal(kernel, empirical_ntk(net, x, outputs="trace", only=["2.weight"]), 1e-12)
    says.fails("of all layers", empirical_ntk(net, x, outputs="trace"))


def nonsingular(run: Run, trials: int) -> None:
    """Blocks of m units are independent attempts at independence."""

    def singular(width: int, points: list[float]) -> Interval:
        """How often the features of so many units are dependent."""
        w, b = run.randn(trials, width, 1), run.randn(trials, width, 1)
        features = torch.relu(w * torch.tensor(points, dtype=torch.float64) + b)
        dependent = torch.linalg.matrix_rank(features) < len(points)
        return clopper_pearson(int(dependent.sum()), trials, 0.999)

    # a single sample has regular features as soon as one unit is active: there the bound is exact
    samples = ([0.7], [-1.0, 0.0, 1.0])
    ones = [singular(len(points), points) for points in samples]
    for blocks in (2, 4):
        found = [singular(blocks * len(points), points) for points in samples]
        says = run.states(
            "A-122",
            r"P(\bar K_\Theta \text{ singular})\le(1-\delta)^{\lfloor n/m\rfloor},\ "
            r"1-\delta \text{ its probability at } n=m",
        )
        says.at_most(
            [each.low for each in found],
            [one.high**blocks for one in ones],
            where=f"ReLU, m = 1 and 3, n = {blocks}m; both probabilities at the ends of their intervals, "
            "Clopper-Pearson at 99.9%, that are in favor of the bound",
        )
        says.fails("two equal samples", singular(blocks * 3, [-1.0, 0.5, 0.5]).low, promised=ones[1].high ** blocks)


def expected_features(x: Tensor) -> Tensor:
    r"""$\mathbb E\,vv^\top$ for tanh units with standard normal weights and bias."""
    inner = homogeneous(x) @ homogeneous(x).T
    squares = inner.diagonal()
    return gaussian_pair_mean(
        torch.tanh, torch.tanh, squares[:, None].expand_as(inner), squares.expand_as(inner), inner
    )


Growth = dict[str, list[float]]


def smallest_eigenvalue(run: Run, x: Tensor, widths: tuple[int, ...], draws: int) -> tuple[float, Growth]:
    """It grows like n if the first layer's law does not depend on n, and falls if it does."""
    expected = expected_features(x)
    limit = float(torch.linalg.eigvalsh(expected)[0])
    growth: Growth = {"right": [], "printed": [], "gap": []}
    for n in widths:
        right, printed, gap = [], [], []
        for _ in range(draws):
            kernel = last_layer_kernel(wide_network(n, x.shape[1], generator=run.generator), x)
            right.append(float(torch.linalg.eigvalsh(kernel)[0]))
            gap.append(float(torch.linalg.matrix_norm(kernel / n - expected, 2)))
            shrunk = wide_network(n, x.shape[1], first_deviation=n**-0.5, generator=run.generator)
            printed.append(float(torch.linalg.eigvalsh(last_layer_kernel(shrunk, x))[0]))
        for name, values in (("right", right), ("printed", printed), ("gap", gap)):
            growth[name] += values
    every = repeated(widths, draws)
    slopes = {name: fit_slope(every, growth[name], 0.999) for name in ("printed", "gap")}
    run.states(
        "A-122",
        r"\|\tfrac1n\bar K_\Theta-\mathbb E[vv^\top]\|\sim n^{-1/2} \text{ for } \Theta^{(1)}_j\sim\mathcal N(0,I)",
    ).slope(slopes["gap"], -0.5, against=(-1.0, -0.25, 0.0))
    growth = {name: means(values, draws) for name, values in growth.items()}
    shares = [value / n for value, n in zip(growth["right"], widths, strict=True)]
    says = run.states(
        "A-122",
        r"\tfrac1n\lambda_{\min}(\bar K_\Theta)\to\lambda_{\min}(\mathbb E[vv^\top])>0: "
        r"\text{ at least } 0.8 \text{ of it}",
    )
    says.at_least(shares[-1], 0.8 * limit, where=f"mean of {draws} draws at n = {widths[-1]}; the limit is {limit:.4g}")
    says.fails("the first layer N(0, I/n)", growth["printed"][-1] / widths[-1])
    run.refutes(
        "initialization-shrinks-with-width",
        r"\Theta_j^{(1)}\sim\mathcal N(0,1/n)^{d+1}:\ \lambda_{\min}(\bar K_\Theta)\sim n",
    ).slope(slopes["printed"], 1.0, where=f"{len(x)} samples of dimension {x.shape[1]}; the fitted exponent of n")
    run.table(
        "smallest-eigenvalue",
        ["n", "N(0, I): λmin/n", "its limit", "N(0, I/n), as printed: λmin"],
        [(n, share, limit, printed) for n, share, printed in zip(widths, shares, growth["printed"], strict=True)],
        caption=f"Smallest eigenvalue of the last-layer kernel, mean of {draws} networks",
    )
    return limit, growth


def repeated(widths: tuple[int, ...], draws: int) -> list[int]:
    """Every width as often as networks of it were drawn."""
    return [n for n in widths for _ in range(draws)]


def means(values: list[float], draws: int) -> list[float]:
    """The means of consecutive groups."""
    return torch.tensor(values, dtype=torch.float64).view(-1, draws).mean(1).tolist()


def domination(run: Run, x: Tensor, y: Tensor, widths: tuple[int, ...], limit: float) -> None:
    """At the parameters, and in the unit ball around them."""
    m, d = x.shape
    found, first_only = [], []
    for n in widths:
        net = wide_network(n, d, generator=run.generator)
        there = gradient_domination(net, x, y)
        found += [there, gradient_domination(net, x, hardest_labels(net, x))]
        first_only.append(there.squared_gradient - there.last_layer_part)
    says = run.states("A-123", r"\|\nabla r(\Theta)\|^2\ge\frac4m\lambda_{\min}(\bar K_\Theta)\,r(\Theta)")
    says.at_least(
        [f.squared_gradient for f in found],
        [f.constant * f.risk for f in found],
        where="random labels, and those whose error is an eigenvector of the smallest eigenvalue",
    )
    says.fails("the last layer is not trained", first_only, promised=[f.constant * f.risk for f in found[::2]])
    rows = []
    for n in widths:
        net = wide_network(n, d, generator=run.generator)
        ball = ratio_in_ball(net, x, y, samples=8, steps=12, generator=run.generator)
        rows.append(
            (n, ball.center * m / n, ball.sampled * m / n, ball.searched * m / n,
             ratio_certificate(net, x) * m / n)
        )  # fmt: skip
    n = widths[-1]
    shrunk = wide_network(n, d, first_deviation=n**-0.5, generator=run.generator)
    broken = ratio_in_ball(shrunk, x, y, samples=8, steps=12, generator=run.generator)
    says = run.states(
        "A-123", r"\inf_{B_1(\Theta)}\|\nabla r\|^2/r\ge c\,\tfrac nm,\quad c=2\lambda_{\min}(\mathbb E[vv^\top])"
    )
    says.at_least(
        [min(row[1:4]) for row in rows],
        2 * limit,
        where="the smallest ratio times m/n met by sampling and by descending on it, at every n",
    )
    says.fails("the first layer N(0, I/n)", broken.smallest * m / n)
    says = run.states(
        "A-123",
        r"\inf_{B_1(\Theta)}\|\nabla r\|^2/r\ge\frac4m\bigl(\sqrt{\lambda_{\min}}-"
        r"\|\tilde X\|_F\bigr)_+^2:\ \text{smallest ratio found over the certificate, times } m/n",
    )
    says.at_least(
        [row[3] for row in rows],
        [row[4] for row in rows],
        where="the certificate is for all points of the ball and any labels",
    )
    says.fails(
        "outside the ball: the first layer is 0",
        gradient_domination(without_first_layer(net), x, y).ratio * m / n,
        promised=max(row[4] for row in rows),
    )
    run.table(
        "ratio",
        ["n", "at the center", "sampled", "searched", "certified", "2 λmin(E vvᵀ)"],
        [(*row, 2 * limit) for row in rows],
        caption="Smallest |∇r|²/r · m/n in the ball of radius 1 around a random network",
    )


def hardest_labels(net: nn.Module, x: Tensor) -> Tensor:
    """Labels whose error, at the start, is along the smallest eigenvector of the last-layer kernel."""
    with torch.no_grad():
        labels: Tensor = net(x)[:, 0] + torch.linalg.eigh(last_layer_kernel(net, x)).eigenvectors[:, 0]
    return labels


def without_first_layer(net: nn.Sequential) -> nn.Sequential:
    """A copy whose hidden units ignore their input."""
    changed = copy.deepcopy(net)
    with torch.no_grad():
        for value in changed[0].parameters():
            value.zero_()
    return changed


def perturbation(run: Run, x: Tensor, widths: tuple[int, ...], draws: int) -> None:
    """A step of length 1 lowers the eigenvalue by the order of its root."""

    def pulled(n: int, points: Tensor) -> tuple[float, float]:
        """The smallest singular value of the features before and after a step against it."""
        net = wide_network(n, points.shape[1], generator=run.generator)
        features = last_hidden_features(net, points)
        u, s, v = torch.linalg.svd(features, full_matrices=False)
        pull = v[-1][:, None] * (((1 - features.square()) * u[:, -1:]).T @ homogeneous(points))
        pull = pull / pull.norm()
        with torch.no_grad():
            first = net[0]
            assert isinstance(first, nn.Linear)
            first.weight.sub_(pull[:, :-1])
            first.bias.sub_(pull[:, -1])
        return float(s[-1]), float(torch.linalg.svdvals(last_hidden_features(net, points))[-1])

    ends = [pulled(n, x) for n in repeated(widths, draws)]
    drops = [before**2 - after**2 for before, after in ends]
    # a single sample at 0 has one singular value, and units whose slopes are not small
    single = [pulled(n, torch.zeros_like(x[:1])) for n in widths]
    bounds = [(before - after) / float(homogeneous(x).norm()) for before, after in ends]
    bounds += [before - after for before, after in single]
    run.states(
        "A-123",
        r"\bigl|\sqrt{\lambda_{\min}(\bar K_{\Theta+\bar\theta})}-\sqrt{\lambda_{\min}(\bar "
        r"K_\Theta)}\bigr|\le\|\tilde X\|_F \text{ for } \|\bar\theta\|\le1: \text{ ratio of the two}",
    ).at_most(bounds, 1.0, where="steps of length 1 against the smallest singular vectors; and for one sample at 0")
    run.refutes(
        "eigenvalue-moves-by-a-constant",
        r"\lambda_{\min}(\bar K_{\Theta+\bar\theta})=\lambda_{\min}(\bar K_\Theta)+O(1) "
        r"\text{ for } \|\bar\theta\|\le1",
    ).slope(
        repeated(widths, draws),
        drops,
        0.0,
        where="the fitted exponent of n in the drop; it is 1/2, and λmin itself has exponent 1",
    )


def hessian(run: Run, x: Tensor, widths: tuple[int, ...]) -> None:
    """Closed form, zero blocks, bounded in the width, and what it does to the gradient."""
    d = x.shape[1]
    small = wide_network(7, d, generator=run.generator)
    f = PureFunction(small)
    point = flatten(f.parameters)

    def at(z: Tensor) -> Tensor:
        hessian: Tensor = torch.func.hessian(lambda theta: f(unflatten(theta, f.parameters), z[None])[0, 0])(point)
        return hessian

    exact = torch.stack([at(z) for z in x])
    last = slice(7 * (d + 1), None)
    says = run.states("A-124", r"\frac{\partial^2\Phi}{\partial\theta_i^{(2)}\partial\theta_j^{(2)}}=0")
    says.equal(exact[:, last, last].abs().max(), within=1e-14)
    says.fails("of the first layer", exact[:, :7, :7].abs().max())
    closed = two_layer_hessian_norms(small, x)
    says = run.states(
        "A-124",
        r"\|\nabla^2\Phi\|=\max_j\tfrac12\bigl(|b_j|+\sqrt{b_j^2+4a_j^2}\bigr),\ "
        r"a_j=\varrho'\|\tilde x\|,\ b_j=\theta_j^{(2)}\varrho''\|\tilde x\|^2",
    )
    says.equal(closed, torch.linalg.matrix_norm(exact, 2), 1e-12)
    says.fails("the lengths of x in place of (x, 1)", closed * x.norm(dim=1) / homogeneous(x).norm(dim=1))
    lengths = homogeneous(x).norm(dim=1)
    many = repeated(widths, 4)
    nets = [wide_network(n, d, generator=run.generator) for n in many]
    unscaled = copy.deepcopy(nets[-1])
    with torch.no_grad():
        for value in unscaled[2].parameters():
            value.mul_(math.sqrt(widths[-1]))
    says = run.states(
        "A-124", r"\|\nabla^2\Phi(x,\Theta)\|\le2\|(x,1)\| \text{ at every width}: \text{ norm}/\|(x,1)\|"
    )
    says.at_most(
        torch.stack([two_layer_hessian_norms(net, x) / lengths for net in nets]).max(),
        2.0,
        where=f"n = {', '.join(map(str, widths))}",
    )
    says.fails("the last layer N(0, 1) in place of N(0, 1/n)", (two_layer_hessian_norms(unscaled, x) / lengths).max())
    gradients = [float(empirical_ntk(net, x, outputs="trace").diagonal().mean()) for net in nets]
    run.states("A-124", r"\|\nabla\Phi\|^2\sim n").slope(
        many, gradients, 1.0, against=(0.0, 0.5, 2.0), confidence=0.999
    )
    lipschitz(run, x[0], nets[-1])


def lipschitz(run: Run, x: Tensor, net: nn.Sequential) -> None:
    """The gradient moves no further than the Hessian allows."""

    def moved(model: nn.Module, offset: Tensor) -> float:
        f = PureFunction(model)
        slope = torch.func.grad(lambda t: f(unflatten(t, f.parameters), x[None])[0, 0])
        point = flatten(f.parameters)
        return float((slope(point + offset) - slope(point)).norm())

    def constant(size: float) -> float:
        length = float(homogeneous(x[None]).norm())
        head = net[2]
        assert isinstance(head, nn.Linear)
        outputs = float(head.weight.detach().abs().max()) + size
        bend = STEEPEST_BEND * outputs * length**2
        return (bend + math.sqrt(bend**2 + 4 * length**2)) / 2

    count = sum(p.numel() for p in net.parameters())
    promised, measured = [], []
    for direction in (run.randn(count), most_curved(net, x, run.randn(count))):
        for size in (1e-4, 1e-2, 1.0):
            promised.append(constant(size))
            measured.append(moved(net, size * direction / direction.norm()) / size)
    says = run.states(
        "A-124",
        r"\|\nabla\Phi(\Theta)-\nabla\Phi(\Theta+v)\|\le\sup\|\nabla^2\Phi\|\cdot\|v\|: \text{ divided by } \|v\|",
    )
    says.at_most(
        measured,
        promised,
        where="a random direction and the most curved one; the supremum is over the ball, from sup|tanh''|",
    )
    says.fails("an activation with a kink, at a unit that crosses it", kink_jump(x), promised=promised[0])


def most_curved(net: nn.Module, x: Tensor, direction: Tensor, steps: int = 20) -> Tensor:
    """The direction in which the gradient moves fastest, by power iterations with the Hessian."""
    f = PureFunction(net)
    slope = torch.func.grad(lambda t: f(unflatten(t, f.parameters), x[None])[0, 0])
    point = flatten(f.parameters)
    for _ in range(steps):
        direction = torch.func.jvp(slope, (point,), (direction / direction.norm(),))[1]
    return direction


def kink_jump(x: Tensor, size: float = 1e-4) -> float:
    """How much the gradient of one ReLU unit moves, over the length of the step across its kink."""
    unit = nn.Sequential(nn.Linear(len(x), 1), nn.ReLU(), nn.Linear(1, 1, bias=False)).double()
    with torch.no_grad():
        for value in unit.parameters():
            value.fill_(1.0)
        first = unit[0]
        assert isinstance(first, nn.Linear)
        first.bias.fill_(-float(x.sum()) - size / 2)  # just off
    f = PureFunction(unit)
    slope = torch.func.grad(lambda t: f(unflatten(t, f.parameters), x[None])[0, 0])
    point = flatten(f.parameters)
    step = torch.zeros_like(point)
    step[len(x)] = size  # the bias: just on
    return float((slope(point + step) - slope(point)).norm()) / size


def convergence(run: Run, x: Tensor, y: Tensor, widths: tuple[int, ...], steps: int) -> list[WideDescent]:
    """Measured against predicted, and the distance traveled."""
    d = x.shape[1]
    descents, distances = [], []
    for n in repeated(widths, 2):
        net = wide_network(n, d, generator=run.generator)
        with torch.no_grad():
            start = net(x)[:, 0]
        # residuals of one size at every width, so that distances compare
        eta = step_size_limit(net, x) / 2
        descents.append(wide_descent(net, x, start + y, step=eta, steps=steps))
        distances.append(float(descents[-1].distances[-1]))
    # the largest width again, with labels of the size that a narrow layer cannot bear
    loud = wide_descent(net, x, start + 10 * y, step=eta, steps=steps).distances
    net = wide_network(widths[0], d, generator=run.generator)
    eta = 1.5 * step_size_limit(net, x)
    wild = wide_descent(net, x, y, step=eta, steps=steps)
    says = run.states(
        "A-125", r"r(\Theta^{(k)})\le\bigl(1-\eta\,\tfrac4m\lambda_{\min}(1-\eta/\eta_{\max})\bigr)^kr(\Theta^{(0)})"
    )
    says.at_most(
        torch.cat([g.risks for g in descents]),
        torch.cat([g.predicted for g in descents]),
        1e-12,
        where=f"every step, n = {', '.join(map(str, widths))}, η half of its limit",
    )
    says.fails(
        "a step of 1.5 times the limit", torch.nan_to_num(wild.risks, posinf=1e300), promised=descents[0].predicted
    )
    half = steps // 2
    run.assumes(
        all(float(found.risks.min()) > 0 for found in descents),
        f"within {steps} steps a risk on {len(x)} samples is 0 to the last digit, and its logarithm has no slope",
    )
    for n, found in zip(widths, descents[::2], strict=True):
        rate = fit_slope(torch.arange(half, steps + 1), found.risks[half:].log(), log=False)
        run.states(
            "A-125",
            r"\log r \text{ falls by at least } \eta\,\tfrac4m\lambda_{\min}(1-\eta/\eta_{\max}) \text{ a step}",
        ).at_most(
            rate,
            -found.step * found.constant * (1 - found.step / found.limit),
            where=f"n = {n}, slope over the second half of {steps} steps",
        )
    run.states("A-125", r"\|\Theta^{(K)}-\Theta^{(0)}\|\sim\sqrt{m/n}: \text{ exponent of } n").slope(
        repeated(widths, 2), distances, -0.5, against=(-1.0, -0.25, 0.0), confidence=0.999
    )
    says = run.states("A-125", r"\|\Theta^{(k)}-\Theta^{(0)}\|\le1 \text{ for all } k \text{ at the largest width}")
    says.at_most(torch.cat([descents[-1].distances, loud]), 1.0, where="labels of size 1 and of size 10")
    says.fails(
        "eight units in place of a wide layer, labels of size 10",
        wide_descent(
            small := wide_network(8, d, generator=run.generator),
            x,
            10 * y,
            step=step_size_limit(small, x) / 8,
            steps=steps,
        ).distances,
    )
    return descents[::2]


def step_size(run: Run, x: Tensor, y: Tensor, width: int) -> None:
    """Below the limit it converges; m/(cn) is above it."""
    net = wide_network(width, x.shape[1], generator=run.generator)
    limit = step_size_limit(net, x)
    start = gradient_domination(net, x, y)

    def after(step: float, steps: int, labels: Tensor = y) -> float:
        value = float(wide_descent(net, x, labels, step=step, steps=steps).risks[-1])
        return value if math.isfinite(value) else 1e300

    hard = hardest_labels(net, x)
    begin = torch.tensor([start.risk, gradient_domination(net, x, hard).risk])
    says = run.states(
        "A-125",
        r"\eta=0.9\,\eta_{\max},\ \eta_{\max}=m/\lambda_{\max}(K): \text{ the risk falls, over its start}",
    )
    fallen = torch.tensor([after(0.9 * limit, 20), after(0.9 * limit, 2, hard)])
    says.below(fallen / begin, 1.0, where="after 20 steps; after 2 for the labels that are hardest to fit")
    says.fails("1.5 times the limit", after(1.5 * limit, 20) / start.risk)
    says = run.states("A-125", r"\eta=m/(cn) \text{ does not converge in one step: } r(\Theta^{(1)})>r(\Theta^{(0)})")
    says.above(
        after(1 / start.constant, 1),
        start.risk,
        loose="the source says that such a step fails, and not by how much",
        where=f"cn/m = {start.constant:.3g}: a step of {1 / start.constant / limit:.3g} times the limit",
    )
    says.fails("half the limit", after(limit / 2, 1))


def leaving_the_ball(run: Run, x: Tensor, y: Tensor, width: int = 64) -> None:
    """How long the iterates stay: √(m/(η²n)), not √m/(η²n)."""
    m = len(x)
    net = wide_network(width, x.shape[1], generator=run.generator)
    labels = 5 * y
    limit = step_size_limit(net, x)
    rows, kept = [], []
    for share in (2, 4, 8):
        eta = limit / share
        printed = math.floor(math.sqrt(m) / (eta**2 * width))
        found = wide_descent(net, x, labels, step=eta, steps=min(printed, 10 * share))
        outside = (found.distances > 1).nonzero()
        left = int(outside[0]) if len(outside) else len(found.distances)
        steepest = float((found.run.gradient_norms.square() / found.risks).max()) * m / width
        right = math.floor(math.sqrt(m / (eta**2 * width * steepest * float(found.risks.max()))))
        rows.append((eta, right, left, printed))
        kept.append(float(found.distances[: right + 1].max()))
    run.states(
        "A-125",
        r"\|\nabla r\|^2\le C\tfrac nmr:\ \|\Theta^{(k)}-\Theta\|\le1 \text{ for } k\le\sqrt{m/(\eta^2nC\max r)}",
    ).at_most(kept, 1.0, where=f"n = {width}, three step sizes, C measured along the path")
    eta, _, left, printed = rows[-1]
    run.refutes(
        "iterates-stay-longer-than-they-do",
        r"\|\Theta^{(k)}-\Theta\|\le1 \text{ for } k\le\sqrt m/(\eta^2n): \text{ the first } k \text{ outside}",
    ).above(
        left,
        printed,
        where=f"m = {m}, n = {width}, η = {eta:.3g}: with half of η they stay for twice as many "
        "steps, while the printed number is four times as large",
    )
    run.table(
        "leaving",
        ["η", "√(m/(η²nC max r))", "first step outside", "√m/(η²n), as printed"],
        rows,
        caption="How many steps the iterates stay in the ball of radius 1: linear in 1/η",
    )


def plot_convergence(axes: Any, widths: tuple[int, ...], descents: list[WideDescent], growth: Growth) -> None:
    left, middle, right = axes[0]
    for n, found in zip(widths, descents, strict=True):
        (line,) = left.semilogy(found.risks, label=f"n = {n}")
        left.semilogy(found.predicted, ":", color=line.get_color())
        middle.plot(found.distances, label=f"n = {n}")
    left.set(xlabel="step", ylabel="risk (dotted: predicted)")
    left.legend()
    middle.set(xlabel="step", ylabel="distance from the start", ylim=(0, None))
    middle.legend()
    right.loglog(widths, growth["right"], "o-", label="first layer N(0, I)")
    right.loglog(widths, growth["printed"], "s--", label="N(0, I/n), as printed")
    right.set(xlabel="hidden units n", ylabel=r"$\lambda_{\min}$ of the last-layer kernel")
    right.set_xticks(widths, [str(n) for n in widths])
    right.minorticks_off()
    right.legend()
