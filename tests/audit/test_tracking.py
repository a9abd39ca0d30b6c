"""Tracking: what is measured is right, and the training does not notice that it is measured."""

from __future__ import annotations

import copy
import importlib.util
import json
import math
import random
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from torchtheory.audit.tracking import clock as tracking_clock
from torchtheory.audit.tracking import quantities as quantity_module
from torchtheory.audit.tracking.quantities import Reading, Snapshot, find_quantities, tracked
from torchtheory.audit.tracking.result import Tracking
from torchtheory.audit.tracking.tracker import Tracker, track
from torchtheory.core.eigenvalues import top_eigenpairs
from torchtheory.core.errors import (
    FileProblem,
    InvalidInput,
    InvalidType,
    LabelOutOfRange,
    MissingPackage,
    NonFinite,
    UnknownName,
    UnsupportedModel,
)
from torchtheory.core.linear_operators import LinearOperator
from torchtheory.core.problem import Problem
from torchtheory.optimization.edge_of_stability import stability_limit
from torchtheory.optimization.noise_scale import gradient_noise_scale
from torchtheory.training.trainer import fit


@pytest.fixture(autouse=True)
def own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    find_quantities()
    monkeypatch.setattr(quantity_module, "_QUANTITIES", dict(quantity_module._QUANTITIES))


