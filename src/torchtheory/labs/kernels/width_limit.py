"""How finite networks approach the tangent kernel's limit, and which parametrization has one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.kernels.infinite.dense import limit_kernels
from torchtheory.kernels.infinite.parametrization import ScaledLinear, Scaling, ntk_mlp
from torchtheory.kernels.tangent.dynamics import DescentRule, KernelTraining
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.labs.engine import COLORS, Interval, Run, lab, mean_interval
from torchtheory.nets.feedforward import mlp
from torchtheory.training.initialization import initialize

BIAS = 0.1


@dataclass(frozen=True, slots=True)
class Course:
    """A training run beside the closed form: outputs on test points `[times, m]`."""

    times: Tensor
    network: Tensor
    limit: Tensor

    @property
    def deviation(self) -> float:
        """Largest distance over time, relative to how far the outputs move."""
        moved = (self.limit[-1] - self.limit[0]).norm()
        return float((self.network - self.limit).norm(dim=1).max() / moved)

    def share(self, steps: int) -> float:
        """How much of the closed form's way the network has gone after so many steps."""
        way, gone = self.limit[steps] - self.limit[0], self.network[steps] - self.network[0]
        return float(gone @ way / way.square().sum())


@lab(
    "tangent-kernel-width-limit",
    room="kernels",
    covers=["M-13", "M-20", "A-58"],
    title="The tangent kernel of wide networks: its limit, the rate, and the frozen dynamics",
    errata=["ntk-parametrization-own-width", "tangent-kernel-ordinary-parametrization"],
    full={"widths": (32, 64, 128, 256, 512, 1024), "networks": 48, "trained": 16_384},
    least={"networks": 12, "trained": 64, "widths": 16},
    items={"widths": 3},
)
def tangent_kernel_width_limit(
    run: Run, widths: tuple[int, ...] = (64, 256, 1024), networks: int = 18, trained: int = 4096
) -> None:
    r"""Networks in neural tangent parametrization of growing width against the infinite one.

    The empirical kernel of random networks of depth 3 approaches the recursion's like 1/√n, and
    its mean is the recursion's: a kernel wrong by 8 % would be seen. The same networks in the
    ordinary parametrization, with the variance in the initialization, have a kernel that grows like
    n. Trained by gradient descent, wide networks follow the closed form with the frozen limit
    kernel, ever closer like 1/√n; divided once more by √n they learn features and do not. Look at
    the right panel: outputs on test points over time, dots for the network, lines for the limit.

    Theorem:
        Let $f$ be a fully connected ReLU network with hidden layers of $n$ units.
        *Independent*: all weights and biases are drawn independently from $\mathcal N(0,1)$.
        *Scaled*: each layer divides its sums by the square root of the width it reads, and
            multiplies them by $\sigma_w$, its biases by $\sigma_b$.
        *Gradient flow*: the squared loss is minimized in all parameters at once.
        Then, as $n$ grows, the tangent kernel at the start tends to a matrix $\Theta$ that depends on
        no draw, at distance of order $n^{-1/2}$; it stays there during training, so that the outputs
        follow the linear equation $\dot f_t(x)=-\Theta(x,X)(f_t(X)-y)$.

    Symbols:
        $f_t(x)$: the network's output at input $x$ after training for the time $t$; $\dot f_t$ its rate of change.
        $x$, $x'$: two inputs, in $d$ dimensions.
        $X$, $y$: the training inputs and their targets.
        $n$, $n_1$: units of a hidden layer, and of the first.
        $f^1$, $W^1$, $b^1$: sums of the first layer, its weights and its biases.
        $\sigma_w$, $\sigma_b$: standard deviations that weights and biases are multiplied by.
        $\Sigma^1$: covariance of the first layer's sums over draws.
        $\hat\Theta_0$: tangent kernel at the start, $\nabla_\theta f(x)^\top\nabla_\theta f(x')$ over pairs of inputs.
        $\Theta$: its limit for infinitely many units.
        $K_{\Theta_0}$: the same kernel in the ordinary parametrization, with the variance in the weights.

    Idea:
        The kernel is a sum over units, divided by their number. Given the layer before, the units are
        independent, so the law of large numbers makes the sum its mean, up to $n^{-1/2}$, layer by layer:
        that is the recursion for $\Theta$. In training each of $n$ units moves by order $n^{-1/2}$ only, because
        each contributes so little to the output; the gradients, and with them the kernel, stay.

    Try:
        widths=16,64,256: four times narrower networks are twice as far from the limit, at the same rate.
        trained=64: the dots of a narrow network leave the lines of the limit.
        networks=48: the interval of the rate shrinks, and still contains -1/2.

    Exercise:
        The network $f(x)=n^{-1/2}\sum_ja_jw_jx$ has weights $a_j$ and $w_j$ equal to 1 or -1. Compute its tangent
        kernel `k` at the inputs 3 and 5: no draw changes it, at any width.
        check: k == 2 * 3 * 5
        answer: a, w = torch.ones(16), -torch.ones(16)
            k = float(((3 * w) * (5 * w) + (3 * a) * (5 * a)).mean())

    Args:
        widths: of the hidden layers: three or more, of 16 units or more.
        networks: of each width; three times as many for the kernel at the start.
        trained: width of the wide network that is trained.
    """
    run.assumes(len(set(widths)) >= 3, f"a rate needs three different widths, and {widths} are fewer")
    x = nn.functional.normalize(run.randn(6, 4), dim=1) * 2
    first_layer(run)
    errors, sizes = convergence(run, x, widths, networks)
    wide, narrow = dynamics(run, x, networks, trained)
    run.table(
        "widths",
        ["width", "relative error", "mean diagonal, ordinary parametrization"],
        [
            (w, float(torch.tensor(e).square().mean().sqrt()), sum(s) / len(s))
            for w, e, s in zip(widths, errors, sizes, strict=True)
        ],
        caption=f"Empirical tangent kernel of {3 * networks} ReLU networks of depth 3 on six points.",
    )
    run.figure(
        "width-limit",
        lambda axes: plot_limit(axes, widths, errors, sizes, wide, narrow, trained),
        caption="Left: distance of the empirical kernel from the limit, each dot a network, and "
        "the kernel's size in the ordinary parametrization. Right: training a wide and a narrow "
        "network (dots) beside the closed form (lines), three test points.",
        grid=(1, 3),
        size=(13, 3.8),
    )


