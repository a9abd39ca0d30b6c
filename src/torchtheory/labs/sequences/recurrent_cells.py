"""Recurrent cells: what they keep, what they mix, and that they are torch's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import Run, lab
from torchtheory.labs.nets.comparing import gap
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.sequences.recurrent.cells import Cell, DeepTransitionCell, ElmanCell, GRUCell, LSTMCell
from torchtheory.sequences.recurrent.conversion import from_torch, to_torch
from torchtheory.sequences.recurrent.gradients import state_jacobians
from torchtheory.sequences.recurrent.minimal import MinGRU, MinLSTM
from torchtheory.sequences.recurrent.networks import Bidirectional, Recurrent, Stacked


@lab(
    "recurrent-cells",
    room="sequences",
    covers=["N-66", "N-67", "N-69", "N-70", "N-72", "N-73", "N-74", "A-144"],
    errata=["gru-keeps-its-reset-gate"],
    title="Recurrent cells: causal, gated, and in torch's layers with the same weights",
    full={"steps": 200, "units": 32},
    least={"steps": 8, "units": 2},
)
def recurrent_cells(run: Run, steps: int = 25, units: int = 6) -> None:
    """Elman's cell, the LSTM and the GRU as they are defined, and what their gates do.

    The cells have the values of torch's layers, also stacked and in both directions; a GRU that
    resets before its product, as defined, has not. One direction sees the past only, two see
    everything. An LSTM whose gates are held open carries its state on unchanged, with gradient 1. A
    GRU's state is an average and stays within ±1; the state of an LSTM does not. Gates that see the
    input only make the recurrence linear in the state, and a scan then gives the loop's values.

    Args:
        steps: length of the sequences.
        units: of the hidden states.
    """
    x = run.randn(3, steps, 4)
    against_torch(run, x, units)
    causality(run, x, units)
    long_memory(run, x, units)
    averages(run, x, units)
    linear_gates(run, x, units)


def cells(run: Run, units: int, inputs: int = 4) -> list[Cell]:
    return [
        ElmanCell(inputs, units, bias=True, generator=run.generator),
        LSTMCell(inputs, units, bias=True, generator=run.generator),
        GRUCell(inputs, units, reset="after", bias=True, generator=run.generator),
    ]


def against_torch(run: Run, x: Tensor, units: int) -> None:
    made = cells(run, units)
    pairs = [(Recurrent(c), to_torch(Recurrent(c))) for c in made]
    says = run.states("N-67, N-72, N-73, A-144", r"\text{Elman's cell, LSTM }(U=I)\text{ and GRU are torch's}")
    says.equal([gap(ours(x), theirs(x)[0]) for ours, theirs in pairs], within=1e-12, where="weights carried over")
    before = GRUCell(4, units, bias=True, generator=run.generator)
    mixed = LSTMCell(4, units, mixing=True, bias=True, generator=run.generator)
    with torch.no_grad():
        for target, source in ((mixed, made[1]), (before, made[2])):
            target.load_state_dict({k: v for k, v in source.state_dict().items() if k != "inner_bias"}, strict=False)
    says.fails(
        "the LSTM with a matrix U, the GRU with its reset before the product",
        [gap(Recurrent(c)(x), theirs(x)[0]) for c, (_, theirs) in zip((mixed, before), pairs[1:], strict=True)],
    )
    below, above = cells(run, units), cells(run, units, units)
    stacks = [Stacked([a, b]) for a, b in zip(below, above, strict=True)]
    says = run.states("N-70", r"z_{t,\ell}=\phi(U_\ell z_{t-1,\ell}+V_\ell z_{t,\ell-1}),\ z_{t,0}=x_t")
    says.equal([gap(s(x), to_torch(s)(x)[0]) for s in stacks], within=1e-12, where="two layers, against torch's")
    shallow = [to_torch(Recurrent(a))(x)[0] for a in below]
    says.fails("one layer", [gap(s(x), y) for s, y in zip(stacks, shallow, strict=True)])
    back = [from_torch(to_torch(s)) for s in stacks]
    says = run.states("N-70", r"\text{to torch and back: the same network}")
    says.equal([gap(s(x), b(x)) for s, b in zip(stacks, back, strict=True)], within=1e-12)
    deep_transitions(run, x, units)


def deep_transitions(run: Run, x: Tensor, units: int) -> None:
    """N-70: the recurrence by a network of several layers instead of layers of recurrences."""
    elman = ElmanCell(4, units, bias=True, generator=run.generator)
    assert elman.bias is not None
    joint = dense(torch.cat([elman.recurrent, elman.entering], 1).detach(), elman.bias.detach())
    shallow = DeepTransitionCell(nn.Sequential(joint, nn.Tanh()), units)
    transition = mlp([units + 4, 2 * units, units], "tanh", output="tanh", generator=run.generator)
    deep = DeepTransitionCell(transition, units)
    says = run.states("N-70", r"F\text{ of one layer }[U\ V]:\ z_t=F(z_{t-1},x_t)\text{ is Elman's cell}")
    says.equal(gap(Recurrent(shallow)(x), to_torch(Recurrent(elman))(x)[0]), within=1e-12, where="as torch has it")
    says.fails("F has a hidden layer", gap(Recurrent(deep)(x), to_torch(Recurrent(elman))(x)[0]))
    inner, _, outer, _ = transition

    def by_hand(start: Tensor) -> Tensor:
        z, states = start, []
        for t in range(x.shape[1]):
            z = outer(inner(torch.cat([z, x[:, t]], -1)).tanh()).tanh()
            states.append(z)
        return torch.stack(states, 1)

    says = run.states("N-70", r"F\text{ a deep network}:\ z_t=\tanh(W_2\tanh(W_1[z_{t-1},x_t]))")
    start = run.randn(len(x), units)
    says.equal(gap(Recurrent(deep)(x, start), by_hand(start)), within=1e-12, where="from a random state")
    says.fails("another state at the start", gap(Recurrent(deep)(x, start), by_hand(torch.zeros_like(start))))


def causality(run: Run, x: Tensor, units: int) -> None:
    moved = x.clone()
    place = x.shape[1] // 2
    moved[:, place:] += 1
    nets = [Recurrent(c) for c in cells(run, units)]
    says = run.states("N-66", r"y_t\text{ does not depend on }x_s,\ s>t")
    says.equal([gap(n(x)[:, :place], n(moved)[:, :place]) for n in nets], where="inputs of the second half moved")
    both = [Bidirectional(a, b) for a, b in zip(cells(run, units), cells(run, units), strict=True)]
    says.fails("both directions", [gap(n(x)[:, :place], n(moved)[:, :place]) for n in both])
    says = run.states("N-66", r"\text{two parts with the state carried over}=\text{one run}")
    parts = [n(x[:, place:], n.states(x[:, :place])[-1]) for n in nets]
    says.equal([gap(p, n(x)[:, place:]) for p, n in zip(parts, nets, strict=True)], within=1e-12)
    says.fails("the state is set to 0 between", [gap(n(x[:, place:]), n(x)[:, place:]) for n in nets])
    says = run.states("N-69", r"\text{time reversed and cells swapped: the same states, reversed and swapped}")
    swapped = [Bidirectional(n.backward.cell, n.onward.cell) for n in both]
    turned = [n(x.flip(1)).flip(1).roll(units, -1) for n in swapped]
    says.equal([gap(n(x), t) for n, t in zip(both, turned, strict=True)], within=1e-12)
    says.fails("cells not swapped", [gap(n(x), n(x.flip(1)).flip(1).roll(units, -1)) for n in both])


def long_memory(run: Run, x: Tensor, units: int) -> None:
    held, open_gates = held_cell(run, units, 40.0), held_cell(run, units, 3.0)
    start = (torch.zeros(units).double(), run.randn(units))

    def kept(cell: LSTMCell) -> list[float]:
        last = Recurrent(cell).states(x[0], start)[-1][1]
        product = chained(state_jacobians(cell, x[0], start))
        return [gap(last, start[1]), gap(product[units:, units:], torch.eye(units).double())]

    says = run.states(
        "N-72, A-144", r"\sigma(F\tilde x)=1,\ \sigma(G\tilde x)=0:\ z_T=z_0,\ \partial z_T/\partial z_0=I"
    )
    says.equal(kept(held), within=1e-12, where=f"{x.shape[1]} steps")
    says.fails("gates at σ(±3)", kept(open_gates))
    free = LSTMCell(4, units, generator=run.generator)
    tied = LSTMCell(4, units, generator=run.generator)
    with torch.no_grad():
        tied.recurrent.zero_()
    says = run.states(
        "N-72", r"\partial z_T/\partial z_0=\operatorname{diag}\prod_t\sigma(F\tilde x_t)\text{: gates of the input}"
    )

    def off(cell: LSTMCell) -> float:
        hidden = torch.cat([torch.zeros(1, units).double(), Recurrent(cell).hidden(x[0])[:-1]])
        gates = (torch.cat([hidden, x[0]], 1) @ cell.matrices()[1].T).sigmoid()
        product = chained(state_jacobians(cell, x[0]))[units:, units:]
        direct = torch.diag(gates.prod(0))
        return gap(product, direct) / float(direct.detach().abs().max())

    says.equal(off(tied), within=1e-10, where="relative to the largest entry")
    says.fails("gates that see the hidden state", off(free))


def held_cell(run: Run, units: int, bias: float) -> LSTMCell:
    cell = LSTMCell(4, units, bias=True, generator=run.generator)
    assert cell.bias is not None
    with torch.no_grad():
        cell.bias[:units], cell.bias[units : 2 * units] = -bias, bias
    return cell


def chained(jacobians: Tensor) -> Tensor:
    product = torch.eye(jacobians.shape[1], dtype=jacobians.dtype)
    for jacobian in jacobians:
        product = jacobian @ product
    return product.detach()


def averages(run: Run, x: Tensor, units: int) -> None:
    gru = GRUCell(4, units, generator=run.generator)
    lstm = LSTMCell(4, units, generator=run.generator)
    loud = 30 * x
    says = run.states("N-73", r"|z_t|\le\max(|z_{t-1}|,1)")
    says.at_most(
        float(Recurrent(gru).hidden(loud).detach().abs().max()), 1.0, where="from the state 0, inputs times 30"
    )
    with torch.no_grad():  # one input over and over, which the gates let in and do not let go
        same = loud[:, :1].expand_as(loud)
        grown = max(float(s[1].abs().max()) for s in Recurrent(lstm).states(same))
    says.fails("an LSTM's state, where gates do not sum to 1", grown)
    moment, z = x[:, 0], run.randn(3, units)
    H, G, V = (m.detach() for m in gru.matrices())
    doubled = GRUCell.from_matrices(H, G, 2 * V)
    says = run.states("N-73", r"z_t=s_t\odot z_{t-1}+(1-s_t)\odot\tilde z_t\text{ depends on }V")
    says.above(gap(gru(moment, z), doubled(moment, z)), 0.0, where="V doubled")
    run.refutes("gru-keeps-its-reset-gate", r"z_t=s_t\odot z_{t-1}+(1-s_t)\odot\zeta_t\text{ depends on }V").above(
        gap(printed_gru(gru, moment, z), printed_gru(doubled, moment, z)), 0.0, where="V doubled"
    )


def printed_gru(cell: GRUCell, x: Tensor, z: Tensor) -> Tensor:
    H, G, _ = cell.matrices()
    joint = torch.cat([z, x], -1)
    reset, update = (joint @ H.T).sigmoid(), (joint @ G.T).sigmoid()
    return update * z + (1 - update) * reset


def linear_gates(run: Run, x: Tensor, units: int) -> None:
    small = [make(4, units, generator=run.generator) for make in (MinGRU, MinLSTM)]
    says = run.states("N-74", r"z_t=s_t\odot z_{t-1}+(1-s_t)\odot Vx_t:\ \text{scan}=\text{loop}")
    says.equal([gap(n(x), n(x, method="loop")) for n in small], within=1e-12)
    u, v = run.randn(units), run.randn(units)

    def bend(net: nn.Module) -> float:
        """How far the last state is from affine in the first."""

        def last(start: Tensor) -> Tensor:
            if isinstance(net, Recurrent):
                return net.hidden(x[0, :3], start)[-1]
            made: Tensor = net(x[0, :3], start)[-1]
            return made

        return gap(last(u + v) - last(u) - last(v) + last(torch.zeros_like(u)), torch.zeros_like(u))

    says = run.states("N-74", r"z_T\text{ is affine in }z_0")
    says.equal([bend(n) for n in small], within=1e-12)
    says.fails("gates that see the state: the GRU", bend(Recurrent(GRUCell(4, units, generator=run.generator))))
    gru = small[0]
    few = x[:, :6]  # or the start would be forgotten
    s, candidates = gru.gate(few).sigmoid(), gru.candidate(few)
    after = torch.stack([s[:, t + 1 :].prod(1) for t in range(6)], 1)
    written_out = (after * (1 - s) * candidates).sum(1)
    says = run.states("N-74", r"z_T=\sum_t\Big(\prod_{j>t}s_j\Big)\odot(1-s_t)\odot Vx_t")
    says.equal(gap(gru(few)[:, -1], written_out), within=1e-12)
    says.fails("a state that does not start at 0", gap(gru(few, 1 + u.abs())[:, -1], written_out))
    says = run.states("N-74", r"|z_t|\le\max_s|Vx_s|")
    constant = x[:, :1].expand_as(x)
    ratios = [
        float((n(given).abs() / n.candidate(given).abs().amax(1, keepdim=True)).max().detach())
        for n in small
        for given in (x, constant)
    ]
    says.at_most(ratios, 1.0, within=1e-12, where="over the largest, random and constant inputs")
