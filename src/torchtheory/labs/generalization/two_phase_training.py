"""Two-phase training: the pattern of active units is learned on a part of the data and frozen."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.data.image_sets import load_image_set
from torchtheory.data.real import digits, split
from torchtheory.generalization.paths.two_phase_training import (
    FrozenGates,
    fit_two_phases,
    gate_pattern,
    gated_outputs,
    matching_epochs,
)
from torchtheory.kernels.paths.deep_paths import path_features
from torchtheory.labs.engine import Interval, Run, lab, mean_interval
from torchtheory.labs.training.autograd_reference import torch_operations
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.tracing.operation_counts import count_operations
from torchtheory.training.loop.trainer import fit

Pair = tuple[Tensor, Tensor]


@lab(
    "two-phase-training",
    room="generalization",
    covers=["B-17", "B-18"],
    errata=["two-phase-gate-layer-index"],
    title="Freezing which units are active after a twentieth of the data costs little accuracy",
    full={"data": "mnist", "samples": 60000, "seeds": 3, "epochs": 2, "batch": 64,
          "learning_rate": 2e-3, "shares": (0.05, 0.1, 0.3, 1.0)},
    least={"seeds": 2, "shares": 0.01, "samples": 200, "epochs": 2, "batch": 30, "learning_rate": 0.002},
    most={"shares": 1, "learning_rate": 0.05},
    items={"shares": 2},
)  # fmt: skip
def two_phase_training_lab(
    run: Run,
    data: Literal["digits", "mnist"] = "digits",
    samples: int = 600,
    seeds: int = 8,
    epochs: int = 8,
    batch: int = 100,
    learning_rate: float = 0.01,
    shares: tuple[float, ...] = (0.05, 0.3, 1.0),
) -> None:
    """Training with gates that a first network has learned and that then stay as they are.

    A value network follows the decisions of a gate network: which unit is active, which entry a
    max pool takes. With the same weights in both it is the ordinary network, and has the ordinary
    gradient, because a pattern of zeros and ones has none. With frozen gates it equals the sum
    over all listed paths, is linear in each layer, and no training moves a gate. Then the curve of
    the source: the accuracy of two-phase training over that of ordinary training (as many steps as
    both phases together), against the share of the data that the gates have seen. Look at the
    figure: how early the curve is near 1, and where the gates of an untrained network would be.

    Args:
        data: `digits`, or `mnist` from files.
        samples: that are trained on.
        seeds: trainings of each kind.
        epochs: of a training.
        batch: samples per step.
        learning_rate: of the training.
        shares: of the data after which the gates are frozen, in (0, 1].
    """
    run.assumes(max(shares) == 1, "the other shares are compared with all of the data, which is not among them")
    identities(run)
    frozen_network(run)
    curve = accuracy_curve(run, data, samples, seeds, epochs, batch, learning_rate, sorted(shares))
    report(run, curve)


# ---------------------------------------------------------------------------------- the identities


def small_networks(run: Run) -> list[tuple[nn.Sequential, Tensor]]:
    """Dense, convolutional with disjoint windows, convolutional with overlapping windows."""
    made: list[tuple[nn.Sequential, Tensor]] = [(mlp([3, 4, 4, 2], generator=run.generator),
                                                 run.randn(12, 3))]  # fmt: skip
    for stride in (2, 1):
        places = 4 if stride == 2 else 9
        net = nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, stride), nn.Flatten(),
            nn.Linear(2 * places, 3), nn.LeakyReLU(0.1), nn.Linear(3, 2),
        ).double()  # fmt: skip
        redraw(net, run)
        made.append((net, run.randn(8, 1, 4, 4)))
    return made


def redraw(net: nn.Module, run: Run) -> None:
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(0.6 * run.randn(*parameter.shape))


def other_weights(net: nn.Sequential, run: Run) -> nn.Sequential:
    other = copy.deepcopy(net)
    redraw(other, run)
    return other


def gradient(outputs: Tensor, net: nn.Module, weights: Tensor) -> Tensor:
    loss = (outputs * weights).sum() + outputs.square().mean()
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])


def identities(run: Run) -> None:
    """Tied gates are the ordinary network; its gradient; the sum over paths."""
    tied, foreign, slopes_, smooth, listed, own = [], [], [], [], [], []
    moved: list[float] = []
    moved_far: list[float] = []
    for net, x in small_networks(run):
        other = other_weights(net, run)
        weights = run.randn(len(x), 2)
        tied.append(distance(gated_outputs(net, net, x), net(x)))
        foreign.append(distance(gated_outputs(net, other, x), net(x)))
        ordinary = gradient(net(x), net, weights)
        slopes_.append(distance(gradient(gated_outputs(net, net, x), net, weights), ordinary))
        by_paths = path_features(other, x).features @ path_features(net, x).weights.mT
        listed.append(distance(gated_outputs(net, other, x), by_paths))
        own.append(distance(gated_outputs(net, other, x), path_features(net, x).outputs))
        for size, found in ((1e-9, moved), (1.0, moved_far)):
            near = copy.deepcopy(net)
            with torch.no_grad():
                for parameter in near.parameters():
                    parameter.add_(size * run.randn(*parameter.shape))
            found.append(distance(path_features(near, x).features, path_features(net, x).features))
    net = mlp([3, 4, 2], nn.SiLU, generator=run.generator)
    x = run.randn(12, 3)
    smooth.append(distance(*(gradient(o, net, x[:, :2]) for o in (silu_with_held_gates(net, x),
                                                                   net(x)))))  # fmt: skip
    says = run.states(
        "B-17", r"[\bar x\circ\bar\sigma(x,w)]^\top\bar w_k=f_k(x) \text{ where gates and values share their weights}"
    )
    says.equal(
        tied, within=1e-12, where="a dense network and two convolutional ones, with disjoint and overlapping windows"
    )
    says.fails("gates of a network with other weights", foreign)
    says = run.states("B-17", r"\nabla_w L \text{ with the gates held fixed is the ordinary gradient}")
    says.equal(slopes_, within=1e-12)
    says.fails("SiLU, whose gate is a smooth function of the weights", smooth)
    says = run.states(
        "B-17",
        r"\partial\tilde z/\partial w=0 \text{ almost everywhere: the features stay when } w \text{ moves a little}",
    )
    says.equal(moved, where="each weight moved by a normal number times 1e-9")
    says.fails("moved by a normal number, across the measure-zero set", moved_far)
    says = run.states(
        "B-17", r"\tilde f_k(x)=\sum_j\bar x_j\,\bar\sigma_j(x,w_\sigma)\,\bar w_{k,j} \text{ with every path listed}"
    )
    says.equal(listed, within=1e-12)
    says.fails("the values' own gates in the sum", own)


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max())


def silu_with_held_gates(net: nn.Sequential, x: Tensor) -> Tensor:
    """x sigmoid(x) as a value times a gate, the gate without a gradient."""
    z = net[0](x)
    out: Tensor = net[2](z * torch.sigmoid(z.detach()))
    return out


def frozen_network(run: Run) -> None:
    """Linear in every layer, gates that no step moves, and what it costs."""
    net = mlp([4, 6, 5, 3], bias=False, generator=run.generator)
    gates = other_weights(net, run)
    x = run.randn(30, 4)
    additive, tied = [], []
    for place in (0, 2, 4):
        second, both = copy.deepcopy(net), copy.deepcopy(net)
        layer = second[place]
        assert isinstance(layer, nn.Linear)
        with torch.no_grad():
            layer.weight.copy_(run.randn(*layer.weight.shape))
        both[place] = dense(2 * weight(net, place) - 3 * weight(second, place))
        combined = 2 * gated_outputs(net, gates, x) - 3 * gated_outputs(second, gates, x)
        additive.append(distance(gated_outputs(both, gates, x), combined))
        tied.append(distance(both(x), 2 * net(x) - 3 * second(x)))
    says = run.states("B-17", r"\tilde f \text{ is linear in each } W^\ell:\ \tilde f(2A-3B)=2\tilde f(A)-3\tilde f(B)")
    says.equal(additive, within=1e-10, where="each of three layers in turn, the others fixed")
    says.fails("gates tied to the weights: the ordinary network", tied)
    y = torch.stack([x[:, 0].sin(), x[:, 1] * x[:, 2], x[:, 3].abs()], 1)
    frozen = FrozenGates(net)
    before = gate_pattern(frozen.gates, x)
    ordinary = copy.deepcopy(net)
    for trained in (frozen, ordinary):
        fit(trained, (x, y), epochs=20, batch_size=10, learning_rate=0.02)
    says = run.states("B-17", r"\text{share of gates that differ after training}")
    says.equal(share_changed(before, gate_pattern(frozen.gates, x)))
    says.fails("ordinary training from the same weights", share_changed(before, gate_pattern(ordinary, x)))
    run.states("B-17", r"\text{arithmetic of a pass and of a training step, two-phase over ordinary}").at_most(
        [
            count_operations(frozen, x) / count_operations(ordinary, x),
            torch_operations(lambda: frozen(x).sum().backward())
            / torch_operations(lambda: ordinary(x).sum().backward()),
        ],
        2.0,
        where="multiplications and additions of the layers, as torch counts them",
    )
    square = mlp([4, 4, 4, 4], bias=False, generator=run.generator)
    with torch.no_grad():
        one = square[:2](x)
        two = square[:4](x)
    run.refutes("two-phase-gate-layer-index", r"z_\sigma^{[\ell-1]}=z^{[\ell]} \text{ where } W_\sigma=W").equal(
        distance(one, two), where="layers of equal width, ℓ = 2: hidden values of the first layer and of the second"
    )


def weight(net: nn.Sequential, place: int) -> Tensor:
    layer = net[place]
    assert isinstance(layer, nn.Linear)
    return layer.weight.detach()


def share_changed(before: list[Tensor], after: list[Tensor]) -> float:
    changed = torch.cat([(a != b).flatten() for a, b in zip(before, after, strict=True)])
    return float(changed.double().mean())


# --------------------------------------------------------------------------------------- the curve


@dataclass
class Curve:
    """Test accuracies, one entry per seed."""

    name: str
    train_size: int
    base: list[float] = field(default_factory=list)
    first: dict[float, list[float]] = field(default_factory=dict)
    both: dict[float, list[float]] = field(default_factory=dict)
    untrained: list[float] = field(default_factory=list)
    part_only: list[float] = field(default_factory=list)

    def ratio(self, values: list[float]) -> Interval:
        return mean_interval([a / b for a, b in zip(values, self.base, strict=True)], 0.95)


def image_data(run: Run, name: str, samples: int) -> tuple[Pair, Pair]:
    """Training and test images as they come, in single precision: the point is the network."""
    if name == "digits":
        x, y = digits()
        (x, y), test = split(x, y, 0.3, run.generator)
    else:
        (x, y), test = load_image_set("mnist")
        x = x.float().unsqueeze(1) / 255
        test = (test[0].float().unsqueeze(1) / 255, test[1])
    order = torch.randperm(len(x), generator=run.generator)[:samples]
    return (x[order], y[order]), test


def make_network(name: str, run: Run) -> nn.Sequential:
    if name == "digits":
        return mlp([64, 48, 10], generator=run.generator, dtype=torch.float32)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    with torch.no_grad():
        for p in net.parameters():  # torch's own range, from the run's generator
            reach = p[0].numel() ** -0.5 if p.ndim > 1 else 0.0
            p.copy_((2 * torch.rand(p.shape, generator=run.generator) - 1) * reach)
    return net


def accuracy(net: nn.Module, test: Pair) -> float:
    parts = zip(torch.split(test[0], 1000), torch.split(test[1], 1000), strict=True)
    with torch.no_grad():
        right = [(net(x).argmax(1) == y).sum() for x, y in parts]
    return int(torch.stack(right).sum()) / len(test[1])


def accuracy_curve(
    run: Run,
    data: str,
    samples: int,
    seeds: int,
    epochs: int,
    batch: int,
    rate: float,
    shares: list[float],
) -> Curve:
    curve = Curve(data, 0)
    train, test = image_data(run, data, samples)
    curve.train_size = len(train[0])
    settings: dict[str, Any] = {"batch_size": batch, "learning_rate": rate, "loss": F.cross_entropy}
    for seed in run.track(range(seeds)):
        start = make_network(data, run)
        order = torch.randperm(len(train[0]), generator=run.generator)
        here = (train[0][order], train[1][order])
        ordinary = copy.deepcopy(start)
        fit(ordinary, here, epochs=2 * epochs, seed=seed, **settings)
        curve.base.append(accuracy(ordinary, test))
        never = FrozenGates(start)
        fit(never, here, epochs=epochs, seed=seed, **settings)
        curve.untrained.append(accuracy(never, test))
        for share in shares:
            made = fit_two_phases(start, here, share, epochs=epochs, seed=seed, **settings)
            curve.first.setdefault(share, []).append(accuracy(made.first, test))
            curve.both.setdefault(share, []).append(accuracy(made.network, test))
            if share == shares[0]:
                alone = FrozenGates(made.first)
                part = (here[0][: made.first_size], here[1][: made.first_size])
                more = matching_epochs(epochs, len(here[0]), made.first_size, batch)
                fit(alone, part, epochs=more, seed=seed, **settings)
                curve.part_only.append(accuracy(alone, test))
    return curve


def report(run: Run, curve: Curve) -> None:
    least, most = min(curve.both), max(curve.both)

    def above_middle(values: list[float]) -> Interval:
        middle = [(b + f) / 2 for b, f in zip(curve.base, curve.first[least], strict=True)]
        return mean_interval([v - m for v, m in zip(values, middle, strict=True)], 0.95)

    near, alone = above_middle(curve.both[least]), above_middle(curve.part_only)
    says = run.states(
        "B-18",
        rf"\alpha={least}: \text{{ accuracy after phase two, above the middle of phase one and ordinary training}}",
    )
    says.at_least(
        near,
        0.0,
        where=f"mean over {len(curve.base)} networks, 95 % interval: the gates of a small sample "
        "are good enough for the values to make up more than half of what is missing",
    )
    says.fails("phase two on the first samples alone, as many steps", alone)
    whole, early = curve.ratio(curve.both[most]), curve.ratio(curve.first[least])
    says = run.states("B-18", r"\alpha=1: \text{ accuracy of two-phase over ordinary training}")
    says.mean(whole, 1.0, 0.01, against=(0.95, 1.05), where="gates and values from all the data, one percent allowed")
    says.fails("phase one alone, with the smallest share", early)
    rows: list[tuple[Any, ...]] = []
    for share, values in curve.both.items():
        seen = curve.ratio(values)
        rows.append((share, max(1, round(share * curve.train_size)), mean(curve.first[share]),
                     mean(values), seen.estimate, seen.low, seen.high))  # fmt: skip
    never = curve.ratio(curve.untrained)
    rows.append((0.0, 0, None, mean(curve.untrained), never.estimate, never.low, never.high))
    run.table(
        "accuracies",
        ("share α", "samples for the gates", "after phase one", "after phase two", "ratio",
         "low", "high"),
        rows,
        caption=f"{curve.name}: test accuracy of ordinary training {mean(curve.base):.4f}; "
        f"{len(curve.base)} networks, 95 % intervals of the ratio. α = 0 are gates of a network "
        "that was never trained. The source prints 0.9947 for MNIST without augmentation as the "
        "base, and no numbers of its curve.",
    )  # fmt: skip
    run.curves(
        "accuracy-ratio",
        list(curve.both),
        {
            "after phase two": [curve.ratio(found) for found in curve.both.values()],
            "after phase one": [curve.ratio(curve.first[share]) for share in curve.both],
        },
        {"gates never trained": never.estimate, "ordinary training": 1},
        axes=("share α of the data for the gates", "accuracy / ordinary training"),
        caption=f"Test accuracy over that of ordinary training ({mean(curve.base):.3f}) on "
        f"{curve.name}, against the share of the data that decides the gates: after phase one, "
        "after phase two, and with the gates of an untrained network.",
    )


def mean(values: list[float]) -> float:
    return sum(values) / len(values)
