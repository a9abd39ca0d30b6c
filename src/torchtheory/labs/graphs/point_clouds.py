"""PointNet on generated clouds: symmetric, trained, and what it looks at."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.figure import COLORS
from torchtheory.equivariance.measure import measure_equivariance
from torchtheory.graphs.point_net import (
    PointNet,
    PointNetSegmentation,
    critical_points,
    orthogonality_penalty,
)
from torchtheory.labs.engine import Run, lab
from torchtheory.labs.nets.comparing import gap
from torchtheory.nets.feedforward import mlp

SHAPES = ("sphere", "cube", "cylinder")

#: Of the penalty on the second T-net, without which its matrix blows up.
PENALTY = 1e-2


@lab(
    "point-clouds",
    room="graphs",
    covers=["N-100"],
    errata=["t-nets-rigid"],
    title="PointNet: classes of point clouds by their critical points",
    full={"clouds": 2000, "points": 256, "local": 64, "features": 1024, "epochs": 30},
    least={"clouds": 30, "points": 8, "local": 6, "features": 20, "epochs": 12},
)
def point_clouds(
    run: Run, clouds: int = 300, points: int = 40, local: int = 16, features: int = 64, epochs: int = 20
) -> None:
    """A network of point clouds that does not know the order of the points, nor most of them.

    Spheres, cubes and cylinders are told apart, and the caps of a cylinder from its side. Outputs
    do not depend on the order of the points; the points where no maximum is attained can be left
    out, and others like them added, without any change. The matrices of the trained T-nets are no
    rotations. The picture shows clouds with their critical points.

    Args:
        clouds: to train on.
        points: of each.
        local: features of a point.
        features: of a cloud.
        epochs: passes over the clouds.
    """
    sizes(run)
    x, y = shapes(run, clouds, points)
    net = PointNet(3, local, features, generator=run.generator, dtype=torch.float32)
    train(run, net, x.float(), y, epochs)
    net = net.double()
    classes(run, net, clouds, points, local, features, epochs)
    symmetric(run, net, points)
    critical(run, net, points, features)
    first, second = net.transforms(x[:8])
    run.refutes("t-nets-rigid", r"\text{T-nets apply rigid transformations: }TT^\top=I").equal(
        [float(orthogonality_penalty(t).detach().max()) for t in (first, second)],
        within=1e-3,
        where="the squared distance of TTᵀ from I, both T-nets of the trained network",
    )
    parts(run, clouds, points, local, features, epochs)


def shapes(run: Run, clouds: int, points: int) -> tuple[Tensor, Tensor]:
    """Points on surfaces, turned about the vertical axis, with their class."""
    y = torch.arange(clouds) % 3
    made = torch.stack([surface(run, SHAPES[k], points)[0] for k in y.tolist()])
    angle = 2 * math.pi * run.rand(clouds)
    c, s, o, i = angle.cos(), angle.sin(), torch.zeros_like(angle), torch.ones_like(angle)
    turn = torch.stack([torch.stack([c, -s, o], -1), torch.stack([s, c, o], -1), torch.stack([o, o, i], -1)], -2)
    return made @ turn, y


def surface(run: Run, shape: str, points: int) -> tuple[Tensor, Tensor]:
    """Points on a sphere, a cube or a cylinder of size 1, and which lie on its top or bottom."""
    if shape == "sphere":
        drawn = run.randn(points, 3)
        return drawn / drawn.norm(dim=1, keepdim=True), torch.zeros(points, dtype=torch.long)
    if shape == "cube":
        drawn = 2 * run.rand(points, 3) - 1
        face = torch.randint(3, (points,), generator=run.generator)
        drawn[torch.arange(points), face] = run.signs(points)
        return drawn / math.sqrt(2), (face == 2).long()
    angle, height = 2 * math.pi * run.rand(points), 2 * run.rand(points) - 1
    caps = run.rand(points) < 0.4
    radius = torch.where(caps, run.rand(points).sqrt(), 1.0)
    height = torch.where(caps, height.sign(), height)
    return torch.stack([0.8 * radius * angle.cos(), 0.8 * radius * angle.sin(), height], 1), caps.long()


def train(run: Run, net: PointNet | PointNetSegmentation, x: Tensor, y: Tensor, epochs: int) -> None:
    """Adam on the cross-entropy and the penalty of the second T-net."""
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(x), generator=run.generator), 32):
            optimizer.zero_grad()
            outputs = net(x[batch])
            loss = nn.functional.cross_entropy(outputs.flatten(0, -2), y[batch].flatten())
            loss = loss + PENALTY * orthogonality_penalty(net.transforms(x[batch])[1]).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        rates.step()


def sizes(run: Run) -> None:
    """N-100: the numbers that are printed."""
    cloud = run.randn(5, 3)
    net, parts_net = PointNet(4), PointNetSegmentation(6)
    local, high = net.points(cloud)
    first = parts_net.head[0]
    assert isinstance(first, nn.Linear)
    says = run.states("N-100", r"M\times3\to M\times64\to M\times1024\to1024;\ 64+1024=1088\text{ per point}")
    found = [local.shape[-1], high.shape[-1], first.in_features]
    says.equal([a - b for a, b in zip(found, (64, 1024, 1088), strict=True)], where="local, global, both")
    small = PointNetSegmentation(6, local=32, features=512)
    local, high = small.points(cloud)
    first = small.head[0]
    assert isinstance(first, nn.Linear)
    other = [local.shape[-1], high.shape[-1], first.in_features]
    says.fails("half the widths", [a - b for a, b in zip(other, (64, 1024, 1088), strict=True)])


def classes(run: Run, net: PointNet, clouds: int, points: int, local: int, features: int, epochs: int) -> None:
    test, labels = shapes(run, 150, points)

    def right(model: nn.Module, clouds: Tensor) -> float:
        with torch.no_grad():
            return float((model(clouds).argmax(-1) == labels).double().mean())

    says = run.states(
        "N-100", r"\text{trained, PointNet tells spheres, cubes and cylinders apart: }60\,\%\text{ and more}"
    )
    says.at_least(right(net, test), 0.6, where="share of new clouds that are classified rightly; a third by chance")
    x, _ = shapes(run, clouds, points)
    noise = torch.randint(3, (clouds,), generator=run.generator)
    blind = PointNet(3, local, features, generator=run.generator, dtype=torch.float32)
    train(run, blind, x.float(), noise, 2)
    says.fails("trained on random labels", right(blind, test.float()))


def symmetric(run: Run, net: PointNet, points: int) -> None:
    """N-100: the order of the points."""
    x, _ = shapes(run, 4, points)

    def largest(model: nn.Module, on_output: str) -> float:
        return measure_equivariance(
            model, "permutations", x, on_output=on_output, elements=5, generator=run.seed
        ).largest

    says = run.states("N-100", r"f(PX)=f(X)")
    says.equal(largest(net, "invariant"), within=1e-10, where="the trained network, relative change of the logits")
    flat = nn.Sequential(nn.Flatten(), mlp([3 * points, 16, 3], generator=run.generator))
    says.fails("the points side by side in one vector", largest(flat, "invariant"))
    parts_net = PointNetSegmentation(2, 8, 16, generator=run.generator)
    says = run.states("N-100", r"f(PX)=Pf(X)\text{ for the parts}")
    says.equal(largest(parts_net, "equivariant"), within=1e-10)
    ordered = nn.Sequential(Ordered(), parts_net)
    says.fails("points that know their numbers", largest(ordered, "equivariant"))


class Ordered(nn.Module):
    """Adds its number to each point, a little."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.arange(x.shape[-2], dtype=x.dtype)[:, None]


