"""Dropout on the hidden units of a linear network is a squared nuclear norm in disguise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import Run, lab
from torchtheory.training.regularizers.dropout import dropout_penalty, equalized_factors


@lab(
    "dropout-low-rank",
    room="training",
    covers=["M-137"],
    title="The penalty of dropout, at its least over all factorizations, is ‖Z‖²⁎ / width: it favors low rank",
    least={"width": 3},
)
def dropout_low_rank(run: Run, width: int = 8) -> None:
    """A linear network V U with dropout between its two layers, on inputs of second moment one.

    Among all networks of one width that compute the same matrix, the penalty of dropout is least
    where all units carry the same load, and there it is the squared nuclear norm over the width.

    Args:
        width: of the factors.
    """
    d = 4
    z = run.randn(3, d) @ torch.diag(torch.tensor([2.0, 1.0, 0.5, 0.1]).double())
    x = torch.linalg.qr(run.randn(40, d)).Q * 40**0.5  # second moment is the identity
    nuclear = float(torch.linalg.svdvals(z).sum())

    def penalty(outer: Tensor, inner: Tensor) -> float:
        """Σ‖u_i‖²‖v_i‖² through the user's function, at the drop probability one half."""
        net = nn.Sequential(nn.Linear(d, len(inner), bias=False), nn.Linear(len(inner), 3, bias=False)).double()
        net[0].weight.data, net[1].weight.data = inner, outer
        return dropout_penalty(net, x, x @ z.T, 0.5).total

    outer, inner = equalized_factors(z, width)
    run.states("M-137", r"UV^\top=Z").equal(outer @ inner, z, 1e-12)
    says = run.states(
        "M-137", r"UV^\top=Z,\ \sum_i\|u_i\|^2\|v_i\|^2=\|Z\|_*^2/d \text{ for the equalized factorization}"
    )
    says.equal(penalty(outer, inner), nuclear**2 / width, 1e-9)
    left, singular, right = torch.linalg.svd(z, full_matrices=False)
    bare = torch.zeros(3, width).double(), torch.zeros(width, d).double()
    bare[0][:, :3], bare[1][:3] = left * singular.sqrt(), singular.sqrt()[:, None] * right
    says.fails("balanced factors that are not equalized", penalty(*bare))
    rivals = []
    for _ in range(200):
        turn = torch.linalg.qr(run.randn(width, width)).Q
        mixed = outer @ turn, turn.T @ inner
        scale = torch.exp(run.randn(width) / 2)
        rivals.append(penalty(mixed[0] * scale, mixed[1] / scale[:, None]))
    says = run.states("M-137", r"\sum_i\|u_i\|^2\|v_i\|^2\ge\|Z\|_*^2/d \text{ for every factorization of width } d")
    says.at_least(
        [*rivals, penalty(outer, inner)],
        nuclear**2 / width,
        1e-9,
        where="200 turned and rescaled networks, and the best one",
    )
    says.fails("a wider network", penalty(*equalized_factors(z, 2 * width)))
    small = run.randn(3, d)
    flat = torch.linalg.svd(small)
    equal = flat.U @ torch.cat([torch.eye(3), torch.zeros(3, 1)], 1).double() @ flat.Vh * nuclear / 3
    rank_one = nuclear * torch.outer(left[:, 0], right[0])
    frobenius = [float(m.square().sum()) for m in (rank_one, equal)]
    values = [penalty(*equalized_factors(m, width)) for m in (rank_one, equal)]
    says = run.states(
        "M-137", r"\text{the penalty depends on } \|Z\|_* \text{ alone, whatever the rank: ratio of two ranks}"
    )
    says.equal(values[0] / values[1], 1.0, 1e-9, where="rank 1 and rank 3 of the same nuclear norm")
    says.fails("the squared Frobenius norm, as weight decay of Z would have it", frobenius[0] / frobenius[1])
    widths = list(range(3, 17))
    run.curves(
        "widths",
        widths,
        {"equalized": [penalty(*equalized_factors(z, w)) for w in widths]},
        {"‖Z‖²⁎ / width": [nuclear**2 / w for w in widths], "balanced, not equalized": [penalty(*bare)] * len(widths)},
        axes=("width", "penalty of dropout"),
        caption="The least penalty over all networks of a width that compute one matrix; half of the units dropped.",
    )
