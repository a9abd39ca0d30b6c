"""Units and signals seen while a network runs, against counts and derivatives made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.tracing.architectures import architecture, archived
from torch import Tensor, nn

from torchtheory.core.errors import UnsupportedModel
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.tracing.activations import activation_facts
from torchtheory.tracing.last_features import last_layer_inputs
from torchtheory.tracing.watching import (
    FLAT,
    LayerSignal,
    WatchedUnits,
    watch_signals,
    watch_units,
)


class Applied(nn.Module):
    """A layer of weights 1, a function of what it returns, and a sum."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.layer.weight)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


def problem_of(model: nn.Module, x: Tensor, **options: Any) -> Problem:
    y = model.eval()(x)
    y = y[0] if isinstance(y, tuple) else y
    return Problem(model, (x, torch.zeros_like(y)), task="regression", **options)


def units_of(model: nn.Module, x: Tensor, *, chunk: int = 512) -> list[WatchedUnits]:
    problem = problem_of(model, x, chunk=chunk)
    return watch_units(problem, problem.train)


COLUMN = torch.tensor([[-9.0], [-0.5], [0.5], [9.0]])

#: Function, its name, the share of the four slopes that is flat.
FUNCTIONS: list[tuple[str, Callable[[Tensor], Tensor], str, float]] = [
    ("torch.relu", torch.relu, "relu", 0.5),
    ("method", lambda z: z.relu(), "relu", 0.5),
    ("in place", lambda z: torch.relu_(z), "relu", 0.5),
    ("F, in place by position", lambda z: F.relu(z, True), "relu", 0.5),
    ("module", nn.ReLU(), "relu", 0.5),
    ("module in place", nn.ReLU(inplace=True), "relu", 0.5),
    ("leaky in place", nn.LeakyReLU(0.1, inplace=True), "leaky_relu", 0.0),
    ("leaky and nearly flat", nn.LeakyReLU(0.001), "leaky_relu", 0.5),
    ("relu6", F.relu6, "relu6", 0.75),
    ("elu in place", nn.ELU(inplace=True), "elu", 0.25),
    ("sigmoid", torch.sigmoid, "sigmoid", 0.5),
    ("tanh", nn.Tanh(), "tanh", 0.5),
    ("hardtanh in place", nn.Hardtanh(inplace=True), "hardtanh", 0.5),
    ("clamp", lambda z: z.clamp(-1, 1), "clamp", 0.5),
    ("clamp by name", lambda z: torch.clamp(z, min=0.0), "clamp", 0.5),
    ("clamp_min", lambda z: z.clamp_min(0), "clamp_min", 0.5),
    ("softplus", nn.Softplus(), "softplus", 0.25),
]


@pytest.mark.parametrize(("function", "name", "flat"), [f[1:] for f in FUNCTIONS], ids=[
    f[0] for f in FUNCTIONS
])  # fmt: skip
def test_one_unit_at_four_points(
    function: Callable[[Tensor], Tensor], name: str, flat: float
) -> None:
    (found,) = units_of(Applied(function), COLUMN)
    assert (found.layer, found.function, found.units, found.samples) == ("layer", name, 1, 4)
    assert found.flat == flat
    assert found.silent_share == found.linear_share == 0
    # on the positive side alone a ReLU is linear, on the negative side it is silent
    (right,) = units_of(Applied(function), COLUMN[2:3])
    assert right.linear_share == 1
    (left,) = units_of(Applied(function), COLUMN[:1] - 300)
    assert left.silent_share == (name not in ("leaky_relu",))


def test_no_activation_no_units() -> None:
    assert units_of(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), torch.randn(4, 2)) == []


def test_channels_are_units() -> None:
    x = torch.rand(5, 1, 3, 3) + 0.1
    net = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.ReLU(), nn.Flatten())
    net[0].weight.data = torch.tensor([1.0, -1.0]).reshape(2, 1, 1, 1)  # type: ignore[union-attr]
    (found,) = units_of(net, x)
    assert found.silent.tolist() == [False, True]
    assert found.linear.tolist() == [True, False]
    assert found.flat == 0.5


def test_units_of_three_dimensional_signals() -> None:
    """The last dimension behind a dense layer, the second behind a convolution."""
    x = torch.rand(5, 4, 3) + 0.1
    dense = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    conv = nn.Sequential(nn.Conv1d(4, 2, 1), nn.ReLU())
    norm = nn.Sequential(nn.Conv1d(4, 2, 1), nn.BatchNorm1d(2), nn.ReLU())
    for net in (dense, conv):
        weight = net[0].weight.data
        weight.copy_(torch.tensor([1.0, -1.0]).reshape(2, *[1] * (weight.ndim - 1)))
        nn.init.zeros_(net[0].bias)  # type: ignore[arg-type]
        (found,) = units_of(net, x)
        assert found.silent.tolist() == [False, True]
    (found,) = units_of(norm, x)
    assert (found.layer, found.units) == ("1", 2)


