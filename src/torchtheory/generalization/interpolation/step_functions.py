r"""The best step function with a given number of pieces, exactly.

On $k$ ordered points a network with one input, $w$ hidden threshold units and a
linear output is a step function with at most $w+1$ pieces. Its least weighted squared error
is found by dynamic programming, so that the best approximation, the empirical risk minimizer and
the result of a mere greedy search can be told apart.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.core.checks import first_entry
from torchtheory.core.errors import InvalidInput, ShapeMismatch


def best_steps(weights: Tensor, targets: Tensor, pieces: int) -> Tensor:
    r"""The minimizers of $\sum_iw_i(f_i-t_i)^2$ over 1, 2, ... pieces, `[pieces, ..., k]`.

    A piece without weight takes the weighted mean of all targets. Time and memory are
    $O(k^2)$ for each problem and number of pieces.

    Args:
        weights: `[..., k]`, not negative.
        targets: `[..., k]`.

    >>> w, t = torch.ones(4), torch.tensor([0.0, 0.0, 1.0, 5.0])
    >>> best_steps(w, t, 3)
    tensor([[1.5000, 1.5000, 1.5000, 1.5000],
            [0.3333, 0.3333, 0.3333, 5.0000],
            [0.0000, 0.0000, 1.0000, 5.0000]])
    """
    w, t, shape = _problems(weights, targets, pieces)
    cost = _costs(w, t)
    k = w.shape[1]
    least = cost[:, 0]  # [s, k + 1]: the cost of the first j points
    cuts = torch.zeros_like(w, dtype=torch.bool)
    found = [_means(w, t, cuts)]
    came: list[Tensor] = []
    for _ in range(1, pieces):
        # j stands for the end of the last piece, i for its beginning; i = j makes it empty
        least, start = (least[:, :, None] + cost).min(1)
        came.append(start)
        end = torch.full((len(w),), k, device=w.device)
        cuts = torch.zeros_like(w, dtype=torch.bool)
        for earlier in reversed(came):
            end = earlier.gather(1, end[:, None]).squeeze(1)
            inside = (end > 0) & (end < k)
            cuts[inside.nonzero().flatten(), end[inside]] = True
        found.append(_means(w, t, cuts))
    return torch.stack(found).reshape(pieces, *shape)


def greedy_steps(weights: Tensor, targets: Tensor, pieces: int) -> Tensor:
    """As `best_steps`, but each cut is the one that helps most and is never taken back.

    This is how a regression tree grows; it need not reach the least error.

    >>> w, t = torch.ones(4), torch.tensor([0.0, 0.0, 1.0, 5.0])
    >>> greedy_steps(w, t, 2)[1]
    tensor([0.3333, 0.3333, 0.3333, 5.0000])
    """
    w, t, shape = _problems(weights, targets, pieces)
    cost = _costs(w, t)
    rows = torch.arange(len(w), device=w.device)
    inner = torch.arange(w.shape[1], device=w.device)
    left = torch.zeros_like(w, dtype=torch.int64)
    right = torch.full_like(left, w.shape[1])
    cuts = torch.zeros_like(w, dtype=torch.bool)
    found = [_means(w, t, cuts)]
    for _ in range(1, pieces):
        gain = (
            cost[rows[:, None], left, right]
            - cost[rows[:, None], left, inner]
            - cost[rows[:, None], inner, right]
        )
        cut = gain.masked_fill(left == inner, -torch.inf).argmax(1, keepdim=True)
        cuts = cuts.scatter(1, cut, True)
        low, high = left.gather(1, cut), right.gather(1, cut)
        within = (inner >= low) & (inner < high)
        left = torch.where(within & (inner >= cut), cut, left)
        right = torch.where(within & (inner < cut), cut, right)
        found.append(_means(w, t, cuts))
    return torch.stack(found).reshape(pieces, *shape)


def _problems(weights: Tensor, targets: Tensor, pieces: int) -> tuple[Tensor, Tensor, torch.Size]:
    if weights.shape != targets.shape or weights.ndim == 0:
        raise ShapeMismatch(
            f"weights {list(weights.shape)} and targets {list(targets.shape)} must agree"
        )
    if not bool((weights >= 0).all()):
        raise InvalidInput(
            "a weight is negative or not a number: "
            f"{first_entry(weights, 'weights', ~(weights >= 0))}"
        )
    if not 1 <= pieces <= weights.shape[-1]:
        raise InvalidInput(f"{weights.shape[-1]} points have 1 to {weights.shape[-1]} pieces")
    k = weights.shape[-1]
    return weights.reshape(-1, k), targets.reshape(-1, k), weights.shape


def _costs(w: Tensor, t: Tensor) -> Tensor:
    """`[s, i, j]`: least squared error of a constant on points i..j-1, less that of none; the
    part that all step functions have in common is left out. Infinite for j < i."""
    zero = w.new_zeros(len(w), 1)
    mass = torch.cat([zero, w.cumsum(1)], 1)
    total = torch.cat([zero, (w * t).cumsum(1)], 1)
    m, s = mass[:, None] - mass[:, :, None], total[:, None] - total[:, :, None]
    cost = torch.where(m > 0, -s.square() / m, torch.zeros_like(m))
    k = mass.shape[1]
    backwards = torch.ones(k, k, dtype=torch.bool, device=w.device).tril(-1)
    return cost.masked_fill(backwards, torch.inf)


def _means(w: Tensor, t: Tensor, cuts: Tensor) -> Tensor:
    """The weighted mean of every piece, at every point of it."""
    piece = cuts.long().cumsum(1)
    mass = torch.zeros_like(w).scatter_add_(1, piece, w)
    total = torch.zeros_like(w).scatter_add_(1, piece, w * t)
    whole = w.sum(1, keepdim=True)
    fallback = torch.where(whole > 0, (w * t).sum(1, keepdim=True) / whole, torch.zeros_like(whole))
    return torch.where(mass > 0, total / mass, fallback).gather(1, piece)
