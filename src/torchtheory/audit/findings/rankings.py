"""Finding: how well items are put in order."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import deterministic, ranks_items
from torchtheory.audit.findings.skill import Scored, Words, judge_skill
from torchtheory.core.intervals import mean_interval
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples

WORDS = Words("share of pairs of items in the wrong order", "a random order", percent=True)


def wrong_pairs(scores: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs of items in the wrong order, and pairs of different relevance, `[n]` each.

    Equal scores are wrong by half.

    >>> wrong_pairs(torch.tensor([[3.0, 1.0, 1.0]]), torch.tensor([[0.0, 1.0, 2.0]]))
    (tensor([2.5000]), tensor([3.]))
    """
    ordered = relevance[:, :, None] > relevance[:, None, :]
    above = scores[:, :, None] - scores[:, None, :]
    wrong = (above < 0).double() + 0.5 * (above == 0).double()
    return (wrong * ordered).sum((1, 2)).float(), ordered.sum((1, 2)).float()


def discounted_gain(scores: Tensor, relevance: Tensor) -> Tensor:
    r"""NDCG `[n]`: $\sum_k(2^{y_{(k)}}-1)/\log_2(k+1)$ in the order of the scores, over the best.

    >>> discounted_gain(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 1.0]])).tolist()
    [1.0]
    """
    gain = torch.exp2(relevance.double() - relevance.min().clamp(max=0).double()) - 1
    discount = torch.log2(torch.arange(gain.shape[1], device=gain.device).double() + 2)
    found = (gain.gather(1, scores.argsort(1, descending=True)) / discount).sum(1)
    best = (gain.sort(1, descending=True).values / discount).sum(1)
    return found / best.clamp_min(1e-300)


@finding(
    "ranking-errors",
    area="generalization",
    title="Pairs of items in the wrong order",
    cost="forward",
    needs=[ranks_items, deterministic],
    whole=True,
)
def ranking_errors(problem: Problem, record: FindingRecord) -> None:
    """Share of wrong pairs against the half of a random order, and NDCG, by samples."""
    scored, rows = {}, []
    for name, samples in (("train", problem.train), ("test", problem.test)):
        if samples is None:
            continue
        wrong, pairs, gain = _scores(problem, samples)
        some = pairs > 0
        if int(some.sum()) == 0:
            record.note(f"No sample of the {name} data has items of different relevance.")
            continue
        share = (wrong[some] / pairs[some]).cpu()
        scored[name] = Scored(samples, share, torch.full_like(share, 0.5))
        found = gain[some].cpu()
        known = name == "train" and len(samples) >= samples.population
        if len(found) > 1:
            where = "new data" if name == "test" else "the training data"
            record.quantity(
                f"{name}-gain", f"normalized discounted cumulative gain (NDCG) on {where}",
                float(found.mean()) if known else mean_interval(found, record.confidence),
                samples=samples,
            )  # fmt: skip
        rows.append((name, int(some.sum()), int(pairs.sum()), float(found.mean())))
    record.table("orders", ("data", "samples", "pairs", "NDCG"), rows)
    if "train" in scored:
        judge_skill(record, scored, WORDS)


def _scores(problem: Problem, samples: Samples) -> tuple[Tensor, Tensor, Tensor]:
    parts = []
    for f, y in zip(
        torch.split(problem.outputs(samples).flatten(1), problem.chunk),
        torch.split(samples.y.flatten(1), problem.chunk),
        strict=True,
    ):
        parts.append(torch.stack([*wrong_pairs(f, y), discounted_gain(f, y).float()]))
    wrong, pairs, gain = torch.cat(parts, 1)
    return wrong, pairs, gain
