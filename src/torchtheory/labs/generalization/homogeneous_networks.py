"""Homogeneous networks: training for long maximizes the normalized margin."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from scipy.integrate import solve_ivp
from torch import Tensor, nn

from torchtheory.data.synthetic import separable_gaussians, xor
from torchtheory.generalization.implicit_bias.hard_margin import hard_margin_svm
from torchtheory.generalization.implicit_bias.kkt import MarginKKT, margin_kkt
from torchtheory.generalization.implicit_bias.separable_flow import (
    EXPONENTIAL,
    LOGISTIC,
    POLYNOMIAL,
    separable_flow,
)
from torchtheory.generalization.implicit_bias.smoothed_margin import (
    MarginCurve,
    follow_margin,
    growing_margin,
    smoothed_minimum,
)
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.biases import homogeneous
from torchtheory.nets.homogeneity import (
    Margins,
    measure_homogeneity,
    network_margins,
)

Activation = Callable[[Tensor], Tensor]


class SquaredReLU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x).square()


class Skip(nn.Module):
    """A block with the identity added: x + V relu(W x)."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.block(x)
        return x + y


def dense(before: int, after: int, bias: bool = False) -> nn.Linear:
    return nn.Linear(before, after, bias=bias, dtype=torch.float64)


def relu_layers(depth: int) -> nn.Sequential:
    """A network of 3 inputs and one output without biases."""
    layers: list[nn.Module] = [dense(3, 5 if depth > 1 else 1)]
    for k in range(1, depth):
        layers += [nn.ReLU(), dense(5, 5 if k < depth - 1 else 1)]
    return nn.Sequential(*layers)


@lab(
    "homogeneous-margin",
    room="generalization",
    covers=["M-133", "M-134", "A-73", "A-74"],
    title="A homogeneous network trained long enough maximizes its normalized margin",
    errata=["one-over-n-is-not-enough-for-the-logistic-loss"],
    full={"level": 1000.0},
    least={"level": 20},
    most={"level": 2000},
)
def homogeneous_margin(run: Run, level: float = 60.0) -> None:
    """Gradient flow of homogeneous networks, followed until the risk is exp(-level).

    First which networks are homogeneous, and of which degree. Then the smoothed margin, and its
    gradient flow: the curve of the risk's own flow, run faster, to the largest margin. Then KKT
    points of the margin problem that can be written down, one of them not optimal. Then two
    networks, ReLU on four vertices of a tetrahedron and squared ReLU on exclusive or: the
    normalized margin never falls once the sample is separated, and the weights approach the
    conditions of Karush, Kuhn and Tucker. Look at the control, a tanh network whose margin falls.

    Args:
        level: minus the logarithm of the risk at which the flow ends.
    """
    degrees(run)
    smoothing(run)
    linear_flow(run)
    written_points(run)
    flows(run, level)
    thresholds(run)


