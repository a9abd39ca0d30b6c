"""Models and arguments that have no tangent kernel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
    UnknownName,
    UnsupportedModel,
)
from torchtheory.kernels.tangent.kernel import empirical_ntk


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), "1 .BatchNorm1d. is in training mode"),
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), "output is random; call model.eval"),
        (nn.BatchNorm1d(4, track_running_stats=False).eval(), "has no running statistics"),
        (nn.Sequential(nn.RReLU(), nn.Linear(4, 2)), "output is random; call model.eval"),
    ],
)
def test_modes_that_have_no_kernel(model: nn.Module, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        empirical_ntk(model, torch.randn(3, 4))


class Noisy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.randn(len(x), 1)


class Centered(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


class Pair(nn.Linear):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x), x


class Summed(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sum()


def test_models_that_have_no_kernel() -> None:
    x = torch.randn(3, 4)
    for model, message in (
        (Noisy(4, 2), "output is random"),
        (Centered(4, 2), "depends on the other samples"),
        (Pair(4, 2), "returns tuple"),
    ):
        with pytest.raises(UnsupportedModel, match=message):
            empirical_ntk(model, x)
    with pytest.raises(ShapeMismatch, match="first dimension must be the samples"):
        empirical_ntk(Summed(4, 2), x)
    with pytest.raises(UnsupportedModel, match="raised RuntimeError on inputs of shape"):
        empirical_ntk(nn.Linear(5, 2), x)


def test_refused_arguments() -> None:
    net, x = nn.Linear(4, 2), torch.randn(3, 4)
    with pytest.raises(InvalidInput, match="outputs must be"):
        empirical_ntk(net, x, outputs="sum")
    with pytest.raises(InvalidInput, match="memory must be"):
        empirical_ntk(net, x, memory="lots")
    with pytest.raises(UnknownName, match="weigth"):
        empirical_ntk(net, x, only=["weigth"])
    with pytest.raises(InvalidType, match="a list of parameter"):
        empirical_ntk(net, x, only="weight")
    with pytest.raises(InvalidInput, match="no trainable parameter"):
        empirical_ntk(net, x, only=[])
    with pytest.raises(InvalidInput, match="no sample"):
        empirical_ntk(net, x[:0])
    with pytest.raises(NonFinite, match="inputs contain NaN"):
        empirical_ntk(net, x / 0)
    with pytest.raises(ShapeMismatch, match=r"x1 is torch\.float32"):
        empirical_ntk(net, x, x.double())
    with pytest.raises(InvalidInput, match="needs its parameters"):
        empirical_ntk(lambda p, v: v, x)
    with pytest.raises(InvalidType, match=r"must be a torch.nn.Module or a function"):
        empirical_ntk("net", x)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="lack bias"):
        empirical_ntk(net, x, parameters={"weight": net.weight})
    broken = nn.Linear(4, 2)
    with torch.no_grad():
        broken.weight[0, 0] = float("nan")
    with pytest.raises(NonFinite, match="weight"):
        empirical_ntk(broken, x)
