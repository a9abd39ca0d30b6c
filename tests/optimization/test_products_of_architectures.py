"""Products with the curvature of every architecture that is worked out in stages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.tracing.architectures import NAMES, architecture, archived
from torch import nn

from torchtheory.models.problem import Problem
from torchtheory.optimization.curvature import operators
from torchtheory.optimization.curvature.layer_products import layer_products
from torchtheory.optimization.curvature.operators import gauss_newton_operator, hessian_operator

#: Those whose operations are all known as stages; others are left to autograd.
STAGED = (
    "mlp", "functional", "convolutional", "resnet", "densenet", "squeeze-excite", "deep-set",
    "u-net", "loops",
)  # fmt: skip
#: A table of outputs, or rows that are not samples.
NO_PROBLEM = ("several-outputs", "gcn", "message-passing")


def _problem(model: nn.Module, name: str) -> Problem:
    own = architecture(name)
    torch.manual_seed(1)
    parts = [own.x if not own.x.is_floating_point() else torch.randn_like(own.x) for _ in range(7)]
    x = torch.cat([own.x, *parts])
    with torch.no_grad():
        y = torch.randn_like(architecture(name).model(x))
    return Problem(model, (x, y), task="regression")


def _staged(problem: Problem) -> bool:
    made = layer_products(problem.function, problem.trainable, problem.train.x[:1], 2**30)
    return made is not None


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NO_PROBLEM])
def test_modules(name: str, monkeypatch: Any) -> None:
    problem = _problem(architecture(name).model, name)
    assert _staged(problem) == (name in STAGED)
    for build in (hessian_operator, gauss_newton_operator):
        with monkeypatch.context() as patch:
            patch.setattr(operators, "layer_products", lambda *_: None)
            expected = build(problem).to_dense()
        found = build(problem).to_dense()
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
        assert float(expected.norm()) > 1e-3


@pytest.mark.parametrize("name", [*STAGED, "group-norm", "mixer", "layer-norm"])
def test_an_archive_is_the_same_as_its_module(name: str) -> None:
    module = _problem(architecture(name).model, name)
    archive = _problem(archived(name), name)
    assert _staged(archive) == _staged(module) == (name in STAGED)
    for build in (hessian_operator, gauss_newton_operator):
        torch.testing.assert_close(
            build(archive).to_dense(), build(module).to_dense(), rtol=1e-9, atol=1e-12
        )
