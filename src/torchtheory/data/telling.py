r"""How much one column alone tells of the labels of samples it was not fitted to."""

from __future__ import annotations

import torch
from scipy import stats
from torch import Tensor

from torchtheory.core.errors import EmptyData, ShapeMismatch

#: Parts of the data that are left out in turn, and bins of equally many samples of a column.
FOLDS, BINS = 5, 20


def single_column_scores(x: Tensor, labels: Tensor) -> Tensor:
    r"""Scores `[d]` of the columns of `x [n, d]`: 1 where one alone tells the labels `[n]`, 0 none.

    Every fifth of the samples is predicted from the other four, by the bin of the column that a
    sample falls into: the most frequent class, with the score $(a-c)/(1-c)$ of agreement $a$ beyond
    that of the most frequent class, $c$; or the mean of the ranks of the numbers, with the share of
    their variance explained. Ranks do not change under monotone maps, so a logarithm of the target
    tells as much as the target.

    Cost: five sorts of every column.

    >>> x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0)).double()
    >>> tells, says_nothing = single_column_scores(x, x[:, 0].exp()).tolist()
    >>> tells > 0.95, says_nothing < 0.1
    (True, True)
    """
    if x.ndim != 2 or labels.shape != (len(x),):
        raise ShapeMismatch(f"a table [n, d] and labels [n] are needed, not {list(x.shape)}")
    n, d = x.shape
    if n < 2 * BINS:
        raise EmptyData(f"columns in {BINS} bins need at least {2 * BINS} samples, not {n}")
    classes = not labels.is_floating_point()
    if classes:
        kinds, codes = torch.unique(labels.cpu(), return_inverse=True)
        goal = torch.nn.functional.one_hot(codes, len(kinds)).double()
    else:
        ranks = torch.as_tensor(stats.rankdata(labels.cpu().numpy()))
        goal = ((ranks - ranks.mean()) / ranks.std())[:, None].double()
    rows = x.detach().double().cpu()
    fold = torch.arange(n) % FOLDS
    found = torch.zeros(d, n, goal.shape[1], dtype=torch.float64)
    levels = torch.linspace(0, 1, BINS + 1, dtype=torch.float64)[1:-1]
    for k in range(FOLDS):
        inside = fold != k
        edges = rows[inside].quantile(levels, 0).T.contiguous()  # [d, BINS - 1]
        place = torch.searchsorted(edges, rows.T.contiguous(), right=True)  # [d, n]
        for j in range(d):
            total = torch.zeros(BINS, goal.shape[1], dtype=torch.float64)
            count = torch.bincount(place[j, inside], minlength=BINS).double()
            total.index_add_(0, place[j, inside], goal[inside])
            mean = total / count.clamp(min=1)[:, None]
            found[j, ~inside] = mean[place[j, ~inside]]
    if not classes:
        return 1 - (found[:, :, 0] - goal[:, 0]).square().mean(1) / goal.square().mean()
    right = (found.argmax(2) == codes).double().mean(1)
    chance = float(goal.mean(0).max())
    return (right - chance) / (1 - chance) if chance < 1 else torch.zeros(d)
