"""Narrow networks, residual networks: exact strings, witnesses, foldings, memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.approximation.architectures.residual import (
    ResidualBlock,
    ResidualNetwork,
    folding_network_of_norm,
    radial_network,
    residual_memorizer,
    unroll_residual,
)
from torchtheory.approximation.certificates import measured_error, network_size
from torchtheory.approximation.depth.narrow import (
    fixed_size_floor,
    level_path,
    max_min_network,
    max_min_string,
    minimal_width,
    narrow_broken_line,
    sphere_witness,
    tangent_network,
)
from torchtheory.core.errors import (
    InvalidInput,
    LabelOutOfRange,
    ShapeMismatch,
    UnknownName,
    UnsupportedModel,
)
from torchtheory.core.random import as_generator
from torchtheory.nets.feedforward import mlp


def normal(source: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=source)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 1000), st.integers(1, 4), st.lists(st.sampled_from(["max", "min"]), max_size=8)
)
def test_strings_are_networks(seed: int, d: int, operations: list[str]) -> None:
    source = as_generator(seed)
    weight, bias = normal(source, len(operations) + 1, d), normal(source, len(operations) + 1)
    box = [(-2.0, 1.0)] * d
    net = max_min_network(operations, weight, bias, box)  # type: ignore[arg-type]
    x = 3 * torch.rand(50, d, dtype=torch.float64, generator=source) - 2
    direct = max_min_string(operations, weight, bias, x)  # type: ignore[arg-type]
    torch.testing.assert_close(net(x)[:, 0], direct, atol=1e-11, rtol=0)
    size = network_size(net)
    assert size.depth == len(operations) + 1
    assert size.width == (d + 1 if operations else 0)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 12), st.floats(-3, 3))
def test_broken_lines_of_width_two(seed: int, pieces: int, start: float) -> None:
    source = as_generator(seed)
    steps = 0.1 + torch.rand(pieces, dtype=torch.float64, generator=source)
    knots = torch.cat([torch.zeros(1).double(), steps.cumsum(0)]) + start
    values = normal(source, pieces + 1)
    net = narrow_broken_line(knots, values)
    x = torch.linspace(float(knots[0]), float(knots[-1]), 99, dtype=torch.float64)
    direct = np.interp(x.numpy(), knots.numpy(), values.numpy())
    np.testing.assert_allclose(net(x[:, None])[:, 0].numpy(), direct, atol=1e-9)
    assert network_size(net).width == (2 if pieces > 1 else 0)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(0, 8), st.booleans())
def test_narrow_networks_never_rise_on_the_path(
    seed: int, d: int, depth: int, narrower: bool
) -> None:
    width = max(1, d - 1) if narrower else d
    net = mlp([d, *[width] * depth, 1], generator=seed).requires_grad_(False)
    corners, ray = level_path(net, torch.zeros(d).double())
    path = torch.cat([corners, corners[-1] + ray * torch.tensor([[1.0], [10.0]])])
    values = net(path)[:, 0]
    assert bool((values.diff() <= 1e-9 * (1 + values[:-1].abs())).all())
    x = sphere_witness(net)
    assert float(x.norm()) == pytest.approx(1.0, abs=1e-9)
    at_zero, at_x = float(net(torch.zeros(1, d).double())), float(net(x[None]))
    assert at_x <= at_zero + 1e-9
    assert max(abs(at_zero), abs(at_x - 1)) >= 0.5 - 1e-9


def test_narrow_networks_by_hand() -> None:
    assert fixed_size_floor([1], 3) == 0.5
    assert fixed_size_floor([1], 2) == 0.0
    assert [minimal_width("continuous on a cube", 4, n).upper for n in (1, 3)] == [5, 7]
    # the tangents at -1/2 and 1/2 of x^2: |x| - 1/4
    vee = tangent_network(torch.square, 2.0, 2, (-1.0, 1.0))
    assert vee(torch.tensor([0.0, 0.5, 1.0]).double()).tolist() == [-0.25, 0.25, 0.75]
    assert measured_error(torch.square, vee).lower == pytest.approx(vee.bound)


def test_narrow_networks_refuse() -> None:
    with pytest.raises(UnsupportedModel, match="at most 2"):
        sphere_witness(mlp([2, 3, 1]))
    with pytest.raises(UnsupportedModel, match="ReLU"):
        sphere_witness(mlp([2, 2, 1], "tanh"))
    with pytest.raises(UnsupportedModel, match="one output"):
        sphere_witness(mlp([2, 2, 2]))
    with pytest.raises(ShapeMismatch):
        level_path(mlp([2, 2, 1]), torch.zeros(3))
    with pytest.raises(ShapeMismatch):
        max_min_network(["max"], torch.ones(1, 2), torch.ones(1), (0.0, 1.0))
    with pytest.raises(ShapeMismatch):
        max_min_network([], torch.ones(1, 2), torch.ones(1), (0.0, 1.0))
    with pytest.raises(UnknownName):
        max_min_network(["mean"], torch.ones(2, 1), torch.ones(2), (0.0, 1.0))  # type: ignore[list-item]
    with pytest.raises(InvalidInput):
        narrow_broken_line(torch.tensor([0.0, 0.0]), torch.ones(2))
    with pytest.raises(UnknownName):
        minimal_width("everything", 2)  # type: ignore[arg-type]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 5), st.integers(1, 4), st.booleans(), st.booleans())
def test_unrolled_networks_are_the_same(
    seed: int, k: int, count: int, between: bool, ends: bool
) -> None:
    source = as_generator(seed)
    blocks = [
        ResidualBlock(normal(source, 3, k), normal(source, 3), normal(source, k, 3))
        for _ in range(count)
    ]
    first = nn.Linear(4, k).double() if ends else None
    last = nn.Linear(k, 2).double() if ends else None
    net = ResidualNetwork(blocks, first=first, last=last, activation_between=between)
    x = normal(source, 30, 4 if ends else k)
    value = net(x)
    torch.testing.assert_close(unroll_residual(net)(x), value, atol=1e-8, rtol=1e-9)


def test_residual_identity_and_refusals() -> None:
    still = ResidualBlock(torch.ones(2, 2), torch.ones(2), torch.zeros(2, 2))
    x = torch.tensor([[-1.0, 2.0]])
    assert torch.equal(ResidualNetwork([still, still])(x), x)
    cut = ResidualNetwork([still, still], activation_between=True)(x)
    assert cut.tolist() == [[0.0, 2.0]]
    with pytest.raises(ShapeMismatch):
        ResidualBlock(torch.ones(2, 3), torch.ones(2), torch.ones(2, 3))
    with pytest.raises(InvalidInput):
        ResidualNetwork([])
    with pytest.raises(UnsupportedModel):
        unroll_residual(nn.Sequential())  # type: ignore[arg-type]
    smooth = ResidualBlock(torch.ones(1, 1), torch.ones(1), torch.ones(1, 1), nn.Tanh())
    with pytest.raises(UnsupportedModel):
        unroll_residual(ResidualNetwork([smooth]))


@pytest.mark.parametrize("classes", [2, 40])
def test_residual_memorizer(classes: int) -> None:
    source = as_generator(5)
    x = nn.functional.normalize(normal(source, 120, 60))
    labels = torch.randint(0, classes, (120,), generator=source)
    made = residual_memorizer(x, labels, 38, generator=1)
    assert made.residual < 1e-9
    assert made.blocks == math.ceil(120 / 38)
    assert torch.equal(made.network(x).argmax(1), labels)


def test_residual_memorizer_refuses() -> None:
    x = torch.eye(4).double()
    with pytest.raises(InvalidInput, match="apart"):
        residual_memorizer(x, torch.tensor([0, 1, 0, 1]), 1)
    with pytest.raises(InvalidInput, match="equal"):
        residual_memorizer(torch.ones(2, 2).double(), torch.tensor([0, 1]), 2)
    with pytest.raises(LabelOutOfRange):
        residual_memorizer(x, torch.tensor([0, -1, 0, 1]), 9)
    with pytest.raises(ShapeMismatch):
        residual_memorizer(x, torch.ones(4), 9)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 9), st.floats(0.5, 3))
def test_folded_plane(seed: int, folds: int, radius: float) -> None:
    source = as_generator(seed)
    x = radius * (2 * torch.rand(200, 2, dtype=torch.float64, generator=source) - 1)
    made = folding_network_of_norm(folds, radius)
    length = x.norm(dim=1)
    beta = math.pi / 2**folds
    assert bool(((made(x) - length).abs() <= (1 - math.cos(beta)) * length + 1e-12).all())
    knots = torch.tensor([0.0, radius / 2, 2 * radius]).double()
    values = normal(source, 3)
    bent = radial_network(knots, values, folds, radius)
    direct = torch.from_numpy(np.interp(length.numpy(), knots.numpy(), values.numpy()))
    assert float((bent(x) - direct).abs().max()) <= bent.bound + 1e-12


def test_two_folds_are_the_sum_of_absolute_values() -> None:
    x = torch.tensor([[3.0, -4.0], [-1.0, -1.0]]).double()
    made = folding_network_of_norm(2)(x)
    # the angles are folded to [0, pi / 2], and read off at pi / 4
    torch.testing.assert_close(made, x.abs().sum(1) / math.sqrt(2))
    with pytest.raises(InvalidInput):
        radial_network(torch.tensor([1.0, 2.0]), torch.ones(2), 3)
    with pytest.raises(ShapeMismatch):
        radial_network(torch.zeros(1), torch.ones(1), 3)
