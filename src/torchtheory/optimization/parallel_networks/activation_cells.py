r"""The cells of weights that switch the same samples on, and what is largest over all of them.

For inputs $x_1,\dots,x_m$ the planes $\{w:x_i^\top w=0\}$ cut the weights of a ReLU
unit into cones, one for each activation pattern $\{i:x_i^\top w>0\}$. On a cone

$$
f(w)=\sum_iq_i\max(x_i^\top w,0)=g^\top w,\qquad g=\sum_{x_i^\top w>0}q_ix_i,
$$

so that the largest $|f|$ on the sphere is at $g$ projected onto a face of some cone.
Every cone has an edge, an edge is where $d-1$ planes meet, and the faces at an edge are cut
out by some of these planes: to go over all edges is to go over all faces. That takes
$2\binom m{d-1}$ edges with $4^{d-1}$ faces and signs each; no linear program.
Source: Mathematical Aspects of Deep Learning, section 4.4.2, for which it solves Eq. (4.49).
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_matrix
from torchtheory.core.random import as_generator, gaussian
from torchtheory.expressivity.enumeration import enumerate_regions

#: Faces that are looked at, at most.
MOST_FACES = 1.5e6
#: Numbers that are held at once.
CHUNK = 2_000_000
#: Directions that are kept of each chunk, at most.
MOST_KEPT = 50
#: Planes of a smaller angle are one.
SAME_PLANE = 1e-10
#: How far samples are moved where more planes meet in an edge than there should, in turn.
SHIFTS = (0.0, 1e-10, 1e-8)


def activation_patterns(x: Tensor) -> Tensor:
    r"""The sets $\{i:x_i^\top w>0\}$ that occur on open sets of $w$, as 0 and 1.

    Args:
        x: `[m, d]`.

    Returns:
        `[patterns, m]`; in general position $2\sum_{k<d}\binom{m-1}k$ of them.

    Time $O(m^2)$ for $d\le2$, a linear program for each pattern and sample beyond.

    >>> len(activation_patterns(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])))
    6
    """
    x = nn.functional.normalize(as_matrix(x, "the inputs").double(), dim=1, eps=1e-300)
    if x.shape[1] == 1:
        patterns = (x.new_tensor([[1.0], [-1.0]]) @ x.T > 0).double()
    elif x.shape[1] == 2:
        patterns = sector_patterns(x)
    else:
        patterns = _patterns_of_regions(x)
    found: Tensor = torch.unique(patterns, dim=0)
    return found


def _patterns_of_regions(x: Tensor) -> Tensor:
    layer = nn.Linear(x.shape[1], len(x), bias=False, dtype=torch.float64)
    layer.weight = nn.Parameter(x.clone(), requires_grad=False)
    one = torch.ones(x.shape[1], dtype=torch.float64)
    inside = enumerate_regions(nn.Sequential(layer, nn.ReLU()), -one, one).points
    return (inside @ x.T > 0).double()


def span_of_rows(x: Tensor) -> Tensor:
    """An orthonormal basis `[r, d]` of what the rows of `x[m, d]` span."""
    _, sigma, right = torch.linalg.svd(x, full_matrices=False)
    largest = float(sigma[0]) if len(sigma) else 0.0
    rank = int((sigma > max(x.shape) * torch.finfo(x.dtype).eps * largest).sum())
    basis: Tensor = right[:rank]
    return basis if largest > 0 else basis[:0]


def kinks(x: Tensor) -> Tensor:
    """The angles at which some sample `x[m, 2]` is switched, ascending in [0, 2 pi)."""
    seen = x[x.norm(dim=1) > 0]
    angle = torch.atan2(seen[:, 1], seen[:, 0])
    turned = torch.cat([angle + torch.pi / 2, angle - torch.pi / 2]) % (2 * torch.pi)
    found: Tensor = torch.unique(torch.cat([turned, turned.new_zeros(1)]))
    return found


def circle(angle: Tensor) -> Tensor:
    """Points of the unit circle, `[n, 2]`."""
    return torch.stack([angle.cos(), angle.sin()], 1)


def sector_patterns(x: Tensor) -> Tensor:
    """The pattern of each sector between two kinks of `x[m, 2]`, in their order."""
    ends = kinks(x)
    middle = circle((ends + torch.cat([ends[1:], ends[:1] + 2 * torch.pi])) / 2)
    return (middle @ x.T > 0).to(x)


def edges(x: Tensor) -> Tensor:
    r"""Unit vectors along all edges of the cones, both ways, `[k, r]`, for `x[m, r]` of rank r.

    On a cone the outputs $\max(Xw,0)$ are linear, so those of its edges generate them: what
    units can say at all is what the units along edges can.
    """
    if x.shape[1] == 1:
        return x.new_tensor([[1.0], [-1.0]])
    if x.shape[1] == 2:
        return circle(kinks(x))
    planes, _ = _planes(x)
    found, conditions = _edges_of(planes[_subsets(len(planes), x.shape[1] - 1)])
    found = found[conditions > SAME_PLANE]
    return torch.cat([found, -found])


def best_directions(x: Tensor, q: Tensor, known: Tensor) -> tuple[Tensor, float] | None:
    r"""Unit vectors, one of which maximizes $|\sum_iq_i\max(x_i^\top w,0)|$ on the sphere.

    Args:
        x: `[m, r]` of rank $r\ge3$, in double precision.
        q: `[m]`.
        known: unit vectors `[k, r]` to begin with: only what may be better is looked at.

    Returns:
        `known` and the better ones `[k, r]`, and by how much the best of them can be off; or
        None where there are too many faces, or planes too close to tell them apart.
    """
    rank = x.shape[1]
    if 2.0 * math.comb(len(x), rank - 1) * 4.0 ** (rank - 1) > MOST_FACES:
        return None
    planes, side = _planes(x)
    lengths = ((x @ planes.T) * side.abs()).sum(1, keepdim=True)
    source = as_generator(0)
    for shift in SHIFTS:
        noise = gaussian(*planes.shape, generator=source, dtype=x.dtype, device=x.device)
        turned = nn.functional.normalize(planes + shift * noise, dim=1)
        moved = lengths * (side.abs() @ turned)
        found = _over_faces(turned, side, moved, q, known)
        if found is not None:
            # once from the samples to the moved ones, and once back
            return found, 2 * float(q.abs() @ (moved - x).norm(dim=1))
    return None


def _over_faces(planes: Tensor, side: Tensor, x: Tensor, q: Tensor, known: Tensor) -> Tensor | None:
    """The best directions of all cells, or None where too many planes meet in an edge.

    Args:
        planes: normals, `[k, r]`.
        side: on which side of which plane a sample is, `[m, k]` of 1, -1 and 0.
        x: `[m, r]`, each along the normal of its plane.
        q: `[m]`.
        known: `[k, r]`.
    """

    def sizes(w: Tensor) -> Tensor:
        return (torch.relu(w @ x.T) @ q).abs()

    rank = x.shape[1]
    weighted = q[:, None] * x
    up, down = (side > 0).to(x).T @ weighted, (side < 0).to(x).T @ weighted  # g by planes
    corners = torch.tensor(list(itertools.product((True, False), repeat=rank - 1))).to(x.device)
    best, least = [known], float(sizes(known).max())
    step = max(1, CHUNK // (len(planes) + 4**rank))
    for chosen in torch.split(_subsets(len(planes), rank - 1).to(x.device), step):
        edge, condition = _edges_of(planes[chosen])
        height = edge @ planes.T
        doubt = 100 * torch.finfo(x.dtype).eps / condition.clamp(min=1e-300)
        if bool((height.abs() < doubt[:, None]).scatter(1, chosen, False).any()):
            return None
        height = height.scatter(1, chosen, 0.0)
        # g in the cells at either end of every edge: the planes that meet there have any sides
        far = torch.stack(
            [(way > 0).to(x) @ up + (way < 0).to(x) @ down for way in (height, -height)]
        )
        near = torch.where(corners[:, :, None], up[chosen][:, None], down[chosen][:, None]).sum(2)
        slopes = far[:, :, None] + near  # [2, b, corners, r]
        faces = torch.einsum("bfij,ebcj->ebfci", _onto_faces(planes[chosen]), slopes)
        faces = faces.reshape(-1, rank)
        # in its own face the value is the length of the projection, and others do not count
        faces = nn.functional.normalize(faces[faces.norm(dim=1) > least], dim=1)
        for some in torch.split(torch.cat([faces, -faces]), max(1, CHUNK // len(x))):
            values = sizes(some)
            top = values.topk(min(MOST_KEPT, len(values)))
            better = top.indices[top.values > least]
            if len(better):
                best.append(some[better])
                least = float(top.values[0])
    return torch.cat(best)


def _planes(x: Tensor) -> tuple[Tensor, Tensor]:
    """The different planes by their normals `[k, r]`, and on which side of which a sample is:
    `[m, k]` of 1, -1 and 0."""
    units = nn.functional.normalize(x, dim=1, eps=1e-300)
    seen = x.norm(dim=1) > 0
    sign = (units @ units.T).sign()
    same = ((units[:, None] - sign[..., None] * units).norm(dim=2) < SAME_PLANE) & seen
    leader = same.int().argmax(1)  # the first sample of the plane
    while not torch.equal(leader[leader], leader):  # to be close is not transitive
        leader = leader[leader]
    chosen = torch.unique(leader[seen])
    side = sign[:, chosen] * (leader[:, None] == chosen) * seen[:, None]
    return units[chosen], side


def _subsets(count: int, size: int) -> Tensor:
    return torch.combinations(torch.arange(count), size)


def _edges_of(normals: Tensor) -> tuple[Tensor, Tensor]:
    """What `[b, r - 1, r]` planes have in common, `[b, r]`, and how well that is determined."""
    _, sigma, right = torch.linalg.svd(normals, full_matrices=True)
    return right[:, -1], sigma[:, -1]


def _onto_faces(normals: Tensor) -> Tensor:
    """Onto what any of the `[b, k, r]` planes have in common: projections `[b, 2^k, r, r]`."""
    count, rank = normals.shape[1:]
    identity = torch.eye(rank).to(normals).expand(len(normals), rank, rank)
    found = []
    for chosen in itertools.product((False, True), repeat=count):
        some = normals[:, torch.tensor(chosen)]
        basis, _ = torch.linalg.qr(some.mT)
        found.append(identity - basis @ basis.mT)
    return torch.stack(found, 1)