def blobs(n: int = 60, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    x = torch.randn(n, 4, generator=generator)
    x[torch.arange(n), y] += 3
    return x, y


def small_net(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def descend(
    net: nn.Module, steps: int, rate: float = 0.1, data: Any = None, **settings: Any
) -> Tracking:
    x, y = data or blobs()
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    settings = {"every": 5, "overhead": None, "optimizer": optimizer, **settings}
    with track(net, (x, y), **settings) as tracker:
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
            tracker.step()
    return tracker.result()


# --------------------------------------------------------------------- the training does not notice


class Noisy(nn.Module):
    """Dropout, batch normalisation, noise from three global generators, an attribute it sets."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)
        )
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.training:
            x = x + 0.1 * torch.randn_like(x) + 0.01 * random.random()
            x = x + 0.01 * float(np.random.rand())  # noqa: NPY002
        out: Tensor = self.body(x)
        return out


def noisy_training(watched: bool) -> tuple[dict[str, Tensor], list[Any]]:
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002
    net = Noisy()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(*blobs(50)), batch_size=16, shuffle=True)
    tracker = None
    if watched:
        tracker = track(
            net, loader, blobs(20, seed=1), every=3, overhead=None, optimizer=optimizer, probe=24
        )
    seen: list[Any] = []
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
            gradients = [p.grad.clone() for p in net.parameters() if p.grad is not None]
            if tracker is not None:
                tracker.step()
            now = [p.grad for p in net.parameters() if p.grad is not None]
            seen.append([torch.equal(a, b) for a, b in zip(gradients, now, strict=True)])
    if tracker is not None:
        result = tracker.result()
        assert result.steps == (0, 3, 6, 9, 12)
        assert not [r for name, r in result.reasons.items() if name != "normalised-margin"]
    assert net.training
    assert all(m.training for m in net.modules())
    tail = [net.calls, random.random(), float(np.random.rand()), float(torch.rand(()))]  # noqa: NPY002
    return copy.deepcopy(net.state_dict()), [seen, *tail]


def test_training_is_bitwise_the_same_with_and_without_a_tracker() -> None:
    (plain, plain_rest), (watched, watched_rest) = noisy_training(False), noisy_training(True)
    assert plain_rest == watched_rest
    assert all(all(step) for step in watched_rest[0])
    assert plain.keys() == watched.keys()
    assert all(torch.equal(plain[k], watched[k]) for k in plain)


def test_a_network_with_frozen_layers_and_mixed_modes_is_left_alone() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    net[1].eval()
    for p in net[0].parameters():
        p.requires_grad_(False)
    hooks = [len(m._forward_hooks) for m in net.modules()]
    found = descend(net, 5)
    assert [m.training for m in net] == [True, False, True, True]
    assert [p.requires_grad for p in net[0].parameters()] == [False, False]
    assert [len(m._forward_hooks) for m in net.modules()] == hooks
    assert set(found["gradient-norms"]) == {"all", "1", "3"}  # the frozen layer is not trained


def test_measuring_does_not_depend_on_the_modes_of_the_caller() -> None:
    found = []
    for context in (
        torch.enable_grad,
        torch.no_grad,
        lambda: torch.autocast("cpu", torch.bfloat16),
    ):
        with context():  # type: ignore[operator]
            tracker = track(small_net(), blobs(), quantities=["loss", "sharpness", "kernel-drift"])
        found.append(tracker.result().table().rows)
    assert found[0] == found[1] == found[2]


# ---------------------------------------------------------------------------- values that are known


def test_sharpness_of_linear_regression_is_the_top_eigenvalue_of_its_second_moments() -> None:
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    net = nn.Linear(5, 1, bias=False, dtype=torch.float64)
    tracker = track(
        net, (x, x.sum(1)), quantities=["sharpness", "gradient-norms", "loss"], learning_rate=0.1
    )
    found = tracker.result()
    exact = 2 * float(torch.linalg.eigvalsh(x.T @ x / 40)[-1])
    reading = found["sharpness"]["largest eigenvalue"][0]
    assert reading.value == pytest.approx(exact, rel=1e-3)
    assert reading.low is not None
    assert reading.high is not None
    assert reading.low - 1e-9 <= exact <= reading.high + 1e-9
    assert found.values("sharpness", "stability limit") == ([0], [20.0])
    residual = x @ net.weight.detach()[0] - x.sum(1)
    slope = 2 * x.T @ residual / 40
    assert found.values("gradient-norms")[1][0] == pytest.approx(float(slope.norm()))
    assert found.values("loss")[1][0] == pytest.approx(float(residual.square().mean()))
    assert found["loss"]["train"][0].low is None  # all samples: nothing is estimated


def test_warm_start_needs_fewer_products_and_sees_a_new_top_direction() -> None:
    generator = torch.Generator().manual_seed(0)
    basis, _ = torch.linalg.qr(torch.randn(400, 400, generator=generator, dtype=torch.float64))
    values = torch.linspace(0, 1, 400, dtype=torch.float64)
    values[-1] = 1.15
    matrix = (basis * values) @ basis.T
    count = 0

    def product(v: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return matrix @ v

    A = LinearOperator((400, 400), product, symmetric=True, dtype=torch.float64)
    first = top_eigenpairs(A, tolerance=0.01, generator=generator)
    vector = first.vectors[:, 0]
    cold, count = count, 0
    again = top_eigenpairs(A, tolerance=0.01, start=vector, generator=generator)
    assert abs(float(first.values[0]) - 1.15) <= float(first.residuals[0])
    assert float(again.values[0]) == pytest.approx(1.15, abs=1e-3)
    assert count < cold
    # an exactly orthogonal direction overtakes: the random part of the start finds it
    other = basis[:, 0]
    matrix = matrix + 3 * torch.outer(other, other)
    overtaken = top_eigenpairs(A, tolerance=0.01, start=vector, generator=generator)
    assert float(overtaken.values[0]) == pytest.approx(3.0, abs=1e-2)
    with pytest.raises(InvalidInput, match="start must be a vector of 400 finite numbers"):
        top_eigenpairs(A, start=torch.zeros(400))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.8, "nesterov": True},
        {"momentum": 0.5, "dampening": 0.4},
        {"weight_decay": 0.3},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ],
    ids=str,
)
def test_the_stability_limit_is_where_torchs_sgd_stops_converging(options: dict[str, Any]) -> None:
    def size_after(curvature: float) -> float:
        weight = nn.Parameter(torch.ones((), dtype=torch.float64))
        optimizer = torch.optim.SGD([weight], lr=0.1, **options)
        for _ in range(300):
            weight.grad = curvature * weight.detach()
            optimizer.step()
        return abs(float(weight.detach()))

    weight = nn.Parameter(torch.ones(()))
    limit, remark = stability_limit(torch.optim.SGD([weight], lr=0.1, **options), None)
    assert limit is not None
    assert remark == ""
    assert size_after(0.95 * limit) < 1e-3
    assert size_after(1.05 * limit) > 1e3


def test_where_there_is_no_limit_the_reader_is_told() -> None:
    weights = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))]
    limit, remark = stability_limit(torch.optim.Adam(weights, lr=0.1), None)
    assert limit is None
    assert "Adam preconditions" in remark
    groups = [{"params": weights[0]}, {"params": weights[1], "lr": 0.5}]
    limit, remark = stability_limit(torch.optim.SGD(groups, lr=0.1), None)
    assert limit is None
    assert "groups" in remark
    assert stability_limit(None, None)[0] is None
    found = track(small_net(), blobs(), quantities=["sharpness"]).result()
    assert "stability limit" not in found["sharpness"]
    assert any("learning rate" in r for r in found.remarks)


def test_a_schedule_moves_the_limit() -> None:
    x, y = blobs()
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    tracker = track(
        net, (x, y), every=1, optimizer=optimizer, quantities=["sharpness"], overhead=None
    )
    for _ in range(2):
        optimizer.step()
        schedule.step()
        tracker.step()
    assert tracker.result().values("sharpness", "stability limit")[1] == [4.0, 8.0, 16.0]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.1, 3.0), st.integers(1, 4))
def test_noise_scale_estimates_are_free_of_bias_against_direct_formulas(
    seed: int, spread: float, each: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(12, 6, generator=generator, dtype=torch.float64) * spread + 2
    found = gradient_noise_scale(rows @ rows.T, each)
    mean = rows.mean(0)
    variance = float(rows.var(0).sum())  # of a group's gradient; one sample's is `each` times it
    signal = float(mean.square().sum()) - variance / 12
    assert found.value == pytest.approx(each * variance / signal if signal > 0 else math.inf)
    if found.low is not None and math.isfinite(found.value):
        assert found.low <= found.value


def test_noise_scale_where_gradients_agree_or_cancel() -> None:
    same = torch.ones(5, 3).double()
    assert gradient_noise_scale(same @ same.T, 4).value == pytest.approx(0.0, abs=1e-12)
    opposite = torch.tensor([[1.0], [-1.0], [1.0], [-1.1]]).double()
    found = gradient_noise_scale(opposite @ opposite.T, 1)
    assert found.value == math.inf
    assert found.low is not None
    assert found.low > 4


def test_noise_scale_of_all_training_data_takes_its_gradient_as_exact() -> None:
    rows = torch.randn(8, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = gradient_noise_scale(rows @ rows.T, 2, complete=True)
    exact = 2 * float(rows.var(0).sum() / rows.mean(0).square().sum())
    assert found.value == pytest.approx(exact)
    assert found.low is not None
    assert found.low < exact < (found.high or 0)
    assert found.value < gradient_noise_scale(rows @ rows.T, 2).value


def test_noise_scale_of_a_known_law() -> None:
    # the gradient of (w - x)^2 / 2 at w = 0 is -x: mean 1 and variance 4 give 4
    x = 1 + 2 * torch.randn(4096, 1, generator=torch.Generator().manual_seed(0))

    class Point(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            return self.w.expand(len(x), 1)

    def half(outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - y).square().mean() / 2

    found = track(
        Point(), (x, x), quantities=["gradient-noise"], loss=half, task="regression", probe=4096
    ).result()
    reading = found["gradient-noise"]["gradient-noise"][0]
    assert reading.low is not None
    assert reading.high is not None
    assert reading.low <= 4 <= reading.high
    assert reading.high < 10


def test_margins_errors_and_their_normalisation() -> None:
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 2, bias=False))
    net[0].weight.data.fill_(2.0)
    net[2].weight.data.copy_(torch.tensor([[1.0], [-1.0]]))
    x = torch.tensor([[1.0], [2.0], [3.0]])
    y = torch.tensor([0, 0, 1])  # margins 4, 8, -12; the norm of the weights is √6, two layers
    found = track(
        net, (x, y), (x, y), quantities=["margins", "error", "normalised-margin"]
    ).result()
    assert found.values("margins", "smallest")[1] == [-12.0]
    assert found.values("margins", "median")[1] == [4.0]
    assert found.values("normalised-margin")[1] == [pytest.approx(-2.0)]
    train, test = found["error"]["train"][0], found["error"]["test"][0]
    assert train == Reading(1 / 3)
    assert test.low is not None
    assert test.low < 1 / 3 < (test.high or 0)


class Branching(nn.Module):
    """ReLUs as functions, methods and modules, on vectors, sequences and images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 2, 1)
        self.norm = nn.BatchNorm1d(2)
        self.mix = nn.Linear(3, 4)
        self.out = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x[:, None])))  # [n, 2, 3]: channels first
        x = self.mix(x).relu_()  # [n, 2, 4]: units last
        out: Tensor = self.out(x.flatten(1))
        return out


