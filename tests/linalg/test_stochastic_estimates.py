"""Spectral densities, traces and Frobenius norms from random vectors. Seeds are fixed."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    NonFinite,
    ShapeMismatch,
    UnknownName,
)
from torchtheory.core.estimate import Estimate
from torchtheory.core.random import as_generator, gaussian, rademacher
from torchtheory.linalg.density import SpectralDensity, spectral_density
from torchtheory.linalg.operators import LinearOperator
from torchtheory.linalg.trace import trace

F64 = torch.float64
PROPERTY = settings(max_examples=30, deadline=None, derandomize=True)


def random_matrix(m, n, seed=0, dtype=F64):
    return gaussian(m, n, generator=as_generator(seed), dtype=dtype)


def with_spectrum(values, seed=0, dtype=F64):
    values = torch.as_tensor(values, dtype=F64)
    Q, _ = torch.linalg.qr(random_matrix(len(values), len(values), seed))
    M = (Q * values) @ Q.T
    return ((M + M.T) / 2).to(dtype)


# -- spectral density -----------------------------------------------------------------------------


@PROPERTY
@given(n=st.integers(1, 30), steps=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_quadrature_is_exact_to_degree_2k_minus_1(n, steps, seed):
    """For each probe z, the k-point rule gives z'A^d z / n exactly for d <= 2k - 1."""
    M = random_matrix(n, n, seed)
    M = (M + M.T) / (2 * math.sqrt(n))
    rho = spectral_density(LinearOperator.from_matrix(M), probes=3, steps=steps, generator=seed)
    z = rademacher(n, 3, generator=as_generator(seed), dtype=F64)
    power = z
    for degree in range(2 * steps):
        exact = (z * power).sum(dim=0) / n
        rule = (rho.weights * rho.nodes**degree).sum(dim=1)
        torch.testing.assert_close(rule, exact, rtol=1e-9, atol=1e-9)
        power = M @ power


