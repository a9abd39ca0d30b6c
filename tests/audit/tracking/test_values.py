"""What is tracked is what its definition says."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.audit.tracking.quantities import Reading, Snapshot, find_quantities
from torchtheory.audit.tracking.tracker import track
from torchtheory.core.errors import (
    InvalidInput,
    UnsupportedModel,
)
from torchtheory.linalg.eigenvalues import top_eigenpairs
from torchtheory.linalg.operators import LinearOperator
from torchtheory.models.problem import Problem
from torchtheory.optimization.curvature.edge_of_stability import stability_limit
from torchtheory.optimization.curvature.noise_scale import gradient_noise_scale


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


def test_where_there_is_no_limit_the_reader_is_told(blobs: Any, small_net: Any) -> None:
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


def test_a_schedule_moves_the_limit(blobs: Any, small_net: Any) -> None:
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


def test_margins_errors_and_their_normalization() -> None:
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 2, bias=False))
    net[0].weight.data.fill_(2.0)
    net[2].weight.data.copy_(torch.tensor([[1.0], [-1.0]]))
    x = torch.tensor([[1.0], [2.0], [3.0]])
    y = torch.tensor([0, 0, 1])  # margins 4, 8, -12; the norm of the weights is √6, two layers
    found = track(
        net, (x, y), (x, y), quantities=["margins", "error", "normalized-margin"]
    ).result()
    assert found.values("margins", "smallest")[1] == [-12.0]
    assert found.values("margins", "median")[1] == [4.0]
    assert found.values("normalized-margin")[1] == [pytest.approx(-2.0)]
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


def test_a_lazy_network_does_not_move_its_kernel_and_a_trained_one_does(
    blobs: Any, small_net: Any, descend: Any
) -> None:
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


def test_distance_and_norms_by_layer_against_their_definition(small_net: Any, descend: Any) -> None:
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


def test_statistics_of_batch_normalization_are_those_of_the_moment(blobs: Any) -> None:
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


def test_new_tensors_in_the_model_are_followed(blobs: Any, small_net: Any) -> None:
    net = small_net()
    x, y = blobs()
    tracker = track(net, (x, y), every=1, overhead=None, quantities=["loss"])
    net.load_state_dict(small_net(seed=5).state_dict(), assign=True)
    tracker.step()
    exact = float(F.cross_entropy(net(x), y).detach())
    assert tracker.result().values("loss")[1][1] == pytest.approx(exact, rel=1e-5)


def test_the_probe_is_a_seeded_subset_that_is_stated(blobs: Any, small_net: Any) -> None:
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