def test_dead_units_are_counted_whatever_way_a_relu_is_written() -> None:
    net = Branching()
    net.norm.bias.data.copy_(torch.tensor([-100.0, 100.0]))
    net.mix.weight.data.zero_()
    net.mix.bias.data.copy_(torch.tensor([1.0, -1.0, -1.0, -1.0]))
    x = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
    problem = Problem(net, (x, torch.arange(10) % 2))
    (dead,) = find_quantities(["dead-units"])
    found = {k: r.value for k, r in dead.measure(Snapshot(problem, 0, {})).items()}
    assert found == {"after norm": 0.5, "after mix": 0.75}
    linear = Problem(nn.Linear(3, 2), (x, torch.arange(10) % 2))
    with pytest.raises(UnsupportedModel, match="no pointwise activation"):
        dead.measure(Snapshot(linear, 0, {}))


def test_a_lazy_network_does_not_move_its_kernel_and_a_trained_one_does() -> None:
    x, y = blobs()
    linear = nn.Linear(4, 3)
    found = descend(linear, 10, data=(x, y), quantities=["kernel-drift", "distance"])
    assert found.values("kernel-drift")[1] == [0.0, 0.0, 0.0]  # linear in its parameters
    assert found.values("distance")[1][-1] > 0
    moved = descend(small_net(), 20, rate=0.5, quantities=["kernel-drift", "kernel-alignment"])
    drift = moved.values("kernel-drift")[1]
    assert drift[0] == 0.0
    assert drift[-1] > 0.1
    alignment = moved.values("kernel-alignment")[1]
    assert all(-1 <= v <= 1 for v in alignment)
    assert alignment[-1] > alignment[0]


