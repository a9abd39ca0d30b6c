r"""PointNet: classes of point clouds, and of their points, in whatever order these come.

Every point of a cloud $X\in\mathbb R^{M\times3}$ goes through the same layers; a coordinatewise
maximum over the points makes one vector of them. Before the first and the second stage the points
are multiplied by a matrix that a small network of the same kind reads from the whole cloud, a
*T-net*. Such a matrix is unconstrained: it begins as the identity, and only a penalty
(`orthogonality_penalty`) keeps it near a rotation.

A maximum is attained at some point: the points where one is, at most as many as there are features,
are the cloud's *critical points*, and nothing else of the cloud has any influence.

Source: Deep Learning (notes), section 7.3; C. R. Qi et al., PointNet (2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_batch, described, whole_number
from torchtheory.core.errors import EmptyData, InvalidType, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.graphs.deep_sets import pooled
from torchtheory.nets.feedforward import mlp

#: Features of a point and of a cloud, as printed.
LOCAL, GLOBAL = 64, 1024


class TNet(nn.Module):
    r"""A matrix $T\in\mathbb R^{k\times k}$ for each cloud, of which the points become $XT$.

    The last layer starts at 0 and adds the identity, so that an untrained T-net changes nothing.

    Args:
        size: $k$, the numbers of a point.
        local, features: units before the maximum, and those that it is taken over.
        hidden: units between the maximum and the matrix.

    >>> bool((TNet(3, 8, 16, 8)(torch.randn(2, 5, 3).double()) == torch.eye(3)).all())
    True
    """

    def __init__(
        self,
        size: int,
        local: int = LOCAL,
        features: int = GLOBAL,
        hidden: int = 256,
        *,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        source = as_generator(generator)
        self.size = whole_number(size, "size", least=1)
        self.points = mlp([size, local, features], output="relu", generator=source, dtype=dtype)
        self.matrix = mlp([features, hidden, size**2], generator=source, dtype=dtype)
        for parameter in self.matrix[-1].parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        entries = self.matrix(pooled(self.points(x), "max")).unflatten(-1, (self.size, self.size))
        made: Tensor = entries + torch.eye(self.size, dtype=entries.dtype, device=entries.device)
        return made


class PointFeatures(nn.Module):
    """What PointNet knows of each point, before anything is pooled.

    Two stages: a T-net, then layers on each point; `local` features after the first, `features`
    after the second.
    """

    def __init__(
        self,
        local: int = LOCAL,
        features: int = GLOBAL,
        coordinates: int = 3,
        *,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        source = as_generator(generator)
        self.local = whole_number(local, "local", least=1)
        self.features = whole_number(features, "features", least=1)
        self.coordinates = whole_number(coordinates, "coordinates", least=1)
        hidden = max(1, features // 4)
        nets = [
            TNet(k, local, features, hidden, generator=source, dtype=dtype)
            for k in (coordinates, local)
        ]
        self.first_transform, self.second_transform = nets
        self.first = mlp([coordinates, local, local], output="relu", generator=source, dtype=dtype)
        self.second = mlp(
            [local, 2 * local, features], output="relu", generator=source, dtype=dtype
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Local features `[..., M, local]`, and those to be pooled, `[..., M, features]`."""
        local = self.first(x @ self.first_transform(x))
        local = local @ self.second_transform(local)
        return local, self.second(local)


