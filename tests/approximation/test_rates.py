"""The table of rates and the sizes that follow from it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.approximation.certificates import network_size
from torchtheory.approximation.piecewise.boxes import box_network
from torchtheory.approximation.piecewise.function_norms import partial_derivatives
from torchtheory.approximation.piecewise.interpolants import relu_interpolant
from torchtheory.approximation.piecewise.partition_of_unity import patch_centers
from torchtheory.approximation.piecewise.shifted_sums import ShiftedSum
from torchtheory.approximation.piecewise.yarotsky import cells_and_levels, smooth_network
from torchtheory.approximation.rates.budget import (
    KNOWN,
    ORDER,
    SizeEstimate,
    SizeTable,
    size_needed,
)
from torchtheory.approximation.rates.explicit_sizes import (
    barron_units,
    box_units,
    interpolant_units,
    yarotsky_units,
)
from torchtheory.approximation.rates.lower_bounds import continuous_selection_minimum
from torchtheory.approximation.rates.table import (
    THEOREMS,
    code_exponent,
    depth_for_weights,
    exponent_gaps,
    theorems_of,
)
from torchtheory.approximation.rates.theorems import FUNCTION_CLASSES, Setting
from torchtheory.cli.size_table import shown_size
from torchtheory.core import catalogue
from torchtheory.core.errors import InvalidInput, UnknownName


def test_every_row_names_entries_of_the_catalogue_and_a_class() -> None:
    for row in THEOREMS:
        assert row.function_class in FUNCTION_CLASSES
        assert all(catalogue.entry(i.strip()) for i in row.id.split(","))
    assert {r.function_class for r in THEOREMS} == set(FUNCTION_CLASSES)


@given(
    n=st.integers(1, 20), d=st.integers(1, 200), p=st.sampled_from([1.0, 2.0, 3.5, math.inf]),
    r=st.sampled_from([0.0, 0.5, 1.0]),
)  # fmt: skip
def test_no_lower_bound_passes_an_upper_bound(n: int, d: int, p: float, r: float) -> None:
    assert all(gap >= -1e-12 for *_, gap in exponent_gaps(Setting(n, d, 0.1, p=p, order=r)))


def test_the_printed_exponents_do_not_fit_together() -> None:
    found = exponent_gaps(Setting(2, 2, 0.1, p=2.0), as_printed=True)
    assert ("X-15", "X-18, A-31", 1.0 - 1.5) in found
    deep = exponent_gaps(Setting(8, 10, 0.1, p=2.0), as_printed=True)
    # the smoothness 8 exceeds d/2 + 2 = 7
    assert any(low == "X-34" and high == "X-83" and gap < 0 for low, high, gap in deep)


@given(error=st.floats(1e-4, 0.2), d=st.integers(1, 3))
def test_explicit_sizes_are_those_of_the_networks(error: float, d: int) -> None:
    pieces = interpolant_units(error).size
    assert relu_interpolant(torch.sin, pieces, lipschitz=1.0).bound <= error * (1 + 1e-9)
    smooth = interpolant_units(error, smooth=True).size
    assert relu_interpolant(torch.sin, smooth, curvature=1.0).bound <= error * (1 + 1e-6)
    if error**-d < 300:
        net = box_network(
            lambda x: x.reshape(len(x), -1).sum(1), d, lipschitz=float(d), error=error / 2
        )
        assert net.bound == pytest.approx(error)
        assert box_units(error, d, float(d)).size == net.size.units


def test_sizes_by_hand() -> None:
    assert barron_units(0.5, 3.0, 2.0).size == (2 * 2 * 3 * 2) ** 2
    # n = d = 1: constants times trapezoids at 14 + 1 centers, no product at all
    assert yarotsky_units(0.1, 1, 1).size == 4 * 15


@settings(max_examples=15, deadline=None)
@given(
    n=st.integers(1, 4), d=st.integers(1, 3), error=st.floats(0.02, 0.9),
    shift=st.floats(0.1, 1.4),
)  # fmt: skip
def test_yarotsky_counts_the_network_that_is_built(
    n: int, d: int, error: float, shift: float
) -> None:
    # every derivative of it is at most 1
    def wave(x: torch.Tensor) -> torch.Tensor:
        return torch.sin((x if d == 1 else x.sum(1)) + shift)

    if (cells_and_levels(n, d, error)[0] + 1) ** d > 500:
        return
    made = smooth_network(wave, n, d, error)
    counted = yarotsky_units(error, n, d)
    assert counted.size >= made.size.units
    assert counted.layers is not None
    assert counted.layers >= made.size.depth
    x = torch.rand(300, d, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    exact = wave(x[:, 0] if d == 1 else x)
    assert float((made(x) - exact).abs().max()) <= error
    # no derivative is 0 at a center: nothing is left out, and the numbers agree
    full = all(bool(v.all()) for v in partial_derivatives(
        wave, patch_centers(made.cells, d), n - 1).values())  # fmt: skip
    assert full == (counted.size == made.size.units)
    if made.size.width < 400:
        network = made.network
        assert isinstance(network, ShiftedSum)
        assert network_size(network.as_sequential()).units == made.size.units


@given(error=st.floats(1e-5, 0.3), n=st.integers(1, 4), d=st.integers(1, 5))
def test_needed_is_below_enough_with_all_constants(error: float, n: int, d: int) -> None:
    table = size_needed("sobolev", smoothness=n, dimension=d, error=error)
    low = {e.theorem.id: e.size for e in table.lower}
    high = {e.theorem.id: e.size for e in table.upper}
    assert low["X-16"] is not None
    assert high["X-31"] is not None
    assert low["X-16"] <= high["X-31"]
    assert [e.log10_size for e in table.lower] == sorted(e.log10_size for e in table.lower)
    assert len(table.lower) + len(table.upper) + len(table.silent) == len(theorems_of("sobolev"))


def test_orders_say_so_and_reasons_are_given() -> None:
    table = size_needed("sobolev", smoothness=2, dimension=5, error=0.01)
    labels = {e.theorem.id: e.constant for e in (*table.lower, *table.upper)}
    assert labels["X-18, A-31"] == ORDER
    assert labels["X-31"] == KNOWN
    assert {row.id: why for row, why in table.silent}["X-15"] == "it is about p = 2"
    order = next(e for e in table.upper if e.theorem.id == "X-18, A-31")
    assert order.log10_size == pytest.approx(5.0)
    assert order.size == 10**5
    assert not order.constant_known
    assert order.exponent == 2.5


def test_kinds_of_networks_and_a_constant_of_ones_own() -> None:
    plain = size_needed("sobolev", smoothness=2, dimension=1, error=0.01)
    shallow = size_needed("sobolev", smoothness=2, dimension=1, error=0.01, shallow=True)
    assert {e.theorem.id for e in shallow.upper} == {"L-071", "X-18, A-31"}
    assert shallow.lower == plain.lower
    reasons = {row.id: why for row, why in shallow.silent}
    assert reasons["X-31"] == "its networks have more than one hidden layer"
    selected = size_needed("sobolev", smoothness=2, dimension=1, error=0.01, continuous=True)
    assert "X-37" not in {e.theorem.id for e in selected.upper}
    scaled = size_needed("sobolev", smoothness=2, dimension=1, error=0.01, constant=100.0)
    for a, b in zip(plain.upper, sorted(scaled.upper, key=plain_order(plain)), strict=True):
        assert b.log10_size - a.log10_size == pytest.approx(0 if a.constant_known else 2)


def plain_order(table: SizeTable) -> Callable[[SizeEstimate], int]:
    names = [e.theorem.name for e in table.upper]
    return lambda e: names.index(e.theorem.name)


def test_what_cannot_be_counted_ends() -> None:
    for n, d, error in ((1e9, 10, 1e-3), (3, 1000, 1e-300), (1, 2, 5e-324)):
        assert size_needed("sobolev", smoothness=n, dimension=d, error=error).upper


@pytest.mark.parametrize("name", FUNCTION_CLASSES)
def test_every_class_has_an_upper_bound_and_json(name: str) -> None:
    smoothness = 2.0 if name in ("sobolev", "holder", "cartoon", "piecewise-holder") else None
    table = size_needed(name, smoothness=smoothness, dimension=2, error=0.01)
    assert table.upper
    data = table.to_json()
    assert data["class"] == name
    assert {row["constant"] for row in data["upper"]} <= {KNOWN, ORDER}
    for estimate in (*table.lower, *table.upper):  # the number that is printed
        shown = shown_size(estimate)
        assert shown.startswith("~") != estimate.constant_known
        assert estimate.size is not None
        if "^" not in shown:
            assert int(shown.removeprefix("~")) == estimate.size


def test_dimensions_beyond_floats() -> None:
    table = size_needed("lipschitz", dimension=20_000, error=0.01)
    assert table.lower[0].log10_size == pytest.approx(20_000 * math.log10(49))
    assert table.to_json()["lower"][0]["size"] is None
    far = size_needed("sobolev", smoothness=3, dimension=5000, error=0.01).upper
    orders = [e for e in far if not e.constant_known]
    assert all(e.size is None and shown_size(e).startswith("~10^") for e in orders)


def test_a_manifold_pays_for_its_surroundings_once() -> None:
    few = size_needed("manifold", dimension=2, error=1e-6, ambient=3).upper[0].log10_size
    many = size_needed("manifold", dimension=2, error=1e-6, ambient=1000).upper[0].log10_size
    assert 10**many - 10**few == pytest.approx(997, rel=1e-3)


def test_trade_and_codes() -> None:
    assert depth_for_weights(1, 2, 1.5) == (1.5, 0.5)
    assert code_exponent("cartoon", 1, 2) == 2.0
    with pytest.raises(InvalidInput, match="down to the exponent"):
        depth_for_weights(1, 2, 2.0)
    with pytest.raises(InvalidInput, match="smoothness 1 or 2"):
        code_exponent("cartoon", 3, 2)
    with pytest.raises(InvalidInput, match="no optimal exponent"):
        code_exponent("barron", 1, 2)


def test_bad_input() -> None:
    with pytest.raises(UnknownName, match="sobolev"):
        size_needed("sobolef", smoothness=1, dimension=2, error=0.1)
    with pytest.raises(InvalidInput, match="needs its smoothness"):
        size_needed("sobolev", dimension=2, error=0.1)
    with pytest.raises(InvalidInput, match="leave it out"):
        size_needed("korobov", smoothness=5, dimension=2, error=0.1)
    with pytest.raises(InvalidInput, match="between 0 and 1"):
        size_needed("barron", dimension=2, error=1.5)
    with pytest.raises(InvalidInput, match="whole number"):
        size_needed("barron", dimension=0, error=0.1)
    with pytest.raises(InvalidInput, match="at most 100000"):
        size_needed("barron", dimension=10**6, error=0.1)
    with pytest.raises(InvalidInput, match="leave the order out"):
        size_needed("lipschitz", dimension=2, error=0.1, order=1)
    with pytest.raises(InvalidInput, match="constant"):
        size_needed("lipschitz", dimension=2, error=0.1, constant=0)
    with pytest.raises(InvalidInput, match="p is a positive"):
        Setting(1, 1, 0.1, p=math.nan)
    with pytest.raises(InvalidInput, match="0 to 1 derivatives"):
        Setting(1, 1, 0.1, order=2)


@pytest.mark.parametrize("order", [0.0, 0.5, 1.0])
def test_derivatives_in_the_error_as_printed(order: float) -> None:
    n, d, error = 3, 2, 1e-3
    table = size_needed("sobolev", smoothness=n, dimension=d, error=error, order=order)
    (row,) = (e for e in table.upper if e.theorem.id.startswith("X-32"))
    printed = error ** (-d / (n - order)) * math.log2(error ** (-n / (n - order))) ** 2
    assert row.log10_size == pytest.approx(math.log10(printed))


@pytest.mark.parametrize("name", ["sobolev", "lipschitz"])
def test_numbers_too_long_to_count(name: str) -> None:
    smoothness = 2 if name == "sobolev" else None
    table = size_needed(name, smoothness=smoothness, dimension=100_000, error=1e-300, lipschitz=2.0)
    for row in (*table.lower, *table.upper):
        assert math.isfinite(row.log10_size)
    with pytest.raises(InvalidInput, match="too many to count"):
        continuous_selection_minimum(1e-300, 1, 100_000, lipschitz=1.0)
