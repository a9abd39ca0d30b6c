"""Layers that do nothing, and residual networks as steps along a flow."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torchdiffeq import odeint

from torchtheory.approximation.network_calculus import deepen
from torchtheory.approximation.universality.identity_layers import deepen_on_box
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.labs.nets.comparing import gap
from torchtheory.nets.feedforward import mlp
from torchtheory.nets.residual.euler import EulerBlock, Field, ode_from_resnet, resnet_from_ode
from torchtheory.nets.residual.layers import residual_network


@lab(
    "identity-layers",
    room="nets",
    covers=["A-131"],
    title="Layers that do nothing: a deeper network contains a shallower one, on a bounded domain",
    full={"layers": 40, "samples": 20_000},
    least={"samples": 6},
)
def identity_layers(run: Run, layers: int = 6, samples: int = 2000) -> None:
    """A network with layers added that carry its values on.

    ReLU layers do it exactly on a box, with one unit for each output, because x = ϱ(x + b) - b
    where x ≥ -b; outside of the box they cut off, and two units for each output, ϱ(x) - ϱ(-x), are
    needed there. Other activations do it up to an error: of order h² by central differences, of
    order h from one side. So a deeper architecture contains the shallower one only where it is
    wide enough, on a bounded domain, and for smooth activations in the limit.

    Args:
        layers: that are added.
        samples: inputs in the box.
    """
    box = [(-1.0, 1.0)] * 3
    x = 2 * run.rand(samples, 3) - 1
    nets = [mlp([3, 8, 2], name, generator=run.generator) for name in ("relu", "tanh", "softplus")]
    deep = [deepen_on_box(net, layers, box) for net in nets]
    says = run.states("A-131", r"x=\varrho_R(x+b)-b\text{ for }x\ge-b:\ \text{the same function on the box}")
    far = [gap(d.network(5 * x), net(5 * x)) for d, net in zip(deep, nets, strict=True)]
    says.equal(
        [gap(d.network(x), net(x)) for d, net in zip(deep, nets, strict=True)],
        within=1e-13,
        where=f"{layers} ReLU layers added, as wide as the output; ReLU, tanh and softplus before",
    )
    says.fails("a box five times as large", far)
    relu = nets[0]
    wide = deepen(relu, 2 + layers)
    says = run.states("A-131", r"x=\varrho_R(x)-\varrho_R(-x)\text{ everywhere, with twice the units}")
    says.equal(gap(wide(50 * x), relu(50 * x)), within=1e-12)
    says.fails("one unit for each value", gap(deep[0].network(50 * x), relu(50 * x)))

    line = mlp([3, 2], generator=run.generator)
    steps = [0.4, 0.2, 0.1, 0.05, 0.025]
    found: dict[tuple[str, bool], tuple[list[float], list[float]]] = {}
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0]).double()] * 3)
    everywhere = torch.cat([x, corners])
    for name in ("tanh", "logistic"):
        for central in (True, False):
            made = [deepen_on_box(line, 2, box, activation=name, step=h, bias=0.4, central=central) for h in steps]
            errors = [gap(d.network(everywhere), line(everywhere)) for d in made]
            found[name, central] = (errors, [d.bound for d in made])
    for name in ("tanh", "logistic"):
        says = run.states("A-131", r"\text{two units near a point with }\varrho'(\lambda)\ne0:\ \text{error}\sim h^2")
        says.slope(
            steps, found[name, True][0], 2.0, 0.05, against=(1.0, 3.0), where=f"{name}, λ = 0.4, two layers added"
        )
        says.fails("one unit, differences from one side", steps, found[name, False][0])
        says = run.states("A-131", r"\text{error}\le\text{the sum of the layers' bounds}")
        promised = found[name, True][1] + found[name, False][1]
        says.at_most(found[name, True][0] + found[name, False][0], promised, where=f"{name}, five steps, both kinds")
        away = deepen_on_box(line, 2, box, activation=name, step=steps[-1], bias=0.4)
        says.fails("a box three times as large", gap(away.network(9 * corners), line(9 * corners)), promised=away.bound)
    run.curves(
        "error",
        steps,
        {f"{name}, {'two units' if c else 'one unit'}": errors for (name, c), (errors, _) in found.items()},
        {f"{name}, {'two units' if c else 'one unit'}": bounds for (name, c), (_, bounds) in found.items()},
        axes=("step h", "largest error on the box"),
        log="xy",
        beside=True,
        caption="An affine map with two layers added that should do nothing; bounds dashed.",
    )


@lab(
    "residual-flow",
    room="nets",
    covers=["A-133"],
    errata=["residual-field-of-preactivations"],
    title="A residual network takes Euler's steps along a flow, at a distance of order 1/L",
    full={"depths": [8, 16, 32, 64, 128, 256, 512, 1024], "samples": 200, "width": 16},
    least={"width": 2, "depths": 4},
    items={"depths": 5},
)
def residual_flow(
    run: Run,
    depths: list[int] = [8, 11, 16, 23, 32, 45, 64, 91, 128],  # noqa: B006
    samples: int = 12,
    width: int = 4,
) -> None:
    """Both directions: a network whose blocks are steps of an equation, and the equation of a network.

    Blocks x + (T/L) h(t, x) come within O(1/L) of the solution, which torchdiffeq computes to
    twelve digits; without the factor 1/L they go nowhere near it. Euler's method with steps of
    length 1 on the equation of a given residual network returns the network, layer by layer. Its
    right-hand side is a function of the layer before, and not of the pre-activation, as printed.
    Look at how the paths approach the solution.

    Args:
        depths: numbers of residual layers.
        samples: random inputs.
        width: of the layers.
    """
    time = 2.0
    field = turning_field(run, width)
    x = run.randn(samples, width)
    exact = flow(field, x, time)
    nets = {d: resnet_from_ode(field, time, d) for d in depths}
    errors = [gap(net(x), exact) for net in nets.values()]
    unscaled = [gap(unscaled_network(field, time, d, depths[0])(x), exact) for d in depths]
    says = run.states("A-133", r"\max_x|\bar\Phi^{(L)}(x)-\phi(T)|\sim1/L\text{ with blocks }x+\tfrac TLh(t,x)")
    # the next term is of relative order 1/L
    says.slope(depths[1:], errors[1:], -1.0, 0.1, against=(-2.0, -0.5, 0.0), where="h(t, x) = tanh(A(t)x + b), T = 2")
    says.fails("blocks of one size whatever the depth", depths[1:], unscaled[1:])
    growth = {d: float(resnet_from_ode(lambda t, y: y, 0.5, d)(torch.ones(1).double())) for d in depths}
    lost = [math.exp(0.5) - value for value in growth.values()]
    promised = [euler_bound(math.exp(0.5), 1.0, 0.5, d) for d in depths]
    says = run.states("A-133", r"|\bar\Phi^{(L)}-\phi(T)|\le\tfrac M{2\Lambda}(e^{\Lambda T}-1)\tfrac TL")
    says.at_most(lost, promised, where="h(t, x) = x, T = 1/2: M = √e, Λ = 1")
    wild = [rough_error(d) for d in depths]
    says.fails("h jumps, so that M is infinite: the bound of its smooth pieces", wild, promised=promised)

    net = residual_network(width, 9, "tanh", generator=run.generator)
    own = ode_from_resnet(net)
    moments = torch.arange(10, dtype=torch.float64)
    with torch.no_grad():
        walked: Tensor = odeint(own, x, moments, method="euler")
        layers = [x]
        for block in net:
            layers.append(block(layers[-1]))
        says = run.states(
            "A-133", r"\bar\Phi^{(\ell)}-\bar\Phi^{(\ell-1)}=h(\ell,\bar\Phi^{(\ell-1)}),\ \ell=1,\dots,L"
        )
        says.equal(
            [gap(a, b) for a, b in zip(walked, layers, strict=True)],
            within=1e-12,
            where="torchdiffeq's Euler method on the network's field, all ten states",
        )
        halved: Tensor = odeint(own, x, moments, method="euler", options={"step_size": 0.5})
        says.fails("steps of 1/2", [gap(a, b) for a, b in zip(halved[1:], layers[1:], strict=True)])

        def printed(t: Tensor, phi: Tensor) -> Tensor:
            # h(l, ·) is the activation, since h(l, Φ) = ϱ(Φ) for the pre-activation Φ
            return torch.tanh(phi)

        wrong: Tensor = odeint(printed, x, moments, method="euler")
    run.refutes("residual-field-of-preactivations", r"h(\ell,\Phi^{(\ell)})=\varrho(\Phi^{(\ell)})").equal(
        gap(wrong[-1], layers[-1]), within=1e-6, where="Euler's steps for the printed h against the network"
    )
    paths = {d: path_of(nets[d], x[:3]) for d in depths[:3]}
    run.figure(
        "flow",
        lambda axes: plot_flow(axes, paths, field, x[:3], time, depths, errors),
        caption="Left: two coordinates of three paths, by networks of several depths; the solution dashed. Right: the "
        "largest error at the end.",
        grid=(1, 2),
        size=(9.5, 3.4),
    )


def unscaled_network(field: Field, time: float, layers: int, shallowest: int) -> nn.Sequential:
    """Blocks at the same moments, all of the size that they have in the shallowest network."""
    return nn.Sequential(*(EulerBlock(field, time * i / layers, time / shallowest) for i in range(layers)))


def turning_field(run: Run, width: int) -> Field:
    """h(t, x) = tanh((A + tB)x + b), smooth in both."""
    a, b = run.randn(width, width) / width**0.5, 0.5 * run.randn(width, width) / width**0.5
    shift = 0.3 * run.randn(width)
    return lambda t, x: torch.tanh(x @ (a + t * b).T + shift)


def flow(field: Field, x: Tensor, time: float) -> Tensor:
    """The solution at the end, to about twelve digits."""
    ends = torch.tensor([0.0, time], dtype=torch.float64)
    path: Tensor = odeint(field, x, ends, method="dopri8", rtol=1e-12, atol=1e-13)
    return path[-1]


def euler_bound(bend: float, lipschitz: float, time: float, layers: int) -> float:
    return bend / (2 * lipschitz) * (math.exp(lipschitz * time) - 1) * time / layers


def rough_error(layers: int) -> float:
    """Euler's error for h that jumps from 0 to 1 just after a step: half of what a step misses."""
    step = 0.5 / layers
    jump = 0.25 + 0.01 * step

    def field(t: Tensor, x: Tensor) -> Tensor:
        return torch.where(t >= jump, 8.0, 0.0) * torch.ones_like(x)

    reached = float(resnet_from_ode(field, 0.5, layers)(torch.zeros(1).double()))
    return abs(8.0 * (0.5 - jump) - reached)


