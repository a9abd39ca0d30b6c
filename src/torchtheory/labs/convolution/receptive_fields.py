"""Receptive fields: what a unit can see, and where its gradient comes from."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.convolution.receptive_fields import (
    dependence,
    effective_receptive_field,
    receptive_fields,
)
from torchtheory.labs.engine import COLORS, Run, lab


@lab(
    "receptive-fields",
    room="convolution",
    covers=["M-80", "N-64"],
    title="Fields grow with depth, what is looked at with its root",
    full={"networks": 50, "draws": 150, "channels": 64},
    least={"networks": 2, "draws": 20, "channels": 8},
)
def fields(run: Run, networks: int = 8, draws: int = 96, channels: int = 32) -> None:
    """The recursion against the support of gradients and against what units depend on in fact.

    Random chains of convolutions and pools, with strides and dilations. Then where squared
    gradients come from in linear chains with independent weights: their variance adds up over
    layers, so the effective field grows like the root of the depth. The picture shows it inside of
    the field that the recursion gives.

    Args:
        networks: random chains of layers.
        draws: of the weights of each linear chain, 20 at least.
        channels: of the linear chains, 8 at least, and 900 together with the draws.
    """
    run.assumes(
        draws * channels >= 900,
        f"{draws} draws of {channels} channels tell the variances of gradients apart only where they make 900",
    )
    recursion(run, networks)
    by_hand(run)
    variances(run, draws, channels)


def recursion(run: Run, networks: int) -> None:
    length = 160
    chains = [chain(run) for _ in range(networks)]
    promised = [last_size(net, (3, length)) for net in chains]
    x = run.randn(16, 3, length)
    supports = [extent(effective_receptive_field(net, x, probes=4, generator=run.generator).support) for net in chains]
    says = run.states(
        "M-80, N-64", r"r_\ell=r_{\ell-1}+\delta_\ell(k_\ell-1)\prod_{i<\ell}s_i=\text{extent of the gradient}"
    )
    says.equal(supports, promised, where=f"{networks} random chains of 3 layers with strides and dilations, and ReLU")
    skipped = [
        extent(effective_receptive_field(Widened(net), x, probes=4, generator=run.generator).support) for net in chains
    ]
    says.fails("a shortcut through a filter of 61 taps beside the chain", skipped)
    seen = [extent(dependence(net, (3, length))[-1].box or ()) for net in chains]
    says = run.states("M-80, N-64", r"r_\ell=\text{extent of what the unit depends on, whatever the weights}")
    says.equal(seen, promised)
    says.fails("the shortcut", [extent(dependence(Widened(net), (3, length))[-1].box or ()) for net in chains])


def by_hand(run: Run) -> None:
    """Two 3 x 3 layers see what one 5 x 5 layer sees; after a stride of 2 a layer adds twice as much."""
    two = nn.Sequential(nn.Conv2d(1, 1, 3), nn.Conv2d(1, 1, 3))
    strided = nn.Sequential(nn.Conv2d(1, 1, 3, stride=2), nn.Conv2d(1, 1, 3))
    dilated = nn.Sequential(nn.Conv2d(1, 1, 3), nn.Conv2d(1, 1, 3, dilation=4))
    says = run.states(
        "M-80, N-64", r"3\times3\text{ twice: }5;\ \text{after a stride of }2:\ 7;\ \text{dilation }4:\ 11"
    )
    says.equal([last_size(net, (1, 32, 32)) for net in (two, strided, dilated)], [5, 7, 11])
    pooled = [nn.Sequential(nn.MaxPool2d(2), *net) for net in (two, strided, dilated)]
    says.fails("a 2 × 2 pool in front of them", [last_size(net, (1, 32, 32)) for net in pooled])


def variances(run: Run, draws: int, channels: int) -> None:
    depths = (1, 2, 4, 8, 12)
    found: dict[int, list[float]] = {}
    ends: dict[int, list[float]] = {}
    energies = {}
    for depth in run.track(depths, "depths"):
        length = 2 * depth + 5
        nets = [linear_chain(depth, channels) for _ in range(2)]
        places = torch.arange(length, dtype=torch.float64) - length // 2
        profiles = []
        for net, kept in zip(nets, (found, ends), strict=True):
            totals, spreads = [], []
            for _ in range(draws):
                draw(run, net, even=kept is found)
                x = torch.zeros(1, channels, length, dtype=torch.float64)
                seen = effective_receptive_field(net, x, generator=run.generator)
                totals.append(seen.total)
                spreads.append(float((seen.energy * places.square()).sum()) / depth)
                profiles.append(seen.energy)
            kept[depth] = of_the_mean(totals, spreads)
        energies[depth] = torch.stack(profiles[:draws]).mean(0)
        promised = receptive_fields(nets[0], (channels, length))[-1].deviation
        assert promised is not None
        per_layer = promised[0] ** 2 / depth
        says = run.states(
            "M-80",
            r"\operatorname{Var}\text{ of }\mathbb E|\nabla y|^2"
            r"=\tfrac1{12}\sum_\ell\delta_\ell^2(k_\ell^2-1)j_{\ell-1}^2\text{, per layer}",
        )
        says.mean(
            found[depth],
            per_layer,
            0.02,
            against=(1 / 3, 1.0),
            where=f"{depth} linear layers of 3 taps and {channels} channels with independent weights",
        )
        says.fails("weights at the ends of each filter only", ends[depth])
    widths = [math.sqrt(depth * sum(found[depth]) / draws) for depth in depths]
    says = run.states("M-80", r"\text{effective width}\sim\text{depth}^{1/2}")
    says.slope(depths, widths, 0.5, 0.03, against=(1.0, 0.75))
    sizes = [last_size(linear_chain(d, 2), (2, 9)) - 1.0 for d in depths]
    run.curves(
        "growth",
        depths,
        {"deviation of the squared gradient": widths},
        {
            r"$\sqrt{2L/3}$": [math.sqrt(2 * d / 3) for d in depths],
            "half of the field": [s / 2 for s in sizes],
        },
        axes=("layers L", "places"),
        log="xy",
        caption="Linear chains of 3 taps: the field grows like the depth, what is looked at like its root.",
    )
    run.figure(
        "profiles",
        lambda ax: plot_profiles(ax, energies),
        caption="Where the squared gradient of the middle unit comes from, places over half of the field: the deeper "
        "the chain, the smaller the part of the field that is looked at.",
    )


def of_the_mean(totals: list[float], spreads: list[float]) -> list[float]:
    """Values with the mean of all gradients' variance, and its spread: a ratio of two means."""
    weights = [t * len(totals) / sum(totals) for t in totals]
    ratio = sum(w * s for w, s in zip(weights, spreads, strict=True)) / len(spreads)
    return [ratio + w * (s - ratio) for w, s in zip(weights, spreads, strict=True)]


