"""Records of descents: from iterates, from an optimizer with a closure, from a training."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.models.problem import Problem
from torchtheory.optimization.certificates.assumptions import Assumptions
from torchtheory.optimization.certificates.certify import certify
from torchtheory.optimization.certificates.recorded_runs import (
    as_recorded,
    record_optimizer,
    record_points,
    record_run,
)
from torchtheory.optimization.descent.iterates import gradient_descent
from torchtheory.optimization.descent.objectives import objective_of
from torchtheory.training.loop.history import Epoch, History
from torchtheory.training.loop.trainer import fit
from torchtheory.training.optimizers.momentum import HeavyBall, Nesterov

SPECTRUM = torch.tensor([1.0, 3.0, 8.0], dtype=torch.float64)
START = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def bowl(x: torch.Tensor) -> torch.Tensor:
    return (SPECTRUM.to(x) * x.square()).sum(-1) / 2


def test_points_are_what_gradient_descent_recorded() -> None:
    run = gradient_descent(bowl, START, 0.1, 12)
    for points in (run.points, list(run.points), run.points.numpy(), list(run.points.numpy())):
        found = record_points(bowl, points)
        assert torch.equal(found.values, run.values)
        assert torch.equal(found.gradient_norms, run.gradient_norms)  # type: ignore[arg-type]
        assert torch.equal(found.points, run.points)  # type: ignore[arg-type]
    many = record_points(bowl, torch.stack([run.points, 2 * run.points], 1))
    assert many.trials == 2
    assert torch.allclose(many.values[:, 1], 4 * run.values)


@pytest.mark.parametrize("method", [torch.optim.SGD, HeavyBall, Nesterov])
def test_an_optimizer_is_recorded_as_a_loop_would(method: type[torch.optim.Optimizer]) -> None:
    def setting() -> tuple[torch.Tensor, torch.optim.Optimizer]:
        x = START.clone().requires_grad_()
        return x, method([x], lr=0.1, momentum=0.5)  # type: ignore[call-arg]

    def closure_of(x: torch.Tensor, optimizer: torch.optim.Optimizer):  # type: ignore[no-untyped-def]
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = bowl(x)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        return closure

    x, optimizer = setting()
    found = record_optimizer(optimizer, closure_of(x, optimizer), 5)
    y, other = setting()
    points = [y.detach().clone()]
    for _ in range(5):
        other.step(closure_of(y, other))  # type: ignore[arg-type]
        points.append(y.detach().clone())
    assert torch.equal(found.points, torch.stack(points))  # type: ignore[arg-type]
    assert torch.allclose(found.values, bowl(torch.stack(points)))
    assert torch.allclose(
        found.gradient_norms,  # type: ignore[arg-type]
        (SPECTRUM * torch.stack(points)).norm(dim=-1),
    )
    assert torch.equal(x, y)


def test_a_closure_over_a_network_is_certified() -> None:
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(6, 2)
    net = nn.Linear(2, 1, bias=False).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (net(x) - x[:, :1]).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    big = float(torch.linalg.eigvalsh(2 * x.T @ x / 6)[-1])
    run = record_optimizer(optimizer, closure, 20)
    found = certify(run, Assumptions("smooth", 0.2, smoothness=big, minimum=0.0))
    assert found.kept
    assert not found.contradictions
    lean = record_optimizer(optimizer, closure, 3, keep_points=False)
    assert lean.points is None
    # another step than was taken is seen from lengths and gradients
    wrong = certify(run, Assumptions("smooth", 0.1, smoothness=big, minimum=0.0))
    assert "step" in {c.assumption for c in wrong.contradictions}


def test_the_history_of_a_full_batch_training_is_a_run() -> None:
    x = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(10, 2)
    y = x.sum(1, keepdim=True) + 1
    net = nn.Linear(2, 1).double()
    f, start = objective_of(Problem(net, (x, y), task="regression"))
    plain = gradient_descent(f, start, 0.1, 7)
    history = fit(
        net, (x, y), epochs=8, batch_size=10, optimizer="sgd", learning_rate=0.1, task="regression"
    )
    assert torch.allclose(as_recorded(history).values, plain.values)
    inputs = torch.cat([x, torch.ones(10, 1, dtype=torch.float64)], 1)
    big = float(torch.linalg.eigvalsh(2 * inputs.T @ inputs / 10)[-1])
    known = {"smoothness": big, "minimum": 0.0, "distance": float((start - 1).norm())}
    assert certify(history, Assumptions("convex", 0.1, **known)).kept
    changed = History([Epoch(1, 2.0, learning_rate=0.1), Epoch(2, 1.0, learning_rate=0.05)])
    with pytest.raises(InvalidInput, match="constant"):
        as_recorded(changed)
    with pytest.raises(EmptyData):
        as_recorded(History())


def test_losses_in_the_forms_people_keep_them() -> None:
    kept = [3.0, 2.0, 1.0]
    graph = torch.tensor(kept, dtype=torch.float64, requires_grad=True)
    for losses in (kept, [3, 2, 1], np.array(kept), graph, list(graph.unbind()), tuple(kept)):
        assert as_recorded(losses).values.tolist() == kept  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match="record_points"):
        as_recorded([torch.zeros(2), torch.zeros(2)])
    with pytest.raises(InvalidType, match="numbers"):
        as_recorded("losses")  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match="floating"):
        as_recorded(torch.tensor([3, 2, 1]))
    with pytest.raises(InvalidType, match="record_optimizer"):
        as_recorded(lambda: torch.ones(1))  # type: ignore[arg-type,return-value]
    with pytest.raises(ShapeMismatch, match="trials"):
        as_recorded(torch.ones(2, 2, 2))
    with pytest.raises(InvalidType, match="times"):
        record_run(kept, times=["a", "b", "c"])  # type: ignore[list-item]


def test_bad_records_are_refused() -> None:
    with pytest.raises(InvalidType, match="vectors"):
        record_points(bowl, torch.zeros(3))
    with pytest.raises(InvalidType, match="vectors"):
        record_points(bowl, torch.zeros(3, 3, dtype=torch.int64))
    with pytest.raises(EmptyData):
        record_points(bowl, [])
    with pytest.raises(ShapeMismatch, match="same shape"):
        record_points(bowl, [torch.zeros(3), torch.zeros(2)])
    with pytest.raises(ShapeMismatch, match="one value a vector"):
        record_points(lambda x: x, torch.zeros(2, 3))
    with pytest.raises(NonFinite):
        record_points(lambda x: bowl(x) / 0.0 * 0.0, torch.zeros(2, 3))
    x = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([x], lr=0.1)
    with pytest.raises(InvalidInput, match="steps"):
        record_optimizer(optimizer, lambda: x.sum(), -1)
    with pytest.raises(InvalidType, match="closure"):
        record_optimizer(optimizer, lambda: 1.0, 2)  # type: ignore[arg-type,return-value]
    with pytest.raises(InvalidInput, match="start at 0"):
        record_run([1.0, 2.0], times=[1, 2])
    with pytest.raises(ShapeMismatch, match="times"):
        record_run([1.0, 2.0], times=[0])
    assert math.isinf(float(record_run([1.0, math.inf]).values[1]))