def degrees(run: Run) -> None:
    x = run.randn(20, 3)
    frozen = nn.Sequential(dense(3, 5), nn.ReLU(), dense(5, 1))
    frozen[0].requires_grad_(False)
    nets: dict[str, tuple[nn.Module, float]] = {
        **{f"{d} ReLU layers": (relu_layers(d), float(d)) for d in (1, 2, 3, 5)},
        "one hidden layer with biases": (
            nn.Sequential(dense(3, 5, True), nn.ReLU(), dense(5, 1)),
            2.0,
        ),
        "leaky ReLU": (nn.Sequential(dense(3, 5), nn.LeakyReLU(0.1), dense(5, 1)), 2.0),
        "squared ReLU": (nn.Sequential(dense(3, 5), SquaredReLU(), dense(5, 1)), 3.0),
        "first layer frozen": (frozen, 1.0),
    }
    others: dict[str, nn.Module] = {
        "a bias in the second layer": nn.Sequential(dense(3, 5), nn.ReLU(), dense(5, 1, True)),
        "tanh": nn.Sequential(dense(3, 5), nn.Tanh(), dense(5, 1)),
        "a skip connection": nn.Sequential(Skip(dense(3, 3)), dense(3, 1)),
    }
    found = {k: measure_homogeneity(net, x) for k, (net, _) in nets.items()}
    none = {k: measure_homogeneity(net, x) for k, net in others.items()}
    says = run.states("M-133", r"f(\alpha\theta;x)=\alpha^Lf(\theta;x): \text{ the degree } L")
    says.equal(
        [math.nan if h.degree is None else h.degree for h in found.values()],
        [d for _, d in nets.values()],
        where="; ".join(f"{k}: {d:g}" for k, (_, d) in nets.items()),
    )
    says = run.states("M-133", r"\|f(\alpha\theta)-\alpha^Lf(\theta)\|=0,\text{ relative to } \alpha^L\|f(\theta)\|")
    says.equal([h.deviation for h in found.values()], within=1e-9)
    says.fails(
        "two layers with a skip connection, with tanh, with a bias in the second", [h.deviation for h in none.values()]
    )
    run.table(
        "degrees",
        ["network", "degree", "largest deviation", "in words"],
        [(k, h.degree, h.deviation, h.reason) for k, h in {**found, **none}.items()],
        caption="Three inputs, five hidden units.",
    )

    def euler(net: nn.Module) -> tuple[Tensor, Tensor]:
        margins, theta = network_margins(net, x, torch.ones(20))
        values, derivative, *_ = torch.func.jvp(margins, (theta,), (theta,))
        return values, derivative

    values, derivative = euler(nets["3 ReLU layers"][0])
    bent = nn.Sequential(dense(3, 5), nn.Tanh(), dense(5, 5), nn.Tanh(), dense(5, 1))
    bent_values, bent_derivative = euler(bent)
    says = run.states("M-133", r"\text{Euler: } \langle\theta,\nabla_\theta f\rangle=Lf")
    says.equal(derivative, 3 * values, 1e-10, where="three ReLU layers, 20 inputs")
    says.fails("three layers with tanh", bent_derivative, promised=3 * bent_values)


def smoothing(run: Run) -> None:
    q = 0.2 + run.rand(200, 12)
    betas = (0.1, 1.0, 10.0, 1000.0)
    least = q.min(1).values
    smooth = torch.stack([smoothed_minimum(q, b) for b in betas])
    # the same construction from the loss 1/(1+u), which has no exponential tail
    tail = torch.stack([(1 / (1 / (1 + b * q)).mean(1) - 1) / b for b in betas[3:]])
    total = torch.stack([-torch.logsumexp(-b * q, 1) / b for b in betas])
    says = run.states("A-73", r"r_\beta(\theta)\ge\gamma(\theta)")
    says.at_least(smooth, least.expand_as(smooth), 1e-12, where="200 draws of 12 margins, β from 0.1 to 1000")
    says.fails("the risk a sum instead of a mean", total)
    says = run.states("A-73", r"r_\beta(\theta)\le\gamma(\theta)+\log(m)/\beta")
    says.at_most(smooth, torch.stack([least + math.log(12) / b for b in betas]), 1e-12)
    says.fails(
        "the loss 1/(1+u) in place of exp(-u), at the largest β", tail, promised=(least + math.log(12) / betas[3])[None]
    )


