"""The explicit network that keeps its signs."""

import math

import pytest
import torch

from torchtheory.core.errors import InvalidInput
from torchtheory.robustness.attacks.gradient_steps import PGD
from torchtheory.robustness.bounds.certified import certified_radius
from torchtheory.robustness.exact import minimal_perturbation
from torchtheory.robustness.robust_memorizer import (
    largest_correlation,
    pair_flip_distance,
    robust_memorizer,
)


def drawn(m, d, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(m, d, generator=g, dtype=torch.float64)
    return x, torch.randint(0, 2, (m,), generator=g).double() * 2 - 1


@pytest.mark.parametrize(("m", "d"), [(2, 3), (10, 30), (40, 20)])
def test_the_samples_are_fitted_and_the_radius_is_the_exact_distance(m, d):
    x, y = drawn(m, d)
    made = robust_memorizer(x, y)
    out = made.network(made.samples)[:, 0]
    torch.testing.assert_close(out, y, rtol=0, atol=1e-11)
    torch.testing.assert_close(made.samples.norm(dim=1), torch.full_like(y, math.sqrt(d)))
    assert made.correlation == largest_correlation(x)
    assert math.isclose(made.radius, (1 - made.correlation) * math.sqrt(d) / 2)
    # towards the center of the sphere the own unit falls silent exactly there
    before, after = (made.samples * (1 - r * made.radius / math.sqrt(d)) for r in (0.999, 1.001))
    assert bool((y * made.network(before)[:, 0] > 0).all())
    assert made.network(after).count_nonzero() == 0


def test_attacks_inside_of_the_radius_fail_and_linear_bounds_certify_it():
    x, y = drawn(12, 40, 1)
    made = robust_memorizer(x, y)
    classes = (y > 0).long()
    attack = PGD(0.999 * made.radius, 40, norm="2", restarts=3)
    assert attack(made.network, made.samples, classes).success_rate == 0
    certified = certified_radius(made.network, made.samples, classes, "2")
    torch.testing.assert_close(
        certified, torch.full_like(certified, made.radius), rtol=1e-3, atol=0
    )


@pytest.mark.parametrize("c", [-1.0, -0.3, 0.0, 0.7])
def test_two_samples_lose_their_sign_at_the_radius_and_flip_half_way(c):
    x = torch.tensor([[1.0, 0.0], [c, math.sqrt(1 - c**2)]], dtype=torch.float64)
    made = robust_memorizer(x, torch.tensor([1.0, -1.0], dtype=torch.float64))
    exact = minimal_perturbation(made.network, made.samples[0], 1, "2", method="cells").distance
    assert math.isclose(exact, made.radius, rel_tol=1e-6)
    way = made.samples[1] - made.samples[0]
    flip = pair_flip_distance(2, c) / float(way.norm())
    assert math.isclose(flip, 0.5)
    near, far = made.samples[0] + (flip - 1e-3) * way, made.samples[0] + (flip + 1e-3) * way
    assert float(made.network(near)) > 0 > float(made.network(far))


def test_a_larger_correlation_may_be_given_and_a_smaller_one_is_refused():
    x, y = drawn(5, 50, 2)
    made = robust_memorizer(x, y, correlation=0.9)
    assert math.isclose(made.radius, 0.05 * math.sqrt(50))
    torch.testing.assert_close(made.network(made.samples)[:, 0], y)
    with pytest.raises(InvalidInput, match="have the correlation"):
        robust_memorizer(x, y, correlation=-0.9)


def test_samples_that_cannot_be_told_apart_are_refused():
    x, y = drawn(3, 4)
    with pytest.raises(InvalidInput, match="same ray"):
        robust_memorizer(torch.cat([x, 2 * x[:1]]), torch.cat([y, y[:1]]))
    with pytest.raises(InvalidInput, match="is 0"):
        robust_memorizer(torch.cat([x, 0 * x[:1]]), torch.cat([y, y[:1]]))
    with pytest.raises(InvalidInput, match="at least two"):
        robust_memorizer(x[:1], y[:1])
