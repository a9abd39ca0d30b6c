r"""Recurrent networks that simulate a given dynamical system, and how far they stay from it.

A shallow network $D\sigma(A_1h+B_1x+c)$ fitted to $(h,x)\mapsto(f(h,x),g(f(h,x)))$
becomes recurrent by closing the loop: the state is $z=\sigma(A_1h+B_1x+c)$, decoded by
$\alpha(z)=D_fz$, so $A=A_1D_f$, $B=B_1$, $C=D_g$. If the fit errs by
$\delta$ and $f$ is $L$-Lipschitz in $h$ where both systems go, the decoded
states err by at most $\delta\sum_{k<t}L^k$ after $t$ steps: for ever by
$\delta/(1-L)$ where $L<1$. Source: Mathematical Aspects of Deep Learning, section
3.8.3 (Definition 3.30, Theorem 3.31).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from torchtheory.approximation.architectures.recurrent_systems import (
    DynamicalSystem,
    Nonlinearity,
    ShallowRNN,
    rnn_with_bias,
)
from torchtheory.approximation.certificates import Box, as_box, box_grid
from torchtheory.core.checks import first_entry, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, NonFinite, NotConverged, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.nets.activations.properties import inspect_activation
from torchtheory.nets.activations.table import as_layer
from torchtheory.neurons.regression import least_squares

ValueRange = tuple[float, float]
Map = Callable[[Tensor], Tensor]

#: Points of a grid on which suprema over a box are looked for.
_GRID = 20_000
#: So many of the worst points climb on from there.
_CLIMBERS = 64
#: Points of a fit.
_SAMPLES = 3000
#: Standard deviation of a hidden unit's weights, times the root of their number.
_STEEPNESS = 0.5
#: What is added to the region of the states at both ends, as a share of its sides.
_MARGIN = 0.1


@dataclass(frozen=True, slots=True)
class SystemDistance:
    r"""How far two systems were found apart at every time.

    Attributes:
        states: `[T + 1]`, the largest $\|h_t-\alpha(\tilde h_t)\|_2$.
        outputs: `[T + 1]`, the largest $\|y_t-\tilde y_t\|_2$; the definition asks nothing
            of the first one.
    """

    states: Tensor
    outputs: Tensor

    @property
    def accuracy(self) -> float:
        r"""The least $\epsilon$ that Definition 3.30 would allow on what was looked at:
        states from $t=0$, outputs from $t=1$."""
        later = self.outputs[1:]
        return float(torch.cat([self.states, later]).max())


def system_distance(
    system: DynamicalSystem,
    other: DynamicalSystem,
    decode: Map,
    encode: Map,
    initial: Box | ValueRange,
    inputs: Box | ValueRange,
    time: int,
    *,
    samples: int = 1000,
    ascent: int = 0,
    generator: RandomSource = None,
) -> SystemDistance:
    r"""The closeness of two systems in time $T$, over sampled states and inputs.

    Half of the input sequences are uniform in the box, half jump between its corners. With
    `ascent` steps, the samples then climb towards a larger final error.

    Args:
        decode: $\alpha$, from states of `other` to states of `system`.
        encode: $\beta$, the other way, for the initial states.
        initial, inputs: the boxes $K_1$ and $K_2$.
        time: $T$.

    The result is a lower bound of the supremum over all sequences.

    >>> keep = DynamicalSystem(1, 1, 1, lambda h, x: h, lambda h: h)
    >>> add = DynamicalSystem(1, 1, 1, lambda h, x: h + 0.5, lambda h: h)
    >>> apart = system_distance(keep, add, lambda h: h, lambda h: h, (0, 1), (0, 1), 2)
    >>> [round(e, 9) for e in apart.states.tolist()], apart.accuracy
    ([0.0, 0.5, 1.0], 1.0)
    """
    whole_number(time, "time", least=1)
    whole_number(samples, "samples", least=2)
    whole_number(ascent, "ascent", least=0)
    if (system.inputs, system.outputs) != (other.inputs, other.outputs):
        raise ShapeMismatch(
            f"only systems with the same inputs and outputs are compared: ({system.inputs}, "
            f"{system.outputs}) and ({other.inputs}, {other.outputs})"
        )
    start, fed = _sampled(system, initial, inputs, time, samples, as_generator(generator))

    def apart(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        one, two = system.run(h, x), other.run(encode(h), x)
        gap = one.states - decode(two.states)
        return gap.norm(dim=-1), (one.outputs - two.outputs).norm(dim=-1)

    with torch.no_grad():
        best = [part.amax(0) for part in apart(start, fed)]
    low_h, high_h = _ends(initial)
    low_x, high_x = _ends(inputs)
    for k in range(ascent):
        h, x = start.requires_grad_(), fed.requires_grad_()
        states, outputs = apart(h, x)
        found = (states.detach().amax(0), outputs.detach().amax(0))
        best = [torch.maximum(b, part) for b, part in zip(best, found, strict=True)]
        up_h, up_x = torch.autograd.grad(states[:, -1].sum() + outputs[:, -1].sum(), [h, x])
        share = 0.2 / (1 + k)
        start = (h + share * (high_h - low_h) * up_h.sign()).detach().clamp(low_h, high_h)
        fed = (x + share * (high_x - low_x) * up_x.sign()).detach().clamp(low_x, high_x)
    return SystemDistance(best[0].detach(), best[1].detach())


@dataclass(frozen=True, slots=True)
class Simulation:
    r"""A recurrent network made from a system, and what its fit promises.

    Attributes:
        rnn: the network; its last neuron is constant and carries the biases.
        decoder: $D_f$, `[n, N + 1]`.
        region: the box of states and inputs, in this order, where the fit was made.
        defect: $\delta$, the largest error of one step found on the region.
        output_defect: the largest error of $g(f(h,x))$ found there.
        lipschitz: $L$, the largest operator norm of $\partial f/\partial h$ found there.
        output_lipschitz: that of $\partial(g\circ f)/\partial h$.

    What is found is no more than the supremum, and no theorem: of a function that can only be
    called, nothing bounds what lies between two points. Errors are those of local maxima, climbed
    to from the worst points of a grid, and derivatives those of its points.
    """

    rnn: ShallowRNN
    decoder: Tensor
    region: Box
    defect: float
    output_defect: float
    lipschitz: float
    output_lipschitz: float

    def decode(self, z: Tensor) -> Tensor:
        r"""$\alpha(z)=D_fz$."""
        return z @ self.decoder.T

    def encode(self, h: Tensor) -> Tensor:
        r"""$\beta(h)=D_f^+(h-\alpha(v))+v$ with the constant neuron $v$: the smallest
        state with $\alpha(\beta(h))=h$."""
        inner = self.decoder[:, :-1]
        value = self.rnn.initial[-1]
        z = (h - value * self.decoder[:, -1]) @ torch.linalg.pinv(inner).T
        return torch.cat([z, value.expand(*z.shape[:-1], 1)], dim=-1)

    def state_bounds(self, time: int) -> Tensor:
        r"""$\delta\sum_{k<t}L^k$ for $t=0,\dots,T$, `[T + 1]`."""
        return error_growth(self.lipschitz, self.defect, time)

    def output_bounds(self, time: int) -> Tensor:
        r"""$\delta_g+L_{g\circ f}\,e_{t-1}$ for $t=1,\dots,T$, `[T]`."""
        return self.output_defect + self.output_lipschitz * self.state_bounds(time)[:-1]

    def accuracy(self, time: int) -> float:
        r"""The promised $\epsilon$ in time $T$."""
        return float(torch.cat([self.state_bounds(time), self.output_bounds(time)]).max())


def error_growth(lipschitz: float, defect: float, time: int, initial: float = 0.0) -> Tensor:
    r"""The solution of $e_{t+1}=Le_t+\delta$ up to time $T$, `[T + 1]`.

    >>> error_growth(2.0, 1.0, 3).tolist()
    [0.0, 1.0, 3.0, 7.0]
    """
    whole_number(time, "time", least=0)
    if min(lipschitz, defect, initial) < 0:
        raise InvalidInput(
            f"a Lipschitz constant and errors are not negative (lipschitz = {lipschitz!r}, defect "
            f"= {defect!r}, initial = {initial!r})"
        )
    errors = [initial]
    for _ in range(time):
        errors.append(lipschitz * errors[-1] + defect)
    return torch.tensor(errors, dtype=torch.float64)


def recurrent_fit(
    system: DynamicalSystem,
    initial: Box | ValueRange,
    inputs: Box | ValueRange,
    time: int,
    width: int,
    *,
    nonlinearity: Nonlinearity = "tanh",
    generator: RandomSource = None,
) -> Simulation:
    r"""The recurrent network of `width` random units and fitted $D$ for a system.

    The region is the box around the states that sampled trajectories reach in time $T$,
    wider by a tenth of its sides at both ends. Hidden weights are drawn on it: on the region
    scaled to $[-1,1]^{n+m}$ their standard deviation is $1/(2\sqrt{n+m})$. $D$ is the least
    squares solution on 3000 points, or `width` points if that is more. For suprema see
    `Simulation`.

    Args:
        initial, inputs: the boxes $K_1$ and $K_2$.

    Time: $O(sN^2)$ for the fit of $s$ points.

    >>> half = DynamicalSystem(1, 1, 1, lambda h, x: h / 2 + x, lambda h: h)
    >>> made = recurrent_fit(half, (0, 1), (0, 1), 5, 30)
    >>> made.rnn.A.shape, round(made.lipschitz, 6), made.accuracy(5) < 1e-3
    (torch.Size([31, 31]), 0.5, True)
    """
    whole_number(time, "time", least=1)
    whole_number(width, "width", least=1)
    source = as_generator(generator)
    region = _region(system, initial, inputs, time, source)
    low, high = _ends(region)
    middle, half = (low + high) / 2, (high - low) / 2
    n = system.states
    normals = torch.randn(width, len(low), dtype=torch.float64, generator=source)
    normals = normals * (_STEEPNESS / len(low) ** 0.5) / half
    shifts = 4 * torch.rand(width, dtype=torch.float64, generator=source) - 2
    shifts = shifts - normals @ middle
    sigma = as_layer(nonlinearity)
    drawn = torch.rand(max(_SAMPLES, width), len(low), dtype=torch.float64, generator=source)
    with torch.no_grad():
        x = torch.cat([low + (high - low) * drawn, _corners(region)])
        fit = least_squares(sigma(x @ normals.T + shifts), _targets(system, x), intercept=True)
        check = box_grid(region, max(3, int(_GRID ** (1 / len(low)))))

    def gap(x: Tensor) -> Tensor:
        made: Tensor = sigma(x @ normals.T + shifts) @ fit.weight + fit.bias
        return made - _targets(system, x)

    def state_error(x: Tensor) -> Tensor:
        size: Tensor = gap(x)[:, :n].norm(dim=1)
        return size

    def output_error(x: Tensor) -> Tensor:
        size: Tensor = gap(x)[:, n:].norm(dim=1)
        return size

    inner, const = fit.weight[:, :n], fit.bias[:n]
    rnn = rnn_with_bias(
        normals[:, :n] @ inner.T,
        normals[:, n:],
        fit.weight[:, n:].T,
        shifts + normals[:, :n] @ const,
        nonlinearity,
        read_bias=fit.bias[n:],
    ).requires_grad_(False)
    value = rnn.initial[-1]
    some = torch.cat([check[:: max(1, len(check) // 4000)], _corners(region)])
    lipschitz, output_lipschitz = _lipschitz(system, some)
    return Simulation(
        rnn,
        torch.cat([inner.T, const.unsqueeze(1) / value], dim=1),
        region,
        _largest(state_error, check, region),
        _largest(output_error, check, region),
        lipschitz,
        output_lipschitz,
    )


def simulate_system(
    system: DynamicalSystem,
    initial: Box | ValueRange,
    inputs: Box | ValueRange,
    time: int,
    accuracy: float,
    *,
    nonlinearity: Nonlinearity = "tanh",
    largest: int = 512,
    generator: RandomSource = None,
) -> Simulation:
    r"""A recurrent network whose promise is within `accuracy` in time $T$.

    The width of `recurrent_fit` is doubled from 8 until $\delta\sum_{k<T}L^k$ and the
    bound of the outputs are small enough.

    Args:
        accuracy: $\epsilon$.
        largest: the width after which to give up.

    >>> double = DynamicalSystem(1, 1, 1, lambda h, x: torch.sin(2 * h) + x, lambda h: h)
    >>> simulate_system(double, (0, 1), (0, 0.1), 4, 1e-2).accuracy(4) <= 1e-2
    True
    """
    positive_number(accuracy, "accuracy")
    source = as_generator(generator)
    seed = int(torch.randint(0, 2**62, (1,), generator=source))
    width = 8
    while width <= largest:
        made = recurrent_fit(
            system, initial, inputs, time, width, nonlinearity=nonlinearity, generator=seed
        )
        if made.accuracy(time) <= accuracy:
            return made
        width *= 2
    raise NotConverged(
        f"{width // 2} units promise {made.accuracy(time):.2g} in time {time}, not {accuracy:g}; "
        "allow more, or ask less"
    )


def euler_system(
    field: Callable[[Tensor, Tensor], Tensor], states: int, inputs: int, step: float
) -> DynamicalSystem:
    r"""Euler's steps of $\dot h=v(h,x)$: $f(h,x)=h+\tau v(h,x)$, $g(h)=h$.

    >>> decay = euler_system(lambda h, x: -h, 1, 1, 0.5)
    >>> decay.run(torch.ones(1), torch.zeros(2, 1)).states.flatten().tolist()
    [1.0, 0.5, 0.25]
    """
    positive_number(step, "step")
    return DynamicalSystem(states, inputs, states, lambda h, x: h + step * field(h, x), lambda h: h)


def memory_profile(system: DynamicalSystem, initial: Tensor, inputs: Tensor) -> Tensor:
    r"""How strongly the last output still reacts to each input, `[T]`.

    Entry $k-1$ is the largest $\|\partial y_T/\partial x_{T-k}\|_2$ over the sequences.

    Args:
        initial: `[batch, n]`.
        inputs: `[batch, T, m]`.

    >>> half = DynamicalSystem(1, 1, 1, lambda h, x: h / 2 + x, lambda h: h)
    >>> memory_profile(half, torch.zeros(1, 1), torch.zeros(1, 3, 1)).tolist()
    [1.0, 0.5, 0.25]
    """
    if inputs.ndim != 3 or initial.ndim != 2 or len(inputs) != len(initial):
        raise ShapeMismatch(
            f"initial states [batch, n] and inputs [batch, T, m] are needed, not "
            f"{list(initial.shape)} and {list(inputs.shape)}"
        )
    x = inputs.detach().clone().requires_grad_()
    last = system.run(initial.detach(), x).outputs[:, -1]
    # sequences do not touch each other, so a sum over them has each one's gradient
    rows = [
        torch.autograd.grad(last[:, j].sum(), x, retain_graph=True)[0]
        for j in range(system.outputs)
    ]
    jacobians = torch.stack(rows, dim=2)
    sizes: Tensor = torch.linalg.matrix_norm(jacobians, ord=2)
    return sizes.amax(0).flip(0)


def memory_bound(rnn: ShallowRNN, time: int) -> Tensor:
    r"""What a shallow network can remember at most, `[T]`:
    $\|C\|\,\lambda\|B\|\,q^{k-1}$ of the input $k$ steps ago.

    $\lambda$ is the activation's Lipschitz constant and $q=\lambda\|A\|$; for
    $q<1$ the network forgets.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> [round(b, 9) for b in memory_bound(ShallowRNN(one / 2, one, one, "relu"), 3).tolist()]
    [1.0, 0.5, 0.25]
    """
    whole_number(time, "time", least=1)
    slope = inspect_activation(rnn.nonlinearity).lipschitz
    a, b, c = (float(torch.linalg.matrix_norm(p.detach(), ord=2)) for p in (rnn.A, rnn.B, rnn.C))
    lags = torch.arange(time, dtype=torch.float64)
    return c * slope * b * (slope * a) ** lags


def _ends(box: Box | ValueRange) -> tuple[Tensor, Tensor]:
    ends = torch.tensor(as_box(box), dtype=torch.float64)
    return ends[:, 0], ends[:, 1]


def _corners(box: Box) -> Tensor:
    return box_grid(box, 2)


def _sampled(
    system: DynamicalSystem,
    initial: Box | ValueRange,
    inputs: Box | ValueRange,
    time: int,
    samples: int,
    source: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Initial states `[s, n]` and inputs `[s, T, m]`: uniform, and in the corners."""
    low_h, high_h = _ends(initial)
    low_x, high_x = _ends(inputs)
    if len(low_h) != system.states or len(low_x) != system.inputs:
        raise ShapeMismatch(
            f"the boxes have {len(low_h)} and {len(low_x)} dimensions, and the system "
            f"{system.states} states and {system.inputs} inputs"
        )
    h = torch.rand(samples, len(low_h), dtype=torch.float64, generator=source)
    x = torch.rand(samples, time, len(low_x), dtype=torch.float64, generator=source)
    x[samples // 2 :] = x[samples // 2 :].round()
    h[samples // 2 :: 2] = h[samples // 2 :: 2].round()
    return low_h + (high_h - low_h) * h, low_x + (high_x - low_x) * x


def _region(
    system: DynamicalSystem,
    initial: Box | ValueRange,
    inputs: Box | ValueRange,
    time: int,
    source: torch.Generator,
) -> Box:
    """The box around reached states and the inputs, a little larger."""
    start, fed = _sampled(system, initial, inputs, time, 2000, source)
    with torch.no_grad():
        reached = system.run(start, fed).states.reshape(-1, system.states)
    if not bool(torch.isfinite(reached).all()):
        raise NonFinite(
            "the system leaves every bounded set in that time: "
            f"{first_entry(reached, 'the value', ~torch.isfinite(reached))}"
        )
    low_h, high_h = _ends(initial)
    low_x, high_x = _ends(inputs)
    low = torch.cat([torch.minimum(reached.amin(0), low_h), low_x])
    high = torch.cat([torch.maximum(reached.amax(0), high_h), high_x])
    room = _MARGIN * (high - low)
    room[system.states :] = 0  # inputs never leave their box
    return as_box([(float(a), float(b)) for a, b in zip(low - room, high + room, strict=True)])


def _targets(system: DynamicalSystem, x: Tensor) -> Tensor:
    following = system.step(x[:, : system.states], x[:, system.states :])
    return torch.cat([following, system.read(following)], dim=1)


def _largest(error: Map, grid: Tensor, region: Box) -> float:
    """The largest value of a function `[k, d] -> [k]` at the tops above the worst points of a grid.

    The points climb together: the sum of their values is maximized over the box.
    """
    low, high = _ends(region)
    with torch.no_grad():
        best, worst = error(grid).topk(min(_CLIMBERS, len(grid)))
    if not float(best[0]) > 0:
        return float(best[0])
    start, scale = (grid[worst] - low) / (high - low), float(best.sum())

    def fallen(u: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        at = torch.from_numpy(u).reshape_as(start).requires_grad_()
        total = -error(low + (high - low) * at).sum() / scale
        (slope,) = torch.autograd.grad(total, at)
        return float(total.detach()), slope.flatten().numpy()

    top = optimize.minimize(
        fallen,
        start.flatten().numpy(),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, 1.0)] * start.numel(),
        options={"maxiter": 100, "ftol": 1e-13},
    )
    with torch.no_grad():
        reached = error(low + (high - low) * torch.from_numpy(top.x).reshape_as(start))
    return float(torch.maximum(best, reached).max())


def _lipschitz(system: DynamicalSystem, x: Tensor) -> tuple[float, float]:
    """Largest operator norms of the derivatives of f and g after f by the state."""
    h = x[:, : system.states].clone().requires_grad_()
    made = system.step(h, x[:, system.states :])
    found = []
    for value in (made, system.read(made)):
        rows = [
            torch.autograd.grad(value[:, j].sum(), h, retain_graph=True, allow_unused=True)[0]
            for j in range(value.shape[1])
        ]
        jacobians = torch.stack([torch.zeros_like(h) if r is None else r for r in rows], dim=1)
        found.append(float(torch.linalg.matrix_norm(jacobians, ord=2).max()))
    return found[0], found[1]