def linear_flow(run: Run) -> None:
    """A linear model: one curve under three clocks, the flow of the direction, and its limit."""
    x, y, *_ = separable_gaussians(10, 2, margin=0.2, generator=run.generator)
    z = y[:, None] * x

    def margins(w: Tensor) -> Tensor:
        return z @ w

    def slope(w: Tensor) -> Tensor:
        return torch.softmax(-(z @ w), 0) @ z  # the gradient of r_1

    start = 0.3 * run.randn(2)
    first = float(smoothed_minimum(margins(start)))
    curve = follow_margin(margins, start, first + torch.linspace(0.5, 12, 24).double(), rtol=1e-10)
    clock = curve.log_risk_times.exp() / len(z)  # the other flow's risk is a sum
    by_risk = separable_flow(x, y, clock, start=start).weights
    logistic = separable_flow(x, y, clock, start=start, loss=LOGISTIC).weights
    times = curve.margin_times.numpy()
    ascent = solve_ivp(
        lambda _, w: slope(torch.from_numpy(w)).numpy(),
        (0, times[-1]),
        start.numpy(),
        t_eval=times,
        rtol=1e-10,
        atol=1e-12,
    )
    by_margin = torch.from_numpy(ascent.y.T.copy())
    says = run.states(
        "A-74",
        r"\dot\theta=\nabla r_1=-\nabla r/r \text{ and } \dot\theta=-\nabla r \text{ run through "
        r"one curve: largest distance}",
    )
    says.equal(
        [(by_risk - curve.points).norm(dim=1).max(), (by_margin - curve.points).norm(dim=1).max()],
        within=1e-6,
        where=f"{len(times)} points up to the risk's time {float(clock[-1]):.1e}, which the "
        f"smoothed margin's flow reaches at {times[-1]:.3g}; three solvers",
    )
    says.fails("the logistic risk", (logistic - curve.points).norm(dim=1).max())
    theta = curve.points[5]
    beta = float(theta.norm())
    unit = theta / beta
    smooth = torch.func.grad(lambda w: smoothed_minimum(z @ w, beta))(unit)
    h = 1e-5
    ahead, behind = theta + h * slope(theta), theta - h * slope(theta)
    says = run.states(
        "A-74",
        r"\tfrac{d\tilde\theta}{dt}=P_{\tilde\theta}\nabla r_\beta(\tilde\theta)/\beta,\ "
        r"\beta=\|\theta\|,\ P_{\tilde\theta}=I-\tilde\theta\tilde\theta^\top",
    )
    says.equal(
        (ahead / ahead.norm() - behind / behind.norm()) / (2 * h),
        (smooth - unit * (unit @ smooth)) / beta,
        1e-8,
        where="by central differences along the flow",
    )
    says.fails(
        "P at θ itself, which is not of norm 1",
        (ahead / ahead.norm() - behind / behind.norm()) / (2 * h),
        promised=(smooth - theta * (theta @ smooth)) / beta,
    )
    best = hard_margin_svm(x, y).margin
    moments = torch.logspace(0, 30, 31, dtype=torch.float64)
    late = separable_flow(x, y, moments)
    slow = separable_flow(x, y, moments, loss=POLYNOMIAL)
    promised = best - math.log(len(z)) / late.weights.norm(dim=1)
    says = run.states(
        "A-74", r"\gamma^*-\log(m)/\|\theta\|\le\min_iy_i\langle\theta,x_i\rangle/\|\theta\|\text{ from } \theta(0)=0"
    )
    says.at_least(
        late.normalized_margins,
        promised,
        1e-9,
        where=f"times 1 to 1e30; γ* = {best:.4f}, at the end {float(promised[-1]):.4f} promised",
    )
    says.fails(
        "a loss without exponential tail",
        slow.normalized_margins,
        promised=best - math.log(len(z)) / slow.weights.norm(dim=1),
    )


TETRAHEDRON = ((1.0, 1.0, 1.0), (1.0, -1.0, -1.0), (-1.0, 1.0, -1.0), (-1.0, -1.0, 1.0))


def tetrahedron() -> tuple[Tensor, Tensor]:
    """Four vertices with inner products -1: a ReLU near one of them is off at the others."""
    x = torch.tensor(TETRAHEDRON, dtype=torch.float64)
    return x, torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)


def two_layers(x: Tensor, y: Tensor, activation: Activation) -> Margins:
    r"""The margins of $\sum_jv_j\phi(w_j^\top x)$ as a function of (w_1, ..., v_1, ...)."""
    inputs = x.shape[1]

    def margins(theta: Tensor) -> Tensor:
        width = len(theta) // (inputs + 1)
        first = theta[: width * inputs].reshape(width, inputs)
        return y * (activation(x @ first.T) @ theta[width * inputs :])

    return margins


