"""Dense associative memories against the definition, Hebb's rule and torch's attention."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.neurons.dense_memory import (
    DenseMemory,
    Exponential,
    Power,
    dense_bit_error,
    dense_capacity,
    dense_capacity_sweep,
    modern_hopfield_energy,
    modern_hopfield_update,
    modern_retrieval_bound,
)
from torchtheory.neurons.hopfield import Hopfield, all_states, hebbian, sign
from torchtheory.neurons.hopfield_capacity import hopfield_bit_error, pattern_capacity

KINDS = [Power(2), Power(3), Power(4), Power(2, rectified=True), Power(5, rectified=True)]


def signs(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, shape, generator=generator).double() * 2 - 1


def by_definition(memory: DenseMemory, states: torch.Tensor) -> torch.Tensor:
    """The update by evaluating both energies of every neuron, Krotov and Hopfield's rule."""
    new = states.clone()
    for i in range(states.shape[1]):
        up, down = states.clone(), states.clone()
        up[:, i], down[:, i] = 1.0, -1.0
        f_up = memory.interaction(up @ memory.patterns.T).sum(-1)
        f_down = memory.interaction(down @ memory.patterns.T).sum(-1)
        new[:, i] = torch.where(f_up >= f_down, 1.0, -1.0)
    return new


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(s=st.integers(1, 6), n=st.integers(2, 7), seed=st.integers(0, 10_000))
def test_step_is_the_comparison_of_energies(kind, s, n, seed):
    memory, states = DenseMemory(signs(s, n, seed=seed), kind), all_states(n)
    assert torch.equal(memory.step(states), by_definition(memory, states))


@settings(max_examples=15, deadline=None)
@given(s=st.integers(1, 6), n=st.integers(2, 7), seed=st.integers(0, 10_000))
def test_exponential_step_where_there_is_no_tie(s, n, seed):
    memory, states = DenseMemory(signs(s, n, seed=seed), Exponential()), all_states(n)
    clear = memory.gaps(states).abs() > 1e-9
    same = memory.step(states) == by_definition(memory, states)
    assert same[clear].all()


@settings(max_examples=20, deadline=None)
@given(s=st.integers(1, 6), n=st.integers(2, 7), seed=st.integers(0, 10_000))
def test_the_second_power_is_hebb_with_zero_diagonal(s, n, seed):
    x, states = signs(s, n, seed=seed), all_states(n)
    memory, net = DenseMemory(x, Power(2)), Hopfield(hebbian(x, normalize=False))
    kept = Hopfield(hebbian(x, zero_diagonal=False, normalize=False))
    assert torch.equal(memory.energy(states), 2 * kept.energy(states))
    assert torch.equal(memory.step(states), sign(net.field(states)))
    ours, theirs = (m.recall(states, order="cyclic") for m in (memory, net))
    assert torch.equal(ours.state, theirs.state)
    assert torch.equal(ours.flips, theirs.flips)


@pytest.mark.parametrize("kind", [*KINDS, Exponential()])
def test_gaps_are_energy_differences_up_to_a_positive_factor(kind):
    memory, states = DenseMemory(signs(5, 8), kind), all_states(8)[::5]
    flipped = states[:, None, :] * (1 - 2 * torch.eye(8))
    energy = -kind(flipped @ memory.patterns.T).sum(-1) + kind(states @ memory.patterns.T).sum(
        -1, keepdim=True
    )
    gaps = memory.gaps(states)
    factor = (gaps * energy).sum(-1, keepdim=True) / energy.square().sum(-1, keepdim=True)
    some = energy.square().sum(-1) > 0
    assert (factor[some] > 0).all()
    assert torch.allclose(gaps[some], (factor * energy)[some], atol=1e-12)


@pytest.mark.parametrize("kind", [*KINDS, Exponential()])
def test_energy_descends_and_the_walk_stops(kind):
    memory = DenseMemory(signs(12, 9), kind)
    walk = memory.recall(all_states(9), trace=True, generator=0)
    assert walk.fixed_point.all()
    assert (walk.energies.diff(dim=0) <= 1e-12 * walk.energies[:-1].abs()).all()


def test_large_memories_do_not_overflow():
    x = signs(3, 2000)
    for kind in (Power(200), Exponential()):
        memory = DenseMemory(x, kind)
        assert memory.is_fixed_point(x).all()
        assert torch.isfinite(memory.gaps(x)).all()
    assert torch.isfinite(DenseMemory(x, Exponential()).energy(x)).all()


def test_synchronous_recall():
    memory = DenseMemory(torch.ones(1, 2), Power(2))
    assert memory.recall(torch.tensor([1.0, -1.0]), mode="synchronous").two_cycle
    x = signs(6, 40)
    noisy = x.clone()
    noisy[:, :4] *= -1
    walk = DenseMemory(x, Power(4)).recall(noisy, mode="synchronous")
    assert walk.fixed_point.all()
    assert torch.equal(walk.state, x)


def test_bit_error_of_the_second_power_is_hebbs():
    for n, s in ((50, 7), (300, 40), (1000, 138)):
        assert dense_bit_error(n, s, Power(2)) == pytest.approx(hopfield_bit_error(n, s), rel=1e-9)
    assert dense_capacity(1000, 2) == pytest.approx(pattern_capacity(1000))


def test_bit_error_tends_to_krotov_and_hopfields_formula():
    for degree, odd in ((3, 3), (4, 15)):
        n = 2000
        s = n ** (degree - 1) // (5 * odd)
        limit = 0.5 * math.erfc(math.sqrt(n ** (degree - 1) / (odd * s)) / math.sqrt(2))
        assert dense_bit_error(n, s, Power(degree)) == pytest.approx(limit, rel=0.03)


