"""Capacity formulas against enumeration, and the batched sweep against a plain loop."""

import math

import pytest
import torch
from scipy import integrate, stats

from torchtheory.core.errors import EmptyData, InvalidInput
from torchtheory.neurons import hopfield_capacity as module
from torchtheory.neurons.hopfield import Hopfield, all_states, crosstalk, hebbian, overlap
from torchtheory.neurons.hopfield_capacity import (
    capacity_sweep,
    critical_load,
    hopfield_bit_error,
    pattern_capacity,
    retrieval_overlap,
)


@pytest.mark.parametrize("zero_diagonal", [True, False])
@pytest.mark.parametrize(("n", "s"), [(2, 2), (3, 2), (4, 3), (5, 3), (3, 4), (1, 3)])
def test_exact_probability_by_enumeration_of_all_patterns(n, s, zero_diagonal):
    bits = all_states(n * s).reshape(-1, s, n)
    weights = bits.mT @ bits
    if zero_diagonal:
        weights = weights - s * torch.eye(n)
    field = bits @ weights
    wrong = torch.where(field >= 0, 1.0, -1.0) != bits
    exact = hopfield_bit_error(n, s, zero_diagonal=zero_diagonal, method="exact")
    assert exact == pytest.approx(float(wrong.double().mean()), abs=1e-12)


def test_reference_numbers():
    assert hopfield_bit_error(1000, 138, method="asymptotic") == pytest.approx(0.00355, abs=5e-5)
    assert hopfield_bit_error(1000, 138) == pytest.approx(0.0035, abs=5e-5)
    assert hopfield_bit_error(1000, 138, zero_diagonal=False) == pytest.approx(0.0011, abs=5e-5)
    assert pattern_capacity(100, "printed") == pytest.approx(7.5, abs=0.05)
    assert pattern_capacity(100, "one_pattern") == pytest.approx(10.9, abs=0.05)
    assert pattern_capacity(100, "all_patterns") == pytest.approx(5.4, abs=0.05)


def test_the_normalized_integral_is_the_tail_and_the_printed_one_is_not():
    load = 0.138
    printed, _ = integrate.quad(lambda z: math.exp(-z * z / (2 * load)), 1, math.inf)
    tail = hopfield_bit_error(1000, 138, method="asymptotic")
    assert printed / math.sqrt(2 * math.pi * load) == pytest.approx(tail, rel=1e-9)
    assert abs(printed - tail) > 1e-4


@pytest.mark.parametrize("zero_diagonal", [True, False])
def test_gaussian_approaches_exact(zero_diagonal):
    for n, tolerance in ((100, 0.05), (1000, 0.001)):
        s = round(0.15 * n)
        exact = hopfield_bit_error(n, s, zero_diagonal=zero_diagonal, method="exact")
        gaussian = hopfield_bit_error(n, s, zero_diagonal=zero_diagonal)
        assert gaussian == pytest.approx(exact, rel=tolerance)


def test_one_pattern_has_no_error():
    assert hopfield_bit_error(10, 1, method="exact") == 0.0
    assert hopfield_bit_error(10, 1) == 0.0


def test_retrieval_overlap_solves_its_equation():
    for load in (0.03, 0.05, 0.1, 0.13, 0.1379):
        m = retrieval_overlap(load)
        y = float(stats.norm.ppf((m + 1) / 2)) / math.sqrt(2)
        right = y * (math.sqrt(2 * load) + 2 / math.sqrt(math.pi) * math.exp(-y * y))
        assert m == pytest.approx(right, rel=1e-6)
    assert critical_load() == pytest.approx(0.137905566, abs=1e-8)
    assert retrieval_overlap(critical_load() + 1e-9) == 0.0
    assert retrieval_overlap(critical_load() - 1e-9) == pytest.approx(0.967, abs=5e-4)


def drawn(n, counts, trials, probes=16, flip=0.0):
    return module._draw(n, counts, trials, list(range(len(counts))), flip, probes, "cpu")


