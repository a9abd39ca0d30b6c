"""Backpropagation through time by hand and by autograd; bounds by lag; a user's network."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch, UnsupportedModel
from torchtheory.sequences.recurrent.backpropagation import backpropagate_through_time
from torchtheory.sequences.recurrent.cells import ElmanCell, GRUCell, LSTMCell
from torchtheory.sequences.recurrent.gradients import (
    lag_bounds,
    recurrent_gradients,
    state_jacobians,
    steepest,
)
from torchtheory.sequences.recurrent.networks import Recurrent


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(size: int, seed: int = 0) -> Tensor:
    return torch.linalg.qr(draw(size, size, seed=seed)).Q


# --------------------------------------------------------------------------------- through time


@pytest.mark.parametrize("batch", [(), (4,)])
@pytest.mark.parametrize("bias", [False, True])
def test_gradient_is_autograds(batch: tuple[int, ...], bias: bool) -> None:
    net = Recurrent(ElmanCell(3, 5, bias=bias), nn.Linear(5, 2).double())
    x, y = draw(*batch, 8, 3), draw(*batch, 8, 2, seed=1)

    def loss(outputs: Tensor) -> Tensor:
        return (outputs - y).square().sum() / 2

    found = backpropagate_through_time(net, x, loss)
    exact = torch.autograd.grad(loss(net(x)), [net.cell.recurrent, net.cell.entering])
    torch.testing.assert_close((found.recurrent, found.entering), exact)
    assert found.loss == pytest.approx(float(loss(net(x)).detach()))
    # states: the recursion local + U^T Φ ∂L/∂z of the next
    states = net.states(x)
    wanted = torch.autograd.grad(loss(net.head(torch.stack(states, -2))), states)
    torch.testing.assert_close(found.at_states, torch.stack(wanted, -2))


def test_lags_are_what_truncation_keeps() -> None:
    net = Recurrent(ElmanCell(2, 3))
    x = draw(6, 2)
    whole = backpropagate_through_time(net, x, lambda y: y.square().sum())
    for kept in (1, 3, 6):
        part = backpropagate_through_time(net, x, lambda y: y.square().sum(), truncate=kept)
        torch.testing.assert_close(part.recurrent_by_lag, whole.recurrent_by_lag[:kept])
    # lag k alone: the loss at step i reaches weights used at step i - k only
    used = [net.cell.recurrent.detach().clone().requires_grad_() for _ in range(6)]
    z, states = torch.zeros(3).double(), []
    for t in range(6):
        z = torch.tanh(used[t] @ z + net.cell.entering @ x[t])
        states.append(z)
    for lag in range(6):
        total = torch.zeros(3, 3).double()
        for i in range(lag, 6):
            total += torch.autograd.grad(
                states[i].square().sum(), used[i - lag], retain_graph=True
            )[0]
        torch.testing.assert_close(whole.recurrent_by_lag[lag], total)


def test_local_term_only_is_not_the_gradient() -> None:
    net = Recurrent(ElmanCell(2, 3))
    x = draw(6, 2)
    exact = torch.autograd.grad(net(x).square().sum(), net.cell.recurrent)[0]
    local = backpropagate_through_time(net, x, lambda y: y.square().sum(), truncate=1)
    assert float((local.recurrent - exact).abs().max()) > 0.01


def test_refused_networks_and_losses() -> None:
    x = draw(4, 2)
    with pytest.raises(InvalidType, match="ElmanCell"):
        backpropagate_through_time(Recurrent(GRUCell(2, 3)), x, torch.sum)
    with pytest.raises(InvalidInput, match="every step"):
        backpropagate_through_time(Recurrent(ElmanCell(2, 3), mode="last"), x, torch.sum)
    with pytest.raises(ShapeMismatch, match="one number"):
        backpropagate_through_time(Recurrent(ElmanCell(2, 3)), x, lambda y: y)
    with pytest.raises(InvalidInput, match="truncate"):
        backpropagate_through_time(Recurrent(ElmanCell(2, 3)), x, torch.sum, truncate=5)


# ------------------------------------------------------------------------------------- bounds


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from(["tanh", "logistic", "relu", "linear"]))
def test_bounds_hold_at_every_lag(seed: int, name: str) -> None:
    cell = ElmanCell(2, 4, name, generator=seed)
    with torch.no_grad():
        cell.recurrent.mul_(0.5 + 2 * (seed % 3))
    found = lag_bounds(cell, draw(9, 2, seed=seed + 1))
    assert bool((found.largest <= found.upper * (1 + 1e-10)).all())
    assert bool((found.smallest >= found.lower * (1 - 1e-8) - 1e-13 * found.largest).all())


def test_bounds_are_met_by_orthogonal_matrices() -> None:
    for name, scale in (("linear", 0.8), ("relu", 1.2), ("logistic", 2.0)):
        cell = ElmanCell(1, 4, name, bias=True)
        with torch.no_grad():
            # ReLU passes everything on where nothing is negative
            turn = torch.eye(4).double().roll(1, 0) if name == "relu" else rotation(4)
            cell.recurrent.copy_(scale * turn)
            assert cell.bias is not None
            # sums of 0 for the logistic function, where its slope is 1/4; far above 0 for ReLU
            cell.bias.copy_(
                -0.5 * cell.recurrent.sum(1) if name == "logistic" else torch.full((4,), 1e6)
            )
        x = torch.zeros(12, 1).double()
        first = state_jacobians(cell, x, torch.full((4,), 0.5).double())
        if name == "logistic":
            product = torch.eye(4).double()
            for jacobian in first:
                product = jacobian @ product
            value = torch.linalg.matrix_norm(product, 2)
            assert float(value) == pytest.approx((steepest(cell.activation) * scale) ** 12)
            continue
        found = lag_bounds(cell, x)
        torch.testing.assert_close(found.largest, found.upper)
        torch.testing.assert_close(found.smallest, found.lower)


def test_a_large_norm_need_not_explode() -> None:
    cell = ElmanCell(1, 2, "linear")
    with torch.no_grad():
        cell.recurrent.copy_(torch.tensor([[0.0, 10.0], [0.0, 0.0]]))
    assert lag_bounds(cell, torch.zeros(5, 1).double()).largest[2:].tolist() == [0.0] * 3


def test_jacobians_by_finite_differences() -> None:
    for cell in (ElmanCell(2, 3), GRUCell(2, 3), LSTMCell(2, 3)):
        x = draw(4, 2)
        found = state_jacobians(cell, x)
        state = Recurrent(cell).states(x[:2])[-1]
        flat = torch.cat(state) if isinstance(state, tuple) else state
        for k in range(len(flat)):
            moved = []
            for h in (1e-6, -1e-6):
                shifted = flat.clone()
                shifted[k] += h
                given = tuple(shifted.chunk(2)) if isinstance(state, tuple) else shifted
                after = cell(x[2], given)
                moved.append(torch.cat(after) if isinstance(after, tuple) else after)
            torch.testing.assert_close(
                found[2][:, k], (moved[0] - moved[1]) / 2e-6, atol=1e-8, rtol=1e-6
            )


def test_slope_of_an_unknown_activation_is_asked_for() -> None:
    cell = ElmanCell(2, 3, torch.sin)
    with pytest.raises(UnsupportedModel, match="slope="):
        lag_bounds(cell, draw(4, 2))
    assert lag_bounds(cell, draw(4, 2), slope=1.0).factor > 0


# ----------------------------------------------------------------------------- a user's network


class Classifier(nn.Module):
    """A recurrent layer, and the class from its last output."""

    def __init__(self, layer: nn.RNN | nn.LSTM | nn.GRU) -> None:
        super().__init__()
        self.layer = layer
        size = layer.hidden_size * (2 if layer.bidirectional else 1)
        self.head = nn.Linear(size, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.layer.batch_first else x.transpose(0, 1)
        made = self.layer(x)[0]
        last: Tensor = self.head(made[:, -1] if self.layer.batch_first else made[-1])
        return last


def test_gains_are_frobenius_norms() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for kind in (nn.RNN, nn.LSTM, nn.GRU):
            model = Classifier(kind(3, 4, batch_first=True)).double()
            x = draw(2, 7, 3)
            (found,) = recurrent_gradients(model, x, probes=4000)
            from torchtheory.sequences.recurrent.conversion import from_torch

            network = from_torch(model.layer).layers[0]
            assert isinstance(network, Recurrent)
            jacobians = state_jacobians(network.cell, x[1])
            product = torch.eye(jacobians.shape[1]).double()
            for lag in range(7):
                exact = float(torch.linalg.matrix_norm(product)) / math.sqrt(len(product))
                # the squared norm's deviation is at most √(2/probes) of it: five of them
                assert float(found.gains[1, lag]) == pytest.approx(
                    exact, rel=5 * 0.5 * math.sqrt(2 / 4000)
                )
                product = product @ jacobians[6 - lag]


def test_layers_directions_and_layouts() -> None:
    x = draw(3, 9, 3).float()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Classifier(nn.GRU(3, 4, num_layers=2, bidirectional=True))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    model.train()
    found = recurrent_gradients(model, x)
    assert [f.name for f in found] == [
        "layer, layer 1",
        "layer, layer 1, backwards",
        "layer, layer 2",
        "layer, layer 2, backwards",
    ]
    assert all(f.gains.shape == (3, 9) and f.factor is None for f in found)
    assert model.training
    assert not model.layer._forward_pre_hooks
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    again = recurrent_gradients(model, x)
    assert all(torch.equal(a.gains, b.gains) for a, b in zip(found, again, strict=True))


def test_vanishing_is_certified_and_kept_memory_is_seen() -> None:
    layer = nn.RNN(2, 8, batch_first=True).double()
    x = draw(4, 60, 2)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(0.5 * rotation(8))
    (short,) = recurrent_gradients(layer, x)
    assert short.factor == pytest.approx(0.5)
    certified = short.certified_reach(0.01)
    assert certified == pytest.approx(math.log(100) / math.log(2))
    assert int(short.reach(0.01).max()) <= certified
    with torch.no_grad():
        layer.weight_hh_l0.copy_(rotation(8))
        layer.weight_ih_l0.mul_(0.01)
        layer.bias_ih_l0.zero_()
        layer.bias_hh_l0.zero_()
    (long,) = recurrent_gradients(layer, x)
    assert int(long.reach(0.01).min()) == 59
    assert long.certified_reach() is None or long.factor < 1


def test_packed_sequences_and_given_states() -> None:
    layer = nn.LSTM(2, 3, batch_first=True).double()

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            packed = pack_padded_sequence(x, torch.tensor([6, 4]), batch_first=True)
            start = (torch.ones(1, 2, 3).double(), torch.ones(1, 2, 3).double())
            return self.layer(packed, start)[1][0][0]

    (found,) = recurrent_gradients(Packed(), draw(2, 6, 2))
    assert found.gains.shape == (2, 4)


def test_models_without_recurrence_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"no nn\.RNN"):
        recurrent_gradients(nn.Linear(2, 2), torch.zeros(3, 2))
    with pytest.raises(InvalidInput, match="share"):
        recurrent_gradients(nn.GRU(2, 2), torch.zeros(5, 3, 2))[0].reach(0.0)
