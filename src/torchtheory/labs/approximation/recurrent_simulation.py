"""Recurrent networks that follow a given dynamical system, for a time or for ever."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from torchtheory.approximation.architectures.recurrent_simulation import (
    Simulation,
    SystemDistance,
    error_growth,
    euler_system,
    memory_bound,
    memory_profile,
    recurrent_fit,
    simulate_system,
    system_distance,
)
from torchtheory.approximation.architectures.recurrent_systems import DynamicalSystem, ShallowRNN
from torchtheory.approximation.certificates import Box, box_grid
from torchtheory.labs.engine import COLORS, Run, lab


def pendulum(h: Tensor, x: Tensor) -> Tensor:
    """The vector field of a damped pendulum with a torque."""
    angle, speed = h.unbind(-1)
    return torch.stack([speed, -torch.sin(angle) - 0.5 * speed + x[..., 0]], dim=-1)


def rotation(h: Tensor, x: Tensor) -> Tensor:
    """A shrinking rotation that is pushed."""
    turn = torch.tensor([[0.8, -0.4], [0.4, 0.8]], dtype=torch.float64)
    return h @ turn.T + x * torch.tensor([1.0, 0.0], dtype=torch.float64)


LOGISTIC = DynamicalSystem(1, 1, 1, lambda h, x: x * h * (1 - h), lambda h: h)
PENDULUM = DynamicalSystem(2, 1, 1, lambda h, x: h + 0.1 * pendulum(h, x), lambda h: torch.sin(h[..., :1]))
LINEAR = DynamicalSystem(2, 1, 1, rotation, lambda h: h.sum(-1, keepdim=True))
SQUARE: Box = ((-1.0, 1.0), (-1.0, 1.0))

#: name, system, initial states, inputs, steps
CASES: tuple[tuple[str, DynamicalSystem, Box, Box, int], ...] = (
    ("pendulum", PENDULUM, SQUARE, ((-0.5, 0.5),), 15),
    ("logistic map", LOGISTIC, ((0.1, 0.9),), ((3.5, 3.9),), 10),
    ("rotation", LINEAR, SQUARE, ((-1.0, 1.0),), 15),
)

Step = Callable[[Tensor, Tensor], Tensor]
Fits = dict[str, list[tuple[Simulation, SystemDistance]]]


@lab(
    "recurrent-simulation",
    room="approximation",
    covers=["X-90", "X-91", "X-92"],
    title="A recurrent network follows any smooth system, as far as errors let it",
    full={"widths": [16, 32, 64, 128, 256], "samples": 2000, "forever": 5000},
    least={"samples": 10},
)
def recurrent_simulation(run: Run, widths: list[int] | None = None, samples: int = 200, forever: int = 400) -> None:
    """A pendulum, the chaotic logistic map and a pushed rotation become recurrent networks.

    A shallow network is fitted to one step and closed to a loop. Trajectories that also climb
    towards the worst one stay within what the error of one step and the Lipschitz constant
    promise for every time, over a range of widths. A system that forgets can be followed for
    ever; a chaotic one only as long as the exponential growth allows. Euler's steps carry this
    over to continuous time. Look at the promises (lines) and measurements (marks) in time.

    Args:
        widths: units of the fitted networks; 16, 32 and 64 unless given.
        samples: random trajectories.
        forever: steps for which a system that forgets is followed.
    """
    closeness(run, samples)
    fits = simulations(run, widths or [16, 32, 64], samples)
    asked(run, samples)
    profiles = fading(run)
    for_ever(run, forever)
    continuous_time(run)
    run.figure(
        "errors",
        lambda axes: plot(axes, fits, profiles),
        grid=(1, 3),
        size=(13.5, 3.6),
        caption="Left and middle: promised (lines) and measured (marks) errors of the states, for "
        "three widths. Right: what the last output still owes to earlier inputs; the network "
        "with ‖A‖ < 1 forgets at least at the promised rate.",
    )


def distance(
    run: Run,
    case: tuple[str, DynamicalSystem, Box, Box, int],
    made: Simulation,
    samples: int,
    ascent: int = 3,
) -> SystemDistance:
    _, system, initial, inputs, time = case
    return system_distance(
        system,
        made.rnn.system,
        made.decode,
        made.encode,
        initial,
        inputs,
        time,
        samples=samples,
        ascent=ascent,
        generator=run.generator,
    )


def closeness(run: Run, samples: int) -> None:
    """A system has no distance from itself, and a disturbed one no more than the recursion."""
    same: list[float] = []
    shifted: list[float] = []
    promised, measured = [], []
    size = 0.01
    # of f in the state: 1 + 0.1 · 1.28 at most; x (1 - 2h) for h in [-0.1, 1.1]; that of a rotation
    steepest = {"pendulum": 1.128, "logistic map": 3.9 * 1.2, "rotation": math.sqrt(0.8)}
    for name, system, initial, inputs, time in CASES:
        lipschitz = steepest[name]
        identity = (lambda h: h, lambda h: h)

        def kicked(h: Tensor, x: Tensor, step: Step = system.step) -> Tensor:
            made: Tensor = step(h, x) + size * torch.cos(3 * h) / h.shape[-1] ** 0.5
            return made

        other = DynamicalSystem(system.states, system.inputs, system.outputs, kicked, system.read)
        for partner, into in ((system, same), (other, shifted)):
            found = system_distance(
                system,
                partner,
                *identity,
                initial,
                inputs,
                time,
                samples=samples,
                generator=run.generator,
            )
            into.append(found.accuracy)
        promised.append(error_growth(lipschitz, size, time))
        measured.append(found.states)
    says = run.states("X-90", r"\Sigma \text{ approximates itself with accuracy } 0")
    says.equal(same)
    says.fails("a step disturbed by up to 0.01", shifted)
    says = run.states("X-90", r"\|f-\tilde f\|\le\delta:\ e_{t+1}\le\mathrm{Lip}_h(f)\,e_t+\delta")
    says.at_most(torch.cat(measured), torch.cat(promised), 1e-12)
    push = DynamicalSystem(1, 1, 1, lambda h, x: 2 * h, lambda h: h)
    more = DynamicalSystem(1, 1, 1, lambda h, x: 2 * h + size, lambda h: h)
    tight = system_distance(push, more, lambda h: h, lambda h: h, (0.0, 1.0), (0.0, 1.0), 8)
    says.fails("h ↦ 2h with the Lipschitz constant 1, t ≥ 2", tight.states[2:], promised=error_growth(1.0, size, 8)[2:])
    run.states("X-90", r"f(h)=2h,\ \tilde f=f+\delta:\ e_t=\delta(2^t-1)").equal(
        tight.states, error_growth(2.0, size, 8), 1e-12
    )


def simulations(run: Run, widths: list[int], samples: int) -> Fits:
    """The construction over a range of widths."""
    fits: Fits = {}
    states, outputs, state_bounds, output_bounds, mute = [], [], [], [], []
    lost, rows = [], []
    for case in CASES:
        name, system, initial, inputs, time = case
        fits[name] = []
        for width in widths:
            made = recurrent_fit(system, initial, inputs, time, width, generator=run.generator)
            found = distance(run, case, made, samples)
            fits[name].append((made, found))
            states.append(found.states)
            outputs.append(found.outputs[1:])
            state_bounds.append(made.state_bounds(time))
            output_bounds.append(made.output_bounds(time))
            start = made.rnn.initial

            def unaware(h: Tensor, start: Tensor = start) -> Tensor:
                return start.expand(*h.shape[:-1], len(start))

            blind = system_distance(
                system, made.rnn.system, made.decode, unaware, initial, inputs, time,
                samples=samples, generator=run.generator,
            )  # fmt: skip
            lost.append(blind.states)
            mute.append(blind.outputs[1:])
            rows.append((name, width, made.lipschitz, made.defect, made.accuracy(time), found.accuracy))
    says = run.states(["X-90", "X-91"], r"\|h_t-\alpha(\tilde h_t)\|\le\delta\sum_{k<t}L^k,\ t=0,\dots,T")
    says.at_most(torch.cat(states), torch.cat(state_bounds), 1e-10)
    says.fails("β ignores the initial state, so that α(β(h)) is not h", torch.cat(lost))
    says = run.states(["X-90", "X-91"], r"\|y_t-\tilde y_t\|\le\delta_g+L_{g\circ f}\,e_{t-1},\ t=1,\dots,T")
    says.at_most(torch.cat(outputs), torch.cat(output_bounds), 1e-10)
    says.fails("β ignores the initial state, so that α(β(h)) is not h", torch.cat(mute))
    run.table(
        "simulations",
        ["system", "units", "L", "error of a step", "promised in time T", "measured"],
        rows,
        caption="Recurrent networks with random units and a fitted readout",
    )
    return fits


def asked(run: Run, samples: int) -> None:
    """Theorem 3.31 read forwards: an accuracy is asked for, and a network comes back."""
    promised, measured, rows = [], [], []
    requests = ((0, 0.05, "tanh"), (1, 0.05, "logistic"), (2, 0.01, "softplus"))
    for index, accuracy, sigma in requests:
        case = CASES[index]
        name, system, initial, inputs, time = case
        made = simulate_system(system, initial, inputs, time, accuracy, nonlinearity=sigma, generator=run.generator)
        found = distance(run, case, made, samples)
        promised.append(accuracy)
        measured.append(found.accuracy)
        rows.append((name, sigma, accuracy, len(made.rnn.A), made.accuracy(time), found.accuracy))
    # asked for no more than some network promises, for one step: its error is then most of the promise
    for index, sigma in ((0, "tanh"), (1, "logistic")):
        name, system, initial, inputs, _ = CASES[index]
        first = simulate_system(system, initial, inputs, 1, 0.05, nonlinearity=sigma, generator=run.seed)
        made = simulate_system(system, initial, inputs, 1, first.accuracy(1), nonlinearity=sigma, generator=run.seed)
        found = distance(run, (name, system, initial, inputs, 1), made, samples)
        promised.append(first.accuracy(1))
        measured.append(found.accuracy)
        rows.append((f"{name}, one step", sigma, first.accuracy(1), len(made.rnn.A), made.accuracy(1), found.accuracy))
    name, system, initial, inputs, time = CASES[1]
    straight = recurrent_fit(system, initial, inputs, time, 64, nonlinearity="linear", generator=run.generator)
    says = run.states("X-91", r"\text{within the } \epsilon \text{ that was asked for, in time } T")
    says.at_most(measured, promised)
    says.fails(
        "σ(z) = z, for which the universal approximation theorem fails",
        distance(run, CASES[1], straight, samples).accuracy,
        promised=promised[1],
    )
    run.table(
        "asked",
        ["system", "activation", "ε asked", "neurons", "promised", "measured"],
        rows,
        caption="The smallest of 8, 16, 32, … units (and the constant one) whose promise suffices",
    )


def fading(run: Run, states: int = 6, lags: int = 30) -> dict[str, tuple[Tensor, Tensor]]:
    """A contraction forgets at its rate; a network that is none need not."""
    turn = torch.linalg.qr(run.randn(states, states))[0]
    B, C = run.randn(states, 1), run.randn(1, states)
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for norm in (0.6, 0.8, 1.25):
        rnn = ShallowRNN(norm * turn, B, C, "tanh")
        x = 0.05 * run.randn(20, lags, 1)
        # only what happens near 0, where tanh has its full slope, shows the rate
        profile = memory_profile(rnn.system, 0.05 * run.randn(20, states), x)
        found[f"‖A‖ = {norm}"] = profile, memory_bound(rnn, lags)
    contracting = list(found.values())[:2]
    says = run.states("X-92", r"\lambda\|A\|=q<1:\ \|\partial y_t/\partial x_{t-k}\|\le\|C\|\lambda\|B\|\,q^{k-1}")
    says.at_most(
        torch.cat([profile for profile, _ in contracting]), torch.cat([bound for _, bound in contracting]), 1e-12
    )
    says.fails(
        "‖A‖ = 1.25 is no contraction, and q = 0.8 is promised", found["‖A‖ = 1.25"][0], promised=found["‖A‖ = 0.8"][1]
    )
    return found


def for_ever(run: Run, steps: int) -> None:
    """A contraction is followed for ever, although the network was made for a short time."""
    leaky = DynamicalSystem(2, 1, 1, lambda h, x: 0.8 * torch.tanh(rotation(h, x)), lambda h: h[..., :1])
    box: Box = ((-0.8, 0.8), (-0.8, 0.8))  # no state leaves it, whatever the inputs
    inputs: Box = ((-1.0, 1.0),)
    made = recurrent_fit(leaky, box, inputs, 5, 96, generator=run.generator)
    case = ("leaky", leaky, box, inputs, steps)
    found = distance(run, case, made, 40, ascent=0)
    _, system, initial, fed, time = CASES[1]
    chaotic = recurrent_fit(system, initial, fed, time, 64, generator=run.generator)
    wild = distance(run, ("logistic map", system, initial, fed, 60), chaotic, 40, ascent=0)
    says = run.states("X-92", r"L<1:\ \sup_{t\le " + str(steps) + r"}\|h_t-\alpha(\tilde h_t)\|\le\delta/(1-L)")
    # errors of one sign all along: h ↦ h/2 pushed by 0.01 in every step
    halved = DynamicalSystem(1, 1, 1, lambda h, x: h / 2, lambda h: h)
    pushed = DynamicalSystem(1, 1, 1, lambda h, x: h / 2 + 0.01, lambda h: h)
    steady = system_distance(halved, pushed, lambda h: h, lambda h: h, (0.0, 1.0), (0.0, 1.0), 40)
    says.at_most(
        [float(found.states.max()), float(steady.states.max())],
        [made.defect / (1 - made.lipschitz), 0.01 / (1 - 0.5)],
        1e-10,
        where="the leaky rotation followed by its network, and h/2 against h/2 + 0.01",
    )
    says.fails(
        "the logistic map, L > 1, after 60 steps (and |1 - L|)",
        float(wild.states.max()),
        promised=chaotic.defect / abs(1 - chaotic.lipschitz),
    )
    run.note(
        f"made for 5 steps and followed for {steps}: the leaky system's states err by "
        f"{float(found.states.max()):.1e}, and δ/(1-L) is "
        f"{made.defect / (1 - made.lipschitz):.1e}"
    )


def continuous_time(run: Run, horizon: float = 1.0) -> None:
    """Euler's steps of the pendulum, and a recurrent network for each step size."""
    taus = [0.2 / n for n in (1, 2, 3, 4, 5, 6)]
    torque = 0.5 * (2 * run.rand(round(horizon / taus[0])) - 1)
    start = torch.tensor([0.8, -0.3], dtype=torch.float64)
    exact = solved(start, torque, taus[0])
    box: Box = ((-1.0, 1.0), (-1.0, 1.0))
    slope = 1.0 + 0.5  # of the field: its derivative is a rotation's size and the damping
    speed = float(pendulum(box_grid(box, 21), torch.tensor([[0.5]])).norm(dim=1).max())
    measured, promised, rows, made = [], [], [], []
    for tau in taus:
        repeat = round(taus[0] / tau)
        fed = torque.repeat_interleave(repeat)[:, None]
        system = euler_system(pendulum, 2, 1, tau)
        made.append(recurrent_fit(system, box, ((-0.5, 0.5),), len(fed), 96, generator=run.generator))
        measured.append(astray(made[-1], start, fed, exact))
        # between two jumps of the torque the second derivative of the solution is Dv v
        euler = tau * slope * speed / (2 * slope) * math.expm1(slope * horizon)
        promised.append(euler + float(made[-1].state_bounds(len(fed))[-1]))
        rows.append((tau, len(fed), made[-1].defect, promised[-1], measured[-1]))
    says = run.states(
        "X-92",
        r"\text{continuous time: }\|h(t)-\alpha(\tilde h_{t/\tau})\|\le"
        r"\tfrac{\tau M}{2L}(e^{Lt}-1)+\delta\sum_k(1+\tau L)^k",
    )
    growth = [growing(run, tau) for tau in taus]
    says.at_most(
        [*measured, *(m for m, _ in growth)],
        [*promised, *(p for _, p in growth)],
        where="the pendulum, and h' = h from 1 to e, where errors grow as the bound has it",
    )
    says.fails(
        f"the network for steps of {taus[0]:.2g} takes as many steps as the one for {taus[-1]:.2g}",
        astray(made[0], start, fed, exact),
        promised=promised[-1],
    )
    run.states("X-92", r"\text{the error to the continuous pendulum falls like } \tau").slope(
        taus, measured, 1.0, 0.1, against=(0.5, 2.0)
    )
    run.table(
        "continuous-time",
        ["τ", "steps", "error of a step", "promised", "measured"],
        rows,
        caption="A pendulum in continuous time, followed by recurrent networks of 97 neurons",
    )


