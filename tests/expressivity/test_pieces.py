"""Pieces along a line: by hand, against dense sampling, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch, UnsupportedModel
from torchtheory.expressivity.bends import BendingNetwork
from torchtheory.expressivity.bounds import sawtooth_floor
from torchtheory.expressivity.folding import sawtooth_network
from torchtheory.expressivity.pieces import affine_pieces, pieces_along
from torchtheory.expressivity.regions import activation_pattern
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.nets.maxout import Maxout


class Residual(nn.Module):
    """Convolutions, a skip connection, every kind of pooling, functional and in-place calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")
        self.slope = nn.PReLU(4)
        self.read = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.first(x)), inplace=True)
        h = F.max_pool2d(h, 3, stride=2, padding=1)
        h = h + self.slope(self.second(h))
        h = torch.cat([F.adaptive_avg_pool2d(h, 1), F.adaptive_max_pool2d(h, 1)], 1)
        h = torch.clamp(h.flatten(1), -0.4, 0.9)
        return self.read(h).abs() - 1


def _check(model: nn.Module, start: Tensor, end: Tensor, samples: int = 4001) -> None:
    """The pieces are the function; between breakpoints no pattern changes, at them one does."""
    found = affine_pieces(model, start, end)
    model = model.double().eval()
    t = torch.linspace(0, 1, samples).double()
    x = torch.lerp(start.double()[None], end.double()[None], t.reshape(-1, *[1] * start.ndim))
    with torch.no_grad():
        torch.testing.assert_close(found(t), model(x), rtol=1e-9, atol=1e-10)
    pattern = torch.cat(activation_pattern(model, x), 1)
    changes = (pattern[1:] != pattern[:-1]).any(1).nonzero()[:, 0]
    inner = found.breakpoints[1:-1]
    for i in changes.tolist():  # every change that sampling sees has a breakpoint
        assert bool(((inner > t[i] - 1e-9) & (inner < t[i + 1] + 1e-9)).any())
    middle = (found.breakpoints[1:] + found.breakpoints[:-1]) / 2
    at = torch.lerp(start.double()[None], end.double()[None], middle.reshape(-1, *[1] * start.ndim))
    states = torch.cat(activation_pattern(model, at), 1)
    assert bool((states[1:] != states[:-1]).any(1).all())
    # slopes by forward mode differ across every kink and across nothing else
    direction = (end - start).double().expand_as(at).contiguous()
    _, slopes = torch.func.jvp(model, (at,), (direction,))
    jumps = slopes.flatten(1).diff(dim=0).abs().amax(1) > 1e-9 * slopes.abs().max()
    assert int(jumps.sum()) + 1 == found.count


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6), depth=st.integers(1, 3))
def test_dense_networks_against_sampling(seed: int, depth: int) -> None:
    g = torch.Generator().manual_seed(seed)
    net = mlp([3, *[7] * depth, 2], generator=g)
    a, b = torch.randn(2, 3, generator=g, dtype=torch.float64) * 4
    _check(net, a, b)


def test_residual_network_with_pooling() -> None:
    torch.manual_seed(0)
    model = Residual()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    found = affine_pieces(model, *torch.randn(2, 2, 6, 6))
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert found.count > 5
    _check(model, *torch.randn(2, 2, 6, 6))


@pytest.mark.parametrize(
    ("unit", "kinks"),
    [
        (nn.ReLU(), [0.0]),
        (nn.LeakyReLU(0.1), [0.0]),
        (nn.ReLU6(), [0.0, 6.0]),
        (nn.Hardtanh(-2.0, 3.0), [-2.0, 3.0]),
        (nn.Hardsigmoid(), [-3.0, 3.0]),
        (nn.Softshrink(0.5), [-0.5, 0.5]),
        (nn.Threshold(1.0, 1.0), [1.0]),
        (nn.PReLU(), [0.0]),
        (nn.RReLU(), [0.0]),
        (Maxout(1, 1, pieces=1), []),
    ],
)
def test_kinks_by_hand(unit: nn.Module, kinks: list[float]) -> None:
    found = affine_pieces(unit, -10.0, 10.0)
    assert (20 * found.kinks - 10).tolist() == pytest.approx(kinks, abs=1e-12)
    assert found.count == found.patterns == len(kinks) + 1


def test_maximum_of_three_lines() -> None:
    """max(-x, 0.5, x): two kinks; the crossing of the outer lines is below the middle one."""
    unit = Maxout(1, 1, pieces=3)
    unit.set_pieces(torch.tensor([[[-1.0], [0.0], [1.0]]]), torch.tensor([[0.0, 0.5, 0.0]]))
    found = affine_pieces(unit, -2.0, 2.0)
    assert (4 * found.breakpoints - 2).tolist() == pytest.approx([-2, -0.5, 0.5, 2])
    assert found.count == 3


def test_patterns_that_the_output_does_not_show() -> None:
    net = nn.Sequential(
        dense(torch.ones(2, 1).double(), torch.tensor([0.0, -1.0]).double()),
        nn.ReLU(),
        dense(torch.tensor([[1.0, 0.0]]).double()),
    )
    found = affine_pieces(net, -2.0, 2.0)
    assert (found.count, found.patterns) == (2, 3)
    constant = nn.Sequential(net[0], nn.ReLU(), dense(torch.zeros(1, 2).double()))
    assert (affine_pieces(constant, -2.0, 2.0).count) == 1


def test_several_units_with_one_kink() -> None:
    g = torch.Generator().manual_seed(0)
    slopes = torch.randn(40, 1, generator=g, dtype=torch.float64)
    net = nn.Sequential(
        dense(slopes, -slopes[:, 0] * 0.3),
        nn.ReLU(),
        dense(torch.randn(1, 40, generator=g).double()),
    )
    assert affine_pieces(net, -1.0, 1.0).count == 2