def critical(run: Run, net: PointNet, points: int, features: int) -> None:
    """N-100: the points that count."""
    many = 6 * points
    counts, kept, lost, added, raised = [], [], [], [], []
    for shape in SHAPES:
        cloud, _ = surface(run, shape, many)
        found = critical_points(net, cloud)
        counts.append(len(found.features))
        whole = net(cloud)
        size = float(whole.detach().abs().max())
        kept.append(gap(net(cloud[found.indices]), whole) / size)
        lost.append(gap(net(cloud[found.indices[: len(found.indices) // 2]]), whole) / size)
        # points that attain no maximum may be repeated, and so may all others
        more = torch.cat([cloud, cloud[torch.randint(many, (20,), generator=run.generator)]])
        added.append(gap(net(more), whole) / size)
        raised.append(gap(net(torch.cat([cloud, 5 * cloud[:1]])), whole) / size)
    says = run.states("N-100", r"\text{at most as many critical points as features}")
    few = PointNet(3, 16, 6, generator=run.generator)  # with so few each has a point of its own
    counts += [len(critical_points(few, surface(run, s, many)[0]).features) for s in SHAPES]
    says.at_most(
        counts,
        [features] * 3 + [6] * 3,
        where=f"clouds of {many} points; {features} features, trained, and 6, as drawn",
    )
    wide = PointNet(3, 16, 12 * features, generator=run.generator)
    says.fails(
        "twelve times as many features",
        [len(critical_points(wide, surface(run, s, 40 * points)[0]).features) for s in SHAPES],
        promised=[features] * 3,
    )
    says = run.states("N-100", r"\text{the critical points alone give the output of the cloud}")
    says.equal(kept, within=1e-10, where="relative change of the logits")
    says.fails("half of them left out", lost)
    says = run.states("N-100", r"\text{points that change no maximum change nothing}")
    says.equal(added, within=1e-10, where="20 points more")
    says.fails("a point five times as far out", raised)
    pictured = [surface(run, shape, 5 * points)[0] for shape in SHAPES]

    def plot(axes: Any) -> None:
        for ax, cloud, shape in zip(axes.flatten(), pictured, SHAPES, strict=True):
            found = critical_points(net, cloud).indices
            a, b = cloud[:, 0] + 0.35 * cloud[:, 1], cloud[:, 2] + 0.35 * cloud[:, 1]
            ax.scatter(a, b, s=6, color="0.75")
            ax.scatter(a[found], b[found], s=16, color=COLORS[1])
            ax.set_title(f"{shape}: {len(found)} of {len(cloud)}", fontsize=9)
            ax.set_aspect("equal")
            ax.axis("off")

    run.figure(
        "critical",
        plot,
        grid=(1, 3),
        size=(7.0, 2.6),
        caption="Clouds and their critical points, which are all that the trained network looks at.",
    )


def parts(run: Run, clouds: int, points: int, local: int, features: int, epochs: int) -> None:
    """N-100: a label for every point."""

    def cylinders(count: int) -> tuple[Tensor, Tensor]:
        made = [surface(run, "cylinder", points) for _ in range(count)]
        return torch.stack([x for x, _ in made]).float(), torch.stack([y for _, y in made])

    x, y = cylinders(clouds // 2)
    net = PointNetSegmentation(2, local, features, generator=run.generator, dtype=torch.float32)
    train(run, net, x, y, epochs)
    test, labels = cylinders(60)

    def right(model: nn.Module) -> float:
        with torch.no_grad():
            return float((model(test).argmax(-1) == labels).double().mean())

    says = run.states("N-100", r"\text{trained, PointNet finds the caps of a cylinder: }70\,\%\text{ and more}")
    says.at_least(right(net), 0.7, where="share of points of new clouds that are labeled rightly; 40 % are on caps")
    blind = PointNetSegmentation(2, local, features, generator=run.generator, dtype=torch.float32)
    says.fails("untrained", right(blind))
