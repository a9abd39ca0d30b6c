"""Signal propagation: second moments of activations and gradients over many layers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import COLORS, Run, lab, mean_interval
from torchtheory.nets.activations.table import activation
from torchtheory.nets.feedforward import mlp
from torchtheory.training.initialization import Scheme, draw_weight, initialize, weight_variance
from torchtheory.training.signal_propagation import (
    Signal,
    measure_signal,
    predict_signal,
    predict_signal_of,
)

EXACT = 1e-12

#: Confidence of each statistical comparison.
SURE = 0.9999

SCHEMES: dict[str, Scheme] = {
    "variance 0.05²": 0.05**2,
    "LeCun": "lecun",
    "Xavier": "xavier",
    "He": "he",
    "orthogonal": "orthogonal",
}
NAMES = ("linear", "relu", "tanh", "softplus")


@lab(
    "signal-propagation",
    room="training",
    covers=["N-121"],
    title="How activations and gradients grow or die over depth",
    full={"width": 200, "depth": 50, "networks": 200},
    least={"width": 20, "depth": 5, "networks": 4},
)
def signal_propagation(run: Run, width: int = 40, depth: int = 20, networks: int = 100) -> None:
    """Every initializer with every activation, all networks at once, against the recursion.

    Second moments of the pre-activations going forward and of a random gradient going back are
    measured in `networks` networks of `depth` square layers, and predicted by the mean-field
    recursion. For ReLU the factor a layer is nσ²/2 exactly: 1 for He, ½ for LeCun and Xavier. Look
    at the panels: lines are predicted, dots are measured, and only the flat lines can be trained
    deep.

    Args:
        width: of the layers.
    """
    measured = measure_all(run, width, depth, networks)
    predicted = predict_all(width, depth)
    ratios_of_relu(run, measured, networks)
    agreement(run, measured, predicted, width, depth)
    isometry(run, measured, depth)
    slow_decay(run)
    any_model(run)

    rows = []
    for s, scheme in enumerate(SCHEMES):
        for a, name in enumerate(NAMES):
            forward, backward = predicted[a].forward[s], predicted[a].backward[s]
            rows.append(
                (
                    scheme,
                    name,
                    float(forward[-1] / forward[0]),
                    float(measured.forward[s, a].mean(0)[-1] / measured.forward[s, a].mean(0)[0]),
                    float(backward[0]),
                    float(measured.backward[s, a].mean(0)[0]),
                )
            )
    run.table(
        "over-depth",
        ["scheme", "activation", "$q^L/q^1$ predicted", "measured", "$g^1/g^L$ predicted", "measured"],
        rows,
        caption=f"{depth} layers of {width} units, mean over {networks} networks.",
    )
    run.figure(
        "signal",
        lambda axes: plot_signal(axes, measured, predicted),
        caption="Second moments over depth: lines are the recursion, dots the mean over networks. "
        "LeCun, Xavier and orthogonal have one line in square layers.",
        grid=(2, len(NAMES)),
        size=(12.5, 5.2),
    )


def measure_all(run: Run, width: int, depth: int, networks: int) -> Signal:
    """`[schemes, activations, networks, depth]` either way, as one batched computation."""
    weights = torch.stack(
        [
            torch.stack(
                [draw_weight((networks, width, width), scheme, generator=run.generator) for scheme in SCHEMES.values()]
            )
            for _ in range(depth)
        ]
    )  # [depth, schemes, networks, width, width]
    kinds = [activation(name) for name in NAMES]
    # the activations stand side by side as columns: one product per layer for all of them
    x = run.randn(len(SCHEMES), networks, width, len(NAMES))
    value = x / x.square().mean(-2, keepdim=True).sqrt()
    forward, slopes = [], []
    for layer in range(depth):
        z = weights[layer] @ value
        forward.append(z.square().mean(-2))
        value = torch.stack([f(z[..., a]) for a, f in enumerate(kinds)], -1)
        slopes.append(torch.stack([f.slope(z[..., a]) for a, f in enumerate(kinds)], -1))
    gradient = run.randn(*value.shape)
    gradient = gradient / gradient.square().mean(-2, keepdim=True).sqrt()
    backward = [gradient.square().mean(-2)]
    for layer in range(depth - 1, 0, -1):
        gradient = slopes[layer - 1] * (weights[layer].mT @ gradient)
        backward.append(gradient.square().mean(-2))
    q, g = torch.stack(forward, -1), torch.stack(backward[::-1], -1)
    return Signal(q.transpose(1, 2), g.transpose(1, 2))


def predict_all(width: int, depth: int) -> list[Signal]:
    """The recursion for all schemes at once, one `Signal` an activation."""
    gains = torch.tensor([width * weight_variance(s, width, width) for s in SCHEMES.values()], dtype=torch.float64)
    gains = gains[:, None].expand(-1, depth)
    return [predict_signal(gains, gains, name) for name in NAMES]


def ratios_of_relu(run: Run, measured: Signal, networks: int) -> None:
    """q^{l+1}/q^l under ReLU: independent across layers, of mean nσ²/2 at any width."""
    relu = NAMES.index("relu")
    forward = measured.forward[:, relu]
    ratios = forward[..., 1:] / forward[..., :-1]
    place = {name: s for s, name in enumerate(SCHEMES)}
    he = mean_interval(ratios[place["He"]].ravel(), SURE)
    halved = {name: mean_interval(ratios[place[name]].ravel(), SURE) for name in ("LeCun", "Xavier")}
    count = ratios[0].numel()
    says = run.states("N-121, N-119", r"\text{ReLU with He: } \mathbb E\,q^{\ell+1}/q^\ell=1")
    says.mean(
        he,
        1.0,
        against=(0.5, 2.0),
        where=f"{count} independent ratios of {networks} networks; exact at any "
        "width, since direction and length of a Gaussian vector are independent",
    )
    says.fails("Xavier's weights: half of it is lost in every layer", halved["Xavier"])
    for name, interval in halved.items():
        says = run.states("N-121", rf"\text{{ReLU with {name}: }} \mathbb E\,q^{{\ell+1}}/q^\ell=\tfrac12")
        says.mean(interval, 0.5, against=(0.25, 1.0), where=f"{count} ratios; $2^{{-50}}$ after 50 layers")
        says.fails("He's weights", he)
    linear = NAMES.index("linear")
    straight = measured.forward[:, linear, :, 1:] / measured.forward[:, linear, :, :-1]
    says = run.states("N-121", r"\text{linear layers with LeCun: } \mathbb E\,q^{\ell+1}/q^\ell=1")
    says.mean(straight[place["LeCun"]].ravel(), 1.0, against=(0.5, 2.0), confidence=SURE)
    says.fails("He's weights: doubled each time", straight[place["He"]].ravel())


def agreement(run: Run, measured: Signal, predicted: list[Signal], width: int, depth: int) -> None:
    """Every combination at the last (first) layer, by simultaneous intervals."""
    cases = len(SCHEMES) * len(NAMES)
    he, lecun = list(SCHEMES).index("He"), list(SCHEMES).index("LeCun")
    swapped = list(range(len(SCHEMES)))
    swapped[he], swapped[lecun] = lecun, he
    for word, symbol, found, said in (
        ("forward", "q^L", measured.forward[..., -1], [p.forward[..., -1] for p in predicted]),
        ("backward", "g^1", measured.backward[..., 0], [p.backward[..., 0] for p in predicted]),
    ):
        promises = torch.stack(said, 1)  # [schemes, activations]
        says = run.states(
            "N-121",
            rf"|\mathbb E\ln {symbol}-\ln {symbol}_{{\rm predicted}}|\le L\,|\mathbb E\ln\tfrac2n\chi^2_k|,"
            rf"\ k\sim\mathrm{{Bin}}(n,\tfrac12)\text{{, {word}}}",
        )
        says.at_most(
            farthest(found, promises, cases),
            depth * cost_of_finite_width(width),
            where=f"how far the interval over networks misses the prediction, worst of {cases} "
            "combinations; finite width costs ReLU the most, 5/(2n) + O(1/n²) per layer",
        )
        says.fails("He's and LeCun's weights exchanged", farthest(found, promises[swapped], cases))


def cost_of_finite_width(width: int) -> float:
    r"""$-\mathbb E\ln(\tfrac2n\chi^2_k)$ with $k\sim\mathrm{Bin}(n,\tfrac12)$ units active, one of them at least.

    So much does the logarithm of the second moment lose on average in a layer of ReLU units whose
    mean is kept; $\mathbb E\ln\chi^2_k=\psi(k/2)+\ln2$.
    """
    k = torch.arange(1, width + 1, dtype=torch.float64)
    counts = math.lgamma(width + 1) - torch.lgamma(k + 1) - torch.lgamma(width - k + 1)
    chances = (counts - width * math.log(2)).exp()
    return float(-(chances * (torch.digamma(k / 2) + math.log(4 / width))).sum() / chances.sum())


def farthest(found: Tensor, said: Tensor, cases: int) -> float:
    """Largest distance, on a log scale, from a prediction to the interval of what was measured."""
    gaps = []
    for networks, promise in zip(found.flatten(0, 1), said.flatten(), strict=True):
        # the logarithm of a product over layers is nearly normal, the product is not
        interval = mean_interval((networks / promise).log(), confidence=1 - (1 - SURE) / cases)
        gaps.append(max(0.0, interval.low, -interval.high))
    return max(gaps)


def isometry(run: Run, measured: Signal, depth: int) -> None:
    """Orthogonal linear layers keep every length, in every network and at every depth."""
    linear, names = NAMES.index("linear"), list(SCHEMES)
    ours = measured.forward[names.index("orthogonal"), linear]
    gaussian = measured.forward[names.index("LeCun"), linear]
    back, gaussian_back = (measured.backward[names.index(scheme), linear] for scheme in ("orthogonal", "LeCun"))
    says = run.states(
        "N-121, N-120",
        r"\text{orthogonal linear layers: } q^\ell=q^0 \text{ and } g^\ell=g^L "
        r"\text{ for every } \ell \text{ and every network}",
    )
    says.equal(torch.cat([ours, back]), 1.0, EXACT * depth)
    says.fails("LeCun's weights keep it in the mean only", torch.cat([gaussian, gaussian_back]))


def slow_decay(run: Run) -> None:
    """tanh at nσ² = 1: the second moment dies like 1/(2l), not exponentially."""
    steps = 1000
    gains = torch.tensor([[1.0], [0.9]], dtype=torch.float64).expand(-1, steps)
    q = predict_signal(gains, gains, "tanh").forward
    says = run.states("N-121", r"\tanh \text{ with LeCun: } 2\ell\,q^\ell\to1")
    says.equal(
        2 * steps * q[0, -1],
        1.0,
        2 * math.log(steps) / steps,
        where=f"the recursion at ℓ = {steps}; q' = q - 2q² + ..., whose corrections are of order log(ℓ)/ℓ",
    )
    says.fails("nσ² = 0.9: exponential decay", 2 * steps * q[1, -1])


def any_model(run: Run) -> None:
    """Networks as a user has them: predicted from their weights' norms, measured by autograd."""
    widths, groups, networks = (8, 16, 32, 64, 128), 8, 8
    across, errors, aligned = [], [], []
    for width in widths:
        for _ in range(groups):
            found = torch.stack([relative_errors(run, width) for _ in range(networks)])
            of_rank_one, drawn = found.square().mean((0, 2)).sqrt().tolist()
            across.append(width)
            errors.append(drawn)
            aligned.append(of_rank_one)
    says = run.states(
        "N-121",
        r"\text{a network at one input: } q^\ell \text{ predicted from } \|W_\ell\|_F \text{ errs like } n^{-1/2}",
    )
    says.slope(
        across,
        errors,
        -0.5,
        against=(-1.0, 0.0),
        confidence=0.999,
        where=f"relative errors at layers 2 and 3 of widths n, n, 2n, n, 3 with tanh, n = {widths[0]} to {widths[-1]}; "
        f"root mean squares over {networks} networks",
    )
    says.fails("weights of the same norms and rank one", across, aligned)