def written_points(run: Run) -> None:
    """KKT points known by hand, and what the gap of the conditions certifies."""
    x, y = tetrahedron()
    margins = two_layers(x, y, torch.relu)

    def point(rows: Tensor, signs: Tensor, share: float) -> Tensor:
        return torch.cat([(rows * share).flatten(), signs * rows.norm(dim=1) / share])

    # a neuron a sample, |v| = ‖w‖; or one for both samples of a class
    alone = point(x, y, 1.0)
    shared = point(torch.stack([x[0] + x[1], x[2] + x[3]]), torch.tensor([1.0, -1.0]).double(), 1.0)
    unbalanced = point(x, y, 2.0)
    found = [margin_kkt(margins, p, 2.0) for p in (alone, shared)]
    other = margin_kkt(margins, unbalanced, 2.0)
    says = run.states(
        "M-134", r"\text{two KKT points of the ReLU problem on a tetrahedron: } \varepsilon/\|\theta\|,\ \delta"
    )
    says.equal(
        [e for f in found for e in (f.relative_epsilon, f.delta)],
        within=1e-9,
        where=f"a neuron a sample: normalized margin {found[0].normalized_margin:.4f}; one a "
        f"class: {found[1].normalized_margin:.4f}",
    )
    says.fails("the first network with its layers out of balance", other.relative_epsilon)
    data = separable_gaussians(12, 3, margin=0.3, generator=run.generator)
    z = data.y[:, None] * data.x
    best = hard_margin_svm(data.x, data.y).margin
    tries = [data.weight + 0.1 * run.randn(3) for _ in range(30)]
    audits = [margin_kkt(lambda w: z @ w, w, 1.0) for w in tries if float((z @ w).min()) > 0]
    says = run.states(
        "M-134",
        r"L=1:\ \text{normalized margin}\ge\gamma^*\sqrt{1-2\,\mathrm{gap}/\|\hat\theta\|^2},\ "
        r"\mathrm{gap}=\tfrac12\varepsilon^2+\textstyle\sum_i\lambda_i(q_i-1)",
    )
    says.at_least(
        [a.normalized_margin for a in audits],
        [best * math.sqrt(max(0.0, 1 - a.relative_gap)) for a in audits],
        1e-9,
        where=f"{len(audits)} separating directions: in a convex problem the conditions suffice",
    )
    says.fails(
        "L = 2: a KKT point, but not the optimum",
        found[0].normalized_margin,
        promised=found[1].normalized_margin * math.sqrt(max(0.0, 1 - found[0].relative_gap)),
    )


