"""How much of its input a unit of a convolutional network can see, and how much it looks at."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import mean_range
from torchtheory.audit.findings.hypotheses import (
    deterministic,
    differentiable,
    has_parameters,
    one_input,
)
from torchtheory.convolution.receptive_fields import (
    Dependence,
    EffectiveField,
    dependence,
    effective_receptive_field,
    forgets_places,
    reaches_output,
)
from torchtheory.core.budget import time_left
from torchtheory.core.errors import TorchTheoryError, UnsupportedModel
from torchtheory.core.figure import COLORS
from torchtheory.core.quantity import Quantity
from torchtheory.core.usual import above
from torchtheory.models.problem import Problem
from torchtheory.tracing.passes import network_of

#: Samples whose gradients are looked at, one by one, and the forward passes that each costs.
SAMPLES, PASSES = 32, 6

#: A unit that sees a smaller part of a side, with nothing behind it but an average over places, is
#: worth a look.
SMALL_PART = 0.5

#: How much dearer a pass of one sample in double precision is than one of many in single.
DEARER = 20.0

_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "convolution")

STATEMENT = (
    r"\partial y_u / \partial x_v = 0 \text{ for } v \text{ outside the receptive field of } u"
)


def convolutional(problem: Problem) -> str | None:
    """Why there are no receptive fields to speak of, or None."""
    x = problem.train.x
    if not any(op.name in _CONVOLUTIONS for op in network_of(problem.function, x)):
        return "the model has no convolution layer"
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim not in (3, 4, 5):
        return "the inputs are no images or signals [channels, ...] of real numbers"
    return None


@finding(
    "receptive-field",
    area="capacity",
    title="How much of an input a unit sees",
    cost="gradient",
    covers=["M-80"],
    needs=[has_parameters, one_input, convolutional, deterministic, differentiable],
)
def receptive_field(problem: Problem, record: FindingRecord) -> None:
    """The field of the units of the last layer that still is an image, against the input.

    What is larger than that field is seen as a whole only if something behind that layer knows
    where its units stand: a dense layer does, an average over all places does not.
    """
    example = problem.train.x[0]
    places = tuple(example.shape[1:])
    layers = sum(1 for m in problem.model.modules() if next(m.children(), None) is None)
    asked = sum(2 * min(n, layers * math.ceil(math.log2(n + 1)) + 1) for n in places)
    if asked * DEARER * problem.seconds_per_sample > time_left():
        record.not_done(
            "M-80", STATEMENT, f"about {asked} passes were needed; give a larger budget"
        )
        return
    fields = dependence(problem.model, example)
    # a layer that gives positions depends on no place; what goes to other outputs does not count
    last = next(
        (
            f
            for f in reversed(fields)
            if len(f.shape) == example.ndim
            and math.prod(f.shape[1:]) > 1
            and f.box is not None
            and _reaches(problem, f)
        ),
        None,
    )
    if last is None:
        record.not_applicable(
            "M-80", STATEMENT, "no layer's output has several places along the input's dimensions"
        )
        return
    record.table(
        "fields",
        ("layer", "output", "field of the unit in the middle", "of the input"),
        [(f.name, _by(f.shape), _by(f.size), f"{f.share:.0%}") for f in fields],
        caption=f"The window of the input ({_by(places)}) from the first to the last place that a "
        "unit depends on, whatever the weights are; padding is not counted.",
    )
    part = min(s / n for s, n in zip(last.size, places, strict=True))
    number = record.quantity(
        "receptive-field",
        "part of a side of the input that a unit sees, before all places are joined",
        part,
    )
    seen = _effective(problem, record, last)
    _assess(problem, record, last, number, seen)


def _effective(problem: Problem, record: FindingRecord, last: Dependence) -> EffectiveField | None:
    """Where gradients of the unit in the middle come from, sample by sample."""
    samples = problem.train.some(min(SAMPLES, problem.affordable(PASSES)), record.generator)
    found = []
    for x in samples.x:
        try:
            found.append(
                effective_receptive_field(
                    problem.model, x[None], last.name, generator=record.generator
                )
            )
        except UnsupportedModel:  # behind a dead unit, for one, there is no gradient
            continue
    if not found:
        return None
    energy = torch.stack([f.energy for f in found]).mean(0)
    whole = EffectiveField(last.name, energy, len(found))
    assert last.box is not None
    outside = energy.clone()
    outside[tuple(slice(a, b + 1) for a, b in last.box)] = 0
    record.checks("M-80", STATEMENT).equal(
        float(outside.sum()),
        where=f"share of the squared gradient outside of the field that was found by marking "
        f"inputs, layer {last.name}, {len(found)} training samples",
    )
    if len(found) == len(samples) and len(found) > 1:
        sides = torch.tensor([max(f.size) for f in found], dtype=torch.float64)
        record.quantity(
            "effective-field",
            "side of an even field with the same spread of squared gradients, on average",
            mean_range(sides, len(samples), samples.population, record.confidence),
            samples=samples,
            unit="places",
        )
    if energy.ndim <= 2:
        record.figure(
            "field",
            lambda ax: _plot(ax, whole, last),
            caption=f"Where the squared gradient of the unit in the middle of layer {last.name} "
            f"comes from (mean of {len(found)} samples), and the box that it can see.",
            size=(4.2, 3.2),
        )
    return whole


def _assess(
    problem: Problem,
    record: FindingRecord,
    last: Dependence,
    number: Quantity,
    seen: EffectiveField | None,
) -> None:
    window = f"a window of {_by(last.size)} of {_by(last.places)} places"
    sees = f"A unit behind layer {last.name} sees {window}"
    if seen is not None and not last.whole:
        sees += f", and looks at about {_by(round(s) for s in seen.size)} of it"
    figure = "field" if any(f.name == "field" for f in record.figures) else ""
    if last.whole:
        record.fine(
            f"{sees}: the whole extent of the input.",
            number=number,
            usual=above(SMALL_PART),
            figure=figure,
        )
        return
    if _has_places(problem, last.places):
        record.headline(f"{sees}; outputs have places of their own, so each sees that much.")
        return
    if number.value >= SMALL_PART:
        record.fine(
            f"{sees}; what follows joins them.",
            number=number,
            usual=above(SMALL_PART),
            figure=figure,
        )
        return
    if not _forgets(problem, last):
        record.fine(f"{sees}; what follows joins them and knows where they are.", figure=figure)
        return
    record.look(
        f"{sees}, and what follows joins all places alike: how parts that are further apart are "
        "arranged is not seen.",
        number=number,
        usual=above(
            SMALL_PART, f"above {SMALL_PART:g}, or a layer behind it that knows the places"
        ),
        action="If what tells the classes apart is larger than that, add layers, strides, pooling "
        "or dilation before the last pooling; if texture does, nothing is to be done.",
        figure=figure,
    )


def _has_places(problem: Problem, places: tuple[int, ...]) -> bool:
    """Whether the outputs still are images: `[channels, ...]`, or one number per place."""
    with torch.no_grad():
        shape = tuple(problem.function(problem.parameters, problem.train.x[:1]).shape[1:])
    alone = len(places) > 1 and shape == places
    return alone or (len(shape) == 1 + len(places) and math.prod(shape[1:]) > 1)


def _reaches(problem: Problem, layer: Dependence) -> bool:
    """Whether the output that is meant is computed from the layer."""
    return _asked(problem, layer, reaches_output, samples=1, unknown=True)


def _forgets(problem: Problem, layer: Dependence) -> bool:
    """Whether the model's output is the same where the places of the layer change."""
    return _asked(problem, layer, forgets_places, samples=4, unknown=False)


