"""Parallel networks, their polar problem, the induced penalty, certificates and paths."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, nnls
from torch import nn

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    NonFinite,
    ShapeMismatch,
    UnknownName,
    UnsupportedModel,
)
from torchtheory.models.model import PureFunction
from torchtheory.optimization.parallel_networks import nonincreasing_paths
from torchtheory.optimization.parallel_networks.activation_cells import activation_patterns
from torchtheory.optimization.parallel_networks.induced_regularizer import induced_penalty
from torchtheory.optimization.parallel_networks.network_certificates import (
    best_scales,
    certify_network,
    grow_network,
    worth_of_subnetwork,
)
from torchtheory.optimization.parallel_networks.nondegenerate_pairs import (
    check_pair,
    degree_of,
    degrees_by_group,
    layers_that_break,
    match_degrees,
)
from torchtheory.optimization.parallel_networks.nonincreasing_paths import (
    DescentPath,
    nonincreasing_path,
    required_width,
    slide_to_zero,
)
from torchtheory.optimization.parallel_networks.polar_problems import polar
from torchtheory.optimization.parallel_networks.subnetworks import (
    HalfSquares,
    ParallelNetwork,
    Subnetwork,
    deep_subnetwork,
    linear_unit,
    parallel_network,
    relu_unit,
    split_hidden_units,
)

seeds = st.integers(0, 10**6)


def normal(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# -- networks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
def test_dense_network_is_the_sum_of_its_units(bias):
    net = nn.Sequential(nn.Linear(3, 5, bias=bias), nn.ReLU(), nn.Linear(5, 2, bias=False)).double()
    units = split_hidden_units(net)
    x = normal(0, 7, 3)
    assert torch.allclose(units(x), net(x))
    decay = sum(float(p.detach().square().sum()) for p in net.parameters()) / 2
    assert float(units.penalties().sum()) == pytest.approx(decay)


def test_what_is_no_sum_of_units_is_refused():
    with pytest.raises(UnsupportedModel, match="Tanh"):
        split_hidden_units(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)))
    with pytest.raises(UnsupportedModel, match="output bias"):
        split_hidden_units(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)))


@given(seeds, st.floats(0.1, 4.0))
@settings(max_examples=20, deadline=None)
def test_scaling_the_weights_scales_parts_and_penalties(seed, factor):
    for unit in (relu_unit(2, 1), linear_unit(2, 1), deep_subnetwork([2, 3, 3, 1])):
        network = parallel_network(unit, normal(seed, 2, unit.size))
        x = normal(seed + 1, 4, 2)
        scaled = network.scaled(torch.tensor([factor, 1.0]))
        assert torch.allclose(scaled.parts(x)[0], factor * network.parts(x)[0])
        assert torch.allclose(scaled.penalties()[0], factor * network.penalties()[0])
        assert torch.allclose(scaled.parts(x)[1], network.parts(x)[1])


def test_appending_and_dropping():
    network = parallel_network(relu_unit(2, 1))
    assert len(network) == 0
    assert network(torch.ones(3, 2).double()).tolist() == [[0.0]] * 3
    more = network.append(normal(0, 2, 3)).append(torch.zeros(3))
    assert more.is_zero().tolist() == [False, False, True]
    assert len(more.without_zeros()) == 2


def test_bad_networks_are_refused():
    unit = relu_unit(2, 1)
    with pytest.raises(ShapeMismatch):
        ParallelNetwork(unit, torch.ones(2, 4))
    with pytest.raises(NonFinite):
        ParallelNetwork(unit, torch.full((1, 3), math.nan))
    with pytest.raises(ShapeMismatch):
        parallel_network(unit, torch.ones(1, 3))(torch.ones(2, 3))
    with pytest.raises(EmptyData):
        parallel_network(unit, torch.ones(1, 3))(torch.ones(0, 2))
    with pytest.raises(ShapeMismatch, match="reshape"):
        HalfSquares(torch.ones(3))
    with pytest.raises(InvalidInput):
        deep_subnetwork([2])
    with pytest.raises(InvalidInput):
        relu_unit(2, 1, penalty="cube")
    with pytest.raises(InvalidInput):
        parallel_network(unit, torch.ones(1, 3)).scaled(torch.tensor([-1.0]))


# -- the polar problem --------------------------------------------------------------------------


@given(seeds, st.integers(1, 7), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_swept_polar_against_all_angles(seed, m, c):
    x, q = normal(seed, m, 2), normal(seed + 1, m, c)
    found = polar(relu_unit(2, c), x, q)
    angles = torch.arange(20000).double() * 2 * math.pi / 20000
    values = (torch.relu(torch.stack([angles.cos(), angles.sin()], 1) @ x.T) @ q).norm(dim=1)
    assert found.exact
    assert found.value >= float(values.max()) - 1e-12
    assert found.value <= float(values.max()) * (1 + 1e-3) + 1e-9
    unit = relu_unit(2, c)
    assert float((unit.outputs(x, found.weights) * q).sum()) == pytest.approx(found.value)
    assert float(unit.penalty(found.weights)) == pytest.approx(1)


def test_patterns_in_three_dimensions_and_their_polar():
    x, q = normal(0, 5, 3), normal(1, 5, 1)
    patterns = activation_patterns(x)
    assert len(patterns) == 2 * (1 + 4 + 6)
    found = polar(relu_unit(3, 1), x, q)
    w = nn.functional.normalize(normal(2, 100_000, 3), dim=1)
    best = float((torch.relu(w @ x.T) @ q).abs().max())
    assert found.exact
    assert best - 1e-12 <= found.value <= best * 1.01


def by_patterns(x, q):
    """The polar of one output by brute force: the gradient projected onto every pattern's cone."""
    best = 0.0
    for pattern in activation_patterns(x).numpy():
        cone = ((2 * pattern - 1)[:, None] * x.numpy()).T
        gradient = x.numpy().T @ (pattern * q[:, 0].numpy())
        for g in (gradient, -gradient):
            best = max(best, float(np.linalg.norm(g + cone @ nnls(cone, -g)[0])))
    return best


