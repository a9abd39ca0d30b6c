"""Finding: weights that take a few values only."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import has_parameters
from torchtheory.core.naming import several
from torchtheory.core.usual import at_most
from torchtheory.models.problem import Problem

#: Entries that levels are counted on, at least and at most.
FEWEST, MOST = 256, 200_000

#: More levels than eight bits have are no levels; each is taken by so many entries at least.
LEVELS, EACH = 256, 4


def levels_of(weights: Tensor) -> int | None:
    """How many values other than 0 the entries take, where they are few; else None.

    Entries of a few levels repeat themselves. Those that are 0 are left out (they may be pruned),
    and tensors of one value, as fresh scales and biases are.

    >>> levels_of(torch.arange(1024) % 15 - 7.0)
    14
    >>> levels_of(torch.randn(1024, generator=torch.Generator().manual_seed(0))) is None
    True
    """
    entries = weights.detach().flatten()
    if len(entries) > MOST:
        entries = entries[:: math.ceil(len(entries) / MOST)]
    entries = entries[entries != 0]
    if len(entries) < FEWEST:
        return None
    count = len(torch.unique(entries))
    return count if 1 < count <= min(LEVELS, len(entries) // EACH) else None


@finding(
    "weight-levels",
    area="training",
    title="Do weights take a few values only?",
    cost="parameters",
    needs=[has_parameters],
)
def weight_levels(problem: Problem, record: FindingRecord) -> None:
    """Rounding to a few levels, as by quantization, leaves weights that repeat themselves."""
    found = [(name, levels_of(p), p.numel()) for name, p in problem.parameters.items()]
    few = [(name, levels, count) for name, levels, count in found if levels is not None]
    share = sum(count for _, _, count in few) / max(1, sum(c for _, _, c in found))
    number = record.quantity(
        "few-levels", "share of the weights in tensors that take a few values only", share
    )
    if not few:
        return
    record.table(
        "levels", ("parameter", "values other than 0", "entries"), few[:20],
        caption="Parameters whose entries take a few values only.",
    )  # fmt: skip
    least, most = min(n for _, n, _ in few), max(n for _, n, _ in few)
    between = f"{least}" if least == most else f"{least} to {most}"
    record.look(
        f"The weights of {several([name for name, _, _ in few], 3)} take {between} different "
        f"values only ({100 * share:.3g}% of all weights): they are rounded to about "
        f"{math.ceil(math.log2(most + 1))} bits.",
        number=number, usual=at_most(0, "0, unless weights are quantized on purpose"),
        action="If that is not meant, load the weights of full precision; else judge the network "
        "by its error with these.",
    )  # fmt: skip