def test_bit_error_moment_by_enumeration():
    """Two patterns: the noise of the other has exactly the variance the formula uses."""
    n, kind = 8, Power(3)
    states = all_states(n)
    z = states[:, 1:].sum(-1)
    jump = states[:, 0] * (kind(z + 1) - kind(z - 1))
    assert float(jump.mean()) == 0.0
    argument = float(kind(torch.tensor(8.0)) - kind(torch.tensor(6.0))) / float(
        jump.square().mean().sqrt()
    )
    expected = 0.5 * math.erfc(argument / math.sqrt(2))
    assert dense_bit_error(n, 2, kind) == pytest.approx(expected, rel=1e-9)


def test_measured_bit_error_meets_the_formula():
    sweep = dense_capacity_sweep(40, [150, 400], Power(3), trials=40, generator=0)
    for s, row in zip(sweep.patterns, sweep.bit_error, strict=True):
        error = float(row.std()) / math.sqrt(40)
        assert abs(float(row.mean()) - dense_bit_error(40, s, Power(3))) <= 4 * error


def test_sweep_equals_the_class():
    generator = torch.Generator().manual_seed(7)
    sweep = dense_capacity_sweep(12, [30], Power(3), trials=2, probes=5, generator=generator)
    generator = torch.Generator().manual_seed(7)
    x = torch.empty(2, 30, 12, dtype=torch.float64).bernoulli_(0.5, generator=generator) * 2 - 1
    for k in range(2):
        wrong = DenseMemory(x[k], Power(3)).step(x[k, :5]) != x[k, :5]
        assert float(sweep.bit_error[0, k]) == pytest.approx(float(wrong.double().mean()))
        assert float(sweep.stable[0, k]) == pytest.approx(float((~wrong.any(-1)).double().mean()))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.integers(1, 6), st.floats(0.05, 5.0), st.integers(0, 10_000))
def test_modern_update_is_attention_and_descends(s, d, beta, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(s, d, dtype=torch.float64, generator=generator)
    state = 2 * torch.randn(9, d, dtype=torch.float64, generator=generator)
    new = modern_hopfield_update(x, state, beta)
    attention = scaled_dot_product_attention(state[None], x[None], x[None], scale=beta)[0]
    assert torch.allclose(new, attention, atol=1e-12)
    before, after = (modern_hopfield_energy(x, v, beta) for v in (state, new))
    assert (after <= before + 1e-12 * before.abs().clamp(min=1)).all()
    largest = x.square().sum(-1).max()
    assert (after >= -1e-9).all()
    assert (after <= 2 * largest + 1e-9).all()
    # the gradient of the energy is the step, reversed
    leaf = state.clone().requires_grad_()
    modern_hopfield_energy(x, leaf, beta).sum().backward()
    assert leaf.grad is not None
    assert torch.allclose(leaf.grad, state - new, atol=1e-10)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 8), st.floats(0.05, 5.0), st.integers(0, 10_000))
def test_retrieval_bound(s, beta, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(s, 5, dtype=torch.float64, generator=generator)
    state = x + 0.3 * torch.randn(s, 5, dtype=torch.float64, generator=generator)
    error = (modern_hopfield_update(x, state, beta) - x).norm(dim=-1)
    bound = modern_retrieval_bound(x, state, torch.arange(s), beta)
    assert (error <= bound * (1 + 1e-12) + 1e-14).all()


def test_limits_of_temperature():
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    state = torch.tensor([0.9, 0.3])
    assert torch.allclose(modern_hopfield_update(x, state, 1e4), x[0])
    assert torch.allclose(modern_hopfield_update(x, state, 1e-6), x.mean(0), atol=1e-5)
    assert float(modern_retrieval_bound(x[:1], state, torch.tensor(0))) == 0.0


def test_refused_input():
    x = signs(3, 4)
    with pytest.raises(InvalidType, match="Power"):
        DenseMemory(x, 3)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="degree"):
        Power(1)
    with pytest.raises(InvalidInput):
        DenseMemory(torch.rand(3, 4), Power(3))
    with pytest.raises(ShapeMismatch):
        DenseMemory(x, Power(3)).recall(torch.ones(5))
    with pytest.raises(InvalidInput, match="mode"):
        DenseMemory(x, Power(3)).recall(x, mode="both")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="Gaussian"):
        dense_bit_error(10, 5, Exponential())
    with pytest.raises(InvalidInput):
        dense_bit_error(1, 5, Power(3))
    with pytest.raises(InvalidInput):
        dense_capacity(10, 1)
    with pytest.raises(EmptyData):
        dense_capacity_sweep(10, [], Power(3))
    with pytest.raises(InvalidInput):
        dense_capacity_sweep(10, [0], Power(3))
    with pytest.raises(InvalidInput):
        dense_capacity_sweep(10, [3], Power(3), flip=0.9)
    with pytest.raises(InvalidInput, match="beta"):
        modern_hopfield_update(x, x, 0.0)
    with pytest.raises(ShapeMismatch):
        modern_hopfield_update(x, torch.ones(5, dtype=torch.float64))
    with pytest.raises(NonFinite):
        modern_hopfield_energy(x, torch.full((4,), torch.nan, dtype=torch.float64))
    with pytest.raises(ShapeMismatch):
        modern_hopfield_update(x[:0], x)
    with pytest.raises(InvalidInput, match="index"):
        modern_retrieval_bound(x, x, torch.tensor([0, 1, 3]))
    with pytest.raises(ShapeMismatch, match="index"):
        modern_retrieval_bound(x, x, torch.tensor([0, 1]))
