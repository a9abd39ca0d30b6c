"""How fast explanations of deep networks forget themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from torchtheory.explanation.by_feature import Method
from torchtheory.explanation.composites import Composite, first_layer
from torchtheory.explanation.judging.shattering import shattering
from torchtheory.explanation.lrp import lrp
from torchtheory.explanation.methods.gradients import sensitivity
from torchtheory.explanation.rules import AlphaBeta, Epsilon, Gamma, Rule
from torchtheory.labs.engine import Run, lab, mean_interval
from torchtheory.nets.feedforward import dense


@lab(
    "shattered-gradients",
    room="explanation",
    covers=["C-10"],
    title="Gradients of deep networks are noise a step further; relevance of positive contributions is not",
    full={"width": 200, "networks": 60, "depths": (1, 2, 4, 8, 16)},
    least={"dimension": 5, "width": 40, "networks": 20, "angle": 0.15},
    most={"angle": 0.6},
    items={"depths": 2},
)
def shattered_gradients(
    run: Run,
    dimension: int = 60,
    width: int = 80,
    networks: int = 120,
    depths: tuple[int, ...] = (1, 4, 16),
    pairs: int = 16,
    angle: float = 0.3,
) -> None:
    """Random ReLU networks are explained at inputs a small angle apart.

    The correlation of the two gradients is a product over the layers, of the share of units that are
    active at both inputs, so it falls with the depth. Skip connections break this. Relevance propagated
    with gamma or alpha-beta rules keeps its pattern where the gradient has lost it.

    Args:
        dimension: of the inputs.
        width: of the hidden layers.
        networks: of every depth, a third of them for relevance.
        depths: hidden layers.
        pairs: of inputs for each network, whose correlations are averaged.
        angle: between the two inputs.
    """
    run.assumes(
        networks * pairs >= 120,
        f"{networks} networks with {pairs} pairs of inputs each are {networks * pairs} correlations, which scatter by "
        "0.2: fewer than 120 do not fix their mean well enough",
    )
    apart = partial(at_lag, run, pairs=pairs, angle=angle)
    law, skipping, measured = {}, {}, {}
    for depth in run.track(depths, "depths"):
        law[depth] = apart(GRADIENT, partial(plain, run, depth, dimension, width), networks)["gradient"]
        skips = partial(residual, run, depth, dimension, width)
        skipping[depth] = apart(GRADIENT, skips, networks)["gradient"]
        # relevance changes its sign with the score, so it is that of the largest of several outputs
        several = partial(plain, run, depth, dimension, width, 10)
        measured[depth] = apart(METHODS, several, networks // 3)
    for depth in depths[1:]:
        says = run.states(
            "C-10",
            rf"L={depth}:\ \mathbb E\,\mathrm{{corr}}(\nabla f(x),\nabla f(x'))\to\prod_l(1-\theta_l/\pi)",
        )
        # the width is finite; half as many layers, or twice as many, are excluded
        others = (expected(depth // 2, angle), expected(2 * depth, angle))
        says.mean(law[depth], expected(depth, angle), 0.05, against=others)
        says.fails("skip connections", skipping[depth])
    deepest = depths[-1]
    for rule in ("LRP, gamma", "LRP, alpha 1 beta 0"):
        says = run.states("C-10", rf"L={deepest}:\ \mathrm{{corr}}_{{\text{{{rule}}}}}>\mathrm{{corr}}_{{\nabla}}")
        says.above(lower_end(measured[deepest], rule), 0.0, where="lower end of the mean difference's 99% interval")
        says.fails("negative contributions are not disfavored (LRP-0)", lower_end(measured[deepest], "LRP, zero"))
    run.curves(
        "correlation",
        list(depths),
        {"gradient": [float(law[k].mean()) for k in depths]}
        | {name: [float(measured[k][name].mean()) for k in depths] for name in METHODS if name not in GRADIENT}
        | {"gradient, skip connections": [float(skipping[k].mean()) for k in depths]},
        {"gradient, infinite width": [expected(k, angle) for k in depths]},
        axes=("hidden layers", f"correlation of explanations {angle:g} rad apart"),
        log="x",
        caption="Explanations of a random network at two inputs, compared feature by feature.",
    )
    net = plain(run, deepest, dimension, width, 10)
    ends = run.randn(2, 4, dimension)
    ways = shattering(net, ends[0], ends[1], METHODS, points=33)
    run.curves(
        "along-a-line",
        next(iter(ways.values())).lags[:17],
        {name: found.mean[:17] for name, found in ways.items()},
        axes=("share of the way between two inputs", "correlation of explanations so far apart"),
        caption=f"Autocorrelation of explanations along lines between random inputs, {deepest} hidden layers.",
    )


def above_the_inputs(rule: Rule) -> Composite:
    """A rule for layers whose inputs are not negative, with epsilon for the inputs themselves."""
    return Composite(((first_layer, Epsilon(1e-6)),), rule)


GRADIENT: dict[str, Method] = {"gradient": sensitivity}

METHODS: dict[str, Method] = {
    **GRADIENT,
    "LRP, zero": partial(lrp, rules="gradient_times_input"),
    "LRP, gamma": partial(lrp, rules=above_the_inputs(Gamma(1.0))),
    "LRP, alpha 1 beta 0": partial(lrp, rules=above_the_inputs(AlphaBeta(1, 0))),
}


def at_lag(
    run: Run, methods: dict[str, Method], build: Callable[[], nn.Module], networks: int, *, pairs: int, angle: float
) -> dict[str, Tensor]:
    """Correlations `[networks]` of explanations at two inputs an angle apart, by method."""
    found_by: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(networks):
        net = build()
        first = next(p for p in net.parameters())
        a, b = torch.linalg.qr(run.randn(pairs, first.shape[1], 2))[0].unbind(2)
        found = shattering(net, a, math.cos(angle) * a + math.sin(angle) * b, methods, points=2)
        for name, one in found.items():
            found_by[name].append(one.at(1.0).estimate)
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in found_by.items()}


def lower_end(measured: dict[str, Tensor], rule: str) -> float:
    return mean_interval(measured[rule] - measured["gradient"], 0.99).low


def expected(depth: int, angle: float) -> float:
    """The correlation of gradients at infinite width: shares of units that are active at both inputs."""
    product = 1.0
    for _ in range(depth):
        product *= 1 - angle / math.pi
        cosine = (math.sin(angle) + (math.pi - angle) * math.cos(angle)) / math.pi
        angle = math.acos(min(1.0, cosine))
    return product


def plain(run: Run, depth: int, dimension: int, width: int, outputs: int = 1) -> nn.Sequential:
    layers: list[nn.Module] = []
    size = dimension
    for _ in range(depth):
        layers += [dense(math.sqrt(2 / size) * run.randn(width, size)), nn.ReLU()]
        size = width
    return nn.Sequential(*layers, dense(run.randn(outputs, size) / math.sqrt(size)))


class Skip(nn.Module):
    """x + ReLU(Wx)."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.layer = dense(weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + torch.relu(self.layer(x))
        return out


def residual(run: Run, depth: int, dimension: int, width: int) -> nn.Sequential:
    first = dense(run.randn(width, dimension) / math.sqrt(dimension))
    blocks = [Skip(0.3 * math.sqrt(2 / width) * run.randn(width, width)) for _ in range(depth)]
    return nn.Sequential(first, *blocks, dense(run.randn(1, width) / math.sqrt(width)))
