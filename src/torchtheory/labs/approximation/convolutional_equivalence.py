"""Dense networks and periodic convolutional networks are the same thing, seen at one place."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.approximation.architectures.convolutional_equivalence import (
    as_convolutional,
    as_fully_connected,
    nonzero_parameters,
)
from torchtheory.approximation.network_calculus import compose
from torchtheory.approximation.piecewise.interpolants import relu_interpolant
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.feedforward import dense, mlp

#: sizes of the grid, channels, hidden widths
CASES: tuple[tuple[tuple[int, ...], int, tuple[int, ...]], ...] = (
    ((7,), 1, (10,)),
    ((8,), 2, (12, 5)),
    ((5, 4), 1, (9, 9, 6)),
    ((3, 2, 4), 1, (8,)),
)


@lab(
    "convolutional-equivalence",
    room="approximation",
    covers=["X-81"],
    title="Every dense network is a periodic convolutional one at one place, and conversely",
    errata=["equivariant-class-dropped"],
    full={"points": 20_000, "doublings": 8},
    least={"points": 10, "doublings": 2},
)
def convolutional_equivalence(run: Run, points: int = 500, doublings: int = 5) -> None:
    r"""Dense networks are turned into convolutional ones and back, and their errors compared.

    The convolutional network has the dense one's value at place 0, the value of the moved input
    at every other place, and as many non-zero parameters. Turned back, each layer has at most as
    many numbers as the places times those of its filters. So a promise for one function becomes a
    promise for the equivariant map it generates: the error over all places is within the bound of
    the dense network, size by size. A map that is not equivariant keeps its distance. Look at the
    errors on the right: both kinds of network have the same.

    Args:
        points: random inputs.
        doublings: networks, each with twice the pieces of the one before.
    """
    there(run)
    back(run)
    ladder = transfer(run, points, doublings)
    floor(run)
    run.figure(
        "transfer",
        lambda axes: plot(axes, run, ladder),
        grid=(1, 2),
        caption="Left: a dense network at the eight shifts of an input, and the convolutional one "
        "at its eight places. Right: promised and measured errors against non-zero parameters.",
    )


def there(run: Run) -> None:
    """From dense to convolutional."""
    at_zero, everywhere, repeated_border, counts, expected = [], [], [], [], []
    rows = []
    for sizes, channels, hidden in CASES:
        inputs = channels * math.prod(sizes)
        net = mlp([inputs, *hidden, 2], generator=run.generator)
        made = as_convolutional(net, sizes, channels=channels)
        x = run.randn(6, channels, *sizes)
        out = made(x)
        origin = (slice(None), slice(None), *[0] * len(sizes))
        at_zero.append(apart(out[origin], net(x.flatten(1))))
        everywhere.append(max(differences(net, x, out, sizes)))
        open_ended = as_convolutional(net, sizes, channels=channels)
        for layer in open_ended:
            if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
                layer.padding_mode = "replicate"
        repeated_border.append(max(differences(net, x, open_ended(x), sizes)))
        counts += nonzero_parameters(made)
        expected += nonzero_parameters(net)
        rows.append((str(list(sizes)), channels, str(list(hidden)), sum(nonzero_parameters(made))))
    says = run.states("X-81", r"\text{convolutional network at place 0}=\text{dense network}")
    says.equal(at_zero, within=1e-13)
    says.fails("the border repeated instead of a circle", repeated_border)
    says = run.states("X-81", r"\Phi^{\mathrm{CNN}}(x)_g=\Phi(T_{-g}x) \text{ at every place } g")
    says.equal(everywhere, within=1e-13)
    says.fails("the border repeated instead of a circle", repeated_border)
    says = run.states("X-81", r"M(\Phi^{\mathrm{CNN}})=M(\Phi), \text{ layer by layer}")
    says.equal(counts, expected)
    says.fails(
        "the dense form of the convolutional network, all places kept",
        [sum(nonzero_parameters(as_fully_connected(made, sizes)))],
        promised=[sum(nonzero_parameters(net))],
    )
    run.table("networks", ["grid", "channels", "hidden widths", "non-zero parameters"], rows)


def differences(net: nn.Module, x: Tensor, out: Tensor, sizes: tuple[int, ...]) -> list[float]:
    """At each place, the output against the dense network of the moved input."""
    axes = tuple(range(2, 2 + len(sizes)))
    found = []
    for place in torch.cartesian_prod(*map(torch.arange, sizes)).reshape(-1, len(sizes)).tolist():
        moved = torch.roll(x, [-p for p in place], axes)
        found.append(apart(out[(slice(None), slice(None), *place)], net(moved.flatten(1))))
    return found


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max())


def back(run: Run) -> None:
    """From convolutional to dense: other filters than those made above."""
    errors, counts, bounds, other, untied = [], [], [], [], []
    for size, taps, channels in ((9, 3, 4), (12, 5, 3), (6, 4, 8)):
        layers: list[nn.Module] = []
        for before, after in ((1, channels), (channels, channels), (channels, 2)):
            layer = nn.Conv1d(
                before, after, taps, padding="same", padding_mode="circular",
                dtype=torch.float64, device="meta",
            ).to_empty(device="cpu")  # fmt: skip
            with torch.no_grad():
                for p in layer.parameters():
                    p.copy_(run.randn(*p.shape))
            layers += [layer.requires_grad_(False), nn.ReLU()]
        net = nn.Sequential(*layers[:-1])
        x = run.randn(10, 1, size)
        made = as_fully_connected(net, [size], place=[0])
        errors.append(apart(made(x.flatten(1)), net(x)[:, :, 0]))
        other.append(apart(made(x.flatten(1)), net(x)[:, :, 1]))
        whole = as_fully_connected(net, [size])
        counts += nonzero_parameters(whole)
        bounds += [size * m for m in nonzero_parameters(net)]
        full = [m for m in whole if isinstance(m, nn.Linear)]
        untied += [m.weight.numel() + m.bias.numel() for m in full]
    says = run.states("X-81", r"\text{dense network}=\text{convolutional network at place 0}")
    says.equal(errors, within=1e-12)
    says.fails("compared with place 1", other)
    says = run.states("X-81", r"M_\ell(\text{dense})\le|G|\cdot M_\ell(\text{convolutional}), \text{ layer by layer}")
    says.at_most(counts, bounds)
    says.fails("dense layers without the structure: all entries free", untied)


def wave(x: Tensor) -> Tensor:
    return torch.sin(2 * math.pi * x)


def transfer(run: Run, points: int, doublings: int) -> list[tuple[int, int, float, float, float]]:
    """Dense approximants of one ridge function, and the equivariant map it generates."""
    d = 8
    direction = run.randn(1, d)
    direction = direction / direction.abs().sum()
    x = run.rand(points, d) - 0.5
    # the equivariant map: the function of the input, moved back from each place
    target = torch.stack([wave(torch.roll(x, -g, 1) @ direction[0]) for g in range(d)], 1)
    plain = wave(x @ direction[0])
    ridge = nn.Sequential(dense(direction, torch.zeros(1, dtype=torch.float64)))
    rows = []
    shuffled = []
    for k in range(doublings):
        line = relu_interpolant(wave, 4 << k, (-0.5, 0.5), curvature=4 * math.pi**2)
        assert isinstance(line.network, nn.Sequential)
        net = compose(line.network, ridge)
        made = as_convolutional(net, [d])
        out = made(x[:, None])[:, 0]
        one = apart(net(x)[:, 0], plain)
        rows.append((sum(nonzero_parameters(net)), sum(nonzero_parameters(made)), line.bound, one,
                     apart(out, target)))  # fmt: skip
        shuffled.append(apart(out.flip(1), target))
    says = run.states(
        "X-81",
        r"\|f-\Phi\|_\infty\le\epsilon\implies\max_g\|F_g-\Phi^{\mathrm{CNN}}_g\|_\infty\le"
        r"\epsilon,\ F(x)_g=f(T_{-g}x)",
    )
    says.at_most([row[4] for row in rows], [row[2] for row in rows], 1e-12)
    says.fails("a map that moves the other way round the circle", shuffled)
    run.table(
        "transfer",
        ["parameters, dense", "parameters, convolutional", "promised", "dense", "all places"],
        rows,
        caption=f"A ridge function of {d} variables, and the map it generates",
    )
    return rows


def floor(run: Run) -> None:
    """The constant map to the first unit vector, at an input that no shift changes."""
    d = 8
    unit = torch.zeros(d, dtype=torch.float64)
    unit[0] = 1
    errors, depths = [], []
    for hidden in ((16,), (32, 32), (64, 64, 64)):
        net = mlp([d, *hidden, 1], generator=run.generator)
        made = as_convolutional(net, [d])
        out = made(torch.zeros(1, 1, d, dtype=torch.float64))[0, 0]
        # its last bias is free: the best one puts the constant in the middle of 0 and 1
        best = out - out.mean() + 0.5
        errors.append(float((best - unit).abs().max()))
        depths.append(len(hidden) + 1)
    says = run.states("X-81", r"F(x)=e_0 \text{ is not equivariant}:\ \|F-\Phi^{\mathrm{CNN}}\|_\infty\ge\tfrac12")
    says.at_least(errors, 0.5, 1e-12)
    says.fails(
        "a dense layer without weight sharing",
        apart(dense(torch.zeros(d, d).to(unit), unit)(torch.zeros_like(unit)), unit),
    )
    run.refutes(
        "equivariant-class-dropped", r"\text{every } F\in C^\beta \text{ is approximated: error }\le\tfrac14"
    ).at_most(min(errors), 0.25, where="the best of three depths for the constant map to the first unit vector")


def plot(axes: Any, run: Run, ladder: list[tuple[int, int, float, float, float]]) -> None:
    left, right = axes[0]
    d = 8
    generator = torch.Generator().manual_seed(run.seed)
    net = mlp([d, 12, 1], generator=generator)
    x = torch.randn(1, d, dtype=torch.float64, generator=generator)
    moved = torch.cat([net(torch.roll(x, -g, 1)) for g in range(d)]).flatten().detach()
    left.plot(range(d), moved, "o", ms=9, mfc="none", color=COLORS[0], label="dense, input moved")
    made = as_convolutional(net, [d])(x[:, None])[0, 0]
    left.plot(range(d), made, "x-", color=COLORS[1], linewidth=0.8, label="convolutional")
    left.set(xlabel="place on the circle", ylabel="value", title="the same numbers")
    left.legend()
    sizes = [row[1] for row in ladder]
    right.loglog(sizes, [row[2] for row in ladder], color="0.4", label="promised")
    right.loglog(sizes, [row[3] for row in ladder], "o", mfc="none", ms=8, color=COLORS[0],
                 label="dense, one function")  # fmt: skip
    right.loglog(sizes, [row[4] for row in ladder], "x", color=COLORS[1],
                 label="convolutional, all places")  # fmt: skip
    right.set(xlabel="non-zero parameters", ylabel="largest error", title="the promise carries over")
    right.set_xticks(sizes, [str(n) for n in sizes])
    right.set_xticks([], minor=True)
    right.legend()