GRID = [[1.0, i, j] for i in (-1.0, 0.0, 1.0) for j in (-1.0, 0.0, 1.0)]


@pytest.mark.parametrize(
    "x",
    [
        normal(0, 6, 3),
        normal(1, 6, 4),
        normal(2, 3, 5),  # fewer samples than inputs
        normal(3, 6, 2) @ normal(4, 2, 4),  # of rank 2
        torch.cat([normal(5, 3, 3), -2 * normal(5, 3, 3), normal(5, 3, 3), torch.zeros(1, 3)]),
        torch.tensor(GRID).double(),  # three planes meet in an edge
        normal(6, 5, 3) * torch.tensor([[1e-9], [1.0], [1e6], [1.0], [1.0]]),
    ],
    ids=["three", "four", "few", "flat", "parallel", "grid", "scales"],
)
def test_cells_against_projections_onto_all_cones(x):
    q = normal(7, len(x), 1)
    found = polar(relu_unit(x.shape[1], 1), x, q)
    assert found.exact
    assert found.value == pytest.approx(by_patterns(x, q), rel=1e-9)
    assert found.value <= found.bound <= found.value * (1 + 1e-8)


def test_too_many_cells_are_searched():
    x, q = normal(0, 60, 6), normal(1, 60, 1)
    found = polar(relu_unit(6, 1), x, q, starts=5)
    assert not found.exact
    assert found.bound == math.inf


def test_many_samples_of_the_plane_take_little_memory():
    x, q = normal(0, 20_000, 2), normal(1, 20_000, 1)
    found = polar(relu_unit(2, 1), x, q)
    angles = torch.arange(200).double() * math.pi / 100
    some = torch.relu(torch.stack([angles.cos(), angles.sin()], 1) @ x.T) @ q
    assert found.exact
    assert found.value >= float(some.abs().max())