def gates_by_hand(layer: nn.LSTM, x: Tensor) -> list[Tensor]:
    """Slopes of the gates of an LSTM in all time steps, each `[time, n, units]`."""
    h = c = torch.zeros(len(x), layer.hidden_size)
    steps: list[list[Tensor]] = []
    for t in range(x.shape[1]):
        z = x[:, t] @ layer.weight_ih_l0.T + h @ layer.weight_hh_l0.T
        z = z + layer.bias_ih_l0 + layer.bias_hh_l0
        enter, forget, cell, leave = z.chunk(4, -1)
        c = forget.sigmoid() * c + enter.sigmoid() * cell.tanh()
        steps.append([forget, enter, cell, leave, c])
        h = leave.sigmoid() * c.tanh()
    gates = [torch.stack(part).detach() for part in zip(*steps, strict=True)]
    curves = [torch.sigmoid, torch.sigmoid, torch.tanh, torch.sigmoid, torch.tanh]
    slopes = []
    for gate, curve in zip(gates, curves, strict=True):
        free = gate.requires_grad_()
        slopes += torch.autograd.grad(curve(free).sum(), free)
    return slopes


def test_the_gates_of_a_recurrent_layer_are_units() -> None:
    torch.manual_seed(0)
    layer, x = nn.LSTM(4, 3, batch_first=True), torch.randn(6, 5, 4)
    layer.weight_ih_l0.data *= 20
    found = units_of(layer, x, chunk=4)
    assert [u.function for u in found] == ["sigmoid", "sigmoid", "tanh", "sigmoid", "tanh"]
    for units, slopes in zip(found, gates_by_hand(layer, x), strict=True):
        assert (units.units, units.samples) == (3, 6)
        small = slopes < FLAT * activation_facts(units.function).slopes[1]
        assert units.flat == pytest.approx(float(small.double().mean()))
        assert units.active.tolist() == (slopes != 0).any(0).sum(0).tolist()
    assert found[0].flat > 0


def test_layers_in_one_piece_are_one_signal() -> None:
    x = torch.randn(6, 3, 4)
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)
    (found,) = units_of(layer, x)
    assert (found.layer, found.function, found.units) == ("linear1", "relu", 8)
    for model in (nn.LSTM(4, 2, batch_first=True), layer):
        problem = problem_of(model, x)
        signals = watch_signals(problem, problem.train)
        assert all(s.forward > 0 and s.backward > 0 for s in signals)
    assert [s.layer for s in signals] == ["self_attn", "linear1", "linear2"]