def growing(run: Run, tau: float) -> tuple[float, float]:
    """Error and bound at time 1 for h' = h, h(0) = 1, whose second derivative is at most e."""
    steps, fed = round(1 / tau), torch.zeros(round(1 / tau), 1, dtype=torch.float64)
    system = euler_system(lambda h, x: h, 1, 1, tau)
    made = recurrent_fit(system, ((0.9, 1.1),), ((-0.1, 0.1),), steps, 64, generator=run.generator)
    start = torch.ones(1, dtype=torch.float64)
    with torch.no_grad():
        reached = float(made.decode(made.rnn.run(fed, made.encode(start)).states)[-1])
    return abs(reached - math.e), tau * math.e / 2 * math.expm1(1.0) + float(made.state_bounds(steps)[-1])


def astray(made: Simulation, start: Tensor, fed: Tensor, exact: Tensor) -> float:
    """How far the decoded states are from the solution when the torque jumps."""
    with torch.no_grad():
        followed = made.decode(made.rnn.run(fed, made.encode(start)).states)
    every = len(fed) // (len(exact) - 1)
    return float((followed[::every] - exact).norm(dim=1).max())


def solved(start: Tensor, torque: Tensor, hold: float) -> Tensor:
    """The pendulum itself at the times when the torque jumps, `[jumps + 1, 2]`."""
    h, path = start.numpy(), [start.numpy()]
    for value in torque.tolist():

        def field(_: float, v: Any, push: float = value) -> Any:
            return np.array([v[1], -np.sin(v[0]) - 0.5 * v[1] + push])

        h = solve_ivp(field, (0, hold), h, rtol=1e-10, atol=1e-12).y[:, -1]
        path.append(h)
    return torch.from_numpy(np.array(path))