def test_polar_of_the_line_and_of_linear_units():
    x, q = torch.tensor([[1.0], [-2.0]]).double(), torch.tensor([[3.0], [1.0]]).double()
    assert polar(relu_unit(1, 1), x, q).value == 3.0
    X, Q = normal(0, 6, 4), normal(1, 6, 3)
    found = polar(linear_unit(4, 3), X, Q)
    assert found.value == pytest.approx(float(torch.linalg.matrix_norm(X.T @ Q, 2)))


def test_searches_say_that_they_are_searches():
    x, q = normal(0, 6, 3), normal(1, 6, 2)
    found = polar(relu_unit(3, 2), x, q, starts=10)
    assert not found.exact
    assert found.starts == 10
    unit = relu_unit(2, 1)
    other = Subnetwork(unit.outputs, unit.penalty, unit.size, 2.0)
    x, q = normal(0, 4, 2), normal(1, 4, 1)
    searched = polar(other, x, q, starts=5, generator=0)
    assert not searched.exact
    assert searched.value <= polar(unit, x, q).value * (1 + 1e-9)
    with pytest.raises(ShapeMismatch):
        polar(unit, x, q[:2])
    with pytest.raises(ShapeMismatch):
        polar(relu_unit(2, 2), x, q)


# -- the induced penalty ------------------------------------------------------------------------


def test_induced_penalty_by_hand():
    x = torch.eye(2).double()
    z = torch.tensor([[3.0], [4.0]]).double()
    assert induced_penalty(relu_unit(2, 1), x, z).upper == pytest.approx(5)
    z[1] *= -1
    assert induced_penalty(relu_unit(2, 1), x, z).upper == pytest.approx(7)
    assert induced_penalty(relu_unit(2, 1), x, 0 * z).upper == 0


@given(seeds, st.integers(1, 2))
@settings(max_examples=10, deadline=None)
def test_induced_penalty_has_witnesses_on_both_sides(seed, c):
    x = normal(seed, 4, 2)
    unit = relu_unit(2, c)
    rival = parallel_network(unit, normal(seed + 1, 3, unit.size))
    z = rival(x)
    found = induced_penalty(unit, x, z)
    assert torch.allclose(found.network(x), z, atol=1e-7 * float(1 + z.abs().max()))
    assert len(found.network) <= z.numel()
    assert found.lower <= found.upper <= float(rival.penalties().sum()) * (1 + 1e-6) + 1e-9
    assert polar(unit, x, found.dual).value <= 1 + 1e-9
    assert found.upper - found.lower <= 1e-6 * found.upper


def test_unreachable_outputs_cost_infinitely_much():
    x = torch.ones(2, 2).double()
    z = torch.tensor([[1.0], [2.0]]).double()
    for unit in (relu_unit(2, 1), linear_unit(2, 1)):
        assert induced_penalty(unit, x, z).upper == math.inf
    with pytest.raises(UnsupportedModel):
        induced_penalty(deep_subnetwork([2, 2, 1]), x, z)
    with pytest.raises(UnsupportedModel, match="2 outputs"):
        induced_penalty(relu_unit(3, 2), normal(0, 4, 3), normal(1, 4, 2))
    with pytest.raises(UnsupportedModel, match="2 outputs"):  # of rank 1, the duals are not
        induced_penalty(relu_unit(3, 2), normal(0, 4, 3), normal(1, 4, 1) @ normal(2, 1, 2))


def test_linear_units_and_the_nuclear_norm():
    z = normal(0, 4, 3)
    found = induced_penalty(linear_unit(4, 3), torch.eye(4).double(), z)
    assert found.upper == pytest.approx(np.linalg.norm(z.numpy(), "nuc"))
    assert found.lower == pytest.approx(found.upper)
    assert torch.allclose(found.network(torch.eye(4).double()), z)


# -- certificates -------------------------------------------------------------------------------


