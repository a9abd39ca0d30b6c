"""Tangent kernels of every architecture, as a module and out of an archive."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.tracing.architectures import NAMES, architecture, archived
from torch import nn

from torchtheory.kernels.tangent.derivatives import Derivatives
from torchtheory.kernels.tangent.kernel import empirical_ntk

#: Those that return one tensor and whose rows are samples.
KERNELS = tuple(n for n in NAMES if n not in ("several-outputs", "gcn", "message-passing"))

#: Parameters that are differentiated as a whole; all others are found where they enter.
WHOLE = {
    "u-net": {"up.weight", "up.bias"},
    "weight-norm": {
        "0.parametrizations.weight.original0", "0.parametrizations.weight.original1",
    },
    "words": {"position"},  # a part of it is added
}  # fmt: skip


def _close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((found - expected).abs().max() <= 1e-11 * expected.abs().max())


@pytest.mark.parametrize("name", KERNELS)
def test_a_module_and_its_archive(name: str, jacobian: Any) -> None:
    model, x = architecture(name).model, architecture(name).x
    full = jacobian(model, x)
    expected = torch.einsum("ncp,mdp->nmcd", full, full)
    whole = WHOLE.get(name, set())
    for one in (model, archived(name)):
        assert _close(empirical_ntk(one, x), expected)
        assert set(Derivatives(one, x).whole) == whole


class Straight(torch.autograd.Function):
    """Cut off at 1, with a derivative that is another beyond it."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.clamp(max=1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, outer: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return torch.where(x > 1, 0.1 * outer, outer)


class CutOff(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(Straight.apply(self.first(x)))


def test_a_derivative_of_the_users_own(jacobian: Any) -> None:
    """The first samples, which are looked at, do not reach the place where it is another."""
    torch.manual_seed(0)
    net = CutOff().double()
    x = torch.randn(9, 3, dtype=torch.float64)
    x[:2] *= 1e-3
    x[4] *= 100
    full = jacobian(net, x)
    assert _close(empirical_ntk(net, x), torch.einsum("ncp,mdp->nmcd", full, full))
    assert not Derivatives(net, x).whole


class Picks(nn.Module):
    """What goes into the layer has another shape for every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.last = nn.Linear(1, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.stack([self.each(v[v > 0][:, None]).sum(0) for v in x]))


def test_shapes_that_depend_on_the_values(jacobian: Any) -> None:
    torch.manual_seed(0)
    net, x = Picks().double(), torch.randn(5, 6, dtype=torch.float64)
    full = jacobian(net, x)
    assert _close(empirical_ntk(net, x), torch.einsum("ncp,mdp->nmcd", full, full))
