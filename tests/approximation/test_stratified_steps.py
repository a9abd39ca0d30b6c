"""Steps drawn one from every stratum."""

from __future__ import annotations

import math

import pytest
import torch

from torchtheory.approximation.barron.stratified_steps import half_spaces, steps_in_strata
from torchtheory.core.errors import InvalidInput, ShapeMismatch


def threshold(directions: torch.Tensor, thresholds: torch.Tensor) -> torch.Tensor:
    return thresholds


@pytest.mark.parametrize("d", [1, 2, 3])
def test_half_spaces_are_uniform(d: int) -> None:
    side = (torch.arange(40, dtype=torch.float64) + 0.5) / 40
    u = torch.cartesian_prod(*[side] * d).reshape(-1, d)
    directions, thresholds = half_spaces(u)
    assert torch.allclose(directions.norm(dim=1), torch.ones(len(u)).double())
    assert float(thresholds.mean()) == pytest.approx(0, abs=1e-12)
    # moments of the uniform measure on the sphere
    if d > 1:
        assert torch.allclose(directions.mean(0), torch.zeros(d).double(), atol=1e-12)
        assert torch.allclose(
            directions.T @ directions / len(u), torch.eye(d).double() / d, atol=1e-3
        )


@pytest.mark.parametrize("d", [1, 2, 3])
def test_the_mean_of_many_cells_is_the_bowl(d: int) -> None:
    x = torch.randn(30, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = x / x.norm(dim=1, keepdim=True).clamp(min=1)
    steps = steps_in_strata(threshold, {1: 4000, 2: 120, 3: 40}[d], d, generator=1)
    expected = (x.square().sum(1) / d - 1) / 4
    assert float((steps(x).mean(1) - expected).abs().max()) < 2e-3


def test_one_step_a_cell() -> None:
    steps = steps_in_strata(threshold, 10, 1, generator=0)
    cells = ((steps.thresholds + 1) / 2 * 10).floor()
    assert cells.tolist() == list(range(10))
    plain = steps_in_strata(threshold, 10, 1, strata=False, generator=0)
    assert len(set(((plain.thresholds + 1) / 2 * 10).floor().tolist())) < 10
    both = steps_in_strata(threshold, 5, 2, generator=0)
    angle = torch.atan2(both.directions[:, 1], both.directions[:, 0]) % (2 * math.pi)
    pairs = zip((angle / (2 * math.pi) * 5).floor(), ((both.thresholds + 1) * 2.5).floor(),
                strict=True)  # fmt: skip
    assert len({(int(a), int(b)) for a, b in pairs}) == 25


def test_the_same_seed_draws_the_same() -> None:
    before = torch.get_rng_state()
    one, other = (steps_in_strata(threshold, 4, 3, generator=7) for _ in range(2))
    assert torch.equal(one.directions, other.directions)
    assert torch.equal(torch.get_rng_state(), before)


def test_refused() -> None:
    with pytest.raises(ShapeMismatch, match="d = 1, 2 or 3"):
        half_spaces(torch.rand(3, 4))
    with pytest.raises(InvalidInput, match="between 0 and 1"):
        half_spaces(torch.full((2, 2), math.nan))
    with pytest.raises(InvalidInput, match="d <= 3"):
        steps_in_strata(threshold, 3, 4)
    with pytest.raises(InvalidInput, match="more than"):
        steps_in_strata(threshold, 1000, 3)
    with pytest.raises(InvalidInput):
        steps_in_strata(threshold, 0, 1)
