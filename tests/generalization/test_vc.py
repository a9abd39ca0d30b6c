import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch
from torchtheory.generalization.vc.bounds import (
    first_whole_number,
    growth_radius,
    vc_radius,
    vc_rate,
    vc_sample_size,
)
from torchtheory.generalization.vc.growth import growth_halfspaces, halfspaces
from torchtheory.generalization.vc.hypothesis_sets import all_labelings
from torchtheory.generalization.vc.networks import (
    anthony_bartlett_vc_bound,
    log2_network_growth_bound,
    network_vc_bound,
    piecewise_linear_vc_lower_order,
    piecewise_linear_vc_order,
    piecewise_polynomial_vc_order,
)
from torchtheory.generalization.vc.shattering import (
    linear_shattering,
    radon_partition,
    relu_shattering,
)
from torchtheory.nets.feedforward import parameter_count
from torchtheory.neurons.separability import separate

seeds = st.integers(0, 2**31 - 1)


def points(n: int, d: int, seed: int) -> Tensor:
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("d", [1, 2, 5])
def test_the_witness_is_right_on_each_labeling(d: int) -> None:
    witness = linear_shattering(d)
    assert torch.equal(witness.scores().sign(), witness.labels)
    assert len(halfspaces(witness.points)) == 2 ** (d + 1)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(0, 2), seeds)
def test_radon(d: int, more: int, seed: int) -> None:
    x = points(d + 2 + more, d, seed)
    split = radon_partition(x)
    one = split.weights * (split.labels > 0)
    two = split.weights * (split.labels < 0)
    assert one.sum().item() == pytest.approx(1)
    assert two.sum().item() == pytest.approx(1)
    assert bool((split.weights >= 0).all())
    assert split.residual < 1e-9 * float(x.abs().max())
    assert torch.allclose(one @ x, split.common)
    assert not separate(x, split.labels)


def test_radon_of_coinciding_points() -> None:
    assert radon_partition(torch.ones(3, 1)).residual < 1e-6
    assert radon_partition(torch.zeros(4, 2)).residual == 0


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.integers(1, 4), seeds)
def test_relu_networks_shatter_as_many_points_as_units(n: int, d: int, seed: int) -> None:
    x = points(n, d, seed)
    net, weights = relu_shattering(x)
    with torch.no_grad():
        features = net[1](net[0](x))
        assert torch.allclose(weights @ features.T, all_labelings(n), atol=1e-5)
        assert torch.allclose(net(x)[:, 0], torch.ones(n).double(), atol=1e-5)
    assert network_vc_bound((d, n, 1)) >= n


def test_half_planes_by_hand() -> None:
    # 1 + 3 log2(2e m / 3) passes m between 15 and 16
    assert network_vc_bound((2, 1)) == 15
    assert 1 + 3 * math.log2(2 * math.e * 15 / 3) >= 15 > 1 + 3 * math.log2(2 * math.e * 16 / 3) - 1
    for m in range(1, 200):
        assert math.log2(growth_halfspaces(m, 2)) <= log2_network_growth_bound((2, 1), m)


widths = st.lists(st.integers(1, 20), min_size=1, max_size=5).map(lambda w: (*w, 1))


@given(widths, st.integers(1, 4), st.integers(0, 3))
def test_explicit_bound(shape: tuple[int, ...], pieces: int, degree: int) -> None:
    bound = network_vc_bound(shape, pieces=pieces, degree=degree)
    at = log2_network_growth_bound(shape, bound, pieces=pieces, degree=degree)
    beyond = log2_network_growth_bound(shape, bound + 1, pieces=pieces, degree=degree)
    assert at >= bound
    assert beyond < bound + 1
    assert bound >= parameter_count(shape) - 1
    parameters, units = parameter_count(shape), sum(shape[1:])
    closed = anthony_bartlett_vc_bound(
        parameters, units, len(shape) - 1, pieces=pieces, degree=degree
    )
    assert bound <= closed
    assert network_vc_bound(shape, pieces=pieces + 1, degree=degree) >= bound


