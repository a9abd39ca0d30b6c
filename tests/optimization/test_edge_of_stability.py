"""The curvature a step can bear, against simulated descent on quadratics."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import SGD, Adam

from torchtheory.core.errors import InvalidInput
from torchtheory.optimization.curvature.edge_of_stability import stability_limit


def optimizer(**options: Any) -> SGD:
    return SGD([torch.ones(1, dtype=torch.float64, requires_grad=True)], **options)


def spectral_radius(curvature: float, lr: float, momentum: float, dampening: float,
                    nesterov: bool, weight_decay: float) -> float:  # fmt: skip
    """Of the linear map (x, buffer) -> (x, buffer) that torch documents for SGD."""
    slope = curvature + weight_decay
    if not momentum:
        return abs(1 - lr * slope)
    buffer = np.array([(1 - dampening) * slope, momentum])  # of x and of the old buffer
    move = np.array([slope, 0.0]) + momentum * buffer if nesterov else buffer
    step = np.array([1.0, 0.0]) - lr * move
    return float(np.abs(np.linalg.eigvals(np.stack([step, buffer]))).max())


@settings(max_examples=30, deadline=None)
@given(
    st.floats(0.01, 1.0),
    st.sampled_from([0.0, 0.3, 0.9]),
    st.sampled_from([0.0, 0.5]),
    st.booleans(),
    st.sampled_from([0.0, 0.2]),
)
def test_the_limit_is_where_the_spectral_radius_is_one(
    lr: float, momentum: float, dampening: float, nesterov: bool, weight_decay: float
) -> None:
    if nesterov:
        dampening, momentum = 0.0, max(momentum, 0.1)
    options = {
        "lr": lr,
        "momentum": momentum,
        "dampening": dampening,
        "nesterov": nesterov,
        "weight_decay": weight_decay,
    }
    limit, remark = stability_limit(optimizer(**options), None)
    assert limit is not None
    assert remark == ""
    assert spectral_radius(limit, **options) == pytest.approx(1, abs=1e-7)
    slack = 0.01 * (limit + weight_decay)
    assert spectral_radius(limit - slack, **options) < 1
    assert spectral_radius(limit + slack, **options) > 1


def test_the_linear_map_is_what_torch_does() -> None:
    x = torch.ones(1, dtype=torch.float64, requires_grad=True)
    method = SGD([x], lr=0.1, momentum=0.5, dampening=0.5, weight_decay=0.2)
    for _ in range(400):
        x.grad = 60.0 * x.detach()
        method.step()
    rate = spectral_radius(60.0, 0.1, 0.5, 0.5, False, 0.2)
    assert math.log(float(x.detach().abs())) / 400 == pytest.approx(math.log(rate), abs=0.01)


def test_where_there_is_no_limit() -> None:
    assert stability_limit(None, 0.5) == (4.0, "")
    assert stability_limit(None, 0.0) == (math.inf, "")
    assert stability_limit(None, None)[0] is None
    assert stability_limit(optimizer(lr=0.0), None)[0] == math.inf
    x = torch.ones(1, requires_grad=True)
    limit, remark = stability_limit(Adam([x]), None)
    assert limit is None
    assert "Adam" in remark
    assert "maximizes" in stability_limit(optimizer(lr=0.1, maximize=True), None)[1]
    two = SGD([{"params": [x]}, {"params": [torch.ones(1, requires_grad=True)], "lr": 0.3}], lr=0.1)
    assert "differently" in stability_limit(two, None)[1]
    with pytest.raises(InvalidInput, match="learning rate"):
        stability_limit(None, -1.0)
    with pytest.raises(InvalidInput, match="learning rate"):
        stability_limit(None, math.nan)
