"""One explanation as a piece of HTML: its picture, its sums, its ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from torchtheory.core.record import Table
from torchtheory.explanation.ledger_flow import ledger_flow
from torchtheory.explanation.pages.pictures import picture
from torchtheory.report.html import fragment
from torchtheory.report.numbers import duration, number_words

if TYPE_CHECKING:
    from torchtheory.explanation.explanation import Explanation

#: What is known of the sum of a relevance, as columns of a table.
SUMS = ("to explain", "adds up to", "gap", "to biases", "to epsilon", "leaked")


def explanation_fragment(e: Explanation) -> str:
    """One explanation as a piece of HTML for a notebook: a picture, its sums, its ledger."""
    drawn = [picture(e, part=part) for part in range(len(relevances_of(e)))]
    if e.ledger is not None:
        drawn.append(ledger_flow(e.ledger))
    columns = ("sample", *SUMS)
    rows = tuple((k, *sums_of(e, k)) for k in range(len(e)))
    cost = f"{passes(e)} per explanation, {duration(e.seconds)} for all."
    return fragment(
        "one_explanation.html", plain_words=True, title=e.method, figures=drawn,
        sums=without_empty_columns(Table("sums", columns, rows, cost)),
    )  # fmt: skip


def passes(e: Explanation) -> str:
    """How often a sample went through the network.

    >>> from torchtheory.explanation.explanation import Explanation
    >>> passes(Explanation(torch.ones(1, 2), torch.ones(1), "LRP", forwards=1, backwards=1))
    '1 forward, 1 backward'
    """
    return f"{number_words(e.forwards)} forward, {number_words(e.backwards)} backward"


def sums_of(e: Explanation, k: int) -> tuple[float | None, ...]:
    """The row of `SUMS` for a sample."""
    gap, ledger = e.gap, e.ledger
    promised = None if e.reference is None else float(e.score[k] - e.reference[k])
    return (
        promised,
        float(e.total[k]),
        None if gap is None else float(gap[k]),
        None if ledger is None else float(ledger.to_biases[k]),
        None if ledger is None else float(ledger.to_epsilon[k]),
        None if ledger is None or not bool(ledger.leaked.any()) else float(ledger.leaked[k]),
    )


def without_empty_columns(table: Table) -> Table:
    """Without the columns in which no method has a number."""
    kept = [j for j in range(len(table.columns)) if any(r[j] is not None for r in table.rows)]
    return Table(
        table.name,
        tuple(table.columns[j] for j in kept),
        tuple(tuple(r[j] for j in kept) for r in table.rows),
        table.caption,
    )


def relevances_of(e: Explanation) -> Sequence[torch.Tensor]:
    """The relevance of each input of the model."""
    return (e.relevance,) if isinstance(e.relevance, torch.Tensor) else e.relevance
