"""Gradients at fresh weights: shared ones, several a layer, batch normalization, other draws."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from torchtheory.core.intervals import mean_interval
from torchtheory.models.problem import Problem
from torchtheory.nets.fresh_weights import drawn_anew
from torchtheory.optimization.initial_scale import fresh_growths, initialization_report
from torchtheory.tracing.watching import watch_signals


def _problem(net: nn.Module, *shape: int) -> Problem:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, *shape, generator=generator)
    return Problem(net, (x, torch.arange(40) % 2))


def test_layers_that_share_weights_are_listed_at_each_use() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(16, 16)
    inner = [m for _ in range(5) for m in (layer, nn.ReLU())]
    report = initialization_report(_problem(nn.Sequential(*inner, nn.Linear(16, 2)), 16))
    assert [r.layer for r in report.layers] == ["0"] * 5 + ["10"]
    assert report.growth < -0.5
    assert report.growth_repaired == pytest.approx(0, abs=1e-2)
    assert any("share weights" in note for note in report.notes)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.LSTM(3, 8, batch_first=True)
        self.out = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        seen, _ = self.memory(x)
        return self.out(seen[:, -1])  # type: ignore[no-any-return]


def test_the_factor_acts_on_all_matrices_of_a_layer() -> None:
    torch.manual_seed(0)
    problem = _problem(_Recurrent(), 6, 3)
    report = initialization_report(problem, draws=1)
    assert [r.layer for r in report.layers] == ["memory", "out"]
    assert report.factor is not None
    fresh = _Recurrent()
    torch.manual_seed(0)  # the draw of seed 0
    fresh.memory.reset_parameters()
    fresh.out.reset_parameters()
    point = {
        k: report.factor * p.detach() if p.ndim > 1 else p.detach()
        for k, p in fresh.named_parameters()
    }
    measured = watch_signals(problem, problem.train, point)
    assert [s.backward for s in measured] == pytest.approx([r.repaired for r in report.layers])


class _Diagonal(nn.Module):
    """A matrix made of a vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.entries = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.entries)

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.diag(self.entries)


def test_a_matrix_made_of_a_vector_is_a_layer() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(_Diagonal(4), nn.Tanh(), _Diagonal(4), nn.Tanh(), nn.Linear(4, 2))
    report = initialization_report(_problem(net, 4))
    assert [r.layer for r in report.layers] == ["0", "2", "4"]
    assert report.layers[0].fan_out == 4


def test_batch_normalization_works_as_in_training() -> None:
    torch.manual_seed(0)
    blocks = [m for _ in range(4) for m in (nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU())]
    net = nn.Sequential(*blocks, nn.Linear(16, 2))
    net(torch.randn(30, 16) + 3)  # averages of something else
    problem = _problem(net, 16)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    report = initialization_report(problem, draws=1)
    assert any("statistics of batches" in note for note in report.notes)
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    fresh = drawn_anew(net, 0).train()
    outputs: list[Tensor] = []

    def keep(_layer: nn.Module, _inputs: object, out: Tensor) -> None:
        out.retain_grad()
        outputs.append(out)

    for layer in fresh.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(keep)
    samples = problem.train.some(40, torch.Generator().manual_seed(0))
    nn.functional.cross_entropy(fresh(samples.x), samples.y, reduction="sum").backward()
    lengths = [
        float((out.grad.square().sum() / 40).sqrt()) for out in outputs if out.grad is not None
    ]
    assert [r.fresh for r in report.layers] == pytest.approx(lengths, rel=1e-4)


def test_the_factor_serves_draws_it_was_not_found_with() -> None:
    torch.manual_seed(0)
    blocks = [m for _ in range(10) for m in (nn.Linear(64, 64), nn.ReLU())]
    problem = _problem(nn.Sequential(*blocks, nn.Linear(64, 2)), 64)
    factor = initialization_report(problem, draws=4).factor
    assert factor is not None
    others = mean_interval(fresh_growths(problem, factor=factor, seed=4))
    own = mean_interval(fresh_growths(problem, seed=4))
    assert abs(others.estimate) < 0.05 + (others.high - others.estimate)
    assert own.high < -0.5


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(torch.relu(self.inner(torch.relu(x))))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (nn.Sequential(nn.Linear(8, 200), *(_Block(200) for _ in range(4)), nn.Linear(200, 2)), 8),
        (
            nn.Sequential(
                nn.Conv2d(2, 60, 3), nn.ReLU(), nn.Conv2d(60, 90, 2), nn.ReLU(), nn.Flatten(),
                nn.Linear(810, 2),
            ),
            (2, 6, 6),
        ),
    ],
)  # fmt: skip
def test_branched_networks_and_images_are_predicted(
    net: nn.Module, shape: int | tuple[int, ...]
) -> None:
    problem = _problem(net, *(shape if isinstance(shape, tuple) else (shape,)))
    report = initialization_report(problem, draws=6)
    assert report.notes == ()
    assert report.growth_predicted is not None
    # six draws of a gradient into two outputs
    assert report.growth_predicted == pytest.approx(report.growth, abs=0.1)
    for row in report.layers:
        assert row.predicted == pytest.approx(row.fresh, rel=0.35)
