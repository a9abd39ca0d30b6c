"""The ledger as a stream: its widths are relevance, and nothing is lost on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput
from torchtheory.explanation.ledger import Entry, Ledger
from torchtheory.explanation.ledger_flow import STEPS, _steps, ledger_flow
from torchtheory.explanation.lrp import lrp
from torchtheory.explanation.rules import Epsilon

Plotted = Callable[[], Any]


def ledger(*steps: tuple[str, float, float], score: float = 8.0) -> Ledger:
    """Two samples, of which the second has twice as much of everything."""
    both = torch.tensor([1.0, 2.0], dtype=torch.float64)
    entries, left = [], score
    for layer, biases, epsilon in steps:
        after = left - biases - epsilon
        entries.append(
            Entry(
                layer, "linear", "epsilon 0.01", *(v * both for v in (left, after, biases, epsilon))
            )
        )
        left = after
    return Ledger(score * both, tuple(entries), left * both)


def streams(ax: Any) -> list[tuple[float, float]]:
    """Width and height of the top of each piece of the main stream, from the top on."""
    boxes = [c.get_paths()[0].get_extents() for c in ax.collections]
    return [(box.width, box.y1) for box in boxes]


def test_the_width_of_the_stream_is_what_is_left(drawn: Plotted) -> None:
    books = ledger(("a", 2.0, 1.0), ("b", -1.0, 0.0), ("c", 0.0, 0.5))
    ledger_flow(books, 0)
    ax = drawn()[0, 0]
    top, *steps, inputs = [width for width, _ in streams(ax)]
    # what comes back joins below the piece of its step
    np.testing.assert_allclose(np.array([*steps, inputs]) / top, [5 / 8, 5 / 8, 5.5 / 8, 5.5 / 8])
    texts = [t.get_text() for t in ax.texts]
    assert {"score 8", "inputs 5.5", "2", "1", "−1", "0.5"} <= set(texts)


def test_branches_are_as_thick_as_what_they_carry(drawn: Plotted) -> None:
    ledger_flow(ledger(("a", 2.0, 1.0)), 1)
    ax = drawn()[0, 0]
    top = streams(ax)[0][0]
    thick = []
    for patch in ax.patches:  # at the end where the amount is written
        corners = patch.get_xy()
        end = corners[np.abs(corners[:, 0]) > 1.14]
        thick.append(np.ptp(end[:, 1]))
    np.testing.assert_allclose(np.array(thick) / top, [2 / 8, 1 / 8], rtol=1e-6)


def test_neighbors_are_merged_without_loss(drawn: Plotted) -> None:
    many = ledger(*((f"layer{k}", 0.01 * (k % 5), 0.002) for k in range(60)))
    steps, start = _steps(many, None)
    assert len(steps) == STEPS
    assert start == pytest.approx(12.0)
    assert steps[-1].after == pytest.approx(float(many.relevance.mean()))
    assert sum(s.to_biases for s in steps) == pytest.approx(float(many.to_biases.mean()))
    assert sum(s.to_epsilon for s in steps) == pytest.approx(float(many.to_epsilon.mean()))
    ledger_flow(many)
    assert any("…" in t.get_text() for t in drawn()[0, 0].texts)


def test_the_stream_ends_at_the_inputs_although_branches_part() -> None:
    """An operation beside a skip connection receives a part of what is on its way."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.out(x + torch.relu(self.inner(x)))
            return logits

    found = lrp(Residual().double(), torch.randn(3, 4, dtype=torch.float64), rules=Epsilon(0.1))
    assert found.ledger is not None
    assert abs(float(found.ledger.entries[-1].received[0]) - float(found.score[0])) > 1e-3
    for k in range(3):
        steps, _ = _steps(found.ledger, k)
        assert steps[-1].after == pytest.approx(float(found.total[k]))


def test_operations_of_one_layer_stand_together() -> None:
    steps, _ = _steps(ledger(("a", 1.0, 0.0), ("a", 2.0, 0.0), ("b", 0.0, 0.0)), 0)
    assert [(s.name, s.to_biases) for s in steps] == [("a", 3.0), ("b", 0.0)]
    assert steps[0].done == ("linear", "epsilon 0.01")


def test_what_leaks_is_told() -> None:
    whole = ledger(("a", 1.0, 0.0))
    entry = whole.entries[0]
    leaking = Entry("a", "linear", "", entry.received, entry.passed - 2, entry.to_biases,
                    entry.to_epsilon)  # fmt: skip
    assert "leaks" not in ledger_flow(whole, 0).caption
    assert (
        "2 of it leaks (gray)"
        in ledger_flow(Ledger(whole.score, (leaking,), entry.passed), 0).caption
    )


def test_ledgers_of_zeros_and_without_entries_can_be_drawn() -> None:
    ledger_flow(ledger(("a", 0.0, 0.0), score=0.0))
    ledger_flow(ledger())


def test_a_sample_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidInput, match="sample"):
        ledger_flow(ledger(("a", 1, 1)), 2)