def first_layer(run: Run) -> None:
    """The covariance of first-layer units, under each scaling."""
    x = run.randn(1, 5)
    x = torch.cat([x, x + 0.5 * run.randn(1, 5)])  # neighbors: their inner product is far from 0
    inner = float(x[0] @ x[1])
    promised = {"unscaled_input": 2 * inner + BIAS, "fan_in": 2 * inner / 5 + BIAS}

    def units(scaling: Scaling, width: int) -> Interval:
        chosen = {"bias_variance": BIAS, "generator": run.generator, "dtype": torch.float64}
        net = ntk_mlp([5, width, 1], scaling=scaling, **chosen)  # type: ignore[arg-type]
        layer = net[0]
        assert isinstance(layer, ScaledLinear)
        with torch.no_grad():
            return mean_interval(layer(x).prod(0))

    literal = units("fan_out", 20_000)
    for scaling, words in (
        (
            "unscaled_input",
            r"\sigma_w^2\langle x,x'\rangle+\sigma_b^2 \text{ (first layer unscaled)}",
        ),
        ("fan_in", r"\sigma_w^2\langle x,x'\rangle/d+\sigma_b^2 \text{ (divided by } \sqrt d)"),
    ):
        found = units(scaling, 20_000)  # type: ignore[arg-type]
        says = run.states("M-13", rf"\mathbb E f^1_i(x)f^1_i(x')=\Sigma^1(x,x')={words}")
        rival = promised["fan_in" if scaling == "unscaled_input" else "unscaled_input"]
        half = (promised[scaling] + BIAS) / 2
        says.mean(
            found,
            promised[scaling],
            against=[rival, half, BIAS],
            where="20000 independent units of one layer, 99 % interval; half of the variance is excluded",
        )
        says.fails("divided by the root of its own width", literal)
    run.refutes(
        "ntk-parametrization-own-width",
        r"f^1=\frac{\sigma_w}{\sqrt{n_1}}W^1x+\sigma_bb^1 \text{ has the covariance } "
        r"\sigma_w^2\langle x,x'\rangle+\sigma_b^2",
    ).mean(literal, promised["unscaled_input"], where=f"width 20000: what is left is σ_b² = {BIAS:g}")


