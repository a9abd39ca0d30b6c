"""Does a model that predicts the next input see it?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import deterministic
from torchtheory.core.errors import InvalidInput
from torchtheory.core.usual import at_most
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.models.targets import IGNORED
from torchtheory.sequences.attention.causality import (
    SEEN,
    SEQUENCE_KEYS,
    Causality,
    measure_causality,
)

#: Positions that are tried, at most, and below which fewer sequences are; replacements of each; and
#: how much dearer a pass of a few sequences in double precision is than one of many in single.
PLACES, FEW, DRAWS, DEARER = 64, 8, 2, 4.0

STATEMENT = r"x_{\le t}=x'_{\le t}\Rightarrow y_t(x)=y_t(x')"


def predicts_next_input(problem: Problem) -> str | None:
    """Why the targets are not the inputs that follow, or None."""
    x = sequence_inputs(problem, problem.train)
    if x is None:
        return "the inputs are no sequences"
    y = problem.train.y
    same = "the targets are not the inputs that follow, so that an output may see all inputs"
    if problem.task == "labeling" and not x.is_floating_point() and x.shape == y.shape:
        known = y[:, :-1] != IGNORED
    elif problem.task == "regression" and x.is_floating_point() and x.shape == y.shape:
        known = torch.ones_like(y[:, :-1], dtype=torch.bool)
    else:
        return same
    if x.shape[1] < 2 or not bool(((x[:, 1:] == y[:, :-1]) | ~known).all()):
        return same
    # where the next input is the present one, nothing tells whether the targets are shifted
    telling = known & (x[:, 1:] != x[:, :-1])
    return None if bool(telling.any()) else same


def sequence_inputs(problem: Problem, samples: Samples) -> Tensor | None:
    """The sequences among the inputs, `[n, T, ...]`; None where there are none."""
    rows = problem.function.rows
    x: Any = samples.x
    if rows is not None:
        parts = rows.parts if isinstance(rows.parts, dict) else {}
        key = next((k for k in SEQUENCE_KEYS if k in parts), None)
        if key is None:
            return None
        x = parts[key][samples.x.to(parts[key].device)]
    return x if x.ndim > 1 else None


@finding(
    "future-leakage",
    area="generalization",
    title="Does an output see the input that it is to predict?",
    cost="forward",
    covers=["M-115"],
    needs=[predicts_next_input, deterministic],
)
def future_leakage(problem: Problem, record: FindingRecord) -> None:
    """Inputs behind a position are replaced: outputs up to it must stay as they are."""
    count, draws = SEEN, DRAWS
    places = problem.affordable(2 * draws * count * DEARER)
    if places < FEW:  # with fewer of everything it is still worth its time
        count, draws = 2, 1
        places = max(2, problem.affordable(2 * draws * count * DEARER))
    samples = problem.train.some(count, record.generator)
    rows = problem.function.rows
    given: Any = samples.x
    if rows is not None:
        given = rows.take(samples.x).parts
    try:
        found = measure_causality(
            problem.function,
            given,
            places=min(PLACES, places),
            draws=draws,
            generator=record.generator,
        )
    except InvalidInput as error:
        record.not_applicable("M-115", STATEMENT, str(error), samples=samples)
        return
    record.figure(
        "influence",
        found.plot,
        caption="How far each output depends on each input; the outputs of a model that predicts "
        "the next input depend on nothing right of the white line.",
        size=(4.6, 3.6),
    )
    number = record.quantity(
        "future-effect",
        "largest change of an output by later inputs, of the largest output",
        found.largest if not found.causal else 0.0,
    )
    _assess(record, found, number, tokens=not samples.x.is_floating_point())


def _assess(record: FindingRecord, found: Causality, number: Any, tokens: bool) -> None:
    word = "token" if tokens else "input"
    tried = f"{found.sequences} sequences of {found.length}"
    if found.causal:
        record.states("M-115", STATEMENT).equal(
            found.largest,
            within=found.rounding,
            where=f"{tried} {word}s, later ones replaced",
        )
        # a headline: how well it predicts is what decides whether it is fine
        record.headline(
            f"Of {tried} {word}s that were tried, no output sees the {word} that it is to predict: "
            f"replacing later {word}s changes nothing."
        )
        return
    where = "" if found.leak is None else f" It comes in by {found.leak.place}."
    ahead = f"one {word}" if found.reach == 1 else f"{found.reach} {word}s"
    record.not_applicable("M-115", STATEMENT, f"outputs see {ahead} ahead")
    record.defect(
        f"The model sees the {word} that it is asked to predict: replacing later {word}s changes "
        f"its outputs, up to {ahead} ahead, by {found.largest:.2g} of the largest.{where} Its "
        "losses say nothing about its use, where the future is not known.",
        number=number,
        usual=at_most(0, "0"),
        action=_action(found),
        figure="influence",
    )


def _action(found: Causality) -> str:
    if found.leak is None:
        return "Look for what joins positions without a causal mask."
    if found.leak.function in ("attention", "softmax", "matmul", "bmm", "einsum"):
        off = " (it is off by one)" if found.reach == 1 else ""
        return f"Mask the attention there so that no position looks at a later one{off}."
    if found.leak.function in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        return "Use one direction in time only."
    if found.leak.function in ("conv1d", "pad"):
        return "Pad to the left only, by dilation times (kernel size - 1)."
    if "norm" in found.leak.function:
        return "Normalize each position by itself, not over time."
    return "Let that step read positions up to the present one only."
