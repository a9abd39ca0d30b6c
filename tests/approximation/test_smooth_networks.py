"""Yarotsky's network, its parts, and networks with skips."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.approximation.architectures.skip_connections import (
    SkipNetwork,
    skip_local_line,
    skip_taylor_network,
    skip_to_plain,
)
from torchtheory.approximation.certificates import Approximant, network_size
from torchtheory.approximation.network_calculus import chain
from torchtheory.approximation.piecewise.boxes import relu_bump
from torchtheory.approximation.piecewise.partition_of_unity import (
    partition_of_unity_values,
    patch_centers,
    trapezoid_network,
)
from torchtheory.approximation.piecewise.shifted_sums import Copies, ShiftedSum
from torchtheory.approximation.piecewise.yarotsky import (
    local_monomial,
    product_error,
    smooth_network,
    taylor_cells,
    taylor_error,
    taylor_patches,
)
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    NonFinite,
    ShapeMismatch,
    UnsupportedModel,
)


def uniform(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 2), st.integers(1, 6), st.integers(0, 10**6))
def test_partition_of_unity(d: int, cells: int, seed: int) -> None:
    x = torch.rand(40, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    values = partition_of_unity_values(cells, x)
    t = 3 * cells * (x.unsqueeze(1) - patch_centers(cells, d))
    assert torch.allclose(values, (2 - t.abs()).clamp(0, 1).prod(2), atol=1e-12)
    assert torch.allclose(values.sum(1), torch.ones(40).double())
    assert network_size(trapezoid_network(cells)).units == 4 * (cells + 1)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 3), st.integers(1, 2), st.integers(0, 10**6))
def test_sum_is_the_dense_network(n: int, d: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    a = torch.rand(d, dtype=torch.float64, generator=g)
    made = smooth_network(
        lambda x: torch.sin(x @ a if d > 1 else x * a[0]), n, d, cells=2, levels=2
    )
    network = made.network
    assert isinstance(network, ShiftedSum)
    dense = network.as_sequential()
    assert network_size(dense) == made.size
    assert isinstance(made, Approximant)  # as all builders of networks with a promise give
    x = torch.rand(50, d, dtype=torch.float64, generator=g)
    assert torch.allclose(dense(x)[:, 0], made(x), atol=1e-12)


def test_constants_and_groups_of_one_layer() -> None:
    line = chain([(torch.tensor([[2.0]]).double(), torch.tensor([1.0]).double())], [])
    shifts = torch.tensor([[0.0], [1.0]]).double()
    flat = Copies(line, shifts, torch.tensor([1.0, 3.0]).double())
    bumps = Copies(relu_bump(-0.5, 0.5, 0.5), shifts, torch.ones(2).double())
    x = torch.tensor([[0.25], [3.0]]).double()
    for groups in ([flat], [flat, bumps]):
        both = ShiftedSum(groups)
        assert torch.allclose(both(x), both.as_sequential()(x))
        assert both.size == network_size(both.as_sequential())


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 3), st.floats(0.01, 0.3), st.floats(0.2, 1.0))
def test_error_keeps_its_promise(n: int, error: float, frequency: float) -> None:
    made = smooth_network(lambda x: torch.cos(frequency * x), n, 1, error)
    x = torch.linspace(0, 1, 301, dtype=torch.float64)
    gap = float((made(x) - torch.cos(frequency * x)).abs().max())
    assert gap <= made.bound <= error
    assert made.bound == made.taylor_error + made.product_error


def test_counts() -> None:
    for n in (1, 2, 3):
        for e in (0.1, 0.01):
            cells = taylor_cells(n, 2, e)
            assert taylor_error(n, 2, cells) <= e < taylor_error(n, 2, max(cells - 1, 1)) * 1.0001
    # d = 1, n = 2: one product, twice: 2 * 4^-(l + 1)
    assert product_error(2, 1, 3) == 2 * 4.0**-4
    x = uniform(20, 1)
    cubic = taylor_patches(lambda t: t**3 - t, 4, 3, x)
    assert torch.allclose(cubic, (x**3 - x)[:, 0])


def test_refused() -> None:
    with pytest.raises(InvalidInput, match="larger error"):
        smooth_network(lambda x: x[:, 0], 1, 3, 1e-3)
    with pytest.raises(InvalidInput, match="give the error"):
        smooth_network(torch.sin, 2, 1)
    with pytest.raises(NonFinite, match="at a center"):
        smooth_network(torch.log, 2, 1, 0.1)
    single = smooth_network(torch.sin, 2, 1, 0.1)(torch.rand(5))
    assert single.dtype == torch.float64
    with pytest.raises(InvalidInput, match="vanish"):
        smooth_network(torch.zeros_like, 2, 1, 0.1)
    with pytest.raises(InvalidInput):
        smooth_network(torch.sin, 0, 1, 0.1)
    with pytest.raises(EmptyData):
        ShiftedSum([])
    bump = relu_bump(0.0, 1.0, 0.5)
    with pytest.raises(ShapeMismatch):
        ShiftedSum([Copies(bump, torch.zeros(2, 2), torch.zeros(2))])
    smooth = chain([(torch.ones(1, 1), torch.ones(1))] * 2, [torch.nn.Tanh()])
    with pytest.raises(UnsupportedModel):
        ShiftedSum([Copies(smooth, torch.zeros(1, 1), torch.zeros(1))])
    many = ShiftedSum([Copies(bump, torch.zeros(3000, 1), torch.ones(3000))])
    with pytest.raises(InvalidInput, match="dense layer"):
        many.as_sequential()
    assert network_size(many) == many.size  # counted without building it


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 10**6))
def test_skips_change_nothing(levels: int, cells: int, seed: int) -> None:
    x = 2 * torch.rand(30, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    skip = skip_local_line(cells, levels)
    x = x - 1
    assert torch.allclose(skip(x), skip_to_plain(skip)(x), atol=1e-13)
    assert torch.allclose(skip(x), local_monomial((1,), cells, levels)(x), atol=1e-13)


@pytest.mark.parametrize(("cells", "levels"), [(1, 1), (3, 2), (6, 4)])
def test_the_whole_network_with_skips(cells: int, levels: int) -> None:
    def wave(t: torch.Tensor) -> torch.Tensor:
        return torch.sin(t + 0.3)

    skip = skip_taylor_network(wave, cells, levels)
    plain = skip_to_plain(skip)
    kept = smooth_network(wave, 2, 1, cells=cells, levels=levels)
    x = uniform(50, 1)
    assert torch.allclose(skip(x), plain(x), atol=1e-13)
    assert torch.allclose(skip(x)[:, 0], kept(x), atol=1e-13)
    # a patch reads its values from trapezoids it has anyway: 4 weights more than the line alone
    # (and 2 biases: the halves of x - m/N, unless m = 0)
    line = skip_local_line(cells, levels).nonzero_parameters
    assert skip.nonzero_parameters == (cells + 1) * (line + 4) + 4 * cells


def test_skip_layers() -> None:
    one = torch.ones(1, 1).double()
    with pytest.raises(ShapeMismatch):
        SkipNetwork([({0: one}, one[0]), ({2: one}, one[0])])
    with pytest.raises(EmptyData):
        SkipNetwork([])
    net = SkipNetwork([({0: one}, -one[0]), ({0: one, 1: -one}, 0 * one[0])])
    assert net.nonzero_parameters == 4
    assert math.isclose(net(torch.tensor([[-2.0]]).double()).item(), -2.0)