def convergence(
    run: Run, x: Tensor, widths: tuple[int, ...], networks: int
) -> tuple[list[list[float]], list[list[float]]]:
    """Relative errors of the empirical kernel, and its size in the usual parametrization."""
    limit = limit_kernels(x, depth=3, bias_variance=BIAS).ntk
    errors: list[list[float]] = []
    sizes: list[list[float]] = []
    grown: list[float] = []
    level: list[float] = []
    scale: list[float] = []
    # a rate of -1/4 is told from -1/2 by so many
    many, usual_networks = 3 * networks, networks // 3
    for width in run.track(widths, "widths"):
        here, size = [], []
        for place in range(many):
            net = ntk_mlp(
                [4, width, width, 1],
                bias_variance=BIAS,
                generator=run.generator,
                dtype=torch.float64,
            )
            kernel = empirical_ntk(net, x, outputs="trace")
            if width == max(widths):  # where networks differ least
                scale.append(float((kernel * limit).sum() / limit.square().sum()))
            here.append(float((kernel - limit).norm() / limit.norm()))
            level.append(float(kernel.diagonal().mean()))
            if place >= usual_networks:
                continue
            usual = mlp([4, width, width, 1], generator=run.generator)
            initialize(usual, "he", generator=run.generator)
            kernel = empirical_ntk(usual, x, outputs="trace")
            size.append(float(kernel.diagonal().mean()))
            grown.append(float((kernel - limit).norm() / limit.norm()))
        errors.append(here)
        sizes.append(size)
    repeated = [w for w in widths for _ in range(many)]
    fewer = [w for w in widths for _ in range(usual_networks)]
    says = run.states("M-20, A-58", r"\|\hat\Theta_0-\Theta\|_F/\|\Theta\|_F\sim n^{-1/2}")
    says.slope(
        repeated,
        [e for row in errors for e in row],
        -0.5,
        against=[-1.0, -0.25, 0.0],
        where=f"{many} networks at each of the widths {min(widths)} to {max(widths)}, depth "
        "3, ReLU; the error halves when the width is quadrupled",
    )
    says.fails("the ordinary parametrization", fewer, grown)
    says = run.states(
        "M-20, A-58",
        r"\mathbb E\langle\hat\Theta_0,\Theta\rangle/\|\Theta\|_F^2\to1: \text{ the mean kernel is the limit}",
    )
    says.mean(scale, 1.0, against=[0.92, 1.08], where=f"{len(scale)} networks of width {max(widths)}")
    halved = [
        float((empirical_ntk(net, x, outputs="trace") * limit).sum() / limit.square().sum())
        for net in (
            ntk_mlp(
                [4, max(widths), max(widths), 1],
                weight_variance=1.0,
                bias_variance=BIAS,
                generator=run.generator,
                dtype=torch.float64,
            )
            for _ in range(networks)
        )
    ]
    says.fails("weights of half the variance", halved)
    says = run.states("A-58", r"\text{ordinary parametrization: } K_{\Theta_0}(x,x)\sim n")
    says.slope(
        fewer,
        [e for row in sizes for e in row],
        1.0,
        0.05,
        against=[0.0, 0.5],
        where="weights N(0, 2/N), the gradients of the hidden weights and of the last layer are sums over the width",
    )
    says.fails("neural tangent parametrization", repeated, level)
    first, last = (sum(row) / len(row) for row in (sizes[0], sizes[-1]))
    run.refutes(
        "tangent-kernel-ordinary-parametrization",
        rf"K_{{\Theta_0}} \text{{ converges: equal at widths {widths[0]} and {widths[-1]}}}",
    ).equal(last, first, 1.0, where=f"mean of K(x,x): {first:.0f} and {last:.0f}")
    return errors, sizes


