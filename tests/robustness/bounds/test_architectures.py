"""Bounds of every architecture: no point that sampling or gradients find lies outside of them."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.tracing.architectures import NAMES, Architecture, architecture, outputs_of
from torch import Tensor, nn

from torchtheory.core.errors import InvalidType
from torchtheory.robustness.bounds.output_bounds import METHODS, OutputBounds, output_bounds

#: Networks of numbers; tokens have no ball around them.
BOUNDED = [name for name in NAMES if name != "words"]

RADIUS = 0.03


def extremes(net: nn.Module, x: Tensor, radius: float, steps: int = 6) -> Tensor:
    """Outputs `[k, ...]` at random corners, and where gradients lead from there and from `x`."""
    source = torch.Generator().manual_seed(0)
    found = []
    size = outputs_of(net(x)).numel()
    for k in range(2 * min(size, 3)):
        up, which = 1 - 2 * (k % 2), k // 2
        d = torch.randn(x.shape, generator=source, dtype=torch.float64).sign().to(x)
        point = x + radius * d
        for _ in range(steps):
            point = point.detach().requires_grad_(True)
            out = outputs_of(net(point))
            found.append(out.detach())
            rows = out.reshape(len(out), -1)[:, which % (size // len(out))]
            (slope,) = torch.autograd.grad(up * rows.sum(), point)
            point = x + (point + radius / 2 * slope.sign() - x).clamp(-radius, radius)
        found.append(outputs_of(net(point)).detach())
    return torch.stack(found)


def bounds(one: Architecture, radius: float, method, **options) -> OutputBounds:
    return output_bounds(one.model, one.x, radius, method=method, iterations=3, **options)


@pytest.mark.parametrize("name", BOUNDED)
def test_no_point_leaves_the_bounds(name: str) -> None:
    one = architecture(name)
    out = outputs_of(one.model(one.x)).detach()
    inside = extremes(one.model, one.x, RADIUS)
    boxes = {}
    for method in METHODS:
        found = boxes[method] = bounds(one, RADIUS, method)
        assert found.lower.shape == out.shape
        assert bool(((found.lower <= inside) & (inside <= found.upper)).all())
        point = bounds(one, 0.0, method)
        torch.testing.assert_close(point.lower, out, rtol=0, atol=1e-8)
        torch.testing.assert_close(point.upper, out, rtol=0, atol=1e-8)
    width = {method: float(found.width.mean()) for method, found in boxes.items()}
    assert width["alpha-crown"] <= width["crown"] <= width["interval"]
    assert width["crown"] <= 1.01 * width["crown-interval"]
    # and is not many times what the outputs do
    assert width["crown"] < 8 * float((inside.amax(0) - inside.amin(0)).mean())


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("norm", ["2", "1"])
def test_other_balls(name: str, norm: str) -> None:
    one = architecture(name, seed=1)
    x, rows = one.x, one.rows_are_samples
    source = torch.Generator().manual_seed(0)
    d = torch.randn(30, *x.shape, generator=source, dtype=torch.float64)
    d = d * (torch.rand(d.shape, generator=source) < 0.2)
    flat = d.flatten(2) if rows else d.flatten(1)[:, None]
    d = d / flat.norm(float(norm), dim=2).clamp_min(1e-9).reshape(30, -1, *[1] * (x.ndim - 1))
    points = torch.stack([outputs_of(one.model(x + 0.1 * e)).detach() for e in d])
    for method in ("interval", "crown"):
        found = output_bounds(one.model, x, 0.1, norm, method)
        assert bool(((found.lower <= points) & (points <= found.upper)).all())


@pytest.mark.parametrize("name", BOUNDED)
def test_rounding_is_counted(name: str) -> None:
    """In single precision at a point: what torch computes there, and what it does in double."""
    one = architecture(name, seed=2)
    rough = Architecture(name, copy.deepcopy(one.model).float(), one.x.float())
    exact = copy.deepcopy(rough.model).double()
    outs = [outputs_of(m(rough.x.to(t))).double() for m, t in
            ((rough.model, torch.float32), (exact, torch.float64))]  # fmt: skip
    for method in ("interval", "crown"):
        found = bounds(rough, 0.0, method)
        for out in outs:
            assert bool((found.lower.double() <= out).all())
            assert bool((out <= found.upper.double()).all())
        assert float(found.width.max()) < 0.1 * (1 + float(outs[1].detach().abs().max()))


def test_tokens_are_refused() -> None:
    one = architecture("words")
    with pytest.raises(InvalidType, match="no ball around tokens"):
        output_bounds(one.model, one.x, 0.1)


@pytest.mark.parametrize("name", BOUNDED)
def test_an_exported_network_has_the_bounds_of_its_module(name: str) -> None:
    one = architecture(name)
    rows = {0: torch.export.Dim("n")} if one.rows_are_samples else {}
    exported = torch.export.export(one.model, (one.x,), dynamic_shapes=(rows,)).module()
    for method in ("interval", "crown"):
        mine = output_bounds(one.model, one.x, RADIUS, method=method)
        theirs = output_bounds(exported, one.x, RADIUS, method=method)
        torch.testing.assert_close(mine.lower, theirs.lower, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(mine.upper, theirs.upper, rtol=1e-6, atol=1e-9)