@given(st.integers(2, 10**7), st.integers(1, 100))
def test_orders(parameters: int, layers: int) -> None:
    upper = piecewise_linear_vc_order(parameters, layers)
    assert upper <= piecewise_polynomial_vc_order(parameters, layers)
    assert upper < piecewise_linear_vc_order(parameters + 1, layers)
    assert upper < piecewise_linear_vc_order(parameters, layers + 1)
    if parameters > layers:
        assert piecewise_linear_vc_lower_order(parameters, layers) <= upper


@given(st.integers(1, 500), st.floats(0.01, 2), st.floats(1e-6, 0.9), st.booleans())
def test_sample_size_is_the_least(h: int, radius: float, delta: float, sharp: bool) -> None:
    n = vc_sample_size(h, radius, delta, sharp=sharp)
    assert vc_radius(h, n, delta, sharp=sharp) <= radius
    assert vc_radius(h, n - 1, delta, sharp=sharp) > radius
    assert n >= 8 * h / radius**2 or sharp


@given(st.integers(1, 30), st.integers(1, 10_000), st.floats(1e-6, 0.5))
def test_radii_in_order(d: int, n: int, delta: float) -> None:
    if d + 1 <= 2 * n:
        exact = growth_radius(math.log(growth_halfspaces(2 * n, d)), n, delta)
        sharp = vc_radius(d + 1, n, delta, sharp=True)
        assert exact <= sharp * (1 + 1e-12)
        assert sharp <= vc_radius(d + 1, n, delta)
    assert vc_rate(d, n, delta, constant=2) == pytest.approx(2 * vc_rate(d, n, delta))


def test_first_whole_number() -> None:
    assert first_whole_number(lambda n: n >= 5, 7) == 7
    assert first_whole_number(lambda n: n >= 8, 1) == 8
    with pytest.raises(InvalidInput, match="no sample size"):
        first_whole_number(lambda n: False, 1)


def test_refused() -> None:
    with pytest.raises(InvalidInput, match="needs 4 points"):
        radon_partition(torch.zeros(3, 2))
    with pytest.raises(NonFinite):
        radon_partition(torch.full((4, 2), math.nan))
    with pytest.raises(ShapeMismatch):
        radon_partition(torch.zeros(3))
    with pytest.raises(InvalidInput, match="equal"):
        relu_shattering(torch.zeros(2, 2))
    with pytest.raises(InvalidInput, match="at most 16"):
        relu_shattering(torch.arange(17.0)[:, None])
    with pytest.raises(InvalidInput):
        linear_shattering(0)
    with pytest.raises(InvalidInput, match="delta"):
        vc_radius(3, 10, 0.0)
    with pytest.raises(InvalidInput, match="VC dimension"):
        vc_radius(21, 10, 0.1)
    with pytest.raises(InvalidInput, match="at least 1"):
        growth_radius(-1.0, 10, 0.1)
    with pytest.raises(InvalidInput, match="1/2"):
        vc_rate(0, 10, 0.9)
    with pytest.raises(InvalidInput, match="widths"):
        network_vc_bound((2, 3))
    with pytest.raises(InvalidInput):
        piecewise_linear_vc_order(1, 1)


def test_the_bound_of_anthony_and_bartlett_by_hand() -> None:
    """W = 8, L = 2, k = 3 units with p = 4 pieces of degree 3: every term counts."""
    logarithm = math.log2(4 * 8 * 2 * 4 * 3) - math.log2(math.log(2))
    wanted = 2 * 8 * 2 * logarithm + 2 * 8 * 4 * 2 + 4
    found = anthony_bartlett_vc_bound(8, 3, 2, pieces=4, degree=3)
    assert found == pytest.approx(wanted, rel=1e-12)