def relative_errors(run: Run, width: int) -> Tensor:
    """How far predictions for layers 2 and 3 are off, `[2, 2]`: weights of rank one, then drawn by He's rule."""
    net = mlp([width, width, 2 * width, width, 3], "tanh")
    initialize(net, "he", activation="tanh", generator=run.generator)
    x = run.randn(1, width)
    predicted, measured = predict_signal_of(net, x), measure_signal(net, x, generator=run.generator)
    with torch.no_grad():
        for layer in (m for m in net if isinstance(m, nn.Linear)):
            rank_one = torch.outer(*(run.randn(k) for k in layer.weight.shape))
            layer.weight.copy_(layer.weight.norm() / rank_one.norm() * rank_one)
    aligned = measure_signal(net, x, generator=run.generator)
    return torch.stack([(s.forward[1:3] / predicted.forward[1:3] - 1).double() for s in (aligned, measured)])


def plot_signal(axes: Any, measured: Signal, predicted: list[Signal]) -> None:
    layers = torch.arange(1, measured.depth + 1)
    for a, name in enumerate(NAMES):
        for row, (dots, lines) in enumerate(
            [
                (measured.forward[:, a], predicted[a].forward),
                (measured.backward[:, a], predicted[a].backward),
            ]
        ):
            panel = axes[row, a]
            for s, scheme in enumerate(SCHEMES):
                style = "--" if scheme == "Xavier" else "-"
                panel.plot(layers, lines[s].log10(), style, color=COLORS[s], label=scheme, lw=1.3)
                some = slice(s % 3, None, 3)
                mean = dots[s].mean(0).log10()
                panel.plot(layers[some], mean[some], ".", color=COLORS[s], ms=5)
        axes[0, a].set_title(name)
        axes[1, a].set_xlabel("layer")
    axes[0, 0].set_ylabel("log₁₀ of pre-activations' q")
    axes[1, 0].set_ylabel("log₁₀ of gradients' g")
    axes[0, -1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