def test_distance_and_norms_by_layer_against_their_definition() -> None:
    net = small_net()
    before = copy.deepcopy(net)
    found = descend(net, 5, quantities=["distance", "weight-norms"])
    for i in ("0", "2"):
        old = nn.utils.parameters_to_vector(before[int(i)].parameters())
        new = nn.utils.parameters_to_vector(net[int(i)].parameters())
        assert found.values("weight-norms", i)[1][-1] == pytest.approx(
            float(new.detach().norm()), rel=1e-5
        )
        share = float(((new - old).norm() / old.norm()).detach())
        assert found.values("distance", i)[1][-1] == pytest.approx(share, rel=1e-5)


def test_statistics_of_batch_normalisation_are_those_of_the_moment() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    x, y = blobs()
    tracker = track(net, (x, y), every=1, overhead=None, quantities=["loss"])
    for _ in range(20):
        net(x + 5)  # moves the running statistics and nothing else
    tracker.step()
    found = tracker.result().values("loss")[1]
    net.eval()
    assert found[0] != found[1]
    assert found[1] == pytest.approx(float(F.cross_entropy(net(x), y).detach()), rel=1e-5)


def test_new_tensors_in_the_model_are_followed() -> None:
    net = small_net()
    x, y = blobs()
    tracker = track(net, (x, y), every=1, overhead=None, quantities=["loss"])
    net.load_state_dict(small_net(seed=5).state_dict(), assign=True)
    tracker.step()
    exact = float(F.cross_entropy(net(x), y).detach())
    assert tracker.result().values("loss")[1][1] == pytest.approx(exact, rel=1e-5)