@given(seeds, st.floats(0.05, 1.0))
@settings(max_examples=10, deadline=None)
def test_bounds_hold_for_random_networks(seed, strength):
    x, y = normal(seed, 5, 2), normal(seed + 1, 5, 1)
    loss, unit = HalfSquares(y), relu_unit(2, 1)
    best = grow_network(unit, x, loss, strength)
    assert best.certificate.optimal
    assert all(b <= a + 1e-9 for a, b in zip(best.objectives, best.objectives[1:], strict=False))
    for width in (0, 1, 4):
        network = parallel_network(unit, normal(seed + 2, width, 3))
        found = certify_network(network, x, loss, strength)
        assert found.lower_bound <= best.certificate.objective * (1 + 1e-9) + 1e-12
        assert found.objective >= best.certificate.lower_bound * (1 - 1e-9)


def test_growth_against_a_general_optimizer():
    x, y, strength = normal(4, 5, 2), normal(5, 5, 1), 0.2
    loss, unit = HalfSquares(y), relu_unit(2, 1)
    best = grow_network(unit, x, loss, strength).certificate.objective

    def value(theta):
        w = torch.tensor(theta, requires_grad=True)
        hidden = torch.relu(x @ w.view(-1, 3)[:, :2].T)
        f = (hidden @ w.view(-1, 3)[:, 2:] - y).square().sum() / 2 + strength * w @ w / 2
        f.backward()
        return float(f.detach()), w.grad.numpy()

    rng = np.random.default_rng(0)
    reached = min(minimize(value, rng.normal(size=24), jac=True).fun for _ in range(6))
    assert best * (1 - 1e-6) <= reached <= best * 1.05


def test_other_losses_are_certified_too():
    x, labels = normal(0, 6, 2), torch.sign(normal(1, 6, 1))

    def logistic(z):
        return nn.functional.softplus(-labels * z).sum()

    grown = grow_network(relu_unit(2, 1), x, logistic, 0.3, tolerance=1e-4, rounds=60)
    assert grown.certificate.optimal
    rival = parallel_network(relu_unit(2, 1), normal(2, 3, 3))
    assert float(rival.objective(x, logistic, 0.3)) >= grown.certificate.lower_bound
    with pytest.raises(InvalidInput, match="negative"):
        certify_network(rival, x, lambda z: z.sum() * 0 - 1, 0.3)


def test_best_scales_are_optimal():
    x, y = normal(0, 5, 2), normal(1, 5, 1)
    network = parallel_network(relu_unit(2, 1), normal(2, 4, 3))
    loss = HalfSquares(y)
    scales = best_scales(network, x, loss, 0.1)
    # the same by the route for any loss
    other = best_scales(network, x, lambda z: loss(z), 0.1)
    assert torch.allclose(scales, other, atol=1e-5)
    there = network.scaled(scales)
    assert abs(certify_network(there, x, loss, 0.1).balance) < 1e-9
    unit = network.weights[0]
    size = worth_of_subnetwork(parallel_network(relu_unit(2, 1)), unit, x, loss, 0.1)
    general = worth_of_subnetwork(
        parallel_network(relu_unit(2, 1)), unit, x, lambda z: loss(z), 0.1
    )
    assert size == pytest.approx(general, abs=1e-5)


def test_no_local_minimum_is_taken_for_a_global_one():
    """Exclusive or with one, two and three units: local minima, each with a gap."""
    x = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]).double()
    y = torch.tensor([[1.0], [-1.0], [-1.0], [1.0]]).double()
    size = (1 - 0.5 / math.sqrt(2)) / math.sqrt(2)
    units = torch.cat([x / math.sqrt(2), y], 1) * math.sqrt(size)
    for dtype in (torch.float64, torch.float32):
        found = [
            certify_network(
                parallel_network(relu_unit(2, 1), units[:r].to(dtype)), x, HalfSquares(y), 0.5
            )
            for r in range(5)
        ]
        assert [c.optimal for c in found] == [False] * 4 + [True]
        assert all(abs(c.balance) < 1e-6 for c in found)  # every one is stationary for scaling
        assert all(c.lower_bound <= found[4].objective * (1 + 1e-7) for c in found)
    # the optimum of these data is none of others
    best = parallel_network(relu_unit(2, 1), units)
    assert not certify_network(best, x, HalfSquares(1.01 * y), 0.5).optimal
    assert not certify_network(best, x, HalfSquares(y), 0.501).optimal


