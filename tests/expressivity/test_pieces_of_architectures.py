"""Pieces of every piecewise linear architecture, as a module and out of an archive."""

from __future__ import annotations

import pytest
import torch
from tests.tracing.architectures import ALL_NAMES, NAMES, Architecture, architecture, archived
from torch import Tensor, nn

from torchtheory.core.errors import UnsupportedModel
from torchtheory.expressivity.arrangement import PlaneSlice, plane_arrangement
from torchtheory.expressivity.enumeration import enumerate_regions
from torchtheory.expressivity.pieces import affine_pieces
from torchtheory.models.model import PureFunction

LINEAR = [n for n in ALL_NAMES if architecture(n).piecewise_linear]


def _ends(a: Architecture) -> tuple[Tensor, Tensor]:
    return (a.x[0], a.x[1]) if a.rows_are_samples else (a.x, a.x.flip(0))


def _at(a: Architecture, points: Tensor) -> Tensor:
    with torch.no_grad():
        if a.rows_are_samples:
            return a.model(points).flatten(1)
        return torch.stack([a.model(x).flatten() for x in points])


@pytest.mark.parametrize("name", LINEAR)
def test_kinks_are_those_of_brute_force(name: str) -> None:
    a = architecture(name)
    start, end = _ends(a)
    found = affine_pieces(a.model, start, end)
    t = torch.linspace(0, 1, 301, dtype=torch.float64)
    y = _at(a, torch.stack([torch.lerp(start, end, s) for s in t]))
    torch.testing.assert_close(found(t).flatten(1), y, rtol=1e-9, atol=1e-11)
    # between three points of a grid the network bends exactly if there is a kink
    bends = (y[2:] - 2 * y[1:-1] + y[:-2]).abs().amax(1) > 1e-11 * y.abs().max()
    kinks = found.kinks
    inside = ((kinks > t[:-2, None]) & (kinks < t[2:, None])).any(1)
    assert bends.any()
    assert not bool((bends & ~inside).any())
    # one next to a point of the grid bends less than rounding there
    clear = ((kinks > t[:-2, None] + 1e-5) & (kinks < t[2:, None] - 1e-5)).any(1)
    slopes = found.slopes.flatten(1).diff(dim=0).abs().amax(1)
    if bool((slopes > 1e-4 * y.abs().max()).all()):
        assert not bool((clear & ~bends).any())


