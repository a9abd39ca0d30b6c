"""Hopfield networks against hand-worked cases, all states of small networks, and a naive loop."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
)
from torchtheory.neurons.hopfield import (
    Hopfield,
    all_states,
    crosstalk,
    flip_bits,
    hebbian,
    overlap,
    sign,
)


def signs(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, shape, generator=generator).double() * 2 - 1


def whole_network(n: int, seed: int) -> Hopfield:
    """Random whole-number weights, so that energies and ties are exact."""
    generator = torch.Generator().manual_seed(seed)
    upper = torch.randint(-3, 4, (n, n), generator=generator).triu(1)
    return Hopfield(upper + upper.T, torch.randint(-2, 3, (n,), generator=generator))


def naive_energy(weights: list[list[float]], bias: list[float], x: list[float]) -> float:
    n = len(x)
    pairs = sum(weights[i][j] * x[i] * x[j] for i in range(n) for j in range(n))
    return -0.5 * pairs + sum(b * v for b, v in zip(bias, x, strict=True))


def naive_recall(
    weights: list[list[float]], bias: list[float], x: list[float]
) -> tuple[list[float], int]:
    """Cyclic order by comparing energies, as the definition says."""
    x, flips = list(x), 0
    while True:
        before = list(x)
        for i in range(len(x)):
            up, down = [*x[:i], 1.0, *x[i + 1 :]], [*x[:i], -1.0, *x[i + 1 :]]
            new = (
                up if naive_energy(weights, bias, up) <= naive_energy(weights, bias, down) else down
            )
            flips += new != x
            x = new
        if x == before:
            return x, flips


def test_energy_and_field_by_hand():
    net = Hopfield(torch.tensor([[0.0, 2.0], [2.0, 0.0]]), torch.tensor([1.0, -1.0]))
    x = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    assert net.energy(x).tolist() == [-2.0, 4.0]  # -2 + 0 and 2 + 2
    assert net.field(x).tolist() == [[1.0, 3.0], [-3.0, 3.0]]


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 7), st.integers(0, 10_000))
def test_a_flip_changes_the_energy_by_the_field(n, seed):
    net, states = whole_network(n, seed), all_states(n)
    for i in range(n):
        flipped = states.clone()
        flipped[:, i] *= -1
        step = flipped[:, i] - states[:, i]
        change = net.energy(flipped) - net.energy(states)
        assert torch.equal(change, -step * net.field(states)[:, i])


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 7), st.integers(0, 10_000))
def test_energy_rule_is_field_rule_on_every_state(n, seed):
    net, states = whole_network(n, seed), all_states(n)
    rule = sign(net.field(states))
    for i in range(n):
        up, down = states.clone(), states.clone()
        up[:, i], down[:, i] = 1.0, -1.0
        by_energy = torch.where(net.energy(up) <= net.energy(down), 1.0, -1.0)
        assert torch.equal(by_energy, rule[:, i])


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 7), st.integers(0, 10_000), st.sampled_from(["random", "cyclic"]))
def test_asynchronous_dynamics_descends_and_stops(n, seed, order):
    net = whole_network(n, seed)
    walk = net.recall(all_states(n), order=order, trace=True, generator=seed)
    assert walk.fixed_point.all()
    assert not walk.two_cycle.any()
    assert (walk.energies.diff(dim=0) <= 0).all()
    assert torch.equal(walk.energies[-1], net.energy(walk.state))
    assert torch.equal(net.is_fixed_point(walk.state), walk.fixed_point)


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 6), st.integers(0, 10_000))
def test_cyclic_recall_equals_the_naive_loop(n, seed):
    net = whole_network(n, seed)
    weights, bias = net.weights.tolist(), net.bias.tolist()
    walk = net.recall(all_states(n), order="cyclic")
    for k, start in enumerate(all_states(n).tolist()):
        state, flips = naive_recall(weights, bias, start)
        assert walk.state[k].tolist() == state
        assert int(walk.flips[k]) == flips


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 7), st.integers(0, 10_000))
def test_synchronous_dynamics_has_period_one_or_two(n, seed):
    net, states = whole_network(n, seed), all_states(n)
    walk = net.recall(states, mode="synchronous", max_sweeps=500)
    assert (walk.fixed_point ^ walk.two_cycle).all()
    # independently: follow each state for 2^n steps, past every transient, and look back two
    x = states
    for _ in range(2**n):
        x = sign(net.field(x))
    again = sign(net.field(sign(net.field(x))))
    assert torch.equal(again, x)
    assert torch.equal((sign(net.field(x)) == x).all(-1), walk.fixed_point)


def test_synchronous_two_cycle_and_asynchronous_rest():
    net = Hopfield(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    x = torch.tensor([1.0, -1.0])
    together = net.recall(x, mode="synchronous")
    assert together.two_cycle
    assert not together.fixed_point
    alone = net.recall(x, order="cyclic")
    assert alone.state.tolist() == [-1.0, -1.0]
    assert int(alone.flips) == 1


def test_a_tie_goes_up():
    net = Hopfield(torch.zeros(3, 3))
    walk = net.recall(-torch.ones(3))
    assert walk.state.tolist() == [1.0, 1.0, 1.0]
    assert walk.energies.tolist() == [0.0, 0.0]


def test_a_batch_keeps_its_shape_and_equals_single_states():
    net, x = whole_network(6, 3), signs(2, 5, 6)
    walk = net.recall(x, order="cyclic")
    assert walk.state.shape == x.shape
    assert walk.energies.shape == (walk.sweeps + 1, 2, 5)
    for i, j in itertools.product(range(2), range(5)):
        alone = net.recall(x[i, j], order="cyclic")
        assert torch.equal(alone.state, walk.state[i, j])
        assert alone.flips == walk.flips[i, j]


def test_the_start_is_not_changed_and_seeds_repeat():
    net, x = whole_network(8, 1), signs(4, 8)
    kept = x.clone()
    first, second = net.recall(x, generator=5), net.recall(x, generator=5)
    assert torch.equal(x, kept)
    assert torch.equal(first.state, second.state)
    state = torch.random.get_rng_state()
    net.recall(x)
    assert torch.equal(state, torch.random.get_rng_state())


def test_max_sweeps_is_reported():
    rotation = Hopfield(torch.tensor([[0.0, 1.0], [-1.0, 0.0]]), strict=False)
    walk = rotation.recall(torch.tensor([1.0, 1.0]), mode="synchronous", max_sweeps=7)
    assert walk.sweeps == 7
    assert not walk.fixed_point
    assert not walk.two_cycle


def test_hebbian_by_hand_and_its_diagonal():
    x = torch.tensor([[1.0, 1.0, -1.0], [1.0, -1.0, -1.0]])
    kept = hebbian(x, zero_diagonal=False, normalize=False)
    assert kept.tolist() == [[2.0, 0.0, -2.0], [0.0, 2.0, 0.0], [-2.0, 0.0, 2.0]]
    assert torch.equal(hebbian(x) * 3, kept - 2 * torch.eye(3))
    assert hebbian(x.to(torch.float32)).dtype == torch.float32
    assert hebbian(x.long()).dtype == torch.float64


def test_one_pattern_and_its_negative_rest():
    x = signs(1, 30)
    net = Hopfield(hebbian(x))
    assert net.is_fixed_point(torch.cat([x, -x])).all()


def test_orthogonal_patterns_are_eigenvectors():
    x = torch.tensor([[1.0, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1]])
    assert torch.equal(x @ hebbian(x, zero_diagonal=False), x)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.integers(1, 12), st.booleans(), st.integers(0, 10_000))
def test_crosstalk_is_the_field_exactly(s, n, zero_diagonal, seed):
    x = signs(s, n, seed=seed)
    report = crosstalk(x, zero_diagonal=zero_diagonal)
    weights = hebbian(x, zero_diagonal=zero_diagonal, normalize=False)
    assert torch.equal(report.scaled_field, (x @ weights).long())
    assert torch.equal(report.stable_patterns, Hopfield(weights).is_fixed_point(x))
    # the triple sum of the definition
    rows = x.tolist()
    for t in range(s):
        for i in range(n):
            total = sum(
                rows[r][i] * rows[r][j] * rows[t][j]
                for r in range(s)
                for j in range(n)
                if r != t and not (zero_diagonal and j == i)
            )
            assert int(report.scaled[t, i]) == total


def test_large_crosstalk_of_the_right_sign_is_harmless():
    x = torch.ones(5, 4)
    report = crosstalk(x, zero_diagonal=False)
    assert (report.values == 4).all()
    assert report.stable_patterns.all()


def test_overlap_and_flip_bits():
    x = signs(7, 20)
    noisy = flip_bits(x, 3, generator=1)
    assert torch.allclose(overlap(noisy, x), torch.full((7,), 0.7, dtype=torch.float64))
    assert torch.equal(flip_bits(x, 0), x)
    assert torch.equal(flip_bits(x, 20), -x)


@pytest.mark.parametrize(
    ("weights", "error", "words"),
    [
        (torch.tensor([[0.0, 1.0], [-1.0, 0.0]]), InvalidInput, "not symmetric"),
        (torch.tensor([[-1.0, 0.0], [0.0, 0.0]]), InvalidInput, "diagonal"),
        (torch.zeros(2, 3), ShapeMismatch, r"\[n, n\]"),
        (torch.tensor([[0.0, torch.nan], [torch.nan, 0.0]]), NonFinite, "is nan"),
        (torch.zeros(0, 0), EmptyData, "at least one neuron"),
        (torch.zeros(2, 2, dtype=torch.complex64), InvalidType, "real"),
        ([[0.0]], InvalidType, "Tensor"),
    ],
)
def test_refused_weights(weights, error, words):
    with pytest.raises(error, match=words):
        Hopfield(weights)


def test_rounding_is_not_asymmetry():
    x = signs(7, 40).float()
    noise = 1e-8 * torch.rand(40, 40, generator=torch.Generator().manual_seed(0))
    Hopfield(hebbian(x) + noise)


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (torch.tensor([1.0, 0.5]), InvalidInput),
        (torch.tensor([1.0, torch.nan]), NonFinite),
        (torch.ones(3), ShapeMismatch),
        (torch.tensor(1.0), ShapeMismatch),
        (torch.ones(0, 2), EmptyData),
    ],
)
def test_refused_states(state, error):
    net = Hopfield(torch.zeros(2, 2))
    with pytest.raises(error):
        net.recall(state)
    with pytest.raises(error):
        net.energy(state)


def test_refused_options():
    net, x = Hopfield(torch.zeros(2, 2)), torch.ones(2)
    with pytest.raises(InvalidInput, match="mode"):
        net.recall(x, mode="both")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="order"):
        net.recall(x, order="alphabetical")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="max_sweeps"):
        net.recall(x, max_sweeps=0)
    with pytest.raises(ShapeMismatch, match="bias"):
        Hopfield(torch.zeros(2, 2), torch.zeros(3))
    with pytest.raises(InvalidInput, match="binarize"):
        hebbian(torch.rand(2, 5))
    with pytest.raises(ShapeMismatch, match="one per row"):
        crosstalk(torch.ones(5))
    with pytest.raises(InvalidInput, match="count"):
        flip_bits(x, 3)
    with pytest.raises(InvalidInput, match="list all states"):
        all_states(21)
    with pytest.raises(ShapeMismatch):
        overlap(torch.ones(2), torch.ones(3))
