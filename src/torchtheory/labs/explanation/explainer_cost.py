"""What a network costs, and what it costs to explain it."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from torchtheory.explanation.by_feature import Method
from torchtheory.explanation.composites import Composite, first_layer
from torchtheory.explanation.cost import ExplainerCost, explainer_cost
from torchtheory.explanation.lrp import lrp
from torchtheory.explanation.methods.gradients import (
    gradient_times_input,
    integrated_gradients,
    sensitivity,
    smooth_gradient,
)
from torchtheory.explanation.methods.lime import lime
from torchtheory.explanation.methods.occlusion import occlusion
from torchtheory.explanation.methods.shapley import shapley
from torchtheory.explanation.rules import Epsilon, Gamma
from torchtheory.labs.engine import Run, lab
from torchtheory.nets.feedforward import mlp
from torchtheory.tracing.network_size import network_size

#: Channels of VGG-16's convolutions, with 0 for a pooling by 2.
VGG_16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)


@lab(
    "explainer-cost",
    room="explanation",
    covers=["C-01", "C-18"],
    title="16 layers, 138 million weights, 15.5 billion multiplications; and passes per explanation",
    full={"samples": 256, "noisy": 50, "steps": 64, "surrogate": 500},
    least={"features": 2, "noisy": 2, "surrogate": 20},
)
def cost_of_explanations(
    run: Run, features: int = 8, samples: int = 16, noisy: int = 20, steps: int = 24, surrogate: int = 60
) -> None:
    """VGG-16 is counted without being computed, and passes of explanations are counted by themselves.

    The layers of VGG-16 follow from its channels, and so do its numbers, exactly. Relevance propagation
    and gradients need one pass in each direction, averages as many as they have points, occlusion one
    forward per feature, a surrogate one per sample of its own, exact Shapley values one per set of
    features.

    Args:
        features: of the inputs that are explained.
        samples: that are explained together.
        noisy: copies that SmoothGrad averages over.
        steps: of integrated gradients.
        surrogate: samples of LIME.
    """
    with torch.device("meta"):
        net, larger = vgg(224), vgg(256)
    size, other = network_size(net, (3, 224, 224)), network_size(larger, (3, 256, 256))
    says = run.states(
        "C-01", r"\text{VGG-16}:\ 138\,357\,544\text{ weights},\ 15\,470\,264\,320\text{ multiplications}"
    )
    says.equal([size.parameters, size.multiplications], [138_357_544, 15_470_264_320])
    says.fails("images of 256 × 256", [other.parameters, other.multiplications])
    says = run.states("C-01", r"\text{and }16\text{ layers}")
    says.equal(size.layers, 16)
    run.table("vgg-16", size.table.columns, size.table.rows, "VGG-16, layer by layer, for one image of 224 x 224.")

    x = run.randn(samples, features)
    small = mlp([features, 32, 3], "relu", generator=run.generator)
    averages: dict[str, Method] = {
        "SmoothGrad": partial(smooth_gradient, samples=noisy),
        "integrated gradients": partial(integrated_gradients, steps=steps),
    }
    methods: dict[str, Method] = {
        "sensitivity": sensitivity,
        "gradient × input": gradient_times_input,
        "LRP, epsilon": partial(lrp, rules=Epsilon(1e-6)),
        "LRP, gamma": partial(lrp, rules=Composite(((first_layer, Epsilon(1e-6)),), Gamma(0.25))),
        **averages,
        "occlusion": occlusion,
        "LIME": partial(lime, samples=surrogate),
        "Shapley, exact": shapley,
    }
    cost = {c.method: c for c in explainer_cost(small, x, methods)}
    single = list(methods)[:4]
    says = run.states("C-18", r"\text{gradients and LRP}:\ 1\text{ pass forward and }1\text{ backward}")
    says.equal([n for name in single for n in (cost[name].forwards, cost[name].backwards)], 1.0)
    says.fails("gradients are averaged", [n for c in averages for n in (cost[c].forwards, cost[c].backwards)])
    says = run.states("C-18", r"\text{SmoothGrad: as many backward as copies; integrated gradients: as steps}")
    says.equal([cost[name].backwards for name in averages], [noisy, steps])
    far = run.randn(2, features)
    from_two = once(small, x, partial(integrated_gradients, steps=steps, background=far))
    says.fails(
        "gradients at the input alone, and from two references", [cost["sensitivity"].backwards, from_two.backwards]
    )
    says = run.states("C-18", r"\text{occlusion: }d+1\text{ passes forward}")
    says.equal(cost["occlusion"].forwards, features + 1)
    pairs = torch.arange(features) // 2
    says.fails("features are removed in pairs", once(small, x, partial(occlusion, features=pairs)).forwards)
    says = run.states("C-18", r"\text{beside the score itself, LIME: as many as samples; exact Shapley values: }2^d")
    says.equal([cost["LIME"].forwards - 1, cost["Shapley, exact"].forwards - 1], [surrogate, 2**features])
    wide = once(small, x, partial(lime, samples=surrogate, background=far))
    sampled = once(small, x, partial(shapley, permutations=4))
    says.fails("two references for LIME; Shapley values from 4 orders", [wide.forwards - 1, sampled.forwards - 1])
    run.table(
        "cost",
        ("method", "forward", "backward", "milliseconds", "per second"),
        [(c.method, c.forwards, c.backwards, 1000 * c.seconds, c.per_second) for c in cost.values()],
        caption=f"Per explanation of {features} features, {samples} at a time.",
    )
    counts = [2, 4, 6, 8, 10]
    found = {name: passes(run, name, counts) for name in ("gradient × input", "LRP", "occlusion", "Shapley, exact")}
    run.curves(
        "passes",
        counts,
        found,
        axes=("features", "passes per explanation, both directions"),
        log="y",
        caption="Passes through the network per explanation: constant, linear and exponential in the features.",
    )


def once(net: nn.Module, x: Tensor, method: Method) -> ExplainerCost:
    """What one method costs; its time is not of interest."""
    return explainer_cost(net, x, method, repetitions=1)[0]


def passes(run: Run, name: str, counts: list[int]) -> list[float]:
    method: Method = {
        "gradient × input": gradient_times_input, "LRP": lrp, "occlusion": occlusion, "Shapley, exact": shapley,
    }[name]  # fmt: skip
    found = []
    for d in counts:
        net = mlp([d, 8, 1], "relu", generator=run.generator)
        cost = once(net, run.randn(2, d), method)
        found.append(cost.forwards + cost.backwards)
    return found


def vgg(side: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = 3
    for wide in VGG_16:
        if wide == 0:
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.ReLU()]
            channels = wide
    dense = [512 * (side // 32) ** 2, 4096, 4096, 1000]
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(dense[0], dense[1]), nn.ReLU(), nn.Linear(dense[1], dense[2]), nn.ReLU(),
        nn.Linear(dense[2], dense[3]),
    )  # fmt: skip