@PROPERTY
@given(distinct=st.integers(1, 5), copies=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_exact_for_every_function_with_enough_steps(distinct, copies, seed):
    levels = 1.0 + torch.arange(distinct, dtype=F64)
    M = with_spectrum(levels.repeat(copies), seed)
    rho = spectral_density(LinearOperator.from_matrix(M), probes=2, steps=distinct, generator=seed)
    n = len(M)
    z = rademacher(n, 2, generator=as_generator(seed), dtype=F64)
    values, vectors = torch.linalg.eigh(M)
    for f in (torch.log, torch.exp, torch.rsqrt):
        exact = ((vectors.T @ z).square() * f(values)[:, None]).sum(dim=0) / n
        torch.testing.assert_close(
            (rho.weights * f(rho.nodes)).sum(1), exact, rtol=1e-9, atol=1e-12
        )
        assert rho.moment(f).value == pytest.approx(float(exact.mean()), rel=1e-9, abs=1e-12)


def test_moments_within_their_error():
    """log-determinant and inverse trace within 4 standard errors (p < 1e-4), 50 probes."""
    M = with_spectrum(torch.linspace(0.5, 4, 300))
    rho = spectral_density(LinearOperator.from_matrix(M), probes=50, steps=25, generator=1)
    eigenvalues = torch.linalg.eigvalsh(M)
    for f in (torch.log, torch.reciprocal, torch.square):
        estimate = rho.moment(f)
        assert estimate.samples == 50
        assert 0 < estimate.standard_error < 0.05
        exact = float(f(eigenvalues).mean())
        assert abs(estimate.value - exact) <= 4 * estimate.standard_error


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_degenerate_operators(dtype):
    for n in (1, 2, 17):
        zero = spectral_density(LinearOperator.from_matrix(torch.zeros(n, n, dtype=dtype)))
        assert zero.moment(torch.square).value == 0
        one = spectral_density(LinearOperator.identity(n, dtype=dtype), steps=5)
        assert one.moment(torch.log).value == pytest.approx(0, abs=1e-6)
        torch.testing.assert_close(one.weights.sum(1), torch.ones(10, dtype=F64))


def test_functions_undefined_at_zero_are_only_asked_on_the_spectrum():
    """After an early end of Lanczos the padding nodes at 0 must not reach f."""
    M = torch.diag(torch.tensor([2.0, 2.0, 3.0, 3.0], dtype=F64))
    rho = spectral_density(LinearOperator.from_matrix(M), probes=3, steps=4)
    assert rho.moment(torch.log).value == pytest.approx(math.log(6) / 2)


def test_density_integrates_to_one_and_cdf_counts():
    spectrum = torch.cat([torch.linspace(0, 1, 90), torch.full((10,), 5.0)])
    rho = spectral_density(
        LinearOperator.from_matrix(with_spectrum(spectrum)), probes=40, steps=40, generator=2
    )
    grid = torch.linspace(-2, 7, 2000, dtype=F64)
    density = rho.density(grid, width=0.1)
    assert float(torch.trapezoid(density, grid)) == pytest.approx(1, abs=1e-6)
    cdf = rho.cdf(torch.tensor([-0.1, 0.5, 2.0, 5.1], dtype=F64))
    torch.testing.assert_close(
        cdf, torch.tensor([0.0, 0.45, 0.9, 1.0], dtype=F64), rtol=0, atol=0.04
    )
    assert bool((rho.cdf(grid).diff() >= 0).all())
    single = rho.density(grid.float(), width=0.1)
    assert single.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("steps", [30, 80])
def test_isolated_eigenvalues_appear_once(dtype, steps):
    """Lanczos without memory finds them again and again; the mass of all copies is that of one."""
    isolated = [5.0, 20.0, 50.0]
    M = with_spectrum([*torch.linspace(0, 1, 297).tolist(), *isolated], dtype=dtype)
    A = LinearOperator.from_matrix(M)
    rho = spectral_density(A, probes=6, steps=steps, generator=3)
    carried = rho.weights > 1e-8  # one tenth of a thousandth of an eigenvalue's share
    z = rademacher(300, 6, generator=as_generator(3), dtype=dtype).double()
    _, vectors = torch.linalg.eigh(M.double())
    masses = (vectors.T @ z).square() / 300
    for k, value in enumerate(isolated):
        near = carried & ((rho.nodes - value).abs() < 0.1)
        assert near.sum(1).tolist() == [1] * 6
        torch.testing.assert_close(
            rho.nodes[near], torch.full((6,), value, dtype=F64), rtol=1e-4, atol=0
        )
        torch.testing.assert_close(rho.weights[near], masses[k - 3], rtol=2e-2, atol=1e-5)
    torch.testing.assert_close(rho.weights.sum(1), torch.ones(6, dtype=F64))
    # different points, in order, then places of no weight
    for nodes, weights in zip(rho.nodes, rho.weights, strict=True):
        count = int((weights > 0).sum())
        assert bool((nodes[:count].diff() > 0).all())
        assert not bool(weights[count:].any())
        assert not bool(nodes[count:].any())


def test_probes_run_in_blocks_give_the_same(monkeypatch):
    import torchtheory.linalg.density as module

    A = LinearOperator.from_matrix(with_spectrum(torch.linspace(0, 1, 20)))
    whole = spectral_density(A, probes=6, steps=5)
    monkeypatch.setattr(module, "column_blocks", lambda *a, **k: [range(2), range(2, 6)])
    parts = spectral_density(A, probes=6, steps=5)
    assert parts.nodes.shape == whole.nodes.shape
    assert parts.moment(torch.square).value == pytest.approx(
        whole.moment(torch.square).value, rel=0.2
    )


def test_spectral_density_refusals():
    A = LinearOperator.identity(4)
    for bad in ({"probes": 0}, {"steps": 0}):
        with pytest.raises(InvalidInput, match=">= 1, not 0"):
            spectral_density(A, **bad)
    with pytest.raises(InvalidInput, match="not symmetric"):
        spectral_density(LinearOperator.from_matrix(random_matrix(30, 30)))
    with pytest.raises(ShapeMismatch):
        spectral_density(LinearOperator.from_matrix(torch.ones(2, 3)))
    with pytest.raises(NonFinite):
        spectral_density(LinearOperator((3, 3), lambda v: v / 0))
    with pytest.raises(InvalidInput, match="width"):
        spectral_density(A).density(torch.zeros(1), width=0)


# -- traces ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["hutch++", "hutchinson"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_trace_is_unbiased(method, symmetric):
    """The mean over 300 seeds is within 4 of its standard errors (p < 1e-4) of the trace."""
    M = random_matrix(20, 20)
    if symmetric:
        M = M @ M.T
    A = LinearOperator.from_matrix(M)
    runs = torch.tensor([trace(A, samples=9, method=method, generator=s).value for s in range(300)])
    overall = Estimate.of(runs)
    assert abs(overall.value - float(M.trace())) <= 4 * overall.standard_error


def test_standard_errors_cover():
    """Two-standard-error intervals of 60 samples cover in at least 88 % of 200 runs."""
    M = random_matrix(40, 40)
    A = LinearOperator.from_matrix(M @ M.T)
    exact = float((M @ M.T).trace())
    covered = 0
    for seed in range(200):
        estimate = trace(A, samples=60, method="hutchinson", generator=seed)
        covered += abs(estimate.value - exact) <= 2 * estimate.standard_error
    assert covered >= 176


def test_hutchpp_captures_low_rank_and_beats_hutchinson():
    decaying = with_spectrum(1.0 / torch.arange(1, 201).double() ** 2)
    A = LinearOperator.from_matrix(decaying)
    exact = float(decaying.trace())
    errors = {
        method: sum(
            abs(trace(A, samples=30, method=method, generator=s).value - exact) for s in range(20)
        )
        for method in ("hutch++", "hutchinson")
    }
    assert errors["hutch++"] < errors["hutchinson"] / 3
    low_rank = with_spectrum([0.0] * 90 + [3.0, -2.0, 5.0])
    estimate = trace(LinearOperator.from_matrix(low_rank), samples=12)
    assert estimate.value == pytest.approx(6, abs=1e-9)
    assert estimate.standard_error < 1e-9


@pytest.mark.parametrize("n", [1, 2, 5, 30])
def test_trace_is_exact_with_enough_samples(n):
    M = random_matrix(n, n)
    estimate = trace(LinearOperator.from_matrix(M), samples=30)
    assert estimate.value == pytest.approx(float(M.trace()))
    assert estimate.standard_error == 0
    assert estimate.samples == n


def test_trace_of_zero_and_of_diagonals():
    assert trace(LinearOperator.from_matrix(torch.zeros(50, 50)), samples=9).value == 0
    D = torch.diag(torch.arange(50.0))
    estimate = trace(LinearOperator.from_matrix(D), samples=3, method="hutchinson")
    assert (estimate.value, estimate.standard_error) == (1225.0, 0.0)
    assert (
        trace(LinearOperator.from_matrix(D), samples=1, method="hutchinson").standard_error
        == math.inf
    )


def test_trace_refusals():
    A = LinearOperator.identity(40)
    with pytest.raises(InvalidInput, match="at least 6"):
        trace(A, samples=5)
    with pytest.raises(InvalidInput, match=">= 1, not 0"):
        trace(A, samples=0)
    with pytest.raises(UnknownName, match="hutch"):
        trace(A, method="hutch+")
    with pytest.raises(ShapeMismatch, match="square"):
        trace(LinearOperator.from_matrix(torch.ones(2, 3)))
    bad = LinearOperator((40, 40), lambda v: v * math.nan)
    for samples in (9, 40):
        with pytest.raises(NonFinite):
            trace(bad, samples=samples)
    with pytest.raises(NonFinite):
        trace(bad, samples=9, method="hutchinson")
    with pytest.raises(EmptyData):
        Estimate.of(torch.empty(0))


def test_estimates_are_numbers():
    assert float(Estimate.of(torch.tensor([2.0, 4.0]))) == 3.0


@pytest.mark.parametrize("seed", range(5))
def test_shares_of_eigenvalues_and_what_the_rule_leaves_open(seed):
    source = torch.Generator().manual_seed(seed)
    values = torch.randn(300, dtype=torch.float64, generator=source)
    A = LinearOperator.from_matrix(torch.diag(values))
    exact = float(((values >= -0.4) & (values < 0.4)).double().mean())
    errors = []
    for steps in (6, 12, 24, 48):
        rho = spectral_density(A, probes=8, steps=steps, generator=seed)
        share = rho.share_between(-0.4, 0.4)
        assert abs(share.value - exact) <= share.standard_error
        errors.append(share.standard_error)
        # the measure of a probe itself, whose weights are all 1 / n for random signs
        for end in (-0.4, 0.0, 0.4):
            low, high = rho.mass_below(end)
            below = float((values < end).double().mean())
            assert bool((low <= below + 1e-9).all())
            assert bool((high >= below - 1e-9).all())
    assert errors[-1] < errors[0] / 3


def test_nothing_is_open_at_infinite_ends():
    nodes, weights = torch.tensor([[0.0, 1.0, 2.0]] * 2), torch.tensor([[0.25, 0.5, 0.25]] * 2)
    rho = SpectralDensity(nodes, weights)
    assert rho.share_between(-math.inf, math.inf) == Estimate(1.0, 0.0, 2)
    # below 1.5 at least 0.25 and at most 1
    assert rho.share_between(-math.inf, 1.5) == Estimate(0.75, 0.375, 2)
    assert rho.share_between(1.5, math.inf) == Estimate(0.25, 0.375, 2)
