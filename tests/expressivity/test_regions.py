"""Cells of planes and boxes: by hand, against sampling, against linear programming."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
)
from torchtheory.expressivity.arrangement import PlaneSlice, plane_arrangement
from torchtheory.expressivity.boundary import connected_parts, decision_boundary
from torchtheory.expressivity.bounds import (
    curvature_floor,
    doubling_bound,
    least_units,
    montufar_bound,
    most_pieces,
    most_regions,
)
from torchtheory.expressivity.enumeration import enumerate_regions
from torchtheory.expressivity.folding import folding_network, montufar_network, sawtooth_network
from torchtheory.expressivity.hyperplanes import hyperplane_regions, zaslavsky_bound
from torchtheory.expressivity.pieces import affine_pieces
from torchtheory.expressivity.polygons import areas
from torchtheory.expressivity.regions import Box, Polyline, activation_pattern, count_regions
from torchtheory.expressivity.trajectory import circle, gaussian_network, image_length
from torchtheory.nets.feedforward import mlp
from torchtheory.neurons.dichotomies import cover_count


class MaxNet(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.a = mlp([2, 9], generator=seed)
        self.b = mlp([3, 6], generator=seed + 1)
        self.c = mlp([3, 3], generator=seed + 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.b(self.a(x).reshape(-1, 3, 3).amax(-1))
        return self.c(torch.maximum(h[:, :3], h[:, 3:]))


def _sampled(model: nn.Module, low: float, high: float, n: int = 30000) -> int:
    g = torch.Generator().manual_seed(0)
    x = torch.rand(n, 2, generator=g, dtype=torch.float64) * (high - low) + low
    return len(torch.cat(activation_pattern(model, x), 1).unique(dim=0))


@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_plane_is_divided_without_gap_or_overlap(seed: int) -> None:
    net = mlp([2, 6, 5, 2], generator=seed)
    plane = PlaneSlice.of_the_plane((-3, -2), (3, 2))
    found = plane_arrangement(net, plane)
    c = found.complex
    assert len(c.vertices) - len(c.edges) + len(found) == 1
    assert sum(float(areas(torch.as_tensor(p)[None])) for p in found.polygons()) == pytest.approx(
        24
    )
    assert found.patterns == len(found) >= found.count
    low = torch.tensor([-3.0, -2.0])
    assert len(enumerate_regions(net, low, -low)) == found.patterns
    cell, values = found.corner_values()
    corners = torch.as_tensor(c.vertices[c.corners])
    with torch.no_grad():
        torch.testing.assert_close(values, net(corners), rtol=1e-8, atol=1e-9)
    assert len(cell) == len(corners)


@pytest.mark.parametrize("seed", [0])
def test_maxima_against_sampling_and_programming(seed: int) -> None:
    net = MaxNet(seed)
    found = plane_arrangement(net, PlaneSlice.of_the_plane((-9, -9), (9, 9)))
    nine = torch.full((2,), 9.0)
    assert found.patterns == len(enumerate_regions(net, -nine, nine))
    assert _sampled(net, -9, 9) <= found.patterns <= len(found)
    assert found.count <= found.patterns
    c = found.complex
    assert len(c.vertices) - len(c.edges) + len(found) == 1


def test_slice_of_images_agrees_with_the_line_in_it() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2)
    )
    p, q, r = torch.randn(3, 1, 6, 6)
    plane = PlaneSlice.through(p, q, r, margin=0.2)
    found = plane_arrangement(net, plane)
    inside = sum(bool((s[:, 1].min() < 0.3) & (s[:, 1].max() > 0.3)) for s in found.polygons())
    ends = plane.points(torch.tensor([[-0.2, 0.3], [1.2, 0.3]]).double())
    line = affine_pieces(net, *ends)
    assert line.patterns <= inside  # cells that a maximum cut without need count twice
    assert line.count == affine_pieces(net, *ends.flip(0)).count


def test_montufar_and_zaslavsky_by_hand() -> None:
    unit = PlaneSlice.of_the_plane((0, 0), (1, 1))
    assert plane_arrangement(montufar_network(2, 4, 2), unit).patterns == 44
    assert montufar_bound(2, 4, 2) == 44 > zaslavsky_bound(8, 2) == 37
    assert plane_arrangement(folding_network(2, [3, 2]), unit).count == 36
    assert [affine_pieces(sawtooth_network(k), 0.0, 1.0).count for k in (1, 4, 9)] == [2, 16, 512]


@pytest.mark.parametrize("seed", range(20))
def test_montufars_regions_do_not_merge(seed: int) -> None:
    unit = PlaneSlice.of_the_plane((0, 0), (1, 1))
    for shape in ((2, 4, 1), (2, 4, 2), (2, 5, 2), (2, 6, 2), (2, 4, 3)):
        found = plane_arrangement(montufar_network(*shape, generator=seed), unit)
        assert found.count == found.patterns == montufar_bound(*shape)
    for m, depth in ((2, 2), (3, 3), (5, 2)):
        line = affine_pieces(montufar_network(1, m, depth, generator=seed), 0.0, 1.0)
        assert line.count == line.patterns == montufar_bound(1, m, depth)


@pytest.mark.parametrize("seed", range(5))
def test_montufars_units_are_never_all_inactive(seed: int) -> None:
    net = montufar_network(3, 6, 1, generator=seed)
    x = 4 * torch.rand(20_000, 3, dtype=torch.float64) - 1.5
    assert bool((net[0](x) > 0).any(1).all())


@settings(max_examples=15, deadline=None)
@given(m=st.integers(1, 7), n=st.integers(1, 3), seed=st.integers(0, 10**6))
def test_hyperplanes_in_general_position_and_through_the_origin(m: int, n: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    w, b = torch.randn(m, n, generator=g), torch.randn(m, generator=g)
    assert hyperplane_regions(w, b) == zaslavsky_bound(m, n)
    assert hyperplane_regions(w, 0 * b) == cover_count(m, n)
    assert hyperplane_regions(torch.cat([w, -2 * w]), torch.cat([b, -2 * b])) == zaslavsky_bound(
        m, n
    )


@given(hidden=st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_bounds_are_ordered(hidden: list[int]) -> None:
    assert most_pieces(hidden) <= doubling_bound(hidden)
    assert most_regions(1, hidden) == most_pieces(hidden)
    assert least_units(most_pieces(hidden), len(hidden)) <= sum(hidden) + 1e-9


def test_decision_boundary_of_three_classes() -> None:
    """Three linear scores: three rays from the origin, none of them where a third class wins."""
    angle = torch.tensor([0.0, 2 * math.pi / 3, 4 * math.pi / 3]).double()
    net = nn.Linear(2, 3, bias=False).double()
    net.weight.data = torch.stack([angle.cos(), angle.sin()], 1)
    found = decision_boundary(plane_arrangement(net))
    assert len(found.segments) == 3
    assert connected_parts(found) == 1
    assert found.segments.flatten(0, 1).norm(dim=1).sort().values[:3].abs().max() < 1e-12
    with torch.no_grad():
        top = net(found.segments.mean(1)).sort(1).values
    torch.testing.assert_close(top[:, 2], top[:, 1])
    constant = nn.Linear(2, 1).double()
    constant.weight.data.zero_()
    assert connected_parts(decision_boundary(plane_arrangement(constant))) == 0


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e13])
def test_linear_regions_whatever_the_scale(size: float) -> None:
    net = mlp([2, 6, 5, 2], generator=3)
    plane = PlaneSlice.of_the_plane((-2, -2), (2, 2))
    wide = PlaneSlice.of_the_plane((-2 * size, -2 * size), (2 * size, 2 * size))
    scaled = nn.Sequential(mlp([2, 2]), net)
    scaled[0][0].weight.data = torch.eye(2).double() / size
    scaled[0][0].bias.data.zero_()
    assert plane_arrangement(scaled, wide).count == plane_arrangement(net, plane).count > 10


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e7])
def test_parts_of_a_boundary_whatever_the_scale(size: float) -> None:
    """A ring around 0, through many cells: one curve at every scale of the inputs."""
    angle = torch.arange(9).double() * 2 * math.pi / 9
    first = nn.Linear(2, 9).double()
    first.weight.data = torch.stack([angle.cos(), angle.sin()], 1) / size
    first.bias.data.fill_(-0.2)
    last = nn.Linear(9, 1).double()
    last.weight.data.fill_(1.0)
    last.bias.data.fill_(-0.5)
    net = nn.Sequential(first, nn.ReLU(), last)
    found = decision_boundary(
        plane_arrangement(net, PlaneSlice.of_the_plane((-size, -size), (size, size)))
    )
    assert len(found.segments) >= 9
    assert connected_parts(found) == 1


def test_count_regions_in_all_places() -> None:
    net = mlp([2, 5, 1], generator=1)
    two = torch.full((2,), 2.0)
    plane = PlaneSlice.of_the_plane((-2, -2), (2, 2))
    assert count_regions(net, Box(-two, two), "patterns") == count_regions(net, plane, "patterns")
    assert count_regions(net, Polyline([-two, two])) <= 6
    kink = nn.Sequential(nn.Linear(1, 1), nn.ReLU()).double()
    kink[0].weight.data.fill_(1.0)
    kink[0].bias.data.fill_(-0.1)  # on the corner itself: in single precision it would lie beside
    assert count_regions(kink, Polyline([-1.0, 0.1, 1.0])) == 2
    with pytest.raises(InvalidInput, match="patterns"):
        count_regions(net, Box(-two, two))
    with pytest.raises(InvalidType):
        count_regions(net, (-two, two))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        count_regions(net, plane, "all")  # type: ignore[arg-type]


def test_refused_slices() -> None:
    e = torch.eye(2)
    with pytest.raises(InvalidInput, match="parallel"):
        PlaneSlice(torch.zeros(2), e[0], 2 * e[0])
    with pytest.raises(InvalidInput, match="empty"):
        PlaneSlice(torch.zeros(2), e[0], e[1], (1, 1), (0, 0))
    with pytest.raises(ShapeMismatch):
        PlaneSlice(torch.zeros(3), e[0], e[1])
    with pytest.raises(InvalidType, match="tensors"):
        PlaneSlice([0, 0], e[0], e[1])  # type: ignore[arg-type]
    with pytest.raises(NonFinite):
        PlaneSlice(torch.full((2,), math.nan), e[0], e[1])
    with pytest.raises(InvalidInput, match="finite"):
        enumerate_regions(mlp([2, 2, 1]), torch.full((2,), -math.inf), torch.ones(2))
    with pytest.raises(EmptyData):
        activation_pattern(mlp([2, 2, 1]), torch.zeros(0, 2))
    with pytest.raises(InvalidInput, match="more than 5 cells"):
        plane_arrangement(mlp([2, 20, 1]), PlaneSlice.of_the_plane((-5, -5), (5, 5)), most=5)
    with pytest.raises(InvalidInput, match="below"):
        enumerate_regions(mlp([2, 2, 1]), torch.ones(2), torch.zeros(2))
    with pytest.raises(InvalidInput, match="no hyperplane"):
        hyperplane_regions(torch.zeros(1, 2), torch.zeros(1))


def test_length_of_images() -> None:
    assert image_length(nn.Identity(), circle(400)) == pytest.approx(2 * math.pi, rel=1e-4)
    one = gaussian_network([2, 8, 8], bias="power", generator=3)
    three = gaussian_network([2, 8, 8], 3.0, bias="power", generator=3)
    assert image_length(three, circle(20)) == pytest.approx(9 * image_length(one, circle(20)))
    steps = circle(7).diff(dim=0).norm(dim=1)
    torch.testing.assert_close(steps, steps[:1].expand_as(steps), rtol=1e-14, atol=0)
    for widths, options in (([2], {}), ([2, 3], {"bias": "all"}), ([2, 3], {"sigma": -1.0})):
        with pytest.raises(InvalidInput):
            gaussian_network(widths, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="positive"):
        curvature_floor(-1.0, 1.0, 2)
