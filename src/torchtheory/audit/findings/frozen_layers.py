"""Finding: layers that are frozen as they were drawn."""

from __future__ import annotations

import torch

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import has_parameters
from torchtheory.core.naming import several
from torchtheory.core.usual import below
from torchtheory.models.problem import Problem
from torchtheory.nets.initialization_laws import FreshDraw, compare_with_fresh_draws

#: Weights are told from a fresh draw at this confidence, all of them together.
CONFIDENCE = 0.999

#: Fewest entries of a parameter whose law says anything, and share of all weights worth a look.
FEWEST, MUCH = 64, 0.1


@finding(
    "frozen-layers",
    area="training",
    title="Are layers frozen as they were drawn?",
    cost="parameters",
    needs=[has_parameters],
)
def frozen_layers(problem: Problem, record: FindingRecord) -> None:
    """Parameters that training did not move, though others moved, and that follow a fresh law."""
    draws = {d.parameter: d for d in compare_with_fresh_draws(problem.model)}
    still = _still(problem)
    total = sum(p.numel() for p in problem.parameters.values())
    as_drawn = [n for n in still if n in draws and _fresh(draws[n], len(still))]
    share = sum(problem.parameters[n].numel() for n in as_drawn) / max(1, total)
    number = record.quantity(
        "frozen-as-drawn", "share of the weights that are frozen and as they were drawn", share
    )
    moved = [n for n in problem.parameters if n not in still]
    if not as_drawn or not moved or share < MUCH:
        return
    p_value = min(draws[n].p_value for n in as_drawn)
    record.look(
        f"{100 * share:.3g}% of the weights are frozen at their initialization: "
        f"{several(as_drawn, 3)} did not move in training and cannot be told from a fresh draw "
        f"(p-value {p_value:.2g} or more), while other layers were trained on top of them.",
        number=number, usual=below(MUCH),
        action="If pre-trained weights were meant, load them and look at what load_state_dict "
        "returns; else unfreeze these layers.",
    )  # fmt: skip


def _still(problem: Problem) -> list[str]:
    """Parameters that did not move: those that ask for no gradient, or equal the initial ones."""
    trained = problem.trainable
    still = [n for n in problem.parameters if n not in trained]
    if problem.initial is not None:
        still += [
            n for n, p in problem.initial.items()
            if n in trained and torch.equal(p, problem.parameters[n])
        ]  # fmt: skip
    return still


def _fresh(draw: FreshDraw, tests: int) -> bool:
    known = bool(draw.rule) and draw.rule != "a constant" and draw.entries >= FEWEST
    return known and draw.p_value >= (1 - CONFIDENCE) / tests