def plot(axes: Any, fits: Fits, profiles: dict[str, tuple[Tensor, Tensor]]) -> None:
    *pair, right = axes[0]
    for panel, name in zip(pair, ("pendulum", "logistic map"), strict=True):
        for color, (made, found) in zip(COLORS, fits[name][:5], strict=False):
            time = range(1, len(found.states))
            panel.semilogy(time, made.state_bounds(len(time))[1:], color=color, linewidth=0.9)
            label = f"{len(made.rnn.A) - 1} units"
            panel.semilogy(time, found.states[1:], "o", markersize=3, color=color, label=label)
        panel.set(xlabel="t", ylabel=r"$\|h_t-\alpha(\tilde h_t)\|$", title=name)
        panel.legend(loc="best", ncols=3, columnspacing=0.8, handletextpad=0.2)
        low, high = panel.get_ylim()
        panel.set_ylim(low, high * 30)
    for color, (name, (profile, bound)) in zip(COLORS, profiles.items(), strict=False):
        lags = range(1, len(profile) + 1)
        right.semilogy(lags, bound, color=color, linewidth=0.9)
        right.semilogy(lags, profile, "o", markersize=3, color=color, label=name)
    right.set(
        xlabel="steps ago, k",
        ylabel=r"$\|\partial y_t/\partial x_{t-k}\|$",
        title="fading memory",
    )
    right.legend()