def flows(run: Run, level: float) -> None:
    """Two networks and a control, from starts that separate the sample."""
    levels = torch.logspace(math.log10(3.0), math.log10(level), 16, dtype=torch.float64)
    x, y = tetrahedron()
    relu_start = torch.cat([(x + 0.3 * run.randn(4, 3)).flatten(), y + 0.3 * run.randn(4)]) / 2
    corners, parity = xor()
    lifted = homogeneous(corners)
    # a neuron for each corner, on only there; the network of Eq. (11.21), with biases
    near = torch.cat([2 * corners - 1, (0.5 - corners.sum(1))[:, None]], 1)
    xor_start = torch.cat([(near + 0.1 * run.randn(4, 3)).flatten(), parity + 0.1 * run.randn(4)])
    relu = two_layers(x, y, torch.relu)
    square = two_layers(lifted, parity, lambda u: torch.relu(u).square())
    data = separable_gaussians(10, 2, margin=0.2, generator=run.generator)
    z = data.y[:, None] * data.x

    def linear(w: Tensor) -> Tensor:
        return z @ w

    curves = {
        "linear, Gaussian sample": (linear, follow(linear, 0.1 * data.weight, levels), 1.0),
        "ReLU, tetrahedron": (relu, follow(relu, relu_start, levels), 2.0),
        "squared ReLU, exclusive or": (square, follow(square, xor_start, levels), 3.0),
    }
    bent = follow(two_layers(x, y, torch.tanh), relu_start, levels)
    logistic = follow(relu, relu_start, levels, "logistic")
    grown = [growing_margin(c.margins, c.norms, d) for _, c, d in curves.values()]
    grown.append(growing_margin(logistic.margins, logistic.norms, 2.0, loss="logistic"))
    fallen = growing_margin(bent.margins, bent.norms, 2.0)
    says = run.states(
        "M-134",
        r"\ell^{-1}(\mathcal L)/\|\theta\|^L,\ \mathcal L=\textstyle\sum_i\ell(q_i),"
        r"\text{ does not fall once } \mathcal L<\ell(0): \text{ least relative change}",
    )
    says.at_least(
        torch.cat([g.diff() / g[:-1] for g in grown]),
        0.0,
        1e-5,
        where="; ".join([*curves, "ReLU with the logistic loss"]),
    )
    says.fails("tanh, which is not homogeneous", fallen.diff() / fallen[:-1])
    audits = {
        name: [margin_kkt(q, p, d, multipliers="exponential") for p in c.points] for name, (q, c, d) in curves.items()
    }
    stationarity(run, curves, audits, bent, relu_start)
    shares(run, curves, audits)
    c = curves["ReLU, tetrahedron"][1]
    cubic = two_layers(x, y, lambda u: torch.relu(u).square())
    large = 20 * relu_start
    says = run.states(
        "M-134",
        r"\mathcal L\to0,\ \|\theta\|\to\infty:\ \|\theta\|^2\ge2(s-\log n)/\min_i\|x_i\|"
        r"\text{ where the risk is } e^{-s}",
    )
    # one vertex four times: a single neuron, aligned with it, serves all
    alike = two_layers(x[:1].expand(4, -1), torch.ones(4).double(), torch.relu)
    one = follow(alike, torch.cat([x[0], torch.ones(1).double()]) / 2, levels)
    reached = torch.cat([c.levels, one.levels])
    says.at_least(
        torch.cat([c.norms, one.norms]).square(),
        2 * (reached - math.log(4)) / math.sqrt(3),
        where=f"every two-layer ReLU network must grow so, and the flow reaches s = {level:g}; the tetrahedron, and "
        "one of its vertices four times",
    )
    says.fails(
        "squared ReLU, of degree 3: a network with large weights",
        float(large @ large),
        promised=2 * (float(smoothed_minimum(cubic(large))) - math.log(4)) / math.sqrt(3),
    )
    rows = []
    for name, (q, c, d) in curves.items():
        for k in (0, len(levels) // 2, len(levels) - 1):
            best = margin_kkt(q, c.points[k], d)
            rows.append(
                (
                    name,
                    float(c.levels[k]),
                    best.normalized_margin,
                    audits[name][k].relative_epsilon,
                    audits[name][k].relative_delta,
                    best.relative_epsilon,
                    best.relative_delta,
                )
            )
    run.table(
        "conditions",
        ["network", "-log risk", "normalized margin", "ε", "δ", "ε, best λ", "δ, best λ"],
        rows,
        caption="Relative residuals of the KKT conditions, with the multipliers of the loss and with the best ones.",
    )

    def plot(axes: Any) -> None:
        left, right = axes[0]
        for k, (name, g) in enumerate(zip([*curves, "tanh"], [*grown[:3], fallen], strict=True)):
            style = "--" if name == "tanh" else "-"
            left.semilogx(levels, g / g.max(), style, color=COLORS[k], label=name)
            if name in audits:
                right.loglog(
                    levels,
                    [a.relative_epsilon for a in audits[name]],
                    color=COLORS[k],
                    label=f"ε, {name}",
                )
                right.loglog(
                    levels,
                    [a.relative_delta for a in audits[name]],
                    ":",
                    color=COLORS[k],
                    label=f"δ, {name}",
                )
        left.set(xlabel="-log risk", ylabel="normalized margin, over its largest")
        right.set(xlabel="-log risk", ylabel="relative residual")
        ticks = [t for t in (3, 10, 30, 100, 300, 1000) if t <= level]
        for axis in (left, right):
            axis.set_xticks(ticks, [str(t) for t in ticks])
            axis.minorticks_off()
            axis.legend()

    run.figure(
        "margin",
        plot,
        caption="Left: the normalized smoothed margin only grows for homogeneous networks. "
        "Right: their weights approach a KKT point of the margin problem.",
        grid=(1, 2),
    )


def follow(margins: Margins, start: Tensor, levels: Tensor, loss: Any = "exponential") -> MarginCurve:
    return follow_margin(margins, start, levels, loss=loss, rtol=1e-6)


def stationarity(
    run: Run,
    curves: dict[str, tuple[Margins, MarginCurve, float]],
    audits: dict[str, list[MarginKKT]],
    bent: MarginCurve,
    start: Tensor,
) -> None:
    """What the growth of the margin says about the angle between weights and gradient."""

    def between(curve: MarginCurve, degree: float) -> Tensor:
        grown = growing_margin(curve.margins, curve.norms, degree).log().diff()
        return grown / (degree * curve.norms.log().diff())

    def nearest(cosines: list[float]) -> Tensor:
        off = torch.tensor(cosines, dtype=torch.float64).pow(-2) - 1
        return torch.minimum(off[1:], off[:-1])

    x, y = tetrahedron()
    margins = two_layers(x, y, torch.tanh)
    turned = []
    for p in bent.points:
        values, pull_back, *_ = torch.func.vjp(margins, p)
        pull = pull_back(torch.softmax(-values, 0))[0]
        turned.append(float(p @ pull / (p.norm() * pull.norm())))
    says = run.states(
        "M-134",
        r"\min_{[t_1,t_2]}(\cos^{-2}\angle(\theta,\dot\theta)-1)\le"
        r"\frac{\log(\tilde\gamma(t_2)/\tilde\gamma(t_1))}{L\log(\|\theta(t_2)\|/\|\theta(t_1)\|)}",
    )
    # large margins that are not aligned yet, over short times: the least value is nearly the mean,
    # which the right side tends to as the margins grow
    relu = two_layers(x, y, torch.relu)
    large = float(smoothed_minimum(relu(5 * start)))
    short = follow(relu, 5 * start, large * torch.linspace(1.02, 1.1, 6).double())
    angles = [margin_kkt(relu, p, 2.0, multipliers="exponential").cosine for p in short.points]
    says.at_most(
        torch.cat([nearest(angles), *(nearest([a.cosine for a in audits[k]]) for k in curves)]),
        torch.cat([between(short, 2.0), *(between(c, d) for _, c, d in curves.values())]),
        1e-4,
        where=f"between {len(bent.levels)} levels of the risk, all three models; and ReLU from a long start",
    )
    says.fails("tanh", nearest(turned), promised=between(bent, 2.0))
    # only the second layer moves, and the conditions are asked of both
    first, second = start[:12], start[12:]
    half = follow(lambda v: relu(torch.cat([first, v])), second, bent.levels[[0, -1]])
    stuck = [
        margin_kkt(relu, torch.cat([first, v]), 2.0, multipliers="exponential").relative_epsilon for v in half.points
    ]
    last = {
        k: [a[0].relative_epsilon, a[-1].relative_epsilon]
        for k, a in audits.items()
        if curves[k][2] > 1  # the networks: the linear start is nearly stationary by chance
    }
    says = run.states(
        "M-134", r"\varepsilon/\|\hat\theta\| \text{ falls along the flow: at the last level over that at the first}"
    )
    says.at_most(
        [end / begin for begin, end in last.values()],
        0.4,
        where="; ".join(f"{k}: {b:.3f} to {e:.4f}" for k, (b, e) in last.items()),
    )
    says.fails("the first layer frozen", stuck[1] / stuck[0])


def shares(
    run: Run,
    curves: dict[str, tuple[Margins, MarginCurve, float]],
    audits: dict[str, list[MarginKKT]],
) -> None:
    """Complementary slackness of the exponential's multipliers."""
    measured, promised = [], []
    for name, (_, c, _) in curves.items():
        least = c.margins.amin(1)
        over = c.margins - least[:, None]
        weights = torch.stack([a.multipliers for a in audits[name]])
        weights = weights / weights.sum(1, keepdim=True)
        measured.append((weights * over).sum(1) / least)
        promised.append((c.margins.shape[1] - 1) / (math.e * least))
    apart = [slackness_of_two(3.0, q) for q in (4.0, 30.0, 60.0)]
    measured.append(torch.tensor([m for m, *_ in apart], dtype=torch.float64))
    promised.append(torch.tensor([p for *_, p in apart], dtype=torch.float64))
    says = run.states(
        "M-134",
        r"\sum_i\lambda_i(q_i-q_{\min})/(q_{\min}\sum_i\lambda_i)\le\tfrac{n-1}{e\,q_{\min}}"
        r"\text{ for } \lambda_i\propto e^{-q_i}",
    )
    says.at_most(
        torch.cat(measured),
        torch.cat(promised),
        1e-12,
        where="three models, all levels: it vanishes as the margins grow; and two margins that differ by 1",
    )
    says.fails(
        "equal multipliers, margins far apart", [e for _, e, _ in apart[1:]], promised=[p for *_, p in apart[1:]]
    )


def slackness_of_two(least: float, other: float) -> tuple[float, float, float]:
    """Slackness of two margins with the exponential's multipliers, with equal ones, and its bound."""
    z = torch.tensor([[least], [other]], dtype=torch.float64)
    audit = margin_kkt(lambda w: z @ w, torch.ones(1).double(), 1.0, multipliers="exponential")
    share = float(audit.multipliers[1] / audit.multipliers.sum())
    return share * (other - least) / least, (other - least) / 2 / least, 1 / (math.e * least)


def thresholds(run: Run) -> None:
    """How small a mean loss means that every sample is classified correctly."""
    n = 4
    scores = torch.tensor([-0.05, 9.0, 9.0, 9.0], dtype=torch.float64)
    run.refutes(
        "one-over-n-is-not-enough-for-the-logistic-loss",
        r"\tfrac1n\sum_i\log(1+e^{-q_i})<\tfrac1n\ \Rightarrow\ \min_iq_i>0",
    ).above(
        float(scores.min()),
        0.0,
        where=f"n = {n}, margins -0.05 and three times 9: mean loss {float(LOGISTIC.value(scores).mean()):.4f} < 1/4",
    )
    draws = 3 * run.randn(4000, n)
    low = EXPONENTIAL.value(draws).mean(1) < 1 / n
    safe = LOGISTIC.value(draws).mean(1) < math.log(2) / n
    says = run.states(
        "M-134",
        r"L<\tfrac1n \text{ (exponential)},\ L<\tfrac{\log2}n \text{ (logistic)}\ \Rightarrow\ "
        r"\min_iq_i>0: \text{ least margin}",
    )
    says.above(
        torch.cat([draws[low], draws[safe]]).min(1).values,
        0.0,
        where=f"{int(low.sum())} and {int(safe.sum())} of 4000 random margins",
    )
    worst = torch.linspace(-0.5, -0.01, 20).double()
    others = LOGISTIC.value(torch.tensor(9.0).double()) * (n - 1)
    between = (LOGISTIC.value(worst) + others) / n < 1 / n
    says.fails("logistic with 1/n, as printed: one bad margin and three of 9", worst[between])
