r"""Clusters of heatmaps: which reasons a classifier has for a class, over many samples.

Heatmaps are made coarse and joined to their nearest neighbors; of the normalized Laplacian of this
graph, $L=I-D^{-1/2}AD^{-1/2}$, the number of small eigenvalues before the largest gap is the number
of clusters, and its eigenvectors tell them apart. Source: Mathematical Aspects of Deep Learning,
section 5.3.3 (named there); Lapuschkin et al. (2019).
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.core.checks import whole_number
from torchtheory.core.errors import ShapeMismatch

#: Side of the coarse heatmaps.
COARSE = 8

#: Nearest neighbors that a heatmap is joined to.
NEIGHBORS = 10

#: A link between all heatmaps, so that the graph has one piece; small beside that of neighbors.
LINK = 1e-6


class HeatmapClusters(NamedTuple):
    """Heatmaps that are alike.

    Attributes:
        labels: `[n]`, the number of each heatmap's cluster.
        eigenvalues: the smallest ones of the Laplacian, increasing, one more than clusters allowed.
    """

    labels: Tensor
    eigenvalues: Tensor

    @property
    def members(self) -> list[Tensor]:
        """The numbers of the heatmaps in each cluster."""
        count = int(self.labels.max()) + 1
        return [(self.labels == k).nonzero().flatten() for k in range(count)]


def heatmap_clusters(heatmaps: Tensor, most: int = 4) -> HeatmapClusters:
    """Clusters of heatmaps, as many as the eigengap of their graph says.

    Args:
        heatmaps: `[n, height, width]`, or `[n, features]`.
        most: clusters that are allowed.

    Time is cubic in the number of heatmaps.

    >>> left, right = torch.zeros(20, 8, 8), torch.zeros(20, 8, 8)
    >>> draw = torch.Generator().manual_seed(0)
    >>> left[:, :, :3] = torch.rand(20, 8, 3, generator=draw)
    >>> right[:, :, 5:] = torch.rand(20, 8, 3, generator=draw)
    >>> sorted(len(m) for m in heatmap_clusters(torch.cat([left, right])).members)
    [20, 20]
    """
    from sklearn.cluster import SpectralClustering
    from sklearn.neighbors import kneighbors_graph

    whole_number(most, "most", least=1)
    if heatmaps.ndim not in (2, 3) or len(heatmaps) < 2:
        raise ShapeMismatch(
            f"clusters need two heatmaps [height, width] or more, not {list(heatmaps.shape)}"
        )
    rows = coarse(heatmaps)
    joined = kneighbors_graph(rows.numpy(), min(NEIGHBORS, len(rows) - 1), include_self=False)
    graph = joined.toarray()
    graph = (graph + graph.T) / 2 + LINK
    near = torch.from_numpy(graph).fill_diagonal_(0)
    scale = near.sum(1).rsqrt()
    laplacian = torch.eye(len(rows), dtype=torch.float64) - scale[:, None] * near * scale
    small = torch.linalg.eigvalsh(laplacian)[: min(most, len(rows) - 1) + 1]
    count = int(small.diff().argmax()) + 1
    labels = torch.zeros(len(rows), dtype=torch.long)
    if count > 1:
        found = SpectralClustering(
            count, affinity="precomputed", assign_labels="cluster_qr", random_state=0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the solver's, on graphs of almost separate pieces
            labels = torch.as_tensor(found.fit_predict(graph)).long()
    return HeatmapClusters(labels, small)


def coarse(heatmaps: Tensor) -> Tensor:
    """Heatmaps as rows, images averaged to 8 x 8 pixels at most, each of length 1."""
    rows = heatmaps.detach().cpu().double()
    if rows.ndim == 3:
        size = (min(COARSE, rows.shape[1]), min(COARSE, rows.shape[2]))
        rows = F.adaptive_avg_pool2d(rows, size).flatten(1)
    return F.normalize(rows, dim=1)
