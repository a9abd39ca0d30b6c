"""What judges explanations: by hand where the truth is known, and refusals."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch, UnknownName
from torchtheory.core.intervals import Interval
from torchtheory.explanation.by_feature import (
    correlation,
    feature_totals,
    rank_correlation,
    sample_mean,
)
from torchtheory.explanation.composites import preset
from torchtheory.explanation.cost import explainer_cost
from torchtheory.explanation.explanation import Explanation
from torchtheory.explanation.judging.evaluation import evaluate_explanations
from torchtheory.explanation.judging.localization import localization
from torchtheory.explanation.judging.pixel_flipping import pixel_flipping
from torchtheory.explanation.judging.property_scores import explanation_scores
from torchtheory.explanation.judging.sanity import RandomizationCheck, randomization_check
from torchtheory.explanation.judging.stability import explanation_stability
from torchtheory.explanation.lrp import lrp
from torchtheory.explanation.methods.gradients import (
    gradient_times_input,
    sensitivity,
    smooth_gradient,
)
from torchtheory.explanation.methods.occlusion import occlusion
from torchtheory.models.untouched import ModelState
from torchtheory.nets.feedforward import dense, mlp


def linear(w: list[float], b: float = 0.0) -> nn.Sequential:
    return nn.Sequential(
        dense(torch.tensor([w], dtype=torch.float64), torch.tensor([b], dtype=torch.float64))
    )


def normal(*shape: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=draw)


# --------------------------------------------------------------------------------- correlations


def test_rank_correlation_is_that_of_scipy_also_with_ties() -> None:
    a, b = normal(6, 30), normal(6, 30, seed=1)
    a[:, :10] = 0.0
    b[:, 5:15] = 0.0
    wanted = [stats.spearmanr(p, q).statistic for p, q in zip(a, b, strict=True)]
    assert torch.allclose(rank_correlation(a, b), torch.tensor(wanted, dtype=torch.float64))


def test_a_constant_map_has_no_order() -> None:
    assert rank_correlation(torch.ones(1, 4), torch.rand(1, 4)).item() == 0.0
    assert correlation(torch.ones(1, 4), torch.rand(1, 4)).item() == 0.0


def test_one_sample_says_nothing_about_its_error() -> None:
    found = sample_mean(torch.tensor([3.0]), 0.95)
    assert (found.estimate, found.low, found.high) == (3.0, -math.inf, math.inf)


# ------------------------------------------------------------------------------- pixel flipping


def test_flipping_a_linear_model_by_hand() -> None:
    net, x = linear([1.0, -2.0, 3.0], b=0.5), torch.tensor([[2.0, 1.0, 1.0]], dtype=torch.float64)
    made = gradient_times_input(net, x)  # 2, -2, 3 with f = 3.5
    most = pixel_flipping(net, x, made)
    assert most.scores[0].tolist() == [3.5, 0.5, -1.5, 0.5]
    assert most.areas.item() == pytest.approx((3.0 + 5.0 + 3.0) / 3)
    least = pixel_flipping(net, x, made, order="least")
    assert least.scores[0].tolist() == [3.5, 5.5, 3.5, 0.5]
    assert most.removed.tolist() == [0, 1, 2, 3]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_no_order_beats_the_contributions_of_a_linear_model(seed: int) -> None:
    d, x = 5, normal(1, 5, seed=seed)
    net = linear(normal(d, seed=seed + 1).tolist())
    best = pixel_flipping(net, x, gradient_times_input(net, x), steps=d).areas
    orders = torch.tensor(list(itertools.permutations(range(d))), dtype=torch.float64)
    every = pixel_flipping(net, x.expand(len(orders), d), orders, steps=d).areas
    assert float(every.max()) == pytest.approx(float(best), abs=1e-10)


def test_channels_of_a_pixel_go_together() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(2 * 4, 1, bias=False)).double()
    x = torch.rand(3, 2, 2, 2, dtype=torch.float64)
    made = gradient_times_input(net, x)
    found = pixel_flipping(net, x, made, steps=4)
    totals = feature_totals(made.relevance)
    falling = totals.sort(1, descending=True).values.cumsum(1)
    wanted = torch.cat([net(x).detach(), net(x).detach() - falling], 1)
    assert torch.allclose(found.scores, wanted)


def test_patches_go_as_a_whole() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 1, bias=False)).double()
    x = torch.rand(2, 1, 4, 4, dtype=torch.float64)
    found = pixel_flipping(net, x, gradient_times_input(net, x), patch=2)
    assert found.removed.tolist() == [0, 1, 2, 3, 4]
    assert torch.allclose(found.scores[:, -1], torch.zeros(2, dtype=torch.float64), atol=1e-12)


def test_words_are_taken_away_with_their_embeddings() -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(9, 3)
            self.out = nn.Linear(3, 2)

        def forward(self, t: Tensor) -> Any:
            return self.out(self.words(t).sum(1))

    net, words = Bag().double(), torch.tensor([[1, 2, 3], [4, 5, 6]])
    made = gradient_times_input(net, words)
    found = pixel_flipping(net, words, made)
    assert found.scores.shape == (2, 4)
    bias = net.out.bias.detach()[made.classes]
    assert torch.allclose(found.scores[:, -1], bias)


def test_steps_fewer_than_features_end_with_nothing() -> None:
    net, x = linear(normal(10).tolist()), normal(4, 10, seed=3)
    found = pixel_flipping(net, x, x, steps=3)
    assert found.removed.tolist() == [0, 3, 7, 10]
    assert found.shares[-1] == 1
    assert torch.allclose(found.scores[:, -1], torch.zeros(4, dtype=torch.float64))


def test_a_random_order_is_half_way_and_repeats_by_its_seed() -> None:
    net, x = linear([1.0] * 8), torch.ones(300, 8, dtype=torch.float64)
    x = x * (0.5 + torch.rand(300, 8, generator=torch.Generator().manual_seed(0)).double())
    found = pixel_flipping(net, x, x, order="random", generator=5)
    ratio = found.areas / found.scores[:, 0]
    low, high = sample_mean(ratio, 0.999).low, sample_mean(ratio, 0.999).high
    assert low < 9 / 16 < high
    assert high - low < 0.02
    again = pixel_flipping(net, x, x, order="random", generator=5)
    assert torch.equal(found.scores, again.scores)


def test_the_explained_classes_are_watched() -> None:
    net, x = mlp([4, 6, 3], "relu", generator=0), normal(5, 4)
    made = gradient_times_input(net, x, target=2)
    assert torch.allclose(pixel_flipping(net, x, made).scores[:, 0], net(x)[:, 2].detach())


def test_relevance_of_another_shape_is_refused() -> None:
    net, x = linear([1.0, 2.0]), normal(3, 2)
    with pytest.raises(ShapeMismatch, match="shape of the inputs"):
        pixel_flipping(net, x, torch.ones(3, 5))
    with pytest.raises(ShapeMismatch, match="3 samples"):
        pixel_flipping(net, x, torch.ones(2, 2))
    with pytest.raises(InvalidType, match="Explanation"):
        pixel_flipping(net, x, "most")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="order"):
        pixel_flipping(net, x, x, order="up")  # type: ignore[arg-type]


def test_the_model_is_left_alone() -> None:
    net, x = mlp([4, 6, 3], "relu", generator=0), normal(5, 4)
    before = ModelState(net)
    evaluate_explanations(net, x, gradient_times_input)
    assert not before.changes(net)


# ---------------------------------------------------------------------------------- properties


def test_scores_of_the_true_explanation_of_a_linear_model() -> None:
    net, x = linear([1.0, -2.0, 0.5]), normal(20, 3)
    found = explanation_scores(net, x, gradient_times_input(net, x))
    assert float(found.gaps.max()) < 1e-10
    assert found.sign is not None
    assert found.sign.estimate == 1.0
    assert found.faithfulness.low > 0


def test_sensitivity_fails_all_three_properties() -> None:
    net, x = linear([1.0, -2.0, 0.5]), normal(40, 3)
    found = explanation_scores(net, x, sensitivity(net, x))
    assert found.sign is not None
    assert found.conservation.low > 0.1
    assert found.interaction == pytest.approx(0.0, abs=1e-12)
    assert found.sign.high < 0.9


def test_the_gap_is_the_bias() -> None:
    net, x = linear([1.0, 1.0], b=3.0), torch.ones(1, 2, dtype=torch.float64)
    assert explanation_scores(net, x, x).gaps.item() == pytest.approx(3 / 5)


def test_a_model_that_looks_at_nothing_has_no_signs() -> None:
    net, x = linear([0.0, 0.0], b=1.0), normal(4, 2)
    assert explanation_scores(net, x, x).sign is None


# -------------------------------------------------------------------------------- localization


def test_localization_by_hand() -> None:
    relevance = torch.tensor([[[[4.0, 1.0], [-1.0, 2.0]]], [[[1.0, 3.0], [0.0, 0.0]]]])
    mask = torch.tensor([[True, False], [False, True]])
    found = localization(relevance, mask)
    assert found.shares.tolist() == pytest.approx([6 / 7, 1 / 4])
    assert found.mass is not None
    assert found.mass.estimate == pytest.approx((6 / 6 + 1 / 4) / 2)
    assert found.rank.estimate == pytest.approx((1.0 + 0.5) / 2)
    assert found.pointing.estimate == 0.5
    assert found.area == 0.5


def test_as_many_most_relevant_features_count_as_the_mask_has() -> None:
    found = localization(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([True, False, True]))
    assert found.rank.estimate == 0.5


def test_a_mask_for_each_sample() -> None:
    relevance = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    found = localization(relevance, torch.tensor([[True, False], [False, True]]))
    assert found.share.estimate == found.rank.estimate == 1.0


def test_relevance_that_adds_up_to_nothing_has_no_mass() -> None:
    found = localization(torch.tensor([[1.0, -1.0], [-2.0, 2.0]]), torch.tensor([True, False]))
    assert found.mass is None
    assert found.share.estimate == 0.5


def test_masks_that_say_nothing_are_refused() -> None:
    with pytest.raises(EmptyData, match="any sample"):
        localization(torch.ones(0, 3), torch.ones(3, dtype=torch.bool))
    with pytest.raises(EmptyData, match="sample 0 is empty"):
        localization(torch.ones(2, 3), torch.zeros(3, dtype=torch.bool))
    with pytest.raises(ShapeMismatch, match=r"\[2, 2\] or \[1, 2, 2\]"):
        localization(torch.ones(1, 3, 2, 2), torch.ones(3, 2, 2, dtype=torch.bool))
    with pytest.raises(InvalidType, match="True and False"):
        localization(torch.ones(2, 3), torch.ones(3))
    with pytest.raises(EmptyData, match="positive"):
        localization(-torch.ones(2, 3), torch.ones(3, dtype=torch.bool))


# ---------------------------------------------------------------------------- drawing anew


def the_input(model: nn.Module, x: Any, target: Any = None) -> Explanation:
    return Explanation(x, x.sum(1), "the input")


@pytest.mark.parametrize("order", ["cascading", "independent"])
def test_a_method_that_ignores_the_model_fails_and_gradients_pass(order: Any) -> None:
    net, x = mlp([12, 20, 20, 4], "relu", generator=0), normal(30, 12)
    blind = randomization_check(net, x, the_input, order=order)
    assert blind.layers == ("4", "2", "0")
    assert [round(s.estimate, 9) for s in blind.similarity] == [1.0, 1.0, 1.0]
    assert blind.passed is False
    seeing = randomization_check(net, x, gradient_times_input, order=order)
    assert seeing.passed is True
    assert len(seeing.similarity) == 3


def test_what_is_multiplied_by_the_input_keeps_its_order_without_signs() -> None:
    net, x = mlp([30, 20, 4], "relu", generator=0), normal(30, 30)
    x[:, ::2] = 0.0  # no relevance there, whatever the weights
    signed = randomization_check(net, x, gradient_times_input)
    sizes = randomization_check(net, x, gradient_times_input, absolute=True)
    assert signed.last.high < 0.3
    assert sizes.last.low > 0.7


def test_the_class_stays_that_of_the_trained_model() -> None:
    net, x = mlp([4, 8, 3], "relu", generator=0), normal(6, 4)
    asked: list[Tensor] = []

    def spy(model: nn.Module, x: Any, target: Any = None) -> Explanation:
        asked.append(target)
        return gradient_times_input(model, x, target)

    randomization_check(net, x, spy)
    assert len(asked) == 3
    assert all(torch.equal(t, net(x).argmax(1)) for t in asked)


def test_an_explanation_without_an_order_is_not_said_to_come_from_the_weights() -> None:
    net = mlp([4, 8, 3], "relu", generator=0)
    check = randomization_check(net, torch.zeros(6, 4).double(), gradient_times_input)
    assert check.passed is None
    assert (check.last.low, check.last.high) == (-1.0, 1.0)
    some = torch.cat([torch.zeros(30, 4).double(), normal(30, 4)])
    found = randomization_check(net, some, gradient_times_input, generator=1)
    assert found.last.trials == 30  # zeros have no part in the mean


@pytest.mark.parametrize(
    ("low", "high", "passed"), [(0.6, 0.70, True), (0.71, 0.8, False), (0.70, 0.71, None)]
)
def test_half_of_the_variance_of_ranks_is_the_limit(
    low: float, high: float, passed: bool | None
) -> None:
    last = Interval((low + high) / 2, low, high, 0.95, 9, "by hand")
    assert RandomizationCheck("cascading", (), (), last).passed is passed


def test_samples_that_say_the_same_do_not_hide_that_draws_differ() -> None:
    net, x = mlp([20, 1], "relu", generator=0), normal(50, 20)
    check = randomization_check(net, x, sensitivity, layers=(), draws=3, generator=0)
    assert check.last.low + 0.01 < check.last.estimate < check.last.high - 0.01


def test_draws_widen_the_interval_and_names_are_checked() -> None:
    net, x = mlp([4, 8, 3], "relu", generator=0), normal(40, 4)
    one = randomization_check(net, x, gradient_times_input, layers=())
    many = randomization_check(net, x, gradient_times_input, layers=(), draws=3)
    assert one.similarity == ()
    assert many.last.high - many.last.low > 0
    with pytest.raises(UnknownName, match="head"):
        randomization_check(net, x, gradient_times_input, layers=["head"])


# ------------------------------------------------------------------------------------ stability


def test_the_lipschitz_constant_of_a_linear_explanation() -> None:
    found = explanation_stability(linear([2.0, -2.0, 2.0]), normal(7, 3), gradient_times_input)
    assert torch.allclose(found.lipschitz, torch.full((7,), 2.0, dtype=torch.float64))
    assert found.change.estimate > 0


def test_moved_inputs_stay_in_the_range_of_the_data() -> None:
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).double()
    x = normal(5, 2, 8, 8).abs().clamp(max=1)
    x[:, :, :3], x[:, 1] = 0.0, 3 * x[:, 1]
    x[0, :, 7, 7], x[1, 1, 7, 7] = 1.0, 3.0
    seen = []

    def watched(model: nn.Module, given: Tensor, target: Any) -> Explanation:
        seen.append(given)
        return lrp(model, given, target, preset("image_cnn", low=0.0, high=bounds))

    bounds = torch.tensor([1.0, 3.0], dtype=torch.float64)[:, None, None]
    judged = evaluate_explanations(net, x, {"box": watched}, generator=0)
    stability = judged["box"].stability
    assert stability is not None
    assert stability.change.estimate > 0
    lengths = {round(float((t - x).flatten(1).norm(dim=1)[2] / x[2].norm()), 9) for t in seen}
    assert lengths == {0.0, 0.01}  # entries that would leave the box move the other way, as far


def test_the_same_number_everywhere_has_no_range() -> None:
    x = torch.ones(3, 2, dtype=torch.float64)
    found = explanation_stability(linear([2.0, 2.0]), x, gradient_times_input)
    assert torch.allclose(found.changes, torch.full((3,), 0.01, dtype=torch.float64))


def test_words_cannot_be_moved() -> None:
    net = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(4, 2))
    with pytest.raises(InvalidType, match="words"):
        explanation_stability(net, torch.tensor([[1, 2]]), gradient_times_input)


# ------------------------------------------------------------------------------- cost and table


def test_seconds_are_those_of_one_explanation_and_the_fastest_call_counts() -> None:
    taken = iter([100.0, 9.0, 6.0, 12.0])  # the first call is not timed

    def method(model: nn.Module, x: Tensor, target: Any) -> Explanation:
        return Explanation(x, x.sum(1), "by hand", seconds=next(taken))

    (cost,) = explainer_cost(linear([1.0, 1.0]), normal(3, 2), {"by hand": method})
    assert (cost.seconds, cost.per_second, cost.samples) == (2.0, 0.5, 3)


def test_passes_are_counted() -> None:
    net, x = mlp([6, 8, 2], "relu", generator=0), normal(3, 6)
    found = {
        c.method: c
        for c in explainer_cost(
            net, x, {"s": partial(smooth_gradient, samples=7), "o": occlusion}, repetitions=1
        )
    }
    assert found["s"].backwards == 7
    assert (found["o"].forwards, found["o"].backwards) == (7, 0)
    assert found["o"].samples == 3
    assert found["o"].per_second > 0


def test_the_table_has_a_row_per_method_and_agreement_is_symmetric() -> None:
    net, x = mlp([6, 8, 3], "relu", generator=0), normal(12, 6)
    mask = torch.tensor([True, True, False, False, False, False])
    methods = {"gradient": gradient_times_input, "occlusion": occlusion, "input": the_input}
    found = evaluate_explanations(net, x, methods, mask=mask)
    assert [row[0] for row in found.table.rows] == list(methods)
    assert all(len(row) == len(found.table.columns) for row in found.table.rows)
    assert found.best in ("gradient", "occlusion")
    assert found["gradient"].localization is not None
    assert found["input"].randomization.passed is False
    one, other = found.agreement("gradient", "occlusion"), found.agreement("occlusion", "gradient")
    assert one.estimate == pytest.approx(other.estimate)
    assert found["gradient"].gain > 0


def test_no_method_is_refused() -> None:
    with pytest.raises(EmptyData, match="no method"):
        evaluate_explanations(linear([1.0]), normal(3, 1), {})
    with pytest.raises(InvalidType, match="method"):
        evaluate_explanations(linear([1.0]), normal(3, 1), "lrp")  # type: ignore[arg-type]


def test_a_method_returns_an_explanation() -> None:
    with pytest.raises(InvalidType, match="'mine' must return an Explanation"):
        evaluate_explanations(linear([1.0, 2.0]), normal(3, 2), {"mine": lambda m, x, t: x})


class Largest(TorchDispatchMode):
    """The most entries that a tensor had inside the block."""

    entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.entries = max(self.entries, made.numel())
        return made


def test_effects_of_single_features_take_no_table_of_all_pairs() -> None:
    net, x = nn.Linear(3000, 1), torch.ones(1, 3000)
    with Largest() as largest:
        explanation_scores(net, x, x)
    assert 3000 < largest.entries < 3000**2 / 10


def test_what_is_no_method_is_refused_wherever_methods_are_judged() -> None:
    net, x = nn.Linear(3, 1), torch.randn(6, 3)

    def raw(model: nn.Module, x: Tensor, target: object) -> Tensor:
        return x

    for judge in (randomization_check, explanation_stability, explainer_cost):
        with pytest.raises(InvalidType, match="must return an Explanation"):
            judge(net, x, raw)  # type: ignore[operator]
    with pytest.raises(InvalidType, match="function"):
        randomization_check(net, x, "lrp")  # type: ignore[arg-type]
