"""Deep linear networks: closed forms, strict and degenerate saddles, certificates."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.nets.feedforward import dense
from torchtheory.nets.linear_networks import collapse_linear
from torchtheory.optimization.linear_networks.deep import (
    balanced_layers,
    critical_product,
    deep_critical_point,
    deep_linear_function,
    deep_linear_gradients,
    deep_linear_optimum,
    deep_linear_slope,
    flat_layers,
    layers_of,
    linear_layers,
)
from torchtheory.optimization.linear_networks.deep_factorization import product_of
from torchtheory.optimization.linear_networks.deep_saddles import (
    deep_saddle_report,
    linear_landscape_certificate,
)
from torchtheory.optimization.linear_networks.degenerate_saddles import (
    derivative_along,
    first_derivative_order,
    plateau_time,
    product_risk,
)
from torchtheory.optimization.linear_networks.second_moments import Covariances


def moments_of(*roots, inputs=None):
    size = torch.tensor(roots, dtype=torch.float64)
    inputs = inputs or len(roots)
    yx = torch.zeros(len(roots), inputs, dtype=torch.float64)
    yx[:, : len(roots)] = torch.diag(size)
    return Covariances(torch.eye(inputs).double(), yx, torch.diag(size.square()))


widths_of = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(lambda h: (4, *h, 3))


@given(st.integers(0, 10**6), widths_of)
@settings(max_examples=20, deadline=None)
def test_gradients_and_products_of_random_networks(seed, widths):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(20, 4, dtype=torch.float64, generator=random)
    y = torch.randn(20, 3, dtype=torch.float64, generator=random)
    moments = Covariances.from_samples(x, y)
    layers = [torch.randn(b, a, dtype=torch.float64, generator=random) for a, b in pairwise(widths)]
    net = nn.Sequential(*(dense(w) for w in layers))
    assert torch.allclose(product_of(linear_layers(net)), collapse_linear(net).weight)
    loss = (net(x) - y).square().sum(1).mean()
    exact = torch.autograd.grad(loss, list(net.parameters()))
    for found, own in zip(deep_linear_gradients(layers, moments), exact, strict=True):
        assert torch.allclose(found, own)
    theta = flat_layers(layers)
    assert torch.allclose(deep_linear_function(widths, moments)(theta), loss.detach())
    assert all(torch.equal(a, b) for a, b in zip(layers_of(theta, widths), layers, strict=True))
    many = torch.stack([theta, 2 * theta])
    slopes = deep_linear_slope(widths, moments)(many)
    assert torch.allclose(slopes[0], torch.cat([g.reshape(-1) for g in exact]))
    assert torch.allclose(slopes[1], deep_linear_slope(widths, moments)(2 * theta))
    best = deep_linear_optimum(moments, widths)
    made = balanced_layers(best.map, widths)
    assert torch.allclose(product_of(made), best.map)
    assert float(moments.risk(best.map)) == pytest.approx(best.value)
    for below, above in pairwise(made):
        assert torch.allclose(above.T @ above, below @ below.T, atol=1e-10)
    assert all(float(g.abs().max()) < 1e-9 for g in deep_linear_gradients(made, moments))


@pytest.mark.parametrize("widths", [(4, 2, 3), (4, 2, 2, 3), (4, 2, 3, 2, 3)])
@pytest.mark.parametrize("chosen", [[], [0], [1], [2], [1, 2], [0, 2]])
def test_points_written_down_are_critical_and_strict(widths, chosen):
    moments = moments_of(3.0, 2.0, 1.0, inputs=4)
    layers = deep_critical_point(moments, widths, chosen)
    assert all(float(g.abs().max()) < 1e-12 for g in deep_linear_gradients(layers, moments))
    assert torch.allclose(critical_product(layers, moments), product_of(layers))
    report = deep_saddle_report(layers, moments)
    assert (report.label, report.guarantee) == ("strict saddle", "strict")
    assert report.smallest_eigenvalue < -1e-3


def test_rank_of_the_middle_alone_decides_nothing():
    moments = moments_of(3.0, 2.0, 1.0, inputs=4)
    widths = (4, 2, 2, 3)
    leading = deep_saddle_report(deep_critical_point(moments, widths, [0], 1), moments)
    second = deep_saddle_report(deep_critical_point(moments, widths, [1], 1), moments)
    assert leading.middle_rank == second.middle_rank == 1
    assert leading.guarantee == second.guarantee == "may be degenerate"
    assert (leading.label, second.label) == ("degenerate saddle", "strict saddle")
    function = deep_linear_function(widths, moments)
    start = flat_layers(deep_critical_point(moments, widths, [0], 1))
    assert float(function(start + flat_layers(leading.downhill))) < leading.value


@pytest.mark.parametrize(
    ("widths", "roots", "says"),
    [
        ((3, 2, 2, 3), (3.0, 2.0, 1.0), "strict"),
        ((3, 2, 2, 3), (2.0, 2.0, 1.0), "nothing"),  # eigenvalues repeat
        ((3, 2, 2, 3), (2.0, 1.0, 0.0), "nothing"),  # Σ is rank deficient
        ((2, 2, 2, 3), (3.0, 2.0, 1.0), "nothing"),  # more outputs than inputs
        ((3, 2, 3), (2.0, 2.0, 0.0), "strict"),  # two layers need Σxx only
    ],
)
def test_the_theorem_says_nothing_without_its_hypotheses(widths, roots, says):
    if widths[0] < len(roots):
        size = torch.tensor(roots, dtype=torch.float64)
        moments = Covariances(
            torch.eye(2).double(), torch.diag(size)[:, :2], torch.diag(size.square())
        )
    else:
        moments = moments_of(*roots)
    layers = deep_critical_point(moments, widths, [1])
    report = deep_saddle_report(layers, moments)
    assert report.guarantee == says
    function = deep_linear_function(widths, moments)
    lowest = torch.linalg.eigvalsh(torch.func.hessian(function)(flat_layers(layers)))[0]
    assert report.smallest_eigenvalue == pytest.approx(float(lowest), abs=1e-9)


def test_a_degenerate_saddle_of_four_layers_is_not_taken_for_a_minimum():
    moments = moments_of(3.0, 2.0, 1.0, inputs=4)
    layers = deep_critical_point(moments, (4, 2, 2, 2, 3), [0], 1)
    assert deep_saddle_report(layers, moments).label == "degenerate saddle"


def test_report_of_a_network_at_its_global_minimum():
    moments = moments_of(3.0, 2.0, 1.0)
    made = balanced_layers(deep_linear_optimum(moments, (3, 2, 3)).map, (3, 2, 3))
    report = deep_saddle_report(nn.Sequential(*(dense(w) for w in made)), moments)
    assert (report.label, report.downhill) == ("global minimum", None)
    assert report.value == pytest.approx(report.optimum) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("widths", "roots", "names"),
    [
        ((3, 2, 3), (3.0, 2.0, 1.0), {"two layers, classification", "Kawaguchi"}),
        ((3, 3, 3, 3), (2.0, 2.0, 1.0), {"Lu and Kawaguchi", "Laurent and von Brecht"}),
        ((3, 1, 2, 3), (2.0, 1.0, 0.0), set()),
        ((3, 3, 4, 3), (2.0, 1.0, 0.0), {"Laurent and von Brecht"}),
    ],
)
def test_certificates(widths, roots, names):
    theorems = linear_landscape_certificate(widths, moments_of(*roots))
    applying = {t.name for t in theorems if t.applies}
    assert names <= applying
    assert bool(applying) == bool(names)
    assert all(bool(t.missing) != t.applies for t in theorems)


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_the_first_derivative_of_a_product_has_the_order_of_its_factors(depth):
    risk = product_risk(1.5, 0.5, 2.0)
    zero, one = torch.zeros(depth).double(), torch.ones(depth).double()
    assert first_derivative_order(risk, zero, one, most=5) == depth
    factorial = [2, 6, 24][depth - 2]
    assert derivative_along(risk, zero, one, depth) == pytest.approx(-2 * 0.5 * factorial)
    one_only = torch.eye(depth).double()[0]
    assert first_derivative_order(risk, zero, one_only, most=3) == 4


def test_plateau_time_by_quadrature():
    for depth in (2, 3, 5):
        w = torch.logspace(-2, -0.5, 20001, dtype=torch.float64)
        time = torch.trapezoid(1 / (2 * 0.7 * w ** (depth - 1)), w)
        ends = float(w[0]), float(w[-1])
        assert plateau_time(depth, ends[0], 0.7, ends[1]) == pytest.approx(float(time), rel=1e-5)


def test_bad_input_is_refused():
    moments = moments_of(2.0, 1.0)
    with pytest.raises(UnsupportedModel, match="bias"):
        linear_layers(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    with pytest.raises(UnsupportedModel, match="not linear"):
        linear_layers(nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU()))
    with pytest.raises(ShapeMismatch, match="does not follow"):
        deep_saddle_report([torch.ones(2, 3).double(), torch.ones(2, 3).double()], moments)
    with pytest.raises(InvalidType, match="float32"):
        deep_saddle_report([torch.eye(2), torch.eye(2)], moments)
    with pytest.raises(NonFinite, match="is nan"):
        deep_linear_gradients([torch.full((2, 2), float("nan")).double()], moments)
    with pytest.raises(ShapeMismatch, match="2 inputs"):
        deep_linear_gradients([torch.ones(2, 3).double()], moments)
    with pytest.raises(InvalidType, match="int64"):
        balanced_layers(torch.eye(2).long(), (2, 2, 2))
    with pytest.raises(ShapeMismatch, match="a matrix"):
        deep_linear_gradients([torch.ones(2).double()], moments)
    with pytest.raises(ShapeMismatch, match="inputs"):
        deep_linear_optimum(moments, (3, 2))
    with pytest.raises(InvalidInput, match="rank above 1"):
        balanced_layers(torch.eye(2), (2, 1, 2))
    with pytest.raises(InvalidInput, match="different numbers"):
        deep_critical_point(moments, (2, 2, 2), [0, 0])
    with pytest.raises(InvalidInput, match="middle layers"):
        deep_critical_point(moments, (2, 1, 2), [0, 1])
    with pytest.raises(InvalidInput, match="hidden layer"):
        deep_saddle_report([torch.eye(2).double()], moments)
    with pytest.raises(InvalidInput, match="convex"):
        linear_landscape_certificate((2, 2), moments)
    with pytest.raises(ShapeMismatch, match="weights"):
        layers_of(torch.zeros(3), (2, 2))
    with pytest.raises(InvalidInput, match="second moments"):
        product_risk(1.0, 2.0, 1.0)
    with pytest.raises(InvalidInput, match="height"):
        plateau_time(3, 0.5, 1.0, 0.1)
