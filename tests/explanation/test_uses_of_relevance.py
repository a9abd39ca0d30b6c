"""Manipulated and shattered explanations, pruning, tuning, Clever Hans."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.core.intervals import Interval
from torchtheory.data.real import digits
from torchtheory.explanation.by_feature import correlation, feature_totals
from torchtheory.explanation.judging.clever_hans import Place, clever_hans
from torchtheory.explanation.judging.heatmap_clusters import coarse, heatmap_clusters
from torchtheory.explanation.judging.pixel_flipping import pixel_flipping
from torchtheory.explanation.judging.shattering import shattering
from torchtheory.explanation.manipulation import Smoothed, manipulate_explanation
from torchtheory.explanation.methods.gradients import gradient_times_input, sensitivity
from torchtheory.explanation.pruning import prune_by_relevance, pruning_curves, unit_relevances
from torchtheory.explanation.rules import AlphaBeta, Epsilon, Gamma
from torchtheory.explanation.tuning import tune
from torchtheory.models.untouched import ModelState
from torchtheory.nets.activations.table import as_layer
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.tracing.network_size import network_size


def normal(*shape: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=draw)


def fit(model: Any, x: Tensor, y: Tensor, steps: int = 60) -> Any:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


# ----------------------------------------------------------------------------------- manipulation


def test_the_output_stays_and_the_heatmap_goes_where_it_is_sent() -> None:
    net = mlp([48, 64, 64, 3], "relu", generator=1)
    x = normal(3, 3, 4, 4)
    flat = nn.Sequential(nn.Flatten(), net)
    foreign = feature_totals(normal(3, 3, 4, 4, seed=5))
    found = manipulate_explanation(flat, x, foreign, steps=150)
    assert float(found.output_change.max()) < 1e-3
    assert float((found.correlation - found.before).min()) > 0.3
    classes = flat(x).argmax(1)
    own = gradient_times_input(flat, found.inputs, classes)
    assert torch.allclose(own.relevance, found.relevance)
    assert torch.allclose(found.correlation, correlation(feature_totals(own.relevance), foreign))
    moved = (found.inputs - x).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)
    assert torch.allclose(moved, found.distance)


def test_a_linear_model_cannot_be_turned() -> None:
    # gradient times input still moves with the input, but no foreign map is reached without outputs
    net = nn.Sequential(dense(normal(2, 6)))
    with pytest.raises(UnsupportedModel, match="does not change"):
        manipulate_explanation(net, normal(2, 6, seed=1), normal(2, 6, seed=2), steps=5)


def test_softplus_stands_for_relu_wherever_it_is_called() -> None:
    x = normal(5)
    wanted = F.softplus(x, beta=2.0)
    ways = [F.relu, torch.relu, Tensor.relu, Tensor.relu_]
    models = [nn.ReLU(), nn.ReLU(inplace=True), *map(as_layer, ways)]
    assert all(torch.equal(Smoothed(m, 2.0)(x.clone()), wanted) for m in models)
    assert torch.equal(F.relu(x), x.clamp(min=0))


def test_a_foreign_map_is_a_tensor() -> None:
    with pytest.raises(InvalidType, match="foreign map is a tensor"):
        manipulate_explanation(network(0), torch.ones(1, 1, 8, 8), [1.0])  # type: ignore[arg-type]


def test_manipulation_needs_a_map_of_the_right_shape() -> None:
    net = mlp([4, 8, 2], "relu", generator=0)
    with pytest.raises(ShapeMismatch, match="foreign map"):
        manipulate_explanation(net, normal(3, 4), normal(3, 5))
    with pytest.raises(InvalidType, match="real numbers"):
        manipulate_explanation(net, torch.ones(3, 4, dtype=torch.long), normal(3, 4))


# ------------------------------------------------------------------------------------- shattering


def test_the_correlation_of_gradients_falls_with_depth() -> None:
    ends = torch.linalg.qr(normal(40, 2))[0].T
    other = math.cos(0.4) * ends[:1] + math.sin(0.4) * ends[1:]

    def at(depth: int) -> float:
        found = []
        for seed in range(8):
            draw = torch.Generator().manual_seed(seed)
            sizes = [40, *[60] * depth]
            layers: list[nn.Module] = []
            for a, b in itertools.pairwise(sizes):
                w = torch.randn(b, a, dtype=torch.float64, generator=draw) * math.sqrt(2 / a)
                layers += [dense(w), nn.ReLU()]
            last = torch.randn(1, 60, dtype=torch.float64, generator=draw)
            net = nn.Sequential(*layers, dense(last))
            way = shattering(net, ends[:1], other, sensitivity, points=2)["sensitivity"]
            found.append(float(way.mean[1]))
        return sum(found) / len(found)

    assert at(1) > 0.75
    assert at(12) < 0.5


def test_lags_are_averaged_over_the_way() -> None:
    net = nn.Sequential(dense(torch.ones(1, 3, dtype=torch.float64)))
    x, other = normal(1, 3), normal(1, 3, seed=1)
    way = shattering(net, x, other, gradient_times_input, points=3)["gradient times input"]
    maps = torch.stack([x[0], (x[0] + other[0]) / 2, other[0]])
    first = correlation(maps[:2], maps[1:]).mean()
    assert way.mean.tolist() == pytest.approx([1.0, float(first), correlation(x, other).item()])
    assert way.at(0.5).estimate == pytest.approx(float(first))


def test_one_target_for_all_lines_and_one_for_each() -> None:
    net, x = mlp([4, 8, 3], "relu", generator=0), normal(6, 4)

    def curve(target: Any) -> Tensor:
        found = shattering(net, x[:3], x[3:], gradient_times_input, target, points=5)
        return found["gradient times input"].correlations

    weights = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)  # as many as there are lines
    wanted = curve(1)
    for same in (torch.tensor(1), torch.ones(3).long(), weights, weights.expand(3, 3)):
        assert torch.allclose(curve(same), wanted)


def test_lines_need_two_ends_of_one_shape() -> None:
    with pytest.raises(ShapeMismatch, match="cannot end"):
        shattering(nn.Linear(2, 1), torch.ones(1, 2), torch.ones(2, 2), sensitivity)


# ---------------------------------------------------------------------------------------- pruning


def test_relevance_of_units_by_hand() -> None:
    net = nn.Sequential(
        dense(torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])),
        nn.ReLU(),
        dense(torch.tensor([[1.0, 0.5, -0.5]])),
    )
    x = torch.tensor([[3.0, 1.0]])  # units 3, 2 and 4 contribute 3, 1 and -2 to the score 2
    (found,) = unit_relevances(net, x).values()
    assert found.tolist() == pytest.approx([1.5, 0.5, 0.0], abs=1e-5)
    (found,) = unit_relevances(net, x, rules=Epsilon(1e-9)).values()
    assert found.tolist() == pytest.approx([3.0, 1.0, 2.0], abs=1e-4)


def test_places_of_a_filter_that_cancel_are_no_relevance() -> None:
    filters = nn.Conv2d(1, 2, 1, bias=False)
    head = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        filters.weight.fill_(1.0)
        head.weight.copy_(torch.tensor([[1.0, -1.0, 1.0, 1.0]]))
    net = nn.Sequential(filters, nn.ReLU(), nn.Flatten(), head)
    (found,) = unit_relevances(net, torch.ones(3, 1, 1, 2), rules=Epsilon(1e-6)).values()
    assert found.tolist() == pytest.approx([0.0, 2.0], abs=1e-4)


def test_units_without_relevance_go_first_and_nothing_changes() -> None:
    net = mlp([5, 8, 3], "relu", generator=0)
    with torch.no_grad():
        net[0].bias[:4] = -100.0  # type: ignore[index, operator, union-attr]
    x = normal(20, 5)
    pruned = prune_by_relevance(net, x, 0.5)
    assert torch.allclose(pruned.network(x), net(x))
    assert torch.allclose(pruned.masked(x), net(x))
    (kept,) = pruned.kept.values()
    assert kept.tolist() == [4, 5, 6, 7]


def test_filters_of_convolutions_are_removed_for_good() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(6 * 4, 10), nn.ReLU(), nn.Linear(10, 3),
    ).double()  # fmt: skip
    x = normal(7, 1, 4, 4).abs()
    before = ModelState(net)
    pruned = prune_by_relevance(net, x, 0.5)
    assert not before.changes(net)
    assert pruned.network[0].out_channels == 3  # type: ignore[index]
    assert pruned.network[4].in_features == 12  # type: ignore[index]
    assert torch.allclose(pruned.network(x), pruned.masked(x))


def test_curves_begin_at_the_whole_network() -> None:
    x, y = digits()
    torch.manual_seed(0)
    net = fit(nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10)), x[:600], y[:600])
    found = pruning_curves(net, x[:50], (x[600:], y[600:]), [0.0, 0.5], draws=3)
    whole = float((net(x[600:]).argmax(1) == y[600:]).double().mean())
    assert [float(v[0]) for v in found.accuracy.values()] == pytest.approx([whole] * 3)
    assert found.draws.shape == (3, 2)
    low, high = found.interval("relevance", 0).low, found.interval("relevance", 0).high
    assert low < whole < high


def test_curves_need_a_class_and_a_logit_for_each() -> None:
    net, x = mlp([4, 6, 3], "relu", generator=0), normal(9, 4)
    with pytest.raises(ShapeMismatch, match="9 inputs"):
        pruning_curves(net, x, (x, torch.zeros(9, 1, dtype=torch.long)), [0.5])
    single = mlp([4, 6, 1], "relu", generator=0)
    with pytest.raises(UnsupportedModel, match="one logit per class"):
        pruning_curves(single, x, (x, torch.zeros(9, dtype=torch.long)), [0.5])


def test_a_network_without_hidden_layers_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="no hidden layer"):
        unit_relevances(nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2))


# ----------------------------------------------------------------------------------------- tuning


def test_the_tuned_rules_are_the_best_of_the_candidates() -> None:
    net, x = mlp([8, 16, 3], "relu", generator=0), normal(15, 8).abs()
    rules = {"epsilon": Epsilon(1e-6), "gamma": Gamma(0.5), "alpha": AlphaBeta(1, 0)}
    found = tune(net, x, rules)
    means = {k: float(v.mean()) for k, v in found.scores.items()}
    assert means[found.best] == max(means.values())
    assert found.rules is rules[found.best]
    flipped = pixel_flipping(net, x, found.method(net, x, None))
    assert torch.allclose(flipped.areas, found.scores[found.best])
    assert found.lead(found.best).estimate == 0.0
    other = tune(net, x, rules, criterion=lambda model, x, e: -pixel_flipping(model, x, e).areas)
    assert means[other.best] == min(means.values())


def test_a_criterion_returns_a_number_per_sample() -> None:
    net, x = mlp([3, 4, 2], "relu", generator=0), normal(5, 3)
    with pytest.raises(ShapeMismatch, match="5 samples"):
        tune(net, x, {"e": Epsilon()}, criterion=lambda *a: torch.zeros(2))
    with pytest.raises(EmptyData, match="no rules"):
        tune(net, x, {})
    with pytest.raises(InvalidType, match="by name"):
        tune(net, x, Epsilon())  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------ Clever Hans


def pictures() -> tuple[Tensor, Tensor]:
    x, y = digits()
    return x.reshape(-1, 1, 8, 8), y


def tagged(x: Tensor, which: Tensor) -> Tensor:
    x = x.clone()
    x[which, :, 6:, 6:] = 2.0
    return x


def network(seed: int) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def test_a_tag_is_found_where_it_is() -> None:
    x, y = pictures()
    x = tagged(x, y == 5)
    net = fit(network(0), x[:1000], y[:1000], 100)
    found = clever_hans(net, x[1000:], y[1000:])
    (suspect,) = found.suspects
    assert suspect.label == 5
    assert suspect.mask.nonzero().tolist() == [[6, 6], [6, 7], [7, 6], [7, 7]]
    assert suspect.without.high < suspect.accuracy.low
    assert torch.allclose(found.heatmaps.flatten(1).sum(1).round(), torch.ones(797).double())


@pytest.mark.parametrize("seed", range(20))
def test_clean_twins_are_not_accused(seed: int) -> None:
    x, y = pictures()
    net = fit(network(seed), x[:900], y[:900], 60)
    assert clever_hans(net, x[900:], y[900:], generator=seed).suspects == ()


def test_a_mask_is_judged_in_every_class() -> None:
    x, y = pictures()
    net = fit(network(0), x[:900], y[:900], 60)
    mask = torch.zeros(8, 8, dtype=torch.bool)
    mask[0, 0] = True  # always black: nothing to see
    found = clever_hans(net, x[900:], y[900:], mask)
    assert len(found.places) == 10
    assert all(torch.equal(p.mask, mask) for p in found.places)
    assert all(p.share.estimate == 0 and p.planted.estimate == 0 for p in found.places)
    assert all(p.accuracy.estimate == p.without.estimate for p in found.places)


def test_a_single_logit_and_a_leaked_feature() -> None:
    x, y = normal(400, 20), torch.arange(400) % 2
    x[:, 7] = 4.0 * (2 * y - 1)
    net = nn.Sequential(dense(torch.eye(20, dtype=torch.float64)[7:8]))
    found = clever_hans(net, x, y)
    assert {p.label for p in found.suspects} == {0, 1}
    assert all(p.mask.nonzero().flatten().tolist() == [7] for p in found.suspects)
    other = nn.Sequential(dense(torch.ones(1, 20, dtype=torch.float64)))
    spread = normal(400, 20) + 0.5 * (2 * y - 1)[:, None]
    assert clever_hans(other, spread, y).suspects == ()


@pytest.mark.parametrize("seed", range(5))
def test_one_of_three_features_that_matter_is_not_accused(seed: int) -> None:
    x = normal(800, 20, seed=seed)
    net = nn.Sequential(dense((torch.arange(20) < 3).double()[None]))
    y = (net(x)[:, 0] > 0).long()
    found = clever_hans(net, x, y, generator=seed)
    assert found.suspects == ()
    # one of two would turn half of the others, by symmetry; one of three fewer
    assert all(0.25 < p.planted.estimate < 0.5 for p in found.places)


@pytest.mark.parametrize(
    ("converted", "share", "suspicious"),
    [(0.51, 0.07, True), (0.49, 0.07, False), (0.51, 0.06, False)],
)
def test_a_suspect_converts_most_and_is_looked_at(
    converted: float, share: float, suspicious: bool
) -> None:
    def above(low: float) -> Interval:
        return Interval(low + 0.1, low, low + 0.2, 0.95, 100, "by hand")

    mask = torch.arange(16) == 0
    place = Place(1, mask, 1 / 16, above(share), above(converted), above(0.8), above(0.0))
    assert place.suspicious is suspicious


@pytest.mark.parametrize(("features", "places"), [(15, 0), (16, 2)])
def test_a_small_place_is_a_sixteenth(features: int, places: int) -> None:
    x, y = normal(60, features), torch.arange(60) % 2
    x[:, 0] = 3.0 * (2 * y - 1)
    net = nn.Sequential(dense(torch.eye(features, dtype=torch.float64)[:1]))
    assert len(clever_hans(net, x, y).places) == places


def test_few_features_have_no_small_place() -> None:
    x, y = normal(60, 4), torch.arange(60) % 2
    x[:, 0] = 3.0 * (2 * y - 1)
    net = nn.Sequential(dense(torch.eye(4, dtype=torch.float64)[:1]))
    found = clever_hans(net, x, y)
    assert found.places == ()
    assert len(found.clusters) >= 2


def test_what_cannot_be_judged_is_refused() -> None:
    net = mlp([20, 3], "relu", generator=0)
    with pytest.raises(EmptyData, match="recognizes"):
        clever_hans(net, normal(6, 20), torch.arange(6) % 3)
    with pytest.raises(ShapeMismatch, match="whole numbers"):
        clever_hans(net, normal(6, 20), torch.ones(6))
    with pytest.raises(InvalidInput, match="classes 0 to 2"):
        clever_hans(net, normal(40, 20), torch.arange(40) % 5)
    with pytest.raises(InvalidInput, match="classes 0 to 1, and y those from 1 to 2"):
        clever_hans(mlp([20, 1], "relu", generator=0), normal(40, 20), torch.arange(40) % 2 + 1)
    with pytest.raises(EmptyData, match="artifact is empty"):
        clever_hans(net, normal(40, 20), torch.arange(40) % 3, torch.zeros(20, dtype=torch.bool))
    with pytest.raises(InvalidType, match="real inputs"):
        clever_hans(net, torch.ones(6, 20, dtype=torch.long), torch.arange(6))


def test_heatmaps_that_lie_apart_are_told_apart() -> None:
    maps = torch.zeros(60, 16, 16)
    draw = torch.Generator().manual_seed(0)
    for k in range(3):
        maps[20 * k : 20 * (k + 1), 5 * k : 5 * k + 4] = torch.rand(20, 4, 16, generator=draw)
    found = heatmap_clusters(maps)
    assert sorted(m.tolist() for m in found.members) == [
        list(range(20)), list(range(20, 40)), list(range(40, 60)),
    ]  # fmt: skip
    assert float(found.eigenvalues[2]) < 0.01 < float(found.eigenvalues[3])
    assert coarse(maps).shape == (60, 64)
    one = heatmap_clusters(torch.rand(40, 6, generator=draw))
    assert len(one.labels) == 40
    with pytest.raises(ShapeMismatch, match="two heatmaps"):
        heatmap_clusters(maps[:1])


# ------------------------------------------------------------------------------------------- size


def test_multiplications_of_a_layer_by_hand() -> None:
    net = nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.Flatten(),
                        nn.Linear(36, 5))  # fmt: skip
    size = network_size(net, (2, 6, 6))
    assert [s.multiplications for s in size.by_layer] == [4 * 2 * 9 * 9, 0, 180]
    assert size.layers == 2
    assert size.parameters == sum(p.numel() for p in net.parameters())


def test_attention_is_counted_and_values_are_refused() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    t, d = 5, 8
    wanted = 4 * t * d * d + 2 * t * t * d + 2 * t * d * 16
    assert network_size(nn.Sequential(layer), (t, d)).multiplications == wanted

    class Asks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if float(x.sum()) > 0 else -x

    with pytest.raises(UnsupportedModel, match="raised"):
        network_size(Asks(), (3,))
    assert network_size(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2)), (6,), torch.long).layers