class _OnPoints(nn.Module):
    """What classification and segmentation share."""

    def __init__(self, points: PointFeatures) -> None:
        super().__init__()
        self.points = points

    def check(self, x: Tensor) -> None:
        wanted = self.points.coordinates
        if not isinstance(x, Tensor) or x.ndim < 2 or x.shape[-1] != wanted:
            raise ShapeMismatch(
                f"point clouds are [..., points, {wanted}], and this is {described(x)}"
            )
        weights = next(self.parameters()).dtype
        if x.dtype != weights:
            raise InvalidType(
                f"the weights are {weights} and the points {x.dtype}: convert one of them"
            )
        if x.shape[-2] == 0:
            raise EmptyData("a point cloud needs at least one point")

    def transforms(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The two matrices for each cloud, `[..., 3, 3]` and `[..., local, local]`."""
        self.check(x)
        first = self.points.first_transform(x)
        return first, self.points.second_transform(self.points.first(x @ first))


class PointNet(_OnPoints):
    """The class of a point cloud, as logits `[..., classes]` of clouds `[..., M, 3]`.

    Args:
        classes: how many.
        local, features: of a point, and of a cloud; 64 and 1024 unless given.
        coordinates: of a point.
        generator: generator or seed for the weights.

    The output does not depend on the order of the points, nor on those that attain no maximum.
    Time and memory: O(M · features · local).

    >>> net = PointNet(4, local=8, features=32)
    >>> x = torch.randn(2, 50, 3, generator=torch.Generator().manual_seed(0)).double()
    >>> net(x).shape, len(critical_points(net, x[0]).indices) <= 3 * 32
    (torch.Size([2, 4]), True)
    """

    def __init__(
        self,
        classes: int,
        local: int = LOCAL,
        features: int = GLOBAL,
        coordinates: int = 3,
        *,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        source = as_generator(generator)
        super().__init__(PointFeatures(local, features, coordinates, generator=source, dtype=dtype))
        hidden = max(1, features // 2)
        self.head = mlp([features, hidden, classes], generator=source, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        made: Tensor = self.head(pooled(self.points(x)[1], "max"))
        return made


class PointNetSegmentation(_OnPoints):
    """The part each point belongs to, as logits `[..., M, parts]` of clouds `[..., M, 3]`.

    Next to its own local features a point has those of the whole cloud: 64 + 1024 = 1088 numbers.

    >>> PointNetSegmentation(5).head[0].in_features
    1088
    """

    def __init__(
        self,
        parts: int,
        local: int = LOCAL,
        features: int = GLOBAL,
        coordinates: int = 3,
        *,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        source = as_generator(generator)
        super().__init__(PointFeatures(local, features, coordinates, generator=source, dtype=dtype))
        hidden = max(1, features // 4)
        self.head = mlp([local + features, hidden, parts], generator=source, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        local, high = self.points(x)
        whole = pooled(high, "max")[..., None, :].expand(*high.shape)
        made: Tensor = self.head(torch.cat([local, whole], -1))
        return made


def orthogonality_penalty(matrices: Tensor) -> Tensor:
    r"""$\|I-TT^\top\|_F^2$ of each matrix `[..., k, k]`, 0 for rotations and reflections.

    >>> orthogonality_penalty(2 * torch.eye(2)).item()
    18.0
    """
    eye = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
    return (eye - matrices @ matrices.mT).square().sum((-2, -1))


@dataclass(frozen=True, slots=True)
class CriticalPoints:
    """The points of a cloud that PointNet looks at.

    Attributes:
        features: numbers of the points where one of the cloud's features is attained, ascending;
            of several points that attain one, the first.
        transforms: the same for the maxima inside the two T-nets.
        maxima: the cloud's features, `[features]`.
    """

    features: Tensor
    transforms: tuple[Tensor, Tensor]
    maxima: Tensor

    @property
    def indices(self) -> Tensor:
        """All of them: these points alone give the output of the whole cloud."""
        found: Tensor = torch.unique(torch.cat([self.features, *self.transforms]))
        return found


def critical_points(model: PointNet | PointNetSegmentation, cloud: Tensor) -> CriticalPoints:
    """Which points of a cloud `[M, 3]` attain a maximum, of the features and inside the T-nets.

    >>> net = PointNet(3, local=8, features=16)
    >>> cloud = torch.randn(100, 3, generator=torch.Generator().manual_seed(0)).double()
    >>> keep = critical_points(net, cloud).indices
    >>> bool(torch.allclose(net(cloud[keep]), net(cloud)))
    True
    """
    if not isinstance(model, _OnPoints):
        raise InvalidType(f"critical points are of a PointNet, not of {described(model)}")
    cloud = as_batch(cloud, "the cloud")
    if cloud.ndim != 2:
        raise ShapeMismatch(f"one cloud is [points, 3], not {list(cloud.shape)}")
    model.check(cloud)
    points = model.points
    with torch.no_grad():
        turned = cloud @ points.first_transform(cloud)
        before = points.first(turned)
        local = before @ points.second_transform(before)
        seen: Sequence[Tensor] = (
            points.first_transform.points(cloud),
            points.second_transform.points(before),
            points.second(local),
        )
    first, second, features = (
        torch.unique((s == s.amax(0)).to(torch.int8).argmax(0)) for s in seen
    )
    return CriticalPoints(features, (first, second), seen[2].amax(0))