def path_of(net: nn.Sequential, x: Tensor) -> Tensor:
    """The states `[L + 1, s, n]`."""
    found = [x]
    for block in net:
        found.append(block(found[-1]))
    return torch.stack(found).detach()


def plot_flow(
    axes: Any, paths: dict[int, Tensor], field: Field, x: Tensor, time: float, depths: list[int], errors: list[float]
) -> None:
    left, right = axes[0]
    solution: Tensor = odeint(field, x, torch.linspace(0, time, 100).double(), rtol=1e-9, atol=1e-9)
    for k in range(x.shape[0]):
        label = "solution" if k == 0 else None
        left.plot(solution[:, k, 0], solution[:, k, 1], "k--", lw=1, zorder=5, label=label)
    for color, (depth, path) in zip(COLORS, paths.items(), strict=False):
        for k in range(path.shape[1]):
            label = f"L = {depth}" if k == 0 else None
            left.plot(path[:, k, 0], path[:, k, 1], "o-", ms=2.5, lw=0.8, color=color, label=label)
    left.set(xlabel="first coordinate", ylabel="second coordinate", title="paths")
    left.legend()
    right.loglog(depths, errors, "o-", color=COLORS[0], label="measured")
    right.loglog(depths, [errors[-1] * depths[-1] / d for d in depths], "k--", lw=1, label="1/L")
    right.set(xlabel="layers L", ylabel="largest error", title="distance from the solution")
    right.legend()
