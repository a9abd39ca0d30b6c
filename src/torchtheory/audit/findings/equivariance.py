"""What a shift or a flip of an image does to its prediction, and what the order of tokens does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import part_of
from torchtheory.audit.findings.hypotheses import classification, deterministic
from torchtheory.core.errors import TorchTheoryError
from torchtheory.core.figure import COLORS
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.core.usual import above, below
from torchtheory.equivariance.actions import Element, Group, flips, translations
from torchtheory.equivariance.functions import constant_part, relative_defects
from torchtheory.equivariance.layers import LayerEquivariance, equivariance_by_layer
from torchtheory.equivariance.layouts import act, input_layout
from torchtheory.equivariance.measure import measure_equivariance
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.report.numbers import share_words, size_words

#: Images looked at, at most and at least.
MOST, FEWEST = 1024, 20

#: Predictions that change when an image moves by one pixel, beyond which that is worth a look.
#: Between two positions of one image, classifiers of large images change about one prediction in
#: ten (R. Zhang, Making convolutional networks shift-invariant again, 2019).
OFTEN = 0.1

#: Sides from which on a pixel is a small step: at 24 it is 4 % of the image.
LARGE = 24

#: Images that layers are tried on, and the forward passes that takes. Their activations are kept
#: about four times, in double precision.
LAYERS_SEE, LAYER_PASSES = 4, 60

STATEMENT = (
    r"\text{every layer commutes with circular shifts, the last ones forget the position}"
    r"\Rightarrow f(gx) = f(x)"
)


def images(problem: Problem) -> str | None:
    """Why the inputs are no images, or None."""
    if problem.several_inputs:
        return "the model takes several inputs, and this is about images alone"
    shape = list(problem.train.x.shape[1:])
    if len(shape) != 3 or not problem.train.x.is_floating_point():
        return f"the inputs are no images [channels, height, width], a sample has the shape {shape}"
    if min(shape[1:]) < 4:
        return f"images of {shape[1]} × {shape[2]} pixels are too small to be shifted"
    return None


@dataclass(frozen=True, slots=True)
class Move:
    """A kind of change, and how often it changes a prediction.

    Attributes:
        name: of the quantity.
        words: what is done to an image.
        changed: share of the predictions that it changes.
    """

    name: str
    words: str
    changed: Interval


@finding(
    "shifted-images",
    area="robustness",
    title="Predictions of shifted and flipped images",
    cost="forward",
    covers=["M-68"],
    needs=[classification, deterministic, images],
)
def shifted_images(problem: Problem, record: FindingRecord) -> None:
    """How often a small shift or a flip changes the class, and which layer lets it.

    An image is moved by one and by two pixels, up, down, left or right at random, the pixels at
    the edge repeated where it came from; and flipped from left to right.
    """
    name = "train" if problem.test is None else "test"
    source = problem.train if problem.test is None else problem.test
    samples = source.some(min(MOST, problem.affordable(5)), record.generator)
    if len(samples) < min(FEWEST, samples.population):
        record.not_done("M-68", STATEMENT, f"there was time for {len(samples)} images only")
        return
    before = _classes(problem, samples)
    moves = []
    for pixels, words in ((1, "one pixel"), (2, "two pixels")):
        share = _changed(problem, samples, before, pixels, record)
        moves.append(Move(f"shift-{pixels}-changes", f"a shift by {words}", share))
    flipped = _moved(flips("horizontal"), (1, 0, 0, 0), samples.x)
    after = _classes(problem, replace(samples, x=flipped))
    share = clopper_pearson(int((after != before).sum()), len(samples), record.confidence)
    moves.append(Move("flip-changes", "a horizontal flip", share))
    for move in moves:
        record.quantity(
            move.name, f"share of predictions that {move.words} changes", move.changed,
            samples=samples,
        )  # fmt: skip
    layers = _layers(problem, record, samples)
    record.figure(
        "moves",
        lambda ax: _plot(ax, moves),
        caption=f"Predictions on {name} images that change, with {record.confidence:.0%} ranges.",
        size=(5, 2.4),
    )
    if bool((before == before[0]).all()):
        record.headline(
            f"It names the same class for all {len(samples):,} images tried, so a shift tells "
            "nothing."
        )
        return
    _assess(record, moves, samples, name, layers)


def _assess(
    record: FindingRecord,
    moves: list[Move],
    samples: Samples,
    name: str,
    layers: LayerEquivariance | None,
) -> None:
    one, _, flip = moves
    side = min(samples.x.shape[2:])
    part = ""
    if len(samples) < samples.population:
        part = f" (from {len(samples):,} of {samples.population:,} {name} images)"
    said = (
        f"A shift by one pixel changes the prediction of {share_words(one.changed)} of the "
        f"{name} images{part}"
    )
    where = _where(layers)
    number = record.quantities[0]
    usual = below(OFTEN, f"below {OFTEN:.0%}")
    if side < LARGE:
        record.headline(
            f"{said}; of images of {side} pixels that is a step of {1 / side:.0%} of their size. "
            f"A horizontal flip changes {share_words(flip.changed)}."
        )
    elif one.changed.low > OFTEN:
        record.look(
            f"{said}. {where}".strip(),
            number=number,
            usual=usual,
            action="If the class should not depend on the position, train with random shifts, "
            "average over positions instead of flattening, and blur before subsampling "
            "(anti-aliased pooling).",
            figure="moves",
        )
        return
    elif one.changed.high < OFTEN:
        record.fine(f"{said}.", number=number, usual=usual, figure="moves")
    else:
        record.open(number, usual, figure="moves")
    if where:
        record.headline(where)


def _where(layers: LayerEquivariance | None) -> str:
    """A sentence on the layer where equivariance ends."""
    if layers is None:
        return ""
    if layers.first is not None:
        return f"Equivariance ends at {layers.first.place}, which {layers.first.reason}."
    if layers.unfollowed is None:
        return "At the images tried, no layer breaks equivariance under shifts that go around."
    return ""


def _classes(problem: Problem, samples: Samples) -> Tensor:
    """The class that the network names for each sample."""
    outputs = problem.outputs(samples)
    if problem.task == "binary":
        return outputs.reshape(len(samples)) > problem.decision_level
    return outputs.argmax(1)


def _changed(
    problem: Problem, samples: Samples, before: Tensor, pixels: int, record: FindingRecord
) -> Interval:
    """Each image moved in a direction of its own, so that the images are independent trials."""
    group = translations(border="edge")
    steps = [(0, 0, a, b) for a, b in ((pixels, 0), (-pixels, 0), (0, pixels), (0, -pixels))]
    which = torch.randint(len(steps), (len(samples),), generator=record.generator)
    x = samples.x.clone()
    for number, step in enumerate(steps):
        chosen = (which == number).nonzero().squeeze(1).to(x.device)
        if len(chosen):
            x[chosen] = _moved(group, step, samples.x[chosen])
    after = _classes(problem, replace(samples, x=x))
    return clopper_pearson(int((after != before).sum()), len(samples), record.confidence)


def _moved(group: Group, element: Element, x: Tensor) -> Tensor:
    moved = act(group, element, x, input_layout(group, x.shape))
    assert moved is not None  # the input's own grid follows every shift
    return moved


def _layers(problem: Problem, record: FindingRecord, samples: Samples) -> LayerEquivariance | None:
    """Which layer breaks equivariance under circular shifts, where there is time to see."""
    if problem.draws_random_numbers:  # what is drawn once would be taken for a position encoding
        record.not_applicable(
            "M-68", STATEMENT, "the model draws random numbers, of which each position has its own"
        )
        return None
    # capacity is for what takes twelve times the activations, of a quarter of the memory
    x = samples.x[: min(LAYERS_SEE, problem.capacity)]
    too_large = problem.function.count * 24 > problem.memory or len(x) == 0
    if too_large or problem.affordable(LAYER_PASSES) < len(x):
        record.not_done("M-68", STATEMENT, "there was no time or memory to look at the layers")
        return None
    try:
        found = equivariance_by_layer(problem.function, "translations", x)
    except TorchTheoryError as error:
        record.not_applicable("M-68", STATEMENT, str(error))
        return None
    record.table(
        "layers",
        ("layer", "introduced", "total", "why"),
        [
            (v.place, v.introduced if v.followed else None, v.total, _why(v, found.rounding))
            for v in found.layers
        ],
        caption="Relative defect of equivariance under circular shifts: of the layer alone, and "
        "of its outputs.",
    )
    if found.first is not None:
        record.not_applicable("M-68", STATEMENT, f"{found.first.place} {found.first.reason}")
    elif found.unfollowed is not None:
        where = found.unfollowed.place
        record.not_applicable("M-68", STATEMENT, f"what shifts do is not known behind {where}")
    else:
        _never_changes(problem, record, x, found.rounding)
    return found


def _why(layer: Any, rounding: float) -> str:
    if not layer.followed:
        return "what shifts do behind it is not known"
    return layer.reason or ("carries it on" if layer.total > rounding else "")


def _never_changes(problem: Problem, record: FindingRecord, x: Tensor, rounding: float) -> None:
    """Layers that commute with shifts make a network that does."""
    whole = measure_equivariance(
        problem.function, "translations", x, elements=4, generator=record.generator
    )
    says = record.states("M-68", STATEMENT)
    says.equal(
        whole.largest, 0.0, whole.rounding,
        where="relative change of the outputs under circular shifts",
    )  # fmt: skip
    # a network that reads a ramp with its image knows where things are
    ramp = torch.linspace(0, 1, x.shape[3], dtype=x.dtype, device=x.device)
    with torch.no_grad():
        f = problem.function
        here, there = (f(f.parameters, ramp * z) for z in (x, x.roll(x.shape[3] // 2, 3)))
    broken = float(relative_defects(there, here, constant_part(lambda: [here])).max())
    if broken > rounding:
        says.fails("images that are darkened from right to left on their way in", broken)


def _plot(ax: Any, moves: list[Move]) -> None:
    across = range(len(moves))
    heights = [m.changed.estimate for m in moves]
    low = [m.changed.estimate - m.changed.low for m in moves]
    high = [m.changed.high - m.changed.estimate for m in moves]
    ax.bar(across, heights, color=COLORS[0], width=0.5)
    ax.errorbar(across, heights, [low, high], fmt="none", ecolor="0.2", capsize=3)
    ax.axhline(OFTEN, color=COLORS[1], linestyle="--", label="worth a look, for one pixel")
    ax.set_xticks(across, [m.words for m in moves])
    ax.set(ylabel="predictions that change", ylim=(0, None))
    ax.legend()


# -------------------------------------------------------------------------------------- tokens

#: Samples tried, and orders of each.
SEQUENCES, ORDERS = 8, 4

ORDER = r"f(x_{\pi(1)}, \dots, x_{\pi(T)}) = f(x_1, \dots, x_T)"


def tokens_for_attention(problem: Problem) -> str | None:
    """Why the model is none of tokens with attention, or None."""
    if problem.several_inputs:
        return "the model takes several inputs, and this is about one sequence of tokens"
    kinds = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
    if not any(isinstance(m, kinds) for m in problem.model.modules()):
        return "the model has no attention layer of torch's, to which the order would be nothing"
    x = problem.train.x
    if (x.ndim != 2 or x.is_floating_point()) and x.ndim != 3:
        return f"a sample of shape {list(x.shape[1:])} is no sequence of tokens"
    if x.shape[1] < 2:
        return "a sequence of one token has no order"
    return None


@finding(
    "token-order",
    area="signals",
    title="Does the prediction depend on the order of the tokens?",
    cost="forward",
    needs=[tokens_for_attention, deterministic],
)
def token_order(problem: Problem, record: FindingRecord) -> None:
    """Attention does not see the order of its tokens unless positions are added to them."""
    samples = problem.train.some(min(SEQUENCES, problem.affordable(ORDERS + 2)), record.generator)
    x = samples.x
    varied = x.reshape(len(x), x.shape[1], -1)
    if bool((varied == varied[:, :1]).all()):
        record.not_applicable((), ORDER, "all tokens of a sequence are the same", samples=samples)
        return
    found = measure_equivariance(
        problem.function, "permutations", x, elements=ORDERS, generator=record.generator
    )
    number = record.quantity(
        "order-defect", "change of the outputs by another order of the tokens, of their size",
        found.mean, samples=samples,
    )  # fmt: skip
    part = part_of(samples)
    if found.exact:
        record.look(
            "The order of the tokens is nothing to the network: "
            + (
                f"its outputs are the same for each of {ORDERS} orders tried"
                if "invariance" in found.assumed
                else f"its outputs are permuted as the tokens are, in {ORDERS} orders tried"
            )
            + f"{part}.",
            number=number,
            usual=above(
                found.rounding, f"above {found.rounding:.1g}, which rounding alone can make"
            ),
            action="If the order matters, add position encodings to the embedded tokens.",
        )
    else:
        record.headline(
            f"Another order of the tokens changes the outputs by {size_words(number)} of their "
            f"size{part}."
        )
