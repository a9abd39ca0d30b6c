"""Networks and symmetries: what commutes with shifts, which layer ends that, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.equivariance.actions import Grid, translations
from torchtheory.equivariance.average import group_average
from torchtheory.equivariance.layers import LayerEquivariance, equivariance_by_layer
from torchtheory.equivariance.measure import equivariance_defect, measure_equivariance
from torchtheory.equivariance.universality import circular_average, first_position, subsampled_network
from torchtheory.labs.engine import Run, lab

Padding = Literal["circular", "zeros", "reflect"]


@lab(
    "shift-equivariance",
    room="equivariance",
    covers=["N-56", "M-68"],
    title="Convolutions commute with shifts, and borders, strides and flattening end that",
    full={"size": 32, "inputs": 64, "channels": 16},
    least={"size": 5, "channels": 4},
)
def shift_equivariance(run: Run, size: int = 12, inputs: int = 6, channels: int = 4) -> None:
    """A shifted input gives a shifted output, exactly, as long as the grid has no border.

    Circular convolutions, and full ones of signals that stay inside, have no defect; zeros at the
    border make one that is known in closed form. A stride follows those shifts that it divides.
    With global pooling behind circular convolutions the logits do not change at all. In networks
    with a padded, strided or flattened layer in one place that layer is named, and in the circular
    twin none is.

    Args:
        size: length of the signals, 5 at least; even for the claims about a stride of 2.
        inputs: random signals.
        channels: of the convolutions, 4 at least.
    """
    lemma(run, size, inputs, channels)
    border_formula(run, size, inputs)
    strides(run, size, inputs)
    invariance(run, size, inputs, channels)
    named_layers(run, size, inputs, channels)
    pictures(run, size, inputs, channels)


def convolution(i: int, o: int, padding: Padding = "circular", **settings: Any) -> nn.Conv2d:
    return nn.Conv2d(i, o, 3, padding=1, padding_mode=padding, dtype=torch.float64, **settings)


def lemma(run: Run, size: int, inputs: int, channels: int) -> None:
    """N-56: the lemma, on a ring and on the line."""
    x = run.randn(inputs, 1, size, size)

    def largest(padding: Padding) -> list[float]:
        nets = [
            convolution(1, channels, padding),
            nn.Sequential(convolution(1, channels, padding), nn.Tanh(), convolution(channels, 2, padding, dilation=1)),
        ]
        return [measure_equivariance(net, "translations", x, generator=run.seed).largest for net in nets]

    says = run.states("N-56", r"f_\delta * h = (f*h)_\delta")
    says.equal(largest("circular"), within=1e-13, where="circular convolutions, one and two with tanh between")
    says.fails("zeros at the border", largest("zeros"))
    reach = size // 3
    inside = F.pad(run.randn(inputs, 1, size - 2 * reach), (reach, reach))
    full = nn.Conv1d(1, channels, 3, padding=2, bias=False, dtype=torch.float64)
    shifts = translations(border=0.0, most=reach)
    says = run.states("N-56", r"\operatorname{supp} f_\delta\text{ inside}:\ f_\delta * h = (f*h)_\delta\text{, full}")
    says.equal(
        measure_equivariance(full, shifts, inside, stride=1, elements=2 * reach, generator=run.seed).largest,
        within=1e-13,
    )
    says.fails(
        "shifts over the edge",
        measure_equivariance(
            full, translations(border=0.0), inside, stride=1, elements=2 * size, generator=run.seed
        ).largest,
    )


def border_formula(run: Run, size: int, inputs: int) -> None:
    """N-56: the defect of zero padding, by hand: three entries at the border."""
    x = run.randn(inputs, 1, size)
    kernel = run.randn(1, 1, 3)
    a, _, c = kernel.flatten()
    first, last, before = x[:, 0, 0], x[:, 0, -1], x[:, 0, -2]
    expected = (c * first - a * before) ** 2 + (a**2 + c**2) * last**2

    def squared(padding: Padding) -> Tensor:
        conv = nn.Conv1d(1, 1, 3, padding=1, padding_mode=padding, bias=False, dtype=torch.float64)
        conv.weight.data.copy_(kernel)
        return equivariance_defect(conv, "translations", (0, 0, 1), x).flatten(1).square().sum(1)

    says = run.states(
        ["N-56", "M-68"],
        r"\|f_1*h-(f*h)_1\|^2=(h_1f_0-h_{-1}f_{N-2})^2+(h_{-1}^2+h_1^2)f_{N-1}^2\text{ with zeros at the border}",
    )
    says.equal(squared("zeros"), expected, 1e-12)
    says.fails("the same kernel on a ring", squared("circular"))


def strides(run: Run, size: int, inputs: int) -> None:
    """N-56, M-68: a stride follows the shifts that it divides."""
    x = run.randn(inputs, 1, size, size)
    dividing = [s for s in (1, 2, 3, 4, 8) if size % s == 0 and s < size]
    found = {s: measure_equivariance(convolution(1, 2, stride=s), "translations", x, elements=8) for s in dividing}
    says = run.states(["N-56", "M-68"], r"|\{g: s\mid g\}|/|G| = s^{-2}")
    says.equal([found[s].acting for s in found], [1 / s**2 for s in found], 1e-12)
    even = r"\text{stride 2: }f(gx)\in\{g'f(x)\}\text{ for even shifts }g"
    if size % 2:
        run.not_applicable(["N-56", "M-68"], even, f"a stride of 2 does not divide a ring of {size} places")
        return
    net = convolution(1, 2, stride=2)

    def nearest(shift: int) -> Tensor:
        """The least relative distance of the output to any shift of the one before."""
        with torch.no_grad():
            after, before = net(x.roll(shift, 3)), net(x)
            tried = [before.roll((i, j), (2, 3)) for i in range(size // 2) for j in range(size // 2)]
            norms = torch.stack([torch.linalg.vector_norm((after - t).flatten(1), dim=1) for t in tried])
            size_before: Tensor = torch.linalg.vector_norm(before.flatten(1), dim=1)
        return norms.amin(0) / size_before

    says = run.states(["N-56", "M-68"], even)
    says.equal(torch.cat([nearest(k) for k in (2, 4)]), within=1e-12)
    says.fails("odd shifts", torch.cat([nearest(k) for k in (1, 3)]))


def invariance(run: Run, size: int, inputs: int, channels: int) -> None:
    """M-68: logits that shifts leave alone."""
    x = run.randn(inputs, 1, size, size)

    def largest(*layers: nn.Module) -> float:
        return measure_equivariance(nn.Sequential(*layers).double(), "translations", x, generator=run.seed).largest

    def pooled() -> tuple[nn.Module, ...]:
        return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 3)

    says = run.states("M-68", r"\text{circular convolutions, then a global mean: }f(gx)=f(x)")
    broken: dict[str, Callable[[], tuple[nn.Module, ...]]] = {
        "zeros at the border": lambda: (convolution(1, channels, "zeros"), nn.ReLU(), *pooled()),
        "a stride of 2": lambda: (convolution(1, channels, stride=2), nn.ReLU(), *pooled()),
        "local pooling, then a layer with a weight for every position": lambda: (
            convolution(1, channels), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(channels * (size // 2) ** 2, 3),
        ),
    }  # fmt: skip
    for words, layers in broken.items():
        says.equal(largest(convolution(1, channels), nn.ReLU(), *pooled()), within=1e-12)
        says.fails(words, largest(*layers()))


def network(size: int, channels: int, broken: str = "", place: int = 0) -> nn.Sequential:
    """A circular network with global pooling, and one layer of it broken."""
    layers: list[nn.Module] = []
    for k in range(3):
        bad = broken if k == place else ""
        i = 1 if k == 0 else channels
        padding: Padding = "zeros" if bad == "zeros" else "reflect" if bad == "reflect" else "circular"
        layers.append(convolution(i, channels, padding, stride=2 if bad == "stride" else 1))
        layers.append(nn.MaxPool2d(2) if bad == "pooling" else nn.ReLU())
    if broken == "flatten":
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * size**2, 3)).double()
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 3)).double()


def first_number(found: LayerEquivariance) -> int:
    return -1 if found.first is None else int(found.first.name)


def named_layers(run: Run, size: int, inputs: int, channels: int) -> None:
    """M-68: the layer that was broken is the one that is named."""
    x = run.randn(inputs, 1, size, size)
    planted = {(b, p): 2 * p + (b == "pooling") for b in ("zeros", "reflect", "stride", "pooling") for p in range(3)}
    planted["flatten", 0] = 7
    found = {case: equivariance_by_layer(network(size, channels, *case), "translations", x) for case in planted}
    twin = equivariance_by_layer(network(size, channels), "translations", x)
    says = run.states("M-68", r"\text{the first layer with }h(gz)\ne g\,h(z)\text{ is the one that was changed}")
    says.equal([first_number(f) for f in found.values()], list(planted.values()))
    says.fails("the circular twin, where no layer was", [first_number(twin)] * len(planted))
    rows = [
        (b, place, f.first.place if f.first else "", f.first.reason if f.first else "")
        for ((b, _), place), f in zip(planted.items(), found.values(), strict=True)
    ]
    run.table(
        "layers", ["changed", "layer", "named", "which"], rows, caption="One layer of a circular network changed."
    )


def pictures(run: Run, size: int, inputs: int, channels: int) -> None:
    x = run.randn(min(inputs, 6), 1, size, size)  # every shift of every input
    padded = nn.Sequential(convolution(1, channels, "zeros"), nn.ReLU(), convolution(channels, channels, "zeros"))
    by_shift = measure_equivariance(padded, "translations", x, elements=size**2, generator=run.seed)
    net = nn.Sequential(
        convolution(1, channels), nn.ReLU(), convolution(channels, channels, "zeros"), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(channels * (size // 2) ** 2, 3),
    ).double()  # fmt: skip
    by_layer = equivariance_by_layer(net, "translations", x)

    def plot(axes: Any) -> None:
        by_shift.plot(axes[0, 0])
        axes[0, 0].set_title("two convolutions with zeros at the border")
        by_layer.plot(axes[0, 1])
        axes[0, 1].set_title("a network, layer by layer")

    run.figure(
        "defects",
        plot,
        grid=(1, 2),
        size=(11, 4.2),
        caption="Left: mean relative defect of every shift. Right: what each layer adds on its own, and the defect "
        "of its outputs; at a cross some shifts have no counterpart behind the layer.",
    )


# ---------------------------------------------------------------------------------- universality


@lab(
    "equivariant-networks",
    room="equivariance",
    covers=["A-129"],
    title="What circular convolutional networks cannot fit, and padding and subsampling can",
    full={"size": 16, "units": 64, "inputs": 64, "steps": 2000},
    least={"size": 8, "steps": 5},
)
def equivariant_networks(run: Run, size: int = 8, units: int = 12, inputs: int = 16, steps: int = 150) -> None:
    """Circular networks stay away from every function by its distance to its average over shifts.

    The inputs come with all their shifts, so that the average is the nearest equivariant function
    exactly. The average of a network with one hidden layer is written down as a circular network,
    which attains the distance. Zeros at the border single out a position, and subsampling turns
    positions into channels: both fit what circular networks cannot. Twins that are trained, with
    zeros and on the ring, end on the two sides of the distance.

    Args:
        size: length of the signals.
        units: of the dense network.
        inputs: random signals.
        steps: of training.
    """
    run.assumes(size.bit_count() == 1, f"a signal is halved until one position is left, and {size} is no power of 2")
    base = run.randn(inputs, 1, size)
    x = torch.cat([base.roll(k, 2) for k in range(size)])
    dense = nn.Sequential(nn.Linear(size, units), nn.Tanh(), nn.Linear(units, size)).double()
    target = nn.Sequential(nn.Flatten(), dense, nn.Unflatten(1, (1, size)))
    blocks(run, base)
    nearest_equivariant(run, base, x, target, dense)
    subsampling(run, x, target, dense)
    padding(run, base, x)
    trained(run, x, size, steps)


def error(f: nn.Module, g: nn.Module, x: Tensor) -> float:
    """Mean squared distance of two networks."""
    with torch.no_grad():
        return float((f(x) - g(x)).square().flatten(1).sum(1).mean())


def ring(channels: list[int], mode: Padding = "circular", kernel: int = 3, subsampled: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, o in pairwise(channels):
        stride = 2 if subsampled and not layers else 1
        layers += [nn.Conv1d(i, o, kernel, stride, kernel // 2, padding_mode=mode), nn.Tanh()]
    return nn.Sequential(*layers[:-1]).double()


def blocks(run: Run, base: Tensor) -> None:
    """Stacks of blocks without pooling, and with subsampling."""
    shapes = [[1, 4, 1], [1, 3, 5, 2], [1, 2, 2, 2, 2]]

    def largest(group: Any = "translations", **settings: Any) -> list[float]:
        return [measure_equivariance(ring(s, **settings), group, base, elements=8).largest for s in shapes]

    says = run.states("A-129", r"\text{circular blocks without pooling: }\Phi(gx)=g\,\Phi(x)")
    says.equal(largest(), within=1e-12)
    says.fails("zeros at the border", largest(mode="zeros"))
    even, odd = translations(2), [1, 3]
    says = run.states("A-129", r"\text{subsampled by 2: }\Phi(gx)=g'\Phi(x)\text{ for even shifts}")
    says.equal(largest(even, subsampled=True), within=1e-12)

    def off_the_grid(channels: list[int]) -> float:
        """The least distance of the output for odd shifts to any shift of the output."""
        net = ring(channels, subsampled=True)
        with torch.no_grad():
            y = net(base)
            other = [net(base.roll(k, 2)) for k in odd]
        return min(float((o - y.roll(j, 2)).norm() / y.norm()) for o in other for j in range(y.shape[2]))

    says.fails("odd shifts, against every shift of the output", [off_the_grid(s) for s in shapes])


def nearest_equivariant(run: Run, base: Tensor, x: Tensor, target: nn.Module, dense: nn.Module) -> None:
    """The average over shifts is the projection onto the equivariant functions."""
    size = x.shape[2]
    average, circular = group_average(target, "translations"), circular_average(dense)
    others = [ring([1, 4, 1]) for _ in range(3)]
    distance = error(target, average, x)
    says = run.states("A-129", r"\|f-\Phi\|^2=\|f-\bar f\|^2+\|\bar f-\Phi\|^2\text{ for equivariant }\Phi")
    says.equal([error(target, o, x) for o in others], [distance + error(average, o, x) for o in others], 1e-12)
    says.fails(
        "inputs that come without their shifts",
        [error(target, o, base) for o in others],
        promised=[error(target, average, base) + error(average, o, base) for o in others],
    )
    says = run.states(
        "A-129", r"\|f-\Phi\|\ge\|f-\bar f\|\text{ for circular networks, and the average is one of them}"
    )
    says.at_least([error(target, c, x) for c in (circular, *others)], distance, 1e-12)
    says.fails("subsampling", error(target, free_of_symmetry(dense, size), x))
    says = run.states("A-129", r"\bar f\text{ of one hidden layer is a circular network of full kernels}")
    says.equal(error(average, circular, x), within=1e-13)
    half = nn.Sequential(*circular)
    half[3] = nn.ConstantPad1d((0, size - 1), 0.0)
    says.fails("zeros instead of the other end behind the hidden layer", error(average, half, x))
    keep = first_position(size)
    norms = x.square().flatten(1).sum(1).mean()
    run.states("A-129", r"\|f-\bar f\|^2=\tfrac1N(1-\tfrac1N)\,\mathbb E\|x\|^2\text{ for }f(x)=x_0e_0").equal(
        error(keep, group_average(keep, "translations"), x), float(norms) / size * (1 - 1 / size), 1e-12
    )


def free_of_symmetry(dense: nn.Module, size: int) -> nn.Module:
    """The network by convolutions with subsampling, its channels as positions again."""
    return nn.Sequential(subsampled_network(dense), nn.Flatten(), nn.Unflatten(1, (1, size)))


def subsampling(run: Run, x: Tensor, target: nn.Module, dense: nn.Module) -> None:
    """Positions that have become channels: every network with one hidden layer is within reach."""
    halved = free_of_symmetry(dense, x.shape[2])
    says = run.states("A-129", r"\text{with subsampling: }\min_\Phi\|f-\Phi\|=0")
    says.equal(error(target, halved, x), within=1e-13)
    says.fails("no subsampling: the best circular network", error(target, circular_average(dense), x))


def padding(run: Run, base: Tensor, x: Tensor) -> None:
    """Zeros that come in at the border tell where it is."""
    size = x.shape[2]
    only = torch.zeros_like(x)
    only[..., 0] = x[..., 0]
    says = run.states("A-129", r"\text{with zeros at the border: }x\mapsto x_0e_0\text{ by kernels of length 3}")
    with torch.no_grad():
        says.equal(first_position(size)(x), only, 1e-12)
        says.fails("the same kernels on a ring", first_position(size, padding_mode="circular")(x), promised=only)
    found = measure_equivariance(first_position(size), "translations", base, elements=size)
    grid = Grid.fine((size,))
    run.table(
        "shifts",
        ["shift", "mean relative defect of the padded network"],
        [
            (g[2], next(e.mean for e in found.elements if e.element == g))
            for g in list(translations().elements(grid))[1:]
        ],
    )


def trained(run: Run, x: Tensor, size: int, steps: int) -> None:
    """Twins that differ in their borders alone, trained to keep one entry."""
    target = torch.zeros_like(x)
    target[..., 0] = x[..., 0]
    whole = float(target.square().flatten(1).sum(1).mean())
    curves: dict[str, list[float]] = {}
    twins: tuple[tuple[str, Padding], ...] = (("circular", "circular"), ("zeros at the border", "zeros"))
    for words, mode in twins:
        net = ring([1, 8, 8, 1], mode, kernel=5)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        for _ in range(steps):
            loss = (net(x) - target).square().flatten(1).sum(1).mean()
            curves.setdefault(words, []).append(float(loss.detach()) / whole)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    says = run.states("A-129", r"\|f-\Phi\|^2/\|f\|^2\ge 1-\tfrac1N\text{ for }f(x)=x_0e_0,\ \Phi\text{ trained}")
    says.at_least(curves["circular"][-1], 1 - 1 / size, 1e-9)
    says.fails("zeros at the border", curves["zeros at the border"][-1])
    run.curves(
        "training",
        list(range(1, steps + 1)),
        curves,
        {"distance to the equivariant functions": 1 - 1 / size},
        axes=("step", "relative squared error"),
        caption="Two networks with the same kernels, trained to keep the first entry of a signal: on a ring none "
        "gets below the distance of that function to its average over shifts.",
    )
