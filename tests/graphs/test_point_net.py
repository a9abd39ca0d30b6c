"""PointNet: sizes as printed, symmetric, and what it looks at."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchtheory.core.errors import EmptyData, InvalidType, ShapeMismatch
from torchtheory.equivariance.measure import measure_equivariance
from torchtheory.graphs.point_net import (
    PointFeatures,
    PointNet,
    PointNetSegmentation,
    TNet,
    critical_points,
    orthogonality_penalty,
)


def cloud(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def stirred(net: nn.Module) -> nn.Module:
    """T-nets that are no identities any more."""
    source = torch.Generator().manual_seed(3)
    for part in net.modules():
        if isinstance(part, TNet):
            last = part.matrix[-1]
            with torch.no_grad():
                for p in last.parameters():
                    p.copy_(0.1 * torch.randn(p.shape, generator=source, dtype=p.dtype))
    return net


def test_sizes_as_printed() -> None:
    net = PointNet(4)
    local, high = net.points(cloud(2, 5, 3))
    assert local.shape == (2, 5, 64)
    assert high.shape == (2, 5, 1024)
    assert net(cloud(2, 5, 3)).shape == (2, 4)
    assert net(cloud(9, 3)).shape == (4,)  # another number of points, one cloud
    first, second = net.transforms(cloud(2, 5, 3))
    assert first.shape == (2, 3, 3)
    assert second.shape == (2, 64, 64)
    parts = PointNetSegmentation(6)
    assert parts(cloud(2, 5, 3)).shape == (2, 5, 6)
    assert parts.head[0].in_features == 1088


def test_segmentation_is_its_layers_point_by_point() -> None:
    net = PointNetSegmentation(5, 4, 6)  # untrained: both transforms are the identity
    x = cloud(7, 3)

    def through(layers: nn.Module, point: torch.Tensor, last_is_relu: bool) -> torch.Tensor:
        a, b = (m for m in layers.modules() if isinstance(m, nn.Linear))
        hidden = (a.weight @ point + a.bias).clamp(min=0)
        out = b.weight @ hidden + b.bias
        return out.clamp(min=0) if last_is_relu else out

    local = [through(net.points.first, point, True) for point in x]
    high = [through(net.points.second, point, True) for point in local]
    assert isinstance(net.points, PointFeatures)
    found = net.points(x)
    torch.testing.assert_close(found[0], torch.stack(local))
    torch.testing.assert_close(found[1], torch.stack(high))
    whole = torch.stack([max(column) for column in torch.stack(high).T])
    wanted = [through(net.head, torch.cat([point, whole]), False) for point in local]
    torch.testing.assert_close(net(x), torch.stack(wanted))


def test_classes_are_invariant_and_parts_equivariant() -> None:
    x = cloud(3, 12, 3)
    net = stirred(PointNet(4, 8, 32))
    assert measure_equivariance(net, "permutations", x, on_output="invariant").exact
    parts = stirred(PointNetSegmentation(5, 8, 32))
    assert measure_equivariance(parts, "permutations", x, on_output="equivariant").exact
    assert not measure_equivariance(parts, "permutations", x, on_output="invariant").exact


def test_critical_points_are_all_that_counts() -> None:
    net = stirred(PointNet(4, 8, 32))
    x = cloud(300, 3)
    found = critical_points(net, x)
    assert len(found.features) <= 32
    assert all(len(t) <= 32 for t in found.transforms)
    torch.testing.assert_close(net(x[found.indices]), net(x))
    # all of them are needed: without one, some maximum falls
    for left_out in found.features[:5]:
        rest = torch.arange(300) != left_out
        high = critical_points(net, x[rest]).maxima
        assert bool((high < found.maxima - 1e-12).any()) or left_out in torch.cat(found.transforms)
    # points that change no maximum change nothing
    more = torch.cat([x, x[:7], x.mean(0, keepdim=True)])
    after = critical_points(net, more)
    assert after.indices.tolist() == found.indices.tolist()
    torch.testing.assert_close(net(more), net(x))
    far = torch.cat([x, 100 * x[:1]])
    assert float((net(far) - net(x)).abs().max()) > 1e-3


def test_transforms_begin_as_the_identity_and_are_not_kept_rigid() -> None:
    net = PointNet(4, 8, 32)
    first, second = net.transforms(cloud(2, 5, 3))
    assert bool((first == torch.eye(3)).all())
    assert bool((orthogonality_penalty(second) == 0).all())
    first, _ = stirred(net).transforms(cloud(2, 5, 3))  # type: ignore[operator]
    assert bool((orthogonality_penalty(first) > 1e-3).all())


def test_refused() -> None:
    net = PointNet(4, 8, 32)
    with pytest.raises(ShapeMismatch, match=r"point clouds are \[\.\.\., points, 3\]"):
        net(cloud(5, 2))
    with pytest.raises(EmptyData, match="at least one point"):
        net(torch.zeros(0, 3).double())
    with pytest.raises(InvalidType, match="critical points are of a PointNet"):
        critical_points(nn.Linear(3, 4), cloud(5, 3))  # type: ignore[arg-type]
    with pytest.raises(ShapeMismatch, match="one cloud"):
        critical_points(net, cloud(2, 5, 3))


def test_points_in_another_precision_are_refused() -> None:
    with pytest.raises(InvalidType, match="convert one of them"):
        PointNet(3, local=8, features=16)(torch.zeros(5, 3))
