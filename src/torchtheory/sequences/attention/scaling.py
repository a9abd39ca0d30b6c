r"""Why scores are divided by $\sqrt{d_k}$: variances, entropies and gradients against the size.

For independent $q,k\sim N(0,I_d)$ the score $q^\top k$ has variance d, and $q^\top k/\sqrt d$ has
variance 1. With n keys the weights $a=\operatorname{softmax}(s)$ then have entropies near
$\ln n-\tfrac12$ whatever d is. Without the division one weight takes it all: the Jacobian
$\partial a/\partial s=\operatorname{diag}(a)-aa^\top$, through which all gradients of queries and
keys go, falls like $d^{-1/2}$. Source: Foundations of Deep Learning, section 10.4.1; Deep Learning
(notes), section 6.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchtheory.core.checks import number_between, whole_number, whole_numbers
from torchtheory.core.figure import Figure, draw
from torchtheory.core.random import RandomSource, as_generator


@dataclass(frozen=True, slots=True)
class ScoreStatistics:
    """What scores and weights are like, one row per size and one column per query.

    Attributes:
        sizes: the sizes d.
        keys: number n of keys per query.
        square: mean over the keys of the squared score, `[sizes, queries]`. Scores have mean 0, so
            its mean over queries is their variance.
        entropy: of the weights, in nats, `[sizes, queries]`; from 0 to ln n.
        gradient: Frobenius norm of the softmax's Jacobian, `[sizes, queries]`.
    """

    sizes: tuple[int, ...]
    keys: int
    square: Tensor
    entropy: Tensor
    gradient: Tensor


@dataclass(frozen=True, slots=True)
class ScalingStudy:
    """The same queries and keys with the division by the root of the size and without.

    Attributes:
        scaled, plain: their statistics.
    """

    scaled: ScoreStatistics
    plain: ScoreStatistics

    def plot(self, axes: Any) -> None:
        """Variance, entropy and gradient against the size, on a row of three Axes."""
        sizes, n = self.scaled.sizes, self.scaled.keys
        shown = [
            ("square", "variance of a score", None),
            ("entropy", "entropy of the weights", math.log(n)),
            ("gradient", "norm of the softmax's Jacobian", None),
        ]
        for ax, (name, label, most) in zip(axes, shown, strict=True):
            for study, style, words in (
                (self.scaled, "o-", r"divided by $\sqrt{d}$"),
                (self.plain, "s--", "not divided"),
            ):
                ax.plot(sizes, getattr(study, name).mean(1).tolist(), style, label=words, ms=4)
            ax.set(xscale="log", xlabel="size d", ylabel=label)
            if most is None:
                ax.set_yscale("log")
            else:
                ax.axhline(most, color="gray", lw=0.8, ls=":", label=f"even weights, ln {n}")
            ax.legend(fontsize="small")

    def figure(self) -> Figure:
        """The plot as a figure that can be kept."""
        return draw(
            "attention-scaling",
            lambda axes: self.plot(axes[0]),
            grid=(1, 3),
            size=(12, 3.6),
            caption=f"Scores of a random query with {self.scaled.keys} random keys.",
        )


def attention_scaling_study(
    sizes: Sequence[int],
    *,
    keys: int = 64,
    queries: int = 200,
    correlation: float = 0.0,
    generator: RandomSource = None,
) -> ScalingStudy:
    r"""Scores of normal queries and keys, with the division by $\sqrt d$ and without.

    Args:
        sizes: the sizes d of queries and keys.
        keys: number n of keys that each query has of its own.
        queries: how many are drawn for each size; they are independent.
        correlation: of each key with its query, from -1 to 1: $k=\rho q+\sqrt{1-\rho^2}\,z$.
            What is said above is for independent ones; $k=q$ has scores of mean d and variance
            2d.

    Time: $O(nd)$ per query. Memory: the keys of one query at a time, for all sizes in turn.

    >>> study = attention_scaling_study([4, 256], queries=50)
    >>> study.plain.square.mean(1).round(decimals=-1).tolist()
    [0.0, 260.0]
    >>> bool((study.scaled.entropy.mean(1) > 3.5).all()), float(study.plain.entropy[1].mean()) < 1
    (True, True)
    """
    dims = whole_numbers(sizes, "sizes")
    n = whole_number(keys, "keys", least=2)
    count = whole_number(queries, "queries", least=1)
    rho = number_between(correlation, "correlation", -1, 1)
    source = as_generator(generator)
    rows: dict[bool, list[tuple[Tensor, Tensor, Tensor]]] = {True: [], False: []}
    for d in dims:
        scores = torch.stack([_scores(n, d, rho, source) for _ in range(count)])
        for scaled, found in rows.items():
            found.append(_statistics(scores / math.sqrt(d) if scaled else scores))
    made = {
        scaled: ScoreStatistics(dims, n, *(torch.stack(part) for part in zip(*found, strict=True)))
        for scaled, found in rows.items()
    }
    return ScalingStudy(made[True], made[False])


def _scores(n: int, d: int, rho: float, source: torch.Generator) -> Tensor:
    """Scores `[n]` of one query."""
    draws = torch.randn(n + 1, d, generator=source, dtype=torch.float64, device=source.device)
    q, k = draws[0], draws[1:]
    return (rho * q + math.sqrt(1 - rho**2) * k) @ q


def _statistics(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean square, entropy and norm of the Jacobian, of scores `[queries, n]`."""
    logs = scores.log_softmax(-1)
    a = logs.exp()
    # |diag(a) - a a'|^2 without the matrix
    two = a.square().sum(-1)
    jacobian = (two - 2 * a.pow(3).sum(-1) + two.square()).clamp(min=0).sqrt()
    return scores.square().mean(-1), -(a * logs).sum(-1), jacobian
