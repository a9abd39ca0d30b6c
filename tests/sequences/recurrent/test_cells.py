"""Cells against their formulas and against torch's layers, both ways."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch, UnsupportedModel
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.sequences.recurrent.cells import (
    Cell,
    DeepTransitionCell,
    ElmanCell,
    GRUCell,
    LSTMCell,
)
from torchtheory.sequences.recurrent.conversion import from_torch, to_torch
from torchtheory.sequences.recurrent.minimal import GatedLinear, MinGRU, MinLSTM
from torchtheory.sequences.recurrent.networks import Bidirectional, Recurrent, Stacked


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


CELLS = {
    "elman": lambda n, m, seed=0: ElmanCell(n, m, bias=True, generator=seed),
    "lstm": lambda n, m, seed=0: LSTMCell(n, m, bias=True, generator=seed),
    "gru": lambda n, m, seed=0: GRUCell(n, m, reset="after", bias=True, generator=seed),
    "gru before": lambda n, m, seed=0: GRUCell(n, m, generator=seed),
    "lstm with U": lambda n, m, seed=0: LSTMCell(n, m, mixing=True, generator=seed),
    "deep": lambda n, m, seed=0: DeepTransitionCell(
        mlp([m + n, 5, m], "tanh", output="tanh", generator=seed), m
    ),
}


def test_a_transition_of_one_layer_is_elmans_cell() -> None:
    cell = ElmanCell(3, 4, bias=True, generator=2)
    assert cell.bias is not None
    joint = dense(torch.cat([cell.recurrent, cell.entering], 1).detach(), cell.bias.detach())
    deep = DeepTransitionCell(nn.Sequential(joint, nn.Tanh()), 4)
    x, start = draw(2, 7, 3), draw(2, 4, seed=1)
    torch.testing.assert_close(Recurrent(deep)(x, start), Recurrent(cell)(x, start))
    # a transition that counts: the state is the number of steps, whatever comes
    count = DeepTransitionCell(
        dense(torch.tensor([[1.0, 0.0]]).double(), torch.ones(1).double()), 1
    )
    assert Recurrent(count)(draw(1, 5, 1))[0, :, 0].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize(
    ("layers", "both", "bias"), list(itertools.product((1, 3), (False, True), (False, True)))
)
def test_equal_to_torch_both_ways(kind: type[nn.RNN], layers: int, both: bool, bias: bool) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layer = kind(3, 4, num_layers=layers, bidirectional=both, bias=bias, batch_first=True)
    layer = layer.double()
    x = draw(2, 9, 3)
    wanted = layer(x)[0]
    ours = from_torch(layer)
    assert float((ours(x) - wanted).abs().max().detach()) < 1e-12
    back = to_torch(ours)
    assert type(back) is kind
    assert float((back(x)[0] - wanted).abs().max().detach()) < 1e-12
    single = from_torch(copy.deepcopy(layer).float())
    assert float((single(x.float()).double() - wanted).abs().max().detach()) < 1e-6
    # and the gradients in the input
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    (one,) = torch.autograd.grad(ours(a).square().sum(), a)
    (two,) = torch.autograd.grad(layer(b)[0].square().sum(), b)
    assert float((one - two).abs().max()) < 1e-11


def test_relu_network_and_its_way_back() -> None:
    net = Recurrent(ElmanCell(3, 4, "relu", generator=2))
    x = draw(2, 6, 3)
    torch.testing.assert_close(to_torch(net)(x)[0], net(x))


def test_converting_draws_nothing() -> None:
    before = torch.random.get_rng_state()
    from_torch(to_torch(Recurrent(LSTMCell(2, 3))))
    assert torch.equal(before, torch.random.get_rng_state())


def test_what_torch_has_not() -> None:
    with pytest.raises(UnsupportedModel, match="resets after"):
        to_torch(Recurrent(GRUCell(2, 3)))
    with pytest.raises(UnsupportedModel, match="mixing"):
        to_torch(Recurrent(LSTMCell(2, 3, mixing=True)))
    with pytest.raises(UnsupportedModel, match="tanh or ReLU"):
        to_torch(Recurrent(ElmanCell(2, 3, "logistic")))
    with pytest.raises(UnsupportedModel, match="one kind"):
        to_torch(Stacked([ElmanCell(2, 3), LSTMCell(3, 3)]))
    with pytest.raises(UnsupportedModel, match="no layer"):
        to_torch(Recurrent(CELLS["deep"](2, 3)))
    with pytest.raises(UnsupportedModel, match="proj_size"):
        from_torch(nn.LSTM(3, 4, proj_size=2))
    with pytest.raises(InvalidType, match=r"nn\.RNN"):
        from_torch(nn.Linear(2, 2))  # type: ignore[arg-type]


# --------------------------------------------------------------- the definitions, written out


def test_lstm_formula_with_its_own_matrices() -> None:
    F, G, V, H = (draw(4, 7, seed=k) for k in range(4))
    U = draw(4, 4, seed=5)
    cell = LSTMCell.from_matrices(F, G, V, H, U)
    x, hidden, z = draw(2, 3, seed=6), draw(2, 4, seed=7), draw(2, 4, seed=8)
    joint = torch.cat([hidden, x], 1)
    state = (joint @ F.T).sigmoid() * z + (joint @ G.T).sigmoid() * (joint @ V.T).tanh()
    shown = (joint @ H.T).sigmoid() * (state @ U.T).tanh()
    found = cell(x, (hidden, z))
    torch.testing.assert_close(found, (shown, state))
    assert sum(p.numel() for p in cell.parameters()) == 4 * 4 * 7 + 16
    for given, kept in zip((G, F, V, H), cell.matrices(), strict=True):
        torch.testing.assert_close(kept, given)


def test_lstm_with_forced_gates_keeps_its_state() -> None:
    cell = LSTMCell(3, 4, bias=True)
    assert cell.bias is not None
    with torch.no_grad():
        cell.bias[:4], cell.bias[4:8] = -1000.0, 1000.0  # nothing enters, nothing is forgotten
    start = draw(4)
    x = draw(50, 3, seed=1)

    def last(z: Tensor) -> Tensor:
        return Recurrent(cell).states(x, (torch.zeros(4).double(), z))[-1][1]

    torch.testing.assert_close(last(start), start)
    jacobian = torch.autograd.functional.jacobian(last, start)
    torch.testing.assert_close(jacobian, torch.eye(4).double())


def test_gru_formula_reset_before_and_after() -> None:
    H, G, V = (draw(4, 7, seed=k) for k in range(3))
    x, z = draw(2, 3, seed=6), draw(2, 4, seed=7)
    joint = torch.cat([z, x], 1)
    reset, update = (joint @ H.T).sigmoid(), (joint @ G.T).sigmoid()
    before = torch.cat([reset * z, x], 1) @ V.T
    after = x @ V[:, 4:].T + reset * (z @ V[:, :4].T)
    for name, inside in (("before", before), ("after", after)):
        cell = GRUCell.from_matrices(H, G, V, reset=name)  # type: ignore[arg-type]
        torch.testing.assert_close(cell(x, z), update * z + (1 - update) * inside.tanh())
    assert float((before - after).abs().max()) > 0.1


@pytest.mark.parametrize("reset", ["before", "after"])
def test_gru_state_is_a_convex_combination(reset: str) -> None:
    cell = GRUCell(3, 4, reset=reset, generator=3)  # type: ignore[arg-type]
    z = 3 * draw(20, 4)
    found = cell(10 * draw(20, 3, seed=1), z)
    assert bool((found.abs() <= z.abs().clamp(min=1.0)).all())


def test_gru_limits() -> None:
    cell = GRUCell(3, 4, bias=True)
    assert cell.bias is not None
    with torch.no_grad():
        cell.bias.zero_()
        cell.bias[4:8] = 1000.0  # the update gate is 1
    z, x = draw(2, 4), draw(2, 3, seed=1)
    torch.testing.assert_close(cell(x, z), z)
    with torch.no_grad():
        cell.bias[:4], cell.bias[4:8] = 1000.0, -1000.0  # reset 1, update 0: Elman's
    wanted = (z @ cell.recurrent[8:].T + x @ cell.entering[8:].T).tanh()
    torch.testing.assert_close(cell(x, z), wanted)


# ------------------------------------------------------------------------------------ networks


@pytest.mark.parametrize("name", CELLS)
def test_causal_and_carried_on(name: str) -> None:
    net = Recurrent(CELLS[name](3, 4), nn.Linear(4, 2).double())
    x = draw(2, 10, 3)
    changed = x.clone()
    changed[:, 6:] += 1
    assert torch.equal(net(x)[:, :6], net(changed)[:, :6])
    assert float((net(x)[:, 6:] - net(changed)[:, 6:]).abs().min().detach()) > 0
    state = net.states(x[:, :4])[-1]
    torch.testing.assert_close(net(x[:, 4:], state), net(x)[:, 4:])
    last = Recurrent(net.cell, net.head, mode="last")
    torch.testing.assert_close(last(x), net(x)[:, -1])


def test_no_recurrence_is_a_pointwise_network() -> None:
    cell = ElmanCell(3, 4)
    with torch.no_grad():
        cell.recurrent.zero_()
    x = draw(2, 5, 3)
    torch.testing.assert_close(Recurrent(cell)(x), (x @ cell.entering.T).tanh())


@pytest.mark.parametrize("name", ["elman", "lstm", "gru before"])
def test_unrolled_has_the_same_values_and_gradients(name: str) -> None:
    net = Recurrent(CELLS[name](3, 4), nn.Linear(4, 2).double())
    flat = net.unrolled(5)
    x = draw(6, 5, 3)
    torch.testing.assert_close(flat(x.flatten(1)), net(x).flatten(1))
    ours = torch.autograd.grad(net(x).square().sum(), list(net.parameters()))
    theirs = torch.autograd.grad(flat(x.flatten(1)).square().sum(), list(net.parameters()))
    torch.testing.assert_close(ours, theirs)


def test_both_directions_swap_when_time_is_turned() -> None:
    a, b = ElmanCell(3, 4), LSTMCell(3, 5, generator=1)
    x = draw(2, 7, 3)
    found = Bidirectional(a, b)(x)
    swapped = Bidirectional(b, a)(x.flip(1)).flip(1)
    torch.testing.assert_close(found, torch.cat([swapped[..., 5:], swapped[..., :5]], -1))
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(Bidirectional(a, b)(leaf)[:, 3].sum(), leaf)
    assert bool((gradient.abs().sum(-1) > 0).all())
    (gradient,) = torch.autograd.grad(Recurrent(a)(leaf)[:, 3].sum(), leaf)
    assert bool((gradient[:, 4:] == 0).all())


def test_stacked_layers_feed_on_each_other() -> None:
    first, second = ElmanCell(3, 4), ElmanCell(4, 2, generator=1)
    x = draw(2, 7, 3)
    torch.testing.assert_close(Stacked([first, second])(x), Recurrent(second)(Recurrent(first)(x)))
    torch.testing.assert_close(Stacked([first])(x), Recurrent(first)(x))


def test_bad_input_is_refused() -> None:
    net = Recurrent(ElmanCell(3, 4))
    with pytest.raises(ShapeMismatch, match="T, n"):
        net(torch.zeros(3).double())
    with pytest.raises(InvalidInput, match="no steps"):
        net(torch.zeros(2, 0, 3).double())
    with pytest.raises(InvalidType, match="real numbers"):
        net(torch.zeros(2, 5, 3).long())
    with pytest.raises(InvalidInput, match="at least one layer"):
        Stacked([])
    with pytest.raises(InvalidType, match="cell"):
        Recurrent(nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="units"):
        ElmanCell(3, 0)
    with pytest.raises(InvalidInput, match="reset"):
        GRUCell(3, 2, reset="never")  # type: ignore[arg-type]


def test_cells_can_be_copied() -> None:
    for make in CELLS.values():
        cell: Cell = make(2, 3)
        x = draw(4, 2)
        twin = copy.deepcopy(cell)
        torch.testing.assert_close(twin(x, twin.start(x)), cell(x, cell.start(x)))


# --------------------------------------------------------------------------- linear in the state


@pytest.mark.parametrize("make", [MinGRU, MinLSTM])
def test_loop_is_scan(make: type[GatedLinear]) -> None:
    net = make(3, 4, generator=1)
    x, start = 3 * draw(2, 70, 3), draw(2, 4, seed=1)
    torch.testing.assert_close(net(x, start), net(x, start, method="loop"))
    torch.testing.assert_close(net(x), net(x, method="loop"))
    ours = torch.autograd.grad(net(x).square().sum(), list(net.parameters()))
    theirs = torch.autograd.grad(net(x, method="loop").square().sum(), list(net.parameters()))
    torch.testing.assert_close(ours, theirs)
    reach = net.candidate(x).abs().amax(1, keepdim=True)
    assert bool((net(x).abs() <= reach * (1 + 1e-12)).all())


def test_min_gru_in_closed_form() -> None:
    net, x = MinGRU(3, 4), draw(6, 3)
    s = (x @ net.gate.weight.T).sigmoid()
    wanted = sum(
        s[t + 1 :].prod(0) * (1 - s[t]) * (x[t] @ net.candidate.weight.T) for t in range(6)
    )
    torch.testing.assert_close(net(x)[-1], wanted)


def test_min_lstm_with_gates_that_vanish_both() -> None:
    net = MinLSTM(1, 1)
    with torch.no_grad():
        net.gate.weight.fill_(-1e4)
    x = torch.ones(5, 1).double()
    found = net(x)  # f = i = 1/2, though both gates underflow
    halves = 1 - 0.5 ** torch.arange(1, 6).double()
    torch.testing.assert_close(found[:, 0], halves * net.candidate(x)[:, 0])