class ChannelsLast(nn.Module):
    """Channels in the last of four dimensions, and samples in the second of three."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.dense = nn.Conv2d(1, 2, 1), nn.Linear(2, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.dense(self.conv(x).permute(0, 2, 3, 1)))
        return torch.tanh(self.conv(x).flatten(2).transpose(0, 1)).sum((0, 2)) + h.sum((1, 2, 3))


def test_units_wherever_their_dimension_was_moved() -> None:
    relu, tanh = units_of(ChannelsLast(), torch.randn(7, 1, 3, 3))
    assert (relu.layer, relu.units, relu.samples) == ("dense", 5, 7)
    assert (tanh.layer, tanh.units, tanh.samples) == ("conv", 2, 7)


@pytest.mark.parametrize("name", ["resnet", "lstm", "encoder", "weight-norm"])
def test_an_archive_is_the_same_as_its_module(name: str) -> None:
    made = architecture(name)
    problems = [problem_of(model, made.x) for model in (made.model, archived(name))]
    own, theirs = (
        [(u.layer, u.function, u.flat) for u in watch_units(p, p.train)] for p in problems
    )
    assert own
    assert own == theirs
    pairs = [last_layer_inputs(p, p.train) for p in problems]
    assert pairs[0] is not None
    assert pairs[1] is not None
    assert pairs[0][0] == pairs[1][0] == ("2" if name == "weight-norm" else "head")
    torch.testing.assert_close(pairs[0][1], pairs[1][1])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("chunk", [512, 4])
def test_silent_units_are_those_that_a_count_finds(seed: int, chunk: int) -> None:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(3, 20), nn.ReLU(), nn.Linear(20, 20), nn.Sigmoid(), nn.Linear(20, 1)
    )
    x = torch.randn(10, 3)
    net[0].bias.data -= 0.7  # type: ignore[operator]
    net[2].weight.data *= 10  # type: ignore[operator]
    first, second = units_of(net, x, chunk=chunk)
    z = net[0](x)
    assert torch.equal(first.silent, (z <= 0).all(0))
    assert 0 < int(first.silent.sum()) < 20
    assert torch.equal(first.linear, (z > 0).all(0))
    assert first.flat == pytest.approx(float((z <= 0).double().mean()))
    s = torch.sigmoid(net[2](z.relu()))
    assert second.flat == pytest.approx(float((s * (1 - s) < FLAT / 4).double().mean()))
    assert not second.silent.any()


def keep(name: str, kept: dict[str, Tensor]) -> Any:
    def hook(_: nn.Module, __: Any, out: Tensor) -> Tensor:
        out.retain_grad()
        kept[name] = out
        return out.clone()

    return hook


def by_hooks(net: nn.Sequential, problem: Problem, samples: Samples) -> list[LayerSignal]:
    """The same numbers with hooks and `retain_grad`, one sample at a time."""
    totals: dict[str, list[float]] = {}
    layers = [(k, m) for k, m in net.named_modules() if hasattr(m, "weight")]
    for x, y in samples.chunks(1):
        kept: dict[str, Tensor] = {}
        handles = [m.register_forward_hook(keep(k, kept)) for k, m in layers]
        problem.loss(net(x), y).backward()
        for handle in handles:
            handle.remove()
        for name, out in kept.items():
            assert out.grad is not None
            sizes = totals.setdefault(name, [0.0, 0.0])
            sizes[0] += float(out.detach().square().mean())
            sizes[1] += float(out.grad.square().sum())
    n = len(samples)
    return [LayerSignal(k, (f / n) ** 0.5, (b / n) ** 0.5) for k, (f, b) in totals.items()]


@pytest.mark.parametrize("chunk", [512, 4])
@pytest.mark.parametrize("inplace", [False, True])
def test_signals_are_those_that_hooks_see(inplace: bool, chunk: int) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv1d(2, 3, 2), nn.ReLU(inplace), nn.Flatten(), nn.Linear(9, 5), nn.Tanh(),
        nn.Linear(5, 3),
    ).double()  # fmt: skip
    x, y = torch.randn(10, 2, 4, dtype=torch.float64), torch.arange(10) % 3
    problem = Problem(net, (x, y), chunk=chunk)
    found = watch_signals(problem, problem.train)
    expected = by_hooks(net, problem, problem.train)
    assert [s.layer for s in found] == [s.layer for s in expected] == ["0", "3", "5"]
    for one, other in zip(found, expected, strict=True):
        assert one.forward == pytest.approx(other.forward)
        assert one.backward == pytest.approx(other.backward)


class OwnProducts(nn.Module):
    """Weights used in the model's own forward: transposed, masked, indexed, scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(5, 3, dtype=torch.float64))
        self.v = nn.Parameter(torch.randn(2, 5, 5, dtype=torch.float64))
        self.place = nn.Parameter(torch.randn(1, 5, dtype=torch.float64))
        self.register_buffer("mask", torch.ones(5, 5, dtype=torch.float64).tril())
        self.scale = torch.tensor(0.5, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(x @ self.w.T + self.place)
        h = torch.relu_(torch.einsum("bi,io->bo", h, self.v[0] * self.mask))
        kept = torch.zeros(len(h), 5, dtype=h.dtype)
        kept[:, :4] = h[:, :4]
        return torch.addmm(self.place[0], kept, self.scale * self.v[1].t())

    def layers(self) -> list[Tensor]:
        """The three matrices as they meet the data."""
        return [self.w, (self.v[0] * self.mask).T, 0.5 * self.v[1]]


@pytest.mark.parametrize("chunk", [512, 3])
def test_weights_in_a_forward_of_ones_own(chunk: int) -> None:
    """The outputs of the products, not the transposed weights; the same whatever the chunks."""
    torch.manual_seed(0)
    net = OwnProducts()
    x = torch.randn(8, 3, dtype=torch.float64)
    problem = problem_of(net, x, chunk=chunk)
    found = watch_signals(problem, problem.train)
    assert [s.layer for s in found] == ["w", "v", "v"]
    first, second, third = net.layers()
    every = torch.zeros(2, 3)
    for sample in x:
        z = (first @ sample).detach().requires_grad_()
        u = second @ torch.relu(z + net.place[0])
        last = third @ (torch.relu(u) * torch.tensor([1.0, 1, 1, 1, 0])) + net.place[0]
        gradients = torch.autograd.grad(last.square().mean(), [z, u, last])
        every[0] += torch.stack([v.detach().square().mean() for v in (z, u, last)])
        every[1] += torch.stack([g.square().sum() for g in gradients])
    expected = (every / len(x)).sqrt()
    assert torch.allclose(torch.tensor([s.forward for s in found]), expected[0])
    assert torch.allclose(torch.tensor([s.backward for s in found]), expected[1])
    assert [u.layer for u in watch_units(problem, problem.train)] == ["place", "v"]


class Shared(nn.Module):
    """Two layers that share one weight, and one that is read backwards."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.second(torch.tanh(self.first(x))))
        return F.linear(h, self.first.weight.t())


class Substituted(nn.Module):
    """Calls its layer with other parameters, as meta-learners do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3, bias=False)
        nn.init.eye_(self.layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        fast = {k: 2 * p for k, p in self.layer.named_parameters()}
        return torch.func.functional_call(self.layer, fast, (self.layer(x),))


def test_a_weight_of_two_layers_is_listed_at_each_use() -> None:
    torch.manual_seed(0)
    net, x = Shared(), torch.randn(6, 3)
    problem = problem_of(net, x)
    found = watch_signals(problem, problem.train)
    assert [s.layer for s in found] == ["first"] * 3
    assert found[2].forward == pytest.approx(float(net(x).detach().square().mean().sqrt()))
    assert found[1].forward != pytest.approx(found[0].forward)
    assert [u.layer for u in watch_units(problem, problem.train)] == ["first", "first"]
    for chunk in (512, 4):
        problem = problem_of(Substituted(), x, chunk=chunk)
        once, twice = watch_signals(problem, problem.train)
        assert (once.layer, twice.layer) == ("layer", "layer")
        assert twice.forward == pytest.approx(2 * once.forward)
        assert once.backward == pytest.approx(2 * twice.backward)


def test_weights_that_a_parametrization_computes() -> None:
    torch.manual_seed(0)
    plain, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(5, 3)
    expected = [(s.forward, s.backward) for s in signals_of(plain, x)]
    nn.utils.parametrizations.weight_norm(plain[0])  # the same function, in other parameters
    found = signals_of(plain, x)
    assert [(s.forward, s.backward) for s in found] == [pytest.approx(e) for e in expected]
    (units,) = units_of(plain, x)
    assert units.layer == "0"


class Bounded(nn.Module):
    """Weights within (-1, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(F.linear(x, torch.tanh(self.w)))


def test_a_function_of_weights_is_no_activation() -> None:
    torch.manual_seed(0)
    net, x = Bounded(), torch.randn(4, 3)
    (units,) = units_of(net, x)
    assert (units.layer, units.function) == ("w", "relu")
    (found,) = signals_of(net, x)
    z = x @ torch.tanh(net.w.detach()).T
    assert found.forward == pytest.approx(float(z.square().mean().sqrt()))


def signals_of(model: nn.Module, x: Tensor) -> list[LayerSignal]:
    problem = problem_of(model, x)
    return watch_signals(problem, problem.train)


class Recurrent(nn.Module):
    """The outputs of a recurrent layer, overwritten."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(3, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x)[0].mul_(3.0)


def test_what_is_overwritten_later_was_measured_before() -> None:
    torch.manual_seed(0)
    net, x = Recurrent(), torch.randn(4, 5, 3)
    (found,) = signals_of(net, x)
    assert found.forward == pytest.approx(float(net.cell(x)[0].detach().square().mean().sqrt()))


class Alternating(nn.Module):
    """Another layer for every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if float(x.sum()) > 0 else self.b(x)


def test_models_without_layers_to_follow() -> None:
    assert signals_of(nn.Sequential(nn.Flatten(), nn.Tanh()), torch.randn(3, 2)) == []
    net = nn.Sequential(nn.Linear(2, 2), nn.Sigmoid())
    net.register_forward_hook(lambda *a: a[2].detach())
    (found,) = signals_of(net, torch.randn(3, 2))
    assert found.backward == 0
    x = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    problem = problem_of(Alternating(), x, chunk=1, plain_mean=False)
    with pytest.raises(UnsupportedModel, match="same layers"):
        watch_signals(problem, problem.train)


def test_signals_at_other_weights() -> None:
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    p = Problem(net, (torch.ones(2, 1), torch.zeros(2, 1)), task="regression")
    point = {k: torch.full_like(v, 3.0) for k, v in p.parameters.items()}
    found = watch_signals(p, p.train, point)
    # outputs 3 and 9, slope of the squared loss 2 * 9, and 3 times that one layer below
    assert found == [LayerSignal("0", 3.0, 54.0), LayerSignal("1", 9.0, 18.0)]


def test_watching_leaves_no_trace() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Dropout(), nn.ReLU(inplace=True), nn.Linear(3, 1))
    p = Problem(net, (torch.randn(5, 2), torch.randn(5, 1)))
    weights = {k: v.clone() for k, v in net.state_dict().items()}
    state = torch.get_rng_state()
    watch_units(p, p.train)
    watch_signals(p, p.train)
    assert torch.equal(state, torch.get_rng_state())
    assert net.training
    assert all(torch.equal(v, weights[k]) for k, v in net.state_dict().items())
    assert all(q.grad is None and q.requires_grad for q in net.parameters())
    assert not any(m._forward_hooks or m._backward_hooks for m in net.modules())