@pytest.mark.parametrize("name", LINEAR)
def test_the_affine_map_of_a_piece_is_the_network_around_a_point(name: str) -> None:
    a = architecture(name)
    start, end = _ends(a)
    found = affine_pieces(a.model, start, end)
    b = found.breakpoints
    widest = int(b.diff().argmax())
    inner = b[widest] + (b[widest + 1] - b[widest]) * torch.tensor(
        [0.2, 0.5, 0.8], dtype=torch.float64
    )
    low, middle, high = _at(a, torch.stack([torch.lerp(start, end, s) for s in inner]))
    torch.testing.assert_close(middle, (low + high) / 2, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", [n for n in NAMES if n in LINEAR])
def test_an_archive_has_the_pieces_of_its_module(name: str) -> None:
    a = architecture(name)
    if not a.rows_are_samples:
        pytest.skip("an archive has a batch of any size")
    own, theirs = (affine_pieces(m, *_ends(a)) for m in (a.model, archived(name)))
    assert own.count == theirs.count
    torch.testing.assert_close(own.breakpoints, theirs.breakpoints, rtol=0, atol=1e-10)
    torch.testing.assert_close(own.values, theirs.values, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", ["message-passing", "clamped", "deep-set"])
def test_cells_of_a_plane(name: str) -> None:
    a = architecture(name)
    start, end = _ends(a)
    third = architecture(name, seed=1).x[2] if a.rows_are_samples else a.x.roll(1, 0)
    plane = PlaneSlice.through(start, end, third)
    found = plane_arrangement(a.model, plane)
    inside = found.points_inside(0)
    made = found.affine(torch.arange(len(found)), inside).flatten(1)
    torch.testing.assert_close(made, _at(a, plane.points(inside)), rtol=1e-9, atol=1e-10)


def test_what_is_not_piecewise_linear_is_said_to_be_that() -> None:
    for name in NAMES:
        a = architecture(name)
        if a.piecewise_linear or not a.x.is_floating_point():
            continue
        with pytest.raises(UnsupportedModel, match=r"is not piecewise linear \(in "):
            affine_pieces(a.model, *_ends(a))


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)  # type: ignore[operator,no-any-return]


def _written(x: Tensor) -> Tensor:
    y = x.clone()
    y[x < 0] = 0
    return y


def _halves(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] = torch.relu(y[:, 0])
    y[:, 1:].clamp_(-0.5)
    return y


@pytest.mark.parametrize(
    ("function", "kinks"),
    [
        (lambda x: torch.where(x > 0, x, 0.1 * x), [0.0]),
        (lambda x: torch.where(x > 1, 2 * x - 1, x), [1.0]),
        (lambda x: torch.where(x > 1, torch.relu(x), 1.0), [1.0]),
        (lambda x: x * (x > 0), [0.0]),
        (lambda x: x * (x > 0).double() + 3 * x * (1 - (x > 0).double()), [0.0]),
        (lambda x: x * torch.sign(x), [0.0]),
        (lambda x: x.masked_fill(x < 0, 0.0), [0.0]),
        (_written, [0.0]),
        (_halves, [-0.5, 0.0]),
        (lambda x: torch.sort(torch.cat([x, 1 - x], 1), 1).values[:, :1], [0.5]),
        (lambda x: torch.cat([x, 1 - x, 0 * x], 1).median(1).values, [0.0, 0.5, 1.0]),
        (lambda x: torch.cat([x, 1 - x], 1).topk(1).values, [0.5]),
        (lambda x: torch.linalg.vector_norm(torch.cat([x, x - 1], 1), 1, 1), [0.0, 1.0]),
        (lambda x: torch.minimum(x, torch.tensor(0.25)), [0.25]),
        (lambda x: torch.clamp(x, min=-1).clamp_(max=0.5), [-1.0, 0.5]),
        (lambda x: (torch.ones(2, 2).double() @ x.T).T.relu(), [0.0]),
        (lambda x: x.reshape(1, -1).relu().reshape(-1, 2), [0.0]),
    ],
)
def test_other_ways_to_bend(function: object, kinks: list[float]) -> None:
    found = affine_pieces(Of(function), torch.full((2,), -2.0), torch.full((2,), 2.0))
    assert (4 * found.kinks - 2).tolist() == pytest.approx(kinks, abs=1e-12)


@pytest.mark.parametrize(
    ("function", "word"),
    [
        (lambda x: torch.where(x > 0, x + 1, x), "jumps by 1 "),
        (lambda x: torch.where(x[:, :1] > 0, x, 0 * x).flip(1), "jumps"),
        (lambda x: (x > 0).double(), "jumps"),
        (lambda x: x + torch.sign(x), "jumps"),
        (lambda x: x.gather(1, x.argmax(1, keepdim=True)), "which jumps|jumps, so"),
        (lambda x: torch.relu(x) + torch.where(x > 0, x + 1, x), "jumps by 1 "),
        (torch.floor, "floor jumps"),
        (lambda x: x - x.mean(0), "mixes"),
        (lambda x: x.cumsum(0), "mixes"),
        (lambda x: x.amax(0, keepdim=True) + x, "mixes"),
        (lambda x: x * x, "both depend on the input"),
        (lambda x: 1 / x.abs(), "not piecewise linear|not affine"),
        (lambda x: torch.quantile(x, 0.3, dim=1), "there is no rule for quantile"),
    ],
)
def test_refusals_say_which(function: object, word: str) -> None:
    start, end = torch.tensor([-2.0, -1.0]), torch.tensor([2.0, 3.0])
    with pytest.raises(UnsupportedModel, match=word):
        affine_pieces(Of(function), start, end)


def test_a_jump_in_a_box_and_on_a_plane() -> None:
    step = Of(lambda x: torch.where(x[:, :1] > 0, x, 0 * x))
    bend = Of(lambda x: torch.where(x > 0, x, 0 * x))
    ones = torch.ones(2)
    assert len(enumerate_regions(bend, -ones, ones)) == len(plane_arrangement(bend)) == 4
    with pytest.raises(UnsupportedModel, match="jumps"):
        enumerate_regions(step, -ones, ones)
    with pytest.raises(UnsupportedModel, match="jumps"):
        plane_arrangement(step)


def test_a_network_of_steps_in_time() -> None:
    """A recurrent network of ReLUs is written out, and bends."""
    torch.manual_seed(0)
    layer = nn.RNN(2, 3, nonlinearity="relu", batch_first=True).double()
    start, end = 3 * torch.randn(2, 4, 2, dtype=torch.float64)
    found = affine_pieces(PureFunction(layer, output=0), start, end)
    assert found.count > 2
    t = torch.linspace(0, 1, 17, dtype=torch.float64)
    with torch.no_grad():
        wanted = layer(torch.stack([torch.lerp(start, end, s) for s in t]))[0]
    torch.testing.assert_close(found(t), wanted)