def test_the_probe_is_a_seeded_subset_that_is_stated() -> None:
    x, y = blobs(300)
    first, second, other = (
        track(small_net(), (x, y), probe=50, seed=s, quantities=["loss"]).result()
        for s in (0, 0, 1)
    )
    assert first.table().rows == second.table().rows != other.table().rows
    assert "50 of 300" in first.facts["probe"]
    reading = first["loss"]["train"][0]
    assert reading.low is not None  # 50 of 300: an estimate
    assert reading.low < reading.value < (reading.high or 0)


# ------------------------------------------------------------------------------------ when it runs


class _Time:
    """A clock that tests turn by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Time:
    made = _Time()
    monkeypatch.setattr(tracking_clock, "time", made)
    return made


def test_overhead_stays_below_its_bound_and_nothing_starves(clock: _Time) -> None:
    @tracked("cheap")
    def cheap(at: Snapshot) -> float:
        clock.now += 0.01
        return 0.0

    @tracked("dear")
    def dear(at: Snapshot) -> float:
        clock.now += 2.0
        return 0.0

    tracker = track(small_net(), blobs(), every=1, overhead=0.1, quantities=["dear", "cheap"])
    for _ in range(2000):
        clock.now += 0.1
        tracker.step()
    found = tracker.result()
    assert found.training_seconds == pytest.approx(200)
    assert 0.05 < found.overhead <= 0.1
    dear_steps, cheap_steps = found.values("dear")[0], found.values("cheap")[0]
    assert dear_steps[0] == cheap_steps[0] == 0
    assert dear_steps[-1] == cheap_steps[-1] == 2000
    assert 4 <= len(dear_steps) <= 11
    assert len(cheap_steps) > 100
    assert any("overhead below 10%" in r for r in found.remarks)


def test_without_a_bound_every_due_step_is_measured_and_the_last_in_any_case() -> None:
    found = descend(small_net(), 12, quantities=["loss"])
    assert found.steps == (0, 5, 10, 12)
    assert found.taken == 12
    assert 0 < found.overhead < 1
    assert not any("left out" in r for r in found.remarks)


def test_a_short_training_has_its_first_and_last_measurement_whatever_they_cost() -> None:
    found = descend(small_net(), 7, overhead=1e-6)
    assert found.steps == (0, 7)
    assert found.overhead > 1e-6


def test_result_may_be_asked_for_along_the_way() -> None:
    net = small_net()
    tracker = track(net, blobs(), every=10, overhead=None, quantities=["loss"])
    tracker.step()
    assert tracker.result().steps == (0, 1)
    tracker.step()
    again = tracker.result()
    assert again.steps == tracker.result().steps == (0, 1, 2)


def test_an_exception_of_the_training_is_not_swallowed_and_costs_no_measurement() -> None:
    tracker = track(small_net(), blobs(), quantities=["loss"])
    tracker.step()
    with pytest.raises(ZeroDivisionError), tracker:
        _ = 1 / 0
    assert tracker._measured == [0]


# -------------------------------------------------------------------------------- what goes wrong


def test_weights_that_become_nan_end_the_measuring_with_a_sentence() -> None:
    net = small_net()
    tracker = track(net, blobs(), every=2, overhead=None)
    for step in range(6):
        if step == 3:
            net[2].weight.data.fill_(math.nan)
        tracker.step()
    found = tracker.result()
    assert found.steps == (0, 2)
    assert "2.weight" in found.stopped
    assert "between step 2 and step 4" in found.stopped
    assert found.stopped in str(found)
    json.dumps(found.to_json(), allow_nan=False)


def test_overflowing_outputs_are_reasons_not_exceptions() -> None:
    net = small_net()
    tracker = track(net, blobs(), every=1, overhead=None, quantities=["loss", "weight-norms"])
    net[0].weight.data.fill_(1e30)
    net[2].weight.data.fill_(1e30)
    tracker.step()
    found = tracker.result()
    assert "not measured at step 1" in found.reasons["loss"]
    assert found.values("weight-norms", "2")[0] == [0, 1]


def test_a_quantity_that_raises_is_reported_and_given_up_and_the_others_go_on() -> None:
    calls = 0

    @tracked("broken")
    def broken(at: Snapshot) -> float:
        nonlocal calls
        calls += 1
        raise ZeroDivisionError("no\nreason")

    @tracked("wrong")
    def wrong(at: Snapshot) -> Any:
        return "seven"

    @tracked("sometimes")
    def sometimes(at: Snapshot) -> dict[str, float]:
        if at.step == 10:
            raise InvalidInput("not at ten")
        return {"a": at.step, "b": 0.0}

    found = descend(small_net(), 30, quantities=["broken", "wrong", "sometimes", "loss"])
    assert calls == 3
    assert found.reasons["broken"] == (
        "not applicable: could not be computed: ZeroDivisionError: no reason"
    )
    assert "'wrong' returned str" in found.reasons["wrong"]
    assert found.values("sometimes")[0] == [0, 5, 15, 20, 25, 30]
    assert found.reasons["sometimes"] == "not measured at step 10: not at ten"
    assert len(found.values("loss")[0]) == 7
    with pytest.raises(InvalidInput, match="broken was not measured"):
        found.values("broken")


def test_what_does_not_apply_is_said_why() -> None:
    x = torch.randn(20, 4)
    found = track(nn.Linear(4, 1), (x, x.sum(1)), overhead=None).result()
    assert "regression" in found.reasons["margins"]
    assert "regression" in found.reasons["error"]
    assert "no pointwise activation" in found.reasons["dead-units"]
    assert set(found["loss"]) == {"train"}


def test_a_custom_loss_is_used_also_one_that_vmap_cannot_take() -> None:
    def stubborn(outputs: Tensor, y: Tensor) -> Tensor:
        weights = torch.tensor([1.0 + float(label) for label in y])  # .item() inside
        each = F.cross_entropy(outputs, y, reduction="none")
        return (weights * each).mean()

    x, y = blobs()
    net = small_net()
    found = track(net, (x, y), (x, y), loss=stubborn, quantities=["loss", "sharpness"]).result()
    exact = float(stubborn(net(x), y).detach())
    assert found.values("loss", "train")[1][0] == pytest.approx(exact, rel=1e-5)
    assert found.values("loss", "test")[1][0] == pytest.approx(exact, rel=1e-5)
    assert found.values("sharpness")[1][0] > 0


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"every": 0}, InvalidInput, "every"),
        ({"every": 2.5}, InvalidInput, "every"),
        ({"probe": 0}, InvalidInput, "probe"),
        ({"overhead": 0.0}, InvalidInput, "overhead"),
        ({"overhead": 1.5}, InvalidInput, "overhead"),
        ({"overhead": math.nan}, InvalidInput, "overhead"),
        ({"learning_rate": -1.0}, InvalidInput, "learning_rate"),
        ({"learning_rate": math.nan}, InvalidInput, "learning_rate"),
        ({"optimizer": "sgd"}, InvalidType, "Optimizer"),
        ({"confidence": 1.0}, InvalidInput, "confidence"),
        ({"seed": -1}, InvalidInput, "seed"),
        ({"quantities": ["sharpnes"]}, UnknownName, "did you mean 'sharpness'"),
        ({"quantities": []}, InvalidInput, "nothing to track"),
        ({"model": "net"}, InvalidType, r"torch\.nn\.Module"),
        ({"data": (torch.zeros(3, 4), torch.tensor([0, 1, 9]))}, LabelOutOfRange, "labels"),
        ({"data": (torch.full((3, 4), math.nan), torch.zeros(3).long())}, NonFinite, "NaN"),
    ],
    ids=str,
)
def test_bad_input_is_refused_in_a_sentence(
    change: dict[str, Any], error: type[Exception], words: str
) -> None:
    given = {"model": small_net(), "data": blobs(), "quantities": ["loss"], **change}
    with pytest.raises(error, match=words):
        track(given.pop("model"), given.pop("data"), **given)


def test_learning_rate_and_optimizer_together_are_refused() -> None:
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(InvalidInput, match="not both"):
        track(net, blobs(), optimizer=optimizer, learning_rate=0.1)


def test_names_of_quantities() -> None:
    with pytest.raises(InvalidInput, match="hyphens"):
        tracked("Not a name")
    with pytest.raises(InvalidInput, match="two quantities"):
        tracked("loss")(lambda at: 0.0)
    with pytest.raises(InvalidInput, match="scale"):
        tracked("mine", scale="cubic")  # type: ignore[arg-type]


# ----------------------------------------------------------------------------- where results go


def test_json_figure_table_and_notebook(tmp_path: Path) -> None:
    names = ["loss", "sharpness", "normalised-margin"]
    found = descend(small_net(), 10, test=blobs(30, seed=2), quantities=names)
    where = found.save(tmp_path / "new" / "place")
    assert (where / "tracking.png").read_bytes()[:4] == b"\x89PNG"
    assert sorted(p.name for p in where.iterdir()) == ["tracking.json", "tracking.png"]
    data = json.loads((where / "tracking.json").read_text(encoding="utf-8"))
    by_name = {q["name"]: q for q in data["quantities"]}
    assert by_name["loss"]["series"]["test"]["steps"] == [0, 5, 10]
    low, value = (by_name["loss"]["series"]["test"][k][0] for k in ("low", "values"))
    assert low < value
    assert by_name["normalised-margin"]["reason"].startswith("not applicable")
    table = found.table()
    assert table.columns[0] == "step"
    assert [row[0] for row in table.rows] == [0, 5, 10]
    column = table.columns.index("sharpness: largest eigenvalue")
    assert [row[column] for row in table.rows] == found.values("sharpness")[1]
    cell = found._repr_html_()
    assert "data:image/png;base64," in cell
    assert "<script" not in cell
    (tmp_path / "file").write_text("")
    with pytest.raises(FileProblem, match="cannot write"):
        found.save(tmp_path / "file")


def test_names_of_layers_are_escaped_in_a_notebook() -> None:
    net = nn.Module()
    net.add_module("<b>", nn.Linear(4, 3))
    net.forward = lambda x: net._modules["<b>"](x)  # type: ignore[method-assign,misc]
    found = track(net, blobs(), quantities=["weight-norms"]).result()
    assert "<b>" not in found._repr_html_()


def test_a_deep_network_gives_a_figure_with_few_names() -> None:
    layers = [layer for _ in range(12) for layer in (nn.Linear(4, 4), nn.Tanh())]
    found = track(
        nn.Sequential(*layers, nn.Linear(4, 3)), blobs(), quantities=["gradient-norms"]
    ).result()
    assert len(found["gradient-norms"]) == 14
    svg = found.plot().svg or ""
    assert [name for name in ("all", "0", "12", "24", "10") if f">{name}</text>" in svg] == [
        "all",
        "0",
        "12",
        "24",
    ]


def test_nothing_measured_is_no_figure(tmp_path: Path) -> None:
    found = track(nn.Linear(4, 3), blobs(), quantities=["dead-units"]).result()
    with pytest.raises(InvalidInput, match="nothing to draw"):
        found.plot()
    assert [p.name for p in found.save(tmp_path).iterdir()] == ["tracking.json"]
    assert "no pointwise activation" in found._repr_html_()


def test_as_a_callback_of_fit_it_counts_epochs_and_changes_nothing() -> None:
    x, y = blobs()
    nets = small_net(), small_net()
    options: dict[str, Any] = {"epochs": 6, "optimizer": "sgd", "learning_rate": 0.1}
    fit(nets[0], (x, y), **options)
    tracker = track(
        nets[1], (x, y), every=2, learning_rate=0.1, overhead=None, quantities=["loss", "sharpness"]
    )
    fit(nets[1], (x, y), callbacks=[tracker], **options)
    found = tracker.result()
    assert found.unit == "epoch"
    assert found.steps == (0, 2, 4, 6)
    for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(InvalidInput, match="another model"):
        tracker(small_net())


def test_tensorboard_gets_every_reading_or_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, float, int]] = []

    class SummaryWriter:
        def __init__(self, directory: str) -> None:
            assert directory == str(tmp_path)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def close(self) -> None:
            written.append(("closed", 0.0, 0))

    found = descend(small_net(), 5, quantities=["loss"])
    stand_in = types.ModuleType("torch.utils.tensorboard")
    stand_in.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)
    assert found.to_tensorboard(tmp_path) == tmp_path
    steps, values = found.values("loss")
    expected = [("loss/train", v, s) for s, v in zip(steps, values, strict=True)]
    assert written == [*expected, ("closed", 0.0, 0)]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingPackage, match="pip install tensorboard"):
        found.to_tensorboard(tmp_path)


# ------------------------------------------------------------------------------------- Lightning


def test_lightning_is_asked_for_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackage, match=r"tracker\.step"):
        track(small_net(), blobs(), quantities=["loss"]).lightning()


def test_the_callback_follows_steps_of_the_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = types.ModuleType("lightning.pytorch")
    stand_in.Callback = type("Callback", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lightning", types.ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", stand_in)
    net = small_net()
    tracker = track(net, blobs(), every=1, overhead=None, quantities=["sharpness"])
    callback = tracker.lightning()
    assert isinstance(callback, stand_in.Callback)
    trainer = types.SimpleNamespace(
        global_step=0, optimizers=[torch.optim.SGD(net.parameters(), lr=0.25)]
    )
    callback.on_train_start(trainer, net)
    for step in (0, 1, 1, 2):  # gradients are accumulated over two batches
        trainer.global_step = step
        callback.on_train_batch_end(trainer, net, None, None, 0)
    callback.on_train_end(trainer, net)
    found = tracker.result()
    assert found.steps == (0, 1, 2)
    assert found.values("sharpness", "stability limit") == ([1, 2], [8.0, 8.0])


@pytest.mark.skipif(
    not any(importlib.util.find_spec(p) for p in ("lightning", "pytorch_lightning")),
    reason="Lightning is not installed",
)
def test_a_real_lightning_trainer() -> None:
    try:
        pl: Any = importlib.import_module("lightning.pytorch")
    except ImportError:
        pl = importlib.import_module("pytorch_lightning")

    class Module(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = small_net()

        def training_step(self, batch: Any, index: int) -> Tensor:
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def train(callbacks: list[Any], module: Any) -> None:
        pl.seed_everything(0)
        trainer = pl.Trainer(
            max_epochs=2,
            accelerator="cpu",
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, DataLoader(TensorDataset(*blobs()), batch_size=20, shuffle=True))

    plain, watched = Module(), Module()
    train([], plain)
    tracker = track(watched.net, blobs(), every=2, overhead=None)
    train([tracker.lightning()], watched)
    found = tracker.result()
    assert isinstance(tracker, Tracker)
    assert found.steps == (0, 2, 4, 6)
    assert found.values("sharpness", "stability limit")[1] == [20.0, 20.0, 20.0]
    for a, b in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(a, b)