def test_what_a_certificate_is_not_for_is_refused():
    x, y = normal(0, 5, 2), normal(1, 5, 1)
    nothing = parallel_network(relu_unit(2, 1))
    with pytest.raises(InvalidInput, match="convex"):
        certify_network(nothing, x, lambda z: (z.square() - 1).square().sum(), 0.1)
    with pytest.raises(InvalidInput, match="convex"):  # linear: negative somewhere
        certify_network(nothing, x, lambda z: 1 + z.sum(), 10.0)
    deep = deep_subnetwork([2, 3, 3, 1], penalty="decay")
    with pytest.raises(UnsupportedModel, match="3 and 2"):
        certify_network(parallel_network(deep), x, HalfSquares(y), 0.1)
    other = replace(relu_unit(2, 1), penalty=lambda w: w.abs().sum() ** 2 / 2)
    with pytest.raises(InvalidInput, match="kind 'other'"):
        certify_network(parallel_network(other), x, HalfSquares(y), 0.1)
    with pytest.raises(InvalidInput, match="double precision"):
        certify_network(nothing, x, lambda z: (z > 0).double().sum(), 0.1)
    with pytest.raises(NonFinite):
        certify_network(nothing, x, lambda z: z.sum() / 0, 0.1)


def test_growth_certifies_the_network_it_returns():
    x, y = normal(0, 8, 2), normal(1, 8, 1)
    for rounds in (1, 2):
        grown = grow_network(relu_unit(2, 1), x, HalfSquares(y), 0.05, rounds=rounds)
        assert grown.widths[-1] == len(grown.network)
        own = float(grown.network.objective(x, HalfSquares(y), 0.05))
        assert grown.certificate.objective == pytest.approx(own)
        assert len(grown.objectives) == rounds + 1


def test_single_precision_is_taken_and_certified_in_double():
    x, y = normal(0, 6, 2).float(), normal(1, 6, 1).float()
    grown = grow_network(relu_unit(2, 1), x, HalfSquares(y), 0.3)
    assert grown.certificate.optimal
    assert grown.network.weights.dtype == torch.float64
    rounded = replace(grown.network, weights=grown.network.weights.float())
    found = certify_network(rounded, x, HalfSquares(y), 0.3, tolerance=1e-4)
    assert found.optimal
    assert found.lower_bound <= grown.certificate.objective * (1 + 1e-12)
    for unit in (relu_unit(2, 1), linear_unit(2, 1)):
        z = parallel_network(unit, normal(2, 3, 3).float())(x)
        assert math.isfinite(induced_penalty(unit, x, z).upper)


def test_units_of_a_layer_behind_flatten_and_dropout():
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Dropout(), nn.Linear(3, 2)
    ).double()
    x = normal(0, 5, 2, 2)
    units = split_hidden_units(net, keep_output_bias=False)
    assert torch.allclose(units(x.flatten(1)) + net[4].bias, net.eval()(x))

    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    with pytest.raises(UnsupportedModel, match="Doubled"):
        split_hidden_units(nn.Sequential(Doubled(2, 2), nn.ReLU(), nn.Linear(2, 1, bias=False)))


def test_only_exact_polars_prove_optimality():
    x, y = normal(0, 6, 3), normal(1, 6, 2)
    nothing = parallel_network(relu_unit(3, 2))
    strong = certify_network(nothing, x, HalfSquares(y), 1e3)
    assert strong.verdict == "no violation found in 50 starts"
    assert strong.gap is None
    assert not strong.optimal
    assert certify_network(nothing, x, HalfSquares(y), 1e-3).verdict == "not optimal"


# -- paths --------------------------------------------------------------------------------------


