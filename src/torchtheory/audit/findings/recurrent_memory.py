"""How far back in time the gradients of a recurrent network reach."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import mean_range, part_of
from torchtheory.audit.findings.hypotheses import deterministic, has_parameters, one_input
from torchtheory.core.errors import TorchTheoryError
from torchtheory.core.figure import COLORS
from torchtheory.core.intervals import Interval
from torchtheory.core.quantity import Quantity
from torchtheory.core.usual import above, below
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.report.numbers import size_words
from torchtheory.sequences.recurrent.gradients import (
    RECURRENT_OPERATIONS,
    LayerMemory,
    recurrent_gradients,
)
from torchtheory.sequences.recurrent.lru import LRU
from torchtheory.sequences.recurrent.minimal import GatedLinear
from torchtheory.tracing.passes import network_of

#: Samples looked at, and the forward passes that each costs.
SAMPLES, PASSES = 32, 60

#: A change of the state of which less is left has no say in what is learned.
SHARE = 0.01

#: Gradients that reach over a smaller part of the sequence are worth a look.
SMALL_PART = 0.5

#: Sequences with fewer steps have no memory to speak of.
FEWEST_STEPS = 8

#: A change that grows more is a defect: the same e to the sixth as over the depth of a network.
LARGE_GROWTH = math.exp(6)

STATEMENT = r"\|\partial z_T/\partial z_{T-k}\|_2 \le (\alpha\,\sigma_1(U))^k"


def recurrent(problem: Problem) -> str | None:
    """Why there is no recurrent layer to speak of, or None."""
    if any(isinstance(m, LRU | GatedLinear) for m in problem.model.modules()):
        return None
    try:
        network = network_of(problem.function, problem.train.x)
    except TorchTheoryError as error:
        return str(error)
    if any(op.name in RECURRENT_OPERATIONS for op in network):
        return None
    return "the model has no recurrent layer (nn.RNN, nn.LSTM, nn.GRU, or a linear recurrence)"


@finding(
    "recurrent-memory",
    area="signals",
    title="How far back in time gradients reach",
    cost="gradient",
    covers=["N-71"],
    needs=[has_parameters, one_input, recurrent, deterministic],
)
def recurrent_memory(problem: Problem, record: FindingRecord) -> None:
    """What is left of a small change of a recurrent layer's state after so many steps.

    Layers stand on top of each other, so that gradients reach as far back as in the layer where
    they reach the furthest.
    """
    samples = problem.train.some(min(SAMPLES, problem.affordable(PASSES)), record.generator)
    memories = recurrent_gradients(problem.model, samples.x, generator=record.generator)
    _bounds(record, memories)
    memories = [m for m in memories if len(m.gains) == len(samples)]
    if not memories:
        record.headline("Its recurrent layers do not run along the samples; nothing was measured.")
        return
    steps = max(m.steps for m in memories)
    record.table(
        "layers",
        ("layer", "kind", "units", "steps", f"reach to {SHARE:.0%}", "left over all steps"),
        [
            (
                m.name,
                m.kind,
                m.units,
                m.steps,
                float(m.reach(SHARE).double().mean()),
                float(m.gains[:, -1].mean()),
            )
            for m in memories
        ],
        caption="Steps after which 1 % of a small change of the state is left, and what is left "
        "of it at the last step (root mean square over directions); means over samples.",
    )
    _eigenvalues(record, memories)
    if steps < FEWEST_STEPS:
        record.headline(f"Its sequences have {steps} steps: too few to ask for memory.")
        return
    record.figure(
        "memory",
        lambda ax: _plot(ax, memories),
        caption="What is left of a small change of the state after k steps, mean of "
        f"{len(samples)} samples; where gradients certainly vanish, their bound dashed.",
    )
    if len(samples) < 2:
        record.headline("There was time for one sample only; see the figure.")
        return
    _assess(record, memories, samples)


def _bounds(record: FindingRecord, memories: list[LayerMemory]) -> None:
    """The bound for layers without gates, where it decays."""
    for memory in memories:
        if memory.factor is None:
            reason = f"layer {memory.name} has gates: no bound by its weights alone is known"
            record.not_applicable("N-71", STATEMENT, reason)
        elif memory.factor >= 1:
            reason = (
                f"the matrix of layer {memory.name} has the norm {memory.factor:.3g}, not below "
                "1: the bound does not fall with the lag"
            )
            record.not_applicable("N-71", STATEMENT, reason)
        else:
            lags = torch.arange(memory.steps, dtype=torch.float64)
            record.states("N-71", STATEMENT).at_most(
                memory.gains.amax(0).cpu(),
                memory.factor**lags,
                within=1e-4,
                where=f"layer {memory.name}, every lag, the samples that were looked at",
            )


def _eigenvalues(record: FindingRecord, memories: list[LayerMemory]) -> None:
    """Where the eigenvalues of recurrences lie, and how long their slowest modes last."""
    sizes = {m.name: m.eigenvalues.abs() for m in memories if m.eigenvalues is not None}
    known = [m for m in memories if m.name in sizes]
    if not known:
        return
    record.table(
        "eigenvalues",
        ("layer", "kind", "largest |λ|", "smallest |λ|", "slowest mode lasts (steps to 1/e)"),
        [
            (
                m.name,
                m.kind,
                float(sizes[m.name].max()),
                float(sizes[m.name].min()),
                "for ever" if m.horizon == math.inf else f"{m.horizon:.3g}",
            )
            for m in known
        ],
        caption="Eigenvalues of the recurrent matrix (of a gated linear recurrence, the means of "
        "its factors). Beyond 1 a mode grows while the units are not saturated.",
    )
    record.figure(
        "eigenvalues",
        lambda ax: _plot_eigenvalues(ax, known),
        caption="Eigenvalues of the recurrences in the complex plane: near the unit circle a mode "
        "lasts, near 0 it is forgotten at once.",
        size=(4.2, 4.0),
    )
    slowest = max(known, key=lambda m: m.horizon or 0.0)
    horizon = slowest.horizon or 0.0
    if horizon < math.inf:
        record.headline(
            f"The slowest mode of the recurrence {slowest.name} lasts {horizon:.3g} steps (to 1/e)."
        )
    else:
        record.headline(
            f"The recurrence {slowest.name} has an eigenvalue of size "
            f"{float(sizes[slowest.name].max()):.3g}: that mode does not decay while the units are "
            "not saturated."
        )


def _plot_eigenvalues(ax: Any, memories: list[LayerMemory]) -> None:
    angles = torch.linspace(0, 2 * math.pi, 200)
    ax.plot(angles.cos(), angles.sin(), color="0.6", lw=0.9)
    for k, memory in enumerate(memories[: len(COLORS)]):
        assert memory.eigenvalues is not None
        values = memory.eigenvalues.cpu()
        label = f"{memory.name} ({memory.kind})"
        ax.plot(values.real, values.imag, "o", ms=3.5, alpha=0.7, color=COLORS[k], label=label)
    ax.set(xlabel="real part", ylabel="imaginary part", aspect="equal")
    ax.locator_params(nbins=5)
    ax.legend(loc="upper right")


def _assess(record: FindingRecord, memories: list[LayerMemory], samples: Samples) -> None:
    furthest = torch.stack([m.reach(SHARE).cpu() for m in memories]).amax(0).double()
    longest = max(m.steps for m in memories) - 1
    reach = record.quantity(
        "gradient-reach",
        f"steps after which {SHARE:.0%} of a change of the state is left",
        _range(furthest, record.confidence, low=0.0, high=float(longest)),
        samples=samples,
        unit="steps",
    )
    tops = torch.stack([m.gains.amax(1).cpu() for m in memories]).amax(0).log()
    logs = _range(tops, record.confidence)
    growth = record.quantity(
        "gradient-growth",
        "largest factor by which a change of the state grows, geometric mean over samples",
        replace(
            logs,
            estimate=_exp(logs.estimate),
            low=_exp(logs.low),
            high=_exp(logs.high),
        ),
        samples=samples,
    )
    if logs.low > math.log(LARGE_GROWTH):
        record.defect(
            f"A small change of the state grows by a factor of {size_words(growth)} over the "
            f"sequence, in the geometric mean over samples{part_of(samples)}: gradients explode.",
            number=growth,
            usual=below(LARGE_GROWTH),
            action="Clip gradients, start from an orthogonal recurrent matrix, or use a gated "
            "layer.",
            figure="memory",
        )
        return
    _assess_reach(record, memories, reach, longest, part_of(samples))


def _assess_reach(
    record: FindingRecord, memories: list[LayerMemory], reach: Quantity, longest: int, part: str
) -> None:
    usual = above(
        SMALL_PART * longest,
        f"above {SMALL_PART * longest:.0f} of {longest}, if what matters is that far back",
    )
    certified = [m.certified_reach(SHARE) for m in memories]
    if reach.high < SMALL_PART * longest:
        known = [c for c in certified if c is not None]
        sure = (
            f"; the norm of its weights alone allows {math.floor(max(known))}"
            if len(known) == len(certified)
            else ""
        )
        record.look(
            f"Gradients reach back {size_words(reach)} of {longest} steps, to where {SHARE:.0%} of "
            f"a change is left{sure}{part}.",
            number=reach,
            usual=usual,
            action="If the answer depends on earlier steps, use an LSTM with forget biases of 1 "
            "or more, an orthogonal recurrent matrix, or attention; if not, shorter sequences do.",
            figure="memory",
        )
        return
    words = "all" if reach.low >= longest - 0.5 else f"{size_words(reach)} of"
    record.fine(
        f"Gradients reach back {words} {longest} steps on average{part}.",
        number=reach,
        usual=usual,
        figure="memory",
    )


def _range(
    values: Tensor, confidence: float, low: float = -math.inf, high: float = math.inf
) -> Interval:
    # as of independent draws, also where all samples were looked at: directions are random
    found = mean_range(values, len(values), math.inf, confidence)
    return replace(found, low=max(low, found.low), high=min(high, found.high))


def _exp(value: float) -> float:
    return math.exp(min(700.0, value))


def _plot(ax: Any, memories: list[LayerMemory]) -> None:
    for k, memory in enumerate(memories[: len(COLORS)]):
        lags = range(memory.steps)
        mean = memory.gains.cpu().log().mean(0).exp().clamp(min=1e-12)
        ax.semilogy(lags, mean, color=COLORS[k], label=f"{memory.name} ({memory.kind})")
        if memory.factor is not None and memory.factor < 1:
            bound = [max(1e-12, memory.factor**lag) for lag in lags]
            ax.semilogy(lags, bound, "--", lw=1, color=COLORS[k])
    ax.axhline(SHARE, color="0.6", lw=0.8)
    ax.set(xlabel="steps back", ylabel="what is left of a change")
    ax.legend()