def _asked(
    problem: Problem, layer: Dependence, question: Any, *, samples: int, unknown: bool
) -> bool:
    """The answer about a layer and the output that is meant; `unknown` where there is none."""
    which = problem.function.output
    if isinstance(which, tuple):
        return unknown
    try:
        return bool(question(problem.model, problem.train.x[:samples], layer.name, output=which))
    except TorchTheoryError:
        return unknown


def _by(sizes: Any) -> str:
    return " × ".join(str(s) for s in sizes)


def _plot(ax: Any, seen: EffectiveField, last: Dependence) -> None:
    assert last.box is not None
    energy = seen.energy.cpu().numpy()
    if energy.ndim == 1:
        ax.plot(energy, color=COLORS[0], label="squared gradient")
        for k, end in enumerate(last.box[0]):
            ax.axvline(end, color=COLORS[1], label=None if k else "what it can see")
        ax.set(xlabel="place", ylabel="share")
        ax.legend()
        return
    from matplotlib.patches import Rectangle

    picture = ax.imshow(energy**0.5, cmap="viridis")
    (top, bottom), (left, right) = last.box
    corner = (left - 0.5, top - 0.5)
    box = Rectangle(corner, right - left + 1, bottom - top + 1, fill=False, color=COLORS[1], lw=1.5)
    ax.add_patch(box)
    ax.grid(False)
    ax.set(xlabel="column", ylabel="row")
    ax.figure.colorbar(picture, ax=ax, label="root of the share")
