"""Recurrent networks: torch's own, unrolled, made from systems, on sequences of any length."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.approximation.architectures.recurrent_sequences import (
    failure_probability,
    fit_in_probability,
    fit_sequences,
    length_cutoff,
    length_stress_test,
    output_bounds,
    sequence_network,
    sequence_values,
    windows,
)
from torchtheory.approximation.architectures.recurrent_simulation import (
    error_growth,
    euler_system,
    memory_bound,
    memory_profile,
    recurrent_fit,
    simulate_system,
    system_distance,
)
from torchtheory.approximation.architectures.recurrent_systems import (
    DynamicalSystem,
    ShallowRNN,
    constant_neuron,
    rnn_with_bias,
    shallow_rnn,
)
from torchtheory.approximation.certificates import box_grid
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    NonFinite,
    NotConverged,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.expressivity.pieces import affine_pieces
from torchtheory.nets.feedforward import mlp

ONE = torch.ones(1, 1, dtype=torch.float64)


def drawn(seed: int, n: int = 4, m: int = 2, p: int = 3, sigma: str = "tanh") -> ShallowRNN:
    source = torch.Generator().manual_seed(seed)
    parts = [
        torch.randn(s, generator=source, dtype=torch.float64) for s in ((n, n), (n, m), (p, n))
    ]
    start = torch.randn(n, generator=source, dtype=torch.float64)
    return ShallowRNN(*parts, sigma, initial=start)


def rand(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_two_steps_by_hand() -> None:
    rnn = ShallowRNN(-ONE, 2 * ONE, 3 * ONE, "relu", initial=torch.tensor([1.0]))
    path = rnn.run(torch.tensor([[2.0], [1.0]], dtype=torch.float64))
    # 1; max(-1 + 4, 0) = 3; max(-3 + 2, 0) = 0
    assert path.states.flatten().tolist() == [1.0, 3.0, 0.0]
    assert path.outputs.flatten().tolist() == [3.0, 9.0, 0.0]
    assert path.immediate.flatten().tolist() == [9.0, 0.0]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["tanh", "relu"]), st.booleans(), st.booleans())
def test_is_torchs_rnn(seed: int, kind: str, bias: bool, read_bias: bool) -> None:
    rnn = nn.RNN(2, 5, nonlinearity=kind, bias=bias, batch_first=True).double()
    readout = nn.Linear(5, 3, bias=read_bias).double()
    before = [p.clone() for p in rnn.parameters()]
    x = rand(seed, 4, 6, 2)
    made = shallow_rnn(rnn, readout)
    with torch.no_grad():
        torch.testing.assert_close(made.run(x).immediate, readout(rnn(x)[0]))
    assert len(made.A) == 5 + (bias or read_bias)
    assert all(torch.equal(a, b) for a, b in zip(before, rnn.parameters(), strict=True))


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 10**6), st.sampled_from(["tanh", "relu", "logistic", "elu"]), st.integers(0, 6)
)
def test_unrolled_and_encoded_agree(seed: int, sigma: str, time: int) -> None:
    rnn = drawn(seed, sigma=sigma)
    x = rand(seed, 3, time, 2)
    outputs = rnn.run(x).outputs
    joined = torch.cat([rnn.initial.expand(3, 4), x.flatten(1)], dim=1)
    torch.testing.assert_close(rnn.unroll(time)(joined), outputs)
    for k in range(3):
        torch.testing.assert_close(rnn.encode(list(x[k])), outputs[k, -1])
    torch.testing.assert_close(rnn(x), outputs[:, -1])


def test_unrolled_is_piecewise_linear_for_the_other_rooms() -> None:
    net = drawn(3, sigma="relu").unroll(3)
    # its pieces along a segment are found exactly, as for any feed-forward network
    found = affine_pieces(net, torch.zeros(10).double(), torch.ones(10).double())
    t = torch.linspace(0, 1, 50, dtype=torch.float64)
    torch.testing.assert_close(found(t), net(t[:, None].expand(50, 10)).detach())


@pytest.mark.parametrize("name", ["tanh", "relu", "logistic", "arctan", "softplus", "elu"])
def test_constant_neuron(name: str) -> None:
    weight, value = constant_neuron(name)
    alone = ShallowRNN(weight * ONE, ONE, ONE, name, initial=value * ONE[0])
    assert abs(float(alone(torch.zeros(500, 1).double()).detach()) - value) < 1e-12


def test_refused_recurrent() -> None:
    with pytest.raises(ShapeMismatch, match=r"B is \[n, m\]"):
        ShallowRNN(torch.eye(3), torch.ones(2, 3), torch.ones(1, 3))
    with pytest.raises(ShapeMismatch, match="matrices"):
        ShallowRNN(torch.eye(3), torch.ones(3), torch.ones(1, 3))
    with pytest.raises(ShapeMismatch, match="initial"):
        ShallowRNN(ONE, ONE, ONE, initial=torch.ones(2))
    with pytest.raises(NonFinite):
        ShallowRNN(ONE * math.nan, ONE, ONE)
    with pytest.raises(UnsupportedModel):
        shallow_rnn(nn.RNN(2, 3, num_layers=2), nn.Linear(3, 1))
    with pytest.raises(UnsupportedModel):
        shallow_rnn(nn.RNN(2, 3), nn.Linear(2, 1))
    rnn = drawn(0)
    with pytest.raises(ShapeMismatch):
        rnn.run(torch.zeros(5, 3).double())
    with pytest.raises(ShapeMismatch):
        rnn.encode([torch.zeros(3)])
    with pytest.raises(NonFinite):
        rnn.run(torch.full((5, 2), math.inf).double())
    with pytest.raises(ShapeMismatch, match="pair up"):
        rnn.run(torch.zeros(5, 2, 2).double(), torch.zeros(3, 4).double())
    with pytest.raises(ShapeMismatch):
        rnn.unroll(2)(torch.zeros(1, 3))
    with pytest.raises(ShapeMismatch, match="keep the state"):
        DynamicalSystem(1, 1, 1, lambda h, x: torch.cat([h, h]), lambda h: h).run(
            torch.zeros(1), torch.zeros(1, 1)
        )


def test_growth_and_distance_by_hand() -> None:
    assert error_growth(3.0, 2.0, 2, initial=1.0).tolist() == [1.0, 5.0, 17.0]
    one = DynamicalSystem(1, 1, 1, lambda h, x: 2 * h + x, lambda h: h)
    two = DynamicalSystem(1, 1, 1, lambda h, x: 2 * h + x + 0.1, lambda h: h)
    found = system_distance(
        one, two, lambda h: h, lambda h: h, (0, 1), (0, 1), 4, samples=20, ascent=2
    )
    torch.testing.assert_close(found.states, error_growth(2.0, 0.1, 4))
    torch.testing.assert_close(found.outputs, found.states)


def test_ascent_only_finds_more() -> None:
    one = DynamicalSystem(1, 1, 1, lambda h, x: torch.sin(3 * h) + x, lambda h: h)
    two = DynamicalSystem(1, 1, 1, lambda h, x: torch.sin(2.9 * h) + x, lambda h: h)
    args = (one, two, lambda h: h, lambda h: h, (0, 1), (-0.3, 0.3), 6)
    plain = system_distance(*args, samples=30, generator=1)  # type: ignore[arg-type]
    more = system_distance(*args, samples=30, ascent=5, generator=1)  # type: ignore[arg-type]
    assert bool((more.states >= plain.states - 1e-15).all())
    assert more.accuracy > plain.accuracy


@settings(max_examples=10, deadline=None)
@given(
    st.integers(0, 10**6), st.floats(0.3, 1.5), st.sampled_from(["tanh", "logistic", "softplus"])
)
def test_simulation_keeps_its_promise(seed: int, slope: float, sigma: str) -> None:
    system = DynamicalSystem(
        1, 1, 1, lambda h, x: torch.sin(slope * h) + 0.3 * x, lambda h: h.square()
    )
    made = recurrent_fit(system, (-1, 1), (-1, 1), 8, 24, nonlinearity=sigma, generator=seed)
    h = rand(seed, 5, 1)
    torch.testing.assert_close(made.decode(made.encode(h)), h, atol=1e-8, rtol=0)
    found = system_distance(
        system, made.rnn.system, made.decode, made.encode, (-1, 1), (-1, 1), 8,
        samples=60, generator=seed,
    )  # fmt: skip
    assert bool((found.states <= made.state_bounds(8) + 1e-8).all())
    assert bool((found.outputs[1:] <= made.output_bounds(8) + 1e-8).all())
    assert found.accuracy <= made.accuracy(8) + 1e-8


def test_the_error_of_a_step_is_that_of_the_top_and_not_of_a_grid() -> None:
    system = DynamicalSystem(1, 1, 1, lambda h, x: torch.sin(3 * h) + 0.3 * x, lambda h: h.cos())
    made = recurrent_fit(system, (-1, 1), (-1, 1), 3, 12, generator=0)

    def largest(points: int) -> tuple[float, float]:
        x = box_grid(made.region, points)
        h, fed = x[:, :1], x[:, 1:]
        with torch.no_grad():
            after, right = made.rnn.system.step(made.encode(h), fed), system.step(h, fed)
            read = made.rnn.system.read(after) - system.read(right)
        return float((made.decode(after) - right).abs().max()), float(read.abs().max())

    for found, fine, coarse in zip(
        (made.defect, made.output_defect), largest(1201), largest(141), strict=True
    ):
        assert coarse < (1 - 1e-6) * found
        assert (1 - 1e-4) * found < fine <= (1 + 1e-9) * found


def test_asked_accuracy_or_an_error() -> None:
    system = DynamicalSystem(1, 1, 1, lambda h, x: torch.cos(h + x), lambda h: h)
    made = simulate_system(system, (0, 1), (0, 1), 5, 1e-3)
    assert made.accuracy(5) <= 1e-3
    with pytest.raises(NotConverged, match="allow more"):
        simulate_system(system, (0, 1), (0, 1), 5, 1e-9, largest=8)
    with pytest.raises(ShapeMismatch):
        recurrent_fit(system, ((0, 1), (0, 1)), (0, 1), 5, 8)
    with pytest.raises(InvalidInput):
        error_growth(-1.0, 0.0, 2)
    burst = DynamicalSystem(1, 1, 1, lambda h, x: torch.exp(100 * h * h), lambda h: h)
    with pytest.raises(NonFinite):
        recurrent_fit(burst, (1, 2), (0, 1), 9, 8)


def test_memory() -> None:
    rnn = drawn(5, sigma="tanh")
    with torch.no_grad():
        rnn.A.mul_(0.7 / torch.linalg.matrix_norm(rnn.A, 2))
    x, h = rand(1, 6, 8, 2), rand(2, 6, 4)
    profile = memory_profile(rnn.system, h, x)
    assert bool((profile <= memory_bound(rnn, 8) + 1e-12).all())
    # against torch's own Jacobian of the whole map
    jacobian = torch.func.jacrev(lambda v, s: rnn.run(v, s).outputs[-1])
    last = torch.stack([jacobian(v, s) for v, s in zip(x, h, strict=True)])
    sizes = torch.linalg.matrix_norm(last.permute(0, 2, 1, 3), ord=2).amax(0).flip(0)
    torch.testing.assert_close(profile, sizes.detach())
    assert euler_system(lambda h, x: x, 1, 1, 0.5).step(ONE, ONE).item() == 1.5
    with pytest.raises(ShapeMismatch):
        memory_profile(rnn.system, h[0], x)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.02, 0.9), st.floats(0.01, 0.9))
def test_geometric_cutoff(q: float, delta: float) -> None:
    found = length_cutoff(lambda i: (1 - q) ** i, delta)
    assert (1 - q) ** found <= delta / 2 < (1 - q) ** (found - 1)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 2), st.integers(0, 7))
def test_register_is_exact(seed: int, memory: int, inputs: int, length: int) -> None:
    net = mlp([memory * inputs + 1, 5, 2], "relu", generator=seed)
    rnn = sequence_network(net, inputs, memory, fill=0.5)
    x = rand(seed, 3, length, inputs) - 0.5
    torch.testing.assert_close(rnn(x), net(windows(x, memory, 0.5)).detach())


def test_failures_are_counted() -> None:
    draws = [rand(k, k % 5 + 1, 1) + 1 for k in range(50)]
    last = ShallowRNN(0 * ONE, ONE, ONE, "relu").requires_grad_(False)
    found = failure_probability(last, lambda x: x.sum(1), draws, 0.5)
    assert found.estimate == 0.8  # right only for the sequences of one entry
    # errors of 3 and 4 in two outputs are one of 5, and an error of ε is none
    apart = [
        failure_probability(
            lambda x: x.new_tensor([[3.0, 4.0]]).expand(len(x), 2),
            lambda x: x.new_zeros(len(x), 2),
            draws,
            e,
        ).estimate
        for e in (4.9, 5.0)
    ]
    assert apart == [1.0, 0.0]
    values = sequence_values(lambda x: x.sum(1), draws)
    torch.testing.assert_close(values[:, 0], torch.stack([d.sum() for d in draws]))


def test_fitted_sequences_and_refusals() -> None:
    draws = [rand(k, k % 3 + 1, 1) for k in range(600)]
    made = fit_sequences(lambda x: x.amax(1), draws, 3, 80)
    assert failure_probability(made, lambda x: x.amax(1), draws, 0.1).estimate < 0.05
    with pytest.raises(EmptyData):
        fit_sequences(lambda x: x.amax(1), [torch.ones(5, 1).double()], 3, 8)
    with pytest.raises(ShapeMismatch):
        sequence_network(mlp([3, 4, 1]), 1, 3)
    with pytest.raises(UnsupportedModel):
        sequence_network(mlp([4, 4, 1], "tanh"), 1, 3)
    with pytest.raises(EmptyData):
        sequence_values(lambda x: x.sum(1), [])
    with pytest.raises(InvalidInput):
        length_cutoff(lambda i: 0.5**i, 1.5)
    with pytest.raises(NotConverged):
        length_cutoff(lambda i: 1.0, 0.1, most=100)


def last_above_first(x: Tensor) -> Tensor:
    return (x[:, -1] > x[:, 0]).double()


def test_a_fit_in_probability_keeps_its_promise_or_is_refused() -> None:
    """A jump whose direction in the register changes with the length."""
    draws = [rand(k, k % 3 + 1, 1) for k in range(2000)]
    made, share = fit_in_probability(
        last_above_first, draws[:1600], 0.1, 0.17, width=64, most=128, generator=0
    )
    assert share.high <= 0.17
    assert failure_probability(made, last_above_first, draws[1600:], 0.1).low <= 0.17
    with pytest.raises(NotConverged, match=r"exceeds 0\.1 on .* fresh sequences"):
        fit_in_probability(
            last_above_first, draws[:400], 0.1, 0.01, width=8, most=16, steps=20, generator=0
        )


@pytest.mark.parametrize("inputs", [1, 2])
def test_units_of_one_length_are_off_at_the_others(inputs: int) -> None:
    draws = [10 * rand(k, k % 4, inputs) - 7 for k in range(400)]

    def only_three(x: Tensor) -> Tensor:
        rest = x.new_full((len(x), 1), float(x.shape[1]))
        return torch.relu(x[:, 0, :1] + x[:, 2, :1]) if x.shape[1] == 3 else rest

    made = fit_sequences(only_three, draws, 3, 60, steps=0, generator=1)
    for length in (0, 1, 2):
        x = 10 * rand(length, 50, length, inputs) - 7
        assert torch.allclose(made(x), torch.full((50, 1), float(length)).double(), atol=1e-8)
    x = 10 * rand(9, 200, 3, inputs) - 7
    assert float((made(x) - only_three(x)).abs().mean()) < 1


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["tanh", "relu", "logistic", "softplus"]))
def test_output_bounds(seed: int, sigma: str) -> None:
    rnn = drawn(seed, sigma=sigma).requires_grad_(False)
    x = 2 * rand(seed, 10, 9, 2) - 1
    bound = output_bounds(rnn, 9, float(x.norm(dim=2).max()))
    assert bool((rnn.run(x).outputs.norm(dim=2).amax(0) <= bound * (1 + 1e-9)).all())
    stress = length_stress_test(
        rnn, lambda s: s.new_full((len(s), 3), 1e3), [x[:, :i] for i in (1, 9)]
    )
    assert bool((stress.errors >= stress.floors - 1e-9).all())


def test_output_bounds_by_hand() -> None:
    # four neurons, |A| = 2, |B| = 3, |C| = 5, and an initial state of norm 1
    shift, first = torch.eye(4).double(), torch.zeros(4, 1).double()
    first[0] = 1.0

    def net(sigma: str) -> ShallowRNN:
        return ShallowRNN(2 * shift, 3 * first, 5 * first.T, sigma, initial=first[:, 0])

    half = 2 * 0.5 + 0.25 * (2 * 1 + 3 * 0.5)  # √n σ(0) + λ(|A| r + |B| R) = 1.875, below √n
    found = output_bounds(net("logistic"), 2, 0.5)
    torch.testing.assert_close(found, torch.tensor([5.0, 5 * half, 5 * 2.0]).double())
    step = 2 * math.log(2) + 2 * 1 + 3 * 0.5
    found = output_bounds(net("softplus"), 2, 0.5)
    wanted = [5.0, 5 * step, 5 * (2 * math.log(2) + 2 * step + 3 * 0.5)]
    torch.testing.assert_close(found, torch.tensor(wanted).double())
    assert output_bounds(net("relu"), 2, 0.5).tolist() == [5.0, 5 * 3.5, 5 * 8.5]


def test_no_bound_is_read_off_the_values_of_an_activation() -> None:
    """It is 1 on [-10, 10] and at powers of ten, and may be anything elsewhere."""

    def steep(x: Tensor) -> Tensor:
        return torch.where((x > 20) & (x < 30), 1e6, 0.0) + x.clamp(-1, 1)

    wide = ShallowRNN(0 * ONE, 25 * ONE, ONE, steep).requires_grad_(False)
    with pytest.raises(UnsupportedModel, match="lipschitz="):
        output_bounds(wide, 2, 1.0)
    bound = output_bounds(wide, 2, 1.0, lipschitz=1e12, largest=1e6 + 1)
    assert float(wide(torch.ones(1, 2, 1).double()).abs()) <= float(bound[-1]) == 1e6 + 1
    for layer, top in ((nn.Hardtanh(-30, 20), 30.0), (nn.ReLU6(), 6.0)):
        rnn = ShallowRNN(ONE, 1e3 * ONE, ONE, layer)
        assert float(output_bounds(rnn, 3, 1.0)[-1]) == top
    with pytest.raises(UnsupportedModel, match="Threshold"):
        output_bounds(ShallowRNN(ONE, ONE, ONE, nn.Threshold(15.0, 99.0)), 3, 1.0)


def test_counter_counts() -> None:
    counter = rnn_with_bias(ONE, 0 * ONE, ONE, ONE[0], "relu").requires_grad_(False)
    batches = [torch.zeros(1, i, 1).double() for i in (0, 3, 100)]
    found = length_stress_test(counter, lambda x: x.new_full((1, 1), float(x.shape[1])), batches)
    assert found.errors.tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(EmptyData):
        length_stress_test(counter, lambda x: x.sum(1), [])