def test_polyline_and_crossings() -> None:
    square = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [1.0, 1.0]]).double()
    first = dense(torch.tensor([[1.0, 0.0]]).double())
    found = pieces_along(first, square)
    assert found.count == 4  # slopes -2, 0, 2, 0
    assert found.patterns == 1  # a corner of the path changes no unit
    assert found.crossings(0.0).tolist() == [0.5, 2.5]
    folded = pieces_along(nn.Sequential(first, nn.ReLU()), square)
    assert folded.breakpoints.tolist() == [0, 0.5, 2.5, 3.0, 4.0]


@pytest.mark.parametrize(
    ("layer", "word"),
    [
        (nn.Sigmoid(), "sigmoid"),
        (nn.GELU(), "gelu"),
        (nn.Softmax(1), "softmax"),
        (nn.LayerNorm(3), "layer_norm"),
        (nn.Hardshrink(), "hardshrink"),
        (nn.Threshold(1.0, 0.0), "jumps"),
        (nn.BatchNorm1d(3, track_running_stats=False), "running statistics"),
    ],
)
def test_refused_layers_are_named(layer: nn.Module, word: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(layer))
    with pytest.raises(UnsupportedModel, match=word) as caught:
        affine_pieces(model, torch.zeros(3), torch.ones(3))
    assert type(layer).__name__ in str(caught.value)


class Product(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x


def test_refused_operations() -> None:
    with pytest.raises(UnsupportedModel):
        affine_pieces(Product(), torch.zeros(3), torch.ones(3))


class Score(nn.Module):
    """One number per point, without a feature dimension."""

    def forward(self, x: Tensor) -> Tensor:
        return F.softshrink(torch.relu(x.sum(1)).clamp(max=2.0) - 1, 0.5)


def test_outputs_without_features() -> None:
    found = affine_pieces(Score(), torch.full((2,), -1.0), torch.full((2,), 2.0))
    assert found.values.shape == (len(found.breakpoints),)
    assert (6 * found.kinks - 2).tolist() == pytest.approx([0.0, 0.5, 1.5, 2.0])


def test_refused_points() -> None:
    net = mlp([2, 3, 1])
    with pytest.raises(InvalidInput, match="equal"):
        affine_pieces(net, torch.zeros(2), torch.zeros(2))
    with pytest.raises(InvalidInput, match="one shape"):
        affine_pieces(net, torch.zeros(2), torch.zeros(3))
    with pytest.raises(InvalidInput, match="finite"):
        affine_pieces(net, torch.zeros(2), torch.tensor([1.0, float("nan")]))
    with pytest.raises(ShapeMismatch, match=r"points of shape \[3\]"):
        affine_pieces(net, torch.zeros(3), torch.ones(3))
    with pytest.raises(InvalidType, match="a point is"):
        affine_pieces(net, "here", "there")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="at least 2"):
        pieces_along(net, torch.zeros(1, 2))


def test_pooling_windows_are_those_of_torch() -> None:
    class Largest:
        def kink(self, forms: Tensor, gap: Tensor | None = None) -> None:
            raise AssertionError

        def choice(self, values: Tensor) -> None:
            self.top = values.amax(2)

    x = torch.randn(2, 3, 9, 7, dtype=torch.float64)
    for pool in (
        nn.MaxPool2d(2),
        nn.MaxPool2d(3, 2, 1),
        nn.MaxPool2d(3, 2, 1, dilation=2),
        nn.MaxPool2d((2, 3), ceil_mode=True),
        nn.AdaptiveMaxPool2d((3, 1)),
    ):
        seen = Largest()
        y = BendingNetwork(pool, x).watch(x, seen)
        assert torch.equal(seen.top, y.flatten(1))


def test_no_function_of_so_many_pieces_is_nearer_to_the_sawtooth() -> None:
    """The best function with n affine pieces, continuous or not, by dynamic programming."""
    p, per_cell, ends = (
        3,
        8,
        17,
    )  # pieces end at multiples of 1/16: corners and middles of half teeth
    x = (np.arange(per_cell * (ends - 1)) + 0.5) / (per_cell * (ends - 1))
    with torch.no_grad():
        y = sawtooth_network(p)(torch.from_numpy(x)[:, None])[:, 0].numpy()

    def nearest(low: int, high: int) -> float:
        """The least mean of |y - affine| over some cells, times their share: a linear program."""
        part = slice(low * per_cell, high * per_cell)
        t, v = x[part], y[part]
        n = len(t)
        design, slack = np.stack([np.ones(n), t], 1), -np.eye(n)
        found = linprog(
            np.r_[0, 0, np.ones(n)],
            A_ub=np.block([[design, slack], [-design, slack]]),
            b_ub=np.r_[v, -v],
            bounds=[(None, None)] * 2 + [(0, None)] * n,
        )
        return float(found.fun) / len(x)

    cost = {(a, b): nearest(a, b) for a in range(ends) for b in range(a + 1, ends)}
    best = {0: 0.0}
    for pieces in range(1, 2**p + 1):
        best = {
            b: min(v + cost[a, b] for a, v in best.items() if a < b)
            for b in range(1, ends)
            if any(a < b for a in best)
        }
        assert best[ends - 1] >= sawtooth_floor(p, pieces) - 1e-6
        if pieces == 1:
            assert math.isclose(best[ends - 1], sawtooth_floor(p, 1), rel_tol=1e-6)
    assert best[ends - 1] < 1e-9  # as many pieces as the sawtooth has
    assert [sawtooth_floor(2, n) for n in (1, 2, 3, 9)] == [0.25, 0.125, 0.0, 0.0]
