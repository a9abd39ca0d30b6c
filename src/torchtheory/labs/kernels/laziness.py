"""Wide networks train lazily: they stay near their start, and near their tangent."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.kernels.infinite.dense import ntk
from torchtheory.kernels.infinite.parametrization import ntk_mlp
from torchtheory.kernels.tangent.dynamics import DescentRule, KernelTraining
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.kernels.tangent.laziness import Laziness, measure_laziness
from torchtheory.kernels.tangent.linearization import linearize
from torchtheory.labs.engine import COLORS, Interval, Run, fit_slope, lab
from torchtheory.models.model import PureFunction, flatten
from torchtheory.training.loop.trainer import fit
from torchtheory.training.many.networks import fit_many

# ------------------------------------------------------------------- the gap against the width


@dataclass(frozen=True)
class Family:
    """Trained networks of one shape at several widths.

    Attributes:
        widths, parameters: of each network.
        gaps: the largest distance between network and linearized network after training.
        lazy: the diagnostics of each.
    """

    widths: list[int]
    parameters: list[int]
    gaps: list[float]
    lazy: list[Laziness]


@lab(
    "linearization-gap-against-width",
    room="kernels",
    covers=["M-16", "A-61"],
    title="The wider a network, the closer it trains to its linearization",
    errata=["linearization-rate-in-parameters"],
    full={"widths": (16, 32, 64, 128, 256, 512, 1024), "seeds": 14, "steps": 200},
    least={"seeds": 2, "steps": 25, "learning_rate": 0.06},
    most={"learning_rate": 0.2},
    items={"widths": 3},
)
def linearization_gap_against_width(
    run: Run,
    widths: tuple[int, ...] = (16, 64, 256),
    bottleneck: int = 4,
    seeds: int = 14,
    steps: int = 60,
    learning_rate: float = 0.2,
) -> None:
    """Networks with two hidden layers in NTK parametrization are trained by gradient descent on
    the squared loss, and so are their linearizations from the same start.

    The largest distance of the two on test points falls at least like the inverse root of the
    width, and so do the movement of the parameters, the drift of the tangent kernel and the gap
    relative to what was learned. The control keeps the second layer narrow: then nothing falls,
    however many parameters there are, which is also why a rate in the number of parameters alone
    cannot be right. Look at both axes: the same points against the width and against the number
    of parameters.

    Args:
        widths: of the hidden layers, three or more.
        bottleneck: units of the second layer in the control.
        seeds: networks of each width; three times as many with the bottleneck.
        steps: of gradient descent.
        learning_rate: of gradient descent.
    """
    angles = torch.linspace(0, 2 * math.pi, 17)[:-1].double()
    circle = torch.stack([angles.cos(), angles.sin()], 1)
    x, x_test = circle[::2], circle[1::2]
    y = (torch.sin(2 * angles) + 0.5 * torch.cos(angles))[::2, None]

    linear_training_is_kernel_training(run, x, y, x_test, steps, learning_rate)
    shapes = {"both layers wide": None, f"second layer of {bottleneck}": bottleneck}
    # networks with a narrow layer differ more from each other, and cost little
    families = [
        train_family(run, x, y, x_test, widths, narrow, count, steps, learning_rate)
        for narrow, count in zip(shapes.values(), (seeds, 3 * seeds), strict=True)
    ]
    wide, narrow = families
    rate, stuck = slope(wide, "gap"), slope(narrow, "gap")
    says = run.states(
        "M-16", r"\max_x|f_{\rm lin}(x,\theta_t)-f(x,\tilde\theta_t)|=O(n^{-1/2}):\ \text{exponent at most } -1/2"
    )
    says.at_most(rate, -0.5)
    says.fails(f"only the first layer gets wide, the second has {bottleneck} units", stuck)
    for what, symbol in (
        ("kernel drift", r"\|\Theta_t-\Theta_0\|_F/\|\Theta_0\|_F"),
        ("relative gap", r"\sup|f-f_{\rm lin}|/\sup|f-f_0|"),
    ):
        found, broken = slope(wide, what), slope(narrow, what)
        says = run.states("A-61", symbol + r" \text{ falls with the width: exponent at most } -1/2")
        says.at_most(found, -0.5)
        says.fails("a narrow second layer", broken)
    moved = slope(wide, "movement")
    run.states(
        "A-61", r"\|\theta_t-\theta_0\|/\|\theta_0\| \text{ falls with the width: exponent at most } -1/2"
    ).at_most(moved, -0.5)
    in_parameters = slope(narrow, "gap", against="parameters")
    run.refutes(
        "linearization-rate-in-parameters",
        r"|f_{\rm lin}-f|=O(P^{-1/2}) \text{ for } P \text{ parameters: exponent at most } -1/2",
    ).at_most(in_parameters, -0.5, where=f"widths n and {bottleneck}, n from {min(widths)} to {max(widths)}")
    report_gaps(run, dict(zip(shapes, families, strict=True)))


def report_gaps(run: Run, families: dict[str, Family]) -> None:
    rows: list[list[Any]] = []
    for name, family in families.items():
        for n in dict.fromkeys(family.widths):
            which = [k for k, width in enumerate(family.widths) if width == n]
            lazy = [family.lazy[k] for k in which]
            rows.append(
                [
                    name,
                    n,
                    family.parameters[which[0]],
                    mean([family.gaps[k] for k in which]),
                    mean([one.relative_movement for one in lazy]),
                    mean([one.kernel_drift for one in lazy]),
                    mean([one.relative_gap for one in lazy]),
                ]
            )
    columns = ["hidden layers", "n", "parameters", "gap on test points", "relative movement",
               "kernel drift", "relative gap"]  # fmt: skip
    run.table("widths", columns, rows, caption="Means over the seeds after training")
    exponents = []
    for name, family in families.items():
        for what in ("gap", "movement", "kernel drift", "relative gap"):
            fits = slope(family, what), slope(family, what, against="parameters")
            numbers = [end for one in fits for end in (one.estimate, one.low, one.high)]
            exponents.append([name, what, *numbers])
    columns = ["hidden layers", "quantity", "exponent in n", "low", "high",
               "exponent in P", "low (P)", "high (P)"]  # fmt: skip
    run.table("exponents", columns, exponents, caption="Fitted powers with 99% intervals")
    run.figure(
        "gap",
        lambda axes: plot_gaps(axes, families),
        caption="Distance of trained network and trained linearization, one dot a network: "
        "against the width (left) and the number of parameters (right). With a narrow second "
        "layer more parameters do not help.",
        grid=(1, 2),
    )


def linear_training_is_kernel_training(
    run: Run, x: Tensor, y: Tensor, x_test: Tensor, steps: int, learning_rate: float
) -> None:
    """SGD on a LinearizedModel is the kernel recursion with the tangent kernel at the start."""
    net = network(run, 12)
    lin, other = linearize(net), copy.deepcopy(net)
    settings = {"epochs": steps, "batch_size": len(x), "task": "regression"}
    for model in (lin, other):
        fit(model, (x, y), optimizer="sgd", learning_rate=learning_rate, **settings)  # type: ignore[arg-type]
    says = run.states(["M-16", "A-61"], r"f_{\rm lin}(x,\theta_t)=f_0(x)+K(x,X)K^{-1}(I-(I-\eta K)^t)(y-f_0(X))")
    says.equal(lin(x_test), linear_outputs(net, x, y, x_test, steps, learning_rate), 1e-9)
    says.fails("the network itself, of width 12", other(x_test))


def linear_outputs(net: nn.Module, x: Tensor, y: Tensor, x_test: Tensor, steps: int, learning_rate: float) -> Tensor:
    """Outputs of the linearized network after gradient descent on the mean squared error."""
    kernel = empirical_ntk(net, torch.cat([x, x_test]), x, outputs="trace")
    with torch.no_grad():
        start, start_test = net(x), net(x_test)
    rule, rate = DescentRule(learning_rate), 2 / len(x)
    training = KernelTraining(kernel[: len(x)], y, start, rate=rate, rule=rule)
    return training.test(kernel[len(x) :], float(steps), start_test)


def network(run: Run, width: int, second: int | None = None) -> nn.Sequential:
    return ntk_mlp(
        [2, width, second or width, 1],
        "tanh",
        weight_variance=1.5,
        bias_variance=0.1,
        generator=run.generator,
        dtype=torch.float64,
    )


def train_family(
    run: Run,
    x: Tensor,
    y: Tensor,
    x_test: Tensor,
    widths: tuple[int, ...],
    narrow: int | None,
    seeds: int,
    steps: int,
    learning_rate: float,
) -> Family:
    sizes = [n for n in widths for _ in range(seeds)]
    nets = [network(run, n, narrow) for n in sizes]
    trained = fit_many(
        nets,
        (x, y),
        epochs=steps,
        batch_size=len(x),
        optimizer="sgd",
        learning_rate=learning_rate,
        task="regression",
    )
    gaps, lazy = [], []
    outputs = trained.outputs(x_test)
    for net, end, values in zip(nets, trained.networks(), outputs, strict=True):
        linear = linear_outputs(net, x, y, x_test, steps, learning_rate)
        gaps.append(float((values - linear).abs().max()))
        lazy.append(measure_laziness(end, net, x_test))
    return Family(sizes, [PureFunction(net).count for net in nets], gaps, lazy)


def slope(family: Family, what: str, against: str = "widths") -> Interval:
    """The fitted power of a diagnostic in the width or the number of parameters."""
    values = {
        "gap": family.gaps,
        "movement": [one.relative_movement for one in family.lazy],
        "kernel drift": [one.kernel_drift for one in family.lazy],
        "relative gap": [one.relative_gap for one in family.lazy],
    }[what]
    return fit_slope(family.widths if against == "widths" else family.parameters, values)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def plot_gaps(axes: Any, families: dict[str, Family]) -> None:
    for axis, against in zip(axes[0], ("widths", "parameters"), strict=True):
        for color, (name, family) in zip(COLORS, families.items(), strict=False):
            sizes = family.widths if against == "widths" else family.parameters
            axis.loglog(sizes, family.gaps, ".", ms=5, alpha=0.5, color=color)
            ends = sorted(set(sizes))
            means = [mean([g for g, s in zip(family.gaps, sizes, strict=True) if s == size]) for size in ends]
            power = slope(family, "gap", against).estimate
            axis.loglog(ends, means, "-", color=color, label=f"{name}: exponent {power:.2f}")
        if against == "widths":
            ticks = sorted({n for family in families.values() for n in family.widths})
            axis.set_xticks(ticks, [str(n) for n in ticks])
            axis.minorticks_off()
        axis.set_xlabel("width n" if against == "widths" else "number of parameters P")
        axis.set_ylabel("max |f_lin - f| after training")
        axis.legend(loc="lower left")


# -------------------------------------------------------------------------------- Figure 1.16


@dataclass(frozen=True)
class Journey:
    """One trained network of the figure.

    Attributes:
        width: of its hidden layers.
        times, distances: relative distance from the start after so many steps.
        errors: training error before each step.
        start, end: its function on the grid.
        linear: what its linearization would end as, by its own kernel.
        limit: the same by the kernel of infinite width.
    """

    width: int
    times: list[int]
    distances: list[float]
    errors: Tensor
    start: Tensor
    end: Tensor
    linear: Tensor
    limit: Tensor

    @property
    def from_linear(self) -> float:
        """Distance from its linearization on the grid, relative to how far it has come."""
        return self._relative(self.linear)

    @property
    def from_limit(self) -> float:
        return self._relative(self.limit)

    def _relative(self, other: Tensor) -> float:
        return float((self.end - other).norm() / (self.end - self.start).norm())


@lab(
    "parameters-barely-move",
    room="kernels",
    covers=["A-121"],
    title="Figure 1.16: the parameters of wide networks barely move",
    # the source begins with 20 units, where one network in a thousand is stuck away from the points
    full={"widths": (24, 100, 500, 2500), "doublings": 10, "seeds": 1},
    least={"seeds": 1, "doublings": 9, "widths": 24, "learning_rate": 0.16},
    most={"learning_rate": 0.25},
    items={"widths": 2},
)
def parameters_barely_move(
    run: Run,
    widths: tuple[int, ...] = (28, 64, 216),
    doublings: int = 9,
    seeds: int = 9,
    learning_rate: float = 0.2,
) -> None:
    """ReLU networks with two hidden layers of growing width are trained by gradient descent to
    fit four points.

    All of them fit, but the wider the network, the shorter the way from its start relative to
    the length of its parameters, and the closer its final function to the interpolant of smallest
    norm of the tangent kernel, which is what a linear method would have found. Look at the final
    functions: the widest is next to the kernel's. The control starts from small parameters: then
    width does not keep a network where it is. The source gives neither the points nor the
    parametrization; here it is the NTK parametrization, in which one learning rate suits all
    widths. There are as many steps as 2 to the power `doublings`. One network may be farther from its
    kernel than another of half its width, so there are many, the more the narrower they are.

    Args:
        widths: of the networks, two or more.
        seeds: networks of the largest width; others have so many more as they are narrower.
        learning_rate: of gradient descent.
    """
    widths = tuple(sorted(widths))
    x = torch.tensor([[-1.2], [-0.4], [0.5], [1.3]]).double()
    y = torch.tensor([[0.6], [-0.5], [0.8], [-0.3]]).double()
    grid = torch.linspace(-2, 2, 101).double()[:, None]
    counts = [seeds * (widths[-1] // n) for n in widths]
    sizes = torch.tensor(widths, dtype=torch.float64).log().repeat_interleave(torch.tensor(counts))
    error = SPREAD / float((sizes - sizes.mean()).norm())
    run.assumes(
        4 * error < 0.4,
        f"{len(sizes)} networks of widths {widths[0]} to {widths[-1]} fix the power of the width up to a standard "
        f"error of {error:.2f}, which is too much to tell -0.4 from 0",
    )
    starts = [figure_network(run, n) for n, count in zip(widths, counts, strict=True) for _ in range(count)]
    few = max(1, seeds // 2)
    small = [figure_network(run, n) for n in (*widths[:2], *[widths[-1]] * few)]
    with torch.no_grad():
        for factor, net in zip((widths[0] ** 2, widths[1] ** 2, *[100] * few), small, strict=True):
            for p in net.parameters():
                p.div_(factor)
    traveled = travel([*starts, *small], x, y, grid, [2**doublings], learning_rate)
    journeys, (narrow, wide, *shrunk) = traveled[: len(starts)], traveled[len(starts) :]
    by_width = [[one for one in journeys if one.width == n] for n in widths]
    first = [starts[sum(counts[:k])] for k in range(len(widths))]
    shown = travel(first, x, y, grid, [1, *(2**k for k in range(doublings))], learning_rate)
    distance = torch.tensor([mean([one.distances[-1] for one in same]) for same in by_width])
    says = run.states(
        "A-121",
        r"\|\Theta^{(k)}-\Theta^{(0)}\|/\|\Theta^{(0)}\| \text{ at the end falls with } n:"
        r" \text{ ratios of neighboring widths}",
    )
    says.below(distance[1:] / distance[:-1], 1)
    says.fails(
        "the two narrowest started from parameters n² times smaller, which makes the start "
        "shorter the wider the network",
        wide.distances[-1] / narrow.distances[-1],
    )
    errors = [float(one.errors[-1] / one.errors[0]) for one in journeys]
    early = [float(one.errors[2] / one.errors[0]) for one in journeys]
    says = run.states("A-121", r"\text{every network fits the four points: training error relative to its start}")
    says.equal(errors, within=1e-3)
    says.fails("after two steps", early)
    says = run.states(
        "A-121",
        r"\|\Phi-\Phi_0-k^\top K^{-1}(y-\Phi_0(X))\|/\|\Phi-\Phi_0\| \text{ falls with } n:"
        r" \text{ its power of } n",
    )
    says.below(power_of_gaps(journeys), 0, where=f"least squares over {len(journeys)} networks")
    says.fails(
        "the widest networks started from parameters 100 times smaller",
        power_of_gaps([*(one for one in journeys if one.width < widths[-1]), *shrunk]),
    )
    rows = [
        [
            same[0].width,
            mean([one.distances[-1] for one in same]),
            max(float(one.errors[-1]) for one in same),
            mean([one.from_linear for one in same]),
            mean([one.from_limit for one in same]),
        ]
        for same in by_width
    ]
    columns = ["n", "relative distance", "training error", "from its own kernel's interpolant",
               "from the limit kernel's"]  # fmt: skip
    run.table(
        "journeys",
        columns,
        rows,
        caption="After training; means over the networks, the training error is the largest",
    )
    run.figure(
        "journeys",
        lambda axes: plot_journeys(axes, shown, x, y, grid),
        caption="Relative distance of the parameters from their start, final functions with the "
        "four points, and training error. Dashed: the interpolant of the limit kernel from the "
        "widest network's start.",
        grid=(1, 3),
        size=(13, 3.6),
    )


def power_of_gaps(journeys: list[Journey]) -> float:
    """The exponent of the width in the distance from the linearization."""
    return fit_slope([one.width for one in journeys], [one.from_linear for one in journeys]).estimate


WEIGHT_VARIANCE, BIAS_VARIANCE = 2.0, 0.5

#: Standard deviation of the logarithm of a network's distance from its linearization, at any width.
SPREAD = 0.6


def figure_network(run: Run, width: int) -> nn.Sequential:
    return ntk_mlp(
        [1, width, width, 1],
        "relu",
        weight_variance=WEIGHT_VARIANCE,
        bias_variance=BIAS_VARIANCE,
        generator=run.generator,
        dtype=torch.float64,
    )


def travel(
    starts: list[nn.Sequential],
    x: Tensor,
    y: Tensor,
    grid: Tensor,
    pieces: list[int],
    learning_rate: float,
) -> list[Journey]:
    """Train all of them at once, piece by piece of so many steps, looking at them after each."""
    origins = [flatten(PureFunction(net).parameters) for net in starts]
    distances: list[list[float]] = [[] for _ in starts]
    nets: list[nn.Module] = list(starts)
    times: list[int] = []
    errors = []
    for steps in pieces:
        result = fit_many(
            nets,
            (x, y),
            epochs=steps,
            batch_size=len(x),
            optimizer="sgd",
            learning_rate=learning_rate,
            task="regression",
            # for four points it is never needed, but what is set aside keeps wide networks apart
            memory=2**34,
        )
        nets = list(result.networks())
        errors.append(result.train_loss)
        times.append(steps + (times[-1] if times else 0))
        for way, net, origin in zip(distances, nets, origins, strict=True):
            moved = flatten(PureFunction(net).parameters) - origin
            way.append(float(moved.norm() / origin.norm()))
    losses = torch.cat(errors, 1)
    both = ntk(
        torch.cat([x, grid]),
        x,
        depth=3,
        weight_variance=WEIGHT_VARIANCE,
        bias_variance=BIAS_VARIANCE,
    )
    journeys = []
    for k, (start, net) in enumerate(zip(starts, nets, strict=True)):
        own = empirical_ntk(start, torch.cat([x, grid]), x, outputs="trace")
        with torch.no_grad():
            before, end, missing = start(grid), net(grid), y - start(x)
        linear, limiting = (
            # the pseudo-inverse, as the kernel of a tiny start is singular in double precision
            before + kernel[len(x) :] @ torch.linalg.pinv(kernel[: len(x)]) @ missing
            for kernel in (own, both)
        )
        width = len(start.get_parameter("0.weight"))
        journeys.append(Journey(width, times, distances[k], losses[k], before, end, linear, limiting))
    return journeys


def plot_journeys(axes: Any, row: list[Journey], x: Tensor, y: Tensor, grid: Tensor) -> None:
    distance, function, error = axes[0]
    for color, one in zip(COLORS, row, strict=False):
        name = f"n = {one.width}"
        distance.loglog(one.times, one.distances, "o-", ms=3, color=color, label=name)
        function.plot(grid, one.end, color=color, label=name)
        error.semilogy(range(len(one.errors)), one.errors, color=color, label=name)
    function.plot(grid, row[-1].limit, "--", color="black", lw=1.2, label="limit kernel")
    function.plot(x, y, "o", color="black", ms=5)
    distance.set_xlabel("step")
    distance.set_ylabel("relative distance from the start")
    distance.legend()
    function.set_xlabel("x")
    function.set_ylabel("final network")
    function.legend()
    error.set_xlabel("step")
    error.set_ylabel("training error")
    error.legend()
