"""Deep Sets: symmetric by construction, and codes that are long enough or not."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch
from torchtheory.equivariance.measure import measure_equivariance
from torchtheory.graphs.deep_sets import DeepSet, EquivariantDeepSet, pad_sets, pooled
from torchtheory.graphs.power_sums import (
    Powers,
    elementary_symmetric,
    power_sum_decode,
    power_sum_encode,
    power_sum_network,
    set_collision,
)
from torchtheory.nets.feedforward import mlp


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def network(pool: str = "sum", kind: type[DeepSet] = DeepSet) -> DeepSet:
    inside = 5 if kind is DeepSet else 8
    return kind(mlp([3, 8, 5], "tanh"), mlp([inside, 8, 2], "tanh", generator=1), pool)  # type: ignore[arg-type]


@pytest.mark.parametrize("pool", ["sum", "mean", "max"])
def test_symmetric_under_every_permutation(pool: str) -> None:
    x = drawn(3, 4, 3)
    for kind, on_output in ((DeepSet, "invariant"), (EquivariantDeepSet, "equivariant")):
        found = measure_equivariance(
            network(pool, kind), "permutations", x, on_output=on_output, elements=23
        )
        assert found.exact
    # and what it must not be
    flat = nn.Sequential(nn.Flatten(), mlp([12, 8, 2]))
    assert not measure_equivariance(flat, "permutations", x).exact
    broken = measure_equivariance(
        network(pool, EquivariantDeepSet), "permutations", x, on_output="invariant"
    )
    assert not broken.exact


def test_the_code_of_a_union_is_the_sum_of_codes() -> None:
    net = network()
    a, b = drawn(4, 3), drawn(7, 3, seed=1)
    torch.testing.assert_close(net.code(torch.cat([a, b])), net.code(a) + net.code(b))
    mean = network("mean")
    whole = mean.code(torch.cat([a, b]))
    torch.testing.assert_close(whole, (4 * mean.code(a) + 7 * mean.code(b)) / 11)
    assert net.code(a[:0]).tolist() == [0.0] * 5


@pytest.mark.parametrize("pool", ["sum", "mean", "max"])
@pytest.mark.parametrize("kind", [DeepSet, EquivariantDeepSet])
def test_padding_has_no_influence(pool: str, kind: type[DeepSet]) -> None:
    net = network(pool, kind)
    sets = [drawn(m, 3, seed=m) for m in (1, 4, 6)]
    x, mask = pad_sets(sets)
    for filling in (0.0, 1e30, float("nan"), float("inf")):
        x = x.masked_fill(~mask[..., None], filling).requires_grad_()
        made = net(x, mask)
        for k, one in enumerate(sets):
            wanted = net(one)
            got = made[k] if kind is DeepSet else made[k, : len(one)]
            torch.testing.assert_close(got, wanted)
        shown = made if kind is DeepSet else made[mask]
        (slope,) = torch.autograd.grad(shown.sum(), x)
        assert bool(slope.isfinite().all())
        assert bool((slope[~mask] == 0).all())
        x = x.detach()


def test_each_output_is_of_its_element_and_of_the_sum() -> None:
    # the codes are the elements and ρ(x, s) = s - 3x: worked by hand
    double = torch.float64
    rho = nn.Linear(2, 1, bias=False, dtype=double)
    with torch.no_grad():
        rho.weight.copy_(torch.tensor([[-3.0, 1.0]]))
    x = torch.tensor([[1.0], [2.0], [4.0]], dtype=double)
    for pool, code in (("sum", 7.0), ("mean", 7 / 3), ("max", 4.0)):
        made = EquivariantDeepSet(nn.Identity(), rho, pool)(x)[:, 0]
        torch.testing.assert_close(made, code - 3 * x[:, 0])


def test_equal_elements_get_equal_outputs() -> None:
    x = drawn(5, 3)
    x[3] = x[1]
    y = network(kind=EquivariantDeepSet)(x).detach()
    torch.testing.assert_close(y[3], y[1])
    assert float((y[0] - y[1]).abs().max()) > 1e-3


def test_refused() -> None:
    with pytest.raises(EmptyData, match="an empty set has no mean"):
        network("mean")(torch.zeros(0, 3).double())
    x, mask = pad_sets([torch.zeros(0, 3).double(), torch.ones(2, 3).double()])
    assert network()(x, mask).shape == (2, 2)
    with pytest.raises(EmptyData, match="an empty set has no maximum"):
        network("max")(x, mask)
    with pytest.raises(ShapeMismatch, match=r"a set is \[\.\.\., elements, features\]"):
        network()(torch.zeros(3).double())
    with pytest.raises(ShapeMismatch, match="the mask of sets"):
        network()(x, mask[:, :1])
    with pytest.raises(ShapeMismatch, match="phi must keep the elements"):
        DeepSet(nn.Flatten(0), nn.Identity())(torch.zeros(3, 2))
    with pytest.raises(InvalidInput, match="pool"):
        DeepSet(nn.Identity(), nn.Identity(), "median")  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match="phi"):
        DeepSet("x", nn.Identity())  # type: ignore[arg-type]
    with pytest.raises(EmptyData, match="no set to pad"):
        pad_sets([])
    with pytest.raises(InvalidType, match="a list of tensors"):
        pad_sets(torch.zeros(2, 3, 1))  # type: ignore[arg-type]
    with pytest.raises(ShapeMismatch, match="set 1 is"):
        pad_sets([torch.zeros(2, 1), torch.zeros(2)])
    assert pooled(torch.ones(3, 2)).tolist() == [3.0, 3.0]


# ------------------------------------------------------------------------------------ power sums


def test_power_sums_of_one_two_three() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    p = power_sum_encode(x)
    assert p.tolist() == [6.0, 14.0, 36.0]
    assert elementary_symmetric(p).tolist() == [6.0, 11.0, 6.0]
    found = power_sum_decode(p)
    torch.testing.assert_close(found.values, x, atol=1e-12, rtol=0)
    # J = [[1,1,1],[2,4,6],[3,12,27]]
    slopes = torch.tensor([[1.0, 1, 1], [2, 4, 6], [3, 12, 27]], dtype=torch.float64)
    wanted = p.norm() / x.norm() * torch.linalg.matrix_norm(torch.linalg.inv(slopes), 2)
    torch.testing.assert_close(found.condition, wanted)


@given(st.integers(1, 7), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_decoding_undoes_encoding_as_well_as_the_condition_allows(size: int, seed: int) -> None:
    x = drawn(size, seed=seed).sort().values
    found = power_sum_decode(power_sum_encode(x))
    # three roundings per operation, in sums of M terms
    allowed = 1e3 * torch.finfo(torch.float64).eps * float(found.condition) * float(x.norm())
    assert float((found.values - x).abs().max()) <= max(allowed, 1e-14)
    minors = [
        sum(float(torch.stack(c).prod()) for c in itertools.combinations(x.unbind(), k))
        for k in range(1, size + 1)
    ]
    torch.testing.assert_close(
        found.elementary, torch.tensor(minors, dtype=torch.float64), atol=1e-8, rtol=1e-6
    )


def test_conditions_grow_with_the_size() -> None:
    ends = [torch.linspace(0, 1, m, dtype=torch.float64) for m in (2, 4, 8, 12)]
    found = [float(power_sum_decode(power_sum_encode(x)).condition) for x in ends]
    assert all(b > 10 * a for a, b in itertools.pairwise(found))


def test_sets_in_batches_repeated_elements_and_refusals() -> None:
    x = drawn(2, 3, 4).sort(-1).values
    torch.testing.assert_close(
        power_sum_decode(power_sum_encode(x)).values, x, rtol=1e-6, atol=1e-6
    )
    twice = torch.tensor([2.0, 2.0, 5.0], dtype=torch.float64)
    torch.testing.assert_close(
        power_sum_decode(power_sum_encode(twice)).values, twice, rtol=1e-5, atol=1e-5
    )
    zeros = power_sum_decode(torch.zeros(3))
    assert zeros.values.tolist() == [0.0] * 3
    with pytest.raises(InvalidInput, match="no set of 2 real numbers"):
        power_sum_decode(torch.tensor([0.0, -1.0]))  # a sum of squares
    with pytest.raises(EmptyData, match="at least one number"):
        power_sum_encode(torch.zeros(0))
    with pytest.raises(InvalidType, match="real numbers"):
        power_sum_encode([1, 2])  # type: ignore[arg-type]
    with pytest.raises(ShapeMismatch, match="powers are of scalars"):
        Powers(2)(torch.zeros(3, 2))


def test_any_symmetric_function_by_power_sums() -> None:
    net = power_sum_network(lambda x: torch.stack([x.amax(-1), x.median(-1).values], -1), 5)
    x = drawn(6, 5)
    wanted = torch.stack([x.amax(1), x.median(1).values], 1)
    torch.testing.assert_close(net(x[..., None]), wanted, atol=1e-6, rtol=1e-6)


# ------------------------------------------------------------------------------------- collisions


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_short_codes_collide(size: int, nonlinearity: str) -> None:
    for d in range(1, size):
        phi = mlp([1, 12, d], nonlinearity, generator=d)
        found = set_collision(phi, size, starts=4)
        assert found is not None
        assert found.forced_error > 0.01
        assert found.distance < 1e-12
        for one in (found.first, found.second):
            assert float(one.min()) >= 0
            assert float(one.max()) <= 1
        assert found.values == (float(found.first.max()), float(found.second.max()))
        rho = mlp([d, 8, 1], "tanh", generator=7)
        net = DeepSet(phi, rho)
        errors = [abs(float(net(s[:, None])) - float(s.max())) for s in (found.first, found.second)]
        assert max(errors) >= found.forced_error - 1e-9
        # every set on the way has that code
        codes = net.code(found.path[..., None])
        torch.testing.assert_close(codes, codes[:1].expand_as(codes), atol=1e-9, rtol=1e-9)


def test_long_codes_do_not_and_degenerate_ones_do() -> None:
    assert set_collision(Powers(3), 3) is None
    assert set_collision(mlp([1, 16, 5], "tanh"), 4) is None
    # as long as one likes, but the same number over and over
    same = set_collision(lambda z: z.expand(-1, 6), 3)
    assert same is not None
    assert same.forced_error > 0.1


def test_elements_in_common_are_replaced() -> None:
    # the code does not move the largest element: it weighs as much as all others together
    found = set_collision(
        lambda z: torch.where(z > 0.9, 100 * z, z), 3, low=0.0, high=1.0, starts=40
    )
    assert found is not None
    assert found.values[0] != found.values[1]


def test_collisions_refuse() -> None:
    with pytest.raises(InvalidInput, match="is empty"):
        set_collision(nn.Identity(), 2, low=1.0, high=0.0)
    with pytest.raises(ShapeMismatch, match="phi must map scalars"):
        set_collision(lambda z: z.sum(), 2)


def test_the_forced_error_is_that_of_the_best_guess() -> None:
    found = set_collision(nn.Identity(), 2)
    assert found is not None
    tops = [float(s.max()) for s in (found.first, found.second)]
    guesses = torch.linspace(0, 1, 10_001).tolist()
    best = min(max(abs(g - t) for t in tops) for g in guesses)
    assert found.forced_error == pytest.approx(best, abs=1e-4)


def test_sets_of_zeros_and_single_precision() -> None:
    zeros = power_sum_decode(torch.zeros(2, 3))
    assert zeros.values.abs().max() == 0
    assert zeros.residual.tolist() == [0.0, 0.0]
    assert bool(zeros.condition.isinf().all())
    assert bool(power_sum_decode(torch.zeros(1)).condition.isinf())
    assert power_sum_network(lambda x: x[..., -1], 3)(torch.rand(3, 1)).dtype == torch.float32


def test_a_mask_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(ShapeMismatch, match="true or false for each element"):
        network()(drawn(4, 3), [True] * 4)  # type: ignore[arg-type]