@given(seeds)
@settings(max_examples=15, deadline=None)
def test_slides_keep_the_outputs_and_empty_a_unit(seed):
    x = normal(seed, 3, 2)
    network = parallel_network(relu_unit(2, 1), normal(seed + 1, required_width(1, 3), 3))
    slide = slide_to_zero(network, x)
    for t in (0.3, 1.0):
        there = slide.at(t)
        scale = 1 + float(slide.beta.abs().max())
        assert torch.allclose(there(x), network(x), atol=1e-9 * scale)
        assert float(there.penalties().sum()) <= float(network.penalties().sum()) + 1e-9 * scale
    assert float(slide.at(1.0).weights.abs().amax(1).min()) < 1e-6


def test_independent_parts_cannot_slide():
    x = torch.eye(2).double()
    weights = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]).double()
    with pytest.raises(InvalidInput, match="independent"):
        slide_to_zero(parallel_network(relu_unit(2, 1), weights), x)
    with pytest.raises(InvalidInput):
        slide_to_zero(parallel_network(relu_unit(2, 1)), x)
    with pytest.raises(InvalidInput):
        required_width(0, 3)


def test_path_never_rises_and_ends_certified():
    x, y = normal(0, 4, 2), normal(1, 4, 1)
    start = parallel_network(relu_unit(2, 1), normal(2, required_width(1, 4), 3))
    path = nonincreasing_path(start, x, HalfSquares(y), 0.2, tolerance=1e-3, steps=60)
    values = np.array(path.objectives)
    assert (np.diff(values) <= 1e-12).all()
    assert path.certificate.optimal
    assert {len(n) for n in path.networks} == {5}
    assert path.stages[0] == "start"


CORNERS = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]).double()
SIGNS = torch.tensor([[1.0], [-1.0], [-1.0], [1.0]]).double()


def logistic(z):
    return nn.functional.softplus(-z * SIGNS).sum()


def repeated_corner():
    """Units for three corners of exclusive or, the third in three copies: no unit is zero."""
    units = 0.7 * torch.cat([CORNERS / 2**0.5, SIGNS], 1)
    return parallel_network(relu_unit(2, 1), torch.cat([units[:2], units[[2, 2, 2]] / 3**0.5]))


def largest_rise(path, point, x, loss, strength, shares=17):
    ways = [path.between(point, k / (shares - 1)) for k in range(shares)]
    values = torch.stack([n.objective(x, loss, strength) for n in ways])
    ends = torch.tensor(path.objectives[point - 1 : point + 1], dtype=torch.float64)
    assert torch.allclose(values[[0, -1]], ends, rtol=1e-12)
    return float((values - values.cummin(0).values).max())


def test_path_does_not_rise_between_its_points():
    """Gradient steps that only end lower did, and so do straight lines along rescalings."""
    cases = [(repeated_corner(), CORNERS, logistic, 0.1)]
    start = parallel_network(relu_unit(2, 1), normal(202, required_width(1, 6), 3))
    cases.append((start, normal(2, 6, 2), HalfSquares(normal(102, 6, 1)), 0.3))
    seen = set()
    for start, x, loss, strength in cases:
        path = nonincreasing_path(start, x, loss, strength, tolerance=1e-3, steps=60)
        assert path.certificate.optimal
        assert max(path.rises) < 1e-8
        seen.update(path.stages)
        for point in range(1, len(path.networks)):
            assert largest_rise(path, point, x, loss, strength) <= path.rises[point] + 1e-13
    assert seen == {"start", "descend", "rescale", "slide", "grow"}
    with pytest.raises(InvalidInput, match="point must be"):
        path.between(0, 0.5)


def test_the_proven_rise_of_a_rescaling_that_goes_too_far(monkeypatch):
    """(3 - c)²/2 + c/5 from c = 1 to 5 in four steps: the slopes at their ends are c - 2.8."""
    monkeypatch.setattr(nonincreasing_paths, "best_scales", lambda *_: torch.tensor([5.0]).double())
    start = parallel_network(linear_unit(1, 1), torch.ones(1, 2).double())
    x, loss = torch.ones(1, 1).double(), HalfSquares(torch.full((1, 1), 3.0).double())
    path = nonincreasing_path(start, x, loss, 0.2, steps=0, tolerance=10.0)
    assert path.stages == ["start", *["rescale"] * 4]
    assert path.rises == pytest.approx([0.0, 0.0, 0.2, 1.2, 2.2])
    # from c = 4 to 5 it does rise, by 3 - 1.3
    assert largest_rise(path, 4, x, loss, 0.2) == pytest.approx(1.7)