def dynamics(run: Run, x: Tensor, networks: int, trained: int) -> tuple[Course, Course]:
    """Networks of growing width beside the closed form with the limit kernel; a wide, a narrow one."""
    test = nn.functional.normalize(run.randn(3, 4), dim=1) * 2
    y = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    # networks beside their limit differ from each other more than those that learn features
    many, few, widest, steps = 3 * networks // 2, networks // 2, 2048, 40
    widths, fewer = ([w for w in (32, 256, widest) for _ in range(count)] for count in (many, few))
    courses = [train_beside(run, x, y, test, width, steps=steps) for width in run.track(widths, "trainings")]
    rich = [train_beside(run, x, y, test, width, steps=steps, lazy=False) for width in fewer]
    says = run.states(
        "M-20",
        r"\dot f_t(x)=-\Theta(x,X)\bigl(f_t(X)-y\bigr): \text{ largest distance of the trained "
        r"network from it, relative to how far it moves, } \sim n^{-1/2}",
    )
    says.slope(
        widths,
        [course.deviation for course in courses],
        -0.5,
        against=[-1.0, 0.0],
        where=f"one hidden layer of ReLU units, {many} networks per width, {steps} steps of gradient descent",
    )
    says.fails("divided by n in place of √n: features are learned", fewer, [course.deviation for course in rich])
    says = run.states(
        "M-20",
        r"\text{share of the closed form's first steps that the network makes, mean over networks} \to 1",
    )
    first_steps = [train_beside(run, x, y, test, widest, steps=6).share(steps=4) for _ in range(networks)]
    says.mean(first_steps, 1.0, against=[0.92, 1.08], where=f"{networks} networks of {widest} units")
    says.fails(
        "weights of half the variance",
        [train_beside(run, x, y, test, widest, steps=6, weight_variance=1.0).share(steps=4) for _ in range(networks)],
    )
    return train_beside(run, x, y, test, trained), train_beside(run, x, y, test, 8)


def train_beside(
    run: Run,
    x: Tensor,
    y: Tensor,
    test: Tensor,
    width: int,
    *,
    steps: int = 300,
    lazy: bool = True,
    weight_variance: float = 2.0,
) -> Course:
    """Gradient descent on a network of two layers, and what the frozen limit kernel says of it."""
    net = ntk_mlp(
        [4, width, 1],
        weight_variance=weight_variance,
        bias_variance=BIAS,
        generator=run.generator,
        dtype=torch.float64,
    )
    both = torch.cat([x, test])
    kernel = limit_kernels(both, depth=2, bias_variance=BIAS).ntk
    train, cross = kernel[: len(x), : len(x)], kernel[len(x) :, : len(x)]
    step = 0.2 / float(torch.linalg.eigvalsh(train)[-1])
    # outputs a further root of n smaller need steps n times as long for the same kernel
    scale = 1.0 if lazy else 1 / math.sqrt(width)
    optimizer = torch.optim.SGD(net.parameters(), lr=step / scale**2)
    kept = []
    for _ in range(steps):
        optimizer.zero_grad()
        outputs = scale * net(both)[:, 0]
        (0.5 * (outputs[: len(x)] - y).square().sum()).backward()
        optimizer.step()
        kept.append(outputs.detach())
    network, times = torch.stack(kept), torch.arange(steps, dtype=torch.float64)
    closed = KernelTraining(train, y, network[0, : len(x)], rule=DescentRule(step))
    limit = closed.test(cross, times, network[0, len(x) :])
    return Course(times, network[:, len(x) :], limit)


def plot_limit(
    axes: Any,
    widths: tuple[int, ...],
    errors: list[list[float]],
    sizes: list[list[float]],
    wide: Course,
    narrow: Course,
    trained: int,
) -> None:
    left, middle, right = axes[0]
    for width, row in zip(widths, errors, strict=True):
        left.loglog([width] * len(row), row, "o", color=COLORS[0], ms=3, alpha=0.7)
    means = [math.exp(sum(math.log(e) for e in row) / len(row)) for row in errors]
    guide = [means[0] * (w / widths[0]) ** -0.5 for w in widths]
    left.loglog(widths, guide, "--", color="gray", label="slope -1/2")
    left.loglog(
        widths,
        [sum(s) / len(s) / 100 for s in sizes],
        "s-",
        color=COLORS[1],
        label="ordinary: K(x,x)/100",
    )
    left.set_xticks(widths, [str(w) for w in widths])
    left.set_xticks([], minor=True)
    left.set_xlabel("width n")
    left.set_ylabel("relative error of the kernel")
    left.legend()
    for panel, course, title in (
        (middle, wide, f"{trained} hidden units"),
        (right, narrow, "8 hidden units"),
    ):
        some = torch.linspace(1, len(course.times) - 1, 20).long()
        for point in range(course.limit.shape[1]):
            panel.plot(course.times, course.limit[:, point], color=COLORS[point])
            panel.plot(course.times[some], course.network[some, point], ".", color=COLORS[point], ms=5)
        panel.set_title(title)
        panel.set_xlabel("step")
        panel.set_ylabel("output on test points")
