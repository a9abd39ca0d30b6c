"""Gradients through time: where they come from, and how fast they vanish."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import Run, lab
from torchtheory.labs.nets.comparing import gap
from torchtheory.sequences.recurrent.backpropagation import backpropagate_through_time
from torchtheory.sequences.recurrent.cells import ElmanCell, GRUCell, LSTMCell
from torchtheory.sequences.recurrent.conversion import to_torch
from torchtheory.sequences.recurrent.gradients import lag_bounds, recurrent_gradients
from torchtheory.sequences.recurrent.networks import Recurrent


@lab(
    "recurrent-gradients",
    room="sequences",
    covers=["N-68", "N-71", "A-143"],
    errata=["vanishing-condition-reversed"],
    title="Gradients through time shrink or grow with a power of the lag",
    full={"steps": 60, "units": 32},
    least={"steps": 8, "units": 3},
)
def recurrent_gradients_lab(run: Run, steps: int = 16, units: int = 6) -> None:
    """Backpropagation through time lag by lag, and bounds on what is left after each.

    The gradient is that of the network unrolled into layers with shared weights. What a lag adds to
    it falls with the product of Jacobians: at most by the largest singular value times the largest
    slope per step, at least by the smallest ones, both met by orthogonal matrices. A large norm
    alone does not make gradients grow: a nilpotent matrix forgets everything. The picture shows
    gains by lag of Elman's cell at three sizes of its matrix, and of gated cells.

    Args:
        steps: length of the sequences.
        units: of the hidden states.
    """
    through_time(run, steps, units)
    bounds(run, steps, units)
    reach(run, units)


def through_time(run: Run, steps: int, units: int) -> None:
    head = nn.Linear(units, 2).double()
    net = Recurrent(ElmanCell(3, units, generator=run.generator), head)
    x, y = run.randn(4, steps, 3), run.randn(4, steps, 2)

    def loss(outputs: Tensor) -> Tensor:
        return (outputs - y).square().sum() / 2

    cell = net.cell
    found = backpropagate_through_time(net, x, loss)
    exact = torch.autograd.grad(loss(net(x)), [cell.recurrent, cell.entering])
    flat = net.unrolled(steps)
    made = flat(x.flatten(1)).unflatten(1, (steps, 2))
    unrolled = torch.autograd.grad(loss(made), [cell.recurrent, cell.entering])
    says = run.states(
        "N-68", r"\partial L/\partial U=\sum_t\epsilon_tz_{t-1}^\top,\ \partial L/\partial V=\sum_t\epsilon_tx_t^\top"
    )
    pairs = list(zip((found.recurrent, found.entering), exact, strict=True))
    says.equal(
        [gap(a, b) for a, b in pairs], within=1e-10, where="the sum over all lags, against automatic derivatives"
    )
    short = backpropagate_through_time(net, x, loss, truncate=1)
    says.fails("lag 0 only", [gap(a, b) for a, b in zip((short.recurrent, short.entering), exact, strict=True)])
    # turned backwards: each state's gradient from the next one's
    local = backpropagate_through_time(net, x, loss, truncate=1).at_states
    hidden = net.hidden(x).detach()
    slopes = 1 - hidden.square()
    carried = (slopes[:, 1:] * found.at_states[:, 1:]) @ cell.recurrent.detach()
    says = run.states("N-68", r"\partial L/\partial z_t=\text{local}+U^\top\dot\Phi_{t+1}\,\partial L/\partial z_{t+1}")
    says.equal(gap(found.at_states[:, :-1], local[:, :-1] + carried), within=1e-10)
    other = (slopes[:, :-1] * found.at_states[:, 1:]) @ cell.recurrent.detach()
    says.fails("slopes of another step", gap(found.at_states[:, :-1], local[:, :-1] + other))
    says = run.states("A-143", r"\text{unrolled in time: a feed-forward network with shared weights}")
    says.equal(
        [gap(made, net(x)), *(gap(a, b) for a, b in zip((found.recurrent, found.entering), unrolled, strict=True))],
        within=1e-10,
        where="outputs, and gradients summed over the layers",
    )
    middle = steps // 2
    fewer = net.unrolled(middle)
    half = torch.cat(
        [fewer(part.flatten(1)).unflatten(1, (-1, 2)) for part in (x[:, :middle], x[:, middle : 2 * middle])], 1
    )
    says.fails("unrolled over half of the steps, twice", [gap(half, net(x)[:, : half.shape[1]])])


def bounds(run: Run, steps: int, units: int) -> None:
    quiet = torch.zeros(steps, 3).double()
    turn = torch.linalg.qr(run.randn(units, units)).Q
    tight = [with_matrix(nn.Identity, rho * turn) for rho in (0.7, 1.2)]
    loose = [with_matrix(name, 0.9 * turn) for name in ("tanh", "logistic")]
    found = [lag_bounds(cell, quiet) for cell in tight] + [lag_bounds(cell, run.randn(steps, 3)) for cell in loose]
    says = run.states("N-71", r"\|\partial z_i/\partial z_t\|_2\le(\alpha\,\sigma_1(U))^{i-t}")
    says.at_most(
        torch.cat([f.largest for f in found]),
        torch.cat([f.upper for f in found]),
        within=1e-10,
        where="every lag; met by U = ρQ with Q orthogonal and φ = id",
    )
    steep = with_matrix(lambda v: torch.tanh(2 * v), 0.9 * turn)
    beyond = lag_bounds(steep, 0.01 * run.randn(steps, 3), slope=1.0)
    says.fails("tanh(2x), steeper than α = 1", beyond.largest[1:], promised=beyond.upper[1:])
    says = run.states(
        "N-71", r"\prod_j\sigma_{\min}(\dot\Phi_j)\,\sigma_{\min}(U)^{i-t}\le\sigma_{\min}(\partial z_i/\partial z_t)"
    )
    says.at_least(
        torch.cat([f.smallest for f in found]), torch.cat([f.lower for f in found]), within=1e-10, where="every lag"
    )
    flat = lag_bounds(loose[0], run.randn(steps, 3))
    singular = float(torch.linalg.svdvals(loose[0].recurrent.detach())[-1])
    says.fails("without the factors of tanh's slopes", flat.smallest, promised=[singular**k for k in range(steps)])
    growing = with_matrix(nn.Identity, 1.5 * turn)
    run.refutes("vanishing-condition-reversed", r"\text{the gradient vanishes if }\sigma_1(U)\ge1/\alpha").below(
        float(lag_bounds(growing, quiet).largest[-1]), 1.0, where="U = 1.5 Q, φ = id, the longest lag"
    )
    nilpotent = with_matrix(nn.Identity, 10 * torch.diag(torch.ones(units - 1), 1).double())
    says = run.states("N-71", r"\sigma_1(U)>1/\alpha\text{ does not suffice: }U^m=0")
    says.equal(lag_bounds(nilpotent, torch.zeros(units + 1, 3).double()).largest[-1].item(), where="σ₁(U) = 10")
    symmetric = with_matrix(nn.Identity, 10 * torch.eye(units).double())
    says.fails(
        "a normal matrix of that norm", lag_bounds(symmetric, torch.zeros(units + 1, 3).double()).largest[-1].item()
    )
    # logistic: the slope 1/4 is met at 0, where U z + b = 0 for z = 1/2
    for rho, word in ((3.0, "falls"), (4.0, "stays")):
        cell = with_matrix("logistic", rho * turn, bias=-0.5 * rho * turn.sum(1))
        last = centered(cell, steps)
        says = run.states(
            "N-71",
            r"U=\rho Q,\ \phi=\sigma:\ \|\partial z_i/\partial z_t\|=(\rho/4)^{i-t}\text{ at }z=\tfrac12",
        )
        says.equal(last, (rho / 4) ** (steps - 1), within=1e-9, where=f"ρ = {rho:g}: {word}")
        moved = with_matrix("logistic", rho * turn, bias=2 - 0.5 * rho * turn.sum(1))
        says.fails("away from the middle of the logistic function", centered(moved, steps))


def with_matrix(activation: Any, U: Tensor, bias: Tensor | None = None) -> ElmanCell:
    cell = ElmanCell(3, len(U), activation, bias=bias is not None)
    with torch.no_grad():
        cell.recurrent.copy_(U)
        if cell.bias is not None and bias is not None:
            cell.bias.copy_(bias)
    return cell


def centered(cell: ElmanCell, steps: int) -> float:
    """The norm of the Jacobian over all but the first step, which brings the state from 0 to 1/2."""
    assert cell.bias is not None
    with torch.no_grad():
        cell.entering.zero_()
        cell.entering[:, 0] = -cell.bias  # so that the first sum is 0
    x = torch.zeros(steps, 3).double()
    x[0, 0] = 1.0
    return float(lag_bounds(cell, x).largest[-1])


def reach(run: Run, units: int) -> None:
    length = 40
    x = 0.1 * run.randn(8, length, 3)
    turn = torch.linalg.qr(run.randn(units, units)).Q
    gains, factors = {}, {}
    for rho in (0.5, 0.9, 1.0):
        cell = with_matrix("tanh", rho * turn)
        (memory,) = recurrent_gradients(to_torch(Recurrent(cell)), x, generator=run.generator)
        gains[f"Elman, ρ = {rho:g}"] = memory.gains.mean(0)
        factors[rho] = memory
    for word, gated in (
        ("GRU", GRUCell(3, units, reset="after", generator=run.generator)),
        ("LSTM", LSTMCell(3, units, generator=run.generator)),
    ):
        (memory,) = recurrent_gradients(to_torch(Recurrent(gated)), x, generator=run.generator)
        gains[word] = memory.gains.mean(0)
    says = run.states(
        "N-71", r"\text{a gain of }1\%\text{ is not met beyond }\log(0.01)/\log(\alpha\sigma_1(U))\text{ steps}"
    )
    certified = factors[0.5].certified_reach(0.01)
    assert certified is not None
    says.at_most(float(factors[0.5].reach(0.01).max()), certified, where="ρ = 0.5, torch's layer")
    says.fails("σ₁(U) = 1", float(factors[1.0].reach(0.01).max()))
    run.curves(
        "gains",
        list(range(length)),
        {k: v.clamp(min=1e-12) for k, v in gains.items()},
        {f"Elman, ρ = {rho:g}": [rho**k for k in range(length)] for rho in (0.5, 0.9, 1.0)},
        axes=("lag k", "root mean square of ∂z(T)/∂z(T - k)"),
        log="y",
        beside=True,
        caption="What is left of a small change k steps before, and its bounds for Elman's cell (dashed).",
    )