class Widened(nn.Module):
    """A chain with a wide filter beside it."""

    def __init__(self, inner: nn.Sequential) -> None:
        super().__init__()
        self.inner = inner
        self.wide = nn.Conv1d(3, 3, 61, padding=30, dtype=torch.float64)
        self.end = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        made = self.inner(x)
        beside = self.wide(x)
        step = beside.shape[2] // made.shape[2]
        middle = beside[:, :, (beside.shape[2] // 2) % step :: step]
        first = max(0, middle.shape[2] // 2 - made.shape[2] // 2)
        out: Tensor = self.end(made + middle[:, :, first : first + made.shape[2]].sum(1, keepdim=True))
        return out


def chain(run: Run) -> nn.Sequential:
    """Three layers with random taps, strides and dilations, and a small field."""
    layers: list[nn.Module] = []
    before = 3
    for _ in range(3):
        taps, stride, dilation = (int(torch.randint(1, most, (), generator=run.generator)) for most in (4, 3, 3))
        layers += [nn.Conv1d(before, 4, taps, stride, dilation=dilation, dtype=torch.float64), nn.LeakyReLU()]
        before = 4
    return nn.Sequential(*layers)


def linear_chain(depth: int, channels: int) -> nn.Sequential:
    layers = [nn.Conv1d(channels, channels, 3, padding=1, bias=False, dtype=torch.float64) for _ in range(depth)]
    return nn.Sequential(*layers)


def draw(run: Run, net: nn.Sequential, *, even: bool) -> None:
    """Independent weights of variance 1 / fan-in; with the middle tap left out unless even."""
    with torch.no_grad():
        for layer in net:
            weight = layer.weight
            assert isinstance(weight, Tensor)
            weight.copy_(run.randn(*weight.shape) / math.sqrt(weight[0].numel()))
            if not even:
                weight[:, :, 1] = 0


def last_size(net: nn.Module, shape: tuple[int, ...]) -> float:
    size = receptive_fields(net, shape)[-1].size
    assert size is not None
    return float(size[0])


def extent(box: tuple[tuple[int, int], ...]) -> float:
    return float(box[0][1] - box[0][0] + 1)


def plot_profiles(ax: Any, energies: dict[int, Tensor]) -> None:
    for color, (depth, energy) in zip(COLORS, energies.items(), strict=False):
        half = len(energy) // 2
        places = (torch.arange(len(energy)) - half) / (depth + 0.5)
        ax.plot(
            places.numpy(),
            (energy / energy.max()).numpy(),
            "o-",
            color=color,
            markersize=3,
            label=f"{depth} layer{'s' * (depth > 1)}",
        )
    ax.set(xlim=(-1.2, 1.2), xlabel="place, over half of the field", ylabel="squared gradient, over its largest")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
