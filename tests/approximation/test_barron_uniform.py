"""Largest errors of sampled networks, and classifiers with a Barron boundary."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from torchtheory.approximation.barron.boundaries import barron_classifier, boundary_score
from torchtheory.approximation.barron.sampled_networks import Steps, ball_points, draw_steps
from torchtheory.approximation.barron.spectra import GaussianBump, PlaneWaves
from torchtheory.approximation.barron.uniform import (
    additive_extremes,
    additive_sup_error,
    additive_waves,
)
from torchtheory.approximation.certificates import network_size
from torchtheory.core.errors import InvalidInput, ShapeMismatch


def test_one_step_by_hand() -> None:
    """One step at 1/2 of height 2 against sin x on [-1, 1]: the worst is just behind the step."""
    one = Steps(
        torch.ones(1, 1).double(), torch.tensor([0.5]).double(), torch.tensor([2.0]).double()
    )
    above, below = additive_extremes(one, additive_waves(1))
    assert above.cube == pytest.approx(2 - math.sin(0.5))
    assert below.cube == pytest.approx(math.sin(0.5))  # at the step itself it is still 0
    assert additive_sup_error(one, additive_waves(1)).cube == above.cube


@pytest.mark.parametrize("dimension", [2, 3])
def test_supremum_against_a_fine_grid(dimension: int) -> None:
    """Both sets, with a wave that turns inside the interval."""
    waves = PlaneWaves(
        torch.tensor([0.7, -0.4, 0.5][:dimension]).double(),
        torch.diag(torch.tensor([2.5, 4.0, -1.5][:dimension])).double(),
        torch.tensor([0.3, 1.0, -0.2][:dimension]).double(),
    )
    steps = draw_steps(waves, 12, generator=5)
    found = additive_sup_error(steps, waves, parts=400)
    axis = torch.linspace(-1, 1, 801 if dimension == 2 else 161).double()
    x = torch.cartesian_prod(*[axis] * dimension)
    apart = (steps(x).mean(1) - (waves(x) - waves.at_origin())).abs()
    inside = apart[x.norm(dim=1) <= 1].max()
    assert float(apart.max()) <= found.cube + 1e-9
    assert float(apart.max()) > 0.97 * found.cube
    assert float(inside) <= found.ball_high + 1e-9
    assert float(inside) > 0.95 * found.ball_low
    assert found.ball_low <= found.ball_high <= found.cube


@pytest.mark.parametrize("seed", [15, 17, 56, 57])
def test_no_point_of_the_ball_exceeds_the_upper_number(seed: int) -> None:
    """Drawn so that the worst point is where a coordinate's share ends, not at a threshold."""
    for d in (2, 3):
        waves = additive_waves(d)
        steps = draw_steps(waves, 30, generator=seed)
        x = ball_points(20_000, d, generator=seed)
        found = additive_sup_error(steps, waves)
        assert float((steps(x).mean(1) - waves(x)).abs().max()) <= found.ball_high + 1e-9


def test_more_parts_close_the_gap() -> None:
    waves = additive_waves(6)
    steps = draw_steps(waves, 300, generator=1)
    coarse, fine = (additive_sup_error(steps, waves, parts=p) for p in (16, 512))
    assert coarse.ball_low <= fine.ball_low <= fine.ball_high <= coarse.ball_high
    assert fine.ball_high - fine.ball_low < 0.05 * fine.ball_low


def test_waves_across_the_axes_are_refused() -> None:
    slanted = PlaneWaves(torch.ones(1).double(), torch.ones(1, 2).double())
    steps = draw_steps(slanted, 5, generator=0)
    with pytest.raises(InvalidInput, match="along the axes"):
        additive_sup_error(steps, slanted)
    with pytest.raises(ShapeMismatch, match="dimensions"):
        additive_sup_error(steps, additive_waves(3))


def test_score_is_the_distance_from_the_graph() -> None:
    bump = GaussianBump(3)
    made = barron_classifier(bump, 25, generator=4)
    x = ball_points(50, 3, generator=0)
    heights = [made.score(torch.cat([x, torch.full((50, 1), t).double()], 1)) for t in (-1.0, 2.0)]
    torch.testing.assert_close(heights[1] - heights[0], torch.full((50, 1), 3.0).double())
    assert network_size(made.score).units == 4 * 25 + 2


def test_mistakes_stay_below_the_bound_on_average() -> None:
    bump = GaussianBump(2, 0.5)
    generator = torch.Generator().manual_seed(0)
    x = ball_points(2000, 2, generator=generator)
    t = 4 * torch.rand(2000, generator=generator).double() - 1.5
    right = t > bump(x)
    shares = []
    for n in (16, 64):
        made = [barron_classifier(bump, n, generator=generator) for _ in range(30)]
        wrong = [(m(torch.cat([x, t[:, None]], 1)) != right).double().mean() for m in made]
        shares.append(float(torch.stack(wrong).mean()))
        assert shares[-1] <= made[0].mistakes_bound(1 / 4)
    assert all(a > 1.5 * b for a, b in itertools.pairwise(shares))


def test_points_of_another_dimension_are_refused() -> None:
    made = barron_classifier(GaussianBump(2), 4, generator=0)
    with pytest.raises(ShapeMismatch, match=r"\[m, 3\]"):
        made(torch.zeros(5, 2).double())
    net = torch.nn.Sequential(torch.nn.Linear(2, 1).double())
    points = torch.rand(7, 3).double()
    torch.testing.assert_close(boundary_score(net)(points), points[:, 2:] - net(points[:, :2]))