def test_ways_along_rays_have_affine_outputs_and_penalties():
    x, stages = normal(0, 4, 2), ["start", "rescale", "slide"]
    for subnetwork in (deep_subnetwork([2, 3, 3, 1]), relu_unit(2, 1, penalty="product")):
        first = parallel_network(subnetwork, normal(2, 4, subnetwork.size))
        last = first.scaled(torch.tensor([0.0, 0.5, 1.0, 7.0]))
        path = DescentPath([first, last, first], [0.0] * 3, stages, [0.0] * 3, None)
        for point, share in ((1, 0.3), (2, 0.7)):
            there = path.between(point, share)
            assert torch.allclose(there(x), torch.lerp(first(x), last(x), 0.3))
            charges = torch.lerp(first.penalties(), last.penalties(), 0.3)
            assert torch.allclose(there.penalties(), charges)


# -- pairs --------------------------------------------------------------------------------------


def test_degrees_of_functions():
    points = normal(0, 3, 4)
    assert degree_of(lambda w: w.norm(), points).degree == 1
    assert degree_of(lambda w: w.prod(), points).degree == 4
    assert degree_of(lambda w: w.norm() + 1, points).degree is None
    with pytest.raises(InvalidInput, match="0 at all"):
        degree_of(lambda w: 0 * w.sum(), points)
    with pytest.raises(NonFinite):
        degree_of(lambda w: w.sum() * math.inf, points)


def test_pairs():
    x = normal(0, 5, 2)
    assert check_pair(relu_unit(2, 1), x).nondegenerate
    assert check_pair(deep_subnetwork([2, 3, 3, 1], penalty="powers"), x).nondegenerate
    unit = relu_unit(2, 1)
    forgets = Subnetwork(unit.outputs, lambda w: w[:2].square().sum(), 3, 2.0)
    found = check_pair(forgets, x)
    assert not found.nondegenerate
    assert found.largest_output == math.inf
    negative = Subnetwork(unit.outputs, lambda w: -w.square().sum(), 3, 2.0)
    assert "negative" in check_pair(negative, x).reason
    with pytest.raises(InvalidInput):
        check_pair(unit, x, starts=1)


def test_degrees_by_group_add_up():
    net = nn.Sequential(
        nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False), Squares(),
        nn.Linear(4, 1, bias=False),
    ).double()  # fmt: skip
    function = PureFunction(net)
    groups = {k: [f"{k}.weight"] for k in "024"}
    found = degrees_by_group(function, normal(0, 6, 3), groups)
    assert [found[k].degree for k in "024"] == [2, 2, 1]
    whole = degrees_by_group(function, normal(0, 6, 3), {"": [f"{k}.weight" for k in "024"]})
    assert whole[""].degree == 5
    with pytest.raises(UnknownName):
        degrees_by_group(function, normal(0, 6, 3), {"": ["0.bias"]})


class Squares(nn.Module):
    def forward(self, x):
        return x.square()


def test_layers_of_tokens_are_named():
    net = nn.Sequential(nn.Embedding(5, 3), nn.Tanh(), nn.Flatten(), nn.Linear(6, 1, bias=False))
    found = match_degrees(net, torch.tensor([[0, 1], [2, 3], [4, 0]]))
    assert not found.matches
    assert found.breaking == ("1 (Tanh)",)


def test_layers_that_break_are_named():
    x = normal(0, 6, 3)
    net = nn.Sequential(
        nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4, bias=False), nn.Sigmoid(), nn.Linear(4, 1)
    ).double()
    before = [p.detach().clone() for p in net.parameters()]
    assert layers_that_break(net, x) == ["3 (Sigmoid)", "4 (Linear)"]
    found = match_degrees(net, x)
    assert not found.matches
    assert "3 (Sigmoid)" in found.reason
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