@pytest.mark.parametrize("zero_diagonal", [True, False])
def test_first_step_equals_the_crosstalk_report(zero_diagonal):
    counts, trials = [1, 3, 8, 20], 3
    networks = drawn(24, counts, trials)
    error, stable = module._first_step(networks.patterns, counts, trials, zero_diagonal)
    for b in range(len(counts) * trials):
        patterns = networks.patterns[b, :, : counts[b // trials]].T
        report = crosstalk(patterns, zero_diagonal=zero_diagonal)
        assert float(error[b]) == pytest.approx(float(report.unstable.double().mean()))
        assert float(stable[b]) == pytest.approx(float(report.stable_patterns.double().mean()))


@pytest.mark.parametrize("zero_diagonal", [True, False])
def test_blocks_of_one_neuron_are_asynchronous_recall(zero_diagonal, monkeypatch):
    n, counts, trials = 20, [2, 5, 9], 4
    # the order 1, 2, ..., n, which Hopfield.recall knows as well
    monkeypatch.setattr(torch, "randperm", lambda n, **_: torch.arange(n))
    networks = drawn(n, counts, trials, probes=3, flip=0.2)
    _, state, moving = module._settle(
        networks.patterns,
        networks.start.clone(),
        networks.counts,
        zero_diagonal,
        n,
        50,
        torch.Generator(),
    )
    assert not moving.any()
    for b in range(len(counts) * trials):
        patterns = networks.patterns[b, :, : counts[b // trials]].T
        net = Hopfield(hebbian(patterns, zero_diagonal=zero_diagonal, normalize=False))
        walk = net.recall(networks.start[b].T, order="cyclic")
        assert torch.equal(walk.state, state[b].T)


def test_draws_are_signs_with_the_right_number_of_flips():
    networks = drawn(30, [2, 10], 3, probes=4, flip=0.1)
    assert (networks.target.abs() == 1).all()
    assert (networks.target != networks.start).sum(1).eq(3).all()
    assert networks.weight.sum(1).tolist() == [2.0] * 3 + [4.0] * 3
    assert (networks.patterns[:3, :, 2:] == 0).all()


def test_every_end_is_a_fixed_point_of_the_network():
    n, counts, trials = 40, [4, 8], 5
    networks = drawn(n, counts, trials, probes=4)
    _, state, moving = module._settle(
        networks.patterns,
        networks.start.clone(),
        networks.counts,
        True,
        8,
        100,
        torch.Generator().manual_seed(0),
    )
    assert not moving.any()
    for b in range(len(counts) * trials):
        patterns = networks.patterns[b, :, : counts[b // trials]].T
        assert Hopfield(hebbian(patterns, normalize=False)).is_fixed_point(state[b].T).all()


@pytest.mark.parametrize("load", [0.10, 0.18])
def test_block_dynamics_agrees_with_asynchronous(load):
    """Below and above the transition: the two means differ by less than their 99.9 % error."""
    n, trials = 150, 100
    blocks = capacity_sweep(n, [load], trials, generator=1).overlap[0]
    single = capacity_sweep(n, [load], trials, blocks=n, generator=2).overlap[0]
    difference = abs(float(blocks.mean() - single.mean()))
    error = math.sqrt(float(blocks.var() + single.var()) / trials)
    assert difference <= stats.norm.isf(0.0005) * error


def test_sweep_agrees_with_a_plain_loop_in_distribution():
    """An independent loop over networks and patterns, through Hopfield.recall."""
    n, load, trials = 60, 0.15, 60
    s = round(load * n)
    swept = capacity_sweep(n, [load], trials, probes=s, generator=3)
    generator = torch.Generator().manual_seed(4)
    errors, overlaps = [], []
    for _ in range(trials):
        x = torch.randint(0, 2, (s, n), generator=generator).double() * 2 - 1
        net = Hopfield(hebbian(x, normalize=False))
        errors.append(float((torch.where(net.field(x) >= 0, 1.0, -1.0) != x).double().mean()))
        overlaps.append(float(overlap(net.recall(x, generator=generator).state, x).mean()))
    for one, other in ((swept.bit_error[0], errors), (swept.overlap[0], overlaps)):
        test = stats.ttest_ind(one.numpy(), other, equal_var=False)
        assert test.pvalue > 0.001


def test_measured_bit_error_meets_the_exact_law():
    sweep = capacity_sweep(200, [0.15, 0.3], 40, probes=1, max_sweeps=1, generator=0)
    for s, row in zip(sweep.patterns, sweep.bit_error, strict=True):
        exact = hopfield_bit_error(200, s, method="exact")
        assert abs(float(row.mean()) - exact) <= 4 * float(row.std()) / math.sqrt(40)


def test_memory_budget_does_not_change_the_numbers():
    loads = [0.3, 0.05, 0.15]
    whole = capacity_sweep(50, loads, 4, generator=9)
    pieces = capacity_sweep(50, loads, 4, generator=9, memory=1.0)
    assert whole.patterns == pieces.patterns == (15, 2, 8)
    for name in ("bit_error", "stable", "overlap", "settled"):
        assert torch.equal(getattr(whole, name), getattr(pieces, name))
    assert whole.loads == [0.3, 0.04, 0.16]


def test_synchronous_updates_are_caught_in_cycles():
    together = capacity_sweep(60, [0.3], 30, blocks=1, generator=0)
    in_turn = capacity_sweep(60, [0.3], 30, generator=0)
    assert float(together.settled.min()) < 1.0
    assert float(in_turn.settled.min()) == 1.0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"n": 1}, InvalidInput),
        ({"loads": []}, EmptyData),
        ({"loads": [0.1, -0.1]}, InvalidInput),
        ({"loads": [math.nan]}, InvalidInput),
        ({"trials": 0}, InvalidInput),
        ({"blocks": 51}, InvalidInput),
        ({"flip": 0.7}, InvalidInput),
        ({"probes": 0}, InvalidInput),
    ],
)
def test_refused_sweeps(arguments, error):
    with pytest.raises(error):
        capacity_sweep(**{"n": 50, "loads": [0.1], "trials": 2, **arguments})


def test_refused_formulas():
    with pytest.raises(InvalidInput):
        hopfield_bit_error(0, 3)
    with pytest.raises(InvalidInput, match="method"):
        hopfield_bit_error(10, 3, method="guess")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="criterion"):
        pattern_capacity(10, "doc")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        pattern_capacity(1)
    with pytest.raises(InvalidInput):
        retrieval_overlap(0.0)
