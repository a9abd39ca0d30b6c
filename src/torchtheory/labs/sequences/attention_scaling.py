"""Why attention divides its scores by the root of their size."""

from __future__ import annotations

import math

from torch import Tensor

from torchtheory.labs.engine import Run, lab
from torchtheory.sequences.attention.scaling import ScalingStudy, attention_scaling_study

SURE = 0.9999


@lab(
    "attention-scaling",
    room="sequences",
    covers=["M-99", "N-83"],
    title="Divided by the root of d, scores stay of size 1 and gradients alive",
    full={"queries": 2000, "keys": 512},
    least={"queries": 100, "keys": 32},
)
def attention_scaling(run: Run, queries: int = 600, keys: int = 128) -> None:
    r"""Scores of random queries and keys: their variance, the entropy of their weights, its gradients.

    The variance of a score is d, and 1 after the division by the root of d. Then the weights of n keys have
    entropies near ln n - 1/2 for every d, as scores that are standard normal must. Without the division
    the weights become a lookup, and the softmax's Jacobian falls, for large d like the root of 1/d. All of it is for
    independent queries and keys: a key that is the query itself has the mean d and the variance 2d.

    Args:
        queries: drawn for each size.
        keys: that each query has.
    """
    sizes = [16, 64, 256]
    study = attention_scaling_study(sizes, keys=keys, queries=queries, generator=run.generator)
    for i, d in enumerate(sizes):
        says = run.states("N-83", r"\operatorname{Var}(q^\top k)=d")
        says.mean(study.plain.square[i] / d, 1.0, against=(0.8, 1.25), confidence=SURE, where=f"d = {d}")
        same = attention_scaling_study([d], keys=2, queries=queries, correlation=1.0, generator=run.generator)
        says.fails("a key that is its query", same.plain.square[0] / d)
        says = run.states("M-99", r"\operatorname{Var}(q^\top k/\sqrt d)=1")
        says.mean(study.scaled.square[i], 1.0, against=(0.8, 1.25), confidence=SURE, where=f"d = {d}")
        says.fails("not divided", study.plain.square[i])
        # for standard normal scores and n keys, the entropy is ln n - 1/2 + (1 + e)/(2n) up to O(1/n^2)
        says = run.states(["M-99", "N-83"], r"H(\operatorname{softmax}(q^\top k/\sqrt d))=\ln n-\tfrac12")
        says.mean(
            study.scaled.entropy[i] - math.log(keys),
            -0.5,
            (1 + math.e) / keys,
            against=(-1.0, -0.25),
            confidence=SURE,
            where=f"d = {d}, {keys} keys",
        )
        says.fails("not divided", study.plain.entropy[i] - math.log(keys))
    dependence(run, queries)
    gradients(run, queries)
    pictures(run, study, queries, keys)


def dependence(run: Run, queries: int) -> None:
    """N-83: what the words leave out, that queries and keys are independent."""
    d = 16

    def half_excess(correlation: float) -> Tensor:
        scores = attention_scaling_study(
            [d], keys=2, queries=20 * queries, correlation=correlation, generator=run.generator
        )
        return (scores.plain.square[0] / d - d) / 2

    says = run.states("N-83", r"k=q:\ \operatorname E(q^\top k)^2=d^2+2d\text{, mean }d\text{ and variance }2d")
    says.mean(half_excess(1.0), 1.0, against=(0.0, 2.0), confidence=SURE, where=f"d = {d}; half of E/d - d")
    says.fails("independent keys", half_excess(0.0))


def gradients(run: Run, queries: int) -> None:
    """M-99: the chance that two scores compete falls as their spread grows."""
    sizes = [round(32 * 2 ** (k / 2)) for k in range(11)]
    study = attention_scaling_study(sizes, keys=8, queries=5 * queries, generator=run.generator)
    says = run.states(
        "M-99", r"\operatorname E\|\partial\operatorname{softmax}(s)/\partial s\|_F\sim d^{-1/2}\text{, }s=q^\top k"
    )
    says.slope(sizes, study.plain.gradient.mean(1), -0.5, 0.05, against=(-1.0, 0.0), confidence=0.999, where="8 keys")
    says.fails("divided by the root of d", sizes, study.scaled.gradient.mean(1))


def pictures(run: Run, study: ScalingStudy, queries: int, keys: int) -> None:
    few = max(10, queries // 6)
    drawn = attention_scaling_study([2**k for k in range(1, 11)], keys=keys, queries=few, generator=run.generator)
    run.figure(
        "against-size",
        lambda axes: drawn.plot(axes[0]),
        grid=(1, 3),
        size=(13, 3.8),
        caption=f"A random query with {keys} random keys, means over {few} queries.",
    )
    run.table(
        "statistics",
        ["d", "variance", "entropy", "entropy, not divided", "gradient", "gradient, not divided"],
        [
            (
                d,
                round(float(study.scaled.square[i].mean()), 3),
                *(round(float(t[i].mean()), 3) for t in (study.scaled.entropy, study.plain.entropy)),
                *(round(float(t[i].mean()), 4) for t in (study.scaled.gradient, study.plain.gradient)),
            )
            for i, d in enumerate(study.scaled.sizes)
        ],
        caption=f"{keys} keys; the largest entropy is {math.log(keys):.3f}.",
    )
